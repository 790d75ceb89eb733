"""`CL:i`: OpenCL devices through pyopencl (extra `[opencl]`), one in-order queue each.

All devices of one platform share a context, and memory is coarse-grained shared virtual memory: a table of peers is a
buffer of addresses, and devices meet at events. The platform is the first whose devices compile and run a kernel:
GPUs', else the processor's, Intel's driver before PoCL. `CL_VIRTUAL=4` makes four devices of each physical one, with
queues of their own; it is what a processor is unless told otherwise.

On a processor a kernel is loops over vectors, of which each work group has a piece, as the processor's own kernels are
(renderer/vectors.py); `CL_GRID=1` makes the grids of threads of it that a GPU has.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path
from typing import Any

from tinygrad.device import Backend, Capabilities, DeviceError, PeerCopy, Rendered, Target
from tinygrad.helpers import LazyModule, getenv, numpy, user_line
from tinygrad.renderer import dialects, vectors
from tinygrad.runtime import diskcache, queues
from tinygrad.runtime.queues import LESS, GridKernel, QueueDevice, errors_of

cl: Any = LazyModule("pyopencl")
# PoCL has the compiler read a megabyte of declarations before every kernel, three quarters of the front end's time.
# _OPENCL_H_ tells it that they have been read; these are the ones that kernels call.
DECLARED = """#define DECLARE(name) __attribute__((overloadable, const)) float name(float); \\
  __attribute__((overloadable, const)) double name(double);
DECLARE(sqrt) DECLARE(floor) DECLARE(ceil) DECLARE(rint) DECLARE(sin) DECLARE(tanh) DECLARE(erf)
__attribute__((overloadable, const)) double pow(double, double), fma(double, double, double);
__attribute__((overloadable, const)) float fma(float, float, float);
__attribute__((overloadable, const)) size_t get_group_id(uint), get_local_id(uint);
__attribute__((overloadable, convergent)) void barrier(cl_mem_fence_flags);
__attribute__((overloadable)) float vload_half(size_t, const half*);
__attribute__((overloadable)) void vstore_half_rte(float, size_t, half*);
"""
# what a device may offer beside the core of the language, by its extension: arithmetic on half, and sums, shuffles of
# the threads that run in step
FEATURES = {"cl_khr_fp16": "half", "cl_khr_subgroups": "sub_groups", "cl_khr_subgroup_shuffle": "shuffle"}
WIDEST = 8  # floats of a vector: Intel's driver is kept from wider ones
ARENA = 8 << 20  # bytes of a group's scratch memory, at most
_SVM_PTRS = 0x11B6  # CL_KERNEL_EXEC_INFO_SVM_PTRS, which pyopencl does not wrap


@dataclass(frozen=True, slots=True, eq=False)
class Platform:
  """Devices of one driver, and the context they share."""

  context: Any
  devices: list[Any]

  @property
  def several(self) -> int:
    """How many devices are made of each."""
    return int(getenv("CL_VIRTUAL", 1 if on_gpu(self.devices[0]) else 4, 1))


def settings_for(device: Any) -> dict[str, str]:
  """What a driver reads of the environment when a context is made. The optimiser of Intel's for processors (release
  2026.2) gives wrong values where it uses AVX-512, and where it makes vectors of loops (test_cl.py)."""
  if "Intel" not in device.platform.name or not device.type & cl.device_type.CPU:
    return {}
  without = {"CL_CONFIG_CPU_VECTORIZER_MODE": "1"}
  return without | ({"CL_CONFIG_CPU_TARGET_ARCH": "core-avx2"} if device.native_vector_width_float > 8 else {})


@contextlib.contextmanager
def intel_named() -> Iterator[None]:
  """Within, OpenCL's loader finds Intel's driver for the processor: its package has a file for the loader, with a path
  that does not exist. A loader is given one folder of such files, so the system's own are linked into it."""
  try:
    files = importlib.metadata.files("intel-opencl-rt") or ()
  except importlib.metadata.PackageNotFoundError:
    files = ()
  driver = next((str(Path(f.locate()).resolve()) for f in files if f.name == "libintelocl.so"), None)
  with contextlib.ExitStack() as undo:
    if driver is not None and "OCL_ICD_VENDORS" not in os.environ:  # the user's word
      with contextlib.suppress(OSError):  # nowhere to write: other drivers are found all the same
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        for named in Path("/etc/OpenCL/vendors").glob("*.icd"):
          (folder / named.name).symlink_to(named)
        (folder / "tinygrad-intel.icd").write_text(driver + "\n")
        os.environ["OCL_ICD_VENDORS"] = str(folder)
        undo.callback(os.environ.pop, "OCL_ICD_VENDORS")
    yield


