"""A graph's placements by predicted time: the linear program of its values and ops, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinygrad.device import Mesh, show_placement
from tinygrad.helpers import numpy, prod, size_to_str
from tinygrad.solver.auto.choices import Choices, Want, Way
from tinygrad.solver.auto.classes import Classes, classes_of
from tinygrad.solver.auto.copies import Posed, posed
from tinygrad.solver.auto.least import least_time
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.memory import fused_ones, held_bytes
from tinygrad.solver.auto.program import Chosen, Op, Program, Side, Value, costs_of
from tinygrad.solver.auto.recompute import Recomputation
from tinygrad.solver.auto.traffic import by_elementwise, by_op, is_heavy
from tinygrad.solver.axes import within_axes
from tinygrad.solver.graph import Answer, Asked, Decisions, OpDecision, ask
from tinygrad.solver.problem import Hint
from tinygrad.solver.solve import Solution
from tinygrad.uop import UOp, render_shape

LESS = 1e-4  # of equal times the one that holds less memory: so many bytes that are moved weigh one that is held


@dataclass(slots=True)
class Automatic:
  """What was chosen for a graph. It prints as a table: of each input and weight its placement, the bytes of a device,
  and what the next best placement would take besides; then the totals."""

  answer: Answer
  program: Program
  classes: Classes
  chosen: Chosen
  again: Recomputation | None = None  # values that are computed again, for want of memory
  nbytes: float | None = None  # that each device holds, by the plan of what is built

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
    p, c = self.program, self.classes.value[v]
    costs = sorted(seconds for _, seconds in costs_of(p, self.chosen.cuts, c, p.around()[c]))
    return costs[1] - costs[0] if len(costs) > 1 else float("inf")

  def __str__(self) -> str:
    lines = []
    for u in self.answer.asked.leaves:
      v = self.answer.asked.number[u]
      place, after = self.answer[u], self.next_best(v)
      parts = 1 if place is None or isinstance(place, str) else prod(place.parts(i) for i in range(u.ndim))
      nbytes = size_to_str(prod(u.max_shape) * u.dtype.itemsize / parts)
      best = f"next best {after * 1e6:+.1f} us" if after < float("inf") else "no other"
      lines.append(f"{u.dtype.name}{render_shape(u.shape):20s} {show_placement(place):50s} {nbytes:>9s}  {best}")
    said = f"{self.seconds * 1e6:.1f} us predicted, at most {self.gap:.1%} above the least"
    lines.append(f"{said}; {size_to_str(self.memory)} on each device")
    if (again := self.again) and again.dropped:
      lines.append(f"{len(again.dropped)} values are computed again, which takes {again.seconds * 1e6:.1f} us of these")
    return "\n".join(lines)

  __repr__ = __str__


def automatic(sink: UOp, mesh: Mesh, machine: Machine, memory: float | None) -> Automatic:
  """The placements of the least predicted time below `sink`. Raises: ShardError where none fits the memory."""
  asked = ask(sink, mesh)
  p = posed(asked)
  leaves = [asked.number[u] for u in asked.leaves]
  classes = classes_of(p.problem, leaves, p.merged, p.hints)
  choices = Choices(mesh, machine)
  fused = fused_ones(asked.order)
  held, touched = (
    [*known, *(0.0 for _ in p.copies)]
    for known in (held_bytes(asked, set(leaves), fused), by_elementwise(asked, fused))
  )
  values = [class_value(p, choices, members, held, touched) for members in classes.values]
  ops = class_ops(asked, p, choices, classes, fused, values)
  program = Program(values, list(ops.values()), memory)
  chosen = least_time(program)
  cuts = [values[c].cuts[chosen.cuts[c]] for c in classes.value]
  found: list[Hint | None] = []
  for shape, cut in zip(asked.problem.shapes, cuts):
    dims = choices.dims(cut, len(shape))
    found.append(Hint(tuple(within_axes(d, mesh) for d in dims), (False,) * len(dims), (0,) * len(dims)))
  copies = {v: choices.placement(cuts[copy], len(asked.problem.shapes[v])) for v, copy in p.copies.items()}
  decided = Decisions(decisions(asked, p, choices, classes, ops, chosen), copies)
  return Automatic(Answer(asked, Solution(found, [{} for _ in found]), decided), program, classes, chosen)


def decisions(
  asked: Asked, p: Posed, choices: Choices, classes: Classes, ops: Mapping[int, Op], chosen: Chosen
) -> dict[UOp, OpDecision]:
  """How each op is to run where values are placed as chosen."""
  found: dict[UOp, OpDecision] = {}
  for c, op in ops.items():
    way, edge = op.ways[op.best(chosen.cuts)], p.problem.edges[classes.edges[c][0]]
    sources = zip(edge.values[: edge.rule.sources], way.wants)
    needs = [None if v is None else choices.placement(cut, len(p.problem.shapes[v])) for v, (cut, _) in sources]
    of_sum = p.ops[classes.edges[c][0]] in asked.contractions.by_reduce
    run = OpDecision(tuple(needs), choices.placement(way.factors, len(edge.rule.sizes)) if of_sum else None)
    found |= {u: run for e in classes.edges[c] if (u := p.ops[e]) is not None}
  return found


def class_value(
  p: Posed, choices: Choices, members: Sequence[int], held: Sequence[float], touched: Sequence[float]
) -> Value:
  """A class of values, of which the first member stands for all. Of each value, uncut: `held`, the bytes that count as
  memory; `touched`, those of it that elementwise ops write to memory and read."""
  first = p.merged[members[0]]
  shape = p.problem.shapes[first]
  cuts = choices.cuts(shape, p.hints[first])
  blocks = [prod(choices.parts(cut, i) for i in range(len(shape))) for cut in cuts]
  memory = [sum(held[m] for m in members) / n for n in blocks]
  nbytes = sum(touched[m] for m in members)
  seconds = [(nbytes / n + LESS * m) / choices.machine.bandwidth for n, m in zip(blocks, memory)]
  return Value(shape, p.nodes[first].dtype.itemsize, cuts, memory, seconds)


def class_ops(
  asked: Asked, p: Posed, choices: Choices, classes: Classes, fused: set[UOp], values: Sequence[Value]
) -> dict[int, Op]:
  """The classes of ops by their numbers, but for elementwise ones whose values are placed as one."""
  ops: dict[int, Op] = {}
  for c, members in enumerate(classes.edges):
    edge, u = p.problem.edges[members[0]], p.ops[members[0]]
    if p.follows(edge):
      continue
    touched = by_op(u, asked.sources(u), fused) if u is not None and is_heavy(u) else None
    ways = choices.ways(edge.rule, 0 if u is None else u.dtype.itemsize, touched)
    seconds = numpy.array([len(members) * way.seconds for way in ways])
    sides = [
      side_of(
        choices, ways, i, i < edge.rule.sources, classes.value[v], values, len(members), p.reads(v, u is None, fused)
      )
      for i, v in enumerate(edge.values)
      if v is not None
    ]
    if u is None:  # a copy is where it is moved to
      cuts = values[sides[1].value].cuts
      sides[1].want = numpy.arange(len(ways))
      sides[1].costs = numpy.array([[0.0 if cut == way.factors else numpy.inf for way in ways] for cut in cuts])
    ops[c] = Op(ways, seconds, sides)
  return ops


def side_of(
  choices: Choices,
  ways: Sequence[Way],
  i: int,
  source: bool,
  v: int,
  values: Sequence[Value],
  count: int,
  reads: int,
) -> Side:
  """What the ways of `count` ops want of their i-th value, which is of class v."""
  numbers: dict[Want, int] = {}
  want = numpy.array([numbers.setdefault(way.wants[i], len(numbers)) for way in ways])
  value = values[v]
  return Side(v, want, count * choices.table(value.shape, value.itemsize, value.cuts, list(numbers), source, reads))
