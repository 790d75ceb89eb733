"""The placement function: on which devices an op runs, how its operands must be cut for it, and what its result is cut
into: of the ways there are (`outcomes.py`) the one of the fewest bytes (`costs.py`)."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from tinygrad.device import Sharding, same_devices, show_placement, spelled
from tinygrad.device.sub_axes import size_of
from tinygrad.dtype import DType
from tinygrad.helpers import DEFER, RESHARD, STRATEGY, prod
from tinygrad.sharding.costs import PUSHED, Costs
from tinygrad.sharding.factors import carried
from tinygrad.sharding.moves import ints
from tinygrad.sharding.outcomes import Nodes, Outcome, is_partial, operand, outcomes, shard_error
from tinygrad.uop import Ops, UOp, mesh_of


def decide(op: Ops, dtype: DType, src: Nodes, arg: Any, later: float | None, ways: Costs) -> Nodes:
  """The sources of `op`, brought by implied moves, in the cheapest way, to where it is to run: a move may lie below an
  EXPAND, a contraction's MUL may be built anew; where nothing has to move these are `src`.

  A partial result is charged as `later` bytes where the caller knows its consumers, else as its reduction at
  the smallest producer; a tie defers. With DEFER=0 sources are reduced. `ways`: costs that are known already.
  Raises: ShardError if the operands live on different single devices or device sets, or if RESHARD=0 and bytes would
  have to move.
  """
  if op is Ops.REDUCE and (better := contraction(src[0], arg)) is not None:
    src = (better,)
  found = outcomes(op, dtype, src, arg, STRATEGY.value)
  if len(found) == 1:
    return src if found[0].stays else _bring_all(op, src, found[0], ways)
  best = min((o for o in found if DEFER.value or not o.defers), key=functools.partial(_rank, op, src, ways, later))
  return _bring_all(op, src, best, ways)


def _rank(op: Ops, src: Nodes, ways: Costs, later: float | None, o: Outcome) -> tuple[float, int, int]:
  partial = o.partial
  if later is not None and is_partial(o.result):
    partial = later
  elif o.defers and op in PUSHED and isinstance(here := src[0].device, Sharding):
    partial = min(partial, ways.cost(src[0], here.reduced))
  return ways.moved(src, o) + partial + o.mapped, 0 if o.defers else 1, -o.parts


def _bring_all(op: Ops, src: Nodes, o: Outcome, ways: Costs) -> Nodes:
  if not RESHARD.value:
    for i, (s, r) in enumerate(zip(src, o.required)):
      if r is not None and (nbytes := ways.cost(s, r)) > 0 and not is_partial(s.device):
        what = f"src[{i}] has to move to {show_placement(r, mesh_of(s))}, and RESHARD=0 forbids an implied move"
        there = next((f"{operand(j)}.device" for j, x in enumerate(src) if x.device == r), spelled(r))
        fix = f"{operand(i)}.shard({there})  # before the {op.name.lower()} ({nbytes:.0f} B per device)"
        raise shard_error(op, src, what, fix)
  return ways.brought(src, o)


# ---------------------------------------------------------------- contraction


def unmoved(u: UOp) -> UOp:
  """`u` without the implied moves below its movement ops (what is reduced stays reduced)."""
  if u.op is Ops.MOVE and not u.arg.pinned and not is_partial(u.src[0].device):
    return unmoved(u.src[0])
  if (u.op in PUSHED or u.op is Ops.CAST) and (s := unmoved(u.src[0])) is not u.src[0]:
    return UOp.new(u.op, u.dtype, decide(u.op, u.dtype, (s,), u.arg, None, Costs()), u.arg)
  return u


def contraction(x: UOp, arg: Any) -> UOp | None:
  """REDUCE(ADD) of a MUL, through CAST, RESHAPE and PERMUTE, as one op: `x` with its MUL placed anew, the reduction
  known; None to leave it.

  The MUL was placed without knowing that it is summed. The cuts of its operands before any implied move are resolved
  again, and what the sum will be partial over is charged as a reduce-scatter."""
  if arg[0] is not Ops.ADD:
    return None
  chain = [*itertools.takewhile(lambda u: u.op is Ops.CAST or (u.op in PUSHED and u.op is not Ops.EXPAND), x.down())]
  mul = chain[-1].src[0] if chain else x
  if mul.op is not Ops.MUL:
    return None
  operands = tuple(unmoved(s) for s in mul.src)
  if operands == mul.src or not any(isinstance(s.device, Sharding) for s in operands):
    return None
  found = outcomes(Ops.MUL, mul.dtype, operands, mul.arg, STRATEGY.value)
  if len(found) == 1:  # nothing is contested
    return None
  ways = Costs()
  priced: list[tuple[float, int, Outcome]] = []
  for way in found:
    placed = way.result
    for u in reversed(chain):
      placed = carried(u, placed, True) if placed is not None else None
    if isinstance(placed, Sharding):
      sub_axes = [d for i in arg[1] for d in placed.cut(i)]
      block = [1 if i in arg[1] else n for i, n in enumerate(placed.local_shape(ints(x.shape)))]
      partial = prod(block) * x.dtype.itemsize * (1 - 1 / size_of(sub_axes))
      priced.append((ways.moved(operands, way) + partial, -way.parts, way))
  if not priced or (best := min(priced, key=lambda p: p[:2])[2]).result == mul.device:
    return None
  u = UOp.new(Ops.MUL, mul.dtype, ways.brought(operands, best), mul.arg)
  for link in reversed(chain):
    u = UOp.new(link.op, link.dtype, (u,), link.arg)
  return u


def droppable(u: UOp) -> bool:
  """Whether u is an implied move on one device set, which `decide` makes again where it is needed. A gradient that is
  handed out at the cuts of its tensor stays: a partial one is scattered once for all of its readers."""
  if u.op is not Ops.MOVE or u.arg.pinned:
    return False
  here, there = u.src[0].device, u.arg.device
  if isinstance(here, Sharding) and here.partial and not is_partial(there) and there is not here.reduced:
    return False
  return here is None or same_devices(here, there)
