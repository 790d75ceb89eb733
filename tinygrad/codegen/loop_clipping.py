"""Loops end early where the rest of their iterations is idle (numerics/idle_loops.py, numerics/idle_blocks.py)."""

from tinygrad.codegen.row_blocks import all_rows
from tinygrad.dtype import dtypes
from tinygrad.numerics.idle_blocks import block_limits
from tinygrad.numerics.idle_loops import loop_limits
from tinygrad.uop import Ops, UOp


def clip_loops(kernel: UOp) -> UOp:
  """A kernel of several stores with, after them, a limit for each loop that may end early: `loop < expression of rows`
  holds in all iterations that have something to do. What passes do with the loops they do with the limits, too.

  Nothing is clipped in a kernel of one store, at a loop's beginning, or for a LOAD under a condition (padded memory).
  """
  if len(kernel.src) == 1:
    return kernel
  limits = loop_limits(kernel.src, all_rows(kernel.src))
  found = (UOp.new(Ops.CMPLT, dtypes.bool, (r, at)) for r, at in limits.items())
  return UOp.sink(*kernel.src, *found, *block_limits(kernel.src))
