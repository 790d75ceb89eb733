"""Read GGUF files: memory-mapped, every read checked against the file's size.

The format is the one described in ggml's docs/gguf.md, versions 2 and 3, little-endian:
  "GGUF" | version u32 | tensors u64 | pairs u64 | pairs: key, type, value | infos: name, dims, type, offset | data
A string is a u64 length and its UTF-8 bytes. Dims are stored with the fastest-moving first; here they are row-major.
"""

import math
import os
from typing import Any, NamedTuple, TypeVar, cast

from tinygrad.helpers import FilePath, LazyModule, Remade, numpy
from tinygrad.nn.block_formats import FORMATS, BlockFormat
from tinygrad.nn.files import PLAIN, File, contents, look_of
from tinygrad.tensor import Tensor

ggml: Any = LazyModule("gguf")  # the sizes of other types of tensors, and their values
# the numbers of types of tensors
_NAMES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
  13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16", 39: "MXFP4"}  # fmt: skip
KNOWN: dict[int, BlockFormat] = {number: FORMATS[name] for number, name in _NAMES.items()}
T = TypeVar("T")
MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_NESTING = 4  # of arrays within arrays
REFETCH = "the file is damaged or incomplete: download or convert it again"
SMALLER = "use a file with tensors of another type (llama-quantize MODEL OUT Q4_K_M makes one)"


class GGUFError(Remade, ValueError):
  """A GGUF file that cannot be used: names the file, the field, the byte offset, and a fix."""

  def __init__(self, path: FilePath, field: str, problem: str, fix: str, offset: int | None = None):
    where = f"{os.fspath(path)}: {field}" + ("" if offset is None else f" at byte {offset}")
    super().__init__(f"GGUF {where}: {problem}\n  fix: {fix}")


U32, BOOL, STRING, ARRAY, U64 = 4, 7, 8, 9, 10
SCALARS = {i: f"<{x}" for i, x in enumerate("u1 i1 u2 i2 u4 i4 f4 u1 - - u8 i8 f8".split()) if x != "-"}


