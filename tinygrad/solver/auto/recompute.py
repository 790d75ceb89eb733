"""Values that are not kept until they are read last: they are computed again (Chen et al., Training Deep Nets with
Sublinear Memory Cost, 2016), those first that take the fewest seconds for each byte.

What is looked at are the values that are stored when most memory is held, and read later. A value that is dropped is
computed anew for its late readers, once for all of them, from values that are kept. These computations wait for what
the first of the late readers reads besides: a gradient that arrives.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from tinygrad.device import Sharding, show_placement
from tinygrad.helpers import prod, size_to_str
from tinygrad.ops import Trait, having
from tinygrad.schedule.schedule import nearest_first
from tinygrad.sharding.moves import plan
from tinygrad.solver.auto.classes import numbered
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.memory import (
  fused_by_schedule,
  is_placed_view,
  lifetimes,
  moment_of_most,
  moment_of_waiting,
  most_bytes,
)
from tinygrad.uop import Ops, UOp, render_shape
from tinygrad.uop.rewrite import Sources, on_sources, rebuild

EFFECTS = having(Trait.EFFECT)
ALIKE = 3  # values are dropped together if they look the same for so many ops below them
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
  """The order of a graph's nodes, and who reads each: `late` is what cannot be computed at `moment`, when most memory
  is held; `waits`: of each late node the place of its earliest late source."""

  def __init__(self, order: Sequence[UOp], moment: int) -> None:
    self.order, self.place = order, {u: i for i, u in enumerate(order)}
    self.late: set[UOp] = set()
    for i, u in enumerate(order):
      if any(s in self.late for s in u.src) or (i > moment and begins(u)):
        self.late.add(u)
    self.readers: dict[UOp, list[UOp]] = {}
    for u in order:
      for s in u.src:
        self.readers.setdefault(s, []).append(u)
    self.waits = {u: self.earliest(u) for u in self.late}

  def earliest(self, u: UOp) -> int | None:
    return min((self.place[s] for s in u.src if s in self.late and s.op not in EFFECTS), default=None)


@dataclass(frozen=True, slots=True)
class Recomputation:
  """What is computed again: places in the order of a graph's nodes, which is the same for all graphs of one form.
  `moment`: what comes after it is late; `kept`: what it is computed from; `seconds` that it takes; `parts`: how many of
  which values, as lines of a table."""

  moment: int
  dropped: frozenset[int]
  kept: frozenset[int]
  seconds: float
  parts: tuple[str, ...] = ()

  def applied(self, roots: Sequence[UOp]) -> dict[UOp, UOp]:
    """What takes the place of nodes below `roots` that read what is dropped."""
    order = nearest_first(UOp.sink(*roots)).toposort()
    dropped, kept = ({order[i] for i in places} for places in (self.dropped, self.kept))
    return Again(Timeline(order, self.moment), dropped, kept).replaced()


class Again:
  """The late readers of dropped values, and what is computed for them.

  `first[x]`: of each node that is computed again, or read for that, the place of what it waits for: the earliest of
  what its late readers read besides. That lies before each of them, so it cannot depend on what waits for it.
  `read[x]`: the place of the first of these readers, right before which it is computed.
  """

  def __init__(self, timeline: Timeline, dropped: Collection[UOp], kept: Collection[UOp]) -> None:
    self.timeline, self.kept = timeline, kept
    self.lost = {u for u in dropped if u not in timeline.late}
    todo = list(self.lost)  # what is dropped, or computed from that without anything kept in between
    while todo:
      for u in timeline.readers.get(todo.pop(), ()):
        if u not in timeline.late and u not in self.lost and not self.is_there(u):
          self.lost.add(u)
          todo.append(u)
    self.first: dict[UOp, int] = {}
    self.read: dict[UOp, int] = {}
    for s in self.lost:
      for u in timeline.readers.get(s, ()):
        if u in timeline.late and (wait := timeline.waits[u]) is not None:
          self.note(s, wait, timeline.place[u])
    self.wait_for_sources()

  def note(self, u: UOp, wait: int, reader: int) -> None:
    self.first[u] = min(self.first.get(u, wait), wait)
    self.read[u] = min(self.read.get(u, reader), reader)

  def wait_for_sources(self) -> None:
    """What is computed again waits no longer than what reads it; the last ones in the order first."""
    places = [-self.timeline.place[u] for u in self.first]
    heapq.heapify(places)
    while places:
      u = self.timeline.order[-heapq.heappop(places)]
      for s in () if self.is_there(u) else u.src:
        if s not in self.first:
          heapq.heappush(places, -self.timeline.place[s])
        self.note(s, self.first[u], self.read[u])

  def is_there(self, u: UOp) -> bool:
    """Whether a value is in memory, or anywhere, when it is needed again."""
    return u in self.kept or u.op in EFFECTS or not u.src

  def computed(self) -> list[UOp]:
    """The nodes that are computed again."""
    return sorted((u for u in self.first if not self.is_there(u)), key=self.timeline.place.__getitem__)

  def replaced(self) -> dict[UOp, UOp]:
    """What takes the place of late nodes."""
    order, late, waiting = self.timeline.order, self.timeline.late, dict[int, list[UOp]]()
    for u in sorted(self.first, key=self.timeline.place.__getitem__):
      waiting.setdefault(self.first[u], []).append(u)
    made, again = {u: u for u in order if u not in late}, dict[UOp, UOp]()

    def make(u: UOp, src: Sources) -> UOp:
      known = self.timeline.waits[u] is not None
      return on_sources(u, tuple([again[s] if known and s in self.lost else t for s, t in zip(u.src, src)]))

    for i, u in enumerate(order):
      v = rebuild(u, make, made)
      for x in waiting.get(i, ()):
        if self.is_there(x):
          again[x] = x if x.device is None else x.wait(v)
        else:
          rebuild(x, on_sources, again)
    return {u: v for u, v in made.items() if u is not v}


class Dropping:
  """Which values to drop so that less memory is held, by lifetimes in the order of the nodes, or by plans. `planned`:
  the bytes that a device holds.

  `leaves`: the bytes of inputs, weights and the optimizer's state; `lives`: from when until when each other value that
  is stored is held, and its bytes. What is dropped is held at one moment: when most waits for its readers, or, if
  none of these could wait for anything, when most is held."""

  def __init__(self, roots: Sequence[UOp], machine: Machine, planned: Callable[[Sequence[UOp]], float]) -> None:
    self.roots, self.machine, self.planned = roots, machine, planned
    order = self.order = nearest_first(UOp.sink(*roots)).toposort()
    fused = self.fused = fused_by_schedule(order, is_placed_view)
    self.results = {next(v for v in u.down() if not is_placed_view(v)) for u in order[-1].src}
    self.leaves = sum(bytes_here(u) for u in order if u.op is Ops.BUFFER)
    stored = {u: span for u, span in lifetimes(order, fused).items() if u.src and u.device is not None}
    self.lives = {u: (*span, bytes_here(u)) for u, span in stored.items()}
    self.most = most_bytes([*self.lives.values()], len(order))
    self.look_at(moment_of_waiting(order, fused, bytes_here))
    if not self.again(self.alive).first:
      self.look_at(moment_of_most([*self.lives.values()], len(order)))

  def look_at(self, moment: int) -> None:
    """`alive`: what may be dropped then; `until`: when each value is last read by what is not late."""
    self.moment, self.timeline = moment, Timeline(self.order, moment)
    there = (u for u, (begin, end, _) in self.lives.items() if begin <= moment < end)
    self.alive = [u for u in there if u.op not in EFFECTS and u not in self.results]
    early = [u for u in self.order if u not in self.timeline.late]
    self.until = {u: self.timeline.place[early[end]] for u, (_, end) in lifetimes(early, self.fused).items()}

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
    return Again(self.timeline, dropped, self.kept(dropped))

  def kept(self, dropped: Collection[UOp]) -> set[UOp]:
    """What is in memory when values are computed again."""
    return self.results.union(self.alive).difference(dropped)

  def seconds(self, dropped: Collection[UOp]) -> float:
    return sum(seconds_of(u, self.machine, u in self.lives) for u in self.again(dropped).computed())

  def nbytes(self, dropped: Collection[UOp]) -> float:
    made = self.again(dropped).replaced()
    return self.planned([made.get(u, u) for u in self.roots])

  def modelled(self, dropped: Collection[UOp]) -> float:
    """The most bytes of intermediate values at once: what is dropped lives until its last early reader, and from its
    first late one."""
    again = self.again(dropped).read
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
    least, chosen, place = measured(()), list[Sequence[UOp]](), self.timeline.place
    groups = [
      sorted(group, key=place.__getitem__) for group in self.groups() if sum(map(bytes_here, group)) > least * LEAST
    ]
    cost = [self.seconds(group) / sum(map(bytes_here, group)) for group in groups]
    for _, group in sorted(zip(cost, groups), key=lambda found: found[0]):
      if least <= limit:
        break
      if (nbytes := measured(values_of([*chosen, group]))) < least * (1 - LEAST):
        chosen, least = [*chosen, group], nbytes
    if least <= limit:
      for i in reversed(range(len(chosen))):
        chosen[i] = self.fewest(chosen, i, limit, measured)
    return values_of(chosen)

  def fewest(
    self, chosen: Sequence[Sequence[UOp]], i: int, limit: float, measured: Callable[[Collection[UOp]], float]
  ) -> Sequence[UOp]:
    """What of the i-th group has to be dropped: those that are computed first, which are needed last."""

    def fits(n: int) -> bool:
      return measured(values_of([*chosen[:i], chosen[i][:n], *chosen[i + 1 :]])) <= limit

    if fits(0):
      return ()
    low, high = 0, len(chosen[i])  # the first does not fit, the second does
    while i == len(chosen) - 1 and high - low > 1:
      middle = (low + high) // 2
      low, high = (low, middle) if fits(middle) else (middle, high)
    return chosen[i][:high]

  def recomputation(self, dropped: Collection[UOp]) -> Recomputation:
    gone, there = (frozenset(self.timeline.place[u] for u in nodes) for nodes in (dropped, self.kept(dropped)))
    lines = [self.line(group, [u for u in group if u in dropped]) for group in self.groups()]
    return Recomputation(self.moment, gone, there, self.seconds(dropped), tuple(filter(None, lines)))

  def line(self, group: Sequence[UOp], dropped: Sequence[UOp]) -> str:
    """Of values that look the same how many are dropped, the bytes of these on a device, and what they alone take."""
    if not dropped:
      return ""
    u, count = group[0], f"{len(dropped)} of {len(group)}"
    what = f"{u.dtype.name}{render_shape(u.shape)} {u.op.name}"
    nbytes, seconds = size_to_str(sum(map(bytes_here, dropped))), self.seconds(dropped)
    return f"{count:>10s} {what:34s} {show_placement(u.device):50s} {nbytes:>9s}  {seconds * 1e6:+.1f} us"


def values_of(groups: Sequence[Sequence[UOp]]) -> set[UOp]:
  return {u for group in groups for u in group}
