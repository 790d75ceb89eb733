"""Trains a small GPT on four devices, a 2×2 mesh: the batch is cut over "data", the weights of each layer over "model".

python examples/gpt.py
VIZ=1 python examples/gpt.py     # writes viz.html: what moves, what is slow, what holds the memory
"""

import argparse

from tinygrad import Mesh, P, Tensor, TinyJit, nn


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
  """Weights that a layer reads first are cut by rows, those after them by columns; the rest is whole everywhere."""
  for name, w in nn.state.get_state_dict(model).items():
    rows = name.endswith(("qkv.weight", "up.weight", "head.weight"))
    columns = name.endswith(("out.weight", "down.weight"))
    w.shard_(mesh, P("model", None) if rows else P(None, "model") if columns else P())


def train(steps: int, dim: int = 128, layers: int = 4, length: int = 64, batch: int = 8) -> list[float]:
  """The loss of each step."""
  mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
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
      ids = Tensor.stack(*(text[s : s + length + 1] for s in starts)).shard(mesh, P("data", None)).realize()
      losses.append(step(ids).item())
      print(f"step {i}: loss {losses[-1]:.3f}")
  return losses


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--steps", type=int, default=6)
  train(parser.parse_args().steps)
