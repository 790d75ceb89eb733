"""Indexing: views by slices, rows by integer tensors, and their inverses."""

import functools
import math
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from tinygrad.device import Sharding
from tinygrad.dtype import dtypes, holds_number
from tinygrad.engine.program_order import memory_state
from tinygrad.helpers import ceildiv, make_tuple, numpy, prod
from tinygrad.mixin.base import Base, also_named, broadcast_shape, check_choice, common_shape, mismatch, sint
from tinygrad.mixin.creation import type_of_places
from tinygrad.mixin.movement import value_now
from tinygrad.mixin.reduce import Reduce
from tinygrad.ops import Trait, having
from tinygrad.uop import Ops, UOp, simplify_sint


@dataclass(frozen=True, slots=True)
class _Part:
  """What one index does to its dim: the range that stays, its step, and whether the dim goes; or what picks."""

  start: sint
  stop: sint
  step: int = 1
  drop: bool = False
  pick: Any = None


IDEMPOTENT = having(Trait.IDEMPOTENT)
Reduction = Literal["sum", "prod", "mean", "amax", "amin"]
BLOCK = 128  # elements of which one sorts by counting
FEW = 64  # greatest elements up to which they are looked for one by one
MANY = 8  # times as many elements as are looked for, of which blocks are left out
SEARCHED = 1 << 13  # elements, in all passes, of a search for few that stays one kernel


