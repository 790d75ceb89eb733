"""Placement of ops, moves between placements, and the local program. Importing it gives `UOp` its placement
function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinygrad import ops as _ops
from tinygrad.device import ShardTypeError as _ShardTypeError
from tinygrad.device import refuse as _refuse
from tinygrad.helpers import LazyModule
from tinygrad.sharding import costs as _costs
from tinygrad.sharding import decision_cache as _decision_cache
from tinygrad.sharding import outcomes as _outcomes
from tinygrad.uop import Hooks as _Hooks
from tinygrad.uop import UOp as _UOp

if TYPE_CHECKING:
  from pathlib import Path

  from tinygrad.debug.report import Report
  from tinygrad.device import Mesh
  from tinygrad.drawing import graph as _graph
  from tinygrad.drawing import grid as _grid
  from tinygrad.drawing.drawing import Drawing
else:  # a script that does not ask for a picture does not wait for it
  _grid, _graph = map(LazyModule, ("tinygrad.drawing.grid", "tinygrad.drawing.graph"))
_Hooks.build, _Hooks.result, _Hooks.deliver = _decision_cache.build, _outcomes.result, _costs.deliver


def explain(*ys: Any, mesh: Mesh | None = None) -> Report:
  """The moves that `Tensor.realize(*ys)` would make, for lazy Tensors or UOps; nothing is computed.

  `.rows` lists each with its kind, mesh axes, bytes, line, reason and hints; `.payload` and `.wire` add up their bytes
  per device; it prints as a table. Slices and other steps in which no byte travels are left out. Axes have the names of
  the mesh that the user last placed something with on these devices. `mesh`: the moves that there would be after
  `propagate(*ys, mesh=mesh)`, which is not done; memory that it would move at once counts as moved."""
  roots = _nodes("explain", ys)
  reports = _Hooks.reports
  found: Report = reports.report(reports.as_realized(roots if mesh is None else _Hooks.propagated(roots, mesh)))
  return found


def visualize(t: Any, file: str | Path | None = None, *, graph: bool = False) -> Drawing:
  """Which device holds which part of a Tensor or UOp: it prints as a grid; `.svg` is the same as a picture, which is
  also written to `file` if one is given. Nothing is computed.

  The two dims with the most parts are drawn; of further cut dims each device's range is written beside its name.
  `graph`: what `t` (or a list of Tensors) is computed from, as placed: values in a colour for each placement, the moves
  that `explain` lists, hints, and, where one points, why a value is cut as it is.
  Raises: ValueError for a symbolic shape (not with `graph`); ShardTypeError for what is no Tensor.
  """
  several = graph and isinstance(t, (list, tuple))
  roots = _nodes("visualize", t if several else [t])
  drawing: Drawing = _graph.draw_graph(roots, *_Hooks.reports.rows_of(roots)) if graph else _grid.draw_grid(roots[0])
  if file is not None:
    drawing.save(file)
  return drawing


def _nodes(name: str, ys: Any) -> list[_UOp]:
  """The nodes of Tensors and UOps."""
  roots = [getattr(y, "uop", y) for y in ys]
  for y, u in zip(ys, roots):
    if not isinstance(u, _UOp):
      _refuse(f"{name}: {y!r} is no Tensor", f"{name}(Tensor(…))", error=_ShardTypeError)
  return roots


__all__ = ["_ops", "explain", "visualize"]
