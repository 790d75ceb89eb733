"""The linear program: for each class of values one placement, for each class of ops one way, and what brings values
from where they are to where ops want them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tinygrad.helpers import numpy
from tinygrad.solver.auto.choices import Cut, Way


@dataclass(slots=True)
class Value:
  """A class of values: shape, bytes of an element, the cuts to choose from; and for each cut the bytes that count as
  memory and the seconds of elementwise ops on it, of all members together."""

  shape: tuple[int, ...]
  itemsize: int
  cuts: list[Cut]
  memory: list[float]
  seconds: list[float]


@dataclass(slots=True)
class Side:
  """One of the values of a class of ops. `want`: of each way of the op the number of what it wants of the value;
  `costs` [cuts, wants]: seconds from each cut of the value to each of those, of all ops of the class together; infinite
  where it may not be moved so. `memory`, likewise: the bytes that count for what it is moved to; None: none do."""

  value: int
  want: Any
  costs: Any
  memory: Any = None

  def of_ways(self, cut: Any) -> Any:
    """Of each way what the value costs at a cut, or at several: [cuts, ways]."""
    return self.costs[cut][..., self.want]


@dataclass(slots=True)
class Op:
  """A class of ops: its ways, the seconds of each (of all together), and its values that take part."""

  ways: list[Way]
  seconds: Any
  sides: list[Side]

  def priced(self, chosen: Sequence[int]) -> Any:
    """The seconds of each way where values are placed so."""
    return self.seconds + sum(side.of_ways(chosen[side.value]) for side in self.sides)

  def price(self, chosen: Sequence[int]) -> float:
    """The seconds of the best way."""
    return float(self.priced(chosen).min())

  def best(self, chosen: Sequence[int]) -> int:
    """The number of the best way."""
    return int(self.priced(chosen).argmin())

  def held(self, chosen: Sequence[int]) -> float:
    """Bytes that count for what values are moved to, by the best way."""
    sides = [side for side in self.sides if side.memory is not None]
    best = self.best(chosen) if sides else 0
    return float(sum(side.memory[chosen[side.value], side.want[best]] for side in sides))

  def at_price(self, weight: float) -> Op:
    """The same where a byte of what values are moved to costs so much."""
    if all(side.memory is None for side in self.sides):
      return self
    sides = [s if s.memory is None else replace(s, costs=s.costs + weight * s.memory, memory=None) for s in self.sides]
    return Op(self.ways, self.seconds, sides)

  def prices(self, chosen: Sequence[int], v: int) -> Any:
    """The seconds for each cut of a value, the others placed so."""
    fixed = sum((side.of_ways(chosen[side.value]) for side in self.sides if side.value != v), self.seconds)
    return sum((side.of_ways(slice(None)) for side in self.sides if side.value == v), fixed).min(axis=1)


@dataclass(slots=True)
class Program:
  """What is to be chosen. `memory`: bytes that a device has for all of it; None: enough."""

  values: list[Value]
  ops: list[Op]
  memory: float | None

  def total(self, chosen: Sequence[int]) -> float:
    own = sum(v.seconds[c] for v, c in zip(self.values, chosen))
    return own + sum(op.price(chosen) for op in self.ops)

  def held(self, chosen: Sequence[int]) -> float:
    """Bytes of memory on each device."""
    return sum(v.memory[c] for v, c in zip(self.values, chosen)) + sum(op.held(chosen) for op in self.ops)

  def least(self) -> float:
    """Bytes below which no choice is."""
    return sum(min(v.memory) for v in self.values)

  def point(self, chosen: Sequence[int], weight: float) -> tuple[float, float]:
    """The seconds of a choice, and the bytes that it holds; at any price."""
    return self.total(chosen), self.held(chosen)

  def smallest(self) -> list[int]:
    """The cut of each value that holds the least memory."""
    return [min(range(len(v.cuts)), key=v.memory.__getitem__) for v in self.values]

  def around(self) -> list[list[Op]]:
    """The ops of each value."""
    found: list[list[Op]] = [[] for _ in self.values]
    for op in self.ops:
      for v in dict.fromkeys(side.value for side in op.sides):
        found[v].append(op)
    return found

  def columns(self) -> int:
    """Variables of the linear program."""
    return sum(sum(int(numpy.isfinite(side.costs).sum()) for side in op.sides) + len(op.ways) for op in self.ops)

  def excess(self, chosen: Sequence[int]) -> float:
    """Bytes beyond what a device has."""
    return -math.inf if self.memory is None else self.held(chosen) - self.memory

  def fits(self, chosen: Sequence[int]) -> bool:
    return self.excess(chosen) <= 0

  def priced(self, weight: float) -> Program:
    """The same without a limit of memory, of which each byte costs `weight` seconds."""
    values = [replace(v, seconds=[s + weight * m for s, m in zip(v.seconds, v.memory)]) for v in self.values]
    return Program(values, [op.at_price(weight) for op in self.ops], None)

  def kept(self, cuts: Sequence[Sequence[int]], ways: Sequence[Sequence[int]] | None = None) -> Program:
    """The same with these cuts of each value, and these ways of each op, alone."""
    values = []
    for v, keep in zip(self.values, cuts, strict=True):
      memory, seconds = [v.memory[k] for k in keep], [v.seconds[k] for k in keep]
      values.append(Value(v.shape, v.itemsize, [v.cuts[k] for k in keep], memory, seconds))
    ops = []
    for i, op in enumerate(self.ops):
      keep = range(len(op.ways)) if ways is None else ways[i]
      sides = []
      for side in op.sides:
        wants, want = numpy.unique(side.want[list(keep)], return_inverse=True)
        there = numpy.ix_(cuts[side.value], wants)
        sides.append(Side(side.value, want, side.costs[there], None if side.memory is None else side.memory[there]))
      ops.append(Op([op.ways[w] for w in keep], op.seconds[list(keep)], sides))
    return Program(values, ops, self.memory)


class Priced(Protocol):
  """What is to be chosen, where a byte of memory has a price in seconds."""

  def priced(self, weight: float) -> Program:
    """All that choices take, as seconds of a program without a limit of memory."""

  def point(self, chosen: Sequence[int], weight: float) -> tuple[float, float]:
    """The seconds of a choice, and the bytes that it holds, where that is what a byte costs."""

  def smallest(self) -> list[int]:
    """A choice that holds little."""

  def columns(self) -> int:
    """Variables of the linear program."""


Part = tuple[list[list[int]], list[list[int]]]  # of each value some cuts, of each op some ways
Edge = tuple[list[int], list[int]]  # two choices between which a limit of memory is; the first does not fit


@dataclass(slots=True)
class Chosen:
  """A choice for each value, its predicted seconds, and what no choice is below. `edge`: where memory binds, those
  of which mixtures would be the fastest."""

  cuts: list[int]
  seconds: float
  bound: float
  edge: Edge | None = None

  @property
  def gap(self) -> float:
    return (self.seconds - self.bound) / self.seconds if self.seconds > 0 else 0.0


def mended(p: Program, chosen: list[int]) -> list[int]:
  """Changes of one value that save time, or memory where there is too much, until there are none."""
  around, better, excess = p.around(), True, p.excess(chosen)
  while better:
    better = False
    for v, value in enumerate(p.values):
      if len(value.cuts) > 1:
        costs = costs_of(p, chosen, v, around[v], excess)
        found = min(range(len(costs)), key=costs.__getitem__)
        if costs[found] < costs[chosen[v]]:
          chosen[v], better = found, True
          excess = p.excess(chosen)
  return chosen


def costs_of(p: Program, chosen: Sequence[int], v: int, ops: Sequence[Op], excess: float) -> list[tuple[float, float]]:
  """(bytes too many, seconds) of the ops around a value for each of its cuts; `excess`: of what is chosen."""
  value = p.values[v]
  seconds = sum((op.prices(chosen, v) for op in ops), numpy.array(value.seconds))
  over = [0.0] * len(value.cuts)
  if p.memory is not None:
    ways = [[*chosen[:v], k, *chosen[v + 1 :]] for k in range(len(value.cuts))]
    moved = [sum(op.held(way) for op in ops) for way in ways]
    others = excess - value.memory[chosen[v]] - moved[chosen[v]]
    over = [max(0.0, others + m + n) for m, n in zip(value.memory, moved)]
  return list(zip(over, seconds.tolist()))
