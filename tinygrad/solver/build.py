"""A graph at the placements that were decided for it: every move that these take is made, explicitly."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

from tinygrad.device import Partial, Placement, Sharding, SubAxis
from tinygrad.device.sub_axes import size_of
from tinygrad.helpers import prod
from tinygrad.sharding.costs import Costs, at_placement, wants_push
from tinygrad.sharding.decision_cache import AS_GIVEN
from tinygrad.sharding.decisions import decide
from tinygrad.sharding.factors import collect, legal, project
from tinygrad.sharding.moves import wire
from tinygrad.sharding.outcomes import Outcome, is_partial, outcomes
from tinygrad.solver.axes import coexist
from tinygrad.solver.contractions import Contraction
from tinygrad.solver.decided import Decided, moved_to, with_origin
from tinygrad.solver.graph import Answer, is_anywhere, is_decided_anew
from tinygrad.uop import Ops, UOp, factor_rule
from tinygrad.uop.rewrite import Sources, on_sources, rebuild


def build_answer(found: Answer, leaves: Mapping[UOp, UOp], wished: bool = True) -> dict[UOp, UOp]:
  """What each node of the graph becomes. `leaves`: what is memory on one device, where it is to be. What is between
  these and hinted values is placed as if it were written now, if the answer is not wished for."""
  made, costs, products = dict(leaves), MovesHeld(), found.asked.contractions.by_mul if wished else {}
  decided = None if found.decisions is None else Decided(found, made)
  stays_whole = whole_for_readers(found) if decided is None and wished else set()
  ahead = Ahead(found, made)

  def make(u: UOp, src: Sources) -> UOp:
    if is_anywhere(u):
      return src[0]
    if u in found.asked.inert:
      return on_sources(u, src)
    if u in stays_whole and all(s.device is None or is_whole(s.device) for s in src):
      return with_origin(UOp.new(u.op, u.dtype, src, u.arg), u)
    if (c := products.get(u)) is not None:
      return with_origin(decided.product(u, c, src) if decided else product(u, c, src, found, costs), u)
    target = found[u]
    if u.op is Ops.CONSTRAIN and target is not None:
      return constrained(u, src[0], target)
    if is_decided_anew(u):
      return src[0]
    if u.op is Ops.BUFFER or not any(isinstance(s.device, Sharding) for s in src):
      return on_sources(u, src)
    if not wished and u.op not in AS_GIVEN:
      return with_origin(as_written_now(u, src, costs), u)
    if target is None:  # inside of a contraction, or where the user has sent it
      return on_sources(u, src) if u.op in AS_GIVEN else with_origin(UOp.build(u.op, u.dtype, src, u.arg), u)
    if u.op is Ops.MOVE:
      return with_origin(on_sources(u, src), u)  # it is a hint, too
    if u.op is Ops.ASSIGN:
      return on_sources(u, (src[0], at_placement(src[1], src[0].device)))
    if u.op is Ops.AFTER:
      return on_sources(u, src)
    return with_origin(decided.op(u, src, target) if decided else at_target(u, src, target, costs, ahead), u)

  for u in found.asked.by_depth:
    rebuild(u, make, made)
  return made


def is_whole(placement: Placement | None) -> bool:
  return isinstance(placement, Sharding) and placement is Sharding.of(placement.mesh, ())


def whole_for_readers(found: Answer) -> set[UOp]:
  """What each device can compute for itself, and would have to be moved if it were cut, for an op that reads it or what
  is computed from it. Behind that op it is cut for nothing."""
  asked, could, out = found.asked, set[UOp](), set[UOp]()
  leaves = set(asked.leaves)
  for u in asked.by_depth:
    is_said = (u.op is Ops.CONSTRAIN or u.op is Ops.MOVE) and not asked.is_no_value(u)
    if not u.src or is_said or u in leaves:
      able = is_whole(found[u])
    else:
      able = all(s in could or s.device is None for s in u.src)
    if able:
      could.add(u)
  for u in reversed(asked.by_depth):
    if u in could and (u in out or would_move(u, found)):
      out.update(s for s in u.src if s in could)
  return out


def would_move(u: UOp, found: Answer) -> bool:
  """Whether bytes move for an op if its sources and its result are where the answer says."""
  target = found[u]
  if not isinstance(target, Sharding) or u.op is Ops.CONSTRAIN or is_decided_anew(u):
    return False
  dims = [target.cut(i) for i in range(u.ndim)]
  if (c := found.asked.contractions.by_reduce.get(u)) is not None:
    operands, tensors, cuts = c.operands, c.rule.tensors, dict(enumerate(dims))
  else:
    f = factor_rule(u)
    if any(dims[i] for i in f.remapped):
      return True
    operands, tensors, cuts = u.src, f.src, legal(collect(f.out, f, dims), f)
  for s, lists in zip(operands, tensors):
    here, need = found[s], Sharding.of(target.mesh, project(lists, cuts))
    if isinstance(here, Sharding) and wire(s.shape, s.dtype.itemsize, here, need) > 0:
      return True
  return False


class MovesHeld(Costs):
  """Costs at which a move that the graph holds already is had for nothing. `held`: what is moved."""

  __slots__ = ("held",)

  def __init__(self) -> None:
    super().__init__()
    self.held: set[UOp] = set()

  def hold(self, x: UOp) -> None:
    """Notes the moves that nobody asked for of which x is a view."""
    for u in views(x):
      if u.op is Ops.MOVE and not u.arg.pinned:
        self.held.add(u.src[0])
        self.memo[u.src[0], u.arg.device] = 0.0, "move"

  def knows(self, x: UOp) -> bool:
    """Whether x is a view of something that is held at another placement, too."""
    return any(u in self.held for u in views(x))

  def build(self, u: UOp, target: Placement) -> UOp:
    v = super().build(u, target)
    self.memo[u, target] = 0.0, self.best(u, target)[1]
    return v


def as_written_now(u: UOp, src: Sources, costs: MovesHeld) -> UOp:
  """The op as the hooks run it on sources that are placed. A gradient that was written then would read what the op had
  moved; so a move that is held is no cost."""
  if any(map(costs.knows, src)):
    v = UOp.new(u.op, u.dtype, decide(u.op, u.dtype, src, u.arg, None, costs), u.arg)
  else:
    v = UOp.build(u.op, u.dtype, src, u.arg)
  for s, x in zip(src, v.src):
    if x is not s:
      costs.hold(x)
  return v


def views(x: UOp) -> Iterator[UOp]:
  """A value and those below it that might be moved in its place."""
  for u in x.down():
    yield u
    if not (wants_push(u) or (u.op is Ops.MOVE and not u.arg.pinned)):
      return


def constrained(u: UOp, x: UOp, target: Placement) -> UOp:
  """A value where a hint wants it. What is partial stays that, unless the hint says that it is whole here; a constant
  that is no Tensor's own, a gradient, may be another program's too, and lives anywhere."""
  hinted = on_sources(u, (x,))  # it stays, for another propagation
  if x.device is None and all(v.op is not Ops.UNIQUE for v in x.toposort()):
    return hinted
  there = isinstance(x.device, Sharding) and x.device.reduced == target and not u.arg.reduced
  return hinted if there else moved_to(hinted, target, u, hinted=True)


class Ahead:
  """What reads each value, if that is one op. `made`: what nodes have become."""

  def __init__(self, found: Answer, made: Mapping[UOp, UOp]) -> None:
    self.made, self.number, nodes = made, found.asked.number, found.asked.nodes
    readers: dict[int, set[UOp]] = {}
    for u in found.asked.order:
      for v in () if found.asked.is_no_value(u) else [self.number[s] for s in u.src if s in self.number]:
        readers.setdefault(v, set()).add(nodes[self.number[u]] if u in self.number else u)
    self.only = {v: next(iter(by)) for v, by in readers.items() if len(by) == 1}

  def reduction(self, u: UOp, v: UOp) -> float:
    """The fewest bytes of reducing u, built as `v`: there, or behind ops that let it be partial where it is."""
    least = math.inf
    while isinstance(v.device, Sharding) and v.device.partial:
      least = min(least, wire(v.shape, v.dtype.itemsize, v.device, v.device.reduced))
      n = self.number.get(u, -1)
      r = self.only.get(n)
      if r is None or r.op in AS_GIVEN or (r.op is Ops.CONSTRAIN and r.arg.reduced):
        break
      src = tuple([v if self.number.get(s) == n else self.made.get(s, s) for s in r.src])
      if not any(o.stays and o.defers for o in outcomes(r.op, r.dtype, src, r.arg)):
        break
      u, v = r, UOp.new(r.op, r.dtype, src, r.arg)
    return least


def at_target(u: UOp, src: Sources, target: Placement, costs: Costs, ahead: Ahead) -> UOp:
  """The op in the way of the fewest bytes; of equal ways the one whose result is at `target`, where nothing moves for
  it. The result stays partial where it is."""
  ways = [*outcomes(u.op, u.dtype, src, u.arg), *as_wanted(u, src, target, costs)]
  best = ways[0] if len(ways) == 1 else min(ways, key=functools.partial(_rank, u, src, target, costs, ahead))
  v = UOp.new(u.op, u.dtype, costs.brought(src, best), u.arg)
  return costs.build(v, target) if costs.cost(v, target) == 0 else v


def _rank(
  u: UOp, src: Sources, target: Placement, costs: Costs, ahead: Ahead, o: Outcome
) -> tuple[float, bool, bool, int]:
  """A partial result is charged as its reduction to where it is, to `target`, or further on, if that is less."""
  partial, away = o.partial, True
  if isinstance(o.result, Sharding):
    away = o.result.reduced != target
    if o.result.partial and (there := wire(u.shape, u.dtype.itemsize, o.result, target)) <= partial:
      partial, away = there, False
    if o.result.partial:
      v = UOp.new(u.op, u.dtype, Costs().brought(src, o), u.arg)  # for a look ahead: it holds no moves
      partial = min(partial, ahead.reduction(u, v))
  return costs.moved(src, o) + partial + o.mapped, away, not o.defers, -o.parts


def as_wanted(u: UOp, src: Sources, target: Placement, costs: Costs) -> list[Outcome]:
  """The ways to run an op with its sources cut for a result at `target`, if there is one, and with all of them
  whole. What an index map moves is charged as all that it might, so for one they are whole only if they are already."""
  if not isinstance(target, Sharding):
    return []
  f, found = factor_rule(u), []
  for wanted in (target, Sharding.of(target.mesh, ())):
    cuts = legal(collect(f.out, f, [wanted.cut(i) for i in range(u.ndim)]), f)
    if Sharding.of(target.mesh, project(f.out, cuts)) is wanted:
      required = tuple(
        None if s.device is None else Sharding.of(target.mesh, project(lists, cuts)) for s, lists in zip(src, f.src)
      )
      is_mapped = any(wanted.cut(i) for i in f.remapped)
      mapped = prod(wanted.local_shape(u.max_shape)) * u.dtype.itemsize if is_mapped else 0.0
      parts = size_of(d for axes in cuts.values() for d in axes)
      found.append(Outcome(required, wanted, parts, 0.0, mapped, False))
  if f.remapped and found[-1].result is not target and costs.moved(src, found[-1]) > 0:
    found.pop()
  return found


def product(u: UOp, c: Contraction, src: Sources, found: Answer, costs: Costs) -> UOp:
  """A MUL of a contraction, cut so that its operands, and the sum, if it is partial, travel the fewest bytes: as one
  of the ways that its sources know, or as the sum is to be cut."""
  target = found[c.reduce]
  if not isinstance(target, Sharding) or not any(isinstance(s.device, Sharding) for s in src):
    return UOp.build(u.op, u.dtype, src, u.arg)
  ways = [o for o in outcomes(u.op, u.dtype, src, u.arg) if not is_partial(o.result)]
  wanted = Sharding.of(target.mesh, as_summed(c, src, target))
  ways.append(Outcome(tuple(None if s.device is None else wanted for s in src), wanted, 1, 0.0, 0.0, False))
  shape, itemsize = c.reduce.shape, c.reduce.dtype.itemsize

  def rank(o: Outcome) -> tuple[float, bool, int]:
    dims = [o.result.cut(i) if isinstance(o.result, Sharding) else () for i in range(u.ndim)]
    over = tuple(d for i in c.reduce.arg[1] for d in dims[i])
    kept = [() if i in c.reduce.arg[1] else dim for i, dim in enumerate(dims)]
    summed = Sharding.of(target.mesh, kept, (Partial(over, Ops.ADD),) if over else ())
    after = min(wire(shape, itemsize, summed, summed.reduced), wire(shape, itemsize, summed, target)) if over else 0.0
    return costs.moved(src, o) + after, summed.reduced is not target, -o.parts

  return UOp.new(u.op, u.dtype, costs.brought(src, min(ways, key=rank)), u.arg)


def as_summed(c: Contraction, src: Sources, target: Sharding) -> list[tuple[SubAxis, ...]]:
  """The cuts of the sum, and of what is summed over those that a source has and that fit beside them."""
  dims = [target.cut(i) for i in range(c.reduce.ndim)]
  used = [d for dim in dims for d in dim]
  for s in src:
    for i in c.reduce.arg[1]:
      if isinstance(s.device, Sharding) and not dims[i] and all(coexist(d, e) for d in s.device.cut(i) for e in used):
        dims[i] = s.device.cut(i)
        used += dims[i]
  return dims
