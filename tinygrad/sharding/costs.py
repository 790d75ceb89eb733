"""The bytes of bringing a value to a placement, and the form that costs these: the value itself moved, its source moved
below a movement op, or an earlier placement of it."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.device import Placement, Sharding, reduced_placement
from tinygrad.sharding.factors import source_placement
from tinygrad.sharding.moves import wire
from tinygrad.sharding.outcomes import Nodes, Outcome
from tinygrad.uop import GroupOp, Move, Ops, UOp

PUSHED = GroupOp.Rearranging  # a move may go below these


def wants_push(u: UOp) -> bool:
  return u.op in PUSHED or (u.op is Ops.CAST and u.dtype.itemsize > u.src[0].dtype.itemsize)


class Costs:
  """Costs and forms of values at placements; one object a decision, so that shared parts are priced once."""

  __slots__ = ("memo",)

  def __init__(self, memo: dict[tuple[UOp, Placement], tuple[float, str]] | None = None) -> None:
    self.memo = {} if memo is None else memo

  def cost(self, u: UOp, target: Placement) -> float:
    """Bytes received per device to have `u` at `target`: the least over u itself, u's source below movement, an earlier
    placement."""
    return self.best(u, target)[0]

  def best(self, u: UOp, target: Placement) -> tuple[float, str]:
    if u.device == target or u.device is None:
      return 0.0, "unreduce" if u.device is None and isinstance(target, Sharding) and target.partial else "keep"
    key = (u, target)
    if (known := self.memo.get(key)) is not None:
      return known
    found = (wire(u.shape, u.dtype.itemsize, u.device, target), "move")
    if found[0] > 0:
      if u.op is Ops.MOVE and not u.arg.pinned and (c := self.cost(u.src[0], target)) <= found[0]:
        found = (c, "earlier")
      if (
        wants_push(u)
        and (there := source_placement(u, target)) is not None
        and (c := self.cost(u.src[0], there)) <= found[0]
      ):
        found = (c, "below")
    self.memo[key] = found
    return found

  def moved(self, src: Sequence[UOp], o: Outcome) -> float:
    """Bytes of bringing the sources to where the outcome wants them."""
    return sum(self.cost(s, r) for s, r in zip(src, o.required) if r is not None)

  def brought(self, src: Sequence[UOp], o: Outcome) -> Nodes:
    """The sources there."""
    return tuple([s if r is None else self.build(s, r) for s, r in zip(src, o.required)])

  def build(self, u: UOp, target: Placement) -> UOp:
    """The form of `u` at `target` that `best` found."""
    match self.best(u, target)[1]:
      case "keep":
        return u
      case "earlier":
        return self.build(u.src[0], target)
      case "below":
        there = source_placement(u, target)
        assert there is not None
        u = UOp.new(u.op, u.dtype, (self.build(u.src[0], there),), u.arg)
    return u if u.device == target else UOp.new(Ops.MOVE, u.dtype, (u,), Move(target, False))


def deliver(u: UOp, placement: Placement) -> UOp:
  """`u` at `placement` in the cheapest form, by implied moves."""
  return Costs().build(u, placement)


def at_placement(x: UOp, device: Placement | None) -> UOp:
  """x where a root or an assignment shows it."""
  return x if device is None or x.device is None else deliver(x, reduced_placement(device))
