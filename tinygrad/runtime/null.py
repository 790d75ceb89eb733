"""`NULL:i`: a simulated device. Everything but memory and work: kernels are lowered, never compiled or run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Target
from tinygrad.renderer import llvm
from tinygrad.uop.ops import UOp

TARGET = Target("NULL", vector_bytes=32, vector_registers=16, scratch=64 << 20)


@dataclass(frozen=True, slots=True)
class NullDevice:
  """Has the methods of every backend (runtime/cpu.py); handles, programs and calls are None."""

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

  def bind(self, program: None, args: Sequence[Any], variables: Sequence[int] = ()) -> None:
    """Nothing to call."""

  def launch(self, program: None, args: Sequence[Any], variables: Sequence[int] = ()) -> None:
    """No work."""

  def submit(self, calls: Sequence[None]) -> None:
    """No work."""

  def synchronize(self) -> None:
    """Nothing is ever pending."""

  @staticmethod
  def barrier(devices: Sequence[NullDevice]) -> list[None]:
    return [None] * len(devices)

  @staticmethod
  def batch(calls: Sequence[None]) -> Sequence[None]:
    return calls

  @staticmethod
  def submit_all(devices: Sequence[NullDevice], lists: Sequence[Sequence[None]]) -> None:
    """No work."""


def open_device(name: str) -> NullDevice:
  return NullDevice(name)
