"""extra/fuzz_programs.py: programs agree, and what it was written to find it finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from extra import fuzz_programs
from extra.fuzz_programs import AFTER, BODIES, OF_ROWS, Program, faults, main
from extra.small_programs import AFTERWARDS, ALONG, BEFORE, OPTIMIZERS, REDUCED, SMALL, VIEWS
from tinygrad.codegen import nests
from tinygrad.codegen.primitives import stage

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
import cuda_emulator

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", range(0, 64, 8))
def test_programs_agree_with_the_interpreter(first):
  assert {seed: found for seed in range(first, first + 8) if (found := faults(seed, "CPU"))} == {}


def test_all_kinds_are_drawn():
  words = " ".join(str(Program(seed)) for seed in range(400))
  assert all(what in words for what in (*AFTER, *OF_ROWS, "causal", "whole", "conv", "mlp", "gradients", "tf32"))
  assert len(set(BODIES)) == 8 and str(Program(7)) == str(Program(7))


@pytest.mark.parametrize("first", range(0, 48, 8))
def test_small_programs_agree_with_the_interpreter(first):
  assert {n: found for n in range(first, first + 8) if (found := faults(n, "CPU", bodies=SMALL))} == {}


def test_all_kinds_of_small_programs_are_drawn():
  words = " ".join(str(Program(seed, SMALL)) for seed in range(400))
  assert all(what in words for what in (*VIEWS, *BEFORE, *REDUCED, *AFTERWARDS, *ALONG, *OPTIMIZERS, "gradients"))


def test_blocks_of_a_sum_beyond_its_end_are_seen(fresh):
  """Gradients of causal attention, of which the interpreter computes all."""
  in_blocks = stage.accumulate
  fresh.setattr(nests, "accumulate", lambda *a: in_blocks(*a[:4], None, *a[5:]))
  assert "the gradient by input 0" in faults(1227, "CPU")[0]


def test_what_failed_is_printed(capsys, fresh):
  fresh.setattr(fuzz_programs, "ROUGH", dict.fromkeys(fuzz_programs.ROUGH, 0.0))
  assert main(["--seed", "84", "--count", "1"]) == 1
  said = capsys.readouterr().out
  assert "--seed 84 --count 1: float16 NT attended gradients of [192, 127]" in said and "1 failed" in said


@pytest.mark.skipif(
  not cuda_emulator.has_compiler(), reason="the emulated driver compiles kernels for the host with g++"
)
@pytest.mark.parametrize(("capability", "seed"), [("9.0", 84), ("8.0", 543), ("7.5", 100)])
def test_a_program_agrees_on_an_emulated_gpu(capability, seed):
  command = [sys.executable, "-m", "extra.fuzz_programs", "--device", "EMULATED", "--capability", capability]
  done = subprocess.run(
    [*command, "--seed", str(seed), "--count", "1", "--seconds", "600"], cwd=ROOT, env=os.environ, text=True, stdout=-1
  )
  assert done.returncode == 0, done.stdout
