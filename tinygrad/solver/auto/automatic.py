"""A graph's placements by predicted time: the linear program of its values and ops, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinygrad.device import Mesh, show_placement
from tinygrad.helpers import numpy, prod, size_to_str
from tinygrad.solver.auto.choices import Choices, Want, Way
from tinygrad.solver.auto.classes import Classes, classes_of, followers
from tinygrad.solver.auto.least import least_time
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.memory import fused_ones, held_bytes, is_view
from tinygrad.solver.auto.program import Chosen, Op, Program, Side, Value, costs_of
from tinygrad.solver.auto.recompute import Recomputation
from tinygrad.solver.axes import within_axes
from tinygrad.solver.graph import Answer, Asked, OpDecision, ask
from tinygrad.solver.problem import Hint
from tinygrad.solver.solve import Solution
from tinygrad.uop import GroupOp, UOp, render_shape

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
  merged, hints = followers(asked.problem)
  leaves = [asked.number[u] for u in asked.leaves]
  classes = classes_of(asked.problem, leaves, merged, hints)
  choices = Choices(mesh, machine)
  fused = fused_ones(asked.order)
  held = held_bytes(asked, set(leaves), fused)
  written = [
    float(prod(u.max_shape) * u.dtype.itemsize) if u.op in GroupOp.Elementwise and u not in fused else 0.0
    for u in asked.nodes
  ]
  values = [class_value(asked, choices, members, merged, hints, held, written) for members in classes.values]
  ops = class_ops(asked, choices, classes, merged, fused, values)
  program = Program(values, list(ops.values()), memory)
  chosen = least_time(program)
  found: list[Hint | None] = []
  for shape, c in zip(asked.problem.shapes, classes.value):
    dims = choices.dims(values[c].cuts[chosen.cuts[c]], len(shape))
    found.append(Hint(tuple(within_axes(d, mesh) for d in dims), (False,) * len(dims), (0,) * len(dims)))
  answer = Answer(asked, Solution(found, [{} for _ in merged]), decisions(asked, choices, classes, ops, chosen))
  return Automatic(answer, program, classes, chosen)


def decisions(
  asked: Asked, choices: Choices, classes: Classes, ops: Mapping[int, Op], chosen: Chosen
) -> dict[UOp, OpDecision]:
  """How each op is to run where values are placed as chosen."""
  found: dict[UOp, OpDecision] = {}
  for c, op in ops.items():
    way, edge = op.ways[op.best(chosen.cuts)], asked.problem.edges[classes.edges[c][0]]
    sources = zip(edge.values[: edge.rule.sources], way.wants)
    needs = [None if v is None else choices.placement(cut, len(asked.problem.shapes[v])) for v, (cut, _) in sources]
    of_sum = asked.ops[classes.edges[c][0]] in asked.contractions.by_reduce
    run = OpDecision(tuple(needs), choices.placement(way.factors, len(edge.rule.sizes)) if of_sum else None)
    found |= {asked.ops[e]: run for e in classes.edges[c]}
  return found


def class_value(
  asked: Asked,
  choices: Choices,
  members: Sequence[int],
  merged: Sequence[int],
  hints: Sequence[Hint | None],
  held: Sequence[float],
  written: Sequence[float],
) -> Value:
  """A class of values, of which the first member stands for all. Of each value, uncut: `held`, the bytes that count as
  memory; `written`, those that an elementwise op writes to memory."""
  first = merged[members[0]]
  shape = asked.problem.shapes[first]
  cuts = choices.cuts(shape, hints[first])
  blocks = [prod(choices.parts(cut, i) for i in range(len(shape))) for cut in cuts]
  memory = [sum(held[m] for m in members) / n for n in blocks]
  touched = sum(written[m] for m in members)
  seconds = [(touched / n + LESS * m) / choices.machine.bandwidth for n, m in zip(blocks, memory)]
  return Value(shape, asked.nodes[first].dtype.itemsize, cuts, memory, seconds)


def class_ops(
  asked: Asked, choices: Choices, classes: Classes, merged: Sequence[int], fused: set[UOp], values: Sequence[Value]
) -> dict[int, Op]:
  """The classes of ops by their numbers, but for elementwise ones whose values are placed as one."""
  ops: dict[int, Op] = {}
  for c, members in enumerate(classes.edges):
    edge = asked.problem.edges[members[0]]
    given = [v for v in edge.values if v is not None]
    if edge.rule.elementwise and len({merged[v] for v in given}) == 1:
      continue
    itemsize = min(asked.nodes[v].dtype.itemsize for v in given)
    heavy = not edge.rule.elementwise and asked.ops[members[0]].op not in GroupOp.Rearranging
    stored = tuple(v is None or asked.nodes[v] not in fused or is_view(asked.nodes[v]) for v in edge.values)
    ways = choices.ways(edge.rule, itemsize, heavy, stored)
    seconds = numpy.array([len(members) * way.seconds for way in ways])
    sides = [
      side_of(choices, ways, i, i < edge.rule.sources, classes.value[v], values, len(members))
      for i, v in enumerate(edge.values)
      if v is not None
    ]
    ops[c] = Op(ways, seconds, sides)
  return ops


def side_of(
  choices: Choices, ways: Sequence[Way], i: int, source: bool, v: int, values: Sequence[Value], count: int
) -> Side:
  """What the ways of `count` ops want of their i-th value, which is of class v."""
  numbers: dict[Want, int] = {}
  want = numpy.array([numbers.setdefault(way.wants[i], len(numbers)) for way in ways])
  value = values[v]
  return Side(v, want, count * choices.table(value.shape, value.itemsize, value.cuts, list(numbers), source))
