"""Creation: from data, from rules, and at random."""

import math
import operator
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from tensor_oracle import close

from tinygrad import Device, GlobalCounters, ShardError, Sharding, Tensor, TinyJit, dtypes
from tinygrad.dtype import to_numpy_dtype
from tinygrad.engine.errors import JitError
from tinygrad.helpers import Context
from tinygrad.mixin.random import threefry
from tinygrad.uop import UOp

D2 = ("CPU:0", "CPU:1")

DATA = [
  (3, dtypes.int32, ()), (3.0, dtypes.float32, ()), (True, dtypes.bool, ()), ([], dtypes.float32, (0,)),
  ([1, 2], dtypes.int32, (2,)),
  ([[1, 2.5]], dtypes.float32, (1, 2)), ([True, False], dtypes.bool, (2,)), ([True, 2], dtypes.int32, (2,)),
  (b"abc", dtypes.uint8, (3,)),
  (np.arange(3), dtypes.int64, (3,)), (np.float16(2), dtypes.float16, ()),
  (np.zeros((2, 0), np.float64), dtypes.float64, (2, 0)),
  (np.arange(6).reshape(2, 3).T, dtypes.int64, (3, 2)), ((1, 2), dtypes.int32, (2,)), (None, dtypes.float32, (0,)),
  ([np.float32(1), np.float32(2)], dtypes.float32, (2,)),
]  # fmt: skip


@pytest.mark.parametrize("data,dtype,shape", DATA, ids=repr)
def test_from_data(data, dtype, shape):
  t = Tensor(data)
  assert t.dtype is dtype
  assert t.shape == shape
  if data is not None:
    want = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data)
    np.testing.assert_array_equal(t.numpy(), want)


def test_from_data_with_a_type():
  close(Tensor([1.7, -1.7], dtype=dtypes.int32), [1, -1])
  close(Tensor([2**40], dtype="int64"), [2**40])
  close(Tensor([2**64 - 1], dtype=dtypes.uint64).eq(2**64 - 1), [True])
  assert Tensor(np.arange(2), dtype="half").dtype is dtypes.float16
  assert Tensor([1, 2], dtype=dtypes.bfloat16).tolist() == [1.0, 2.0]
  assert Tensor(2.0, dtype=dtypes.int32).item() == 2


def test_from_a_path(tmp_path: pathlib.Path):
  (tmp_path / "x").write_bytes(b"\x01\x02")
  close(Tensor(tmp_path / "x"), [1, 2])


def test_the_array_is_not_changed_and_later_changes_are_not_seen():
  x = np.zeros(3, np.float32)
  t = Tensor(x).realize()
  x[0] = 5
  close(t, [0.0, 0.0, 0.0])
  t += 1
  assert x.tolist() == [5, 0, 0]


def test_constants():
  close(Tensor.zeros(2, 3), np.zeros((2, 3), np.float32))
  close(Tensor.ones((2,), dtype=dtypes.int32), [1, 1])
  close(Tensor.full((2, 2), 7), [[7, 7], [7, 7]])
  close(Tensor.full((), math.inf), np.float32(math.inf))
  assert Tensor.zeros().shape == ()
  assert Tensor.empty(2, 3, dtype="half").dtype is dtypes.float16
  close(Tensor([1, 2]).zeros_like(), [0, 0])
  close(Tensor([1.5, 2]).ones_like(dtype=dtypes.int32), [1, 1])
  close(Tensor([1, 2]).full_like(4), [4, 4])
  close(Tensor.eye(2, 3), np.eye(2, 3, dtype=np.float32))
  close(Tensor.eye(2, dtype=dtypes.int32), np.eye(2, dtype=np.int32))


RANGES = [(5,), (1, 5), (5, 1), (1, 10, 3), (5, -5, -2), (0, 1, 0.3), (1.0, 4), (0,), (-3,)]


@pytest.mark.parametrize("args", RANGES, ids=str)
def test_arange(args):
  close(
    Tensor.arange(*args), np.arange(*args).astype(np.float32 if any(isinstance(a, float) for a in args) else np.int32)
  )


