"""Lower bounds by messages, where the linear program would be large: sequential reweighted message passing between
values and ops (Kolmogorov, A New Look at Reweighted Message Passing, PAMI 2015). It climbs the relaxation's dual: what
can be no part of a choice better than one that is known is left out, and a linear program decides among the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tinygrad.helpers import numpy
from tinygrad.solver.auto.program import Op, Part, Priced

MOST_ROUNDS = 200  # of messages, at most
LOOKED = 10  # after so many rounds the bound is computed; they end where it has grown by less than
GROWS = 1e-5  # of itself


class Star:
  """An op and messages from it to its values: what of its cost is counted there, for each cut of the value. `best`: of
  each side, for each want, the least that is left there."""

  def __init__(self, op: Op) -> None:
    self.op = op
    self.messages = [numpy.zeros(side.costs.shape[0]) for side in op.sides]
    self.best = [self.least(i) for i in range(len(op.sides))]

  def price(self, op: Op) -> None:
    """The same op at other costs."""
    self.op = op
    self.best = [self.least(i) for i in range(len(op.sides))]

  def least(self, i: int) -> Any:
    return (self.op.sides[i].costs - self.messages[i][:, None]).min(axis=0)

  def give(self, i: int, seconds: Any) -> None:
    """Counts more of the cost at the i-th value."""
    self.messages[i] = self.messages[i] + seconds
    self.best[i] = self.least(i)

  def ways(self, but: int | None = None, chosen: Sequence[int] = (), decided: Collection[int] = ()) -> Any:
    """What is left of each way's cost, at all sides or all but one; of values that are decided, at their cut."""
    left = self.op.seconds
    for i, (side, best) in enumerate(zip(self.op.sides, self.best)):
      if i != but:
        if side.value in decided:
          k = chosen[side.value]
          best = side.costs[k] - self.messages[i][k]
        left = left + best[side.want]
    return left

  def at(self, i: int, chosen: Sequence[int] = (), decided: Collection[int] = ()) -> Any:
    """What is left of the cost for each cut of the i-th value."""
    side = self.op.sides[i]
    wanted = numpy.full(side.costs.shape[1], numpy.inf)
    numpy.minimum.at(wanted, side.want, self.ways(i, chosen, decided))
    return (side.costs + wanted).min(axis=1) - self.messages[i]


class Messages:
  """Messages between the values and the ops of a program, where a byte of memory costs so many seconds."""

  def __init__(self, p: Priced) -> None:
    self.priced, priced = p, p.priced(0.0)
    self.stars = [Star(op) for op in priced.ops]
    self.around: list[list[tuple[Star, int]]] = [[] for _ in priced.values]
    for star in self.stars:
      for i, side in enumerate(star.op.sides):
        self.around[side.value].append((star, i))
    self.order = list(dict.fromkeys(side.value for star in self.stars for side in star.op.sides))
    place = {v: i for i, v in enumerate(self.order)}
    self.after = {
      v: [(s, i) for s, i in self.around[v] if any(place[side.value] > place[v] for side in s.op.sides)]
      for v in self.order
    }
    self.before = {
      v: [(s, i) for s, i in self.around[v] if any(place[side.value] < place[v] for side in s.op.sides)]
      for v in self.order
    }
    self.seconds = [numpy.array(v.seconds) for v in priced.values]

  def price(self, weight: float) -> None:
    """Another price of a byte; the messages stay."""
    p = self.priced.priced(weight)
    self.seconds = [numpy.array(v.seconds) for v in p.values]
    for star, op in zip(self.stars, p.ops, strict=True):
      star.price(op)

  def at(self, v: int) -> Any:
    """What each cut of a value costs, with what ops count there."""
    return self.seconds[v] + sum(star.messages[i] for star, i in self.around[v])

  def round(self) -> None:
    """Each value, one after the other, takes what is left of the costs of its ops, and shares all it has among those
    that have values after it; then the same backward."""
    for order, onward in ((self.order, self.after), (self.order[::-1], self.before)):
      for v in order:
        for star, i in self.around[v]:
          star.give(i, star.at(i))
        if onward[v]:
          share = self.at(v) / max(len(self.after[v]), len(self.before[v]))
          for star, i in onward[v]:
            star.give(i, share.min() - share)

  def run(self, rounds: int = MOST_ROUNDS) -> None:
    """Rounds, until the bound grows no more."""
    bound = self.bound()
    for _ in range(rounds // LOOKED):
      for _ in range(LOOKED):
        self.round()
      before, bound = bound, self.bound()
      if bound - before < GROWS * abs(bound):
        break

  def bound(self) -> float:
    """Seconds, and weighted bytes, that no choice is below."""
    ends = sum(float(self.at(v).min()) for v in range(len(self.seconds)))
    return ends + sum(float(star.ways().min()) for star in self.stars)

  def more(self) -> tuple[list[Any], list[Any]]:
    """Of each value's cuts, and of each op's ways, how far the bound is higher with them, at least."""
    cuts = []
    for v in range(len(self.seconds)):
      parts = [self.at(v), *(star.at(i) for star, i in self.around[v])]
      cuts.append(sum(part - part.min() for part in parts))
    ways = [star.ways() for star in self.stars]
    return cuts, [left - left.min() for left in ways]

  def decoded(self) -> list[int]:
    """A choice: of one value after the other the best cut, where those before it are decided."""
    chosen = [0] * len(self.seconds)
    decided: set[int] = set()
    for v in self.order:
      costs = self.at(v) + sum(star.at(i, chosen, decided) for star, i in self.around[v])
      chosen[v] = int(costs.argmin())
      decided.add(v)
    return chosen

  def needed(self, spare: float) -> Part:
    """The cuts and ways with which the bound is no more than `spare` higher; of each at least one."""
    cuts, ways = self.more()
    kept = [[[k for k, m in enumerate(one) if m <= max(spare, one.min())] for one in each] for each in (cuts, ways)]
    return kept[0], kept[1]
