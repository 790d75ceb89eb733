"""In which order jobs are handed to several queues, so that these stand still for as little as can be: list scheduling
(Graham: Bounds on Multiprocessing Timing Anomalies, 1969). Whenever a queue is free, the first job takes it that could
begin at once, if what is then left can still run within the memory that there is (the banker's algorithm: Dijkstra, EWD
108)."""

from __future__ import annotations

import bisect
import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.helpers.lazy import numpy

LOOK = 32  # jobs that wait for the same queues: so many are looked at
GONE = -(1 << 60)  # bytes, where a job that has been handed over is not asked any more


@dataclass(frozen=True, slots=True)
class QueueJob:
  """`parts`, one after the other: the queues that it takes at once, and for how many seconds. Numbers of memory: what
  it reads, writes, and waits for to be written. Of jobs that are `urgent` the one goes first on which the longest chain
  of others depends; of the others the first as given."""

  parts: tuple[tuple[tuple[Hashable, ...], float], ...]
  reads: tuple[int, ...]
  writes: tuple[int, ...]
  waits: tuple[int, ...] = ()
  urgent: bool = False


class QueueClock:
  """When queues are free, and memory written and read, as what runs on them passes in order."""

  def __init__(self) -> None:
    self.free: dict[Hashable, float] = {}
    self.written: dict[int, float] = {}
    self.read: dict[int, float] = {}

  def ready(self, reads: Iterable[int], writes: Iterable[int], waits: Iterable[int]) -> float:
    """When what is read is written, and what is written read."""
    since = max((self.written.get(m, 0.0) for m in (*reads, *writes, *waits)), default=0.0)
    return max([since, *(self.read.get(m, 0.0) for m in writes)])

  def occupy(self, queues: Sequence[Hashable], ready: float, seconds: float) -> tuple[float, float]:
    """The next `seconds` in which all these queues are free, from `ready` on."""
    start = max([ready, *(self.free.get(q, 0.0) for q in queues)])
    self.free.update(dict.fromkeys(queues, start + seconds))
    return start, start + seconds

  def ended(self, reads: Iterable[int], writes: Iterable[int], now: float) -> None:
    self.written.update(dict.fromkeys(writes, now))
    for m in reads:
      self.read[m] = max(self.read.get(m, 0.0), now)


def seconds_taken(jobs: Sequence[QueueJob]) -> float:
  """What jobs take in their order."""
  clock = QueueClock()
  for job in jobs:
    now = clock.ready(job.reads, job.writes, job.waits)
    for queues, seconds in job.parts:
      _, now = clock.occupy(queues, now, seconds)
    clock.ended(job.reads, job.writes, now)
  return max(clock.free.values(), default=0.0)


def hazards(jobs: Sequence[QueueJob]) -> list[set[int]]:
  """Of each job those that it must follow: the last to write what it touches, and who reads what it writes."""
  writer, readers = dict[int, int](), defaultdict[int, set[int]](set)
  out = list[set[int]]()
  for i, job in enumerate(jobs):
    before = {writer[m] for m in (*job.reads, *job.writes, *job.waits) if m in writer}
    out.append(before.union(*(readers.pop(m, ()) for m in job.writes)))
    writer.update(dict.fromkeys(job.writes, i))
    for m in job.reads:
      readers[m].add(i)
    out[i].discard(i)
  return out


Devices = tuple[str, ...]
Queues = tuple[Hashable, ...]
Sizes = Mapping[int, tuple[Hashable, int]]  # where memory is, and its bytes


def device_parts(sets: Iterable[Devices]) -> tuple[list[Devices], dict[Devices, tuple[int, ...]]]:
  """The parts into which device sets cut all devices; and of each set the numbers of those that it is made of."""
  known = list(dict.fromkeys(sets))
  member: dict[str, tuple[int, ...]] = {}
  for i, devices in enumerate(known):
    for d in devices:
      member[d] = (*member.get(d, ()), i)
  parts: dict[tuple[int, ...], list[str]] = {}
  for d, signature in member.items():
    parts.setdefault(signature, []).append(d)
  within = {devices: tuple(p for p, signature in enumerate(parts) if i in signature) for i, devices in enumerate(known)}
  return [tuple(devices) for devices in parts.values()], within


