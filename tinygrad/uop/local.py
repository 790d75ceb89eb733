"""What a device holds of a value: the first index and the length of each dim, expressions of the device's number."""

from collections.abc import Sequence

from tinygrad.device import Placement, Sharding
from tinygrad.helpers import ceildiv
from tinygrad.uop.dims import simplify_sint, sint, smax, smin, upper
from tinygrad.uop.node import UOp

DEVICE_NUM = "_device_num"


def device_number(s: Sharding) -> UOp:
  """The variable that holds each device's number within the placement's mesh."""
  return UOp.variable(DEVICE_NUM, 0, len(s) - 1)


def start(s: Placement | None, i: int, n: sint) -> sint:
  """The first global index of dim i (of length n) that the device holds; that of an empty block may lie behind n."""
  if not isinstance(s, Sharding) or s.parts(i) == 1:
    return 0
  return simplify_sint(s.block(i, device_number(s)) * ceildiv(upper(n), s.parts(i)))


def length(s: Placement | None, i: int, n: sint) -> sint:
  """How many indices of dim i (of length n) the device holds: an int where the cut is even."""
  if not isinstance(s, Sharding) or s.parts(i) == 1:
    return n
  block = ceildiv(upper(n), s.parts(i))  # a symbolic n by its upper bound
  if isinstance(n, int) and n % s.parts(i) == 0:
    return block
  return smin(block, smax(0, simplify_sint(n - start(s, i, n))))


def lengths(s: Placement | None, shape: Sequence[sint]) -> tuple[sint, ...]:
  """The local shape, in valid lengths."""
  return tuple(length(s, i, n) for i, n in enumerate(shape))
