"""What the tests compare between one process and several: prints a hash of the bits of each result."""

import hashlib
import os
import sys

import numpy as np

from tinygrad import Device, Mesh, P, Tensor, TinyJit, distributed, nn, scan, while_loop

COUNT = int(os.environ.get("PMI_SIZE", "1"))
distributed.initialize(int(sys.argv[1]) // COUNT)
RANK = distributed.process_index()
DEVICES = tuple(f"CPU:{i}" for i in range(int(sys.argv[1])))
random = np.random.default_rng(0)
mesh = Mesh(DEVICES, (2, len(DEVICES) // 2), ("dp", "tp"))


def show(name, *tensors):
  bits = hashlib.sha256()
  for t in tensors:
    array = t.numpy()
    bits.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
  print(f"{name} {bits.hexdigest()[:16]}", flush=True)


def given(*shape):
  return Tensor(random.standard_normal(shape).astype(np.float32))


# sums over devices, cuts that are not even, half precision, gathers
x, w = given(7, 12), given(12, 5)
show("matmul", x.shard(DEVICES, 1) @ w.shard(DEVICES, 0))
show("rows", (x.shard(DEVICES, 0) @ w.shard(DEVICES)).relu())
show("softmax", x.shard(DEVICES, 1).softmax(1), x.shard(DEVICES, 0).softmax(0))
show("half", x.half().shard(DEVICES, 1).sum(1), x.bfloat16().shard(DEVICES, 0).sum(0))
show("moves", x.shard(DEVICES, 0).shard(DEVICES, 1), x.shard(DEVICES, 0).T.contiguous(), x.shard(DEVICES, 0)[::-1])
show("sorted", x.shard(DEVICES, 0).sort(0)[0], x.shard(DEVICES, 1).cumsum(1))
show("grid", given(len(DEVICES), 3 << 13).shard(mesh, P(("dp", "tp"))).sum(0))
h = given(6, 8).shard(mesh, P("dp", None)) @ given(8, 10).shard(mesh, P(None, "tp"))
show("mesh", h, h @ given(10, 3).shard(mesh, P("tp", None)))
show("one device", (x * 2).sum(0), (x.shard(DEVICES, 0) + 1).to("CPU:1") * 3)
show("random", Tensor.rand(5, 6).shard(DEVICES, 0), Tensor.randn(3, device=DEVICES[-1]))

# a step of training, captured; a result is kept in one process only
Tensor.manual_seed(1)
first, second = nn.Linear(12, 16), nn.Linear(16, 3)
for p in nn.state.get_parameters((first, second)):
  p.shard_(DEVICES)
adam = nn.optim.Adam(nn.state.get_parameters((first, second)), lr=0.05)
kept = []


@TinyJit
def step(x, y):
  with Tensor.train():
    adam.zero_grad()
    loss = second(first(x).relu()).cross_entropy(y)
    loss.backward()
    adam.step()
    return loss.realize()


for i in range(6):
  batch = given(8, 12).shard(DEVICES, 0)
  loss = step(batch.realize(), Tensor(random.integers(0, 3, 8)).shard(DEVICES, 0).realize())
  if RANK == 0:
    kept.append(loss)
  show(f"loss {i}", loss)
show("weights", *nn.state.get_parameters((first, second)))

# loops
c, ys = scan(
  lambda c, x: (c * 0.5 + x, c.sum()), Tensor.zeros(4).contiguous().shard(DEVICES, 0), given(3, 4).shard(DEVICES, 1)
)
show("scan", c, ys)
n = while_loop(lambda n: n.sum() < 100, lambda n: n * 2, Tensor.ones(4).contiguous().shard(DEVICES, 0))
show("while", n)
own = DEVICES[RANK * len(DEVICES) // COUNT : (RANK + 1) * len(DEVICES) // COUNT]
assert COUNT == 1 or Device.local("CPU") == tuple(map(Device.canonicalize, own))
