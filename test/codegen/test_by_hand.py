"""A user's own steps for a kernel: what it computes stays; what cannot be is said with the kernel, nest and step."""

import contextlib
import inspect
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Context, Device, Tensor, TinyJit, kernel_schedule
from tinygrad.helpers import KERNEL_SCHEDULES, PROCESS
from tinygrad.tuning.by_hand import Recorder

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
  assert steps_printed(capsys)[0].startswith("# nest 0: split('i1', 8, 'peel'), split('i0', 5, 'peel')")
  assert KERNEL_SCHEDULES.value == ()
  with Context(DEBUG=3):
    np.testing.assert_array_equal(product(), X @ X)
  assert "split('i0', 5, 'peel')" not in capsys.readouterr().out  # it is the heuristic's program again


def test_other_kernels_are_computed_as_before_and_a_nest_that_there_is_not_is_said():
  @kernel_schedule(NAME, nest="7")
  def elsewhere(nest):
    nest.split("i0", 5)

  with elsewhere:
    np.testing.assert_array_equal((Tensor(X) + 1).numpy(), X + 1)
    with pytest.raises(ValueError, match=rf"kernel {NAME}: it has no nest 7\n  fix: one of 0"):
      product()


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
  assert len(steps := steps_printed(capsys)) == 1 and "split('i1', 8" not in steps[0]


def test_a_capture_is_not_replayed_under_other_steps(capsys):
  step = TinyJit(lambda x: (x @ x).realize())
  x = Tensor(X).realize()
  for _ in range(3):
    step(x)
  capsys.readouterr()
  with Context(DEBUG=3), tiled:
    np.testing.assert_array_equal(step(x).numpy(), X @ X)
  assert "split('i0', 5, 'peel')" in capsys.readouterr().out


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


@pytest.mark.parametrize(
  "steps, rule",
  [
    (lambda nest: nest.split("i9", 4), r"split\('i9', 4, 'peel'\): there is no loop i9\n  fix: one of i0, i1, k0"),
    (lambda nest: nest.stage((2, ("k0",))), r"stage\(.*\): there is no operand 2\n  fix: one of 2, from 0 on"),
    (
      lambda nest: nest.split("i0", 5) or nest.split("i0.i", 9, tail="overlap"),
      r"split\(.*'overlap'\): blocks of 9 overlap .*\n  fix: split it with tail=.clamp.",
    ),
  ],
)
def test_what_cannot_be_is_said_with_the_step(steps, rule):
  wrong = kernel_schedule(NAME)(steps)
  with wrong, pytest.raises(ValueError, match=rf"kernel {NAME}, nest 0, {rule}"):
    product()
  np.testing.assert_array_equal(product(), X @ X)


@pytest.mark.parametrize(
  "steps, error, rule",
  [
    (lambda nest: nest.split("i0", 0), ValueError, "0 is no number of iterations.*\n  fix: an integer of at least 1"),
    (lambda nest: nest.split("i0", 4.0), ValueError, "4.0 is no number"),
    (lambda nest: nest.split("i0"), TypeError, "missing 1 required positional argument: 'size'"),
    (lambda nest: nest.split("i0", 4, "cut"), ValueError, "a tail of 'cut'\n  fix: one of peel, mask, clamp, overlap"),
    (lambda nest: nest.unroll(0), TypeError, "0 is no loop's name\n  fix: one as DEBUG=3"),
    (lambda nest: nest.reorder(["i1", "i0"]), TypeError, r"\['i1', 'i0'\] is no loop's name"),
    (lambda nest: nest.stage(0, "k0"), TypeError, "an operand is staged as .*, not 0\n  fix: "),
    (lambda nest: nest.stage((0, "k0")), TypeError, "not with 'k0' where several are named\n  fix: a tuple of names"),
    (lambda nest: nest.stage((-1, ("k0",))), ValueError, "-1 is no number"),
    (lambda nest: nest.tile("i0"), AttributeError, "a nest has no primitive 'tile'\n  fix: one of split, join, unroll"),
  ],
)
def test_what_is_no_step_is_said_where_it_is_written(steps, error, rule):
  with pytest.raises(error, match=rule):
    kernel_schedule(NAME)(steps)


@pytest.mark.parametrize("names", [(3,), (None,), ("",), (NAME, 0), (NAME, "")])
def test_kernels_and_nests_are_names(names):
  with pytest.raises(TypeError, match="both are names\n  fix: as DEBUG=3 prints them"):
    kernel_schedule(*names)


