"""extra/fuzz_programs.py: programs agree, and what it was written to find it finds."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from extra import fuzz_programs, small_programs
from extra.fuzz_programs import AFTER, BODIES, OF_ROWS, Program, difference, faults, in_orders, main
from extra.orders import ORDERS
from extra.small_programs import SMALL, attended, mixed, written
from extra.thresholds import drawn_thresholds
from tinygrad import Context, Device, Tensor
from tinygrad.codegen import nests, row_blocks, share
from tinygrad.codegen.primitives import stage
from tinygrad.codegen.primitives.split import split_loop
from tinygrad.schedule import schedule

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
  words = " ".join(str(Program(seed, SMALL)) for seed in range(2000))
  tables = [x for name, x in vars(small_programs).items() if isinstance(x, dict) and not name.startswith("_")]
  assert len(tables) == 13 and [kind for table in tables for kind in table if kind not in words] == []
  assert all(what in words for what in ("gradients", "over two", "conv, tanh", "to some", "int8", "bool", "dim 0.9"))


def test_what_is_not_finite_and_whole_numbers_are_the_same_or_not():
  nan, inf = float("nan"), float("inf")
  x = np.array([1.0, nan, inf, -inf])
  assert difference(x, x) == 0 and difference(x + 0.5, x) == 0.5
  others = [np.array(y) for y in ([1.0, nan, inf, inf], [1.0, nan, 0.0, -inf], [1.0, 0.0, inf, -inf])]
  assert not any(difference(x, y) < inf or difference(y, x) < inf for y in others)  # some are not a number
  assert difference(np.array([1, 2]), np.array([1, 3])) == inf


def test_what_still_runs_keeps_its_scratch_memory():
  """It was written over, now and then: the bits of a program were others once in thousands of runs."""
  x = Tensor(np.random.default_rng(0).standard_normal((900, 900)) / 30, dtype="float32").realize()
  for _ in range(10):
    y = x
    for _ in range(4):
      y = (y @ x).softmax(-1).realize()
    fuzz_programs.poison(Device["CPU"], fuzz_programs.POISONED)
    assert np.isfinite(y.numpy()).all()


@pytest.mark.parametrize("first", range(0, 16, 4))
def test_pieces_of_kernels_run_in_any_order(first):
  assert {n: found for n in range(first, first + 4) if (found := in_orders(Program(n, SMALL), n))} == {}


def test_pieces_that_overlap_where_they_read_what_is_written_are_seen(fresh):
  fresh.setattr(share, "may_overlap", lambda stores: True)
  with Context(SPEC=0):  # which sees it as well
    found = in_orders(Program(2, (written,)), 2)
  assert any(x.endswith(" of 5 threads are others than those of one") for x in found)


@pytest.mark.parametrize("first", range(0, 16, 4))
def test_programs_agree_whatever_pays(first):
  for seed in range(first, first + 4):
    with drawn_thresholds(seed, "CPU"):
      assert faults(seed, "CPU", bodies=SMALL) == [], seed


def test_rows_that_are_left_of_blocks_are_there_where_blocks_are_drawn(fresh):
  """All rows of a few elements are one block, else. (Mutant: what is left is dropped.)"""

  def whole_blocks(*args):
    versions, parts = split_loop(*args)
    return versions[:1], parts

  fresh.setattr(row_blocks, "split_loop", whole_blocks)
  assert faults(34, "CPU", bodies=(attended, mixed)) == []
  with drawn_thresholds(34, "CPU"):
    assert "the value is" in faults(34, "CPU", bodies=(attended, mixed))[0]


def test_what_is_overwritten_while_it_is_read_is_seen(fresh):
  """By one thread, and by the bits of orders of pieces."""
  fresh.setattr(schedule, "overwrites_what_it_reads", lambda item: False)
  assert any(faults(seed, "CPU", bodies=(written,)) for seed in range(4))
  found = in_orders(Program(4, (written,)), 4)
  assert all(any(f"threads differ, {order}" in how for how in found) for order in ORDERS[1:-1])


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
@pytest.mark.parametrize(("capability", "seed"), [("9.0", 84), ("8.0", 543), ("7.5", 100), ("9.0", 297281)])
def test_a_program_agrees_on_an_emulated_gpu(capability, seed):
  """The last has a product on cores of four warps whose operand is copied block by block into one place. (Mutant of
  the linearizer: nothing waits until that has been read.)"""
  command = [sys.executable, "-m", "extra.fuzz_programs", "--device", "EMULATED", "--capability", capability]
  done = subprocess.run(
    [*command, "--seed", str(seed), "--count", "1", "--seconds", "600"], cwd=ROOT, env=os.environ, text=True, stdout=-1
  )
  assert done.returncode == 0, done.stdout
