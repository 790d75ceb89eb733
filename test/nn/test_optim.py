"""Optimizers against their papers' formulas in numpy, on one device and on several."""

import numpy as np
import pytest

from tinygrad import Sharding, Tensor, TinyJit, nn
from tinygrad.engine import compile
from tinygrad.nn.optim import LAMB, LARS, SGD, Adam, AdamW, Muon, OptimizerGroup
from tinygrad.nn.utils import clip_grad_norm_

D2 = ("CPU:0", "CPU:1")
W, B = np.array([1.0, 2.0, -3.0]), np.array([[0.5, -0.25], [2.0, 1.0]])


def gradients(w, b):
  """Of sum(w²) + sum(b³) + sum(w)*sum(b)."""
  return 2 * w + b.sum(), 3 * b**2 + w.sum()


def loss_of(w, b):
  return (w * w).sum() + (b * b * b).sum() + w.sum() * b.sum()


def sgd(p, g, s, t, lr=0.01, momentum=0.0, wd=0.0, nesterov=False, classic=False):
  g = (g + wd * p) * (lr if classic else 1)
  s["b"] = momentum * s.get("b", 0) + g
  g = g + momentum * s["b"] if nesterov else s["b"]
  return p - (g if classic else lr * g)


def adam(p, g, s, t, lr=0.01, b1=0.9, b2=0.999, eps=1e-8, wd=0.0, lamb=False):
  s["m"], s["v"] = b1 * s.get("m", 0) + (1 - b1) * g, b2 * s.get("v", 0) + (1 - b2) * g * g
  update = s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + eps) + wd * p
  return p - lr * update * (np.linalg.norm(p) / np.linalg.norm(update) if lamb else 1)


def lars(p, g, s, t, lr=0.01, momentum=0.9, wd=1e-4, tcoef=0.001):
  rate = lr * tcoef * np.linalg.norm(p) / (np.linalg.norm(g) + wd * np.linalg.norm(p))
  s["b"] = momentum * s.get("b", 0) + rate * (g + wd * p)
  return p - s["b"]


def muon(p, g, s, t, lr=0.01, momentum=0.95, wd=0.1):
  s["b"] = momentum * s.get("b", 0) + g
  m = (g + momentum * s["b"]).reshape(len(g), -1)
  tall = m.shape[0] > m.shape[1]
  m = (m.T if tall else m) / (np.linalg.norm(m) + 1e-7)
  for _ in range(5):
    a = m @ m.T
    m = 3.4445 * m + (-4.775 * a + 2.0315 * a @ a) @ m
  return p - lr * (m.T if tall else m).reshape(p.shape) - lr * wd * p


def nesterov(*a):
  return sgd(*a, momentum=0.9, wd=0.1, nesterov=True)


CASES = {
  "sgd": (lambda p: SGD(p, 0.01), sgd),
  "momentum": (lambda p: SGD(p, 0.01, momentum=0.9), lambda *a: sgd(*a, momentum=0.9)),
  "nesterov": (lambda p: SGD(p, 0.01, 0.9, 0.1, nesterov=True), nesterov),
  "classic": (lambda p: SGD(p, 0.01, 0.9, classic=True), lambda *a: sgd(*a, momentum=0.9, classic=True)),
  "adam": (lambda p: Adam(p, 0.01), adam),
  "adamw": (lambda p: AdamW(p, 0.01, weight_decay=0.1), lambda *a: adam(*a, wd=0.1)),
  "lamb": (lambda p: LAMB(p, 0.01, weight_decay=0.1), lambda *a: adam(*a, wd=0.1, eps=1e-6, lamb=True)),
  "lars": (lambda p: LARS(p, 0.01), lars),
  "muon": (lambda p: Muon(p, 0.01), muon),
}  # fmt: skip


