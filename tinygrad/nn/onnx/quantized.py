"""Integers that stand for floats, and products of them."""

from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.values import OPS, lined, saturating_cast, tensor_dtype
from tinygrad.nn.onnx.windows import Conv
from tinygrad.tensor import Tensor


def _laid_beside(t: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
  """Scales or zero points, shaped like x: one for all, one an index of `axis`, or one a block along it."""
  if t.ndim <= 1:
    return t.reshape(()) if t.numel() == 1 else lined(t, x, axis)
  return t.repeat_interleave(block, axis).shrink([(0, n) for n in x.shape])


def QuantizeLinear(
  x: Tensor,
  scale: Tensor,
  zero: Any = None,
  axis: int = 1,
  saturate: int = 1,
  block_size: int = 0,
  output_dtype: int = 0,
  precision: int = 0,
) -> Tensor:
  dtype = zero.dtype if zero is not None else tensor_dtype(output_dtype) if output_dtype else dtypes.uint8
  y = x.float().div(_laid_beside(scale, x, axis, block_size).float())
  if dtypes.is_float(dtype):
    return saturating_cast(y, dtype, saturate)
  y = y.round() if zero is None else y.round().add(_laid_beside(zero, x, axis, block_size).float())
  return y.clamp(dtypes.min(dtype), dtypes.max(dtype)).cast(dtype)


def DequantizeLinear(
  x: Tensor, scale: Tensor, zero: Any = None, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Tensor:
  y = x.float() if zero is None else x.float().sub(_laid_beside(zero, x, axis, block_size).float())
  y = y.mul(_laid_beside(scale, x, axis, block_size).float())
  return y.cast(tensor_dtype(output_dtype) if output_dtype else scale.dtype)


def MatMulInteger(a: Tensor, b: Tensor, a_zero: Any = None, b_zero: Any = None) -> Tensor:
  rows = a_zero.unsqueeze(-1) if a_zero is not None and a_zero.ndim else a_zero
  return a.int().sub(0 if rows is None else rows.int()).matmul(b.int().sub(0 if b_zero is None else b_zero.int()))


def ConvInteger(x: Tensor, w: Tensor, x_zero: Any = None, w_zero: Any = None, **conv: Any) -> Tensor:
  columns = lined(w_zero, w, 0) if w_zero is not None and w_zero.ndim else w_zero
  centred = w.int().sub(0 if columns is None else columns.int())
  return Conv(x.int().sub(0 if x_zero is None else x_zero.int()), centred, **conv)


def QLinearMatMul(
  a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor, scale: Tensor, zero: Tensor
) -> Tensor:
  y = MatMulInteger(a, b, a_zero, b_zero).float().mul(a_scale.float()).mul(b_scale.float())
  return QuantizeLinear(y, scale, zero)


def QLinearConv(
  x: Tensor,
  x_scale: Tensor,
  x_zero: Tensor,
  w: Tensor,
  w_scale: Tensor,
  w_zero: Tensor,
  scale: Tensor,
  zero: Tensor,
  bias: Any = None,
  **conv: Any,
) -> Tensor:
  y = ConvInteger(x, w, x_zero, w_zero, **conv)
  y = y if bias is None else y.add(lined(bias, y))
  return QuantizeLinear(y.float().mul(x_scale).mul(lined(w_scale, y) if w_scale.ndim else w_scale), scale, zero)


FUNCTIONS = QuantizeLinear, DequantizeLinear, MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv
OPS |= {f.__name__: f for f in FUNCTIONS}
