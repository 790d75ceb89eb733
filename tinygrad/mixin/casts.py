"""Casts, and the bits of values as those of other types."""

import functools
from typing import Self

from tinygrad.dtype import DType, dtypes, to_dtype
from tinygrad.mixin.elementwise import Elementwise
from tinygrad.uop import describe


class Casts(Elementwise):
  __slots__ = ()

  def bitcast(self, dtype: DType | str) -> Self:
    """The same bits read as another type; between widths the last dim grows or shrinks. ValueError if it does not
    divide. A bool is a byte of 0 or 1; a byte that is not 0 is read as True.

    Examples:
      >>> Tensor([1.0]).bitcast(dtypes.int32).tolist()
      [1065353216]
      >>> Tensor([1.0]).bitcast(dtypes.uint8).shape
      (4,)
    """
    d = to_dtype(dtype)
    if d is not self.dtype and dtypes.bool in (d, self.dtype):  # which is one bit to processors
      return self.cast(dtypes.uint8).bitcast(d) if d is not dtypes.bool else self.bitcast(dtypes.uint8).ne(0)
    old, new = self.dtype.itemsize, d.itemsize
    if old == new:
      return self._new(self.uop.bitcast(d))
    words = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
    if not self.ndim or self.shape[-1] * old % new:
      rule = f"bitcast: the last dim of {describe(self.uop)} does not divide into elements of {new} bytes ({d})"
      raise ValueError(f"{rule}\n  fix: pad it to a multiple of {new // old} elements, or cast to convert the values")
    bits = self._new(self.uop.bitcast(words[old]))
    if new < old:
      parts = [bits.rshift(8 * new * i).cast(words[new]) for i in range(old // new)]
      return parts[0].stack(*parts[1:], dim=-1).flatten(-2)._bits(d)
    k = new // old
    split = bits.reshape((*self.shape[:-1], self.shape[-1] // k, k)).cast(words[new])
    parts = [split._slice(self.ndim, i, i + 1).squeeze(-1).lshift(8 * old * i) for i in range(k)]
    return functools.reduce(lambda x, y: x.bitwise_or(y), parts)._bits(d)

  def half(self) -> Self:
    """Cast to float16: 11 bits of precision, at most 65504.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0, 70000.0]).half().tolist()
      [1.0, inf]
    """
    return self.cast(dtypes.float16)

  def bfloat16(self) -> Self:
    """Cast to bfloat16: the range of float32, 8 bits of precision.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.00390625]).bfloat16().float().tolist()
      [1.0]
    """
    return self.cast(dtypes.bfloat16)

  def float(self) -> Self:
    """Cast to float32.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1, 2]).float().tolist()
      [1.0, 2.0]
    """
    return self.cast(dtypes.float32)

  def double(self) -> Self:
    """Cast to float64. TypeError on a device that has none.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1, 2], device="CPU").double().tolist()
      [1.0, 2.0]
    """
    return self.cast(dtypes.float64)

  def bool(self) -> Self:
    """Cast to bool: whether each element is not 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([0.0, 0.5]).bool().tolist()
      [False, True]
    """
    return self.cast(dtypes.bool)

  def short(self) -> Self:
    """Cast to int16, floats toward zero.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.9, -1.9]).short().tolist()
      [1, -1]
    """
    return self.cast(dtypes.int16)

  def int(self) -> Self:
    """Cast to int32, floats toward zero.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.9, -1.9]).int().tolist()
      [1, -1]
    """
    return self.cast(dtypes.int32)

  def long(self) -> Self:
    """Cast to int64, floats toward zero.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.9, -1.9]).long().tolist()
      [1, -1]
    """
    return self.cast(dtypes.int64)
