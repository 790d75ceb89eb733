"""extra/fuzz_captured.py: programs agree, and what it was written to find it finds."""

import pytest

from extra import fuzz_captured
from extra.fuzz_captured import Invalid, faults, main, shrink, simpler, written
from tinygrad.engine.jit import Captured
from tinygrad.engine.program_order import ProgramOrder


def wrong(seed):
  """What is wrong with the program of a seed; nothing if it is none."""
  try:
    return faults(written(seed))
  except Invalid:
    return []


@pytest.mark.parametrize("first", range(0, 16, 4))
def test_programs_agree_with_the_interpreter(first, tmp_path, monkeypatch):
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  assert {seed: found for seed in range(first, first + 4) if (found := wrong(seed))} == {}


def test_all_kinds_are_drawn():
  text = "\n".join(str(written(seed)) for seed in range(100))
  said = (
    "m.s2[n]",
    "attend(",
    "scan(",
    "grads(",
    "fit(",
    "m.bn(",
    "uniform(",
    "backward(",
    "clip(",
    "step(",
    "graded(",
    ".replace(",
    "prune",
    "# view",
    "del r",
    "[1:] = ",
  )
  assert [x for x in (*said, "(2, 2)", "'CPU:2'", "bfloat16", "% 7") if x not in text] == []
  assert written(7) == written(7)


def test_a_replay_that_forgets_to_renew_an_input_is_seen(monkeypatch):
  monkeypatch.setattr(Captured, "renew", lambda self, given, first: None)
  assert any(wrong(seed) for seed in range(4))


def test_a_replay_that_does_not_wait_for_who_reads_what_it_writes_is_seen(monkeypatch):
  monkeypatch.setattr(ProgramOrder, "settle", lambda self, since, written, used: None)
  assert any(wrong(seed) for seed in range(20))


def test_what_failed_is_printed(capsys, monkeypatch):
  monkeypatch.setattr(fuzz_captured, "ROUGH", dict.fromkeys(fuzz_captured.ROUGH, 0.0))
  assert main(["--seed", "5", "--count", "1", "--whole"]) == 1
  said = capsys.readouterr().out
  assert str(written(5)) in said and "# --seed 5 --count 1" in said and " off, at " in said and "1 failed" in said


def test_what_failed_gets_smaller(monkeypatch):
  monkeypatch.setattr(fuzz_captured, "faults", lambda s: ["look 1: wrong"] * ("scan" in "".join(s.functions[0][1])))
  script = next(s for seed in range(100) if fuzz_captured.faults(s := written(seed)))
  small, found = shrink(script, ["look 1: wrong"], float("inf"))
  lines = [line for _, lines, _ in small.functions for line in lines]
  assert (small.state, small.main, found) == ((), (), ["look 1: wrong"])
  assert len(lines) == 1 and "scan" in lines[0]


def test_a_line_gets_simpler():
  assert [*simpler("w1 = (a + m.b[2]).tanh()  # view")][:1] == ["w1 = a + m.b[2]  # view"]
  assert [*simpler("v1 = (a + 2) * 1")] == ["v1 = a * 1", "v1 = 2 * 1"]
