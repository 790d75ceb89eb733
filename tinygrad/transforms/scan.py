"""`scan`: a function that is applied to one element after the other, with what it carries; compiled once."""

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Placement, Sharding, reduced_placement
from tinygrad.dtype import dtypes
from tinygrad.engine.jit import is_tensor
from tinygrad.engine.realize import stages
from tinygrad.engine.run import tracers
from tinygrad.helpers import SPEC
from tinygrad.transforms.batching import Lanes, in_dims, one_lane
from tinygrad.transforms.loop import ScanLoop, canonical_loop
from tinygrad.transforms.run_loops import loops_run
from tinygrad.transforms.tracing import (
  CALLED_ONCE,
  Outside,
  check_function,
  inputs_below,
  is_argument,
  moment,
  next_hole,
  own_inputs,
  tracing,
  unknown,
  with_replaced,
)
from tinygrad.transforms.tree import tree_leaves, tree_map, tree_map_alike, tree_numbers
from tinygrad.uop import CARDS, Ops, UOp, describe

Nodes = Sequence[UOp]
Step = Callable[[Any, Any], tuple[Any, Any]]


def scan(
  f: Step, init: Any, xs: Any = None, length: int | None = None, reverse: bool = False, unroll: int = 1
) -> tuple[Any, Any]:
  """(the last carry, the results of all steps stacked) of `carry, y = f(carry, x)`, which is applied to the elements of
  `xs` (Tensors in any structure, along dim 0) in order, or from the last one on with `reverse`. `init` is the first
  carry; shapes, types and placements stay as they are in it. `length`: how many steps, where no `xs` say it. `unroll`:
  so many steps are compiled as one.

  `f` is called once, on Tensors without values; one step is placed, lowered and compiled, whatever the length.
  Gradients run the steps from the other end, and read what each step has kept, stacked. Random numbers differ from step
  to step: those that one call for all steps would draw, with `unroll` one call for all blocks by each step of a block.
  Raises: ValueError for lengths that differ or are below 0, an `unroll` below 1, and where the carry changes its
  structure, shape or type.
  Shape: `(*carry), (length, *x), … -> (*carry), (length, *y), …`.

  Examples:
    >>> last, sums = scan(lambda c, x: (c + x, c + x), Tensor(0.0), Tensor([1.0, 2.0, 3.0]))
    >>> last.item(), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
  """
  check_function("scan", f)
  if loops_run not in stages:
    stages.append(loops_run)
  n = _length(tree_leaves(xs), length)
  if not isinstance(unroll, int) or unroll < 1:
    raise ValueError(f"scan: unroll={unroll!r} is no number of steps\n  fix: unroll=n, from 1 on")
  if unroll > 1:
    return _in_blocks(f, init, xs, n, reverse, unroll)
  first, stacks = [x.uop for x in tree_leaves(init)], [_whole_first_dim(x.uop) for x in tree_leaves(xs)]
  body = Body.traced(f, init, xs, first, stacks, n).settled()
  loop, outs = body.loop(n, reverse)
  src = [*(carried_at(u, h.device) for u, h in zip(first, loop.holes)), *stacks, UOp.iota(n, dtypes.int32), *body.same]
  carries = iter([loop.result(i, src) for i in range(len(first))])
  ys = iter([loop.result(y, src) for y in outs])
  last = tree_map(lambda x: x._new(next(carries)), init)
  return last, tree_map(lambda y: y._new(next(ys)), body.results)


def carried_at(u: UOp, place: Placement | None) -> UOp:
  """A carry where the loop has it. What has no place in a function of a device's part is that part, and stays there."""
  if place is None:
    return u
  if u.device is None:
    return u if any(isinstance(t, Lanes) and t.mesh is not None for t in tracers) else u.copy_to_device(place)
  return u.move(reduced_placement(place), pinned=False)


def _length(xs: Sequence[Any], length: int | None) -> int:
  """How many steps there are."""
  said = [(length, "length")] if length is not None else []
  for x in xs:
    if not x.ndim:
      raise ValueError(
        f"scan: {describe(x.uop)} has no dim to step along\n  fix: what is the same in all steps is not in xs"
      )
    said.append((x.shape[0], f"dim 0 of {describe(x.uop)}"))
  if not said:
    raise ValueError("scan: nothing says how many steps there are\n  fix: give xs, or length=…")
  if any(n != said[0][0] for n, _ in said):
    rows = "".join(f"\n    {n} by {where}" for n, where in said)
    raise ValueError(f"scan: all xs must have one length{rows}\n  fix: check dim 0 of each")
  if not isinstance(said[0][0], int):
    raise ValueError(f"scan: the number of steps must be known, not {said[0][0]}\n  fix: pad xs, and mask")
  if said[0][0] < 0:
    raise ValueError(f"scan: {said[0][0]} is no number of steps\n  fix: length=n, from 0 on")
  return said[0][0]


def _whole_first_dim(u: UOp) -> UOp:
  """A stack whose elements are where all of it is."""
  device = u.device
  return u.move(in_dims(device.reduced, ((), *device.dims[1:])), pinned=False) if isinstance(device, Sharding) else u


