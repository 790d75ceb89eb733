"""`NULL:i`: a simulated device. Everything but memory and work: kernels are lowered, never compiled or run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinygrad.device import Target
from tinygrad.renderer import llvm
from tinygrad.uop.ops import UOp

TARGET = Target("NULL", vector_bytes=32, vector_registers=16, scratch=64 << 20)


@dataclass(frozen=True, slots=True)
class NullDevice:
  """Handles and programs are None; nothing is bound or called, since the engine leaves simulated devices out."""

  name: str
  simulated: bool = True
  target: Target = TARGET

  def alloc(self, nbytes: int) -> None:
    """No memory."""

  def free(self, handle: None, nbytes: int) -> None:
    """Nothing to free."""

  def wrap(self, array: Any) -> None:
    """Never: there is no memory to share."""

  def view(self, handle: None) -> None:
    """There is no memory to look at."""

  def copyin(self, handle: None, data: memoryview) -> None:
    """The data goes nowhere."""

  def copyout(self, data: memoryview, handle: None) -> None:
    """Reads as zeros."""
    if data.nbytes:
      data.cast("B")[:] = bytes(data.nbytes)

  def render(self, linear: list[UOp], name: str) -> str:
    return llvm.render(linear, name)

  def compile(self, source: str, name: str) -> None:
    """No code."""

  def synchronize(self) -> None:
    """Nothing is ever pending."""


def open_device(name: str) -> NullDevice:
  return NullDevice(name)
