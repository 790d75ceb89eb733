"""What contracts dims: REDUCE over some, which stay as dims of 1; GATHER, rows of a table by an index tensor, and
SCATTER, its adjoint, which reduces rows into a table."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.dtype import ConstType, DType, dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.common import own_dims, same_dtype
from tinygrad.uop import Factors, Ops, PartialRule, Trait, UOp, define, render_shape
from tinygrad.uop.cards import Card

REDUCE_OPS = {Ops.ADD: "add", Ops.MUL: "multiply", Ops.MAX: "maximum", Ops.MIN: "minimum"}  # numpy's names


def identity_element(op: Ops, dtype: DType) -> ConstType:
  """e with op(e, x) = x, exactly: -0.0 for a float sum."""
  if op not in REDUCE_OPS:
    raise ValueError(f"{op!r} is no reduction; use one of {tuple(REDUCE_OPS)}")
  zero = -0.0 if dtypes.is_float(dtype) else 0
  return {Ops.ADD: zero, Ops.MUL: 1, Ops.MAX: dtypes.min(dtype), Ops.MIN: dtypes.max(dtype)}[op]


def neutral(f: UOp) -> UOp:
  """The constant that a FOLD begins with."""
  return UOp.const(f.dtype, identity_element(f.arg, f.dtype))


def reduce_shape(u: UOp) -> tuple[Any, ...]:
  op, axes = u.arg
  shape = u.src[0].shape
  if op not in REDUCE_OPS or any(not 0 <= a < len(shape) for a in axes):
    raise ValueError(f"cannot reduce {render_shape(shape)} by {u.arg}")
  return tuple(1 if i in axes else n for i, n in enumerate(shape))


def evaluate_reduce(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  """numpy's reduction, in the dtype, from the identity."""
  op, axes = u.arg
  dtype = to_numpy_dtype(u.dtype)
  start = numpy.array(identity_element(op, u.dtype), dtype)
  reduce = getattr(numpy, REDUCE_OPS[op]).reduce
  return numpy.asarray(reduce(xs[0], axis=axes, dtype=dtype, keepdims=True, initial=start))


def gradient_reduce(g: UOp, u: UOp) -> Sequence[UOp | None]:
  """Sum: g to every element, of products in the type of their factors. Product: g times the product of the others. Max,
  min: g shared evenly by the elements that attain it."""
  op, axes = u.arg
  x = u.src[0]
  if op is Ops.ADD:
    return (g.cast(type_of_factors(x)).cast(g.dtype).expand(x.shape),)
  if op is Ops.MUL:
    others = product_of_others(x, lambda y, by: y.r(by, axes).expand(x.shape))
    return (g.expand(x.shape) * others,)
  attained = attaining(x, u.expand(x.shape))
  count = attained.cast(g.dtype).r(Ops.ADD, axes)
  return (attained.where((g / count).expand(x.shape), 0.0),)


def attaining(x: UOp, extremum: UOp) -> UOp:
  """Which elements of x are the extremum of those reduced with them: the nans, where there are some."""
  return x.eq(extremum) | x.ne(x) if dtypes.is_float(x.dtype) else x.eq(extremum)


def type_of_factors(x: UOp) -> DType:
  """That of two values of fewer bytes, of which x is the outer product, a contraction's terms: its gradient, multiplied
  by either, is to be as narrow (as that of a product which comes back in their type). Otherwise x's own."""
  factors = [s.src[0] for s in x.src if x.op is Ops.MUL and s.op is Ops.EXPAND]
  below = [next(v for v in s.down() if v.op is not Ops.RESHAPE and v.op is not Ops.PERMUTE) for s in factors]
  kinds = [c.src[0].dtype if c.op is Ops.CAST else x.dtype for c in below]
  same = len(kinds) == 2 and kinds[0] is kinds[1] and dtypes.is_float(kinds[0]) and kinds[0].itemsize < x.dtype.itemsize
  return kinds[0] if same else x.dtype


