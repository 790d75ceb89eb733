"""What `auto` computes again where memory binds: values that are kept are not, plans that fit, never slower than by
placements alone."""

import functools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from test_auto_trades import network as training_of_layers

from extra import recipes
from extra.bench.place_cost import training
from tinygrad import Mesh, ShardError, Tensor, auto
from tinygrad.propagation import as_placed, planned_bytes
from tinygrad.sharding import explain
from tinygrad.solver.auto import fit, memory, recompute
from tinygrad.solver.auto.automatic import answered, automatic
from tinygrad.solver.auto.machine import H100, Machine
from tinygrad.solver.auto.model import Model
from tinygrad.solver.auto.recompute import Dropping
from tinygrad.solver.auto.search import Search
from tinygrad.uop import Ops, UOp

D4 = tuple(f"NULL:{i}" for i in range(4))
MESHES = {"1-D": Mesh(D4, names=("x",)), "2-D": Mesh(D4, (2, 2), ("x", "y"))}
MACHINE = Machine(1e12, 1e11, 1e10, 0.0)
LAYERS, ROWS, WIDTH = 6, 32, 16


def network(seed=0, layers=LAYERS, rows=ROWS, width=WIDTH):
  """(loss, gradients) of layers with a stream through them."""
  rng = np.random.default_rng(seed)
  leaf = lambda *shape: Tensor(rng.normal(size=shape).astype(np.float32) / 4).realize()  # noqa: E731
  weights = [[leaf(width, 4 * width), leaf(4 * width, width)] for _ in range(layers)]
  h = x = leaf(rows, width)
  for a, b in weights:
    h = h + (h @ a).gelu() @ b
  loss = h.square().mean()
  return [loss, *loss.gradient(x, *[w for pair in weights for w in pair])]


@pytest.mark.parametrize("seed", range(3))
def test_values_are_the_same_whatever_is_dropped(seed):
  rng = random.Random(seed)
  outs = network(seed)
  want = [t.numpy() for t in outs]
  roots = [t.uop for t in network(seed)]
  dropping = Dropping(roots, MACHINE, planned_bytes)
  for share in (0.2, 0.5, 1.0):
    dropped = {u for u in dropping.alive if rng.random() < share}
    again = dropping.again(dropped)
    made = again.replaced()
    got = [Tensor(made.get(u, u)) for u in roots]
    assert not dropped or made
    waits = [u for u in UOp.sink(*(t.uop for t in got)).toposort() if u.op is Ops.WAIT]
    assert bool(waits) == bool(made)
    for a, b in zip(got, want, strict=True):
      # a sum's terms come in another order: what is lost is a part of the largest, not of what is left of them
      np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_what_is_dropped_is_read_by_nobody_late():
  roots = [t.uop for t in network()]
  dropping = Dropping(roots, MACHINE, planned_bytes)
  group = max(dropping.groups(), key=len)
  made = dropping.again(group).replaced()
  late = set(made.values())
  assert not any(s in group for u in UOp.sink(*[made.get(u, u) for u in roots]).toposort() if u in late for s in u.src)


def placed_fastest(layers, mesh=MESHES["1-D"]):
  sink = training(layers, "NULL:0")()
  return as_placed(automatic(sink, mesh, MACHINE, None).answer, sink.src)


def test_lifetimes_hold_what_the_plan_does(monkeypatch):
  """What is computed where it is read is not held. (Mutant: all that is read more than once is.)"""

  def read_twice(sink, *_, **__):
    readers = Counter(s for u in sink.toposort() for s in u.src)
    return [u for u in sink.toposort() if readers[u] > 1 or u.op is Ops.CONTIGUOUS]

  roots = placed_fastest(6)
  held = lambda: (dropping := Dropping(roots, MACHINE, planned_bytes)).leaves + dropping.most  # noqa: E731
  nbytes = planned_bytes(roots)
  assert held() == pytest.approx(nbytes, rel=0.05)
  monkeypatch.setattr(memory.fuse, "choose", read_twice)
  assert held() != pytest.approx(nbytes, rel=0.2)


def test_what_an_update_reads_is_held_until_then(monkeypatch):
  """Of a step of gradient descent, updates last, where nothing moves. (Mutant: only what is stored reads.)"""
  outs = recipes.training("MLP", 2, None, MESHES["1-D"])
  sink = UOp.sink(*[t.uop for t in outs])
  roots = as_placed(automatic(sink, MESHES["1-D"], H100, None).answer, sink.src)
  held = lambda: (dropping := Dropping(roots, MACHINE, planned_bytes)).leaves + dropping.most  # noqa: E731
  nbytes = planned_bytes(roots)
  assert held() == pytest.approx(nbytes, rel=1e-3)
  lifetimes = memory.lifetimes
  stored = lambda order, fused: lifetimes(order, fused, lambda u: () if u.op is Ops.ASSIGN else u.src)  # noqa: E731
  monkeypatch.setattr(recompute, "lifetimes", stored)
  assert held() < nbytes * 0.95


def test_what_waits_in_each_layer_may_be_dropped(monkeypatch):
  """The last one's too, though the most is held within it. (Mutant: what is held then.)"""
  roots = placed_fastest(3)

  def scores():
    alive = Dropping(roots, MACHINE, planned_bytes).alive
    return sum(u.op is Ops.WHERE and u.shape == (8, 8, 64, 64) for u in alive)

  assert scores() == 3
  most = lambda order, fused, nbytes: memory.moment_of_most(  # noqa: E731
    [(*span, nbytes(u)) for u, span in memory.lifetimes(order, fused).items() if u.src and u.device], len(order)
  )
  monkeypatch.setattr(recompute, "moment_of_waiting", most)
  assert scores() < 3


