"""What it takes to compile a function of several operands, forward and backward, over shapes that broadcast and inputs
that are computed: at most so many steps (lines of Python, see `steps.py`) for each node of its graph.

A broadcast makes the functions' operands different expressions in the derivative, and inputs that nobody realized make
them deep: a walk that takes every path through them never ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from op_table import BINARY, ROWS
from steps import TooManySteps, steps

from tinygrad import Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.device import Device
from tinygrad.engine.canonical import canonical
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding.localize import localize
from tinygrad.uop import UOp
from tinygrad.uop.node import stored

SHAPES = [((4, 1, 3), (5, 1), (2, 1, 1, 1)), ((64, 48), (48,), (64, 1))]  # of the first, second and third operand
STEPS_PER_NODE = 40_000


def random(shape: tuple[int, ...], dtype: str) -> Tensor:
  return (Tensor.rand(*shape) * 4 + 0.5).cast(dtype)


def expression(shape: tuple[int, ...], dtype: str) -> Tensor:
  """Whose every step reads the one before twice."""
  x = Tensor.full(shape, 0.75).cumsum(-1)
  for _ in range(8):
    x = x * 0.5 + x.sqrt()
  return x.cast(dtype)


MADE: dict[str, Callable[[tuple[int, ...], str], Tensor]] = {"random": random, "expression": expression}
# rows of several operands that broadcast, beside those over BINARY
MORE = ["lerp", "where"]


def functions() -> dict[str, tuple[Callable[..., Tensor], int, str, bool]]:
  """{name: (function, number of operands, dtype, whether it is differentiated)}"""
  found: dict[str, tuple[Callable[..., Tensor], int, str, bool]] = {}
  for number, r in enumerate(ROWS):
    if (r.inputs is BINARY or r.name in MORE) and len(r.inputs[0]) > 1:
      found[f"{r.name} {number}"] = r.ours, len(r.inputs[0]), r.dtypes[0], r.grad
  found["where of three"] = lambda x, y, z: (x > 1).where(y, z), 3, "float32", True
  found["x·y + z"] = lambda x, y, z: x * y + z, 3, "float32", True
  found["(x - y)·z^x"] = lambda x, y, z: (x - y) * z.pow(x), 3, "float32", True
  return found


FUNCTIONS = functions()


def lower(sink: UOp) -> None:
  """All that is done before code is written."""
  schedule = create_schedule(localize(canonical(sink)[0]), True)
  for kernel in {i.kernel for i in schedule.items if isinstance(i.kernel, UOp)}:
    lower_kernel(kernel, Device["CPU"].target, 2)


def count(what: str, results: list[Tensor]) -> None:
  """Fails where lowering the results takes more steps than their graph allows, and says where it was then."""
  sink = UOp.sink(*(stored(x.uop, "CPU") for x in results))
  nodes = len(sink.toposort())
  try:
    steps(functools.partial(lower, sink), STEPS_PER_NODE * nodes)
  except TooManySteps as e:
    pytest.fail(f"{what}, {nodes} nodes: {e}")


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_steps_of_a_node(name, made):
  f, operands, dtype, differentiated = FUNCTIONS[name]
  for shapes in SHAPES:
    inputs = [MADE[made](s, dtype) for s in shapes[:operands]]
    result = f(*inputs)
    count(f"{name} of {shapes[:operands]}", [result])
    if differentiated:
      count(f"gradients of {name} of {shapes[:operands]}", result.sum().gradient(*inputs))
