"""Trains a small GPT on four devices, a 2×2 mesh: the batch is cut over "data", the weights of each layer over "model".
With a third axis, "fsdp", the batch is cut over that, too, and so is the other dim of the weights and of what the
optimizer keeps: weights are gathered where they are used, and gradients are reduced to where they are kept.

python examples/gpt.py
python examples/gpt.py --mesh 1x2x2     # data, fsdp, model
VIZ=1 python examples/gpt.py     # writes viz.html: what moves, what is slow, what holds the memory
python -m tinygrad.launch -n 4 examples/gpt.py --mesh 1x2x2     # in four processes (docs/hosts.md)
"""

import argparse
import math

from tinygrad import Mesh, P, Tensor, TinyJit, distributed, nn


class Attention:
  def __init__(self, dim: int, heads: int) -> None:
    self.heads = heads
    self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

  def __call__(self, x: Tensor) -> Tensor:
    batch, length, dim = x.shape
    q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
    y = q.scaled_dot_product_attention(k, v, is_causal=True)
    return self.out(y.transpose(1, 2).reshape(batch, length, dim))


class MLP:
  def __init__(self, dim: int) -> None:
    self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

  def __call__(self, x: Tensor) -> Tensor:
    return self.down(self.up(x).gelu())


class Block:
  def __init__(self, dim: int, heads: int) -> None:
    self.attention, self.mlp = Attention(dim, heads), MLP(dim)
    self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

  def __call__(self, x: Tensor) -> Tensor:
    x = x + self.attention(self.norm1(x))
    return x + self.mlp(self.norm2(x))


class GPT:
  def __init__(self, vocabulary: int, length: int, dim: int, heads: int, layers: int) -> None:
    self.tokens, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
    self.blocks = [Block(dim, heads) for _ in range(layers)]
    self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)

  def __call__(self, ids: Tensor) -> Tensor:
    x = self.tokens(ids) + self.positions(Tensor.arange(ids.shape[1]))
    for block in self.blocks:
      x = block(x)
    return self.head(self.norm(x))


def place(model: GPT, mesh: Mesh) -> None:
  """Weights that a layer reads first are cut by rows over "model", those after them by columns; the other dim, and the
  rows of all else, over "fsdp"."""
  for name, w in nn.state.get_state_dict(model).items():
    rows = name.endswith(("qkv.weight", "up.weight", "head.weight"))
    columns = name.endswith(("out.weight", "down.weight"))
    w.shard_(mesh, P("model", "fsdp") if rows else P("fsdp", "model") if columns else P("fsdp"))


def train(
  steps: int, shape: tuple[int, ...] = (2, 1, 2), dim: int = 128, layers: int = 4, length: int = 64, batch: int = 8
) -> list[float]:
  """The loss of each step, on a mesh of this shape."""
  mesh = Mesh([f"CPU:{i}" for i in range(math.prod(shape))], shape, ("data", "fsdp", "model"))
  model = GPT(256, length, dim, dim // 32, layers)
  place(model, mesh)
  optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=1e-3)

  @TinyJit
  def step(ids: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = model(ids[:, :-1]).sparse_categorical_crossentropy(ids[:, 1:])
    loss.backward()
    return loss.realize(*optimizer.schedule_step())

  text = Tensor(list(open(__file__, "rb").read()))
  losses = []
  with Tensor.train():
    for i in range(steps):
      starts = [(i * batch + k) * 37 % (text.shape[0] - length - 1) for k in range(batch)]
      ids = Tensor.stack(*(text[s : s + length + 1] for s in starts)).shard(mesh, P(("data", "fsdp"))).realize()
      losses.append(step(ids).item())
      print(f"step {i}: loss {losses[-1]:.3f}")
  return losses


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--steps", type=int, default=6)
  parser.add_argument("--mesh", default="2x2", help="data x model, or data x fsdp x model (2x2)")
  args = parser.parse_args()
  distributed.initialize()  # in processes of their own, if such run
  shape = tuple(map(int, args.mesh.split("x")))
  train(args.steps, shape if len(shape) == 3 else (shape[0], 1, shape[1]))


if __name__ == "__main__":
  main()
