"""What contracts dims: REDUCE over some, which stay as dims of 1, and GATHER, rows of a table by an index tensor."""

import math
from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import ConstType, DType, dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.common import own_dims, same_dtype
from tinygrad.uop import Factors, Ops, PartialRule, UOp, define, render_shape

REDUCE_OPS = {Ops.ADD: "add", Ops.MUL: "multiply", Ops.MAX: "maximum", Ops.MIN: "minimum"}  # numpy's names


def identity_element(op: Ops, dtype: DType) -> ConstType:
  """e with op(e, x) = x, exactly: -0.0 for a float sum."""
  if op not in REDUCE_OPS:
    raise ValueError(f"{op!r} is no reduction; use one of {tuple(REDUCE_OPS)}")
  zero = -0.0 if dtypes.is_float(dtype) else 0
  return {Ops.ADD: zero, Ops.MUL: 1, Ops.MAX: dtypes.min(dtype), Ops.MIN: dtypes.max(dtype)}[op]


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
  return numpy.asarray(
    getattr(numpy, REDUCE_OPS[op]).reduce(xs[0], axis=axes, dtype=dtype, keepdims=True, initial=start)
  )


def gradient_reduce(g: UOp, u: UOp) -> Sequence[UOp | None]:
  """Sum: g to every element. Product: g times the product of the others. Max, min: g shared evenly by the elements that
  attain it."""
  op, axes = u.arg
  x = u.src[0]
  if op is Ops.ADD:
    return (g.expand(x.shape),)
  if op is Ops.MUL:
    return (g.expand(x.shape) * product_of_others(x, axes),)
  attained = x.eq(u.expand(x.shape))
  count = attained.cast(g.dtype).r(Ops.ADD, axes)
  return (attained.where((g / count).expand(x.shape), 0.0),)


def product_of_others(x: UOp, axes: Sequence[int]) -> UOp:
  """For each element of x the product of the others along `axes`: that of all over the element, in which 0 stands as
  1 and an infinity as its sign; then 0 for a 0 among the others, infinite for an infinity, nan of both."""

  def among_others(hit: UOp) -> UOp:
    one = hit.cast(x.dtype)
    return (one.r(Ops.ADD, axes).expand(x.shape) - one) > 0

  zero, huge = x.eq(0), x.eq(math.inf) | x.eq(-math.inf)
  plain = zero.where(1.0, huge.where((x > 0).where(x.const_like(1.0), -1.0), x))
  product = plain.r(Ops.MUL, axes).expand(x.shape) / plain
  product = among_others(huge).where(product * math.inf, product)
  return among_others(zero).where(product * 0, product)


def factors_reduce(u: UOp) -> Factors:
  axes, src = u.arg[1], own_dims(u)
  out = tuple(() if i in axes else dim for i, dim in enumerate(src))
  return Factors((src,), out, u.src[0].max_shape, contracted=frozenset(axes))


define(
  Ops.REDUCE,
  shape=reduce_shape,
  dtype=same_dtype,
  evaluate=evaluate_reduce,
  gradient=gradient_reduce,
  factors=factors_reduce,
  partial=PartialRule.REDUCE_SAME,
  render=None,
)

# ---------------------------------------------------------------- GATHER


def gather_shape(u: UOp) -> tuple[Any, ...]:
  table, index = u.src
  if table.ndim < 1:
    raise ValueError("gather from a scalar: the table needs rows")
  return (*index.shape, *table.shape[1:])


def check_gather(u: UOp) -> None:
  if u.src[0].dtype is not u.dtype or not dtypes.is_int(u.src[1].dtype):
    raise TypeError(f"gather of {u.src[0].dtype} by {u.src[1].dtype} -> {u.dtype}: the index must be an integer")


def evaluate_gather(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  table, index = xs
  inside = (index >= 0) & (index < table.shape[0])
  if table.shape[0] == 0:
    return numpy.zeros((*index.shape, *table.shape[1:]), table.dtype)
  rows = table[numpy.where(inside, index, 0).astype(numpy.int64)]
  return numpy.where(inside.reshape(inside.shape + (1,) * (table.ndim - 1)), rows, numpy.zeros((), table.dtype))


def gradient_gather(g: UOp, u: UOp) -> Sequence[UOp | None]:
  """Row j of the table gets the sum of the result's rows whose index is j: a contraction over the index's elements
  that selects.
  """
  table, index = u.src
  rows, k, n = table.shape[0], index.size, table.size // table.shape[0] if table.shape[0] != 0 else 0
  at = index.reshape((1, k, 1)).expand((rows, k, n))
  row = UOp.iota(rows, index.dtype).reshape((rows, 1, 1)).expand((rows, k, n))
  chosen = row.eq(at).where(g.reshape((1, k, n)).expand((rows, k, n)), 0.0)
  return (chosen.r(Ops.ADD, (1,)).reshape(table.shape), None)


def factors_gather(u: UOp) -> Factors:
  """ "n r.., i.. -> i.. r..": where the table's rows are cut, each device finds its own rows and the result is partial
  by a (disjoint) sum.
  """
  table, index = u.src
  rest = tuple((i,) for i in range(1, table.ndim))
  at = tuple((table.ndim + i,) for i in range(index.ndim))
  return Factors((((0,), *rest), at), (*at, *rest), (*table.max_shape, *index.max_shape), contracted=frozenset((0,)))


define(
  Ops.GATHER,
  shape=gather_shape,
  dtype=check_gather,
  evaluate=evaluate_gather,
  gradient=gradient_gather,
  factors=factors_gather,
  partial=PartialRule.KEEP,
  render=None,
)
