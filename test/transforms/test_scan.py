"""`scan` against the loop that it stands for: values, gradients, placements, what is compiled, what is refused."""

import gc

import numpy as np
import pytest

from tinygrad import (
  Mesh,
  P,
  ShardError,
  Tensor,
  TinyJit,
  Variable,
  checkpoint,
  cond,
  custom_vjp,
  donate,
  grad,
  jvp,
  nn,
  psum,
  scan,
  scan_layers,
  shard_map,
  vmap,
  while_loop,
)
from tinygrad.debug.report import report
from tinygrad.engine import compile as compiling
from tinygrad.helpers import Context, GlobalCounters
from tinygrad.nn.state import get_state_dict
from tinygrad.sharding.localize import inline_custom
from tinygrad.transforms import run_loops
from tinygrad.transforms.run_loops import is_loop
from tinygrad.transforms.tree import tree_leaves
from tinygrad.uop import UOp

rng = np.random.default_rng(0)
W = (rng.normal(size=(6, 4, 4)) / 2).astype(np.float32)
X, B = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=4).astype(np.float32)
DEVICES = ("CPU:0", "CPU:1")


def step(c, w, b=0.0):
  return (c @ w + b).tanh(), c.sum(1)


def loop(x, w, b=0.0, reverse=False):
  ys = [None] * w.shape[0]
  for i in reversed(range(w.shape[0])) if reverse else range(w.shape[0]):
    x, ys[i] = step(x, w[i], b)
  return x, Tensor.stack(*ys)


def close(got, want, tol=1e-4):
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tol, atol=tol / 10)


def loss(c, ys):
  return c.square().sum() + ys.cos().sum()


@pytest.mark.parametrize("interpreted", [0, 1])
@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_a_loop(reverse, unroll, interpreted):
  x, w, b = Tensor(X), Tensor(W), Tensor(B)
  with Context(INTERPRET=interpreted):
    got = scan(lambda c, wi: step(c, wi, b), x, w, reverse=reverse, unroll=unroll)
    want = loop(x, w, b, reverse)
    close(got, want)
    close(loss(*got).gradient(x, w, b), loss(*want).gradient(x, w, b))


def test_a_gradient_by_what_a_step_reads_from_outside_is_the_sum_over_steps():
  x, w, b = Tensor(X), Tensor(W), Tensor(B)
  scale = b.exp()  # computed once
  got = scan(lambda c, wi: (c @ wi * scale, None), x, w)[0].sum().gradient(b)[0]
  y = x
  for i in range(6):
    y = y @ w[i] * scale
  close([got], y.sum().gradient(b))


CAPTURING = {
  "scan": lambda w: scan(lambda c, x: (c * w + x, None), Tensor(B), Tensor(X))[0],
  "a scan's results": lambda w: scan(lambda c, x: (c + 1, (x * w).exp()), Tensor(B), Tensor(X))[1],
  "scan in scan": lambda w: scan(lambda c, x: (scan(lambda d, _: (d * w, x), c, None, 2)[0], None), Tensor(B), X3)[0],
  "checkpoint": lambda w: checkpoint(lambda c: (c * w).sin())(Tensor(B)),
  "cond": lambda w: cond(Tensor(1.0) > 0, lambda c: (c * w).sin(), lambda c: c, Tensor(B)),
}
X3 = Tensor(X[:3])


@pytest.mark.parametrize("name", CAPTURING)
@pytest.mark.parametrize("constant", [lambda: Tensor(1.5), lambda: Tensor.ones(4)])
def test_a_constant_from_outside_has_a_derivative_as_memory_has(name, constant):
  f = lambda w: CAPTURING[name](w).sum()  # noqa: E731
  memory = constant().contiguous().realize()
  want = f(memory).gradient(memory)
  assert np.abs(want[0].numpy()).min() > 0.01
  close([grad(f)(constant())], want)
  close([jvp(f, (constant(),), (constant().ones_like(),))[1]], [want[0].sum()])
  w = constant().requires_grad_()
  f(w).backward()
  close([w.grad], want)


@pytest.mark.parametrize("name", CAPTURING)
@pytest.mark.parametrize("view", [lambda t: t.flip(0), lambda t: t.reshape(2, 2).T.reshape(4), lambda t: t[:1]])
def test_by_a_view_from_outside_too(name, view):
  memory = Tensor(B).realize()
  v = view(memory)
  loss = CAPTURING[name](v).sum()
  copy = v.contiguous().realize()
  close(loss.gradient(v, memory), [CAPTURING[name](copy).sum().gradient(copy)[0], *loss.gradient(memory)])
  close([view(loss.gradient(memory)[0])], loss.gradient(v))


def test_a_gradient_of_what_is_repeated_is_summed_step_by_step():
  b = Tensor(B).realize()
  for read in (lambda: b, lambda: b.exp(), lambda: b.flip(0)):
    last = scan(lambda c, x, read=read: (c * read() + x, None), Tensor.zeros(1000, 4).contiguous(), Tensor(X))[0]
    carry, _, _, source = last.uop.src
    assert carry.shape == (1000, 4) and source.shape in ((4,), (1, 4))


