"""A program on a cluster as a timeline: when each item runs on which devices.

Devices that do the same are one *class*, simulated once: 4,096 devices of one mesh are a class, two pipeline stages are
two. A class has two streams, kernels and communications (one where the cluster does not `overlap` them), each in the
order of the program, as the queues of a device are: an item starts when its streams are free, what it reads is written,
and what it overwrites is read. With the order fixed, times are maxima of sums: what gets faster makes nothing slower,
which is not so where a scheduler picks what is ready (Graham: Bounds on Multiprocessing Timing Anomalies, 1969)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tinygrad.debug.cost import ItemCost, cost_of
from tinygrad.device.cluster import Cluster
from tinygrad.device.machine import numbers
from tinygrad.helpers.list_scheduling import QueueClock, device_parts
from tinygrad.schedule.items import ScheduleItem
from tinygrad.simulation.program import Entry, StepProgram

KERNELS, MOVES = "kernels", "communication"  # the streams of a class


@dataclass(frozen=True, slots=True)
class DeviceClass:
  """Devices that run the same items."""

  devices: tuple[str, ...]

  def __str__(self) -> str:
    first, last = numbers((self.devices[0], self.devices[-1]))
    return f"device {first}" if first == last else f"devices {first} … {last} ({len(self.devices):,})"


@dataclass(frozen=True, slots=True)
class Span:
  """A stretch of time of a stream of some classes. `item`: its number in the program; `kind`: kernel, or that of a
  communication, which goes over `level` and brings `nbytes` to each device."""

  name: str
  kind: str
  stream: str
  classes: tuple[int, ...]
  start: float
  end: float
  item: int
  level: str = ""
  nbytes: float = 0.0
  bound: str = ""

  @property
  def seconds(self) -> float:
    return self.end - self.start


@dataclass(frozen=True, slots=True)
class StepTimeline:
  """When what runs, on which class of devices."""

  cluster: Cluster
  classes: tuple[DeviceClass, ...]
  spans: tuple[Span, ...]

  @property
  def seconds(self) -> float:
    return max((s.end for s in self.spans), default=0.0)

  def of(self, c: int, stream: str | None = None) -> list[Span]:
    """What a class runs, in order; of one stream alone if it is named."""
    return [s for s in self.spans if c in s.classes and stream in (None, s.stream)]

  def number(self, device: str) -> int:
    """The class of a device. Raises: KeyError where it runs nothing."""
    return {d: i for i, c in enumerate(self.classes) for d in c.devices}[device]

  def device(self, name: str) -> list[Span]:
    """What a device runs, in order. Raises: KeyError where it runs nothing."""
    return self.of(self.number(name))

  def busy(self, c: int, stream: str) -> float:
    return sum(s.seconds for s in self.of(c, stream))

  def exposed(self, c: int) -> float:
    """Seconds in which a class communicates and computes nothing."""
    kernels = [(s.start, s.end) for s in self.of(c) if s.kind == "kernel"]
    moves = [(s.start, s.end) for s in self.of(c) if s.kind != "kernel"]
    return total_length(moves) - total_length(overlaps(moves, kernels))

  def received(self, c: int) -> dict[str, float]:
    """Bytes that each device of a class receives, by level."""
    out: defaultdict[str, float] = defaultdict(float)
    for s in self.of(c):
      if s.level:
        out[s.level] += s.nbytes
    return dict(out)


def total_length(parts: Sequence[tuple[float, float]]) -> float:
  """Of intervals in order that do not meet."""
  return sum(b - a for a, b in parts)


def overlaps(xs: Sequence[tuple[float, float]], ys: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
  """Where two such lists meet."""
  out, i, j = list[tuple[float, float]](), 0, 0
  while i < len(xs) and j < len(ys):
    a, b = max(xs[i][0], ys[j][0]), min(xs[i][1], ys[j][1])
    if a < b:
      out.append((a, b))
    if xs[i][1] < ys[j][1]:
      i += 1
    else:
      j += 1
  return out


def device_classes(entries: Sequence[Entry]) -> tuple[tuple[DeviceClass, ...], dict[tuple[str, ...], tuple[int, ...]]]:
  """The classes, the parts into which the device sets of items cut all devices; and of each set those that it is."""
  parts, within = device_parts(e.devices for e in entries)
  return tuple(map(DeviceClass, parts)), within


Price = Callable[[ScheduleItem, Cluster], ItemCost]


def timeline(program: StepProgram, cluster: Cluster, price: Price = cost_of) -> StepTimeline:
  """The items of a program, each as early as streams, memory and what it waits for allow."""
  classes, sets = device_classes(program.entries)
  return StepTimeline(cluster, classes, tuple(Clock(cluster, sets, price).spans(program.entries)))


class Clock(QueueClock):
  """When streams are free, and memory written and read, as the items of a program pass."""

  def __init__(self, cluster: Cluster, sets: dict[tuple[str, ...], tuple[int, ...]], price: Price) -> None:
    super().__init__()
    self.cluster, self.sets, self.price = cluster, sets, price

  def spans(self, entries: Sequence[Entry]) -> Iterator[Span]:
    for i, e in enumerate(entries):
      now = self.ready(e.reads, e.writes, e.waits)
      cost, classes = self.price(e.item, self.cluster), self.sets[e.devices]
      for span in self.parts(i, e, cost, classes, now):
        yield span
        now = span.end
      self.ended(e.reads, e.writes, now)

  def parts(self, i: int, e: Entry, cost: ItemCost, classes: tuple[int, ...], ready: float) -> Iterator[Span]:
    """The communications of an item, then its kernel; none before `ready`."""
    stream = MOVES if self.cluster.overlap else KERNELS
    for phase in cost.phases:
      start, ready = self.take(stream, classes, ready, phase.seconds)
      yield Span(e.name, phase.kind, stream, classes, start, ready, i, phase.level, phase.nbytes)
    if cost.seconds or not cost.phases:
      start, end = self.take(KERNELS, classes, ready, cost.seconds)
      yield Span(e.name, "kernel", KERNELS, classes, start, end, i, bound=cost.bound)

  def take(self, stream: str, classes: tuple[int, ...], ready: float, seconds: float) -> tuple[float, float]:
    """The next `seconds` in which the stream of all these classes is free, from `ready` on."""
    return self.occupy([(c, stream) for c in classes], ready, seconds)