def product_of_others(x: UOp, total: Callable[[UOp, Ops], UOp]) -> UOp:
  """For each element of x the product of those reduced with it: that of all over the element, in which 0 stands as 1
  and an infinity as its sign; then times the 0 among the others, if there is one (by which it has a derivative), or 0,
  infinite for an infinity, nan of both. `total(y, op)`: for each element of y the reduction of all that it is reduced
  with."""

  def of_others(y: UOp) -> UOp:
    return total(y, Ops.ADD) - y

  zero, huge = x.eq(0), x.eq(math.inf) | x.eq(-math.inf)
  plain = zero.where(1.0, huge.where((x > 0).where(x.const_like(1.0), -1.0), x))
  product = total(plain, Ops.MUL) / plain * (of_others(huge.cast(x.dtype)) > 0).where(x.const_like(math.inf), 1.0)
  zeros, left = of_others(zero.cast(x.dtype)), of_others(zero.where(x, 0.0))  # of one 0 itself
  return product * (zeros > 0).where((zeros > 1).where(0.0, left), 1.0)  # factors: a derivative of a choice is 0 * inf


def factors_reduce(u: UOp) -> Factors:
  axes, src = u.arg[1], own_dims(u)
  out = tuple(() if i in axes else dim for i, dim in enumerate(src))
  return Factors((src,), out, u.src[0].max_shape, contracted=frozenset(axes))


define(Ops.REDUCE, Card(
  shape=reduce_shape, dtype=same_dtype, evaluate=evaluate_reduce, gradient=gradient_reduce,
  factors=factors_reduce, partial=PartialRule.REDUCE_SAME, render=None, index_map=None, traits=Trait.REDUCES, cost=1,
))  # fmt: skip

# ---------------------------------------------------------------- GATHER


def gather_shape(u: UOp) -> tuple[Any, ...]:
  (table, index), batch = u.src, u.arg
  if not 0 <= batch <= index.ndim or table.ndim <= batch or table.shape[:batch] != index.shape[:batch]:
    fix = f"the table has rows, and {batch} dims before them, as the index does"
    raise ValueError(f"gather from {render_shape(table.shape)} by {render_shape(index.shape)}: {fix}")
  return (*index.shape, *table.shape[batch + 1 :])


def check_gather(u: UOp) -> None:
  if u.src[0].dtype is not u.dtype or not dtypes.is_int(u.src[1].dtype):
    raise TypeError(f"gather of {u.src[0].dtype} by {u.src[1].dtype} -> {u.dtype}: the index must be an integer")


