"""Kernels that work on the same rows become one kernel, which runs them in turn for a few rows at a time: what one
writes and the next reads is still in the cache, and what nobody else reads never leaves it. Which two can be one says
`row_groups.py`; here is where in the order they run, and what is computed anew rather than kept."""

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.device import Target
from tinygrad.helpers import dedup
from tinygrad.numerics.split_sums import CutTerms, Task, cut_of_terms, terms_in_parts
from tinygrad.numerics.streaming import in_pieces, streamed, streamed_in_pieces
from tinygrad.schedule.items import ScheduleItem, Temp
from tinygrad.schedule.lower import as_item
from tinygrad.schedule.row_groups import (
  RECOMPUTE_RATIO,
  STREAMED,
  Group,
  accesses,
  elsewhere,
  has_few_rows,
  joined_groups,
  single,
  work,
)
from tinygrad.schedule.row_memory import WHATEVER, one_kernel
from tinygrad.uop import Ops, UOp
from tinygrad.uop.loops import LoopIds, iterations

MOST_MEMBERS = 24
RECOMPUTE = 1 << 26  # bytes of a value from which on readers elsewhere compute it anew, if it has that ratio
RECOMPUTE_ON_GRID = 1 << 20  # the same on a grid, where bytes and operations say whether it pays
WIDE = 136  # operations, as STREAMED, of what no core multiplies
WORKERS = 128  # threads, of as many as keep a grid busy, for each piece of a row
LOOK_BACK = 64  # groups that a kernel may join across others
Made = tuple[list[ScheduleItem], dict[int, int]]  # kernels, and the bytes of memory between them, by slots of its own


@dataclass(slots=True)
class Place:
  """What runs at one place of the new order: items, as a group if they can be one, which calls `slots[i]` i."""

  members: list[ScheduleItem]
  group: Group | None
  written: set[int]
  touched: set[int]
  slots: Sequence[int]

  def commutes(self, written: set[int], touched: set[int]) -> bool:
    return self.written.isdisjoint(touched) and self.touched.isdisjoint(written)

  def large(self, temps: Container[int], least: int) -> set[int]:
    """Those of its group's slots that hold much, which may be computed anew."""
    found = self.group.accesses if self.group is not None else ()
    return {slot for x in found if x.nbytes >= least and (slot := self.slots[x.slot]) in temps}


