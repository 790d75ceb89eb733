"""How operands of products that matrix cores multiply lie in memory: a core reads 16 bytes along one of the loops of
the product. Images have their places along memory, which a convolution reads through windows, and weights the taps of
these; both are copied before with channels innermost, as by a library's kernels ("NHWC")."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tinygrad.dtype import DType
from tinygrad.helpers import argsort, prod
from tinygrad.numerics.products import is_product
from tinygrad.numerics.streaming import is_widened
from tinygrad.uop import CARDS, AxisKind, Ops, UOp
from tinygrad.uop.affine import affine, index
from tinygrad.uop.loops import LoopIds

REUSED = 256  # products of an element, from which on a copy of it pays
WHOLE = 32  # a loop that a core reads along is a multiple of so many iterations


def innermost_for_cores(u: UOp, kinds: Collection[DType]) -> UOp | None:
  """A REDUCE of products, of types that matrix cores take, of which one reads memory through windows, over memory in
  which operands lie along one of its loops; None where all do."""
  product = u.src[0]
  if u.arg[0] is not Ops.ADD or not is_product(product) or not all(isinstance(n, int) for n in product.shape):
    return None
  factors = [Factor.of(x) for x in product.src]
  if any(f.memory.dtype not in kinds for f in factors) or not any(f.along is None for f in factors):
    return None
  made = [f.with_innermost(x) for f, x in zip(factors, product.src)]
  if all(new is x for new, x in zip(made, product.src)):
    return None
  return u.replace(src=(product.replace(src=tuple(made)),))


class Factor(NamedTuple):
  """A factor of a product: `moves`, the last first, of what lies in memory, with elements `at` indices of its loops."""

  moves: tuple[UOp, ...]
  memory: UOp
  at: tuple[UOp, ...]

  @classmethod
  def of(cls, x: UOp) -> Factor:
    ids, moves = LoopIds(), list[UOp]()
    at = tuple(ids.loop(index(n), AxisKind.LOOP) if n > 1 else index(0) for n in x.shape)
    while (moved := CARDS[x.op].index_map) is not None or is_widened(x):
      at = at if moved is None else moved(x, at).at
      moves.append(x)
      x = x.src[0]
    return cls(tuple(moves), x, at)

  @property
  def along(self) -> UOp | None:
    """The loop that goes along memory, if it is one alone, as of a slice, and not one with that of a window's taps."""
    last = max((d for d, n in enumerate(self.memory.shape) if n > 1), default=-1)
    steps = affine(self.at[last], {}).terms if self.at else {}
    r = next((r for r, step in steps.items() if step == 1), None)
    apart = r is not None and all(x is r or step % r.src[0].arg == 0 for x, step in steps.items())
    return r if apart else None

  def with_innermost(self, x: UOp) -> UOp:
    """It over memory in which a dim is innermost that a long loop goes along, the last of several, if none is."""
    shape, along = self.memory.shape, self.along
    long = [d for d, n in enumerate(shape) if n % WHOLE == 0 and self.at[d].op is Ops.RANGE]
    if not long or (along is not None and along.src[0].arg % WHOLE == 0) or prod(x.shape) < REUSED * prod(shape):
      return x
    order = (*(d for d in range(len(shape)) if d != long[-1]), long[-1])
    y = UOp.new(Ops.CONTIGUOUS, self.memory.dtype, (self.memory.permute(order),), ("innermost", long[-1]))
    y = y.permute(tuple(argsort(order)))
    for u in reversed(self.moves):
      y = u.replace(src=(y,))
    return y
