"""A user's own steps for a kernel: what it computes stays; what cannot be is said with the kernel, nest and step."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Context, Device, Tensor, TinyJit, kernel_schedule
from tinygrad.helpers import KERNEL_SCHEDULES

N = 24
X = np.arange(N * N, dtype=np.float32).reshape(N, N) % 7
NAME = f"r_{N}_{N}_{N}"
ON_GRID = Device[Device.DEFAULT].target.threads


@kernel_schedule(NAME)
def tiled(nest):
  nest.split("i1", 8)
  nest.split("i0", 5)
  if ON_GRID:
    nest.launch(8)
    nest.bind("groups", "i0.o", "i1.o", "i0.t")
    nest.bind("threads", "i1.i")
  else:
    nest.vectorize("i1.i")
  nest.unroll("i0.i")
  if ON_GRID:
    nest.within("groups", "threads")


def product():
  return (Tensor(X) @ Tensor(X)).numpy()


def steps_printed(capsys, name=NAME):
  lines = capsys.readouterr().out.splitlines()
  return [x for x in lines[[x.startswith(f"# kernel {name}") for x in lines].index(True) :] if x.startswith("# nest")]


def test_a_kernel_runs_by_the_steps_that_were_given(capsys):
  with Context(DEBUG=3), tiled:
    np.testing.assert_array_equal(product(), X @ X)
  assert steps_printed(capsys)[0].startswith("# nest 0: split(i1, 8, peel), split(i0, 5, peel)")
  assert KERNEL_SCHEDULES.value == ()
  with Context(DEBUG=3):
    np.testing.assert_array_equal(product(), X @ X)
  assert "split(i0, 5, peel)" not in capsys.readouterr().out  # it is the heuristic's program again


def test_other_kernels_and_nests_are_computed_as_before(capsys):
  @kernel_schedule(NAME, nest="7")
  def elsewhere(nest):
    nest.split("i0", 5)

  with Context(DEBUG=3), elsewhere:
    np.testing.assert_array_equal(product(), X @ X)
    np.testing.assert_array_equal((Tensor(X) + 1).numpy(), X + 1)
  assert "split(i0, 5, peel)" not in capsys.readouterr().out


def test_the_inner_of_two_contexts_is_the_one_that_counts(capsys):
  @kernel_schedule(NAME)
  def plain(nest):
    if ON_GRID:
      nest.bind("groups", "i0", "i1")
      nest.within("groups")
    else:
      nest.unroll("k0")

  with Context(DEBUG=3), tiled, plain:
    np.testing.assert_array_equal(product(), X @ X)
  assert len(steps := steps_printed(capsys)) == 1 and "split(i1, 8" not in steps[0]


def test_a_capture_is_not_replayed_under_other_steps(capsys):
  step = TinyJit(lambda x: (x @ x).realize())
  x = Tensor(X).realize()
  for _ in range(3):
    step(x)
  capsys.readouterr()
  with Context(DEBUG=3), tiled:
    np.testing.assert_array_equal(step(x).numpy(), X @ X)
  assert "split(i0, 5, peel)" in capsys.readouterr().out


def test_another_process_finds_the_plan_on_disk(tmp_path):
  code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_by_hand import product, tiled, X
before = "tinygrad.codegen.lower" in sys.modules
with tiled:
  assert (product() == X @ X).all()
print(before, "tinygrad.codegen.lower" in sys.modules)
"""
  env = {**os.environ, "CACHEDIR": str(tmp_path), "PLAN_CACHE": "1", "SPEC": "1"}
  run = [subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True) for _ in range(2)]
  assert [r.stdout for r in run] == ["False True\n", "False False\n"], run[0].stderr + run[1].stderr


NO_LOOP = r"0, split\(i9, 4\): there is no loop i9\n  fix: one of i0, i1, k0"
NO_SIZE = r"0, split\(i0\): .*'size'\n  fix: DEBUG=3 prints the steps"


@pytest.mark.parametrize("arguments, message", [(("i9", 4), NO_LOOP), (("i0",), NO_SIZE)])
def test_what_cannot_be_is_said_with_the_step(arguments, message):
  wrong = kernel_schedule(NAME)(lambda nest: nest.split(*arguments))
  with wrong, pytest.raises(ValueError, match=f"kernel {NAME}, nest {message}"):
    product()
  np.testing.assert_array_equal(product(), X @ X)


def test_a_grid_is_named_or_there_is_none():
  @kernel_schedule(NAME)
  def grid(nest):
    nest.bind("groups", "i0")

  message = (
    "do not say by which of the grid.*\n  fix: end with nest.within" if ON_GRID else "CPU has no grid of threads"
  )
  with grid, pytest.raises(ValueError, match=message):
    product()


def test_there_is_no_such_primitive():
  with pytest.raises(AttributeError, match="a nest has no primitive 'tile'\n  fix: one of split, reorder, "):
    kernel_schedule(NAME)(lambda nest: nest.tile("i0"))
