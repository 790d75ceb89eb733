"""Random programs as models are made of them, at sizes of which kernels make blocks and tiles, beside the interpreter.

    python -m extra.fuzz_programs --seconds 600
    CPU_THREADS=1 python -m extra.fuzz_programs --seed 5061
    python -m extra.fuzz_programs --device EMULATED --capability 9.0 --units 132
    CL_GRID=1 python -m extra.fuzz_programs --small --device CL
    python -m extra.fuzz_programs --small --orders
    python -m extra.fuzz_programs --small --thresholds

A program is a product of matrices with what comes before and after it, an attention, a row's softmax, norm or extremum,
a convolution, a lookup or a running sum, in float64, float32, float16 or bfloat16, and in two of five also its
gradients. It is computed on a processor, whose scratch memory is not a number before each program, or on an emulated
CUDA driver (test/runtime/cuda_emulator.py, which needs g++), which notes what a GPU would let pass: races, memory
beyond its end, barriers that not all threads come to. The oracle is the interpreter (`DEV=PYTHON`) in float64, given
the same numbers. With --small, programs are those of extra/small_programs.py. With --orders, the pieces of kernels run
on a processor, for one to seven threads, at once and one after another in several orders: the bits are the same, and
the values those of one thread. With --thresholds, what pays is drawn for each program (extra/thresholds.py), which so
takes the ways of larger ones. Programs with the seeds that follow --seed run until the time is over; each that fails is
printed. Exit status: 0 if all agreed, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from extra.orders import ORDERS, eagerly_shared, in_order
from extra.small_programs import SMALL
from extra.thresholds import drawn_thresholds
from tinygrad import Context, Device, Tensor, Variable, dtypes
from tinygrad.dtype import DType
from tinygrad.helpers import tqdm
from tinygrad.runtime import cpu
from tinygrad.uop import Ops

# of a result's greatest magnitude; a sum of a row is as good as its terms
ROUGH = {dtypes.float64: 1e-11, dtypes.float32: 1e-4, dtypes.float16: 1.2e-2, dtypes.bfloat16: 5e-2}
TF32 = 5e-2
THREADS = range(1, 8)
SIZES = (1, 3, 7, 16, 17, 32, 33, 48, 63, 64, 65, 80, 96, 100, 127, 128, 130, 131, 160, 192, 200, 250, 256, 333)
WHOLE = (64, 128, 192, 256)  # of which matrix cores have whole blocks
POISONED = 4 << 20  # bytes at either end of a thread's scratch memory

Values = list[Tensor]  # of a program's inputs
Body = Callable[[Values], Tensor | list[Tensor]]


class Program:
  """A body, and the shapes, type and scale of its inputs, by a seed."""

  def __init__(self, seed: int, bodies: Sequence[Callable[[Program], Body]] = ()) -> None:
    self.rng = random.Random(seed)
    self.final = False  # what steps of an optimizer leave, places and whole numbers have no gradients
    self.among: Sequence[float] = ()  # what the inputs' elements are, else normally distributed
    self.loose = 1.0  # how much rougher it may be, for what is rounded on its way
    self.dtype: DType = self.rng.choice(tuple(ROUGH))
    self.shapes: list[tuple[tuple[int, ...], float]] = []
    self.words: list[str] = [self.dtype.name]
    self.body = self.rng.choice(bodies or BODIES)(self)
    self.differentiates = self.rng.random() < 0.4 and not self.final
    self.tf32 = self.rng.random() < 0.3

  def __str__(self) -> str:
    shapes = " ".join(str(list(shape)) for shape, _ in self.shapes)
    more = ["gradients"] * self.differentiates + ["tf32"] * self.tf32
    return f"{' '.join([*self.words, *more])} of {shapes}"

  def pick(self, *xs: Any) -> Any:
    return self.rng.choice(xs)

  def said(self, *xs: Any) -> Any:
    """One of them, which is told of."""
    x = self.pick(*xs)
    self.words.append(str(x))
    return x

  def size(self) -> int:
    return int(self.pick(*WHOLE) if self.rng.random() < 0.5 else self.pick(*SIZES))

  @property
  def rough(self) -> float:
    """How far a value may be from the exact one, of its greatest element."""
    return max(ROUGH.get(self.dtype, 0), TF32 if self.tf32 else 0) * self.loose

  def input(self, *shape: int, scale: float = 1.0) -> int:
    self.shapes.append((shape, scale))
    return len(self.shapes) - 1

  def arrays(self, seed: int) -> list[np.ndarray]:
    made = np.random.default_rng(seed)
    if self.among:
      return [made.choice(self.among, shape) for shape, _ in self.shapes]
    return [made.standard_normal(shape) * scale for shape, scale in self.shapes]

  def results(self, inputs: Values) -> list[Tensor]:
    """The value, and its gradients, of a cotangent that is drawn; or its values, which have none."""
    out = self.body(inputs)
    if isinstance(out, list):
      return out
    below = set(out.uop.toposort(lambda u: u.op is not Ops.DETACH))
    targets = [x for x in inputs if x.uop in below]
    if not self.differentiates or not targets or any(not isinstance(n, int) for n in out.shape):
      return [out]
    up = Tensor(np.random.default_rng(1).standard_normal(out.shape), device=inputs[0].device, dtype=out.dtype)
    return [out, *out.gradient(*targets, gradient=up)]


# ---------------------------------------------------------------- bodies


def product(p: Program) -> Body:
  batch = p.pick((), (), (2,))
  m, k, n, layout = p.size(), p.size(), p.size(), p.said("NN", "NT", "TN", "TT")
  x = p.input(*batch, *((k, m) if layout[0] == "T" else (m, k)))
  y = p.input(*batch, *((n, k) if layout[1] == "T" else (k, n)), scale=k**-0.5)
  bias, beside, wide = p.input(n), p.input(*batch, m, n), p.input(n, p.pick(64, 128, 33), scale=n**-0.5)
  what = p.said(*AFTER)

  def body(v: Values) -> Tensor:
    a, b = v[x], v[y]
    out = (a.transpose(-1, -2) if layout[0] == "T" else a) @ (b.transpose(-1, -2) if layout[1] == "T" else b)
    return AFTER[what](out, v[bias], v[beside], v[wide])

  return body


AFTER: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
  "alone": lambda x, b, y, w: x,
  "gelu": lambda x, b, y, w: (x + b).gelu(),
  "residual": lambda x, b, y, w: x + y,
  "softmax": lambda x, b, y, w: x.softmax(-1),
  "norm": lambda x, b, y, w: x.layernorm(),
  "masked": lambda x, b, y, w: (Tensor.arange(x.shape[-1], device=x.device) < x.shape[-1] // 2).where(x, 0),
  "sum": lambda x, b, y, w: x.sum(-1),
  "part": lambda x, b, y, w: x[..., x.shape[-2] // 3 :, :] * 2 + 1,
  "wide": lambda x, b, y, w: x.float() if x.dtype.itemsize < 4 else x,
  "another": lambda x, b, y, w: x @ w,
  "gated": lambda x, b, y, w: (x.silu() * y) @ w,
  "attended": lambda x, b, y, w: x.softmax(-1) @ w,
}


def attention(p: Program) -> Body:
  causal = p.said("causal", "whole") == "causal"
  queries = p.pick(1, 5, 16, 63, 64, 65, 96, 128, 130, 200, 300)
  keys = queries if causal else p.pick(16, 33, 64, 128, 129, 200)
  heads, width = (p.pick(1, 2), p.pick(1, 2, 4)), p.pick(16, 32, 64, 128)
  q, k, v = p.input(*heads, queries, width), p.input(*heads, keys, width), p.input(*heads, keys, width)
  return lambda x: x[q].scaled_dot_product_attention(x[k], x[v], is_causal=causal)


def decoding(p: Program) -> Body:
  """Of one token, to those before it."""
  heads, width, most = p.pick(2, 4), p.pick(32, 64, 128), p.pick(64, 300)
  q, k, v = p.input(1, heads, 1, width), p.input(1, heads, most, width), p.input(1, heads, most, width)
  at = Variable("at", 0, most - 1).bind(p.said(0, most // 2, most - 1))
  return lambda x: x[q].scaled_dot_product_attention(x[k][:, :, : at + 1], x[v][:, :, : at + 1])


def rows(p: Program) -> Body:
  x = p.input(p.pick(1, 2, 5, 33, 130), p.pick(3, 31, 64, 100, 257, 1000, 1024, 3000, 4100, 9000))
  what = p.said(*OF_ROWS)
  return lambda v: OF_ROWS[what](v[x])


OF_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
  "softmax": lambda x: x.softmax(-1),
  "softmax of columns": lambda x: x.softmax(0),
  "log_softmax": lambda x: x.log_softmax(-1),
  "logsumexp": lambda x: x.logsumexp(-1),
  "layernorm": lambda x: x.layernorm(),
  "rms": lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt(),
  "var": lambda x: x.var(-1, correction=0),
  "var of columns": lambda x: x.var(0, correction=0),
  "max": lambda x: x.detach().max(-1),  # equal elements of narrow types share its gradient
  "sum": lambda x: x.sum(-1),
  "sum of columns": lambda x: x.sum(0),
  "cumsum": lambda x: x.float().cumsum(-1) if x.dtype.itemsize < 4 else x.cumsum(-1),
}


def convolution(p: Program) -> Body:
  batch, channels, out, side = p.pick(1, 2), p.pick(1, 3, 8, 16), p.pick(16, 32), p.pick(5, 8, 13)
  kernel, stride, padding = p.pick(1, 3, 5), p.pick(1, 2), p.pick(0, 1)
  groups = channels if channels in (1, 8, 16) and p.rng.random() < 0.3 else 1
  x = p.input(batch, channels, side, side)
  w = p.input(out, channels // groups, kernel, kernel, scale=(channels * kernel**2) ** -0.5)
  p.words.append(f"conv stride {stride} padding {padding} groups {groups}")
  return lambda v: v[x].conv2d(v[w], groups=groups, stride=stride, padding=padding)


def lookup(p: Program) -> Body:
  places, updates = p.pick(5, 64, 300), p.pick(3, 50, 400)
  table, index = p.input(places, p.pick(1, 16, 33)), [p.rng.randrange(places) for _ in range(updates)]
  p.words.append(f"{updates} rows")
  return lambda v: v[table][Tensor(index, device=v[table].device)]


def mlp(p: Program) -> Body:
  k, n = p.pick(64, 128), p.pick(64, 128, 256)
  x, up, down = p.input(p.size(), k), p.input(k, n, scale=k**-0.5), p.input(n, k, scale=n**-0.5)
  p.words.append("mlp")
  return lambda v: v[x] + (v[x].layernorm() @ v[up]).silu() @ v[down]


def first_rows(p: Program) -> Body:
  """Of a matrix, as many as a variable says."""
  x, w = p.input(40, 64), p.input(64, 64, scale=0.125)
  n = Variable("n", 1, 40).bind(p.said(1, 7, 33, 40))
  return lambda v: (v[x][:n] @ v[w]).softmax(-1).sum(0)


BODIES = (product, product, product, attention, attention, decoding, rows, rows, convolution, lookup, mlp, first_rows)

# ---------------------------------------------------------------- running


def poison(device: Any, nbytes: int) -> None:
  """What kernels of a processor have as scratch memory is not a number, so far from either end: one that reads what it
  has not written is seen. Other devices have none that outlives a kernel. What still runs ends first."""
  if not isinstance(device, cpu.CPU):
    return
  device.synchronize()
  for memory in device.arenas:
    for first in (0, memory.nbytes - nbytes):
      ctypes.memset(memory.address + first, 0xFF, nbytes)


def difference(x: np.ndarray, y: np.ndarray) -> float:
  """How far x is from y, of its greatest finite element; whole numbers, and what is not finite, are the same or not."""
  finite = np.isfinite(y)
  if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or (y.dtype.kind != "f" and not np.array_equal(x, y)):
    return math.inf
  x, y = (some[finite].astype(np.float64) for some in (x, y))
  return float(np.abs(x - y).max(initial=0)) / max(float(np.abs(y).max(initial=0)), 1e-3)


def faults(seed: int, device: str, driver: Any = None, bodies: Sequence[Callable[[Program], Body]] = ()) -> list[str]:
  """What is wrong with a program, if anything."""
  p, out = Program(seed, bodies), list[str]()
  made = [Tensor(x, device=device, dtype=p.dtype).realize() for x in p.arrays(seed)]
  with Context(ALLOW_TF32=int(p.tf32), PLAN_CACHE=0):
    found = p.results(made)
    poison(Device[device], POISONED)
    Tensor.realize(*found)
    got = [x.numpy() for x in found]
  exact = [Tensor(x.numpy().astype(np.float64) if dtypes.is_float(x.dtype) else x, device="PYTHON") for x in made]
  want = [x.numpy() for x in p.results(exact)]
  for i, (x, y) in enumerate(zip(got, want, strict=True)):
    what = f"the gradient by input {i - 1}" if i and not p.final else f"value {i}" if i else "the value"
    if x.shape != y.shape:
      out.append(f"{what} has shape {x.shape}, not {y.shape}")
    elif not (error := difference(x, y)) <= p.rough * (3 if i else 1):
      out.append(f"{what} is {error:.1e} off, of its greatest element")
  if driver is not None:
    out += dict.fromkeys(driver.faults)
    driver.faults.clear()
  return out


def in_orders(p: Program, seed: int) -> list[str]:
  """What is wrong with its results if the pieces of its kernels run in other orders, by several numbers of threads."""
  out, alone = list[str](), list[np.ndarray]()
  made = [Tensor(x, dtype=p.dtype).realize() for x in p.arrays(seed)]

  def computed(threads: int, order: str) -> list[np.ndarray]:
    with Context(ALLOW_TF32=int(p.tf32), PLAN_CACHE=0, CPU_THREADS=threads), in_order(order):
      found = p.results(made)
      poison(Device["CPU"], POISONED)
      Tensor.realize(*found)
      return [x.numpy() for x in found]

  with eagerly_shared():
    for threads in THREADS:
      first, *others = (computed(threads, order) for order in ORDERS[: None if alone else 1])
      alone = alone or first
      if far := [i for i, (x, y) in enumerate(zip(first, alone, strict=True)) if not difference(x, y) <= 3 * p.rough]:
        out.append(f"results {far} of {threads} threads are others than those of one")
      for order, other in zip(ORDERS[1:], others):
        if differing := [i for i, (x, y) in enumerate(zip(first, other, strict=True)) if x.tobytes() != y.tobytes()]:
          out.append(f"the bits of results {differing} with {threads} threads differ, {order}")
  return out


def emulated(capability: str, units: int) -> Any:
  """The driver of devices EMULATED:i, a GPU of that capability with so many multiprocessors."""
  sys.path.insert(0, str(Path(__file__).parents[1] / "test" / "runtime"))
  import cuda_emulator

  driver = cuda_emulator.install(devices=2).driver
  major, minor = capability.split(".")
  driver.capability, driver.units, driver.shared = (int(major), int(minor)), units, 227 << 10
  return driver


def options(module: str, text: str | None, devices: str) -> argparse.ArgumentParser:
  """Of a module that runs programs by their seeds, from `--seed` on."""
  parser = argparse.ArgumentParser(
    f"python -m {module}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
  parser.add_argument("--seed", type=int, default=int(time.time()), help="the first program (by the clock)")
  parser.add_argument("--count", type=int, default=1 << 60, help="how many programs at most")
  parser.add_argument("--device", default="CPU", help=f"{devices} or another that computes (CPU)")
  return parser


def seeds(asked: argparse.Namespace) -> Iterator[int]:
  """The seeds of the programs that are asked for, at least one, until the time is over."""
  end = time.monotonic() + asked.seconds
  with tqdm(desc="programs", unit="program") as bar:
    for seed in range(asked.seed, asked.seed + asked.count):
      if seed > asked.seed and time.monotonic() >= end:
        return
      yield seed
      bar.update(1)


def main(arguments: list[str] | None = None) -> int:
  parser = options("extra.fuzz_programs", __doc__, "CPU, EMULATED")
  parser.add_argument("--capability", default="9.0", help="of an emulated GPU (9.0)")
  parser.add_argument("--units", type=int, default=132, help="its multiprocessors, by which work is cut (132)")
  parser.add_argument("--small", action="store_true", help="programs of a few elements")
  parser.add_argument("--orders", action="store_true", help="pieces of kernels in several orders, on a processor")
  parser.add_argument("--thresholds", action="store_true", help="what pays is drawn for each program")
  asked = parser.parse_args(arguments)
  bodies = SMALL if asked.small else BODIES
  driver = emulated(asked.capability, asked.units) if asked.device == "EMULATED" else None
  done = failed = 0
  for seed in seeds(asked):
    done += 1
    p = Program(seed, bodies)
    try:
      with drawn_thresholds(seed, asked.device) if asked.thresholds else contextlib.nullcontext():
        found = in_orders(p, seed) if asked.orders else faults(seed, asked.device, driver, bodies)
    except Exception as e:
      found = [f"{type(e).__name__}: {e}"]
    if found:
      failed += 1
      how = "".join(f" --{name}" for name in ("small", "orders", "thresholds") if getattr(asked, name))
      print(f"--seed {seed} --count 1{how}: {p}: {'; '.join(found)}")
  print(f"{done} programs from --seed {asked.seed} on {asked.device}, {failed} failed")
  return int(failed > 0)


if __name__ == "__main__":
  sys.exit(main())
