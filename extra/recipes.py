"""Models whose parameters and values have names, and what people write by hand to train them on several devices: tables
from a pattern of names to a placement.

A parameter has a name (`q0`), its use another one (`q0.use`), and so have inputs (`batch`) and values between
(`stream`, `gathered`, `heads`, `hidden`). `training(model, scale, recipe, mesh)` is a step of it by the tables of a
recipe, or of two, each over an axis of the mesh ("FSDP+TP"); without a recipe it is on one device, for `auto` to place.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tinygrad import Mesh, P, Sharding, Tensor, dtypes, nn
from tinygrad.dtype import DType

Table = Mapping[str, int | None]  # the first pattern that is all of a name says which dim is cut; None: none is
Where = Callable[[str, int], Sharding | None]  # of a name and a rank; None: nothing is said


class Named:
  """What a model is built of: parameters and inputs by their names, and marks on values."""

  def __init__(self, where: Where, device: Sharding | str) -> None:
    self.where, self.device = where, device
    self.weights: dict[str, Tensor] = {}
    self.used: dict[str, Tensor] = {}

  def leaf(self, name: str, *shape: int, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device=self.where(name, len(shape)) or self.device)

  def mark(self, name: str, x: Tensor) -> Tensor:
    there = self.where(name, x.ndim)
    return x if there is None else x.shard(there)

  def weight(self, name: str, *shape: int) -> Tensor:
    """A parameter, where it is used."""
    if name not in self.used:
      w = self.weights[name] = self.leaf(name, *shape)
      w.requires_grad = True
      self.used[name] = self.mark(f"{name}.use", w)
    return self.used[name]

  def norm(self, x: Tensor, name: str) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight(name, x.shape[-1])

  def attention(self, x: Tensor, i: int, heads: int, shared: int, causal: bool = True) -> Tensor:
    """Of `heads` for queries, `shared` for keys and values."""
    batch, context, dim = x.shape
    size = dim // heads
    sizes = {"q": heads, "k": shared, "v": shared}
    q, k, v = (
      self.mark(
        "heads", (x @ self.weight(f"{name}{i}", dim, n * size)).reshape(batch, context, n, size).transpose(1, 2)
      )
      for name, n in sizes.items()
    )
    k, v = (t.repeat_interleave(heads // shared, 1) for t in (k, v)) if shared < heads else (k, v)
    scores = q @ k.transpose(-1, -2) * size**-0.5
    if causal:
      scores = (Tensor.arange(context) <= Tensor.arange(context).unsqueeze(-1)).where(scores, -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, context, dim)
    return self.mark("stream", mixed @ self.weight(f"out{i}", dim, dim))

  def feed_forward(self, x: Tensor, i: int, wide: int, gated: bool = False) -> Tensor:
    dim = x.shape[-1]
    h = x @ self.weight(f"up{i}", dim, wide)
    h = (x @ self.weight(f"gate{i}", dim, wide)).silu() * h if gated else h.relu()
    return self.mark("stream", self.mark("hidden", h) @ self.weight(f"down{i}", wide, dim))


def mlp(m: Named, scale: int) -> Tensor:
  wide = 64 * scale
  x = m.leaf("batch", 32 * scale, wide)
  for i in range(2):
    x = m.feed_forward(x, i, 4 * wide)
  return x.square().mean()


def layers(m: Named, x: Tensor, scale: int, shared: int, gated: bool, causal: bool = True) -> Tensor:
  for i in range(2):
    x = m.mark("stream", x)
    x = x + m.attention(m.mark("gathered", m.norm(x, f"norm{i}")), i, 8, shared, causal)
    x = x + m.feed_forward(m.mark("gathered", m.norm(x, f"norm_{i}")), i, 4 * x.shape[-1], gated)
  return m.mark("stream", x)


def decoder(m: Named, scale: int, shared: int, gated: bool) -> Tensor:
  batch, context, dim, vocab = 8, 16 * scale, 64 * scale, 256 * scale
  tokens, targets = (m.leaf(name, batch, context, dtype=dtypes.int32) for name in ("batch", "batch.targets"))
  x = layers(m, m.weight("embed", vocab, dim)[tokens], scale, shared, gated)
  return (m.mark("gathered", x) @ m.weight("head", dim, vocab)).sparse_categorical_crossentropy(targets)


def transformer(m: Named, scale: int) -> Tensor:
  return decoder(m, scale, 8, False)


def llama(m: Named, scale: int) -> Tensor:
  """Fewer heads for keys and values than for queries, and a gate."""
  return decoder(m, scale, 4, True)


def vit(m: Named, scale: int) -> Tensor:
  dim, side = 64 * scale, 8
  images = m.leaf("batch", 8, 3, 4 * side, 4 * side)
  patches = images.conv2d(m.weight("patch", dim, 3, 4, 4), stride=4).flatten(2).transpose(1, 2)
  x = layers(m, patches + m.weight("position", side * side, dim), scale, 8, False, causal=False)
  return (x.mean(1) @ m.weight("classes", dim, 16)).square().mean()


def experts(m: Named, scale: int) -> Tensor:
  """Each token goes to all of them, as weighed."""
  tokens, dim, count = 32 * scale, 64 * scale, 4
  x = m.leaf("batch", tokens, dim)
  share = (x @ m.weight("route", dim, count)).softmax(-1)
  h = m.mark("expert_hidden", (x.unsqueeze(0) @ m.weight("expert_up", count, dim, 4 * dim)).relu())
  y = h @ m.weight("expert_down", count, 4 * dim, dim)
  return m.mark("stream", (y * share.T.unsqueeze(-1)).sum(0)).square().mean()


def convnet(m: Named, scale: int) -> Tensor:
  wide = 8 * scale
  x = m.leaf("batch", 16, 3, 16, 16)
  x = m.mark("channels", x.conv2d(m.weight("into", wide, 3, 3, 3), padding=1).relu())
  x = m.mark("image", x.conv2d(m.weight("onto", wide, wide, 3, 3), padding=1).relu().max_pool2d((4, 4)))
  return (x.flatten(1) @ m.weight("classes", wide * 16, 16)).square().mean()


MODELS: dict[str, Callable[[Named, int], Tensor]] = {
  "MLP": mlp, "transformer": transformer, "llama": llama, "ViT": vit, "experts": experts, "convnet": convnet,
}  # fmt: skip
ADAM = ("transformer", "llama", "ViT", "experts")  # the others are trained by gradient descent


@dataclass(frozen=True, slots=True)
class Recipe:
  """A table, and of models that it does not suit the reason."""

  table: Table
  unsuited: Mapping[str, str]


BATCH: Table = {r"batch.*|stream|gathered|heads|hidden|channels|image": 0, "expert_hidden": 1}
SHARDED: Table = {**BATCH, r".*\.use": None, r"expert_(up|down)": 1, r".*": 0}
MEGATRON: Table = {
  r"(q|k|v|up|gate|head|expert_up)\d*(\.use)?": -1,  # of which a device has some columns
  r"(out|down|expert_down)\d*(\.use)?": -2,  # and of these some rows
  r"embed(\.use)?|into(\.use)?": 0, r"onto(\.use)?": 1, "channels|heads": 1, "(expert_)?hidden": -1,
  r"stream|gathered": None,
}  # fmt: skip
SEQUENCE: Table = {"stream": 1, **MEGATRON}
NO_SEQUENCE = {
  "MLP": "its rows are examples", "experts": "its rows are tokens in no order, which are its batch",
  "convnet": "its rows are examples",
}  # fmt: skip

RECIPES = {
  "DP": Recipe(BATCH, {}), "TP": Recipe(MEGATRON, {}), "FSDP": Recipe(SHARDED, {}), "SP": Recipe(SEQUENCE, NO_SEQUENCE),
}  # fmt: skip
PAIRS = [f"{a}+{b}" for a, b in itertools.combinations(RECIPES, 2)]


def reason(model: str, recipe: str) -> str | None:
  """Why a recipe, or a pair of them, does not suit a model."""
  return next((why for r in recipe.split("+") if (why := RECIPES[r].unsuited.get(model)) is not None), None)


def dim_of(table: Table, name: str) -> int | None:
  return next((dim for pattern, dim in table.items() if re.fullmatch(pattern, name)), None)


def placements(recipe: str, mesh: Mesh) -> Where:
  """Where a recipe over the one axis of a mesh, or a pair of them over its two, puts what has a name. Where both cut
  one dim, FSDP cuts its parts further, so that a weight is gathered to a part as the other recipe has it."""
  names = recipe.split("+")
  order = sorted(zip(names, mesh.names, strict=True), key=lambda by: by[0] == "FSDP")
  tables = {axis: RECIPES[name].table for name, axis in order}

  def where(name: str, rank: int) -> Sharding | None:
    if not any(re.fullmatch(pattern, name) for table in tables.values() for pattern in table):
      return None
    dims: list[tuple[str, ...]] = [()] * rank
    for axis, table in tables.items():
      if (dim := dim_of(table, name)) is not None:
        dims[dim] += (axis,)
    return Sharding(mesh, P(*(d or None for d in dims)))

  return where


def training(model: str, scale: int, recipe: str | None, mesh: Mesh) -> list[Tensor]:
  """What a step of training changes, placed by a recipe, or on one device."""
  where: Where = placements(recipe, mesh) if recipe else lambda name, rank: None
  m = Named(where, Sharding(mesh, P()) if recipe else mesh.devices[0])
  with Tensor.train():
    loss = MODELS[model](m, scale)
    weights = list(m.weights.values())
    if model not in ADAM:
      return [loss, *(w.assign(w - g * 0.1) for w, g in zip(weights, loss.gradient(*weights)))]
    optimizer = nn.optim.Adam(weights)
    optimizer.lr.realize(optimizer.b1_t, optimizer.b2_t, *optimizer.m, *optimizer.v)
    loss.backward()
    return [loss, *optimizer.schedule_step()]
