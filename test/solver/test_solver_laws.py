"""Laws of the solver on random problems: elementwise ops, contractions, transposes and reshapes with random hints."""

import random
from dataclasses import replace

import pytest

from tinygrad.device import Mesh
from tinygrad.solver.axes import coexist, common, number_of_parts
from tinygrad.solver.problem import Edge, Hint, Problem, Rule
from tinygrad.solver.solve import Disagreement, Policy, solve

MESH = Mesh([f"NULL:{i}" for i in range(24)], (2, 3, 4), ("a", "b", "c"))
AXES = ("a", "b", "c", "c:(1)2", "c:(2)2")
IJ, IK, KJ = ((0,), (1,)), ((0,), (2,)), ((2,), (1,))
N = 24


def random_hint(rng, rank):
  """Dims cut by axes that fit beside one another."""
  names = [MESH.sub_axis(n) for n in rng.sample(AXES, len(AXES))]
  dims, taken = [[] for _ in range(rank)], []
  for d in names[: rng.randint(0, 3)]:
    if all(coexist(d, e) for e in taken):
      dims[rng.randrange(rank)].append(d)
      taken.append(d)
  opened = [rng.random() < 0.6 for _ in dims]
  return Hint.of(MESH, [tuple(d) for d in dims], opened)


def random_problem(seed):
  rng = random.Random(seed)
  p = Problem(MESH)
  hint = lambda: random_hint(rng, 2) if rng.random() < 0.4 else None  # noqa: E731
  values = [p.value((N, N), hint()) for _ in range(rng.randint(1, 3))]
  for _ in range(rng.randint(1, 8)):
    x, y = rng.choice(values), rng.choice(values)
    out = p.value((N, N), hint())
    kind = rng.choice(("elementwise", "contraction", "transpose", "elementwise"))
    if kind == "elementwise":
      p.edges.append(Edge(Rule((IJ, IJ, IJ), (N, N), 2, elementwise=True), (x, y, out)))
    elif kind == "contraction":
      p.edges.append(Edge(Rule((IK, KJ, IJ), (N, N, N), 2, special=frozenset((2,))), (x, y, out)))
    else:
      p.edges.append(Edge(Rule((IJ, ((1,), (0,))), (N, N), 1), (x, out)))
    values.append(out)
  return p


def merged(problem, values):
  """A reshape of each of these values to one dim and back, so that factors are compound."""
  for v in values:
    flat = problem.value((N * N,))
    problem.edges.append(Edge(Rule((IJ, ((0, 1),)), (N, N), 1), (v, flat)))
  return problem


def filled(hints, shapes):
  return [h or Hint.anything(len(s)) for h, s in zip(hints, shapes)]


@pytest.mark.parametrize("strategy", ("basic", "aggressive", "cost"))
@pytest.mark.parametrize("seed", range(60))
def test_what_was_said_stays_and_nothing_is_used_twice(seed, strategy):
  p = merged(random_problem(seed), (0, 1) if seed % 2 and len(random_problem(seed).shapes) > 1 else ())
  for given, found in zip(filled(p.hints, p.shapes), filled(solve(p, Policy(strategy)).hints, p.shapes)):
    for before, after, is_open in zip(given.dims, found.dims, given.opened):
      assert common(before, after) == before  # no dim loses what cut it
      assert is_open or before == after  # and a closed one is not cut further
    cuts = [d for dim in found.dims for d in dim]
    assert all(coexist(d, e) for i, d in enumerate(cuts) for e in cuts[:i])


@pytest.mark.parametrize("seed", range(60))
def test_a_hint_that_says_what_was_decided_changes_nothing(seed):
  p = merged(random_problem(seed), (0,))
  found = filled(solve(p).hints, p.shapes)
  said = Problem(MESH, p.shapes, list(found), p.edges, p.results, p.groups, p.weights)
  assert filled(solve(said).hints, p.shapes) == found
  closed = [replace(h, opened=(False,) * len(h.dims)) for h in found]
  said.hints = list(closed)
  assert filled(solve(said).hints, p.shapes) == closed


@pytest.mark.parametrize("seed", range(60))
def test_nothing_depends_on_the_numbers_of_values(seed):
  """The same problem, its values numbered in another order."""
  p, rng = merged(random_problem(seed), (0,)), random.Random(seed)
  to = list(range(len(p.shapes)))
  rng.shuffle(to)
  at = lambda listed: [listed[to.index(i)] for i in range(len(to))]  # noqa: E731
  edges = [Edge(e.rule, tuple(to[v] for v in e.values)) for e in p.edges]
  other = Problem(MESH, at(p.shapes), at(p.hints), edges, [], [], at(p.weights))
  assert at(solve(p).hints) == solve(other).hints


def random_tree(seed):
  """Values that are joined by one path each: an op reads a value that there is and a new one. Each hint has a priority
  of its own."""
  rng, p = random.Random(seed), Problem(MESH)
  rounds = iter(range(100))

  def value():
    if rng.random() < 0.5:
      return p.value((N, N))
    return p.value((N, N), replace(random_hint(rng, 2), priorities=(next(rounds),) * 2))

  values = [value()]
  for _ in range(rng.randint(2, 9)):
    pair = [rng.choice(values), value()]
    rng.shuffle(pair)
    values += [v for v in pair if v not in values] + [out := value()]
    p.edges.append(
      rng.choice(
        (
          Edge(Rule((IJ, IJ, IJ), (N, N), 2, elementwise=True), (*pair, out)),
          Edge(Rule((IK, KJ, IJ), (N, N, N), 2, special=frozenset((2,))), (*pair, out)),
          Edge(Rule((IJ, ((1,), (0,))), (N, N), 1), (pair[0], out)),
        )
      )
    )
  return p


