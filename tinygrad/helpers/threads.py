"""What each thread has of its own."""

import contextlib
import threading
from collections.abc import Iterator, MutableSequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ThreadList(threading.local, MutableSequence[T]):
  """A list in which each thread finds what it has put there itself."""

  def __init__(self) -> None:
    self.items: list[T] = []

  def __len__(self) -> int:
    return len(self.items)

  def __getitem__(self, i: Any) -> Any:
    return self.items[i]

  def __setitem__(self, i: Any, x: Any) -> None:
    self.items[i] = x

  def __delitem__(self, i: Any) -> None:
    del self.items[i]

  def insert(self, i: int, x: T) -> None:
    self.items.insert(i, x)

  @contextlib.contextmanager
  def emptied(self) -> Iterator[None]:
    """Within, there is nothing in it."""
    kept, self.items = self.items, []
    try:
      yield
    finally:
      self.items = kept


class OfThread(threading.local, Generic[T]):
  """An attribute that has a value for each thread, at first `value`."""

  def __init__(self, value: T) -> None:
    self.value = value

  def __get__(self, owner: object, kind: type) -> T:
    return self.value

  def __set__(self, owner: object, value: T) -> None:
    self.value = value
