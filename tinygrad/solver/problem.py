"""What the solver is asked, as data: a mesh, values with hints, and the ops between them. No UOps."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinygrad.device import Mesh
from tinygrad.helpers import prod
from tinygrad.solver.axes import Axes, within_axes
from tinygrad.uop import Factors


@dataclass(frozen=True, slots=True)
class Hint:
  """How a value is cut, on a mesh, and what may become of that. Of each dim: `dims`, the sub-axes that cut it, major to
  minor; `opened`, whether it may be cut further; `priorities`, the round from which its cuts are propagated.
  `replicated` and `unreduced`: sub-axes that cut no dim; over the latter the value is partial."""

  dims: tuple[Axes, ...]
  opened: tuple[bool, ...]
  priorities: tuple[int, ...]
  replicated: Axes = ()
  unreduced: Axes = ()

  @staticmethod
  def anything(rank: int) -> Hint:
    """All dims open, and not cut."""
    return Hint(((),) * rank, (True,) * rank, (0,) * rank)

  @staticmethod
  def of(
    mesh: Mesh,
    dims: Sequence[Axes],
    opened: Sequence[bool],
    priorities: Sequence[int] = (),
    replicated: Axes = (),
    unreduced: Axes = (),
  ) -> Hint:
    """In normal form: sub-axes within mesh axes, neighbours joined."""
    kept, gone = within_axes(replicated, mesh), within_axes(unreduced, mesh)
    return Hint(
      tuple(within_axes(d, mesh) for d in dims), tuple(opened), tuple(priorities) or (0,) * len(dims), kept, gone
    )


class Direction(enum.Flag):
  """Where an op lets cuts through: from its sources to its results, and back."""

  NONE = 0
  FORWARD = enum.auto()
  BACKWARD = enum.auto()
  BOTH = FORWARD | BACKWARD


@dataclass(frozen=True, slots=True)
class Rule:
  """How the dims of an op's values hang together. `tensors`: of each source, then of each result, per dim its factors,
  major to minor; `sizes` of the factors; `sources`: how many of the tensors are sources.

  `blocked`: factors that carry no cut. `special`: those along which a cut costs communication (they are reduced, or
  must be whole, or are permuted): the others pass through. `elementwise`: each element of a result is computed from one
  of each source. `direction`: what it lets through at all."""

  tensors: tuple[tuple[tuple[int, ...], ...], ...]
  sizes: tuple[int, ...]
  sources: int
  blocked: frozenset[int] = frozenset()
  special: frozenset[int] = frozenset()
  elementwise: bool = False
  direction: Direction = Direction.BOTH

  @staticmethod
  def of(f: Factors, elementwise: bool = False, direction: Direction = Direction.BOTH) -> Rule:
    """From the factors of a card."""
    remapped = frozenset(factor for i in f.remapped for factor in f.out[i])
    return Rule((*f.src, f.out), f.sizes, len(f.src), f.blocked, f.contracted | remapped, elementwise, direction)


@dataclass(frozen=True, slots=True)
class Edge:
  """An op: which values are its sources and results (None: one that takes no part), in the order of the rule."""

  rule: Rule
  values: tuple[int | None, ...]


@dataclass(slots=True)
class Problem:
  """Values are numbers. `shapes` and `hints` (None: nothing is said) of each; `edges` in program order; `results`:
  pairs of values that are one outside of the program (what it returns, and how that is wanted), which hand cuts to one
  another before and after each fixed point only; `groups` of values that are placed alike; `weights`: what moving
  a value costs, bytes, by which conflicts are resolved (its number of elements unless given); `memory`: values that are
  decided first, and all others anew with these as they are."""

  mesh: Mesh
  shapes: list[tuple[int, ...]] = field(default_factory=list)
  hints: list[Hint | None] = field(default_factory=list)
  edges: list[Edge] = field(default_factory=list)
  results: list[tuple[int, int]] = field(default_factory=list)
  groups: list[tuple[int, ...]] = field(default_factory=list)
  weights: list[float] = field(default_factory=list)
  memory: list[int] = field(default_factory=list)

  def value(self, shape: tuple[int, ...], hint: Hint | None = None, weight: float | None = None) -> int:
    """The number of a new value."""
    self.shapes.append(shape)
    self.hints.append(hint)
    self.weights.append(prod(shape) if weight is None else weight)
    return len(self.shapes) - 1
