"""Train the language model in the package: a llama of about 3M parameters on the sources of Python's standard library.

The batch is cut over one axis of the mesh, the weights over the other. Tensor parallel as in the app: q, k, v, gate and
up are cut by output rows, attn_output and down by input columns, the embedding (which is the output matrix too) by
vocabulary. Gradients, their sums over "dp" and the optimizer's state follow from that. docs/embedded_model.md is the
record of the run that made the file in the package.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extra.write_gguf import write_gguf
from tinygrad import Device, Mesh, P, Tensor, TinyJit, nn
from tinygrad.helpers import interruptible, tqdm
from tinygrad.nn.gguf import GGUF

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
# Tests, data tables, code of others, and what is generated when Python is installed.
SKIPPED = {"test", "tests", "idle_test", "encodings", "pydoc_data", "ensurepip", "site-packages", "dist-packages"}
HELD_OUT_BELOW = 10  # of 256, about one module in 26
CHECKPOINT = "checkpoint.safetensors"

EPILOG = """
examples:
  %(prog)s --out model.gguf --checkpoint-dir run --plot loss.svg      the whole run, on four devices
  %(prog)s --out model.gguf --checkpoint-dir run --resume             go on after Ctrl-C, to the same result
  %(prog)s --tiny --mesh 1 --tokens 20000 --out tiny.gguf             seconds, to see that it works
  python -m tinygrad.apps.llm --model model.gguf --prompt "def "      write text with the result

Ctrl-C finishes the step, writes a checkpoint and says how to go on; a second Ctrl-C ends at once, and the last
checkpoint stays whole.
"""


@dataclass(frozen=True, slots=True)
class Sizes:
  """Sizes of a llama. `heads`, `kv_heads`, `ffn` and `vocab` divide by 4, so that up to 4 devices share it evenly."""

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


# ---------------------------------------------------------------- the corpus


@dataclass(frozen=True, slots=True)
class Corpus:
  """Python's standard library: (name, text) of the modules to train on and of those held out; `hash` names them all."""

  train: tuple[tuple[str, str], ...]
  held_out: tuple[tuple[str, str], ...]
  hash: str

  @staticmethod
  def of_stdlib() -> Corpus:
    """The modules of the Python that runs this, by name. Which are held out depends on the name alone."""
    root = Path(sysconfig.get_path("stdlib"))
    train: list[tuple[str, str]] = []
    held_out: list[tuple[str, str]] = []
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
      name = path.relative_to(root).as_posix()
      folders = name.split("/")[:-1]
      if SKIPPED.intersection(folders) or any(f.startswith("config-") for f in folders):
        continue
      raw = path.read_bytes()
      if path.name.startswith("_sysconfigdata") or not raw.strip():
        continue
      digest.update(f"{name} {hashlib.sha256(raw).hexdigest()}\n".encode())
      is_held_out = hashlib.sha256(name.encode()).digest()[0] < HELD_OUT_BELOW
      (held_out if is_held_out else train).append((name, raw.decode()))
    return Corpus(tuple(train), tuple(held_out), digest.hexdigest())


def bytes_of(documents: Sequence[tuple[str, str]]) -> int:
  return sum(len(text.encode()) for _, text in documents)


def train_tokenizer(texts: Sequence[str], vocab: int) -> Any:
  """GPT-2's byte-level BPE, BOS token 0 and EOS token 1. The same texts in the same order give the same tokens."""
  from tokenizers import Tokenizer, models, pre_tokenizers, trainers

  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=vocab,
    special_tokens=[BOS, EOS],
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  tokenizer.train_from_iterator(texts, trainer)
  if tokenizer.get_vocab_size() != vocab:
    raise ValueError(f"these texts give {tokenizer.get_vocab_size()} tokens, not {vocab}; fix: more text, or fewer")
  return tokenizer


