"""`checkpoint`: the values and derivatives of the function itself; memory as the schedule's plan has it; what is
computed again, and no more."""

import numpy as np
import pytest

from tinygrad import (
  Mesh,
  P,
  Tensor,
  TinyJit,
  checkpoint,
  checkpoint_policies,
  dtypes,
  grad,
  hessian,
  jvp,
  nn,
  scan,
  shard_map,
  vmap,
)
from tinygrad.engine.compile import plan_of
from tinygrad.helpers import Context
from tinygrad.schedule import schedule as scheduling
from tinygrad.uop import Ops, UOp
from tinygrad.uop.node import stored

rng = np.random.default_rng(0)
LAYERS, ROWS, WIDTH = 12, 64, 64
DEVICES = ("CPU:0", "CPU:1")
POLICIES = {
  "nothing": checkpoint_policies.nothing_saveable,
  "everything": checkpoint_policies.everything_saveable,
  "dots": checkpoint_policies.dots_saveable,
  "ops": checkpoint_policies.save_only(Ops.EXP, Ops.REDUCE),
  "small": checkpoint_policies.save_smaller_than(4 * ROWS * WIDTH + 1),
  "offload": checkpoint_policies.offload_dots(),
}


def block(h, a, b):
  return h + (h @ a).gelu() @ b


@pytest.fixture(scope="module")
def model():
  Tensor.manual_seed(0)
  weights = [
    [(Tensor.randn(*s) * 0.05).realize() for s in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))] for _ in range(LAYERS)
  ]
  return Tensor.randn(ROWS, WIDTH).realize(), weights


def gradients(f, model, layers=LAYERS):
  x, weights = model
  h = x
  for a, b in weights[:layers]:
    h = f(h, a, b)
  loss = h.square().mean()
  return [loss, *loss.gradient(*[w for pair in weights[:layers] for w in pair])]


def plan(outs):
  sink = UOp.sink(*[stored(t.uop, t.device) for t in outs])
  return plan_of(sink)[0]


def nbytes(outs):
  """Of all intermediate values, as they share memory, on the processor."""
  return sum(t.nbytes for t in plan(outs).temps if t.device != "NPY")


def close(got, want, tol=1e-5):
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tol, atol=tol)


@pytest.mark.parametrize("name", POLICIES)
def test_values_and_gradients_are_those_of_the_function(name, model):
  close(gradients(checkpoint(block, POLICIES[name]), model), gradients(block, model))


def test_memory_is_that_of_one_layer_and_an_activation_for_each(model):
  """Of a layer the plain step keeps what it multiplies: the input, what is in front of the gelu and behind it."""
  activation, hidden = 4 * ROWS * WIDTH, 4 * ROWS * 4 * WIDTH
  plain, less, some = (
    nbytes(gradients(f, model)) for f in (block, checkpoint(block), checkpoint(block, POLICIES["dots"]))
  )
  inside = 3 * hidden + 2 * activation  # of the layer that is differentiated
  assert plain >= LAYERS * (activation + hidden)
  assert less <= LAYERS * activation + inside
  assert LAYERS * hidden <= some <= LAYERS * (activation + hidden) + inside
  assert less < 0.3 * plain < some < 0.7 * plain


def test_each_layer_more_takes_an_activation_more(model):
  sizes = [nbytes(gradients(checkpoint(block), model, n)) for n in (4, 8, 12)]
  assert sizes[2] - sizes[1] == sizes[1] - sizes[0] == 4 * (4 * ROWS * WIDTH)


def test_the_waiting_is_what_saves_memory(model, fresh):
  waiting = nbytes(gradients(checkpoint(block), model))
  fresh.setattr(UOp, "wait", lambda u, *others: u.contiguous())  # computed again, but whenever it can be
  assert nbytes(gradients(checkpoint(block), model)) > 2 * waiting


def test_the_order_of_a_plan_leaves_no_gradient_for_later(model, fresh):
  fresh.setattr(scheduling.Order, "takes", lambda self, i, users: 1)
  late = nbytes(gradients(checkpoint(block), model))
  fresh.undo()
  assert late > 1.5 * nbytes(gradients(checkpoint(block), model, LAYERS - 1))


def test_what_is_computed_again_is_the_forward_pass_and_no_more(model):
  def operations(f):
    with Context(TILE_AND_FUSE=0):
      made = plan(gradients(f, model))
    return sum(p.ops for p in made.programs), len(made.items)

  plain, less, kept = (operations(f) for f in (block, checkpoint(block), checkpoint(block, POLICIES["everything"])))
  first = 2 * ROWS * WIDTH * 4 * WIDTH  # of a layer's products the second is not needed again
  assert plain[0] + LAYERS * first <= less[0] <= plain[0] + 1.2 * LAYERS * first
  assert kept[1] <= plain[1] and kept[0] <= plain[0]


