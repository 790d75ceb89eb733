"""A graph on a mesh of machines as a program of its classes of values and ops."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from tinygrad.device import Mesh
from tinygrad.helpers import numpy, prod
from tinygrad.solver.auto.choices import Choices, Cut, Want
from tinygrad.solver.auto.classes import Classes, classes_of
from tinygrad.solver.auto.copies import posed
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.memory import fused_ones, held_bytes, is_view, last_reads, shown_bytes
from tinygrad.solver.auto.program import Op, Program, Side, Value
from tinygrad.solver.auto.traffic import by_elementwise, by_op, is_heavy
from tinygrad.solver.axes import Axes, within_axes
from tinygrad.solver.graph import ask, disagreements_told
from tinygrad.uop import UOp

LESS = 1e-4  # of equal times the one that holds less memory: so many bytes that are moved weigh one that is held


class Model:
  """A graph on a mesh of machines: what its placements take. `held`, of each value, uncut: the bytes that count as
  memory; `touched`: those that elementwise ops write to memory and read of it; `copied`, `shown`: what has a copy, and
  views, that count as memory where they are placed otherwise than what they are of."""

  def __init__(self, sink: UOp, mesh: Mesh, machine: Machine) -> None:
    asked = self.asked = ask(sink, mesh)
    with disagreements_told(asked):
      self.posed = posed(asked)
    self.choices = Choices(mesh, machine)
    leaves = [asked.number[u] for u in asked.leaves]
    self.classes = classes_of(self.posed.problem, leaves, self.posed.merged, self.posed.hints)
    self.fused = fused_ones(asked.order)
    none = [0.0] * len(self.posed.copies)
    held, self.moment = held_bytes(asked, set(leaves), self.fused)
    self.held = held + none
    self.copied, self.shown = set[int](), set[UOp]()
    self.touched = by_elementwise(asked, self.fused) + none
    self.program = self.program_of(self.classes)

  def cuts_of(self, v: int, cut: Cut) -> tuple[Axes, ...]:
    """What cuts the dims of a value for which `cut` was chosen. A hint may say what is no choice, such as an uneven
    cut or a part of an axis: it is kept, and the program takes the value for whole."""
    rank, hint = len(self.posed.problem.shapes[v]), self.posed.hints[self.posed.merged[v]]
    if hint is not None and not self.choices.allows(hint, cut, rank):
      return hint.dims
    return tuple(within_axes(d, self.choices.mesh) for d in self.choices.dims(cut, rank))

  def with_moved(self) -> Model:
    """The same where what is moved for copies and views counts, too, that are held when the most is."""
    order, found = self.asked.order, copy.copy(self)
    place, last = {u: i for i, u in enumerate(order)}, last_reads(order, self.fused)
    found.copied = self.posed.held(place, self.moment)
    found.shown = {u for u, end in last.items() if is_view(u) and place[u] <= self.moment <= end}
    found.program = found.program_of(self.classes)
    return found

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

  def moved(self, members: Sequence[int], value: Value, wants: Sequence[Want]) -> Any:
    """[cuts, wants]: the bytes of what a class of values is moved to for copies and views; where they are that takes
    none. None where nothing of it is held."""
    if not (moved := [v for e in members if (v := self.moved_by(e)) is not None]):
      return None
    nbytes = sum(shown_bytes(self.posed.nodes[v]) for v in moved)
    there = [[cut == want for want, _ in wants] for cut in value.cuts]
    blocks = [self.blocks(want, len(value.shape)) for want, _ in wants]
    return numpy.where(numpy.array(there), 0.0, nbytes / numpy.array(blocks))

  def moved_by(self, e: int) -> int | None:
    """What is held for a copy or a view where it is not placed as that."""
    v, u = self.posed.problem.edges[e].values[0], self.posed.ops[e]
    return v if (v in self.copied if u is None else u in self.shown) else None

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
        memory = self.moved(members, value, list(numbers)) if i == 0 else None
        sides.append(Side(classes.value[v], want, len(members) * table, memory))
    if u is None:  # a copy is where it is moved to
      cuts = values[sides[1].value].cuts
      sides[1].want = numpy.arange(len(ways))
      sides[1].costs = numpy.array([[0.0 if cut == way.factors else numpy.inf for way in ways] for cut in cuts])
    return Op(ways, seconds, sides)