@functools.cache
def enough(mesh):
  """The bytes that the fastest placement of a transformer's step takes."""
  return planned_bytes(placed_fastest(3, mesh))


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_it_fits_where_placements_alone_do_not(mesh):
  """The plan of what is built holds what was said, and no more than there is."""
  memory = 0.5 * enough(mesh)
  sink = training(3, "NULL:0")()
  roots = [Tensor(u) for u in sink.src]
  least = automatic(sink, mesh, MACHINE, None).program
  least = automatic(sink, mesh, MACHINE, least.held(least.smallest()))
  assert planned_bytes(as_placed(least.answer, sink.src)) > memory
  found = auto(*roots, mesh=mesh, machine=MACHINE, memory=memory)
  assert found.again.dropped and planned_bytes([t.uop for t in roots]) == found.memory <= memory
  assert f"{len(found.again.dropped)} values are computed again" in str(found)
  assert not any(row.why.startswith("the user") for row in explain(*roots).rows)


def test_it_is_no_slower_than_by_placements_alone():
  machine = replace(MACHINE, latency=1e-5)  # so that the fastest placement does not cut all that it may
  sink = training(3, "NULL:0")()
  model = Model(sink, MESHES["1-D"], machine)
  built = lambda found: as_placed(found.answer, sink.src)  # noqa: E731
  free = answered(model, Search(model).within(None))
  memory = 0.9 * planned_bytes(built(free))
  found = fit.Fitting(Search(model), built, planned_bytes, machine, memory).fitted()
  assert found.again.dropped and found.memory <= memory
  alone, limit = free, memory
  while planned_bytes(built(alone)) > memory:
    alone, limit = answered(model, Search(model).within(limit)), limit * 0.98
  assert free.seconds < found.seconds < alone.seconds


def test_nothing_waits_and_it_does_not_fit(monkeypatch):
  """(Mutant: what is computed again does not wait for the gradients.)"""
  mesh, graph = MESHES["1-D"], functools.partial(training_of_layers, 4, 256, 32)
  sink = graph()
  memory = 0.6 * planned_bytes(as_placed(automatic(sink, mesh, MACHINE, None).answer, sink.src))
  found = auto(*map(Tensor, graph().src), mesh=mesh, machine=MACHINE, memory=memory)
  assert found.again.dropped and found.memory <= memory
  monkeypatch.setattr(fit, "MOST_PLANS", 1)
  monkeypatch.setattr(UOp, "wait", lambda u, *others: u.contiguous())
  with pytest.raises(
    ShardError, match="nothing fits in .* on each device, values computed again included(.|\n)*fix: memory="
  ):
    auto(*map(Tensor, graph().src), mesh=mesh, machine=MACHINE, memory=memory)


def test_a_gathered_weight_is_gathered_again():
  """FSDP's way: a weight that is kept in parts is brought together for the forward pass and again for the backward."""
  mesh = MESHES["1-D"]

  def step():
    weights = [Tensor.empty(256, 256, device="NULL:0", requires_grad=True) for _ in range(8)]
    h = x = Tensor.empty(512, 256, device="NULL:0")
    for w in weights:
      h = (h @ w).relu()
    loss = h.square().mean()
    return [loss, *[w.assign(w - g * 0.1) for w, g in zip(weights, loss.gradient(*weights))]], weights, x

  free = auto(*step()[0], mesh=mesh, machine=MACHINE, memory=1e12)
  roots, weights, _ = step()
  found = auto(*roots, mesh=mesh, machine=MACHINE, memory=0.6 * free.memory)
  assert planned_bytes([t.uop for t in roots]) <= 0.6 * free.memory
  assert len(found.again.dropped) >= len(weights) - 2  # what the first and the last hold is as fast cut otherwise
  assert sum(row.kind == "all_gather" for row in explain(*roots).rows) >= 2 * len(found.again.dropped)


def test_values_on_processors():
  mesh = Mesh(("CPU:0", "CPU:1"), names=("x",))
  want = [t.numpy() for t in network()]
  free = auto(*network(), mesh=mesh, machine=MACHINE, memory=1e12)
  outs = network()
  found = auto(*outs, mesh=mesh, machine=MACHINE, memory=0.8 * free.memory)
  assert found.again.dropped
  for a, b in zip(outs, want, strict=True):
    np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-5)


def fitting(memory, planned=planned_bytes, mesh=MESHES["1-D"]):
  sink = training(3, "NULL:0")()
  return fit.Fitting(
    Search(Model(sink, mesh, MACHINE)), lambda found: as_placed(found.answer, sink.src), planned, MACHINE, memory
  )


def test_less_is_dropped_of_what_fits_with_much_to_spare(monkeypatch):
  """As where plans hold less than lifetimes do. (Mutant: the first that fits.)"""
  limit, less = 0.5 * enough(MESHES["1-D"]), lambda roots: 0.8 * planned_bytes(roots)
  found = fitting(limit, less).fitted()
  assert found.memory <= limit
  monkeypatch.setattr(fit, "SPARE", 1.0)
  assert fitting(limit, less).fitted().seconds > found.seconds


def test_few_drafts_are_planned(monkeypatch):
  """So many by what is traded, and the fastest placement, where others hold as much. (Mutant: all that are made.)"""
  plans = []
  tried = fitting(0.5 * enough(MESHES["1-D"]), lambda roots: plans.append(roots) or 2 * planned_bytes(roots))
  monkeypatch.setattr(fit, "MOST_PLANS", 1)
  monkeypatch.setattr(fit.Fitting, "by_leaves", lambda self: len(plans))
  assert tried.fitted() == 1 + fit.MOST_PLANS
