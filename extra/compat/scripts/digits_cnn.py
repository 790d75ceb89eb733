"""A convolutional net on handwritten digits, as one trains MNIST with tinygrad: TinyJit, Adam, batch norm."""

import numpy as np
from common import digits, initialise, report

from tinygrad import Context, Tensor, TinyJit, nn

STEPS, BATCH = 150, 128


class Model:
  def __init__(self):
    self.layers = [
      nn.Conv2d(1, 16, 3, padding=1), Tensor.relu,
      nn.BatchNorm(16), Tensor.max_pool2d,
      nn.Conv2d(16, 32, 3, padding=1), Tensor.relu,
      nn.BatchNorm(32), Tensor.max_pool2d,
      lambda x: x.flatten(1), nn.Linear(128, 10),
    ]  # fmt: skip

  def __call__(self, x):
    return x.sequential(self.layers)


def main():
  x_train, y_train, x_test, y_test = digits()
  model = initialise(Model(), scale=1.5)
  opt = nn.optim.Adam(nn.state.get_parameters(model), lr=5e-3)

  @TinyJit
  @Context(TRAINING=1)
  def step(x, y):
    opt.zero_grad()
    loss = model(x).sparse_categorical_crossentropy(y).backward()
    return loss.realize(*opt.schedule_step())

  @TinyJit
  def evaluate(x, y):
    return (model(x).argmax(axis=1) == y).mean() * 100

  rng, losses = np.random.default_rng(1), []
  for _ in range(STEPS):
    rows = rng.integers(0, len(x_train), BATCH)
    losses.append(step(Tensor(x_train[rows]), Tensor(y_train[rows])).item())
  accuracy = evaluate(Tensor(x_test), Tensor(y_test)).item()
  assert accuracy >= 97, accuracy
  chaos = "150 steps amplify the order of sums; one of 360 pictures is 0.28 %"
  report(first_losses=losses[:5], accuracy=(accuracy, 0.012, chaos))


if __name__ == "__main__":
  main()
