"""What `Tensor(...)` takes, as nodes: numbers, nested lists, bytes, files, arrays of numpy and of PyTorch."""

from __future__ import annotations

import math
import pathlib
import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tinygrad.device import Device, Placement
from tinygrad.dtype import (
  DType,
  _from_torch_dtype,
  as_const,
  check_holds,
  dtypes,
  from_numpy_dtype,
  to_numpy_dtype,
)
from tinygrad.helpers import numpy
from tinygrad.mixin.base import Base
from tinygrad.runtime import storage
from tinygrad.uop import UOp


def node_of(data: Any, device: Placement | None, dtype: DType | None) -> UOp:
  """The node of a `Tensor(...)` argument. Numbers live anywhere unless a device is given; arrays go to it, or to the
  default one."""
  if isinstance(data, Base):
    data = data.uop if dtype is None else data.cast(dtype).uop
  if isinstance(data, UOp):
    u = data.cast(dtype or (dtypes.default_int if data.dtype is dtypes.index else data.dtype))
    return u if device is None or u.device == device else u.copy_to_device(device)
  if isinstance(data, (bool, int, float)):
    d = dtype or dtypes.from_py(data)
    check_holds(d, data)
    u = UOp.const(d, data, unique=True)
    return u if device is None else u.copy_to_device(device)
  if data is None:
    return UOp.buffer((0,), dtype or dtypes.default_float, Device.DEFAULT if device is None else device)
  if isinstance(data, pathlib.Path):
    u = storage.open_file(data, dtype or dtypes.uint8)
    return u if device is None else storage.read(u).copy_to_device(device)
  array = array_from(data, None if getattr(data, "shape", None) == () else dtype)
  if array.ndim == 0:  # a number of numpy's, which holds what Python's does
    return node_of(array.item(), device, dtype or from_numpy_dtype(array.dtype))
  return UOp.from_numpy(array).copy_to_device(Device.DEFAULT if device is None else device)


def _array_of_torch(tensor: Any) -> Any:
  """The values of a tensor of PyTorch as a numpy array, those of types that numpy lacks by their bits."""
  kind, values = _from_torch_dtype(tensor.dtype), tensor.detach().cpu()
  if kind.fmt is not None:
    return values.numpy()
  word = sys.modules["torch"].uint8 if kind.itemsize == 1 else sys.modules["torch"].int16
  return values.contiguous().view(word).numpy().view(to_numpy_dtype(kind))


def _shown(array: Any) -> Any:
  """It, which hides none of its elements: a tensor cannot, and would compute with what lies under the mask."""
  if "numpy.ma" in sys.modules and numpy.ma.is_masked(array):
    n = numpy.ma.count_masked(array)
    raise ValueError(
      f"{n} of {array.size} elements of the array are masked\n  fix: x.filled(0), or what stands for them"
    )
  return array


def array_from(data: Any, dtype: DType | None) -> Any:
  if isinstance(data, (bytes, bytearray, memoryview)):
    array = numpy.frombuffer(data, numpy.uint8).copy()
  elif isinstance(data, (list, tuple, range)):
    array = _array_of_list(data, dtype)
  elif hasattr(data, "__array__"):
    torch = sys.modules.get("torch")
    is_torch = torch is not None and isinstance(data, torch.Tensor)
    array = _array_of_torch(data) if is_torch else numpy.asarray(_shown(data))
    from_numpy_dtype(array.dtype)  # raises for what is not supported
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
  else:
    several = isinstance(data, Iterable) and not isinstance(data, (str, Mapping))
    fix = "Tensor(list(x))" if several else "give numbers, nested lists, bytes, a path or an array"
    raise TypeError(f"cannot make a Tensor of {type(data).__name__}\n  fix: {fix}")
  return array if dtype is None else array.astype(to_numpy_dtype(dtype), copy=False)


def _array_of_ints(objects: Any, kind: DType) -> Any:
  """An array of Python's integers, which numpy would take for floats or objects."""
  for x in objects.flat:
    check_holds(kind, x)
  values = [as_const(int(x), kind) for x in objects.flat]
  return numpy.array(values, to_numpy_dtype(kind)).reshape(objects.shape)


def _array_of_list(data: Sequence[Any], dtype: DType | None) -> Any:
  if any(isinstance(x, Base) for x in data):
    fix = "join them with Tensor.stack(*tensors) or Tensor.cat(*tensors)"
    raise TypeError(f"a list of tensors is no data\n  fix: {fix}")
  try:
    wide = numpy.asarray(data)
  except ValueError as e:
    fix = "give every row the same number of elements"
    raise ValueError(f"the nested lists have different lengths: {reprlib.repr(data)}\n  fix: {fix}") from e
  if wide.dtype.kind in "OSU" or (wide.dtype == float and (abs(wide) >= 2.0**63).any()):
    objects = numpy.asarray(data, dtype=object)
    if all(isinstance(x, (int, numpy.integer)) for x in objects.flat):  # beyond int64, not all of them beyond it
      return _array_of_ints(objects, dtype or dtypes.from_py(objects.tolist()))
  kind = dtype or dtypes.from_py(data if wide.dtype.kind in "OSU" else wide.tolist())  # numpy's numbers as Python's
  if wide.dtype == object:
    fix = "leave out what is none, and give a whole number that is so large as a float"
    raise TypeError(f"a list for a Tensor must hold numbers, got {reprlib.repr(data)}\n  fix: {fix}")
  if dtypes.is_int(kind):
    whole = numpy.trunc(wide) if wide.dtype.kind == "f" else wide
    for bad in wide[~((whole >= dtypes.min(kind)) & (whole < int(dtypes.max(kind)) + 1))].tolist():
      if isinstance(bad, float) and not math.isfinite(bad):
        raise ValueError(f"{bad} is no {kind.name}\n  fix: a finite number, or a float type")
      check_holds(kind, bad)
  if dtypes.is_float(kind) or dtypes.is_bool(kind) or wide.dtype.kind == "f":
    with numpy.errstate(invalid="ignore", over="ignore"):  # as a cast on a device
      return wide.astype(to_numpy_dtype(kind))
  return wide.astype(numpy.uint64 if wide.dtype.kind == "u" else numpy.int64).astype(to_numpy_dtype(kind))
