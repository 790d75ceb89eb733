"""The placement function: on which devices an op runs, how its operands must be cut for it, and what its result is cut
into.

Collect, resolve, update: the cuts of the operands' dims are collected on the op's factors (from its card), conflicts
are resolved by bytes,
and the factors' cuts give the placement that each operand needs and the placement of the result. One digit cuts at most
one factor.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Digit, Owe, Placement, ShardError, Sharding, same_devices, show_placement
from tinygrad.dtype import DType
from tinygrad.helpers import DEFER, RESHARD, SPEC, STRATEGY, Context, prod, user_line
from tinygrad.sharding.moves import Digits, atoms, boundaries, ints, size_of, wire
from tinygrad.sharding.owed import Kept, debts_of, keep
from tinygrad.uop.cards import Factors, card
from tinygrad.uop.ops import BufferArg, Move, Ops, UOp
from tinygrad.uop.rewrite import substitute

Assignment = dict[int, Digits]  # factor -> the digits that cut it, major to minor
PUSHED = frozenset(
  (Ops.EXPAND, Ops.RESHAPE, Ops.PERMUTE)
)  # a move may go below these: the value is a rearranged source
AS_GIVEN = frozenset((Ops.MOVE, Ops.AFTER))  # run where their sources are
SEEN = frozenset((*PUSHED, Ops.MOVE, Ops.CAST, Ops.MUL, Ops.CONST, Ops.IOTA))  # whose outline is more than a leaf
COMPARED = frozenset((Ops.MUL, Ops.GATHER))  # of two sources it matters whether they are the same
REMAPPED = frozenset((Ops.PAD, Ops.SHRINK, Ops.FLIP, Ops.CAT, Ops.WINDOW, Ops.SPREAD))
REMAPPED_OR_MOVED = REMAPPED | {Ops.MOVE}
SOURCELESS = frozenset((Ops.CONST, Ops.IOTA, Ops.VARIABLE, Ops.BIND, Ops.HOLE, Ops.SINK))


@dataclass(frozen=True, slots=True)
class Probe:
  """Stands for a node that is not built yet, where a card asks for one."""

  op: Ops
  dtype: DType
  src: tuple[UOp, ...]
  arg: Any

  @property
  def shape(self) -> tuple[Any, ...]:
    probe: Any = self
    return card(self.op).shape(probe)

  @property
  def ndim(self) -> int:
    return len(self.shape)

  @property
  def max_shape(self) -> tuple[int, ...]:
    return ints(self.shape)


def factor_rule(u: UOp) -> Factors:
  """The factors of a node, from its card."""
  rule = card(u.op).factors
  assert rule is not None, f"{u.op.name} has no factor rule"
  return rule(u)


@dataclass(frozen=True, slots=True)
class Outcome:
  """One way to run an op: the placement of each source and of the result, and how many blocks the work is cut into."""

  required: tuple[Placement | None, ...]
  result: Placement | None
  parts: int
  owed: float  # bytes charged for what the result owes
  mapped: float  # and for cuts along which the index map is no identity
  stays: bool  # no source has to move
  defers: bool = False  # sources go on owing, or are lifted


# ---------------------------------------------------------------- dims <-> factors


def collect(lists: Sequence[Sequence[int]], f: Factors, dims: Sequence[Digits]) -> Assignment:
  """Cuts of dims -> cuts of factors. A dim of several factors is cut major to minor, so its digits split by gcd along
  them."""
  out: Assignment = {}
  for inner, digits in zip(lists, dims):
    if not digits:
      continue
    if len(inner) == 1:
      if inner[0] not in f.blocked:
        out[inner[0]] = digits
      continue
    rest = list(digits)
    for factor in inner:
      left = f.sizes[factor]
      if factor in f.blocked or not isinstance(left, int):
        break
      while rest:
        d = rest[0]
        if (g := math.gcd(left, d.size)) == 1:
          break
        out[factor] = (*out.get(factor, ()), Digit(g, d.stride * (d.size // g)))
        left //= g
        rest[:1] = [Digit(d.size // g, d.stride)] if g < d.size else []
      if left != 1:
        break
  return out


def legal(cuts: Assignment, lists: Iterable[Sequence[int]], f: Factors) -> Assignment:
  """Without the cuts that a dim of several factors cannot express: they must be even, and all factors before a cut one
  fully cut."""
  out = {factor: digits for factor, digits in cuts.items() if digits}
  compound = [inner for inner in lists if len(inner) > 1]
  changed = bool(compound)
  while changed:
    changed = False
    for inner in compound:
      is_open = True
      for factor in inner:
        digits, n = out.get(factor, ()), f.sizes[factor]
        kept = digits if is_open and isinstance(n, int) else ()
        while kept and n % size_of(kept):
          kept = kept[:-1]
        if kept != digits:
          changed = True
          out[factor] = kept
          if not kept:
            del out[factor]
        is_open = is_open and size_of(kept) == n
  return out


def project(lists: Sequence[Sequence[int]], cuts: Assignment) -> tuple[Digits, ...]:
  """Cuts of factors -> cuts of dims."""
  return tuple(tuple(d for factor in inner for d in cuts.get(factor, ())) for inner in lists)


def overlap(a: Digit, b: Digit) -> bool:
  """Whether two digits cannot be part of one placement: they share a part of the device's number, or form no divisor
  chain."""
  low, high = (a, b) if a.stride < b.stride else (b, a)
  return high.stride % (low.stride * low.size) != 0


def dims_of(f: Factors) -> list[Sequence[int]]:
  return [inner for lists in (*f.src, f.out) for inner in lists]


def merge(
  f: Factors, placements: Sequence[Sharding | None], order: Iterable[int], chain: tuple[int, ...]
) -> tuple[Assignment, set[Digit], set[Digit]]:
  """The cuts that the sources ask for, earlier ones in `order` first; with the digits in conflict, and all digits asked
  for."""
  cuts: Assignment = {}
  used: set[Digit] = set()
  clash: set[Digit] = set()
  asked: set[Digit] = set()
  for i in order:
    s = placements[i]
    if s is None:
      continue
    dims = []
    for j in range(len(f.src[i])):
      refined = atoms(s.cut(j), chain)
      clash |= set(s.cut(j)) if refined is None else set()
      dims.append(refined or ())
      asked |= set(refined or ())
    for factor, digits in collect(f.src[i], f, dims).items():
      have = cuts.get(factor, ())
      if have[: len(digits)] == digits:
        continue
      if digits[: len(have)] != have:
        clash |= set(digits) - set(have)
        continue
      for d in digits[len(have) :]:
        if any(overlap(d, other) for other in used):
          clash.add(d)
          break
        cuts[factor] = (*cuts.get(factor, ()), d)
        used.add(d)
  return cuts, clash, asked


def assignments(f: Factors, placements: Sequence[Sharding | None], n: int) -> list[Assignment]:
  """The ways to cut the factors: one if nothing is contested; else each contested digit on any factor that can carry
  it, or on none."""
  cut = [i for i, s in enumerate(placements) if s is not None and s.dims]
  lists = dims_of(f)
  out: dict[tuple[tuple[int, Digits], ...], Assignment] = {}

  def add(cuts: Assignment) -> None:
    ok = legal(cuts, lists, f)
    out.setdefault(tuple(sorted(ok.items())), ok)

  orders: Iterable[tuple[int, ...]] = (
    itertools.permutations(cut) if len(cut) <= 3 else ((i, *(j for j in cut if j != i)) for i in cut)
  )
  for order in orders:
    chain = boundaries(n, [(d for dim in s.dims for d in dim) for i in order if (s := placements[i]) is not None])
    cuts, clash, asked = merge(f, placements, order, chain)
    kept = {d for digits in legal(cuts, lists, f).values() for d in digits}
    volume = prod(d.size for d in asked)
    if not clash and kept and prod(d.size for d in kept) == volume and sum(len(x) for x in cuts.values()) == len(kept):
      add(cuts)
      return list(out.values())
    if not asked:
      return [{}]
    add(cuts)
    lost = {d for d in asked if not any(overlap(d, k) for k in kept)} | {d for d in asked if d not in kept}
    contested = clash | lost | ({d for digits in cuts.values() for d in digits} if clash else set())
    for d in sorted(contested, key=lambda d: (-d.stride, d.size)):
      base = {factor: tuple(x for x in digits if not overlap(x, d)) for factor, digits in cuts.items()}
      add(base)
      for factor, size in enumerate(f.sizes):
        if factor not in f.blocked and isinstance(size, int) and size >= d.size:
          add({**base, factor: (*base.get(factor, ()), d)})
  return list(out.values())


def most_parallel(ways: Sequence[Assignment]) -> Assignment:
  """The way that cuts the work into the most blocks; of equal ones the first, which is the first operand's."""
  return max(ways, key=lambda cuts: size_of(d for digits in cuts.values() for d in digits))


