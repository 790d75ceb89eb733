"""The gradient of a convolution in its input is a convolution: numerics/windows.py."""

import numpy as np
import pytest
from steps import growth

from tinygrad import Tensor, dtypes
from tinygrad.numerics import windows
from tinygrad.schedule import schedule
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp

CASES = [  # x, weight, arguments of conv2d; a few places where the taps reach beyond the end
  ((2, 4, 9, 8), (8, 4, 3, 3), {"padding": 1}),
  ((2, 4, 9, 8), (8, 2, 3, 3), {"groups": 2}),
  ((1, 4, 7, 6), (4, 1, 3, 2), {"groups": 4, "dilation": 2}),
  ((3, 2, 5), (6, 2, 4), {"padding": 3}),
  ((1, 2, 6, 5, 4), (3, 2, 2, 3, 2), {}),
  ((2, 4, 9, 8), (4, 1, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
  ((1, 3, 11), (3, 1, 3), {"groups": 3, "stride": 3, "dilation": 2}),
  ((2, 3, 8, 7), (4, 3, 2, 3), {"stride": 2}),
  ((2, 3, 8, 7), (4, 3, 2, 2), {"stride": 2}),  # side by side,
  ((1, 3, 8, 10), (4, 3, 2, 1), {"stride": 3}),  # and with places between
]


def gradient(x, w, g, **how):
  X = Tensor(x)
  return (X.conv2d(Tensor(w), **how) * Tensor(g)).sum().gradient(X)[0].numpy()


def want(x, w, g, padding=0, groups=1, dilation=1, stride=1):
  """Each output's gradient, times each weight, added where the weight stood."""
  out = np.zeros((*x.shape[:2], *(n + 2 * padding for n in x.shape[2:])))
  outputs, inputs = w.shape[0] // groups, w.shape[1]
  for k in np.ndindex(*w.shape[2:]):
    at = tuple(slice(i * dilation, i * dilation + (n - 1) * stride + 1, stride) for i, n in zip(k, g.shape[2:]))
    for group in range(groups):
      weights = w[group * outputs : (group + 1) * outputs, :, *k]
      part = np.einsum("bo...,oi->bi...", g[:, group * outputs : (group + 1) * outputs], weights)
      out[:, group * inputs : (group + 1) * inputs, *at] += part
  return out[:, :, *(slice(padding, padding + n) for n in x.shape[2:])]


def arrays(x, w, how):
  rng = np.random.default_rng(0)
  y = Tensor.empty(*x).conv2d(Tensor.empty(*w), **how).shape
  return [rng.integers(-4, 5, s).astype(np.float32) for s in (x, w, y)]


@pytest.mark.parametrize("x, w, how", CASES)
def test_gradients_in_the_input(x, w, how):
  given = arrays(x, w, how)
  np.testing.assert_array_equal(gradient(*given, **how), want(*given, **how))


@pytest.mark.parametrize("part, case", [("flip", 0), ("padded", 0), ("apart", 5), ("beside", 8), ("beside", 9)])
def test_laws_kill_mutants(part, case, fresh):
  x, w, how = CASES[case]
  given = arrays(x, w, how)
  if part == "flip":
    fresh.setattr(UOp, "flip", lambda self, axes: self)
  elif part == "beside":  # what stands in a window in another order

    def other(u):
      if (z := windows.spread_of(u)) is None:
        return None
      turned = z.replace(src=(z.src[0].flip((z.arg[1],)),))
      return windows.without_overlap(u.replace(src=(turned,)))

    fresh.setattr(schedule, "SUMS", (other, *schedule.SUMS[1:]))
  elif part == "apart":  # places in another order
    apart = windows.apart
    fresh.setattr(windows, "apart", lambda x, axis, stride: apart(x.flip((axis,)), axis, stride))
  else:
    padded = windows.padded
    fresh.setattr(windows, "padded", lambda x, axis, before, after: padded(x, axis, after + 1, before - 1))
  assert np.abs(gradient(*given, **how) - want(*given, **how)).max() > 1


def asts(t):
  sink = UOp.sink(UOp.buffer(t.shape, t.dtype, "NULL").assign(t.uop))
  return [i.kernel for i in create_schedule(localize(sink)).items]


def folds(f):
  """The lengths of the reductions of the gradient's kernels."""
  x = Tensor.empty(2, 16, 8, 8, device="NULL")
  out = f(x)
  found = asts((out * Tensor.empty(*out.shape, device="NULL")).sum().gradient(x)[0])
  return [[r.src[0].arg for r in u.src[1:]] for k in found for u in k.toposort() if u.op is Ops.FOLD]


def test_what_becomes_windows():
  """Products with weights, alone or summed; with a stride only short sums; not what differs from tap to tap in another
  way."""
  w, many, each = (Tensor.empty(*shape, device="NULL") for shape in ((5, 16, 3, 3), (32, 16, 3, 3), (16, 1, 3, 3)))
  assert folds(lambda x: x.conv2d(w, padding=1)) == [[5, 3, 3]]
  assert folds(lambda x: x.avg_pool2d((3, 3), stride=1)) == [[3, 3]]
  assert [32] in folds(lambda x: x.conv2d(many, stride=2)) and folds(lambda x: x.conv2d(w, stride=2)) == [[5, 3, 3]]
  assert folds(lambda x: x.conv2d(each, stride=2, groups=16)) == [[3, 3]]
  assert [3] in folds(lambda x: x.max_pool2d((3, 3), stride=1))


def test_windows_side_by_side_are_not_summed():
  """Whatever stands in them: each place is in one at most."""
  assert folds(lambda x: x.avg_pool2d((3, 3))) == folds(lambda x: x.avg_pool2d((2, 2), stride=3)) == []
  assert [3] not in folds(lambda x: x.max_pool2d((3, 3)))
  patches = Tensor.empty(5, 16, 2, 2, device="NULL")
  assert folds(lambda x: x.conv2d(patches, stride=2)) == [[5]]


def test_weights_that_are_squares_of_squares():
  """Each of n squares has the one before twice, so that there are 2^n ways down: each is looked at once."""

  def look(n):
    g, w = (UOp.buffer(shape, dtypes.float32, "CPU").expand((8, 3)) for shape in ((8, 1), (1, 3)))
    for _ in range(n):
      w = w * w
    y = UOp.new(Ops.SPREAD, dtypes.float32, (g * w,), (0, 1, 1, 1, 10))
    assert windows.as_windows(UOp.new(Ops.REDUCE, dtypes.float32, (y,), (Ops.ADD, (1,)))) is not None

  assert growth(look, 10) < 1.25


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_gradients_of_halves_are_rounded_once(kind):
  """What the taps of a place add up to is summed as wide as its products are."""
  x, w, how = CASES[0]
  g = Tensor.empty(*x).conv2d(Tensor.empty(*w), **how).shape
  rng = np.random.default_rng(0)
  given = [Tensor(rng.uniform(-1, 1, s).astype(np.float32)).cast(kind).realize() for s in (x, w, g)]
  got = given[0].conv2d(given[1], **how).gradient(given[0], gradient=given[2])[0]
  exact = want(*(t.float().numpy().astype(np.float64) for t in given), **how)
  assert got.dtype.name == kind
  ulp = 2.0 ** (np.floor(np.log2(np.abs(exact))) - (7 if kind == "bfloat16" else 10))
  assert (np.abs(got.float().numpy() - exact) <= 0.5001 * ulp + 1e-5).all()
