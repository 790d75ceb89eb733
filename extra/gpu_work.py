"""What `extra.gpu_check` runs on a GPU: inputs, a step, what it is to give, and what it takes at least."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygrad import Tensor, Variable, dtypes, nn
from tinygrad.nn.block_formats import FORMATS

Arrays = list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Work:
  """`shapes` of inputs of `dtype`; `step` of them, one Tensor; `want`: the same in numpy with float64, of the first
  `rows` rows of the result where that is much work. `flops` and `nbytes` (of memory, at least) are for all of it.
  `torch`: the step in PyTorch, of tensors t, of which a, b, c are the first, after what `before` says. `spread`: the
  standard deviation of the inputs. `kinds`: of inputs that have another type, by their number; of bytes `packed` makes
  what is sensible of random ones."""

  name: str
  shapes: tuple[tuple[int, ...], ...]
  step: Callable[..., Tensor]
  want: Callable[..., np.ndarray]
  flops: int
  nbytes: int
  dtype: Any = dtypes.float32
  torch: str = ""
  rows: int = 0
  before: str = ""
  spread: float = 1.0
  kinds: tuple[tuple[int, Any], ...] = ()
  packed: Callable[[np.ndarray], np.ndarray] = np.asarray

  def kind_of(self, i: int) -> Any:
    return dict(self.kinds).get(i, self.dtype)

  def inputs(self, device: str, numbers: np.random.Generator) -> tuple[list[Tensor], Arrays]:
    """On the device, and as the numbers that it has, in float64."""
    there, arrays = list[Tensor](), Arrays()
    for i, shape in enumerate(self.shapes):
      if self.kind_of(i) is dtypes.uint8:
        arrays.append(self.packed(numbers.integers(0, 256, shape, np.uint8)))
        there.append(Tensor(arrays[-1], device=device).realize())
      else:
        made = numbers.standard_normal(shape, np.float32) * np.float32(self.spread)
        there.append(Tensor(made, device=device).cast(self.kind_of(i)).realize())
        arrays.append(there[-1].cast(dtypes.float32).numpy().astype(np.float64))
    return there, arrays

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


def log_softmax(x: np.ndarray) -> np.ndarray:
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def tokens_of(x: Tensor, n: int) -> Tensor:
  """Numbers below n, by what inputs there are."""
  return (x.float() * 1e4).abs().cast(dtypes.int32) % n


def numbers_of(x: np.ndarray, n: int) -> np.ndarray:
  return np.abs(x.astype(np.float32) * np.float32(1e4)).astype(np.int32) % n


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


def losses_of(n: int, kind: Any) -> Iterator[Work]:
  """Whose rows are read once by those who keep them."""
  shape, size = (n, n), n * n * kind.itemsize
  functional = "torch.nn.functional"
  yield Work(
    f"log softmax {kind.name}",
    (shape,),
    lambda x: x.log_softmax(),
    log_softmax,
    5 * n * n,
    2 * size,
    kind,
    "a.log_softmax(1)",
  )
  yield Work(
    f"rms norm {kind.name}",
    (shape, (n,)),
    lambda x, w: x * (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt().cast(x.dtype) * w,
    lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w,
    4 * n * n,
    2 * size,
    kind,
    f"{functional}.rms_norm(a, a.shape[-1:], b, 1e-5)",
  )
  yield Work(
    f"cross entropy {kind.name}",
    (shape,),
    lambda x: x.float().sparse_categorical_crossentropy(tokens_of(x[:, 0], n), reduction="none"),
    lambda x: -log_softmax(x)[np.arange(n), numbers_of(x[:, 0], n)],
    5 * n * n,
    size,
    kind,
    f"{functional}.cross_entropy(a.float(), labels, reduction='none')",
    before=f"labels = (a[:, 0].float() * 1e4).abs().int().long() % {n}",
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
    places = tokens_of(x[:, 0], 1000).reshape(-1, 1).expand(*x.shape)
    return Tensor.zeros(1000, x.shape[1], device=x.device).scatter_reduce(0, places, x, "sum")

  def embedding_wanted(x: np.ndarray) -> np.ndarray:
    out = np.zeros((1000, x.shape[1]))
    np.add.at(out, numbers_of(x[:, 0], 1000), x)
    return out

  yield Work("embedding's gradient", ((4 * n, 256),), embedding, embedding_wanted, 4 * n * 256, 4 * 4 * n * 256)


def norm(x: np.ndarray) -> np.ndarray:
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def silu(x: np.ndarray) -> np.ndarray:
  return x / (1 + np.exp(-x))


@dataclass(frozen=True, slots=True)
class Shape:
  """Of a GPT without biases, whose head is its table of tokens."""

  batch: int
  length: int
  width: int
  heads: int
  layers: int
  vocabulary: int

  @property
  def weights(self) -> tuple[tuple[int, ...], ...]:
    d = self.width
    return ((self.vocabulary, d), (self.length, d), *((3 * d, d), (d, d), (4 * d, d), (d, 4 * d)) * self.layers)

  @property
  def products(self) -> int:
    """Weights that a token is multiplied by."""
    return 12 * self.layers * self.width**2 + self.vocabulary * self.width


def logits(ids: Any, table: Any, positions: Any, layers: Any, heads: int, attend: Callable[..., Any], of: Any) -> Any:
  """Of a GPT; `of`: layernorm and silu, of Tensors or of arrays."""
  x = table[ids] + positions
  batch, length, d = x.shape
  for i in range(0, len(layers), 4):
    qkv, out, up, down = layers[i : i + 4]
    q, k, v = ((of[0](x) @ qkv.T).reshape(batch, length, 3, heads, d // heads)[:, :, j] for j in range(3))
    x = x + attend(q, k, v).reshape(batch, length, d) @ out.T
    x = x + of[1](of[0](x) @ up.T) @ down.T
  return of[0](x) @ table.T


GPT = """
F = torch.nn.functional
ids = (a[:, :{length}].float() * 1e4).abs().int().long() % {vocabulary}
w = [x.mul_({spread}).requires_grad_() for x in t[1:]]
norm = lambda x: F.layer_norm(x, x.shape[-1:])
adam = torch.optim.AdamW(w, lr=0.0)
def train():
  adam.zero_grad()
  x = w[0][ids] + w[1]
  for i in range(2, len(w), 4):
    q, k, v = (norm(x) @ w[i].T).reshape({batch}, {length}, 3, {heads}, -1).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    x = x + y @ w[i + 1].T
    x = x + F.silu(norm(x) @ w[i + 2].T) @ w[i + 3].T
  F.cross_entropy((norm(x) @ w[0].T).float().flatten(0, 1), ids.roll(-1, 1).flatten()).backward()
  adam.step()