def encode(tokenizer: Any, texts: Sequence[str]) -> NDArray[np.uint16]:
  """All texts in a row, each as BOS, its tokens, EOS."""
  ids = [[0, *e.ids, 1] for e in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
  return np.concatenate(ids).astype(np.uint16)


class Batches:
  """Windows of `context` + 1 tokens, shuffled anew each epoch: `batches[i]` depends on i and the seed only."""

  def __init__(self, tokens: NDArray[np.uint16], sizes: Sizes, recipe: Recipe):
    self.tokens, self.context, self.batch = tokens, sizes.context, recipe.batch
    windows = (len(tokens) - 1) // self.context
    if windows < 1:
      raise ValueError(f"{len(tokens)} tokens do not fill one window of {self.context}; fix: a smaller context")
    epochs = math.ceil(recipe.steps(self.context) * self.batch / windows)
    # numpy promises that the numbers of RandomState stay the same in all versions.
    shuffle = np.random.RandomState(recipe.seed)
    self.order = np.concatenate([shuffle.permutation(windows) for _ in range(epochs)])

  def __getitem__(self, step: int) -> NDArray[np.int32]:
    starts = self.order[step * self.batch : (step + 1) * self.batch] * self.context
    if not 0 <= step or len(starts) < self.batch:
      raise IndexError(f"the schedule has no step {step}; fix: more --tokens")
    return np.stack([self.tokens[i : i + self.context + 1] for i in starts]).astype(np.int32)


# ---------------------------------------------------------------- the model


@dataclass(frozen=True, slots=True)
class Layout:
  """Where tensors go: a mesh with the axes "dp" (batch) and "tp" (weights), or one device."""

  where: str | Mesh

  @staticmethod
  def parse(spec: str) -> Layout:
    """ "2x2": batch cut in 2, weights cut in 2; "4": weights cut in 4; "1": the default device."""
    if not re.fullmatch(r"[1-9][0-9]?(x[1-9][0-9]?)?", spec):
      raise argparse.ArgumentTypeError(f"{spec!r} is no mesh; fix: DPxTP such as 2x2, or a number of devices")
    shape = tuple(int(n) for n in spec.split("x"))
    if math.prod(shape) == 1:
      return Layout(Device.DEFAULT)
    dp, tp = shape if len(shape) == 2 else (1, shape[0])
    return Layout(Mesh(tuple(f"{Device.DEFAULT}:{i}" for i in range(dp * tp)), (dp, tp), ("dp", "tp")))

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

  def __init__(self, s: Sizes, layout: Layout, seed: int):
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

  def __init__(self, sizes: Sizes, recipe: Recipe, layout: Layout):
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
      raise FloatingPointError(f"the loss of step {len(self.losses) + 1} is {loss}; fix: a lower learning rate")
    self.losses.append(loss)
    return loss

  def bits_per_byte(self, tokens: NDArray[np.uint16], nbytes: int) -> float:
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
    moments: dict[str, Tensor] = nn.state.get_state_dict(self.optimizers, "optimizer")
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
    """Go on from a checkpoint. Raises ValueError if it belongs to another model, recipe or corpus."""
    metadata = nn.state.safe_load_metadata(path)[2].get("__metadata__", {})
    if metadata.get("identity") != self.identity(corpus):
      raise ValueError(
        f"{path} is of another run:\n  there: {metadata.get('identity')}\n  here:  {self.identity(corpus)}\n"
        "  fix: the same options and the same Python, or begin anew without --resume"
      )
    nn.state.load_state_dict(self.state(), nn.state.safe_load(path), verbose=False)
    self.losses = json.loads(metadata["losses"])
    self.held_out = [(int(step), float(bits)) for step, bits in json.loads(metadata["held_out"])]


# ---------------------------------------------------------------- what the run leaves behind


def export(path: Path, s: Sizes, weights: dict[str, NDArray[np.float32]], tokenizer: Any, description: str) -> None:
  """A GGUF file of the llama architecture: matrices as Q8_0, norms as F32; the embedding is the output matrix too."""
  vocabulary = tokenizer.get_vocab()
  merges = json.loads(tokenizer.to_str())["model"]["merges"]
  metadata = {
    "general.architecture": "llama",
    "general.name": "stdlib-llama",
    "general.description": description,
    "llama.context_length": s.context,
    "llama.embedding_length": s.dim,
    "llama.block_count": s.layers,
    "llama.feed_forward_length": s.ffn,
    "llama.attention.head_count": s.heads,
    "llama.attention.head_count_kv": s.kv_heads,
    "llama.attention.layer_norm_rms_epsilon": s.eps,
    "llama.rope.dimension_count": s.head_dim,
    "llama.rope.freq_base": s.rope_base,
    "llama.vocab_size": s.vocab,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.__getitem__),
    "tokenizer.ggml.token_type": [3, 3, *[1] * (s.vocab - 2)],  # control, control, normal ..
    "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in merges],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.add_bos_token": True,
  }
  write_gguf(path, metadata, weights, {name: "Q8_0" for name, w in weights.items() if w.ndim == 2})


