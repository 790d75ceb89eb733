"""What workloads cost, counted in their linear code instead of timed: the same figures on every machine.

    python -m extra.bench.counts                    # every workload, held against test/data/counts.json
    python -m extra.bench.counts gpt4_train softmax # those whose name contains a word
    python -m extra.bench.counts --write            # take today's figures as the baseline

Each workload is scheduled and lowered for one thread of a fixed processor (AVX-512 registers), on simulated devices:
nothing runs. The second call is counted, when optimizers have their state.

  kernels   kernels and copies, once for all devices
  loads     bytes that instructions read from buffers: what a loop reads again counts again, masked lanes too
  stores    bytes that instructions write to buffers
  scratch   bytes to and from staged operands
  flops     arithmetic operations on floats, after functions are taken apart; a multiply-add is two
  bytes     memory that kernels touch, each byte once a kernel
  passes    buffers that kernels go over, counted once a kernel: passes over memory

It returns 1 if a figure has grown. test/test_counts.py holds the project to the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import problems
import work_tinygrad
from rich.console import Console
from rich.table import Table

from tinygrad import Context, Device, Tensor, dtypes, nn
from tinygrad.debug.estimate import COUNTED
from tinygrad.device import Rendered, Target
from tinygrad.engine.run import Run, recorders
from tinygrad.helpers import prod, tqdm
from tinygrad.runtime import null
from tinygrad.uop import Ops, UOp

BASELINE = Path(__file__).parents[2] / "test" / "data" / "counts.json"
KINDS = ("kernels", "loads", "stores", "scratch", "flops", "bytes", "passes")
TARGET = Target("CPU", vector_bytes=64, vector_registers=32, scratch=64 << 20, shares=True)
Counts = dict[str, int]


def count(linear: Sequence[UOp]) -> Counter[str]:
  """Loads, stores, scratch and flops of one run of linear code; loops of symbolic length by their bounds."""
  found: Counter[str] = Counter()
  times = 1
  loops: list[int] = []
  for u in linear:
    if u.op is Ops.RANGE:
      loops.append(times)
      times *= max(int(u.src[0].vmax), 0)
    elif u.op is Ops.ENDRANGE:
      times = loops.pop()
    elif u.op in (Ops.LOAD, Ops.STORE) and u.src[0].op is Ops.INDEX:
      value = u if u.op is Ops.LOAD else u.src[1]
      kind = "scratch" if u.src[0].src[0].op is Ops.SCRATCH else "loads" if u.op is Ops.LOAD else "stores"
      found[kind] += times * value.dtype.count * value.dtype.scalar().itemsize
    elif u.op in COUNTED and dtypes.is_float(u.dtype.scalar()):
      found["flops"] += times * u.dtype.count
    elif u.op is Ops.FOLD and dtypes.is_float(u.dtype):
      found["flops"] += times * (u.src[0].dtype.count - 1)
  return found


class Counting(null.NullDevice):
  """A simulated device whose programs are the counts of their code."""

  target = TARGET

  def render(self, linear: list[UOp], name: str) -> Rendered:
    return Rendered(json.dumps(count(linear)))

  def compile(self, rendered: Rendered, name: str) -> Any:
    return json.loads(rendered.source)


def of_runs(runs: Sequence[Run]) -> Counts:
  """The sum over the kernels and copies of what was realized."""
  total: Counter[str] = Counter()
  for run in runs:
    for item, program in zip(run.plan.items, run.plan.programs):
      total["kernels"] += 1
      total["passes"] += len(item.slots)
      if program is None:
        assert not isinstance(item.kernel, UOp)
        total["bytes"] += 2 * int(prod(item.kernel.shape)) * item.kernel.dtype.itemsize
      else:
        total["bytes"] += program.nbytes
        total.update(program.code)
  return {kind: total[kind] for kind in KINDS}


def counted(run: Callable[[], Any]) -> Counts:
  """Of the second call."""
  run()
  runs: list[Run] = []
  recorders.append(runs.append)
  try:
    run()
  finally:
    recorders.pop()
  return of_runs(runs)


# ---------------------------------------------------------------- workloads


def empty(*shape: int, **options: Any) -> Tensor:
  return Tensor.empty(*shape, **options).realize()


def call(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], Callable[[], Any]]:
  """`f` of new Tensors, realized."""

  def prepare() -> Callable[[], Any]:
    xs = [empty(*shape) for shape in shapes]
    return lambda: Tensor.realize(*work_tinygrad.results(f(*xs)))

  return prepare


def gradients(f: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Callable[[], Callable[[], Any]]:
  """The gradients of `f` with respect to its arguments, of a cotangent that is the last of `shapes`."""
  return call(lambda *xs: tuple((f(*xs[:-1]) * xs[-1]).sum().gradient(*xs[:-1])), *shapes)


def adamw() -> Callable[[], Any]:
  xs = [empty(*shape, requires_grad=True) for shape in ((256, 512), (512,), (512, 256), (256,))]
  gs = [empty(*x.shape) for x in xs]
  optimizer = nn.optim.AdamW(xs, lr=1e-3)

  def step() -> None:
    with Tensor.train():
      for x, g in zip(xs, gs):
        x.grad = g
      optimizer.step()

  return step


def lstm_step(x: Tensor, h: Tensor, c: Tensor, wi: Tensor, wh: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
  i, f, g, o = (x @ wi.transpose() + h @ wh.transpose() + b).chunk(4, dim=-1)
  c = f.sigmoid() * c + i.sigmoid() * g.tanh()
  return o.sigmoid() * c.tanh(), c


def conv(**options: Any) -> Callable[..., Tensor]:
  return lambda x, w: x.conv2d(w, **options)


def attention(causal: bool = False) -> Callable[..., Tensor]:
  return lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal)


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
  return x.layernorm() * weight + bias


ROWS, HEADS, IMAGE = (512, 1024), (2, 4, 256, 64), (8, 32, 28, 28)
MORE: dict[str, Callable[[], Callable[[], Any]]] = {
  "layernorm": call(norm, ROWS, (1024,), (1024,)),
  "layernorm_backward": gradients(norm, ROWS, (1024,), (1024,), ROWS),
  "softmax_backward": gradients(lambda x: x.softmax(-1), ROWS, ROWS),
  "cross_entropy_backward": call(
    lambda x, y: x.sparse_categorical_crossentropy(y.cast(dtypes.int32)).gradient(x)[0], ROWS, (512,)
  ),
  "attention": call(attention(), HEADS, HEADS, HEADS),
  "attention_causal": call(attention(True), HEADS, HEADS, HEADS),
  "attention_backward": gradients(attention(), HEADS, HEADS, HEADS, HEADS),
  "conv3x3": call(conv(padding=1), IMAGE, (64, 32, 3, 3)),
  "conv3x3_backward": gradients(conv(padding=1), IMAGE, (64, 32, 3, 3), (8, 64, 28, 28)),
  "conv1x1": call(conv(), IMAGE, (64, 32, 1, 1)),
  "conv_stride2": call(conv(stride=2, padding=1), IMAGE, (64, 32, 3, 3)),
  "conv_dilated": call(conv(dilation=2), IMAGE, (64, 32, 3, 3)),
  "conv_grouped": call(conv(groups=4, padding=1), IMAGE, (64, 8, 3, 3)),
  "conv_depthwise_backward": gradients(conv(groups=32, padding=1), IMAGE, (32, 1, 3, 3), IMAGE),
  "max_pool_backward": gradients(lambda x: x.max_pool2d(2), IMAGE, (8, 32, 14, 14)),
  "adamw_step": adamw,
  "lstm_step": call(lstm_step, *[(64, 256)] * 3, *[(1024, 256)] * 2, (1024,)),
  "gather_backward": gradients(lambda x: x[Tensor.arange(0, 1000, 3)], (1000, 64), (334, 64)),
  "cumsum_axis0": call(lambda x: x.cumsum(0), ROWS),
  "argmax_axis0": call(lambda x: x.argmax(0), ROWS),
  "transpose": call(lambda x: x.transpose().contiguous(), ROWS),
  "variance": call(lambda x: x.var(-1), ROWS),
  "topk": call(lambda x: x.topk(8)[0], (16, 1024)),
}


def all_workloads() -> dict[str, Callable[[], Callable[[], Any]]]:
  """By name, what prepares a workload: those of the benchmark, on zeros, and more."""
  zeros = lambda *shape, **_: np.zeros(shape, np.float32)  # noqa: E731
  problems.floats = work_tinygrad.array = zeros
  null.open_device = Counting
  bench = {name: lambda make=make: make().run for name, make in work_tinygrad.WORKLOADS.items()}
  return bench | MORE


def measure(names: Sequence[str]) -> Iterator[tuple[str, Counts]]:
  """The counts of workloads, in their order."""
  every = all_workloads()
  with Context(CPU_THREADS=1, DEV="NULL"):
    for name in names:
      assert type(Device["NULL"]) is Counting, "the device was opened before"
      yield name, counted(every[name]())


def compare(now: dict[str, Counts], baseline: dict[str, Counts]) -> tuple[list[str], list[str]]:
  """What has grown (or is new), and what has fallen (or is gone)."""
  grown, fallen = [], []
  for name, counts in now.items():
    if name not in baseline:
      grown.append(f"{name}: not in the baseline")
      continue
    for kind, value in counts.items():
      before = baseline[name].get(kind, 0)
      if value != before:
        ratio = f"{value / before:.3f} times" if before else "new"
        (grown if value > before else fallen).append(f"{name}: {kind} {before} -> {value} ({ratio})")
  return grown, fallen


def report(grown: Sequence[str], fallen: Sequence[str]) -> str:
  """The differences, and what is to be done about them."""
  text = "".join(f"  {line}\n" for line in grown)
  if grown:
    text = (
      f"these counts have grown:\n{text}  fix: find out why; if it is worth it, python -m extra.bench.counts --write\n"
    )
  if fallen:
    text += "these counts have fallen:\n" + "".join(f"  {line}\n" for line in fallen)
    text += "  fix: keep it so: python -m extra.bench.counts --write\n"
  return text


def table(counts: dict[str, Counts]) -> Table:
  out = Table(box=None, pad_edge=False)
  out.add_column("workload", no_wrap=True)
  for kind in KINDS:
    out.add_column(kind, justify="right", no_wrap=True)
  for name, row in counts.items():
    out.add_row(name, *(short(row[kind]) for kind in KINDS))
  return out


def short(n: float) -> str:
  """1234567 -> 1.23M"""
  for unit in ("", "k", "M", "G"):
    if n < 1000:
      return f"{n:.3g}{unit}"
    n /= 1000
  return f"{n:.3g}T"


def main() -> int:
  parser = argparse.ArgumentParser(
    prog="python -m extra.bench.counts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("words", nargs="*", metavar="WORD", help="count the workloads whose name contains one of these")
  parser.add_argument("--write", action="store_true", help="write the figures to the baseline")
  parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="FILE", help="test/data/counts.json")
  args, console = parser.parse_args(), Console()
  every = all_workloads()
  names = [n for n in every if not args.words or any(w in n for w in args.words)]
  if not names:
    parser.error(f"no workload contains {', '.join(args.words)}\n  fix: a part of one of {' '.join(every)}")
  now: dict[str, Counts] = {}
  for name, counts in tqdm(measure(names), "counting", total=len(names), leave=False):
    now[name] = counts
  console.print(table(now))
  baseline = json.loads(args.baseline.read_text()) if args.baseline.exists() else {}
  grown, fallen = compare(now, baseline)
  if args.write:
    kept = {n: now.get(n, baseline.get(n)) for n in every if n in now or n in baseline}
    args.baseline.write_text(
      "{\n" + ",\n".join(f" {json.dumps(n)}: {json.dumps(row)}" for n, row in kept.items()) + "\n}\n"
    )
    console.print(f"wrote {len(kept)} workloads: {len(grown)} counts higher or new, {len(fallen)} lower")
    return 0
  console.print(report(grown, fallen) or "as in the baseline", highlight=False, soft_wrap=True, markup=False)
  return 1 if grown else 0


if __name__ == "__main__":
  sys.exit(main())
