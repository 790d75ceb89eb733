"""A value on a single device that is brought beside sharded operands: its gradient holds the shares of all readers.

Placement moves what is cheapest, often something below the value, whose last steps are then made again on the other
devices. Random chains of steps are read on one device and on two sets of others; the gradients by every value of the
chain are those of the same program on one device.
"""

import numpy as np
import pytest

from tinygrad import Context, Tensor
from tinygrad.transforms import gradient as differentiation

D2, OTHERS = ("CPU:0", "CPU:1"), ("CPU:2", "CPU:3")
CHAINS = 40

STEPS = {
  "max": lambda x: x.max(0),
  "max, kept": lambda x: x.max(-1, keepdim=True),
  "sum": lambda x: x.sum(0, keepdim=True),
  "flat": lambda x: x.reshape(-1),
  "in front": lambda x: x.unsqueeze(0),
  "behind": lambda x: x.unsqueeze(-1),
  "turned": lambda x: x.permute(tuple(reversed(range(x.ndim)))),
  "flipped": lambda x: x.flip(0),
  "wider": lambda x: x.expand(tuple(3 if n == 1 else n for n in x.shape)),
  "cut": lambda x: x[: max(1, x.shape[0] - 1)],
  "padded": lambda x: x.pad(((1, 0),) + ((0, 0),) * (x.ndim - 1)),
  "cast": lambda x: x.half().float(),
  "double": lambda x: x * 2,
  "positive": lambda x: x.relu(),
  "less": lambda x: 3 - x,
  "contiguous": lambda x: x.contiguous(),
}


def chain(seed: int):
  """The steps, and by whom which value is read: (value, device set, dims in front)."""
  r = np.random.default_rng(seed)
  steps, x = [], Tensor.empty(6, 4)
  while len(steps) < 5:
    name = str(r.choice(list(STEPS)))
    made = STEPS[name](x) if x.ndim else x
    if 0 < made.ndim < 5 and made.numel() <= 200:
      steps, x = [*steps, name], made
  sets = [[D2], [D2, None], [D2, OTHERS], [D2, OTHERS, None]][r.integers(4)]
  readers = [(int(r.integers(len(steps) + 1)), where, int(r.integers(2))) for where in sets for _ in range(2)]
  return steps, readers


def gradients(steps, readers, several: bool):
  """By the number of a value: the loss's gradient by it."""
  values = [Tensor((np.arange(24, dtype=np.float32).reshape(6, 4) * 5 % 7) - 3).realize()]
  for name in steps:
    values.append(STEPS[name](values[-1]))
  losses: dict[object, Tensor] = {}
  for i, where, front in readers:
    shape = (4,) * front + values[i].shape
    weights = Tensor((np.arange(int(np.prod(shape)), dtype=np.float32) % 3 + 1).reshape(shape)).realize()
    part = ((weights.shard(where, 0) if several and where else weights) * values[i]).sum()
    losses[where] = losses[where] + part if where in losses else part
  parts = list(losses.values())
  if len(losses) > 1 and OTHERS in losses:
    parts = [x.to("CPU") for x in parts]
  loss = sum(parts[1:], start=parts[0])
  found = {}
  for i, t in enumerate(values[: 1 + max(i for i, _, _ in readers)]):
    (g,) = loss.gradient(t)
    assert g.device == t.device and g.shape == t.shape
    found[i] = g.numpy()
  return found


def check(seed: int) -> None:
  steps, readers = chain(seed)
  want = gradients(steps, readers, False)
  try:
    got = gradients(steps, readers, True)
  except RuntimeError as e:
    raise AssertionError(f"gradient lost: {steps} {readers}") from e
  for i, g in want.items():
    np.testing.assert_allclose(got[i], g, rtol=1e-5, atol=1e-5, err_msg=f"gradient {i}: {steps} {readers}")


@pytest.mark.parametrize("defer", (0, 1))
@pytest.mark.parametrize("part", range(2))
def test_every_value_of_a_chain_gets_the_gradient_of_all_its_readers(defer, part):
  with Context(DEFER=defer, INTERPRET=1):
    for seed in range(CHAINS):
      check(1000 * part + seed)


def test_a_maximum_read_on_one_device_and_on_two():
  t = Tensor(np.arange(12, dtype=np.float32).reshape(6, 2) % 5).realize().max(0)
  rows = Tensor.ones(4, 2).shard(D2, 0)
  np.testing.assert_array_equal(((rows * t).sum() + (t * 3).sum()).gradient(t)[0].numpy(), [7, 7])
  np.testing.assert_array_equal((rows * t).sum().gradient(t)[0].numpy(), [4, 4])
  t.requires_grad_()
  ((rows * t).sum() + (t * 3).sum()).backward()
  np.testing.assert_array_equal(t.grad.numpy(), [7, 7])


def test_what_the_user_moves_is_another_tensor_than_its_source():
  x = Tensor(np.ones((1, 2), np.float32)).realize().max(0)
  y = x.shard(D2, None)
  rows = Tensor(np.ones((4, 2), np.float32)).shard(D2, 0)
  loss = (rows * x).sum() + (rows * y * 2).sum()
  gx, gy = loss.gradient(x, y)
  np.testing.assert_array_equal(gx.numpy(), np.full(2, 12))
  np.testing.assert_array_equal(gy.numpy(), np.full(2, 8))
  assert (gx.device, gy.device) == (x.device, y.device)


def test_a_gradient_that_was_moved_back_is_another_tensor_than_what_it_was_moved_from():
  """Its views too: a move that a gradient took is as implied as one that brings an operand."""
  x = Tensor(np.arange(2, dtype=np.float32)).shard(D2, 0)
  y = x.to("CPU")
  gx, gy = (y * y * y).sum().gradient(x, y)
  view = gx.reshape(1, 2)
  loss = (view * 3).sum().to("CPU") + (gy.reshape(1, 2) * 5).sum()
  np.testing.assert_array_equal(loss.gradient(view)[0].numpy(), np.full((1, 2), 3))
  np.testing.assert_array_equal(loss.gradient(gx)[0].numpy(), np.full(2, 3))


def test_the_chains_notice_that_what_was_brought_is_not_looked_through(monkeypatch):
  """As it was: moves on one device set alone were."""
  plain = differentiation.is_implied
  monkeypatch.setattr(differentiation, "is_implied", lambda u: plain(u) and not differentiation.is_brought(u))
  with Context(DEFER=1, INTERPRET=1), pytest.raises(AssertionError, match="gradient"):
    for seed in range(CHAINS):
      check(seed)


def test_the_chains_notice_gradients_that_are_counted_twice(monkeypatch):
  """A move that brings the target itself is no occurrence of it: its gradient flows to it."""
  monkeypatch.setattr(differentiation, "_stands_for", lambda u, t: True)
  with Context(DEFER=1, INTERPRET=1), pytest.raises(AssertionError, match="gradient"):
    for seed in range(CHAINS):
      check(seed)
