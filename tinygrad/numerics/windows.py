"""Sums over what SPREAD scatters, as sums over windows: the gradient of a convolution in its input is a convolution. Of
windows side by side, which share no place, nothing is summed.

Where the values of y at the taps k differ by a factor that is the same at all places, as the products of a gradient
with weights do, `z[i] = Σ_k y[i - k·dilation, k]` needs no y in memory: its other factor is padded, and read through
windows."""

import itertools
from collections.abc import Callable

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.numerics.streaming import is_widened
from tinygrad.uop import GroupOp, Ops, UOp, factor_rule

FEW_TERMS = 64  # of a sum that may take the zeros between the places of a stride, too


def as_windows(u: UOp) -> UOp | None:
  """The sum over the taps of a SPREAD, if the rule applies; with a stride over windows of places with zeros between,
  for sums so short that these cost less than to store y and to look for its places."""
  if (z := spread_of(u)) is None:
    return None
  axis, taps, stride, step, size = z.arg
  span = (z.shape[taps] - 1) * step

  def windows(x: UOp, axis: int, taps: int, count: int) -> UOp | None:
    n = (x.shape[axis] - 1) * stride + 1
    if x.shape[taps] != 1 or n == 1 or size < n:
      return None
    x = padded(apart(x, axis, stride) if stride > 1 else x, axis, span, size - n)
    x = x.expand(tuple(count if d == taps else m for d, m in enumerate(x.shape)))
    return x.window(axis, taps, 1, step, size).flip((taps,))

  if (y := through(z.src[0], axis, taps, size, windows, {})) is None:
    return None
  total = sum_over(y, taps)
  return total if stride == 1 or terms(total) <= FEW_TERMS else None


def spread_of(u: UOp) -> UOp | None:
  """The SPREAD of whose taps a REDUCE is the sum."""
  (op, axes), z = u.arg, u.src[0]
  return z if op is Ops.ADD and z.op is Ops.SPREAD and axes == (z.arg[1],) else None


def without_overlap(u: UOp) -> UOp | None:
  """The sum over the taps of a SPREAD whose windows do not overlap, without a sum: z[i] = y[i // stride, i % stride],
  or 0 where there is none. None where windows may overlap."""
  if (z := spread_of(u)) is None:
    return None
  y, (axis, taps, stride, step, size) = z.src[0], z.arg
  n, k = y.shape[axis], y.shape[taps]
  if not all(isinstance(m, int) for m in (n, k, size)) or step > 1 or not 1 < k <= stride:
    return None

  def along(dim: int, pair: tuple[int, int]) -> list[tuple[int, int]]:
    return [pair if d == dim else (0, 0) for d in range(len(z.shape))]

  others = [d for d in range(len(z.shape)) if d != taps]
  next_to = others.index(axis) + 1
  y = y.pad(along(taps, (0, stride - k))).permute((*others[:next_to], taps, *others[next_to:]))
  y = y.reshape([{axis: n * stride, taps: 1}.get(d, m) for d, m in enumerate(z.shape)])
  y = y.pad(along(axis, (0, max(size - n * stride, 0))))
  return y.shrink([(0, 1 if d == taps else m) for d, m in enumerate(z.shape)])


