"""The llama architecture over the public `Tensor` API, from a GGUF file, on one device or cut over several.

Tensor parallel: q, k, v, gate and up are cut by their output rows, attn_output and down by their input columns, the
embedding and the output matrix by vocabulary, and the KV cache by kv head. So a layer reduces two sums: after
attn_output and after down. Activations between layers are replicated; everything between is placed by propagation.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinygrad import Device, Mesh, P, Sharding, Tensor, TinyJit, UOp, Variable
from tinygrad.apps import AppError
from tinygrad.apps.tokenizer import TokenError, check_tokens
from tinygrad.nn.gguf import GGUF
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, buffer_of

CHUNK = 32  # tokens of a prompt that one prefill step takes; the last chunk is padded
DEFAULT_CONTEXT = 4096  # tokens; a model made for more takes them if asked to


class ShardSpecError(AppError):
  """A --shard that cannot be: names the value and a fix."""


@dataclass(frozen=True, slots=True)
class Layout:
  """Where weights go: one device, or a mesh over all of whose axes they are cut."""

  where: str | Mesh

  @staticmethod
  def parse(spec: str) -> Layout:
    """ "2": two devices in a row; "2x2": a mesh with the axes dp and tp; "1": the default device."""
    if not re.fullmatch(r"[1-9][0-9]{0,2}(x[1-9][0-9]{0,2})?", spec):
      raise ShardSpecError(f"--shard {spec!r} is no number of devices\n  fix: --shard 2, or a mesh as --shard 2x2")
    shape = tuple(int(n) for n in spec.split("x"))
    if math.prod(shape) == 1:
      return Layout(Device.DEFAULT)
    devices = tuple(f"{Device.DEFAULT}:{i}" for i in range(math.prod(shape)))
    return Layout(Mesh(devices, shape, ("tp",) if len(shape) == 1 else ("dp", "tp")))

  @property
  def count(self) -> int:
    return 1 if isinstance(self.where, str) else math.prod(self.where.shape)

  def put(self, x: Tensor | NDArray[np.generic], axis: int | None = None) -> Tensor:
    """`x` on these devices, cut along `axis`, or replicated. Of a host array each device receives its slice only."""
    t = x if isinstance(x, Tensor) else Tensor(x)
    if isinstance(self.where, str):
      return t.to(self.where)
    return t.shard(Sharding(self.where, P() if axis is None else P(*[None] * axis, tuple(self.where.names))))


@dataclass(frozen=True, slots=True)
class Config:
  """Sizes of a llama; `rope_dim` leading dims of each head rotate, at frequencies `rope_base ** (-2i / rope_dim)`."""

  dim: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  ffn: int
  vocab: int
  context: int
  eps: float
  rope_base: float
  rope_dim: int
  rope_scale: float

  @staticmethod
  def from_gguf(g: GGUF, context: int | None = None) -> Config:
    """`context` tokens, at most the file's own length; without it, at most 4096.

    Raises GGUFError for what is not a llama, or does not fit together.
    """
    arch = g.get("general.architecture", str)
    fix = "use a model of the llama architecture"
    g.check(arch == "llama", "'general.architecture'", f"{arch!r} is not supported", fix)

    def size(key: str, default: int | None = None) -> int:
      n = g.get(f"llama.{key}", int, default)
      g.check(1 <= n <= 1 << 24, f"'llama.{key}'", f"{n} is not possible")
      return n

    embedding = g.info("token_embd.weight")
    dim, heads, longest = size("embedding_length"), size("attention.head_count"), size("context_length")
    head_dim = size("attention.key_length", max(dim // heads, 1))
    scaling = g.get("llama.rope.scaling.type", str, "none")
    problem = f"{scaling!r} is not supported; supported are none, linear, and rope_freqs.weight"
    g.check(scaling in ("none", "linear"), "'llama.rope.scaling.type'", problem, "use a model without it")
    dense = not g.metadata.get("llama.expert_count")
    g.check(dense, "'llama.expert_count'", "mixtures of experts are not supported", "use a dense model")
    c = Config(
      dim=dim, layers=size("block_count"), heads=heads, kv_heads=size("attention.head_count_kv", heads),
      head_dim=head_dim, ffn=size("feed_forward_length"), vocab=embedding.shape[0],
      context=min(longest, context or DEFAULT_CONTEXT), eps=g.get("llama.attention.layer_norm_rms_epsilon", float),
      rope_base=g.get("llama.rope.freq_base", float, 10000.0), rope_dim=size("rope.dimension_count", head_dim),
      rope_scale=g.get("llama.rope.scaling.factor", float, 1.0) if scaling == "linear" else 1.0,
    )  # fmt: skip
    problem = f"{c.heads} heads are no multiple of {c.kv_heads} kv heads"
    g.check(c.heads % c.kv_heads == 0, "'llama.attention.head_count_kv'", problem)
    g.check(0 < c.eps < 1, "'llama.attention.layer_norm_rms_epsilon'", f"{c.eps} is not possible")
    finite = all(0 < x < math.inf for x in (c.rope_base, c.rope_scale))
    problem = f"{c.rope_dim} of {head_dim} dims, base {c.rope_base}, scale {c.rope_scale} cannot rotate"
    g.check(finite and c.rope_dim <= head_dim and c.rope_dim % 2 == 0, "'llama.rope.*'", problem)
    fix = "use a model in which it equals attention.key_length"
    same = size("attention.value_length", head_dim) == head_dim
    g.check(same, "'llama.attention.value_length'", f"is not {head_dim}", fix)
    return c

  def weights(self) -> Iterator[tuple[str, tuple[int, ...], int | None]]:
    """Every weight's name, shape and cut dim; `output.weight` is the embedding itself where the file has none."""
    q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
    yield "token_embd.weight", (self.vocab, self.dim), 0
    yield "output.weight", (self.vocab, self.dim), 0
    yield "output_norm.weight", (self.dim,), None
    for i in range(self.layers):
      for kind in ("attn", "ffn"):
        yield f"blk.{i}.{kind}_norm.weight", (self.dim,), None
      for name, rows in {"attn_q": q, "attn_k": kv, "attn_v": kv, "ffn_gate": self.ffn, "ffn_up": self.ffn}.items():
        yield f"blk.{i}.{name}.weight", (rows, self.dim), 0
      for name, columns in {"attn_output": q, "ffn_down": self.ffn}.items():
        yield f"blk.{i}.{name}.weight", (self.dim, columns), 1


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
  """x / sqrt(mean(x^2) + eps) * weight over the last dim."""
  return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rope_tables(c: Config, length: int, factors: NDArray[np.float32] | None) -> tuple[NDArray[np.float32], ...]:
  """cos [length, rope_dim/2, 1], and sin [length, rope_dim/2, 2] with the first of the pair negated.

  A pair (a, b) at position p turns by p * base^(-2i/rope_dim): (a cos - b sin, b cos + a sin), which is
  pair * cos + flipped pair * (-sin, sin). Pairs are neighbours: GGUF files have the rows of q and k in that order.
  """
  frequency = c.rope_base ** (-np.arange(0, c.rope_dim, 2) / c.rope_dim) / c.rope_scale
  if factors is not None:
    frequency = frequency / factors
  angle = np.arange(length)[:, None] * frequency
  sin = np.stack([-np.sin(angle), np.sin(angle)], -1)
  return np.cos(angle)[..., None].astype(np.float32), sin.astype(np.float32)


