"""`CPU:i`: kernels compiled in process through LLVM, run by threads of each device.

Work is handed over as lists of prepared calls; a list is one native call a thread (a loop over a table of function and
argument pointers). Queues, waiting and the calls are native code, so the interpreter's lock is free while they run, and
devices run side by side. Devices wait for one another inside these lists (`meet`).
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import errno
import functools
import itertools
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinygrad.device import Backend, Capabilities, DeviceError, Launch, Rendered, Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import CPU_THREADS, LazyModule, at_fork, ceildiv, round_up, uninterrupted
from tinygrad.runtime import native, queues
from tinygrad.runtime.native import MachineCode
from tinygrad.runtime.queues import QueueDevice
from tinygrad.uop import UOp

if TYPE_CHECKING:
  from tinygrad.renderer import llvm
else:
  llvm = LazyModule("tinygrad.renderer.llvm")
ALIGNMENT = 64
LINE = 8  # words that a core's cache holds together
CLOCK = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)  # of time.perf_counter


@dataclass(slots=True, eq=False)
class Memory:
  """`nbytes` bytes at `address`, given back when nothing refers to it; `owner` keeps them where they are not ours.
  `passing`: if not 0, what is in them means nothing between runs, of which one is not over while it is `held`, and it
  is the number of what they are now used for; `rests`: since when nobody has needed what is in them, or 0.
  """

  address: int
  nbytes: int
  owner: Any = None
  passing: int = 0
  held: bool = False
  rests: float = 0.0

  def empty(self, now: float) -> None:
    """Gives the pages back, if what is in them has not been needed for long: they are zeros when used again."""
    if self.rests and now - self.rests > max(REST, FETCHED * self.nbytes):
      self.rests = 0.0
      start, end = round_up(self.address, PAGE), (self.address + self.nbytes) // PAGE * PAGE
      if end > start and _EMPTY is not None:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _EMPTY)

  def __del__(self) -> None:
    if self.owner is None and _libc is not None:  # which goes first when the interpreter ends
      _libc.free(self.address)


@dataclass(slots=True, eq=False)
class Call(queues.Call):
  """A kernel with its arguments in place: `built` is its address, `words` what it is given (renderer/llvm.py), by each
  thread that shares it out; patch words to replay with others."""

  others: tuple[Any, ...] = ()  # the words of the threads after the first

  def set_word(self, i: int, value: Any) -> None:
    for words, k, _ in self.places(i, 0):
      words[k] = value if isinstance(value, int) else value.address

  def places(self, i: int, device: int) -> list[tuple[Any, int, int]]:
    i += 1  # scratch memory comes first, and the number of a piece is no argument
    i += self.program is not None and 0 < self.program.launch.word <= i
    return [(words, i, device) for words in (self.words, *self.others)]

  def cells(self, i: int, device: int) -> list[tuple[Any, int, int]]:
    """Where argument i stands that device number `device` reads, for who replaces it there: (words, index, number of
    the device whose address it is, or 0). Memory is no longer kept here."""
    if i >= len(self.memory):
      return self.places(i, 0)
    kept, self.memory[i] = self.memory[i], None
    if not isinstance(kept, tuple):
      return self.places(i, device)
    table, peers = kept
    self.memory[i] = table, ()
    return [(table.owner, k, k) for k in range(len(peers))]

  def touches(self) -> tuple[list[Memory], list[Memory]]:
    """The memory that it writes, and what it only reads."""
    memory = [(kept,) if isinstance(kept, Memory) else kept[1] for kept in self.memory]
    n = 1 if self.program is None else self.program.launch.writes
    return [m for of_one in memory[:n] for m in of_one], [m for of_one in memory[n:] for m in of_one]


class Stamp(Call):
  """A call that notes when it runs: after what is before it in its list, and before what follows."""

  @property
  def seconds(self) -> float:
    return float(self.words[0] + self.words[1] * 1e-9)


Table = list[tuple[int, int]]  # (function, address of its words)


class Batch:
  """A list of calls as one native call for each thread that takes part, which has a table of its own."""

  def __init__(self, calls: Sequence[Call], brief: bool = False) -> None:
    self.inputs: Sequence[object] = ()  # whose memory is lent
    self.whole = False  # whether it is all of a step that is replayed
    self.last = 0  # its last part, by number of those that the device has had
    self.rests = True  # whether what it keeps for values that pass may have no pages, or is about to lose them
    threads = max((c.program.launch.workers for c in calls if c.program is not None), default=1)
    self.brief = brief and threads == 1  # who submits it to an idle device runs it
    keep: list[Any] = []
    rows = deal_out(calls, threads, keep) if threads > 1 else [[(c.built, ctypes.addressof(c.words)) for c in calls]]
    tables = [(ctypes.c_uint64 * (2 * len(row) + 1))(*itertools.chain.from_iterable(row)) for row in rows]
    self.tables = [ctypes.addressof(table) for table in tables]
    self.keep = calls, tables, keep

  @functools.cached_property
  def passing(self) -> list[tuple[Memory, int]]:
    """Memory for values that pass, and the number of that use."""
    found = {id(m): m for c in self.keep[0] for m in c.memory if isinstance(m, Memory) and m.passing}
    return [(m, m.passing) for m in found.values()]


@dataclass(slots=True, eq=False)
class QueuedKernel:
  """A kernel in the tables of a batch, and who has to wait for it still."""

  pieces: int
  shared: bool
  finished: Any  # counts its pieces, over all replays
  awaited: bool = False


def shared_bytes(memory: Iterable[Memory]) -> dict[int, int]:
  """By identity, where memory begins with which it has bytes in common: arrays that look at one may each be lent."""
  found, start, end = dict[int, int](), 0, 0
  for m in sorted(memory, key=lambda m: m.address):
    start, end = m.address if m.address >= end else start, max(end, m.address + m.nbytes)
    found[id(m)] = start
  return found


def deal_out(calls: Sequence[Call], threads: int, keep: list[Any]) -> list[Table]:
  """What each thread runs: pieces of the kernels that are shared out, and the first all others. No thread waits for
  another to come, but where data flows, for what is at work: one that wakes late finds its pieces done."""
  rows: list[Table] = [[] for _ in range(threads)]
  touched = [c.touches() if c.program is not None else ([], []) for c in calls]
  place = shared_bytes(m for of_call in touched for some in of_call for m in some)
  writer: dict[int, QueuedKernel] = {}  # of memory
  readers: dict[int, list[QueuedKernel]] = {}  # since it was written
  steps: list[QueuedKernel] = []  # since devices met

  def row(thread: int, function: int, *words: int) -> None:
    keep.append(args := (ctypes.c_uint64 * len(words))(*words))
    rows[thread].append((function, ctypes.addressof(args)))

  def wait(for_these: Iterable[QueuedKernel]) -> None:
    for step in for_these:
      for thread in range(0 if step.awaited else threads):
        row(thread, _runtime().meet, ctypes.addressof(step.finished), 0, step.pieces, 0)
      step.awaited = True

  for c, of_call in zip(calls, touched):
    meets, launch = c.program is None, Launch() if c.program is None else c.program.launch
    (writes, reads), shared = ([place[id(m)] for m in some] for some in of_call), launch.workers > 1
    before = [writer[m] for m in (*writes, *reads) if m in writer] + [s for m in writes for s in readers.get(m, ())]
    wait(steps if meets else [s for s in before if shared or s.shared])
    takers = (c.words, *c.others)
    keep.append(counters := (ctypes.c_uint64 * (LINE * (len(takers) + 1)))())  # tickets of each, and what is finished
    finished = ctypes.c_uint64.from_buffer(counters, 8 * LINE * len(takers))
    step = QueuedKernel(launch.pieces, shared, finished)
    each = ceildiv(step.pieces, len(takers)), len(takers)
    for thread, words in enumerate(takers):
      told = ctypes.addressof(words) + 8 * launch.word if shared else ctypes.addressof(finished) + 8
      what = c.built, ctypes.addressof(words), told, step.pieces
      row(thread, _runtime().share, ctypes.addressof(finished), ctypes.addressof(counters), 0, *each, thread, *what)
    steps.append(step)
    if meets:
      wait(steps)
      steps.clear()
    for m in writes:
      writer[m], readers[m] = step, []
    for m in reads:
      readers.setdefault(m, []).append(step)
  return rows


# ---------------------------------------------------------------- the runtime

# The native code, and what keeps it in memory.
# run(table) calls f(words) for each pair (f, words) of a table, up to a null. Two functions stand in tables:
# meet({counter, enough, each, mine}) adds `mine` to the counter and returns when it has grown by `each` since the last
# replay. It yields the core, for there may be more threads than cores.
# share({finished, tickets, first, pieces, threads, mine, f, words, told, all}) calls f(words) for pieces of a kernel
# that nobody else has taken: its own first, for they may be in this core's cache, then those of the other threads. Each
# thread takes a ticket too many of every queue, so the first one of the next replay is known; as each queue has tickets
# for as many pieces, the last of `all` may have some too many.
# push(queue, table, gate) adds a part, a table for one thread, which may be taken when `gate` parts are done. A taken
# part's place may be another's before it is done, for others behind it may be: its table is read before it is taken.
# wait(queue, parts, time) returns when so many are done, or when it is late. Whoever waits takes parts: the device's
# threads, which wait for ever, and the caller, so that short work need not wait for a thread to wake. Waiting is a
# little yielding, then sleep. `look` tells them what there is: 2 if all is done, 1 if there is a part to be taken.
# arrive({own, number, count, looks, counters...}) writes the number to this process's counter, and looks so many times
# at each of the others': it returns how many have come as far, `count` of them if all have.
Runtime = collections.namedtuple("Runtime", "run push wait meet share stamp arrive memory")


@functools.cache
def _loading() -> Any:
  """The Future of the functions, each with what keeps it in memory: what is not on disk is compiled while the caller
  still makes its inputs."""
  source = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
  for name, number in (("ETIMEDOUT", errno.ETIMEDOUT), ("CLOCK", CLOCK)):
    source = source.replace(name, str(number))
  names = [f"tg_{name}" for name in Runtime._fields[:-1]]
  found = [there[0] for name in names if (there := native.kept(native.object_key(source), name)) is not None]
  if len(found) == len(names):
    return native.Loaded(found)

  def load() -> list[tuple[int, Any]]:
    code = native.compile_object(source, "runtime")
    return [native.loaded(code, name) for name in names]

  return native.behind(load)


@functools.cache
def _runtime() -> Runtime:
  programs = _loading().result()
  run, push, wait, meet, share, stamp, arrive = [address for address, _ in programs]
  one, three = (ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * n) for n in (1, 3))
  come = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
  return Runtime(one(run), three(push), three(wait), meet, share, stamp, come(arrive), programs)


def arrive(words: int) -> int:
  """Of the runtime, for processes that meet: the address of its words, and how many others have come."""
  return int(_runtime().arrive(words))


@functools.cache
def host_target() -> Target:
  """What codegen has to know of this processor."""
  features = native.processor()[2]
  kinds = {"avx512f": (64, 32), "avx": (32, 16), "neon": (16, 32)}
  width, registers = next((size for name, size in kinds.items() if features.get(name)), (16, 16))
  names = tuple(sorted(k for k, v in features.items() if v))
  converts = (dtypes.float16,) if features.get("f16c") or features.get("neon") else ()
  vendor = "AMD" if features.get("sse4a") else ""  # which nobody else has taken up
  return Target("CPU", width, registers, 64 << 20, shares=True, features=names, converts=converts, vendor=vendor)


# ---------------------------------------------------------------- memory

_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t,) * 2
_libc.free.argtypes = (ctypes.c_void_p,)
_now = ctypes.PyDLL(None) if hasattr(os, "sched_setaffinity") else None  # for what is over before another could run
_HUGE_PAGE = 1 << 21
_HUGE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_SMALL: int | None = getattr(mmap, "MADV_NOHUGEPAGE", None)
PAGE = mmap.PAGESIZE
_EMPTY: int | None = getattr(mmap, "MADV_DONTNEED", None)
# seconds for which nobody has needed what is in memory before its pages are given back: at least, and for each byte
# twenty times of what the system takes to find a page for it again
REST, FETCHED = 0.1, 5e-9


def _allocate(nbytes: int) -> int:
  large = _HUGE is not None and nbytes >= 2 * _HUGE_PAGE  # the processor finds its way faster through large pages
  unit = _HUGE_PAGE if large else ALIGNMENT
  size = round_up(max(nbytes, 1), unit)
  address: int | None = None if size >> 63 else _libc.aligned_alloc(unit, size)  # C's sizes would wrap
  if address is None:
    raise MemoryError(f"CPU: no memory for a buffer of {nbytes} bytes\n  {queues.LESS}")
  if large:
    _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _HUGE)
  return address


# ---------------------------------------------------------------- the device

QUEUED = 256  # parts of work that a queue holds
FOREVER = 1 << 54  # more parts than there will ever be
Time = ctypes.c_long * 2  # seconds and nanoseconds
_NEVER = Time(1 << 40, 0)
# words: 0 parts done, 8 queued, 16 taken, 24 a mutex, 32 a condition, 40 the parts, each with its gate
_QUEUE_WORDS = 40 + 2 * QUEUED


_submitting = threading.Lock()


class CPU(QueueDevice):
  """One device: a queue and the threads that empty it."""

  capabilities = Capabilities(processor=True, wraps=True, cells=True, stamps=True)
  forks = True

  def __init__(self, name: str) -> None:
    super().__init__(name)
    self.target = host_target()
    if CPU_THREADS.value == 1:  # who asks for one waits for a millisecond rather than for another
      self.worth_waking = QueueDevice.worth_waking << 4
    _loading()
    self.arenas: list[Memory] = []  # scratch memory, by thread
    # that were replayed, and whose memory has its pages still
    self.steps: weakref.WeakSet[Batch] = weakref.WeakSet()
    self.look = 0.0  # the second at which to look for memory that rests
    self._start_over()
    _live.append(self)

  def _start_over(self) -> None:
    """No threads, nothing queued: at first, and in a child process, where threads do not live on."""
    self.queue = _allocate(8 * _QUEUE_WORDS)  # its address; never freed, for threads look at it until the process ends
    ctypes.memset(self.queue, 0, 8 * _QUEUE_WORDS)
    _libc.pthread_mutex_init(ctypes.c_void_p(self.queue + 8 * 24), None)
    _libc.pthread_cond_init(ctypes.c_void_p(self.queue + 8 * 32), None)
    self.done = ctypes.c_uint64.from_address(self.queue)
    self.submitted = 0  # parts
    self.started = 0  # threads
    self.threads: list[threading.Thread] = []
    self.core: int | None = None  # which they leave to the caller; -1: none
    self.pending: collections.deque[tuple[int, Batch | Memory]] = collections.deque()  # kept until n parts are done
    self.lock = threading.RLock()

  # ---- memory

  def new_memory(self, nbytes: int) -> Memory:
    return Memory(_allocate(nbytes), nbytes)

  def free(self, handle: Memory, nbytes: int) -> None:
    if handle.owner is None:
      handle.passing, handle.held, handle.rests = 0, False, time.perf_counter()
      super().free(handle, nbytes)

  def alloc(self, nbytes: int) -> Memory:
    handle: Memory = super().alloc(nbytes)
    handle.rests = 0.0
    return handle

  def passing(self, handle: Memory) -> None:
    if type(handle) is Memory:  # of this process alone
      handle.passing = next(_uses)

  def _rest(self, batch: Batch) -> None:
    """Before a step is replayed: the pages of memory that has rested are given back. That is what other steps keep for
    values that pass, and, where nothing is at work, what was freed and scratch memory."""
    now, done = time.perf_counter(), self.done.value
    self.steps.add(batch)
    batch.rests = False
    for m, _ in batch.passing:
      m.rests, m.held = 0.0, False
    if now < self.look:
      return
    self.look = now + REST
    if done == self.submitted:
      for of_size in (*self.pool.values(), self.arenas):
        for _ in range(len(of_size)):
          with contextlib.suppress(IndexError):  # somebody else has taken the last
            memory = of_size.pop(0)
            memory.empty(now)
            of_size.append(memory)
    for memory in self.arenas:
      memory.rests = memory.rests or now
    for step in [s for s in self.steps if s is not batch and s.last <= done]:
      kept, step.rests = [m for m, use in step.passing if m.passing == use and not m.held], True
      for m in kept:
        m.rests = m.rests or now
        m.empty(now)
      if not any(m.rests for m in kept):
        self.steps.discard(step)

  def let_go(self, handle: Memory) -> None:
    with self.lock:
      self.pending.append((self.submitted, handle))
      self._forget()

  def wrap(self, array: Any) -> Memory | None:
    """The memory of a C-contiguous writable numpy array as a buffer, without a copy; None where its alignment does not
    allow it."""
    return Memory(array.ctypes.data, array.nbytes, array) if array.flags.carray else None

  def view(self, handle: Memory) -> memoryview:
    """The memory itself, as bytes; it must not be used after the buffer is freed."""
    return memoryview((ctypes.c_char * handle.nbytes).from_address(handle.address)).cast("B")

  # ---- kernels

  def render(self, linear: list[UOp], name: str) -> Rendered:
    return llvm.render(linear, name)

  def compile(self, rendered: Rendered, name: str) -> MachineCode:
    return native.compile_kernel(rendered, name)

  def compile_source(self, source: str, name: str, pointers: int, dims: Sequence[int]) -> MachineCode:
    return native.compile_c(source, name, pointers, dims)

  def expect(self) -> None:
    native.behind(native.compiler)

  def settle(self, programs: Sequence[MachineCode]) -> None:
    native.settle(programs)

  def stored(self, program: MachineCode) -> Any:
    return [native.compiled_for(), program.keys, program.launch] if program.keys else None

  def restore(self, name: str, stored: Any) -> MachineCode | None:
    compiled_for, keys, launch = stored
    if compiled_for != native.compiled_for():  # another LLVM, or for another processor
      return None
    return native.restore(name, tuple(map(str, keys)), Launch.read(launch))

  def scratch(self, thread: int) -> int:
    """The address of a thread's scratch memory."""
    while len(self.arenas) <= thread:
      arena = Memory(_allocate(self.target.scratch), self.target.scratch)  # untouched pages cost nothing
      if _SMALL is not None:  # most kernels use little, and a large page would be touched for that
        _libc.madvise(ctypes.c_void_p(arena.address), ctypes.c_size_t(_HUGE_PAGE), _SMALL)
      self.arenas.append(arena)
    return self.arenas[thread].address

  def new_call(self, program: MachineCode, buffers: int, variables: int) -> Call:
    words = ctypes.c_int64 * (1 + buffers + variables + (program.launch.workers > 1))
    first, *others = [words() for _ in range(program.launch.workers)]
    for thread, mine in enumerate((first, *others)):
      mine[0] = self.scratch(thread)
    return Call(self, program, program.use(), [None] * buffers, first, tuple(others))

  def table(self, call: Any, slot: int, memory: Sequence[Memory]) -> Memory:
    # lanes of a vector that are beyond the last device look at what is behind its address, and no further
    table = (ctypes.c_uint64 * (len(memory) + self.target.vector_bytes))(*(m.address for m in memory))
    return Memory(ctypes.addressof(table), 8 * len(memory), table)

  def submit(self, calls: Sequence[Call] | Batch, alone: bool = True) -> None:
    """Queues calls, in order, as one hand-over. Lists that hold barriers go to all their devices through
    `submit_all`. Of several parts for a device alone, the caller takes one when it waits."""
    batch = Batch(calls) if not isinstance(calls, Batch) else calls
    with self.lock:
      gate = self.submitted
      if not batch.whole:
        for m, _ in batch.passing:  # it may be a part of a run of which others come
          m.held = True
      if batch.brief and self.done.value == gate:
        _runtime().run(batch.tables[0])
        return
      parts = len(batch.tables)
      if batch.whole and (batch.rests or time.perf_counter() > self.look):
        self._rest(batch)
      wanted = parts - alone or 1
      if wanted > self.started:
        self._start(wanted)
      if parts > 1 and _now is not None and (core := _now.sched_getcpu() if alone else -1) != self.core:
        self._keep_off(core)
      if self.done.value < gate + parts - QUEUED:
        self._wait(gate + parts - QUEUED)
      self.submitted += parts
      self.pending.append((self.submitted, batch))
      for table in batch.tables:
        _runtime().push(self.queue, table, gate)
      batch.last = self.submitted
      self._forget()

  def _start(self, wanted: int) -> None:
    args, self.core = (self.queue, FOREVER, ctypes.addressof(_NEVER)), None
    for i in range(self.started, wanted):
      thread = threading.Thread(target=_runtime().wait, args=args, name=f"{self.name}/{i}", daemon=True)
      try:
        thread.start()
      except RuntimeError as e:
        fix = "raise the limit of processes (ulimit -u); or CPU_THREADS=1, for one thread of each device"
        raise DeviceError(f"{self.name}: the system gives no thread number {i + 1}: {e}\n  fix: {fix}") from e
      self.threads.append(thread)
      self.started = i + 1

  def _keep_off(self, core: int) -> None:
    """The threads run anywhere but on the core of the caller, who takes a part too: the system would often wake them
    there, to wait until it is done."""
    if others := os.sched_getaffinity(0) - {core}:
      self.core = core
      with contextlib.suppress(PermissionError):  # in some sandboxes: then they are wherever the system puts them
        for thread in self.threads:
          os.sched_setaffinity(thread.native_id or 0, others)

  def _wait(self, parts: int) -> None:
    """Until so many are done; wakes from time to time, so that Ctrl-C is heard."""
    until = Time(0, 0)
    while self.done.value < parts:
      _runtime().wait(self.queue, parts, ctypes.addressof(until))
      soon = time.time() + 0.1
      until = Time(int(soon), int(soon % 1 * 1e9))

  def _forget(self) -> None:
    """Lets go of what needed the parts that are done."""
    while self.pending and self.pending[0][0] <= self.done.value:
      self.pending.popleft()

  def synchronize(self) -> None:
    """Waits until everything queued is done, and takes part in it."""
    self._wait(self.submitted)
    if self.pending:
      with self.lock:
        self._forget()

  def batch(self, calls: Sequence[Call], brief: bool = False) -> Batch:
    return Batch(calls, brief)

  def stamp(self) -> Stamp:
    words = (ctypes.c_int64 * 2)()
    return Stamp(self, None, _runtime().stamp, [], words)

  # ---- several devices

  @staticmethod
  def barrier(devices: Sequence[CPU]) -> list[Call]:
    """One call for each device: none returns before all have reached it. Reusable; each must be in its device's list
    equally often."""
    counter = (ctypes.c_uint64 * 1)()
    return [counting(d, counter, 0, mine=1, each=len(devices)) for d in devices]

  @staticmethod
  def submit_all(devices: Sequence[CPU], lists: Sequence[Sequence[Call] | Batch]) -> None:
    """Queues one list on each device. Atomic, so that the barriers of concurrent callers cannot cross, and so that
    nobody waits for what Ctrl-C has kept from being queued."""
    with uninterrupted(), _submitting:
      alone = len(devices) == 1
      for device, calls in zip(devices, lists, strict=True):
        device.submit(calls, alone)


