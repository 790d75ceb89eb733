"""Gradient accumulation: four small batches make the gradient of one large one; clipping by the global norm."""

import numpy as np
from common import digits, initialise, report

from tinygrad import Context, Tensor, TinyJit, nn


class Model:
  def __init__(self):
    self.layers = [nn.Linear(64, 32), Tensor.tanh, nn.RMSNorm(32), nn.Linear(32, 10)]

  def __call__(self, x):
    return x.sequential(self.layers)


def main():
  x, y, _, _ = digits()
  x = x.reshape(-1, 64)
  large, small = initialise(Model(), seed=13), initialise(Model(), seed=13)
  model_parameters = nn.state.get_parameters(small)
  with Context(TRAINING=1):
    large(Tensor(x[:64])).sparse_categorical_crossentropy(Tensor(y[:64])).backward()
    for i in range(4):
      part = slice(i * 16, i * 16 + 16)
      (small(Tensor(x[part])).sparse_categorical_crossentropy(Tensor(y[part])) / 4).backward()
  want = [p.grad.numpy() for p in nn.state.get_parameters(large)]
  for a, b in zip(want, model_parameters):
    assert np.allclose(a, b.grad.numpy(), rtol=1e-3, atol=1e-5)

  opt = nn.optim.LAMB(model_parameters, lr=0.02)

  @TinyJit
  @Context(TRAINING=1)
  def step(xs, ys):
    opt.zero_grad()
    total = Tensor.zeros(())
    for i in range(4):
      loss = small(xs[i]).sparse_categorical_crossentropy(ys[i]) / 4
      loss.backward()
      total = total + loss.detach()
    norm = sum(p.grad.float().square().sum() for p in opt.params).sqrt()
    for p in opt.params:
      p.grad = p.grad * (1.0 / (norm + 1e-6)).minimum(1.0)
    total.realize(norm, *opt.schedule_step())
    return total, norm

  losses, norms = [], []
  for i in range(6):
    rows = slice(i * 64, i * 64 + 64)
    loss, norm = step(Tensor(x[rows].reshape(4, 16, 64)), Tensor(y[rows].reshape(4, 16)))
    losses.append(loss.item())
    norms.append(norm.item())
  report(losses=losses, norms=norms, gradient=want[0][:4])


if __name__ == "__main__":
  main()
