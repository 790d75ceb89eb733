"""Collectives between processes that share no memory, with the bytes that MPI is given counted by wrapping it, beside
what `explain` says: for each device, between hosts, inside hosts. With `--whole` all that a kernel reads anything of
travels; with `--grid` the devices are a grid, a line for each host; with `--flat` no sum goes by levels; with
`--sequence` numpy adds one after the other; `--each N`: devices of a process. DEV
in the environment: the kind of device; between those that are EMULATED a double of NCCL moves the bytes."""

import functools
import operator
import os
import sys

import numpy as np

from tinygrad import Device, Mesh, P, Tensor, distributed
from tinygrad.device import sums
from tinygrad.runtime import peer_reads
from tinygrad.sharding import explain

KIND, EACH = os.environ.get("DEV", "CPU"), int(sys.argv[sys.argv.index("--each") + 1]) if "--each" in sys.argv else 1
if KIND == "EMULATED":
  import nccl_double

  nccl_double.install(EACH)
distributed.initialize(EACH)
n = Device.count(KIND)


class Counting:
  """One of MPI's communicators; `sent` counts the bytes of messages of all."""

  sent = 0

  def __init__(self, comm):
    self.comm = comm

  def __getattr__(self, name):
    return getattr(self.comm, name)

  def Isend(self, data, *to):
    Counting.sent += memoryview(data[0]).nbytes
    return self.comm.Isend(data, *to)


def tree(parts):
  """(x0 + x1) + (x2 + x3) …: neighbours by twos as long as their number is even, then one after the other."""
  while len(parts) > 1 and len(parts) % 2 == 0 and "--sequence" not in sys.argv:
    parts = [a + b for a, b in zip(parts[::2], parts[1::2])]
  return functools.reduce(operator.add, parts)


if "--flat" in sys.argv:
  sums.near_and_far = lambda sub_axes, devices: (sub_axes, ())
if "--whole" in sys.argv:
  mark = peer_reads.PeerIndex.mark
  peer_reads.PeerIndex.mark = lambda self, marks: (mark(self, marks), marks.__setitem__(marks.any(1), True))
world = Device.world
for wire in [world.mpi_wire, *([] if world.courier is None else [world.courier.wire])]:
  wire.comm = Counting(wire.comm)


def sent_here():
  return Counting.sent + (nccl_double.carried if KIND == "EMULATED" else 0)


grid = "--grid" in sys.argv
mesh = Mesh([f"{KIND}:{i}" for i in range(n)], (2, n // 2) if grid else (n,), ("x", "y") if grid else ("x",))
axes = mesh.names
size = 48 * 1024
x = np.random.default_rng(0).standard_normal((n, size)).astype(np.float32)
rows, columns = (Tensor(x).shard(mesh, spec).realize() for spec in (P(axes), P(None, axes)))
for name, given, f, want in (
  ("all_reduce", rows, lambda t: t.sum(0), tree([*x])),
  ("reduce_scatter", rows, lambda t: t.sum(0).shard(mesh, P(axes)), tree([*x])),
  ("all_gather", columns, lambda t: t.shard(mesh, P()), x),
  ("all_to_all", columns, lambda t: t.shard(mesh, P(axes)), x),
  ("halo", columns, lambda t: t[:, 1:] + t[:, :-1], x[:, 1:] + x[:, :-1]),
):
  y = f(given)
  report, before = explain(y), sent_here()
  y.realize()
  assert ("inside hosts, " in str(report)) == ("between hosts" in str(report)) == (report.between_hosts > 0)
  Device[Device.local(KIND)[0]].synchronize()
  sent = world.comm.allreduce(sent_here() - before)
  same = np.array_equal(y.numpy(), want)
  print(name, sent, int(report.wire * n), same, report.between_hosts, report.inside_hosts, flush=True)
