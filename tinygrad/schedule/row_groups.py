"""Groups: kernels as loops over the rows that they share, and which two of these make one.

A *row* is one setting of the loops that the kernels share. Their loops are matched by the memory that they have in
common: a loop over n elements at a distance of c in memory (its *digit* there) is the same loop in both, if every
access to that memory keeps to the element's own digit. Softmax and normalisations so read their rows once, an
optimizer's kernels run as one, and the scores of an attention exist for a few rows at a time only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, prod
from tinygrad.numerics.idle_loops import loop_limits
from tinygrad.numerics.products import multiplies_rows, reads_again
from tinygrad.ops.elementwise import MIRROR
from tinygrad.schedule.loops import with_loops
from tinygrad.uop import AxisKind, Ops, UOp, substitute
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loops import LoopIds, extent, iterations, reductions, static

LEAST_ROWS = 8
LEAST_PARALLEL = 2  # of these at least as many must be independent, if a reduction over rows is among the kernels
SMALL = 1 << 18  # bytes of memory in which it does not matter how rows lie
STREAMED = 288  # operations for each byte that is never stored, where a grid contracts block by block
RUN = 256  # elements of a row that lie together: between these may be others'
SHARED = 4  # times that a byte which is written and read again is worth one that is read twice
FEW = 1 << 16  # elements that a grid computes in less time than it takes to launch a kernel
MOST_KEPT = 1 << 28  # bytes between kernels of which each does so much that they are no faster as one
RECOMPUTE_RATIO = 4  # times what it is computed from, from which on a value may be computed once more
BESIDE = 4  # elements that a thread of a grid reads at once
ROW_WORK = 1 << 18  # operations that a group does in about the time that it takes to launch a kernel
Slots = Sequence[int] | Mapping[int, int]  # the new slot of each


@dataclass(frozen=True, slots=True)
class RowAccess:
  """An access to the memory of a slot: its offset, and how many bytes of the memory there are to it: where a variable
  says which part, those of a part. `negative`: what is below 0 where its condition holds."""

  slot: int
  offset: Affine
  written: bool
  nbytes: int
  negative: tuple[Affine, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Group:
  """`stores`, over PARAMs whose slots are this group's own numbers; all share the loops `rows`. A store of a reduction
  over rows (`totals`) adds up what the blocks amount to: its memory is complete when all rows are done."""

  stores: tuple[UOp, ...]
  rows: tuple[UOp, ...]
  accesses: tuple[RowAccess, ...]
  totals: frozenset[int] = frozenset()  # slots
  tiled: bool = False  # it is not to be one of several stores that each row waits for
  streams: bool = False  # it pays only if a row's elements come block by block (numerics/streaming.py)

  @property
  def touched(self) -> set[int]:
    return {x.slot for x in self.accesses}

  @property
  def written(self) -> set[int]:
    return {x.slot for x in self.accesses if x.written}

  def is_like(self, b: Group) -> bool:
    """Whether both are of as many elements, which are few."""
    return (n := [*map(extent, self.rows)]) == [*map(extent, b.rows)] and prod(n) <= FEW


def is_row_index(x: RowAccess, r: UOp, step: int, n: int) -> bool:
  """Whether `offset // step % n` is always r: the terms below reach less far than a step, those above are multiples of
  n steps."""
  if x.offset.terms.get(r) != step:
    return False
  below = {a: c for a, c in x.offset.terms.items() if c % (step * n) and a is not r}
  low = Affine((x.offset.const + step) % (step * n) - step, below)
  lo, hi = low.bounds()
  for y in x.negative:
    hi = min(hi, low.const - y.const - 1) if y.terms == below else hi
    lo = max(lo, low.const + y.const + 1) if y.scaled(-1).terms == below else lo
  return lo >= 0 and hi < step


def accesses(stores: Iterable[UOp]) -> tuple[RowAccess, ...]:
  memo: dict[UOp, Affine] = {}
  found = ((u, u.src[0], u is s.src[0]) for s in stores for u in s.toposort() if u.op is Ops.INDEX)
  out = []
  for u, p, written in found:
    at, size = affine(u.src[1], memo), p.arg.size
    lo, hi = Affine(0, {a: c for a, c in at.terms.items() if a.op is not Ops.VARIABLE}).bounds()
    gates = u.src[2].toposort(lambda v: v.op is Ops.AND or v.op is Ops.CMPLT) if u.src[2:] else ()
    numbers = [v.src for v in gates if v.op is Ops.CMPLT and v.src[0].dtype is dtypes.index]
    negative = tuple(affine(a, memo).plus(affine(b, memo), -1) for a, b in numbers)
    out.append(RowAccess(p.arg.slot, at, written, min(size, hi - lo + 1) * p.dtype.itemsize, negative))
  return tuple(out)


def single(ast: UOp, slots: Slots, ids: LoopIds, tiled: bool = False) -> Group:
  """The group of one kernel, over loops of its own."""
  rows = tuple(filter(static, ast.src[0].src[2:]))
  return elsewhere(Group(ast.src, rows, (), tiled=tiled), slots, ids)


def elsewhere(group: Group, slots: Slots, ids: LoopIds) -> Group:
  """The same over other slots, and over loops of its own."""
  sink = UOp.sink(*group.stores)
  params = [u for u in sink.toposort() if u.op is Ops.PARAM]
  loops = ids.copies(sink)
  stores = substitute(sink, loops | {u: u.replace(arg=replace(u.arg, slot=slots[u.arg.slot])) for u in params}).src
  rows, totals = tuple(loops[r] for r in group.rows), frozenset(slots[s] for s in group.totals)
  return replace(group, stores=stores, rows=rows, totals=totals, accesses=accesses(stores))


def split(group: Group, r: UOp, low: int, ids: LoopIds) -> Group:
  """Its loop r taken apart into r // low and r % low."""
  outer, inner = (ids.loop(index(n), AxisKind.LOOP) for n in (extent(r) // low, low))
  stores = with_loops(UOp.sink(*group.stores), {r: outer * low + inner}).src
  rows = tuple(y for x in group.rows for y in ((outer, inner) if x is r else (x,)))
  return replace(group, stores=stores, rows=rows, accesses=accesses(stores))


def cut(a: Group, b: Group) -> tuple[UOp, int] | None:
  """Where a loop of `b` runs over what are several loops of `a`, in memory they have in common."""
  ends = {(x.slot, x.offset.terms[r]) for x in a.accesses for r in a.rows if r in x.offset.terms}
  for y in b.accesses:
    for r in b.rows:
      if (c := y.offset.terms.get(r, 0)) > 0:
        for slot, end in ends:
          if slot == y.slot and c < end < c * extent(r) and end % c == 0 and (c * extent(r)) % end == 0:
            return r, end // c
  return None


def reduction_loops(b: Group) -> tuple[UOp, ...]:
  """The loops of a single kernel's reduction, if that is all there is to its value, this is no larger than what it is
  computed from, and its memory holds a part as well as a register does: narrow floats would be rounded part by part."""
  value = b.stores[0].src[1]
  if len(b.stores) > 1 or value.op is not Ops.FOLD:
    return ()
  if value.dtype.itemsize < 4 and dtypes.is_float(value.dtype) and value.arg not in MIRROR:
    return ()
  return () if max(b.accesses, key=lambda x: (x.nbytes, not x.written)).written else value.src[1:]


def matched(a: Group, b: Group, loops: Sequence[UOp]) -> dict[UOp, UOp]:
  """Those of `loops`, of `b` -> the same loops of `a`: they stand at the same digit wherever both touch memory that one
  of them writes, in every access to it; and somewhere, at least."""
  both, written = a.touched & b.touched, a.written | b.written

  def alike(r: UOp, s: UOp, slot: int) -> bool:
    places = [(x, i) for group, i in ((a, r), (b, s)) for x in group.accesses if x.slot == slot]
    step = max(x.offset.terms.get(i, 0) for x, i in places)
    return all(is_row_index(x, i, step, extent(r)) for x, i in places)

  pairs: dict[UOp, UOp] = {}
  for s in loops:
    for r in a.rows:
      if s.src[0] is r.src[0] and r not in pairs.values() and all(alike(r, s, slot) for slot in both & written):
        if both & written or any(alike(r, s, slot) for slot in both):
          pairs[s] = r
          break
  return pairs


def is_large(a: Group, b: Group) -> bool:
  """Whether what lies between the kernels is so much more than what it is computed from that it is not to be kept."""
  read = {x.slot: x.nbytes for x in a.accesses if x.slot not in a.written}
  between = max((x.nbytes for x in a.accesses if x.slot in a.written & b.touched), default=0)
  return between > max(MOST_KEPT, RECOMPUTE_RATIO * sum(n for n in read.values() if n < MOST_KEPT))


def bytes_saved(a: Group, b: Group, rows: Sequence[UOp]) -> int:
  """That stay in a cache from one kernel to the next where they are one of these rows. Of what is not a row's own, each
  row reads all; what both only read is in the cache as it is, likely."""
  size, written = {x.slot: x.nbytes for x in (*a.accesses, *b.accesses)}, a.written | b.written
  common = [(x.slot, sum(r in x.offset.terms for r in rows)) for x in a.accesses if x.slot in b.touched]
  some, whole = {s for s, n in common if n}, {s for s, n in common if n == len(rows)}
  return sum(size[s] for s in some & written) + sum(size[s] for s in whole - written) // SHARED


def joined_groups(a: Group, b: Group, ids: LoopIds, target: Target) -> Group | None:
  """The kernels of `a` and then `b` in one; None where they have no rows in common, it would not pay, or equal stores
  would be one. A reduction is over what is inside of a row, if possible, else over rows."""
  if a.totals & b.touched:
    return None
  while (at := cut(a, b)) is not None:
    b = split(b, *at, ids)
  while (at := cut(b, a)) is not None:
    a = split(a, *at, ids)
  # a grid's groups do not wait for one another: what sums over rows stays a kernel of its own
  for loops in (b.rows,) if target.threads else (b.rows, (*b.rows, *reduction_loops(b))):
    pairs = matched(a, b, loops)
    rows = tuple(r for r in a.rows if r in pairs.values())
    if iterations(rows) < LEAST_ROWS:
      continue
    totals = a.totals | b.totals | (b.written if any(s in pairs for s in loops[len(b.rows) :]) else set())
    saved = bytes_saved(a, b, rows)
    alone = [(g.stores[0], of) for g, of in ((a, rows), (b, pairs)) if len(g.stores) == 1]
    first, then = (reductions(g.stores) for g in (a, b))
    # a grid's groups have few rows each, which does not matter where elements are all between, and rows read their own
    plain = target.threads and not first and then and not any(map(reads_again, then))
    most = 0 if plain else max((work(s, not target.threads) for s, _ in alone), default=0)
    slow = most > target.intensity * saved  # for a contraction of few rows at a time
    slow |= not target.threads and any(multiplies_rows(s, of) for s, of in alone)
    streams = slow and target.threads
    if streams and (most > STREAMED * saved or a.tiled or b.tiled):
      continue
    # what streams does so in one loop of each row
    if (streams or a.streams or b.streams) and any(len(g.stores) > 1 and len(rows) < len(g.rows) for g in (a, b)):
      continue
    out = replace(with_stores(a, b, pairs), rows=rows, totals=totals, tiled=a.tiled or b.tiled)
    if slow and not streams and not (is_large(a, b) or loop_limits(out.stores, rows)):
      continue  # what a mask leaves idle is left out where nothing is stored between
    few = has_few_rows(out, target)  # that have to be cut in pieces
    may = not out.tiled and has_few_rows(a, target)
    if len({*out.stores}) == len(out.stores) and (may if few else target.threads or fits(out, target.cache)):
      return replace(out, streams=a.streams or b.streams or streams or few)
  return side_by_side(a, b) if target.threads else None


def side_by_side(a: Group, b: Group) -> Group | None:
  """Kernels that do not need one another, of as many elements, which are few: what a launch takes is paid once."""
  if a.written & b.touched or b.written & a.touched or not a.is_like(b):
    return None
  if any(u.op is Ops.RANGE and u not in (*a.rows, *b.rows) for u in UOp.sink(*a.stores, *b.stores).toposort()):
    return None
  return with_stores(a, b, dict(zip(b.rows, a.rows)))


def with_stores(a: Group, b: Group, pairs: Mapping[UOp, UOp]) -> Group:
  """`a`, and the stores of `b` over loops of `a`."""
  stores = with_loops(UOp.sink(*b.stores), pairs).src
  return replace(a, stores=(*a.stores, *stores), accesses=(*a.accesses, *accesses(stores)))


def has_few_rows(group: Group, target: Target) -> bool:
  """Whether a group of threads a row leaves much of a grid idle, for longer than it takes to launch a kernel. What does
  not stream has a cluster a row, if its groups hold that in their registers; of rows that lie beside each other,
  element by element, a group has several."""
  groups = rows = ceildiv(iterations(group.rows), rows_beside_each_other(group))
  if group.tiled and target.threads:
    loops = [s.src[2:] for s in group.stores] + [f.src[1:] for f in reductions(group.stores)]
    n = ceildiv(max(iterations(r for r in x if r not in group.rows) for x in loops), target.held)
    groups *= n if n <= target.cluster else 1
  return target.threads and groups * target.group < target.busy and sum(map(work, group.stores)) > rows * ROW_WORK


def steps_along(group: Group, r: UOp) -> Iterator[tuple[RowAccess, int, list[int]]]:
  """The accesses to much memory along a loop of the rows, with the steps along it and within a row."""
  for x in group.accesses:
    if x.nbytes > SMALL and (step := x.offset.terms.get(r)) is not None:
      yield x, step, [c for q, c in x.offset.terms.items() if q not in group.rows and q.op is not Ops.VARIABLE]


def rows_beside_each_other(group: Group) -> int:
  """How many rows what is read at once belongs to, in memory in which a row's own elements lie further apart."""
  steps = (s for r in group.rows[-1:] for s in steps_along(group, r))
  return max([1, *(BESIDE // step for _, step, inner in steps if 0 < step < max(inner, default=0))])


def fits(group: Group, cache: int) -> bool:
  """Whether enough rows are independent, and they stay in the cache: a row's elements lie together in memory, or else
  those of the rows of a block, which are neighbours along the innermost loop."""
  independent = [r for r in group.rows if all(r in s.src[2:] for s in group.stores)]
  if group.totals and iterations(independent) < LEAST_PARALLEL:
    return False
  last = [*independent, *(r for r in group.rows if r not in independent)][-1]
  for x, step, inner in steps_along(group, last):
    if max(inner, default=0) > step < RUN or min(inner, default=step) > min(x.offset.terms.values()):
      return False
  return row_bytes(group) <= cache  # more would not stay there from one kernel to the next


def row_bytes(group: Group) -> int:
  """What one row touches of the memory that is another for the next row."""
  last = group.rows[-1]
  per_slot: dict[int, int] = {}
  for x in group.accesses:
    if last in x.offset.terms:
      rows = iterations(r for r in group.rows if r in x.offset.terms)
      per_slot[x.slot] = max(per_slot.get(x.slot, 0), x.nbytes // rows)
  return sum(per_slot.values())


def work(store: UOp, by_index: bool = False) -> int:
  """Arithmetic operations, roughly: one for each element, two for each step of a reduction; of a SCATTER whose places
  do not look at every update (`by_index`), two for each of these."""
  loops, folds = store.src[2:], reductions((store,))
  at = {u: u.src[0].src[::2] if by_index and u.src[0].op is Ops.ONE_HOT else loops for u in folds}  # a row, a value
  steps = ((*u.src[1:], *(r for r in loops if any(r in x.loops for x in at[u]))) for u in folds)
  return iterations(loops) + sum(2 * iterations(over) for over in steps)
