"""For whose sake bytes move in a graph as it is built: a weight's that is gathered, a gradient's that updates it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tinygrad.uop import GroupOp, Ops, UOp

Moves = tuple[Sequence[UOp], Sequence[tuple[UOp, float]]]  # a graph, sources first; what moves in it, and the bytes


def only_shows(u: UOp) -> bool:
  """Whether it is computed element by element, or only moves elements."""
  return u.op in GroupOp.Elementwise or u.op in GroupOp.KeepsPlacement or u.op in GroupOp.Movement or u.op is Ops.MOVE


def shown_memory(order: Sequence[UOp]) -> dict[UOp, UOp]:
  """Of nodes that are computed element by element from one buffer alone that buffer."""
  found: dict[UOp, UOp] = {}
  for u in order:
    if u.op is Ops.BUFFER:
      found[u] = u
    elif u.op is Ops.AFTER or u.op is Ops.SHARD or only_shows(u):
      below = [found.get(s) for s in u.src[: 1 if u.op is Ops.AFTER else None] if s.device is not None]
      if below and below[0] is not None and all(b is below[0] for b in below):
        found[u] = below[0]
  return found


def updated_memory(order: Sequence[UOp]) -> dict[UOp, UOp]:
  """Of nodes from which an update is computed element by element the buffer that it is of; of several updates, as the
  optimizer's state and the weight, the last one's."""
  found: dict[UOp, UOp] = {}
  for u in reversed(order):
    target = u.src[0].base if u.op is Ops.ASSIGN else found.get(u) if only_shows(u) else None
    if target is not None:
      for s in u.src[u.op is Ops.ASSIGN :]:
        found.setdefault(s, target)
  return found


@dataclass
class Moved:
  """The bytes that each device receives in a run of what was built. `moves`: says what moves there; `built`: of the
  inputs and weights what they have become."""

  moves: Callable[[], Moves]
  built: Mapping[UOp, UOp]

  @functools.cached_property
  def by_memory(self) -> dict[UOp | None, float]:
    """The bytes for the sake of each buffer; None: of values between, that are of no single one."""
    order, moves = self.moves()
    shown, updated, found = shown_memory(order), updated_memory(order), dict[UOp | None, float]()
    for u, nbytes in moves:
      buffer = next((b for s in u.src if (b := shown.get(s)) is not None), updated.get(u))
      found[buffer] = found.get(buffer, 0.0) + nbytes
    return found

  def of(self, leaf: UOp) -> float:
    """For the sake of an input or a weight: it itself, and its gradient."""
    return self.by_memory.get(self.built.get(leaf, leaf).base, 0.0)

  @property
  def total(self) -> float:
    return sum(self.by_memory.values())
