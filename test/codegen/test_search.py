"""BEAM: the search of plans by a cost that the test gives, what it keeps, and that every plan it can reach is right."""

import io
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from codegen_kernels import dot, fold, load, loop, op, reduce, sink, store
from test_kernels import WIDE, matmul, normal

from tinygrad import Tensor, Variable
from tinygrad.codegen import lower_kernel
from tinygrad.device import Capabilities, Device, Target
from tinygrad.device.cores import cuda_cores
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context, ContextVar
from tinygrad.tuning import search
from tinygrad.uop import Ops, UOp

CPU = Device["CPU"]
D2 = ("CPU:0", "CPU:1")
LARGE = matmul(64, 96, 128)[0]  # enough work for staging to be thought of


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("CACHEDIR", str(tmp_path))


def settings(planner, ast=LARGE):
  """What a planner makes of the main nest of a kernel."""
  lower_kernel(ast, WIDE, 1, planner)
  sizes = planner.with_changes({}).sizes
  nest = next(n for n in planner.nests if n.sizes == sizes)
  return {what: now for what, (now, _) in nest.settings().items()}


def searched(cost, width=2, seconds=100.0, clock=lambda: 0.0, ast=LARGE):
  """(what the search gives in the end, the changes that it asked the cost of), with `cost(settings, changes)`."""
  asked = []

  def lowered(planner):
    asked.append(planner.changes)
    return cost(settings(planner, ast), planner.changes)

  *_, best = search.search(search.Planner(WIDE, {}), lowered, width, seconds, clock)
  return best, asked


def steps(what, value, goal):
  """From one value of a setting to another."""
  if what.startswith(("copies", "accumulators")):
    return abs(search.COPIES.index(value) - search.COPIES.index(goal))
  if what == "block":
    return abs(np.log2(value or 128) - np.log2(goal or 128))
  return (value != goal) * (4 if what == "vector" else 1)  # along another range the heuristic nests the loops otherwise


@pytest.mark.parametrize(
  "goal",
  [
    {"copies0": 2, "copies1": 1},
    {"copies0": 1, "copies1": 3, "stage0": True, "stage1": True, "block": 64},
    {"vector": 0, "order": [1, 0], "accumulators": 4, "copies0": 1, "copies1": 1},
    {"vector": -1, "copies1": 6, "block": 16, "order": [1, 0]},
  ],
)
def test_it_finds_the_plan_of_least_cost(goal):
  def cost(now, _):
    return 1.0 + sum(steps(k, now[k], v) for k, v in goal.items())

  assert cost(settings(search.Planner(WIDE, {})), {}) > 1
  best, _ = searched(cost)
  now = settings(best)
  assert {k: now[k] for k in goal} == goal


@pytest.mark.parametrize("width, want", [(1, 9.0), (2, 5.0)])
def test_a_wider_beam_passes_through_what_is_not_the_best(width, want):
  start = settings(search.Planner(WIDE, {}))["copies0"]
  i = search.COPIES.index(start)
  nearer, there = ({"copies0": search.COPIES[i - k]} for k in (1, 2))
  costs = {repr({}): 10.0, repr({"vector": -1}): 9.0, repr(nearer): 9.5, repr(there): 5.0}
  best, _ = searched(lambda _, changes: costs.get(repr(changes), 20.0), width)
  assert costs[repr(best.changes)] == want


def test_every_change_is_asked_for_once_and_only_one_is_new_in_each():
  _, asked = searched(lambda now, _: 1.0 + now["copies0"] + now["copies1"])
  assert len(asked) > 20
  *asked, best, start = asked  # these two once more, against each other
  assert start == {} and best in asked and all(asked.count(c) == 1 for c in asked)
  for c in asked[1:]:
    assert any(before.keys() <= c.keys() and sum(before.get(k) != c[k] for k in c) == 1 for before in asked)


def test_what_was_fast_once_by_chance_does_not_win():
  times = iter([1.0, 0.5])
  best, asked = searched(lambda _, changes: next(times, 2.0 if changes else 1.0))
  assert best.changes == {} and asked[1] in asked[2:]
  assert searched(lambda _, changes: 0.99 if changes else 1.0)[0].changes == {}  # within the noise


