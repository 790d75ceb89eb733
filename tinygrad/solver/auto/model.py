"""A graph on a mesh of machines as a program of its classes of values and ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinygrad.device import Mesh
from tinygrad.helpers import numpy, prod
from tinygrad.solver.auto.choices import Choices, Cut, Want
from tinygrad.solver.auto.classes import Classes, classes_of
from tinygrad.solver.auto.copies import posed
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.memory import fused_ones, held_bytes
from tinygrad.solver.auto.program import Op, Program, Side, Value
from tinygrad.solver.auto.traffic import by_elementwise, by_op, is_heavy
from tinygrad.solver.graph import ask
from tinygrad.uop import UOp

LESS = 1e-4  # of equal times the one that holds less memory: so many bytes that are moved weigh one that is held


class Model:
  """A graph on a mesh of machines: what its placements take. `held`, of each value, uncut: the bytes that count as
  memory; `touched`: those that elementwise ops write to memory and read of it."""

  def __init__(self, sink: UOp, mesh: Mesh, machine: Machine) -> None:
    asked = self.asked = ask(sink, mesh)
    self.posed, self.choices = posed(asked), Choices(mesh, machine)
    leaves = [asked.number[u] for u in asked.leaves]
    self.classes = classes_of(self.posed.problem, leaves, self.posed.merged, self.posed.hints)
    self.fused = fused_ones(asked.order)
    none = [0.0] * len(self.posed.copies)
    self.held = held_bytes(asked, set(leaves), self.fused) + none
    self.touched = by_elementwise(asked, self.fused) + none
    self.program = self.program_of(self.classes)

  def blocks(self, cut: Cut, rank: int) -> int:
    return prod(self.choices.parts(cut, i) for i in range(rank))

  def program_of(self, classes: Classes) -> Program:
    values = [self.value(members) for members in classes.values]
    ops = [self.op(members, classes, values) for members in self.heavy(classes)]
    return Program(values, ops, None)

  def heavy(self, classes: Classes) -> Iterator[list[int]]:
    """The classes of ops, but for elementwise ones whose values are placed as one."""
    return (members for members in classes.edges if not self.posed.follows(self.posed.problem.edges[members[0]]))

  def value(self, members: Sequence[int]) -> Value:
    """A class of values, of which the first member stands for all."""
    first = self.posed.merged[members[0]]
    shape = self.posed.problem.shapes[first]
    cuts = self.choices.cuts(shape, self.posed.hints[first])
    blocks = [self.blocks(cut, len(shape)) for cut in cuts]
    held, touched = (sum(of[m] for m in members) for of in (self.held, self.touched))
    memory = [held / n for n in blocks]
    seconds = [(touched / n + LESS * m) / self.choices.machine.bandwidth for n, m in zip(blocks, memory)]
    return Value(shape, self.posed.nodes[first].dtype.itemsize, cuts, memory, seconds)

  def op(self, members: Sequence[int], classes: Classes, values: Sequence[Value]) -> Op:
    """A class of ops."""
    edge, u = self.posed.problem.edges[members[0]], self.posed.ops[members[0]]
    touched = by_op(u, self.asked.sources(u), self.fused) if u is not None and is_heavy(u) else None
    ways = self.choices.ways(edge.rule, 0 if u is None else u.dtype.itemsize, touched)
    seconds = numpy.array([len(members) * way.seconds for way in ways])
    sides = []
    for i, v in enumerate(edge.values):
      if v is not None:
        numbers: dict[Want, int] = {}
        want = numpy.array([numbers.setdefault(way.wants[i], len(numbers)) for way in ways])
        value, reads = values[classes.value[v]], self.posed.reads(v, u is None, self.fused)
        source = i < edge.rule.sources
        table = self.choices.table(value.shape, value.itemsize, value.cuts, list(numbers), source, reads)
        sides.append(Side(classes.value[v], want, len(members) * table))
    if u is None:  # a copy is where it is moved to
      cuts = values[sides[1].value].cuts
      sides[1].want = numpy.arange(len(ways))
      sides[1].costs = numpy.array([[0.0 if cut == way.factors else numpy.inf for way in ways] for cut in cuts])
    return Op(ways, seconds, sides)