def test_arange_types_and_linspace():
  assert Tensor.arange(3, dtype=dtypes.float16).dtype is dtypes.float16
  close(Tensor.arange(2**40, 2**40 + 3, dtype=dtypes.int64), np.arange(2**40, 2**40 + 3))
  close(Tensor.arange(2**31 - 2, 2**31), [2**31 - 2, 2**31 - 1])
  for args, dtype in (((2**40, 2**40 + 3), None), ((2**31 + 1,), None), ((-1, 2), "uint8"), ((0, 300, 299), "uint8")):
    with pytest.raises(OverflowError, match=r'(?s) is no u?int\d+, which holds.*fix: .*dtype="int64"'):
      Tensor.arange(*args, dtype=dtype)  # they wrapped: 2**40 was 0
  close(Tensor.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype=np.float32))
  close(Tensor.linspace(3, 5, 1), np.array([3], np.float32))
  assert Tensor.linspace(0, 1, 0).shape == (0,)


def test_meshgrid():
  for indexing in ("ij", "xy"):
    for got, want in zip(
      Tensor([1, 2, 3]).meshgrid(Tensor([4, 5]), indexing=indexing),
      np.meshgrid([1, 2, 3], [4, 5], indexing=indexing),
      strict=True,
    ):
      close(got, want)


def test_shapes_and_memory_of_others():
  x = Tensor.zeros(2, 3, dtype="half")
  assert x.empty_like().dtype is dtypes.float16 and Tensor.invalids(2, 3, dtype="int8").shape == (2, 3)
  n = UOp.variable("n", 1, 5).bind(2)
  y = Tensor.ones(5, 2)[:n]
  assert y.max_shape == (5, 2) and y.max_numel() == 10 and x.numpy_shape() == (2, 3)
  with pytest.raises(ValueError, match="symbolic dim"):
    y.numpy_shape()
  z = Tensor([1, 2])
  assert z.to_("CPU:1") is z and z.device == "CPU:1" and z.tolist() == [1, 2]


def test_training_is_a_setting():
  assert not Tensor.training
  with Tensor.train():
    assert Tensor.training
    with Tensor.test():
      assert not Tensor.training
  Tensor.training = True
  assert Tensor([1.0, 1.0]).dropout(1.0).tolist() == [0, 0]
  Tensor.training = False


def test_reading():
  t = Tensor([[1, 2], [3, 4]])
  assert t.tolist() == [[1, 2], [3, 4]]
  assert Tensor([[2.5]]).item() == 2.5
  view = Tensor([[1.5, 2.0]]).data()
  assert (view.format, view.shape, view.tolist()) == ("f", (1, 2), [[1.5, 2.0]])
  assert t.numel() == 4 and t.nbytes() == 16 and t.element_size() == 4 and t.ndim == 2 and t.size(1) == 2
  assert "int32[2, 2] on CPU" in repr(t)


# ---------------------------------------------------------------- placement


def test_creation_on_a_device():
  assert Tensor([1], device="CPU:1").device == "CPU:1"
  assert Tensor.zeros(2, device="CPU:1").device == "CPU:1"
  assert Tensor.zeros(2).device == Device.DEFAULT
  assert Tensor.ones(2, device="cpu:0").device == "CPU"
  close(Tensor.arange(4, device="CPU:1") + Tensor([1, 1, 1, 1], device="CPU:1"), [1, 2, 3, 4])
  assert Tensor.zeros_like(Tensor.ones(2, device="CPU:1")).device == "CPU:1"


def test_shard_forms_and_shards():
  x = np.arange(10).reshape(5, 2)
  t = Tensor(x).shard(D2, axis=0)
  assert t.device is Sharding(D2, 0)
  assert t.shape == (5, 2)
  assert [s.device for s in t.shards] == ["CPU", "CPU:1"]
  for got, want in zip(t.shards, (x[:3], x[3:]), strict=True):
    close(got, want)
  assert Tensor(x).shard(D2, axis=-1).device is Sharding(D2, 1)
  assert Tensor(x).shard(D2).device is Sharding(D2)
  assert Tensor(x).shard(Sharding(D2, 1)).shard(D2, 0).device is Sharding(D2, 0)
  assert Tensor(x).shard_like(t).device is t.device
  close(t.to("CPU") + 1, x + 1)
  y = Tensor(x)
  assert y.shard_(D2, 0) is y and y.device is Sharding(D2, 0)
  close(t.shard(D2, 1), x)


