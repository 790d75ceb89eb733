"""A graph's placements by predicted time: the answer, and the table that says it."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad.device import Mesh, show_placement
from tinygrad.helpers import prod, size_to_str
from tinygrad.solver.auto.classes import Classes
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.model import Model
from tinygrad.solver.auto.moved import Moved
from tinygrad.solver.auto.program import Chosen, Program, costs_of
from tinygrad.solver.auto.recompute import Recomputation
from tinygrad.solver.auto.search import Search, Selection
from tinygrad.solver.graph import Answer, Decisions, OpDecision
from tinygrad.solver.problem import Hint
from tinygrad.solver.solve import Solution
from tinygrad.uop import UOp, render_shape


@dataclass(slots=True)
class Automatic:
  """What was chosen for a graph. It prints as a table: of each input and weight its placement, the bytes that a device
  holds of it, those that a device receives in a run for its sake (it itself, and its gradient), and what the next best
  placement would take besides; then what is received for all else, the totals, and what is computed again."""

  answer: Answer
  program: Program
  classes: Classes
  chosen: Chosen
  again: Recomputation | None = None  # values that are computed again, for want of memory
  nbytes: float | None = None  # that each device holds, by the plan of what is built
  moved: Moved | None = None  # in what is built, where something is

  @property
  def seconds(self) -> float:
    """Predicted, of one run of the graph."""
    return self.chosen.seconds + (self.again.seconds if self.again else 0.0)

  @property
  def gap(self) -> float:
    """At most so much of the time could be saved by other choices of this model."""
    return (self.seconds - self.chosen.bound) / self.seconds if self.seconds > 0 else 0.0

  @property
  def memory(self) -> float:
    """Bytes on each device: inputs, weights, the optimizer's state, and what lives when the most does; as the model has
    them, where no limit asked for a plan."""
    return self.program.held(self.chosen.cuts) if self.nbytes is None else self.nbytes

  def next_best(self, v: int) -> float:
    """Seconds that the next best placement of a value's class would take besides, all others as they are."""
    p, c, cuts = self.program, self.classes.value[v], self.chosen.cuts
    costs = sorted(seconds for _, seconds in costs_of(p, cuts, c, p.around()[c], p.excess(cuts)))
    return costs[1] - costs[0] if len(costs) > 1 else float("inf")

  def row(self, u: UOp) -> tuple[str, ...]:
    """Of an input or weight what it is, its placement, the bytes that a device holds and receives, the next best."""
    v, place = self.answer.asked.number[u], self.answer[u]
    after = self.next_best(v)
    parts = 1 if place is None or isinstance(place, str) else prod(place.parts(i) for i in range(u.ndim))
    nbytes = size_to_str(prod(u.max_shape) * u.dtype.itemsize / parts)
    moved = "" if self.moved is None else size_to_str(self.moved.of(u))
    best = f"next best {after * 1e6:+.1f} us" if after < float("inf") else "no other"
    return f"{u.dtype.name}{render_shape(u.shape)}", show_placement(place), nbytes, moved, best

  def __str__(self) -> str:
    leaves = self.answer.asked.leaves
    rows = [("input or weight", "placed", "held", "moved", ""), *map(self.row, leaves)]
    if self.moved is not None:
      rows.append(("all else", "", "", size_to_str(self.moved.total - sum(map(self.moved.of, leaves))), ""))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    aligned = [f"{{:<{widths[0]}}}", f"{{:<{widths[1]}}}", f"{{:>{widths[2]}}}", f"{{:>{widths[3]}}}", "{}"]
    lines = ["  ".join(aligned).format(*row).rstrip() for row in rows]
    said = f"{self.seconds * 1e6:.1f} us predicted, at most {self.gap:.1%} above the least"
    moves = "" if self.moved is None else f", {size_to_str(self.moved.total)} travel to each"
    lines.append(f"{said}; {size_to_str(self.memory)} on each device{moves}")
    if (again := self.again) and again.dropped:
      lines.append(
        f"{len(again.dropped)} values are computed again, which takes {again.seconds * 1e6:.1f} us of these:"
      )
      lines += again.parts
    return "\n".join(lines)

  __repr__ = __str__


def automatic(sink: UOp, mesh: Mesh, machine: Machine, memory: float | None) -> Automatic:
  """The placements of the least predicted time below `sink`. Raises: ShardError where none fits the memory."""
  model = Model(sink, mesh, machine)
  return answered(model, Search(model).within(memory))


def answered(model: Model, choice: Selection) -> Automatic:
  """A choice as the answer for each value and op."""
  asked, choices, chosen = model.asked, model.choices, choice.chosen
  values, shapes = choice.program.values, asked.problem.shapes
  cuts = [values[c].cuts[chosen.cuts[c]] for c in choice.classes.value]
  found: list[Hint | None] = []
  for v, shape in enumerate(shapes):
    found.append(Hint(model.cuts_of(v, cuts[v]), (False,) * len(shape), (0,) * len(shape)))
  copies = {v: choices.placement(cuts[copy], len(shapes[v])) for v, copy in model.posed.copies.items()}
  decided = Decisions(decisions(model, choice), copies)
  answer = Answer(asked, Solution(found, [{} for _ in found]), decided)
  return Automatic(answer, choice.program, choice.classes, chosen)


def decisions(model: Model, choice: Selection) -> dict[UOp, OpDecision]:
  """How each op is to run where values are placed as chosen."""
  found: dict[UOp, OpDecision] = {}
  p, choices = model.posed, model.choices
  for members, op in zip(model.heavy(choice.classes), choice.program.ops, strict=True):
    way, edge = op.ways[op.best(choice.chosen.cuts)], p.problem.edges[members[0]]
    sources = zip(edge.values[: edge.rule.sources], way.wants)
    needs = [None if v is None else choices.placement(cut, len(p.problem.shapes[v])) for v, (cut, _) in sources]
    of_sum = p.ops[members[0]] in model.asked.contractions.by_reduce
    run = OpDecision(tuple(needs), choices.placement(way.factors, len(edge.rule.sizes)) if of_sum else None)
    found |= {u: run for e in members if (u := p.ops[e]) is not None}
  return found
