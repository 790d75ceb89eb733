"""Read GGUF files: memory-mapped, every read checked against the file's size.

The format is the one described in ggml's docs/gguf.md, versions 2 and 3, little-endian:
  "GGUF" | version u32 | tensors u64 | pairs u64 | pairs: key, type, value | infos: name, dims, type, offset | data
A string is a u64 length and its UTF-8 bytes. Dims are stored with the fastest-moving first; here they are row-major.
"""

from __future__ import annotations

import enum
import math
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import numpy as np
from tinygrad.tensor import Tensor

if TYPE_CHECKING:
  from numpy import float16, int8
  from numpy.typing import NDArray

T = TypeVar("T")
MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_NESTING = 4  # of arrays within arrays
Q8_BLOCK = 32  # weights that share one scale
REFETCH = "the file is damaged or incomplete: download or write it again"


class GGUFError(ValueError):
  """A GGUF file that cannot be used: names the file, the field, the byte offset, and a fix."""

  def __init__(self, path: str | os.PathLike[str], field: str, problem: str, fix: str, offset: int | None = None):
    where = f"{os.fspath(path)}: {field}" + ("" if offset is None else f" at byte {offset}")
    super().__init__(f"GGUF {where}: {problem}\n  fix: {fix}")


# The tensor types that this reader loads, by their number in the file.
GGMLType = enum.IntEnum("GGMLType", {
  "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
  "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28, "BF16": 30, "MXFP4": 39,
})  # fmt: skip

# Types of the format that are not loaded: only to call them by their name in the error.
OTHER_TYPES = {
  9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
  21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip

# (weights in a block, bytes of a block)
PLAIN: dict[GGMLType, DType] = {
  GGMLType.F32: dtypes.float32, GGMLType.F16: dtypes.float16, GGMLType.I8: dtypes.int8, GGMLType.I16: dtypes.int16,
  GGMLType.I32: dtypes.int32, GGMLType.I64: dtypes.int64, GGMLType.F64: dtypes.float64, GGMLType.BF16: dtypes.bfloat16,
}  # fmt: skip
BLOCKS: dict[GGMLType, tuple[int, int]] = {k: (1, d.itemsize) for k, d in PLAIN.items()} | {
  GGMLType.Q4_0: (32, 18), GGMLType.Q4_1: (32, 20), GGMLType.Q5_0: (32, 22), GGMLType.Q5_1: (32, 24),
  GGMLType.Q8_0: (Q8_BLOCK, 2 + Q8_BLOCK), GGMLType.Q4_K: (256, 144), GGMLType.Q5_K: (256, 176),
  GGMLType.Q6_K: (256, 210), GGMLType.MXFP4: (32, 17),
}  # fmt: skip
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)  # MXFP4's numbers

