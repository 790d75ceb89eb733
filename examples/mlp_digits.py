"""Train a small MLP on scikit-learn's handwritten digits, its batch cut over several devices.

Only two lines know about devices: the weights are replicated (`shard_(devices)`) and each batch is cut
(`shard(devices, axis=0)`). Everything between (the activations, the loss, the gradients with their all-reduce, the
optimizer) follows from them.

    pip install -e '.[test]'          # scikit-learn, which brings the data
    python examples/mlp_digits.py     # two devices, a few seconds
    python examples/mlp_digits.py --devices 4 --epochs 10
    python -m tinygrad.launch -n 4 examples/mlp_digits.py --devices 4   # the same in four processes (docs/hosts.md)
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_digits

from tinygrad import Device, Tensor, TinyJit, distributed, nn

BATCH = 128
HELD_OUT = 5  # every fifth picture is kept for the test


class MLP:
  """8x8 pictures, flattened -> 256 -> 128 -> 10 logits."""

  def __init__(self) -> None:
    self.l1, self.l2, self.l3 = nn.Linear(64, 256), nn.Linear(256, 128), nn.Linear(128, 10)

  def __call__(self, x: Tensor) -> Tensor:
    return self.l3(self.l2(self.l1(x).relu()).relu())


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """(train pictures float32[n, 64] in 0..1, train labels int32[n], test pictures, test labels)."""
  pictures, labels = load_digits(return_X_y=True)
  x, y = (pictures / 16.0).astype(np.float32), labels.astype(np.int32)
  test = np.arange(len(x)) % HELD_OUT == 0
  return x[~test], y[~test], x[test], y[test]


def train(
  devices: tuple[str, ...], epochs: int = 20, seed: int = 0, report: Callable[[int, float], None] = lambda *_: None
) -> tuple[MLP, float, list[float]]:
  """Train on `devices`, one share of the batch on each; `report(epoch, mean loss)` is called after every epoch.

  Returns the model, its accuracy on the held-out pictures (0..1) and the mean loss of each epoch.
  """
  x_train, y_train, x_test, y_test = digits()
  Tensor.manual_seed(seed)
  model = MLP()
  parameters = nn.state.get_parameters(model)
  for p in parameters:
    p.shard_(devices)
  optimizer = nn.optim.Adam(parameters, lr=8e-3)

  @TinyJit
  def step(x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = model(x).sparse_categorical_crossentropy(y)
    loss.backward()
    optimizer.step()
    return loss.realize()

  shuffle, losses = np.random.default_rng(seed), []
  with Tensor.train():
    for epoch in range(epochs):
      order = shuffle.permutation(len(x_train))
      batches = [order[i : i + BATCH] for i in range(0, len(order) - BATCH + 1, BATCH)]
      total = 0.0
      for rows in batches:
        x, y = (Tensor(a[rows]).shard(devices, axis=0).realize() for a in (x_train, y_train))
        total += step(x, y).item()
      losses.append(total / len(batches))
      report(epoch, losses[-1])

  answers = model(Tensor(x_test).shard(devices, axis=0)).argmax(axis=1).numpy()
  return model, float((answers == y_test).mean()), losses


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--devices", type=int, default=2, metavar="N", help="how many devices the batch is cut over (2)")
  parser.add_argument("--epochs", type=int, default=20, metavar="N", help="passes over the 1437 pictures (20)")
  parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order of the pictures (0)")
  args = parser.parse_args()

  distributed.initialize()
  devices = tuple(f"{Device.DEFAULT}:{i}" for i in range(args.devices))
  start = time.perf_counter()
  model, accuracy, _ = train(
    devices,
    args.epochs,
    args.seed,
    lambda epoch, loss: print(f"epoch {epoch + 1:3d}/{args.epochs}  loss {loss:.4f}", flush=True),
  )
  print(f"weights on {model.l1.weight.device}")
  print(f"test accuracy {accuracy:.2%} after {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
  main()
