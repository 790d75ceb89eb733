"""Ring attention: a sequence cut over devices, none of which ever has all keys and values.

    python examples/ring_attention.py

Each device keeps its queries; keys and values go round a ring, and the softmax is carried from block to block (H. Liu,
M. Zaharia, P. Abbeel: Ring Attention with Blockwise Transformers for Near-Infinite Context. 2023).
"""

import math

from tinygrad import Mesh, P, Tensor, axis_index, axis_size, ppermute, scan, shard_map
from tinygrad.sharding import explain


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
  """Causal attention, (batch, heads, length, width), with all of it in one place."""
  return q.scaled_dot_product_attention(k, v, is_causal=True)


def ring_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
  """The same of one device's part of the sequence, inside `shard_map` over the axis "sp"."""
  n, i, length = axis_size("sp"), axis_index("sp"), q.shape[2]
  ring = [(j, (j + 1) % n) for j in range(n)]
  places = Tensor.arange(length)

  def step(carry, number):
    k, v, most, total, out = carry
    first = (i - number + n) % n * length  # where the block comes from that is here now
    seen = (places + i * length).reshape(-1, 1) >= (places + first).reshape(1, -1)
    scores = seen.where(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -math.inf)
    new = most.maximum(scores.max(-1, keepdim=True).detach())
    weights, before = (scores - new).exp(), (most - new).exp()
    total = total * before + weights.sum(-1, keepdim=True)
    out = out * before + weights @ v
    return (*ppermute([k, v], "sp", ring), new, total, out), None

  row = (*q.shape[:3], 1)
  begin = (k, v, Tensor.full(row, -math.inf), Tensor.zeros(row), Tensor.zeros(q.shape))
  _, _, _, total, out = scan(step, begin, Tensor.arange(n))[0]
  return out / total


def main() -> None:
  mesh = Mesh(tuple(f"CPU:{i}" for i in range(4)), names=("sp",))
  spec = P(None, None, "sp")
  q, k, v = (Tensor.randn(1, 2, 64, 16).shard(mesh, spec).realize() for _ in range(3))
  y = shard_map(ring_attention, mesh, spec, spec)(q, k, v)
  print(explain(y))
  difference = (y - attention(*(Tensor(t.numpy()) for t in (q, k, v))).shard(mesh, spec)).abs().max().item()
  print(f"greatest difference from attention in one place: {difference:.1e}")


if __name__ == "__main__":
  main()
