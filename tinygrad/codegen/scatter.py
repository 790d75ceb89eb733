"""SCATTER in a kernel: FOLD(ONE_HOT(row, place, x)), the reduction of those x whose row is the place. A step for each
x, `out[row] += x`, rather than one for each x and place. Loops over what a row holds run inside of the step, as a nest
of their own. Where that would not pay, or cannot be, each place compares its number with every row (`dense`).

What is written is the memory of the sums, so these have to be all that the store stores, or that and what they are
added to; other sums get memory of the row first (`with_row_memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tinygrad.codegen.heuristic import size, static
from tinygrad.codegen.plan import LoopAround, LoopNest, Nests
from tinygrad.device import Target
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import NOOPT, prod
from tinygrad.ops.reduce import nothing
from tinygrad.uop import Ops, ParamArg, UOp
from tinygrad.uop.affine import Affine, affine, index, row_major
from tinygrad.uop.loop_ids import LoopIds
from tinygrad.uop.rewrite import rewrite, substitute_free

LEAST = 32  # places; comparing with fewer of them, in vectors, is faster than one element at a time


Known = Mapping[UOp, UOp]  # ranges and their values
# A SCATTER as (place, chosen, inside, value, none): `place` is a loop of the store on which `chosen`, where on it a
# value goes, does not depend; `inside`: whether it goes anywhere; none: what a place begins with
ByIndex = tuple[UOp, UOp, UOp, UOp, UOp]


def by_index(f: UOp, loops: Sequence[UOp]) -> ByIndex | None:
  """The parts of `f`, if it is a SCATTER whose place is one of these loops of a store, but for a constant."""
  if f.op is not Ops.FOLD or f.src[0].op is not Ops.ONE_HOT:
    return None
  row, at, value = f.src[0].src
  form = affine(at, {})
  for r in [r for r in loops if form.terms.get(r) == 1]:
    chosen = UOp.new(Ops.SUB, dtypes.index, (row, form.plus(Affine(0, {r: 1}), -1).uop()))
    inside = [UOp.new(Ops.CMPLT, dtypes.bool, pair) for pair in ((index(-1), chosen), (chosen, r.src[0]))]
    if r not in UOp.sink(*inside).toposort():
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


def scattered(store: UOp) -> tuple[UOp, ByIndex, UOp] | None:
  """(a FOLD by index that `store` stores, its parts, what the sums begin with), if that is worth it."""
  where, value, *loops = store.src
  for f, start in ((value, None), *((f, value.src[1 - i]) for i, f in enumerate(value.src[:2]) if value.op is f.arg)):
    parts = by_index(f, loops)
    if parts is None or any(u.op is Ops.INDEX and u.src[0] is where.src[0] for u in f.toposort()):
      continue
    place, _, _, _, none = parts
    rows = any(c == 1 for r, c in affine(where.src[1], {}).terms.items() if r in loops and r is not place)
    if (rows or size(place) >= LEAST) and (start is None or f not in start.toposort()):
      return f, parts, none if start is None else start
  return None


def nests_of(nest: LoopNest) -> Nests:
  """What a nest of loops does, its reductions by index step by step where that pays."""
  found = None if NOOPT or nest.ends or len(nest.stores) > 1 else scattered(nest.stores[0])
  if found is None:
    return (replace(nest, stores=tuple(rewrite(s, DENSE) for s in nest.stores)),)
  f, (place, chosen, inside, value, _), start = found
  where, _, *loops = nest.stores[0].src
  begin = replace(nest, stores=(UOp.new(Ops.STORE, dtypes.void, (where, start, *loops)),))
  step = {r: abs(c) for r, c in affine(where.src[1], {}).terms.items()}
  wider = [r for r in loops if step.get(r, 0) > step.get(place, 0)]
  narrower = [r for r in loops if r not in wider and r is not place]
  deciding = [r for r in narrower if r in inside.toposort()]

  def one(at: Known) -> Nests:
    store = added(f, where, value, {**at, place: substitute_free(chosen, at)})
    inner = [r for r in narrower if r not in deciding]
    return (replace(nest, stores=(UOp.new(Ops.STORE, dtypes.void, (*store.src, *inner)),)),)

  return (*nests_of(begin), updates((*wider, *f.src[1:], *deciding), {}, inside, one))


def updates(loops: Sequence[UOp], known: Known, inside: UOp, each: Callable[[Known], Nests]) -> LoopAround:
  """These loops, and in them what `each` gives for the values of ranges where `inside` holds."""
  if loops:
    return LoopAround(loops[0].src[0], lambda n: (updates(loops[1:], {**known, loops[0]: n}, inside, each),))
  once = UOp.new(Ops.WHERE, dtypes.index, (substitute_free(inside, known), index(1), index(0)))
  return LoopAround(once, lambda _: each(known))


def added(f: UOp, where: UOp, value: UOp, at: Known) -> UOp:
  """out[where] = out[where] op value"""
  more = UOp.new(f.arg, f.dtype, (UOp.new(Ops.LOAD, f.dtype, (where,)), value))
  return substitute_free(UOp.new(Ops.STORE, dtypes.void, (where, more)), at)


def with_row_memory(kernel: UOp, target: Target) -> UOp:
  """A kernel of one store whose value holds reductions by index, as one of rows with a store for each of these, into
  memory of the row; the other loops of that are its own."""
  store, loops = kernel.src[0], kernel.src[0].src[2:]
  if len(kernel.src) > 1 or not target.scratch or target.threads or NOOPT:
    return kernel
  folds = [f for f in store.toposort() if f.op is Ops.FOLD]
  deep = set(UOp.sink(*(f.src[0] for f in folds)).toposort())
  places = {f: loops.index(parts[0]) for f in folds if f not in deep and (parts := by_index(f, loops))}
  if not places or scattered(store) or not all(map(static, loops)):
    return kernel
  rows, ids = loops[: 1 + max(places.values())], LoopIds(kernel)
  inner = [(r, size(r)) for r in loops if r not in rows]
  out, reads = [], {}
  for i, f in enumerate(places):
    memory = UOp.new(Ops.PARAM, f.dtype, (), ParamArg(-1 - i, int(prod(n for _, n in inner))))
    where = UOp.new(Ops.INDEX, f.dtype, (memory, row_major(inner)))
    own = {r: ids.loop(r.src[0], r.arg[1]) for r, _ in inner}
    written = (substitute_free(x, own) for x in (where, f))
    out.append(UOp.new(Ops.STORE, dtypes.void, (*written, *(own.get(r, r) for r in loops))))
    reads[f] = UOp.new(Ops.LOAD, f.dtype, (where,))
  return UOp.sink(*out, substitute_free(store, reads))
