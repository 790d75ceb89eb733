"""Indexing against numpy: reading, writing, gather and scatter, order."""

import numpy as np
import pytest
from tensor_oracle import check, close, normal

from tinygrad import GlobalCounters, Tensor, TinyJit, Variable, dtypes

I = Ellipsis
VIEWS = [
  0, -1, (1, 2), (1, -1, 3), slice(None), slice(1, None), slice(None, -1), slice(None, None, 2), slice(None, None, -1),
  slice(3, 0, -2),
  slice(5, 9), slice(2, 1), slice(-9, 9), (slice(None), slice(0, 2), slice(1, None, 2)), (I, 0), (0, I),
  (I, slice(1, 3)), None,
  (None, 0, None), (slice(None), None, 1), (I, None), (slice(0, 1), I, -1),
  (slice(None, None, -2), slice(2, None, -1)), (),
]  # fmt: skip


@pytest.mark.parametrize("index", VIEWS, ids=str)
def test_views(index):
  check(lambda x: x[index], lambda x: x[index], normal(1, (4, 3, 5)), grad=False)
  check(
    lambda x: x[index[:1] if isinstance(index, tuple) else index],
    lambda x: x[index[:1] if isinstance(index, tuple) else index],
    normal(1, (4,)),
  )


A, B, C = np.array([0, 2, -1]), np.array([[1], [0]]), np.array([1, 1, 0])
ROWS = [
  (A,), (B,), (slice(None), A), (A, C), (B, A), (slice(None), A, C), (A, slice(None), C), (I, A), (0, A), (A, 0),
  (None, A), (A, None, C),
  (slice(1, 3), slice(None, None, -1), A), (A, I), (np.array(2), A),
]  # fmt: skip


@pytest.mark.parametrize("index", ROWS, ids=lambda i: ",".join(getattr(x, "shape", x).__str__() for x in i))
def test_integer_tensors(index):
  pick = tuple(Tensor(x.astype(np.int32)) if isinstance(x, np.ndarray) else x for x in index)
  check(lambda x: x[pick], lambda x: x[index], normal(2, (3, 3, 3)))


def test_lists_and_types_of_indices():
  x = np.arange(6).reshape(2, 3)
  t = Tensor(x)
  close(t[[0, 1], [0, 2]], x[[0, 1], [0, 2]])
  close(t[:, [2, 0]], x[:, [2, 0]])
  for dtype in (dtypes.uint8, dtypes.int64):
    close(t[Tensor([1, 0], dtype=dtype)], x[[1, 0]])
  close(t[np.int64(1)], x[1])


def test_an_integer_tensor_outside_reads_zero():
  close(Tensor([1.0, 2.0])[Tensor([1, 2, -3])], [2.0, 0.0, 0.0])
  close(Tensor([[1.0, 2.0], [3.0, 4.0]])[Tensor([0, 0]), Tensor([1, 2])], [2.0, 0.0])


def test_embedding_gradient_adds_repeated_rows():
  table = Tensor(normal(1, (4, 2)))
  (g,) = (table[Tensor([1, 1, 3])] * Tensor([[1.0], [10.0], [100.0]], dtype="float64")).sum().gradient(table)
  close(g, np.array([[0, 0], [11, 11], [0, 0], [100, 100]], np.float64))


def test_iteration_and_len():
  t = Tensor([[1, 2], [3, 4]])
  assert len(t) == 2
  assert [row.tolist() for row in t] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather(dim):
  x, index = normal(1, (3, 4)), np.random.default_rng(0).integers(0, 3, (3, 4))
  check(lambda t: t.gather(dim, Tensor(index)), lambda v: np.take_along_axis(v, index, dim), x)


def test_gather_of_a_smaller_index():
  x = np.arange(12).reshape(3, 4)
  close(Tensor(x).gather(1, Tensor([[3, 0], [1, 1]])), [[3, 0], [5, 5]])