def common_prefixes(f: Factors, placements: Sequence[Sharding | None], n: int) -> Assignment:
  """Each factor cut by the longest prefix on which all sources that cut it agree (as far as theirs go), without the
  digits that a source asks for on another factor."""
  sources = [(lists, s) for lists, s in zip(f.src, placements) if s is not None]
  chain = boundaries(n, [s.used for _, s in sources])
  asked = [collect(lists, f, [atoms(s.cut(i), chain) or () for i in range(len(lists))]) for lists, s in sources]
  out: Assignment = {}
  for factor in range(len(f.sizes)):
    here = [cuts[factor] for cuts in asked if factor in cuts]
    elsewhere = [d for cuts in asked for other, digits in cuts.items() if other != factor for d in digits]
    out[factor] = max(here, key=len, default=())
    for i, d in enumerate(out[factor]):
      if any(len(x) > i and x[i] != d for x in here) or any(overlap(d, e) for e in elsewhere):
        out[factor] = out[factor][:i]
        break
  return legal(out, dims_of(f), f)


# ---------------------------------------------------------------- the bytes of bringing a value to a placement

_CACHE_LIMIT = 100_000


def wants_push(u: UOp) -> bool:
  return u.op in PUSHED or (u.op is Ops.CAST and u.dtype.itemsize > u.src[0].dtype.itemsize)


_below: dict[tuple[Any, ...], Placement | None] = {}


def below(u: UOp, target: Placement) -> Placement | None:
  """The placement of u's source from which u, a rearrangement of it, has every part that `target` wants; None if there
  is none. Cached: the same rearrangements come again in every layer."""
  if isinstance(target, str):
    return target
  if target.pending and target.pending != (u.device.pending if isinstance(u.device, Sharding) else ()):
    return None
  key = (u.op, u.arg, u.src[0].shape, target)
  if key not in _below:
    if len(_below) > _CACHE_LIMIT:
      _below.clear()
    _below[key] = _find_below(u, target)
  return _below[key]


