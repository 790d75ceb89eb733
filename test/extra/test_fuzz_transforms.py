"""extra/fuzz_transforms.py: programs agree, and what it was written to find it finds."""

import re

import numpy as np
import pytest

from extra import fuzz_transforms
from extra.fuzz_transforms import NAMES, REFUSED, fault, main, shrunk
from extra.plain_transforms import COLLECTIVES, Course, Unsure, grad, hessian, scan, stop_gradient, vmap
from extra.transform_programs import MODES, WINDOWED, Program
from tinygrad.transforms import cond, forward, run_loops


def found(seed):
  try:
    return fault(Program(seed))
  except Unsure:
    return None


@pytest.mark.parametrize("first", [*range(0, 32, 8), WINDOWED, WINDOWED + 8])
def test_programs_agree_with_loops_and_differences(first):
  assert {seed: said for seed in range(first, first + 8) if (said := found(seed)) not in (None, REFUSED)} == {}


def test_all_kinds_are_drawn():
  text = "\n".join(str(Program(seed)) for seed in range(200))
  for word in (
    *NAMES.split(),
    *COLLECTIVES,
    "own_vjp",
    "own_jvp",
    "replayed",
    "has_aux",
    "reverse=True",
    "unroll",
    "length",
    "shard_map",
    "length=0",
    "noise",
    "inside(2, 'vmap'",
    *(f"say({name}" for name in "vp"),
  ):
    assert word in text, word
  assert not any(word in text for word in ("pooled", "strided", "widened"))
  text = "\n".join(str(Program(seed)) for seed in range(WINDOWED, WINDOWED + 100))
  for word in ("pooled(", '"mean")', '"max")', "strided(", "widened("):
    assert word in text, word
  programs = [Program(seed) for seed in range(60)]
  assert {p.dtype for p in programs} == {"float64", "float32", "float16", "bfloat16"}
  assert any(not x.size for p in programs for x in p.sets[0])
  assert {Program(seed).mode for seed in range(40)} == {*MODES}
  assert str(Program(7)) == str(Program(7))


def test_the_oracle_differentiates(monkeypatch):
  monkeypatch.setattr(Course, "calls", 0)  # a program that was left out for too many has left them
  x = np.array([0.5, -1.0, 2.0])
  np.testing.assert_allclose(grad(lambda x: np.sum(np.sin(x) * stop_gradient(x)))(x), np.cos(x) * x, rtol=1e-10)
  np.testing.assert_allclose(hessian(lambda x: np.sum(x**4))(x), np.diag(12 * x**2), rtol=1e-8, atol=1e-8)
  total, sums = scan(lambda c, y: (c + y, c * y), np.zeros(()), x, reverse=True)
  assert total == 1.5 and sums.tolist() == [0.5, -2.0, 0.0]
  assert vmap(lambda y: {"a": y * 2}, 1, -1)(np.arange(6).reshape(2, 3))["a"].tolist() == [[0, 2, 4], [6, 8, 10]]
  with pytest.raises(Unsure, match="within a difference"):
    grad(lambda x: np.sum(fuzz_transforms.PLAIN["relu"](x)))(np.array([1e-3]))


MUTANTS = {
  "steps from the wrong end": (113, run_loops.Steps, "number", lambda self, k: k),
  "the derivative of the function that was not chosen": (
    172,
    cond.Choice,
    "chosen",
    lambda self, pred, pair, *more, right=cond.Choice.chosen: right(self, pred, pair[::-1], *more),
  ),
  "the first of several tangents": (259, forward, "total", lambda parts, right=forward.total: right(parts[:1])),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, fresh):
  seed, *mutant = MUTANTS[name]
  fresh.setattr(*mutant)
  assert re.match(r"differs: result \d+ is .* off", found(seed))


def test_what_failed_is_shrunk_and_printed(capsys, fresh):
  fresh.setattr(run_loops.Steps, "number", lambda self, k: k)
  p = shrunk(Program(113), found(113))
  assert str(p).count("\n") < str(Program(113)).count("\n") and "scan(" in str(p)
  assert main(["--seed", "113", "--count", "1"]) == 1
  said = capsys.readouterr().out
  assert said.startswith("--seed 113 --count 1: differs: result") and "1 failed" in said


def test_only_documented_refusals_pass(fresh):
  """A program that may be refused, and one of which nobody has said so."""
  assert "loops in a captured while_loop" in Program(256).refusals and found(256) == REFUSED
  fresh.setattr(fuzz_transforms, "REFUSALS", dict.fromkeys(fuzz_transforms.REFUSALS, (TypeError, "another text")))
  assert found(256).startswith("JitError: while_loop: a loop within it cannot be captured")
