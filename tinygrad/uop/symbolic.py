"""Bounds and simplification of integer expressions (dtype `index`), and constant folding for every dtype.

An index expression is kept as a sum `c0*a0 + c1*a1 + … + c` over atoms in a fixed order. IDIV and MOD are floor
division and its
remainder, for which the identities below hold for every sign of the numerator (Graham, Knuth, Patashnik: Concrete
Mathematics, ch. 3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.uop.cards import evaluate
from tinygrad.uop.ops import FACTS, GroupOp, Ops, UOp

Terms = dict[UOp, int]
_ALU = GroupOp.Elementwise - {Ops.BITCAST}


def integer(n: int) -> UOp:
  return UOp.new(Ops.CONST, dtypes.index, (), n)


def simplify(root: UOp) -> UOp:
  """The simplest equal expression; works on whole kernels too (every node is simplified, sources first)."""
  return root.simplified


def _simplified(u: UOp) -> UOp:
  src = tuple([s.simplified for s in u.src])
  v = u if src == u.src else u.replace(src=src)
  w = fold(v)
  w.simplified = v.simplified = w
  return w


def fold(u: UOp) -> UOp:
  """One node over simplified sources."""
  if u.op not in _ALU:
    return u
  if all(s.op is Ops.CONST for s in u.src) and (u.op is Ops.CAST or dtypes.index not in (u.dtype, u.src[0].dtype)):
    return fold_constants(u)
  if u.dtype is dtypes.index and u.op in _INDEX_RULES:
    lo, hi = u.bounds
    return integer(lo) if lo == hi else _INDEX_RULES[u.op](u)
  if u.op in GroupOp.Comparison and u.src[0].dtype is dtypes.index:
    lo, hi = u.bounds
    return UOp.const(dtypes.bool, lo) if lo == hi else fold_comparison(u)
  return fold_identity(u)


def fold_constants(u: UOp) -> UOp:
  """op(c0, c1) -> c, in the dtype's own arithmetic."""
  if u.op is Ops.CAST:
    return u.src[0].cast(u.dtype)
  with numpy.errstate(all="ignore"):
    xs = [numpy.full((), s.arg, dtype=to_numpy_dtype(s.dtype)) for s in u.src]
    value = numpy.asarray(evaluate(u, xs, ())).item()
  return UOp.const(u.dtype, value)


def fold_identity(u: UOp) -> UOp:
  """Neutral and absorbing operands: x*1, x/1, x&True, where(c, x, x), a cast to its own type, …; exact for nan, inf
  and -0.0.
  """
  x = u.src[0]
  y = u.src[1] if len(u.src) > 1 else x
  match u.op:
    case Ops.ADD if _is(y, 0) and (dtypes.is_int(u.dtype) or math.copysign(1, y.arg) < 0):
      return x
    case Ops.ADD if _is(x, 0) and (dtypes.is_int(u.dtype) or math.copysign(1, x.arg) < 0):
      return y
    case Ops.SUB if _is(y, 0) and (dtypes.is_int(u.dtype) or math.copysign(1, y.arg) > 0):
      return x
    case Ops.MUL if _is(y, 1):
      return x
    case Ops.MUL if _is(x, 1):
      return y
    case Ops.MUL if (_is(x, 0) or _is(y, 0)) and dtypes.is_int(u.dtype):
      return UOp.const(u.dtype, 0)
    case Ops.FDIV | Ops.IDIV if _is(y, 1):
      return x
    case Ops.AND | Ops.OR if u.dtype is dtypes.bool:
      for a, b in ((x, y), (y, x)):
        if a.op is Ops.CONST:
          return b if a.arg is (u.op is Ops.AND) else a
      return x if x is y else u
    case Ops.NOT if x.op is Ops.NOT:
      return x.src[0]
    case Ops.CAST if x.dtype is u.dtype:
      return x
    case Ops.WHERE:
      if x.op is Ops.CONST:
        return y if x.arg else u.src[2]
      if y is u.src[2]:
        return y
    case Ops.MAX | Ops.MIN if x is y:
      return x
  return u


def _is(u: UOp, value: int) -> bool:
  return u.op is Ops.CONST and u.arg == value and u.dtype is not dtypes.bool


# ---------------------------------------------------------------- sums


def plus(x: Mapping[UOp, int], y: Mapping[UOp, int], k: int = 1) -> Terms:
  """x + k*y, without atoms that cancel."""
  out = dict(x)
  for a, n in y.items():
    out[a] = out.get(a, 0) + k * n
  return {a: n for a, n in out.items() if n}


