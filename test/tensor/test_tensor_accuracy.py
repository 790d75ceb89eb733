"""Errors of functions and of long sums against wider types: no more than about the rounding of the result."""

import math

import numpy as np
import pytest

from tinygrad import Device, Tensor, dtypes, nn

FUSED = bool({"fma", "neon"} & set(Device["CPU"].target.features))  # a product and a sum are rounded once
RNG = np.random.default_rng(0)
SPREAD = np.exp(RNG.uniform(-40, 4, 4000)) * np.where(RNG.random(4000) < 0.5, -1, 1)
ANY = np.concatenate([RNG.uniform(-20, 20, 8000), SPREAD])
INSIDE = np.concatenate(
  [RNG.uniform(-1, 1, 8000), 1 - np.exp(RNG.uniform(-14, 0, 4000)), -1 + np.exp(RNG.uniform(-14, 0, 999))]
)
BEYOND_1 = 1 + np.exp(RNG.uniform(-14, 40, 8000))


@pytest.mark.parametrize(
  ("function", "oracle", "x", "bound"),
  [
    ("cos", np.cos, ANY, 1.2),
    ("tan", np.tan, ANY, 0.51),
    ("atan", np.arctan, ANY, 0.51),
    ("sinh", np.sinh, ANY, 0.51),
    ("cosh", np.cosh, ANY, 0.51),
    ("asinh", np.arcsinh, ANY, 0.51),
    ("asin", np.arcsin, INSIDE, 0.51),
    ("acos", np.arccos, INSIDE, 0.51),
    ("atanh", np.arctanh, INSIDE, 0.51),
    ("acosh", np.arccosh, BEYOND_1, 0.51),
    ("log2", np.log2, BEYOND_1, 0.51),
    ("log10", np.log10, BEYOND_1, 0.51),
    ("exp2", np.exp2, ANY, 1 if FUSED else 1.2),
    ("elu", lambda x: np.where(x > 0, x, np.expm1(x)), ANY, 1.7),
  ],
)
def test_functions_of_float32(function, oracle, x, bound):
  x = x.astype(np.float32)
  want = oracle(x.astype(np.longdouble))
  error = np.abs(getattr(Tensor(x), function)().numpy() - want)
  assert (error / np.spacing(np.abs(want).astype(np.float32))).max() <= bound


@pytest.mark.parametrize("n", [5, 7, -6, 23])
def test_whole_powers_of_float32(n):
  x = (np.random.default_rng(1).uniform(0.5, 2, 5000)).astype(np.float32)
  want = x.astype(np.longdouble) ** n
  assert (np.abs((Tensor(x) ** n).numpy() - want) / np.spacing(want.astype(np.float32))).max() <= 0.51


@pytest.mark.parametrize("function", ["atan", "asin", "acos"])
def test_inverses_of_float64(function):
  x = np.random.default_rng(2).uniform(-1, 1, 4000)
  want = {"atan": np.arctan, "asin": np.arcsin, "acos": np.arccos}[function](x.astype(np.longdouble))
  assert (np.abs(getattr(Tensor(x), function)().numpy() - want) / np.spacing(np.abs(want).astype(float))).max() <= 3


@pytest.mark.parametrize("n", [33, 64, 300, 1024])
def test_running_sums_lose_no_more_than_their_rounding(n):
  x = np.random.default_rng(3).standard_normal((8, n)).astype(np.float32)
  want = np.cumsum(x.astype(np.float64), 1)
  assert (np.abs(Tensor(x).cumsum(1).numpy() - want) <= 0.51 * np.spacing(np.abs(want).astype(np.float32))).all()


@pytest.mark.parametrize("n", [1025, 5000])
def test_long_running_sums_lose_little_more_than_their_rounding(n):
  """On average over eight arrays: the greatest loss in one of them is by chance between 1 and 1.6 of its rounding."""
  lost = []
  for seed in range(8):
    x = np.random.default_rng(seed).standard_normal((8, n)).astype(np.float32)
    want = np.cumsum(x.astype(np.float64), 1)
    lost.append(np.abs(Tensor(x).cumsum(1).numpy() - want).max() / np.abs(want.astype(np.float32) - want).max())
  assert np.mean(lost) <= 1.25 and max(lost) <= 1.7


@pytest.mark.parametrize("shape", [(10000, 256), (1000, 256), (16, 300000), (4000, 4096)])
def test_long_sums_lose_little(shape):
  x = np.random.default_rng(4).random(shape).astype(np.float32)
  axis = int(np.argmax(shape))
  want = x.astype(np.float64).sum(axis)
  error = np.sqrt(np.mean((Tensor(x).sum(axis).numpy() / want - 1) ** 2))
  assert error < 9e-8


