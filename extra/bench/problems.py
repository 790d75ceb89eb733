"""What the workloads compute: their inputs, and the result in float64 that every framework is held to.

numpy alone, since this file also runs in the environments of the peers; `work_*.py` says how a framework solves them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

HEADS, LONG, HEAD = 8, 4096, 64  # of the long attention


@dataclass(frozen=True, slots=True)
class Problem:
  """`want`: of the inputs, in float64, the result or a tuple of them. `flops`, `nbytes`: of one call (0: says nothing).
  `bf16`: the inputs are to be bfloat16, which they can be without loss.
  """

  inputs: tuple[np.ndarray, ...]
  want: Callable[..., Any]
  flops: int = 0
  nbytes: int = 0
  bf16: bool = False

  def error(self, got: Sequence[np.ndarray]) -> float:
    """max |got - want| / max |want|, the largest of the results."""
    wanted = self.want(*(x.astype(np.float64) if x.dtype == np.float32 else x for x in self.inputs))
    pairs = zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True)
    return max(float(np.abs(g.astype(np.float64) - w).max() / (np.abs(w).max() + 1e-30)) for g, w in pairs)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
  return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def bytes_of(*arrays: np.ndarray) -> int:
  return sum(x.nbytes for x in arrays)


def matmul(m: int, k: int, n: int, form: str = "NN", bf16: bool = False) -> Problem:
  """(m, k) by (k, n); an operand with T lies transposed in memory."""
  a, b = (
    floats(*((m, k) if form[0] == "N" else (k, m)), seed=1),
    floats(*((k, n) if form[1] == "N" else (n, k)), seed=2),
  )
  if bf16:
    a, b = ((x.view(np.uint32) & 0xFFFF0000).view(np.float32) for x in (a, b))
  want = lambda a, b: (a if form[0] == "N" else a.T) @ (b if form[1] == "N" else b.T)  # noqa: E731
  nbytes = bytes_of(a, b) if min(m, n) == 1 else 0
  return Problem((a, b), want, 0 if nbytes else 2 * m * k * n, nbytes, bf16)


def two_matmuls(n: int) -> Problem:
  a, b, c, d = (floats(n, n, seed=i) for i in range(4))
  return Problem((a, b, c, d), lambda a, b, c, d: a @ b + c @ d, 4 * n**3)


def int8(n: int) -> Problem:
  a, b = (np.random.default_rng(seed).integers(-128, 128, (n, n), dtype=np.int8) for seed in (1, 2))
  return Problem((a, b), lambda a, b: a.astype(np.float64) @ b.astype(np.float64), 2 * n**3)


def batched(count: int, n: int) -> Problem:
  return Problem((floats(count, n, n, seed=1), floats(count, n, n, seed=2)), np.matmul, 2 * count * n**3)


def muladdrelu() -> Problem:
  xs = tuple(floats(1 << 24, seed=i) for i in range(3))
  return Problem(xs, lambda a, b, c: np.maximum(a * b + c, 0), nbytes=4 * xs[0].nbytes)


def over(shape: Sequence[int], want: Callable[[np.ndarray], Any], passes: int = 2) -> Problem:
  """Of one array, which memory sees `passes` times."""
  x = floats(*shape)
  return Problem((x,), want, nbytes=passes * x.nbytes)


def softmax(a: np.ndarray) -> np.ndarray:
  e = np.exp(a - a.max(-1, keepdims=True))
  return np.asarray(e / e.sum(-1, keepdims=True))


def layernorm(a: np.ndarray) -> np.ndarray:
  return np.asarray((a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5))


def batchnorm(x: np.ndarray) -> np.ndarray:
  """In training: of the batch's own mean and variance."""
  return np.asarray((x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5))