def _find_below(u: UOp, target: Sharding) -> Placement | None:
  f = factor_rule(u)
  cuts = legal(collect(f.out, f, [target.cut(i) for i in range(len(f.out))]), dims_of(f), f)
  if target.with_dims(project(f.out, cuts)) is not target:
    return None
  there = target.with_dims(project(f.src[0], cuts))
  return there if isinstance(there, (str, Sharding)) else None


@functools.cache
def _implied(target: Placement) -> Move:
  return Move(target, False)


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
      return 0.0, "lift" if u.device is None and isinstance(target, Sharding) and target.pending else "keep"
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
    return u if u.device == target else UOp.new(Ops.MOVE, u.dtype, (u,), _implied(target))


# ---------------------------------------------------------------- decisions

_outcomes: dict[tuple[Any, ...], list[Outcome]] = {}


STRATEGIES = ("cost", "basic", "aggressive")


def outcomes(op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any, strategy: str = "cost") -> list[Outcome]:
  """The ways to run an op on sources placed as they are (a source on a single device beside a sharded one is brought
  in), those that pay debts first; cached, never empty. `strategy`: "cost" gives all ways to cut the op, by bytes to be
  chosen; "basic" and "aggressive" are Shardy's resolutions of contested digits, which give one.
  Raises: ValueError for another strategy."""
  key: tuple[Any, ...] = (op, dtype, arg, strategy, *[(s.shape, s.device) for s in src])
  kept = None
  if any(debts_of(s) for s in src) and (kept := keep(op, dtype, src, arg)) is not None:
    key = (kept, *key)  # legality looks at more than placements
  found = _outcomes.get(key)
  if found is None:
    if len(_outcomes) > _CACHE_LIMIT:
      _outcomes.clear()
    found = _outcomes[key] = _find_outcomes(op, dtype, src, arg, kept, strategy)
  return found


def _find_outcomes(
  op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any, kept: Kept | None, strategy: str
) -> list[Outcome]:
  if strategy not in STRATEGIES:
    raise ValueError(
      f"STRATEGY={strategy!r}: there is no such strategy for contested axes\n"
      f"  fix: use one of {', '.join(STRATEGIES)}, e.g. Context(STRATEGY={STRATEGIES[0]!r})"
    )
  devices = tuple(s.device for s in src)
  if op is Ops.ASSIGN:
    return [Outcome((devices[0], devices[0]), devices[0], 1, 0.0, 0.0, devices[1] is None or devices[1] == devices[0])]
  if op in SOURCELESS or op is Ops.AFTER:
    return [Outcome(devices, devices[0] if op is Ops.AFTER else None, 1, 0.0, 0.0, True)]
  base = next((d for d in devices if isinstance(d, Sharding)), None)
  if base is None:
    return [Outcome(devices, one_device(op, src), 1, 0.0, 0.0, True)]
  check_device_sets(op, src)
  probe: Any = Probe(op, dtype, src, arg)
  f, shape = factor_rule(probe), probe.max_shape
  placements = [d.settled if isinstance(d, Sharding) else None for d in devices]
  found: list[Outcome] = []
  ways = assignments(f, placements, len(base))
  if strategy != "cost" and len(ways) > 1:
    ways = [most_parallel(ways) if strategy == "aggressive" else common_prefixes(f, placements, len(base))]
  plans: list[tuple[Kept, list[Assignment]]] = [(Kept(((),) * len(src), ()), ways)]
  if kept is not None:
    plans.append((kept, _beside(kept, ways, f)))
  for plan, cuttings in plans:
    for cuts in cuttings:
      contracted = tuple(d for factor in sorted(f.contracted) for d in cuts.get(factor, ()))
      by = arg[0] if op is Ops.REDUCE else Ops.ADD
      if contracted and any(o.op is not by for o in plan.result):
        continue
      required = tuple(
        None if d is None and not debts else Sharding.of(base.mesh, project(lists, cuts), debts)
        for d, lists, debts in zip(devices, f.src, plan.sources)
      )
      owes = (*plan.result, *([Owe(contracted, by, op is Ops.GATHER)] if contracted else []))
      result = Sharding.of(base.mesh, project(f.out, cuts), owes)
      owed = wire(shape, dtype.itemsize, result, result.settled)
      mapped = prod(result.local_shape(shape)) * dtype.itemsize if any(result.cut(i) for i in f.remapped) else 0.0
      parts = size_of(d for digits in cuts.values() for d in digits)
      stays = all(d == r for d, r in zip(devices, required))
      found.append(Outcome(required, result, parts, owed, mapped, stays, plan is kept))
  return found


def _beside(kept: Kept, ways: Sequence[Assignment], f: Factors) -> list[Assignment]:
  """The cuts that leave alone every digit that is owed."""
  owed = [d for debts in (*kept.sources, kept.result) for o in debts for d in o.digits]
  out: dict[tuple[tuple[int, Digits], ...], Assignment] = {}
  for cuts in ways:
    free = {factor: tuple(d for d in digits if not any(overlap(d, o) for o in owed)) for factor, digits in cuts.items()}
    free = legal(free, dims_of(f), f)
    out.setdefault(tuple(sorted(free.items())), free)
  return list(out.values())


def one_device(op: Ops, src: tuple[UOp, ...]) -> Placement | None:
  """The single device that all sources with one are on; None if there is none. Raises ShardError for two."""
  found: Placement | None = None
  for s in src:
    d = s.device
    if d is None or d == found:
      continue
    if found is not None and d != found:
      raise ShardError(
        explain_error(op, src, "the operands live on different devices", f"move one, e.g. y.to({_spell(found)})")
      )
    found = d
  return found


