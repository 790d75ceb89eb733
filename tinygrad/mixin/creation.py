"""Creation of tensors from a rule. Values without a device live wherever they are used; a realise puts them on
`Device.DEFAULT`."""

from __future__ import annotations

import math
from typing import Any, Self

from tinygrad.device import Device
from tinygrad.dtype import DType, dtypes, to_dtype
from tinygrad.helpers import ceildiv
from tinygrad.mixin.base import DeviceLike, Scalar, argfix, full, sint, to_placement
from tinygrad.mixin.math import Math
from tinygrad.uop.ops import Ops, UOp

DTypeArg = DType | str | None


def new_shape(name: str, *shape: Any) -> tuple[Any, ...]:
  """The dims of a new tensor. ValueError for a negative one."""
  dims = argfix(*shape)
  if any(isinstance(n, int) and n < 0 for n in dims):
    raise ValueError(f"{name}: a dim of {dims} is negative\n  fix: give lengths of at least 0")
  return dims


class Creation(Math):
  """Keywords of every method: `dtype`, `device` (a name, names or a `Sharding`), `requires_grad`."""

  __slots__ = ()

  @classmethod
  def _make(cls, uop: UOp, device: DeviceLike | None = None, requires_grad: bool | None = None) -> Self:
    return cls._wrap(uop if device is None else uop.copy_to_device(to_placement(device))).requires_grad_(requires_grad)

  def _beside(self, device: DeviceLike | None) -> DeviceLike | None:
    """Where a tensor made like this one lives: as asked, else here."""
    here = self.uop.device
    return device if device is not None or here == Device.DEFAULT else here

  # ---- constants

  @classmethod
  def full(
    cls,
    shape: tuple[sint, ...] | sint,
    fill_value: Any,
    dtype: DTypeArg = None,
    device: DeviceLike | None = None,
    buffer: bool = True,
    requires_grad: bool | None = None,
  ) -> Self:
    """`fill_value` in every place; the type is that of the value unless given. `buffer=False`: an operand without
    memory of its own, which an assignment cannot write to."""
    if isinstance(fill_value, UOp):
      scalar = fill_value.cast(to_dtype(dtype) if dtype is not None else dtypes.default_int)
      return cls._make(scalar.broadcast_to(new_shape("full", shape)), device, requires_grad)
    d = to_dtype(dtype) if dtype is not None else dtypes.from_py(fill_value)
    return cls._make(full(d, fill_value, new_shape("full", shape), unique=buffer), device, requires_grad)

  @classmethod
  def const(cls, b: Scalar, dtype: DTypeArg = None) -> Self:
    """A number as a tensor of shape () that lives wherever it is used."""
    return cls.full((), b, dtype, buffer=False)

  @classmethod
  def zeros(cls, *shape: Any, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    return cls.full(argfix(*shape), 0.0, dtype or dtypes.default_float, **kwargs)

  @classmethod
  def ones(cls, *shape: Any, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    return cls.full(argfix(*shape), 1.0, dtype or dtypes.default_float, **kwargs)

  @classmethod
  def empty(
    cls, *shape: Any, device: DeviceLike | None = None, dtype: DTypeArg = None, requires_grad: bool | None = None
  ) -> Self:
    """Memory that is not initialised."""
    where = to_placement(Device.DEFAULT if device is None else device)
    d = to_dtype(dtype) if dtype is not None else dtypes.default_float
    return cls._make(UOp.buffer(new_shape("empty", *shape), d, where), None, requires_grad)

  @classmethod
  def invalids(cls, *shape: Any, device: DeviceLike | None = None, dtype: DTypeArg = None) -> Self:
    """`empty`."""
    return cls.empty(*shape, device=device, dtype=dtype)

  def full_like(
    self,
    fill_value: Scalar,
    dtype: DTypeArg = None,
    device: DeviceLike | None = None,
    buffer: bool = True,
    **kwargs: Any,
  ) -> Self:
    """A constant of this shape; type and placement too unless given."""
    return self.full(self.shape, fill_value, dtype or self.dtype, self._beside(device), buffer, **kwargs)

  def zeros_like(self, **kwargs: Any) -> Self:
    return self.full_like(0, **kwargs)

  def ones_like(self, **kwargs: Any) -> Self:
    return self.full_like(1, **kwargs)

  def empty_like(self, dtype: DTypeArg = None, device: DeviceLike | None = None, **kwargs: Any) -> Self:
    return self.empty(self.shape, dtype=dtype or self.dtype, device=self._beside(device), **kwargs)

  # ---- ranges

  @classmethod
  def arange(cls, start: Any, stop: Any = None, step: Any = 1, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """start, start + step, … up to and without stop. Integers unless an argument or `dtype` is a float. ValueError for
    a step of 0."""
    if stop is None:
      start, stop = 0, start
    if isinstance(step, (int, float)) and step == 0:
      raise ValueError("arange: the step must not be 0")
    has_float = any(isinstance(x, float) for x in (start, stop, step))
    d = to_dtype(dtype) if dtype is not None else dtypes.default_float if has_float else dtypes.default_int
    symbolic = any(isinstance(x, UOp) for x in (start, stop, step))
    n = ceildiv(stop - start, step) if not has_float else math.ceil((stop - start) / step)
    return cls._make(_progression(n if symbolic else max(0, n), start, step, d), **kwargs)

  @classmethod
  def linspace(cls, start: float, stop: float, steps: int, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """`steps` evenly spaced numbers, both ends included."""
    if steps < 0:
      raise ValueError(f"linspace: the number of steps must not be negative, got {steps}")
    d = to_dtype(dtype) if dtype is not None else dtypes.default_float
    if d is dtypes.bool:
      raise TypeError("linspace: bool has no evenly spaced numbers\n  fix: use a number type")
    if steps == 1:
      return cls.full((1,), start, d, **kwargs)
    wide = d if dtypes.is_float(d) else dtypes.default_float
    return cls._make(_progression(steps, float(start), (stop - start) / max(1, steps - 1), wide).cast(d), **kwargs)

  @classmethod
  def eye(cls, n: int, m: int | None = None, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """Ones on the main diagonal of an (n, m) matrix."""
    m = n if m is None else m
    if n < 0 or m < 0:
      raise ValueError(f"eye: the dims must not be negative, got ({n}, {m})")
    on = cls.arange(n).reshape(n, 1).eq(cls.arange(m))
    return cls._make(on.cast(dtype or dtypes.default_float).uop, **kwargs)

  @classmethod
  def _tri(cls, rows: sint, cols: sint, diagonal: sint = 0) -> Self:
    """bool (rows, cols): column > row + diagonal - 1."""
    r = cls.arange(rows).reshape(rows, 1).add(diagonal)
    return r.le(cls.arange(cols))

  def triu(self, diagonal: sint = 0) -> Self:
    """The upper triangle of the last two dims from `diagonal` on, zeros below."""
    return self._tri(self.shape[-2], self.shape[-1], diagonal).where(self, False)

  def tril(self, diagonal: sint = 0) -> Self:
    """The lower triangle of the last two dims up to `diagonal`, zeros above."""
    return self._tri(self.shape[-2], self.shape[-1], diagonal + 1).where(False, self)

  def meshgrid(self, *args: Self, indexing: str = "ij") -> tuple[Self, ...]:
    """Vectors as coordinates of a grid: tensor i varies along dim i ("ij"), the first two exchanged for "xy"."""
    if indexing not in ("ij", "xy"):
      raise ValueError(f"meshgrid: unknown indexing {indexing!r}\n  fix: use 'ij' or 'xy'")
    tensors = (self, *args)
    if len(tensors) == 1:
      return tensors
    order = list(range(len(tensors)))
    if indexing == "xy":
      order[0], order[1] = 1, 0
    lengths: list[sint] = [1] * len(order)
    for t, dim in zip(tensors, order):
      lengths[dim] = t.numel()
    lined = [t.reshape(tuple(-1 if i == dim else 1 for i in range(len(order)))) for t, dim in zip(tensors, order)]
    return tuple(t.expand(tuple(lengths)) for t in lined)


def _progression(n: sint, start: Any, step: Any, dtype: DType) -> UOp:
  """start + i*step for i < n, computed in a type that holds every value well."""
  wide = dtype if dtype in (dtypes.int64, dtypes.uint64, dtypes.float64) else dtypes.float32
  u = UOp.iota(n, dtypes.int64 if wide in (dtypes.int64, dtypes.uint64) else dtypes.int32)
  u = u.cast(wide) if dtypes.is_float(dtype) or dtype.itemsize == 8 else u
  if not (isinstance(step, (int, float)) and step == 1):
    u = u.alu(Ops.MUL, _scalar(step, u.dtype).broadcast_to(u.shape))
  if not (isinstance(start, (int, float)) and start == 0):
    u = u.alu(Ops.ADD, _scalar(start, u.dtype).broadcast_to(u.shape))
  return u.cast(dtype)


def _scalar(x: Any, dtype: DType) -> UOp:
  return x.cast(dtype) if isinstance(x, UOp) else UOp.const(dtype, x)
