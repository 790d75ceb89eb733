"""Kernels that differ in where they work alone are one: schedule/deduplicate.py."""

from dataclasses import replace

import numpy as np

from tinygrad import Tensor, TinyJit, Variable
from tinygrad.schedule import deduplicate, schedule
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import UOp

RNG = np.random.default_rng(11)
DEVICES = ("CPU:0", "CPU:1")


def items(*tensors):
  sink = UOp.sink(*(UOp.buffer(t.shape, t.dtype, "CPU").assign(t.uop) for t in tensors))
  return create_schedule(localize(sink)).items


def recurrence(x, w):
  """h = tanh(x[t] + h w), the last of all steps."""
  h = x[0]
  for t in range(1, x.shape[0]):
    h = (x[t] + h @ w).tanh().contiguous() if isinstance(x, Tensor) else np.tanh(x[t] + h @ w)
  return h


def arrays(steps=6, n=8):
  return [RNG.standard_normal(s).astype(np.float32) for s in ((steps, 3, n), (n, n))]


def test_steps_share_their_kernels():
  x, w = (Tensor.empty(*a.shape) for a in arrays())
  found = items(recurrence(x, w))
  assert len(found) == 5 and len({i.kernel for i in found}) == 2  # the first step reads x[0] in the place of a state
  assert [i.constants for i in found[1:]] == [(("_start1", t),) for t in (2, 3, 4, 5)]


def test_values():
  x, w = arrays()
  np.testing.assert_allclose(recurrence(Tensor(x), Tensor(w)).numpy(), recurrence(x, w), rtol=1e-5)
  sharded = recurrence(Tensor(x).shard(DEVICES, axis=1), Tensor(w).shard(DEVICES))
  np.testing.assert_allclose(sharded.numpy(), recurrence(x, w), rtol=1e-5)


def test_a_start_that_all_share():
  """Every step reads at another place of one operand, and at the same one of the other, which is not the beginning."""
  (x, w), (_, other) = arrays(), arrays()
  steps, weights = Tensor(x).realize(), Tensor(np.stack([other, w])).realize()[1]
  assert [i.constants for i in items(recurrence(steps, weights))][1:] == [(("_start1", t),) for t in (2, 3, 4, 5)]
  np.testing.assert_allclose(recurrence(steps, weights).numpy(), recurrence(x, w), rtol=1e-5)


def test_replay_and_other_variables():
  """Two steps of a variable length, at different places."""
  x, n = RNG.standard_normal((4, 16)).astype(np.float32), Variable("n", 1, 16)

  @TinyJit
  def f(t, n):
    return [(t[i].shrink(((0, n),)) * 2).sum().contiguous() for i in range(4)]

  for length in (3, 5, 16, 7):
    t = Tensor(x).realize()
    for got, row in zip(f(t, n.bind(length)), x):
      np.testing.assert_allclose(got.item(), 2 * row[:length].sum(), rtol=1e-5)
    x = x + 1


def test_what_stays_apart():
  x = Tensor.empty(8, 8)
  assert len({i.kernel for i in items(x[1] * 2, x[2] * 3)}) == 2  # other arithmetic
  assert len({i.kernel for i in items(x[1] * 2, x[:, 2] * 2)}) == 2  # other strides
  assert all(not i.constants for i in items(x[1] * 2))  # alone


def test_a_mutant_dies(fresh):
  """All steps told the place of the first."""

  def of_the_first(item, **new):
    return replace(item, **new | {"constants": tuple((name, 0) for name, _ in new.get("constants", ()))})

  fresh.setattr(deduplicate, "replace", of_the_first)
  x, w = arrays()
  assert np.abs(recurrence(Tensor(x), Tensor(w)).numpy() - recurrence(x, w)).max() > 0.01


def test_once_for_each_kernel(monkeypatch):
  """Every kernel is looked at once, however many items it has."""
  seen = []
  look = deduplicate.from_the_start
  monkeypatch.setattr(deduplicate, "from_the_start", lambda k: seen.append(k) or look(k))
  assert schedule.shared_by_place is deduplicate.shared_by_place
  items(*(Tensor.empty(4) + 1 for _ in range(5)))
  assert len(seen) == 1