def _spell(device: Placement) -> str:
  return repr(device) if isinstance(device, str) else "x.device"


def explain_error(op: Ops, src: Sequence[UOp], what: str, fix: str) -> str:
  """The message of a ShardError: the operands with dtype, shape and placement, the user's line, and what helps."""
  lines = [f"{op.name.lower()}: {what}"]
  lines += [f"    src[{i}]: {s.dtype.name}{list(s.shape)} on {show_placement(s.device)}" for i, s in enumerate(src)]
  return "\n".join([*lines, f"    in {user_line()}", f"  fix: {fix}"])


def check_device_sets(op: Ops, src: Sequence[UOp]) -> None:
  """Raises ShardError where operands live on two different sets (or orders) of several devices."""
  placements = [s.device for s in src if isinstance(s.device, Sharding)]
  if not all(same_devices(placements[0], p) for p in placements[1:]):
    raise ShardError(
      explain_error(
        op,
        src,
        "the operands live on two different device sets",
        "bring one to the other's placement: y.shard(x.device)",
      )
    )


def decide(
  op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any, later: float | None, ways: Bringing
) -> tuple[UOp, ...]:
  """The sources of `op`, brought by implied moves, in the cheapest way, to where it is to run: a move may lie below an
  EXPAND, a contraction's MUL may be built anew; where nothing has to move these are `src`.

  What the result then owes is charged as `later` bytes where the caller knows its consumers, else as its settlement at
  the smallest producer; a tie defers. With DEFER=0 sources are settled. `ways`: costs that are known already.
  Raises: ShardError if the operands live on different single devices or device sets, or if RESHARD=0 and bytes would
  have to move.
  """
  if op is Ops.REDUCE and (better := contraction(src[0], arg)) is not None:
    src = (better,)
  found = outcomes(op, dtype, src, arg, STRATEGY.value)
  if len(found) == 1:
    return src if found[0].stays else _bring_all(op, src, found[0], ways)
  rank = functools.partial(_rank, op, src, ways, later)
  best = min((o for o in found if DEFER.value or not o.defers), key=rank)
  return _bring_all(op, src, best, ways)


def _rank(op: Ops, src: tuple[UOp, ...], ways: Bringing, later: float | None, o: Outcome) -> tuple[float, int, int]:
  owed = o.owed
  if later is not None and owes(o.result):
    owed = later
  elif o.defers and op in PUSHED and isinstance(here := src[0].device, Sharding):
    owed = min(owed, ways.cost(src[0], here.settled))
  moved = sum(ways.cost(s, r) for s, r in zip(src, o.required) if r is not None)
  return moved + owed + o.mapped, 0 if o.defers else 1, -o.parts


def _bring_all(op: Ops, src: tuple[UOp, ...], o: Outcome, ways: Bringing) -> tuple[UOp, ...]:
  if not RESHARD.value:
    for i, (s, r) in enumerate(zip(src, o.required)):
      if (
        r is not None and (nbytes := ways.cost(s, r)) > 0 and not (isinstance(s.device, Sharding) and s.device.pending)
      ):
        what = f"src[{i}] has to move to {show_placement(r)}, and RESHARD=0 forbids an implied move"
        raise ShardError(
          explain_error(
            op, src, what, f"bring it there with .shard(...) before the {op.name.lower()} ({nbytes:.0f} B per device)"
          )
        )
  return tuple([s if r is None else ways.build(s, r) for s, r in zip(src, o.required)])


def deliver(u: UOp, placement: Placement) -> UOp:
  """`u` at `placement` in the cheapest form, by implied moves."""
  return Bringing().build(u, placement)


def result(u: UOp) -> Placement | None:
  """The device of a node whose sources are placed."""
  match u.op:
    case Ops.BUFFER | Ops.MOVE:
      device = u.arg.device
      return device if isinstance(device, (str, Sharding)) else None
    case Ops.SHARD:
      return _everywhere(u.src[0].device)
    case Ops.COLLECTIVE:
      return _everywhere(u.arg.result)
  ways = [
    o
    for o in outcomes(u.op, u.dtype, u.src, u.arg)
    if o.stays or all(s.device == r or (s.device is None and not owes(r)) for s, r in zip(u.src, o.required))
  ]
  assert ways, explain_error(
    u.op, u.src, "the node was built on sources that are not placed for it", "build it through the UOp methods"
  )
  return ways[0].result


def _everywhere(device: Placement | None) -> Placement | None:
  """Where a local value lives: on each device of the set, without cuts (its shape is local)."""
  return Sharding.of(device.mesh, ()) if isinstance(device, Sharding) else device


# ---------------------------------------------------------------- all consumers known


def place(sink: UOp) -> UOp:
  """The hooks' graph with implied moves decided again, now that every consumer is known; roots arrive at the placement
  that their Tensor showed. Where this saves no bytes the hooks' graph stands."""
  return place_in_order(sink)[-1]


def place_in_order(sink: UOp) -> list[UOp]:
  """All nodes of the placed graph, sources first."""
  order = sink.toposort()
  sink.shape, sink.device  # noqa: B018 (fills in those of all nodes below)
  if any(owes(u._device) for u in order):
    if DEFER.value:
      with Context(RESHARD=1):  # where that forbids a move, the hooks have said so
        again = Placer(order).run().toposort()
      if bytes_of(again) < bytes_of(order):
        order, sink = again, again[-1]
    if sink.op is Ops.SINK and any(owes(u.device) for u in sink.src):
      order = sink.replace(src=tuple(settled(u) for u in sink.src)).toposort()
  if SPEC.value >= 2:
    for u in order:
      assert u.op is Ops.SINK or result(u) == u.device, f"{u!r} is placed as {u.device}, not {result(u)}"
  return order if (found := scatter(order)) is order[-1] else found.toposort()


