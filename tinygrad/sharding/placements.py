"""The map that a deciding pass fills and a building pass reads: how each node of a graph runs. `place` fills it, from
the same table of decisions as the hooks; a solver would. `build_placed` makes the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tinygrad.device import Placement
from tinygrad.sharding.cast_sinking import SunkCast, build_sunk
from tinygrad.sharding.decision_cache import OpPlacement, applied, realized
from tinygrad.uop import UOp
from tinygrad.uop.rewrite import Sources, rebuild


@dataclass(frozen=True, slots=True)
class Placements:
  """Where each node of a graph is to be, and the moves that bring it there; nodes in no field stay as they were made.

  `order`: the nodes, sources first. `runs`: how each runs: its sources' forms (the implied moves that they need) and
  its result, as abstract values. `dropped`: an implied move -> what it moved: its readers decide anew. `reduced`: a
  partial value that is reduced where it arises -> its abstract value before and after. `casts`: casts to a narrower
  type that run between a reduce-scatter and a gather. `nbytes`: what each device receives in all moves, the sunk casts
  counted; 0 where it was not asked."""

  order: Sequence[UOp]
  runs: Mapping[UOp, OpPlacement | None] = field(default_factory=dict)
  dropped: Mapping[UOp, UOp] = field(default_factory=dict)
  reduced: Mapping[UOp, tuple[UOp, UOp]] = field(default_factory=dict)
  casts: Mapping[UOp, SunkCast] = field(default_factory=dict)
  nbytes: float = 0.0

  def __getitem__(self, u: UOp) -> Placement | None:
    """Where a node's value is handed to its readers; what rearranges a sunk cast (`SunkCast.links`) follows it."""
    u = self.dropped.get(u, u)
    if u in self.reduced:
      return self.reduced[u][1].device
    if u in self.casts and self.casts[u].last is not None:  # else it is gathered to where it was
      return self.casts[u].placement
    run = self.runs.get(u)
    return u.device if run is None else run.result.device


def build_placed(placements: Placements) -> UOp:
  """The sink of the graph in which every node runs as the map says."""
  order, runs, dropped, reduced = placements.order, placements.runs, placements.dropped, placements.reduced
  if not runs:
    return build_sunk(order[-1], placements.casts)
  placed: dict[UOp, UOp] = {}

  def make(u: UOp, src: Sources) -> UOp:
    if u in dropped:
      return placed[dropped[u]]
    v, run = u, runs[u]
    if run is not None:
      v = applied(run, u.op, u.dtype, src, u.arg)
      if v.origin is None:
        v.origin = u.origin
    if u in reduced:
      before, after = reduced[u]
      v = realized(after, before, v)
    return v

  return rebuild(order[-1], make, placed)
