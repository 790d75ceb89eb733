"""Whether what is simulated is so: predicted and measured seconds of training steps on devices of this process; and how
long it takes to plan a step for thousands of devices.

    python -m extra.bench.simulated [--devices 2 4 8] [--rounds 3]
    python -m extra.bench.simulated --large [--layers 80] [--out step.html]

The machine is measured on each number of devices (tinygrad/simulation/calibrate.py), by probes that are none of the
steps: products, additions, exponentials, all-reduces. Each step is then predicted, and measured, in turns with others.
Seconds are those of the processor over the cores, so that a machine with other work gives the same. The exit status is
1 where a prediction is off by more than 25 %. `--large`: a transformer of so many layers on 512 hosts of 8 H100s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from tinygrad import Mesh, P, Sharding, Tensor
from tinygrad.simulation import __main__ as program
from tinygrad.simulation import simulate
from tinygrad.simulation.calibrate import Probe, fastest_of, measured

OFF = 0.25  # of the measured time
WIDE, HEADS, CONTEXT = 256, 4, 64
Step = Callable[..., Tensor]


class On:
  """Values on a mesh: memory that is filled, or, on simulated devices, is not."""

  def __init__(self, kind: str, devices: int) -> None:
    self.kind, self.n = kind, devices
    self.mesh = Mesh([f"{kind}:{i}" for i in range(devices)], names=("d",))

  def value(self, *shape: int, cut: int | None = None) -> Tensor:
    at = Sharding(self.mesh, P(*("d" if i == cut else None for i in range(len(shape)))))
    if self.kind == "NULL":
      return Tensor.empty(*shape, device=at)
    return Tensor.ones(*shape).mul(0.01).contiguous().shard(at).realize()


def trained(loss: Step) -> Step:
  """A step of gradient descent."""

  def step(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
      w.requires_grad = True
    found = loss(x, *weights)
    gradients = found.gradient(*weights)
    Tensor.realize(found, *[w.assign(w - 0.001 * g) for w, g in zip(weights, gradients)])
    return found

  return step


def two_matrices(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
  return ((x @ up).relu() @ down).square().mean()


def data_parallel(on: On) -> Probe:
  weights = on.value(2 * WIDE, 4 * WIDE), on.value(4 * WIDE, 2 * WIDE)
  return Probe(trained(two_matrices), (on.value(64 * on.n, 2 * WIDE, cut=0), *weights))


def tensor_parallel(on: On) -> Probe:
  weights = on.value(2 * WIDE, WIDE * on.n, cut=1), on.value(WIDE * on.n, 2 * WIDE, cut=0)
  return Probe(trained(two_matrices), (on.value(256, 2 * WIDE), *weights))


def attention(on: On) -> Probe:
  batch = 2 * on.n
  weights = *(on.value(WIDE, WIDE) for _ in range(4)), on.value(WIDE, 4 * WIDE), on.value(4 * WIDE, WIDE)

  def loss(x: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, up: Tensor, down: Tensor) -> Tensor:
    qs, ks, vs = ((x @ w).reshape(batch, CONTEXT, HEADS, WIDE // HEADS).transpose(1, 2) for w in (q, k, v))
    mixed = (qs @ ks.transpose(-1, -2) * (WIDE // HEADS) ** -0.5).softmax(-1) @ vs
    y = x + mixed.transpose(1, 2).reshape(batch, CONTEXT, WIDE) @ out
    return (y + (y @ up).gelu() @ down).square().mean()

  return Probe(trained(loss), (on.value(batch, CONTEXT, WIDE, cut=0), *weights))


STEPS = {"MLP, dp": data_parallel, "MLP, tp": tensor_parallel, "transformer layer, dp": attention}


def compare(devices: int, rounds: int) -> int:
  """Prints a line for each step; how many predictions are off."""
  wrong = 0
  found: dict[str, list[tuple[float, float]]] = {name: [] for name in STEPS}
  for _ in range(rounds):
    cluster = measured([f"CPU:{i}" for i in range(devices)])
    for name, make in STEPS.items():
      (seconds,), on = fastest_of([make(On("CPU", devices))]), make(On("NULL", devices))
      found[name].append((simulate(on.step, *on.inputs, cluster=cluster).seconds, seconds))
  for name, pairs in found.items():
    predicted, seconds = (statistics.median(x) for x in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    wrong += abs(ratio - 1) > OFF
    print(f"| {devices} | {name} | {predicted * 1e3:.2f} | {seconds * 1e3:.2f} | {ratio:.2f} |", flush=True)
  return wrong


def large(layers: int, out: list[str]) -> int:
  size = ["--layers", str(layers), "--width", "8192", "--heads", "64"]
  start, work = time.perf_counter(), time.process_time()
  status = program.simulate_model(
    ["--cluster", "h100x8:512", "--mesh", "dp=512,tp=8", *size, *(x for f in out for x in ("--out", f))]
  )
  seconds, work = time.perf_counter() - start, time.process_time() - work
  print(f"{seconds:.1f} s, {work:.1f} s of a processor")
  return status


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--devices", nargs="+", type=int, default=[2, 4, 8], help="of this process (2 4 8)")
  parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (3)")
  parser.add_argument("--large", action="store_true", help="plan for 4,096 devices instead")
  parser.add_argument("--layers", type=int, default=80, help="of the large step (80)")
  parser.add_argument("--out", action="append", default=[], help="where its picture goes: .html, .svg, .json")
  args = parser.parse_args()
  if args.large:
    return large(args.layers, args.out)
  print("| devices | step | predicted, ms | measured, ms | ratio |\n| --- | --- | --- | --- | --- |")
  wrong = sum(compare(n, args.rounds) for n in args.devices)
  print(f"{wrong} of {len(STEPS) * len(args.devices)} predictions are off by more than {OFF:.0%}")
  return int(wrong > 0)


if __name__ == "__main__":
  sys.exit(main())
