"""What some ops have as their arg that holds nodes itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Placement
from tinygrad.uop.node import UOp
from tinygrad.uop.op import Ops


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
