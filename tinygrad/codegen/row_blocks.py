"""Kernels of several stores that share rows: a loop over blocks of rows, and in it each store as a nest of its own.

Memory that is a row's own (a PARAM whose slot is below 0) is scratch memory for the rows of a block."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from tinygrad.codegen.primitives.split import split_loop
from tinygrad.codegen.primitives.stage import LINE, scratch
from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, prod, round_up
from tinygrad.numerics.idle_loops import chunks, parts_of
from tinygrad.numerics.own_memory import with_accesses
from tinygrad.numerics.products import step_reads
from tinygrad.numerics.scatter import by_index
from tinygrad.ops.reduce import identity_element
from tinygrad.uop import AxisKind, Ops, PieceArg, UOp
from tinygrad.uop.affine import Affine, affine
from tinygrad.uop.loops import LoopIds, all_rows, extent, fold_ranges, iteration_of, iterations, reductions
from tinygrad.uop.rewrite import on_sources, rebuild, substitute_free

BLOCK_PARTS = 4  # of the cache, of which the rows of a block may touch one
LEAST = 32  # rows of a block in which something is contracted: its other operand is read once a block
MOST = 1 << 12
Ranges = tuple[UOp, ...]


def indices(stores: Sequence[UOp]) -> Iterator[UOp]:
  return (u for u in UOp.sink(*stores).toposort() if u.op is Ops.INDEX)


def is_given(p: UOp) -> bool:
  """Whether it is an argument of the kernel, and not memory of a row's own."""
  return p.op is Ops.PARAM and p.arg.given


def shared_reads(store: UOp, rows: Sequence[UOp]) -> list[frozenset[UOp]]:
  """Of what a reduction reads beside memory that is another for each row: the rows for which that is the same."""
  folds = (f for f in reductions((store,)) if by_index(f, store.src[2:]) is None)
  same = ([frozenset(rows if is_given(u.src[0]) else ()) - u.loops for u in step_reads(f)] for f in folds)
  return [x - frozenset.intersection(*some) for some in same for x in some]


def bytes_of_row(accesses: Iterable[UOp], rows: Sequence[UOp]) -> dict[UOp, int]:
  """What a row touches, by memory."""
  touched = dict[UOp, int]()
  for u in accesses:
    p, at = u.src[:2]
    if p.op is Ops.PARAM and not (p.arg.given and at.loops.isdisjoint(rows[-1:])):
      mine = iterations(r for r in rows if r in at.loops) if p.arg.given else 1
      touched[p] = max(touched.get(p, 0), ceildiv(p.arg.size, mine) * p.dtype.itemsize)
  return touched


