"""Hints in, placements out: `propagate` places what is not placed yet, weights after their uses, gradients and the
optimizer's state after the weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tinygrad.device import Mesh, ShardTypeError, refuse
from tinygrad.engine.program_order import program_order, unrecorded
from tinygrad.engine.realize import random_states, realize
from tinygrad.helpers import STRATEGY, LazyModule
from tinygrad.sharding.replacement import Replacement
from tinygrad.uop import Ops, UOp

if TYPE_CHECKING:
  from tinygrad.solver import build, graph, reasons, solve
  from tinygrad.solver.graph import Answer
  from tinygrad.solver.reasons import Reason
else:
  build, graph, reasons, solve = (LazyModule(f"tinygrad.solver.{n}") for n in ("build", "graph", "reasons", "solve"))


class Propagation:
  """What `propagate` has decided. It prints as a list of inputs, weights and hinted values with their placements, and
  for each dim that is cut the hint and the user's line that say so, and by way of which ops."""

  def __init__(self, answer: Answer, before: dict[UOp, UOp]) -> None:
    self.answer, self.before = answer, before  # of each node that was placed, what it was

  def __str__(self) -> str:
    return reasons.table(self.answer)

  __repr__ = __str__

  def why(self, t: Any) -> list[Reason]:
    """The reasons for each cut dim of a Tensor that was among the outputs, or that these are computed from."""
    u = t if isinstance(t, UOp) else t.uop
    return reasons.reasons(self.answer, self.before.get(u, u))


def propagate(*outputs: Any, mesh: Mesh) -> Propagation:
  """Places everything that `outputs` (Tensors, or lists, tuples and dicts of them) are computed from and that is not
  placed yet, on the mesh, as hints (`Tensor.constrain`) and placements (`Tensor.shard`) say: forward from what they are
  said of to what is computed from it, and backward. Weights and other memory on one device move there at once;
  tensors that read them show their new placements. Nothing else is computed.

  Raises: ShardError for a hint that names no axis of the mesh; ShardTypeError for no mesh.
  """
  if not isinstance(mesh, Mesh):
    refuse(f"propagate: mesh={mesh!r} is no Mesh", 'mesh=Mesh(("CPU:0", "CPU:1"), names=("dp",))', error=ShardTypeError)
  return place_on(mesh, [t.uop for t in _tensors(outputs)])


def _tensors(x: Any) -> Iterable[Any]:
  if isinstance(x, dict):
    x = list(x.values())
  if isinstance(x, (list, tuple)):
    return (t for y in x for t in _tensors(y))
  return (x,) if hasattr(x, "uop") else ()


def place_on(mesh: Mesh, roots: Sequence[UOp]) -> Propagation:
  """Places what `roots` are computed from. What a function was given stays where it is, and is moved when it is
  read."""
  found = graph.answer(UOp.sink(*roots), mesh, solve.Policy(STRATEGY.value))
  leaves: dict[UOp, UOp] = {}
  memory: dict[UOp, UOp] = {}
  for u in found.asked.leaves:
    target = found[u]
    assert target is not None
    if u.op is Ops.MOVE:
      leaves[u] = build.moved_to(u.src[0], target, u)
    elif u in random_states or u in program_order.inputs:
      leaves[u] = build.moved_to(u, target, u)
    elif u.device != target:
      memory[u] = build.moved_to(u, target, u)
  with unrecorded():
    leaves |= zip(memory, realize(*memory.values()), strict=True)
  made = build.build_answer(found, leaves)
  placed = {u: v for u, v in made.items() if u in found.asked.number}
  replaced = Replacement({u: v for u, v in placed.items() if u is not v})
  replaced.done.update(placed)  # what is as it was stays, whatever becomes of the moves below it
  for t in program_order.live():
    if t.follows and t.uop.base in program_order.inputs:
      continue
    if (v := replaced.of(t.uop)) is not t.uop:
      t.uop = v
  return Propagation(found, {v: u for u, v in reversed(made.items())})
