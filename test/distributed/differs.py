"""A script in which the processes differ: in what, says the argument."""

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from tinygrad import Device, Sharding, Tensor, TinyJit, distributed
from tinygrad.distributed import world

what = sys.argv[1]
if what == "the version" and os.environ["PMI_RANK"] == "1":
  world.version = lambda: "01234567 in /elsewhere/tinygrad"
distributed.initialize()
rank, devices = distributed.process_index(), tuple(f"CPU:{i}" for i in range(Device.count("CPU")))
x = Tensor.ones(8).contiguous().shard(devices, axis=0).realize()
if what == "a number":
  y = x * (0.1 + rank)
  print("computed", y.sum().item())
if what == "a number in a step":
  step = TinyJit(lambda x: (x * (0.1 + rank)).realize())
  for _ in range(3):
    step(x)
  print("computed", step(x).sum().item())
if what == "data":
  weights = Tensor(np.full(4, rank, np.float32)).shard(devices)
  print("computed", (weights.sum() * x).sum().item())
if what == "a block of data":  # which both of them hold
  half = Tensor.from_process_local(np.full(4, rank, np.float32), Sharding(devices, None))
  print("computed", (half.sum() * x).sum().item())
if what == "its part of data":  # as it may: nobody else reads it
  rows = np.arange(8, dtype=np.float32)
  rows[: 4 * rank] = np.nan
  rows[4 * (rank + 1) :] = np.nan
  print("computed", Tensor(rows).shard(devices, axis=0).sum().item())
if what == "threads":
  told = Path(sys.argv[2])  # where the first process says that its second thread has tried to meet the others
  total, most = (TinyJit(lambda x, of=of: of(x).realize()) for of in (Tensor.sum, Tensor.max))
  for step in (total, most) * 3:  # what is not captured takes turns
    step(x)
  thread = threading.Thread(target=lambda: print("computed in a thread", total(x).item()))
  if rank:
    while not told.exists():
      time.sleep(0.01)
    print("computed", total(x).item())
  else:
    thread.start()
    while not Device.world.meeting.locked():
      time.sleep(0.01)
    try:
      most(x)
    finally:
      told.touch()
if what == "a number in a thread":
  thread = threading.Thread(target=lambda: print("computed", (x * (0.1 + rank)).sum().item()))
  thread.start()
  thread.join()
  sys.exit()
if what == "devices":
  distributed.initialize(1)  # as before
  distributed.initialize(2)
print("through", os.getpid())
