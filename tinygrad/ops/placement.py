"""Leaves, placement and effects. Leaves are constants, counters, buffers, variables, and the holes of a template; the
others are the identity mathematically, and say where and when a value is held.
"""

from collections.abc import Sequence
from typing import Any

from tinygrad.device import Sharding, device_set
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.common import define_node, elementwise, keeps_dtype, own_dims, same_dtype
from tinygrad.uop import BufferArg, Collective, Factors, Ops, PartialRule, UOp

# ---------------------------------------------------------------- leaves


def factors_leaf(u: UOp) -> Factors:
  return Factors((), own_dims(u), u.max_shape)


def check_const(u: UOp) -> None:
  if not isinstance(u.arg, (bool, int, float)):
    raise TypeError(f"a constant is a Python number, not {u.arg!r}")


def evaluate_const(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  return numpy.full(shape, u.arg, to_numpy_dtype(u.dtype))


def evaluate_iota(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  return numpy.arange(shape[0]).astype(to_numpy_dtype(u.dtype))


def check_buffer(u: UOp) -> None:
  if not isinstance(u.arg, BufferArg) or not isinstance(u.arg.device, (str, Sharding)):
    raise TypeError(f"a buffer's arg is a BufferArg with its placement, not {u.arg!r}")


def check_index(u: UOp) -> None:
  if u.dtype is not dtypes.index:
    raise TypeError(f"{u.op.name} has dtype index, not {u.dtype}")


define_node(Ops.UNIQUE)
define_node(Ops.CONST, dtype=check_const, evaluate=evaluate_const, factors=factors_leaf, render="{arg}")
define_node(Ops.IOTA, lambda u: (u.arg,), evaluate=evaluate_iota, factors=factors_leaf)
define_node(Ops.BUFFER, lambda u: u.arg.shape, check_buffer, factors=factors_leaf)
define_node(Ops.VARIABLE, dtype=check_index, factors=factors_leaf, render="{arg}")
define_node(Ops.BIND, dtype=check_index, factors=factors_leaf)
define_node(Ops.HOLE, lambda u: u.arg[1], factors=factors_leaf)

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
  return (g.move(source.reduced if isinstance(source, Sharding) else source, pinned=False),)


define_node(Ops.MOVE, first_shape, same_dtype, identity, gradient_move, elementwise)
define_node(Ops.CONTIGUOUS, first_shape, same_dtype, identity, lambda g, u: (g,), elementwise)
define_node(Ops.DETACH, first_shape, same_dtype, identity, lambda g, u: (None,), elementwise, PartialRule.KEEP)


def check_assign(u: UOp) -> None:
  same_dtype(u)
  if u.src[0].shape != u.src[1].shape:
    raise ValueError(f"assigns shape {u.src[1].shape} to {u.src[0].shape}")


def factors_first(u: UOp) -> Factors:
  return Factors((own_dims(u), *(((),) * s.ndim for s in u.src[1:])), own_dims(u), u.max_shape)


define_node(Ops.ASSIGN, first_shape, check_assign, lambda u, xs, shape: xs[1], lambda g, u: (None, g), elementwise)
define_node(Ops.AFTER, first_shape, keeps_dtype, identity, lambda g, u: (None,) * len(u.src), factors_first)
define_node(Ops.SINK)


def check_collective(u: UOp) -> None:
  if not isinstance(u.arg, Collective) or len(u.arg.placements) != len(u.src):
    raise TypeError(f"COLLECTIVE of {len(u.src)} sources with {u.arg!r}")


def collective_shape(u: UOp) -> tuple[Any, ...]:
  """The block's shape by upper bounds; lengths of uneven blocks are masked where the block is read."""
  c: Collective = u.arg
  return c.template.shape if isinstance(c.result, str) else c.result.local_shape(c.template.shape)


define_node(Ops.SHARD, lambda u: u.arg, keeps_dtype)
define_node(Ops.COLLECTIVE, collective_shape, check_collective)
