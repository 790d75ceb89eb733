"""Creation of tensors from a rule. Values without a device live wherever they are used; a realise puts them on
`Device.DEFAULT`."""

import math
from typing import Any, Self

from tinygrad.device import Device, as_index, reduced_placement
from tinygrad.dtype import DType, check_holds, dtypes, to_dtype
from tinygrad.helpers import ceildiv
from tinygrad.mixin.base import (
  Base,
  DeviceArg,
  DTypeArg,
  Scalar,
  check_choice,
  check_matrices,
  dim_arguments,
  python_number,
  sint,
  to_placement,
)
from tinygrad.mixin.math import Math
from tinygrad.uop import Ops, UOp


def new_shape(name: str, *shape: Any) -> tuple[Any, ...]:
  """The dims of a new tensor. ValueError for a negative one."""
  dims = dim_arguments(*shape)
  if any(isinstance(n, int) and n < 0 for n in dims):
    raise ValueError(f"{name}: a dim of {dims} is negative\n  fix: give lengths of at least 0")
  return dims


def type_of_places(n: sint) -> DType | None:
  """That of the numbers below n: int64 where int32 does not hold them, else the usual one."""
  return dtypes.int64 if (n if isinstance(n, int) else n.vmax) > dtypes.max(dtypes.int32) else None


