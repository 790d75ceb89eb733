"""Reductions, softmax, running sums and searches against numpy, with their gradients."""

import math

import numpy as np
import pytest
from tensor_oracle import check, close, normal

from tinygrad import Tensor, dtypes

X = (2, 3, 4)


def test_reduce_of_nothing():
  close(Tensor.zeros(0).sum(), np.float32(0))
  close(Tensor.zeros(0).prod(), np.float32(1))
  close(Tensor.zeros(2, 0).sum(1), np.zeros(2, np.float32))
  close(Tensor.zeros(0, 2).max(1), np.zeros(0, np.float32))
  assert Tensor.zeros(0).max().item() == -math.inf
  assert math.isnan(Tensor.zeros(0).mean().item())


def test_softmax_of_great_numbers():
  close(Tensor([1e4, 1e4]).softmax(), [0.5, 0.5])
  close(Tensor([-math.inf, 0.0]).softmax(), [0.0, 1.0])
  assert Tensor([-math.inf, -math.inf]).logsumexp().item() == -math.inf
  close(Tensor([1e4, 1e4]).logsumexp(), 1e4 + math.log(2))
  for kind in ("uint8", "int32", "bool"):  # differences to the greatest wrapped around
    x = np.array([[200, 100], [3, 255], [0, 0]]).astype(kind)
    close(Tensor(x).logsumexp(1), np.log(np.exp(x.astype(np.float64)).sum(1)))


def test_types_of_sums():
  assert Tensor([1], dtype=dtypes.int8).sum().dtype is dtypes.int32
  assert Tensor([1], dtype=dtypes.uint8).sum().dtype is dtypes.uint32
  assert Tensor([True]).sum().dtype is dtypes.int32
  assert Tensor([1], dtype=dtypes.float16).sum().dtype is dtypes.float16
  assert Tensor([1]).mean().dtype is dtypes.float32
  assert Tensor([1], dtype=dtypes.float16).sum(dtype=dtypes.float32).dtype is dtypes.float32
  assert Tensor([200, 200], dtype=dtypes.uint8).sum().item() == 400


def test_half_sums_are_carried_in_float32():
  x = np.full(5000, 1.0, np.float16)  # in half 2048 + 1 is 2048
  assert Tensor(x).sum().item() == 5000
  assert Tensor(x).mean().item() == 1.0
  assert float(np.add.accumulate(x)[-1]) == 2048.0  # what carrying in half would give


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_argmax_and_argmin(axis, dtype):
  x = np.random.default_rng(0).integers(0, 4, (4, 5)).astype(dtype)  # with equal elements: the first counts
  close(Tensor(x).argmax(axis), np.argmax(x, axis))
  close(Tensor(x).argmin(axis), np.argmin(x, axis))
  assert Tensor(x).argmax(axis).dtype is dtypes.int32


def test_argmax_edges():
  assert Tensor.ones(2**31 + 2).argmax().dtype is Tensor.ones(2, 2**31 + 2).argmin(1).dtype is dtypes.int64
  assert Tensor.ones(2**31 - 1).argmax().dtype is dtypes.int32
  close(Tensor([[1.0, 3.0]]).argmax(1, keepdim=True), [[1]])
  close(Tensor([False, True]).argmin(), 0)
  close(Tensor([-(2**31), 5]).argmin(), 0)
  close(Tensor([1.0, math.nan, 5.0]).argmax(), np.argmax([1.0, math.nan, 5.0]))
  close(Tensor(3.0).argmax(), 0)


@pytest.mark.parametrize("n", [1, 5, 600, 1100])
def test_running_sums(n):
  x = np.random.default_rng(1).integers(-3, 4, (2, n)).astype(np.float64)
  check(lambda t: t.cumsum(1), lambda v: np.cumsum(v, 1), x, grad=n < 10)
  signs = np.sign(x) + (x == 0)
  close(Tensor(signs.astype(np.int32)).cumprod(1), np.cumprod(signs.astype(np.int32), 1))
  values, places = Tensor(x.astype(np.float32)).cummax(1)
  close(values, np.maximum.accumulate(x, 1))
  np.testing.assert_array_equal(np.take_along_axis(x, places.numpy(), 1), np.maximum.accumulate(x, 1))


