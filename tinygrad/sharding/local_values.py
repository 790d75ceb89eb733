"""What devices compute besides the program itself: their part of a value, where it begins, and what they exchange."""

from collections.abc import Sequence

from tinygrad.device import Placement, Sharding
from tinygrad.device.sub_axes import atoms, boundaries
from tinygrad.dtype import DType, dtypes
from tinygrad.sharding.moves import Step

# isort: off
from tinygrad.ops.elementwise import MIRROR
from tinygrad.uop import Collective, Ops, UOp, device_number, lengths, simplify_sint, sint, smin, start
# isort: on


def apply_step(x: UOp, step: Step, shape: tuple[sint, ...]) -> UOp:
  """One step of a plan on the local form of a value of global `shape`."""
  if step.kind == "slice":
    assert isinstance(step.b, Sharding)
    return cut_out(x, shape, step.a, step.b)
  if step.kind == "unreduce":
    assert isinstance(step.a, Sharding) and isinstance(step.b, Sharding)
    return unreduce(x, step.a, step.b)
  return communicate(step.kind, [x], UOp.new(Ops.HOLE, x.dtype, (), (0, shape)), (step.a,), step.b)


def communicate(kind: str, xs: Sequence[UOp], template: UOp, places: tuple[Placement, ...], p: Placement) -> UOp:
  """A COLLECTIVE; its blocks have their full size, so an uneven one is shrunk to its valid length."""
  u = UOp.new(Ops.COLLECTIVE, template.dtype, tuple(xs), Collective(kind, template, places, p))
  valid = lengths(p, template.shape)
  return u if valid == u.shape else UOp.new(Ops.SHRINK, u.dtype, (u,), tuple((0, n) for n in valid))


def cut_out(x: UOp, shape: Sequence[sint], a: Placement | None, b: Sharding) -> UOp:
  """This device's part at `b` of x, the local form at the coarser `a` of a value of global `shape`."""
  pairs: list[tuple[sint, sint]] = []
  sizes = lengths(b, shape)
  for i, n in enumerate(shape):
    if not b.cut(i) or (isinstance(a, Sharding) and a.cut(i) == b.cut(i)):
      pairs.append((0, x.shape[i]))
      continue
    size = sizes[i]
    lo = simplify_sint(start(b, i, n) - start(a, i, n))
    if not isinstance(size, int):
      lo = smin(lo, simplify_sint(x.shape[i] - size))  # an empty block must not start behind the end
    pairs.append((lo, simplify_sint(lo + size)))
  return UOp.new(Ops.SHRINK, x.dtype, (x,), tuple(pairs))


def unreduce(x: UOp, a: Sharding, b: Sharding) -> UOp:
  """x, partial over what `a` is, as a value that is partial over what `b` is: of a sum or a product the first
  coordinate keeps it and the others hold the identity; of max and min all keep it."""
  chain = boundaries(len(b), [a.used, b.used])
  for partial in b.partial:
    if partial.op in MIRROR:
      continue
    had = {d for o in a.partial if o.op is partial.op for d in atoms(o.sub_axes, chain) or o.sub_axes}
    identity = 1 if partial.op is Ops.MUL else -0.0 if dtypes.is_float(x.dtype) else 0
    rest = UOp.const(x.dtype, identity).broadcast_to(x.shape)
    for d in atoms(partial.sub_axes, chain) or partial.sub_axes:
      if d not in had:
        at = scalar(simplify_sint(device_number(b) // d.stride % d.size), dtypes.int32, x.shape)
        first = UOp.new(Ops.CMPEQ, dtypes.bool, (at, at.const_like(0)))
        x = UOp.new(Ops.WHERE, x.dtype, (first, x, rest))
  return x


def shifted(index: UOp, offset: sint) -> UOp:
  """index - offset in a signed type: rows before the device's own get a negative index, which reads and adds
  nothing."""
  wide = index.dtype.itemsize > 4 or index.dtype is dtypes.uint32
  signed = index.cast(dtypes.int64 if wide else dtypes.int32)
  return UOp.new(Ops.SUB, signed.dtype, (signed, scalar(offset, signed.dtype, signed.shape)))


def scalar(value: sint, dtype: DType, shape: Sequence[sint]) -> UOp:
  """An index expression as a value of `dtype` and `shape`."""
  at = UOp.const(dtype, value) if isinstance(value, int) else UOp.new(Ops.CAST, dtype, (value,))
  return at.broadcast_to(shape)
