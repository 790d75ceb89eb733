"""A training loop in which, after a while, one process does something else than the others: what, says the argument."""

import os
import signal
import sys
import time

from tinygrad import Device, Tensor, TinyJit, distributed

distributed.initialize()
what, last = sys.argv[1], distributed.process_count() - 1
devices = tuple(f"CPU:{i}" for i in range(Device.count("CPU")))


@TinyJit
def step(x):
  return ((x * 2).sum() + 1).realize()


def train(steps):
  for i in range(steps):
    loss = step((Tensor.ones(8) * i).contiguous().shard(devices, axis=0).realize())
  return loss


loss = train(4)
if distributed.process_index() == last:
  if what == "raises":
    raise ValueError("a bad batch")
  if what == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
  if what == "stops":
    os.kill(os.getpid(), signal.SIGSTOP)
  if what == "reads":
    loss.item()
  if what == "waits natively":  # in what is queued, where nothing can be raised
    Device.world.exchange = lambda *_: []
    train(1)
    Device[devices[last]].synchronize()
if what == "waits natively":
  time.sleep(0.5)
  os.kill(os.getpid(), signal.SIGKILL)
started = time.monotonic()
print("loss", train(3).item())
