"""Laws of `propagate` on random programs with random hints (extra/fuzz_hints.py), each with mutants that it notices."""

import numpy as np
import pytest

from extra.fuzz_hints import Program, check
from tinygrad import Context, Mesh, P, Sharding, Tensor, propagate
from tinygrad.solver import build, graph, step
from tinygrad.solver.axes import common, within_axes
from tinygrad.uop import Ops

SEEDS = range(150)


@pytest.fixture(autouse=True)
def interpreted():
  with Context(INTERPRET=1):
    yield


@pytest.mark.parametrize("seed", SEEDS)
def test_values_and_gradients_are_those_without_hints(seed):
  assert check(seed) == ""


def hints_kept(seed):
  """Whether every hinted value has the cuts that it was given, a closed dim no others."""
  p = Program(seed, True)
  answer = propagate(p.outputs, p.gradients, mesh=p.mesh).answer
  for u in answer.asked.order:
    placement = answer[u]
    if u.op is not Ops.CONSTRAIN or not isinstance(placement, Sharding):
      continue
    for i, (said, is_open) in enumerate(zip(u.arg.sub_axes(p.mesh)[0], u.arg.opened)):
      said, found = within_axes(said, p.mesh), within_axes(placement.cut(i), p.mesh)
      if common(said, found) != said or not (is_open or said == found):
        return False
  return True


@pytest.mark.parametrize("seed", SEEDS)
def test_open_dims_keep_their_cuts_and_closed_ones_get_no_others(seed):
  assert hints_kept(seed)


def placed(seed, turned):
  p = Program(seed, True)
  given = (p.gradients[::-1], p.outputs[::-1]) if turned else (p.outputs, p.gradients)
  propagate(*given, mesh=p.mesh)
  return [t.device for t in p.tensors]


@pytest.mark.parametrize("seed", SEEDS)
def test_placements_do_not_depend_on_the_order_of_the_outputs(seed):
  assert placed(seed, False) == placed(seed, True)


MESH = Mesh(("CPU:0", "CPU:1"), names=("a",))


def contended(turned):
  """Where w is, which two readers want cut along different dims: of equal claims the one of less depth counts."""
  x, w = (Tensor(np.zeros((8, 8), np.float32)).realize() for _ in range(2))
  x = x.constrain(P("a"))
  outputs = [w + x, w + (x + 1).T]
  propagate(outputs[::-1] if turned else outputs, mesh=MESH)
  return w.device


def test_equal_claims_are_settled_alike_whatever_is_asked_for_first():
  assert contended(False) == contended(True) == Sharding(MESH, P("a"))


# ---------------------------------------------------------------- mutants


def test_a_move_that_forgets_its_placement_is_noticed(monkeypatch):
  """(Mutant: an op's sources are not brought to where it runs.)"""
  monkeypatch.setattr(build.Costs, "brought", lambda self, src, o: tuple(src))
  assert any(check(seed) for seed in SEEDS)


def test_an_axis_that_is_used_twice_is_noticed(monkeypatch):
  """(Mutant: what else an axis cuts is not asked.)"""
  monkeypatch.setattr(step, "prefix_beside", lambda axes, others, atomic: axes)
  assert any(check(seed) for seed in SEEDS)


def test_memory_that_does_not_move_is_noticed(monkeypatch):
  """(Mutant: inputs stay on one device.)"""
  monkeypatch.setattr(build, "moved_to", lambda x, target, why: x)
  assert any(check(seed) for seed in SEEDS)


def test_a_closed_dim_that_is_cut_is_noticed(monkeypatch):
  """(Mutant: all dims are open.)"""
  project = step.projected

  def opened(*given):
    p = project(*given)
    p.closed.clear()
    return p

  monkeypatch.setattr(step, "projected", opened)
  assert not all(hints_kept(seed) for seed in SEEDS)


def test_an_order_of_edges_that_follows_the_outputs_is_noticed(monkeypatch):
  """(Mutant: edges stand as the graph is walked.)"""

  class Walked(list):
    def sort(self, **how):
      pass

  init = graph._Asking.__init__

  def begin(self, *given):
    init(self, *given)
    self.edges = Walked()

  monkeypatch.setattr(graph._Asking, "__init__", begin)
  assert contended(False) != contended(True)