def drivers() -> list[list[Any]]:
  """The devices of each driver that could be used: with shared virtual memory, those of most worth first."""
  try:
    with intel_named():
      platforms = cl.get_platforms()
  except cl.LogicError:  # there is none
    return []
  found = []
  for p in platforms:
    with contextlib.suppress(cl.Error):  # without a device, or older than shared virtual memory
      coarse = cl.device_svm_capabilities.COARSE_GRAIN_BUFFER
      found.append([d for d in p.get_devices() if d.svm_capabilities & coarse])

  def worth(devices: list[Any]) -> tuple[bool, bool]:
    return any(map(on_gpu, devices)), "PoCL" not in devices[0].version

  return sorted(filter(None, found), key=worth, reverse=True)


@functools.cache
def chosen() -> Platform | str:
  """The first driver that compiles and runs a kernel, or why there is none."""
  faults = []
  for devices in drivers():
    try:
      if "PoCL" in devices[0].version and shutil.which("ld") is None:  # it ends the process that asks for a kernel
        raise DeviceError("kernels are linked by the program ld, which is not on the PATH (package binutils)")
      os.environ.update(settings_for(devices[0]) | os.environ)  # what the user has set stays
      found = Platform(cl.Context(devices), devices)
      CL("CL", found).check()
      return found
    except (DeviceError, cl.Error) as e:
      faults.append(f"\n    {devices[0].platform.name}: {e}")
  fix = "install the GPU vendor's OpenCL driver, or one for the processor: pip install 'tinygrad[opencl]'"
  if not faults:
    return f"no OpenCL device with shared virtual memory (OpenCL 2.0) is here\n  fix: {fix}"
  return f"no OpenCL driver works here:{''.join(faults)}\n  fix: {fix}"


def platform() -> Platform:
  """The platform in use. Raises: DeviceError if there is none that works."""
  if isinstance(found := chosen(), str):
    raise DeviceError(found)
  return found


@dataclass(slots=True, eq=False)
class Call(queues.Call):
  """The kernel, as `built`, holds the arguments."""

  size: tuple[int, ...]

  def set_word(self, i: int, value: Any) -> None:
    if isinstance(value, int):
      self.built.set_arg(i, numpy.int64(value))
      return
    self.built.set_arg(i, value)
    if isinstance(self.memory[i], tuple):  # the driver has to know which memory is reached through tables
      pointers = [m.svm_ptr for entry in self.memory if isinstance(entry, tuple) for m in entry[1]]
      table = (ctypes.c_uint64 * len(pointers))(*pointers)
      library().clSetKernelExecInfo(ctypes.c_void_p(self.built.int_ptr), _SVM_PTRS, ctypes.sizeof(table), table)


library = functools.cache(lambda: ctypes.CDLL(cl._cl.__file__))


def part_of(handle: Any, offset: int, nbytes: int) -> Any:
  """Bytes of shared virtual memory, as the driver's copies take them."""
  return cl.SVM((ctypes.c_ubyte * nbytes).from_address(handle.svm_ptr + offset))


def on_gpu(device: Any) -> bool:
  return bool(device.type & cl.device_type.GPU)


def target_for(device: Any, grid: bool) -> Target:
  """What codegen knows of a device: kernels are for a grid of threads, or else loops over vectors."""
  offered = device.extensions.split()
  features = {name for extension, name in FEATURES.items() if extension in offered}
  if device.version >= "OpenCL 3" and device.max_num_sub_groups:  # no extension there
    features.add("sub_groups")
  target = Target("CL", features=tuple(sorted(features)), float64="cl_khr_fp64" in offered)
  if not grid:
    width = min(max(device.native_vector_width_float, 4), WIDEST)
    return replace(target, vector_bytes=4 * width, scratch=ARENA, shares=True)
  scratch, gpu = min(device.local_mem_size, 48 << 10), on_gpu(device)
  return replace(target, vector_registers=64, scratch=scratch, threads=True, intensity=8, cooperates=gpu)


