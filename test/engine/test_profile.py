"""What DEBUG=2 prints of a kernel, the roofline that it is held against, and the trace of PROFILE=1."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Context, Tensor, TinyJit
from tinygrad.debug import profile
from tinygrad.dtype import dtypes
from tinygrad.engine.compile import plan_of
from tinygrad.engine.run import Run, recorders
from tinygrad.helpers import PROFILE, GlobalCounters, Profile, note, processor_model, write_trace
from tinygrad.uop import Ops, UOp

HERE = Path(__file__).name
LINE = re.compile(
  r"\*\*\* (?P<device>\S+) +(?P<number>\d+) (?P<name>\S+) +(?P<us>[\d.]+) us +(?P<gflops>[\d.]+) GFLOP/s"
  r" +(?P<gbs>[\d.]+) GB/s +(?P<share>\d+)%(?: +[\d.]+ \w?B)? (?P<line>\S+)"
)


@pytest.fixture
def roofline(monkeypatch):
  """10 GFLOP/s and 2 GB/s, whatever the machine."""
  monkeypatch.setattr(profile, "peaks", lambda kind, plan_of: (10e9, 2e9))


def array(*shape: int) -> np.ndarray:
  return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def test_debug_2_shows_time_rates_share_and_line(capsys, roofline):
  a, b = Tensor(array(256, 256)).realize(), Tensor(array(256, 256)).realize()
  with Context(DEBUG=2):
    (a @ b).realize()
    (a + b).realize()
  matmul, add = [LINE.match(line) for line in capsys.readouterr().out.splitlines() if line.startswith("***")]
  for got, ops, nbytes in ((matmul, 2 * 256**3, 3 * 4 * 256**2), (add, 256**2, 3 * 4 * 256**2)):
    seconds = float(got["us"]) * 1e-6
    assert float(got["gflops"]) == pytest.approx(ops / seconds * 1e-9, abs=0.06, rel=0.01)
    assert float(got["gbs"]) == pytest.approx(nbytes / seconds * 1e-9, abs=0.06, rel=0.01)
    bound = max(ops / 10e9, nbytes / 2e9)  # the matmul's is its operations, the sum's its bytes
    assert float(got["share"]) == pytest.approx(100 * bound / seconds, abs=0.6, rel=0.01)
    assert got["line"].startswith(HERE)
  assert matmul["name"] == "r_256_256_256" and add["name"] == "E_65536"
  assert int(add["number"]) == int(matmul["number"]) + 1
  assert int(add["line"].partition(":")[2]) == int(matmul["line"].partition(":")[2]) + 1


def test_debug_2_has_a_hundred_columns(capsys, roofline):
  devices = ("CPU:0", "CPU:1", "CPU:2", "CPU:3")
  x, w = Tensor(array(64, 96)).shard(devices, axis=1), Tensor(array(96, 32)).shard(devices, axis=0)
  with Context(DEBUG=2):
    y = (x.reshape(8, 8, 96) @ w).relu().softmax().square().mean((0, 1))
    y.gradient(w, gradient=y)[0].realize()
  lines = capsys.readouterr().out.splitlines()
  assert len([line for line in lines if line.startswith("***")]) >= 4 and any("all_reduce" in line for line in lines)
  assert [line for line in lines if len(line) > 100] == []


def test_a_long_name_takes_the_columns_of_the_memory(roofline):
  GlobalCounters.reset()  # the number of a kernel takes columns, too

  class Item:
    devices, peers, kernel, computes = ("CPU",), False, None, (("ADD", ("train.py", 12)),)

  short, long = (profile.profile_line(Item, name, 10**6, 10**6, 1e-3, plan_of) for name in ("r_4", "r_" + "128_" * 7))
  assert re.search(r"% +[\d.]+ \w?B train.py:12$", short) and len(short) <= 100
  assert re.search(r"% train.py:12$", long) and "r_" + "128_" * 7 in long


def test_debug_2_times_each_kernel_of_a_replay(capsys, roofline):
  step = TinyJit(lambda x: ((x @ x).realize() + 1).realize())
  x = Tensor(array(32, 32)).realize()
  for _ in range(3):
    step(x)
  with Context(DEBUG=2):
    got = step(x)
  lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("***")]
  assert [line.split()[3] for line in lines] == ["r_32_32_32", "E_1024"]
  assert np.allclose(got.numpy(), array(32, 32) @ array(32, 32) + 1, atol=1e-4)


def test_the_roofline_is_measured_once_and_kept(capsys, monkeypatch, tmp_path):
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  monkeypatch.setattr(profile.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
  measured = []
  monkeypatch.setattr(profile, "fastest", lambda value, device, plan_of: measured.append(value.shape) or 0.01)
  for _ in range(2):  # as two processes would
    ops, nbytes = profile.peaks.__wrapped__("CPU", plan_of)
    assert (ops, nbytes) == (pytest.approx(2 * 1024**3 / 0.01), pytest.approx(4 * 2**25 / 0.01))
  assert measured == [(1024, 1024, 1), (1,)]
  header, bounds = capsys.readouterr().out.splitlines()[:2]
  assert "215 GFLOP/s" in bounds and "13 GB/s" in bounds and processor_model() in header


def test_a_busy_machine_s_roofline_is_not_kept(monkeypatch, tmp_path):
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  monkeypatch.setattr(profile.os, "getloadavg", lambda: (100.0, 100.0, 100.0))
  times = iter((0.02, 0.02, 0.01, 0.01))
  monkeypatch.setattr(profile, "fastest", lambda value, device, plan_of: next(times))
  first, second = profile.peaks.__wrapped__("CPU", plan_of), profile.peaks.__wrapped__("CPU", plan_of)
  assert second[0] == pytest.approx(2 * first[0])


def test_fastest_runs_the_kernels_of_a_value():
  before = GlobalCounters.kernel_count
  x = UOp.buffer((1 << 14,), dtypes.float32, "CPU")
  assert 0 < profile.fastest(x.r(Ops.ADD, (0,)), "CPU", plan_of) < 1
  assert GlobalCounters.kernel_count == before


# ---------------------------------------------------------------- the trace


def events_of(file: Path) -> tuple[dict[str, list[dict]], dict[str, list[dict]]]:
  """The events of each thread of Python, and of each device."""
  rows = json.loads(file.read_text())["traceEvents"]
  tracks = {r["tid"]: r["args"]["name"] for r in rows if r["name"] == "thread_name"}
  python: dict[str, list[dict]] = {}
  devices: dict[str, list[dict]] = {}
  for r in rows:
    if r["ph"] == "X":
      kind, _, thread = tracks[r["tid"]].partition(" ")
      (python if kind == "Python" else devices).setdefault(thread or kind, []).append(r)
  return python, devices


def check_nesting(events: list[dict]) -> None:
  """Durations are positive, and two events of a track are apart or one holds the other."""
  open_until: list[float] = []
  for e in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
    assert e["ts"] >= 0 and e["dur"] > 0
    while open_until and open_until[-1] <= e["ts"]:
      open_until.pop()
    assert not open_until or e["ts"] + e["dur"] <= open_until[-1]
    open_until.append(e["ts"] + e["dur"])


def test_a_trace_holds_every_kernel_of_a_step(tmp_path):
  x, w = Tensor(array(48, 40)).realize(), Tensor(array(40, 24), requires_grad=True).realize()
  runs: list[Run] = []
  recorders.append(runs.append)
  try:
    with Profile(tmp_path / "step.json"):
      loss = (x @ w).softmax(-1).square().sum()
      loss.backward()
      Tensor.realize(loss, w.grad)
  finally:
    recorders.remove(runs.append)
  (run,) = runs
  python, devices = events_of(tmp_path / "step.json")
  for events in (*python.values(), *devices.values()):
    check_nesting(events)
  kernels = sorted(devices["CPU"], key=lambda e: e["ts"])
  assert [k["name"] for k in kernels] == [p.name for p in run.plan.programs] and len(kernels) >= 3
  for event, p in zip(kernels, run.plan.programs):
    assert (event["args"]["flops"], event["args"]["bytes"]) == (p.ops, p.nbytes)
    assert event["args"]["GB/s"] == pytest.approx(p.nbytes / event["dur"] * 1e-3, rel=1e-3)
  assert any(f"{HERE}:" in line for line in kernels[0]["args"]["computes"])
  names = [e["name"] for e in python["MainThread"]]
  assert names.count("run") == names.count("localize") == names.count("schedule") == names.count("place") == 1
  spans = {e["name"]: e for e in python["MainThread"]}
  assert spans["localize"]["ts"] <= spans["place"]["ts"] <= spans["schedule"]["ts"] < spans["run"]["ts"]
  assert spans["run"]["ts"] <= kernels[0]["ts"]
  assert kernels[-1]["ts"] + kernels[-1]["dur"] <= spans["run"]["ts"] + spans["run"]["dur"]
  assert not PROFILE


def test_stages_and_compiling_are_in_the_trace(tmp_path, monkeypatch):
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  x = Tensor(array(7, 13)).realize()
  with Context(PROFILE=1, PROFILE_FILE=str(tmp_path / "t.json")):
    (x * 1.2345 + 3).realize()
  python, devices = events_of(tmp_path / "t.json")
  main = [e["name"] for e in python.pop("MainThread")]
  assert {"plan", "localize", "place", "schedule", "codegen", "render"} <= set(main)
  (compiling,) = [e for events in python.values() for e in events]
  assert compiling["name"] == "compile" and compiling["args"]["kernel"] == devices["CPU"][0]["name"]


def test_devices_have_tracks_of_their_own_and_replays_are_shown(tmp_path):
  devices = ("CPU:0", "CPU:1")
  x, w = Tensor(array(8, 16)).shard(devices, 1).realize(), Tensor(array(16, 8)).shard(devices, 0).realize()
  step = TinyJit(lambda x: (x @ w).relu().realize())
  for _ in range(3):
    step(x)
  with Profile(tmp_path / "t.json"):
    step(x)
  _, got = events_of(tmp_path / "t.json")
  assert set(got) == {"CPU", "CPU:1"}
  assert [e["name"] for e in got["CPU"]] == [e["name"] for e in got["CPU:1"]]
  assert len(got["CPU"]) == len(step.captured.work) >= 2


def test_blocks_write_what_ran_in_them(tmp_path):
  x = Tensor(array(16)).realize()
  with Profile(tmp_path / "outer.json"):
    (x + 1).realize()
    with Profile(tmp_path / "inner.json"):
      x.sum().realize()
  outer, inner = (events_of(tmp_path / f"{name}.json")[1]["CPU"] for name in ("outer", "inner"))
  assert [e["name"] for e in inner] == ["r_16"] and [e["name"] for e in outer] == ["E_16", "r_16"]
  with Profile(tmp_path / "later.json"):
    pass
  assert events_of(tmp_path / "later.json") == ({}, {})


def test_nothing_is_noted_when_it_is_off(tmp_path):
  note("CPU", "never", 0.0, 1.0, {})
  with Profile(tmp_path / "t.json"):
    pass
  assert "never" not in (tmp_path / "t.json").read_text()


def test_a_trace_that_cannot_be_written_leaves_the_last_one(tmp_path):
  file = tmp_path / "t.json"
  file.write_text("before")
  with pytest.raises(TypeError):
    write_trace([("CPU", "k", 0.0, 1.0, {"bad": object()})], str(file))
  assert file.read_text() == "before" and list(tmp_path.iterdir()) == [file]


SCRIPT = """
import sys, time
from tinygrad import Tensor
x = (Tensor([1.0, 2.0, 3.0]) * 2).realize()
print("ready", flush=True)
if sys.argv[1] == "wait":
  time.sleep(60)
