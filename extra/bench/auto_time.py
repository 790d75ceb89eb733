"""What automatic placement takes: `auto` of a transformer's training step (extra/bench/place_cost.py) on simulated
devices, in seconds, and of these a processor's, with the gap that it certifies.

    python -m extra.bench.auto_time [--layers 80] [--mesh 16,16] [--unit 32] [--memory 0] [--planned]

`--unit` scales the batch and the number of heads, for meshes of more devices than those have parts.
`--memory` is what a device has, as a share of what the fastest placement takes (0: enough). `--planned`: of its plan,
which what is chosen must fit by its plan too, if need be with values computed again (`auto` as it is called); else of
the model, and the linear program alone is timed.
"""

from __future__ import annotations

import argparse
import time

from extra.bench.place_cost import training
from tinygrad import Mesh, Tensor, auto
from tinygrad.helpers import prod
from tinygrad.propagation import as_placed, planned_bytes
from tinygrad.solver.auto.automatic import automatic
from tinygrad.solver.auto.machine import H100

NAMES = ("dp", "tp", "sp")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--layers", type=int, default=80, help="transformer layers (80)")
  parser.add_argument("--mesh", default="16,16", help="the mesh, one to three axes (16,16)")
  parser.add_argument("--unit", type=int, default=32, help="times a batch of 8 and 8 heads (32)")
  parser.add_argument("--memory", type=float, default=0, help="a share of what the fastest takes; 0: enough (0)")
  parser.add_argument("--planned", action="store_true", help="what auto does with memory=, plans included")
  args = parser.parse_args()
  shape = tuple(map(int, args.mesh.split(",")))
  mesh = Mesh([f"NULL:{i}" for i in range(prod(shape))], shape, NAMES[: len(shape)])
  sink = training(args.layers, "NULL:0", args.unit)()
  free = automatic(sink, mesh, H100, None)
  fastest = planned_bytes(as_placed(free.answer, sink.src)) if args.planned else free.memory
  memory = fastest * args.memory if args.memory else None
  nodes, start, at_work = len(sink.toposort()), time.perf_counter(), time.process_time()
  if args.planned:
    found = auto(*map(Tensor, sink.src), mesh=mesh, machine=H100, memory=memory)
  else:
    found = automatic(sink, mesh, H100, memory)
  seconds, at_work = time.perf_counter() - start, time.process_time() - at_work
  classes = f"{len(found.program.values)} classes of values, {len(found.program.ops)} of ops"
  took = f"{seconds:.1f} s ({at_work:.1f} of a processor)"
  print(f"{args.layers} layers, {nodes} nodes, {mesh}: {took}, {classes}, gap {found.gap:.3%}")
  print("\n".join(line for line in str(found).splitlines() if " us" in line and "next best" not in line))


if __name__ == "__main__":
  main()