def test_host_data_goes_straight_to_its_shards():
  GlobalCounters.reset()
  Tensor(np.zeros((4, 2))).shard(D2, 0).realize()
  assert (GlobalCounters.kernel_count, GlobalCounters.global_mem) == (1, 64)  # no device holds the whole on the way


# ---------------------------------------------------------------- random


def words(*xs):
  return [UOp.const(dtypes.uint32, x) for x in xs]


# the known answers of Random123 1.14 (kat_vectors, threefry2x32 20 rounds): key, counter, result
KNOWN = [
  ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
  ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
  ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]  # fmt: skip


@pytest.mark.parametrize("key,counter,want", KNOWN)
def test_threefry_gives_the_known_answers(key, counter, want):
  assert tuple(Tensor(u).item() for u in threefry(*words(*counter), *words(*key))) == want
  stored = (Tensor([w], dtype=dtypes.uint32).uop for w in (*counter, *key))
  assert tuple(Tensor(u).item() for u in threefry(*stored)) == want


def test_threefry_and_random_bits_are_functions_of_key_and_counter():
  key, counter = Tensor([1, 2], dtype=dtypes.uint32), Tensor([7, 0], dtype=dtypes.uint32)
  bits = Tensor.random_bits(key, counter, 5)
  assert bits.dtype is dtypes.uint32 and bits.shape == (5,)
  assert Tensor.random_bits(key, Tensor([8, 0], dtype=dtypes.uint32), 3).tolist() == bits.tolist()[2:]
  words = Tensor([7, 8, 9], dtype=dtypes.uint64).threefry(Tensor([2 << 32 | 1], dtype=dtypes.uint64))
  assert words.bitcast(dtypes.uint32).tolist()[:5] == bits.tolist()
  zero = Tensor([0], dtype=dtypes.uint64)
  assert zero.threefry(zero).tolist() == [0x99BA4EFE << 32 | 0x6B200159]  # the first of KNOWN


def test_moments():
  Tensor.manual_seed(1)
  u, n = Tensor.rand(100_000).numpy(), Tensor.randn(100_000).numpy()
  assert 0 <= u.min() and u.max() < 1
  assert abs(u.mean() - 0.5) < 0.005 and abs(u.var() - 1 / 12) < 0.002
  assert np.abs(np.histogram(u, 10, (0, 1))[0] / 1e4 - 1).max() < 0.05
  assert abs(n.mean()) < 0.02 and abs(n.var() - 1) < 0.02 and abs((n**4).mean() - 3) < 0.15
  assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.02
  assert abs(np.corrcoef(u, n)[0, 1]) < 0.02


def test_equal_seeds_and_calls_give_equal_numbers():
  def draw():
    Tensor.manual_seed(7)
    return [
      Tensor.rand(3).tolist(),
      Tensor.rand(3).tolist(),
      Tensor.randn(3).tolist(),
      Tensor.randint(3, low=-5, high=5).tolist(),
    ]

  first = draw()
  assert first == draw()
  assert first[0] != first[1]
  Tensor.manual_seed(8)
  assert Tensor.rand(3).tolist() != first[0]


def test_the_order_of_realising_does_not_matter():
  Tensor.manual_seed(3)
  a, b = Tensor.rand(4), Tensor.rand(4)
  want = [a.tolist(), b.tolist()]
  Tensor.manual_seed(3)
  a, b = Tensor.rand(4), Tensor.rand(4)
  assert [b.tolist(), a.tolist()] == want[::-1]


@pytest.mark.parametrize(
  "make", [Tensor.rand, Tensor.randn, Tensor.randint, Tensor.kaiming_uniform], ids=lambda f: f.__name__
)
def test_a_sharded_tensor_holds_the_values_of_the_whole_one(make):
  Tensor.manual_seed(5)
  whole = make(5, 4).numpy()
  for axis in (None, 0, 1):
    Tensor.manual_seed(5)
    t = make(5, 4, device=Sharding(D2, axis))
    assert t.device is Sharding(D2, axis)
    np.testing.assert_array_equal(t.numpy(), whole)
    Tensor.manual_seed(5)
    np.testing.assert_array_equal(make(5, 4).shard(D2, axis).numpy(), whole)
  Tensor.manual_seed(5)
  np.testing.assert_array_equal(make(5, 4, device="CPU:1").numpy(), whole)


