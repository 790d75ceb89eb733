"""What a value's line knows beside the line: which hint was given there, and why the value is cut as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tinygrad.device.mesh import SubAxis
from tinygrad.device.sharding import Sharding
from tinygrad.helpers import VIZ, UserScope, scope_at

Cut = tuple[int, tuple[SubAxis, ...], str]  # a dim, what was decided to cut it, and why


class PlacedLine(tuple[str, int]):
  """The user's line (file, number) of a value that hints speak of, or that is recorded. `hint`: what was said of the
  value itself, or ""; `cuts()`: what was decided of its dims; `scope`: the module that computes it, where that is
  recorded (VIZ), and `backward`, whether for the sake of a gradient. It equals the plain line, and is inherited as that
  is: by what a pass makes of the value."""

  hint: str = ""
  cuts: Callable[[], list[Cut]] = list
  scope: UserScope | None = None
  backward: bool = False

  @staticmethod
  def of(line: tuple[str, int], hint: str = "", cuts: Callable[[], list[Cut]] = list) -> PlacedLine:
    made = PlacedLine(line)
    made.hint, made.cuts = hint, cuts
    if isinstance(line, PlacedLine):
      made.scope, made.backward = line.scope, line.backward
    return made


def line_at(frame: FrameType) -> tuple[str, int]:
  """The line that a frame is at."""
  line = frame.f_code.co_filename, frame.f_lineno
  if not VIZ.value:
    return line
  placed = PlacedLine(line)
  placed.scope = scope_at(sys._getframe(1))
  return placed


def plain_line(origin: tuple[str, int] | None) -> tuple[str, int] | None:
  """The line alone: for a gradient, another value that is said to come from there."""
  if not isinstance(origin, PlacedLine):
    return origin
  if origin.scope is None:
    return origin[0], origin[1]
  placed = PlacedLine(origin)
  placed.scope, placed.backward = origin.scope, True
  return placed


def hint_of(origin: tuple[str, int] | None) -> str:
  """What was said of a value itself."""
  return origin.hint if isinstance(origin, PlacedLine) else ""


def reasons_for(origin: tuple[str, int] | None, device: Any, over: tuple[SubAxis, ...] | None = None) -> list[str]:
  """Why a value is cut as it is on `device`, over these sub-axes (None: all): of each dim which hint decided that, on
  which line. Where it is not as was decided, nothing."""
  if not isinstance(origin, PlacedLine) or not isinstance(device, Sharding):
    return []
  return [
    text
    for dim, axes, text in origin.cuts()
    if any(
      _overlap(a, b) and (over is None or any(_overlap(a, g) for g in over)) for a in device.cut(dim) for b in axes
    )
  ]


def _overlap(a: SubAxis, b: SubAxis) -> bool:
  """Whether two sub-axes have a part in common."""
  return a.stride < b.stride * b.size and b.stride < a.stride * a.size
