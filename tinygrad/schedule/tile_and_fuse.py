"""Kernels that work on the same rows become one kernel, which runs them in turn for a few rows at a time: what one
writes and the next reads is still in the cache, and what nobody else reads never leaves it.

A *row* is one setting of the loops that the kernels share. Their loops are matched by the memory that they have in
common: a loop over n elements at a distance of c in memory (its *digit* there) is the same loop in both, if every
access to that memory keeps to the element's own digit. Softmax and normalisations so read their rows once, an
optimizer's kernels run as one, and the scores of an attention exist for a few rows at a time only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.schedule.fuse import SLOW
from tinygrad.schedule.items import ScheduleItem, Temp
from tinygrad.schedule.loops import tidy, with_loops
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp, simplify, substitute
from tinygrad.uop.affine import Affine, affine, index, row_major
from tinygrad.uop.loop_ids import LoopIds

LEAST_ROWS = 8
LEAST_PARALLEL = 2  # of these at least as many must be independent, if a reduction over rows is among the kernels
SMALL = 1 << 18  # bytes of memory in which it does not matter how rows lie
INTENSITY = 80  # operations for each byte of traffic that is saved, beyond which a kernel is better tiled as a whole
MOST_MEMBERS = 24
RECOMPUTE = 1 << 26  # bytes of a value from which on readers elsewhere compute it anew rather than store it
RECOMPUTE_RATIO = 4  # if it is that much larger than what it is computed from
LOOK_BACK = 64  # groups that a kernel may join across others

Digits = dict[UOp, int]  # loop -> its distance in memory


@dataclass(frozen=True, slots=True)
class RowAccess:
  """An access to the memory of a slot: its offset, and of how many elements of what size the memory is."""

  slot: int
  offset: Affine
  written: bool
  nbytes: int


@dataclass(frozen=True, slots=True)
class Group:
  """`stores`, over PARAMs numbered by the schedule's slots; all share the loops `rows`. A store of a reduction over
  rows (`totals`) adds up what the blocks amount to: its memory is complete when all rows are done."""

  stores: tuple[UOp, ...]
  rows: tuple[UOp, ...]
  accesses: tuple[RowAccess, ...]
  totals: frozenset[int] = frozenset()  # slots

  @property
  def touched(self) -> set[int]:
    return {x.slot for x in self.accesses}

  @property
  def written(self) -> set[int]:
    return {x.slot for x in self.accesses if x.written}


def length(r: UOp) -> int:
  return int(r.src[0].arg)


def holds(offset: Affine, r: UOp, step: int, n: int) -> bool:
  """Whether `offset // step % n` is always r: the terms below reach less far than a step, those above are multiples of
  n steps."""
  if offset.terms.get(r) != step:
    return False
  low = Affine(offset.const % (step * n), {a: c for a, c in offset.terms.items() if c % (step * n) and a is not r})
  lo, hi = low.bounds()
  return lo >= 0 and hi < step


def accesses(stores: Iterable[UOp]) -> tuple[RowAccess, ...]:
  memo: dict[UOp, Affine] = {}
  found = ((u, u.src[0], u is s.src[0]) for s in stores for u in s.toposort() if u.op is Ops.INDEX)
  return tuple(RowAccess(p.arg.slot, affine(u.src[1], memo), w, p.arg.size * p.dtype.itemsize) for u, p, w in found)


def single(ast: UOp, slots: Sequence[int] | Mapping[int, int], ids: LoopIds) -> Group | None:
  """The group of one kernel, over loops of its own; None if these cannot be shared."""
  new = {u: u.replace(arg=replace(u.arg, slot=slots[u.arg.slot])) for u in ast.toposort() if u.op is Ops.PARAM}
  store = substitute(ast, new | ids.copies(ast)).src[0]
  rows = tuple(r for r in store.src[2:] if r.src[0].op is Ops.CONST)
  return Group((store,), rows, accesses((store,))) if rows else None


def split(group: Group, r: UOp, low: int, ids: LoopIds) -> Group:
  """Its loop r taken apart into r // low and r % low."""
  outer, inner = (ids.loop(index(n), AxisKind.LOOP) for n in (length(r) // low, low))
  stores = with_loops(UOp.sink(*group.stores), {r: (outer, inner)}, {r: outer * low + inner}).src
  rows = tuple(y for x in group.rows for y in ((outer, inner) if x is r else (x,)))
  return replace(group, stores=stores, rows=rows, accesses=accesses(stores))


def cut(a: Group, b: Group) -> tuple[UOp, int] | None:
  """Where a loop of `b` runs over what are several loops of `a`, in memory they have in common."""
  ends = {(x.slot, x.offset.terms[r]) for x in a.accesses for r in a.rows if r in x.offset.terms}
  for y in b.accesses:
    for r in b.rows:
      if (c := y.offset.terms.get(r, 0)) > 0:
        for slot, end in ends:
          if slot == y.slot and c < end < c * length(r) and end % c == 0 and (c * length(r)) % end == 0:
            return r, end // c
  return None


def reduced(b: Group) -> tuple[UOp, ...]:
  """The loops of a single kernel's reduction, if that is all there is to its value, this is no larger than what it is
  computed from, and its memory holds a part as well as a register does: narrow floats would be rounded part by part."""
  value = b.stores[0].src[1]
  if len(b.stores) > 1 or value.op is not Ops.FOLD:
    return ()
  if value.dtype.itemsize < 4 and dtypes.is_float(value.dtype) and value.arg not in (Ops.MAX, Ops.MIN):
    return ()
  return () if max(b.accesses, key=lambda x: (x.nbytes, not x.written)).written else value.src[1:]


def matched(a: Group, b: Group, loops: Sequence[UOp]) -> dict[UOp, UOp]:
  """Those of `loops`, of `b` -> the same loops of `a`: they stand at the same digit wherever both touch memory that one
  of them writes, in every access to it; and somewhere, at least."""
  written = a.written | b.written
  offsets = [{slot: [x.offset for x in g.accesses if x.slot == slot] for slot in sorted(g.touched)} for g in (a, b)]
  common = [(slot in written, ours, offsets[1][slot]) for slot, ours in offsets[0].items() if slot in offsets[1]]
  pairs: dict[UOp, UOp] = {}
  for s in loops:
    for r in a.rows:
      if s.src[0] is not r.src[0] or r in pairs.values():
        continue
      met = False
      for strict, ours, theirs in common:
        steps = {x.terms.get(r, 0) for x in ours} | {y.terms.get(s, 0) for y in theirs}
        step = max(steps)
        places = [*((x, r) for x in ours), *((y, s) for y in theirs)]
        same = steps == {step} and all(holds(x, i, step, length(r)) for x, i in places)
        met |= same and step > 0
        if strict and not (same and step > 0):
          break
      else:
        if met:
          pairs[s] = r
          break
  return pairs


def joined(a: Group, b: Group, ids: LoopIds, cache: int) -> Group | None:
  """The kernels of `a` and then `b` in one; None where they have no rows in common, or it would not pay. A reduction is
  over what is inside of a row, if possible, else over rows."""
  if not a.touched & b.touched or a.totals & b.touched:
    return None
  while (at := cut(a, b)) is not None:
    b = split(b, *at, ids)
  while (at := cut(b, a)) is not None:
    a = split(a, *at, ids)
  for loops in (b.rows, (*b.rows, *reduced(b))):
    pairs = matched(a, b, loops)
    rows = tuple(r for r in a.rows if r in pairs.values())
    if prod(map(length, rows)) < LEAST_ROWS:
      continue
    totals = a.totals | b.totals | (b.written if any(s in pairs for s in loops[len(b.rows) :]) else set())
    stores = with_loops(UOp.sink(*b.stores), {s: (r,) for s, r in pairs.items()}, pairs).src
    out = Group((*a.stores, *stores), rows, (*a.accesses, *accesses(stores)), totals)
    size = {x.slot: x.nbytes for x in out.accesses}
    saved = sum(size[slot] for slot in a.touched & b.touched)
    if fits(out, cache) and all(work(g.stores[0]) <= INTENSITY * saved for g in (a, b) if len(g.stores) == 1):
      return out
  return None


def fits(group: Group, cache: int) -> bool:
  """Whether enough rows are independent, and they stay in the cache: a row's elements lie together in memory, or else
  those of the rows of a block, which are neighbours along the innermost loop."""
  independent = [r for r in group.rows if all(r in s.src[2:] for s in group.stores)]
  if group.totals and prod(map(length, independent)) < LEAST_PARALLEL:
    return False
  last = [*independent, *(r for r in group.rows if r not in independent)][-1]
  for x in group.accesses:
    if x.nbytes > SMALL and (step := x.offset.terms.get(last)) is not None:
      inner = [c for r, c in x.offset.terms.items() if r not in group.rows]
      if max(inner, default=0) > step or min(inner, default=step) > min(x.offset.terms.values()):
        return False
  return row_bytes(group) <= cache  # more would not stay there from one kernel to the next


def row_bytes(group: Group) -> int:
  """What one row touches of the memory that is another for the next row."""
  last = group.rows[-1]
  per_slot: dict[int, int] = {}
  for x in group.accesses:
    if last in x.offset.terms:
      rows = prod(length(r) for r in group.rows if r in x.offset.terms)
      per_slot[x.slot] = max(per_slot.get(x.slot, 0), x.nbytes // rows)
  return sum(per_slot.values())


def inner_offset(offset: Affine, rows: Mapping[UOp, int]) -> Affine | None:
  """The place within a row: `offset` without its digits of `rows` (loop -> distance); None if they are not apart."""
  out = Affine(0)
  for atom, c in offset.terms.items():
    if atom in rows:
      continue
    below = [r for r, step in rows.items() if c >= step * length(r)]
    if any(c % (rows[r] * length(r)) for r in below):
      return None
    out = out.plus(Affine(0, {atom: c // prod(map(length, below))}))
  return out if offset.const == 0 else None


def finish(group: Group, temps: Iterable[int]) -> tuple[UOp, tuple[int, ...], int]:
  """(AST, slots, how many of them are written): memory of `temps`, which nobody else reads, becomes a row's own."""
  own, mapping, memo = dict[int, int](), dict[UOp, UOp](), dict[UOp, Affine]()
  everything = UOp.sink(*group.stores).toposort()
  for slot in temps:
    found = [u for u in everything if u.op is Ops.INDEX and u.src[0].arg.slot == slot]
    steps = {r: c for r, c in affine(found[0].src[1], memo).terms.items() if r in group.rows}
    inner = [inner_offset(affine(u.src[1], memo), steps) for u in found]
    if len(steps) < len(group.rows) or any(x is None for x in inner):
      continue
    own[slot] = -1 - len(own)
    for u, x in zip(found, inner):
      assert x is not None
      p = u.src[0]
      arg = replace(p.arg, slot=own[slot], size=p.arg.size // prod(map(length, group.rows)))
      mapping[u] = u.replace(src=(p.replace(arg=arg), x.uop(), *u.src[2:]))
  stores = computed_once(substitute(UOp.sink(*group.stores), mapping).src, group.rows, len(own))
  written = dict.fromkeys(s.src[0].src[0].arg.slot for s in stores)
  slots = [s for s in written if s >= 0]
  writes = len(slots)
  params = [u for u in UOp.sink(*stores).toposort() if u.op is Ops.PARAM and u.arg.slot >= 0]
  slots += [s for s in dict.fromkeys(p.arg.slot for p in params) if s not in written]
  numbers = {p: p.replace(arg=replace(p.arg, slot=slots.index(p.arg.slot))) for p in params}
  return tidy(substitute(UOp.new(Ops.SINK, dtypes.void, stores), numbers)), tuple(slots), writes


def computed_once(stores: tuple[UOp, ...], rows: Sequence[UOp], own: int) -> tuple[UOp, ...]:
  """The stores, where slow functions of the same elements, which several of them compute, are read from memory of the
  row; `own` kinds of such memory are there."""
  found: dict[UOp, dict[UOp, tuple[UOp, ...]]] = {}  # with loops by number -> as it is computed, and its loops
  for u in UOp.sink(*stores).toposort():
    if u.op in SLOW and u.op is not Ops.RECIP:
      below = u.toposort()
      loops = tuple(r for r in below if r.op is Ops.RANGE and r not in rows)
      if loops and all(r.src[0].op is Ops.CONST for r in loops) and all(x.op is not Ops.FOLD for x in below):
        by_number = {r: r.replace(arg=(-1 - i, AxisKind.LOOP)) for i, r in enumerate(loops)}
        found.setdefault(simplify(substitute(u, by_number)), {})[u] = loops
  for same in reversed(found.values()):  # the largest first
    users = [i for i, s in enumerate(stores) if not same.keys().isdisjoint(s.toposort())]
    first, loops = next(iter(same.items()))
    read = {x.src[0] for x in first.toposort() if x.op is Ops.INDEX}
    if len(users) < 2 or any(s.src[0].src[0] in read for s in stores[users[0] : users[-1]]):
      continue
    own += 1
    memory = UOp.new(Ops.PARAM, first.dtype, (), ParamArg(-own, prod(map(length, loops))))
    order = sorted(range(len(loops)), key=lambda i: loops[i].arg[0])  # it lies as its first reader goes through it
    flat = {u: affine(row_major((its[i], length(its[i])) for i in order), {}) for u, its in same.items()}
    places = {u: UOp.new(Ops.INDEX, u.dtype, (memory, at.uop())) for u, at in flat.items()}
    reads = {u: UOp.new(Ops.LOAD, u.dtype, (where,)) for u, where in places.items()}
    ours = {loops[i]: loops[i].replace(arg=(loops[i].arg[0], AxisKind.LOOP)) for i in order}
    where, value = (substitute(x, ours) for x in (places[first], first))
    store = UOp.new(Ops.STORE, dtypes.void, (where, value, *rows, *ours.values()))
    new = substitute(UOp.sink(*stores), reads).src
    stores = (*new[: users[0]], store, *new[users[0] :])
  return stores


def work(store: UOp) -> int:
  """Arithmetic operations, roughly: one for each element, two for each step of a reduction."""
  folds = [u for u in store.toposort() if u.op is Ops.FOLD]
  steps = 1 + sum(2 * prod(int(r.src[0].vmax) for r in u.src[1:]) for u in folds)
  return int(steps * prod(int(r.src[0].vmax) for r in store.src[2:]))


@dataclass(slots=True)
class Place:
  """What runs at one place of the new order: items, as a group if they can be one."""

  members: list[ScheduleItem]
  group: Group | None
  written: set[int]
  touched: set[int]

  def commutes(self, written: set[int], touched: set[int]) -> bool:
    return self.written.isdisjoint(touched) and self.touched.isdisjoint(written)


def tile_and_fuse(items: Sequence[ScheduleItem], temps: dict[int, Temp], cache: int) -> list[ScheduleItem]:
  """The items, in an order as good, with those joined that share rows. What a row touches fits `cache` bytes."""
  out, ids = list[Place](), LoopIds()
  for item in items:
    here = Place([item], None, {item.slots[0]}, {*item.slots})
    if isinstance(item.kernel, UOp) and not item.peers:
      here.group = single(item.kernel, item.slots, ids)
      out = placed(out, here, ids, cache)
    else:
      out.append(here)
  compute_anew(out, temps, ids, cache)
  drop_unread(out, temps)
  users = Counter(s for place in out for s in place.touched)
  return [merged(p, [s for s in sorted(p.written) if s in temps and users[s] == 1]) for p in out]


def placed(out: list[Place], here: Place, ids: LoopIds, cache: int) -> list[Place]:
  """`out` and `here`: joined with a place before it, if either can go where the other is, else at the end."""
  between: tuple[set[int], set[int]] = set(), set()  # written and touched by the places after the one looked at
  for i in range(len(out) - 1, max(len(out) - LOOK_BACK, -1), -1):
    p = out[i]
    up, down = here.commutes(*between), p.commutes(*between)
    related = p.members[0].devices == here.members[0].devices and not p.touched.isdisjoint(here.touched)
    if (up or down) and related and p.group is not None and here.group is not None and len(p.members) < MOST_MEMBERS:
      if (group := joined(p.group, here.group, ids, cache)) is not None:
        both = Place(p.members + here.members, group, p.written | here.written, p.touched | here.touched)
        return [*out[:i], both, *out[i + 1 :]] if up else [*out[:i], *out[i + 1 :], both]
    between[0].update(p.written)
    between[1].update(p.touched)
  return [*out, here]


def compute_anew(out: list[Place], temps: dict[int, Temp], ids: LoopIds, cache: int) -> None:
  """Large values that a group reads and an earlier one wrote are computed by the reader too, a few rows at a time,
  where that takes little memory: a backward pass does not keep what is quadratic in the length of a sequence."""
  spare = max((s for p in out for s in p.touched), default=0)
  for i, place in enumerate(out):
    tried: set[int] = set()
    while place.group is not None:
      large = {x.slot for x in place.group.accesses if x.nbytes >= RECOMPUTE and x.slot in temps}
      if (t := max(large - place.written - tried, default=None)) is None:
        break
      tried.add(t)
      k = next((k for k, p in enumerate(out[:i]) if t in p.written), None)
      if k is None or (writer := out[k].group) is None:
        continue
      store = next(s for s in writer.stores if s.src[0].src[0].arg.slot == t)
      read = {x.slot: x.nbytes for x in accesses((store,)) if not x.written}
      nbytes = max(x.nbytes for x in writer.accesses if x.slot == t)
      spare += 1
      again = single(UOp.sink(store), {**{x: x for x in read}, t: spare}, ids)
      if again is None or nbytes < RECOMPUTE_RATIO * sum(n for n in read.values() if n < RECOMPUTE):
        continue
      reader = renamed(place.group, t, spare)
      # by the reader alone, or with a later group that can have it too
      for q in range(i, min(i + LOOK_BACK, len(out))):
        if any(p.written & read.keys() for p in out[k + 1 : q + 1]):
          break
        if q == i:
          group = joined(again, reader, ids, cache)
        elif not place.commutes(out[q].written, out[q].touched):
          break
        elif (target := out[q].group) is not None and out[q].members[0].devices == place.members[0].devices:
          first = joined(target, again, ids, cache)
          group = None if first is None else joined(first, reader, ids, cache)
        if group is not None:
          temps[spare] = temps[t]
          if q != i:
            out[i] = Place([], None, set(), set())
          place = out[q] = Place([*out[q].members, *place.members], group, group.written, group.touched)
          break
  out[:] = [p for p in out if p.members]


def drop_unread(out: list[Place], temps: Mapping[int, Temp]) -> None:
  """Leaves out intermediate values that all who read them compute themselves."""
  read: set[int] = set()
  for place in reversed(out):
    if place.group is None:
      read |= place.touched
      continue
    kept: list[UOp] = []
    for s in reversed(place.group.stores):
      if (slot := s.src[0].src[0].arg.slot) in read or slot not in temps:
        kept.insert(0, s)
        read |= {x.slot for x in accesses((s,)) if not x.written}
    if len(kept) < len(place.group.stores):
      place.group = replace(place.group, stores=tuple(kept), accesses=accesses(kept))
      place.written, place.touched = place.group.written, place.group.touched
  out[:] = [p for p in out if p.group is None or p.group.stores]


def renamed(group: Group, old: int, new: int) -> Group:
  params = {u for s in group.stores for u in s.toposort() if u.op is Ops.PARAM and u.arg.slot == old}
  stores = substitute(UOp.sink(*group.stores), {u: u.replace(arg=replace(u.arg, slot=new)) for u in params}).src
  return replace(group, stores=stores, accesses=accesses(stores))


def merged(place: Place, own: Sequence[int]) -> ScheduleItem:
  """The one item of a place; `own`: the memory that nobody else reads."""
  if place.group is None or len(place.members) == len(place.group.stores) == 1:
    return place.members[0]
  kernel, slots, writes = finish(place.group, own)
  variables = tuple(v.arg[0] for v in kernel.variables())
  computes = tuple(dict.fromkeys(line for item in place.members for line in item.computes))
  return ScheduleItem(kernel, slots, place.members[0].devices, variables, False, computes, writes)
