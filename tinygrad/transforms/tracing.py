"""What transforms share: Tensors that stand in for the arguments of a function while it is called, and what takes their
places in what it returns.

A function is called once, as it is written. What it computes of its arguments is a graph over nodes that nobody else
has: of `grad` they have the arguments' values, so that Python may look at them; of `vmap` they stand for one element of
many, and have none. The graph is then rewritten, and the stand-ins are gone.
"""

import contextlib
import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.device import Placement, Sharding
from tinygrad.dtype import dtypes
from tinygrad.engine.program_order import program_order
from tinygrad.engine.run import tracers
from tinygrad.helpers import ThreadList
from tinygrad.ops import Trait, having
from tinygrad.transforms.tree import tree_map
from tinygrad.uop import Move, Ops, OwnGradient, UOp, describe
from tinygrad.uop.rewrite import on_sources, rebuild

EFFECTS = having(Trait.EFFECT)  # are where their first source is
ONE_FOR_EACH = "and its value is one for each of many elements"
CALLED_ONCE = "which is called once for all steps"
_numbers = itertools.count(1 << 32)  # beyond those of the operands of custom ops


@dataclass(frozen=True, slots=True)
class Outside:
  """What there was before a function was given anything: the changes of Tensors, and the nodes. It may write the same
  for every element to that; with a `rule`, nothing."""

  changes: int
  nodes: int
  rule: str

  @staticmethod
  def now(rule: str = "") -> "Outside":
    return Outside(program_order.now, UOp.new(Ops.HOLE, dtypes.bool, (), (next_hole(), ())).number, rule)


_outsides: ThreadList[Outside] = ThreadList()  # of the functions that are being called, the innermost's last


@contextlib.contextmanager
def tracing(transform: Any, outside: Outside | None = None) -> Iterator[None]:
  """While a transform calls the function: captured functions are called as they were written, and random numbers ask
  what they are drawn for. With `outside` it is not called as often as it counts."""
  with tracers.holding(transform), _outsides.holding(outside) if outside else contextlib.nullcontext():
    yield


def check_function(name: str, fun: Any, role: str = "the function") -> None:
  """TypeError for what cannot be called."""
  if not callable(fun):
    raise TypeError(
      f"{name}: {role} is {fun!r}, which cannot be called\n  fix: give the function itself, as lambda x: …"
    )


def stand_in(u: UOp) -> UOp:
  """A node of the value of `u` that differs from every other one: what is computed from it depends on `u` by way of it
  alone, and a derivative by it goes no further."""
  return u.with_gradient(OwnGradient((), _no_further))


def _no_further(g: UOp, inputs: tuple[UOp, ...]) -> list[UOp | None]:
  return []


def next_hole() -> int:
  """A number that no other HOLE has."""
  return next(_numbers)


def moment() -> int:
  """A number above those of the constants that Tensors have been made of, and below those still to come."""
  number: int = UOp.const(dtypes.bool, False, unique=True).src[0].arg
  return number


def is_argument(u: UOp, before: int) -> bool:
  """Whether a derivative may be taken by `u`, which has no memory: a float that a Tensor was made of before that
  `moment`, or what has a gradient of its own, as a stand-in."""
  if u.op is Ops.CONST:
    return bool(u.src) and u.src[0].arg < before and dtypes.is_float(u.dtype)
  return u.op is Ops.DETACH and u.arg is not None


def unknown(shape: tuple[Any, ...], u: UOp, device: Placement | None) -> UOp:
  """A node of that shape, of the dtype of `u`, on `device`, whose value nobody knows yet."""
  hole = UOp.new(Ops.HOLE, u.dtype, (), (next_hole(), shape))
  return hole if device is None else UOp.new(Ops.MOVE, u.dtype, (hole,), Move(device, True))


def check_write(t: Any, target: UOp, value: UOp, state: UOp | None) -> None:
  """RuntimeError where a value that nobody knows yet would be written to memory (`state`), or to a Tensor without any,
  that is not its own: the elements of a `vmap` would all be written to one place. So for any value, where the function
  is called once for many steps or may not be chosen."""
  if not tracers:
    return
  if state is None:
    rules = [o.rule for o in _outsides if t._holder.number <= o.changes]
  else:
    rules = [o.rule for o in _outsides if state.base.number <= o.nodes]
  if any(rules) or ((rules or state is not None) and any(u.op is Ops.HOLE for u in value.toposort())):
    problem = f"assign: the target is memory outside of the function, {next(filter(None, rules), ONE_FOR_EACH)}"
    rows = f"\n    target {describe(target)}\n    value  {describe(value)}"
    fix = "return the value, and assign it outside; or write to a copy: target.clone()"
    raise RuntimeError(f"{problem}{rows}\n  fix: {fix}")


