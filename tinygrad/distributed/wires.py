"""What carries bytes between processes: messages, each from memory of one device to memory of another, and MPI.

Whoever asks for something to be carried is every process, with the same messages in the same order; each has memory for
its own ends alone. A wire moves bytes and adds nothing up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tinygrad.device import HOST_DEVICE, Box, Buffer
from tinygrad.device.block import runs
from tinygrad.dtype import DType, dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.runtime.peer_reads import PeerPart
from tinygrad.runtime.transfer import addressed, as_bytes, fill_blocks

TAGS = 1 << 15  # of messages: what every MPI has
MOST_RUNS = 256  # of neighbours in memory, of which each is a message of its own


@dataclass(frozen=True, slots=True, eq=False)
class Message:
  """Bytes from a device to a device, and the processes of both; where they are or go, if that is here: (memory, part of
  it, first byte)."""

  source: str
  target: str
  ends: tuple[int, int]
  memory: tuple[Buffer, int, int] | None
  nbytes: int


class Wire(Protocol):
  """Carries messages between devices of several processes."""

  on_devices: bool  # from memory of devices to memory of devices, behind what is queued there; else the host's

  def pass_on(self, messages: Sequence[Message], what: str) -> None:
    """Sends and receives: all are on their way before the first is waited for."""
    ...

  def close(self) -> None:
    """All processes have come to their end."""
    ...


class Mail:
  """What is to be carried, by wire."""

  def __init__(self) -> None:
    self.by_wire: dict[Wire, list[Message]] = {}

  def add(self, wire: Wire, message: Message) -> None:
    self.by_wire.setdefault(wire, []).append(message)

  def pass_on(self, what: str) -> None:
    for wire, messages in self.by_wire.items():
      wire.pass_on(messages, what)


class MPIWire:
  """Memory of the host, by MPI; it is all there when `pass_on` returns."""

  on_devices = False

  def __init__(self, world: Any, comm: Any) -> None:
    self.world, self.comm = world, comm

  def pass_on(self, messages: Sequence[Message], what: str) -> None:
    world, comm, requests = self.world, self.comm, []
    for number, m in enumerate(messages):
      if m.memory is None:
        continue
      buffer, i, first = m.memory
      data = [as_bytes(addressed(buffer, i))[first : first + m.nbytes], world.mpi.BYTE]
      if m.ends[0] == world.index:
        requests.append(comm.Isend(data, m.ends[1], number % TAGS))
      else:
        requests.append(comm.Irecv(data, m.ends[0], number % TAGS))
    for request in requests:
      world.wait(request.Test, what)

  def close(self) -> None:
    """It ends with the process."""


def in_host(array: Any, dtype: DType) -> Buffer:
  return Buffer(HOST_DEVICE, array.shape, dtype).allocate([array])


def piece_of(b: Buffer, i: int, shape: Sequence[int], box: Box, both: Box, on_device: bool) -> tuple[Buffer, int, int]:
  """What of a block (`box` of a value of `shape`, on device i of a buffer) is in the box `both`, in one piece: (memory,
  part of it, first byte). Where it lies, if it is one there, else packed; on the device, or in the host."""
  sizes = tuple(hi - lo for lo, hi in both)
  if on_device:
    (first, *_), *more = runs(box, b.local_shape, both, sizes)
    if not more:
      return b, i, first * b.dtype.itemsize
  elif (array := addressed(b, i)) is not None:
    own = array[tuple(slice(lo - at, hi - at) for (lo, hi), (at, _) in zip(both, box))]
    return in_host(numpy.ascontiguousarray(own), b.dtype), 0, 0
  packed = room_for(sizes, b.dtype, b.devices[i] if on_device else None)
  fill_blocks(shape, {box: (b, i)}, [(both, packed, 0)])
  return packed, 0, 0


def room_for(sizes: Sequence[int], dtype: DType, device: str | None) -> Buffer:
  """Memory of a device, or of the host."""
  if device is None:
    return in_host(numpy.empty(tuple(sizes), to_numpy_dtype(dtype)), dtype)
  return Buffer(device, tuple(sizes), dtype).allocate()


def staged_messages(
  parts: Sequence[tuple[PeerPart, tuple[int, int]]], index: int, wire: Wire, mail: Mail
) -> list[tuple[PeerPart, Any]]:
  """Adds messages through the host's memory, for parts between processes; what is to be written when they are there."""
  rooms = []
  for p, (source, target) in parts:
    array = p.read() if source == index else p.room() if target == index else None
    if target == index:
      rooms.append((p, array))
    memory = None if array is None else (in_host(array, dtypes.uint8), 0, 0)
    names = p.source.devices[p.number], p.target.devices[0]
    mail.add(wire, Message(*names, (source, target), memory, p.nbytes))
  return rooms


def runs_of(elements: Any) -> list[tuple[int, int]] | None:
  """Neighbours among the numbers of elements, which are in order, or a slice: (first, behind the last). None if these
  are too many to be messages each."""
  if isinstance(elements, slice):
    return [(elements.start, elements.stop)]
  cuts = [0, *(numpy.flatnonzero(numpy.diff(elements) > 1) + 1).tolist(), len(elements)]
  if len(cuts) > MOST_RUNS:  # one more than there are runs
    return None
  return [(int(elements[a]), int(elements[b - 1]) + 1) for a, b in zip(cuts, cuts[1:])]


def messages_of(p: PeerPart, runs: Sequence[tuple[int, int]], ends: tuple[int, int], index: int) -> list[Message]:
  """What a kernel reads of another device, each run to the same place."""
  names = p.source.devices[p.number], p.target.devices[0]
  memory = {ends[0]: (p.source, p.number), ends[1]: (p.target, 0)}.get(index)
  sizes = [(a * p.itemsize, (b - a) * p.itemsize) for a, b in runs]
  return [Message(*names, ends, None if memory is None else (*memory, at), nbytes) for at, nbytes in sizes]
