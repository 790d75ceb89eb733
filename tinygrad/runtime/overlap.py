"""The order of a schedule's items on devices where communication runs beside kernels, and their memory, so that one
hides the other: what waits for a communication comes when that has ended, others before it; and memory that is still
read is not given to what could begin."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tinygrad.device import Computes, Device, Placement, device_set
from tinygrad.helpers import prod
from tinygrad.helpers.list_scheduling import ListScheduler, QueueJob, device_parts, seconds_taken
from tinygrad.schedule.items import ScheduleItem, Temp, Transfer, plan_memory, uses_of
from tinygrad.schedule.schedule import Arrange, Planned, as_is
from tinygrad.uop import UOp

SHARE = 8  # a device holds at most one more of so many parts of what it would hold
ARRIVED = -(1 << 40)  # numbers from here down are no memory, but what has been received
Price = Callable[[ScheduleItem], Sequence[tuple[bool, float]]]  # (whether it communicates, seconds), in turn


def hiding(price: Price, ahead: bool = False) -> Arrange:
  """What gives items their order and memory: those of `as_is`, or others that take less time and little more
  memory. `ahead`: whether what an item communicates begins before it, as soon as what that reads is written."""

  def arranged(items: Sequence[ScheduleItem], temps: Mapping[int, Temp], buffers: Sequence[UOp]) -> Planned:
    plain = as_is(items, temps, buffers)
    prices = [price(item) for item in items]
    if not any(communicates for parts in prices for communicates, _ in parts):
      return plain
    jobs, item_of = jobs_ahead(items, prices) if ahead else (jobs_of(items, prices), list(range(len(items))))
    sizes = {slot: (t.device, t.nbytes) for slot, t in temps.items()}
    held, before = bytes_on(plain[2]), seconds_taken([on_memory(job, plain[1]) for job in jobs])
    room = {place: (n + held_by(buffers, place)) // SHARE for place, n in held.items()}
    for part in (1, 2, 4):
      order, spans = ListScheduler(jobs, sizes, {place: n // part for place, n in room.items()}).run()
      again = [items[item_of[i]] for i in order if item_of[i] >= 0]
      spans = [span for i, span in zip(order, spans) if item_of[i] >= 0]
      at, pool = plan_memory(until_free(uses_of(again, temps), spans), temps)
      if seconds_taken([on_memory(jobs[i], at) for i in order]) >= before:
        break
      if all(n <= held[place] + room[place] for place, n in bytes_on(pool).items()):
        return again, at, pool
    return plain

  return arranged


def devices_at_work(item: ScheduleItem) -> tuple[str, ...]:
  """The devices that an item keeps busy: of a copy those at both ends that compute."""
  if not isinstance(item.kernel, Transfer):
    return item.devices
  ends = map(device_set, (item.kernel.source, item.kernel.result))
  both = dict.fromkeys(d for devices in ends for d in devices)
  return tuple(d for d in both if Device.capabilities(d).computes is Computes.KERNELS)


def jobs_of(items: Sequence[ScheduleItem], prices: Sequence[Sequence[tuple[bool, float]]]) -> list[QueueJob]:
  sets = [devices_at_work(item) for item in items]
  within = device_parts(sets)[1]
  return [job_of(item, parts, within[devices]) for item, parts, devices in zip(items, prices, sets)]


def job_of(item: ScheduleItem, parts: Sequence[tuple[bool, float]], classes: Sequence[int]) -> QueueJob:
  taken = tuple((tuple((c, communicates) for c in classes), seconds) for communicates, seconds in parts)
  n, communicates = item.writes, parts[0][0]
  return QueueJob(taken, item.slots[n:], item.slots[:n], item.after, communicates)


def jobs_ahead(
  items: Sequence[ScheduleItem], prices: Sequence[Sequence[tuple[bool, float]]]
) -> tuple[list[QueueJob], list[int]]:
  """The same, where each communication is a job of its own, for which the rest of its item waits; and of each the
  number of its item, or -1 of a communication."""
  out, item_of = list[QueueJob](), list[int]()
  kernels = jobs_of(items, [[p for p in parts if not p[0]] or [(False, 0.0)] for parts in prices])
  for i, (job, whole, parts) in enumerate(zip(kernels, jobs_of(items, prices), prices)):
    if n := sum(communicates for communicates, _ in parts):
      out.append(replace(whole, parts=whole.parts[:n], writes=(ARRIVED - i,)))
      item_of.append(-1)
      job = replace(job, reads=(*job.reads, ARRIVED - i))
    out.append(job)
    item_of.append(i)
  return out, item_of


def on_memory(job: QueueJob, at: Mapping[int, int]) -> QueueJob:
  """A job of slots as one of memories."""
  reads, writes, waits = ([~at[s] if s in at else s for s in slots] for slots in (job.reads, job.writes, job.waits))
  return QueueJob(job.parts, tuple(reads), tuple(writes), tuple(waits))


def bytes_on(pool: Sequence[Temp]) -> Counter[Placement]:
  found = Counter[Placement]()
  for t in pool:
    found[t.device] += t.nbytes
  return found


def held_by(buffers: Sequence[UOp], place: Placement) -> int:
  """The bytes of buffers on each device of a place."""
  found = 0
  for u in buffers:
    device = u.arg.device
    if device_set(device) == device_set(place):
      shape = u.max_shape if isinstance(device, str) else device.local_shape(u.max_shape)
      found += prod(shape) * u.dtype.itemsize
  return found


def until_free(uses: Sequence[tuple[int, ...]], spans: Sequence[tuple[float, float]]) -> list[tuple[int, ...]]:
  """What each item touches, and what others still do while it begins."""
  starts, out = [start for start, _ in spans], [*uses]
  for i, (_, end) in enumerate(spans):
    out[max(bisect.bisect_left(starts, end) - 1, i)] += uses[i]
  return out
