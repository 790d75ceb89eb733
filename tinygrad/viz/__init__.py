"""The viewer: VIZ=1 records what is computed, and writes one HTML file that shows it (docs/howto/viewer.md)."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinygrad.helpers import CI, OSX, VIZ, VIZ_FILE, WIN, Context, LazyModule, events_since

if TYPE_CHECKING:
  import webbrowser

  from tinygrad.viz import page, recorder, trace
else:  # a script that is not recorded does not wait for them
  page, recorder, trace = (LazyModule(f"tinygrad.viz.{name}") for name in ("page", "recorder", "trace"))
  webbrowser = LazyModule("webbrowser")


def finish(first: int = 0, run: int = 0, since: float = 0.0) -> None:
  """Writes what has been recorded since (trace.py: trace_of) to VIZ_FILE, and opens the page on a desktop."""
  file = os.path.abspath(VIZ_FILE.value)
  page.write_recording(trace.trace_of(first, run, since), file)
  opened = VIZ == 1 and on_a_desktop() and file.endswith(".html") and webbrowser.open(f"file://{file}")
  print(f"VIZ: {'opened' if opened else 'wrote'} {file}", file=sys.stderr)


def on_a_desktop() -> bool:
  """Whether somebody sits before a screen: the process has a terminal, and the system shows windows."""
  screen = OSX or WIN or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
  return screen and not CI and sys.stderr.isatty()


def _recording(value: Any) -> Callable[[], None]:
  """A block under VIZ=1 begins: at its end the page of what ran in it is written."""
  if not value:
    return lambda: None
  begun = len(events_since(0)), len(recorder.RUNS), time.perf_counter()
  return lambda: finish(*begun)


def _at_exit() -> None:
  if not VIZ:
    return
  try:
    finish()
  except OSError as e:
    print(f"VIZ: nothing is written: {e}\n  fix: VIZ_FILE=/a/folder/that/can/be/written/viz.html", file=sys.stderr)


Context.begins["VIZ"] = _recording
atexit.register(_at_exit)
