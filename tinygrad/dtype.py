"""Data types: what an element is, how types promote, and how Python and numpy values are held in them."""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass
from typing import Any, ClassVar

from tinygrad.helpers import DEFAULT_FLOAT, DEFAULT_INT, REDUCE_DTYPE, ContextVar, LazyModule, Setting, numpy

ml_dtypes: Any = LazyModule("ml_dtypes")
ConstType = float | int | bool


@dataclass(frozen=True, slots=True, eq=False)
class DType:
  """`priority` orders promotion; `itemsize` in bytes (of one lane); `fmt` is the struct format, if there is one;
  `count` lanes (kernels only).
  """

  priority: int
  itemsize: int
  name: str
  fmt: str | None
  count: int = 1

  def __eq__(self, other: object) -> bool:
    """Types are interned; a name, and a type of numpy's or PyTorch's, equals the one that it means."""
    return self is other or (not isinstance(other, DType) and _meant(other) is self)

  __hash__ = object.__hash__

  def __repr__(self) -> str:
    return f"dtypes.{self.name}" if self.count == 1 else f"dtypes.{self.name}.vec({self.count})"

  def __reduce__(self) -> tuple[Any, ...]:
    return _restore, (self.name, self.count)

  def __lt__(self, other: DType) -> bool:
    return (self.priority, self.count) < (other.priority, other.count)

  def vec(self, count: int) -> DType:
    """The type of `count` lanes of this one; interned."""
    return _vector(self.scalar(), count)

  @property
  def bitsize(self) -> int:
    """Bits of one element."""
    return self.itemsize * 8

  def scalar(self) -> DType:
    return self if self.count == 1 else dtypes.by_name[self.name]

  @property
  def min(self) -> ConstType:
    return dtypes.min(self)

  @property
  def max(self) -> ConstType:
    return dtypes.max(self)


@functools.cache
def _vector(scalar: DType, count: int) -> DType:
  return scalar if count == 1 else DType(scalar.priority, scalar.itemsize, scalar.name, scalar.fmt, count)


def _restore(name: str, count: int) -> DType:
  return dtypes.by_name[name].vec(count)


def _default(variable: ContextVar, kind: str, fix: str) -> Setting[DType]:
  """A type that a setting names, one of `kind`."""

  def shown(x: DTypeLike) -> DType:
    d = x if isinstance(x, DType) else _ALIASES.get(str(x).lower())
    if d is None or d not in getattr(dtypes, kind):
      raise ValueError(f"{variable.key}: {x!r} is none of dtypes.{kind}\n  fix: {variable.key}={fix}, or leave it out")
    return d

  return Setting(variable, shown, lambda x: shown(x).name)


class _Settings(type):
  # the types of float creation and of int -> float promotion, and of Python integers
  default_float, default_int = _default(DEFAULT_FLOAT, "floats", "float32"), _default(DEFAULT_INT, "ints", "int32")
  # what partial sums of half precision are carried in
  reduce_float = _default(REDUCE_DTYPE, "floats", "float32")


