"""Tensors of given values, made in all the ways in which programs get theirs.

A test that realises its inputs first never sees what is fused into its kernels. `way(name)` picks one by the test's
name, the same in every run; half of the picks leave something to be computed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad import Tensor, TinyJit
from tinygrad.device import Device, Placement


def _tensor(x: np.ndarray, device: Placement, dtype: Any) -> Tensor:
  return Tensor(x, dtype=dtype).to(device)


def _host(x: np.ndarray, device: Placement, dtype: Any) -> Tensor:
  """An array of the host that has not been copied yet."""
  return _tensor(x, device, dtype)


def _realized(x: np.ndarray, device: Placement, dtype: Any) -> Tensor:
  return _tensor(x, device, dtype).realize()


def _chosen(x: np.ndarray, device: Placement, dtype: Any) -> Tensor:
  """Each element from one of two arrays, which hold another element elsewhere: exact for every bit of every type."""
  mask = (np.arange(x.size) % 3 > 0).reshape(x.shape)
  other = np.roll(x.reshape(-1), 1).reshape(x.shape)
  parts = [_tensor(np.where(m, x, other), device, dtype).realize() for m in (mask, ~mask)]
  return _tensor(mask, device, None).realize().where(*parts)


def _joined(x: np.ndarray, device: Placement, dtype: Any) -> Tensor:
  """The halves of dim 0, joined."""
  half = len(x) // 2
  return Tensor.cat(_tensor(x[:half], device, dtype).realize(), _tensor(x[half:], device, dtype).realize())


def _within(x: np.ndarray, device: Placement, dtype: Any) -> Tensor:
  """A part of a larger buffer, with ones around it."""
  wide = _tensor(np.pad(x, [(1, 2)] * x.ndim, constant_values=1), device, dtype).realize()
  return wide.shrink(tuple((1, 1 + n) for n in x.shape))


def _turned(x: np.ndarray, device: Placement, dtype: Any) -> Tensor:
  """The permuted view of a buffer with the dims in the other order."""
  order = tuple(reversed(range(x.ndim)))
  return _tensor(np.ascontiguousarray(x.transpose(order)), device, dtype).realize().permute(order)


def _flipped(x: np.ndarray, device: Placement, dtype: Any) -> Tensor:
  """The flipped view of a buffer that runs the other way."""
  dims = tuple(range(x.ndim))
  return _tensor(np.ascontiguousarray(np.flip(x)), device, dtype).realize().flip(dims)


def _replayed(x: np.ndarray, device: Placement, dtype: Any) -> Tensor:
  """What a replay of a captured function gave."""
  same = TinyJit(lambda t: t.clone())
  for _ in range(2):
    same(_tensor(np.ones_like(x), device, dtype).realize())
  return same(_tensor(x, device, dtype).realize())


MEMORY: dict[str, Callable[[np.ndarray, Placement, Any], Tensor]] = {
  "realized": _realized,
  "within": _within,
  "turned": _turned,
  "flipped": _flipped,
  "replayed": _replayed,
}
"""Ways whose tensors lie in memory: what is written to them stays there."""
LAZY: dict[str, Callable[[np.ndarray, Placement, Any], Tensor]] = {"host": _host, "chosen": _chosen, "joined": _joined}
SHAPED = {"within", "turned", "flipped", "joined"}
"""Ways that need a dim, and some elements."""


def ways(x: np.ndarray) -> list[str]:
  """The ways that are open to an array, those of memory and the lazy ones as often as each other."""
  open_to = [[n for n in names if n not in SHAPED or (x.ndim and x.size and len(x) > 1)] for names in (MEMORY, LAZY)]
  return [names[i % len(names)] for names in open_to for i in range(len(MEMORY) * len(LAZY) * 2)]


def way(name: str, x: np.ndarray) -> str:
  """The way of an input with this name, which may be anything that tells it apart."""
  names = ways(x)
  return names[zlib.crc32(name.encode()) % len(names)]


def made(x: np.ndarray, how: str, device: Placement | None = None, dtype: Any = None) -> Tensor:
  """A tensor of x's values, in a way of `MEMORY` or `LAZY`."""
  return {**MEMORY, **LAZY}[how](x, device or Device.DEFAULT, dtype)
