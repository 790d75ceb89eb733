"""The placement function: on which devices an op runs, how its operands must be cut for it, and what its result is cut
into.

Collect, resolve, update (`factors.py`), and of the ways there are the one of the fewest bytes. The same decisions come
again in every layer: they are made on *abstract values*, graphs that show what a decision can see of a value, and kept
in a table, for the hooks of `UOp` as for `place`.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import (
  Partial,
  Placement,
  ShardError,
  Sharding,
  device_set,
  same_devices,
  show_placement,
  spelled,
)
from tinygrad.dtype import DType
from tinygrad.helpers import DEFER, RESHARD, STRATEGY, Settings, prod, settings_from, user_line
from tinygrad.sharding.factors import Assignment, below, beside, carried, project, resolved
from tinygrad.sharding.moves import ints, size_of, wire
from tinygrad.sharding.partial import Kept, keep, partials_of
from tinygrad.uop import BufferArg, Move, Ops, UOp, factor_rule, mesh_of

Nodes = tuple[UOp, ...]
STRATEGIES = ("cost", "basic", "aggressive")
PUSHED = frozenset((Ops.EXPAND, Ops.RESHAPE, Ops.PERMUTE))  # a move may go below these: a rearranged source
CHAINED = frozenset((*PUSHED, Ops.MOVE, Ops.CAST))  # a decision looks through these, at what is below
SEEN = frozenset((*CHAINED, Ops.MUL, Ops.CONST, Ops.IOTA))  # whose abstract value is more than a leaf
COMPARED = frozenset((Ops.MUL, Ops.GATHER))  # of two sources it matters whether they are the same
AS_GIVEN = frozenset((Ops.MOVE, Ops.AFTER))  # run where their sources are
SOURCELESS = frozenset((Ops.CONST, Ops.IOTA, Ops.VARIABLE, Ops.BIND, Ops.HOLE, Ops.SINK))
CACHED = 100_000  # entries of a table, which is then emptied


def is_partial(placement: Placement | None) -> bool:
  return isinstance(placement, Sharding) and bool(placement.partial)


# ---------------------------------------------------------------- the bytes of bringing a value to a placement


def wants_push(u: UOp) -> bool:
  return u.op in PUSHED or (u.op is Ops.CAST and u.dtype.itemsize > u.src[0].dtype.itemsize)


class Bringing:
  """Costs and forms of values at placements; one object a decision, so that shared parts are priced once."""

  __slots__ = ("memo",)

  def __init__(self) -> None:
    self.memo: dict[tuple[UOp, Placement], tuple[float, str]] = {}

  def cost(self, u: UOp, target: Placement) -> float:
    """Bytes received per device to have `u` at `target`: the least over u itself, u's source below movement, an earlier
    placement."""
    return self.best(u, target)[0]

  def best(self, u: UOp, target: Placement) -> tuple[float, str]:
    if u.device == target or u.device is None:
      return 0.0, "unreduce" if u.device is None and isinstance(target, Sharding) and target.partial else "keep"
    key = (u, target)
    if (known := self.memo.get(key)) is not None:
      return known
    found = (wire(u.shape, u.dtype.itemsize, u.device, target), "move")
    if found[0] > 0:
      if u.op is Ops.MOVE and not u.arg.pinned and (c := self.cost(u.src[0], target)) < found[0]:
        found = (c, "earlier")
      if wants_push(u) and (there := below(u, target)) is not None and (c := self.cost(u.src[0], there)) <= found[0]:
        found = (c, "below")
    self.memo[key] = found
    return found

  def moved(self, src: Sequence[UOp], o: Outcome) -> float:
    """Bytes of bringing the sources to where the outcome wants them."""
    return sum(self.cost(s, r) for s, r in zip(src, o.required) if r is not None)

  def brought(self, src: Sequence[UOp], o: Outcome) -> Nodes:
    """The sources there."""
    return tuple([s if r is None else self.build(s, r) for s, r in zip(src, o.required)])

  def build(self, u: UOp, target: Placement) -> UOp:
    """The form of `u` at `target` that `best` found."""
    match self.best(u, target)[1]:
      case "keep":
        return u
      case "earlier":
        return self.build(u.src[0], target)
      case "below":
        there = below(u, target)
        assert there is not None
        u = UOp.new(u.op, u.dtype, (self.build(u.src[0], there),), u.arg)
    return u if u.device == target else UOp.new(Ops.MOVE, u.dtype, (u,), Move(target, False))


# ---------------------------------------------------------------- the ways to run an op


@dataclass(frozen=True, slots=True)
class Outcome:
  """One way to run an op: the placement of each source and of the result, and how many blocks the work is cut into."""

  required: tuple[Placement | None, ...]
  result: Placement | None
  parts: int
  partial: float  # bytes charged for reducing the result
  mapped: float  # and for cuts along which the index map is no identity
  stays: bool  # no source has to move
  defers: bool = False  # sources stay partial, or are made so


_outcomes: dict[tuple[Any, ...], list[Outcome]] = {}


def outcomes(op: Ops, dtype: DType, src: Nodes, arg: Any, strategy: str = "cost") -> list[Outcome]:
  """The ways to run an op on sources placed as they are (a source on a single device beside a sharded one is brought
  in), those that reduce partial sources first; cached, never empty. `strategy`: "cost" gives all ways to cut the op, by
  bytes to be chosen; "basic" and "aggressive" are Shardy's resolutions of contested sub-axes, which give one.
  Raises: ValueError for another strategy."""
  key: tuple[Any, ...] = (op, dtype, arg, strategy, *[(s.shape, s.device) for s in src])
  kept = None
  if any(partials_of(s) for s in src) and (kept := keep(op, dtype, src, arg)) is not None:
    key = (kept, *key)  # legality looks at more than placements
  found = _outcomes.get(key)
  if found is None:
    if len(_outcomes) > CACHED:
      _outcomes.clear()
    found = _outcomes[key] = _find_outcomes(op, dtype, src, arg, kept, strategy)
  return found


def _find_outcomes(op: Ops, dtype: DType, src: Nodes, arg: Any, kept: Kept | None, strategy: str) -> list[Outcome]:
  if strategy not in STRATEGIES:
    fix = f"use one of {', '.join(STRATEGIES)}, e.g. Context(STRATEGY={STRATEGIES[0]!r})"
    raise ValueError(f"STRATEGY={strategy!r}: there is no such strategy for contested axes\n  fix: {fix}")
  devices = tuple(s.device for s in src)
  if op is Ops.ASSIGN:
    return [Outcome((devices[0], devices[0]), devices[0], 1, 0.0, 0.0, devices[1] is None or devices[1] == devices[0])]
  if op in SOURCELESS or op is Ops.AFTER:
    return [Outcome(devices, devices[0] if op is Ops.AFTER else None, 1, 0.0, 0.0, True)]
  base = next((d for d in devices if isinstance(d, Sharding)), None)
  if base is None:
    return [Outcome(devices, one_device(op, src), 1, 0.0, 0.0, True)]
  if not all(same_devices(base, d) for d in devices if isinstance(d, Sharding)):
    raise two_sets(op, src)
  u = UOp.new(op, dtype, src, arg)
  f, shape = factor_rule(u), u.max_shape
  placements = [d.reduced if isinstance(d, Sharding) else None for d in devices]
  found: list[Outcome] = []
  ways = resolved(f, placements, len(base), strategy)
  plans: list[tuple[Kept, list[Assignment]]] = [(Kept(((),) * len(src), ()), ways)]
  if kept is not None:
    partial = [d for partials in (*kept.sources, kept.result) for o in partials for d in o.sub_axes]
    plans.append((kept, beside(partial, ways, f)))
  for plan, cuttings in plans:
    for cuts in cuttings:
      contracted = tuple(d for factor in sorted(f.contracted) for d in cuts.get(factor, ()))
      by = arg[0] if op in (Ops.REDUCE, Ops.SCATTER) else Ops.ADD
      if contracted and any(o.op is not by for o in plan.result):
        continue
      required = tuple(
        None if d is None and not partials else Sharding.of(base.mesh, project(lists, cuts), partials)
        for d, lists, partials in zip(devices, f.src, plan.sources)
      )
      is_partial = (*plan.result, *([Partial(contracted, by, op is Ops.GATHER)] if contracted else []))
      result = Sharding.of(base.mesh, project(f.out, cuts), is_partial)
      cost = wire(shape, dtype.itemsize, result, result.reduced)
      mapped = prod(result.local_shape(shape)) * dtype.itemsize if any(result.cut(i) for i in f.remapped) else 0.0
      parts = size_of(d for sub_axes in cuts.values() for d in sub_axes)
      stays = all(d == r for d, r in zip(devices, required))
      found.append(Outcome(required, result, parts, cost, mapped, stays, plan is kept))
  return found


def two_sets(op: Ops, src: Nodes) -> ShardError:
  """The error of operands on two device sets."""
  cut = [i for i, s in enumerate(src) if isinstance(s.device, Sharding)]
  first, other = cut[0], next(i for i in cut if not same_devices(src[cut[0]].device, src[i].device))  # type: ignore[arg-type]
  sets = [sorted(device_set(src[i].device)) for i in (first, other)]  # type: ignore[arg-type]
  order = "the same devices in another order" if sets[0] == sets[1] else "two different device sets"
  fix = f"{operand(other)}.shard({operand(first)}.device)  # brings one to the other's placement"
  return shard_error(op, src, f"the operands live on {order}", fix)


def operand(i: int) -> str:
  """How a fix names the operand i."""
  return "xyz"[i] if i < 3 else f"src[{i}]"


def one_device(op: Ops, src: Nodes) -> Placement | None:
  """The single device that all sources with one are on; None if there is none. Raises ShardError for two."""
  found = list(dict.fromkeys(s.device for s in src if s.device is not None))
  if len(found) > 1:
    other = next(i for i, s in enumerate(src) if s.device == found[1])
    raise shard_error(op, src, "the operands live on different devices", f"{operand(other)}.to({found[0]!r})")
  return found[0] if found else None


def shard_error(op: Ops, src: Sequence[UOp], what: str, fix: str) -> ShardError:
  """The error that shows the operands with dtype, shape and placement, the user's line, and what helps."""
  lines = [f"{op.name.lower()}: {what}"]
  lines += [
    f"    src[{i}]: {s.dtype.name}{list(s.shape)} on {show_placement(s.device, mesh_of(s))}" for i, s in enumerate(src)
  ]
  return ShardError("\n".join([*lines, f"    in {user_line()}", f"  fix: {fix}"]))