def test_a_tensor_that_is_cut_before_it_is_made_is_made_in_parts():
  Tensor.manual_seed(5)
  whole = Tensor.kaiming_uniform(6, 4).numpy()
  Tensor.manual_seed(5)
  t = Tensor.kaiming_uniform(6, 4)
  t.shard_(D2, 0)
  homes = {u.device for u in t.uop.toposort() if u.op.name == "BUFFER"}
  assert homes == {Sharding(D2)}  # three words on each device; the default device computes nothing
  np.testing.assert_array_equal(t.numpy(), whole)


def test_numbers_drawn_in_a_captured_step_are_the_same_on_every_placement():
  def draw(device):
    Tensor.manual_seed(9)
    x = Tensor.ones(4, 3).shard(D2, device).realize() if device != "CPU" else Tensor.ones(4, 3).contiguous().realize()
    step = TinyJit(lambda x: x.dropout(0.5).realize())
    with Tensor.train():
      return [step(x).tolist() for _ in range(4)]

  whole = draw("CPU")
  assert draw(0) == whole and draw(None) == whole
  assert len({str(x) for x in whole}) == 4


def test_a_captured_step_draws_what_it_would_draw_uncaptured():
  """Also where others draw between its calls, two steps take turns, and after a seed."""

  def run(wrap):
    one, two = wrap(lambda x: x * Tensor.rand(3) + Tensor.rand(2, 3)), wrap(lambda x: (x * Tensor.randn(3)).realize())
    x, out = Tensor([1.0, 2.0, 3.0]).realize(), []
    for k in range(12):
      if k in (0, 7):
        Tensor.manual_seed(4)
      out.append(one(x).tolist())
      if k % 2:
        out.append(two(x).tolist())
      if k % 3 == 0:
        out.append(Tensor.rand(2).tolist())
    return out

  want = run(lambda f: f)
  assert run(TinyJit) == want and len({str(x) for x in want}) > 15


def test_a_seed_within_a_captured_function_is_an_error():
  def draw():
    Tensor.manual_seed(1)
    return Tensor.rand(2)

  step = TinyJit(draw)
  step()
  with pytest.raises(JitError, match=r"manual_seed: .*each replay\n  fix: call it before"):
    step()


@pytest.mark.parametrize("weights", [[0.0, 0.0], [-1.0, 1.0], [math.nan, 1.0], [1.0, 0.0], [3e-45, 0.0, 0.0]])
def test_multinomial_gives_positions_that_are_there(weights):
  found = Tensor([weights]).multinomial(4000, replacement=True).numpy()
  assert found.min() >= 0 and found.max() < len(weights) and (weights[0] <= 0 or not found.any())


def test_multinomial_is_within_the_row_where_rounding_takes_it_to_the_end(monkeypatch):
  """The greatest random number times a sum may be that sum, rounded."""
  monkeypatch.setattr(Tensor, "rand", classmethod(lambda cls, *shape, **kwargs: Tensor.full(shape, 1 - 2.0**-24)))
  rows = Tensor([[0.5, 0.5, 0.0], [2.0**-149, 0.0, 0.0]])
  assert np.float32(1 - 2.0**-24) * np.float32(2.0**-149) == np.float32(2.0**-149)
  assert rows.multinomial(1).tolist() == [[1], [0]]


def test_another_process_gives_the_same_numbers():
  code = "from tinygrad import Tensor; Tensor.manual_seed(11); print(Tensor.rand(3).tolist())"
  root = pathlib.Path(__file__).resolve().parents[2]
  other = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    check=True,
    env={**os.environ, "PYTHONPATH": str(root)},
  )
  Tensor.manual_seed(11)
  assert other.stdout.strip() == str(Tensor.rand(3).tolist())


@pytest.mark.parametrize("place", [None, D2], ids=["one", "D2"])
def test_a_seed_that_is_set_counts_for_captured_steps(place):
  """What replays draw follows from the seed and their number since it was set, whatever was drawn before."""
  x = (Tensor.zeros(4) if place is None else Tensor.zeros(4).shard(place, 0)).contiguous().realize()
  step = TinyJit(lambda x: (x + Tensor.rand(4)).realize())
  for _ in range(3):
    step(x)

  def draw(seed, count):
    Tensor.manual_seed(seed)
    return [step(x).tolist() for _ in range(count)] + [Tensor.rand(2).tolist()]

  first, other = draw(1, 3), draw(2, 5)
  assert draw(1, 3) == first and draw(2, 5) == other
  assert len({str(x) for x in first[:3] + other[:5]}) == 8  # no two alike
  late = step(x)  # waits in a queue, perhaps, while the seed is set
  assert draw(1, 3) == first and late.tolist() not in first + other


