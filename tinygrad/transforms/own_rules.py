"""Derivatives that somebody gives: `custom_vjp`, for reverse mode, and `custom_jvp`, for both."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.engine.jit import is_tensor
from tinygrad.function import with_gradient
from tinygrad.transforms.gradient import compute_gradient
from tinygrad.transforms.tracing import unknown, with_replaced
from tinygrad.transforms.tree import tree_leaves, tree_map
from tinygrad.uop import OwnGradient, UOp, describe

Nodes = tuple[UOp, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OwnRules(OwnGradient):
  """With `forward`: the tangent of the value, of the inputs and their tangents."""

  forward: Callable[[Nodes, Nodes], UOp]


class custom_vjp:
  """`@custom_vjp` on a function, with the derivative that `f.defvjp(fwd, bwd)` gives: `fwd(*args)` returns (what the
  function returns, residuals), `bwd(residuals, cotangents)` a tuple with the derivative by each argument (None: zeros).
  Arguments in `nondiff_argnums` take no derivative; `bwd` has them first. Residuals: Tensors in any structure.
  Raises: TypeError where it is called without a rule, ValueError for another number of derivatives.

  Examples:
    >>> @custom_vjp
    ... def clip_gradient(x):
    ...   return x
    ...
    >>> clip_gradient.defvjp(lambda x: (x, None), lambda kept, g: (g.clip(-1, 1),))
    >>> grad(lambda x: (clip_gradient(x) * 5).sum())(Tensor([2.0])).tolist()
    [1.0]
  """

  def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
    functools.update_wrapper(self, fun, updated=())
    self.fun, self.nondiff = fun, tuple(nondiff_argnums)
    self.rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    self.inside = 0  # how many calls of fwd go on

  def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
    """Says what the derivative is."""
    self.rules = fwd, bwd

  def forward(self, args: Sequence[Any]) -> tuple[Any, Any]:
    """(result, residuals)"""
    assert self.rules is not None
    self.inside += 1
    try:
      made = self.rules[0](*args)
    finally:
      self.inside -= 1
    if not isinstance(made, tuple) or len(made) != 2:
      raise ValueError(f"custom_vjp: fwd returns {made!r}\n  fix: return (result, residuals)")
    return made

  def __call__(self, *args: Any) -> Any:
    if self.rules is None:
      raise TypeError(f"custom_vjp: {self.fun.__name__} has no rule\n  fix: {self.fun.__name__}.defvjp(fwd, bwd)")
    bwd, later = self.rules[1], self.inside > 0  # called by fwd itself: residuals are made when a derivative needs them
    out, residuals = (self.fun(*args), None) if later else self.forward(args)
    fixed, by = split_arguments(args, self.nondiff)
    results, leaves = tree_leaves(out), tree_leaves(residuals)

    def gradients(*given: Any) -> list[Any]:
      cotangents, held = iter(given[: len(results)]), iter(given[len(given) - len(inputs) :])
      structure = tree_map(lambda _: next(cotangents), out)
      primals, kept = (tree_map(lambda _: next(held), x) for x in (by, residuals))
      if later:
        kept = self.forward(joined_arguments(fixed, primals, self.nondiff))[1]
      found = bwd(*fixed, kept, structure)
      if not isinstance(found, tuple) or len(found) != len(by):
        raise ValueError(
          f"custom_vjp: bwd returns {found!r}\n  fix: a tuple of {len(by)}, a derivative by each argument"
        )
      return [part for x, g in zip(by, found) for part in as_leaves(x, g)] + [None] * len(leaves)

    inputs = [*tree_leaves(by), *leaves]
    made = iter(with_gradient(tuple(results), inputs, gradients, self.fun.__name__))
    return tree_map(lambda _: next(made), out)


def as_leaves(x: Any, g: Any) -> list[Any]:
  """The derivative by an argument as a list, one for each Tensor there. Raises: TypeError for what is no Tensor."""
  found: list[Any] = []

  def leaf(t: Any, part: Any = None) -> None:
    if part is not None and not is_tensor(part):
      fix = f"a Tensor like {describe(t.uop)}, or None for zeros"
      raise TypeError(f"custom_vjp: bwd gives {part!r} as a derivative\n  fix: {fix}")
    found.append(part)

  tree_map(leaf, x, *(() if g is None else (g,)))
  return found


def split_arguments(args: Sequence[Any], nondiff: Sequence[int]) -> tuple[list[Any], list[Any]]:
  """(the arguments that take no derivative, the others)."""
  fixed = {i % len(args) for i in nondiff}
  return [x for i, x in enumerate(args) if i in fixed], [x for i, x in enumerate(args) if i not in fixed]


def joined_arguments(fixed: Sequence[Any], others: Sequence[Any], nondiff: Sequence[int]) -> list[Any]:
  """The arguments that `split_arguments` has taken apart."""
  count = len(fixed) + len(others)
  where, first, second = {i % count for i in nondiff}, iter(fixed), iter(others)
  return [next(first if i in where else second) for i in range(count)]


class custom_jvp:
  """`@custom_jvp` on a function, with the derivative that `f.defjvp(rule)` gives: `rule(primals, tangents)` returns
  (what the function returns, its tangent), which is linear in the tangents; those of what is constant are zeros.
  Reverse mode follows from it. Arguments in `nondiff_argnums` come first, and not among the primals.
  Raises: TypeError where it is called without a rule.

  Examples:
    >>> @custom_jvp
    ... def log1pexp(x):
    ...   return (1 + x.exp()).log()
    ...
    >>> log1pexp.defjvp(lambda primals, tangents: (log1pexp(*primals), tangents[0] * primals[0].sigmoid()))
    >>> grad(log1pexp)(Tensor(100.0)).item()
    1.0
  """

  def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
    functools.update_wrapper(self, fun, updated=())
    self.fun, self.nondiff = fun, tuple(nondiff_argnums)
    self.rule: Callable[..., Any] | None = None

  def defjvp(self, rule: Callable[..., Any]) -> None:
    """Says what the derivative is."""
    self.rule = rule

  def __call__(self, *args: Any) -> Any:
    if self.rule is None:
      raise TypeError(f"custom_jvp: {self.fun.__name__} has no rule\n  fix: {self.fun.__name__}.defjvp(rule)")
    rule, out = self.rule, self.fun(*args)
    fixed, by = split_arguments(args, self.nondiff)
    inputs = tree_leaves(by)
    held = tuple([x._new(x.uop.detach()) for x in inputs])

    def forward_of(k: int) -> Callable[[Nodes, Nodes], UOp]:
      def forward(nodes: Nodes, tangents: Nodes) -> UOp:
        primals, directions = (refilled(by, inputs, us) for us in (nodes, tangents))
        made = rule(*fixed, tuple(primals), tuple(directions))
        if not isinstance(made, tuple) or len(made) != 2 or len(tree_leaves(made[1])) != len(tree_leaves(out)):
          raise ValueError(f"custom_jvp: the rule returns {made!r}\n  fix: return (result, tangent), structured alike")
        y, t = tree_leaves(out)[k].uop, tree_leaves(made[1])[k].uop
        if t.shape != y.shape or t.dtype is not y.dtype:
          both = f"{describe(t)} of a result {describe(y)}"
          raise ValueError(f"custom_jvp: the rule's tangent is {both}\n  fix: a tangent has its shape and type")
        return t  # type: ignore[no-any-return]

      return forward

    numbers = iter(range(len(tree_leaves(out))))

    def leaf(y: Any) -> Any:
      forward = forward_of(next(numbers))
      return y._new(y.uop.with_gradient(OwnRules(held, Transposition(forward), forward)))

    return tree_map(leaf, out)


def refilled(tree: Any, like: Sequence[Any], nodes: Sequence[UOp]) -> Any:
  """The structure with Tensors of these nodes."""
  each = iter(x._new(u) for x, u in zip(like, nodes))
  return tree_map(lambda _: next(each), tree)


@dataclass(frozen=True, slots=True)
class Transposition:
  """The gradient that follows from a rule for tangents, which is linear in these."""

  forward: Callable[[Nodes, Nodes], UOp]

  def __call__(self, g: UOp, inputs: Nodes) -> list[UOp | None]:
    holes = [unknown(x.shape, x, x.device) for x in inputs]
    made = self.forward(inputs, tuple(holes))
    found = compute_gradient(made, g, holes)
    zeros = {h: h.const_like(0) for h in holes}
    return [with_replaced(found[h], dict(zeros)) if h in found else None for h in holes]
