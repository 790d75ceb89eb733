"""Elementwise ops: one element of the result from the elements at the same index."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.helpers.threefry import threefry2x32
from tinygrad.ops.common import comparison, elementwise, float_only, integer_only, same_dtype, same_shape
from tinygrad.uop import NO_TRAIT, GradientRule, Ops, PartialRule, Trait, UOp, define
from tinygrad.uop.cards import Card, TypeRule, ValueRule

Grads = Sequence[UOp | None]

OF_BOOLS = {Ops.ADD: Ops.OR, Ops.MUL: Ops.AND}  # what sum and product of bools are
MIRROR = {Ops.MAX: Ops.MIN, Ops.MIN: Ops.MAX}  # -max(x, y) = min(-x, -y)


def _numpy(function: str | Callable[..., Any]) -> ValueRule:
  """`evaluate` by a function of the operands, or numpy's of that name, held in the result's dtype."""

  def evaluate(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
    call = getattr(numpy, function) if isinstance(function, str) else function
    with numpy.errstate(all="ignore"):
      return numpy.asarray(call(*xs)).astype(to_numpy_dtype(u.dtype), copy=False)

  return evaluate


def define_elementwise(
  op: Ops,
  *,
  dtype: TypeRule,
  evaluate: str | Callable[..., Any],
  gradient: GradientRule,
  partial: PartialRule,
  render: str,
  traits: Trait,
  cost: int,
) -> None:
  """The card of an elementwise op: sources and result have one shape, and each dim is a factor. `evaluate`: a
  function, or the name of one of numpy's."""
  value = _numpy(evaluate)
  define(op, Card(
    shape=same_shape, dtype=dtype, evaluate=value, gradient=gradient, factors=elementwise, partial=partial,
    render=render, index_map=None, traits=traits, cost=cost,
  ))  # fmt: skip


def define_function(
  op: Ops, *, evaluate: str | Callable[..., Any], gradient: GradientRule, traits: Trait, cost: int
) -> None:
  """The card of a function of one float, which renders as a call: nothing reduces through it."""
  define_elementwise(
    op, dtype=float_only, evaluate=evaluate, gradient=gradient, partial=PartialRule.REDUCE_FIRST,
    render=f"{op.name.lower()}({{0}})", traits=traits, cost=cost,
  )  # fmt: skip


def _no_gradient(g: UOp, u: UOp) -> Grads:
  return (None,) * len(u.src)


def _times(g: UOp, product: UOp) -> UOp:
  """`product`, of g and a derivative that may be infinite where the value is not: 0 where g is 0, never 0 * inf.

  So what a WHERE does not choose adds nothing (the logarithm of 0 beside it), and 1/(1 + exp(-x)) is flat far below 0.
  Where g is 0 it has the derivative of a product by g all the same (`guards_product`): the second one of x * exp(x).
  """
  return g.const_like(0.0).eq(g).where(0.0, product)


def guards_product(u: UOp) -> bool:
  """Whether a WHERE is one of `_times`: 0 == g ? 0 : product, in which 0 comes first."""
  zeros = [x.base for x in (u.src[0].src[0], u.src[1])] if u.src[0].op is Ops.CMPEQ else []
  return bool(zeros) and all(x.op is Ops.CONST and x.arg == 0 for x in zeros)


def is_shifted(x: UOp) -> bool:
  """Whether a row's largest element has been taken off it, as softmax does (0 where that is -inf): exp(x) is finite."""
  if x.op is not Ops.SUB or x.src[1].op is not Ops.EXPAND:
    return False
  top = x.src[1].src[0]
  if top.op is Ops.WHERE and top.src[0].op is Ops.CMPEQ:
    (largest, least), (_, _, other) = top.src[0].src, top.src
    top = other if largest is other and least.base.op is Ops.CONST and least.base.arg == -math.inf else top
  of_rows = top.op is Ops.REDUCE and top.arg[0] is Ops.MAX
  return of_rows and next(u for u in top.src[0].down() if u.op is not Ops.DETACH) is x.src[0]


