"""The workloads of work_tinygrad.py in eager PyTorch on the CPU (THREADS in the environment, 2 by default)."""

from __future__ import annotations

import time

start = time.perf_counter()
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import_s = time.perf_counter() - start

import os  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import expressions  # noqa: E402
import numpy as np  # noqa: E402
from problems import PROBLEMS, Problem  # noqa: E402
from workload import Work, main  # noqa: E402

torch.set_num_threads(int(os.environ.get("THREADS", "2")))
rng = np.random.default_rng(0)


def array(*shape: int) -> torch.Tensor:
  return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def labels(high: int, *shape: int) -> torch.Tensor:
  return torch.from_numpy(rng.integers(0, high, shape))


def without_gradients(f: Callable[..., Any], *args: torch.Tensor, flops: int = 0, nbytes: int = 0) -> Work:
  def run() -> Any:
    with torch.no_grad():
      return f(*args)

  return Work(run, flops, nbytes)


def solved(problem: Problem, f: Callable[..., Any]) -> Work:
  """`f` on a problem's inputs; what makes its inputs ready (LSTM's module) is not counted."""
  inputs = [torch.from_numpy(x) for x in problem.inputs]
  if problem.bf16:
    inputs = [x.bfloat16() for x in inputs]
  f = f(*inputs) if f is lstm else f
  work = Work(lambda: f(*inputs)) if f is attention_train else without_gradients(f, *inputs)
  return Work(work.run, problem.flops, problem.nbytes, lambda: problem.error(numbers(work.run())))


def numbers(out: Any) -> list[np.ndarray]:
  return [x.detach().to(torch.float64).numpy() for x in (out if isinstance(out, tuple) else (out,))]


def lstm(x: torch.Tensor, wi: torch.Tensor, wh: torch.Tensor, b: torch.Tensor) -> Callable[..., torch.Tensor]:
  module = nn.LSTM(x.shape[-1], x.shape[-1])
  for parameter, value in zip(module.parameters(), (wi, wh, b, torch.zeros_like(b))):
    parameter.data.copy_(value)
  return lambda x, *_: module(x)[0]


def attention_train(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
  leaves = [x.requires_grad_() for x in (q, k, v)]
  return torch.autograd.grad(F.scaled_dot_product_attention(*leaves), leaves, g)


SOLUTIONS: dict[str, Callable[..., Any]] = {
  "matmul1024_TN": lambda a, b: a.T @ b,
  "matmul1024_NT": lambda a, b: a @ b.T,
  "matmul1024_sum2": lambda a, b, c, d: a @ b + c @ d,
  "matmul1024_int8": torch._int_mm,
  "muladdrelu16M": lambda a, b, c: (a * b + c).relu(),
  "sum16M": torch.sum,
  "softmax4096": lambda x: x.softmax(-1),
  "layernorm4096": lambda x: F.layer_norm(x, (4096,)),
  "batchnorm": lambda x: F.batch_norm(x, None, None, training=True),
  "cumsum4096": lambda x: x.cumsum(1),
  "argmax4096": lambda x: x.argmax(1),
  "gather8192": lambda table, ids: F.embedding(ids, table),
  "depthwise": lambda x, w: F.conv2d(x, w, groups=128, padding=1),
  "lstm32": lstm,
  "attention4096": F.scaled_dot_product_attention,
  "attention4096_train": attention_train,
}


def small20() -> Work:
  def f(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
      x = (x @ x).relu() * 0.1
    return x

  return without_gradients(f, array(16, 16))


class Conv(nn.Module):
  def __init__(self) -> None:
    super().__init__()
    self.c1, self.c2, self.l = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 3), nn.Linear(1600, 10)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    x = F.max_pool2d(self.c1(x).relu(), 2)
    return self.l(F.max_pool2d(self.c2(x).relu(), 2).flatten(1))


class Block(nn.Module):
  def __init__(self, dim: int, heads: int) -> None:
    super().__init__()
    self.heads = heads
    self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
    self.up, self.dn = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)
    self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    b, t, d = x.shape
    q, k, v = self.qkv(self.n1(x)).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
    x = x + self.o(a)
    return x + self.dn(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class GPT(nn.Module):
  def __init__(self, vocab: int = 512, dim: int = 256, heads: int = 8, layers: int = 4) -> None:
    super().__init__()
    self.e, self.f = nn.Embedding(vocab, dim), nn.Linear(dim, vocab, bias=False)
    self.b = nn.ModuleList(Block(dim, heads) for _ in range(layers))

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    x = self.e(x)
    for block in self.b:
      x = block(x)
    return self.f(x)


def eager100() -> Work:
  given = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in expressions.inputs()]
  run = lambda: expressions.evaluate(torch, given, lambda x: x)  # noqa: E731
  return Work(run, error=lambda: expressions.error([x.numpy() for x in run()]))


def slices100() -> Work:
  x, w = map(torch.from_numpy, expressions.rows())
  run = lambda: expressions.slices(x, w, lambda y: y)  # noqa: E731
  return Work(run, error=lambda: expressions.slices_error(run()))


def training(optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor]) -> Work:
  def run() -> None:
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()

  return Work(run)


def conv_train() -> Work:
  model, x, y = Conv(), array(128, 1, 28, 28), labels(10, 128)
  return training(torch.optim.Adam(model.parameters(), lr=1e-3), lambda: F.cross_entropy(model(x), y))


def gpt_train(layers: int) -> Work:
  model, x, y = GPT(layers=layers), labels(512, 8, 128), labels(512, 8, 128)
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
  return training(optimizer, lambda: F.cross_entropy(model(x).reshape(-1, 512), y.reshape(-1)))


def inference(tokens: int) -> Work:
  model = GPT(vocab=8192, dim=1024, heads=16, layers=8)
  size = sum(p.numel() for p in model.parameters()) - 8192 * 1024  # the embedding reads a row a token
  return without_gradients(model, labels(8192, 1, tokens), flops=2 * size * tokens * (tokens > 1), nbytes=4 * size)


WORKLOADS: dict[str, Callable[[], Work]] = {
  **{n: lambda n=n: solved(PROBLEMS[n](), SOLUTIONS.get(n, torch.matmul)) for n in PROBLEMS},
  "small20": small20,
  "eager100": eager100,
  "slices100": slices100,
  "conv_train": conv_train,
  "gpt1_train": lambda: gpt_train(1),
  "gpt4_train": lambda: gpt_train(4),
  "decode_1tok": lambda: inference(1),
  "prefill128": lambda: inference(128),
}

if __name__ == "__main__":
  main(__doc__, WORKLOADS, import_s)
