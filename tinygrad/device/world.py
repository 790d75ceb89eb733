"""What the devices of several processes have to offer each other: the protocol; `distributed/` has it at work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class World(Protocol):
  """The processes that run one script together, seen from one of them. A device's name is global; its memory and its
  threads are in one process, its owner. All of this is collective: every process calls it, in one order.
  """

  index: int  # of this process
  count: int  # of processes
  per_process: int  # devices of a kind

  def backend(self, kind: type[Any]) -> type[Any]:
    """The class of the devices of a kind, of which some are in other processes."""
    ...

  def open(self, kind: type[Any], name: str) -> Any:
    """A device of a kind: one of this process, or what this one knows of another's. All processes together open the
    first of a kind. Raises: DeviceError where it does not open in one of them."""
    ...

  def place(self, device: str, there: int) -> int:
    """Which of the `there` devices of a machine one of this process is."""
    ...

  def names(self, kind: str, rank: int | None = None) -> tuple[str, ...]:
    """The devices of a kind, or those of one process. Raises: DeviceError for a kind that is not shared out."""
    ...

  def owner(self, device: str) -> int | None:
    """The process that holds a device; None for what each has for itself (NPY, DISK). Raises: DeviceError for a name
    that nobody has."""
    ...

  def here(self, device: str) -> bool:
    """Whether a device is in this process, or in each."""
    ...

  def lost(self, rank: int) -> bool:
    """Whether a process is known to be gone, or to have failed."""
    ...

  def exchange(self, what: str, memory: Sequence[Any] = (), changed: bool = True) -> list[int]:
    """Waits for all processes, and learns where the buffers lie in theirs, if that has `changed` for any of them.
    Returns the numbers of those buffers that lie elsewhere than was known. Raises: DistributedError where another
    process does something else than `what`, or is gone."""
    ...

  def learn(self, what: str, memory: Sequence[Any], changed: bool = True) -> list[int]:
    """`exchange`, unless all of the memory is in one process, whose own affair it is then: nobody waits."""
    ...

  def so_anywhere(self, so: bool) -> bool:
    """Whether it is so in any process."""
    ...

  def of_first(self, what: str, f: Callable[[], str]) -> str:
    """What f says in the first process, which alone calls it."""
    ...

  def at_rest(self, buffers: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Within, this process may read all parts of buffers, and nobody writes them."""
    ...

  def carry(self, shape: Sequence[int], ins: dict[Any, Any], outs: Sequence[Any], fill: Callable[..., None]) -> None:
    """Copies blocks between devices of several processes: `fill(shape, ins, outs)` does what is left to do here."""
    ...

  def bring(self, parts: Sequence[Any]) -> None:
    """Copies what kernels read of devices of other hosts (runtime/peer_reads.py: PeerPart) to memory of theirs."""
    ...

  def delivery(self) -> Any:
    """What carries such parts of one kernel beside the devices' work (distributed/courier.py: Delivery)."""
    ...
