"""What backends with a driver's queue for each device share: freed memory kept for reuse, and lists of calls in which
devices wait for one another."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinygrad.helpers import LazyModule, numpy

cstyle: Any = LazyModule("tinygrad.renderer.cstyle")

_POOL_LIMIT = 1 << 30  # bytes of freed memory kept for reuse, per device


class Barrier:
  """A point at which devices wait for one another; it stands in the list of each."""

  __slots__ = ("devices",)

  def __init__(self, devices: Sequence[QueueDevice]) -> None:
    self.devices = devices


@dataclass(slots=True, eq=False)
class Program:
  """One kernel for a grid: built on each device that binds it."""

  name: str
  source: str
  groups: tuple[int, ...]
  threads: tuple[int, ...]
  built: dict[int, Any] = field(default_factory=dict)  # by device


class QueueDevice:
  """One device with an in-order queue. A backend adds `new_memory`, `build` (a program for this device), `new_call`
  (arguments are filled in by `bind`), `enqueue` (a call), `meet` (a barrier, on all of its devices' queues), `flush`
  and `wait`."""

  simulated = False

  def __init__(self, name: str) -> None:
    self.name = name
    self.pool: dict[int, list[Any]] = {}
    self.pooled = 0
    self.leaving: list[Any] = []  # freed beyond what is kept: let go of when the queue has been waited for

  def new_memory(self, nbytes: int) -> Any:
    raise NotImplementedError

  def build(self, program: Program) -> Any:
    raise NotImplementedError

  def new_call(self, program: Any, buffers: int, variables: int) -> Any:
    raise NotImplementedError

  def enqueue(self, call: Any) -> None:
    raise NotImplementedError

  def meet(self, devices: Sequence[Any]) -> None:
    raise NotImplementedError

  def flush(self) -> None:
    """Where the driver would else keep work back."""

  def wait(self) -> None:
    raise NotImplementedError

  def table(self, call: Any, addresses: Sequence[int]) -> Any:
    """Memory with the addresses of every device's buffer, which lives as long as `call`."""
    table = self.alloc(8 * len(addresses))
    weakref.finalize(call, self.free, table, 8 * len(addresses))
    self.copyin(table, memoryview(numpy.array(addresses, numpy.uint64)))
    return table

  def copyin(self, handle: Any, data: memoryview) -> None:
    raise NotImplementedError

  def alloc(self, nbytes: int) -> Any:
    try:
      handle = self.pool[nbytes].pop()
    except (KeyError, IndexError):
      try:
        return self.new_memory(nbytes)
      except MemoryError:
        self.synchronize()
        self.pool.clear()
        self.pooled = 0
        return self.new_memory(nbytes)
    self.pooled -= nbytes
    return handle

  def free(self, handle: Any, nbytes: int) -> None:
    """Kept for the next allocation of this size, whose use comes after what is queued now. Never waits: finalizers call
    it."""
    if self.pooled + nbytes <= _POOL_LIMIT:
      self.pooled += nbytes
      self.pool.setdefault(nbytes, []).append(handle)
    else:
      self.let_go(handle)

  def let_go(self, handle: Any) -> None:
    """Drops memory that what is queued may still use."""
    self.leaving.append(handle)

  def view(self, handle: Any) -> memoryview | None:
    """The host cannot address it."""
    return None

  def compile(self, source: str, name: str) -> Any:
    program = Program(name, source, *cstyle.launch_of(source))
    self.build(program)
    return program

  def bind(self, program: Any, args: Sequence[Any], variables: Sequence[int] = ()) -> Any:
    """A call of `program` on this device. `args[slot]`: the memory, or the list of all devices' memory for a `peers`
    parameter; `variables`: the values of the kernel's variables, in the order of their names."""
    call = self.new_call(program, len(args), len(variables))
    for slot, memory in enumerate(args):
      call.set_buffer(slot, memory)
    for i, value in enumerate(variables):
      call.set_variable(i, value)
    return call

  def synchronize(self) -> None:
    leaving = len(self.leaving)
    self.wait()
    del self.leaving[:leaving]

  @staticmethod
  def barrier(devices: Sequence[Any]) -> list[Any]:
    return [Barrier(devices)] * len(devices)

  @staticmethod
  def batch(calls: Sequence[Any]) -> Any:
    return calls

  @staticmethod
  def submit_all(devices: Sequence[Any], lists: Sequence[Any]) -> None:
    """Queues one list on each device; where the lists of a barrier's devices have all come to it, it is queued on
    them."""
    with _submitting:
      rest = {d: iter(calls) for d, calls in zip(devices, lists)}
      waiting: dict[Any, Barrier] = {}
      ready = list(devices)
      while ready:
        d = ready.pop()
        for call in rest[d]:
          if not isinstance(call, Barrier):
            d.enqueue(call)
            continue
          waiting[d] = call
          if all(waiting.get(other) is call for other in call.devices):
            d.meet(call.devices)
            for other in call.devices:
              del waiting[other]
            ready += call.devices
          break
      for d in devices:
        d.flush()


_submitting = threading.Lock()
