"""A value that is kept in a part of larger memory is computed there, and read there by who else needs it."""

import numpy as np
import pytest

from tinygrad import Tensor, custom_op, dtypes, scan
from tinygrad.helpers import Context, GlobalCounters
from tinygrad.schedule import homes
from tinygrad.uop import Ops, UOp

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
W = np.arange(24, dtype=np.float32).reshape(4, 6) % 5 - 2
STEP = UOp.variable("step", 0, 4)


def kept(at, shape):
  """(kernels, memory, another value) of `x @ w`, which goes to a part of memory of zeros, and is read elsewhere too."""
  x, w = Tensor(X).realize().uop, Tensor(W).realize().uop
  memory = Tensor.zeros(*shape).contiguous().realize()
  value = (x.reshape((3, 4, 1)).expand((3, 4, 6)) * w.reshape((1, 4, 6)).expand((3, 4, 6))).r(Ops.ADD, (1,))
  view = memory.uop.shrink(at)
  GlobalCounters.reset()
  store, other = Tensor(view.assign(value.reshape(view.shape))), Tensor(value.reshape((3, 6)).r(Ops.MAX, (0,)))
  with Context(TILE_AND_FUSE=0):
    store.realize(other)
  return GlobalCounters.kernel_count, memory.numpy(), other.numpy()


STRETCHES = [
  ((5, 3, 6), ((STEP.bind(3), STEP.bind(3) + 1), (0, 3), (0, 6)), np.s_[3]),
  ((5, 3, 6), ((2, 3), (0, 3), (0, 6)), np.s_[2]),
  ((7, 6), ((4, 7), (0, 6)), np.s_[4:7]),
  ((1, 8, 6), ((0, 1), (1, 4), (0, 6)), np.s_[0, 1:4]),
]
APART = [
  ((3, 8), ((0, 3), (1, 7)), np.s_[:, 1:7]),
  ((2, 5, 6), ((1, 2), (1, 4), (0, 6)), np.s_[1, 1:4]),
]


@pytest.mark.parametrize("shape, at, numpy_at", STRETCHES + APART)
def test_it_is_computed_in_its_place(shape, at, numpy_at):
  """Without a copy where its elements lie side by side."""
  count, memory, other = kept(at, shape)
  want = np.zeros(shape, np.float32)
  want[numpy_at] = X @ W
  np.testing.assert_array_equal(memory, want)
  np.testing.assert_array_equal(other.ravel(), (X @ W).max(0))
  assert count == 2 or (shape, at, numpy_at) in APART


def test_a_part_taken_for_a_stretch_would_be_noticed(monkeypatch):
  right, first = homes.stretch, UOp.const(dtypes.index, 0)
  monkeypatch.setattr(homes, "stretch", lambda view: (right(view)[0], right(view)[1] and first))
  count, memory, _ = kept(((2, 3), (0, 3), (0, 6)), (4, 3, 6))
  assert count == 2 and (memory[2] == 0).all()


def test_what_a_scan_keeps_for_its_gradient_is_not_copied():
  """Of each step: forward one kernel for the product and one for the carry, backward one for each of two products and
  one for the carry's gradient at most."""
  w = Tensor.randn(3, 8, 8).realize()
  x = Tensor.randn(16, 8).realize()
  with Context(TRAINING=1):
    GlobalCounters.reset()
    last, _ = scan(lambda c, w: ((c @ w).tanh(), None), x, w)
    last.sum().gradient(w)[0].realize()
  assert GlobalCounters.kernel_count <= 3 * 5 + 6


@custom_op(
  rule="m n -> m n",
  kernel={
    "CPU": """
void doubled(float *out, const float *x, int64_t m, int64_t n, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < m * n; i++) out[i] = 2 * x[i];
}
"""
  },
)
def doubled(x):
  return x * 2


@pytest.mark.parametrize("use", [doubled, lambda t: t.to("PYTHON") * 2], ids=["kernel", "copy"])
def test_a_users_kernel_and_a_copy_read_the_right_memory(use):
  """They know no part of a memory; a value that a part of one keeps lies in memory of its own, too."""
  x, w = Tensor(X).realize(), Tensor(W).realize()
  memory = Tensor.zeros(5, 3, 6).contiguous().realize()
  value = (x.reshape(3, 4, 1) * w.reshape(1, 4, 6)).sum(1)
  store = Tensor(memory.uop.shrink(((2, 3), (0, 3), (0, 6))).assign(value.uop.reshape((1, 3, 6))))
  other = use(value)
  store.realize(other)
  np.testing.assert_array_equal(other.numpy(), 2 * (X @ W))
  np.testing.assert_array_equal(memory.numpy()[2], X @ W)
