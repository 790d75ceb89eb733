"""Every op along a cut dim, even, uneven and with empty blocks, on CPU devices: equal to numpy; where it should be
cheap, its bytes. Random programs over all of them are in test/laws; here is one named test for each."""

import numpy as np
import pytest

from tinygrad import Context, Mesh, P, ShardError, Sharding, Tensor, TinyJit, dtypes
from tinygrad.helpers import TRAINING
from tinygrad.sharding import explain

D2 = ("CPU:1", "CPU:2")
D4 = ("CPU:1", "CPU:2", "CPU:3", "CPU:4")
GRID = Mesh(D4, (2, 2), ("x", "y"))
LENGTHS = (8, 7, 5, 3, 1)  # over four devices: even, uneven, and with one to three empty blocks


def integers(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def windows(a: np.ndarray, k: int) -> np.ndarray:
  return np.lib.stride_tricks.sliding_window_view(a, k, 0)


def put(a: np.ndarray, index, value) -> np.ndarray:
  a = a.copy()
  a[index] = value
  return a


MOVEMENT = {
  "shrink": (lambda x: x[1:-1], lambda a: a[1:-1]),
  "shrink to the end": (lambda x: x[len(x) // 2 :], lambda a: a[len(a) // 2 :]),
  "pad": (lambda x: x.pad(((2, 1), (0, 0)), value=3), lambda a: np.pad(a, ((2, 1), (0, 0)), constant_values=3)),
  "pad circular": (lambda x: x.pad(((1, 1), (0, 0)), mode="circular"), lambda a: np.pad(a, ((1, 1), (0, 0)), "wrap")),
  "pad replicate": (lambda x: x.pad(((2, 3), (0, 0)), mode="replicate"), lambda a: np.pad(a, ((2, 3), (0, 0)), "edge")),
  "flip": (lambda x: x.flip(0), lambda a: a[::-1]),
  "flip both": (lambda x: x.flip((0, 1)), lambda a: a[::-1, ::-1]),
  "cat": (lambda x: x.cat(x * 2, x[:1], dim=0), lambda a: np.concatenate([a, a * 2, a[:1]])),
  "stack": (lambda x: x.stack(x + 1, dim=1), lambda a: np.stack([a, a + 1], 1)),
  "roll": (lambda x: x.roll(2, 0), lambda a: np.roll(a, 2, 0)),
  "roll back": (lambda x: x.roll(-3, 0), lambda a: np.roll(a, -3, 0)),
  "repeat": (lambda x: x.repeat(3, 2), lambda a: np.tile(a, (3, 2))),
  "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), lambda a: a.repeat(2, 0)),
  "strided": (lambda x: x[::2], lambda a: a[::2]),
  "strided backwards": (lambda x: x[::-2, 1:], lambda a: a[::-2, 1:]),
  "int": (lambda x: x[-1], lambda a: a[-1]),
  "new axis": (lambda x: x[:, None, 1], lambda a: a[:, None, 1]),
  "tensor index": (lambda x: x[Tensor([0, -1, 0])], lambda a: a[[0, -1, 0]]),
  "tensor index of both": (lambda x: x[Tensor([0, -1]), Tensor([2, 0])], lambda a: a[[0, -1], [2, 0]]),
  "transpose": (lambda x: x.T, lambda a: a.T),
  "reshape": (lambda x: x.reshape(-1), lambda a: a.reshape(-1)),
  "unfold": (lambda x: x.unfold(0, 1, 1), lambda a: windows(a, 1)),
  "diagonal": (lambda x: x.diagonal(), lambda a: a.diagonal()),
  "tril": (lambda x: x.tril(), np.tril),
  "split": (lambda x: x.split([len(x) - 1, 1] if len(x) > 1 else 1, 0)[-1], lambda a: a[-1:]),
  "gather": (lambda x: x.gather(0, Tensor([[0, 0, 0], [0, 0, 0]])), lambda a: a[[0, 0]]),
}
ORDER = {
  "cumsum": (lambda x: x.cumsum(0), lambda a: a.cumsum(0)),
  "cumprod": (lambda x: x.cumprod(0), lambda a: a.cumprod(0)),
  "cummax": (lambda x: x.cummax(0)[0], lambda a: np.maximum.accumulate(a, 0)),
  "sort": (lambda x: x.sort(0)[0], lambda a: np.sort(a, 0)),
  "argsort": (lambda x: x.argsort(0), lambda a: np.argsort(a, 0, "stable")),
  "topk": (lambda x: x.topk(1, 0)[0], lambda a: a.max(0, keepdims=True)),
  "argmax": (lambda x: x.argmax(0), lambda a: a.argmax(0)),
  "argmin of all": (lambda x: x.argmin(), lambda a: a.argmin()),
  "any": (lambda x: (x > 3).any(0), lambda a: (a > 3).any(0)),
  "sum": (lambda x: x.sum(0), lambda a: a.sum(0)),
  "prod": (lambda x: x.prod(0), lambda a: a.prod(0)),
  "max": (lambda x: x.max(), lambda a: a.max()),
  "matmul over it": (lambda x: x.T @ x, lambda a: a.T @ a),
  "matmul beside it": (lambda x: x @ x.T, lambda a: a @ a.T),
  "nonzero": (lambda x: x.nonzero(size=4, fill_value=-1)[:1], lambda a: np.argwhere(a)[:1]),
  "masked_select": (lambda x: x.masked_select(x > -9, size=2), lambda a: a.reshape(-1)[:2]),
}
CLOSE = {
  "softmax": (lambda x: x.softmax(0), lambda a: np.exp(a) / np.exp(a).sum(0)),
  "log_softmax": (lambda x: x.log_softmax(0), lambda a: a - np.log(np.exp(a).sum(0))),
  "logsumexp": (lambda x: x.logsumexp(0), lambda a: np.log(np.exp(a).sum(0))),
  "logcumsumexp": (lambda x: x.logcumsumexp(0), lambda a: np.logaddexp.accumulate(a, 0)),
  "mean": (lambda x: x.mean(0), lambda a: a.mean(0)),
  "var": (lambda x: x.var(0, correction=0), lambda a: a.var(0)),
  "layernorm": (lambda x: x.layernorm(0), lambda a: (a - a.mean(0)) / np.sqrt(a.var(0) + 1e-5)),
}
WRITES = {
  "slice": (slice(1, 3), 5),
  "from the end": (slice(-2, None), 5),
  "int": (0, 7),
  "both": ((slice(0, 2), 1), 9),
  "backwards": (slice(None, None, -1), np.arange(3, dtype=np.float32)),
  "stride": (slice(None, None, 2), 4),
  "mask": (np.array([[True, False, True]]), -1),
  "tensor": (np.array([0, -1], np.int32), 6),
}


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", [*MOVEMENT, *ORDER])
def test_equals_numpy(name, n):
  f, want = {**MOVEMENT, **ORDER}[name]
  a = integers(n, n, 3)
  if name.startswith("nonzero"):
    a[0, 0] = 1
  for where in (Sharding(D4, 0), Sharding(GRID, P("x", "y"))):
    got = f(Tensor(a).shard(where).realize())
    np.testing.assert_array_equal(got.numpy(), want(a), err_msg=str(where))


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", CLOSE)
def test_close_to_numpy(name, n):
  f, want = CLOSE[name]
  a = integers(n, n, 3)
  np.testing.assert_allclose(f(Tensor(a).shard(D4, 0)).numpy(), want(a), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", (8, 5, 3))
@pytest.mark.parametrize("name", [k for k in MOVEMENT if "index" not in k])
def test_the_gradient_is_that_of_the_whole(name, n):
  f, _ = MOVEMENT[name]
  plain = Tensor(integers(n, n, 3)).realize()
  cut = plain.shard(D4, 0).realize()
  (want,), (got,) = ((f(x) * f(x)).sum().gradient(x) for x in (plain, cut))
  assert got.device == cut.device
  np.testing.assert_array_equal(got.numpy(), want.numpy())


ALONG = {
  "sort": (lambda x: x.sort(-1)[0], lambda a: np.sort(a, -1)),
  "argsort": (lambda x: x.argsort(-1), lambda a: np.argsort(a, -1, "stable")),
  "topk": (lambda x: x.topk(2, -1)[0], lambda a: -np.sort(-a, -1)[..., :2]),
  "cumsum": (lambda x: x.cumsum(-1), lambda a: a.cumsum(-1)),
  "argmax": (lambda x: x.argmax(-1), lambda a: a.argmax(-1)),
  "flip": (lambda x: x.flip(-1), lambda a: a[..., ::-1]),
}


@pytest.mark.parametrize("shape", [(8,), (8, 4), (8, 2, 5)])
@pytest.mark.parametrize("name", ALONG)
def test_of_a_gradient_that_is_whole_where_it_is_computed_and_cut_where_it_is_shown(name, shape):
  f, by_numpy = ALONG[name]
  a, rows = integers(3, *shape), [5, 0, 5]
  x = Tensor(a).shard(D4, len(shape) - 1).realize()
  (g,) = x[Tensor(rows)].square().sum().gradient(x)
  assert g.device == x.device
  if len(shape) == 1:
    assert g.uop.src[0].device == Sharding(D4)
  want = np.zeros_like(a)
  np.add.at(want, rows, 2 * a[rows])
  with Context(INTERPRET=1):
    np.testing.assert_array_equal(f(g).numpy(), by_numpy(want))


@pytest.mark.parametrize("n", (8, 5, 3))
@pytest.mark.parametrize("name", WRITES)
def test_setitem_writes_into_the_shards(name, n):
  index, value = WRITES[name]
  a = integers(n, n, 3)
  if name == "mask":
    index = np.broadcast_to(index, a.shape).copy()
  want = put(a, index, value)
  x = Tensor(a).shard(D4, 0).realize()
  view, before = x.reshape(-1), x * 1
  x[Tensor(index) if isinstance(index, np.ndarray) else index] = (
    Tensor(value) if isinstance(value, np.ndarray) else value
  )
  np.testing.assert_array_equal(x.numpy(), want)
  np.testing.assert_array_equal(before.numpy(), a)
  if n % 4 == 0:  # else reshape moves it: a value of its own
    np.testing.assert_array_equal(view.numpy(), want.reshape(-1))
  assert x.device == Sharding(D4, 0)


def test_assign_and_updates_in_place_of_shards():
  a, b = integers(0, 5, 3), integers(1, 5, 3)
  x = Tensor(a).shard(D4, 0).realize()
  for value in (Tensor(b).shard(D4, 1), Tensor(b).shard(D4), Tensor(b)):
    x.assign(value)
    np.testing.assert_array_equal(x.numpy(), b)
    x.assign(Tensor(a).shard(D4, 0)).realize()
  x += Tensor(b).shard(D4, 0)
  x *= 2
  assert x.device == Sharding(D4, 0)
  np.testing.assert_array_equal(x.realize().numpy(), (a + b) * 2)
  x.assign(x.flip(0))  # every element is read before it is overwritten
  np.testing.assert_array_equal(x.numpy(), ((a + b) * 2)[::-1])
  x.assign(x.sum(0))
  np.testing.assert_array_equal(x.numpy(), np.tile(((a + b) * 2).sum(0), (5, 1)))


@pytest.mark.parametrize("kind", ("scatter", "add", "multiply", "sum", "amax"))
@pytest.mark.parametrize("cut", (0, 1))
def test_scatter(kind, cut):
  a, index = integers(0, 7, 4), np.random.default_rng(1).integers(0, 7, (3, 4))
  src = integers(2, 3, 4)
  want = a.copy()
  for i, j in np.ndindex(index.shape):
    k, v = (index[i, j], j), src[i, j]
    old = want[k]
    want[k] = {"scatter": v, "add": old + v, "sum": old + v, "multiply": old * v, "amax": max(old, v)}[kind]
  x, rows, values = Tensor(a).shard(D4, cut), Tensor(index.astype(np.int32)).shard(D4), Tensor(src).shard(D4, 1)
  if kind in ("sum", "amax"):
    got = x.scatter_reduce(0, rows, values, kind)
  else:
    got = x.scatter(0, rows, values, None if kind == "scatter" else kind)
  np.testing.assert_array_equal(got.numpy(), want)


# ---------------------------------------------------------------- convolution, pooling, halos


@pytest.mark.parametrize("cut", (0, 1, 2, 3))
@pytest.mark.parametrize("stride", (1, 2))
def test_convolution_and_pooling(cut, stride):
  a, w = integers(0, 3, 4, 7, 5), integers(1, 2, 4, 3, 3)
  plain, cut_tensors = (
    (Tensor(a).realize(), Tensor(w).realize()),
    (Tensor(a).shard(D4, cut).realize(), Tensor(w).shard(D4).realize()),
  )
  for f in (
    lambda x, w: x.conv2d(w, stride=stride, padding=1),
    lambda x, w: x.max_pool2d((3, 2), stride, padding=1) + w.sum() * 0,
    lambda x, w: x.avg_pool2d((2, 2), stride) * 4 + w.sum() * 0,
    lambda x, w: x.conv_transpose2d(w.transpose(0, 1), stride=stride),
  ):
    want, got = f(*plain), f(*cut_tensors)
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    for g, h in zip((got * got).sum().gradient(*cut_tensors), (want * want).sum().gradient(*plain), strict=True):
      np.testing.assert_allclose(g.numpy(), h.numpy(), rtol=1e-5, atol=1e-4)


def test_a_convolution_moves_the_bytes_of_the_halo():
  x = Tensor.empty(1, 3, 64, 32, device=Sharding([f"NULL:{i}" for i in range(8)], 2))
  w = Tensor.empty(5, 3, 3, 3, device=Sharding([f"NULL:{i}" for i in range(8)]))
  halo = 3 * 32 * 4  # one row of every channel
  assert explain(x.conv2d(w, padding=1)).wire == 2 * halo
  assert explain(x.max_pool2d((3, 1), stride=1, padding=(1, 0))).wire == 2 * halo
  assert explain(x.max_pool2d((2, 2))).wire == 0
  assert explain(x[:, :, 1:]).wire <= 8 * halo, "those that change their owner"
  assert explain(x.pad(((0, 0), (0, 0), (1, 0), (0, 0)))[:, :, :-1]).wire == halo, "a shift by one row"


def test_a_pool_undone():
  a = integers(0, 1, 4, 4, 4) + np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4) * 10
  x = Tensor(a).shard(D4, 1)
  values, places = x.max_pool2d((2, 2), return_indices=True)
  plain_values, plain_places = Tensor(a).max_pool2d((2, 2), return_indices=True)
  want = plain_values.max_unpool2d(plain_places, (2, 2)).numpy()
  np.testing.assert_array_equal(values.max_unpool2d(places, (2, 2)).numpy(), want)
  assert want.max() == a.max()


# ---------------------------------------------------------------- random numbers


@pytest.mark.parametrize(
  "where", [Sharding(D4, 0), Sharding(D4, 1), Sharding(GRID, P("y", "x")), Sharding(D4), D4], ids=str
)
@pytest.mark.parametrize("shape", [(8, 4), (5, 3)])
def test_random_numbers_do_not_depend_on_the_placement(where, shape):
  makers = (
    lambda d: Tensor.rand(*shape, device=d),
    lambda d: Tensor.randn(*shape, device=d),
    lambda d: Tensor.randint(*shape, low=-3, high=9, device=d),
    lambda d: Tensor.uniform(*shape, low=-1, high=1, device=d),
    lambda d: Tensor.normal(*shape, mean=2, device=d),
    lambda d: Tensor.glorot_uniform(*shape, device=d),
    lambda d: Tensor.kaiming_uniform(*shape, device=d),
    lambda d: Tensor.kaiming_normal(*shape, device=d),
    lambda d: Tensor.scaled_uniform(*shape, device=d),
  )
  placement = where if isinstance(where, Sharding) else Sharding(where)
  for make in makers:
    Tensor.manual_seed(7)
    want = make("CPU:1").numpy()
    Tensor.manual_seed(7)
    got = make(where)
    assert got.device == placement and len(np.unique(want)) > 4
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
  Tensor.manual_seed(7)
  want = Tensor.randperm(13, device="CPU:1").numpy()
  Tensor.manual_seed(7)
  np.testing.assert_array_equal(Tensor.randperm(13, device=D4).numpy(), want)
  assert sorted(want.tolist()) == list(range(13))


@pytest.mark.parametrize("n", (8, 5))
def test_dropout_drops_the_same_elements_wherever_they_are(n):
  a = np.ones((n, 6), np.float32)
  with Context(TRAINING=1):
    Tensor.manual_seed(3)
    want = Tensor(a).dropout(0.5).numpy()
    Tensor.manual_seed(3)
    got = Tensor(a).shard(D4, 0).dropout(0.5)
    assert got.device == Sharding(D4, 0)
    np.testing.assert_array_equal(got.numpy(), want)
    assert 0 < (want == 0).sum() < want.size
  assert not TRAINING.value


def test_counters_under_keys():
  key, counter = Tensor(np.array([3, 4], np.uint32)), Tensor(np.array([0, 0], np.uint32))
  want = Tensor.random_bits(key, counter, 7).numpy()
  np.testing.assert_array_equal(Tensor.random_bits(key.shard(D4), counter.shard(D4), 7).numpy(), want)
  counters, keys = np.arange(5, dtype=np.uint64), np.full(5, 9, np.uint64)
  want = Tensor(counters).threefry(Tensor(keys)).numpy()
  np.testing.assert_array_equal(Tensor(counters).shard(D4, 0).threefry(Tensor(keys).shard(D4, 0)).numpy(), want)


# ---------------------------------------------------------------- algorithms


def test_hashes():
  data = np.random.default_rng(0).integers(0, 256, (4, 40)).astype(np.uint8)
  want = Tensor(data).keccak().numpy()
  np.testing.assert_array_equal(Tensor(data).shard(D2, 0).keccak().numpy(), want)


def test_decompositions():
  a = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
  for cut in (0, 1):
    x = Tensor(a).shard(D2, cut).realize()
    q, r = x.qr()
    np.testing.assert_allclose((q @ r).numpy(), a, atol=1e-5)
    np.testing.assert_allclose(r.numpy(), Tensor(a).qr()[1].numpy(), atol=1e-5)
    np.testing.assert_allclose(x.svd()[1].numpy(), np.linalg.svd(a)[1], rtol=1e-4)


# ---------------------------------------------------------------- uneven cuts


@pytest.mark.parametrize("n", LENGTHS)
def test_uneven_cuts_in_a_step_of_training(n):
  a, w, y = integers(n, n, 6), integers(1, 6, 3), integers(2, n, 3)

  def step(x, w, y):
    loss = (((x @ w).relu() - y) ** 2).mean()
    return loss, *loss.gradient(x, w)

  want = [t.numpy() for t in step(*(Tensor(v).realize() for v in (a, w, y)))]
  cut = TinyJit(step)
  for k in range(4):  # the last ones are replays
    x, weight, target = Tensor(a).shard(D4, 0), Tensor(w).shard(D4, k % 2), Tensor(y).shard(D4, 0)
    got = cut(x.realize(), weight.realize(), target.realize())
    assert [t.device for t in got[1:]] == [x.device, weight.device]
    for g, h in zip(got, want, strict=True):
      np.testing.assert_allclose(g.numpy(), h, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", LENGTHS)
def test_uneven_cuts_reshape(n):
  a = integers(0, n, 4, 3)
  x = Tensor(a).shard(D4, 0).realize()
  for shape in ((n, 12), (n * 4, 3), (n, 2, 2, 3), (4, n, 3), (n * 12,)):
    np.testing.assert_array_equal((x.reshape(shape) * 2).numpy(), a.reshape(shape) * 2)
  assert n == 1 or x.reshape(n, 12).uop.device == x.device, "the cut dim is not touched"


def test_shards_of_an_uneven_cut():
  a = integers(0, 5, 3)
  parts = Tensor(a).shard(D4, 0).shards
  assert [p.shape for p in parts] == [(2, 3), (2, 3), (1, 3), (0, 3)]
  np.testing.assert_array_equal(np.concatenate([p.numpy() for p in parts]), a)


# ---------------------------------------------------------------- mixed operands


def test_sharded_with_plain():
  a, b = integers(0, 8, 4), integers(1, 8, 4)
  x, y = Tensor(a).shard(D4, 0).realize(), Tensor(b, device="CPU:1").realize()
  for z, want in ((x + y, a + b), (y - x, b - a), (x.cat(y, dim=0), np.concatenate([a, b])), (x @ y.T, a @ b.T)):
    assert isinstance(z.device, Sharding)
    np.testing.assert_array_equal(z.numpy(), want)


@pytest.mark.parametrize(
  "other", [Sharding(D4, 1), Sharding(D4), Sharding(GRID, P("y", "x")), Sharding(GRID, P(None, ("y", "x")))], ids=str
)
def test_another_cut_or_mesh_reshards_by_cost_and_raises_where_that_is_forbidden(other):
  a, b = integers(0, 8, 4), integers(1, 8, 4)
  x, y = Tensor(a).shard(D4, 0).realize(), Tensor(b).shard(other).realize()
  z = x * 2 + y
  np.testing.assert_array_equal(z.numpy(), a * 2 + b)
  whole = 8 * 4 * 4
  assert explain(x * 2 + y).wire <= whole * 3 / 4, "never more than gathering one of them"
  if other == Sharding(D4):
    assert explain(x * 2 + y).wire == 0  # a slice
    return
  with Context(RESHARD=0), pytest.raises(ShardError) as e:
    (x * 2 + y).realize()
  text = str(e.value)
  assert "dim 0 over" in text and "RESHARD=0" in text and "fix:" in text and "shard(" in text
  with Context(RESHARD=0):
    np.testing.assert_array_equal((x * 2 + y.shard(x.device)).numpy(), a * 2 + b)


def test_another_order_of_the_devices():
  a, b = integers(0, 8, 4), integers(1, 8, 4)
  x, y = Tensor(a).shard(D4, 0).realize(), Tensor(b).shard(D4[::-1], 0).realize()
  with pytest.raises(ShardError, match=r"(?s)CPU:1-4.*CPU:4.*fix:"):
    x + y
  np.testing.assert_array_equal((x + y.shard(x.device)).numpy(), a + b)


def test_state_of_shards_is_joined():
  a = integers(0, 5, 3)
  parts = [Tensor(a + i).shard(D4, 0).realize() for i in range(3)]
  np.testing.assert_array_equal(Tensor.cat(*parts, dim=0).numpy(), np.concatenate([a, a + 1, a + 2]))
  np.testing.assert_array_equal(Tensor.cat(*parts, dim=1).numpy(), np.concatenate([a, a + 1, a + 2], 1))
  assert Tensor.cat(*parts, dim=1).dtype is dtypes.float32
