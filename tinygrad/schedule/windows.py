"""Sums over what SPREAD scatters, as sums over windows: the gradient of a convolution in its input is a convolution.

Where the values of y at the taps k differ by a factor that is the same at all places, as the products of a gradient
with weights do, `z[i] = Σ_k y[i - k·dilation, k]` needs no y in memory: its other factor is padded, and read through
windows."""

from collections.abc import Callable

from tinygrad.helpers import prod
from tinygrad.uop import GroupOp, Ops, UOp, factor_rule


def as_windows(u: UOp) -> UOp | None:
  """The sum over the taps of a SPREAD with stride 1, if the rule applies."""
  op, axes = u.arg
  z = u.src[0]
  if op is not Ops.ADD or z.op is not Ops.SPREAD or axes != (z.arg[1],) or z.arg[2] != 1:
    return None
  axis, taps, _, step, size = z.arg
  span = (z.shape[taps] - 1) * step

  def windows(x: UOp, axis: int, taps: int, count: int) -> UOp | None:
    n = x.shape[axis]
    if x.shape[taps] != 1 or n == 1 or size < n:
      return None
    x = padded(x, axis, span, size - n)
    x = x.expand(tuple(count if d == taps else m for d, m in enumerate(x.shape)))
    return x.window(axis, taps, 1, step, size).flip((taps,))

  y = through(z.src[0], axis, taps, size, windows, {})
  return None if y is None else sum_over(y, taps)


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
    shape = tuple(size if d == axis else n for d, n in enumerate(u.shape))
    return None if repeated is None else repeated.expand(shape)
  places = {d: d for d in (axis, taps)}
  if u.op is Ops.PERMUTE:
    places = {d: u.arg[d] for d in places}
  elif u.op is Ops.RESHAPE:
    ends = {int(prod(s.shape[:j])): j for j, n in enumerate(s.shape) if n != 1}
    places = {d: ends.get(int(prod(u.shape[:d])), -1) for d in places}
    if any(u.shape[d] == 1 or j < 0 or s.shape[j] != u.shape[d] for d, j in places.items()):
      return None
  elif u.op is Ops.REDUCE:
    if u.arg[0] is not Ops.ADD or not places.keys().isdisjoint(u.arg[1]):
      return None
  elif u.op is not Ops.CAST and u.op is not Ops.EXPAND and not leaves_alone(u, places):
    return None
  if (below := through(s, places[axis], places[taps], size, leaf, found)) is None:
    return None
  names_shape = u.op is Ops.RESHAPE or u.op is Ops.EXPAND
  arg = tuple(size if d == axis else n for d, n in enumerate(u.shape)) if names_shape else u.arg
  return u.replace(src=(below,), arg=arg)


def leaves_alone(u: UOp, dims: dict[int, int]) -> bool:
  """Whether `u` is a movement that leaves these dims alone, and does not name their sizes."""
  remaps = u.op in GroupOp.Remapping and u.op is not Ops.SHRINK and len(u.src) == 1
  return remaps and factor_rule(u).remapped.isdisjoint(dims)


def padded(x: UOp, axis: int, before: int, after: int) -> UOp:
  """With zeros around, which come below what leaves the dim alone."""
  if x.op is Ops.EXPAND and x.src[0].shape[axis] == x.shape[axis]:
    shape = tuple(before + n + after if d == axis else n for d, n in enumerate(x.shape))
    return padded(x.src[0], axis, before, after).expand(shape)
  if (x.op is Ops.FLIP or x.op is Ops.WINDOW) and leaves_alone(x, {axis: axis}):
    return x.replace(src=(padded(x.src[0], axis, before, after),))
  return x.pad(tuple((before, after) if d == axis else (0, 0) for d in range(len(x.shape))), 0)


def sum_over(y: UOp, dim: int) -> UOp:
  """The sum over a dim, which stays as 1: a part of the sum that `y` is, if it is one."""
  s = y.src[0]
  if y.op is Ops.REDUCE and y.arg[0] is Ops.ADD:
    return y.replace(arg=(Ops.ADD, tuple(sorted((*y.arg[1], dim)))))
  if y.op is Ops.PERMUTE:
    return y.replace(src=(sum_over(s, y.arg[dim]),))
  if y.op is Ops.RESHAPE:
    size, before = y.shape[dim], prod(y.shape[:dim])
    at = next((j for j, n in enumerate(s.shape) if n == size and prod(s.shape[:j]) == before), None)
    if at is not None:
      shape = tuple(1 if d == dim else n for d, n in enumerate(y.shape))
      return y.replace(src=(sum_over(s, at),), arg=shape)
  return UOp.new(Ops.REDUCE, y.dtype, (y,), (Ops.ADD, (dim,)))
