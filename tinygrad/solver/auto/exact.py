"""The whole numbers of a small program in which values are kept or computed again: each as a choice of its own, the
limit of memory as a constraint. No mixture of two choices is one, so what HiGHS proves of it is above the line between
them (`hull.py`) where there are few values."""

from __future__ import annotations

from collections.abc import Iterator

from tinygrad.helpers import numpy
from tinygrad.solver.auto.choices import Way
from tinygrad.solver.auto.classes import Classes, numbered
from tinygrad.solver.auto.model import Model
from tinygrad.solver.auto.program import Op, Program, Side, Value
from tinygrad.solver.auto.trades import Items, Trades


def each_alone(model: Model) -> Classes:
  """Nothing is decided as one but what has to be placed alike: equal layers may differ, as a limit may ask."""
  value, values = numbered(model.posed.merged)
  edges = range(len(model.posed.problem.edges))
  return Classes(value, [*edges], values, [[e] for e in edges])


def in_whole_numbers(t: Trades, memory: float) -> Program:
  """The program of `t` with a further value for each item that is kept or had again, which says which of the two."""
  values = [*t.base.values, *(alternatives(2) for _ in t.summed)]
  ops = [t.with_sums(i, op) for i, op in enumerate(t.base.ops)]
  ops += [x.kept(t.state(k)) for k, x in enumerate(t.summed)]
  for op in items_of(t, len(values)):
    values.append(alternatives(len(op.sides[0].costs)))
    ops.append(op)
  return Program(values, ops, memory)


def alternatives(n: int) -> Value:
  return Value((), 0, [(k,) for k in range(n)], [0.0] * n, [0.0] * n)


def items_of(t: Trades, first: int) -> Iterator[Op]:
  """Of each item an op whose first value, numbered from `first`, is its alternative."""
  for c, items in t.of_value.items():
    for j in range(items.seconds.shape[1]):
      yield item_at(items, j, first, Side(c, numpy.zeros(1, dtype=int), numpy.zeros((items.seconds.shape[2], 1))))
      first += 1
  for i, items in t.of_copy.items():
    source, copy = t.base.ops[i].sides
    for j in range(items.seconds.shape[1]):
      made = item_at(items, j, first, Side(source.value, numpy.arange(len(copy.want)), source.of_ways(slice(None))))
      there = numpy.where(numpy.isfinite(copy.costs), 0.0, numpy.inf)
      made.sides.append(Side(copy.value, numpy.tile(copy.want, len(items.seconds)), there))
      yield made
      first += 1


def item_at(items: Items, j: int, state: int, of: Side) -> Op:
  """The j-th of a class: each alternative with each way of what it is an item of."""
  count, ways = len(items.seconds), len(of.want)
  tables = [table[:, j].reshape(count, -1, ways) for table in (items.seconds, items.memory)]
  seconds, memory = (numpy.concatenate([*table], axis=1) for table in tables)
  only = numpy.where(numpy.eye(count) > 0, 0.0, numpy.inf)
  is_alternative = Side(state, numpy.repeat(numpy.arange(count), ways), only)
  sides = [is_alternative, Side(of.value, numpy.arange(count * ways), seconds, memory)]
  return Op([Way((k,), (), 0.0) for k in range(count * ways)], numpy.zeros(count * ways), sides)