def block_rows(kernel: UOp, target: Target) -> UOp:
  """Blocks of the innermost rows, sized for the target's cache; where their number does not divide a loop's, the rest
  is a smaller block. There may be no loops left: a thread's share is one row."""
  stores, clipped = parts_of(kernel)
  if len(stores) == 1 or target.threads:
    return kernel
  rows, ids = all_rows(stores), LoopIds(kernel)
  limits = {x.src[0]: affine(x.src[1], {}) for x in clipped if x.src[0].op is Ops.RANGE}
  # a block of rows to which updates go by index goes through all of these, so it is as large as there is memory for
  places, sizes = {parts[0] for s in stores if (parts := by_index(s.src[1], rows))}, dict[UOp, int]()
  twice = shared_by_pieces(kernel)
  least = LEAST if (same := [x for s in stores for x in shared_reads(s, rows) if x]) else 1
  touched = BLOCK_PARTS * max(sum(bytes_of_row(indices(stores), rows).values()), 1)
  for r in reversed(rows):
    room, most = (target.cache, MOST) if places <= sizes.keys() else (target.scratch, target.scratch)
    # of rows further out for which something is the same that is another for each of these, some are in the block, too
    outer = [(prod(n for q, n in sizes.items() if q in x), x.difference(sizes)) for x in same if r not in x]
    beside = max((min(ceildiv(LEAST, have), iterations(rest)) for have, rest in outer), default=1)
    take = min(max(min(max(room // touched, least), most) // prod(sizes.values()) // beside, 1), extent(r))
    lanes = target.vector_bytes // 4 if same and r is rows[-1] else 1  # rows are these where all read the same
    some = range(take, take // 2, -1) if r not in twice else [d for d in range(take, 0, -1) if extent(r) % d == 0][:1]
    sizes[r] = min(some, key=lambda d: (vectors(extent(r), d, lanes), extent(r) % d > 0))
  out, ends = list[UOp](), list[UOp]()

  def blocks(rest: Sequence[UOp], at: dict[UOp, UOp], around: Ranges, inside: Ranges) -> None:
    """`at`: what is known of rows: the block's counter, of the loops `around`, plus the loop within the block, which is
    among `inside`."""
    if not rest:
      for store in members(stores, at, around, inside, ids):
        mine = {x: own for x, own in ids.copies(store).items() if x not in around}
        out.append(rebuild(store, on_sources, dict(mine)))
        ends.extend(chunks(mine[x], limits[x], at, inside) for x in limits if x in mine)
      return
    r = rest[0]
    for s in stores:
      if r in fold_ranges(s) and at.keys().isdisjoint(fold_ranges(s)):  # its sums begin: r is the outermost of theirs
        start = UOp.const(s.src[1].dtype, identity_element(s.src[1].arg, s.src[1].dtype))
        own = ids.like((*inside, *(x for x in s.src[2:] if x not in at)))
        where = substitute_free(substitute_free(s.src[0], at), own)
        out.append(UOp.new(Ops.STORE, dtypes.void, (where, start, *around, *own.values())))
    versions, parts = split_loop(r.replace(arg=(r.arg[0], AxisKind.LOOP)), sizes[r], None, ids)
    for v in versions:
      counter = tuple(x for x in v.loops if x is parts["o"])
      within = tuple(x for x in v.loops if x is not parts["o"])
      blocks(rest[1:], {**at, r: v.value}, (*around, *counter), (*inside, *within))

  blocks(rows, {}, (), ())
  return UOp.sink(*out, *ends)


def begins_piece(x: UOp) -> bool:
  """Whether it is where a piece begins that has rows in common with the one before it (`share_out`)."""
  return x.op is Ops.MIN and any(isinstance(v.arg, PieceArg) for v in x.variables())


def shared_by_pieces(kernel: UOp) -> set[UOp]:
  """The loops of such pieces: rows that two have in common get the same value from each where all blocks are alike, for
  in those sums are taken in one order."""
  found, memo = set[UOp](), dict[UOp, Affine]()
  for u in kernel.toposort():
    if u.op is Ops.ADD and u.dtype is dtypes.index and any(map(begins_piece, terms := affine(u, memo).terms)):
      loops = [x for x in terms if x.op is Ops.RANGE]
      found.update(loops if len(loops) == len(terms) - 1 == 1 else ())
  return found


def vectors(n: int, block: int, lanes: int) -> int:
  """How many there are in n rows, if each block, and what is left, begins with one."""
  return int(n // block * ceildiv(block, lanes) + ceildiv(n % block, lanes))


def reuses_memory(where: UOp, here: Sequence[UOp], later: Container[UOp], q: UOp) -> bool:
  """Whether what is written there may lie where q did: the store, with the accesses `here`, is the last that reads q,
  element by element. `later`: the memory that those after it touch."""
  p = where.src[0]
  if q.arg.size != p.arg.size or q.dtype is not p.dtype or q in later:
    return False
  return all(u.src[1] is where.src[1] for u in here if u.src[0] is q)


def in_columns(u: UOp, rows: Sequence[UOp]) -> bool:
  """Whether of a row's elements in memory each lies beside that of the next row."""
  terms = affine(u.src[1], {}).terms
  return is_given(u.src[0]) and not terms.keys() <= {*rows} and any(terms.get(r) == 1 for r in rows[-1:])


def members(stores: Sequence[UOp], at: dict[UOp, UOp], around: Ranges, inside: Ranges, ids: LoopIds) -> Iterator[UOp]:
  """The stores of one block."""
  block, rows = iterations(inside), [*at]
  row = iteration_of(inside)
  memory, offset = dict[UOp, UOp](), 0
  columns: dict[UOp, bool] = {}  # memory of a row -> whether the rows of a block lie beside each other
  tenants: dict[UOp, UOp] = {}  # scratch memory -> which memory of a row it is, as yet
  accessed = [[*indices([s])] for s in stores]
  last = {u.src[0]: i for i, of in enumerate(accessed) for u in of}  # the store that is the last to touch it
  for i, s in enumerate(stores):
    where, p = s.src[0], s.src[0].src[0]
    if not p.arg.given and p not in memory:
      columns[p] = any(shared_reads(s, rows)) or any(columns.get(u.src[0]) or in_columns(u, rows) for u in accessed[i])
      later = {q for q, n in last.items() if n > i}
      same = [(m, q) for m, q in tenants.items() if columns[p] == columns[q]]
      free = (m for m, q in same if reuses_memory(where, accessed[i], later, q))
      if (there := next(free, None)) is None:
        nbytes = round_up(block * p.arg.size * p.dtype.itemsize, LINE)
        there, offset = scratch(p.dtype, offset, ids, nbytes), offset + nbytes
      memory[p], tenants[there] = there, p
  for s, of in zip(stores, accessed):
    moved: dict[UOp, UOp] = {}
    for u, p in ((u, u.src[0]) for u in of if u.src[0] in memory):
      inner = affine(u.src[1], {})
      place = inner.scaled(block).plus(row) if columns[p] else inner.plus(row, p.arg.size)
      moved[u] = u.replace(src=(memory[p], place.uop(), *u.src[2:]))
    where, value = s.src[:2]
    loops = [*inside, *(r for r in s.src[2:] if r not in at)]
    # the scheduler made it a row's own: a loop that it does not lie along is one over rows, or of at most one iteration
    known = {*at, *where.src[1].toposort()}
    assert where.src[0] not in memory or all(r in known or r.src[0].vmax <= 1 for r in s.src[2:]), where.src[0].arg
    if over := [r for r in fold_ranges(s) if r in at]:  # the part of this block, and what there is of others
      steps = [x for r in over for x in inside if x in at[r].loops]
      loops = [r for r in loops if r not in steps]
      ranges = (*steps, *(r for r in fold_ranges(s) if r not in at))
      part = UOp.new(Ops.FOLD, value.dtype, (value.src[0], *ranges), value.arg) if ranges else value.src[0]
      value = UOp.new(value.arg, value.dtype, (UOp.new(Ops.LOAD, value.dtype, (where,)), part))
    store = substitute_free(with_accesses(UOp.new(Ops.STORE, dtypes.void, (where, value)), moved), at)
    yield store.replace(src=(*store.src, *around, *loops))
