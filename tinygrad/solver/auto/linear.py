"""The program's relaxation, in which a value may be at shares of placements, as a linear program; HiGHS solves it, and
searches for whole placements where the shares are none."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinygrad.helpers import LazyModule, numpy

if TYPE_CHECKING:
  from tinygrad.solver.auto.program import Part, Priced, Program, Side

highspy = LazyModule("highspy")
CLOSE = 0.01  # so near the least of the relaxation a choice is good enough
MOST_NODES = 500  # of the search for whole placements where the relaxation's are not
MOST_COST = 10.0  # of a variable, times what a known choice takes


class Relaxation:
  """The best mixture of choices, where a byte of memory costs a `weight` of seconds; each is looked for from the one
  before. `enough`: some choice of `p`, so that what alone takes more need not be told apart."""

  def __init__(self, p: Priced, enough: Sequence[int]) -> None:
    columns, rows, self.cuts, self.ways = variables(p.priced(0.0))
    self.p, self.enough = p, enough
    self.solver = solver_of(rows, columns, {})

  def at(self, weight: float) -> tuple[list[list[float]], float]:
    """(how much of each cut each value has, the seconds and weighted bytes that no choice is below)."""
    priced, h = self.p.priced(weight), self.solver
    scale = self.scale = priced.total(self.enough) or 1.0
    costs = numpy.minimum(costs_in_order(priced) / scale, MOST_COST)
    h.changeColsCost(len(costs), numpy.arange(len(costs), dtype=numpy.int32), costs)
    h.run()
    status, info = h.getModelStatus(), h.getInfo()
    assert status == highspy.HighsModelStatus.kOptimal, h.modelStatusToString(status)
    found = h.getSolution().col_value
    return [[found[j] for j in one] for one in self.cuts], info.objective_function_value * scale

  def needed(self, spare: float) -> Part:
    """The cuts and ways with which the least that was found last is no more than `spare` higher."""
    more = numpy.array(self.solver.getSolution().col_dual) * self.scale
    low = [[[k for k, j in enumerate(one) if more[j] <= spare] for one in each] for each in (self.cuts, self.ways)]
    return low[0], low[1]


def whole_choice(p: Program, known: Sequence[int]) -> tuple[list[int], float]:
  """(the best choice that fits the memory, or the best that is found in `MOST_NODES` steps; what no choice is below).
  `known`: one that fits."""
  columns, rows, cuts, _ = variables(p)
  if p.memory is not None:
    entries = [(j, m) for j, m in enumerate(columns.memory) if m]
    scale = max((m for _, m in entries), default=1.0)
    rows.new([(j, m / scale) for j, m in entries], -float("inf"), p.memory / scale)
  options = {"mip_rel_gap": CLOSE * 0.9, "mip_max_nodes": MOST_NODES, "parallel": "off"}
  h = solver_of(rows, columns, options, whole=sum(map(len, cuts)))
  scale = p.total(known) or 1.0
  costs = numpy.minimum(numpy.array(columns.costs) / scale, MOST_COST)
  h.changeColsCost(len(costs), numpy.arange(len(costs), dtype=numpy.int32), costs)
  start = {j: float(k == chosen) for one, chosen in zip(cuts, known) for k, j in enumerate(one)}
  h.setSolution(len(start), numpy.array(list(start), dtype=numpy.int32), numpy.array(list(start.values())))
  h.run()
  found = h.getSolution().col_value
  return [max(range(len(one)), key=lambda k: found[one[k]]) for one in cuts], h.getInfo().mip_dual_bound * scale


def variables(p: Program) -> tuple[Columns, Rows, list[list[int]], list[list[int]]]:
  """The variables, the constraints but for memory, and the variables of each value's cuts, which come first, and of
  each op's ways."""
  rows, columns, ways = Rows(), Columns(), list[list[int]]()
  x = [[columns.new(seconds, nbytes) for seconds, nbytes in zip(v.seconds, v.memory)] for v in p.values]
  for one in x:
    rows.new([(j, 1.0) for j in one], 1.0, 1.0)
  for op in p.ops:
    y = [columns.new(seconds) for seconds in op.seconds]
    ways.append(y)
    rows.new([(j, 1.0) for j in y], 1.0, 1.0)
    for side in op.sides:
      link(side, x[side.value], y, rows, columns)
  return columns, rows, x, ways


def costs_in_order(p: Program) -> Any:
  """What the variables cost, in their order."""
  found = [v.seconds for v in p.values]
  for op in p.ops:
    found += [op.seconds, *(side.costs[numpy.isfinite(side.costs)] for side in op.sides)]
  return numpy.concatenate(found)


def link(side: Side, x: Sequence[int], y: Sequence[int], rows: Rows, columns: Columns) -> None:
  """What of a value goes from each of its cuts to each that the ways of an op want, and costs that."""
  memory = numpy.zeros_like(side.costs) if side.memory is None else side.memory
  moves = [
    {j: columns.new(cost, nbytes) for j, (cost, nbytes) in enumerate(zip(row, held)) if cost < float("inf")}
    for row, held in zip(side.costs.tolist(), memory.tolist())
  ]
  for j in range(side.costs.shape[1]):
    ways = [(y[w], -1.0) for w, want in enumerate(side.want) if want == j]
    rows.new([*((row[j], 1.0) for row in moves if j in row), *ways], 0.0, 0.0)
  for row, k in zip(moves, x):
    rows.new([*((m, 1.0) for m in row.values()), (k, -1.0)], 0.0, 0.0)


class Columns:
  """The variables, each at least 0, by their costs, and the bytes that count as memory."""

  def __init__(self) -> None:
    self.costs, self.memory = list[float](), list[float]()

  def new(self, cost: float, nbytes: float = 0.0) -> int:
    self.costs.append(cost)
    self.memory.append(nbytes)
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


def quiet_solver() -> Any:
  """A solver. The first of a process prints its name and licence, from C, whatever its options say."""
  sys.stdout.flush()
  kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(nothing, 1)
    return highspy.Highs()
  finally:
    os.dup2(kept, 1)
    os.close(kept)
    os.close(nothing)


def solver_of(rows: Rows, columns: Columns, options: Mapping[str, Any], whole: int = 0) -> Any:
  """A solver of a linear program; the first `whole` variables are whole numbers."""
  try:
    highspy.Highs  # noqa: B018
  except ModuleNotFoundError:
    raise ModuleNotFoundError("auto: highspy is not installed\n  fix: pip install highspy", name="highspy") from None
  n, m = len(columns.costs), len(rows.low)
  h = quiet_solver()
  for name, value in {"output_flag": False, **options}.items():
    h.setOptionValue(name, value)
  lp = highspy.HighsLp()
  lp.num_col_, lp.num_row_ = n, m
  lp.col_cost_, lp.col_lower_ = numpy.zeros(n), numpy.zeros(n)
  lp.col_upper_ = numpy.full(n, highspy.kHighsInf)
  lp.row_lower_, lp.row_upper_ = numpy.array(rows.low), numpy.array(rows.high)
  lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
  lp.a_matrix_.start_ = numpy.array(rows.starts, dtype=numpy.int32)
  lp.a_matrix_.index_ = numpy.array(rows.index, dtype=numpy.int32)
  lp.a_matrix_.value_ = numpy.array(rows.value)
  if whole:
    kinds = highspy.HighsVarType
    lp.integrality_ = [kinds.kInteger] * whole + [kinds.kContinuous] * (n - whole)
  h.passModel(lp)
  return h
