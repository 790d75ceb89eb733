"""`python -m tinygrad.launch -n 4 [--hosts a,b] [--restarts N] train.py …`: a script in several processes.

A front of mpiexec: each line of output begins with the number of its process, one traceback is shown instead of one
for each process, the exit code is that of the first process that failed, and nobody is left behind. What mpiexec starts
is this module again, once for each process (`--process`): it runs the script beside itself, so that a script that is
killed takes nothing else with it and the others may say what they lack.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinygrad.helpers import leave_output

PR_SET_PDEATHSIG = 1  # of Linux's prctl
FAREWELL = 8.0  # seconds in which the others tell what they lack when one has ended badly
NUMBER = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")  # where MPI's starters say which process it is
MARK = "\x1e"  # begins what processes tell the launcher
TRACEBACK = "Traceback (most recent call last):"
FOLLOWS = "LostProcessError"  # the error of a process that another one has led to


def launch_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
  parser = argparse.ArgumentParser("python -m tinygrad.launch", description="Runs a script in several processes.")
  parser.add_argument("-n", type=int, help="how many processes (default: one for each host)")
  parser.add_argument("--hosts", default="", help="names of machines, with commas; they see the same files")
  parser.add_argument("--restarts", type=int, default=0, help="how often all start again when one has failed")
  parser.add_argument("--devices", type=int, default=1, help="devices of each process, where the script does not say")
  parser.add_argument("--mpiexec", default="", help="the program that starts processes (default: MPICH's)")
  parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
  parser.add_argument("-m", action="store_true", dest="module", help="the script is a module")
  parser.add_argument("script", help="what to run")
  parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
  a = parser.parse_args(argv)
  a.hosts = [h for h in a.hosts.split(",") if h]
  a.n = max(len(a.hosts), 1) if a.n is None else a.n
  if a.n < 1 or a.restarts < 0:
    parser.error(f"-n {a.n} --restarts {a.restarts}: at least one process, and no fewer than 0 restarts")
  return a


def find_mpiexec(named: str) -> str:
  """Raises: SystemExit where there is none."""
  here = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ.get("PATH", ""))
  found = shutil.which(named or "mpiexec", path=os.pathsep.join(here))
  if found is None:
    raise SystemExit(f"tinygrad.launch: there is no {named or 'mpiexec'} here\n  fix: pip install 'tinygrad[mpi]'")
  return found


# ---------------------------------------------------------------- beside one process


def run_process(command: Sequence[str]) -> int:
  """Runs the script of this process; its output goes to the launcher line by line, each with the process's number."""
  rank = next((os.environ[name] for name in NUMBER if name in os.environ), "0")
  child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=False, process_group=0)
  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: end_group(child))
  signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by which MPICH tells of processes that are gone
  forward(child, rank)
  code = child.wait()
  end_group(child)  # what the script has started itself
  tell(rank, "end", str(128 - code if code < 0 else code))
  return 0  # else mpiexec ends the others before they have spoken


def forward(child: subprocess.Popen[bytes], rank: str) -> None:
  """The lines of both streams, whole ones."""
  rest: dict[Any, bytes] = {child.stdout: b"", child.stderr: b""}
  with selectors.DefaultSelector() as waiting:
    for stream, kind in ((child.stdout, "out"), (child.stderr, "err")):
      assert stream is not None
      waiting.register(stream, selectors.EVENT_READ, kind)
    while waiting.get_map():
      for key, _ in waiting.select():
        data = os.read(key.fd, 1 << 16)
        *lines, rest[key.fileobj] = (rest[key.fileobj] + data).split(b"\n")
        if not data:
          waiting.unregister(key.fileobj)
          lines += [rest[key.fileobj]] if rest[key.fileobj] else []
        for line in lines:
          tell(rank, key.data, line.decode(errors="replace"))


def tell(rank: str, kind: str, text: str) -> None:
  with contextlib.suppress(BrokenPipeError):  # the launcher is gone; the end of the script comes by signal
    os.write(1, f"{MARK}{rank} {kind} {text}\n".encode())


def end_group(child: subprocess.Popen[bytes]) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(child.pid, signal.SIGKILL)


# ---------------------------------------------------------------- the launcher


class Ended(BaseException):
  """The launcher is told to end, by the signal of this number."""


def ended(number: int, _: Any) -> None:
  raise Ended(number)


