"""Hints in, placements out: `propagate` places what is not placed yet, weights after their uses, gradients and the
optimizer's state after the weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tinygrad.device import Mesh, ShardTypeError, refuse
from tinygrad.engine.program_order import program_order, unrecorded
from tinygrad.engine.realize import random_states, realize
from tinygrad.helpers import STRATEGY
from tinygrad.sharding.replacement import Replacement
from tinygrad.solver.build import build_answer, moved_to
from tinygrad.solver.graph import Answer, answer
from tinygrad.solver.solve import Policy
from tinygrad.uop import Ops, UOp


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


def place_on(mesh: Mesh, roots: Sequence[UOp], inputs: Sequence[UOp] = ()) -> Answer:
  """Places what `roots` are computed from. `inputs`: memory that stays where it is, and is moved_to when it is read."""
  found = answer(UOp.sink(*roots), mesh, Policy(STRATEGY.value))
  leaves: dict[UOp, UOp] = {}
  memory: dict[UOp, UOp] = {}
  for u in found.asked.leaves:
    target = found[u]
    assert target is not None
    if u.op is Ops.MOVE:
      leaves[u] = moved_to(u.src[0], target, u)
    elif u in random_states or u in inputs:
      leaves[u] = moved_to(u, target, u)
    elif u.device != target:
      memory[u] = moved_to(u, target, u)
  with unrecorded():
    leaves |= zip(memory, realize(*memory.values()), strict=True)
  made = build_answer(found, leaves)
  replaced = Replacement({u: v for u, v in made.items() if u is not v and u.op is not Ops.SINK})
  for t in program_order.live():
    if (v := replaced.of(t.uop)) is not t.uop:
      t.uop = v
  return found
