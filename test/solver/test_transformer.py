"""Megatron's, FSDP's and sequence-parallel placements of a transformer's layer, out of three hints each: forward and
backward, with no more bytes than by hand."""

import pytest

from tinygrad import OPEN, Mesh, P, Sharding, Tensor, propagate
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


def same(x):
  return x


def layer(w, x, stream=same, heads=same, hidden=same, weight=same):
  """One pre-norm layer; what is passed to it is applied to the residual stream, the heads, the hidden activations and
  the matrices."""
  norm = lambda x, g: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * g  # noqa: E731
  x = stream(x)
  y = norm(x, w["norm"])
  split = (BATCH, CONTEXT, HEADS, DIM // HEADS)
  q, k, v = (heads((y @ weight(w[n])).reshape(split).transpose(1, 2)) for n in "qkv")
  mixed = ((q @ k.transpose(-1, -2) * 0.1).softmax(-1) @ v).transpose(1, 2).reshape(BATCH, CONTEXT, DIM)
  x = stream(x + mixed @ weight(w["out"]))
  h = hidden((norm(x, w["norm_"]) @ weight(w["up"])).relu())
  return stream(x + h @ weight(w["down"]))


def trained(mesh, placed=None, **hints):
  """(placements of the weights, bytes of a forward and a backward pass), the weights placed by hand or by hints."""
  w = {name: Tensor.empty(*shape, device="NULL:0") for name, shape in SHAPES.items()}
  x = Tensor.empty(BATCH, CONTEXT, DIM, device="NULL:0")
  if placed is not None:
    w = {name: t.shard(mesh, placed[name]).realize() for name, t in w.items()}
    x = x.shard(mesh, placed["x"]).realize()
  for t in w.values():
    t.requires_grad = True
  y = layer(w, x, **hints)
  loss = y.square().mean()
  loss.backward()
  grads = [t.grad for t in w.values()]
  if placed is None:
    propagate(loss, y, *grads, mesh=mesh)
  return {name: t.device for name, t in w.items()}, explain(loss, *grads).wire


def hint(*spec):
  return lambda t: t.constrain(P(*spec))


def shard(*spec):
  return lambda t: t.shard(TWO, P(*spec))


CASES = {
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


@pytest.mark.parametrize("name", CASES)
def test_placements_and_bytes_of_three_hints(name):
  mesh, placed, moves, hints = CASES[name]
  by_hand, bytes_by_hand = trained(mesh, placed, **moves)
  assert len(hints) <= 3
  by_hints, nbytes = trained(mesh, **hints)
  assert by_hints == by_hand == {n: Sharding(mesh, placed[n]) for n in SHAPES}
  assert 0 < nbytes <= bytes_by_hand