def evaluate_gather(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  (table, index), batch = xs, u.arg
  n, rest = table.shape[batch], table.shape[batch + 1 :]
  if n == 0 or index.size == 0:
    return numpy.zeros(shape, table.dtype)
  inside = (index >= 0) & (index < n)
  at = numpy.where(inside, index, 0).astype(numpy.int64).reshape(math.prod(index.shape[:batch]), -1)
  rows = table.reshape(len(at) * n, *rest)[at + numpy.arange(len(at)).reshape(-1, 1) * n].reshape(shape)
  return numpy.where(inside.reshape(inside.shape + (1,) * len(rest)), rows, numpy.zeros((), table.dtype))


def gradient_gather(g: UOp, u: UOp) -> Sequence[UOp | None]:
  """Row j of the table gets the sum of the result's rows whose index is j."""
  table, index = u.src
  return (g.scatter(index, table.shape[u.arg], Ops.ADD, u.arg), None)


def factors_gather(u: UOp) -> Factors:
  """ "b.. n r.., b.. i.. -> b.. i.. r..": where the table's rows are cut, each device finds its own rows and the result
  is partial by a (disjoint) sum."""
  (table, index), batch = u.src, u.arg
  own = own_dims(table)
  at = (*own[:batch], *((table.ndim + i,) for i in range(index.ndim - batch)))
  sizes = (*table.max_shape, *index.max_shape[batch:])
  return Factors((own, at), (*at, *own[batch + 1 :]), sizes, contracted=frozenset((batch,)))


define(Ops.GATHER, Card(
  shape=gather_shape, dtype=check_gather, evaluate=evaluate_gather, gradient=gradient_gather,
  factors=factors_gather, partial=PartialRule.KEEP, render=None, index_map=None, traits=Trait.PAIRED, cost=0,
))  # fmt: skip

# ---------------------------------------------------------------- SCATTER


def nothing(op: Ops, dtype: DType) -> ConstType:
  """What a row of a SCATTER holds that no update goes to: the identity; of a sum 0.0, as of a lookup outside."""
  return 0 if op is Ops.ADD else identity_element(op, dtype)


def scatter_shape(u: UOp) -> tuple[Any, ...]:
  (_, n, batch), (index, updates) = u.arg, u.src
  if not 0 <= batch <= index.ndim or updates.shape[: index.ndim] != index.shape:
    fix = "the updates begin with the dims of the index"
    raise ValueError(f"scatter of {render_shape(updates.shape)} by {render_shape(index.shape)}: {fix}")
  return (*index.shape[:batch], n, *updates.shape[index.ndim :])


def check_scatter(u: UOp) -> None:
  index, updates = u.src
  if u.arg[0] not in REDUCE_OPS:
    raise TypeError(f"{u.arg[0]!r} is no reduction; use one of {tuple(REDUCE_OPS)}")
  if updates.dtype is not u.dtype or not dtypes.is_int(index.dtype):
    raise TypeError(f"scatter of {updates.dtype} by {index.dtype} -> {u.dtype}: the index must be an integer")


def evaluate_scatter(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  """The updates one after the other, in the order of the index."""
  (op, n, batch), (index, updates) = u.arg, xs
  out = numpy.full(shape, nothing(op, u.dtype), to_numpy_dtype(u.dtype))
  if index.size == 0:
    return out
  rest, flat = updates.shape[index.ndim :], index.reshape(math.prod(index.shape[:batch]), -1)
  inside = (flat >= 0) & (flat < n)
  rows = flat.astype(numpy.int64) + numpy.arange(len(flat)).reshape(-1, 1) * n
  values = updates.reshape(*flat.shape, *rest)
  getattr(numpy, REDUCE_OPS[op]).at(out.reshape(len(flat) * n, *rest), rows[inside], values[inside])
  return out


def gradient_scatter(g: UOp, u: UOp) -> Sequence[UOp | None]:
  """As of a reduction: each update gets the gradient of its row; of a product times the product of the others in the
  row; of max and min the updates that attain it share it evenly."""
  (op, n, batch), (index, x) = u.arg, u.src
  mine = g.gather(index, batch)
  if op is Ops.ADD:
    return (None, mine)
  if op is Ops.MUL:
    return (None, mine * product_of_others(x, lambda y, by: y.scatter(index, n, by, batch).gather(index, batch)))
  attained = attaining(x, u.gather(index, batch))
  count = attained.cast(g.dtype).scatter(index, n, Ops.ADD, batch)
  return (None, attained.where(mine / count.gather(index, batch), 0.0))


def factors_scatter(u: UOp) -> Factors:
  """ "b.. i.., b.. i.. r.. -> b.. n r..": where the index is cut, the result is partial. Rows are not cut here: those
  of other devices are cut off for nothing."""
  (_, _, batch), (index, updates) = u.arg, u.src
  own = tuple((i,) for i in range(updates.ndim))
  rows = updates.ndim
  out = (*own[:batch], (rows,), *own[index.ndim :])
  sizes = (*updates.max_shape, u.max_shape[batch])
  summed = frozenset(range(batch, index.ndim))
  return Factors((own[: index.ndim], own), out, sizes, blocked=frozenset((rows,)), contracted=summed)


define(Ops.SCATTER, Card(
  shape=scatter_shape, dtype=check_scatter, evaluate=evaluate_scatter, gradient=gradient_scatter,
  factors=factors_scatter, partial=PartialRule.SCATTER, render=None, index_map=None, traits=Trait.REDUCES, cost=1,
))  # fmt: skip