@pytest.mark.parametrize("devices", [None, D2], ids=["one", "two"])
@pytest.mark.parametrize("dtype, rough", [("float32", 2e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("name", CASES)
def test_three_steps(name, dtype, rough, devices):
  make, rule = CASES[name]
  w, b = Tensor(W.astype(dtype)), Tensor(B.astype(dtype))
  if devices:
    w.shard_(devices, 0), b.shard_(devices, None)
  opt = make([w, b])
  want, state = [W, B], [{}, {}]
  with Tensor.train():
    for t in range(1, 4):
      opt.zero_grad()
      loss_of(w, b).backward()
      opt.step()
      want = [rule(p, g, s, t) for p, g, s in zip(want, gradients(*want), state)]
  for got, x in zip((w, b), want):
    np.testing.assert_allclose(got.numpy(), x, rtol=rough, atol=rough)
  assert {x.dtype.name for x in nn.state.get_state_dict(opt).values()} == {w.dtype.name}
  if devices:
    assert w.device is Sharding(D2, 0) and b.device is Sharding(D2)


@pytest.mark.parametrize("kept", [False, True])
def test_gradients_are_forgotten_or_zeros(kept):
  w, b, unused = Tensor(W), Tensor(B), Tensor([1.0])
  opt = nn.optim.SGD([w, b, unused])
  loss_of(w, b).backward()
  opt.zero_grad(set_to_none=not kept)
  assert unused.grad is None and (w.grad is not None) == kept
  if kept:
    assert not w.grad.numpy().any() and b.grad.shape == b.shape
    loss_of(w, b).backward()
    np.testing.assert_allclose(w.grad.numpy(), gradients(W, B)[0], rtol=1e-5)


STAGES = ("CPU", "CPU:1", Sharding(("CPU:2", "CPU:3"), 0), Sharding(("CPU:2", "CPU:3")))


def stages(places):
  """Weights of a network whose parts live at `places`."""
  shapes = ((3, 4), (4, 6), (6, 4), (4, 2))
  values = [np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)]
  return [Tensor(v).to(where).realize() for v, where in zip(values, places)]


def forward(weights, x):
  for w in weights:
    x = (x.to(w.device.with_dims(()) if isinstance(w.device, Sharding) else w.device) @ w).tanh()
  return x


def trained(make, places, jit=False, clip=None, steps=4):
  """The weights after some steps, the rate halved before each."""
  weights = stages(places)
  opt, x = make(weights), Tensor(np.random.default_rng(9).standard_normal((5, 3)).astype(np.float32)).realize()

  def step():
    opt.zero_grad()
    forward(weights, x).square().mean().backward()
    if clip:
      clip_grad_norm_(weights, clip)
    opt.step()

  run = TinyJit(step) if jit else step
  with Tensor.train():
    for t in range(steps):
      opt.lr = 0.1 / 2**t
      run()
  assert [w.device for w in weights] == list(places)
  return [w.numpy() for w in weights]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 1, 0, 3)], ids=["one_first", "several_first"])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", CASES)
def test_parameters_on_several_device_sets(name, jit, order):
  make, _ = CASES[name]
  places = [STAGES[i] for i in order]
  want, start = trained(make, ["CPU"] * 4), [w.numpy() for w in stages(["CPU"] * 4)]
  for got, x, before in zip(trained(make, places, jit), want, start):
    np.testing.assert_allclose(got, x, rtol=2e-5, atol=2e-5)
    assert np.abs(x - before).max() > 1e-4


def test_clipping_over_several_device_sets():
  want, free = trained(CASES["sgd"][0], ["CPU"] * 4, clip=0.01), trained(CASES["sgd"][0], ["CPU"] * 4)
  for jit in (False, True):
    for got, x in zip(trained(CASES["sgd"][0], STAGES, jit, clip=0.01), want):
      np.testing.assert_allclose(got, x, rtol=2e-5, atol=2e-6)
  assert max(np.abs(x - y).max() for x, y in zip(want, free)) > 1e-3


def test_the_rate_is_set():
  w, b = Tensor([0.0]), Tensor([0.0]).to("CPU:1")
  opt, other = SGD([w, b], 1.0), SGD([Tensor([0.0])], 1.0)
  memory = opt.lr
  for rate, want in ((0.5, 0.5), (Tensor([0.25]), 0.25), (2, 2.0)):
    opt.lr = rate
    assert opt.lr is memory and opt.lr.item() == want and opt.lr.shape == (1,)
  group = OptimizerGroup(opt, other)
  group.lr = 0.125
  assert (group.lr.item(), opt.lr.item(), other.lr.item()) == (0.125, 0.125, 0.125)
  assert "lr" in nn.state.get_state_dict(opt)


def test_state_lives_beside_its_parameter():
  w = Tensor.ones(4, 2).shard(D2, 0)
  opt = Adam([w])
  with Tensor.train():
    w.square().sum().backward()
    opt.step()
  assert opt.m[0].device is Sharding(D2, 0) and opt.v[0].device is Sharding(D2, 0)
  assert opt.lr.device is Sharding(D2)


