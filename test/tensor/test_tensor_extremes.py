"""Functions and their derivatives at the ends of what a type holds, beside numpy in float64 and, where it is installed,
PyTorch: a nan only where the value has none, infinities and zeros where they belong. And reductions of nothing."""

import contextlib
import math

import numpy as np
import pytest

from tinygrad import Tensor

inf, nan = math.inf, math.nan
SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772  # of selu
SIZES = (0.0, 1e-45, 1e-38, 1e-20, 1e-8, 0.5, 0.99999994, 1.0, 1.0000001, 1.5, 3.0, 6.5, 20.0, 50.0, 88.0, 89.0, 100.0,
  104.0, 745.0, 1e4, 1e10, 1e19, 1e30, 3.4028235e38, inf)  # fmt: skip
# of which infinity is in PyTorch, too, infinity times 0 somewhere
FINITE = {"silu", "swish", "x / (1 + exp(-x))", "quick_gelu", "gelu", "gelu, exact", "mish", "softsign",
  "logaddexp(-inf)", "bce of logits for 0", "bce of logits for 1"}  # fmt: skip
ENDS = np.array([s * x for x in SIZES for s in (1, -1)] + [nan])


def sigmoid(x):
  return np.exp(-np.logaddexp(0, -x))


def step(x, at=0.0):
  return np.where(x > at, 1.0, 0.0)


def phi(x):
  """The normal distribution's density and, below x, its mass."""
  tail = np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2
  return np.exp(-x * x / 2) / math.sqrt(2 * math.pi), tail


def tanh_gelu(x):
  k = math.sqrt(2 / math.pi)
  t = np.tanh(k * (x + 0.044715 * x**3))
  side = 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x)
  return 0.5 * x * (1 + t), 0.5 * (1 + t) + np.where(1 - t * t == 0, 0, side)


def mish(x):
  t = np.tanh(np.logaddexp(0, x))
  slope = (1 - t * t) * sigmoid(x)
  return x * t, t + np.where(slope == 0, 0, x * slope)


def silu(x, k=1.0):
  s = sigmoid(k * x)
  slope = k * s * sigmoid(-k * x)
  return x * s, s + np.where(slope == 0, 0, x * slope)


def acosh(x):
  return np.arccosh(x), 1 / (np.sqrt(np.abs(x - 1)) * np.sqrt(np.abs(x + 1))) + np.where(np.abs(x) < 1, nan, 0)


def power(p):
  def f(x):
    return x**p, (p * x ** (p - 1) if p else 0 * step(x))

  return f