def linear(u: UOp) -> tuple[Terms, int]:
  """u as ({atom: coefficient}, constant)."""
  if u.op is Ops.CONST:
    return {}, u.arg
  if u.op is Ops.MUL and u.src[1].op is Ops.CONST:
    terms, c = linear(u.src[0])
    k = u.src[1].arg
    return {a: n * k for a, n in terms.items()}, c * k
  if u.op is Ops.ADD:
    terms, c = linear(u.src[0])
    more, d = linear(u.src[1])
    return plus(terms, more), c + d
  return {u: 1}, 0


def build_sum(terms: Mapping[UOp, int], c: int) -> UOp:
  """The expression of a sum in normal form: atoms by key, the constant last."""
  out: UOp | None = None
  for a in sorted((a for a, n in terms.items() if n), key=lambda a: a.key):
    n = terms[a]
    t = a if n == 1 else UOp.new(Ops.MUL, dtypes.index, (a, integer(n)))
    out = t if out is None else UOp.new(Ops.ADD, dtypes.index, (out, t))
  if out is None:
    return integer(c)
  return UOp.new(Ops.ADD, dtypes.index, (out, integer(c))) if c else out


def sum_bounds(terms: Mapping[UOp, int], c: int) -> tuple[int, int]:
  lo = hi = c
  for a, n in terms.items():
    b = a.bounds
    lo, hi = lo + (b[0] * n if n > 0 else b[1] * n), hi + (b[1] * n if n > 0 else b[0] * n)
  return lo, hi


def fold_sum(u: UOp) -> UOp:
  """Like terms joined; x//m*m + x%m -> x, and (x//m%n)*m + x%m -> x % (m*n)."""
  if u.op is Ops.NEG:
    terms, c = linear(u.src[0])
    return build_sum({a: -n for a, n in terms.items()}, -c)
  if u.op is Ops.MUL:
    x, y = u.src if u.src[1].op is Ops.CONST else u.src[::-1]
    if y.op is not Ops.CONST:
      return fold_product(u)
    terms, c = linear(x)
    return build_sum({a: n * y.arg for a, n in terms.items()}, c * y.arg)
  terms, c = linear(u.src[0])
  more, d = linear(u.src[1])
  sign = -1 if u.op is Ops.SUB else 1
  return build_sum(*join_remainders(plus(terms, more, sign), c + sign * d))


def join_remainders(terms: Terms, c: int) -> tuple[Terms, int]:
  """x//m*(k*m) + x%m*k -> x*k, and (x//m%n)*(k*m) + x%m*k -> x%(m*n)*k, to a fixed point."""
  again = True
  while again:
    again = False
    for a, k in list(terms.items()):
      if a.op is not Ops.MOD or a.src[1].op is not Ops.CONST:
        continue
      x, m = a.src[0], a.src[1].arg
      quotient = x // m
      joined: UOp | None = None
      if terms.get(quotient) == k * m:
        joined, partner = x, quotient
      else:
        for b, n in terms.items():
          if n == k * m and b.op is Ops.MOD and b.src[0] is quotient and b.src[1].op is Ops.CONST:
            joined, partner = x % (m * b.src[1].arg), b
            break
      if joined is not None:
        del terms[a], terms[partner]
        more, d = linear(joined)
        terms, c = plus(terms, more, k), c + d * k
        again = True
        break
  return terms, c


def fold_product(u: UOp) -> UOp:
  """Operands of a symbolic product in a fixed order, constants pulled out: (x*c)*y -> (x*y)*c."""
  x, y = u.src
  k = 1
  if x.op is Ops.MUL and x.src[1].op is Ops.CONST:
    x, k = x.src[0], k * x.src[1].arg
  if y.op is Ops.MUL and y.src[1].op is Ops.CONST:
    y, k = y.src[0], k * y.src[1].arg
  if y.key < x.key:
    x, y = y, x
  inner = UOp.new(Ops.MUL, dtypes.index, (x, y))
  return inner if k == 1 else UOp.new(Ops.MUL, dtypes.index, (inner, integer(k)))


# ---------------------------------------------------------------- division and remainder


