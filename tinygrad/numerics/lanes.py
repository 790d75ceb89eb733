"""What lanes of vectors have of each other: vectors turned round or across, elements at a distance, and reductions that
on each lane end with what stands there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tinygrad.dtype import DType, dtypes
from tinygrad.ops.reduce import neutral
from tinygrad.uop import Ops, UOp, simplify
from tinygrad.uop.affine import Affine, index, plain
from tinygrad.uop.loops import extent
from tinygrad.uop.rewrite import substitute_free


class Emitter(Protocol):
  """What makes linear code (codegen/expressions.py)."""

  vectors: list[UOp]

  def bit(self, r: UOp) -> int: ...
  def deps(self, u: UOp) -> int: ...
  def form(self, u: UOp) -> Affine: ...
  def resolve(self, a: Affine, env: dict[UOp, int]) -> Affine: ...
  def value(self, root: UOp, env: dict[UOp, int]) -> UOp: ...
  def broadcast(self, u: UOp, lanes: int) -> UOp: ...
  def node(self, op: Ops, dtype: DType, src: tuple[UOp, ...], arg: object = None) -> UOp: ...


def backwards(v: Emitter, x: UOp) -> UOp:
  """Its lanes from the last one to the first."""
  return x if x.dtype.count == 1 else v.node(Ops.EXTRACT, x.dtype, (x,), tuple(range(x.dtype.count)[::-1]))


def strided(v: Emitter, load: Callable[[int], UOp], step: int, lanes: int) -> UOp:
  """Every `step`-th element by contiguous loads, which begin so many elements further: load i covers elements
  i·(lanes - 1) … of the stretch, so that none reaches beyond the last that is wanted."""
  if step == -1:
    return backwards(v, load(1 - lanes))
  out = load(0)
  done = list(range(0, lanes, step))  # lanes of `out` that hold wanted elements, in order
  for i in range(1, step):
    x, first = load(i * (lanes - 1)), i * (lanes - 1)
    wanted = range(len(done) * step, min(first + lanes, (lanes - 1) * step + 1), step)
    picks = (*done, *(lanes + e - first for e in wanted))
    out = v.node(Ops.EXTRACT, out.dtype, (out, x), (*picks, *(0,) * (lanes - len(picks))))
    done = list(range(len(picks)))
  return out


def transposed(v: Emitter, rows: list[UOp]) -> list[UOp]:
  """Vectors of some times as many lanes as there are of them, turned in squares side by side: from halves down to
  single elements."""
  n, d = rows[0].dtype.count, len(rows)
  while d := d // 2:
    low = tuple(p + n - d if p & d else p for p in range(n))
    high = tuple(p + n if p & d else p + d for p in range(n))
    pairs = [(rows[i & ~d], rows[i | d], high if i & d else low) for i in range(len(rows))]
    rows = [v.node(Ops.EXTRACT, x.dtype, (x, y), picks) for x, y, picks in pairs]
  return rows


def columns(v: Emitter, rows: Sequence[UOp], n: int) -> list[UOp]:
  """A row of n elements for each lane, as n vectors of so many lanes."""
  side = 1 << (n - 1).bit_length()
  if n < side:
    rows = [v.node(Ops.EXTRACT, x.dtype.scalar().vec(side), (x, x), (*range(n), *(0,) * (side - n))) for x in rows]
  while len(rows) > side:  # lane, lane + side, … beside each other
    half = rows[0].dtype.count
    starts = [i for i in range(len(rows)) if i // side % 2 == 0]
    wide, picks = rows[0].dtype.scalar().vec(2 * half), tuple(range(2 * half))
    rows = [v.node(Ops.EXTRACT, wide, (rows[i], rows[i + side]), picks) for i in starts]
  return transposed(v, list(rows))[:n]


def running(v: Emitter, f: UOp, env: dict[UOp, int]) -> UOp | None:
  """The vector of a reduction of x(k) over k that on lane i is one of those with k <= first + i: in log2(lanes) steps
  rather than one for each k (Hillis and Steele, Data parallel algorithms, 1986); of the vectors before that of `first`
  all lanes count. None where `f` is something else, or x(k) is not the same on all lanes."""
  (condition, *values), nothing = f.src[0].src or f.src[:1], neutral(f)
  lane = next((r for r in v.vectors if v.bit(r) & v.deps(condition)), None)
  if f.src[0].op is not Ops.WHERE or condition.op is not Ops.CMPLT or values[0].op is not Ops.CONST or lane is None:
    return None
  ends, lanes = [y for s in condition.src if (y := plain(s)) is not None], extent(lane)
  if len(ends) < 2 or values[0].arg != nothing.arg:
    return None
  first, terms = v.resolve(v.form(ends[0]).plus(v.form(ends[1]), -1), env)
  digits, n = sorted(((-c, r) for r, c in terms.items() if r in f.src[1:]), key=lambda d: d[0]), 1
  for step, r in digits:  # of k, from the last one on
    n *= extent(r) if step == n else 0
  if terms != {lane: 1, **{r: -step for step, r in digits}} or len(digits) < len(f.src) - 1:
    return None
  if first % lanes or not 0 <= first <= n - lanes or differs(v, values[1], lane, env):
    return None

  def those(start: int) -> UOp:
    k = UOp.new(Ops.ADD, dtypes.index, (lane, index(start)))
    at = {r: UOp.new(Ops.MOD, dtypes.index, (k // step, r.src[0])) for step, r in digits}
    return v.broadcast(v.value(simplify(substitute_free(values[1], at)), env), lanes)

  out, far, rest = those(first), 1, v.broadcast(nothing, lanes)
  while far < lanes:
    picks = tuple(i if i < far else lanes + i - far for i in range(lanes))
    out, far = v.node(f.arg, out.dtype, (v.node(Ops.EXTRACT, out.dtype, (rest, out), picks), out)), 2 * far
  for start in reversed(range(0, first, lanes)):
    before = v.broadcast(v.node(Ops.FOLD, f.dtype, (those(start),), f.arg), lanes)
    out = v.node(f.arg, out.dtype, (before, out))
  return out


def differs(v: Emitter, x: UOp, lane: UOp, env: dict[UOp, int]) -> bool:
  """Whether lanes may have values of their own of x."""
  numbers = (s for u in x.toposort() if u.dtype is not dtypes.index for s in u.src if s.dtype is dtypes.index)
  return any(v.deps(atom) & v.bit(lane) for s in numbers for atom in v.resolve(v.form(s), env).terms)
