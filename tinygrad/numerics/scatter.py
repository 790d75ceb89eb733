"""SCATTER in a kernel: FOLD(ONE_HOT(row, place, x)), the reduction of those x whose row is the place. A step for each
x, `out[row] += x`, rather than one for each x and place. Loops over what a row holds run inside of the step, as a nest
of their own. Where that would not pay, or cannot be, each place compares its number with every row (`dense`).

What is written is the memory of the sums, so these have to be all that the store stores, or that and what they are
added to; other sums get memory of the row first (`with_row_memory`). Of the number of the last update of a place
anything may be stored: each step stores what is made of its own number, and what is stored last stays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tinygrad.device import Target
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import NOOPT, ceildiv, power_of_two, prod
from tinygrad.numerics.idle_loops import parts_of
from tinygrad.numerics.one_hots import rises, with_number
from tinygrad.ops.reduce import nothing
from tinygrad.uop import CARDS, AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.indexing import gated, within_bounds
from tinygrad.uop.loops import LoopIds, extent, iteration_of, iterations, reductions, static
from tinygrad.uop.rewrite import rewrite, substitute_free

LEAST = 32  # places; comparing with fewer of them, in vectors, is faster than one element at a time
CHEAP = 4  # operations that a step does rather than a vector of places afterwards
BLOCK, NOTES = 32, 4096  # updates, at least, of which a group notes whether one is its own; most notes
Known = Mapping[UOp, UOp]  # ranges and their values
# A SCATTER as (place, chosen, inside, value, none): `place` is a loop of the store on which `chosen`, where on it a
# value goes, does not depend; `inside`: whether it goes anywhere; none: what a place begins with
ByIndex = tuple[UOp, UOp, UOp, UOp, UOp]
Found = tuple[UOp, ByIndex, UOp, UOp]  # a SCATTER, its parts, what places begin with, and what an update stores in its


def by_index(f: UOp, loops: Sequence[UOp]) -> ByIndex | None:
  """The parts of `f`, if it is a SCATTER whose place is one of these loops of a store, but for a constant."""
  if f.op is not Ops.FOLD or f.src[0].op is not Ops.ONE_HOT:
    return None
  row, at, value = f.src[0].src
  form = affine(at, {})
  for r in [r for r in loops if form.terms.get(r) == 1]:
    chosen = UOp.new(Ops.SUB, dtypes.index, (row, form.plus(Affine(0, {r: 1}), -1).uop()))
    inside = [UOp.new(Ops.CMPLT, dtypes.bool, pair) for pair in ((index(-1), chosen), (chosen, r.src[0]))]
    if all(r not in x.loops for x in inside):
      return r, chosen, UOp.new(Ops.AND, dtypes.bool, tuple(inside)), value, UOp.const(f.dtype, nothing(f.arg, f.dtype))
  return None


def dense(u: UOp) -> UOp:
  """ONE_HOT(row, place, x) -> row == place ? x : nothing, compared in the type of the rows where that holds places."""
  row, place, value = u.src
  if row.op is Ops.CAST and holds(row.src[0].dtype, place):
    row = row.src[0]
    place = UOp.new(Ops.CAST, row.dtype, (place,))
  same = UOp.new(Ops.CMPEQ, dtypes.bool, (row, place))
  return UOp.new(Ops.WHERE, u.dtype, (same, value, UOp.const(u.dtype, nothing(u.arg, u.dtype))))


DENSE = {Ops.ONE_HOT: dense}


def holds(dtype: DType, x: UOp) -> bool:
  """Whether every value of an index is one of the type's."""
  return dtypes.is_int(dtype) and dtypes.min(dtype) <= x.vmin and x.vmax <= dtypes.max(dtype)


