"""Drivers in a process that was forked after a device of theirs had been opened."""

import subprocess
import sys
from pathlib import Path

import cuda_emulator
import pytest

EMULATE = f"sys.path.insert(0, {str(Path(__file__).parent)!r}); import cuda_emulator; cuda_emulator.install()"
FORKED = """
import os, sys
{install}
import numpy as np
from tinygrad import Device, DeviceError, Tensor
x = Tensor(np.ones(3, np.float32), device="{kind}").realize()
kept, dropped = x + 1, [(x + 2).realize()]
child = os.fork()
if not child:
  dropped.clear()
  for use in (x.numpy, kept.realize, lambda: Tensor([1.0], device="{kind}:1").realize(), Device["{kind}"].synchronize):
    try:
      use()
    except DeviceError as e:
      print(str(e).replace("\\n", "|"))
  print((Tensor([1.0, 2.0], device="CPU") + 1).tolist())
  sys.exit()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print((x + 1).tolist(), kept.tolist())
"""


@pytest.mark.parametrize(
  ("kind", "install"),
  [
    pytest.param("EMULATED", EMULATE, marks=pytest.mark.skipif(not cuda_emulator.has_compiler(), reason="needs g++")),
    pytest.param("CL", "", marks=pytest.mark.needs("CL")),
  ],
)
def test_a_forked_process_is_told_that_the_driver_is_its_parents(kind, install, monkeypatch):
  """It neither crashes nor waits for threads that are not there, at its end either; the parent goes on."""
  monkeypatch.setenv("CUDA_VIRTUAL", "2")
  code = FORKED.format(install=install, kind=kind)
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, done.stderr
  *told, cpu, parent = done.stdout.splitlines()
  assert (len(told), cpu, parent) == (4, "[2.0, 3.0]", "[2.0, 2.0, 2.0] [2.0, 2.0, 2.0]")
  said = (
    f"{kind} was opened before this process was forked from another|  fix: multiprocessing.set_start_method('spawn')"
  )
  assert all(said in line for line in told), told
