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

import numpy as np  # noqa: E402
from harness import Work, main  # noqa: E402

torch.set_num_threads(int(os.environ.get("THREADS", "2")))
rng = np.random.default_rng(0)


def array(*shape: int) -> torch.Tensor:
  return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def labels(high: int, *shape: int) -> torch.Tensor:
  return torch.from_numpy(rng.integers(0, high, shape))


def inference(f: Callable[..., Any], *args: torch.Tensor, flops: int = 0, nbytes: int = 0) -> Work:
  def run() -> Any:
    with torch.no_grad():
      return f(*args)

  return Work(run, flops, nbytes)


def matmul(n: int) -> Work:
  return inference(torch.matmul, array(n, n), array(n, n), flops=2 * n**3)


def matvec4096() -> Work:
  return inference(lambda a, b: b @ a, array(4096, 4096), array(1, 4096), flops=2 * 4096**2, nbytes=4 * 4096**2)


def muladdrelu16m() -> Work:
  n = 1 << 24
  return inference(lambda a, b, c: (a * b + c).relu(), array(n), array(n), array(n), nbytes=16 * n)


def sum16m() -> Work:
  return inference(torch.sum, array(1 << 24), nbytes=4 << 24)


def softmax4096() -> Work:
  return inference(lambda a: a.softmax(-1), array(4096, 4096), nbytes=8 * 4096**2)


def layernorm4096() -> Work:
  return inference(lambda a: F.layer_norm(a, (4096,)), array(4096, 4096), nbytes=8 * 4096**2)


def small20() -> Work:
  def f(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
      x = (x @ x).relu() * 0.1
    return x

  return inference(f, array(16, 16))


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


def decode_1tok() -> Work:
  model = GPT(vocab=8192, dim=1024, heads=16, layers=8)
  nbytes = 4 * (sum(p.numel() for p in model.parameters()) - 8192 * 1024)  # the embedding reads one row only
  return inference(model, labels(8192, 1, 1), nbytes=nbytes)


WORKLOADS: dict[str, Callable[[], Work]] = {
  "matmul512": lambda: matmul(512),
  "matmul1024": lambda: matmul(1024),
  "matmul2048": lambda: matmul(2048),
  "matvec4096": matvec4096,
  "muladdrelu16M": muladdrelu16m,
  "sum16M": sum16m,
  "softmax4096": softmax4096,
  "layernorm4096": layernorm4096,
  "small20": small20,
  "conv_train": conv_train,
  "gpt1_train": lambda: gpt_train(1),
  "gpt4_train": lambda: gpt_train(4),
  "decode_1tok": decode_1tok,
}

if __name__ == "__main__":
  main(__doc__, WORKLOADS, import_s)
