"""Index arithmetic: flat and split indices, and conditions on them."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.dtype import dtypes
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.dims import is_int, sint, upper
from tinygrad.uop.node import UOp
from tinygrad.uop.node import sint_to_uop as number
from tinygrad.uop.op import Ops
from tinygrad.uop.symbolic import join_remainders, linear, normal, simplify

Index = tuple[UOp, ...]


def flat_index(idx: Sequence[UOp], sizes: Sequence[sint]) -> UOp:
  """Row-major: ((i0*n1 + i1)*n2 + i2)…"""
  total, stride = Affine(0), 1
  for i, n in zip(reversed(idx), reversed(sizes)):
    x, step = (simplify(i), stride) if isinstance(stride, int) else (i * stride, 1)
    lo, hi = x.bounds
    more = (linear(x) if lo < hi else Affine(lo)).scaled(step)
    total, stride = join_remainders(more.plus(total)), stride * n
  return normal(total)


def both(a: UOp | None, b: UOp | None) -> UOp | None:
  """The conjunction of two conditions, simplified, None being True."""
  found = b if a is None else a if b is None else simplify(UOp.new(Ops.AND, dtypes.bool, (a, b)))
  return None if found is not None and found.op is Ops.CONST and found.arg else found


def at_least(x: UOp, low: sint) -> UOp:
  """low <= x"""
  return simplify(UOp.new(Ops.CMPLT, dtypes.bool, (number(low - 1), x)))


def below(x: UOp, high: sint) -> UOp:
  """x < high"""
  return simplify(UOp.new(Ops.CMPLT, dtypes.bool, (x, number(high))))


def is_false(c: UOp | None) -> bool:
  return c is not None and c.op is Ops.CONST and not c.arg


def reshape_index(idx: Index, new: Sequence[sint], old: Sequence[sint]) -> Index:
  """The index into `old` of the element that stands at `idx` in `new`: same flat position, group by group of dims with
  equal products."""
  out: list[UOp] = []
  i = j = 0
  while i < len(new) or j < len(old):
    i0, j0 = i, j
    a: sint = 1
    b: sint = 1
    while True:
      if i < len(new) and (i == i0 or j == len(old) or (j > j0 and upper(a) < upper(b))):
        a, i = a * new[i], i + 1
      elif j < len(old):
        b, j = b * old[j], j + 1
      if (a is b or a == b) if isinstance(a, int) or isinstance(b, int) else simplify(a) is simplify(b):
        break
      if i == len(new) and j == len(old):
        break
    if j - j0 == 1 and i - i0 == 1:
      out.append(idx[i0])
      continue
    flat = flat_index(idx[i0:i], new[i0:i])
    group: list[UOp] = []
    for k, n in reversed(list(enumerate(old[j0:j]))):
      if is_int(n, 1):
        group.append(number(0))
      elif all(is_int(m, 1) for m in old[j0 : j0 + k]):
        group.append(flat)
      else:
        group.append(simplify(flat % n))
        flat = simplify(flat // n)
    out += reversed(group)
  return tuple(out)


def all_of(*gates: UOp | None) -> UOp | None:
  """The conjunction of conditions, None being True, as it is written; `both` simplifies it, too."""
  out: UOp | None = None
  for g in gates:
    out = g if out is None else out if g is None else UOp.new(Ops.AND, dtypes.bool, (out, g))
  return out


def gated(where: UOp, gate: UOp) -> UOp:
  """An INDEX that holds under one more condition."""
  return where.replace(src=(*where.src[:2], all_of(where.src[2] if len(where.src) > 2 else None, gate)))


def within_bounds(x: UOp, end: UOp) -> UOp:
  """x, or the last of `end`; 0 where there is none."""
  last = affine(end, {}).plus(Affine(-1)).uop()
  out = x if x.vmax <= last.vmin else UOp.new(Ops.MIN, dtypes.index, (x, last))
  return UOp.new(Ops.MAX, dtypes.index, (out, index(0))) if last.vmin < 0 else out
