"""Automatic placement: the linear program against all choices, memory that binds, equal layers, placements by hand."""

import gc
import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from extra.bench.place_cost import training
from tinygrad import OPEN, Mesh, P, ShardError, Sharding, Tensor, auto, propagate
from tinygrad.device import Partial, ShardTypeError
from tinygrad.helpers import GlobalCounters, prod
from tinygrad.propagation import Placing, apply
from tinygrad.sharding import explain
from tinygrad.sharding.moves import plan
from tinygrad.solver.auto import bounds, hull, least, linear, search
from tinygrad.solver.auto.automatic import automatic
from tinygrad.solver.auto.choices import Choices
from tinygrad.solver.auto.classes import Classes, numbered
from tinygrad.solver.auto.machine import H100, Machine
from tinygrad.solver.auto.model import Model
from tinygrad.solver.auto.search import Search
from tinygrad.solver.axes import within_axes
from tinygrad.uop import Ops, UOp

D4 = tuple(f"NULL:{i}" for i in range(4))
ONE, TWO = Mesh(D4, names=("x",)), Mesh(D4, (2, 2), ("x", "y"))
THREE = Mesh(tuple(f"NULL:{i}" for i in range(12)), (2, 3, 2), ("a", "b", "c"))


def empty(*shape):
  return Tensor.empty(*shape, device="NULL:0", requires_grad=True)


def mlp(batch, wide, hidden, out, train=False):
  """The graph of a network of two layers: forward, or a step of gradient descent."""
  x, w1, w2 = empty(batch, wide), empty(wide, hidden), empty(hidden, out)
  y = (x @ w1).relu() @ w2
  if not train:
    return UOp.sink(y.uop)
  loss = y.square().mean()
  grads = loss.gradient(w1, w2)
  return UOp.sink(loss.uop, *[w.uop.assign((w - g * 0.1).uop) for w, g in zip((w1, w2), grads)])


def step(loss, weights):
  """A step of gradient descent."""
  return UOp.sink(loss.uop, *[w.uop.assign((w - g * 0.1).uop) for w, g in zip(weights, loss.gradient(*weights))])


def convnet():
  x, w = empty(64, 3, 32, 32), [empty(32, 3, 3, 3), empty(64, 32, 3, 3), empty(64 * 7 * 7, 10)]
  y = x.conv2d(w[0]).relu().conv2d(w[1]).relu().max_pool2d((4, 4)).flatten(1) @ w[2]
  return step(y.square().mean(), w)


