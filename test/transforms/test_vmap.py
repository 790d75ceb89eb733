"""`vmap`: arguments and axes, random numbers, placements, what is refused, how many kernels run."""

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, psum
from tinygrad.device import Mesh, P, ShardError
from tinygrad.helpers import Context, GlobalCounters
from tinygrad.transforms.vmap import vmap

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(2, 5)).astype(np.float32)
W = rng.normal(size=(3, 4)).astype(np.float32)
DEVICES = ("CPU:0", "CPU:1")


def layer(w):
  return lambda a: (a @ w).relu().softmax()


def loop(f, xs):
  return np.stack([f(Tensor(x)).numpy() for x in xs])


def test_axes_in_structures():
  given = {"a": Tensor(X), "b": [Tensor(Y), Tensor(W)]}
  got = vmap(lambda d, n: (d["a"].sum() + d["b"][0].sum() * n, d["b"][1]), ({"a": 0, "b": [1, None]}, None), (0, None))
  sums, same = got(given, 2)
  np.testing.assert_allclose(sums.numpy(), X.sum(1) + 2 * Y.sum(0), rtol=1e-5)
  assert same.shape == (3, 4)


@pytest.mark.parametrize("out", [0, 1, 2, -1])
def test_where_the_new_dim_stands_in_the_result(out):
  got = vmap(lambda a: a.reshape(3, 1) * 2, in_axes=-2, out_axes=out)(Tensor(X))
  np.testing.assert_array_equal(got.numpy(), np.stack([x.reshape(3, 1) * 2 for x in X], out))


def test_maps_in_maps():
  outer = vmap(vmap(lambda a, b: a * b, (None, 0)), (0, None))
  np.testing.assert_array_equal(outer(Tensor(X[:, 0]), Tensor(Y[0])).numpy(), np.outer(X[:, 0], Y[0]))


def test_a_gradient_of_each_element():
  w = Tensor(W)
  got = vmap(lambda a: layer(w)(a).square().sum().gradient(w)[0])(Tensor(X))
  want = np.stack([layer(w)(Tensor(x)).square().sum().gradient(w)[0].numpy() for x in X])
  np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)


def test_random_numbers_are_those_of_one_call_for_all():
  Tensor.manual_seed(3)
  got = vmap(vmap(lambda t: t * 0 + Tensor.randn(2)))(Tensor(X).unsqueeze(-1)).numpy()
  Tensor.manual_seed(3)
  np.testing.assert_array_equal(got, Tensor.randn(5, 3, 2).numpy())


def test_random_numbers_may_be_the_same():
  got = vmap(lambda t: t * 0 + Tensor.rand(3), randomness="same")(Tensor(X)).numpy()
  assert (got == got[:1]).all() and len(set(got[0])) == 3


@pytest.mark.parametrize("axis", [0, 1])
def test_elements_stay_where_they_are(axis):
  x, w = rng.normal(size=(6, 4)).astype(np.float32), Tensor(rng.normal(size=(4, 4)).astype(np.float32))
  sharded = Tensor(x).shard(DEVICES, axis)
  got = vmap(layer(w.shard(DEVICES)))(sharded)
  assert got.device == (sharded.device if axis == 0 else Tensor(x).shard(DEVICES).device)
  np.testing.assert_allclose(got.numpy(), loop(layer(w), x), rtol=1e-5)


def test_a_partial_value_stays_partial():
  x = Tensor(rng.normal(size=(5, 3, 4)).astype(np.float32)).shard(DEVICES, 2)
  total = x.sum(2)
  assert total.uop.device.partial
  inside = []
  got = vmap(lambda a: inside.append(a.uop.device.partial) or a * 2)(total)
  assert inside[0] and got.uop.device.partial
  np.testing.assert_allclose(got.numpy(), x.numpy().sum(2) * 2, rtol=1e-5)


def test_the_new_dim_is_cut_where_spmd_axis_name_says():
  mesh = Mesh(("CPU:0", "CPU:1", "CPU:2", "CPU:3"), (2, 2), ("dp", "tp"))
  x = Tensor(rng.normal(size=(4, 6)).astype(np.float32)).shard(mesh, P("dp"))
  placed = vmap(lambda a: a.shard(mesh, P("tp")) * 2, spmd_axis_name="dp")(x)
  assert placed.device.spec == P("dp", "tp")
  twice = vmap(vmap(lambda a: a.shard(mesh, P("tp"))), spmd_axis_name="dp")(x.reshape(4, 1, 6))
  assert twice.device.spec == P("dp", None, "tp")
  there = vmap(lambda a: (a * 2).shard(mesh, P()), spmd_axis_name="tp")(x)  # where a row is already
  assert there.device.spec == P("tp")
  whole = vmap(vmap(lambda a: (a * 2).shard(mesh, P()), spmd_axis_name="tp"), spmd_axis_name="dp")(x)
  assert whole.device.spec == P("dp", "tp")
  np.testing.assert_allclose(whole.numpy(), x.numpy() * 2)


