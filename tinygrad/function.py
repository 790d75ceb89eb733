"""`function`: a part of a graph that depends on its arguments alone, with a gradient of its own if it is given one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.engine.jit import is_tensor, uops_of
from tinygrad.engine.realize import random_states
from tinygrad.helpers import children_of
from tinygrad.uop import JointGradient, Ops, UOp


def tensors_in(given: Any) -> list[Any]:
  """The Tensors and UOps that arguments hold: in lists, tuples, dicts, and in objects, as `get_state_dict` finds
  them."""
  found: list[Any] = []
  seen: set[int] = set()
  stack = [given]
  while stack:
    x = stack.pop()
    if id(x) in seen:
      continue
    seen.add(id(x))
    if type(x) is UOp or is_tensor(x):
      found.append(x)
    else:
      stack += reversed([child for _, child in children_of(x)])
  return found


def function(
  fxn: Any = None,
  *,
  precompile: bool = False,
  precompile_backward: bool = False,
  allow_implicit: bool = False,
  grad_fxn: Callable[..., Any] | None = None,
) -> Any:
  """`@function` on a function of Tensors that returns a Tensor or a tuple of them, and computes them from its arguments
  alone: with other memory in its graph (a Tensor made from data) it raises, unless `allow_implicit`. What
  `get_state_dict` finds in the arguments belongs to them: on a method of a model its weights do; random numbers may be
  drawn. It stays lazy and is differentiated as if written in place; equal calls share their compiled kernels, so the
  `precompile` flags change nothing.

  `grad_fxn(*gradients, *inputs)`, of the gradient of each result and the Tensors in the arguments, in their order
  (a model's weights where the model stands), gives the gradient of each input (a Tensor or a tuple of them; None: 0) in
  place of the one that follows from what is computed.
  Raises: RuntimeError for implicit memory and for other results, and where gradients are differentiated that `grad_fxn`
  does not give one for each input, in its shape.
  """
  if fxn is None:
    return functools.partial(function, allow_implicit=allow_implicit, grad_fxn=grad_fxn)

  @functools.wraps(fxn)
  def checked(*args: Any, **kwargs: Any) -> Any:
    inputs = tensors_in((args, kwargs))
    given = set(UOp.sink(*uops_of(inputs)).toposort())
    result = fxn(*args, **kwargs)
    name = getattr(fxn, "__qualname__", type(fxn).__name__)
    results = result if isinstance(result, tuple) else (result,)
    if not results or not all(map(is_tensor, results)):
      fix = "return a Tensor, or a tuple of Tensors"
      raise RuntimeError(f"function {name} returns {type(result).__name__}\n  fix: {fix}")
    order = UOp.sink(*uops_of(results)).toposort(lambda u: u not in given)
    implicit = [u for u in order if u.op is Ops.BUFFER and u not in given and u not in random_states]
    if implicit and not allow_implicit:
      shown = "".join(f"\n  {u.dtype.name}{list(u.shape)} on {u.device}" for u in implicit[:5])
      fix = "pass them as arguments, or @function(allow_implicit=True)"
      raise RuntimeError(f"function {name} reads {len(implicit)} buffers that are no arguments{shown}\n  fix: {fix}")
    if grad_fxn is None:
      return result
    own = with_gradient(results, [x for x in inputs if is_tensor(x)], grad_fxn, name)
    return own if isinstance(result, tuple) else own[0]

  return checked


def with_gradient(results: tuple[Any, ...], inputs: list[Any], grad_fxn: Callable[..., Any], name: str) -> Any:
  """The results, differentiated by the inputs as `grad_fxn` says of all of them together; one that nothing is computed
  from has gradient 0."""
  kept = tuple([x._new(UOp.new(Ops.DETACH, x.dtype, (x.uop,))) for x in inputs])

  def joint(numbers: Sequence[int], gs: tuple[UOp, ...], nodes: tuple[UOp, ...]) -> list[UOp | None]:
    given: dict[int, UOp] = {}
    for i, g in zip(numbers, gs):
      given[i] = given[i].alu(Ops.ADD, g) if i in given else g
    gradients = [type(y)(given[i]) if i in given else y.zeros_like() for i, y in enumerate(results)]
    got = grad_fxn(*gradients, *[x._new(u) for x, u in zip(kept, nodes)])
    parts = got if isinstance(got, (list, tuple)) else (got,)
    if len(parts) != len(kept) or any(p is not None and p.shape != x.shape for p, x in zip(parts, kept)):
      problem = f"function {name}: grad_fxn gives {len(parts)} gradients for {len(kept)} inputs"
      shapes = ", ".join(str(list(x.shape)) for x in kept)
      raise RuntimeError(f"{problem}, or others than of their shapes\n  fix: return tensors of {shapes}, or None")
    return [None if p is None else p.cast(x.dtype).uop for p, x in zip(parts, kept)]

  def own(i: int) -> JointGradient:
    return JointGradient(kept, lambda g, nodes: joint((i,), (g,), nodes), i, joint)

  made = [type(y)(y.uop.with_gradient(own(i))) for i, y in enumerate(results)]
  for y in made:
    y.follows = False
  return tuple(made)
