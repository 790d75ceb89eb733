"""The tables of names of the how-tos: each line of the right column runs; what PyTorch and JAX give is the same, where
they are installed."""

import contextlib
import inspect
import re
import warnings
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


def positional(function: object) -> list[str]:
  """The names of the parameters that may be given without them, behind the first."""
  parameters = inspect.signature(function).parameters.values()
  return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][1:]


def test_the_page_names_every_function_whose_arguments_stand_in_another_order():
  torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'tinygrad[oracle]'")
  with warnings.catch_warnings(action="ignore"):
    peers = {f.__name__: like for f, like in torch.overrides.get_testing_overrides().items() if hasattr(f, "__name__")}
  apart = {"std", "std_mean", "var", "var_mean"}  # PyTorch's signatures of these are in C
  for name in peers.keys() & vars(torch.nn.functional).keys() & {*dir(Tensor)}:
    theirs, ours = positional(peers[name]), positional(getattr(Tensor, name))
    if any(theirs.index(p) != ours.index(p) for p in ours if p in theirs and p != "dtype"):
      apart.add(name)
  (line,) = re.findall(
    r"given without their names .* than PyTorch's for (.+):\n", (DOCS / "howto/from_pytorch.md").read_text()
  )
  assert set(re.findall(r"`(\w+)`", line)) == apart


def test_what_the_page_says_of_their_order():
  torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'tinygrad[oracle]'")
  image = np.arange(50, dtype=np.float32).reshape(1, 2, 5, 5)
  t, x, w, b = torch.from_numpy(image), Tensor(image), Tensor(np.ones((2, 1, 3, 3), np.float32)), Tensor([0.0, 0.0])
  np.testing.assert_array_equal(x.conv2d(w, b, 2).numpy(), x.conv2d(w, b, groups=2).numpy())
  assert t.std(0, False).shape == (2, 5, 5) and np.isnan(x.std(0, False).numpy()).all()  # of one element, by n - 1
  np.testing.assert_array_equal(x.std(0, unbiased=False).numpy(), t.std(0, False).numpy())
  pooled = torch.nn.functional.max_pool2d(t, 3, 2, 1)
  assert x.max_pool2d(3, 2, 1).shape == (1, 2, 2, 2)
  np.testing.assert_array_equal(x.max_pool2d(3, stride=2, padding=1).numpy(), pooled.numpy())


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
