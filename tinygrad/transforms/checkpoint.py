"""`checkpoint`: what a function computes is computed again in the backward pass, rather than kept until then."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.transforms.checkpoint_policies import Policy, nothing_saveable
from tinygrad.transforms.forward import tangents_of
from tinygrad.transforms.gradient import compute_gradient
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
from tinygrad.uop import UOp

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
    region = Recomputed(boundary, policy)
    values = replaced(result, actual)
    inputs = [actual.get(u, u) for u in boundary]

    def leaf(y: Any, value: Any) -> Any:
      held = held_like([example] * len(inputs), inputs)
      body = with_replaced(y.uop, dict(zip(boundary, region.holes)))
      return y._new(value.uop.with_gradient(OwnRules(held, region.rule_of(body), region.forward_of(body))))

    return tree_map(leaf, result, values) if inputs else values

  return recomputed


class Recomputed:
  """What was computed from values at its boundary: its gradients, of values that are computed again."""

  def __init__(self, boundary: Sequence[UOp], policy: Policy) -> None:
    self.policy = policy
    self.holes = [unknown(u.shape, u, u.device) for u in boundary]
    self.again: dict[Nodes, list[UOp]] = {}  # the inputs, waiting for the first gradient that arrives

  def forward_of(self, body: UOp) -> Callable[[Nodes, Nodes], UOp]:
    """The tangent of one result: nothing is put off."""

    def forward(inputs: Nodes, tangents: Nodes) -> UOp:
      directions = [unknown(t.shape, t, t.device) for t in tangents]
      found = tangents_of([body], dict(zip(self.holes, directions))).get(body, body.const_like(0))
      return with_replaced(found, dict(zip([*self.holes, *directions], [*inputs, *tangents])))

    return forward

  def rule_of(self, body: UOp) -> Callable[[UOp, Nodes], Sequence[UOp | None]]:
    """The gradients of one result by the inputs."""

    def rule(g: UOp, inputs: Nodes) -> list[UOp | None]:
      at = unknown(g.shape, g, g.device)
      found = compute_gradient(body, at, self.holes)
      kept = self.kept(body, inputs, g)
      if inputs not in self.again:
        self.again = {inputs: [x.wait(g) for x in inputs]}
      memo = {**kept, at: g, **dict(zip(self.holes, self.again[inputs]))}
      return [with_replaced(found[h], memo) if h in found else None for h in self.holes]

    return rule

  def kept(self, body: UOp, inputs: Nodes, g: UOp) -> dict[UOp, UOp]:
    """The values that the policy keeps, as they were computed; brought back from where it sends them when the gradient
    arrives."""
    memo = dict(zip(self.holes, inputs))
    found: dict[UOp, UOp] = {}
    for u in body.toposort():
      if u in memo or not (where := self.policy(u)):
        continue
      value = with_replaced(u, memo)
      if isinstance(where, str) and (here := value.device) is not None:
        found[u] = value.copy_to_device(where).wait(g).copy_to_device(here)
      else:
        found[u] = value.wait(g)
    return found
