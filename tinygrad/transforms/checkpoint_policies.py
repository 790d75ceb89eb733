"""What `checkpoint` keeps for the backward pass: functions of a value -> False: it is computed again; True: it is kept;
the name of a device: it is kept there."""

import math
from collections.abc import Callable

from tinygrad.device import HOST_DEVICE
from tinygrad.ops import Trait, having
from tinygrad.uop import GroupOp, Ops, UOp

Policy = Callable[[UOp], bool | str]
CONVERTS = having(Trait.CONVERTS)


def nothing_saveable(u: UOp) -> bool:
  """Everything is computed again."""
  return False


def everything_saveable(u: UOp) -> bool:
  """As without `checkpoint`: whatever the backward pass reads is there already."""
  return True


def dots_saveable(u: UOp) -> bool:
  """The results of matrix products, convolutions and other sums of products are kept."""
  if u.op is not Ops.REDUCE or u.arg[0] is not Ops.ADD:
    return False
  return next(x for x in u.src[0].down() if x.op not in CONVERTS and x.op not in GroupOp.Rearranging).op is Ops.MUL


def save_only(*ops: Ops) -> Policy:
  """The results of these ops are kept."""
  return lambda u: u.op in ops


def save_smaller_than(nbytes: int) -> Policy:
  """What is computed, and takes fewer bytes than this, is kept."""
  return lambda u: u.op not in GroupOp.Movement and math.prod(u.max_shape) * u.dtype.itemsize < nbytes


def offload_dots(device: str = HOST_DEVICE) -> Policy:
  """The results of sums of products are kept on another device, and brought back when they are needed."""
  return lambda u: dots_saveable(u) and device
