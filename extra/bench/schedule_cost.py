"""`python -m extra.bench.schedule_cost [LAYERS ...]`: how long scheduling a training step of a GPT takes.

The model is narrow, which changes nothing for the scheduler; the step is AdamW's, with the gradients of all weights. A
row: layers, nodes of the graph, kernels, seconds (the best of three), microseconds a node.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad import Tensor, nn
from tinygrad.schedule import schedule as scheduling

sys.path.insert(0, str(Path(__file__).parent))  # the workloads are scripts
from work_tinygrad import GPT


class Stop(Exception):
  """The schedule has been made: nothing is to be run."""


def measure(layers: int) -> tuple[int, int, float]:
  """(nodes, kernels, seconds) of one step."""
  model, times = GPT(layers=layers, dim=64), list[float]()
  parameters = nn.state.get_parameters(model)
  tokens = [Tensor(np.zeros((2, 32), np.int32)).realize() for _ in range(2)]
  Tensor.realize(*parameters)
  optimizer, create = nn.optim.AdamW(parameters), scheduling.create_schedule
  Tensor.realize(*nn.state.get_parameters(optimizer))
  sizes: list[tuple[int, int]] = []

  def timed(sink: Any, *args: Any) -> None:
    for _ in range(3):
      start = time.perf_counter()
      made = create(sink, *args)
      times.append(time.perf_counter() - start)
    sizes.append((len(sink.toposort()), len(made.items)))
    raise Stop

  scheduling.create_schedule = timed
  try:
    with Tensor.train():
      model(tokens[0]).reshape(-1, 512).sparse_categorical_crossentropy(tokens[1].reshape(-1)).backward()
      optimizer.step()
  except Stop:
    pass
  finally:
    scheduling.create_schedule = create
  return *sizes[0], min(times)


if __name__ == "__main__":
  print(f"{'layers':>6} {'nodes':>7} {'kernels':>8} {'seconds':>8} {'us a node':>10}")
  for layers in map(int, sys.argv[1:] or ("8", "16", "32")):
    nodes, kernels, seconds = measure(layers)
    print(f"{layers:6d} {nodes:7d} {kernels:8d} {seconds:8.3f} {seconds / nodes * 1e6:10.1f}")
