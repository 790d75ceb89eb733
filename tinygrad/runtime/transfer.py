"""Copies of buffers by boxes: between device sets, to the host, and from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tinygrad.device import Box, Buffer, Device, Placement, box_of, device_set, meet, peer_copies
from tinygrad.dtype import to_numpy_dtype
from tinygrad.helpers import numpy, prod

if TYPE_CHECKING:
  from tinygrad.schedule.items import Transfer

STAGED = 16 << 20  # bytes of a copy that pass through the host at once


def addressed(buffer: Buffer, i: int) -> Any:
  """Device i's part of a buffer as a numpy array over its memory, when the device has finished what was queued; None
  where the host cannot address that. What simulated devices hold reads as zeros."""
  backend, dtype, shape = Device[buffer.devices[i]], to_numpy_dtype(buffer.dtype), buffer.local_shape
  if backend.capabilities.simulated:
    return numpy.broadcast_to(numpy.zeros((), dtype), shape)
  handle = buffer.handle(i)
  if backend.capabilities.arrays:
    return backend.array(handle, dtype, shape)
  if (view := backend.view(handle)) is None:
    return None
  backend.synchronize()
  return numpy.frombuffer(view, dtype, count=prod(shape)).reshape(shape)


def host_array(buffer: Buffer, i: int) -> Any:
  """Device i's part of a buffer as a numpy array: over its memory where the host can address that, else a copy."""
  if (array := addressed(buffer, i)) is None:
    Device[buffer.devices[i]].synchronize()
    array = numpy.empty(buffer.local_shape, to_numpy_dtype(buffer.dtype))
    Device[buffer.devices[i]].copyout(as_bytes(array), buffer.handle(i))
  return array


def as_bytes(array: Any) -> memoryview:
  return memoryview(array.reshape(-1).view(numpy.uint8))


@contextlib.contextmanager
def at_rest(*buffers: Buffer) -> Iterator[None]:
  """Within, the host reads buffers, be they in this process or in another: what is queued is done, and nobody writes
  them. A collective, if any of them is in one process only."""
  world = Device.world
  shared = world is not None and any(world.owner(d) is not None for b in buffers for d in b.devices)
  with world.at_rest(buffers) if world is not None and shared else contextlib.nullcontext():
    yield


def own_parts(buffer: Buffer) -> list[Any]:
  """Copies of the valid parts of this process's devices."""
  with at_rest(buffer):
    own = [i for i, name in enumerate(buffer.devices) if Device.here(name)]
    boxes = [box_of(buffer.device, i, buffer.shape) for i in own]
    return [numpy.array(host_array(buffer, i)[tuple(slice(hi - lo) for lo, hi in b)]) for i, b in zip(own, boxes)]


def typed(memory: Buffer, transfer: Transfer, device: Placement) -> Buffer:
  """The memory of a temporary as a buffer of the transfer's value."""
  if memory.dtype is transfer.dtype and memory.shape == transfer.shape:
    return memory
  handles = [memory.handle(i) for i in range(len(device_set(device)))]
  return Buffer(device, transfer.shape, transfer.dtype).allocate(handles)


def copy(transfer: Transfer, source: Buffer, target: Buffer) -> None:
  """Each device of the target receives its own box, from the first device that holds what is in it."""
  if Device[target.devices[0]].capabilities.simulated:
    return
  source, target = typed(source, transfer, transfer.source), typed(target, transfer, transfer.result)
  ins = {box_of(transfer.source, d, transfer.shape): (source, d) for d in reversed(range(len(source.devices)))}
  outs = [(box_of(transfer.result, d, transfer.shape), target, d) for d in range(len(target.devices))]
  copy_blocks(transfer.shape, ins, outs)


Blocks = dict[Box, tuple[Buffer, int]]  # by box of a value: which buffer, on which of its devices


def copy_blocks(shape: Sequence[int], ins: Blocks, outs: Sequence[tuple[Box, Buffer, int]]) -> None:
  """Fills the blocks `outs` (what box of a value of `shape`, on which device of which buffer) from the blocks `ins`, be
  they in this process or in another."""
  if Device.world is None:
    fill_blocks(shape, ins, outs)
  else:
    Device.world.carry(shape, ins, outs, fill_blocks)


def fill_blocks(shape: Sequence[int], ins: Blocks, outs: Sequence[tuple[Box, Buffer, int]]) -> None:
  """`copy_blocks` of what this process can reach.

  Devices of one kind that can do so copy from one another, behind what is queued, if that takes few copies. Else what
  the host cannot address passes through it in pieces of at most STAGED bytes or one row, each of them whole along the
  last dims, so that it is contiguous in every block; elements beyond a block's box become undefined.
  """
  if not outs:
    return
  itemsize = outs[0][1].dtype.itemsize
  if copies := peer_copies(ins, outs):
    copies[0].target.copy_all(copies)
    return
  k = next((k for k in range(len(shape)) if prod(shape[k + 1 :]) * itemsize <= STAGED), 0)  # the dim of the pieces
  rows = max(STAGED // max(prod(shape[k + 1 :]) * itemsize, 1), 1)
  for buffer, i in ins.values():
    Device[buffer.devices[i]].synchronize()
  memory = {(id(b), i): addressed(b, i) for b, i in (*ins.values(), *((b, i) for _, b, i in outs))}

  def part(box: Box, buffer: Buffer, i: int, piece: Box, read: bool) -> tuple[Any, tuple[int, ...], int] | None:
    """What of a block lies in the piece: as an array, where that begins in the value, and the byte of the block."""
    both = meet(box, piece)
    if both is None or (array := memory[id(buffer), i]) is not None:
      return None if both is None else (array, tuple(lo for lo, _ in box), 0)
    sizes = [hi - lo for lo, hi in both[: k + 1]] + list(buffer.local_shape[k + 1 :])
    start = [lo - a for (lo, _), (a, _) in zip(both[: k + 1], box)]
    offset = sum(n * prod(buffer.local_shape[d + 1 :]) for d, n in enumerate(start)) * itemsize
    array = numpy.empty(sizes, to_numpy_dtype(buffer.dtype))
    if read:
      Device[buffer.devices[i]].copyout(as_bytes(array), buffer.handle(i), offset)
    return array, tuple(lo for lo, _ in both[: k + 1]) + tuple(lo for lo, _ in box[k + 1 :]), offset

  for first in numpy.ndindex(*shape[:k], *(-(-n // rows) for n in shape[k : k + 1])):
    piece = tuple((n, n + 1) for n in first[:k]) + tuple((n * rows, (n + 1) * rows) for n in first[k:])
    piece += tuple((0, n) for n in shape[k + 1 :])
    have = [(box, *found) for box, (b, i) in ins.items() if (found := part(box, b, i, piece, True)) is not None]
    for box, buffer, d in outs:
      if (found := part(box, buffer, d, piece, False)) is None:
        continue
      array, origin, offset = found
      for other, values, begin, _ in have:
        if (both := meet(box, piece, other)) is not None:
          there, here = (tuple(slice(lo - a, hi - a) for (lo, hi), a in zip(both, at)) for at in (origin, begin))
          array[there] = values[here]
      if memory[id(buffer), d] is None:
        Device[buffer.devices[d]].copyin(buffer.handle(d), as_bytes(array), offset)
