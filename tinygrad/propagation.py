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
  from tinygrad.solver import build, graph, solve
  from tinygrad.solver.graph import Answer
else:
  build, graph, solve = map(LazyModule, ("tinygrad.solver.build", "tinygrad.solver.graph", "tinygrad.solver.solve"))


def propagate(*outputs: Any, mesh: Mesh) -> Answer:
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


def place_on(mesh: Mesh, roots: Sequence[UOp]) -> Answer:
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
  replaced = Replacement({u: v for u, v in made.items() if u is not v and u in found.asked.number})
  for t in program_order.live():
    if t.follows and t.uop.base in program_order.inputs:
      continue
    if (v := replaced.of(t.uop)) is not t.uop:
      t.uop = v
  return found
