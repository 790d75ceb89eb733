"""Floor division, and its rest, by instructions that truncate."""

from tinygrad.dtype import dtypes
from tinygrad.numerics.lanes import Emitter
from tinygrad.ops import Trait, having
from tinygrad.uop import GroupOp, Ops, UOp

DIVIDES = having(Trait.DIVIDES)


def floor_divided(v: Emitter, u: UOp, x: UOp, y: UOp) -> UOp:
  """IDIV or MOD of emitted operands by the processor's, which must not divide by 0 (that gives 0), or the least integer
  by -1 (itself, and 0)."""

  def new(op: Ops, *src: UOp | int) -> UOp:
    values = tuple(v.broadcast(UOp.const(u.dtype, s), x.dtype.count) if isinstance(s, int) else s for s in src)
    dtype = dtypes.bool.vec(x.dtype.count) if op in GroupOp.Comparison else values[-1].dtype
    return v.node(op, dtype, values, False if op in DIVIDES else None)

  known = u.src[1].arg if u.src[1].op is Ops.CONST else 0
  if u.src[0].vmin >= 0 and u.src[1].vmin > 0:
    return v.node(u.op, x.dtype, (x, y), True)
  unsigned = dtypes.is_unsigned(u.dtype)
  if known > 0 and known & (known - 1) == 0 and not unsigned:
    return new(Ops.SHR, x, known.bit_length() - 1) if u.op is Ops.IDIV else new(Ops.AND, x, known - 1)
  by_zero, by_minus = (None if known else new(Ops.CMPEQ, y, 0)), None
  if by_zero is not None:
    y = new(Ops.WHERE, by_zero, 1, y)
  if unsigned:
    out = new(u.op, x, y)
  else:
    if known in (0, -1):
      by_minus = new(Ops.CMPEQ, y, -1)
      y = new(Ops.WHERE, by_minus, 1, y)
    q = new(Ops.IDIV, x, y)
    r = new(Ops.SUB, x, new(Ops.MUL, q, y))
    wrong = new(Ops.AND, new(Ops.CMPLT, new(Ops.XOR, r, y), 0), new(Ops.CMPNE, r, 0))
    out = new(Ops.WHERE, wrong, *((new(Ops.SUB, q, 1), q) if u.op is Ops.IDIV else (new(Ops.ADD, r, y), r)))
    if by_minus is not None and u.op is Ops.IDIV:
      out = new(Ops.WHERE, by_minus, new(Ops.SUB, 0, x), out)
  return out if by_zero is None else new(Ops.WHERE, by_zero, 0, out)
