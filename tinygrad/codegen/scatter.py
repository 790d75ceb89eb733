"""Reductions by index: `out[i] = Σ_j (e[j] == i ? x[j] : 0)` takes a step for each j, `out[e[j]] += x[j]`, rather than
one for each i and j. Loops over a row of x run inside of the step, as a nest of their own.

What is written is the memory of the sums, so these have to be all that the store stores, or that and what they are
added to; other sums get memory of the row first (`apart`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tinygrad.codegen.emit import Emitter
from tinygrad.codegen.heuristic import size, static
from tinygrad.codegen.values import substitute
from tinygrad.dtype import dtypes
from tinygrad.helpers import NOOPT, prod
from tinygrad.ops.reduce import identity_element
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.affine import Affine, affine, index, plain, row_major

LEAST = 32  # places; comparing with fewer of them, in vectors, is faster than one element at a time


# A FOLD of `chosen == place and … ? value : none` as (place, chosen, inside, value, none). `place` is a loop of the
# store on which `chosen`, an index, does not depend; `inside`: whether it is a place, and the other conditions hold.
ByIndex = tuple[UOp, UOp, UOp, UOp, UOp]


def by_index(f: UOp, loops: Sequence[UOp]) -> ByIndex | None:
  """`f` taken apart, if it is a FOLD by index over one of these loops of a store."""
  if f.op is not Ops.FOLD:
    return None
  value, every = f.src[0], list[UOp]()
  none = value.src[2] if value.op is Ops.WHERE else UOp.const(f.dtype, 0)
  if none.op is not Ops.CONST or none.arg != identity_element(f.arg, f.dtype):
    return None
  while value.op is Ops.WHERE and value.src[2] is none:
    every, value = [*every, value.src[0]], value.src[1]
  hit = value
  while hit.op is Ops.CAST:
    hit = hit.src[0]
  if hit.dtype is dtypes.bool and none.arg == 0:
    every, value = [*every, hit], UOp.const(f.dtype, 1)
  every = conjuncts(every)
  equal = [c for c in every if c.op is Ops.CMPEQ and dtypes.is_int(c.src[0].dtype)]
  for x, e, same in [(*pair, c) for c in equal for pair in (c.src, c.src[::-1])]:
    number, counter = plain(e), plain(x)
    if number is None:
      number = UOp.new(Ops.CAST, dtypes.index, (e,))
    form = Affine(0) if counter is None else affine(counter, {})
    for r in [r for r in loops if form.terms.get(r) == 1]:
      chosen = UOp.new(Ops.SUB, dtypes.index, (number, form.plus(Affine(0, {r: 1}), -1).uop()))
      inside = UOp.new(Ops.CMPLT, dtypes.bool, (index(-1), chosen))
      for c in (UOp.new(Ops.CMPLT, dtypes.bool, (chosen, r.src[0])), *every):
        inside = inside if c is same else UOp.new(Ops.AND, dtypes.bool, (inside, c))
      if r not in inside.toposort():
        return r, chosen, inside, value, none
  return None


def conjuncts(conditions: Sequence[UOp]) -> list[UOp]:
  """What has to hold for all of these to hold, each once."""
  out, seen, stack = list[UOp](), set[UOp](), [*reversed(conditions)]
  while stack:
    c = stack.pop()
    if c not in seen:
      seen.add(c)
      if c.op is Ops.AND:
        stack += reversed(c.src)
      else:
        out.append(c)
  return out


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


class LoopEmitter(Emitter):
  """Emits one kernel of loops; reductions by index step by step."""

  def kernel(self, stores: Sequence[UOp]) -> None:
    if NOOPT or self.ends or len(stores) > 1 or (found := scattered(stores[0])) is None:
      super().kernel(stores)
      return
    f, (place, chosen, inside, value, _), start = found
    where, _, *loops = stores[0].src
    self.written.add(where.src[0])
    self.kernel([UOp.new(Ops.STORE, dtypes.void, (where, start, *loops))])
    self.forget_memory()
    deciding = inside.toposort()
    step = {r: abs(c) for r, c in affine(where.src[1], {}).terms.items()}
    wider = [r for r in loops if step.get(r, 0) > step.get(place, 0)]
    narrower = [r for r in loops if r not in wider and r is not place]
    at: dict[UOp, UOp] = {}
    with contextlib.ExitStack() as opened:
      for r in (*wider, *f.src[1:], *(r for r in narrower if r in deciding)):
        at[r] = opened.enter_context(self.loop(r.src[0], AxisKind.LOOP))
      once = UOp.new(Ops.WHERE, dtypes.index, (substitute(inside, at), index(1), index(0)))
      opened.enter_context(self.loop(once, AxisKind.LOOP))
      at[place] = substitute(chosen, at)
      more = UOp.new(f.arg, f.dtype, (UOp.new(Ops.LOAD, f.dtype, (where,)), value))
      added = substitute(UOp.new(Ops.STORE, dtypes.void, (where, more)), at).src
      super().kernel([UOp.new(Ops.STORE, dtypes.void, (*added, *(r for r in narrower if r not in deciding)))])
    self.forget_memory()


def apart(store: UOp) -> tuple[tuple[UOp, ...], tuple[UOp, ...]]:
  """The store of a value that holds reductions by index, with these in memory of the row; and the loops over rows."""
  loops = store.src[2:]
  folds = [f for f in store.toposort() if f.op is Ops.FOLD]
  deep = set(UOp.sink(*(f.src[0] for f in folds)).toposort())
  places = {f: loops.index(parts[0]) for f in folds if f not in deep and (parts := by_index(f, loops))}
  if NOOPT or not places or scattered(store) or not all(map(static, loops)):
    return (store,), loops
  rows = loops[: 1 + max(places.values())]
  inner = [(r, size(r)) for r in loops if r not in rows]
  out, reads = [], {}
  for i, f in enumerate(places):
    memory = UOp.new(Ops.PARAM, f.dtype, (), ParamArg(-1 - i, int(prod(n for _, n in inner))))
    where = UOp.new(Ops.INDEX, f.dtype, (memory, row_major(inner)))
    out.append(UOp.new(Ops.STORE, dtypes.void, (where, f, *loops)))
    reads[f] = UOp.new(Ops.LOAD, f.dtype, (where,))
  return (*out, substitute(store, reads)), rows