def test_what_is_noted_is_what_a_nest_takes():
  """The primitives' names, parameters and defaults are those of the nest that carries them out."""
  from tinygrad.codegen.nests import NestSchedule  # here: a test above sees that a schedule is written without it

  noted = {name: method for name, method in vars(Recorder).items() if not name.startswith("_")}
  assert set(noted) == set(re.findall(r'self\.(?:note|mark)\("(\w+)"', inspect.getsource(NestSchedule)))
  for name, method in noted.items():
    mine, its = (inspect.signature(m).parameters.values() for m in (method, getattr(NestSchedule, name)))
    assert [(p.name, p.kind, p.default) for p in mine] == [(p.name, p.kind, p.default) for p in its], name


def test_a_grid_is_named_or_there_is_none():
  @kernel_schedule(NAME)
  def grid(nest):
    nest.bind("groups", "i0")

  message = (
    "do not say by which of the grid.*\n  fix: end with nest.within" if ON_GRID else "CPU has no grid of threads"
  )
  with grid, pytest.raises(ValueError, match=message):
    product()


W = np.random.default_rng(3).standard_normal((70, 70), np.float32)
KERNELS = {
  "product": lambda: Tensor(W) @ Tensor(W),
  "large product": lambda: Tensor(np.tile(W, (3, 3))) @ Tensor(np.tile(W, (3, 3))),
  "long product": lambda: Tensor(np.tile(W, (1, 60))) @ Tensor(np.tile(W, (60, 1))),
  "elements": lambda: Tensor(W) * 2 + Tensor(W).T,
  "sums of columns": lambda: Tensor(W).sum(0),
  "sums of rows": lambda: Tensor(np.tile(W, (1, 9))).sum(1),
  "convolution": lambda: Tensor(W[:64].reshape(1, 7, 16, 40)).conv2d(Tensor(W[:63].reshape(10, 7, 9, 7)[:, :, :3, :3])),
  "maxima": lambda: Tensor(W.reshape(1, 1, 70, 70)).max_pool2d(3, 2),
  "softmax": lambda: Tensor(W).softmax(),
  "half": lambda: (Tensor(W).half() @ Tensor(W).half()).float(),
  "table": lambda: Tensor(W)[Tensor([3, 1, 69, 0, 7])],
}


@pytest.mark.parametrize("case", KERNELS)
def test_steps_that_are_printed_make_the_same_kernels(case, capsys):
  """What DEBUG=3 prints, written as a schedule, gives the very code: nothing that the heuristic does is kept back."""
  plain, steps = code_and_steps(case, capsys)
  assert steps, plain
  with contextlib.ExitStack() as given:
    for (kernel, nest), text in steps.items():
      given.enter_context(kernel_schedule(kernel, nest)(lambda nest, text=text: eval(text, {"nest": nest})))
    assert code_and_steps(case, capsys) == (plain, steps)


def code_and_steps(case, capsys):
  """Of each kernel the text of its code; by kernel and nest the calls of its steps."""
  capsys.readouterr()
  with PROCESS.anew(), Context(DEBUG=5, NO_COLOR=1):
    KERNELS[case]().realize()
  kernels, code, steps, name = {}, [], {}, ""
  for line in capsys.readouterr().out.splitlines():
    if found := re.match(r"# kernel (\S+)", line):
      name, code = found[1], kernels.setdefault(found[1], [])
    elif found := re.match(r"# nest (\S+): (.*)", line):
      calls = re.sub(r"(?:^|, )(\w+\()", r", nest.\1", found[2])
      steps[name, found[1]] = f"({calls.removeprefix(', ')},)" if found[2] else "()"
    elif not line.startswith(("***", "copy", "move", "total")):
      code.append(line)
  return kernels, steps


def test_a_name_that_no_kernel_has_is_said_at_the_end_of_the_block():
  @kernel_schedule("r_1_2_3")
  def wrong(nest):
    nest.unroll("k0")

  rule = "kernel_schedule: no kernel named r_1_2_3 has run in this block\n    in test_by_hand.py:.*"
  with pytest.warns(UserWarning, match=rule + "with wrong:\n  fix: realize"):  # what is computed later does not count
    with wrong:
      later = Tensor(X) @ Tensor(X)
  later.realize()
  with pytest.warns(UserWarning, match=rule + f"\n  fix: of those that did run, .*{NAME}"):
    with wrong:
      product()
  with pytest.raises(ZeroDivisionError):  # is what is to be seen
    with warnings.catch_warnings(), wrong:
      warnings.simplefilter("error")
      _ = 1 / 0


def test_a_name_that_a_kernel_has_is_not_told_whoever_made_it():
  step, x = TinyJit(lambda x: (x @ x).realize()), Tensor(X).realize()
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for _ in range(4):  # compiled, captured and replayed
      with tiled:
        step(x)
    with tiled, tiled:  # from the cache
      product()