def gradient_of_exp(g: UOp, u: UOp) -> tuple[UOp]:
  return (g * u if is_shifted(u.src[0]) else _times(g, g * u),)


# ---------------------------------------------------------------- unary

FROM_ZERO = Trait.ZERO_AT_ZERO | Trait.FLOP

define_elementwise(
  Ops.NEG, dtype=same_dtype, evaluate="negative", gradient=lambda g, u: (-g,), partial=PartialRule.NEGATE,
  render="-{0}", traits=FROM_ZERO, cost=1,
)  # fmt: skip
define_elementwise(
  Ops.RECIP, dtype=float_only, evaluate="reciprocal", gradient=lambda g, u: (_times(g, -(g * u * u)),),
  partial=PartialRule.REDUCE_FIRST, render="1/{0}", traits=Trait.FLOP, cost=8,
)  # fmt: skip


define_function(Ops.EXP, evaluate="exp", gradient=gradient_of_exp, traits=Trait.FLOP, cost=16)
define_function(Ops.LOG, evaluate="log", gradient=lambda g, u: (_times(g, g / u.src[0]),), traits=Trait.FLOP, cost=24)
define_function(Ops.SIN, evaluate="sin", gradient=lambda g, u: [g * u.src[0].alu(Ops.COS)], traits=FROM_ZERO, cost=48)
define_function(Ops.COS, evaluate="cos", gradient=lambda g, u: [-g * u.src[0].alu(Ops.SIN)], traits=Trait.FLOP, cost=48)
define_function(Ops.SQRT, evaluate="sqrt", gradient=lambda g, u: (_times(g, g / (u * 2)),), traits=FROM_ZERO, cost=16)
define_function(Ops.TANH, evaluate="tanh", gradient=lambda g, u: (g * (1 - u * u),), traits=FROM_ZERO, cost=32)


def _erf(x: Any) -> Any:
  return numpy.vectorize(math.erf, otypes=[numpy.float64])(x.astype(numpy.float64))


def gradient_erf(g: UOp, u: UOp) -> Grads:
  """d erf(x)/dx = 2/sqrt(pi) * exp(-x^2)."""
  x = u.src[0]
  return (g * (-(x * x)).alu(Ops.EXP) * (2 / math.sqrt(math.pi)),)


define_function(Ops.ERF, evaluate=_erf, gradient=gradient_erf, traits=FROM_ZERO, cost=32)
for _op, _name in ((Ops.FLOOR, "floor"), (Ops.CEIL, "ceil"), (Ops.ROUND, "rint")):
  define_elementwise(
    _op, dtype=same_dtype, evaluate=_name, gradient=_no_gradient, partial=PartialRule.MONOTONE,
    render=f"{_name}({{0}})", traits=FROM_ZERO, cost=1,
  )  # fmt: skip


define_elementwise(
  Ops.NOT, dtype=integer_only, evaluate="invert", gradient=_no_gradient, partial=PartialRule.REDUCE_FIRST,
  render="!{0}", traits=NO_TRAIT, cost=1,
)  # fmt: skip


def gradient_cast(g: UOp, u: UOp) -> Grads:
  x = u.src[0]
  return (g.cast(x.dtype) if dtypes.is_float(x.dtype) and dtypes.is_float(u.dtype) else None,)


# to bool by comparing with 0; out-of-range floats to integers are not defined
define_elementwise(
  Ops.CAST, dtype=lambda u: None, evaluate=lambda x: x, gradient=gradient_cast, partial=PartialRule.CAST,
  render="cast({0})", traits=Trait.CONVERTS | Trait.SEEN_THROUGH, cost=1,
)  # fmt: skip


