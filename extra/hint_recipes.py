"""A transformer's layer placed as Megatron, as FSDP and as sequence parallelism: every weight by hand, or three hints
and nothing else, with the bytes that a forward and a backward pass move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad import OPEN, Mesh, P, Tensor, propagate
from tinygrad.sharding import explain

D8 = tuple(f"NULL:{i}" for i in range(8))
ONE, TWO = Mesh(D8, names=("dp",)), Mesh(D8, (2, 4), ("dp", "tp"))
BATCH, CONTEXT, DIM, HEADS, HIDDEN = 8, 64, 64, 8, 256
SHAPES = {
  "q": (DIM, DIM), "k": (DIM, DIM), "v": (DIM, DIM), "out": (DIM, DIM), "up": (DIM, HIDDEN), "down": (HIDDEN, DIM),
  "norm": (DIM,), "norm_": (DIM,),
}  # fmt: skip
COLUMNS = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "up": P(None, "tp")}
MEGATRON = COLUMNS | {"out": P("tp"), "down": P("tp"), "norm": P(), "norm_": P()}
FSDP = {name: P("dp") for name in SHAPES} | {"norm": P(), "norm_": P()}

Place = Callable[[Tensor], Tensor]


def same(x: Tensor) -> Tensor:
  return x


def norm(x: Tensor, g: Tensor) -> Tensor:
  return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * g


def layer(
  w: dict[str, Tensor], x: Tensor, stream: Place = same, heads: Place = same, hidden: Place = same, weight: Place = same
) -> Tensor:
  """One pre-norm layer; what is passed to it is applied to the residual stream, the heads, the hidden activations and
  the matrices."""
  x = stream(x)
  y = norm(x, w["norm"])
  split = (BATCH, CONTEXT, HEADS, DIM // HEADS)
  q, k, v = (heads((y @ weight(w[n])).reshape(split).transpose(1, 2)) for n in "qkv")
  mixed = ((q @ k.transpose(-1, -2) * 0.1).softmax(-1) @ v).transpose(1, 2).reshape(BATCH, CONTEXT, DIM)
  x = stream(x + mixed @ weight(w["out"]))
  h = hidden((norm(x, w["norm_"]) @ weight(w["up"])).relu())
  return stream(x + h @ weight(w["down"]))


def trained(mesh: Mesh, said: dict[str, Place], placed: dict[str, P] | None = None) -> tuple[dict[str, Any], float]:
  """(placements of the weights, bytes of a forward and a backward pass), the weights placed by hand or by hints."""
  w = {name: Tensor.empty(*shape, device="NULL:0") for name, shape in SHAPES.items()}
  x = Tensor.empty(BATCH, CONTEXT, DIM, device="NULL:0")
  if placed is not None:
    w = {name: t.shard(mesh, placed[name]).realize() for name, t in w.items()}
    x = x.shard(mesh, placed["x"]).realize()
  for t in w.values():
    t.requires_grad = True
  y = layer(w, x, **said)
  loss = y.square().mean()
  loss.backward()
  grads = [t.grad for t in w.values()]
  if placed is None:
    propagate(loss, y, *grads, mesh=mesh)
  return {name: t.device for name, t in w.items()}, explain(loss, *grads).wire


def hint(*spec: Any) -> Place:
  return lambda t: t.constrain(P(*spec))


def shard(*spec: Any) -> Place:
  return lambda t: t.shard(TWO, P(*spec))


CASES: dict[str, tuple[Mesh, dict[str, P], dict[str, Place], dict[str, Place]]] = {
  "Megatron": (
    TWO, MEGATRON | {"x": P("dp")}, {},
    {"stream": hint("dp", OPEN, OPEN), "heads": hint(OPEN, "tp", OPEN, OPEN), "hidden": hint(OPEN, OPEN, "tp")},
  ),
  "FSDP": (ONE, FSDP | {"x": P("dp")}, {}, {"stream": hint("dp", None, None), "weight": hint("dp", None)}),
  "sequence": (
    TWO, MEGATRON | {"x": P("dp", "tp")},
    {"stream": shard("dp", "tp"), "heads": shard("dp", "tp"), "hidden": shard("dp", None, "tp")},
    {"stream": hint("dp", "tp", None), "heads": hint("dp", "tp", None, None), "hidden": hint("dp", None, "tp")},
  ),
}  # fmt: skip