def decide(op: Ops, dtype: DType, src: Nodes, arg: Any, later: float | None, ways: Bringing) -> Nodes:
  """The sources of `op`, brought by implied moves, in the cheapest way, to where it is to run: a move may lie below an
  EXPAND, a contraction's MUL may be built anew; where nothing has to move these are `src`.

  A partial result is charged as `later` bytes where the caller knows its consumers, else as its reduction at
  the smallest producer; a tie defers. With DEFER=0 sources are reduced. `ways`: costs that are known already.
  Raises: ShardError if the operands live on different single devices or device sets, or if RESHARD=0 and bytes would
  have to move.
  """
  if op is Ops.REDUCE and (better := contraction(src[0], arg)) is not None:
    src = (better,)
  found = outcomes(op, dtype, src, arg, STRATEGY.value)
  if len(found) == 1:
    return src if found[0].stays else _bring_all(op, src, found[0], ways)
  best = min((o for o in found if DEFER.value or not o.defers), key=functools.partial(_rank, op, src, ways, later))
  return _bring_all(op, src, best, ways)


def _rank(op: Ops, src: Nodes, ways: Bringing, later: float | None, o: Outcome) -> tuple[float, int, int]:
  partial = o.partial
  if later is not None and is_partial(o.result):
    partial = later
  elif o.defers and op in PUSHED and isinstance(here := src[0].device, Sharding):
    partial = min(partial, ways.cost(src[0], here.reduced))
  return ways.moved(src, o) + partial + o.mapped, 0 if o.defers else 1, -o.parts


