"""Who gets a contested axis: by bytes, or as Shardy's basic and aggressive strategies have it."""

import numpy as np
import pytest

from tinygrad import Mesh, P, Sharding, Tensor
from tinygrad.helpers import Context
from tinygrad.sharding import explain
from tinygrad.sharding.costs import Costs
from tinygrad.sharding.factors import assignments
from tinygrad.sharding.outcomes import STRATEGIES
from tinygrad.uop import Ops, UOp, factor_rule

CPUS = tuple(f"CPU:{i}" for i in range(4))
MESH = Mesh(CPUS, (4,), ("d",))
GRID = Mesh(CPUS, (2, 2), ("a", "b"))


def leaf(*shape, cut, mesh=MESH):
  data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 13
  return data, Tensor(data).shard(mesh, P(*cut)).realize()


# the small operand is written first: aggressive lets it keep the axis, by bytes it is gathered, basic drops both cuts
OUTCOMES = {
  "cost": ((None, "d"), [("all_gather", 64 * 3)]),
  "basic": ((), [("all_gather", 64 * 3), ("all_gather", 64 * 64 * 3)]),
  "aggressive": (("d",), [("all_to_all", 64 * 64 // 4 * 3)]),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_contested_axis(strategy):
  (a, small), (b, big) = leaf(64, 1, cut=("d",)), leaf(64, 64, cut=(None, "d"))
  cut, moves = OUTCOMES[strategy]
  with Context(STRATEGY=strategy):
    y = small * big
    rows = explain(y).rows
    assert y.device is Sharding(MESH, P(*cut))
    assert [(r.kind, r.wire) for r in rows] == [(kind, n * 4 / 4) for kind, n in moves]
    assert all(r.why.startswith("mul wants it at") for r in rows)
    assert ("fewest bytes" in rows[0].why) == (strategy == "cost")
    assert all((f"STRATEGY={strategy}" in r.why) == (strategy != "cost") for r in rows)
    np.testing.assert_array_equal(y.numpy(), a * b)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_not_contested_is_the_same(strategy):
  (a, x), (b, w) = leaf(8, 16, cut=("a",), mesh=GRID), leaf(16, 8, cut=(None, "b"), mesh=GRID)
  with Context(STRATEGY=strategy):
    y = x @ w
    assert y.device is Sharding(GRID, P("a", "b")) and not explain(y).rows
    np.testing.assert_array_equal(y.numpy(), a @ b)


def test_basic_keeps_the_prefix_on_which_operands_agree():
  """One cuts the rows by a and then b, the other by a alone and its columns by b: only b is contested."""
  (a, x), (b, y) = leaf(16, 16, cut=(("a", "b"),), mesh=GRID), leaf(16, 16, cut=("a", "b"), mesh=GRID)
  with Context(STRATEGY="basic"):
    z = x + y
    assert z.device is Sharding(GRID, P("a"))
    np.testing.assert_array_equal(z.numpy(), a + b)
  with Context(STRATEGY="aggressive"):
    assert (x + y).device is x.device and (y + x).device is y.device  # equally parallel: the first as written


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_made_under_one_strategy_is_not_run_under_another(strategy):
  """The same matmul with contested columns, through the plan cache, by each strategy in turn."""
  (a, x), (b, w) = leaf(32, 16, cut=(None, "d")), leaf(16, 32, cut=(None, "d"))
  for each in (strategy, *STRATEGIES):
    with Context(STRATEGY=each):
      y = x @ w
      g = y.square().sum().gradient(w)[0]
      np.testing.assert_array_equal(y.numpy(), a @ b)
      np.testing.assert_array_equal(g.numpy(), a.T @ (2 * (a @ b)))


def test_another_strategy_is_an_error():
  (_, x), (_, y) = leaf(8, 8, cut=("d",)), leaf(8, 8, cut=(None, "d"))
  says = r"(?s)STRATEGY='greedy': there is no such strategy.*fix: use one of cost, basic, aggressive"
  with Context(STRATEGY="greedy"), pytest.raises(ValueError, match=says):
    x + y


def test_a_contested_pair_of_axes_may_go_either_way():
  """Each operand's cuts as they are, beside all that drops or shifts one. (Mutant: a conflict is not seen.)"""
  (_, x), (_, y) = leaf(8, 8, cut=("a", "b"), mesh=GRID), leaf(8, 8, cut=("b", "a"), mesh=GRID)
  rule = factor_rule(UOp.new(Ops.ADD, x.dtype, (x.uop, y.uop)))
  a, b = GRID.sub_axis("a"), GRID.sub_axis("b")
  for sources in ((x, y), (y, x)):
    ways = assignments(rule, [t.device for t in sources], len(GRID))
    assert {0: (a,), 1: (b,)} in ways and {0: (b,), 1: (a,)} in ways


def test_of_two_placements_with_equal_bytes_the_earlier_one_moves():
  """So nothing has to be moved to the later one. (Mutant: only one of fewer bytes does.)"""
  x = leaf(8, 8, 8, cut=("d",))[1].uop
  later, target = (Sharding(MESH, P(*spec)) for spec in ((None, "d"), (None, None, "d")))
  moved = Costs().build(x.move(later, pinned=False), target)
  assert moved.src == (x,) and moved.device is target
