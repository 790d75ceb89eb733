"""The linear program: for each class of values one placement, for each class of ops one way, and what brings values
from where they are to where ops want them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import refuse
from tinygrad.helpers import LazyModule, numpy, size_to_str
from tinygrad.solver.auto.choices import Choices, Cut, Way

highspy = LazyModule("highspy")
CLOSE = 0.01  # so near the least of the relaxation a choice is good enough
MOST_NODES = 500  # of the search for whole placements where the relaxation's are not


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
class Op:
  """A class of ops: how many there are, the values (classes; None: takes no part) of its sources and results."""

  count: int
  values: tuple[int | None, ...]
  sources: int
  ways: list[Way]


@dataclass(slots=True)
class Program:
  """What is to be chosen. `memory`: bytes that a device has for all of it; None: enough."""

  choices: Choices
  values: list[Value]
  ops: list[Op]
  memory: float | None

  def price(self, chosen: Sequence[int], op: Op) -> tuple[float, int]:
    """The seconds of one op of a class where values are placed so, in its best way; and that."""
    best = (float("inf"), 0)
    for w, way in enumerate(op.ways):
      total = way.seconds
      for i, v in enumerate(op.values):
        if v is not None:
          total += self.bring(op, way, i, v, self.values[v].cuts[chosen[v]])
      best = min(best, (total, w))
    return best

  def bring(self, op: Op, way: Way, i: int, v: int, at: Cut) -> float:
    """The seconds of a value's way to the op, or from it."""
    value = self.values[v]
    if i < op.sources:
      return self.choices.seconds(value.shape, value.itemsize, at, way.needs[i])
    cut, over = way.gives[i - op.sources]
    return self.choices.seconds(value.shape, value.itemsize, cut, at, over)

  def total(self, chosen: Sequence[int]) -> float:
    own = sum(v.seconds[c] for v, c in zip(self.values, chosen))
    return own + sum(op.count * self.price(chosen, op)[0] for op in self.ops)

  def held(self, chosen: Sequence[int]) -> float:
    """Bytes of memory on each device."""
    return sum(v.memory[c] for v, c in zip(self.values, chosen))

  def fits(self, chosen: Sequence[int]) -> bool:
    return self.memory is None or self.held(chosen) <= self.memory


@dataclass(slots=True)
class Chosen:
  """A choice for each value, its predicted seconds, and what no choice is below."""

  cuts: list[int]
  seconds: float
  bound: float

  @property
  def gap(self) -> float:
    return (self.seconds - self.bound) / self.seconds if self.seconds > 0 else 0.0


def relaxed(p: Program, enough: float, whole: bool = False) -> tuple[list[list[float]], float]:
  """(how much of each cut each value has, what no choice is below, in seconds): the best mixture of choices; `whole`:
  the best choice, or the best that is found in `MOST_NODES` steps, and no shares where none is. `enough`: seconds of
  some choice, so that what alone takes more need not be told apart."""
  rows, columns = Rows(), Columns()
  x = [[columns.new(seconds) for seconds in v.seconds] for v in p.values]
  for one in x:
    rows.new([(j, 1.0) for j in one], 1.0, 1.0)
  for op in p.ops:
    y = [columns.new(op.count * way.seconds) for way in op.ways]
    rows.new([(j, 1.0) for j in y], 1.0, 1.0)
    for i, v in enumerate(op.values):
      if v is not None:
        link(p, op, i, v, x[v], y, rows, columns)
  if p.memory is not None:
    entries = [(j, m) for v, one in zip(p.values, x) for j, m in zip(one, v.memory) if m]
    scale = max((m for _, m in entries), default=1.0)
    rows.new([(j, m / scale) for j, m in entries], -float("inf"), p.memory / scale)
  found, seconds = minimized(rows, columns, enough, sum(map(len, x)) if whole else 0)
  return [[found[j] for j in one] for one in x] if len(found) else [], seconds


def link(p: Program, op: Op, i: int, v: int, x: Sequence[int], y: Sequence[int], rows: Rows, columns: Columns) -> None:
  """What of a value goes from each of its cuts to each that the ways of an op want, and costs that."""
  wanted: dict[Any, list[int]] = {}
  for w, way in enumerate(op.ways):
    wanted.setdefault(way.needs[i] if i < op.sources else way.gives[i - op.sources], []).append(w)
  value = p.values[v]
  from_: list[list[int]] = [[] for _ in x]
  for members in wanted.values():
    to = []
    for k, cut in enumerate(value.cuts):
      j = columns.new(op.count * p.bring(op, op.ways[members[0]], i, v, cut))
      from_[k].append(j)
      to.append(j)
    rows.new([*((j, 1.0) for j in to), *((y[w], -1.0) for w in members)], 0.0, 0.0)
  for k, js in enumerate(from_):
    rows.new([*((j, 1.0) for j in js), (x[k], -1.0)], 0.0, 0.0)


class Columns:
  """The variables, each at least 0, by their costs."""

  def __init__(self) -> None:
    self.costs: list[float] = []

  def new(self, cost: float) -> int:
    self.costs.append(cost)
    return len(self.costs) - 1


