"""Placement of ops, moves between placements, and the local program. Importing it gives `UOp` its placement
function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinygrad import ops as _ops
from tinygrad.helpers import LazyModule
from tinygrad.sharding import costs as _costs
from tinygrad.sharding import decision_cache as _decision_cache
from tinygrad.sharding import outcomes as _outcomes
from tinygrad.uop import Hooks as _Hooks

if TYPE_CHECKING:
  from pathlib import Path

  from tinygrad.sharding.drawing import Drawing
  from tinygrad.sharding.report import Report

# a script that does not ask for a report does not wait for it
_report, _drawing = map(LazyModule, ("tinygrad.sharding.report", "tinygrad.sharding.drawing"))
_Hooks.build, _Hooks.result, _Hooks.deliver = _decision_cache.build, _outcomes.result, _costs.deliver


def explain(*ys: Any) -> Report:
  """The moves that `Tensor.realize(*ys)` would make, for lazy Tensors or UOps; nothing is computed.

  `.rows` lists each with its kind, mesh axes, bytes, line and reason; `.payload` and `.wire` add up their bytes per
  device; it prints as a table. Slices and other steps in which no byte travels are left out. Axes have the names of the
  mesh that the user last placed something with on these devices.
  """
  report: Report = _report.report(_report.as_realized([getattr(y, "uop", y) for y in ys]))
  return report


def visualize(t: Any, file: str | Path | None = None) -> Drawing:
  """Which device holds which part of a Tensor or UOp: it prints as a grid; `.svg` is the same as a picture, which is
  also written to `file` if one is given. Nothing is computed.

  The two dims with the most parts are drawn; of further cut dims each device's range is written beside its name.
  Raises: ValueError for a symbolic shape.
  """
  drawing: Drawing = _drawing.draw(getattr(t, "uop", t))
  if file is not None:
    drawing.save(file)
  return drawing


__all__ = ["_ops", "explain", "visualize"]
