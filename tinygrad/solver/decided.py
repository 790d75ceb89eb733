"""Ops built as was decided for each of them: its sources where it wants them, its result where that is to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tinygrad.device import Placement, Sharding, reduced_placement
from tinygrad.sharding.costs import Costs
from tinygrad.sharding.moves import wire
from tinygrad.sharding.outcomes import is_partial, outcomes
from tinygrad.solver.contractions import Contraction
from tinygrad.solver.graph import Answer
from tinygrad.uop import GroupOp, Hooks, Move, Ops, UOp
from tinygrad.uop.rewrite import Sources


def moved_to(x: UOp, target: Placement, why: UOp, hinted: bool = False) -> UOp:
  """`x` at a placement, for good, or, if `hinted`, until it is propagated again; `why`: whose line asks for it."""
  if x.device == target:
    return x
  v = UOp.new(Ops.MOVE, x.dtype, (x,), Move(target, True, hinted))
  return with_origin(v, why).named(target)


def with_origin(v: UOp, u: UOp) -> UOp:
  """`v`, which takes the place of u, with its line."""
  if v.origin is None:
    v.origin = u.origin
  return v


def by_hooks(u: UOp, src: Sources) -> UOp:
  """The op as the hooks build it on these sources; what they make comes from its line."""
  caller, Hooks.origin = Hooks.origin, u.origin
  try:
    return UOp.build(u.op, u.dtype, src, u.arg)
  finally:
    Hooks.origin = caller


class Decided:
  """Builds the ops of an answer that says how each is to run. `made`: what the nodes so far have become.

  A sum is not reduced where it arises if it is then where it is to be: `place` puts that off for as long as it may. One
  that is scattered is added to others of its kind before (one reduce-scatter instead of two).
  """

  def __init__(self, found: Answer, made: Mapping[UOp, UOp]) -> None:
    assert found.decisions is not None
    self.found, self.decisions, self.made = found, found.decisions.ops, made
    self.copies = found.decisions.copies
    self.read = Counter(s for u in found.asked.order for s in u.src)
    self.costs = Costs()

  def op(self, u: UOp, src: Sources, target: Placement) -> UOp:
    """An op that is no part of a contraction, or the sum of one, whose product has been built."""
    if (partial := self.unreduced(u, src)) is not None:
      return self.result(partial, u, target)
    if u not in self.found.asked.contractions.by_reduce:
      src = tuple([self.source(u, s, x, need) for s, x, need in zip(u.src, src, self.needs(u))])
    v = as_sources(u, src)
    if is_partial(v.device) and reduced_placement(v.device) != target:
      whole = tuple([moved_to(x, reduced_placement(x.device), u, hinted=True) if x.device else x for x in src])
      if nbytes_to(v, target) > sum(nbytes_to(x, y.device) for x, y in zip(src, whole)):
        v = as_sources(u, whole)  # a number for each row is reduced before it is repeated along it
    return self.result(v, u, target)

  def result(self, v: UOp, u: UOp, target: Placement) -> UOp:
    there = isinstance(v.device, Sharding) and v.device == target
    return v if there or not isinstance(v.device, Sharding) else moved_to(with_origin(v, u), target, u, hinted=True)

  def needs(self, u: UOp) -> tuple[Placement | None, ...]:
    decision = self.decisions.get(u)
    return decision.needs if decision is not None else tuple([self.found[s] for s in u.src])

  def source(self, u: UOp, s: UOp, x: UOp, need: Placement | None) -> UOp:
    """A source, which was s, where the op wants it; one that is only to be reduced there stays partial as long as it
    may. It comes by way of its copy where that saves bytes."""
    if need is None or not isinstance(x.device, Sharding) or x.device.reduced == need:
      return x
    copy = self.copies.get(self.found.asked.number.get(s, -1))
    size = x.shape, x.dtype.itemsize
    if copy is not None and (copy == need or wire(*size, copy, need) < wire(*size, x.device, need)):
      x = moved_to(x, copy, s, hinted=True)
    return moved_to(x, need, u, hinted=True)

  def product(self, mul: UOp, c: Contraction, src: Sources) -> UOp:
    """A MUL of a contraction on its operands, each brought to where it is wanted below all views of it."""
    decision = self.decisions.get(c.reduce)
    if decision is None or decision.product is None or not any(isinstance(s.device, Sharding) for s in src):
      return by_hooks(mul, src)
    brought, mine = list[UOp](), c.of(mul)
    for s, operand, need in zip(mul.src, c.operands[mine], decision.needs[mine]):
      x = self.viewed(s, operand, self.source(c.reduce, operand, self.made[operand], need))
      brought.append(self.costs.build(x, decision.product) if isinstance(x.device, Sharding) else x)
    return by_hooks(mul, tuple(brought))

  def viewed(self, s: UOp, operand: UOp, x: UOp) -> UOp:
    """The views that lie between an operand and a product, over what the operand has become."""
    if s is operand:
      return x
    below = self.viewed(s.src[0], operand, x)
    return below if s.op is Ops.MOVE else by_hooks(s, (below,))

  def unreduced(self, u: UOp, src: Sources) -> UOp | None:
    """An elementwise op on sums before these are scattered, if it may run there and nothing else reads them."""
    if u.op not in GroupOp.Elementwise or any(s.dtype.itemsize < u.dtype.itemsize for s in src):
      return None
    partial = []
    for s, x in zip(u.src, src):
      if isinstance(x.device, Sharding):
        scattered = x.op is Ops.MOVE and x.arg.hinted and is_partial(x.src[0].device) and self.read[s] == 1
        if not scattered:
          return None
        x = x.src[0]
      partial.append(x)
    if len({x.device for x in partial if isinstance(x.device, Sharding)}) != 1:
      return None
    ways = outcomes(u.op, u.dtype, tuple(partial), u.arg)
    return UOp.new(u.op, u.dtype, tuple(partial), u.arg) if any(o.stays and o.defers for o in ways) else None


def nbytes_to(x: UOp, target: Placement | None) -> float:
  """What a device receives where x is moved."""
  return 0.0 if x.device is None or target is None else wire(x.shape, x.dtype.itemsize, x.device, target)


def as_sources(u: UOp, src: Sources) -> UOp:
  """An op where its sources are, if these agree; else by the fewest bytes."""
  if not any(is_partial(s.device) for s in src) and any(o.stays for o in outcomes(u.op, u.dtype, src, u.arg)):
    return UOp.new(u.op, u.dtype, src, u.arg)
  return by_hooks(u, src)
