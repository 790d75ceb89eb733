"""What is certified of small programs, against all placements as they are built and planned; and the table of it."""

import functools
import itertools
import math
import re

import numpy as np
import pytest
from test_auto import least_of_all
from test_auto_trades import MACHINE, ONE, PRICES, TWO, network, searched

from tinygrad import Mesh, P, Tensor, auto
from tinygrad.propagation import as_placed, planned_bytes
from tinygrad.sharding import explain
from tinygrad.solver.auto import exact, fit, least, moved
from tinygrad.solver.auto.automatic import answered
from tinygrad.solver.auto.machine import H100, Machine
from tinygrad.solver.auto.model import Model
from tinygrad.solver.auto.program import Chosen, Program
from tinygrad.solver.auto.search import Search, Selection
from tinygrad.uop import UOp

MACHINES = {"latency": H100, "link": Machine(1e12, 1e11, 1e8, 0.0)}
OF_BOTH = (("forward", "latency"), ("step", "link"))
STEPS = (0.3, 0.45, 0.6, 0.8, 1.0)  # of what the fastest placement holds


def forward():
  x, up, down = (Tensor.empty(*shape, device="NULL:0") for shape in ((8, 64), (64, 512), (512, 64)))
  return ((x @ up).relu() @ down,)


def step():
  """One matmul is trained."""
  x, w = (Tensor.empty(*shape, device="NULL:0", requires_grad=True) for shape in ((64, 32), (32, 128)))
  loss = (x @ w).square().mean()
  return loss, w.assign(w - loss.gradient(w)[0] * 0.1)


PROGRAMS = {"forward": forward, "step": step}


@functools.cache
def all_placements(name, machine):
  """(sink, of every placement that values may have, predicted seconds and the bytes of its plan)"""
  sink = UOp.sink(*[t.uop for t in PROGRAMS[name]()])
  model = Model(sink, ONE, MACHINES[machine])
  classes = exact.each_alone(model)
  p, found = model.program_of(classes), []
  copies = {classes.value[c] for c in model.posed.copies.values()}
  own = [range(len(v.cuts)) if c not in copies else range(1) for c, v in enumerate(p.values)]
  for cuts in itertools.product(*own):
    cuts = best_copies(p, list(cuts), copies)
    built = as_placed(answered(model, Selection(classes, p, Chosen(cuts, p.total(cuts), 0.0))).answer, sink.src)
    found.append((p.total(cuts), planned_bytes(built)))
  return sink, found


def best_copies(p, cuts, copies):
  """The fastest placements of copies, those of all else fixed."""
  ways = itertools.product(*[range(len(v.cuts)) if c in copies else (cuts[c],) for c, v in enumerate(p.values)])
  return list(min(ways, key=p.total))


def certified(name, machine, share):
  """(what `auto` chooses in a share of what the fastest holds, the least that any placement takes whose plan fits)"""
  sink, placements = all_placements(name, machine)
  memory = share * min(placements)[1]
  fitting = [seconds for seconds, nbytes in placements if nbytes <= memory]
  if not fitting:
    return None
  search = Search(Model(sink, ONE, MACHINES[machine]))
  build = lambda found: as_placed(found.answer, sink.src)  # noqa: E731
  return fit.Fitting(search, build, planned_bytes, MACHINES[machine], memory).fitted(), min(fitting)


@pytest.mark.parametrize(("name", "machine"), OF_BOTH)
def test_no_placement_that_fits_is_faster_than_what_is_chosen(name, machine):
  found = [pair for share in STEPS if (pair := certified(name, machine, share)) is not None]
  assert found
  for said, fastest in found:
    assert said.chosen.bound <= fastest * (1 + 1e-6) and said.seconds <= fastest * 1.01


