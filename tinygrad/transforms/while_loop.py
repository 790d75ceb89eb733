"""`while_loop`: a function that is applied as long as a condition holds, which only its results tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.engine.realize import stages
from tinygrad.transforms.batching import Lanes
from tinygrad.transforms.cond import check_condition
from tinygrad.transforms.conditional_loop import WhileLoop
from tinygrad.transforms.run_loops import loops_run
from tinygrad.transforms.scan import Body, carried_at, check_carries
from tinygrad.transforms.tracing import CALLED_ONCE, Outside, check_function, moment, next_hole, tracing, unknown
from tinygrad.transforms.tree import tree_leaves, tree_map
from tinygrad.uop import Ops, UOp


def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any) -> Any:
  """What becomes of `init` (Tensors in any structure) when `body_fun` is applied to it, again and again, while
  `cond_fun` of it, a bool Tensor of one element, holds. Shapes, types and placements stay as they are in `init`.

  Both functions are called once, on Tensors without values; a step is placed, lowered and compiled once. After each
  step the host reads whether there is another one. Inside `TinyJit` each replay runs as many steps as its arguments ask
  for; under `vmap` as many as the element with most of them, the others staying as they are. Derivatives are forward
  ones (`jvp`, `linearize`, `jacfwd`): a loop that has the tangents beside the values. There is no gradient: nothing
  says how much a backward pass would have to keep (`scan` has one, over a known number of steps).
  Raises: TypeError for a condition that is no bool, ValueError where the carry changes its structure, shape or type,
  or random numbers are drawn.
  Shape: `(*init), … -> (*init), …`.

  Examples:
    >>> while_loop(lambda c: c < 100, lambda c: c * 2, Tensor(3)).item()
    192
  """
  check_function("while_loop", cond_fun, "the condition")
  check_function("while_loop", body_fun, "the step")
  if loops_run not in stages:
    stages.append(loops_run)
  leaves = tree_leaves(init)
  if not leaves:
    raise ValueError("while_loop: there is no Tensor in init\n  fix: give what the condition depends on")
  first = [x.uop for x in leaves]
  body = body_of(cond_fun, body_fun, init, first).settled()
  step, (test,) = body.loop(1, False)
  loop = WhileLoop(step, test)
  src = (*(carried_at(u, h.device) for u, h in zip(first, loop.body.holes)), *body.same)
  last = iter([loop.result(i, src) for i in range(len(first))])
  return tree_map(lambda x: x._new(next(last)), init)


def body_of(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any, first: Sequence[UOp]) -> Body:
  """Both functions, called once; the result is the condition."""
  holes = [unknown(u.shape, u, u.device) for u in first]
  given, around = iter(holes), Outside.now(CALLED_ONCE)
  carry = tree_map(lambda t: t._new(next(given)), init)
  steps, number = UOp.variable("steps", 0, 1 << 30), UOp.new(Ops.HOLE, dtypes.int32, (), (next_hole(), ()))
  before = moment()
  with tracing(Lanes((None,), (steps,), (number,), (None,), tree_leaves(init)[0]), around):
    test, made = cond_fun(carry), body_fun(carry)
  check_condition("while_loop", test)
  after = check_carries("while_loop", init, made)
  test = test.reshape(())
  return Body.of(holes, after, test, before)
