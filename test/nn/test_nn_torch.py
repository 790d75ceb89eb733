"""Layers and optimizers against PyTorch, values and gradients (the extra [oracle]).

What they compute is checked without PyTorch in test_nn.py and test_optim.py.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [oracle] is not installed")

from tinygrad import Tensor, dtypes, nn  # noqa: E402
from tinygrad.nn.state import get_state_dict, load_state_dict, torch_load  # noqa: E402


def normal(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# name -> (ours, PyTorch's, the input's shape)
LAYERS = {
  "linear": (lambda: nn.Linear(3, 4), lambda: torch.nn.Linear(3, 4), (5, 3)),
  "linear_3d": (lambda: nn.Linear(3, 4, bias=False), lambda: torch.nn.Linear(3, 4, bias=False), (2, 5, 3)),
  "conv1d": (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), lambda: torch.nn.Conv1d(2, 4, 3, 2, 1), (2, 2, 7)),
  "conv1d_same": (
    lambda: nn.Conv1d(2, 4, 4, padding="same", dilation=2),
    lambda: torch.nn.Conv1d(2, 4, 4, padding="same", dilation=2),
    (2, 2, 7),
  ),
  "conv2d": (
    lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2),
    lambda: torch.nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2),
    (2, 4, 7, 6),
  ),
  "conv2d_one": (lambda: nn.Conv2d(1, 1, 1), lambda: torch.nn.Conv2d(1, 1, 1), (1, 1, 1, 1)),
  "conv3d": (lambda: nn.Conv2d(2, 3, (2, 3, 2)), lambda: torch.nn.Conv3d(2, 3, (2, 3, 2)), (1, 2, 4, 5, 3)),
  "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), lambda: torch.nn.Conv2d(4, 8, 3, groups=4), (1, 4, 5, 5)),
  "conv_transpose1d": (
    lambda: nn.ConvTranspose1d(4, 2, 3, 2, 1, 1),
    lambda: torch.nn.ConvTranspose1d(4, 2, 3, 2, 1, 1),
    (2, 4, 5),
  ),
  "conv_transpose2d": (
    lambda: nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), 1, (1, 2), 1, 2),
    lambda: torch.nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), 1, (1, 2), 2),
    (1, 4, 4, 5),
  ),
  "conv_transpose2d_dilated": (
    lambda: nn.ConvTranspose2d(2, 3, 3, dilation=2, bias=False),
    lambda: torch.nn.ConvTranspose2d(2, 3, 3, dilation=2, bias=False),
    (1, 2, 4, 3),
  ),
  "layer_norm": (lambda: nn.LayerNorm(6, 1e-3), lambda: torch.nn.LayerNorm(6, 1e-3), (2, 3, 6)),
  "layer_norm_2": (lambda: nn.LayerNorm((3, 6)), lambda: torch.nn.LayerNorm((3, 6)), (2, 3, 6)),
  "layer_norm_plain": (
    lambda: nn.LayerNorm(6, elementwise_affine=False),
    lambda: torch.nn.LayerNorm(6, elementwise_affine=False),
    (2, 3, 6),
  ),
  "rms_norm": (lambda: nn.RMSNorm(6), lambda: torch.nn.RMSNorm(6, 1e-6), (2, 3, 6)),
  "group_norm": (lambda: nn.GroupNorm(2, 6), lambda: torch.nn.GroupNorm(2, 6), (2, 6, 4)),
  "group_norm_plain": (
    lambda: nn.GroupNorm(3, 6, 1e-2, False),
    lambda: torch.nn.GroupNorm(3, 6, 1e-2, False),
    (2, 6, 3, 2),
  ),
  "instance_norm": (lambda: nn.InstanceNorm(3), lambda: torch.nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 5)),
  "batch_norm_1d": (lambda: nn.BatchNorm(3), lambda: torch.nn.BatchNorm1d(3), (5, 3, 4)),
  "batch_norm_2d": (
    lambda: nn.BatchNorm2d(3, 1e-3, momentum=0.3),
    lambda: torch.nn.BatchNorm2d(3, 1e-3, 0.3),
    (5, 3, 4, 2),
  ),
  "batch_norm_3d": (
    lambda: nn.BatchNorm3d(3, affine=False),
    lambda: torch.nn.BatchNorm3d(3, affine=False),
    (2, 3, 2, 2, 2),
  ),
  "batch_norm_untracked": (
    lambda: nn.BatchNorm(3, track_running_stats=False),
    lambda: torch.nn.BatchNorm1d(3, track_running_stats=False),
    (5, 3, 4),
  ),
}  # fmt: skip


def share(ours, theirs):
  """PyTorch's layer gets random weights, and ours its state dict: so the names agree too."""
  with torch.no_grad():
    for i, p in enumerate(theirs.parameters()):
      p.copy_(torch.from_numpy(normal(i + 10, *p.shape)))
  state = {k: Tensor(v.numpy().copy()) for k, v in theirs.state_dict().items()}
  load_state_dict(ours, state, verbose=False, strict=False)
  assert set(get_state_dict(ours)) - {"num_batches_tracked"} == set(state) - {"num_batches_tracked"}


