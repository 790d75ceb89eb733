"""What each thread has of its own, and what threads do one after the other."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, MutableSequence
from typing import Any, Generic, ParamSpec, TypeVar

A = ParamSpec("A")
R = TypeVar("R")
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
  def holding(self, x: T) -> Iterator[None]:
    """Within, `x` is the last one in it."""
    self.items.append(x)
    try:
      yield
    finally:
      self.items.pop()

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


def started(name: str, work: Callable[[], object]) -> threading.Thread | None:
  """A thread that does `work`; None where the system has no more to give, as by `ulimit -u` or in a container: the
  caller does without, or does it itself."""
  thread = threading.Thread(target=work, name=name)
  try:
    thread.start()
  except RuntimeError:
    return None
  return thread


TURN = threading.RLock()  # who has it decides what runs, so that nothing happens twice


def in_turn(f: Callable[A, R]) -> Callable[A, R]:
  """A function that threads call one after the other."""

  @functools.wraps(f)
  def g(*args: A.args, **kwargs: A.kwargs) -> R:
    with TURN:
      return f(*args, **kwargs)

  return g


def _nothing() -> None:
  pass


def at_fork(
  before: Callable[[], object] = _nothing,
  in_parent: Callable[[], object] = _nothing,
  in_child: Callable[[], object] = _nothing,
) -> None:
  """`before`, and afterwards one of the others, where this process is forked: in their turn, for in the child no other
  thread is there to end what it has begun."""
  begun: list[bool] = []  # not of a fork that was waiting when this was registered

  def begin() -> None:
    TURN.acquire()
    begun.append(True)
    before()

  def in_both(after: Callable[[], object]) -> None:
    if begun:
      try:
        after()
      finally:
        begun.clear()
        TURN.release()

  os.register_at_fork(
    before=begin,
    after_in_parent=functools.partial(in_both, in_parent),
    after_in_child=functools.partial(in_both, in_child),
  )
