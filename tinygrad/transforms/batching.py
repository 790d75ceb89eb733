"""Leading dims for a graph: what a graph of one element becomes for many (`vmap`, `shard_map`).

Each node that depends on an element gets the lanes' dims in front of its own, and is built anew, so that placements
follow. Along a dim of its lanes a node is as long as these, or 1 where it is the same for all of them. The factors and
the index map of an op are those of its dims, which are the same ones, further back: only the numbers of dims in its arg
change (`ARGS`).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.device import Mesh, Placement, Sharding, refuse, same_devices
from tinygrad.device.partition_spec import P, cuts_of, spec_of
from tinygrad.engine.run import tracers
from tinygrad.transforms.custom import RuledOp
from tinygrad.transforms.factor_rule import FactorRule
from tinygrad.transforms.gradient import compute_gradient
from tinygrad.transforms.own_rules import OwnRules
from tinygrad.transforms.tracing import held_like, inputs_below, unknown, with_replaced
from tinygrad.uop import CustomOp, Factors, JointGradient, Move, Ops, OwnGradient, UOp, describe, holes_like, sint
from tinygrad.uop.rewrite import on_sources, rebuild

Nodes = tuple[UOp, ...]
Shape = tuple[sint, ...]


@dataclass(frozen=True, eq=False)
class Lanes:
  """The lanes of one transform. Of each of their dims: the name, the size, the number of a lane along it (`index`, a
  scalar without a value), and the mesh axes that cut it where the function places something (`spmd`; None: it stays as
  it is). `example`: a Tensor, of which others are made. `same`: whether all lanes draw the same random numbers. `mesh`:
  whose axes the dims are, if they are a mesh's."""

  names: tuple[str | None, ...]
  sizes: Shape
  index: Nodes
  spmd: tuple[tuple[str, ...] | None, ...]
  example: Any
  same: bool = False
  mesh: Mesh | None = None

  def cut(self, u: UOp) -> UOp:
    """`u`, which has the lanes' dims in front, with these over the mesh's axes where they are not 1."""
    return placed_on(u, self.mesh, [name if m != 1 else None for name, m in zip(self.names, u.shape)])


def placed_on(u: UOp, mesh: Mesh | None, names: Sequence[Any]) -> UOp:
  """`u` with its dims cut over these axes of the mesh, the others whole; itself where there is none."""
  if mesh is None:
    return u
  place = Sharding(mesh, P(*names))
  return u.copy_to_device(place) if u.device is None else u.move(place, pinned=True)


@dataclass(frozen=True, slots=True)
class LanesOp(CustomOp):
  """An op over lanes, as a sum over all of them: `fn` of the operands with the lanes' dims in front, of full length
  along `dims`. Until there are lanes it is what `fn` makes of equal ones."""

  name: str
  lanes: Lanes
  dims: tuple[int, ...]
  fn: Callable[[Nodes], UOp]

  def __repr__(self) -> str:
    return self.name

  def trace(self, holes: Nodes, shape: tuple[Any, ...] | None) -> UOp:
    k = len(self.lanes.sizes)
    lead = tuple([n if i in self.dims else 1 for i, n in enumerate(self.lanes.sizes)])
    made = self.fn(tuple([in_front(h, k, lead) for h in holes]))
    one = made.shrink([(0, 1)] * k + [(0, n) for n in made.shape[k:]])
    return one.reshape(made.shape[k:])

  def factors(self, u: UOp) -> Factors:
    return Factors(tuple(((),) * s.ndim for s in u.src), ((),) * u.ndim, ())

  def gradient(self, g: UOp, u: UOp) -> Sequence[UOp | None]:
    return [
      lanes_op(f"gradient of {self.name}", self.lanes, self.dims, Transposed(self.fn, i), (g, *u.src))
      for i in range(len(u.src))
    ]


