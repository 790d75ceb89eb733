"""Traps that other systems fell into, through the public API on CPU devices: each test fails if the trap is
there. What the rules say of reductions, op by op, is in test_partial_table.py."""

import numpy as np
import pytest

from tinygrad import Context, Device, Mesh, P, ShardError, Sharding, Tensor, TinyJit, dtypes
from tinygrad.uop import buffer_of

D2 = ("CPU:1", "CPU:2")
D4 = ("CPU:1", "CPU:2", "CPU:3", "CPU:4")
GRID = Mesh(D4, (2, 2), ("x", "y"))


@pytest.fixture(params=(0, 1), ids=("reduced", "deferred"), autouse=True)
def defer(request):
  with Context(DEFER=request.param):
    yield request.param


def integers(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


# ---------------------------------------------------------------- reductions of halves


def test_a_half_all_reduce_neither_overflows_nor_rounds_in_between():
  """Each device's part of the sum, and the sum of two of them, is beyond 65504; the whole sum is 4."""
  value = np.tile(np.array([40000, 40000, 1, 1, -40000, -40000, 1, 1], np.float16), (3, 1))
  with np.errstate(over="ignore"):
    assert np.isinf(value[0, 0] + value[0, 1]), "in halves it overflows"
  x = Tensor(value).shard(D4, 1)
  assert x.sum(1).dtype is dtypes.float16
  np.testing.assert_array_equal(x.sum(1).numpy(), np.full(3, 4, np.float16))
  np.testing.assert_array_equal((x * 0.5).sum(1).relu().numpy(), np.full(3, 2, np.float16))
  np.testing.assert_array_equal(x.sum(1).shard(D4, 0).numpy(), np.full(3, 4, np.float16))  # a reduce-scatter


def test_a_bfloat16_all_reduce_adds_in_float32():
  """256 + 1 is 256 in bfloat16: adding the devices' parts there would lose each 1."""
  eight = tuple(f"CPU:{i}" for i in range(1, 9))
  x = Tensor(np.array([256, 1, 1, 1, 1, 1, 1, 2], np.float32)).cast(dtypes.bfloat16)
  assert x.shard(eight, 0).sum().float().item() == 264


# ---------------------------------------------------------------- the JIT


def test_a_jit_does_not_replay_for_other_placements():
  """Captured under one placement and called with another: right values, from a capture of its own."""
  f = TinyJit(lambda x: (x * 2 + x.sum(0)).realize())
  placements = [
    Sharding(D4, 0),
    Sharding(D4[::-1], 0),
    Sharding(D4, 1),
    Sharding(D4),
    Sharding(GRID, P("y", "x")),
    "CPU:1",
  ]
  for k in range(4):
    for where in placements:
      a = integers(k, 8, 4)
      got = f(Tensor(a).to(where).realize())
      np.testing.assert_array_equal(got.numpy(), a * 2 + a.sum(0))
  assert len(f.states) == len(placements)


def test_a_jit_does_not_take_a_partial_sum_for_a_reduced_one(defer):
  """A replay that added an argument's parts again would count it four times."""
  f = TinyJit(lambda x: (x + 1).realize())
  for k in range(5):
    a = integers(k, 8, 4)
    partial = Tensor(a).shard(D4, 0).sum(0)
    assert bool(partial.uop.device.partial) == bool(defer)
    np.testing.assert_array_equal(f(partial).numpy(), a.sum(0) + 1)
    np.testing.assert_array_equal(f(Tensor(a[0]).shard(D4).realize()).numpy(), a[0] + 1)


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize(
  "where", [Sharding(D4, 0), Sharding(D4, 1), Sharding(GRID, P("y", "x")), Sharding(D4)], ids=str
)
@pytest.mark.parametrize("shape", [(8, 4), (5, 3)])
def test_a_gradient_reaches_the_unsharded_source(where, shape):
  value, w = integers(0, *shape), integers(1, *shape)
  x, again = Tensor(value, requires_grad=True), Tensor(value).shard(where).realize()
  y = x.shard(where)
  ((y * y * Tensor(w).shard(where)).sum() + x.sum()).backward()
  np.testing.assert_array_equal(x.grad.numpy(), 2 * value * w + 1)
  assert x.grad.device == x.device
  for t, g in zip((x, again), (x * 3 + again * again).sum().gradient(x, again), strict=True):
    assert g.device == t.device
    np.testing.assert_array_equal(g.numpy(), np.full(shape, 3) if t is x else 2 * value)


def test_a_gradient_reaches_a_parameter_sharded_in_place():
  w = Tensor(integers(0, 6, 4), requires_grad=True).shard_(D4, 0)
  x = integers(1, 5, 6)
  (Tensor(x).shard(D4) @ w).sum().backward()
  np.testing.assert_array_equal(w.grad.numpy(), x.sum(0)[:, None].repeat(4, 1))
  assert w.grad.device == w.device == Sharding(D4, 0)


# ---------------------------------------------------------------- what is partial


def test_max_over_a_cut_dim_is_no_sum():
  value = integers(0, 8, 6) - 10
  x = Tensor(value).shard(D4, 0)
  assert not np.array_equal(sum(b.max(0) for b in np.split(value, 4)), value.max(0))
  np.testing.assert_array_equal(x.max(0).numpy(), value.max(0))
  np.testing.assert_array_equal(x.min(0).numpy(), value.min(0))
  np.testing.assert_array_equal((x.max(0) * -2).numpy(), value.max(0) * -2)
  np.testing.assert_array_equal((x.max(0) + x.sum(0)).numpy(), value.max(0) + value.sum(0))
  np.testing.assert_array_equal(x.max(0).shard(D4, 0).numpy(), value.max(0))


def test_negative_zero_survives_moves():
  """Put together by padding with 0.0 and adding, -0.0 would become 0.0."""
  zeros = np.full((8, 4), -0.0, np.float32)
  x = Tensor(zeros).shard(D4, 0).realize()
  rows = Tensor(np.array([5, 0, 7], np.int32)).shard(D4)
  values = {
    "gathered": x.shard(D4),
    "cut along another dim": x.shard(D4, 1),
    "on the grid": x.shard(Mesh(D4, (2, 2)), P("x", "y")),
    "on one device": x.to("CPU:1"),
    "flipped": x.flip(0),
    "shrunk": x[1:7],
    "rolled": x.roll(3, 0),
    "joined": x.cat(x, dim=0),
    "repeated": x.repeat(2, 1),
    "reshaped": x.reshape(4, 8),
  }
  for name, y in values.items():
    assert np.signbit(y.numpy()).all(), name
  assert not np.signbit(zeros + np.float32(0.0)).any()
  np.testing.assert_array_equal(x[rows].numpy(), zeros[:3])


def test_a_scalar_is_added_once():
  a, b = integers(0, 8, 4), integers(1, 4)
  x = Tensor(a).shard(D4, 0)
  assert not np.array_equal(a.sum(0) + 4, a.sum(0) + 1), "added on each of four devices"
  np.testing.assert_array_equal((x.sum(0) + 1).numpy(), a.sum(0) + 1)
  np.testing.assert_array_equal((3 - x.sum(0)).numpy(), 3 - a.sum(0))
  np.testing.assert_array_equal((x.sum(0) + Tensor(b).shard(D4)).numpy(), a.sum(0) + b)
  np.testing.assert_array_equal((x.sum(0) + Tensor(b)).numpy(), a.sum(0) + b)
  np.testing.assert_array_equal(x.sum(0).pad((1, 0), value=2).numpy(), np.pad(a.sum(0), (1, 0), constant_values=2))
  np.testing.assert_array_equal((Tensor(b).shard(D4) > 0).where(x.sum(0), 5).numpy(), np.where(b > 0, a.sum(0), 5))


@pytest.mark.parametrize("n", (1, 3, 5, 7, 8))
def test_an_uneven_mean_is_no_mean_of_means(n):
  value = integers(n, n, 6)
  size = -(-n // 4)
  means = [value[d * size : (d + 1) * size].mean(0) for d in range(4) if d * size < n]
  assert n != 5 or not np.allclose(np.mean(means, 0), value.mean(0))
  x = Tensor(value, requires_grad=True).shard(D4, 0)
  np.testing.assert_allclose(x.mean(0).numpy(), value.mean(0), rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(x.mean().numpy(), value.mean(), rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(x.var(0, correction=0).numpy(), value.var(0), rtol=1e-5, atol=1e-5)
  (g,) = x.mean().gradient(x)
  np.testing.assert_allclose(g.numpy(), np.full((n, 6), 1 / (6 * n)), rtol=1e-6)


def test_masks_select_and_do_not_multiply():
  """0 * inf is nan: what a device does not own must not be multiplied away."""
  value = integers(0, 5, 4)
  value[1], value[4, 2] = np.inf, -np.inf
  x = Tensor(value).shard(D4, 0).realize()
  index = np.array([4, 1, 0, 3], np.int32)
  np.testing.assert_array_equal(x[Tensor(index)].numpy(), value[index])
  np.testing.assert_array_equal(x.shard(D4, 1).numpy(), value)
  partial, bias = Tensor(integers(1, 8, 4)).shard(D4, 0).sum(0), Tensor(value[1]).shard(D4)
  np.testing.assert_array_equal((partial + bias).numpy(), value[1])  # on three devices the bias is not added
  np.testing.assert_array_equal(x.max(0).numpy(), value.max(0))
  np.testing.assert_array_equal(x.pad(((1, 2), (0, 0))).numpy(), np.pad(value, ((1, 2), (0, 0))))
  np.testing.assert_array_equal(x.cat(x, dim=0).numpy(), np.concatenate([value, value]))
  np.testing.assert_array_equal(x.tril().numpy(), np.tril(value))
  np.testing.assert_array_equal((x > 100).where(0, x).numpy(), np.where(value > 100, 0, value))


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize(
  "names", [("CPU", "CPU:0"), ("CPU:1", "CPU:1"), ("CPU:1", "cpu:1"), ("CPU:0", "CPU:1", "CPU")], ids=str
)
def test_one_device_under_two_names_is_no_mesh(names):
  """Or a test over several devices would test nothing."""
  for make in (Mesh, Sharding, lambda d: Tensor.rand(4, device=d)):
    with pytest.raises(ShardError, match="distinct|twice|duplicate|more than once"):
      make(names)
  if len(set(map(Device.canonicalize, names))) > 1:
    with pytest.raises(ShardError, match="distinct"):
      Tensor(np.ones(4)).shard(names, 0)
  else:  # scripts of the field do this on machines of one device
    with pytest.warns(UserWarning, match="are one device, so nothing is cut"):
      assert Tensor(np.ones(4)).shard(names, 0).device == Device.canonicalize(names[0])


def test_a_script_for_several_devices_runs_on_one():
  """A Sharding over one device is that device's name, wherever one is taken."""
  at = Sharding(Mesh(("CPU:1",), names=("dp",)), P("dp"))
  assert at == "CPU:1"
  for x in (Tensor(integers(0, 8, 4)).shard(at), Tensor.zeros(8, 4).shard_(at), Tensor.empty(8, 4, device=at)):
    assert x.device == at
  np.testing.assert_array_equal((Tensor(integers(0, 8, 4)).shard(at) + 1).numpy(), integers(0, 8, 4) + 1)


def test_the_devices_of_these_tests_are_several():
  assert Device.canonicalize("CPU") == Device.canonicalize("CPU:0") == Device.canonicalize("cpu:0")
  x = Tensor(integers(0, 8, 4)).shard(D4, 0).realize()
  memory = buffer_of(x.uop)
  assert len({Device[d].device if hasattr(Device[d], "device") else d for d in memory.devices}) == 4
  assert [memory.handle(i) for i in range(4)] and len({id(memory.handle(i)) for i in range(4)}) == 4
  assert x.shards[3].device == "CPU:4"
  np.testing.assert_array_equal(x.shards[3].numpy(), integers(0, 8, 4)[6:])


@pytest.mark.parametrize("rows", [4, 5])
def test_views_follow_writes_to_memory_whatever_its_cut(rows):
  """Four rows are cut evenly; of five, elements have to move for the flat view."""
  x = Tensor(np.zeros((rows, 3), np.float32)).shard(tuple(f"CPU:{i}" for i in range(4)), 0).realize()
  v, w = x.reshape(-1), x.transpose(0, 1).reshape(-1)
  before = v + 0
  x[1:3] = 5
  want = np.zeros((rows, 3), np.float32)
  want[1:3] = 5
  np.testing.assert_array_equal(before.numpy(), np.zeros(3 * rows))  # what was computed keeps the old content
  np.testing.assert_array_equal(v.numpy(), want.reshape(-1))
  np.testing.assert_array_equal(w.numpy(), want.T.reshape(-1))


def test_a_write_through_a_view_that_had_to_move_is_a_write_to_the_memory():
  x = Tensor(np.zeros((5, 3), np.float32)).shard(tuple(f"CPU:{i}" for i in range(4)), 0).realize()
  v = x.transpose(0, 1).reshape(-1)
  v[4:6] = Tensor([1.0, 2.0])
  want = np.zeros((3, 5), np.float32)
  want.reshape(-1)[4:6] = [1, 2]
  np.testing.assert_array_equal(x.numpy(), want.T)
  np.testing.assert_array_equal(v.numpy(), want.reshape(-1))
  assert x.device.parts(0) == 4


def test_rows_that_lie_in_another_order_have_other_owners():
  """Lookups by one index in tables whose rows are cut by the same axes in another order: a row of one and of the other
  are found on different devices, so their parts cannot be multiplied."""
  mesh = Mesh(tuple(f"CPU:{i}" for i in range(4)), (2, 2), ("x", "y"))
  a, b = np.arange(1, 25, dtype=np.float32).reshape(8, 3), np.arange(2, 26, dtype=np.float32).reshape(8, 3)
  index = np.array([0, 3, 5, 6, 2, 7, 1])
  with Context(DEFER=1):
    rows, others = Tensor(a).shard(mesh, P(("x", "y"))), Tensor(b).shard(mesh, P(("y", "x")))
    at = Tensor(index).shard(mesh)
    np.testing.assert_array_equal((rows[at] * others[at]).numpy(), a[index] * b[index])