class Layer:
  """One block of the model with its KV cache, [1, kv_heads, length, head_dim] each for keys and values."""

  def __init__(self, c: Config, weights: dict[str, Tensor], i: int, layout: Layout, length: int):
    self.c = c
    prefix = f"blk.{i}."
    self.w = {k.removeprefix(prefix).removesuffix(".weight"): w for k, w in weights.items() if k.startswith(prefix)}
    shape = (1, c.kv_heads, length, c.head_dim)
    self.keys, self.values = (layout.put(Tensor.zeros(*shape), 1).contiguous().realize() for _ in range(2))

  def linear(self, x: Tensor, name: str) -> Tensor:
    return x @ self.w[name].transpose(0, 1)

  def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of x [.., T, head_dim] by tables of these T positions."""
    turning, rest = x[..., : self.c.rope_dim], x[..., self.c.rope_dim :]
    pairs = turning.reshape(*x.shape[:-1], self.c.rope_dim // 2, 2)
    turned = (pairs * cos + pairs.flip(-1) * sin).reshape(*x.shape[:-1], self.c.rope_dim)
    return turned if self.c.rope_dim == self.c.head_dim else turned.cat(rest, dim=-1)

  def attention(self, x: Tensor, pos: UOp, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
    c, t = self.c, x.shape[1]
    q = self.linear(x, "attn_q").reshape(1, t, c.kv_heads, c.heads // c.kv_heads, c.head_dim).permute(0, 2, 3, 1, 4)
    k = self.linear(x, "attn_k").reshape(1, t, c.kv_heads, c.head_dim).permute(0, 2, 1, 3)
    v = self.linear(x, "attn_v").reshape(1, t, c.kv_heads, c.head_dim).permute(0, 2, 1, 3)
    self.keys[:, :, pos : pos + t] = self.rotate(k, cos, sin)
    self.values[:, :, pos : pos + t] = v
    # [1, kv_heads, heads of one kv head, T, seen positions]
    keys, values = (x[:, :, : pos + t].unsqueeze(2) for x in (self.keys, self.values))
    y = self.rotate(q, cos, sin).scaled_dot_product_attention(keys, values, mask)
    return self.linear(y.permute(0, 3, 1, 2, 4).reshape(1, t, c.heads * c.head_dim), "attn_output")

  def __call__(self, x: Tensor, pos: UOp, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
    """x [1, T, dim], replicated, at positions pos to pos + T - 1; the mask [T, pos + T] says who sees whom."""
    x = x + self.attention(rms_norm(x, self.w["attn_norm"], self.c.eps), pos, cos, sin, mask)
    h = rms_norm(x, self.w["ffn_norm"], self.c.eps)
    return x + self.linear(self.linear(h, "ffn_gate").silu() * self.linear(h, "ffn_up"), "ffn_down")


class Llama:
  """A model in memory: `prefill` a prompt, then `decode` token by token; both give logits [vocab] on the host.

  A step is compiled once for prompts (chunks of 32, the last one padded) and once for decoding: the position is a
  symbolic variable. Raises GGUFError, TokenError for tokens out of range, ContextError where the context is full.
  """

  def __init__(self, g: GGUF, layout: Layout, context: int | None = None, track: Callable[[int], None] | None = None):
    self.c = c = Config.from_gguf(g, context)
    self.layout = layout
    if c.kv_heads % layout.count:
      fix = f"--shard with one of {[n for n in range(1, c.kv_heads + 1) if c.kv_heads % n == 0]} devices"
      raise ShardSpecError(f"{layout.count} devices cannot share {c.kv_heads} kv heads evenly\n  fix: {fix}")
    self.weights = load_weights(g, c, layout, track)
    # A padded chunk that begins within the context may reach beyond it.
    length = c.context + CHUNK
    factors = g.floats("rope_freqs.weight").astype(np.float32) if "rope_freqs.weight" in g.tensors else None
    if factors is not None:
      problem = f"is {list(factors.shape)}, not {[c.rope_dim // 2]}"
      g.check(factors.shape == (c.rope_dim // 2,), "tensor 'rope_freqs.weight'", problem)
    self.cos, self.sin = (layout.put(x).realize() for x in rope_tables(c, length, factors))
    # seen[i, j]: may position i look at position j?
    self.positions = layout.put(np.arange(length, dtype=np.int32)).realize()
    self.layers = [Layer(c, self.weights, i, layout, length) for i in range(c.layers)]
    self.pos, self.last = Variable("pos", 0, c.context - 1), Variable("last", 0, CHUNK - 1)
    self.decode_step = TinyJit(lambda tokens, pos: self.project(self.hidden(tokens, pos)).realize())
    self.prefill_step = TinyJit(lambda ids, pos, at: self.project(self.hidden(ids, pos)[:, at : at + 1]).realize())

  @property
  def weight_bytes(self) -> tuple[int, int]:
    """(bytes of the whole model, bytes that the fullest device holds)."""
    parts = {buffer_of(u) for w in self.weights.values() for u in w.uop.toposort() if u.op is Ops.BUFFER}
    return sum(math.prod(b.shape) * b.dtype.itemsize for b in parts), sum(b.nbytes_per_device for b in parts)

  def hidden(self, tokens: Tensor, pos: UOp) -> Tensor:
    """tokens [1, T] at positions pos to pos + T - 1 -> the last layer's output [1, T, dim]; fills the KV cache."""
    t = int(tokens.shape[1])
    here = slice(pos, pos + t)
    cos, sin = self.cos[here], self.sin[here]
    mask = None if t == 1 else self.positions[: pos + t].unsqueeze(0) <= self.positions[here].unsqueeze(1)
    x = self.weights["token_embd.weight"][tokens]
    for layer in self.layers:
      x = layer(x, pos, cos, sin, mask)
    return x

  def project(self, x: Tensor) -> Tensor:
    """x [1, 1, dim] -> logits [vocab]."""
    x = rms_norm(x, self.weights["output_norm.weight"], self.c.eps)
    return (x @ self.weights["output.weight"].transpose(0, 1)).reshape(self.c.vocab)

  def collectives_of_step(self) -> Counter[str]:
    """How often a decoding step communicates, by kind: the collectives in the program that every device runs."""
    caches = [t for layer in self.layers for t in (layer.keys, layer.values)]
    before = [t.uop for t in caches]
    local = localize(UOp.sink(self.project(self.hidden(self.tokens([0]), self.pos.bind(0))).uop))
    for t, uop in zip(caches, before):
      t.uop = uop  # the step is looked at, not taken
    return Counter(u.arg.kind for u in local.toposort() if u.op is Ops.COLLECTIVE)

  def tokens(self, ids: Sequence[int]) -> Tensor:
    check_tokens(ids, self.c.vocab)
    return self.layout.put(np.array([ids], np.int32)).realize()

  def check_room(self, pos: int, count: int) -> None:
    if pos + count > self.c.context:
      fix = "a shorter prompt, or a larger --ctx, up to the model's own context length"
      raise ContextError(f"{pos + count} tokens do not fit into the context of {self.c.context}\n  fix: {fix}")

  def prefill(self, ids: Sequence[int], pos: int = 0) -> NDArray[np.float32]:
    """Take in the prompt `ids` at positions from `pos` on; the logits after its last token."""
    if not ids:
      raise TokenError("the prompt has no tokens\n  fix: pass at least one token, such as the tokenizer's `bos`")
    self.check_room(pos, len(ids))
    for i in range(0, len(ids), CHUNK):
      part = list(ids[i : i + CHUNK])
      # What the padding leaves in the cache lies after the prompt; each later token overwrites its place first.
      padded = self.tokens(part + [0] * (CHUNK - len(part)))
      out = self.prefill_step(padded, self.pos.bind(pos + i), self.last.bind(len(part) - 1))
    return np.asarray(out.numpy(), np.float32)

  def decode(self, token: int, pos: int) -> NDArray[np.float32]:
    """Take in one token at position `pos`; the logits after it."""
    self.check_room(pos, 1)
    return np.asarray(self.decode_step(self.tokens([token]), self.pos.bind(pos)).numpy(), np.float32)