def test_scatter():
  x = np.zeros((3, 4), np.float32)
  index, src = np.array([[0, 2, 0], [1, 1, 2]]), np.array([[1, 2, 3], [4, 5, 6]], np.float32)
  for dim in (0, 1):
    last, total = x.copy(), x.copy()
    for at in np.ndindex(index.shape):
      to = tuple(index[at] if d == dim else a for d, a in enumerate(at))
      last[to] = src[at]
      total[to] += src[at]
    args = (dim, Tensor(index), Tensor(src))
    close(Tensor(x).scatter(*args), last)
    close(Tensor(x).scatter(*args, reduce="add"), total)
    close(Tensor(x).scatter_reduce(*args, reduce="sum"), total)
  close(Tensor.ones(3).scatter(0, Tensor([0, 2]), 2.0, reduce="multiply"), [2.0, 1.0, 2.0])
  close(Tensor.ones(3).scatter(0, Tensor([0, -1]), 5.0), [5.0, 1.0, 5.0])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int64, np.uint64])
@pytest.mark.parametrize("reduce", [None, "add", "multiply"])
def test_scatter_counts_places_in_a_type_that_holds_them(dtype, reduce):
  """The tensor is longer than a narrow index counts, and its second row, where the index ends, stays as it is."""
  x, index, src = np.full((2, 300), 3.0, np.float32), np.array([[2, -1, 4]]).astype(dtype), np.array([5.0, 6.0, 7.0])
  want = x.copy()
  for i, v in zip(map(int, index[0]), src):
    if i < 300:  # of an unsigned index -1 is the greatest
      want[0, i] = {None: v, "add": 3 + v, "multiply": 3 * v}[reduce]
  close(Tensor(x).scatter(1, Tensor(index), Tensor(src[None].astype(np.float32)), reduce=reduce), want)


REDUCES = {"prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("own", [True, False])
def test_scatter_reduce(reduce, own):
  x, index, src = np.array([2.0, 3.0, 4.0], np.float32), [0, 0, 2], np.array([5.0, 1.0, 7.0], np.float32)
  groups = {0: [5.0, 1.0], 2: [7.0]}
  want = [float(REDUCES[reduce](groups[i] + ([x[i]] if own else []))) if i in groups else x[i] for i in range(3)]
  close(Tensor(x).scatter_reduce(0, Tensor(index), Tensor(src), reduce, include_self=own), np.array(want, np.float32))


@pytest.mark.parametrize("reduce", [None, "add", "multiply"])
def test_scatter_keeps_a_narrow_type(reduce):
  x, src = Tensor([1, 2], dtype=dtypes.int8), Tensor([3, 4], dtype=dtypes.int8)
  got = x.scatter(0, Tensor([1, 1]), src, reduce=reduce)
  assert got.dtype is dtypes.int8
  close(got, {None: [1, 4], "add": [1, 9], "multiply": [1, 24]}[reduce])


def test_one_hot():
  close(Tensor([0, 2, 3, -1]).one_hot(3), [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])
  assert Tensor([1]).one_hot(2).dtype is dtypes.int32


@pytest.mark.parametrize("dtype", [dtypes.bool, *dtypes.ints])
def test_classes_that_a_type_does_not_hold(dtype):
  """Of 300 classes 0 and 256 are not the same, whatever holds the labels."""
  labels = Tensor([0, 1, 1, 0], dtype=dtype) if dtype is dtypes.bool else Tensor([0, 44, 127, 0], dtype=dtype)
  which, x = labels.numpy().astype(np.int64), np.random.default_rng(0).standard_normal((4, 300)).astype(np.float32)
  close(labels.one_hot(300), np.eye(300, dtype=np.int32)[which])
  log_softmax = x - np.log(np.exp(x).sum(1, keepdims=True))
  close(Tensor(x).cross_entropy(labels.int() if dtype is dtypes.bool else labels), -log_softmax[range(4), which].mean())
  if dtypes.is_int(dtype) and not dtypes.is_unsigned(dtype):
    close(Tensor([-1], dtype=dtype).one_hot(300), np.zeros((1, 300), np.int32))


def test_places_beyond_int32():
  n = 2**31 + 2
  x = Tensor.zeros(n, dtype=dtypes.uint8)  # without memory
  x[n - 1] = 7  # elements have numbers that int32 does not hold
  assert x.shape == (n,) and x.dtype is dtypes.uint8
  assert Tensor.zeros(n).nonzero(size=1).dtype is Tensor.zeros(n).cummax()[1].dtype is dtypes.int64
  assert Tensor.zeros(9).nonzero(size=1).dtype is Tensor.zeros(9).nonzero().dtype is dtypes.int32
  assert Tensor([n - 1], dtype=dtypes.int64).one_hot(n)[0, n - 2 :].tolist() == [0, 1]


def test_masked_select_and_nonzero():
  x = np.array([[0, 3, 0], [5, 0, 7]])
  close(Tensor(x).masked_select(Tensor(x > 2)), [3, 5, 7])
  close(Tensor(x).masked_select(Tensor(x > 2), size=4, fill_value=-1), [3, 5, 7, -1])
  close(Tensor(x).nonzero(), np.argwhere(x))
  close(Tensor(x).masked_fill(Tensor(x > 2), 9), np.where(x > 2, 9, x))


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(descending):
  x = np.array([[3, 1, 2, 1, 3], [0, 0, 5, -1, 0]])
  order = np.argsort(-x if descending else x, 1, kind="stable")
  values, places = Tensor(x).sort(descending=descending)
  close(values, np.take_along_axis(x, order, 1))
  close(places, order)
  close(Tensor(x.T).argsort(0, descending), order.T)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("n", [1, 127, 129, 700])
@pytest.mark.parametrize(
  "kind", ["bool", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
)
def test_sort_merges_blocks_of_every_type(kind, n, descending):
  rng = np.random.default_rng(n)
  if kind.startswith("float"):
    x = (rng.standard_normal((2, n)) * 3).round(1).astype(kind)
    x[0, ::5], x[0, 1::5], x[0, 2::7], x[0, 3::7], x[1, ::3] = 0.0, -0.0, np.nan, np.inf, -np.inf
  else:
    lo, hi = (0, 2) if kind == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
    few = rng.integers(lo, hi, 40, dtype="uint8" if kind == "bool" else kind)
    x = np.concatenate([few, np.array([lo, hi - (kind == "bool")], few.dtype)])[rng.integers(0, 42, (2, n))].astype(
      kind
    )
  order = np.argsort(x, 1, kind="stable")
  if descending:  # equal elements still keep their order
    order = (n - 1 - np.argsort(x[:, ::-1], 1, kind="stable"))[:, ::-1]
  values, places = Tensor(x).sort(descending=descending)
  np.testing.assert_array_equal(places.numpy(), order)
  np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, 1))


