"""Index maps along cut dims: PAD, SHRINK, FLIP, CAT, WINDOW and SPREAD in a row, and the implied moves between them,
are one template, which travels once."""

import itertools
from collections import Counter

from tinygrad.device import Placement, Sharding, same_devices
from tinygrad.ops import Trait, having
from tinygrad.sharding.partial import partials_of
from tinygrad.uop import Factors, GroupOp, Ops, UOp, factor_rule

STRIDED = having(Trait.STRIDED)


def template_of(u: UOp, readers: Counter[UOp]) -> tuple[UOp, list[UOp]]:
  """u as an expression over HOLEs, and the values that fill them: the index maps, and the implied moves between them,
  in a row below u."""
  holes: list[UOp] = []

  def hole(s: UOp) -> UOp:
    holes.append(s)
    return UOp.new(Ops.HOLE, s.dtype, (), (len(holes) - 1, s.shape))

  def fill(s: UOp) -> UOp:
    if s.device is None:
      return s
    if readers[s] == 1:
      if s.op is Ops.MOVE and not s.arg.pinned and moves_freely(s):
        return fill(s.src[0])
      if s.op in GroupOp.Movement and leads_to_remap(s):
        return s.replace(src=tuple(fill(x) for x in s.src))
    return hole(s)

  if u.op is not Ops.MOVE:
    return u.replace(src=tuple(fill(s) for s in u.src)), holes
  return (fill if moves_freely(u) else hole)(u.src[0]), holes


def leads_to_remap(u: UOp) -> bool:
  """Whether u is a row of movement ops with an index map along a cut dim in it."""

  def passed(v: UOp) -> bool:
    return v.op in GroupOp.Movement or (v.op is Ops.MOVE and not v.arg.pinned and moves_freely(v))

  return any(map(is_remap, itertools.takewhile(passed, u.down())))


def is_remap(u: UOp) -> bool:
  """Whether u maps indices along a dim that is cut."""
  if u.op not in GroupOp.Remapping:
    return False
  dims = touched(u, factor_rule(u))
  return any(isinstance(v.device, Sharding) and v.device.cut(i) for v in (u, *u.src) for i in dims)


def moves_freely(u: UOp) -> bool:
  """Whether a MOVE of what is not repeated stays on one device set and reduces nothing: part of an index map."""
  x = u.src[0]
  if x.device is None or u.device is None or partials_of(x) or partials_of(u) or x.op is Ops.EXPAND:
    return False
  return same_devices(x.device, u.device)


def touched(u: UOp, f: Factors) -> set[int]:
  """The result dims along which u's index map is not the identity, or depends on the index along a dim that must then
  be whole."""
  return {*f.remapped, *((u.arg[1],) if u.op in STRIDED else ())}


def is_cut(p: Placement | None) -> bool:
  return isinstance(p, Sharding) and bool(p.dims)
