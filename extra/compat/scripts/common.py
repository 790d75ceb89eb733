"""What the scripts share. They hold to the API that tinygrad documents, so each runs unchanged on it and here.

Weights and data come from numpy's seeded generator or from scikit-learn: random streams are no promise of either.
"""

import json

import numpy as np

from tinygrad import Tensor
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
