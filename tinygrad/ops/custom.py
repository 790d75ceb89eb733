"""The card of what users define: all of it is said by the node's arg, `(reduce op, CustomOp)`."""

from typing import Any

from tinygrad.uop import CustomOp, Ops, PartialRule, Trait, UOp, define, evaluate, holes_like


def made_of(u: UOp) -> UOp:
  """The node's graph over holes."""
  op: CustomOp = u.arg[1]
  return op.trace(holes_like(u.src), None)


def check_custom(u: UOp) -> None:
  if (d := made_of(u).dtype) is not u.dtype:
    raise TypeError(f"{u.arg[1]!r} makes {d}, not {u.dtype}")


def evaluate_custom(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  values: dict[UOp, Any] = dict(zip(holes_like(u.src), xs))
  for v in made_of(u).toposort(lambda v: v not in values):
    values[v] = evaluate(v, [values[s] for s in v.src], v.shape)
  return values[made_of(u)]


define(
  Ops.CUSTOM,
  shape=lambda u: made_of(u).shape,
  dtype=check_custom,
  evaluate=evaluate_custom,
  gradient=lambda g, u: u.arg[1].gradient(g, u),
  factors=lambda u: u.arg[1].factors(u),
  partial=PartialRule.REDUCE_FIRST,
  render=None,
  index_map=None,
  traits=Trait.REDUCES,
  cost=1,
)
