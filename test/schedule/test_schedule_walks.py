"""Programs whose graphs have exponentially many paths, through `localize` and `create_schedule`: what these do grows
with the nodes.

Each case makes a program of n steps, of which each reads the one before at least twice. What more of them take is
counted in lines that run (`steps.py`), and it must not grow with how many there are already.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from steps import growth

from tinygrad import Tensor, dtypes, nn
from tinygrad.engine.canonical import canonical
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp
from tinygrad.uop.node import stored

D2 = ("CPU:0", "CPU:1")
STEPS = {"a_training_step": 3}  # of a case whose steps are larger than others', by name
PROGRAMS: dict[str, Callable[[int], list[Tensor]]] = {}


def case(f: Callable[[int], Tensor | list[Tensor]]) -> Callable[[int], Tensor | list[Tensor]]:
  PROGRAMS[f.__name__] = lambda n: found if isinstance(found := f(n), list) else [found]
  return f


def memory(*shape: int, dtype: str = "float32") -> Tensor:
  return Tensor(np.zeros(shape, dtype)).to("CPU").realize()


@case
def doubled(n):
  x = memory(8, 6)
  for _ in range(n):
    x = x + x
  return x


@case
def scaled(n):
  x, c = memory(8, 6), memory(6)
  for _ in range(n):
    x = x * c + x
  return x


@case
def random_bits(n):
  x = Tensor.rand(8, 6)
  for number in range(n):
    x = x * (number + 0.5) + x
  return x


@case
def broadcasts(n):
  x = memory(8, 1)
  for _ in range(n):
    x = (x.expand(8, 6) + x).sum(1, keepdim=True)
  return x


@case
def rearranged(n):
  x = memory(6, 6)
  for _ in range(n):
    x = x.T.reshape(4, 9).reshape(6, 6) + x
  return x


@case
def choices(n):
  x = memory(8, 6)
  for number in range(n):
    x = (x < number).where(x + 1, -x)
  return x


@case
def casts(n):
  x = memory(8, 6)
  for _ in range(n):
    x = x.cast(dtypes.int32).cast(dtypes.float32) + x
  return x


@case
def maxima(n):
  x = memory(8, 6)
  for _ in range(n):
    x = (x - x.max(1, keepdim=True)).exp()
  return x


@case
def softmaxes(n):
  x = memory(8, 6)
  for _ in range(n):
    x = x.softmax(1) + x
  return x


@case
def products(n):
  x = memory(6, 6)
  for _ in range(n):
    x = x @ x
  return x


@case
def gathers(n):
  x, table = memory(8, dtype="int32"), memory(8, dtype="int32")
  for _ in range(n):
    x = table[x] + x
  return x


@case
def items_set(n):
  x = memory(8, 6).clone()
  for number in range(n):
    x[number % 8] = x[(number + 1) % 8] + x[(number + 2) % 8]
  return x


@case
def cut(n):
  x, c = memory(8, 6).shard(D2, 0), memory(6).shard(D2)
  for _ in range(n):
    x = x * c + x
  return x


@case
def partial_sums(n):
  """Every step's sum is over the dim that is cut."""
  x = memory(8, 6).shard(D2, 0)
  for _ in range(n):
    x = x * x.sum(0, keepdim=True) + x
  return x


@case
def partial_sums_added(n):
  x = memory(8, 6).shard(D2, 0).sum(0)
  for _ in range(n):
    x = x * 0.5 + x
  return x


@case
def resharded(n):
  x = memory(8, 6).shard(D2, 0)
  for number in range(n):
    x = (x + x).shard(D2, 1 - number % 2)
  return x


@case
def gradients(n):
  x, w = memory(8, 6), memory(6)
  y = x
  for _ in range(n):
    y = y * w + y.relu()
  return [y, *y.sum().gradient(x, w)]


@case
def a_training_step(n):
  x = memory(8, 6)
  weights = [memory(6, 6) for _ in range(n)]
  for w in weights:
    w.requires_grad = True
  y = x
  for w in weights:
    y = (y @ w).relu() + y
  y.sum().backward()
  with Tensor.train():
    return nn.optim.SGD(weights, lr=0.1, momentum=0.9).schedule_step()


def schedule(tensors: list[Tensor]) -> None:
  roots = [t.uop for t in tensors]
  effects = dict.fromkeys(u for u in UOp.sink(*roots).toposort() if u.op is Ops.ASSIGN)
  for root in roots:
    if root not in effects:
      effects[stored(root, "CPU" if root.device is None else root.device)] = None
  create_schedule(localize(canonical(UOp.sink(*effects))[0]), True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
  assert growth(lambda n: schedule(PROGRAMS[name](n)), STEPS.get(name, 12)) < 1.25