BOOL, STRING, ARRAY = 7, 8, 9
SCALARS: dict[int, str] = {
  0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
  """Where one tensor lies: `shape` is row-major, `offset` and `nbytes` are in bytes of the file."""

  name: str
  shape: tuple[int, ...]
  type: GGMLType
  offset: int
  nbytes: int


class _Cursor:
  """Reads forward through the bytes of a file; whatever would leave the file is a GGUFError."""

  def __init__(self, path: str, data: memoryview):
    self.path, self.data, self.at = path, data, 0

  def error(self, field: str, problem: str, fix: str = REFETCH, at: int | None = None) -> GGUFError:
    return GGUFError(self.path, field, problem, fix, self.at if at is None else at)

  def need(self, count: int, size: int, field: str, what: str = "") -> None:
    """Raise unless `count` items of at least `size` bytes can follow."""
    left = len(self.data) - self.at
    if count * size > left:
      raise self.error(
        field, f"{what or count * size} needs at least {count * size} bytes, and {left} are left in the file"
      )

  def take(self, n: int, field: str) -> memoryview:
    self.need(n, 1, field)
    self.at += n
    return self.data[self.at - n : self.at]

  def u32(self, field: str) -> int:
    return int(struct.unpack("<I", self.take(4, field))[0])

  def u64(self, field: str) -> int:
    return int(struct.unpack("<Q", self.take(8, field))[0])

  def string(self, field: str) -> str:
    n = self.u64(field)
    self.need(n, 1, field, f"a string of {n} bytes")
    start = self.at
    try:
      return str(self.take(n, field), "utf-8")
    except UnicodeDecodeError as e:
      raise self.error(field, f"not UTF-8: {e.reason}", at=start + e.start) from e

  def value(self, kind: int, field: str, depth: int = 0) -> Any:
    if kind == STRING:
      return self.string(field)
    if kind == ARRAY:
      return self.array(field, depth)
    if kind not in SCALARS:
      raise self.error(field, f"unknown value type {kind}", at=self.at - 4)
    return self.numbers(kind, 1, field)[0]

  def array(self, field: str, depth: int) -> list[Any]:
    if depth >= MAX_NESTING:
      raise self.error(field, f"arrays nested more than {MAX_NESTING} deep")
    kind, n = self.u32(field), self.u64(field)
    if kind in SCALARS:
      return self.numbers(kind, n, field)
    if kind not in (STRING, ARRAY):
      raise self.error(field, f"unknown element type {kind}", at=self.at - 12)
    self.need(n, 8 if kind == STRING else 12, field, f"an array of {n} elements")
    return [self.value(kind, f"{field}[{i}]", depth + 1) for i in range(n)]

  def numbers(self, kind: int, n: int, field: str) -> list[Any]:
    dt = np.dtype(SCALARS[kind])
    self.need(n, dt.itemsize, field, f"an array of {n} elements")
    start = self.at
    x = np.frombuffer(self.take(n * dt.itemsize, field), dt)
    if kind != BOOL:
      return list(x.tolist())
    if n and x.max() > 1:
      raise self.error(field, f"a bool is 0 or 1, not {x.max()}", at=start)
    return [bool(v) for v in x]


class GGUF:
  """An opened GGUF file: `metadata` by key, `tensors` by name, and views of the tensors' bytes.

  The views are read-only and lie in the mapped file, so a part that nobody reads is never loaded from disk. With
  `content`, the file's bytes, `path` only names it.
  Raises: GGUFError for anything in the file that is not as the format says; OSError where it cannot be opened.
  """

  def __init__(self, path: str | os.PathLike[str], content: bytes | None = None):
    self.path = os.fspath(path)
    self._map: mmap.mmap | bytes
    if content is not None:
      self._map = content
    elif Path(path).is_dir():
      raise GGUFError(path, "file", "is a directory", "pass the path of a .gguf file")
    else:
      with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        # An empty file cannot be mapped.
        self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    c = _Cursor(self.path, memoryview(self._map))
    pairs, tensors = self._header(c)
    self.metadata = self._metadata(c, pairs)
    self.tensors = self._infos(c, tensors)

  def _header(self, c: _Cursor) -> tuple[int, int]:
    if bytes(c.data[:4]) != b"GGUF":
      raise c.error("magic", f"starts with {bytes(c.data[:4])!r}, not b'GGUF'", "pass a .gguf file", at=0)
    c.take(4, "magic")
    self.version = c.u32("version")
    if self.version not in (2, 3):
      swapped = int.from_bytes(self.version.to_bytes(4, "little"), "big")
      problem = "is big-endian" if swapped in (2, 3) else f"version {self.version} is not supported"
      raise c.error("version", problem, "convert it to a little-endian GGUF of version 3", at=4)
    tensors, pairs = c.u64("tensor_count"), c.u64("metadata_kv_count")
    c.need(pairs, 8 + 4 + 1, "metadata_kv_count", f"{pairs} pairs")
    c.need(tensors, 8 + 4 + 8 + 4 + 8, "tensor_count", f"{tensors} tensors")
    return pairs, tensors

  def _metadata(self, c: _Cursor, pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for i in range(pairs):
      start = c.at
      key = c.string(f"metadata key {i}")
      if key in metadata:
        raise c.error(f"metadata key {i}", f"{key!r} appears twice", at=start)
      metadata[key] = c.value(c.u32(f"type of {key!r}"), repr(key))
    if metadata.get("split.count", 1) not in (0, 1):
      raise c.error("'split.count'", "the model is split over several files", "merge them first (gguf-split --merge)")
    return metadata

  def _infos(self, c: _Cursor, count: int) -> dict[str, TensorInfo]:
    alignment = self.metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment < 1 or alignment & (alignment - 1):
      raise c.error("'general.alignment'", f"{alignment!r} is not a power of two")
    infos: dict[str, TensorInfo] = {}
    for i in range(count):
      info = self._info(c, i, alignment)
      if info.name in infos:
        raise c.error(f"tensor {i}", f"the name {info.name!r} appears twice")
      infos[info.name] = info
    base, size, end = -(-c.at // alignment) * alignment, len(c.data), 0
    infos = {n: TensorInfo(n, t.shape, t.type, base + t.offset, t.nbytes) for n, t in infos.items()}
    for t in sorted(infos.values(), key=lambda t: t.offset):
      if t.offset + t.nbytes > size:
        problem = f"{t.type.name} {list(t.shape)} ends at byte {t.offset + t.nbytes}, and the file has {size}"
        raise c.error(f"tensor {t.name!r}", problem, at=t.offset)
      if t.offset < end:
        raise c.error(f"tensor {t.name!r}", "overlaps the tensor before it", at=t.offset)
      end = t.offset + t.nbytes
    return infos

  def _info(self, c: _Cursor, i: int, alignment: int) -> TensorInfo:
    name = c.string(f"name of tensor {i}")
    field = f"tensor {name!r}"
    ndim = c.u32(f"{field}: dims")
    if not 1 <= ndim <= MAX_DIMS:
      raise c.error(f"{field}: dims", f"{ndim} dims, and the format has 1 to {MAX_DIMS}", at=c.at - 4)
    start = c.at
    shape = tuple(reversed([c.u64(f"{field}: dim {d}") for d in range(ndim)]))
    # What an int64 holds, so that no later arithmetic on the shape can overflow.
    if min(shape) < 1 or math.prod(shape) >= 1 << 60:
      raise c.error(f"{field}: dims", f"the shape {list(shape)} is not possible", at=start)
    number = c.u32(f"{field}: type")
    if number not in BLOCKS:
      known = ", ".join(t.name for t in GGMLType)
      fix = f"use a file with {known} tensors (llama-quantize MODEL OUT Q8_0 makes one)"
      raise c.error(field, f"its type is {OTHER_TYPES.get(number, number)}; supported are {known}", fix, at=c.at - 4)
    kind = GGMLType(number)
    weights, nbytes = BLOCKS[kind]
    if shape[-1] % weights:
      raise c.error(field, f"rows of {shape[-1]} are no whole number of {kind.name} blocks of {weights}", at=start)
    offset = c.u64(f"{field}: offset")
    if offset % alignment:
      raise c.error(f"{field}: offset", f"{offset} is no multiple of the alignment {alignment}", at=c.at - 8)
    return TensorInfo(name, shape, kind, offset, math.prod(shape) // weights * nbytes)

  def get(self, key: str, kind: type[T], default: T | None = None) -> T:
    """The metadata value of `key`, which must be a `kind` (an int serves as a float); GGUFError where it is not."""
    value = self.metadata.get(key, default)
    if kind is float and type(value) is int:
      value = float(value)
    if value is None:
      raise GGUFError(self.path, repr(key), "is missing", "convert the model again with a current converter")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
      raise GGUFError(self.path, repr(key), f"is a {type(value).__name__}, not a {kind.__name__}", REFETCH)
    return value

  def tensor(self, name: str) -> Tensor:
    """Any tensor; a quantised one as float32, computed from its blocks where it is used."""
    t = self.info(name)
    raw = Tensor(np.frombuffer(self._map, np.uint8, t.nbytes, t.offset))
    if (dtype := PLAIN.get(t.type)) is not None:
      return raw.bitcast(dtype).reshape(t.shape)
    return dequantize(raw.reshape(-1, BLOCKS[t.type][1]), t.type).reshape(t.shape)

  def info(self, name: str) -> TensorInfo:
    if name not in self.tensors:
      raise GGUFError(self.path, f"tensor {name!r}", "is missing", "convert the model again with a current converter")
    return self.tensors[name]

  def floats(self, name: str) -> NDArray[Any]:
    """The F32 or F16 tensor `name` as a view of its shape."""
    t = self.info(name)
    if t.type not in (GGMLType.F32, GGMLType.F16):
      fix = "use a file with F32, F16 and Q8_0 tensors (llama-quantize MODEL OUT Q8_0 makes one)"
      raise GGUFError(self.path, f"tensor {name!r}", f"is {t.type.name}, not F32 or F16", fix, t.offset)
    dt = np.dtype("<f4" if t.type is GGMLType.F32 else "<f2")
    view: NDArray[Any] = np.frombuffer(self._map, dt, math.prod(t.shape), t.offset).reshape(t.shape)
    return view

  def quants(self, name: str) -> tuple[NDArray[int8], NDArray[float16]]:
    """The Q8_0 tensor `name` [.., cols] as views: quants [.., cols/32, 32] and scales [.., cols/32, 1].

    A weight is quant * scale; in the file a block is its float16 scale and its 32 int8 quants, hence the strides.
    """
    t = self.info(name)
    if t.type is not GGMLType.Q8_0:
      raise GGUFError(self.path, f"tensor {name!r}", f"is {t.type.name}", "read it with `floats`", t.offset)
    block = np.dtype([("scale", "<f2", (1,)), ("quant", "<i1", (Q8_BLOCK,))])
    x = np.frombuffer(self._map, block, math.prod(t.shape) // Q8_BLOCK, t.offset)
    x = x.reshape(*t.shape[:-1], t.shape[-1] // Q8_BLOCK)
    return x["quant"], x["scale"]


def dequantize(b: Tensor, kind: GGMLType) -> Tensor:
  """Blocks (n, bytes) uint8 -> their weights (n, weights) float32, as ggml's quantisation formats lay them out."""

  def half(at: int) -> Tensor:
    return b[:, at : at + 2].bitcast(dtypes.float16).float()

  def nibbles(x: Tensor) -> Tensor:
    """The low halves of all bytes, then the high halves."""
    return x.bitwise_and(15).stack(x.rshift(4), dim=-2).flatten(-2)

  def bits(x: Tensor, at: Tensor, count: int) -> Tensor:
    return x.rshift(at.cast(dtypes.uint8)).bitwise_and((1 << count) - 1)

  match kind:
    case GGMLType.Q8_0:
      return b[:, 2:].bitcast(dtypes.int8).float() * half(0)
    case GGMLType.MXFP4:
      return Tensor(E2M1)[nibbles(b[:, 1:]).int()] * (b[:, :1].float() - 127).exp2()
    case GGMLType.Q4_0 | GGMLType.Q4_1 | GGMLType.Q5_0 | GGMLType.Q5_1:
      low = nibbles(b[:, -16:])
      fifth = kind in (GGMLType.Q5_0, GGMLType.Q5_1)
      if fifth:
        low = low + bits(b[:, -20:-16].unsqueeze(-1), Tensor.arange(8), 1).flatten(1).lshift(4)
      if kind in (GGMLType.Q4_1, GGMLType.Q5_1):
        return low.float() * half(0) + half(2)
      return (low.float() - (16 if fifth else 8)) * half(0)
    case GGMLType.Q6_K:  # 16 scales of 16 weights; of each weight 4 bits in `low` and 2 in `high`
      low = b[:, :128].reshape(-1, 2, 64)
      high = bits(b[:, 128:192].reshape(-1, 2, 1, 32), Tensor.arange(4).reshape(4, 1) * 2, 2)
      q = nibbles(low).reshape(-1, 2, 4, 32) + high.lshift(4)
      scales = b[:, 192:208].bitcast(dtypes.int8).float().unsqueeze(-1)
      return ((q.float() - 32).reshape(-1, 16, 16) * scales).flatten(1) * half(208)
    case _:  # Q4_K, Q5_K: 8 scales and minima of 6 bits for 32 weights each
      s = b[:, 4:16].reshape(-1, 3, 4)
      scale = s[:, 0].bitwise_and(63).cat(s[:, 2].bitwise_and(15) + s[:, 0].rshift(6).lshift(4), dim=1)
      least = s[:, 1].bitwise_and(63).cat(s[:, 2].rshift(4) + s[:, 1].rshift(6).lshift(4), dim=1)
      q = nibbles(b[:, -128:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
      if kind is GGMLType.Q5_K:
        q = q + bits(b[:, 16:48].unsqueeze(1), Tensor.arange(8).reshape(8, 1), 1).lshift(4)
      y = q.float() * (scale.float() * half(0)).unsqueeze(-1) - (least.float() * half(2)).unsqueeze(-1)
      return y.flatten(1)
