"""A kernel shared out among the threads of one device: each takes a part of one range.

The part is chosen by the variable `_thread`, so that one program serves all threads, as `_device_num` makes one serve
all devices; what is emitted for a thread has fixed lengths. Parts of a range that the threads do not divide overlap:
elements computed twice get the same value twice.
"""

from __future__ import annotations

from tinygrad.codegen.emit import substitute
from tinygrad.codegen.heuristic import OPERATION, Analysis, size, static
from tinygrad.codegen.rows import shared_rows
from tinygrad.codegen.scatter import by_index
from tinygrad.device import THREAD
from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, round_up
from tinygrad.uop import Ops, UOp

WORTHWHILE = 1 << 15  # accesses and operations, one vector each, that pay for waking other threads


def share_out(ast: UOp, threads: int, lanes: int = 16) -> UOp:
  """The kernel of one of `threads` threads; the whole kernel where sharing would not pay, or not be correct.

  The range that is cut saves the most work: what does not depend on it is done by every thread.
  """
  stores = ast.src
  items = [i for s in stores for i in Analysis((s,)).items]
  if sum(i.work * (len(i.accesses) + OPERATION * i.operations) for i in items) < WORTHWHILE * lanes:
    return ast
  best: tuple[float, UOp] | None = None
  whole = sum(i.cost() for i in items)
  chosen = {parts[0] for s in stores for f in s.toposort() if (parts := by_index(f, s.src[2:]))}
  for r in sorted(shared_rows(stores), key=chosen.__contains__):
    n = size(r)
    if not static(r) or n < 2 * threads or (n % threads and (chosen or overwrites(ast))):
      continue
    part = ceildiv(n, threads)
    cost = sum(i.cost(r, part / n) for i in items)
    if cost > 0.75 * whole:
      continue
    if not chosen:
      cost *= round_up(part, lanes) / part  # lest vectors along it have lanes to spare
    if best is None or cost < best[0] * 0.95:  # else the outermost: what a thread writes lies together
      best = cost, r
  if best is None:
    return ast
  r, n = best[1], size(best[1])
  length = ceildiv(n, threads)
  first = UOp.variable(THREAD, 0, threads - 1) * length
  if n % threads:
    first = UOp.new(Ops.MIN, dtypes.index, (first, UOp.const(dtypes.index, n - length)))
  part = UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, length),), r.arg)
  moved = {r: part + first}
  loops = [tuple(part if x is r else x for x in s.src[2:]) for s in stores]
  return UOp.sink(*(s.replace(src=(*(substitute(x, moved) for x in s.src[:2]), *xs)) for s, xs in zip(stores, loops)))


def overwrites(ast: UOp) -> bool:
  """Whether the kernel reads memory that it writes: then no element may be computed twice."""
  written = {p for s in ast.src if (p := s.src[0].src[0]).arg.slot >= 0}
  return any(u.op is Ops.LOAD and u.src[0].src[0] in written for u in ast.toposort())