def llama():
  """A layer with fewer heads for keys and values than for queries, and a gate."""
  batch, context, dim, heads, shared = 8, 128, 256, 8, 2
  split, wide = (batch, context, -1, dim // heads), 4 * dim
  x, norm, (q, out) = empty(batch, context, dim), empty(dim), (empty(dim, dim) for _ in range(2))
  (k, v), (up, gate) = (tuple(empty(dim, n) for _ in range(2)) for n in (dim // heads * shared, wide))
  down = empty(wide, dim)
  h = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm
  a, b, c = ((h @ t).reshape(split).transpose(1, 2) for t in (q, k, v))
  b, c = (t.repeat_interleave(heads // shared, 1) for t in (b, c))
  mixed = ((a @ b.transpose(-1, -2) * 0.1).softmax(-1) @ c).transpose(1, 2).reshape(batch, context, dim)
  y = x + mixed @ out
  y = y + ((y @ gate).silu() * (y @ up)) @ down
  return step(y.square().mean(), [q, k, v, out, up, gate, down, norm])


def experts():
  x, route, up, down = empty(64, 128), empty(128, 4), empty(4, 128, 256), empty(4, 256, 128)
  y = ((x.unsqueeze(0) @ up).relu() @ down * (x @ route).softmax(-1).T.unsqueeze(-1)).sum(0)
  return step(y.square().mean(), [route, up, down])


def vit():
  image, patch, position, w, head = (
    empty(16, 3, 32, 32), empty(128, 3, 8, 8), empty(16, 128), empty(128, 128), empty(128, 10),
  )  # fmt: skip
  x = image.conv2d(patch, stride=8).flatten(2).transpose(1, 2) + position
  y = (x + (x @ x.transpose(-1, -2) * 0.1).softmax(-1) @ (x @ w)).mean(1) @ head
  return step(y.square().mean(), [patch, position, w, head])


def random_case(seed):
  rng = random.Random(seed)
  sizes = [rng.choice((4, 64, 1024)) for _ in range(4)]
  machine = Machine(10.0 ** rng.randint(10, 15), 10.0 ** rng.randint(9, 12), 10.0 ** rng.randint(8, 12), 1e-6)
  return mlp(*sizes, train=seed % 3 == 0), (ONE, TWO)[seed % 2], machine


def spread(scope, table, axes):
  """A table over the values of `scope` as one over those of `axes`, to be broadcast."""
  ordered = np.transpose(table, sorted(range(len(scope)), key=lambda i: axes.index(scope[i])))
  sizes = iter(ordered.shape)
  return ordered.reshape([next(sizes) if v in scope else 1 for v in axes])


def least_of_all(p):
  """Seconds of the best of all choices without a limit of memory, by elimination: a table for each op over the cuts of
  its values; one value after another is decided for each choice of its neighbours."""
  sizes = [len(v.cuts) for v in p.values]
  tables = [((v,), np.array(value.seconds)) for v, value in enumerate(p.values)]
  for op in p.ops:
    scope = tuple(sorted({side.value for side in op.sides}))
    table, chosen = np.zeros([sizes[v] for v in scope]), [0] * len(sizes)
    for at in np.ndindex(*table.shape):
      for v, k in zip(scope, at):
        chosen[v] = k
      table[at] = op.price(chosen)
    tables.append((scope, table))
  while any(scope for scope, _ in tables):
    around = {v: {u for scope, _ in tables if v in scope for u in scope} for scope, _ in tables for v in scope}
    v = min(around, key=lambda v: math.prod(sizes[u] for u in around[v]))
    axes = (v, *sorted(around[v] - {v}))
    tables, mine = [t for t in tables if v not in t[0]], [t for t in tables if v in t[0]]
    tables.append((axes[1:], sum(spread(scope, table, axes) for scope, table in mine).min(axis=0)))
  return float(sum(table for _, table in tables))


@pytest.mark.parametrize("seed", range(24))
def test_the_program_finds_the_least_of_all_choices(seed):
  found = automatic(*random_case(seed), None)
  assert found.seconds == pytest.approx(least_of_all(found.program), rel=1e-6)
  assert found.chosen.bound <= found.seconds * (1 + 1e-6) and found.gap < 1e-6


def test_a_rounding_that_is_not_mended_is_noticed(monkeypatch):
  """(Mutant: the relaxation's bound is taken for a choice's time.)"""
  monkeypatch.setattr(linear.Relaxation, "at", lambda r, weight: ([[1.0] * len(one) for one in r.cuts], 0.0))
  monkeypatch.setattr(hull, "mended", lambda p, chosen: chosen)
  monkeypatch.setattr(search, "refined", lambda p, chosen, known: chosen)
  found = [automatic(*random_case(seed), None) for seed in range(0, 24, 2)]
  assert any(f.seconds > least_of_all(f.program) * 1.01 for f in found)


def capped(sink, mesh, machine, shares=(0.0, 0.25, 0.5, 0.75, 1.0)):
  """(the memory, what is chosen for it), for some that are too little for the fastest placement."""
  free = automatic(sink, mesh, machine, None)
  least = sum(min(v.memory) for v in free.program.values)
  for share in shares:
    memory = least + (free.memory - least) * share
    yield free, memory, automatic(sink, mesh, machine, memory)


@pytest.mark.parametrize("seed", range(12))
def test_memory_binds(seed):
  sink, mesh, machine = random_case(seed)
  for free, memory, held in capped(sink, mesh, machine):
    assert held.memory <= memory * (1 + 1e-9) and held.seconds >= free.seconds * (1 - 1e-9)
    assert held.gap <= 0.01
  least = sum(min(v.memory) for v in free.program.values)
  with pytest.raises(ShardError, match=rf"no placement fits(.|\n)*fix: memory={math.ceil(least)}"):
    automatic(sink, mesh, machine, least * 0.99)


@pytest.mark.parametrize("seed", (2, 4, 8))
def test_where_memory_binds_the_least_of_all_choices_is_found(seed):
  for _, memory, held in capped(*random_case(seed)):
    p = held.program
    ways = itertools.product(*(range(len(v.cuts)) for v in p.values))
    least = min(p.total(cuts) for cuts in ways if p.held(cuts) <= memory)
    assert held.chosen.bound <= least * (1 + 1e-6) and held.seconds <= least * 1.01


@pytest.mark.parametrize("seed", (6, 18))
def test_what_is_moved_counts_as_memory(seed):
  """At a price of a byte against elimination. (Mutant: a model that does not count it chooses what holds more.)"""
  plain = Model(*random_case(seed))
  model = plain.with_moved()
  p, looked = model.program, Search(model)
  free, smallest = looked.within(None), looked.least_held()
  for share in (0.25, 0.5, 0.75):
    limit = smallest + (free.held - smallest) * share
    found, hull = looked.within(limit), looked.hull(looked.all)
    assert found.held <= limit and found.chosen.gap <= 0.01
    for weight in (x * free.chosen.seconds / limit for x in (0.1, 1.0, 10.0)):
      point, least_seconds = hull.at(weight), least_of_all(p.priced(weight))
      assert hull.lines[weight] == pytest.approx(least_seconds, rel=1e-6)
      assert p.priced(weight).total(point.cuts) == pytest.approx(point.priced(weight))
      assert found.chosen.seconds >= (least_seconds - weight * limit) * (1 - 1e-6)
    assert p.held(Search(plain).within(limit).chosen.cuts) > limit


def test_a_rounding_alone_misses_it(monkeypatch):
  """(Mutant: no branches, and no search for whole placements.)"""
  monkeypatch.setattr(search, "refined", lambda p, chosen, known: chosen)
  assert all(held.gap < 0.01 for seed in (0, 2) for _, _, held in capped(*random_case(seed)))
  monkeypatch.setattr(search.Search, "halves", lambda *_: [])
  assert any(held.gap > 0.5 for seed in (0, 2) for _, _, held in capped(*random_case(seed)))


def layered(layers, share):
  """(a model of equal layers, a limit that is a share of the way to what the fastest takes)"""
  model = Model(training(layers, "NULL:0")(), ONE, H100)
  free, least = Search(model).within(None), sum(min(v.memory) for v in model.program.values)
  return model, least + (free.held - least) * share


@pytest.mark.parametrize("share", (0.3, 0.7))
def test_some_of_equal_layers_are_placed_otherwise(share, monkeypatch):
  """So that what a limit allows is used, but for a part of one layer."""
  model, memory = layered(12, share)
  found = Search(model).within(memory)
  assert found.held <= memory and found.chosen.gap <= 0.01
  assert len(found.program.values) > len(model.program.values)
  monkeypatch.setattr(Search, "mixed", lambda *_: iter(()))  # (mutant: all alike)
  alike = Search(model).within(memory)
  assert alike.chosen.seconds > found.chosen.seconds * 1.1


def test_no_choice_for_each_single_layer_is_below_the_bound():
  """Against a search in which nothing is decided as one; a layer apart from the others costs what it does there."""
  model, memory = layered(3, 0.5)
  found = Search(model).within(memory)
  value, values = numbered(model.posed.merged)
  alone = Classes(
    value, list(range(len(model.posed.problem.edges))), values, [[e] for e in range(len(model.posed.ops))]
  )
  p = replace(model.program_of(alone), memory=memory)
  cuts = [found.chosen.cuts[found.classes.value[members[0]]] for members in values]
  assert p.total(cuts) == pytest.approx(found.chosen.seconds) and p.held(cuts) == pytest.approx(found.held)
  best, bound = linear.whole_choice(p, cuts)
  assert found.chosen.bound <= p.total(best) * (1 + 1e-6) and found.chosen.seconds >= bound * (1 - 1e-6)


def test_equal_layers_are_decided_once():
  found = [automatic(training(layers, "NULL:0", 2)(), ONE, H100, None) for layers in (8, 12)]
  assert len(found[0].program.values) == len(found[1].program.values)
  assert found[1].seconds > found[0].seconds


GRAPHS = {
  "wide batch": lambda: mlp(4096, 64, 256, 64, True),
  "wide weights": lambda: mlp(16, 1024, 4096, 1024, True),
  "transformer": lambda: training(2, "NULL:0", 4)(),
  "llama": llama,
  "vit": vit,
  "experts": experts,
  "convnet": convnet,
}


@pytest.mark.parametrize("graph", GRAPHS)
def test_memory_is_about_what_one_device_allocates(graph):
  sink = GRAPHS[graph]()
  held = sum(v.memory[v.cuts.index((-1,))] for v in automatic(sink, ONE, H100, None).program.values)
  gc.collect()  # nothing of other tests is given back meanwhile
  before = GlobalCounters.mem_used_per_device.get("NULL", 0)
  GlobalCounters.peak_on = dict(GlobalCounters.mem_used_per_device)
  first, *rest = (Tensor(u) for u in sink.src)
  first.realize(*rest)
  allocated = GlobalCounters.peak_on["NULL"] - before
  assert 0.75 * allocated <= held <= 2.0 * allocated


@pytest.mark.parametrize("graph", ("llama", "experts", "convnet"))
@pytest.mark.parametrize("mesh", (ONE, TWO), ids=("1-D", "2-D"))
def test_the_gap_is_small_with_and_without_a_limit_of_memory(graph, mesh):
  for free, _, held in capped(GRAPHS[graph](), mesh, H100, (0.25, 0.75)):
    assert free.gap <= 0.01 and held.gap <= 0.01


@pytest.mark.parametrize("mesh", (ONE, TWO), ids=("1-D", "2-D"))
@pytest.mark.parametrize("graph", GRAPHS)
def test_nothing_by_hand_is_faster(graph, mesh):
  """Inputs and weights placed by hand (all replicated, all cut along one dim or another), the rest as is best then."""
  found = automatic(GRAPHS[graph](), mesh, H100, None)
  p = found.program
  leaves = sorted({found.classes.value[found.answer.asked.number[u]] for u in found.answer.asked.leaves})
  for batch, weight in itertools.product((-1, 0), (-1, 0, 1)):
    cuts = [range(len(value.cuts)) for value in p.values]
    for k, v in enumerate(leaves):
      value = p.values[v]
      dim = batch if k == 0 else weight
      want = tuple(dim if dim < len(value.shape) else -1 for _ in mesh.names)
      if want in value.cuts:
        cuts[v] = [value.cuts.index(want)]
    by_hand = least.least_time(p.kept(cuts))
    assert found.seconds <= by_hand.seconds * (1 + 1e-6)


def test_values_are_the_same_and_the_table_says_what_was_chosen():
  mesh = Mesh(tuple(f"CPU:{i}" for i in range(4)), names=("x",))
  rng = np.random.default_rng(0)
  a, b, c = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((8, 64), (64, 512), (512, 64)))
  x, w1, w2 = (Tensor(t).realize() for t in (a, b, c))
  y = (x @ w1).relu() @ w2
  said = auto(y, mesh=mesh, machine=Machine(1e9, 1e9, 1e9, 1e-6), memory=100_000)
  assert w1.device == Sharding(mesh, P(None, "x")) and w2.device == Sharding(mesh, P("x"))
  np.testing.assert_array_equal(y.numpy(), (a @ b).clip(0) @ c)
  text = str(said)
  assert text.count("next best +") == 3 and "us predicted, at most 0.0% above the least" in text
  assert "float32[64, 512]" in text and 'CPU:0-3, dim 1 over "x"' in text


def test_hints_and_placements_are_kept():
  mesh = Mesh(tuple(f"CPU:{i}" for i in range(4)), (2, 2), ("dp", "tp"))
  x, w = Tensor.ones(8, 16).contiguous().realize(), Tensor.ones(16, 8).contiguous().realize()
  w = w.shard(mesh, P("tp")).realize()
  y = x.constrain(P("dp", None)) @ w
  auto(y, mesh=mesh)
  assert w.device == Sharding(mesh, P("tp")) and x.device.cut(0) == (mesh.sub_axis("dp"),)
  np.testing.assert_array_equal(y.numpy(), np.full((8, 8), 16.0))


@pytest.mark.parametrize(
  "shape, spec",
  [
    ((6, 8), P(("dp", "tp"))),
    ((7, 8), P("dp", OPEN)),
    ((8, 8), P(("tp", "dp"), OPEN)),
    ((8, 8), P(None, "tp:(1)2")),
    ((5, 8), P("dp", ("tp:(2)2", OPEN))),
  ],
  ids=str,
)
def test_a_hint_that_is_no_choice_of_the_program_is_kept(shape, spec):
  """Uneven cuts, axes in another order and parts of axes. (Mutant seen: such a value was whole.)"""
  mesh = Mesh(tuple(f"CPU:{i}" for i in range(8)), (2, 4), ("dp", "tp"))
  a, b = np.arange(prod(shape), dtype=np.float32).reshape(shape) % 5, np.arange(32, dtype=np.float32).reshape(8, 4) % 3
  x, w = Tensor(a).realize(), Tensor(b).realize()
  hinted = (x * 2).constrain(spec)
  y = hinted.relu() @ w
  grad = y.square().sum().gradient(w)[0]
  auto(y, grad, mesh=mesh)
  entries = [(e,) if isinstance(e, str) else e or () for e in (*spec, *[None] * (2 - len(spec)))]
  said = [tuple(mesh.sub_axis(n) for n in e if n != OPEN) for e in entries]
  assert [within_axes(hinted.device.cut(i), mesh) for i in range(2)] == said
  np.testing.assert_array_equal(y.numpy(), 2 * a @ b)
  np.testing.assert_array_equal(grad.numpy(), 2 * (2 * a).T @ (2 * a @ b))


def grouped(*hints):
  """Two values of one group that have nothing else in common, one of them read where it had better be whole."""
  x, y, w = (Tensor(np.full((8, 8), i, np.float32)).realize() for i in (1, 2, 3))
  one, two = ((t * 2).constrain(**hint, group="kv") for t, hint in zip((x, y), hints))
  return one, two, one @ w, two @ w


@pytest.mark.parametrize("f", [auto, propagate])
def test_values_of_one_group_are_placed_alike(f):
  """(Mutant seen: `auto` placed each for itself.)"""
  mesh = Mesh(tuple(f"CPU:{i}" for i in range(4)), (2, 2), ("dp", "tp"))
  for hints, cut in (
    (({"spec": P("dp", OPEN)}, {}), "dp"),
    (({"spec": P(None, "tp")}, {"spec": P(OPEN, OPEN)}), "tp"),
    (({"replicated": "dp"}, {"replicated": "tp"}), None),
  ):
    one, two, *ys = grouped(*hints)
    f(*ys, mesh=mesh)
    assert one.device == two.device, hints
    assert cut is None or any(mesh.sub_axis(cut) in one.device.cut(i) for i in range(2))
    assert cut is not None or one.device == Sharding(mesh, P())
    for i, y in enumerate(ys):
      np.testing.assert_array_equal(y.numpy(), np.full((8, 8), 48 * (i + 1)))


@pytest.mark.parametrize("f", [auto, propagate])
def test_hints_of_one_group_that_disagree_are_refused(f):
  mesh = Mesh(tuple(f"CPU:{i}" for i in range(4)), (2, 2), ("dp", "tp"))
  other = Tensor.ones(8).contiguous().constrain(P("dp"), group="another")
  _, _, *ys = grouped({"spec": P("dp", OPEN)}, {"spec": P(OPEN, "dp")})
  with pytest.raises(
    ShardError, match=r"disagree: P\('dp', None\) and P\(None, 'dp'\)(.|\n)*'kv'\) in (.|\n)*fix: "
  ) as e:
    f(other, *ys, mesh=mesh)
  assert "another" not in str(e.value)


def test_without_highspy_it_says_what_to_install(monkeypatch):
  class Missing:
    def __getattr__(self, name):
      raise ModuleNotFoundError("No module named 'highspy'")

  monkeypatch.setattr(linear, "highspy", Missing())
  with pytest.raises(ModuleNotFoundError, match="highspy is not installed\n  fix: pip install highspy"):
    automatic(mlp(4, 64, 64, 4), ONE, H100, None)


def test_a_mesh_of_four_axes_is_refused_with_a_fix():
  mesh = Mesh(tuple(f"NULL:{i}" for i in range(16)), (2, 2, 2, 2), ("a", "b", "c", "d"))
  with pytest.raises(ShardError, match="has 4 axes, and choices are looked at for 3(.|\n)*fix: Mesh\\(mesh.devices"):
    automatic(mlp(4, 64, 64, 4), mesh, H100, None)


@pytest.mark.parametrize("seed", range(12))
def test_a_mesh_of_three_axes(seed):
  """Against elimination, with all choices in one linear program and by bounds."""
  sink, _, machine = random_case(2 * seed)
  found = automatic(sink, Mesh(D4 + tuple(f"NULL:{i}" for i in range(4, 8)), (2, 2, 2), ("a", "b", "c")), machine, None)
  assert found.seconds == pytest.approx(least_of_all(found.program), rel=1e-6)
  by_bounds = least.searched(found.program)
  assert by_bounds.bound <= found.seconds * (1 + 1e-6) and by_bounds.seconds <= found.seconds * 1.01


def converged(p):
  messages = bounds.Messages(p)
  messages.run()
  return messages


@pytest.mark.parametrize("seed", range(24))
def test_bounds_by_messages_are_bounds(seed):
  """They never exceed the least of all choices, and what they leave out is part of no better one."""
  p = automatic(*random_case(seed), None).program
  messages, least_seconds = converged(p), least_of_all(p)
  assert messages.bound() <= least_seconds * (1 + 1e-6)
  part = p.kept(*messages.needed(least_seconds * (1 + 1e-6) - messages.bound()))
  assert least_of_all(part) == pytest.approx(least_seconds, rel=1e-6)
  assert least.searched(p).seconds <= least_seconds * 1.01


def test_messages_that_count_twice_are_noticed(monkeypatch):
  """(Mutant: what is counted at a value is counted at the op, too.)"""
  monkeypatch.setattr(bounds.Star, "least", lambda star, i: star.op.sides[i].costs.min(axis=0))
  programs = [automatic(*random_case(seed), None).program for seed in range(0, 24, 2)]
  assert any(converged(p).bound() > least_of_all(p) * 1.01 for p in programs)


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_where_memory_binds(seed):
  for _, memory, held in capped(*random_case(seed), shares=(0.25, 0.5)):
    found = least.searched(held.program)
    assert held.program.held(found.cuts) <= memory * (1 + 1e-9)
    assert found.bound <= held.seconds * (1 + 1e-6) and found.seconds >= held.chosen.bound * (1 - 1e-6)


@pytest.mark.parametrize("mesh", (ONE, TWO, THREE), ids=("1-D", "2-D", "3-D"))
def test_moves_are_priced_as_they_are_planned(mesh):
  choices, rng = Choices(mesh, Machine(1e12, 1e12, 1e9, 1e-6)), random.Random(1)
  for shape in ((24, 12), (48, 12, 24), (4, 7, 36), (6, 2, 1, 12)):
    cuts = choices.cuts(shape, None)
    for _ in range(60):
      a, b = rng.choice(cuts), rng.choice(cuts)
      over = frozenset(i for i, d in enumerate(a) if d == -1 and rng.random() < 0.5)
      partial = (Partial(tuple(choices.axes[i] for i in sorted(over)), Ops.ADD),) if over else ()
      here = Sharding.of(mesh, choices.dims(a, len(shape)), partial)
      steps = plan(shape, 2, here, choices.placement(b, len(shape)))
      seconds = sum(step.nbytes / 1e9 + 1e-6 * (step.nbytes > 0) for step in steps)
      priced = choices.table(shape, 2, [b], [(a, over)], source=False)[0, 0]
      assert priced == pytest.approx(seconds, rel=1e-6), (shape, a, b, over)


def test_links_of_axes():
  """One slow axis costs less than two: what is large moves over the other. (Mutant: the slowest link for all.)"""
  sink, fast, slow = mlp(64, 1024, 1024, 1024, True), 1e12, 1e7
  links = ({"x": x, "y": y} for x, y in ((fast, fast), (slow, fast), (fast, slow), (slow, slow)))
  seconds = [automatic(sink, TWO, Machine(1e12, 1e12, link, 0.0), None).seconds for link in links]
  assert seconds[0] < seconds[1] < seconds[3] and seconds[1] == pytest.approx(seconds[2])
  with pytest.raises(ShardError, match="says nothing of the mesh axis 'y'"):
    automatic(sink, TWO, Machine(1e12, 1e12, {"x": fast}, 0.0), None)


@pytest.mark.parametrize("mesh", (ONE, TWO), ids=("1-D", "2-D"))
@pytest.mark.parametrize("graph", GRAPHS)
def test_no_more_bytes_travel_than_were_counted(graph, mesh):
  """What was decided is what is built, with and without a limit of memory."""
  machine = Machine(1e12, 1e11, 1e10, 0.0)
  for _, memory, _ in capped(GRAPHS[graph](), mesh, machine, (0.5, 1.0)):
    sink = GRAPHS[graph]()
    roots = [Tensor(u) for u in sink.src]
    found = automatic(sink, mesh, machine, memory)
    apply(Placing(found.answer))
    p, chosen = found.program, found.chosen.cuts
    own = sum(v.seconds[k] for v, k in zip(p.values, chosen)) + sum(op.seconds[op.best(chosen)] for op in p.ops)
    counted = (found.seconds - own) * machine.link
    assert sum(row.wire for row in explain(*roots).rows) <= counted * (1 + 1e-6) + 1


def test_what_auto_has_chosen_is_not_said_to_be_the_users():
  roots = [Tensor(u) for u in convnet().src]
  auto(*roots, mesh=ONE, machine=Machine(1e12, 1e11, 1e10, 0.0))
  why = [row.why for row in explain(*roots).rows if row.kind == "all_gather"]
  assert why and all(text.startswith("automatic placement chose it: ") for text in why)


WRONG = [
  ({"machine": "h999"}, ShardTypeError, r"auto: machine='h999' is no Machine\n(.|\n)*fix: machine=Machine\("),
  ({"memory": "12 GB"}, ShardError, r"auto: memory='12 GB' is no number of bytes(.|\n)*fix: memory=80e9"),
  ({"memory": True}, ShardError, "auto: memory=True is no number of bytes(.|\n)*fix: memory=80e9"),
  ({"memory": -1}, ShardError, "auto: memory=-1 is no number of bytes"),
  ({"memory": float("nan")}, ShardError, "auto: memory=nan is no number of bytes"),
]


@pytest.mark.parametrize("said, error, message", WRONG)
def test_what_it_is_told_of_machines_is_looked_at_first(said, error, message):
  with pytest.raises(error, match=message):
    auto(Tensor.ones(8, 8) @ Tensor.ones(8, 8), mesh=Mesh(("NULL:0", "NULL:1"), names=("d",)), **said)


@pytest.mark.parametrize("f", [auto, propagate])
def test_no_tensor_is_no_output(f):
  with pytest.raises(ShardTypeError, match=rf"{f.__name__}: there is no Tensor among its(.|\n)*fix: .*mesh=mesh"):
    f(3, [], mesh=Mesh(("NULL:0", "NULL:1"), names=("d",)))
