"""Host arrays as a device: `NPY` holds what came from numpy and goes there; what is computed on it, numpy computes."""

from collections.abc import Sequence
from typing import Any, NoReturn

from tinygrad.device import Backend, Capabilities, Computes, DeviceError, Target
from tinygrad.helpers import numpy

ELSEWHERE = "fix: move the value to a device first, e.g. x.to('CPU')"


class HostBackend(Backend):
  """Memory of the process, as numpy arrays; an array given by the user may be strided and read-only."""

  target = Target("NPY")
  capabilities = Capabilities(computes=Computes.ON_HOST, arrays=True)

  def alloc(self, nbytes: int) -> Any:
    return numpy.empty(nbytes, numpy.uint8)

  def free(self, handle: Any, nbytes: int) -> None:
    """The garbage collector's work."""

  def array(self, handle: Any, dtype: Any, shape: Sequence[int]) -> Any:
    """The memory as an array; one that the user gave is taken as it is."""
    return handle if handle.dtype == dtype and handle.shape == tuple(shape) else handle.view(dtype).reshape(shape)

  def copyin(self, handle: Any, data: memoryview, offset: int = 0) -> None:
    numpy.copyto(handle.reshape(-1).view(numpy.uint8), numpy.frombuffer(data, numpy.uint8))

  def copyout(self, data: memoryview, handle: Any, offset: int = 0) -> None:
    numpy.copyto(numpy.frombuffer(data, numpy.uint8), numpy.ascontiguousarray(handle).reshape(-1).view(numpy.uint8))

  def view(self, handle: Any) -> memoryview | None:
    return memoryview(handle.reshape(-1).view(numpy.uint8)) if handle.flags.c_contiguous else None

  def no_kernels(self, *args: Any, **more: Any) -> NoReturn:
    raise DeviceError(f"{self.name} holds host arrays and has no kernels\n  {ELSEWHERE}")

  render = compile = bind = barrier = batch = submit_all = no_kernels

  def synchronize(self) -> None:
    """Host memory is always current."""


open_device: type[Backend] = HostBackend
