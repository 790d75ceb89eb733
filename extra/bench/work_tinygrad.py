"""Workloads against the tinygrad API: the same file runs with this project and with the peer's tinygrad."""

from __future__ import annotations

import time

start = time.perf_counter()
from tinygrad import Context, Device, Tensor, TinyJit, dtypes, nn  # noqa: E402

import_s = time.perf_counter() - start

from collections.abc import Callable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

import expressions  # noqa: E402
import numpy as np  # noqa: E402
from problems import PROBLEMS, Problem  # noqa: E402
from workload import Work, main  # noqa: E402

rng = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
  return rng.standard_normal(shape, dtype=np.float32)


def tensor(x: np.ndarray) -> Tensor:
  return Tensor(x).realize()


def synchronize(device: str | Sequence[str] | None = None) -> None:
  for name in [Device.DEFAULT] if device is None else [device] if isinstance(device, str) else list(device):
    Device[name].synchronize()


def results(out: Any) -> tuple[Tensor, ...]:
  return out if isinstance(out, tuple) else (out,)


def jitted(f: Callable[..., Any], *args: Tensor, flops: int = 0, nbytes: int = 0) -> Work:
  """`f` under TinyJit, its result (or tuple of results) realized and waited for."""

  @TinyJit
  def step(*xs: Tensor) -> Any:
    out = f(*xs)
    Tensor.realize(*results(out))
    return out

  def run() -> Any:
    out = step(*args)
    synchronize(results(out)[0].device)
    return out

  return Work(run, flops, nbytes)


def solved(problem: Problem, f: Callable[..., Any], place: Callable[..., Tensor] = tensor) -> Work:
  """A problem's inputs on the device, and `f` on them."""
  inputs = [place(x) for x in problem.inputs]
  if problem.bf16:
    inputs = [x.cast(dtypes.bfloat16).contiguous().realize() for x in inputs]
  work = jitted(f, *inputs, flops=problem.flops, nbytes=problem.nbytes)
  return Work(work.run, work.flops, work.nbytes, lambda: problem.error([numbers(x) for x in results(work.run())]))


def numbers(x: Tensor) -> np.ndarray:
  return (x.float() if x.dtype == dtypes.bfloat16 else x).numpy()


def batchnorm(x: Tensor) -> Tensor:
  mean = x.mean((0, 2, 3))
  variance = (x - mean.reshape(1, -1, 1, 1)).square().mean((0, 2, 3))
  return x.batchnorm(None, None, mean, (variance + 1e-5).rsqrt())


def lstm(x: Tensor, wi: Tensor, wh: Tensor, b: Tensor) -> Tensor:
  entering = x @ wi.transpose() + b
  h = c = Tensor.zeros(*x.shape[1:])
  states = []
  for step in range(x.shape[0]):
    i, f, g, o = (entering[step] + h @ wh.transpose()).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    states.append(h)
  return Tensor.stack(*states)


def attention_train(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, ...]:
  return tuple((q.scaled_dot_product_attention(k, v) * g).sum().gradient(q, k, v))


SOLUTIONS: dict[str, Callable[..., Any]] = {
  "matmul1024_TN": lambda a, b: a.transpose() @ b,
  "matmul1024_NT": lambda a, b: a @ b.transpose(),
  "matmul1024_sum2": lambda a, b, c, d: a @ b + c @ d,
  "matmul1024_int8": lambda a, b: a.matmul(b, dtype=dtypes.int32),
  "muladdrelu16M": lambda a, b, c: (a * b + c).relu(),
  "sum16M": lambda x: x.sum(),
  "softmax4096": lambda x: x.softmax(axis=-1),
  "layernorm4096": lambda x: x.layernorm(),
  "batchnorm": batchnorm,
  "cumsum4096": lambda x: x.cumsum(1),
  "argmax4096": lambda x: x.argmax(1),
  "gather8192": lambda table, ids: table[ids],
  "depthwise": lambda x, w: x.conv2d(w, groups=128, padding=1),
  "lstm32": lstm,
  "attention4096": lambda q, k, v: q.scaled_dot_product_attention(k, v),
  "attention4096_train": attention_train,
}


def small20() -> Work:
  def f(x: Tensor) -> Tensor:
    for _ in range(20):
      x = (x @ x).relu() * 0.1
    return x

  return jitted(f, tensor(array(16, 16)))


def ready(x: Tensor) -> Tensor:
  x.realize()
  synchronize()
  return x


def slices100() -> Work:
  x, w = map(tensor, expressions.rows())
  run = lambda: expressions.slices(x, w, ready)  # noqa: E731
  return Work(run, error=lambda: expressions.slices_error([(i, rate, y.numpy()) for i, rate, y in run()]))


def eager100() -> Work:
  given = [(tensor(a), tensor(b)) for a, b in expressions.inputs()]
  run = lambda: expressions.evaluate(Tensor, given, ready)  # noqa: E731
  return Work(run, error=lambda: expressions.error([x.numpy() for x in run()]))


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


def inference(tokens: int) -> Work:
  """The next tokens' logits: one token, or a prompt at once."""
  model = GPT(vocab=8192, dim=1024, heads=16, layers=8)
  parameters = [p.realize() for p in nn.state.get_parameters(model)]
  size = sum(int(np.prod(p.shape)) for p in parameters) - 8192 * 1024  # the embedding reads a row a token
  x = tensor(rng.integers(0, 8192, (1, tokens)).astype(np.int32))
  return jitted(model, x, flops=2 * size * tokens * (tokens > 1), nbytes=4 * size)


def two_devices() -> tuple[str, ...]:
  return tuple(f"{Device.DEFAULT}:{i}" for i in range(2))


def matmul2048_two(axis_a: int, axis_b: int | None) -> Work:
  axes = iter((axis_a, axis_b))
  place = lambda x: Tensor(x).shard(two_devices(), axis=next(axes)).realize()  # noqa: E731
  return solved(PROBLEMS["matmul2048"](), lambda a, b: a @ b, place)


WORKLOADS: dict[str, Callable[[], Work]] = {
  **{n: lambda n=n: solved(PROBLEMS[n](), SOLUTIONS.get(n, lambda a, b: a @ b)) for n in PROBLEMS},
  "small20": small20,
  "eager100": eager100,
  "slices100": slices100,
  "conv_train": conv_train,
  "gpt1_train": lambda: gpt_train(1),
  "gpt4_train": lambda: gpt_train(4),
  "decode_1tok": lambda: inference(1),
  "prefill128": lambda: inference(128),
  "matmul2048_shard2": lambda: matmul2048_two(0, None),
  "matmul2048_contract2": lambda: matmul2048_two(1, 0),
  "conv_train_dp2": lambda: conv_train(two_devices()),
  "gpt4_train_dp2": lambda: gpt_train(4, two_devices()),
}

if __name__ == "__main__":
  main(__doc__, WORKLOADS, import_s)