@pytest.mark.parametrize("make", [lambda p: SGD(p, 0.1, 0.9, device="CPU:1"), lambda p: Adam(p, 0.1, device="CPU:1")])
def test_state_on_a_device_of_its_own(make):
  w, alone = Tensor([1.0, 2.0]), Tensor([1.0, 2.0])
  opt, plain = make([w]), (SGD([alone], 0.1, 0.9) if isinstance(make([w]), LARS) else Adam([alone], 0.1))
  with Tensor.train():
    for _ in range(3):
      for o, x in ((opt, w), (plain, alone)):
        o.zero_grad()
        x.square().sum().backward()
        o.step()
  state = opt.b if isinstance(opt, LARS) else opt.m
  assert state[0].device == "CPU:1" and opt.lr.device == "CPU:1" and w.device == "CPU"
  np.testing.assert_allclose(w.numpy(), alone.numpy(), rtol=1e-6)


def test_the_rate_can_be_changed_in_a_captured_step():
  w = Tensor([0.0]).clone().realize()
  opt = SGD([w], lr=1.0)

  @TinyJit
  def step() -> Tensor:
    opt.zero_grad()
    (w * -1).sum().backward()
    opt.step()
    return w.realize()

  seen = []
  with Tensor.train():
    for rate in (1.0, 2.0, 3.0, 4.0):
      opt.lr.assign(Tensor([rate])).realize()
      seen.append(step().item())
  assert seen == [1.0, 3.0, 6.0, 10.0]


def test_only_parameters_that_take_a_gradient():
  frozen, free = Tensor([1.0], requires_grad=False), Tensor([1.0])
  opt = SGD([frozen, free, free], 0.5)
  assert opt.params == [free] or (len(opt.params) == 1 and opt.params[0] is free)
  with Tensor.train():
    (frozen * free).sum().backward()
    opt.step()
  assert (frozen.item(), free.item()) == (1.0, 0.5)


def test_parameters_of_half_keep_their_type():
  w = Tensor([1.0, 2.0], dtype="half")
  opt = AdamW([w], 0.1)
  with Tensor.train():
    w.square().sum().backward()
    opt.step()
  assert w.dtype.name == "float16" and opt.m[0].dtype.name == "float32"
  np.testing.assert_allclose(w.numpy(), [0.899, 1.898], atol=2e-3)


def test_a_group_steps_together():
  w, b = Tensor([1.0]), Tensor([1.0])
  group = OptimizerGroup(SGD([w], 0.5), SGD([b], 0.25))
  with Tensor.train():
    group.zero_grad()
    (w + b).sum().backward()
    group.step()
  assert (w.item(), b.item(), group[1].params[0].item()) == (0.5, 0.75, 0.75)


def test_clipping_by_the_norm_of_all():
  x, y = Tensor([3.0, 0.0]), Tensor([4.0])
  ((x * x).sum() + (y * y).sum()).backward()
  norm = clip_grad_norm_([x, y], 1.0)
  assert norm.item() == pytest.approx(10.0)
  np.testing.assert_allclose([*x.grad.tolist(), *y.grad.tolist()], [0.6, 0.0, 0.8], rtol=1e-5)
  assert clip_grad_norm_([x, y], 5.0).item() == pytest.approx(1.0, rel=1e-5)
  np.testing.assert_allclose(y.grad.tolist(), [0.8], rtol=1e-5)
  with pytest.raises(ValueError, match="no parameter has a gradient"):
    clip_grad_norm_([Tensor([1.0])], 1.0)


def test_errors():
  w = Tensor([1.0])
  opt = SGD([w])
  with pytest.raises(RuntimeError, match="Tensor.train"):
    opt.step()
  with Tensor.train(), pytest.raises(RuntimeError, match="has no gradient"):
    opt.step()
  with pytest.raises(ValueError, match="at least one parameter"):
    SGD([])


NAN = float("nan")
OUT_OF_RANGE = [
  (lambda w: SGD(w, -1.0), "SGD: lr=-1.0"),
  (lambda w: SGD(w, NAN), "SGD: lr=nan"),
  (lambda w: SGD(w, "fast"), "SGD: lr='fast'"),
  (lambda w: SGD(w, None), "SGD: lr=None"),
  (lambda w: SGD(w, [0.5, 0.25]), "SGD: lr="),
  (lambda w: SGD(w, momentum=-0.5), "SGD: momentum=-0.5"),
  (lambda w: SGD(w, weight_decay=-1), "SGD: weight_decay=-1"),
  (lambda w: LARS(w, tcoef=-1), "LARS: tcoef=-1"),
  (lambda w: Muon(w, ns_steps=-1), "Muon: ns_steps=-1"),
  (lambda w: Adam(w, b1=1.0), r"Adam: b1=1.0 .*\[0, 1\)"),
  (lambda w: Adam(w, b2=1.5), "Adam: b2=1.5"),
  (lambda w: AdamW(w, b1=-0.1), "AdamW: b1=-0.1"),
  (lambda w: Adam(w, eps=-1e-8), "Adam: eps=-1e-08"),
  (lambda w: AdamW(w, weight_decay=-0.01), "AdamW: weight_decay=-0.01"),
  (lambda w: LAMB(w, weight_decay=NAN), "LAMB: weight_decay=nan"),
]


