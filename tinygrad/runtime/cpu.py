"""`CPU:i`: kernels compiled in process through LLVM, run by a worker thread per device.

Work is handed over as lists of prepared calls; a list is one native call (a loop over a table of function and argument
pointers), so the interpreter's lock is free while it runs, and devices run side by side. Devices wait for one another
inside these lists (`barrier`).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.device import Target
from tinygrad.helpers import DEBUG, LazyModule
from tinygrad.renderer import llvm
from tinygrad.runtime import diskcache
from tinygrad.uop.ops import UOp

binding: Any = LazyModule("llvmlite.binding")
llvmlite: Any = LazyModule("llvmlite")
CODE_VERSION = "1"  # of what compile() does to IR
ALIGNMENT = 64
_POOL_LIMIT = 1 << 30  # bytes of freed memory kept for reuse, per device

# run: calls table[2i](table[2i+1]) for i < n. barrier: args = {counter, devices}; tickets are handed out by the
# counter, and a device waits until the last ticket of its round is taken. It yields the core, for there may be more
# devices than cores.
_RUNTIME_IR = """
declare i32 @sched_yield()
define void @tg_run(ptr %table, i64 %n) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %body, label %exit
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %slot = getelementptr { ptr, ptr }, ptr %table, i64 %i
  %f = load ptr, ptr %slot
  %argp = getelementptr { ptr, ptr }, ptr %table, i64 %i, i32 1
  %arg = load ptr, ptr %argp
  call void %f(ptr %arg)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %body, label %exit