def test_a_captured_step_draws_new_numbers_every_time():
  step = TinyJit(lambda: Tensor.rand(4).realize())
  seen = [tuple(step().tolist()) for _ in range(5)]
  assert len(set(seen)) == 5


def test_a_standard_deviation_below_0_is_refused():
  for std in (-1, math.nan):
    with pytest.raises(ValueError, match=rf"normal: a standard deviation is 0 or more, got {std}\n  fix: std="):
      Tensor.normal(3, std=std)
  assert Tensor.normal(3, std=0).tolist() == [0, 0, 0]


def test_types_and_ranges():
  assert Tensor.rand(2, dtype=dtypes.float16).dtype is dtypes.float16
  assert Tensor.rand(1000, dtype=dtypes.float16).max().item() < 1
  assert Tensor.rand(1000, dtype=dtypes.float64).numpy().dtype == np.float64
  r = Tensor.randint(1000, low=-2, high=3)
  assert r.dtype is dtypes.int32 and set(r.tolist()) == {-2, -1, 0, 1, 2}
  assert Tensor.randint(10, low=0, high=1 << 32, dtype=dtypes.int64).numpy().max() > 1 << 20
  u = Tensor.uniform(1000, low=2, high=5).numpy()
  assert 2 <= u.min() < 2.1 and 4.9 < u.max() < 5
  assert abs(Tensor.normal(10_000, mean=3, std=0.5).mean().item() - 3) < 0.05
  bound = math.sqrt(6 / (20 + 30))
  g = Tensor.glorot_uniform(20, 30).numpy()
  assert np.abs(g).max() <= bound and np.abs(g).max() > 0.95 * bound
  assert abs(Tensor.kaiming_normal(100, 50, a=0).numpy().std() - math.sqrt(2 / 50)) < 0.02
  assert sorted(Tensor.randperm(10).tolist()) == list(range(10))
  assert Tensor.rand_like(Tensor.zeros(2, 3)).shape == Tensor.randn_like(Tensor.zeros(2, 3)).shape == (2, 3)
  assert np.abs(Tensor.scaled_uniform(10, 10).numpy()).max() <= 0.1
  assert Tensor.rand(0, 3).numpy().shape == (0, 3)


def test_multinomial_draws_by_weight():
  Tensor.manual_seed(2)
  p = Tensor([0.1, 0.0, 0.6, 0.3])
  counts = np.bincount(p.multinomial(4000, replacement=True).numpy(), minlength=4) / 4000
  np.testing.assert_allclose(counts, [0.1, 0.0, 0.6, 0.3], atol=0.04)
  assert sorted(p.multinomial(3).tolist()) == [0, 2, 3]
  assert Tensor([[1.0, 0.0], [0.0, 1.0]]).multinomial().tolist() == [[0], [1]]


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_draws_nothing_of_a_weight_below_zero(replacement):
  rows = Tensor([[0.5, -0.5, 1.0, 0.25]]).expand(500, 4)
  counts = np.bincount(rows.multinomial(2, replacement).numpy().reshape(-1), minlength=4)
  assert counts[1] == 0 and counts[[0, 2, 3]].min() > 0


def test_multinomial_of_one_dim_and_of_a_scalar():
  Tensor.manual_seed(3)
  assert Tensor([2.0]).multinomial(4, replacement=True).tolist() == [0] * 4
  assert Tensor([1, 0, 0]).multinomial().tolist() == [0]
  assert Tensor(2.0).multinomial().tolist() == [0]
  assert Tensor(2).multinomial(3, replacement=True).tolist() == [0, 0, 0]
  with pytest.raises(ValueError, match=r"cannot draw 2 of 1 without(.|\n)*fix: replacement=True"):
    Tensor(2.0).multinomial(2)


