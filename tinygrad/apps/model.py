"""One block for every family (`apps/models/`) over the public `Tensor` API, on one device or cut over several.

Tensor parallel, by hints on what is computed (`constrain`): q, k, v and what attention makes of them are cut by head,
the hidden layer and logits along their last dim, the embedding by vocabulary. Where weights and caches go follows from
that (`placements`), and so do two sums a layer: after attn_output and after down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from tinygrad import Device, Sharding, Tensor, TinyJit, UOp, Variable
from tinygrad.apps import AppError
from tinygrad.apps.checkpoint import Checkpoint, Stored
from tinygrad.apps.config import Config, Experts, Weight
from tinygrad.apps.kv_cache import Cache, sint
from tinygrad.apps.layout import Layout, WeightPlaces
from tinygrad.apps.models.family import Router
from tinygrad.apps.rope import Rope
from tinygrad.apps.tokenizer import TokenError, check_tokens
from tinygrad.helpers import LazyModule
from tinygrad.nn.block_formats import FORMATS, SEVERAL, BlockFormat
from tinygrad.numerics.dots import multiplies_bytes
from tinygrad.sharding import explain
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, buffer_of

if TYPE_CHECKING:
  from tinygrad.solver import graph, reasons
  from tinygrad.solver.reasons import Reason
else:
  graph, reasons = (LazyModule(f"tinygrad.solver.{name}") for name in ("graph", "reasons"))

CHUNKS = (8, 32, 128, 512)  # tokens of a prompt that one prefill step takes; the last of a prompt is padded


@dataclass(frozen=True, slots=True)
class Matrix:
  """A weight on its devices, in the blocks of its file.

  What uses it computes it as it reads: `dense` is an expression of the whole, `rows` of some along dim 0, for which
  rows of blocks are looked up, since a table that is looked up lies in memory. `memory`: in which the blocks may lie.
  """

  format: BlockFormat
  blocks: Tensor
  shape: tuple[int, ...]
  memory: NDArray[np.generic]

  @property
  def dense(self) -> Tensor:
    return self.format.tensor(self.blocks).reshape(self.shape)

  def rows(self, index: Tensor, layout: Layout | None = None) -> Tensor:
    """[*index.shape, *shape[1:]]. Of a table that is cut by rows each lies on one device: to every device of `layout`
    it is brought as blocks, which are the fewest bytes, and by one collective."""
    if layout is None:
      return self.format.tensor(self.blocks[index]).reshape(*index.shape, *self.shape[1:])
    blocks = layout.put(self.blocks.constrain(layout.cut(0))[index])
    return self.format.tensor(blocks).reshape(*index.shape, *self.shape[1:])

  def times(self, x: Tensor, exact: bool, which: Tensor | None = None) -> Tensor:
    """x [texts, T, .., columns] by each row: [texts, T, .., rows]; of several matrices by those of `which`
    [texts, T, used], each by one of x [texts, T, used or 1, columns]. Where the weights are rounded so are few tokens
    of a text, however many texts there are, unless it has to be `exact`; with many it is reading the weights as floats
    that is done once for all."""
    if not exact and self.format.words and x.shape[1] <= FEW:
      return self.format.times(self.blocks if which is None else self.blocks[which].contiguous(), x)
    if which is None:
      return x @ self.dense.transpose(0, 1)
    return (x.unsqueeze(-2) @ self.rows(which).transpose(-2, -1)).squeeze(-2)


T = TypeVar("T")
FEW = 4  # tokens of one text
CACHE = "keys"  # what a layer's cache is called among its weights
Mask = Tensor | None  # [rows or 1, 1, 1, T, seen positions], True where one sees the other; None: all of them


def _clamped(gate: Tensor, up: Tensor) -> Tensor:
  """gpt-oss's SwiGLU: gate and up are limited to 7, the sigmoid is steeper, and up is shifted by 1."""
  gate, up = gate.clamp(max_=7.0), up.clamp(-7.0, 7.0)
  return gate * (gate * 1.702).sigmoid() * (up + 1)


ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
  "silu": lambda gate, up: gate.silu() * up, "gelu": lambda gate, up: gate.gelu("tanh") * up, "clamped": _clamped,
}  # fmt: skip


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
  """x / sqrt(mean(x^2) + eps) * weight over the last dim."""
  return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def capped(x: Tensor, cap: float) -> Tensor:
  """cap · tanh(x / cap); 0: as it is."""
  return (x / cap).tanh() * cap if cap else x