def _bring_all(op: Ops, src: Nodes, o: Outcome, ways: Bringing) -> Nodes:
  if not RESHARD.value:
    for i, (s, r) in enumerate(zip(src, o.required)):
      if r is not None and (nbytes := ways.cost(s, r)) > 0 and not is_partial(s.device):
        what = f"src[{i}] has to move to {show_placement(r, mesh_of(s))}, and RESHARD=0 forbids an implied move"
        there = next((f"{operand(j)}.device" for j, x in enumerate(src) if x.device == r), spelled(r))
        fix = f"{operand(i)}.shard({there})  # before the {op.name.lower()} ({nbytes:.0f} B per device)"
        raise shard_error(op, src, what, fix)
  return ways.brought(src, o)


def deliver(u: UOp, placement: Placement) -> UOp:
  """`u` at `placement` in the cheapest form, by implied moves."""
  return Bringing().build(u, placement)


def result(u: UOp) -> Placement | None:
  """The device of a node whose sources are placed."""
  match u.op:
    case Ops.BUFFER | Ops.MOVE:
      return u.arg.device  # type: ignore[no-any-return]
    case Ops.SHARD | Ops.COLLECTIVE:  # a local value lives on each device of the set, without cuts: its shape is local
      device = u.src[0].device if u.op is Ops.SHARD else u.arg.result
      return Sharding.of(device.mesh, ()) if isinstance(device, Sharding) else device
  for o in outcomes(u.op, u.dtype, u.src, u.arg):
    if o.stays or all(s.device == r or (s.device is None and not is_partial(r)) for s, r in zip(u.src, o.required)):
      return o.result
  what, fix = "the node was built on sources that are not placed for it", "build it through the UOp methods"
  raise AssertionError(shard_error(u.op, u.src, what, fix))


