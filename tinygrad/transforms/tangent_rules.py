"""Derivatives that somebody gives for both modes, by a rule for tangents: `custom_jvp`."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.engine.jit import is_tensor
from tinygrad.transforms.forward import tangents_of
from tinygrad.transforms.gradient import compute_gradient
from tinygrad.transforms.loop import ScanOp
from tinygrad.transforms.own_rules import OwnRules, split_arguments
from tinygrad.transforms.tracing import check_function, unknown, with_replaced
from tinygrad.transforms.tree import tree_leaves, tree_map, tree_map_alike
from tinygrad.uop import Ops, UOp, describe

Nodes = tuple[UOp, ...]


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
    check_function("custom_jvp", fun)
    functools.update_wrapper(self, fun, updated=())
    self.fun, self.nondiff = fun, tuple(nondiff_argnums)
    self.rule: Callable[..., Any] | None = None

  def defjvp(self, rule: Callable[..., Any]) -> None:
    """Says what the derivative is. Raises: TypeError for what cannot be called."""
    check_function("custom_jvp", rule, "the rule")
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
        if not isinstance(made, tuple) or len(made) != 2:
          raise ValueError(f"custom_jvp: the rule returns {made!r}\n  fix: return (result, tangent), structured alike")
        return tangents_like(out, made[1])[k]

      return forward

    numbers = iter(range(len(tree_leaves(out))))

    def leaf(y: Any) -> Any:
      forward = forward_of(next(numbers))
      return y._new(y.uop.with_gradient(OwnRules.of(held, 0, Transposition(forward), forward)))

    return tree_map(leaf, out)


def tangents_like(out: Any, tangents: Any) -> list[UOp]:
  """The tangents that a rule gives, in the order of the results. Raises: ValueError where they are not like these."""

  def leaf(y: Any, t: Any) -> Any:
    if not is_tensor(t) or t.shape != y.shape or t.dtype is not y.dtype:
      both = f"{describe(t.uop) if is_tensor(t) else repr(t)} of a result {describe(y.uop)}"
      raise ValueError(f"custom_jvp: the rule's tangent is {both}\n  fix: a tangent has its shape and type")
    return t

  found = tree_map_alike(
    leaf, out, tangents, "custom_jvp: the rule's tangent is structured in another way than the result"
  )
  return [t.uop for t in tree_leaves(found)]


def refilled(tree: Any, like: Sequence[Any], nodes: Sequence[UOp]) -> Any:
  """The structure with Tensors of these nodes."""
  each = iter(x._new(u) for x, u in zip(like, nodes))
  return tree_map(lambda _: next(each), tree)


@dataclass(frozen=True, slots=True)
class Transposition:
  """The gradient that follows from a rule for tangents, which is linear in these."""

  forward: Callable[[Nodes, Nodes], UOp]

  def __call__(self, numbers: Sequence[int], gs: Nodes, inputs: Nodes) -> list[UOp | None]:
    g = functools.reduce(lambda a, b: a.alu(Ops.ADD, b), gs)
    holes = [unknown(x.shape, x, x.device) for x in inputs]
    made = unguarded(self.forward(inputs, tuple(holes)), holes)
    found = compute_gradient(made, g, holes)
    ends = {g, *inputs}
    if reads(found.values(), holes, ends):  # as a loop backwards does for what nobody asks of it
      directions = {h: unknown(h.shape, h, h.device) for h in holes}
      if reads([tangents_of([made], directions).get(made, g)], holes, ends):
        raise ValueError(
          "custom_jvp: the rule's tangent is not linear in the tangents that it is given, so it has no gradient\n"
          "  fix: only scale these by what depends on the primals, and add them up; or custom_vjp"
        )
    zeros = {h: h.const_like(0) for h in holes}
    return [with_replaced(found[h], dict(zeros)) if h in found else None for h in holes]


def unguarded(root: UOp, holes: Sequence[UOp]) -> UOp:
  """0 == t ? 0 : f(t) -> f(t), if t depends on `holes` and f is linear: what cards say where a derivative may be
  infinite, as a rule has it that calls `jvp`; and what their own derivatives do (0 == t and f(t) is nan)."""
  depends, memo = set(holes), dict[UOp, UOp]()
  for u in root.toposort():
    if any(s in depends for s in depends_on(u)):
      depends.add(u)
      if u.op is Ops.WHERE and is_zero(u.src[1]):
        test = u.src[0].src[0] if u.src[0].op is Ops.AND else u.src[0]
        if test.op is Ops.CMPEQ and is_zero(test.src[0]):
          memo[u] = with_replaced(u.src[2] if test.src[1] in depends else u, memo)
      elif is_scan_result(u):
        src = [with_replaced(s, memo) for s in u.src]
        op = unguarded_steps(u.arg[1], [s in depends for s in u.src])
        memo[u] = op.loop.result(op.out, src)
  return with_replaced(root, memo)


def unguarded_steps(op: ScanOp, given: Sequence[bool]) -> ScanOp:
  """The same of the steps of a loop, of which these sources depend: and so does a carry that becomes one that does."""
  loop, out = op.loop, op.out
  holes = {h for h, depends in zip(loop.holes, given) if depends}
  while more := {h for h, y in zip(loop.holes, loop.after) if h not in holes and reads([y], [*holes], set())}:
    holes |= more
  after = tuple([unguarded(y, [*holes]) for y in loop.after])
  return ScanOp(replace(loop, after=after), out if isinstance(out, int) else unguarded(out, [*holes]))


def is_zero(u: UOp) -> bool:
  return u.base.op is Ops.CONST and u.base.arg == 0


def reads(roots: Iterable[UOp], holes: Sequence[UOp], ends: set[UOp]) -> bool:
  """Whether one of these depends on `holes`, above `ends`."""
  return not all_below(roots, ends).isdisjoint(holes)


def all_below(roots: Iterable[UOp], ends: set[UOp]) -> set[UOp]:
  """What these depend on, down to `ends`: of a loop only what its steps read for this result."""
  seen, stack = set[UOp](), [*roots]
  while stack:
    u = stack.pop()
    if u not in seen and u not in ends:
      seen.add(u)
      stack += depends_on(u)
  return seen


def depends_on(u: UOp) -> Sequence[UOp]:
  """The sources on which it depends: of a loop those that its steps read for this result."""
  if not is_scan_result(u):
    return u.src
  loop, out = u.arg[1].loop, u.arg[1].out
  carries = dict(zip(loop.holes, loop.after))
  needed = {loop.holes[out]} if isinstance(out, int) else all_below([out], set()).intersection(loop.holes)
  todo = [*needed]
  while todo:
    if (after := carries.get(todo.pop())) is not None:
      todo += (more := all_below([after], set()).intersection(loop.holes) - needed)
      needed |= more
  return [x for h, x in zip(loop.holes, u.src) if h in needed]


def is_scan_result(u: UOp) -> bool:
  return u.op is Ops.CUSTOM and isinstance(u.arg[1], ScanOp)