class MemoryInUse:
  """What jobs take while some have been handed over and the others, `first` before all, would run in the order as
  given. `sizes`: of the memory that lives from the first job to the last that touches it, where it is, and its bytes;
  `spare`: how many bytes more than as the jobs are given may be taken at once, by place."""

  def __init__(self, jobs: Sequence[QueueJob], sizes: Sizes, spare: Mapping[Hashable, int]) -> None:
    self.sizes = sizes
    self.touched = [tuple(dict.fromkeys(m for m in (*j.reads, *j.writes) if m in sizes)) for j in jobs]
    self.users = defaultdict[int, list[int]](list)  # of memory: the jobs that are left
    for i, touched in enumerate(self.touched):
      for m in touched:
        self.users[m].append(i)
    # by place: the bytes that are taken while a job runs, if all that are left run in the order as given
    self.rest = {place: numpy.zeros(len(jobs), numpy.int64) for place in spare}
    for m, users in self.users.items():
      self.rest[sizes[m][0]][users[0] : users[-1] + 1] += sizes[m][1]
    self.limits = {place: int(rest.max()) + spare[place] for place, rest in self.rest.items()}
    self.taken = Counter[Hashable]()  # bytes, by place
    self.until: dict[int, float] = {}  # of memory that is taken: when all have ended that have touched it
    self.leaving: list[tuple[float, int]] = []  # (when, memory) that nobody will touch any more

  def given_back(self, now: float) -> None:
    """Lets go of what nobody touches from now on."""
    while self.leaving and self.leaving[0][0] <= now:
      place, nbytes = self.sizes[heapq.heappop(self.leaving)[1]]
      self.taken[place] -= nbytes

  def fits(self, i: int, first: int) -> bool:
    """Whether there is memory for a job now, and then for all that are left in the order as given, from `first` on."""
    places = dict.fromkeys(self.sizes[m][0] for m in self.touched[i])
    more = Counter[Hashable]()
    for m in self.touched[i]:
      if m not in self.until:
        more[self.sizes[m][0]] += self.sizes[m][1]
    if any(self.taken[p] + more[p] > self.limits[p] for p in places):
      return False
    return i == first or all((self.after(i, first, p)[first:i] <= self.limits[p]).all() for p in places)

  def after(self, i: int, first: int, place: Hashable) -> Any:
    """`rest` of a place once job i has been handed over."""
    rest = self.rest[place].copy()
    for m in self.touched[i]:
      if self.sizes[m][0] == place:
        users, nbytes = self.users[m], self.sizes[m][1]
        if m not in self.until:
          rest[first : users[0]] += nbytes
        if users[-1] == i:
          rest[(users[-2] if len(users) > 1 else first - 1) + 1 : i + 1] -= nbytes
    rest[i] = GONE
    return rest

  def take(self, i: int, end: float, first: int) -> None:
    """Job i has been handed over, and ends then; `first` of those that are left."""
    for place in dict.fromkeys(self.sizes[m][0] for m in self.touched[i]):
      self.rest[place] = self.after(i, first, place)
    for rest in self.rest.values():
      rest[i] = GONE
    for m in self.touched[i]:
      place, nbytes = self.sizes[m]
      if m not in self.until:
        self.taken[place] += nbytes
      self.until[m] = max(self.until.get(m, 0.0), end)
      self.users[m].remove(i)
      if not self.users[m]:
        heapq.heappush(self.leaving, (self.until[m], m))


class ListScheduler:
  """`sizes` and `spare` as `MemoryInUse` has them."""

  def __init__(self, jobs: Sequence[QueueJob], sizes: Sizes, spare: Mapping[Hashable, int]) -> None:
    self.jobs, self.memory = jobs, MemoryInUse(jobs, sizes, spare)
    self.waiting = hazards(jobs)  # of each job: those that it must follow, and that have not been handed over
    self.then: list[list[int]] = [[] for _ in jobs]
    for i, before in enumerate(self.waiting):
      for j in before:
        self.then[j].append(i)
    self.arrived = [0.0] * len(jobs)  # when the last one ends of those that it follows
    self.keys = self.priorities()
    self.free = defaultdict[Hashable, float](float)  # when a queue is
    self.ready = defaultdict[Queues, list[tuple[tuple[float, ...], int]]](list)  # jobs by the queues that they take
    self.now = 0.0

  def priorities(self) -> list[tuple[float, ...]]:
    chains = [sum(seconds for _, seconds in job.parts) for job in self.jobs]
    for i in reversed(range(len(chains))):
      chains[i] += max((chains[j] for j in self.then[i]), default=0.0)
    return [(0.0, -chains[i], i) if job.urgent else (1.0, i) for i, job in enumerate(self.jobs)]

  def run(self) -> tuple[list[int], list[tuple[float, float]]]:
    """The order, and of each job in that order when it begins and ends."""
    order, spans = list[int](), list[tuple[float, float]]()
    left = dict.fromkeys(range(len(self.jobs)))
    for i in [i for i in left if not self.waiting[i]]:
      self.comes(i)
    while left:
      i = self.choose(next(iter(left)))
      del left[i]
      queue = self.ready[self.queues(i)]
      del queue[bisect.bisect_left(queue, (self.keys[i], i))]
      end = self.now
      for queues, seconds in self.jobs[i].parts:
        end = max([end, *(self.free[q] for q in queues)]) + seconds
        self.free.update(dict.fromkeys(queues, end))
      order.append(i)
      spans.append((self.now, end))
      self.memory.take(i, end, next(iter(left), i))
      for j in self.then[i]:
        self.arrived[j] = max(self.arrived[j], end)
        self.waiting[j].discard(i)
        if not self.waiting[j]:
          self.comes(j)
    return order, spans

  def queues(self, i: int) -> Queues:
    return self.jobs[i].parts[0][0]

  def comes(self, i: int) -> None:
    bisect.insort(self.ready[self.queues(i)], (self.keys[i], i))

  def choose(self, first: int) -> int:
    """The next job, which begins `now`. `first` of those that are left can run, at the latest when all others have
    ended."""
    while True:
      self.memory.given_back(self.now)
      free = {queues: max(self.free[q] for q in queues) for queues, jobs in self.ready.items() if jobs}
      seen = {first, *(i for queues, when in free.items() if when <= self.now for _, i in self.ready[queues][:LOOK])}
      starts = {i: max(self.arrived[i], free[self.queues(i)]) for i in seen}
      for i in sorted([i for i, start in starts.items() if start <= self.now], key=self.keys.__getitem__):
        if self.memory.fits(i, first):
          return i
      later = [*free.values(), *starts.values(), *(when for when, _ in self.memory.leaving[:1])]
      self.now = min(when for when in later if when > self.now)