# ---------------------------------------------------------------- contraction


def unmoved(u: UOp) -> UOp:
  """`u` without the implied moves below its movement ops (what is reduced stays reduced)."""
  if u.op is Ops.MOVE and not u.arg.pinned and not is_partial(u.src[0].device):
    return unmoved(u.src[0])
  if (u.op in PUSHED or u.op is Ops.CAST) and (s := unmoved(u.src[0])) is not u.src[0]:
    return UOp.new(u.op, u.dtype, decide(u.op, u.dtype, (s,), u.arg, None, Bringing()), u.arg)
  return u


def contraction(x: UOp, arg: Any) -> UOp | None:
  """REDUCE(ADD) of a MUL, through CAST, RESHAPE and PERMUTE, as one op: `x` with its MUL placed anew, the reduction
  known; None to leave it.

  The MUL was placed without knowing that it is summed. The cuts of its operands before any implied move are resolved
  again, and what the
  sum will be partial over is charged as a reduce-scatter.
  """
  if arg[0] is not Ops.ADD:
    return None
  chain = [*itertools.takewhile(lambda u: u.op in (Ops.CAST, Ops.RESHAPE, Ops.PERMUTE), x.down())]
  mul = chain[-1].src[0] if chain else x
  if mul.op is not Ops.MUL:
    return None
  operands = tuple(unmoved(s) for s in mul.src)
  if operands == mul.src or not any(isinstance(s.device, Sharding) for s in operands):
    return None
  found = outcomes(Ops.MUL, mul.dtype, operands, mul.arg, STRATEGY.value)
  if len(found) == 1:  # nothing is contested
    return None
  ways = Bringing()
  priced: list[tuple[float, int, Outcome]] = []
  for way in found:
    placed = way.result
    for u in reversed(chain):
      placed = carried(u, placed, True) if placed is not None else None
    if isinstance(placed, Sharding):
      sub_axes = [d for i in arg[1] for d in placed.cut(i)]
      block = [1 if i in arg[1] else n for i, n in enumerate(placed.local_shape(ints(x.shape)))]
      partial = prod(block) * x.dtype.itemsize * (1 - 1 / size_of(sub_axes))
      priced.append((ways.moved(operands, way) + partial, -way.parts, way))
  if not priced or (best := min(priced, key=lambda p: p[:2])[2]).result == mul.device:
    return None
  u = UOp.new(Ops.MUL, mul.dtype, ways.brought(operands, best), mul.arg)
  for link in reversed(chain):
    u = UOp.new(link.op, link.dtype, (u,), link.arg)
  return u


# ---------------------------------------------------------------- the table: decisions by abstract value

