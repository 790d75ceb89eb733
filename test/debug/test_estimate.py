"""What a kernel costs, by hand."""

import pytest

from tinygrad import Mesh, P, Sharding, Tensor, dtypes
from tinygrad.debug.estimate import estimate
from tinygrad.simulation import simulate

D2 = Mesh(("NULL:0", "NULL:1"), names=("d",))


def estimates(f, *shapes, dtype=dtypes.bfloat16):
  xs = [Tensor.empty(*shape, dtype=dtype, device=Sharding(D2, P())) for shape in shapes]
  return [estimate(e.item.kernel) for e in simulate(lambda: f(*xs), cluster="h100x2:1").program.entries]


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32])
def test_a_product_counts_by_the_type_of_its_operands(dtype):
  (found,) = estimates(lambda a, b: a @ b, (32, 64), (64, 128), dtype=dtype)
  assert found.products == ((dtype.name, 2 * 32 * 64 * 128),) and found.instructions == 0
  assert (found.ops, found.nbytes) == (2 * 32 * 64 * 128, (32 * 64 + 64 * 128 + 32 * 128) * dtype.itemsize)


def test_a_factor_that_was_narrowed_is_narrow():
  """Computed in float32, rounded to bfloat16, and widened for the sum."""
  found = estimates(lambda a, b: (a.float() * 2).cast(dtypes.bfloat16) @ b, (32, 64), (64, 128))
  assert [p for e in found for p in e.products] == [("bfloat16", 2 * 32 * 64 * 128)]
  found = estimates(lambda a, b: a.float() @ b.float(), (32, 64), (64, 128))
  assert [name for e in found for name, _ in e.products] == ["bfloat16"]
  found = estimates(lambda a, b: (a.float() + 1e-5) @ b.float(), (32, 64), (64, 128))
  assert [name for e in found for name, _ in e.products] == ["float32"]


def test_slow_functions_take_what_their_cards_say():
  (plain,) = estimates(lambda a: a + 1.0, (64, 64), dtype=dtypes.float32)
  (slow,) = estimates(lambda a: a.exp(), (64, 64), dtype=dtypes.float32)
  assert (plain.instructions, slow.instructions) == (64 * 64, 16 * 64 * 64) and plain.ops == slow.ops == 64 * 64


def test_a_sum_is_no_product():
  (found,) = estimates(lambda a: a.sum(1), (64, 32), dtype=dtypes.float32)
  assert found.products == () and found.instructions == found.ops == 64 * 32


@pytest.mark.parametrize("n", [1000, 9000])
def test_a_sum_by_index_takes_a_step_for_each_update(n):
  """However many places there are."""
  places = Tensor.empty(512, dtype=dtypes.int32, device="NULL").realize()
  values = Tensor.empty(512, 16, device="NULL").realize()
  total = Tensor.zeros(n, 16, device="NULL").scatter_reduce(0, places.unsqueeze(1).expand(512, 16), values, "sum")
  found = [estimate(e.item.kernel) for e in simulate(lambda: total, cluster="h100x1:1").program.entries]
  assert sum(e.ops for e in found) < 4 * 512 * 16 + 2 * n * 16
