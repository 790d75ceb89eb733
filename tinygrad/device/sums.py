"""The steps of a sum over devices.

A small all-reduce is one: every device reads all n parts. A large one is two: each device reduces one block, the n-th
part, then all read the n blocks; so each reads twice the payload, not n times. (By its bytes alone, so that the
schedule for many devices is that for three. Blocks are of one length, for else every index would have to be divided.)
Where not all reach each other, as on several hosts, those that do reduce blocks, which are then summed over the others:
what crosses is what a host's devices have added up.

All add the parts as one tree over the numbers of the devices (`branches`), so they give the same bits, on every device,
in every run and wherever hosts begin. All are within the groups of devices that differ in the sub-axes of the sum; by
what others the value is cut does not matter to them, so it is left out of their placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.device.mesh import SubAxis
from tinygrad.device.reach import near_and_far
from tinygrad.device.sharding import Partial, Placement, Sharding
from tinygrad.device.sub_axes import SubAxes, atoms, boundaries, size_of
from tinygrad.helpers import prod

SumStep = tuple[str, tuple[int, ...], Sharding, Sharding]  # a communication: kind, of a value of which shape, from, to


def unsummed(a: Placement, b: Placement, op: Any) -> tuple[SubAxis, ...]:
  """The sub-axes over which `a` is partial by `op` and `b` is not."""
  lists = ([d for o in p.partial if o.op is op for d in o.sub_axes] if isinstance(p, Sharding) else [] for p in (a, b))
  spans, taken = ([(d.stride, d.stride * d.size) for d in found] for found in lists)
  for low, high in taken:
    cut = [piece for x, y in spans for piece in ((x, min(y, low)), (max(x, high), y))]
    spans = [(x, y) for x, y in cut if x < y]
  return tuple([SubAxis(y // x, x) for x, y in spans])


def sum_steps(a: Sharding, b: Sharding, shape: Sequence[int], large: bool, rounds: bool) -> list[SumStep]:
  """The steps of the move from `a`, partial by one op, to `b`, of a device's part of `shape`; none where it is one, or
  no sum. `rounds`: each step rounds what it gives, so that there is but one of a sum."""
  op = a.partial[0].op
  summed = unsummed(a, b, op)
  near, far = (summed, ()) if rounds else near_and_far(summed, a.mesh.devices)
  rest = (Partial(far, op),) if far else ()
  if a.dims != b.dims or b.partial:
    return scatter_steps(a, b, shape, near, rest)
  n, size = size_of(near), int(prod(shape))
  if size % n or (not far and (n == 2 or not large)):
    return []
  unreduced, cut, full = (Sharding.of(a.mesh, *at) for at in (((), a.partial), ((near,), ()), ((), ())))
  across: list[SumStep] = [("all_reduce", (size // n,), Sharding.of(a.mesh, (), rest), full)] if far else []
  blocks = Sharding.of(a.mesh, (near,), rest)
  return [("reduce_scatter", (size,), unreduced, blocks), *across, ("all_gather", (size,), cut, full)]


def scatter_steps(
  a: Sharding, b: Sharding, shape: Sequence[int], near: SubAxes, rest: tuple[Partial, ...]
) -> list[SumStep]:
  """A reduce-scatter over `near`, and one over the `rest`, if there is one. Each sub-axis by which the result is cut,
  and the value is not, has a dim of its own."""
  far = [d for o in rest for d in o.sub_axes]
  chain = boundaries(len(a), [near, far, a.used, b.used])
  dims: list[tuple[int, SubAxes]] = []
  for i, n in enumerate(shape):
    old, cut = (atoms(p.cut(i), chain) or () for p in (a, b))
    new = cut[len(old) :]
    if cut[: len(old)] != old or n % size_of(new):
      return []
    dims += [*((d.size, (d,)) for d in new), (n // size_of(new), ())]
  if not far or {d for _, cut in dims for d in cut} != {*(atoms((*near, *far), chain) or ())}:
    return []
  first = min(d.stride for d in far)
  inside = [cut if cut and cut[0].stride < first else () for _, cut in dims]
  outside = [() if cut in inside else cut for _, cut in dims]
  unreduced, across = Sharding.of(a.mesh, (), a.partial), Sharding.of(a.mesh, (), (*b.partial, *rest))
  blocks, end = Sharding.of(a.mesh, inside, (*b.partial, *rest)), Sharding.of(a.mesh, outside, b.partial)
  whole, part = tuple(n for n, _ in dims), tuple(1 if cut else n for cut, (n, _) in zip(inside, dims))
  return [("reduce_scatter", whole, unreduced, blocks), ("reduce_scatter", part, across, end)]
