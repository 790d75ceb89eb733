"""Devices of which each process has some: the CPU's, whose memory all of a host map, and GPUs, whose they do not."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.device import Backend, Capabilities, Device, DeviceError, Rendered, Target
from tinygrad.distributed import nccl
from tinygrad.distributed.arena import Arena
from tinygrad.distributed.settings import NCCL
from tinygrad.helpers import cores
from tinygrad.runtime import queues
from tinygrad.runtime.cpu import CPU, Batch, Call, Memory


class SharedCPU(CPU):
  """A device of this process, whose memory is a part of its arena; or what this process knows of another's: where its
  memory is. Nothing is queued there, and what is written to it from here is what its owner writes, too."""

  capabilities = Capabilities(processor=True, cells=True)
  forks = False  # the memory is that of all
  world: Any  # the processes (world.py); of all devices

  def __init__(self, name: str) -> None:
    self.rank: int = self.world.owner(name)
    super().__init__(name)
    self.target = replace(self.target, overlaps=self.world.cluster)
    hosts = self.world.hosts
    if hosts.count(hosts[self.rank]) * self.world.per_process >= cores():
      # the thread would have no core of its own, and run in the place of another process
      self.worth_waking = CPU.worth_waking << 4

  @property
  def local(self) -> bool:
    return bool(self.rank == self.world.index)

  def count(self) -> int:
    return len(self.world.names(self.kind))

  def reaches(self, other: SharedCPU) -> bool:
    return bool(self.world.hosts[self.rank] == self.world.hosts[other.rank])

  def check_process(self) -> None:
    self.world.check_process()

  @property
  def lost(self) -> bool:
    return self.inherited or self.world.failed is not None

  # ---- memory

  def alloc(self, nbytes: int) -> Memory:
    self.check_process()
    return super().alloc(nbytes) if self.local else Memory(0, nbytes, self.world)  # where, the next exchange tells

  def new_memory(self, nbytes: int) -> Memory:
    arena: Arena = self.world.arena
    if (piece := arena.take(nbytes)) is None:
      raise MemoryError(f"{self.name}: no memory for a buffer of {nbytes} bytes\n  {queues.LESS}")
    return piece

  def size_of(self, nbytes: int) -> int:
    return nbytes

  def view(self, handle: Memory) -> memoryview:
    self.check_process()
    assert handle.address, f"{self.name}: where this memory is has not been told"
    return super().view(handle)

  def copyin(self, handle: Memory, data: memoryview, offset: int = 0) -> None:
    if self.local:
      super().copyin(handle, data, offset)

  def wrap(self, array: Any) -> None:
    """Others could not read it."""

  # ---- work

  def submit(self, calls: Sequence[Call] | Batch, alone: bool = True) -> None:
    self.check_process()
    super().submit(calls, alone)

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


@dataclass(frozen=True, slots=True)
class About:
  """What a process tells of its devices of a kind."""

  error: str = ""  # why they do not open
  targets: tuple[Target, ...] = ()
  reach: tuple[tuple[bool, ...], ...] = ()  # whether one reads the memory of another
  identities: tuple[str, ...] = ()  # of the physical devices
  machine: str = ""
  without_nccl: str = ""  # why there is none


class Elsewhere(Backend):
  """What this process knows of a device of another, whose memory it cannot map: nothing is queued there, and what all
  processes write to it, its own does. While others read it (`World.at_rest`) its memory here is a copy of the bytes."""

  def __init__(self, name: str, rank: int, at: int, about: About, own: Any) -> None:
    super().__init__(name)
    self.rank, self.at, self.about, self.own = rank, at, about, own  # `own` is a device of this process
    self.target, self.identity, self.description = about.targets[at], about.identities[at], own.description

  def reaches(self, other: Any) -> bool:
    return bool(self.rank == other.rank and self.about.reach[self.at][other.at])

  # ---- memory

  def alloc(self, nbytes: int) -> Memory:
    return Memory(0, nbytes, self)

  def free(self, handle: Memory, nbytes: int) -> None:
    """It is none."""

  def copyin(self, handle: Memory, data: memoryview, offset: int = 0) -> None:
    """Its own process does so."""

  def view(self, handle: Memory) -> memoryview:
    assert handle.address, f"{self.name}: its memory is in another process"
    return memoryview((ctypes.c_char * handle.nbytes).from_address(handle.address)).cast("B")

  def copyout(self, data: memoryview, handle: Memory, offset: int = 0) -> None:
    data.cast("B")[:] = self.view(handle)[offset : offset + data.nbytes]

  # ---- programs, which every process has, and its own devices run

  def render(self, linear: list[Any], name: str) -> Rendered:
    rendered: Rendered = self.own.render(linear, name)
    return rendered

  def compile(self, rendered: Rendered, name: str) -> Any:
    return self.own.compile(rendered, name)

  def compile_source(self, source: str, name: str, pointers: int, dims: Sequence[int]) -> Any:
    return self.own.compile_source(source, name, pointers, dims)

  # ---- work

  @staticmethod
  def barrier(devices: Sequence[Any]) -> list[Any]:
    return [None] * len(devices)  # theirs

  def synchronize(self) -> None:
    """Nothing is queued."""


class Opened:
  """The devices of a kind, which all processes open together: those of this one, and what it knows of the others'.

  Raises: DeviceError where they do not open in one of the processes.
  """

  def __init__(self, world: Any, found: type[Any], kind: str) -> None:
    self.world, self.kind = world, kind
    world.exchange(f"devices of kind {kind} are opened")
    self.own: dict[str, Any] = {}
    error: Exception | None = None
    try:
      self.own.update((name, found(name)) for name in world.names(kind, world.index))
    except (DeviceError, ImportError) as e:
      error = e
    self.about: list[About] = world.comm.allgather(self.tell(error))
    if error is not None:
      raise error
    for rank, about in enumerate(self.about):
      if about.error:
        raise DeviceError(f"{kind} does not work in process {rank}: {about.error}")
    can = {"capabilities": found.capabilities}
    self.elsewhere: Callable[..., Elsewhere] = type(f"{kind}Elsewhere", (Elsewhere,), can)
    if found.capabilities.nccl and NCCL.value and world.count > 1:
      self.connect()

  def tell(self, error: Exception | None) -> About:
    own, world = [*self.own.values()], self.world
    if error is not None:
      return About(error=str(error))
    return About(
      targets=tuple(d.target for d in own),
      reach=tuple(tuple(d.reaches(o) for o in own) for d in own),
      identities=tuple(d.identity for d in own),
      machine=world.machines[world.index],
      without_nccl=nccl.what_is_missing() if own[0].capabilities.nccl and NCCL.value else "",
    )

  def connect(self) -> None:
    """NCCL between these devices, if it is there and takes them; else process 0 says why not."""
    shared = [(a.machine, identity) for a in self.about for identity in a.identities]
    why = [f"process {rank}: {a.without_nccl}" for rank, a in enumerate(self.about) if a.without_nccl]
    if len({*shared}) < len(shared):
      why.append(f"several {self.kind} devices are one GPU, of which NCCL takes each once")
    if not why:
      self.world.wires[self.kind] = nccl.NCCLWire(self.world, self.kind)
    elif self.world.index == 0:
      through = f"{self.kind} devices of several processes exchange what they hold through the host, by MPI"
      print(f"tinygrad: {through}: {why[0]}", file=sys.stderr)

  def device(self, name: str, rank: int | None) -> Any:
    """One that process `rank` has."""
    if rank == self.world.index:
      return self.own[name]
    assert rank is not None
    at = self.world.names(self.kind, rank).index(name)
    return self.elsewhere(name, rank, at, self.about[rank], next(iter(self.own.values())))
