"""The files that `torch.save` writes, of both formats, read without running any code of theirs."""

import io
import pickle
import pickletools
import reprlib
import struct
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tinygrad.dtype import DType, dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.nn.files import CheckpointError, as_file, zip_contents
from tinygrad.tensor import Tensor

STORAGES: dict[str, DType] = {
  "FloatStorage": dtypes.float32, "DoubleStorage": dtypes.float64, "HalfStorage": dtypes.float16,
  "BFloat16Storage": dtypes.bfloat16, "LongStorage": dtypes.int64, "IntStorage": dtypes.int32,
  "ShortStorage": dtypes.int16, "CharStorage": dtypes.int8, "ByteStorage": dtypes.uint8, "BoolStorage": dtypes.bool,
  "UntypedStorage": dtypes.uint8, "uint16": dtypes.uint16, "uint32": dtypes.uint32, "uint64": dtypes.uint64,
  "float8_e4m3fn": dtypes.fp8e4m3, "float8_e5m2": dtypes.fp8e5m2,
}  # fmt: skip
PLAIN_TENSORS = "save its state_dict(), and complex tensors as torch.view_as_real(x)"
MAGIC = 0x1950A86A20F9469CFC6C  # what a file before PyTorch 1.6 begins with, pickled


class Inert:
  """Stands for an object of a class that no checkpoint needs; its state is dropped."""

  def __init__(self, *args: Any, **kwargs: Any) -> None: ...

  __setstate__ = __setitem__ = append = __init__


def _inert(name: str) -> type[Inert]:
  """By its name, which errors show."""
  return type(name, (Inert,), {"__module__": "builtins"})


def _bytes_of(text: Any, encoding: Any) -> Any:
  """What protocol 2 writes bytes as."""
  return text.encode(encoding) if isinstance(text, str) and encoding == "latin1" else Inert()


def _of_subclass(rebuild: Any, kind: Any, args: Any, state: Any) -> Any:
  """A tensor with attributes, or of a subclass of Tensor, which are dropped."""
  return rebuild(*args)


FUNCTIONS: dict[tuple[str, str], Any] = {
  ("collections", "OrderedDict"): OrderedDict, ("_codecs", "encode"): _bytes_of,
  ("torch._tensor", "_rebuild_from_type_v2"): _of_subclass, ("torch._tensor", "_rebuild_from_type"): _of_subclass,
}  # fmt: skip


