"""Which way each op of an answer runs in: of the fewest bytes, as far as the op knows, and as the answer has it where
ways are equal. What looks alike is decided once, and so equal layers are."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Partial, Placement, Sharding, SubAxis
from tinygrad.device.sub_axes import size_of
from tinygrad.helpers import prod
from tinygrad.sharding.abstract_values import COMPARED, abstract_of, distinguished
from tinygrad.sharding.costs import Costs, wants_push
from tinygrad.sharding.decision_cache import AS_GIVEN
from tinygrad.sharding.decisions import decide
from tinygrad.sharding.factors import collect, legal, project
from tinygrad.sharding.moves import wire
from tinygrad.sharding.outcomes import Outcome, is_partial, outcomes
from tinygrad.solver.axes import coexist
from tinygrad.solver.contractions import Contraction
from tinygrad.solver.decided import by_hooks
from tinygrad.solver.graph import Answer
from tinygrad.uop import Ops, UOp, factor_rule
from tinygrad.uop.rewrite import Sources

Key = tuple[Any, ...]


class MovesHeld(Costs):
  """Costs at which a move that the graph holds already is had for nothing. `held`: what is moved, and where to.

  `looks`: of each value a number for all that look like it and are held as it is, and as what it is a view of; `over`:
  of what lies right below values with such numbers, these; `elsewhere`: of each number, whether something is held."""

  __slots__ = ("elsewhere", "held", "known", "looks", "over")

  def __init__(self) -> None:
    super().__init__()
    self.held: dict[UOp, frozenset[Placement]] = {}
    self.looks: dict[UOp, int] = {}
    self.over: dict[UOp, list[UOp]] = {}
    self.known: dict[tuple[UOp, frozenset[Placement] | None, int], int] = {}
    self.elsewhere: list[bool] = []

  def hold(self, x: UOp) -> None:
    """Notes the moves that nobody asked for of which x is a view."""
    for u in views(x):
      if u.op is Ops.MOVE and not u.arg.pinned:
        self.note(u.src[0], u.arg.device, "move")

  def note(self, x: UOp, target: Placement, form: str) -> None:
    """Notes that x is held at `target`, in a form."""
    self.held[x] = self.held.get(x, frozenset()) | {target}
    self.memo[x, target] = 0.0, form
    todo = [x]
    while todo:
      u = todo.pop()
      self.looks.pop(u, None)
      todo += self.over.pop(u, ())

  def knows(self, x: UOp) -> bool:
    """Whether x is a view of something that is held at another placement, too."""
    return self.elsewhere[self.look(x)]

  def look(self, x: UOp) -> int:
    """A number for all that decides on a value: its abstract value, and where it and what it is a view of are held."""
    if (number := self.looks.get(x)) is not None:
      return number
    chain = [x]
    while is_seen_through(u := chain[-1]) and u.src[0] not in self.looks:
      chain.append(u.src[0])
    for u in reversed(chain):
      below, at = -1, self.held.get(u)
      if is_seen_through(u):
        below = self.looks[u.src[0]]
        self.over.setdefault(u.src[0], []).append(u)
      number = self.looks[u] = self.known.setdefault((abstract_of(u), at, below), len(self.elsewhere))
      if number == len(self.elsewhere):
        self.elsewhere.append(at is not None or (below >= 0 and self.elsewhere[below]))
    return self.looks[x]

  def build(self, u: UOp, target: Placement) -> UOp:
    if (form := self.best(u, target)[1]) != "keep":
      self.note(u, target, form)
    return super().build(u, target)


def is_seen_through(x: UOp) -> bool:
  """Whether what is below a value might be moved in its place."""
  return wants_push(x) or (x.op is Ops.MOVE and not x.arg.pinned)


def views(x: UOp) -> Iterator[UOp]:
  """A value and those below it that might be moved in its place."""
  yield x
  while is_seen_through(x):
    x = x.src[0]
    yield x


@dataclass(frozen=True, slots=True)
class PricedWay:
  """A way to run an op: `nbytes` move for it, besides `partial` for reducing its result, which is then `away` from
  where it is wanted. `summed`: the abstract value of a partial result, of which the ops behind it may know better."""

  outcome: Outcome
  nbytes: float
  partial: float
  away: bool
  summed: UOp | None


class OpWays:
  """The ops of an answer, each built in one of its ways. `made`: what nodes have become.

  `stay`: of ops that run where their sources are, whatever is behind them, the abstract values of their results, by all
  that decides on that."""

  def __init__(self, found: Answer, made: Mapping[UOp, UOp]) -> None:
    self.found, self.costs, self.ahead, self.kinds = found, MovesHeld(), Ahead(found, made), found.asked.kinds
    self.stay: dict[Key, UOp] = {}
    self.known: dict[Key, list[PricedWay]] = {}
    self.needs: dict[Key, tuple[Placement | None, ...]] = {}  # of ops on what is held elsewhere, too
    self.products: dict[Key, Outcome] = {}
    self.together: dict[frozenset[UOp], dict[UOp, UOp]] = {}  # of what ops have brought, each in its form
    self.places: dict[int, Placement | None] = {}  # of results, by the ids of ways
    self.results: dict[int, UOp] = {}  # abstract values, by the ids of ways for which nothing moves

  def looks(self, u: UOp, src: Sources, target: Placement | None) -> Key:
    """All that decides the way of an op but for what is behind it."""
    look, known = self.costs.look, self.costs.looks
    key = self.kinds[u], target, *[known.get(x) or look(x) for x in src]
    return (*key, seen_by(u, src)[1]) if u.op in COMPARED else key

  def at_target(self, u: UOp, src: Sources, target: Placement) -> UOp:
    """The op in the way of the fewest bytes; of equal ways the one whose result is at `target`, where nothing moves for
    it. The result stays partial where it is."""
    key = self.looks(u, src, target)
    if (like := self.stay.get(key)) is not None:
      return alike(u, src, like)
    if (ways := self.known.get(key)) is None:
      ways = self.known[key] = self.ways(u, src, seen_by(u, src), target)
    way = ways[0] if len(ways) == 1 else min(ways, key=lambda way: self.rank(u, way))
    brought = self.brought(src, way.outcome)
    if brought is src:
      v = alike(u, src, self.results.get(id(way)))
      like = self.results[id(way)] = v.abstract
      if len(ways) == 1 and v.device is target:
        self.stay[key] = like
    else:
      v = UOp.new(u.op, u.dtype, brought, u.arg)
      v.shape = u.shape
      if (place := self.places.get(id(way))) is None:
        place = self.places[id(way)] = v.device
      v.device = place
    return v if v.device is target or self.costs.cost(v, target) > 0 else self.costs.build(v, target)

  def as_written_now(self, u: UOp, src: Sources) -> UOp:
    """The op as the hooks run it on sources that are placed. A gradient that was written then would read what the op
    had moved; so a move that is held is no cost, and what an op of these sources has brought is taken as it is."""
    key = self.looks(u, src, None)
    if (like := self.stay.get(key)) is not None:
      return alike(u, src, like)
    if any(map(self.costs.knows, src)):
      v = UOp.new(u.op, u.dtype, self.as_brought(u, src) or self.decided(u, src, key), u.arg)
    else:
      v = by_hooks(u, src)
    if v.op is u.op and v.src == src:
      self.stay[key] = abstract_of(v)
    else:
      for s, x in zip(src, v.src):
        if x is not s:
          self.costs.hold(x)
      self.together.setdefault(frozenset(src), dict(zip(src, v.src)))
    return v

  def as_brought(self, u: UOp, src: Sources) -> Sources | None:
    """The sources as another op has brought them, all of these, if this op, too, runs there."""
    forms = self.together.get(frozenset(src), {}) if len(src) > 1 else {}
    brought = tuple([forms[x] for x in src]) if forms else src
    return brought if forms and any(o.stays for o in outcomes(u.op, u.dtype, brought, u.arg)) else None

  def decided(self, u: UOp, src: Sources, key: Key) -> Sources:
    """The sources as `decide` brings them, at what is held: where that is known of what looks alike, to the same
    placements. (A product that a sum places anew is more than a move.)"""
    if (needs := self.needs.get(key)) is not None:
      return tuple([x if at is None else self.costs.build(x, at) for x, at in zip(src, needs)])
    forms = decide(u.op, u.dtype, src, u.arg, None, self.costs)
    needs = tuple([None if x is form else form.device for x, form in zip(src, forms)])
    if all(at is None or self.costs.build(x, at) is form for x, form, at in zip(src, forms, needs)):
      self.needs[key] = needs
    return forms

  def brought(self, src: Sources, o: Outcome) -> Sources:
    return (
      src
      if o.stays and all(r is None or r == s.device for s, r in zip(src, o.required))
      else self.costs.brought(src, o)
    )

  def ways(self, u: UOp, src: Sources, seen: Sources, target: Placement) -> list[PricedWay]:
    """The ways of an op, or the best of them if no op behind it has to be asked."""
    found = [*outcomes(u.op, u.dtype, src, u.arg), *as_wanted(u, src, target, self.costs)]
    ways = [self.way(u, src, seen, target, o) for o in found]
    return ways if any(way.summed is not None for way in ways) else [min(ways, key=lambda way: self.rank(u, way))]

  def way(self, u: UOp, src: Sources, seen: Sources, target: Placement, o: Outcome) -> PricedWay:
    """A partial result is charged as its reduction to where it is, or to `target`, if that is less."""
    partial, away, summed = o.partial, True, None
    if isinstance(o.result, Sharding):
      away = o.result.reduced != target
      if o.result.partial:
        if (there := wire(u.shape, u.dtype.itemsize, o.result, target)) <= partial:
          partial, away = there, False
        summed = abstract_of(UOp.new(u.op, u.dtype, Costs().brought(seen, o), u.arg))  # it holds no moves
    return PricedWay(o, self.costs.moved(src, o) + o.mapped, partial, away, summed)

  def rank(self, u: UOp, way: PricedWay) -> tuple[float, bool, bool, int]:
    """By bytes, those of a reduction further on if that is less."""
    partial = way.partial if way.summed is None else min(way.partial, self.ahead.reduction(u, way.summed))
    return way.nbytes + partial, way.away, not way.outcome.defers, -way.outcome.parts

  def product(self, u: UOp, c: Contraction, src: Sources) -> UOp:
    """A MUL of a contraction, cut so that its operands, and the sum, if it is partial, travel the fewest bytes: as one
    of the ways that its sources know, or as the sum is to be cut."""
    target = self.found[c.reduce]
    if not isinstance(target, Sharding) or not any(isinstance(s.device, Sharding) for s in src):
      return by_hooks(u, src)
    key = (*self.looks(u, src, target), self.kinds[c.reduce], c.reduce.shape)
    if (best := self.products.get(key)) is None:
      best = self.products[key] = best_product(u, c, src, target, self.costs)
    return UOp.new(u.op, u.dtype, self.brought(src, best), u.arg)


def seen_by(u: UOp, src: Sources) -> Sources:
  """The abstract values of the sources of an op."""
  seen = tuple([abstract_of(x) for x in src])
  return distinguished(u.op, src, seen) if u.op in COMPARED else seen


def alike(u: UOp, src: Sources, like: UOp | None) -> UOp:
  """The op on its sources as they are. `like`: its abstract value, if that is known."""
  v = UOp.new(u.op, u.dtype, src, u.arg)
  if like is None:
    like = abstract_of(v)
  v.shape, v.device, v.abstract = like.shape, like.device, like
  return v


class Ahead:
  """What reads each value, if that is one op. `made`: what nodes have become."""

  def __init__(self, found: Answer, made: Mapping[UOp, UOp]) -> None:
    self.found, self.made, self.number = found, made, found.asked.number
    self.passed: dict[Key, UOp | None] = {}

  @functools.cached_property
  def only(self) -> dict[int, UOp]:
    """The reader of each value that has one."""
    asked, number = self.found.asked, self.number
    first, several = dict[int, UOp](), set[int]()
    for u in asked.order:
      if asked.is_no_value(u):
        continue
      reader = asked.nodes[number[u]] if u in number else u
      for s in u.src:
        if (v := number.get(s)) is not None and first.setdefault(v, reader) is not reader:
          several.add(v)
    return {v: reader for v, reader in first.items() if v not in several}

  def reduction(self, u: UOp, v: UOp) -> float:
    """The fewest bytes of reducing u, of which `v` is the abstract value: there, or behind ops that let it be partial
    where it is."""
    least, now = math.inf, v
    while isinstance(now.device, Sharding) and now.device.partial:
      least = min(least, wire(now.shape, now.dtype.itemsize, now.device, now.device.reduced))
      n = self.number.get(u, -1)
      r = self.only.get(n)
      if r is None or r.op in AS_GIVEN or (r.op is Ops.CONSTRAIN and r.arg.reduced):
        break
      src = tuple([now if self.number.get(s) == n else abstract_of(self.made.get(s, s)) for s in r.src])
      if (behind := self.behind(r, src)) is None:
        break
      u, now = r, behind
    return least

  def behind(self, r: UOp, seen: Sources) -> UOp | None:
    """The abstract value of an op whose sources have these, some of them partial; None if it can't run so."""
    if r.op in COMPARED:
      seen = distinguished(r.op, r.src, seen)
    key = r.op, r.dtype, r.arg, seen
    if key not in self.passed:
      defers = any(o.stays and o.defers for o in outcomes(r.op, r.dtype, seen, r.arg))
      self.passed[key] = abstract_of(UOp.new(r.op, r.dtype, seen, r.arg)) if defers else None
    return self.passed[key]


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


def best_product(u: UOp, c: Contraction, src: Sources, target: Sharding, costs: Costs) -> Outcome:
  """How a MUL of a contraction is cut, whose sum is to be at `target`."""
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

  return min(ways, key=rank)


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
