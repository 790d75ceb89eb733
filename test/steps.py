"""How much the compiler does, in lines of its Python that run: what a walk over a graph takes grows with the nodes that
it visits, whatever the machine. No test measures time."""

from __future__ import annotations

import itertools
import pathlib
import statistics
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import tinygrad

PACKAGE = str(pathlib.Path(tinygrad.__file__).parent)


class TooManySteps(AssertionError):
  pass


class Steps:
  """Counts the lines of `tinygrad/` that run on this thread, every round of a loop anew; beyond `limit` it raises, so
  that what would never end fails. `files`: only those whose path within the package begins with one of these."""

  def __init__(self, limit: int, files: Sequence[str] = ("",)) -> None:
    self.limit, self.count = limit, 0
    self.files = tuple(f"{PACKAGE}/{f}" for f in files)
    self.known: dict[CodeType, bool] = {}
    self.before: Any = None

  def __enter__(self) -> Steps:
    self.before = sys.gettrace()
    sys.settrace(self.called)
    return self

  def __exit__(self, *_: object) -> None:
    sys.settrace(self.before)

  def called(self, frame: FrameType, event: str, arg: object) -> Any:
    code = frame.f_code
    if (ours := self.known.get(code)) is None:  # what is freed, is so whenever that happens: no part of a walk
      ours = self.known[code] = code.co_filename.startswith(self.files) and code.co_name != "_forget"
    return self.line if ours else None

  def line(self, frame: FrameType, event: str, arg: object) -> Any:
    if event == "line":
      self.count += 1
      if self.count > self.limit:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_qualname}"
        raise TooManySteps(f"more than {self.limit} steps; the last in {where}")
    return self.line


def steps(f: Callable[[], object], limit: int = 5_000_000) -> int:
  with Steps(limit) as counted:
    f()
  return counted.count


def growth(f: Callable[[int], object], n: int, limit: int = 5_000_000) -> float:
  """How much more each further n of f takes than the n before, from f(n) to f(5n): 1 where steps are linear in n, 7/5
  where they are quadratic. The median, for a compiler may decide otherwise from some size on; and the least of several
  measurements, for tables that others have filled may be emptied while one is made."""

  def measured() -> float:
    counts = [steps(lambda k=k: f(k * n), limit) for k in (1, 2, 3, 4, 5)]
    more = [max(b - a, 1) for a, b in itertools.pairwise(counts)]
    return statistics.median(b / a for a, b in itertools.pairwise(more))

  found = measured()
  return found if found < 1.1 else min(found, measured(), measured())
