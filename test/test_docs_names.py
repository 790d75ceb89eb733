"""The tables of names of the how-tos: each line of the right column runs; what PyTorch and JAX give is the same, where
they are installed."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest

import tinygrad
from tinygrad import Mesh, Tensor, nn
from tinygrad.sharding import explain, visualize
from tinygrad.transforms.tree import tree_map

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| (.+?) \| `(.+)` \|$", re.MULTILINE)
X = np.array([[0.5, -1.0, 2.0], [3.0, 0.25, -0.75]], np.float32)
W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
I, MASK = np.array([1, 0], np.int32), X > 0


def rows(page: str) -> list[tuple[str, str]]:
  """(what is written there, what is written here) of each row."""
  return [(theirs.strip("`"), here) for theirs, here in ROW.findall((DOCS / f"howto/{page}.md").read_text())]


def of_here() -> dict[str, object]:
  names = {name: getattr(tinygrad, name) for name in tinygrad.__all__}
  mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
  model = nn.Linear(3, 4)
  values = {"x": Tensor(X), "w": Tensor(W), "i": Tensor(I), "mask": Tensor(MASK), "X": X}

  def f(t: Tensor) -> Tensor:
    return (t * t).sum()

  tools = {"explain": explain, "visualize": visualize, "tree_map": tree_map}
  return {**names, **values, **tools, "mesh": mesh, "model": model, "f": f, "step": f}


def value(code: str, names: dict[str, object]):
  """What a line gives; None of a statement."""
  try:
    made = eval(code, names)
  except SyntaxError:
    return exec(code, names)
  return made.numpy() if hasattr(made, "numpy") else made


PAGES = ("from_tinygrad", "from_pytorch", "from_jax")


@pytest.mark.parametrize("page, here", [(p, here) for p in PAGES for _, here in rows(p)], ids=lambda text: text[:40])
def test_a_line_of_the_tables_runs(page, here, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  value(here, of_here())


def test_the_tables_are_read():
  assert [len(rows(p)) for p in PAGES] > [15, 60, 60]


def differing(page: str, there: dict[str, object]) -> tuple[list[str], int]:
  """The rows that give numbers here and others there, and how many rows were compared."""
  wrong, count = [], 0
  for theirs, here in rows(page):
    with contextlib.suppress(SyntaxError, NameError):  # a name without what it needs, as `Partial()`
      mine = value(here, of_here())
      if isinstance(mine, (np.ndarray, float)) and "mesh" not in here:
        want = np.asarray(value(theirs, dict(there)))
        count += 1
        if np.shape(mine) != want.shape or not np.allclose(mine, want, rtol=1e-3, atol=1e-5):
          wrong.append(f"{theirs} | {here}: {want} | {mine}")
  return wrong, count


def of_torch():
  torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'tinygrad[oracle]'")
  arrays = {name: torch.from_numpy(a) for name, a in {"x": X, "w": W, "i": I.astype(np.int64), "mask": MASK}.items()}
  return {"torch": torch, **arrays, "X": X}


def of_jax():
  jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'tinygrad[oracle]'")
  arrays = {name: jax.numpy.asarray(a) for name, a in {"x": X, "w": W, "i": I}.items()}
  return {"jax": jax, "jnp": jax.numpy, **arrays, "X": X, "f": lambda t: (t * t).sum()}


@pytest.mark.parametrize("page, peer, least", [("from_pytorch", of_torch, 30), ("from_jax", of_jax, 35)])
def test_both_columns_give_the_same(page, peer, least, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # some save files
  wrong, count = differing(page, peer())
  assert wrong == [] and count >= least


def test_a_models_placements_with_its_scalars():
  """BatchNorm's counter has no dim to cut."""
  (line,) = [here for theirs, here in rows("from_pytorch") if theirs == "fully_shard(model)"]
  names = of_here()
  names["model"] = model = nn.BatchNorm(4)
  eval(line, names)
  x = Tensor(np.arange(8, dtype=np.float32).reshape(2, 4)).shard(names["mesh"], tinygrad.P("d"))
  with Tensor.train():
    model(x).realize()
  assert model.num_batches_tracked.item() == 1 and model.weight.device.axis == 0
