"""Kernels that work on the same rows become one kernel, which runs them in turn for a few rows at a time: what one
writes and the next reads is still in the cache, and what nobody else reads never leaves it. Which two can be one says
`row_groups.py`; here is where in the order they run, and what is computed anew rather than kept.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tinygrad.device import Target
from tinygrad.numerics.streaming import streamed
from tinygrad.schedule.items import ScheduleItem, Temp
from tinygrad.schedule.loops import tidy
from tinygrad.schedule.row_groups import Group, accesses, joined_groups, single, with_slot
from tinygrad.schedule.row_memory import one_kernel
from tinygrad.uop import Ops, UOp
from tinygrad.uop.loop_ids import LoopIds

MOST_MEMBERS = 24
RECOMPUTE = 1 << 26  # bytes of a value from which on readers elsewhere compute it anew rather than store it
RECOMPUTE_RATIO = 4  # if it is that much larger than what it is computed from
WHATEVER = 1 << 40  # bytes
LOOK_BACK = 64  # groups that a kernel may join across others


@dataclass(slots=True)
class Place:
  """What runs at one place of the new order: items, as a group if they can be one."""

  members: list[ScheduleItem]
  group: Group | None
  written: set[int]
  touched: set[int]

  def commutes(self, written: set[int], touched: set[int]) -> bool:
    return self.written.isdisjoint(touched) and self.touched.isdisjoint(written)


def tile_and_fuse(
  items: Sequence[ScheduleItem], temps: dict[int, Temp], target: Target, tiled: frozenset[ScheduleItem] = frozenset()
) -> list[ScheduleItem]:
  """The items, in an order as good, with those joined that share rows and that the target runs faster as one. `tiled`:
  items of which is known that they do not stream."""
  out, ids = list[Place](), LoopIds()
  for item in items:
    here = Place([item], None, {item.slots[0]}, {*item.slots, *item.after})
    if isinstance(item.kernel, UOp) and item.kernel.op is Ops.SINK and not item.peers:
      here.group = single(item.kernel, item.slots, ids, item in tiled)
      out = with_place(out, here, ids, target)
    else:
      out.append(here)
  if not target.threads:
    compute_anew(out, temps, ids, target)
  drop_unread(out, temps)
  users = Counter(s for place in out for s in place.touched)
  made = [merged(p, [s for s in sorted(p.written) if s in temps and users[s] == 1], target) for p in out]
  if wrong := {item for p, new in zip(out, made) if new is None for item in p.members}:
    return tile_and_fuse(items, temps, target, tiled | wrong)
  return [new for new in made if new is not None]


def with_place(out: list[Place], here: Place, ids: LoopIds, target: Target) -> list[Place]:
  """`out` and `here`: joined with a place before it, if either can go where the other is, else at the end."""
  between: tuple[set[int], set[int]] = set(), set()  # written and touched by the places after the one looked at
  for i in range(len(out) - 1, max(len(out) - LOOK_BACK, -1), -1):
    p = out[i]
    up, down = here.commutes(*between), p.commutes(*between)
    may = (up or down) and p.members[0].devices == here.members[0].devices and len(p.members) < MOST_MEMBERS
    if may and p.group is not None and here.group is not None:
      if (group := joined_groups(p.group, here.group, ids, target)) is not None:
        both = Place(p.members + here.members, group, p.written | here.written, p.touched | here.touched)
        return [*out[:i], both, *out[i + 1 :]] if up else [*out[:i], *out[i + 1 :], both]
    between[0].update(p.written)
    between[1].update(p.touched)
  return [*out, here]


def compute_anew(out: list[Place], temps: dict[int, Temp], ids: LoopIds, target: Target) -> None:
  """Large values that a group reads and an earlier one wrote are computed by the reader too, a few rows at a time,
  where that takes little memory: a backward pass does not keep what is quadratic in the length of a sequence."""
  spare = max((s for p in out for s in p.touched), default=0)
  for i, place in enumerate(out):
    tried: set[int] = set()
    while place.group is not None:
      large = {x.slot for x in place.group.accesses if x.nbytes >= RECOMPUTE and x.slot in temps}
      if (t := max(large - place.written - tried, default=None)) is None:
        break
      tried.add(t)
      k = next((k for k, p in enumerate(out[:i]) if t in p.written), None)
      if k is None or (writer := out[k].group) is None:
        continue
      store = next(s for s in writer.stores if s.src[0].src[0].arg.slot == t)
      read = {x.slot: x.nbytes for x in accesses((store,)) if not x.written}
      nbytes = max(x.nbytes for x in writer.accesses if x.slot == t)
      spare += 1
      again = single(UOp.sink(store), {**{x: x for x in read}, t: spare}, ids)
      if again is None or nbytes < RECOMPUTE_RATIO * sum(n for n in read.values() if n < RECOMPUTE):
        continue
      reader = with_slot(place.group, t, spare)
      # by the reader alone, or with a later group that can have it too
      for q in range(i, min(i + LOOK_BACK, len(out))):
        if any(p.written & read.keys() for p in out[k + 1 : q + 1]):
          break
        if q == i:
          group = joined_groups(again, reader, ids, target)
        elif not place.commutes(out[q].written, out[q].touched):
          break
        elif (there := out[q].group) is not None and out[q].members[0].devices == place.members[0].devices:
          first = joined_groups(there, again, ids, target)
          group = None if first is None else joined_groups(first, reader, ids, target)
        if group is not None:
          temps[spare] = temps[t]
          if q != i:
            out[i] = Place([], None, set(), set())
          place = out[q] = Place([*out[q].members, *place.members], group, group.written, group.touched)
          break
  out[:] = [p for p in out if p.members]


def drop_unread(out: list[Place], temps: Mapping[int, Temp]) -> None:
  """Leaves out intermediate values that all who read them compute themselves."""
  read: set[int] = set()
  for place in reversed(out):
    if place.group is None:
      read |= place.touched
      continue
    kept: list[UOp] = []
    for s in reversed(place.group.stores):
      if (slot := s.src[0].src[0].arg.slot) in read or slot not in temps:
        kept.insert(0, s)
        read |= {x.slot for x in accesses((s,)) if not x.written}
    if len(kept) < len(place.group.stores):
      place.group = replace(place.group, stores=tuple(kept), accesses=accesses(kept))
      place.written, place.touched = place.group.written, place.group.touched
  out[:] = [p for p in out if p.group is None or p.group.stores]


def merged(place: Place, own: Sequence[int], target: Target) -> ScheduleItem | None:
  """The one item of a place; `own`: the memory that nobody else reads. None where it was to stream and cannot."""
  if place.group is None or len(place.members) == len(place.group.stores) == 1:
    return place.members[0]
  room = target.scratch // 2 if target.threads and not place.group.streams else WHATEVER
  whole, slots, writes = one_kernel(place.group, own, target, room)
  kernel = whole
  if place.group.streams:
    if (blocks := streamed(whole)) is None:
      return None
    kernel = tidy(blocks)
  variables = tuple(v.arg[0] for v in kernel.variables())
  computes = tuple(dict.fromkeys(line for item in place.members for line in item.computes))
  return ScheduleItem(kernel, slots, place.members[0].devices, variables, False, computes, writes)
