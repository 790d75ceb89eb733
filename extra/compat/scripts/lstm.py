"""An LSTM learns to add two marked numbers of a sequence: LSTMCell step by step, gradients through time."""

import numpy as np
from common import initialise, report

from tinygrad import Context, Tensor, TinyJit, nn


class Model:
  def __init__(self):
    self.cell, self.out = nn.LSTMCell(2, 24), nn.Linear(24, 1)

  def __call__(self, x):
    state = None
    for t in range(x.shape[1]):
      state = self.cell(x[:, t], state)
    return self.out(state[0]).squeeze(-1)


def main():
  rng, losses = np.random.default_rng(5), []
  model = initialise(Model(), seed=6)
  opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.02)

  @TinyJit
  @Context(TRAINING=1)
  def step(x, y):
    opt.zero_grad()
    loss = ((model(x) - y) ** 2).mean().backward()
    opt.step()
    return loss.realize()

  for _ in range(40):
    values, marks = rng.random((32, 6)), np.zeros((32, 6))
    for row in marks:
      row[rng.choice(6, 2, replace=False)] = 1
    x, y = np.stack([values, marks], -1).astype(np.float32), (values * marks).sum(1).astype(np.float32)
    losses.append(step(Tensor(x), Tensor(y)).item())
  x = Tensor(np.linspace(0, 1, 24, dtype=np.float32).reshape(2, 6, 2))
  chaos = "40 steps amplify the order of sums"
  report(losses=losses[:10], last=(losses[-5:], 0.02, chaos), outputs=(model(x), 0.02, chaos))


if __name__ == "__main__":
  main()