"""


def gpt_loss(s: Shape, x: np.ndarray, *weights: np.ndarray) -> np.ndarray:
  ids = numbers_of(x, s.vocabulary)

  def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(s.width // s.heads)
    there = np.tril(np.ones(scores.shape[-2:], bool))
    return np.einsum("bhqk,bkhd->bqhd", softmax(np.where(there, scores, -np.inf)), v)

  y = log_softmax(logits(ids, *weights[:2], weights[2:], s.heads, attend, (norm, silu)))
  return -np.take_along_axis(y, np.roll(ids, -1, 1)[..., None], -1).mean()


def gpt_step(s: Shape, kind: Any) -> Work:
  """Forward, backward and AdamW, which counts but moves nothing, so that each step has the same loss."""
  spread, optimizers = 0.05, dict[Any, Any]()

  def step(x: Tensor, *weights: Tensor) -> Tensor:
    ids = tokens_of(x, s.vocabulary)
    if (first := weights[0].uop.base) not in optimizers:  # of these weights
      optimizers[first] = nn.optim.AdamW([*weights], lr=0.0)
    adam = optimizers[first]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
      q, k, v = (y.transpose(1, 2) for y in (q, k, v))
      return q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)

    with Tensor.train():
      adam.zero_grad()
      y = logits(ids, *weights[:2], weights[2:], s.heads, attend, (Tensor.layernorm, Tensor.silu))
      loss = y.float().sparse_categorical_crossentropy(ids.roll(-1, 1))
      loss.backward()
      return loss.realize(*adam.schedule_step())

  tokens, nbytes = s.batch * s.length, sum(int(np.prod(w)) for w in s.weights)
  flops = 6 * tokens * (s.products + s.layers * s.length * s.width)
  before = GPT.format(spread=spread, **{f: getattr(s, f) for f in ("batch", "length", "heads", "vocabulary")})
  shapes, want = ((s.batch, s.length), *s.weights), functools.partial(gpt_loss, s)
  peer = "train()"
  return Work(
    f"GPT step {kind.name}",
    shapes,
    step,
    want,
    flops,
    nbytes * 24,
    kind,
    peer,
    0,
    before,
    spread,
    ((0, dtypes.float32),),
  )


DECODE = """
F = torch.nn.functional
t = [t[0], *(x.mul_({spread}) for x in t[1:])]
norm = lambda x: F.layer_norm(x, x.shape[-1:])
@torch.no_grad()
def decode():
  x = a
  for i in range(1, len(t), 5):
    q, k, v = (norm(x) @ t[i].T).reshape(3, {heads}, -1)
    t[i + 4][0, :, {at}], t[i + 4][1, :, {at}] = k, v
    k, v = t[i + 4][:, None, :, : {at} + 1]
    y = F.scaled_dot_product_attention(q[None, :, None], k, v).flatten()[None]
    x = x + y @ t[i + 1].T
    x = x + F.silu(norm(x) @ t[i + 2].T) @ t[i + 3].T
  return norm(x)
