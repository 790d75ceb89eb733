"""Elementwise methods against numpy, with their gradients."""

import math

import numpy as np
import pytest
from tensor_oracle import check, close, normal

from tinygrad import Tensor, dtypes

SHAPE = (2, 3)
erf = np.vectorize(math.erf)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def softplus(x):
  return np.logaddexp(x, 0)


UNARY = {
  "neg": (Tensor.neg, np.negative, (-2, 2)),
  "exp": (Tensor.exp, np.exp, (-2, 2)),
  "exp2": (Tensor.exp2, np.exp2, (-2, 2)),
  "log": (Tensor.log, np.log, (0.1, 3)),
  "log2": (Tensor.log2, np.log2, (0.1, 3)),
  "log10": (Tensor.log10, np.log10, (0.1, 3)),
  "sqrt": (Tensor.sqrt, np.sqrt, (0.1, 3)),
  "rsqrt": (Tensor.rsqrt, lambda x: 1 / np.sqrt(x), (0.1, 3)),
  "reciprocal": (Tensor.reciprocal, lambda x: 1 / x, (0.5, 2)),
  "square": (Tensor.square, np.square, (-2, 2)),
  "sin": (Tensor.sin, np.sin, (-6, 6)),
  "cos": (Tensor.cos, np.cos, (-6, 6)),
  "tan": (Tensor.tan, np.tan, (-1, 1)),
  "asin": (Tensor.asin, np.arcsin, (-0.9, 0.9)),
  "acos": (Tensor.acos, np.arccos, (-0.9, 0.9)),
  "atan": (Tensor.atan, np.arctan, (-3, 3)),
  "sinh": (Tensor.sinh, np.sinh, (-2, 2)),
  "cosh": (Tensor.cosh, np.cosh, (-2, 2)),
  "tanh": (Tensor.tanh, np.tanh, (-2, 2)),
  "asinh": (Tensor.asinh, np.arcsinh, (-3, 3)),
  "acosh": (Tensor.acosh, np.arccosh, (1.1, 3)),
  "atanh": (Tensor.atanh, np.arctanh, (-0.9, 0.9)),
  "erf": (Tensor.erf, erf, (-2, 2)),
  "abs": (Tensor.abs, np.abs, (-2, 2)),
  "relu": (Tensor.relu, lambda x: np.maximum(x, 0), (-2, 2)),
  "sigmoid": (Tensor.sigmoid, sigmoid, (-3, 3)),
  "silu": (Tensor.silu, lambda x: x * sigmoid(x), (-3, 3)),
  "swish": (Tensor.swish, lambda x: x * sigmoid(x), (-3, 3)),
  "gelu": (Tensor.gelu, lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), (-3, 3)),
  "gelu exact": (lambda x: x.gelu("none"), lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), (-3, 3)),
  "quick_gelu": (Tensor.quick_gelu, lambda x: x * sigmoid(1.702 * x), (-3, 3)),
  "leaky_relu": (Tensor.leaky_relu, lambda x: np.where(x < 0, 0.01 * x, x), (-3, 3)),
  "relu6": (Tensor.relu6, lambda x: np.clip(x, 0, 6), (-3, 9)),
  "hardswish": (Tensor.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6, (-5, 5)),
  "hardsigmoid": (Tensor.hardsigmoid, lambda x: np.clip(x / 6 + 0.5, 0, 1), (-5, 5)),
  "hardtanh": (Tensor.hardtanh, lambda x: np.clip(x, -1, 1), (-3, 3)),
  "elu": (Tensor.elu, lambda x: np.where(x > 0, x, np.exp(x) - 1), (-3, 3)),
  "celu": (lambda x: x.celu(2.0), lambda x: np.where(x > 0, x, 2 * (np.exp(x / 2) - 1)), (-3, 3)),
  "selu": (Tensor.selu, lambda x: 1.0507 * np.where(x > 0, x, 1.67326 * (np.exp(x) - 1)), (-3, 3)),
  "softplus": (Tensor.softplus, softplus, (-3, 3)),
  "softplus beta": (lambda x: x.softplus(2.0), lambda x: softplus(2 * x) / 2, (-3, 3)),
  "softsign": (Tensor.softsign, lambda x: x / (1 + np.abs(x)), (-3, 3)),
  "mish": (Tensor.mish, lambda x: x * np.tanh(softplus(x)), (-3, 3)),
  "logsigmoid": (Tensor.logsigmoid, lambda x: -softplus(-x), (-3, 3)),
  "floor": (Tensor.floor, np.floor, (-3, 3)),
  "ceil": (Tensor.ceil, np.ceil, (-3, 3)),
  "round": (Tensor.round, np.round, (-3, 3)),
  "trunc": (Tensor.trunc, np.trunc, (-3, 3)),
  "sign": (Tensor.sign, np.sign, (-3, 3)),
  "clip": (lambda x: x.clip(-1, 1), lambda x: np.clip(x, -1, 1), (-3, 3)),
  "clamp below": (lambda x: x.clamp(min_=0.5), lambda x: np.maximum(x, 0.5), (-3, 3)),
  "pow 2": (lambda x: x**2, lambda x: x**2, (-2, 2)),
  "pow 7": (lambda x: x**7, lambda x: x**7, (-1, 1)),
  "pow -3": (lambda x: x**-3, lambda x: x**-3, (0.5, 2)),
  "pow 0.5": (lambda x: x**0.5, lambda x: x**0.5, (0.5, 2)),
  "pow 1.7": (lambda x: x**1.7, lambda x: x**1.7, (0.5, 2)),
  "2 pow": (lambda x: 2.0**x, lambda x: 2.0**x, (-2, 2)),
}
FLAT = {"floor", "ceil", "round", "trunc", "sign"}  # no gradient passes: the graph of the result has none


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
  f, g, (low, high) = UNARY[name]
  for shape in (SHAPE, (), (1,)):
    check(f, g, normal(1, shape, low, high), grad=name not in FLAT)
  assert f(Tensor.zeros(0, 3)).shape == (0, 3)