# name: (here, (value, derivative) of float64); at kinks the derivative is PyTorch's
FUNCTIONS = {
  "exp": (lambda x: x.exp(), lambda x: (np.exp(x), np.exp(x))),
  "exp2": (lambda x: x.exp2(), lambda x: (np.exp2(x), np.exp2(x) * math.log(2))),
  "log": (lambda x: x.log(), lambda x: (np.log(x), 1 / x)),
  "log2": (lambda x: x.log2(), lambda x: (np.log2(x), 1 / x / math.log(2))),
  "log10": (lambda x: x.log10(), lambda x: (np.log10(x), 1 / x / math.log(10))),
  "sqrt": (lambda x: x.sqrt(), lambda x: (np.sqrt(x), 0.5 / np.sqrt(x))),
  "rsqrt": (lambda x: x.rsqrt(), lambda x: (1 / np.sqrt(x), -0.5 / (np.sqrt(x) * np.abs(x)))),
  "reciprocal": (lambda x: x.reciprocal(), lambda x: (1 / x, -1 / x / x)),
  "asin": (lambda x: x.asin(), lambda x: (np.arcsin(x), 1 / np.sqrt((1 - x) * (1 + x)))),
  "acos": (lambda x: x.acos(), lambda x: (np.arccos(x), -1 / np.sqrt((1 - x) * (1 + x)))),
  "atan": (lambda x: x.atan(), lambda x: (np.arctan(x), 1 / (1 + x * x))),
  "sinh": (lambda x: x.sinh(), lambda x: (np.sinh(x), np.cosh(x))),
  "cosh": (lambda x: x.cosh(), lambda x: (np.cosh(x), np.sinh(x))),
  "tanh": (lambda x: x.tanh(), lambda x: (np.tanh(x), 4 * sigmoid(2 * x) * sigmoid(-2 * x))),
  "asinh": (lambda x: x.asinh(), lambda x: (np.arcsinh(x), 1 / np.hypot(x, 1))),
  "acosh": (lambda x: x.acosh(), acosh),
  "atanh": (lambda x: x.atanh(), lambda x: (np.arctanh(x), 1 / ((1 - x) * (1 + x)))),
  "erf": (lambda x: x.erf(), lambda x: (np.vectorize(math.erf)(x), np.exp(-x * x) * 2 / math.sqrt(math.pi))),
  "sigmoid": (lambda x: x.sigmoid(), lambda x: (sigmoid(x), sigmoid(x) * sigmoid(-x))),
  "1 / (1 + exp(-x))": (lambda x: 1 / (1 + (-x).exp()), lambda x: (sigmoid(x), sigmoid(x) * sigmoid(-x))),
  "(1 + exp(-x)).reciprocal": (
    lambda x: (1 + (-x).exp()).reciprocal(),
    lambda x: (sigmoid(x), sigmoid(x) * sigmoid(-x)),
  ),
  "2 sigmoid(2 x) - 1": (
    lambda x: 2 * (2 * x).sigmoid() - 1,
    lambda x: (np.tanh(x), np.cosh(np.clip(x, -99, 99)) ** -2),
  ),
  "logsigmoid": (lambda x: x.logsigmoid(), lambda x: (-np.logaddexp(0, -x), sigmoid(-x))),
  "softplus": (lambda x: x.softplus(), lambda x: (np.logaddexp(0, x), sigmoid(x))),
  "softplus(0.5)": (lambda x: x.softplus(0.5), lambda x: (np.logaddexp(0, x / 2) * 2, sigmoid(x / 2))),
  "silu": (lambda x: x.silu(), silu),
  "swish": (lambda x: x.swish(), silu),
  "x / (1 + exp(-x))": (lambda x: x / (1 + (-x).exp()), silu),
  "quick_gelu": (lambda x: x.quick_gelu(), lambda x: silu(x, 1.702)),
  "gelu": (lambda x: x.gelu(), tanh_gelu),
  "gelu, exact": (
    lambda x: x.gelu("none"),
    lambda x: (x * phi(x)[1], phi(x)[1] + np.where(phi(x)[0] == 0, 0, x * phi(x)[0])),
  ),
  "mish": (lambda x: x.mish(), mish),
  "elu": (lambda x: x.elu(), lambda x: (np.where(x > 0, x, np.expm1(x)), np.where(x > 0, 1, np.exp(x)))),
  "celu": (
    lambda x: x.celu(2.0),
    lambda x: (np.where(x > 0, x, 2 * np.expm1(x / 2)), np.where(x > 0, 1, np.exp(x / 2))),
  ),
  "selu": (
    lambda x: x.selu(),
    lambda x: (
      SCALE * np.where(x > 0, x, ALPHA * np.expm1(x)),
      SCALE * np.where(x > 0, 1, ALPHA * np.exp(x)),
    ),
  ),
  "softsign": (lambda x: x.softsign(), lambda x: (x / (1 + np.abs(x)), (1 + np.abs(x)) ** -2)),
  "relu": (lambda x: x.relu(), lambda x: (np.maximum(x, 0), step(x))),
  "leaky_relu": (lambda x: x.leaky_relu(), lambda x: (np.where(x > 0, x, 0.01 * x), np.where(x > 0, 1, 0.01))),
  "relu6": (lambda x: x.relu6(), lambda x: (np.clip(x, 0, 6), step(x) * step(-x, -6))),
  "hardtanh": (lambda x: x.hardtanh(), lambda x: (np.clip(x, -1, 1), step(x, -1) * step(-x, -1))),
  "hardswish": (
    lambda x: x.hardswish(),
    lambda x: (x * np.clip(x + 3, 0, 6) / 6, np.where(x >= 3, 1, step(x, -3) * (2 * np.clip(x, -3, 3) + 3) / 6)),
  ),
  "abs": (lambda x: x.abs(), lambda x: (np.abs(x), np.sign(x))),
  "sign": (lambda x: x.sign(), lambda x: (np.sign(x), 0 * step(x))),
  "square": (lambda x: x.square(), lambda x: (x * x, 2 * x)),
  "floor": (lambda x: x.floor(), lambda x: (np.floor(x), 0 * step(x))),
  "trunc": (lambda x: x.trunc(), lambda x: (np.trunc(x), 0 * step(x))),
  "logaddexp(0)": (lambda x: x.logaddexp(0.0), lambda x: (np.logaddexp(0, x), sigmoid(x))),
  "logaddexp(-inf)": (lambda x: x.logaddexp(-inf), lambda x: (x, np.where(x > -inf, 1, 0.5))),
  "log of what is above 0": (
    lambda x: (x > 0).where(x.log(), 0),
    lambda x: (np.where(x > 0, np.log(x), 0), np.where(x > 0, 1 / x, 0)),
  ),
  "sqrt of what is above 0": (
    lambda x: (x > 0).where(x.sqrt(), 0),
    lambda x: (np.where(x > 0, np.sqrt(x), 0), np.where(x > 0, 0.5 / np.sqrt(x), 0)),
  ),
  "1/x but at 0": (
    lambda x: (x != 0).where(1 / x, 0),
    lambda x: (np.where(x != 0, 1 / x, 0), np.where(x != 0, -1 / x / x, 0)),
  ),
  "exp of what is below 50": (
    lambda x: (x < 50).where(x.exp(), 0),
    lambda x: (np.where(x < 50, np.exp(x), 0), np.where(x < 50, np.exp(x), 0)),
  ),
  "bce of logits for 0": (
    lambda x: x.binary_crossentropy_logits(x.zeros_like(), "none"),
    lambda x: (np.logaddexp(0, x), sigmoid(x)),
  ),
  "bce of logits for 1": (
    lambda x: x.binary_crossentropy_logits(x.ones_like(), "none"),
    lambda x: (np.logaddexp(0, -x), -sigmoid(-x)),
  ),
} | {f"x ** {p}": (lambda x, p=p: x**p, power(p)) for p in (0, 1, 2, 3, 7, 65, -1, -2, -3)}


