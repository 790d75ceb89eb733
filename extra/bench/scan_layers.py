"""What `scan_layers` saves: seconds of the first training step of a model, with nothing compiled before, and of a later
one, against the same layers called one after the other.

    python -m extra.bench.scan_layers [--layers 2,80] [--how scanned,unrolled] [--width 64] [--repeat 5]

Each figure is the least of as many processes, which take turns. Cold: of the step with all that it takes to compile it;
compiled: by how much that is more than the same step once more, launched kernel by kernel from plans that are there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from tinygrad import Tensor, TinyJit, nn, scan_layers
from tinygrad.helpers import Context
from tinygrad.nn.state import get_parameters


class Block:
  """A transformer's layer: attention and a network of two layers, each behind a norm."""

  def __init__(self, width: int, heads: int) -> None:
    self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
    self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

  def __call__(self, x: Tensor) -> Tensor:
    batch, length, width = x.shape
    parts = self.qkv(self.first(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
    y = parts[0].scaled_dot_product_attention(parts[1], parts[2], is_causal=True)
    x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
    return x + self.down(self.up(self.second(x)).gelu())


def measure(layers: int, scanned: bool, width: int) -> tuple[float, float, float]:
  """(seconds of the first step, what of these it took to compile it, of a later one that is captured)."""
  Tensor.manual_seed(0)
  blocks = [Block(width, 4) for _ in range(layers)]
  model = scan_layers(blocks) if scanned else lambda x: x.sequential(blocks)
  parameters = [p.requires_grad_().realize() for p in get_parameters(model if scanned else blocks)]
  x = Tensor.randn(4, 64, width).realize()

  def step(x: Tensor) -> list[Tensor]:
    loss = model(x).square().mean()
    return [p.assign(p - 0.01 * g) for p, g in zip(parameters, loss.gradient(*parameters))]

  def once() -> float:
    """Seconds of a step that is not captured."""
    start = time.perf_counter()
    Tensor.realize(*step(x))
    parameters[0].numpy()
    return time.perf_counter() - start

  cold = once()
  compiled = cold - once()
  jitted = TinyJit(step)
  for _ in range(3):
    jitted(x)
  times = []
  for _ in range(10):
    start = time.perf_counter()
    jitted(x)[0].numpy()
    times.append(time.perf_counter() - start)
  return cold, compiled, min(times)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--layers", default="2,80", help="numbers of layers (2,80)")
  parser.add_argument("--how", default="scanned,unrolled", help="the layers are called (scanned,unrolled)")
  parser.add_argument("--width", type=int, default=64, help="of a layer (64)")
  parser.add_argument("--repeat", type=int, default=3, help="processes for each figure (3)")
  parser.add_argument("--one", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.one:
    layers, scanned = map(int, args.one.split(","))
    with Context(TRAINING=1):
      print(*measure(layers, bool(scanned), args.width))
    return
  found: dict[tuple[int, int], list[tuple[float, ...]]] = {}
  for _ in range(args.repeat):
    for layers in map(int, args.layers.split(",")):
      for scanned in [int(how == "scanned") for how in args.how.split(",")]:
        with tempfile.TemporaryDirectory() as cache:
          command = [sys.executable, "-m", "extra.bench.scan_layers", "--one", f"{layers},{scanned}"]
          out = subprocess.run(
            [*command, "--width", str(args.width)], env={**os.environ, "XDG_CACHE_HOME": cache},
            check=True, capture_output=True, text=True,
          )  # fmt: skip
        found.setdefault((layers, scanned), []).append(tuple(map(float, out.stdout.split())))
  print(f"{'layers':>7} {'how':9} {'cold':>8} {'compiled':>9} {'step':>9}")
  for (layers, scanned), rows in found.items():
    cold, compiled, step = (min(column) for column in zip(*rows))
    how = "scanned" if scanned else "unrolled"
    print(f"{layers:7} {how:9} {cold:7.2f}s {compiled:8.2f}s {step * 1e3:7.2f}ms")


if __name__ == "__main__":
  main()