@dataclass(frozen=True, slots=True)
class Body:
  """A function that was called once, at the moment `before`: the stand-ins, what the carry became, the structure of the
  results, and the values from outside that every step reads."""

  holes: list[UOp]  # carries, elements, the number of the step
  after: list[UOp]
  results: Any
  before: int
  same: list[UOp]

  @staticmethod
  def of(holes: list[UOp], after: list[UOp], results: Any, before: int) -> "Body":
    return Body(holes, after, results, before, outside([*after, *(t.uop for t in tree_leaves(results))], holes, before))

  @staticmethod
  def traced(f: Step, init: Any, xs: Any, first: Nodes, stacks: Nodes, n: int) -> "Body":
    carries = [unknown(u.shape, u, u.device) for u in first]
    elements = [unknown(u.shape[1:], u, one_lane(u.device, 1)) for u in stacks]
    number = UOp.new(Ops.HOLE, dtypes.int32, (), (next_hole(), ()))
    given = iter([*carries, *elements])
    around = Outside.now(CALLED_ONCE)
    carry, x = (tree_map(lambda t: t._new(next(given)), tree) for tree in (init, xs))
    example = next(iter([*tree_leaves(init), *tree_leaves(xs)]), None)
    before = moment()
    with tracing(Lanes((None,), (n,), (number,), (None,), example), around):
      made = f(carry, x)
    if not isinstance(made, tuple) or len(made) != 2:
      raise ValueError(f"scan: the function returns {made!r}\n  fix: return (carry, y); y may be None")
    return Body.of([*carries, *elements, number], check_carries("scan", init, made[0]), made[1], before)

  def settled(self) -> "Body":
    """With carries that have no place where what they become is."""
    body = self
    while unplaced := [i for i, y in enumerate(body.after) if body.holes[i].device is None and y.device is not None]:
      body = body.placed(unplaced)
    return body

  def placed(self, carries: Sequence[int]) -> "Body":
    """With these carries where they are after a step."""
    holes = list(self.holes)
    memo: dict[UOp, UOp] = {}
    for i in carries:
      at = self.after[i].device
      holes[i] = memo[self.holes[i]] = unknown(holes[i].shape, holes[i], at.reduced if isinstance(at, Sharding) else at)
    after = [with_replaced(y, memo) for y in self.after]
    results = tree_map(lambda t: t._new(with_replaced(t.uop, memo)), self.results)
    return Body.of(holes, after, results, self.before)  # what is read from outside may have moved below a view of it

  def loop(self, n: int, reverse: bool) -> tuple[ScanLoop, list[UOp]]:
    """The loop, and the values of its body that are stacked."""
    same = [unknown(u.shape, u, u.device) for u in self.same]
    holes = (*self.holes, *same)
    stacks = len(self.holes) - len(self.after)
    loop, memo = canonical_loop(ScanLoop(holes, tuple(self.after), stacks, n, reverse), dict(zip(self.same, same)))
    outs = [with_replaced(t.uop, memo) for t in tree_leaves(self.results)]
    assert SPEC.value < 2 or not outside([*loop.after, *outs], loop.holes, self.before), "a body reads what is outside"
    return loop, outs


def check_carries(name: str, before: Any, after: Any) -> list[UOp]:
  """What the Tensors of a carry are after a step, in the order in which they stood before it, whatever the order of
  keys. ValueError unless it is as it was, but for the values of its Tensors."""
  numbers, became = tree_numbers(before), tree_numbers(after)
  if numbers != became:
    rule = f"the carry is {before!r}, and after a step {after!r}, which has other numbers"
    number = next((x for i, x in enumerate(numbers) if became[i : i + 1] != [x]), 0)
    raise ValueError(f"{name}: {rule}\n  fix: give Tensors for what changes: Tensor({number!r})")
  rule = f"{name}: the carry is structured in another way after a step"
  return [y.uop for y in tree_leaves(tree_map_alike(functools.partial(_check_carry, name), before, after, rule))]


def _check_carry(name: str, before: Any, after: Any) -> Any:
  if not is_tensor(after) or before.shape != after.shape or before.dtype is not after.dtype:
    became = describe(after.uop) if is_tensor(after) else repr(after)
    fix = "cast or reshape one of the two" + ("; what changes from step to step goes into y" if name == "scan" else "")
    raise ValueError(f"{name}: the carry is {describe(before.uop)}, and after a step it is {became}\n  fix: {fix}")
  return after


