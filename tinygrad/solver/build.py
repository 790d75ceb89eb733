"""A graph at the placements that were decided for it: every move that these take is made, explicitly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinygrad.device import Placement, Sharding
from tinygrad.ops import Trait, having
from tinygrad.sharding.costs import at_placement
from tinygrad.sharding.decision_cache import AS_GIVEN
from tinygrad.sharding.factors import collect, legal, project
from tinygrad.sharding.localize import drop_hints
from tinygrad.sharding.moves import wire
from tinygrad.solver.decided import Decided, by_hooks, moved_to, with_origin
from tinygrad.solver.graph import Answer, is_anywhere
from tinygrad.solver.handed import is_decided_anew
from tinygrad.solver.ways import OpWays
from tinygrad.uop import Move, Ops, UOp, factor_rule
from tinygrad.uop.rewrite import Sources, on_sources, rebuild

EFFECTS = having(Trait.EFFECT)


def build_answer(found: Answer, leaves: Mapping[UOp, UOp], wished: bool = True) -> dict[UOp, UOp]:
  """What each node of the graph becomes. `leaves`: what is memory on one device, where it is to be. What is between
  these and hinted values is placed as if it were written now, if the answer is not wished for."""
  made, asked = dict(leaves), found.asked
  products = asked.contractions.by_mul if wished else {}
  decided = None if found.decisions is None else Decided(found, made)
  stays_whole = whole_for_readers(found) if decided is None and wished else set()
  ways = OpWays(found, made)

  def make(u: UOp, src: Sources) -> UOp:
    op = u.op
    if op is Ops.MOVE and is_anywhere(u):
      return src[0]
    if u in asked.inert:
      return src[0]
    if u in stays_whole and all(s.device is None or is_whole(s.device) for s in src):
      return with_origin(UOp.new(op, u.dtype, src, u.arg), u)
    if (c := products.get(u)) is not None:
      return with_origin(decided.product(u, c, src) if decided else ways.product(u, c, src), u)
    if op is Ops.CONSTRAIN and (target := found[u]) is not None:
      return constrained(u, src[0], target)
    if op is Ops.MOVE and is_decided_anew(u):
      return taken_whole(u, src[0]) if u.arg.whole else src[0]
    if op is Ops.BUFFER or not is_placed(src):
      return on_sources(u, src)
    if not wished and op not in AS_GIVEN:
      return with_origin(ways.as_written_now(u, src), u)
    target = found[u]
    if target is None:  # inside of a contraction, or where the user has sent it
      return on_sources(u, src) if op in AS_GIVEN else with_origin(by_hooks(u, src), u)
    if op is Ops.MOVE or op is Ops.AFTER:  # a move is a hint, too
      return on_sources(u, src)
    if op is Ops.ASSIGN:
      return on_sources(u, (src[0], at_placement(src[1], src[0].device)))
    return with_origin(decided.op(u, src, target) if decided else ways.at_target(u, src, target), u)

  def handed(u: UOp, src: Sources) -> UOp:
    return handed_out(u, make(u, src), found) if u in asked.gradients else make(u, src)

  rebuild(asked.order[-1], handed, made, order=asked.by_depth)
  made.update(before_unread_moves(made))
  made.update(inert_hints(found, made))
  return made


def before_unread_moves(made: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
  """What is not moved after all, since a hint on it makes a move of its own, as it was built."""
  if not (moved := {u: x for u, x in made.items() if x.op is Ops.MOVE and not x.arg.pinned and u.op is not Ops.MOVE}):
    return {}
  read = {s for x in made.values() for s in x.src}
  return {u: x.src[0] for u, x in moved.items() if x not in read}


def as_found(found: Answer) -> dict[UOp, UOp] | None:
  """The graph without its inert hints, if all that is said holds in it: what is memory, hinted values and gradients are
  where the answer has them."""
  asked = found.asked
  if any(u.device != found[u] for u in asked.leaves):
    return None
  there = {u: found[t] for u, t in asked.gradients.items() if isinstance(u.device, Sharding)}
  there |= {u: found[u] for u in asked.order if u.op is Ops.CONSTRAIN and u not in asked.inert}
  moved: dict[UOp, UOp] = {}  # of what is said to be elsewhere than it is computed, the move
  for u in asked.order:
    for s in u.src:
      if isinstance(want := there.get(s), Sharding):
        shown = u if u.op is Ops.MOVE and is_decided_anew(u) else s
        if not is_there(s, shown.device, want):
          return None
        if shown is u:
          moved[s] = u

  def make(u: UOp, src: Sources) -> UOp:
    return src[0] if u in asked.inert else on_sources(u, src)

  made: dict[UOp, UOp] = {}
  rebuild(asked.order[-1], make, made, order=asked.by_depth)
  made.update({s: made[u] for s, u in moved.items()})
  made.update(inert_hints(found, made))
  return made


def is_there(u: UOp, at: Placement | None, want: Sharding) -> bool:
  """Whether a value that is read at a placement is where it is to be, partial if it may be; what lives anywhere is."""
  if not isinstance(at, Sharding):
    return lives_anywhere(u)
  return (at if u.op is Ops.CONSTRAIN and u.arg.reduced else at.reduced) is want


def inert_hints(found: Answer, made: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
  """What inert hints become, and the SINK over them. What reads one is built on its value, as without it: the hint is
  only for those who hold it, for another propagation."""
  asked, out = found.asked, dict[UOp, UOp]()
  if not asked.inert:
    return out
  for u in asked.order:
    if u in asked.inert:
      x = u.src[0]
      out[u] = on_sources(u, (out.get(x, made[x]),))
    elif u.op is Ops.MOVE and is_decided_anew(u) and u.src[0] in out and made[u] is made[u.src[0]]:
      out[u] = out[u.src[0]]
  sink = asked.order[-1]
  out[sink] = on_sources(sink, tuple([out.get(s, made[s]) for s in sink.src]))
  return out


def taken_whole(u: UOp, x: UOp) -> UOp:
  """x, which takes the place of what u moves: where u has it if that has not moved, else with the same dims whole, and
  what has cut these behind the cuts of the dim that u cuts instead, if there is one."""
  was, at, there = u.src[0].device, x.device, u.arg.device
  if at == was or not isinstance(was, Sharding) or not isinstance(at, Sharding):
    return on_sources(u, (x,))
  dims = [() if was.cut(i) and not there.cut(i) else at.cut(i) for i in range(x.ndim)]
  freed = tuple([d for i, dim in enumerate(dims) if not dim for d in at.cut(i)])
  for i, dim in enumerate(dims):
    if len(there.cut(i)) > len(was.cut(i)):
      dims[i] = (*dim, *freed)
  target = Sharding.of(at.mesh, dims)
  return x if at.reduced is target else UOp.new(Ops.MOVE, x.dtype, (x,), replace(u.arg, device=target))


def is_placed(src: Sources) -> bool:
  """Whether one of these values is on a mesh."""
  for s in src:
    if isinstance(s.device, Sharding):
      return True
  return False


def handed_out(u: UOp, g: UOp, found: Answer) -> UOp:
  """What u has become; a gradient where what it is by will be, unless the user says where it is, or that was decided,
  too. One that is only to be reduced there stays partial."""
  t = found.asked.gradients.get(u)
  if t is None or u.op is Ops.CONSTRAIN or found.decisions is not None:
    return g
  at = found[t]
  if not isinstance(at, Sharding) or not isinstance(g.device, Sharding) or g.device.reduced is at:
    return g
  return UOp.new(Ops.MOVE, g.dtype, (g,), Move(at, False))


def without_hints(sink: UOp) -> UOp:
  """A graph without its CONSTRAINs; each result is asked for once, where its Tensor shows it."""
  return as_shown(drop_hints(sink))


def as_shown(sink: UOp) -> UOp:
  """A graph with each result asked for once, where its Tensor shows it."""
  return on_sources(sink, tuple(dict.fromkeys(map(where_shown, sink.src))))


def where_shown(x: UOp) -> UOp:
  """A result where its Tensor shows it, reduced, whatever its readers want."""
  if not isinstance(x.device, Sharding) or x.op in EFFECTS or x.op is Ops.BUFFER:
    return x
  return UOp.new(Ops.MOVE, x.dtype, (x,), Move(x.device.reduced, True))


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


def lives_anywhere(x: UOp) -> bool:
  """Whether a value is a constant that is no Tensor's own."""
  return x.device is None and all(v.op is not Ops.UNIQUE for v in x.toposort())


def constrained(u: UOp, x: UOp, target: Placement) -> UOp:
  """A value where a hint wants it. What is partial stays that, unless the hint says that it is whole here; a constant
  that is no Tensor's own, a gradient, may be another program's too, and lives anywhere."""
  while x.op is Ops.MOVE and not x.arg.pinned:  # which nobody need make; a hint's is made
    x = x.src[0]
  hinted = on_sources(u, (x,))  # it stays, for another propagation
  if lives_anywhere(x):
    return hinted
  there = isinstance(x.device, Sharding) and x.device.reduced == target and not u.arg.reduced
  return hinted if there else moved_to(hinted, target, u, hinted=True)