def test_a_merge_of_blocks_neither_of_which_is_reversed_is_seen(monkeypatch):
  x = np.random.default_rng(3).standard_normal(300).astype(np.float32)
  monkeypatch.setattr(Tensor, "flip", lambda self, *_: self)
  assert (Tensor(x).argsort().numpy() != np.argsort(x)).any()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_cut_row_is_sorted_where_another_dim_can_be_cut(axis):
  x = np.random.default_rng(2).standard_normal((8, 300)).astype(np.float32)
  t = Tensor(x).shard(tuple(f"CPU:{i}" for i in range(4)), axis)
  values, places = t.sort(1)
  np.testing.assert_array_equal(places.numpy(), np.argsort(x, 1, kind="stable"))
  np.testing.assert_array_equal(values.numpy(), np.sort(x, 1))
  assert places.uop.device.axis == 0
  np.testing.assert_array_equal(t.topk(3, 1)[0].numpy(), -np.sort(-x, 1)[:, :3])


def test_sort_of_nan_and_its_gradient():
  close(Tensor([np.nan, 1.0, -np.inf]).sort()[1], [2, 1, 0])
  check(lambda x: x.sort(1)[0], lambda x: np.sort(x, 1), normal(3, (2, 4)))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("kind", ["normal", "ties", "rare", "integers"])
def test_topk_of_long_rows(kind, largest):
  rng = np.random.default_rng(3)
  x = rng.standard_normal((2, 5000)).astype(np.float32)
  if kind == "ties":
    x = np.round(x)
  if kind == "rare":  # fewer numbers than asked for: nan counts as the greatest
    x[:] = np.nan
    x[:, [7, 4999]] = 3.0, -np.inf
  if kind == "integers":
    x = rng.integers(-(1 << 31), 1 << 31, (2, 5000)).astype(np.int32)
  want = np.argsort(-x.astype(np.float64) if largest and kind != "rare" else x, axis=1, kind="stable")[:, :9]
  if kind == "rare" and largest:
    want = np.stack([np.flatnonzero(np.isnan(row))[:9] for row in x])
  values, places = Tensor(x).topk(9, largest=largest)
  np.testing.assert_array_equal(places.numpy(), want)
  np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, want, 1))


