"""Leaves, placement and effects. Leaves are constants, counters, buffers, variables, and the holes of a template; the
others are the identity mathematically, and say where and when a value is held."""

from collections.abc import Sequence
from typing import Any

from tinygrad.device import Sharding, device_set, reduced_placement
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.common import (
  any_dtype,
  define_leaf,
  define_structure,
  define_symbol,
  elementwise,
  keeps_dtype,
  own_dims,
  same_dtype,
  scalar_shape,
)
from tinygrad.uop import NO_TRAIT, BufferArg, Collective, Factors, GradientRule, Ops, PartialRule, Trait, UOp, define
from tinygrad.uop.cards import Card

# ---------------------------------------------------------------- leaves


def factors_leaf(u: UOp) -> Factors:
  return Factors((), own_dims(u), u.max_shape)


def check_const(u: UOp) -> None:
  if not isinstance(u.arg, (bool, int, float)):
    raise TypeError(f"a constant is a Python number, not {u.arg!r}")


def check_buffer(u: UOp) -> None:
  if not isinstance(u.arg, BufferArg) or not isinstance(u.arg.device, (str, Sharding)):
    raise TypeError(f"a buffer's arg is a BufferArg with its placement, not {u.arg!r}")


def check_index_dtype(u: UOp) -> None:
  if u.dtype is not dtypes.index:
    raise TypeError(f"{u.op.name} has dtype index, not {u.dtype}")


define_symbol(Ops.UNIQUE, shape=scalar_shape, dtype=any_dtype, factors=None, traits=NO_TRAIT)
define_leaf(
  Ops.CONST, shape=scalar_shape, dtype=check_const, factors=factors_leaf, render="{arg}",
  evaluate=lambda u, xs, shape: numpy.full(shape, u.arg, to_numpy_dtype(u.dtype)),
  traits=Trait.PLACELESS | Trait.SEEN,
)  # fmt: skip
define_leaf(
  Ops.IOTA, shape=lambda u: (u.arg,), dtype=any_dtype, factors=factors_leaf, render=None,
  evaluate=lambda u, xs, shape: numpy.arange(shape[0]).astype(to_numpy_dtype(u.dtype)),
  traits=Trait.PLACELESS | Trait.SEEN,
)  # fmt: skip
define_symbol(Ops.BUFFER, shape=lambda u: u.arg.shape, dtype=check_buffer, factors=factors_leaf, traits=Trait.MEMORY)
define_leaf(
  Ops.VARIABLE, shape=scalar_shape, dtype=check_index_dtype, evaluate=None, factors=factors_leaf, render="{arg}",
  traits=Trait.PLACELESS,
)  # fmt: skip
define_symbol(Ops.BIND, shape=scalar_shape, dtype=check_index_dtype, factors=factors_leaf, traits=Trait.PLACELESS)
define_symbol(Ops.HOLE, shape=lambda u: u.arg[1], dtype=any_dtype, factors=factors_leaf, traits=Trait.PLACELESS)

# ---------------------------------------------------------------- placement and effects


def first_shape(u: UOp) -> tuple[Any, ...]:
  return u.src[0].shape


def identity(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  return xs[0]


def gradient_move(g: UOp, u: UOp) -> Sequence[UOp | None]:
  """Between device sets: the move back. On one device set the value is the same and propagation places the gradient."""
  source = u.src[0].device
  if source is None or device_set(source) == device_set(u.arg.device):
    return (g,)
  return (g.move(reduced_placement(source), pinned=False),)


def define_identity(op: Ops, *, gradient: GradientRule, partial: PartialRule, traits: Trait) -> None:
  """The card of an op whose value is its only source's."""
  define(op, Card(
    shape=first_shape, dtype=same_dtype, evaluate=identity, gradient=gradient, factors=elementwise, partial=partial,
    render=None, index_map=None, traits=traits, cost=0,
  ))  # fmt: skip


define_identity(
  Ops.MOVE, gradient=gradient_move, partial=PartialRule.REDUCE_FIRST, traits=Trait.IDENTITY | Trait.SEEN_THROUGH
)
define_identity(Ops.CONTIGUOUS, gradient=lambda g, u: (g,), partial=PartialRule.REDUCE_FIRST, traits=Trait.IDENTITY)
define_identity(Ops.DETACH, gradient=lambda g, u: (None,), partial=PartialRule.KEEP, traits=Trait.IDENTITY | Trait.VIEW)
define_identity(
  Ops.CONSTRAIN, gradient=lambda g, u: (g.constrain(u.arg.of_gradient),), partial=PartialRule.KEEP,
  traits=Trait.IDENTITY | Trait.VIEW,
)  # fmt: skip


def check_assign(u: UOp) -> None:
  same_dtype(u)
  if u.src[0].shape != u.src[1].shape:
    raise ValueError(f"assigns shape {u.src[1].shape} to {u.src[0].shape}")


define(Ops.ASSIGN, Card(
  shape=first_shape, dtype=check_assign, evaluate=lambda u, xs, shape: xs[1],
  gradient=lambda g, u: (None, g), factors=elementwise, partial=PartialRule.REDUCE_FIRST, render=None, index_map=None,
  traits=Trait.EFFECT, cost=0,
))  # fmt: skip
for _op, _gradient, _traits in (
  (Ops.AFTER, lambda g, u: (None,) * len(u.src), Trait.EFFECT),
  (Ops.WAIT, lambda g, u: (g, *(None,) * (len(u.src) - 1)), Trait.VIEW),
):
  define(_op, Card(
    shape=first_shape, dtype=keeps_dtype, evaluate=identity, gradient=_gradient,
    factors=lambda u: Factors((own_dims(u), *(((),) * s.ndim for s in u.src[1:])), own_dims(u), u.max_shape),
    partial=PartialRule.REDUCE_FIRST, render=None, index_map=None, traits=Trait.IDENTITY | _traits, cost=0,
  ))  # fmt: skip
define_structure(Ops.SINK, shape=scalar_shape, dtype=any_dtype, traits=NO_TRAIT)


def check_collective(u: UOp) -> None:
  if not isinstance(u.arg, Collective) or len(u.arg.placements) != len(u.src):
    raise TypeError(f"COLLECTIVE of {len(u.src)} sources with {u.arg!r}")


def collective_shape(u: UOp) -> tuple[Any, ...]:
  """The block's shape by upper bounds; lengths of uneven blocks are masked where the block is read."""
  c: Collective = u.arg
  return c.template.shape if isinstance(c.result, str) else c.result.local_shape(c.template.shape)


define_structure(Ops.SHARD, shape=lambda u: u.arg, dtype=keeps_dtype, traits=Trait.MEMORY)
define_structure(Ops.COLLECTIVE, shape=collective_shape, dtype=check_collective, traits=Trait.IN_MEMORY)
