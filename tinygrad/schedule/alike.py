"""Kernels that do the same at other places of their buffers become one, which is told where: the steps of an unrolled
recurrence, the layers of stacked weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tinygrad.schedule.items import ScheduleItem
from tinygrad.uop import Ops, UOp
from tinygrad.uop.affine import Affine, affine
from tinygrad.uop.rewrite import substitute

Starts = tuple[int, ...]  # by number of the PARAM: its first element that the kernel touches, as far as that is known


def from_the_start(kernel: UOp) -> tuple[UOp, Starts]:
  """The kernel with each PARAM's accesses moved to its beginning, and where they were."""
  accesses = [u for u in kernel.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM and u.src[0].arg.slot >= 0]
  places = [affine(u.src[1], {}) for u in accesses]
  count = 1 + max((u.src[0].arg.slot for u in accesses), default=-1)
  starts = [min((a.const for u, a in zip(accesses, places) if u.src[0].arg.slot == i), default=0) for i in range(count)]
  starts = [max(n, 0) for n in starts]
  return moved(kernel, {u: a.plus(Affine(-starts[u.src[0].arg.slot])) for u, a in zip(accesses, places)}), tuple(starts)


def moved(kernel: UOp, places: dict[UOp, Affine]) -> UOp:
  return substitute(kernel, {u: u.replace(src=(u.src[0], a.uop(), *u.src[2:])) for u, a in places.items()})


def shared_by_place(items: Sequence[ScheduleItem]) -> list[ScheduleItem]:
  """The items, where those whose kernels differ in their starts alone share one with variables in their place."""
  known: dict[UOp, tuple[UOp, Starts]] = {}
  groups: dict[UOp, dict[UOp, Starts]] = {}
  for item in items:
    if isinstance(item.kernel, UOp) and item.kernel not in known:
      form, starts = known[item.kernel] = from_the_start(item.kernel)
      groups.setdefault(form, {})[item.kernel] = starts
  made: dict[UOp, tuple[UOp, tuple[tuple[str, int], ...]]] = {}
  for kernels in groups.values():
    if len(kernels) < 2:
      continue
    by_slot = list(zip(*kernels.values()))
    first, base = next(iter(kernels.items()))
    units = {i: math.gcd(*starts) for i, starts in enumerate(by_slot) if len(set(starts)) > 1}
    at = {i: UOp.variable(f"_start{i}", 0, max(by_slot[i]) // n) for i, n in units.items()}
    accesses = [u for u in first.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]
    slots = {u: i for u in accesses if (i := u.src[0].arg.slot) in at}
    places = {u: affine(u.src[1], {}).plus(Affine(-base[i], {at[i]: units[i]})) for u, i in slots.items()}
    kernel = moved(first, places)
    for k, starts in kernels.items():
      made[k] = kernel, tuple((at[i].arg[0], starts[i] // n) for i, n in units.items())
  return [with_starts(item, *made[item.kernel]) if item.kernel in made else item for item in items]


def with_starts(item: ScheduleItem, kernel: UOp, starts: tuple[tuple[str, int], ...]) -> ScheduleItem:
  return replace(item, kernel=kernel, variables=tuple(v.arg[0] for v in kernel.variables()), constants=starts)
