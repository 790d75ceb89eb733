"""`METAL:i`: Apple's GPUs through pyobjc (extra `[metal]`), a command queue each.

Memory is shared with the host, which reads and writes it in place. A table of peers is a buffer of GPU addresses
(macOS 13), whose memory each dispatch declares; devices meet at shared events. `METAL_VIRTUAL=4` makes four devices of
each physical one, with queues of their own.
"""

from __future__ import annotations

import functools
import platform
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

from tinygrad.device import ON_CPU, Backend, DeviceError, Target
from tinygrad.helpers import LazyModule, getenv
from tinygrad.renderer import dialects
from tinygrad.runtime.queues import LESS, Call, GridKernel, QueueDevice, errors_of

metal, objc = map(LazyModule, ("Metal", "objc"))
SHARED, READ = 0, 1  # MTLResourceStorageModeShared, MTLResourceUsageRead
COMPLETED = 4  # MTLCommandBufferStatusCompleted; what is greater has failed
METAL_3_0 = 3 << 16  # MTLLanguageVersion3_0: that of macOS 13, the first where memory has addresses
SAFE = 0  # MTLMathModeSafe


@functools.cache
def gpus() -> list[Any]:
  """The MTLDevices here. Raises: DeviceError if there is none."""
  if platform.system() != "Darwin":
    raise DeviceError(f"METAL needs macOS (this is {platform.system()})\n  {ON_CPU}")
  if not (found := list(metal.MTLCopyAllDevices())):
    raise DeviceError(f"there is no Metal device here\n  {ON_CPU}")
  return found


class METAL(QueueDevice):
  """One device and its queue. What is encoded is committed where devices meet, and at the end of a hand-over."""

  dialect = dialects.METAL
  target = Target("METAL", vector_registers=96, scratch=32 << 10, threads=True, intensity=8, float64=False)

  def __init__(self, name: str) -> None:
    super().__init__(name)
    several = getenv("METAL_VIRTUAL", 1, 1)
    self.gpu = self.choose(gpus(), "Metal devices", "METAL_VIRTUAL=n makes n of each", several)
    self.queue, self.event = self.gpu.newCommandQueue(), self.gpu.newSharedEvent()
    self.reached = 0  # how often the event has been signalled
    self.commands: Any = None  # command buffer
    self.encoder: Any = None  # of kernels, into it
    self.declared: set[Any] = set()  # memory behind tables that the encoder's kernels may read, each told once
    self.committed: deque[Any] = deque()  # that may still run: at most as many as the queue takes, 64
    self.failed: list[str] = []  # what went wrong in others since the last wait
    self.description = f"{len(gpus()) * several} of {self.gpu.name()}"

  def reaches(self, other: METAL) -> bool:
    """Whether kernels here may read the other's memory: addresses are those of one GPU."""
    return self.gpu is other.gpu

  def wait(self) -> None:
    self.flush()
    while self.committed:
      self.committed[0].waitUntilCompleted()
      self.forget()
    failed, self.failed = self.failed, []
    if failed:
      told = "\n    ".join(failed[:5]) + "\n  among" + self.suspects()
      raise DeviceError(f"{self.name} ({self.gpu.name()}): work that was queued failed: {told}")

  def forget(self) -> None:
    """Lets go of the command buffers that are done, in their order, once what they say of errors is known."""
    while self.committed and self.committed[0].status() >= COMPLETED:
      if (error := self.committed.popleft().error()) is not None:
        self.failed.append(str(error))

  # ---- memory

  def new_memory(self, nbytes: int) -> Any:
    if (memory := self.gpu.newBufferWithLength_options_(max(nbytes, 8), SHARED)) is None:
      raise MemoryError(f"{self.name}: no memory for a buffer of {nbytes} bytes\n  {LESS}")
    return memory

  def view(self, handle: Any) -> memoryview:
    return memoryview(handle.contents().as_buffer(handle.length())).cast("B")

  def table(self, call: Any, slot: int, memory: Sequence[Any]) -> Any:
    """A new one: what is queued reads the old, and keeps it."""
    words = struct.pack(f"<{len(memory)}Q", *(m.gpuAddress() for m in memory))
    return self.gpu.newBufferWithBytes_length_options_(words, len(words), SHARED)

  # ---- kernels

  def build(self, program: GridKernel) -> Any:
    found = None
    options = metal.MTLCompileOptions.alloc().init()
    options.setLanguageVersion_(METAL_3_0)  # the same language whatever system compiles it
    if options.respondsToSelector_("setMathMode:"):  # NaN, infinities and the order of operations are as written
      options.setMathMode_(SAFE)
    else:  # before macOS 15
      options.setFastMathEnabled_(False)
    library, error = self.gpu.newLibraryWithSource_options_error_(program.source, options, None)
    if library is not None:
      function = library.newFunctionWithName_(program.name)
      found, error = self.gpu.newComputePipelineStateWithFunction_error_(function, None)
    if found is None:
      raise DeviceError(f"{self.name} ({self.gpu.name()}): compiling {program.name}: {errors_of(error)}")
    return found

  def enqueue(self, call: Call) -> None:
    with objc.autorelease_pool():
      if self.encoder is None:
        self.encoder = self.open().computeCommandEncoder()  # serial: each kernel after the one before
      into = self.encoder
      into.setComputePipelineState_(call.built)
      for i, word in enumerate(call.words):
        if isinstance(word, int):
          into.setBytes_length_atIndex_(struct.pack("<q", word), 8, i)
        else:
          into.setBuffer_offset_atIndex_(word, 0, i)
      for peers in call.memory:
        for reached in peers[1] if isinstance(peers, tuple) else ():
          if reached not in self.declared:  # it stays declared until the encoder ends
            self.declared.add(reached)
            into.useResource_usage_(reached, READ)
      groups, threads = (metal.MTLSizeMake(*n) for n in (call.program.launch.groups, call.program.launch.threads))
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
      self.declared.clear()

  def meet(self, devices: Sequence[METAL]) -> None:
    """The first waits for all others, and these for it. What is waited for has been committed before, so that no queue
    waits for what never comes."""
    with objc.autorelease_pool():
      first, *others = devices
      for d in (*others, first):
        d.close()
        for other in others if d is first else ():
          d.open().encodeWaitForEvent_value_(other.event, other.reached)
        d.reached += 1
        d.open().encodeSignalEvent_value_(d.event, d.reached)
        d.flush()
      for d in others:
        d.open().encodeWaitForEvent_value_(first.event, first.reached)

  def flush(self) -> None:
    if self.commands is not None:
      self.close()
      self.commands.commit()
      self.committed.append(self.commands)
      self.commands = None
      self.forget()


open_device: type[Backend] = METAL