@dataclass(frozen=True, slots=True)
class Transposed:
  """Of the gradient of `fn` and its sources: the gradient by source `i`."""

  fn: Callable[[Nodes], UOp]
  i: int

  def __call__(self, nodes: Nodes) -> UOp:
    g, *src = nodes
    holes = [unknown(x.shape, x, x.device) for x in src]  # one source may be computed of another
    made, x = self.fn(tuple(holes)), holes[self.i]
    lengths = zip(g.shape, made.shape, strict=True)
    grown = made.expand([n if isinstance(m, int) and m == 1 else m for n, m in lengths])
    at = unknown(grown.shape, g, g.device)
    found = compute_gradient(grown, at, [x]).get(x, x.const_like(0))  # by what only the value depends on
    return with_replaced(found, {**dict(zip(holes, src)), at: g.expand(grown.shape)})


def lanes_op(name: str, lanes: Lanes, dims: tuple[int, ...], fn: Callable[[Nodes], UOp], src: Nodes) -> UOp:
  """The node of an op over lanes, which depends on those sources alone that `fn` reads: a derivative has been given
  more of them."""
  op, holes = LanesOp(name, lanes, dims, fn), holes_like(src)
  made = op.trace(holes, None)
  read = set(made.toposort())
  src = tuple([x if h in read else x.const_like(0) for h, x in zip(holes, src)])
  return UOp.build(Ops.CUSTOM, made.dtype, src, (Ops.ADD, op))


def in_front(u: UOp, k: int, lead: Shape, has: bool = False) -> UOp:
  """`u` with these lengths in its first k dims; without `has` it has no such dims yet."""
  if not has:
    u = u.reshape((*(1,) * k, *u.shape))
  return u.expand((*lead, *u.shape[k:]))


def placed_again(u: UOp, here: Placement) -> UOp:
  """`u`, which the user places where it is, `here`: a move, if a map that is being traced has more to say of that
  (`spmd_axis_name`); else itself."""
  if any(isinstance(t, Lanes) and t.mesh is None and any(t.spmd) for t in tracers):
    return UOp.new(Ops.MOVE, u.dtype, (u,), Move(here, True))
  return u


def drawn_for() -> tuple[UOp | None, int]:
  """Of a random number that is drawn now: for which of the lanes, all transforms taken together, and how many there
  are; None where all draw the same."""
  number, count = None, 1
  for t in tracers:
    if isinstance(t, Lanes) and not t.same:
      for index, n in zip(t.index, t.sizes):
        if not isinstance(n, int):
          raise ValueError(
            f"random numbers for {n} elements or steps, of which nobody knows yet how many there are\n"
            "  fix: draw them outside; in vmap, randomness='same'"
          )
        number, count = index if number is None else number * n + index, count * n
  return number, count


# what becomes of an arg where k dims of these lengths stand in front
ARGS: dict[Ops, Callable[[Any, int, Shape], Any]] = {
  Ops.RESHAPE: lambda shape, k, lead: (*lead, *shape),
  Ops.EXPAND: lambda shape, k, lead: (*lead, *shape),
  Ops.PERMUTE: lambda order, k, lead: (*range(k), *(i + k for i in order)),
  Ops.FLIP: lambda axes, k, lead: tuple([i + k for i in axes]),
  Ops.PAD: lambda arg, k, lead: (((0, 0),) * k + arg[0], arg[1]),
  Ops.SHRINK: lambda pairs, k, lead: (*((0, n) for n in lead), *pairs),
  Ops.CAT: lambda axis, k, lead: axis + k,
  Ops.WINDOW: lambda arg, k, lead: (arg[0] + k, arg[1] + k, *arg[2:]),
  Ops.SPREAD: lambda arg, k, lead: (arg[0] + k, arg[1] + k, *arg[2:]),
  Ops.REDUCE: lambda arg, k, lead: (arg[0], tuple([i + k for i in arg[1]])),
  Ops.SCATTER: lambda arg, k, lead: (arg[0], arg[1], arg[2] + k),
  Ops.GATHER: lambda batch, k, lead: batch + k,
}