_ABSTRACT = -(1 << 60)  # the buffers of abstract values have numbers that no other buffer has
_abstracts: dict[tuple[Any, ...], UOp] = {}
costs = Bringing()
_indices: weakref.WeakKeyDictionary[UOp, int] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class OpPlacement:
  """How an op runs on sources with the abstract values `src`: they are brought to `forms`; `result` is the abstract
  value of what comes out. `fixed`: whatever is charged for reducing that. `asks`: the partial sources, and the
  placement that they are reduced to, None if they stay partial."""

  src: Nodes
  forms: Nodes
  result: UOp
  fixed: bool
  asks: tuple[tuple[int, Placement | None], ...]

  @staticmethod
  def of(src: Nodes, forms: Nodes, result: UOp, fixed: bool, at: Placement | None = None) -> OpPlacement:
    """`at`: where a move brings its source."""
    wanted = [at or x.device for x in forms]
    asks = [(i, None if is_partial(p) else p) for i, (s, p) in enumerate(zip(src, wanted)) if is_partial(s.device)]
    return OpPlacement(src, src if forms == src else forms, result, fixed, tuple(asks))


steps: dict[tuple[Any, ...], OpPlacement] = {}


def leaf(dtype: DType, shape: tuple[Any, ...], device: Placement | None, number: int = 0) -> UOp:
  """The abstract value of any value of this type, shape and placement."""
  key = (dtype, shape, device, number)
  if (found := _abstracts.get(key)) is None:
    buffer = None if device is None else BufferArg(_ABSTRACT + number, shape, device)
    found = UOp.new(Ops.BUFFER if buffer else Ops.HOLE, dtype, (), buffer or (number, shape))
    assert found.shape == shape and found.device == device
    _abstracts[key] = found.abstract = found
  return found


def abstract_of(u: UOp) -> UOp:
  """What a decision can see of a value: itself if constant, the chain of movement, casts and moves above a `leaf`, the
  operands of a product (a sum of it is placed as one op), and all there is down to a lookup whose rows are partial. An
  abstract value is its own."""
  try:
    return u.abstract
  except AttributeError:
    u.abstract = seen = _see(u)
    return seen


def _see(u: UOp) -> UOp:
  if u.op in CHAINED:
    return rebuilt(u, (abstract_of(u.src[0]),), u.arg)
  if is_partial(u.device) and _is_disjoint(u):
    return rebuilt(u, distinguished(u.op, u.src, tuple([abstract_of(s) for s in u.src])), u.arg)
  if u.op is Ops.MUL:
    return rebuilt(u, tuple([flat(abstract_of(s)) for s in u.src]), u.arg)
  if u.op is Ops.CONST:
    return UOp.const(u.dtype, u.arg)  # without what makes it a tensor of its own
  return u if u.op in SEEN else leaf(u.dtype, u.shape, u.device)


def distinguished(op: Ops, src: Nodes, seen: Nodes) -> Nodes:
  """`seen`, the abstract values of `src`, where a decision asks whether sources are the same: two partial factors, and
  the indices of lookups whose rows are partial. These get numbers, that of an index is its own for as long as it
  lives."""
  if op is Ops.GATHER:
    table = seen[0].device
    if isinstance(table, Sharding) and table.cut(0) and seen[1] is not src[1]:
      if (number := _indices.get(src[1])) is None:
        taken = set(_indices.values())
        number = _indices[src[1]] = next(i for i in itertools.count(2) if i not in taken)
      return seen[0], renamed(seen[1], number)
  elif op is Ops.MUL and seen[0] is seen[1] and src[0] is not src[1] and is_partial(seen[0].device):
    if not _is_disjoint(seen[0]):
      return seen[0], renamed(seen[1], 1)
  return seen


def _is_disjoint(u: UOp) -> bool:
  return any(o.disjoint for o in partials_of(u))


def flat(u: UOp) -> UOp:
  """An abstract value that shows no product."""
  if u.op is Ops.MUL and not _is_disjoint(u):
    return leaf(u.dtype, u.shape, u.device)
  if u.op in CHAINED and (s := flat(u.src[0])) is not u.src[0]:
    return UOp.new(u.op, u.dtype, (s,), u.arg)
  return u


def renamed(u: UOp, number: int) -> UOp:
  """The abstract value of another value that looks like `u`."""
  if u.op in CHAINED:
    return UOp.new(u.op, u.dtype, (renamed(u.src[0], number),), u.arg)
  return u if u.op is Ops.CONST or u.op is Ops.IOTA else leaf(u.dtype, u.shape, u.device, number)


