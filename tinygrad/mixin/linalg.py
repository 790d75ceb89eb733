"""Products: reshape, expand, multiply, reduce, and nothing else, so that each is one contraction."""

import math
import string
from collections.abc import Sequence
from typing import Any, Self

from tinygrad.dtype import dtypes, sum_acc_dtype, to_dtype
from tinygrad.helpers import argsort
from tinygrad.mixin.base import (
  Base,
  DTypeArg,
  broadcast_shape,
  check_formula,
  check_matrices,
  common_dtype,
  mismatch,
  sint,
  told_of,
)
from tinygrad.mixin.elementwise import operators
from tinygrad.mixin.random import Random
from tinygrad.uop import Ops, UOp


def contract(x: UOp, w: UOp, shape: tuple[sint, ...], axes: Sequence[int], dtype: DTypeArg) -> UOp:
  """sum over `axes` (kept as 1) of x * w, both expanded to `shape`. Half types are multiplied and summed in float32 and
  come back."""
  out = to_dtype(dtype) if dtype is not None else common_dtype(x.dtype, w.dtype)
  acc = sum_acc_dtype(out) if dtypes.is_float(out) or dtype is None else out
  return (x.cast(acc).broadcast_to(shape) * w.cast(acc).broadcast_to(shape)).r(Ops.ADD, axes).cast(out)


def check_factor(w: Any) -> None:
  if not isinstance(w, Base):
    raise TypeError(f"dot: needs a tensor, got {type(w).__name__}\n  fix: Tensor(w), or * for a number")


SWEEPS = 10  # of Jacobi rotations; convergence is quadratic