class Rows:
  """The constraints, each a sum of variables within bounds."""

  def __init__(self) -> None:
    self.starts, self.index, self.value = [0], list[int](), list[float]()
    self.low, self.high = list[float](), list[float]()

  def new(self, entries: Sequence[tuple[int, float]], low: float, high: float) -> None:
    self.index += [j for j, _ in entries]
    self.value += [a for _, a in entries]
    self.starts.append(len(self.index))
    self.low.append(low)
    self.high.append(high)


def minimized(rows: Rows, columns: Columns, enough: float, whole: int) -> tuple[Any, float]:
  """The variables and what no solution costs less than. The first `whole` variables are whole numbers; if there are
  such, the solution may be a dearer one, or none, in which case there are no variables."""
  try:
    highspy.Highs  # noqa: B018
  except ModuleNotFoundError:
    raise ModuleNotFoundError("auto: highspy is not installed\n  fix: pip install highspy", name="highspy") from None
  n, m = len(columns.costs), len(rows.low)
  scale = enough or 1.0
  h = highspy.Highs()
  options = {"output_flag": False, "mip_rel_gap": CLOSE * 0.9, "mip_max_nodes": MOST_NODES, "parallel": "off"}
  for name, value in options.items():
    h.setOptionValue(name, value)
  lp = highspy.HighsLp()
  lp.num_col_, lp.num_row_ = n, m
  lp.col_cost_ = numpy.minimum(numpy.array(columns.costs) / scale, 10.0)
  lp.col_lower_, lp.col_upper_ = numpy.zeros(n), numpy.full(n, highspy.kHighsInf)
  lp.row_lower_, lp.row_upper_ = numpy.array(rows.low), numpy.array(rows.high)
  lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
  lp.a_matrix_.start_ = numpy.array(rows.starts, dtype=numpy.int32)
  lp.a_matrix_.index_ = numpy.array(rows.index, dtype=numpy.int32)
  lp.a_matrix_.value_ = numpy.array(rows.value)
  if whole:
    kinds = highspy.HighsVarType
    lp.integrality_ = [kinds.kInteger] * whole + [kinds.kContinuous] * (n - whole)
  h.passModel(lp)
  h.run()
  status, info = h.getModelStatus(), h.getInfo()
  if whole:
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return h.getSolution().col_value if found else [], info.mip_dual_bound * scale
  assert status == highspy.HighsModelStatus.kOptimal, h.modelStatusToString(status)
  return h.getSolution().col_value, info.objective_function_value * scale


def least_time(p: Program) -> Chosen:
  """The placements of the least predicted time: the relaxation, rounded, and mended by changing one value at a time;
  where that may be far from the least (mostly where memory binds), the best that a search for whole placements finds.
  Raises: ShardError where none fits the memory."""
  least = sum(min(v.memory) for v in p.values)
  if p.memory is not None and least > p.memory:
    said = f"auto: no placement fits in {size_to_str(p.memory)} on each of {len(p.choices.mesh)} devices"
    refuse(said, f"memory={math.ceil(least)}  # the least that a placement holds; or more devices")
  smallest = [min(range(len(v.cuts)), key=v.memory.__getitem__) for v in p.values]
  shares, bound = relaxed(p, p.total(smallest))
  chosen = made_whole(p, shares)
  if not p.fits(chosen):  # no change of one value alone has made it fit
    chosen = mended(p, smallest)
  found = Chosen(chosen, p.total(chosen), bound)
  if found.gap > CLOSE:
    shares, whole_bound = relaxed(p, found.seconds, whole=True)
    found.bound = max(bound, whole_bound)
    if shares and p.fits(better := made_whole(p, shares)) and p.total(better) < found.seconds:
      found.cuts, found.seconds = better, p.total(better)
  found.bound = min(found.bound, found.seconds)
  return found


def made_whole(p: Program, shares: Sequence[Sequence[float]]) -> list[int]:
  """Of each value the cut that has most of it, mended."""
  return mended(p, [max(range(len(one)), key=one.__getitem__) for one in shares])


def mended(p: Program, chosen: list[int]) -> list[int]:
  """Changes of one value that save time, or memory where there is too much, until there are none."""
  at: list[list[Op]] = [[] for _ in p.values]
  for op in p.ops:
    for v in {v for v in op.values if v is not None}:
      at[v].append(op)
  better = True
  while better:
    better = False
    for v, value in enumerate(p.values):
      if len(value.cuts) > 1:
        found = min(range(len(value.cuts)), key=lambda k: cost_with(p, chosen, v, k, at[v]))
        if cost_with(p, chosen, v, found, at[v]) < cost_with(p, chosen, v, chosen[v], at[v]):
          chosen[v], better = found, True
  return chosen


def cost_with(p: Program, chosen: list[int], v: int, k: int, ops: Sequence[Op]) -> tuple[float, float]:
  """(bytes too many, seconds) of the ops around a value if it is placed so."""
  before, chosen[v] = chosen[v], k
  seconds = p.values[v].seconds[k] + sum(op.count * p.price(chosen, op)[0] for op in ops)
  over = 0.0 if p.memory is None else max(0.0, p.held(chosen) - p.memory)
  chosen[v] = before
  return over, seconds