def test_infinity_within_a_long_sum():
  x = np.ones((3, 20000), np.float32)
  x[0, 10], x[1, 15000], x[2, 5], x[2, 19000] = np.inf, -np.inf, np.inf, -np.inf
  np.testing.assert_array_equal(Tensor(x).sum(1).numpy(), [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("axis", [0, 1])
def test_variance_of_what_lies_far_from_zero(axis):
  x = (np.random.default_rng(5).standard_normal((500, 500)) + 1e4).astype(np.float32)
  want = x.astype(np.float64).var(axis, ddof=1)
  np.testing.assert_allclose(Tensor(x).var(axis).numpy(), want, rtol=6e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["asin", "atan", "sinh", "tan", "sin", "tanh", "asinh", "atanh", "erf"])
def test_odd_functions_keep_the_sign_of_0(name, dtype):
  """Mutant: x + x³·P(x²) where P is below 0."""
  assert np.signbit(getattr(Tensor(np.array([0.0, -0.0], dtype)), name)().numpy()).tolist() == [False, True]


@pytest.mark.parametrize("greatest", [1e2, 1e4, 1e6, 1e8])
def test_remainders_and_whole_quotients_of_floats_are_numpys(greatest):
  """Every bit, with and without fused multiply-adds: x == x // y * y + x % y, although x / y may round to a whole."""
  numbers = np.random.default_rng(0)
  x = (numbers.standard_normal(4000) * greatest).astype(np.float32)
  y = (numbers.uniform(0.5, 3, 4000) * numbers.choice([-1, 1], 4000)).astype(np.float32)
  assert (Tensor(x) % Tensor(y)).numpy().tolist() == (x % y).tolist()
  exact = np.floor(x.astype(np.float64) / y)
  assert (Tensor(x) // Tensor(y)).numpy().tolist() == exact.astype(np.float32).tolist()
  assert greatest > 1e6 or (exact == x // y).all()
  assert Tensor(x).fmod(Tensor(y)).numpy().tolist() == np.fmod(x, y).tolist()
  assert greatest < 1e6 or (np.floor(x / y) != exact).any()  # the quotient as it is rounded is another


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("greatest", [1e2, 1e4, 1e9, 1e15])
def test_remainders_in_a_type_that_nothing_is_wider_than_are_numpys(greatest, dtype):
  """The whole quotient times the divisor is exact in parts; where x / y rounds up, the sign was the other."""
  numbers = np.random.default_rng(0)
  greatest = min(greatest, float(np.finfo(dtype).max) / 8)
  x = (numbers.standard_normal(4000) * greatest).astype(dtype)
  y = (numbers.uniform(0.5, 3, 4000) * numbers.choice([-1, 1], 4000)).astype(dtype)
  x[:2000] = (np.round(x[:2000] / y[:2000]) * y[:2000]).astype(dtype)  # where the quotient is nearly whole
  assert Tensor(x).fmod(Tensor(y)).numpy().tolist() == np.fmod(x, y).tolist()
  assert (Tensor(x) % Tensor(y)).numpy().tolist() == (x % y).tolist()
  naive = x - np.trunc(x / y) * y
  assert dtype is np.float16 or (naive != np.fmod(x, y)).any()


def test_remainders_of_float64_have_the_gradients_of_what_is_subtracted():
  """d fmod(x, y) = dx - trunc(x / y) dy, also where x / y rounds up to the next whole."""
  x, y = Tensor(np.array([7.0, -7.0, 1e16, 1.0])), Tensor(np.array([2.0, 2.0, 7.0, 0.1]))
  gx, gy = x.fmod(y).sum().gradient(x, y)
  assert gx.tolist() == [1.0] * 4 and gy.tolist() == [-3.0, 3.0, -float(10**16 // 7), -9.0]


def test_lerp_ends_where_it_should():
  """At 1 it is the end, whatever was lost of it in end - x; as PyTorch's."""
  x, end = Tensor([1e8, -1e8, 1.0]), Tensor([1.0, 3.0, 2.0])
  assert x.lerp(end, 1.0).tolist() == x.lerp(end, Tensor([1.0])).tolist() == [1.0, 3.0, 2.0]
  assert x.lerp(end, 0.0).tolist() == x.lerp(end, Tensor(0.0)).tolist() == [1e8, -1e8, 1.0]
  for w in (0.25, 0.75, Tensor(0.25), Tensor(0.75)):
    a, b, weight = Tensor(3.0), Tensor(5.0), w if isinstance(w, Tensor) else Tensor(w)
    ga, gb, gw = a.lerp(b, weight).gradient(a, b, weight)
    assert (ga.item(), gb.item(), gw.item()) == (1 - weight.item(), weight.item(), 2.0)
    assert a.lerp(b, w).item() == 3 + 2 * weight.item()


HALVES = np.array([[300, 400], [1e-4, 2e-4], [60000, 3], [-500, 500]], np.float16)
HALF_STATISTICS = [
  ("std", lambda x: x.std(1), lambda x: x.std(1, ddof=1)),
  ("std of all", lambda x: x.std(), lambda x: x.std(ddof=1)),
  ("normalize", lambda x: x.normalize(dim=1), lambda x: x / np.sqrt((x * x).sum(1, keepdims=True))),
  ("normalize by 3", lambda x: x.normalize(3, dim=1), lambda x: x / np.cbrt((abs(x) ** 3).sum(1, keepdims=True))),
  ("layernorm", lambda x: x.layernorm(), lambda x: centred(x.T).T),
  ("batchnorm", lambda x: trained(x.reshape(4, 2, 1)), lambda x: centred(x)[..., None]),
]  # fmt: skip


def centred(x):
  return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def trained(x):
  with Tensor.train():
    return nn.BatchNorm(2, affine=False)(x)


@pytest.mark.parametrize(("name", "call", "oracle"), HALF_STATISTICS, ids=[s[0] for s in HALF_STATISTICS])
def test_statistics_of_halves_are_rounded_once(name, call, oracle):
  """Squares beyond 65,504 made them infinite, or what is divided by them 0."""
  got = call(Tensor(HALVES))
  assert got.dtype is dtypes.float16
  want = oracle(HALVES.astype(np.float64)).astype(np.float16)
  np.testing.assert_allclose(got.numpy().astype(np.float64), want.astype(np.float64), rtol=2e-3, atol=1e-3)
  assert np.isfinite(want).all()


def test_a_running_variance_of_halves_is_finite():
  norm = nn.BatchNorm(1)
  with Tensor.train():
    norm(Tensor(np.array([[300.0], [-300.0]], np.float16))).realize()
  assert norm.running_var.item() == pytest.approx(0.9 + 0.1 * 180000)


def test_whole_quotients_of_floats_at_their_ends():
  x = np.array([1.0, 6.0, -1.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.0, -1.0, 1.0], np.float32)
  y = np.array([0.1, 0.2, 0.1, 2, 2, 1, 0.0, 0.0, 0.0, np.inf, -np.inf], np.float32)
  with np.errstate(all="ignore"):
    np.testing.assert_array_equal((Tensor(x) // Tensor(y)).numpy(), x // y)
    np.testing.assert_array_equal(
      (Tensor(x).half() // Tensor(y).half()).numpy(), x.astype(np.float16) // y.astype(np.float16)
    )
    np.testing.assert_array_equal(
      (Tensor(x) / Tensor(y)).trunc().numpy(), Tensor(x).div(Tensor(y), rounding_mode="trunc").numpy()
    )


ERF = np.vectorize(math.erf)
SCALE, ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717  # of the paper
ACTIVATIONS = {
  "selu": lambda x: SCALE * np.where(x > 0, x, ALPHA * np.expm1(x)),
  "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
  "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
  "gelu": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
  "erf": ERF,
  "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
  "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
  "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
  "silu": lambda x: x / (1 + np.exp(-x)),
  "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
  "softplus": lambda x: np.log1p(np.exp(x)),
  "logsigmoid": lambda x: -np.log1p(np.exp(-x)),
  "softsign": lambda x: x / (1 + abs(x)),
  "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
  "tanh": np.tanh,
  "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
}


@pytest.mark.parametrize("function", ACTIVATIONS)
def test_activations_of_float64(function):
  """A constant with six digits is off by 1e-6."""
  x = np.linspace(-6, 6, 97)
  np.testing.assert_allclose(getattr(Tensor(x), function)().numpy(), ACTIVATIONS[function](x), rtol=1e-13, atol=1e-15)


def test_exact_gelu_of_float64():
  x = np.linspace(-3, 6, 97)
  np.testing.assert_allclose(Tensor(x).gelu("none").numpy(), x / 2 * (1 + ERF(x / math.sqrt(2))), rtol=1e-13)
