"""Ctrl-C that leaves things whole."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tinygrad.helpers.threads import started

SOON = 1e-3  # seconds


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
  """Within, the first Ctrl-C only makes the yielded function true, to be asked where work may end; the second raises
  KeyboardInterrupt. (Raised at once, it may land in a finalizer, where Python drops it.)"""
  hits: list[int] = []

  def handle(number: int, frame: FrameType | None) -> None:
    hits.append(number)
    if len(hits) > 1:
      raise KeyboardInterrupt

  before = signal.signal(signal.SIGINT, handle)
  try:
    yield lambda: bool(hits)
  finally:
    signal.signal(signal.SIGINT, before)


_signals: Any = importlib.import_module("_signal")  # what `signal` wraps in fifty calls that make enums


class uninterrupted:
  """Within, the first Ctrl-C waits for the end of the block, so that what is begun there is also noted; the second
  comes at once. Only the main thread is ever interrupted."""

  __slots__ = ("before", "hits")
  before: Any  # the handler that was there
  hits: int

  def __enter__(self) -> None:
    self.hits, self.before = 0, _signals.getsignal(signal.SIGINT)
    if callable(self.before):  # neither ignored nor another library's
      try:
        _signals.signal(signal.SIGINT, self.note)
      except ValueError:  # in another thread
        self.before = None

  def note(self, number: int, frame: FrameType | None) -> None:
    self.hits += 1
    if self.hits > 1:
      self.before(number, frame)

  def __exit__(self, *_: object) -> None:
    if callable(self.before):
      _signals.signal(signal.SIGINT, self.before)
      if self.hits == 1:
        signal.raise_signal(signal.SIGINT)


def _not_dropped(lost: sys.UnraisableHookArgs, otherwise: Callable[[Any], Any] = sys.unraisablehook) -> None:
  """Ctrl-C that arrives in a finalizer (a node of a graph goes: there are many) cannot be raised there: it comes again
  a moment after this has returned."""
  here, main = [True], threading.main_thread().ident or 0

  def come_again() -> None:
    while here[0]:
      time.sleep(SOON)
    signal.pthread_kill(main, signal.SIGINT)  # which ends what it waits in, too

  try:
    if lost.exc_type is not KeyboardInterrupt or started("interrupting", come_again) is None:
      otherwise(lost)
  finally:
    here[0] = False  # no call: Python looks for signals after each


sys.unraisablehook = _not_dropped
