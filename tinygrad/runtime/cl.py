"""`CL:i`: OpenCL devices through pyopencl (extra `[opencl]`), one in-order queue each.

All devices of one platform share a context, and memory is coarse-grained shared virtual memory: a table of peers is a
buffer of addresses, and devices meet at events. Without a GPU, PoCL runs on the processor, four times over unless
`POCL_DEVICES` says otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import DeviceError, Target
from tinygrad.helpers import LazyModule, numpy, user_line
from tinygrad.renderer import cstyle
from tinygrad.runtime import diskcache
from tinygrad.runtime.queues import Program, QueueDevice
from tinygrad.uop.ops import UOp

cl: Any = LazyModule("pyopencl")
OPTIONS = ("-cl-std=CL2.0", "-cl-fp32-correctly-rounded-divide-sqrt")
# PoCL has the compiler read a megabyte of declarations before every kernel, three quarters of the front end's time.
# _OPENCL_H_ tells it that they have been read; these are the ones that kernels call.
DECLARED = """#define DECLARE(name) __attribute__((overloadable, const)) float name(float); \\
  __attribute__((overloadable, const)) double name(double);
DECLARE(sqrt) DECLARE(floor) DECLARE(ceil) DECLARE(rint) DECLARE(sin) DECLARE(tanh) DECLARE(erf)
__attribute__((overloadable, const)) double pow(double, double);
__attribute__((overloadable, const)) size_t get_group_id(uint), get_local_id(uint);
__attribute__((overloadable, convergent)) void barrier(cl_mem_fence_flags);
__attribute__((overloadable)) float vload_half(size_t, const half*);
__attribute__((overloadable)) void vstore_half_rte(float, size_t, half*);
"""
_SVM_PTRS = 0x11B6  # CL_KERNEL_EXEC_INFO_SVM_PTRS, which pyopencl does not wrap


@functools.cache
def platform() -> tuple[Any, list[Any]]:
  """(context, devices) of the platform in use: the first with a GPU, else the first.

  Raises: DeviceError if there is none.
  """
  os.environ.setdefault("POCL_DEVICES", " ".join(["pthread"] * 4))
  try:
    found = [p.get_devices() for p in cl.get_platforms()]
  except cl.LogicError:
    found = []
  usable = [[d for d in ds if d.svm_capabilities & cl.device_svm_capabilities.COARSE_GRAIN_BUFFER] for ds in found]
  usable = sorted((ds for ds in usable if ds), key=lambda ds: not any(d.type & cl.device_type.GPU for d in ds))
  if not usable:
    raise DeviceError(
      "no OpenCL device with shared virtual memory (OpenCL 2.0) is here"
      "\n  fix: install the GPU vendor's OpenCL driver, or PoCL for the processor: pip install 'tinygrad[opencl]'"
    )
  return cl.Context(usable[0]), usable[0]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Call:
  """A kernel with its arguments in place."""

  device: CL
  kernel: Any
  program: Program
  memory: list[Any]  # what the arguments point to, by slot
  size: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    self.size = tuple(g * t for g, t in zip(self.program.groups, self.program.threads))

  def set_buffer(self, slot: int, memory: Any) -> None:
    if isinstance(memory, list):
      table = self.device.table(self, slot, [m.svm_ptr for m in memory])
      self.memory[slot] = (table, memory)
      self.kernel.set_arg(slot, table)
      self.tell_pointers()
      return
    self.memory[slot] = memory
    self.kernel.set_arg(slot, memory)

  def tell_pointers(self) -> None:
    """The driver has to know which memory is reached through tables."""
    pointers = [m.svm_ptr for entry in self.memory if isinstance(entry, tuple) for m in entry[1]]
    table = (ctypes.c_uint64 * len(pointers))(*pointers)
    library().clSetKernelExecInfo(ctypes.c_void_p(self.kernel.int_ptr), _SVM_PTRS, ctypes.sizeof(table), table)

  def set_variable(self, number: int, value: int) -> None:
    """The variable `number`, in the order of names."""
    self.kernel.set_arg(len(self.memory) + number, numpy.int64(value))


@functools.cache
def library() -> Any:
  return ctypes.CDLL(cl._cl.__file__)


def part_of(handle: Any, offset: int, nbytes: int) -> Any:
  """Bytes of shared virtual memory, as the driver's copies take them."""
  return cl.SVM((ctypes.c_ubyte * nbytes).from_address(handle.svm_ptr + offset))


