"""What one kernel does badly, in several steps: long reductions to few results, so that threads and work groups have
something to share out, and sums over devices that are large, or that not all devices can read (device/sums.py)."""

from tinygrad.device import Sharding
from tinygrad.device.sums import sum_steps
from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, prod
from tinygrad.ops.reduce import identity_element
from tinygrad.uop import Collective, Ops, UOp
from tinygrad.uop.node import HALVES

LARGE = 1 << 18  # elements read, from which one more kernel pays
PARTS = 256  # results of the first step
PART = 2048  # least elements of one
COUNTS = 16  # parts of a SCATTER, whose results depend on each other's steps
MANY_BYTES = 1 << 16  # that a device reads in the time of one more kernel and meeting of the devices


def in_parts(u: UOp) -> UOp | None:
  """reduce(x, n) -> reduce(reduce(x as [k, n/k], n/k), k), if x is large and the results are few. The parts follow
  from the shape alone, so that neither the number of threads nor of devices changes a bit.

  The dim that is cut is the reduced one whose length has the largest such divisor k, the outermost of several; where
  none has a large one, the longest, whose last part is filled up with the identity."""
  op, axes = u.arg
  x = u.src[0]
  if all(x.shape[a] == 1 for a in axes):
    return x.reshape(u.shape)
  if not all(isinstance(n, int) for n in x.shape) or (size := int(prod(x.shape))) < LARGE:
    return None
  results = int(prod(u.shape))
  most = min(PARTS // results, size // (results * PART))
  cuts = {a: max((d for d in range(most // 2 + 1, most + 1) if x.shape[a] % d == 0), default=0) for a in axes}
  axis = max(axes, key=lambda a: (cuts[a], 0 if cuts[a] else x.shape[a], -a))
  n = x.shape[axis]
  k = cuts[axis] or min(most, n)
  if k < 2:
    return None
  m = ceildiv(n, k)
  if k * m != n:
    pads = tuple((0, k * m - n if a == axis else 0) for a in range(len(x.shape)))
    x = UOp.new(Ops.PAD, x.dtype, (x,), (pads, identity_element(op, x.dtype)))
  parts = x.reshape((*x.shape[:axis], k, m, *x.shape[axis + 1 :]))
  inner = tuple(a + (a >= axis) for a in axes)  # `axis` itself is now two dims, of which the second goes first
  part = UOp.new(Ops.REDUCE, u.dtype, (parts,), (op, inner))
  return UOp.new(Ops.REDUCE, u.dtype, (part,), (op, (axis,))).reshape(u.shape)


def scatter_in_parts(u: UOp) -> UOp | None:
  """scatter(x, index of k) -> reduce(scatter(x, index as [parts, k/parts] with a batch dim of parts), parts), if the
  index is long and the results are few: one kernel else adds updates up one after the other."""
  (op, n, batch), (index, x) = u.arg, u.src
  if not all(isinstance(m, int) for m in (*u.shape, *index.shape)) or 0 in (*u.shape, *index.shape):
    return None
  head, rest = index.shape[:batch], x.shape[index.ndim :]
  k, results = int(prod(index.shape[batch:])), int(prod(u.shape))
  most = min(max(PARTS // results, COUNTS if k >= COUNTS * max(PART, results) else 0), k // PART)
  if k * results < LARGE or most < 2:
    return None
  parts = max((d for d in range(most // 2 + 1, most + 1) if k % d == 0), default=most)
  index, x = index.reshape((*head, k)), x.reshape((*head, k, *rest))
  if filled := -k % parts:
    index = index.cast(dtypes.int64) if dtypes.is_unsigned(index.dtype) else index
    pads = (*((0, 0) for _ in head), (0, filled))
    index, x = index.pad(pads, -1), x.pad((*pads, *((0, 0) for _ in rest)))
  shape = (*head, parts, (k + filled) // parts)
  part = UOp.new(Ops.SCATTER, u.dtype, (index.reshape(shape), x.reshape((*shape, *rest))), (op, n, batch + 1))
  return UOp.new(Ops.REDUCE, u.dtype, (part,), (op, (batch,))).reshape(u.shape)


def in_sum_steps(u: UOp) -> UOp | None:
  """all_reduce(x), reduce_scatter(x) -> the steps that these are made of, if several (`sum_steps`)."""
  a, b, x = u.arg.placements[0], u.arg.result, u.src[0]
  if u.arg.template.op is not Ops.HOLE or not isinstance(a, Sharding) or not isinstance(b, Sharding):
    return None
  if a.mesh.devices != b.mesh.devices or not all(isinstance(n, int) for n in x.shape):
    return None
  if len({o.op for o in a.partial}) != 1:
    return None
  rounds = a.partial[0].op is Ops.ADD and x.dtype in HALVES
  steps = sum_steps(a, b, x.shape, int(prod(x.shape)) * x.dtype.itemsize >= MANY_BYTES, rounds)
  for kind, shape, before, after in steps:
    hole = UOp.new(Ops.HOLE, x.dtype, (), (0, shape))
    x = UOp.new(Ops.COLLECTIVE, x.dtype, (x,), Collective(kind, hole, (before,), after))
  return x.reshape(u.shape) if steps else None
