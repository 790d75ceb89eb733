"""Elementwise methods against numpy, with their gradients."""

import math

import numpy as np
import pytest
from tensor_oracle import close

from tinygrad import Tensor, dtypes


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


def test_gradient_of_relu_at_zero_is_zero():
  x = Tensor([0.0, -1.0, 2.0])
  (g,) = x.relu().sum().gradient(x)
  close(g, [0.0, 0.0, 1.0])


def test_float_functions_of_integers_are_floats():
  assert Tensor([4]).sqrt().dtype is dtypes.float32
  assert (Tensor([1]) / 2).dtype is dtypes.float32
  close(Tensor([4, 9]).sqrt(), [2.0, 3.0])
  close(Tensor([2, 3]) ** Tensor([3, 2]), [8, 9])


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
  (lambda: Tensor([1.0]).clamp(), ValueError, "clamp: neither min_ nor max_ is given"),
  (lambda: (Tensor([True]) != Tensor([1, 2])).where(Tensor([1, 2, 3]), 0), ValueError, "condition and branches"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call, error, message):
  with pytest.raises(error, match=message):
    call()


@pytest.mark.parametrize("divisor", [math.inf, -math.inf, 1e30, -3.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainders_by_a_divisor_out_of_reach(divisor, dtype):
  x = np.array([1.0, -1.0, 0.0, 1e-30, math.inf, math.nan], dtype)
  with np.errstate(invalid="ignore"):
    close(Tensor(x).mod(divisor), np.mod(x, dtype(divisor)))
    close(Tensor(x).fmod(divisor), np.fmod(x, dtype(divisor)))
  close(Tensor(-1.0).mod(leaf := Tensor(3.0)).gradient(leaf)[0], 1.0)  # -floor(x / y)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 70])
def test_a_bool_to_the_power_of_an_integer_is_an_integer(n):
  x = Tensor([True, False])
  got = x**n
  assert got.dtype is (x * n).dtype is dtypes.int32  # as a bool and a Python integer are in each arithmetic operation
  assert got.tolist() == [1, int(n == 0)]


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_powers_of_integers_wrap_around_as_products_do(name):
  """Of exponents beyond 63, too, which were cut off."""
  most = np.iinfo(name).max
  x, y = np.meshgrid(np.array([0, 1, 2, 3, 7, most, most - 3], name), np.array([0, 1, 63, 64, 65, 100, most], name))
  bits = 8 * x.itemsize
  want = [pow(int(a), int(b), 1 << bits) for a, b in zip(x.ravel(), y.ravel())]
  want = np.array(want, f"uint{bits}").view(name).reshape(x.shape)
  assert (Tensor(x) ** Tensor(y)).numpy().tolist() == want.tolist()
  assert (Tensor(x) ** 100).numpy().tolist() == [want[5].tolist()] * len(x)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_shifts_by_the_width_or_more_leave_the_sign(name, device):
  x = np.array([-1, 1, -2, 5, 100, -100]).astype(name)
  width = 8 * x.itemsize
  amounts = [np.array([width, width + 3, width - 1, 0, 1, width], name), *(np.array(k, name) for k in (1, width, 100))]
  if x.dtype.kind == "i":
    amounts.append(np.array([-1, -width, -width - 1, -3, 0, 1], name))
  for y in amounts:
    numbers = Tensor(y, device=device) if y.ndim else int(y)
    np.testing.assert_array_equal(Tensor(x, device=device).lshift(numbers).numpy(), np.left_shift(x, y))
    np.testing.assert_array_equal(Tensor(x, device=device).rshift(numbers).numpy(), np.right_shift(x, y))
  assert np.right_shift(x, np.array(width, name))[0] == (-1 if x.dtype.kind == "i" else 0)


def test_bits_of_bools_are_bytes():
  a = np.array([True, False, True, True])
  for x in (Tensor(a), Tensor(a).realize(), Tensor(a).shard(("CPU:0", "CPU:1"), axis=0)):
    assert x.bitcast(dtypes.uint8).tolist() == a.view(np.uint8).tolist()
    assert x.bitcast(dtypes.uint16).tolist() == a.view(np.uint16).tolist()
  words = np.array([0, 1, 256, 2], np.uint16)
  assert Tensor(words).bitcast(dtypes.bool).tolist() == (words.view(np.uint8) != 0).tolist()


@pytest.mark.parametrize("dtype", ("int8", "uint8", "int32", "uint64"))
def test_a_bound_beyond_a_type_is_none(dtype):
  """As of numpy.clip; a least one that no number of the type reaches is an error."""
  a = np.array([1, 100, 7], dtype)
  low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
  for bounds in ((low - 5, high + 5), (low - 5, 50), (5, high + 5), (low, high), (low - 5, None), (None, high + 5)):
    x = Tensor(a).clamp(*bounds)
    assert x.dtype.name == dtype
    assert x.tolist() == [min(max(v, bounds[0] or low), high if bounds[1] is None else bounds[1]) for v in (1, 100, 7)]
  with pytest.raises(OverflowError, match="clamp"):
    Tensor(a).clamp(high + 1)


def test_operators_that_python_has_beside_the_signs():
  x = np.array([-2.5, -0.5, 0.5, 1.5, 7.25], np.float32)
  close(+Tensor(x), x)
  close(round(Tensor(x)), np.round(x))
  for ours, numbers in ((divmod(Tensor(x), 2), divmod(x, 2)), (divmod(7, Tensor(x)), divmod(7, x))):
    for got, want in zip(ours, numbers, strict=True):
      close(got, want)
  n = np.array([-7, 7, 5], np.int32)
  for got, want in zip(divmod(Tensor(n), Tensor(n[::-1].copy())), divmod(n, n[::-1]), strict=True):
    close(got, want)


def test_a_type_equals_what_others_call_it():
  torch = pytest.importorskip("torch", reason="PyTorch is not installed")
  same = {"float32": torch.float32, "int64": torch.long, "bfloat16": torch.bfloat16, "fp8e5m2": torch.float8_e5m2}
  for name, theirs in same.items():
    ours = dtypes.by_name[name]
    assert ours == theirs and theirs == ours and not ours != theirs and ours in (theirs, None)
    assert ours == name and name == ours
    assert all((d == theirs) == (d is ours) for d in dtypes.all)
  assert dtypes.float32 == np.float32 == dtypes.float32 == np.dtype("float32") == dtypes.float32
  for other in (np.float64, np.complex64, torch.complex64, torch.int32, "float31", "int32", None, 4, object(), float):
    assert dtypes.float32 != other and other != dtypes.float32 and hash(dtypes.float32) == hash(dtypes.float)
