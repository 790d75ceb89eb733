"""Derivatives of functions, forward: `jvp`, `linearize`, Jacobians column by column, products with the Hessian.

There is no rule for each op. An elementwise op has a diagonal Jacobian, so that what its card says of a gradient holds
of a tangent too; a linear op (movement, lookups, sums, identities) does to a tangent what it does to the value; any
other reduction is, in the first order, a sum of its elements' tangents times the derivative by each. Of a loop it is a
loop.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.ops import Trait, having
from tinygrad.transforms.batching import LanesOp, lanes_op
from tinygrad.transforms.conditional_loop import WhileLoop, WhileOp
from tinygrad.transforms.custom import RuledOp
from tinygrad.transforms.grad import (
  ArgNums,
  Called,
  Function,
  check_direction,
  grad,
  jacrev,
  one_hots,
  with_arguments,
)
from tinygrad.transforms.loop import ScanLoop, ScanOp, canonical_loop, residuals
from tinygrad.transforms.own_rules import OwnRules
from tinygrad.transforms.tracing import check_function, inputs_below, replaced, twins_of, unknown, with_replaced
from tinygrad.transforms.tree import tree_leaves, tree_map, tree_map_alike
from tinygrad.transforms.vmap import vmap
from tinygrad.uop import CARDS, GroupOp, Ops, OwnGradient, UOp

REDUCES = having(Trait.REDUCES)


def jvp(fun: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> tuple[Any, ...]:
  """(what `fun` returns of the primals, the derivative of that in the direction of the tangents), both in the structure
  of the result; tangents have the structure of the primals, and None where these are no floats. With `has_aux` a
  third: what else `fun` returned.
  Raises: ValueError for tangents of another structure, or other shapes or types; TypeError where a gradient is given
  that has no forward rule, and for what is no function, or primals or tangents that are no list or tuple.
  Shape: `(*primal), … -> (*result), …`.

  Examples:
    >>> y, dy = jvp(lambda x: x**2, (Tensor([3.0]),), (Tensor([1.0]),))
    >>> y.tolist(), dy.tolist()
    ([9.0], [6.0])
  """
  return _jvp("jvp", fun, fun, primals, tangents, has_aux)


def _jvp(
  name: str, fun: Function, applied: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
  """`jvp` of `applied`, which transform `name` makes of the user's `fun`."""
  check_function(name, fun)
  for given in (primals, tangents):
    if not isinstance(given, (list, tuple)):
      fix = f"{name}(f, (x,), (t,))  # an entry for each argument"
      raise TypeError(f"{name}: primals and tangents are tuples, not {type(given).__name__}\n  fix: {fix}")
  called, aux, push = _linear(name, applied, primals, has_aux)
  given = push(tangents)
  out = called.back(called.split(has_aux)[0])
  return (out, given, called.back(aux)) if has_aux else (out, given)


def linearize(fun: Function, *primals: Any) -> tuple[Any, Callable[..., Any]]:
  """(what `fun` returns of the primals, the derivative there: a function of tangents). `fun` is called once.
  Shape: `(*primal), … -> (*result), …`.

  Examples:
    >>> y, push = linearize(lambda x: x**2, Tensor([3.0]))
    >>> push(Tensor([1.0])).tolist(), push(Tensor([2.0])).tolist()
    ([6.0], [12.0])
  """
  check_function("linearize", fun)
  called, _, push = _linear("linearize", fun, primals, False)
  return called.back(called.out), lambda *tangents: push(tangents)


