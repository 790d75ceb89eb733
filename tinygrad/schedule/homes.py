"""Where stored values lie: a slot of the schedule, laid out row-major by upper bounds of symbolic dims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad.helpers import prod
from tinygrad.ops import Trait, having
from tinygrad.uop import Ops, UOp, is_int, sint, upper
from tinygrad.uop.indexing import Index, flat_index
from tinygrad.uop.node import sint_to_uop as number

TRANSPARENT = having(Trait.IDENTITY)


@dataclass(frozen=True, slots=True)
class Home:
  """Where a stored value lies: its slot, and the shape by which it is laid out (row-major, upper bounds of symbolic
  dims); in a part of larger memory also where that begins, and how many elements the memory has.
  """

  slot: int
  shape: tuple[int, ...]
  start: UOp | None = None
  among: int | None = None

  @property
  def size(self) -> int:
    return prod(self.shape) if self.among is None else self.among

  def place(self, idx: Index) -> UOp:
    """Of an element, in the memory."""
    flat = flat_index(idx, self.shape)
    return flat if self.start is None else flat + self.start


def layout(shape: Sequence[sint]) -> tuple[int, ...]:
  return tuple(map(upper, shape))


def keeps_order(u: UOp) -> bool:
  """A reshape that leaves every element where it is in memory."""
  return u.op is Ops.RESHAPE and all(isinstance(n, int) for n in (*u.shape, *u.src[0].shape))


def peel(u: UOp) -> UOp:
  """Below reshapes that leave every element where it is in memory."""
  return next(v for v in u.down() if not keeps_order(v))


def whole(view: UOp) -> UOp:
  """Below shrinks to a symbolic length: the elements stay where they are in memory, which is laid out by upper
  bounds.
  """
  while view.op is Ops.SHRINK and all(is_int(lo, 0) for lo, _ in view.arg):
    if layout(view.shape) != layout(view.src[0].shape):
      break
    view = view.src[0]
  return view


def stretch(view: UOp) -> tuple[UOp, UOp | None]:
  """(memory, where the view begins in it) of a view whose elements lie side by side there."""
  view = whole(peel(view))
  if view.op is not Ops.SHRINK or not all(isinstance(n, int) for n in (*view.shape, *view.src[0].shape)):
    return view, None
  cut = [i for i, (n, m) in enumerate(zip(view.shape, view.src[0].shape)) if n != m]
  below = whole(view.src[0])
  if any(view.shape[i] != 1 for i in range(max(cut, default=0))):
    return view, None
  return below, flat_index([number(lo) for lo, _ in view.arg], layout(below.shape))
