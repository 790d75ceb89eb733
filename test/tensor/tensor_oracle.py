"""Compares an operation with numpy: values, and gradients with central differences of the numpy function in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad import Tensor, dtypes
from tinygrad.dtype import to_numpy_dtype


def normal(seed: int, shape: Sequence[int], low: float | None = None, high: float | None = None) -> np.ndarray:
  """float64 normal numbers, or uniform ones of [low, high)."""
  rng = np.random.default_rng(seed)
  return rng.standard_normal(shape) if low is None or high is None else rng.uniform(low, high, shape)


def close(got: Tensor, want: Any, tol: float = 1e-5) -> None:
  """Shape, kind of type and values agree."""
  want = np.asarray(want)
  value = got.numpy()
  assert value.shape == want.shape, f"shape {value.shape}, numpy has {want.shape}"
  assert value.dtype == to_numpy_dtype(got.dtype)
  assert (value.dtype.kind == "f") == (want.dtype.kind == "f"), f"{value.dtype}, numpy has {want.dtype}"
  np.testing.assert_allclose(value.astype(np.float64), want.astype(np.float64), rtol=tol, atol=tol)


def check(
  f: Callable[..., Tensor], g: Callable[..., Any], *xs: np.ndarray, grad: bool = True, tol: float = 1e-5
) -> None:
  """`f` on float32 tensors gives what `g` gives on arrays; and with `grad` d(sum w*f)/dx does, for random w, in
  float64."""
  close(f(*(Tensor(x.astype(np.float32)) for x in xs)), np.asarray(g(*xs), dtype=np.float64), tol)
  if not grad or any(x.size == 0 for x in xs):
    return
  tensors = [Tensor(x.astype(np.float64), dtype=dtypes.float64) for x in xs]
  out = f(*tensors)
  w = normal(99, out.shape)
  grads = (out * Tensor(w)).sum().gradient(*tensors)
  for i, x in enumerate(xs):
    want = np.zeros_like(x)
    for at in np.ndindex(x.shape):
      sides = []
      for h in (1e-6, -1e-6):
        moved = [v.copy() for v in xs]
        moved[i][at] += h
        sides.append((w * g(*moved)).sum())
      want[at] = (sides[0] - sides[1]) / 2e-6
    assert grads[i].shape == x.shape
    np.testing.assert_allclose(grads[i].numpy(), want, rtol=1e-4, atol=1e-5, err_msg=f"gradient of operand {i}")