def outside(roots: Sequence[UOp], holes: Sequence[UOp], before: int) -> list[UOp]:
  """The values that do not depend on the stand-ins, below those that do, or among `roots`; below what repeats them.
  Constants are none, nor what is computed of them but by loops, custom ops and variables, but for those by which
  somebody may differentiate: floats of Tensors that are older than `before`, a `moment`, and what stands in for an
  argument."""
  inputs = reversed(inputs_below(UOp.sink(*roots), ()))
  order = UOp.sink(*inputs, *roots).toposort()  # what a gradient is taken by before what has it
  inner, varied = set(holes), set[UOp]()
  for u in order:
    if u not in inner and u.op is not Ops.SINK and any(s in inner for s in (*u.src, *own_inputs(u))):
      inner.add(u)
    unknown_yet = u.op is Ops.HOLE or u.op is Ops.CUSTOM or u.op is Ops.BIND
    if unknown_yet or is_argument(u, before) or any(s in varied for s in u.src):
      varied.add(u)
  found: dict[UOp, None] = {}
  for u in (*(s for v in inner for s in (*v.src, *own_inputs(v)) if v not in holes), *roots):
    if u not in inner and (u.device is not None or u in varied):
      found[_not_repeated(u)] = None
  return sorted(found, key=order.index)


def _not_repeated(u: UOp) -> UOp:
  """Of views that below all which repeat elements, so that a gradient is summed step by step; views below it stay, as
  somebody may differentiate by one. What a Tensor of one number repeats is no view of something else."""
  views = [*itertools.takewhile(lambda v: CARDS[v.op].index_map is not None, u.down())]
  repeats = [i for i, v in enumerate(views) if v.op is Ops.EXPAND]
  if repeats and u.base.op is Ops.CONST:
    repeats.pop()
  return views[repeats[-1]].src[0] if repeats else u


def _in_blocks(f: Step, init: Any, xs: Any, n: int, reverse: bool, block: int) -> tuple[Any, Any]:
  """Several steps at a time, and those that are left over at the end of the way."""
  whole = n // block * block
  rest = (0, n - whole) if reverse else (whole, n)
  many = (n - whole, n) if reverse else (0, whole)

  def steps(carry: Any, x: Any) -> tuple[Any, Any]:
    ys: list[Any] = [None] * block
    for i in reversed(range(block)) if reverse else range(block):
      carry, ys[i] = f(carry, tree_map(operator.itemgetter(i), x))
    return carry, tree_map(_stacked, *ys) if block > 1 else ys[0]

  blocks = tree_map(lambda t: t[many[0] : many[1]].reshape(whole // block, block, *t.shape[1:]), xs)
  carry, ys = scan(steps, init, blocks, whole // block, reverse)
  ys = tree_map(lambda t: t.reshape(whole, *t.shape[2:]), ys)
  if whole == n:
    return carry, ys
  carry, more = scan(f, carry, tree_map(lambda t: t[rest[0] : rest[1]], xs), n - whole, reverse)
  first, second = (more, ys) if reverse else (ys, more)
  return carry, tree_map(_joined, first, second)


def _stacked(first: Any, *others: Any) -> Any:
  return first.stack(*others)


def _joined(first: Any, second: Any) -> Any:
  return first.cat(second)


class ScannedLayers:
  """Equal layers as one: what `scan_layers` makes. `layers` is the first of them with every Tensor stacked, so that
  `get_state_dict` finds it, and an optimizer trains it."""

  def __init__(self, layers: Sequence[Any]) -> None:
    if not layers:
      raise ValueError("scan_layers: there are no layers\n  fix: give at least one")
    for other in layers[1:]:
      _check_layers(layers[0], other)
    self.layers = tree_map(_stacked_parameter, *layers)

  def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
    """What the layers make of x, each of what the one before it has made; the other arguments are the same for all."""
    return scan(lambda carry, layer: (layer(carry, *args, **kwargs), None), x, self.layers)[0]


def _check_layers(first: Any, other: Any) -> None:
  """ValueError where a layer is not like the first one, whose function and numbers are then those of all."""
  rule, fix = "scan_layers: the layers differ", "scan those that are equal, and call the others as they are"
  tree_map_alike(_check_parameter, first, other, rule, fix)
  if type(first) is not type(other):
    raise ValueError(f"{rule}: {type(first).__name__} and {type(other).__name__}\n  fix: {fix}")
  for a, b in itertools.zip_longest(tree_numbers(first), tree_numbers(other)):
    if a != b:
      raise ValueError(f"{rule}: {a!r} in the first, {b!r} in another\n  fix: {fix}; or give Tensors: Tensor({a!r})")


def _check_parameter(first: Any, other: Any) -> None:
  if not is_tensor(other) or other.shape != first.shape or other.dtype is not first.dtype:
    became = describe(other.uop) if is_tensor(other) else repr(other)
    rule = f"the layers differ: {describe(first.uop)} in the first, {became} in another"
    raise ValueError(f"scan_layers: {rule}\n  fix: scan those that are equal, and call the others as they are")


def _stacked_parameter(first: Any, *others: Any) -> Any:
  return first.stack(*others).contiguous().requires_grad_(first.requires_grad)


def scan_layers(layers: Sequence[Any]) -> ScannedLayers:
  """Equal layers (callables that hold Tensors, such as modules), to be called as one: their Tensors are stacked, and a
  layer is compiled once. Raises: ValueError where they differ in structure, shapes, types or Python numbers.

  Examples:
    >>> model = scan_layers([nn.Linear(4, 4) for _ in range(8)])
    >>> model(Tensor.ones(2, 4)).shape, model.layers.weight.shape
    ((2, 4), (8, 4, 4))
  """
  return ScannedLayers(layers)
