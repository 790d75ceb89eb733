"""Choices by their seconds and bytes: the fastest ones where a byte of memory costs so many seconds, for one price
after another. They lie on the lower hull of all choices (Everett, Generalized Lagrange Multiplier Method, 1963);
between two neighbours of it lies what a limit of memory allows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad.solver.auto.bounds import LOOKED, MOST_ROUNDS, Messages
from tinygrad.solver.auto.linear import Relaxation
from tinygrad.solver.auto.program import Chosen, Part, Priced, Program, mended

MOST_COLUMNS = 200_000  # of a linear program for all choices; in a larger one these are looked for by bounds
MOST_PRICES = 20  # of a byte, for one limit
STEP, MOST_STEPS = 4.0, 8  # of the price of a byte, until what is chosen fits
SAME = 1e-6  # of the seconds: so little better a choice at another price is none


@dataclass(frozen=True, slots=True)
class Point:
  """A choice, its seconds, and the bytes that it holds, as they are where a byte costs `weight`."""

  cuts: list[int]
  seconds: float
  held: float
  weight: float

  def priced(self, weight: float) -> float:
    return self.seconds + weight * self.held


class Hull:
  """The hull of a program, as far as it is known. `lines`: of each price of a byte, what no choice is below, its bytes
  at that price."""

  same = SAME

  def __init__(self, p: Priced, by_messages: bool | None = None) -> None:
    self.p = p
    large = p.columns() > MOST_COLUMNS if by_messages is None else by_messages
    self.messages = Messages(self.p) if large else None
    self.relaxation = None if large else Relaxation(self.p, self.p.smallest())
    self.points: list[Point] = []
    self.lines: dict[float, float] = {}

  def at(self, weight: float) -> Point:
    """The choice of the least seconds, where a byte costs `weight` of them."""
    if self.relaxation is not None:
      shares, least = self.relaxation.at(weight)
      cuts = [max(range(len(one)), key=one.__getitem__) for one in shares]
    else:
      assert self.messages is not None
      self.messages.price(weight)
      self.messages.run(2 * LOOKED if self.lines else MOST_ROUNDS)
      cuts, least = self.messages.decoded(), self.messages.bound()
    self.lines[weight] = max(least, self.lines.get(weight, least))
    return self.noted(mended(self.p.priced(weight), cuts), weight)

  def noted(self, cuts: Sequence[int], weight: float = 0.0) -> Point:
    """A choice as one of the points."""
    point = Point(list(cuts), *self.p.point(cuts, weight), weight)
    self.points.append(point)
    return point

  def bound(self, memory: float | None) -> float:
    """Seconds that no choice that fits is below."""
    if memory is None:
      return self.lines[0.0]
    return max(least - weight * memory for weight, least in self.lines.items())

  def needed(self, memory: float | None, seconds: float) -> Part:
    """The cuts and ways that choices which fit, and take no more than so many seconds, may have."""
    weight = 0.0 if memory is None else max(self.lines, key=lambda weight: self.lines[weight] - weight * memory)
    self.at(weight)
    spare = seconds + weight * (memory or 0.0) - self.lines[weight]
    return (self.relaxation or self.messages).needed(max(spare, seconds * SAME))  # type: ignore[union-attr]

  def chosen(self, memory: float | None) -> Chosen:
    """The fastest choice that is known to fit, and, where it is not the fastest of all, its neighbour of the hull that
    does not. It takes forever where none does."""
    free = self.points[0] if self.points else self.at(0.0)
    if memory is None or free.held <= memory:
      return Chosen(free.cuts, free.seconds, min(free.seconds, self.bound(None)))
    if not self.fits(memory):
      return Chosen(free.cuts, math.inf, self.bound(memory))
    for _ in range(MOST_PRICES):
      over, under = self.edge(memory)
      weight = (under.seconds - over.seconds) / (over.held - under.held)
      if weight <= 0.0 or weight in self.lines:
        break
      if self.at(weight).priced(weight) >= over.priced(weight) * (1 - self.same):
        break
    over, under = self.edge(memory)
    fastest = min((point for point in self.points if point.held <= memory), key=lambda point: point.seconds)
    return Chosen(fastest.cuts, fastest.seconds, min(fastest.seconds, self.bound(memory)), (over.cuts, under.cuts))

  def fits(self, memory: float) -> bool:
    """Whether a choice is known to fit, or found from that which holds little, or by higher and higher prices."""
    free = self.points[0] if self.points else self.at(0.0)
    if isinstance(self.p, Program) and not any(point.held <= memory for point in self.points):
      self.noted(mended(Program(self.p.values, self.p.ops, memory), self.p.smallest()))
    steps = (self.at(STEP**i * free.seconds / free.held) for i in range(MOST_STEPS))
    return any(point.held <= memory for point in itertools.chain(self.points, steps))

  def edge(self, memory: float) -> tuple[Point, Point]:
    """Two neighbours of the hull, of what does not fit and what does: those between which the line is lowest there."""

    def between(pair: tuple[Point, Point]) -> float:
      over, under = pair
      share = (memory - under.held) / (over.held - under.held)
      return under.seconds + share * (over.seconds - under.seconds)

    over, under = ([p for p in self.points if (p.held <= memory) is fits] for fits in (False, True))
    return min(itertools.product(over, under), key=between)
