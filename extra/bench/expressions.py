"""What an eager user computes. A hundred different small expressions, once each: ten functions in ten forms, every one
of its own shape; and a loop over slices with a rate that falls, in which no number comes twice. numpy alone, since this
file also runs in the environments of the peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

FUNCTIONS = ("exp", "sin", "cos", "tanh", "abs", "sqrt", "square", "floor", "log", "reciprocal")
FORMS: tuple[Callable[..., Any], ...] = (  # of a framework's functions, one of them, and two matrices
  lambda m, f, a, b: f(a) + b,
  lambda m, f, a, b: f(a) * b - a,
  lambda m, f, a, b: m.maximum(f(a), b),
  lambda m, f, a, b: m.where(a < b, f(a), b),
  lambda m, f, a, b: f(a + b) / 2,
  lambda m, f, a, b: f(a.T) + b.T,
  lambda m, f, a, b: f(a) @ b.T,
  lambda m, f, a, b: m.sum(f(a) * b, 0),
  lambda m, f, a, b: m.mean(f(a), 1),
  lambda m, f, a, b: m.cumsum(f(a), 1),
)
NAMES = (*FUNCTIONS, "maximum", "where", "sum", "mean", "cumsum")


def inputs() -> list[tuple[np.ndarray, np.ndarray]]:
  """Of each expression two float32 matrices of positive numbers."""
  rng = np.random.default_rng(0)
  shapes = [(4 + i, 24 + j) for j in range(len(FORMS)) for i in range(len(FUNCTIONS))]
  a, b = ([rng.uniform(0.1, 2, shape).astype(np.float32) for shape in shapes] for _ in range(2))
  return list(zip(a, b))


def evaluate(module: Any, given: list[tuple[Any, Any]], ready: Callable[[Any], Any]) -> list[Any]:
  """Every expression by a framework's functions, each `ready` before the next."""
  functions = SimpleNamespace(**{name: getattr(module, name) for name in NAMES})
  made = [(form, getattr(functions, name)) for form in FORMS for name in FUNCTIONS]
  return [ready(form(functions, f, a, b)) for (form, f), (a, b) in zip(made, given, strict=True)]


def error(results: list[np.ndarray]) -> float:
  """The largest `deviation` from numpy's results in float64."""
  exact = [(a.astype(np.float64), b.astype(np.float64)) for a, b in inputs()]
  return deviation(results, evaluate(np, exact, lambda x: x))


def deviation(results: list[Any], want: list[np.ndarray]) -> float:
  """The largest one, relative to the largest value of its expression."""
  return max(float(np.abs(np.asarray(x) - w).max() / np.abs(w).max()) for x, w in zip(results, want, strict=True))


PART = 64  # rows of a slice
Slices = list[tuple[int, float, Any]]  # where it begins, the rate, and the result
_steps = itertools.count()


def rows() -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(1)
  return rng.standard_normal((4096, 256), np.float32), rng.standard_normal((256, 32), np.float32)


def slices(x: Any, w: Any, ready: Callable[[Any], Any]) -> Slices:
  """A hundred products of a slice's rows and a matrix, times a rate, each `ready` before the next."""
  steps = [(k * 37 % (4096 - PART), 1 / (1 + k / 256)) for k in itertools.islice(_steps, 100)]
  return [(begin, rate, ready((x[begin : begin + PART] @ w) * rate)) for begin, rate in steps]


def slices_error(found: Slices) -> float:
  """The largest `deviation` from numpy's results in float64."""
  x, w = (a.astype(np.float64) for a in rows())
  return deviation([y for _, _, y in found], [(x[i : i + PART] @ w) * rate for i, rate, _ in found])