def values(dtype):
  with np.errstate(over="ignore"):
    return np.unique(ENDS.astype(dtype)[:-1]).tolist() + [-0.0, nan]


def agree(got, want, rtol, tiny, what, x):
  """Equal up to rounding and what is less than `tiny`; zeros of either sign are equal."""
  bad = ~np.isclose(got, want, rtol, tiny, equal_nan=True)
  assert not bad.any(), f"{what}: " + ", ".join(f"{x[i]}: {got[i]}, not {want[i]}" for i in np.flatnonzero(bad)[:8])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one_number(name, dtype):
  f, reference = FUNCTIONS[name]
  x = np.array(values(dtype), dtype)
  with np.errstate(all="ignore"):
    value, slope = (np.asarray(v, np.float64).astype(dtype) for v in reference(x.astype(np.float64)))
  t = Tensor(x)
  y = f(t)
  (g,) = y.sum(dtype="float64").gradient(t)
  assert y.dtype is t.dtype
  asked = np.isfinite(x) if name in FINITE else x == x
  asked &= (name not in ("gelu", "hardswish")) | (np.abs(x) < 1e12)  # 6 x and the cube overflow, in PyTorch too
  known = ~np.isnan(slope) & asked
  rtol, tiny = {"float16": (4e-3, 1e-3), "float32": (2e-5, 5e-7), "float64": (1e-9, 1e-13)}[dtype]
  asked |= np.isnan(x)
  agree(y.numpy()[asked], value[asked], rtol, tiny, name, x[asked])
  agree(g.numpy()[known], slope[known], rtol, tiny, f"derivative of {name}", x[known])


ROWS = np.array(
  [
    [-inf, -inf, -inf],
    [-inf, 0, 1],
    [inf, 1, 2],
    [inf, inf, 1],
    [inf, -inf, 0],
    [nan, 1, 2],
    [1e4, -1e4, 0],
    [3e38, -3e38, 1],
    [3e38, 3e38, 3e38],
    [-3e38, -3e38, -3e38],
    [0, 0, 0],
    [100, -100, 88],
    [-inf, -inf, 5],
    [1e-45, 0, -0.0],
    [0, 2, 3],
  ],
  np.float32,
)
WEIGHTS = np.array([2.0, 3.0, 1.0])


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def log_sum(x):
  top = x.max(-1, keepdims=True)
  top = np.where(np.isinf(top), 0, top)
  return (top + np.log(np.exp(x - top).sum(-1, keepdims=True)))[:, 0]


def log_softmax(x):
  d = x - x.max(-1, keepdims=True)
  return d - np.log(np.exp(d).sum(-1, keepdims=True))