@pytest.mark.parametrize("k", [63, 64, 65, 200])
def test_topk_of_few_and_of_many(k):
  x = np.random.default_rng(k).integers(0, 50, (3, 200)).astype(np.int32)
  want = np.argsort(-x, 1, kind="stable")[:, :k]
  values, places = Tensor(x).topk(k)
  np.testing.assert_array_equal(places.numpy(), want)
  np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, want, 1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint32", "int8", "bool", "float64"])
@pytest.mark.parametrize(
  "shape, k", [((3, 1000), 10), ((2, 5001), 70), ((1, 20000), 65), ((5, 129), 16), ((4, 130), 129)]
)
def test_topk_leaves_blocks_out(shape, k, dtype):
  """Rows of which most is left out, once and twice; ties, infinities and NaN: equal elements keep their order."""
  rng = np.random.default_rng(k)
  x = rng.integers(-9, 9, shape).astype(np.float64) if dtype != "uint32" else rng.integers(0, 1 << 32, shape)
  if "float" in dtype:
    x = np.where(rng.random(shape) < 0.3, x, rng.standard_normal(shape))
    x[rng.random(shape) < 0.01], x[rng.random(shape) < 0.01] = np.nan, -np.inf
  t = Tensor(x).cast(dtype).realize()
  seen = t.cast("float64").numpy()
  for largest in (True, False):
    keys = np.where(np.isnan(seen), np.inf, seen) * (-1 if largest else 1)
    rank = np.isnan(seen) != largest
    want = np.lexsort((np.broadcast_to(np.arange(shape[1]), shape), keys, rank), axis=1)[:, :k]
    values, places = t.topk(k, largest=largest)
    np.testing.assert_array_equal(places.numpy(), want)
    np.testing.assert_array_equal(values.cast("float64").numpy(), np.take_along_axis(seen, want, 1))


@pytest.mark.parametrize("axis", [0, 1, None])
def test_topk_of_long_rows_sharded(axis):
  x = np.random.default_rng(8).integers(0, 99, (6, 1001)).astype(np.float32)
  t = Tensor(x).shard(tuple(f"CPU:{i}" for i in range(4)), axis)
  np.testing.assert_array_equal(t.topk(70, 1)[1].numpy(), np.argsort(-x, 1, kind="stable")[:, :70])
  owed = t.unsqueeze(0).expand(3, 6, 1001).sum(0) if axis is None else t.sum(axis, keepdim=True).expand(6, 1001).add(t)
  np.testing.assert_array_equal(owed.topk(70, 1)[0].numpy(), -np.sort(-owed.numpy(), 1)[:, :70])


def test_topk_does_not_sort_all():
  """Of 10,000 elements few are compared with one another."""
  x = Tensor.empty(4, 10000)
  GlobalCounters.reset()
  x.topk(100)[0].realize()
  few = GlobalCounters.global_ops
  GlobalCounters.reset()
  x.sort()[0].realize()
  assert few < 0.25 * GlobalCounters.global_ops


def test_topk():
  x = normal(4, (2, 6))
  values, places = Tensor(x).topk(2)
  close(values, -np.sort(-x, 1)[:, :2])
  np.testing.assert_array_equal(np.take_along_axis(x, places.numpy(), 1), values.numpy())
  close(Tensor(x).topk(2, largest=False)[0], np.sort(x, 1)[:, :2])


