"""What the stages hand over while VIZ is on: plans with their graphs, kernels with how they are computed, memory.

Nothing is worked out here: nodes and schedules are kept as they are until a trace is written (trace.py). Times are
events of `helpers/tracing.py`, memory is in `helpers/memory_log.py`: what is below this room notes it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinygrad.helpers import MEMORY
from tinygrad.uop import UOp

Line = tuple[str, int] | None
Steps = Mapping[str, Sequence[Any]]  # of a kernel's nests, the primitives by which each is computed


@dataclass(slots=True, eq=False)
class KernelRecord:
  """The code of a kernel (as its backend knows it), its AST, how its nests are computed, and its source."""

  code: Any
  ast: UOp
  steps: Steps
  source: str
  launch: str


@dataclass(slots=True, eq=False)
class PlanRecord:
  """A plan (runtime/plans.py: Plan) with the graph that it is of after each stage, and the moves: each with the node
  that moves in the placed graph and in the local one, and its row (debug/report.py)."""

  plan: Any
  sink: UOp
  placed: Sequence[UOp]
  local: Sequence[UOp]
  moves: Sequence[tuple[UOp, UOp, Any]]
  slots: dict[int, tuple[int, Line]] = field(default_factory=dict)  # by number of memory: its slot, and its line


PLANS: list[PlanRecord] = []
RUNS: list[int] = []  # the numbers of the plans that have been given memory, in order
KERNELS: dict[int, KernelRecord] = {}  # by the id of the code, which the record keeps
PEAKS: dict[str, tuple[float, float, bool]] = {}  # of kinds: operations and bytes a second; whether of all devices
_plans: dict[int, int] = {}  # by id of a plan, which its record keeps: its number
_items: dict[int, tuple[int, int]] = {}  # by id of an item, which its plan keeps: number of the plan, of the item in it
_steps: Steps = {}  # of the kernel that is being compiled


def scheduled(steps: Steps) -> None:
  """Codegen has decided how the nests of a kernel are computed."""
  global _steps
  _steps = steps


def compiled(code: Any, ast: UOp, rendered: Any) -> None:
  """The engine has compiled a kernel."""
  KERNELS[id(code)] = KernelRecord(code, ast, _steps, rendered.source, str(rendered.launch))


def planned(plan: Any, sink: UOp, moves: tuple[Sequence[UOp], Sequence[UOp], Sequence[tuple[UOp, UOp, Any]]]) -> None:
  """The engine has made the plan of a graph."""
  _items.update((id(item), (len(PLANS), i)) for i, item in enumerate(plan.items))
  _plans[id(plan)] = len(PLANS)
  PLANS.append(PlanRecord(plan, sink, *moves))


def item_of(item: Any) -> dict[str, Any]:
  """What an event says of the item that ran."""
  return {"item": _items[id(item)]} if id(item) in _items else {}


def bound(plan: Any, buffers: Sequence[UOp], memory: Sequence[Any]) -> None:
  """A plan is going to run over this memory: of `buffers`, then of its temporary values."""
  if id(plan) in _plans:
    RUNS.append(_plans[id(plan)])
    for slot, m in enumerate(memory):
      PLANS[RUNS[-1]].slots[MEMORY.number_of(m)] = slot, (buffers[slot].origin if slot < len(buffers) else None)
