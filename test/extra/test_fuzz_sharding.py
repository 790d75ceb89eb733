"""The fuzzer agrees with a right build, finds a planted mutant, and shrinks it to a program that can be run."""

import subprocess
import sys
from pathlib import Path

import pytest

from extra import fuzz_sharding
from extra.fuzz_sharding import DIFFERS, attempt, case_of, fuzz, fuzz_scripts, main, program_text
from tinygrad.helpers import PROCESS
from tinygrad.sharding import local_forms
from tinygrad.uop import Ops

ROOT = Path(__file__).parents[2]


@pytest.fixture
def planted(monkeypatch):
  """All-reduces that do nothing."""
  step = local_forms.apply_step

  def plant():
    clear()
    monkeypatch.setattr(
      local_forms, "apply_step", lambda x, s, shape: x if s.kind == "all_reduce" else step(x, s, shape)
    )

  def clear():
    PROCESS.forget()

  yield plant
  monkeypatch.undo()
  clear()


@pytest.mark.parametrize("compiled", (False, True))
def test_a_right_build_agrees(compiled):
  for methods in (0, 1):
    done, case, failure = fuzz(iter(range(700, 710)), compiled=compiled, methods=methods)
    assert (done, case, failure) == (10, None, None)


@pytest.mark.parametrize("defer", (0, 1))
def test_a_mutant_is_found_and_shrunk(planted, defer, monkeypatch):
  planted()
  done, case, failure = fuzz(iter(range(700, 1200)), defer=defer)
  assert case is not None and failure.kind in (DIFFERS, "AssertionError")
  ops = [u.op for r in case.roots for u in r.toposort()]
  whole = [u for r in case_of(700 + done - 1, 9, False, defer).roots for u in r.toposort()]
  assert len(ops) < len(whole) and len(ops) <= 5, ops
  assert Ops.REDUCE in ops or any(getattr(u.device, "partial", ()) for u in case.content)
  assert attempt(case) == failure


def test_what_is_printed_runs(planted, monkeypatch):
  planted()
  _, case, failure = fuzz(iter(range(700, 1200)), defer=1)
  text = program_text(case)
  with pytest.raises(AssertionError):
    exec(compile(text, "printed", "exec"), {})
  # in a process without the mutant the same program is right
  ran = subprocess.run(
    [sys.executable, "-c", text], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
  )
  assert ran.returncode == 0, ran.stderr


def test_every_program_can_be_printed():
  for seed in range(40):
    case = case_of(seed, 9, False, seed % 2, methods=seed % 4 > 1)
    names: dict = {}
    exec(compile(program_text(case), f"seed {seed}", "exec"), names)
    assert names["failure"] is None


def test_scripts_agree_and_a_mutant_is_found(planted, capsys):
  assert fuzz_scripts(iter(range(40, 50)), steps=6) == (10, None, None)
  planted()
  assert main(["--scripts", "--seed", "40", "--seconds", "1000"]) == 1
  out = capsys.readouterr().out
  assert "fails: " in out and "Sharding(" in out and "t1 = given(" in out  # what differs, where, and the script


def test_command_line(planted, capsys, monkeypatch):
  monkeypatch.setattr(fuzz_sharding, "SHRINK_SECONDS", 20.0)
  assert main(["--seconds", "1", "--seed", "700"]) == 0
  assert "programs agreed (seeds 700 to" in capsys.readouterr().out
  planted()
  assert main(["--seconds", "60", "--seed", "700", "--defer", "1"]) == 1
  out = capsys.readouterr().out
  assert out.startswith("# seed ") and "assert failure is None" in out