WRITES = [
  (1, 5), (slice(0, 2), 7), ((slice(None), 0), 9), ((slice(None), slice(1, 3)), np.arange(8).reshape(4, 2)),
  (slice(None, None, 2), -1),
  (slice(None, None, -1), np.arange(12).reshape(4, 3)), ((slice(0, 2), 1), np.array([5, 6])), ((I, -1), 3),
  (np.array([0, 2]), 4),
  (np.array([0, 2]), np.arange(6).reshape(2, 3)), ((slice(None), np.array([2, 0])), 8),
  ((np.array([0, 3]), np.array([1, 2])), np.array([10, 11])),
  (slice(4, 4), 1), ((None, 1), 6), ((slice(1, 3), slice(None, None, 2)), np.arange(4).reshape(2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("realized", [True, False])
@pytest.mark.parametrize("index,value", WRITES, ids=str)
def test_setitem(index, value, realized):
  want = np.arange(12).reshape(4, 3)
  t = Tensor(want).clone().realize() if realized else Tensor(want) + 0
  want[index] = value

  def wrap(x):
    return Tensor(x) if isinstance(x, np.ndarray) else x

  t[tuple(map(wrap, index)) if isinstance(index, tuple) else wrap(index)] = wrap(value)
  close(t, want)


def test_setitem_with_a_mask_and_repeated_places():
  x = np.arange(4)
  t = Tensor(x).clone().realize()
  t[Tensor(x > 1)] = 7
  close(t, [0, 1, 7, 7])
  t[Tensor([0, 0, 1])] = Tensor([1, 2, 3])
  close(t, [2, 3, 7, 7])


def test_setitem_casts_to_the_tensor():
  t = Tensor([1, 2]).clone().realize()
  t[0] = 5.7
  assert t.dtype is dtypes.int32
  close(t, [5, 2])


def test_setitem_writes_in_place_and_views_see_it():
  t = Tensor.zeros(4).clone().realize()
  buffer, view = t.uop, t[1:3]
  t[1:3] = Tensor([5.0, 6.0])
  close(t, [0.0, 5.0, 6.0, 0.0])
  assert t.realize().uop is buffer
  close(view, [5.0, 6.0])


def test_symbolic_slices():
  v = Variable("v", 1, 8)
  cache = Tensor.zeros(10).clone().realize()
  for i in (1, 3, 4):
    at = v.bind(i)
    cache[at : at + 2] = Tensor([float(i), 9.0])
    cache.realize()
  close(cache, [0.0, 1.0, 9.0, 3.0, 4.0, 9.0, 0.0, 0.0, 0.0, 0.0])
  at = v.bind(4)
  assert cache[:at].sum().item() == 13.0
  assert cache[at].item() == 4.0
  assert cache[: at + 1].max().item() == 9.0
  close(Tensor.arange(10)[:at].reshape(at, 1).expand(at, 3).sum(0), [6, 6, 6])


ERRORS = [
  (lambda x: x[2], IndexError, "index 2 is out of range for dim 0"),
  (lambda x: x[0, 0, 0], IndexError, "3 indices for the 2 dims"),
  (lambda x: x[..., ...], IndexError, "one ellipsis"),
  (lambda x: x[1.5], IndexError, "float is no index"),
  (lambda x: x[::0], IndexError, "step must not be 0"),
  (lambda x: x["a":], IndexError, "must be integers"),
  (lambda x: x[Tensor([True, False, True])], IndexError, "mask must have the shape"),
  (lambda x: x[Tensor([0.0])], IndexError, "must hold integers"),
  (lambda x: x[Tensor([0, 1]), Tensor([0, 1, 2])], IndexError, "must broadcast together"),
  (lambda x: x.gather(0, Tensor([0])), ValueError, "index must have 2 dims"),
  (lambda x: x.gather(0, Tensor([[0.0]])), TypeError, "must hold integers"),
  (lambda x: x.scatter(0, Tensor([[0]]), Tensor([[1]])), TypeError, "must have the tensor's dtype"),
  (lambda x: x.scatter(0, Tensor([[0]]), 1.0, reduce="max"), ValueError, "unknown reduce"),
  (lambda x: x.one_hot(3), TypeError, "classes must be integers"),
  (lambda x: x.topk(4), ValueError, "k = 4 is not within"),
  (lambda x: x.__setitem__(0, Tensor.zeros(4)), ValueError, "must broadcast to the indexed shape"),
]  # fmt: skip


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call, error, message):
  with pytest.raises(error, match=message):
    call(Tensor.zeros(2, 3))


@pytest.mark.parametrize(
  "index", [[slice(None), [1, 3]], [None, 1], [..., 1], [slice(0, 2)], [slice(None), None, [0, 0]]]
)
def test_a_list_that_is_no_array_is_one_index_a_dim(index):
  """What numpy reads as a tuple as long as it reads such lists at all (to 1.22), and PyTorch does."""
  x = normal(1, (4, 5))
  close(Tensor(x)[index], x[tuple(index)])


@pytest.mark.parametrize(
  "index", [[1, 3], [[1, 2], [0, 1]], [True, False, True, True], [[True, False] * 2 + [True]] * 4, []]
)
def test_a_list_of_numbers_is_an_array(index):
  x = normal(1, (4, 5))
  close(Tensor(x)[index], x[index])
  close(Tensor(x)[index], x[np.array(index, dtype=bool if index and np.array(index).dtype == bool else int)])


@pytest.mark.parametrize("device", ["CPU:1", ("CPU:0", "CPU:1")])
def test_a_list_of_numbers_is_where_the_tensor_is(device):
  x = normal(1, (4, 5))
  t = Tensor(x).to(device) if isinstance(device, str) else Tensor(x).shard(device, 0)
  close(t[[2, 0]], x[[2, 0]])
  close(t[:, [2, 0]], x[:, [2, 0]])
  close(t[[True, False, True, False]], x[[True, False, True, False]])


def test_a_list_of_numbers_and_lists_is_refused():
  with pytest.raises(IndexError, match=r"no array of integers or bools(.|\n)*fix: separate(.|\n)*x\[1, \[0, 2\]\]"):
    Tensor.ones(4, 5)[[1, [0, 1]]]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "bool", "float16"])
