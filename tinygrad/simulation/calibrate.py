"""The devices of this process as a cluster, by measuring: products, other instructions, memory, a kernel's overhead,
and all-reduces, each on all of the devices at once, since they share the machine.

Time is that of the processor, over the cores that the devices have: what a step takes on a machine that does nothing
else, whatever this one does besides."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinygrad.device import Device, Mesh, P, Sharding
from tinygrad.device.cluster import Chip, Cluster, Level
from tinygrad.engine.jit import TinyJit
from tinygrad.helpers import Context, cores
from tinygrad.tensor import Tensor

ROWS, INNER, COLUMNS = 256, 512, 512  # of a device's product
ELEMENTS = 1 << 18  # float32 of a device: 1 MB
LARGE, SMALL = 1 << 20, 64  # float32 of an all-reduce
CHAIN = 16  # kernels in a row
EXPS = 4  # in a row, of so many instructions each, by the op's card
INSTRUCTIONS = 16
FIRST, RUNS = 3, 15  # runs that compile and capture, and those that are timed
LEAST = 1e-9  # seconds, where a difference of two times is no longer one


@dataclass(frozen=True, slots=True)
class Probe:
  """A step that is timed, on inputs that lie on some devices."""

  step: Callable[..., Tensor]
  inputs: tuple[Tensor, ...]

  @property
  def devices(self) -> tuple[str, ...]:
    return tuple(
      dict.fromkeys(d for x in self.inputs for d in (x.device if isinstance(x.device, Sharding) else [x.device]))
    )


def fastest_of(probes: Sequence[Probe], runs: int = RUNS) -> list[float]:
  """Seconds of the fastest of some runs of each; they take turns, so that what disturbs one disturbs all."""
  steps = [TinyJit(lambda *xs, step=p.step: step(*xs).realize()) for p in probes]
  best = [float("inf")] * len(probes)
  for run in range(FIRST + runs):
    for i, (step, p) in enumerate(zip(steps, probes)):
      start = time.process_time()
      step(*p.inputs)
      for d in p.devices:
        Device[d].synchronize()
      if run >= FIRST:
        best[i] = min(best[i], (time.process_time() - start) / min(len(p.devices), cores()))
  return best


def probes_on(mesh: Mesh) -> list[Probe]:
  """A product; an addition; exponentials; a kernel, and CHAIN more of them; a small all-reduce and a large one."""
  n, rows, whole = len(mesh), Sharding(mesh, P("d")), Sharding(mesh, P())

  def filled(at: Sharding, *shape: int) -> Tensor:
    return Tensor.ones(*shape).contiguous().shard(at).realize()

  def repeated(x: Tensor, f: Callable[[Tensor], Tensor], times: int) -> Tensor:
    for _ in range(times):
      x = f(x)
    return x

  v, tiny = filled(rows, n * ELEMENTS), filled(rows, n * SMALL)
  return [
    Probe(lambda x, w: x @ w, (filled(rows, n * ROWS, INNER), filled(whole, INNER, COLUMNS))),
    Probe(lambda x: x + 1.0, (v,)),
    Probe(lambda x: repeated(x * 0.1, Tensor.exp, EXPS), (v,)),
    Probe(lambda x: (x * 0.5).contiguous(), (tiny,)),
    Probe(lambda x: repeated(x, lambda y: (y * 0.5).contiguous(), 1 + CHAIN), (tiny,)),
    Probe(lambda x: x.sum(0), (filled(rows, n, SMALL),)),
    Probe(lambda x: x.sum(0), (filled(rows, n, LARGE),)),
  ]


def measured(devices: Sequence[str], runs: int = RUNS) -> Cluster:
  """What `devices`, of one kind and of this process, can do while all of them work."""
  n, kind = len(devices), devices[0].partition(":")[0]
  with Context(DEBUG=0, PROFILE=0, BEAM=0):
    product, add, exps, one, many, small, large = fastest_of(probes_on(Mesh(devices, names=("d",))), runs)
  overhead = max((many - one) / CHAIN, LEAST)
  # what any call takes is not a kernel's
  product, add, exps, small, large = (max(t - one, LEAST) for t in (product, add, exps, small, large))
  bandwidth, latency = 2 * 4 * ELEMENTS / add, small
  flops, vector = 2 * ROWS * INNER * COLUMNS / product, EXPS * INSTRUCTIONS * ELEMENTS / exps
  link = 2 * 4 * LARGE * (n - 1) / n / max(large - latency, LEAST) if n > 1 else bandwidth
  chip = Chip(f"{kind} here", (("float32", flops),), vector, bandwidth, float("inf"), bandwidth, overhead, kind)
  return Cluster(f"{n} devices here", chip, (Level("memory", n, link, latency, "memory"),), overlap=False)