def bounds(name, machine):
  """(what no choice is below in whole numbers, the least that any placement takes whose plan fits), for the bytes of
  many plans."""
  sink, placements = all_placements(name, machine)
  search = Search(Model(sink, ONE, MACHINES[machine]))
  classes = exact.each_alone(search.model)
  trades = search.trades(classes, search.model.program_of(classes))
  limits = sorted({nbytes for _, nbytes in placements})
  for memory in limits[:: max(1, len(limits) // 8)] + limits[-1:]:
    found = least.solved(exact.in_whole_numbers(trades, memory))
    bound = found.bound if found.seconds < math.inf else math.inf
    yield bound, min(seconds for seconds, nbytes in placements if nbytes <= memory)


@pytest.mark.parametrize(("name", "machine"), OF_BOTH)
def test_the_bound_is_below_all_placements_whose_plan_fits(name, machine):
  """Against all of them, as they are built and planned."""
  found = [*bounds(name, machine)]
  assert len(found) >= 4 and all(bound <= fastest * (1 + 1e-6) for bound, fastest in found)


def test_a_bound_for_less_memory_than_there_is_is_noticed(monkeypatch):
  """(Mutant: a value takes twice its bytes.)"""
  whole = exact.in_whole_numbers
  monkeypatch.setattr(exact, "in_whole_numbers", lambda trades, memory: whole(trades, memory / 2))
  assert any(bound > fastest * 1.1 for bound, fastest in bounds("forward", "latency"))


@pytest.mark.parametrize("share", (0.45, 0.6, 0.8))
def test_the_gap_of_a_single_layer_is_small_where_memory_binds(share, monkeypatch):
  """(Mutant: the line between two choices alone.)"""
  said, _ = certified("forward", "latency", share)
  assert said.gap <= 0.01
  monkeypatch.setattr(fit, "MOST_WHOLE", 0)
  said, _ = certified("forward", "latency", share)
  assert said.gap > 0.1


@pytest.mark.parametrize("mesh", (ONE, TWO), ids=("1-D", "2-D"))
@pytest.mark.parametrize("weight", PRICES)
def test_whole_numbers_are_the_same_program(mesh, weight):
  """At a price of a byte, against elimination in both. (Mutant: without what says whether an item is kept.)"""
  _, priced = searched(network(), mesh)
  whole = exact.in_whole_numbers(priced, None)
  fastest = least_of_all(priced.priced(weight))
  assert least_of_all(whole.priced(weight)) == pytest.approx(fastest, rel=1e-9)
  kept = len(priced.base.values) + len(priced.summed)
  less = Program(whole.values[:kept], whole.ops[: len(priced.base.ops) + len(priced.summed)], None)
  assert weight == 0.0 or least_of_all(less.priced(weight)) < fastest * (1 - 1e-6)


def trained(cut_weights):
  """Rows are cut, and weights are whole, or cut and gathered."""
  leaf = lambda *shape: Tensor.empty(*shape, device="NULL:0", requires_grad=True)  # noqa: E731
  x, weights = leaf(1024, 32), [leaf(32, 128), leaf(128, 32)]
  cut = P("x", None) if cut_weights else P(None, None)
  h = x.constrain(P("x", None))
  h = (h @ weights[0].constrain(cut)).relu().constrain(P("x", None))
  loss = (h @ weights[1].constrain(cut)).constrain(P("x", None)).square().mean()
  return [loss, *(w.assign(w - g * 0.1) for w, g in zip(weights, loss.gradient(*weights)))]


@pytest.mark.parametrize("cut_weights", (False, True), ids=("whole", "cut"))
def test_bytes_move_for_the_sake_of_weights(cut_weights, monkeypatch):
  """Rows are cut, so that a whole weight is moved as its gradient is summed, 2 (n - 1) / n of it; and all together is
  what `explain` counts. (Mutant: no gradient is a weight's.)"""
  outs = trained(cut_weights)
  said = auto(*outs, mesh=ONE, machine=MACHINE)
  assert said.moved.total == explain(*outs).wire > 0
  of = [said.moved.of(u) for u in said.answer.asked.leaves]
  assert sum(of) <= said.moved.total
  if not cut_weights:
    assert of == [0.0, *[2 * 3 / 4 * 32 * 128 * 4] * 2]
    monkeypatch.setattr(moved, "updated_memory", lambda order: {})
    mutant = moved.Moved(said.moved.moves, said.moved.built)
    assert sum(map(mutant.of, said.answer.asked.leaves)) == 0


def test_the_table_says_what_is_held_and_moved():
  outs = trained(False)
  said = auto(*outs, mesh=ONE, machine=MACHINE)
  lines = str(said).splitlines()
  assert max(map(len, lines)) <= 120 and lines[0].split() == ["input", "or", "weight", "placed", "held", "moved"]
  assert re.search(r"float32\[32, 128\] +NULL:0-3, replicated +16.4 KB +24.6 KB  no other", lines[2])
  assert lines[4].startswith("all else") and "travel to each" in lines[5]


def test_a_weight_that_is_gathered_moves_for_its_own_sake():
  mesh = Mesh([f"CPU:{i}" for i in range(4)], names=("x",))
  x, w = (Tensor(np.ones(shape, np.float32)).realize() for shape in ((64, 32), (32, 16)))
  y = (x.constrain(P("x", None)) @ w.constrain(P("x", None))).constrain(P("x", None))
  said = auto(y, mesh=mesh, machine=Machine(1e12, 1e11, 1e10, 1e-9))
  assert [said.moved.of(u) for u in said.answer.asked.leaves] == [0.0, 3 / 4 * 32 * 16 * 4]
  assert said.moved.total == explain(y).wire
