"""Machine code of this processor: kernels compiled through LLVM, kept on disk by what they are made of, and loaded.

There are two tiers of one kernel, with the same bits: what LLVM makes in a hurry (no optimisation past the first two
passes, the fast allocator of registers) of a kernel whose work is small, and the code that takes its place once it is
used again. Where all is on disk LLVM is not loaded."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import os
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinygrad.device import DeviceError, Launch, Rendered
from tinygrad.helpers import (
  KEPT_KERNELS,
  PROCESS,
  QUICK_CODE,
  LazyModule,
  at_fork,
  getenv,
  json,
  processor_traits,
  span,
  stamp,
  uninterrupted,
)
from tinygrad.runtime import diskcache, elf

binding: Any = LazyModule("llvmlite.binding")
futures: Any = LazyModule("concurrent.futures")
CODE_VERSION = "2"  # of what object_code() does to IR
# operations of a kernel for each character of its source, up to which it is compiled in a hurry: what LLVM saves then
# (0.9 µs a character) is more than the kernel loses (a matrix product takes ten times as long, 0.3 ns an operation)
HURRY = 3000


# ---------------------------------------------------------------- the processor

# what processors of less than the host's features have, by CPU_FEATURES: LLVM's name of them, and what matters here
_V3 = ("sse4.2", "avx", "avx2", "f16c", "fma")
LEVELS = {
  "avx512": ("x86-64-v4", (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
  "avxvnni": ("alderlake", (*_V3, "avxvnni")),
  "avx2": ("x86-64-v3", _V3),
  "sse4.2": ("x86-64-v2", ("sse4.2",)),
}


@functools.cache
def llvm_stamp() -> str:
  """Which LLVM is installed, without loading it. Raises ModuleNotFoundError if none is."""
  spec = importlib.util.find_spec("llvmlite")
  if spec is None or spec.origin is None:
    raise ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite")
  folder = Path(spec.origin).parent
  return stamp([folder / "_version.py", *sorted((folder / "binding").glob("*llvmlite.*"))])


@functools.cache
def processor() -> tuple[str, str, dict[str, bool]]:
  """What is compiled for: LLVM's name of the processor, its features as LLVM takes them, and by name. LLVM is asked
  once for a processor."""
  level, traits = getenv("CPU_FEATURES", "native"), processor_traits()
  key = diskcache.key_of("processor", level, traits, llvm_stamp())
  if traits and (kept := diskcache.get(key)) is not None:
    cpu, flat, features = json.loads(kept)
    return cpu, flat, features
  found = _ask_llvm(level)
  if traits:
    diskcache.put(key, json.dumps(found).encode())
  return found


def _ask_llvm(level: str) -> tuple[str, str, dict[str, bool]]:
  host = binding.get_host_cpu_features()
  if level == "native":
    return binding.get_host_cpu_name(), host.flatten(), dict(host)
  cpu, names = LEVELS.get(level, ("", ()))
  if not cpu or not all(map(host.get, names)):
    has = ("native", *(k for k, (_, names) in LEVELS.items() if all(map(host.get, names))))
    raise ValueError(
      f"CPU_FEATURES={level}: this processor has {', '.join(has)}\n  fix: set one of these, or leave it out"
    )
  return cpu, "", dict.fromkeys(names, True)


# ---------------------------------------------------------------- compiling


class Compiler:
  """LLVM for `processor()`, with a context of its own: used by one thread."""

  ids = itertools.count()

  def __init__(self) -> None:
    with _starting:
      binding.initialize_native_target()
      binding.initialize_native_asmprinter()
      # llvmlite lets one thread at a time into LLVM, which itself asks for no more than a context for each
      for long in ("LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory"):
        with suppress(AttributeError):
          getattr(binding.ffi.lib, long)._lock = nullcontext()
    self.context = binding.create_context()
    cpu, features, _ = processor()
    self.new_machine = functools.partial(
      binding.Target.from_default_triple().create_target_machine, cpu, features, jit=True
    )
    self.machine, self.hurried = self.new_machine(opt=2), self.new_machine(opt=0)

  @functools.cached_property
  def linker(self) -> Any:
    return binding.create_lljit_compiler(self.new_machine(opt=2))  # which owns it, for emitting code uses the other

  def object_code(self, source: str, hurry: bool = False) -> bytes:
    """LLVM IR to an object file."""
    machine = self.hurried if hurry else self.machine
    module = binding.parse_assembly(source, self.context)
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options()))
    return bytes(machine.emit_object(module))

  def link(self, code: bytes, name: str) -> tuple[int, Any]:
    """Function `name` of an object file, loaded by LLVM: its address, and what keeps it in memory."""
    library = binding.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(name)
    tracker = library.link(self.linker, f"kernel{next(self.ids)}")
    return int(tracker[name]), tracker


_local = threading.local()
_starting = threading.Lock()


def compiler() -> Compiler:
  """This thread's."""
  if not hasattr(_local, "compiler"):
    _local.compiler = Compiler()
  return _local.compiler  # type: ignore[no-any-return]