class Linalg(Random):
  __slots__ = ()

  def dot(self, w: Any, dtype: DTypeArg = None) -> Self:
    """(.., m, k) · (.., k, n) -> (.., m, n); leading dims broadcast; a vector is a row on the left, a column on the
    right.

    Types are promoted; half types accumulate in float32; `dtype` is that of the result, and where that is wider its
    gradient is rounded to the operands' type before it is multiplied with them. ValueError unless the k agree.
    TypeError if `w` is no tensor.
    Shape: `(.., m, k), (.., k, n) -> (.., m, n) or (k), (.., k, n) -> (.., n) or (.., m, k), (k) -> (.., m) or (k), (k)
    -> ()`.

    Examples:
      >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).dot(Tensor([1.0, 1.0])).tolist()
      [3.0, 7.0]
      >>> (Tensor.ones(5, 2, 3) @ Tensor.ones(3, 4)).shape
      (5, 2, 4)
    """
    check_factor(w)
    x, y = self.uop, w.uop
    if not x.shape or not y.shape:
      mismatch("dot", "both operands need at least one dim", (x, y), "use * for scalars")
    k_axis, k = max(0, len(y.shape) - 2), x.shape[-1]
    if k is not y.shape[k_axis] and k != y.shape[k_axis]:
      fix = "transpose an operand so that the contracted dims agree"
      mismatch("dot", f"the last dim of operand 0 must be dim {k_axis - len(y.shape)} of operand 1", (x, y), fix)
    m, n = x.shape[-2:-1], y.shape[k_axis + 1 :]
    y = y.permute((*range(k_axis), *range(k_axis + 1, len(y.shape)), k_axis))
    lead = broadcast_shape(x.shape[:-2], y.shape[:-2])
    if lead is None:
      fix = "reshape them so that they line up"
      mismatch("dot", "the leading dims must broadcast together", (self.uop, w.uop), fix)
    x = x.reshape((*x.shape[:-2], *(m or (1,)), 1, k))
    y = y.reshape((*y.shape[:-2], 1, *(n or (1,)), k))
    wide = (*lead, *(m or (1,)), *(n or (1,)), k)
    with told_of("dot", self.uop, w.uop):
      u = contract(x, y, wide, (len(wide) - 1,), dtype)
    return self._new(u.reshape((*lead, *m, *n)))

  def matmul(self, x: Any, reverse: bool = False, dtype: DTypeArg = None) -> Self:
    """`dot`. TypeError if `x` is no tensor, on either side: NumPy's product of an array would have no gradient.
    Shape: `(.., m, k), (.., k, n) -> (.., m, n) or (k), (.., k, n) -> (.., n) or (.., m, k), (k) -> (.., m) or (k), (k)
    -> ()`.

    Examples:
      >>> Tensor.ones(2, 3).matmul(Tensor.ones(3, 4)).shape
      (2, 4)
    """
    check_factor(x)
    a: Self = x if reverse else self
    return a.dot(self if reverse else x, dtype)

  __matmul__, __rmatmul__, __imatmul__ = operators(matmul)

  def linear(self, weight: Self, bias: Self | None = None, dtype: DTypeArg = None) -> Self:
    """x · weight + bias; `weight` (in, out), or (out,) for an elementwise product.
    Shape: `(.., in), (in, out), (out) -> (.., out) or (.., in), (in), (in) -> (.., in)`.

    Examples:
      >>> Tensor.ones(5, 3).linear(Tensor.ones(3, 4), Tensor.zeros(4)).shape
      (5, 4)
    """
    x, w = (self, weight) if dtype is None else (self.cast(dtype), weight.cast(dtype))
    y = x.mul(w) if w.ndim == 1 else x.dot(w)
    return y if bias is None else y.add(bias if dtype is None else bias.cast(dtype))

  @classmethod
  def einsum(cls, formula: str, *operands: Self | Sequence[Self], dtype: DTypeArg = None) -> Self:
    """Sums of products by named dims, as numpy's: `einsum("bik,bkj->bij", x, y)`; `...`: dims that broadcast.
    ValueError where the formula does not fit the operands, TypeError for what is no tensor.
    Shape: `(*operand), … -> (*result)`.

    Examples:
      >>> Tensor.einsum("ij,j->i", Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([1.0, 1.0])).tolist()
      [3.0, 7.0]
    """
    if not operands:
      raise ValueError(f"einsum: {formula!r} has no operands\n  fix: give a tensor for each")
    xs: list[Any] = list(operands[0] if isinstance(operands[0], (list, tuple)) else operands)
    for x in xs:
      if not isinstance(x, Base):
        raise TypeError(f"einsum: an operand is {x!r} of type {type(x).__name__}\n  fix: Tensor({x!r})")
    check_formula("einsum", formula, "ij,jk->ik")
    left, arrow, right = formula.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(xs):
      raise ValueError(f"einsum: {formula!r} names {len(inputs)} operands, {len(xs)} were given")
    extra = [max(0, x.ndim - len(s.replace("...", ""))) if "..." in s else 0 for s, x in zip(inputs, xs)]
    dots = "".join(c for c in string.ascii_letters if c not in formula)[: max(extra)]
    names = [s.replace("...", dots[len(dots) - n :]) for s, n in zip(inputs, extra)]
    for s, name, x in zip(inputs, names, xs):
      if len(name) != x.ndim:
        fix = f"name {x.ndim} of them, or write ... for those that are not named"
        raise ValueError(f"einsum: {s!r} names {len(name)} dims, the operand has shape {x.shape}\n  fix: {fix}")
    once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)  # the result's, where it names none
    return cls._einsum(xs, names, right.replace("...", dots) if arrow else dots + "".join(once), formula, dtype)

  @classmethod
  def _einsum(cls, xs: list[Self], names: list[str], out: str, formula: str, dtype: DTypeArg) -> Self:
    sizes: dict[str, sint] = {}
    for i, name in enumerate(names):
      while repeated := [c for c in name if name.count(c) > 1]:  # takes the diagonal
        c = repeated[0]
        a, b = name.index(c), name.rindex(c)
        xs[i] = xs[i].diagonal(0, a, b)
        name = names[i] = "".join(ch for j, ch in enumerate(name) if j not in (a, b)) + c
      for c, n in zip(name, xs[i].shape):
        if (known := sizes.get(c, 1)) != n and known != 1 and n != 1:
          rule = f"{c!r} in {formula!r} is {known} in one operand and {n} in another"
          raise ValueError(f"einsum: {rule}\n  fix: name them apart")
        sizes[c] = n if known == 1 else known
    if unknown := [c for c in out if c not in sizes]:
      raise ValueError(f"einsum: {unknown[0]!r} of the result in {formula!r} is in no operand")
    if len(xs) > 2:  # two at a time, from the left
      kept = "".join(c for c in dict.fromkeys(names[0] + names[1]) if c in out + "".join(names[2:]))
      first = cls._einsum(xs[:2], names[:2], kept, formula, dtype)
      return cls._einsum([first, *xs[2:]], [kept, *names[2:]], out, formula, dtype)
    order = out + "".join(sorted(c for c in sizes if c not in out))
    wide, lined = tuple(sizes[c] for c in order), list[Self]()
    for x, name in zip(xs, names):
      sorted_dims = argsort([order.index(c) for c in name])
      lined.append(x.permute(sorted_dims).reshape(tuple(x.shape[name.index(c)] if c in name else 1 for c in order)))
    axes = tuple(range(len(out), len(order)))
    if len(lined) == 2:
      with told_of("einsum", *(x.uop for x in xs)):
        u = contract(lined[0].uop, lined[1].uop, wide, axes, dtype)
      return cls._wrap(u.reshape(wide[: len(out)]))
    return lined[0].sum(axes, dtype=dtype) if axes else lined[0]._value()

  # ---- factorisations

  def qr(self) -> tuple[Self, Self]:
    """(Q, R) of matrices (.., m, n): Q (.., m, m) orthogonal, R (.., m, n) upper triangular, Q R = x. Householder's
    reflections with LAPACK's signs; a column that is 0 below the diagonal is left as it is.
    ValueError for fewer than two dims.
    Shape: `(.., m, n) -> (.., m, m), (.., m, n)`.

    Examples:
      >>> q, r = Tensor([[1.0, 2.0], [3.0, 4.0]]).qr()
      >>> (q @ r).allclose(Tensor([[1.0, 2.0], [3.0, 4.0]]), atol=1e-5).item()
      True
    """
    check_matrices("qr", self.uop)
    r = self._float()
    *lead, m, n = r.numpy_shape()
    q = self.eye(m, dtype=r.dtype)._expand_to((*lead, m, m))
    row = self.arange(m).reshape(m, 1)
    for k in range(min(m - 1, n)):
      x = row.ge(k).where(r._slice(r.ndim - 1, k, k + 1), 0)._over_greatest(-2)[0]
      head = x._slice(x.ndim - 2, k, k + 1)
      size = x.square().sum(-2, keepdim=True).sqrt()
      v = row.eq(k).where(head.add(head.lt(0).where(size.neg(), size)), x)
      rest = row.gt(k).where(x, 0).square().sum(-2, keepdim=True)
      scale = rest.gt(0).where(rest.add(row.eq(k).where(v, 0).square().sum(-2, keepdim=True)), math.inf)
      v, w = v.contiguous(), v.mul(scale.reciprocal().mul(2)).contiguous()
      r = r.sub(w.dot(v.transpose(-2, -1).dot(r))).contiguous()
      q = q.sub(q.dot(v).dot(w.transpose(-2, -1))).contiguous()
    return q, r.triu()

  def svd(self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
    """(U, S, Vᵀ) of matrices (.., m, n), k = min(m, n): S (.., k) descending, U (.., m, m) and Vᵀ (.., n, n), or their
    first k columns and rows unless `full_matrices`; U diag(S) Vᵀ = x. The signs of a pair of singular vectors are free.

    One-sided Jacobi rotations of all column pairs, a fixed number of sweeps (G. Golub, C. Van Loan: Matrix
    Computations, 8.6.3); the rounds of a sweep are those of a round-robin tournament.
    ValueError for fewer than two dims.
    Shape: `(.., m, n) -> (.., m, m), (.., k), (.., n, n)`.

    Examples:
      >>> u, s, v = Tensor([[3.0, 0.0], [0.0, 2.0]]).svd()
      >>> print(s.numpy().round(3))
      [3. 2.]
    """
    check_matrices("svd", self.uop)
    a = self._float()
    *_, m, n = a.numpy_shape()
    if m < n:
      u, s, v = a.transpose(-2, -1).svd(full_matrices)
      return v.transpose(-2, -1), s, u.transpose(-2, -1)
    half = max(1, (n + 1) // 2)
    a, greatest = a._over_greatest((-2, -1))
    # the columns of V below those of A; one of zeros if their number is odd
    rows = a.cat(self.eye(n, dtype=a.dtype)._expand_to((*a.shape[:-2], n, n)), dim=-2).pad((0, 2 * half - n))
    last = rows.ndim - 1
    for _ in range(SWEEPS * max(1, 2 * half - 1)):
      x, y = rows._slice(last, 0, half), rows._slice(last, half, 2 * half).flip(last)
      ax, ay = (t._slice(last - 1, 0, m) for t in (x, y))
      both = ax.mul(ay).sum(-2, keepdim=True)
      none = both.eq(0)
      zeta = ay.square().sum(-2, keepdim=True).sub(ax.square().sum(-2, keepdim=True)).div(none.where(1, both.mul(2)))
      t = zeta.abs().add(zeta.square().add(1).sqrt()).reciprocal()
      t = none.where(0, zeta.lt(0).where(t.neg(), t))
      c = t.square().add(1).rsqrt().contiguous()
      s = c.mul(t).contiguous()
      rows = c.mul(x).sub(s.mul(y)).cat(s.mul(x).add(c.mul(y)).flip(last), dim=last)
      # the first stays; the others move on one place around the table
      rows = rows._slice(last, 0, 1).cat(rows._slice(last, 1, 2 * half).roll(1, last), dim=last).contiguous()
    columns = rows._slice(last - 1, 0, m)
    places = columns.square().sum(-2).argsort(-1, descending=True)._slice(last - 1, 0, n).unsqueeze(-2)
    rows = rows.gather(-1, places._expand_to((*rows.shape[:-1], n)))
    columns, v = rows._slice(last - 1, 0, m), rows._slice(last - 1, m, m + n)
    q, r = columns.qr()  # R is diagonal up to rounding: Q holds ±U, completed
    d = r.diagonal(0, -2, -1)
    u = q.mul(d.lt(0).where(-1, d.const_like(1)).pad((0, m - n), value=1).unsqueeze(-2))
    size = columns.square().sum(-2).sqrt().mul(greatest.squeeze(-1))
    return u if full_matrices else u._slice(last, 0, n), size, v.transpose(-2, -1)

  def _over_greatest(self, axis: int | tuple[int, ...]) -> tuple[Self, Self]:
    """(x over its greatest size along `axis`, which stays as 1; that size): squares of it do not underflow."""
    size = self.abs().max(axis, keepdim=True)
    return self.div(size.eq(0).where(1, size)), size

  def newton_schulz(self, steps: int, params: tuple[float, ...], eps: float = 1e-7) -> Self:
    """The orthogonal factor of (a batch of) matrices, approximately: G <- aG + b(GGᵀ)G + c(GGᵀ)²G + … from G/|G|
    (https://kellerjordan.github.io/posts/muon/). ValueError for fewer than two dims and more than 1000 steps.
    Shape: `(.., m, n) -> (.., m, n)`.

    Examples:
      >>> Tensor.ones(3, 2).newton_schulz(5, (3.4445, -4.775, 2.0315)).shape
      (3, 2)
    """
    check_matrices("newton_schulz", self.uop)
    if steps > 1000:  # each is a part of the graph
      mismatch("newton_schulz", f"{steps} steps are more than 1000", [self.uop], "five or ten steps are what it takes")
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
