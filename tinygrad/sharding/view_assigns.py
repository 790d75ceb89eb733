"""Writes into a part of a cut dim become writes of the whole buffer, of which each device has its part."""

import itertools
from collections.abc import Sequence

from tinygrad.dtype import dtypes
from tinygrad.ops import Trait, having
from tinygrad.sharding.costs import deliver
from tinygrad.sharding.index_maps import is_cut, is_remap
from tinygrad.uop import CARDS, GroupOp, Ops, UOp, substitute

WRITABLE = having(Trait.VIEW, Trait.ONE_TO_ONE)


def lower_view_assigns(sink: UOp) -> UOp:
  """ASSIGN into a view that cuts a part out of a cut dim -> ASSIGN of the whole buffer: the value inside the view, the
  old content outside."""
  mapping, done = dict[UOp, UOp](), dict[UOp, UOp]()
  for u in sink.toposort():
    if u.op is not Ops.ASSIGN or not is_cut(u.src[0].device):
      continue
    views = [*itertools.takewhile(lambda v: v.op in GroupOp.Movement, u.src[0].down())]
    if not any(map(is_remap, views)):
      continue
    value, base = substitute(u.src[1], mapping, done), substitute(views[-1].src[0], mapping, done)
    assert base.device is not None
    mapping[u] = UOp.new(Ops.ASSIGN, u.dtype, (base, deliver(overlaid(views, value, base), base.device)))
  return substitute(sink, mapping, done) if mapping else sink


def overlaid(views: Sequence[UOp], value: UOp, base: UOp) -> UOp:
  """The content of `base` once `value` is written into a view of it, which `views` lead to, the outermost first."""
  mask = UOp.const(dtypes.bool, True).broadcast_to(value.shape)
  for v in views:
    value, mask = unview(v, value), unview(v, mask)
  return mask.where(value, base)


def unview(v: UOp, x: UOp) -> UOp:
  """x, the content of the view v, in the coordinates of v's source; zero (False) outside: v's adjoint, as its card has
  it."""
  rule = CARDS[v.op].gradient
  assert rule is not None and v.op in WRITABLE, f"assign into a view made by {v.op.name}"
  (inside,) = rule(x, v)
  assert inside is not None
  return inside
