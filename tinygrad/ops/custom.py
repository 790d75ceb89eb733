"""The cards of what users define. All of a CUSTOM is said by its arg, `(reduce op, CustomOp)`; a CALL is a kernel of
theirs on a device's part, in the local view."""

from typing import Any

from tinygrad.ops.common import any_dtype
from tinygrad.uop import CustomOp, Factors, Ops, PartialRule, Trait, UOp, define, evaluate, holes_like
from tinygrad.uop.cards import Card


def made_of(u: UOp) -> UOp:
  """The node's graph over holes."""
  op: CustomOp = u.arg[1]
  return op.trace(holes_like(u.src), None)


def check_custom(u: UOp) -> None:
  if (d := u.arg[1].dtype(u)) is not u.dtype:
    raise TypeError(f"{u.arg[1]!r} makes {d}, not {u.dtype}")


def evaluate_graph(graph: UOp, u: UOp, xs: list[Any]) -> Any:
  values: dict[UOp, Any] = dict(zip(holes_like(u.src), xs))
  for v in graph.toposort(lambda v: v not in values):
    values[v] = evaluate(v, [values[s] for s in v.src], v.shape)
  return values[graph]


define(Ops.CUSTOM, Card(
  shape=lambda u: u.arg[1].shape(u), dtype=check_custom,
  evaluate=lambda u, xs, shape: evaluate_graph(made_of(u), u, xs), gradient=lambda g, u: u.arg[1].gradient(g, u),
  factors=lambda u: u.arg[1].factors(u), partial=PartialRule.REDUCE_FIRST, render=None, index_map=None,
  traits=Trait.REDUCES, cost=1,
))  # fmt: skip
define(Ops.CALL, Card(
  shape=lambda u: u.arg.graph.shape, dtype=any_dtype,
  evaluate=lambda u, xs, shape: evaluate_graph(u.arg.graph, u, xs), gradient=None,
  factors=lambda u: Factors(tuple(((),) * s.ndim for s in u.src), ((),) * u.ndim, ()),
  partial=PartialRule.REDUCE_FIRST, render=None, index_map=None, traits=Trait.IN_MEMORY, cost=1,
))  # fmt: skip
