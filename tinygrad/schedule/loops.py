"""The loops of a kernel in one normal form, so that equal work has equal ASTs: split where indices divide, joined where
memory is contiguous, numbered."""

from collections.abc import Mapping

from tinygrad.dtype import dtypes
from tinygrad.numerics.floor_division import DIVIDES
from tinygrad.uop import RANGES_FROM, AxisKind, Ops, UOp, linear, simplify
from tinygrad.uop.affine import Affine, index
from tinygrad.uop.loops import LoopIds, static
from tinygrad.uop.rewrite import Sources, on_sources, rebuild


def tidy(sink: UOp) -> UOp:
  """Folds constants under `sink`; reverses, splits, joins and numbers its ranges."""
  return number_ranges(join_ranges(split_ranges(reverse_ranges(simplify(sink)))))


def with_loops(sink: UOp, values: Mapping[UOp, UOp]) -> UOp:
  """`sink` with each range read as `values[range]`, and in its place the loops of that, of lower ids outside; the index
  expressions come out simplified."""
  loops = {r: [x] if x.op is Ops.RANGE else sorted(x.loops, key=lambda s: s.arg[0]) for r, x in values.items()}

  def make(u: UOp, src: Sources) -> UOp:
    if u.op is Ops.RANGE:
      return values.get(u, u)
    if (first := RANGES_FROM.get(u.op)) is not None:
      src = (*src[:first], *(r for s in u.src[first:] for r in loops.get(s, (s,))))
    if u.dtype is not dtypes.index:
      src = tuple([simplify(s) if s.dtype is dtypes.index and s.op is not Ops.RANGE else s for s in src])
    made = on_sources(u, src)
    return simplify(made) if made is not u and made.dtype is dtypes.bool else made

  return rebuild(sink, make)


def divided_ranges(sink: UOp) -> list[tuple[UOp, int, int]]:
  """(a range of fixed length, by how much what is divided grows along it, the divisor)"""
  found = [u.src for u in sink.toposort() if u.op in DIVIDES and u.src[1].op is Ops.CONST]
  steps = [(r, step, c.arg) for x, c in found for r, step in linear(x).terms.items()]
  return [(r, step, c) for r, step, c in steps if r.op is Ops.RANGE and static(r)]


def reverse_ranges(sink: UOp) -> UOp:
  """A loop over [0, n) that divisions read only as (x - r) // c and (x - r) % c runs the other way: r is n - 1 - r1,
  and what is divided grows along r1. A reduction keeps its order."""
  steps = divided_ranges(sink)
  falls = {r for r, _, _ in steps if r.arg[1] is AxisKind.LOOP} - {r for r, step, _ in steps if step > 0}
  values = {r: simplify(Affine(r.src[0].arg - 1, {r: -1}).uop()) for r in falls}
  return with_loops(sink, values) if values else sink


def split_ranges(sink: UOp) -> UOp:
  """A range r that indices read as (r + x) // c and (r + x) % c becomes two, r1*c + r2, if the divisors form a chain up
  to r's end: r1 is then outside of the division."""
  divisors: dict[UOp, set[int]] = {}
  for r, step, c in divided_ranges(sink):
    divisors.setdefault(r, set()).update({c} if step == 1 else ())
  if not divisors:
    return sink
  values, ids = dict[UOp, UOp](), LoopIds(sink)
  for r, found in divisors.items():
    chain = [1, *sorted(found - {1, r.src[0].arg}), r.src[0].arg]
    steps = list(zip(chain, chain[1:]))[::-1]
    if len(steps) > 1 and not any(n % m for m, n in steps):
      parts = {ids.loop(index(n // m), r.arg[1]): m for m, n in steps}
      values[r] = simplify(Affine(0, parts).uop())
  return with_loops(sink, values) if values else sink


def join_ranges(sink: UOp) -> UOp:
  """Neighbouring loops a, b become one where every index reads them as a*n + b (n the length of b) times a constant."""
  indices, loops = list[dict[UOp, int]](), list[tuple[UOp, ...]]()
  others: list[UOp] = []  # that read ranges otherwise
  for u in sink.toposort():
    if u.op in RANGES_FROM:
      loops.append(u.src[RANGES_FROM[u.op] :])
    if u.op is Ops.INDEX or u.op is Ops.ONE_HOT:  # of which the second source is a place, of a row
      terms = linear(u.src[1]).terms
      indices.append(terms)
      others += [x for x in terms if x.op is not Ops.RANGE]
      others += [u.src[0]] if u.src[0].op is not Ops.PARAM else []
    elif u.dtype is not dtypes.index and u.op is not Ops.PEER:
      others += [s for s in u.src[: RANGES_FROM.get(u.op)] if s.dtype is dtypes.index]
  # a loaded value's own index does not count
  pinned = {x for x in UOp.sink(*others).toposort(lambda x: x.op is not Ops.LOAD) if x.op is Ops.RANGE}
  values: dict[UOp, UOp] = {}

  def joins(a: UOp, b: UOp, n: int) -> bool:
    return a not in pinned and b not in pinned and all(f.get(a, 0) == n * f.get(b, 0) for f in indices)

  for ranges in loops:
    i = len(ranges) - 1
    while i > 0:
      last, end = ranges[i], ranges[i].src[0]
      while i > 0 and end.op is Ops.CONST and joins(ranges[i - 1], last, end.arg):
        values[ranges[i - 1]] = index(0)
        end = simplify(ranges[i - 1].src[0] * end)
        values[last] = UOp.new(Ops.RANGE, dtypes.index, (end,), last.arg)
        i -= 1
      i -= 1
  return with_loops(sink, values) if values else sink


def number_ranges(sink: UOp) -> UOp:
  """Ranges numbered in the order of their loops: equal kernels become the same object."""
  order: dict[UOp, None] = {}
  for u in reversed(sink.toposort()):
    if u.op in RANGES_FROM:
      order |= dict.fromkeys(u.src[RANGES_FROM[u.op] :])
  new = {r: UOp.new(Ops.RANGE, r.dtype, r.src, (i, r.arg[1])) for i, r in enumerate(order)}
  return with_loops(sink, new) if any(r is not x for r, x in new.items()) else sink
