"""Steps on a mesh: `TinyJit(f, mesh=mesh)` and `with mesh:` place what is computed in them, by hints."""

import numpy as np
import pytest

from tinygrad import OPEN, Context, Mesh, P, Sharding, Tensor, TinyJit, nn
from tinygrad.device import ShardTypeError

D4 = tuple(f"CPU:{i}" for i in range(4))
MESH = Mesh(D4, (2, 2), ("dp", "tp"))
X = np.arange(32, dtype=np.float32).reshape(8, 4)


class Net:
  def __init__(self):
    self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

  def __call__(self, x):
    h = self.up(x.constrain(P("dp", OPEN))).relu()
    return self.down(h.constrain(P(OPEN, "tp")))


def trained(mesh, steps=5):
  """Losses, the model and its optimizer after some steps of a captured step."""
  Tensor.manual_seed(0)
  rng, net = np.random.default_rng(0), Net()
  optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-2)

  @TinyJit(mesh=mesh)
  def step(x, y):
    optimizer.zero_grad()
    loss = ((net(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss.realize()

  losses = []
  with Tensor.train():
    for _ in range(steps):
      x, y = (Tensor(rng.standard_normal((8, 16)).astype(np.float32)).realize() for _ in range(2))
      losses.append(step(x, y).item())
      assert x.device == y.device == "CPU"  # arguments stay where they are
  assert step.captured is not None
  return losses, net, optimizer


def test_weights_follow_their_uses_and_the_optimizers_state_the_weights():
  want, _, _ = trained(None)
  losses, net, optimizer = trained(MESH)
  np.testing.assert_allclose(losses, want, rtol=1e-4)
  up, down = (Sharding(MESH, P(*spec)) for spec in (("tp",), (None, "tp")))
  assert net.up.weight.device == net.up.bias.device == up
  assert net.down.weight.device == down and net.down.bias.device == Sharding(MESH, P())
  for state in (optimizer.m, optimizer.v):
    assert [t.device for t in state] == [p.device for p in optimizer.params]


def test_a_block_of_the_mesh_places_what_is_realized_in_it():
  w = Tensor(X.T).realize()
  with MESH:
    y = (Tensor(X).constrain(P("dp")) @ w).realize()
    assert y.device == Sharding(MESH, P("dp")) and w.device == Sharding(MESH, P())
    np.testing.assert_array_equal((y + 1).numpy(), X @ X.T + 1)
  outside = (Tensor(X) + 1).realize()
  assert outside.device == "CPU"


def test_a_replay_reads_the_arguments_of_its_call():
  @TinyJit(mesh=MESH)
  def step(x):
    return (x.constrain(P("dp")) * 2).realize()

  for i in range(5):
    y = step(Tensor(X + i).realize())
    assert y.device == Sharding(MESH, P("dp"))
    np.testing.assert_array_equal(y.numpy(), 2 * (X + i))
  given = Tensor(X).shard(MESH, P(None, "tp")).realize()  # placed: captured apart
  for _ in range(3):
    np.testing.assert_array_equal(step(given).numpy(), 2 * X)
  assert given.device == Sharding(MESH, P(None, "tp"))


@pytest.mark.parametrize(
  "name, values",
  [
    ("DEFER", (0, 1)),
    ("RESHARD", (1, 0)),
    ("STRATEGY", ("cost", "basic", "aggressive")),
  ],
)
def test_a_capture_under_one_setting_is_not_replayed_under_another(name, values):
  calls = []

  @TinyJit
  def step(x):
    calls.append(0)
    return (x + 1).realize()

  x = Tensor(X).shard(MESH, P("dp")).realize()
  for value in values:
    with Context(**{name: value}):
      for _ in range(3):
        np.testing.assert_array_equal(step(x).numpy(), X + 1)
  assert len(calls) == 2 * len(values) and len(step.states) == len(values)


@pytest.mark.parametrize("mesh", (D4, "CPU:1", Sharding(MESH, P("dp"))))
def test_what_is_no_mesh_is_refused_where_the_function_is_wrapped(mesh):
  with pytest.raises(ShardTypeError, match=r"(?s)TinyJit: mesh=.* is no Mesh.*test_propagate_jit.py.*fix: mesh=Mesh\("):
    TinyJit(lambda x: x + 1, mesh=mesh)
  with pytest.raises(ShardTypeError, match="TinyJit: mesh=.* is no Mesh"):
    TinyJit(mesh=mesh)(lambda x: x + 1)


def test_a_capture_with_one_hint_or_on_one_mesh_is_not_replayed_with_another():
  calls = []

  @TinyJit
  def step(x):
    calls.append(0)
    return (x + 1).realize()

  x = Tensor(X).shard(MESH, P("dp")).realize()
  for hint in (P("dp"), P("dp", OPEN)):
    for _ in range(3):
      step(x.constrain(hint))
  assert len(calls) == 4
  for mesh in (MESH, Mesh(D4, names=("all",))):
    with mesh:
      for _ in range(3):
        np.testing.assert_array_equal(step(x).numpy(), X + 1)
  assert len(calls) == 8