def split_by_factor(terms: Terms, c: int, factors: Iterable[int]) -> tuple[int, Terms, int, Terms, int] | None:
  """The greatest g > 1 of `factors` such that the sum is g*y + s with 0 <= s < g: (g, terms of y, constant of y, terms
  of s, constant of s).
  """
  for g in sorted(set(factors), reverse=True):
    if g <= 1:
      break
    big = {a: n // g for a, n in terms.items() if n % g == 0}
    small = {a: n for a, n in terms.items() if n % g}
    lo, hi = sum_bounds(small, c % g)
    if lo >= 0 and hi < g:
      return g, big, c // g, small, c % g
  return None


def fold_floordiv(u: UOp) -> UOp:
  """(m*q + r)//m -> q + r//m; (g*y + s)//(g*n) -> y//n if 0 <= s < g; (x//a)//b -> x//(a*b); (x%(m*n))//m -> x//m%n."""
  x, y = u.src
  if y.op is not Ops.CONST or y.arg <= 0:
    return integer(1) if x is y and x.vmin > 0 else u
  m = y.arg
  if m == 1:
    return x
  terms, c = linear(x)
  whole = {a: n // m for a, n in terms.items() if n % m == 0}
  rest = {a: n for a, n in terms.items() if n % m}
  if whole or not 0 <= c < m:
    remainder = _divide(rest, c % m, m)
    more, d = linear(remainder)
    return build_sum(*join_remainders(plus(whole, more), c // m + d))
  return _divide(rest, c, m)


def _divide(terms: Terms, c: int, m: int) -> UOp:
  lo, hi = sum_bounds(terms, c)
  if lo // m == hi // m:
    return integer(lo // m)
  if (split := split_by_factor(terms, c, [math.gcd(n, m) for n in terms.values()])) is not None:
    g, big, d, _, _ = split
    return build_sum(big, d) // (m // g)
  if len(terms) == 1 and c == 0:
    ((a, n),) = terms.items()
    k: int = a.src[1].arg if n == 1 and a.op in (Ops.IDIV, Ops.MOD) and a.src[1].op is Ops.CONST else 0
    if k > 0 and a.op is Ops.IDIV:
      return a.src[0] // (k * m)
    if k > 0 and k % m == 0:
      return a.src[0] // m % (k // m)
  return UOp.new(Ops.IDIV, dtypes.index, (build_sum(terms, c), integer(m)))


def fold_mod(u: UOp) -> UOp:
  """(m*q + r)%m -> r%m; (g*y + s)%(g*n) -> g*(y%n) + s if 0 <= s < g; (x%(m*n))%m -> x%m; x%m -> x - m*k where x is
  in block k.
  """
  x, y = u.src
  if y.op is not Ops.CONST or y.arg <= 0:
    return u
  m: int = y.arg
  if m == 1:
    return integer(0)
  terms, c = linear(x)
  rest: Terms = {}
  for a, n in terms.items():
    if n % m == 0:
      continue
    inner = a.src[0] if a.op is Ops.MOD and a.src[1].op is Ops.CONST and (n * a.src[1].arg) % m == 0 else a
    more, d = linear(inner)
    rest, c = plus(rest, more, n), c + d * n
  rest, c = {a: n for a, n in rest.items() if n % m}, c % m
  lo, hi = sum_bounds(rest, c)
  if lo // m == hi // m:
    return build_sum(rest, c - lo // m * m)
  if (split := split_by_factor(rest, c, [math.gcd(n, m) for n in rest.values()])) is not None:
    g, big, d, small, s = split
    return build_sum(big, d) % (m // g) * g + build_sum(small, s)
  return UOp.new(Ops.MOD, dtypes.index, (build_sum(rest, c), integer(m)))


def fold_extremum(u: UOp) -> UOp:
  """max(x, y) and min(x, y) where the bounds decide them."""
  larger, smaller = u.src
  difference = larger - smaller
  if difference.vmin < 0:
    larger, smaller = smaller, larger
    if difference.vmax > 0:
      return u
  return larger if u.op is Ops.MAX else smaller


def fold_comparison(u: UOp) -> UOp:
  """x < y as terms < c with common factors divided out: g*y + s < c -> y < ceil((c - s)/g) where 0 <= s < g."""
  x, y = u.src
  terms, c = linear(x - y)
  lo, hi = sum_bounds(terms, c)
  if u.op is not Ops.CMPLT:
    if lo > 0 or hi < 0:
      return UOp.const(dtypes.bool, u.op is Ops.CMPNE)
    return u
  if hi < 0 or lo >= 0:
    return UOp.const(dtypes.bool, hi < 0)
  if (split := split_by_factor(terms, c, map(abs, terms.values()))) is not None:  # g*(y + d) + s < 0  <=>  y + d < 0
    _, terms, c, _, _ = split
  return UOp.new(Ops.CMPLT, dtypes.bool, (build_sum(terms, 0), integer(-c)))


_INDEX_RULES = {
  Ops.ADD: fold_sum, Ops.SUB: fold_sum, Ops.MUL: fold_sum, Ops.NEG: fold_sum, Ops.IDIV: fold_floordiv,
  Ops.MOD: fold_mod, Ops.MAX: fold_extremum, Ops.MIN: fold_extremum, Ops.WHERE: fold_identity,
}  # fmt: skip

FACTS["simplified"] = _simplified
