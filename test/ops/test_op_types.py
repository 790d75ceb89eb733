"""Arithmetic of every type beside numpy (ml_dtypes for bfloat16 and fp8): wrapping integers, shifts, division, casts,
rounding; compiled and interpreted."""

import numpy as np
import pytest

from tinygrad import Context, Tensor, dtypes
from tinygrad.dtype import to_numpy_dtype

MODES = [0, 1]  # compiled, interpreted
NARROW = [dtypes.float16, dtypes.bfloat16, *dtypes.fp8s]


def edges(kind):
  info = np.iinfo(kind)
  low = [-1, -2, -7, info.min + 1] if info.min < 0 else []
  return np.array([info.min, info.max, 0, 1, 2, info.max - 1, info.max // 3, 7, *low], kind)


def pairs(x, y):
  return np.repeat(x, len(y)), np.tile(y, len(x))


BINARY = {
  "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "&": lambda x, y: x & y,
  "|": lambda x, y: x | y, "^": lambda x, y: x ^ y, "<": lambda x, y: x < y, "<=": lambda x, y: x <= y,
  "==": lambda x, y: x == y, "neg": lambda x, y: -x, "~": lambda x, y: ~x,
  "abs": lambda x, y: abs(x) if isinstance(x, np.ndarray) else x.abs(),
}  # fmt: skip
NO_OPERATOR = {
  "//": (lambda x, y: x // y, lambda x, y: np.where(y == 0, 0, x // np.where(y == 0, 1, y))),
  "%": (lambda x, y: x % y, lambda x, y: np.where(y == 0, 0, x % np.where(y == 0, 1, y))),
  "maximum": (lambda x, y: x.maximum(y), np.maximum),
  "minimum": (lambda x, y: x.minimum(y), np.minimum),
  "x ** 3": (lambda x, y: x**3, lambda x, y: x * x * x),
  "sort": (lambda x, y: x.sort()[0], lambda x, y: np.sort(x)),
  "argmin": (lambda x, y: x.argmin(), lambda x, y: np.argmin(x)),
  "to float32": (lambda x, y: x.float(), lambda x, y: x.astype(np.float32)),
}
BINARY_ROWS = {**{k: (f, f) for k, f in BINARY.items()}, **NO_OPERATOR}


@pytest.mark.parametrize("interpreted", MODES)
@pytest.mark.parametrize("dtype", dtypes.ints, ids=lambda d: d.name)
def test_integers_wrap_and_divide_as_numpys(dtype, interpreted):
  kind = to_numpy_dtype(dtype)
  x, y = pairs(edges(kind), edges(kind))
  counts = pairs(edges(kind), np.array([0, 1, kind.itemsize * 8 - 1, kind.itemsize * 8, kind.itemsize * 8 + 3], kind))
  with Context(INTERPRET=interpreted), np.errstate(all="ignore"):
    for name, (ours, theirs) in BINARY_ROWS.items():
      np.testing.assert_array_equal(ours(Tensor(x), Tensor(y)).numpy(), theirs(x, y), f"{dtype} {name}")
    for name, f in (("<<", lambda x, y: x << y), (">>", lambda x, y: x >> y)):
      np.testing.assert_array_equal(f(*map(Tensor, counts)).numpy(), f(*counts), f"{dtype} {name}")
    for target in (*dtypes.ints, dtypes.bool):
      np.testing.assert_array_equal(Tensor(x).cast(target).numpy(), x.astype(to_numpy_dtype(target)), f"to {target}")
    for name in ("sum", "prod"):
      np.testing.assert_array_equal(getattr(Tensor(x), name)(dtype=dtype).numpy(), getattr(x, name)(dtype=kind), name)


HALVES = [1 + 2**-11, 1 + 3 * 2**-11, 2049, 2051, 65504, 65519, 65520, 2**-24, 2**-25, 3 * 2**-26]  # float16's ties
EIGHTHS = [
  448,
  464,
  465,
  480,
  57344,
  61439,
  61440,
  61441,
  2**-10,
  2**-17,
  1 + 2**-8,
  1 + 3 * 2**-8,
]  # fp8's, bfloat16's


def same(got, want):
  """Equal values, signs of zero included; any nan is one."""
  a, b = got.astype(np.float64), want.astype(np.float64)
  return bool((((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))).all())


def values(t):
  """The elements in their own type."""
  return t.bitcast(f"uint{t.dtype.bitsize}").numpy().view(to_numpy_dtype(t.dtype))


@pytest.mark.parametrize("interpreted", MODES)
@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.name)
def test_narrow_floats_round_once_to_even(dtype, interpreted):
  rng = np.random.default_rng(0)
  ties = np.array([*HALVES, *EIGHTHS, np.inf, np.nan, 0.0], np.float32)
  x = np.concatenate([rng.integers(0, 1 << 32, 4000).astype(np.uint32).view(np.float32), ties, -ties])
  kind = to_numpy_dtype(dtype)
  with Context(INTERPRET=interpreted), np.errstate(all="ignore"):
    assert same(values(Tensor(x).cast(dtype)), x.astype(kind))
    every = np.arange(1 << dtype.bitsize, dtype=f"uint{dtype.bitsize}")
    t, v = Tensor(every).bitcast(dtype), every.view(kind)
    assert same(t.float().numpy(), v.astype(np.float32)) and same(t.double().numpy(), v.astype(np.float64))
    assert same(values(-t), -v) and same(values(t.abs()), np.abs(v)) and same(values(t + t), v + v)
    assert same(values(t * t.flip(0)), v * v[::-1]) and same(values(t * 1.1), v * kind.type(1.1))
    np.testing.assert_array_equal((t < t.flip(0)).numpy(), v < v[::-1])
    np.testing.assert_array_equal(t.isnan().numpy(), np.isnan(v))


@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.name)
def test_float64_is_rounded_once(dtype):
  """Beside a tie of the narrow type, by less than float32 can tell."""
  mantissa = dtypes.finfo(dtype)[1]
  x = np.array(
    [1 + 2.0 ** -(mantissa + 1) + 2**-40, 1 + 2.0 ** -(mantissa + 1) - 2**-40, -1 - 2.0 ** -(mantissa + 1) - 2**-40]
  )
  assert Tensor(x).cast(dtype).float().tolist() == [1 + 2.0**-mantissa, 1, -1 - 2.0**-mantissa]


def test_floats_to_integers_truncate_and_small_targets_wrap_as_pytorchs():
  x = Tensor([-1.0, 300.0, 2.9, -2.9, 0.0])
  assert x.cast("uint8").tolist() == [255, 44, 2, 254, 0]
  assert x.cast("int8").tolist() == [-1, 44, 2, -2, 0]
  assert Tensor([2.0**63, 2.0**63 + 2048], dtype=dtypes.float64).cast("uint64").tolist() == [2**63, 2**63 + 2048]
  assert Tensor([2**64 - 1, 2**63], dtype=dtypes.uint64).double().tolist() == [2.0**64, 2.0**63]


def test_weak_numbers_and_promotion():
  """A Python number takes the tensor's type where that holds its kind; two tensors take the least type that holds both
  (https://docs.jax.dev/en/latest/jep/9407-type-promotion.html)."""
  for dtype in dtypes.all:
    t = Tensor([1], dtype=dtype)
    number = dtypes.default_int if dtype is dtypes.bool else dtype
    assert (t + 2).dtype is number and (2 * t).dtype is number and (t + True).dtype is dtype
    assert (t + 2.5).dtype is (dtype if dtypes.is_float(dtype) else dtypes.default_float)
  for a, b, both in (
    ("uint8", "int8", "int16"),
    ("uint32", "int32", "int64"),
    ("uint64", "int8", "float32"),
    ("bool", "uint8", "uint8"),
    ("int64", "float16", "float16"),
    ("float16", "bfloat16", "float32"),
    ("fp8e4m3", "fp8e5m2", "float16"),
    ("fp8e4m3", "int32", "fp8e4m3"),
    ("float32", "float64", "float64"),
    ("bool", "bool", "bool"),
  ):
    assert (Tensor([1], dtype=a) + Tensor([1], dtype=b)).dtype.name == both
    assert (Tensor([1], dtype=b) * Tensor([1], dtype=a)).dtype.name == both


def test_the_default_types_are_settings():
  with Context(DEFAULT_FLOAT="HALF"):
    assert dtypes.default_float is dtypes.half and Tensor([1.5]).dtype is Tensor([1]).sqrt().dtype is dtypes.half
  dtypes.default_float, dtypes.default_int = dtypes.float64, dtypes.int64
  assert Tensor.ones(2).dtype is dtypes.float64 and Tensor([1]).dtype is dtypes.int64
  dtypes.default_float, dtypes.default_int = "float32", dtypes.int32
  assert Tensor([1, 2.5]).dtype is dtypes.float32 and dtypes.fields()["int8"].bitsize == 8


def test_bitcast_regroups_the_last_dim():
  x = np.arange(-8, 8, dtype=np.int16).reshape(2, 8)
  for target in ("uint8", "uint32", "float32", "int64", "float64"):
    np.testing.assert_array_equal(
      Tensor(x).bitcast(target).bitcast("uint8").numpy(), x.view(to_numpy_dtype(getattr(dtypes, target))).view(np.uint8)
    )
  with pytest.raises(ValueError, match="does not divide"):
    Tensor([1, 2, 3], dtype=dtypes.uint8).bitcast(dtypes.float32)
