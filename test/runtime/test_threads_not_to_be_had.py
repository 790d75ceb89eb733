"""A system that gives no more threads (`ulimit -u`, a container's limit): what can be done without them is done."""

import os
import subprocess
import sys
from pathlib import Path

from tinygrad import Tensor
from tinygrad.helpers import started
from tinygrad.nn.checkpoints import Checkpoints

REFUSING = """
import threading
real = threading.Thread.start
def start(self):
  if self.name.startswith({names}):
    raise RuntimeError("can't start new thread")
  real(self)
threading.Thread.start = start
from tinygrad import Tensor
x = Tensor.arange(300 * 300).reshape(300, 300).float().contiguous()
print((x @ x).sum().item() > 0, (x + 1).mean().item())
"""


def run(folder, *names):
  """A program without the threads of some names."""
  env = {**os.environ, "CACHEDIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
  return subprocess.run([sys.executable, "-c", REFUSING.format(names=names)], capture_output=True, text=True, env=env)


def test_a_program_without_the_threads_that_save_time_is_right(tmp_path):
  done = run(tmp_path, "loading", "improving")
  assert (done.stdout, done.returncode) == ("True 45000.5\n", 0), done.stderr


def test_a_device_without_a_thread_is_told_with_a_fix(tmp_path):
  done = run(tmp_path, "loading", "improving", "CPU")
  assert done.returncode == 1 and done.stderr.splitlines()[-2:] == [
    "tinygrad.device.errors.DeviceError: CPU: the system gives no thread number 1: can't start new thread",
    "  fix: raise the limit of processes (ulimit -u); or CPU_THREADS=1, for one thread of each device",
  ]


def no_more(self):
  raise RuntimeError("can't start new thread")


def test_a_checkpoint_is_written_without_a_thread(tmp_path, monkeypatch):
  saved, x = Checkpoints(tmp_path), Tensor([1.0]).contiguous().realize()
  x.tolist()
  monkeypatch.setattr("threading.Thread.start", no_more)
  assert started("a thread", lambda: None) is None
  saved.save(3, {"x": x})
  assert saved.steps() == [3]
  saved.wait()
