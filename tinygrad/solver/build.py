"""A graph at the placements that were decided for it: every move that these take is made, explicitly."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tinygrad.device import Placement, Sharding
from tinygrad.sharding.costs import Costs, at_placement
from tinygrad.sharding.decisions import droppable
from tinygrad.sharding.moves import wire
from tinygrad.sharding.outcomes import Outcome, outcomes
from tinygrad.solver.graph import Answer, is_anywhere
from tinygrad.uop import Move, Ops, UOp
from tinygrad.uop.rewrite import Sources, on_sources, rebuild


def build_answer(found: Answer, leaves: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
  """What each node of the graph becomes. `leaves`: what is memory on one device, where it is to be."""
  made, costs = dict(leaves), Costs()

  def make(u: UOp, src: Sources) -> UOp:
    if is_anywhere(u):
      return src[0]
    target = found[u]
    if target is None or u.op is Ops.BUFFER:
      return on_sources(u, src)
    if u.op is Ops.MOVE:
      return src[0] if droppable(u) or not u.arg.pinned else moved_to(src[0], u.arg.device, u)
    if u.op is Ops.CONSTRAIN:
      return constrained(u, src[0], target)
    if u.op is Ops.ASSIGN:
      return on_sources(u, (src[0], at_placement(src[1], src[0].device)))
    if u.op is Ops.AFTER:
      return on_sources(u, src)
    v = at_target(u, src, target, costs)
    if v.origin is None:
      v.origin = u.origin
    return v

  rebuild(found.asked.order[-1], make, made)
  return made


def moved_to(x: UOp, target: Placement, why: UOp) -> UOp:
  """`x` at a placement, for good; `why`: the node whose line asks for it."""
  if x.device is None or x.device == target:
    return x
  v = UOp.new(Ops.MOVE, x.dtype, (x,), Move(target, True))
  if v.origin is None:
    v.origin = why.origin
  return v.named(target)


def constrained(u: UOp, x: UOp, target: Placement) -> UOp:
  """A value where a hint wants it. What is partial stays that, unless the hint says that it is whole here."""
  if isinstance(x.device, Sharding) and x.device.reduced == target and not u.arg.reduced:
    return x
  return moved_to(x, target, u)


def at_target(u: UOp, src: Sources, target: Placement, costs: Costs) -> UOp:
  """The op, run in the way of the fewest bytes to have its result at `target`: partial it may be."""
  if not any(isinstance(s.device, Sharding) for s in src):
    return at_placement(on_sources(u, src), target)
  ways = outcomes(u.op, u.dtype, src, u.arg)
  best = ways[0] if len(ways) == 1 else min(ways, key=functools.partial(_rank, u, src, target, costs))
  v = UOp.new(u.op, u.dtype, costs.brought(src, best), u.arg)
  here = v.device
  return v if isinstance(here, Sharding) and here.reduced == target else costs.build(v, target)


def _rank(u: UOp, src: Sources, target: Placement, costs: Costs, o: Outcome) -> tuple[float, int, int]:
  after = o.partial
  if isinstance(o.result, Sharding) and o.result.reduced != target:
    after = wire(u.shape, u.dtype.itemsize, o.result, target)
  return costs.moved(src, o) + after + o.mapped, 0 if o.defers else 1, -o.parts
