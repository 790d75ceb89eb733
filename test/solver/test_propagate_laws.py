"""Laws of `propagate` on random programs with random hints (extra/fuzz_hints.py), each with mutants that it notices."""

import numpy as np
import pytest

from extra.fuzz_hints import LAWS, check
from tinygrad import Context, Mesh, P, Sharding, Tensor, propagate
from tinygrad.solver import build, graph, step
from tinygrad.uop import Ops

SEEDS = range(150)
STATED = (101449, 104148, 205759, 208388, 50780, 300241)  # what was stated of these once changed what it was of


@pytest.fixture(autouse=True)
def interpreted():
  with Context(INTERPRET=1):
    yield


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_holds(law, seed):
  assert check(seed, law) == ""


@pytest.mark.parametrize("seed", STATED)
def test_what_was_decided_can_be_stated(seed):
  assert check(seed, "stated") == ""


def broken(law, seeds=SEEDS):
  return any(check(seed, law) for seed in seeds)


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


def written_again():
  """Where w is, which two readers of one depth want cut along different dims."""
  w, x, y = (Tensor(np.zeros((8, 8), np.float32)).realize() for _ in range(3))
  propagate(w + x.constrain(P("a")), w + y.constrain(P(None, "a")), mesh=MESH)
  return w.device


def test_a_program_that_is_written_again_is_placed_as_before():
  """Whatever the numbers of its buffers."""
  assert len({written_again() for _ in range(16)}) == 1


# ---------------------------------------------------------------- mutants


def test_a_move_that_forgets_its_placement_is_noticed(monkeypatch):
  """(Mutant: an op's sources are not brought to where it runs.)"""
  monkeypatch.setattr(build.Costs, "brought", lambda self, src, o: tuple(src))
  assert broken("values")


def test_an_axis_that_is_used_twice_is_noticed(monkeypatch):
  """(Mutant: what else an axis cuts is not asked.)"""
  monkeypatch.setattr(step, "prefix_beside", lambda axes, others, atomic: axes)
  assert broken("values")


def test_memory_that_does_not_move_is_noticed(monkeypatch):
  """(Mutant: inputs stay on one device.)"""
  monkeypatch.setattr(build, "moved_to", lambda x, target, why: x)
  assert broken("values")


def test_a_closed_dim_that_is_cut_is_noticed(monkeypatch):
  """(Mutant: all dims are open.)"""
  project = step.projected

  def opened(*given):
    p = project(*given)
    p.closed.clear()
    return p

  monkeypatch.setattr(step, "projected", opened)
  assert broken("cuts")


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


def test_a_pin_that_is_lost_where_nothing_moves_for_it_is_noticed(monkeypatch):
  """(Mutant: what the user has placed is not said again to another propagation.)"""
  again = build.on_sources
  lose = lambda u, src: src[0] if u.op is Ops.MOVE and src[0].device == u.device else again(u, src)  # noqa: E731
  monkeypatch.setattr(build, "on_sources", lose)
  assert broken("twice")


def test_memory_that_is_cut_without_a_hint_is_noticed(monkeypatch):
  """(Mutant: what nothing is said of is cut.)"""
  monkeypatch.setattr(graph.Answer, "__getitem__", cut_everywhere)
  assert broken("unhinted")


def cut_everywhere(answer, u):
  """A value cut along its first dim, whatever was decided."""
  if u not in answer.asked.number:
    return None
  return Sharding(answer.asked.mesh, P("a") if u.shape and u.op in (Ops.BUFFER, Ops.MOVE) else P())


def test_hints_that_are_met_anyway_and_go_backward_are_noticed(monkeypatch):
  """(Mutant: a hint counts whether it is met without it or not.)"""
  monkeypatch.setattr(graph, "unread_hints", lambda sink: set())
  assert broken("stated", STATED)


def test_a_hint_that_is_not_met_and_taken_as_met_is_noticed(monkeypatch):
  """(Mutant: what a result is asked to be is not compared with what it is.)"""
  monkeypatch.setattr(graph, "is_met", lambda said, dims: True)
  assert broken("cuts")


def test_values_that_are_gathered_after_each_op_are_noticed(monkeypatch):
  """(Mutant: what is computed is made whole.)"""
  run = build.at_target

  def whole(u, src, at, costs):
    v = run(u, src, at, costs)
    return build.moved_to(v, Sharding(v.device.mesh, P()), u) if isinstance(v.device, Sharding) else v

  monkeypatch.setattr(build, "at_target", whole)
  assert broken("bytes")


def test_an_order_by_the_numbers_of_buffers_is_noticed(monkeypatch):
  """(Mutant: a buffer is known by its number.)"""
  monkeypatch.setattr(graph._Asking, "key", lambda self, u: u.key)
  assert len({written_again() for _ in range(16)}) == 2
