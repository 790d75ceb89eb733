"""Bounds and simplification of integer expressions (dtype `index`), and constant folding for every dtype.

An index expression is kept as a sum `c0*a0 + c1*a1 + … + c` over atoms in a fixed order. IDIV and MOD are floor
division and its remainder, for which the identities below hold for every sign of the numerator (Graham, Knuth,
Patashnik: Concrete Mathematics, ch. 3)."""

import math
from collections.abc import Iterable

from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.uop.affine import Affine, index
from tinygrad.uop.cards import evaluate
from tinygrad.uop.node import ATTRIBUTES, UOp
from tinygrad.uop.op import GroupOp, Ops
from tinygrad.uop.rewrite import on_sources

_ALU = GroupOp.Elementwise - {Ops.BITCAST}
_COMMUTATIVE = frozenset((Ops.ADD, Ops.MUL, Ops.AND, Ops.OR))


def simplify(root: UOp) -> UOp:
  """The simplest equal expression; works on whole kernels too (every node is simplified, sources first)."""
  return root.simplified


def _simplified(u: UOp) -> UOp:
  src = tuple([s.simplified for s in u.src])
  v = on_sources(u, src)
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
    return index(lo) if lo == hi else _INDEX_RULES[u.op](u)
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
  """Neutral and absorbing operands: x*1, x/1, x&True, where(c, x, x), a cast to its own type, from a wider float
  back to it, …; exact for nan, inf and -0.0."""
  x = u.src[0]
  y = u.src[1] if len(u.src) > 1 else x
  if x.op is Ops.CONST and u.op in _COMMUTATIVE:
    x, y = y, x
  match u.op:
    case Ops.ADD if _is(y, 0) and (dtypes.is_int(u.dtype) or math.copysign(1, y.arg) < 0):
      return x
    case Ops.SUB if _is(y, 0) and (dtypes.is_int(u.dtype) or math.copysign(1, y.arg) > 0):
      return x
    case Ops.MUL if _is(y, 1):
      return x
    case Ops.MUL if _is(y, 0) and dtypes.is_int(u.dtype):
      return y
    case Ops.FDIV | Ops.IDIV if _is(y, 1):
      return x
    case Ops.AND | Ops.OR if u.dtype is dtypes.bool:
      if y.op is Ops.CONST:
        return x if y.arg is (u.op is Ops.AND) else y
      return x if x is y else u
    case Ops.NOT | Ops.CAST if x.op is u.op and x.src[0].dtype is u.dtype and dtypes.holds(x.dtype, u.dtype):
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


def linear(u: UOp) -> Affine:
  """A simplified expression as a sum: constant factors are on the right."""
  if u.op is Ops.CONST:
    return Affine(u.arg)
  if u.op is Ops.MUL and u.src[1].op is Ops.CONST:
    return linear(u.src[0]).scaled(u.src[1].arg)
  return linear(u.src[0]).plus(linear(u.src[1])) if u.op is Ops.ADD else Affine(0, {u: 1})


def normal(x: Affine) -> UOp:
  """The expression of a sum in normal form: atoms by key, the constant last."""
  return Affine(x.const, dict(sorted(x.terms.items(), key=lambda term: term[0].key))).uop()


def fold_sum(u: UOp) -> UOp:
  """Like terms joined; x//m*m + x%m -> x, and (x//m%n)*m + x%m -> x % (m*n)."""
  if u.op is Ops.NEG:
    return normal(linear(u.src[0]).scaled(-1))
  if u.op is Ops.MUL:
    x, y = u.src if u.src[1].op is Ops.CONST else u.src[::-1]
    return normal(linear(x).scaled(y.arg)) if y.op is Ops.CONST else fold_product(u)
  return normal(join_remainders(linear(u.src[0]).plus(linear(u.src[1]), -1 if u.op is Ops.SUB else 1)))


def join_remainders(x: Affine) -> Affine:
  """y//m*(k*m) + y%m*k -> y*k, and (y//m%n)*(k*m) + y%m*k -> y%(m*n)*k, to a fixed point."""
  for a, k in x.terms.items():
    if a.op is not Ops.MOD or a.src[1].op is not Ops.CONST:
      continue
    y, m = a.src[0], a.src[1].arg
    quotient = y // m
    for b, n in x.terms.items():
      if n != k * m:
        continue
      if b is quotient:
        joined = y
      elif b.op is Ops.MOD and b.src[0] is quotient and b.src[1].op is Ops.CONST:
        joined = y % (m * b.src[1].arg)
      else:
        continue
      others = Affine(x.const, {c: j for c, j in x.terms.items() if c is not a and c is not b})
      return join_remainders(others.plus(linear(joined), k))
  return x


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
  return inner if k == 1 else UOp.new(Ops.MUL, dtypes.index, (inner, index(k)))


# ---------------------------------------------------------------- division and remainder


