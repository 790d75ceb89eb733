"""What a byte of memory is traded for: placements in more parts, and values that are computed again and not kept.

What is held at the moment when most is, and read later, is a value or a copy of one. Each is kept, which takes its
bytes, or had again, which takes at least its own kernel, and its share of those between it and what is held. So at any
price of a byte a placement costs each of them the less of the two; and the least of all placements at that price is
what no placement is below, whatever is computed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.helpers import numpy, prod
from tinygrad.schedule.schedule import nearest_first
from tinygrad.solver.auto.choices import Way
from tinygrad.solver.auto.classes import Classes
from tinygrad.solver.auto.hull import Hull
from tinygrad.solver.auto.memory import fused_by_schedule, is_view, lifetimes, moment_of_most
from tinygrad.solver.auto.model import Model
from tinygrad.solver.auto.program import Op, Program, Side, Value
from tinygrad.solver.auto.traffic import nbytes_of
from tinygrad.uop import Ops, UOp

LIKED = 1 - 1e-4  # of what a move takes: rather one that is made again than one for each reader, which are built as one
STATES = (0, 1)  # of values that are kept, or had again
WAYS = [Way((k,), (), 0.0) for k in STATES]


@dataclass(slots=True)
class Items:
  """What is held at the moment of most memory, or had again: of each item its alternatives, [alternatives, items, ...]
  of seconds and of bytes, of which the one is taken that is least at the price of a byte."""

  seconds: Any
  memory: Any

  def at(self, weight: float, *where: int) -> tuple[Any, Any]:
    """(seconds, bytes) of all items together, everywhere or at one place."""
    seconds, memory = (of[(slice(None), slice(None), *where)] for of in (self.seconds, self.memory))
    best = (seconds + weight * memory).argmin(axis=0)[None]
    return tuple(numpy.take_along_axis(of, best, 0)[0].sum(axis=0) for of in (seconds, memory))


@dataclass(slots=True)
class Summed:
  """Values of the class `of` that need what the op `op` sums: each kept, or had again, all of them alike; of which a
  further value of the program is the choice. What a device has of the result may be a part of each sum, that is moved
  again then: `share` of what this takes. `memory`, `seconds`: by cuts, of what is kept, and of what is had again."""

  of: int
  op: int
  memory: Any
  seconds: Any
  share: float

  def kept(self, state: int) -> Op:
    """What either takes beside the moves."""
    seconds, memory = (
      numpy.stack(two, axis=1) for two in ((0 * self.memory, self.seconds), (self.memory, 0 * self.memory))
    )
    return Op(WAYS, numpy.zeros(2), [is_state(state, 1), Side(self.of, numpy.arange(2), seconds, memory)])

  def again(self, op: Op, state: int, result: Side) -> Op:
    """The op, each of its ways with the values kept, and with them had again."""
    sides = [replace(side, want=numpy.concatenate([side.want, side.want])) for side in op.sides]
    costs, last = op.sides[-1].costs, sides[-1]
    both = numpy.concatenate([op.sides[-1].want, op.sides[-1].want + costs.shape[1]])
    repeat = costs.shape[1] // result.costs.shape[1]
    moved = costs + self.share * numpy.concatenate([result.costs] * repeat, axis=1)
    sides[-1] = replace(last, want=both, costs=numpy.concatenate([costs, moved], axis=1))
    return Op(op.ways * 2, numpy.concatenate([op.seconds] * 2), [is_state(state, len(op.ways)), *sides])


def is_state(state: int, ways: int) -> Side:
  """That a value is kept by the first ways of an op, and had again by as many others."""
  return Side(state, numpy.repeat(numpy.arange(2), ways), numpy.array([[0.0, numpy.inf], [numpy.inf, 0.0]]))


class HeldValues:
  """Which values are held at the moment when most bytes wait for a reader: `alive`, of these `direct` those that are
  read late where they are; and copies that are read before and after it."""

  def __init__(self, model: Model) -> None:
    asked, posed = model.asked, model.posed
    self.model, self.order = model, nearest_first(asked.order[-1]).toposort()
    self.fused = fused_by_schedule(self.order, is_view)
    self.leaves = {asked.number[u] for u in asked.leaves}
    self.edge = {u: e for u, e in zip(posed.ops, posed.problem.edges) if u is not None and not posed.follows(e)}
    spans = self.spans(lifetimes(self.order, self.fused))
    nbytes = [nbytes_of(u) for u in asked.nodes]
    waiting = [(begin + 1, end - 1, nbytes[v]) for v, (begin, end) in spans.items() if end - begin > 1]
    self.moment = moment_of_most(waiting, len(self.order))
    self.alive = self.at_moment(spans)
    self.direct = self.at_moment(self.spans(lifetimes(self.order, self.fused, self.reads)))
    self.copied = posed.held({u: i for i, u in enumerate(self.order)}, self.moment)

  def spans(self, lives: dict[UOp, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    for u, (begin, end) in lives.items():
      if (v := self.model.asked.number.get(u)) is not None and v not in self.leaves:
        before = spans.get(v, (begin, end))
        spans[v] = min(begin, before[0]), max(end, before[1])
    return spans

  def at_moment(self, spans: dict[int, tuple[int, int]]) -> set[int]:
    return {v for v, (begin, end) in spans.items() if begin <= self.moment <= end}

  def reads(self, u: UOp) -> Iterable[UOp]:
    """What an op reads where it is held, and not a copy of it."""
    if u not in self.edge:
      return u.src
    copies, number = self.model.posed.copies, self.model.asked.number
    return [s for s in self.model.asked.sources(u) if number.get(s) not in copies]


class Trades:
  """A program in which values are kept or computed again: `base`, what is held anyway, and of classes of values and of
  copies what else is. `blocks`: of each class and cut in how many parts a device has one."""

  def __init__(self, model: Model, held: HeldValues, classes: Classes, p: Program) -> None:
    self.model, self.held, self.classes, self.whole = model, held, classes, p
    self.devices = prod(a.size for a in model.choices.axes)
    self.chains = {v: self.chain(model.asked.nodes[v]) for v in self.held.alive}
    self.users = Counter(x for chain in self.chains.values() for x in chain)
    self.most = [max(model.blocks(cut, len(v.shape)) for cut in v.cuts) for v in p.values]
    blocks = [numpy.array([model.blocks(cut, len(v.shape)) for cut in v.cuts]) for v in p.values]
    self.blocks = blocks
    leaf = [sum(model.held[v] for v in members if v in self.held.leaves) for members in classes.values]
    values = [replace(v, memory=(leaf[c] / blocks[c]).tolist()) for c, v in enumerate(p.values)]
    self.base = Program(values, [op.at_price(0.0) for op in p.ops], None)
    heavy = list(model.heavy(classes))
    self.ops_of = {u: i for i, members in enumerate(heavy) for e in members if (u := model.posed.ops[e]) is not None}
    self.of_value: dict[int, Items] = {}
    self.of_copy: dict[int, Items] = {}
    self.summed: list[Summed] = []
    for c, members in enumerate(classes.values):
      self.look_at(c, [v for v in members if v in self.held.direct and v in self.chains], heavy)
    origins = Counter(self.origin(v) for v in self.held.copied)
    for i, members in enumerate(heavy):
      if model.posed.ops[members[0]] is None:
        mine = [v for e in members if (v := model.posed.problem.edges[e].values[0]) in self.held.copied]
        if mine:
          self.of_copy[i] = self.copies(mine, p.ops[i], origins)

  def look_at(self, c: int, mine: Sequence[int], heavy: Sequence[Sequence[int]]) -> None:
    """Values of a class that are held, together those that need what one op sums, and those that need no sum."""
    by_sum: dict[int | None, list[int]] = {}
    for v in mine:
      by_sum.setdefault(self.summed_by(v), []).append(v)
    for i, some in by_sum.items():
      if i is None:
        self.of_value[c] = self.values(some, c)
      else:
        self.summed.append(self.sum_of(some, c, i, len(heavy[i])))

  def origin(self, v: int) -> int | None:
    """The value in memory that a copied one is, or shows."""
    u = self.model.asked.nodes[v]
    while u in self.held.fused and is_view(u):
      u = u.src[0]
    return self.model.asked.number.get(u)

  def chain(self, u: UOp) -> list[UOp]:
    """What has to be computed again for a value, from what is held."""
    found, todo = dict.fromkeys([u]), [u]
    number = self.model.asked.number
    while todo:
      for s in todo.pop().src:
        v = number.get(s)
        if s not in found and s.src and (v is None or (v not in self.held.alive and v not in self.held.leaves)):
          found[s] = None
          todo.append(s)
    return [x for x in found if x.op is Ops.REDUCE or x not in self.held.fused]

  def again(self, v: int, c: int, blocks: Any) -> Any:
    """The seconds, at least, that it takes to have a value again, by cuts of the class c."""
    machine, total = self.model.choices.machine, 0.0
    for x in self.chains[v]:
      w = self.model.asked.number.get(x)
      of = self.devices if w is None else self.classes.value[w]
      parts = self.devices if w is None else blocks if of == c else self.most[of]
      touched = 0.0 if x in self.held.fused else 2 * nbytes_of(x) / parts / machine.bandwidth
      flops = 2 * prod(x.src[0].max_shape) / self.devices / machine.flops if x.op is Ops.REDUCE else 0.0
      total = total + numpy.maximum(touched, flops) / self.users[x]
    return total + 0.0 * blocks

  def sum(self, v: int) -> UOp | None:
    """The first sum that is computed again for a value, by an op of the program."""
    return next((x for x in self.chains[v] if x in self.ops_of), None)

  def summed_by(self, v: int) -> int | None:
    """The op of that."""
    return None if (x := self.sum(v)) is None else self.ops_of[x]

  def values(self, mine: Sequence[int], c: int) -> Items:
    """Of a class of values, at each of its cuts."""
    memory = numpy.array([nbytes_of(self.model.asked.nodes[v]) / self.blocks[c] for v in mine])
    again = numpy.array([self.again(v, c, self.blocks[c]) for v in mine])
    none = numpy.zeros_like(memory)
    return Items(numpy.stack([none, again]), numpy.stack([memory, none]))

  def sum_of(self, mine: Sequence[int], c: int, i: int, members: int) -> Summed:
    """Of values that need what the i-th op sums; each is taken to be as fast as the fastest."""
    items = self.values(mine, c)
    users = sum(1 / self.users[x] for v in mine if (x := self.sum(v)) is not None)
    again = len(mine) * items.seconds[1].min(axis=0)
    return Summed(c, i, items.memory[0].sum(axis=0), again, users / members)

  def moves(self, op: Op) -> Any:
    """[cuts, ways]: the seconds of one move to a copy. What is moved may be in memory by now, whoever wrote it."""
    side = op.sides[0]
    v, wants = self.base.values[side.value], list(dict.fromkeys(way.wants[0] for way in op.ways))
    return self.model.choices.table(v.shape, v.itemsize, v.cuts, wants, True)[..., side.want]

  def copies(self, mine: Sequence[int], op: Op, origins: Counter[int | None]) -> Items:
    """Of a class of copies: from each cut of what is copied to each of the copies'."""
    side = op.sides[0]
    c = side.value
    here = self.base.values[c]
    same = numpy.array([[cut == way.factors for way in op.ways] for cut in here.cuts])
    there = numpy.array([self.model.blocks(way.factors, len(here.shape)) for way in op.ways])
    move = self.moves(op)
    seconds, memory = [], []
    for v in mine:
      nbytes = nbytes_of(self.model.asked.nodes[v])
      a, b = (nbytes / self.blocks[c])[:, None] + 0 * there, nbytes / there + 0 * self.blocks[c][:, None]
      origin = self.origin(v)
      if origin in self.held.alive and origin not in self.held.direct:
        a = a / origins[origin]
        own = (self.again(origin, c, self.blocks[c]) / origins[origin])[:, None] + 0 * there
      else:
        a, own = 0 * a, 0 * a
      seconds.append([0 * move, LIKED * move, LIKED * move + own])
      memory.append([numpy.where(same, a, b), a, 0 * a])
    return Items(numpy.moveaxis(numpy.array(seconds), 1, 0), numpy.moveaxis(numpy.array(memory), 1, 0))

  def priced(self, weight: float) -> Program:
    """All that a placement takes, where a byte costs so much; ready for a search without a limit."""
    values = []
    for c, v in enumerate(self.base.values):
      seconds = numpy.array(v.seconds) + weight * numpy.array(v.memory)
      if (items := self.of_value.get(c)) is not None:
        s, m = items.at(weight)
        seconds = seconds + s + weight * m
      values.append(replace(v, seconds=seconds.tolist()))
    values += [Value((), 0, [(k,) for k in STATES], [0.0, 0.0], [0.0, 0.0]) for _ in self.summed]
    ops = [self.op(i, weight) for i in range(len(self.base.ops))]
    return Program(values, [*ops, *(x.kept(self.state(k)).at_price(weight) for k, x in enumerate(self.summed))], None)

  def state(self, k: int) -> int:
    """The value that says whether the k-th of `summed` is kept."""
    return len(self.base.values) + k

  def op(self, i: int, weight: float) -> Op:
    """One of the ops, with what its copies or its results take."""
    op = self.base.ops[i]
    if (items := self.of_copy.get(i)) is not None:
      s, m = items.at(weight)
      first = op.sides[0]
      costs = first.of_ways(slice(None)) + s + weight * m
      op = Op(op.ways, op.seconds, [replace(first, want=numpy.arange(len(op.ways)), costs=costs), *op.sides[1:]])
    return self.with_sums(i, op)

  def with_sums(self, i: int, op: Op) -> Op:
    """The i-th op, with the values that need its sum kept or had again."""
    for k, x in enumerate(self.summed):
      op = x.again(op, self.state(k), self.base.ops[i].sides[-1]) if x.op == i else op
    return op

  def point(self, chosen: Sequence[int], weight: float) -> tuple[float, float]:
    """The seconds of a choice with what is computed again where that is what a byte costs, and the bytes that it
    holds. What is not said to be had again is kept."""
    chosen = [*chosen, *[0] * (self.state(len(self.summed)) - len(chosen))]
    seconds, held = self.base.point(chosen, weight)
    for c, items in self.of_value.items():
      s, m = items.at(weight, chosen[c])
      seconds, held = seconds + s, held + m
    for i, items in self.of_copy.items():
      op = self.base.ops[i]
      s, m = items.at(weight, chosen[op.sides[0].value])
      best = int((op.priced(chosen) + s + weight * m).argmin())
      seconds, held = seconds + s[best] + op.priced(chosen)[best] - op.price(chosen), held + m[best]
    for i in dict.fromkeys(x.op for x in self.summed):
      seconds += self.op(i, weight).price(chosen) - self.base.ops[i].price(chosen)
    for k, x in enumerate(self.summed):
      kept = chosen[self.state(k)] == 0
      seconds, held = seconds + (0.0 if kept else x.seconds[chosen[x.of]]), held + kept * x.memory[chosen[x.of]]
    return float(seconds), float(held)

  def smallest(self) -> list[int]:
    return [*self.whole.smallest(), *[0] * len(self.summed)]

  def columns(self) -> int:
    return self.base.columns()


class TradedHull(Hull):
  """Of placements and of what is computed again."""

  same = 2e-4
