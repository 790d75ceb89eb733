"""What runs on simulated devices, as it is handed over: items, and the memory that they read and write."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinygrad.device import Buffer, Device
from tinygrad.device.cluster import Cluster
from tinygrad.device.machine import numbers
from tinygrad.engine.run import Work
from tinygrad.helpers import PROCESS
from tinygrad.schedule.items import ScheduleItem, Transfer
from tinygrad.simulation.machine import ClusterError


@dataclass(frozen=True, slots=True)
class UsedMemory:
  """A value's memory: on which devices, and its bytes on each."""

  devices: tuple[str, ...]
  nbytes: int


@dataclass(frozen=True, slots=True)
class Entry:
  """An item as it runs: numbers of the memory that it reads, writes, and waits for."""

  item: ScheduleItem
  name: str
  devices: tuple[str, ...]
  reads: tuple[int, ...]
  writes: tuple[int, ...]
  waits: tuple[int, ...] = ()


@dataclass(slots=True)
class StepProgram:
  """Items in the order in which they are handed over. `memory`, by number; `held`, by device set: the most bytes of it
  that each device held at once."""

  entries: list[Entry] = field(default_factory=list)
  memory: list[UsedMemory] = field(default_factory=list)
  held: dict[tuple[str, ...], int] = field(default_factory=dict)
  times: int = 1  # that it ran


class WorkRecorder:
  """Notes what is handed over to simulated devices as one program (engine/run.py: watchers)."""

  def __init__(self, cluster: Cluster) -> None:
    self.cluster, self.program = cluster, StepProgram()
    self.number: weakref.WeakKeyDictionary[Buffer, int] = weakref.WeakKeyDictionary()
    self.checked: set[tuple[str, ...]] = set()

  def __call__(self, work: Sequence[Work]) -> None:
    slots: dict[int, int] = {}  # of the plan, as far as its items have named them
    for w in work:
      if any(is_simulated(m.devices) for m in w.memory):
        places = [self.of(m) for m in w.memory]
        slots.update(zip(w.item.slots, places))
        waits = tuple([slots[s] for s in w.item.after if s in slots])
        n = w.item.writes
        self.program.entries.append(Entry(w.item, w.name, devices_of(w), tuple(places[n:]), tuple(places[:n]), waits))
    now = Counter[tuple[str, ...]]()
    for memory in {origin(m) for m in self.number}:
      now[memory.devices] += memory.nbytes_per_device
    for devices, nbytes in now.items():
      self.program.held[devices] = max(self.program.held.get(devices, 0), nbytes)

  def of(self, m: Buffer) -> int:
    """The number of memory."""
    m = origin(m)
    if m not in self.number:
      self.check(m.devices)
      self.number[m] = len(self.program.memory)
      self.program.memory.append(UsedMemory(m.devices, m.nbytes_per_device))
    return self.number[m]

  def check(self, devices: tuple[str, ...]) -> None:
    """Raises: ClusterError for devices that the cluster has not."""
    if devices in self.checked or not is_simulated(devices):
      return
    if (last := max(numbers(devices))) >= len(self.cluster):
      hosts = -(-(last + 1) * self.cluster.levels[-1].size // len(self.cluster))
      name = self.cluster.name.partition(":")[0]
      fix = f"SIM={name}:{hosts}  # or --cluster {name}:{hosts}, or a mesh of {len(self.cluster)} devices"
      kind = devices[0].partition(":")[0]
      raise ClusterError(
        f"{kind}:{last} is no device of {self.cluster.name}, which has {len(self.cluster)}\n  fix: {fix}"
      )
    self.checked.add(devices)


def origin(m: Buffer) -> Buffer:
  """The memory that a buffer shows, where it is another's (what a replay has made)."""
  while isinstance(m._owner, Buffer):
    m = m._owner
  return m


def is_simulated(devices: tuple[str, ...]) -> bool:
  return bool(Device.capabilities(devices[0]).simulated)


def devices_of(w: Work) -> tuple[str, ...]:
  """The simulated devices that an item keeps busy: of a copy those at both ends."""
  if not isinstance(w.item.kernel, Transfer):
    return w.item.devices
  return devices_in(*dict.fromkeys(m.devices for m in w.memory if is_simulated(m.devices)))


@PROCESS.cached
def devices_in(*sets: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(dict.fromkeys(d for devices in sets for d in devices))