class Unpickler(pickle.Unpickler):
  """Runs no code of the file: tensors are rebuilt, and every other class and function becomes `Inert`. `storages` maps
  a storage's key to its bytes."""

  def __init__(self, source: str, file: Any, storages: Mapping[str, memoryview]) -> None:
    super().__init__(file, encoding="utf-8")
    self.source, self.file, self.storages = source, file, storages

  def load(self) -> Any:
    """Looks at the instructions first: Python's unpickler makes room for whatever number one of them names."""
    start = self.file.tell()
    with warnings.catch_warnings(action="ignore"):  # of Python's, about strings in damaged files
      for op, arg, at in pickletools.genops(self.file):  # raises where a string is longer than the file
        if "PUT" in op.name and arg > at - start:  # more values than there were instructions
          raise CheckpointError(self.source, f"value number {arg} is kept at byte {at}, where there cannot be as many")
    self.file.seek(start)
    return super().load()

  def find_class(self, module: str, name: str) -> Any:
    if module == "torch._utils" and name.startswith("_rebuild_"):
      if (rebuild := getattr(self, name, None)) is None:
        fix = "save what is dense: x.to_dense() of a sparse tensor, x.dequantize() of a quantized one"
        raise CheckpointError(self.source, f"holds a tensor made by {module}.{name}, of a kind not known here", fix)
      return rebuild
    if module in ("torch", "torch.storage"):
      return tuple if name == "Size" else STORAGES.get(name) or _inert(name)
    return FUNCTIONS.get((module, name)) or _inert(name)

  def persistent_load(self, pid: Any) -> Any:
    kind, dtype, key = pid[:3]
    if kind != "storage" or not isinstance(dtype, DType) or not isinstance(key, (str, int)):
      shown = reprlib.repr(pid)  # some bytes make values that are endless, written out
      raise CheckpointError(self.source, f"holds {shown}, which is no storage of a known type", PLAIN_TENSORS)
    return dtype, str(key)

  def _rebuild_tensor(self, storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Tensor | None:
    dtype, key = storage
    if key not in self.storages:
      raise CheckpointError(self.source, f"has no storage {key!r}")
    kind, strides = to_numpy_dtype(dtype), [s * dtype.itemsize for s in stride]
    try:  # of no elements any strides will do
      memory = (self.storages[key], offset * dtype.itemsize, strides) if 0 not in size else ()
      view = numpy.ndarray(size, kind, *memory)
    except (ValueError, TypeError) as e:
      raise CheckpointError(self.source, f"a tensor {list(size)} does not lie in its storage {key!r}: {e}") from e
    return Tensor(view)

  _rebuild_tensor_v2 = _rebuild_tensor

  def _rebuild_tensor_v3(self, at: Any, offset: int, size: Any, stride: Any, _: Any, hooks: Any, dtype: Any) -> Any:
    if not isinstance(dtype, DType):
      raise CheckpointError(self.source, f"holds a tensor of {reprlib.repr(dtype)}, no known type", PLAIN_TENSORS)
    return self._rebuild_tensor((dtype, at[1]), offset, size, stride)

  def _rebuild_parameter(self, data: Any, *_: Any) -> Any:
    return data

  _rebuild_parameter_with_state = _rebuild_parameter


class _FirstPass(Unpickler):
  """Notes the storages' types, and makes no tensors."""

  def __init__(self, source: str, file: Any) -> None:
    super().__init__(source, file, {})
    self.seen: dict[str, DType] = {}

  def persistent_load(self, pid: Any) -> Any:
    dtype, key = super().persistent_load(pid)
    self.seen[key] = dtype
    return dtype, key

  def _rebuild_tensor(self, storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Tensor | None:
    return None

  _rebuild_tensor_v2 = _rebuild_tensor


def load_pickles(source: str, data: memoryview) -> Any:
  """A file of PyTorch before 1.6 (or of `_use_new_zipfile_serialization=False`).

  It is three pickles (a magic number, a version, sizes), the object's, that of the storages' keys, and for each of
  these its number of elements (int64) and its bytes. So the object is read twice: first to learn where they are.
  """
  file = as_file(data)
  if _FirstPass(source, file).load() != MAGIC:
    fix = "give a file that torch.save has written"
    raise CheckpointError(source, "is neither a zip archive nor of the format before it", fix)
  for _ in range(2):
    _FirstPass(source, file).load()
  start, first, storages = file.tell(), _FirstPass(source, file), dict[str, memoryview]()
  first.load()
  keys, at = _FirstPass(source, file).load(), file.tell()
  for key in keys:
    (count,) = struct.unpack_from("<q", data, at)
    end = at + 8 + count * first.seen[key].itemsize
    storages[key], at = data[at + 8 : end], end
  file.seek(start)
  return Unpickler(source, file, storages).load()


def load_zipped(source: str, data: memoryview) -> Any:
  """A file of PyTorch since 1.6: a zip archive of one pickle and of each storage's bytes."""
  files = zip_contents(source, data)
  if (main := next((name for name in files if name.endswith("/data.pkl")), None)) is None:
    raise CheckpointError(source, "is a zip archive without data.pkl", "give a file that torch.save has written")
  prefix = main[: -len("data.pkl")]
  if (order := bytes(files.get(f"{prefix}byteorder", b"little"))) != b"little":
    raise CheckpointError(source, f"its byte order is {order.decode()}", "save it on a little-endian machine")
  storages = {name[len(prefix) + 5 :]: part for name, part in files.items() if name.startswith(f"{prefix}data/")}
  return Unpickler(source, io.BytesIO(files[main]), storages).load()
