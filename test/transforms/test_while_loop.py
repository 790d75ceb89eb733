"""`while_loop`: Python's loop is the oracle; eager, captured, mapped, placed."""

import numpy as np
import pytest

from tinygrad import (
  Context,
  Mesh,
  P,
  Tensor,
  TinyJit,
  Variable,
  checkpoint,
  cond,
  grad,
  jacfwd,
  jvp,
  scan,
  shard_map,
  stop_gradient,
  vmap,
  while_loop,
)
from tinygrad.engine.jit import JitError
from tinygrad.helpers import GlobalCounters
from tinygrad.sharding import explain
from tinygrad.transforms import run_loops

MESH = Mesh(("CPU:0", "CPU:1"), names=("x",))


def steps(n):
  """How many steps of Collatz' map lead from n to 1."""
  half = lambda k: (k % 2 == 0).where(k // 2, 3 * k + 1)  # noqa: E731
  return while_loop(lambda c: c["n"] != 1, lambda c: {"n": half(c["n"]), "k": c["k"] + 1}, {"n": n, "k": n * 0})["k"]


def counted(n):
  k = 0
  while n != 1:
    n, k = n // 2 if n % 2 == 0 else 3 * n + 1, k + 1
  return k


def root(a):
  """Newton's iteration until every element is near."""
  done = lambda x: ((x * x - a).abs() > 1e-4 * a).any()  # noqa: E731
  return while_loop(done, lambda x: (x + a / x) / 2, a.ones_like())


@pytest.mark.parametrize("n", (1, 2, 7, 27))
def test_as_many_steps_as_python_takes(n):
  assert steps(Tensor(n)).item() == counted(n)


def test_a_tangent_by_a_matrix_that_is_cut_over_two_axes():
  mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("x", "y"))
  w = Tensor([[1.0, 2.0], [3.0, 4.0]])
  of = lambda w: while_loop(lambda c: c.sum() < 50, lambda c: w @ c, Tensor.ones(2, 2))  # noqa: E731
  for at in (w, w.shard(mesh, P("x", "y")).realize()):
    value, tangent = jvp(of, (at,), (at * 2,))
    assert value.tolist() == [[17, 17], [37, 37]] and tangent.tolist() == [[68, 68], [148, 148]]


def test_the_argument_stays():
  x = Tensor([9.0, 16.0]).realize()
  assert while_loop(lambda y: y.sum() > 1, lambda y: y / 2, x).sum().item() <= 1
  np.testing.assert_array_equal(x.numpy(), [9, 16])


def test_each_replay_runs_as_long_as_its_argument_asks_for():
  f = TinyJit(steps)
  for n in (7, 3, 27, 1, 97, 6):
    assert f(Tensor(n).realize()).item() == counted(n)


def test_results_that_are_held_stay():
  f = TinyJit(lambda n: (steps(n), n + 1))
  held = [f(Tensor(n).realize()) for n in (7, 3, 27, 1, 97)]
  assert [(a.item(), b.item()) for a, b in held] == [(counted(n), n + 1) for n in (7, 3, 27, 1, 97)]


def test_the_step_is_compiled_once_and_a_loop_takes_kernels_by_its_steps():
  f = TinyJit(steps)
  for n in (2, 2):
    f(Tensor(n).realize())
  counts = []
  for n in (2, 8, 1):  # 1, 3 and no steps
    x = Tensor(n).realize()
    before = GlobalCounters.kernel_count
    f(x)
    counts.append(GlobalCounters.kernel_count - before)
  assert counts[1] - counts[0] == 2 * (counts[0] - counts[2]) > 0


def test_a_condition_that_is_not_read_again_is_noticed(monkeypatch):
  """(Mutant: one step.)"""
  asked = iter((True, False))
  monkeypatch.setattr(run_loops.Repeat, "wanted", lambda self: next(asked))
  assert steps(Tensor(7)).item() == 1


@pytest.mark.parametrize("device", (None, (MESH, P("x")), (MESH, P())), ids=("one", "cut", "replicated"))
def test_on_several_devices(device):
  values = np.array([2.0, 9.0, 1e4, 0.25], np.float32)
  a = Tensor(values) if device is None else Tensor(values).shard(*device)
  got = root(a)
  assert got.device == a.device
  np.testing.assert_allclose(got.numpy(), np.sqrt(values), rtol=1e-3)
  f = TinyJit(root)
  for scale in (1.0, 3.0, 100.0, 1e-3):
    np.testing.assert_allclose(f((a * scale).realize()).numpy(), np.sqrt(values * scale), rtol=1e-3)


