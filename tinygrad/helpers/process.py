"""What a process has worked out and keeps: one object, which a test can make anew."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 1 << 17  # results of one function that are kept


class Process:
  """The tables of decisions, schedules and programs that modules fill for as long as the process lives. Everything in
  them follows from its key, so that without them the same is worked out again."""

  def __init__(self) -> None:
    self._tables: list[dict[Any, Any]] = []
    self._forgets: list[Callable[[], None]] = []

  def table(self) -> dict[Any, Any]:
    """A new table, for the module that asks."""
    self._tables.append({})
    return self._tables[-1]

  def cached(self, f: Callable[..., T]) -> functools._lru_cache_wrapper[T]:
    """`f` with its last results kept, by its arguments."""
    kept = functools.lru_cache(MOST)(f)
    self._forgets.append(kept.cache_clear)
    return kept

  def forget(self) -> None:
    """Empties all tables."""
    for table in self._tables:
      table.clear()
    for forget in self._forgets:
      forget()

  def drop(self, values: Iterable[Any]) -> None:
    """Takes these very values out of the tables, with what they are kept by."""
    dropped = {id(value) for value in values}
    for table in self._tables:
      for key in [key for key, value in table.copy().items() if id(value) in dropped]:  # other threads add to it
        table.pop(key, None)

  @contextlib.contextmanager
  def anew(self) -> Iterator[None]:
    """Within, nothing is known; afterwards what was known before."""
    known = [dict(table) for table in self._tables]
    self.forget()
    try:
      yield
    finally:
      self.forget()
      for table, before in zip(self._tables, known):  # of modules loaded within, the tables come after these
        table.update(before)


PROCESS = Process()