class Batching:
  """One rewriting of graphs over stand-ins. `made`: what nodes become; to begin with, stand-ins what they stand for.
  `varies`: the nodes that depend on a lane, which have the lanes' dims in front."""

  def __init__(self, lanes: Lanes, stand_ins: Mapping[UOp, UOp]) -> None:
    self.lanes, self.k = lanes, len(lanes.sizes)
    self.made: dict[UOp, UOp] = dict(stand_ins)
    self.loops: dict[Any, Any] = {}  # what loops on their sources have become (loop.py)
    self.varies = set(stand_ins)
    for i, (index, n) in enumerate(zip(lanes.index, lanes.sizes)):
      numbers = UOp.iota(n, index.dtype)
      self.made[index] = numbers.reshape([n if j == i else 1 for j in range(self.k)])
      self.varies.add(index)

  def of(self, root: UOp) -> UOp:
    """What `root` becomes."""
    for below in reversed(inputs_below(root, self.made)):  # the last first: no deep recursion
      rebuild(below, self.make, self.made)
    return rebuild(root, self.make, self.made)

  def lead(self, us: Sequence[UOp]) -> Shape:
    """The lengths of the lanes' dims of what is computed from `us`."""
    return full_lengths([self.made[u].shape[: self.k] for u in us if u in self.varies])

  def lifted(self, u: UOp, lead: Shape) -> UOp:
    """What a source becomes, with dims of these lengths in front."""
    return in_front(self.made[u], self.k, lead, u in self.varies)

  def fronted(self, u: UOp) -> UOp:
    """What `u` becomes, with dims of lanes in front, of length 1 where it is the same for all."""
    made = self.of(u)
    return made if u in self.varies else made.reshape((*(1,) * self.k, *made.shape))

  def make(self, u: UOp, src: Nodes) -> UOp:
    if u.op is Ops.CUSTOM and isinstance(u.arg[1], LanesOp) and u.arg[1].lanes is self.lanes:
      return self.over_lanes(u)
    if u.op is Ops.DETACH and u.arg is not None:
      return self.own_gradient(u, u.arg)
    lifting = u.src[:1] if u.op is Ops.AFTER else u.src
    if not any(s in self.varies for s in lifting) and not (u.op is Ops.CUSTOM and self.speak_in(u.arg[1])):
      return on_sources(u, src)
    self.varies.add(u)
    lead = self.lead(u.src)
    match u.op:
      case Ops.MOVE:
        return self.move(u, src[0])
      case Ops.CONSTRAIN:
        return src[0].constrain(self.hint(u))
      case Ops.CUSTOM:
        return self.custom(u, lead)
      case Ops.AFTER:
        return on_sources(u, src)
      case Ops.GATHER if u.arg == 0 and u.src[0] not in self.varies:
        return src[0].gather(src[1])
    arg = ARGS[u.op](u.arg, self.k, lead) if u.op in ARGS else u.arg
    return UOp.build(u.op, u.dtype, tuple([self.lifted(s, lead) for s in u.src]), arg)

  def speak_in(self, op: CustomOp) -> bool:
    """Whether it is a loop in which these lanes say something to each other, and so may differ afterwards."""
    inner = [u.arg[1] for u in UOp.sink(*op.body).toposort() if u.op is Ops.CUSTOM]
    return any(self.speak_in(x) or (isinstance(x, LanesOp) and x.lanes is self.lanes) for x in inner)

  # ---- what says where a value is

  def move(self, u: UOp, x: UOp) -> UOp:
    """What the user has placed, with the lanes' dims in front of those that he has cut. What hooks inserted they insert
    again, where it is wanted."""
    here, there = u.src[0].device, u.arg.device
    if not u.arg.pinned and (here is None or same_devices(here, there)):
      return x
    if self.lanes.mesh is not None:
      # a gradient that is a number is delivered so, too: it lives anywhere
      if not u.arg.pinned or (here is None and u.src[0] not in self.varies):
        return x
      rule = f"shard_map: the function places {describe(u)}, and it is of one device's parts already"
      refuse(rule, "place it outside; inside, psum, all_gather and the others move it")
    device = self.placed(there, x)
    return UOp.new(Ops.MOVE, u.dtype, (x,), replace(u.arg, device=device)) if x.device != device else x

  def placed(self, device: Placement, x: UOp) -> Placement:
    """A placement with dims in front: cut as `spmd` says, else as they are, where these axes are free."""
    if not isinstance(device, Sharding):
      return device
    taken = set(device.used)
    front = []
    for i, names in enumerate(self.lanes.spmd):
      if names is not None:
        front.append(cuts_of(device.mesh, P(names if len(names) > 1 else names[0]))[0])
      else:
        kept = isinstance(x.device, Sharding) and same_devices(x.device, device)
        front.append(tuple(d for d in x.device.cut(i) if d not in taken) if kept else ())  # type: ignore[union-attr]
    dims = (*front, *device.dims)
    if not device.partial:
      Sharding(device.mesh, spec_of(device.mesh, dims))  # in the names with which the user has placed it
    return in_dims(device, dims)

  def hint(self, u: UOp) -> Any:
    """A hint with dims in front: cut as `spmd` says, else open."""
    c, spmd = u.arg, self.lanes.spmd
    return replace(
      c,
      dims=(*(names or () for names in spmd), *c.dims),
      opened=(*(names is None for names in spmd), *c.opened),
      priorities=((0,) * self.k + c.priorities),
    )

  # ---- what users define

  def over_lanes(self, u: UOp) -> UOp:
    """An op over these lanes: along its dims every source is as long as they are."""
    op: LanesOp = u.arg[1]
    lead = list(self.lead(u.src) or (1,) * self.k)
    for i in op.dims:
      lead[i] = self.lanes.sizes[i]
    made = op.fn(tuple([self.lifted(s, tuple(lead)) for s in u.src]))
    self.varies.add(u)
    return made

  def custom(self, u: UOp, lead: Shape) -> UOp:
    by, op = u.arg
    if not isinstance(op, (LanesOp, RuledOp)):
      made: UOp = op.batched(self, tuple(map(self.fronted, u.src)))
      return made
    src = tuple([self.lifted(s, lead) for s in u.src])
    if isinstance(op, LanesOp):  # of lanes around these: theirs stay in front
      new: CustomOp = replace(op, fn=Inside(op.fn, self.lanes, len(op.lanes.sizes)))
    else:
      fn, own = Over(op.fn, self.lanes), None if op.own is None else OverGradient(op.own, self.lanes)
      new = replace(op, fn=fn, own=own, rule=rule_with_lanes(op.rule, u.src, u, op.result, self.k), kernels=())
    return UOp.build(Ops.CUSTOM, u.dtype, src, (by, new))

  def own_gradient(self, u: UOp, own: OwnGradient) -> UOp:
    """A value with a gradient of its own: by each input that has lanes it has them too, by others it is the sum over
    lanes."""
    inputs = own.inputs
    if not any(s in self.varies for s in (*u.src, *inputs)):
      now = tuple([self.made[x] for x in inputs])
      if now == inputs and self.made[u.src[0]] is u.src[0]:
        return u
      return UOp.new(Ops.DETACH, u.dtype, (self.made[u.src[0]],), replace(own, held=held_like(own.held, now)))
    # a value that a collective has made the same for all lanes stays one for all
    lead = self.lead(u.src if u.src[0] in self.varies else inputs)
    self.varies.add(u)
    varying = tuple([x in self.varies for x in inputs])
    held = held_like(own.held, [self.made[x] for x in inputs])
    new = replace(own, held=held, rule=OverOwnRule(own.rule, self.lanes, varying))
    if isinstance(new, JointGradient):
      new = replace(new, joint=OverJoint(new.joint, self.lanes, varying))
    if isinstance(new, OwnRules):
      new = replace(new, forward=OverForward(new.forward, self.lanes, varying, lead))
    return self.lifted(u.src[0], lead).with_gradient(new)