def hvp(fun: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
  """The Hessian of `fun` times a vector, by all primals: the derivative of `grad` in that direction.
  Shape: `(*primal), … -> (*primal), …`.

  Examples:
    >>> hvp(lambda x: (x**3).sum(), (Tensor([1.0, 2.0]),), (Tensor([1.0, 0.0]),)).tolist()
    [6.0, 0.0]
  """
  derivative = lambda *xs: grad(fun, tuple(range(len(xs))))(*xs)  # noqa: E731
  found = _jvp("hvp", fun, derivative, primals, tangents)[1]
  return found[0] if len(primals) == 1 else found


def jacfwd(fun: Function, argnums: ArgNums = 0) -> Function:
  """The Jacobian, a column at a time (`vmap` of `jvp`): shaped as that of `jacrev`. For arguments smaller than
  results.

  Examples:
    >>> jacfwd(lambda x: x * x.sum())(Tensor([1.0, 2.0])).tolist()
    [[4.0, 1.0], [2.0, 5.0]]
  """
  check_function("jacfwd", fun)

  @functools.wraps(fun, updated=())
  def jacobian(*args: Any, **kwargs: Any) -> Any:
    of_some, numbers = with_arguments(fun, args, kwargs, argnums)
    primals = tuple(twins_of(args[i]) for i in numbers)  # one Tensor may be two arguments
    out, push = linearize(of_some, *primals)
    columns = []
    for x in [y for y in tree_leaves(primals) if dtypes.is_float(y.dtype)]:
      direction = lambda v, x=x: push(*tree_map(lambda t: v if t is x else t.zeros_like(), primals))  # noqa: E731
      found = vmap(direction, out_axes=-1)(one_hots(x))
      columns.append(tree_map(lambda t, x=x: t.reshape((*t.shape[:-1], *x.shape)), found))

    def at(y: Any, *of_leaves: Any) -> Any:
      each = iter(of_leaves)
      shaped = tree_map(lambda t: next(each) if dtypes.is_float(t.dtype) else None, primals)
      return shaped[0] if isinstance(argnums, int) else shaped

    return tree_map(at, out, *columns)

  return jacobian


def hessian(fun: Function, argnums: ArgNums = 0) -> Function:
  """The second derivatives of a function that returns one number: shape (*argument, *argument).

  Examples:
    >>> hessian(lambda x: (x**3).sum())(Tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
  """
  check_function("hessian", fun)
  return jacfwd(jacrev(fun, argnums), argnums)


def _linear(name: str, fun: Function, primals: Sequence[Any], has_aux: bool) -> tuple[Called, Any, Any]:
  """(the function, called; what else it returned; what gives tangents of the result for those of the primals)."""
  called = Called(name, fun, primals, {}, tuple(range(len(primals))))
  out, aux = called.split(has_aux)
  holes = {t.uop: unknown(t.shape, t.uop, t.uop.device) for t in tree_leaves(called.by) if dtypes.is_float(t.dtype)}
  found = tangents_of([y.uop for y in tree_leaves(out)], holes)

  def push(tangents: Sequence[Any]) -> Any:
    given: dict[UOp, UOp] = {}

    def note(x: Any, t: Any) -> None:
      if x.uop in holes:
        check_direction(name, "tangent", x, t)
        given[holes[x.uop]] = t.uop

    if len(tangents) != len(primals):
      raise ValueError(f"{name}: {len(tangents)} tangents for {len(primals)} primals\n  fix: give one for each")
    for x, t in zip(called.by, tangents):
      tree_map_alike(note, x, t, f"{name}: the tangents are structured in another way than the primals")
    actual = called.actual | given

    def leaf(y: Any) -> Any:
      return y._new(found[y.uop]) if y.uop in found else y.zeros_like()

    return replaced(tree_map(leaf, out), actual)

  return called, aux, push


# ---------------------------------------------------------------- on graphs


def tangents_of(roots: Sequence[UOp], seeds: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
  """The tangents of nodes, given those of some; what does not depend on these is missing."""
  found: dict[UOp, UOp] = dict(seeds)
  sink = UOp.sink(*roots)
  for root in (*reversed(inputs_below(sink, ())), sink):
    loops: dict[Any, list[UOp]] = defaultdict(list)
    for u in (order := root.toposort()):
      if u.op is Ops.CUSTOM and isinstance(u.arg[1], (ScanOp, WhileOp)):
        loops[u.arg[1].loop, u.src].append(u)
    for u in order:
      if u.op is Ops.CUSTOM and isinstance(u.arg[1], (ScanOp, WhileOp)):
        rule = tangents_of_loop if isinstance(u.arg[1], ScanOp) else tangents_of_while
        found |= rule(loops.pop((u.arg[1].loop, u.src), []), found)
      elif u not in found and dtypes.is_float(u.dtype) and (t := tangent_of(u, found)) is not None:
        found[u] = t
  return found


def tangent_of(u: UOp, found: dict[UOp, UOp]) -> UOp | None:
  """Of a node, given those of the nodes below it: None for 0."""
  if u.op is Ops.DETACH and u.arg is not None:
    return own_tangent(u.arg, found)
  if not any(s in found for s in u.src):
    return None
  if u.op is Ops.CUSTOM and not isinstance(u.arg[1], LanesOp):
    inner = opened(u)
    found |= tangents_of([inner], {s: found[s] for s in u.src if s in found})
    return found.get(inner)
  return tangent(u, [found.get(s) for s in u.src])


def tangents_of_loop(results: Sequence[UOp], found: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
  """Of the results of a loop: a loop over tangents, which reads of each step what the loop has kept for it, stacked. A
  carry has a tangent if it is given one, or becomes one that has."""
  if not results or not any(x in found for x in results[0].src):
    return {}
  loop, src, results = results[0].arg[1].loop, results[0].src, [u for u in results if u not in found]
  outs = [y for u in results if not isinstance(y := u.arg[1].out, int)]
  given, seeds, ts, after = tangents_of_step(loop, outs, {h: found[x] for h, x in zip(loop.holes, src) if x in found})
  read = residuals(loop, outs, [*after.values(), *(ts[y] for y in outs if y in ts)], src)
  carried = [(seeds[loop.holes[i]], given[loop.holes[i]]) for i in after]
  stacked = [(seeds[h], given[h]) for h in loop.elements if h in seeds] + [p for p in read if p[0] not in loop.same]
  same = [(seeds[h], given[h]) for h in loop.same if h in seeds] + [p for p in read if p[0] in loop.same]
  holes, sources = zip(*carried, *stacked, *same)
  new, memo = canonical_loop(ScanLoop(holes, tuple(after.values()), len(stacked), loop.length, loop.reverse))
  made: dict[UOp, UOp] = {}
  for u in results:
    out = u.arg[1].out
    if out in after:
      made[u] = new.result([*after].index(out), sources)
    elif out in ts:
      made[u] = new.result(with_replaced(ts[out], memo), sources)
  return made


def tangents_of_step(
  loop: ScanLoop, outs: Sequence[UOp], given: dict[UOp, UOp]
) -> tuple[dict[UOp, UOp], dict[UOp, UOp], dict[UOp, UOp], dict[int, UOp]]:
  """(the tangents that a loop begins with, of stand-ins; what stands for these within; the tangents of a step's values;
  those of its carries, by number), given those of the sources: with a carry that becomes one that has, there are
  more."""
  zero = {h: UOp.const(h.dtype, 0.0).broadcast_to(h.shape) for h in loop.holes[: len(loop.after)]}
  while True:
    seeds = {h: unknown(h.shape, h, h.device) for h in loop.holes if h in given}
    ts = tangents_of([*loop.after, *outs], seeds)
    if not (more := [h for h, y in zip(loop.holes, loop.after) if y in ts and h not in given]):
      break
    given |= {h: zero[h] for h in more}
  after = {i: ts.get(y, zero[h]) for i, (h, y) in enumerate(zip(loop.holes, loop.after)) if h in seeds}
  return given, seeds, ts, after


def tangents_of_while(results: Sequence[UOp], found: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
  """Of the results of a loop with a condition: the same loop, which has the tangents beside the values, for how many
  steps there are is known only when they run. The condition has none: as the steps are, they stay nearby."""
  if not results or not any(x in found for x in results[0].src):
    return {}
  (loop, src), results = (results[0].arg[1].loop, results[0].src), [u for u in results if u not in found]
  step, n = loop.body, len(loop.body.after)
  given, seeds, _, after = tangents_of_step(step, (), {h: found[x] for h, x in zip(step.holes, src) if x in found})
  carried, same = [step.holes[i] for i in after], [h for h in step.same if h in seeds]
  holes = (*step.holes[:n], *(seeds[h] for h in carried), *step.same, *(seeds[h] for h in same))
  sources = [*src[:n], *(given[h] for h in carried), *src[n:], *(given[h] for h in same)]
  body, memo = canonical_loop(ScanLoop(holes, (*step.after, *after.values()), 0, step.length, step.reverse))
  new = WhileLoop(body, with_replaced(loop.test, memo))
  return {u: new.result(n + [*after].index(u.arg[1].out), sources) for u in results if u.arg[1].out in after}


def opened(u: UOp) -> UOp:
  """The graph of what a user has defined."""
  op = u.arg[1]
  if isinstance(op, RuledOp) and op.own is not None:
    fix = "custom_jvp, which serves both ways, or reverse mode (grad, vjp)"
    raise TypeError(f"jvp: {op!r} has a gradient of its own, which says nothing of tangents\n  fix: {fix}")
  graph: UOp = op.graph(u.src)
  return graph


def tangent(u: UOp, ts: Sequence[UOp | None]) -> UOp | None:
  """Of a node, given those of its sources."""
  op = u.op
  if op is Ops.CAST:
    return None if ts[0] is None else ts[0].cast(u.dtype)
  if op in GroupOp.Elementwise:
    return total([CARDS[op].gradient(t, u)[i] for i, t in enumerate(ts) if t is not None])  # type: ignore[misc]
  if op is Ops.CUSTOM:
    fn = u.arg[1]
    src = (*u.src, *(t for t in ts if t is not None))
    inner = Tangent(fn.fn, tuple(t is not None for t in ts))
    return lanes_op(f"tangent of {fn.name}", fn.lanes, fn.dims, inner, src)
  if op is Ops.CAT:
    return UOp.cat([s.const_like(0.0) if t is None else t for s, t in zip(u.src, ts)], u.arg)
  t = ts[1 if op is Ops.SCATTER or op is Ops.ASSIGN else 0]
  if t is None or op is Ops.DETACH:
    return None
  if op in REDUCES and u.arg[0] is not Ops.ADD:
    each = CARDS[op].gradient(u.const_like(1.0), u)[-1]  # type: ignore[misc]
    assert each is not None
    t = each * t
  match op:
    case Ops.REDUCE:
      return t.r(Ops.ADD, u.arg[1])
    case Ops.SCATTER:
      return t.scatter(u.src[0], u.arg[1], Ops.ADD, u.arg[2])
    case Ops.GATHER:
      return t.gather(u.src[1], u.arg)
    case Ops.PAD:
      return t.pad(u.arg[0])
    case Ops.MOVE if u.arg.pinned:
      moved = t.copy_to_device(u.arg.device)
      return moved.replace(arg=u.arg) if moved.op is Ops.MOVE else moved
  return UOp.build(op, u.dtype, (t,), u.arg) if op in GroupOp.Movement else t


def total(parts: Sequence[UOp | None]) -> UOp | None:
  found = [p for p in parts if p is not None]
  return functools.reduce(lambda a, b: a.alu(Ops.ADD, b), found) if found else None


def own_tangent(own: OwnGradient, found: Mapping[UOp, UOp]) -> UOp | None:
  """Of what has a gradient of its own: by the rule that was given for tangents."""
  inputs = own.inputs
  if not any(x in found for x in inputs):
    return None
  if isinstance(own, OwnRules):
    return own.forward(inputs, tuple([found.get(x, x.const_like(0)) for x in inputs]))
  fix = "custom_jvp, which serves both ways, or reverse mode (grad, vjp)"
  raise TypeError(f"jvp: a value has a gradient of its own, which says nothing of tangents\n  fix: {fix}")


@dataclass(frozen=True, slots=True)
class Tangent:
  """A function of nodes -> one of these and of the tangents of those for which `by` says so: the tangent."""

  fn: Callable[[tuple[UOp, ...]], UOp]
  by: tuple[bool, ...]

  def __call__(self, nodes: tuple[UOp, ...]) -> UOp:
    src, given = nodes[: len(self.by)], iter(nodes[len(self.by) :])
    made = self.fn(src)
    found = tangents_of([made], {x: next(given) for x, has in zip(src, self.by) if has})
    return found[made] if made in found else made.const_like(0.0)
