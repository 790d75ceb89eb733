"""Iterations that a condition makes idle: in a kernel of rows, those of a loop from some place on whose results change
nothing.

A causal mask makes the scores beyond the diagonal -inf, their exponentials 0, and what is summed of them nothing: for a
block of rows all loops over the keys may end where its last row does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tinygrad.codegen.rows import indices
from tinygrad.dtype import to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.reduce import identity_element
from tinygrad.uop import GroupOp, Ops, UOp
from tinygrad.uop.affine import Affine, affine, plain
from tinygrad.uop.cards import evaluate

# memory -> the length of a row in it and where that begins, from which element on it holds a constant, and which
Known = dict[UOp, tuple[tuple[UOp, Affine | None], Affine, UOp]]


def turn(u: UOp, r: UOp) -> tuple[Affine, bool] | None:
  """The iteration of r from which on a comparison is always the same, and what it is then."""
  x, y = (plain(s) for s in u.src) if u.op is Ops.CMPLT else (None, None)
  if x is None or y is None:
    return None
  difference = affine(x, {}).plus(affine(y, {}), -1)
  rest = Affine(difference.const, {a: c for a, c in difference.terms.items() if a is not r})
  if any(a is not r and r in a.toposort() for a in difference.terms):
    return None
  return {1: (rest.scaled(-1), False), -1: (rest.plus(Affine(1)), True)}.get(difference.terms.get(r, 0))


class Beyond:
  """What values are in the iterations of r from `limit` on, where that is a constant."""

  def __init__(self, r: UOp, limit: Affine, known: Known) -> None:
    self.r, self.limit, self.known = r, limit, known

  def truth(self, u: UOp) -> bool | None:
    if u.op is Ops.NOT:
      return None if (x := self.truth(u.src[0])) is None else not x
    if u.op in (Ops.AND, Ops.OR):
      found, decisive = [self.truth(s) for s in u.src], u.op is Ops.OR
      return decisive if decisive in found else None if None in found else not decisive
    at = turn(u, self.r)
    return at[1] if at is not None and at[0] == self.limit else None

  def value(self, u: UOp) -> UOp | None:
    if u.op is Ops.CONST:
      return u
    if u.op is Ops.LOAD:
      row, limit, x = self.known.get(u.src[0].src[0], (None, None, None))
      return x if limit == self.limit and row == row_of(u.src[0], self.r) else None
    if u.op is Ops.WHERE:
      truth = self.truth(u.src[0])
      return None if truth is None else self.value(u.src[1 if truth else 2])
    if u.op not in GroupOp.Elementwise:
      return None
    src = [self.value(s) for s in u.src]
    if all(s is not None for s in src):
      values = [numpy.asarray(s.arg, to_numpy_dtype(s.dtype)) for s in src if s is not None]
      return UOp.const(u.dtype, numpy.asarray(evaluate(u, values, ())).item())
    if u.op is Ops.MUL and any(s is not None and s.arg == 0 for s in src):
      return UOp.const(u.dtype, 0)
    return src[0] if u.op in (Ops.ADD, Ops.SUB) and src[0] is not None and src[0].arg == -float("inf") else None

  def adds_nothing(self, f: UOp) -> bool:
    x = self.value(f.src[0])
    return x is not None and x.arg == identity_element(f.arg, f.dtype)


def row_of(where: UOp, r: UOp) -> tuple[UOp, Affine | None]:
  """The length and the start of the row whose element r is accessed, if it is one."""
  at = affine(where.src[1], {}).plus(Affine(0, {r: 1}), -1)
  return r.src[0], None if len(where.src) > 2 or any(r in a.toposort() for a in at.terms) else at


def places(value: UOp, r: UOp, known: Known) -> Iterator[Affine]:
  """Where the iterations of r may become idle."""
  for u in value.toposort():
    if (at := turn(u, r)) is not None:
      yield at[0]
    elif u.op is Ops.INDEX and u.src[0] in known and known[u.src[0]][0] == row_of(u, r):
      yield known[u.src[0]][1]


def idle(stores: Sequence[UOp], rows: Sequence[UOp]) -> dict[UOp, Affine]:
  """By loop, the iteration from which on nothing is left to do, as an expression of the rows."""
  known: Known = {}
  out: dict[UOp, Affine] = {}
  shared = Counter(r for s in stores for r in s.toposort() if r.op is Ops.RANGE)
  for s in stores:
    (where, value), folds = s.src[:2], [u for u in s.src[1].toposort() if u.op is Ops.FOLD]
    known.pop(where.src[0], None)
    for r in (*s.src[2:], *(r for f in folds for r in f.src[1:])):
      if shared[r] > 1 or r.src[0].op is not Ops.CONST:  # a row's, or of no fixed length
        continue
      # sums over r, or of blocks of rows, to which idle iterations add nothing
      sums = [f for f in folds if r in f.src[1:] or (f is value and not set(rows).isdisjoint(f.src[1:]))]
      for limit in places(value, r, known):
        if any(x.op is Ops.RANGE for a in limit.terms if a not in rows for x in a.toposort()):
          continue  # it differs within the block
        beyond = Beyond(r, limit, known)
        if sums and all(map(beyond.adds_nothing, sums)):
          out[r] = limit
        elif (row := row_of(where, r))[1] is not None and (x := beyond.value(value)) is not None:
          known[where.src[0]] = row, limit, x
  for i, s in reversed(list(enumerate(stores))):  # what only idle iterations read is not computed
    p, r = s.src[0].src[:2]
    if p.arg.slot < 0 and r.op is Ops.RANGE and shared[r] == 1:
      limits = [out.get(u.src[1]) for u in indices(stores[i + 1 :]) if u.src[0] is p]
      if limits and limits[0] is not None and all(x == limits[0] for x in limits):
        out[r] = limits[0]
  return out
