"""Sums of what a comparison with a place chooses: reductions by index where they are, with the same values."""

import math

import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, num, op, reduce, run, sink, store
from test_grid import GRID
from test_kernels import WIDE, normal

from tinygrad import Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.dtype import dtypes
from tinygrad.numerics import one_hots
from tinygrad.uop import Ops, UOp

N, D, M = 40, 24, 100
F, I = dtypes.float32, dtypes.int32
rng = np.random.default_rng(1)
AT = rng.integers(-5, N + 5, M).astype(np.int32)
WIDE_AT, SMALL = AT.astype(np.int64), rng.integers(0, 256, M).astype(np.uint8)
X = normal(M, D)
i, d, j, many = loop(N, 0), loop(D, 1), reduce(M, 2), loop(300, 0)
AT_J, X_J = load(1, AT, j), load(2, X, dot((j, D), (d, 1)))


def const(n, dtype=F):
  return UOp.const(dtype, n)


def cast(x, dtype):
  return op(Ops.CAST, x, dtype=dtype)


def equal(row, place):
  return op(Ops.CMPEQ, row, cast(cast(place, I), row.dtype))


def chosen(condition, x, none):
  return op(Ops.WHERE, condition, x, const(none, x.dtype), dtype=x.dtype)


def rows(value):
  return sink(store(dot((i, D), (d, 1)), value, i, d, size=N * D))


def counts(condition, place=i, n=N):
  return sink(store(place, fold(Ops.ADD, cast(condition, I), j), place, size=n))


KERNELS = {
  "counts": (counts(equal(AT_J, i)), [AT]),
  "turned": (counts(op(Ops.CMPEQ, cast(i, I), AT_J)), [AT]),
  "wide": (counts(equal(load(1, WIDE_AT, j), i)), [WIDE_AT]),
  "weights": (rows(fold(Ops.ADD, chosen(equal(AT_J, i), X_J, 0.0), j)), [AT, X]),
  "maxima": (rows(fold(Ops.MAX, chosen(equal(AT_J, i), X_J, -math.inf), j)), [AT, X]),
  "from 3": (counts(equal(AT_J, op(Ops.ADD, i, num(3)))), [AT]),
}
# what is none: a place that wraps, another value where nothing is chosen, a lookup, floats, a place of each term
NONE = {
  "narrow": (counts(equal(load(1, SMALL, j), many), many, 300), [SMALL]),
  "minus 0": (rows(fold(Ops.ADD, chosen(equal(AT_J, i), X_J, -0.0), j)), [AT, X]),
  "another": (rows(fold(Ops.MAX, chosen(equal(AT_J, i), X_J, 0.0), j)), [AT, X]),
  "lookup": (rows(fold(Ops.ADD, chosen(equal(load(1, AT, i), j), X_J, 0.0), j)), [AT, X]),
  "one row": (rows(fold(Ops.ADD, chosen(equal(load(1, AT, i), d), X_J, 0.0), j)), [AT, X]),
}


def is_by_index(ast):
  return any(u.op is Ops.ONE_HOT for u in one_hots.as_one_hots(ast, WIDE).toposort())


@pytest.mark.parametrize("name", KERNELS)
def test_a_step_for_each_that_is_added(name):
  ast, arrays = KERNELS[name]
  assert is_by_index(ast) and one_hots.as_one_hots(ast, GRID) is ast
  assert not any(u.op is Ops.ACC for u in lower_kernel(ast, WIDE))  # nothing is summed over all there is
  np.testing.assert_allclose(run(ast, arrays), evaluate(ast, arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_reduction_by_index(name):
  ast, arrays = NONE[name]
  assert not is_by_index(ast)
  np.testing.assert_allclose(run(ast, arrays), evaluate(ast, arrays), rtol=1e-5, atol=1e-5)


MUTANTS = {
  "any value elsewhere": ("another", "chosen_in", lambda f: f.src[0].src[:2]),
  "any cast": ("narrow", "index_of", lambda x: x.src[0].src[0] if x.op is x.src[0].op is Ops.CAST else None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_seen(name, monkeypatch):
  kernel, attribute, wrong = MUTANTS[name]
  ast, arrays = NONE[kernel]
  want = evaluate(ast, arrays)
  monkeypatch.setattr(one_hots, attribute, wrong)
  assert is_by_index(ast)
  if kernel == "another":  # a row that is narrow is compared as it is: nothing shows it but what it has become
    assert not np.allclose(run(ast, arrays), want)


def test_histograms():
  x = rng.integers(-3, 300, 2000)
  np.testing.assert_array_equal(
    Tensor(x).one_hot(256).sum(0).numpy(), np.bincount(x[(x >= 0) & (x < 256)], minlength=256)
  )
  w = normal(2000)
  got = (Tensor(x).unsqueeze(-1) == Tensor.arange(256)).where(Tensor(w).unsqueeze(-1), 0.0).sum(0)
  inside = (x >= 0) & (x < 256)
  np.testing.assert_allclose(got.numpy(), np.bincount(x[inside], w[inside], 256), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- lanes


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
@pytest.mark.parametrize("n", [2, 3, 7, 16, 33, 64])
def test_the_greatest_of_short_rows_and_nan_in_any_lane(n, dtype):
  x = rng.integers(0, 200, (n + 1, n)).astype(dtype)
  if "float" in dtype:
    x[np.arange(n), np.arange(n)] = np.nan
    x[-1] = -np.inf
  with np.errstate(invalid="ignore"):
    np.testing.assert_array_equal(Tensor(x).max(1).numpy(), x.max(1))
    np.testing.assert_array_equal(Tensor(x).min(1).numpy(), x.min(1))
