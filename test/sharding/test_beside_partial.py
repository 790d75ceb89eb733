"""Tensors made like a partial one live where it will, and are not partial; what is drawn for them are the
numbers of one device."""

import numpy as np
import pytest

from tinygrad import P, Sharding, Tensor
from tinygrad.device import Mesh
from tinygrad.helpers import Context

D4 = tuple(f"CPU:{i}" for i in range(4))
GRID = Mesh(D4, (2, 2), ("a", "b"))
PLAIN = Tensor.ones(8, 5)
# of shape (8, 5), and a sum over some or all of the devices that has not run
PARTIAL = {
  "a sum": lambda: Tensor.ones(4, 8, 5).shard(D4, 0).sum(0),
  "a product of matrices": lambda: Tensor.ones(8, 4).shard(D4, 1) @ Tensor.ones(4, 5).shard(D4, 0),
  "partial and cut": lambda: Tensor.ones(4, 8, 5).shard(GRID, P("a", "b", None)).sum(0),
  "a maximum": lambda: Tensor.ones(4, 8, 5).shard(D4, 0).max(0),
}
LIKE = sorted(name for name in dir(Tensor) if name.endswith("_like"))
ARGUMENTS = {"full_like": (3.0,), "const_like": (3.0,)}
DRAWN = {
  "dropout": lambda x: x.dropout(0.5),
  "multinomial": lambda x: x.multinomial(3),
  "multinomial with replacement": lambda x: x.multinomial(4, replacement=True),
  "attention": lambda x: x.scaled_dot_product_attention(x, x, dropout_p=0.5),
}
CREATORS = {
  "zeros": (8, 5), "ones": (8, 5), "empty": (8, 5), "rand": (8, 5), "randn": (8, 5), "randint": (8, 5), "arange": (8,),
  "uniform": (8, 5), "normal": (8, 5), "randperm": (8,), "linspace": (0.0, 1.0, 8), "eye": (8,), "full": ((8, 5), 2.0),
  "scaled_uniform": (8, 5), "glorot_uniform": (8, 5), "kaiming_uniform": (8, 5), "kaiming_normal": (8, 5),
}  # fmt: skip


def partial(t: Tensor) -> object:
  return t.uop.device.partial if isinstance(t.uop.device, Sharding) else ()


@pytest.mark.parametrize("make", PARTIAL.values(), ids=PARTIAL)
@pytest.mark.parametrize("name", LIKE)
def test_like_a_partial_value(name, make):
  y = make()
  assert partial(y), "the test needs a partial value"
  if name == "shard_like":
    made, want = PLAIN.shard_like(y), PLAIN
  else:
    Tensor.manual_seed(3)
    made = getattr(y, name)(*ARGUMENTS.get(name, ()))
    Tensor.manual_seed(3)
    want = getattr(PLAIN, name)(*ARGUMENTS.get(name, ()))
  assert not partial(made)
  if name == "empty_like":  # holds what is written to it
    made, want = made.assign(PLAIN * 2), want.assign(PLAIN * 2)
  np.testing.assert_array_equal(made.numpy(), want.numpy())


@pytest.mark.parametrize("make", PARTIAL.values(), ids=PARTIAL)
@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_beside_a_partial_value(name, make):
  y = make()
  with Context(TRAINING=1):
    Tensor.manual_seed(3)
    got = DRAWN[name](y).numpy()
    Tensor.manual_seed(3)
    want = DRAWN[name](Tensor(y.numpy())).numpy()
  np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("make", PARTIAL.values(), ids=PARTIAL)
@pytest.mark.parametrize("name", CREATORS)
def test_created_on_the_device_of_a_partial_node(name, make):
  where, args = make().uop.device, CREATORS[name]
  Tensor.manual_seed(3)
  made = getattr(Tensor, name)(*args, device=where)
  assert not partial(made)
  assert made.device == where.reduced
  if name != "empty":
    Tensor.manual_seed(3)
    np.testing.assert_array_equal(made.numpy(), getattr(Tensor, name)(*args).numpy())