# ---------------------------------------------------------------- functions of graphs, over lanes


def batched(
  fn: Callable[[Nodes], Sequence[UOp | None]], lanes: Lanes, src: Sequence[UOp], varying: Sequence[bool]
) -> list[tuple[UOp, bool] | None]:
  """What a function of one lane's nodes makes of those of all, and whether it varies."""
  k = len(lanes.sizes)
  holes = [unknown(x.shape[k:], x, one_lane(x.device, k)) if v else x for x, v in zip(src, varying)]
  batching = Batching(lanes, {h: x for h, x, v in zip(holes, src, varying) if v})
  with tracers.holding(lanes):  # a user's rule may name them, and draws for each of them
    made = fn(tuple(holes))
  return [None if y is None else (batching.of(y), y in batching.varies) for y in made]


def one_lane(device: Placement | None, k: int) -> Placement | None:
  """Where a lane of a value with k dims of lanes is: where all are, without the cuts of these dims."""
  return in_dims(device, device.dims[k:]) if isinstance(device, Sharding) else device


def in_dims(device: Sharding, dims: Sequence[Any]) -> Placement:
  """The placement with other dims cut."""
  placement: Placement = device.with_dims(dims)
  return placement


@dataclass(frozen=True, slots=True)
class Over:
  """A function of nodes, over lanes."""

  fn: Callable[[Nodes], UOp]
  lanes: Lanes

  def __call__(self, nodes: Nodes) -> UOp:
    (found,) = batched(lambda xs: [self.fn(xs)], self.lanes, nodes, [True] * len(nodes))
    assert found is not None
    made, varies = found
    k = len(self.lanes.sizes)
    return in_front(made, k, nodes[0].shape[:k] if nodes else (1,) * k, varies)


