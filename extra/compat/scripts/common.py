"""What the scripts share. They hold to the API that tinygrad documents, so each runs unchanged on it and here.

Weights and data come from numpy's seeded generator or from scikit-learn: random streams are no promise of either.
"""

import json

import numpy as np

from tinygrad import Context, Tensor
from tinygrad.nn import optim
from tinygrad.nn.state import get_state_dict


def initialise(model, seed=0, scale=1.0):
  """Weights of every layer from one generator, scaled by the number of inputs; norms start at 1 and 0."""
  rng = np.random.default_rng(seed)
  for name, t in get_state_dict(model).items():
    if t.ndim >= 2:
      fan_in = int(np.prod(t.shape[1:]))
      value = rng.standard_normal(t.shape) * scale / np.sqrt(fan_in)
    elif name.endswith(("running_var", "weight")):
      value = np.ones(t.shape)
    elif "num_batches" in name:
      continue
    else:
      value = np.zeros(t.shape)
    t.assign(Tensor(value.astype(np.float32)).cast(t.dtype)).realize()
  return model


def digits():
  """(train images (1437, 1, 8, 8) in 0..1, labels, test images (360, 1, 8, 8), labels) as numpy arrays: scikit-learn's
  handwritten digits, every fifth one for the test."""
  from sklearn.datasets import load_digits

  x, y = load_digits(return_X_y=True)
  x, y = (x / 16.0).astype(np.float32).reshape(-1, 1, 8, 8), y.astype(np.int32)
  test = np.arange(len(x)) % 5 == 0
  return x[~test], y[~test], x[test], y[test]


def normal(seed, *shape):
  """A tensor of standard normal numbers from numpy's generator."""
  return Tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def integers(seed, high, *shape):
  """A tensor of integers below `high`."""
  return Tensor(np.random.default_rng(seed).integers(0, high, shape).astype(np.int32))


def unrolled(cell, x):
  """The outputs (batch, steps, hidden) of a recurrent cell over x (batch, steps, channels)."""
  state, out = None, []
  for t in range(x.shape[1]):
    state = cell(x[:, t], state)
    out.append(state[0])
  return Tensor.stack(*out, dim=1)


def one_step(model, *inputs, loss=None, scale=1.0, seed=0):
  """What forward, backward and one step of SGD make of a model: a few outputs and their mean square, the loss before
  and after, the size of every gradient, the size of every parameter afterwards. `loss(output)` defaults to the mean
  square of the output less the cosine of each element's place."""
  initialise(model, seed, scale)
  parameters = get_state_dict(model)
  weights = {k: v for k, v in parameters.items() if "running_" not in k and "num_batches" not in k}

  def far(y):
    places = np.cos(np.arange(int(np.prod(y.shape)), dtype=np.float32)).reshape(y.shape)
    return (y - Tensor(places)).square().mean()

  measure = loss or far
  optimizer = optim.SGD(list(weights.values()), lr=0.05, momentum=0.9)
  with Context(TRAINING=1):
    optimizer.zero_grad()
    output = model(*inputs)
    before = measure(output)
    before.backward()
    gradients = [w.grad.square().sum().sqrt() for w in weights.values()]
    statistics = [t for k, t in parameters.items() if "running_" in k]  # before the step, or they may be of new weights
    Tensor.realize(before, output, *gradients, *statistics)
    numbers = [before.item(), output.square().mean().item(), *output.flatten()[:6].tolist()]
    numbers += [g.item() for g in gradients]
    optimizer.step()
  after = measure(model(*inputs))
  numbers += [after.item(), *(w.square().mean().sqrt().item() for w in parameters.values())]
  return numbers, 1e-4, "sums in another order"


def report(**results):
  """Prints the results as one line of JSON; a name's value may be (value, relative tolerance, reason)."""
  out = {}
  for name, value in results.items():
    tolerance, reason = 1e-3, "sums in another order"
    if isinstance(value, tuple):
      value, tolerance, reason = value
    value = value.numpy() if isinstance(value, Tensor) else value
    out[name] = {
      "value": np.asarray(value, dtype=np.float64).reshape(-1).tolist(),
      "tolerance": tolerance,
      "reason": reason,
    }
  print(json.dumps(out))
