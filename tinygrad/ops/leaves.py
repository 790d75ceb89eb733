"""Leaves: constants, counters, buffers, variables, and the holes of a template."""

from typing import Any

from tinygrad.device import Sharding
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.common import define_node, own_dims
from tinygrad.uop import BufferArg, Factors, Ops, UOp


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
