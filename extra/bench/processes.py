"""Collectives between processes, beside bare MPI on buffers of the same size, in one run.

    mpiexec -n 2 python -m extra.bench.processes          # about two minutes
    mpiexec -n 2 python -m extra.bench.processes --small  # up to 1 MiB alone
    mpiexec -n 2 python -m extra.bench.processes --kind all_gather

For each size: the time of an all-reduce, an all-gather and a reduce-scatter of float32, captured by TinyJit, and of
mpi4py's on the same bytes; theirs over ours is a speed-up, in the same process and at the same time. Up to a mebibyte
each is also measured as programs have them, many in a captured step (IN_A_STEP of them, each on the last one's result;
an all-gather on the reduce-scatter's, in pairs), beside as many calls of MPI's: what a call of the step itself takes,
which is Python's, is then shared. CPU_THREADS=1 is set unless it is set already: MPI has one thread.

Calls of ours and of theirs take turns, and the quarter of each counts that the machine disturbs least.
"""

import argparse
import os
import time

os.environ.setdefault("CPU_THREADS", "1")

import numpy as np

from tinygrad import Device, Mesh, P, Tensor, TinyJit, distributed

SIZES = [1 << n for n in (12, 16, 20, 24, 26, 28)]
SMALL = 1 << 20
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
IN_A_STEP = 32
IN_A_ROW = 4  # calls of one before the turn of the other
SECONDS = 1.0


def timed(calls, meet, seconds=2 * SECONDS):
  """Seconds of each call, after some that are not counted; everybody begins each together, and they take turns."""
  times, last = [[] for _ in calls], time.monotonic() + seconds
  for call in calls:
    for _ in range(5):
      call()
  over = False
  while not over:
    for call, taken in zip(calls, times):
      for _ in range(IN_A_ROW):
        meet()
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    over = meet(len(times[0]) >= 2 * IN_A_ROW and (time.monotonic() > last or len(times[0]) >= 400))
  return [sorted(taken)[len(taken) // 4] for taken in times]


def ours(kind, size, mesh, devices):
  """The collective of `size` bytes a device, as a function that waits for it."""
  n, count = len(devices), size // 4
  if kind == "all_gather":
    x = Tensor.ones(count // n * n).contiguous().shard(mesh, P("x")).realize()
    place = P()
  else:  # a sum over the devices, which is partial until it is reduced
    x = Tensor.ones(n, count // n * n).contiguous().shard(mesh, P("x", None)).realize()
    place = P() if kind == "all_reduce" else P("x")

  return waited(TinyJit(lambda x: (x if kind == "all_gather" else x.sum(0)).shard(mesh, place).realize()), x)


def waited(step, *args):
  """A call of a step that waits for its end."""
  local = [Device[name] for name in Device.local("CPU")]

  def call():
    step(*args)
    for device in local:
      device.synchronize()

  return call


def ours_in_a_step(kind, size, mesh, devices):
  n, count = len(devices), size // 4 // len(devices) * len(devices)
  x = Tensor.ones(n, count).contiguous().shard(mesh, P("x", None)).realize()

  def step(x):
    y = x
    for _ in range(IN_A_STEP):
      total = y.sum(0)
      if kind != "all_reduce":  # a reduce-scatter, and an all-gather of its blocks
        total = total.shard(mesh, P("x")).contiguous().shard(mesh, P()).contiguous()
      y = x + total * 0.5
    return y.realize()

  return waited(TinyJit(step), x)


def theirs(kind, size, mpi, comm):
  n, count = comm.Get_size(), size // 4
  whole, part = np.ones(count // n * n, np.float32), np.ones(count // n, np.float32)
  out = np.empty_like(whole)
  if kind == "all_gather":
    return lambda: comm.Allgather(part, out)
  if kind == "all_reduce":
    return lambda: comm.Allreduce(whole, out, mpi.SUM)
  return lambda: comm.Reduce_scatter_block(whole, part, mpi.SUM)


def theirs_in_a_step(kinds, size, mpi, comm):
  calls = [theirs(kind, size, mpi, comm) for kind in kinds]
  return lambda: [call() for _ in range(IN_A_STEP) for call in calls]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--small", action="store_true", help="up to 1 MiB alone")
  parser.add_argument("--kind", choices=KINDS, help="single calls of one kind alone")
  args = parser.parse_args()
  from mpi4py import MPI

  distributed.initialize()
  comm, devices = MPI.COMM_WORLD.Dup(), [f"CPU:{i}" for i in range(Device.count("CPU"))]
  mesh = Mesh(devices, names=("x",))

  def meet(over=False):
    return comm.allreduce(bool(over), MPI.LOR)

  sizes = [s for s in SIZES if s <= SMALL or not args.small]

  def row(kind, size, times):
    if comm.rank == 0:
      a, b = times
      print(f"{kind:29s} {size:10d} {a * 1e6:10.1f} {b * 1e6:10.1f} {b / a:9.2f}", flush=True)

  if comm.rank == 0:
    print(f"{'':29s} {'bytes':>10s} {'ours µs':>10s} {'MPI µs':>10s} {'MPI/ours':>9s}")
  for kind in [args.kind] if args.kind else KINDS:
    for size in sizes:
      row(kind, size, timed([ours(kind, size, mesh, devices), theirs(kind, size, MPI, comm)], meet))
  for kinds in [] if args.kind else [["all_reduce"], ["reduce_scatter", "all_gather"]]:
    for size in (s for s in sizes if s <= SMALL):
      steps = [ours_in_a_step(kinds[0], size, mesh, devices), theirs_in_a_step(kinds, size, MPI, comm)]
      times = timed(steps, meet)
      row(f"{' + '.join(kinds)} in a step", size, [t / IN_A_STEP for t in times])


if __name__ == "__main__":
  main()
