"""What backends with a driver's queue for each device share: freed memory kept for reuse, and lists of calls in which
devices wait for one another."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinygrad.device import Backend, Capabilities, Device, DeviceError, Launch, PeerCopy, Rendered, opened
from tinygrad.helpers import LazyModule, numpy, source_line, uninterrupted, user_frame

if TYPE_CHECKING:
  from tinygrad.renderer import cstyle
else:
  cstyle = LazyModule("tinygrad.renderer.cstyle")

BROKEN = "fix: update the driver, or run on the CPU: DEV=CPU, GPU=CPU in the environment"
SPAWN = "fix: multiprocessing.set_start_method('spawn'), or use the device in the new process only"
LESS = "fix: smaller batches, or free what is no longer needed"
PROBED = 8  # threads of the kernel that shows whether a driver works
REMEMBERED = 64  # hand-overs since the last wait, of which a fault tells


@dataclass(slots=True, eq=False)
class Barrier:
  """A point at which devices wait for one another; it stands in the list of each."""

  devices: Sequence[QueueDevice]


@dataclass(slots=True, eq=False)
class GridKernel:
  """One kernel for a grid: built on each physical device that binds it."""

  name: str
  source: str
  launch: Launch
  built: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Call:
  """A kernel with its arguments in place. What a table of peers has in `memory` is (table, what it leads to)."""

  device: Any
  program: Any
  built: Any
  memory: list[Any]  # by slot
  words: Any  # the arguments: buffers, then variables in the order of their names

  def set_buffer(self, slot: int, memory: Any) -> None:
    word = self.device.table(self, slot, memory) if isinstance(memory, list) else memory
    self.memory[slot] = (word, memory) if isinstance(memory, list) else memory
    self.set_word(slot, word)

  def set_variable(self, number: int, value: int) -> None:
    self.set_word(len(self.memory) + number, value)

  def set_word(self, i: int, value: Any) -> None:
    self.words[i] = value


def errors_of(log: object) -> str:
  """The first errors that a compiler tells, else the first that it says."""
  said = [line.strip() for line in str(log).splitlines() if line.strip()]
  return "\n    ".join(([line for line in said if "error:" in line] or said)[:5])


class Batch(list[Any]):
  """One device's calls, and how often they have been queued: what is repeated may be prepared."""

  times = 0
  graph: Any = None
  inputs: Sequence[object] = ()  # whose memory is lent
  whole = False

  @functools.cached_property
  def names(self) -> tuple[str, ...]:
    """Of its kernels, each once."""
    return tuple(dict.fromkeys(c.program.name for c in self if not isinstance(c, Barrier)))


