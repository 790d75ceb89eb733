"""`cond`: one of two functions, by a condition that is known only when it runs."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.engine.jit import is_tensor
from tinygrad.transforms.batching import Lanes, LanesOp, lanes_op
from tinygrad.transforms.collectives import Reduced
from tinygrad.transforms.forward import tangents_of, total
from tinygrad.transforms.gradient import compute_gradients
from tinygrad.transforms.loop import ScanOp
from tinygrad.transforms.own_rules import OwnRules
from tinygrad.transforms.scan import outside
from tinygrad.transforms.tracing import (
  Outside,
  held_like,
  moment,
  replaced,
  stand_ins,
  tracing,
  twins_of,
  unknown,
  with_replaced,
)
from tinygrad.transforms.tree import tree_leaves, tree_map, tree_map_alike, tree_numbers
from tinygrad.uop import Ops, UOp, describe

Nodes = tuple[UOp, ...]
Dims = tuple[int, ...]  # of lanes


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
  """`true_fun(*operands)` where `pred`, a bool Tensor of one element, holds, else `false_fun(*operands)`: results of
  one structure, with the same shapes and types. Inside `TinyJit` each replay looks anew. Both are computed, and one is
  chosen; so is one of the two derivatives, so that what is not finite in the other does not show.
  Raises: ValueError for results that differ, TypeError for a condition that is no bool, or no function.
  Shape: `(), (*operand), … -> (*result), …`.

  Examples:
    >>> f = lambda x: cond(x > 0, lambda t: t.log(), lambda t: t * 2, x)
    >>> f(Tensor(1.0)).item(), f(Tensor(-1.0)).item()
    (0.0, -2.0)
  """
  check_condition("cond", pred)
  for f in (true_fun, false_fun):
    if not callable(f):
      raise TypeError(f"cond: {f!r} is no function of the operands\n  fix: lambda *operands: …, or pred.where(x, y)")
  around = Outside.now("which is called whether it is chosen or not")
  inner, actual = stand_ins(operands)
  before = moment()
  with tracing("cond", around):
    ways = true_fun(*twins_of(inner)), false_fun(*inner)
  check_results(*ways)
  values = replaced(ways, actual)
  roots = [t.uop for t in tree_leaves(ways)]
  boundary = [*actual, *outside(roots, list(actual), before)]
  inputs = [*(actual.get(u, u) for u in boundary), pred.reshape(()).uop]

  pairs: list[tuple[UOp, UOp]] = []
  tree_map(lambda yes, no: pairs.append((yes.uop, no.uop)), *ways)
  choice, numbers = Choice.of(pairs, boundary), iter(range(len(pairs)))

  def leaf(y: Any, n: Any) -> Any:
    held, i = held_like([pred] * len(inputs), inputs), next(numbers)
    rules = OwnRules.of(held, i, choice.gradient, functools.partial(choice.tangent, i))
    return y._new(pred.reshape(()).where(y, n).uop.with_gradient(rules))

  return tree_map(leaf, *values)


def check_condition(name: str, pred: Any) -> None:
  if not is_tensor(pred) or not dtypes.is_bool(pred.dtype) or pred.numel() != 1:
    given = describe(pred.uop) if is_tensor(pred) else repr(pred)
    fix = "compare: (x.sum() > 0)" + ("; of many elements, x.where(…)" if name == "cond" else "; of many, x.any()")
    fix = f"Tensor({pred})" if isinstance(pred, bool) else fix
    raise TypeError(f"{name}: the condition is one bool, not {given}\n  fix: {fix}")


def check_results(yes: Any, no: Any) -> None:
  """ValueError for results that cannot be chosen among: all that may differ is what Tensors hold."""
  fix = "return the same structure of Tensors, Tensor(1.0) for a number"
  tree_map_alike(_check_alike, yes, no, "cond: the functions return different structures", fix)
  if (a := (len(tree_leaves(yes)), tree_numbers(yes))) != (b := (len(tree_leaves(no)), tree_numbers(no))) or not a[0]:
    rule = f"one function returns {yes!r}, the other {no!r}" if a != b else f"the functions return {yes!r}, no Tensor"
    raise ValueError(f"cond: {rule}\n  fix: {fix}")


def _check_alike(yes: Any, no: Any) -> None:
  if not is_tensor(no) or yes.shape != no.shape or yes.dtype is not no.dtype:
    other = describe(no.uop) if is_tensor(no) else repr(no)
    fix = "cast or reshape one of the two"
    raise ValueError(f"cond: one function returns {describe(yes.uop)}, the other {other}\n  fix: {fix}")


def lanes_read(roots: Sequence[UOp]) -> dict[tuple[Lanes, Dims], None]:
  """The lanes that collectives below these reach across, in the steps of loops, too."""
  found: dict[tuple[Lanes, Dims], None] = {}
  for u in UOp.sink(*roots).toposort():
    op = u.arg[1] if u.op is Ops.CUSTOM else None
    if isinstance(op, LanesOp):
      found[op.lanes, op.dims] = None
    elif isinstance(op, ScanOp):
      found |= lanes_read([*op.loop.after, *([op.out] if isinstance(op.out, UOp) else ())])
  return found


@dataclass(frozen=True, slots=True)
class Choice:
  """Of each result one of two graphs over `holes`, and their derivatives; the last input is the condition."""

  results: tuple[tuple[UOp, UOp], ...]
  holes: Nodes

  @staticmethod
  def of(pairs: Sequence[tuple[UOp, UOp]], boundary: Sequence[UOp]) -> "Choice":
    holes = tuple([unknown(u.shape, u, u.device) for u in boundary])
    memo = dict(zip(boundary, holes))
    return Choice(tuple([(with_replaced(yes, memo), with_replaced(no, memo)) for yes, no in pairs]), holes)

  def gradient(self, numbers: Sequence[int], gs: Nodes, inputs: Nodes) -> list[UOp | None]:
    *given, pred = inputs
    at = [unknown(g.shape, g, g.device) for g in gs]
    found = [compute_gradients([(self.results[i][way], h) for i, h in zip(numbers, at)], self.holes) for way in (0, 1)]
    parts = [[f.get(h) for f in found] for h in self.holes]
    if across := lanes_read([way for i in numbers for way in self.results[i]]):
      ways = [self.where_taken(way, pred, given, dict(zip(at, gs)), across) for way in (0, 1)]
      return [*(total([f(y) for f, y in zip(ways, pair) if y is not None]) for pair in parts), None]
    return [*(self.chosen(pred, pair, given, dict(zip(at, gs))) for pair in parts), None]

  def where_taken(
    self, way: int, pred: UOp, given: Sequence[UOp], gs: Mapping[UOp, UOp], across: Iterable[tuple[Lanes, Dims]]
  ) -> Callable[[UOp], UOp]:
    """What makes a gradient of one way over the inputs, of those lanes' results that have taken it, for lanes that have
    not, too: these have read each other. Zeros where no lane has, whatever it would be."""
    here = pred if way == 0 else pred.alu(Ops.NOT)
    memo = {at: here.broadcast_to(g.shape).where(g, g.const_like(0)) for at, g in gs.items()}
    memo |= zip(self.holes, given)
    for lanes, dims in across:
      here = lanes_op("whether one has taken it", lanes, dims, Reduced(Ops.MAX, dims), (here,))
    return lambda y: here.broadcast_to(y.shape).where(with_replaced(y, memo), y.const_like(0))

  def tangent(self, number: int, inputs: Nodes, tangents: Nodes) -> UOp:
    *given, pred = inputs
    directions = {h: unknown(h.shape, h, h.device) for h in self.holes}
    ways = self.results[number]
    found: list[UOp | None] = [tangents_of([way], directions).get(way) for way in ways]
    made = self.chosen(pred, found, given, dict(zip(directions.values(), tangents)))
    return ways[0].const_like(0) if made is None else made

  def chosen(self, pred: UOp, pair: Sequence[UOp | None], given: Sequence[UOp], memo: dict[UOp, UOp]) -> UOp | None:
    """One of two nodes (None: zeros) over the inputs."""
    like = next((u for u in pair if u is not None), None)
    if like is None:
      return None
    made = [with_replaced(like.const_like(0) if u is None else u, memo | dict(zip(self.holes, given))) for u in pair]
    return pred.broadcast_to(like.shape).where(made[0], made[1])
