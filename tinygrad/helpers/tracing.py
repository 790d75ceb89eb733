"""How long things take: the events of PROFILE=1, the profile of Python's own time, timers."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from tinygrad.helpers.files import atomic_write
from tinygrad.helpers.lazy import LazyModule, json
from tinygrad.helpers.settings import PROFILE, PROFILE_FILE, VIZ, Context

profiling, pstats = map(LazyModule, ("cProfile", "pstats"))

# its track (a device or a thread of Python), name, from and to in seconds, what else there is to say
Event = tuple[str, str, float, float, dict[str, Any]]
MOST_EVENTS = 1 << 20  # more than a viewer opens
_events: list[Event] = []


def note(track: str, name: str, start: float, end: float, more: dict[str, Any]) -> None:
  """An event for the traces of PROFILE=1 and VIZ=1; what comes after MOST_EVENTS is left out."""
  if (PROFILE.value or VIZ.value) and len(_events) < MOST_EVENTS:
    _events.append((track, name, start, end, more))


@contextlib.contextmanager
def span(name: str, **more: Any) -> Iterator[None]:
  """`with span("schedule"): ...`: how long a block takes, for the trace."""
  start = time.perf_counter()
  try:
    yield
  finally:
    note(f"Python {threading.current_thread().name}", name, start, time.perf_counter(), more)


def events_since(first: int) -> list[Event]:
  """What has been noted after so many events."""
  return _events[first:]


def profile_marker(name: str, color: str = "gray") -> None:
  """A moment in the trace of PROFILE=1, by its name; `color` is accepted, and viewers choose their own."""
  now = time.perf_counter()
  note(f"Python {threading.current_thread().name}", name, now, now, {})


class Profiling(contextlib.ContextDecorator):
  """`with Profiling(): ...` prints where Python spends its time in the block, measured by cProfile: the first `frac` of
  all functions by `sort` (a key of pstats), times multiplied by `ts`; or, with `fn`, writes the profile to that file.
  """

  def __init__(
    self, enabled: bool = True, sort: str = "cumtime", frac: float = 0.2, fn: str | None = None, ts: float = 1
  ) -> None:
    self.enabled, self.sort, self.frac, self.fn, self.scale = enabled, sort, frac, fn, ts

  def __enter__(self) -> Self:
    self.profile = profiling.Profile()
    if self.enabled:
      self.profile.enable()
    return self

  def __exit__(self, *_: object) -> None:
    if not self.enabled:
      return
    self.profile.disable()
    if self.fn is not None:
      self.profile.dump_stats(self.fn)
      return
    stats = pstats.Stats(self.profile).strip_dirs().sort_stats(self.sort)
    shown = stats.fcn_list[: max(1, int(len(stats.fcn_list) * self.frac))]
    for file, line, name in shown:
      _, calls, own, total, _ = stats.stats[file, line, name]
      ms, whole = own * 1e3 * self.scale, total * 1e3 * self.scale
      print(f"n:{calls:8d}  own:{ms:9.2f} ms  with callees:{whole:9.2f} ms  {name} ({file}:{line})")


class Profile(Context):
  """`with Profile("step.json"): ...` writes a trace of what runs in the block (docs/profiling.md), by default to
  PROFILE_FILE."""

  def __init__(self, file: str | os.PathLike[str] | None = None) -> None:
    super().__init__(PROFILE=1, **({} if file is None else {"PROFILE_FILE": os.fspath(file)}))


def write_trace(events: Sequence[Event], file: str) -> None:
  """Events in the format that Perfetto (ui.perfetto.dev) and chrome://tracing open."""
  tracks = {track: i for i, track in enumerate(dict.fromkeys(e[0] for e in events), 1)}
  rows = [{"name": "thread_name", "ph": "M", "pid": 1, "tid": i, "args": {"name": t}} for t, i in tracks.items()]
  for track, name, start, end, more in events:
    at = {"pid": 1, "tid": tracks[track], "ts": start * 1e6, "dur": (end - start) * 1e6}
    rows.append({"name": name, "ph": "X", **at, "args": more})
  with atomic_write(file) as f:
    f.write(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}).encode())


def _traced(value: Any) -> Callable[[], None]:
  """A block under PROFILE=1 begins: at its end its events are written; they stay for a trace around it."""
  first, inner = len(_events), not (PROFILE or VIZ)

  def write() -> None:
    events = _events[first:]
    if inner:
      del _events[first:]
    write_trace(events, PROFILE_FILE.value)

  return write if value else lambda: None


Context.begins["PROFILE"] = _traced


@atexit.register
def _at_exit() -> None:
  if not PROFILE:
    return
  try:
    write_trace(_events, PROFILE_FILE.value)
  except OSError as e:
    print(f"PROFILE: nothing is written: {e}\n  fix: PROFILE_FILE=/a/folder/with/room/trace.json", file=sys.stderr)


class Timing(contextlib.ContextDecorator):
  """Prints the milliseconds a block took after `prefix`, and what `on_exit` makes of the nanoseconds."""

  def __init__(self, prefix: str = "", on_exit: Callable[[int], str] | None = None, enabled: bool = True) -> None:
    self.prefix, self.on_exit, self.enabled, self.start, self.seconds = prefix, on_exit, enabled, 0.0, 0.0

  def __enter__(self) -> Timing:
    self.start = time.perf_counter()
    return self

  def __exit__(self, *_: object) -> None:
    self.seconds = time.perf_counter() - self.start
    if self.enabled:
      print(f"{self.prefix}{self.seconds * 1e3:6.2f} ms{self.on_exit(int(self.seconds * 1e9)) if self.on_exit else ''}")
