"""Which stores go past the caches: those of whole lines of large memory that the kernel does not read. Otherwise a
processor reads a line before it stores into it, and the line takes the place of another in the cache."""

from collections import defaultdict
from collections.abc import Sequence

from tinygrad.uop import Ops, UOp
from tinygrad.uop.affine import Affine, affine

LINE = 64  # bytes
LARGE = 1 << 25  # bytes of memory that has mostly left the caches when the next kernel reads it


def streamed_stores(linear: Sequence[UOp]) -> set[UOp]:
  """Stores without a condition that together with others of their block fill every line that they touch, if memory
  begins at one."""
  read = {u.src[0].src[0] for u in linear if u.op is Ops.LOAD and u.src[0].op is Ops.INDEX}
  memo, block = dict[UOp, Affine](), 0
  filled: defaultdict[tuple[object, ...], int] = defaultdict(int)  # bytes, by line
  lines: dict[UOp, list[tuple[object, ...]]] = {}
  for u in linear:
    block += u.op is Ops.RANGE or u.op is Ops.ENDRANGE
    if u.op is Ops.STORE and fills_lines(u) and u.src[0].src[0] not in read:
      memory, offset = u.src[0].src
      at, each = affine(offset, memo), u.src[1].dtype.itemsize
      first, nbytes = at.const * each, u.src[1].dtype.count * each
      if first % min(nbytes, LINE) == 0 and not any(c * each % LINE for c in at.terms.values()):
        where = block, memory, frozenset(at.terms.items())
        lines[u] = [(*where, n) for n in range(first // LINE, -(-(first + nbytes) // LINE))]
        for line in lines[u]:
          filled[line] += min(nbytes, LINE)
  return {u for u, mine in lines.items() if all(filled[line] == LINE for line in mine)}


def fills_lines(u: UOp) -> bool:
  """Whether a store is of neighbours, to large memory, without a condition."""
  where, value = u.src[:2]
  if where.op is not Ops.INDEX or len(where.src) > 2 or where.src[1].dtype.count > 1 or value.dtype.count == 1:
    return False
  memory = where.src[0]
  if memory.op is not Ops.PARAM or memory.arg.peers or not isinstance(memory.arg.size, int):
    return False
  return bool(memory.arg.size * memory.dtype.itemsize >= LARGE)
