"""A tensor keeps its identity below whatever is made of it: its gradient is found through movement that simplifies."""

import numpy as np
import pytest

from tinygrad import Tensor, nn
from tinygrad.uop import Ops, UOp

# how a tensor may come to be, without memory; shapes with dims of 1, for which movement folds
LEAVES = {
  "ones": lambda *s: Tensor.ones(*s),
  "zeros": lambda *s: Tensor.zeros(*s),
  "full": lambda *s: Tensor.full(s, 3.0),
  "a number": lambda *s: Tensor(2.0).reshape((1,) * len(s)).expand(s),
  "arange": lambda *s: Tensor.arange(int(np.prod(s))).float().reshape(s),
  "rand, reshaped": lambda *s: Tensor.rand(int(np.prod(s))).reshape(s),
  "rand, permuted": lambda *s: Tensor.rand(*s[::-1]).permute(tuple(range(len(s)))[::-1]),
  "rand, expanded": lambda *s: Tensor.rand(*(1 for _ in s)).expand(s),
  "a realized view": lambda *s: Tensor.rand(int(np.prod(s))).realize().reshape(s),
  "a computed view": lambda *s: (Tensor.rand(int(np.prod(s))) * 2).reshape(s),
  "a list": lambda *s: Tensor(np.ones(s, np.float32)),
}
SHAPES = ((1,), (1, 1), (3,), (1, 3), (3, 1), (2, 3), (1, 3, 1))


def wider(shape):
  return tuple(2 if n == 1 else n for n in shape)


# (what is done, how often each element of the leaf then counts)
MOVEMENTS = {
  "reshape": (lambda w: w.reshape((1, *w.shape)).reshape(-1), 1),
  "flatten": (lambda w: w.flatten(), 1),
  "unflatten": (lambda w: w.unsqueeze(0).unsqueeze(-1), 1),
  "squeeze": (lambda w: w.squeeze(), 1),
  "permute": (lambda w: w.permute(tuple(range(w.ndim))[::-1]), 1),
  "permute twice": (lambda w: w.T.T if w.ndim > 1 else w.permute(0), 1),
  "expand": (lambda w: w.unsqueeze(0).expand((4, *w.shape)), 4),
  "broadcast": (lambda w: w * Tensor.ones(4, *w.shape).contiguous(), 4),
  "broadcast below": (lambda w: w.unsqueeze(-1) + Tensor.zeros(*w.shape, 4).contiguous(), 4),
  "pad": (lambda w: w.pad(((1, 2),) * w.ndim), 1),
  "shrink": (lambda w: w.pad(((1, 1),) * w.ndim).shrink(tuple((1, n + 1) for n in w.shape)), 1),
  "shrink all": (lambda w: w.shrink(tuple((0, n) for n in w.shape)), 1),
  "flip": (lambda w: w.flip(0), 1),
  "cast": (lambda w: w.cast("float64"), 1),
  "half": (lambda w: w.half().float(), 1),
  "cat": (lambda w: w.cat(w), 2),
  "stack": (lambda w: Tensor.stack(w, w, w), 3),
  "index": (lambda w: w[0:], 1),
  "rows": (lambda w: w[list(range(w.shape[0]))], 1),
  "repeat": (lambda w: w.repeat((2,) * w.ndim), lambda shape: 2 ** len(shape)),
  "dims of 1 expanded": (lambda w: w.expand(wider(w.shape)), lambda shape: 2 ** shape.count(1)),
  "dims of 1 broadcast": (lambda w: w * Tensor.ones(*wider(w.shape)), lambda shape: 2 ** shape.count(1)),
  "roll": (lambda w: w.roll(0, 0), 1),
  "sum over dims of 1": (lambda w: w.unsqueeze(0).sum(0), 1),
  "max over dims of 1": (lambda w: w.unsqueeze(0).max(0), 1),
  "contiguous": (lambda w: w.contiguous(), 1),
  "nothing": (lambda w: w, 1),
}


@pytest.mark.parametrize("movement", MOVEMENTS)
@pytest.mark.parametrize("leaf", LEAVES)
def test_a_gradient_is_found_through_movement(leaf, movement):
  move, count = MOVEMENTS[movement]
  for shape in SHAPES:
    w = LEAVES[leaf](*shape).requires_grad_()
    (move(w) * 3).sum().backward()
    assert w.grad is not None, f"{leaf} of {shape}: the gradient is lost in {movement}"
    times = count(shape) if callable(count) else count
    np.testing.assert_array_equal(w.grad.numpy(), np.full(shape, 3 * times, np.float32))


@pytest.mark.parametrize(
  "kind, sizes", [("BatchNorm", [1]), ("LayerNorm", [1]), ("GroupNorm", [1, 1]), ("InstanceNorm", [1])]
)
def test_norms_of_one_channel_learn(kind, sizes):
  layer = getattr(nn, kind)(*sizes)
  x = Tensor.rand(4, 1, 2, 2) if not isinstance(layer, nn.LayerNorm) else Tensor.rand(4, 1)
  with Tensor.train():
    (layer(x) * 2).square().sum().backward()
  for name, p in nn.state.get_state_dict(layer).items():
    assert p.grad is not None or p.requires_grad is False or "running" in name or "tracked" in name, name


def test_two_constants_are_two_tensors():
  a, b = Tensor.ones(1), Tensor.ones(1)
  ga, gb = (a.reshape(1, 1) * 2 + b.reshape(1, 1) * 5).sum().gradient(a, b)
  assert (ga.item(), gb.item()) == (2.0, 5.0)


def test_the_gradients_notice_folds(monkeypatch):
  """As it was: movement of movement left the node out that a tensor stands for."""
  for op in (Ops.RESHAPE, Ops.EXPAND):
    monkeypatch.undo()
    name = op.name.lower()
    plain = getattr(UOp, name)

    def folding(u, arg, op=op, plain=plain):
      return plain(u.src[0] if u.op is op else u, arg)

    monkeypatch.setattr(UOp, name, folding)
    with pytest.raises((AssertionError, RuntimeError)):
      for movement in MOVEMENTS:
        test_a_gradient_is_found_through_movement("ones", movement)


def test_what_is_computed_from_a_value_does_not_read_the_memory_of_an_equal_one():
  """The maximum of one number is that number; when it gets memory, the number has none."""
  x = Tensor.full((), -2.0).to("CPU")
  y, most = x * 3, x.max()
  most.realize()
  assert (y * 2).gradient(x)[0].item() == 6