class CL(QueueDevice):
  """One device and its queue."""

  pointer = "svm_ptr"
  dialect = dialects.OPENCL
  capabilities = Capabilities(copies=True)

  def __init__(self, name: str, of: Platform | None = None) -> None:
    super().__init__(name)
    of = of or platform()
    self.context, several, count = of.context, of.several, len(of.devices) * of.several
    names = ", ".join(sorted({d.name for d in of.devices}))
    fix = f"use CL:0 to CL:{count - 1}; CL_VIRTUAL=n makes n of each physical device"
    self.device = self.choose(of.devices, f"OpenCL devices ({names})", fix, several)
    self.description = f"{count} of {names} ({of.devices[0].platform.name})"
    self.queue = cl.CommandQueue(self.context, self.device)
    self.options = ["-cl-std=CL3.0" if self.device.version >= "OpenCL 3" else "-cl-std=CL2.0"]
    if self.device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT:
      self.options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    self.target = target_for(self.device, bool(getenv("CL_GRID", int(on_gpu(self.device)), 0)))
    self.arenas = dict[int, Any]()  # by their size

  def render(self, linear: list[Any], name: str) -> Rendered:
    return super().render(linear, name) if self.target.threads else vectors.render(linear, name)

  def wait(self) -> None:
    with self.telling("a kernel of these", queued=True):
      self.queue.finish()

  @contextlib.contextmanager
  def telling(self, what: str, queued: bool = False) -> Iterator[None]:
    """The driver's errors as ours, with what has been `queued` where it may be that which failed."""
    self.check_process()
    try:
      yield
    except cl.Error as e:
      said = f"{errors_of(e)}{self.suspects() if queued else ''}\n    realized at {user_line()}"
      raise DeviceError(f"{self.name} ({self.device.name}): {what} failed: {said}") from e

  # ---- memory

  def new_memory(self, nbytes: int) -> Any:
    try:
      return cl.SVMAllocation(self.context, max(nbytes, 8), 64, cl.svm_mem_flags.READ_WRITE)
    except cl.Error as e:  # drivers name the failure differently
      raise MemoryError(f"{self.name}: no memory for a buffer of {nbytes} bytes ({e})\n  {LESS}") from e

  def copyin(self, handle: Any, data: memoryview, offset: int = 0) -> None:
    self.copy(data, handle, offset, True)

  def copyout(self, data: memoryview, handle: Any, offset: int = 0) -> None:
    self.synchronize()
    self.copy(data, handle, offset, False)

  def copy(self, data: memoryview, handle: Any, offset: int, inward: bool) -> None:
    if data.nbytes:
      ends = part_of(handle, offset, data.nbytes), numpy.frombuffer(data, numpy.uint8)
      with self.telling(f"a copy of {data.nbytes} bytes, or a kernel of these,", queued=True):
        cl.enqueue_copy(self.queue, *(ends if inward else ends[::-1]), is_blocking=True)

  def copy_from(self, c: PeerCopy) -> None:
    ends = (part_of(h, at, c.nbytes) for h, at in ((c.handle, c.offset), (c.source_handle, c.source_offset)))
    with self.telling(f"a copy of {c.nbytes} bytes from {c.source.name}"):
      cl.enqueue_copy(self.queue, *ends, is_blocking=False)

  # ---- kernels

  def build(self, program: GridKernel) -> Any:
    """The program on this device, always from its binary: what is built from source PoCL compiles again for the first
    launch. The binary comes from the disk cache where it is there and loads."""
    d = self.device
    key = diskcache.key_of(program.source, d.name, d.version, d.driver_version, *self.options)
    with self.telling(f"compiling {program.name}"):
      if (binary := diskcache.get(key)) is not None:
        with contextlib.suppress(cl.LogicError, cl.RuntimeError):  # of another driver: built anew below
          return self.program((), [d], [binary])
      diskcache.put(key, binary := self.binary(program.source))
      return self.program((), [d], [binary])

  def binary(self, source: str) -> bytes:
    found = None
    if "PoCL" in self.device.version:
      with contextlib.suppress(cl.RuntimeError):  # it calls what is not in DECLARED, or an error to be told below
        found = self.program((*self.options, "-D_OPENCL_H_"), DECLARED + source)
    return (found or self.program(self.options, source)).get_info(cl.program_info.BINARIES)[0]  # type: ignore[no-any-return]

  def program(self, options: Sequence[str], *of: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):  # what the compiler says of a kernel that it accepts
      return cl.Program(self.context, *of).build(options, devices=[self.device], cache_dir=False)

  def new_call(self, program: GridKernel, buffers: int, variables: int) -> Call:
    kernel, launch = cl.Kernel(self.built(program), program.name), program.launch
    size = tuple(map(mul, launch.groups, launch.threads))
    if launch.local:
      kernel.set_arg(buffers + variables, self.arena(launch.groups[0] * launch.local))
    return Call(self, program, kernel, [None] * buffers, None, size)

  def arena(self, nbytes: int) -> Any:
    """Memory in which the groups of a kernel have their scratch memory; the queue's kernels run one after the other.
    What calls have is kept: they may be repeated."""
    size = 1 << (nbytes - 1).bit_length()
    if size not in self.arenas:
      self.arenas[size] = self.new_memory(size)
    return self.arenas[size]

  def enqueue(self, call: Call) -> None:
    with self.telling(call.program.name):
      cl.enqueue_nd_range_kernel(self.queue, call.built, call.size, call.program.launch.threads)

  def meet(self, devices: Sequence[CL]) -> None:
    reached = [cl.enqueue_marker(d.queue) for d in devices]
    for d in devices:
      d.flush()
    for d in devices:
      cl.enqueue_barrier(d.queue, wait_for=reached)

  def flush(self) -> None:
    self.queue.flush()


open_device: type[Backend] = CL
