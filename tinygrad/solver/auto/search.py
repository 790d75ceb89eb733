"""The placements of the least predicted time under a limit of memory, of which equal layers may have different ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tinygrad.solver.auto.classes import Classes
from tinygrad.solver.auto.hull import Hull, Point
from tinygrad.solver.auto.layers import Layers, equal_layers
from tinygrad.solver.auto.least import check_memory, refined, refuse_memory
from tinygrad.solver.auto.linear import CLOSE
from tinygrad.solver.auto.model import Model
from tinygrad.solver.auto.program import Chosen, Edge, Program, mended
from tinygrad.solver.auto.trades import HeldValues, TradedHull, Trades

APART = CLOSE / 10  # above the bound: so near a choice is good enough that places equal layers alike
MOST_BRANCHES = 8  # of what lies between layers, that are looked at for one limit

Keep = tuple[tuple[int, ...], ...]  # of each value the cuts that are left


@dataclass(slots=True)
class Selection:
  """What is chosen for the classes of a program."""

  classes: Classes
  program: Program
  chosen: Chosen

  def gap(self, bound: float) -> float:
    return (self.chosen.seconds - bound) / self.chosen.seconds if self.chosen.seconds > 0 else 0.0

  @property
  def held(self) -> float:
    return self.program.held(self.chosen.cuts)


class Search:
  """The fastest placements of a model, for one limit of memory after another.

  What a limit allows lies between two choices of the hull. Where these agree in what is between layers, as many layers
  as fit are placed as the faster one has them: that is as fast as any mixture, but for the rest of one layer. Where
  not, a value between layers is bounded from above, or from below, as in any search by branch and bound.
  """

  def __init__(self, model: Model) -> None:
    self.model, self.hulls = model, dict[Keep, Hull]()
    self.all: Keep = tuple([tuple(range(len(v.cuts))) for v in model.program.values])
    self.equal: Layers | None = None
    self.known_held: HeldValues | None = None
    self.known_trades: Trades | None = None
    self.traded: TradedHull | None = None

  @property
  def layers(self) -> Layers:
    if self.equal is None:
      self.equal = equal_layers(self.model.posed.problem, self.model.posed.merged, self.model.classes)
    return self.equal

  def hull(self, keep: Keep) -> Hull:
    if (found := self.hulls.get(keep)) is None:
      large = None if keep is self.all else self.hulls[self.all].messages is not None
      found = self.hulls[keep] = Hull(self.model.program.kept(keep), large)
    return found

  def chosen(self, keep: Keep, memory: float | None) -> Chosen | None:
    """Of what is left; None where it is known that nothing fits."""
    p = self.model.program
    if memory is not None and sum(min(v.memory[k] for k in cuts) for v, cuts in zip(p.values, keep)) > memory:
      return None
    found = self.hull(keep).chosen(memory)
    within = [[cuts[k] for cuts, k in zip(keep, chosen)] for chosen in (found.cuts, *(found.edge or ()))]
    return Chosen(within[0], found.seconds, found.bound, (within[1], within[2]) if found.edge else None)

  def within(self, memory: float | None, exactly: bool = True) -> Selection:
    """The placements of the least predicted time, or, if not `exactly`, what is found of them without branches, and
    without a search for whole placements. Raises: ShardError where none fits the memory."""
    p = replace(self.model.program, memory=memory)
    check_memory(p)
    first = self.chosen(self.all, memory)
    assert first is not None
    if first.seconds == math.inf:
      refuse_memory(p, self.least_held())
    best, branches = Selection(self.model.classes, p, first), [(first, self.all)]
    for _ in range(MOST_BRANCHES):
      found, keep = branch = min(branches, key=lambda branch: branch[0].bound)
      if memory is None or found.edge is None or best.gap(found.bound) <= APART:
        break
      best = min((best, *self.mixed(memory, keep, found.edge)), key=lambda choice: choice.chosen.seconds)
      if not exactly or best.gap(found.bound) <= CLOSE or not (halves := self.halves(keep, found.edge)):
        break
      branches.remove(branch)
      inside = ((self.chosen(half, memory), half) for half in halves)
      branches += [(chosen, half) for chosen, half in inside if chosen is not None]
    bound = min(best.chosen.seconds, max(first.bound, min(found.bound for found, _ in branches)))
    chosen, known = replace(best.chosen, bound=bound), self.hulls[self.all] if best.program is p else None
    return replace(best, chosen=refined(best.program, chosen, known) if exactly else chosen)

  def trades(self, classes: Classes, p: Program) -> Trades:
    self.known_held = self.known_held or HeldValues(self.model)
    if classes is not self.model.classes:
      return Trades(self.model, self.known_held, classes, p)
    self.known_trades = self.known_trades or Trades(self.model, self.known_held, classes, p)
    return self.known_trades

  def most_held(self) -> float:
    """Bytes that the fastest placement holds, with nothing computed again."""
    return self.traded_hull().points[0].held

  def least_held(self) -> float:
    """Bytes that the smallest placement holds that is known."""
    hull = self.hull(self.all)
    hull.fits(self.model.program.least())
    return min(point.held for point in hull.points)

  def traded_hull(self) -> TradedHull:
    if self.traded is None:
      self.traded = TradedHull(self.trades(self.model.classes, self.model.program))
      self.traded.at(0.0)
    return self.traded

  def trading(self, memory: float) -> Iterator[Selection]:
    """Placements of which some, with values computed again, are the fastest for a limit of memory: the two neighbours
    of the hull of both, and a mixture of them, by layers. None where nothing is found that fits."""
    model, hull = self.model, self.traded_hull()
    if not hull.fits(memory):
      return
    bound, p = hull.chosen(memory).bound, replace(model.program, memory=memory)
    fitting = min((point for point in hull.points if point.held <= memory), key=lambda point: point.seconds)
    over, under = hull.edge(memory) if hull.points[0].held > memory else (fitting, fitting)
    ways = [point.cuts[: len(p.values)] for point in (under, over)]
    yield Selection(model.classes, p, Chosen(ways[0], p.total(ways[0]), bound))
    if ways[0] != ways[1]:
      yield Selection(model.classes, p, Chosen(ways[1], p.total(ways[1]), bound))
      parts = sorted({part for part in self.layers.of if part is not None})
      share = (memory - under.held) / (over.held - under.held)
      yield self.split(memory, under, over, parts[: int(share * len(parts))], bound)

  def split(self, memory: float, here: Point, there: Point, apart: Sequence[int], bound: float) -> Selection:
    """The layers `apart` as one point has them, all else as another."""
    model, layers = self.model, self.layers
    classes = layers.split(model.posed.problem, model.classes, apart)
    p = replace(model.program_of(classes), memory=memory)
    ways = [there.cuts if layers.of[members[0]] in apart else here.cuts for members in classes.values]
    cuts = [way[model.classes.value[members[0]]] for way, members in zip(ways, classes.values)]
    trades = self.trades(classes, p)
    cuts = mended(trades.priced(here.weight), [*cuts, *[0] * len(trades.summed)])[: len(cuts)]
    return Selection(classes, p, Chosen(cuts, p.total(cuts), bound))

  def with_leaves_cut(self, choice: Selection, memory: float) -> Selection | None:
    """A choice whose inputs and weights are held in more parts, with all else placed as it is, so that it holds so many
    bytes; None where that is not enough. Its bound is that of the choice."""
    leaves = {choice.classes.value[self.model.asked.number[u]] for u in self.model.asked.leaves}
    values, cuts = choice.program.values, choice.chosen.cuts
    keep = [range(len(v.cuts)) if c in leaves else (k,) for c, (v, k) in enumerate(zip(values, cuts))]
    p = replace(choice.program.kept(keep), memory=memory)
    if p.held(p.smallest()) > memory:
      return None
    found = Hull(p).chosen(memory)
    within = [of[k] for of, k in zip(keep, found.cuts)]
    chosen = Chosen(within, found.seconds, min(found.seconds, choice.chosen.bound))
    return replace(choice, program=replace(choice.program, memory=memory), chosen=chosen)

  def halves(self, keep: Keep, edge: Edge) -> list[Keep]:
    """Two halves of the cuts of the value between layers whose bytes differ most on an edge; none where none differ."""
    values = self.model.program.values

    def differs(c: int) -> float:
      return abs(values[c].memory[edge[0][c]] - values[c].memory[edge[1][c]])

    c = max(self.layers.between, key=differs, default=None)
    if c is None or differs(c) == 0.0:
      return []
    memory = values[c].memory
    most = min(memory[cuts[c]] for cuts in edge)
    parts = ([k for k in keep[c] if (memory[k] <= most) is is_less] for is_less in (True, False))
    return [(*keep[:c], tuple(part), *keep[c + 1 :]) for part in parts]

  def mixed(self, memory: float, keep: Keep, edge: Edge) -> Iterator[Selection]:
    """What lies between the ends of an edge: the second one's values between layers, and as many layers as fit placed
    as is faster."""
    between = set(self.layers.between)
    if any(edge[0][c] != edge[1][c] for c in between):
      agreed = self.chosen(tuple([(edge[1][c],) if c in between else k for c, k in enumerate(keep)]), memory)
      assert agreed is not None
      yield Selection(self.model.classes, replace(self.model.program, memory=memory), agreed)
      edge = agreed.edge or (agreed.cuts, agreed.cuts)
    yield self.mixture(memory, edge[1], edge[0])

  def mixture(self, memory: float, cuts: Sequence[int], others: Sequence[int]) -> Selection:
    """As many layers as fit at `others`, which hold more there, the rest and what is between at `cuts`."""
    model, layers, apart = self.model, self.layers, set[int]()
    here, there = (self.bytes_of(way) for way in (cuts, others))
    free = memory - model.program.held(cuts)
    for part in sorted(here, key=lambda part: here[part] - there[part]):
      if 0.0 < (more := there[part] - here[part]) <= free:
        apart.add(part)
        free -= more
    classes = layers.split(model.posed.problem, model.classes, apart)
    p = replace(model.program_of(classes), memory=memory)
    ways = [others if layers.of[members[0]] in apart else cuts for members in classes.values]
    chosen = mended(p, [way[model.classes.value[members[0]]] for way, members in zip(ways, classes.values)])
    return Selection(classes, p, Chosen(chosen, p.total(chosen) if p.fits(chosen) else math.inf, 0.0))

  def bytes_of(self, cuts: Sequence[int]) -> dict[int, float]:
    """What each of the layers holds where its values are at these cuts."""
    model, found = self.model, defaultdict[int, float](float)
    blocks = [model.blocks(v.cuts[k], len(v.shape)) for v, k in zip(model.program.values, cuts)]
    for part, c, nbytes in zip(self.layers.of, model.classes.value, model.held):
      if part is not None:
        found[part] += nbytes / blocks[c]
    for op, members in zip(model.program.ops, model.heavy(model.classes)):
      nbytes = op.held(cuts) / len(members)
      for e in members if nbytes else ():
        within = (self.layers.of[v] for v in model.posed.problem.edges[e].values if v is not None)
        if (part := next((i for i in within if i is not None), None)) is not None:
          found[part] += nbytes
    return found
