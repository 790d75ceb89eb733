"""What a kernel is called and what it costs, from its AST."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tinygrad.dtype import dtypes
from tinygrad.numerics.products import uncast
from tinygrad.ops import Trait, having
from tinygrad.uop import CARDS, AxisKind, Ops, UOp
from tinygrad.uop.loops import iterations

COUNTED = having(Trait.FLOP)


@dataclass(frozen=True, slots=True)
class Estimate:
  """`name`: kind and loop lengths. `ops`: arithmetic operations; `nbytes`: memory that is touched at least once;
  `products`: those of the operations that sums of products are, by the type of the operands; `instructions`: what the
  others take, by their cards. All by upper bounds, for one device.
  """

  name: str
  ops: int
  nbytes: int
  products: tuple[tuple[str, int], ...] = ()
  instructions: int = 0


def estimate(ast: UOp) -> Estimate:
  """Each value counts once for every combination of the ranges that it depends on, which are all rows where it reads
  memory of a row; a FOLD adds one operation for each of its values, a sum by index one for each update, whatever the
  number of places. Of a user's kernel only the memory is known."""
  if ast.op is Ops.CALL:
    return Estimate(ast.arg.name, 0, sum(p.arg.size * p.dtype.itemsize for p in ast.src))
  inside: dict[UOp, frozenset[UOp]] = {}
  stores = [frozenset(s.src[2:]) for s in ast.src if s.op is Ops.STORE]
  rows = frozenset.intersection(*stores) if stores else frozenset()
  ops = 0
  touched: dict[UOp, int] = {}
  products, instructions = Counter[str](), 0
  for u in ast.toposort():
    if u.op is Ops.RANGE:
      inside[u] = frozenset((u,))
      continue
    ranges = frozenset().union(*(inside[s] for s in u.src))
    if u.op is Ops.FOLD:
      of = u.src[0].src[::2] if u.src[0].op is Ops.ONE_HOT else u.src[:1]
      n = iterations(frozenset(u.src[1:]).union(*(inside[s] for s in of)))
      ops += n
      if (product := uncast(u.src[0])).op is Ops.MUL and u.arg is Ops.ADD:
        products[operand_type(product)] += 2 * n
        instructions -= iterations(inside[product])
      else:
        instructions += n
      ranges -= frozenset(u.src[1:])
    elif u.op in COUNTED and u.dtype is not dtypes.index and u.dtype is not dtypes.bool:
      ops += iterations(ranges)
      instructions += iterations(ranges) * max(CARDS[u.op].cost, 1)
    elif u.op is Ops.INDEX:
      touched[u.src[0]] = max(touched.get(u.src[0], 0), iterations(ranges))
      ranges |= rows if u.src[0].op is Ops.PARAM and not u.src[0].arg.given else frozenset()
    inside[u] = ranges
  nbytes = sum(min(n, [*p.down()][-1].arg.size * iterations(inside[p])) * p.dtype.itemsize for p, n in touched.items())
  loops = sorted((u for u in inside if u.op is Ops.RANGE), key=lambda r: r.arg[0])
  kind = "r" if any(r.arg[1] is AxisKind.REDUCE for r in loops) else "E"
  name = "_".join([kind, *(str(r.src[0].vmax) for r in loops)])
  return Estimate(name, ops, nbytes, tuple(products.items()), max(instructions, 0))


def operand_type(product: UOp) -> str:
  """The name of the wider type of two factors; a factor is of the narrowest type that it is converted to or from."""
  widths = [min((v.dtype for v in (*casts(s), uncast(s))), key=lambda d: d.itemsize) for s in product.src]
  return max(widths, key=lambda d: d.itemsize).name


def casts(u: UOp) -> Iterator[UOp]:
  return itertools.takewhile(lambda v: v.op is Ops.CAST, u.down())