def read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
  """Every weight of a GGUF file in float32, as the app computes with it."""
  g = GGUF(path)
  return {name: g.tensor(name).float().numpy() for name in g.tensors}


def write_text(path: Path, text: str) -> None:
  """Under a temporary name, then renamed."""
  temporary = path.with_name(f"{path.name}.tmp")
  temporary.write_text(text, encoding="utf-8")
  temporary.replace(path)


def loss_curve(losses: Sequence[float], held_out: Sequence[tuple[int, float]], bits_per_nat_byte: float) -> str:
  """An SVG picture: bits per byte of training text at each step, its mean over 25 steps, and of the held-out modules.

  `bits_per_nat_byte` turns a loss (nats per token) into bits per byte: tokens / bytes of the training text / ln 2.
  """
  width, height, left, top, right, bottom = 760, 400, 56, 30, 16, 44
  bits = np.asarray(losses) * bits_per_nat_byte
  mean = [float(bits[max(0, i - 24) : i + 1].mean()) for i in range(len(bits))]
  low, high = 1.0, max(2.0, float(np.ceil(bits.max())))

  def point(step: float, y: float) -> str:
    px = left + step / max(1, len(bits)) * (width - left - right)
    py = top + (high - max(low, y)) / (high - low) * (height - top - bottom)
    return f"{px:.1f},{py:.1f}"

  def line(points: Sequence[tuple[float, float]], style: str) -> str:
    return f'<polyline fill="none" {style} points="{" ".join(point(*p) for p in points)}"/>'

  def text(x: float, y: float, words: str, anchor: str = "middle", color: str = "#333") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}">{words}</text>'

  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
    f'<rect width="{width}" height="{height}" fill="white"/>',
  ]
  for y in np.arange(low, high + 0.01, 0.5):
    parts.append(line([(0, y), (len(bits), y)], 'stroke="#ddd"'))
    parts.append(text(left - 8, float(point(0, y).split(",")[1]) + 4, f"{y:.1f}", "end"))
  for step in np.linspace(0, len(bits), 6).round().astype(int):
    parts.append(text(float(point(step, low).split(",")[0]), height - bottom + 18, str(step)))
  parts.append(text((left + width - right) / 2, height - 8, "steps"))
  parts.append(text(left, 18, "bits per byte:", "start"))
  parts.append(text(left + 90, 18, "training batch (mean of 25)", "start", "#1f5fa8"))
  parts.append(text(left + 270, 18, "held-out modules", "start", "#c2410c"))
  parts.append(line([(i + 1, y) for i, y in enumerate(bits)], 'stroke="#1f5fa8" stroke-opacity="0.25"'))
  parts.append(line([(i + 1, y) for i, y in enumerate(mean)], 'stroke="#1f5fa8" stroke-width="1.5"'))
  parts.append(line(held_out, 'stroke="#c2410c" stroke-width="1.5"'))
  for p in held_out:
    x, y = point(*p).split(",")
    parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="#c2410c"><title>{p[0]} steps: {p[1]:.3f}</title></circle>')
  return "\n".join([*parts, "</svg>", ""])


# ---------------------------------------------------------------- the program


