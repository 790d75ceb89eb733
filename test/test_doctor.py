"""`python -m tinygrad.doctor`: what it finds, says and returns. Nothing here is held to a time."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tinygrad import doctor
from tinygrad.device import Device
from tinygrad.doctor import (
  Finding,
  look_at_cache,
  look_at_cores,
  look_at_devices,
  look_at_programs,
  look_at_settings,
  look_at_speed,
  look_at_versions,
  print_plain,
  run_doctor,
  verdict,
)

ROOT = Path(__file__).parents[1]


def run(*options, **settings):
  environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
  command = [sys.executable, "-m", "tinygrad.doctor", *options]
  return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_well_machine_has_status_0_and_says_what_is_there(tmp_path):
  result = run("--json", "--quick", CACHEDIR=str(tmp_path), GPU="CPU")
  found = json.loads(result.stdout)
  assert result.returncode == 0 and found["faults"] == []
  assert {row["kind"]: row["works"] for row in found["devices"]}["CPU"] == "yes, the default"
  assert {row["what"]: row["version"] for row in found["versions"]}["python"] == sys.version.split()[0]
  assert [row["result"] for row in found["programs"]] == ["right"] * 3
  assert ["CACHEDIR", str(tmp_path), ""] in [list(row.values()) for row in found["settings"]]


def test_what_fails_has_status_1_and_a_way_out(tmp_path):
  file = tmp_path / "a file, no folder"
  file.write_text("")
  result = run("--quick", CACHEDIR=str(file))
  assert result.returncode == 1
  assert "wrong: nothing can be stored in" in result.stdout and "CACHEDIR=/a/folder" in result.stdout


def test_a_default_device_that_does_not_work_is_told_once():
  result = run("--quick", DEV="METAL" if sys.platform != "darwin" else "CUDA")
  assert result.returncode == 1 and "does not work" in result.stdout and "fix" in result.stdout
  assert "Traceback" not in result.stderr


def test_unknown_options_have_status_2_and_help_teaches():
  assert run("--slow").returncode == 2
  text = run("--help").stdout
  assert all(x in text for x in ("--json", "--quick", "--seconds", "status: 0", "CACHE_MB", "GPU=CPU"))


def test_a_reader_may_have_seen_enough():
  command = f"set -o pipefail; {sys.executable} -m tinygrad.doctor --quick | head -n 1"
  environment = {**os.environ, "PYTHONPATH": str(ROOT)}
  result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
  assert (result.returncode, result.stderr) == (0, "") and result.stdout.startswith("tinygrad ")


COMMANDS = {"doctor": "--quick", "device": "", "simulation": "--layers 1", "launch": "-n 2 -m tinygrad.device"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_reader_who_is_gone_gets_no_traceback(name):
  """Of `python -m tinygrad.device | head -1`: a BrokenPipeError now and then."""
  reading, writing = os.pipe()
  os.close(reading)
  environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
  command = [sys.executable, "-m", f"tinygrad.{name}", *COMMANDS[name].split()]
  try:
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment)
  finally:
    os.close(writing)
  assert (result.returncode, result.stderr) == (141 if name == "launch" else 0, "")


def test_a_wrong_result_is_a_fault(monkeypatch):
  monkeypatch.setattr(doctor.Tensor, "numpy", lambda self: 0 * doctor.numpy.ones((3, 3)))
  found = look_at_programs()
  assert len(found.faults) == 3 and "computes what is wrong" in found.faults[0]


def test_each_driver_that_was_tried_says_why_it_failed(monkeypatch):
  monkeypatch.setattr(type(Device), "_attempt", lambda self, kind: f"no {kind} here; fix: install it")
  found = look_at_devices()
  assert [row[2] for row in found.rows[:2]] == ["no CPU here; fix: install it", "no CUDA here; fix: install it"]
  assert any("CPU does not work" in fault for fault in found.faults)


def test_a_missing_package_is_a_fault_and_one_of_an_extra_is_not(monkeypatch):
  monkeypatch.setattr(doctor, "version_of", lambda package: None)
  found = look_at_versions()
  assert "the package numpy is missing: pip install numpy" in found.faults
  assert ("highspy", "-", "pip install 'tinygrad[auto]'") in found.rows
  assert not any("highspy" in fault for fault in found.faults)


def test_the_cache_is_measured(tmp_path, monkeypatch):
  (tmp_path / "objects").mkdir()
  (tmp_path / "objects/one").write_bytes(bytes(950_000))
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  monkeypatch.setattr(doctor, "getenv", lambda key, default, least: 1)  # a megabyte
  found = look_at_cache()
  assert ("entries", "1", "950.0 KB of 1.0 MB") in found.rows
  assert any("nearly full" in advice for advice in found.advice)


def test_settings_that_slow_programs_are_told(monkeypatch):
  for name in doctor.ContextVar.all:
    monkeypatch.delenv(name, raising=False)
  for name in doctor.PLACES:
    monkeypatch.delenv(name, raising=False)
  assert look_at_settings().rows == [("-", "", "none is set: all have their defaults")]
  monkeypatch.setenv("NOOPT", "1")
  monkeypatch.setenv("BEAM", "2")
  found = look_at_settings()
  assert [row[:2] for row in found.rows] == [("BEAM", "2"), ("NOOPT", "1")]
  assert found.advice == ["NOOPT=1: kernels are plain loops; unset it for speed"]


def test_a_busy_machine_is_told(monkeypatch):
  monkeypatch.setattr(os, "getloadavg", lambda: (64.0, 0.0, 0.0))
  monkeypatch.setattr(doctor, "cores", lambda: 2)
  assert "the load is 64.0 on 2 cores" in look_at_cores().advice[0]


def test_speed_stands_beside_the_machines(monkeypatch):
  monkeypatch.setattr(doctor.profile, "rates_now", lambda kind, plan_of: (2e10, 1e9))
  monkeypatch.setattr(doctor, "numpy_rates", lambda budget: (4e10, 1e10))
  monkeypatch.setenv("DEV", "CPU")
  found = look_at_speed(5.0)
  assert found.rows[0] == ("float32 matmul of 1024", "20.0 GFLOP/s", "40.0 GFLOP/s (numpy)", "50%")
  assert [advice.split(":")[0] for advice in found.advice] == ["reading 128 MB"]


def test_speed_is_measured_in_the_time_given():
  rates = doctor.numpy_rates(0.01)
  assert all(rate > 0 for rate in (*rates, *doctor.profile.rates_now("CPU", doctor.plan_of)))


def test_plain_text_has_a_hundred_columns(capsys):
  print_plain(Finding("devices", ("kind", "works", "why"), [("CUDA", "no", "no driver works here " * 20)]))
  lines = capsys.readouterr().out.splitlines()
  assert max(map(len, lines)) <= 100 and len(lines) > 4


def test_the_verdict_names_faults_first():
  found = [Finding("a", (), advice=["more room"]), Finding("b", (), faults=["no room"])]
  assert verdict(found) == ["wrong: no room", "better: more room"] and verdict([]) == ["all is well"]


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal is made by pty, which Windows has not")
def test_a_terminal_has_tables_and_a_file_has_none(capsys):
  assert run_doctor(["--quick"]) == 0
  assert "─" not in capsys.readouterr().out
  leader, follower = pty.openpty()
  environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
  environment.pop("NO_COLOR", None)
  command = [sys.executable, "-m", "tinygrad.doctor", "--quick"]
  with subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=environment) as process:
    os.close(follower)
    shown = b""
    while True:
      try:
        piece = os.read(leader, 1 << 16)
      except OSError:  # it has ended
        break
      if not piece:
        break
      shown += piece
  os.close(leader)
  assert process.returncode == 0 and "─" in shown.decode()
