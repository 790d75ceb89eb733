"""Products: reshape, expand, multiply, reduce, and nothing else, so that each is one contraction."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Self

from tinygrad.dtype import DType, dtypes, sum_acc_dtype, to_dtype
from tinygrad.helpers import argsort
from tinygrad.mixin.base import Base, broadcast_shape, broadcast_to, common_dtype, mismatch, sint
from tinygrad.mixin.elementwise import cast_to
from tinygrad.mixin.random import Random
from tinygrad.uop.ops import Ops, UOp


def contract(x: UOp, w: UOp, shape: tuple[sint, ...], axes: Sequence[int], dtype: DType | str | None) -> UOp:
  """sum over `axes` (kept as 1) of x * w, both expanded to `shape`. Half types are multiplied and summed in float32 and
  come back."""
  out = to_dtype(dtype) if dtype is not None else common_dtype(x.dtype, w.dtype)
  acc = sum_acc_dtype(out) if dtypes.is_float(out) or dtype is None else out
  a, b = broadcast_to(cast_to(x, acc), shape), broadcast_to(cast_to(w, acc), shape)
  return cast_to(a.alu(Ops.MUL, b).r(Ops.ADD, axes), out)


class Linalg(Random):
  __slots__ = ()

  def dot(self, w: Self, dtype: DType | str | None = None) -> Self:
    """(.., m, k) · (.., k, n) -> (.., m, n); leading dims broadcast; a vector is a row on the left, a column on the
    right.

    Types are promoted; half types accumulate in float32; `dtype` is that of the result. ValueError unless the k agree.
    """
    if not isinstance(w, Base):
      raise TypeError(f"dot: needs a tensor, got {type(w).__name__}\n  fix: Tensor(w), or * for a number")
    x, y = self.uop, w.uop
    if not x.shape or not y.shape:
      mismatch("dot", "both operands need at least one dim", (x, y), "use * for scalars")
    k_axis = max(0, len(y.shape) - 2)
    k = x.shape[-1]
    if k is not y.shape[k_axis] and k != y.shape[k_axis]:
      fix = "transpose an operand so that the contracted dims agree"
      mismatch("dot", f"the last dim of operand 0 must be dim {k_axis - len(y.shape)} of operand 1", (x, y), fix)
    if len(y.shape) == 1:
      y = y.reshape((1, k))
      n: tuple[sint, ...] = ()
    else:
      y = y.permute((*range(len(y.shape) - 2), len(y.shape) - 1, len(y.shape) - 2))
      n = (y.shape[-2],)
    m = x.shape[-2:-1]
    lead = broadcast_shape(x.shape[:-2], y.shape[:-2])
    if lead is None:
      mismatch(
        "dot", "the leading dims must broadcast together", (self.uop, w.uop), "reshape them so that they line up"
      )
    x = x.reshape((*x.shape[:-2], *(m or (1,)), 1, k))
    y = y.reshape((*y.shape[:-2], 1, *y.shape[-2:]))
    wide = (*lead, *(m or (1,)), *(n or (1,)), k)
    result = contract(x, y, wide, (len(wide) - 1,), dtype)
    return self._new(result.reshape((*lead, *m, *n)))

  def matmul(self, x: Self, reverse: bool = False, dtype: DType | str | None = None) -> Self:
    """`dot`."""
    return x.dot(self, dtype) if reverse else self.dot(x, dtype)

  def __matmul__(self, x: Self) -> Self:
    return self.matmul(x)

  def __rmatmul__(self, x: Self) -> Self:
    return self.matmul(x, True)

  def linear(self, weight: Self, bias: Self | None = None, dtype: DType | str | None = None) -> Self:
    """x · weight + bias; `weight` (in, out), or (out,) for an elementwise product."""
    x = self if dtype is None else self.cast(dtype)
    w = weight if dtype is None else weight.cast(dtype)
    y = x.mul(w) if w.ndim == 1 else x.dot(w)
    return y if bias is None else y.add(bias if dtype is None else bias.cast(dtype))

  @classmethod
  def einsum(cls, formula: str, *operands: Self | Sequence[Self], dtype: DType | str | None = None) -> Self:
    """Sums of products by named dims, as numpy's: `einsum("bik,bkj->bij", x, y)`; `...`: dims that broadcast."""
    first = operands[0]
    xs: list[Self] = [x for x in operands if isinstance(x, cls)] if isinstance(first, cls) else list(first)  # type: ignore[arg-type]
    left, arrow, right = formula.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(xs):
      raise ValueError(f"einsum: {formula!r} names {len(inputs)} operands, {len(xs)} were given")
    spare = [c for c in map(chr, range(ord("A"), ord("z") + 1)) if c.isalpha() and c not in formula]
    most = max((x.ndim - len(s.replace("...", "")) for s, x in zip(inputs, xs) if "..." in s), default=0)
    dots = "".join(spare[:most])
    names = []
    for s, x in zip(inputs, xs):
      n = x.ndim - len(s.replace("...", ""))
      names.append(s.replace("...", dots[most - n :] if n > 0 else ""))
      if len(names[-1]) != x.ndim:
        raise ValueError(f"einsum: {s!r} names {len(names[-1])} dims, the operand has shape {x.shape}")
    if arrow:
      out = right.replace("...", dots)
    else:  # the names that appear once, in alphabetical order, after the dots
      out = dots + "".join(sorted(c for c in set(left) if c.isalpha() and sum(s.count(c) for s in inputs) == 1))
    return cls._einsum(xs, names, out, formula, dtype)

  @classmethod
  def _einsum(cls, xs: list[Self], names: list[str], out: str, formula: str, dtype: DType | str | None) -> Self:
    sizes: dict[str, sint] = {}
    for i, name in enumerate(names):
      for c in [c for c in name if name.count(c) > 1]:  # a repeated name takes the diagonal
        while name.count(c) > 1:
          a, b = name.index(c), name.rindex(c)
          xs[i] = xs[i].diagonal(0, a, b)
          name = "".join(ch for j, ch in enumerate(name) if j not in (a, b)) + c
      names[i] = name
      for c, n in zip(name, xs[i].shape):
        if sizes.setdefault(c, n) != n:
          if sizes[c] != 1 and n != 1:
            raise ValueError(f"einsum: {c!r} in {formula!r} is {sizes[c]} in one operand and {n} in another")
          sizes[c] = n if sizes[c] == 1 else sizes[c]
    if unknown := [c for c in out if c not in sizes]:
      raise ValueError(f"einsum: {unknown[0]!r} of the result in {formula!r} is in no operand")
    order = out + "".join(sorted(c for c in sizes if c not in out))
    wide = tuple(sizes[c] for c in order)
    lined = []
    for x, name in zip(xs, names):
      sorted_dims = argsort([order.index(c) for c in name])
      lined.append(x.permute(sorted_dims).reshape(tuple(x.shape[name.index(c)] if c in name else 1 for c in order)))
    axes = tuple(range(len(out), len(order)))
    if len(lined) == 2:
      u = contract(lined[0].uop, lined[1].uop, wide, axes, dtype)
      return cls._wrap(u.reshape(wide[: len(out)]))
    product = functools.reduce(lambda a, b: a.mul(b), lined)._expand_to(wide)
    return product.sum(axes, dtype=dtype) if axes else product

  def newton_schulz(self, steps: int, params: tuple[float, ...], eps: float = 1e-7) -> Self:
    """The orthogonal factor of (a batch of) matrices, approximately: G <- aG + b(GGᵀ)G + c(GGᵀ)²G + … from G/|G|
    (https://kellerjordan.github.io/posts/muon/)."""
    if self.ndim < 2:
      raise ValueError(f"newton_schulz: needs matrices, got shape {self.shape}")
    tall = self.max_shape[-2] > self.max_shape[-1]
    g = self.div(self.square().sum((-2, -1), keepdim=True).sqrt().add(eps))
    g = g.transpose(-2, -1) if tall else g
    for _ in range(steps):
      gram = g.dot(g.transpose(-2, -1))
      power, total = g, g.mul(params[0])
      for c in params[1:]:
        power = gram.dot(power)
        total = total.add(power.mul(c))
      g = total
    return g.transpose(-2, -1) if tall else g