def check_bitcast(u: UOp) -> None:
  if u.src[0].dtype.itemsize * u.src[0].dtype.count != u.dtype.itemsize * u.dtype.count:
    raise TypeError(f"bitcast from {u.src[0].dtype} to {u.dtype}: the widths differ")


define(Ops.BITCAST, Card(
  shape=same_shape, dtype=check_bitcast, gradient=_no_gradient,
  evaluate=lambda u, xs, shape: numpy.ascontiguousarray(xs[0]).view(to_numpy_dtype(u.dtype)).reshape(shape),
  factors=elementwise, partial=PartialRule.REDUCE_FIRST, render="bitcast({0})", index_map=None, traits=Trait.CONVERTS,
  cost=1,
))  # fmt: skip

# ---------------------------------------------------------------- binary


# numpy's sum and product of bools are their or and their and
define_elementwise(
  Ops.ADD, dtype=same_dtype, evaluate="add", gradient=lambda g, u: (g, g), partial=PartialRule.SUM,
  render="({0} + {1})", traits=Trait.WRAPS | Trait.FLOP, cost=1,
)  # fmt: skip
define_elementwise(
  Ops.SUB, dtype=same_dtype, evaluate="subtract", gradient=lambda g, u: (g, -g), partial=PartialRule.SUM,
  render="({0} - {1})", traits=Trait.WRAPS | Trait.FLOP, cost=1,
)  # fmt: skip
define_elementwise(
  Ops.MUL, dtype=same_dtype, evaluate="multiply", gradient=lambda g, u: (g * u.src[1], g * u.src[0]),
  partial=PartialRule.PRODUCT, render="({0} * {1})",
  traits=Trait.ZERO_AT_ZERO | Trait.WRAPS | Trait.FLOP | Trait.SEEN | Trait.PAIRED, cost=1,
)  # fmt: skip


def gradient_fdiv(g: UOp, u: UOp) -> Grads:
  """u = x / y: du/dx = 1/y, du/dy = -u/y."""
  y = u.src[1]
  return (g / y, -(g * u) / y) if y.base.op is Ops.CONST else (_times(g, g / y), _times(g, -(g * u) / y))


define_elementwise(
  Ops.FDIV, dtype=float_only, evaluate="true_divide", gradient=gradient_fdiv, partial=PartialRule.PRODUCT,
  render="({0} / {1})", traits=Trait.FLOP, cost=8,
)  # fmt: skip


def _floordiv(x: Any, y: Any) -> Any:
  """Floor division; by zero it is 0."""
  return numpy.where(y == 0, 0, numpy.floor_divide(x, numpy.where(y == 0, 1, y)))


def _mod(x: Any, y: Any) -> Any:
  """x - y * floor(x / y); by zero it is 0."""
  return numpy.where(y == 0, 0, numpy.mod(x, numpy.where(y == 0, 1, y)))


def gradient_extremum(g: UOp, u: UOp) -> Grads:
  """The operand that won gets g; equal operands get half each, as in PyTorch."""
  x, y = u.src
  half = x.eq(y).where(g * 0.5, 0.0)
  x_won, y_won = (x > y, x < y) if u.op is Ops.MAX else (x < y, x > y)
  return (x_won.where(g, half), y_won.where(g, half))


for _op, _name in ((Ops.MAX, "max"), (Ops.MIN, "min")):
  define_elementwise(
    _op, dtype=same_dtype, evaluate=f"{_name}imum", gradient=gradient_extremum, partial=PartialRule.EXTREMUM,
    render=f"{_name}({{0}}, {{1}})", traits=Trait.IDEMPOTENT | Trait.FLOP, cost=1,
  )  # fmt: skip


def gradient_pow(g: UOp, u: UOp) -> Grads:
  """u = x^y: du/dx = y x^(y-1), 0 where y is 0; du/dy = u log x, 0 where x is 0 and y is not negative."""
  x, y = u.src
  dx = y.eq(0).where(0.0, y * x.alu(Ops.POW, y - 1))
  dy = (x.eq(0) & (y >= 0)).where(0.0, u * x.alu(Ops.LOG))
  return (_times(g, g * dx), _times(g, g * dy))


