"""Dims of a symbolic length that are cut, joined and split: what devices hold is what numpy makes of the value."""

import itertools
import random

import numpy as np
import pytest

from tinygrad import Context, Mesh, P, Tensor, TinyJit, Variable
from tinygrad.uop import symbolic

SIZES = (8, 4, 6)
BASE = np.random.default_rng(0).integers(-9, 9, SIZES).astype(np.float32)
MESH = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("a", "b"))
CUTS = [None, "a", "b", ("a", "b"), ("b", "a")]
N, M = Variable("n", 1, 8), Variable("m", 2, 4)
MAPS = {
  "join 0 1": lambda y: y.reshape(y.shape[0] * y.shape[1], y.shape[2]),
  "join 1 2": lambda y: y.reshape(y.shape[0], y.shape[1] * y.shape[2]),
  "join all": lambda y: y.reshape(y.shape[0] * y.shape[1] * y.shape[2]),
  "join 1 0": lambda y: y.permute(1, 0, 2).reshape(y.shape[1] * y.shape[0], y.shape[2]),
  "join 2 0": lambda y: y.permute(2, 0, 1).reshape(6 * y.shape[0], y.shape[1]),
  "join 2 1 0": lambda y: y.permute(2, 1, 0).reshape(6 * y.shape[1] * y.shape[0]),
  "split 2": lambda y: y.reshape(*y.shape[:2], 2, 3),
  "join and split": lambda y: y.reshape(y.shape[0] * y.shape[1] * 2, 3),
  "there and back": lambda y: (y.reshape(y.shape[0] * y.shape[1], 6) * 2).reshape(*y.shape),
}
# lengths that are sums
GROWN = {
  "": lambda y: y,
  "padded, ": lambda y: y.pad(((1, 2), None, None)),
  "twice, less one, ": lambda y: y.cat(y[1:]),
  "beside a part, ": lambda y: y.cat(y[:, :1], dim=1),
}


def cuts(rng):
  while True:
    spec = [rng.choice(CUTS) for _ in SIZES]
    used = list(itertools.chain.from_iterable(spec_ for spec_ in spec if spec_))
    if len(used) == len(set(used)):
      return P(*spec)


def told(y, longest):
  """The sum of y, each element times its place in a value of the longest shape."""
  places = Tensor.arange(int(np.prod(longest))).reshape(longest).cast("float32")
  return (y * places.shrink([(0, n) for n in y.shape])).sum()


def fails(seed):
  rng = random.Random(seed)
  name, spec, (i, j) = rng.choice(list(MAPS)), cuts(rng), rng.choice([(3, None), (8, None), (None, 3), (5, 2), (1, 4)])
  grown = rng.choice(list(GROWN))
  f = lambda y: MAPS[name](GROWN[grown](y))  # noqa: E731
  x = Tensor(BASE).shard(MESH, spec)
  want = f(Tensor(BASE[:i, :j])).numpy()
  longest = f(Tensor(BASE)).shape
  with Context(INTERPRET=1, SPEC=2, DEFER=seed % 2):
    got = told(f(x[: N.bind(i) if i else None, : M.bind(j) if j else None]), longest).item()
  places = np.arange(int(np.prod(longest))).reshape(longest)[tuple(slice(n) for n in want.shape)]
  return [] if got == (want * places).sum() else [f"{grown}{name} of [:{i}, :{j}] cut by {spec}: {got}"]


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_joined_and_split_dims_of_a_symbolic_length(first):
  assert sum((fails(seed) for seed in range(first, first + 40)), []) == []


def test_a_captured_step_joins_a_cut_dim_of_a_symbolic_length():
  @TinyJit
  def flat_sum(x, n):
    y = x[:n]
    return told(y.reshape(y.shape[0] * 6), (48,)).realize()

  rows = BASE[:, 0]
  for i in (5, 3, 8, 1):
    got = flat_sum(Tensor(rows).shard(MESH, P(("a", "b"))).realize(), N.bind(i)).item()
    assert got == (rows[:i].reshape(-1) * np.arange(6 * i)).sum()


def test_a_common_factor_comes_out_of_an_extremum():
  n = symbolic.index(0) + N
  assert (n * 6 - 24).maximum(0).simplified.minimum(24).simplified is ((n - 4).maximum(0).minimum(4) * 6).simplified


@pytest.mark.parametrize("cut", [False, True])
def test_a_dim_of_variable_length_is_rolled_and_unfolded(cut):
  whole = np.arange(20, dtype=np.float32).reshape(10, 2)
  x, v = Tensor(whole), Variable("n", 1, 10)
  x = (x.shard(("CPU:0", "CPU:1"), axis=0) if cut else x).realize()
  for n in (1, 5, 10):
    part, want = x[: v.bind(n)], whole[:n]
    for k in (-7, 0, 2, 13):
      np.testing.assert_array_equal(part.roll(k, 0).numpy(), np.roll(want, k, 0))
      np.testing.assert_array_equal(part.roll((k, 1), (0, 1)).numpy(), np.roll(want, (k, 1), (0, 1)))
    np.testing.assert_array_equal(part.roll(3).numpy(), np.roll(want, 3))
    if n >= 3:
      windows = np.lib.stride_tricks.sliding_window_view(want, 3, 0)[::2]
      np.testing.assert_array_equal(part.unfold(0, 3, 2).numpy(), windows)


def test_a_captured_step_rolls_by_the_length_of_each_call():
  whole = np.arange(10, dtype=np.float32)
  step, x, v = TinyJit(lambda x: x.roll(2).realize()), Tensor(whole).realize(), Variable("n", 1, 10)
  for n in (5, 4, 3, 2, 1, 10):
    np.testing.assert_array_equal(step(x[: v.bind(n)]).numpy(), np.roll(whole[:n], 2))
