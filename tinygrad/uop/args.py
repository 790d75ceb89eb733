"""What some ops have as their arg that holds nodes itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Placement
from tinygrad.dtype import DType
from tinygrad.uop.cards import Factors
from tinygrad.uop.node import UOp
from tinygrad.uop.op import Ops
from tinygrad.uop.rewrite import substitute


@dataclass(frozen=True, slots=True, eq=False)
class OwnGradient:
  """The arg of a DETACH whose derivative somebody gives: by each of its inputs it is what `rule` makes of the node's
  gradient and of them. `held` are Tensors of a DETACH of the inputs, for what Tensors stand for changes as memory takes
  the place of nodes, so that the inputs are found again."""

  held: tuple[Any, ...]
  rule: Callable[[UOp, tuple[UOp, ...]], Sequence[UOp | None]]

  @property
  def inputs(self) -> tuple[UOp, ...]:
    return tuple([t.uop.src[0] if t.uop.op is Ops.DETACH else t.uop for t in self.held])


@dataclass(frozen=True, slots=True, eq=False)
class JointGradient(OwnGradient):
  """Of result `number` of several on the same inputs. `joint` is the rule of any of them together: of their numbers,
  their gradients and the inputs."""

  number: int
  joint: Callable[[Sequence[int], tuple[UOp, ...], tuple[UOp, ...]], Sequence[UOp | None]]


@dataclass(frozen=True, slots=True)
class Collective:
  """A communication of the local view: the result is `template` (over HOLE leaves, one a source) placed as `result`,
  given source i in `placements[i]`; a partial source is reduced. `kind` is for people."""

  kind: str
  template: UOp
  placements: tuple[Placement, ...]
  result: Placement

  def __repr__(self) -> str:
    return f"{self.kind} of {self.template.op.name}"


class CustomOp:
  """What a user's op is; the arg of a CUSTOM is (the op by which it is partial where a reduced factor is cut, this).
  Equal ones are the same op. It is a function of graphs, so it is evaluated, and localized, as what it makes."""

  __slots__ = ()
  placed: Placement | None = None  # where its result is, wherever its operands are; None: as its factors say
  body: tuple[UOp, ...] = ()  # what it computes over stand-ins of its own, if it is a loop

  def shape(self, u: UOp) -> tuple[Any, ...]:
    return self.trace(holes_like(u.src), None).shape

  def dtype(self, u: UOp) -> DType:
    return self.trace(holes_like(u.src), None).dtype

  def trace(self, holes: tuple[UOp, ...], shape: tuple[Any, ...] | None) -> UOp:
    """Its graph over HOLEs; of a device's parts `shape` is what the rule says of the result, held against it."""
    raise NotImplementedError

  def factors(self, u: UOp) -> Factors:
    raise NotImplementedError

  def gradient(self, g: UOp, u: UOp) -> Sequence[UOp | None]:
    raise NotImplementedError

  def graph(self, src: Sequence[UOp], shape: tuple[Any, ...] | None = None) -> UOp:
    """What it makes of `src`: wholes, or a device's parts."""
    holes = holes_like(src)
    return substitute(self.trace(holes, shape), dict(zip(holes, src)))


@dataclass(frozen=True, slots=True)
class SourceKernel:
  """The arg of a CALL: a kernel that a user wrote, by the kind of backend; `dims`, with which it is called, those of
  the result and of each operand; and what it computes, as a graph over HOLEs."""

  name: str
  sources: tuple[tuple[str, str], ...]
  dims: tuple[int, ...]
  graph: UOp


def holes_like(src: Sequence[UOp]) -> tuple[UOp, ...]:
  """A HOLE for each, by which a graph over them is written."""
  return tuple([UOp.new(Ops.HOLE, s.dtype, (), (i, s.shape)) for i, s in enumerate(src)])
