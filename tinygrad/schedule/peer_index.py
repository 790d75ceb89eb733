"""Indices across devices: from an element of the whole value to the device that owns it."""

from __future__ import annotations

from collections.abc import Callable

from tinygrad.device import Placement, Sharding, SubAxis
from tinygrad.device.sub_axes import branches
from tinygrad.device.sums import unsummed
from tinygrad.uop import AxisKind, Ops, UOp, simplify, sint, upper
from tinygrad.uop.indexing import Index
from tinygrad.uop.local import device_number
from tinygrad.uop.node import sint_to_uop as number

NewLoop = Callable[[sint, AxisKind], UOp]  # (length, kind) -> loop variable; 0 where there is one step


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