def loaded(code: bytes, name: str) -> tuple[int, Any]:
  """The address of function `name` of an object file, and what keeps it in memory."""
  return elf.load_object(code, name) or compiler().link(code, name)


@functools.cache
def compiling() -> Any:
  """The threads that compile."""
  threads = futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 8), "compiling")
  _fork_in_turn()
  return threads


@functools.cache
def _fork_in_turn() -> None:
  """A fork takes the lock of executors before those that were registered earlier; whoever has its turn waits for it."""
  at_fork()


_handed: set[Any] = set()  # Futures of what those threads have to do


def behind(f: Any, *args: Any) -> Any:
  """The Future of f(*args), by the threads that compile; done by the caller where none can be had, as at the end of the
  interpreter."""
  try:
    future = compiling().submit(f, *args)
  except RuntimeError:
    (future := futures.Future()).set_result(f(*args))
    _local.__dict__.clear()  # LLVM's own is let go of while LLVM is still there
  else:
    _handed.add(future)
    future.add_done_callback(_handed.discard)
  return future


@functools.cache
def compiled_for() -> str:
  """The processor, and what makes code for it."""
  return diskcache.key_of(*processor()[:2], llvm_stamp(), CODE_VERSION)


def object_key(source: str, hurry: bool = False) -> str:
  """What an object is kept by: all that it depends on."""
  return diskcache.key_of(source, compiled_for(), *["in a hurry"] * hurry)


_WORD = 8  # bytes of the length of a source


def compile_object(source: str, name: str, hurry: bool = False) -> bytes:
  """An object file, which is kept on disk (made in a hurry, behind its source)."""
  with span("compile", kernel=name):
    code = compiler().object_code(source, hurry)
  text = source.encode() if hurry else b""
  diskcache.put(object_key(source, hurry), len(text).to_bytes(_WORD, "little") + text + code)
  return code


def compile_here(source: str, name: str, hurry: bool = False) -> tuple[int, Any]:
  """Function `name`, compiled and loaded."""
  return loaded(compile_object(source, name, hurry), name)


def kept(key: str, name: str) -> tuple[tuple[int, Any], str] | None:
  """What `compile_object` has left on disk, loaded, and the source of what was made in a hurry."""
  if (data := diskcache.get(key)) is None:
    return None
  start = _WORD + int.from_bytes(data[:_WORD], "little")
  return loaded(data[start:], name), data[_WORD:start].decode()


# ---------------------------------------------------------------- programs


@dataclass(frozen=True, slots=True)
class Loaded:
  """Code that is there, where a Future of it may stand."""

  value: Any

  def result(self) -> Any:
    return self.value


@dataclass(slots=True, eq=False)
class MachineCode:
  """Machine code of one kernel. With a `source` it was made in a hurry; `better` takes its place when it is there, and
  calls that hold the first keep their own."""

  name: str
  loaded: Any  # the Future of its address, and of what keeps the code in memory
  launch: Launch = Launch()
  keys: tuple[str, ...] = ()  # of its objects on disk, the best first
  source: str = ""
  better: Any = None  # a Future
  owner: int = 0  # the process whose threads work on that
  used: int = field(default=0)

  @property
  def address(self) -> int:
    better = self.better  # which another thread may cancel, and replace
    done = better is not None and better.done() and not better.cancelled()
    return int((better if done else self.loaded).result()[0])

  def use(self) -> int:
    """The address for one more call. From the second on better code is on its way."""
    self.used += 1
    if self.used == 2 and self.source:
      self.improve(_later)
    return self.address

  def improve(self, submit: Any) -> Any:
    """The Future of better code, which is made unless somebody is at it: what others may wait for is not cancelled. A
    child process has none of its parent's threads."""
    better = self.better  # which another thread may cancel, and replace
    if better is not None:
      there = better.done() and not better.cancelled()
      if there or better in _handed or (better.running() and self.owner == os.getpid()):
        return better
      better.cancel()
    self.better = better = submit(compile_here, self.source, self.name)
    self.owner = os.getpid()
    return better


