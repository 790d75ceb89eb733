"""The model that is trained: a llama, its placement on a mesh, and the steps of an optimizer.

The batch is cut over one axis of the mesh, the weights over the other. Tensor parallel as in `apps/model.py`: q, k, v,
gate and up are cut by output rows, attn_output and down by input columns, the embedding (which is the output matrix
too) by vocabulary. Gradients, their sums over "dp" and the optimizer's state follow from that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad import Mesh, P, Tensor, TinyJit, nn
from tinygrad.apps.layout import mesh_over, parse_axes
from tinygrad.apps.train_data import Tokens, TrainError


@dataclass(frozen=True, slots=True)
class Sizes:
  """Sizes of a llama, and by default of the one in the package, in which heads, kv_heads, ffn and vocab divide by 4, so
  that up to 4 devices share it evenly."""

  dim: int = 256
  layers: int = 3
  heads: int = 8
  kv_heads: int = 4
  ffn: int = 512
  vocab: int = 4096
  context: int = 256
  eps: float = 1e-5
  rope_base: float = 10000.0

  @property
  def head_dim(self) -> int:
    return self.dim // self.heads


TINY = Sizes(dim=64, layers=2, heads=4, kv_heads=4, ffn=128, vocab=512, context=64)


@dataclass(frozen=True, slots=True)
class Recipe:
  """How to train: `tokens` in all decide the schedule; `batch` sequences a step; weight decay on matrices only."""

  tokens: int = 4_000_000
  batch: int = 8
  lr: float = 2e-3
  warmup: float = 0.05
  weight_decay: float = 0.3
  beta2: float = 0.95
  seed: int = 0

  def steps(self, context: int) -> int:
    return max(1, math.ceil(self.tokens / (self.batch * context)))

  def rate(self, step: int, steps: int) -> float:
    """The learning rate of step 0, 1, ..: linear over the first `warmup` of the steps, then half a cosine to 0."""
    rise = max(1, round(self.warmup * steps))
    if step < rise:
      return self.lr * (step + 1) / rise
    return self.lr * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


@dataclass(frozen=True, slots=True)
class TrainLayout:
  """Where tensors go: a mesh with the axes "dp" (batch) and "tp" (weights), or one device."""

  where: str | Mesh

  @staticmethod
  def parse(spec: str) -> TrainLayout:
    """ "2x2" or "dp=2,tp=2": batch cut in 2, weights cut in 2; "4": weights cut in 4; "1": the default device.

    Raises: ShardSpecError, TrainError.
    """
    axes = parse_axes(spec, "--mesh")
    if not set(axes) <= {"dp", "tp"}:
      raise TrainError(f"--mesh {spec!r} has other axes than dp and tp\n  fix: --mesh dp=2,tp=2")
    return TrainLayout(mesh_over({name: axes.get(name, 1) for name in ("dp", "tp")}))

  @property
  def shape(self) -> tuple[int, int]:
    """Into how many parts the batch and the weights are cut."""
    return (1, 1) if isinstance(self.where, str) else (int(self.where.shape[0]), int(self.where.shape[1]))

  def put(self, x: NDArray[Any], *cut: str | None) -> Tensor:
    """`x` on these devices, dim i cut over the axis `cut[i]`; dims without one are replicated."""
    t = Tensor(np.ascontiguousarray(x))
    return (t.to(self.where) if isinstance(self.where, str) else t.shard(self.where, P(*cut))).realize()


def initial_weights(s: Sizes, seed: int) -> Iterator[tuple[str, NDArray[np.float32], tuple[str | None, ...]]]:
  """(GGUF's name, value, how it is cut) of every weight. Matrices are (outputs, inputs), normal with deviation
  inputs^-1/2, those that add to the residual stream smaller by (2 * layers)^-1/2, the embedding 0.02; norms are 1.
  """
  normal = np.random.RandomState(seed).standard_normal
  rows, columns, kv, residual = ("tp",), (None, "tp"), s.kv_heads * s.head_dim, (2 * s.layers) ** -0.5

  def matrix(outputs: int, inputs: int, scale: float) -> NDArray[np.float32]:
    return (normal((outputs, inputs)) * scale).astype(np.float32)

  yield "token_embd.weight", matrix(s.vocab, s.dim, 0.02), rows
  for i in range(s.layers):
    yield f"blk.{i}.attn_norm.weight", np.ones(s.dim, np.float32), ()
    yield f"blk.{i}.attn_q.weight", matrix(s.dim, s.dim, s.dim**-0.5), rows
    yield f"blk.{i}.attn_k.weight", matrix(kv, s.dim, s.dim**-0.5), rows
    yield f"blk.{i}.attn_v.weight", matrix(kv, s.dim, s.dim**-0.5), rows
    yield f"blk.{i}.attn_output.weight", matrix(s.dim, s.dim, s.dim**-0.5 * residual), columns
    yield f"blk.{i}.ffn_norm.weight", np.ones(s.dim, np.float32), ()
    yield f"blk.{i}.ffn_gate.weight", matrix(s.ffn, s.dim, s.dim**-0.5), rows
    yield f"blk.{i}.ffn_up.weight", matrix(s.ffn, s.dim, s.dim**-0.5), rows
    yield f"blk.{i}.ffn_down.weight", matrix(s.dim, s.ffn, s.ffn**-0.5 * residual), columns
  yield "output_norm.weight", np.ones(s.dim, np.float32), ()


class Llama:
  """The model to train: `weights` by GGUF's names, float32, q and k with the pairs that rotate as neighbouring rows."""

  def __init__(self, s: Sizes, layout: TrainLayout, seed: int):
    self.s = s
    self.weights = {name: layout.put(x, *cut) for name, x, cut in initial_weights(s, seed)}
    angle = np.arange(s.context)[:, None] * s.rope_base ** (-np.arange(0, s.head_dim, 2) / s.head_dim)
    # A pair (a, b) turns to (a cos - b sin, b cos + a sin): pair * cos + flipped pair * (-sin, sin).
    self.cos = layout.put(np.cos(angle)[..., None].astype(np.float32))
    self.sin = layout.put(np.stack([-np.sin(angle), np.sin(angle)], -1).astype(np.float32))
    self.seen = layout.put(np.tri(s.context, dtype=np.bool_))  # [i, j]: does position i see position j?

  def norm(self, x: Tensor, name: str) -> Tensor:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight over the last dim."""
    return x * (x.square().mean(-1, keepdim=True) + self.s.eps).rsqrt() * self.weights[f"{name}.weight"]

  def linear(self, x: Tensor, name: str) -> Tensor:
    return x @ self.weights[f"{name}.weight"].transpose(0, 1)

  def rotate(self, x: Tensor) -> Tensor:
    """RoPE of x [.., T, head_dim] at positions 0 to T - 1."""
    pairs = x.reshape(*x.shape[:-1], self.s.head_dim // 2, 2)
    return (pairs * self.cos + pairs.flip(-1) * self.sin).reshape(*x.shape)

  def attention(self, x: Tensor, layer: str) -> Tensor:
    """Causal attention of x [B, T, dim] over itself; heads / kv_heads query heads share a head of keys and values."""
    s, (b, t, _) = self.s, x.shape
    q = self.linear(x, f"{layer}.attn_q").reshape(b, t, s.kv_heads, s.heads // s.kv_heads, s.head_dim)
    k = self.linear(x, f"{layer}.attn_k").reshape(b, t, s.kv_heads, 1, s.head_dim)
    v = self.linear(x, f"{layer}.attn_v").reshape(b, t, s.kv_heads, 1, s.head_dim)
    q, k, v = (y.permute(0, 2, 3, 1, 4) for y in (q, k, v))  # [B, kv_heads, group or 1, T, head_dim]
    scores = self.rotate(q) @ self.rotate(k).transpose(-1, -2) * s.head_dim**-0.5
    y = self.seen.where(scores, -math.inf).softmax(-1) @ v
    return self.linear(y.permute(0, 3, 1, 2, 4).reshape(b, t, s.dim), f"{layer}.attn_output")

  def logits(self, x: Tensor) -> Tensor:
    """Tokens [B, T] -> [B, T, vocab]."""
    h = self.weights["token_embd.weight"][x]
    for i in range(self.s.layers):
      layer = f"blk.{i}"
      h = h + self.attention(self.norm(h, f"{layer}.attn_norm"), layer)
      y = self.norm(h, f"{layer}.ffn_norm")
      y = self.linear(y, f"{layer}.ffn_gate").silu() * self.linear(y, f"{layer}.ffn_up")
      h = h + self.linear(y, f"{layer}.ffn_down")
    return self.linear(self.norm(h, "output_norm"), "token_embd")

  def nll(self, x: Tensor, y: Tensor) -> Tensor:
    """-ln p(y | x and what came before it): tokens [B, T], [B, T] -> [B, T], in nats."""
    logits = self.logits(x)
    # A mask of the target's place and a sum: the cut of the vocabulary stays, where a lookup would gather the logits.
    chosen = (Tensor.arange(self.s.vocab) == y.unsqueeze(-1)).where(logits, 0).sum(-1)
    return logits.logsumexp(-1) - chosen


class Trainer:
  """A model, its optimizers and the steps done; `step` trains on one batch, `bits_per_byte` measures."""

  def __init__(self, sizes: Sizes, recipe: Recipe, layout: TrainLayout):
    self.sizes, self.recipe, self.layout = sizes, recipe, layout
    self.steps = recipe.steps(sizes.context)
    self.losses: list[float] = []
    self.held_out: list[tuple[int, float]] = []  # (steps done, bits per byte)
    self.model = Llama(sizes, layout, recipe.seed)
    weights = list(self.model.weights.values())
    matrices, norms = ([w for w in weights if (w.ndim == 2) is is_matrix] for is_matrix in (True, False))
    groups = ((matrices, recipe.weight_decay), (norms, 0.0))
    self.optimizers = [
      nn.optim.AdamW(ws, lr=recipe.lr, b1=0.9, b2=recipe.beta2, eps=1e-8, weight_decay=decay) for ws, decay in groups
    ]
    self.group = nn.optim.OptimizerGroup(*self.optimizers)
    self._train, self._nll = TinyJit(self._train_step), TinyJit(self._nll_step)

  def _train_step(self, x: Tensor, y: Tensor) -> Tensor:
    self.group.zero_grad()
    loss = self.model.nll(x, y).mean()
    loss.backward()
    return loss.realize(*self.group.schedule_step())

  def _nll_step(self, x: Tensor, y: Tensor) -> Tensor:
    return self.model.nll(x, y).realize()

  def _place(self, batch: NDArray[np.int32]) -> tuple[Tensor, Tensor]:
    """Windows [B, T + 1] -> inputs and targets [B, T], cut by sequence."""
    return self.layout.put(batch[:, :-1], "dp"), self.layout.put(batch[:, 1:], "dp")

  def step(self, batch: NDArray[np.int32]) -> float:
    """One step of AdamW on windows [B, T + 1] at the schedule's present rate; the mean loss before it, in nats."""
    rate = self.recipe.rate(len(self.losses), self.steps)
    for o in self.optimizers:
      # The compiled step reads the buffer of `lr`.
      o.lr.assign([rate]).realize()
    with Tensor.train():
      loss = float(self._train(*self._place(batch)).item())
    if not math.isfinite(loss):
      raise TrainError(f"the loss of step {len(self.losses) + 1} is {loss}\n  fix: a lower --lr")
    self.losses.append(loss)
    return loss

  def bits_per_byte(self, tokens: Tokens, nbytes: int) -> float:
    """-log2 p(tokens 1, 2, .. of the row) / nbytes. Windows do not overlap: each begins without what came before it."""
    t, b = self.sizes.context, self.recipe.batch
    inputs, targets = tokens[:-1], tokens[1:]
    rows = math.ceil(len(targets) / (b * t)) * b
    is_real = np.arange(rows * t).reshape(rows, t) < len(targets)
    x, y = (np.resize(a, rows * t).reshape(rows, t).astype(np.int32) for a in (inputs, targets))
    total = 0.0
    for i in range(0, rows, b):
      part = slice(i, i + b)
      nll = self._nll(self.layout.put(x[part], "dp"), self.layout.put(y[part], "dp")).numpy()
      total += float(nll[is_real[part]].sum(dtype=np.float64))
    return total / math.log(2) / nbytes

  def arrays(self) -> dict[str, NDArray[np.float32]]:
    """Every weight on the host."""
    return {name: w.numpy() for name, w in self.model.weights.items()}

  def set_weights(self, values: dict[str, NDArray[np.float32]]) -> None:
    for name, w in self.model.weights.items():
      w.assign(Tensor(values[name])).realize()

  def state(self) -> dict[str, Tensor]:
    """All that changes from step to step: the weights and the optimizers' moments."""
    moments: dict[str, Tensor] = nn.state.get_state_dict(self.optimizers, "optimizer.")
    weights = {id(w) for w in self.model.weights.values()}
    kept = {k: t for k, t in moments.items() if id(t) not in weights and not k.endswith(".lr")}
    return {f"model.{k}": t for k, t in self.model.weights.items()} | kept

  def identity(self, corpus: str) -> str:
    """What a checkpoint must agree with, to be gone on from."""
    return json.dumps({"sizes": asdict(self.sizes), "recipe": asdict(self.recipe), "corpus": corpus}, sort_keys=True)

  def save(self, path: Path, corpus: str) -> None:
    """A checkpoint: a safetensors file, whole or not at all."""
    record = {"identity": self.identity(corpus), "losses": json.dumps(self.losses)}
    nn.state.safe_save(self.state(), path, record | {"held_out": json.dumps(self.held_out)})

  def load(self, path: Path, corpus: str) -> None:
    """Go on from a checkpoint. Raises TrainError if it belongs to another model, recipe or corpus."""
    metadata = nn.state.safe_load_metadata(path)[2].get("__metadata__", {})
    if metadata.get("identity") != self.identity(corpus):
      there, here = metadata.get("identity"), self.identity(corpus)
      fix = "the same options and the same texts (devices may differ), or begin anew without --resume"
      raise TrainError(f"{path} is of another run:\n  there: {there}\n  here:  {here}\n  fix: {fix}")
    nn.state.load_state_dict(self.state(), nn.state.safe_load(path), verbose=False)
    self.losses = json.loads(metadata["losses"])
    self.held_out = [(int(step), float(bits)) for step, bits in json.loads(metadata["held_out"])]
