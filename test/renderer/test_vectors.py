"""C with the vectors of OpenCL: what a processor's OpenCL device computes by them is what its own kernels compute."""

import itertools
import math
import re

import numpy as np
import pytest

from tinygrad import Tensor, dtypes
from tinygrad.codegen import lower_kernel
from tinygrad.device import Target
from tinygrad.engine.canonical import canonical
from tinygrad.renderer import vectors
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import UOp
from tinygrad.uop.node import stored

LOOPS = Target("LOOPS", vector_bytes=32, scratch=8 << 20, shares=True)
N = 37  # vectors, and some that are none
INTS = [*dtypes.sints, *dtypes.uints]
FLOATS = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]
needs_cl = pytest.mark.needs("CL")


def values(dtype, seed):
  rng = np.random.default_rng(seed)
  if dtypes.is_bool(dtype):
    return rng.random(N) < 0.5
  if dtypes.is_int(dtype):
    lo, hi = dtypes.min(dtype), dtypes.max(dtype)
    odd = [lo, hi, 0, 1, hi - 1, lo + 1, hi // 2]
    return np.array((odd + [int(x) for x in rng.integers(lo, hi, N, dtype=f"{'u' * (lo == 0)}int64")])[:N], object)
  odd = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 2.0**-14]
  return np.array((odd + list(rng.standard_normal(N) * 3))[:N], object)


def both(f, *of):
  """The bytes of a result on either device, given tensors of these dtypes."""
  out = []
  for device in ("CL", "CPU"):
    xs = [Tensor(values(d, i).tolist(), dtype=d, device=device).realize() for i, d in enumerate(of)]
    out.append(f(*xs).to("CPU").realize())
  return [x.bitcast(f"uint{8 * x.dtype.itemsize}").tolist() if dtypes.is_float(x.dtype) else x.tolist() for x in out]


@needs_cl
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_are_the_same(dtype):
  x, y = dtype, dtype
  for f in (
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: -x ^ y,
    lambda x, y: (x & y) | ~x,
    lambda x, y: x.maximum(y) - x.minimum(y),
    lambda x, y: x << 3,
    lambda x, y: x >> 3,
    lambda x, y: x // y,
    lambda x, y: x % y,
    lambda x, y: (x < y).where(x, y),
    lambda x, y: ((x < y) & (x != 0) | (y == 1)).where(x, 7),
  ):
    mine, theirs = both(f, x, y)
    assert mine == theirs


@needs_cl
@pytest.mark.parametrize("a, b", [*itertools.product([*INTS, *FLOATS, dtypes.bool], repeat=2)], ids=str)
def test_conversions_are_the_same(a, b):
  def f(x):
    if dtypes.is_float(a) and dtypes.is_int(b):  # what does not fit is whatever a processor makes of it
      x = (x.isnan() | x.isinf()).where(1, x)
      x = x.abs() if dtypes.is_unsigned(b) else x
    elif dtypes.is_int(a) and b is dtypes.float16:
      x = x.clip(max(dtypes.min(a), -999), min(dtypes.max(a), 999))
    return x.cast(b)

  mine, theirs = both(f, a)
  assert mine == theirs


@needs_cl
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_are_the_same(dtype):
  for f in (
    lambda x, y: x + y,
    lambda x, y: -x * y,
    lambda x, y: x / y,
    lambda x, y: x.maximum(y),
    lambda x, y: x.minimum(y),
    lambda x, y: (x < y).where(x, y),
    lambda x, y: (x != x).where(y, x.sign()),
    lambda x, y: x.floor() + y.ceil() * x.round(),
  ):
    mine, theirs = both(lambda x, y, f=f: (f(x, y) != f(x, y)).where(7, f(x, y)), dtype, dtype)
    assert mine == theirs


def source(t, target=LOOPS, threads=1):
  (kernel,) = (
    i.kernel for i in create_schedule(localize(canonical(UOp.sink(stored(t.uop, "CPU")))[0]), True, target).items
  )
  return vectors.render(lower_kernel(kernel, target, threads), "kernel_")


def test_values_are_vectors_and_groups_have_pieces():
  x = Tensor(np.zeros((512, 640), np.float32)).to("CPU").realize()
  rendered = source((x * 2 > 1).where(x.exp(), 0), threads=2)
  assert re.search(r"float8 \w+ = vload8\(0, p1", rendered.source) and "vstore8(" in rendered.source
  assert "get_group_id(0)" in rendered.source and rendered.launch.groups[0] > 1 and rendered.launch.threads == (1, 1, 1)
  assert not re.search(r"\.s[0-9a-f]", rendered.source)  # nothing is done lane by lane


def test_scratch_memory_is_a_part_of_one_buffer_for_each_group():
  x = Tensor(np.zeros((300, 300), np.float32)).to("CPU").realize()
  rendered = source(x @ x, threads=2)
  words = int(re.search(r"scratch = arena \+ get_group_id\(0\) \* (\d+);", rendered.source)[1])
  assert rendered.launch.local == 16 * words > 0 and rendered.source.count("__global uint4* arena") == 1
  assert "__local" not in rendered.source
