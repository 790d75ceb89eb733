"""Long reductions in two steps: how many kernels, over what, and that threads do not change a bit."""

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.helpers import Context
from tinygrad.schedule.schedule import create_schedule
from tinygrad.schedule.split import LARGE, PARTS
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


def test_reductions_of_reductions_are_split_each_once():
  loops = [folds for _, folds in kernels(buffer(1 << 20).var())]
  assert loops == [[[4096]], [[PARTS]], [[4096]], [[PARTS]]]


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
