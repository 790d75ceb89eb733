"""What auto chooses is never slower than what people write by hand, by the price of what is built: six small models."""

from dataclasses import replace

import pytest

from extra.bench.auto_recipes import Contest, brief, meshes
from extra.recipes import MODELS, PAIRS, RECIPES, placements, reason, training
from extra.roofline import roofline
from tinygrad import P, Sharding, auto
from tinygrad.propagation import planned_bytes
from tinygrad.sharding import explain
from tinygrad.solver.auto import copies, fit, memory, search
from tinygrad.solver.auto import model as models
from tinygrad.solver.auto.choices import Choices
from tinygrad.solver.auto.machine import H100, Machine
from tinygrad.solver.auto.program import Chosen
from tinygrad.solver.auto.recompute import Dropping

# of what models of scale 2 take, kernels and moves have shares as in large ones
SMALL = Machine(flops=1e13, bandwidth=5e10, link=2e10, latency=2e-7)
SLOW_LINKS = replace(SMALL, link=5e9)
ONE, TWO = meshes(4)


def slower(model, scale=2, machine=SMALL, plan=False):
  return [str(row) for row in Contest(model, scale, machine, plan).rows(4) if row.faster]


@pytest.mark.parametrize("model", MODELS)
def test_auto_is_never_slower_than_by_hand(model):
  assert not slower(model)


def test_auto_is_never_slower_where_links_are_slow():
  assert not slower("transformer", 2, SLOW_LINKS)


def test_a_maximum_is_reduced_before_it_is_repeated():
  """Where a cross-entropy over a cut vocabulary is what tensor parallel has of it."""
  assert not slower("transformer", 16, H100)


def test_auto_is_never_slower_than_what_fits():
  rows = list(Contest("MLP", 2, SMALL).rows(4))
  limited = next(row for row in rows if " in " in row.recipe)
  held = {row.recipe: row.memory for row in rows}
  assert not any(row.faster for row in rows) and limited.memory <= limited.limit < held["DP"]
  assert str(limited).startswith("| MLP | auto in ") and str(rows[3]).endswith("| its rows are examples |")
  assert brief(rows).startswith(f"| MLP | {rows[0].us} | {rows[1].us} | {rows[2].us} |  | {rows[4].us} | ")


def replicated(p):
  cuts = [v.cuts.index((-1,) * len(v.cuts[0])) for v in p.values]
  return Chosen(cuts, p.total(cuts), 0.0)


MUTANTS = {
  "everything replicated": (search, "refined", lambda p, *_: replicated(p), "MLP", 2, SMALL),
  "moves are free": (Choices, "unit", lambda *_: (0.0, 0.0, 0.0, 0.0), "MLP", 2, SMALL),
  "weights of one shape are placed alike": (
    copies, "without_uniform", lambda asked: asked.problem, "transformer", 8, H100,
  ),
  "each reader moves what it reads": (copies, "is_heavy", lambda u: False, "transformer", 2, SLOW_LINKS),
  "elementwise ops read and write for nothing": (
    models, "by_elementwise", lambda asked, fused: [0.0] * len(asked.nodes), "transformer", 8, H100,
  ),
  "what is moved is in memory anyway": (copies.Posed, "reads", lambda *_: 0, "ViT", 2, SMALL),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_model_that_misses_what_counts_is_noticed(mutant, monkeypatch):
  owner, name, otherwise, *case = MUTANTS[mutant]
  monkeypatch.setattr(owner, name, otherwise)
  assert slower(*case)


@pytest.mark.parametrize("mesh", (ONE, TWO), ids=("1-D", "2-D"))
@pytest.mark.parametrize("model", MODELS)
def test_what_was_predicted_is_about_what_is_built(model, mesh):
  outputs = training(model, 2, None, mesh)
  found = auto(*outputs, mesh=mesh, machine=SMALL)
  price = roofline(outputs, SMALL)
  assert found.seconds == pytest.approx(price.seconds, rel=0.06)
  assert price.wire == explain(*outputs).wire


def test_recipes_say_where_names_are():
  where = placements("FSDP+TP", TWO)
  assert where("down0", 2) == Sharding(TWO, P(("y", "x"))) and where("down0.use", 2) == Sharding(TWO, P("y"))
  assert where("up0", 2) == Sharding(TWO, P("x", "y")) and where("stream", 3) == Sharding(TWO, P("x"))
  assert placements("TP", ONE)("loss", 0) is None
  assert len(PAIRS) == 6 and all(reason("transformer", r) is None for r in (*RECIPES, *PAIRS))
  assert reason("MLP", "DP+SP") == "its rows are examples"


def test_weights_are_held_in_parts_where_no_other_placement_fits():
  """A convolution's padded gradient, which the model does not count, is in the plan of each choice for a lower limit;
  that of the fastest which nearly fits holds whole weights. (Mutant: no draft of it with weights in parts.)"""
  assert not slower("convnet", 32, H100, plan=True)


def test_placements_under_lower_limits_are_planned_where_memory_binds(monkeypatch):
  """Where a step is nearly all latency: 451 us where FSDP took 397 in as much, and 93 are enough. (Mutant: none are,
  but for values that are had again, and weights in more parts.)"""
  assert not slower("ViT", 1, H100, plan=True)
  monkeypatch.setattr(fit.Fitting, "by_limits", lambda self, best, high: best)
  assert slower("ViT", 1, H100, plan=True)


def in_the_memory_of(recipe):
  """What auto finds for a small convnet, where a step is nearly all latency, in what a recipe takes."""
  contest = Contest("convnet", 1, H100)
  row = contest.by_hand(ONE, recipe)
  return contest.chosen("auto", ONE, [row], row.memory)


@pytest.mark.parametrize("recipe", ("DP", "FSDP"))
def test_lifetimes_hold_what_the_plan_of_a_convolutions_gradient_does(recipe, monkeypatch):
  """It is a sum over windows, and no product in memory that is spread. (Mutant: that is.)"""
  roots = [t.uop for t in training("convnet", 1, recipe, ONE)]
  nbytes = planned_bytes(roots)

  def held():
    dropping = Dropping(roots, H100, planned_bytes)
    return dropping.leaves + dropping.most

  assert held() == pytest.approx(nbytes, rel=0.15)
  monkeypatch.setattr(memory, "as_windows", lambda u: None)
  assert held() > 2 * nbytes


def test_what_lives_while_a_gradient_is_computed_fits_as_by_hand():
  """In 169,564 bytes, as FSDP takes; nothing was found where products were taken to be held."""
  assert not in_the_memory_of("FSDP").faster


def test_what_is_gathered_and_read_again_is_held(monkeypatch):
  """As what a convolution reads of a cut image, in the forward and the backward pass: 11.0 us in as much as TP takes.
  (Mutant: it does not count, and each of the placements that are planned holds more.)"""
  assert not in_the_memory_of("TP").faster
  monkeypatch.setattr(models.Model, "with_moved", lambda model: model)
  assert in_the_memory_of("TP").faster == ("TP",)