def forget() -> None:
  """Empties the tables, for who changes what decisions are made by."""
  for table in (steps, _abstracts, _outcomes):
    table.clear()
  costs.memo.clear()


def roots_step(sink: UOp, src: Nodes) -> OpPlacement:
  """The roots, of these abstract values, where their Tensors show them."""
  return OpPlacement.of(src, tuple([at_placement(x, s.device) for x, s in zip(src, sink.src)]), sink, True)


def settings() -> Settings:
  """What decisions depend on besides the sources."""
  return settings_from("placement", "placement")


def step_of(op: Ops, dtype: DType, src: Nodes, arg: Any, later: float | None, under: Settings) -> OpPlacement:
  """How an op runs on sources with these abstract values, under these settings. Cached, for the same decisions come
  again in every layer."""
  if op is Ops.CONTIGUOUS or op is Ops.DETACH:
    arg = None
  key = (op, dtype, src, arg, later, under)
  if (found := steps.get(key)) is None:
    if len(steps) > CACHED:
      forget()
    forms, fixed = src, True
    if op is Ops.ASSIGN:
      forms = (src[0], at_placement(src[1], src[0].device))
    elif op not in AS_GIVEN:
      forms = decide(op, dtype, src, arg, later, costs)
      fixed = op is not Ops.REDUCE and not any(
        is_partial(o.result) for o in outcomes(op, dtype, src, arg, STRATEGY.value)
      )
    result = abstract_of(UOp.new(op, dtype, forms, arg))
    found = steps[key] = OpPlacement.of(src, forms, result, fixed, arg.device if op is Ops.MOVE else None)
  return found


def build(op: Ops, dtype: DType, src: Nodes, arg: Any) -> UOp:
  """The node of a user's op, after its sources have been brought to where `decide` wants them (of the table)."""
  seen = tuple([abstract_of(s) for s in src])
  if op in COMPARED:
    seen = distinguished(op, src, seen)
  try:
    step = step_of(op, dtype, seen, arg, None, settings())
  except ShardError as e:
    raise error_of(op, dtype, src, arg) or e from None
  u = applied(step, op, dtype, src, arg)
  u.abstract = step.result
  return u


def error_of(op: Ops, dtype: DType, src: Nodes, arg: Any) -> ShardError | None:
  """What deciding on the operands themselves raises: abstract values don't know by which names the user placed them."""
  try:
    decide(op, dtype, src, arg, None, Bringing())
  except ShardError as e:
    return e
  return None


def applied(step: OpPlacement, op: Ops, dtype: DType, src: Nodes, arg: Any) -> UOp:
  """The node on `src`, whose abstract values the step is made for."""
  if step.forms is not step.src:
    src = tuple([realized(f, o, s) for f, o, s in zip(step.forms, step.src, src)])
  u = UOp.new(op, dtype, src, arg)
  u.shape, u.device = step.result.shape, step.result.device
  return u


def realized(form: UOp, seen: UOp, u: UOp) -> UOp:
  """`u`, whose abstract value is `seen`, in the given form of it."""
  if form is seen:
    return u
  known = {seen: u}
  while seen.op in CHAINED:
    seen, u = seen.src[0], u.src[0]
    known[seen] = u
  return _realized(form, seen, u, known)


def _realized(form: UOp, end: UOp, u: UOp, known: dict[UOp, UOp]) -> UOp:
  if (found := known.get(form)) is not None:
    return found
  if form.op is Ops.MUL:  # at the end of the chain: a product placed anew
    assert end.op is Ops.MUL, f"{form!r} is made of {end!r}"
    return rebuilt(form, tuple([realized(f, o, s) for f, o, s in zip(form.src, end.src, u.src)]), form.arg)
  return rebuilt(form, (_realized(form.src[0], end, u, known),), form.arg)


def rebuilt(like: UOp, src: Nodes, arg: Any) -> UOp:
  """The node on these sources, which has the shape and the placement of `like`."""
  v = UOp.new(like.op, like.dtype, src, arg)
  v.shape, v.device = like.shape, like.device
  return v


def at_placement(x: UOp, device: Placement | None) -> UOp:
  """x where a root or an assignment shows it."""
  if device is None or x.device is None:
    return x
  return deliver(x, device.reduced if isinstance(device, Sharding) else device)