def twins_of(tree: Any, node: Callable[[UOp], UOp] = lambda u: u, twins: dict[int, Any] | None = None) -> Any:
  """The structure with a Tensor beside each of its Tensors, which a function may assign to. One that is there twice has
  one. `twins`: takes them, by id of the Tensor."""
  made: dict[int, Any] = {} if twins is None else twins

  def leaf(x: Any) -> Any:
    if id(x) not in made:
      made[id(x)] = x._new(node(x.uop))
    return made[id(x)]

  return tree_map(leaf, tree)


def stand_ins(tree: Any, twins: dict[int, Any] | None = None) -> tuple[Any, dict[UOp, UOp]]:
  """The structure with a Tensor beside each of its Tensors (also in `twins`), and what each of these stands for."""
  actual: dict[UOp, UOp] = {}

  def node(u: UOp) -> UOp:
    actual[inner := stand_in(u)] = u
    return inner

  return twins_of(tree, node, twins), actual


def replaced(tree: Any, actual: Mapping[UOp, UOp]) -> Any:
  """The structure with nodes replaced in the graphs of its Tensors, what gradients of their own are taken by
  included."""
  memo = dict(actual)
  return tree_map(lambda x: x._new(with_replaced(x.uop, memo)), tree)


def with_replaced(root: UOp, memo: dict[UOp, UOp]) -> UOp:
  """`root` with nodes replaced by what `memo` says, where it also notes what the others become."""

  def make(u: UOp, src: tuple[UOp, ...]) -> UOp:
    if u.op is not Ops.DETACH or u.arg is None:
      return anew(u, src)
    own: OwnGradient = u.arg
    inputs = [rebuild(x, make, memo) for x in own.inputs]
    if inputs == list(own.inputs):
      return anew(u, src)
    return UOp.new(Ops.DETACH, u.dtype, src, replace(own, held=held_like(own.held, inputs)))

  for below in reversed(inputs_below(root, memo)):  # the last first: no deep recursion
    rebuild(below, make, memo)
  return rebuild(root, make, memo)


def anew(u: UOp, src: tuple[UOp, ...]) -> UOp:
  """`u` on other sources, which hooks bring to where it runs if they are placed in another way than its own; or if they
  are found by a lookup, for then it matters by which one."""
  if u.op is Ops.ASSIGN and src[1].device != u.src[1].device:
    return src[0].assign(src[1])
  if src == u.src or u.op in EFFECTS or u.op is Ops.SINK:
    return on_sources(u, src)
  if all(s is t or (s.device == t.device and not is_disjoint(t.device)) for s, t in zip(u.src, src)):
    return on_sources(u, src)
  if u.op is Ops.MOVE:
    return src[0] if src[0].device == u.device else on_sources(u, src)
  return UOp.build(u.op, u.dtype, src, u.arg)


def is_disjoint(device: Placement | None) -> bool:
  """Whether each element is on one device of several, and the others hold zeros."""
  return isinstance(device, Sharding) and any(o.disjoint for o in device.partial)


def own_inputs(u: UOp) -> tuple[UOp, ...]:
  """What the gradients of `u` are taken by, where it has a rule of its own."""
  return u.arg.inputs if u.op is Ops.DETACH and u.arg is not None else ()


def inputs_below(root: UOp, known: Container[UOp]) -> list[UOp]:
  """What the gradients are taken by that nodes below `root` have of their own, and those below these: each before what
  is below it."""
  order: list[UOp] = []  # sources and inputs first
  seen: set[UOp] = set()
  stack = [(root, False)]
  while stack:
    u, left = stack.pop()
    if left:
      order.append(u)
    elif u not in seen and u not in known:
      seen.add(u)
      stack += ((u, True), *((s, False) for s in (*u.src, *own_inputs(u))))
  inputs = {x for u in order for x in own_inputs(u)}
  return [u for u in reversed(order) if u in inputs]


def held_like(held: Sequence[Any], nodes: Sequence[UOp]) -> tuple[Any, ...]:
  """Tensors that an `OwnGradient` holds its inputs by."""
  return tuple([t._new(UOp.new(Ops.DETACH, u.dtype, (u,))) for t, u in zip(held, nodes, strict=True)])
