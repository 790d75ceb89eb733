"""What a byte of memory is traded for: bounds that know of values which are computed again, against all choices."""

import itertools
import random

import numpy as np
import pytest
from test_auto import least_of_all

from extra.bench.place_cost import training
from tinygrad import Mesh, Tensor
from tinygrad.propagation import as_placed, planned_bytes
from tinygrad.solver.auto import fit, trades
from tinygrad.solver.auto.automatic import answered
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.model import Model
from tinygrad.solver.auto.program import Chosen
from tinygrad.solver.auto.recompute import Dropping, bytes_here
from tinygrad.solver.auto.search import Search, Selection
from tinygrad.uop import UOp

D4 = tuple(f"NULL:{i}" for i in range(4))
ONE, TWO = Mesh(D4, names=("x",)), Mesh(D4, (2, 2), ("x", "y"))
MACHINE = Machine(1e12, 1e11, 1e10, 0.0)
CHANGED, MOST_AROUND, MOST_LATE = 3, 30, 7
PRICES = (0.0, 1e-12, 1e-11, 1e-10)


def network(layers=1, rows=64, width=16):
  """A step of layers whose values are read again by their gradients."""
  leaf = lambda *shape: Tensor.empty(*shape, device="NULL:0", requires_grad=True)  # noqa: E731
  h = leaf(rows, width)
  weights = [[leaf(width, 4 * width), leaf(4 * width, width)] for _ in range(layers)]
  for a, b in weights:
    h = h + (h @ a).gelu() @ b
  weights = [w for pair in weights for w in pair]
  loss = h.square().mean()
  return UOp.sink(loss.uop, *[w.uop.assign((w - g * 0.1).uop) for w, g in zip(weights, loss.gradient(*weights))])


def searched(sink, mesh, machine=MACHINE):
  search = Search(Model(sink, mesh, machine))
  return search, search.trades(search.model.classes, search.model.program)


@pytest.mark.parametrize("mesh", (ONE, TWO), ids=("1-D", "2-D"))
@pytest.mark.parametrize("weight", PRICES)
def test_at_a_price_the_least_of_all_choices_is_found(mesh, weight):
  """Against elimination: no placement costs less, with each value kept or had again as is less."""
  _, priced = searched(network(), mesh)
  hull = trades.TradedHull(priced)
  hull.at(0.0)
  point, least = hull.at(weight), least_of_all(priced.priced(weight))
  assert hull.lines[weight] == pytest.approx(least, rel=1e-6)
  assert least * (1 - 1e-6) <= point.priced(weight) <= least * 1.01


def test_a_price_is_the_least_of_all_ways_to_have_each_value():
  """Against the product of the alternatives of all items."""
  _, priced = searched(network(), ONE)
  rng = random.Random(0)
  for weight in PRICES:
    cuts = [rng.randrange(len(v.cuts)) for v in priced.base.values]
    seconds, held = priced.base.point(cuts, weight)
    states = [0] * len(priced.summed)
    items = [(i, (cuts[c],)) for c, i in priced.of_value.items()]
    for k, i in priced.of_copy.items():
      op = priced.base.ops[k]
      items.append((i, (cuts[op.sides[0].value], priced.priced(weight).ops[k].best([*cuts, *states]))))
    for i, at in items:
      each = [zip(i.seconds[(slice(None), j, *at)], i.memory[(slice(None), j, *at)]) for j in range(i.seconds.shape[1])]
      s, m = min(
        (np.sum(way, axis=0) for way in itertools.product(*map(list, each))), key=lambda x: x[0] + weight * x[1]
      )
      seconds, held = seconds + s, held + m
    held += sum(x.memory[cuts[x.of]] for x in priced.summed)
    assert priced.priced(weight).total([*cuts, *states]) == pytest.approx(seconds + weight * held)


@pytest.mark.parametrize("weight", PRICES)
def test_a_sum_that_is_had_again_is_moved_again(weight):
  """Of random placements: what it takes more to have values again than to keep them is their own kernels, and once more
  the move of each result, where that is partial, by the best way then."""
  search, priced = searched(network(2), TWO)
  rng, partial = random.Random(2), 0
  assert priced.summed
  for _ in range(20):
    cuts = [rng.randrange(len(v.cuts)) for v in priced.base.values]
    for k, x in enumerate(priced.summed):
      op, side = priced.base.ops[x.op], priced.base.ops[x.op].sides[-1]
      again = [*cuts, *[int(k == j) for j in range(len(priced.summed))]]
      more = (op.priced(cuts) + x.share * side.of_ways(cuts[side.value])).min() - op.price(cuts)
      partial += more > 0
      kept, had = (priced.point(chosen, weight) for chosen in (cuts, again))
      assert had[0] - kept[0] == pytest.approx(x.seconds[cuts[x.of]] + more, rel=1e-6, abs=1e-15)
      assert kept[1] - had[1] == pytest.approx(x.memory[cuts[x.of]])
      total = priced.priced(weight).total(again)
      assert total == pytest.approx(had[0] + weight * had[1])
  assert partial


