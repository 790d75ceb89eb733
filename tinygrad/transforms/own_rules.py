"""Derivatives that somebody gives for reverse mode: `custom_vjp`."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.engine.jit import is_tensor
from tinygrad.function import with_gradient
from tinygrad.transforms.tracing import check_function
from tinygrad.transforms.tree import tree_leaves, tree_map, tree_map_alike
from tinygrad.uop import JointGradient, UOp, describe

Nodes = tuple[UOp, ...]
Joint = Callable[[Sequence[int], Nodes, Nodes], Sequence[UOp | None]]


@dataclass(frozen=True, slots=True, eq=False)
class OwnRules(JointGradient):
  """With `forward`: the tangent of the value, of the inputs and their tangents."""

  forward: Callable[[Nodes, Nodes], UOp]

  @staticmethod
  def of(held: tuple[Any, ...], number: int, joint: Joint, forward: Callable[[Nodes, Nodes], UOp]) -> "OwnRules":
    """Of one of several results."""
    return OwnRules(held, lambda g, inputs: joint((number,), (g,), inputs), number, joint, forward)


class custom_vjp:
  """`@custom_vjp` on a function, with the derivative that `f.defvjp(fwd, bwd)` gives: `fwd(*args)` returns (what the
  function returns, residuals), `bwd(residuals, cotangents)` a tuple with the derivative by each argument (None: zeros),
  of the cotangents of all results together.
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
    check_function("custom_vjp", fun)
    functools.update_wrapper(self, fun, updated=())
    self.fun, self.nondiff = fun, tuple(nondiff_argnums)
    self.rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    self.inside: list[
      list[tuple[Any, ...]]
    ] = []  # of each call of fwd that goes on: what it has called the function on

  def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
    """Says what the derivative is. Raises: TypeError for what cannot be called."""
    check_function("custom_vjp", fwd, "fwd")
    check_function("custom_vjp", bwd, "bwd")
    self.rules = fwd, bwd

  def forward(self, args: Sequence[Any]) -> tuple[Any, Any]:
    """(result, residuals). Raises: ValueError where the result is seen to be another than the function's."""
    assert self.rules is not None
    calls: list[tuple[Any, ...]] = []
    self.inside.append(calls)
    try:
      made = self.rules[0](*args)
    finally:
      self.inside.pop()
    if not isinstance(made, tuple) or len(made) != 2:
      raise ValueError(f"custom_vjp: fwd returns {made!r}\n  fix: return (result, residuals)")
    for given, out in calls:
      if len(given) == len(args) and all(x is y for x, y in zip(given, args)):
        check_forward(out, made[0])
    return made

  def __call__(self, *args: Any) -> Any:
    if self.rules is None:
      raise TypeError(f"custom_vjp: {self.fun.__name__} has no rule\n  fix: {self.fun.__name__}.defvjp(fwd, bwd)")
    bwd, later = (
      self.rules[1],
      bool(self.inside),
    )  # called by fwd itself: residuals are made when a derivative needs them
    out, residuals = (self.fun(*args), None) if later else self.forward(args)
    if later:
      self.inside[-1].append((args, out))
    fixed, by = split_arguments(args, self.nondiff)
    results, leaves = tree_leaves(out), tree_leaves(residuals)

    def gradients(*given: Any) -> list[Any]:
      cotangents, held = iter(given[: len(results)]), iter(given[len(given) - len(inputs) :])
      structure = tree_map(lambda _: next(cotangents), out)
      primals, kept = (tree_map(lambda _: next(held), x) for x in (by, residuals))
      if later:
        result, kept = self.forward(joined_arguments(fixed, primals, self.nondiff))
        check_forward(out, result)
      found = bwd(*fixed, kept, structure)
      if not isinstance(found, tuple) or len(found) != len(by):
        raise ValueError(
          f"custom_vjp: bwd returns {found!r}\n  fix: a tuple of {len(by)}, a derivative by each argument"
        )
      return [part for x, g in zip(by, found) for part in as_leaves(x, g)] + [None] * len(leaves)

    inputs = [*tree_leaves(by), *leaves]
    made = iter(with_gradient(tuple(results), inputs, gradients, self.fun.__name__))
    return tree_map(lambda _: next(made), out)


def check_forward(out: Any, result: Any) -> None:
  """ValueError where fwd returns something else as the result than the function does."""

  def leaf(y: Any, z: Any) -> None:
    if not is_tensor(z) or z.shape != y.shape or z.dtype is not y.dtype:
      given = describe(z.uop) if is_tensor(z) else repr(z)
      rule = f"fwd gives {given} as the result, and the function {describe(y.uop)}"
      raise ValueError(f"custom_vjp: {rule}\n  fix: return the same from both")

  tree_map_alike(leaf, out, result, "custom_vjp: fwd's result is structured in another way than the function's")


def as_leaves(x: Any, g: Any) -> list[Any]:
  """The derivative by an argument as a list, one for each Tensor there. Raises: TypeError for what is no Tensor,
  ValueError for one of another shape."""
  found: list[Any] = []

  def leaf(t: Any, part: Any) -> None:
    if part is not None and not is_tensor(part):
      fix = f"a Tensor like {describe(t.uop)}, or None for zeros"
      raise TypeError(f"custom_vjp: bwd gives {part!r} as a derivative\n  fix: {fix}")
    if part is not None and part.shape != t.shape:
      problem = f"bwd gives {describe(part.uop)} as the derivative by {describe(t.uop)}"
      raise ValueError(f"custom_vjp: {problem}\n  fix: give it the argument's shape; sum over what was broadcast")
    found.append(part)

  if g is None:
    return [None] * len(tree_leaves(x))
  tree_map_alike(leaf, x, g, "custom_vjp: bwd gives a derivative that is structured in another way than the argument")
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
