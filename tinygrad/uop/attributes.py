"""What a node knows of itself, given that its sources know it of themselves: its shape, device, bounds, loops and
key."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tinygrad.device import Placement
from tinygrad.dtype import dtypes
from tinygrad.helpers import blake2b
from tinygrad.uop.cards import CARDS
from tinygrad.uop.node import ATTRIBUTES, Hooks, UOp, uops_in
from tinygrad.uop.op import RANGES_FROM, GroupOp, Ops

_PLACED_BY_ARG = frozenset((Ops.BUFFER, Ops.MOVE))
_LOCAL = frozenset((Ops.SHARD, Ops.COLLECTIVE))
_AS_FIRST = frozenset((Ops.AFTER, Ops.ASSIGN, Ops.WAIT))


def _result_device(u: UOp) -> Placement | None:
  """The device of a node whose sources have theirs: a plain name passes through every op; placements follow the op's
  card."""
  op = u.op
  if op in _PLACED_BY_ARG:
    return u.arg.device  # type: ignore[no-any-return]
  if op in _LOCAL:
    return Hooks.result(u)  # the local view: on every device of the placement, without cuts
  if op in _AS_FIRST:
    return u.src[0].device
  device: Placement | None = None
  alike = True
  for s in u.src:
    d = s.device
    if d is not None and d is not device:
      alike, device = alike and device is None, d
  if device is None or (alike and (isinstance(device, str) or (op in GroupOp.KeepsPlacement and not device.partial))):
    return device
  return Hooks.result(u) if op is not Ops.SINK else None


# in each operand these only rise or only fall (IDIV by a divisor without 0), so their extremes are at the corners
_MONOTONE: dict[Ops, Callable[..., Any]] = {
  Ops.ADD: operator.add, Ops.SUB: operator.sub, Ops.MUL: operator.mul, Ops.NEG: operator.neg, Ops.MAX: max,
  Ops.MIN: min, Ops.IDIV: operator.floordiv, Ops.CMPLT: operator.lt, Ops.CAST: lambda x: x,
}  # fmt: skip
_LOGIC: dict[Ops, Callable[..., Any]] = {Ops.NOT: operator.not_, Ops.AND: operator.and_, Ops.OR: operator.or_}


_LEAVES: dict[Ops, Callable[[UOp], tuple[Any, Any]]] = {
  Ops.CONST: lambda u: (u.arg, u.arg), Ops.VARIABLE: lambda u: u.arg[1:3], Ops.BIND: lambda u: u.src[0].bounds,
  Ops.RANGE: lambda u: (0, max(u.src[0].vmax - 1, 0)),
}  # fmt: skip


def _bounds_of(u: UOp) -> tuple[Any, Any]:
  """Interval arithmetic; floor semantics of IDIV and MOD."""
  op, dtype = u.op, u.dtype
  if op in _LEAVES:
    return _LEAVES[op](u)
  if dtype is not dtypes.index and dtype is not dtypes.bool and dtype is not dtypes.void:
    return dtypes.min(dtype), dtypes.max(dtype)
  whole = (False, True) if dtype is dtypes.bool else (-(1 << 62), 1 << 62)
  if not u.src or not all(dtypes.is_int(s.dtype) or s.dtype is dtypes.bool for s in u.src):
    return whole
  (a, b), *rest = [s.bounds for s in u.src]
  c, d = rest[0] if rest else (0, 0)
  if b >= 1 << 63 or (c <= 0 <= d and op in (Ops.IDIV, Ops.MOD)):  # uint64 wraps
    return whole
  if (f := _MONOTONE.get(op) or (_LOGIC.get(op) if dtype is dtypes.bool else None)) is not None:
    corners = (f(a, c), f(a, d), f(b, c), f(b, d)) if rest else (f(a), f(b))
    return min(corners), max(corners)
  match op:
    case Ops.MOD:
      one = c == d and a // c == b // c
      return (a, b) if 0 <= a and b < c else (a % c, b % c) if one else (min(0, c + 1), max(0, d - 1))
    case Ops.CMPEQ:
      return a == b == c == d, not (b < c or d < a)
    case Ops.CMPNE:
      return b < c or d < a, not a == b == c == d
    case Ops.WHERE:
      return min(c, rest[1][0]), max(d, rest[1][1])
  return whole


def _key_of(u: UOp) -> bytes:
  own = f"{u.op.name} {u.dtype!r} {u.arg!r}".encode()
  return bytes(blake2b(own + b"".join([s.key for s in u.src]), digest_size=8).digest())


def _bound_in(u: UOp) -> frozenset[tuple[UOp, int]]:
  below = {s.bound for s in (*u.src, *uops_in(u.arg))}
  found = below.pop() if len(below) == 1 else frozenset[tuple[UOp, int]]().union(*below)
  return found | {(u.src[0], u.src[1].arg)} if u.op is Ops.BIND else found


def _loops_of(u: UOp) -> frozenset[UOp]:
  below = {s.loops for s in u.src}
  found = below.pop() if len(below) == 1 else frozenset[UOp]().union(*below)
  if u.op is Ops.RANGE:
    return found | {u}
  return found.difference(u.src[RANGES_FROM[u.op] :]) if u.op in RANGES_FROM else found


ATTRIBUTES.update(shape=lambda u: CARDS[u.op].shape(u), device=_result_device)
ATTRIBUTES.update(bounds=_bounds_of, key=_key_of, bound=_bound_in, loops=_loops_of)
