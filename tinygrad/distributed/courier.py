"""What kernels read of other hosts, carried while devices compute: non-blocking communication.

A thread of each process sends and receives, one delivery after the other, in the order in which all processes hand them
over. Devices and that thread tell each other by counters in memory: a device counts up where what it gives has been
written, and goes on behind the delivery when that has ended. So the host waits for nothing, and kernels that need none
of it run meanwhile.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from tinygrad.distributed.errors import DistributedError
from tinygrad.distributed.wires import Mail, MPIWire, staged_messages
from tinygrad.runtime.cpu import LINE, Call, arrive, counting
from tinygrad.runtime.peer_reads import PeerPart


class Delivery:
  """The parts of one kernel of a stretch, which is launched again and again."""

  def __init__(self, courier: Courier) -> None:
    self.courier, self.givers, self.launches = courier, 0, 0
    self.counters = (ctypes.c_uint64 * (2 * LINE))()  # how often devices were ready, and how often all was there
    self.there = (ctypes.c_uint64 * 4)(ctypes.addressof(self.counters) + 8 * LINE, 0, 0, 0)

  def ready(self, device: Any) -> Call:
    """A call behind which the delivery may read this device's memory, and write what it was given before."""
    self.givers += 1
    return counting(device, self.counters, 0, mine=1, each=0)

  def arrived(self, device: Any) -> Call:
    """A call that returns when all has been sent and received."""
    return counting(device, self.counters, LINE, mine=0, each=1)

  def begin(self, parts: Sequence[PeerPart], what: str) -> None:
    """What this process sends and receives for one launch, which is handed over next."""
    self.launches += 1
    self.courier.jobs.put((self, self.launches, parts, what))

  def carry(self, launch: int, parts: Sequence[PeerPart], what: str) -> None:
    """In the courier's thread."""
    world, wanted = self.courier.world, launch * self.givers
    world.wait(lambda: self.counters[0] >= wanted, what)
    mail = Mail()
    rooms = staged_messages(world.ends(parts), world.index, self.courier.wire, mail)
    mail.pass_on(what)
    for p, array in rooms:
      p.write(array)
    self.there[1] = launch
    arrive(ctypes.addressof(self.there))


class Courier:
  """The thread of a process, and its own line to the others' threads."""

  def __init__(self, world: Any) -> None:
    self.world, self.wire = world, MPIWire(world, world.comm.Dup())
    self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self.thread = threading.Thread(target=self.run, name="courier", daemon=True)
    self.thread.start()

  def run(self) -> None:
    try:
      while (job := self.jobs.get()) is not None:
        delivery, *rest = job
        delivery.carry(*rest)
    except DistributedError:
      return  # who watches the processes has seen it too, and ends this one where it waits for what does not come
    except Exception as e:
      traceback.print_exc()
      self.world.watch.end(f"what comes of other hosts: {type(e).__name__}: {e}")

  def end(self) -> None:
    """What has been handed over is carried."""
    self.jobs.put(None)
    self.thread.join()