def around(p, cuts, chances):
  """All choices of a few values, the others placed so."""
  free = chances.sample([c for c, v in enumerate(p.values) if len(v.cuts) > 1], CHANGED)
  for way in itertools.product(*[range(len(p.values[c].cuts)) for c in free]):
    changed = dict(zip(free, way))
    yield tuple([changed.get(c, k) for c, k in enumerate(cuts)])


def drafts(search, hull, chances):
  """Of placements of the hull, and of those around them, that may be below the bound: (seconds, cuts, how what they
  hold is dropped)."""
  model, p = search.model, search.model.program
  of_hull = dict.fromkeys(tuple(point.cuts[: len(p.values)]) for point in hull.points)
  others = dict.fromkeys(way for cuts in of_hull for way in around(p, cuts, chances))
  most = max(hull.bound(0.0), p.total(hull.points[0].cuts))
  near = sorted((seconds, cuts) for cuts in others if (seconds := p.total(cuts)) < most)
  for cuts in [*of_hull, *[cuts for _, cuts in near[:MOST_AROUND]]]:
    chosen = Chosen(list(cuts), p.total(cuts), 0.0)
    found = answered(model, Selection(model.classes, p, chosen))
    yield chosen, Dropping(as_placed(found.answer, model.asked.order[-1].src), MACHINE, planned_bytes)


def subsets(late, chances):
  """All of a few; else some of each size."""
  sizes = range(len(late) + 1)
  if len(late) <= MOST_LATE:
    return [set(some) for n in sizes for some in itertools.combinations(late, n)]
  return [set(chances.sample(late, n)) for n in sizes for _ in range(6)]


def below_the_bound(layers, mesh):
  """Of how many placements, each with values dropped in all or many ways, the seconds are below what no choice should
  be that holds as many bytes."""
  search, priced = searched(network(layers), mesh)
  hull, chances, below, saved = trades.TradedHull(priced), random.Random(1), 0, 0
  assert hull.fits(0.0) is False  # all prices
  for chosen, dropping in drafts(search, hull, chances):
    for dropped in subsets([u for u in dropping.alive if bytes_here(u) > 64], chances):
      alive = dropping.modelled(dropped)
      seconds = chosen.seconds + dropping.seconds(dropped)
      saved += alive < dropping.most
      below += seconds < hull.bound(dropping.leaves + alive) * (1 - 1e-3)
  assert saved >= 16
  return below


@pytest.mark.parametrize("mesh", (ONE, TWO), ids=("1-D", "2-D"))
@pytest.mark.parametrize("layers", (2, 3))
def test_nothing_that_is_built_is_below_the_bound(layers, mesh):
  """Placements as they are built, with every set of values dropped."""
  assert below_the_bound(layers, mesh) == 0


def test_a_bound_that_takes_too_much_for_what_is_computed_again_is_noticed(monkeypatch):
  """(Mutant: each value pays for all that is computed with it, and thrice.)"""
  again = trades.Trades.again
  monkeypatch.setattr(trades.Trades, "again", lambda t, v, c, blocks: 3 * len(t.users) * again(t, v, c, blocks))
  assert below_the_bound(2, ONE)


def fitted(layers, mesh, share, machine=MACHINE):
  sink = training(layers, "NULL:0", 4)()
  search = Search(Model(sink, mesh, machine))
  build = lambda found: as_placed(found.answer, sink.src)  # noqa: E731
  memory = share * planned_bytes(build(answered(search.model, search.within(None))))
  return fit.Fitting(search, build, planned_bytes, machine, memory).fitted(), memory


def test_a_part_of_equal_layers_is_computed_again(monkeypatch):
  """As many layers as have to be. (Mutant: all or none.)"""
  found, memory = fitted(8, ONE, 0.7)
  counts = [tuple(map(int, line.split()[:3:2])) for line in found.again.parts]
  assert found.memory <= memory and any(0 < n < of for n, of in counts)
  assert all(line in str(found) for line in found.again.parts)
  monkeypatch.setattr(Dropping, "fewest", lambda self, chosen, i, limit, measured: chosen[i])
  alike, _ = fitted(8, ONE, 0.7)
  assert alike.seconds > found.seconds


def test_the_gap_is_small_where_values_are_computed_again():
  found, memory = fitted(24, ONE, 0.6)
  assert found.again.dropped and found.memory <= memory and found.gap <= 0.02


def test_copies_count_as_memory():
  """What is moved once for the forward and the backward pass is held for as long. (Mutant: it takes none.)"""
  search, priced = searched(training(3, "NULL:0")(), ONE)
  free = search.within(None)
  found = answered(search.model, free)
  dropping = Dropping(as_placed(found.answer, search.model.asked.order[-1].src), MACHINE, planned_bytes)
  held = priced.point(free.chosen.cuts, 0.0)[1]
  assert held == pytest.approx(dropping.leaves + dropping.most, rel=0.1)
  priced.of_copy.clear()
  assert priced.point(free.chosen.cuts, 0.0)[1] < held * 0.95