def test_under_a_map_each_element_stops_by_itself():
  values = [1, 2, 7, 27, 6, 97]
  np.testing.assert_array_equal(vmap(steps)(Tensor(values)).numpy(), [counted(n) for n in values])
  grid = np.array(values).reshape(2, 3)
  want = np.vectorize(counted)(grid)
  np.testing.assert_array_equal(vmap(vmap(steps))(Tensor(grid)).numpy(), want)
  f = TinyJit(vmap(vmap(steps)))
  for turn in range(4):
    np.testing.assert_array_equal(f(Tensor(np.roll(grid, turn)).realize()).numpy(), np.roll(want, turn))


def test_what_is_the_same_for_all_elements():
  """The condition has no lanes, a carry gets them, another never does."""
  c = Tensor([1.0, 2.0, 3.0])
  f = lambda x: while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, s[1] + x), (Tensor(0), Tensor(0.0)))  # noqa: E731
  count, total = vmap(f, out_axes=(None, 0))(c)
  assert count.item() == 4
  np.testing.assert_array_equal(total.numpy(), 4 * c.numpy())


def test_in_a_map_over_the_mesh():
  values = np.array([1, 2, 7, 27], np.int32)
  f = shard_map(vmap(steps), MESH, P("x"), P("x"))
  np.testing.assert_array_equal(f(Tensor(values).shard(MESH, P("x"))).numpy(), [counted(n) for n in values])


def test_on_what_is_interpreted():
  assert steps(Tensor(7, device="PYTHON")).item() == counted(7)
  with Context(INTERPRET=1):
    assert steps(Tensor(6)).item() == counted(6)


def test_two_loops_one_after_the_other():
  x = while_loop(lambda y: y < 100, lambda y: y * 2, Tensor(3))
  assert while_loop(lambda y: y > 10, lambda y: y - x, x * 5).item() == 0


def test_in_a_scan():
  f = lambda v: scan(lambda c, x: (c + steps(x), steps(x)), Tensor(0), v)  # noqa: E731
  jitted = TinyJit(f)
  for values in ([3, 7], [27, 1], [6, 9], [2, 97]):
    want = [counted(n) for n in values]
    for total, each in (f(Tensor(values)), jitted(Tensor(values).realize())):
      assert total.item() == sum(want) and each.tolist() == want
  mapped = vmap(lambda n: f(Tensor([1, 2]) + n)[0])(Tensor([1, 5]))
  assert mapped.tolist() == [counted(2) + counted(3), counted(6) + counted(7)]


def test_with_loops_in_it():
  add = lambda c: scan(lambda a, x: (a + x, None), c, Tensor([1.0, 2.0, 3.0]))[0]  # noqa: E731
  assert while_loop(lambda c: c < 100, add, Tensor(0.0)).item() == 102
  up_to = lambda x, limit: while_loop(lambda y: y < limit, lambda y: y + 4, x)  # noqa: E731
  outer = while_loop(lambda c: c[1] < 3, lambda c: (up_to(c[0], 10 * c[1]), c[1] + 1), (Tensor(0), Tensor(1)))
  assert outer[0].item() == 20  # to 12, then to 20


def captured():
  add = lambda c, x: (c + x, None)  # noqa: E731
  f = TinyJit(lambda n: while_loop(lambda c: c < n, lambda c: scan(add, c, n.reshape(1))[0], n * 0))
  for _ in range(2):
    f(Tensor(3).realize())


def doubled(x):
  """x times 2 until all are 100 or more: the tangents are as many times the tangents."""
  return while_loop(lambda c: (c < 100).any(), lambda c: c * 2, x)


VALUES, DIRECTIONS = [3.0, 4.0], [1.0, -2.0]
EACH, ALL = [64.0, -64.0], [64.0, -128.0]  # 3 goes to 192 by 64, 4 to 128 by 32 alone, and to 256 beside 3
AROUND = {
  "plain": (doubled, ALL),
  "mapped": (vmap(doubled), EACH),
  "checkpointed": (checkpoint(doubled), ALL),
  "on one way": (lambda x: cond(x.sum() > 0, doubled, lambda x: x, x), ALL),
  "in a scan": (lambda x: scan(lambda c, _: (doubled(c), None), x, None, length=2)[0], ALL),
  "cut": (lambda x: doubled(x.shard(MESH, P("x"))), ALL),
  "on each device": (lambda x: shard_map(vmap(doubled), MESH, P("x"), P("x"))(x.shard(MESH, P("x"))), EACH),
  "stopped": (lambda x: doubled(stop_gradient(x)), [0.0, 0.0]),
}


@pytest.mark.parametrize("name", AROUND)
def test_tangents_go_with_the_values(name):
  f, want = AROUND[name]
  x, v = Tensor(VALUES), Tensor(DIRECTIONS)
  assert jvp(f, (x,), (v,))[1].tolist() == want
  step = TinyJit(lambda x, v: jvp(f, (x,), (v,))[1].realize())
  for _ in range(4):
    assert step(x.realize(), v.realize()).tolist() == want


