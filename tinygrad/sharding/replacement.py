"""Values that take the place of nodes in graphs that were built on these: what reads them is decided anew."""

import functools
from collections.abc import Mapping
from typing import Any

from tinygrad.helpers import Context
from tinygrad.sharding.costs import at_placement
from tinygrad.sharding.decisions import droppable
from tinygrad.sharding.outcomes import Nodes
from tinygrad.uop import GroupOp, Ops, UOp, substitute
from tinygrad.uop.selection import chosen_from, compares, is_computed


class Replacement:
  """Graphs with nodes replaced by values that may be placed otherwise: a partial sum by its buffer, which is whole,
  a constant by memory. A node is only ever built on sources that are placed for it, so what reads such a value goes
  through the placement function again, its implied moves dropped.

  What is compared with a value that it was chosen from, x with its greatest element, is not replaced in the comparison
  while x is not: x will be computed anew, and may be rounded otherwise than for the buffer. Both sides then come of the
  same computation. Linear in nodes; where placements stay and nothing of the kind is compared this is `substitute`."""

  def __init__(self, mapping: Mapping[UOp, UOp]) -> None:
    self.mapping = mapping
    self.done = dict(mapping)  # what takes the place of which node, for all graphs
    self.unread: dict[UOp, UOp] = {}  # the same for what a comparison reads, nothing chosen of it replaced
    self.picks: dict[UOp, bool] = {}  # of what is chosen: whether it is, or is chosen from, a node that is replaced
    self.computed: dict[UOp, int] = {}  # and from which computed values, a bit for each
    self.numbers: dict[UOp, int] = {}

  def of(self, root: UOp) -> UOp:
    """`root` with what is to be replaced in it."""
    return substitute(root, {}, self.done, self.rebuilt)

  def rebuilt(self, u: UOp, src: Nodes, arg: Any) -> UOp:
    """`u` on other sources: of a comparison, or some of another placement than its own."""
    if u.op in GroupOp.Comparison and self.is_apart(u):
      src = tuple([self.chosen(s) for s in u.src])
    return decided_anew(u, src, arg)

  def is_apart(self, u: UOp) -> bool:
    """Whether both sides of a comparison are chosen from one computed value, and something in between is replaced."""
    if not compares(u):
      return False
    x, y = map(self.sources, u.src)
    return bool(x & y) and any(self.picks.get(s, False) for s in u.src)

  def sources(self, root: UOp) -> int:
    """The computed values that `root` is chosen from, or is; notes what is to be known of what lies between."""
    picks, computed = self.picks, self.computed
    for u in root.toposort(lambda u: u not in computed and bool(chosen_from(u))):
      computed[u] = functools.reduce(int.__or__, map(self.bits, chosen_from(u)))
      picks[u] = u in self.mapping or any(picks.get(s, False) for s in chosen_from(u))
    return self.bits(root)

  def bits(self, u: UOp) -> int:
    if (known := self.computed.get(u)) is not None:
      return known
    return 1 << self.numbers.setdefault(u, len(self.numbers)) if is_computed(u) else 0

  def chosen(self, root: UOp) -> UOp:
    """`root` with nothing replaced but what it is chosen from."""
    unread, picks = self.unread, self.picks
    for u in root.toposort(lambda u: u not in unread and picks.get(u, False)):
      src = tuple([unread[s] if picks.get(s, False) and s in chosen_from(u) else self.of(s) for s in u.src])
      unread[u] = decided_anew(u, src, u.arg)
    return unread[root] if picks.get(root, False) else self.of(root)


def decided_anew(u: UOp, src: Nodes, arg: Any) -> UOp:
  """`u` on other sources, of which some may have another placement than its own."""
  if all(s is t or s.device == t.device for s, t in zip(u.src, src)):
    return u.replace(src=src, arg=arg)
  match u.op:
    case Ops.MOVE:
      return src[0] if droppable(u) else UOp.new(Ops.MOVE, u.dtype, src, arg)
    case Ops.ASSIGN:
      return UOp.new(Ops.ASSIGN, u.dtype, (src[0], at_placement(src[1], src[0].device)), arg)
    case Ops.AFTER | Ops.WAIT | Ops.SINK:
      return UOp.new(u.op, u.dtype, src, arg)
  unmoved = tuple([reachable_source(u, s, t.src[0] if droppable(t) else t) for s, t in zip(u.src, src)])
  with Context(RESHARD=1):  # where that forbids a move, the hooks have said so
    return UOp.build(u.op, u.dtype, unmoved, arg)


def reachable_source(u: UOp, old: UOp, new: UOp) -> UOp:
  """The source of `u` that takes the place of `old`. What had no device may have been given one that is not among
  `u`'s."""
  return new.move(u.device, pinned=False) if old.device is None and isinstance(u.device, str) else new
