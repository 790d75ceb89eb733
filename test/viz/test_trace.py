"""What VIZ=1 records."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from recorded import MODEL, run

from tinygrad import Context, Mesh, P, Tensor, TinyJit, scan, viz
from tinygrad.helpers import MEMORY, VIZ, GlobalCounters
from tinygrad.sharding import explain, visualize
from tinygrad.viz import page

FOUR = [f"CPU:{i}" for i in range(4)]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
  folder = tmp_path_factory.mktemp("viz")
  ended = run(folder, file="trace.json")
  assert ended.returncode == 0, ended.stderr
  assert ended.stderr.endswith(f"VIZ: wrote {folder / 'trace.json'}\n")
  return json.loads((folder / "trace.json").read_text())


def step_of(trace):
  return max(trace["plans"], key=lambda p: len(p["items"]))


def path(trace, scope):
  names = []
  while scope >= 0:
    name, scope = trace["scopes"][scope]
    names.insert(0, name)
  return names


def test_every_stage_is_there_with_its_moves(trace):
  plan = step_of(trace)
  assert [s["name"] for s in plan["stages"]] == ["global", "placed", "local"]
  strings = trace["strings"]
  for stage in plan["stages"]:
    columns = [stage[c] for c in ("op", "kind", "src", "value", "place", "line", "scope", "note")]
    assert {len(c) for c in columns} == {len(stage["op"])}
    assert all(s < i for i, src in enumerate(stage["src"]) for s in src), "sources come first"
  for stage in plan["stages"][1:]:
    told = {row for rows in stage["moves"].values() for row in rows}
    assert told == set(range(len(plan["moves"]))), "each move is at a node"
  ops = {strings[plan["stages"][2]["op"][int(i)]] for i in plan["stages"][2]["moves"]}
  assert ops == {"collective"}


def test_moves_tell_the_users_line(trace):
  moves = [(m, trace["lines"][m["line"]]) for m in step_of(trace)["moves"]]
  assert moves
  for move, (file, number, around) in moves:
    assert file == "train.py" and around[trace["around"]] == MODEL.splitlines()[number - 1]
    assert move["wire"] > 0 and move["why"]


def test_nodes_are_in_the_modules_of_the_model(trace):
  stage = step_of(trace)["stages"][1]
  paths = {tuple(path(trace, s)[-2:]) for s in stage["scope"] if s >= 0}
  assert {("blocks.0", "up"), ("blocks.1", "down")} <= paths
  backward = [path(trace, stage["scope"][i]) for i in stage["backward"]]
  assert any(p[-2:] == ["blocks.1", "up"] for p in backward), "a gradient is where its value is"
  forward = set(range(len(stage["op"]))) - set(stage["backward"])
  assert any(path(trace, stage["scope"][i])[-1:] == ["SGD"] for i in forward if stage["scope"][i] >= 0)


def test_kernels_have_their_schedule_and_source(trace):
  assert all("define" in k["source"] and k["ast"].startswith("%0") for k in trace["kernels"])
  steps = [s for k in trace["kernels"] for nest in k["steps"].values() for s in nest]
  assert any(s.startswith("vectorize(") for s in steps)
  assert trace["peaks"]["CPU"][2] is True and min(trace["peaks"]["CPU"][:2]) > 1e6


def test_each_device_ran_each_kernel_and_never_two_at_once(trace):
  plans = trace["plans"]
  ran = {t["name"]: t["events"] for t in trace["tracks"] if t["name"].startswith("CPU")}
  assert set(ran) == {"CPU", "CPU:1", "CPU:2", "CPU:3"}
  step = plans.index(step_of(trace))
  for events in ran.values():
    for a, b in zip(events, events[1:]):
      assert a[1] + a[2] <= b[1] + 0.2, "microseconds, rounded"
    items = [e[4] for e in events if e[3] == step]
    n = len(plans[step]["items"])
    assert len(items) % n == 0 and items == list(range(n)) * (len(items) // n), "in the order of the plan"


def test_peers_are_read_after_they_were_written(trace):
  """The oracle for the times: no device reads what a peer writes before the last one has."""
  number = trace["plans"].index(step_of(trace))
  items = trace["plans"][number]["items"]
  times = {}
  for t in trace["tracks"]:
    for e in t["events"]:
      if e[3] == number and t["name"].startswith("CPU"):
        times.setdefault(e[4], {}).setdefault(t["name"], []).append((e[1], e[1] + e[2]))
  found = 0
  for i, item in enumerate(items):
    if not item["peers"]:
      continue
    for j in range(i):
      if set(items[j]["slots"][: items[j]["writes"]]) & set(item["slots"][item["writes"] :]):
        found += 1
        for run_, _ in enumerate(times[i]["CPU"]):
          last = max(times[j][d][run_][1] for d in times[j])
          assert min(times[i][d][run_][0] for d in times[i]) >= last - 0.2
  assert found


def test_memory_is_what_the_counters_say():
  mesh = Mesh(FOUR, (4,), ("x",))
  x = Tensor.ones(64, 64).contiguous().shard(mesh, P("x")).realize()
  before = dict(GlobalCounters.mem_used_per_device)
  MEMORY.all.clear()
  was, VIZ.value = VIZ.value, 1
  try:
    y = (x + 1).realize()
    live = {d: sum(m.nbytes for m in MEMORY.all.values() if m.end is None and d in m.devices) for d in before}
    assert {d: before[d] + live[d] for d in before} == {d: GlobalCounters.mem_used_per_device[d] for d in before}
    assert live["CPU:1"] >= 64 * 64
    del y
    assert all(m.end is not None for m in MEMORY.all.values() if m.nbytes >= 64 * 64)
  finally:
    VIZ.value = was


def test_memory_tells_whose_line_made_it(trace):
  rows = trace["memory"]["rows"]
  kept = [r for r in rows if r[3] is None]
  assert kept and all(r[4] for r in rows if r[1] > 64), "every buffer of some size is a slot of a plan"
  sizes = {r[1] for r in kept}
  assert 16 * 32 * 4 // 2 in sizes, "half of a weight on each device"


def test_equal_runs_differ_in_times_alone(trace, tmp_path):
  assert run(tmp_path, file="trace.json").returncode == 0
  again = json.loads((tmp_path / "trace.json").read_text())

  def timeless(t):
    tracks = [(x["name"], [(e[0], *e[3:]) for e in x["events"]]) for x in t["tracks"] if not x["python"]]
    memory = [r[:2] + r[4:] for r in t["memory"]["rows"]]
    return {**t, "tracks": tracks, "memory": memory, "peaks": None}

  assert timeless(again) == timeless(trace)
  assert not re.search(r" at 0x[0-9a-f]", json.dumps(trace["strings"]))


@pytest.mark.parametrize("end", ["raise ValueError('mine')", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"])
def test_a_program_that_ends_early_leaves_its_page(tmp_path, end):
  ended = run(tmp_path, f"from tinygrad import Tensor\n(Tensor.ones(4).contiguous() + 1).realize()\n{end}\n")
  assert ended.returncode != 0 and ("mine" in ended.stderr or "KeyboardInterrupt" in ended.stderr)
  assert (tmp_path / "viz.html").read_text().startswith("<!doctype html>")
  assert sorted(f.name for f in tmp_path.iterdir()) == ["train.py", "viz.html"], "no temporary file is left"


def test_a_place_that_cannot_be_written_is_told(tmp_path):
  (tmp_path / "file").write_text("")
  ended = run(tmp_path, "from tinygrad import Tensor\nprint(Tensor([1.0]).numpy())\n", file="file/viz.html")
  assert ended.returncode == 0 and ended.stdout == "[1.]\n"
  assert (
    "VIZ: nothing is written" in ended.stderr and "fix: VIZ_FILE=" in ended.stderr and "Traceback" not in ended.stderr
  )


def test_loops_and_simulated_devices_are_recorded(tmp_path):
  file = tmp_path / "t.json"
  with Context(VIZ=1, VIZ_FILE=str(file)):
    _, ys = scan(lambda c, x: (c + x, c * x), Tensor.ones(4).contiguous(), Tensor.ones(6, 4).contiguous())
    ys.realize()
    a = Tensor.ones(8, 8).contiguous().shard(("NULL:0", "NULL:1"), axis=0)
    a.sum(0).realize()
  found = json.loads(file.read_text())
  moves = [m["kind"] for p in found["plans"] for m in p["moves"]]
  assert "all_reduce" in moves
  assert {d for r in found["memory"]["rows"] for d in r[0]} >= {"CPU", "NULL", "NULL:1"}
  events = [e for t in found["tracks"] if t["name"] == "CPU" for e in t["events"]]
  assert len(events) >= 6 and page.page_of(found)


def test_recursion_is_one_scope(tmp_path):
  def deeper(x, n):
    return deeper(x + 1, n - 1) if n else x

  file = tmp_path / "t.json"
  with Context(VIZ=1, VIZ_FILE=str(file)):
    deeper(Tensor.ones(2).contiguous(), 50).realize()
  assert [s[0] for s in json.loads(file.read_text())["scopes"]].count("deeper") == 1


def test_a_block_is_recorded_alone(tmp_path):
  file = tmp_path / "block.json"
  a = Tensor.ones(3, 3).contiguous().realize()
  with Context(VIZ=1, VIZ_FILE=str(file)):
    (a + 2).realize()
  inside = json.loads(file.read_text())
  assert len(inside["plans"]) == 1 and len(inside["plans"][0]["items"]) == 1
  with Context(VIZ=1, VIZ_FILE=str(file)):
    (a + 2).realize()  # planned and compiled before, and there again
  again = json.loads(file.read_text())
  assert len(again["plans"]) == 1 and again["kernels"][0]["source"] == inside["kernels"][0]["source"] != ""


def test_what_is_computed_is_the_same(tmp_path):
  x = np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32)
  mesh = Mesh(FOUR, (2, 2), ("a", "b"))

  def value():
    f = TinyJit(lambda t: (t.softmax(1) @ t.transpose(0, 1)).sum(0).realize())
    return [f(Tensor(x + i).shard(mesh, P("a", "b")).realize()).numpy() for i in range(4)]

  plain = value()
  with Context(VIZ=1, VIZ_FILE=str(tmp_path / "t.json")):
    for a, b in zip(plain, value()):
      np.testing.assert_array_equal(a, b)


class Part:
  def __init__(self, whole):
    self.whole = whole

  def call(self, x, depth):
    return self.whole.call(x, depth - 1) if depth else x * 3


class Whole:
  def __init__(self):
    self.part = Part(self)

  def call(self, x, depth):
    return self.part.call(x, depth)


def test_modules_that_call_each_other_are_no_circle(tmp_path):
  file = tmp_path / "t.json"
  with Context(VIZ=1, VIZ_FILE=str(file)):
    Whole().call(Tensor.ones(3).contiguous(), 3).realize()
  names = {s[0] for s in json.loads(file.read_text())["scopes"]}
  assert "part" in names


def test_off_nothing_is_recorded():
  code = (
    "import sys; from tinygrad import Tensor; (Tensor.ones(4).contiguous() + 1).realize()\n"
    "from tinygrad.helpers import MEMORY, events_since\n"
    "print(len(MEMORY.all), len(events_since(0)), 'tinygrad.viz.trace' in sys.modules)"
  )
  environment = {k: v for k, v in os.environ.items() if k not in ("VIZ", "PROFILE")}
  out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
  assert out.stdout == "0 0 False\n", out.stderr


@pytest.mark.parametrize("value, screen, opens", [(1, True, True), (2, True, False), (1, False, False)])
def test_on_a_desktop_the_page_opens(tmp_path, monkeypatch, capsys, value, screen, opens):
  asked = []
  monkeypatch.setattr("webbrowser.open", lambda url: bool(asked.append(url)) or True)
  monkeypatch.setattr(viz, "CI", False)
  monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
  for name in ("DISPLAY", "WAYLAND_DISPLAY"):
    monkeypatch.delenv(name, raising=False)
  if screen:
    monkeypatch.setenv("DISPLAY", ":0")
  file = tmp_path / "viz.html"
  with Context(VIZ=value, VIZ_FILE=str(file)):
    (Tensor.ones(2).contiguous() + 1).realize()
  assert asked == ([f"file://{file}"] if opens else [])
  assert capsys.readouterr().err == f"VIZ: {'opened' if opens else 'wrote'} {file}\n"


# ---------------------------------------------------------------- files


def test_a_page_is_made_of_a_saved_trace(trace, tmp_path):
  (tmp_path / "trace.json").write_text(json.dumps(trace))
  made = subprocess.run(
    [sys.executable, "-m", "tinygrad.viz", str(tmp_path / "trace.json")], capture_output=True, text=True
  )
  assert made.stdout == f"{tmp_path / 'trace.html'}\n", made.stderr
  html = (tmp_path / "trace.html").read_text()
  assert html == page.page_of(trace)
  assert not re.search(r'(src|href)="', html), "it asks nobody for anything"


def test_a_trace_of_profile_is_a_recording_of_times(tmp_path):
  file = tmp_path / "profile.json"
  with Context(PROFILE=1, PROFILE_FILE=str(file)):
    (Tensor.ones(5).contiguous() * 3).realize()
  found = page.read_recording(file)
  names = [t["name"] for t in found["tracks"]]
  assert "CPU" in names and any(n.startswith("Python") for n in names)
  assert page.page_of(found).startswith("<!doctype html>")


@pytest.mark.parametrize(
  "text, said",
  [
    ("{", "is no recording of VIZ=1"),
    ("[1]", "is no recording of VIZ=1"),
    ('{"format": "tinygrad recording", "version": 99}', "recording of version 99, and this package reads version 1"),
  ],
)
def test_other_files_are_refused(tmp_path, text, said):
  (tmp_path / "x.json").write_text(text)
  with pytest.raises(page.TraceError, match=said):
    page.read_recording(tmp_path / "x.json")
  made = subprocess.run(
    [sys.executable, "-m", "tinygrad.viz", str(tmp_path / "x.json")], capture_output=True, text=True
  )
  assert made.returncode == 1 and said in made.stderr and "fix:" in made.stderr and "Traceback" not in made.stderr


def test_a_missing_file_is_told():
  made = subprocess.run([sys.executable, "-m", "tinygrad.viz", "missing.json"], capture_output=True, text=True)
  assert made.returncode == 1 and "missing.json" in made.stderr and "Traceback" not in made.stderr


def test_explain_and_visualize_give_their_parts(tmp_path):
  a = Tensor.ones(64, 256).contiguous().shard(FOUR[:2], axis=1)
  b = Tensor.ones(256, 32).contiguous().shard(FOUR[:2], axis=0)
  found = explain(a @ b)
  assert found.html().startswith("<!doctype html>")
  found.save(tmp_path / "moves.html")
  assert (tmp_path / "moves.html").read_text() == found.html()
  assert visualize(a @ b, graph=True).html().startswith("<!doctype html>")
  assert "<svg" in visualize(a).html()


def test_the_bundle_is_of_its_sources():
  from extra.viewer.build import BUNDLE, digest

  said = (BUNDLE / "viewer.js").read_text(encoding="utf-8").partition(",")[0]
  assert said == f"// {digest()}", "run extra/viewer/build.py"
  licences = (BUNDLE / "LICENSES.txt").read_text(encoding="utf-8")
  for name in ("d3-zoom", "d3-selection", "d3-scale", "d3-array", "d3-axis", "internmap"):
    assert f"\n{name} " in licences
