"""What each process says of itself, in memory that the others see, and who watches it.

A page holds: its state, its line in the user's program, what has failed. A thread
writes the line, several times a second, and looks at the others: one that is dead, stopped or has failed is told of by
every other process, each in its own words, and ends it, even where it waits in native code that cannot raise.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import struct
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tinygrad.distributed.beats import SPEAKERS, Beats
from tinygrad.helpers import is_passed, source_line

RUNNING, ENDED, FAILED = range(3)
LINE_AT, FAULT_AT, TEXT = 64, 1024, 512  # bytes of the page
BEAT = 0.25  # seconds
STOPPED = 2.0  # seconds for which a process is stopped before that is a fault
GRACE = 1.5  # seconds in which the main thread may still raise by itself


@dataclass(slots=True, eq=False)
class Status:
  """The page of one process of this host."""

  rank: int
  pid: int
  page: Any  # a writable buffer
  stopped_since: float = 0.0

  def say(self, state: int) -> None:
    struct.pack_into("<Q", self.page, 0, state)

  def write(self, at: int, text: str) -> None:
    data = text.encode()[: TEXT - 8]
    self.page[at + 8 : at + 8 + len(data)] = data
    struct.pack_into("<Q", self.page, at, len(data))

  def read(self, at: int) -> str:
    (size,) = struct.unpack_from("<Q", self.page, at)
    return bytes(self.page[at + 8 : at + 8 + min(size, TEXT)]).decode(errors="replace")

  @property
  def state(self) -> int:
    return int(struct.unpack_from("<Q", self.page, 0)[0])

  @property
  def where(self) -> str:
    line = self.read(LINE_AT)
    return f" in {line}" if line else ""

  @property
  def follows(self) -> bool:
    """Whether it has failed because another has."""
    return self.state == FAILED and self.read(FAULT_AT).startswith("LostProcessError")

  def fault(self) -> str | None:
    """What is wrong with the process, in a line; None if nothing is."""
    if self.state == FAILED:
      return f"process {self.rank} failed{self.where}: {self.read(FAULT_AT)}"
    if self.state == ENDED:
      return None
    kind = process_state(self.pid)
    if kind in "ZX":
      return f"process {self.rank} (pid {self.pid}) is dead; it was last{self.where}"
    if kind not in "tT":
      self.stopped_since = 0.0
      return None
    self.stopped_since = self.stopped_since or time.monotonic()
    if time.monotonic() - self.stopped_since < STOPPED:
      return None
    return f"process {self.rank} (pid {self.pid}) is stopped{self.where}"


def process_state(pid: int) -> str:
  """The letter by which the system says what a process does; X if it is gone."""
  try:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
  except OSError:
    return "X"


def is_of_python(file: str) -> bool:
  """Whether a file is a module of Python's library, or none at all, as what imports."""
  return file.startswith(("<", os.path.dirname(os.__file__))) and "-packages" not in file


THREAD = re.compile(r"^(?:Current t|T)hread 0x(\w+)", re.MULTILINE)
FRAME = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)


def line_of(thread: int, pad: IO[bytes]) -> str:
  """Where in the user's program a thread is: what Python's own modules do there, somebody has called; "" if that is not
  known. `pad`: a file to write on.

  Who holds a frame of another thread holds what its function has names for, after it has returned, too: values would
  be computed for their names' sake, in one process and not in others. So frames are told by their text."""
  pad.seek(0)
  pad.truncate()
  faulthandler.dump_traceback(pad, all_threads=True)
  pad.seek(0)
  threads = THREAD.split(pad.read().decode("unicode_escape"))  # what is not ASCII is written that way
  frames = next(
    (text for number, text in zip(threads[1::2], threads[2::2], strict=True) if int(number, 16) == thread), ""
  )
  lines = ((file, int(number)) for file, number in FRAME.findall(frames))
  return next((source_line(*line) for line in lines if not is_passed(line[0]) and not is_of_python(line[0])), "")


class Watch(threading.Thread):
  """The thread that writes this process's line and looks after the others; `beats`: of other hosts."""

  def __init__(self, own: Status, others: list[Status], beats: Beats | None) -> None:
    super().__init__(name="processes", daemon=True)
    self.own, self.others, self.beats, self.far = own, others, beats, ""
    self.main = threading.main_thread().ident or 0
    self.over = threading.Event()

  def run(self) -> None:
    with tempfile.TemporaryFile() as pad:
      self.look_after(pad)
    if self.beats is not None:
      self.beats.end()

  def look_after(self, pad: IO[bytes]) -> None:
    found, since = "", 0.0
    while not self.over.wait(BEAT):
      if self.own.state == RUNNING:
        with contextlib.suppress(RuntimeError):  # a file's lines are read anew just now
          self.own.write(LINE_AT, line_of(self.main, pad) or self.own.read(LINE_AT))
      faults = self.faults()
      if self.beats is not None:
        self.hear(self.beats)
      found, since = (faults[0], since or time.monotonic()) if faults else ("", 0.0)
      if faults and time.monotonic() - since > GRACE and self.own.state == RUNNING:
        self.end(found)

  def hear(self, beats: Beats) -> None:
    """Listens to other hosts, and tells them what is wrong in this one; all is well say its first two processes, one of
    which may be busy where no other thread of its runs."""
    self.far = self.far or beats.listen()
    said, before = self.said, sum(other.fault() is None for other in self.others if other.rank < self.own.rank)
    if said or (before < SPEAKERS and not self.faults()):  # MPI may crash on a message to a host that has ended
      beats.say(said)

  @property
  def said(self) -> str:
    """What is wrong here, for other hosts: nothing if that is only what they have said."""
    own = self.own.fault() if not self.own.follows else None
    first = [fault for other in self.others if not other.follows and (fault := other.fault())]
    return own or next(iter(first), "")

  def faults(self) -> list[str]:
    """What is wrong elsewhere; first that to which no other fault has led."""
    near = sorted((other.follows, fault) for other in self.others if (fault := other.fault()) is not None)
    return [*([self.far] if self.far else []), *(fault for _, fault in near)]

  def end(self, fault: str) -> None:
    """The main thread waits where nothing can be raised, or is at work that nobody needs any more."""
    self.own.write(FAULT_AT, f"LostProcessError: {fault}")
    self.own.say(FAILED)
    print(f"LostProcessError: process {self.own.rank} ends{self.own.where}: {fault}", file=sys.stderr, flush=True)
    if self.beats is not None:
      self.beats.say_last(self.said)
    time.sleep(BEAT * 2)  # others see it
    os._exit(1)
