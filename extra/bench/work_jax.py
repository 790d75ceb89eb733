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

import expressions  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from problems import HEAD, PROBLEMS, Problem  # noqa: E402
from workload import Work, main  # noqa: E402

rng = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
  return rng.standard_normal(shape, dtype=np.float32)


def jitted(f: Callable[..., Any], *args: Any, flops: int = 0, nbytes: int = 0, **options: Any) -> Work:
  step = jax.jit(f, **options)
  inputs = [jax.block_until_ready(jnp.asarray(x)) for x in args]
  return Work(lambda: jax.block_until_ready(step(*inputs)), flops, nbytes)


def solved(problem: Problem, f: Callable[..., Any]) -> Work:
  inputs = [jnp.asarray(x, jnp.bfloat16) if problem.bf16 else x for x in problem.inputs]
  work = jitted(f, *inputs, flops=problem.flops, nbytes=problem.nbytes)
  return Work(work.run, work.flops, work.nbytes, lambda: problem.error(numbers(work.run())))


def numbers(out: Any) -> list[np.ndarray]:
  return [np.asarray(x).astype(np.float64) for x in (out if isinstance(out, tuple) else (out,))]


def layernorm(a: jax.Array, axes: tuple[int, ...] = (1,)) -> jax.Array:
  centred = a - a.mean(axes, keepdims=True)
  return centred * jax.lax.rsqrt((centred * centred).mean(axes, keepdims=True) + 1e-5)


def depthwise(x: jax.Array, w: jax.Array) -> jax.Array:
  return jax.lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1)), feature_group_count=128)


def lstm(x: jax.Array, wi: jax.Array, wh: jax.Array, b: jax.Array) -> jax.Array:
  def step(state: Any, entering: jax.Array) -> Any:
    h, c = state
    i, f, g, o = jnp.split(entering + h @ wh.T, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h

  zeros = jnp.zeros(x.shape[1:])
  return jax.lax.scan(step, (zeros, zeros), x @ wi.T + b)[1]


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
  return jax.nn.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(HEAD)) @ v


def attention_train(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
  return jax.vjp(attention, q, k, v)[1](g)


SOLUTIONS: dict[str, Callable[..., Any]] = {
  "matmul1024_TN": lambda a, b: a.T @ b,
  "matmul1024_NT": lambda a, b: a @ b.T,
  "matmul1024_sum2": lambda a, b, c, d: a @ b + c @ d,
  "matmul1024_int8": lambda a, b: jax.lax.dot(a, b, preferred_element_type=jnp.int32),
  "muladdrelu16M": lambda a, b, c: jax.nn.relu(a * b + c),
  "sum16M": jnp.sum,
  "softmax4096": jax.nn.softmax,
  "layernorm4096": layernorm,
  "batchnorm": lambda x: layernorm(x, (0, 2, 3)),
  "cumsum4096": lambda x: jnp.cumsum(x, 1),
  "argmax4096": lambda x: jnp.argmax(x, 1),
  "gather8192": lambda table, ids: table[ids],
  "depthwise": depthwise,
  "lstm32": lstm,
  "attention4096": attention,
  "attention4096_train": attention_train,
}


def small20() -> Work:
  def f(x: jax.Array) -> jax.Array:
    for _ in range(20):
      x = jax.nn.relu(x @ x) * 0.1
    return x

  return jitted(f, array(16, 16))


def eager100() -> Work:
  given = [(jnp.asarray(a), jnp.asarray(b)) for a, b in expressions.inputs()]
  run = lambda: expressions.evaluate(jnp, given, jax.block_until_ready)  # noqa: E731
  return Work(run, error=lambda: expressions.error([np.asarray(x) for x in run()]))


def slices100() -> Work:
  x, w = map(jnp.asarray, expressions.rows())
  run = lambda: expressions.slices(x, w, jax.block_until_ready)  # noqa: E731
  return Work(run, error=lambda: expressions.slices_error(run()))


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


def inference(tokens: int) -> Work:
  params = gpt_init(8192, 1024, 8)
  size = sum(x.size for x in jax.tree.leaves(params)) - 8192 * 1024  # the embedding reads a row a token
  step, x = jax.jit(partial(gpt, heads=16)), jnp.asarray(rng.integers(0, 8192, (1, tokens)))
  run = lambda: jax.block_until_ready(step(params, x))  # noqa: E731
  return Work(run, flops=2 * size * tokens * (tokens > 1), nbytes=4 * size)


def matmul2048_two(a: P, b: P) -> Work:
  n, mesh = 2048, Mesh(np.array(jax.devices()), ("x",))
  put = lambda spec: jax.block_until_ready(jax.device_put(array(n, n), NamedSharding(mesh, spec)))  # noqa: E731
  x, y = put(a), put(b)
  out = NamedSharding(mesh, P() if a == P(None, "x") else P("x", None))
  step = jax.jit(jnp.matmul, out_shardings=out)
  return Work(lambda: jax.block_until_ready(step(x, y)), flops=2 * n**3)


WORKLOADS: dict[str, Callable[[], Work]] = {
  **{n: lambda n=n: solved(PROBLEMS[n](), SOLUTIONS.get(n, jnp.matmul)) for n in PROBLEMS},
  "small20": small20,
  "eager100": eager100,
  "slices100": slices100,
  "conv_train": conv_train,
  "gpt1_train": lambda: gpt_train(1),
  "gpt4_train": lambda: gpt_train(4),
  "decode_1tok": lambda: inference(1),
  "prefill128": lambda: inference(128),
  "matmul2048_shard2": lambda: matmul2048_two(P("x", None), P()),
  "matmul2048_contract2": lambda: matmul2048_two(P(None, "x"), P("x", None)),
}

if __name__ == "__main__":
  main(__doc__, WORKLOADS, import_s)
