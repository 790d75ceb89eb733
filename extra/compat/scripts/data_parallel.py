"""Data parallel over two devices: weights on both, the batch cut; and a weight cut over them."""

import numpy as np
from common import digits, initialise, report

from tinygrad import Context, Tensor, TinyJit, nn

DEVICES = ("CPU:0", "CPU:1")


class Model:
  def __init__(self):
    self.c1, self.l1 = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(128, 10)

  def __call__(self, x):
    return self.l1(self.c1(x).relu().max_pool2d().flatten(1))


def main():
  x, y, x_test, y_test = digits()
  model = initialise(Model(), seed=14)
  for p in nn.state.get_parameters(model):
    p.shard_(DEVICES)
  opt = nn.optim.Adam(nn.state.get_parameters(model), lr=5e-3)

  @TinyJit
  @Context(TRAINING=1)
  def step(images, labels):
    opt.zero_grad()
    loss = model(images).sparse_categorical_crossentropy(labels).backward()
    loss.realize(*opt.schedule_step())
    return loss.realize()

  losses = []
  for i in range(20):
    rows = np.arange(i * 64, i * 64 + 64) % len(x)
    images, labels = Tensor(x[rows]).shard(DEVICES, axis=0), Tensor(y[rows]).shard(DEVICES, axis=0)
    losses.append(step(images.realize(), labels.realize()).item())
  logits = model(Tensor(x_test).shard(DEVICES, axis=0))
  accuracy = (logits.argmax(1).numpy() == y_test).mean()

  a, w = np.random.default_rng(15).standard_normal((2, 8, 8), dtype=np.float32)
  rows, columns = (Tensor(a) @ Tensor(w)).numpy(), (Tensor(a).shard(DEVICES, 0) @ Tensor(w).shard(DEVICES)).numpy()
  summed = Tensor(a).shard(DEVICES, axis=1) @ Tensor(w).shard(DEVICES, axis=0)
  assert np.allclose(rows, columns, atol=1e-4) and np.allclose(rows, summed.numpy(), atol=1e-4)
  chaos = "20 steps amplify the order of sums"
  report(losses=losses[:10], last=(losses[-1], 5e-3, chaos), accuracy=(accuracy, 0.012, chaos), product=columns)


if __name__ == "__main__":
  main()
