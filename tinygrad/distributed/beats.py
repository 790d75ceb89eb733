"""What hosts tell each other: that they are there, several times a second, and what has gone wrong in them.

One process of each host listens, its first one, and the first two that are well speak, so a host tells of its own dead.
A host that says nothing is lost. All of it is small messages of MPI, in the thread that watches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

SIZE = 512  # bytes of a message: what is wrong, or a blank
SPEAKERS = 2  # of a host, at most
OVER = b"over"  # the last message
SILENCE = 3.5  # seconds without a word of another host after which it is lost
SENDING = 0.5  # seconds in which last words leave
HEARING = 1.0  # seconds in which they are heard


class Beats:
  """The hosts, from the view of a process of one of them."""

  def __init__(self, mpi: Any, comm: Any, index: int, hosts: Sequence[str]) -> None:
    self.mpi, self.comm = mpi, comm.Dup()
    ranks = {host: [r for r, other in enumerate(hosts) if other == host] for host in hosts}
    first = {host: members[0] for host, members in ranks.items() if host != hosts[index]}
    self.listeners = [*first.values()]
    self.sent: dict[int, tuple[Any, bytes]] = {}  # by whom it is for: the last message, and what keeps it
    listens, self.speaks = ranks[hosts[index]][0] == index, index in ranks[hosts[index]][:SPEAKERS]
    self.speakers = {r: host for host in first for r in ranks[host][:SPEAKERS] if listens}
    self.heard = dict.fromkeys(self.speakers.values(), time.monotonic())
    self.awaited: dict[int, tuple[Any, bytearray]] = {}  # by speaker
    self.first, self.lock = first, threading.Lock()

  def say(self, fault: str) -> None:
    """To all others; one that has not taken the last message gets no further one."""
    data = fault.encode()[:SIZE] or b" "
    with self.lock:
      for rank in self.listeners:
        if rank not in self.sent or self.sent[rank][0].Test():
          self.sent[rank] = self.comm.Isend([data, self.mpi.BYTE], rank), data

  def say_last(self, fault: str) -> None:
    """What is wrong here, if other hosts are to be told, and time to hear it, while connections are still there; a
    message may be underway that says all is well."""
    last = time.monotonic() + SENDING
    while fault and time.monotonic() < last:
      if all(request.Test() for request, _ in [*self.sent.values()]):
        self.say(fault)
        break
      time.sleep(0.01)
    time.sleep(HEARING)

  def listen(self) -> str:
    """What has gone wrong in another host; "" if all is well."""
    with self.lock:
      for rank, host in self.speakers.items():
        while (fault := self.received(rank)) is not None:
          self.heard[host] = time.monotonic()
          if fault and fault != OVER.decode():
            return fault
    silent = [self.first[host] for host, when in self.heard.items() if time.monotonic() - when > SILENCE]
    return f"the host of process {silent[0]} has said nothing for {SILENCE:g} seconds" if silent else ""

  def received(self, rank: int) -> str | None:
    """The next message of a speaker, if it is there."""
    status, known = self.mpi.Status(), self.awaited.pop(rank, None)
    request, got = known or (self.comm.Irecv([data := bytearray(SIZE), self.mpi.BYTE], rank), data)
    if request.Test(status):
      return got[: status.Get_count(self.mpi.BYTE)].decode(errors="replace").strip()
    self.awaited[rank] = request, got
    return None

  def end(self) -> None:
    """All is over everywhere: last messages, so that none is left that nobody has taken."""
    last = time.monotonic() + SENDING
    with self.lock:
      requests = [self.comm.Isend([OVER, self.mpi.BYTE], rank) for rank in self.listeners if self.speaks]
      waiting = [*self.speakers]
      while time.monotonic() < last and (waiting or not all(request.Test() for request in requests)):
        waiting = [rank for rank in waiting if not self.is_over(rank)]
        time.sleep(0.001)
      for request, _ in self.awaited.values():
        request.Cancel()
        request.Wait()

  def is_over(self, rank: int) -> bool:
    while (said := self.received(rank)) is not None:
      if said == OVER.decode():
        return True
    return False