def others(x):
  return np.stack([np.delete(x, i, 1).prod(1) for i in range(x.shape[1])], 1)


# name: (here, values, derivatives of the sum of all values, of rows with weights 2, 3, 1)
OF_ROWS = {
  "softmax": (
    lambda x: x.softmax(-1),
    softmax,
    lambda x: softmax(x) * (WEIGHTS - (softmax(x) * WEIGHTS).sum(-1, keepdims=True)),
  ),
  "log_softmax": (lambda x: x.log_softmax(-1), log_softmax, lambda x: WEIGHTS - 6 * softmax(x)),
  "logsumexp": (
    lambda x: x.logsumexp(-1),
    log_sum,
    lambda x: np.where(np.isinf(x.max(-1, keepdims=True)), nan, softmax(x)),
  ),
  "cross_entropy": (
    lambda x: x.cross_entropy(Tensor([1] * x.shape[0]), "none"),
    lambda x: -log_softmax(x)[:, 1],
    lambda x: softmax(x) - np.eye(3)[1],
  ),
  "sparse_categorical_crossentropy": (
    lambda x: x.sparse_categorical_crossentropy(Tensor([1] * x.shape[0]), reduction="none"),
    lambda x: -log_softmax(x)[:, 1],
    lambda x: softmax(x) - np.eye(3)[1],
  ),
  "sum": (lambda x: x.sum(-1), lambda x: x.sum(-1), np.ones_like),
  "prod": (lambda x: x.prod(-1), lambda x: x.prod(-1), others),
  "max": (
    lambda x: x.max(-1),
    lambda x: x.max(-1),
    lambda x: (hit := x == x.max(-1, keepdims=True)) / hit.sum(-1, keepdims=True),
  ),
  "std": (lambda x: x.std(-1), lambda x: x.std(-1, ddof=1), lambda x: std_slope(x)),
}


def std_slope(x):
  s, far = x.std(-1, ddof=1)[:, None], x - x.mean(-1, keepdims=True)
  return np.where(s == 0, 0, far / (2 * s))


TOO_GREAT = {"std": 1e19, "prod": 1e19}  # whose squares or products do not fit


@pytest.mark.parametrize("name", OF_ROWS)
def test_functions_of_rows(name):
  f, value, slope = OF_ROWS[name]
  rows = np.array(
    [r for r in ROWS if not 1e-45 <= np.abs(r).max() < 1e-20 and not TOO_GREAT.get(name, inf) < np.abs(r).max() < inf]
  )
  t = Tensor(rows)
  y = f(t)
  (g,) = (y * Tensor(WEIGHTS.astype(np.float32)) if y.ndim == 2 else y).sum(dtype="float64").gradient(t)
  with np.errstate(all="ignore"):
    wide = rows.astype(np.float64)
    want, want_slope = (np.asarray(h(wide), np.float64).astype(np.float32) for h in (value, slope))
  for row, got, got_slope, v, d in zip(rows, y.numpy(), g.numpy(), want, want_slope):
    agree(np.atleast_1d(got), np.atleast_1d(v), 1e-5, 1e-7, f"{name} of {row}", row)
    known = ~np.isnan(d) & ~np.isnan(np.atleast_1d(v))
    agree(got_slope[known], d[known], 1e-5, 1e-6, f"derivative of {name} of {row}", row[known])


def test_what_a_where_leaves_out_adds_no_nan():
  x, y = Tensor([0.0, 4.0]), Tensor([0.0, -2.0])
  gx, gy = (x > 0).where(y / x + x.sqrt() + x.pow(-0.5) + x.log() + x.reciprocal(), 1.0).sum().gradient(x, y)
  np.testing.assert_allclose(gx.numpy(), [0, 2 / 16 + 0.25 - 0.5 / 8 + 0.25 - 1 / 16], rtol=1e-6)
  np.testing.assert_allclose(gy.numpy(), [0, 0.25])


def test_the_derivative_of_a_sigmoid_is_not_lost_far_below_0():
  x = Tensor([-50.0, -80.0])
  np.testing.assert_allclose(x.sigmoid().log().sum().gradient(x)[0].numpy(), [1, 1], rtol=1e-6)
  (g,) = x.sigmoid().sum().gradient(x)
  np.testing.assert_allclose(g.numpy(), np.exp([-50, -80]), rtol=1e-5)


