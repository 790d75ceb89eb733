"""Buffers: the memory of one value, on every device of its placement."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from tinygrad.device.registry import Device
from tinygrad.device.sharding import Placement, device_set, show_placement
from tinygrad.dtype import DType
from tinygrad.helpers import MEMORY, VIZ, GlobalCounters, prod, user_frame, user_line


@dataclass(eq=False, slots=True, weakref_slot=True)
class Buffer:
  """The memory of one value in one placement; each device's part is allocated on first use.

  `shape` is the logical shape (upper bounds of symbolic dims). `handles[i]` is the memory of device i of the placement.
  `passing`: what is in it means nothing once the run that wrote it is over. `lent`: its bytes are an array's, or
  those of its parts, so that other memory may have them, too.
  """

  device: Placement
  shape: tuple[int, ...]
  dtype: DType
  handles: list[Any] = field(default_factory=list)
  _owner: Any = None
  passing: bool = False
  lent: bool = False

  @property
  def devices(self) -> tuple[str, ...]:
    return device_set(self.device)

  @property
  def local_shape(self) -> tuple[int, ...]:
    return self.shape if isinstance(self.device, str) else self.device.local_shape(self.shape)

  @property
  def nbytes_per_device(self) -> int:
    return int(prod(self.local_shape)) * self.dtype.itemsize

  def allocate(self, handles: Sequence[Any] | None = None, owner: Any = None) -> Buffer:
    """Gives the buffer memory: `handles`, which `owner` keeps (None: somebody who outlives the buffer), or fresh memory
    on every device. No-op if it has some.
    """
    if self.handles:
      return self
    if handles is not None:
      self.handles, self._owner = list(handles), owner
      return self
    nbytes = self.nbytes_per_device
    first = Device[self.devices[0]]
    backends = [first] if first.capabilities.simulated else [Device[d] for d in self.devices]
    got: list[Any] = []
    try:
      for b in backends:
        got.append(b.alloc(nbytes))
    except MemoryError as e:
      for b, handle in zip(backends, got):  # those that had room
        b.free(handle, nbytes)
      rule, _, fix = str(e).partition("\n  fix: ")
      here = f"\n    {self!r}" + ("" if user_frame() is None else f", realized at {user_line()}")
      raise MemoryError(f"{rule}{here}" + (f"\n  fix: {fix}" if fix else "")) from e
    self.handles = got
    if self.passing:
      pass_away([self])
    total = nbytes * len(self.devices)
    GlobalCounters.mem_used += total
    for b in backends:
      GlobalCounters.allocated(b.name, nbytes)
    number = MEMORY.taken(self, self.devices, nbytes) if VIZ.value else 0
    weakref.finalize(self, _release, backends, list(self.handles), nbytes, total, number).atexit = False
    return self

  def handle(self, i: int = 0) -> Any:
    """The memory on device i of the placement, allocated if need be. On a simulated backend all devices share one."""
    if not self.handles:
      self.allocate()
    return self.handles[i if i < len(self.handles) else 0]

  def overlaps(self, other: Buffer) -> bool:
    """Whether the two have bytes in common, as only what is `lent` has, with what is, too."""
    mine, others = (
      [memory for d, h in zip(m.devices, m.handles) if (memory := Device[d].view(h)) is not None] for m in (self, other)
    )
    return any(numpy.may_share_memory(a, b) for a in mine for b in others)

  def __repr__(self) -> str:
    return f"Buffer({show_placement(self.device)}, {self.dtype.name}{list(self.shape)})"


def _release(backends: list[Any], handles: list[Any], nbytes: int, total: int, number: int) -> None:
  GlobalCounters.mem_used -= total
  if number:
    MEMORY.given_back(number)
  for backend, handle in zip(backends, handles, strict=True):
    GlobalCounters.allocated(backend.name, -nbytes)
    backend.free(handle, nbytes)


def pass_away(memory: Iterable[Buffer]) -> None:
  """From now on what is in it means nothing between runs."""
  for m in memory:
    m.passing = True
    for device, handle in zip(m.devices, m.handles):
      Device[device].passing(handle)
