"""A step on simulated devices, from its schedule to the files; a whole script under SIM; the program."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Device, Mesh, P, Sharding, Tensor, TinyJit, auto, scan
from tinygrad.engine.run import watchers
from tinygrad.helpers import SIM
from tinygrad.propagation import planned_bytes
from tinygrad.runtime import null
from tinygrad.simulation import ClusterError, cluster_of, simulate
from tinygrad.simulation.__main__ import simulate_model
from tinygrad.simulation.calibrate import measured
from tinygrad.simulation.memory import in_use
from tinygrad.simulation.session import standing_for
from tinygrad.simulation.timeline import KERNELS, MOVES

ROOT = Path(__file__).parents[2]
MESH = Mesh([f"NULL:{i}" for i in range(16)], (2, 8), ("dp", "tp"))


def value(*shape, at=None, mesh=MESH):
  at = P() if at is None else at
  return Tensor.empty(*shape, device=Sharding(mesh, at))


def made():
  return value(32, 256, at=P("dp")), value(256, 1024, at=P(None, "tp")), value(1024, 256, at=P("tp"))


def loss_of(x, up, down):
  return ((x @ up).relu() @ down).square().mean()


def step(x, up, down):
  loss = loss_of(x, up, down)
  gradients = loss.gradient(up, down)
  for w, g in zip((up, down), gradients):
    w.assign(w - 0.1 * g)
  return loss


def test_what_a_step_assigns_and_returns_is_simulated():
  found = simulate(step, *made(), cluster="h100x8:2")
  assert str(found.cluster.name) == "h100x8:2" and found.seconds > 0
  kinds = {s.kind for s in found.timeline.spans}
  assert {"kernel", "all_reduce"} <= kinds and {s.level for s in found.timeline.spans} == {"", "NVLink", "InfiniBand"}
  assert [len(c.devices) for c in found.timeline.classes] == [16]
  assert found.timeline.device("NULL:7") == list(found.timeline.spans)
  assert "test_simulate.py:" in str(found) and "holds" in str(found)
  assert found.memory > 2 * 4 * 256 * 1024 / 8


@pytest.mark.parametrize("target", ["h100x8:2", "cpux16:1"])
def test_memory_is_that_of_the_plan(target):
  outputs = lambda: (lambda x, u, d: [loss_of(x, u, d), *loss_of(x, u, d).gradient(u, d)])(*made())  # noqa: E731
  found = simulate(outputs, cluster=target)
  with standing_for(cluster_of(target)):
    assert found.memory == planned_bytes([t.uop for t in outputs()])
  assert 0 < max(n for _, n in in_use(found.timeline, found.program, 0)) <= found.memory


def test_a_jitted_step_is_the_step():
  plain, jitted = (simulate(f, *made(), cluster="h100x8:2") for f in (step, TinyJit(step)))
  assert jitted.seconds == plain.seconds and jitted.wire == plain.wire


def test_nothing_is_left_of_it():
  before = null.NullDevice.target
  simulate(step, *made(), cluster="h100x8:2")
  with pytest.raises(ZeroDivisionError):
    simulate(lambda: 1 / 0)
  assert (
    not SIM
    and not watchers
    and null.NullDevice.devices == 0
    and null.NullDevice.target is before
    and Device["NULL:3"].target is before
  )
  np.testing.assert_array_equal((Tensor.ones(4).contiguous() + 1).numpy(), 2)


def test_pipeline_stages_are_classes_of_their_own():
  first, second = (Mesh([f"NULL:{i}" for i in range(a, a + 8)], names=("d",)) for a in (0, 8))

  def stages():
    h = value(64, 512, at=P("d"), mesh=first) @ value(512, 512, mesh=first)
    return h.shard(Sharding(second, P("d"))).relu() @ value(512, 512, mesh=second)

  found = simulate(stages, cluster="h100x8:2").timeline
  assert [c.devices for c in found.classes] == [first.devices, second.devices]
  (copy,) = [s for s in found.spans if s.kind == "copy"]
  assert copy.level == "InfiniBand" and copy.classes == (0, 1) and copy.nbytes == 64 * 512 * 4 / 8
  inside = simulate(stages, cluster="h100x16:1").timeline
  assert [s.level for s in inside.spans if s.kind == "copy"] == ["NVLink"]


def test_devices_that_do_not_exist_are_said():
  with pytest.raises(ClusterError, match=r"NULL:15 is no device of h100x4:2, which has 8(.|\n)*fix: SIM=h100x4:4"):
    simulate(step, *made(), cluster="h100x4:2")


def test_a_step_elsewhere_is_said():
  with pytest.raises(ClusterError, match=r"nothing has run on simulated devices\n  fix: Mesh"):
    simulate(lambda: Tensor.ones(4, device="CPU").contiguous())


def test_auto_is_by_the_cluster():
  times = []
  for name in ("h100x8:2", "a100x8:2"):
    with standing_for(cluster_of(name)):
      x, w = (Tensor.empty(n, 1024, device="NULL") for n in (64, 1024))
      times.append(auto(x @ w, mesh=MESH).seconds)
  assert times[0] < times[1]


def test_a_loop_is_simulated_step_by_step():
  rows = Mesh([f"NULL:{i}" for i in range(8)], names=("d",))
  weights, x = value(6, 64, 64, mesh=rows), value(64, 64, at=P("d"), mesh=rows)
  last = lambda: scan(lambda h, w: (h @ w, None), x, weights)[0]  # noqa: E731
  assert len(simulate(last, cluster="h100x8:1").program.entries) >= 6


# ---------------------------------------------------------------- files


def test_the_files_say_what_the_timeline_does(tmp_path):
  found = simulate(step, *made(), cluster="h100x8:2")
  for name in ("s.svg", "s.html", "s.json"):
    found.save(tmp_path / name)
  assert sorted(os.listdir(tmp_path)) == ["s.html", "s.json", "s.svg"]
  spans = found.timeline.spans
  root = ElementTree.parse(tmp_path / "s.svg").getroot()
  titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
  assert len(titles) <= len(spans) and any("over InfiniBand" in t for t in titles)
  page = (tmp_path / "s.html").read_text()
  assert (
    page.startswith("<!doctype html>")
    and page.count("<tr>") > 4
    and "http" not in page.replace("http://www.w3.org/2000/svg", "")
  )
  events = json.loads((tmp_path / "s.json").read_text())["traceEvents"]
  shown = [e for e in events if e["ph"] == "X"]
  assert [(e["ts"], e["dur"]) for e in shown] == [(s.start * 1e6, s.seconds * 1e6) for s in spans]
  assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {KERNELS, MOVES}
  assert sum(e["args"].get("bytes", 0) for e in shown) == found.wire
  with pytest.raises(ValueError, match=r"no \.png\n  fix: s\.html"):
    found.save(tmp_path / "s.png")


def test_a_picture_is_no_larger_than_its_pixels(tmp_path):
  def long():
    x = value(16, 64, at=P("dp"))
    for _ in range(150):
      x = x @ value(64, 64, at=P(None, "tp")) @ value(64, 64, at=P("tp"))
    return x

  found = simulate(long, cluster="h100x8:2")
  found.save(tmp_path / "s.svg")
  assert len(found.timeline.spans) >= 450 and (tmp_path / "s.svg").stat().st_size < 200_000


# ---------------------------------------------------------------- a script, a program


def run(*command, **settings):
  env = {k: v for k, v in os.environ.items() if k not in ("SIM", "DEV")} | settings | {"PYTHONPATH": str(ROOT)}
  return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, env=env)


SCRIPT = """
from tinygrad import Tensor, TinyJit, Device
devices = ("CPU:0", "CPU:1")
w = Tensor.ones(64, 64).shard(devices).contiguous().realize()
@TinyJit
def step(x):
  return (x @ w).relu().sum().realize()
