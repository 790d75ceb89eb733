"""What a device holds of a value: the first index and the length of each dim, expressions of the device's number; and
which device holds an element of it."""

from collections.abc import Callable, Sequence

from tinygrad.device import Placement, Sharding, SubAxis
from tinygrad.device.sub_axes import branches
from tinygrad.device.sums import unsummed
from tinygrad.helpers import ceildiv
from tinygrad.uop.dims import simplify_sint, sint, smax, smin, upper
from tinygrad.uop.indexing import Index
from tinygrad.uop.node import UOp
from tinygrad.uop.node import sint_to_uop as number
from tinygrad.uop.op import AxisKind, Ops
from tinygrad.uop.symbolic import simplify

DEVICE_NUM = "_device_num"
NewLoop = Callable[[sint, AxisKind], UOp]  # (length, kind) -> loop variable; 0 where there is one step


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


def element_of(
  placement: Sharding, result: Placement, shape: tuple[sint, ...], idx: Index, loop: NewLoop
) -> tuple[UOp, Index, tuple[int, ...], dict[Ops, tuple[UOp, ...]]]:
  """(owner, inner, sizes, folds): the element at a global index of a value of `shape` is `inner` on the device numbered
  `owner`, in a part laid out by `sizes`; where the value is partial, the reduction of these over the loops of `folds`,
  by op, one after the other: over the devices that hold parts as a tree (`branches`), by loops that `loop` makes. What
  `result` is partial over stays apart."""
  sizes, me, owner = placement.local_shape(shape), device_number(placement), number(0)
  inner, taken = list[UOp](), list[SubAxis]()
  for dim, (i, size) in enumerate(zip(idx, sizes)):
    if not (sub_axes := placement.cut(dim)):
      inner.append(i)
      continue
    block = simplify(i // size)
    inner.append(simplify(i % size))
    for sub_axis in reversed(sub_axes):
      owner = owner + (block % sub_axis.size) * sub_axis.stride
      block = simplify(block // sub_axis.size)
      taken.append(sub_axis)
  folds: dict[Ops, tuple[UOp, ...]] = {}
  for op in dict.fromkeys(o.op for o in placement.partial):
    for branch in branches(unsummed(placement, result, op)):
      r = loop(branch.size, AxisKind.REDUCE)
      owner = owner + r * branch.stride
      folds[op] = (*folds.get(op, ()), r)
      taken.append(branch)
  low = 1
  for sub_axis in [*sorted(taken, key=lambda d: d.stride), SubAxis(1, len(placement))]:
    if sub_axis.stride > low:
      owner = owner + (me // low % (sub_axis.stride // low)) * low
    low = sub_axis.stride * sub_axis.size
  return simplify(owner), tuple(inner), tuple(map(upper, sizes)), folds
