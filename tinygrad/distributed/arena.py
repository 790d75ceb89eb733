"""Memory that the processes of one host have together: each maps everybody's.

An arena is a file in memory, sparse and as large as the machine's memory; pages that nobody has touched cost nothing.
Its first pages hold what the owner says of itself (`faults.py`) and the counters at which devices meet; the rest is
given out piece by piece. Where a piece lies is one number, its offset, which means the same to everybody.
"""

from __future__ import annotations

import bisect
import collections
import ctypes
import mmap
import os
import threading
from dataclasses import dataclass
from typing import Any

from tinygrad.helpers import round_up
from tinygrad.runtime.cpu import ALIGNMENT, Memory

COUNTERS = 1 << 12  # where they begin
LINE = 64  # bytes between counters, so that no two are in one line of a cache
CONTROL = 1 << 21  # where the pieces begin
LARGE = 1 << 22  # bytes of a piece from which it begins on a large page, and its pages go back when it is free
PAGE = 1 << 21
NORESERVE = 0x4000  # of Linux: the memory is promised to nobody


@dataclass(slots=True, eq=False)
class Piece(Memory):
  """Memory of this process's arena, given back when nothing refers to it."""

  arena: Any = None

  def __del__(self) -> None:
    self.arena.returned.append((self.address - self.arena.base, self.nbytes))


class Arena:
  """What a process has of one: its own, or another's, mapped."""

  def __init__(self, fd: int, size: int) -> None:
    self.fd, self.size = fd, size
    self.map = mmap.mmap(fd, size, mmap.MAP_SHARED | NORESERVE)
    self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
    self.free: list[tuple[int, int]] = [(CONTROL, size - CONTROL)]  # (offset, bytes), by offset
    self.returned: collections.deque[tuple[int, int]] = collections.deque()  # by finalizers, at any time
    self.taking = threading.Lock()

  @classmethod
  def new(cls) -> Arena:
    """Raises: OSError where the system has no files in memory."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fd = os.memfd_create("tinygrad", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return cls(fd, size)

  @classmethod
  def of(cls, pid: int, fd: int, size: int) -> Arena:
    """Another process's. Raises: OSError where this one may not see its files."""
    return cls(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC), size)

  def take(self, nbytes: int) -> Piece | None:
    """The first piece that is large enough; None where there is none."""
    unit = PAGE if nbytes >= LARGE else ALIGNMENT
    size = round_up(max(nbytes, 1), unit)
    with self.taking:
      self.take_back()
      for i, (at, room) in enumerate(self.free):
        start = round_up(at, unit)
        if start + size <= at + room:
          rest = [(at, start - at), (start + size, at + room - start - size)]
          self.free[i : i + 1] = [(a, n) for a, n in rest if n]
          return Piece(self.base + start, size, arena=self)
    return None

  def take_back(self) -> None:
    """Joins what was returned to the free neighbours."""
    while self.returned:
      at, size = self.returned.popleft()
      if size >= LARGE:
        self.map.madvise(mmap.MADV_REMOVE, at, size)
      i = bisect.bisect(self.free, (at, size))
      if i < len(self.free) and at + size == self.free[i][0]:
        size += self.free.pop(i)[1]
      if i and sum(self.free[i - 1]) == at:
        at, size = self.free[i - 1][0], self.free[i - 1][1] + size
        self.free[i - 1] = at, size
      else:
        self.free.insert(i, (at, size))

  def counter(self, number: int) -> int:
    """The address of a counter, which begins at 0 and is used for one purpose."""
    at = COUNTERS + number * LINE
    if at + LINE > CONTROL:
      raise MemoryError(f"device sets of several processes: more than {number} at which devices meet")
    return self.base + at
