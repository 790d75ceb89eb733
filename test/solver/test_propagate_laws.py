"""Laws of `propagate` on random programs with random hints (extra/fuzz_hints.py), each with mutants that it notices."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from extra.fuzz_hints import LAWS, Program, check
from tinygrad import Context, Mesh, P, Sharding, Tensor, propagate, propagation
from tinygrad.solver import build, decided, graph, prices, solve, step, ways
from tinygrad.uop import Ops, UOp

SEEDS = range(150)
STATED = (
  101449,
  104148,
  205759,
  208388,
  50780,
  300241,
  454011,
  457676,
  311394,
  510332,
  704143,
  705236,
  714996,
  1012698,
  1105295,
  1205526,
)  # what was stated of these once changed what it was of


BETWEEN = (
  901395,
  304918,
  300067,
  300133,
  300241,
  300345,
  300557,
  300561,
  300600,
  300652,
  300675,
  300680,
  300867,
  300879,
  731813,
  732109,
  732555,
  732930,
  733813,
)  # what was stated of a value that is read once changed a placement, or bytes


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


@pytest.mark.parametrize("seed", (*BETWEEN, *range(40)))
def test_what_was_decided_between_can_be_stated(seed):
  assert check(seed, "between") == ""


@pytest.mark.parametrize("seed", (201554, 501771))
def test_a_gradient_is_handed_out_where_its_tensor_is(seed, monkeypatch):
  """Wherever that has come to be by then. (Mutant: what it is by is not known.)"""
  assert check(seed, "bytes") == check(seed, "cuts") == ""
  monkeypatch.setattr(build, "handed_out", lambda u, g, found: g)
  assert check(seed, "bytes")


def broken(law, seeds=SEEDS):
  return any(check(seed, law) for seed in seeds)


MESH = Mesh(("CPU:0", "CPU:1"), names=("a",))


def zeros(*shape):
  return Tensor(np.zeros(shape, np.float32)).realize()


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
  monkeypatch.setattr(ways.Costs, "brought", lambda self, src, o: tuple(src))
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
  monkeypatch.setattr(graph, "unread_hints", lambda sink, counting=False: set())
  assert broken("stated", STATED)


def broken_between(seeds):
  return all(check(seed, "between") for seed in seeds)


def test_a_hint_that_is_read_and_counts_whatever_is_so_without_it_is_noticed(monkeypatch):
  """(Mutant: only a hint that nobody reads may be inert.)"""
  monkeypatch.setattr(graph, "closed_hints", graph.unread_hints)
  assert broken_between((300133, 300241, 300557, 300675))


def test_an_inert_hint_that_stands_in_the_way_of_a_view_is_noticed(monkeypatch):
  """(Mutant: what reads an inert hint is built on it, not on its value.)"""
  built = build.build_answer

  def with_hints(found, leaves, wished=True):
    inert, found.asked.inert = found.asked.inert, set()
    constrained = build.constrained
    with pytest.MonkeyPatch.context() as m:
      m.setattr(
        build, "constrained", lambda u, x, at: build.on_sources(u, (x,)) if u in inert else constrained(u, x, at)
      )
      made = built(found, leaves, wished)
    found.asked.inert = inert
    return made

  monkeypatch.setattr(build, "build_answer", with_hints)
  assert broken_between((733813,))


def test_a_hint_that_counts_where_a_value_is_not_cut_as_wished_is_noticed(monkeypatch):
  """(Mutant: what an answer wishes for is taken for what is built.)"""
  monkeypatch.setattr(graph, "wanting", graph_alone)
  assert broken_between((300241, 300680))


def graph_alone(found, hints, counting):
  """All that an answer does not meet, before it is built."""
  cuts = found.solution.hints
  at = lambda u: getattr(cuts[found.asked.number[u]], "dims", ((),) * u.ndim)  # noqa: E731
  mesh = found.asked.mesh
  return {u for u in hints if u in found.asked.number and not graph.is_met(graph.hint_on(u, mesh), at(u))}


def test_a_hint_that_is_not_met_and_taken_as_met_is_noticed(monkeypatch):
  """(Mutant: what a result is asked to be is not compared with what it is.)"""
  monkeypatch.setattr(graph, "is_met", lambda said, dims: True)
  assert broken("cuts")


def test_values_that_are_gathered_after_each_op_are_noticed(monkeypatch):
  """(Mutant: what is computed is made whole.)"""
  run = ways.OpWays.at_target

  def whole(self, u, src, at):
    v = run(self, u, src, at)
    return build.moved_to(v, Sharding(v.device.mesh, P()), u) if isinstance(v.device, Sharding) else v

  monkeypatch.setattr(ways.OpWays, "at_target", whole)
  monkeypatch.setattr(propagation, "fewer_bytes", lambda sink, wished, other: wished)
  assert broken("bytes")


def test_a_move_that_stays_behind_one_that_need_not_is_noticed(monkeypatch):
  """(Mutant: a hinted value whose source is there by a move that nobody asked for has none that stays.)"""
  some = build.constrained

  def trusting(u, x, target):
    return build.on_sources(u, (x,)) if x.op is Ops.MOVE and x.device is target else some(u, x, target)

  assert check(1105295, "stated") == ""
  monkeypatch.setattr(build, "constrained", trusting)
  assert broken("stated", (1105295,))


def test_a_gradient_that_reads_what_nobody_has_brought_is_noticed(monkeypatch):
  """(Mutant: what an op of the same sources has brought is not taken as it is.)"""
  assert check(1117413, "bytes") == ""
  monkeypatch.setattr(ways.OpWays, "as_brought", lambda self, u, src: None)
  assert broken("bytes", (1117413,))


def test_what_is_built_anew_though_it_holds_is_noticed(monkeypatch):
  """(Mutant: what is placed already is no better than another graph of as many bytes.)"""
  assert check(1103615, "twice") == ""
  monkeypatch.setattr(build, "as_found", lambda found: None)
  assert broken("twice", (1103615,))


def test_a_value_that_is_not_where_its_hint_has_it_and_stays_is_noticed(monkeypatch):
  """(Mutant: a hint is where its source is, though what reads it is behind the hint's move.)"""
  some = build.as_found

  def as_written(found):
    made = some(found)
    return made if made is None else {u: u if u.op is Ops.CONSTRAIN else v for u, v in made.items()}

  assert check(1301125, "cuts") == ""
  monkeypatch.setattr(build, "as_found", as_written)
  assert broken("cuts", (1301125,))


def test_memory_that_does_not_follow_what_has_come_to_be_is_noticed(monkeypatch):
  """(Mutant: what nothing has cut when its hints were told stays whole.)"""
  assert check(1503473, "stated") == ""
  monkeypatch.setattr(graph, "is_uncut", lambda dims: False)
  assert broken("stated", (1503473,))


def test_hints_that_come_to_count_by_depth_alone_are_noticed(monkeypatch):
  """(Mutant: what says more does not wait for what says less.)"""
  monkeypatch.setattr(graph, "earliest", by_depth_alone)
  assert broken("stated", (1012698,))


def by_depth_alone(hints, by_depth, most):
  place = {u: i for i, u in enumerate(by_depth)}
  first = [u for u in hints if graph.before_moves(u.src[0]) not in hints]
  order = lambda u: (min(u.arg.priorities, default=0), place[graph.before_moves(u.src[0])], repr(u.arg))  # noqa: E731
  return set(sorted(first, key=order)[:most])


def test_hints_that_come_to_count_in_another_order_than_by_depth_are_noticed(monkeypatch):
  """(Mutant: of those that say as much the last one first.)"""
  some = graph.earliest
  monkeypatch.setattr(graph, "earliest", lambda hints, order, most: some(hints, order[::-1], most))
  assert broken("between", (304918,))


def test_a_hint_on_another_that_is_met_by_chance_is_noticed(monkeypatch):
  """(Mutant: a hint comes to count before the one that it is said of, if that happens to be met.)"""
  monkeypatch.setattr(graph, "with_those_below", lambda unmet, inert: unmet)
  assert broken("stated", (1205526,))


def test_a_hint_on_another_that_does_not_wait_is_noticed(monkeypatch):
  """(Mutant: of two on one value either may come to count first.)"""

  def any_of(hints, by_depth, most):
    place = {u: i for i, u in enumerate(by_depth)}
    order = lambda u: (min(u.arg.priorities, default=0), place[graph.before_moves(u.src[0])], repr(u.arg))  # noqa: E731
    return set(sorted(hints, key=order)[:most])

  assert check(800686, "stated") == ""
  monkeypatch.setattr(graph, "earliest", any_of)
  assert broken("stated", (800686,))


def test_a_hint_that_is_read_and_counts_behind_those_that_are_not_is_noticed(monkeypatch):
  """(Mutant: whether a hint is read does not matter.)"""
  init = propagation.ByHints.__init__

  def begin(self, *given):
    init(self, *given)
    self.unread, self.read = self.may_be_inert, set()

  monkeypatch.setattr(propagation.ByHints, "__init__", begin)
  assert broken("stated", (205759,))


def test_what_a_draft_does_not_meet_is_not_met_by_what_it_becomes(monkeypatch):
  """Unless that is looked at."""
  seeds = (*BETWEEN, *STATED, *range(40))
  placed = [placements(seed) for seed in seeds]
  monkeypatch.setattr(propagation.ByHints, "unmet_by_draft", lambda self, placing, inert: frozenset())
  assert [placements(seed) for seed in seeds] == placed


def placements(seed):
  p = Program(seed, True)
  p.propagate()
  return [t.device for t in p.tensors]


def test_what_follows_from_which_hint_counts_is_noticed(monkeypatch):
  """(Mutant: what is between is as it was found when the last hint came to count.)"""
  monkeypatch.setattr(propagation.ByHints, "with_results_stated", lambda self, placing, inert: placing)
  assert broken("stated", (510332, 704143))


def test_a_hint_that_what_is_stated_no_longer_meets_is_noticed(monkeypatch):
  """A value between, of which one is read that is met only as it was found. (Mutant: all are taken as met.)"""
  assert check(800686, "cuts") == ""
  monkeypatch.setattr(propagation.ByHints, "with_results_stated", stated_anyway)
  assert broken("cuts", (800686,))


def placed_by_all_that_counted(self):
  inert = self.may_be_inert
  while not isinstance(found := self.placed_without(inert), propagation.Placing):
    inert = inert - found
  return self.with_results_stated(found, inert)


def stated_anyway(self, placing, inert):
  return propagation.Placing(graph.restated(placing.found, placing.made, graph.ends(placing.found.asked), self.policy))


def test_what_follows_from_what_was_wished_alone_is_noticed(monkeypatch):
  """(Mutant: an answer is never made again from what was built.)"""
  monkeypatch.setattr(propagation.ByHints, "as_built", lambda self, placing: placing)
  assert broken("between", (300067,))


def test_a_draft_that_is_taken_for_what_it_becomes_is_noticed(monkeypatch):
  """(Mutant: a hint that is met only by what a draft becomes is not met.)"""
  assert check(274, "between") == ""
  monkeypatch.setattr(graph, "is_as_wished", lambda found, made: True)
  assert broken("between", (274,))


def test_a_hint_that_came_to_count_first_and_need_not_is_noticed(monkeypatch):
  """(Mutant: what has come to count is never left out again.)"""
  monkeypatch.setattr(propagation.ByHints, "placed", placed_by_all_that_counted)
  assert broken("between", (732109,))


def test_a_result_that_is_priced_where_nobody_wants_it_is_noticed(monkeypatch):
  """(Mutant: what is partial is no result that has to be reduced.)"""
  monkeypatch.setattr(build, "where_shown", lambda x: x)
  assert broken("stated", (705236,))


def asked(seed):
  p = Program(seed, True)
  return UOp.sink(*[t.uop for t in p.outputs + p.gradients]), p.mesh


def built(found):
  """The graph of an answer, with the placements that are wished for."""
  leaves = {u: decided.moved_to(u, found[u], u) for u in found.asked.leaves}
  return build.build_answer(found, leaves)[found.asked.order[-1]]


ALIKE = range(600, 700)


def test_what_looks_alike_is_decided_alike(monkeypatch):
  """All that the way of an op depends on is in its key. (Mutant: what its sources look like is not.)"""
  found = [graph.answer(*asked(seed)) for seed in ALIKE]
  want, looks = list(map(built, found)), ways.OpWays.looks
  monkeypatch.setattr(ways.OpWays, "looks", lambda self, *op: (*looks(self, *op), object()))
  assert [seed for seed, x, y in zip(ALIKE, map(built, found), want) if x is not y] == []
  monkeypatch.setattr(ways.OpWays, "looks", lambda self, u, src, at: (src and src[0].shape, u.op, u.dtype, u.arg, at))
  with pytest.raises((AssertionError, TypeError, AttributeError)):
    assert [built(f) for f in found] == want


def test_what_has_been_moved_looks_like_that():
  """A move that the graph holds is had for nothing, whatever it is that reads a view of it."""
  x, y, z = (zeros(8, 8).shard(MESH, P("a")).uop for _ in range(3))
  costs, views = ways.MovesHeld(), [u.reshape((4, 2, 8)).permute((2, 1, 0)) for u in (x, y, z)]
  assert costs.look(x) == costs.look(y) == costs.look(z)
  assert costs.look(views[0]) == costs.look(views[1])  # known before anything is moved
  costs.build(x, Sharding(MESH, P(None, "a")))
  assert costs.look(x) != costs.look(y) == costs.look(z)
  assert costs.look(views[0]) != costs.look(views[1]) == costs.look(views[2])
  assert [costs.knows(u) for u in (x, y, *views)] == [True, False, True, False, False]


def test_an_edge_that_changes_nothing_rests(monkeypatch):
  """Until one of its values changes. (Mutant: it is not woken then.)"""
  problems = [graph.ask(*asked(seed)).problem for seed in ALIKE]
  want = [solve.solve(problem).hints for problem in problems]

  class Restless(list):
    def __setitem__(self, e, mode):
      pass

  monkeypatch.setattr(solve, "AtRest", Restless)
  assert [solve.solve(problem).hints for problem in problems] == want

  class Asleep(list):
    def __setitem__(self, e, mode):
      super().__setitem__(e, mode or self[e])

  monkeypatch.setattr(solve, "AtRest", Asleep)
  assert [solve.solve(problem).hints for problem in problems] != want


def test_an_order_by_the_numbers_of_buffers_is_noticed(monkeypatch):
  """(Mutant: a buffer is known by its number.)"""
  monkeypatch.setattr(graph._Asking, "text", lambda self, u, number: repr(u.arg))
  assert len({written_again() for _ in range(16)}) == 2


def without_reductions(anew, at_most=prices.bytes_at_most):
  return at_most(replace(anew, reduced={}))


NO_MOVE = SimpleNamespace(**{op.name: op for op in Ops} | {"MOVE": None})


@pytest.mark.parametrize(
  "name, mutant", [("bytes_between", lambda seen, form: 0.0), ("bytes_at_most", without_reductions), ("Ops", NO_MOVE)]
)
def test_a_bound_that_forgets_moves_is_noticed(name, mutant, monkeypatch):
  """(Mutants: below views, of what is reduced where it arises, and those that the user asked for.)"""
  monkeypatch.setattr(prices, name, mutant)
  assert broken("bound", (4, 24, 25))
