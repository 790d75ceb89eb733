"""How a communication of the local graph is carried out.

A small all-reduce is one step: every device reads all n parts. A large one is two: each device reduces one block, the
n-th part, then all read the n blocks; so each reads twice the payload, not n times. (Blocks are of one length, for else
every index would have to be divided.) Both add the parts in the order of the devices, so they give the same bits, on
every device and in every run.
"""

from tinygrad.device import Sharding
from tinygrad.helpers import prod
from tinygrad.uop import Collective, Ops, UOp

LARGE = 1 << 16  # bytes that a device reads in the time of one more kernel and meeting of the devices


def in_two_steps(u: UOp) -> UOp | None:
  """all_reduce(x) -> all_gather(reduce_scatter(x)), if x is large. (By its bytes alone, so that the schedule for many
  devices is that for three.)

  Both steps are within the groups of devices that differ in the owed digits only; by what other digits cut x does not
  matter to them, so it is left out of their placements.
  """
  c: Collective = u.arg
  if c.template.op is not Ops.HOLE or not isinstance(c.result, Sharding):
    return None
  x, (a,) = u.src[0], c.placements
  if not isinstance(a, Sharding) or c.result.pending or a.dims != c.result.dims:
    return None
  if a.mesh.devices != c.result.mesh.devices or not all(isinstance(n, int) for n in x.shape):
    return None
  digits = tuple(d for o in a.pending for d in o.digits)
  n, size = prod(d.size for d in digits), prod(x.shape)
  if len({o.op for o in a.pending}) != 1 or n == 2 or size % n or size * x.dtype.itemsize < LARGE:
    return None
  hole = UOp.new(Ops.HOLE, x.dtype, (), (0, (size,)))
  owing, cut, full = (Sharding.of(a.mesh, *at) for at in (((), a.pending), ((digits,), ()), ((), ())))
  blocks = UOp.new(Ops.COLLECTIVE, x.dtype, (x,), Collective("reduce_scatter", hole, (owing,), cut))
  return UOp.new(Ops.COLLECTIVE, x.dtype, (blocks,), Collective("all_gather", hole, (cut,), full)).reshape(u.shape)
