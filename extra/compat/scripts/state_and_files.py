"""A model saved and loaded, a tensor in a file, slices of it as numbers, a symbolic length under TinyJit."""

import pathlib
import tempfile

import numpy as np
from common import initialise, report

from tinygrad import Tensor, TinyJit, Variable, dtypes, nn
from tinygrad.nn.state import get_state_dict, load_state_dict, safe_load, safe_save


class Model:
  def __init__(self):
    self.emb, self.norm, self.out = nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 3)

  def __call__(self, ids):
    return self.out(self.norm(self.emb(ids)))


def main():
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "model.safetensors"
    saved, loaded = initialise(Model(), seed=16), initialise(Model(), seed=17)
    safe_save(get_state_dict(saved), str(path))
    load_state_dict(loaded, safe_load(str(path)), verbose=False)
    ids = Tensor([[1, 5, 9]])
    assert (saved(ids).numpy() == loaded(ids).numpy()).all()

    file = pathlib.Path(folder) / "numbers.bin"
    np.arange(32, dtype=np.float32).tofile(file)
    raw = Tensor(file)
    part = raw[16:48].bitcast(dtypes.float32).to("CPU").realize()
    disk = Tensor.empty(4, dtype=dtypes.int32, device=f"DISK:{folder}/made.bin")
    disk.assign(Tensor([1, 2, 3, 4], dtype=dtypes.int32)).realize()
    written = np.fromfile(f"{folder}/made.bin", np.int32)

  @TinyJit
  def total(x, n):
    return x.shrink(((0, n),)).sum().realize()

  x, n = Tensor(np.arange(10, dtype=np.float32)).realize(), Variable("n", 1, 10)
  totals = [total(x, n.bind(i)).item() for i in range(1, 9)]
  report(logits=loaded(ids), part=part, written=(written, 0, "exact"), bytes=len(raw), totals=(totals, 0, "exact"))


if __name__ == "__main__":
  main()