def settled(u: UOp) -> UOp:
  """u without debts."""
  return deliver(u, u.device.settled) if isinstance(u.device, Sharding) and u.device.pending else u


def bytes_of(order: Sequence[UOp]) -> float:
  """Bytes that each device receives in all moves of a graph; index maps along cut dims as `decide` charges them."""
  total = 0.0
  for u in order:
    if u.op not in REMAPPED_OR_MOVED or not isinstance(u.device, Sharding) or not u.src or u.src[0].device is None:
      continue
    if u.op is Ops.MOVE:
      total += wire(u.shape, u.dtype.itemsize, u.src[0].device, u.device)
    elif any(u.device.cut(i) for i in factor_rule(u).remapped):
      total += prod(u.device.local_shape(u.max_shape)) * u.dtype.itemsize
  return total


# ---- decisions by outline


CHAINED = frozenset((*PUSHED, Ops.MOVE, Ops.CAST))  # a decision looks through these, at what is below
_OUTLINE = -(1 << 60)  # the buffers of outlines have numbers that no other buffer has


@dataclass(frozen=True, slots=True)
class Step:
  """How an op runs on sources with the outlines `src`: they are brought to `forms`; `result` is the outline of what
  comes out. `fixed`: whatever is charged for what that owes. `asks`: the sources that owe, and the placement that they
  are settled to, None if they go on owing."""

  src: tuple[UOp, ...]
  forms: tuple[UOp, ...]
  result: UOp
  fixed: bool
  asks: tuple[tuple[int, Placement | None], ...]

  @staticmethod
  def of(src: tuple[UOp, ...], forms: tuple[UOp, ...], result: UOp, fixed: bool, at: Placement | None = None) -> Step:
    """`at`: where a move brings its source."""
    wanted = [at or x.device for x in forms]
    asks = [(i, None if owes(p) else p) for i, (s, p) in enumerate(zip(src, wanted)) if owes(s.device)]
    return Step(src, src if forms == src else forms, result, fixed, tuple(asks))


_outlines: dict[tuple[Any, ...], UOp] = {}
_steps: dict[tuple[Any, ...], Step] = {}
_ways = [Bringing()]


def leaf(dtype: DType, shape: tuple[Any, ...], device: Placement | None, number: int = 0) -> UOp:
  """The outline of any value of this type, shape and placement."""
  key = (dtype, shape, device, number)
  if (found := _outlines.get(key)) is None:
    if device is None:
      found = UOp.new(Ops.HOLE, dtype, (), (number, shape))
    else:
      found = UOp.new(Ops.BUFFER, dtype, (), BufferArg(_OUTLINE + number, shape, device))
    assert found.shape == shape and found.device == device
    _outlines[key] = found
  return found


def outline(op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any) -> UOp:
  """What a decision can see of a value: itself if constant, the chain of movement, casts and moves above a `leaf`, the
  operands of a product (a sum of it is placed as one op), and all there is down to a lookup whose rows are owed."""
  u = UOp.new(op, dtype, src, arg)
  u.shape, u.device  # noqa: B018 (are asked for later)
  if op in CHAINED or not src or (owes(u.device) and _is_disjoint(u)):
    return u
  if op is Ops.MUL:
    return made(u, tuple([flat(s) for s in src]), arg)
  return leaf(dtype, u.shape, u.device)


def outline_of(u: UOp) -> UOp:
  """The outline of a node as it is."""
  try:
    return u._outline
  except AttributeError:
    u._outline = seen = _see(u, True)
    return seen


def _see(u: UOp, products: bool) -> UOp:
  if u.op in CHAINED:
    return made(u, (outline_of(u.src[0]) if products else _see(u.src[0], False),), u.arg)
  if owes(u.device) and _is_disjoint(u):
    return made(u, told_apart(u.op, u.src, tuple([outline_of(s) for s in u.src])), u.arg)
  if u.op is Ops.MUL and products:
    return made(u, tuple([_see(s, False) for s in u.src]), u.arg)
  return u if u.op in SEEN and not u.src else leaf(u.dtype, u.shape, u.device)


_indices: weakref.WeakKeyDictionary[UOp, int] = weakref.WeakKeyDictionary()


def told_apart(op: Ops, src: tuple[UOp, ...], seen: tuple[UOp, ...]) -> tuple[UOp, ...]:
  """`seen`, the outlines of `src`, where a decision asks whether sources are the same: two factors that owe, and the
  indices of lookups whose rows are owed. These get numbers, that of an index is its own for as long as it lives."""
  if op is Ops.GATHER:
    table = seen[0].device
    if isinstance(table, Sharding) and table.cut(0):
      if (number := _indices.get(src[1])) is None:
        taken = set(_indices.values())
        number = _indices[src[1]] = next(i for i in itertools.count(2) if i not in taken)
      return seen[0], renamed(seen[1], number)
  elif op is Ops.MUL and seen[0] is seen[1] and src[0] is not src[1] and owes(seen[0].device):
    if not _is_disjoint(seen[0]):
      return seen[0], renamed(seen[1], 1)
  return seen


def _is_disjoint(u: UOp) -> bool:
  return any(o.disjoint for o in debts_of(u))


