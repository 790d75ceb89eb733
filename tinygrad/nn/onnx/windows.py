"""Convolutions and pools: operators whose attributes say how windows lie."""

import math
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.nn.onnx.values import OPS, lined
from tinygrad.tensor import Tensor


def _window_settings(
  x: Tensor, kernel_shape: Any, auto_pad: str = "NOTSET", dilations: Any = None, pads: Any = None, strides: Any = None
) -> tuple[Any, Any, Any, Any]:
  """(kernel, strides, dilations, padding as this library has it: before and after, the last dim first)."""
  kernel, rank = tuple(kernel_shape), len(kernel_shape)
  strides, dilations = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
  pads = pads if pads and auto_pad == "NOTSET" else [0] * 2 * rank
  both = [(pads[i], pads[i + rank]) for i in range(rank)]
  if auto_pad.startswith("SAME"):
    fit = zip(x.shape[2:], kernel, strides, dilations)
    total = [max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n) for n, k, s, d in fit]
    both = [halves(t, auto_pad) for t in total]
  return kernel, strides, dilations, tuple(p for pair in reversed(both) for p in pair)


def halves(n: int, auto_pad: str) -> tuple[int, int]:
  return (n // 2, n - n // 2) if auto_pad == "SAME_UPPER" else (n - n // 2, n // 2)


def Conv(x: Tensor, w: Tensor, b: Any = None, group: int = 1, kernel_shape: Any = None, **window: Any) -> Tensor:
  _, *rest = _window_settings(x, w.shape[2:], **window)
  return x.conv2d(w, b, group, *rest)


def ConvTranspose(
  x: Tensor,
  w: Tensor,
  b: Any = None,
  group: int = 1,
  kernel_shape: Any = None,
  output_padding: Any = None,
  output_shape: Any = None,
  auto_pad: str = "NOTSET",
  pads: Any = None,
  **window: Any,
) -> Tensor:
  if not output_shape and not auto_pad.startswith("SAME"):
    _, strides, dilations, padding = _window_settings(x, w.shape[2:], pads=pads, **window)
    return x.conv_transpose2d(w, b, group, strides, dilations, padding, output_padding or 0)
  kernel, strides, dilations, _ = _window_settings(x, w.shape[2:], **window)
  y = x.conv_transpose2d(w, None, group, strides, dilations, 0, output_padding or 0)
  wanted = output_shape[-len(kernel) :] if output_shape else [n * s for n, s in zip(x.shape[2:], strides)]
  both = [halves(n - m, auto_pad) for n, m in zip(y.shape[2:], wanted)]
  y = y.pad([None, None, *((-before, -after) for before, after in both)])
  return y if b is None else y.add(lined(b, y))


def MaxPool(x: Tensor, ceil_mode: int = 0, storage_order: int = 0, **window: Any) -> Any:
  y, places = x.max_pool2d(*_window_settings(x, **window), ceil_mode=bool(ceil_mode), return_indices=True)
  planes = Tensor.arange(prod(x.shape[:2])).reshape((*x.shape[:2], *(1,) * (x.ndim - 2)))
  if storage_order:  # the place counted with the first dim of the plane fastest
    h, w = x.shape[2:]
    places = places.mod(w).mul(h).add(places.div(w, rounding_mode="floor"))
  return y, planes.mul(prod(x.shape[2:])).add(places).cast(dtypes.int64)


def AveragePool(x: Tensor, ceil_mode: int = 0, count_include_pad: int = 0, **window: Any) -> Tensor:
  return x.avg_pool2d(
    *_window_settings(x, **window), ceil_mode=bool(ceil_mode), count_include_pad=bool(count_include_pad)
  )


def LpPool(x: Tensor, ceil_mode: int = 0, p: int = 2, **window: Any) -> Tensor:
  windows = x.abs().pow(p)._windows(*_window_settings(x, **window), bool(ceil_mode), 0, 0)
  return windows.sum(tuple(range(x.ndim, windows.ndim))).pow(1 / p)


def MaxUnpool(x: Tensor, places: Tensor, output_shape: Any = None, **window: Any) -> Tensor:
  kernel, strides, _, pads = _window_settings(x, **window)
  around = [pads[i] + pads[i + 1] for i in range(0, len(pads), 2)][::-1]
  inner = [(n - 1) * s + k - p for n, s, k, p in zip(x.shape[2:], strides, kernel, around)]
  shape = (*x.shape[:2], *inner)
  y = Tensor.zeros(prod(shape), dtype=x.dtype).scatter(0, places.flatten(), x.flatten()).reshape(shape)
  return y if output_shape is None else y.pad_to(tuple(output_shape))


def Col2Im(x: Tensor, image_shape: list[int], block_shape: list[int], **window: Any) -> Tensor:
  """The adjoint of taking windows: a transposed convolution with one output an element of the window."""
  size, rank = prod(block_shape), len(block_shape)
  kernel, strides, dilations, _ = _window_settings(x, block_shape, **window)
  pads = window.get("pads") or [0] * 2 * rank
  span = [n + pads[i] + pads[i + rank] for i, n in enumerate(image_shape)]
  positions = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(span, dilations, kernel, strides)]
  groups = x.numpy_shape()[1] // size
  weight = Tensor.eye(size, dtype=x.dtype).reshape((size, 1, *kernel)).repeat(groups, *(1,) * (rank + 1))
  y = x.reshape((x.shape[0], groups * size, *positions)).conv_transpose2d(weight, None, groups, strides, dilations)
  cut = [(-pads[i], n - pads[i + rank] - m) for i, (n, m) in enumerate(zip(span, y.shape[2:]))]
  return y.pad([None, None, *cut])


OPS |= {f.__name__: f for f in (Conv, ConvTranspose, MaxPool, AveragePool, LpPool, MaxUnpool, Col2Im)} | {
  "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.ndim)), True),
  "GlobalMaxPool": lambda x: x.max(tuple(range(2, x.ndim)), True),
}
