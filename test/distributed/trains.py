"""A training run that saves its state after each step and goes on from the last that is whole. Arguments: a folder, how
many steps, how many devices in all, and what goes wrong: `kind:process:step`, in the first start only."""

import os
import resource
import signal
import sys

import numpy as np

from tinygrad import Tensor, TinyJit, distributed, nn

folder, steps, count, *wrong = sys.argv[1:]
distributed.initialize(int(count) // int(os.environ.get("PMI_SIZE", "1")))
devices = tuple(f"CPU:{i}" for i in range(int(count)))
Tensor.manual_seed(3)
layers = [nn.Linear(6, 8), nn.Linear(8, 1)]
for p in nn.state.get_parameters(layers):
  p.shard_(devices, axis=0 if p.shape[0] > 1 else None)
adam = nn.optim.Adam(nn.state.get_parameters(layers), lr=0.05)
order = np.random.default_rng(5)
state = {**nn.state.get_state_dict(layers), **nn.state.get_state_dict(adam, "adam.")}
saved = nn.checkpoints.Checkpoints(folder, keep=2)


@TinyJit
def step(x, y):
  adam.zero_grad()
  loss = ((layers[1](layers[0](x).relu()) - y) ** 2).mean()
  loss.backward()
  adam.step()
  return loss.realize()


def go_wrong(at):
  for kind, process, when in (w.split(":") for w in wrong if os.environ.get("TINYGRAD_RESTART", "0") == "0"):
    if (int(process), int(when)) == (distributed.process_index(), at):
      if kind == "raise":
        raise ValueError("a bad batch")
      if kind == "full":  # as of a disk: no file grows beyond some bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        return
      os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])


first = 0
if (found := saved.load(state)) is not None:
  first, more = found
  order.bit_generator.state = more["order"]
with Tensor.train():
  for i in range(first, int(steps)):
    go_wrong(i)
    x = order.standard_normal((8, 6)).astype(np.float32)
    noise = Tensor.randn(8, 1).shard(devices, axis=0)
    target = Tensor(x.sum(1, keepdims=True)).shard(devices, axis=0) + noise * 0.1
    loss = step(Tensor(x).shard(devices, axis=0).realize(), target.realize())
    print("step", i, f"{loss.item():.9g}", flush=True)
    saved.save(i + 1, state, {"order": order.bit_generator.state})
saved.wait()
