"""Values in which one variable has several values, that a write to the memory which they read brings together."""

import gc

import pytest

from tinygrad import Tensor, Variable, scan
from tinygrad.engine import program_order as order

AT = Variable("at", 0, 8)


def one(x, i):
  return x[AT.bind(i) : AT.bind(i) + 1].sum()


def rows():
  return (Tensor.arange(10) + 0).realize(), (Tensor.arange(10) * 10).realize()


def test_values_that_wait_are_computed_before_the_write():
  x, _ = rows()
  a, b = one(x, 1), one(x, 2)
  x.assign(x + 100).realize()
  assert (a.item(), b.item(), x.tolist()) == (1, 2, [*range(100, 110)])
  Tensor.realize(a, b := one(x, 3), c := one(x, 4))
  assert (a.item(), b.item(), c.item()) == (1, 103, 104)


@pytest.mark.parametrize("first", range(3))
def test_what_is_asked_for_first_does_not_matter(first):
  """Mutant: the tensor that waits runs as a whole, and each of two has to wait for the other."""
  x, y = rows()
  later = y + one(x, 2) * 2
  x.assign(x + one(y, 1))
  y.assign(later)
  del later
  if first:
    (x, y)[first - 1].realize()
  assert x.tolist() == [*range(10, 20)] and y.tolist() == [*range(4, 104, 10)]


def test_what_is_read_has_happened_once():
  """Mutant: what is read stays as it was before others ran."""
  x, y = rows()
  c = one(x, 2) * 2
  x.assign(x + one(y, 1))
  y.assign(y + c)
  assert x.tolist() == [*range(10, 20)] and y.tolist() == [*range(4, 104, 10)] and c.item() == 4


def test_one_value_cannot_have_two():
  x, _ = rows()
  with pytest.raises(ValueError, match="variable at is bound to 1 and to 2 in one computation\n  fix: realize"):
    (one(x, 1) + one(x, 2)).realize()


def test_steps_of_a_loop_that_are_held(monkeypatch):
  """Mutant: all that waits runs in one go."""
  x, held = Tensor.arange(5).float().realize(), list[Tensor]()

  def step(c, y):
    held.append(c + y)
    return c + y, c * y

  gc.collect()
  total, _ = scan(step, Tensor([0.0]), x.reshape(5, 1))
  x.assign(x * 2).realize()
  assert total.tolist() == [10.0] and x.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
  monkeypatch.setattr(order, "_bound_otherwise", lambda tensors, sink: [])
  x, _ = rows()
  kept = one(x, 1), one(x, 2)
  with pytest.raises(ValueError, match="in one computation"):
    x.assign(x + 100).realize()
  del kept


def test_writes_at_several_values_of_one_variable():
  """Each is done in its turn. Mutant: one computation has them all."""
  x = Tensor.arange(5).float().realize()
  kept, row, at = x * 1, x.reshape(1, 5), Variable("at", 0, 4)
  x[at.bind(2)] = 7
  x[at.bind(4)] = 8
  x[at.bind(2)] += 1
  row[:, at.bind(0)] = x[at.bind(0)] - 1
  assert row.tolist() == [[-1.0, 1.0, 8.0, 3.0, 8.0]]
  assert (x.tolist(), kept.tolist()) == (row[0].tolist(), [0.0, 1.0, 2.0, 3.0, 4.0])
