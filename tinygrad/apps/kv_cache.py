"""Keys and values of the tokens that were read: one tensor for all sequences, in a format of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from tinygrad import Tensor, UOp, dtypes
from tinygrad.apps import AppError
from tinygrad.nn.block_formats import Rounded

CacheKind = Literal["f16", "f32", "q8_0"]
BLOCK = 32  # elements of a head that share a scale in q8_0; a head of no whole number of blocks is one block
sint = int | UOp


class CacheError(AppError):
  """A cache of no known format: names those known."""


class Cache:
  """Keys or values of one layer, [slots, kv_heads, length, head_dim] (`shape`).

  f32 and f16 are one tensor; q8_0 is whole numbers of -127 to 127 and a float16 scale for each block of a head.
  `put` makes memory of zeros on the devices.
  """

  def __init__(self, kind: str, shape: tuple[int, ...], put: Callable[[Tensor], Tensor]):
    if kind not in get_args(CacheKind):
      raise CacheError(f"a cache of {kind!r} is not known\n  fix: one of {', '.join(get_args(CacheKind))}")
    *lead, size = shape
    self.block = size if size % BLOCK else BLOCK
    numbers = {"f32": dtypes.float32, "f16": dtypes.float16, "q8_0": dtypes.int8}[kind]
    parts = [Tensor.zeros(*shape, dtype=numbers)]
    if kind == "q8_0":
      parts.append(Tensor.zeros(*lead, size // self.block, dtype=dtypes.float16))
    self.parts = tuple(map(put, parts))

  @property
  def nbytes(self) -> int:
    return sum(math.prod(int(n) for n in x.shape) * x.dtype.itemsize for x in self.parts)

  def encoded(self, x: Tensor) -> tuple[Tensor, ...]:
    """x [.., head_dim] as the parts hold it."""
    if len(self.parts) == 1:
      return (x.cast(self.parts[0].dtype),)
    numbers, scales = Rounded.of(x, self.block)
    return numbers.flatten(-2), scales.squeeze(-1).cast(dtypes.float16)

  def write(self, starts: Sequence[tuple[sint, sint]], x: Tensor) -> None:
    """x [B, kv_heads, T, head_dim]; the rows of B go to the slots, from the positions on, that `starts` names."""
    for part, new in zip(self.parts, self.encoded(x)):
      for i, (slot, pos) in enumerate(starts):
        part[slot : slot + 1, :, pos : pos + x.shape[2]] = new[i : i + 1]

  def read(self, first: sint, count: int, end: sint) -> Tensor:
    """[count, kv_heads, end, head_dim], float32, of the slots from `first` on."""
    numbers, *scales = (x[first : first + count, :, :end].float() for x in self.parts)
    if not scales:
      return numbers
    blocks = numbers.reshape(*numbers.shape[:-1], numbers.shape[-1] // self.block, self.block)
    return (blocks * scales[0].unsqueeze(-1)).flatten(-2)
