"""Values that are not kept until they are read last: they are computed again (Chen et al., Training Deep Nets with
Sublinear Memory Cost, 2016), those first that take the fewest seconds for each byte.

What is looked at are the values that are stored when most memory is held, and read later. A value that is dropped is
computed anew for its late readers, once for all of them, from values that are kept. These computations wait for what
the first of the late readers reads besides: a gradient that arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from tinygrad.device import Sharding
from tinygrad.helpers import prod
from tinygrad.ops import Trait, having
from tinygrad.schedule.schedule import nearest_first
from tinygrad.sharding.moves import plan
from tinygrad.solver.auto.classes import numbered
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.memory import fused_ones, is_placed_view, lifetimes, moment_of_most, most_bytes
from tinygrad.uop import Ops, UOp
from tinygrad.uop.rewrite import Sources, on_sources, rebuild

EFFECTS = having(Trait.EFFECT)
ALIKE = 3  # values are dropped together if they look the same for so many ops below them
TRIES = 4  # at what the model must come to so that the plan fits
LEAST = 0.01  # of the memory, that is to be saved by dropping values which look the same


def bytes_here(u: UOp) -> float:
  """Of a value, on each device."""
  shape = u.device.local_shape(u.max_shape) if isinstance(u.device, Sharding) else u.max_shape
  return float(prod(shape) * u.dtype.itemsize)


def seconds_of(u: UOp, machine: Machine, stored: bool) -> float:
  """Of one node on each device: a sum takes its operations, a move its bytes, what is stored is written and read."""
  here = u.src[0].device if u.op is Ops.MOVE else None
  if here is not None and isinstance(u.device, Sharding):
    link = min(machine.links(u.device.mesh.names))
    steps = [s for s in plan(u.max_shape, u.dtype.itemsize, here, u.device) if s.nbytes]
    return sum(s.nbytes / link + machine.latency for s in steps)
  touched = 2 * bytes_here(u) / machine.bandwidth if stored else 0.0
  if u.op is not Ops.REDUCE:
    return touched
  return max(2 * bytes_here(u.src[0]) / u.src[0].dtype.itemsize / machine.flops, touched)


def begins(u: UOp) -> bool:
  """Whether a node counts as late by its place alone; others do by what they read."""
  return u.op is Ops.REDUCE or u.op is Ops.SINK or u.op in EFFECTS


class Timeline:
  """The order of a graph's nodes: `late` is what cannot be computed at `moment`, when most memory is held."""

  def __init__(self, order: Sequence[UOp], moment: int) -> None:
    self.order, self.place = order, {u: i for i, u in enumerate(order)}
    self.late: set[UOp] = set()
    for i, u in enumerate(order):
      if any(s in self.late for s in u.src) or (i > moment and begins(u)):
        self.late.add(u)


@dataclass(frozen=True, slots=True)
class Recomputation:
  """What is computed again: places in the order of a graph's nodes, which is the same for all graphs of one form.
  `moment`: what comes after it is late; `kept`: what it is computed from; `seconds` that it takes; `nbytes` that each
  device holds with it."""

  moment: int
  dropped: frozenset[int]
  kept: frozenset[int]
  seconds: float
  nbytes: float

  def applied(self, roots: Sequence[UOp]) -> dict[UOp, UOp]:
    """What takes the place of nodes below `roots` that read what is dropped."""
    order = nearest_first(UOp.sink(*roots)).toposort()
    dropped, kept = ({order[i] for i in places} for places in (self.dropped, self.kept))
    return Again(Timeline(order, self.moment), dropped, kept).replaced()


class Again:
  """The late readers of dropped values, and what is computed for them.

  `first[x]`: of each node that is computed again, or read for that, the place of what it waits for: the earliest of
  what its late readers read besides. That lies before each of them, so it cannot depend on what waits for it.
  """

  def __init__(self, timeline: Timeline, dropped: Collection[UOp], kept: Collection[UOp]) -> None:
    self.order, self.place, self.late, self.kept = timeline.order, timeline.place, timeline.late, kept
    self.lost: set[UOp] = set()  # what is dropped, or computed from that without anything kept in between
    for u in self.order:
      from_lost = not self.is_there(u) and any(s in self.lost for s in u.src)
      if u not in self.late and (u in dropped or from_lost):
        self.lost.add(u)
    self.first: dict[UOp, int] = {}
    for u in reversed(self.order):
      wait = self.waits_for(u) if u in self.late else None if self.is_there(u) else self.first.get(u)
      if wait is not None:
        read = [s for s in u.src if s in self.lost] if u in self.late else u.src
        self.first |= {s: min(self.first.get(s, wait), wait) for s in read}

  def is_there(self, u: UOp) -> bool:
    """Whether a value is in memory, or anywhere, when it is needed again."""
    return u in self.kept or u.op in EFFECTS or not u.src

  def waits_for(self, u: UOp) -> int | None:
    """The place of the earliest late source."""
    return min((self.place[s] for s in u.src if s in self.late and s.op not in EFFECTS), default=None)

  def computed(self) -> list[UOp]:
    """The nodes that are computed again."""
    return [u for u in self.order if u in self.first and not self.is_there(u)]

  def replaced(self) -> dict[UOp, UOp]:
    """What takes the place of late nodes."""
    waiting: dict[int, list[UOp]] = {}
    for u in sorted(self.first, key=self.place.__getitem__):
      waiting.setdefault(self.first[u], []).append(u)
    made, again = {u: u for u in self.order if u not in self.late}, dict[UOp, UOp]()

    def make(u: UOp, src: Sources) -> UOp:
      known = self.waits_for(u) is not None
      return on_sources(u, tuple([again[s] if known and s in self.lost else t for s, t in zip(u.src, src)]))

    for i, u in enumerate(self.order):
      v = rebuild(u, make, made)
      for x in waiting.get(i, ()):
        if self.is_there(x):
          again[x] = x if x.device is None else x.wait(v)
        else:
          rebuild(x, on_sources, again)
    return {u: v for u, v in made.items() if u is not v}


