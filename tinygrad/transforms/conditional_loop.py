"""A loop as a value whose number of steps is not known: what `while_loop` makes, as an op of the graph.

As with `ScanLoop`, a node (`WhileOp`) is one result, and nodes of one loop on the same sources run together
(`run_loops.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.device import Placement, Sharding
from tinygrad.dtype import DType
from tinygrad.transforms.batching import Batching
from tinygrad.transforms.loop import ScanLoop, check_lengths, with_lanes
from tinygrad.transforms.tracing import with_replaced
from tinygrad.uop import CustomOp, Factors, Ops, UOp

Nodes = tuple[UOp, ...]


@dataclass(frozen=True, slots=True)
class WhileLoop:
  """One step, as of a loop without stacks, and the condition, over the same stand-ins, under which there is a step."""

  body: ScanLoop
  test: UOp

  def result(self, out: int, src: Sequence[UOp]) -> UOp:
    check_lengths("while_loop", self.body.after[out])
    return UOp.build(Ops.CUSTOM, self.body.after[out].dtype, tuple(src), (Ops.ADD, WhileOp(self, out)))

  def lasting(self) -> ScanLoop:
    """A step that leaves everything as it is where the condition does not hold."""
    pairs = zip(self.body.after, self.body.holes)
    after = [self.test.broadcast_to(y.shape).where(y, h) for y, h in pairs]
    return replace(self.body, after=tuple(after))


@dataclass(frozen=True, slots=True)
class WhileOp(CustomOp):
  """Carry number `out` when the condition holds no longer."""

  loop: WhileLoop
  out: int

  def __repr__(self) -> str:
    return "while_loop"

  def shape(self, u: UOp) -> tuple[Any, ...]:
    return self.loop.body.after[self.out].shape

  def dtype(self, u: UOp) -> DType:
    return self.loop.body.after[self.out].dtype

  @property
  def placed(self) -> Placement | None:  # type: ignore[override]
    device = self.loop.body.holes[self.out].device
    return device.reduced if isinstance(device, Sharding) else device

  @property
  def body(self) -> Nodes:  # type: ignore[override]
    return (*self.loop.body.after, self.loop.test)

  def factors(self, u: UOp) -> Factors:
    return Factors(tuple(((),) * s.ndim for s in u.src), ((),) * u.ndim, ())

  def graph(self, src: Sequence[UOp], shape: tuple[Any, ...] | None = None) -> UOp:
    rule = "while_loop: how many steps there are is known when they run, and a graph without the loop is asked for"
    fix = "realize its result first; or scan with a known length and where()"
    raise TypeError(f"{rule}\n  fix: {fix}")

  def trace(self, holes: Nodes, shape: tuple[Any, ...] | None) -> UOp:
    return self.graph(holes)

  def gradient(self, g: UOp, u: UOp) -> Sequence[UOp | None]:
    rule = "while_loop: there is no gradient, for nothing says how many steps there are to go back"
    raise TypeError(f"{rule}\n  fix: scan with a known length and where(); or custom_vjp; or stop_gradient")

  def batched(self, batching: Batching, src: Nodes) -> UOp:
    """With lanes in front: as long as the condition holds for one of them."""
    key = self.loop, src
    if (found := batching.loops.get(key)) is None:
      step, inner, numbers, sources = with_lanes(self.loop.lasting(), batching.lanes, src)
      test = with_replaced(inner.fronted(self.loop.test), numbers)
      some = UOp.build(Ops.REDUCE, test.dtype, (test,), (Ops.MAX, tuple(range(test.ndim)))).reshape(())
      found = batching.loops[key] = WhileLoop(step, some), sources
    loop, sources = found
    made: UOp = loop.result(self.out, sources)
    return made
