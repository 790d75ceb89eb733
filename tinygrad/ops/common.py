"""What several cards share: shape, dtype and factor rules."""

from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.uop import NO_TRAIT, Factors, GradientRule, IndexMap, Ops, PartialRule, Trait, UOp, define, render_shape
from tinygrad.uop.cards import Card, FactorRule, ShapeRule, TypeRule, ValueRule


def same_shape(u: UOp) -> tuple[Any, ...]:
  """All sources have one shape, and so does the result."""
  shape = u.src[0].shape
  for s in u.src[1:]:
    if s.shape != shape:
      raise ValueError(f"shapes differ: {', '.join(render_shape(s.shape) for s in u.src)}")
  return shape


def scalar_shape(u: UOp) -> tuple[Any, ...]:
  return ()


def same_dtype(u: UOp) -> None:
  """Sources and result have one dtype."""
  for s in u.src:
    if s.dtype is not u.dtype:
      raise TypeError(f"dtypes differ: {', '.join(repr(s.dtype) for s in u.src)} -> {u.dtype}")


def keeps_dtype(u: UOp) -> None:
  """The result has the first source's dtype."""
  if u.src[0].dtype is not u.dtype:
    raise TypeError(f"{u.src[0].dtype} -> {u.dtype}")


def float_only(u: UOp) -> None:
  same_dtype(u)
  if not dtypes.is_float(u.dtype):
    raise TypeError(f"{u.dtype} is no float type")


def integer_only(u: UOp) -> None:
  """Bit and integer arithmetic: integers, index and bool."""
  same_dtype(u)
  if dtypes.is_float(u.dtype):
    raise TypeError(f"{u.dtype} is no integer type")


def comparison(u: UOp) -> None:
  if u.src[0].dtype is not u.src[1].dtype:
    raise TypeError(f"compares {u.src[0].dtype} with {u.src[1].dtype}")
  if u.dtype.scalar() is not dtypes.bool:
    raise TypeError(f"the result of a comparison is bool, not {u.dtype}")


def any_dtype(u: UOp) -> None:
  return None


def elementwise(u: UOp) -> Factors:
  """Every dim is a factor of its own: "a b, a b -> a b"."""
  return Factors((own_dims(u),) * len(u.src), own_dims(u), u.max_shape)


def own_dims(u: UOp) -> tuple[tuple[int, ...], ...]:
  """A factor of its own for each dim."""
  return tuple((i,) for i in range(u.ndim))


def define_leaf(
  op: Ops,
  *,
  shape: ShapeRule,
  dtype: TypeRule,
  evaluate: ValueRule | None,
  factors: FactorRule | None,
  render: str | None,
  traits: Trait,
) -> None:
  """The card of a leaf: nothing is computed of operands, so no derivative passes and nothing partial is met."""
  define(op, Card(
    shape=shape, dtype=dtype, evaluate=evaluate, gradient=None, factors=factors, partial=PartialRule.REDUCE_FIRST,
    render=render, index_map=None, traits=traits, cost=0,
  ))  # fmt: skip


def define_symbol(op: Ops, *, shape: ShapeRule, dtype: TypeRule, factors: FactorRule | None, traits: Trait) -> None:
  """The card of a leaf that has no value of its own, and no text in an expression."""
  define_leaf(op, shape=shape, dtype=dtype, evaluate=None, factors=factors, render=None, traits=traits)


def define_movement(
  op: Ops,
  *,
  shape: ShapeRule,
  evaluate: ValueRule,
  gradient: GradientRule,
  factors: FactorRule,
  partial: PartialRule,
  index_map: IndexMap | None,
  traits: Trait,
) -> None:
  """The card of a movement op: elements of its sources at other indices, for which nothing is computed. `index_map`
  is None for one of several sources (CAT), which kernels choose among."""
  define(op, Card(
    shape=shape, dtype=same_dtype, evaluate=evaluate, gradient=gradient, factors=factors, partial=partial,
    render=None, index_map=index_map, traits=traits, cost=0,
  ))  # fmt: skip


def define_structure(op: Ops, *, shape: ShapeRule, dtype: TypeRule, traits: Trait) -> None:
  """The card of what holds a graph together, or stands in the local view, where placement is over: no value by itself,
  no derivative, no factors."""
  define_symbol(op, shape=shape, dtype=dtype, factors=None, traits=traits)


def define_kernel_op(op: Ops, *, dtype: TypeRule) -> None:
  """The card of an op inside kernels: a scalar or a vector, of which only the types are checked."""
  define_structure(op, shape=scalar_shape, dtype=dtype, traits=NO_TRAIT)
