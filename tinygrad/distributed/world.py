"""The processes that run one script, from the view of one of them, over MPI and memory that those of a host share."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import itertools
import os
import re
import socket
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tinygrad.device import HOST_DEVICE, Box, Buffer, Device, DeviceError, meet, number_of, refuse
from tinygrad.device.cluster import Cluster
from tinygrad.device.machine import CPU_CHIP, CPU_MEMORY, ETHERNET
from tinygrad.distributed.arena import COUNTERS, Arena
from tinygrad.distributed.beats import SILENCE, Beats
from tinygrad.distributed.boxes import WORDS, Boxes
from tinygrad.distributed.courier import Courier, Delivery
from tinygrad.distributed.devices import Opened, SharedCPU
from tinygrad.distributed.errors import DistributedError, DivergedError, LostProcessError
from tinygrad.distributed.faults import ENDED, FAILED, FAULT_AT, LINE_AT, RUNNING, Status, Watch
from tinygrad.distributed.settings import HOSTS, SAME_DATA, SHARED_MEMORY
from tinygrad.distributed.wires import (
  Mail,
  Message,
  MPIWire,
  Wire,
  in_host,
  messages_of,
  piece_of,
  room_for,
  runs_of,
  staged_messages,
)
from tinygrad.dtype import dtypes
from tinygrad.helpers import PACKAGE, blake2b, numpy, prod, settings_from, source_line, user_frame, user_line
from tinygrad.runtime.peer_reads import PeerPart, bring_here, wait_for
from tinygrad.runtime.transfer import addressed, host_array

HEAD = 3  # words of the message of an exchange before the offsets: two of a fingerprint, and what follows
CHANGED, GARBAGE = 1, 2  # whether memory lies elsewhere than before; whether there may be much garbage
PATIENT = 200  # looks before it sleeps in between
LOOK = 0.1  # seconds between looks at the other processes
FAREWELL = 3.0  # seconds that a process that has failed waits for the others to have noticed
SHOWN = 200  # letters of what a process does
SAID = 1 << 12  # bytes of what one process says for all, at most
ALL = 32  # collections of garbage of which one is of all generations
Blocks = dict[Box, tuple[Buffer, int]]  # by box of a value: which buffer, on which of its devices
THE_END = "the end of the script"
MARK = re.compile(r" [0-9a-f]{8}\b")  # of a kernel, behind its name (plans.py)
SAME = "every process runs the same script and reads the same values; one alone may print what is read"


@functools.lru_cache(1024)
def fingerprint(what: str) -> tuple[int, int]:
  digest = blake2b(what.encode(), digest_size=16).digest()
  return int.from_bytes(digest[:8]), int.from_bytes(digest[8:])


def differing(texts: Sequence[str]) -> list[str]:
  """The beginning of each, SHOWN letters: where all are alike for longer, what is alike is left out between."""
  same = len(os.path.commonprefix(texts))
  if same < SHOWN:
    return [text[:SHOWN] for text in texts]
  word = texts[0].rfind(" ", 0, same) + 1
  return [f"{text[: SHOWN // 2]} … {text[word : word + SHOWN]}" for text in texts]


def version() -> str:
  """Of this package, by its files' names and sizes, and where it is."""
  files = sorted(Path(PACKAGE).rglob("*.py"))
  sizes = [(p.relative_to(PACKAGE).as_posix(), p.stat().st_size) for p in files]
  return f"{blake2b(repr(sizes).encode(), digest_size=4).hexdigest()} in {PACKAGE}"


