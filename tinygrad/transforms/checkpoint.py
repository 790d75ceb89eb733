"""`checkpoint`: what a function computes is computed again in the backward pass, rather than kept until then."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.transforms.checkpoint_policies import Policy, nothing_saveable
from tinygrad.transforms.forward import tangents_of
from tinygrad.transforms.gradient import compute_gradients
from tinygrad.transforms.own_rules import OwnRules
from tinygrad.transforms.scan import outside
from tinygrad.transforms.tracing import (
  check_function,
  held_like,
  moment,
  replaced,
  stand_ins,
  tracing,
  unknown,
  with_replaced,
)
from tinygrad.transforms.tree import tree_leaves, tree_map
from tinygrad.uop import Ops, UOp

Nodes = tuple[UOp, ...]


def checkpoint(fun: Callable[..., Any], policy: Policy = nothing_saveable) -> Callable[..., Any]:
  """`fun`, of which the backward pass keeps the arguments (Tensors in any structure), what it reads from outside and
  what `policy` names (`checkpoint_policies`), and computes the rest again when the gradient arrives. Values and
  derivatives are those of `fun`, random numbers included: less memory for more operations, at most those of `fun` once
  more.

  Examples:
    >>> block = checkpoint(lambda x: x.exp().exp())
    >>> grad(lambda x: block(x).sum())(Tensor([0.0])).numpy().round(3)
    array([2.718], dtype=float32)
  """
  check_function("checkpoint", fun)
  check_function("checkpoint", policy, "the policy")

  @functools.wraps(fun, updated=())
  def recomputed(*args: Any, **kwargs: Any) -> Any:
    inner, actual = stand_ins((args, kwargs))
    before = moment()
    with tracing("checkpoint"):
      result = fun(*inner[0], **inner[1])
    results = [y.uop for y in tree_leaves(result)]
    same = outside(results, list(actual), before)
    boundary = [*actual, *same]
    example = next(iter(tree_leaves(result)), None)
    region = Recomputed(results, boundary, policy)
    values = replaced(result, actual)
    inputs = [actual.get(u, u) for u in boundary]
    numbers = iter(range(len(results)))

    def leaf(y: Any, value: Any) -> Any:
      held, i = held_like([example] * len(inputs), inputs), next(numbers)
      return y._new(value.uop.with_gradient(OwnRules.of(held, i, region.gradient, region.forward_of(region.bodies[i]))))

    return tree_map(leaf, result, values) if inputs else values

  return recomputed


class Recomputed:
  """What was computed from values at its boundary: its gradients, of values that are computed again."""

  def __init__(self, results: Sequence[UOp], boundary: Sequence[UOp], policy: Policy) -> None:
    self.policy = policy
    self.holes = [unknown(u.shape, u, u.device) for u in boundary]
    memo = dict(zip(boundary, self.holes))
    self.bodies = [with_replaced(y, memo) for y in results]

  def forward_of(self, body: UOp) -> Callable[[Nodes, Nodes], UOp]:
    """The tangent of one result: nothing is put off."""

    def forward(inputs: Nodes, tangents: Nodes) -> UOp:
      directions = [unknown(t.shape, t, t.device) for t in tangents]
      found = tangents_of([body], dict(zip(self.holes, directions))).get(body, body.const_like(0))
      return with_replaced(found, dict(zip([*self.holes, *directions], [*inputs, *tangents])))

    return forward

  def gradient(self, numbers: Sequence[int], gs: Nodes, inputs: Nodes) -> list[UOp | None]:
    """The gradients of some results, by the inputs."""
    at = [unknown(g.shape, g, g.device) for g in gs]
    bodies = [self.bodies[i] for i in numbers]
    found = compute_gradients(list(zip(bodies, at)), self.holes)
    kept = self.kept(UOp.sink(*bodies), inputs, gs[0])
    memo = {**kept, **dict(zip(at, gs)), **dict(zip(self.holes, [x.wait(gs[0]) for x in inputs]))}
    return [with_replaced(found[h], memo) if h in found else None for h in self.holes]

  def kept(self, body: UOp, inputs: Nodes, g: UOp) -> dict[UOp, UOp]:
    """The values that the policy keeps, as they were computed; brought back from where it sends them when the gradient
    arrives."""
    memo = dict(zip(self.holes, inputs))
    found: dict[UOp, UOp] = {}
    for u in body.toposort():
      if u in memo or u.op is Ops.SINK or not (where := self.policy(u)):
        continue
      value = with_replaced(u, memo)
      if isinstance(where, str) and (here := value.device) is not None:
        found[u] = value.copy_to_device(where).wait(g).copy_to_device(here)
      else:
        found[u] = value.wait(g)
    return found
