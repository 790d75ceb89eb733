"""Lanes that take what others hold: running reductions in steps that double, rows that are written from their end,
elements that all lanes share. Linear code is counted; values are numpy's."""

import dataclasses

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.codegen import linearize, lower_kernel
from tinygrad.codegen.analysis.accesses import Access
from tinygrad.device import Device, Target
from tinygrad.dtype import dtypes
from tinygrad.engine.canonical import canonical
from tinygrad.engine.realize import stored
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import AxisKind, Ops, UOp

RUNNING = {
  "sum": (lambda x: x.cumsum(-1), np.cumsum),
  "product": (lambda x: x.cumprod(-1), np.cumprod),
  "max": (lambda x: x.cummax(-1)[0], np.maximum.accumulate),
  "min": (lambda x: x.cummin(-1)[0], np.minimum.accumulate),
}


def linear_of(y, vector_bytes):
  """The linear code of what computes `y`, kernel by kernel."""
  target = Target("CPU", vector_bytes, 32 if vector_bytes == 64 else 16, 64 << 20, shares=True)
  sink = canonical(UOp.sink(stored(y.uop, "CPU")))[0]
  return [lower_kernel(i.kernel, target) for i in create_schedule(localize(sink), True, target).items]


def times(kernels, chosen):
  """How often what is `chosen` runs."""
  total = 0
  for linear in kernels:
    around = [1]
    for u in linear:
      if u.op is Ops.RANGE:
        around.append(around[-1] * int(u.src[0].vmax))
      elif u.op is Ops.ENDRANGE:
        around.pop()
      elif chosen(u):
        total += around[-1]
  return total


def tensor(*shape):
  return Tensor(np.zeros(shape, np.float32)).to("CPU").realize()


def lane_by_lane(u):
  """Of accesses, those that gather or scatter."""
  return u.op in (Ops.LOAD, Ops.STORE) and u.src[0].op is Ops.INDEX and u.src[0].src[1].dtype.count > 1


@pytest.mark.parametrize("vector_bytes", [64, 32, 16])
@pytest.mark.parametrize("name", ["product", "max", "min"])
def test_a_running_reduction_takes_steps_that_double(monkeypatch, name, vector_bytes):
  """Of 16 neighbours, a vector of n lanes takes log2(n), and one for each vector before it, where it took 16."""
  f, lanes = RUNNING[name][0], vector_bytes // 4
  combined = lambda u: u.op in (Ops.MUL, Ops.MAX) and u.dtype.count == lanes  # noqa: E731
  vectors = 256 * 1024 // lanes
  steps = times(linear_of(f(tensor(256, 1024)), vector_bytes), combined) / vectors
  assert steps < np.log2(lanes) + 16 / lanes / 2 + 3.5
  monkeypatch.setattr(linearize, "running", lambda *a: None)  # a mutant
  assert times(linear_of(f(tensor(256, 1024)), vector_bytes), combined) / vectors > 16


@pytest.mark.parametrize("n", [4, 16, 17, 40, 256, 1000, 1030])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.float16, np.uint8])
def test_running_reductions_are_numpys(n, dtype):
  rng = np.random.default_rng(n)
  x = rng.integers(1, 4, (9, n)).astype(dtype)
  if np.issubdtype(dtype, np.floating):
    x[2, n // 2] = np.nan
    x[3, n // 3] = np.inf
  for name, (f, want) in RUNNING.items():
    if name == "product":
      x = np.where(np.arange(n) % 5, x**0, x) if n < 40 else x**0
    for turn in (False, True):
      given = x[:, ::-1] if turn else x
      got = f(Tensor(x).flip(1)).flip(1) if turn else f(Tensor(x))
      with np.errstate(all="ignore"):
        expected = want(given.astype(np.float64) if name == "sum" else given, axis=1)
      np.testing.assert_allclose(got.numpy().astype(np.float64), expected[:, ::-1] if turn else expected, rtol=2e-3)


@pytest.mark.parametrize("vector_bytes", [64, 32, 16])
def test_a_running_sum_of_what_is_found_by_division_has_code(vector_bytes):
  """Rows in another order and then padded: where an element lies depends on loops that only the sum itself has."""
  for n in (2, 5, 7, 24):
    x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
    turned = lambda y: y.flip(0).reshape(-1).pad((1, 0)).cumsum(0)  # noqa: E731
    assert linear_of(turned(tensor(n, 3)), vector_bytes)
    if vector_bytes == 64:
      np.testing.assert_allclose(turned(Tensor(x)).numpy(), np.pad(x[::-1].reshape(-1), (1, 0)).cumsum())


def test_a_running_reduction_from_the_end_runs_over_vectors():
  """Its loop is turned, so that blocks are aligned; no lane goes alone that does not where nothing is turned."""
  x = tensor(30, 3000)
  kernels, straight = (linear_of(y, 64) for y in (x.flip(1).cumsum(1).flip(1), x.cumsum(1)))
  assert times(kernels, lane_by_lane) == times(straight, lane_by_lane) < 30 * 3000 / 100
  stored_vectors = lambda u: u.op is Ops.STORE and u.src[0].op is Ops.INDEX  # noqa: E731
  assert times(kernels, stored_vectors) == times(straight, stored_vectors)


def test_to_write_from_the_end_costs_as_much_as_to_read_from_it():
  """A vector, turned, and not a scatter; under a condition of each lane, too."""
  r = UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, 64),), (0, AxisKind.LOOP))
  for masked in (frozenset(), frozenset({r})):
    there, back = (Access({r: -1}, 4, masked, stored).cost(r, 16) for stored in (False, True))
    assert back == there < 16 < Access({r: -2}, 4, masked, True).cost(r, 16)


def test_what_all_lanes_share_is_read_once():
  """Rows of 1000 end with half a vector, whose lanes all read one sum of what is before them, those that do."""
  assert times(linear_of(tensor(64, 1000).cumprod(1), 64), lane_by_lane) < 64, "less than once a row"


@pytest.mark.parametrize("lanes", [2, 4])
def test_a_condition_is_turned_around_only_with_what_is_read_from_its_end(monkeypatch, lanes):
  """Two lanes are gathered one by one, each under its own condition."""
  device = Device["CPU"]
  monkeypatch.setattr(device, "target", dataclasses.replace(device.target, vector_bytes=8 * lanes))
  x = np.arange(1.0, 13).reshape(4, 3)
  padded = Tensor(x).realize().pad(((0, 0), (0, 1)))
  one, two = padded[:, :2], padded[:, 2:].flip(1)
  got = two.square().sum(0).sub(one.square().sum(0)).div(one.mul(two).sum(0).add(1))
  a, b = x[:, :2], np.stack([np.zeros(4), x[:, 2]], 1)
  np.testing.assert_allclose(got.numpy(), ((b * b).sum(0) - (a * a).sum(0)) / ((a * b).sum(0) + 1))
