"""`NULL:i`: a simulated device. Everything but memory and work: kernels are lowered, never compiled or run.

`target` and `devices` are those of what it stands for (simulation/session.py)."""

from typing import Any, ClassVar

from tinygrad.device import Backend, Capabilities, Rendered, Target
from tinygrad.renderer import llvm
from tinygrad.uop import UOp

TARGET = Target("NULL", vector_bytes=32, vector_registers=16, scratch=64 << 20)


class NullDevice(Backend):
  """Handles and programs are None; nothing is bound or called, since the engine leaves simulated devices out."""

  capabilities = Capabilities(simulated=True)
  target = TARGET
  devices: ClassVar[int] = 0  # how many there are; 0: as many as cores

  def nothing(self, *args: Any, **more: Any) -> Any:
    """No memory, no code, and nothing is ever pending."""

  alloc = free = copyin = compile = bind = barrier = batch = submit_all = synchronize = nothing

  def count(self) -> int:
    return self.devices or super().count()

  def copyout(self, data: memoryview, handle: None, offset: int = 0) -> None:
    """Reads as zeros."""
    if data.nbytes:
      data.cast("B")[:] = bytes(data.nbytes)

  def render(self, linear: list[UOp], name: str) -> Rendered:
    return llvm.render(linear, name)


open_device: type[Backend] = NullDevice
