"""Iterations that a condition makes idle: in a kernel of rows, those of a loop from some place on whose results change
nothing.

A causal mask makes the scores beyond the diagonal -inf, their exponentials 0, and what is summed of them nothing: for a
block of rows all loops over the keys may end where its last row does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tinygrad.codegen.row_blocks import all_rows, indices
from tinygrad.dtype import dtypes
from tinygrad.numerics.idle_blocks import block_limits, with_known
from tinygrad.ops.reduce import identity_element
from tinygrad.uop import Ops, UOp
from tinygrad.uop.affine import Affine, affine, plain

# memory -> the length of a row in it and where that begins, from which element on it holds a constant, and which
Known = dict[UOp, tuple[tuple[UOp, Affine | None], Affine, UOp]]
MOST_LIMITS = 8  # of one loop that are looked at: a mask has few edges


class Forms:
  """What is known of the index expressions of a kernel's stores, each looked at once."""

  def __init__(self) -> None:
    self.affine: dict[UOp, Affine] = {}
    self.plain: dict[UOp, UOp | None] = {}

  def turn(self, u: UOp, r: UOp) -> tuple[Affine, bool] | None:
    """The iteration of r from which on a comparison is always the same, and what it is then."""
    x, y = (plain(s, self.plain) for s in u.src) if u.op is Ops.CMPLT else (None, None)
    if x is None or y is None:
      return None
    difference = affine(x, self.affine).plus(affine(y, self.affine), -1)
    rest = Affine(difference.const, {a: c for a, c in difference.terms.items() if a is not r})
    if any(a is not r and r in a.loops for a in difference.terms):
      return None
    return {1: (rest.scaled(-1), False), -1: (rest.plus(Affine(1)), True)}.get(difference.terms.get(r, 0))

  def row_of(self, where: UOp, r: UOp) -> tuple[UOp, Affine | None]:
    """The length and the start of the row whose element r is accessed, if it is one."""
    at = affine(where.src[1], self.affine).plus(Affine(0, {r: 1}), -1)
    return r.src[0], None if len(where.src) > 2 or any(r in a.loops for a in at.terms) else at


class Beyond:
  """What values are in the iterations of r from `limit` on, where that is a constant."""

  def __init__(self, r: UOp, limit: Affine, known: Known, forms: Forms) -> None:
    self.r, self.limit, self.known, self.forms = r, limit, known, forms

  def value(self, root: UOp) -> UOp | None:
    v = with_known(root, {u: x for u in root.toposort() if (x := self.constant(u)) is not None}, {})
    return v if v is not None and v.op is Ops.CONST else None

  def constant(self, u: UOp) -> UOp | None:
    """What is known of it by itself."""
    if u.op is Ops.LOAD:
      row, limit, x = self.known.get(u.src[0].src[0], (None, None, None))
      return x if limit == self.limit and row == self.forms.row_of(u.src[0], self.r) else None
    at = self.forms.turn(u, self.r)
    return UOp.const(dtypes.bool, at[1]) if at is not None and at[0] == self.limit else None

  def adds_nothing(self, f: UOp) -> bool:
    x = self.value(f.src[0])
    return x is not None and x.arg == identity_element(f.arg, f.dtype)


def places(value: UOp, r: UOp, known: Known, forms: Forms) -> Iterator[Affine]:
  """Where the iterations of r may become idle."""
  for u in value.toposort():
    if (at := forms.turn(u, r)) is not None:
      yield at[0]
    elif u.op is Ops.INDEX and u.src[0] in known and known[u.src[0]][0] == forms.row_of(u, r):
      yield known[u.src[0]][1]


def clip_loops(kernel: UOp) -> UOp:
  """A kernel of several stores with, after them, a limit for each loop that may end early: `loop < expression of rows`
  holds in all iterations that have something to do. What passes do with the loops they do with the limits, too.

  Nothing is clipped in a kernel of one store, at a loop's beginning, or for a LOAD under a condition (padded memory).
  """
  if len(kernel.src) == 1:
    return kernel
  limits = loop_limits(kernel.src, all_rows(kernel.src))
  found = (UOp.new(Ops.CMPLT, dtypes.bool, (r, at.uop())) for r, at in limits.items())
  return UOp.sink(*kernel.src, *found, *block_limits(kernel.src))


def loop_limits(stores: Sequence[UOp], rows: Sequence[UOp]) -> dict[UOp, Affine]:
  """By loop, the iteration from which on nothing is left to do, as an expression of the rows."""
  known: Known = {}
  out: dict[UOp, Affine] = {}
  shared = Counter(r for s in stores for r in s.toposort() if r.op is Ops.RANGE)
  forms = Forms()
  for s in stores:
    (where, value), folds = s.src[:2], [u for u in s.src[1].toposort() if u.op is Ops.FOLD]
    known.pop(where.src[0], None)
    for r in (*s.src[2:], *(r for f in folds for r in f.src[1:])):
      if shared[r] > 1 or r.src[0].op is not Ops.CONST:  # a row's, or of no fixed length
        continue
      # sums over r, or of blocks of rows, to which idle iterations add nothing
      sums = [f for f in folds if r in f.src[1:] or (f is value and not set(rows).isdisjoint(f.src[1:]))]
      limits = list[Affine]()
      for limit in places(value, r, known, forms):
        within = any(a.loops for a in limit.terms if a not in rows)  # it differs within the block
        if not within and limit not in limits and len(limits) < MOST_LIMITS:
          limits.append(limit)
      for limit in limits:
        beyond = Beyond(r, limit, known, forms)
        if sums and all(map(beyond.adds_nothing, sums)):
          out[r] = limit
        elif (row := forms.row_of(where, r))[1] is not None and (x := beyond.value(value)) is not None:
          known[where.src[0]] = row, limit, x
  read: dict[UOp, list[UOp]] = {}  # memory -> where later stores access it
  for s in reversed(stores):  # what only idle iterations read is not computed
    p, r = s.src[0].src[:2]
    if p.arg.slot < 0 and r.op is Ops.RANGE and shared[r] == 1:
      limits_of = [out.get(at) for at in read.get(p, ())]
      if limits_of and limits_of[0] is not None and all(x == limits_of[0] for x in limits_of):
        out[r] = limits_of[0]
    for u in indices([s]):
      read.setdefault(u.src[0], []).append(u.src[1])
  return out