def depthwise() -> Problem:
  x, w = floats(16, 128, 56, 56), floats(128, 1, 3, 3, seed=1)

  def want(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return sum(padded[..., i : i + 56, j : j + 56] * w[:, 0, i, j, None, None] for i in range(3) for j in range(3))

  return Problem((x, w), want, nbytes=2 * x.nbytes)


def lstm(steps: int = 32, batch: int = 64, width: int = 256) -> Problem:
  """Inputs (steps, batch, width), weights (4 * width, width) for input, forget, cell and output, and a bias: every
  state."""
  x, scale = floats(steps, batch, width), np.float32(width**-0.5)
  wi, wh = (floats(4 * width, width, seed=i) * scale for i in (1, 2))
  b = floats(4 * width, seed=3)

  def want(x: np.ndarray, wi: np.ndarray, wh: np.ndarray, b: np.ndarray) -> np.ndarray:
    h = c = np.zeros((batch, width))
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    states = []
    for row in x:
      i, f, g, o = np.split(row @ wi.T + h @ wh.T + b, 4, axis=-1)
      c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
      h = sigmoid(o) * np.tanh(c)
      states.append(h)
    return np.stack(states)

  return Problem((x, wi, wh, b), want, 2 * steps * batch * 2 * width * 4 * width)


def attention(backward: bool) -> Problem:
  """softmax(q kᵀ / √d) v of (1, heads, length, d); backward, the gradients of q, k, v."""
  q, k, v, g = (floats(1, HEADS, LONG, HEAD, seed=i) for i in range(4))

  def head(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, ...]:
    p = softmax(q @ k.T / np.sqrt(HEAD))
    if not backward:
      return (p @ v,)
    dp = g @ v.T
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(HEAD)
    return ds @ k, ds.T @ q, p.T @ g

  def want(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    heads = [head(q[0, i], k[0, i], v[0, i], q[0, i] if g is None else g[0, i]) for i in range(HEADS)]
    return tuple(np.stack(parts)[None] for parts in zip(*heads))

  matmuls = 2 + 5 * backward  # backward, q kᵀ is computed anew
  return Problem((q, k, v, g) if backward else (q, k, v), want, 2 * matmuls * HEADS * LONG * LONG * HEAD)


def gather() -> Problem:
  table, ids = floats(50000, 512), np.random.default_rng(1).integers(0, 50000, 8192, dtype=np.int32)
  return Problem((table, ids), lambda table, ids: table[ids], nbytes=2 * 8192 * 512 * 4)


SQUARE = (4096, 4096)
PROBLEMS: dict[str, Callable[[], Problem]] = {
  **{f"matmul{n}": lambda n=n: matmul(n, n, n) for n in (512, 1000, 1023, 1024, 2048)},
  "matmul1024_TN": lambda: matmul(1024, 1024, 1024, "TN"),
  "matmul1024_NT": lambda: matmul(1024, 1024, 1024, "NT"),
  "matmul_outer64": lambda: matmul(4096, 64, 4096),
  "matmul_skinny16": lambda: matmul(16, 4096, 4096),
  "matmul_batch64": lambda: batched(64, 128),
  "matmul1024_sum2": lambda: two_matmuls(1024),
  "matmul1024_bf16": lambda: matmul(1024, 1024, 1024, bf16=True),
  "matmul1024_int8": lambda: int8(1024),
  "matvec4096": lambda: matmul(1, 4096, 4096),
  "muladdrelu16M": muladdrelu,
  "sum16M": lambda: over((1 << 24,), np.sum, passes=1),
  "softmax4096": lambda: over(SQUARE, softmax),
  "layernorm4096": lambda: over(SQUARE, layernorm),
  "batchnorm": lambda: over((64, 64, 56, 56), batchnorm),
  "cumsum4096": lambda: over(SQUARE, lambda x: x.cumsum(1)),
  "argmax4096": lambda: over(SQUARE, lambda x: x.argmax(1), passes=1),
  "gather8192": gather,
  "depthwise": depthwise,
  "lstm32": lstm,
  "attention4096": lambda: attention(backward=False),
  "attention4096_train": lambda: attention(backward=True),
}
