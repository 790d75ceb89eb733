"""Leaves: constants, counters, buffers, variables, and the holes of a template."""

from __future__ import annotations

from typing import Any

from tinygrad.device import Sharding
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.common import any_dtype, scalar_shape
from tinygrad.uop.cards import Factors, Owed, define
from tinygrad.uop.ops import BufferArg, Ops, UOp


def factors_leaf(u: UOp) -> Factors:
  return Factors((), tuple((i,) for i in range(u.ndim)), u.max_shape)


def check_const(u: UOp) -> None:
  if not isinstance(u.arg, (bool, int, float)):
    raise TypeError(f"a constant is a Python number, not {u.arg!r}")


def evaluate_const(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  return numpy.full(shape, u.arg, to_numpy_dtype(u.dtype))


def check_buffer(u: UOp) -> None:
  if not isinstance(u.arg, BufferArg) or not isinstance(u.arg.device, (str, Sharding)):
    raise TypeError(f"a buffer's arg is a BufferArg with its placement, not {u.arg!r}")


def check_index(u: UOp) -> None:
  if u.dtype is not dtypes.index:
    raise TypeError(f"{u.op.name} has dtype index, not {u.dtype}")


define(
  Ops.UNIQUE,
  shape=scalar_shape,
  dtype=any_dtype,
  evaluate=None,
  gradient=None,
  factors=None,
  owed=Owed.SETTLE_FIRST,
  render=None,
)
define(
  Ops.CONST,
  shape=scalar_shape,
  dtype=check_const,
  evaluate=evaluate_const,
  gradient=None,
  factors=factors_leaf,
  owed=Owed.SETTLE_FIRST,
  render="{arg}",
)
define(
  Ops.IOTA,
  shape=lambda u: (u.arg,),
  dtype=any_dtype,
  evaluate=lambda u, xs, shape: numpy.arange(shape[0]).astype(to_numpy_dtype(u.dtype)),
  gradient=None,
  factors=factors_leaf,
  owed=Owed.SETTLE_FIRST,
  render=None,
)
define(
  Ops.BUFFER,
  shape=lambda u: u.arg.shape,
  dtype=check_buffer,
  evaluate=None,
  gradient=None,
  factors=factors_leaf,
  owed=Owed.SETTLE_FIRST,
  render=None,
)
define(
  Ops.VARIABLE,
  shape=scalar_shape,
  dtype=check_index,
  evaluate=None,
  gradient=None,
  factors=factors_leaf,
  owed=Owed.SETTLE_FIRST,
  render="{arg}",
)
define(
  Ops.BIND,
  shape=scalar_shape,
  dtype=check_index,
  evaluate=None,
  gradient=None,
  factors=factors_leaf,
  owed=Owed.SETTLE_FIRST,
  render=None,
)
define(
  Ops.HOLE,
  shape=lambda u: u.arg[1],
  dtype=any_dtype,
  evaluate=None,
  gradient=None,
  factors=factors_leaf,
  owed=Owed.SETTLE_FIRST,
  render=None,
)