class ContextError(AppError):
  """More tokens than the context holds: names both numbers and a fix."""


def load_weights(g: GGUF, c: Config, layout: Layout, track: Callable[[int], None] | None = None) -> dict[str, Tensor]:
  """Every weight as float32, an expression over what lies on its devices in the file's own precision: the kernel that
  uses it, or some rows of it, dequantises what it reads. `track` is told the bytes of each as it arrives.

  Raises GGUFError for a weight that is missing, of another shape than the metadata say, or unknown.
  """
  plan = {name: (shape, axis) for name, shape, axis in c.weights()}
  fix = "use a plain llama; biases and mixtures of experts are not supported"
  for name in g.tensors:
    known = name in plan or name == "rope_freqs.weight"
    g.check(known, f"tensor {name!r}", f"is no part of a llama of {c.layers} layers", fix)
  weights: dict[str, Tensor] = {}
  for name, (shape, axis) in plan.items():
    if name == "output.weight" and name not in g.tensors:
      weights[name] = weights["token_embd.weight"]
      continue
    info = g.info(name)
    problem = f"is {list(info.shape)}, and the metadata make it {list(shape)}"
    g.check(info.shape == shape, f"tensor {name!r}", problem, at=info.offset)
    arrays = g.quants(name) if info.type.name == "Q8_0" else (g.floats(name),)
    # In Q8_0 the cut dim 1, columns, is the dim of blocks: a block [.., 32] and its scale [.., 1] stay together.
    weights[name] = functools.reduce(Tensor.mul, [layout.put(x, axis).realize().float() for x in arrays]).reshape(shape)
    if track is not None:
      track(info.nbytes)
  return weights
