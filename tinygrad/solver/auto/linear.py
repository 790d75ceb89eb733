"""The program's relaxation, in which a value may be at shares of placements, as a linear program; HiGHS solves it, and
searches for whole placements where the shares are none."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinygrad.helpers import LazyModule, numpy

if TYPE_CHECKING:
  from tinygrad.solver.auto.program import Program, Side

highspy = LazyModule("highspy")
CLOSE = 0.01  # so near the least of the relaxation a choice is good enough
MOST_NODES = 500  # of the search for whole placements where the relaxation's are not


def relaxed(p: Program, enough: float, whole: bool = False) -> tuple[list[list[float]], float]:
  """(how much of each cut each value has, what no choice is below, in seconds): the best mixture of choices; `whole`:
  the best choice, or the best that is found in `MOST_NODES` steps, and no shares where none is. `enough`: seconds of
  some choice, so that what alone takes more need not be told apart."""
  rows, columns = Rows(), Columns()
  x = [[columns.new(seconds) for seconds in v.seconds] for v in p.values]
  for one in x:
    rows.new([(j, 1.0) for j in one], 1.0, 1.0)
  for op in p.ops:
    y = [columns.new(seconds) for seconds in op.seconds]
    rows.new([(j, 1.0) for j in y], 1.0, 1.0)
    for side in op.sides:
      link(side, x[side.value], y, rows, columns)
  if p.memory is not None:
    entries = [(j, m) for v, one in zip(p.values, x) for j, m in zip(one, v.memory) if m]
    scale = max((m for _, m in entries), default=1.0)
    rows.new([(j, m / scale) for j, m in entries], -float("inf"), p.memory / scale)
  found, seconds = minimized(rows, columns, enough, sum(map(len, x)) if whole else 0)
  return [[found[j] for j in one] for one in x] if len(found) else [], seconds


def link(side: Side, x: Sequence[int], y: Sequence[int], rows: Rows, columns: Columns) -> None:
  """What of a value goes from each of its cuts to each that the ways of an op want, and costs that."""
  moves = [{j: columns.new(cost) for j, cost in enumerate(row) if cost < float("inf")} for row in side.costs.tolist()]
  for j in range(side.costs.shape[1]):
    ways = [(y[w], -1.0) for w, want in enumerate(side.want) if want == j]
    rows.new([*((row[j], 1.0) for row in moves if j in row), *ways], 0.0, 0.0)
  for row, k in zip(moves, x):
    rows.new([*((m, 1.0) for m in row.values()), (k, -1.0)], 0.0, 0.0)


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


def minimized(rows: Rows, columns: Columns, enough: float, whole: int) -> tuple[Any, float]:
  """The variables and what no solution costs less than. The first `whole` variables are whole numbers; if there are
  such, the solution may be a dearer one, or none, in which case there are no variables."""
  try:
    highspy.Highs  # noqa: B018
  except ModuleNotFoundError:
    raise ModuleNotFoundError("auto: highspy is not installed\n  fix: pip install highspy", name="highspy") from None
  n, m = len(columns.costs), len(rows.low)
  scale = enough or 1.0
  h = quiet_solver()
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
