"""Processes that are forked after a device was opened, while it computes, and while other threads do."""

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


# The child computes what was queued for it, or reads it: values are told, and a child that waits is ended.
CHILD = """
import os, signal, sys, threading, time
import numpy as np
from tinygrad import Tensor, TinyJit

def forked(f):
  "Whether f() is true in a child."
  child = os.fork()
  if not child:
    signal.alarm(40)
    ok = False
    try:
      ok = bool(f())
    finally:
      os._exit(not ok)
  return os.waitpid(child, 0)[1] == 0
"""
QUEUED = """
x = Tensor(np.ones((1200, 1200), np.float32)).realize()
w = Tensor.ones(64, 64).shard(("CPU:0", "CPU:1"), axis=0).contiguous().realize()
for n in range(5):
  y, z = (x @ x + n).realize(), ((w * n).contiguous() @ w.T).realize()
  print(forked(lambda: (y.numpy() == 1200 + n).all() and (z.numpy() == 64 * n).all()), (y.numpy() == 1200 + n).all())
"""
BESIDE = """
from tinygrad.helpers import threads
within, go_on = threading.Event(), threading.Event()

@TinyJit
def step(x):
  if threading.current_thread() is not threading.main_thread():
    within.set()
    go_on.wait()
  return (x @ x.T).sum()

def call(k):
  return step(Tensor.full((4, 4), k).contiguous().realize()).item()

def has_its_turn():
  with threads.TURN:
    within.set()
    time.sleep(0.3)

def beside(work, f):
  "Whether f() is true here and in a child that is forked while another thread is in the midst of `work`."
  within.clear()
  thread = threading.Thread(target=work)
  thread.start()
  within.wait()
  found = forked(f)
  go_on.set()
  thread.join()
  return found, f()

print(*beside(has_its_turn, lambda: (Tensor.ones(33, 7) + 1).sum().item() == 462))
print(*beside(lambda: call(1.0), lambda: [call(k) for k in (1.0, 2.0, 3.0, 4.0)] == [64.0, 256.0, 576.0, 1024.0]))

stop = []
def computes():
  k = 0
  while not stop:
    k += 1
    (Tensor.rand(8 + k % 60, 9).softmax() + Tensor.rand(64, 9).shard(("CPU:0", "CPU:1"), axis=0).sum()).numpy()
others = [threading.Thread(target=computes) for _ in range(2)]
for thread in others:
  thread.start()
print(*[forked(lambda: (Tensor.ones(5 + k, 7) @ Tensor.ones(7, 3)).sum().item() == 21 * (5 + k)) for k in range(6)])
stop.append(True)
"""


@pytest.mark.parametrize("code", [QUEUED, BESIDE], ids=["while it computes", "while other threads do"])
def test_a_forked_process_has_what_was_computed_and_computes(code):
  """What was queued was not there in the child, whose memory then had other values; a child that was forked while
  another thread had its turn, or was in a captured step, waited for it without end."""
  done = subprocess.run([sys.executable, "-c", CHILD + code], capture_output=True, text=True, timeout=200)
  assert done.returncode == 0 and {*done.stdout.split()} == {"True"}, done.stdout + done.stderr
