"""The command that tells most about a GPU, on what is here: results that are wrong are told, and nothing stops it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sass import needs_nvdisasm

from extra import gpu_check, gpu_work
from tinygrad import Tensor, dtypes
from tinygrad.helpers import prod

ROOT = Path(__file__).parents[2]
SMALL = [w for works in gpu_work.all_work(True).values() for w in works if prod(w.shapes[0]) < 1 << 16]


@pytest.mark.parametrize("work", SMALL, ids=lambda w: w.name)
def test_what_is_expected_is_what_is_computed(work):
  row = gpu_check.run(work, "CPU", sys.executable, 0.0)
  assert row["ok"] and row["error"] <= work.tolerance and row["seconds"] > 0, row


def test_a_wrong_result_is_told_and_so_are_other_bits():
  (add,) = (w for w in SMALL if w.name == "add float32")
  off = gpu_check.run(replace(add, want=lambda x, y: x + y + 1e-3), "CPU", sys.executable, 0.0)
  assert not off["ok"] and "of the largest" in off["figure"]
  calls = []

  def drifting(x: Tensor, y: Tensor) -> Tensor:
    calls.append(1)
    return x + y + 1e-7 * len(calls)

  other = gpu_check.run(replace(add, step=drifting), "CPU", sys.executable, 0.0)
  assert not other["ok"] and other["figure"] == "not the same bits"


def test_each_result_is_a_line_and_a_table_comes_last(capsys):
  command = [sys.executable, "-m", "extra.gpu_check", "--device", "CPU", "--quick", "--section", "attention", "copies"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  lines = done.stdout.splitlines()
  rows = [json.loads(x) for x in lines if x.startswith("{")]
  assert done.returncode == 0 and all(r["ok"] for r in rows), done.stderr
  assert [r["what"] for r in rows][:2] == ["attention float32 64", "attention float32 64 causal"]
  assert len(lines) == 2 * len(rows) + 1 and rows[-1]["what"] == "what comes back"


def test_a_section_that_ends_badly_is_a_row(monkeypatch):
  monkeypatch.setattr(gpu_check, "LIMIT", 1)
  given = type("Given", (), {"device": "CPU", "torch": sys.executable, "quick": True, "section": ["rows"]})
  (row,) = [r for r in gpu_check.in_processes(given) if not r["ok"]]
  assert row == {"section": "rows", "what": "the section", "figure": "stopped: the time is over", "ok": False}


def test_without_the_device_it_says_what_there_is(capsys):
  assert gpu_check.main(["--device", "METAL"]) == 2
  assert "--device CL --quick" in capsys.readouterr().err


@needs_nvdisasm
def test_kernels_are_compiled_where_there_is_no_gpu(capsys, tmp_path, monkeypatch):
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  assert gpu_check.main(["--compile-only", "--quick", "--section", "attention", "--arch", "sm_80"]) == 0
  rows = [json.loads(x) for x in capsys.readouterr().out.splitlines() if x.startswith("{")]
  assert {r["what"] for r in rows} >= {"attention float32 64", "attention bfloat16 64 causal"}
  assert any(p.read_bytes()[32:36] == b"\x7fELF" for p in (tmp_path / "objects").iterdir())


def test_inputs_are_what_the_device_has():
  work = gpu_work.matmul(8, dtypes.bfloat16, "NT")
  (x, y), (a, _) = work.inputs("CPU", np.random.default_rng(0))
  assert x.dtype is y.dtype is dtypes.bfloat16 and (x.float().numpy() == a).all()
