"""Random programs of transforms: as JAX computes them (its answers are in test/data, or asked for where it is
installed), and as loops do."""

import importlib.util

import numpy as np
import pytest
from nested_programs import ANSWERS, PROGRAMS, Common, function, inputs, jax_library, made

from tinygrad import Tensor, checkpoint, grad, jacfwd, jacrev, jvp, scan, vjp, vmap
from tinygrad.helpers import Context

CHUNK = 30


def array(x):
  return Tensor(np.asarray(x), dtype="float64")


NAMES = {
  "array": array, "sin": Tensor.sin, "cos": Tensor.cos, "tanh": Tensor.tanh, "exp": lambda x: (x * 0.3).exp(),
  "cumsum": Tensor.cumsum, "reverse": lambda x: x.flip(0), "sort": lambda x: x.sort()[0],
  "pad": lambda x: x.pad((0, 1)), "where": Tensor.where, "maximum": Tensor.maximum,
  "stack": lambda xs: Tensor.stack(*xs), "grad": grad, "jvp": jvp, "vjp": vjp, "vmap": vmap,
  "scan": lambda f, c, xs, back: scan(f, c, xs, reverse=back), "checkpoint": checkpoint, "jacfwd": jacfwd,
  "jacrev": jacrev,
}  # fmt: skip


def looped_map(f, axes, out=0):
  def over_many(*args):
    n = next(x.shape[a] for x, a in zip(args, axes) if a is not None)
    picked = [[x if a is None else x.transpose(0, a)[i] for x, a in zip(args, axes)] for i in range(n)]
    return Tensor.stack(*[f(*xs) for xs in picked], dim=out)

  return over_many


def looped_scan(f, c, xs, back):
  ys = [None] * xs.shape[0]
  for i in reversed(range(len(ys))) if back else range(len(ys)):
    c, ys[i] = f(c, xs[i])
  return c, Tensor.stack(*ys)


OURS = Common(**NAMES)
LOOPS = Common(**{**NAMES, "vmap": looped_map, "scan": looped_scan, "checkpoint": lambda f: f})


def close(got, want, seed):
  np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9, err_msg=f"program {seed}: {made(seed)}")


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_programs_are_as_jax_computes_them(first):
  answers = np.load(ANSWERS)["answers"]
  with Context(INTERPRET=1):
    for seed in range(first, first + CHUNK):
      close(function(made(seed), OURS)(*map(array, inputs(seed))).numpy(), answers[seed], seed)


@pytest.mark.parametrize("first", range(1000, 1000 + PROGRAMS, CHUNK))
def test_programs_are_as_loops_compute_them(first):
  with Context(INTERPRET=1):
    for seed in range(first, first + CHUNK):
      got, want = (function(made(seed), lib)(*map(array, inputs(seed))).numpy() for lib in (OURS, LOOPS))
      close(got, want, seed)


@pytest.mark.parametrize("seed", range(0, PROGRAMS, 30))
def test_compiled_and_on_two_devices(seed):
  x, w = map(array, inputs(seed))
  want = np.load(ANSWERS)["answers"][seed]
  close(function(made(seed), OURS)(x, w).numpy(), want, seed)
  placed = x.shard(("CPU:0", "CPU:1"), 0), w.shard(("CPU:0", "CPU:1"), seed // 30 % 2)
  close(function(made(seed), OURS)(*placed).numpy(), want, seed)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed (extra [oracle])")
def test_the_answers_are_those_of_jax():
  lib = jax_library()
  for seed in range(0, PROGRAMS, 10):
    close(np.load(ANSWERS)["answers"][seed], function(made(seed), lib)(*map(lib.array, inputs(seed))), seed)
