"""NCCL (nccl4py, extra `[nccl]`) between the GPUs of several processes: from memory to memory, without the host.

It moves bytes: what they are summed up to, and in which order, is our kernels' affair, so the bits are those of one
process. There is one communicator over all devices of a kind, in which a device has the number that is in its name; its
id is made by process 0, and told to the others by MPI. Messages are sent and received on the stream of their device:
behind the kernels that write what is sent, before those that read what has come, and nobody waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from tinygrad.device import Device, number_of
from tinygrad.distributed.errors import DistributedError
from tinygrad.distributed.wires import Message
from tinygrad.helpers import LazyModule, uninterrupted

core: Any = LazyModule("nccl.core")
INSTEAD = "NCCL=0 in the environment sends through the host, by MPI; NCCL_DEBUG=WARN makes NCCL say more"


def what_is_missing() -> str:
  """Why NCCL cannot be used in this process, and what to install; "" if nothing is known of."""
  try:
    found = core.get_version().libnccl
  except ImportError as e:
    return f"nccl4py does not load ({e}); pip install 'tinygrad[nccl]'"
  return "" if found is not None else "nccl4py finds no NCCL; pip install 'tinygrad[nccl]'"


class Bytes:
  """Memory of a device, as nccl4py takes it."""

  def __init__(self, address: int, nbytes: int) -> None:
    about = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3}
    self.__cuda_array_interface__ = about


class NCCLWire:
  """A `Wire` (wires.py) between all devices of a kind, of which this process has some."""

  on_devices = True

  def __init__(self, world: Any, kind: str) -> None:
    self.world, self.kind = world, kind
    self.communicators: dict[str, Any] = {}  # of this process's devices

  def connect(self) -> None:
    """All processes together. A thread for each device: NCCL waits there for the others'."""
    world, count = self.world, len(self.world.names(self.kind))
    told = world.comm.bcast(bytes(core.get_unique_id()) if world.index == 0 else None)

    def begin(device: str) -> Any:
      backend: Any = Device[device]
      backend.enter()
      return core.Communicator.init(count, number_of(device), core.UniqueId.from_bytes(told))

    own = world.names(self.kind, world.index)
    begun = [in_thread(begin, device) for device in own]
    world.wait(lambda: all(f.done() for f in begun), f"NCCL connects {count} devices")
    try:
      self.communicators = {device: f.result() for device, f in zip(own, begun)}
    except Exception as e:  # nccl4py's own, and those of what it is built on
      raise self.error("connecting the devices", e) from e

  def error(self, what: str, e: Exception) -> DistributedError:
    return DistributedError(f"NCCL: {what} failed: {e}\n  fix: {INSTEAD}")

  def pass_on(self, messages: Sequence[Message], what: str) -> None:
    """As one group, in which nothing waits for what comes later in it. (What is called here returns when it is queued,
    but for the first messages of two devices, which connect them.)"""
    if not self.communicators:
      self.connect()
    try:
      with uninterrupted(), core.group():
        for m in (m for m in messages if m.memory is not None):
          self.queue(m)
    except Exception as e:
      raise self.error(what, e) from e

  def queue(self, m: Message) -> None:
    assert m.memory is not None
    (buffer, i, first), sends = m.memory, m.ends[0] == self.world.index
    own, other = (m.source, m.target) if sends else (m.target, m.source)
    device: Any = Device[own]
    communicator = self.communicators[own]
    f = communicator.send if sends else communicator.recv
    f(Bytes(buffer.handle(i).address + first, m.nbytes), number_of(other), stream=int(device.stream))

  def close(self) -> None:
    """A communicator's end waits for that of the others."""
    for device in self.communicators:
      Device[device].synchronize()
    ended = [in_thread(c.destroy) for c in self.communicators.values()]
    self.world.wait(lambda: all(f.done() for f in ended), "NCCL's end")
    self.communicators.clear()


def in_thread(f: Callable[..., Any], *args: Any) -> Future[Any]:
  """A call in a thread of its own, for which the end of the process does not wait."""
  future: Future[Any] = Future()

  def work() -> None:
    try:
      future.set_result(f(*args))
    except Exception as e:
      future.set_exception(e)

  threading.Thread(target=work, daemon=True).start()
  return future
