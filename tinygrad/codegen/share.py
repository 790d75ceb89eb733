"""A kernel shared out among the threads of one device: in pieces, of which each is a part of one range.

The piece is chosen by a variable, so that one program serves all, as `_device_num` makes one serve all devices; what is
emitted has fixed lengths. Pieces that do not divide the range overlap: elements computed twice get the same value
twice. Of more pieces than threads, a thread that comes early or has less to do takes more."""

from __future__ import annotations

from tinygrad.codegen.analysis.accesses import OPERATION, Analysis, rereads, size, static
from tinygrad.codegen.primitives.rebind import Rebinding, Version
from tinygrad.codegen.row_blocks import all_rows, fold_ranges, parts_of, shared_rows
from tinygrad.codegen.scatter import by_index
from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, round_up
from tinygrad.uop import Ops, PieceArg, UOp
from tinygrad.uop.rewrite import substitute_free

WORTHWHILE = 1 << 15  # accesses and operations, one vector each, that pay for waking other threads
PIECES = (8, 4, 2, 1)  # of each thread
REPEATED = 1.0005  # times the iterations and elements read, at most, for more of them
UNEVEN = 1.05  # the same, if some have more to do than others
LEAST = 1 << 13  # accesses and operations of a piece, one vector each


def share_out(ast: UOp, threads: int, lanes: int = 16) -> UOp:
  """A piece of the kernel for `threads` threads; the whole kernel where sharing would not pay, or not be correct.

  The range that is cut saves the most work: what does not depend on it is done for every piece."""
  if threads == 1:
    return ast
  stores, limits = parts_of(ast)
  items = [i for s in stores for i in Analysis((s,), s.src[2:]).items]
  work = sum(i.work * (len(i.accesses) + OPERATION * i.operations) for i in items) / lanes
  if work < WORTHWHILE:
    return ast
  whole = sum(i.cost() for i in items)
  chosen = {parts[0] for s in stores for f in s.toposort() if (parts := by_index(f, s.src[2:]))}
  # no element may be computed twice: what is written is read, here or where blocks of rows are added (`block_rows`)
  summed = len(stores) > 1 and any(r in all_rows(stores) for s in stores for r in fold_ranges(s))
  exact = bool(chosen) or summed or any(p.arg.slot >= 0 for p in rereads(stores))

  def cost(r: UOp, pieces: int) -> float:
    """Of all pieces together."""
    return pieces * sum(i.cost(r, ceildiv(size(r), pieces) / size(r)) for i in items)

  def lane(r: UOp) -> int:
    """What a vector takes of it, if some may lie along it: where elements are neighbours, or operands are reused."""
    steps = {x.strides.get(r, 0) for i in items if r in i.ranges for x in i.accesses}
    return lanes if not chosen and (1 in steps or (0 in steps and size(r) >= lanes)) else 1

  best: tuple[float, UOp, int] | None = None
  for r in sorted(shared_rows(stores), key=chosen.__contains__):
    n = size(r) if r not in chosen or len(stores[0].src) > 3 else 1  # each would look at every element of others
    if not static(r) or n < 2 * threads or (chosen and n % threads):
      continue
    least = next((k for k in range(threads, PIECES[0] * threads + 1) if not exact or n % k == 0), 0)
    if not least:
      continue
    by_it = cost(r, least) * ceildiv(least, threads) * threads / least  # as long as the thread with most pieces takes
    if by_it > 0.75 * threads * whole:
      continue
    part = ceildiv(n, least)
    by_it *= round_up(part, lane(r)) / part  # lest vectors along it have lanes to spare
    if best is None or by_it < best[0] * 0.99:  # else the outermost: what a thread writes lies together
      best = by_it, r, least
  if best is None:
    return ast
  r, n, least = best[1], size(best[1]), best[2]
  most, bound = min(work / LEAST, n / lane(r)), (UNEVEN if limits else REPEATED) * cost(r, least)
  several = (k * least for k in PIECES if k * least <= most and cost(r, k * least) < bound)
  pieces = next((k for k in several if not chosen and not (exact and n % k)), least)
  length = ceildiv(n, pieces)
  first = UOp.new(Ops.VARIABLE, dtypes.index, (), PieceArg("_piece", 0, pieces - 1, threads)) * length
  if n % pieces:
    first = UOp.new(Ops.MIN, dtypes.index, (first, UOp.const(dtypes.index, n - length)))
  own = (UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, length),), r.arg),) if length > 1 else ()
  moved = own[0] + first if own else first
  shared = Rebinding(UOp.sink(*stores), {r: [Version(moved, own)]}).kernel.src
  return UOp.sink(*shared, *(substitute_free(x, {r: moved}) for x in limits))
