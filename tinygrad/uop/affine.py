"""Index expressions as sums `const + Σ coefficient·atom`: strides are read off them, and address arithmetic is rebuilt
from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from tinygrad.dtype import dtypes
from tinygrad.uop.node import UOp
from tinygrad.uop.op import Ops


class Affine(NamedTuple):
  """`const + Σ terms[atom]·atom`; an atom is a RANGE, a VARIABLE, or an expression that is not affine. No coefficient
  is 0."""

  const: int
  terms: dict[UOp, int] = {}  # never changed

  def plus(self, other: Affine, factor: int = 1) -> Affine:
    """self + factor·other"""
    terms = dict(self.terms)
    for atom, c in other.terms.items():
      if total := terms.get(atom, 0) + c * factor:
        terms[atom] = total
      else:
        terms.pop(atom, None)
    return Affine(self.const + other.const * factor, terms)

  def scaled(self, factor: int) -> Affine:
    return Affine(self.const * factor, {a: c * factor for a, c in self.terms.items()} if factor else {})

  def bounds(self) -> tuple[int, int]:
    """(least, greatest) value, from the bounds of the atoms taken as independent."""
    lo = hi = self.const
    for atom, c in self.terms.items():
      a, b = atom.bounds
      lo, hi = lo + min(a * c, b * c), hi + max(a * c, b * c)
    return lo, hi

  def divisor(self) -> int:
    """The greatest number that divides it, whatever integers the atoms are."""
    return math.gcd(self.const, *self.terms.values())

  def split(self, m: int) -> tuple[Affine, Affine]:
    """(q, rest): self == m·q + rest, with the multiples of m in q; the constant of rest is in [0, m)."""
    q = {a: c // m for a, c in self.terms.items() if c % m == 0}
    return Affine(self.const // m, q), Affine(self.const % m, {a: c for a, c in self.terms.items() if c % m})

  def uop(self) -> UOp:
    out: UOp | None = None
    for atom, c in self.terms.items():
      term = atom if c == 1 else UOp.new(Ops.MUL, dtypes.index, (atom, index(c)))
      out = term if out is None else UOp.new(Ops.ADD, dtypes.index, (out, term))
    if out is None:
      return index(self.const)
    return UOp.new(Ops.ADD, dtypes.index, (out, index(self.const))) if self.const else out


def index(n: int) -> UOp:
  return UOp.new(Ops.CONST, dtypes.index, (), n)


def plain(root: UOp, memo: dict[UOp, UOp | None] | None = None) -> UOp | None:
  """An integer expression as an index, if its type holds all of its values."""
  if root.dtype is dtypes.index:
    return root
  made: dict[UOp, UOp | None] = {} if memo is None else memo
  for u in root.toposort(lambda u: u.op in _PLAIN and u.dtype is not dtypes.index and u not in made):
    src = tuple([x for s in u.src if (x := s if s.dtype is dtypes.index else made.get(s)) is not None])
    made[u] = None
    if dtypes.is_int(u.dtype) and len(src) == len(u.src):
      x = src[0] if u.op is Ops.CAST else UOp.new(u.op, dtypes.index, src, u.arg)
      if x.vmin >= dtypes.min(u.dtype) and x.vmax <= dtypes.max(u.dtype):
        made[u] = x
  return made.get(root)


def row_major(digits: Iterable[tuple[UOp, int]]) -> UOp:
  """The place of an element by (number, extent) along each dim, the outermost first."""
  place = index(0)
  for i, n in digits:
    place = UOp.new(Ops.ADD, dtypes.index, (UOp.new(Ops.MUL, dtypes.index, (place, index(n))), i))
  return place


def affine(u: UOp, memo: dict[UOp, Affine]) -> Affine:
  """The affine form of an integer expression; floor division and modulo by constants are taken apart where bounds
  allow."""
  if (found := memo.get(u)) is not None:
    return found
  if u.op in _TAKEN_APART:  # no recursion: sums may be longer than the stack
    for v in u.toposort(lambda v: v.op in _TAKEN_APART and v not in memo):
      memo[v] = _affine(v, memo)
  else:
    memo[u] = _affine(u, memo)
  return memo[u]


_TAKEN_APART = frozenset((Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL, Ops.IDIV, Ops.MOD))
_PLAIN = frozenset((Ops.CONST, Ops.CAST, Ops.ADD, Ops.SUB, Ops.MUL))


def _affine(u: UOp, memo: dict[UOp, Affine]) -> Affine:
  match u.op:
    case Ops.CONST:
      return Affine(int(u.arg))
    case Ops.ADD:
      return affine(u.src[0], memo).plus(affine(u.src[1], memo))
    case Ops.SUB:
      return affine(u.src[0], memo).plus(affine(u.src[1], memo), -1)
    case Ops.NEG:
      return affine(u.src[0], memo).scaled(-1)
    case Ops.MUL:
      x, y = affine(u.src[0], memo), affine(u.src[1], memo)
      if not y.terms:
        return x.scaled(y.const)
      if not x.terms:
        return y.scaled(x.const)
    case Ops.IDIV | Ops.MOD:
      x, d = affine(u.src[0], memo), affine(u.src[1], memo)
      if not d.terms and d.const > 0:
        return _divided(u.op, x, d.const)
  return Affine(0, {u: 1})


def _divided(op: Ops, x: Affine, d: int) -> Affine:
  """x // d or x % d for d > 0: of x == d·q + rest, rest alone has to be divided, unless 0 <= rest < d; and of that what
  is less than a common factor of d and the others stays out: (8·i + k) // 16 is i // 2 for k < 8."""
  q, rest = x.split(d)
  lo, hi = rest.bounds()
  if lo // d == hi // d:
    return rest.plus(Affine(-(lo // d * d))) if op is Ops.MOD else q.plus(Affine(lo // d))
  for g in sorted({math.gcd(d, c) for c in rest.terms.values()} - {1}, reverse=True):
    whole, small = rest.split(g)
    lo, hi = small.bounds()
    if 0 <= lo and hi < g:
      part = _divided(op, whole, d // g)
      return small.plus(part, g) if op is Ops.MOD else q.plus(part)
  part = Affine(0, {UOp.new(op, dtypes.index, (rest.uop(), index(d))): 1})
  return part if op is Ops.MOD else q.plus(part)
