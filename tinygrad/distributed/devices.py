"""The CPU's devices where several processes have some each."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tinygrad.device import Capabilities, Device
from tinygrad.distributed.arena import Arena
from tinygrad.helpers import cores
from tinygrad.runtime import queues
from tinygrad.runtime.cpu import CPU, Call, Memory


class SharedCPU(CPU):
  """A device of this process, whose memory is a part of its arena; or what this process knows of another's: where its
  memory is. Nothing is queued there, and what is written to it from here is what its owner writes, too."""

  capabilities = Capabilities(processor=True, cells=True)
  world: Any  # the processes (world.py); of all devices

  def __init__(self, name: str) -> None:
    self.rank: int = self.world.owner(name)
    super().__init__(name)
    hosts = self.world.hosts
    if hosts.count(hosts[self.rank]) * self.world.per_process >= cores():
      self.worth_waking <<= 4  # the thread would have no core of its own, and run in the place of another process

  @property
  def local(self) -> bool:
    return bool(self.rank == self.world.index)

  def count(self) -> int:
    return len(self.world.names(self.kind))

  def reaches(self, other: SharedCPU) -> bool:
    return bool(self.world.hosts[self.rank] == self.world.hosts[other.rank])

  @property
  def lost(self) -> bool:
    return self.world.failed is not None

  # ---- memory

  def alloc(self, nbytes: int) -> Memory:
    return super().alloc(nbytes) if self.local else Memory(0, nbytes, self.world)  # where, the next exchange tells

  def new_memory(self, nbytes: int) -> Memory:
    arena: Arena = self.world.arena
    if (piece := arena.take(nbytes)) is None:
      raise MemoryError(f"{self.name}: no memory for a buffer of {nbytes} bytes\n  {queues.LESS}")
    return piece

  def size_of(self, nbytes: int) -> int:
    return nbytes

  def view(self, handle: Memory) -> memoryview:
    assert handle.address, f"{self.name}: where this memory is has not been told"
    return super().view(handle)

  def copyin(self, handle: Memory, data: memoryview, offset: int = 0) -> None:
    if self.local:
      super().copyin(handle, data, offset)

  def wrap(self, array: Any) -> None:
    """Others could not read it."""

  # ---- several devices

  @staticmethod
  def barrier(devices: Sequence[Any]) -> list[Call]:
    """One call for each device. Where they are in several processes they count in memory that all see, and the call is
    always the same: a counter is never used for anything else, as nobody knows when the last one has seen it."""
    if len({d.rank for d in devices}) == 1:
      return CPU.barrier(devices)
    calls = _meeting(tuple(sorted(d.name for d in devices)))
    return [calls[d.name] for d in devices]


@functools.cache
def _meeting(names: tuple[str, ...]) -> dict[str, Call]:
  devices: list[Any] = [Device[name] for name in names]
  counter = devices[0].world.counter(devices[0].rank)
  calls = CPU.barrier(devices)
  for call in calls:
    call.words[0] = counter
  return dict(zip(names, calls))
