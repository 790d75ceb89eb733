"""Where stored values lie: a slot of the schedule, laid out row-major by upper bounds of symbolic dims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tinygrad.ops import Trait, having
from tinygrad.uop import Ops, UOp, is_int
from tinygrad.uop.indexing import Index, flat_index
from tinygrad.uop.node import sint_to_uop as number

TRANSPARENT = having(Trait.IDENTITY)


@dataclass(frozen=True, slots=True)
class Home:
  """Where a stored value lies: its slot, the shape by which it is laid out (row-major, upper bounds of symbolic dims),
  and how many elements the memory has; in a part of larger memory also where that begins."""

  slot: int
  shape: tuple[int, ...]
  size: int
  start: UOp | None = None

  def place(self, idx: Index) -> UOp:
    """Of an element, in the memory."""
    flat = flat_index(idx, self.shape)
    return flat if self.start is None else flat + self.start


def is_fence(u: UOp) -> bool:
  """An AFTER of nothing: the memory itself, where it is written to."""
  return u.op is Ops.AFTER and len(u.src) == 1


def keeps_order(u: UOp) -> bool:
  """A reshape that leaves every element where it is in memory."""
  return u.op is Ops.RESHAPE and all(isinstance(n, int) for n in (*u.shape, *u.src[0].shape))


def peel(u: UOp) -> UOp:
  """Below reshapes that leave every element where it is in memory."""
  return next(v for v in u.down() if not keeps_order(v))


def in_one_memory(u: UOp) -> Iterator[UOp]:
  """`u`, and what may lie where it does: below what leaves every element where it is."""
  for v in u.down():
    yield v
    if not keeps_order(v) and v.op not in TRANSPARENT and v.op is not Ops.CONTIGUOUS:
      return


def stretch(view: UOp) -> tuple[UOp, UOp | None]:
  """(memory, where the view begins in it; None: it is all of it, or only shorter by a symbol) of a view whose elements
  lie side by side there. Memory is laid out by upper bounds, so that a shrink to a symbolic length moves nothing."""
  view, start = peel(view), None
  while view.op is Ops.SHRINK:
    below, sizes = view.src[0], view.src[0].max_shape
    cut = [i for i, (n, m) in enumerate(zip(view.max_shape, sizes)) if n != m]
    if cut or not all(is_int(lo, 0) for lo, _ in view.arg):
      if start is not None or any(not is_int(n, 1) for n in view.shape[: max(cut, default=0)]):
        break
      if not all(isinstance(n, int) for n in (*view.shape, *below.shape)):
        break
      start = flat_index([number(lo) for lo, _ in view.arg], sizes)
    view = below
  return view.src[0] if is_fence(view) else view, start
