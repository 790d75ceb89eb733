"""A reduction to few results, as a sum of products of matrices may be, as two kernels: of parts of its terms, which
keep as many times more of a grid's multiprocessors busy, and of what these amount to. As "split-K" in Osama et al.,
Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU (2023)."""

from __future__ import annotations

import math
from typing import NamedTuple

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import ceildiv, prod
from tinygrad.numerics.products import multiplies_matrices, step_reads
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.affine import affine, index, row_major
from tinygrad.uop.loops import LoopIds, extent, iterations, reductions, static
from tinygrad.uop.rewrite import substitute_free

BLOCK, ACROSS = 128 * 128, 32  # results that are a multiprocessor's: of products, and of what is read across memory
LEAST_ROWS = 16  # of a product that has parts
ROWS, ROWS_OF_CORES = 64, 128  # that stream, each beside others that need the same elements: a multiprocessor's
MOST_ROWS, FEW = 32, 64  # rows by which a matrix is read once, if it has so many times as many elements
LEAST = 256  # terms of a part,
WHOLE = 64  # of which matrix cores take a multiple
LAUNCH = 1 << 23  # bytes that are read in the time of one more kernel
BALANCE, BALANCE_OF_CORES = 20, 320  # operations that take as long as a byte of memory; cores' of narrow operands


class CutTerms(NamedTuple):
  """A reduction's loop, and in how many parts of as many iterations."""

  loop: UOp
  parts: int


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
  most = min(task.parts(results * of_parts(f).itemsize, units), terms // LEAST)
  cuts = (CutTerms(r, n) for r in f.src[1:] if (n := most_parts(r, most, f, task.narrow)) > 1)
  return max(cuts, key=lambda c: c.parts, default=None)


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


def most_parts(r: UOp, most: int, f: UOp, narrow: bool) -> int:
  """In how many parts, of as many iterations, a reduction's loop is cut: cores take its longest in whole steps."""
  whole = WHOLE if narrow and r is max(f.src[1:], key=extent) else 1
  return next(n for n in range(max(most, 1), 0, -1) if extent(r) % (n * (whole if n > 1 else 1)) == 0)


def of_parts(f: UOp) -> DType:
  """The type of what parts amount to: a sum of narrow floats is rounded when all of it is known."""
  return dtypes.float32 if dtypes.is_float(f.dtype) and f.dtype.itemsize < 4 else f.dtype


def terms_in_parts(kernel: UOp, cut: CutTerms, slot: int) -> tuple[UOp, UOp]:
  """The kernels of a store whose only sum has its terms cut so, by what parts amount to in the memory of PARAM `slot`,
  where results lie as they do in that of the store."""
  (store,), ids, (r, parts) = kernel.src, LoopIds(kernel), cut
  (f,) = reductions((store,))
  kind = of_parts(f)

  def cast(x: UOp, to: DType) -> UOp:
    return x if x.dtype is to else UOp.new(Ops.CAST, to, (x,))

  steps = affine(store.src[0].src[1], {}).terms
  digits = [(x, extent(x)) for x in sorted(f.loops, key=lambda x: (-abs(steps.get(x, 0)), x.arg[0]))]
  memory = UOp.new(Ops.PARAM, kind, (), ParamArg(slot, parts * prod(n for _, n in digits)))
  each = extent(r) // parts
  # a part of one iteration has no loop: cores find the operands of a sum by the loops that its terms depend on
  part, rest = ids.loop(index(parts), AxisKind.LOOP), [ids.loop(index(each), AxisKind.REDUCE)] if each > 1 else []
  other = ids.loop(index(parts), AxisKind.REDUCE)

  def place(of: UOp) -> UOp:
    return UOp.new(Ops.INDEX, kind, (memory, row_major([(of, parts), *digits])))

  terms = cast(substitute_free(f.src[0], {r: sum(rest, part * each)}), kind)
  some = UOp.new(Ops.FOLD, kind, (terms, *(y for x in f.src[1:] for y in (rest if x is r else [x]))), f.arg)
  whole = cast(UOp.new(Ops.FOLD, kind, (UOp.new(Ops.LOAD, kind, (place(other),)), other), f.arg), f.dtype)
  first = UOp.new(Ops.STORE, dtypes.void, (place(part), some, part, *(x for x in store.src[2:] if x in f.loops)))
  return UOp.sink(first), UOp.sink(substitute_free(store, {f: whole}))
