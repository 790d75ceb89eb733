"""Long reductions in two steps: how many kernels, over what, and that threads do not change a bit."""

import numpy as np
import pytest

from tinygrad import Device, Tensor
from tinygrad.helpers import Context
from tinygrad.numerics.parts import JOINED, LARGE, LONG, PARTS, squares_in_parts
from tinygrad.schedule import schedule
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp

RNG = np.random.default_rng(5)


def kernels(x):
  """The lengths of the parallel loops of each kernel, and of its reductions."""
  buffer = UOp.buffer(x.shape, x.dtype, "CPU")
  out = []
  for item in create_schedule(localize(UOp.sink(buffer.assign(x.uop)))).items:
    store = item.kernel.src[0]
    folds = [u for u in item.kernel.toposort() if u.op is Ops.FOLD]
    out.append(([r.src[0].arg for r in store.src[2:]], [[r.src[0].arg for r in f.src[1:]] for f in folds]))
  return out


def buffer(*shape):
  return Tensor(UOp.buffer(shape, Tensor([1.0]).dtype, "CPU"))


def test_what_is_split_and_how():
  assert kernels(buffer(1 << 24).sum()) == [([PARTS], [[1 << 16]]), ([], [[PARTS]])]
  assert kernels(buffer(4096, 4096).sum()) == [([PARTS], [[1 << 16]]), ([], [[PARTS]])]
  assert kernels(buffer(3, 1 << 20).max(1)) == [([192], [[16384]]), ([3], [[64]])]
  assert kernels(buffer(1 << 20, 3).sum(0)) == [([64, 3], [[16384]]), ([3], [[64]])]
  assert kernels(buffer(1000003).exp().sum()) == [([PARTS], [[3907]]), ([], [[PARTS]])]  # a prime number of elements
  assert kernels(buffer(LARGE // 2).sum()) == [([], [[LARGE // 2]])]  # small
  assert kernels(buffer(4096, 4096).sum(1)) == [([4096], [[4096]])]  # many results
  assert kernels(buffer(64, LONG).sum(1)) == [([256], [[LONG // 4]]), ([64], [[4]])]
  assert kernels(buffer(64, LONG - 4).sum(1)) == [([64], [[LONG - 4]])]  # short rows
  assert len(kernels(buffer(16, LONG - 4).sum(1))) == 2  # few rows
  assert len(kernels(buffer(LONG // 2, 64).sum(0))) == 2  # columns


def test_reductions_of_reductions_are_split_each_once():
  loops = [folds for _, folds in kernels(buffer(1 << 20).logsumexp())]
  assert loops == [[[4096]], [[PARTS]], [[4096]], [[PARTS]]]


def moments(x, axis):
  return x.var(axis), x.mean(axis)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("shape, axis", [((1 << 20,), 0), ((64, 4, 16, 256), (0, 2, 3))])
def test_moments_read_what_they_are_of_once(shape, axis, kept, monkeypatch):
  """The sums of parts and the squares in them are of one kernel; without the rule they are not."""
  if not kept:
    monkeypatch.setattr(schedule, "SUMS", [by for by in schedule.SUMS if by is not squares_in_parts])
  sink = UOp.sink(*(UOp.buffer(t.shape, t.dtype, "CPU").assign(t.uop) for t in moments(buffer(*shape), axis)))
  items = create_schedule(localize(sink), rows=True, target=Device["CPU"].target).items
  large = int(np.prod(shape))
  reads = [u for i in items for u in {*i.kernel.toposort()} if u.op is Ops.PARAM and u.arg.size == large]
  assert (len(reads) == 1) == kept


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("shape, axis", [((1 << 18,), None), ((8, 3, 64, 256), (0, 2, 3)), ((3, 1 << 18), 1)])
def test_moments_in_parts(shape, axis, devices):
  """As far from 0 as it is wide, a thousand times: what is squared is small only near the mean."""
  x = (RNG.standard_normal(shape) + 1000).astype(np.float32)
  t = Tensor(x).shard([f"CPU:{i}" for i in range(devices)], axis=0 if shape[0] % devices == 0 else None).realize()
  var, mean = (v.numpy() for v in moments(t, axis))
  np.testing.assert_allclose(var, x.astype(np.float64).var(axis, ddof=1), rtol=1e-6)
  np.testing.assert_allclose(mean, x.astype(np.float64).mean(axis), rtol=1e-6)
  squares = (t - t.mean(axis, keepdim=True) * 0.5).square().sum(axis).numpy()  # from what is no mean
  wide = x.astype(np.float64)
  np.testing.assert_allclose(squares, np.square(wide - wide.mean(axis, keepdims=True) / 2).sum(axis), rtol=1e-5)


def test_squares_of_distances_to_what_is_no_sum():
  """Of an infinite element the mean of its part would be infinite, and the distance to it no number."""
  x = np.where(np.arange(1 << 18) == 77, np.inf, 1).astype(np.float32)
  t = Tensor(x).realize()
  assert (t - t.min(keepdim=True)).square().sum().item() == np.inf
  assert np.isnan(t.var().item()) and np.isnan(Tensor(np.where(x > 1, np.nan, x)).var().item())


@pytest.mark.parametrize("shape, axis", [((1 << 19,), 0), ((1000003,), 0), ((3, 300007), 1), ((99991, 5), 0)])
def test_values(shape, axis):
  """Integer-valued: bit for bit; the greatest and the least too, where what fills up the last part must not show."""
  x = RNG.integers(-4, 5, shape).astype(np.float32)
  t = Tensor(x).realize()
  np.testing.assert_array_equal(t.sum(axis).numpy(), x.sum(axis))
  np.testing.assert_array_equal((-t.abs() - 1).max(axis).numpy(), (-np.abs(x) - 1).max(axis))
  np.testing.assert_array_equal((t.abs() + 1).min(axis).numpy(), (np.abs(x) + 1).min(axis))
  signs = np.where(RNG.random(shape) < 0.5, -1, 1).astype(np.float32)
  np.testing.assert_array_equal(Tensor(signs).prod(axis).numpy(), signs.prod(axis))


def test_threads_change_no_bit_and_sums_are_as_accurate_as_numpys():
  x = RNG.standard_normal(1000003).astype(np.float32) + 1
  got = []
  for threads in (1, 2, 3):
    with Context(CPU_THREADS=threads):
      got.append(Tensor(x).realize().exp().sum().item())
  assert len(set(got)) == 1
  want = np.exp(x.astype(np.float64)).sum()
  assert abs(got[0] - want) <= 2 * max(abs(float(np.exp(x).sum()) - want), want * 1e-7)


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_joined_of_many_parts_is_joined_in_groups(axis, monkeypatch):
  """No kernel chooses among many sources: one did among 65, for which the compiler took a minute where the parts lay
  side by side."""
  parts = [buffer(2, 3) for _ in range(65)]
  joined = parts[0].cat(*parts[1:], dim=axis)
  assert [loops for loops, _ in kernels(joined)] == [([26, 3], [2, 39])[axis]] * 5 + [([130, 3], [2, 195])[axis]]
  values = [RNG.normal(size=(2, 3)) for _ in range(300)]  # groups of groups
  got = Tensor(values[0]).cat(*map(Tensor, values[1:]), dim=axis)
  assert (got.numpy() == np.concatenate(values, axis)).all()
  assert (got.shard(("CPU:0", "CPU:1"), 1 - axis).numpy() == np.concatenate(values, axis)).all()
  assert len(kernels(parts[0].cat(*parts[1:JOINED], dim=axis))) == 1  # a few
  grown = parts[0]
  for x in parts[1:]:
    grown = grown.cat(x, dim=axis)
  assert len(kernels(grown)) == 5 and max(len(u.src) for u in grown.uop.toposort()) == 2
  monkeypatch.delitem(schedule.STEPS, Ops.CAT)
  assert len(kernels(joined)) == len(kernels(grown)) == 1
