"""`visualize(y, graph=True)`: the placed graph as a picture; its moves are those of `explain`."""

import html
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from tinygrad import OPEN, Mesh, P, Sharding, Tensor, auto, propagate
from tinygrad.device import ShardTypeError
from tinygrad.drawing.layered import GAP, layered
from tinygrad.sharding import explain, visualize

D4 = tuple(f"CPU:{i}" for i in range(4))
M2 = Mesh(D4, (2, 2), ("dp", "tp"))


def mlp():
  """Two layers, placed by two hints; what `propagate` said of them, too."""
  x, w1, w2 = (Tensor(np.ones(shape, np.float32)).realize() for shape in ((8, 16), (16, 32), (32, 16)))
  h = (x.constrain(P("dp", OPEN)) @ w1).relu().constrain(P(OPEN, "tp"))  # the hints
  y = h @ w2
  return y, propagate(y, mesh=M2)


class Parsed:
  """What an SVG document shows."""

  def __init__(self, drawing):
    self.root = ElementTree.fromstring(drawing.svg)
    name = "{http://www.w3.org/2000/svg}"
    self.groups = self.root.findall(f"{name}g")
    self.legend = [r.get("fill") for r in self.root.findall(f"{name}rect")]
    self.texts = [t.text for t in self.root.findall(f"{name}text")]
    self.paths = self.root.findall(f"{name}path")
    self.boxes = [g.find(f"{name}rect") for g in self.groups]
    self.titles = [g.find(f"{name}title").text for g in self.groups]
    self.words = [[t.text for t in g.findall(f"{name}text")] for g in self.groups]

  def of(self, kind):
    return [g for g in self.groups if g.get("class") == kind]

  def title(self, word):
    """What is shown where one points at the node with that first line."""
    return next(title for title, words in zip(self.titles, self.words) if words[0] == word)


def test_a_mlp_fits_a_screen():
  y, _ = mlp()
  drawing = visualize(y, graph=True)
  p = Parsed(drawing)
  assert len(p.groups) == 10 and len(p.of("input")) == 3 and len(p.of("output")) == 1
  names = [words[0] for words in p.words]
  assert names.count("contraction") == 2 and "reshape" not in names and "expand" not in names
  assert float(p.root.get("height")) < 1000 and float(p.root.get("width")) < 1000
  assert "constrain(P('dp', '?'))" in str(drawing) and drawing._repr_svg_() == drawing.svg


def test_its_moves_are_those_of_explain():
  y, _ = mlp()
  z = (y.shard(M2, P()) + 1).exp()
  rows, moves = explain(y, z).rows, Parsed(visualize([y, z], graph=True)).of("move")
  assert len(rows) == 2
  drawn = sorted((g.get("data-kind"), g.get("data-axes"), float(g.get("data-bytes"))) for g in moves)
  assert drawn == sorted((row.kind, "+".join(row.axes), row.wire) for row in rows)


def test_a_colour_for_each_placement_and_a_legend():
  y, _ = mlp()
  p = Parsed(visualize(y, graph=True))
  assert sorted(set(p.legend)) == sorted({box.get("fill") for box in p.boxes}) and len(p.legend) == len(set(p.legend))
  assert any(text.startswith("P('dp', 'tp')  CPU:0-3, dim 0 over") for text in p.texts)
  assert any("partial by add" in text for text in p.texts)


def test_hints_are_marked_and_reasons_shown_where_one_points():
  y, said = mlp()
  p = Parsed(visualize(y, graph=True))
  marked = {words[0]: words[2:] for words in p.words if len(words) > 2}
  assert marked == {"buffer": ["constrain(P('dp', '?'))"], "where": ["constrain(P('?', 'tp'))"]}
  for reason in said.why(y):
    assert str(reason) in p.title("output")
  contraction = p.title("contraction")
  assert "dim 0: constrain(P('dp', '?')) in test_graph.py:" in contraction and "# the hints" in contraction
  assert "dim 1: constrain(P('?', 'tp')) in" in contraction
  (move,) = [title for title in p.titles if title.startswith("all_reduce")]
  assert "dim 0: constrain(P('?', 'tp')) in test_graph.py:" in move and "by way of contraction" in move