def flat(u: UOp) -> UOp:
  """An outline that shows no product."""
  if u.op is Ops.MUL and not _is_disjoint(u):
    return leaf(u.dtype, u.shape, u.device)
  if u.op in CHAINED and (s := flat(u.src[0])) is not u.src[0]:
    return UOp.new(u.op, u.dtype, (s,), u.arg)
  return u


def renamed(u: UOp, number: int) -> UOp:
  """The outline of another value that looks like `u`."""
  if u.op in CHAINED:
    return UOp.new(u.op, u.dtype, (renamed(u.src[0], number),), u.arg)
  return u if u.op is Ops.CONST or u.op is Ops.IOTA else leaf(u.dtype, u.shape, u.device, number)


def forget() -> None:
  """Empties the tables, for who changes what decisions are made by."""
  for table in (_steps, _outlines, _outcomes, _below):
    table.clear()
  _ways[:] = [Bringing()]


def settings() -> tuple[Any, ...]:
  """What decisions depend on besides the sources."""
  return DEFER.value, RESHARD.value, STRATEGY.value


def step_of(op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any, later: float | None, under: tuple[Any, ...]) -> Step:
  """How an op runs on sources with these outlines, under these settings. Cached, for the same decisions come again in
  every layer."""
  if op is Ops.CONTIGUOUS:
    arg = None
  key = (op, dtype, src, arg, later, under)
  if (found := _steps.get(key)) is None:
    if len(_steps) > _CACHE_LIMIT:
      forget()
    forms, fixed = src, True
    if op is Ops.ASSIGN:
      forms = (src[0], _at(src[1], src[0].device))
    elif op not in AS_GIVEN:
      forms = decide(op, dtype, src, arg, later, _ways[0])
      fixed = op is not Ops.REDUCE and not any(owes(o.result) for o in outcomes(op, dtype, src, arg, STRATEGY.value))
    result = outline(op, dtype, forms, arg)
    found = _steps[key] = Step.of(src, forms, result, fixed, arg.device if op is Ops.MOVE else None)
  return found


def build(op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any) -> UOp:
  """The node of a user's op, after its sources have been brought to where `decide` wants them (of the table)."""
  seen = tuple([outline_of(s) for s in src])
  if op in COMPARED:
    seen = told_apart(op, src, seen)
  step = step_of(op, dtype, seen, arg, None, settings())
  u = stepped(step, op, dtype, src, arg)
  u._outline = step.result
  return u


def stepped(step: Step, op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any) -> UOp:
  """The node on `src`, whose outlines the step is made for."""
  if step.forms is not step.src:
    src = tuple([realized(f, o, s) for f, o, s in zip(step.forms, step.src, src)])
  u = UOp.new(op, dtype, src, arg)
  u._shape, u._device = step.result._shape, step.result._device
  return u


def realized(form: UOp, seen: UOp, u: UOp) -> UOp:
  """`u`, whose outline is `seen`, in the given form of it."""
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
    return made(form, tuple([realized(f, o, s) for f, o, s in zip(form.src, end.src, u.src)]), form.arg)
  return made(form, (_realized(form.src[0], end, u, known),), form.arg)


def made(like: UOp, src: tuple[UOp, ...], arg: Any) -> UOp:
  """The node on these sources, which has the shape and the placement of `like`."""
  v = UOp.new(like.op, like.dtype, src, arg)
  v._shape, v._device = like.shape, like.device
  return v


# ---- the pass