exit:
  ret void
}
define void @tg_barrier(ptr %args) {
entry:
  %counter = load ptr, ptr %args
  %np = getelementptr i64, ptr %args, i64 1
  %n = load i64, ptr %np
  %ticket = atomicrmw add ptr %counter, i64 1 seq_cst
  %round = udiv i64 %ticket, %n
  %round1 = add i64 %round, 1
  %target = mul i64 %round1, %n
  br label %wait
wait:
  %spins = phi i64 [ 0, %entry ], [ %spins1, %again ]
  %now = load atomic i64, ptr %counter acquire, align 8
  %done = icmp sge i64 %now, %target
  br i1 %done, label %exit, label %more
more:
  %spins1 = add i64 %spins, 1
  %long = icmp ugt i64 %spins1, 256
  br i1 %long, label %yield, label %again
yield:
  %r = call i32 @sched_yield()
  br label %again
again:
  br label %wait
exit:
  ret void
}
"""


@dataclass(frozen=True, slots=True)
class Program:
  """Machine code of one kernel, loaded."""

  name: str
  address: int
  code: Any  # keeps the code in memory
  threads: int = 1  # how many share it out
  word: int = 0  # of the arguments that tells a thread which it is


@dataclass(slots=True, eq=False)
class Memory:
  """`nbytes` bytes at `address`; `owner` keeps them in memory where they are not ours."""

  address: int
  nbytes: int
  owner: Any = None


@dataclass(slots=True, eq=False)
class Call:
  """A kernel with its arguments in place: `words` is what it is given (renderer/llvm.py), by each thread that shares it
  out; patch words to replay with others."""

  address: int
  words: Any
  keep: list[Any]  # what the words point to, by slot
  program: Program | None = None
  others: tuple[Any, ...] = ()  # the words of the threads after the first

  def set_word(self, number: int, value: int) -> None:
    for words in (self.words, *self.others):
      words[number] = value

  def set_buffer(self, slot: int, memory: Memory | Sequence[Memory]) -> None:
    if isinstance(memory, Memory):
      self.set_word(1 + slot, memory.address)
      self.keep[slot] = memory
      return
    table = (ctypes.c_uint64 * len(memory))(*(m.address for m in memory))
    self.set_word(1 + slot, ctypes.addressof(table))
    self.keep[slot] = (table, tuple(memory))

  def set_variable(self, number: int, value: int) -> None:
    """The variable `number`, in the order of names (a thread's own number is not counted)."""
    number += 1 + len(self.keep)
    self.set_word(number + (self.program is not None and 0 < self.program.word <= number), value)

  def memory(self) -> list[int]:
    """What it touches, the memory that it writes first."""
    return [id(m) for kept in self.keep for m in ((kept,) if isinstance(kept, Memory) else kept[1])]


Table = list[tuple[int, int]]  # (function, address of its words)


@dataclass(slots=True, eq=False)
class Batch:
  """A list of calls as one native call for each thread of the device."""

  calls: list[Call]
  tables: list[Any]
  keep: list[Any]

  @staticmethod
  def of(calls: Sequence[Call]) -> Batch:
    threads = max((c.program.threads for c in calls if c.program is not None), default=1)
    keep: list[Any] = []
    rows = (
      [[(c.address, ctypes.addressof(c.words)) for c in calls]] if threads == 1 else share_out(calls, threads, keep)
    )
    tables = [(ctypes.c_uint64 * (2 * len(row)))(*itertools.chain.from_iterable(row)) for row in rows]
    return Batch(list(calls), tables, keep)


def share_out(calls: Sequence[Call], threads: int, keep: list[Any]) -> list[Table]:
  """What each thread runs: its part of the kernels that are shared out, and the first all others. Threads meet at the
  ends and where data flows between what different threads have done since they last met."""
  rows: list[Table] = [[] for _ in range(threads)]
  written: dict[int, bool] = {}  # memory -> whether several threads did
  read: dict[int, bool] = {}

  def meet() -> None:
    counter = ctypes.c_int64(0)
    words = (ctypes.c_int64 * 2)(ctypes.addressof(counter), threads)
    keep.append((counter, words))
    for row in rows:
      row.append((_runtime()[1], ctypes.addressof(words)))
    written.clear()
    read.clear()

  meet()
  for c in calls:
    if c.program is None:  # devices meet
      meet()
      rows[0].append((c.address, ctypes.addressof(c.words)))
      meet()
      continue
    shared, memory = c.program.threads > 1, c.memory()
    if any(m in written and (shared or written[m]) for m in memory) or (
      memory[0] in read and (shared or read[memory[0]])
    ):
      meet()
    for row, words in zip(rows, (c.words, *c.others)):
      row.append((c.address, ctypes.addressof(words)))
    written[memory[0]] = written.get(memory[0], False) or shared
    for m in memory[1:]:
      read[m] = read.get(m, False) or shared
  meet()
  return rows


# ---------------------------------------------------------------- compiling


class Compiler:
  """LLVM for the host processor."""

  def __init__(self) -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    self.cpu = binding.get_host_cpu_name()
    self.features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    self.machine = target.create_target_machine(cpu=self.cpu, features=self.features, opt=2, jit=True)
    # the linker owns a target machine of its own, for emitting code uses the other
    self.linker = binding.create_lljit_compiler(
      target.create_target_machine(cpu=self.cpu, features=self.features, opt=2, jit=True)
    )
    self.ids = itertools.count()
    self.lock = threading.RLock()
    self.version = f"{llvmlite.__version__}/{'.'.join(map(str, binding.llvm_version_info))}/{CODE_VERSION}"

  def object_code(self, source: str) -> bytes:
    """LLVM IR to an object file."""
    module = binding.parse_assembly(source)
    options = binding.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = False  # codegen has vectorised already
    builder = binding.create_pass_builder(self.machine, options)
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return bytes(self.machine.emit_object(module))

  def load(self, code: bytes, name: str) -> Program:
    library = binding.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(name)
    tracker = library.link(self.linker, f"kernel{next(self.ids)}")
    return Program(name, tracker[name], tracker)

  def compile(self, source: str, name: str) -> Program:
    """The program of function `name`; the object comes from the disk cache where it is there and loads."""
    key = diskcache.key_of(source, self.cpu, self.features, self.version)
    with self.lock:
      code = diskcache.get(key)
      if code is None:
        code = self.object_code(source)
        diskcache.put(key, code)
      return self.load(code, name)


@functools.cache
def compiler() -> Compiler:
  return Compiler()


@functools.cache
def _runtime() -> tuple[Any, int]:
  """(the native loop over calls, address of the barrier)"""
  run = compiler().compile(_RUNTIME_IR, "tg_run")
  wait = compiler().compile(_RUNTIME_IR, "tg_barrier")
  native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(run.address)
  return (native, run, wait), wait.address  # the programs keep their code in memory


@functools.cache
def host_target() -> Target:
  """What codegen has to know of this processor."""
  features = binding.get_host_cpu_features()
  if features.get("avx512f"):
    width, registers = 64, 32
  elif features.get("avx"):
    width, registers = 32, 16
  else:
    width, registers = 16, 32 if features.get("neon") else 16
  names = tuple(sorted(k for k, v in features.items() if v))
  return Target("CPU", width, registers, scratch=64 << 20, half=False, features=names, shares=True)


# ---------------------------------------------------------------- memory

_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)


