"""What `scan_layers` saves, and what it costs: a training step of transformer layers, scanned or called one after the
other.

    python -m extra.bench.scan_layers [--layers 2,80] [--width 64] [--repeat 3] [--rounds 15] [--unrolled]

Cold: of the first step of a process with nothing on disk, wall seconds and the processor's; again: of the same step
once more, launched kernel by kernel from plans that are there; compiling is the difference of the processor's. Each
figure is the least of as many processes, which take turns (`--unrolled`: of layers that are called, too). Then
milliseconds of a captured step, of both ways in turn in one process, and the median of what one takes over the other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

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


def training_step(layers: int, scanned: bool, width: int) -> Callable[[], list[Tensor]]:
  """One step of gradient descent, on values that are in memory."""
  Tensor.manual_seed(0)
  blocks = [Block(width, 4) for _ in range(layers)]
  model = scan_layers(blocks) if scanned else lambda x: x.sequential(blocks)
  parameters = [p.requires_grad_().realize() for p in get_parameters(model if scanned else blocks)]
  x = Tensor.randn(4, 64, width).realize()

  def step() -> list[Tensor]:
    loss = model(x).square().mean()
    return [p.assign(p - 0.01 * g) for p, g in zip(parameters, loss.gradient(*parameters))]

  return step


def timed(call: Callable[[], list[Tensor]]) -> tuple[float, float]:
  """(wall seconds, processor's) of a call whose results are there."""
  start, worked = time.perf_counter(), time.process_time()
  made = call()
  Tensor.realize(*made)
  made[0].numpy()
  return time.perf_counter() - start, time.process_time() - worked


def cold(layers: int, scanned: bool, width: int) -> tuple[float, ...]:
  """(wall, processor) of the first step, and of a later one that is not captured."""
  step = training_step(layers, scanned, width)
  first = timed(step)
  again = [timed(step) for _ in range(3)]
  return (*first, *map(min, zip(*again)))


def print_cold(args: argparse.Namespace) -> None:
  found: dict[tuple[int, bool], list[tuple[float, ...]]] = {}
  for _ in range(args.repeat):
    for scanned in (True, False)[: 1 + args.unrolled]:
      for layers in map(int, args.layers.split(",")):
        with tempfile.TemporaryDirectory() as cache:
          command = [sys.executable, "-m", "extra.bench.scan_layers", "--one", f"{layers},{int(scanned)}"]
          out = subprocess.run(
            [*command, "--width", str(args.width)], env={**os.environ, "CACHEDIR": cache},
            check=True, capture_output=True, text=True,
          )  # fmt: skip
        found.setdefault((layers, scanned), []).append(tuple(map(float, out.stdout.split())))
  print(f"{'layers':>7} {'how':9} {'cold':>8} {'processor':>10} {'again':>8} {'processor':>10} {'compiling':>10}")
  for (layers, scanned), rows in found.items():
    wall, work, wall_again, again = (min(column) for column in zip(*rows))
    how = "scanned" if scanned else "unrolled"
    print(f"{layers:7} {how:9} {wall:7.2f}s {work:9.2f}s {wall_again:7.2f}s {again:9.2f}s {work - again:9.2f}s")


def print_steps(args: argparse.Namespace) -> None:
  print(
    f"{'layers':>7} {'scanned':>10} {'unrolled':>10} {'ratio':>7}   {'processor':>10} {'unrolled':>10} {'ratio':>7}"
  )
  for layers in map(int, args.layers.split(",")):
    ways = [TinyJit(training_step(layers, scanned, args.width)) for scanned in (True, False)]
    rows = [[timed(way) for way in ways] for _ in range(3 + args.rounds)][3:]
    text = f"{layers:7}"
    for k in range(2):  # wall, processor
      scanned, unrolled = ([row[i][k] for row in rows] for i in range(2))
      ratio = statistics.median(a / b for a, b in zip(scanned, unrolled))
      text += f" {min(scanned) * 1e3:8.2f}ms {min(unrolled) * 1e3:8.2f}ms {ratio:7.3f}  "
    print(text)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--layers", default="2,80", help="numbers of layers (2,80)")
  parser.add_argument("--width", type=int, default=64, help="of a layer (64)")
  parser.add_argument("--repeat", type=int, default=3, help="processes for each cold figure (3)")
  parser.add_argument("--rounds", type=int, default=15, help="pairs of captured steps (15)")
  parser.add_argument("--unrolled", action="store_true", help="cold figures of layers called one after the other too")
  parser.add_argument("--one", help=argparse.SUPPRESS)
  args = parser.parse_args()
  with Context(TRAINING=1):
    if args.one:
      layers, scanned = map(int, args.one.split(","))
      print(*cold(layers, bool(scanned), args.width))
      return
    print_cold(args)
    print_steps(args)


if __name__ == "__main__":
  main()
