"""Runs a script in several processes, for the tests of this folder."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
needs_mpi = pytest.mark.skipif(
  importlib.util.find_spec("mpi4py") is None or not Path(MPIEXEC).exists(),
  reason="needs mpi4py and mpiexec: pip install 'tinygrad[mpi]'",
)


def command_output(command, env=None, seconds=120):
  """(exit code, what it printed, what it complained of)."""
  paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
  alone = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDRA", "MPI", "PYTEST"))}
  done = subprocess.run(
    [*map(str, command)],
    capture_output=True,
    text=True,
    timeout=seconds,
    cwd=ROOT,
    env={**alone, "PYTHONPATH": paths, "PLAN_CACHE": "0", **(env or {})},
  )
  return done.returncode, done.stdout, done.stderr


def run_in(n, script, *args, **env):
  """A script in n processes that mpiexec starts (1: in one that nobody has started)."""
  start = [MPIEXEC, "-n", n] if n > 1 else []
  return command_output([*start, sys.executable, script, *args], env)


def launched(n, *args, options=(), **env):
  """What the launcher makes of a script."""
  return command_output([sys.executable, "-m", "tinygrad.launch", "-n", n, *options, *args], env)


def printed(n, script, *args, **env):
  """What the processes print, a list of lines for each."""
  with tempfile.TemporaryDirectory() as folder:
    start = [MPIEXEC, f"-outfile-pattern={folder}/%r", "-n", n] if n > 1 else []
    code, out, err = command_output([*start, sys.executable, script, *args], env)
    assert code == 0, out + err
    return [out.splitlines()] if n == 1 else [(Path(folder) / str(r)).read_text().splitlines() for r in range(n)]
