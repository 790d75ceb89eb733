"""The sizes and kinds of one model, read from its metadata, checked, with what its family says of all its models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from tinygrad.apps.checkpoint import Checkpoint
from tinygrad.apps.models import FAMILIES
from tinygrad.apps.models.family import Family, Router
from tinygrad.apps.rope import Rope, Yarn, divided, long_rope_amplitude, plain_frequencies

DEFAULT_CONTEXT = 4096  # tokens; a model made for more takes them if asked to
LAST_POOLED = 3  # of GGUF's pooling_type
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerKind:
  """`window`: a token sees the last so many, itself among them; without one, all. Without a rope order is unseen."""

  window: int | None
  rope: Rope | None


@dataclass(frozen=True, slots=True)
class Experts:
  """`used` of `count` feed-forward networks of width `ffn` for each token, and one of width `shared` for all."""

  count: int
  used: int
  ffn: int
  shared: int
  router: int  # one of `Router`
  normalised: bool  # the weights of the chosen sum to 1
  scale: float


@dataclass(frozen=True, slots=True)
class Weight:
  """What a model has to have."""

  name: str
  shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Config:
  """A model: its family, its sizes, and factors; `neighbours`: the pairs of dims that turn are (0, 1), (2, 3), …"""

  family: Family
  neighbours: bool
  dim: int
  heads: int
  kv_heads: int
  head_dim: int
  ffn: int
  vocab: int
  context: int
  eps: float
  kinds: tuple[LayerKind, ...]
  experts: Experts | None
  score_scale: float
  score_cap: float  # scores s become cap · tanh(s / cap); 0: they stay
  logit_cap: float
  embedding_scale: float
  residual_scale: float
  logit_scale: float  # logits are divided by it
  biases: frozenset[str]
  pooling: str = "mean"  # of the states of a text, for its embedding; or "last"

  @property
  def layers(self) -> int:
    return len(self.kinds)

  @staticmethod
  def read(source: Checkpoint, context: int | None = None) -> Config:
    """`context` tokens, at most the model's own length; without it, at most 4096.

    Raises: GGUFError or FolderError for a model of no known family, or whose parts do not fit together.
    """
    arch = source.get("general.architecture", str)
    fix = f"use a model of one of {', '.join(FAMILIES)}"
    source.check(arch in FAMILIES, "'general.architecture'", f"{arch!r} is not supported", fix)
    return _Reader(source, arch).config(context)

  def weights(self) -> Iterator[Weight]:
    """Every weight; `output.weight` is the embedding itself where the file has none."""
    yield Weight("token_embd.weight", (self.vocab, self.dim))
    yield Weight("output.weight", (self.vocab, self.dim))
    yield Weight("output_norm.weight", (self.dim,))
    for i in range(self.layers):
      for w in self._attention():
        yield replace(w, name=f"blk.{i}.{w.name}")
      for w in self._feed_forward():
        yield replace(w, name=f"blk.{i}.{w.name}")

  def _attention(self) -> Iterator[Weight]:
    f, q, kv = self.family, self.heads * self.head_dim, self.kv_heads * self.head_dim
    before, after = f.norms.value
    yield from self._norms(("attn_norm", "ffn_norm") if before else (), self.dim)
    yield from self._norms(("post_attention_norm", "post_ffw_norm") if after else (), self.dim)
    for name, rows in {"attn_q": q, "attn_k": kv, "attn_v": kv}.items():
      yield from self._matrix(name, (rows, self.dim))
      if f.query_norm != "none" and name != "attn_v":
        yield Weight(f"{name}_norm.weight", (self.head_dim if f.query_norm == "head" else rows,))
    yield from self._matrix("attn_output", (self.dim, q))
    if f.sinks:
      yield Weight("attn_sinks.weight", (self.heads,))

  def _feed_forward(self) -> Iterator[Weight]:
    if self.experts is None:
      yield from self._gated("", (), self.ffn)
      return
    e = self.experts
    yield from self._matrix("ffn_gate_inp", (e.count, self.dim))
    yield from self._gated("_exps", (e.count,), e.ffn)
    if e.shared:
      yield from self._gated("_shexp", (), e.shared)
    if e.shared and self.family.shared_gate:
      yield Weight("ffn_gate_inp_shexp.weight", (self.dim,))

  def _gated(self, end: str, lead: tuple[int, ...], ffn: int) -> Iterator[Weight]:
    yield from self._matrix(f"ffn_gate{end}", (*lead, ffn, self.dim))
    yield from self._matrix(f"ffn_up{end}", (*lead, ffn, self.dim))
    yield from self._matrix(f"ffn_down{end}", (*lead, self.dim, ffn))

  def _matrix(self, name: str, shape: tuple[int, ...]) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", shape)
    if name in self.biases:
      yield Weight(f"{name}.bias", shape[:-1])

  def _norms(self, names: tuple[str, ...], size: int) -> Iterator[Weight]:
    return (Weight(f"{name}.weight", (size,)) for name in names)


class _Reader:
  """Values of one model's metadata, each checked; what a file leaves out is the family's default."""

  def __init__(self, source: Checkpoint, arch: str):
    self.source, self.arch, self.family = source, arch, FAMILIES[arch]
    self.defaults: dict[str, Any] = {}
    known = {key: self.size(key) for key in ("embedding_length", "block_count", "attention.head_count")}
    self.defaults = self.family.defaults(known)

  def get(self, key: str, kind: type[T], default: T | None = None) -> T:
    found: T = self.source.get(f"{self.arch}.{key}", kind, self.defaults.get(key, default))
    return found

  def check(self, ok: Any, key: str, problem: str, fix: str | None = None) -> None:
    at = (f"'{self.arch}.{key}'", problem)
    self.source.check(ok, *at) if fix is None else self.source.check(ok, *at, fix)

  def size(self, key: str, default: int | None = None) -> int:
    n = self.get(key, int, default)
    self.check(1 <= n <= 1 << 24, key, f"{n} is not possible")
    return n

  def number(self, key: str, default: float | None = None) -> float:
    x = self.get(key, float, default)
    self.check(math.isfinite(x), key, f"{x} is not possible")
    return x

  def factor(self, key: str, default: float = 1.0) -> float:
    x = self.number(key, default)
    self.check(x > 0, key, f"{x} is not possible")
    return x

  def config(self, context: int | None) -> Config:
    shapes, f = self.source.shapes, self.family
    self.source.check("token_embd.weight" in shapes, "tensor 'token_embd.weight'", "is missing")
    table = shapes["token_embd.weight"]
    self.source.check(len(table) == 2, "tensor 'token_embd.weight'", f"is {list(table)}, and no matrix")
    dim, heads, longest = self.size("embedding_length"), self.size("attention.head_count"), self.size("context_length")
    head_dim = self.size("attention.key_length", max(dim // heads, 1))
    kv_heads, eps = self.size("attention.head_count_kv", heads), self.number("attention.layer_norm_rms_epsilon")
    self.check(
      heads % kv_heads == 0, "attention.head_count_kv", f"{heads} heads are no multiple of {kv_heads} kv heads"
    )
    self.check(0 < eps < 1, "attention.layer_norm_rms_epsilon", f"{eps} is not possible")
    same = self.size("attention.value_length", head_dim) == head_dim
    fix = "use a model in which it equals attention.key_length"
    self.check(same, "attention.value_length", f"is not {head_dim}", fix)
    experts = self.experts() if self.source.metadata.get(f"{self.arch}.expert_count") else None
    tokens = min(longest, context or DEFAULT_CONTEXT)
    free = {name for name in f.free_biases if any(k.endswith(f".{name}.bias") for k in shapes)}
    c = Config(
      family=f, neighbours=f.neighbours and not self.source.halves,
      dim=dim, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
      ffn=experts.ffn if experts else self.size("feed_forward_length"), vocab=table[0],
      context=tokens, eps=eps, kinds=self.kinds(head_dim, tokens, longest), experts=experts,
      score_scale=self.factor("attention.scale", head_dim**-0.5),
      score_cap=self.number("attn_logit_softcapping", 0.0), logit_cap=self.number("final_logit_softcapping", 0.0),
      embedding_scale=self.factor("embedding_scale"), residual_scale=self.factor("residual_scale"),
      logit_scale=self.factor("logit_scale"), biases=frozenset(f.biases) | free,
      pooling="last" if self.get("pooling_type", int, 0) == LAST_POOLED else "mean",
    )  # fmt: skip
    return c

  def experts(self) -> Experts:
    problem = "models of this family have no experts"
    self.check("expert_gating_func" in self.defaults, "expert_count", problem, "use a dense model")
    count, used, router = self.size("expert_count"), self.size("expert_used_count"), self.get("expert_gating_func", int)
    self.check(used <= count, "expert_used_count", f"{used} of {count} experts is not possible")
    known = (Router.SOFTMAX, Router.CHOSEN)
    self.check(router in known, "expert_gating_func", f"{router} is not known; known are {known}")
    width = f"{self.arch}.feed_forward_length"
    ffn = self.size("expert_feed_forward_length", self.source.get(width, int, 0) or None)
    shared = self.get("expert_shared_feed_forward_length", int, 0)
    self.check(0 <= shared <= 1 << 24, "expert_shared_feed_forward_length", f"{shared} is not possible")
    normalised, scale = self.get("expert_weights_norm", bool, False), self.factor("expert_weights_scale")
    return Experts(count, used, ffn, shared, router, normalised, scale)

  def kinds(self, head_dim: int, tokens: int, longest: int) -> tuple[LayerKind, ...]:
    """Each layer's window and rope."""
    layers = self.size("block_count")
    window = self.get("attention.sliding_window", int, 0)
    self.check(0 <= window < 1 << 32, "attention.sliding_window", f"{window} is not possible")
    slides = self.pattern("attention.sliding_window_pattern", layers) if window else [False] * layers
    turns = [bool(x) for x in self.listed("rope.layers", layers, True)]
    full = sliding = self.rope(head_dim, tokens, longest)
    if base := self.number("rope.freq_base_swa", 0.0):
      self.check(base > 1, "rope.freq_base_swa", f"{base} is not possible")
      sliding = Rope(divided(plain_frequencies(base, 2 * len(full.frequencies)), 1.0))
    return tuple(
      LayerKind(window if slides[i] else None, (sliding if slides[i] else full) if turns[i] else None)
      for i in range(layers)
    )

  def pattern(self, key: str, layers: int) -> list[bool]:
    """Which layers slide: as a list, or all but each n-th; without it, all."""
    found = self.source.metadata.get(f"{self.arch}.{key}", self.defaults.get(key))
    if type(found) is int:
      n = self.size(key)
      return [i % n < n - 1 for i in range(layers)]
    return [bool(x) for x in self.listed(key, layers, True)]

  def listed(self, key: str, layers: int, default: bool) -> list[Any]:
    found: list[Any] = self.get(key, list, [default] * layers)
    self.check(len(found) == layers, key, f"has {len(found)} entries for {layers} layers")
    return found

  def rope(self, head_dim: int, tokens: int, longest: int) -> Rope:
    """By the metadata and the tensors that divide frequencies: rope_freqs (Llama 3.1), rope_factors_* (LongRoPE)."""
    dims, base = self.size("rope.dimension_count", head_dim), self.number("rope.freq_base", 10000.0)
    kind = self.get("rope.scaling.type", str, "none")
    stretch = self.factor("rope.scaling.factor") if kind in ("linear", "yarn") else 1.0
    problem = f"{dims} of {head_dim} dims, base {base}, scale {stretch} cannot rotate"
    self.source.check(base > 1 and dims <= head_dim and dims % 2 == 0, f"'{self.arch}.rope.*'", problem)
    known = ("none", "linear", "yarn", "longrope")
    problem = f"{kind!r} is not supported; supported are {', '.join(known)}, and rope_freqs.weight"
    self.check(kind in known, "rope.scaling.type", problem, "use a model without it")
    plain = plain_frequencies(base, dims)
    if kind == "yarn":
      original = self.size("rope.scaling.original_context_length", longest)
      fast, slow = self.factor("rope.scaling.yarn_beta_fast", 32.0), self.factor("rope.scaling.yarn_beta_slow", 1.0)
      yarn = Yarn(stretch, original, fast, slow, self.get("rope.scaling.truncate", bool, True))
      amplitude = self.factor("rope.scaling.attn_factor", yarn.amplitude)
      return Rope(divided(yarn.frequencies(base, dims), 1.0), amplitude)
    if "rope_factors_long.weight" in self.source.shapes:
      original = self.size("rope.scaling.original_context_length")
      name = f"rope_factors_{'long' if tokens > original else 'short'}.weight"
      amplitude = self.factor("rope.scaling.attn_factor", long_rope_amplitude(longest, original))
      return Rope(divided(plain, self.divisors(name, dims)), amplitude)
    if "rope_freqs.weight" in self.source.shapes:
      return Rope(divided(plain, self.divisors("rope_freqs.weight", dims)))
    return Rope(divided(plain, stretch))

  def divisors(self, name: str, dims: int) -> Any:
    shape = self.source.shapes[name]
    self.source.check(shape == (dims // 2,), f"tensor {name!r}", f"is {list(shape)}, not {[dims // 2]}")
    stored = self.source.stored(name)
    plain = stored.format.name in ("F32", "F16")
    self.source.check(plain, f"tensor {name!r}", f"is {stored.format.name}, not F32 or F16")
    x = stored.blocks.reshape(-1).astype(np.float64)
    self.source.check(bool((x > 0).all() and np.isfinite(x).all()), f"tensor {name!r}", "cannot divide frequencies")
    return x
