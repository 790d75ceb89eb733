"""What one kernel does badly, in two steps: long reductions to few results, so that threads and work groups have
something to share out, and sums over devices that are large, or not all within reach.

A small all-reduce is one step: every device reads all n parts. A large one is two: each device reduces one block, the
n-th part, then all read the n blocks; so each reads twice the payload, not n times. (Blocks are of one length, for else
every index would have to be divided.) Between hosts one by levels sends what a host's devices have added up. All add
the parts as one tree over the numbers of the devices (`branches`), so they give the same bits, on every device and in
every run."""

from collections.abc import Sequence

from tinygrad.device import Partial, Sharding
from tinygrad.device.reach import levels
from tinygrad.device.sub_axes import SubAxes, atoms, boundaries, size_of
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import ceildiv, prod
from tinygrad.ops.reduce import identity_element
from tinygrad.schedule.peer_index import WIDENED, partial_sub_axes, uncovered
from tinygrad.uop import Collective, Ops, UOp

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


def in_steps(u: UOp) -> UOp | None:
  """all_reduce(x) -> all_gather(all_reduce(reduce_scatter(x))), of which the first and the last step are among devices
  that reach each other, the one between among those that do not. Where all do, all_gather(reduce_scatter(x)), if x is
  large. (By its bytes alone, so that the schedule for many devices is that for three.)

  Steps are within the groups of devices that differ in the sub-axes of x's partial sum only; by what others x is cut
  does not matter to them, so it is left out of their placements."""
  a, b, x = u.arg.placements[0], u.arg.result, u.src[0]
  if u.arg.template.op is not Ops.HOLE or not isinstance(a, Sharding) or not isinstance(b, Sharding):
    return None
  if a.mesh.devices != b.mesh.devices or not all(isinstance(n, int) for n in x.shape):
    return None
  if len({o.op for o in a.partial}) != 1:
    return None
  if a.dims != b.dims or b.partial:
    return scattered_by_levels(u, a, b)
  near, far = levels_of_sum(x.dtype, a, b)
  n, size = size_of(near), prod(x.shape)
  if size % n or (not far and (n == 2 or size * x.dtype.itemsize < MANY_BYTES)):
    return None
  unreduced, rest = Sharding.of(a.mesh, (), a.partial), across(a, far)
  blocks = step("reduce_scatter", x, (size,), unreduced, Sharding.of(a.mesh, (near,), rest))
  if far:
    blocks = step("all_reduce", blocks, (size // n,), Sharding.of(a.mesh, (), rest), unreduced.reduced)
  return step("all_gather", blocks, (size,), Sharding.of(a.mesh, (near,)), unreduced.reduced).reshape(u.shape)


def scattered_by_levels(u: UOp, a: Sharding, b: Sharding) -> UOp | None:
  """reduce_scatter(x) -> reduce_scatter(reduce_scatter(x)), the inner one among devices that reach each other. Each
  sub-axis by which the result is cut, and x is not, has a dim of its own."""
  near, far = levels_of_sum(u.dtype, a, b)
  chain = boundaries(len(a), [near, far, a.used, b.used])
  dims: list[tuple[int, SubAxes]] = []
  for i, n in enumerate(u.src[0].shape):
    old, cut = (atoms(p.cut(i), chain) or () for p in (a, b))
    new = cut[len(old) :]
    if cut[: len(old)] != old or n % size_of(new):
      return None
    dims += [*((d.size, (d,)) for d in new), (n // size_of(new), ())]
  if not far or {d for _, cut in dims for d in cut} != {*(atoms(near, chain) or ()), *(atoms(far, chain) or ())}:
    return None
  first = min(d.stride for d in far)
  inside = [cut if cut and cut[0].stride < first else () for _, cut in dims]
  outside = [cut if cut not in inside else () for _, cut in dims]
  rest = (*b.partial, *across(a, far))
  unreduced, blocks = Sharding.of(a.mesh, (), a.partial), Sharding.of(a.mesh, inside, rest)
  x = step("reduce_scatter", u.src[0], [n for n, _ in dims], unreduced, blocks)
  shape = [1 if cut else n for cut, (n, _) in zip(inside, dims)]
  unreduced, blocks = Sharding.of(a.mesh, (), rest), Sharding.of(a.mesh, outside, b.partial)
  return step("reduce_scatter", x, shape, unreduced, blocks).reshape(u.shape)


def levels_of_sum(dtype: DType, a: Sharding, b: Sharding) -> tuple[SubAxes, SubAxes]:
  """`levels` of what `a` is partial over and `b` is not. One, where what is sent between them would be rounded."""
  op = a.partial[0].op
  summed = tuple(uncovered(partial_sub_axes(a, op), partial_sub_axes(b, op)))
  return (summed, ()) if op is Ops.ADD and dtype in WIDENED else levels(summed, a.mesh.devices)


def across(a: Sharding, far: SubAxes) -> tuple[Partial, ...]:
  """What is left of `a`'s sum."""
  return (Partial(far, a.partial[0].op),) if far else ()


def step(kind: str, x: UOp, shape: Sequence[int], a: Sharding, b: Sharding) -> UOp:
  """One of the communications that make one, of x as a value of another `shape`."""
  hole = UOp.new(Ops.HOLE, x.dtype, (), (0, tuple(shape)))
  return UOp.new(Ops.COLLECTIVE, x.dtype, (x,), Collective(kind, hole, (a,), b))
