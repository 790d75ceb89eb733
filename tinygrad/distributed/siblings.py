"""Before MPI begins, in native code that waits for ever: whether all processes of this host come to it.

MPICH's starter has one process on each host, whose children all others are, and so has Slurm's. Each that comes opens
a socket under a name that follows from that process's number; nothing is sent. Where one of them ends without having
come, the rest say so.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from tinygrad.distributed.errors import LostProcessError

STARTERS = ("hydra_pmi_proxy", "slurmstepd")
PAUSE = 0.01  # seconds between looks
MISSED = 1.5  # seconds for which there have to be too few processes: the starter may still be starting them
_here: list[socket.socket] = []  # as long as this process lives


def wait_for_siblings() -> None:
  """Returns when all processes of this host are here, or nothing is known of them. Raises: LostProcessError."""
  count, own = of_this_host()
  if count < 2 or (starter := _starter()) is None:
    return
  _here.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
  try:
    _here[0].bind(_name(starter, own))
  except OSError:  # initialized before, in vain
    return
  waiting, few_since = [n for n in range(count) if n != own], 0.0
  while waiting := [n for n in waiting if not _is_here(starter, n)]:
    time.sleep(PAUSE)
    if len(_children(starter)) >= count:
      few_since = 0.0
      continue
    few_since = few_since or time.monotonic()
    if time.monotonic() - few_since > MISSED and (lost := [n for n in waiting if not _is_here(starter, n)]):
      who = f"a process has ended before it called initialize(): of this host's {count}, one of {lost}"
      raise LostProcessError(f"{who}\n  fix: its own error says why; every process calls it")


def of_this_host() -> tuple[int, int]:
  """(how many processes the starter has started here, which of them this is), as mpiexec and srun leave it; (0, 0)
  where neither has. (SLURM_GTIDS: the numbers of a host's tasks.)"""
  if "MPI_LOCALNRANKS" in os.environ:
    return int(os.environ["MPI_LOCALNRANKS"]), int(os.environ["MPI_LOCALRANKID"])
  tasks = [n for n in os.environ.get("SLURM_GTIDS", "").split(",") if n]
  return len(tasks), int(os.environ.get("SLURM_LOCALID", "0"))


def _name(starter: int, number: int) -> str:
  return f"\0tinygrad/{starter}/{number}"  # of no file, and gone with the process


def _is_here(starter: int, number: int) -> bool:
  with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
    return s.connect_ex(_name(starter, number)) == 0


def _starter() -> int | None:
  """The process that has started those of this host; None where that cannot be seen."""
  pid = os.getpid()
  try:
    while pid > 1:
      name, _, rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
      if name.partition("(")[2] in STARTERS:
        return pid if _children(pid) else None
      pid = int(rest.split()[1])
  except OSError:
    pass
  return None


def _children(pid: int) -> list[str]:
  return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
