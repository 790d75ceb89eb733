"""Optimizers against their papers' formulas in numpy, on one device and on several."""

import numpy as np
import pytest

from tinygrad import Sharding, Tensor, TinyJit, nn
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
@pytest.mark.parametrize("name", CASES)
def test_three_steps(name, devices):
  make, rule = CASES[name]
  w, b = Tensor(W.astype(np.float32)), Tensor(B.astype(np.float32))
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
    np.testing.assert_allclose(got.numpy(), x, rtol=2e-5, atol=2e-5)
  if devices:
    assert w.device is Sharding(D2, 0) and b.device is Sharding(D2)


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
  opt, plain = make([w]), (SGD([alone], 0.1, 0.9) if make([w]).__class__ is LARS else Adam([alone], 0.1))
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