@pytest.mark.parametrize("seconds", [1, 5, 12])
def test_it_ends_when_the_time_is_over(seconds):
  now, times = [0.0], {}

  def cost(_, changes):
    now[0] += 1
    return times.setdefault(str(changes), 1.0 / now[0])  # the later the faster

  best, asked = searched(cost, seconds=seconds, clock=lambda: now[0])
  assert len(asked) == seconds + (2 if best.changes else 0)  # and the last duel
  assert (best.changes == {}) is (seconds == 1)


# ---- what is kept


class Measured:
  """Takes the place of what times a kernel; the cost is `of(changes)`."""

  def __init__(self, monkeypatch, of):
    self.asked, self.searches = [], 0

    def measuring(ast, backend, threads):
      self.searches += 1

      def cost(planner):
        self.asked.append(planner.changes)
        lower_kernel(ast, backend.target, threads, planner)
        return of(planner.changes)

      return cost

    monkeypatch.setattr(search, "measuring", measuring)


def found(ast=LARGE):
  got = search.planner(ast, CPU, 1, "kernel")
  return None if got is None else got.changes


def fewest_copies(changes):
  return 10.0 - len(changes)


def test_the_next_process_searches_nothing(monkeypatch):
  measured = Measured(monkeypatch, fewest_copies)
  with Context(BEAM=1, BEAM_SECONDS=100.0):
    first = found()
    assert len(first) > 3 and measured.searches == 1
    assert found() == first and measured.searches == 1
    found(matmul(64, 96, 129)[0])
    assert measured.searches == 2  # another kernel
    monkeypatch.setattr(search, "processor_model", lambda: "another processor")
    assert found() == first and measured.searches == 3
  with Context(BEAM=2, BEAM_SECONDS=100.0):
    assert found() == first and measured.searches == 4  # another search


def test_that_nothing_was_found_is_kept_too(monkeypatch):
  measured = Measured(monkeypatch, lambda changes: 1.0)
  with Context(BEAM=1):
    assert found() == found() == {} and measured.searches == 1


def test_ctrl_c_goes_through_and_what_was_found_is_kept(monkeypatch):
  def interrupted(after):
    def cost(changes):
      if len(measured.asked) > after:
        raise KeyboardInterrupt
      return fewest_copies(changes)

    return cost

  measured = Measured(monkeypatch, interrupted(1))
  with Context(BEAM=1, DEBUG=1):
    with pytest.raises(KeyboardInterrupt):
      found()
    assert ContextVar.all["DEBUG"].value == 1
    measured = Measured(monkeypatch, interrupted(5))
    with pytest.raises(KeyboardInterrupt):
      found()
    assert measured.searches == 1  # before, nothing was better than the heuristic's, and nothing was kept
    kept = found()
    assert measured.searches == 1 and kept in measured.asked and kept


# ---- what is measured


def softmax(rows, columns):
  """A sum of exponentials beside the rows' maxima: reductions below others."""
  x = normal(rows, columns)
  i, j, k, m = loop(rows, 0), loop(columns, 1), reduce(columns, 2), reduce(columns, 3)
  at = lambda r: load(1, x, dot((i, columns), (r, 1)))  # noqa: E731
  top = fold(Ops.MAX, at(m), m)
  total = fold(Ops.ADD, op(Ops.EXP, op(Ops.SUB, at(k), top)), k)
  value = op(Ops.FDIV, op(Ops.EXP, op(Ops.SUB, at(j), top)), total)
  return sink(store(dot((i, columns), (j, 1)), value, i, j, size=rows * columns))


def conv(size, channels):
  x, w = normal(channels, size + 2, size + 2), normal(channels, channels, 3, 3)
  o, y, z = loop(channels, 0), loop(size, 1), loop(size, 2)
  c, p, q = reduce(channels, 3), reduce(3, 4), reduce(3, 5)
  image = load(1, x, dot((c, (size + 2) ** 2), (y, size + 2), (p, size + 2), (z, 1), (q, 1)))
  weight = load(2, w, dot((o, channels * 9), (c, 9), (p, 3), (q, 1)))
  value = fold(Ops.ADD, op(Ops.MUL, image, weight), c, p, q)
  return sink(store(dot((o, size * size), (y, size), (z, 1)), value, o, y, z, size=channels * size * size))


