"""Models of sound, generators, graphs, points, tables and games, one step of training each."""

import numpy as np
from common import integers, normal, one_step, report, unrolled

from tinygrad import Tensor, nn


class Whisper:
  """Convolutions over a spectrogram, an encoder, and a decoder that attends to it."""

  def __init__(self):
    self.c1, self.c2 = nn.Conv1d(8, 16, 3, padding=1), nn.Conv1d(16, 16, 3, stride=2, padding=1)
    self.emb, self.norms = nn.Embedding(20, 16), [nn.LayerNorm(16) for _ in range(3)]
    self.q, self.kv, self.own = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(16, 48)

  def __call__(self, sound, tokens):
    x = self.c2(self.c1(sound).gelu()).gelu().transpose(1, 2)
    k, v = self.kv(self.norms[0](x)).chunk(2, dim=-1)
    y = self.emb(tokens)
    a, b, c = self.own(self.norms[1](y)).chunk(3, dim=-1)
    y = y + a.scaled_dot_product_attention(b, c, is_causal=True)
    y = y + self.q(self.norms[2](y)).scaled_dot_product_attention(k, v)
    return y @ self.emb.weight.T


class WaveNet:
  def __init__(self):
    self.enter, self.leave = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 4, 1)
    self.gates = [nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(3)]
    self.skips = [nn.Conv1d(8, 8, 1) for _ in range(3)]

  def __call__(self, x):
    x, total = self.enter(x), 0
    for i, (gate, skip) in enumerate(zip(self.gates, self.skips)):
      a, b = gate(x.pad((2**i, 0))).chunk(2, dim=1)
      y = a.tanh() * b.sigmoid()
      total, x = total + skip(y), x + y
    return self.leave(total.relu())


class Transducer:
  """Every state of a recurrent encoder joined with every state of a predictor."""

  def __init__(self):
    self.encode, self.predict, self.emb = nn.LSTMCell(6, 8), nn.LSTMCell(8, 8), nn.Embedding(10, 8)
    self.join = nn.Linear(8, 10)

  def __call__(self, sound, tokens):
    a, b = unrolled(self.encode, sound), unrolled(self.predict, self.emb(tokens))
    return self.join((a.unsqueeze(2) + b.unsqueeze(1)).tanh()).log_softmax(-1)


class Conformer:
  def __init__(self):
    self.norm, self.point, self.qkv = nn.LayerNorm(8), nn.Conv1d(8, 16, 1), nn.Linear(8, 24)
    self.depth, self.batch, self.last = nn.Conv1d(8, 8, 3, padding=1, groups=8), nn.BatchNorm(8), nn.Conv1d(8, 8, 1)

  def __call__(self, x):
    q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
    x = x + q.scaled_dot_product_attention(k, v)
    a, b = self.point(x.transpose(1, 2)).chunk(2, dim=1)
    return x + self.last(self.batch(self.depth(a * b.sigmoid())).silu()).transpose(1, 2)


class VAE:
  def __init__(self):
    self.enter, self.mean, self.spread = nn.Linear(16, 12), nn.Linear(12, 3), nn.Linear(12, 3)
    self.leave = [nn.Linear(3, 12), Tensor.relu, nn.Linear(12, 16)]

  def __call__(self, x, noise):
    y = self.enter(x).relu()
    mean, spread = self.mean(y), self.spread(y)
    image = (mean + (spread / 2).exp() * noise).sequential(self.leave).sigmoid()
    divergence = (mean.square() + spread.exp() - 1 - spread).mean(1, keepdim=True) / 2
    return image.cat(divergence, dim=1)


class VQVAE:
  """The nearest of a set of codes, past which gradients go straight."""

  def __init__(self):
    self.enter, self.leave, self.codes = nn.Linear(16, 4), nn.Linear(4, 16), nn.Embedding(9, 4)

  def __call__(self, x):
    z = self.enter(x)
    nearest = (z.unsqueeze(1) - self.codes.weight.unsqueeze(0)).square().sum(-1).argmin(1)
    code = self.codes(nearest)
    return self.leave(z + (code - z).detach()).cat((code - z.detach()).square(), (code.detach() - z).square(), dim=1)


class DCGAN:
  def __init__(self):
    self.grow = [nn.ConvTranspose2d(8, 8, 4, 2, 1, bias=False), nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False)]
    self.norm, self.enter = nn.BatchNorm(8), nn.Linear(6, 128)

  def __call__(self, z):
    x = self.enter(z).reshape(-1, 8, 4, 4)
    return self.grow[1](self.norm(self.grow[0](x)).relu()).tanh()


