"""Convolution and pooling of any rank, through sliding windows (EXPAND and WINDOW): no window is ever copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import ceildiv, make_tuple, prod
from tinygrad.mixin.base import Scalar, mismatch, sint
from tinygrad.mixin.linalg import Linalg, contract

Ints = int | Sequence[int]


def _pad_amounts(padding: Ints, rank: int, name: str) -> list[tuple[int, int]]:
  """One int, one a dim (first dim first), or (before, after) of the last dim, then of the last but one, …: as pairs,
  first dim first."""
  if isinstance(padding, int):
    return [(padding, padding)] * rank
  amounts = list(padding)
  if len(amounts) == rank:
    return [(p, p) for p in amounts]
  if len(amounts) != 2 * rank:
    rule = f"must be one int, {rank} ints, or {2 * rank} (before and after, last dim first)"
    raise ValueError(f"{name}: padding {padding} {rule}")
  return [(amounts[2 * i], amounts[2 * i + 1]) for i in range(rank)][::-1]


class Convolution(Linalg):
  __slots__ = ()

  # ---- convolution

  def conv2d(
    self,
    weight: Self,
    bias: Self | None = None,
    groups: int = 1,
    stride: Ints = 1,
    dilation: Ints = 1,
    padding: Ints = 0,
    dtype: DType | str | None = None,
  ) -> Self:
    """Cross-correlation of any rank: x (b, groups*cin, *dims), weight (cout, cin, *kernel), bias (cout,) -> (b, cout,
    *positions).

    Half types accumulate in float32. ValueError if the channels do not agree.
    """
    rank = weight.ndim - 2
    if rank < 1 or self.ndim != weight.ndim or (bias is not None and bias.shape != weight.shape[:1]):
      tensors = [self.uop, weight.uop] + ([bias.uop] if bias is not None else [])
      rule = "needs x (b, c, *dims), weight (cout, c/groups, *kernel) of as many dims, bias (cout,)"
      mismatch("conv2d", rule, tensors, "add the missing dims with unsqueeze")
    cout, cin, kernel = int(weight.shape[0]), weight.shape[1], tuple(int(k) for k in weight.shape[2:])
    if groups < 1 or self.shape[1] != groups * cin or cout % groups:
      rule = f"with groups={groups} x must have {groups} * {cin} channels and the weight a multiple of {groups} outputs"
      mismatch("conv2d", rule, (self.uop, weight.uop), "check groups, and the order of dims: channels are dim 1")
    pads = _pad_amounts(padding, rank, "conv2d")
    x = self._pad_pairs(((0, 0), (0, 0), *pads), 0)._pool(kernel, stride, dilation)
    b, positions = x.shape[0], x.shape[2 : 2 + rank]
    # (b, group, output of the group, *positions, cin, *kernel)
    split = x.reshape((b, groups, cin, 1, *positions, *kernel))
    order = (0, 1, 3, *range(4, 4 + rank), 2, *range(4 + rank, 4 + 2 * rank))
    w = weight.reshape((1, groups, cout // groups, *(1,) * rank, cin, *kernel))
    wide = (b, groups, cout // groups, *positions, cin, *kernel)
    u = contract(split.permute(order).uop, w.uop, wide, tuple(range(3 + rank, 4 + 2 * rank)), dtype)
    y = self._new(u.reshape((b, cout, *positions)))
    return y if bias is None else y.add(bias.reshape((1, cout, *(1,) * rank)).cast(y.dtype))

  def conv_transpose2d(
    self,
    weight: Self,
    bias: Self | None = None,
    groups: int = 1,
    stride: Ints = 1,
    dilation: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
  ) -> Self:
    """The adjoint of `conv2d` in its input: weight (groups*cin, cout/groups, *kernel).

    A convolution of x, spread by the stride, with the flipped kernel.
    """
    rank = weight.ndim - 2
    if rank < 1 or self.ndim != weight.ndim or self.shape[1] != weight.shape[0] or self.shape[1] % groups:
      rule = "needs x (b, c, *dims) and weight (c, cout/groups, *kernel), c a multiple of groups"
      mismatch("conv_transpose2d", rule, (self.uop, weight.uop), "channels are dim 1 of x and dim 0 of the weight")
    strides, dilations = make_tuple(stride, rank), make_tuple(dilation, rank)
    extra = make_tuple(output_padding, rank)
    pads = _pad_amounts(padding, rank, "conv_transpose2d")
    kernel = tuple(int(k) for k in weight.shape[2:])
    x = self
    for i, s in enumerate(strides):
      if s > 1:  # s - 1 zeros between neighbours
        d = 2 + i
        n = x.shape[d]
        x = x.unsqueeze(d + 1)._pad_pairs(tuple((0, s - 1) if k == d + 1 else (0, 0) for k in range(x.ndim + 1)), 0)
        x = x.flatten(d, d + 1)._slice(d, 0, (n - 1) * s + 1)
    amounts = [((k - 1) * d - a, (k - 1) * d - b + e) for k, d, (a, b), e in zip(kernel, dilations, pads, extra)]
    x = x._pad_pairs(((0, 0), (0, 0), *amounts), 0)
    w = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(tuple(range(2, weight.ndim)))
    return x.conv2d(w, bias, groups, 1, dilation)

  # ---- pooling

  def _windows(
    self, kernel_size: Ints, stride: Ints | None, dilation: Ints, padding: Ints, ceil_mode: bool, fill: Scalar
  ) -> Self:
    """(*batch, *positions, *kernel), with `fill` around."""
    kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    rank = len(kernel)
    if self.ndim < rank:
      mismatch("pool", f"a window {kernel} needs at least {rank} dims", [self.uop], "give a kernel_size of fewer dims")
    strides = make_tuple(kernel if stride is None else stride, rank)
    pads = _pad_amounts(padding, rank, "pool")
    if ceil_mode:  # one more window where it starts inside the tensor or its padding before
      for i, (k, s, d) in enumerate(zip(kernel, strides, make_tuple(dilation, rank))):
        n, (before, after) = self.shape[self.ndim - rank + i], pads[i]
        span = n + before + after - d * (k - 1) - 1
        count = ceildiv(span, s) + 1
        if (count - 1) * s >= n + before:
          count -= 1
        pads[i] = (before, after + max(0, (count - 1) * s - span))
    x = self._pad_pairs((*((0, 0),) * (self.ndim - rank), *pads), fill)
    return x._pool(kernel, strides, dilation)

  def max_pool2d(
    self,
    kernel_size: Ints = (2, 2),
    stride: Ints | None = None,
    dilation: Ints = 1,
    padding: Ints = 0,
    ceil_mode: bool = False,
    return_indices: bool = False,
  ) -> Self | tuple[Self, Self]:
    """The greatest element of each window of the last dims; the stride is the window unless given.

    With `return_indices` also the (first) place of it in the flattened dims, int32.
    """
    rank = 2 if isinstance(kernel_size, int) else len(kernel_size)
    least = dtypes.min(self.dtype)
    windows = self._windows(kernel_size, stride, dilation, padding, ceil_mode, least)
    axes = tuple(range(windows.ndim - rank, windows.ndim))
    values = windows.max(axes)
    if not return_indices:
      return values
    size = prod(self.numpy_shape()[-rank:])
    backwards = self.arange(size, 0, -1).reshape(self.shape[-rank:])
    at = backwards._windows(kernel_size, stride, dilation, padding, ceil_mode, 0)
    hit = windows.eq(values.reshape((*values.shape, *(1,) * rank)))
    return values, hit.where(at, 0).max(axes).sub(size, reverse=True)

  def max_unpool2d(
    self,
    indices: Self,
    kernel_size: Ints = (2, 2),
    stride: Ints | None = None,
    dilation: Ints = 1,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
  ) -> Self:
    """Zeros with each element at the place that `max_pool2d` tells; the length of the last dims is what a pool of these
    windows has unless `output_size` says it."""
    kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    rank = len(kernel)
    if indices.shape != self.shape or self.ndim < rank:
      mismatch("max_unpool2d", "needs the indices of each element", (self.uop, indices.uop), "give both of max_pool2d")
    strides, pads = make_tuple(kernel if stride is None else stride, rank), _pad_amounts(padding, rank, "max_unpool2d")
    lead, dims = self.shape[: self.ndim - rank], self.shape[self.ndim - rank :]
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, make_tuple(dilation, rank))]
    size: list[sint] = [(n - 1) * s - a - b + k for n, k, s, (a, b) in zip(dims, spans, strides, pads)]
    size = size if output_size is None else list(output_size[-rank:])
    flat = (prod(lead), prod(dims))
    empty = self.full((flat[0], prod(size)), 0, self.dtype)
    return empty.scatter(1, indices.reshape(flat), self.reshape(flat)).reshape((*lead, *size))

  def avg_pool2d(
    self,
    kernel_size: Ints = (2, 2),
    stride: Ints | None = None,
    dilation: Ints = 1,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
  ) -> Self:
    """The mean of each window of the last dims; the padding counts as zeros unless told otherwise (that of ceil_mode
    never counts)."""
    rank = 2 if isinstance(kernel_size, int) else len(kernel_size)
    axes = tuple(range(-rank, 0))
    pads = _pad_amounts(padding, rank, "pool")
    windows = self._windows(kernel_size, stride, dilation, padding, ceil_mode, 0)
    if not ceil_mode and (count_include_pad or not any(a or b for a, b in pads)):
      return windows.mean(axes)
    strides, dilations = make_tuple(kernel_size if stride is None else stride, rank), make_tuple(dilation, rank)
    counted = self.full((), 1.0, dtypes.float32, buffer=False)
    for n, (before, after), positions, k, s, d in zip(
      self.shape[-rank:], pads, windows.shape[-2 * rank : -rank], windows.shape[-rank:], strides, dilations
    ):  # the places of each window that count, dim by dim
      first, last = (0, before + n + after) if count_include_pad else (before, before + n)
      at = self.arange(positions).mul(s).unsqueeze(1).add(self.arange(k).mul(d))
      counted = counted.unsqueeze(-1).mul(at.ge(first).bitwise_and(at.lt(last)).sum(1))
    return windows.sum(axes).div(counted)

  def interpolate(self, size: tuple[int, ...], mode: str = "linear", align_corners: bool = False) -> Self:
    """The last dims resampled to `size`: "nearest", "nearest-exact" or "linear" (bilinear, …), as PyTorch does."""
    if mode not in ("nearest", "nearest-exact", "linear"):
      raise ValueError(f"interpolate: unknown mode {mode!r}\n  fix: use linear, nearest or nearest-exact")
    lengths = list(size) if isinstance(size, (tuple, list)) else []
    if not 0 < len(lengths) <= self.ndim - 2 or not all(isinstance(s, int) and s > 0 for s in lengths):
      rule = "must be positive lengths of the last dims of (b, c, *dims)"
      raise ValueError(f"interpolate: size {size} {rule}, here {self.shape}")
    x = self
    for dim, new in zip(range(self.ndim - len(size), self.ndim), size):
      old = int(self.shape[dim])
      place = self.arange(new).float()
      if mode != "linear":
        x = x._along(dim, place.add(0 if mode == "nearest" else 0.5).mul(old / new).floor())
        continue
      at = place.mul((old - 1) / max(1, new - 1)) if align_corners else place.add(0.5).mul(old / new).sub(0.5)
      at = at.clamp(0, old - 1)
      low = at.floor()
      part = at.sub(low).reshape(tuple(new if i == dim else 1 for i in range(self.ndim)))
      x = x._along(dim, low).lerp(x._along(dim, low.add(1).minimum(old - 1)), part.cast(x.dtype))
    return x

  def _along(self, dim: int, places: Self) -> Self:
    """The elements at `places` (a vector) along `dim`."""
    return self.transpose(0, dim)._rows(places.int().clamp(0, self.shape[dim] - 1)).transpose(0, dim)
