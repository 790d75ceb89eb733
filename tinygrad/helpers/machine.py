"""The machine that the process runs on: its system, and the cores that it may use."""

import os
import sys

OSX, WIN = sys.platform == "darwin", sys.platform == "win32"
CI = os.environ.get("CI", "") not in ("", "0", "false")


def cores() -> int:
  """The processor cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
