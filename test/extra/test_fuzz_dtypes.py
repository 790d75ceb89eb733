"""Chains of operations over 13 types agree with numpy; the fuzzer finds a planted mutant and prints it as a program."""

from collections import Counter

import pytest

from extra import fuzz_dtypes
from extra.fuzz_dtypes import TYPES, fault, fuzz, main, make, text
from tinygrad.codegen import row_blocks
from tinygrad.helpers import PROCESS
from tinygrad.uop import loops

PARTS, EACH = 8, 25
FOUND = 4811  # the seed of a program that this mutant breaks


@pytest.mark.parametrize("part", range(PARTS))
def test_chains_agree_with_numpy(part):
  for seed in range(part * EACH, (part + 1) * EACH):
    program = make(seed)
    assert (how := fault(program)) is None, f"seed {seed}: {how}\n{text(program)}"


def test_programs_hold_what_they_should():
  """Every type, every operation, both numbers of devices, leaves of all kinds; the same ones for a seed."""
  programs = [make(seed) for seed in range(PARTS * EACH)]
  kinds = Counter(n.kind for p in programs for i, n in enumerate(p.nodes) if i in p.used)
  assert {n.dtype for p in programs for n in p.nodes} == {*TYPES}
  assert {p.devices for p in programs} == {1, 2} and min(kinds[k] for k in fuzz_dtypes.KINDS) > 30
  codes = "".join(n.code for p in programs for n in p.nodes)
  words = "cast bitcast stack cat << >> == < where & * maximum // % abs [v cumsum cummax sort sum argmax max @ permute"
  assert [w for w in words.split() if w not in codes] == []
  assert text(make(7)) == text(make(7)) != text(make(8))


@pytest.fixture
def planted(fresh):
  """Nothing is reduced over rows, as it was where codegen did not see that a maximum in half is one."""
  for module in (loops, row_blocks):
    fresh.setattr(module, "fold_ranges", lambda store: ())


def test_a_mutant_is_found_shrunk_and_printed(planted, capsys, monkeypatch):
  done, program, how = fuzz(iter([FOUND - 1, FOUND]), seconds=100.0)
  assert done == 2 and program is not None and how.startswith("AssertionError")
  assert len(program.used) == 3 and program.devices == 1 < make(FOUND).devices
  assert main(["--seed", str(FOUND), "--seconds", "100"]) == 1
  printed = capsys.readouterr().out
  assert printed.startswith(f"# seed {FOUND} fails")
  with pytest.raises(AssertionError):
    exec(compile(printed, "printed", "exec"), {})
  monkeypatch.undo()
  PROCESS.forget()
  exec(compile(printed, "printed", "exec"), {})


def test_every_program_can_be_printed():
  for seed in range(6):
    exec(compile(text(make(seed)), f"seed {seed}", "exec"), {})


def test_command_line(capsys):
  assert main(["--seconds", "1", "--devices", "2"]) == 0
  assert "programs agreed (seeds 1000000 to" in capsys.readouterr().out
