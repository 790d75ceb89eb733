"""A training run of an example, with small settings: prints each loss to its last bit. Arguments: which (of a GPT with
its mesh), and how many devices there are in all."""

import os
import sys
from pathlib import Path

from tinygrad import Tensor, distributed

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples import experts, gpt, mlp_digits, pipeline

name, *mesh = sys.argv[1].split("-")
COUNT = int(sys.argv[2])
distributed.initialize(COUNT // int(os.environ.get("PMI_SIZE", "1")))
Tensor.manual_seed(3)
if name == "mlp":
  _, accuracy, losses = mlp_digits.train(tuple(f"CPU:{i}" for i in range(COUNT)), epochs=1)
  losses.append(accuracy)
elif name == "gpt":
  losses = gpt.train(3, tuple(map(int, mesh)), dim=64, layers=1, length=16)
else:
  losses = {"experts": experts, "pipeline": pipeline}[name].train(4)
print("losses", *(loss.hex() for loss in losses), flush=True)