"""


def decode(s: Shape, kind: Any, at: int) -> Work:
  """What the layers make of one token at a position, which is known when it runs, with those before it in a cache."""
  d, spread = s.width // s.heads, 0.05
  layer = ((3 * s.width, s.width), (s.width, s.width), (4 * s.width, s.width), (s.width, 4 * s.width))
  shapes = ((1, s.width), *(*layer, (2, s.heads, s.length, d)) * s.layers)

  def step(x: Tensor, *rest: Tensor) -> Tensor:
    p = Variable("at", 0, s.length - 1).bind(at)
    for i in range(0, len(rest), 5):
      qkv, out, up, down, cache = rest[i : i + 5]
      q, *kv = (x.layernorm() @ qkv.T).reshape(3, s.heads, 1, d).split(1)
      cache[:, :, p : p + 1].assign(Tensor.cat(*kv)).realize()
      k, v = cache[0, :, : p + 1], cache[1, :, : p + 1]
      y = q[0].unsqueeze(0).scaled_dot_product_attention(k.unsqueeze(0), v.unsqueeze(0))
      x = x + y.reshape(1, s.width) @ out.T
      x = x + (x.layernorm() @ up.T).silu() @ down.T
    return x.layernorm()

  def want(x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    for i in range(0, len(rest), 5):
      qkv, out, up, down, cache = rest[i : i + 5]
      q, k, v = (norm(x) @ qkv.T).reshape(3, s.heads, 1, d)
      k, v = (np.concatenate((old[:, :at], new), 1) for old, new in zip(cache, (k, v)))
      y = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(d)) @ v
      x = x + y.reshape(1, -1) @ out.T
      x = x + silu(norm(x) @ up.T) @ down.T
    return norm(x)

  weights = 12 * s.layers * s.width**2
  nbytes = kind.itemsize * (weights + 2 * s.layers * s.width * (at + 1))
  before, flops = DECODE.format(spread=spread, heads=s.heads, at=at), 2 * weights + 4 * s.layers * s.width * (at + 1)
  return Work(f"decode {kind.name} at {at}", shapes, step, want, flops, nbytes, kind, "decode()", 0, before, spread)


def quantised(n: int, name: str) -> Work:
  """A matrix in blocks of 32 weights, a float16 and then their numbers, by a vector in floats."""
  kind = FORMATS[name]

  def packed(blocks: np.ndarray) -> np.ndarray:
    """The scales are 0.01 or so: no infinity among them."""
    blocks[..., 1] = 0x20 | blocks[..., 1] & 3
    return blocks

  def step(blocks: Tensor, x: Tensor) -> Tensor:
    return kind.tensor(blocks) @ x

  def want(blocks: np.ndarray, x: np.ndarray) -> np.ndarray:
    scales, rest = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64), blocks[..., 2:]
    numbers = rest.view(np.int8).astype(np.float64)
    if name == "Q4_0":
      numbers = np.concatenate((rest & 15, rest >> 4), -1).astype(np.float64) - 8
    return (numbers * scales).reshape(len(blocks), -1) @ x

  shape = (n, n // kind.weights, kind.nbytes)
  return Work(
    f"matvec {name}",
    (shape, (n,)),
    step,
    want,
    2 * n * n,
    int(np.prod(shape)),
    kinds=((0, dtypes.uint8),),
    packed=packed,
  )


def models(quick: bool) -> Iterator[Work]:
  small = Shape(2, 16, 32, 2, 1, 64) if quick else Shape(8, 1024, 768, 12, 4, 8192)
  cached = Shape(1, 64, 32, 2, 1, 64) if quick else Shape(1, 4096, 2048, 16, 4, 8192)
  for kind in (dtypes.float32, dtypes.bfloat16):
    yield gpt_step(small, kind)
    yield from (decode(cached, kind, at) for at in (10, 60 if quick else 4000))
  yield from (quantised(128 if quick else 8192, name) for name in ("Q4_0", "Q8_0"))


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
    "rows": [w for kind in kinds[:2] for of in (rows_of, losses_of) for w in of(n if quick else 2 * n, kind)],
    "attention": scores,
    "gradients": [*gradients(n)],
    "models": [*models(quick)],
  }
