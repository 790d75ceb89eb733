"""Sums over devices that are large, or that not all devices can read, in several steps (device/sums.py)."""

from tinygrad.device import Sharding
from tinygrad.device.sums import sum_steps
from tinygrad.helpers import prod
from tinygrad.uop import Collective, Ops, UOp
from tinygrad.uop.node import HALVES

MANY_BYTES = 1 << 16  # that a device reads in the time of one more kernel and meeting of the devices


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
