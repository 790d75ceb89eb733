"""What the tests compare between GPUs of one process and of several: prints a hash of the bits of each result.
Arguments: the kind of device, how many there are in all. Those that are EMULATED exchange bytes by a double of NCCL."""

import hashlib
import os
import sys

import nccl_double
import numpy as np

from tinygrad import Device, Tensor, TinyJit, distributed

KIND, COUNT, PROCESSES = sys.argv[1], int(sys.argv[2]), int(os.environ.get("PMI_SIZE", "1"))
if KIND == "EMULATED":
  nccl_double.install(COUNT // PROCESSES)
distributed.initialize(COUNT // PROCESSES)
NAMES = tuple(f"{KIND}:{i}" for i in range(COUNT))
assert PROCESSES == 1 or (Device.count(KIND), len(Device.local(KIND))) == (COUNT, COUNT // PROCESSES)
random = np.random.default_rng(0)


def given(*shape, axis=None):
  x = Tensor(random.standard_normal(shape).astype(np.float32), device=NAMES[0])
  return x.shard(NAMES, axis).realize()


def show(name, *tensors):
  bits = hashlib.sha256()
  for t in tensors:
    bits.update(t.numpy().tobytes())
  print(name, bits.hexdigest()[:16], flush=True)


rows, columns = given(COUNT, 48 << 10, axis=0), given(7, 10, axis=1)
show("sum", rows.sum(0))
show("scattered", (rows * 3).sum(0).shard(NAMES, 0))
show("moved", columns.shard(NAMES, 0), columns.T.contiguous(), columns[:, ::-1])
show("halo", columns[:, 1:] + columns[:, :-1])
show("whole", columns.shard(NAMES))
there = given(6, 4, axis=0)
show("to one", (there + 1).to(NAMES[-1]), there.sum(0).to(NAMES[0]))


@TinyJit
def step(x, w):
  loss = ((x @ w).relu() ** 2).sum()
  (g,) = loss.gradient(w)
  return (w - g * 0.01).realize(), loss.realize()


w, losses = given(12, 5), []
for _ in range(4):  # nothing waits for a replay but what is read at the end
  w, loss = step(given(8, 12, axis=0), w)
  losses.append(loss + 0)
show("steps", w, *losses)
if PROCESSES > 1:
  by_nccl = nccl_double.carried > 0 if KIND == "EMULATED" else KIND in Device.world.wires
  print("by NCCL" if by_nccl else "by MPI", flush=True)
