"""When memory was taken and given back, for VIZ."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.helpers.counters import GlobalCounters


@dataclass(slots=True)
class Taken:
  """Memory of a buffer: so many bytes on each of these devices, between these seconds (`end` is None while it is)."""

  devices: tuple[str, ...]
  nbytes: int
  start: float
  end: float | None = None


class MemoryLog:
  """The memory that buffers have taken while VIZ is on, by a number each; a buffer has its number for as long
  as it lives, and is not kept alive."""

  def __init__(self) -> None:
    self.all: dict[int, Taken] = {}
    self.numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    self._next = itertools.count(1)
    self.before: dict[str, int] = {}  # bytes of each device when the first was taken

  def number_of(self, buffer: Any) -> int:
    number = self.numbers.get(buffer)
    if number is None:
      number = self.numbers[buffer] = next(self._next)
    return number

  def taken(self, buffer: Any, devices: Sequence[str], nbytes: int) -> int:
    """Notes a buffer; its number."""
    number = self.number_of(buffer)
    if not self.all:
      used = GlobalCounters.mem_used_per_device
      self.before = {d: n - nbytes * (d in devices) for d, n in used.items() if n > nbytes * (d in devices)}
    self.all[number] = Taken(tuple(devices), nbytes, time.perf_counter())
    return number

  def given_back(self, number: int) -> None:
    self.all[number].end = time.perf_counter()


MEMORY = MemoryLog()
