"""What notebooks show of values, placements, moves and captures; the notebooks of docs/ run, and show what they say."""

import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tinygrad import Mesh, P, Sharding, Tensor, TinyJit
from tinygrad.helpers import GlobalCounters, tqdm
from tinygrad.helpers.progress import progress
from tinygrad.sharding import explain

ROOT = Path(__file__).parents[1]
MESH = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def parsed(x):
  """The HTML of an object, which has to be well formed."""
  return ElementTree.fromstring(x._repr_html_())


def cells(x):
  return ["".join(cell.itertext()) for cell in parsed(x).iter("td")]


def colors(x):
  found = [re.search(r"background:(hsl\([^)]*\))", cell.get("style")) for cell in parsed(x).iter("td")]
  return [match[1] for match in found if match]


def test_a_mesh_is_a_grid_of_its_devices():
  assert cells(MESH) == ["CPU ", "CPU:1 ", "CPU:2 ", "CPU:3 "]
  assert [len(list(row)) for row in parsed(MESH).iter("tr")] == [2, 2]
  assert len(set(colors(MESH))) == 4


def test_a_large_mesh_is_cut_short():
  mesh = Mesh([f"NULL:{i}" for i in range(100)])
  assert len(cells(mesh)) == 64 and "and 36 more" in mesh._repr_html_()


def test_devices_that_hold_one_block_have_one_colour():
  first, second, third, fourth = colors(Sharding(MESH, P("data")))
  assert first == second and third == fourth and first != third
  assert len(set(colors(Sharding(MESH)))) == 1
  assert len(set(colors(Sharding(MESH, P("model", "data"))))) == 4
  assert cells(Sharding(MESH, P("data")))[2] == "CPU:2 dim 0: 2/2"


def test_a_tensor_shows_its_first_values_once_they_are_there():
  x = Tensor(np.arange(600, dtype=np.float32).reshape(20, 30)).shard(MESH, P("data"))
  before = GlobalCounters.kernel_count
  assert "not computed yet" in x._repr_html_() and cells(x) == []
  assert GlobalCounters.kernel_count == before
  x.realize()
  shown = cells(x)
  assert "not computed yet" not in x._repr_html_() and len(shown) == 60
  assert (shown[0], shown[1], shown[10]) == ("0", "1", "30") and "…" in x._repr_html_()
  assert "float32[20, 30] on CPU:0-3" in x._repr_html_()
  assert len(set(re.findall(r'fill="(hsl[^"]*)"', x._repr_html_()))) == 2  # two blocks


@pytest.mark.parametrize("value", (3.5, [1, 2, 3], [[True, False]], [[[1.0, 2.0]], [[3.0, 4.0]]], []))
def test_every_shape_is_shown(value):
  x = Tensor(value).contiguous().realize()
  want = np.array(value)[(0,) * max(0, np.ndim(value) - 2)]
  assert cells(x) == [f"{v:.4g}" if isinstance(v, float) else str(v) for v in want.reshape(-1).tolist()]


def test_simulated_devices_have_no_values():
  x = Tensor.ones(4, device="NULL").contiguous().realize()
  assert cells(x) == []


def test_text_is_escaped():
  def step(x: Tensor) -> Tensor:
    return x + 1

  step.__name__ = "<b>"
  assert "<b>&lt;b&gt;" not in TinyJit(step)._repr_html_() and "&lt;b&gt;" in TinyJit(step)._repr_html_()


def test_moves_are_a_table():
  x, w = Tensor.ones(4, 8).shard(MESH, P(None, "data")).realize(), Tensor.ones(8, 4).shard(MESH, P("data")).realize()
  moves = explain(x @ w)
  assert cells(moves)[:4] == ["all_reduce", "data", "2", "64 B"]
  assert "64 B travel to each device" in moves._repr_html_()
  assert "nothing moves" in explain(x + 1)._repr_html_()


def test_captures_are_counted():
  @TinyJit
  def step(x: Tensor) -> Tensor:
    return (x + 1).realize()

  for n in (3, 3, 3, 4):
    step(Tensor.ones(n).contiguous().realize())
  assert cells(step) == ["3", "1", "1", "-"] and "TinyJit of step" in step._repr_html_()


def test_a_bar_in_a_notebook_is_one_line_that_is_written_over(monkeypatch):
  stream = type("OutStream", (), {"__module__": "ipykernel.iostream", "write": lambda *_: 0, "flush": lambda _: None})()
  monkeypatch.setattr(sys, "stderr", stream)
  assert isinstance(tqdm(range(3)), progress.tqdm)


# ---------------------------------------------------------------- the notebooks


def shown(cell):
  """What a cell shows, without what goes to standard error (bars) and addresses of objects."""
  texts = [output for output in cell.get("outputs", ()) if output.get("name") != "stderr"]
  data = [{"text": output["text"]} if "text" in output else dict(output["data"]) for output in texts]
  return [{kind: re.sub(r" at 0x[0-9a-f]+", "", text) for kind, text in views.items()} for views in data]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_shows_what_it_says(file, tmp_path, monkeypatch):
  nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient: pip install 'tinygrad[test]'")
  nbformat = pytest.importorskip("nbformat")
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  for name in ("DEV", "SPEC"):
    monkeypatch.delenv(name, raising=False)
  committed = nbformat.read(file, 4)
  again = nbformat.read(file, 4)
  nbclient.NotebookClient(again, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
  for before, after in zip(committed.cells, again.cells, strict=True):
    assert shown(after) == shown(before), after.source


def test_there_are_two_notebooks():
  assert [file.stem for file in NOTEBOOKS] == ["placement", "training"]
  assert os.path.getsize(NOTEBOOKS[0]) > 1000