@dataclass(frozen=True, slots=True)
class OverGradient:
  """The gradient that a custom op has of its own, over lanes."""

  own: Callable[[UOp, Nodes], Sequence[UOp | None]]
  lanes: Lanes

  def __call__(self, g: UOp, src: Nodes) -> list[UOp | None]:
    k = len(self.lanes.sizes)
    found = batched(lambda xs: self.own(xs[0], xs[1:]), self.lanes, (g, *src), [True] * (1 + len(src)))
    return [None if f is None else in_front(f[0], k, x.shape[:k], f[1]) for f, x in zip(found, src)]


@dataclass(frozen=True, slots=True)
class OverOwnRule:
  """The rule of an `OwnGradient`, over lanes; `varying`: which inputs have them."""

  rule: Callable[[UOp, Nodes], Sequence[UOp | None]]
  lanes: Lanes
  varying: tuple[bool, ...]

  def __call__(self, g: UOp, inputs: Nodes) -> list[UOp | None]:
    return parts_over(lambda xs: self.rule(xs[0], xs[1:]), self.lanes, (g,), inputs, self.varying)


@dataclass(frozen=True, slots=True)
class OverJoint:
  """The rule of several results together, over lanes; `varying`: which inputs have them."""

  joint: Callable[[Sequence[int], Nodes, Nodes], Sequence[UOp | None]]
  lanes: Lanes
  varying: tuple[bool, ...]

  def __call__(self, numbers: Sequence[int], gs: Nodes, inputs: Nodes) -> list[UOp | None]:
    n = len(gs)
    return parts_over(lambda xs: self.joint(numbers, xs[:n], xs[n:]), self.lanes, gs, inputs, self.varying)


