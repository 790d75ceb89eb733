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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import DeviceError, Target
from tinygrad.helpers import LazyModule, numpy
from tinygrad.renderer import cstyle
from tinygrad.runtime import diskcache
from tinygrad.runtime.queues import Program, QueueDevice
from tinygrad.uop.ops import UOp

cl: Any = LazyModule("pyopencl")
OPTIONS = ["-cl-std=CL2.0", "-cl-fp32-correctly-rounded-divide-sqrt"]
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
      table = self.device.table(self, [m.svm_ptr for m in memory])
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
    self.target = Target("CL", vector_registers=64, scratch=min(self.device.local_mem_size, 48 << 10), threads=True)

  def wait(self) -> None:
    with self.typed("work that was queued"):
      self.queue.finish()

  # ---- memory

  def new_memory(self, nbytes: int) -> Any:
    try:
      return cl.SVMAllocation(self.context, max(nbytes, 8), 64, cl.svm_mem_flags.READ_WRITE)
    except cl.Error as e:  # drivers name the failure differently
      raise MemoryError(
        f"{self.name}: no memory for a buffer of {nbytes} bytes ({e})"
        "\n  fix: smaller batches, or free what is no longer needed"
      ) from e

  def copyin(self, handle: Any, data: memoryview) -> None:
    if data.nbytes:
      cl.enqueue_copy(self.queue, handle, numpy.frombuffer(data, numpy.uint8), byte_count=data.nbytes, is_blocking=True)

  def copyout(self, data: memoryview, handle: Any) -> None:
    self.synchronize()
    if data.nbytes:
      cl.enqueue_copy(self.queue, numpy.frombuffer(data, numpy.uint8), handle, byte_count=data.nbytes, is_blocking=True)

  # ---- kernels

  def render(self, linear: list[UOp], name: str) -> str:
    return cstyle.render(linear, name, cstyle.OPENCL)

  def build(self, program: Program) -> Any:
    """The program on this device; its binary comes from the disk cache where it is there and loads."""
    if (found := program.built.get(self.device.int_ptr)) is not None:
      return found
    d = self.device
    key = diskcache.key_of(program.source, d.name, d.version, d.driver_version, *OPTIONS)
    with self.typed(f"compiling {program.name}"):
      if (binary := diskcache.get(key)) is not None:
        with contextlib.suppress(cl.LogicError, cl.RuntimeError):  # of another driver: built anew below
          found = cl.Program(self.context, [d], [binary]).build(cache_dir=False)
      if found is None:
        with warnings.catch_warnings(action="ignore"):  # what the compiler says of a kernel that it accepts
          found = cl.Program(self.context, program.source).build(OPTIONS, devices=[d], cache_dir=False)
        diskcache.put(key, found.get_info(cl.program_info.BINARIES)[0])
    program.built[d.int_ptr] = found
    return found

  def new_call(self, program: Program, buffers: int, variables: int) -> Call:
    return Call(self, cl.Kernel(self.build(program), program.name), program, [None] * buffers)

  def enqueue(self, call: Call) -> None:
    with self.typed(call.program.name):
      cl.enqueue_nd_range_kernel(self.queue, call.kernel, call.size, call.program.threads)

  def meet(self, devices: Sequence[CL]) -> None:
    reached = [cl.enqueue_marker(d.queue) for d in devices]
    for d in devices:
      d.flush()
    for d in devices:
      cl.enqueue_barrier(d.queue, wait_for=reached)

  def flush(self) -> None:
    self.queue.flush()

  @contextlib.contextmanager
  def typed(self, what: str) -> Iterator[None]:
    """The driver's errors as ours."""
    try:
      yield
    except cl.Error as e:
      said = [line.strip() for line in str(e).splitlines() if line.strip()]
      errors = [line for line in said if "error:" in line] or said
      raise DeviceError(f"{self.name} ({self.device.name}): {what} failed: " + "\n    ".join(errors[:5])) from e


def open_device(name: str) -> CL:
  return CL(name)
