"""GAN steps: two optimizers, detached samples, leaky ReLU, tanh, binary cross entropy on logits."""

import numpy as np
from common import digits, initialise, report

from tinygrad import Context, Tensor, nn


class Generator:
  def __init__(self):
    self.l1, self.l2 = nn.Linear(16, 64), nn.Linear(64, 64)

  def __call__(self, z):
    return self.l2(self.l1(z).leaky_relu(0.2)).tanh().reshape(-1, 1, 8, 8)


class Discriminator:
  def __init__(self):
    self.c1, self.l1 = nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.Linear(128, 1)

  def __call__(self, x):
    return self.l1(self.c1(x).leaky_relu(0.2).flatten(1))


def main():
  images, _, _, _ = digits()
  rng = np.random.default_rng(7)
  generator, discriminator = initialise(Generator(), seed=8), initialise(Discriminator(), seed=9)
  opt_g = nn.optim.Adam(nn.state.get_parameters(generator), lr=2e-3, b1=0.5)
  opt_d = nn.optim.Adam(nn.state.get_parameters(discriminator), lr=2e-3, b1=0.5)
  real, fake = Tensor.ones(32, 1), Tensor.zeros(32, 1)
  losses_d, losses_g = [], []
  with Context(TRAINING=1):
    for i in range(4):
      z = Tensor(rng.standard_normal((32, 16), dtype=np.float32))
      opt_d.zero_grad()
      loss = discriminator(Tensor(images[i * 32 : i * 32 + 32] * 2 - 1)).binary_crossentropy_logits(real)
      loss = loss + discriminator(generator(z).detach()).binary_crossentropy_logits(fake)
      loss.backward()
      loss.realize(*opt_d.schedule_step())
      losses_d.append(loss.item())
      opt_g.zero_grad()
      loss = discriminator(generator(z)).binary_crossentropy_logits(real)
      loss.backward()
      loss.realize(*opt_g.schedule_step())
      losses_g.append(loss.item())
  report(discriminator=losses_d, generator=losses_g, sample=generator(Tensor.ones(1, 16) * 0.1))


if __name__ == "__main__":
  main()