def terms(u: UOp) -> int:
  """Of sums of products, those one of another too."""
  sums = (v for v in itertools.takewhile(lambda v: v.op is not Ops.MUL, u.down()) if v.op is Ops.REDUCE)
  return int(prod(prod(v.src[0].shape) // prod(v.shape) for v in sums))


# of what an EXPAND repeats, its dims of places and taps, and their count
Leaf = Callable[[UOp, int, int, int], UOp | None]
Found = dict[tuple[UOp, int, int, Leaf], UOp | None]


def through(u: UOp, axis: int, taps: int, size: int, leaf: Leaf, found: Found) -> UOp | None:
  """`u` with `size` places along `axis`, by `leaf` of what is the same for all taps, or for all places; None where that
  is not found. `found`: what has been looked at."""
  key = u, axis, taps, leaf
  if key not in found:
    found[key] = _through(u, axis, taps, size, leaf, found)
  return found[key]


def one_place(x: UOp, axis: int, taps: int, count: int) -> UOp | None:
  return x if x.shape[axis] == 1 else None


def _through(u: UOp, axis: int, taps: int, size: int, leaf: Leaf, found: Found) -> UOp | None:
  if not all(isinstance(n, int) for n in u.shape):
    return None
  s = u.src[0] if u.src else u
  if u.op is Ops.MUL:
    for a, b in (u.src, u.src[::-1]):
      if (same := through(b, axis, taps, size, one_place, found)) is not None:
        other = through(a, axis, taps, size, leaf, found)
        return None if other is None else other.alu(Ops.MUL, same)
    return None
  if u.op is Ops.EXPAND and 1 in (s.shape[taps], s.shape[axis]):
    repeated = leaf(s, axis, taps, u.shape[taps])
    return None if repeated is None else resized(u, repeated, axis, size)
  moves = u.op in GroupOp.Movement and u.op is not Ops.SHRINK and len(u.src) == 1
  if not moves and u.op is not Ops.CAST and (u.op is not Ops.REDUCE or u.arg[0] is not Ops.ADD):
    return None
  if (i := dim_below(u, axis)) is None or (j := dim_below(u, taps)) is None:
    return None
  below = through(s, i, j, size, leaf, found)
  return None if below is None else resized(u, below, axis, size)


def dim_below(u: UOp, dim: int) -> int | None:
  """The dim of the source whose indices are those of this dim of `u`; None where there is none."""
  rule = factor_rule(u)
  same = (d for d, factors in enumerate(rule.src[0]) if factors and factors == rule.out[dim])
  return None if dim in rule.remapped else next(same, None)


def resized(u: UOp, x: UOp, dim: int, size: int) -> UOp:
  """`u` of `x`, in place of a source in which what is this dim of `u` had another size."""
  named = tuple(size if d == dim else n for d, n in enumerate(u.shape))
  if u.op is Ops.EXPAND and named == x.shape:
    return x
  return u.replace(src=(x,), arg=named if u.op is Ops.RESHAPE or u.op is Ops.EXPAND else u.arg)


def apart(x: UOp, axis: int, stride: int) -> UOp:
  """With zeros between the places along `axis`."""
  return below_copies(x, axis, lambda y: _apart(y, axis, stride))


def _apart(x: UOp, axis: int, stride: int) -> UOp:
  n = x.shape[axis]
  dims = *x.shape[:axis], n, 1, *x.shape[axis + 1 :]
  x = x.reshape(dims).pad([(0, (stride - 1) * (d == axis + 1)) for d in range(len(dims))])
  x = x.reshape(tuple(n * stride if d == axis else m for d, m in enumerate(dims) if d != axis + 1))
  return x.shrink([(0, m - (stride - 1) * (d == axis)) for d, m in enumerate(x.shape)]).contiguous()


def padded(x: UOp, axis: int, before: int, after: int) -> UOp:
  """With zeros around."""
  pairs = tuple((before, after) if d == axis else (0, 0) for d in range(len(x.shape)))
  return below_copies(x, axis, lambda y: y.pad(pairs, 0))


def below_copies(x: UOp, axis: int, make: Callable[[UOp], UOp]) -> UOp:
  """`make` of what lies below operations that repeat elements and leave the dim alone, or widen them, and these
  again."""
  if (x.op is Ops.EXPAND or x.op is Ops.FLIP or x.op is Ops.WINDOW or is_widened(x)) and dim_below(x, axis) is not None:
    y = below_copies(x.src[0], axis, make)
    return resized(x, y, axis, y.shape[axis])
  return make(x)


def sum_over(y: UOp, dim: int) -> UOp:
  """The sum over a dim, which stays as 1: a part of the sum that `y` is, if it is one; it is rounded once."""
  if y.op is Ops.REDUCE and y.arg[0] is Ops.ADD:
    return y.replace(arg=(Ops.ADD, tuple(sorted((*y.arg[1], dim)))))
  if (y.op is Ops.PERMUTE or y.op is Ops.RESHAPE) and (at := dim_below(y, dim)) is not None:
    return resized(y, sum_over(y.src[0], at), dim, 1)
  if y.op is Ops.CAST and dtypes.is_float(y.dtype) and y.dtype.itemsize < y.src[0].dtype.itemsize:
    return sum_over(y.src[0], dim).cast(y.dtype)
  return UOp.new(Ops.REDUCE, y.dtype, (y,), (Ops.ADD, (dim,)))