def test_hints_are_marked_before_they_are_spread():
  x = Tensor(np.ones((8, 8), np.float32)).realize()
  p = Parsed(visualize((x + 1).constrain(P("dp")) * 2, graph=True))
  assert ["add", "float32[8, 8]", "constrain(P('dp', None))"] in p.words


def test_a_gradient_has_the_line_of_its_value_and_not_its_hint():
  x = Tensor(np.ones((8, 8), np.float32)).realize()
  y = x.exp().constrain(P("dp"))
  propagate(y, mesh=M2)
  (g,) = (y * y).sum().gradient(x)
  p = Parsed(visualize(g, graph=True))
  marked = [words[0] for words in p.words if len(words) > 2]
  assert marked == ["exp", "add"]  # the gradient at the hint is hinted, too
  told = [words[0] for title, words in zip(p.titles, p.words) if "dim 0: constrain" in title]
  assert told == ["buffer", "exp"]  # nothing has been spread over the gradient


def test_explain_tells_the_hint_behind_a_move_and_its_line():
  y, _ = mlp()
  z = y.constrain(P()) + 1
  propagate(z, mesh=M2)
  summed, asked = explain(z).rows
  assert summed.kind == "all_reduce" and any("constrain(P('?', 'tp')) in test_graph.py:" in h for h in summed.hints)
  assert asked.hints[0].startswith("constrain(P(None, None)) in test_graph.py:") and "a hint asks for it" in asked.why
  assert f"\n    {asked.hints[0]}\n" in str(explain(z))
  placed = Tensor.empty(8, 8, device=Sharding(M2, P("dp"))).shard(M2, P())
  assert explain(placed)[0].hints == () and "\n    " not in str(explain(placed))


def test_explain_on_a_mesh_is_explain_after_propagate_and_places_nothing():
  x, w1, w2 = (Tensor(np.ones(shape, np.float32)).realize() for shape in ((8, 16), (16, 32), (32, 16)))
  y = (x.constrain(P("dp", OPEN)) @ w1).relu().constrain(P(OPEN, "tp")) @ w2
  nodes = [t.uop for t in (x, w1, w2, y)]
  would = explain(y, mesh=M2)
  assert [t.uop for t in (x, w1, w2, y)] == nodes and w1.device == x.device == y.device
  propagate(y, mesh=M2)
  assert would and would == explain(y)
  with pytest.raises(ShardTypeError, match="explain: mesh=3 is no Mesh"):
    explain(y, mesh=3)


def test_each_run_draws_the_same():
  program = (
    "from tinygrad import Mesh, P, Tensor, propagate; from tinygrad.sharding import visualize\n"
    "x, w = Tensor.ones(8, 4).contiguous().realize(), Tensor.ones(4, 8).contiguous().realize()\n"
    "y = (x.constrain(P('a')) @ w).softmax()\n"
    "propagate(y, mesh=Mesh(('CPU:0', 'CPU:1'), names=('a',)))\n"
    "print(visualize(y, graph=True).svg)"
  )
  texts = {subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in range(2)}
  assert len(texts) == 1
  assert visualize(mlp()[0], graph=True).svg == visualize(mlp()[0], graph=True).svg


def test_text_is_escaped():
  group = "<&\"'>"
  y = Tensor.empty(8, 4, device=Sharding(M2, P("dp"))).exp().constrain(group=group)
  drawing = visualize(y, graph=True)
  assert group not in drawing.svg and html.escape(repr(group)) in drawing.svg
  assert ["exp", "float32[8, 4]", f"constrain(P('?', '?'), group={group!r})"] in Parsed(drawing).words