def close(got, want, tol=2e-5):
  np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=tol, atol=tol)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name, training):
  make, make_theirs, shape = LAYERS[name]
  ours, theirs = make(), make_theirs().train(training)
  share(ours, theirs)
  a = normal(1, *shape) * 2 + 1
  x, y = Tensor(a), torch.tensor(a, requires_grad=True)
  with Tensor.train(training):
    got, want = ours(x), theirs(y)
    close(got, want)
    weights = normal(2, *got.shape)
    (got * Tensor(weights)).sum().backward()
  (want * torch.tensor(weights)).sum().backward()
  close(x.grad, y.grad, 1e-4)
  mine = get_state_dict(ours)
  for k, p in theirs.named_parameters():
    close(mine[k].grad, p.grad, 1e-4)
  for k, v in theirs.named_buffers():
    close(mine[k], v)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (), (0,)])
def test_embedding(shape):
  ours, theirs = nn.Embedding(5, 4), torch.nn.Embedding(5, 4)
  share(ours, theirs)
  index = np.random.default_rng(0).integers(0, 5, shape)
  got, want = ours(Tensor(index)), theirs(torch.tensor(index))
  close(got, want)
  if index.size:
    got.square().sum().backward()
    want.square().sum().backward()
    close(ours.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_cell(bias):
  ours, theirs = nn.LSTMCell(3, 4, bias), torch.nn.LSTMCell(3, 4, bias)
  share(ours, theirs)
  x, h, c = normal(1, 2, 3), normal(2, 2, 4), normal(3, 2, 4)
  got, want = ours(Tensor(x), (Tensor(h), Tensor(c))), theirs(torch.tensor(x), (torch.tensor(h), torch.tensor(c)))
  got, want = ours(Tensor(x), got), theirs(torch.tensor(x), want)
  for g, w in zip(got, want, strict=True):
    close(g, w)
  (got[0] * got[1]).sum().backward()
  (want[0] * want[1]).sum().backward()
  mine = get_state_dict(ours)
  for k, p in theirs.named_parameters():
    close(mine[k].grad, p.grad)
  close(ours(Tensor(x))[0], theirs(torch.tensor(x))[0])


OPTIMIZERS = {
  "sgd": (lambda p: nn.optim.SGD(p, 0.05), lambda p: torch.optim.SGD(p, 0.05)),
  "momentum": (
    lambda p: nn.optim.SGD(p, 0.05, 0.9, 0.1),
    lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1),
  ),
  "nesterov": (
    lambda p: nn.optim.SGD(p, 0.05, 0.9, 0.1, nesterov=True),
    lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
  ),
  "adam": (lambda p: nn.optim.Adam(p, 0.05, 0.8, 0.9), lambda p: torch.optim.Adam(p, 0.05, (0.8, 0.9))),
  "adamw": (
    lambda p: nn.optim.AdamW(p, 0.05, weight_decay=0.2),
    lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.2),
  ),
  "lamb_as_adam": (lambda p: nn.optim.LAMB(p, 0.05, eps=1e-8, adam=True), lambda p: torch.optim.Adam(p, 0.05)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
  make, make_theirs = OPTIMIZERS[name]
  values = [normal(1, 3, 4), normal(2, 4), normal(3, 1), normal(4)]
  ours, theirs = [Tensor(v) for v in values], [torch.tensor(v, requires_grad=True) for v in values]
  a, b = make(ours), make_theirs(theirs)
  x = normal(5, 6, 3)
  for _ in range(6):
    a.zero_grad(), b.zero_grad()
    with Tensor.train():
      ((Tensor(x) @ ours[0] + ours[1]).tanh() * ours[2] + ours[3]).square().sum().backward()
      a.step()
    ((torch.tensor(x) @ theirs[0] + theirs[1]).tanh() * theirs[2] + theirs[3]).square().sum().backward()
    b.step()
    for got, want in zip(ours, theirs):
      close(got, want, 1e-4)


def test_muon():
  """PyTorch's Muon with this one's coefficients, its rate not scaled by the shape, and decoupled weight decay."""
  if not hasattr(torch.optim, "Muon"):
    pytest.skip("this PyTorch has no Muon")
  v = normal(1, 4, 6)
  w, u = Tensor(v), torch.nn.Parameter(torch.tensor(v))
  a = nn.optim.Muon([w], 0.05)
  b = torch.optim.Muon([u], lr=0.05, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn="original")
  x = normal(2, 5, 4)
  for _ in range(3):
    a.zero_grad(), b.zero_grad()
    with Tensor.train():
      (Tensor(x) @ w).tanh().sum().backward()
      a.step()
    (torch.tensor(x) @ u).tanh().sum().backward()
    b.step()
  close(w, u, 3e-2)  # PyTorch orthogonalises in bfloat16


def test_what_torch_saves(tmp_path):
  theirs = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Linear(4, 5).bfloat16())
  for legacy in (False, True):
    torch.save(theirs.state_dict(), tmp_path / "m.pt", _use_new_zipfile_serialization=not legacy)
    got = torch_load(tmp_path / "m.pt")
    assert list(got) == list(theirs.state_dict())
    for k, v in theirs.state_dict().items():
      assert got[k].dtype is getattr(dtypes, str(v.dtype).removeprefix("torch."))
      np.testing.assert_array_equal(got[k].numpy(), v.float().numpy() if v.dtype is torch.bfloat16 else v.numpy())