class CL(QueueDevice):
  """One device and its queue."""

  def __init__(self, name: str) -> None:
    context, devices = platform()
    number = int(name.partition(":")[2] or 0)
    if number >= len(devices):
      raise DeviceError(
        f"{name}: there are {len(devices)} OpenCL devices here ({', '.join(sorted({d.name for d in devices}))})"
        f"\n  fix: use CL:0 to CL:{len(devices) - 1}; with PoCL, POCL_DEVICES='pthread pthread …' makes more"
      )
    super().__init__(name)
    self.context, self.device = context, devices[number]
    self.description = f"{len(devices)} of {', '.join(sorted({d.name for d in devices}))}"
    self.queue = cl.CommandQueue(context, self.device)
    scratch, gpu = min(self.device.local_mem_size, 48 << 10), bool(self.device.type & cl.device_type.GPU)
    self.target = Target("CL", vector_registers=64, scratch=scratch, threads=True, cooperates=gpu)

  def wait(self) -> None:
    try:
      self.queue.finish()
    except cl.Error as e:
      raise self.failure(e, "work that was queued") from e

  # ---- memory

  def new_memory(self, nbytes: int) -> Any:
    try:
      return cl.SVMAllocation(self.context, max(nbytes, 8), 64, cl.svm_mem_flags.READ_WRITE)
    except cl.Error as e:  # drivers name the failure differently
      raise MemoryError(
        f"{self.name}: no memory for a buffer of {nbytes} bytes ({e})\n    realized at {user_line()}"
        "\n  fix: smaller batches, or free what is no longer needed"
      ) from e

  def copyin(self, handle: Any, data: memoryview, offset: int = 0) -> None:
    if data.nbytes:
      host, there = numpy.frombuffer(data, numpy.uint8), part_of(handle, offset, data.nbytes)
      cl.enqueue_copy(self.queue, there, host, is_blocking=True)

  def copyout(self, data: memoryview, handle: Any, offset: int = 0) -> None:
    self.synchronize()
    if data.nbytes:
      host, there = numpy.frombuffer(data, numpy.uint8), part_of(handle, offset, data.nbytes)
      cl.enqueue_copy(self.queue, host, there, is_blocking=True)

  # ---- kernels

  def render(self, linear: list[UOp], name: str) -> str:
    return cstyle.render(linear, name, cstyle.OPENCL)

  def build(self, program: Program) -> Any:
    """The program on this device, always from its binary: what is built from source PoCL compiles again for the first
    launch. The binary comes from the disk cache where it is there and loads."""
    if (found := program.built.get(self.device.int_ptr)) is not None:
      return found
    d = self.device
    key = diskcache.key_of(program.source, d.name, d.version, d.driver_version, *OPTIONS)
    try:
      if (binary := diskcache.get(key)) is not None:
        with contextlib.suppress(cl.LogicError, cl.RuntimeError):  # of another driver: built anew below
          found = self.program((), [d], [binary])
      if found is None:
        diskcache.put(key, binary := self.binary(program.source))
        found = self.program((), [d], [binary])
    except cl.Error as e:
      raise self.failure(e, f"compiling {program.name}") from e
    program.built[d.int_ptr] = found
    return found

  def binary(self, source: str) -> bytes:
    found = None
    if "PoCL" in self.device.version:
      with contextlib.suppress(cl.RuntimeError):  # it calls what is not in DECLARED, or an error to be told below
        found = self.program((*OPTIONS, "-D_OPENCL_H_"), DECLARED + source)
    return (found or self.program(OPTIONS, source)).get_info(cl.program_info.BINARIES)[0]  # type: ignore[no-any-return]

  def program(self, options: Sequence[str], *of: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):  # what the compiler says of a kernel that it accepts
      return cl.Program(self.context, *of).build(options, devices=[self.device], cache_dir=False)

  def new_call(self, program: Program, buffers: int, variables: int) -> Call:
    return Call(self, cl.Kernel(self.build(program), program.name), program, [None] * buffers)

  def enqueue(self, call: Call) -> None:
    try:
      cl.enqueue_nd_range_kernel(self.queue, call.kernel, call.size, call.program.threads)
    except cl.Error as e:
      raise self.failure(e, call.program.name) from e

  def meet(self, devices: Sequence[CL]) -> None:
    reached = [cl.enqueue_marker(d.queue) for d in devices]
    for d in devices:
      d.flush()
    for d in devices:
      cl.enqueue_barrier(d.queue, wait_for=reached)

  def flush(self) -> None:
    self.queue.flush()

  def failure(self, e: Exception, what: str) -> DeviceError:
    """The driver's error as ours."""
    said = [line.strip() for line in str(e).splitlines() if line.strip()]
    errors = [line for line in said if "error:" in line] or said
    told = "\n    ".join([*errors[:5], f"realized at {user_line()}"])
    return DeviceError(f"{self.name} ({self.device.name}): {what} failed: {told}")


def open_device(name: str) -> CL:
  return CL(name)
