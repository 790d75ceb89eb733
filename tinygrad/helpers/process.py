"""What a process has worked out and keeps: one object, which a test can make anew."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 1 << 17  # results of one function, entries of one table that are kept
KEPT_KERNELS = 1 << 13  # kernels that are kept, in each of the tables that have something for each: some 40 KB for one


def counts_once(value: Any) -> int:
  return 1


class Table(dict[Any, Any]):
  """A dict that holds values of at most `most` in size together, and forgets the oldest ones beyond that: so a process
  that meets ever new shapes and numbers does not grow without end."""

  def __init__(self, most: int = MOST, size: Callable[[Any], int] = counts_once) -> None:
    super().__init__()
    self.most, self.size = most, size
    self.held = 0  # at least what there is: what is taken out still counts

  def __setitem__(self, key: Any, value: Any) -> None:
    self.held += self.size(value)
    if self.held > self.most:
      self.make_room(key, self.size(value))
    super().__setitem__(key, value)

  def make_room(self, new: Any, size: int) -> None:
    """Counts anew. If it is too much, an eighth more goes than has to: what counting takes is shared by many."""
    there = [(key, self.size(value)) for key, value in self.copy().items() if key != new]  # other threads add to it
    self.held = sum(size for _, size in there) + size
    enough = self.most if self.held <= self.most else self.most - self.most // 8
    for key, size in there:
      if self.held <= enough:
        break
      self.pop(key, None)
      self.held -= size


class Process:
  """The tables of decisions, schedules and programs that modules fill for as long as the process lives. Everything in
  them follows from its key, so that without them the same is worked out again."""

  def __init__(self) -> None:
    self._tables: list[Table] = []
    self._forgets: list[Callable[[], None]] = []

  def table(self, most: int = MOST, size: Callable[[Any], int] = counts_once) -> dict[Any, Any]:
    """A new table, for the module that asks, whose values are at most `most` in size together."""
    self._tables.append(Table(most, size))
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