def scattered(store: UOp, most: float = math.inf) -> Found | None:
  """A FOLD by index that `store` stores, if steps are worth it: alone, joined to something, or whatever is made of the
  greatest x, where x rises from step to step, by at most so many operations."""
  where, value, *loops = store.src
  for f in value.toposort():
    if (parts := by_index(f, loops)) is None or looks_at(f, where.src[0]):
      continue
    place, _, _, x, none = parts
    joined = value.src if value.op is f.arg and f in value.src else ()
    starts = [none] if value is f else [y for y in joined if y is not f]
    ways = [(y, UOp.new(f.arg, f.dtype, (UOp.new(Ops.LOAD, f.dtype, (where,)), x))) for y in starts]
    if f.arg is Ops.MAX and rises(x, f.src[1:]):
      start, update = (with_number(value, f, y) for y in (none, x))
      below = [u for u in update.toposort() if u.dtype is not dtypes.index]
      alone = not looks_at(update, where.src[0]) and all(u.op is not Ops.FOLD for u in below)
      ways[:0] = [(start, update)] if alone and sum(CARDS[u.op].cost for u in below) <= most else []
    rows = any(c == 1 for r, c in affine(where.src[1], {}).terms.items() if r in loops and r is not place)
    for start, update in ways if rows or extent(place) >= LEAST else ():
      if f not in start.toposort():
        return f, parts, start, update
  return None


def looks_at(x: UOp, memory: UOp) -> bool:
  return any(u.op is Ops.INDEX and u.src[0] is memory for u in x.toposort())


def step_scatters(kernel: UOp, target: Target) -> UOp:
  """The kernel with its reductions by index step by step where that pays; elsewhere places are compared. A loop that
  may end early has none of the former."""
  (stores, limits), ids, out = parts_of(kernel), LoopIds(kernel), list[UOp]()
  limited = {x.src[0] for x in limits}
  if target.threads and len(stores) == 1 and not NOOPT and (found := scattered(stores[0])) is not None:
    if workers := sharers(stores[0], found, target):
      return UOp.sink(*by_workers(stores[0], found, workers, ids))
  for s in stores:
    around = [r for r in s.src[2:] if any(r in x.src[2:] for x in stores if x is not s)]
    whole = NOOPT or target.threads or not limited.isdisjoint(s.toposort())
    out += [rewrite(s, DENSE)] if whole else in_steps(s, around, ids)
  return UOp.sink(*out, *limits)


def in_steps(s: UOp, around: Sequence[UOp], ids: LoopIds) -> list[UOp]:
  """A store as one of what the sums begin with, and one for each update, in loops that keep their order; they end with
  one of one iteration, or of none where the update goes nowhere."""
  where, value, *loops = s.replace(src=(*s.src[:2], *(r for r in s.src[2:] if r not in around))).src
  if (found := scattered(UOp.new(Ops.STORE, dtypes.void, (where, value, *loops)))) is None:
    return [rewrite(s, DENSE)]
  f, (place, chosen, inside, _, _), start, update = found
  step = {r: abs(c) for r, c in affine(where.src[1], {}).terms.items()}
  wider = [r for r in loops if step.get(r, 0) > step.get(place, 0)]
  narrower = [r for r in loops if r not in wider and r is not place]
  rows = [r for r, w in zip(loops, wider) if r is w]  # what they begin with, and then their updates, row by row
  deciding = [r for r in narrower if r in inside.loops]
  at = ids.like((*wider[len(rows) :], *f.src[1:], *deciding), AxisKind.REDUCE)
  steps = (*at.values(), once(substitute_free(inside, at), ids))
  inner = ids.like(r for r in narrower if r not in deciding)
  at |= inner
  at[place] = substitute_free(chosen, at)
  updates = (*(substitute_free(x, at) for x in (where, update)), *around, *rows, *steps, *inner.values())
  begin = UOp.new(Ops.STORE, dtypes.void, (where, start, *around, *loops))
  return [*in_steps(begin, [*around, *rows], ids), UOp.new(Ops.STORE, dtypes.void, updates)]


