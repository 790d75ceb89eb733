"""What two blocks of a value share, as runs of neighbours."""

import numpy as np

from tinygrad.device.block import meet, runs


def some_box(rng, shape):
  """A box within a value, and the shape of a block that holds it: not smaller."""
  ends = [sorted(rng.integers(0, n + 1, 2)) for n in shape]
  return tuple((int(lo), int(hi)) for lo, hi in ends), [int(hi - lo + rng.integers(0, 3)) for lo, hi in ends]


def copied(pieces, a, b):
  for to, at, n in pieces:
    assert n > 0 and to + n <= a.size and at + n <= b.size
    a.reshape(-1)[to : to + n] = b.reshape(-1)[at : at + n]
  return a


def test_runs_copy_what_boxes_share():
  """Against slices of numpy, of up to four dims."""
  rng, longest = np.random.default_rng(0), 0
  for _ in range(600):
    shape = [int(n) for n in rng.integers(1, 6, rng.integers(0, 5))]
    (here, h), (there, t) = some_box(rng, shape), some_box(rng, shape)
    if rng.random() < 0.3:
      here, h = tuple((0, n) for n in shape), shape
    if rng.random() < 0.5:
      there, t = here, h
    source, target = rng.standard_normal(h), np.zeros(t)
    want = target.copy()
    if (both := meet(there, here)) is not None:
      at, to = (tuple(slice(lo - o, hi - o) for (lo, hi), (o, _) in zip(both, box)) for box in (here, there))
      want[to] = source[at]
    found = list(runs(there, t, here, h))
    np.testing.assert_array_equal(copied(found, target, source), want)
    longest = max(longest, *(n for _, _, n in found), 0)
  assert longest > 100


def test_whole_blocks_are_one_run():
  box = ((0, 3), (0, 4), (0, 5))
  assert list(runs(box, [3, 4, 5], box, [3, 4, 5])) == [(0, 0, 60)]
  assert list(runs(((0, 6), (0, 4)), [6, 4], ((2, 4), (0, 4)), [2, 4])) == [(8, 0, 8)]
  assert list(runs(((0, 6), (0, 4)), [6, 4], ((6, 6), (0, 4)), [2, 4])) == []