@pytest.mark.parametrize(("make", "message"), OUT_OF_RANGE, ids=[m for _, m in OUT_OF_RANGE])
def test_numbers_out_of_range_are_told_where_they_are_given(make, message):
  """They trained upwards, or to nan, without a word."""
  with pytest.raises((ValueError, TypeError), match=f"(?s){message}.*fix: "):
    make([Tensor([1.0])])


def test_a_rate_that_is_none_is_told_where_it_is_set():
  opt = SGD([Tensor([1.0])], Tensor(0.5))
  for rate in (-1.0, NAN, "fast"):
    with pytest.raises(ValueError, match=f"(?s)SGD: lr={rate!r}.*fix: "):
      opt.lr = rate
  assert opt.lr.tolist() == [0.5]
  opt.lr = 0
  assert opt.lr.tolist() == [0.0]
  with pytest.raises(ValueError, match="(?s)OptimizerGroup.*fix: "):
    OptimizerGroup()


def test_training_a_layer_lowers_the_loss():
  Tensor.manual_seed(0)
  model = nn.Linear(4, 2)
  x = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
  y = (x @ np.array([1.0, -1.0, 2.0, 0.5]) > 0).astype(np.int32)
  opt = Adam(nn.state.get_parameters(model), 0.05)

  @TinyJit
  def step(a: Tensor, b: Tensor) -> Tensor:
    opt.zero_grad()
    loss = model(a).sparse_categorical_crossentropy(b)
    loss.backward()
    opt.step()
    return loss.realize()

  with Tensor.train():
    losses = [step(Tensor(x).realize(), Tensor(y).realize()).item() for _ in range(40)]
  assert losses[-1] < 0.35 * losses[0]


class Adagrad(nn.optim.Optimizer):
  """A rule of a user's own."""

  def __init__(self, params, lr):
    super().__init__(params, lr)
    self.s = self._new_optim_param()

  def _step(self, params, grads):
    for s, g in zip(self.s, grads):
      s.assign(s + g * g)
    return [self.lr * g / (s.sqrt() + 1e-10) for g, s in zip(grads, self.s)], self.s


def test_a_rule_of_ones_own_is_a_step():
  torch = pytest.importorskip("torch", reason="PyTorch is not installed")
  start = [1.0, -2.0, 3.0]
  w, theirs = Tensor(start).realize(), torch.tensor(start, requires_grad=True)
  optimizer, oracle = Adagrad([w], 0.1), torch.optim.Adagrad([theirs], 0.1)

  @TinyJit
  def step():
    optimizer.zero_grad()
    (w**3).sum().backward()
    optimizer.step()

  with Tensor.train():
    for _ in range(5):
      step()
      oracle.zero_grad()
      (theirs**3).sum().backward()
      oracle.step()
  np.testing.assert_allclose(w.numpy(), theirs.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("where", ["CPU", D2])
def test_the_second_step_is_the_program_of_the_first(monkeypatch, group, where):
  """What the first finds in no memory, drawn weights and zeros, comes there before: within it, it would be another
  program, and all of it would be planned and compiled twice."""
  layer, planned, make = nn.Linear(4, 3), [], compile.make_plan
  for p in (layer.weight, layer.bias):
    p.shard_(where) if where is D2 else p.to_(where)
  optimizer = Adam([layer.weight, layer.bias], 0.1)
  if group:
    optimizer = OptimizerGroup(Adam([layer.weight], 0.1), SGD([layer.bias], 0.1, momentum=0.9))
  monkeypatch.setattr(compile, "make_plan", lambda sink, first=-1: planned.append(sink) or make(sink, first))
  for i in range(2):
    x = Tensor.full((8, 4), i + 1.0, device="CPU").contiguous()
    x = (x.shard(where, axis=0) if where is D2 else x).realize()
    planned.clear()
    with Tensor.train():
      optimizer.zero_grad()
      layer(x).square().mean().backward()
      optimizer.step()
    assert bool(planned) is (i == 0)
