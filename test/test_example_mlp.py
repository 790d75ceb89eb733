"""The example of examples/mlp_digits.py, run for real on compiled devices."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import mlp_digits

from tinygrad import Sharding

TWO = ("CPU:0", "CPU:1")


def test_two_devices_learn_the_digits():
  seen: list[int] = []
  model, accuracy, losses = mlp_digits.train(TWO, report=lambda epoch, _: seen.append(epoch))
  assert accuracy >= 0.97
  assert losses[-1] < 0.1 * losses[0]
  assert seen == list(range(20))
  assert model.l1.weight.device == Sharding(TWO), "the weights stayed on both devices through every update"


def test_two_devices_follow_one_device():
  """The batch's cut changes the order of the gradient's sum and nothing else."""
  _, _, one = mlp_digits.train(("CPU:0",), epochs=3)
  _, _, two = mlp_digits.train(TWO, epochs=3)
  np.testing.assert_allclose(two, one, rtol=1e-3)
  _, _, other_seed = mlp_digits.train(("CPU:0",), epochs=3, seed=1)
  assert not np.allclose(other_seed, one, rtol=1e-3), "a comparison that another seed would pass shows nothing"
