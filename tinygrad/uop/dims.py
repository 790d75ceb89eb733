"""Dims: ints, or integer expressions (UOps) that are in their simplest form and no constants."""

from collections.abc import Iterable
from typing import Any

from tinygrad.uop.op import Ops

sint = Any  # int | UOp: mypy cannot follow operators on the union


def as_dims(shape: Iterable[sint]) -> tuple[sint, ...]:
  """Dims in normal form: ints, or simplified expressions that are no constants."""
  return tuple(n if type(n) is int else simplify_sint(n) if hasattr(n, "src") else int(n) for n in shape)


def is_int(x: sint, n: int) -> bool:
  """Whether a dim is this number, symbols aside."""
  return isinstance(x, int) and x == n


def upper(x: sint) -> int:
  """The greatest value of a dim: what memory is laid out by."""
  return x if isinstance(x, int) else int(x.vmax)


def smax(a: sint, b: sint) -> sint:
  return max(a, b) if type(a) is type(b) is int else simplify_sint(_beside(a, b).maximum(b))


def smin(a: sint, b: sint) -> sint:
  return min(a, b) if type(a) is type(b) is int else simplify_sint(_beside(a, b).minimum(b))


def _beside(a: sint, b: sint) -> sint:
  """a as a UOp, as b is one if a is not."""
  return b.const_like(a) if isinstance(a, int) else a


def simplify_sint(x: sint) -> sint:
  """A dim in its simplest form: an int where it is one."""
  if isinstance(x, int):
    return x
  x = x.simplified
  return x.arg if x.op is Ops.CONST else x
