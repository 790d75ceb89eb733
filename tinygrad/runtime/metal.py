"""`METAL:i`: Apple's GPUs through pyobjc (extra `[metal]`), a command queue each.

Memory is shared with the host, which reads and writes it in place. A table of peers is a buffer of GPU addresses
(macOS 13), whose memory each dispatch declares; devices meet at shared events. `METAL_VIRTUAL=4` makes four devices of
each physical one, with queues of their own.
"""

from __future__ import annotations

import functools
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import DeviceError, Target
from tinygrad.helpers import LazyModule, getenv
from tinygrad.renderer import cstyle
from tinygrad.runtime.queues import Program, QueueDevice
from tinygrad.uop.ops import UOp

metal: Any = LazyModule("Metal")
objc: Any = LazyModule("objc")
TARGET = Target("METAL", vector_registers=96, scratch=32 << 10, threads=True, float64=False)
SHARED, READ = 0, 1  # MTLResourceStorageModeShared, MTLResourceUsageRead


@functools.cache
def gpus() -> list[Any]:
  """The MTLDevices here. Raises: DeviceError if there is none."""
  if platform.system() != "Darwin":
    raise DeviceError(
      f"METAL needs macOS (this is {platform.system()})\n  fix: GPU=CPU in the environment, or CUDA or CL"
    )
  if not (found := list(metal.MTLCopyAllDevices())):
    raise DeviceError("there is no Metal device here\n  fix: GPU=CPU in the environment runs GPU examples on the CPU")
  return found


@dataclass(slots=True, eq=False, weakref_slot=True)
class Call:
  """A kernel with its arguments in place. The entry of a table of peers is (table, what it leads to)."""

  device: METAL
  program: Program
  pipeline: Any
  memory: list[Any]
  variables: list[int]

  def set_buffer(self, slot: int, memory: Any) -> None:
    if isinstance(memory, list):  # a new table: what is queued reads the old one, and keeps it
      words = struct.pack(f"<{len(memory)}Q", *(m.gpuAddress() for m in memory))
      memory = self.device.gpu.newBufferWithBytes_length_options_(words, len(words), SHARED), memory
    self.memory[slot] = memory

  def set_variable(self, number: int, value: int) -> None:
    """The variable `number`, in the order of names."""
    self.variables[number] = value


