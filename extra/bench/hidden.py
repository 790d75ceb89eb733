"""How much of a training step's communication kernels hide, on clusters that are not here.

    python -m extra.bench.hidden                                # the meshes of docs/simulation.md
    python -m extra.bench.hidden "dp=32 --batch 64" --layers 4  # others: arguments of python -m tinygrad.simulation

Each step is planned in the order that it would have without communication in mind (`as_is`), and in the one that it has
(runtime/overlap.py). Milliseconds: kernels and communication of each device; the step, in both orders; and the longest
of what a queue has to do, with what must come before and after it, which no order can undercut.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tinygrad import Context
from tinygrad.engine import compile as compiling
from tinygrad.helpers.list_scheduling import QueueJob, hazards
from tinygrad.runtime import overlap
from tinygrad.schedule.schedule import as_is
from tinygrad.simulation import Simulation, cluster_of, simulate
from tinygrad.simulation.__main__ import mesh_from, parsed, size_of_model
from tinygrad.simulation.models import MODELS
from tinygrad.simulation.session import standing_for

MESHES = ("dp=32", "dp=32 --batch 64", "dp=8,tp=4", "fsdp=32", "fsdp=32 --batch 128", "fsdp=4,tp=8", "dp=1")
COLUMNS = "mesh", "kernels", "comm.", "plain", "now", "least", "hidden plain", "now", "GB plain", "now"


def least(jobs: Sequence[QueueJob]) -> float:
  """Seconds below which no order of the jobs comes, memory aside: of each queue all that can begin only after some
  time, in a row, and the shortest of what must follow."""
  takes = [sum(seconds for _, seconds in job.parts) for job in jobs]
  before, after = [0.0] * len(jobs), [0.0] * len(jobs)
  follows = hazards(jobs)
  for i, earlier in enumerate(follows):
    before[i] = max((before[j] + takes[j] for j in earlier), default=0.0)
  for i in reversed(range(len(jobs))):
    for j in follows[i]:
      after[j] = max(after[j], after[i] + takes[i])
  found = max((before[i] + takes[i] for i in range(len(jobs))), default=0.0)
  for queue in {q for job in jobs for queues, _ in job.parts for q in queues}:
    mine = [i for i, job in enumerate(jobs) if any(queue in queues for queues, _ in job.parts)]
    busy, last = 0.0, float("inf")
    for i in sorted(mine, key=before.__getitem__, reverse=True):
      busy += sum(seconds for queues, seconds in jobs[i].parts if queue in queues)
      last = min(last, after[i])
      found = max(found, before[i] + busy + last)
  return found


def planned_step(args: list[str], arrange: Callable[[overlap.Price, bool], Any]) -> Simulation:
  """A step of the program's own options, whose items get their order by `arrange`."""
  options = parsed(args)
  cluster, kept = cluster_of(options.cluster), (overlap.hiding, compiling._plans)
  overlap.hiding, compiling._plans = arrange, {}
  try:
    mesh = mesh_from(options.mesh, len(cluster))
    with standing_for(cluster), Context(DEV="NULL"):
      return simulate(MODELS[options.model](mesh, size_of_model(options, mesh)), cluster=cluster)
  finally:
    overlap.hiding, compiling._plans = kept


def row(args: list[str]) -> list[str]:
  programs: list[list[QueueJob]] = []

  def plain(price: overlap.Price, ahead: bool) -> Any:
    def arranged(items: Sequence[Any], temps: Any, buffers: Any) -> Any:
      programs.append(overlap.jobs_of(items, [price(item) for item in items]))
      return as_is(items, temps, buffers)

    return arranged

  before, after = planned_step(args, plain), planned_step(args, overlap.hiding)
  kernels, moves = (after.timeline.busy(0, queue) for queue in ("kernels", "communication"))
  hidden = [f"{1 - s.timeline.exposed(0) / moves:.0%}" if moves else "" for s in (before, after)]
  times = [kernels, moves, before.seconds, after.seconds, least(max(programs, key=len))]
  return [*(f"{1e3 * t:.1f}" for t in times), *hidden, *(f"{s.memory * 1e-9:.1f}" for s in (before, after))]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("meshes", nargs="*", default=MESHES)
  parser.add_argument("--cluster", default="h100x8:4")
  parser.add_argument("--layers", default="8")
  options = parser.parse_args()
  table = Table(*COLUMNS)
  for mesh in options.meshes:
    table.add_row(mesh, *row(["--cluster", options.cluster, "--layers", options.layers, "--mesh", *mesh.split()]))
  Console(width=120).print(table)


if __name__ == "__main__":
  main()
