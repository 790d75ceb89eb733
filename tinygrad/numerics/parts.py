"""What one kernel does badly, in several steps: long reductions to few results, and scatters of many updates, so that
threads and work groups have something to share out, what is joined of many parts, and sums over devices that are large,
or that not all devices can read (device/sums.py)."""

from collections.abc import Sequence
from typing import NamedTuple

from tinygrad.device import Sharding
from tinygrad.device.sums import sum_steps
from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, prod
from tinygrad.ops.reduce import identity_element
from tinygrad.uop import Collective, Ops, UOp
from tinygrad.uop.node import HALVES

LARGE = 1 << 18  # elements read, from which one more kernel pays
LONG = 1 << 16  # of a row: a kernel that reads a shorter one again has it still
ROWS = 32  # at least: fewer leave most of a device idle
PARTS = 256  # results of the first step
PART = 2048  # least elements of one
JOINED = 16  # sources of a CAT: each element is looked for in all of them, and compilers take long over many
MANY_BYTES = 1 << 16  # that a device reads in the time of one more kernel and meeting of the devices
COUNTS = 16  # parts of a SCATTER, whose results depend on each other's steps


class ReductionParts(NamedTuple):
  """Of a reduction: `number` parts of `size` elements along its dim `axis`; the last one may have fewer."""

  axis: int
  number: int
  size: int

  def of(self, x: UOp) -> UOp:
    """A value with a dim of the parts before that of the elements of each."""
    return x.reshape((*x.shape[: self.axis], self.number, self.size, *x.shape[self.axis + 1 :]))

  def reduced(self, x: UOp, op: Ops, axes: Sequence[int]) -> UOp:
    """Of each part, what `x`, a value in parts, amounts to over `axes` of the value that is not."""
    return UOp.new(Ops.REDUCE, x.dtype, (x,), (op, tuple(a + (a >= self.axis) for a in axes)))


def reduction_parts(u: UOp) -> ReductionParts | None:
  """The parts of a reduction that takes two steps: of a large value to few results. They follow from the shape alone,
  so that neither the number of threads nor of devices changes a bit.

  The dim that is cut is the reduced one whose length has the largest such divisor, the outermost of several; where
  none has a large one, the longest."""
  axes, shape = u.arg[1], u.src[0].shape
  if not all(isinstance(n, int) for n in shape) or (size := int(prod(shape))) < LARGE:
    return None
  if (results := int(prod(u.shape))) >= ROWS and len(shape) - 1 in axes and size < LONG * results:
    return None
  most = min(PARTS // results, size // (results * PART))
  cuts = {a: max((d for d in range(most // 2 + 1, most + 1) if shape[a] % d == 0), default=0) for a in axes}
  axis = max(axes, key=lambda a: (cuts[a], 0 if cuts[a] else shape[a], -a))
  number = cuts[axis] or min(most, shape[axis])
  return None if number < 2 else ReductionParts(axis, number, ceildiv(shape[axis], number))


def in_parts(u: UOp) -> UOp | None:
  """reduce(x) -> reduce(reduce(part) for parts of x), filled up with the identity."""
  (op, axes), x = u.arg, u.src[0]
  if all(x.shape[a] == 1 for a in axes):
    return x.reshape(u.shape)
  if (parts := reduction_parts(u)) is None:
    return None
  if rest := parts.number * parts.size - x.shape[parts.axis]:
    x = x.pad(tuple((0, rest * (a == parts.axis)) for a in range(x.ndim)), identity_element(op, x.dtype))
  each = parts.reduced(parts.of(x), op, axes)
  return UOp.new(Ops.REDUCE, u.dtype, (each,), (op, (parts.axis,))).reshape(u.shape)


def squares_in_parts(u: UOp) -> UOp | None:
  """Σ(x - t)² -> Σ(Σ(part - c)² + n(c - t)²) for parts of x, c the mean of the n elements of one, where t is made of
  the sums of these parts: so one kernel reads x once, for these sums and for the distances to c (Chan, Golub, LeVeque:
  Updating formulae and a pairwise algorithm for computing sample variances, 1979). It holds for every t."""
  (op, axes), square = u.arg, u.src[0]
  if op is not Ops.ADD or square.op is not Ops.MUL or square.src[0] is not square.src[1]:
    return None
  distance = square.src[0]
  if distance.op is not Ops.SUB or distance.src[1].op is not Ops.EXPAND or (parts := reduction_parts(u)) is None:
    return None
  whole, t = distance.src[0], distance.src[1].src[0]
  if any(t.shape[a] != 1 for a in axes) or parts.number * parts.size != whole.shape[parts.axis]:
    return None
  total = parts.reduced(x := parts.of(whole), op, axes)
  if total not in t.toposort(lambda v: prod(v.max_shape) < whole.size):
    return None
  n = whole.size // (prod(u.shape) * parts.number)
  mean, t = total.alu(Ops.MUL, total.const_like(1 / n)), parts._replace(number=1, size=1).of(t)
  near, far = x.alu(Ops.SUB, mean.expand(x.shape)), mean.alu(Ops.SUB, t.expand(mean.shape))
  each = parts.reduced(near.alu(Ops.MUL, near), op, axes), far.alu(Ops.MUL, far.alu(Ops.MUL, far.const_like(n)))
  within, between = (UOp.new(Ops.REDUCE, u.dtype, (v,), (op, (parts.axis,))) for v in each)
  return within.alu(Ops.ADD, between).reshape(u.shape)


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


def joined_in_groups(u: UOp) -> UOp | None:
  """cat(many) -> cat(cat(a few) in memory, …). What a source is joined of counts, too."""
  if sources_joined(u) <= JOINED:
    return None
  size = ceildiv(len(u.src), ceildiv(len(u.src), JOINED))
  groups = u.src if size == len(u.src) else [u.replace(src=u.src[i : i + size]) for i in range(0, len(u.src), size)]
  return u.replace(src=tuple(UOp.new(Ops.CONTIGUOUS, x.dtype, (x,)) if x.op is Ops.CAT else x for x in groups))


def sources_joined(u: UOp) -> int:
  """Below a CAT that has not been looked at; others are of no more than JOINED."""
  return sum(map(sources_joined, u.src)) if u.op is Ops.CAT else 1


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
