"""GATHER: rows of a table by an index tensor."""

from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.helpers import numpy
from tinygrad.ops.common import define_node
from tinygrad.uop import Factors, Ops, Owed, UOp


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
  """ "n r.., i.. -> i.. r..": where the table's rows are cut, each device finds its own rows and the result owes a
  (disjoint) sum.
  """
  table, index = u.src
  rest = tuple((i,) for i in range(1, table.ndim))
  at = tuple((table.ndim + i,) for i in range(index.ndim))
  return Factors((((0,), *rest), at), (*at, *rest), (*table.max_shape, *index.max_shape), contracted=frozenset((0,)))


define_node(Ops.GATHER, gather_shape, check_gather, evaluate_gather, gradient_gather, factors_gather, Owed.KEEP)