def rows_sum(rows, columns, across=False):
  i, k = loop(rows, 0), reduce(columns, 1)
  at = dot((i, 1), (k, rows)) if across else dot((i, columns), (k, 1))
  return sink(store(i, fold(Ops.ADD, load(1, normal(rows, columns), at), k), i, size=rows))


def doubled_in_place(n):
  i = loop(n, 0)
  value = op(Ops.MUL, load(0, normal(n), i), UOp.const(dtypes.float32, 2.0))
  return sink(store(i, value, i, size=n))


KERNELS = {
  "odd": matmul(131, 67, 129)[0],
  "transposed": matmul(96, 130, 260, "km", "kn")[0],
  "blocked": matmul(256, 128, 512, "mk", "nk")[0],
  "half": matmul(40, 50, 60, "mk", "kn", epilogue=lambda v, i, j: op(Ops.CAST, v, dtype=dtypes.float16))[0],
  "empty": matmul(5, 7, 0)[0],
  "softmax": softmax(33, 71),
  "conv": conv(15, 18),
  "rows": rows_sum(37, 1003),
  "columns": rows_sum(300, 70, True),
  "in place": doubled_in_place(1001),
}


ON = ["CPU", pytest.param("CL", marks=pytest.mark.needs("CL"))]


@pytest.mark.parametrize("kind", ON)
@pytest.mark.parametrize("name", KERNELS)
def test_every_plan_that_is_a_few_random_changes_away_gives_the_same_results(name, kind):
  """The oracle is the heuristic's plan, which other tests hold against numpy; the cost raises if results differ."""
  ast, rng, tried, device = KERNELS[name], random.Random(name), 0, Device[kind]
  cost = search.measuring(ast, device, 1)
  start = here = search.Planner(device.target, {})
  assert 0 < cost(start) < np.inf
  for _ in range(4):
    changes = list(here.variations())
    for c in rng.sample(changes, min(len(changes), 4)):
      here = start.with_changes(c)
      tried += cost(here) < np.inf
  assert tried > 3 or name == "empty"


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_a_plan_with_other_results_is_refused(monkeypatch, dtype):
  def kernel(n, add):
    i = loop(n, 0)
    x = load(1, np.zeros(n, dtype), i)
    return sink(store(i, op(Ops.ADD, x, UOp.const(x.dtype, add)), i, size=n))

  cost = search.measuring(kernel(100, 1), CPU, 1)
  start = search.Planner(CPU.target, {})
  cost(start)
  monkeypatch.setattr(search, "lower_kernel", lambda _, *rest: lower_kernel(kernel(100, 2), *rest))
  with pytest.raises(RuntimeError, match=r"another plan, \{'copies0': 3\}, gives other results\n  fix: BEAM=0"):
    cost(start.with_changes({"copies0": 3}))


def test_one_wrong_element_is_enough(monkeypatch):
  def kernel(n):
    i = loop(n, 0)
    return sink(
      store(i, op(Ops.ADD, load(1, np.zeros(1001, np.float32), i), UOp.const(dtypes.float32, 8.0)), i, size=1001)
    )

  cost = search.measuring(kernel(1001), CPU, 1)
  start = search.Planner(CPU.target, {})
  cost(start)
  monkeypatch.setattr(search, "lower_kernel", lambda _, *rest: lower_kernel(kernel(1000), *rest))
  with pytest.raises(RuntimeError, match="gives other results"):
    cost(start.with_changes({"copies0": 3}))


def test_the_same_code_is_timed_once():
  cost = search.measuring(LARGE, CPU, 1)
  start = search.Planner(CPU.target, {})
  assert cost(start) < np.inf and cost(start) < np.inf
  assert cost(start.with_changes({"vector": settings(start)["vector"]})) == np.inf


# ---- in the engine


def scattered(changes):
  """A cost that looks like noise, and that the heuristic's plan is the worst of."""
  return 1.0 + random.Random(str(sorted(changes.items()))).random() if changes else 3.0