BINARY = {
  "add": (lambda x, y: x + y, np.add),
  "sub": (lambda x, y: x - y, np.subtract),
  "mul": (lambda x, y: x * y, np.multiply),
  "div": (lambda x, y: x / y, np.divide),
  "maximum": (Tensor.maximum, np.maximum),
  "minimum": (Tensor.minimum, np.minimum),
  "pow": (lambda x, y: x**y, np.power),
  "logaddexp": (Tensor.logaddexp, np.logaddexp),
  "lerp": (lambda x, y: x.lerp(y, 0.3), lambda x, y: x + (y - x) * 0.3),
  "where": (lambda x, y: (x > y).where(x * 2, y), lambda x, y: np.where(x > y, x * 2, y)),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_broadcasts(name):
  f, g = BINARY[name]
  for a, b in (((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2,)), ((1,), ()), ((0, 3), (1, 3))):
    check(f, g, normal(1, a, 0.5, 2), normal(2, b, 0.5, 2))


SCALAR = {
  "x + 2": lambda x: x + 2, "2 + x": lambda x: 2 + x, "x - 2": lambda x: x - 2, "2 - x": lambda x: 2 - x,
  "x * 3": lambda x: x * 3,
  "3 * x": lambda x: 3 * x, "x / 3": lambda x: x / 3, "3 / x": lambda x: 3 / x, "x // 2": lambda x: x // 2,
  "7 // x": lambda x: 7 // x,
  "x % 3": lambda x: x % 3, "7 % x": lambda x: 7 % x, "x < 2": lambda x: x < 2, "2 < x": lambda x: 2 < x,
  "x >= 2": lambda x: x >= 2,
  "x == 2": lambda x: x == 2, "x != 2": lambda x: x != 2, "-x": lambda x: -x,
}  # fmt: skip


@pytest.mark.parametrize("name", SCALAR)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_operators_with_numbers(name, dtype):
  x = np.array([-7, -2, 2, 1, 5], dtype=dtype)
  want = SCALAR[name](x)
  close(SCALAR[name](Tensor(x)), want)


INTEGER = {
  "&": lambda x, y: x & y, "|": lambda x, y: x | y, "^": lambda x, y: x ^ y, "//": lambda x, y: x // y, "%": lambda x,
  y: x % y,
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint32])
def test_integer_binary(name, dtype):
  x, y = np.array([7, 6, 100, 13], dtype), np.array([2, 5, 7, 3], dtype)
  if np.dtype(dtype).kind == "i":
    x, y = np.concatenate([x, -x, x, -x]), np.concatenate([y, y, -y, -y])
  got = INTEGER[name](Tensor(x), Tensor(y))
  assert got.numpy().dtype == dtype
  close(got, INTEGER[name](x, y))