def test_offloading_takes_the_products_off_the_device(model):
  away, here = (nbytes(gradients(checkpoint(block, POLICIES[name]), model)) for name in ("offload", "dots"))
  assert away < 0.6 * here


def test_dropout_drops_the_same():
  w, x = (Tensor.rand(32, 32) - 0.5).realize(), Tensor.rand(8, 32).realize()
  with Tensor.train():
    f = lambda h: (h @ w).tanh().dropout(0.5) @ w  # noqa: E731
    Tensor.manual_seed(5)
    want = f(x).square().sum().gradient(w)[0].numpy()
    Tensor.manual_seed(5)
    np.testing.assert_allclose(checkpoint(f)(x).square().sum().gradient(w)[0].numpy(), want, rtol=1e-5)
    step = TinyJit(
      lambda t: Tensor.stack(*(lambda y: [y, y.sum().gradient(t)[0]])(checkpoint(lambda h: h.dropout(0.5))(t)))
    )
    ones = Tensor.ones(64).contiguous().realize()
    seen = [step(ones).numpy() for _ in range(4)]
  for y, g in seen:
    np.testing.assert_array_equal(y, g)  # of ones the value is the mask, and so is the gradient
  assert len({y.tobytes() for y, _ in seen[2:]}) == 2


def test_several_results_share_what_is_computed_again():
  w, x = Tensor.rand(16, 16).realize(), Tensor.rand(8, 16).realize()

  def f(h):
    y = (h @ w).tanh()
    return {"y": y @ w, "sum": y.exp().sum()}

  def loss(out):
    return out["y"].square().sum() + out["sum"]

  close(loss(checkpoint(f)(x)).gradient(w, x), loss(f(x)).gradient(w, x), 1e-4)
  again = [t for t in loss(checkpoint(f)(x)).gradient(w)[0].uop.toposort() if t.op is Ops.TANH]
  assert len(again) == 2  # the forward's, and one


@pytest.mark.parametrize("devices", ["CPU", ("CPU", "CPU:1")])
def test_a_constant_waits_for_no_gradient_that_comes_from_the_host(devices):
  """A number has no device, the gradient for which it would wait has."""
  x = Tensor(0.5)
  y = checkpoint(lambda x: x.sin())(x).reshape(1)
  (g,) = y.gradient(x, gradient=Tensor(np.full(1, 2, np.float32)).shard(devices))
  np.testing.assert_allclose(g.numpy(), 2 * np.cos(0.5), rtol=1e-6)


def test_constants_of_a_rule_wait_for_no_gradient_once_their_moves_are_dropped():
  """The hooks bring them to the devices, and the decision for all consumers leaves them anywhere."""
  x = Tensor([[1.0, 0.5], [2.0, -1.0]]).shard(("CPU", "CPU:1"), 0).realize()
  loss = x.cross_entropy(Tensor(np.array([0, 1], np.int32)).shard(("CPU", "CPU:1")))
  got, want = (grad(f)(loss).numpy() for f in (lambda y: checkpoint(Tensor.abs)(y).sin(), lambda y: y.abs().sin()))
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_constant_that_waits_for_a_gradient_lives_anywhere():
  """Where the gradient is differentiated, too, it is built anew on what has a device."""
  x = Tensor([1.0, 2.0, 0.5])
  number = UOp.const(dtypes.int32, 1)
  assert UOp.build(Ops.WAIT, number.dtype, (number, x.uop)).device is None
  kept = checkpoint(lambda y: y.cumsum().sin().sum(), checkpoint_policies.everything_saveable)
  want = hessian(lambda y: y.cumsum().sin().sum())(x).numpy()
  np.testing.assert_allclose(hessian(kept)(x).numpy(), want, rtol=1e-6)


