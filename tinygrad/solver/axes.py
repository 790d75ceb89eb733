"""Lists of sub-axes, major to minor: what they have in common, and what of one fits beside others.

In normal form no sub-axis crosses two axes of the mesh, none has size 1, and neighbours within one axis are joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from tinygrad.device import Mesh, SubAxis, merge_sub_axes
from tinygrad.device.sub_axes import overlap

Axes = tuple[SubAxis, ...]


def within_axes(axes: Iterable[SubAxis], mesh: Mesh) -> Axes:
  """Split where an axis of the mesh ends, joined within."""
  ends = [1]
  for n in reversed(mesh.shape):
    ends.append(ends[-1] * n)
  out: list[SubAxis] = []
  for d in merge_sub_axes(tuple(axes)):
    top = d.stride * d.size
    inner = [d.stride, *(e for e in ends if d.stride < e < top), top]
    out += [SubAxis(hi // lo, lo) for lo, hi in zip(reversed(inner[:-1]), reversed(inner[1:])) if hi > lo]
  return tuple(out)


def number_of_parts(axes: Axes) -> int:
  """Into how many parts they cut."""
  n = 1
  for d in axes:
    n *= d.size
  return n


def major(d: SubAxis, n: int) -> SubAxis:
  """The major part of a sub-axis, of size n, which divides it."""
  return SubAxis(n, d.stride * (d.size // n))


def minor(d: SubAxis, n: int) -> SubAxis:
  """What is left of it behind that part."""
  return SubAxis(d.size // n, d.stride)


def common(x: Axes, y: Axes) -> Axes:
  """The longest prefix of both; a sub-axis that the other has only the major part of is split."""
  out: list[SubAxis] = []
  a, b = list(reversed(x)), list(reversed(y))
  while a and b:
    d, e = a.pop(), b.pop()
    if d.stride * d.size != e.stride * e.size:
      break
    n = gcd(d.size, e.size)
    if n == 1:
      break
    out.append(major(d, n))
    if n < d.size and n < e.size:
      break
    if n < d.size:
      a.append(minor(d, n))
    if n < e.size:
      b.append(minor(e, n))
  return tuple(out)


def coexist(d: SubAxis, e: SubAxis) -> bool:
  """Whether both can be part of one placement: they share nothing, and form a divisor chain of the device's number."""
  return not overlap(d, e)


def prefix_beside(axes: Axes, others: Iterable[SubAxis], atomic: bool) -> Axes:
  """The longest prefix of `axes` that fits beside the others; `atomic`: sub-axes are not split for it."""
  taken, out = list(others), list[SubAxis]()
  for d in axes:
    if all(coexist(d, e) for e in taken):
      out.append(d)
      continue
    parts = [] if atomic else [n for n in range(d.size // 2, 1, -1) if d.size % n == 0]
    found = next((p for n in parts if all(coexist(p := major(d, n), e) for e in taken)), None)
    if found is not None:
      out.append(found)
    break
  return tuple(out)


def dividing(axes: Axes, n: int, atomic: bool) -> tuple[Axes, Axes, int]:
  """What of `axes` cuts n evenly, from the front: (that, the rest, how much of n is left)."""
  out: list[SubAxis] = []
  for i, d in enumerate(axes):
    part = gcd(n, d.size)
    if part == d.size:
      out.append(d)
      n //= part
      continue
    if part == 1 or atomic:
      return tuple(out), axes[i:], n
    return (*out, major(d, part)), (minor(d, part), *axes[i + 1 :]), n // part
  return tuple(out), (), n