def test_tangents_of_what_a_loop_reads_and_of_what_only_becomes_one():
  """x**4 and 1 + x + x**2 + x**3; the second begins as a constant. And derivatives of derivatives."""
  start = lambda x: (Tensor(0), x, Tensor(0.0), Tensor(1.0))  # noqa: E731
  step = lambda s, x: (s[0] + 1, s[1], s[2] + s[3], s[3] * x)  # noqa: E731
  f = lambda x: while_loop(lambda s: s[0] < 4, lambda s: step(s, x), start(x))  # noqa: E731
  (count, same, total, power), found = jvp(f, (Tensor(2.0),), (Tensor(1.0),))
  assert [t.item() for t in (count, same, total, power)] == [4, 2, 15, 16]
  assert [t.item() for t in found] == [0, 1, 1 + 4 + 12, 32]
  second = jvp(lambda x: jvp(lambda x: f(x)[3], (x,), (Tensor(1.0),))[1], (Tensor(2.0),), (Tensor(1.0),))[1]
  assert second.item() == 48
  a = np.array([9.0, 16.0], np.float32)
  np.testing.assert_allclose(jacfwd(root)(Tensor(a)).numpy(), np.diag(0.5 / np.sqrt(a)), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("captured", [False, True])
def test_a_loop_between_a_write_and_what_reads_the_content_before_it(captured):
  state = Tensor([1.0, 2.0]).realize()

  def step(x, first):
    old = state * 2
    state.assign(state + x)
    if first:
      state.realize()
    y = while_loop(lambda c: c.sum() < 50, lambda c: c + 1, state)
    return y.realize(), old

  f = TinyJit(step) if captured else step
  with pytest.raises(TypeError, match="content before that is still to be read\n  fix: call realize"):
    f(Tensor([1.0, 1.0]).realize(), False)
  state.assign(Tensor([1.0, 2.0])).realize()
  for i in range(1, 5):
    y, old = f(Tensor([1.0, 1.0]).realize(), True)
    assert (y.tolist(), old.tolist(), state.tolist()) == ([25, 26], [2 * i, 2 + 2 * i], [1 + i, 2 + i])


def test_what_is_computed_of_a_loop_of_numbers_is_read_by_another_one():
  """And is no part of its step: numbers have no place, and what is computed of them is memory nevertheless."""

  def doubled(x):
    first = while_loop(lambda c: c < 10, lambda c: c * 2, x)
    second = while_loop(lambda c: c < 100, lambda c: c - -first, x)
    return second, scan(lambda c, _: (c * -first, None), x, length=2)[0]

  for f in (doubled, TinyJit(doubled)):
    for n in (3.0, 4.0, 5.0, 6.0):
      first = next(n * 2**i for i in range(9) if n * 2**i >= 10)
      second = next(n + first * i for i in range(99) if n + first * i >= 100)
      assert [x.item() for x in f(Tensor(n))] == [second, n * first**2]


ONE, TWO = Tensor([1.0]), Tensor([1.0, 2.0])
SOME = TWO[: Variable("n", 1, 2).bind(1)]
REFUSED = {
  "no bool": (lambda: while_loop(lambda x: x.sum(), lambda x: x, ONE), TypeError, "is one bool, not float"),
  "many": (lambda: while_loop(lambda x: x > 0, lambda x: x, TWO), TypeError, "one bool, not bool\\[2\\]"),
  "shape": (lambda: while_loop(lambda x: x.sum() > 0, lambda x: x.cat(x), ONE), ValueError, "while_loop: the carry is"),
  "number": (lambda: while_loop(lambda c: c[1] < 9, lambda c: (c[0] + 1, c[1] + 1), (0, ONE)), ValueError, "numbers"),
  "type": (lambda: while_loop(lambda x: x.sum() > 0, lambda x: x.int(), ONE), ValueError, "after a step it is int32"),
  "length": (lambda: while_loop(lambda x: x.sum() < 9, lambda x: x * 2, SOME), ValueError, "lengths must be known"),
  "nothing": (lambda: while_loop(lambda x: Tensor(True), lambda x: x, ()), ValueError, "no Tensor in init"),
  "random": (lambda: while_loop(lambda x: x < 1, lambda x: x + Tensor.rand(()), Tensor(0.0)), ValueError, "draw them"),
  "gradient": (lambda: grad(lambda x: root(x).sum())(ONE), TypeError, "while_loop: there is no gradient(.|\n)*scan"),
  "explained": (lambda: explain(root(ONE)), TypeError, "without the loop is asked for(.|\n)*realize its result first"),
  "captured with a loop in it": (captured, JitError, "a loop within it cannot be captured"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_fix(name):
  call, error, text = REFUSED[name]
  with pytest.raises(error, match=text) as e:
    call()
  assert "fix:" in str(e.value)
