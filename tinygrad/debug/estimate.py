"""What a kernel is called and what it costs, from its AST."""

from dataclasses import dataclass

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.ops import Trait, having
from tinygrad.uop import AxisKind, Ops, UOp

COUNTED = having(Trait.FLOP)


@dataclass(frozen=True, slots=True)
class Estimate:
  """`name`: kind and loop lengths. `ops`: arithmetic operations; `nbytes`: memory that is touched at least once. Both
  by upper bounds, for one device.
  """

  name: str
  ops: int
  nbytes: int


def estimate(ast: UOp) -> Estimate:
  """Each value counts once for every combination of the ranges that it depends on; a FOLD adds one operation for each
  of its values.
  """
  inside: dict[UOp, frozenset[UOp]] = {}
  ops = 0
  touched: dict[UOp, int] = {}
  for u in ast.toposort():
    if u.op is Ops.RANGE:
      inside[u] = frozenset((u,))
      continue
    ranges = frozenset().union(*(inside[s] for s in u.src))
    if u.op is Ops.FOLD:
      ops += iterations(inside[u.src[0]] | frozenset(u.src[1:]))
      ranges -= frozenset(u.src[1:])
    elif u.op in COUNTED and u.dtype is not dtypes.index and u.dtype is not dtypes.bool:
      ops += iterations(ranges)
    elif u.op is Ops.INDEX:
      touched[u.src[0]] = max(touched.get(u.src[0], 0), iterations(ranges))
    inside[u] = ranges
  nbytes = sum(min(n, [*p.down()][-1].arg.size * iterations(inside[p])) * p.dtype.itemsize for p, n in touched.items())
  loops = sorted((u for u in inside if u.op is Ops.RANGE), key=lambda r: r.arg[0])
  kind = "r" if any(r.arg[1] is AxisKind.REDUCE for r in loops) else "E"
  return Estimate("_".join([kind, *(str(r.src[0].vmax) for r in loops)]), ops, nbytes)


def iterations(ranges: frozenset[UOp]) -> int:
  return int(prod(max(r.src[0].vmax, 0) for r in ranges))
