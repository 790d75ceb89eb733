"""A small model on a 2×2 mesh, and its recording by a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

MODEL = """
import sys
import tinygrad.nn as nn
from tinygrad import Mesh, P, Tensor, TinyJit

class MLP:
  def __init__(self, n):
    self.up, self.down = nn.Linear(n, 2 * n, bias=False), nn.Linear(2 * n, n, bias=False)

  def __call__(self, x):
    return self.down(self.up(x).relu())

class Model:
  def __init__(self, n):
    self.blocks = [MLP(n) for _ in range(2)]

  def __call__(self, x):
    for block in self.blocks:
      x = x + block(x)
    return x

mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
Tensor.manual_seed(1)
model = Model(16)
for name, w in nn.state.get_state_dict(model).items():
  w.shard_(mesh, P("model", None) if "up" in name else P(None, "model"))
optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.1)

@TinyJit
def step(x):
  optimizer.zero_grad()
  loss = (model(x) ** 2).mean()
  loss.backward()
  return loss.realize(*optimizer.schedule_step())

with Tensor.train():
  for _ in range(4):
    step(Tensor.ones(8, 16).contiguous().shard(mesh, P("data", None)).realize()).item()
"""


def run(folder: Path, text: str = MODEL, file: str = "viz.html", **settings: str) -> subprocess.CompletedProcess[str]:
  """Runs a program under VIZ=1 in a folder, where it leaves `file`."""
  (folder / "train.py").write_text(text, encoding="utf-8")
  root = str(Path(__file__).parents[2])
  environment = {**os.environ, "VIZ": "1", "VIZ_FILE": file, "PYTHONPATH": root, **settings}
  command = [sys.executable, "train.py"]
  return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
