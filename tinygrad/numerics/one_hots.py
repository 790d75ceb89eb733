"""Sums over what a comparison with a place chooses, as the reductions by index that they are: a histogram is written
so, and takes then a step for each element rather than one for each element and place. And what is made of the number of
the last that goes to a place, by that number itself."""

import math
from collections.abc import Sequence

from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.ops.reduce import nothing
from tinygrad.uop import GroupOp, Ops, UOp, simplify
from tinygrad.uop.affine import affine, plain
from tinygrad.uop.rewrite import Sources, on_sources, rebuild, substitute_free
from tinygrad.uop.symbolic import fold


def as_one_hots(kernel: UOp, target: Target) -> UOp:
  """The kernel with such reductions by index, on processors."""
  if target.threads or not any(u.op is Ops.CMPEQ for u in kernel.toposort()):
    return kernel

  def make(u: UOp, src: Sources) -> UOp:
    new = on_sources(u, src)
    return one_hot_fold(new) if new.op is Ops.FOLD else new

  return rebuild(kernel, make)


def one_hot_fold(f: UOp) -> UOp:
  """FOLD(row == place ? x : nothing) -> FOLD(ONE_HOT(row, place, x)), if each term has another row, and all one
  place."""
  terms = f.src[1:]
  if (chosen := chosen_in(f)) is not None:
    same, x = chosen
    for row, at in (same.src, same.src[::-1]):
      place = index_of(at)
      if place is not None and dtypes.is_int(row.dtype) and not among(terms, place) and among(terms, row):
        row = row if row.dtype is dtypes.index else UOp.new(Ops.CAST, dtypes.index, (row,))
        return f.replace(src=(UOp.new(Ops.ONE_HOT, f.dtype, (row, place, x), f.arg), *terms))
  return f


def chosen_in(f: UOp) -> tuple[UOp, UOp] | None:
  """(the comparison, what is reduced where it holds), if elsewhere the terms of a reduction change nothing."""
  x, none = f.src[0], nothing(f.arg, f.dtype)
  if x.op is Ops.CAST and x.src[0].op is Ops.CMPEQ and f.arg is Ops.ADD and dtypes.is_int(f.dtype):
    return x.src[0], UOp.const(f.dtype, 1)
  if x.op is not Ops.WHERE or x.src[0].op is not Ops.CMPEQ or x.src[2].op is not Ops.CONST:
    return None
  other = x.src[2].arg
  alike = other == none and math.copysign(1, other) == math.copysign(1, none)
  return (x.src[0], x.src[1]) if alike else None


def index_of(x: UOp) -> UOp | None:
  """The index that an integer is, by casts that keep its value."""
  while x.op is Ops.CAST and dtypes.is_int(x.dtype):
    inner, least, most = x.src[0], dtypes.min(x.dtype), dtypes.max(x.dtype)
    if not least <= inner.vmin <= inner.vmax <= most:
      return None
    x = inner
  return x if x.dtype is dtypes.index else None


def among(loops: tuple[UOp, ...], x: UOp) -> bool:
  """Whether x is another in each iteration of one of the loops."""
  below = x.toposort()
  return any(r in below for r in loops)


def rises(x: UOp, over: Sequence[UOp]) -> bool:
  """Whether x is a number that grows along the one loop."""
  terms = {} if (number := plain(x)) is None else affine(number, {}).terms
  return len(over) == 1 and terms.get(over[0], 0) > 0 and sum(over[0] in t.loops for t in terms) == 1


def with_number(value: UOp, f: UOp, x: UOp) -> UOp:
  """value(f) -> value(x), with the choices made that are known of x."""
  return rebuild(simplify(substitute_free(value, {f: x})), in_indices)


def in_indices(u: UOp, src: Sources) -> UOp:
  """op(CAST(x), CAST(y)) -> op(x, y) for a comparison, or a CAST to an index, of indices in types that hold them."""
  v, known = on_sources(u, src), tuple([x for s in src if (x := plain(s)) is not None])
  if u.op is Ops.CAST and u.dtype is dtypes.index and known:
    return known[0]
  return fold(UOp.new(u.op, u.dtype, known) if u.op in GroupOp.Comparison and len(known) == len(src) else v)
