"""The registry of op cards: everything that is to be known about an op stands on its card (`tinygrad/ops/`)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from tinygrad.uop.ops import Ops, UOp


@dataclass(frozen=True, slots=True)
class Factors:
  """The factor rule of one op on concrete shapes: which factors (numbered index ranges of the op) make up each dim.

  `src[i][d]`: factors of dim d of source i, major to minor; `out[d]` likewise for the result; `sizes[f]`: extent
  (upper bound).
  `blocked`: factors that cannot be cut. `contracted`: factors that are reduced away (the result owes the reduction
  where they are cut).
  `remapped`: result dims whose index is not the source's (PAD, SHRINK, FLIP, …): a cut there moves data.
  """

  src: tuple[tuple[tuple[int, ...], ...], ...]
  out: tuple[tuple[int, ...], ...]
  sizes: tuple[int, ...]
  blocked: frozenset[int] = frozenset()
  contracted: frozenset[int] = frozenset()
  remapped: frozenset[int] = frozenset()


class Owed(enum.Enum):
  """What an op does with operands that owe a reduction (the rows of the table in DESIGN 4); legality only, choice is
  `place`'s.
  """

  KEEP = enum.auto()  # commutes with every owed reduction: movement without fill
  PAD = enum.auto()  # add keeps a fill of 0, mul of 1, max and min any; else lift
  SELECT = enum.auto()  # where: replicated condition; branches owe or are lifted
  SUM = enum.auto()  # add, sub: add keeps, the other operand lifted; max/min by a finite replicated float
  EXTREMUM = enum.auto()  # elementwise max, min: the same op keeps
  PRODUCT = enum.auto()  # mul, numerator of a float division
  NEGATE = enum.auto()  # add keeps, float max <-> min
  REDUCE_SAME = enum.auto()  # a reduction keeps a debt of its own op
  CAST = enum.auto()  # by the pair of dtypes
  MONOTONE = enum.auto()  # relu, floor, ceil, round: max and min keep
  SETTLE_FIRST = enum.auto()  # nothing commutes


GradientRule = Callable[["UOp", "UOp"], Sequence["UOp | None"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
  """One op: see docs/architecture.md for the fields' contracts. `gradient` is None for ops that no derivative
  passes.
  """

  shape: Callable[[UOp], tuple[Any, ...]]
  dtype: Callable[[UOp], None]
  evaluate: Callable[[UOp, list[Any], tuple[int, ...]], Any] | None
  gradient: GradientRule | None
  factors: Callable[[UOp], Factors] | None
  owed: Owed
  render: str | None


CARDS: dict[Ops, Card] = {}


def define(op: Ops, **fields: Any) -> None:
  """Registers the card of `op`. A field left out is a TypeError at import; a second card for an op a ValueError."""
  if op in CARDS:
    raise ValueError(f"{op} has a card already")
  CARDS[op] = Card(**fields)


def card(op: Ops) -> Card:
  return CARDS[op]


def evaluate(u: Any, xs: list[Any], shape: tuple[int, ...]) -> Any:
  """The value of `u` on numpy operands, by its card."""
  rule = CARDS[u.op].evaluate
  assert rule is not None, f"{u.op} has no value"
  return rule(u, xs, shape)
