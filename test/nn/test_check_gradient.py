"""The gradient checker, on one device and on sharded tensors; and that it finds wrong gradients."""

import dataclasses

import numpy as np
import pytest

from tinygrad import Mesh, P, Tensor, dtypes
from tinygrad.nn.utils import GradientError, check_gradient
from tinygrad.ops import elementwise as _cards  # noqa: F401 (registers the cards)
from tinygrad.uop import Ops
from tinygrad.uop.cards import CARDS

D2 = ("CPU:1", "CPU:2")
MESH = Mesh(("CPU:1", "CPU:2", "CPU:3", "CPU:4"), (2, 2), ("x", "y"))


def normal(seed: int, *shape: int) -> Tensor:
  return Tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def layer(x: Tensor, w: Tensor) -> Tensor:
  return (x @ w).tanh().softmax(axis=-1)


def test_right_gradients_pass():
  check_gradient(layer, normal(0, 2, 3), normal(1, 3, 2))
  check_gradient(lambda x: (x.exp() + 1).log().sum(), normal(2, 4))
  check_gradient(lambda x: x * x, Tensor(3.0))


@pytest.mark.parametrize("axis", (0, 1, None))
def test_on_sharded_tensors(axis):
  check_gradient(layer, normal(0, 3, 2).shard(D2, axis=axis), normal(1, 2, 3).shard(D2, axis=0))


def test_on_a_mesh_of_two_axes():
  check_gradient(layer, normal(0, 2, 3).shard(MESH, P("x")), normal(1, 3, 2).shard(MESH, P("y", "x")))


@pytest.mark.parametrize("axis", (0, None))
def test_the_first_wrong_element_is_named(axis):
  def stopped(x: Tensor) -> Tensor:
    """Its gradient misses what flows through the last row."""
    return (x[:1].square().sum() + x[1:].detach().square().sum()) * 2.0

  x = Tensor(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
  with pytest.raises(GradientError, match=r"tensor 0 .* at \(1, 0\): the gradient is 0, and \(f.* is 12\n  fix: "):
    check_gradient(stopped, x if axis is None else x.shard(D2, axis=axis))


def test_a_wrong_card_is_found(monkeypatch):
  card = CARDS[Ops.TANH]
  check_gradient(lambda x: x.tanh(), normal(0, 3))
  monkeypatch.setitem(CARDS, Ops.TANH, dataclasses.replace(card, gradient=lambda g, y: (g * (1.0 - y),)))
  with pytest.raises(GradientError, match=r"tensor 0 .* at \(0,\)"):
    check_gradient(lambda x: x.tanh(), normal(0, 3))


def test_what_cannot_be_checked():
  with pytest.raises(TypeError, match="tensor 1 is int32\n  fix: give floats"):
    check_gradient(lambda x, y: x * y, Tensor([1.0]), Tensor([1], dtype=dtypes.int32))
  with pytest.raises(ValueError, match="does not depend on target 1"):
    check_gradient(lambda x, y: x * 2, Tensor([1.0]), Tensor([2.0]))


def test_the_tensors_stay_as_they_are():
  x = normal(0, 3)
  uop = x.uop
  check_gradient(lambda x: x.square(), x)
  assert x.uop is uop and x.grad is None