class Processes:
  """The `World` of this process (device/world.py)."""

  def __init__(self, mpi: Any, devices: int) -> None:
    self.mpi, self.comm = mpi, mpi.COMM_WORLD.Dup()
    self.index, self.count = self.comm.Get_rank(), self.comm.Get_size()
    self.failed: str | None = None
    self.forked = False  # in a process that this one has forked
    SharedCPU.world = self
    told = self.comm.allgather((devices, version()))
    self.devices = [n for n, _ in told]
    if len({*self.devices}) > 1:
      raise DistributedError(f"initialize: processes ask for {self.devices} devices\n  fix: the same number in each")
    if len({digest.split()[0] for _, digest in told}) > 1:
      rows = "".join(f"\n    process {rank}: {digest}" for rank, (_, digest) in enumerate(told))
      raise DistributedError(f"initialize: processes have other versions of tinygrad:{rows}\n  fix: the same for all")
    self.per_process = devices
    gc.disable()  # `collect` does
    self.collected = 0
    self.line: Any = None  # that the others have been told of
    self.meeting, self.clash = threading.Lock(), ""  # one thread meets; else nobody knows in which order
    self.unchecked = SAME_DATA.value  # copies of host data that are still to be compared
    self.counters: dict[int, int] = {}  # by process: how many of its counters are in use
    self.opened: dict[type[Any], Opened] = {}  # by kind of device
    self.mpi_wire: Wire = MPIWire(self, self.comm)
    self.wires: dict[str, Wire] = {}  # by kind: what carries bytes from device to device
    self._map_memory()
    near = [arena for arena in self.arenas if arena is not None]
    pages = [memoryview(arena.map)[:COUNTERS] for arena in near]
    everybody = len(near) == self.count
    self.boxes = Boxes(self.index, pages, [arena.base for arena in near]) if everybody else None
    own, *others = sorted(self.statuses, key=lambda s: s.rank != self.index)
    beats = Beats(mpi, self.comm, self.index, self.hosts) if len({*self.hosts}) > 1 else None
    self.courier = None if beats is None else Courier(self)
    self.watch = Watch(own, others, beats)
    self.own, self.others = own, others
    own.say(RUNNING)
    self.comm.Barrier()
    self.watch.start()

  def _map_memory(self) -> None:
    """An arena for each process of this host, and who is on which host: those whose memory cannot be mapped are on
    another, as it were."""
    self.arena = Arena.new()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    machine = f"{socket.gethostname()} {boot}"
    host = machine if SHARED_MEMORY else f"{self.index}"
    if HOSTS:
      host += f" {self.index * HOSTS.value // self.count}"
    found = self.comm.allgather((host, os.getpid(), self.arena.fd, self.arena.size, machine))
    self.hosts, self.machines = [host for host, *_ in found], [machine for *_, machine in found]
    self.arenas: list[Arena | None] = [None] * self.count
    self.statuses: list[Status] = []
    for rank, (where, pid, fd, size, _) in enumerate(found):
      if where == host:
        arena = self.arenas[rank] = self.arena if rank == self.index else Arena.of(pid, fd, size)
        self.statuses.append(Status(rank, pid, memoryview(arena.map)[:COUNTERS]))
    self.bases = [0 if arena is None else arena.base for arena in self.arenas]

  @functools.cached_property
  def cluster(self) -> Cluster | None:
    """What the hosts' processors are taken for where schedules are made, so that what is between hosts runs beside
    kernels: as assumed, for all processes have one schedule. None for one host, or for hosts that are not alike."""
    each = [len([*group]) * self.per_process for _, group in itertools.groupby(self.hosts)]
    if len(each) == 1 or len({*each}) > 1:
      return None
    levels = replace(CPU_MEMORY, size=each[0]), replace(ETHERNET, size=len(each))
    return Cluster(f"{len(each)} hosts", CPU_CHIP, levels)

  # ---- names

  def backend(self, kind: type[Any]) -> type[Any]:
    return SharedCPU if kind.capabilities.processor else kind

  def open(self, kind: type[Any], name: str) -> Any:
    if kind.capabilities.processor or not kind.capabilities.ordinary:
      return kind(name)
    rank = self.owner(name)
    if kind not in self.opened:
      self.opened[kind] = Opened(self, kind, name.partition(":")[0])
    return self.opened[kind].device(name, rank)

  def place(self, device: str, there: int) -> int:
    before = self.machines[: self.index].count(self.machines[self.index])  # processes of this machine
    return (before * self.per_process + number_of(device) % self.per_process) % there

  def names(self, kind: str, rank: int | None = None) -> tuple[str, ...]:
    if not Device.capabilities(kind).ordinary:
      rule = f"devices of kind {kind} are not spread over processes: each has its own"
      refuse(rule, "Device.count('CPU'), Device.local('CPU')", error=DeviceError)
    n = self.per_process
    first, last = (0, n * self.count) if rank is None else (rank * n, (rank + 1) * n)
    return tuple(Device.canonicalize(f"{kind}:{i}") for i in range(first, last))

  @functools.cache  # noqa: B019 (one instance for the process)
  def owner(self, device: str) -> int | None:
    kind = device.partition(":")[0]
    if not Device.capabilities(kind).ordinary:
      return None
    n, number = self.per_process, number_of(device)
    rank = number // n
    if rank >= self.count:
      have = f"{self.count} processes with {n} device{'s' * (n > 1)} each"
      rule = f"there is no {device}: {have} have {kind}:0 to {kind}:{n * self.count - 1}"
      fix = f"more processes, or distributed.initialize(devices={-(-(number + 1) // self.count)})"
      refuse(rule, fix, error=DeviceError)
    return rank

  def here(self, device: str) -> bool:
    return self.owner(device) in (None, self.index)

  @functools.cache  # noqa: B019 (one instance for the process)
  def owners(self, devices: tuple[str, ...]) -> tuple[int | None, ...]:
    return tuple(map(self.owner, devices))

  def counter(self, rank: int) -> int:
    """The address of the next counter in a process's arena; 0 on another host."""
    number = self.counters[rank] = self.counters.get(rank, -1) + 1
    arena = self.arenas[rank]
    return 0 if arena is None else arena.counter(number)

  # ---- processes that are forked

  def check_process(self) -> None:
    """Raises: DistributedError in a process that was forked from one of these: what it has of their memory is that
    itself, and where they meet it would be taken for its parent."""
    if self.forked:
      rule = f"this process was forked from process {self.index} of {self.count}, whose devices are not its own"
      fix = "compute with numpy in it; or multiprocessing.set_start_method('spawn'): that has devices of its own"
      refuse(rule, fix, error=DistributedError)

  def part(self, hooks: tuple[Any, Any]) -> None:
    """In a process that is forked, before anything else: it says nothing in its parent's name, at its end either."""
    self.forked = True
    sys.excepthook, threading.excepthook = hooks
    atexit.unregister(self.end)
    gc.enable()

  # ---- meeting

  def exchange(self, what: str, memory: Sequence[Buffer] = (), changed: bool = True) -> list[int]:
    parts, mine, sizes = list[tuple[int, int, Any]](), list[int](), [0] * self.count
    if changed:
      parts = [*self._parts(memory, mapped=True)]
      mine = [handle.address - self.arena.base for _, rank, handle in parts if rank == self.index]
      for _, rank, _ in parts:
        sizes[rank] += 1
    inline = not changed or max(sizes) <= WORDS - HEAD
    rows, every, some = self.meet(what, changed, mine if inline else ())
    if not some & CHANGED or not memory:
      return []
    if not every & CHANGED:  # what one process has anew, the others did not come with
      return self.exchange(what, memory)
    return self._learn(parts, [row[HEAD:] for row in rows] if inline else self._all(mine, sizes, what))

  def meet(self, what: str, changed: bool, offsets: Sequence[int] = ()) -> tuple[Sequence[Any], int, int]:
    """Everybody's message: fingerprint, flags, offsets; and the flags of all and of any."""
    mark = fingerprint(what)
    flags = changed * CHANGED + (gc.get_count()[0] > gc.get_threshold()[0]) * GARBAGE
    rows = self.gather([*mark, flags, *offsets], what)
    every, some = CHANGED | GARBAGE, 0
    for row in rows:
      if (row[0], row[1]) != mark:
        self.diverged(what)
      every, some = every & row[2], some | row[2]
    if some & GARBAGE:
      self.collect()
    return rows, every, some

  def collect(self) -> None:
    """Collects garbage when one process has much: at the same places in every process, for what a garbage Tensor still
    has to write is performed with what else is realized, and would be in some processes only."""
    self.collected += 1
    gc.collect(2 if self.collected % ALL == 0 else 1)

  def learn(self, what: str, memory: Sequence[Buffer], changed: bool = True) -> list[int]:
    for b in memory:
      if self.in_several(b.devices):
        return self.exchange(what, memory, changed)
    owners = {rank for b in memory for rank in self.owners(b.devices)} - {None}
    return self.exchange(what, memory, changed) if len(owners) > 1 else []

  @functools.cache  # noqa: B019 (one instance for the process)
  def in_several(self, devices: tuple[str, ...]) -> bool:
    """Whether they are not all of one process."""
    return len({*self.owners(devices)} - {None}) > 1

  def _parts(self, memory: Sequence[Buffer], mapped: bool = False) -> Iterator[tuple[int, int, Any]]:
    """(number of the buffer, whose, the handle) of each part that is somebody's; those that lie in arenas."""
    for k, b in enumerate(memory):
      for i, rank in enumerate(self.owners(b.devices)):
        if rank is not None and (not mapped or Device.capabilities(b.devices[i]).processor):
          yield k, rank, b.handle(i)

  def _all(self, mine: Sequence[int], sizes: Sequence[int], what: str) -> list[list[int]]:
    """Everybody's offsets, where one message is too short for them."""
    own = numpy.zeros(max(sizes), numpy.uint64)
    own[: len(mine)] = mine
    return self._gathered(own, what)

  def _learn(self, parts: Sequence[tuple[int, int, Any]], offsets: Sequence[Sequence[int]]) -> list[int]:
    moved: dict[int, None] = {}
    told = [iter(of_one) for of_one in offsets]
    for k, rank, handle in parts:
      offset = next(told[rank])
      if rank != self.index and self.bases[rank] and handle.address != (address := self.bases[rank] + offset):
        handle.address, moved[k] = address, None
    return list(moved)

  def gather(self, message: Sequence[int], what: str) -> Sequence[Any]:
    """The messages of all processes, of at most WORDS words."""
    self.check_process()
    if self.clash or not self.meeting.acquire(blocking=False):
      self.clash = self.clash or f"two threads of process {self.index} meet the other processes at once, in any order"
      raise DistributedError(f"{self.clash}{self.waits(what)}\n  fix: compute and read in one thread of each process")
    try:
      return self._gather(message, what)
    finally:
      self.meeting.release()

  def _gather(self, message: Sequence[int], what: str) -> Sequence[Any]:
    frame = user_frame()
    if frame is not None and self.line != (line := (frame.f_code, frame.f_lineno)):
      self.line = line
      self.own.write(LINE_AT, user_line())  # where it was last, should it come no further
    if self.boxes is None:
      own = numpy.zeros(WORDS, numpy.uint64)
      own[: len(message)] = message
      return self._gathered(own, what)
    self.boxes.put(message)
    if not self.boxes.come():
      self.wait(self.boxes.come, what)
    return self.boxes.messages()

  def _gathered(self, own: Any, what: str) -> list[list[int]]:
    """The same by MPI."""
    out = numpy.empty((self.count, own.size), numpy.uint64)
    self.wait(self.comm.Iallgather([own, self.mpi.BYTE], [out, self.mpi.BYTE]).Test, what)
    rows: list[list[int]] = out.tolist()
    return rows

  def wait(self, done: Callable[[], bool], what: str) -> None:
    """Until it is done. Looks at the other processes meanwhile. Raises: LostProcessError."""
    looks, looked = 0, time.monotonic()
    try:
      while not done():
        looks += 1
        if looks < PATIENT:
          os.sched_yield()
          continue
        time.sleep(min(looks - PATIENT, 100) * 1e-5)
        if (now := time.monotonic()) - looked > LOOK:
          looked = now
          self.check(what)
    except self.mpi.Exception as e:  # a connection that is lost; who is behind it may be known soon
      while time.monotonic() - looked < SILENCE + LOOK:
        self.check(what)
        time.sleep(LOOK)
      raise LostProcessError(f"MPI reaches another process no more: {e}{self.waits(what)}") from e

  def check(self, what: str) -> None:
    """Raises: LostProcessError if another process is gone."""
    if faults := self.watch.faults():
      raise LostProcessError(f"{faults[0]}{self.waits(what)}")

  def waits(self, what: str) -> str:
    return f"\n    process {self.index} waits for it: {what[:SHOWN]}\n    in {user_line()}"

  def so_anywhere(self, so: bool) -> bool:
    _, _, some = self.meet("whether something is so anywhere", so)
    return bool(some & CHANGED)

  def of_first(self, what: str, f: Callable[[], str]) -> str:
    self.exchange(what)
    page = numpy.zeros(SAID, numpy.uint8)
    if self.index == 0:
      said = f().encode()
      page[: len(said)] = memoryview(said)
    self.wait(self.comm.Ibcast([page, self.mpi.BYTE], 0).Test, what)
    return bytes(page).rstrip(b"\0").decode()

  def lost(self, rank: int) -> bool:
    return any(s.rank == rank and (s.state == ENDED or s.fault() is not None) for s in self.others)

  def diverged(self, what: str) -> None:
    """Raises what each process does where they differ; all of them come here."""
    found = self.comm.allgather((what, user_line(), settings_from("graph").values))
    shown = differing([text for text, *_ in found])
    rows = "".join(f"\n    process {r} in {line}: {text}" for r, (text, (_, line, _)) in enumerate(zip(shown, found)))
    every = [{*values} for *_, values in found]
    for r, values in enumerate(every):
      if other := sorted(values - set.intersection(*every)):
        rows += f"\n    process {r} has {', '.join(other)[:SHOWN]}"
    if len({MARK.sub("", text) for text, *_ in found}) == 1:
      rows += "\n    these are the same kernels, but for numbers in them"
    raise DivergedError(f"the processes do not do the same:{rows}\n  fix: {SAME}")

  def compare_data(self, shape: Sequence[int], ins: Blocks, outs: Sequence[tuple[Box, Buffer, int]]) -> None:
    """Raises: DivergedError where the processes do not have the same for what several of them get of host data."""
    owners: dict[Box, set[int | None]] = {}
    for box, b, i in outs:
      owners.setdefault(box, set()).add(self.owner(b.devices[i]))
    common = [box for box, of in owners.items() if len(of) > 1]
    if not common or any(b.devices[i] != HOST_DEVICE for b, i in ins.values()):
      return
    self.unchecked -= 1
    own = numpy.zeros(len(common), numpy.uint64)
    for k, box in enumerate(common):
      for there, (b, i) in ins.items() if self.index in owners[box] else ():
        if (both := meet(there, box)) is not None:
          part = addressed(b, i)[tuple(slice(lo - at, hi - at) for (lo, hi), (at, _) in zip(both, there))]
          own[k] = zlib.crc32(numpy.ascontiguousarray(part), int(own[k]))
    what = f"{[*shape]} {outs[0][1].dtype.name}"
    inline = len(common) <= WORDS - HEAD
    rows, *_ = self.meet(f"data of {what}", False, own.tolist() if inline else ())
    told = [row[HEAD:] for row in rows] if inline else self._gathered(own, what)
    if any(len({told[rank][k] for rank in owners[box] if rank is not None}) > 1 for k, box in enumerate(common)):
      lines = "".join(f"\n    process {r} in {line}" for r, line in enumerate(self.comm.allgather(user_line())))
      fix = "the same seed and the same files in each; Tensor.from_process_local for what one process has"
      raise DivergedError(f"the processes have other values for devices of all: {what}{lines}\n  fix: {fix}")

  # ---- copies

  def carry(
    self,
    shape: Sequence[int],
    ins: Blocks,
    outs: Sequence[tuple[Box, Buffer, int]],
    fill: Callable[..., None],
  ) -> None:
    mine = [(box, b, d) for box, b, d in outs if self.here(b.devices[d])]
    if self.unchecked > 0:
      self.compare_data(shape, ins, outs)
    if not any(self._crosses(ins, out) for out in outs):
      fill(shape, {box: (b, i) for box, (b, i) in ins.items() if self.here(b.devices[i])}, mine)
      return
    what = f"copy of {[*shape]}"
    ends = {b.devices[i] for b, i in ins.values()} | {b.devices[d] for _, b, d in outs}
    if all(self.wire(a, b).on_devices for a in ends for b in ends):
      fill(shape, self._brought(shape, ins, outs, what), mine)
      return
    for b, i in ins.values():
      if self.here(name := b.devices[i]):
        Device[name].synchronize()
    self.exchange(what, [*{id(b): b for b, _ in ins.values()}.values()])
    fill(shape, self._brought(shape, ins, outs, what), mine)
    self.exchange(f"end of a {what}")  # then what was read may be written again

  def _brought(self, shape: Sequence[int], ins: Blocks, outs: Sequence[tuple[Box, Buffer, int]], what: str) -> Blocks:
    """The blocks that this process reads where they are, and what it needs of others. Only what is needed travels,
    once for each process; the receivers, and the order of messages, are known to all."""
    near = {box: (b, i) for box, (b, i) in ins.items() if self.reads(self.index, b.devices[i])}
    wanted: dict[tuple[int, Box, Box], str] = {}
    for there, target, d in outs:
      owner = self.owner(name := target.devices[d])
      for rank in range(self.count) if owner is None else (owner,):
        for box, (b, i) in ins.items():
          if not self.reads(rank, b.devices[i]) and (both := meet(box, there)) is not None:
            wanted.setdefault((rank, box, both), name)
    messages = Mail()
    for (rank, box, both), name in wanted.items():
      b, i = ins[box]
      source, sizes = self.owner(b.devices[i]) or 0, tuple(hi - lo for lo, hi in both)
      wire, memory = self.wire(b.devices[i], name), None
      if source == self.index:
        memory = piece_of(b, i, shape, box, both, wire.on_devices)
      elif rank == self.index:
        room = room_for(sizes, b.dtype, name if wire.on_devices else None)
        memory = room, 0, 0
        near.setdefault(both, (room, 0))
      messages.add(wire, Message(b.devices[i], name, (source, rank), memory, prod(sizes) * b.dtype.itemsize))
    messages.pass_on(what)
    return near

  def reads(self, rank: int, device: str) -> bool:
    """Whether a process can read a device's memory where it is."""
    source = self.owner(device)
    if source is None or source == rank:
      return True
    return Device.capabilities(device).processor and self.hosts[source] == self.hosts[rank]

  def wire(self, source: str, target: str) -> Wire:
    """What carries bytes from device to device."""
    kinds = {name.partition(":")[0] for name in (source, target)}
    return self.wires.get(kinds.pop(), self.mpi_wire) if len(kinds) == 1 else self.mpi_wire

  def bring(self, parts: Sequence[PeerPart]) -> None:
    what = f"parts of {len(parts)} devices of other hosts"
    each = self.ends(parts)
    if own := [p for p, (a, b) in each if a == b == self.index]:  # that do not reach each other
      bring_here(own)
    messages, staged = Mail(), []
    for p, between in [(p, (a, b)) for p, (a, b) in each if a != b]:
      wire = self.wire(p.source.devices[p.number], p.target.devices[0])
      if wire.on_devices and (runs := runs_of(p.elements)) is not None:
        for message in messages_of(p, runs, between, self.index):
          messages.add(wire, message)
      else:
        staged.append((p, between))
    shared = any(self.read_by_others(p.target.devices[0]) for p, _ in staged)
    if staged:
      wait_for(parts)
    if shared:
      self.exchange(what)  # nobody reads what was brought before
    rooms = staged_messages(staged, self.index, self.mpi_wire, messages)
    messages.pass_on(what)
    for p, array in rooms:
      p.write(array)
    if shared:
      self.exchange(f"end of {what}")

  def ends(self, parts: Sequence[PeerPart]) -> list[tuple[PeerPart, tuple[int, int]]]:
    """The processes of both ends of each part."""
    return [(p, (self.owner(p.source.devices[p.number]) or 0, self.owner(p.target.devices[0]) or 0)) for p in parts]

  def delivery(self) -> Delivery:
    assert self.courier is not None
    return Delivery(self.courier)

  @functools.cache  # noqa: B019 (one instance for the process)
  def read_by_others(self, device: str) -> bool:
    """Whether devices of other processes may read a device's memory where it is: those of its host, which map it."""
    rank = self.owner(device)
    return rank is not None and any(self.reads(r, device) for r in range(self.count) if r != rank)

  @contextlib.contextmanager
  def at_rest(self, buffers: Sequence[Buffer]) -> Iterator[None]:
    for name in {d: 0 for b in buffers for d in b.devices if self.here(d)}:
      Device[name].synchronize()
    what = f"reading {[*buffers]}"
    self.exchange(what, buffers)
    visitors, messages = [], Mail()  # memory of others, whose bytes are here for a while
    for b in buffers:
      for i, source in enumerate(self.owners(b.devices)):
        for target in (r for r in range(self.count) if not self.reads(r, b.devices[i])):
          array = None
          if source == self.index:
            array = host_array(b, i).reshape(-1).view(numpy.uint8)
          elif target == self.index:
            array = numpy.empty(b.nbytes_per_device, numpy.uint8)
            visitors.append((b.handle(i), array))
          memory = None if array is None else (in_host(array, dtypes.uint8), 0, 0)
          message = Message(b.devices[i], HOST_DEVICE, (source or 0, target), memory, b.nbytes_per_device)
          messages.add(self.mpi_wire, message)
    messages.pass_on(what)
    for handle, array in visitors:
      handle.address = array.ctypes.data
    yield
    for handle, _ in visitors:
      handle.address = 0
    self.exchange(f"end of {what}")

  def _crosses(self, ins: Blocks, out: tuple[Box, Buffer, int]) -> bool:
    """Whether a block has parts of another process's memory."""
    box, target, d = out
    owner = self.owner(target.devices[d])
    sources = (self.owner(b.devices[i]) for there, (b, i) in ins.items() if meet(there, box) is not None)
    return any(source is not None and source != owner for source in sources)

  # ---- the end

  def watch_errors(self) -> None:
    """An error that ends this process is told to the others, and one by which a thread has lost them; a script that
    ends waits for the others' ends."""
    before, in_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
      before(kind, error, trace)
      said, last = str(error).splitlines() or [""], traceback.extract_tb(trace)
      frames = [f for f in last if not f.filename.startswith((PACKAGE, "<"))] or last
      self.fail(f"{kind.__name__}: {said[0]}", *(source_line(f.filename, f.lineno or 0) for f in frames[-1:]))

    def thread_hook(args: threading.ExceptHookArgs) -> None:
      if args.exc_value is not None and issubclass(args.exc_type, DistributedError):
        hook(args.exc_type, args.exc_value, args.exc_traceback)
      else:
        in_thread(args)

    sys.excepthook, threading.excepthook = hook, thread_hook
    atexit.register(self.end)
    os.register_at_fork(after_in_child=lambda: self.part((before, in_thread)))

  def fail(self, said: str, line: str = "") -> None:
    self.failed = said
    self.own.write(FAULT_AT, said)
    self.own.write(LINE_AT, line)
    self.own.say(FAILED)

  def end(self) -> None:
    if self.failed is None:
      try:
        self.exchange(THE_END)
      except DistributedError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        self.fail(f"{type(e).__name__}: {str(e).splitlines()[0]}")
    if self.failed is None:
      if self.courier is not None:
        self.courier.end()
      for wire in self.wires.values():
        wire.close()
      self.own.say(ENDED)
      self.watch.over.set()
      self.watch.join()  # it may be about to call MPI
      return
    sys.stdout.flush()
    sys.stderr.flush()
    last = time.monotonic() + FAREWELL
    if self.watch.beats is not None:
      self.watch.beats.say_last(self.watch.said)
    while time.monotonic() < last and any(s.state == RUNNING and s.fault() is None for s in self.others):
      time.sleep(0.05)
    time.sleep(LOOK)  # what they say is still on its way
    os._exit(1)
