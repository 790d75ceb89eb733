"""Kernels that do the same at other places of their buffers become one, which is told where: the steps of an unrolled
recurrence, the layers of stacked weights."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinygrad.schedule.items import ScheduleItem, Transfer
from tinygrad.uop import Ops, UOp, substitute
from tinygrad.uop.affine import Affine, affine

Starts = tuple[int, ...]  # by number of the PARAM: its first element that the kernel touches, as far as that is known


def param_accesses(kernel: UOp) -> dict[UOp, int]:
  """The accesses to PARAMs, with their slots; not to memory of a row, nor to a peer's."""
  found = {u: u.src[0].arg for u in kernel.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM}
  return {u: arg.slot for u, arg in found.items() if arg.given}


def from_the_start(kernel: UOp) -> tuple[UOp, Starts]:
  """The kernel with each PARAM's accesses moved to its beginning, and where they were."""
  slots = param_accesses(kernel)
  memo: dict[UOp, Affine] = {}
  places = {u: affine(u.src[1], memo) for u in slots}
  firsts = [[a.const for u, a in places.items() if slots[u] == i] for i in range(1 + max(slots.values(), default=-1))]
  starts = tuple(max(min(consts, default=0), 0) for consts in firsts)
  return moved(kernel, {u: a.plus(Affine(-starts[slots[u]])) for u, a in places.items()}), starts


def moved(kernel: UOp, places: dict[UOp, Affine]) -> UOp:
  return substitute(kernel, {u: u.replace(src=(u.src[0], a.uop(), *u.src[2:])) for u, a in places.items()})


def shared_by_place(items: Sequence[ScheduleItem]) -> list[ScheduleItem]:
  """The items, where those whose kernels differ in their starts alone share one with variables in their place."""
  groups: dict[UOp, dict[UOp, Starts]] = {}
  for kernel in dict.fromkeys(item.kernel for item in items if isinstance(item.kernel, UOp)):
    common, starts = from_the_start(kernel)
    groups.setdefault(common, {})[kernel] = starts
  made: dict[UOp | Transfer | None, dict[str, Any]] = {}
  for common, kernels in groups.items():
    if len(kernels) < 2:
      continue
    by_slot = list(zip(*kernels.values()))
    units = {i: math.gcd(*starts) for i, starts in enumerate(by_slot) if len(set(starts)) > 1}
    at = {i: UOp.variable(f"_start{i}", 0, max(by_slot[i]) // n) for i, n in units.items()}
    by = [Affine(0, {at[i]: units[i]}) if i in at else Affine(starts[0]) for i, starts in enumerate(by_slot)]
    kernel = moved(common, {u: affine(u.src[1], {}).plus(by[i]) for u, i in param_accesses(common).items()})
    named = {"kernel": kernel, "variables": tuple(v.arg[0] for v in kernel.variables())}
    for k, starts in kernels.items():
      made[k] = named | {"constants": tuple((at[i].arg[0], starts[i] // n) for i, n in units.items())}
  return [replace(item, **made.get(item.kernel, {})) for item in items]