def is_same_in_any_order(problem, seed, policy):
  """Whether the answer is the same when ops are visited in another order."""
  edges = list(problem.edges)
  random.Random(seed).shuffle(edges)
  other = Problem(MESH, problem.shapes, problem.hints, edges, problem.results, problem.groups, problem.weights)
  return solve(problem, policy).hints == solve(other, policy).hints


@pytest.mark.parametrize("strategy", ("basic", "aggressive", "cost"))
@pytest.mark.parametrize("seed", range(100))
def test_the_order_of_ops_is_nothing_where_each_hint_has_its_round_and_one_path_to_each_value(seed, strategy):
  assert is_same_in_any_order(random_tree(seed), seed, Policy(strategy))


def test_the_order_of_ops_decides_between_hints_of_one_round():
  """(Mutant of the law: rounds are not kept.)"""
  assert not all(is_same_in_any_order(random_tree(seed), seed, Policy(rounds=False)) for seed in range(100))


def test_the_order_of_ops_decides_where_one_hint_comes_by_two_paths():
  """x says how w is cut, by an op that keeps its dims and by one that turns them: nothing else tells the two apart."""

  def placed(turned):
    p = Problem(MESH)
    w, x, t = p.value((N, N)), p.value((N, N), Hint.of(MESH, [(MESH.sub_axis("c"),), ()], [False, False])), ((1,), (0,))
    edges = [Edge(Rule((IJ, flipped), (N, N), 1, elementwise=True), (x, w)) for flipped in (IJ, t)]
    p.edges = edges[::-1] if turned else edges
    return solve(p).hints[w].dims

  assert placed(False) == placed(True)[::-1] != placed(True)


def test_groups_are_placed_alike_and_refuse_hints_that_disagree():
  p = Problem(MESH)
  a = MESH.sub_axis("a")
  x, y = p.value((N, N), Hint.of(MESH, [(a,), ()], [True, True])), p.value((N, N))
  p.groups = [(x, y)]
  assert solve(p).hints[y] == p.hints[x]
  p.hints[y] = Hint.of(MESH, [(MESH.sub_axis("b"),), ()], [True, True])
  with pytest.raises(ValueError, match="hints that disagree"):
    solve(p)


AB = (MESH.sub_axis("a"),), (MESH.sub_axis("b"),)


@pytest.mark.parametrize(
  "one, two",
  [
    (Hint.of(MESH, [AB[0], ()], [True, True]), Hint.of(MESH, [(), AB[0]], [True, True])),
    (Hint.of(MESH, [AB[0], ()], [True, True]), Hint.of(MESH, [(), ()], [True, True], replicated=AB[0])),
    (Hint.of(MESH, [(), ()], [True, True], replicated=AB[0]), Hint.of(MESH, [(), AB[0]], [True, True])),
  ],
  ids=("two_dims_of_one_axis", "cut_and_replicated", "replicated_and_cut"),
)
def test_groups_refuse_an_axis_that_members_use_for_different_things(one, two):
  p = Problem(MESH)
  p.groups = [(p.value((N, N), one), p.value((N, N)), p.value((N, N), two))]
  with pytest.raises(Disagreement, match="hints that disagree") as e:
    solve(p)
  assert e.value.values == [0, 1, 2]


def test_a_group_is_cut_over_no_axis_that_one_of_its_members_excludes():
  """(Mutant seen: only those of the first member that excludes any.)"""
  p = Problem(MESH)
  said = [Hint.of(MESH, [(), ()], [True, True], replicated=axes) for axes in AB]
  p.groups = [tuple(p.value((N, N), hint) for hint in said)]
  for axes in AB:
    p.edges.append(Edge(Rule((IJ, IJ), (N, N), 1), (p.value((N, N), Hint.of(MESH, [axes, ()], [False, True])), 1)))
  assert solve(p).hints[0].dims == ((), ())


def test_who_says_nothing_of_a_dim_has_no_say_in_its_round():
  """A member that only joins a group hands what another one says on no earlier. (Mutant seen: the least of all.)"""
  p = Problem(MESH)
  x = p.value((N, N), Hint.of(MESH, [AB[0], ()], [False, True], (1, 1)))
  p.groups = [(x, p.value((N, N), Hint.anything(2)))]
  z, w = p.value((N, N), Hint.of(MESH, [(), AB[0]], [True, False])), p.value((N, N))
  p.edges = [Edge(Rule((IJ, IJ, IJ), (N, N), 2, elementwise=True), (1, z, w))]
  assert solve(p).hints[w].dims == ((), AB[0])


def test_groups_refuse_values_of_another_number_of_dims():
  p = Problem(MESH)
  p.groups = [(p.value((N, N)), p.value((N,)))]
  with pytest.raises(Disagreement, match=r"differ in their number of dims: \[24, 24\] and \[24\]") as e:
    solve(p)
  assert e.value.values == (0, 1)


def test_sizes_count_parts():
  assert number_of_parts((MESH.sub_axis("a"), MESH.sub_axis("c:(1)2"))) == 4
