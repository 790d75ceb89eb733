"""What a training leaves behind: a GGUF file, a picture of its losses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad.apps.gguf_writer import write_gguf
from tinygrad.apps.train_model import Sizes
from tinygrad.helpers import atomic_write
from tinygrad.nn.gguf import GGUF


def export_model(
  path: Path, s: Sizes, weights: dict[str, NDArray[np.float32]], tokenizer: Any, name: str, about: str
) -> None:
  """A GGUF file of the llama architecture: matrices as Q8_0 (F32 where rows are no multiple of 32), norms as F32; the
  embedding is the output matrix too."""
  vocabulary = tokenizer.get_vocab()
  merges = json.loads(tokenizer.to_str())["model"]["merges"]
  metadata = {
    "general.architecture": "llama",
    "general.name": name,
    "general.description": about,
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
  whole = {name for name, w in weights.items() if w.ndim == 2 and w.shape[-1] % 32 == 0}
  write_gguf(path, metadata, weights, dict.fromkeys(whole, "Q8_0"))


def read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
  """Every weight of a GGUF file in float32, as the app computes with it."""
  g = GGUF(path)
  return {name: g.tensor(name).float().numpy() for name in g.tensors}


def write_text(path: Path, text: str) -> None:
  with atomic_write(path) as f:
    f.write(text.encode())


def loss_curve(losses: Sequence[float], held_out: Sequence[tuple[int, float]], bits_per_nat_byte: float) -> str:
  """An SVG picture: bits per byte of training text at each step, its mean over 25 steps, and of the held-out modules.

  `bits_per_nat_byte` turns a loss (nats per token) into bits per byte: tokens / bytes of the training text / ln 2.
  """
  width, height, left, top, right, bottom = 760, 400, 56, 30, 16, 44
  bits = np.asarray(losses) * bits_per_nat_byte
  mean = [float(bits[max(0, i - 24) : i + 1].mean()) for i in range(len(bits))]
  low, high = min(1.0, float(np.floor(bits.min()))), max(2.0, float(np.ceil(bits.max())))

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
  parts.append(text(left + 270, 18, "held out", "start", "#c2410c"))
  parts.append(line([(i + 1, y) for i, y in enumerate(bits)], 'stroke="#1f5fa8" stroke-opacity="0.25"'))
  parts.append(line([(i + 1, y) for i, y in enumerate(mean)], 'stroke="#1f5fa8" stroke-width="1.5"'))
  parts.append(line(held_out, 'stroke="#c2410c" stroke-width="1.5"'))
  for p in held_out:
    x, y = point(*p).split(",")
    parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="#c2410c"><title>{p[0]} steps: {p[1]:.3f}</title></circle>')
  return "\n".join([*parts, "</svg>", ""])
