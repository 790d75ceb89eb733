"""Small llamas with fixed random weights for the tests: the tensors of a GGUF file, in its order and its precision.

numpy's RandomState is used because its streams never change. Needs numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extra.write_gguf import quantize_q8_0, write_gguf

WORDS = ["he", "ll", "hell", "hello", "wo", "rl", "worl", "world", "de", "def", "re", "tu", "rn", "turn", "return",
         "Ġhello", "Ġworld", "in", "Ġin"]  # fmt: skip
MERGES = ["h e", "l l", "he ll", "hell o", "w o", "r l", "wo rl", "worl d", "d e", "de f", "r e", "t u", "r n", "tu rn",
          "re turn", "Ġ hello", "Ġ world", "i n", "Ġ in"]  # fmt: skip


@dataclass(frozen=True)
class Tiny:
  """Sizes of a llama; `kind` is the type of its matrices."""

  name: str
  kind: str = "F32"
  dim: int = 64
  layers: int = 2
  heads: int = 4
  kv_heads: int = 4
  head_dim: int = 16
  ffn: int = 96
  vocab: int = 320
  context: int = 160
  rope_base: float = 10000.0
  tied: bool = False
  llama3_rope: bool = False
  seed: int = 0

  def metadata(self) -> dict[str, Any]:
    return {
      "general.architecture": "llama",
      "llama.context_length": self.context,
      "llama.embedding_length": self.dim,
      "llama.block_count": self.layers,
      "llama.feed_forward_length": self.ffn,
      "llama.attention.head_count": self.heads,
      "llama.attention.head_count_kv": self.kv_heads,
      "llama.attention.key_length": self.head_dim,
      "llama.attention.value_length": self.head_dim,
      "llama.attention.layer_norm_rms_epsilon": 1e-5,
      "llama.rope.freq_base": self.rope_base,
      "llama.rope.dimension_count": self.head_dim,
    } | tokenizer_metadata(self.vocab)

  def tensors(self) -> dict[str, np.ndarray]:
    """float32 tensors in the file's row order, before they are rounded to `kind`."""
    rng = np.random.RandomState(self.seed)

    def normal(*shape: int, scale: float) -> np.ndarray:
      return (rng.standard_normal(shape) * scale).astype(np.float32)

    q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
    out = {"token_embd.weight": normal(self.vocab, self.dim, scale=1), "output_norm.weight": self.gain(rng)}
    if not self.tied:
      out["output.weight"] = normal(self.vocab, self.dim, scale=0.5)
    if self.llama3_rope:
      out["rope_freqs.weight"] = self.rope_factors()
    for i in range(self.layers):
      out |= {f"blk.{i}.attn_norm.weight": self.gain(rng), f"blk.{i}.ffn_norm.weight": self.gain(rng)}
      for name, rows, cols in (
        ("attn_q", q, self.dim),
        ("attn_k", kv, self.dim),
        ("attn_v", kv, self.dim),
        ("attn_output", self.dim, q),
        ("ffn_gate", self.ffn, self.dim),
        ("ffn_up", self.ffn, self.dim),
        ("ffn_down", self.dim, self.ffn),
      ):
        # Twice the usual scale makes attention sharp, so that a wrong rotation or mask shows.
        out[f"blk.{i}.{name}.weight"] = normal(rows, cols, scale=2 / cols**0.5)
    return out

  def gain(self, rng: np.random.RandomState) -> np.ndarray:
    return (1 + 0.2 * rng.standard_normal(self.dim)).astype(np.float32)

  def rope_factors(self) -> np.ndarray:
    """By which Llama 3.1's scaling divides the frequencies: factor 8 for long waves, 1 for short, smooth between.

    Source: rope_type "llama3" in transformers' documentation (low_freq_factor 1, high_freq_factor 4, original 64).
    """
    frequency = self.rope_base ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
    wave = 2 * np.pi / frequency
    smooth = np.clip((64 / wave - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)

  def types(self) -> dict[str, str]:
    return {n: self.kind for n, x in self.tensors().items() if x.ndim == 2}

  def rounded(self) -> dict[str, np.ndarray]:
    """The float32 values that the file holds."""
    kinds = self.types()
    return {n: round_to(x, kinds.get(n, "F32")) for n, x in self.tensors().items()}

  def write(self, path: Path) -> Path:
    write_gguf(path, self.metadata(), self.tensors(), self.types())
    return path


def round_to(x: np.ndarray, kind: str) -> np.ndarray:
  if kind == "F16":
    return x.astype(np.float16).astype(np.float32)
  if kind == "F32":
    return x
  raw = np.frombuffer(quantize_q8_0(x), np.dtype([("d", "<f2"), ("q", "<i1", (32,))]))
  return (raw["d"].astype(np.float32)[:, None] * raw["q"].astype(np.float32)).reshape(x.shape)


def tokenizer_metadata(vocab: int) -> dict[str, Any]:
  printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF]
  others = [b for b in range(256) if b not in printable]
  tokens = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))] + WORDS
  special = ["<|begin_of_text|>", "<|end_of_text|>"]
  pads = [f"<|pad{i}|>" for i in range(vocab - len(tokens) - len(special))]
  n = len(tokens)
  return {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": tokens + special + pads,
    "tokenizer.ggml.token_type": [1] * n + [3] * (vocab - n),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": n,
    "tokenizer.ggml.eos_token_id": n + 1,
  }


CASES = {
  t.name: t
  for t in (
    Tiny("f32", seed=1),
    Tiny("f16_gqa_llama3_rope", kind="F16", heads=8, kv_heads=4, llama3_rope=True, rope_base=500000.0, seed=2),
    Tiny("q8_0_gqa_tied", kind="Q8_0", dim=128, heads=8, kv_heads=4, ffn=256, tied=True, layers=3, seed=3),
  )
}
# 48 tokens: a prompt of 40 takes two chunks of a prefill, and the rest is decoded.
TOKENS = [int(x) for x in np.random.RandomState(7).randint(0, 277, 48)]
PROMPTS = ["hello world", "def f(x):\n  return x", "a", " ", "\n\n", "größe", "漢字", "🙂 in hello", "return return",
           "0123456789" * 5, "hell", "world in world in world in world in world", "x = [1, 2, 3]",
           "import os\nimport sys", "The quick brown fox", "<html></html>",
           "\t\ttabs", "'quoted'", "# comment", "class A: pass"]  # fmt: skip
