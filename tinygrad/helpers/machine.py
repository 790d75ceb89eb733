"""The machine that the process runs on: its system, and the cores that it may use."""

import os
import sys
from pathlib import Path
from typing import Any

from tinygrad.helpers.lazy import LazyModule

platform: Any = LazyModule("platform")

OSX, WIN = sys.platform == "darwin", sys.platform == "win32"
CI = os.environ.get("CI", "") not in ("", "0", "false")


def cores() -> int:
  """The processor cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_model() -> str:
  """The model of the CPU, as the system names it."""
  file = Path("/proc/cpuinfo")
  lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
  names = (text.partition(":")[2].strip() for text in lines if text.startswith("model name"))
  return next(names, "") or str(platform.processor() or platform.machine())


# lines of /proc/cpuinfo that say what a processor can do
TRAITS = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")


def processor_traits() -> str:
  """What tells this kind of processor from others, its features among it; "" where the system does not say."""
  file, found = Path("/proc/cpuinfo"), list[str]()
  if file.exists():
    with file.open(encoding="utf-8") as lines:
      for line in lines:
        if not line.strip():  # the next core's
          break
        found += [line.strip()] if line.startswith(TRAITS) else []
  return "\n".join(found)
