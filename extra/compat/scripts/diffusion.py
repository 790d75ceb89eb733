"""A diffusion model: sinusoidal time, group norm, SiLU, down and up sampling with a skip; DDPM loss, DDIM samples."""

import math

import numpy as np
from common import digits, initialise, report

from tinygrad import Context, Tensor, TinyJit, nn

STEPS = 50


def timestep_embedding(t, dim=16):
  frequencies = (-math.log(1000.0) * Tensor.arange(dim // 2) / (dim // 2)).exp()
  args = t.reshape(-1, 1) * frequencies.reshape(1, -1)
  return args.cos().cat(args.sin(), dim=1)


class Model:
  def __init__(self):
    self.time = [nn.Linear(16, 32), Tensor.silu, nn.Linear(32, 16)]
    self.conv_in, self.norm = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16)
    self.down = nn.Conv2d(16, 16, 3, stride=2, padding=1)
    self.up = nn.ConvTranspose2d(16, 16, 2, stride=2)
    self.conv_out = nn.Conv2d(32, 1, 3, padding=1)

  def __call__(self, x, t):
    emb = timestep_embedding(t).sequential(self.time)
    skip = self.norm(self.conv_in(x)).silu()
    h = self.down(skip + emb.reshape(*emb.shape, 1, 1)).silu()
    return self.conv_out(self.up(h).cat(skip, dim=1))


def main():
  images, _, _, _ = digits()
  rng, losses = np.random.default_rng(10), []
  model = initialise(Model(), seed=11)
  alphas = Tensor(np.cumprod(1 - np.linspace(1e-4, 0.1, STEPS)).astype(np.float32))
  opt = nn.optim.AdamW(nn.state.get_parameters(model), lr=2e-3)

  @TinyJit
  @Context(TRAINING=1)
  def step(x, t, noise):
    opt.zero_grad()
    a = alphas[t].reshape(-1, 1, 1, 1)
    loss = (model(a.sqrt() * x + (1 - a).sqrt() * noise, t) - noise).square().mean().backward()
    loss.realize(*opt.schedule_step())
    return loss.realize()

  for _ in range(8):
    rows, t = rng.integers(0, len(images), 32), rng.integers(0, STEPS, 32).astype(np.int32)
    noise = rng.standard_normal((32, 1, 8, 8), dtype=np.float32)
    losses.append(step(Tensor(images[rows] * 2 - 1), Tensor(t), Tensor(noise)).item())

  x = Tensor(rng.standard_normal((2, 1, 8, 8), dtype=np.float32))
  for t, before in ((49, 30), (30, 10), (10, 0)):
    a, b = alphas[t], alphas[before]
    noise = model(x, Tensor([t, t]))
    x = (b.sqrt() * ((x - (1 - a).sqrt() * noise) / a.sqrt()).clamp(-3, 3) + (1 - b).sqrt() * noise).realize()
  report(losses=losses, sample=x)


if __name__ == "__main__":
  main()