class dtypes(metaclass=_Settings):
  """The data types, their aliases and the questions one asks of them."""

  void = DType(-1, 0, "void", None)
  index = DType(-1, 8, "index", "q")  # index arithmetic inside kernels and shapes; never an element of a buffer
  bool = DType(0, 1, "bool", "?")
  int8 = DType(1, 1, "int8", "b")
  uint8 = DType(2, 1, "uint8", "B")
  int16 = DType(3, 2, "int16", "h")
  uint16 = DType(4, 2, "uint16", "H")
  int32 = DType(5, 4, "int32", "i")
  uint32 = DType(6, 4, "uint32", "I")
  int64 = DType(7, 8, "int64", "q")
  uint64 = DType(8, 8, "uint64", "Q")
  fp8e4m3 = DType(9, 1, "fp8e4m3", None)
  fp8e5m2 = DType(10, 1, "fp8e5m2", None)
  float16 = DType(11, 2, "float16", "e")
  bfloat16 = DType(12, 2, "bfloat16", None)
  float32 = DType(13, 4, "float32", "f")
  float64 = DType(14, 8, "float64", "d")

  half, float, double = float16, float32, float64
  char, uchar, short, ushort, int, uint, long, ulong = int8, uint8, int16, uint16, int32, uint32, int64, uint64
  fp8s = (fp8e4m3, fp8e5m2)
  floats = (fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64)
  uints = (uint8, uint16, uint32, uint64)
  sints = (int8, int16, int32, int64)
  int8s, int16s, int32s, int64s = (uint8, int8), (uint16, int16), (uint32, int32), (uint64, int64)
  ints = (*uints, *sints)
  all = (bool, *ints, *floats)
  by_name: ClassVar[dict[str, DType]] = {}

  @staticmethod
  def fields() -> dict[str, DType]:
    """Every type an element can have, by name."""
    return {d.name: d for d in dtypes.all}

  @staticmethod
  @functools.cache
  def is_float(x: DType) -> Any:
    return x.scalar() in dtypes.floats

  @staticmethod
  @functools.cache
  def is_int(x: DType) -> Any:
    return x.scalar() in dtypes.ints or x.scalar() is dtypes.index

  @staticmethod
  @functools.cache
  def is_unsigned(x: DType) -> Any:
    return x.scalar() in dtypes.uints

  @staticmethod
  def is_bool(x: DType) -> Any:
    return x.scalar() is dtypes.bool

  @staticmethod
  def holds(wide: DType, x: DType) -> Any:
    """Whether it is the type x, or a wider float, of which every value of the float x is one."""
    return wide is x or (dtypes.is_float(wide) and dtypes.is_float(x) and wide.itemsize > x.itemsize)

  @staticmethod
  def from_py(x: Any) -> DType:
    """The type of a Python scalar or of (nested) sequences of them: bool, default int or default float."""
    if isinstance(x, float):
      return dtypes.default_float
    if isinstance(x, bool_type):
      return dtypes.bool
    if isinstance(x, int_type):
      if not holds_number(dtypes.default_int, x):
        held = [d.name for d in (dtypes.int64, dtypes.uint64, dtypes.float64) if holds_number(d, x)]
        raise OverflowError(f'{x} is no {dtypes.default_int.name}\n  fix: name a wider type, e.g. dtype="{held[0]}"')
      return dtypes.default_int
    if isinstance(x, (list, tuple)):
      return max((dtypes.from_py(v) for v in x), default=dtypes.default_float)
    fix = "give a number, a list of numbers or a numpy array"
    raise TypeError(f"no dtype for {x!r} of type {type(x).__name__}\n  fix: {fix}")

  @staticmethod
  @functools.cache
  def min(dtype: DType) -> ConstType:
    """The least value: -inf for floats (of fp8e4m3, which has none, -448), False for bool."""
    if dtypes.is_float(dtype):
      return -float(dtypes.max(dtype))
    if dtypes.is_bool(dtype):
      return False
    return 0 if dtypes.is_unsigned(dtype) else -(1 << (dtype.itemsize * 8 - 1))

  @staticmethod
  @functools.cache
  def max(dtype: DType) -> ConstType:
    """The greatest value: inf for floats (of fp8e4m3, which has none, 448), True for bool."""
    if dtypes.is_float(dtype):
      return math.inf if dtype.scalar() is not dtypes.fp8e4m3 else 448.0
    if dtypes.is_bool(dtype):
      return True
    return (1 << (dtype.itemsize * 8)) - 1 + (0 if dtypes.is_unsigned(dtype) else dtypes.min(dtype))

  @staticmethod
  def finfo(dtype: DType) -> tuple[Any, Any]:
    """(exponent bits, mantissa bits) of a float type."""
    if not dtypes.is_float(dtype):
      raise ValueError(f"{dtype} is not a floating-point type")
    return dict(zip(dtypes.floats, ((4, 3), (5, 2), (5, 10), (8, 7), (8, 23), (11, 52)), strict=True))[dtype.scalar()]