def test_shifts_and_not():
  x = np.array([1, 5, -8], np.int32)
  close(Tensor(x) << 3, x << 3)
  close(Tensor(x) >> 1, x >> 1)
  close(~Tensor(x), ~x)
  close(~Tensor([True, False]), [False, True])
  close(Tensor([0, 2]).logical_not(), [True, False])


def test_division_modes_agree_with_python():
  x, y = np.array([7, -7, 7, -7, 6, 0]), np.array([2, 2, -2, -2, 3, 5])
  tx, ty = Tensor(x, dtype=dtypes.int32), Tensor(y, dtype=dtypes.int32)
  close(tx.div(ty, rounding_mode="trunc"), np.trunc(x / y).astype(int))
  close(tx.div(ty, rounding_mode="floor"), x // y)
  close(tx.fmod(ty), np.fmod(x, y))
  fx, fy = x.astype(np.float32) + 0.5, y.astype(np.float32)
  close(Tensor(fx).div(Tensor(fy), rounding_mode="trunc"), np.trunc(fx / fy))
  close(Tensor(fx) // Tensor(fy), fx // fy)
  close(Tensor(fx) % Tensor(fy), fx % fy)
  close(Tensor(fx).fmod(Tensor(fy)), np.fmod(fx, fy))


def test_special_values():
  x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5], np.float32)
  t = Tensor(x)
  close(t.isnan(), np.isnan(x))
  close(t.isinf(), np.isinf(x))
  close(t.isinf(detect_negative=False), np.isposinf(x))
  close(t.isfinite(), np.isfinite(x))
  for f, g in ((t < 0, x < 0), (t <= 0, x <= 0), (t >= 0, x >= 0), (t == t, x == x), (t != t, x != x)):
    close(f, g)
  np.testing.assert_array_equal(t.relu().numpy(), np.maximum(x, 0))
  np.testing.assert_array_equal(t.sign().numpy(), np.sign(x))
  close(Tensor([1.0, 1.0, -2.0]).copysign(Tensor([-0.0, 0.0, 3.0])), [-1.0, 1.0, 2.0])
  close(t.isclose(Tensor(x)), np.isclose(x, x))
  close(t.isclose(Tensor(x), equal_nan=True), np.isclose(x, x, equal_nan=True))


def test_round_takes_halves_to_even():
  x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.49], np.float32)
  close(Tensor(x).round(), np.round(x))


def test_gradient_of_relu_at_zero_is_zero():
  x = Tensor([0.0, -1.0, 2.0])
  (g,) = x.relu().sum().gradient(x)
  close(g, [0.0, 0.0, 1.0])


PROMOTION = [
  (dtypes.int32, 1, dtypes.int32),
  (dtypes.int32, 1.5, dtypes.float32),
  (dtypes.uint8, 1, dtypes.uint8),
  (dtypes.float16, 1.5, dtypes.float16),
  (dtypes.bfloat16, 2, dtypes.bfloat16),
  (dtypes.bool, 1, dtypes.int32),
  (dtypes.bool, True, dtypes.bool),
  (dtypes.float64, 1, dtypes.float64),
]


@pytest.mark.parametrize("dtype,number,want", PROMOTION)
def test_a_number_takes_the_type_of_the_tensor(dtype, number, want):
  assert (Tensor([1], dtype=dtype) * number).dtype is want
  assert (number * Tensor([1], dtype=dtype)).dtype is want