def test_a_map_launches_as_many_kernels():
  def kernels(f, x):
    GlobalCounters.reset()
    f(x).realize()
    return GlobalCounters.kernel_count

  w = Tensor(W).realize()
  one, many = Tensor(X[0]).realize(), Tensor(X).realize()
  for f in (layer(w), lambda a: a.sort()[0], lambda a: (a - a.mean()).square().mean().sqrt(), lambda a: a.cumsum()):
    assert kernels(vmap(f), many) <= kernels(f, one)  # those that share rows are one
    with Context(TILE_AND_FUSE=0):
      assert kernels(vmap(f), many) == kernels(f, one)


def test_a_captured_function_is_mapped_as_written():
  double = TinyJit(lambda a: (a * 2).realize() if a.ndim == 5 else a * 2)
  np.testing.assert_array_equal(vmap(double)(Tensor(X)).numpy(), X * 2)
  mapped = TinyJit(vmap(layer(Tensor(W))))
  for _ in range(4):
    x = rng.normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(mapped(Tensor(x).realize()).numpy(), loop(layer(Tensor(W)), x), rtol=1e-5)


# ---------------------------------------------------------------- what is refused


def test_memory_outside_is_not_written():
  kept = Tensor.zeros(3).contiguous().realize()
  with pytest.raises(RuntimeError, match=r"(?s)assign: the target is memory outside.*float32\[3\].*fix:"):
    vmap(lambda a: kept.assign(a))(Tensor(X))
  assert kept.tolist() == [0, 0, 0]


def test_a_copy_of_it_is():
  kept = Tensor.zeros(3).contiguous().realize()

  def written(a):
    copy = kept.clone()
    copy[:1] = a[:1]
    return copy * 1

  np.testing.assert_array_equal(vmap(written)(Tensor(X)).numpy(), np.pad(X[:, :1], ((0, 0), (0, 2))))


@pytest.mark.parametrize("read", [lambda a: a.sum().item(), lambda a: a.realize(), lambda a: a.numpy()])
def test_values_are_not_read(read):
  with pytest.raises(ShardError, match="read or realized that has none(?s:.*)test_vmap.py(?s:.*)fix: return it"):
    vmap(read)(Tensor(X))


@pytest.mark.parametrize(
  "call, says",
  [
    (lambda: vmap(lambda a, b: a)(Tensor(X), Tensor(W)), "one length(?s:.*)5 by dim 0(?s:.*)3 by dim 0"),
    (lambda: vmap(lambda a, b: a)(Tensor(X), 2), "2 has no dim 0(?s:.*)in_axes=None"),
    (lambda: vmap(lambda a: a)(Tensor(1.0)), "dim 0 of float32"),
    (lambda: vmap(lambda a: a, in_axes=None)(Tensor(X)), "how many elements(?s:.*)axis_size"),
    (lambda: vmap(lambda a: a, out_axes=None)(Tensor(X)), "differs from element to element"),
    (lambda: vmap(lambda a: a, out_axes=3)(Tensor(X)), "says dim 3 of a result with 2"),
    (lambda: vmap(lambda a, b: a, in_axes=(0,))(Tensor(X), Tensor(X)), "in_axes has entries"),
    (lambda: vmap(lambda a: a, randomness="none"), "unknown randomness"),
  ],
)
def test_wrong_axes_are_errors(call, says):
  with pytest.raises(ValueError, match=says):
    call()


def test_axes_are_found_by_their_key_whatever_the_order_of_keys():
  x = {"a": Tensor([[1.0, 2.0]]), "b": Tensor([3.0, 4.0])}
  made = vmap(lambda t: {"b": t["b"] * 2, "a": t["a"]}, ({"b": 0, "a": 1},), {"a": 1, "b": 0})(x)
  assert made["a"].tolist() == [[1.0, 2.0]] and made["b"].tolist() == [6.0, 8.0]


@pytest.mark.parametrize("n", [1, 2])
def test_a_sum_over_the_elements_is_one_result_however_many_there_are(n):
  x = Tensor(np.arange(2.0 * n).reshape(n, 2))
  each, total = vmap(lambda t: (t * 2, psum(t, "i")), out_axes=(0, None), axis_name="i")(x)
  assert each.tolist() == (x * 2).tolist() and total.tolist() == x.sum(0).tolist()
