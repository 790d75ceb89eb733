"""Iterations that a condition makes idle: in a kernel of rows, those of a loop from some place on whose results change
nothing.

A causal mask makes the scores beyond the diagonal -inf, their exponentials 0, and what is summed of them nothing: for a
block of rows all loops over the keys may end where its last row does."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from tinygrad.dtype import dtypes
from tinygrad.numerics.idle_blocks import block_limits, turns, with_known
from tinygrad.ops.reduce import neutral
from tinygrad.uop import Ops, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loops import all_rows, extent, reductions, static

Row = tuple[UOp, Affine]  # its length, and where it begins in memory
Known = dict[UOp, tuple[Row, UOp, UOp]]  # memory of a row -> from which element on it holds a constant, and which
CHUNK = 64  # iterations: loops that end early do so at multiples of it, or of a part of it
MOST_LIMITS = 8  # of one loop that are looked at: a mask has few edges


def parts_of(kernel: UOp) -> tuple[tuple[UOp, ...], tuple[UOp, ...]]:
  """Its stores, and the limits of its loops (`clip_loops`)."""
  n = sum(s.op is Ops.STORE for s in kernel.src)
  return kernel.src[:n], kernel.src[n:]


def clip_loops(kernel: UOp) -> UOp:
  """A kernel of several stores with, after them, a limit for each loop that may end early: `loop < expression of rows`
  holds in all iterations that have something to do. What passes do with the loops they do with the limits, too.

  Nothing is clipped in a kernel of one store, at a loop's beginning, or for a LOAD under a condition (padded memory).
  """
  if len(kernel.src) == 1:
    return kernel
  limits = loop_limits(kernel.src, all_rows(kernel.src))
  found = (UOp.new(Ops.CMPLT, dtypes.bool, (r, at)) for r, at in limits.items())
  return UOp.sink(*kernel.src, *found, *block_limits(kernel.src))


def accessed_row(where: UOp, r: UOp) -> Row | None:
  """The row whose element r is accessed, if it is one."""
  at = affine(where.src[1], {}).plus(Affine(0, {r: 1}), -1)
  return None if len(where.src) > 2 or any(r in a.loops for a in at.terms) else (r.src[0], at)


def known_beyond(value: UOp, r: UOp, rows: set[UOp], known: Known) -> dict[UOp, dict[UOp, UOp]]:
  """By the iteration of r from which on something about `value` is known: that, of comparisons, and of what is read."""
  found: dict[UOp, dict[UOp, UOp]] = {}
  for u in value.toposort():
    for (at, beyond), holds in turns(u, r, rows):
      if beyond and u.loops <= {r, *rows}:  # else it differs within the block
        found.setdefault(at, {})[u] = UOp.const(dtypes.bool, holds)
    if u.op is Ops.LOAD and (memory := u.src[0].src[0]) in known and known[memory][0] == accessed_row(u.src[0], r):
      found.setdefault(known[memory][1], {})[u] = known[memory][2]
  return found


def adds_nothing(f: UOp, known: Mapping[UOp, UOp]) -> bool:
  x = with_known(f.src[0], known, {})
  return x is not None and x.op is Ops.CONST and x.arg == neutral(f).arg


def loop_limits(stores: Sequence[UOp], rows: Sequence[UOp]) -> dict[UOp, UOp]:
  """By loop, the iteration from which on nothing is left to do, as an expression of the rows."""
  known: Known = {}
  out: dict[UOp, UOp] = {}
  shared = Counter(r for s in stores for r in s.toposort() if r.op is Ops.RANGE)
  for s in stores:
    (where, value), folds = s.src[:2], reductions(s.src[1:2])
    known.pop(where.src[0], None)
    for r in (*s.src[2:], *(r for f in folds for r in f.src[1:])):
      if shared[r] > 1 or not static(r):  # a row's, or of no fixed length
        continue
      # sums over r, or of blocks of rows, to which idle iterations add nothing
      sums = [f for f in folds if r in f.src[1:] or (f is value and not set(rows).isdisjoint(f.src[1:]))]
      for at, facts in itertools.islice(known_beyond(value, r, set(rows), known).items(), MOST_LIMITS):
        if sums and all(adds_nothing(f, facts) for f in sums):
          out[r] = at
        elif (x := with_known(value, facts, {})) is not None and x.op is Ops.CONST and (row := accessed_row(where, r)):
          known[where.src[0]] = row, at, x
  read: dict[UOp, list[UOp]] = {}  # memory -> where later stores access it
  for s in reversed(stores):  # what only idle iterations read is not computed
    p, r = s.src[0].src[:2]
    if not p.arg.given and r.op is Ops.RANGE and shared[r] == 1:
      ends = {out.get(at) for at in read.get(p, ())}
      if len(ends) == 1 and (end := ends.pop()) is not None:
        out[r] = end
    for u in (u for u in s.toposort() if u.op is Ops.INDEX):
      read.setdefault(u.src[0], []).append(u.src[1])
  return out


def chunks(r: UOp, limit: Affine, at: Mapping[UOp, UOp], inside: Sequence[UOp]) -> UOp:
  """That r ends with the CHUNK that reaches the greatest value of an expression of rows within the block."""
  out = Affine(limit.const + CHUNK - 1)
  for atom, c in limit.terms.items():
    out = out.plus(affine(at.get(atom, atom), {}), c)
  most = sum(max(c * (extent(r) - 1), 0) for r, c in out.terms.items() if r in inside)
  out = Affine(out.const + most, {r: c for r, c in out.terms.items() if r not in inside})
  whole = UOp.new(Ops.IDIV, dtypes.index, (UOp.new(Ops.MAX, dtypes.index, (out.uop(), index(0))), index(CHUNK)))
  return UOp.new(Ops.CMPLT, dtypes.bool, (r, UOp.new(Ops.MUL, dtypes.index, (whole, index(CHUNK)))))
