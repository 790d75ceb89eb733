"""Bytes and steps of moves, against counting the elements themselves."""

import itertools

import pytest

from tinygrad.device import Digit, Mesh, Owe, P, Sharding
from tinygrad.sharding.moves import atoms, boundaries, nests, plan, wire
from tinygrad.uop.ops import Ops

M = Mesh([f"NULL:{i}" for i in range(12)], (2, 2, 3), ("a", "b", "c"))
CUTS = [
  (),
  ("a",),
  (None, "a"),
  ("b", "a"),
  (("a", "b"),),
  (("b", "a"),),
  (None, ("a", "b", "c")),
  ("c", "b"),
  (("a", "b", "c"),),
  ("a:(1)2",),
]


def cells(p, d, shape):
  return set(itertools.product(*(range(lo, hi) for lo, hi in p.box(d, shape))))


@pytest.mark.parametrize("shape", [(12, 12), (5, 7), (1, 2), (13, 3)], ids=str)
def test_a_change_of_cut_costs_the_elements_that_are_not_there_yet(shape):
  for x, y in itertools.product(CUTS, CUTS):
    a, b = Sharding(M, P(*x)), Sharding(M, P(*y))
    counted = max(len(cells(b, d, shape) - cells(a, d, shape)) for d in range(len(M)))
    assert wire(shape, 4, a, b) == 4 * counted, (a, b)
    if counted == 0 and a is not b:
      assert all(s.nbytes == 0 for s in plan(shape, 4, a, b))


def test_kinds():
  def kind(x, y):
    return [s.kind for s in plan((12, 12), 4, Sharding(M, P(*x)), Sharding(M, P(*y)))]

  assert kind(("a",), ()) == ["all_gather"]
  assert kind((), ("a",)) == ["slice"]
  assert kind(("a",), (("a", "b"),)) == ["slice"]
  assert kind(("a",), (None, "a")) == ["all_to_all"]
  assert kind(("a",), ("b",)) == ["permute"]
  assert plan((12, 12), 4, Sharding(M, 0), Sharding(M, 0)) == ()


def owing(cut, *axes, op=Ops.ADD):
  return Sharding(M, P(*cut)).with_pending([Owe(tuple(M.digits(a) for a in axes), op)])


def test_debts_are_reduced_or_scattered():
  """Ring figures: an all-reduce over n moves 2(n-1)/n of the block, a reduce-scatter (n-1)/n."""
  block = 12 * 12 * 4
  assert wire((12, 12), 4, owing((), "a"), Sharding(M)) == block
  assert wire((12, 12), 4, owing((), "c"), Sharding(M)) == pytest.approx(2 * block * 2 / 3)
  assert wire((12, 12), 4, owing((), "c"), Sharding(M, P("c"))) == pytest.approx(block * 2 / 3)
  steps = plan((12, 12), 4, owing((), "a"), Sharding(M, P("b")))
  assert [s.kind for s in steps] == ["slice", "all_reduce"]  # cut first: half is left to reduce
  assert sum(s.nbytes for s in steps) == block / 2
  assert [s.kind for s in plan((12, 12), 4, owing((), "a", "b"), Sharding(M, P("a")))] == [
    "reduce_scatter",
    "all_reduce",
  ]


def test_flat_blocks_of_an_uneven_dim_do_not_nest():
  assert nests(12, 2, 4)
  assert not nests(5, 2, 4)
  assert nests(5, 1, 4)
  assert [s.kind for s in plan((5,), 4, Sharding(M, P("a")), Sharding(M, P(("a", "b"))))] == ["all_to_all"]


def test_between_device_sets_every_device_receives_its_own_part():
  p = Sharding(M, P("a"))
  assert wire((12, 12), 4, "NULL:50", p) == 12 * 12 * 4 / 2
  assert wire((12, 12), 4, p, "NULL:50") == 12 * 12 * 4


def test_digits_are_refined_at_common_boundaries():
  chain = boundaries(12, [(Digit(4, 3),), (Digit(2, 3),)])
  assert chain == (1, 3, 6, 12)
  assert atoms((Digit(4, 3),), chain) == (Digit(2, 6), Digit(2, 3))
  assert atoms((Digit(3, 4),), chain) is None
