"""An LSTM learns to add two marked numbers of a sequence: LSTMCell step by step, gradients through time."""

import numpy as np
from common import initialise, report

from tinygrad import Context, Tensor, TinyJit, nn


class Model:
  def __init__(self):
    self.cell, self.out = nn.LSTMCell(2, 16), nn.Linear(16, 1)

  def __call__(self, x):
    state = None
    for t in range(x.shape[1]):
      h, c = self.cell(x[:, t], state)
      state = (h.contiguous().contiguous_backward(), c.contiguous().contiguous_backward())  # a kernel a step, both ways
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
    loss.realize(*opt.schedule_step())
    return loss.realize()

  for _ in range(40):
    values, marks = rng.random((32, 3)), np.zeros((32, 3))
    for row in marks:
      row[rng.choice(3, 2, replace=False)] = 1
    x, y = np.stack([values, marks], -1).astype(np.float32), (values * marks).sum(1).astype(np.float32)
    losses.append(step(Tensor(x), Tensor(y)).item())
  x = Tensor(np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 3, 2))
  chaos = "40 steps amplify the order of sums"
  report(losses=losses[:10], last=(losses[-5:], 0.02, chaos), outputs=(model(x), 0.02, chaos))


if __name__ == "__main__":
  main()
