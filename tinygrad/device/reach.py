"""Which devices read one another's memory, and the two levels that makes of devices which exchange something."""

from __future__ import annotations

import functools

from tinygrad.device.mesh import SubAxis
from tinygrad.device.registry import Device
from tinygrad.device.sub_axes import SubAxes, atoms, boundaries, branches


@functools.cache
def within_reach(devices: tuple[str, ...]) -> list[list[int]]:
  """The devices, by number, in groups: kernels on any of a group can read the memory of all of it."""
  backends, groups = [Device[d] for d in devices], list[list[int]]()
  for i, b in enumerate(backends):
    for group in groups:
      others = [backends[k] for k in group]
      if all(o.kind == b.kind and type(o) is type(b) and b.reaches(o) and o.reaches(b) for o in others):
        group.append(i)
        break
    else:
      groups.append([i])
  return groups


def in_a_row(devices: tuple[str, ...]) -> int:
  """How many devices in a row reach each other, if all are in such rows of one length; else one."""
  if Device.capabilities(devices[0]).simulated:
    return len(devices)
  groups = within_reach(devices)
  n = len(groups[0])
  return n if groups == [list(range(i, i + n)) for i in range(0, len(devices), n)] else 1


def near_and_far(sub_axes: SubAxes, devices: tuple[str, ...]) -> tuple[SubAxes, SubAxes]:
  """The sub-axes over which devices differ that reach each other, and those over which the others do, major to minor.
  There is one level (the second is empty) where what neighbours have is no branch of the tree that adds all up."""
  n = in_a_row(devices)
  found = atoms(sub_axes, boundaries(len(devices), [sub_axes, (SubAxis(n, 1),)])) or ()
  near = tuple(d for d in found if n % (d.stride * d.size) == 0)
  far = tuple(d for d in found if d.stride % n == 0)
  aligned = near and branches(near) + branches(far) == branches(sub_axes)
  return (near, far) if aligned else (sub_axes, ())