@dataclass(frozen=True, slots=True)
class Positions:
  """Where the tokens of a step [rows, T] are, and what that means.

  `starts`: of each row its slot and its first position; `slot`: the first of these slots, which lie side by side.
  Positions before `end` are looked at. `turns`: each rope's tables for them, `masks`: each window's mask.
  """

  starts: tuple[tuple[sint, sint], ...]
  slot: sint
  end: sint
  turns: dict[Rope, tuple[Tensor, Tensor]]
  masks: dict[int | None, Mask]


class Layer:
  """One block of the model with its KV cache, [slots, kv_heads, length, head_dim] each for keys and values."""

  def __init__(
    self,
    c: Config,
    layout: Layout,
    weights: dict[str, Matrix],
    i: int,
    caches: tuple[Cache, Cache],
    exact: bool = False,
  ):
    self.c, self.layout, self.kind, self.exact = c, layout, c.kinds[i], exact
    prefix = f"blk.{i}."
    found = {k.removeprefix(prefix).removesuffix(".weight"): w for k, w in weights.items() if k.startswith(prefix)}
    self.matrices, self.w = found, {k: w.dense for k, w in found.items() if len(w.shape) == 1}
    self.keys, self.values = caches

  def linear(self, x: Tensor, name: str) -> Tensor:
    y = self.matrices[name].times(x, self.exact)
    return y + self.w[f"{name}.bias"] if name in self.c.biases else y

  def norm(self, x: Tensor, name: str) -> Tensor:
    """By the weight `name`, where the family has it."""
    return rms_norm(x, self.w[name], self.c.eps) if name in self.w else x

  def heads(self, x: Tensor, name: str, count: int) -> Tensor:
    """q, k or v of x [rows, T, dim]: [rows, count, T, head_dim]."""
    y = self.linear(x, name).constrain(self.layout.cut(2, kv=name != "attn_q"))
    whole = self.c.family.query_norm == "all"
    y = self.norm(y, f"{name}_norm") if whole else y
    y = y.reshape(*x.shape[:2], count, self.c.head_dim)
    return (y if whole else self.norm(y, f"{name}_norm")).permute(0, 2, 1, 3)

  def rotate(self, x: Tensor, place: Positions) -> Tensor:
    """RoPE of x [.., T, head_dim], where this layer has one."""
    if self.kind.rope is None:
      return x
    cos, sin = place.turns[self.kind.rope]
    dims = cos.shape[-1]
    turning, half = x[..., :dims], dims // 2
    if self.c.neighbours:
      swapped = turning.reshape(*x.shape[:-1], half, 2).flip(-1)
    else:
      swapped = turning.reshape(*x.shape[:-1], 2, half).flip(-2)
    turned = turning * cos + swapped.reshape(*x.shape[:-1], dims) * sin
    return turned if dims == self.c.head_dim else turned.cat(x[..., dims:], dim=-1)

  def scores_to_shares(self, scores: Tensor) -> Tensor:
    """Softmax over the last dim of [rows, kv_heads, heads of one, T, seen]; a sink takes a share, which is dropped."""
    if not self.c.family.sinks:
      return scores.softmax(-1)
    sink = self.w["attn_sinks"].reshape(1, self.c.kv_heads, -1, 1, 1)
    top = scores.max(-1, keepdim=True).maximum(sink)
    e = (scores - top).exp()
    return e / (e.sum(-1, keepdim=True) + (sink - top).exp())

  def attention(self, x: Tensor, place: Positions) -> Tensor:
    c, (rows, t, _) = self.c, x.shape
    q = self.rotate(self.heads(x, "attn_q", c.heads), place)
    self.keys.write(place.starts, self.rotate(self.heads(x, "attn_k", c.kv_heads), place))
    self.values.write(place.starts, self.heads(x, "attn_v", c.kv_heads))
    # [rows, kv_heads, heads of one kv head, T, seen positions]
    keys, values = (y.read(place.slot, len(place.starts), place.end).unsqueeze(2) for y in (self.keys, self.values))
    q = q.reshape(rows, c.kv_heads, c.heads // c.kv_heads, t, c.head_dim)
    scores = capped(q @ keys.transpose(-2, -1) * c.score_scale, c.score_cap)
    mask = place.masks[self.kind.window]
    if mask is not None:
      scores = mask.where(scores, -math.inf)
    y = (self.scores_to_shares(scores) @ values).permute(0, 3, 1, 2, 4).reshape(rows, t, c.heads * c.head_dim)
    return self.linear(y.constrain(self.layout.cut(2)), "attn_output")

  def gated(self, x: Tensor, end: str = "") -> Tensor:
    """down(activation(gate(x), up(x))) of the matrices whose names end so."""
    act = ACTIVATIONS[self.c.family.activation]
    up = self.linear(x, f"ffn_up{end}").contiguous()  # a kernel of one product takes several numbers at a time
    hidden = act(self.linear(x, f"ffn_gate{end}"), up).constrain(self.layout.cut(2))
    return self.linear(hidden, f"ffn_down{end}")

  def experts(self, x: Tensor, e: Experts) -> Tensor:
    """Each token's sum over its experts, of which only the matrices are read that were chosen."""
    scores = self.linear(x, "ffn_gate_inp")
    if e.router != Router.CHOSEN:
      scores = scores.softmax(-1)
    share, which = scores.topk(e.used)  # [rows, T, used]
    if e.router == Router.CHOSEN:
      share = share.softmax(-1)
    elif e.normalised:
      share = share / share.sum(-1, keepdim=True)

    def product(x: Tensor, name: str) -> Tensor:
      """x [rows, T, 1 or used, columns] -> [rows, T, used, rows of the matrix]"""
      y = self.matrices[name].times(x, self.exact, which)
      return y + self.matrices[f"{name}.bias"].rows(which) if name in self.c.biases else y

    x = x.unsqueeze(2)
    up = product(x, "ffn_up_exps").contiguous()
    hidden = ACTIVATIONS[self.c.family.activation](product(x, "ffn_gate_exps"), up).constrain(self.layout.cut(3))
    return (product(hidden, "ffn_down_exps") * (share * e.scale).unsqueeze(-1)).sum(2)

  def feed_forward(self, x: Tensor) -> Tensor:
    e = self.c.experts
    if e is None:
      return self.gated(x)
    y = self.experts(x, e)
    if not e.shared:
      return y
    gate = (x @ self.w["ffn_gate_inp_shexp"].unsqueeze(-1)).sigmoid() if self.c.family.shared_gate else 1.0
    return y + self.gated(x, "_shexp") * gate

  def __call__(self, x: Tensor, place: Positions) -> Tensor:
    """x [rows, T, dim], replicated."""
    y = self.attention(self.norm(x, "attn_norm"), place)
    x = x + self.norm(y, "post_attention_norm") * self.c.residual_scale
    y = self.feed_forward(self.norm(x, "ffn_norm"))
    return x + self.norm(y, "post_ffw_norm") * self.c.residual_scale


class Network:
  """The graph of a step: from tokens, over weights and caches, to logits. `length`: positions of a cache; `put` is told
  tables, which every device has, and `room` makes a cache."""

  def __init__(
    self,
    c: Config,
    layout: Layout,
    weights: dict[str, Matrix],
    length: int,
    put: Callable[[NDArray[np.generic]], Tensor],
    room: Callable[[], Cache],
    exact: bool = False,
  ):
    self.c, self.layout, self.weights, self.length, self.exact = c, layout, weights, length, exact
    self.turns: dict[Rope, tuple[Tensor, Tensor]] = {}
    for rope in (kind.rope for kind in c.kinds):
      if rope is not None and rope not in self.turns:
        cos, sin = map(put, rope.tables(self.length, c.neighbours))
        self.turns[rope] = (cos, sin)
    self.positions = put(np.arange(self.length, dtype=np.int32))
    self.layers = [Layer(c, layout, weights, i, (room(), room()), exact) for i in range(c.layers)]

  def prompt_places(self, slot: sint, pos: UOp, t: int) -> Positions:
    """Of `t` tokens of one sequence from position `pos` on."""
    here = slice(pos, pos + t)
    keys, queries = self.positions[: pos + t].unsqueeze(0), self.positions[here].unsqueeze(1)
    turns = {rope: (cos[here], sin[here]) for rope, (cos, sin) in self.turns.items()}
    return Positions(((slot, pos),), slot, pos + t, turns, self.masks(keys, queries, t > 1))

  def decoding_places(self, starts: Sequence[UOp], seen: UOp) -> Positions:
    """Of one token of each of the first slots; their positions are below `seen` (but those of idle slots)."""
    at = column(starts)
    turns = {rope: (cos[at].unsqueeze(1), sin[at].unsqueeze(1)) for rope, (cos, sin) in self.turns.items()}
    masks = self.masks(self.positions[:seen].reshape(1, 1, 1, 1, seen), at.reshape(-1, 1, 1, 1, 1), True)
    return Positions(tuple(enumerate(starts)), 0, seen, turns, masks)

  def masks(self, keys: Tensor, queries: Tensor, causal: bool) -> dict[int | None, Mask]:
    def mask(window: int | None) -> Mask:
      seen = keys <= queries if causal else None
      if window is None:
        return seen
      near = keys > queries - window
      return near if seen is None else seen & near

    return {window: mask(window) for window in {kind.window: None for kind in self.c.kinds}}

  def hidden(self, tokens: Tensor, place: Positions, at_once: bool = False) -> Tensor:
    """tokens [rows, T] -> the last layer's output [rows, T, dim]; fills the KV cache. Layer by layer, since equal
    layers have equal graphs, of which one plan is made, unless it is to be one graph `at_once`."""
    x = self.weights["token_embd.weight"].rows(tokens, self.layout) * self.c.embedding_scale
    x = x if at_once else x.contiguous().realize()
    for layer in self.layers:  # what is assigned has no name: it would be computed for that as well
      x = layer(x, place) if at_once else x.assign(layer(x, place)).realize()
    return x

  def project(self, x: Tensor) -> Tensor:
    """x [rows, T, dim] -> logits [rows, T, vocab]."""
    x = rms_norm(x, self.weights["output_norm.weight"].dense, self.c.eps)
    logits = self.weights["output.weight"].times(x, self.exact)
    return capped(logits / self.c.logit_scale, self.c.logit_cap).constrain(self.layout.cut(2))


class LanguageModel(Network):
  """A model in memory, and what up to `slots` sequences have said so far: `prefill` one, then `decode` all together.

  The positions are symbolic: a step is compiled once for each size of chunk of a prompt (the last one is padded), and
  once for each number of rows that are decoded at once (1, 2, 8, 16, .. `slots`: as far as the last one that is not
  idle).
  `cache`: how keys and values are kept, f16, f32 or q8_0. `exact`: no activations are rounded. `progress` is told
  the bytes of weights as they arrive.
  Raises GGUFError or FolderError, TokenError for tokens out of range, ContextError where the context is full.
  """

  def __init__(
    self,
    source: Checkpoint,
    layout: Layout,
    context: int | None = None,
    progress: Callable[[int], None] | None = None,
    slots: int = 1,
    cache: str = "f16",
    exact: bool = False,
  ):
    c = Config.read(source, context)
    layout = layout.for_heads(c.kv_heads)
    self.slots, self.places = slots, placements(c, layout)
    # where neither bytes nor pairs of 16 bits are multiplied and added up at once, floats are faster
    exact = exact or not all(multiplies_bytes(Device[name].target) for name in layout.devices)
    weights = load_weights(source, c, layout, self.places, progress)
    # A padded chunk that begins within the context may reach beyond it; what idle slots write goes there, too.
    length = c.context + CHUNKS[0]
    shape, at = (slots, c.kv_heads, length, c.head_dim), self.places.of(CACHE)

    def room() -> Cache:
      return Cache(cache, shape, lambda x: self.places.noted(CACHE, layout.put(x, at).contiguous().realize()))

    super().__init__(c, layout, weights, length, lambda x: layout.put(x).realize(), room, exact)
    self.slot, self.last = Variable("slot", 0, max(slots - 1, 1)), Variable("last", 0, CHUNKS[-1] - 1)
    self.starts = [Variable(f"pos{i}", 0, c.context) for i in range(slots)]
    self.said = Variable("token", 0, c.vocab - 1)
    self.seen = Variable("seen", 1, c.context)
    self.decode_step = TinyJit(self.next_logits)
    self.prefill_step = TinyJit(self.last_logits)

  @property
  def weight_bytes(self) -> tuple[int, int]:
    """(bytes of the whole model, bytes that the fullest device holds)."""
    parts = {buffer_of(u) for w in self.weights.values() for u in w.blocks.uop.toposort() if u.op is Ops.BUFFER}
    return sum(math.prod(b.shape) * b.dtype.itemsize for b in parts), sum(b.nbytes_per_device for b in parts)

  def last_logits(self, ids: Tensor, slot: sint, pos: UOp, last: UOp) -> Tensor:
    """A step of a prompt: ids [1, T] of a slot, from position `pos` on; the logits [vocab] after the token `last`."""
    x = self.hidden(ids, self.prompt_places(slot, pos, int(ids.shape[1])))
    return self.project(x[:, last : last + 1]).flatten().realize()

  def next_logits(self, tokens: Sequence[UOp] | Tensor, starts: Sequence[UOp], seen: UOp | None) -> Tensor:
    """A step of decoding: a token of each of the first slots [rows, 1]; the logits [rows, vocab]."""
    place = self.prompt_places(0, starts[0], 1) if seen is None else self.decoding_places(starts, seen)
    tokens = tokens if isinstance(tokens, Tensor) else column(tokens)
    return self.project(self.hidden(tokens, place)).squeeze(1).realize()

  def of_a_step(self, look: Callable[[Tensor], T]) -> T:
    """What `look` finds in a decoding step, which is not taken."""
    caches = [t for layer in self.layers for cache in (layer.keys, layer.values) for t in cache.parts]
    before = [t.uop for t in caches]
    place = self.prompt_places(0, self.starts[0].bind(0), 1)
    try:
      return look(self.project(self.hidden(column([self.said.bind(0)]), place, at_once=True)))
    finally:
      for t, uop in zip(caches, before):
        t.uop = uop

  def collectives_of_step(self) -> Counter[str]:
    """How often a decoding step communicates, by kind: the collectives in the program that every device runs."""
    local = self.of_a_step(lambda y: localize(UOp.sink(y.uop)))
    return Counter(u.arg.kind for u in local.toposort() if u.op is Ops.COLLECTIVE)

  def explained(self) -> str:
    """Where weights and caches are, and why; what a decoding step sends, and the hints behind that."""
    return "\n".join([*self.places.told(), str(self.of_a_step(explain))])

  def check_room(self, pos: int, count: int) -> None:
    if pos + count > self.c.context:
      fix = "a shorter prompt, or a larger --ctx, up to the model's own context length"
      raise ContextError(f"{pos + count} tokens do not fit into the context of {self.c.context}\n  fix: {fix}")

  def chunk(self, left: int, pos: int) -> int:
    """How many tokens the next step of a prompt takes: few paddings, few steps, and none beyond the cache."""
    fits = [n for n in CHUNKS if pos + n <= self.length]
    return next((n for n in fits if left <= n < 2 * left), max((n for n in fits if n <= left), default=CHUNKS[0]))

  def prefill(self, ids: Sequence[int], pos: int = 0, slot: int = 0) -> NDArray[np.float32]:
    """Take in the prompt `ids` at positions from `pos` on of a slot; the logits [vocab] after its last token."""
    if not ids:
      raise TokenError("the prompt has no tokens\n  fix: pass at least one token, such as the tokenizer's `bos`")
    check_tokens(ids, self.c.vocab)
    self.check_room(pos, len(ids))
    where = self.slot.bind(slot) if self.slots > 1 else 0
    done = 0
    while done < len(ids):
      size = self.chunk(len(ids) - done, pos + done)
      part = list(ids[done : done + size])
      # What the padding leaves in the cache lies after the prompt; each later token overwrites its place first.
      padded = self.layout.put(np.array([part + [0] * (size - len(part))], np.int32)).realize()
      out = self.prefill_step(padded, where, self.starts[0].bind(pos + done), self.last.bind(len(part) - 1))
      done += size
    return np.asarray(out.numpy(), np.float32)

  def states(self, ids: Tensor, slot: sint, pos: UOp) -> Tensor:
    """A step of a prompt, as `last_logits`; of which logits are made [T, dim]."""
    x = self.hidden(ids, self.prompt_places(slot, pos, int(ids.shape[1])))
    return rms_norm(x, self.weights["output_norm.weight"].dense, self.c.eps).squeeze(0).realize()

  def every_logits(self, ids: Tensor, slot: sint, pos: UOp) -> Tensor:
    """A step of a prompt, as `last_logits`; the logits [T, vocab] after each of its tokens."""
    return self.project(self.hidden(ids, self.prompt_places(slot, pos, int(ids.shape[1])))).squeeze(0).realize()

  @cached_property
  def states_step(self) -> TinyJit[..., Tensor]:
    return TinyJit(self.states)

  @cached_property
  def every_step(self) -> TinyJit[..., Tensor]:
    return TinyJit(self.every_logits)

  def read(
    self, step: Callable[..., Tensor], ids: Sequence[int], pos: int, slot: int, most: int
  ) -> NDArray[np.float32]:
    """Takes in a text as `prefill` does, `most` tokens at a time; what a step tells of each [tokens, ..]."""
    check_tokens(ids, self.c.vocab)
    self.check_room(pos, len(ids))
    where, found, done = self.slot.bind(slot) if self.slots > 1 else 0, [], 0
    while done < len(ids):
      size = self.chunk(min(len(ids) - done, most), pos + done)
      part = list(ids[done : done + size])
      padded = self.layout.put(np.array([part + [0] * (size - len(part))], np.int32)).realize()
      found.append(step(padded, where, self.starts[0].bind(pos + done)).numpy()[: len(part)])
      done += size
    return np.concatenate(found or [np.zeros((0, self.c.dim))]).astype(np.float32, copy=False)

  def embed(self, ids: Sequence[int], pos: int = 0, slot: int = 0) -> NDArray[np.float32]:
    """Take in a text; the state [tokens, dim] after each of its tokens, normed."""
    return self.read(self.states_step, ids, pos, slot, CHUNKS[-1])

  def score(self, ids: Sequence[int], pos: int = 0, slot: int = 0) -> NDArray[np.float32]:
    """Take in a text; the logits [tokens, vocab] after each of its tokens, a few of which are made at a time."""
    return self.read(self.every_step, ids, pos, slot, CHUNKS[1])

  def decode(self, tokens: Sequence[int], positions: Sequence[int]) -> NDArray[np.float32]:
    """Take in one token of every slot at its position; the logits [slots, vocab] after each.

    A slot at position -1 is idle: its cache stays as it is, its row means nothing. Rows up to the last one that is not
    idle are computed, so it is the first slots that are to be used first.
    """
    busy = [i for i, pos in enumerate(positions) if pos >= 0]
    check_tokens([tokens[i] for i in busy], self.c.vocab)
    for i in busy:
      self.check_room(positions[i], 1)
    last = max(busy, default=0)
    rows = min(1 << last.bit_length() if last < 2 or last >= SEVERAL else SEVERAL, self.slots)
    # What an idle slot writes lies beyond the context.
    on = [(0, self.c.context) if pos < 0 else (tokens[i], pos) for i, pos in enumerate(positions[:rows])]
    starts = [bind_kept(v, pos) for v, (_, pos) in zip(self.starts, on)]
    said: list[UOp] | Tensor = [self.said.bind(on[0][0])]  # a number is told sooner than memory is filled
    if rows > 1:
      said = self.layout.put(np.array([[token] for token, _ in on], np.int32)).realize()
    seen = None if rows == 1 else self.seen.bind(max(positions) + 1)
    out: NDArray[np.float32] = self.decode_step(said, starts, seen).numpy()
    return out if rows == self.slots else np.concatenate((out, np.zeros((self.slots - rows, self.c.vocab), np.float32)))


@lru_cache(1 << 12)
def bind_kept(v: UOp, number: int) -> UOp:
  """What is bound at every step of many texts is kept: their positions are often the same."""
  return v.bind(number)


def column(numbers: Sequence[UOp]) -> Tensor:
  """[numbers, 1], int32."""
  first, *others = (Tensor.full((1, 1), x) for x in numbers)
  return first.cat(*others).contiguous() if others else first


class ContextError(AppError):
  """More tokens than the context holds: names both numbers and a fix."""


def stored_weight(source: Checkpoint, c: Config, w: Weight) -> Stored:
  """A weight as it lies in the source: by its name, by another that the family has for it, or as rows of several.

  Raises: GGUFError or FolderError where it is missing, or of another shape than the metadata say.
  """
  shapes = {other.name: other.shape for other in c.weights()}
  name, rows = w.name, None
  *layer, short, kind = w.name.split(".")
  for fused, parts in c.family.fused.items():
    if short in parts and (whole := ".".join((*layer, fused, kind))) in source.shapes:
      ends = np.cumsum([0, *(shapes[".".join((*layer, part, kind))][0] for part in parts)])
      if source.shapes[whole][0] == ends[-1]:
        at = parts.index(short)
        name, rows = whole, slice(int(ends[at]), int(ends[at + 1]))
  if name not in source.shapes and short in c.family.aliases:
    name = ".".join((*layer, c.family.aliases[short], kind))
  source.check(name in source.shapes, f"tensor {name!r}", "is missing")
  stored = source.stored(name)
  part = stored if rows is None else stored.rows(rows)
  problem = f"is {list(part.shape)}, and the metadata make it {list(w.shape)}"
  source.check(part.shape == w.shape, f"tensor {name!r}", problem, at=source.place(name))
  return part


def check_known(source: Checkpoint, c: Config) -> None:
  """Raises GGUFError or FolderError for a weight that no layer has a place for: the model is of another kind."""
  plan = {w.name for w in c.weights()} | {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
  for name in source.shapes:
    *layer, short, kind = name.split(".")
    known = name in plan or short in c.family.fused or short in c.family.aliases.values()
    fix = "use a plain model of its family; what this weight is for is not supported"
    problem = f"is no part of a {c.family.names[0]} of {c.layers} layers"
    source.check(known, f"tensor {name!r}", problem, fix)


def placements(c: Config, layout: Layout) -> WeightPlaces:
  """Where the hints of a step put weights and caches: of a model of one layer, since all layers have the same ones,
  whose memory is never filled. On one device there is nothing to ask."""
  if isinstance(layout.where, str):
    return WeightPlaces(layout.where)
  c = replace(c, kinds=c.kinds[:1], context=CHUNKS[0])

  def empty(x: NDArray[np.generic]) -> Tensor:
    return Tensor.empty(*x.shape, dtype=x.dtype.name)

  shape, nothing = (1, c.kv_heads, c.context, c.head_dim), np.empty(0)
  weights = {w.name: Matrix(FORMATS["F32"], Tensor.empty(*w.shape, 1), w.shape, nothing) for w in c.weights()}
  caches = [Cache("f32", shape, lambda x: Tensor.empty(*x.shape)) for _ in range(2)]
  memory = {name: w.blocks for name, w in weights.items()} | dict(zip((CACHE, "values"), (x.parts[0] for x in caches)))
  leaves = {name: t.uop for name, t in memory.items()}
  network = Network(c, layout, weights, c.context, empty, iter(caches).__next__, exact=True)
  token, start = (Variable(name, 0, 0).bind(0) for name in ("token", "start"))
  logits = network.project(network.hidden(column([token]), network.prompt_places(0, start, 1), at_once=True))
  answer = graph.answer(UOp.sink(logits.uop, *(t.uop for t in memory.values())), layout.where)
  found: dict[str, tuple[Sharding, list[Reason]]] = {}
  for name, u in leaves.items():
    at = answer[u]
    assert isinstance(at, Sharding)
    found[name] = at, reasons.reasons(answer, u)
  return WeightPlaces(layout.where, found)


def load_weights(
  source: Checkpoint,
  c: Config,
  layout: Layout,
  places: WeightPlaces,
  progress: Callable[[int], None] | None = None,
) -> dict[str, Matrix]:
  """Every weight on its devices, of which each receives its own slice only. `progress` is told the bytes
  as they arrive.

  Raises: as `stored_weight` and `check_known`.
  """
  check_known(source, c)
  weights: dict[str, Matrix] = {}
  for w in c.weights():
    if w.name == "output.weight" and w.name not in source.shapes:
      weights[w.name] = weights["token_embd.weight"]
      continue
    stored = stored_weight(source, c, w)
    # The cut dim of columns is the dim of blocks: a block stays whole.
    blocks = places.noted(w.name, layout.over(stored.blocks, places.of(w.name)).realize())
    weights[w.name] = Matrix(stored.format, blocks, w.shape, stored.blocks)
    if progress is not None:
      progress(stored.blocks.nbytes)
  return weights