def test_one_call_makes_more_than_one_word_counts():
  """Beyond 2**32 numbers a call goes on as the next call would, and that one after it."""
  Tensor.manual_seed(5)
  n = 1 << 32
  many = Tensor.rand(2, n + 3)
  first, later = many[0, :8].tolist(), many[0, n - 2 : n + 3].tolist() + many[1, :8].tolist()
  end = many[1, n - 6 : n + 3].tolist()
  after = Tensor.rand(8).tolist()
  Tensor.manual_seed(5)
  calls = [Tensor.rand(n) for _ in range(3)]
  assert first == calls[0][:8].tolist()
  assert later == calls[0][n - 2 :].tolist() + calls[1][:11].tolist()
  assert end == calls[1][n - 3 :].tolist() + calls[2][:6].tolist()
  assert after == Tensor.rand(8).tolist()
  assert len(set(first + later + end + after)) > 30


ERRORS = [
  (lambda: Tensor([[1, 2], [3]]), ValueError, "different lengths"),
  (lambda: Tensor("a"), TypeError, "cannot make a Tensor of str"),
  (lambda: Tensor(i for i in range(3)), TypeError, r"of generator\n  fix: Tensor\(list\(x\)\)"),
  (lambda: Tensor({1, 2}), TypeError, r"of set\n  fix: Tensor\(list\(x\)\)"),
  (lambda: Tensor({1: 2}), TypeError, "of dict\n  fix: give numbers"),
  (lambda: Tensor(1 << 40), OverflowError, 'fix: name a wider type, e.g. dtype="int64"'),
  (lambda: Tensor([1 << 63]), OverflowError, 'fix: name a wider type, e.g. dtype="uint64"'),
  (lambda: Tensor([1 << 70]), OverflowError, 'fix: name a wider type, e.g. dtype="float64"'),
  (lambda: Tensor([1]).cast(np.float32), TypeError, "is no dtype\n  fix: dtypes.float32, or its name, 'float32'$"),
  (lambda: Tensor([1]).cast(3), TypeError, "3 is no dtype\n  fix: give a dtype or its name"),
  (lambda: Tensor([1, "a"]), TypeError, "no dtype for 'a'"),
  (lambda: Tensor([Tensor(1)]), TypeError, "Tensor.stack"),
  (lambda: Tensor(np.zeros(2, np.complex64)), TypeError, "complex64"),
  (lambda: Tensor([1], dtype="int33"), ValueError, "unknown dtype"),
  (lambda: Tensor.arange(1, 2, 0), ValueError, "step must not be 0"),
  (lambda: Tensor.linspace(0, 1, -1), ValueError, "must not be negative"),
  (lambda: Tensor.eye(-1), ValueError, "must not be negative"),
  (lambda: Tensor.rand(2, dtype=dtypes.int32), TypeError, "makes floats(.|\n)*randint"),
  (lambda: Tensor.randint(2, low=3, high=3), ValueError, "must hold between 1(.|\n)*fix: low=3, high=4"),
  (lambda: Tensor.randint(2, low=5, high=2), ValueError, "must hold between 1(.|\n)*fix: low=2, high=5"),
  (lambda: Tensor.randint(2, low=0.5), TypeError, "must be integers"),
  (lambda: Tensor.rand(-1), ValueError, "non-negative"),
  (lambda: Tensor([1, 2]).item(), ValueError, "needs one element"),
  (lambda: bool(Tensor([1])), TypeError, "truth of a tensor"),
  (lambda: len(Tensor(1)), TypeError, "0-d"),
  (lambda: iter(Tensor(1)), TypeError, "0-d"),
  (lambda: Tensor([1.0], dtype="bfloat16").data(), TypeError, "has no buffer format"),
  (lambda: Tensor([1, 2]).shard(D2, 1), ShardError, "dim 1"),
  (lambda: Tensor([1, 2]).shard("CPU:0", axis=0), TypeError, "needs a sequence of devices"),
]  # fmt: skip


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call, error, message):
  with pytest.raises(error, match=message):
    call()


@pytest.mark.parametrize("kind", [">f4", "<f4", ">i2", ">i8", ">u4", ">f8", ">f2"])
def test_arrays_of_the_other_byte_order(kind):
  """As files of the network's byte order are read with numpy."""
  a = np.arange(6).reshape(2, 3).astype(kind)
  assert np.array_equal(Tensor(a).numpy(), a) and np.array_equal((Tensor(a) + 1).numpy(), a + 1)
  assert Tensor(a).dtype.name == a.dtype.name and np.array_equal(Tensor(a, dtype="float32").numpy(), a)
  assert np.array_equal(Tensor([a[0], a[1]]).numpy(), a)


