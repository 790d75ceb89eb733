"""A timeline in the format that Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each class of
devices, a thread for each stream, and a counter of the memory in use."""

from __future__ import annotations

from typing import Any

from tinygrad.helpers import json
from tinygrad.simulation.memory import in_use
from tinygrad.simulation.pictures import span_label
from tinygrad.simulation.program import StepProgram
from tinygrad.simulation.timeline import KERNELS, MOVES, StepTimeline

THREADS = {KERNELS: 1, MOVES: 2}


def trace(t: StepTimeline, program: StepProgram) -> str:
  """The events as JSON; times in microseconds."""
  rows: list[dict[str, Any]] = []
  for c, devices in enumerate(t.classes):
    rows.append({"name": "process_name", "ph": "M", "pid": c + 1, "args": {"name": f"{t.cluster.name} {devices}"}})
    for stream, thread in THREADS.items():
      rows.append({"name": "thread_name", "ph": "M", "pid": c + 1, "tid": thread, "args": {"name": stream}})
    for s in t.of(c):
      e = program.entries[s.item]
      lines = [f"{op} at {origin[0]}:{origin[1]}" if origin else op for op, origin in e.item.computes]
      more = {"item": s.item, "kernel": e.name, "computes": lines}
      more |= {"bound by": s.bound} if s.kind == "kernel" else {"level": s.level, "bytes": s.nbytes}
      at = {"pid": c + 1, "tid": THREADS[s.stream], "ts": s.start * 1e6, "dur": s.seconds * 1e6}
      rows.append({"name": span_label(e, s), "cat": s.kind, "ph": "X", **at, "args": more})
    for second, nbytes in in_use(t, program, c):
      rows.append({"name": "memory", "ph": "C", "pid": c + 1, "ts": second * 1e6, "args": {"bytes": nbytes}})
  return str(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))