bool_type, int_type = bool, int
dtypes.by_name = {d.name: d for d in (dtypes.void, dtypes.index, *dtypes.all)}
_ALIASES = {k: v for k, v in vars(dtypes).items() if isinstance(v, DType)}
DTypeLike = str | DType


for _setting in (vars(_Settings)[name] for name in ("default_float", "default_int", "reduce_float")):
  _setting.variable.refine(_setting.shown)


def _meant(x: object) -> DType | None:
  """The type that a name, or a type of numpy's or of PyTorch's, means; None if it means none that is here."""
  if isinstance(x, str):
    return _ALIASES.get(x.lower())
  try:
    if type(x).__module__ == "torch" and type(x).__name__ == "dtype":
      return _from_torch_dtype(x)
    scalar = isinstance(x, type) and issubclass(x, numpy.generic)
    return from_numpy_dtype(x) if scalar or isinstance(x, numpy.dtype) else None
  except TypeError:  # one that has no counterpart
    return None


def to_dtype(x: DTypeLike) -> DType:
  """A DType or its name (`"float32"`, `"half"`, …)."""
  if isinstance(x, DType):
    return x
  if isinstance(x, str) and (known := _ALIASES.get(x.lower())) is not None:
    return known
  names, meant = ", ".join(d.name for d in dtypes.all), _meant(x)
  given: object = x
  if not isinstance(given, str):
    fix = f"give a dtype or its name: {names}" if meant is None else f"{meant}, or its name, {meant.name!r}"
    raise TypeError(f"{x!r} is no dtype\n  fix: {fix}")
  raise ValueError(f"unknown dtype {x!r}\n  fix: give one of {names}")


# The promotion lattice of JAX (https://docs.jax.dev/en/latest/jep/9407-type-promotion.html) with fp8 below the half
# types.
_LATTICE: dict[DType, tuple[DType, ...]] = {
  dtypes.bool: (dtypes.int8, dtypes.uint8),
  dtypes.int8: (dtypes.int16,), dtypes.int16: (dtypes.int32,), dtypes.int32: (dtypes.int64,),
  dtypes.uint8: (dtypes.int16, dtypes.uint16), dtypes.uint16: (dtypes.int32, dtypes.uint32),
  dtypes.uint32: (dtypes.int64, dtypes.uint64),
  **dict.fromkeys((dtypes.int64, dtypes.uint64), dtypes.fp8s),
  **dict.fromkeys(dtypes.fp8s, (dtypes.float16, dtypes.bfloat16)),
  **dict.fromkeys((dtypes.float16, dtypes.bfloat16), (dtypes.float32,)),
  dtypes.float32: (dtypes.float64,), dtypes.float64: (),
}  # fmt: skip


@functools.cache
def _above(dtype: DType) -> frozenset[DType]:
  return frozenset((dtype,)).union(*(_above(d) for d in _LATTICE[dtype]))


@functools.cache
def least_upper_dtype(*ds: DType) -> DType:
  """The smallest type that every one of `ds` promotes to; float32 for integers that no integer type holds (uint64 and
  int8)."""
  least = min(frozenset.intersection(*(_above(d.scalar()) for d in ds)))
  return least if least not in dtypes.fp8s or any(dtypes.is_float(d) for d in ds) else dtypes.float32


def least_upper_float(dtype: DType) -> DType:
  """`dtype` if it is a float, else what it becomes under a float function."""
  return dtype if dtypes.is_float(dtype) else least_upper_dtype(dtype, dtypes.default_float)


def sum_acc_dtype(dtype: DType) -> DType:
  """The type a sum is carried in: at least 32 bits."""
  unsigned, floating = dtypes.is_unsigned(dtype), dtypes.is_float(dtype)
  return least_upper_dtype(dtype, dtypes.uint32 if unsigned else dtypes.float32 if floating else dtypes.int32)


_ML_NAMES = {"bfloat16": "bfloat16", "fp8e4m3": "float8_e4m3fn", "fp8e5m2": "float8_e5m2"}


