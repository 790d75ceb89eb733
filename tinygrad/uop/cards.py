"""The registry of op cards: everything that is to be known about an op stands on its card (`tinygrad/ops/`)."""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tinygrad.uop.node import UOp
from tinygrad.uop.op import Ops


@dataclass(frozen=True, slots=True)
class Factors:
  """The factor rule of one op on concrete shapes: which factors (numbered index ranges of the op) make up each dim.

  `src[i][d]`: factors of dim d of source i, major to minor; `out[d]` likewise for the result; `sizes[f]`: extent (upper
  bound). `blocked`: factors that cannot be cut. `contracted`: factors that are reduced away (the result is partial by
  the reduction where they are cut). `remapped`: result dims whose index is not the source's (PAD, SHRINK, FLIP, …): a
  cut there moves data. `even`: factors that are cut into equal parts only."""

  src: tuple[tuple[tuple[int, ...], ...], ...]
  out: tuple[tuple[int, ...], ...]
  sizes: tuple[int, ...]
  blocked: frozenset[int] = frozenset()
  contracted: frozenset[int] = frozenset()
  remapped: frozenset[int] = frozenset()
  even: frozenset[int] = frozenset()


# What an op does with partial operands (the rows of the table in docs/sharding.md); legality only, the choice is
# `decide`'s, and once more `place`'s:
#   KEEP: commutes with every reduction: movement without fill
#   PAD: add keeps a fill of 0, mul of 1, max and min any; else the fill is made partial
#   SELECT: where: replicated condition; branches are partial or made so
#   SUM: add, sub: add keeps, the other operand made partial; max/min by a finite replicated float
#   EXTREMUM: elementwise max, min: the same op keeps; of one operand the other extremum too
#   PRODUCT: mul, numerator of a float division
#   NEGATE: add keeps, float max <-> min
#   REDUCE_SAME: a reduction keeps what is partial by its own op
#   SCATTER: the updates may be partial by the scatter's own op, under a replicated index
#   CAST: by the pair of dtypes
#   MONOTONE: relu, floor, ceil, round: max and min keep
#   REDUCE_FIRST: nothing commutes
PartialRule = enum.Enum(
  "PartialRule",
  "KEEP PAD SELECT SUM EXTREMUM PRODUCT NEGATE REDUCE_SAME SCATTER CAST MONOTONE REDUCE_FIRST",
  module=__name__,
)


class Trait(enum.Flag):
  """What stages ask of an op, beside its rules; each a fact about the op, not about who asks."""

  # its value is its first source's: it says where, when or whether that is held
  IDENTITY = enum.auto()
  # shows elements of its only source as they are, so that memory of the source can be read through it
  VIEW = enum.auto()
  # every element of its sources appears in it; none appears twice
  ONTO = enum.auto()
  ONE_TO_ONE = enum.auto()
  # the index decides from which source an element comes, or that it is a fill
  GATED = enum.auto()
  # its arg is (axis, kaxis, stride, dilation, size): dim `axis` is indexed by the window's place and tap
  STRIDED = enum.auto()
  # memory: a buffer, or one device's part of it
  MEMORY = enum.auto()
  # made where it is read, of no operand: it has no place of its own
  PLACELESS = enum.auto()
  # goes from memory to memory: a copy between devices, a kernel that a user wrote
  IN_MEMORY = enum.auto()
  # orders or performs a write
  EFFECT = enum.auto()
  # reduces by arg[0]
  REDUCES = enum.auto()
  # the same number in another type, which a load or store beside it does on the way
  CONVERTS = enum.auto()
  # 0 where the operands are 0
  ZERO_AT_ZERO = enum.auto()
  # op(x, x) is x
  IDEMPOTENT = enum.auto()
  # integer division or its rest, which by 0 is 0
  DIVIDES = enum.auto()
  # a result beyond the integer type wraps around
  WRAPS = enum.auto()
  # one floating point operation an element, as the field counts them: no conversion, comparison or choice
  FLOP = enum.auto()
  # what placing a reader looks at: through it at its source; at itself; whether its two operands are one value
  SEEN_THROUGH = enum.auto()
  SEEN = enum.auto()
  PAIRED = enum.auto()


NO_TRAIT = Trait(0)


class Element(NamedTuple):
  """Which element of an op's only source stands at an index: where, under which condition (None: always), and what
  stands there where it does not hold."""

  at: tuple[UOp, ...]
  gate: UOp | None = None
  fill: float | int | bool = 0


IndexMap = Callable[["UOp", "tuple[UOp, ...]"], Element]
ShapeRule = Callable[["UOp"], tuple[Any, ...]]
TypeRule = Callable[["UOp"], None]
ValueRule = Callable[["UOp", list[Any], tuple[int, ...]], Any]
FactorRule = Callable[["UOp"], Factors]
GradientRule = Callable[["UOp", "UOp"], Sequence["UOp | None"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
  """One op: see docs/architecture.md for the fields' contracts. `gradient` is None for ops that no derivative passes.
  `index_map`: of movement of one source, which of its elements stands at an index; else None. `cost`: what one element
  takes, in simple instructions (a measure for choices, not a promise)."""

  shape: ShapeRule
  dtype: TypeRule
  evaluate: ValueRule | None
  gradient: GradientRule | None
  factors: FactorRule | None
  partial: PartialRule
  render: str | None
  index_map: IndexMap | None
  traits: Trait
  cost: int


CARDS: dict[Ops, Card] = {}


def define(op: Ops, card: Card) -> None:
  """Registers the card of `op`, on which every field stands. A second card for an op is a ValueError."""
  if op in CARDS:
    raise ValueError(f"{op} has a card already")
  CARDS[op] = card


def having(*traits: Trait) -> frozenset[Ops]:
  """The ops with all of these traits. Asked once, when a module that needs them is imported: every op has its card."""
  bits = functools.reduce(operator.or_, traits).value
  return frozenset(op for op, card in CARDS.items() if card.traits.value & bits == bits)


def evaluate(u: Any, xs: list[Any], shape: tuple[int, ...]) -> Any:
  """The value of `u` on numpy operands, by its card."""
  rule = CARDS[u.op].evaluate
  assert rule is not None, f"{u.op} has no value"
  return rule(u, xs, shape)


def factor_rule(u: UOp) -> Factors:
  """The factors of a node, from its card."""
  rule = CARDS[u.op].factors
  assert rule is not None, f"{u.op.name} has no factor rule"
  return rule(u)