def test_positions_are_of_the_default_integer_whatever_holds_the_values(dtype):
  x = np.tile(np.arange(-3, 4), 50).astype(dtype)
  t = Tensor(x)
  found = {
    "argmax": (t.argmax(), x.argmax()), "argmin": (t.argmin(), x.argmin()),
    "argsort": (t.argsort(), np.argsort(x, kind="stable")), "sort": (t.sort()[1], np.argsort(x, kind="stable")),
    "topk": (t.topk(200, largest=False)[1], np.argsort(x, kind="stable")[:200]),
    "cummax": (t.cummax()[1].max(), [i for i in range(350) if x[i] == x.max()][-1]),
    "nonzero": (t.nonzero(), np.argwhere(x)),
  }  # fmt: skip
  for name, (got, want) in found.items():
    assert got.dtype is dtypes.default_int, name
    np.testing.assert_array_equal(got.numpy(), want, name)


VARIABLE_INDICES = [
  ("before", lambda x: x[Variable("i", -3, 3).bind(-2)], r"index i=-2 is out of range for dim 0.*\(9,\)"),
  ("behind", lambda x: x[Variable("i", 0, 9).bind(9)], "index i=9 is out of range"),
  ("write", lambda x: x.__setitem__(Variable("i", 0, 20).bind(15), 1.0), "index i=15 is out of range"),
  ("end", lambda x: x[: Variable("i", 0, 20).bind(15)], r"range \(0, i=15\) is not inside \[0, 9\]"),
  ("begin", lambda x: x[Variable("i", -3, 3).bind(-1) :], r"range \(i=-1, 9\) is not inside \[0, 9\]"),
  ("two ends", lambda x: x[(i := Variable("i", 0, 9).bind(8)) : i + 2], r"is not inside \[0, 9\]"),
  ("nothing", lambda x: x[Variable("i", 0, 9).bind(8) : 2], r"range \(i=8, 2\) is not inside \[0, 9\]"),
  ("captured", lambda x: TinyJit(lambda x, i: x[i] + 1)(x, Variable("i", 0, 20).bind(15)), "index i=15 is out of"),
]


@pytest.mark.parametrize(("call", "message"), [v[1:] for v in VARIABLE_INDICES], ids=[v[0] for v in VARIABLE_INDICES])
def test_a_variable_that_is_bound_to_what_is_outside_is_told(call, message):
  """It read, and wrote, memory beside the tensor's."""
  x = Tensor(np.arange(9, dtype=np.float32)).realize()
  with pytest.raises((IndexError, ValueError), match=f"(?s){message}.*fix: "):
    call(x)
  assert x.tolist() == [*range(9)]


