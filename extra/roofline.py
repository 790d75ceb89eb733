"""What a placed program takes on a machine, read off the program that every device runs: not from the model by which
`auto` chooses (docs/auto.md), which it is to check.

A kernel computes what is stored, and all that only it reads; it takes the longer of its operations at `machine.flops`
and the bytes of its inputs and result at `machine.bandwidth`. A move takes the bytes that a device receives at
`machine.link`, and `machine.latency`. Nothing overlaps.

`python -m extra.roofline --arch sm_90a` is about one GPU, kernel by kernel (`gpu_model.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from extra import gpu_model
from tinygrad import Tensor
from tinygrad.debug.report import Row, rows_of
from tinygrad.helpers import prod
from tinygrad.propagation import planned_bytes
from tinygrad.sharding.lower_to_local import Localizer
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.memory import fused_ones
from tinygrad.uop import Ops, UOp

MEMORY = (Ops.BUFFER, Ops.SHARD)


@dataclass(frozen=True, slots=True)
class Price:
  """Of one run on each device: seconds of kernels and of moves, and the bytes that it receives."""

  kernels: float
  moves: float
  wire: float

  @property
  def seconds(self) -> float:
    return self.kernels + self.moves


def roofline(outputs: Sequence[Tensor], machine: Machine) -> Price:
  """The price of computing `outputs`, which are placed."""
  placed, found = rows_of([t.uop for t in outputs])
  rows = [row for _, row in found]
  order = Localizer(placed).run().toposort()
  reads = kernels(order)
  seconds = sum(kernel_seconds(u, inputs, reads, machine) for u, inputs in reads.items())
  return Price(seconds, sum(move_seconds(r, machine) for r in rows), sum(r.wire for r in rows))


def memory_of(outputs: Sequence[Tensor]) -> float:
  """Bytes that each device holds, by the plan of its memory."""
  return planned_bytes([t.uop for t in outputs])


def move_seconds(row: Row, machine: Machine) -> float:
  return row.wire / min(machine.links(row.axes)) + machine.latency


def elements(u: UOp) -> int:
  return int(prod(u.max_shape))


def nbytes(u: UOp) -> float:
  return float(elements(u) * u.dtype.itemsize)


def kernels(order: Sequence[UOp]) -> dict[UOp, dict[UOp, float]]:
  """Of each kernel, by what it stores, the memory that it reads, in bytes. What is moved is one, that reads what it
  moves; its time is that of the move."""
  fused = fused_ones(order)
  roots = [u for u in order if u.op is Ops.ASSIGN or u.op is Ops.COLLECTIVE or is_kernel(u, fused)]
  stored = set(roots)
  return {u: dict(inputs(u, stored)) for u in roots}


def is_kernel(u: UOp, fused: set[UOp]) -> bool:
  in_memory = u.op is not Ops.SINK and u.op is not Ops.WAIT and u.op not in MEMORY and u not in fused
  return in_memory and any(s.op in MEMORY or s.op is Ops.COLLECTIVE for s in u.toposort())


def inputs(root: UOp, stored: set[UOp]) -> Iterator[tuple[UOp, float]]:
  """What a kernel reads: of what is behind a slice or a gather, no more than that shows."""
  most: dict[UOp, float] = {s: float("inf") for s in root.src[root.op is Ops.ASSIGN :]}
  todo = list(most)
  while todo:
    u = todo.pop()
    if u in stored or u.op in MEMORY:
      yield u, min(nbytes(u), most[u] * u.dtype.itemsize)
      continue
    shown = elements(u) if u.op is Ops.SHRINK or u.op is Ops.GATHER else float("inf")
    seen = float("inf") if u.op is Ops.REDUCE else min(most[u], shown)
    for s in u.src[:1] if u.op is Ops.AFTER or u.op is Ops.WAIT else u.src:
      if seen > most.get(s, 0.0):
        most[s] = seen
        todo.append(s)


def kernel_seconds(root: UOp, reads: dict[UOp, float], stored: dict[UOp, dict[UOp, float]], machine: Machine) -> float:
  if root.op is Ops.COLLECTIVE:
    return 0.0
  todo, seen, operations = [root], {root}, 0.0
  while todo:
    u = todo.pop()
    if u.op is Ops.REDUCE:
      operations += 2 * elements(u.src[0]) * products(u.src[0])
    todo += [s for s in u.src if s not in seen and s not in stored and s.op not in MEMORY]
    seen.update(u.src)
  return max(operations / machine.flops, (sum(reads.values()) + nbytes(root)) / machine.bandwidth)


def products(u: UOp) -> int:
  """How many are added before they are summed."""
  return sum(map(products, u.src)) if u.op is Ops.ADD else 1


if __name__ == "__main__":
  gpu_model.main(sys.argv[1:])