def test_in_compositions():
  x = Tensor(rng.normal(size=(4, 3)), dtype="float64")
  w = Tensor(rng.normal(size=(3, 3)), dtype="float64")
  plain = lambda r, v: ((r @ v).tanh() @ v).square().sum()  # noqa: E731
  f = checkpoint(plain)
  close([grad(f)(x[0], w)], [grad(plain)(x[0], w)], 1e-9)
  second = lambda h: grad(lambda r: grad(h)(r, w).square().sum())(x[0])  # noqa: E731
  close([second(f)], [second(plain)], 1e-8)
  third = lambda h: grad(lambda r: grad(lambda s: grad(h)(s, w).square().sum())(r).square().sum())(x[0])  # noqa: E731
  close([third(f)], [third(plain)], 1e-7)
  close([vmap(grad(f, 1), (0, None))(x, w)], [vmap(grad(plain, 1), (0, None))(x, w)], 1e-9)
  total = lambda h: grad(lambda v: vmap(h, (0, None))(x, v).sum())(w)  # noqa: E731
  close([total(f)], [total(plain)], 1e-9)
  close([total(lambda r, v: checkpoint(f)(r, v))], [total(plain)], 1e-9)
  scanned = lambda h: grad(lambda v: scan(lambda c, r: (c + h(r, v), None), Tensor(0.0, dtype="float64"), x)[0])(w)  # noqa: E731
  close([scanned(f)], [scanned(plain)], 1e-9)
  mesh = Mesh(DEVICES, names=("dp",))
  part = lambda h: shard_map(lambda a, v: vmap(h, (0, None))(a, v), mesh, (P("dp"), P()), P("dp"))  # noqa: E731
  close([grad(lambda v: part(f)(x, v).sum())(w)], [total(plain)], 1e-9)
  jitted = TinyJit(grad(f, argnums=1))
  for _ in range(3):
    close([jitted(x[0].contiguous().realize(), w.realize())], [grad(plain, 1)(x[0], w)], 1e-9)


@pytest.mark.parametrize("inner", [checkpoint, lambda f: f])
def test_derivatives_of_derivatives_of_one_in_another(inner):
  """Each gradient that arrives has what is computed again for it alone: an earlier one may be of another derivative."""
  f = checkpoint(inner(lambda t: t.sin() * t))
  x = Tensor(rng.normal(size=3))
  first = lambda f: grad(lambda t: (f(t) * t).sum())  # noqa: E731
  second = lambda f: grad(lambda t: first(f)(t).square().sum())  # noqa: E731
  plain = lambda t: t.sin() * t  # noqa: E731
  close([first(f)(x), second(f)(x)], [first(plain)(x), second(plain)(x)])
  close([grad(lambda t: second(f)(t).sum())(x)], [grad(lambda t: second(plain)(t).sum())(x)])


def test_tangents_pass_like_through_the_function():
  x = Tensor(rng.normal(size=3), dtype="float64")
  f = lambda t: (t.sin() * t).sum()  # noqa: E731
  close(jvp(checkpoint(f), (x,), (x,)), jvp(f, (x,), (x,)))


@pytest.mark.parametrize("cut", [0, 1, None])
def test_on_several_devices(cut, model):
  x, weights = model
  placed = x.shard(DEVICES, cut), [[a.shard(DEVICES, 1), b.shard(DEVICES, 0)] for a, b in weights[:3]]
  close(gradients(checkpoint(block), placed, 3), gradients(block, model, 3), 1e-4)


def test_modules():
  class Layer:
    def __init__(self):
      self.inner, self.norm = nn.Linear(8, 8), nn.RMSNorm(8)

    def __call__(self, x):
      return x + self.inner(self.norm(x)).gelu()

  layer, x = Layer(), Tensor.rand(4, 8)
  want = layer(x).square().sum().gradient(layer.inner.weight, x)
  close(checkpoint(layer)(x).square().sum().gradient(layer.inner.weight, x), want)
  g = grad(lambda m, t: checkpoint(lambda n, u: n(u))(m, t).square().sum())(layer, x)
  close([g.inner.weight], want[:1])


def test_rows_of_a_cut_table_by_themselves():
  """One device has a row, so that products of rows of one lookup owe a sum; of rows that stand for them nobody knows
  that they are of one lookup."""
  table, index = rng.normal(size=(8, 3)), np.array([6, 1, 3])
  rows = Tensor(table).shard(DEVICES, 0)[Tensor(index).shard(DEVICES)]
  loss = lambda t: ((t * 2) * (t * 3)).square().sum()  # noqa: E731
  for f in (loss, checkpoint(loss), lambda t: checkpoint(lambda v: (v * 2) * (v * 3))(t).square().sum()):
    close([grad(f)(rows)], [Tensor(4 * 36 * table[index] ** 3)])


def test_what_is_waited_for_is_named_as_the_schedule_names_memory(model):
  """Each was written by an item before, under the number that it has in the plan."""
  items = plan(gradients(checkpoint(block), model)).items
  waits = [(i, slot) for i, item in enumerate(items) for slot in item.after]
  assert waits
  for i, slot in waits:
    assert any(slot in x.slots[: x.writes] for x in items[:i])
