"""Long loops cut beside where a condition on them changes: of what is put together of parts, or moved round, only the
line of memory in which one part meets the next asks for each lane where it is from."""

from collections.abc import Sequence

from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import NOOPT, round_up
from tinygrad.uop import Ops, UOp, simplify
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loops import LoopIds, extent, static
from tinygrad.uop.rewrite import substitute_free

LONG = 256  # iterations of a loop that is worth being several
MOST = 2  # changes
LINE = 64  # bytes


def cut_loops(kernel: UOp, target: Target) -> UOp:
  """On processors, a kernel of one store, without reductions: the loop along which what is stored lies together. Not
  where there are sums of products: in a part, which chooses nothing, they would be fused (renderer/llvm.py), that are
  apart in the whole, and bits would depend on its length."""
  store, nodes = kernel.src[0], kernel.toposort()
  if target.threads or len(kernel.src) > 1 or NOOPT or any(u.op is Ops.FOLD for u in nodes) or sums_products(nodes):
    return kernel
  along = [r for r, step in affine(store.src[0].src[1], {}).terms.items() if r in store.src[2:] and step == 1]
  for r in (r for r in along if static(r) and extent(r) >= LONG):
    if 0 < len(changes := changes_of(r, nodes)) <= MOST:
      line, n = LINE // store.src[1].dtype.itemsize, r.src[0].arg
      ends = {end for at in changes for end in (at // line * line, min(round_up(at, line), n))}
      return UOp.sink(*parts_between(store, r, sorted({0, *ends, n}), LoopIds(kernel)))
  return kernel


def sums_products(nodes: Sequence[UOp]) -> bool:
  floats = {u.op for u in nodes if dtypes.is_float(u.dtype)}
  return Ops.MUL in floats and (Ops.ADD in floats or Ops.SUB in floats)


def changes_of(r: UOp, nodes: Sequence[UOp]) -> set[int]:
  """The iterations of a loop with which a comparison of it with a number changes."""
  found = set[int]()
  for u in nodes:
    if u.op is Ops.CMPLT and u.src[0].dtype is dtypes.index:
      d = affine(u.src[0], {}).plus(affine(u.src[1], {}), -1)
      if d.terms.keys() == {r} and abs(d.terms[r]) == 1:  # r + const < 0, or const < r
        found.add(-d.const if d.terms[r] > 0 else d.const + 1)
  return {n for n in found if 0 < n < r.src[0].arg}


def parts_between(store: UOp, r: UOp, ends: Sequence[int], ids: LoopIds) -> list[UOp]:
  """The store for each part of a loop, over a loop of its own."""
  out = list[UOp]()
  for first, end in zip(ends, ends[1:]):
    own = ids.loop(index(end - first), r.arg[1])
    here = {r: Affine(first, {own: 1}).uop()}
    where, value = (simplify(substitute_free(x, here)) for x in store.src[:2])
    out.append(UOp.new(Ops.STORE, dtypes.void, (where, value, *(own if x is r else x for x in store.src[2:]))))
  return out
