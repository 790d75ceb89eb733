"""Collectives between processes, beside bare MPI on buffers of the same size, in one run.

    mpiexec -n 2 python -m extra.bench.processes          # about two minutes

For each size: the median time of an all-reduce, an all-gather and a reduce-scatter of float32, captured by TinyJit, and
of mpi4py's on the same bytes; ours over theirs is a speed-up, in the same process and at the same time. CPU_THREADS=1
is set unless it is set already: MPI has one thread.
"""

import os
import statistics
import time

os.environ.setdefault("CPU_THREADS", "1")

import numpy as np

from tinygrad import Device, Mesh, P, Tensor, TinyJit, distributed

SIZES = [1 << n for n in (12, 16, 20, 24, 26)]
SECONDS = 1.0


def median(call, meet, seconds=SECONDS):
  """Of a call, after two that are not counted; everybody begins each together."""
  times, last = [], time.monotonic() + seconds
  for _ in range(2):
    call()
  while len(times) < 5 or (time.monotonic() < last and len(times) < 200):
    meet()
    start = time.perf_counter()
    call()
    times.append(time.perf_counter() - start)
    if meet(time.monotonic() > last and len(times) >= 5):
      break
  return statistics.median(times)


def ours(kind, size, mesh, devices):
  """The collective of `size` bytes a device, as a function that waits for it."""
  n, count = len(devices), size // 4
  if kind == "all_gather":
    x = Tensor.ones(count // n * n).contiguous().shard(mesh, P("x")).realize()
    place = P()
  else:  # a sum over the devices, which is partial until it is reduced
    x = Tensor.ones(n, count // n * n).contiguous().shard(mesh, P("x", None)).realize()
    place = P() if kind == "all_reduce" else P("x")

  @TinyJit
  def step(x):
    y = x if kind == "all_gather" else x.sum(0)
    return y.shard(mesh, place).realize()

  def call():
    step(x)
    for name in Device.local("CPU"):
      Device[name].synchronize()

  return call


def theirs(kind, size, mpi, comm):
  n, count = comm.Get_size(), size // 4
  whole, part = np.ones(count // n * n, np.float32), np.ones(count // n, np.float32)
  out = np.empty_like(whole)
  if kind == "all_gather":
    return lambda: comm.Allgather(part, out)
  if kind == "all_reduce":
    return lambda: comm.Allreduce(whole, out, mpi.SUM)
  return lambda: comm.Reduce_scatter_block(whole, part, mpi.SUM)


def main():
  from mpi4py import MPI

  distributed.initialize()
  comm, devices = MPI.COMM_WORLD.Dup(), [f"CPU:{i}" for i in range(Device.count("CPU"))]
  mesh = Mesh(devices, names=("x",))

  def meet(over=False):
    return comm.allreduce(bool(over), MPI.LOR)

  if comm.rank == 0:
    print(f"{'':14s} {'bytes':>10s} {'ours µs':>10s} {'MPI µs':>10s} {'MPI/ours':>9s}")
  for kind in ("all_reduce", "all_gather", "reduce_scatter"):
    for size in SIZES:
      a, b = median(ours(kind, size, mesh, devices), meet), median(theirs(kind, size, MPI, comm), meet)
      if comm.rank == 0:
        print(f"{kind:14s} {size:10d} {a * 1e6:10.1f} {b * 1e6:10.1f} {b / a:9.2f}", flush=True)


if __name__ == "__main__":
  main()
