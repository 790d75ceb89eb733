"""Models of text, one step of training each: encoders, decoders, mixtures of experts, recurrences, state spaces."""

import math

import numpy as np
from common import integers, normal, one_step, report, unrolled

from tinygrad import Tensor, nn

DIM, HEADS, WORDS = 16, 4, 48


def split_heads(x, heads=HEADS):
  return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def join_heads(x):
  return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def rotate(x):
  """Rotary positions: pairs of channels turn by the place times their frequency."""
  t, half = x.shape[2], x.shape[3] // 2
  angles = np.arange(t)[:, None] / 10000 ** (np.arange(half) / half)[None]
  cos, sin = (Tensor(f(angles).astype(np.float32)).reshape(1, 1, t, half) for f in (np.cos, np.sin))
  a, b = x[..., :half], x[..., half:]
  return (a * cos - b * sin).cat(a * sin + b * cos, dim=-1)


class Feed:
  def __init__(self, act=Tensor.gelu):
    self.up, self.down, self.act = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM), act

  def __call__(self, x):
    return self.down(self.act(self.up(x)))


class Attend:
  """Multi-head attention to itself or to a memory, with an additive bias."""

  def __init__(self, bias=True):
    self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=bias) for _ in range(4))

  def __call__(self, x, memory=None, mask=None, causal=False):
    memory = x if memory is None else memory
    q, k, v = split_heads(self.q(x)), split_heads(self.k(memory)), split_heads(self.v(memory))
    return self.o(join_heads(q.scaled_dot_product_attention(k, v, attn_mask=mask, is_causal=causal)))


class Llama:
  """RMS norms, rotary positions, grouped queries, SwiGLU."""

  def __init__(self):
    self.emb, self.n1, self.n2, self.n3 = nn.Embedding(WORDS, DIM), *(nn.RMSNorm(DIM) for _ in range(3))
    self.q, self.kv, self.o = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM)
    self.gate, self.up, self.down = nn.Linear(DIM, 32), nn.Linear(DIM, 32), nn.Linear(32, DIM)
    self.out = nn.Linear(DIM, WORDS, bias=False)

  def __call__(self, tokens):
    x = self.emb(tokens)
    y = self.n1(x)
    k, v = self.kv(y).chunk(2, dim=-1)
    k, v = (split_heads(t, 2).repeat_interleave(2, 1) for t in (k, v))
    y = rotate(split_heads(self.q(y))).scaled_dot_product_attention(rotate(k), v, is_causal=True)
    x = x + self.o(join_heads(y))
    y = self.n2(x)
    return self.out(self.n3(x + self.down(self.gate(y).silu() * self.up(y))))


class NeoX:
  """Attention and feed forward side by side on one residual."""

  def __init__(self):
    self.emb, self.n1, self.n2 = nn.Embedding(WORDS, DIM), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
    self.attend, self.feed, self.out = Attend(), Feed(Tensor.quick_gelu), nn.Linear(DIM, WORDS)

  def __call__(self, tokens):
    x = self.emb(tokens)
    return self.out(x + self.attend(self.n1(x), causal=True) + self.feed(self.n2(x)))


class Bert:
  def __init__(self):
    self.word, self.place, self.kind = nn.Embedding(WORDS, DIM), nn.Embedding(12, DIM), nn.Embedding(2, DIM)
    self.n0, self.n1, self.n2 = (nn.LayerNorm(DIM, eps=1e-12) for _ in range(3))
    self.attend, self.feed, self.pool = Attend(), Feed(), nn.Linear(DIM, DIM)

  def __call__(self, tokens):
    kinds = (Tensor.arange(tokens.shape[1]) >= 6).cast("int32").reshape(1, -1).expand(*tokens.shape)
    x = self.n0(self.word(tokens) + self.place(Tensor.arange(tokens.shape[1])) + self.kind(kinds))
    hidden = (tokens == 0).reshape(tokens.shape[0], 1, 1, -1).where(-1e4, 0.0)
    x = self.n1(x + self.attend(x, mask=hidden))
    x = self.n2(x + self.feed(x))
    return x.cat(self.pool(x[:, 0]).tanh().unsqueeze(1), dim=1)


class Albert(Bert):
  """One layer's weights used three times."""

  def __init__(self):
    super().__init__()
    self.kind = self.pool = None

  def __call__(self, tokens):
    x = self.n0(self.word(tokens) + self.place(Tensor.arange(tokens.shape[1])))
    for _ in range(3):
      x = self.n1(x + self.attend(x))
      x = self.n2(x + self.feed(x))
    return x


class T5:
  """Encoder and decoder with relative position buckets and no scaling of the scores."""

  def __init__(self):
    self.emb, self.bias = nn.Embedding(WORDS, DIM), nn.Embedding(8, HEADS)
    self.norms = [nn.RMSNorm(DIM) for _ in range(5)]
    self.own, self.enc, self.cross = (Attend(bias=False) for _ in range(3))
    self.feed = [Feed(Tensor.relu), Feed(Tensor.relu)]

  def relative(self, t):
    place = Tensor.arange(t).reshape(t, 1) - Tensor.arange(t).reshape(1, t)
    return self.bias(place.abs().clip(0, 7)).permute(2, 0, 1).unsqueeze(0)

  def __call__(self, tokens):
    x = self.emb(tokens[:, :6])
    x = x + self.enc(self.norms[0](x), mask=self.relative(6))
    memory = x + self.feed[0](self.norms[1](x))
    y = self.emb(tokens[:, 6:])
    later = Tensor.ones(6, 6).triu(1) * -1e4
    y = y + self.own(self.norms[2](y), mask=self.relative(6) + later)
    y = y + self.cross(self.norms[3](y), memory)
    return (y + self.feed[1](self.norms[4](y))) @ self.emb.weight.T / math.sqrt(DIM)


