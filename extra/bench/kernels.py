#!/usr/bin/env python3
"""Single kernels through codegen alone, on one core: GFLOP/s, GB/s, and what lowering and compiling cost.

Times are processor time of the calling thread (a busy machine disturbs them less), the best of several runs. The
kernels are built from scalar expressions, as the scheduler builds them.

examples:
  python extra/bench/kernels.py                  all kernels
  python extra/bench/kernels.py matmul conv      those whose name contains a word
  python extra/bench/kernels.py --ir "sum 16M"   also print the LLVM IR
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tinygrad.codegen import lower_kernel
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp

Terms = list[tuple[UOp, int]]


@dataclass(frozen=True, slots=True)
class Kernel:
  """`sizes`: elements of the result and of the sources, all float32. `flops`, `nbytes`: the work of one run."""

  name: str
  ast: UOp
  sizes: tuple[int, ...]
  flops: float = 0
  nbytes: float = 0


def number(n: int) -> UOp:
  return UOp.const(dtypes.index, n)


def ranges(*sizes: int, start: int = 0, kind: AxisKind = AxisKind.LOOP) -> list[UOp]:
  return [UOp.new(Ops.RANGE, dtypes.index, (number(n),), (start + i, kind)) for i, n in enumerate(sizes)]


def dot(terms: Terms) -> UOp:
  out = number(0)
  for r, stride in terms:
    out = UOp.new(Ops.ADD, dtypes.index, (out, UOp.new(Ops.MUL, dtypes.index, (r, number(stride)))))
  return out


def load(slot: int, size: int, terms: Terms, valid: UOp | None = None, shift: int = 0) -> UOp:
  at = UOp.new(Ops.ADD, dtypes.index, (dot(terms), number(shift)))
  src = (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(slot, size)), at)
  index = UOp.new(Ops.INDEX, dtypes.float32, src if valid is None else (*src, valid))
  return UOp.new(Ops.LOAD, dtypes.float32, (index,))


def op(code: Ops, *src: UOp) -> UOp:
  return UOp.new(code, src[0].dtype, src)


def fold(value: UOp, *over: UOp, code: Ops = Ops.ADD) -> UOp:
  return UOp.new(Ops.FOLD, value.dtype, (value, *over), code)


def kernel(terms: Terms, value: UOp, size: int) -> UOp:
  param = UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(0, size))
  index = UOp.new(Ops.INDEX, dtypes.float32, (param, dot(terms)))
  return UOp.new(Ops.SINK, dtypes.void, (UOp.new(Ops.STORE, dtypes.void, (index, value, *(r for r, _ in terms))),))


def matmul(m: int, n: int, k: int, layout: str) -> Kernel:
  """`layout`: N or T (transposed) for each operand."""
  (i, j), (r,) = ranges(m, n), ranges(k, start=2, kind=AxisKind.REDUCE)
  a: Terms = [(i, k), (r, 1)] if layout[0] == "N" else [(r, m), (i, 1)]
  b: Terms = [(r, n), (j, 1)] if layout[1] == "N" else [(j, k), (r, 1)]
  value = fold(op(Ops.MUL, load(1, m * k, a), load(2, k * n, b)), r)
  sizes = (m * n, m * k, k * n)
  return Kernel(
    f"matmul {layout} {m}x{n}x{k}", kernel([(i, n), (j, 1)], value, m * n), sizes, 2 * m * n * k, 4 * sum(sizes)
  )


def convolution(n: int, ci: int, co: int, size: int, k: int, pad: int) -> Kernel:
  out = size + 2 * pad - k + 1
  b, o, h, w = ranges(n, co, out, out)
  c, y, x = ranges(ci, k, k, start=4, kind=AxisKind.REDUCE)
  valid = None
  if pad:
    for p, q in ((h, y), (w, x)):
      at = UOp.new(Ops.ADD, dtypes.index, (p, q))
      for less in ((number(pad - 1), at), (at, number(size + pad))):
        condition = UOp.new(Ops.CMPLT, dtypes.bool, less)
        valid = condition if valid is None else op(Ops.AND, valid, condition)
  image: Terms = [(b, ci * size * size), (c, size * size), (h, size), (y, size), (w, 1), (x, 1)]
  weight: Terms = [(o, ci * k * k), (c, k * k), (y, k), (x, 1)]
  sizes = (n * co * out * out, n * ci * size * size, co * ci * k * k)
  value = fold(op(Ops.MUL, load(1, sizes[1], image, valid, -pad * (size + 1)), load(2, sizes[2], weight)), c, y, x)
  result: Terms = [(b, co * out * out), (o, out * out), (h, out), (w, 1)]
  flops = 2 * sizes[0] * ci * k * k
  return Kernel(f"conv {n}x{ci}-{co} {size}x{size} k{k} pad{pad}", kernel(result, value, sizes[0]), sizes, flops)


def all_kernels() -> Iterator[Kernel]:
  for n in (256, 1000, 1023, 1024, 2048):
    yield matmul(n, n, n, "NN")
  for layout in ("NT", "TN", "TT"):
    yield matmul(1024, 1024, 1024, layout)
  yield matmul(100, 288, 50000, "TN")
  yield matmul(1, 4096, 4096, "NN")
  yield matmul(4096, 1, 4096, "NN")
  for shape in ((8, 64, 64, 28, 3, 1), (32, 32, 64, 26, 3, 0), (8, 256, 256, 7, 3, 1), (32, 1, 32, 28, 5, 0)):
    yield convolution(*shape)
  n = 1 << 24
  (i,), (k,) = ranges(n), ranges(n, start=1, kind=AxisKind.REDUCE)
  yield Kernel(
    "add 16M", kernel([(i, 1)], op(Ops.ADD, load(1, n, [(i, 1)]), load(2, n, [(i, 1)])), n), (n, n, n), n, 12 * n
  )
  yield Kernel("sum 16M", kernel([], fold(load(1, n, [(k, 1)]), k), 1), (1, n), n, 4 * n)
  n = 4096
  (i, j), (k,) = ranges(n, n), ranges(n, start=2, kind=AxisKind.REDUCE)
  yield Kernel(
    "row sums 4096", kernel([(i, 1)], fold(load(1, n * n, [(i, n), (k, 1)]), k), n), (n, n * n), n * n, 4 * n * n
  )
  yield Kernel(
    "column sums 4096", kernel([(i, 1)], fold(load(1, n * n, [(k, n), (i, 1)]), k), n), (n, n * n), n * n, 4 * n * n
  )
  yield Kernel(
    "transpose 4096", kernel([(i, n), (j, 1)], load(1, n * n, [(j, n), (i, 1)]), n * n), (n * n, n * n), 0, 8 * n * n
  )
  n = 512
  (i, j), (k,) = ranges(n * 8, n), ranges(n, start=2, kind=AxisKind.REDUCE)
  top = fold(load(1, 8 * n * n, [(i, n), (k, 1)]), k, code=Ops.MAX)
  total = fold(op(Ops.EXP, op(Ops.SUB, load(1, 8 * n * n, [(i, n), (k, 1)]), top)), k)
  value = op(Ops.FDIV, op(Ops.EXP, op(Ops.SUB, load(1, 8 * n * n, [(i, n), (j, 1)]), top)), total)
  yield Kernel("softmax 4096x512", kernel([(i, n), (j, 1)], value, 8 * n * n), (8 * n * n, 8 * n * n), 0, 64 * n * n)
  n = 1 << 16
  (i,) = ranges(n)
  for code in (Ops.EXP, Ops.LOG, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF):
    yield Kernel(f"{code.name.lower()} 64K", kernel([(i, 1)], op(code, load(1, n, [(i, 1)])), n), (n, n), n, 8 * n)


def measure(k: Kernel, runs: int, show: bool) -> str:
  """One line of the table."""
  device = Device["CPU"]
  marks = [time.thread_time()]
  linear = lower_kernel(k.ast, device.target)
  marks.append(time.thread_time())
  rendered = device.render(linear, "kernel")
  marks.append(time.thread_time())
  program = device.compile(rendered, "kernel")
  marks.append(time.thread_time())
  if show:
    print(rendered.source)
  handles = []
  for n in k.sizes:
    handles.append(device.alloc(4 * n))
    device.copyin(handles[-1], memoryview(np.random.default_rng(0).random(n, dtype=np.float32)))
  call = device.bind(program, handles)
  function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(program.address)
  function(ctypes.addressof(call.words))
  best = float("inf")
  for _ in range(runs):
    start = time.thread_time()
    function(ctypes.addressof(call.words))
    best = min(best, time.thread_time() - start)
  for handle in handles:
    device.free(handle, handle.nbytes)
  lower, render, compiled = (1e3 * (b - a) for a, b in zip(marks, marks[1:]))
  speed = f"{k.flops / best / 1e9:9.1f}" if k.flops else " " * 9
  spent = f"{lower:8.1f} {render:8.1f} {compiled:8.1f} {len(linear):7d}"
  return f"{k.name:32s} {best * 1e3:9.3f} {speed} {k.nbytes / best / 1e9:8.1f} {spent}"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("words", nargs="*", help="run the kernels whose name contains one of these")
  parser.add_argument("--runs", type=int, default=5, help="runs of each kernel, the best counts (default 5)")
  parser.add_argument("--ir", action="store_true", help="print the LLVM IR of each kernel")
  args = parser.parse_args()
  chosen = [k for k in all_kernels() if not args.words or any(w in k.name for w in args.words)]
  if not chosen:
    sys.exit(f"no kernel contains {', '.join(args.words)}; there are: {', '.join(k.name for k in all_kernels())}")
  with tempfile.TemporaryDirectory() as cache:
    os.environ["CACHEDIR"] = cache  # so that compiling is measured
    print(f"{'kernel':32s} {'ms':>9s} {'GFLOP/s':>9s} {'GB/s':>8s} {'lower ms':>8s}   render  compile     ops")
    for k in chosen:
      print(measure(k, args.runs, args.ir), flush=True)


if __name__ == "__main__":
  main()
