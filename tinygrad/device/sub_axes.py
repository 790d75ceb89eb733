"""Arithmetic of sub-axes, the parts of a device's number by which placements cut: where they begin and end, whether two
can stand in one placement."""

from collections.abc import Iterable

from tinygrad.device.mesh import SubAxis
from tinygrad.helpers import prod

SubAxes = tuple[SubAxis, ...]


def boundaries(n: int, sub_axis_lists: Iterable[Iterable[SubAxis]]) -> tuple[int, ...]:
  """The strides at which sub-axes begin and end, as one divisor chain of n. One that fits no chain with earlier ones
  is left out."""
  chain = [1, n] if n > 1 else [1]
  for sub_axes in sub_axis_lists:
    for d in sub_axes:
      if d.stride in chain and d.stride * d.size in chain:
        continue
      wider = sorted({*chain, d.stride, d.stride * d.size})
      if all(y % x == 0 for x, y in zip(wider, wider[1:])):
        chain = wider
  return tuple(chain)


def atoms(sub_axes: SubAxes, chain: tuple[int, ...]) -> SubAxes | None:
  """The sub-axes refined at the chain's boundaries, major to minor; None if one does not fit the chain."""
  out: list[SubAxis] = []
  for d in sub_axes:
    if d.stride not in chain or d.stride * d.size not in chain:
      return None
    inner = [b for b in chain if d.stride <= b <= d.stride * d.size]
    out += [SubAxis(hi // lo, lo) for lo, hi in zip(reversed(inner[:-1]), reversed(inner[1:]))]
  return tuple(out)


def size_of(sub_axes: Iterable[SubAxis]) -> int:
  return int(prod(d.size for d in sub_axes))


def branches(sub_axes: Iterable[SubAxis]) -> SubAxes:
  """The tree by which values of devices that differ in these are added, innermost first: neighbours by twos, and their
  sums, as long as their number is even; an odd number of sums one after the other.

  0 … 3 are (0 + 1) + (2 + 3), 0 … 5 are ((0 + 1) + (2 + 3)) + (4 + 5): what 2, 4, 8 … neighbours have is a branch."""
  out: list[SubAxis] = []
  for d in sorted(sub_axes, key=lambda d: d.stride):
    twos = (d.size & -d.size).bit_length() - 1
    out += [SubAxis(2, d.stride << i) for i in range(twos)]
    out += [SubAxis(d.size >> twos, d.stride << twos)] if d.size >> twos > 1 else []
  return tuple(out)


def overlap(a: SubAxis, b: SubAxis) -> bool:
  """Whether two sub-axes cannot be part of one placement: they share a part of the device's number, or form no divisor
  chain."""
  low, high = (a, b) if a.stride < b.stride else (b, a)
  return high.stride % (low.stride * low.size) != 0