def split_by_factor(x: Affine, factors: Iterable[int]) -> tuple[int, Affine, Affine] | None:
  """(g, y, s) for the greatest g > 1 of `factors` such that x is g*y + s with 0 <= s < g."""
  for g in sorted(set(factors), reverse=True):
    if g <= 1:
      break
    y, s = x.split(g)
    lo, hi = s.bounds()
    if lo >= 0 and hi < g:
      return g, y, s
  return None


def fold_floordiv(u: UOp) -> UOp:
  """(m*q + r)//m -> q + r//m; (g*y + s)//(g*n) -> y//n if 0 <= s < g; (x//a)//b -> x//(a*b); (x%(m*n))//m -> x//m%n."""
  x, y = u.src
  if y.op is not Ops.CONST or y.arg <= 0:
    return index(1) if x is y and x.vmin > 0 else u
  m: int = y.arg
  whole, rest = linear(x).split(m)
  divided = _divide(rest, m)
  return normal(join_remainders(whole.plus(linear(divided)))) if whole.terms or whole.const else divided


def _divide(x: Affine, m: int) -> UOp:
  lo, hi = x.bounds()
  if lo // m == hi // m:
    return index(lo // m)
  if (split := split_by_factor(x, [math.gcd(n, m) for n in x.terms.values()])) is not None:
    g, y, _ = split
    return normal(y) // (m // g)
  if len(x.terms) == 1 and x.const == 0:
    ((a, n),) = x.terms.items()
    k: int = a.src[1].arg if n == 1 and a.op in (Ops.IDIV, Ops.MOD) and a.src[1].op is Ops.CONST else 0
    if k > 0 and a.op is Ops.IDIV:
      return a.src[0] // (k * m)
    if k > 0 and k % m == 0:
      return a.src[0] // m % (k // m)
  return UOp.new(Ops.IDIV, dtypes.index, (normal(x), index(m)))


def fold_mod(u: UOp) -> UOp:
  """(m*q + r)%m -> r%m; (g*y + s)%(g*n) -> g*(y%n) + s if 0 <= s < g; (x%(m*n))%m -> x%m; x%m -> x - m*k where x is
  in block k."""
  x, y = u.src
  if y.op is not Ops.CONST or y.arg <= 0:
    return u
  m: int = y.arg
  _, terms = linear(x).split(m)
  rest = Affine(terms.const)
  for a, n in terms.terms.items():
    inner = a.src[0] if a.op is Ops.MOD and a.src[1].op is Ops.CONST and (n * a.src[1].arg) % m == 0 else a
    rest = rest.plus(linear(inner), n)
  _, rest = rest.split(m)
  lo, hi = rest.bounds()
  if lo // m == hi // m:
    return normal(rest.plus(Affine(-(lo // m * m))))
  if (split := split_by_factor(rest, [math.gcd(n, m) for n in rest.terms.values()])) is not None:
    g, high, low = split
    return normal(high) % (m // g) * g + normal(low)
  return UOp.new(Ops.MOD, dtypes.index, (normal(rest), index(m)))


def fold_extremum(u: UOp) -> UOp:
  """max(x, y) and min(x, y) where the bounds decide them; max(g*x, g*y) -> max(x, y)*g."""
  larger, smaller = u.src
  difference = larger - smaller
  if difference.vmin < 0:
    if difference.vmax > 0:
      x, y = linear(larger), linear(smaller)
      g = math.gcd(x.const, y.const, *x.terms.values(), *y.terms.values())
      return u if g == 1 else normal(x.split(g)[0]).alu(u.op, normal(y.split(g)[0])) * g
    larger, smaller = smaller, larger
  return larger if u.op is Ops.MAX else smaller


def fold_comparison(u: UOp) -> UOp:
  """x < y as terms < c with common factors divided out: g*y + s < c -> y < ceil((c - s)/g) where 0 <= s < g."""
  x, y = u.src
  d = linear(x - y)
  lo, hi = d.bounds()
  if u.op is not Ops.CMPLT:
    return UOp.const(dtypes.bool, u.op is Ops.CMPNE) if lo > 0 or hi < 0 else u
  if hi < 0 or lo >= 0:
    return UOp.const(dtypes.bool, hi < 0)
  if (split := split_by_factor(d, map(abs, d.terms.values()))) is not None:  # g*d + s < 0  <=>  d < 0
    _, d, _ = split
  return UOp.new(Ops.CMPLT, dtypes.bool, (normal(Affine(0, d.terms)), index(-d.const)))


_INDEX_RULES = {
  Ops.ADD: fold_sum, Ops.SUB: fold_sum, Ops.MUL: fold_sum, Ops.NEG: fold_sum, Ops.IDIV: fold_floordiv,
  Ops.MOD: fold_mod, Ops.MAX: fold_extremum, Ops.MIN: fold_extremum, Ops.WHERE: fold_identity,
}  # fmt: skip

ATTRIBUTES["simplified"] = _simplified
