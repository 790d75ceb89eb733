"""What hosts tell each other: that they are there, several times a second, and what has gone wrong in them.

One process of each host listens, its first one, and the first two that are well speak, so a host tells of its own dead.
A host that says nothing is lost. All of it is small messages of MPI, in the thread that watches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

SIZE = 512  # bytes of a message: the number of the host, then what is wrong, if anything is
SILENCE = 3.5  # seconds without a word of another host after which it is lost
SENDING = 0.5  # seconds in which last words are on their way


class Beats:
  """The hosts, from the view of a process of one of them."""

  def __init__(self, mpi: Any, comm: Any, index: int, hosts: Sequence[str]) -> None:
    self.mpi, self.comm = mpi, comm.Dup()
    names = [*dict.fromkeys(hosts)]
    self.own, firsts = names.index(hosts[index]), [hosts.index(name) for name in names]
    self.listens = firsts[self.own] == index
    self.others = {number: rank for number, rank in enumerate(firsts) if number != self.own}
    self.heard = dict.fromkeys(self.others, time.monotonic())
    self.sent: dict[int, tuple[Any, bytes]] = {}  # by host: the last message and what keeps it
    self.got = bytearray(SIZE)
    self.receiving: Any = None
    self.lock = threading.Lock()

  def say(self, fault: str) -> None:
    """To all others; one that has not taken the last message gets no further one."""
    data = bytes((self.own,)) + fault.encode()[: SIZE - 1]
    with self.lock:
      for number, rank in self.others.items():
        if number not in self.sent or self.sent[number][0].Test():
          self.sent[number] = self.comm.Isend([data, self.mpi.BYTE], rank), data

  def say_last(self, fault: str) -> None:
    """The same, and gives it time to leave."""
    last = time.monotonic() + SENDING
    while time.monotonic() < last and not all(request.Test() for request, _ in [*self.sent.values()]):
      time.sleep(0.01)  # a message may be underway that says all is well
    self.say(fault)
    while time.monotonic() < last and not all(request.Test() for request, _ in [*self.sent.values()]):
      time.sleep(0.01)

  def listen(self) -> str:
    """What has gone wrong in another host; "" if all is well."""
    with self.lock:
      while self.listens:
        status = self.mpi.Status()
        if self.receiving is None:
          self.receiving = self.comm.Irecv([self.got, self.mpi.BYTE], self.mpi.ANY_SOURCE)
        if not self.receiving.Test(status):
          break
        self.receiving, fault = None, bytes(self.got[1 : status.Get_count(self.mpi.BYTE)]).decode(errors="replace")
        self.heard[self.got[0]] = time.monotonic()
        if fault:
          return fault
    silent = [self.others[n] for n, when in self.heard.items() if self.listens and time.monotonic() - when > SILENCE]
    return f"the host of process {silent[0]} has said nothing for {SILENCE:g} seconds" if silent else ""

  def end(self) -> None:
    with self.lock:
      if self.receiving is not None:
        self.receiving.Cancel()
        self.receiving.Wait()
      self.listens = False
