"""The workloads of work_tinygrad.py in JAX on the CPU, under jit; the sharded ones on two host devices."""

from __future__ import annotations

import os
import time

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
os.environ["JAX_PLATFORMS"] = "cpu"

start = time.perf_counter()
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import_s = time.perf_counter() - start

from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from harness import Work, main  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

rng = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
  return rng.standard_normal(shape, dtype=np.float32)


def jitted(f: Callable[..., Any], *args: Any, flops: int = 0, nbytes: int = 0, **options: Any) -> Work:
  step = jax.jit(f, **options)
  inputs = [jax.block_until_ready(jnp.asarray(x)) for x in args]
  return Work(lambda: jax.block_until_ready(step(*inputs)), flops, nbytes)


def matmul(n: int) -> Work:
  return jitted(jnp.matmul, array(n, n), array(n, n), flops=2 * n**3)


def matvec4096() -> Work:
  return jitted(lambda a, b: b @ a, array(4096, 4096), array(1, 4096), flops=2 * 4096**2, nbytes=4 * 4096**2)


def muladdrelu16m() -> Work:
  n = 1 << 24
  return jitted(lambda a, b, c: jax.nn.relu(a * b + c), array(n), array(n), array(n), nbytes=16 * n)


def sum16m() -> Work:
  return jitted(jnp.sum, array(1 << 24), nbytes=4 << 24)


def softmax4096() -> Work:
  return jitted(jax.nn.softmax, array(4096, 4096), nbytes=8 * 4096**2)


def layernorm4096() -> Work:
  def f(a: jax.Array) -> jax.Array:
    centred = a - a.mean(1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(1, keepdims=True) + 1e-5)

  return jitted(f, array(4096, 4096), nbytes=8 * 4096**2)


def small20() -> Work:
  def f(x: jax.Array) -> jax.Array:
    for _ in range(20):
      x = jax.nn.relu(x @ x) * 0.1
    return x

  return jitted(f, array(16, 16))


def gpt_init(vocab: int = 512, dim: int = 256, layers: int = 4) -> dict[str, Any]:
  w = lambda *shape: jnp.asarray(array(*shape) * 0.02)  # noqa: E731
  block = lambda: {  # noqa: E731
    "qkv": w(dim, 3 * dim),
    "o": w(dim, dim),
    "up": w(dim, 4 * dim),
    "dn": w(4 * dim, dim),
    "n1": jnp.ones(dim),
    "n2": jnp.ones(dim),
  }
  return {"e": w(vocab, dim), "f": w(dim, vocab), "b": [block() for _ in range(layers)]}


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
  return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def gpt(params: dict[str, Any], tokens: jax.Array, heads: int = 8) -> jax.Array:
  x = params["e"][tokens]
  b, t, d = x.shape
  mask = jnp.tril(jnp.ones((t, t), bool))
  for p in params["b"]:
    q, k, v = (rms_norm(x, p["n1"]) @ p["qkv"]).reshape(b, t, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
    scores = jax.nn.softmax(jnp.where(mask, q @ k.swapaxes(-1, -2) / np.sqrt(d // heads), -1e30))
    x = x + (scores @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ p["o"]
    x = x + jax.nn.gelu(rms_norm(x, p["n2"]) @ p["up"]) @ p["dn"]
  return x @ params["f"]


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
  return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()


def conv_init() -> dict[str, Any]:
  w = lambda fan, *shape: jnp.asarray(array(*shape) / np.sqrt(fan))  # noqa: E731
  return {
    "c1": (w(25, 32, 1, 5, 5), jnp.zeros((32, 1, 1))),
    "c2": (w(288, 64, 32, 3, 3), jnp.zeros((64, 1, 1))),
    "l": (w(1600, 1600, 10), jnp.zeros(10)),
  }


def conv_net(params: dict[str, Any], x: jax.Array) -> jax.Array:
  for name in ("c1", "c2"):
    weight, bias = params[name]
    x = jax.nn.relu(jax.lax.conv(x, weight, (1, 1), "VALID") + bias)
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
  weight, bias = params["l"]
  return x.reshape(len(x), -1) @ weight + bias


def training(params: Any, forward: Callable[..., jax.Array], x: Any, y: Any, weight_decay: float) -> Work:
  """A step of Adam on donated state, as a training loop has it."""

  @partial(jax.jit, donate_argnums=(0,))
  def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
    p, m, v = state
    loss, g = jax.value_and_grad(lambda p: cross_entropy(forward(p, x), y))(p)
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
    update = lambda w, a, b: w * (1 - 1e-3 * weight_decay) - 1e-3 * a / (jnp.sqrt(b) + 1e-8)  # noqa: E731
    return (jax.tree.map(update, p, m, v), m, v), loss

  zeros = partial(jax.tree.map, jnp.zeros_like)
  state = [jax.block_until_ready((params, zeros(params), zeros(params)))]
  x, y = jnp.asarray(x), jnp.asarray(y)

  def run() -> None:
    state[0], _ = jax.block_until_ready(step(state[0], x, y))

  return Work(run)


def conv_train() -> Work:
  return training(conv_init(), conv_net, array(128, 1, 28, 28), rng.integers(0, 10, 128), weight_decay=0.0)


def gpt_train(layers: int) -> Work:
  x, y = (rng.integers(0, 512, (8, 128)) for _ in range(2))
  return training(gpt_init(layers=layers), gpt, x, y, weight_decay=0.01)


def decode_1tok() -> Work:
  params = gpt_init(8192, 1024, 8)
  nbytes = 4 * (sum(x.size for x in jax.tree.leaves(params)) - 8192 * 1024)  # the embedding reads one row only
  step, token = jax.jit(partial(gpt, heads=16)), jnp.asarray(rng.integers(0, 8192, (1, 1)))
  return Work(lambda: jax.block_until_ready(step(params, token)), nbytes=nbytes)


def matmul2048_two(a: P, b: P) -> Work:
  n, mesh = 2048, Mesh(np.array(jax.devices()), ("x",))
  put = lambda spec: jax.block_until_ready(jax.device_put(array(n, n), NamedSharding(mesh, spec)))  # noqa: E731
  x, y = put(a), put(b)
  out = NamedSharding(mesh, P() if a == P(None, "x") else P("x", None))
  step = jax.jit(jnp.matmul, out_shardings=out)
  return Work(lambda: jax.block_until_ready(step(x, y)), flops=2 * n**3)


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
  "matmul2048_shard2": lambda: matmul2048_two(P("x", None), P()),
  "matmul2048_contract2": lambda: matmul2048_two(P(None, "x"), P("x", None)),
}

if __name__ == "__main__":
  main(__doc__, WORKLOADS, import_s)