class QueueDevice(Backend):
  """One device with an in-order queue. A backend adds `new_memory`, `build` (a program for this device), `enqueue` (a
  call), `meet` (a barrier, on all of its devices' queues), `flush` where the driver would else keep work back, and
  `wait`; and a `new_call` (arguments are filled in by `bind`) where calls are more than lists of arguments."""

  capabilities = Capabilities()
  dialect: Any  # a `Dialect`: what `build` compiles
  kept = 1 << 30  # bytes of freed memory that wait for reuse, at most
  pointer = "address"  # the attribute of memory which kernels take
  number = 0  # of the physical device
  available = 1  # devices that there are, virtual ones counted
  forks = False  # whether its devices go on in a process that is forked
  inherited = False  # of a kind: opened in the process from which this one was forked
  new_memory: Callable[..., Any]
  build: Callable[..., Any]
  enqueue: Callable[..., None]
  meet: Callable[..., None]
  wait: Callable[..., None]
  copy_from: Callable[..., None]  # of a PeerCopy to this device, if its kind has `Capabilities.copies`

  def __init__(self, name: str) -> None:
    super().__init__(name)
    self.check_process()
    _kinds.add(type(self))
    self.pool: dict[int, list[Any]] = {}
    self.pooled = 0
    self.queued: deque[tuple[Any, tuple[str, ...]]] = deque(maxlen=REMEMBERED)  # since the last wait, and by which line
    self.leaving: list[Any] = []  # freed beyond what is kept: let go of when the queue has been waited for

  def check_process(self) -> None:
    """Raises: DeviceError in a process that was forked after a device of this kind was opened, for a driver works in
    the process that has started it, and in no copy of that."""
    if self.inherited:
      raise DeviceError(f"{self.name}: {self.kind} was opened before this process was forked from another\n  {SPAWN}")

  @property
  def lost(self) -> bool:
    return self.inherited

  def choose(self, found: Sequence[Any], kind: str, fix: str, several: int = 1) -> Any:
    """The physical device of which this is one; `several` are made of each."""
    number = Device.place(self.name, len(found) * several)
    if number >= len(found) * several:
      raise DeviceError(f"{self.name}: there are {len(found)} {kind} here\n  fix: {fix}")
    self.number, self.available = number // several, len(found) * several
    return found[self.number]

  def count(self) -> int:
    return self.available

  def flush(self) -> None:
    """Nothing is kept back."""

  def table(self, call: Call, slot: int, memory: Sequence[Any]) -> Any:
    """Memory with the addresses of every device's buffer, which lives as long as `call`: made once for a slot."""
    if call.memory[slot] is not None:
      table, _ = call.memory[slot]
    else:
      table = self.alloc(8 * len(memory))
      weakref.finalize(call, self.free, table, 8 * len(memory))
    self.copyin(table, memoryview(numpy.array([getattr(m, self.pointer) for m in memory], numpy.uint64)))
    return table

  # ---- memory

  def copyin(self, handle: Any, data: memoryview, offset: int = 0) -> None:
    self.synchronize()  # reused memory may still be read
    if data.nbytes:
      self.addressed(handle)[offset : offset + data.nbytes] = data.cast("B")

  def copyout(self, data: memoryview, handle: Any, offset: int = 0) -> None:
    self.synchronize()
    if data.nbytes:
      data.cast("B")[:] = self.addressed(handle)[offset : offset + data.nbytes]

  @staticmethod
  def copy_all(copies: Sequence[PeerCopy]) -> None:
    """The devices meet, copy (`copy_from`) and meet again, and the host waits for none of it."""
    devices = [*dict.fromkeys(d for c in copies for d in (c.source, c.target))]
    with uninterrupted(), _submitting:
      devices[0].meet(devices)
      for c in copies:
        c.target.copy_from(c)
      devices[0].meet(devices)
      for d in devices:
        d.flush()

  def addressed(self, handle: Any) -> memoryview:
    """The memory itself: a backend whose memory the host cannot address has copies of its own."""
    view = self.view(handle)
    assert view is not None, self.name
    return view

  def size_of(self, nbytes: int) -> int:
    """Of the memory for so many bytes, by which what was freed is found again."""
    return nbytes

  def alloc(self, nbytes: int) -> Any:
    self.check_process()
    size = self.size_of(nbytes)
    try:
      handle = self.pool[size].pop()
    except (KeyError, IndexError):
      try:
        return self.new_memory(size)
      except MemoryError:
        for device in opened.values():  # several may share one memory
          if isinstance(device, type(self)):
            device.synchronize()
            device.pool.clear()
            device.pooled = 0
        return self.new_memory(size)
    self.pooled -= size
    return handle

  def free(self, handle: Any, nbytes: int) -> None:
    """Kept for the next allocation of this size, whose use comes after what is queued now. Never waits: finalizers call
    it."""
    size = self.size_of(nbytes)
    if self.pooled + size <= self.kept:
      self.pooled += size
      self.pool.setdefault(size, []).append(handle)
    else:
      self.let_go(handle)

  def let_go(self, handle: Any) -> None:
    """Drops memory that what is queued may still use."""
    self.leaving.append(handle)

  # ---- kernels

  def check(self) -> None:
    """Compiles a small kernel, runs it and looks at what it wrote: once for each physical device.

    Raises: DeviceError where any of this fails, whatever the driver raises.
    """
    if (type(self), self.number) in _checked:
      return
    given, got = numpy.arange(PROBED, dtype=numpy.float32), numpy.zeros(PROBED, numpy.float32)
    try:
      program = self.compile(self.render(cstyle.probe(PROBED), "probe"), "probe")
      memory = [self.alloc(given.nbytes) for _ in range(2)]
      for handle, values in zip(memory, (got, given)):
        self.copyin(handle, memoryview(values.view(numpy.uint8)))
      self.submit_all([self], [self.batch([self.bind(program, memory)])])
      self.copyout(memoryview(got.view(numpy.uint8)), memory[0])
      for handle in memory:
        self.free(handle, given.nbytes)
    except Exception as e:  # a broken driver raises anything
      said = str(e) if isinstance(e, DeviceError) else f"{type(e).__name__}: {e}"
      fix = "" if "\n  fix: " in said else f"\n  {BROKEN}"
      raise DeviceError(f"{self.name}: the first kernel failed: {said}{fix}") from e
    if (got != given / 2 + 3).any():
      wrong = f"{got.tolist()} instead of {(given / 2 + 3).tolist()}"
      raise DeviceError(f"{self.name}: the first kernel computed {wrong}\n  {BROKEN}")
    _checked.add((type(self), self.number))

  def render(self, linear: list[Any], name: str) -> Rendered:
    return cstyle.render(linear, name, self.dialect)

  def compile(self, rendered: Rendered, name: str) -> Any:
    program = GridKernel(name, rendered.source, rendered.launch)
    self.built(program)
    return program

  def stored(self, program: Any) -> Any:
    """Its source: what the driver makes of it is kept by that."""
    return [program.source, program.launch]

  def restore(self, name: str, stored: Any) -> Any:
    source, launch = stored
    return GridKernel(name, str(source), Launch.read(launch))

  def built(self, program: GridKernel) -> Any:
    self.check_process()
    if self.number not in program.built:
      program.built[self.number] = self.build(program)
    return program.built[self.number]

  def new_call(self, program: Any, buffers: int, variables: int) -> Any:
    return Call(self, program, self.built(program), [None] * buffers, [None] * (buffers + variables))

  def bind(self, program: Any, args: Sequence[Any], variables: Sequence[int] = (), number: int = 0) -> Any:
    """A call of `program` on this device. `args[slot]`: the memory, or the list of all devices' memory for a `peers`
    parameter; `variables`: the values of the kernel's variables, in the order of their names. `number`: the device's
    among its peers, of which each begins with its own part (`Launch.turned`)."""
    if program.launch.turned:
      peers = next(len(memory) for memory in args if isinstance(memory, list))
      variables = (*variables, number * program.launch.turned // peers)
    call = self.new_call(program, len(args), len(variables))
    for slot, memory in enumerate(args):
      call.set_buffer(slot, memory)
    for i, value in enumerate(variables):
      call.set_variable(i, value)
    return call

  def synchronize(self) -> None:
    self.check_process()
    leaving = len(self.leaving)
    try:
      self.wait()
    finally:
      self.queued.clear()
      del self.leaving[:leaving]

  def suspects(self) -> str:
    """The kernels queued since the last wait, by the user's lines: one of them has failed."""
    out = ""
    for line, names in self.queued:
      where = "" if line is None else f" in {source_line(*line)}"
      out += f"\n    {', '.join(names[:8])}{', …' if len(names) > 8 else ''}{where}"
    return out

  def batch(self, calls: Sequence[Any], brief: bool = False) -> Any:
    return Batch(calls)

  @staticmethod
  def barrier(devices: Sequence[Any]) -> list[Any]:
    return [Barrier(devices)] * len(devices)

  @classmethod
  def submit_all(cls, devices: Sequence[Any], lists: Sequence[Batch]) -> None:
    """Queues one list on each device."""
    for d in devices:
      d.check_process()
    frame = user_frame()
    line = None if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    with uninterrupted(), _submitting:  # half a hand-over would be waited for without end
      for d, calls in zip(devices, lists):
        d.queued.append((line, calls.names))
      cls.hand_over(devices, lists)
      for d in devices:
        d.flush()

  @staticmethod
  def hand_over(devices: Sequence[Any], lists: Sequence[Batch]) -> None:
    for d, call in in_order(devices, lists):
      if isinstance(call, Barrier):
        d.meet(call.devices)
      else:
        d.enqueue(call)


def in_order(devices: Sequence[Any], lists: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
  """(device, call): each list in its order, a barrier once, when the lists of all its devices have come to it."""
  rest = {d: iter(calls) for d, calls in zip(devices, lists)}
  waiting: dict[Any, Barrier] = {}
  ready = list(devices)
  while ready:
    d = ready.pop()
    for call in rest[d]:
      if not isinstance(call, Barrier):
        yield d, call
        continue
      waiting[d] = call
      if all(waiting.get(other) is call for other in call.devices):
        yield d, call
        for other in call.devices:
          del waiting[other]
        ready += call.devices
      break


def _after_fork() -> None:
  """In the new process, before anything else."""
  for kind in _kinds:
    kind.inherited = not kind.forks


os.register_at_fork(after_in_child=_after_fork)
_kinds: set[type[QueueDevice]] = set()  # of which there are devices
_submitting = threading.Lock()
_checked: set[tuple[type, int]] = set()  # the backends' physical devices that have run a kernel and given right values
