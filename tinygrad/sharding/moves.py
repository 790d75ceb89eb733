"""Moves between placements: which bytes travel, and in which steps.

Bytes are what each device receives, the largest over the devices, as a ring or a direct exchange needs them: all-reduce
2(n-1)/n of the local
block, reduce-scatter (n-1)/n; a change of cut costs the part of the new block that the device does not hold yet.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Digit, Owe, Placement, Sharding, device_set
from tinygrad.helpers import numpy, prod

Digits = tuple[Digit, ...]


@dataclass(frozen=True, slots=True)
class Step:
  """One move of a plan, from placement `a` to `b`: kind, the size of a group of devices that exchange, bytes received
  per device."""

  kind: str  # slice, lift, all_reduce, reduce_scatter, all_gather, all_to_all, permute, copy
  a: Placement
  b: Placement
  group: int
  nbytes: float


def boundaries(n: int, digit_lists: Iterable[Iterable[Digit]]) -> tuple[int, ...]:
  """The strides at which digits begin and end, as one divisor chain of n; a digit that fits no chain with earlier ones
  is left out."""
  chain = [1, n] if n > 1 else [1]
  for digits in digit_lists:
    for d in digits:
      if d.stride in chain and d.stride * d.size in chain:
        continue
      wider = sorted({*chain, d.stride, d.stride * d.size})
      if all(y % x == 0 for x, y in zip(wider, wider[1:])):
        chain = wider
  return tuple(chain)


@functools.cache
def atoms(digits: Digits, chain: tuple[int, ...]) -> Digits | None:
  """The digits refined at the chain's boundaries, major to minor; None if one does not fit the chain."""
  out: list[Digit] = []
  for d in digits:
    if d.stride not in chain or d.stride * d.size not in chain:
      return None
    inner = [b for b in chain if d.stride <= b <= d.stride * d.size]
    out += [Digit(hi // lo, lo) for lo, hi in zip(reversed(inner[:-1]), reversed(inner[1:]))]
  return tuple(out)


def size_of(digits: Iterable[Digit]) -> int:
  return int(prod(d.size for d in digits))


def ints(shape: Sequence[Any]) -> tuple[int, ...]:
  """The shape with symbolic dims at their upper bounds."""
  for n in shape:
    if type(n) is not int:
      return tuple(n if isinstance(n, int) else n.vmax for n in shape)
  return tuple(shape)


def wire(shape: Sequence[Any], itemsize: int, a: Placement, b: Placement) -> float:
  """Bytes each device of `b` receives when a value of global `shape` moves from `a` to `b` (the largest over the
  devices)."""
  return 0.0 if a == b else _wire(ints(shape), itemsize, a, b)


@functools.cache
def _wire(shape: tuple[int, ...], itemsize: int, a: Placement, b: Placement) -> float:
  return sum(step.nbytes for step in plan(shape, itemsize, a, b))


def nests(n: int, outer: int, inner: int) -> bool:
  """Whether each block of n cut into `inner` flat blocks lies within its block of the cut into `outer` (inner a
  multiple of outer)."""
  return outer == 1 or -(-n // outer) == inner // outer * -(-n // inner)


@functools.cache
def plan(shape: tuple[int, ...], itemsize: int, a: Placement, b: Placement) -> tuple[Step, ...]:
  """The steps from `a` to `b`; none where they are the same. Debts are settled first, into the cut that `b` wants where
  that nests."""
  if a == b:
    return ()
  if device_set(a) != device_set(b) or isinstance(a, str) or isinstance(b, str):
    return _between_sets(shape, itemsize, a, b)
  steps: list[Step] = []
  middle = a
  owed = [d for o in a.pending for d in o.digits if o not in b.pending]
  if owed:
    middle, steps = _settle(shape, itemsize, a, b)
  if middle.dims != b.dims:
    kind, group, elements = _exchange(shape, middle, b)
    target = Sharding.of(a.mesh, b.dims, middle.pending if _disjoint(b.dims, middle.pending) else ())
    steps.append(Step(kind, middle, target, group, float(elements * itemsize)))
    middle = target
  if middle != b:
    steps.append(Step("lift", middle, b, 1, 0.0))
  return tuple(steps)


def _disjoint(dims: Iterable[Digits], pending: Sequence[Owe]) -> bool:
  """No owed digit overlaps one that cuts."""
  cut = [d for dim in dims for d in dim]
  return not any(
    o.stride < c.stride * c.size and c.stride < o.stride * o.size for p in pending for o in p.digits for c in cut
  )


def _between_sets(shape: tuple[int, ...], itemsize: int, a: Placement, b: Placement) -> tuple[Step, ...]:
  steps: list[Step] = []
  if isinstance(a, Sharding) and a.pending:
    steps, a = [*plan(shape, itemsize, a, a.settled)], a.settled
  local = shape if isinstance(b, str) else b.local_shape(shape)
  return (*steps, Step("copy", a, b, 1, float(prod(local) * itemsize)))


def _settle(shape: tuple[int, ...], itemsize: int, a: Sharding, b: Sharding) -> tuple[Sharding, list[Step]]:
  """Pays what `a` owes and `b` does not: a reduce-scatter onto the cuts that `b` adds with owed digits, an all-reduce
  of the rest."""
  kept = [o for o in a.pending if o in b.pending]
  paid = [o for o in a.pending if o not in b.pending]
  chain = boundaries(len(a), [a.used, b.used])
  at_a = [atoms(a.cut(i), chain) for i in range(len(shape))]
  at_b = [atoms(b.cut(i), chain) for i in range(len(shape))]
  owed = [atoms(o.digits, chain) for o in paid]
  here, steps = a, []
  if None not in at_a and None not in at_b and None not in owed and len(paid) == 1:
    left, used = set(owed[0] or ()), {d for x in (*at_a, *owed) for d in x or ()}
    dims = [list(x or ()) for x in at_a]
    for i, target in enumerate(at_b):
      dims[i] += _more(shape[i], dims[i], target or (), lambda d: d not in used)
    if (sliced := Sharding.of(a.mesh, dims, a.pending)) != here:
      steps.append(Step("slice", here, sliced, 1, 0.0))
      here = sliced
    scattered: list[Digit] = []
    for i, target in enumerate(at_b):
      new = _more(shape[i], dims[i], target or (), left.__contains__)
      dims[i] += new
      scattered += new
      left -= set(new)
    if scattered:
      rest = tuple(d for d in owed[0] or () if d in left)
      there = Sharding.of(a.mesh, dims, [*kept, *([Owe(rest, paid[0].op, paid[0].disjoint)] if rest else [])])
      n, block = size_of(scattered), prod(a.local_shape(shape)) * itemsize
      steps.append(Step("reduce_scatter", here, there, n, block * (n - 1) / n))
      here = there
      paid = [o for o in here.pending if o not in kept]
  if paid:
    there = Sharding.of(a.mesh, here.dims, kept)
    n, block = size_of(d for o in paid for d in o.digits), prod(here.local_shape(shape)) * itemsize
    steps.append(Step("all_reduce", here, there, n, 2 * block * (n - 1) / n))
    here = there
  return here, steps


def _more(n: int, have: list[Digit], target: Digits, usable: Callable[[Digit], bool]) -> list[Digit]:
  """The digits by which the cut `have` of a dim of n can be refined in place on its way to `target`."""
  if list(target[: len(have)]) != have:
    return []
  new = list(itertools.takewhile(usable, target[len(have) :]))
  return new if nests(n, size_of(have), size_of(have) * size_of(new)) else []


def _held(s: Sharding, i: int, n: int) -> tuple[Any, Any]:
  """The bounds of the indices of dim i (of length n) that the devices hold: arrays over all device numbers, or ints if
  uncut."""
  if s.parts(i) == 1:
    return 0, n
  block = -(-n // s.parts(i))
  lo = numpy.minimum(n, s.block(i, numpy.arange(len(s))) * block)
  return lo, numpy.minimum(n, lo + block)


def _exchange(shape: tuple[int, ...], a: Sharding, b: Sharding) -> tuple[str, int, int]:
  """Kind, group size and elements received of a change of cuts: what of a device's new block it does not hold yet."""
  new, overlap, nested = 1, 1, True
  for i, n in enumerate(shape):
    if a.cut(i) == b.cut(i):
      factor = _held(b, i, n)
      new, overlap = new * (factor[1] - factor[0]), overlap * (factor[1] - factor[0])
      continue
    (lo, hi), (lo2, hi2) = _held(b, i, n), _held(a, i, n)
    new = new * (hi - lo)
    overlap = overlap * numpy.maximum(0, numpy.minimum(hi, hi2) - numpy.maximum(lo, lo2))
    nested = nested and bool(numpy.all((lo == hi) | ((lo2 <= lo) & (hi <= hi2))))
  worst = int(numpy.max(new - overlap))
  # not nested: a dim of the old block is empty where the new one's is not. That is no slice, though nothing travels
  if worst == 0 and nested:
    return (
      "slice",
      1,
      0,
    )  # else a dim of the old block is empty where the new one's is not: no slice, though nothing travels
  parts_a, parts_b = prod(a.parts_), prod(b.parts_)
  if parts_b < parts_a:
    return "all_gather", parts_a // parts_b if parts_a % parts_b == 0 else parts_a, worst
  return ("permute" if a.parts_ == b.parts_ else "all_to_all"), parts_a, worst