def test_normalizing_zeros():
  x = Tensor.zeros(2, 3)
  y = x.normalize()
  (g,) = (y * Tensor(WEIGHTS.astype(np.float32))).sum().gradient(x)
  assert y.tolist() == [[0, 0, 0]] * 2
  np.testing.assert_allclose(g.numpy(), np.tile(WEIGHTS * 1e12, (2, 1)), rtol=1e-6)


@pytest.mark.parametrize("y", [0.0, 1.0, 0.25])
def test_binary_crossentropy_at_0_and_1(y):
  """0 log 0 is 0; what is sure and wrong is infinite."""
  p = np.array([0, 1, 0.5, 1e-10], np.float32)
  t = Tensor(p)
  loss = t.binary_crossentropy(Tensor.full((4,), y), "none")
  (g,) = loss.sum().gradient(t)
  with np.errstate(all="ignore"):
    wide = p.astype(np.float64)
    terms = (y, np.log(wide), 1 / wide), (1 - y, np.log(1 - wide), -1 / (1 - wide))
    want, slope = (-sum(w * t[i] if w else 0 * wide for w, *t in terms) for i in (0, 1))
  np.testing.assert_allclose(loss.numpy(), want, 1e-6, 1e-7)
  np.testing.assert_allclose(g.numpy(), slope, 1e-6)


TORCH = {
  "sigmoid", "exp", "log", "sqrt", "rsqrt", "reciprocal", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
  "acosh", "atanh", "erf", "logsigmoid", "softplus", "silu", "mish", "elu", "selu", "celu", "softsign", "relu", "relu6",
  "hardswish", "square", "abs",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TORCH))
def test_nan_only_where_pytorch_has_it(name):
  torch = pytest.importorskip("torch")
  x = np.array(values("float32"), np.float32)[:-1]
  theirs = torch.tensor(x, requires_grad=True)
  out = (getattr(torch, name, None) or getattr(torch.nn.functional, name))(theirs)
  (slope,) = torch.autograd.grad(out.sum(), theirs)
  t = Tensor(x)
  y = getattr(t, name)()
  (g,) = y.sum(dtype="float64").gradient(t)
  for what, got, want in (("value", y, out.detach()), ("derivative", g, slope)):
    extra = np.isnan(got.numpy()) & ~np.isnan(want.numpy())
    assert not extra.any(), f"{what} of {name} at {x[extra]}"


EMPTY = [((0,), None), ((0,), 0), ((0, 3), 0), ((3, 0), 1), ((2, 0, 3), (0, 1))]
FLOATS, WHOLE = ("float64", "float32", "float16"), ("int64", "int32", "int8", "uint8", "bool")


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
@pytest.mark.parametrize("shape,axis", EMPTY)
def test_reductions_of_nothing(shape, axis, dtype):
  x = np.zeros(shape, dtype)
  for name in ("sum", "prod", "mean", "any", "all"):
    got = getattr(Tensor(x), name)(axis).numpy()
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning) if name == "mean" else contextlib.nullcontext():
      want = np.asarray(getattr(np, name)(x, axis))
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want, name)
    np.testing.assert_array_equal(np.signbit(got * 1.0)[want == 0], False, f"{name}: -0.0")
  least = Tensor(x).max(axis).numpy(), Tensor(x).min(axis).numpy()
  info = np.iinfo(dtype) if dtype in WHOLE[:-1] else None
  ends = (-inf, inf) if dtype in FLOATS else (False, True) if info is None else (info.min, info.max)
  for got, want in zip(least, ends):  # numpy raises
    np.testing.assert_array_equal(got, np.full(got.shape, want, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_products_of_nothing(dtype):
  x, y = Tensor(np.zeros((2, 0), dtype)), Tensor(np.zeros((0, 3), dtype))
  for out in (x @ y, Tensor.einsum("ij,jk->ik", x, y), (x @ y).sum(0), x.sum(1, keepdim=True), x.cumsum(1).sum(1)):
    assert not np.signbit(out.numpy()).any() and not out.numpy().any()


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_there_is_no_greatest_of_nothing(name):
  for t, axis in ((Tensor.zeros(0), None), (Tensor.zeros(0), 0), (Tensor.zeros(3, 0), 1), (Tensor.zeros(3, 0), None)):
    with pytest.raises(ValueError, match=rf"{name}: there is no element.*\n(.|\n)*fix: "):
      getattr(t, name)(axis)
  assert getattr(Tensor.zeros(3, 0), name)(0).shape == (0,)
