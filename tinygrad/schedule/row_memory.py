"""A group as one kernel: memory that nobody else reads becomes a row's own, which never leaves the cache, and so do
values of slow functions that several of its stores take."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.numerics.own_memory import with_accesses
from tinygrad.schedule.loops import tidy
from tinygrad.schedule.row_groups import Group
from tinygrad.uop import CARDS, AxisKind, Ops, ParamArg, UOp, simplify, substitute
from tinygrad.uop.affine import Affine, affine, row_major
from tinygrad.uop.loops import extent, iterations, static

WHATEVER = 1 << 40  # bytes
SLOW = 16  # instructions an element from which on a function is read from memory rather than computed again


def inner_offset(offset: Affine, rows: Mapping[UOp, int]) -> Affine | None:
  """The place within a row: `offset` without its digits of `rows` (loop -> distance); None if they are not apart."""
  out = Affine(0)
  for atom, c in offset.terms.items():
    if atom in rows:
      continue
    below = [r for r, step in rows.items() if abs(c) >= step * extent(r)]
    if any(c % (rows[r] * extent(r)) for r in below):
      return None
    out = out.plus(Affine(0, {atom: c // iterations(below)}))
  return out.plus(Affine(offset.const)) if abs(offset.const) < min(rows.values(), default=1) else None


def forward_stores(group: Group, temps: Collection[int]) -> Group:
  """The group in which who reads what was stored for the row that it is in knows the value itself; memory of `temps`
  for these is none at all. It computes it anew, or knows it still where the stores share all of their loops: if nothing
  that it is computed from is written meanwhile, and, of stores with other loops, if it is the only one."""
  stores, of_rows = group.stores, [{*s.src[2:]} == {*group.rows} for s in group.stores]
  written = [s.src[0].src[0].arg.slot for s in stores]
  read = [{u.src[0].src[0].arg.slot for u in s.toposort() if u.op is Ops.LOAD} for s in stores]
  places = [u for u in UOp.sink(*stores).toposort() if u.op is Ops.INDEX]
  lasts = [of_rows[i] and read[i].isdisjoint(written[i:]) for i in range(len(stores))]  # it can be computed later on
  readers: dict[int, set[int]] = {}  # of a store, those that are left and read what it has written
  for i in reversed(range(len(stores))):
    found = set[int]().union(*(readers.get(j, {j}) for j in range(i + 1, len(stores)) if written[i] in read[j]))
    there = [u for u in places if u.src[0].arg.slot == written[i]] == [stores[i].src[0]]
    if lasts[i] and there and written[i] in temps and (all(of_rows) or len(found) == 1):
      readers[i] = found
  values, out = dict[UOp, UOp](), list[UOp]()  # by INDEX
  for i, s in enumerate(stores):
    known = {u: values[u.src[0]] for u in s.toposort() if u.op is Ops.LOAD and u.src[0] in values and len(u.src) == 1}
    s = substitute(s, known)
    if i in readers or (all(of_rows) and lasts[i]):
      values[s.src[0]] = s.src[1]
    if i not in readers:
      out.append(s)
  return replace(group, stores=tuple(out))


def one_kernel(group: Group, temps: Collection[int], target: Target) -> UOp:
  """Memory of `temps`, which nobody else reads, becomes a row's own, as far as local memory goes, of which what streams
  needs little."""
  room = target.scratch // 2 if target.threads and not group.streams else WHATEVER
  if target.threads:
    group = forward_stores(group, temps)
    # threads of a group that have no columns of their own do not meet: they would have nothing to share
    temps = temps if any({*s.src[2:]} != {*group.rows} for s in group.stores) else ()
  own, mapping, memo = dict[int, int](), dict[UOp, UOp](), dict[UOp, Affine]()
  everything = UOp.sink(*group.stores).toposort()
  for slot in temps:
    if not (found := [u for u in everything if u.op is Ops.INDEX and u.src[0].arg.slot == slot]):
      continue
    steps = {r: c for r, c in affine(found[0].src[1], memo).terms.items() if r in group.rows}
    inner = [x for u in found if (x := inner_offset(affine(u.src[1], memo), steps)) is not None]
    size = found[0].src[0].arg.size // iterations(group.rows)
    if len(steps) < len(group.rows) or len(inner) < len(found):
      continue
    if (room := room - size * found[0].dtype.itemsize) < 0:
      break
    own[slot] = -1 - len(own)
    for u, x in zip(found, inner):
      p = u.src[0]
      arg = replace(p.arg, slot=own[slot], size=size)
      mapping[u] = u.replace(src=(p.replace(arg=arg), x.uop(), *u.src[2:]))
  sink = with_accesses(UOp.sink(*group.stores), mapping)
  return tidy(sink if target.threads else UOp.sink(*eliminate_common_functions(sink.src, group.rows, len(own))))


def eliminate_common_functions(stores: tuple[UOp, ...], rows: Sequence[UOp], own: int) -> tuple[UOp, ...]:
  """The stores, where slow functions of the same elements, which several of them compute, are read from memory of the
  row; `own` kinds of such memory are there."""
  found: dict[UOp, dict[UOp, tuple[UOp, ...]]] = {}  # with loops by number -> as it is computed, and its loops
  for u in UOp.sink(*stores).toposort():
    if CARDS[u.op].cost >= SLOW:
      below = u.toposort()
      loops = tuple(r for r in below if r.op is Ops.RANGE and r not in rows)
      if loops and all(map(static, loops)) and all(x.op is not Ops.FOLD for x in below):
        by_number = {r: r.replace(arg=(-1 - i, AxisKind.LOOP)) for i, r in enumerate(loops)}
        found.setdefault(simplify(substitute(u, by_number)), {})[u] = loops
  for same in reversed(found.values()):  # the largest first
    users = [i for i, s in enumerate(stores) if not same.keys().isdisjoint(s.toposort())]
    first, loops = next(iter(same.items()))
    read = {x.src[0] for x in first.toposort() if x.op is Ops.INDEX}
    if len(users) < 2 or any(s.src[0].src[0] in read for s in stores[users[0] : users[-1]]):
      continue
    own += 1
    memory = UOp.new(Ops.PARAM, first.dtype, (), ParamArg(-own, iterations(loops)))
    order = sorted(range(len(loops)), key=lambda i: loops[i].arg[0])  # it lies as its first reader goes through it
    flat = {u: affine(row_major((its[i], extent(its[i])) for i in order), {}) for u, its in same.items()}
    places = {u: UOp.new(Ops.INDEX, u.dtype, (memory, at.uop())) for u, at in flat.items()}
    reads = {u: UOp.new(Ops.LOAD, u.dtype, (where,)) for u, where in places.items()}
    ours = {loops[i]: loops[i].replace(arg=(loops[i].arg[0], AxisKind.LOOP)) for i in order}
    where, value = (substitute(x, ours) for x in (places[first], first))
    store = UOp.new(Ops.STORE, dtypes.void, (where, value, *rows, *ours.values()))
    new = substitute(UOp.sink(*stores), reads).src
    stores = (*new[: users[0]], store, *new[users[0] :])
  return stores
