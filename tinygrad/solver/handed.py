"""Which value a gradient was asked for by: it is handed out where that is, once that is placed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping

from tinygrad.uop import Ops, UOp

_targets: weakref.WeakKeyDictionary[UOp, weakref.ref[UOp]] = weakref.WeakKeyDictionary()


def before_moves(u: UOp) -> UOp:
  """What a value was before moves that nobody asked for, or that were made with a hint."""
  return next(v for v in u.down() if not is_decided_anew(v))


def is_decided_anew(u: UOp) -> bool:
  """Whether a node is a move that nobody asked for, or is made with its hint, or with what an op takes whole."""
  return u.op is Ops.MOVE and (not u.arg.pinned or u.arg.hinted or u.arg.whole)


def note_gradient(g: UOp, target: UOp) -> None:
  """Notes what g is the gradient by. A constant is another program's, too."""
  if (g := before_moves(g)).device is not None:
    _targets[g] = target.ref


def gradient_targets(order: Iterable[UOp]) -> dict[UOp, UOp]:
  """Of each node of a graph that is a gradient, what it is by, if that is in the graph."""
  found = {u: t for u in order if (ref := _targets.get(u)) is not None and (t := ref()) is not None}
  there = set(order) if found else set()
  return {u: t for u, t in found.items() if t in there}


def follow_gradients(made: Mapping[UOp, UOp], gradients: Mapping[UOp, UOp]) -> None:
  """Notes it of what gradients and their targets have become."""
  for u, t in gradients.items():
    note_gradient(made[u], made[t])
