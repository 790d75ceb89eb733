"""Training steps to simulate, on a mesh with the axes "dp" (the batch is cut), "fsdp" (so are the weights, too, which
are gathered where they are used) and "tp" (Megatron's cuts of matrices and heads); each of them may be missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinygrad import nn
from tinygrad.device import Mesh, P, Sharding
from tinygrad.dtype import DType, dtypes
from tinygrad.tensor import Tensor

AXES = ("dp", "fsdp", "tp")
Step = Callable[[], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Size:
  """Of a model and its batch: `batch` sequences of `context` tokens in all."""

  layers: int
  width: int
  heads: int
  vocabulary: int
  batch: int
  context: int
  dtype: DType


class Parts:
  """Parameters and inputs on a mesh."""

  def __init__(self, mesh: Mesh, size: Size) -> None:
    self.mesh, self.size = mesh, size
    self.weights: list[Tensor] = []

  def names(self, *wanted: str) -> tuple[str, ...] | None:
    return tuple(name for name in wanted if name in self.mesh.names) or None

  def weight(self, rows: int, columns: int, cut: int | None) -> Callable[[], Tensor]:
    """A matrix, of which "tp" cuts the dim `cut`, and "fsdp" what it lies in; the call gives it where it is used."""
    dims = [self.names("tp") if cut == i else None for i in (0, 1)]
    other = 0 if cut == 1 else 1
    lies = [self.names("fsdp") if i == other else d for i, d in enumerate(dims)]
    w = Tensor.empty(rows, columns, dtype=self.size.dtype, device=Sharding(self.mesh, P(*lies)))
    w.requires_grad = True
    self.weights.append(w)
    return lambda: w.shard(Sharding(self.mesh, P(*dims)))

  def scale(self) -> Tensor:
    w = Tensor.empty(self.size.width, dtype=self.size.dtype, device=Sharding(self.mesh, P(None)))
    w.requires_grad = True
    self.weights.append(w)
    return w

  def tokens(self) -> Tensor:
    at = Sharding(self.mesh, P(self.names("dp", "fsdp"), None))
    return Tensor.empty(self.size.batch, self.size.context, dtype=dtypes.int32, device=at)


def norm(x: Tensor, scale: Tensor) -> Tensor:
  y = x.float()
  return (y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).cast(x.dtype) * scale


class DecoderLayer:
  """A layer of a transformer with normalization before attention and before the feed-forward part."""

  def __init__(self, parts: Parts) -> None:
    n = parts.size.width
    self.size, self.scales = parts.size, (parts.scale(), parts.scale())
    self.q, self.k, self.v = (parts.weight(n, n, 1) for _ in range(3))
    self.out, self.up, self.down = parts.weight(n, n, 0), parts.weight(n, 4 * n, 1), parts.weight(4 * n, n, 0)

  def heads(self, x: Tensor, w: Callable[[], Tensor]) -> Tensor:
    size = self.size
    return (x @ w()).reshape(size.batch, size.context, size.heads, size.width // size.heads).transpose(1, 2)

  def __call__(self, x: Tensor) -> Tensor:
    size, y = self.size, norm(x, self.scales[0])
    q, k, v = (self.heads(y, w) for w in (self.q, self.k, self.v))
    mixed = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)
    x = x + mixed.reshape(size.batch, size.context, size.width) @ self.out()
    return x + (norm(x, self.scales[1]) @ self.up()).gelu() @ self.down()


def transformer(mesh: Mesh, size: Size) -> Step:
  """A decoder: embedding, layers, the loss of the next token; a step of Adam."""
  parts = Parts(mesh, size)
  embed, head = parts.weight(size.vocabulary, size.width, 0), parts.weight(size.width, size.vocabulary, 1)
  layers, last = [DecoderLayer(parts) for _ in range(size.layers)], parts.scale()
  tokens, targets = parts.tokens(), parts.tokens()

  def loss() -> Tensor:
    x = embed()[tokens]
    for layer in layers:
      x = layer(x)
    return (norm(x, last) @ head()).float().sparse_categorical_crossentropy(targets)

  return adam(parts.weights, loss)


def mlp(mesh: Mesh, size: Size) -> Step:
  """Pairs of matrices with an activation between, on rows of `width` numbers; a step of Adam."""
  parts, n = Parts(mesh, size), size.width
  pairs = [(parts.weight(n, 4 * n, 1), parts.weight(4 * n, n, 0)) for _ in range(size.layers)]
  at = Sharding(mesh, P(parts.names("dp", "fsdp"), None))
  x = Tensor.empty(size.batch * size.context, size.width, dtype=size.dtype, device=at)

  def loss() -> Tensor:
    y = x
    for up, down in pairs:
      y = (y @ up()).relu() @ down()
    return y.float().square().mean()

  return adam(parts.weights, loss)


def adam(weights: Sequence[Tensor], loss: Callable[[], Tensor]) -> Step:
  """A step of Adam, not the first."""
  optimizer = nn.optim.Adam(list(weights))
  optimizer.lr.realize(optimizer.b1_t, optimizer.b2_t, *optimizer.m, *optimizer.v)

  def step() -> list[Tensor]:
    with Tensor.train():
      found = loss()
      found.backward()
      return [found, *optimizer.schedule_step()]

  return step


MODELS: dict[str, Callable[[Mesh, Size], Step]] = {"transformer": transformer, "mlp": mlp}


def operations(size: Size) -> float:
  """Of a step of a transformer, by the usual count: 6 for each weight of a matrix and token, and those of attention."""
  weights = size.layers * 12 * size.width**2 + size.vocabulary * size.width
  return 6.0 * size.batch * size.context * (weights + size.layers * size.context * size.width)