def test_running_sums_along_other_dims():
  check(lambda x: x.cumsum(0), lambda x: np.cumsum(x, 0), normal(2, X))
  check(lambda x: x.cumprod(1), lambda x: np.cumprod(x, 1), normal(2, X))
  check(lambda x: x.logcumsumexp(1), lambda x: np.log(np.cumsum(np.exp(x), 1)), normal(2, X))
  values, places = Tensor([3, 1, 2, 1]).cummin()
  close(values, [3, 1, 1, 1])
  close(places, [0, 1, 1, 3])
  assert Tensor([1, 2], dtype=dtypes.int8).cumsum().dtype is dtypes.int32
  assert Tensor.zeros(0, 3).cumsum(0).shape == (0, 3)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("cut", [None, 0, 1])
@pytest.mark.parametrize("n", [5, 600])
def test_ties_of_a_running_extremum_give_the_gradient_to_the_place_shown(name, cut, n):
  x = np.random.default_rng(0).integers(-1, 2, (2, n)).astype(np.float32)
  weight = (np.arange(2 * n) % 13).reshape(2, n).astype(np.float32)
  leaf = Tensor(x)
  values, places = getattr(leaf if cut is None else leaf.shard(("CPU", "CPU:1"), cut), name)(1)
  got = (values * Tensor(weight).shard_like(values)).sum().gradient(leaf)[0].numpy()
  want = np.zeros_like(x)
  for row in range(2):  # as PyTorch: the derivative of x at the places
    np.add.at(want[row], places.numpy()[row], weight[row])
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(np.take_along_axis(x, places.numpy(), 1), values.numpy())


def test_normalize():
  # powers and roots of infinite degree are 0, 1 and inf: x was left as it is
  check(lambda x: x.normalize(math.inf, 0), lambda x: x / abs(x).max(0, keepdims=True), normal(1, (2, 3)))
  check(lambda x: x.normalize(-math.inf), lambda x: x / abs(x).min(1, keepdims=True), normal(1, (2, 3)))
  check(lambda x: x.normalize(dim=1), lambda x: x / np.sqrt((x**2).sum(1, keepdims=True)), normal(1, (2, 3)))


ERRORS = [
  (lambda x: x.sum(2), IndexError, "dim 2 out of range"),
  (lambda x: x.sum((0, 0)), ValueError, "names a dim twice"),
  (lambda x: x.argmax(5), IndexError, "dim 5 out of range"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call, error, message):
  with pytest.raises(error, match=message):
    call(Tensor.zeros(2, 3))


@pytest.mark.parametrize(("shape", "axis"), [((64, 4096), 1), ((4096, 64), 0), ((100000,), 0), ((999, 32), 1)])
def test_running_sums_are_as_near_as_their_type_allows(shape, axis):
  """Half a unit in the last place of the greatest is what rounding alone costs; PyTorch, which adds in float64, has
  no more. Blocks joined in float32 have four times that."""
  x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
  want = np.cumsum(x.astype(np.float64), axis)
  least = np.abs(want.astype(np.float32) - want).max()
  assert np.abs(Tensor(x).cumsum(axis).numpy() - want).max() <= 1.5 * least


def test_running_sums_of_infinities():
  x = np.ones(100, np.float32)
  x[20], x[70] = np.inf, -np.inf
  got = Tensor(x).cumsum().numpy()  # inf less the nearest float32, which is itself, would be nan
  np.testing.assert_array_equal(got[[19, 20, 69]], np.array([20, np.inf, np.inf], np.float32))
  assert np.isnan(got[70:]).all()