def test_lists_of_integers_beyond_int64_keep_their_digits():
  """numpy takes them for floats, if others beside them are int64, and then for objects."""
  x = [2**64 - 1, 0, 2**63 + 1, 7]
  assert Tensor(x, dtype="uint64").tolist() == x
  assert Tensor([x[:2], x[2:]], dtype="uint64").tolist() == [x[:2], x[2:]]
  assert Tensor([np.uint64(2**64 - 1), 1], dtype="uint64").tolist() == [2**64 - 1, 1]
  for x, kind in (([2**64 - 1, -1], "int64"), ([5, 2**70 + 3], "int32")):
    with pytest.raises(OverflowError, match=f"(?s){max(x)} is no {kind}, which holds .*fix: "):
      Tensor(x, dtype=kind)
  for kind in ("float32", "float64", "bfloat16"):
    got = Tensor([10**30, -(2**80), 1], dtype=kind)
    np.testing.assert_allclose(got.cast("float64").numpy(), [1e30, -(2.0**80), 1], rtol=4e-3)
  for x in ([2**63, 0], [10**30, 1]):
    with pytest.raises(OverflowError, match=f"(?s){x[0]} is no int32.*fix: "):
      Tensor(x)
  with pytest.raises(TypeError, match="(?s)must hold numbers.*fix: "):
    Tensor([10**30, None], dtype="float32")


def test_what_a_masked_array_hides_is_not_computed_with():
  """The mask was dropped: the sum of [1, --, 3] was 6."""
  hidden = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False])
  with pytest.raises(ValueError, match=r"1 of 3 elements of the array are masked\n  fix: x.filled\(0\)"):
    Tensor(hidden)
  assert Tensor(hidden.filled(0)).sum().item() == hidden.sum()
  assert Tensor(np.ma.masked_array([1.0, 2.0])).tolist() == [1, 2]  # nothing is hidden


def test_a_field_of_a_structured_array_is_an_array():
  rows = np.array([(1, 2.0), (3, 4.0)], dtype=[("n", "u1"), ("x", "f4")])
  with pytest.raises(TypeError, match=r"fix: one of its fields, e.g. array\['n'\]$"):
    Tensor(rows)
  assert (Tensor(rows["n"]).tolist(), Tensor(rows["x"]).tolist()) == ([1, 3], [2, 4])


def test_numbers_that_a_type_does_not_hold_are_refused():
  """They wrapped: `Tensor([300], dtype="uint8")` was 44, and equal to 300."""
  u = Tensor([44, 1], dtype="uint8")
  for make, said in [
    (lambda: Tensor([300], dtype="uint8"), "300 is no uint8, which holds 0 to 255"),
    (lambda: Tensor(300, dtype="uint8"), "300 is no uint8"),
    (lambda: Tensor(np.int64(300), dtype="uint8"), "300 is no uint8"),
    (lambda: Tensor(np.array(300), dtype="uint8"), "300 is no uint8"),
    (lambda: Tensor([1, 2], dtype="uint8").__setitem__(0, np.int64(300)), "setitem: 300 is no uint8"),
    (lambda: Tensor([[1], [-1]], dtype="uint64"), "-1 is no uint64"),
    (lambda: Tensor([2**40], dtype="int32"), "1099511627776 is no int32"),
    (lambda: Tensor([1.0, 2.0**31], dtype="int32"), "2147483648.0 is no int32"),
    (lambda: Tensor([2**70], dtype="int64"), "1180591620717411303424 is no int64"),
    (lambda: Tensor.full((2,), 300, dtype="uint8"), "300 is no uint8"),
    (lambda: Tensor.full((2,), np.int64(300), dtype="uint8"), "300 is no uint8"),
    (lambda: u.full_like(-1), "-1 is no uint8"),
    (lambda: u.assign([300, 1]), "300 is no uint8"),
    (lambda: u.__setitem__(0, 300), "setitem: 300 is no uint8"),
    (lambda: u.__setitem__(slice(2), [300, 1]), "300 is no uint8"),
    (lambda: u + 300, "add: 300 is no uint8"),
    (lambda: 300 - u, "sub: 300 is no uint8"),
    (lambda: (u > 3).where(u, 300), "where: 300 is no uint8"),
    (lambda: u.pad((1, 1), value=300), "pad: 300 is no uint8"),
    (lambda: u.scatter(0, Tensor([0]), 300), "scatter: 300 is no uint8"),
    (lambda: Tensor([3]) * 2**31, "mul: 2147483648 is no int32"),
  ]:
    with pytest.raises(OverflowError, match=f"(?s)^{said}.*\n  fix: "):
      make()
  for bad in (float("nan"), float("inf")):
    with pytest.raises(ValueError, match=f"{bad} is no int32\n  fix: "):
      Tensor([bad], dtype="int32")
  for kind in (dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.int64, dtypes.uint64):
    ends = [int(dtypes.min(kind)), int(dtypes.max(kind))]
    assert Tensor(ends, dtype=kind).tolist() == ends and Tensor(ends[1], dtype=kind).item() == ends[1]