define_elementwise(
  Ops.POW, dtype=float_only, evaluate="power", gradient=gradient_pow, partial=PartialRule.REDUCE_FIRST,
  render="pow({0}, {1})", traits=Trait.FLOP, cost=64,
)  # fmt: skip
_OPERATORS: tuple[tuple[Ops, str | Callable[..., Any], str, TypeRule, Trait], ...] = (
  (Ops.IDIV, _floordiv, "//", integer_only, Trait.DIVIDES | Trait.FLOP),
  (Ops.MOD, _mod, "%", integer_only, Trait.DIVIDES | Trait.FLOP),
  (Ops.AND, "bitwise_and", "&", integer_only, Trait.IDEMPOTENT | Trait.FLOP),
  (Ops.OR, "bitwise_or", "|", integer_only, Trait.IDEMPOTENT | Trait.FLOP),
  (Ops.XOR, "bitwise_xor", "^", integer_only, Trait.FLOP),
  (Ops.SHL, "left_shift", "<<", integer_only, Trait.WRAPS | Trait.FLOP),
  (Ops.SHR, "right_shift", ">>", integer_only, Trait.FLOP),
  (Ops.CMPLT, "less", "<", comparison, NO_TRAIT),
  (Ops.CMPEQ, "equal", "==", comparison, NO_TRAIT),
  (Ops.CMPNE, "not_equal", "!=", comparison, NO_TRAIT),
)
for _op, _evaluate, _sign, _dtype, _traits in _OPERATORS:
  define_elementwise(
    _op, dtype=_dtype, evaluate=_evaluate, gradient=_no_gradient, partial=PartialRule.REDUCE_FIRST,
    render=f"({{0}} {_sign} {{1}})", traits=_traits, cost=1,
  )  # fmt: skip

# ---------------------------------------------------------------- ternary


def check_where(u: UOp) -> None:
  if u.src[0].dtype.scalar() is not dtypes.bool or u.src[1].dtype is not u.dtype or u.src[2].dtype is not u.dtype:
    raise TypeError(f"where({', '.join(repr(s.dtype) for s in u.src)}) -> {u.dtype}")


def gradient_where(g: UOp, u: UOp) -> Grads:
  condition, product = u.src[0], u.src[2]
  if guards_product(u):
    condition = condition & product.ne(product)
  return (None, condition.where(g, 0.0), condition.where(g.const_like(0.0), g))


define_elementwise(
  Ops.WHERE, dtype=check_where, evaluate="where", gradient=gradient_where, partial=PartialRule.SELECT,
  render="({0} ? {1} : {2})", traits=NO_TRAIT, cost=1,
)  # fmt: skip

# ---------------------------------------------------------------- random bits


def _random_bits(u: UOp, xs: list[Any], shape: tuple[int, ...]) -> Any:
  with numpy.errstate(over="ignore"):
    return numpy.asarray(threefry2x32(xs[:2], xs[2:], lambda f, x, y: f(x, y))[u.arg])


def check_words(u: UOp) -> None:
  if len(u.src) != 4 or {u.dtype, *(s.dtype for s in u.src)} != {dtypes.uint32}:
    raise TypeError(f"threefry({', '.join(repr(s.dtype) for s in u.src)}) -> {u.dtype}")


# sources: the two words of the counter, the two of the key; arg: which word of the result
define(Ops.THREEFRY, Card(
  shape=same_shape, dtype=check_words, evaluate=_random_bits, gradient=_no_gradient, factors=elementwise,
  partial=PartialRule.REDUCE_FIRST, render="threefry({0}, {1}, {2}, {3})", index_map=None, traits=Trait.FLOP, cost=130,
))  # fmt: skip
