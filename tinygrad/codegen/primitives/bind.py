"""`bind`: loops are shared out among the threads of a grid, which has one number for its groups, one for the threads of
a group, and one for lanes, threads that share reductions."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad.codegen.primitives import IllegalStep
from tinygrad.codegen.primitives.rebind import Version
from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.numerics.fragments import digit
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, index
from tinygrad.uop.indexing import gated, within_bounds
from tinygrad.uop.loops import extent, iteration_of, iterations, static


def bind(loops: Sequence[UOp], *numbers: UOp) -> dict[UOp, list[Version]]:
  """Parallel loops as one of the grid's, or several together: each is a digit of the number, the last the lowest.
  Threads run in any order, and so do iterations of parallel loops; those beyond a loop's end do nothing."""
  sizes, stride, number = [max(extent(r), 1) for r in loops], iterations(numbers), iteration_of(numbers).uop()
  if int(prod(sizes)) != stride:
    raise IllegalStep(f"loops of {' times '.join(map(str, sizes))} iterations, for {stride} threads", "split them")
  versions = {}
  for r, n in zip(loops, sizes):
    stride //= n
    here = digit(number, stride, n)
    if static(r):
      versions[r] = [Version(here, numbers)]
    else:
      exists = UOp.new(Ops.CMPLT, dtypes.bool, (here, r.src[0]))
      versions[r] = [Version(within_bounds(here, r.src[0]), numbers, None, exists)]
  return versions


def is_lane(u: UOp, grid: Sequence[UOp], lanes: int) -> bool:
  """Whether it is the number of a thread among so many that come one after the other."""
  number, stride = Affine(0), 1
  for r in (r for r in grid if r.arg[1] is AxisKind.LOCAL):
    number, stride = Affine(0, {r: stride}).plus(number), stride * extent(r)
    if stride >= lanes and u is digit(number.uop(), 1, lanes):
      return True
  return False


def with_threads(kernel: UOp, threads: Sequence[UOp]) -> UOp:
  """The kernel's stores within all of these loops. Where lanes are nothing to a store, the first of them has it."""
  stores = []
  for s in kernel.src:
    where = s.src[0]
    for r in threads:
      if r not in s.src[2:]:
        where = gated(where, UOp.new(Ops.CMPEQ, dtypes.bool, (r, index(0))))
    stores.append(s.replace(src=(where, s.src[1], *threads, *(r for r in s.src[2:] if r not in threads))))
  return kernel.replace(src=tuple(stores))