_codes: dict[tuple[tuple[str, ...], Launch], MachineCode] = PROCESS.table(KEPT_KERNELS)


def compile_kernel(rendered: Rendered, name: str) -> MachineCode:
  """Goes on while the next kernel is lowered; whoever needs the address waits. Of little work, in a hurry."""
  source = rendered.source
  hurry = 0 < rendered.work <= HURRY * len(source) and bool(QUICK_CODE)
  keys = (object_key(source), *[object_key(source, hurry=True)] * hurry)
  if (found := restore(name, keys, rendered.launch)) is None:
    future = behind(compile_here, source, name, hurry)
    found = _codes[keys, rendered.launch] = MachineCode(name, future, rendered.launch, keys, source if hurry else "")
  return found


def restore(name: str, keys: tuple[str, ...], launch: Launch) -> MachineCode | None:
  """A kernel that this process or another has compiled: the best there is of it (without QUICK_CODE, the best)."""
  if (found := _codes.get((keys, launch))) is None:
    for key in keys if QUICK_CODE else keys[:1]:
      if (there := kept(key, name)) is not None:
        found = _codes[keys, launch] = MachineCode(name, Loaded(there[0]), launch, keys, there[1])
        break
  return found


def settle(programs: Iterable[MachineCode]) -> None:
  """Waits for the best code of programs that are to run again and again."""
  for made in [p.improve(behind) for p in programs if p.source]:
    made.result()


_waiting: deque[Any] = deque()  # calls that one thread makes, one after the other
_improver: threading.Thread | None = None


def _later(f: Any, *args: Any) -> Any:
  """The Future of f(*args), by a thread that ends when there is nothing more to be done, or with the process: what is
  then still waiting is dropped."""
  global _improver
  future = futures.Future()
  with _starting:
    _waiting.append((future, f, args))
    if _improver is None:
      with suppress(RuntimeError):  # no more threads, as at the end of the interpreter: what there is does
        (thread := threading.Thread(target=_improve, name="improving")).start()
        _improver = thread
  return future


def _improve() -> None:
  global _improver
  while True:
    with _starting:  # nothing comes to a thread that has seen that there is nothing
      if not _waiting or not threading.main_thread().is_alive():
        _improver = None
        break
      future, f, args = _waiting.popleft()
    with _improving:
      if future.set_running_or_notify_cancel():
        try:
          future.set_result(f(*args))
        except Exception as e:
          future.set_exception(e)
  with _improving:
    _local.__dict__.clear()  # LLVM lets go of its own under its lock, too


_improving = threading.Lock()


def _before_fork() -> None:
  """Nobody is within LLVM, or imports it: a child would wait for ever for its locks. What is awaited is there."""
  with uninterrupted():
    if _handed:
      futures.wait([*_handed])
    _improving.acquire()


def _after_fork() -> None:
  """Threads of the parent do not exist in the child, nor does whoever held a lock."""
  global _starting, _improver
  _starting, _improver = threading.Lock(), None
  _waiting.clear()
  _handed.clear()
  compiling.cache_clear()
  _improving.release()


at_fork(_before_fork, _improving.release, _after_fork)


# ---------------------------------------------------------------- kernels in C


def compile_c(source: str, name: str, pointers: int, dims: Sequence[int]) -> MachineCode:
  """Function `name` of a C source behind an entry that takes its arguments from words, as every kernel here does."""
  given = [f"(void*)args[{i + 1}]" for i in range(pointers)] + [f"{n}LL" for n in dims]
  text = f"#include <stdint.h>\n{source}\nvoid entry_(const int64_t *args) {{ {name}({', '.join(given)}); }}\n"
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "kernel.so"
    flags = getenv("CFLAGS", "-O3 -march=native").split()
    command = [getenv("CC", "cc"), *flags, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), "-lm"]
    try:
      subprocess.run(command, input=text, text=True, capture_output=True, check=True)
    except FileNotFoundError as e:
      raise DeviceError(f"kernel {name}: there is no C compiler {command[0]!r}\n  fix: install one, or set CC") from e
    except subprocess.CalledProcessError as e:
      raise DeviceError(f"kernel {name}: {command[0]} refuses its source\n{e.stderr}  fix: correct the source") from e
    library = ctypes.CDLL(str(path))
  return MachineCode(name, Loaded((int(ctypes.cast(library.entry_, ctypes.c_void_p).value or 0), library)))