def test_constants_that_a_step_makes_are_no_sources():
  last = scan(lambda c, x: (c * Tensor(2.0) + Tensor.ones(4) * x, None), Tensor(B), Tensor(X))[0]
  assert len(last.uop.src) == 3  # the carry, the stack, the numbers of the steps


def test_second_and_third_derivatives():
  def third(f):
    x = Tensor(X[:1])
    g = f(x).sum().gradient(x)[0]
    h = g.square().sum().gradient(x)[0]
    return g, h, h.square().sum().gradient(x)[0]

  w = Tensor(W[:3])
  close(third(lambda x: scan(step, x, w)[0]), third(lambda x: loop(x, w)[0]), 1e-3)


@pytest.mark.parametrize("cut", [(0, None), (None, 2), (None, 1), (1, None), (1, 2), (0, 0)])
def test_placements_stay(cut):
  x, w = Tensor(X), Tensor(W)
  xs, ws = x.shard(DEVICES, cut[0]), w.shard(DEVICES, cut[1])
  got, want = scan(step, xs, ws), loop(x, w)
  assert got[0].device == xs.device
  close(got, want)
  found = loss(*got).gradient(xs, ws)
  assert [g.device for g in found] == [xs.device, ws.device]
  close(found, loss(*want).gradient(x, w), 1e-3)


BOTH = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))


@pytest.mark.parametrize("spec", [P("data", "model"), P("model", "data"), P(("data", "model")), P(None, "model")])
@pytest.mark.parametrize("init", [lambda: Tensor.ones(4, 3), lambda: Tensor(X[:4, :3])])
def test_a_gradient_by_a_matrix_that_is_cut_over_two_axes(init, spec):
  """A carry that is anywhere at first is where a step leaves it, which places the product of a step anew: the matrix is
  moved below the view of it that the product has read until then. Where a body held the matrix, no gradient had it."""

  def of(w):
    last, ys = scan(lambda c, _: (w @ c, w.sum()), init(), length=2)
    return last.square().sum() + ys.sum()

  w, cut = Tensor(W[0]), Tensor(W[0]).shard(BOTH, spec).realize()
  (want,) = of(w).gradient(w)
  assert np.abs(want.numpy()).min() > 0.01
  close(of(cut).gradient(cut), [want])
  close([jvp(of, (cut,), (cut,))[1]], [jvp(of, (w,), (w,))[1]])


def test_what_a_loop_moves_is_told_for_every_step():
  c, _ = scan(step, Tensor(X).shard(DEVICES, 1), Tensor(W).shard(DEVICES))
  kinds = [row.kind for row in report(UOp.sink(c.uop)).rows if row.kind != "copy"]
  assert kinds == ["all_reduce"] * 6


SUMS = Tensor(np.arange(48, dtype=np.float32).reshape(2, 3, 4, 2))


@pytest.mark.parametrize("what", ["of a loop in a loop", "between assignments"])
def test_a_stack_of_partial_sums_owes_nothing_where_the_loop_is_unrolled(what):
  """Memory that holds the parts of a sum would be read as its sum."""
  x, zero = SUMS.shard(DEVICES, 2).realize(), Tensor.zeros(()).shard(DEVICES)
  inner = lambda a: scan(lambda c, e: (c, e.sum(0)), zero, a)[1]  # noqa: E731
  if what == "of a loop in a loop":
    close([scan(lambda c, a: (c, inner(a)), zero, x)[1]], [SUMS.sum(2)])
    return
  w = Tensor.zeros(3, 2).shard(DEVICES).realize()
  before = w + 0
  for i in range(2):
    w.assign(w + inner(x[i] * (1 + w[0, 0])))
  Tensor.realize(before, w)
  first = SUMS[0].sum(1)
  close([before, w], [Tensor.zeros(3, 2), first + (SUMS[1] * (1 + first[0, 0])).sum(1)])


