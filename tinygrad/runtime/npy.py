"""Host arrays as a device: `NPY` holds what came from numpy and goes there; what is computed on it, numpy computes."""

from collections.abc import Sequence
from typing import Any

from tinygrad.device import Backend, DeviceError, Target
from tinygrad.helpers import numpy

ELSEWHERE = "fix: move the value to a device first, e.g. x.to('CPU')"


class HostBackend(Backend):
  """Memory of the process, as numpy arrays; an array given by the user may be strided and read-only."""

  target = Target("NPY")

  def alloc(self, nbytes: int) -> Any:
    return numpy.empty(nbytes, numpy.uint8)

  def free(self, handle: Any, nbytes: int) -> None:
    """The garbage collector's work."""

  def array(self, handle: Any, dtype: Any, shape: Sequence[int]) -> Any:
    """The memory as an array; one that the user gave is taken as it is."""
    return handle if handle.dtype == dtype and handle.shape == tuple(shape) else handle.view(dtype).reshape(shape)

  def copyin(self, handle: Any, data: memoryview) -> None:
    numpy.copyto(handle.reshape(-1).view(numpy.uint8), numpy.frombuffer(data, numpy.uint8))

  def copyout(self, data: memoryview, handle: Any) -> None:
    numpy.copyto(numpy.frombuffer(data, numpy.uint8), numpy.ascontiguousarray(handle).reshape(-1).view(numpy.uint8))

  def view(self, handle: Any) -> memoryview | None:
    return memoryview(handle.reshape(-1).view(numpy.uint8)) if handle.flags.c_contiguous else None

  def render(self, linear: list[Any], name: str) -> str:
    raise DeviceError(f"{self.name} holds host arrays and has no kernels\n  {ELSEWHERE}")

  def synchronize(self) -> None:
    """Host memory is always current."""


open_device = HostBackend
