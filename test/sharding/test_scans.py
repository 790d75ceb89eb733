"""Running reductions along a cut dim: every device scans its own block, and one total of each block travels."""

import numpy as np
import pytest

from tinygrad import Context, Tensor
from tinygrad.sharding import explain


@pytest.mark.parametrize("n,k", [(5, 2), (5, 4), (8, 4), (13, 3), (3, 4), (600, 4)])
@pytest.mark.parametrize("interpret", [1, 0], ids=["interpreted", "compiled"])
def test_running_sums_and_maxima_of_even_and_uneven_cuts(n, k, interpret):
  value = np.random.default_rng(n * k).integers(-5, 6, (3, n)).astype(np.float32)
  with Context(INTERPRET=interpret):
    x = Tensor(value).shard([f"CPU:{i}" for i in range(k)], 1).realize()
    y = x.cumsum(1)
    assert y.device == x.device
    np.testing.assert_array_equal(y.numpy(), value.cumsum(1))
    np.testing.assert_array_equal(x.cummax(1)[0].numpy(), np.maximum.accumulate(value, 1))
    (g,) = (y * Tensor(value)).sum().gradient(x)
    np.testing.assert_array_equal(g.numpy(), value[:, ::-1].cumsum(1)[:, ::-1])


def test_only_totals_travel():
  x = Tensor.empty(64, 4096, device="NULL").shard([f"NULL:{i}" for i in range(8)], 1).realize()
  (row,) = explain(x.cumsum(1))
  assert (row.kind, row.payload, row.wire) == ("all_gather", 64 * 8 * 4, 64 * 7 * 4)
  assert explain(x.cumsum(0)).wire == 0


def test_blocks_scanned_alone_would_differ():
  value = np.ones((1, 8), np.float32)
  alone = np.concatenate([part.cumsum(1) for part in np.split(value, 4, 1)], 1)
  assert (Tensor(value).shard([f"CPU:{i}" for i in range(4)], 1).cumsum(1).numpy() != alone).any()