class Placer:
  """Places a graph anew, its implied moves dropped.

  Once with every debt kept for as long as it may be, to see what the consumers of each value ask for; then from the
  sinks up, `down(v) = min(settle v here, the settlements its consumers ask for, each once, + sum of down(consumers that
  keep))`; and once more with debts paid where that is cheaper than below. Both times only outlines are placed; the
  nodes are built at the end.
  """

  def __init__(self, order: Sequence[UOp]) -> None:
    self.order = order
    self.base: dict[UOp, UOp] = {}  # an implied move that is dropped -> what it moves
    for u in order:
      if u.op in AS_GIVEN and droppable(u):
        self.base[u] = self.base.get(u.src[0], u.src[0])
    self.uses = Counter(itertools.chain.from_iterable(u.src for u in order if u not in self.base))
    for u, x in self.base.items():
      self.uses[x] += self.uses[u]
    self.plan: dict[UOp, Step | None] = {}  # None: as the hooks made it
    self.outlines: dict[UOp, UOp] = {}
    self.summed: dict[UOp, UOp] = {}  # outlines of what only feeds a contraction, as that has placed it
    self.contracted: set[UOp] = set()
    self.unsummed: dict[UOp, UOp] = {}  # and as they were before
    self.indebted: list[UOp] = []  # values that owe or have sources that do, in order; if twice, the last counts
    self.paid: dict[UOp, tuple[UOp, UOp]] = {}  # what is settled where it arises: its outline, before and after

  def run(self) -> UOp:
    self.keep_all()
    self.pay(*self.prices())
    return self.build()

  def keep_all(self) -> None:
    """The plan with every debt kept for as long as it may be."""
    plan, outlines, base, steps, under = self.plan, self.outlines, self.base, _steps, settings()
    as_made: set[UOp] = set()  # nodes that stay what the hooks made, and owe nothing
    for u in self.order:
      if u in base:
        outlines[u] = outlines[base[u]]
        continue
      src = tuple([outlines[s] for s in u.src])
      if u.op in COMPARED:
        src = told_apart(u.op, tuple([base.get(s, s) for s in u.src]), src)
      if as_made.issuperset(u.src):
        plan[u] = None
        device = u._device
        if isinstance(device, Sharding) and device.pending:
          outlines[u] = outline_of(u)
          self.indebted.append(u)
        else:
          outlines[u] = outline_of(u) if u.op in SEEN else leaf(u.dtype, u._shape, device)
          as_made.add(u)
        continue
      if u.op is Ops.SINK:
        step = Step.of(src, tuple([_at(x, s.device) for x, s in zip(src, u.src)]), u, True)
      else:
        key = (u.op, u.dtype, src, u.arg, 0.0, under)
        step = steps.get(key) or step_of(*key)
      plan[u] = step
      outlines[u] = step.result
      if u.op is Ops.REDUCE and step.forms is not step.src:
        self.follow(u, step)
      device = step.result._device
      if step.asks or (isinstance(device, Sharding) and device.pending):
        self.indebted.append(u)

  def pay(self, down: dict[UOp, float], paid: set[UOp]) -> None:
    """The plan again with debts charged as `down` says, and those in `paid` settled where they arise."""
    plan, outlines, base, steps, under = self.plan, self.outlines, self.base, _steps, settings()
    outlines.update(self.unsummed)
    changed: set[UOp] = set()
    for u in self.order:
      if u in base:
        if base[u] in changed:
          changed.add(u)
          outlines[u] = outlines[base[u]]
        continue
      step, clean = plan[u], changed.isdisjoint(u.src)
      if clean and (step is None or step.fixed) and u not in paid:
        continue
      before = outlines[u]
      if not clean or (step is not None and not step.fixed):
        src = tuple([outlines[s] for s in u.src])
        if u.op in COMPARED:
          src = told_apart(u.op, tuple([base.get(s, s) for s in u.src]), src)
        charged = down.get(u)
        if u.op is Ops.SINK:
          step = Step.of(src, tuple([_at(x, s.device) for x, s in zip(src, u.src)]), u, True)
        else:
          key = (u.op, u.dtype, src, u.arg, charged, under)
          step = steps.get(key) or step_of(*key)
        plan[u] = step
        outlines[u] = step.result
      if u in paid:
        here = outlines[u]
        self.paid[u] = here, settled(here)
        outlines[u] = self.paid[u][1]
      if outlines[u] is not before:
        changed.add(u)

  def follow(self, u: UOp, step: Step) -> None:
    """Notes the form in which a contraction has placed the MUL that only feeds it."""
    old, new = self.base.get(u.src[0], u.src[0]), step.forms[0]
    followed: list[UOp] = []
    while self.outlines[old] is not new and self.uses[old] == 1 and old.op is new.op:
      self.unsummed[old] = self.outlines[old]
      self.outlines[old] = self.summed[old] = new
      followed.append(old)
      if old.op is Ops.MUL:
        break
      old, new = self.base.get(old.src[0], old.src[0]), new.src[0]
    self.contracted.add(u)
    self.indebted.extend(reversed(followed))

  def prices(self) -> tuple[dict[UOp, float], set[UOp]]:
    """`down` of every value that owes, and the values that are best settled where they arise."""
    down: dict[UOp, float] = {}
    paid: set[UOp] = set()
    kept: dict[UOp, float] = {}  # bytes that are paid below consumers which go on owing
    asked: dict[UOp, dict[Placement, None]] = {}  # what the other consumers settle the value to
    ways = _ways[0]
    wholes: dict[UOp, float] = {}
    outlines, base, summed = self.outlines, self.base, self.summed
    for u in dict.fromkeys(reversed(self.indebted)):
      v = outlines[u]
      here = v._device
      if isinstance(here, Sharding) and here.pending and u.op is not Ops.MOVE:
        if (whole := wholes.get(v)) is None:
          whole = wholes[v] = ways.cost(v, here.settled)
        below = kept.get(u, 0.0)
        if (wanted := asked.get(u)) is not None:
          below += sum([ways.cost(v, p) for p in wanted])
          if here.settled in wanted:
            paid.add(u)
        if whole < below:
          paid.add(u)
        down[u] = min(whole, below)
      step = self.plan[u]
      if u in summed or u in self.contracted:
        forms = summed[u].src if u in summed else step.forms if step is not None else ()
        placed = tuple([outlines[s] for s in u.src])
        asks = Step.of(placed, forms, v, True).asks
      else:
        asks = () if step is None else step.asks
      for i, p in asks:
        x = base.get(u.src[i], u.src[i])
        if p is None:
          kept[x] = kept.get(x, 0.0) + down.get(u, 0.0)
        else:
          asked.setdefault(x, {})[p] = None
    return down, paid

  def build(self) -> UOp:
    """The nodes of the plan."""
    placed: dict[UOp, UOp] = {}
    for u in self.order:
      if u in self.base:
        placed[u] = placed[self.base[u]]
        continue
      step = self.plan[u]
      if step is None:
        v = u
      else:
        v = stepped(step, u.op, u.dtype, tuple([placed[s] for s in u.src]), u.arg)
        if v.origin is None:
          v.origin = u.origin
      if u in self.paid:
        before, after = self.paid[u]
        v = realized(after, before, v)
      placed[u] = v
    return placed[self.order[-1]]


def droppable(u: UOp) -> bool:
  """Whether u is an implied move on one device set, which `decide` makes again where it is needed. A gradient that is
  handed out at the cuts of its tensor stays: an owed one is scattered once for all of its readers."""
  if u.op is not Ops.MOVE or u.arg.pinned:
    return False
  here, there = u.src[0].device, u.arg.device
  if isinstance(here, Sharding) and here.pending and not owes(there) and there is not here.settled:
    return False
  return here is None or same_devices(here, there)


