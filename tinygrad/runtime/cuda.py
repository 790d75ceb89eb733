"""`CUDA:i`: NVIDIA devices through the driver and NVRTC (cuda-bindings, extra `[cuda]`), a stream each.

Physical devices of one process reach each other's memory, so a table of peers is a buffer of addresses; devices meet at
events. `CUDA_VIRTUAL=4` makes four devices of each physical one, with streams of their own.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import DeviceError, Target
from tinygrad.helpers import LazyModule, getenv, prod
from tinygrad.renderer import cstyle
from tinygrad.runtime import diskcache
from tinygrad.runtime.queues import Program, QueueDevice
from tinygrad.uop.ops import UOp

driver: Any = LazyModule("cuda.bindings.driver")
nvrtc: Any = LazyModule("cuda.bindings.nvrtc")
TARGET = Target("CUDA", vector_registers=96, scratch=48 << 10, threads=True)
STAGING = 16 << 20  # bytes of pinned host memory through which copies go, in two halves


def call(function: str, *args: Any) -> Any:
  """A function of the driver: what it returns beside its status.

  Raises: MemoryError where the device is out of memory, else DeviceError.
  """
  status, *rest = getattr(driver, function)(*args)
  if status != driver.CUresult.CUDA_SUCCESS:
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
      raise MemoryError(f"{function}: the device is out of memory\n  fix: smaller batches, or free what is not needed")
    raise DeviceError(f"{function} failed: {status.name}")
  return rest[0] if len(rest) == 1 else tuple(rest) if rest else None


def compile_source(source: str, name: str, arch: str) -> bytes:
  """The machine code of a kernel for an architecture, e.g. "sm_90"; from the disk cache where it is there. Needs no
  device.

  Raises: DeviceError with what the compiler said.
  """
  _, major, minor = nvrtc.nvrtcVersion()
  key = diskcache.key_of(source, arch, f"nvrtc {major}.{minor}")
  if (code := diskcache.get(key)) is not None:
    return code
  _, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
  try:
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
      log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
      nvrtc.nvrtcGetProgramLog(program, log)
      errors = [line for line in log.decode().splitlines() if "error" in line]
      raise DeviceError(f"CUDA: compiling {name} for {arch} failed: " + "\n    ".join(errors[:5]))
    code = bytes(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, code)
  finally:
    nvrtc.nvrtcDestroyProgram(program)
  diskcache.put(key, code)
  return code


@dataclass(slots=True, eq=False)
class Memory:
  """Device memory, given back when nothing refers to it."""

  device: CUDA
  address: int
  nbytes: int

  def __del__(self) -> None:
    self.device.current()
    driver.cuMemFree(self.address)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Call:
  """A kernel with its arguments in place: 8-byte words, and pointers to them."""

  device: CUDA
  program: Program
  function: Any
  words: Any
  pointers: Any
  memory: list[Any]

  def set_buffer(self, slot: int, memory: Any) -> None:
    self.memory[slot] = memory
    if isinstance(memory, list):
      table = self.device.table(self, [m.address for m in memory])
      self.memory[slot] = (table, memory)
      memory = table
    self.words[slot] = memory.address

  def set_variable(self, number: int, value: int) -> None:
    """The variable `number`, in the order of names."""
    self.words[len(self.memory) + number] = value


@functools.cache
def contexts() -> list[Any]:
  """The primary context of each physical device; every one may read the others' memory.

  Raises: DeviceError if there is no driver or no device.
  """
  try:
    call("cuInit", 0)
    devices = [call("cuDeviceGet", i) for i in range(call("cuDeviceGetCount"))]
  except (DeviceError, RuntimeError) as e:
    raise DeviceError(
      f"no NVIDIA driver works here ({e})\n  fix: install the driver, or run GPU examples with GPU=CPU"
    ) from e
  if not devices:
    raise DeviceError("there is no NVIDIA device here\n  fix: GPU=CPU in the environment runs GPU examples on the CPU")
  out = [call("cuDevicePrimaryCtxRetain", d) for d in devices]
  for i, context in enumerate(out):
    call("cuCtxSetCurrent", context)
    for k, other in enumerate(out):
      if i != k and call("cuDeviceCanAccessPeer", devices[i], devices[k]):
        call("cuCtxEnablePeerAccess", other, 0)
  return out


class CUDA(QueueDevice):
  """One device and its stream."""

  target = TARGET

  def __init__(self, name: str) -> None:
    super().__init__(name)
    number, several = int(name.partition(":")[2] or 0), getenv("CUDA_VIRTUAL", 1)
    if number >= len(contexts()) * several:
      raise DeviceError(
        f"{name}: there are {len(contexts())} NVIDIA devices here\n  fix: CUDA_VIRTUAL=n makes n of each"
      )
    self.number = number // several
    self.context = contexts()[self.number]
    self.current()
    self.stream = call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    self.reached = call("cuEventCreate", driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    device = call("cuDeviceGet", self.number)
    kinds = driver.CUdevice_attribute
    major, minor = (
      call("cuDeviceGetAttribute", kind, device)
      for kind in (
        kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
      )
    )
    self.arch = f"sm_{major}{minor}"
    self.staging: Any = None
    self.description = f"{len(contexts()) * several} of {self.arch}"

  def current(self) -> None:
    """Makes this device the calling thread's."""
    driver.cuCtxSetCurrent(self.context)

  def wait(self) -> None:
    self.current()
    call("cuStreamSynchronize", self.stream)

  # ---- memory

  def new_memory(self, nbytes: int) -> Memory:
    self.current()
    return Memory(self, int(call("cuMemAlloc", max(nbytes, 8))), nbytes)

  def chunks(self, nbytes: int) -> Any:
    """(offset, size, pinned memory) of the pieces of a copy; halves of the staging memory in turn, each free again."""
    self.current()
    if self.staging is None:
      address = int(call("cuMemHostAlloc", STAGING, 0))
      self.staging = memoryview((ctypes.c_char * STAGING).from_address(address)).cast("B"), address
    view, address = self.staging
    half = STAGING // 2
    for i, at in enumerate(range(0, nbytes, half)):
      call("cuStreamSynchronize", self.stream) if i % 2 == 0 else None
      size, start = min(half, nbytes - at), (i % 2) * half
      yield at, size, view[start : start + size], address + start

  def copyin(self, handle: Memory, data: memoryview) -> None:
    data = data.cast("B") if data.nbytes else data
    for at, size, pinned, address in self.chunks(data.nbytes):
      pinned[:] = data[at : at + size]
      call("cuMemcpyHtoDAsync", handle.address + at, address, size, self.stream)
    self.wait()

  def copyout(self, data: memoryview, handle: Memory) -> None:
    data = data.cast("B") if data.nbytes else data
    for at, size, pinned, address in self.chunks(data.nbytes):
      call("cuMemcpyDtoHAsync", address, handle.address + at, size, self.stream)
      self.wait()
      data[at : at + size] = pinned

  # ---- kernels

  def render(self, linear: list[UOp], name: str) -> str:
    return cstyle.render(linear, name, cstyle.CUDA)

  def build(self, program: Program) -> Any:
    if (found := program.built.get(self.number)) is None:
      code = compile_source(program.source, program.name, self.arch)
      self.current()
      module = call("cuModuleLoadData", code)
      found = program.built[self.number] = call("cuModuleGetFunction", module, program.name.encode())
    return found

  def new_call(self, program: Program, buffers: int, variables: int) -> Call:
    n = buffers + variables
    words = (ctypes.c_int64 * n)()
    pointers = (ctypes.c_void_p * n)(*(ctypes.addressof(words) + 8 * i for i in range(n)))
    return Call(self, program, self.build(program), words, pointers, [None] * buffers)

  def enqueue(self, bound: Call) -> None:
    self.current()
    p = bound.program
    try:
      call("cuLaunchKernel", bound.function, *p.groups, *p.threads, 0, self.stream, ctypes.addressof(bound.pointers), 0)
    except DeviceError as e:
      raise DeviceError(f"{self.name}: launching {p.name} ({prod(p.threads)} threads a group): {e}") from e

  def meet(self, devices: Sequence[CUDA]) -> None:
    for d in devices:
      d.current()
      call("cuEventRecord", d.reached, d.stream)
    for d in devices:
      d.current()
      for other in devices:
        if other is not d:
          call("cuStreamWaitEvent", d.stream, other.reached, 0)


def open_device(name: str) -> CUDA:
  return CUDA(name)
