"""A reduction to few results, as a sum of products of matrices may be, as two kernels: of parts of its terms, which
keep as many times more of a grid's multiprocessors busy, and of what these amount to. As "split-K" in Osama et al.,
Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU (2023)."""

from __future__ import annotations

import math
from typing import NamedTuple

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import ceildiv, prod, round_up
from tinygrad.numerics.products import is_zero_beyond, multiplies_matrices, step_reads
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.affine import affine, index, row_major
from tinygrad.uop.indexing import gated
from tinygrad.uop.loops import LoopIds, extent, iterations, reductions, static
from tinygrad.uop.rewrite import substitute, substitute_free

BLOCK, ACROSS = 128 * 128, 32  # results that are a multiprocessor's: of products, and of what is read across memory
LEAST_ROWS = 16  # of a product that has parts
ROWS, ROWS_OF_CORES = 64, 128  # that stream, each beside others that need the same elements: a multiprocessor's
MOST_ROWS, FEW = 32, 64  # rows by which a matrix is read once, if it has so many times as many elements
LEAST = 256  # terms of a part,
WHOLE = 64  # of which matrix cores take a multiple
LAUNCH = 1 << 23  # bytes that are read in the time of one more kernel
BALANCE, BALANCE_OF_CORES = 20, 320  # operations that take as long as a byte of memory; cores' of narrow operands


class CutTerms(NamedTuple):
  """A reduction's loop, and how many of its iterations are a part; the last may have fewer."""

  loop: UOp
  each: int

  @property
  def parts(self) -> int:
    return int(ceildiv(extent(self.loop), self.each))


