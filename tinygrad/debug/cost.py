"""What an item of a schedule takes on a cluster: a kernel by the roofline, a communication by bytes and rounds.

A round of messages takes the latency of its level (α), and each byte that a device receives over it 1/bandwidth (β):
Hockney's model. Over several levels a collective is hierarchical: reduce-scatter inside, across, all-gather inside;
over the levels these are the bytes of one ring over all, which is what `explain` counts. Rounds: on a switch, where
each reaches each, ⌈log₂ n⌉ by recursive doubling (Bruck's for other n; Thakur, Rabenseifner, Gropp: Optimization of
Collective Communication Operations in MPICH, 2005), of the same bytes as a ring's; on a ring n - 1; where the memory of
others is read, one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tinygrad.debug.estimate import COUNTED, Estimate, estimate
from tinygrad.debug.report import remap_step
from tinygrad.device import Device, SubAxis, device_set
from tinygrad.device.cluster import Chip, Cluster, Level
from tinygrad.device.machine import numbers, spans
from tinygrad.dtype import dtypes
from tinygrad.helpers import PROCESS
from tinygrad.schedule.items import ScheduleItem, Transfer
from tinygrad.sharding.moves import Step, ints, plan, wire
from tinygrad.uop import Collective, Ops, UOp

HOST = "host"  # the link between a device and its host


@dataclass(frozen=True, slots=True)
class Phase:
  """A part of a communication: `nbytes` that each device receives over one level, in `seconds`."""

  kind: str
  level: str
  nbytes: float
  seconds: float


@dataclass(frozen=True, slots=True)
class ItemCost:
  """Of an item on each of its devices: the communications first, then `seconds` of the kernel, which are by `bound`:
  "operations", "memory", or "overhead"."""

  phases: tuple[Phase, ...]
  seconds: float
  bound: str
  ops: int = 0
  nbytes: int = 0

  @property
  def in_turn(self) -> list[tuple[bool, float]]:
    """(whether it communicates, seconds), one after the other."""
    kernel = [(False, self.seconds)] if self.seconds or not self.phases else []
    return [*((True, phase.seconds) for phase in self.phases), *kernel]


def cost_of(item: ScheduleItem, cluster: Cluster) -> ItemCost:
  """What an item takes. A kernel that only brings together what it reads of other devices is its communication."""
  if isinstance(item.kernel, Transfer):
    return ItemCost((transfer(item.kernel, cluster),), 0.0, "overhead")
  assert isinstance(item.kernel, UOp)
  phases = tuple([phase for c in item.moves for phase in communication(c, cluster)])
  if phases and only_moves(item.kernel):
    return ItemCost(phases, 0.0, "overhead")
  known = estimated(item.kernel)
  seconds, bound = roofline(known, cluster.chip)
  return ItemCost(phases, seconds, bound, known.ops, known.nbytes)


def prices(cluster: Cluster) -> Callable[[ScheduleItem], list[tuple[bool, float]]]:
  """What items take of a device's two queues (runtime/overlap.py). What lies in memory that kernels can read, they read
  themselves."""
  read = {level.name for level in cluster.levels if level.topology == "memory"}

  def price(item: ScheduleItem) -> list[tuple[bool, float]]:
    cost = cost_of(item, cluster)
    far, near = ([p for p in cost.phases if (p.level in read) == within] for within in (False, True))
    return replace(cost, phases=tuple(far), seconds=cost.seconds + sum(p.seconds for p in near)).in_turn

  return price


# ---------------------------------------------------------------- kernels


@PROCESS.cached
def estimated(kernel: UOp) -> Estimate:
  return estimate(kernel)


def roofline(known: Estimate, chip: Chip) -> tuple[float, str]:
  """Seconds of a kernel, the longer of its operations and its bytes, and which that is."""
  work = sum(n / chip.rate(dtype) for dtype, n in known.products) + known.instructions / chip.vector
  moved = known.nbytes / chip.bandwidth
  bound = "overhead" if max(work, moved) < chip.overhead else "operations" if work > moved else "memory"
  return max(work, moved) + chip.overhead, bound


@PROCESS.cached
def only_moves(kernel: UOp) -> bool:
  """Whether a kernel computes nothing but sums over other devices' parts."""
  return all(u.op not in COUNTED or u.dtype is dtypes.index or u.dtype is dtypes.bool for u in kernel.toposort())


# ---------------------------------------------------------------- communications


def communication(c: Collective, cluster: Cluster) -> Sequence[Phase]:
  """The phases of a collective, in order."""
  return [phase for step in steps_of(c) if step.nbytes for phase in phases(step, device_set(step.b), cluster)]


@PROCESS.cached
def steps_of(c: Collective) -> tuple[Step, ...]:
  """What a collective moves, as `explain` has it."""
  itemsize = c.template.dtype.itemsize
  if c.template.op is Ops.HOLE:
    return plan(ints(c.template.shape), itemsize, c.placements[0], c.result)
  return (remap_step(c, itemsize),)


def phases(step: Step, devices: tuple[str, ...], cluster: Cluster) -> Sequence[Phase]:
  """A step, level by level from the innermost, each with its share of the step's bytes."""
  counts = spans(cluster.sizes, devices, step.sub_axes or (SubAxis(len(devices), 1),))
  out = list[Phase]()
  inside, whole = 1.0, math.prod(counts)
  farthest = max((i for i, n in enumerate(counts) if n > 1), default=0)
  for i, (level, n) in enumerate(zip(cluster.levels, counts)):
    if n > 1:
      if step.kind == "permute":
        share, rounds = float(i == farthest), 1.0
      elif step.kind == "all_to_all":
        share, rounds = (inside * n - inside) / (whole - 1), inside * n - inside
      else:  # of what a ring over all devices brings, the part that this level does
        share, rounds = (n - 1) / (inside * n) * whole / (whole - 1), (2 if step.kind == "all_reduce" else 1) * (n - 1)
      if share:
        seconds = step.nbytes * share / level.bandwidth + level.latency * rounds_on(level, rounds, n, step.kind)
        out.append(Phase(step.kind, level.name, step.nbytes * share, seconds))
    inside *= n
  return out


def rounds_on(level: Level, rounds: float, n: float, kind: str) -> float:
  """Of so many rounds on a ring of n: those that the level's topology takes."""
  if level.topology == "memory":
    return 1.0
  if level.topology == "ring" or kind == "all_to_all" or kind == "permute":
    return math.ceil(rounds)
  return math.ceil(math.log2(n)) * (2 if kind == "all_reduce" else 1)


def transfer(t: Transfer, cluster: Cluster) -> Phase:
  """A copy between device sets, or from or to the host: what each device receives, over the outermost level between
  them."""
  here, there = device_set(t.source), device_set(t.result)
  nbytes = wire(t.shape, t.dtype.itemsize, t.source, t.result)
  if not all(Device.capabilities(d[0]).simulated for d in (here, there)):
    return Phase("copy", HOST, nbytes, nbytes / cluster.chip.host)
  level = cluster.levels[outermost(tuple(level.size for level in cluster.levels), here, there)]
  return Phase("copy", level.name, nbytes, nbytes / level.bandwidth + level.latency)


@PROCESS.cached
def outermost(sizes: tuple[int, ...], here: tuple[str, ...], there: tuple[str, ...]) -> int:
  """The number of the outermost level that has devices of two sets in several of its units."""
  found, units = 0, {*numbers(here), *numbers(there)}
  for i, size in enumerate(sizes):
    found = i if len(units) > 1 else found
    units = {u // size for u in units}
  return found
