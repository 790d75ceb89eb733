"""Values on devices that store and compute nothing, as files are: shown as numpy arrays over the device's memory, read
where they are used, and written in place.
"""

from __future__ import annotations

import os
from typing import Any

from tinygrad.device import Buffer, Computes, Device, DeviceError
from tinygrad.dtype import DType, to_numpy_dtype
from tinygrad.helpers import file_size, numpy
from tinygrad.ops import Trait, having
from tinygrad.runtime.npy import ELSEWHERE
from tinygrad.uop import Ops, UOp, buffer_of, evaluate


def only_stored(device: object) -> bool:
  """Whether a placement is a device that computes nothing."""
  return isinstance(device, str) and Device.capabilities(device).computes is Computes.NOTHING


def read(u: UOp) -> UOp:
  """What is shown of a stored value, as host data: a BUFFER over the device's memory. Raises what `mapped` does."""
  return UOp.from_numpy(mapped(u))


def open_file(path: os.PathLike[str], dtype: DType) -> UOp:
  """The BUFFER of a file. Raises: OSError where there is none; ValueError if it does not divide into elements."""
  size = file_size(path)
  if size % dtype.itemsize:
    fix = "open it as bytes, and bitcast the slice that holds the numbers"
    raise ValueError(f"{os.fspath(path)} has {size} bytes, which are no whole number of {dtype.name}\n  fix: {fix}")
  return UOp.buffer((size // dtype.itemsize,), dtype, Device.canonicalize(f"DISK:{os.path.abspath(path)}"))


def mapped(u: UOp) -> Any:
  """A view of a file as a numpy array, over its map where numpy can express it. Raises DeviceError if it is computed
  rather than shown.
  """
  if u.op is Ops.BUFFER and only_stored(u.device):
    memory = buffer_of(u)
    array: Any = memory.handle()
    return array[: memory.nbytes_per_device].view(to_numpy_dtype(u.dtype)).reshape(u.shape)
  if u.op is Ops.BITCAST:
    return mapped(u.src[0]).view(to_numpy_dtype(u.dtype))
  if u.op not in having(Trait.VIEW) and u.op is not Ops.CONTIGUOUS:
    said = f"{u.op.name.lower()} of {u.dtype.name}{list(u.shape)}: nothing is computed on {u.device}"
    raise DeviceError(f"{said}\n  {ELSEWHERE}")
  return evaluate(u, [mapped(u.src[0])], u.shape)


def bitcast_stored(u: UOp, dtype: DType) -> UOp:
  """The same bytes as elements of `dtype`, still in the file: the last dim grows or shrinks."""
  array = mapped(u)
  if not array.flags.c_contiguous:
    raise DeviceError(f"bitcast of a strided view of {u.device}\n  {ELSEWHERE}")
  if not array.ndim or array.shape[-1] * array.dtype.itemsize % dtype.itemsize:
    raise ValueError(f"bitcast: {u.dtype.name}{list(u.shape)} does not divide into elements of {dtype.itemsize} bytes")
  other = array.view(to_numpy_dtype(dtype))
  there = Buffer(str(u.device), other.shape, dtype).allocate([other.reshape(-1).view(numpy.uint8)])
  return UOp.buffer(other.shape, dtype, str(u.device), there)


def write(u: UOp, value: Any) -> None:
  """Puts a numpy array into a view of a file. Raises DeviceError for a file that cannot be written, and for a view that
  numpy cannot express.
  """
  array, (*_, whole) = mapped(u), u.down()
  if array.size and not numpy.may_share_memory(array, mapped(whole)):
    raise DeviceError(f"assign to a rearranged view of {u.device}\n  fix: assign to the tensor itself, or to a slice")
  if not array.flags.writeable:
    raise DeviceError(f"{u.device} cannot be written\n  fix: check the file's permissions, or write to another file")
  array[...] = value
