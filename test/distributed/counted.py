"""Collectives between processes that share no memory, with the bytes that MPI is given counted by wrapping it, beside
what `explain` says, for each device and between hosts. With `--whole` everything that a kernel reads anything of
travels; with `--grid` the devices are a grid, a line for each host."""

import sys

import numpy as np

from tinygrad import Device, Mesh, P, Tensor, distributed
from tinygrad.runtime import peer_reads
from tinygrad.sharding import explain

distributed.initialize()
n = Device.count("CPU")


class Counting:
  """MPI's communicator; `sent` counts the bytes of messages."""

  def __init__(self, comm):
    self.comm, self.sent = comm, 0

  def __getattr__(self, name):
    return getattr(self.comm, name)

  def Isend(self, data, *to):
    self.sent += memoryview(data[0]).nbytes
    return self.comm.Isend(data, *to)


if "--whole" in sys.argv:
  mark = peer_reads.PeerIndex.mark
  peer_reads.PeerIndex.mark = lambda self, marks: (mark(self, marks), marks.__setitem__(marks.any(1), True))
world = Device.world
counting = world.comm = Counting(world.comm)
grid = "--grid" in sys.argv
mesh = Mesh([f"CPU:{i}" for i in range(n)], (2, n // 2) if grid else (n,), ("x", "y") if grid else ("x",))
axes = mesh.names
size = 48 * 1024
x = Tensor(np.random.default_rng(0).standard_normal((n, size)).astype(np.float32))
rows, columns = x.shard(mesh, P(axes)).realize(), x.shard(mesh, P(None, axes)).realize()
for name, given, f in (
  ("all_reduce", rows, lambda t: t.sum(0)),
  ("reduce_scatter", rows, lambda t: t.sum(0).shard(mesh, P(axes))),
  ("all_gather", columns, lambda t: t.shard(mesh, P())),
  ("all_to_all", columns, lambda t: t.shard(mesh, P(axes))),
  ("halo", columns, lambda t: t[:, 1:] + t[:, :-1]),
):
  y = f(given)
  report, before = explain(y), counting.sent
  y.realize()
  sent = world.comm.comm.allreduce(counting.sent - before)
  want = f(x).numpy()
  same = np.array_equal(y.numpy(), want) if name != "all_reduce" else np.allclose(y.numpy(), want, atol=1e-5)
  print(name, sent, int(report.wire * n), same, report.between_hosts, flush=True)
