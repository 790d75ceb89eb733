"""`python -m extra.bench.sweep --torch VENV [CASE ...]`: a hundred operations of ordinary and odd shapes, here and in
PyTorch, side by side.

Each framework runs in one process; for every case the two take turns, call by call, and the medians and bests are
printed, the worst ratio first. `--one-thread` gives both one thread and counts processor time, which the load of the
machine changes less. Results are compared, too: `differs` stands where they are not close.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
  from extra.bench.workers import Worker

ROUNDS, SECONDS = 10, 2.0  # calls of each, and after how long a case stops calling, with at least 7
PAUSE = 0.05  # seconds before each call: threads of the other that spin when its call is done are asleep by then

# name -> (inputs a, b, c, d; the expression; PyTorch's, where it is another). Inputs are float32 unless a type is
# named; `int64<n` are below n
CASES: dict[str, tuple[str, ...]] = {
  "mm_256": ("256x256, 256x256", "a@b"),
  "mm_384x1000x777": ("384x777, 777x1000", "a@b"),
  "mm_tn_512": ("512x512, 512x512", "a.transpose(0,1)@b"),
  "mm_nt_768": ("768x768, 768x768", "a@b.transpose(0,1)"),
  "mm_tt_700": ("700x700, 700x700", "a.transpose(0,1)@b.transpose(0,1)"),
  "mm_4096x64x4096": ("4096x64, 64x4096", "a@b"),
  "mm_64x4096x64": ("64x4096, 4096x64", "a@b"),
  "mm_8x4096x4096": ("8x4096, 4096x4096", "a@b"),
  "mm_8x4096x4096_nt": ("8x4096, 4096x4096", "a@b.transpose(0,1)"),
  "mm_100x768_nt": ("100x768, 768x768", "a@b.transpose(0,1)"),
  "vm_4096": ("1x4096, 4096x4096", "a@b"),
  "mv_1000x3000": ("1000x3000, 3000", "a@b"),
  "bmm_64x32x32": ("64x32x32, 64x32x32", "a@b"),
  "bmm_1000x8x8": ("1000x8x8, 1000x8x8", "a@b"),
  "bmm_12x128x64_nt": ("12x128x64, 12x128x64", "a@b.transpose(1,2)"),
  "linear_gelu": ("256x512, 2048x512, 2048", "(a@b.transpose(0,1)+c).gelu()", "F.gelu(F.linear(a,b,c))"),
  "sum_all": ("3000x3001", "a.sum()"),
  "sum_0": ("3000x3001", "a.sum(0)"),
  "sum_1": ("3000x3001", "a.sum(1)"),
  "sum_mid": ("100x200x300", "a.sum(1)"),
  "mean_02": ("64x128x400", "a.mean((0,2))"),
  "max_0": ("2000x2000", "a.max(0)", "a.max(0).values"),
  "argmax_0": ("2000x2000", "a.argmax(0)"),
  "var_1": ("2000x2000", "a.var(1)"),
  "norm": ("4000x1000", "(a*a).sum(1).sqrt()"),
  "logsumexp": ("2000x2000", "a.logsumexp(1)"),
  "softmax_odd": ("1000x1111", "a.softmax(-1)"),
  "softmax_0": ("1000x1000", "a.softmax(0)"),
  "softmax_small": ("100000x10", "a.softmax(-1)"),
  "log_softmax_50k": ("32x50257", "a.log_softmax(-1)"),
  "layernorm_768": ("2048x768", "a.layernorm()", "F.layer_norm(a,(768,))"),
  "rmsnorm": ("2048x1024, 1024", "a*(a.square().mean(-1,keepdim=True)+1e-5).rsqrt()*b"),
  "cumsum_0": ("2000x2000", "a.cumsum(0)"),
  "cumsum_1d": ("1000000", "a.cumsum(0)"),
  "cumprod": ("1000x1000", "a.cumprod(1)"),
  "sort": ("100x10000", "a.sort(-1)[0]"),
  "topk": ("1000x1000", "a.topk(10)[0]"),
  "transpose": ("3000x2000", "a.transpose(0,1).contiguous()"),
  "permute_nchw": ("16x64x56x56", "a.permute(0,2,3,1).contiguous()"),
  "permute_attn": ("4x512x12x64", "a.permute(0,2,1,3).contiguous()"),
  "cat_0": ("1000x1000, 1000x1000", "cat(a,b,0)"),
  "cat_1": ("1000x1000, 1000x1000", "cat(a,b,1)"),
  "pad2": ("64x64x56x56", "a.pad((1,1,1,1))", "F.pad(a,(1,1,1,1))"),
  "flip": ("2000x2000", "a.flip(1)"),
  "roll": ("2000x2000", "a.roll(3,1)"),
  "tril": ("2000x2000", "a.tril()"),
  "gather": ("10000x256, int64<10000 4096", "a[b]"),
  "gather_1": ("2000x2000, int64<2000 2000x100", "a.gather(1,b)"),
  "scatter_add": ("1000x256, int64<1000 4096x256, 4096x256", "a.scatter_reduce(0,b,c,'sum')"),
  "one_hot": ("int64<1000 4096", "a.one_hot(1000).float()", "F.one_hot(a,1000).float()"),
  "where": ("2000x2000, 2000x2000", "(a>b).where(a,b)", "where(a>b,a,b)"),
  "exp": ("4000x1000", "a.exp()"),
  "log": ("positive 4000x1000", "a.log()"),
  "sin": ("4000x1000", "a.sin()"),
  "tanh": ("4000x1000", "a.tanh()"),
  "erf": ("4000x1000", "a.erf()"),
  "gelu": ("4000x1000", "a.gelu()", "F.gelu(a,approximate='tanh')"),
  "silu_mul": ("4000x1000, 4000x1000", "a.silu()*b", "F.silu(a)*b"),
  "sigmoid": ("4000x1000", "a.sigmoid()"),
  "pow": ("positive 2000x1000", "a**2.5"),
  "div": ("4000x1000, 4000x1000", "a/b"),
  "sqrt": ("positive 4000x1000", "a.sqrt()"),
  "bcast_add": ("4000x1000, 1000", "a+b"),
  "bcast_col": ("4000x1000, 4000x1", "a*b"),
  "outer": ("3000x1, 1x3000", "a*b"),
  "int_add": ("int32<100 4000x1000, int32<100 4000x1000", "a+b*3"),
  "cast_f16": ("4000x1000", "a.half()"),
  "half_add": ("float16 4000x1000, float16 4000x1000", "a+b"),
  "conv1x1": ("8x64x56x56, 128x64x1x1", "a.conv2d(b)", "F.conv2d(a,b)"),
  "conv3x3": ("8x64x56x56, 64x64x3x3", "a.conv2d(b,padding=1)", "F.conv2d(a,b,padding=1)"),
  "conv3x3s2": ("8x64x56x56, 128x64x3x3", "a.conv2d(b,padding=1,stride=2)", "F.conv2d(a,b,padding=1,stride=2)"),
  "conv7x7s2": ("4x3x224x224, 64x3x7x7", "a.conv2d(b,padding=3,stride=2)", "F.conv2d(a,b,padding=3,stride=2)"),
  "conv14": ("8x256x14x14, 256x256x3x3", "a.conv2d(b,padding=1)", "F.conv2d(a,b,padding=1)"),
  "conv7_512": ("8x512x7x7, 512x512x3x3", "a.conv2d(b,padding=1)", "F.conv2d(a,b,padding=1)"),
  "conv1d": ("8x64x2000, 64x64x5", "a.conv2d(b,padding=2)", "F.conv1d(a,b,padding=2)"),
  "conv_dw5": ("8x96x28x28, 96x1x5x5", "a.conv2d(b,padding=2,groups=96)", "F.conv2d(a,b,padding=2,groups=96)"),
  "conv_group": ("8x64x28x28, 64x16x3x3", "a.conv2d(b,padding=1,groups=4)", "F.conv2d(a,b,padding=1,groups=4)"),
  "conv_patch16": ("8x3x224x224, 384x3x16x16", "a.conv2d(b,stride=16)", "F.conv2d(a,b,stride=16)"),
  "convT": ("4x64x28x28, 64x32x2x2", "a.conv_transpose2d(b,stride=2)", "F.conv_transpose2d(a,b,stride=2)"),
  "maxpool": ("8x64x112x112", "a.max_pool2d((3,3),stride=2,padding=1)", "F.max_pool2d(a,3,2,1)"),
  "avgpool": ("8x64x112x112", "a.avg_pool2d((2,2))", "F.avg_pool2d(a,2)"),
  "gap": ("8x512x28x28", "a.mean((2,3))"),
  "bn_relu": ("8x64x56x56, 64, 64", "(a*b.reshape(1,64,1,1)+c.reshape(1,64,1,1)).relu()"),
  "interp": ("4x32x64x64", "a.interpolate((128,128))", "F.interpolate(a,(128,128),mode='bilinear')"),
  "attn_512": (
    "4x12x512x64, 4x12x512x64, 4x12x512x64",
    "a.scaled_dot_product_attention(b,c)",
    "F.scaled_dot_product_attention(a,b,c)",
  ),
  "attn_causal_1024": (
    "1x12x1024x64, 1x12x1024x64, 1x12x1024x64",
    "a.scaled_dot_product_attention(b,c,is_causal=True)",
    "F.scaled_dot_product_attention(a,b,c,is_causal=True)",
  ),
  "attn_causal_4096": (
    "1x4x4096x64, 1x4x4096x64, 1x4x4096x64",
    "a.scaled_dot_product_attention(b,c,is_causal=True)",
    "F.scaled_dot_product_attention(a,b,c,is_causal=True)",
  ),
  "attn_causal_192": (
    "1x8x1024x192, 1x8x1024x192, 1x8x1024x192",
    "a.scaled_dot_product_attention(b,c,is_causal=True)",
    "F.scaled_dot_product_attention(a,b,c,is_causal=True)",
  ),
  "attn_causal_bf16": (
    "1x8x2048x128, 1x8x2048x128, 1x8x2048x128",
    "a.bfloat16().scaled_dot_product_attention(b.bfloat16(),c.bfloat16(),is_causal=True)",
    "F.scaled_dot_product_attention(a.bfloat16(),b.bfloat16(),c.bfloat16(),is_causal=True)",
  ),
  "attn_decode": (
    "1x32x1x128, 1x32x2048x128, 1x32x2048x128",
    "a.scaled_dot_product_attention(b,c)",
    "F.scaled_dot_product_attention(a,b,c)",
  ),
  "attn_128": (
    "32x8x128x32, 32x8x128x32, 32x8x128x32",
    "a.scaled_dot_product_attention(b,c)",
    "F.scaled_dot_product_attention(a,b,c)",
  ),
  "xent": ("4096x1000, int64<1000 4096", "a.sparse_categorical_crossentropy(b)", "F.cross_entropy(a,b)"),
  "xent_grad": (
    "1024x5000, int64<5000 1024",
    "grad(lambda a:a.sparse_categorical_crossentropy(b),a)",
    "grad(lambda a:F.cross_entropy(a,b),a)",
  ),
  "emb_grad": (
    "10000x256, int64<10000 2048, 2048x256",
    "grad(lambda a:(a[b]*c).sum(),a)",
    "grad(lambda a:(F.embedding(b,a)*c).sum(),a)",
  ),
  "ln_grad": (
    "2048x768",
    "grad(lambda a:(a.layernorm()*a).sum(),a)",
    "grad(lambda a:(F.layer_norm(a,(768,))*a).sum(),a)",
  ),
  "conv_grad_w": (
    "8x64x28x28, 64x64x3x3",
    "grad(lambda b:(a.conv2d(b,padding=1).square()).sum(),b)",
    "grad(lambda b:(F.conv2d(a,b,padding=1).square()).sum(),b)",
  ),
  "conv_grad_x": (
    "8x64x28x28, 64x64x3x3",
    "grad(lambda a:(a.conv2d(b,padding=1).square()).sum(),a)",
    "grad(lambda a:(F.conv2d(a,b,padding=1).square()).sum(),a)",
  ),
  "maxpool_grad": (
    "8x64x56x56",
    "grad(lambda a:(a.max_pool2d((2,2)).square()).sum(),a)",
    "grad(lambda a:(F.max_pool2d(a,2).square()).sum(),a)",
  ),
  "mlp_grad": ("256x784, 784x512, 512x10", "grad(lambda b:((a@b).relu()@c).square().sum(),b)"),
  "attn_grad": (
    "2x8x512x64, 2x8x512x64, 2x8x512x64",
    "grad(lambda a:a.scaled_dot_product_attention(b,c).square().sum(),a)",
    "grad(lambda a:F.scaled_dot_product_attention(a,b,c).square().sum(),a)",
  ),
  "adam": (
    "4000x1000, 4000x1000, 4000x1000, positive 4000x1000",
    "(lambda m,v: (a-m*.001/(v.sqrt()+1e-8),m,v))(c*.9+b*.1,d*.999+b*b*.001)",
  ),
  "rope": ("2x512x12x64, 512x1x32, 512x1x32", "cat(a[...,:32]*b-a[...,32:]*c,a[...,:32]*c+a[...,32:]*b,-1)"),
  "einsum": ("32x64x128, 32x128x96", "einsum('bij,bjk->bik',a,b)"),
  "einsum2": ("16x128x8x64, 16x128x8x64", "einsum('bqhd,bkhd->bhqk',a,b)"),
  "cdist": ("500x64, 600x64", "((a.reshape(500,1,64)-b.reshape(1,600,64)).square()).sum(-1)"),
  "stack_mean": ("1000x1000, 1000x1000", "(a+b).mean()+(a-b).abs().max()"),
  "clip_scale": ("4000x1000", "a.clip(-1,1)*2+1"),
  "residual_layernorm": (
    "2048x768, 2048x768, 768, 768",
    "(a+b).layernorm()*c+d",
    "F.layer_norm(a+b,(768,))*c+d",
  ),
  "histogram": ("int64<256 1000000", "a.one_hot(256).sum(0)", "torch.bincount(a,minlength=256)"),
  "mm_bf16": ("512x512, 512x512", "a.bfloat16()@b.bfloat16()"),
  "attn_causal_grad": (
    "1x8x1024x64, 1x8x1024x64, 1x8x1024x64",
    "grad(lambda a:a.scaled_dot_product_attention(b,c,is_causal=True).square().sum(),a)",
    "grad(lambda a:F.scaled_dot_product_attention(a,b,c,is_causal=True).square().sum(),a)",
  ),
  "attn_causal_192_grad": (
    "1x8x1024x192, 1x8x1024x192, 1x8x1024x192",
    "grad(lambda b:a.scaled_dot_product_attention(b,c,is_causal=True).square().sum(),b)",
    "grad(lambda b:F.scaled_dot_product_attention(a,b,c,is_causal=True).square().sum(),b)",
  ),
  "attn_4096": (
    "1x4x4096x64, 1x4x4096x64, 1x4x4096x64",
    "a.scaled_dot_product_attention(b,c)",
    "F.scaled_dot_product_attention(a,b,c)",
  ),
  "attn_causal_grad4096": (
    "1x4x4096x64, 1x4x4096x64, 1x4x4096x64",
    "grad(lambda a:a.scaled_dot_product_attention(b,c,is_causal=True).square().sum(),a)",
    "grad(lambda a:F.scaled_dot_product_attention(a,b,c,is_causal=True).square().sum(),a)",
  ),
  "softmax_50k": ("32x50257", "a.softmax(-1)"),
}


def inputs(specification: str) -> Iterator[np.ndarray[Any, Any]]:
  """The arrays of a case, the same in every process."""
  rng = np.random.default_rng(0)
  for text in specification.split(", "):
    kind, _, shape = text.rpartition(" ")
    sizes = tuple(map(int, shape.split("x")))
    name, _, below = kind.partition("<")
    if below:
      yield rng.integers(0, int(below), sizes).astype(name)
    elif name == "unit":
      yield rng.uniform(-1, 1, sizes).astype("float32")
    else:
      x = rng.standard_normal(sizes)
      yield (np.abs(x) if name == "positive" else x).astype("float32" if name in ("", "positive") else name)


def ours() -> tuple[dict[str, Any], Callable[..., Any], Callable[..., Any], Callable[[Any], Any]]:
  """What expressions find here, what makes a tensor, what prepares a function of them, and what reads a result."""
  from tinygrad import Device, Tensor, TinyJit

  def prepared(f: Callable[..., Any]) -> Callable[..., Any]:
    @TinyJit
    def step(*xs: Any) -> Any:
      out = f(*xs)
      return tuple(y.contiguous() for y in out) if isinstance(out, tuple) else out.contiguous()

    def run(*xs: Any) -> Any:
      out = step(*xs)
      Device["CPU"].synchronize()
      return out

    return run

  names = {
    "cat": lambda x, y, dim: x.cat(y, dim=dim),
    "einsum": Tensor.einsum,
    "grad": lambda f, x: f(x).gradient(x)[0],
  }
  return names, lambda x: Tensor(x).realize(), prepared, lambda x: x.float().numpy()


def torchs(threads: int) -> tuple[dict[str, Any], Callable[..., Any], Callable[..., Any], Callable[[Any], Any]]:
  """The same of PyTorch."""
  import torch

  torch.set_num_threads(threads)

  def grad(f: Callable[..., Any], x: Any) -> Any:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
      return torch.autograd.grad(f(x), x)[0]

  names = {
    "cat": lambda x, y, dim: torch.cat([x, y], dim),
    "einsum": torch.einsum,
    "where": torch.where,
    "grad": grad,
    "F": torch.nn.functional,
    "torch": torch,
  }
  return names, torch.from_numpy, lambda f: torch.no_grad()(f), lambda x: x.detach().float().numpy()


def serve(kind: str) -> None:
  """Answers a `Worker`: a case -> its first call; `call` -> another; `sum` -> what the result adds up to."""
  threads = int(os.environ.get("CPU_THREADS", "0")) or os.cpu_count() or 1
  clock = time.process_time if threads == 1 else time.perf_counter
  reply, sys.stdout = sys.stdout, sys.stderr
  names, tensor, prepared, read = ours() if kind == "ours" else torchs(threads)
  run: Callable[[], Any] = lambda: None  # noqa: E731
  print(json.dumps({"ready": kind}), file=reply, flush=True)
  for line in map(str.strip, sys.stdin):
    answer: dict[str, Any]
    if line == "sum":
      out = run()
      values = [
        np.nan_to_num(read(x).astype(np.float64), posinf=0, neginf=0)
        for x in (out if isinstance(out, tuple) else (out,))
      ]
      answer = {"sum": [float(sum(f(x).sum() for x in values)) for f in (np.asarray, np.abs)]}
    else:
      if line != "call":
        shapes, mine, *theirs = json.loads(line)
        xs = [tensor(x) for x in inputs(shapes)]
        code = theirs[0] if theirs and kind != "ours" else mine
        f = prepared(eval(f"lambda a=None, b=None, c=None, d=None: {code}", names))
        run = lambda f=f, xs=xs: f(*xs)  # type: ignore[misc]  # noqa: E731
      start = clock()
      run()
      answer = {"s": clock() - start}
    print(json.dumps(answer), file=reply, flush=True)


def every_case() -> dict[str, tuple[str, ...]]:
  from extra.bench.functions import FUNCTIONS  # which a process of PyTorch's does not find: it is told its cases

  return CASES | FUNCTIONS


def chosen(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
  """The cases that are asked for."""
  from extra.bench.random_cases import random_cases

  if args.random:
    return random_cases(args.seed, args.random)
  return {c: x for c, x in every_case().items() if (c in args.cases if args.cases else (c in CASES) != args.functions)}


def started(torch: str | None) -> list[Worker]:
  """The processes: this project's and, with its environment, PyTorch's."""
  from extra.bench.workers import Environment, Worker  # which a process of PyTorch's does not find, nor need

  here = Environment("ours", Path(sys.executable), Path(__file__), ours=True)
  there = [Environment("torch", Path(torch) / "bin" / "python", Path(__file__))] if torch else []
  return [Worker(e, e.name) for e in (here, *there)]


def measure(case: tuple[str, ...], peers: list[Worker]) -> tuple[list[list[float]], bool]:
  """The seconds of the calls of each peer, and whether their results agree."""
  for p in peers:
    p.ask(json.dumps(case))
    p.call()
    p.call()
  times: list[list[float]] = [[] for _ in peers]
  end = time.perf_counter() + SECONDS * len(peers)
  while len(times[0]) < 7 or (time.perf_counter() < end and len(times[0]) < ROUNDS):
    for p, t in zip(peers, times):
      time.sleep(0 if os.environ.get("CPU_THREADS") == "1" else PAUSE)
      t.append(p.call())
  sums = [p.ask("sum")["sum"] for p in peers]
  agree = all(math.isclose(x, y, rel_tol=1e-3, abs_tol=1e-3 * sums[0][1]) for s in sums[1:] for x, y in zip(s, sums[0]))
  return times, agree


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("cases", nargs="*", metavar="CASE", help="all if none is named")
  parser.add_argument("--torch", metavar="VENV", help="environment of PyTorch; without one, this project alone")
  parser.add_argument("--one-thread", action="store_true", help="one thread each, in processor time")
  parser.add_argument("--functions", action="store_true", help="every function of a million elements, if none is named")
  parser.add_argument("--random", type=int, metavar="N", help="so many cases of shapes drawn at random, and no others")
  parser.add_argument("--seed", type=int, default=0, help="of which kind they are; the same cases for a seed")
  parser.add_argument("--list", action="store_true", help="print the cases and stop")
  parser.add_argument("--serve", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    serve(args.serve)
    return
  if args.list:
    print("\n".join(f"{name:22s}{case[0]:44s}{case[1]}" for name, case in every_case().items()))
    return
  if unknown := [c for c in args.cases if c not in every_case()]:
    parser.error(f"unknown case {unknown[0]}; --list prints them")
  if args.random is not None and (args.random < 1 or args.cases or args.functions):
    parser.error("--random draws one case or more, and takes no others beside them")
  if args.one_thread:
    os.environ["CPU_THREADS"] = "1"  # which the processes read
  rows, peers = [], started(args.torch)
  try:
    for case, what in chosen(args).items():
      times, agree = measure(what, peers)
      medians, bests = [statistics.median(t) * 1e3 for t in times], [min(t) * 1e3 for t in times]
      rows.append((medians[-1] / medians[0], bests[-1] / bests[0], case, medians, agree))
      print(f"{case:22s} {medians[0]:10.3f} ms", file=sys.stderr)
  finally:
    for p in peers:
      p.close()
  if len(peers) > 1:
    print(f"geometric mean of {len(rows)}: {statistics.geometric_mean(r for r, *_ in rows):.2f}")
  print(f"{'case':22s} {'x':>7s} {'best':>7s}  ms, each")
  for ratio, best, case, medians, agree in sorted(rows):
    print(
      f"{case:22s} {ratio:7.2f} {best:7.2f}  {' '.join(f'{m:10.3f}' for m in medians)}{'' if agree else '  differs'}"
    )


if __name__ == "__main__":
  main()
