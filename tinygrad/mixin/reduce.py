"""Reductions, and what is built from them: statistics, softmax, running sums, searches."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from tinygrad.device import Sharding
from tinygrad.dtype import DType, dtypes, least_upper_float, sum_acc_dtype, to_dtype
from tinygrad.helpers import ceildiv, prod
from tinygrad.mixin.base import DTypeArg, Scalar, also_named, mismatch, sint
from tinygrad.mixin.creation import Creation
from tinygrad.mixin.math import in_float32
from tinygrad.transforms.tangent_rules import custom_jvp
from tinygrad.uop import Ops, UOp, is_int

Axis = int | Sequence[int] | None
BLOCK = 16  # elements of a running reduction that are reduced at once; of more than twice as many, in levels
TILE = 64  # bytes that are, where they are no neighbours
FEW = 1024  # elements of a running sum of which roundings within blocks would show
FINITE = 2.0**127  # as float32
R = TypeVar("R", bound="Reduce")
Join = Callable[[R, R], R]


def summed(levels: Sequence[R]) -> R:
  """The sum of all, from the last on."""
  return functools.reduce(lambda y, x: x.add(y), reversed(levels))


@functools.partial(custom_jvp, nondiff_argnums=(0,))
def _greatest_so_far(axis: int, x: Any) -> Any:
  return x._running(axis, Ops.MAX, dtypes.min(x.dtype))


def _tangent_of_greatest(axis: int, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
  """One of equals has it: the last."""
  values, places = primals[0].cummax(axis)
  return values, tangents[0].gather(axis, places) if values.ndim else tangents[0]


_greatest_so_far.defjvp(_tangent_of_greatest)


class Reduce(Creation):
  __slots__ = ()

  def _reduce(self, op: Ops, axis: Axis, keepdim: bool) -> Self:
    dims = self._dims(axis)
    u = self.uop.r(op, dims)
    if not keepdim and dims:
      u = u.reshape(tuple(s for i, s in enumerate(self.shape) if i not in dims))
    return self._new(u)

  def _in_wide(self, total: Callable[[Self], Self], dtype: DTypeArg = None) -> Self:
    """A sum or product carried in `dtype`, or in at least 32 bits; then floats come back as they were."""
    result = total(self._new(self.uop.cast(sum_acc_dtype(self.dtype) if dtype is None else to_dtype(dtype))))
    return result.cast(self.dtype) if dtype is None and dtypes.is_float(self.dtype) else result

  @also_named(dim="axis", keepdims="keepdim")
  def sum(self, axis: Axis = None, keepdim: bool = False, dtype: DTypeArg = None) -> Self:
    """The sum, carried in at least 32 bits; half types come back as they were, small integers as 32 bits.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).sum().item()
      10.0
      >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).sum(axis=0).tolist()
      [4.0, 6.0]
    """
    return self._in_wide(lambda x: x._reduce(Ops.ADD, axis, keepdim), dtype)

  @also_named(dim="axis", keepdims="keepdim")
  def prod(self, axis: Axis = None, keepdim: bool = False, dtype: DTypeArg = None) -> Self:
    """The product, in the types of `sum`.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([2, 3, 4]).prod().item()
      24
    """
    return self._in_wide(lambda x: x._reduce(Ops.MUL, axis, keepdim), dtype)

  @also_named(keepdims="keepdim")  # PyTorch's gives positions too where it has a dim
  def max(self, axis: Axis = None, keepdim: bool = False) -> Self:
    """The greatest element; of none, the least value of the type.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([1, 3, 2]).max().item()
      3
      >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).max(axis=1).tolist()
      [2.0, 4.0]
    """
    return self._reduce(Ops.MAX, axis, keepdim)

  @also_named(keepdims="keepdim")  # PyTorch's gives positions too where it has a dim
  def min(self, axis: Axis = None, keepdim: bool = False) -> Self:
    """The least element; of none, the greatest value of the type.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([2, 1, 3]).min().item()
      1
    """
    return self._reduce(Ops.MIN, axis, keepdim)

  @also_named(dim="axis", keepdims="keepdim")
  def any(self, axis: Axis = None, keepdim: bool = False) -> Self:
    """Whether an element is not 0.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([1, 0]).any().item()
      True
      >>> Tensor([[0, 0], [1, 1]]).any(axis=1).tolist()
      [False, True]
    """
    return self.bool().max(axis, keepdim)

  @also_named(dim="axis", keepdims="keepdim")
  def all(self, axis: Axis = None, keepdim: bool = False) -> Self:
    """Whether no element is 0.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([1, 0]).all().item()
      False
      >>> Tensor([[1, 0], [1, 1]]).all(axis=1).tolist()
      [False, True]
    """
    return self.bool().min(axis, keepdim)

  def allclose(self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
    """Whether all elements are close (`isclose`), as a bool tensor.
    Shape: `(..), (..) -> ()`.

    Examples:
      >>> Tensor([1.0]).allclose(Tensor([1.0 + 1e-9])).item()
      True
    """
    return self.isclose(other, rtol, atol, equal_nan).all()

  # ---- statistics

  def _count(self, axis: Axis) -> sint:
    return prod(self.shape[d] for d in self._dims(axis))

  @also_named(dim="axis", keepdims="keepdim")
  def mean(self, axis: Axis = None, keepdim: bool = False) -> Self:
    """The sum over the number of elements, as a float; nan of none.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([1, 2]).mean().item()
      1.5
      >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).mean(0, keepdim=True).shape
      (1, 2)
    """
    dtype = least_upper_float(self.dtype)
    total = self.cast(sum_acc_dtype(dtype)).sum(axis, keepdim)
    n = self._count(axis)
    return (total.mul(1 / n) if isinstance(n, int) and n else total.div(n)).cast(dtype)

  @also_named(dim="axis", keepdims="keepdim", unbiased="correction", ddof="correction")
  def var(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> Self:
    """The mean of the squared distances to the mean, over n - correction; nan where that is 0 of equal elements.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([1.0, 2.0, 3.0]).var().item()
      1.0
      >>> Tensor([1.0, 3.0]).var(correction=0).item()
      1.0
    """
    x = (x := self._float()).cast(x._wide())
    squares = x.sub(x.mean(axis, keepdim=True)).square().sum(axis, keepdim)
    n = self._count(axis)
    rest = max(0, n - correction) if isinstance(n, int) else n - correction
    return squares.div(rest).cast(least_upper_float(self.dtype))

  @in_float32
  @also_named(dim="axis", keepdims="keepdim", unbiased="correction", ddof="correction")
  def std(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> Self:
    """sqrt of `var`; its derivative is 0 where all elements are equal, as in PyTorch.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([1.0, 2.0, 3.0]).std().item()
      1.0
    """
    v = self.var(axis, keepdim, correction)
    return v.eq(0).where(v.detach(), v.eq(0).where(1.0, v).sqrt())

  @also_named(dim="axis", keepdims="keepdim", unbiased="correction", ddof="correction")
  def var_mean(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> tuple[Self, Self]:
    """(`var`, `mean`) along `axis`.
    Shape: `(..) -> (..) without axis, (..) without axis`.

    Examples:
      >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).var_mean()]
      [1.0, 2.0]
    """
    return self.var(axis, keepdim, correction), self.mean(axis, keepdim)

  @also_named(dim="axis", keepdims="keepdim", unbiased="correction", ddof="correction")
  def std_mean(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> tuple[Self, Self]:
    """(`std`, `mean`) along `axis`.
    Shape: `(..) -> (..) without axis, (..) without axis`.

    Examples:
      >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).std_mean()]
      [1.0, 2.0]
    """
    return self.std(axis, keepdim, correction), self.mean(axis, keepdim)

  @in_float32
  def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
    """x over its p-norm along `dim` (at least eps): of p = inf the greatest size, of -inf the least.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([[3.0, 4.0]]).normalize().numpy().round(3))
      [[0.6 0.8]]
    """
    if math.isinf(p):
      norm = self.abs().max(dim, keepdim=True) if p > 0 else self.abs().min(dim, keepdim=True)
    else:
      norm = (self.abs().pow(p) if p else self.ne(0).cast(self.dtype)).sum(dim, keepdim=True)
      norm = norm.pow(1 / p) if p else norm
    return self.div(norm.maximum(eps))

  # ---- softmax

  def _shifted(self, axis: Axis, dtype: DTypeArg) -> tuple[Self, DType]:
    """(x minus its greatest element, as a float of at least 32 bits: what exp can take; the result's type)."""
    out = to_dtype(dtype or least_upper_float(self.dtype))
    x = self.cast(sum_acc_dtype(out))
    return x.sub(x.detach().max(axis, keepdim=True)), out

  @also_named(dim="axis")
  def softmax(self, axis: Axis = -1, dtype: DTypeArg = None) -> Self:
    """exp(x) over its sum along `axis`.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([1.0, 2.0]).softmax().numpy().round(3))
      [0.269 0.731]
    """
    x, out = self._shifted(axis, dtype)
    e = x.exp()
    return e.mul(e.sum(axis, keepdim=True).reciprocal()).cast(out)

  def _softmax_or_zeros(self) -> Self:
    """softmax along the last axis of floats; zeros where all is -inf, with gradients of zero."""
    top = self.detach().max(-1, keepdim=True)
    e = self.sub(top.eq(-math.inf).where(0.0, top)).exp()
    total = e.sum(-1, keepdim=True)
    return e.mul(total.eq(0).where(1.0, total).reciprocal())

  @also_named(dim="axis")
  def softmin(self, axis: Axis = -1, dtype: DTypeArg = None) -> Self:
    """exp(-x) over its sum along `axis`.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([1.0, 2.0]).softmin().numpy().round(3))
      [0.731 0.269]
    """
    return self.neg().softmax(axis, dtype)

  @also_named(dim="axis")
  def log_softmax(self, axis: Axis = -1, dtype: DTypeArg = None) -> Self:
    """log of softmax.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([1.0, 2.0]).log_softmax().numpy().round(3))
      [-1.313 -0.313]
    """
    x, out = self._shifted(axis, dtype)
    return x.sub(x.exp().sum(axis, keepdim=True).log()).cast(out)

  @also_named(dim="axis", keepdims="keepdim")
  def logsumexp(self, axis: Axis = None, keepdim: bool = False) -> Self:
    """log of the sum of exp(x), without overflow.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> print(Tensor([1000.0, 1000.0]).logsumexp().numpy().round(3))
      1000.693
    """
    x = self._float()
    m = x.detach().max(axis, keepdim=True)
    m = m.isinf().where(0, m)  # inf - inf is nan
    total = x.sub(m).exp().sum(axis, keepdim).log()
    return total.add(m if keepdim else m.reshape(total.shape))

  # ---- searches

  @also_named(dim="axis", keepdims="keepdim")
  def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
    """The position of the (first) greatest element, int32 (int64 among 2**31 and more); without an axis in the
    flattened tensor.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([1, 9, 9]).argmax().item()
      1
      >>> Tensor([[1, 2], [4, 3]]).argmax(axis=1).tolist()
      [1, 0]
    """
    self._check_some("argmax", axis)
    if axis is None:
      return self.flatten().argmax(0).reshape((1,) * self.ndim if keepdim else ())
    dim = self._dim(axis)
    if not self.ndim:
      return self._wrap(UOp.const(dtypes.int32, 0))
    hit = self.eq(self.max(dim, keepdim=True))
    if dtypes.is_float(self.dtype):
      hit = hit.bitwise_or(self.isnan())
    n = self.shape[dim]
    return hit.where(self._numbers(n)._lined(dim, self.ndim), n).min(dim, keepdim)

  def _check_some(self, name: str, axis: int | None) -> None:
    """ValueError where a position is asked for among no elements."""
    if any(is_int(self.shape[d], 0) for d in self._dims(axis)) and (axis is not None or is_int(self.numel(), 0)):
      mismatch(name, "there is no element to find", [self.uop], "check that the dim is not empty first")

  @also_named(dim="axis", keepdims="keepdim")
  def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
    """The position of the (first) least element, int32.
    Shape: `(..) -> (..) without axis`.

    Examples:
      >>> Tensor([4, 1, 9]).argmin().item()
      1
    """
    self._check_some("argmin", axis)
    if dtypes.is_float(self.dtype):
      return self.neg().argmax(axis, keepdim)
    x = self.cast(dtypes.int32) if self.dtype is dtypes.bool else self
    return x.bitwise_not().argmax(axis, keepdim)  # ~x reverses the order of integers, the ends included

  # ---- running reductions

  def _cumulate(self, axis: int, total: Callable[[Self], Self], join: Join[Self], identity: Scalar = -math.inf) -> Self:
    """All elements up to each one along `axis` as one: `total` of the last dim of windows, and `join` of two such,
    joined from the smallest levels on, which loses least in sums.

    Cost: about 16 operations an element in each of log16(n) levels.
    """
    return functools.reduce(lambda y, x: join(x, y), reversed(self._levels(axis, total, identity)))

  def _levels(self, axis: int, total: Callable[[Self], Self], identity: Scalar, wide: DTypeArg = None) -> list[Self]:
    """What makes up a running reduction: of all blocks before each element's, of those in it before it, and so on. A
    sum of blocks may be carried in a wide type: it is then the nearest number and what that lacks."""
    dim = self._dim(axis)
    if not self.ndim or not isinstance(n := self.shape[dim], int) or not self.numel():
      if self.ndim and not isinstance(n, int):
        rule = f"a running reduction needs a dim of known length, dim {dim} of {self.shape} is symbolic"
        raise ValueError(f"{rule}\n  fix: run it over the whole dim, and cut its result: x.cumsum(0)[:n]")
      return [self._value()]
    x = self.transpose(dim, -1)
    where = x.device
    parts = where.parts(self.ndim - 1) if isinstance(where, Sharding) else 1
    if wide is not None and parts == 1 and n <= FEW:
      return [summed(self.cast(wide)._levels(dim, total, identity)).cast(x.dtype)]
    # neighbours that lanes hold, or rows of which a tile reads each once
    block = BLOCK if dim == self.ndim - 1 else TILE // x.dtype.itemsize
    if parts == 1 and n <= 2 * block:
      later = self.arange(n).unsqueeze(-1).lt(self.arange(n))
      return [total(later.where(identity, x.unsqueeze(-2))).transpose(dim, -1)]
    # along a cut dim the blocks are the devices': one total of each travels
    blocks, size = (ceildiv(n, block), block) if parts == 1 else (parts, ceildiv(n, parts))
    rows = x.pad((0, blocks * size - n), value=identity).unflatten(-1, (blocks, size))
    totals = total(rows if wide is None else rows.cast(wide))
    if isinstance(where, Sharding) and parts > 1:
      sent = totals.cast(x.dtype)._taken_whole(where.with_dims(where.dims[: self.ndim - 1]))
      totals = sent.cast(totals.dtype)
    before = [t.pad((1, -1), value=identity).unsqueeze(-1) for t in totals._levels(-1, total, identity)]
    if wide is not None:
      sums = summed(before)
      near = sums.detach().clamp(-FINITE, FINITE).cast(x.dtype)  # inf - inf is nan
      before = [near, sums.sub(near).cast(x.dtype)]
    own = rows._levels(-1, total, identity, wide if parts > 1 else None)
    levels = [*(t._expand_to(rows.shape) for t in before), *own]
    return [t.flatten(-2)._slice(self.ndim - 1, 0, n).transpose(dim, -1) for t in levels]

  def _running(self, axis: int, op: Ops, identity: Scalar) -> Self:
    return self._cumulate(axis, lambda w: w._reduce(op, -1, False), lambda x, y: x.alu(op, y), identity)

  @also_named(dim="axis")
  def cumsum(self, axis: int = 0) -> Self:
    """The sum of the elements up to and including each one along `axis`.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1, 2, 3]).cumsum().tolist()
      [1, 3, 6]
    """
    return self._in_wide(
      lambda x: summed(x._levels(axis, lambda w: w.sum(-1), 0, x._wide() if x.dtype is dtypes.float32 else None))
    )

  @also_named(dim="axis")
  def cumprod(self, axis: int = 0) -> Self:
    """The product of the elements up to and including each one along `axis`.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1, 2, 3]).cumprod(0).tolist()
      [1, 2, 6]
    """
    return self._in_wide(lambda x: x._running(axis, Ops.MUL, 1))

  @also_named(dim="axis")
  def cummax(self, axis: int = 0) -> tuple[Self, Self]:
    """The greatest element so far along `axis`, and where it stands (the last one of equals, which also takes the
    gradient), int32.
    Shape: `(..) -> (..), (..)`.

    Examples:
      >>> values, places = Tensor([1, 3, 2]).cummax()
      >>> values.tolist(), places.tolist()
      ([1, 3, 3], [0, 1, 1])
    """
    values = _greatest_so_far(axis, self)
    hit = self.eq(values).bitwise_or(self.isnan())  # a nan stays the greatest
    if not self.ndim:
      return values, self._wrap(UOp.const(dtypes.int32, 0))
    dim = self._dim(axis)
    return values, hit.where(self._numbers(self.shape[dim])._lined(dim, self.ndim), 0)._running(dim, Ops.MAX, 0)

  @also_named(dim="axis")
  def cummin(self, axis: int = 0) -> tuple[Self, Self]:
    """The least element so far along `axis`, and where it stands (as in `cummax`), int32.
    Shape: `(..) -> (..), (..)`.

    Examples:
      >>> values, places = Tensor([3, 1, 2]).cummin()
      >>> values.tolist(), places.tolist()
      ([3, 1, 1], [0, 1, 1])
    """
    if not dtypes.is_float(self.dtype):
      values, places = self.bitwise_not().cummax(axis)
      return values.bitwise_not(), places
    values, places = self.neg().cummax(axis)
    return values.neg(), places

  @also_named(dim="axis")
  def logcumsumexp(self, axis: int = 0) -> Self:
    """log of the running sum of exp(x) along `axis`, without overflow.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 0.0, 1.0]).logcumsumexp().numpy().round(3))
      [0.    0.693 1.551]
    """
    return self._float()._cumulate(axis, lambda w: w.logsumexp(-1), lambda x, y: x.logaddexp(y))