class Joins:
  """Groups and their kernels, each made once: equal layers have the same, over other slots."""

  def __init__(self, target: Target, tiled: frozenset[ScheduleItem]) -> None:
    self.target, self.tiled, self.ids = target, tiled, LoopIds()
    self.made: dict[tuple[object, ...], Any] = {}

  def known(self, make: Callable[..., Any], *key: object) -> Any:
    """What `make` makes of the key."""
    if (make, *key) not in self.made:
      self.made[make, *key] = make(*key)
    return self.made[make, *key]

  def joined(self, a: Group, b: Group, slots: Sequence[int]) -> Group | None:
    return joined_groups(a, elsewhere(b, slots, self.ids), self.ids, self.target)

  def place(self, item: ScheduleItem) -> Place:
    here = Place([item], None, {item.slots[0]}, {*item.slots, *item.after}, item.slots)
    if isinstance(item.kernel, UOp) and item.kernel.op is Ops.SINK and not item.peers:
      here.group = self.known(single, item.kernel, places_in(item.slots, item.slots), self.ids, item in self.tiled)
    return here

  def join(self, a: Place, b: Place) -> Place | None:
    """The places `a` and then `b` in one, if their groups can be."""
    if a.group is None or b.group is None:
      return None
    if a.touched.isdisjoint(b.touched) and not (self.target.threads and a.group.is_like(b.group)):
      return None
    slots = (*a.slots, *(s for s in dedup(b.slots) if s not in a.slots))
    if (group := self.known(self.joined, a.group, b.group, places_in(slots, b.slots))) is None:
      return None
    return Place(a.members + b.members, group, a.written | b.written, a.touched | b.touched, slots)

  def cut(self, stores: Sequence[UOp]) -> CutTerms | None:
    """The parts in which a sum is computed, if that is all that a kernel does."""
    if len(stores) > 1 or not (self.target.threads and self.target.cooperates):
      return None
    return cut_of_terms(stores[0], self.target.units, bool(self.target.cores))

  def pieces(self, group: Group, kernel: UOp) -> int:
    """How many of each row, at most, a kernel that streams is to have."""
    narrow = bool(self.target.cores) and any(u.op is Ops.LOAD and u.dtype.itemsize < 4 for u in kernel.toposort())
    task = Task.of_rows(iterations(group.rows), sum(map(work, group.stores)), narrow)
    nbytes = sum(4 * iterations(s.src[2:]) for s in kernel.src if s.src[0].src[0].arg.given)
    return task.parts(nbytes, self.target.units)

  def kernels(self, group: Group, own: Sequence[int]) -> Made | None:
    """What a group runs. `own`: the memory that nobody else reads. None where it was to stream and cannot."""
    kernel, first = one_kernel(group, own, self.target), 1 + max(group.touched)
    parts: tuple[UOp, ...] | None = None
    if has_few_rows(group, self.target):
      parts = in_pieces(kernel, self.target.busy // WORKERS, first)
    elif group.streams:
      parts = streamed_in_pieces(kernel, self.pieces(group, kernel), first) or streamed(kernel)
    if not parts and group.streams:
      return None
    if not parts and (cut := self.cut(kernel.src)) is not None:
      parts = terms_in_parts(kernel, cut, first)
    parts = parts or (kernel,)
    params = {u for k in parts for u in k.toposort() if u.op is Ops.PARAM}
    memory = {u.arg.slot: u.arg.size * u.dtype.itemsize for u in params}
    return [as_item(k) for k in parts], {slot: n for slot, n in sorted(memory.items()) if slot >= first}


def places_in(slots: Sequence[int], of: Iterable[int]) -> tuple[int, ...]:
  return tuple(map(slots.index, of))


def tile_and_fuse(
  items: Sequence[ScheduleItem], temps: dict[int, Temp], target: Target, tiled: frozenset[ScheduleItem] = frozenset()
) -> list[ScheduleItem]:
  """The items, in an order as good, with those joined that share rows and that the target runs faster as one. `tiled`:
  items of which is known that they do not stream."""
  out, joins = list[Place](), Joins(target, tiled)
  for item in items:
    out = with_place(out, joins.place(item), joins)
  least = RECOMPUTE_ON_GRID if target.threads else RECOMPUTE
  if any(p.large(temps, least) for p in out):
    recompute_in_readers(out, temps, joins, least)
  users = Counter(s for place in out for s in place.touched)
  made = [merged(p, [s for s in p.written if s in temps and users[s] == 1], joins, temps) for p in out]
  if wrong := {item for p, new in zip(out, made) if new is None for item in p.members}:
    return tile_and_fuse(items, temps, target, tiled | wrong)
  return [item for new in made if new is not None for item in new]


def with_place(out: list[Place], here: Place, joins: Joins) -> list[Place]:
  """`out` and `here`: joined with a place before it, if either can go where the other is, else at the end."""
  between: tuple[set[int], set[int]] = set(), set()  # written and touched by the places after the one looked at
  for i in range(len(out) - 1, max(len(out) - LOOK_BACK, -1) if here.group is not None else len(out), -1):
    p = out[i]
    up, down = here.commutes(*between), p.commutes(*between)
    may = (up or down) and p.members[0].devices == here.members[0].devices and len(p.members) < MOST_MEMBERS
    if may and (both := joins.join(p, here)) is not None:
      return [*out[:i], both, *out[i + 1 :]] if up else [*out[:i], *out[i + 1 :], both]
    between[0].update(p.written)
    between[1].update(p.touched)
  return [*out, here]


def recompute_in_readers(out: list[Place], temps: dict[int, Temp], joins: Joins, least: int) -> None:
  """Large values that a group reads and an earlier one wrote are computed by the reader too, a few rows at a time,
  where that takes little memory: a backward pass does not keep what is quadratic in the length of a sequence."""
  spare, ids, target = max((s for p in out for s in p.touched), default=0), joins.ids, joins.target
  stores: dict[int, UOp] = {}  # that it pays to compute anew, by slot
  for p in out:  # from here on groups have the schedule's slots
    if p.group is not None:
      p.group, p.slots = elsewhere(p.group, p.slots, ids), range(WHATEVER)
      for s in p.group.stores:
        stores |= {s.src[0].src[0].arg.slot: s} if recomputing_pays(s, stores, target) else {}
  for i, place in enumerate(out):
    tried: set[int] = set()
    while place.group is not None and joins.tiled.isdisjoint(place.members):
      if (t := max(place.large(temps, least) & stores.keys() - place.written - tried, default=None)) is None:
        break
      tried.add(t)
      made, read = next(k for k in range(i) if t in out[k].written), accesses((stores[t],))
      if any(x.slot in p.written for p in out[made + 1 : i + 1] for x in read if not x.written):
        continue
      spare += 1
      again = single(UOp.sink(stores[t]), {x.slot: spare if x.written else x.slot for x in read}, ids)
      reader = elsewhere(place.group, {**{x: x for x in place.group.touched}, t: spare}, ids)
      if (group := joined_groups(again, reader, ids, target)) is not None:
        temps[spare] = temps[t]
        columns = any(r not in group.rows for s in group.stores for r in s.src[2:])  # of a row of its own
        group = replace(group, streams=group.streams or (target.threads and columns))
        place = out[i] = Place(place.members, group, group.written, group.touched, place.slots)
  drop_dead_stores(out, temps)


def recomputing_pays(store: UOp, anew: Container[int], target: Target) -> bool:
  """Whether who reads what a store writes computes it anew, from what is smaller by far; on a grid from no
  more, what is computed `anew` itself aside, and by operations that take no longer than the bytes that they save."""
  found = accesses((store,))
  nbytes = max(x.nbytes for x in found if x.written)
  read = {x.slot: x.nbytes for x in found if not x.written}
  if not target.threads:
    return nbytes >= RECOMPUTE_RATIO * sum(n for n in read.values() if n < RECOMPUTE)
  # of what is narrow cores multiply several times as much
  most = STREAMED if target.cores and any(u.op is Ops.LOAD and u.dtype.itemsize < 4 for u in store.toposort()) else WIDE
  return sum(n for s, n in read.items() if s not in anew) <= nbytes and work(store) <= most * nbytes


def drop_dead_stores(out: list[Place], temps: Mapping[int, Temp]) -> None:
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


def merged(place: Place, own: Sequence[int], joins: Joins, temps: dict[int, Temp]) -> list[ScheduleItem] | None:
  """The items of a place; `own`: the memory that nobody else reads. None where it was to stream and cannot."""
  group, item = place.group, place.members[0]
  alone = len(place.members) == 1 and group is not None and len(group.stores) == 1
  if group is None or (alone and not has_few_rows(group, joins.target) and joins.cut(group.stores) is None):
    return place.members
  if (found := joins.known(joins.kernels, group, places_in(place.slots, sorted(own)))) is None:
    return None
  kernels, between = found
  devices = [temps[s].device for s in sorted(place.touched) if s in temps] or item.devices
  if alone and (len(kernels) == 1 or len(item.devices) > 1 and devices is item.devices):
    return place.members
  new = dict(zip(between, itertools.count(1 + max((*temps, WHATEVER)))))
  temps |= {new[s]: Temp(devices[0], n) for s, n in between.items()}
  computes = tuple(dict.fromkeys(line for x in place.members for line in x.computes))
  slots = [tuple([new.get(s) or place.slots[s] for s in k.slots]) for k in kernels]
  return [replace(k, slots=at, devices=item.devices, computes=computes) for k, at in zip(kernels, slots)]