def parts_over(
  rule: Callable[[Nodes], Sequence[UOp | None]], lanes: Lanes, gs: Nodes, inputs: Nodes, varying: tuple[bool, ...]
) -> list[UOp | None]:
  """The gradients by the inputs, of results with the gradients `gs` of each lane. The gradient of a result that is the
  same for all lanes, of inputs that are not, is that of the first lane's: the sum over lanes is what counts."""
  k = len(lanes.sizes)
  lead = full_lengths([x.shape[:k] for x, v in zip((*gs, *inputs), (*(True for _ in gs), *varying)) if v])
  gs = tuple([g.pad([(0, n - m) for n, m in zip((*lead, *g.shape[k:]), g.shape)]) for g in gs])
  found = batched(rule, lanes, (*gs, *inputs), (*(True for _ in gs), *varying))
  parts: list[UOp | None] = []
  for f, x, varies in zip(found, inputs, varying):
    parts.append(None if f is None else summed_to(in_front(f[0], k, lead, f[1]), x, k, varies))
  return parts


def full_lengths(leads: Sequence[Shape]) -> Shape:
  """The lengths of the lanes' dims of what is computed from values with these, each of which is full or 1."""
  return tuple([next((n for n in ns if not (isinstance(n, int) and n == 1)), 1) for ns in zip(*leads)])


@dataclass(frozen=True, slots=True)
class OverForward:
  """The rule for tangents of an `OwnRules`, over lanes; `varying`: which inputs have them; `lead`: how long they are in
  the value."""

  forward: Callable[[Nodes, Nodes], UOp]
  lanes: Lanes
  varying: tuple[bool, ...]
  lead: Shape

  def __call__(self, inputs: Nodes, tangents: Nodes) -> UOp:
    n, k = len(inputs), len(self.lanes.sizes)
    both, varying = (*inputs, *tangents), self.varying * 2
    (found,) = batched(lambda xs: [self.forward(xs[:n], xs[n:])], self.lanes, both, varying)
    assert found is not None
    made = in_front(found[0], k, (1,) * k) if not found[1] else found[0]
    one = [(0, 1 if isinstance(n, int) and n == 1 else m) for n, m in zip(self.lead, made.shape)]
    return made.shrink((*one, *((0, m) for m in made.shape[k:]))).expand((*self.lead, *made.shape[k:]))


def summed_to(part: UOp, x: UOp, k: int, varies: bool) -> UOp:
  """A gradient of each lane as one of `x`: summed where x is the same for all."""
  same = [i for i in range(k) if not varies or (isinstance(x.shape[i], int) and x.shape[i] == 1)]
  total = part.r(Ops.ADD, same)
  return total if varies else total.reshape(x.shape)


@dataclass(frozen=True, slots=True)
class Inside:
  """A function over lanes outside of these: of nodes with the outer lanes' dims in front, then those of the inner."""

  fn: Callable[[Nodes], UOp]
  lanes: Lanes
  outer: int

  def __call__(self, nodes: Nodes) -> UOp:
    k = len(self.lanes.sizes)
    swapped = tuple([turned(x, self.outer, k) for x in nodes])
    return turned(Over(self.fn, self.lanes)(swapped), k, self.outer)


def turned(x: UOp, first: int, second: int) -> UOp:
  """The second so many dims before the first so many."""
  return x.permute((*range(first, first + second), *range(first), *range(first + second, x.ndim)))


def rule_with_lanes(rule: FactorRule, src: Nodes, result: UOp, number: int, k: int) -> FactorRule:
  """A sharding rule with k factors more in front of every operand and result."""
  bound = rule.on(src, {number: result.shape})
  taken = itertools.count()
  front = tuple((f"lane{next(taken)}",) for _ in range(k))
  sources, results = (tuple((*front, *bound.dims(dims)) for dims in side) for side in (rule.sources, rule.results))
  return replace(rule, text=f"{rule.text} over {k} dims of lanes", sources=sources, results=results)
