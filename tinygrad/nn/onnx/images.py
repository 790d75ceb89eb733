"""Images resampled, and boxes in them."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.helpers import numpy
from tinygrad.nn.onnx.values import OPS, along, array_beside, one
from tinygrad.tensor import Tensor


def GridSample(
  x: Tensor, grid: Tensor, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
  lengths, flat = x.shape[2:], x.flatten(2)
  points = grid.reshape(grid.shape[0], 1, -1, len(lengths)).float()
  taps: list[list[tuple[Tensor, Tensor]]] = []  # for each dim the (place, weight) of its neighbours
  for d, n in enumerate(lengths):
    at = points[..., len(lengths) - 1 - d].add(1).mul(((n - 1) if align_corners else n) / 2)
    at = at if align_corners else at.sub(0.5)
    if mode == "nearest":
      taps.append([(at.round(), at.ones_like())])
      continue
    low = at.floor()
    t = at.sub(low)
    near = [(k, t.sub(k).abs()) for k in ((0, 1) if mode.endswith("linear") else (-1, 0, 1, 2))]
    taps.append([(low.add(k), s.sub(1, reverse=True) if len(near) == 2 else _keys(s)) for k, s in near])
  total = x.zeros_like()[..., :0].sum()
  for combination in itertools.product(*taps):
    index, weight = Tensor.zeros(1, dtype=dtypes.int32), Tensor.ones(1)
    for n, (place, w) in zip(lengths, combination):
      if padding_mode == "reflection":  # at the centres of the first and last element, or at their outer edges
        first, span = (0.0, n - 1) if align_corners else (-0.5, n)
        turn = place.sub(first).abs().mod(2 * max(1, span))
        place = turn.minimum(turn.sub(2 * max(1, span), reverse=True)).add(first)
      elif padding_mode == "zeros":
        w = place.ge(0).bitwise_and(place.lt(n)).where(w, 0)
      index, weight = index.mul(n).add(place.clamp(0, n - 1).int()), weight.mul(w)
    total = total.add(flat.gather(2, index.expand(*x.shape[:2], index.shape[-1])).mul(weight))
  return total.cast(x.dtype).reshape((*x.shape[:2], *grid.shape[1:-1]))


def _keys(t: Tensor, a: float = -0.75) -> Tensor:
  """`_cubic`, of a Tensor of distances less than 2."""
  near, far = t.mul(a + 2).sub(a + 3).mul(t).mul(t).add(1), t.sub(5).mul(t).add(8).mul(t).sub(4).mul(a)
  return t.le(1).where(near, far)


def NonMaxSuppression(
  boxes: Tensor,
  scores: Tensor,
  max_boxes: Any = 0,
  max_overlap: Any = 0.0,
  least: Any = None,
  center_point_box: int = 0,
) -> Any:
  """Read to the host: how many boxes are selected depends on their numbers."""
  b, s = boxes.numpy(), scores.numpy()
  half = b[..., 2:] / 2
  corners = (b[..., :2] - half, b[..., :2] + half) if center_point_box else (b[..., :2], b[..., 2:])
  low, high = numpy.minimum(*corners), numpy.maximum(*corners)
  area, chosen = (high - low).prod(-1), list[tuple[int, int, int]]()
  for n, c in itertools.product(*map(range, s.shape[:2])):
    kept = list[int]()
    for i in numpy.argsort(-s[n, c], kind="stable"):
      if len(kept) < one(max_boxes) and (least is None or s[n, c, i] > one(least)):
        sides = (numpy.minimum(high[n, i], high[n, kept]) - numpy.maximum(low[n, i], low[n, kept])).clip(0)
        both = sides.prod(-1)
        if not (both > one(max_overlap or 0.0) * (area[n, i] + area[n, kept] - both)).any():
          kept.append(int(i))
    chosen += [(n, c, i) for i in kept]
  return numpy.array(chosen, numpy.int64).reshape(-1, 3)


def _cubic(t: Any, a: float) -> Any:
  """The piecewise cubic of Keys (1981) at a distance t."""
  near, far = ((a + 2) * t - (a + 3)) * t * t + 1, a * (((t - 5) * t + 8) * t - 4)
  return (t <= 1) * near + ((t > 1) & (t < 2)) * far


def _positions(n: int, m: int, scale: float, mode: str, roi: Sequence[float]) -> Any:
  """Where in n elements each of m lies."""
  i = numpy.arange(m)
  if mode == "align_corners":
    return i * (n - 1) / (n * scale - 1) if m > 1 else i * 0.0
  if mode == "asymmetric":
    return i / scale
  if mode == "tf_crop_and_resize":
    first, last = roi[0] * (n - 1), roi[1] * (n - 1)
    return first + i * (last - first) / (m - 1) if m > 1 else (i + 0.5) * (first + last)
  if mode == "pytorch_half_pixel" and m == 1:
    return i * 0.0
  middle = n / 2 * (1 - m / (scale * n)) if mode == "half_pixel_symmetric" else 0.0
  return middle + (i + 0.5) / scale - 0.5


def _weights(at: Any, n: int, scale: float, cubic: float | None, outside: bool) -> Any:
  """(len(at), n): how much of each element goes into each result; `scale` < 1 widens the window. Elements beyond the
  ends are those at the ends, or (`outside` False) none."""
  reach = math.ceil(2 / scale) + 1
  places = numpy.arange(-reach, n + reach)
  t = numpy.abs(at[:, None] - places) * scale
  w = numpy.maximum(0, 1 - t) if cubic is None else _cubic(t, cubic)
  w = w if outside else w * ((places >= 0) & (places < n))
  w = w / w.sum(1, keepdims=True)
  folded = numpy.zeros((n, len(at)))
  numpy.add.at(folded, places.clip(0, n - 1), w.T)
  return folded.T.astype(numpy.float32)


def Resize(
  x: Tensor,
  roi: Any = None,
  scales: Any = None,
  sizes: Any = None,
  antialias: int = 0,
  axes: Any = None,
  coordinate_transformation_mode: str = "half_pixel",
  cubic_coeff_a: float = -0.75,
  exclude_outside: int = 0,
  extrapolation_value: float = 0.0,
  keep_aspect_ratio_policy: str = "stretch",
  mode: str = "nearest",
  nearest_mode: str = "round_prefer_floor",
  opset: int = 11,
) -> Tensor:
  if opset < 11:  # (x, scales)
    scales, coordinate_transformation_mode, nearest_mode = scales or roi, "asymmetric", "floor"
  dims = [a % x.ndim for a in axes] if axes else list(range(x.ndim))
  lengths = [x.numpy_shape()[d] for d in dims]
  if sizes:
    scales = [m / n for m, n in zip(sizes, lengths)]
    if keep_aspect_ratio_policy != "stretch":
      scales = [(min if keep_aspect_ratio_policy == "not_larger" else max)(scales)] * len(dims)
      sizes = [math.floor(n * s + 0.5) for n, s in zip(lengths, scales)]
  beyond, y = numpy.zeros(()), x
  for i, (d, n, s) in enumerate(zip(dims, lengths, scales)):
    m = sizes[i] if sizes else math.floor(n * s)
    area = (roi[i], roi[i + len(dims)]) if roi and coordinate_transformation_mode.startswith("tf") else (0.0, 1.0)
    at = _positions(n, m, s, coordinate_transformation_mode, area)
    beyond = beyond[..., None] | ((at < 0) | (at > n - 1)) if i else (at < 0) | (at > n - 1)
    if m == n and numpy.array_equal(at, numpy.arange(n)):
      continue
    if mode == "nearest":
      low, high = numpy.floor(at), numpy.ceil(at)
      rounded = {"floor": low, "ceil": high, "round_prefer_floor": numpy.ceil(at - 0.5)}
      places = rounded.get(nearest_mode, numpy.floor(at + 0.5)).clip(0, n - 1)
      y = along(y, d, array_beside(places.astype(numpy.int32), x))
    else:
      cubic = cubic_coeff_a if mode == "cubic" else None
      w = _weights(at, n, min(1, s) if antialias else 1, cubic, not exclude_outside)
      y = y.float().transpose(d, -1).matmul(array_beside(w.T.copy(), x)).transpose(d, -1)
  if coordinate_transformation_mode.startswith("tf") and beyond.any():
    y = array_beside(beyond, x).where(extrapolation_value, y)
  return (y if mode == "nearest" or dtypes.is_float(x.dtype) else y.round()).cast(x.dtype)


OPS |= {f.__name__: f for f in (GridSample, NonMaxSuppression, Resize)} | {
  "Upsample": lambda x, scales, mode="nearest": Resize(x, None, scales, mode=mode, opset=9),
}