def test_a_variable_below_0_counts_from_the_end():
  x = np.arange(18, dtype=np.float32).reshape(2, 9)
  i = Variable("i", -9, -1)
  for k in (-9, -3, -1):
    t = Tensor(x).clone().realize()
    close(t[:, i.bind(k)], x[:, k])
    close(t[:, i.bind(k) :].sum(1), x[:, k:].sum(1))
    close(t[:, : i.bind(k)].sum(1), x[:, :k].sum(1))
    t[:, i.bind(k)] = 50
    want = x.copy()
    want[:, k] = 50
    close(t, want)


MASK = np.array([[True, False, True], [False, True, True]])


@pytest.mark.parametrize(
  "index",
  [
    True,
    False,
    np.True_,
    np.array(False),
    (True, 0),
    (0, True),
    (..., True),
    (None, True),
    (True, False),
    (True, [0, 1]),
    ([0, 1], True),
    (slice(None), True, [0, 1]),
    (..., True, 0),
    (MASK, True),
    (True, MASK),
    ([True, False], True),
    (slice(None), MASK[0], True),
    (slice(None, None, -1), True, slice(1, 3)),
  ],
  ids=str,
)
def test_a_bool_keeps_all_or_nothing_in_a_new_dim(index):
  """As NumPy and PyTorch have it; numpy is the oracle, of reading and of writing."""
  a = np.arange(6, dtype=np.int32).reshape(2, 3)
  got, written = Tensor(a)[index].numpy(), Tensor(a).realize()
  assert got.shape == a[index].shape
  np.testing.assert_array_equal(got, a[index])
  written[index] = 9
  a[index] = 9
  np.testing.assert_array_equal(written.numpy(), a)


def test_a_bool_tensor_without_dims_is_read_as_an_index():
  x = Tensor([[1, 2], [3, 4]])
  assert x[Tensor(True)].tolist() == [[[1, 2], [3, 4]]] and x[0, Tensor([3]).sum() > 5].shape == (0, 2)


@pytest.mark.parametrize("indices", [[7, 1], [-5, 2], [4, 0], [9, 9]])
def test_what_is_written_beyond_a_dim_goes_nowhere(indices):
  """As what is read there is 0. (It was written to the first element.)"""
  for shape in ((4,), (4, 3)):
    x, want = Tensor.arange(int(np.prod(shape))).reshape(shape).contiguous().realize(), np.arange(np.prod(shape))
    want = want.reshape(shape)
    x[Tensor(indices)] = 9
    want[[i for i in indices if -4 <= i < 4]] = 9
    assert x.tolist() == want.tolist()


@pytest.mark.parametrize("index", [0, [0], [0, 0]], ids=str)
@pytest.mark.parametrize("x", [3.0, [3.0], [1.0, 2.0, 3.0]], ids=str)
def test_gather_and_scatter_take_no_dims_for_one(x, index):
  """As PyTorch has it: a tensor of no dims is one of one element, and the result is of the shape that was given."""
  torch = pytest.importorskip("torch", reason="PyTorch is not installed")
  ours, theirs = (Tensor(x), Tensor(index)), (torch.tensor(x), torch.tensor(index))
  src = np.arange(5, 5 + np.size(index), dtype=np.float32).reshape(np.shape(index))
  close(ours[0].gather(0, ours[1]), theirs[0].gather(0, theirs[1]).numpy())
  if np.size(index) == 1:  # of two for one place PyTorch says nothing
    close(ours[0].scatter(0, ours[1], Tensor(src)), theirs[0].scatter(0, theirs[1], torch.tensor(src)).numpy())
    close(ours[0].scatter(0, ours[1], 7.0), theirs[0].scatter(0, theirs[1], 7.0).numpy())
  for way in ("sum", "amax", "mean"):
    got = ours[0].scatter_reduce(0, ours[1], Tensor(src), way)
    want = theirs[0].scatter_reduce(0, theirs[1], torch.tensor(src), way)
    assert got.shape == tuple(want.shape) == np.shape(x)
    close(got, want.numpy())


def test_an_index_of_no_dims_has_a_gradient():
  x, w = Tensor([1.0, 2.0, 3.0], requires_grad=True), Tensor(4.0, requires_grad=True)
  (x.gather(0, Tensor(1)) * 5 + w.scatter_reduce(0, Tensor(0), w, "sum")).backward()
  assert x.grad.tolist() == [0, 5, 0] and w.grad.tolist() == 2
