"""A loop as a value: what `scan` makes, as an op of the graph.

A `ScanLoop` is a body over stand-ins, for the carries, one element of each stack, and what stays the same; it says what
the carries are afterwards. A node (`ScanOp`) is one result of a loop: a carry at the end, or any value of the body, of
all steps, as a stack. Nodes of one loop on the same sources run together (`run_loops.py`). So a gradient can ask for
values of the body that nobody wanted before: they are more results of the loop that computes the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.device import Placement, Sharding
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import all_int
from tinygrad.ops import Trait, having
from tinygrad.transforms.batching import Batching, Lanes, in_dims, in_front, one_lane
from tinygrad.transforms.custom import plain_constant
from tinygrad.transforms.gradient import JointOp, compute_gradients
from tinygrad.transforms.tracing import unknown, with_replaced
from tinygrad.uop import Factors, GroupOp, Move, Ops, UOp, describe
from tinygrad.uop.rewrite import rewrite

Nodes = tuple[UOp, ...]
FIRST = 1 << 40  # the number of the first stand-in of every body, so that equal loops are equal
CHEAP = GroupOp.Elementwise | GroupOp.Movement | having(Trait.IDENTITY)  # not kept for the gradient


@dataclass(frozen=True, slots=True)
class ScanLoop:
  """`holes`: the stand-ins in the order of a node's sources: of `len(after)` carries, of one element of each of
  `stacks` stacks, of what is the same in all steps. `after`: the carries after a step. From the last element to the
  first with `reverse`."""

  holes: Nodes
  after: Nodes
  stacks: int
  length: int
  reverse: bool

  @property
  def elements(self) -> Nodes:
    return self.holes[len(self.after) : len(self.after) + self.stacks]

  @property
  def same(self) -> Nodes:
    return self.holes[len(self.after) + self.stacks :]

  def place(self, i: int) -> Placement | None:
    """Where source i is to be; None: anywhere."""
    device, n = self.holes[i].device, len(self.after)
    return stacked_placement(device) if n <= i < n + self.stacks else device

  def result(self, out: UOp | int, src: Sequence[UOp]) -> UOp:
    """A node of the loop on these sources: the number of a carry, or a value of the body, stacked."""
    made = self.after[out] if isinstance(out, int) else out
    check_lengths("scan", made)
    if all(x.device is None for x in src):  # a node of constants would be anywhere, and its body is not
      src = [x if (at := self.place(i)) is None else x.copy_to_device(at) for i, x in enumerate(src)]
    return UOp.build(Ops.CUSTOM, made.dtype, tuple(src), (Ops.ADD, ScanOp(self, out)))


def check_lengths(name: str, y: UOp) -> None:
  """Raises: ValueError for what a step leaves, if its memory would be of a length that a variable says."""
  if not all_int(y.shape):
    problem = f"{name}: a step leaves {describe(y)}, of which the lengths must be known"
    raise ValueError(f"{problem}\n  fix: pad what it is made of, x.pad_to(x.max_shape), and mask")


@dataclass(frozen=True, slots=True)
class ScanOp(JointOp):
  """One result of a loop: carry number `out` at the end, or the value `out` of the body of every step."""

  loop: ScanLoop
  out: UOp | int

  def __repr__(self) -> str:
    return f"scan({self.loop.length} steps)"

  def shape(self, u: UOp) -> tuple[Any, ...]:
    out = self.out
    return self.loop.after[out].shape if isinstance(out, int) else (self.loop.length, *out.shape)

  def dtype(self, u: UOp) -> DType:
    return self.loop.after[self.out].dtype if isinstance(self.out, int) else self.out.dtype

  @property
  def placed(self) -> Placement | None:  # type: ignore[override]
    """Where the result is, whatever the sources are moved for."""
    out = self.out
    return self.loop.holes[out].device if isinstance(out, int) else stacked_placement(out.device)

  @property
  def body(self) -> Nodes:  # type: ignore[override]
    return self.loop.after if isinstance(self.out, int) else (*self.loop.after, self.out)

  def graph(self, src: Sequence[UOp], shape: tuple[Any, ...] | None = None) -> UOp:
    placed = []
    for i, x in enumerate(src):
      there = self.loop.place(i)
      placed.append(x if there is None or x.device == there else x.copy_to_device(there))
    made = rewrite(self.unrolled(tuple(placed)), {Ops.CONST: plain_constant})
    here = self.placed  # a dim of 1 more or less may have lost an uneven cut
    return made if here is None or made.device == here else made.copy_to_device(here)

  def factors(self, u: UOp) -> Factors:
    return Factors(tuple(((),) * s.ndim for s in u.src), ((),) * u.ndim, ())

  def trace(self, holes: Nodes, shape: tuple[Any, ...] | None) -> UOp:
    return self.unrolled(holes)

  def unrolled(self, src: Nodes) -> UOp:
    """The same without a loop: for who evaluates or explains."""
    loop, n = self.loop, len(self.loop.after)
    carries, stacks, same = list(src[:n]), src[n : n + loop.stacks], src[n + loop.stacks :]
    outs: list[UOp] = []
    after, memo = list[UOp](), dict[UOp, UOp]()
    for y in (*loop.after, *(() if isinstance(self.out, int) else (self.out,))):
      after.append(rewrite(y, {Ops.DETACH: plain_value}, memo))
    for i in reversed(range(loop.length)) if loop.reverse else range(loop.length):
      here = dict(zip(loop.holes, (*carries, *(element(s, i) for s in stacks), *same)))
      made = [settled(with_replaced(y, here)) for y in after]
      carries, outs = made[:n], [*outs, *made[n:]]
    if isinstance(self.out, int):
      return carries[self.out]
    if not outs:
      return UOp.const(self.out.dtype, 0).broadcast_to((0, *self.out.shape))
    outs = outs[::-1] if loop.reverse else outs
    return UOp.cat([y.reshape((1, *y.shape)) for y in outs], 0)

  def gradient(self, g: UOp, u: UOp) -> Sequence[UOp | None]:
    return self.joint_gradient([(u, g)])

  def together(self, u: UOp) -> Any:
    return self.loop, u.src

  def joint_gradient(self, parts: Sequence[tuple[UOp, UOp]]) -> Sequence[UOp | None]:
    return Backward(self.loop).of({u.arg[1].out: g for u, g in parts}, parts[0][0].src)

  def batched(self, batching: Batching, src: Nodes) -> UOp:
    """With lanes in front of every source, each as long as it is: a loop whose body has them."""
    k, loop, n = batching.k, self.loop, len(self.loop.after)
    turned = tuple([turned_in(x, k) if n <= i < n + loop.stacks else x for i, x in enumerate(src)])
    if (found := batching.loops.get((loop, turned))) is None:
      found = batching.loops[loop, turned] = with_lanes(loop, batching.lanes, turned)
    new, inner, numbers, sources = found
    if isinstance(self.out, int):
      return new.result(self.out, sources)
    made = new.result(with_replaced(inner.fronted(self.out), numbers), sources)
    return made.permute((*range(1, k + 1), 0, *range(k + 1, made.ndim)))


def with_lanes(loop: ScanLoop, lanes: Lanes, src: Nodes) -> tuple[ScanLoop, Batching, dict[UOp, UOp], Nodes]:
  """(the loop over lanes, how its body became so, what has become of the nodes of that, its sources). A carry that is
  the same for all lanes at first, and then is not, has lanes from the start."""
  sources, n, k = list(src), len(loop.after), len(lanes.sizes)
  while True:
    holes = []
    for i, x in enumerate(sources):
      stack = n <= i < n + loop.stacks
      holes.append(unknown(x.shape[1:] if stack else x.shape, x, one_lane(x.device, int(stack))))
    inner = Batching(lanes, dict(zip(loop.holes, holes)))
    after = [inner.fronted(y) for y in loop.after]
    leads = [joint_lead(x, y, k) for x, y in zip(sources, after)]
    if all(x.shape[:k] == lead for x, lead in zip(sources, leads)):
      break
    for i, lead in enumerate(leads):
      sources[i] = lanes.cut(in_front(sources[i], k, lead, True))
  after = [in_front(y, k, lead, True) for y, lead in zip(after, leads)]
  new, numbers = canonical_loop(ScanLoop(tuple(holes), tuple(after), loop.stacks, loop.length, loop.reverse))
  return new, inner, numbers, tuple(sources)


def joint_lead(x: UOp, y: UOp, k: int) -> tuple[Any, ...]:
  """The lengths of k dims of lanes that hold for both."""
  return tuple([m if isinstance(n, int) and n == 1 else n for n, m in zip(x.shape[:k], y.shape[:k])])


def stacked_placement(device: Placement | None) -> Placement | None:
  """Where a stack is of what is on `device`: its first dim is whole."""
  return in_dims(device.reduced, ((), *device.dims)) if isinstance(device, Sharding) else device


def plain_value(u: UOp) -> UOp | None:
  """Without a gradient of its own, whose Tensors would be over what stands for memory in the key of a plan."""
  return None if u.arg is None else u.replace(arg=None)


def settled(y: UOp) -> UOp:
  """What a step leaves: it owes no reduction, and no later one is to wait for what comes after the step."""
  at = y.device
  return UOp.new(Ops.MOVE, y.dtype, (y,), Move(at.reduced, True)) if isinstance(at, Sharding) else y


def element(stack: UOp, i: Any) -> UOp:
  """The i-th of a stack; i is an int or a bound variable."""
  one = stack.shrink([(i, i + 1)] + [(0, n) for n in stack.shape[1:]])
  return one.reshape(stack.shape[1:])


def turned_in(x: UOp, k: int) -> UOp:
  """The dim behind k dims of lanes in front of them."""
  return x.permute((k, *range(k), *range(k + 1, x.ndim)))


def canonical_loop(loop: ScanLoop, outer: Mapping[UOp, UOp] | None = None) -> tuple[ScanLoop, dict[UOp, UOp]]:
  """The loop with stand-ins that are numbered in order, and with carries that stay where they were; and what has become
  of its nodes. `outer`: nodes of its body that stand-ins are for."""
  memo: dict[UOp, UOp] = {}
  for i, h in enumerate(loop.holes):
    hole, at = UOp.new(Ops.HOLE, h.dtype, (), (FIRST + i, h.shape)), h.device
    at = at.reduced if isinstance(at, Sharding) else at
    memo[h] = hole if at is None else UOp.new(Ops.MOVE, h.dtype, (hole,), Move(at, True))
  memo.update((u, memo[h]) for u, h in (outer or {}).items())
  holes = tuple([memo[h] for h in loop.holes])
  after = []
  for y, h in zip(loop.after, holes):
    x = with_replaced(y, memo)
    after.append(x if h.device is None or x.device == h.device else x.copy_to_device(h.device))
  return replace(loop, holes=holes, after=tuple(after)), memo


class Backward:
  """The gradient of a loop: a loop over its steps from the other end. Of each step it reads what contractions and
  lookups have computed (and the carry, and the elements), stacked; what is cheap is computed again."""

  def __init__(self, loop: ScanLoop) -> None:
    self.loop = loop
    self.wanted = [h for h in loop.holes if dtypes.is_float(h.dtype)]

  def of(self, given: Mapping[UOp | int, UOp], src: Nodes) -> list[UOp | None]:
    """By each source, of results with these gradients: None for what is no float, or has no part in them."""
    loop, n = self.loop, len(self.loop.after)
    carried = [i for i in range(n) if dtypes.is_float(loop.after[i].dtype)]
    seeds = {i: unknown(loop.holes[i].shape, loop.holes[i], loop.holes[i].device) for i in carried}
    stacked = {y: (unknown(y.shape, y, y.device), g) for y, g in given.items() if not isinstance(y, int)}
    roots = [(loop.after[i], seeds[i]) for i in carried] + [(y, h) for y, (h, _) in stacked.items()]
    found = compute_gradients(roots, self.wanted)
    read = residuals(loop, [y for y, _ in roots], list(found.values()), src)
    stacks = [*stacked.values(), *(pair for pair in read if pair[0] not in loop.same)]
    totals = {h: unknown(h.shape, h, h.device) for h in loop.same if h in found}
    same = [h for h in loop.same if h in {x for x, _ in read}]
    zero = {i: UOp.const(h.dtype, 0.0).broadcast_to(h.shape) for i, h in enumerate(loop.holes)}
    after = [found.get(loop.holes[i], zero[i]) for i in carried] + [t.alu(Ops.ADD, found[h]) for h, t in totals.items()]
    holes = (*seeds.values(), *totals.values(), *(h for h, _ in stacks), *same)
    back, memo = canonical_loop(ScanLoop(holes, tuple(after), len(stacks), loop.length, not loop.reverse))
    first = [given.get(i, zero[i]) for i in carried]
    number = {h: i for i, h in enumerate(loop.holes)}
    sources = [*first, *(zero[number[h]] for h in totals), *(s for _, s in stacks), *(src[number[h]] for h in same)]
    parts: list[UOp | None] = [None] * len(src)
    for j, i in enumerate(carried):
      parts[i] = back.result(j, sources)
    for h in loop.elements:
      if h in found:
        parts[number[h]] = back.result(with_replaced(found[h], memo), sources)
    for j, h in enumerate(totals):
      parts[number[h]] = back.result(len(carried) + j, sources)
    return parts


def residuals(loop: ScanLoop, outs: Sequence[UOp], derived: Sequence[UOp], src: Nodes) -> list[tuple[UOp, UOp]]:
  """What a derivative of a step (`derived`) reads of the step itself, whose results are `outs`: (the value, its stack),
  and what is the same in all steps."""
  n = len(loop.after)
  forward = UOp.sink(*loop.after, *loop.holes, *outs).toposort()
  of_steps = set(loop.holes[: n + loop.stacks])
  varying: set[UOp] = set()
  for u in forward:
    if u in of_steps or any(s in varying for s in u.src):
      varying.add(u)
  kept: dict[UOp, UOp] = {}
  seen: set[UOp] = set()
  stack = list(derived)
  while stack:
    u = stack.pop()
    if u in seen:
      continue
    seen.add(u)
    if u in loop.holes:
      i = loop.holes.index(u)
      kept[u] = src[i] if i >= n else loop.result(u, src)
    elif u in varying and u.op not in CHEAP:
      kept[u] = loop.result(u, src)
    else:
      stack += u.src
  return list(kept.items())
