"""The last process forks others, which compute, raise and end, and starts a program; then all go on as before."""

import multiprocessing
import os
import subprocess
import sys

from tinygrad import Device, Tensor, TinyJit, distributed

ALONE = "from tinygrad import Tensor, distributed; distributed.initialize(); print(Tensor([1.0, 2.0]).sum().item())"


def doubled(x):
  distributed.initialize()
  return (Tensor([x]) * 2).tolist()


def refused(use):
  try:
    use()
  except distributed.DistributedError as e:
    return str(e).splitlines()[0]
  return "it went on"


def forked(run):
  """The exit code of a process that does this."""
  sys.stdout.flush()
  if (child := os.fork()) == 0:
    run()
    sys.exit(3)
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main():
  distributed.initialize()
  last = distributed.process_count() - 1
  devices, own = tuple(f"CPU:{i}" for i in range(Device.count("CPU"))), f"CPU:{last}"
  w = Tensor.zeros(8).shard(devices, axis=0).contiguous().realize()
  step = TinyJit(lambda x: w.assign(w + x).sum().realize())

  def steps(n):
    return [step((Tensor.ones(8) * i).shard(devices, axis=0).contiguous().realize()).item() for i in range(n)]

  steps(4)
  here = Tensor([1.0, 2.0], device=own).contiguous().realize()
  alone = TinyJit(lambda x: here.assign(here + x).realize())
  for _ in range(3):
    alone(one := Tensor([1.0, 1.0], device=own).contiguous().realize())
  if distributed.process_index() == last:
    uses = w.numpy, here.numpy, lambda: alone(one), lambda: steps(1), lambda: here.assign(here * 0).realize()
    print(forked(lambda: print("; ".join(dict.fromkeys(map(refused, uses))))))
    print(forked(lambda: 1 / 0))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
      print(pool.map(doubled, [1.0, 2.0]))
    print(subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True).stdout.strip())
  print(here.tolist(), steps(4)[-1])


if __name__ == "__main__":
  main()