class METAL(QueueDevice):
  """One device and its queue. What is encoded is committed where devices meet, and at the end of a hand-over."""

  target = TARGET

  def __init__(self, name: str) -> None:
    super().__init__(name)
    number, several = int(name.partition(":")[2] or 0), getenv("METAL_VIRTUAL", 1)
    if number >= len(gpus()) * several:
      raise DeviceError(f"{name}: there are {len(gpus())} Metal devices here\n  fix: METAL_VIRTUAL=n makes n of each")
    self.number = number // several
    self.gpu = gpus()[self.number]
    self.queue, self.event = self.gpu.newCommandQueue(), self.gpu.newSharedEvent()
    self.reached = 0  # how often the event has been signalled
    self.commands: Any = None  # command buffer
    self.encoder: Any = None  # of kernels, into it
    self.committed: list[Any] = []  # since the last wait
    self.description = f"{len(gpus()) * several} of {self.gpu.name()}"

  def reaches(self, other: METAL) -> bool:
    """Whether kernels here may read the other's memory: addresses are those of one GPU."""
    return self.gpu is other.gpu

  def wait(self) -> None:
    self.flush()
    committed, self.committed = self.committed, []
    for commands in committed:
      commands.waitUntilCompleted()
    if failed := [str(e) for commands in committed if (e := commands.error()) is not None]:
      suspects = self.suspects()
      self.queued.clear()
      said = "\n    ".join(failed[:5])
      raise DeviceError(f"{self.name} ({self.gpu.name()}): work that was queued failed: {said}\n  among{suspects}")

  # ---- memory

  def new_memory(self, nbytes: int) -> Any:
    if (memory := self.gpu.newBufferWithLength_options_(max(nbytes, 8), SHARED)) is None:
      fix = "smaller batches, or free what is no longer needed"
      raise MemoryError(f"{self.name}: no memory for a buffer of {nbytes} bytes\n  fix: {fix}")
    return memory

  def view(self, handle: Any) -> memoryview:
    return memoryview(handle.contents().as_buffer(handle.length())).cast("B")

  def copyin(self, handle: Any, data: memoryview, offset: int = 0) -> None:
    self.synchronize()  # reused memory may still be read
    if data.nbytes:
      self.view(handle)[offset : offset + data.nbytes] = data.cast("B")

  def copyout(self, data: memoryview, handle: Any, offset: int = 0) -> None:
    self.synchronize()
    if data.nbytes:
      data.cast("B")[:] = self.view(handle)[offset : offset + data.nbytes]

  # ---- kernels

  def render(self, linear: list[UOp], name: str) -> str:
    return cstyle.render(linear, name, cstyle.METAL)

  def build(self, program: Program) -> Any:
    if (found := program.built.get(self.number)) is not None:
      return found
    options = metal.MTLCompileOptions.alloc().init()
    options.setFastMathEnabled_(False)  # NaN, infinities and the order of operations are as written
    library, error = self.gpu.newLibraryWithSource_options_error_(program.source, options, None)
    if library is not None:
      function = library.newFunctionWithName_(program.name)
      found, error = self.gpu.newComputePipelineStateWithFunction_error_(function, None)
    if found is None:
      said = [line.strip() for line in str(error).splitlines() if line.strip()]
      errors = [line for line in said if "error:" in line] or said
      raise DeviceError(f"{self.name} ({self.gpu.name()}): compiling {program.name}: " + "\n    ".join(errors[:5]))
    program.built[self.number] = found
    return found

  def new_call(self, program: Program, buffers: int, variables: int) -> Call:
    return Call(self, program, self.build(program), [None] * buffers, [0] * variables)

  def enqueue(self, call: Call) -> None:
    with objc.autorelease_pool():
      if self.encoder is None:
        self.encoder = self.open().computeCommandEncoder()  # serial: each kernel after the one before
      into = self.encoder
      into.setComputePipelineState_(call.pipeline)
      for slot, memory in enumerate(call.memory):
        if isinstance(memory, tuple):
          memory, reached = memory
          for m in reached:
            into.useResource_usage_(m, READ)
        into.setBuffer_offset_atIndex_(memory, 0, slot)
      for i, value in enumerate(call.variables):
        into.setBytes_length_atIndex_(struct.pack("<q", value), 8, len(call.memory) + i)
      groups, threads = (metal.MTLSizeMake(*n) for n in (call.program.groups, call.program.threads))
      into.dispatchThreadgroups_threadsPerThreadgroup_(groups, threads)

  def open(self) -> Any:
    """The command buffer that is being filled."""
    if self.commands is None:
      self.commands = self.queue.commandBuffer()
    return self.commands

  def close(self) -> None:
    """Ends the kernels of the command buffer: events stand between encoders."""
    if self.encoder is not None:
      self.encoder.endEncoding()
      self.encoder = None

  def meet(self, devices: Sequence[METAL]) -> None:
    with objc.autorelease_pool():
      for d in devices:  # all signals are committed before the first wait, so that no queue waits for what never comes
        d.close()
        d.reached += 1
        d.open().encodeSignalEvent_value_(d.event, d.reached)
        d.flush()
      for d in devices:
        for other in devices:
          if other is not d:
            d.open().encodeWaitForEvent_value_(other.event, other.reached)

  def flush(self) -> None:
    if self.commands is not None:
      self.close()
      self.commands.commit()
      self.committed.append(self.commands)
      self.commands = None


def open_device(name: str) -> METAL:
  return METAL(name)