@functools.cache
def to_numpy_dtype(dtype: DType) -> Any:
  """The numpy dtype of the same layout (bfloat16 and fp8 from ml_dtypes; index as int64)."""
  if dtype.name in _ML_NAMES:
    return numpy.dtype(getattr(ml_dtypes, _ML_NAMES[dtype.name]))
  return numpy.dtype("int64" if dtype.name == "index" else dtype.name)


def from_numpy_dtype(x: Any) -> DType:
  """The DType of a numpy dtype; TypeError names what is not supported."""
  name = numpy.dtype(x).name
  name = {theirs: ours for ours, theirs in _ML_NAMES.items()}.get(name, name)
  if name not in dtypes.by_name:
    known = ", ".join(d.name for d in dtypes.all)
    fields = numpy.dtype(x).names
    fix = f"one of its fields, e.g. array[{fields[0]!r}]" if fields else f"array.astype(..) to one of {known}"
    raise TypeError(f"numpy dtype {name} has no counterpart here\n  fix: {fix}")
  return dtypes.by_name[name]


def _from_torch_dtype(x: Any) -> DType:
  """The DType of a torch.dtype, without PyTorch: by its name. TypeError names what is not supported."""
  name = str(x).removeprefix("torch.")
  name = {"float8_e4m3fn": "fp8e4m3", "float8_e5m2": "fp8e5m2"}.get(name, name)
  if name not in dtypes.by_name:
    known = ", ".join(d.name for d in dtypes.all)
    raise TypeError(f"{x} has no counterpart here\n  fix: convert it to one of {known}, e.g. tensor.float()")
  return dtypes.by_name[name]


def check_holds(dtype: DType, value: Any) -> None:
  """OverflowError for a number that, truncated, is none of the integers of `dtype`: what is given is not to wrap."""
  if not holds_number(dtype, value):
    wider = "int64" if dtypes.min(dtypes.int64) <= int(value) <= dtypes.max(dtypes.int64) else "float64"
    fix = f'a wider type, e.g. dtype="{wider}"' + (f", and .cast({dtype.name!r}) to wrap" if wider == "int64" else "")
    raise OverflowError(f"{range_rule(dtype, value)}\n  fix: {fix}")


def range_rule(dtype: DType, value: Any) -> str:
  """What an error says of a number that is none of the integers of `dtype`."""
  return f"{value} is no {dtype.name}, which holds {dtypes.min(dtype)} to {dtypes.max(dtype)}"


def holds_number(dtype: DType, value: Any) -> bool:
  """Whether a number, truncated, is one of the integers of `dtype`; True for floats and bools, which round."""
  if not dtypes.is_int(dtype) or (isinstance(value, float) and not math.isfinite(value)):
    return True
  return bool(dtypes.min(dtype) <= int(value) <= dtypes.max(dtype))


def as_const(value: Any, dtype: DType) -> ConstType:
  """`value` as the Python value that an element of `dtype` holds: floats rounded to the type, integers wrapped to its
  width. Beyond the largest float is inf (of fp8e4m3, which has none, nan).
  """
  d = dtype.scalar()
  if d is dtypes.index and type(value) is int:
    return value
  if d is dtypes.bool:
    return bool(value)
  if dtypes.is_float(d):
    x = float(value)
    if d is dtypes.float64 or not math.isfinite(x):
      return x if x == x else math.nan  # of one sign: a node is the same for both, whichever has come first
    if d.fmt is None:
      with numpy.errstate(all="ignore"):
        return float(numpy.float64(x).astype(to_numpy_dtype(d)))
    try:
      return float(struct.unpack(d.fmt, struct.pack(d.fmt, x))[0])
    except OverflowError:
      return math.copysign(math.inf, x)
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f"{value} is not a value of {d}\n  fix: a finite number, or a float type")
  n, least = int(value), int(dtypes.min(d))
  return n if d is dtypes.index else (n - least) % (1 << d.bitsize) + least