"""


@pytest.mark.parametrize("how", ["end", "wait"])
def test_a_process_writes_its_trace_at_its_end_and_after_ctrl_c(tmp_path, how):
  root = Path(__file__).parents[2]
  env = {"PROFILE": "1", "PYTHONPATH": str(root), "PATH": "", "CACHEDIR": str(tmp_path / "cache")}
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
  process = subprocess.Popen([sys.executable, "-c", SCRIPT, how], cwd=tmp_path, env=env, text=True, **pipes)
  assert process.stdout.readline() == "ready\n"
  if how == "wait":
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
  _, err = process.communicate(timeout=60)
  assert ("KeyboardInterrupt" in err) == (how == "wait"), err
  _, devices = events_of(tmp_path / "trace.json")
  assert "E_3" in [e["name"] for e in devices["CPU"]]


def test_a_trace_that_cannot_be_written_at_the_end_is_told_with_a_fix(tmp_path):
  (tmp_path / "file").write_text("")
  env = {**os.environ, "PROFILE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
  command = [sys.executable, "-c", SCRIPT, "end"]
  done = subprocess.run(command, env={**env, "PROFILE_FILE": str(tmp_path / "file/t")}, capture_output=True, text=True)
  said, fix = done.stderr.splitlines()
  assert done.stdout == "ready\n" and said.startswith("PROFILE: nothing is written: ") and "PROFILE_FILE=" in fix
  (tmp_path / "a/folder/with/room").mkdir(parents=True)
  name = re.search(r"PROFILE_FILE=/(\S+)", fix)[1]
  done = subprocess.run(command, env={**env, "PROFILE_FILE": str(tmp_path / name)}, capture_output=True, text=True)
  assert done.stderr == "" and "E_3" in (tmp_path / name).read_text()


def test_names_that_standard_output_cannot_show_end_no_program(tmp_path):
  """DEBUG=5, VIZ=1 and PROFILE=1, where a file's name is not ASCII and standard output is, or names are no text."""
  script = tmp_path / "größe.py"
  script.write_text(
    "from tinygrad import Tensor\nprint((Tensor([1.0, 2.0]).shard(('CPU:0', 'CPU:1'), axis=0).sum()).item())\n"
  )
  asked = {
    "DEBUG": "5",
    "VIZ": "1",
    "PROFILE": "1",
    "VIZ_FILE": str(tmp_path / "v.html"),
    "PROFILE_FILE": str(tmp_path / "t.json"),
  }
  plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
  env = {**os.environ, **asked, **plain, "PYTHONPATH": str(Path(__file__).parents[2])}
  done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True)
  assert done.returncode == 0 and "3.0\n" in done.stdout and "e.py:2" in done.stdout
  assert done.stderr == f"VIZ: wrote {tmp_path / 'v.html'}\n"
  assert "<title>" in (tmp_path / "v.html").read_text(encoding="utf-8") and events_of(tmp_path / "t.json")


def test_a_reader_who_leaves_ends_no_program(tmp_path):
  """DEBUG=2 for `head -1`: the computation goes on, and nothing is said of the pipe."""
  script = tmp_path / "many.py"
  script.write_text(
    "import sys\nfrom tinygrad import Tensor\n"
    "for i in range(40): (Tensor.ones(i + 3) * 2).sum().realize()\nprint('done', file=sys.stderr)\n"
  )
  env = {**os.environ, "DEBUG": "2", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
  program = subprocess.Popen([sys.executable, str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert b"CPU" in program.stdout.readline()
  program.stdout.close()
  said = program.stderr.read().decode()
  assert (program.wait(), said) == (0, "done\n")