def cut_of_terms(store: UOp, units: int, cores: bool) -> CutTerms | None:
  """In which parts the terms of a store's only reduction are taken on `units` multiprocessors, with matrix cores or
  not; None: in one."""
  folds = reductions((store,))
  if len(folds) != 1:
    return None
  f, loops = folds[0], {*folds[0].loops, *folds[0].src[1:]}
  if not all(map(static, loops)) or (task := task_of(f, cores)) is None:
    return None
  results, terms = iterations(f.loops), iterations(f.src[1:])
  most = max(min(task.parts(results * of_parts(f).itemsize, units), terms // LEAST), 1)
  cuts = (CutTerms(r, each_of(r, most, f, task, units)) for r in f.src[1:])
  return max((c for c in cuts if c.parts > 1), key=lambda c: c.parts, default=None)


class Task(NamedTuple):
  """What a reduction takes: so many multiprocessors, together the time in which so many bytes are read; and whether its
  products are of narrow operands, for matrix cores."""

  blocks: int
  work: int
  narrow: bool = False

  def parts(self, nbytes: int, units: int) -> int:
    """How many there should be, at most, of what has results of so many bytes.

    What one kernel takes in `units / blocks` of the time that all multiprocessors would, P parts take in a Pth of it,
    and P results of each are written and read: so P is the square root of what the one is of the other. Where half of
    the multiprocessors have a block as it is, what the others take over has to be more than parts cost."""
    alone = self.work * units // self.blocks
    most = min(math.isqrt(alone // (2 * nbytes)), 2 * units // self.blocks)
    saved, costs = alone * (units - self.blocks) // units, LAUNCH + 2 * nbytes * most * (2 * self.blocks > units)
    return most if alone >= 2 * LAUNCH and saved >= costs else 1

  @staticmethod
  def of_rows(rows: int, operations: int, narrow: bool) -> Task:
    """Of rows that stream, each beside others that need the same elements."""
    here, balance = (ROWS_OF_CORES, BALANCE_OF_CORES) if narrow else (ROWS, BALANCE)
    return Task(ceildiv(rows, here), operations // balance, narrow)


def task_of(f: UOp, cores: bool) -> Task | None:
  """Of a product of matrices, or of a reduction across memory; None where lanes share other terms out, or rows."""
  results, reads = iterations(f.loops), step_reads(f)
  nbytes = sum(iterations(u.loops) * u.dtype.itemsize for u in reads)
  if not multiplies_matrices(f):
    steps = ([step for r, step in affine(u.src[1], {}).terms.items() if r in f.loops] for u in reads)
    across = [min(found) == 1 for found in steps if found]
    return Task(ceildiv(results, ACROSS), nbytes) if across and all(across) else None
  rows, columns = [1, *sorted(map(extent, f.loops))][-2:]
  narrow = cores and all(u.dtype.itemsize < 4 for u in reads)
  if f.arg is not Ops.ADD or rows < LEAST_ROWS or (not narrow and rows <= MOST_ROWS and FEW * rows <= columns):
    return None
  operations = 2 * results * iterations(f.src[1:])
  return Task(ceildiv(results, BLOCK), max(nbytes, operations // (BALANCE_OF_CORES if narrow else BALANCE)), narrow)


def each_of(r: UOp, most: int, f: UOp, task: Task, units: int) -> int:
  """How many iterations of a reduction's loop are each of `most` parts, or of fewer. Parts are alike; but of the whole
  steps in which cores take a loop, its longest, the last has fewer where the multiprocessors are to have two blocks
  each, or most are twice as many as would be alike."""
  n, whole = extent(r), WHOLE if task.narrow and r is max(f.src[1:], key=extent) else 1
  alike = next(p for p in range(most, 0, -1) if n % (p * (whole if p > 1 else 1)) == 0)
  enough = alike == most or (2 * alike > most and most < 2 * units // task.blocks)
  return n // alike if whole == 1 or enough else int(round_up(ceildiv(n, most), whole))


def of_parts(f: UOp) -> DType:
  """The type of what parts amount to: a sum of narrow floats is rounded when all of it is known."""
  return dtypes.float32 if dtypes.is_float(f.dtype) and f.dtype.itemsize < 4 else f.dtype


def as_far_as(x: UOp, at: UOp, end: int) -> UOp:
  """What a sum has at an index, below `end`, and 0 beyond; nothing is read there."""
  if at.vmax < end:
    return x
  there = UOp.new(Ops.CMPLT, dtypes.bool, (at, index(end)))
  reads = (u for u in x.toposort() if u.op is Ops.LOAD and not u.src[0].src[1].loops.isdisjoint(at.loops))
  masked = {u: (gated(u.src[0], there), *(u.src[1:] or (UOp.const(u.dtype, 0),))) for u in reads}
  x = substitute(x, {u: u.replace(src=src) for u, src in masked.items()})
  return x if is_zero_beyond(x, there) else UOp.new(Ops.WHERE, x.dtype, (there, x, UOp.const(x.dtype, 0)))


def terms_in_parts(kernel: UOp, cut: CutTerms, slot: int) -> tuple[UOp, UOp]:
  """The kernels of a store whose only sum has its terms cut so, by what parts amount to in the memory of PARAM `slot`,
  where results lie as they do in that of the store."""
  (store,), ids, (r, each), parts = kernel.src, LoopIds(kernel), cut, cut.parts
  (f,) = reductions((store,))
  kind = of_parts(f)

  def cast(x: UOp, to: DType) -> UOp:
    return x if x.dtype is to else UOp.new(Ops.CAST, to, (x,))

  steps = affine(store.src[0].src[1], {}).terms
  digits = [(x, extent(x)) for x in sorted(f.loops, key=lambda x: (-abs(steps.get(x, 0)), x.arg[0]))]
  memory = UOp.new(Ops.PARAM, kind, (), ParamArg(slot, parts * prod(n for _, n in digits)))
  # a part of one iteration has no loop: cores find the operands of a sum by the loops that its terms depend on
  part, rest = ids.loop(index(parts), AxisKind.LOOP), [ids.loop(index(each), AxisKind.REDUCE)] if each > 1 else []
  other = ids.loop(index(parts), AxisKind.REDUCE)

  def place(of: UOp) -> UOp:
    return UOp.new(Ops.INDEX, kind, (memory, row_major([(of, parts), *digits])))

  terms = cast(as_far_as(substitute_free(f.src[0], {r: (at := sum(rest, part * each))}), at, extent(r)), kind)
  some = UOp.new(Ops.FOLD, kind, (terms, *(y for x in f.src[1:] for y in (rest if x is r else [x]))), f.arg)
  whole = cast(UOp.new(Ops.FOLD, kind, (UOp.new(Ops.LOAD, kind, (place(other),)), other), f.arg), f.dtype)
  first = UOp.new(Ops.STORE, dtypes.void, (place(part), some, part, *(x for x in store.src[2:] if x in f.loops)))
  return UOp.sink(first), UOp.sink(substitute_free(store, {f: whole}))