@pytest.mark.parametrize("kind", ["uint8", "int8", "int32", "uint64"])
def test_integers_compare_with_numbers_that_their_type_does_not_hold(kind):
  a = np.array([0, 1, 44, 100], kind)
  for n in (-(2**70), -1, 44, 300, 2**32 + 44, 2**64 + 44):
    for op in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
      want = [op(int(x), n) for x in a]
      assert op(Tensor(a), n).tolist() == want, (op, n)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_integers_compare_with_larger_numbers_whatever_the_default_type_holds(kind):
  """By infinity, which integers from 65520 on are equal to in float16."""
  with Context(DEFAULT_FLOAT=kind):
    x = Tensor([-100000, 5, 100000])
    assert (x == 2**40).tolist() == [False] * 3 and (x < 2**40).tolist() == [True] * 3
    assert (x > -(2**40)).tolist() == [True] * 3 and (x < 10**400).tolist() == [True] * 3


def test_numbers_beyond_a_type_where_the_result_is_another():
  """Of numpy's scalars, quotients and signs; numpy gives the same."""
  u = Tensor([1, 200], dtype="uint8")
  assert (u == np.int64(300)).tolist() == [False, False] and (u < np.int32(-1)).tolist() == [False, False]
  assert (u / 256).tolist() == [1 / 256, 200 / 256] and (Tensor([2**20]) / 2**40).tolist() == [2**-20]
  assert u.copysign(-1).tolist() == [-1.0, -200.0] and u.hardtanh().tolist() == [1, 1]


def test_train_is_a_decorator_when_it_is_called():
  @Tensor.train()
  def dropped():
    return Tensor.ones(100).dropout(0.5).max().item()

  assert dropped() == 2.0
  with pytest.raises(TypeError, match=r"takes a bool, got a function\n  fix: @Tensor.train\(\)"):
    Tensor.train(dropped)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "fp8e4m3", "fp8e5m2"])
def test_numbers_of_narrow_floats_are_rounded_before_they_are_computed_with(name):
  kind = dtypes.by_name[name]
  for value in (3.3, 1000.0 / 3, 1e-3, -0.7):
    want = Tensor(np.array([value]).astype(to_numpy_dtype(kind)).astype(np.float32)).item()  # ml_dtypes
    assert want != np.float32(value)
    assert Tensor(value).cast(kind).float().item() == want and Tensor(value, dtype=kind).float().item() == want
    assert Tensor.full((2,), value, dtype=kind).float().tolist() == [want, want]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "fp8e4m3", "fp8e5m2"])
def test_the_least_of_a_narrow_float_is_one_of_its_numbers(name):
  """fp8e4m3 has no infinity."""
  kind = dtypes.by_name[name]
  x = Tensor([-3.0, -2.0, -4.0]).cast(kind).realize()
  assert x.cummax()[0].tolist() == [-3.0, -2.0, -2.0] and x.cummin()[0].tolist() == [-3.0, -3.0, -4.0]
  assert x.reshape(1, 3).max_pool2d((2,), padding=1).tolist() == [[-3.0, -2.0]]
  assert dtypes.min(kind) == -dtypes.max(kind) == Tensor([dtypes.min(kind)]).cast(kind).item()


def test_a_range_is_a_list_of_numbers():
  assert Tensor(range(4)).tolist() == [0, 1, 2, 3] and Tensor(range(4)).dtype is dtypes.int32
  assert Tensor(range(3, 0, -1), dtype="float32").tolist() == [3.0, 2.0, 1.0]
