"""`explain`: what it lists is what a realize does, in the user's lines and names. `visualize`: who holds what."""

import inspect
import re
import xml.dom.minidom
from collections import Counter

import numpy as np
import pytest

from tinygrad import Context, Mesh, P, Sharding, Tensor, Variable
from tinygrad.debug.report import as_realized
from tinygrad.engine.compile import make_plan
from tinygrad.nn.optim import SGD
from tinygrad.sharding import explain, visualize
from tinygrad.uop import Ops

EIGHT = [f"NULL:{i}" for i in range(8)]
GRID = Mesh(EIGHT, (2, 4), ("dp", "tp"))


def empty(*shape, cut=(), mesh=GRID):
  return Tensor.empty(*shape, device=Sharding(mesh, P(*cut)))


def here():
  """The line of the caller."""
  return inspect.currentframe().f_back.f_lineno


def test_a_row_has_kind_axes_bytes_lines_and_a_reason():
  x, w = empty(64, 256, cut=(None, "tp")), empty(256, 128, cut=("tp",))
  y, made = x @ w, here()
  z, forced = y.exp(), here()
  r = explain(z)
  (row,) = r.rows
  assert (row.kind, row.axes, row.n) == ("all_reduce", ("tp",), 4)
  assert (row.payload, row.wire) == (64 * 128 * 4, 2 * 64 * 128 * 4 * 3 // 4)
  assert row.made_at == f"{__file__}:{made}"
  assert row.where == f"{__file__}:{forced}" or row.where == row.made_at  # reduced at once with DEFER=0
  assert "is partial (add)" in row.why
  assert (r.payload, r.wire, r.copied) == (row.payload, row.wire, 0)


def test_every_kind():
  x = empty(16, 16, cut=("dp", "tp"))
  unreduced = empty(16, 8, cut=(None, "tp")) @ empty(8, 16, cut=("tp",))
  kinds = {
    "all_gather": x.shard(GRID, P("dp")),
    "all_to_all": empty(16, 16, cut=("tp",)).shard(GRID, P(None, "tp")),
    "permute": empty(16, 16, cut=(("dp", "tp"),)).shard(GRID, P(("tp", "dp"))),
    "all_reduce": unreduced.exp(),
    "reduce_scatter": unreduced.shard(GRID, P("tp")),
    "copy": Tensor(np.ones((16, 16), np.float32)).shard(GRID, P("dp")),
  }
  for kind, y in kinds.items():
    assert [row.kind for row in explain(y)] == [kind], explain(y)
  assert len(explain(x.shard(GRID, P(("dp",), "tp")))) == 0
  assert explain(kinds["copy"]).copied == 16 * 16 * 4 / 2 and explain(kinds["copy"]).wire == 0
  assert str(explain(x)) == "nothing moves"
  assert re.search(r"all_gather +tp +4 ", str(explain(kinds["all_gather"])))


def test_uneven_parts_count_the_largest():
  row = explain(empty(5, 3, cut=("tp",)).shard(GRID, None))[0]
  assert (row.kind, row.payload, row.wire) == ("all_gather", 5 * 3 * 4, 5 * 3 * 4)  # the last device holds nothing


def test_a_halo_counts_its_bytes_and_not_those_of_a_shift():
  line = Mesh(EIGHT, None, ("rows",))
  x = empty(1, 1, 64, 32, cut=(None, None, "rows"), mesh=line)
  (row,) = explain(x.avg_pool2d((3, 1), stride=1, padding=(1, 0)))
  assert (row.kind, row.axes, row.n) == ("permute", ("rows",), 8)
  assert row.wire == 2 * 32 * 4  # one row from either neighbour


def test_a_backward_pass_shows_the_forward_line_and_an_optimizer_the_callers():
  w = empty(256, 128)
  x = empty(64, 256, cut=("dp",))
  y, forward = x @ w, here()
  loss = y.square().mean()
  (g,) = loss.gradient(w)
  (row,) = explain(g)
  assert (row.kind, row.axes, row.where, row.made_at) == ("all_reduce", ("dp",), *[f"{__file__}:{forward}"] * 2)
  w.requires_grad_()
  optimizer = SGD([w], lr=0.1)
  with Tensor.train():
    loss.backward()
    updates, step = optimizer.schedule_step(), here()
  (row,) = [r for r in explain(*updates) if r.kind != "copy"]
  assert row.where in (f"{__file__}:{step}", f"{__file__}:{forward}")  # DEFER=1 reduces what the step writes
  assert row.made_at in (f"{__file__}:{step}", f"{__file__}:{forward}")


def test_names_are_those_of_the_mesh_that_the_value_was_placed_with():
  devices = [f"NULL:{i}" for i in range(60, 64)]
  first, second = Mesh(devices, (4,), ("rows",)), Mesh(devices, (4,), ("columns",))
  assert explain(empty(8, 4, cut=("rows",), mesh=first).shard(first, None))[0].axes == ("rows",)
  assert explain(empty(8, 4, cut=("columns",), mesh=second).shard(second, None))[0].axes == ("columns",)
  assert first.axes_of(Sharding(second, P("columns:(1)2")).used) == ("rows:(1)2",)


def test_explain_lists_the_collectives_of_the_local_program():
  """One row for each COLLECTIVE of the plan that moves bytes: the same passes decide."""
  w1, w2 = empty(32, 64, cut=(None, "tp")), empty(64, 32, cut=("tp",))
  loss = ((empty(16, 32, cut=("dp",)) @ w1).relu() @ w2).softmax().square().mean()
  roots = [loss, *loss.gradient(w1, w2)]
  with Context(INTERPRET=1):
    local = make_plan(as_realized([t.uop for t in roots])).local
  made = Counter(u.arg.kind for u in local.toposort() if u.op is Ops.COLLECTIVE)
  assert Counter(row.kind for row in explain(*roots)) == made
  assert made


def test_explain_computes_nothing_and_counts_writes():
  devices = ("CPU:1", "CPU:2")
  x = Tensor(np.arange(8, dtype=np.float32)).shard(devices, 0).realize()
  y = x.shard(devices, None) * 2
  assert [row.kind for row in explain(y)] == ["all_gather"]
  target = Tensor.zeros(8).contiguous().shard(devices, None).realize()
  target.assign(x)
  assert [row.kind for row in explain(target)] == ["all_gather"]
  assert explain(x).rows == ()
  assert (y.numpy() == np.arange(8) * 2).all() and (target.numpy() == np.arange(8)).all()


def test_debug_2_shows_the_moves_as_they_run(capsys):
  x = empty(8, 8, cut=("dp",)).exp()
  with Context(DEBUG=2):
    x.shard(GRID, P(None, "dp")).realize()
  out = capsys.readouterr().out
  assert "all_to_all" in out and "test_explain.py" in out


# ---------------------------------------------------------------- drawings


def test_a_drawing_names_the_devices_of_each_part():
  text = str(visualize(empty(8, 16, cut=("dp", "tp"))))
  rows = [line for line in text.splitlines() if "NULL" in line][1:]
  assert [re.findall(r"NULL:?\d*", row) for row in rows] == [
    ["NULL", "NULL:1", "NULL:2", "NULL:3"],
    ["NULL:4", "NULL:5", "NULL:6", "NULL:7"],
  ]
  assert "0:4" in rows[0] and "4:8" in rows[1] and "12:16" in text


def test_drawings_of_other_ranks():
  assert str(visualize(empty(4))).count("NULL:0-7") == 2  # the title and the only part
  assert "empty" in str(visualize(empty(3, cut=("tp",))))
  assert "NULL:0-7" in str(visualize(empty()))
  assert "CPU" in str(visualize(Tensor.empty(2, 3, 4, device="CPU")))
  cube = Mesh(EIGHT, (2, 2, 2), ("a", "b", "c"))
  assert "NULL:5 2:[4:8]" in str(visualize(empty(8, 8, 8, cut=("a", "b", "c"), mesh=cube)))


def test_the_svg_is_well_formed_and_written(tmp_path):
  drawing = visualize(empty(8, 16, cut=("dp", "tp")), tmp_path / "x.svg")
  assert (tmp_path / "x.svg").read_text() == drawing.svg
  assert [p.name for p in tmp_path.iterdir()] == ["x.svg"]
  document = xml.dom.minidom.parseString(drawing.svg)
  assert len(document.getElementsByTagName("rect")) == 8
  names = {t.firstChild.data for t in document.getElementsByTagName("text") if t.firstChild is not None}
  assert {"NULL:7", "4:8", "12:16"} <= names
  small = visualize(empty(6, 8, cut=("data", "model"), mesh=Mesh(EIGHT[:4], (2, 2), ("data", "model"))))
  width = int(xml.dom.minidom.parseString(small.svg).documentElement.getAttribute("width"))
  assert width >= 8 + 7.3 * len(small.title), "the title is shown to its end"


def test_a_symbolic_shape_cannot_be_drawn():
  n = Variable("n", 1, 8).bind(3)
  with pytest.raises(ValueError, match="visualize: the shape .* is symbolic"):
    visualize(empty(8, 4)[:n])


def test_explain_counts_what_is_padded_by_a_variable():
  """The length is known, and where the values come to lie is not: of each part of the result all may come from
  others."""
  mesh = Mesh(("CPU:0", "CPU:1"), names=("x",))
  before = Variable("v", 0, 4).bind(2)
  x = Tensor.arange(8).shard(mesh, P("x")).realize()
  y = x.pad(((before, 4 - before),)).shard(mesh, P("x"))
  assert explain(y).wire == 6 * 4 and y.tolist() == [0, 0, *range(8), 0, 0]