for i in range(5):
  out = step(Tensor.ones(8, 64).contiguous().shard(devices, axis=0).realize())
print(w.device, out.item(), Device.count("GPU"), Device["GPU"].target.name, Tensor.ones(2, device="GPU:1").device)
"""


def test_a_script_is_simulated_as_it_stands(tmp_path):
  (tmp_path / "train.py").write_text(SCRIPT)
  done = run(tmp_path / "train.py", SIM="h100x8:1", SIM_FILE=str(tmp_path / "t.json"))
  assert done.returncode == 0, done.stderr
  first, said, *rest = done.stdout.splitlines()
  assert first == "Sharding(NULL:0-1: replicated) 0.0 8 CUDA NULL:1"
  assert said.startswith("SIM=h100x8:1: ") and "times this one" in said and "train.py:" in "".join(rest)
  assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
  ("settings", "said"),
  [
    ({"SIM": "h200x8:zz"}, "ClusterError: 'h200x8:zz' is no cluster"),
    ({"SIM": "h100x1:1"}, "NULL:1 is no device of h100x1:1"),
    ({"SIM": "h100x8:1", "SIM_FILE": "x.png"}, "x.png: a simulation has no .png"),
  ],
)
def test_a_wrong_setting_is_said(tmp_path, settings, said):
  (tmp_path / "train.py").write_text(SCRIPT)
  done = run(tmp_path / "train.py", **settings)
  assert done.returncode != 0 and said in done.stderr


SMALL = ["--layers", "1", "--width", "64", "--heads", "4", "--vocabulary", "64", "--context", "16"]


@pytest.mark.parametrize("mesh", ["dp=2,tp=2", "fsdp=4", "dp=2,fsdp=2", "fsdp=2,tp=2"])
@pytest.mark.parametrize("model", ["transformer", "mlp"])
def test_the_program_simulates_a_model(tmp_path, capsys, mesh, model):
  file = tmp_path / "s.html"
  assert simulate_model([*SMALL, "--cluster", "h100x2:2", "--model", model, "--mesh", mesh, "--out", str(file)]) == 0
  said = capsys.readouterr().out
  assert "h100x2:2: " in said and "planned in" in said and file.exists()
  assert ("over InfiniBand" in said) and ("tokens a second" in said) == (model == "transformer")


@pytest.mark.parametrize("mesh", ["dp=1", "fsdp=1,tp=1"])
def test_one_device_communicates_with_none(capsys, mesh):
  assert simulate_model([*SMALL, "--mesh", mesh]) == 0
  assert "communication 0%" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("args", "said"),
  [
    (
      ["--mesh", "dp=64,tp=8"],
      "NULL:511 is no device of h100x8:1, which has 8\n  fix: SIM=h100x8:64  # or --cluster h100x8:64",
    ),
    (["--mesh", "pd=4"], "there is no axis 'pd'\n  fix: dp=4"),
    (["--mesh", "dp=x"], "'dp' has no number of devices\n  fix: --mesh dp=8"),
    (["--dtype", "int32"], "--dtype int32: no type of floats"),
    (["--heads", "5"], "--heads 5 do not divide --width 64"),
    (["--out", "s.gif"], "s.gif: a simulation has no .gif"),
    (["--out", "/dev/null/s.html"], "'/dev/null'\n  fix: the name of a file in a folder"),
    (["--cluster", "abc"], "there is no preset 'abc'"),
  ],
)
def test_what_is_wrong_with_arguments_is_said(capsys, args, said):
  assert simulate_model([*SMALL, *args]) == 2
  assert said in capsys.readouterr().err


def test_the_help_teaches():
  done = run("-m", "tinygrad.simulation", "--help")
  assert done.returncode == 0 and all(
    x in done.stdout for x in ("h100x8:512", "SIM=h100x8:4 python train.py", "fsdp", "Perfetto")
  )


def test_devices_of_this_process_are_measured():
  """What is measured depends on the machine; that it is a cluster by which steps can be predicted does not."""
  found = measured(["CPU:0", "CPU:1"], runs=1)
  assert len(found) == 2 and not found.overlap and found.chip.target == "CPU"
  assert min(found.chip.rate("float32"), found.chip.vector, found.chip.bandwidth, found.levels[0].bandwidth) > 0
  two = Mesh(["NULL:0", "NULL:1"], names=("d",))
  assert simulate(lambda: value(8, 8, at=P("d"), mesh=two).sum(), cluster=found).seconds > 0
