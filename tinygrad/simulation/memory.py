"""The memory of each class of devices while a program runs: the plan's, and what of it is in use when."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.simulation.program import StepProgram
from tinygrad.simulation.timeline import StepTimeline


def held_at_most(t: StepTimeline, program: StepProgram) -> list[int]:
  """The most bytes that each device of each class holds: buffers, and what the plans take for intermediate values."""
  firsts = [c.devices[0] for c in t.classes]
  sets = [(set(devices), nbytes) for devices, nbytes in program.held.items()]
  return [sum(nbytes for devices, nbytes in sets if first in devices) for first in firsts]


def in_use(t: StepTimeline, program: StepProgram, c: int) -> list[tuple[float, int]]:
  """(second, bytes from then on) of a device of a class: memory counts from the first item that touches it to the last;
  what is read before it is written, or is not written at all, from the beginning; what nothing reads, to the end."""
  changes: dict[float, int] = {0.0: 0}
  for m, (start, end) in lives(t, program).items():
    if t.classes[c].devices[0] in program.memory[m].devices:
      changes[start] = changes.get(start, 0) + program.memory[m].nbytes
      changes[end] = changes.get(end, 0) - program.memory[m].nbytes
  out, now = list[tuple[float, int]](), 0
  for second in sorted(changes):
    now += changes[second]
    out.append((second, now))
  return out


def lives(t: StepTimeline, program: StepProgram) -> dict[int, tuple[float, float]]:
  """From when to when each memory is in use."""
  starts, ends = item_times(t, len(program.entries))
  first: dict[int, float] = {}
  last: dict[int, float] = {}
  for i, e in enumerate(program.entries):
    for m in e.reads:
      first.setdefault(m, 0.0)
      last[m] = max(last.get(m, 0.0), ends[i])
    for m in e.writes:
      first.setdefault(m, starts[i])
      last.setdefault(m, 0.0)
  read = {m for e in program.entries for m in e.reads}
  return {m: (first[m], last[m] if m in read else t.seconds) for m in first}


def item_times(t: StepTimeline, n: int) -> tuple[Sequence[float], Sequence[float]]:
  """When each item of a program begins, and when it is done."""
  starts, ends = [t.seconds] * n, [0.0] * n
  for s in t.spans:
    starts[s.item], ends[s.item] = min(starts[s.item], s.start), max(ends[s.item], s.end)
  return starts, ends
