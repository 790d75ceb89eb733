"""What a decision can see of a value, as a small graph. The same decisions come again in every layer of a model: values
with one abstract value are decided on once (`decision_cache.py`)."""

from __future__ import annotations

import heapq
import itertools
import weakref
from typing import Any

from tinygrad.device import Placement, Sharding
from tinygrad.dtype import DType
from tinygrad.helpers import PROCESS
from tinygrad.ops import Trait, having
from tinygrad.sharding.outcomes import Nodes, is_partial
from tinygrad.sharding.partial import partials_of
from tinygrad.uop import BufferArg, Ops, UOp

CHAINED = having(Trait.SEEN_THROUGH)  # a decision looks through these, at what is below
SEEN = CHAINED | having(Trait.SEEN)  # whose abstract value is more than a leaf
COMPARED = having(Trait.PAIRED)  # of two sources it matters whether they are the same
_ABSTRACT = -(1 << 60)  # the buffers of abstract values have numbers that no other buffer has
leaves: dict[tuple[Any, ...], UOp] = PROCESS.table()


def leaf(dtype: DType, shape: tuple[Any, ...], device: Placement | None, number: int = 0) -> UOp:
  """The abstract value of any value of this type, shape and placement."""
  key = (dtype, shape, device, number)
  if (found := leaves.get(key)) is None:
    buffer = None if device is None else BufferArg(_ABSTRACT + number, shape, device)
    found = UOp.new(Ops.BUFFER if buffer else Ops.HOLE, dtype, (), buffer or (number, shape))
    assert found.shape == shape and found.device == device
    leaves[key] = found.abstract = found
  return found


def abstract_of(u: UOp) -> UOp:
  """What a decision can see of a value: itself if constant, the chain of movement, casts and moves above a `leaf`, the
  operands of a product (a sum of it is placed as one op), and all there is down to a lookup whose rows are partial. An
  abstract value is its own."""
  try:
    return u.abstract
  except AttributeError:
    u.abstract = seen = _see(u)
    return seen


def _see(u: UOp) -> UOp:
  if u.op in CHAINED:
    return rebuilt(u, (abstract_of(u.src[0]),), u.arg)
  if is_partial(u.device) and _is_disjoint(u):
    return rebuilt(u, distinguished(u.op, u.src, tuple([abstract_of(s) for s in u.src])), u.arg)
  if u.op is Ops.MUL:
    return rebuilt(u, tuple([flat(abstract_of(s)) for s in u.src]), u.arg)
  if u.op is Ops.CONST:
    return UOp.const(u.dtype, u.arg)  # without what makes it a tensor of its own
  return u if u.op in SEEN else leaf(u.dtype, u.shape, u.device)


class IndexNumbers:
  """A number for each index of a lookup, its own for as long as the index lives: the least that is free, so that the
  next step of a training decides as the one before. Found by hash; nothing is scanned."""

  __slots__ = ("free", "fresh", "known")

  def __init__(self) -> None:
    self.known: weakref.WeakKeyDictionary[UOp, int] = weakref.WeakKeyDictionary()
    self.free: list[int] = []  # a heap
    self.fresh = itertools.count(2)  # 0 is any value's, 1 the second of two factors

  def of(self, index: UOp) -> int:
    if (number := self.known.get(index)) is None:
      number = self.known[index] = heapq.heappop(self.free) if self.free else next(self.fresh)
      weakref.finalize(index, heapq.heappush, self.free, number).atexit = False
    return number


_indices = IndexNumbers()


def distinguished(op: Ops, src: Nodes, seen: Nodes) -> Nodes:
  """`seen`, the abstract values of `src`, where a decision asks whether sources are the same: two partial factors, and
  the indices of lookups whose rows are partial. These get numbers, that of an index is its own for as long as it
  lives."""
  if op is Ops.GATHER:
    table = seen[0].device
    if isinstance(table, Sharding) and table.dims and seen[1] is not src[1]:
      return seen[0], renamed(seen[1], _indices.of(src[1]))
  elif op is Ops.MUL and seen[0] is seen[1] and src[0] is not src[1] and is_partial(seen[0].device):
    if not _is_disjoint(seen[0]):
      return seen[0], renamed(seen[1], 1)
  return seen


def _is_disjoint(u: UOp) -> bool:
  return any(o.disjoint for o in partials_of(u))


def flat(u: UOp) -> UOp:
  """An abstract value that shows no product."""
  if u.op is Ops.MUL and not _is_disjoint(u):
    return leaf(u.dtype, u.shape, u.device)
  if u.op in CHAINED and (s := flat(u.src[0])) is not u.src[0]:
    return UOp.new(u.op, u.dtype, (s,), u.arg)
  return u


def renamed(u: UOp, number: int) -> UOp:
  """The abstract value of another value that looks like `u`."""
  if u.op in CHAINED:
    return UOp.new(u.op, u.dtype, (renamed(u.src[0], number),), u.arg)
  return u if u.op is Ops.CONST or u.op is Ops.IOTA else leaf(u.dtype, u.shape, u.device, number)


def rebuilt(like: UOp, src: Nodes, arg: Any) -> UOp:
  """The node on these sources, which has the shape and the placement of `like`."""
  v = UOp.new(like.op, like.dtype, src, arg)
  v.shape, v.device = like.shape, like.device
  return v