def end_with_parent() -> None:
  """In mpiexec, before it begins: where the launcher is killed, Linux tells it, and it ends the processes."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def how_ended(code: int) -> str:
  return f"signal {code - 128} ({signal.Signals(code - 128).name})" if 128 < code < 192 else f"exit code {code}"


class Start:
  """One start of all processes."""

  def __init__(self, a: argparse.Namespace, attempt: int) -> None:
    self.ends: dict[str, int] = {}  # the exit code of each process that has ended
    self.first = ("", 0)  # who failed first, and how
    self.traces: dict[str, list[str]] = {}  # of the processes that are telling one
    self.told: dict[str, list[str]] = {}
    self.said: list[str] = []  # by mpiexec itself
    self.hosts: list[str] = a.hosts
    self.last = 0.0  # until when the others may speak
    script = [*["-m"][: a.module], a.script, *a.args]
    each = -(-a.n // max(len(a.hosts), 1))  # neighbours by number are on one host
    options = ["-disable-auto-cleanup", *(["-hosts", ",".join(a.hosts), "-ppn", str(each)] if a.hosts else [])]
    again = [sys.executable, "-P", __file__, "--process", *script]  # as a file: it imports nothing of the package
    env = {**os.environ, "TINYGRAD_RESTART": str(attempt), "PYTHONUNBUFFERED": "1"}
    env.setdefault("TINYGRAD_DEVICES", str(a.devices))
    self.width = len(str(a.n - 1))
    command = [find_mpiexec(a.mpiexec), *options, "-n", str(a.n), *again]
    self.starter = subprocess.Popen(
      command,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      env=env,
      process_group=0,
      preexec_fn=end_with_parent,
    )

  def wait(self) -> int:
    """The exit code: that of the first process that failed, of those that failed by themselves if there are any."""
    assert self.starter.stdout is not None
    os.set_blocking(self.starter.stdout.fileno(), False)
    rest = b""
    with selectors.DefaultSelector() as waiting:
      waiting.register(self.starter.stdout, selectors.EVENT_READ)
      while True:
        if waiting.select(0.2):
          data = os.read(self.starter.stdout.fileno(), 1 << 16)
          if not data:
            break
          *lines, rest = (rest + data).split(b"\n")
          for line in lines:
            self.hear(line.decode(errors="replace"))
        if self.last and time.monotonic() > self.last:
          break
    self.stop()
    self.show()
    return self.first[1] or (self.starter.returncode or 0 if not self.ends else 0)

  def hear(self, line: str) -> None:
    if not line.startswith(MARK):
      self.said += [line] if line.strip() else []
      return
    rank, kind, text = line[1:].split(" ", 2)
    if kind == "end":
      self.ends[rank] = int(text)
      if self.ends[rank] and not self.last:
        self.last = time.monotonic() + FAREWELL
      if self.ends[rank] and (not self.first[1] or self.follows(self.first[0])) and not self.follows(rank):
        self.first = rank, self.ends[rank]
      elif self.ends[rank] and not self.first[1]:
        self.first = rank, self.ends[rank]
    elif kind == "err" and (rank in self.traces or text == TRACEBACK):
      self.trace(rank, text)
    else:
      print(f"{rank:>{self.width}}| {text}", file=sys.stdout if kind == "out" else sys.stderr, flush=True)

  def follows(self, rank: str) -> bool:
    """Whether a process has failed because another has."""
    return any(FOLLOWS in line.partition(":")[0] for line in self.told.get(rank, ()))

  def trace(self, rank: str, text: str) -> None:
    """Keeps a traceback, to show one of them: its last lines, those that are not indented and what follows, are what
    went wrong."""
    lines = self.traces.setdefault(rank, [])
    lines.append(text)
    if text and not text.startswith((" ", TRACEBACK[:9])):
      self.told[rank] = [text]
    elif rank in self.told:
      self.told[rank].append(text)

  def show(self) -> None:
    """The traceback of the process that failed first, and what the others said."""
    rank, _ = self.first
    for line in () if rank else self.said:  # else the processes have said it better
      print(line, file=sys.stderr)
    if self.hosts and not self.ends and self.starter.returncode:
      every = ", ".join(self.hosts)
      fix = f"ssh {self.hosts[0]} {sys.executable} -V has to work here, without a password, and so for each"
      print(f"tinygrad.launch: mpiexec started no process on {every}\n  fix: {fix}", file=sys.stderr)
    for line in self.traces.get(rank, ()):
      print(f"{rank:>{self.width}}| {line}", file=sys.stderr)
    for silent in sorted(self.ends, key=int):
      if self.ends[silent] and silent not in self.traces:
        print(f"{silent:>{self.width}}| ended by {how_ended(self.ends[silent])}", file=sys.stderr)
    for other in sorted(self.told, key=int):
      if other != rank and self.told[other] != self.told.get(rank):
        print(f"{other:>{self.width}}| {self.told[other][0]}", file=sys.stderr)
    sys.stderr.flush()

  def stop(self) -> None:
    """Nobody is left."""
    if self.starter.poll() is None:
      with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(self.starter.pid, signal.SIGTERM)
        self.starter.wait(2)
      end_group(self.starter)
    self.starter.wait()


def launch(argv: Sequence[str] | None = None) -> int:
  a = launch_arguments(argv)
  if a.process:
    return run_process([sys.executable, *["-m"][: a.module], a.script, *a.args])
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
      signal.signal(number, ended)
  for attempt in range(a.restarts + 1):
    start = Start(a, attempt)
    try:
      code = start.wait()
    except Ended as e:
      start.stop()
      return 128 + int(e.args[0])
    except BrokenPipeError:  # a reader that has seen enough, as `head`
      start.stop()
      leave_output()
      return 128 + signal.SIGPIPE
    if code == 0:
      return 0
    if attempt < a.restarts:
      print(f"tinygrad.launch: start {attempt + 2} of {a.restarts + 1}", file=sys.stderr, flush=True)
  return code


if __name__ == "__main__":
  sys.exit(launch())