@pytest.mark.parametrize("steps, unroll", [(1, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("cut", [None, 0, 1, 2])
def test_where_it_is_unrolled_placements_are_those_of_the_loop(cut, steps, unroll):
  """Also of no steps, of dims that are cut unevenly, and of gradients that start from constants."""
  x = Tensor(rng.normal(size=(steps, 1, 5)).astype(np.float32)).shard(DEVICES, cut).realize()
  zero = Tensor.zeros(1, 5).shard(DEVICES, None if cut is None else cut % 2)
  last, ys = scan(lambda c, e: (c.maximum(e), e - c), zero, x.maximum(x), unroll=unroll)
  roots = [last.uop, ys.uop, ys.sum().gradient(x)[0].uop, last.sum().gradient(x)[0].uop]
  unrolled = inline_custom(UOp.sink(*roots))
  assert [u.device for u in unrolled.src] == [u.device for u in roots]


@pytest.mark.parametrize("f", [lambda t: t.relu(), lambda t: t * 2, lambda t: t.softmax(), lambda t: t.pad((1, 0))])
@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("result", [0, 1])
def test_a_loop_moves_in_every_step_what_is_told(f, result, linear, monkeypatch):
  ran = []
  planned = run_loops.plan_of
  monkeypatch.setattr(run_loops, "plan_of", lambda sink: ran.extend(report(sink).rows) or planned(sink))
  x, zero = SUMS[0].shard(DEVICES, 1).realize(), Tensor.zeros(()).shard(DEVICES).realize()
  carry = (lambda t: f(t).sum()) if linear else lambda t: f(t).square().sum()
  y = scan(lambda c, e: (c + carry(e.sum(0)), f(e.sum(0))), zero, x)[result]
  told = [(r.kind, r.payload) for r in report(UOp.sink(y.uop)).rows]
  y.realize()
  assert len(told) == 3 and told == [(r.kind, r.payload) for r in ran]  # three steps, each of which has a plan


def test_in_maps_and_maps_in_it():
  x, w = Tensor(X), Tensor(W)
  f = lambda row: scan(lambda c, wi: ((c @ wi).tanh(), c.sum()), row, w)  # noqa: E731
  close(vmap(f, 0, (0, 1))(x), loop(x, w))
  close([vmap(lambda row: f(row)[0].square().sum().gradient(row)[0])(x)], loop(x, w)[0].square().sum().gradient(x))
  close(vmap(lambda row: f(row)[0].square().sum())(x).sum().gradient(w), loop(x, w)[0].square().sum().gradient(w))
  close(scan(lambda c, wi: (vmap(lambda row: (row @ wi).tanh())(c), c.sum(1)), x, w), loop(x, w))
  each = vmap(lambda v: scan(step, x, v)[0])(Tensor.stack(w, w * 0.5))
  close([each], [Tensor.stack(loop(x, w)[0], loop(x, w * 0.5)[0])])


def test_with_shard_map():
  x, w, mesh = Tensor(X), Tensor(W), Mesh(DEVICES, names=("dp",))
  each = lambda c, v: ((c @ v).tanh(), psum(c.sum(), "dp"))  # noqa: E731
  inner = shard_map(lambda a, v: scan(each, a, v), mesh, (P("dp"), P()), (P("dp"), P()))
  got, (c, ys) = inner(x, w), loop(x, w)
  close(got, (c, ys.sum(1)))
  close(loss(*got).gradient(x, w), loss(c, ys.sum(1)).gradient(x, w), 1e-3)
  summed = lambda a, v: scan(lambda c, vi: (c + psum((a @ vi).sum(), "dp"), None), Tensor.zeros(()), v)[0]  # noqa: E731
  total = shard_map(summed, mesh, (P("dp"), P()), P())(x, w)
  np.testing.assert_allclose(total.item(), (x @ w).sum().item(), rtol=1e-4)
  part = shard_map(lambda a, v: (a @ v).tanh(), mesh, (P("dp"), P()), P("dp"))
  close([scan(lambda c, wi: (part(c, wi), None), x.shard(mesh, P("dp")), w)[0]], [c])


@pytest.mark.parametrize("cut", [lambda w: w, lambda w: w.shard(DEVICES)], ids=["one device", "all devices"])
@pytest.mark.parametrize(
  "f",
  [
    lambda a, w: scan(lambda c, _: ((c * w).sin(), c), a, length=3),
    lambda a, w: (while_loop(lambda c: c.square().sum() > 0.1, lambda c: c * w.sigmoid(), a), a),
  ],
  ids=["scan", "while_loop"],
)
def test_in_shard_map_a_carry_meets_what_is_read_from_outside(f, cut):
  """A carry that is a device's part stays one, wherever that lies which the function closes over."""
  x, w = Tensor(X), cut(Tensor(W[0, 0]).realize())
  over = shard_map(lambda a: f(a, w)[0], Mesh(DEVICES, names=("dp",)), P("dp"), P("dp"))
  parts = [f(part, Tensor(W[0, 0])) for part in x.split(x.shape[0] // len(DEVICES))]
  close([over(x)], [Tensor.cat(*[c for c, _ in parts])])


def test_a_loop_in_a_loop():
  x, w = Tensor(X), Tensor(W)
  got = scan(lambda c, wi: (scan(lambda d, _: (d * 0.5 + wi.sum(), None), c, length=3)[0], c.sum()), x, w)
  y, ys = x, []
  for i in range(6):
    ys.append(y.sum())
    for _ in range(3):
      y = y * 0.5 + w[i].sum()
  close(got, (y, Tensor.stack(*ys)))


def nested(w, first, xs):
  def inner(c, x):
    return (c @ w).tanh() + x, c.sum()

  def outer(c, rows):
    c, sums = scan(inner, c, rows)
    return c * 0.5, sums

  return scan(outer, first, xs)


def nested_by_hand(w, c, xs):
  sums = []
  for rows in xs:
    sums.append([])
    for x in rows:
      sums[-1].append(c.sum())
      c = np.tanh(c @ w) + x
    c = c * 0.5
  return c, np.array(sums)


@pytest.mark.parametrize("captured", (False, True), ids=("eager", "captured"))
def test_loops_in_a_loop_run_as_loops(captured):
  w, xs = (rng.normal(size=s).astype(np.float32) / 3 for s in ((4, 4), (5, 7, 4)))
  f = lambda x: nested(Tensor(w), Tensor.ones(4), x)  # noqa: E731
  f = TinyJit(f) if captured else f
  for scale in (1, 2, -1, 0.5):
    want = nested_by_hand(w, np.ones(4, np.float32), xs * scale)
    close(f(Tensor(xs * np.float32(scale)).realize()), [Tensor(a.astype(np.float32)) for a in want])


@pytest.mark.parametrize("cut", [0, None])
def test_numbers_that_loops_in_a_loop_count(cut):
  """They have no place, and what each loop makes of them comes to where the values are that it has beside them."""
  x = Tensor(B).shard(DEVICES, cut).realize()
  twice = lambda y: scan(lambda c, _: ((c[0] * 0.5, c[1] + 1), None), (y, Tensor(0)), length=2)[0]  # noqa: E731
  small = lambda y: while_loop(lambda c: c[0] > 0.1, lambda c: (c[0] * 0.5, c[1] + 1), (y.abs(), Tensor(0)))  # noqa: E731
  for f in (twice, small):
    carry, found = scan(lambda c, y, f=f: (c + f(y)[1], f(y)), Tensor(0), x)
    wanted = [f(Tensor(float(y))) for y in B]
    close(found, [Tensor.stack(*[one[i] for one in wanted]) for i in (0, 1)])
    assert carry.item() == found[1].sum().item()


def test_the_gradient_of_loops_in_a_loop():
  w, xs = rng.normal(size=(4, 4)) / 3, rng.normal(size=(3, 4, 4))
  loss = lambda w, xs: nested(w, Tensor.ones(4, dtype="float64"), xs)[0].square().sum()  # noqa: E731
  got = [t.numpy() for t in grad(loss, (0, 1))(Tensor(w), Tensor(xs))]
  by_hand = lambda w, xs: np.square(nested_by_hand(w, np.ones(4), xs)[0]).sum()  # noqa: E731
  for k, x in enumerate((w, xs)):
    d = rng.normal(size=x.shape)
    ends = [by_hand(*((a + e * d) if i == k else a for i, a in enumerate((w, xs)))) for e in (1e-6, -1e-6)]
    np.testing.assert_allclose((got[k] * d).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-5)


def test_loops_in_a_loop_are_compiled_once(fresh):
  def run(n, m):
    w, xs = Tensor.rand(4, 4), Tensor.rand(n, m, 4)
    return lambda: Tensor.realize(*nested(w, Tensor.ones(4), xs))

  assert compiled(fresh, run(3, 4)) == compiled(fresh, run(8, 9))


def test_random_numbers_differ_from_step_to_step():
  Tensor.manual_seed(1)
  c, ys = scan(lambda c, _: (c + 1, Tensor.rand(3)), Tensor.zeros(3), length=4)
  got = ys.numpy()
  Tensor.manual_seed(1)
  np.testing.assert_array_equal(got, Tensor.rand(4, 3).numpy())
  assert c.tolist() == [4, 4, 4]


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps, unroll", [(0, 1), (0, 3), (1, 3)])
def test_no_steps(steps, unroll, reverse, loops):
  """Also of a loop over blocks that are longer than all there is, of loops in it, and of its gradient."""

  def body(c, w):
    return scan(lambda d, v: (d * v, d[0]), *step(c, w)[:1], w, reverse=reverse) if loops else step(c, w)

  x, w = Tensor(X).realize(), Tensor(W[:steps]).realize()
  c, ys = scan(body, x, w, reverse=reverse, unroll=unroll)
  assert ys.shape == (steps, *((4, 4) if loops else (6,)))
  want = [x, Tensor.zeros(*ys.shape)]
  if steps:
    last, y = body(x, w[0])
    want = [last, y.reshape(ys.shape)]
  close([c, ys], want)
  close(loss(c, ys).gradient(x, w), loss(*want).gradient(x, w) if steps else [2 * x, w])
  c.realize().assign(c + 1)
  np.testing.assert_array_equal(x.numpy(), X)


@pytest.mark.parametrize("apart", [True, False])
def test_between_assignments(apart, monkeypatch):
  """Steps of gradient descent of which none is realised before the last; the loops apart, and in the graph."""
  if not apart:
    monkeypatch.setattr(run_loops, "effects_below", lambda found, order: None)
  x = Tensor(X)

  def trained(f):
    w = Tensor(W).realize()
    for _ in range(3):
      w.assign(w - 0.1 * f(x, w)[0].square().sum().gradient(w)[0])
    return w

  close([trained(lambda x, w: scan(step, x, w))], [trained(loop)])


def test_constants_and_numbers_of_a_loop_that_is_unrolled_between_assignments():
  """A step that returns zeros, and reads a number that replays are given anew, where no loop can run."""

  def f(x, xs, n):
    last, each = scan(lambda c, y: ((c * 0.6).tanh(), c), x, xs)
    again = scan(lambda c, y: ((c * n + last.sin().sum()).tanh(), (Tensor.zeros(2), y * n)), each, xs)
    return last, again

  replayed = TinyJit(donate(f))
  for k in range(4):
    x, xs, n = Tensor([0.5, 1.0 + k]).realize(), Tensor([[1.0], [2.0 * k]]).realize(), Tensor(0.5 + k)
    wanted = [y.numpy() for y in tree_leaves(f(x, xs, n))]
    for got, want in zip(tree_leaves(replayed(x, xs, n)), wanted, strict=True):
      np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


def test_what_reads_the_content_before_an_assignment_keeps_it():
  x, w = Tensor(X), Tensor(W).realize()
  before = w * 1
  w.assign(w * 0.5)
  after = scan(step, x, w)[0]
  Tensor.realize(after, before)
  close([before, after], [Tensor(W), loop(x, Tensor(W) * 0.5)[0]])


def test_what_an_assignment_took_keeps_its_value_where_a_loop_waits_for_that():
  """A gradient, of which the weights are assigned, is returned beside what a loop makes of them."""
  x, w = Tensor(X), Tensor(W).realize()
  change = (x @ w).square().sum().gradient(w)[0]
  w.assign(w - 0.1 * change)
  shown = change * 2  # made after the loop
  after = scan(step, x, w)[0]
  Tensor.realize(after, shown)
  v = Tensor(W).realize()
  g = (x @ v).square().sum().gradient(v)[0].realize()
  close([shown, after], [g * 2, loop(x, v - 0.1 * g)[0]])


def test_in_a_captured_step():
  w = Tensor(W).realize()
  jitted = TinyJit(lambda x: scan(step, x, w)[0].square().sum().gradient(w)[0])
  for _ in range(4):
    x = Tensor(rng.normal(size=(6, 4)).astype(np.float32)).realize()
    close([jitted(x)], loop(x, w)[0].square().sum().gradient(w))


class Layer:
  def __init__(self):
    self.norm, self.linear = nn.RMSNorm(8), nn.Linear(8, 8)

  def __call__(self, x, scale=1.0):
    return x + self.linear(self.norm(x)).gelu() * scale


class Doubling(Layer):
  def __call__(self, x, scale=2.0):
    return super().__call__(x, scale)


def compiled(monkeypatch, f):
  """What is lowered to code while f runs."""
  made = []
  original = compiling.program
  monkeypatch.setattr(compiling, "program", lambda ast, *a: made.append(ast) or original(ast, *a))
  f()
  return len(set(made))


def test_layers_are_compiled_once(fresh):
  def trained(n):
    model, x = scan_layers([Layer() for _ in range(n)]), Tensor.rand(4, 8)
    parameters = list(get_state_dict(model).values())
    return lambda: Tensor.realize(*model(x, scale=0.5).square().sum().gradient(*parameters))

  assert compiled(fresh, trained(3)) == compiled(fresh, trained(12))


def test_layers():
  layers, x = [Layer() for _ in range(5)], Tensor.rand(4, 8)
  model = scan_layers(layers)
  assert get_state_dict(model)["layers.linear.weight"].shape == (5, 8, 8)
  y = x
  for layer in layers:
    y = layer(y, 0.5)
  close([model(x, scale=0.5)], [y])
  weight, plain = model.layers.linear.weight, [layer.linear.weight for layer in layers]
  close(model(x, scale=0.5).sum().gradient(weight), [Tensor.stack(*y.sum().gradient(*plain))])


@pytest.mark.parametrize(
  "call, says",
  [
    (lambda: scan(lambda c, x: (c.cat(c), None), Tensor(B), Tensor(X)), r"carry is float32\[4\](?s:.*)float32\[8\]"),
    (lambda: scan(lambda c, x: (c.int(), None), Tensor(B), Tensor(X)), "after a step it is int32"),
    (lambda: scan(lambda c, x: c + x, Tensor(B), Tensor(X)), "return .carry, y."),
    (lambda: scan(lambda c, x: (c, None), Tensor(B)), "how many steps(?s:.*)length="),
    (lambda: scan(lambda c, x: (c, None), Tensor(B), [Tensor(X), Tensor(W[:2])]), "one length(?s:.*)6 by(?s:.*)2 by"),
    (lambda: scan(lambda c, x: ([c], None), Tensor(B), Tensor(X)), "after a step it is"),
    (lambda: scan(lambda c, x: (c, None), {"a": Tensor(B)}, Tensor(X), 3), "one length"),
    (
      lambda: scan(lambda c, x: (c + x, None), 0.0, Tensor(B)),
      r"carry is 0.0, and after(?s:.*)fix: (?s:.*)Tensor.0.0.",
    ),
    (lambda: scan(lambda c, x: ((c[0] + 1, c[1]), None), (0, Tensor(B)), Tensor(X)), r"other numbers(?s:.*)Tensor.0."),
    (lambda: scan(lambda c, x: ({**c, "b": x}, None), {"a": Tensor(B)}, Tensor(X)), "in other places"),
    (lambda: scan_layers([]), "no layers"),
    (lambda: scan_layers([nn.Linear(3, 3), nn.Linear(3, 4)]), "layers differ"),
    (lambda: scan_layers([nn.Linear(3, 3), nn.Linear(3, 3, bias=False)]), "layers differ(?s:.*)None in another"),
    (lambda: scan_layers([nn.Linear(3, 3, bias=False), nn.Linear(3, 3)]), "layers differ(?s:.*)in other places"),
    (lambda: scan_layers([Layer(), Doubling()]), "layers differ: Layer and Doubling"),
    (lambda: scan_layers([nn.BatchNorm(3), nn.BatchNorm(3, eps=0.1)]), r"1e-05 in the first, 0.1(?s:.*)fix: scan"),
    (lambda: scan(lambda c, x: (c, None), Tensor(B), Tensor(X), unroll=0), "unroll=0 is no number(?s:.*)unroll=n"),
    (lambda: scan(lambda c, x: (c, None), Tensor(B), Tensor(X), unroll=1.5), "unroll=1.5 is no number"),
  ],
)
def test_what_is_refused(call, says):
  with pytest.raises(ValueError, match=says):
    call()


def test_lengths_that_a_variable_says_are_of_what_steps_read_not_of_what_they_leave():
  """Memory of a loop has a fixed size: what a step leaves, and what its gradient keeps. The fix works."""
  x = Tensor(values(0, (4, 6)).astype(np.float32))
  some, f = x[:, : Variable("n", 1, 6).bind(4)], lambda c, x: (c * 0.5 + x.sin(), c.sum())
  np.testing.assert_allclose(
    scan(lambda c, x: (c + x.sum(), None), Tensor(0.0), some)[0].item(), x[:, :4].sum().item(), 1e-5
  )
  for refused in (
    lambda: scan(f, some[0], some),
    lambda: scan(lambda c, x: (c + x.sum(), x * c), Tensor(0.0), some),
    lambda: scan(lambda c, x: ((c + x.softmax()).sum().tanh(), None), Tensor(0.0), some)[0].gradient(some),
  ):
    with pytest.raises(ValueError, match="lengths must be known(?s:.*)fix: pad"):
      refused()
  padded, exact = some.pad_to(some.max_shape), x[:, :4]
  for a, b in zip(scan(f, padded[0], padded), scan(f, exact[0], exact)):
    np.testing.assert_allclose(a.numpy()[: len(b.numpy())], b.numpy(), rtol=1e-5)


def values(seed, shape):
  return np.random.default_rng(seed).normal(size=shape)


def loops_in(*results):
  """The loops below results, each with the sources that it runs on."""
  order = UOp.sink(*(t.uop for t in results)).toposort()
  return {(u.arg[1].loop, u.src) for u in order if is_loop(u)}


def recurrent(w, x, c):
  """The last state of a recurrent network, and something of every step."""
  return scan(lambda c, x: ((y := (c @ w + x).tanh()), (y * c).sum()), c, x)


def test_one_loop_back_for_carries_and_stacks():
  w, x, c = Tensor(values(0, (3, 3))), Tensor(values(1, (5, 3))), Tensor(values(2, (3,)))

  def loss(w, x, c):
    last, sums = recurrent(w, x, c)
    return last.square().sum() + (sums * Tensor.arange(5)).sum()

  found = grad(loss, (0, 1, 2))(w, x, c)
  assert len(loops_in(*found)) == 2
  for g, (y, at) in zip(found, ((w, (1, 2)), (x, (4, 0)), (c, (1,)))):
    step = np.zeros(y.shape)
    step[at] = 1e-6
    moved = [loss(*(Tensor(t.numpy() + sign * step) if t is y else t for t in (w, x, c))).item() for sign in (1, -1)]
    np.testing.assert_allclose(g.numpy()[at], (moved[0] - moved[1]) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize("by", [(0,), (1,), (2,), (0, 1, 2)])
def test_the_tangent_of_a_loop_is_a_loop(by):
  given = [Tensor(values(i, s)) for i, s in enumerate(((3, 3), (5, 3), (3,)))]
  along = [Tensor(values(7 + i, t.shape)) for i, t in enumerate(given)]

  def of(*some):
    each = iter(some)
    return recurrent(*(next(each) if i in by else t for i, t in enumerate(given)))

  primals, tangents = [given[i] for i in by], [along[i] for i in by]
  found = jvp(of, primals, tangents)[1]
  assert len(loops_in(*found)) == 2
  for k in range(2):
    ends = [of(*(p + sign * 1e-6 * t for p, t in zip(primals, tangents)))[k].numpy() for sign in (1, -1)]
    np.testing.assert_allclose(found[k].numpy(), (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_sources_that_are_one_tensor(length):
  """The first step reads one buffer where later ones read two, and may need other memory for what is between."""
  x, xs = (Tensor(np.random.default_rng(i).normal(size=n)).realize() for i, n in enumerate(((3,), (length, 3))))
  steps = {
    "carry, and outside": (lambda c, y: ((c * y).softmax() + (x * y).softmax() * x, None), x, xs),
    "two carries": (lambda c, y: ({"a": (c["a"] * y).softmax(), "b": c["a"] + c["b"]}, c["b"]), {"a": x, "b": x}, xs),
    "carry, and elements": (lambda c, y: (c + (y.exp() * c.softmax().sum()), c), xs, xs.reshape(length, 1, 3)),
  }
  for f, init, elements in steps.values():
    found = tree_leaves(scan(f, init, elements))
    carry, ys = init, []
    for i in range(length):
      carry, y = f(carry, elements[i])
      ys.append(y)
    wanted = [*tree_leaves(carry), *([] if y is None else [Tensor.stack(*ys)])]
    for got, want in zip(found, wanted, strict=True):
      np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12)


def test_the_tangent_of_a_loop_of_any_length_has_as_many_kernels():
  def kernels(n):
    x, c = Tensor(values(1, (n, 3))).realize(), Tensor(values(2, (3,))).realize()
    f = lambda x: scan(lambda c, x: ((c * x).sin(), c), c, x)[0]  # noqa: E731
    out, before = jvp(f, (x,), (x,))[1], GlobalCounters.kernel_count
    out.realize()
    return GlobalCounters.kernel_count - before

  assert kernels(9) - kernels(7) == kernels(7) - kernels(5)


@pytest.mark.parametrize("interpreted", [0, 1])
def test_a_carry_is_found_by_its_key_whatever_the_order_of_keys(interpreted):
  init = {"a": Tensor(1.0), "b": Tensor(10.0)}
  with Context(INTERPRET=interpreted):
    last, _ = scan(lambda c, x: ({"b": c["b"] + x, "a": c["a"] * 2}, None), init, Tensor([1.0, 2.0]))
    assert (last["a"].item(), last["b"].item()) == (4.0, 13.0)
    last = while_loop(lambda c: c["a"] < 4, lambda c: {"b": c["b"] + 1, "a": c["a"] * 2}, init)
    assert (last["a"].item(), last["b"].item()) == (4.0, 12.0)


@pytest.mark.parametrize("asked", ["ys", "c ys", "ys c"])
@pytest.mark.parametrize("step", [lambda c, x: (c + x, x * 2), lambda c, x: (c, x * 2)], ids=["changes", "stays"])
def test_what_was_assigned_to_a_carry_that_nothing_depends_on_happens(step, asked):
  """Mutant: it is taken for done, as if the loop had read it."""
  c, xs = Tensor([5.0]).realize(), Tensor([[1.0], [2.0]]).realize()
  c.assign(Tensor([6.0]))
  ys = scan(step, c, xs)[1]
  Tensor.realize(*({"c": c, "ys": ys}[name] for name in asked.split()))
  assert (c.tolist(), ys.tolist()) == ([6], [[2], [4]])
  c.assign(c + 1)
  ys = scan(step, c, xs)[1].realize()
  assert (c.tolist(), ys.tolist()) == ([7], [[2], [4]])


@pytest.mark.parametrize("first", [0, 1, 2])
def test_what_was_assigned_to_a_carry_of_a_loop_that_is_unrolled_happens(first):
  """Because somebody reads the content before it. Mutant: only what roots are is done, not what is below them."""
  c, xs = Tensor([5.0]).realize(), Tensor([[1.0], [2.0]]).realize()
  kept = c * 10
  c.assign(Tensor([6.0]))
  ys = scan(lambda c, x: (c + x, x * 2), c, xs)[1]
  Tensor.realize(*((ys,), (kept, ys), (c, ys, kept))[first])
  assert (c.tolist(), kept.tolist(), ys.tolist()) == ([6], [50], [[2], [4]])


def squared(x):
  f = custom_vjp(lambda x: x * x)
  f.defvjp(lambda x: (x * x, x), lambda x, g: (g * 2 * x,))
  return f(x)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
  "f",
  [squared, checkpoint(lambda x: x * x), lambda x: cond(x.sum() > 0, lambda x: x * x, lambda x: x * x, x)],
  ids=["custom_vjp", "checkpoint", "cond"],
)
def test_memory_that_a_step_reads_is_written_to_while_tensors_of_its_body_live(f, captured):
  """Mutant: what was made while a function was traced passes for a value, which is to be computed before the write."""
  w, held = Tensor([2.0]).realize(), []

  def step(x):
    def body(c, _):
      held.append(c * w)
      return f(c * w), None

    y = scan(body, x, None, 2)[0]
    w.assign(w + 1)
    return y

  run = TinyJit(step) if captured else step
  for k in range(2, 7):
    y = run(Tensor([1.0]).realize())
    Tensor.realize(w, y)
    assert (y.tolist(), w.tolist()) == ([k**6.0], [k + 1.0])
  with pytest.raises(ShardError, match="being traced"):
    held[0].numpy()


@pytest.mark.parametrize(
  "wrap", [checkpoint, lambda f: lambda x: cond(x.sum() > 0, f, f, x)], ids=["checkpoint", "cond"]
)
def test_what_a_function_reads_that_was_written_of_the_result_of_a_loop(wrap):
  """Mutant: only writes in the graph before the loop ran are taken for done, not those in copies of what it was of."""
  state, xs = Tensor([[1.0], [2.0]]).realize(), Tensor([[1.0], [2.0]]).realize()
  gc.disable()  # what a graph had of its own may live on
  try:
    for i in range(1, 5):
      state.assign(state + scan(lambda c, x: (c + x, c * x), xs[0], xs)[1])
      y = wrap(lambda x: x.maximum(state) * 1)(xs)
      assert (y.tolist(), state.tolist()) == ([[1.0 + i], [2.0 + 4 * i]],) * 2
  finally:
    gc.enable()


def test_a_rule_may_read_of_a_step_what_the_value_does_not():
  f = custom_vjp(lambda a, b: a * 2)
  f.defvjp(lambda a, b: (a * 2, b), lambda b, g: (g * 3, g * b))
  loss = lambda w, c, xs: scan(lambda k, x: (f(w, k * x), k), c, xs)[0]  # noqa: E731
  w, c, xs = Tensor(2.0), Tensor(5.0), Tensor([1.0, 7.0])
  # back from the last step, where b = 4 * 7: by w 3, by b 28; then from the first, where b = 5 * 1, with g = 28 * 7
  by_w, by_c, by_xs = grad(loss, (0, 1, 2))(w, c, xs)
  assert (by_w.item(), by_c.item(), by_xs.tolist()) == (3 + 3 * 196, 196 * 5, [196 * 5 * 5, 28 * 4])
  assert scan(lambda k, x: (k + loss(w * x, k, xs), k), c, Tensor([1.0, 2.0]))[0].item() == 5 + 4 + 8


@pytest.fixture
def circles_stay():
  """Nothing is freed that stands in a circle."""
  gc.disable()
  yield
  gc.enable()


def test_a_loop_that_is_unrolled_keeps_no_gradients_of_its_steps(circles_stay):
  """Their Tensors would be over what stands for memory in the key of the plan, and a capture looks for that memory."""
  start, xs = values(0, 3), values(1, (2, 3))
  w = Tensor(start).realize()
  before = w * 3
  w.assign(w + 1)
  last, each = scan(lambda c, y: (checkpoint(lambda c: c * y)(c), c), w, Tensor(xs).realize())
  Tensor.realize(before, last, each)
  step = TinyJit(lambda t: t * 2)
  for _ in range(3):
    assert step(Tensor(start).realize()).tolist() == (start * 2).tolist()
  first = (start + 1) * xs[0]
  np.testing.assert_allclose(before.numpy(), start * 3)
  np.testing.assert_allclose(each.numpy(), [start + 1, first])
  np.testing.assert_allclose(last.numpy(), first * xs[1])


@pytest.mark.parametrize("axis", [0, None])
@pytest.mark.parametrize("which", [0, 1])
def test_a_loop_of_constants_is_assigned_to_what_is_cut(axis, which):
  """It lives anywhere until it has run."""
  out = scan(lambda c, _: (c * 0.5, c), Tensor.ones(2), length=2)[which]
  x = Tensor(np.zeros(out.shape, np.float32)).shard(("CPU:0", "CPU:1"), axis).realize()
  x.assign(out)
  assert x.tolist() == [[0.25, 0.25], [[1, 1], [0.5, 0.5]]][which]


def test_a_loop_of_constants_within_one_on_several_devices():
  cut = Tensor(values(0, (4, 2))).shard(("CPU:0", "CPU:1"), 0).realize()
  inner = lambda x: scan(lambda c, _: (c * 0.5, c), x + 1, length=2)  # noqa: E731
  last, each = scan(lambda c, x: (c + inner(x)[0], inner(x)[1]), cut, Tensor.zeros(3))
  np.testing.assert_allclose(last.numpy(), values(0, (4, 2)) + 0.75, rtol=1e-6)
  assert each.tolist() == [[1, 0.5]] * 3
