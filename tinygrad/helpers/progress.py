"""Progress bars: the package tqdm's in a terminal, sparse lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tinygrad.helpers.lazy import LazyModule

if TYPE_CHECKING:
  from tinygrad.helpers import logbar
else:
  logbar = LazyModule("tinygrad.helpers.logbar")
NOTEBOOK_PAUSE = 0.2  # seconds between two lines: each is a message to the page
progress: Any = LazyModule("tqdm")


class tqdm:
  """The progress bar of the package tqdm on standard error: `for x in tqdm(xs): ...`, or
  `with tqdm(total=n) as bar: ... bar.update(k)`. It is drawn at most `rate` times a second; where standard error is no
  terminal, it is a line for every tenth of the work (`logbar.py`).
  """

  def __new__(
    cls,
    iterable: Iterable[Any] | None = None,
    desc: str = "",
    disable: bool | None = False,
    unit: str = "it",
    unit_scale: Any = False,
    total: float | None = None,
    rate: int = 100,
    **kwargs: Any,
  ) -> Any:
    settings = {"disable": bool(disable), "unit": unit, "unit_scale": unit_scale, "total": total, **kwargs}
    file = kwargs.get("file") or sys.stderr
    if type(file).__module__.startswith("ipykernel"):  # a notebook: a line that is written over, as in a terminal
      return progress.tqdm(iterable, desc, mininterval=NOTEBOOK_PAUSE, ncols=80, **settings)
    if not getattr(file, "isatty", bool)():
      return logbar.LogBar(iterable, desc, **settings)
    return progress.tqdm(iterable, desc, mininterval=1 / rate, **settings)

  @staticmethod
  def write(s: str) -> None:
    """A line above the bar."""
    progress.tqdm.write(s, file=sys.stderr)


def trange(n: int, **kwargs: Any) -> Any:
  """`tqdm(range(n))`."""
  return tqdm(range(n), **kwargs)
