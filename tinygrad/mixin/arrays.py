"""What is computed, as arrays of numpy: what a program reads, and memory that it shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.device import HOST_DEVICE, Box, Buffer, Device, Sharding, box_of
from tinygrad.engine.errors import JitError, UnboundError
from tinygrad.engine.realize import realize
from tinygrad.engine.run import recorders
from tinygrad.helpers import numpy
from tinygrad.runtime.transfer import copy_blocks, host_array
from tinygrad.uop import Ops, UOp, buffer_of, simplify, substitute
from tinygrad.uop.node import viewed


def check_outside(u: UOp, what: str, fix: str) -> None:
  """Raises JitError inside a function that is being captured."""
  if recorders:
    problem = f"the {what} of {u.dtype.name}{list(u.shape)} is read while a function is being captured"
    raise JitError(f"{problem}: replay would not read it again\n  fix: return the Tensor from the function and {fix}")


def check_countable(u: UOp) -> None:
  """Raises JitError where a value that is to say how many elements another has is not there: inside a function that is
  being captured or traced."""
  if recorders or any(x.op is Ops.HOLE for x in u.toposort()):
    asked = f"how many elements of {u.dtype.name}{list(u.shape)} are not 0 is asked"
    rule = "a shape cannot depend on values where a function is captured or traced"
    fix = "x.masked_select(mask, size=n), mask.nonzero(size=n), or mask.where(x, 0)"
    raise JitError(f"{asked}, and {rule}\n  fix: {fix}")


READ_OUTSIDE = "read it outside (.item(), .numpy(), .tolist()); to choose by it inside: (x > 0).where(a, b)"


def to_numpy(u: UOp) -> Any:
  """The value as a numpy array of its own. Raises JitError inside a function that is being captured."""
  check_outside(u, "value", READ_OUTSIDE)
  here = u.device == HOST_DEVICE
  (done,) = realize(UOp.new(Ops.CONTIGUOUS, u.dtype, (u,)) if here else u.copy_to_device(HOST_DEVICE))
  host = host_array(buffer_of(viewed(done)), 0)
  static = all(isinstance(n, int) for n in u.shape)
  return host if static else host[tuple(slice(value_of(n)) for n in u.shape)]


class Held:
  """What a numpy array over a buffer's memory refers to: the buffer lives as long as the array."""

  def __init__(self, owner: Buffer) -> None:
    array = host_array(owner, 0)
    self.__array_interface__, self.owner = array.__array_interface__, (array, owner)


def to_numpy_once(u: UOp) -> Any:
  """The value of a BUFFER that nobody else has, as a numpy array. On one device whose memory the host can address it is
  not copied: the buffer is the array's alone."""
  if recorders or Device.world is not None or not isinstance(u.device, str) or Device.capabilities(u.device).simulated:
    return to_numpy(u)
  return numpy.asarray(Held(buffer_of(u)))


def value_of(x: Any) -> int:
  """A dim whose variables are bound."""
  if isinstance(x, int):
    return x
  value = simplify(substitute(x, {u: u.src[1] for u in x.toposort() if u.op is Ops.BIND}))
  if value.op is not Ops.CONST:
    raise UnboundError([v.arg[0] for v in value.variables()])
  return int(value.arg)


def readable(u: UOp) -> Buffer:
  """The memory of a BUFFER. Raises JitError inside a function that is being captured."""
  check_outside(u, "memory", "save it outside")
  return buffer_of(u)


def host_blocks(u: UOp) -> dict[Box, Any]:
  """The distinct blocks of a BUFFER as numpy arrays over its memory, valid part only, by where they lie in the whole.
  What simulated devices hold reads as zeros. Raises JitError inside a function that is being captured."""
  buffer = readable(u)
  out: dict[Box, Any] = {}
  for i in range(len(buffer.devices)):
    box = box_of(buffer.device, i, buffer.shape)
    if box not in out:
      out[box] = host_array(buffer, i)[tuple(slice(hi - lo) for lo, hi in box)]
  return out


def join(parts: Sequence[UOp], placement: Sharding, shape: tuple[int, ...]) -> UOp:
  """A BUFFER of `shape` whose block on device i is `parts[i]`, a BUFFER: its very memory if that lies there and the
  block is full, else a copy."""
  whole = Buffer(placement, shape, parts[0].dtype, lent=True)
  blocks: list[Buffer] = []
  for name, part in zip(placement.devices, parts, strict=True):
    block = buffer_of(part)
    if block.device != name or block.shape != whole.local_shape:
      block = Buffer(name, whole.local_shape, part.dtype).allocate()
      if not Device[name].capabilities.simulated:
        box = tuple((0, n) for n in part.shape)
        copy_blocks(part.shape, {box: (readable(part), 0)}, [(box, block, 0)])
    blocks.append(block)
  return UOp.buffer(shape, whole.dtype, placement, whole.allocate([b.handle() for b in blocks], blocks))