def _allocate(nbytes: int) -> int:
  address: int | None = _libc.aligned_alloc(ALIGNMENT, -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT)
  if address is None:
    raise MemoryError(
      f"CPU: no memory for a buffer of {nbytes} bytes\n  fix: smaller batches, or free what is no longer needed"
    )
  return address


# ---------------------------------------------------------------- the device


_submitting = threading.Lock()


class CPU:
  """One device: a queue and the thread that empties it."""

  simulated = False

  def __init__(self, name: str) -> None:
    self.name = name
    self.target = host_target()
    self.pool: dict[int, list[Memory]] = {}
    self.pooled = 0
    self.arenas: list[Memory] = []  # scratch memory, by thread
    self._start_over()
    _live.add(self)

  def _start_over(self) -> None:
    """No worker, nothing queued: at first, and in a child process, where threads do not live on."""
    self.jobs: queue.SimpleQueue[Batch | Memory | threading.Lock] = queue.SimpleQueue()
    self.worker: threading.Thread | None = None
    self.helpers: list[queue.SimpleQueue[Batch]] = []  # of the threads that share kernels with the worker
    self.submitted = self.finished = 0  # jobs; the latter is the worker's
    self.error: BaseException | None = None
    self.lock = threading.RLock()

  # ---- memory

  def alloc(self, nbytes: int) -> Memory:
    try:
      handle = self.pool[nbytes].pop()
    except (KeyError, IndexError):
      return self._alloc_new(nbytes)
    self.pooled -= nbytes
    return handle

  def _alloc_new(self, nbytes: int) -> Memory:
    try:
      return Memory(_allocate(nbytes), nbytes)
    except MemoryError:
      self.synchronize()
      for free in list(self.pool.values()):
        while free:
          _libc.free(free.pop().address)
      self.pooled = 0
      return Memory(_allocate(nbytes), nbytes)

  def free(self, handle: Memory, nbytes: int) -> None:
    """Kept for the next allocation of this size: work already queued may still use it, and what is queued later comes
    after that. Memory beyond what is kept goes back when the queue has come so far. Never waits: finalizers call it."""
    if handle.owner is not None:
      return
    if self.pooled + nbytes <= _POOL_LIMIT:
      self.pooled += nbytes
      self.pool.setdefault(nbytes, []).append(handle)
    elif self.worker is None:
      _libc.free(handle.address)
    else:
      self._put(handle)

  def wrap(self, array: Any) -> Memory | None:
    """The memory of a C-contiguous writable numpy array as a buffer, without a copy; None where its alignment does not
    allow it."""
    if not array.flags.c_contiguous or not array.flags.writeable or not array.flags.aligned:
      return None
    return Memory(array.ctypes.data, array.nbytes, array)

  def view(self, handle: Memory) -> memoryview:
    """The memory itself, as bytes; it must not be used after the buffer is freed."""
    return memoryview((ctypes.c_char * handle.nbytes).from_address(handle.address)).cast("B")

  def copyin(self, handle: Memory, data: memoryview) -> None:
    self.synchronize()
    self.view(handle)[: data.nbytes] = data.cast("B") if data.nbytes else b""

  def copyout(self, data: memoryview, handle: Memory) -> None:
    self.synchronize()
    if data.nbytes:
      data.cast("B")[:] = self.view(handle)[: data.nbytes]

  # ---- kernels

  def render(self, linear: list[UOp], name: str) -> str:
    source = llvm.render(linear, name)
    if DEBUG >= 5:
      print(source)
    return source

  def compile(self, source: str, name: str) -> Program:
    program = compiler().compile(source, name)
    shared = llvm.threads_of(source)
    return program if shared is None else replace(program, threads=shared[0], word=shared[1])

  def scratch(self, thread: int) -> int:
    """The address of a thread's scratch memory."""
    while len(self.arenas) <= thread:
      self.arenas.append(Memory(_allocate(self.target.scratch), self.target.scratch))  # untouched pages cost nothing
    return self.arenas[thread].address

  def bind(self, program: Program, args: Sequence[Memory | Sequence[Memory]], variables: Sequence[int] = ()) -> Call:
    """A call of `program` on this device. `args[slot]`: the memory, or the table of all devices' memory for a `peers`
    parameter; `variables`: the values of the kernel's variables, in the order of their names."""
    words = ctypes.c_int64 * (1 + len(args) + len(variables) + (program.threads > 1))
    first, *others = [words() for _ in range(program.threads)]
    call = Call(program.address, first, [None] * len(args), program, tuple(others))
    for thread, mine in enumerate((first, *others)):
      mine[0] = self.scratch(thread)
      if program.word:
        mine[program.word] = thread
    for slot, memory in enumerate(args):
      call.set_buffer(slot, memory)
    for i, value in enumerate(variables):
      call.set_variable(i, value)
    return call

  def launch(self, program: Program, args: Sequence[Memory | Sequence[Memory]], variables: Sequence[int] = ()) -> None:
    """Queues one call and returns at once."""
    self.submit([self.bind(program, args, variables)])

  def submit(self, calls: Sequence[Call] | Batch) -> None:
    """Queues calls, in order, as one hand-over. Lists that hold barriers go to all their devices through
    `submit_all`."""
    if self.worker is None:
      with self.lock:
        if self.worker is None:
          _runtime()
          self.worker = threading.Thread(target=self._work, args=(self.jobs,), name=self.name, daemon=True)
          self.worker.start()
    batch = calls if isinstance(calls, Batch) else Batch.of(calls)
    with self.lock:  # the queues of all threads hold shared batches in one order
      for i in range(1, len(batch.tables)):
        if len(self.helpers) < i:
          self.helpers.append(queue.SimpleQueue())
          threading.Thread(target=_help, args=(self.helpers[-1], i), name=f"{self.name}/{i}", daemon=True).start()
        self.helpers[i - 1].put(batch)
      self._put(batch)

  def _put(self, job: Batch | Memory) -> None:
    with self.lock:
      self.submitted += 1
      self.jobs.put(job)

  def _work(self, jobs: queue.SimpleQueue[Batch | Memory | threading.Lock]) -> None:
    (run, *_), _ = _runtime()
    while True:
      job = jobs.get()
      if isinstance(job, Batch):
        try:
          run(ctypes.addressof(job.tables[0]), len(job.tables[0]) // 2)
        except BaseException as e:  # handed to whoever waits for the work
          self.error = e
        self.finished += 1
      elif isinstance(job, Memory):
        _libc.free(job.address)
        self.finished += 1
      else:
        job.release()
      del job  # nothing is kept while waiting

  def synchronize(self) -> None:
    """Waits until everything queued is done; raises what failed."""
    if self.finished < self.submitted:
      done = threading.Lock()
      done.acquire()
      self.jobs.put(done)
      done.acquire()
    if self.error is not None:
      error, self.error = self.error, None
      raise error

  # ---- several devices

  @staticmethod
  def barrier(devices: Sequence[CPU]) -> list[Call]:
    """One call for each device: none returns before all have reached it. Reusable; each must be in its device's list
    equally often."""
    _, address = _runtime()
    counter = ctypes.c_int64(0)
    return [Call(address, (ctypes.c_int64 * 2)(ctypes.addressof(counter), len(devices)), [counter]) for _ in devices]

  @staticmethod
  def batch(calls: Sequence[Call]) -> Batch:
    """`calls` as one hand-over, which may be repeated."""
    return Batch.of(calls)

  @staticmethod
  def submit_all(devices: Sequence[CPU], lists: Sequence[Sequence[Call] | Batch]) -> None:
    """Queues one list on each device. Atomic, so that the barriers of concurrent callers cannot cross."""
    with _submitting:
      for device, calls in zip(devices, lists, strict=True):
        device.submit(calls)


def _help(batches: queue.SimpleQueue[Batch], thread: int) -> None:
  """A thread that shares kernels with a device's worker; who waits for the worker waits for all, for they meet last."""
  (run, *_), _ = _runtime()
  while True:
    batch = batches.get()
    run(ctypes.addressof(batch.tables[thread]), len(batch.tables[thread]) // 2)
    del batch  # nothing is kept while waiting


_live: weakref.WeakSet[CPU] = weakref.WeakSet()


def _after_fork() -> None:
  """Threads of the parent do not exist in the child: neither workers nor whoever held a lock."""
  global _submitting
  _submitting = threading.Lock()
  if compiler.cache_info().currsize:
    compiler().lock = threading.RLock()
  for device in list(_live):
    device._start_over()


os.register_at_fork(after_in_child=_after_fork)


def open_device(name: str) -> CPU:
  return CPU(name)
