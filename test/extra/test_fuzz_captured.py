"""extra/fuzz_captured.py: programs agree, and what it was written to find it finds."""

import pytest

from extra import captured_programs, fuzz_captured
from extra.captured_programs import OPTIMIZERS, SCHEDULES, Script, written
from extra.fuzz_captured import Invalid, faults, main, shrink, simpler
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
    "conv2d(",
    "conv_transpose2d(",
    "max_pool2d(",
    "avg_pool2d(",
    "while_loop(",
    "cond(",
    "vmap(",
    "vmap(grad(",
    "checkpoint(",
    "@donated(",
    "= f0(",
    ".reset()",
    "attempt(",
    "trouble(",
    "Tensor.training = True",
    "drop(",
    "m.rate.step()",
    "m.s2[bind('n",
    "bind('k0'",
    "m.s7",
    "q['x",
    "q['all'][1][0]",
    "z=True",
    "z=-1.5",
    "m.s5.replace(",
    "~m.i2",
    "'bool'",
    "'uint8<",
  )
  made = [x.split("(")[0] for x in (*OPTIMIZERS, *SCHEDULES)]
  assert [x for x in (*said, *made, "(2, 2)", "'CPU:2'", "bfloat16", "% 7") if x not in text] == []
  assert written(7) == written(7)


def test_a_replay_that_forgets_to_renew_an_input_is_seen(monkeypatch):
  monkeypatch.setattr(Captured, "renew", lambda self, given, first: None)
  assert any(wrong(seed) for seed in range(4))


def test_a_replay_that_does_not_wait_for_who_reads_what_it_writes_is_seen(monkeypatch):
  monkeypatch.setattr(ProgramOrder, "settle", lambda self, since, written, used: None)
  assert any(wrong(seed) for seed in range(20))


def test_every_table_names_what_draws():
  tables = [x for k, x in vars(captured_programs).items() if k.isupper() and isinstance(x, dict)]
  names = {name for table in tables for name in table}
  assert {"a_value", "moved", "at_place"} <= names
  assert [name for name in names if not hasattr(captured_programs.Writer, name)] == []


def program(state, function, main, **more):
  """In float32 on one processor."""
  made = {"placements": ("CPU",), "settings": (), "each": True, "again": False}
  return Script("float32", tuple(state), (function,), tuple(main), **made | more)


X = "m.s3 = new(1, (2, 3), 'F', 0, 'memory')"


@pytest.mark.parametrize("kind", captured_programs.TROUBLES)
def test_a_call_that_fails_within_has_done_what_comes_before_that(kind, monkeypatch):
  lines = ("m.s3 += x0", f"trouble(0, m.s3, {kind!r})", "m.s3 += 100", "v1 = m.s3 * 1")
  calls = [f"a{i} = new({i + 2}, (2, 3), 'F', 0, 'memory')" for i in range(4)]
  calls += ["f0(a0)  # call", "attempt(lambda: f0(a1))  # call", "f0(a2)  # call", "f0(a3)  # call"]
  script = program([X], ("@TinyJit\ndef f0(x0):", lines, "return (v1,)"), calls)
  assert faults(script) == []
  monkeypatch.setattr(fuzz_captured.Exact, "trouble", lambda self, number, x, kind: None)
  assert faults(script)  # mutant: an oracle that goes on


def test_what_is_donated_shows_the_result(monkeypatch):
  calls = ["a0 = new(2, (2, 3), 'F', 0, 'memory')", *["f0(a0)  # call"] * 4]
  script = program([X], ("@TinyJit\n@donated([0])\ndef f0(x0):", ("v1 = x0 + m.s3",), "return (v1,)"), calls)
  assert faults(script) == []
  monkeypatch.setattr(fuzz_captured.World, "donated", lambda self, made: lambda f: f)
  assert any("a0" in found for found in faults(script))


def test_an_error_that_says_what_to_do_is_no_fault_and_another_is(monkeypatch):
  lines = ("v1 = m.s3 * 2", "m.s3 += 1", "v2 = while_loop(lambda c: c.sum() < 50, lambda c: c + 1, m.s3)")
  script = program([X], ("def f0():", (*lines, "v2.realize()"), "return ()"), ["f0()"])
  with pytest.raises(Invalid, match="content before that is still to be read"):
    faults(script)
  monkeypatch.setattr(fuzz_captured, "REFUSED", {})
  assert faults(script)[0].startswith("TypeError: while_loop")


def test_what_the_oracle_alone_refuses_is_a_fault(monkeypatch):
  monkeypatch.setattr(fuzz_captured, "attend", lambda x: 1 / (x.device != "PYTHON"))
  script = program([X], ("def f0():", (), "return ()"), ["attend(m.s3)"])
  assert faults(script) == ["the oracle: ZeroDivisionError: division by zero"]


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
