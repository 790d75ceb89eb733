"""Sums of products of matrices: one of them keeps a kernel's registers and caches, or a GPU's cores, busy. What
becomes of the digits that additions of floats lose."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod
from tinygrad.ops import Trait, having
from tinygrad.uop import Ops, UOp, upper
from tinygrad.uop.loops import reductions

SEEN_THROUGH = having(Trait.CONVERTS) | having(Trait.VIEW, Trait.ONTO, Trait.ONE_TO_ONE)
MOST = 12  # addends that are told apart


def is_product(u: UOp) -> bool:
  """Whether each of its factors is used several times, as those of matrices are that are multiplied."""
  return u.op is Ops.MUL and all(grows(next(v for v in s.down() if v.op not in SEEN_THROUGH)) for s in u.src)


def grows(u: UOp) -> bool:
  """An EXPAND that reads each element several times."""
  return u.op is Ops.EXPAND and prod(map(upper, u.shape)) > prod(map(upper, u.src[0].shape))


def products_apart(u: UOp) -> UOp | None:
  """A REDUCE of a sum of products, as the gradient of what several products read is one, as the sum of their REDUCEs:
  Σ(xy + zw) = Σxy + Σzw."""
  addends = [u.src[0]]
  while any(x.op is Ops.ADD for x in addends) and len(addends) < MOST:
    addends = [y for x in addends for y in (x.src if x.op is Ops.ADD else (x,))]
  if u.arg[0] is not Ops.ADD or len(addends) < 2 or not all(map(is_product, addends)):
    return None
  sums = [UOp.new(Ops.REDUCE, u.dtype, (x,), u.arg) for x in addends]
  return functools.reduce(lambda x, y: UOp.new(Ops.ADD, u.dtype, (x, y)), sums)


def step_reads(f: UOp) -> list[UOp]:
  """The INDEXes of what a FOLD reads that is another for its next step."""
  return [u for u in f.src[0].toposort() if u.op is Ops.INDEX and not u.loops.isdisjoint(f.src[1:])]


def multiplies_matrices(f: UOp) -> bool:
  """Whether a FOLD sums products of which each factor is the same along some loop of the results."""
  return of_products(f) and reads_again(f)


def reads_again(f: UOp) -> bool:
  """Whether a FOLD reads nothing that is another for each of its results."""
  reads = step_reads(f)
  return bool(reads) and not any(f.loops <= u.loops for u in reads)


def multiplies_rows(store: UOp, rows: Collection[UOp]) -> bool:
  """Whether a store sums products of matrices of which a block of `rows` that a cache holds has too little to use it
  often: its loops are all rows; or it sums over rows, too, and a factor is the same for some of the results'."""
  every = {*store.src[2:]} <= {*rows}

  def sums_over(f: UOp) -> bool:
    return any(r in rows for r in f.src[1:]) and any(f.loops.intersection(rows) - u.loops for u in step_reads(f))

  products = filter(of_products, reductions((store,)))
  return any((every and multiplies_matrices(f)) or sums_over(f) for f in products)


def carries_rest(f: UOp) -> bool:
  """Whether what the additions of blocks lose is kept: of a sum of floats, if not of products."""
  return f.arg is Ops.ADD and dtypes.is_float(f.dtype) and not of_products(f)


def of_products(f: UOp) -> bool:
  return f.src[0].op is Ops.MUL or f.src[0].op is Ops.DOT


def uncast(u: UOp) -> UOp:
  """What is converted, however often."""
  return next(v for v in u.down() if v.op is not Ops.CAST)


def is_zero_unread(x: UOp) -> bool:
  """Whether it comes from memory, and is 0 where a condition has it not read."""
  return x.op is Ops.LOAD and all(y is UOp.const(y.dtype, 0) for y in x.src[1:])


def is_zero_beyond(product: UOp, gate: UOp) -> bool:
  """Whether both factors are 0 where a condition does not hold, for they are not read then."""
  factors = [uncast(x) for x in product.src] if product.op is Ops.MUL else []
  masked = all(is_zero_unread(x) and len(x.src[0].src) > 2 for x in factors)
  return factors != [] and masked and all(conditions(gate) <= conditions(x.src[0].src[2]) for x in factors)


def conditions(gate: UOp) -> set[UOp]:
  """Of which a conjunction is made."""
  found, stack = set[UOp](), [gate]
  while stack:
    if (u := stack.pop()) not in found:
      found.add(u)
      stack += u.src if u.op is Ops.AND else ()
  return {u for u in found if u.op is not Ops.AND}


def fast_two_sum(total: UOp, x: UOp, zero: UOp, new: Callable[[Ops, DType, tuple[UOp, ...]], UOp]) -> tuple[UOp, UOp]:
  """total + x, and what that has lost, if it is finite, else `zero` (T. Dekker). `new` makes the nodes."""
  both = new(Ops.ADD, x.dtype, (total, x))
  lost = new(Ops.SUB, x.dtype, (x, new(Ops.SUB, x.dtype, (both, total))))
  finite = new(Ops.CMPEQ, dtypes.bool.vec(x.dtype.count), (lost, lost))
  return both, new(Ops.WHERE, x.dtype, (finite, lost, zero))


def rests(nodes: Sequence[UOp]) -> dict[UOp, tuple[UOp, UOp]]:
  """By a reduction, or what it amounts to with those that it goes on in: the next that it goes on in, and what both
  amount to. (A split loop makes op(FOLD, FOLD).)"""
  users = Counter(s for u in nodes for s in u.src)
  out: dict[UOp, tuple[UOp, UOp]] = {}
  amounts: set[UOp] = set()
  for u in nodes:
    if len(u.src) == 2 and u.src[1].op is Ops.FOLD and u.src[1].arg is u.op and users[u.src[0]] == users[u.src[1]] == 1:
      x, y = u.src
      if u.dtype is y.dtype and ((x in amounts and x.op is u.op) or (x.op is Ops.FOLD and x.arg is u.op)):
        out[x] = y, u
        amounts.add(u)
  return out


def beginnings(nodes: Sequence[UOp]) -> dict[UOp, tuple[UOp, UOp]]:
  """By what a core sums: what that is added to alone, so that it may begin with it, and both together."""
  users = Counter(s for u in nodes for s in u.src)
  sums = ((u, x, f) for u in nodes if u.op is Ops.ADD for x, f in (u.src, u.src[::-1]) if f.op is Ops.FOLD)
  return {f: (x, u) for u, x, f in sums if f.src[0].op is Ops.MMA and users[f] == 1}