def counting(device: CPU, counters: Any, at: int, mine: int, each: int) -> Call:
  """A call that adds `mine` to a counter of an array, and returns when that has grown by `each` since the last time."""
  words = ctypes.addressof(counters) + 8 * at, 0, each, mine
  return Call(device, None, _runtime().meet, [counters], (ctypes.c_int64 * 4)(*words))


_live: list[CPU] = []
_uses = itertools.count(1)


_held: list[CPU] = []  # while the process forks


def _before_fork() -> None:
  """Nothing is queued, and nobody queues: what was asked for before is there in the child, too."""
  with uninterrupted():
    _submitting.acquire()
    for device in _live:
      device.lock.acquire()
      _held.append(device)
      device.synchronize()


def _go_on() -> None:
  while _held:
    _held.pop().lock.release()
  _submitting.release()


def _after_fork() -> None:
  """Threads of the parent do not exist in the child: neither devices' nor whoever held a lock."""
  global _submitting
  _submitting = threading.Lock()
  _held.clear()
  _loading.cache_clear()
  for device in _live:
    device._start_over()


def _stop() -> None:
  """The threads end before the code that they run goes."""
  for device in _live:
    device.synchronize()
    if device.started:
      device.done.value = FOREVER
      _runtime().push(device.queue, 0, 0)


at_fork(_before_fork, _go_on, _after_fork)
atexit.register(_stop)


open_device: type[Backend] = CPU