class Creation(Math):
  """Keywords of every method: `dtype`, `device` (a name, names or a `Sharding`), `requires_grad`."""

  __slots__ = ()

  @classmethod
  def _make(cls, uop: UOp, device: DeviceArg = None, requires_grad: bool | None = None) -> Self:
    made = uop if device is None else uop.copy_to_device(reduced_placement(to_placement(device)))
    return cls._wrap(made, made.op is Ops.BUFFER).requires_grad_(requires_grad)

  def _beside(self, device: DeviceArg) -> DeviceArg:
    """Where a tensor made like this one lives: as asked, else here, though not partial. None: anywhere."""
    return device if device is not None or self.uop.device in (None, Device.DEFAULT) else self.device

  # ---- constants

  @classmethod
  def full(
    cls, shape: Any, fill_value: Any, dtype: DTypeArg = None, device: DeviceArg = None, buffer: bool = True, **more: Any
  ) -> Self:
    """`fill_value` in every place; the type is that of the value unless given. `buffer=False`: an operand without
    memory of its own, which an assignment cannot write to. TypeError for a list.
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.full((2, 2), 7).tolist()
      [[7, 7], [7, 7]]
    """
    symbolic = isinstance(fill_value, UOp)
    if isinstance(fill_value, (list, tuple)):
      what = f"full: the value is one number, not a {type(fill_value).__name__}"
      raise TypeError(f"{what}\n  fix: Tensor({fill_value!r}).expand({shape!r})")
    fill_value = python_number(fill_value)
    d = to_dtype(dtype or (dtypes.default_int if symbolic else dtypes.from_py(fill_value)))
    if not symbolic:
      check_holds(d, fill_value)
    scalar = fill_value.cast(d) if symbolic else UOp.const(d, fill_value, unique=buffer)
    return cls._make(scalar.broadcast_to(new_shape("full", shape)), device, **more)

  @classmethod
  def const(cls, b: Scalar, dtype: DTypeArg = None) -> Self:
    """A number as a tensor of shape () that lives wherever it is used.
    Shape: `-> ()`.

    Examples:
      >>> Tensor.const(2.5).shape
      ()
    """
    return cls.full((), b, dtype, buffer=False)

  @classmethod
  def zeros(cls, *shape: Any, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """0 in every place, float32 unless given.
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.zeros(2).tolist()
      [0.0, 0.0]
    """
    return cls.full(dim_arguments(*shape), 0.0, dtype or dtypes.default_float, **kwargs)

  @classmethod
  def ones(cls, *shape: Any, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """1 in every place, float32 unless given.
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.ones(2).tolist()
      [1.0, 1.0]
      >>> Tensor.ones(2, 3, dtype=dtypes.int32).dtype
      dtypes.int32
    """
    return cls.full(dim_arguments(*shape), 1.0, dtype or dtypes.default_float, **kwargs)

  @classmethod
  def empty(cls, *shape: Any, device: DeviceArg = None, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """Memory that is not initialised.
    Shape: `-> (*shape)`.

    Examples:
      >>> Tensor.empty(2, 3).shape
      (2, 3)
    """
    where, d = reduced_placement(to_placement(device)), to_dtype(dtype or dtypes.default_float)
    return cls._make(UOp.buffer(new_shape("empty", *shape), d, where), **kwargs)

  invalids = empty

  def full_like(
    self, fill_value: Scalar, dtype: DTypeArg = None, device: DeviceArg = None, buffer: bool = True, **kwargs: Any
  ) -> Self:
    """A constant of this shape; type and placement too unless given.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0, 2.0]).full_like(7).tolist()
      [7.0, 7.0]
    """
    return self.full(self.shape, fill_value, dtype or self.dtype, self._beside(device), buffer, **kwargs)

  def zeros_like(self, **kwargs: Any) -> Self:
    """0 in every place of this shape, type and placement unless given.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([5, 6]).zeros_like().tolist()
      [0, 0]
    """
    return self.full_like(0, **kwargs)

  def ones_like(self, **kwargs: Any) -> Self:
    """1 in every place of this shape, type and placement unless given.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([5, 6]).ones_like().tolist()
      [1, 1]
    """
    return self.full_like(1, **kwargs)

  def empty_like(self, dtype: DTypeArg = None, device: DeviceArg = None, **kwargs: Any) -> Self:
    """Memory of this shape, type and placement that is not initialised.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor.zeros(2, 3).empty_like().shape
      (2, 3)
    """
    return self.empty(self.shape, dtype=dtype or self.dtype, device=self._beside(device), **kwargs)

  # ---- ranges

  @classmethod
  def arange(cls, start: Any, stop: Any = None, step: Any = 1, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """start, start + step, … up to and without stop. Integers unless an argument or `dtype` is a float. Tensors of one
    element as arguments are read at once, for the length depends on them. ValueError for a step of 0, and for what is
    not finite; TypeError for what is no number; OverflowError for integers that the type does not hold.
    Shape: `-> (n)`.

    Examples:
      >>> Tensor.arange(3).tolist()
      [0, 1, 2]
      >>> Tensor.arange(1, 2, 0.25).tolist()
      [1.0, 1.25, 1.5, 1.75]
    """
    if stop is None:
      start, stop = 0, start
    start, stop, step = numbers = tuple(map(_number, (start, stop, step)))
    if odd := [x for x in numbers if not isinstance(x, (int, float, UOp))]:
      raise TypeError(f"arange: {odd[0]!r} is of type {type(odd[0]).__name__}, and no number\n  fix: give numbers")
    has_float = any(isinstance(x, float) for x in (start, stop, step))
    if has_float and not all(isinstance(x, UOp) or math.isfinite(x) for x in (start, stop, step)):
      raise ValueError(f"arange: no numbers lead from {start} to {stop} by {step}\n  fix: finite numbers")
    if isinstance(step, (int, float)) and step == 0:
      raise ValueError("arange: the step must not be 0\n  fix: step=1, or Tensor.full((n,), start) for n equal numbers")
    d = to_dtype(dtype or (dtypes.default_float if has_float else dtypes.default_int))
    symbolic = any(isinstance(x, UOp) for x in (start, stop, step))
    n = ceildiv(stop - start, step) if not has_float else math.ceil((stop - start) / step)
    for end in (start, start + (n - 1) * step) if not symbolic and n > 0 else ():
      check_holds(d, end)
    return cls._make(_progression(n if symbolic else max(0, n), start, step, d), **kwargs)

  @classmethod
  def _numbers(cls, n: sint) -> Self:
    """0 to n - 1, of a type that holds them."""
    return cls.arange(n, dtype=type_of_places(n))

  @classmethod
  def linspace(cls, start: Any, stop: Any, steps: Any, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """`steps` evenly spaced numbers, both ends included. The ends may be tensors of one element, read when the result
    is; a tensor that gives `steps` is read at once. ValueError for a negative number of steps, TypeError for what is
    no integer and for the type bool.
    Shape: `-> (steps)`.

    Examples:
      >>> Tensor.linspace(0, 1, 5).tolist()
      [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    steps = _number(steps)
    if not isinstance(steps, UOp) and as_index(steps) is None:
      raise TypeError(f"linspace: {steps!r} is no number of steps\n  fix: an integer, such as int(steps)")
    if steps < 0:
      raise ValueError(f"linspace: the number of steps must not be negative, got {steps}\n  fix: give 0 or more")
    d = to_dtype(dtype or dtypes.default_float)
    if d is dtypes.bool:
      raise TypeError("linspace: bool has no evenly spaced numbers\n  fix: use a number type")
    wide = d if dtypes.is_float(d) else dtypes.default_float
    first, last = (x.uop.reshape(()).cast(wide) if isinstance(x, Base) else float(x) for x in (start, stop))
    return cls._make(_progression(steps, first, (last - first) / max(1, steps - 1), wide).cast(d), **kwargs)

  @classmethod
  def eye(cls, n: int, m: int | None = None, dtype: DTypeArg = None, **kwargs: Any) -> Self:
    """Ones on the main diagonal of an (n, m) matrix. ValueError for a negative length.
    Shape: `-> (n, m)`.

    Examples:
      >>> Tensor.eye(2).tolist()
      [[1.0, 0.0], [0.0, 1.0]]
      >>> Tensor.eye(2, 3).shape
      (2, 3)
    """
    n, m = dim_arguments(n, n if m is None else m)
    if n < 0 or m < 0:
      raise ValueError(f"eye: the dims must not be negative, got ({n}, {m})\n  fix: give 0 or more")
    return cls._make(cls.arange(n).reshape(n, 1).eq(cls.arange(m)).cast(dtype or dtypes.default_float).uop, **kwargs)

  @classmethod
  def _tri(cls, rows: sint, cols: sint, diagonal: sint = 0) -> Self:
    """bool (rows, cols): column > row + diagonal - 1."""
    return cls.arange(rows).add(diagonal).reshape(rows, 1).le(cls.arange(cols))

  def triu(self, diagonal: sint = 0) -> Self:
    """The upper triangle of the last two dims from `diagonal` on, zeros below. ValueError for vectors.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor.ones(2, 2).triu().tolist()
      [[1.0, 1.0], [0.0, 1.0]]
    """
    check_matrices("triu", self.uop)
    return self._tri(self.shape[-2], self.shape[-1], diagonal).where(self, False)

  def tril(self, diagonal: sint = 0) -> Self:
    """The lower triangle of the last two dims up to `diagonal`, zeros above. ValueError for vectors.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor.ones(2, 2).tril().tolist()
      [[1.0, 0.0], [1.0, 1.0]]
    """
    check_matrices("tril", self.uop)
    return self._tri(self.shape[-2], self.shape[-1], diagonal + 1).where(False, self)

  def meshgrid(self, *args: Self, indexing: str = "ij") -> tuple[Self, ...]:
    """Vectors as coordinates of a grid: tensor i varies along dim i ("ij"), the first two exchanged for "xy". TypeError
    for what is no tensor.
    Shape: `(n), (m), … -> (n, m, *more), …`; with "xy" the first two exchanged.

    Examples:
      >>> rows, columns = Tensor([1, 2]).meshgrid(Tensor([3, 4, 5]))
      >>> rows.shape, columns[0].tolist()
      ((2, 3), [3, 4, 5])
    """
    check_choice("meshgrid", "indexing", indexing, "ij", "xy")
    if odd := [x for x in args if not isinstance(x, Base)]:
      raise TypeError(
        f"meshgrid: {odd[0]!r} is of type {type(odd[0]).__name__}, and no Tensor\n  fix: Tensor(x) of each"
      )
    n = len(args) + 1
    order = (1, 0, *range(2, n)) if indexing == "xy" and n > 1 else range(n)
    lined = [t._lined(dim, n) for t, dim in zip((self, *args), order)]
    shape = tuple(lined[order[i]].shape[i] for i in range(n))
    return tuple(t.expand(shape) for t in lined)


def _number(x: Any) -> Any:
  """An argument as a number: that of a tensor of one element."""
  return x.numpy().item() if isinstance(x, Base) else python_number(x)


def _progression(n: sint, start: Any, step: Any, dtype: DType) -> UOp:
  """start + i*step for i < n, computed in a type that holds every value well."""
  wide = dtype if dtype in (dtypes.int64, dtypes.uint64, dtypes.float64) else dtypes.float32
  u = UOp.iota(n, dtypes.int64 if wide in (dtypes.int64, dtypes.uint64) else dtypes.int32)
  u = u.cast(wide) if dtypes.is_float(dtype) or dtype.itemsize == 8 else u
  step, start = (x.cast(u.dtype).broadcast_to(u.shape) if isinstance(x, UOp) else x for x in (step, start))
  u = u if isinstance(step, (int, float)) and step == 1 else u * step
  return (u if isinstance(start, (int, float)) and start == 0 else u + start).cast(dtype)