class TensorInfo(NamedTuple):
  """Where one tensor lies: `shape` is row-major, `offset` and `nbytes` are in bytes of the file."""

  name: str
  shape: tuple[int, ...]
  type: Any  # a BlockFormat, or gguf.GGMLQuantizationType: it has a name
  offset: int
  nbytes: int


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
    self.at: Any = 0  # where the header is read, for errors as well; None behind it
    magic = bytes(self.data[:4])
    fix = look_of(self.data, "pass a .gguf file")
    self.check(magic == b"GGUF", "magic", f"starts with {magic!r}, not b'GGUF'", fix)
    _, version = self._numbers(U32, 2, "version")
    problem = "is big-endian" if version in (2 << 24, 3 << 24) else f"version {version} is not supported"
    self.check(version in (2, 3), "version", problem, "convert it to a little-endian GGUF of version 3", at=4)
    tensors, pairs = self._numbers(U64, 2, "counts")
    self.metadata: dict[str, Any] = {}
    for i in range(pairs):
      start, key = self.at, self._string(f"metadata key {i}")
      self.check(key not in self.metadata, f"metadata key {i}", f"{key!r} appears twice", at=start)
      self.metadata[key] = self._value(self._numbers(U32, 1, f"type of {key!r}")[0], repr(key))
    problem, fix = "the model is split over several files", "merge them first (gguf-split --merge)"
    self.check(self.metadata.get("split.count", 1) in (0, 1), "'split.count'", problem, fix)
    alignment = self.metadata.get("general.alignment", 32)
    power = type(alignment) is int and alignment > 0 and not alignment & (alignment - 1)
    self.check(power, "'general.alignment'", f"{alignment!r} is not a power of two")
    infos: dict[str, TensorInfo] = {}
    for i in range(tensors):
      t = self._info(i, alignment)
      self.check(t.name not in infos, f"tensor {i}", f"the name {t.name!r} appears twice")
      infos[t.name] = t
    base, size, end = -(-self.at // alignment) * alignment, len(self.data), 0
    self.tensors = {name: t._replace(offset=base + t.offset) for name, t in infos.items()}
    for t in sorted(self.tensors.values(), key=lambda t: t.offset):
      problem = f"{t.type.name} {list(t.shape)} ends at byte {t.offset + t.nbytes}, and the file has {size}"
      self.check(t.offset + t.nbytes <= size, f"tensor {t.name!r}", problem, at=t.offset)
      self.check(t.offset >= end, f"tensor {t.name!r}", "overlaps the tensor before it", at=t.offset)
      end = t.offset + t.nbytes
    self.at = None

  def check(self, ok: Any, field: str, problem: str, fix: str = REFETCH, at: int | None = None) -> None:
    """Raises GGUFError unless `ok`."""
    if not ok:
      raise GGUFError(self.path, field, problem, fix, self.at if at is None else at)

  def _take(self, nbytes: int, field: str) -> memoryview:
    left = len(self.data) - self.at
    self.check(nbytes <= left, field, f"needs {nbytes} bytes, and {left} are left in the file")
    self.at += nbytes
    return self.data[self.at - nbytes : self.at]

  def _numbers(self, kind: int, n: int, field: str) -> list[Any]:
    dt, start = numpy.dtype(SCALARS[kind]), self.at
    x = numpy.frombuffer(self._take(n * dt.itemsize, field), dt)
    if kind == BOOL:
      self.check(x.max(initial=0) <= 1, field, f"a bool is 0 or 1, not {x.max(initial=0)}", at=start)
      x = x.astype(bool)
    return list(x.tolist())

  def _string(self, field: str) -> str:
    text = self._take(int.from_bytes(self._take(8, field), "little"), field)
    try:
      return str(text, "utf-8")
    except UnicodeDecodeError as e:
      raise GGUFError(self.path, field, f"not UTF-8: {e.reason}", REFETCH, self.at - len(text) + e.start) from e

  def _value(self, kind: int, field: str, depth: int = 0) -> Any:
    if kind == STRING:
      return self._string(field)
    if kind != ARRAY:
      self.check(kind in SCALARS, field, f"unknown value type {kind}", at=self.at - 4)
      return self._numbers(kind, 1, field)[0]
    self.check(depth < MAX_NESTING, field, f"arrays nested more than {MAX_NESTING} deep")
    (kind,), (n,) = self._numbers(U32, 1, field), self._numbers(U64, 1, field)
    if kind in SCALARS:
      return self._numbers(kind, n, field)
    self.check(kind in (STRING, ARRAY), field, f"unknown element type {kind}", at=self.at - 12)
    return [self._value(kind, f"{field}[{i}]", depth + 1) for i in range(n)]

  def _info(self, i: int, alignment: int) -> TensorInfo:
    name = self._string(f"name of tensor {i}")
    field = f"tensor {name!r}"
    (ndim,), start = self._numbers(U32, 1, f"{field}: dims"), self.at
    problem = f"{ndim} dims, and the format has 1 to {MAX_DIMS}"
    self.check(1 <= ndim <= MAX_DIMS, f"{field}: dims", problem, at=start - 4)
    shape = tuple(reversed(self._numbers(U64, ndim, f"{field}: dims")))
    # What an int64 holds, so that no later arithmetic on the shape can overflow.
    possible = min(shape) >= 1 and math.prod(shape) < 1 << 60
    self.check(possible, f"{field}: dims", f"the shape {list(shape)} is not possible", at=start)
    kind, weights, nbytes = self._type(self._numbers(U32, 1, f"{field}: type")[0], field)
    problem = f"rows of {shape[-1]} are no whole number of {kind.name} blocks of {weights}"
    self.check(shape[-1] % weights == 0, field, problem, at=start)
    (offset,) = self._numbers(U64, 1, f"{field}: offset")
    problem = f"{offset} is no multiple of the alignment {alignment}"
    self.check(offset % alignment == 0, f"{field}: offset", problem, at=self.at - 8)
    return TensorInfo(name, shape, kind, offset, math.prod(shape) // weights * nbytes)

  def _type(self, number: int, field: str) -> tuple[Any, int, int]:
    """The type of a tensor, by number: how many weights a block has, and bytes."""
    if (form := KNOWN.get(number)) is not None:
      return form, form.weights, form.nbytes
    sizes = ggml.GGML_QUANT_SIZES
    problem = f"its type is number {number}; known are {', '.join(t.name for t in sizes)}"
    self.check(number in sizes, field, problem, SMALLER, self.at - 4)
    return (kind := ggml.GGMLQuantizationType(number), *sizes[kind])

  def get(self, key: str, kind: type[T], default: T | None = None) -> T:
    """The metadata value of `key`, which must be a `kind` (an int serves as a float); GGUFError where it is not."""
    value = self.metadata.get(key, default)
    if kind is float and type(value) is int:
      value = float(value)
    fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    self.check(value is not None, repr(key), "is missing")
    self.check(fits, repr(key), f"is a {type(value).__name__}, not a {kind.__name__}")
    return cast(T, value)

  def tensor(self, name: str) -> Tensor:
    """Any tensor; a quantised one as float32, computed from its blocks where it is used, if its format is known here,
    else here by the package gguf.
    """
    t = self.info(name)
    raw = numpy.frombuffer(self.data, numpy.uint8, t.nbytes, t.offset)
    if (dtype := PLAIN.get(t.type.name)) is not None:
      return Tensor(raw).bitcast(dtype).reshape(t.shape)
    if t.type.name in FORMATS:
      form, blocks = self.blocks(name)
      return form.tensor(Tensor(blocks)).reshape(t.shape)
    try:
      return Tensor(ggml.quants.dequantize(raw.reshape(*t.shape[:-1], -1), t.type))
    except NotImplementedError as e:
      raise GGUFError(self.path, f"tensor {name!r}", f"is {t.type.name}, a type without values", SMALLER) from e

  def blocks(self, name: str) -> tuple[BlockFormat, Any]:
    """The format of a tensor, and its blocks [.., blocks, nbytes] as a view of the file."""
    t = self.info(name)
    problem = f"is {t.type.name}, not one of {', '.join(FORMATS)}"
    self.check(t.type.name in FORMATS, f"tensor {name!r}", problem, SMALLER, t.offset)
    form = FORMATS[t.type.name]
    return form, form.view(self.data, t.offset, t.shape)

  def info(self, name: str) -> TensorInfo:
    self.check(name in self.tensors, f"tensor {name!r}", "is missing")
    return self.tensors[name]

  def floats(self, name: str) -> Any:
    """The F32 or F16 tensor `name` as a view of its shape."""
    t = self.info(name)
    problem = f"is {t.type.name}, not F32 or F16"
    self.check(t.type.name in ("F32", "F16"), f"tensor {name!r}", problem, SMALLER, t.offset)
    return numpy.ndarray(t.shape, "<f4" if t.type.name == "F32" else "<f2", self.data, t.offset)