class Dropping:
  """Which values to drop so that the plan of a graph fits the memory. `planned`: the bytes that a device holds. Values
  are compared by a model of it, lifetimes in the order of the nodes; what they come to is planned.

  `lives`: from when until when each stored value is held, and its bytes; `until`: the same end by early readers."""

  def __init__(self, roots: Sequence[UOp], machine: Machine, planned: Callable[[Sequence[UOp]], float]) -> None:
    self.roots, self.machine, self.planned = roots, machine, planned
    order = nearest_first(UOp.sink(*roots)).toposort()
    fused = fused_ones(order, is_placed_view)
    stored = {u: span for u, span in lifetimes(order, fused).items() if u.src and u.device is not None}
    self.lives = {u: (*span, bytes_here(u)) for u, span in stored.items()}
    self.moment = moment_of_most([*self.lives.values()], len(order))
    self.alive = [u for u, (begin, end, _) in self.lives.items() if begin <= self.moment < end and u.op not in EFFECTS]
    self.timeline = Timeline(order, self.moment)
    early = [u for u in order if u not in self.timeline.late]
    self.until = {u: self.timeline.place[early[end]] for u, (_, end) in lifetimes(early, fused).items()}

  def groups(self) -> list[list[UOp]]:
    """What is alive when most memory is held, those together that look the same below."""
    colors: dict[Hashable, int] = {}
    color = dict.fromkeys(self.timeline.order, 0)
    for _ in range(ALIKE):
      color = {
        u: colors.setdefault((u.op, u.dtype, u.shape, u.device, *[color[s] for s in u.src]), len(colors))
        for u in self.timeline.order
      }
    return [[self.alive[i] for i in members] for members in numbered([color[u] for u in self.alive])[1]]

  def again(self, dropped: Collection[UOp]) -> Again:
    return Again(self.timeline, dropped, set(self.alive).difference(dropped))

  def seconds(self, dropped: Collection[UOp]) -> float:
    return sum(seconds_of(u, self.machine, u in self.lives) for u in self.again(dropped).computed())

  def nbytes(self, dropped: Collection[UOp]) -> float:
    made = self.again(dropped).replaced()
    return self.planned([made.get(u, u) for u in self.roots])

  def modelled(self, dropped: Collection[UOp]) -> float:
    """The most bytes of intermediate values at once: what is dropped lives until its last early reader, and from what
    its late ones wait for."""
    again = self.again(dropped).first
    spans = []
    for u, (begin, end, nbytes) in self.lives.items():
      if u in dropped and u in again:
        spans += [(begin, self.until[u], nbytes), (again[u], end, nbytes)]
      else:
        spans.append((begin, end, nbytes))
    return most_bytes(spans, len(self.timeline.order))

  def chosen(self, limit: float, measured: Callable[[Collection[UOp]], float]) -> set[UOp]:
    """Drops values, the fewest seconds a byte first, those that save any, until what is `measured` is within the limit;
    then takes back those that need not be dropped."""
    least, chosen = measured(()), list[list[UOp]]()
    groups = [group for group in self.groups() if sum(map(bytes_here, group)) > least * LEAST]
    cost = [self.seconds(group) / sum(map(bytes_here, group)) for group in groups]
    for _, group in sorted(zip(cost, groups), key=lambda found: found[0]):
      if least <= limit:
        break
      if (nbytes := measured(values_of([*chosen, group]))) < least * (1 - LEAST):
        chosen, least = [*chosen, group], nbytes
    for group in reversed(chosen[:-1]) if least <= limit else ():
      fewer = [other for other in chosen if other is not group]
      if measured(values_of(fewer)) <= limit:
        chosen = fewer
    return values_of(chosen)

  def fitted(self, memory: float) -> Recomputation:
    """What the model says must be dropped so that the plan fits; its limit is lowered until that is so. If it never is,
    each choice is planned. What holds least, if nothing fits."""
    limit = memory - (self.nbytes(()) - self.modelled(()))
    tried: list[tuple[float, set[UOp]]] = []
    while not tried or (tried[-1][0] > memory and len(tried) < TRIES):
      dropped = self.chosen(limit, self.modelled)
      if any(dropped == before for _, before in tried):
        break
      tried.append((self.nbytes(dropped), dropped))
      limit -= 1.1 * (tried[-1][0] - memory)
    if tried[-1][0] > memory:
      dropped = self.chosen(memory, self.nbytes)
      tried.append((self.nbytes(dropped), dropped))
    nbytes, dropped = min(tried, key=lambda found: found[0])
    kept = set(self.alive).difference(dropped)
    gone, there = (frozenset(self.timeline.place[u] for u in nodes) for nodes in (dropped, kept))
    return Recomputation(self.moment, gone, there, self.seconds(dropped), nbytes)


def values_of(groups: Sequence[Sequence[UOp]]) -> set[UOp]:
  return {u for group in groups for u in group}
