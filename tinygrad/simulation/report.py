"""What a simulation says: a table, and the files that it writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinygrad.device.cluster import Cluster
from tinygrad.helpers import atomic_write, size_to_str
from tinygrad.simulation import pictures, trace
from tinygrad.simulation.memory import held_at_most
from tinygrad.simulation.program import StepProgram
from tinygrad.simulation.timeline import StepTimeline

SHOWN = 8  # lines of the table that say what takes the time
WRITERS: dict[str, Callable[[StepTimeline, StepProgram], str]] = {
  ".svg": pictures.svg, ".html": pictures.html, ".json": trace.trace,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Simulation:
  """A program on a cluster. It prints as a table."""

  program: StepProgram
  timeline: StepTimeline

  @property
  def seconds(self) -> float:
    """Predicted, of one run."""
    return self.timeline.seconds

  @property
  def cluster(self) -> Cluster:
    return self.timeline.cluster

  @property
  def memory(self) -> int:
    """The most bytes that a device holds, by the plan."""
    return max(held_at_most(self.timeline, self.program), default=0)

  @property
  def wire(self) -> float:
    """The bytes that a device receives from others, of the class that receives most."""
    t = self.timeline
    return max((sum(t.received(c).values()) for c in range(len(t.classes))), default=0.0)

  def save(self, file: str | Path) -> None:
    """Writes a picture (.svg), a page (.html) or a trace (.json, which ui.perfetto.dev opens), under a temporary name
    first. Raises: ValueError for another ending."""
    check_ending(file)
    with atomic_write(file) as f:
      f.write(WRITERS[Path(file).suffix](self.timeline, self.program).encode())

  def __str__(self) -> str:
    t = self.timeline
    head = f"{t.cluster.name}: {pictures.duration(t.seconds)}, {len(self.program.entries):,} items"
    lines = [head, *(class_line(t, c, held) for c, held in enumerate(held_at_most(t, self.program)))]
    return "\n".join([*lines, *most(t, self.program)])

  __repr__ = __str__


def check_ending(file: str | Path) -> None:
  if (ending := Path(file).suffix) not in WRITERS:
    raise ValueError(f"{file}: a simulation has no {ending or 'file without an ending'}\n  fix: {Path(file).stem}.html")


def class_line(t: StepTimeline, c: int, held: int) -> str:
  """A class: how long it computes, communicates, and waits for that, what it receives and holds."""
  kernels, whole = sum(s.seconds for s in t.of(c) if s.kind == "kernel"), t.seconds or 1.0
  moves, exposed = sum(s.seconds for s in t.of(c) if s.kind != "kernel"), t.exposed(c)
  said = f"kernels {kernels / whole:.0%}, communication {moves / whole:.0%}"
  said += f", {1 - exposed / moves:.0%} of that hidden" if moves else ""
  wire = ", ".join(f"{size_to_str(n)} over {level}" for level, n in t.received(c).items())
  room = t.cluster.chip.memory
  fits = f"of {size_to_str(room)}" if held <= room else f"MORE than the {size_to_str(room)} that there are"
  return f"  {t.classes[c]}: {said}; {f'receives {wire}; ' if wire else ''}holds {size_to_str(held)} {fits}"


def most(t: StepTimeline, program: StepProgram) -> Sequence[str]:
  """Where the time goes: items that come from the same lines are added up."""
  seconds: defaultdict[str, float] = defaultdict(float)
  count, bound = Counter[str](), dict[str, str]()
  for s in t.spans:
    label = pictures.span_label(program.entries[s.item], s)
    seconds[label] += s.seconds
    count[label] += 1
    bound[label] = f"{s.bound}" if s.kind == "kernel" else f"over {s.level}"
  rows = sorted(seconds.items(), key=lambda row: -row[1])[:SHOWN]
  return [f"  {pictures.duration(n):>9s} {count[x]:5d}x  {x}  ({bound[x]})" for x, n in rows]
