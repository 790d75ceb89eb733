"""Where stored values lie: a slot of the schedule, laid out row-major by upper bounds of symbolic dims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad.ops import Trait, having
from tinygrad.uop import Ops, UOp, is_int, sint, upper

TRANSPARENT = having(Trait.IDENTITY)


@dataclass(frozen=True, slots=True)
class Home:
  """Where a stored value lies: its slot, and the shape by which it is laid out (row-major, upper bounds of symbolic
  dims).
  """

  slot: int
  shape: tuple[int, ...]


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