LATTICE = [
  (dtypes.uint8, dtypes.int8, dtypes.int16),
  (dtypes.int64, dtypes.float16, dtypes.float16),
  (dtypes.float16, dtypes.bfloat16, dtypes.float32),
  (dtypes.bool, dtypes.float32, dtypes.float32),
  (dtypes.int32, dtypes.uint32, dtypes.int64),
  (dtypes.uint64, dtypes.int8, dtypes.float32),
]


@pytest.mark.parametrize("a,b,want", LATTICE)
def test_types_promote(a, b, want):
  assert (Tensor([1], dtype=a) + Tensor([1], dtype=b)).dtype is want
  assert (Tensor([1], dtype=b) + Tensor([1], dtype=a)).dtype is want
  assert (Tensor([1], dtype=a) < Tensor([1], dtype=b)).dtype is dtypes.bool


def test_float_functions_of_integers_are_floats():
  assert Tensor([4]).sqrt().dtype is dtypes.float32
  assert (Tensor([1]) / 2).dtype is dtypes.float32
  close(Tensor([4, 9]).sqrt(), [2.0, 3.0])
  close(Tensor([2, 3]) ** Tensor([3, 2]), [8, 9])


CASTS = [
  (np.float32, dtypes.int32),
  (np.float32, dtypes.bool),
  (np.int32, dtypes.float16),
  (np.int32, dtypes.uint8),
  (np.uint8, dtypes.int64),
]


@pytest.mark.parametrize("source,target", CASTS)
def test_cast(source, target):
  x = np.array([0, 1, 2, 100], source)
  got = Tensor(x).cast(target)
  assert got.dtype is target
  np.testing.assert_array_equal(got.numpy(), x.astype(got.numpy().dtype))


def test_cast_truncates_toward_zero():
  close(Tensor([1.9, -1.9]).int(), [1, -1])
  close(Tensor([0.5, 0.0]).bool(), [True, False])


def test_bitcast_within_and_between_widths():
  x = np.array([1.0, -2.5], np.float32)
  np.testing.assert_array_equal(Tensor(x).bitcast(dtypes.int32).numpy(), x.view(np.int32))
  np.testing.assert_array_equal(Tensor(x).bitcast(dtypes.uint8).numpy(), x.view(np.uint8))
  np.testing.assert_array_equal(Tensor(x.view(np.uint8)).bitcast(dtypes.float32).numpy(), x)
  with pytest.raises(ValueError, match="does not divide"):
    Tensor([1, 2, 3], dtype=dtypes.uint8).bitcast(dtypes.float32)


ERRORS = [
  (
    lambda: Tensor([1, 2]) + Tensor([1, 2, 3]),
    ValueError,
    r"add: shapes must be equal or 1(.|\n)*operand 1: int32\[3\](.|\n)*fix:",
  ),
  (lambda: Tensor([1, 2]) ** -1, TypeError, "an integer to the power of -1"),
  (lambda: Tensor([True]) - Tensor([True]), TypeError, "bools cannot be subtracted"),
  (lambda: Tensor([1.5]) & 1, TypeError, "works on integers or bools"),
  (lambda: Tensor([1.5]) << 1, TypeError, "works on integers"),
  (lambda: ~Tensor([1.5]), TypeError, "works on integers or bools"),
  (lambda: Tensor([1.0]).where(1, 2), TypeError, "the condition must be a bool tensor"),
  (lambda: Tensor([1]) + "a", TypeError, "cannot use str as an operand"),
  (lambda: Tensor([1]).div(2, rounding_mode="up"), ValueError, "unknown rounding_mode 'up'"),
  (lambda: Tensor([1.0]).gelu("fast"), ValueError, "unknown approximation 'fast'"),
  (lambda: Tensor([1.0]).clamp(), ValueError, "at least one of min_ and max_"),
  (lambda: (Tensor([True]) != Tensor([1, 2])).where(Tensor([1, 2, 3]), 0), ValueError, "condition and branches"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call, error, message):
  with pytest.raises(error, match=message):
    call()
