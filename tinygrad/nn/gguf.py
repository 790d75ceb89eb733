"""Read GGUF files: memory-mapped, every read checked against the file's size.

The format is the one described in ggml's docs/gguf.md, versions 2 and 3, little-endian:
  "GGUF" | version u32 | tensors u64 | pairs u64 | pairs: key, type, value | infos: name, dims, type, offset | data
A string is a u64 length and its UTF-8 bytes. Dims are stored with the fastest-moving first; here they are row-major.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import LazyModule
from tinygrad.helpers import numpy as np
from tinygrad.tensor import Tensor

if TYPE_CHECKING:
  from gguf import GGMLQuantizationType
  from numpy.typing import NDArray

ggml: Any = LazyModule("gguf")  # the sizes of the tensor types, and the values of the quantised ones
T = TypeVar("T")
File = Tensor | str | os.PathLike[str]  # a file's path, or its bytes as a uint8 tensor
MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_NESTING = 4  # of arrays within arrays
Q8_BLOCK = 32  # weights that share one scale
REFETCH = "the file is damaged or incomplete: download or write it again"
RECONVERT = "convert the model again with a current converter"
SMALLER = "use a file with F32, F16 and Q8_0 tensors (llama-quantize MODEL OUT Q8_0 makes one)"


class GGUFError(ValueError):
  """A GGUF file that cannot be used: names the file, the field, the byte offset, and a fix."""

  def __init__(self, path: str | os.PathLike[str], field: str, problem: str, fix: str, offset: int | None = None):
    where = f"{os.fspath(path)}: {field}" + ("" if offset is None else f" at byte {offset}")
    super().__init__(f"GGUF {where}: {problem}\n  fix: {fix}")


PLAIN: dict[str, DType] = {
  "F32": dtypes.float32, "F16": dtypes.float16, "BF16": dtypes.bfloat16, "F64": dtypes.float64,
  "I8": dtypes.int8, "I16": dtypes.int16, "I32": dtypes.int32, "I64": dtypes.int64,
}  # fmt: skip

BOOL, STRING, ARRAY = 7, 8, 9
SCALARS: dict[int, str] = {
  0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip


def contents(fn: File) -> tuple[str, memoryview]:
  """(what errors call it, its bytes): a mapped file, or the bytes of a uint8 tensor."""
  if isinstance(fn, Tensor):
    return "tensor", memoryview(np.ascontiguousarray(fn.numpy())).cast("B")
  with open(fn, "rb") as f:  # an empty file cannot be mapped
    size = os.fstat(f.fileno()).st_size
    return os.fspath(fn), memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")


@dataclass(frozen=True, slots=True)
class TensorInfo:
  """Where one tensor lies: `shape` is row-major, `offset` and `nbytes` are in bytes of the file."""

  name: str
  shape: tuple[int, ...]
  type: GGMLQuantizationType
  offset: int
  nbytes: int


class _Cursor:
  """Reads forward through the bytes of a file; whatever would leave the file is a GGUFError."""

  def __init__(self, path: str, data: memoryview):
    self.path, self.data, self.at = path, data, 0

  def check(self, ok: bool, field: str, problem: str, fix: str = REFETCH, at: int | None = None) -> None:
    if not ok:
      raise GGUFError(self.path, field, problem, fix, self.at if at is None else at)

  def need(self, nbytes: int, field: str, what: str = "") -> None:
    """Raise unless at least `nbytes` bytes can follow."""
    if nbytes > (left := len(self.data) - self.at):
      problem = f"{what or nbytes} needs at least {nbytes} bytes, and {left} are left in the file"
      raise GGUFError(self.path, field, problem, REFETCH, self.at)

  def take(self, nbytes: int, field: str, what: str = "") -> memoryview:
    self.need(nbytes, field, what)
    self.at += nbytes
    return self.data[self.at - nbytes : self.at]

  def u32(self, field: str) -> int:
    return int(struct.unpack("<I", self.take(4, field))[0])

  def u64(self, field: str) -> int:
    return int(struct.unpack("<Q", self.take(8, field))[0])

  def string(self, field: str) -> str:
    n = self.u64(field)
    text = self.take(n, field, f"a string of {n} bytes")
    try:
      return str(text, "utf-8")
    except UnicodeDecodeError as e:
      raise GGUFError(self.path, field, f"not UTF-8: {e.reason}", REFETCH, self.at - n + e.start) from e

  def value(self, kind: int, field: str, depth: int = 0) -> Any:
    if kind == STRING:
      return self.string(field)
    if kind == ARRAY:
      return self.array(field, depth)
    self.check(kind in SCALARS, field, f"unknown value type {kind}", at=self.at - 4)
    return self.numbers(kind, 1, field)[0]

  def array(self, field: str, depth: int) -> list[Any]:
    self.check(depth < MAX_NESTING, field, f"arrays nested more than {MAX_NESTING} deep")
    kind, n = self.u32(field), self.u64(field)
    if kind in SCALARS:
      return self.numbers(kind, n, field)
    self.check(kind in (STRING, ARRAY), field, f"unknown element type {kind}", at=self.at - 12)
    self.need(n * (8 if kind == STRING else 12), field, f"an array of {n} elements")
    return [self.value(kind, f"{field}[{i}]", depth + 1) for i in range(n)]

  def numbers(self, kind: int, n: int, field: str) -> list[Any]:
    dt, start = np.dtype(SCALARS[kind]), self.at
    x = np.frombuffer(self.take(n * dt.itemsize, field, f"an array of {n} elements"), dt)
    if kind == BOOL:
      self.check(x.max(initial=0) <= 1, field, f"a bool is 0 or 1, not {x.max(initial=0)}", at=start)
      x = x.astype(bool)
    return list(x.tolist())


class GGUF:
  """An opened GGUF file: `metadata` by key, `tensors` by name, and views of the tensors' bytes.

  `fn` is a path, or the file's bytes as a uint8 tensor. The views are read-only and lie in the mapped file, so a part
  that nobody reads is never loaded from disk.
  Raises: GGUFError for anything in the file that is not as the format says; OSError where it cannot be opened.
  """

  def __init__(self, fn: File):
    if not isinstance(fn, Tensor) and os.path.isdir(fn):
      raise GGUFError(fn, "file", "is a directory", "pass the path of a .gguf file")
    self.path, self.data = contents(fn)
    c = _Cursor(self.path, self.data)
    magic = bytes(c.data[:4])
    c.check(magic == b"GGUF", "magic", f"starts with {magic!r}, not b'GGUF'", "pass a .gguf file")
    c.take(4, "magic")
    version = c.u32("version")
    big = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
    problem = "is big-endian" if big else f"version {version} is not supported"
    c.check(version in (2, 3), "version", problem, "convert it to a little-endian GGUF of version 3", at=4)
    tensors, pairs = c.u64("tensor_count"), c.u64("metadata_kv_count")
    c.need(pairs * (8 + 4 + 1), "metadata_kv_count", f"{pairs} pairs")
    c.need(tensors * (8 + 4 + 8 + 4 + 8), "tensor_count", f"{tensors} tensors")
    self.metadata = _metadata(c, pairs)
    self.tensors = _infos(c, tensors, self.metadata.get("general.alignment", 32))

  def get(self, key: str, kind: type[T], default: T | None = None) -> T:
    """The metadata value of `key`, which must be a `kind` (an int serves as a float); GGUFError where it is not."""
    value = self.metadata.get(key, default)
    if kind is float and type(value) is int:
      value = float(value)
    fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    self.check(value is not None, repr(key), "is missing")
    self.check(fits, repr(key), f"is a {type(value).__name__}, not a {kind.__name__}", REFETCH)
    return cast(T, value)

  def error(self, field: str, problem: str, fix: str = RECONVERT, at: int | None = None) -> GGUFError:
    return GGUFError(self.path, field, problem, fix, at)

  def check(self, ok: bool, *words: Any, **where: Any) -> None:
    """Raises the `error` of these words unless `ok`."""
    if not ok:
      raise self.error(*words, **where)

  def tensor(self, name: str) -> Tensor:
    """Any tensor; a quantised one as float32: Q8_0 is computed from its blocks where it is used, others here."""
    t = self.info(name)
    if t.type.name == "Q8_0":
      quants, scales = map(Tensor, self.quants(name))
      return (quants.float() * scales.float()).reshape(t.shape)
    raw = np.frombuffer(self.data, np.uint8, t.nbytes, t.offset)
    if (dtype := PLAIN.get(t.type.name)) is not None:
      return Tensor(raw).bitcast(dtype).reshape(t.shape)
    try:
      return Tensor(ggml.quants.dequantize(raw.reshape(*t.shape[:-1], -1), t.type))
    except NotImplementedError as e:
      raise self.error(f"tensor {name!r}", f"is {t.type.name}, a type without values", REFETCH) from e

  def info(self, name: str) -> TensorInfo:
    self.check(name in self.tensors, f"tensor {name!r}", "is missing")
    return self.tensors[name]

  def floats(self, name: str) -> NDArray[Any]:
    """The F32 or F16 tensor `name` as a view of its shape."""
    t = self.info(name)
    floats = t.type.name in ("F32", "F16")
    self.check(floats, f"tensor {name!r}", f"is {t.type.name}, not F32 or F16", SMALLER, t.offset)
    kind = "<f4" if t.type.name == "F32" else "<f2"
    return cast("NDArray[Any]", np.frombuffer(self.data, kind, math.prod(t.shape), t.offset).reshape(t.shape))

  def quants(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The Q8_0 tensor `name` [.., cols] as views: quants [.., cols/32, 32] and scales [.., cols/32, 1].

    A weight is quant * scale; in the file a block is its float16 scale and its 32 int8 quants, hence the strides.
    """
    t = self.info(name)
    self.check(t.type.name == "Q8_0", f"tensor {name!r}", f"is {t.type.name}", "read it with `floats`", t.offset)
    block = np.dtype([("scale", "<f2", (1,)), ("quant", "<i1", (Q8_BLOCK,))])
    x = np.frombuffer(self.data, block, math.prod(t.shape) // Q8_BLOCK, t.offset).reshape(*t.shape[:-1], -1)
    return x["quant"], x["scale"]


def _metadata(c: _Cursor, pairs: int) -> dict[str, Any]:
  metadata: dict[str, Any] = {}
  for i in range(pairs):
    start = c.at
    key = c.string(f"metadata key {i}")
    c.check(key not in metadata, f"metadata key {i}", f"{key!r} appears twice", at=start)
    metadata[key] = c.value(c.u32(f"type of {key!r}"), repr(key))
  problem, fix = "the model is split over several files", "merge them first (gguf-split --merge)"
  c.check(metadata.get("split.count", 1) in (0, 1), "'split.count'", problem, fix)
  return metadata


def _infos(c: _Cursor, count: int, alignment: Any) -> dict[str, TensorInfo]:
  power = type(alignment) is int and alignment > 0 and not alignment & (alignment - 1)
  c.check(power, "'general.alignment'", f"{alignment!r} is not a power of two")
  infos: dict[str, TensorInfo] = {}
  for i in range(count):
    info = _info(c, i, alignment)
    c.check(info.name not in infos, f"tensor {i}", f"the name {info.name!r} appears twice")
    infos[info.name] = info
  base, size, end = -(-c.at // alignment) * alignment, len(c.data), 0
  infos = {n: replace(t, offset=base + t.offset) for n, t in infos.items()}
  for t in sorted(infos.values(), key=lambda t: t.offset):
    problem = f"{t.type.name} {list(t.shape)} ends at byte {t.offset + t.nbytes}, and the file has {size}"
    c.check(t.offset + t.nbytes <= size, f"tensor {t.name!r}", problem, at=t.offset)
    c.check(t.offset >= end, f"tensor {t.name!r}", "overlaps the tensor before it", at=t.offset)
    end = t.offset + t.nbytes
  return infos


def _info(c: _Cursor, i: int, alignment: int) -> TensorInfo:
  field = f"tensor {(name := c.string(f'name of tensor {i}'))!r}"
  ndim = c.u32(f"{field}: dims")
  c.check(1 <= ndim <= MAX_DIMS, f"{field}: dims", f"{ndim} dims, and the format has 1 to {MAX_DIMS}", at=c.at - 4)
  start = c.at
  shape = tuple(reversed([c.u64(f"{field}: dim {d}") for d in range(ndim)]))
  # What an int64 holds, so that no later arithmetic on the shape can overflow.
  possible = min(shape) >= 1 and math.prod(shape) < 1 << 60
  c.check(possible, f"{field}: dims", f"the shape {list(shape)} is not possible", at=start)
  number, known = c.u32(f"{field}: type"), ", ".join(t.name for t in ggml.GGML_QUANT_SIZES)
  problem = f"its type is number {number}; known are {known}"
  c.check(number in ggml.GGML_QUANT_SIZES, field, problem, SMALLER, c.at - 4)
  kind = ggml.GGMLQuantizationType(number)
  weights, nbytes = ggml.GGML_QUANT_SIZES[kind]
  problem = f"rows of {shape[-1]} are no whole number of {kind.name} blocks of {weights}"
  c.check(shape[-1] % weights == 0, field, problem, at=start)
  offset = c.u64(f"{field}: offset")
  problem = f"{offset} is no multiple of the alignment {alignment}"
  c.check(offset % alignment == 0, f"{field}: offset", problem, at=c.at - 8)
  return TensorInfo(name, shape, kind, offset, math.prod(shape) // weights * nbytes)
