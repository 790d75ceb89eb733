"""One data-parallel training step on simulated (NULL) devices: what its graph, gradient, placement and schedule cost.

Prints a JSON line: the cold step (the first of this process, its cache empty) and each of the warm ones, in seconds,
parted into `build` (forward and gradient graph) and `realize` (the rest). The same file runs with tinygrad 0.14.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ["DEV"] = "NULL"  # the default device, so that nothing is allocated or computed

from tinygrad import Tensor

BATCH, WIDTH, HIDDEN = 64, 1024, 4096


def step(devices: int) -> dict[str, float]:
  """Batch cut over the devices, weights replicated, one SGD update: seconds of the whole step and of its parts."""
  names = tuple(f"NULL:{i}" for i in range(devices))
  start = time.perf_counter()
  x = Tensor.empty(max(BATCH, devices), WIDTH, device="NULL").shard(names, axis=0)
  w1 = Tensor.empty(WIDTH, HIDDEN, device="NULL").shard(names, axis=None)
  w2 = Tensor.empty(HIDDEN, WIDTH, device="NULL").shard(names, axis=None)
  loss = ((x @ w1).relu() @ w2).square().mean()
  gradients = loss.gradient(w1, w2)
  built = time.perf_counter()
  Tensor.realize(loss, *[w - 0.1 * g for w, g in zip((w1, w2), gradients)])
  end = time.perf_counter()
  return {"step_s": end - start, "build_s": built - start, "realize_s": end - built}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("devices", type=int, help="number of simulated devices")
  parser.add_argument("--warm", type=int, default=10, metavar="N", help="steps after the first (10)")
  args = parser.parse_args()
  cold = step(args.devices)
  print(json.dumps({"devices": args.devices, "cold": cold, "warm": [step(args.devices) for _ in range(args.warm)]}))


if __name__ == "__main__":
  main()