class Mixtral:
  """Each token goes to the two experts of the highest score, weighted by a softmax over these."""

  def __init__(self):
    self.emb, self.gate, self.out = nn.Embedding(WORDS, DIM), nn.Linear(DIM, 4, bias=False), nn.Linear(DIM, WORDS)
    self.experts = [Feed(Tensor.silu) for _ in range(4)]

  def __call__(self, tokens):
    x = self.emb(tokens)
    best, which = self.gate(x).topk(2)
    weight, total = best.softmax(-1), x * 0
    for i, expert in enumerate(self.experts):
      total = total + expert(x) * ((which == i).where(weight, 0.0)).sum(-1, keepdim=True)
    return self.out(x + total)


class Seq2Seq:
  """The transformer of 2017: sines for positions, norms behind the residuals."""

  def __init__(self):
    self.emb, self.norms = nn.Embedding(WORDS, DIM), [nn.LayerNorm(DIM) for _ in range(5)]
    self.enc, self.own, self.cross, self.feed = Attend(), Attend(), Attend(), [Feed(Tensor.relu), Feed(Tensor.relu)]
    self.out = nn.Linear(DIM, WORDS)

  def places(self, t):
    rate = 1 / 10000 ** (np.arange(0, DIM, 2) / DIM)
    angle = np.arange(t)[:, None] * rate[None]
    return Tensor(np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32))

  def __call__(self, tokens):
    x = self.emb(tokens[:, :7]) * math.sqrt(DIM) + self.places(7)
    x = self.norms[0](x + self.enc(x))
    x = self.norms[1](x + self.feed[0](x))
    y = self.emb(tokens[:, 7:]) * math.sqrt(DIM) + self.places(5)
    y = self.norms[2](y + self.own(y, causal=True))
    y = self.norms[3](y + self.cross(y, x))
    return self.out(self.norms[4](y + self.feed[1](y)))


class LinearAttention:
  """Attention without a softmax: sums over the past of keys times values, by cumsum."""

  def __init__(self):
    self.emb, self.qkv, self.out = nn.Embedding(WORDS, DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, WORDS)

  def __call__(self, tokens):
    q, k, v = (split_heads(t) for t in self.qkv(self.emb(tokens)).chunk(3, dim=-1))
    q, k = q.elu() + 1, k.elu() + 1
    state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
    norm = (q * k.cumsum(2)).sum(-1, keepdim=True)
    return self.out(join_heads((q.unsqueeze(-2) @ state).squeeze(-2) / norm))


class Mamba:
  """A selective state space: what a state keeps and takes depends on the token."""

  def __init__(self):
    self.emb, self.enter, self.leave = nn.Embedding(WORDS, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, WORDS)
    self.conv, self.step, self.bc = nn.Conv1d(DIM, DIM, 3, groups=DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, 8)
    self.decay, self.skip = Tensor.ones(DIM, 4), Tensor.ones(DIM)

  def __call__(self, tokens):
    x, gate = self.enter(self.emb(tokens)).chunk(2, dim=-1)
    x = self.conv(x.transpose(1, 2).pad((2, 0))).transpose(1, 2).silu()
    step, (b, c) = self.step(x).softplus(), self.bc(x).chunk(2, dim=-1)
    state, out = Tensor.zeros(x.shape[0], DIM, 4), []
    for t in range(x.shape[1]):
      s = step[:, t].unsqueeze(-1)
      state = (-s * self.decay.exp()).exp() * state + s * b[:, t].unsqueeze(1) * x[:, t].unsqueeze(-1)
      out.append((state * c[:, t].unsqueeze(1)).sum(-1))
    return self.leave((Tensor.stack(*out, dim=1) + self.skip * x) * gate.silu())


class Tagger:
  """A bidirectional LSTM."""

  def __init__(self):
    self.emb, self.forth, self.back = nn.Embedding(WORDS, 8), nn.LSTMCell(8, 8), nn.LSTMCell(8, 8)
    self.out = nn.Linear(16, 5)

  def __call__(self, tokens):
    x = self.emb(tokens)
    return self.out(unrolled(self.forth, x).cat(unrolled(self.back, x.flip(1)).flip(1), dim=-1))


class Clip:
  """Texts and images in one space: the loss is over all pairs of a batch."""

  def __init__(self):
    self.text, self.image = [nn.Embedding(WORDS, DIM), Feed()], [nn.Linear(24, DIM), Feed()]
    self.scale = Tensor.zeros(1)

  def __call__(self, tokens, pixels):
    t, i = tokens.sequential(self.text).mean(1), pixels.sequential(self.image)
    t, i = (x / x.square().sum(-1, keepdim=True).sqrt() for x in (t, i))
    return t @ i.T * self.scale.exp()


def main():
  tokens = integers(1, WORDS, 2, 12)
  results = {}
  for kind in (Llama, NeoX, Bert, Albert, T5, Mixtral, Seq2Seq, LinearAttention, Mamba, Tagger):
    results[kind.__name__.lower()] = one_step(kind(), tokens)

  def pairs(y):
    return (y.log_softmax(1) + y.log_softmax(0)).diagonal().mean() * -0.5

  results["clip"] = one_step(Clip(), integers(2, WORDS, 4, 5), normal(3, 4, 24), loss=pairs)
  report(**results)


if __name__ == "__main__":
  main()
