"""Sums of products of matrices: one of them keeps a kernel's registers and caches, or a GPU's cores, busy."""

from __future__ import annotations

import functools

from tinygrad.helpers import prod
from tinygrad.ops import Trait, having
from tinygrad.uop import Ops, UOp, upper

SEEN_THROUGH = having(Trait.CONVERTS) | having(Trait.VIEW, Trait.ONTO, Trait.ONE_TO_ONE)
MOST = 12  # addends that are told apart


def is_product(u: UOp) -> bool:
  """Whether each of its factors is used several times, as those of matrices are that are multiplied."""
  return u.op is Ops.MUL and all(grows(next(v for v in s.down() if v.op not in SEEN_THROUGH)) for s in u.src)


def grows(u: UOp) -> bool:
  """An EXPAND that reads each element several times."""
  return u.op is Ops.EXPAND and prod(map(upper, u.shape)) > prod(map(upper, u.src[0].shape))


def products_apart(u: UOp) -> UOp | None:
  """A REDUCE of a sum of products, as the gradient of what several products read is one, as the sum of their REDUCEs:
  Σ(xy + zw) = Σxy + Σzw."""
  addends = [u.src[0]]
  while any(x.op is Ops.ADD for x in addends) and len(addends) < MOST:
    addends = [y for x in addends for y in (x.src if x.op is Ops.ADD else (x,))]
  if u.arg[0] is not Ops.ADD or len(addends) < 2 or not all(map(is_product, addends)):
    return None
  sums = [UOp.new(Ops.REDUCE, u.dtype, (x,), u.arg) for x in addends]
  return functools.reduce(lambda x, y: UOp.new(Ops.ADD, u.dtype, (x, y)), sums)
