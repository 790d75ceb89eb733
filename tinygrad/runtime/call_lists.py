"""The calls of devices that work together: kernels, and points at which devices meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinygrad.device import Backend, Device
from tinygrad.device.reach import within_reach

Memory = set[int]  # by identity


class CallLists:
  """A list for each device of this process. Devices meet before they read what a peer has written since they last met
  (or before these lists), before they write what a peer may still read, and at the end."""

  def __init__(self) -> None:
    self.of: dict[str, list[Any]] = {}
    self.met: dict[tuple[str, ...], tuple[Memory, Memory]] = {}  # by device set: written, and read by peers, since

  def add(self, devices: Sequence[str], *calls_of: Callable[[Backend], Any]) -> None:
    """To the list of each device that is here."""
    for device in filter(Device.here, devices):
      self.of.setdefault(device, []).extend([call_of(Device[device]) for call_of in calls_of])

  def meet(self, devices: tuple[str, ...]) -> None:
    for group in within_reach(devices):
      backends = [Device[devices[i]] for i in group]
      if len(group) > 1:
        barrier = dict(zip(backends, backends[0].barrier(backends)))
        self.add([b.name for b in backends], barrier.__getitem__)
    self.met[devices] = set(), set()

  def before(self, devices: tuple[str, ...], written: Memory, from_peers: Memory) -> None:
    """Of a kernel."""
    since = self.met.get(devices)
    if from_peers if since is None else since[0] & from_peers or written & since[1]:
      self.meet(devices)

  def after(self, devices: tuple[str, ...], written: Memory, from_peers: Memory) -> None:
    """Of a kernel."""
    if devices in self.met:
      self.met[devices][0].update(written)
      self.met[devices][1].update(from_peers)

  def end(self) -> None:
    for devices, (_, read) in [*self.met.items()]:
      if read:
        self.meet(devices)
