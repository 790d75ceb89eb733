"""Bytes in use on each device, now and at the peak."""

import gc

import numpy as np
import pytest

from tinygrad import Context, Device, Sharding, Tensor
from tinygrad.engine.program_order import program_order
from tinygrad.helpers import GlobalCounters
from tinygrad.nn.optim import SGD, Adam

D4 = tuple(f"CPU:{i}" for i in range(11, 15))  # of this file alone


def peaks(run, devices):
  """The most that `run` holds on each device beyond what is there before."""
  gc.collect()
  before = [Device.mem_used(d) for d in devices]
  GlobalCounters.reset()
  run()
  return [Device.mem_peak(d) - b for d, b in zip(devices, before, strict=True)]


def test_used_follows_the_buffers():
  before = Device.mem_used("CPU:11")
  GlobalCounters.reset()
  x = Tensor(np.ones(1000, np.float32), device="CPU:11").realize()
  assert Device.mem_used("cpu:11") - before == 4000
  y = (x + 1).realize()
  assert Device.mem_used("CPU:11") - before == 8000
  del x, y
  gc.collect()
  assert Device.mem_used("CPU:11") == before
  assert Device.mem_peak("CPU:11") - before == 8000
  GlobalCounters.reset()
  assert Device.mem_peak("CPU:11") == before


@pytest.mark.parametrize("axis", (0, 1, None))
def test_host_to_shards_allocates_the_slices_only(axis):
  a, kept = np.ones((512, 256), np.float32), []
  got = peaks(lambda: kept.append(Tensor(a).shard(D4, axis=axis).realize()), ("CPU", *D4))
  assert got == [0] + [a.nbytes if axis is None else a.nbytes // 4] * 4


@pytest.mark.parametrize("axis", (0, 1))
def test_random_weights_are_made_where_they_are(axis):
  kept = []
  got = peaks(lambda: kept.append(Tensor.randn(512, 256).shard_(D4, axis=axis).realize()), ("CPU", *D4))
  assert got[0] < 1000 and max(got[1:]) < 1.1 * 512 * 256


def test_of_simulated_devices_the_first_stands_for_all():
  kept = []
  names = tuple(f"NULL:{i}" for i in range(20, 24))
  got = peaks(lambda: kept.append(Tensor.zeros(64, 64).contiguous().shard(names, axis=0).realize()), names)
  assert got[1:] == [0, 0, 0] and got[0] >= 64 * 64


@pytest.mark.parametrize("defer", (0, 1))
@pytest.mark.parametrize("optimizer", (SGD, Adam))
def test_a_sharded_training_step_holds_a_quarter(optimizer, defer):
  """Weights cut by columns and then by rows; activations of 8 rows are small beside them."""
  n, rng = 512, np.random.default_rng(0)
  x, w1, w2 = (rng.standard_normal(s).astype(np.float32) * 0.05 for s in ((8, n), (n, n), (n, n)))

  def step(place):
    def run():
      data, a, b = Tensor(x), Tensor(w1), Tensor(w2)
      if place:
        data, a, b = data.shard(D4), a.shard(D4, axis=1), b.shard(D4, axis=0)
      else:
        data, a, b = (t.to(D4[0]) for t in (data, a, b))
      opt = optimizer([a, b], lr=0.01)
      with Tensor.train():
        for _ in range(2):
          opt.zero_grad()
          (data @ a).relu().matmul(b).square().mean().backward()
          opt.step()
      kept.extend((a, b))

    return run

  kept: list[Tensor] = []
  with Context(DEFER=defer):
    (one,) = peaks(step(False), D4[:1])
    four = peaks(step(True), D4)
  assert one > 2 * n * n * 4, "the weights themselves"
  for got in four:
    # or less: a gradient whose rows few devices share is never whole
    assert 2 * n * n * 4 / 4 < got < one / 4 * 1.25, "more than its weights, and not more than its part"
  for whole, cut in zip(kept[:2], kept[2:], strict=True):
    assert isinstance(cut.device, Sharding)
    np.testing.assert_allclose(cut.numpy(), whole.numpy(), rtol=1e-4, atol=1e-5)


def test_a_computed_value_is_read_without_a_copy():
  """Its array is the only one with that memory, and keeps it."""
  x = Tensor(np.arange(1000, dtype=np.float32), device="CPU:11").realize()
  gc.collect()
  before = Device.mem_used("CPU:11")
  y = (x * 2).numpy()
  assert Device.mem_used("CPU:11") - before == 4000 and y.flags.writeable
  part = y[10:20]
  del y
  gc.collect()
  z = (x * 3).numpy()  # would take the memory if it were free
  np.testing.assert_array_equal(part, np.arange(20, 40, 2))
  part[:] = 0
  np.testing.assert_array_equal((x * 2).numpy(), np.arange(0, 2000, 2))
  np.testing.assert_array_equal(z, np.arange(0, 3000, 3))
  del part, z
  gc.collect()
  assert Device.mem_used("CPU:11") == before


@pytest.mark.parametrize("view", (lambda x: x, lambda x: x.reshape(2, 2), lambda x: x[1:3], lambda x: x.detach()))
def test_what_lies_in_a_buffer_is_copied(view):
  x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
  a = view(x).numpy()
  want = a.copy()
  x += 10
  x.realize()
  np.testing.assert_array_equal(a, want)
  a[...] = 99
  np.testing.assert_array_equal(x.numpy(), [11, 12, 13, 14])


def test_an_array_given_to_a_tensor_stays_the_givers():
  a = np.ones(1024, np.float32)
  x = Tensor(a).realize()
  a[:] = 5
  np.testing.assert_array_equal(x.numpy(), np.ones(1024))
  x += 1
  x.realize()
  np.testing.assert_array_equal(a, np.full(1024, 5))


def test_what_is_noted_of_memory_does_not_grow_with_the_writes_to_it():
  """So that the thousandth step of a program takes no longer than the first; views that are gone are forgotten."""
  x = Tensor.zeros(4).contiguous().realize()
  view = x.reshape(2, 2)
  noted = []
  for _ in range(12):
    x.assign(x + 1).realize()
    x[1:2] += 1
    x.reshape(4, 1).numpy()
    noted.append(len(program_order._views[x.uop.base.ref]))
  assert noted[-1] <= noted[3] <= 4
  assert {id(t) for t in program_order.views(x.uop.base)} >= {id(x), id(view)}
  assert view.tolist() == x.reshape(2, 2).tolist() == [[12.0, 24.0], [12.0, 12.0]]
  del view
  assert len(program_order._views[x.uop.base.ref]) == 1
