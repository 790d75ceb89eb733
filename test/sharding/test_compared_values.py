"""A value that others were compared with (a maximum and its gradient, the place of the greatest element) never comes of
another computation than they do: what it was compared with may be realised before, after, or not at all."""

import itertools

import numpy as np
import pytest

from tinygrad import Context, Device, Tensor, TinyJit
from tinygrad.schedule import fuse
from tinygrad.sharding.replacement import Replacement

D2 = ("CPU:0", "CPU:1")
PLACES = (None, (1, 0), (0, None), (None, 1))
"""Cuts of x and w over two devices: of none, of what is summed, of rows, of columns."""


def gradients(y, m):
  return [m, m.sum().gradient(y)[0]]


def one_gets_it(y, m, g):
  np.testing.assert_allclose(g.sum(0), np.ones(g.shape[1]), rtol=1e-6)
  np.testing.assert_allclose((g * y).sum(0), m.reshape(-1), rtol=1e-4)


def of_two(y):
  z = (y * 0.7 + 0.1).detach()
  m = y.maximum(z)
  return [z, m, m.sum().gradient(y)[0]]


def the_greater_gets_it(y, z, m, g):
  sure = np.abs(y - z) > 1e-3
  np.testing.assert_array_equal(g[sure], (y > z)[sure].astype(np.float32))


def pooled(y):
  m, places = y.reshape(1, 1, *y.shape).max_pool2d((2, 3), return_indices=True)
  return [m, places, m.sum().gradient(y)[0]]


def one_of_each_window_gets_it(y, m, places, g):
  np.testing.assert_allclose(y.reshape(-1)[places.reshape(-1)], m.reshape(-1), rtol=1e-4)
  assert g.sum() == pytest.approx(m.size)


def mask(y):
  m = y.max(0, keepdim=True)
  return [m, y.eq(m), y.ge(m)]


def one_is_it(y, m, *hits):
  for hit in hits:
    np.testing.assert_array_equal(hit.sum(0), np.ones(y.shape[1]))


def is_there(y, value, place):
  np.testing.assert_allclose(
    np.take_along_axis(y, place.reshape(-1, y.shape[1]), 0), value.reshape(-1, y.shape[1]), rtol=1e-4
  )


KINDS = {
  "max": (lambda y: gradients(y, y.max(0, keepdim=True)), one_gets_it),
  "min": (lambda y: gradients(y, y.min(0)), one_gets_it),
  "maximum": (of_two, the_greater_gets_it),
  "argmax": (lambda y: [y.max(0, keepdim=True), y.argmax(0)], is_there),
  "argmin": (lambda y: [y.min(0, keepdim=True), y.argmin(0)], is_there),
  "max_pool2d": (pooled, one_of_each_window_gets_it),
  "mask": (mask, one_is_it),
  "cummax": (lambda y: [*y.cummax(0)], is_there),
  "cummin": (lambda y: [*y.cummin(0)], is_there),
  "sort": (lambda y: [*y.sort(0)], is_there),
  "topk": (lambda y: [*y.topk(2, 0)], is_there),
}


def sources(seed, place):
  r = np.random.default_rng(seed)
  x, w = (Tensor(r.normal(size=shape).astype(np.float32)) for shape in ((6, 8), (8, 15)))
  if place is not None:
    x, w = x.shard(D2, place[0]), w.shard(D2, place[1])
  return x.realize(), w.realize()


def values_of(x, w, make):
  """A product, what is made of it with a rounding, and what comes of comparisons of that."""
  h = x @ w
  y = h * 0.3 + 0.01
  return [h, y, *make(y)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_what_is_compared_may_be_realised_in_any_order(kind, place):
  make, holds = KINDS[kind]
  r = np.random.default_rng(0)
  for seed, defer in itertools.product(range(6), (0, 1)):
    with Context(DEFER=defer):
      values = values_of(*sources(seed, place), make)
      for i in r.permutation(len(values))[:2] if seed else (2, 0):
        values[i].realize()
    holds(*[v.numpy() for v in values[1:]])


@pytest.mark.parametrize("kind", ("max", "argmax", "mask", "max_pool2d"))
@pytest.mark.parametrize("place", PLACES[:2], ids=str)
def test_what_is_compared_may_be_realised_inside_a_captured_step(kind, place):
  make, holds = KINDS[kind]

  @TinyJit
  def step(x, w):
    values = values_of(x, w, make)
    values[2].realize()
    values[0].realize()
    return values

  for seed in range(4):
    holds(*[v.numpy() for v in step(*sources(seed, place))[1:]])


@pytest.mark.parametrize("realised", (True, False))
@pytest.mark.parametrize(
  "make", (lambda x: x.max(0, keepdim=True), lambda x: x.min(0, keepdim=True)), ids=("max", "min")
)
def test_a_product_that_is_read_elsewhere_rounds_as_where_it_is_not(make, realised):
  """Where `a * b` is read for itself, too, it is not fused with the addition: the sum has other bits then."""
  r = np.random.default_rng(0)
  for n in (5, 40, 300):
    a, b, c = (Tensor(r.normal(size=(n, 33)).astype(np.float32)).realize() for _ in range(3))
    x = a * b + c
    m = make(x)
    result = x.eq(m).where(a * b, 0)
    if realised:
      m.realize()
    np.testing.assert_array_equal((result.numpy() != 0).sum(0), np.ones(33))


def test_the_programs_notice_what_is_read_on_one_side_and_computed_on_the_other(monkeypatch):
  monkeypatch.setattr(Replacement, "is_apart", lambda self, u: False)
  with pytest.raises(AssertionError):
    test_what_is_compared_may_be_realised_in_any_order("max", (1, 0))


@pytest.mark.skipif(
  not {"fma", "neon"} & set(Device["CPU"].target.features),
  reason="this processor, or CPU_FEATURES, has no fused multiply-add: a product has the same bits in every kernel",
)
def test_the_programs_notice_what_two_kernels_compute(fresh):
  fresh.setattr(fuse, "compared", lambda nodes: set())
  with pytest.raises(AssertionError):
    test_a_product_that_is_read_elsewhere_rounds_as_where_it_is_not(lambda x: x.max(0, keepdim=True), False)