def is_alike(store: UOp, found: Found) -> bool:
  """Whether updates are rows: none goes elsewhere in one column than in another."""
  f, (place, _, inside, _, _), _, _ = found
  return all(map(static, f.src[1:])) and not any(r in inside.loops for r in store.src[2:] if r is not place)


def sharers(store: UOp, found: Found, target: Target) -> int:
  """How many groups of threads, or threads with a column or more each, share out the rows of a SCATTER; 0 where each
  row rather looks at every update: there are few, or hardly more elements than threads."""
  place = found[1][0]
  columns = iterations(r for r in store.src[2:] if r is not place)
  if is_alike(store, found):
    workers = max(min(2 * target.busy // target.group, 2 * extent(place) - 1), 1)
    many = extent(place) > target.few_rows and columns * extent(place) > target.busy
    return 1 << workers.bit_length() - 1 if many else 0
  workers = power_of_two(target.busy // max(columns, 1))
  return workers if extent(place) > target.few_rows + 2 * workers else 0


def by_workers(s: UOp, found: Found, workers: int, ids: LoopIds) -> list[UOp]:
  """For a grid of threads: each worker has every `workers`-th row. It goes through all updates, in order, and adds
  those of its rows, so that the sum has the same bits in every run. Where updates are rows, workers are groups of
  threads (group_rows.py), which first note in local memory in which BLOCKs of updates there are any of theirs."""
  f, (place, chosen, inside, _, _), start, update = found
  where, _, *loops = s.src
  start, update = (rewrite(x, DENSE) for x in (start, update))
  worker, rows = ids.loop(index(workers), AxisKind.LOOP), index(ceildiv(extent(place), workers))
  row = ids.loop(rows, AxisKind.REDUCE)
  columns = sorted((r for r in loops if r is not place), key=lambda r: affine(where.src[1], {}).terms.get(r, 0) == 1)
  at = Affine(0, {worker: 1, row: workers}).uop()
  exists = UOp.new(Ops.CMPLT, dtypes.bool, (at, place.src[0]))
  there, first = (substitute_free(x, {place: at}) for x in (where, start))
  begin = [UOp.new(Ops.STORE, dtypes.void, (gated(there, exists), first, worker, *columns, row))]
  mine = UOp.new(Ops.CMPEQ, dtypes.bool, (UOp.new(Ops.MOD, dtypes.index, (chosen, index(workers))), worker))
  mine = UOp.new(Ops.AND, dtypes.bool, (inside, mine)) if workers > 1 else inside
  if columns and is_alike(s, found):
    noted, known, steps = in_blocks(mine, f.src[1:], worker, ids)
    begin.append(noted)
  else:
    known = ids.like(f.src[1:], AxisKind.REDUCE)
    steps = [*known.values(), once(substitute_free(mine, known), ids)]
  here = Affine(0, {steps[-1]: 1})  # 0, but known only where there is something to add: what that needs is read there
  goes = UOp.new(Ops.MAX, dtypes.index, (affine(substitute_free(chosen, known), {}).plus(here).uop(), index(0)))
  known = {r: affine(x, {}).plus(here).uop() for r, x in known.items()}
  known[place] = within_bounds(goes, place.src[0])
  updates = (substitute_free(x, known) for x in (where, update))
  return [*begin, UOp.new(Ops.STORE, dtypes.void, (*updates, worker, *columns, *steps))]


def in_blocks(mine: UOp, over: Sequence[UOp], worker: UOp, ids: LoopIds) -> tuple[UOp, Known, list[UOp]]:
  """(the store of what a group notes: in which blocks of updates one is `mine`; what the loops over updates become, and
  those over blocks, over the one that is of interest or none, and within it)"""
  sizes = [extent(r) for r in over]
  block = max(BLOCK, 1 << (ceildiv(int(prod(sizes)), NOTES) - 1).bit_length())
  blocks = [*sizes[:-1], ceildiv(sizes[-1], block)]
  memory = UOp.new(Ops.PARAM, dtypes.int32, (), ParamArg(-1, int(prod(blocks))))

  def loops(kind: AxisKind) -> tuple[UOp, list[UOp], UOp, Known, UOp]:
    around, within = [ids.loop(index(n), kind) for n in blocks], ids.loop(index(block), AxisKind.REDUCE)
    last = Affine(0, {around[-1]: block, within: 1}).uop()
    known = dict(zip(over, (*around[:-1], within_bounds(last, index(sizes[-1])) if sizes[-1] % block else last)))
    chosen, where = substitute_free(mine, known), UOp.new(Ops.INDEX, dtypes.int32, (memory, iteration_of(around).uop()))
    if sizes[-1] % block:
      there = UOp.new(Ops.CMPLT, dtypes.bool, (last, index(sizes[-1])))
      chosen = UOp.new(Ops.AND, dtypes.bool, (there, chosen))
    return where, around, within, known, chosen

  where, around, within, _, chosen = loops(AxisKind.LOOP)
  one, none = UOp.const(dtypes.int32, 1), UOp.const(dtypes.int32, 0)
  some = UOp.new(Ops.FOLD, dtypes.int32, (UOp.new(Ops.WHERE, dtypes.int32, (chosen, one, none)), within), Ops.MAX)
  noted = UOp.new(Ops.STORE, dtypes.void, (where, some, worker, *around))
  where, around, within, known, chosen = loops(AxisKind.REDUCE)
  any_there = UOp.new(Ops.CMPNE, dtypes.bool, (UOp.new(Ops.LOAD, dtypes.int32, (where,)), none))
  return noted, known, [*around, once(any_there, ids), within, once(chosen, ids)]


def once(condition: UOp, ids: LoopIds) -> UOp:
  """A loop of one iteration, or of none."""
  return ids.loop(UOp.new(Ops.WHERE, dtypes.index, (condition, index(1), index(0))), AxisKind.REDUCE)


def with_row_memory(kernel: UOp, target: Target) -> UOp:
  """A kernel of one store whose value holds reductions by index, as one of rows with a store for each of these, into
  memory of the row; the other loops of that are its own."""
  store, loops = kernel.src[0], kernel.src[0].src[2:]
  if len(kernel.src) == 2 and not store.src[0].src[0].arg.given and {*loops} == {*kernel.src[1].src[2:]} and not NOOPT:
    known = {UOp.new(Ops.LOAD, store.src[1].dtype, store.src[:1]): store.src[1]}
    joined = substitute_free(kernel.src[1], known)  # which may be what steps store
    return kernel if looks_at(joined, store.src[0].src[0]) or scattered(joined, CHEAP) is None else UOp.sink(joined)
  if len(kernel.src) > 1 or not target.scratch or target.threads or NOOPT:
    return kernel
  folds = reductions((store,))
  deep = set(UOp.sink(*(f.src[0] for f in folds)).toposort())
  places = {f: loops.index(parts[0]) for f in folds if f not in deep and (parts := by_index(f, loops))}
  if not places or scattered(store, CHEAP) or not all(map(static, loops)):
    return kernel
  rows, ids = loops[: 1 + max(places.values())], LoopIds(kernel)
  inner = [r for r in loops if r not in rows]
  out, reads = [], {}
  for i, f in enumerate(places):
    memory = UOp.new(Ops.PARAM, f.dtype, (), ParamArg(-1 - i, iterations(inner)))
    where = UOp.new(Ops.INDEX, f.dtype, (memory, iteration_of(inner).uop()))
    own = ids.like(inner)
    written = (substitute_free(x, own) for x in (where, f))
    out.append(UOp.new(Ops.STORE, dtypes.void, (*written, *(own.get(r, r) for r in loops))))
    reads[f] = UOp.new(Ops.LOAD, f.dtype, (where,))
  return UOp.sink(*out, substitute_free(store, reads))
