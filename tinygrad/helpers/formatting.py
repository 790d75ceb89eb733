"""Text for people: colors, sizes, and the user's line of code."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from types import FrameType

from tinygrad.helpers.settings import NO_COLOR

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = os.path.join(PACKAGE, "apps", "")  # which use the package as a user's do


def colored(st: str, color: str | None, background: bool = False) -> str:
  """`st` in a terminal color (upper case: bright), if standard output is a terminal and NO_COLOR is not set."""
  colors = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]
  if color is None or NO_COLOR or not sys.stdout.isatty():
    return st
  return f"\x1b[{30 + colors.index(color.lower()) + 60 * color.isupper() + 10 * background}m{st}\x1b[0m"


def size_to_str(s: float) -> str:
  """1536 -> '1.5 KB'."""
  for unit in ("B", "KB", "MB", "GB"):
    if abs(s) < 1000:
      return f"{s:.0f} {unit}" if unit == "B" else f"{s:.1f} {unit}"
    s /= 1000
  return f"{s:.1f} TB"


class _Passed(dict[str, bool]):
  """Whether the user's line is not in a file: it is one of this package, but for its programs, or contextlib. Each name
  is looked at once."""

  def __missing__(self, file: str) -> bool:
    passed = self[file] = file.startswith((PACKAGE, contextlib.__file__)) and not file.startswith(PROGRAMS)
    return passed


_passed = _Passed()


def is_passed(file: str) -> bool:
  """Whether what a file's code does is none of the user's lines."""
  return _passed[file]


def user_frame() -> FrameType | None:
  """The innermost frame outside this package, and outside contextlib and what dataclasses generate: the user's line."""
  frame: FrameType | None = sys._getframe(1)
  while frame is not None and _passed[frame.f_globals.get("__file__", "")]:
    frame = frame.f_back
  return None if frame is not None and frame.f_globals.get("__name__") == "runpy" else frame  # which runs this package


def source_line(filename: str, number: int) -> str:
  """`file.py:41: y = h + skip`, for error messages."""
  code = linecache.getline(filename, number).strip()
  return f"{os.path.basename(filename)}:{number}" + (f": {code}" if code else "")


def user_line() -> str:
  """`source_line` of the user's line."""
  frame = user_frame()
  return "<unknown>" if frame is None else source_line(frame.f_code.co_filename, frame.f_lineno)