def _at(x: UOp, device: Placement | None) -> UOp:
  """x where a root or an assignment shows it."""
  if device is None or x.device is None:
    return x
  return deliver(x, device.settled if isinstance(device, Sharding) else device)


def scatter(order: Sequence[UOp]) -> UOp:
  """A debt that was paid at once, though its only reader wants a cut, is scattered onto that cut:
  MOVE(f(MOVE(owing))) -> f(MOVE(owing)) with f of movement and casts, where fewer bytes travel. The graph comes in
  order, its sink last."""
  uses = Counter(itertools.chain.from_iterable([u.src for u in order]))
  mapping: dict[UOp, UOp] = {}
  done: dict[UOp, UOp] = {}
  for u in order:
    if u.op not in AS_GIVEN or u.op is not Ops.MOVE or not isinstance(u.device, Sharding) or u.device.pending:
      continue
    target: Placement | None = u.device
    links: list[UOp] = []
    x = u.src[0]
    while target is not None and uses[x] == 1 and (x.op in PUSHED or x.op is Ops.CAST):
      target = below(x, target)
      links.append(x)
      x = x.src[0]
    if target is None or uses[x] > 1 or x.op is not Ops.MOVE or x.arg.pinned or not owes(x.src[0].device):
      continue
    owing = x.src[0]
    assert owing.device is not None and x.device is not None
    price = functools.partial(wire, x.shape, x.dtype.itemsize, owing.device)
    if price(target) < price(x.device):
      v = UOp.new(Ops.MOVE, x.dtype, (substitute(owing, mapping, done),), _implied(target))
      for link in reversed(links):
        v = UOp.new(link.op, link.dtype, (v,), link.arg)
      mapping[u] = v if v.device == u.device else UOp.new(Ops.MOVE, v.dtype, (v,), _implied(u.device))
      mapping[u].origin = u.origin
  return substitute(order[-1], mapping, done) if mapping else order[-1]


# ---------------------------------------------------------------- contraction


def unmoved(u: UOp) -> UOp:
  """`u` without the implied moves below its movement ops (a settled debt stays settled)."""
  if u.op is Ops.MOVE and not u.arg.pinned and not owes(u.src[0].device):
    return unmoved(u.src[0])
  if (u.op in PUSHED or u.op is Ops.CAST) and (s := unmoved(u.src[0])) is not u.src[0]:
    return UOp.new(u.op, u.dtype, decide(u.op, u.dtype, (s,), u.arg, None, Bringing()), u.arg)
  return u


def owes(placement: Placement | None) -> bool:
  return isinstance(placement, Sharding) and bool(placement.pending)


def contraction(x: UOp, arg: Any) -> UOp | None:
  """REDUCE(ADD) of a MUL, through CAST, RESHAPE and PERMUTE, as one op: `x` with its MUL placed anew, the reduction
  known; None to leave it.

  The MUL was placed without knowing that it is summed. The cuts of its operands before any implied move are resolved
  again, and what the
  sum will owe is charged as a reduce-scatter.
  """
  if arg[0] is not Ops.ADD:
    return None
  chain: list[UOp] = []
  mul = x
  while mul.op in (Ops.CAST, Ops.RESHAPE, Ops.PERMUTE):
    chain.append(mul)
    mul = mul.src[0]
  if mul.op is not Ops.MUL:
    return None
  operands = tuple(unmoved(s) for s in mul.src)
  if operands == mul.src or not any(isinstance(s.device, Sharding) for s in operands):
    return None
  found = outcomes(Ops.MUL, mul.dtype, operands, mul.arg, STRATEGY.value)
  if len(found) == 1:  # nothing is contested
    return None
  ways = Bringing()
  best: tuple[tuple[float, int], Outcome] | None = None
  for way in found:
    placed = way.result if isinstance(way.result, Sharding) else None
    for u in reversed(chain):
      placed = carried(u, placed) if placed is not None else None
    if placed is None:
      continue
    digits = [d for i in arg[1] for d in placed.cut(i)]
    block = [1 if i in arg[1] else n for i, n in enumerate(placed.local_shape(ints(x.shape)))]
    owed = prod(block) * x.dtype.itemsize * (1 - 1 / size_of(digits))
    moved = sum(ways.cost(s, r) for s, r in zip(operands, way.required) if r is not None)
    if best is None or (moved + owed, -way.parts) < best[0]:
      best = (moved + owed, -way.parts), way
  if best is None or best[1].result == mul.device:
    return None
  u = UOp.new(
    Ops.MUL, mul.dtype, tuple(s if r is None else ways.build(s, r) for s, r in zip(operands, best[1].required)), mul.arg
  )
  for link in reversed(chain):
    u = UOp.new(link.op, link.dtype, (u,), link.arg)
  return u


def carried(u: UOp, source: Sharding) -> Sharding | None:
  """The placement of `u`, a CAST, RESHAPE or PERMUTE, on a source at `source`; None if it cannot carry all of the
  cuts."""
  f = factor_rule(u)
  cuts = legal(collect(f.src[0], f, [source.cut(i) for i in range(len(f.src[0]))]), dims_of(f), f)
  if source.with_dims(project(f.src[0], cuts)) is not source:
    return None
  placed = source.with_dims(project(f.out, cuts))
  return placed if isinstance(placed, Sharding) else None