class Indexing(Reduce):
  __slots__ = ()

  # ---- reading

  def __getitem__(self, indices: Any) -> Self:
    """`x[i]`, `x[a:b:s]`, `x[..., None]`, `x[rows]` with integer tensors or lists and `x[mask]` (numpy's rules; a plain
    integer is a view, as in PyTorch), also `x[v:v+2]` for bound variables. True and False keep all or nothing, in a
    new dim.

    An integer tensor's element outside [-n, n) reads 0; a mask is realised to be counted. Raises IndexError for an
    index that does not fit, and for a number of a list or numpy array that is out of range.
    """
    of, indices = self._with_flags(indices)
    parts, shape, axes = of._parse(indices)
    x = of._view(parts).reshape(shape)
    picked = [(axes[i], p.pick) for i, p in enumerate(parts) if p.pick is not None]
    return x._pick(picked) if picked else x

  def _with_flags(self, indices: Any) -> tuple[Self, Any]:
    """A bool among indices stands for no dim: it picks all, or nothing, of a new dim of 1."""
    given = _listed(indices)
    if not any(map(_is_flag, given)):
      return self, indices
    rest, x, dim = self.ndim - sum(map(_dims_of, given)), self, 0
    made: list[Any] = []
    for index in given:
      if _is_flag(index):
        x, index = x.unsqueeze(dim), [0] if (index if isinstance(index, bool) else index.item()) else []
      made.append(index)
      dim += rest if index is Ellipsis else _dims_of(index)
    return x, tuple(made)

  def _parse(self, indices: Any) -> tuple[list[_Part], tuple[sint, ...], list[int]]:
    """(a part for each dim, the shape after the parts with the new dims of None, each dim's place in that shape)."""
    given = _listed(indices)
    dots = [i for i, x in enumerate(given) if x is Ellipsis]
    if len(dots) > 1:
      raise IndexError(
        f"an index can have one ellipsis only, and has {len(dots)}\n  fix: write : for the dims of the others"
      )
    listed, given = given, [self._as_pick(x) for x in given]
    values = {id(t): x for t, x in zip(given, listed) if t is not x}
    ranks = [x.ndim if isinstance(x, Base) and x.dtype is dtypes.bool else 1 for x in given]
    count = sum(k for x, k in zip(given, ranks) if x is not None and x is not Ellipsis)
    if count > self.ndim:
      raise IndexError(f"{count} indices for the {self.ndim} dims of shape {self.shape}\n  fix: give at most one a dim")
    at = dots[0] if dots else len(given)
    given[at : at + 1] = [slice(None)] * (self.ndim - count)
    parts, shape, axes = list[_Part](), list[sint](), list[int]()
    for index in given:
      if index is None:
        shape.append(1)
        continue
      found = [index]
      if isinstance(index, Base) and index.dtype is dtypes.bool:  # as many integer indices as the mask has dims
        if (there := self.shape[len(parts) : len(parts) + index.ndim]) != index.shape or not index.ndim:
          rule = f"a mask must have the shape of the dims it stands for, here {there}"
          mismatch("index", rule, (self.uop, index.uop), "reshape the mask, or use mask.where(x, y)", IndexError)
        found = [p.squeeze(1) for p in self._new(index.uop).nonzero().split(1, dim=1)]
      for one in found:
        n, dim = self.shape[len(parts)], len(parts)
        if isinstance(n, int) and id(one) in values:
          numbers = numpy.asarray(values[id(one)])
          for bad in numbers[(numbers < -n) | (numbers >= n)]:
            raise self._out_of_range(bad, n, dim)
        part = self._part(one, n, dim)
        axes.append(len(shape))
        parts.append(part)
        if not part.drop:
          shape.append(_length(part))
    return parts, tuple(shape), axes

  def _as_pick(self, index: Any) -> Any:
    """Lists and arrays of an index as tensors."""
    array = hasattr(index, "__array__") and getattr(index, "shape", ()) != ()
    if isinstance(index, Base) or not (array or isinstance(index, (list, tuple))):
      return index
    where = self.uop.device
    try:
      t = type(self)(index, device=where.reduced.with_dims(()) if isinstance(where, Sharding) else where)
    except (TypeError, ValueError) as e:
      rule = f"index: the list {reprlib.repr(index)} is no array of integers or bools"
      raise IndexError(f"{rule}\n  fix: separate the indices of several dims by commas, as in x[1, [0, 2]]") from e
    return t.int() if t.shape == (0,) and not array else t

  def _part(self, index: Any, n: sint, dim: int) -> _Part:
    if isinstance(index, slice):
      return _slice_part(index, n)
    if isinstance(index, Base):
      if dtypes.is_float(index.dtype):
        rule = f"an index tensor must hold integers or bools, that of dim {dim} holds {index.dtype}"
        raise IndexError(f"{rule}\n  fix: use index.int()")
      return _Part(0, n, pick=index)
    if isinstance(index, UOp):
      start = simplify_sint(n + index) if index.vmax < 0 else index
      here, most = value_now(start), value_now(n)
      if here is not None and most is not None and not 0 <= here < most:
        rule = f"index {index} is out of range for dim {dim} of a tensor of shape {self.shape}"
        raise IndexError(f"{rule}\n  fix: bind a value from 0 to {most - 1}; below 0 if the variable's bounds are")
      return _Part(start, start + 1, drop=True)
    if not hasattr(index, "__index__"):
      raise IndexError(f"{type(index).__name__} is no index\n  fix: use integers, slices, None, ... or integer tensors")
    i = int(index)
    if isinstance(n, int) and not -n <= i < n:
      raise self._out_of_range(i, n, dim)
    start = simplify_sint(n + i) if i < 0 else i
    return _Part(start, start + 1, drop=True)

  def _out_of_range(self, i: int, n: int, dim: int) -> IndexError:
    rule = f"index {i} is out of range for dim {dim} of a tensor of shape {self.shape}"
    return IndexError(f"{rule}\n  fix: use one from {-n} to {n - 1}")

  def _view(self, parts: Sequence[_Part]) -> Self:
    """The ranges and steps applied; every dim stays."""
    x = self.shrink([(p.start, p.stop) for p in parts])
    if backwards := [i for i, p in enumerate(parts) if p.step < 0]:
      x = x.flip(backwards)
    for i, p in enumerate(parts):
      if abs(p.step) > 1:
        x = x._seen(x.unsqueeze(-1).uop.window(i, x.ndim, abs(p.step), 1, _length(p))).squeeze(-1)
    return x

  def _pick(self, picked: list[tuple[int, Self]]) -> Self:
    """Rows at the index tensors of some dims, which broadcast against each other (numpy's advanced indexing)."""
    dims = [d for d, _ in picked]
    index = self._linear([t for _, t in picked], [self.shape[d] for d in dims])
    rest = [i for i in range(self.ndim) if i not in dims]
    table = self.permute((*dims, *rest)).reshape((prod(self.shape[d] for d in dims), *(self.shape[i] for i in rest)))
    rows = table._rows(index)
    if dims != list(range(dims[0], dims[-1] + 1)) or dims[0] == 0:
      return rows
    n, k = index.ndim, dims[0]
    return rows.permute((*range(n, n + k), *range(n), *range(n + k, rows.ndim)))

  def _linear(self, indices: Sequence[Self], lengths: Sequence[sint]) -> Self:
    """One row-major index for several; negative ones count from the end, one outside becomes -1."""
    rule = "the index tensors must broadcast together: shapes"
    shape = common_shape("index", [t.uop for t in indices], rule, IndexError)
    most = prod(n if isinstance(n, int) else n.vmax for n in lengths)
    large = any(t.dtype.itemsize == 8 for t in indices) or most >= 1 << 31
    total, inside = None, []
    for t, n in zip(indices, lengths):
      i = t.cast(dtypes.int64 if large else dtypes.int32)._expand_to(shape)
      if not dtypes.is_unsigned(t.dtype):
        i = i.lt(0).where(i.add(n), i)
      inside.append(i.ge(0).bitwise_and(i.lt(n)))
      total = i if total is None else total.mul(n).add(i)
    assert total is not None
    return total if len(inside) == 1 else functools.reduce(type(self).bitwise_and, inside).where(total, -1)

  def _rows(self, index: Self) -> Self:
    """index.shape + self.shape[1:]: rows of dim 0; an index outside [0, n) reads 0."""
    return self._new(self.uop.gather(index.uop))

  def gather(self, dim: int, index: Self) -> Self:
    """`out[i][j] = x[index[i][j]][j]` for dim 0, and so on: the shape of `index`, which is at most this one in the
    other dims.
    Shape: `(*dims), (*index) -> (*index)`.

    Examples:
      >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[0], [1]])).tolist()
      [[1], [4]]
    """
    d = self._dim(dim)
    x, places = self._as_vectors(index)
    if x is not self or places is not index:
      return x.gather(d, places).reshape(index.shape)
    self._check_index("gather", d, index)
    table = self.shrink([(0, n if i == d else m) for i, (n, m) in enumerate(zip(self.shape, index.shape))])
    table, rows = table.transpose(d, -1), self._linear([index], [self.shape[d]]).transpose(d, -1)
    return self._new(table.uop.gather(rows.uop, self.ndim - 1)).transpose(d, -1)

  def _as_vectors(self, *others: Self) -> tuple[Self, ...]:
    """This and the others; those of no dims with one, as in PyTorch, if none has more and one is of none."""
    xs = (self, *others)
    return tuple(x if x.ndim else x.reshape(1) for x in xs) if max(x.ndim for x in xs) < 2 else xs

  def _check_index(self, name: str, dim: int, index: Self) -> None:
    others = [(n, m) for i, (n, m) in enumerate(zip(self.shape, index.shape)) if i != dim]
    if index.ndim != self.ndim or _exceeds(others):
      rule = f"the index must have {self.ndim} dims, none but dim {dim} longer than the tensor's"
      mismatch(name, rule, (self.uop, index.uop), "expand or shrink the index")
    if dtypes.is_float(index.dtype) or dtypes.is_bool(index.dtype):
      mismatch(name, "the index must hold integers", (self.uop, index.uop), "cast it: index.int()", TypeError)

  def one_hot(self, num_classes: int) -> Self:
    """int32 (*shape, num_classes): 1 where the class is the element, so a row of zeros for an element outside.
    ValueError unless num_classes is positive, TypeError for floats.
    Shape: `(..) -> (.., num_classes)`.

    Examples:
      >>> Tensor([0, 2]).one_hot(3).tolist()
      [[1, 0, 0], [0, 0, 1]]
    """
    (num_classes,) = make_tuple(num_classes, 1)
    if num_classes <= 0:
      raise ValueError(
        f"one_hot: the number of classes must be positive, got {num_classes}\n  fix: leave it out, or give 1 or more"
      )
    if dtypes.is_float(self.dtype):
      mismatch("one_hot", "the classes must be integers", [self.uop], "cast them: x.int()", TypeError)
    return self._one_hot(num_classes).cast(dtypes.int32)

  def _one_hot(self, n: sint, dim: int = -1) -> Self:
    """bool, with a new dim `dim` of n classes."""
    x, classes = self, self._numbers(n)
    if dtypes.is_bool(x.dtype) or not holds_number(x.dtype, (n if isinstance(n, int) else n.vmax) - 1):
      x = x.cast(classes.dtype)  # in x's a class would be another one, too
    else:
      classes = classes.cast(x.dtype)
    return x.unsqueeze(dim).eq(classes._lined(self._dim(dim, extra=True), self.ndim + 1))

  def masked_select(self, mask: Self, size: int | None = None, fill_value: Any = 0) -> Self:
    """The elements where `mask` is True, in order, as a vector. With `size` cut or filled to it; without, the mask is
    realised first. TypeError for a mask of numbers.
    Shape: `(..), (..) -> (n)`.

    Examples:
      >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True])).tolist()
      [1, 3]
    """
    if mask.dtype is not dtypes.bool:
      fix = "compare first, e.g. x.masked_select(m != 0); x[index] takes places"
      mismatch("masked_select", "the mask must be a bool tensor", (self.uop, mask.uop), fix, TypeError)
    shape = common_shape("masked_select", (self.uop, mask.uop))
    flat, keep = self._expand_to(shape).flatten(), mask._expand_to(shape).flatten()
    places = keep.nonzero(size, -1).reshape(-1)
    found = flat._rows(places)
    return found if not fill_value else places.lt(0).where(fill_value, found)

  def nonzero(self, size: int | None = None, fill_value: Any = 0) -> Self:
    """int32 (count, ndim), int64 among 2**31 and more: where the elements are not 0, in row-major order. With `size`
    cut or filled; without, it is realised first.
    Shape: `(..) -> (count, ndim)`.

    Examples:
      >>> Tensor([[0, 5], [6, 0]]).nonzero().tolist()
      [[0, 1], [1, 0]]
    """
    if size is None:
      here = self.device.with_dims(()) if isinstance(self.device, Sharding) else self.device
      large = any(type_of_places(n) is not None for n in self.shape)
      return type(self)(numpy.argwhere(self.bool()._counted()).astype(numpy.int64 if large else numpy.int32), here)
    hit = self.bool().flatten().int()
    rank = hit.cumsum(0).sub(1)  # of a hit: how many come before it
    n = int(hit.shape[0])
    place = self._numbers(n)._scattered(hit.bool().where(rank, -1), size, Ops.MAX)
    coordinates, stride = [], n
    for s in self.numpy_shape():
      stride //= max(1, s)
      coordinates.append(place.lt(0).where(fill_value, place.div(stride, rounding_mode="floor").mod(s)))
    return coordinates[0].stack(*coordinates[1:], dim=1) if coordinates else place.reshape(size, 1)._slice(1, 0, 0)

  # ---- writing

  def _write(self, view: UOp, value: UOp) -> None:
    """Puts `value` into `view`, a view of this tensor's memory; without memory the tensor stands for `value`."""
    raise NotImplementedError

  def __setitem__(self, indices: Any, v: Any) -> None:
    """`x[index] = v` for every index that can be read, and for a bool mask of leading dims; v broadcasts and takes this
    dtype.

    Of several values for one place the last stays; by an element of an integer tensor outside [-n, n) nothing is
    written. Slices of memory are written in place; all else replaces the whole value.
    """
    known = isinstance(v, (Base, int, float, UOp)) or getattr(v, "shape", None) == ()
    data = None if known else type(self)(v, dtype=self.dtype if isinstance(v, (list, tuple)) else None)
    new = self._wrap(self._lift(v, "setitem") if data is None else data.uop).cast(self.dtype)
    rest = self.ndim - indices.ndim if isinstance(indices, Base) and indices.dtype is dtypes.bool else -1
    if isinstance(indices, Base) and new.ndim <= rest:  # the same for every place: nothing has to be counted
      mask = self._new(indices.uop).reshape((*indices.shape, *(1,) * (self.ndim - indices.ndim)))
      self._write(self.uop, mask._expand_to(self.shape).where(new, self).uop)
      return
    of, index = self._with_flags(indices)
    parts, shape, axes = of._parse(index)
    picks = [(axes[i], p.pick) for i, p in enumerate(parts) if p.pick is not None]
    if not picks and self.follows and memory_state(self.uop) is not None:
      view = self._view(parts)
      self._write(view.uop, new._fit(shape).reshape(view.shape).uop)
      return
    # number every element, read the numbers as the index reads, and put values at the numbers that were read
    # (from 1: what no index reads is 0, and goes to -1, which is nowhere)
    most = prod(self.shape) + 1
    numbers = self.arange(1, most, dtype=type_of_places(most)).reshape(self.shape)[indices].sub(1)
    places, values = numbers.flatten(), new._fit(numbers.shape).flatten()
    if isinstance(places.shape[0], int) and places.shape[0] == 0:
      return
    self._write(self.uop, self.flatten()._put(places, values).reshape(self.shape).uop)

  def _fit(self, shape: tuple[sint, ...]) -> Self:
    """This value broadcast to the shape of what is written; leading dims of 1 may be missing there."""
    x = self
    while x.ndim > len(shape) and isinstance(x.shape[0], int) and x.shape[0] == 1:
      x = x.squeeze(0)
    if broadcast_shape(x.shape, shape) != shape:
      mismatch("setitem", f"the value must broadcast to the indexed shape {shape}", [self.uop], "reshape the value")
    return x._expand_to(shape)

  def _put(self, places: Self, values: Self) -> Self:
    """This vector with values[k] at places[k]; the last of several stays."""
    last = self._numbers(places.shape[0])._scattered(places, self.shape[0], Ops.MAX)
    return last.lt(0).where(self, values._rows(last))

  def scatter(self, dim: int, index: Self, src: Any, reduce: Literal["multiply", "add"] | None = None) -> Self:
    """x with `x[index[i][j]][j] = src[i][j]` for dim 0, and so on; with `reduce` the values are added or multiplied
    to what is there.

    Of several values for one place the last stays.
    Shape: `(*dims), (*index), (*src) -> (*dims)`.

    Examples:
      >>> Tensor.zeros(3).scatter(0, Tensor([2, 0]), Tensor([1.0, 5.0])).tolist()
      [5.0, 0.0, 1.0]
    """
    check_choice("scatter", "reduce", reduce, None, "add", "multiply")
    d = self._dim(dim)
    u = self._lift(src, "scatter")
    value = self._new(u if isinstance(src, Base) else u.cast(self.dtype).broadcast_to(index.shape))
    if reduce is not None:
      return self.scatter_reduce(d, index, value, "sum" if reduce == "add" else "prod")
    if not self.ndim:
      return self.reshape(1).scatter(d, index, value).reshape(())
    places, values = self._places(d, index, value)
    numbers = self._numbers(places.shape[d])._lined(d, self.ndim)._expand_to(places.shape)
    last = self._reduced(d, places, numbers, Ops.MAX)
    return last.lt(0).where(self, values.gather(d, last))

  def _scattered(self, places: Self, n: sint, op: Ops, batch: int = 0) -> Self:
    """Row i: the reduction by `op` of this tensor's rows whose place is i, in n rows; the first `batch` dims stay."""
    return self._new(self.uop.scatter(places.uop, n, op, batch))

  def _reduced(self, dim: int, places: Self, values: Self, op: Ops) -> Self:
    """In this shape: the reduction of the values whose place along `dim` it is."""
    places, values = (t.transpose(dim, -1) for t in (places, values))
    return values._scattered(places, self.shape[dim], op, self.ndim - 1).transpose(dim, -1)

  def _places(self, dim: int, index: Self, src: Self) -> tuple[Self, Self]:
    """(where along dim each element goes, -1 for nowhere, its value), in this shape but for dim, where it is src's."""
    _, index, src = self._as_vectors(index, src)
    self._check_index("scatter", dim, index)
    if _exceeds(zip(src.shape, index.shape)):
      rule = "src must be at least as long as the index in every dim"
      mismatch("scatter", rule, (src.uop, index.uop), "pad src or shrink the index")
    if src.dtype is not self.dtype:
      fix = f"src.cast({self.dtype!r})"
      mismatch("scatter", "src must have the tensor's dtype", (self.uop, src.uop), fix, TypeError)
    src = src.shrink([(0, n) for n in index.shape])
    grow = tuple((0, 0) if i == dim else (0, a - b) for i, (a, b) in enumerate(zip(self.shape, index.shape)))
    return self._linear([index], [self.shape[dim]])._pad_pairs(grow, -1), src._pad_pairs(grow, 0)

  def scatter_reduce(self, dim: int, index: Self, src: Self, reduce: Reduction, include_self: bool = True) -> Self:
    """x with the reduction of all src elements that go to a place, and of what is there if `include_self`.
    Shape: `(*dims), (*index), (*src) -> (*dims)`.

    Examples:
      >>> Tensor.zeros(2).scatter_reduce(0, Tensor([1, 1]), Tensor([3.0, 4.0]), reduce="sum").tolist()
      [0.0, 7.0]
    """
    t, d = type(self), self._dim(dim)
    # the reduction, and how what is there joins it
    ways: dict[str, Any] = {"amax": (Ops.MAX, t.maximum), "amin": (Ops.MIN, t.minimum)}
    ways = {"sum": (Ops.ADD, t.add), "prod": (Ops.MUL, t.mul), "mean": (Ops.ADD, t.add), **ways}
    check_choice("scatter_reduce", "reduce", reduce, *ways)
    op, join = ways[reduce]
    if not self.ndim:
      return self.reshape(1).scatter_reduce(d, index, src, reduce, include_self).reshape(())
    places, values = self._places(d, index, src)
    if op not in IDEMPOTENT:
      r = values._in_wide(lambda x: self._reduced(d, places, x, op))
    else:
      r = self._reduced(d, places, values, op)
    r = join(r, self) if include_self else r
    if reduce == "mean":
      count = self._reduced(d, places, places.const_like(1, dtypes.int32), Ops.ADD)
      r = r.div(count.add(int(include_self)).maximum(1), rounding_mode=None if dtypes.is_float(self.dtype) else "floor")
    if include_self:
      return r.cast(self.dtype)
    return self._reduced(d, places, places.const_like(True, dtypes.bool), Ops.MAX).where(r.cast(self.dtype), self)

  # ---- order

  def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
    """(the elements in order along `dim`, their positions as int32); equal elements keep their order, nan is greater
    than all. Cost: log²(n) exchanges an element, on each device for whole rows.
    Shape: `(..) -> (..), (..)`.

    Examples:
      >>> values, places = Tensor([3, 1, 2]).sort()
      >>> values.tolist(), places.tolist()
      ([1, 2, 3], [1, 2, 0])
    """
    d = self._dim(dim)
    if not self.ndim:
      return self._value(), self._wrap(UOp.const(dtypes.int32, 0))
    x = self.transpose(d, -1)._whole_rows()
    key = x._sort_key(descending)
    places = (key if x.dtype.itemsize < 8 else key.bitwise_and((1 << 32) - 1).sub(1 << 31))._order()
    if x.dtype.itemsize == 8:  # by the lower half of the bits, then by the upper one, which keeps that order
      places = places.gather(-1, key.rshift(32).gather(-1, places)._order())
    return x.gather(-1, places).transpose(d, -1), places.transpose(d, -1)

  def _whole_rows(self) -> Self:
    """With the last dim whole on every device: another is cut in its place, if there is one that is long enough."""
    where, last = self.device, self.ndim - 1
    if not isinstance(where, Sharding) or not where.cut(last):
      return self
    dims = [where.cut(i) for i in range(last)]
    rows = [n // where.parts(i) if isinstance(n, int) else 0 for i, n in enumerate(self.shape[:last])]
    if (most := max(rows, default=0)) >= where.parts(last):
      dims[rows.index(most)] += where.cut(last)
    return self._taken_whole(where.with_dims(dims))

  def _sort_key(self, descending: bool) -> Self:
    """int64, in the order of the elements; of as many bits as they have."""
    x, wide = self, self.dtype.itemsize == 8
    integer = dtypes.int64 if wide else dtypes.int32
    most = dtypes.max(integer)
    if dtypes.is_float(x.dtype):  # the bits of a float below 0 count downwards
      bits = x.eq(0).where(0, x).cast(dtypes.float64 if wide else dtypes.float32).bitcast(integer)
      x = x.isnan().where(most, bits.lt(0).where(bits.bitwise_xor(most), bits))
    elif x.dtype in (dtypes.uint32, dtypes.uint64):
      x = x.bitwise_xor(most + 1).bitcast(integer)
    x = x.cast(dtypes.int64)
    return x.bitwise_not() if descending else x

  def _order(self) -> Self:
    """The positions that sort the rows of int64 keys of 32 bits."""
    return self._numbered()._in_order(self.shape[-1]).cast(dtypes.int32)

  def _in_order(self, k: sint) -> Self:
    """The k least of the rows' distinct keys, in order: blocks by counting, then Batcher's bitonic merges, in which the
    first step compares a block with the next one reversed. Of two blocks that have k keys each, the least stay."""
    n, last = self.shape[-1], dtypes.max(dtypes.int64)
    most, wanted = (m if isinstance(m, int) else m.vmax for m in (n, k))
    run = max(min(most, BLOCK), 1)
    x = self.pad((0, most + -most % run - n), value=last).unflatten(-1, (-1, run)).contiguous()
    rank = x.unsqueeze(-2).lt(x.unsqueeze(-1)).sum(-1)
    x = x._scattered(rank, run, Ops.MIN, x.ndim - 1).flatten(-2)  # what is padded is equal, and the least of nothing
    while x.shape[-1] > run:
      x, backwards = x.pad((0, -x.shape[-1] % (2 * run)), value=last), run < wanted
      if backwards:
        run *= 2
      else:
        a, b = x.unflatten(-1, (-1, 2, run)).split(1, -2)
        x = a.minimum(b.flip(-1)).flatten(-3)
      step = run
      while step > 1:  # two steps a kernel, of the distances step / 2 and step / 4, so that later ones are alike
        cuts = (2,) * (1 + step.bit_length() % 2)
        step >>= len(cuts)
        x = x.contiguous().unflatten(-1, (-1, *cuts, step))
        for axis in range(-1 - len(cuts), -1):
          a, b = x.split(1, axis)
          b = b.flip(*range(axis + 1, 0)) if backwards else b
          x, backwards = a.minimum(b).cat(a.maximum(b), dim=axis), False
        x = x.flatten(-2 - len(cuts))
    return x._slice(self.ndim - 1, 0, k)

  def _least(self, k: int) -> Self:
    """The k least of the rows' numbered keys, in order. They are in those k blocks whose least are least, for k keys at
    least are no greater than those: so two rows are searched, of n / size and of k * size keys, numbers ascending."""
    n = self.shape[-1]
    if isinstance(n, int) and n > max(MANY * k, BLOCK) and (k > FEW or n * k > SEARCHED):
      size = 1 << round(math.log2(n / k) / 2)
      blocks = self.pad((0, -n % size), value=dtypes.max(dtypes.int64)).unflatten(-1, (-1, size)).contiguous()
      which = blocks.min(-1).rshift(32)._numbered()._least(k).cast(dtypes.int32)
      which = which.cast(dtypes.int64)._in_order(k).cast(dtypes.int32).unsqueeze(-1)
      return blocks.gather(-2, which._expand_to((*which.shape[:-1], size))).flatten(-2)._least(k)
    if k > FEW:
      return self._in_order(k)
    x = self.contiguous()
    found = [x.min(-1, keepdim=True)]
    while len(found) < k:
      found.append(x.gt(found[-1]).where(x, dtypes.max(dtypes.int64)).min(-1, keepdim=True))
    return found[0].cat(*found[1:], dim=-1)

  def _numbered(self) -> Self:
    """Keys of 32 bits and, below them, the positions of the last dim."""
    return self.mul(1 << 32).add(self.arange(self.shape[-1]))

  @also_named(axis="dim")
  def argsort(self, dim: int = -1, descending: bool = False) -> Self:
    """The positions that sort the elements along `dim`, int32.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([3, 1, 2]).argsort().tolist()
      [1, 2, 0]
    """
    return self.sort(dim, descending)[1]

  @also_named(sorted="sorted_", axis="dim")
  def topk(self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> tuple[Self, Self]:
    """(the k greatest or least elements along `dim`, their positions as int32). ValueError if k is too great.
    Shape: `(*a, n, *b) -> (*a, k, *b), (*a, k, *b)`.

    Examples:
      >>> values, places = Tensor([3, 1, 2]).topk(2)
      >>> values.tolist(), places.tolist()
      ([3, 2], [0, 2])
    """
    d, (k,) = self._dim(dim), make_tuple(k, 1)
    if not self.ndim and k == 1:
      return self.sort()
    if not self.ndim or (isinstance(self.shape[d], int) and not 0 <= k <= self.shape[d]):
      fix = f"take min(k, x.shape[{d}])" if self.ndim else "take 1"
      raise ValueError(f"topk: k = {k} is not within dim {d} of {self.shape}\n  fix: {fix}")
    if self.dtype.itemsize == 8 or not k:
      values, places = self.sort(d, descending=largest)
      return values._slice(d, 0, k), places._slice(d, 0, k)
    x = self.transpose(d, -1)._whole_rows()
    places = x._sort_key(largest)._numbered()._least(k).cast(dtypes.int32)
    return x.gather(-1, places).transpose(d, -1), places.transpose(d, -1)


def _length(p: _Part) -> sint:
  n: sint = simplify_sint(p.stop - p.start)
  size: sint = n if abs(p.step) == 1 else ceildiv(n, abs(p.step))
  return size


def _exceeds(lengths: Iterable[tuple[sint, sint]]) -> bool:
  """Whether the second of a pair is known to be greater."""
  return any(isinstance(n, int) and isinstance(m, int) and m > n for n, m in lengths)


def _listed(indices: Any) -> list[Any]:
  return list(indices) if isinstance(indices, tuple) or _is_tuple(indices) else [indices]


def _is_flag(index: Any) -> bool:
  """Whether an index is one bool."""
  kind = getattr(index, "dtype", None)
  return isinstance(index, bool) or (getattr(index, "shape", None) == () and kind in (dtypes.bool, numpy.bool_))


def _dims_of(index: Any) -> int:
  """How many dims of a tensor an index stands for: a mask for as many as it has."""
  if index is None or index is Ellipsis or _is_flag(index):
    return 0
  if isinstance(index, Base):
    return index.ndim if index.dtype is dtypes.bool else 1
  listed = isinstance(index, (list, tuple)) or hasattr(index, "__array__")
  return array.ndim if listed and (array := numpy.asarray(index)).dtype == bool else 1


def _is_tuple(indices: Any) -> bool:
  """Whether a list can only mean one index a dim, as it holds what no array does."""
  return isinstance(indices, list) and any(i is None or i is Ellipsis or isinstance(i, slice) for i in indices)


def _slice_part(index: slice, n: sint) -> _Part:
  """A slice as a range in ascending order and a step whose sign says in which direction it is read."""
  ends = (index.start, index.stop, index.step)
  step = 1 if index.step is None else index.step
  if step == 0:
    raise IndexError(f"a slice's step must not be 0, got {index}\n  fix: leave the step out, or give 1")
  if any(not (e is None or isinstance(e, UOp) or hasattr(e, "__index__")) for e in ends):
    rule = "slice indices must be integers, bound variables or None"
    raise IndexError(f"{rule}, got {index}\n  fix: int(x) of each, or x.item() of a tensor")
  if isinstance(n, int) and not any(isinstance(e, UOp) for e in ends):
    start, stop, step = index.indices(n)
    count = max(0, ceildiv(stop - start, step))
    if step > 0:
      return _Part(start, max(start, stop), step) if count else _Part(start, start, step)
    return _Part(start + (count - 1) * step, start + 1, step) if count else _Part(0, 0, step)
  if not isinstance(step, int) or step != 1:
    rule = "a slice with symbolic ends must have step 1"
    raise IndexError(f"{rule}, got {index}\n  fix: slice by numbers first: x[::step][start:stop]")
  low: sint = 0 if index.start is None else index.start
  high: sint = n if index.stop is None else index.stop
  low, high = (simplify_sint(n + e) if (e if isinstance(e, int) else int(e.vmax)) < 0 else e for e in (low, high))
  return _Part(low, high)
