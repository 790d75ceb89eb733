"""What a graph holds in memory at once, before it is cut: which values are stored at all, from when until when."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.helpers import prod
from tinygrad.solver.graph import Asked
from tinygrad.uop import GroupOp, Ops, UOp


def is_view(u: UOp) -> bool:
  """It shows memory of others, and takes none."""
  shows = u.op is Ops.MOVE or u.op is Ops.DETACH or u.op is Ops.CONSTRAIN or u.op is Ops.AFTER or u.op is Ops.ASSIGN
  return shows or u.op in GroupOp.Movement


def readers_of(order: Sequence[UOp]) -> dict[UOp, dict[UOp, None]]:
  """Of each node those that read it, views looked through, but for EXPAND, behind which each element is read often."""
  found: dict[UOp, dict[UOp, None]] = {u: {} for u in order}
  for u in reversed(order):
    for s in u.src:
      if s in found:
        looked_through = is_view(u) and u.op is not Ops.EXPAND and u.op is not Ops.ASSIGN
        found[s] |= found[u] if looked_through else {u: None}
  return found


def fused_ones(order: Sequence[UOp]) -> set[UOp]:
  """What has no memory of its own: views; what one elementwise op alone reads, in whose kernel it is computed, or only
  reductions, if need be by way of elementwise ops; and what is assigned, which lies where it is assigned to."""
  fused: set[UOp] = set()
  summed: set[UOp] = set()
  readers = readers_of(order)
  for u in reversed(order):
    by = list(readers[u])
    if u.op in GroupOp.Elementwise and by and all(r.op is Ops.REDUCE or r in summed for r in by):
      summed.add(u)
    alone = len(by) == 1 and by[0].op in GroupOp.Elementwise
    if u in summed or is_view(u) or (u.op is not Ops.BUFFER and (alone or any(r.op is Ops.ASSIGN for r in by))):
      fused.add(u)
  return fused


def held_bytes(asked: Asked, leaves: set[int], fused: set[UOp]) -> list[float]:
  """Of each value the bytes that it has in memory when the most is held, uncut: leaves always, others from when they
  are computed until they are last read. What is fused takes none; who reads it reads what it is computed from."""
  nbytes = [float(prod(u.max_shape) * u.dtype.itemsize) for u in asked.nodes]
  lives = [(begin, end, v) for v, (begin, end) in lifetimes(asked, fused).items() if v not in leaves]
  change = [0.0] * (len(asked.order) + 2)
  for begin, end, v in lives:
    change[begin] += nbytes[v]
    change[end + 1] -= nbytes[v]
  most, at, now = 0.0, 0, 0.0
  for i, by in enumerate(change):
    now += by
    if now > most:
      most, at = now, i
  held = [nbytes[v] if v in leaves else 0.0 for v in range(len(nbytes))]
  for begin, end, v in lives:
    if begin <= at <= end:
      held[v] += nbytes[v]
  return held


def lifetimes(asked: Asked, fused: set[UOp]) -> dict[int, tuple[int, int]]:
  """When values that are stored are computed, and last read: positions in the graph's order."""
  read: dict[UOp, int] = {}
  lives: dict[int, tuple[int, int]] = {}
  for i in range(len(asked.order) - 1, -1, -1):
    u = asked.order[i]
    last = read.get(u, i)
    for s in u.src:
      read[s] = max(read.get(s, 0), last if u in fused else i)
    if (v := asked.number.get(u)) is not None and u not in fused:
      lives[v] = (i, max(last, lives.get(v, (i, i))[1]))
  return lives
