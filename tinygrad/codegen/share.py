"""A kernel shared out among the threads of one device: in pieces, of which each is a part of one range.

The piece is chosen by a variable, so that one program serves all, as `_device_num` makes one serve all devices; what is
emitted has fixed lengths. Pieces that do not divide the range overlap: elements computed twice get the same value
twice, for of kernels of rows they are whole blocks of these. Of more pieces than threads, a thread that comes early or
has less to do takes more."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.codegen.analysis.accesses import OPERATION, Analysis, rereads
from tinygrad.codegen.primitives.rebind import Rebinding, Version
from tinygrad.codegen.row_blocks import LEAST as LEAST_ROWS
from tinygrad.codegen.row_blocks import is_given
from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, power_of_two, round_up
from tinygrad.numerics.idle_loops import parts_of
from tinygrad.numerics.scatter import by_index
from tinygrad.uop import Ops, PieceArg, UOp
from tinygrad.uop.loops import all_rows, extent, fold_ranges, shared_rows, static
from tinygrad.uop.rewrite import substitute_free

WORTHWHILE = 1 << 15  # accesses and operations, one vector each, that pay for waking other threads
PIECES = (8, 4, 2, 1)  # of each thread
REPEATED = 1.0005  # times the iterations and elements read, at most, for more of them
UNEVEN = 1.05  # the same, if some have more to do than others
LEAST = 1 << 13  # accesses and operations of a piece, one vector each
MORE = 16  # the part of its rows that a piece is longer by, at most, so that it is whole blocks
PAYS = 0.75  # of the time that the whole kernel takes one thread


def share_out(ast: UOp, threads: int, lanes: int = 16) -> UOp:
  """A piece of the kernel for `threads` threads; the whole kernel where sharing would not pay, or not be correct.

  The range that is cut saves the most work: what does not depend on it is done for every piece."""
  if threads == 1:
    return ast
  stores, limits = parts_of(ast)
  sharing = Sharing(stores, threads, lanes)
  if sharing.work < WORTHWHILE or (found := sharing.range_and_least()) is None:
    return ast
  r, pieces = found[0], sharing.pieces(*found, UNEVEN if limits else REPEATED)
  n, length = extent(r), ceildiv(extent(r), pieces)
  if n % pieces and len(stores) > 1:  # else a row is in a whole block of one piece and in what is left of another
    length = min(round_up(length, min(power_of_two(length // MORE), LEAST_ROWS)), n)
    pieces = ceildiv(n, length)
  first = UOp.new(Ops.VARIABLE, dtypes.index, (), PieceArg("_piece", 0, pieces - 1, threads)) * length
  if pieces * length > n:
    first = UOp.new(Ops.MIN, dtypes.index, (first, UOp.const(dtypes.index, n - length)))
  own = (UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, length),), r.arg),) if length > 1 else ()
  moved = own[0] + first if own else first
  shared = Rebinding(UOp.sink(*stores), {r: [Version(moved, own)]}).kernel.src
  return UOp.sink(*shared, *(substitute_free(x, {r: moved}) for x in limits))


def may_overlap(stores: Sequence[UOp]) -> bool:
  """Whether elements may be computed twice: nothing that is written is read, here or where sums over blocks of rows are
  added up in memory (`block_rows`)."""
  summed = len(stores) > 1 and any(r in all_rows(stores) for s in stores for r in fold_ranges(s))
  return not summed and not any(map(is_given, rereads(stores)))


class Sharing:
  """What pieces of a kernel take, in accesses and operations, one vector each."""

  def __init__(self, stores: Sequence[UOp], threads: int, lanes: int) -> None:
    self.stores, self.threads, self.lanes = stores, threads, lanes
    self.items = [i for s in stores for i in Analysis((s,), s.src[2:]).items]
    self.work = sum(i.work * (len(i.accesses) + OPERATION * i.operations) for i in self.items) / lanes
    self.chosen = {parts[0] for s in stores for f in s.toposort() if (parts := by_index(f, s.src[2:]))}
    self.exact = bool(self.chosen) or not may_overlap(stores)

  def cost(self, r: UOp, pieces: int) -> float:
    """Of all pieces together."""
    return pieces * sum(i.cost(r, ceildiv(extent(r), pieces) / extent(r)) for i in self.items)

  def lane(self, r: UOp) -> int:
    """What a vector takes of it, if some may lie along it: where elements are neighbours, or operands are reused."""
    steps = {x.strides.get(r, 0) for i in self.items if r in i.ranges for x in i.accesses}
    return self.lanes if not self.chosen and (1 in steps or (0 in steps and extent(r) >= self.lanes)) else 1

  def range_and_least(self) -> tuple[UOp, int] | None:
    """The range to cut, and into how many pieces at least; None if a thread alone is as fast."""
    whole = self.threads * sum(i.cost() for i in self.items)
    best: tuple[float, UOp, int] | None = None
    for r in sorted(shared_rows(self.stores), key=self.chosen.__contains__):
      most = PIECES[0] * self.threads if self.exact and not self.chosen else self.threads
      fitting = (k for k in range(self.threads, most + 1) if not self.exact or extent(r) % k == 0)
      looks_at_others = r in self.chosen and len(self.stores[0].src) <= 3  # each at every element of theirs
      if looks_at_others or not static(r) or extent(r) < 2 * self.threads or not (least := next(fitting, 0)):
        continue
      time = self.cost(r, least) * round_up(least, self.threads) / least  # of the thread with most of them
      if time > PAYS * whole:
        continue
      part = ceildiv(extent(r), least)
      time *= round_up(part, self.lane(r)) / part  # lest vectors along it have lanes to spare
      if best is None or time < best[0] * 0.99:  # else the outermost: what a thread writes lies together
        best = time, r, least
    return best and best[1:]

  def pieces(self, r: UOp, least: int, repeated: float) -> int:
    """Into how many to cut it, that each thread may have several: `repeated` times the work at most."""
    most, bound = min(self.work / LEAST, extent(r) / self.lane(r)), repeated * self.cost(r, least)
    several = (k * least for k in PIECES if k * least <= most and self.cost(r, k * least) < bound)
    return next((k for k in several if not self.chosen and not (self.exact and extent(r) % k)), least)
