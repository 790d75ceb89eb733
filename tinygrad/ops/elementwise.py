"""Elementwise ops: one element of the result from the elements at the same index."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.common import comparison, define_node, elementwise, float_only, integer_only, same_dtype, same_shape
from tinygrad.uop import GradientRule, Ops, PartialRule, UOp

Grads = Sequence[UOp | None]


def _numpy(function: str | Callable[..., Any]) -> Callable[[UOp, list[Any], tuple[int, ...]], Any]:
  """`evaluate` by a function of the operands, or numpy's of that name, held in the result's dtype."""

  def evaluate(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
    call = getattr(numpy, function) if isinstance(function, str) else function
    with numpy.errstate(all="ignore"):
      return numpy.asarray(call(*xs)).astype(to_numpy_dtype(u.dtype), copy=False)

  return evaluate


def define_elementwise(
  op: Ops, function: str | Callable[..., Any], gradient: GradientRule, partial: PartialRule, render: str,
  dtype: Callable[[UOp], None] = same_dtype,
) -> None:  # fmt: skip
  define_node(op, same_shape, dtype, _numpy(function), gradient, elementwise, partial, render)


def _no_gradient(g: UOp, u: UOp) -> Grads:
  return (None,) * len(u.src)


def _times(g: UOp, product: UOp) -> UOp:
  """`product`, of g and a derivative that may be infinite where the value is not: 0 where g is 0, never 0 * inf.

  So what a WHERE does not choose adds nothing (the logarithm of 0 beside it), and 1/(1 + exp(-x)) is flat far below 0.
  """
  return g.eq(0).where(0.0, product)


# ---------------------------------------------------------------- unary

define_elementwise(Ops.NEG, "negative", lambda g, u: (-g,), PartialRule.NEGATE, "-{0}")
define_elementwise(
  Ops.RECIP, "reciprocal", lambda g, u: (_times(g, -(g * u * u)),), PartialRule.REDUCE_FIRST, "1/{0}", float_only
)


define_elementwise(Ops.EXP, "exp", lambda g, u: (_times(g, g * u),), PartialRule.REDUCE_FIRST, "exp({0})", float_only)
define_elementwise(
  Ops.LOG, "log", lambda g, u: (_times(g, g / u.src[0]),), PartialRule.REDUCE_FIRST, "log({0})", float_only
)
define_elementwise(
  Ops.SIN, "sin", lambda g, u: [g * u.src[0].alu(Ops.COS)], PartialRule.REDUCE_FIRST, "sin({0})", float_only
)
define_elementwise(
  Ops.COS, "cos", lambda g, u: [-g * u.src[0].alu(Ops.SIN)], PartialRule.REDUCE_FIRST, "cos({0})", float_only
)
define_elementwise(
  Ops.SQRT, "sqrt", lambda g, u: (_times(g, g / (u * 2)),), PartialRule.REDUCE_FIRST, "sqrt({0})", float_only
)
define_elementwise(Ops.TANH, "tanh", lambda g, u: (g * (1 - u * u),), PartialRule.REDUCE_FIRST, "tanh({0})", float_only)


def _erf(x: Any) -> Any:
  return numpy.vectorize(math.erf, otypes=[numpy.float64])(x.astype(numpy.float64))


def gradient_erf(g: UOp, u: UOp) -> Grads:
  """d erf(x)/dx = 2/sqrt(pi) * exp(-x^2)."""
  x = u.src[0]
  return (g * (-(x * x)).alu(Ops.EXP) * (2 / math.sqrt(math.pi)),)


define_elementwise(Ops.ERF, _erf, gradient_erf, PartialRule.REDUCE_FIRST, "erf({0})", float_only)
define_elementwise(Ops.FLOOR, "floor", _no_gradient, PartialRule.MONOTONE, "floor({0})")
define_elementwise(Ops.CEIL, "ceil", _no_gradient, PartialRule.MONOTONE, "ceil({0})")
define_elementwise(Ops.ROUND, "rint", _no_gradient, PartialRule.MONOTONE, "rint({0})")


define_elementwise(Ops.NOT, "invert", _no_gradient, PartialRule.REDUCE_FIRST, "!{0}", integer_only)


def gradient_cast(g: UOp, u: UOp) -> Grads:
  x = u.src[0]
  return (g.cast(x.dtype) if dtypes.is_float(x.dtype) and dtypes.is_float(u.dtype) else None,)


# to bool by comparing with 0; out-of-range floats to integers are not defined
define_elementwise(Ops.CAST, lambda x: x, gradient_cast, PartialRule.CAST, "cast({0})", lambda u: None)


def check_bitcast(u: UOp) -> None:
  if u.src[0].dtype.itemsize * u.src[0].dtype.count != u.dtype.itemsize * u.dtype.count:
    raise TypeError(f"bitcast from {u.src[0].dtype} to {u.dtype}: the widths differ")


def evaluate_bitcast(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  return numpy.ascontiguousarray(xs[0]).view(to_numpy_dtype(u.dtype)).reshape(shape)


define_node(Ops.BITCAST, same_shape, check_bitcast, evaluate_bitcast, _no_gradient, elementwise, render="bitcast({0})")

# ---------------------------------------------------------------- binary


# numpy's sum and product of bools are their or and their and
define_elementwise(Ops.ADD, "add", lambda g, u: (g, g), PartialRule.SUM, "({0} + {1})")
define_elementwise(Ops.SUB, "subtract", lambda g, u: (g, -g), PartialRule.SUM, "({0} - {1})")
define_elementwise(Ops.MUL, "multiply", lambda g, u: (g * u.src[1], g * u.src[0]), PartialRule.PRODUCT, "({0} * {1})")


def gradient_fdiv(g: UOp, u: UOp) -> Grads:
  """u = x / y: du/dx = 1/y, du/dy = -u/y."""
  y = u.src[1]
  if y.base.op is Ops.CONST:
    return (g / y, -(g * u) / y)
  return (_times(g, g / y), _times(g, -(g * u) / y))


define_elementwise(Ops.FDIV, "true_divide", gradient_fdiv, PartialRule.PRODUCT, "({0} / {1})", float_only)


def _floordiv(x: Any, y: Any) -> Any:
  """Floor division; by zero it is 0."""
  return numpy.where(y == 0, 0, numpy.floor_divide(x, numpy.where(y == 0, 1, y)))


def _mod(x: Any, y: Any) -> Any:
  """x - y * floor(x / y); by zero it is 0."""
  return numpy.where(y == 0, 0, numpy.mod(x, numpy.where(y == 0, 1, y)))


define_elementwise(Ops.IDIV, _floordiv, _no_gradient, PartialRule.REDUCE_FIRST, "({0} // {1})", integer_only)
define_elementwise(Ops.MOD, _mod, _no_gradient, PartialRule.REDUCE_FIRST, "({0} % {1})", integer_only)


def gradient_extremum(g: UOp, u: UOp) -> Grads:
  """The operand that won gets g; equal operands get half each, as in PyTorch."""
  x, y = u.src
  half = x.eq(y).where(g * 0.5, 0.0)
  x_won, y_won = (x > y, x < y) if u.op is Ops.MAX else (x < y, x > y)
  return (x_won.where(g, half), y_won.where(g, half))


define_elementwise(Ops.MAX, "maximum", gradient_extremum, PartialRule.EXTREMUM, "max({0}, {1})")
define_elementwise(Ops.MIN, "minimum", gradient_extremum, PartialRule.EXTREMUM, "min({0}, {1})")


def gradient_pow(g: UOp, u: UOp) -> Grads:
  """u = x^y: du/dx = y x^(y-1), 0 where y is 0; du/dy = u log x, 0 where x is 0 and y is not negative."""
  x, y = u.src
  dx = y.eq(0).where(0.0, y * x.alu(Ops.POW, y - 1))
  dy = (x.eq(0) & (y >= 0)).where(0.0, u * x.alu(Ops.LOG))
  return (_times(g, g * dx), _times(g, g * dy))


define_elementwise(Ops.POW, "power", gradient_pow, PartialRule.REDUCE_FIRST, "pow({0}, {1})", float_only)
for _op, _name, _sign, _dtype in (
  (Ops.AND, "bitwise_and", "&", integer_only), (Ops.OR, "bitwise_or", "|", integer_only),
  (Ops.XOR, "bitwise_xor", "^", integer_only), (Ops.SHL, "left_shift", "<<", integer_only),
  (Ops.SHR, "right_shift", ">>", integer_only), (Ops.CMPLT, "less", "<", comparison),
  (Ops.CMPEQ, "equal", "==", comparison), (Ops.CMPNE, "not_equal", "!=", comparison),
):  # fmt: skip
  define_elementwise(_op, _name, _no_gradient, PartialRule.REDUCE_FIRST, f"({{0}} {_sign} {{1}})", _dtype)

# ---------------------------------------------------------------- ternary


def check_where(u: UOp) -> None:
  if u.src[0].dtype.scalar() is not dtypes.bool or u.src[1].dtype is not u.dtype or u.src[2].dtype is not u.dtype:
    raise TypeError(f"where({', '.join(repr(s.dtype) for s in u.src)}) -> {u.dtype}")


def gradient_where(g: UOp, u: UOp) -> Grads:
  condition = u.src[0]
  return (None, condition.where(g, 0.0), condition.where(g.const_like(0.0), g))


define_elementwise(Ops.WHERE, "where", gradient_where, PartialRule.SELECT, "({0} ? {1} : {2})", check_where)
