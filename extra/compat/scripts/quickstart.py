"""The first programs that a newcomer writes: lazy tensors and their gradients, a network, its training with TinyJit,
its evaluation, its weights saved and loaded."""

import os
import tempfile

import numpy as np
from common import digits, initialise, normal, report

from tinygrad import Context, Tensor, TinyJit, dtypes, nn


class LinearNet:
  """Weights as plain tensors, without layers."""

  def __init__(self):
    self.l1, self.l2 = Tensor.kaiming_uniform(64, 32), Tensor.kaiming_uniform(32, 10)

  def __call__(self, x):
    return x.flatten(1).dot(self.l1).relu().dot(self.l2)


class ConvNet:
  def __init__(self):
    self.l1, self.l2 = nn.Conv2d(1, 8, kernel_size=(3, 3)), nn.Conv2d(8, 16, kernel_size=(3, 3))
    self.l3 = nn.Linear(16, 10)

  def __call__(self, x):
    x = self.l1(x).relu().max_pool2d((2, 2))
    return self.l3(self.l2(x).relu().mean((2, 3)).dropout(0.0))


def tensors():
  """What the first page shows: creation, arithmetic, indexing, broadcasting, dtypes, gradients by hand."""
  a, b = Tensor([1, 2, 3]), Tensor([[2.0], [4.0]])
  x, y = Tensor.eye(3), Tensor([[2.0, 0, -2.0]])
  z = y.matmul(x).sum()
  gradients = z.gradient(x, y)
  mixed = (a + 1.5) * b
  out = [mixed, mixed[1, ::2], Tensor.arange(6).reshape(2, 3).T, Tensor.full((2, 2), 7), a.cast(dtypes.float64) / 3]
  out += [*gradients, (a > 1).where(a, -a), Tensor.stack(a, a * 2).mean(axis=0), mixed.exp()]
  assert mixed.dtype == dtypes.float32 and a.dtype == dtypes.int
  return np.concatenate([t.numpy().astype(np.float64).reshape(-1) for t in out])


def train(model, optimizer, images, labels, steps):
  rng, losses = np.random.default_rng(0), []

  @TinyJit
  @Context(TRAINING=1)
  def step(x, y):
    optimizer.zero_grad()
    loss = model(x).sparse_categorical_crossentropy(y).backward()
    return loss.realize(*optimizer.schedule_step())

  for _ in range(steps):
    chosen = rng.integers(0, len(images), 32)
    losses.append(step(Tensor(images[chosen]), Tensor(labels[chosen])).item())
  return losses


def main():
  x, y, x_test, y_test = digits()
  plain, conv = initialise(LinearNet(), seed=1), initialise(ConvNet(), seed=2)
  first = train(plain, nn.optim.SGD([plain.l1, plain.l2], lr=1e-2), x, y, 8)
  second = train(conv, nn.optim.Adam(nn.state.get_parameters(conv), lr=1e-3, eps=1e-4), x, y, 8)
  guess = conv(Tensor(x_test)).argmax(axis=1)
  accuracy = (guess == Tensor(y_test)).mean().item()
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "net.safetensors")
    nn.state.safe_save(nn.state.get_state_dict(conv), path)
    again = ConvNet()
    nn.state.load_state_dict(again, nn.state.safe_load(path), verbose=False)
    same = again(normal(3, 2, 1, 8, 8)) - conv(normal(3, 2, 1, 8, 8))
    loaded = same.abs().max().item()
  report(
    tensors=tensors(), plain=first, conv=second, accuracy=(accuracy, 0.05, "few of 360"), loaded=(loaded, 0, "bits")
  )


if __name__ == "__main__":
  main()
