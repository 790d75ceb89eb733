"""What `extra.gpu_check` runs on a GPU: inputs, a step, what it is to give, and what it takes at least."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygrad import Tensor, dtypes

Arrays = list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Work:
  """`shapes` of inputs of `dtype`; `step` of them, one Tensor; `want`: the same in numpy with float64, of the first
  `rows` rows of the result where that is much work. `flops` and `nbytes` (of memory, at least) are for all of it.
  `torch`: the step in PyTorch, of tensors a, b, c."""

  name: str
  shapes: tuple[tuple[int, ...], ...]
  step: Callable[..., Tensor]
  want: Callable[..., np.ndarray]
  flops: int
  nbytes: int
  dtype: Any = dtypes.float32
  torch: str = ""
  rows: int = 0

  def inputs(self, device: str, numbers: np.random.Generator) -> tuple[list[Tensor], Arrays]:
    """On the device, and as the numbers that it has, in float64."""
    made = [numbers.standard_normal(s, np.float32) for s in self.shapes]
    there = [Tensor(x, device=device).cast(self.dtype).realize() for x in made]
    return there, [t.cast(dtypes.float32).numpy().astype(np.float64) for t in there]

  @property
  def tolerance(self) -> float:
    """Of the largest element: a few roundings of the dtype, and of float32's sums."""
    return 4.0 * max(0.5 ** dtypes.finfo(self.dtype)[1], 2.0**-18)


def matmul(n: int, kind: Any, layout: str, odd: int = 0) -> Work:
  """Of matrices that lie as `layout` says: N by rows, T by columns."""
  m = n + odd
  sides = [(lambda x: x, lambda x: x.T)[c == "T"] for c in layout]
  peer = "@".join(f"{x}{'.T' * (c == 'T')}" for x, c in zip("ab", layout))
  return Work(
    f"matmul {kind.name} {m} {layout}",
    ((m, m), (m, m)),
    lambda x, y: sides[0](x) @ sides[1](y),
    lambda x, y: sides[0](x)[:8] @ sides[1](y),
    2 * m**3,
    3 * m * m * kind.itemsize,
    kind,
    peer,
    8,
  )


def softmax(x: np.ndarray) -> np.ndarray:
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def rows_of(n: int, kind: Any) -> Iterator[Work]:
  """Whose memory is what takes time."""
  shape, size = (n, n), n * n * kind.itemsize

  def layernorm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

  yield Work(f"copy {kind.name}", (shape,), lambda x: x.clone(), lambda x: x, 0, 2 * size, kind, "a.clone()")
  yield Work(f"add {kind.name}", (shape,) * 2, lambda x, y: x + y, lambda x, y: x + y, n * n, 3 * size, kind, "a+b")
  yield Work(
    f"sum of rows {kind.name}", (shape,), lambda x: x.sum(1), lambda x: x.sum(1), n * n, size, kind, "a.sum(1)"
  )
  columns = f"sum of columns {kind.name}"
  yield Work(columns, (shape,), lambda x: x.sum(0), lambda x: x.sum(0), n * n, size, kind, "a.sum(0)")
  yield Work(f"argmax {kind.name}", (shape,), lambda x: x.argmax(1), lambda x: x.argmax(1), n * n, size, kind)
  yield Work(
    f"softmax {kind.name}", (shape,), lambda x: x.softmax(), softmax, 5 * n * n, 2 * size, kind, "a.softmax(1)"
  )
  yield Work(f"layernorm {kind.name}", (shape,), lambda x: x.layernorm(), layernorm, 5 * n * n, 2 * size, kind)
  peer = "a@b[0]"
  yield Work(
    f"matvec {kind.name}", (shape, (1, n)), lambda x, y: x @ y[0], lambda x, y: x @ y[0], 2 * n * n, size, kind, peer
  )


def attention(heads: int, length: int, kind: Any, causal: bool) -> Work:
  """Forward, of one sequence."""
  shape, d = (1, heads, length, 64), 64

  def want(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q[:, :1] @ k[:, :1].swapaxes(-1, -2) / np.sqrt(d)
    if causal:
      scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return (softmax(scores) @ v[:, :1])[0]

  return Work(
    f"attention {kind.name} {length}{' causal' * causal}",
    (shape,) * 3,
    lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal).reshape(heads, length, d),
    want,
    4 * heads * length * length * d // (2 if causal else 1),
    4 * heads * length * d * kind.itemsize,
    kind,
    f"torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal={causal})",
    1,
  )


def gradients(n: int) -> Iterator[Work]:
  """Of a convolution's weights, and of an embedding's: scattered updates."""

  def conv(x: Tensor, w: Tensor) -> Tensor:
    return x.conv2d(w, padding=1)

  def conv_wanted(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x[:1], ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("bcyxij,ocij->boyx", windows, w)

  images, weights = (n // 64, 64, 56, 56), (64, 64, 3, 3)
  flops = 2 * n // 64 * 56 * 56 * 64 * 64 * 9
  nbytes = 8 * n // 64 * 64 * 56 * 56
  yield Work("convolution 3x3", (images, weights), conv, conv_wanted, flops, nbytes, rows=1)

  def embedding(x: Tensor) -> Tensor:
    return Tensor.zeros(1000, x.shape[1], device=x.device).scatter_reduce(
      0, places(x).reshape(-1, 1).expand(*x.shape), x, "sum"
    )

  def places(x: Any) -> Any:
    return (x[:, 0] * 1e4).abs().cast(dtypes.int32) % 1000

  def embedding_wanted(x: np.ndarray) -> np.ndarray:
    out = np.zeros((1000, x.shape[1]))
    np.add.at(out, np.abs(x[:, 0].astype(np.float32) * np.float32(1e4)).astype(np.int32) % 1000, x)
    return out

  yield Work("embedding's gradient", ((4 * n, 256),), embedding, embedding_wanted, 4 * n * 256, 4 * 4 * n * 256)


def all_work(quick: bool) -> dict[str, list[Work]]:
  """By section."""
  n = 128 if quick else 4096
  kinds = dtypes.float32, dtypes.bfloat16, dtypes.float16
  sizes = (64,) if quick else (512, 1024, 2048, 4096, 8192)
  products = [matmul(s, kind, "NN") for kind in kinds for s in sizes]
  products += [matmul(n, kind, layout) for kind in kinds for layout in ("NT", "TN", "TT")]
  products += [matmul(n, kind, "NN", odd) for kind in kinds for odd in (1, -3)]
  lengths = (64,) if quick else (1024, 4096)
  scores = [attention(4 if quick else 16, s, kind, c) for kind in kinds[:2] for s in lengths for c in (False, True)]
  return {
    "products": products,
    "rows": [w for kind in kinds[:2] for w in rows_of(n if quick else 2 * n, kind)],
    "attention": scores,
    "gradients": [*gradients(n)],
  }
