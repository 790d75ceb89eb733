"""What one kernel does badly, in two steps: long reductions to few results, so that threads and work groups have
something to share out, and large all-reduces.

A small all-reduce is one step: every device reads all n parts. A large one is two: each device reduces one block, the
n-th part, then all read the n blocks; so each reads twice the payload, not n times. (Blocks are of one length, for else
every index would have to be divided.) Both add the parts in the order of the devices, so they give the same bits, on
every device and in every run.
"""

from tinygrad.device import Sharding
from tinygrad.helpers import ceildiv, prod
from tinygrad.ops.reduce import identity_element
from tinygrad.uop import Collective, GroupOp, Ops, UOp

LARGE = 1 << 18  # elements read, from which one more kernel pays
PARTS = 256  # results of the first step
PART = 2048  # least elements of one
COUNTING = GroupOp.Movement | {Ops.CAST, Ops.ADD, Ops.SUB}  # of a counter: still one
COUNTS = 16  # parts of a reduction by index, whose results depend on each other's steps
MANY_BYTES = 1 << 16  # that a device reads in the time of one more kernel and meeting of the devices


def by_index(u: UOp) -> bool:
  """Whether what is reduced is chosen by a number: one kernel then adds elements up one after the other."""
  u = next(v for v in u.down() if v.op not in (Ops.CAST, Ops.WHERE))
  return u.op is Ops.CMPEQ and any(next(v for v in s.down() if v.op not in COUNTING).op is Ops.IOTA for s in u.src)


def in_parts(u: UOp) -> UOp | None:
  """reduce(x, n) -> reduce(reduce(x as [k, n/k], n/k), k), if x is large and the results are few. The parts follow
  from the shape alone, so that neither the number of threads nor of devices changes a bit.

  The dim that is cut is the reduced one whose length has the largest such divisor k, the outermost of several; where
  none has a large one, the longest, whose last part is filled up with the identity."""
  op, axes = u.arg
  x = u.src[0]
  if not all(isinstance(n, int) for n in x.shape) or (size := int(prod(x.shape))) < LARGE:
    return None
  results = int(prod(u.shape))
  steps = COUNTS * max(PART, results)
  wanted = max(PARTS // results, COUNTS if by_index(x) and max(x.shape[a] for a in axes) >= steps else 0)
  most = min(wanted, size // (results * PART))
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


def in_two_steps(u: UOp) -> UOp | None:
  """all_reduce(x) -> all_gather(reduce_scatter(x)), if x is large. (By its bytes alone, so that the schedule for many
  devices is that for three.)

  Both steps are within the groups of devices that differ in the sub-axes of x's partial sum only; by what others x is
  cut does not matter to them, so it is left out of their placements.
  """
  c: Collective = u.arg
  if c.template.op is not Ops.HOLE or not isinstance(c.result, Sharding):
    return None
  x, (a,) = u.src[0], c.placements
  if not isinstance(a, Sharding) or c.result.partial or a.dims != c.result.dims:
    return None
  if a.mesh.devices != c.result.mesh.devices or not all(isinstance(n, int) for n in x.shape):
    return None
  sub_axes = tuple(d for o in a.partial for d in o.sub_axes)
  n, size = prod(d.size for d in sub_axes), prod(x.shape)
  if len({o.op for o in a.partial}) != 1 or n == 2 or size % n or size * x.dtype.itemsize < MANY_BYTES:
    return None
  hole = UOp.new(Ops.HOLE, x.dtype, (), (0, (size,)))
  unreduced, cut, full = (Sharding.of(a.mesh, *at) for at in (((), a.partial), ((sub_axes,), ()), ((), ())))
  blocks = UOp.new(Ops.COLLECTIVE, x.dtype, (x,), Collective("reduce_scatter", hole, (unreduced,), cut))
  return UOp.new(Ops.COLLECTIVE, x.dtype, (blocks,), Collective("all_gather", hole, (cut,), full)).reshape(u.shape)
