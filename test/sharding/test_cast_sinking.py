"""A partial half or bfloat16 is reduced in float32 and gathered as what it is: bytes, bits, where it applies."""

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.device import Mesh, P, Sharding
from tinygrad.helpers import Context
from tinygrad.sharding import cast_sinking, explain
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp

N = 4
HALVES = (dtypes.float16, dtypes.bfloat16)


def leaf(*shape, cut=0, dtype=dtypes.bfloat16):
  return Tensor.empty(*shape, dtype=dtype, device=Sharding(tuple(f"NULL:{i}" for i in range(N)), cut))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("defer", [0, 1])
def test_the_gather_is_of_halves(dtype, defer):
  with Context(DEFER=defer):
    y = leaf(512, 64, cut=1, dtype=dtype) @ leaf(64, 256, dtype=dtype)
    rows = explain(y).rows
  assert [(r.kind, r.payload, r.wire) for r in rows] == [
    ("reduce_scatter", 512 * 256 * 4, 512 * 256 * 4 * (N - 1) / N),
    ("all_gather", 512 * 256 * 2, 512 * 256 * 2 * (N - 1) / N),
  ]
  assert "float32" in rows[1].why and dtype.name in rows[1].why
  assert {r.where for r in rows} == {rows[0].where} and rows[0].where.startswith(__file__)


def test_where_it_does_not_apply():
  def kinds(*ys):
    return [r.kind for r in explain(*ys)]

  big = leaf(512, 64, cut=1)
  assert kinds(leaf(8, 64, cut=1) @ leaf(64, 8)) == ["all_reduce"]  # small: one meeting
  assert kinds(leaf(509, 64, cut=1) @ leaf(64, 1021)) == ["all_reduce"]  # no dim that divides
  assert kinds(big.cast(dtypes.float32) @ leaf(64, 256).cast(dtypes.float32)) == ["all_reduce"]  # nothing narrower
  wide = (big.cast(dtypes.float32) @ leaf(64, 256).cast(dtypes.float32)).exp()
  assert kinds(wide, wide.cast(dtypes.bfloat16)) == ["all_reduce"]  # whole in float32 anyway
  scattered = (big @ leaf(64, 256)).shard(big.device.devices, axis=0)
  assert kinds(scattered) == ["reduce_scatter"]  # nothing to gather


def test_a_tensor_that_is_also_cut_otherwise():
  mesh = Mesh(tuple(f"NULL:{i}" for i in range(8)), (4, 2), ("dp", "tp"))
  x = Tensor.empty(256, 512, dtype=dtypes.bfloat16, device=Sharding(mesh, P("dp", None)))
  w = Tensor.empty(512, 1024, dtype=dtypes.bfloat16, device=Sharding(mesh, P(None, "tp")))
  report = explain(*(x @ w).sum().gradient(w))
  local = 512 * 512
  assert [r.kind for r in report if r.payload > 8] == ["reduce_scatter", "all_gather"]
  assert sum(r.wire for r in report if r.payload > 8) == local * (4 + 2) * 3 / 4


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_bits_are_those_of_a_sum_in_float32(dtype, monkeypatch):
  """Partial sums beyond the half's range and finer than its precision; all devices hold the same."""
  devices = tuple(f"CPU:{i}" for i in range(N))
  rng = np.random.default_rng(3)
  a = rng.standard_normal((N, 256, 512)).astype(np.float32)
  a[0] += 60000
  a[1] -= 60000

  def result():
    x = Tensor(a).cast(dtype).shard(devices, axis=0)
    total = x.sum(0).realize()
    return [s.cast(dtypes.float32).numpy() for s in total.shards]

  got = result()
  halves = Tensor(a).cast(dtype).cast(dtypes.float32).numpy()
  want = Tensor(((halves[0] + halves[1]) + halves[2]) + halves[3]).cast(dtype).cast(dtypes.float32).numpy()
  assert np.abs(want).max() < 1000 and all(np.array_equal(g, want) for g in got)
  monkeypatch.setattr(cast_sinking, "LARGE", 1 << 60)
  assert all(np.array_equal(g, want) for g in result())


@pytest.mark.parametrize("defer", [0, 1])
def test_what_is_scattered_below_an_expanded_dim_is_cut_along_it_again(defer):
  """The cut that the sum's reader wants has a dim that the sum does not have."""
  mesh = Mesh([f"CPU:{i}" for i in range(8)], (2, 4), ("x", "y"))
  a, b = np.arange(72.0, dtype=np.float32).reshape(8, 9), np.arange(144, dtype=np.int8).reshape(8, 9, 2)
  with Context(DEFER=defer):
    parts = Tensor(a).reshape(8, 9, 1).expand(8, 9, 4).shard(mesh, P(None, None, "y"))
    total = parts.max(axis=2, keepdim=True).cast(dtypes.int8).expand(8, 9, 2)
    other = Tensor(b).shard(mesh, P(None, "x", "y:(1)2"))
    got = (total * other).numpy()
  np.testing.assert_array_equal(got, a.astype(np.int8)[..., None] * b)


def test_what_is_below_two_of_them_is_computed_once():
  """A sum that is sunk reads what another such sum is written to, and something else reads that, too."""
  first = leaf(512, 64, cut=1) @ leaf(64, 512)
  state = Tensor.empty(512, 512, dtype=dtypes.bfloat16, device=first.device).assign(first)
  second = state.shard(first.device.devices, axis=1) @ leaf(512, 256)
  sink = UOp.sink((second.exp() + 1).uop, (state + 1).uop)
  view = localize(sink)
  assert sum(u.op is Ops.ASSIGN for u in view.toposort()) == 1
  assert [r.kind for r in explain(second + 1, state + 1)].count("reduce_scatter") == 2


def test_a_cache_that_is_written_to_and_read_in_halves():
  """Three steps in one realize; it was a ScheduleError, for the second write was there twice."""
  devices = tuple(f"CPU:{i}" for i in range(4))
  mesh = Mesh(devices, (2, 2), ("a", "b"))
  rng = np.random.default_rng(3)
  values = [rng.standard_normal(s) for s in ((3, 32), (32,), (64, 3), (2, 3), (64, 3))]
  kinds = (*["float16"] * 4, "float32")

  def run(place):
    weight, bias, keys, x, cache = (place(Tensor(v.astype(k))).realize() for v, k in zip(values, kinds))

    def step(x):
      keys[0] = cache.max(0)
      scores = x @ keys[:3].T @ keys[:3]
      change = ((scores > x) @ weight + bias).sum().gradient(weight)[0]
      return change[:1, :1].expand(2, 64) @ cache.cast("float16")

    first, second = step(x * 1), step(x * 1)
    cache[0:1] = second[0:1].cast("float32")
    third = step(x * 0.5 + first)
    Tensor.realize(total := keys[:, 0:2] @ third + keys[0], keys, cache)
    return total.numpy(), keys.numpy(), cache.numpy()

  specs = {64: P(("a", "b")), 2: P("a", "b"), 3: P("a", "b"), 32: P("a")}
  for got, want in zip(run(lambda t: t.shard(mesh, specs[t.shape[0]]).contiguous()), run(lambda t: t)):
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=2e-2)
