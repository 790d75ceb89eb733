"""A group as one kernel: memory that nobody else reads becomes a row's own, which never leaves the cache, and so do
values of slow functions that several of its stores take.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.schedule.loops import tidy
from tinygrad.schedule.row_groups import Group, loop_length
from tinygrad.uop import CARDS, AxisKind, Ops, ParamArg, UOp, simplify, substitute
from tinygrad.uop.affine import Affine, affine, row_major

SLOW = 16  # instructions an element from which on a function is read from memory rather than computed again


def inner_offset(offset: Affine, rows: Mapping[UOp, int]) -> Affine | None:
  """The place within a row: `offset` without its digits of `rows` (loop -> distance); None if they are not apart."""
  out = Affine(0)
  for atom, c in offset.terms.items():
    if atom in rows:
      continue
    below = [r for r, step in rows.items() if c >= step * loop_length(r)]
    if any(c % (rows[r] * loop_length(r)) for r in below):
      return None
    out = out.plus(Affine(0, {atom: c // prod(map(loop_length, below))}))
  return out if offset.const == 0 else None


def one_kernel(group: Group, temps: Iterable[int]) -> tuple[UOp, tuple[int, ...], int]:
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
      arg = replace(p.arg, slot=own[slot], size=p.arg.size // prod(map(loop_length, group.rows)))
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
    if CARDS[u.op].cost >= SLOW:
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
    memory = UOp.new(Ops.PARAM, first.dtype, (), ParamArg(-own, prod(map(loop_length, loops))))
    order = sorted(range(len(loops)), key=lambda i: loops[i].arg[0])  # it lies as its first reader goes through it
    flat = {u: affine(row_major((its[i], loop_length(its[i])) for i in order), {}) for u, its in same.items()}
    places = {u: UOp.new(Ops.INDEX, u.dtype, (memory, at.uop())) for u, at in flat.items()}
    reads = {u: UOp.new(Ops.LOAD, u.dtype, (where,)) for u, where in places.items()}
    ours = {loops[i]: loops[i].replace(arg=(loops[i].arg[0], AxisKind.LOOP)) for i in order}
    where, value = (substitute(x, ours) for x in (places[first], first))
    store = UOp.new(Ops.STORE, dtypes.void, (where, value, *rows, *ours.values()))
    new = substitute(UOp.sink(*stores), reads).src
    stores = (*new[: users[0]], store, *new[users[0] :])
  return stores