def sines(t, dim):
  rate = Tensor(np.exp(-np.arange(dim // 2) / (dim // 2) * np.log(1e4)).astype(np.float32))
  angle = t.reshape(-1, 1).float() * rate.reshape(1, -1)
  return angle.cos().cat(angle.sin(), dim=-1)


class DiffusionUNet:
  """Group norms, residual blocks that know the time, attention at the lowest resolution."""

  def __init__(self):
    self.time, self.enter, self.leave = nn.Linear(8, 8), nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
    self.norms, self.qkv = [nn.GroupNorm(4, 8) for _ in range(3)], nn.Conv2d(8, 24, 1)
    self.down, self.convs = nn.Conv2d(8, 8, 3, 2, 1), [nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)]

  def __call__(self, x, t):
    time = self.time(sines(t, 8)).silu().reshape(-1, 8, 1, 1)
    kept = self.enter(x)
    kept = kept + self.convs[0](self.norms[0](kept).silu() + time)
    y = self.down(kept)
    b, c, h, w = y.shape
    q, k, v = (p.reshape(b, c, h * w).transpose(1, 2) for p in self.qkv(self.norms[1](y)).chunk(3, dim=1))
    y = y + q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(b, c, h, w)
    y = (y + self.convs[1](self.norms[2](y).silu() + time)).interpolate((2 * h, 2 * w), mode="nearest")
    return self.leave(y.cat(kept, dim=1))


class DiT:
  """A transformer whose norms are scaled and shifted by the time."""

  def __init__(self):
    self.patch, self.norm = nn.Linear(12, 16), nn.LayerNorm(16, elementwise_affine=False)
    self.modulate, self.qkv, self.leave = nn.Linear(16, 48), nn.Linear(16, 48), nn.Linear(16, 12)

  def __call__(self, x, t):
    x = self.patch(x)
    shift, scale, gate = (p.unsqueeze(1) for p in self.modulate(sines(t, 16).silu()).chunk(3, dim=-1))
    q, k, v = self.qkv(self.norm(x) * (1 + scale) + shift).chunk(3, dim=-1)
    return self.leave(self.norm(x + gate * q.scaled_dot_product_attention(k, v)))


class NeRF:
  def __init__(self):
    self.layers, self.color, self.density = [nn.Linear(15, 16), nn.Linear(31, 16)], nn.Linear(16, 3), nn.Linear(16, 1)

  def __call__(self, points):
    waves = [f(points * 2.0**i) for i in range(2) for f in (Tensor.sin, Tensor.cos)]
    x = points.cat(*waves, dim=-1)
    y = self.layers[1](self.layers[0](x).relu().cat(x, dim=-1)).relu()
    opacity = 1 - (-self.density(y).softplus() * 0.5).exp()
    passed = (1 - opacity + 1e-6).log().cumsum(1).exp()
    weight = opacity * passed / (1 - opacity + 1e-6)
    return (self.color(y).sigmoid() * weight).sum(1)


class RealNVP:
  """Half of the variables scaled and shifted by functions of the other half, in turns."""

  def __init__(self):
    self.nets = [[nn.Linear(3, 8), Tensor.tanh, nn.Linear(8, 6)] for _ in range(4)]

  def __call__(self, x):
    a, b, volume = x[:, :3], x[:, 3:], 0
    for net in self.nets:
      scale, shift = a.sequential(net).chunk(2, dim=1)
      a, b, volume = b * scale.tanh().exp() + shift, a, volume + scale.tanh().sum(1, keepdim=True)
    return (a.cat(b, dim=1).square().sum(1, keepdim=True) / 2 - volume).cat(a, b, dim=1)


class GCN:
  def __init__(self):
    self.l1, self.l2 = nn.Linear(5, 8), nn.Linear(8, 3)

  def __call__(self, nodes, edges):
    near = ((edges + edges.T) > 0).float() + Tensor.eye(edges.shape[0])
    scale = near.sum(1).rsqrt()
    near = near * scale.reshape(-1, 1) * scale.reshape(1, -1)
    return near @ self.l2((near @ self.l1(nodes)).relu())


class PointNet:
  def __init__(self):
    self.each, self.all, self.turn = nn.Linear(3, 16), nn.Linear(16, 4), nn.Linear(3, 9)

  def __call__(self, points):
    turn = self.turn(points.mean(1)).reshape(-1, 3, 3) + Tensor.eye(3)
    return self.all(self.each(points @ turn).relu().max(1))


class DLRM:
  """Embeddings of categories and their pairwise products beside dense features."""

  def __init__(self):
    self.tables, self.dense = [nn.Embedding(n, 8) for n in (5, 7, 11)], nn.Linear(4, 8)
    self.top = [nn.Linear(14, 8), Tensor.relu, nn.Linear(8, 1)]

  def __call__(self, dense, categories):
    dense = self.dense(dense).relu()
    parts = Tensor.stack(dense, *(table(categories[:, i]) for i, table in enumerate(self.tables)), dim=1)
    products = parts @ parts.transpose(1, 2)
    pairs = [products[:, i, j] for i in range(4) for j in range(i)]
    return dense.cat(Tensor.stack(*pairs, dim=1), dim=1).sequential(self.top)


class ActorCritic:
  def __init__(self):
    self.body, self.actor, self.critic = [nn.Linear(4, 16), Tensor.tanh], nn.Linear(16, 3), nn.Linear(16, 1)

  def __call__(self, seen):
    x = seen.sequential(self.body)
    return self.actor(x).log_softmax(-1).cat(self.critic(x), dim=1)


class TCN:
  def __init__(self):
    self.convs = [nn.Conv1d(2, 6, 3, dilation=1), nn.Conv1d(6, 6, 3, dilation=2), nn.Conv1d(6, 6, 3, dilation=4)]
    self.short = nn.Conv1d(2, 6, 1)

  def __call__(self, x):
    y = x
    for i, conv in enumerate(self.convs):
      y = conv(y.pad((2 * 2**i, 0))).relu()
    return (y + self.short(x)).relu()[:, :, -1]


class GRU:
  def __init__(self):
    self.x, self.h = nn.Linear(3, 18), nn.Linear(6, 18)

  def __call__(self, x):
    h = Tensor.zeros(x.shape[0], 6)
    for t in range(x.shape[1]):
      (xr, xz, xn), (hr, hz, hn) = self.x(x[:, t]).chunk(3, dim=-1), self.h(h).chunk(3, dim=-1)
      z = (xz + hz).sigmoid()
      h = z * h + (1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh()
    return h


def main():
  sound, tokens = normal(1, 2, 8, 12), integers(2, 20, 2, 5)
  actions, values = integers(3, 3, 6), normal(4, 6)

  def play(y):
    chosen = y[:, :3].gather(1, actions.reshape(-1, 1)).squeeze(1)
    error = values - y[:, 3]
    entropy = (y[:, :3].exp() * y[:, :3]).sum(1).mean()
    return (-chosen * error.detach()).mean() + error.square().mean() * 0.5 + 0.01 * entropy

  report(
    whisper=one_step(Whisper(), sound, tokens),
    wavenet=one_step(WaveNet(), normal(5, 2, 1, 16)),
    transducer=one_step(Transducer(), normal(6, 2, 5, 6), integers(7, 10, 2, 3)),
    conformer=one_step(Conformer(), normal(8, 2, 10, 8)),
    vae=one_step(VAE(), normal(9, 4, 16).sigmoid(), normal(10, 4, 3)),
    vqvae=one_step(VQVAE(), normal(11, 6, 16)),
    dcgan=one_step(DCGAN(), normal(12, 3, 6)),
    diffusion=one_step(DiffusionUNet(), normal(13, 2, 3, 8, 8), integers(14, 1000, 2)),
    dit=one_step(DiT(), normal(15, 2, 9, 12), integers(16, 1000, 2)),
    nerf=one_step(NeRF(), normal(17, 4, 6, 3)),
    realnvp=one_step(RealNVP(), normal(18, 5, 6)),
    gcn=one_step(GCN(), normal(19, 7, 5), (normal(20, 7, 7) > 0.8).float()),
    pointnet=one_step(PointNet(), normal(21, 2, 9, 3)),
    dlrm=one_step(DLRM(), normal(22, 6, 4), integers(23, 5, 6, 3)),
    actor_critic=one_step(ActorCritic(), normal(24, 6, 4), loss=play),
    tcn=one_step(TCN(), normal(25, 2, 2, 14)),
    gru=one_step(GRU(), normal(26, 2, 6, 3)),
  )


if __name__ == "__main__":
  main()
