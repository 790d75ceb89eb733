"""Workloads against the tinygrad API: the same file runs with this project and with the peer's tinygrad."""

from __future__ import annotations

import time

start = time.perf_counter()
from tinygrad import Context, Device, Tensor, TinyJit, nn  # noqa: E402

import_s = time.perf_counter() - start

from collections.abc import Callable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from harness import Work, main, relative_error  # noqa: E402

rng = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
  return rng.standard_normal(shape, dtype=np.float32)


def tensor(x: np.ndarray) -> Tensor:
  return Tensor(x).realize()


def synchronize(device: str | Sequence[str] | None = None) -> None:
  for name in [Device.DEFAULT] if device is None else [device] if isinstance(device, str) else list(device):
    Device[name].synchronize()


def jitted(f: Callable[..., Tensor], *args: Tensor, flops: int = 0, nbytes: int = 0, want: Any = None) -> Work:
  """`f` under TinyJit, its result realized and waited for."""
  step = TinyJit(lambda *xs: f(*xs).realize())

  def run() -> Tensor:
    out = step(*args).realize()
    synchronize(out.device)
    return out

  return Work(run, flops, nbytes, lambda: None if want is None else relative_error(run().numpy(), want()))


def matmul(n: int) -> Work:
  a, b = array(n, n), array(n, n)
  return jitted(lambda x, y: x @ y, tensor(a), tensor(b), flops=2 * n**3, want=lambda: a @ b)


def matvec4096() -> Work:
  a, b = array(4096, 4096), array(1, 4096)
  return jitted(lambda x, y: y @ x, tensor(a), tensor(b), flops=2 * 4096**2, nbytes=a.nbytes, want=lambda: b @ a)


def muladdrelu16m() -> Work:
  a, b, c = (array(1 << 24) for _ in range(3))
  inputs = (tensor(a), tensor(b), tensor(c))
  return jitted(lambda x, y, z: (x * y + z).relu(), *inputs, nbytes=4 * a.nbytes, want=lambda: np.maximum(a * b + c, 0))


def sum16m() -> Work:
  a = array(1 << 24)
  return jitted(lambda x: x.sum(), tensor(a), nbytes=a.nbytes, want=lambda: a.astype(np.float64).sum())


def softmax4096() -> Work:
  a = array(4096, 4096)

  def want() -> np.ndarray:
    e = np.exp(a - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)

  return jitted(lambda x: x.softmax(axis=-1), tensor(a), nbytes=2 * a.nbytes, want=want)


def layernorm4096() -> Work:
  a = array(4096, 4096)
  want = lambda: (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5)  # noqa: E731
  return jitted(lambda x: x.layernorm(), tensor(a), nbytes=2 * a.nbytes, want=want)


def small20() -> Work:
  def f(x: Tensor) -> Tensor:
    for _ in range(20):
      x = (x @ x).relu() * 0.1
    return x

  return jitted(f, tensor(array(16, 16)))


class Conv:
  def __init__(self) -> None:
    self.c1, self.c2, self.l = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 3), nn.Linear(1600, 10)

  def __call__(self, x: Tensor) -> Tensor:
    x = self.c1(x).relu().max_pool2d((2, 2))
    return self.l(self.c2(x).relu().max_pool2d((2, 2)).flatten(1))


class Block:
  def __init__(self, dim: int, heads: int) -> None:
    self.heads = heads
    self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
    self.up, self.dn = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)
    self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)

  def __call__(self, x: Tensor) -> Tensor:
    b, t, d = x.shape
    qkv = self.qkv(self.n1(x)).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
    a = qkv[0].scaled_dot_product_attention(qkv[1], qkv[2], is_causal=True).transpose(1, 2).reshape(b, t, d)
    x = x + self.o(a)
    return x + self.dn(self.up(self.n2(x)).gelu())


class GPT:
  def __init__(self, vocab: int = 512, dim: int = 256, heads: int = 8, layers: int = 4) -> None:
    self.e, self.f = nn.Embedding(vocab, dim), nn.Linear(dim, vocab, bias=False)
    self.b = [Block(dim, heads) for _ in range(layers)]

  def __call__(self, x: Tensor) -> Tensor:
    x = self.e(x)
    for block in self.b:
      x = block(x)
    return self.f(x)


def training(model: Any, optimizer: Any, loss_of: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Work:
  """One step of training, its loss waited for."""

  @TinyJit
  def step(x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    loss.backward()
    optimizer.step()
    return loss.realize()

  def run() -> None:
    # 0.14 knows the training mode as a context variable only
    with Tensor.train() if hasattr(Tensor, "train") else Context(TRAINING=1):
      loss = step(x, y)
    synchronize(loss.device)

  return Work(run)


def data_parallel(model: Any, x: Tensor, y: Tensor, devices: Sequence[str]) -> tuple[Tensor, Tensor]:
  """The model's parameters replicated over the devices; the batch, cut."""
  for p in nn.state.get_parameters(model):
    p.shard_(devices, axis=None)
  return x.shard(devices, axis=0).realize(), y.shard(devices, axis=0).realize()


def conv_train(devices: tuple[str, ...] = ()) -> Work:
  model = Conv()
  x, y = tensor(array(128, 1, 28, 28)), tensor(rng.integers(0, 10, 128).astype(np.int32))
  if devices:
    x, y = data_parallel(model, x, y, devices)
  optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=1e-3)
  return training(model, optimizer, lambda x, y: model(x).sparse_categorical_crossentropy(y), x, y)


def gpt_train(layers: int, devices: tuple[str, ...] = ()) -> Work:
  model = GPT(layers=layers)
  x, y = (tensor(rng.integers(0, 512, (8, 128)).astype(np.int32)) for _ in range(2))
  if devices:
    x, y = data_parallel(model, x, y, devices)
  optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=1e-3)
  loss = lambda x, y: model(x).reshape(-1, 512).sparse_categorical_crossentropy(y.reshape(-1))  # noqa: E731
  return training(model, optimizer, loss, x, y)


def decode_1tok() -> Work:
  model = GPT(vocab=8192, dim=1024, heads=16, layers=8)
  parameters = [p.realize() for p in nn.state.get_parameters(model)]
  nbytes = 4 * (sum(int(np.prod(p.shape)) for p in parameters) - 8192 * 1024)  # the embedding reads one row only
  return jitted(model, tensor(rng.integers(0, 8192, (1, 1)).astype(np.int32)), nbytes=nbytes)


def two_devices() -> tuple[str, ...]:
  return tuple(f"{Device.DEFAULT}:{i}" for i in range(2))


def matmul2048_two(axis_a: int, axis_b: int | None) -> Work:
  n, devices = 2048, two_devices()
  a, b = array(n, n), array(n, n)
  x, y = Tensor(a).shard(devices, axis=axis_a).realize(), Tensor(b).shard(devices, axis=axis_b).realize()
  return jitted(lambda x, y: x @ y, x, y, flops=2 * n**3, want=lambda: a @ b)


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
  "matmul2048_shard2": lambda: matmul2048_two(0, None),
  "matmul2048_contract2": lambda: matmul2048_two(1, 0),
  "conv_train_dp2": lambda: conv_train(two_devices()),
  "gpt4_train_dp2": lambda: gpt_train(4, two_devices()),
}

if __name__ == "__main__":
  main(__doc__, WORKLOADS, import_s)
