"""Loops: how long they are, what is reduced over them, and the allocator from which a RANGE that a pass adds to a
kernel comes, so that no two loops are one node."""

import itertools
from collections.abc import Iterable, Sequence

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.uop.affine import Affine, affine, row_major
from tinygrad.uop.node import UOp
from tinygrad.uop.op import AxisKind, Ops


def extent(loop: UOp) -> int:
  """The (greatest) number of iterations."""
  return int(max(loop.src[0].vmax, 0))


def iterations(loops: Iterable[UOp]) -> int:
  """Of loops of which each is within those before it."""
  return int(prod(map(extent, loops)))


def static(r: UOp) -> bool:
  """Whether it has as many iterations in every run."""
  return r.src[0].op is Ops.CONST


def iteration_of(loops: Sequence[UOp]) -> Affine:
  """Which iteration of these loops, the outermost first, it is."""
  return affine(row_major((r, extent(r)) for r in loops), {})


def shared_rows(stores: Sequence[UOp]) -> tuple[UOp, ...]:
  """The loops that all stores have in common."""
  return tuple(r for r in stores[0].src[2:] if all(r in s.src[2:] for s in stores))


def all_rows(stores: Sequence[UOp]) -> tuple[UOp, ...]:
  """These, and inside of them the loops over which a store's value is reduced that the others share."""
  over = [r for r in stores[0].src[2:] if all(r in (*s.src[2:], *fold_ranges(s)) for s in stores)]
  shared = shared_rows(stores)
  return (*shared, *(r for r in over if r not in shared))


def fold_ranges(store: UOp) -> tuple[UOp, ...]:
  """Over which a store's value is reduced, if it is a reduction."""
  return store.src[1].src[1:] if store.src[1].op is Ops.FOLD else ()


def reductions(stores: Iterable[UOp]) -> list[UOp]:
  """The FOLDs of stores, or values, sources first. (The order of what is below a store is known.)"""
  return list(dict.fromkeys(u for s in stores for u in s.toposort() if u.op is Ops.FOLD))


class LoopIds:
  """Ids of loops, each given once, above all that the kernels `taken` have. Two loops of one end, kind and id would be
  the same node; so what is fused or split shares an allocator, handed down."""

  def __init__(self, *taken: UOp) -> None:
    used = (u.arg[0] for kernel in taken for u in kernel.toposort() if u.op is Ops.RANGE)
    self.ids = itertools.count(1 + max(used, default=-1))

  def next(self) -> int:
    """An id for a register or for scratch memory, which codegen numbers with the loops."""
    return next(self.ids)

  def loop(self, end: UOp, kind: AxisKind) -> UOp:
    """A new loop variable over [0, end)."""
    return UOp.new(Ops.RANGE, dtypes.index, (end,), (next(self.ids), kind))

  def like(self, loops: Iterable[UOp], kind: AxisKind | None = None) -> dict[UOp, UOp]:
    """For each of these loops a new one of its length, and of its kind where no other is given."""
    return {r: self.loop(r.src[0], kind or r.arg[1]) for r in loops}

  def copies(self, kernel: UOp) -> dict[UOp, UOp]:
    """For each loop of `kernel` a new one that runs as it does; later loops have higher ids, as in the kernel."""
    loops = [u for u in kernel.toposort() if u.op is Ops.RANGE]
    return self.like(sorted(loops, key=lambda u: u.arg[0]))