def computations():
  rng = np.random.default_rng(0)
  a, b, w = (rng.standard_normal(s).astype(np.float32) for s in ((131, 93), (93, 67), (6, 5, 3, 3)))
  x = rng.standard_normal((2, 5, 12, 11)).astype(np.float32)
  e = np.exp(a - a.max(1, keepdims=True))
  windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
  n = Variable("n", 1, 131).bind(57)
  return {
    "matmul": (lambda: Tensor(a) @ Tensor(b), a @ b),
    "softmax": (lambda: Tensor(a).softmax(), e / e.sum(1, keepdims=True)),
    "conv": (lambda: Tensor(x).conv2d(Tensor(w)), np.einsum("nchwij,ocij->nohw", windows, w)),
    "sum": (lambda: Tensor(a).sum(0), a.sum(0)),
    "symbolic": (lambda: Tensor(a)[:n].sum(0), a[:57].sum(0)),
    "peers": (lambda: (Tensor(a).shard(D2, axis=1) @ Tensor(b).shard(D2, axis=0)).relu(), np.maximum(a @ b, 0)),
  }


@pytest.mark.parametrize("name", computations())
def test_results_are_those_without_a_search(monkeypatch, name):
  compute, want = computations()[name]
  plain = compute().numpy()
  measured = Measured(monkeypatch, scattered)
  kept = search.planner
  chosen = []

  def planner(*args):
    chosen.append(kept(*args))
    return chosen[-1]

  monkeypatch.setattr(search, "planner", planner)
  with Context(BEAM=2, BEAM_SECONDS=100.0):
    got = compute().numpy()
    assert measured.searches > 0 and any(p.changes for p in chosen)
    searches = measured.searches
    compute().numpy()
    assert measured.searches == searches
  np.testing.assert_allclose(got, plain, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", computations())
def test_a_search_on_the_device_goes_well(monkeypatch, name):
  compute, want = computations()[name]
  costs, measuring = [], search.measuring

  def counted(*args):
    cost = measuring(*args)
    return lambda planner: costs.append(cost(planner)) or costs[-1]

  monkeypatch.setattr(search, "measuring", counted)
  with Context(BEAM=3, BEAM_SECONDS=0.5):  # another width than above, whose programs this process has
    np.testing.assert_allclose(compute().numpy(), want, rtol=1e-4, atol=1e-4)
  assert costs and all(c > 0 for c in costs)


def test_nothing_is_searched_where_there_is_nothing_to_time_or_to_choose(monkeypatch):
  measured = Measured(monkeypatch, scattered)
  with Context(BEAM=2, BEAM_SECONDS=1.0):
    assert search.planner(LARGE, Device["NULL"], 1, "kernel") is None
    with Context(NOOPT=1):
      assert found() is None
    # a product on cores goes the heuristic's way
    target = Target("grid", scratch=48 << 10, vector_registers=96, threads=True, cores=cuda_cores((8, 0)))
    lowered = []
    grid = type(
      "Grid", (), {"capabilities": Capabilities(), "target": target, "render": lambda *code: lowered.append(1)}
    )
    with Context(ALLOW_TF32=1):
      assert search.planner(LARGE, grid, 1, "kernel") is None and lowered
  assert measured.searches == 0


def test_without_beam_nothing_of_it_is_imported():
  code = "import sys; from tinygrad import Tensor; (Tensor.ones(3, 3) @ Tensor.ones(3, 3)).numpy()"
  code += "; print('tinygrad.tuning.search' in sys.modules)"
  for beam, want in (("0", "False"), ("1", "True")):
    env = {**os.environ, "BEAM": beam, "BEAM_SECONDS": "0.1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == want and done.stderr == ""


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_a_bar_shows_on_a_terminal_how_much_of_the_time_is_used(monkeypatch):
  now = [0.0]

  def cost(changes):
    now[0] += 1
    return 1.0 / now[0]

  Measured(monkeypatch, cost)
  monkeypatch.setattr(search, "clock", lambda: now[0])
  monkeypatch.setattr("sys.stderr", Terminal())
  with Context(BEAM=1, BEAM_SECONDS=7.0):
    search.planner(LARGE, CPU, 1, "r_64_96_128")
    drawn = sys.stderr.getvalue()
    assert "BEAM r_64_96_128" in drawn and " 0/7 s" in drawn and re.search(" [1-7]/7 s", drawn) and "8/7" not in drawn
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("tinygrad.helpers.logbar.SHARE_SECONDS", 1e9)  # it ends sooner, however busy the machine is
    search.planner(matmul(64, 96, 131)[0], CPU, 1, "kernel")
    assert sys.stderr.getvalue() == ""
