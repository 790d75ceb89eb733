"""Partial values: which ops may run on the parts of a value before they are reduced, by the rule on the op's card.

`f` may run before the reduction exactly when f(red(x_d), rest) = red(f(x_d), rest). Then partial sources stay as they
are, others are made partial where they would count once per device (a MOVE to a partial placement: one coordinate holds
the value, the others the identity), and the result is partial. The identities of empty blocks survive each op that is
allowed here. Equal in the reals and modulo 2^k only: `Context(DEFER=0)` is the exact setting."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Partial, Sharding, SubAxis, merge_sub_axes
from tinygrad.device.sub_axes import overlap
from tinygrad.dtype import DType, dtypes
from tinygrad.ops import Trait, having
from tinygrad.ops.elementwise import MIRROR
from tinygrad.uop import CARDS, GroupOp, Ops, PartialRule, UOp, factor_rule, upper

Partials = tuple[Partial, ...]
ZERO_AT_ZERO, DIVIDES, STRIDED = having(Trait.ZERO_AT_ZERO), having(Trait.DIVIDES), having(Trait.STRIDED)


@dataclass(frozen=True, slots=True)
class Kept:
  """A way to run an op before the reduction: over what each source is to be partial (as it is, what it is made, or
  nothing: reduced), and over what the result then is."""

  sources: tuple[Partials, ...]
  result: Partials


def partials_of(u: UOp) -> Partials:
  return u.device.partial if isinstance(u.device, Sharding) else ()


def keep(op: Ops, dtype: DType, src: Sequence[UOp], arg: Any) -> Kept | None:
  """The table: how `op` runs on partial sources; None where they have to be reduced before.

  `src` are the nodes themselves: constants are looked at for their value, finiteness and sign, lookups for their index.
  """
  partials = tuple(partials_of(s) for s in src)
  unreduced, ops = [i for i, d in enumerate(partials) if d], {o.op for d in partials for o in d}
  if not unreduced or len(ops) > 1:
    return None
  by = ops.pop()
  case = Case(op, dtype, tuple(src), arg, partials, unreduced, by, by in MIRROR, dtypes.is_float(dtype))
  found = _RULES[CARDS[op].partial](case)
  return found if found is not None else _disjoint(case)


@dataclass(frozen=True, slots=True)
class Case:
  """An op whose sources `unreduced` are partial by `by`."""

  op: Ops
  dtype: DType
  src: tuple[UOp, ...]
  arg: Any
  partials: tuple[Partials, ...]
  unreduced: list[int]
  by: Ops
  extremum: bool  # whether that is max or min
  floating: bool

  def stay(self, by: Ops | None = None) -> Kept | None:
    """All sources stay as they are; the result is partial over what they are together, by `by` if the op turns it
    around."""
    partial = union([self.partials[i] for i in self.unreduced])
    if partial is None:
      return None
    return Kept(self.partials, partial if by is None else tuple(Partial(o.sub_axes, by, o.disjoint) for o in partial))

  def with_unreduced(self, among: Sequence[int]) -> Kept | None:
    """As `stay`, with the sources in `among` made partial over the same, so that they count once: those whose elements
    are the identity count as often as they like, and of max and min all do."""
    kept = self.stay()
    if kept is None or self.extremum:
      return kept
    neutral = 0 if self.by is Ops.ADD else 1
    plain = tuple(Partial(o.sub_axes, o.op) for o in kept.result)
    sources, same = list(self.partials), True
    for i in among:
      if _sub_axes(self.partials[i]) == _sub_axes(kept.result) or constant(self.src[i]) == neutral:
        continue
      sources[i], same = plain, False
    if same and aligned([self.src[i] for i in self.unreduced]):
      return Kept(tuple(sources), kept.result)
    return Kept(tuple(sources), plain)


def union(partials: Sequence[Partials]) -> Partials | None:
  """All of these entries of one op: the same sub-axes, or sub-axes of which no two overlap; else None."""
  out = list(partials[0])
  for more in partials[1:]:
    if _sub_axes(more) == _sub_axes(out):
      same = len(out) == len(more)
      out = [Partial(o.sub_axes, o.op, same and o.disjoint and more[i].disjoint) for i, o in enumerate(out)]
    elif any(overlap(a, b) for a in _sub_axes(out) for b in _sub_axes(more)):
      return None
    else:
      out += more
  return tuple(out)


def _sub_axes(partials: Sequence[Partial]) -> tuple[SubAxis, ...]:
  """All sub-axes of the entries, merged: one entry over two adjacent sub-axes says what two entries do."""
  return merge_sub_axes(sorted((d for o in partials for d in o.sub_axes), key=lambda d: -d.stride))


# ---------------------------------------------------------------- what is known of an operand


def rearranged(u: UOp) -> UOp:
  """What every element of `u` is an element of."""
  return next(v for v in u.down() if v.op not in GroupOp.Rearranging and v.op is not Ops.MOVE)


def constant(u: UOp) -> Any:
  """The value that all elements of `u` have, if it is a constant; else None."""
  u = rearranged(u)
  if u.op is Ops.CAST and (value := constant(u.src[0])) is not None:
    return UOp.const(u.src[0].dtype, value).cast(u.dtype).arg
  return u.arg if u.op is Ops.CONST else None


def may_scale(u: UOp) -> bool:
  """Whether parts may be multiplied or divided by `u`, for all that can be known of it: by 0, inf and nan a part could
  become inf or nan where the whole does not (of 3 + -1 over 0: inf - inf)."""
  value = constant(u)
  return value is None or (value != 0 and math.isfinite(value))


def is_finite(u: UOp) -> bool:
  """Whether every element is known to be finite: a finite constant, a counter, or an integer in a wide enough float."""
  u = rearranged(u)
  if u.op is Ops.CAST and u.dtype in (dtypes.float32, dtypes.float64) and not dtypes.is_float(u.src[0].dtype):
    return True
  return u.op is Ops.IOTA or (u.op is Ops.CONST and math.isfinite(u.arg))


# ---------------------------------------------------------------- the rows of the table


def _movement(c: Case) -> Kept | None:
  """Every element of the result is one of a source's: keep. CAT chooses between sources, as WHERE does; a lookup needs
  its index reduced."""
  if c.op is Ops.GATHER:
    return c.stay() if c.unreduced == [0] else None
  return c.with_unreduced(range(len(c.src)))


def _pad(c: Case) -> Kept | None:
  """add keeps a fill of 0, mul of 1; max and min any, for every device holds it."""
  fill = c.arg[1] if c.op is Ops.PAD else 0
  return c.stay() if c.extremum or fill == (0 if c.by is Ops.ADD else 1) else None


def _select(c: Case) -> Kept | None:
  """The condition is the same on all devices; the branches are partial or made so."""
  return None if c.partials[0] else c.with_unreduced((1, 2))


def _sum(c: Case) -> Kept | None:
  """add keeps, the other operand counts once; max(x_d) + y = max(x_d + y) for finite y in floats; c - x turns max into
  min."""
  if c.by is Ops.ADD:
    return c.with_unreduced((0, 1)) if c.dtype is not dtypes.bool else None
  if not c.extremum or not c.floating or len(c.unreduced) > 1 or not is_finite(c.src[1 - c.unreduced[0]]):
    return None
  return c.stay(MIRROR[c.by] if c.op is Ops.SUB and c.unreduced == [1] else None)


def _extremum(c: Case) -> Kept | None:
  """max commutes with max, both may be partial; max(min(x_d), y) = min(max(x_d, y)) where y is not. A partial sum is
  reduced first: max(sum of x_d, y) is no sum of maxima."""
  return c.stay() if c.extremum and (c.by is c.op or len(c.unreduced) == 1) else None


def _product(c: Case) -> Kept | None:
  """(sum of x_d) y keeps, unless y is known to be 0 or not finite; two sums over different sub-axes multiply out, over
  the same ones the smaller is reduced first. max(x_d) c in floats: c > 0 keeps, c < 0 turns around. A product is made
  partial to."""
  if c.dtype is dtypes.bool or (c.op is Ops.FDIV and 0 not in c.unreduced):
    return None
  if c.by is Ops.MUL:
    return c.with_unreduced((0, 1))
  if c.op is Ops.FDIV and c.unreduced != [0]:
    return None
  if len(c.unreduced) == 2:
    return _two_sums(c) if c.by is Ops.ADD else None
  other = c.src[1 - c.unreduced[0]]
  if c.floating and not may_scale(other):
    return None
  if c.by is Ops.ADD:
    return c.stay()
  factor = constant(other) if c.floating else None
  return None if factor is None else c.stay(None if factor > 0 else MIRROR[c.by])


def _two_sums(c: Case) -> Kept | None:
  x, y = c.src
  if not any(overlap(d, e) for d in _sub_axes(c.partials[0]) for e in _sub_axes(c.partials[1])):
    return c.stay()
  if x is y or aligned((x, y)):
    return None
  return (
    Kept((c.partials[0], ()), c.partials[0])
    if upper(x.size) >= upper(y.size)
    else Kept(((), c.partials[1]), c.partials[1])
  )


def _negate(c: Case) -> Kept | None:
  """-(sum) = sum of -; max turns into min in floats (-INT_MIN is no maximum)."""
  if c.by is Ops.ADD:
    return c.stay()
  return c.stay(MIRROR[c.by]) if c.extremum and c.floating else None


def _reduce_same(c: Case) -> Kept | None:
  """Over another dim the same reduction: their order does not matter. Summed over dims along which owners differ, parts
  of a lookup are no longer in one place."""
  if c.arg[0] is not c.by:
    return None
  if any(o.disjoint for o in c.partials[0]) and not _owner_constant(c.src[0], c.arg[1]):
    return Kept(c.partials, tuple(Partial(o.sub_axes, o.op) for o in c.partials[0]))
  return c.stay()


def _scatter(c: Case) -> Kept | None:
  """Each update is in one row of the result, so a reduction by the same op may come later; parts of a lookup meet
  there."""
  if c.unreduced != [1] or c.arg[0] is not c.by:
    return None
  return Kept(c.partials, tuple(Partial(o.sub_axes, o.op) for o in c.partials[1]))


def _cast(c: Case) -> Kept | None:
  """Sums and products survive what is a ring homomorphism (integers to the same width or narrower) and wider floats;
  max and min what is monotone."""
  a, b = c.src[0].dtype, c.dtype
  if dtypes.bool in (a, b):
    return c.stay() if c.extremum and a is dtypes.bool else None
  if dtypes.is_float(a):
    wider = dtypes.is_float(b) and b.itemsize > a.itemsize
    return c.stay() if wider or (c.extremum and dtypes.is_float(b)) else None
  if dtypes.is_float(b):
    return c.stay() if c.extremum else None
  if not c.extremum:
    return c.stay() if b.itemsize <= a.itemsize else None
  preserved = b.itemsize > a.itemsize and (dtypes.is_unsigned(a) or not dtypes.is_unsigned(b))
  return c.stay() if preserved else None


_RULES: dict[PartialRule, Callable[[Case], Kept | None]] = {
  PartialRule.KEEP: _movement, PartialRule.PAD: _pad, PartialRule.SELECT: _select, PartialRule.SUM: _sum,
  PartialRule.EXTREMUM: _extremum, PartialRule.PRODUCT: _product, PartialRule.NEGATE: _negate,
  PartialRule.REDUCE_SAME: _reduce_same, PartialRule.SCATTER: _scatter, PartialRule.CAST: _cast,
  PartialRule.MONOTONE: lambda c: c.stay() if c.extremum else None, PartialRule.REDUCE_FIRST: lambda c: None,
}  # fmt: skip


# ---------------------------------------------------------------- disjoint: a lookup in a table cut by rows


def _disjoint(c: Case) -> Kept | None:
  """Where at most one coordinate is not zero, f(x) = sum of f(x_d) for every elementwise f with f(0) = 0, and for a
  reduction along which the owner does not change."""
  partial = c.partials[c.unreduced[0]]
  if not all(o.disjoint for o in partial) or any(c.partials[i] != partial for i in c.unreduced):
    return None
  if len(c.unreduced) > 1 and not aligned([c.src[i] for i in c.unreduced]):
    return None
  keeps = _owner_constant(c.src[0], c.arg[1]) if c.op is Ops.REDUCE else _zero_at_zero(c)
  return Kept(c.partials, partial) if keeps else None


def _zero_at_zero(c: Case) -> bool:
  """Whether the op is 0 where the partial sources are."""
  if c.op is Ops.CAST:
    return dtypes.bool not in (c.src[0].dtype, c.dtype)
  if c.op is Ops.MUL and len(c.unreduced) == 1 and c.floating and not may_scale(c.src[1 - c.unreduced[0]]):
    return False  # 0 * inf is nan
  if c.op in ZERO_AT_ZERO or (c.op in MIRROR and len(c.unreduced) == 2):
    return True
  other = constant(c.src[1 - c.unreduced[0]]) if len(c.src) == 2 else None
  if other is None:
    return False
  if c.op in MIRROR:
    return bool(other <= 0 if c.op is Ops.MAX else other >= 0)
  return c.unreduced == [0] and bool(other > 0 if c.op is Ops.POW else c.op in DIVIDES and other != 0)


@dataclass(frozen=True, slots=True)
class Lookup:
  """Where the rows of a value come from: the index, and the movement since. Equal ones have equal owners everywhere."""

  index: UOp
  table: Any  # placement and rows of the table
  movement: tuple[tuple[Ops, Any], ...]
  dims: frozenset[int]  # along which the owner changes


def lookup_of(u: UOp) -> Lookup | None:
  """The lookup by which `u` is disjointly partial; None where it cannot be told."""
  movement: list[UOp] = []
  for _ in range(64):
    unreduced = [s for s in u.src if partials_of(s)]
    if u.op is Ops.GATHER and not unreduced:
      dims = frozenset(range(u.src[1].ndim))
      for v in reversed(movement):
        dims = _moved(v, dims)
      cut = u.src[0].device
      assert isinstance(cut, Sharding)
      rows = cut.cut(u.arg), u.src[0].shape[u.arg]
      return Lookup(u.src[1], rows, tuple((v.op, v.arg) for v in reversed(movement)), dims)
    if (
      not unreduced
      or u.op is Ops.MOVE
      or u.op is Ops.GATHER
      or any(partials_of(s) != partials_of(unreduced[0]) for s in unreduced)
    ):
      return None
    if u.op in GroupOp.Movement or u.op is Ops.REDUCE:
      movement.append(u)
    u = unreduced[0]
  return None


def _moved(u: UOp, dims: frozenset[int]) -> frozenset[int]:
  """The dims of `u` along which the owner changes, given those of its source."""
  f = factor_rule(u)
  factors = {factor for i in dims for factor in f.src[0][i]} | (f.blocked if dims else frozenset())
  moved = {i for i, inner in enumerate(f.out) if factors & set(inner)}
  if u.op in STRIDED and moved & set(u.arg[:2]):
    moved |= set(u.arg[:2])
  return frozenset(moved)


def aligned(xs: Sequence[UOp]) -> bool:
  """Whether all come from one lookup in the same way, so that each element has one owner in all of them."""
  if not all(o.disjoint for x in xs for o in partials_of(x)):
    return False
  found = lookup_of(xs[0])
  return found is not None and all(x is xs[0] or lookup_of(x) == found for x in xs[1:])


def _owner_constant(x: UOp, axes: Sequence[int]) -> bool:
  found = lookup_of(x)
  return found is not None and not found.dims & set(axes)
