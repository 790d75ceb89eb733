"""What hints cost: `propagate` of a transformer's training step (extra/bench/place_cost.py) on simulated devices, with
Megatron's hints: the batch, and in each layer the heads and what is hidden.

    python -m extra.bench.propagate_time [--layers 20,40,80] [--mesh 4,2] [--closed] [--sequence] [--rounds 3]
                                           [--profile]

`--closed`: the hints leave no dim open, so that each might as well state what was decided without it. `--sequence`: the
stream between is cut along the sequence, too.

A row: layers, nodes, seconds of a processor for the first call in this process, the least of all calls, and that by
node. Each call has a graph of its own.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time

from extra.bench.place_cost import Transformer, training_of
from tinygrad import OPEN, Mesh, P, Tensor, propagate
from tinygrad.helpers import prod


class Hinted(Transformer):
  """Its leaves are on one device; hints say the rest. `other`: how dims are that they do not cut."""

  other: str | None = OPEN
  sequence = False

  def split(self, x: Tensor) -> Tensor:
    return super().split(x).constrain(P("dp", "tp", self.other, self.other))

  def hidden(self, x: Tensor) -> Tensor:
    return x.constrain(P("dp", self.other, "tp"))

  def stream(self, x: Tensor) -> Tensor:
    return x.constrain(P("dp", "tp", self.other)) if self.sequence else x


def kind_of(closed: bool, sequence: bool) -> type[Hinted]:
  return type("Kind", (Hinted,), {"other": None if closed else OPEN, "sequence": sequence})


def measure(kind: type[Hinted], layers: int, mesh: Mesh, profile: cProfile.Profile | None) -> tuple[int, float]:
  """How many nodes there are, and the seconds that placing them takes."""
  sink = training_of(kind(layers, mesh.devices[0]))()
  outputs, nodes = [Tensor(u) for u in sink.src], len(sink.toposort())
  gc.collect()
  start = time.process_time()
  if profile is not None:
    profile.enable()
  propagate(outputs, mesh=mesh)
  if profile is not None:
    profile.disable()
  return nodes, time.process_time() - start


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--layers", default="20,40,80", help="transformer layers (20,40,80)")
  parser.add_argument("--mesh", default="4,2", help="the mesh, dp by tp (4,2)")
  parser.add_argument("--closed", action="store_true", help="hints that leave no dim open")
  parser.add_argument("--sequence", action="store_true", help="one more hint, twice in each layer: sequence parallel")
  parser.add_argument("--rounds", type=int, default=3, help="calls of each (3)")
  parser.add_argument("--profile", action="store_true", help="show where the last call spends its time")
  args = parser.parse_args()
  kind = kind_of(args.closed, args.sequence)
  shape = tuple(map(int, args.mesh.split(",")))
  mesh = Mesh([f"NULL:{i}" for i in range(prod(shape))], shape, ("dp", "tp"))
  for layers in map(int, args.layers.split(",")):
    calls = [measure(kind, layers, mesh, None) for _ in range(args.rounds)]
    (nodes, first), least = calls[0], min(seconds for _, seconds in calls)
    each = least / nodes * 1e6
    print(f"{layers:4d} layers {nodes:6d} nodes   first {first:6.2f} s   least {least:6.2f} s   {each:4.0f} us a node")
  if args.profile:
    profile = cProfile.Profile()
    measure(kind, layers, mesh, profile)
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
  main()