def test_what_auto_chose_is_no_hint():
  pytest.importorskip("highspy")
  x, w = (Tensor(np.ones(shape, np.float32)).realize() for shape in ((64, 64), (64, 64)))
  y = (x @ w).relu()
  auto(y, mesh=M2)
  assert all(row.hints == () for row in explain(y)) and "nothing cuts it" not in visualize(y, graph=True).svg


def test_what_is_only_memory_and_several_outputs():
  x = Tensor.empty(8, 4, device=Sharding(M2, P("dp")))
  assert len(Parsed(visualize(x, graph=True)).groups) == 1
  assert len(Parsed(visualize([x + 1, x * 2], graph=True)).of("output")) == 2
  target = Tensor.zeros(8).contiguous().realize()
  target.assign(target + 1)
  assert [w[0] for w in Parsed(visualize(target, graph=True)).words] == ["buffer", "add", "assign"]


def test_the_picture_is_written(tmp_path):
  drawing = visualize(mlp()[0], tmp_path / "g.svg", graph=True)
  assert (tmp_path / "g.svg").read_text() == drawing.svg and [f.name for f in tmp_path.iterdir()] == ["g.svg"]


def test_the_picture_of_the_docs_is_what_its_example_draws(tmp_path):
  root = Path(__file__).parents[2]
  command = [sys.executable, "examples/placed_graph.py", str(tmp_path / "drawn.svg")]
  subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, check=True)
  assert (tmp_path / "drawn.svg").read_text() == (root / "docs/placed_graph.svg").read_text(), "draw it anew"
  assert str(root) not in (root / "docs/placed_graph.svg").read_text()


def test_what_is_no_tensor_is_refused():
  for given in (3, [Tensor.ones(2), "x"], None):
    with pytest.raises(ShardTypeError, match=r"visualize: .* is no Tensor(.|\n)*fix: visualize\("):
      visualize(given, graph=True)
  with pytest.raises(ShardTypeError, match="explain: 3 is no Tensor"):
    explain(3)


def test_thousands_of_nodes_take_seconds():
  x = Tensor.empty(8, 8, device=Sharding(M2, P("dp")))
  y = x
  for i in range(1500):
    y = (y + 1).tanh() * x if i % 2 else y.exp() + y
  start = time.perf_counter()
  drawing = visualize(y, graph=True)
  assert len(drawing.nodes) > 3000 and len(Parsed(drawing).groups) == len(drawing.nodes)
  assert time.perf_counter() - start < 30


# ---------------------------------------------------------------- where nodes stand


def test_readers_stand_below_and_nothing_overlaps():
  rng = np.random.default_rng(0)
  for n in (1, 2, 10, 60):
    edges = sorted({tuple(sorted(rng.choice(n, 2, replace=False).tolist())) for _ in range(2 * n)}) if n > 1 else []
    widths = rng.integers(20, 200, n).tolist()
    places = layered(widths, edges)
    assert all(places.at[a][1] < places.at[b][1] for a, b in edges)
    for i in range(n):
      for j in range(i):
        (x, k), (y, m) = places.at[i], places.at[j]
        assert k != m or abs(x - y) >= (widths[i] + widths[j]) / 2 + GAP - 1e-6
    assert all(way[0] == places.at[a] and way[-1] == places.at[b] for way, (a, b) in zip(places.ways, edges))


def test_a_tree_has_no_crossing():
  edges = [(0, 1), (0, 2), (1, 5), (1, 6), (2, 3), (2, 4)]
  at = layered([30] * 7, sorted(edges, key=lambda e: e[1])).at
  crossing = [
    (e, f)
    for e in edges
    for f in edges
    if at[e[0]][1] == at[f[0]][1] and at[e[0]][0] < at[f[0]][0] and at[e[1]][0] > at[f[1]][0]
  ]
  assert not crossing and at[0][0] == pytest.approx((at[1][0] + at[2][0]) / 2, abs=1)
