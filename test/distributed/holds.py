"""A result that one process alone holds lies elsewhere there in the next replay, whose inputs are those of the last;
`--deaf`: nobody learns of it."""

import sys

import numpy as np

from tinygrad import Device, Tensor, TinyJit, distributed

distributed.initialize(1)
if "--deaf" in sys.argv:
  learn = Device.world.learn
  Device.world.learn = lambda what, *rest: [] if what.startswith("replay") else learn(what, *rest)
devices = tuple(f"CPU:{i}" for i in range(Device.count("CPU")))
values = np.arange(24, dtype=np.float32).reshape(6, 4)
x = Tensor(values).shard(devices, 0).realize()
held = []


@TinyJit
def step(x):
  y = (x * 2).contiguous()
  return y.realize(), y.shard(devices).flip(0).contiguous().realize()


for i in range(8):
  parts, whole = step(x)
  if distributed.process_index() == 0 and i % 3 != 2:
    held.append(parts)
  right = np.array_equal(whole.numpy(), (values + i)[::-1] * 2)
  print(i, "right" if right else "wrong", flush=True)
  x.assign(x + 1).realize()