def parser() -> argparse.ArgumentParser:
  p = argparse.ArgumentParser(
    prog="python -m extra.train_llm",
    description=__doc__,
    epilog=EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  recipe = Recipe()
  p.add_argument("--tokens", type=int, default=recipe.tokens, metavar="N", help="to train on (default: %(default)s)")
  p.add_argument("--steps", type=int, metavar="N", help="stop after this many steps of the same schedule")
  p.add_argument(
    "--mesh", type=Layout.parse, default="2x2", metavar="DPxTP", help="batch cut x weights cut (2x2); or 1"
  )
  p.add_argument("--seed", type=int, default=recipe.seed, metavar="N", help="of weights and order (default: 0)")
  p.add_argument("--tiny", action="store_true", help="a model of 100 thousand parameters, to try things out")
  p.add_argument("--out", type=Path, metavar="GGUF", help="write the model here (Q8_0), and measure it as written")
  p.add_argument("--checkpoint-dir", type=Path, metavar="DIR", help="keep checkpoints here")
  p.add_argument("--checkpoint-every", type=int, default=250, metavar="N", help="steps between two (default: 250)")
  p.add_argument("--eval-every", type=int, default=250, metavar="N", help="steps between measurements (default: 250)")
  p.add_argument("--resume", action="store_true", help="go on from the checkpoint in --checkpoint-dir, if there is one")
  p.add_argument("--losses", type=Path, metavar="JSON", help="write the loss of every step, and what it belongs to")
  p.add_argument("--batches", type=Path, metavar="NPZ", help="write the token windows of the steps done, for a test")
  p.add_argument("--plot", type=Path, metavar="SVG", help="draw the loss curve")
  return p


class Training:
  """One run of the command: what is read and made, trained, and written."""

  def __init__(self, a: argparse.Namespace, say: Callable[[str], None], console: Any) -> None:
    self.a, self.say = a, say
    self.sizes, self.recipe = TINY if a.tiny else Sizes(), Recipe(tokens=a.tokens, seed=a.seed)
    with console.status("reading the standard library, training the tokenizer"):
      self.corpus = corpus = Corpus.of_stdlib()
      self.tokenizer = train_tokenizer([text for _, text in corpus.train], self.sizes.vocab)
      self.tokens, self.held_out = (
        encode(self.tokenizer, [t for _, t in docs]) for docs in (corpus.train, corpus.held_out)
      )
    self.train_bytes, self.held_bytes = bytes_of(corpus.train), bytes_of(corpus.held_out)
    say(f"corpus: Python {platform.python_version()}, sha256 {corpus.hash}")
    size = f"{self.train_bytes} bytes, {len(self.tokens)} tokens of {self.sizes.vocab}"
    say(f"  train: {len(corpus.train)} modules, {size}")
    say(f"  held out: {len(corpus.held_out)} modules, {self.held_bytes} bytes, {len(self.held_out)} tokens")
    self.batches = Batches(self.tokens, self.sizes, self.recipe)
    self.trainer = Trainer(self.sizes, self.recipe, a.mesh)
    self.parameters = sum(math.prod(w.shape) for w in self.trainer.model.weights.values())
    say(f"model: {self.parameters} parameters on {a.mesh.where}")
    self.checkpoint: Path | None = a.checkpoint_dir / CHECKPOINT if a.checkpoint_dir else None

  @property
  def done(self) -> int:
    """Steps, those before a resumed run among them."""
    return len(self.trainer.losses)

  def resume(self) -> None:
    if self.checkpoint is None:
      return
    self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if self.a.resume and self.checkpoint.exists():
      self.trainer.load(self.checkpoint, self.corpus.hash)
      self.say(f"going on after {self.done} steps of {self.checkpoint}")

  def save(self) -> None:
    if self.checkpoint is not None:
      self.trainer.save(self.checkpoint, self.corpus.hash)

  def measure(self) -> None:
    bits = self.trainer.bits_per_byte(self.held_out, self.held_bytes)
    self.trainer.held_out.append((self.done, bits))
    loss = np.mean(self.trainer.losses[-25:])
    self.say(f"step {self.done}: loss {loss:.4f}, held out {bits:.4f} bits per byte")

  def train(self, last: int) -> bool:
    """Up to step `last`; whether it got there, rather than being interrupted. The checkpoint is written either way."""
    a, start, begun = self.a, time.perf_counter(), self.done
    with interruptible() as interrupted, tqdm(desc="train", total=last, initial=begun) as bar:
      while self.done < last and not interrupted():
        loss = self.trainer.step(self.batches[self.done])
        bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        bar.update()
        if self.done % a.eval_every == 0 and self.done < last:
          self.measure()
        if self.done % a.checkpoint_every == 0:
          self.save()
    seconds, seen = time.perf_counter() - start, (self.done - begun) * self.recipe.batch * self.sizes.context
    rate = f"this time {seen} tokens in {seconds:.0f} s ({seen / seconds:.0f} a second)"
    self.say(f"{self.done} of {self.trainer.steps} steps; {rate}")
    self.save()
    return self.done >= last

  def record(self) -> dict[str, Any]:
    return {
      "sizes": asdict(self.sizes),
      "recipe": asdict(self.recipe),
      "mesh": str(self.a.mesh.where),
      "python": platform.python_version(),
      "corpus": self.corpus.hash,
      "steps": self.done,
      "parameters": self.parameters,
      "held_out": self.trainer.held_out,
      "losses": self.trainer.losses,
    }

  def write(self) -> None:
    """The files that were asked for."""
    a, record = self.a, self.record()
    if a.out:
      seen = self.done * self.recipe.batch * self.sizes.context
      told = f"{seen} tokens of Python {platform.python_version()}'s standard library"
      about = f"Trained by extra/train_llm.py on {told}; see docs/embedded_model.md"
      export(a.out, self.sizes, self.trainer.arrays(), self.tokenizer, about)
      self.trainer.set_weights(read_weights(a.out))
      record["held_out_q8_0"] = bits = self.trainer.bits_per_byte(self.held_out, self.held_bytes)
      self.say(f"{a.out}: {a.out.stat().st_size} bytes, held out {bits:.4f} bits per byte as written")
    if a.losses:
      write_text(a.losses, json.dumps(record, indent=1) + "\n")
    if a.batches:
      with a.batches.with_name(f"{a.batches.name}.tmp").open("wb") as f:
        np.savez_compressed(f, batches=np.stack([self.batches[i] for i in range(self.done)]).astype(np.uint16))
      a.batches.with_name(f"{a.batches.name}.tmp").replace(a.batches)
    if a.plot:
      bits_per_nat_byte = len(self.tokens) / self.train_bytes / math.log(2)
      write_text(a.plot, loss_curve(self.trainer.losses, self.trainer.held_out, bits_per_nat_byte))


def run(a: argparse.Namespace, say: Callable[[str], None], console: Any) -> int:
  """Trains, measures and writes; 130 if it was interrupted."""
  t = Training(a, say, console)
  t.resume()
  if not t.train(min(t.trainer.steps, a.steps or t.trainer.steps)):
    say(f"stopped; go on with --resume --checkpoint-dir {a.checkpoint_dir}" if t.checkpoint else "stopped")
    return 130
  if not t.trainer.held_out or t.trainer.held_out[-1][0] != t.done:
    t.measure()
    t.save()
  t.write()
  return 0


def main(argv: Sequence[str] | None = None) -> int:
  from rich.console import Console

  p = parser()
  a = p.parse_args(argv)
  if a.resume and not a.checkpoint_dir:
    p.error("--resume needs --checkpoint-dir, where the checkpoint lies")
  if a.tokens < 1 or (a.steps is not None and a.steps < 1) or a.checkpoint_every < 1 or a.eval_every < 1:
    p.error("--tokens, --steps, --checkpoint-every and --eval-every count from 1")
  for path in (a.out, a.losses, a.batches, a.plot):
    if path and not path.parent.is_dir():  # better now than after an hour
      p.error(f"{path}: there is no folder {path.parent}; fix: mkdir -p {path.parent}")
  console = Console(stderr=True)
  try:
    return run(a, tqdm.write, console)
  except (ValueError, FloatingPointError) as e:
    console.print(f"train_llm: {e}", style="red", highlight=False, markup=False)
    return 1


if __name__ == "__main__":
  sys.exit(main())
