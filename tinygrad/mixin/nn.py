"""What neural networks are made of: convolution and pooling of any rank, normalisation, dropout, attention, losses.

Windows are EXPAND and WINDOW: none is ever copied.
"""

import functools
import itertools
import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from tinygrad.device import HOST_DEVICE
from tinygrad.dtype import dtypes, least_upper_dtype
from tinygrad.helpers import TRAINING, ceildiv, make_tuple, prod
from tinygrad.mixin.base import DTypeArg, broadcast_shape, check_choice, mismatch, python_number, sint, told_of
from tinygrad.mixin.linalg import Linalg, contract
from tinygrad.mixin.math import in_float32
from tinygrad.uop import Ops, UOp, buffer_of

Ints = int | Sequence[int]
Reduction = Literal["mean", "sum", "none"]
REPEATED = 40  # times up to which i * float32(1 / times), as the nearest is found, is never less than the whole number


def _pad_amounts(padding: Ints, rank: int, name: str) -> list[tuple[int, int]]:
  """One int, one a dim (first dim first), or (before, after) of the last dim, then of the last but one, …: as pairs,
  first dim first."""
  amounts = make_tuple(padding, rank)
  if len(amounts) == rank:
    return [(p, p) for p in amounts]
  if len(amounts) != 2 * rank:
    rule = f"must be one int, {rank} ints, or {2 * rank} (before and after, last dim first)"
    raise ValueError(f"{name}: padding {padding} {rule}\n  fix: padding={(0,) * rank}, or others as many")
  return [(amounts[2 * i], amounts[2 * i + 1]) for i in range(rank)][::-1]


def _known(u: UOp) -> Any:
  """The array of a tensor that is one on the host as yet (whatever device it is to go to); None of others."""
  while u.op is Ops.MOVE:
    u = u.src[0]
  return buffer_of(u).handles[0] if u.op is Ops.BUFFER and u.device == HOST_DEVICE else None


def _named(f: Any) -> str:
  return f"the class {f.__name__}" if isinstance(f, type) else f"{reprlib.repr(f)} of type {type(f).__name__}"


def _check_function(i: int, f: Any) -> None:
  """TypeError unless element i of a sequence is a function of a tensor; of a class there is a layer to make."""
  of_class = isinstance(f, type) and not issubclass(f, Linalg)
  if of_class or not callable(f):
    fix = f"{f.__name__}(..)  # a layer" if of_class else "[f for f in ll if callable(f)]"
    raise TypeError(f"sequential: element {i} is {_named(f)}, and no function of a tensor\n  fix: {fix}")


def _filled(w: Linalg, dim: int, n: sint) -> Any:
  """Zeros after its elements, or less of them, so that a dim has length n."""
  return w.pad_to([n if i == dim else None for i in range(w.ndim)])


@dataclass(frozen=True, slots=True)
class _Phases:
  """Results of a transposed convolution at the positions r, r + stride, … along a dim, for `count` neighbouring r: each
  takes `taps` weights, a stride apart, the first r's from `start` on, of the input with `pads` around it."""

  start: int
  count: int
  taps: int
  pads: tuple[int, int]


def _phases(k: int, stride: int, dilation: int, before: int, more: int) -> list[_Phases]:
  """All r below the stride, those together that have as many weights, of which there are k: y[o] is the sum of x[i]
  w[o + before - stride*i], at n + more - 1 positions a phase of an input of n."""
  whole, lack = ceildiv(before, stride), -before % stride

  def kind(r: int) -> tuple[bool, int]:
    return r < lack, max(ceildiv(k - (r - lack) % stride, stride), 1)

  found, starts = [], sorted({0, lack, (lack + k) % stride})  # between these all r are of one kind
  for (later, taps), rs in itertools.groupby(starts, kind):
    first = next(rs)
    past = min((r for r in starts if r > first and kind(r) != (later, taps)), default=stride)
    pads = ((taps - 1) * dilation + later - whole, more - 1 + whole - later)
    found.append(_Phases((first - lack) % stride, past - first, taps, pads))
  return found


def _weights_of(w: Any, stride: int, dim: int, p: _Phases) -> Any:
  """The weights of phases along a dim: (.., taps in the order of the input, phases, ..) in its place."""
  start = min(p.start, w.shape[dim])
  w = w._slice(dim, start, min(w.shape[dim], start + stride * (p.taps - 1) + p.count))
  return _filled(w, dim, p.taps * stride).unflatten(dim, (p.taps, stride)).flip(dim)._slice(dim + 1, 0, p.count)


class NN(Linalg):
  __slots__ = ()

  def sequential(self, ll: list[Callable[[Self], Self]]) -> Self:
    """The functions applied one after the other. TypeError for what is no list of functions.
    Shape: `(*dims) -> (*last)`, as the last function gives.

    Examples:
      >>> Tensor([-1.0, 2.0]).sequential([Tensor.relu, Tensor.square]).tolist()
      [0.0, 4.0]
    """
    if not isinstance(ll, Iterable):
      raise TypeError(f"sequential: {_named(ll)} is no list of functions\n  fix: x.sequential([f, g])")
    for i, f in enumerate(ll):
      _check_function(i, f)
    return functools.reduce(lambda x, f: f(x), ll, self)

  # ---- convolution

  def conv2d(
    self,
    weight: Self,
    bias: Self | None = None,
    groups: int = 1,
    stride: Ints = 1,
    dilation: Ints = 1,
    padding: Ints = 0,
    dtype: DTypeArg = None,
  ) -> Self:
    """Cross-correlation of any rank: x (b, groups*cin, *dims), weight (cout, cin, *kernel), bias (cout,) -> (b, cout,
    *positions).

    Half types accumulate in float32. ValueError if the channels do not agree.
    Shape: `(b, groups*cin, *dims), (cout, cin, *kernel), (cout) -> (b, cout, *positions)`.

    Examples:
      >>> Tensor.ones(1, 3, 8, 8).conv2d(Tensor.ones(4, 3, 3, 3), padding=1).shape
      (1, 4, 8, 8)
    """
    rank = weight.ndim - 2
    if rank < 1 or self.ndim != weight.ndim or (bias is not None and bias.shape != weight.shape[:1]):
      tensors = [self.uop, weight.uop] + ([bias.uop] if bias is not None else [])
      rule = "needs x (b, c, *dims), weight (cout, c/groups, *kernel) of as many dims, bias (cout,)"
      mismatch("conv2d", rule, tensors, "add the missing dims with unsqueeze")
    cout, cin, *kernel = weight.shape
    if groups < 1 or self.shape[1] != groups * cin or cout % groups:
      rule = f"with groups={groups} x must have {groups} * {cin} channels and the weight a multiple of {groups} outputs"
      mismatch("conv2d", rule, (self.uop, weight.uop), "check groups, and the order of dims: channels are dim 1")
    pads = _pad_amounts(padding, rank, "conv2d")
    windows = self._pad_pairs(((0, 0), (0, 0), *pads), 0)._pool(tuple(map(int, kernel)), stride, dilation)
    with told_of("conv2d", self.uop, weight.uop):
      y = windows._convolved(weight.reshape((groups, cout // groups, cin, *kernel)), dtype)
    return y if bias is None else y.add(bias.reshape((-1, *(1,) * rank)).cast(y.dtype))

  def _convolved(self, weight: Self, dtype: DTypeArg = None) -> Self:
    """Windows (b, groups*cin, *positions, *kernel) · weight (groups, outputs, cin, *kernel) -> (b, groups*outputs,
    *positions)."""
    groups, outputs, cin, *kernel = weight.shape
    rank = len(kernel)
    b, positions = self.shape[0], self.shape[2 : 2 + rank]
    # (b, group, output of the group, *positions, cin, *kernel)
    split = self.reshape((b, groups, cin, 1, *positions, *kernel))
    order = (0, 1, 3, *range(4, 4 + rank), 2, *range(4 + rank, 4 + 2 * rank))
    w = weight.reshape((1, groups, outputs, *(1,) * rank, cin, *kernel))
    wide = (b, groups, outputs, *positions, cin, *kernel)
    u = contract(split.permute(order).uop, w.uop, wide, tuple(range(3 + rank, 4 + 2 * rank)), dtype)
    return self._new(u.reshape((b, groups * outputs, *positions)))

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

    What lands at the positions r, r + stride, … comes of every stride-th weight alone: a convolution of its own. Those
    of as many weights are computed as channels of one, between which the positions then alternate
    (https://arxiv.org/abs/1609.05158).
    ValueError if the channels do not agree.
    Shape: `(b, groups*cin, *dims), (groups*cin, cout, *kernel), (groups*cout) -> (b, groups*cout, *positions)`.

    Examples:
      >>> Tensor.ones(1, 4, 4, 4).conv_transpose2d(Tensor.ones(4, 3, 2, 2), stride=2).shape
      (1, 3, 8, 8)
    """
    rank = weight.ndim - 2
    if rank < 1 or self.ndim != weight.ndim or self.shape[1] != weight.shape[0] or groups < 1 or self.shape[1] % groups:
      rule = "needs x (b, c, *dims) and weight (c, cout/groups, *kernel), c a multiple of groups"
      mismatch("conv_transpose2d", rule, (self.uop, weight.uop), "channels are dim 1 of x and dim 0 of the weight")
    strides, dilations = self._steps("conv_transpose2d", rank, stride, dilation)
    extra = make_tuple(output_padding, rank)
    w, ways, steps, past = weight.unflatten(0, (groups, -1)).transpose(1, 2), [], [], []
    each = zip(weight.shape[2:], strides, dilations, _pad_amounts(padding, rank, "conv_transpose2d"), extra)
    for i, (k, s, d, (before, after), more) in enumerate(each):
      span = d * (k - 1) + 1
      if s > 1 and d > 1:  # zeros between the weights
        dim = 3 + i
        w, k, d = _filled(_filled(w.unsqueeze(dim + 1), dim + 1, d).flatten(dim, dim + 1), dim, span), span, 1
      last = span + more - before - after
      ways.append(_phases(int(k), s, d, before, ceildiv(last, s)))
      steps.append(d)
      past.append((0, -(-last % s)))
    y = self._of_phases(w, strides, steps, ways, ())
    y = y.permute((0, 1, *(x for i in range(rank) for x in (2 + rank + i, 2 + i))))
    for i in range(rank):
      y = y.flatten(2 + i, 3 + i)
    y = y._pad_pairs(((0, 0), (0, 0), *past), 0)
    return y if bias is None else y.add(bias.reshape((-1, *(1,) * rank)).cast(y.dtype))

  def _of_phases(
    self, w: Self, strides: Sequence[int], steps: Sequence[int], ways: list[list[_Phases]], chosen: tuple[_Phases, ...]
  ) -> Self:
    """The chosen phases of the first dims, with all of the others: (b, c, *phases, *positions)."""
    if (i := len(chosen)) < (rank := len(ways)):
      first, *others = [self._of_phases(w, strides, steps, ways, (*chosen, p)) for p in ways[i]]
      return first.cat(*others, dim=2 + i) if others else first
    for i, p in enumerate(chosen):
      w = _weights_of(w, strides[i], 3 + 2 * i, p)
    w = w.permute((0, 1, *range(4, 4 + 2 * rank, 2), 2, *range(3, 3 + 2 * rank, 2))).flatten(1, 1 + rank)
    windows = self._pad_pairs(((0, 0), (0, 0), *(p.pads for p in chosen)), 0)
    y = windows._pool(tuple([p.taps for p in chosen]), 1, steps)._convolved(w)
    y = y.unflatten(1, (-1, *(p.count for p in chosen)))
    return y if all(len(way) == 1 for way in ways) else y.contiguous()

  # ---- pooling

  def _windows(
    self, kernel: tuple[int, ...], stride: Ints | None, dilation: Ints, padding: Ints, ceil: bool, fill: Any, past: Any
  ) -> Self:
    """(*batch, *positions, *kernel), with `fill` around, and `past` where only `ceil` reaches."""
    rank = len(kernel)
    if self.ndim < rank:
      mismatch("pool", f"a window {kernel} needs at least {rank} dims", [self.uop], "give a kernel_size of fewer dims")
    strides, dilations = self._steps("pool", rank, kernel if stride is None else stride, dilation)
    pads = _pad_amounts(padding, rank, "pool")
    lead = ((0, 0),) * (self.ndim - rank)
    x = self._pad_pairs((*lead, *pads), fill)
    if ceil:  # one more window where it starts inside the tensor or its padding before
      more = []
      for n, (_, after), k, s, d in zip(x.shape[-rank:], pads, kernel, strides, dilations):
        span = n - d * (k - 1) - 1
        last = ceildiv(span, s) * s  # where the last window starts
        more.append((0, max(0, (last if last < n - after else last - s) - span)))
      x = x._pad_pairs((*lead, *more), past)
    return x._pool(kernel, strides, dilations)

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
    Shape: `(.., h, w) -> (.., height, width)`.

    Examples:
      >>> Tensor.arange(16).reshape(1, 1, 4, 4).max_pool2d().tolist()
      [[[[5, 7], [13, 15]]]]
    """
    kernel, least = make_tuple(kernel_size, 2), dtypes.min(self.dtype)
    how, axes = (kernel, stride, dilation, padding, ceil_mode), tuple(range(-len(kernel), 0))
    windows = self._windows(*how, least, least)
    values = windows.max(axes)
    if not return_indices:
      return values
    size = prod(dims := self.numpy_shape()[-len(kernel) :])
    at = self.arange(size).reshape(dims)._windows(*how, size, size)
    return values, windows.eq(values.reshape((*values.shape, *(1,) * len(kernel)))).where(at, size).min(axes)

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
    windows has unless `output_size` says it. ValueError unless `indices` has one for each element.
    Shape: `(.., h, w), (.., h, w) -> (.., height, width)`.

    Examples:
      >>> x, places = Tensor.arange(4).reshape(1, 1, 2, 2).max_pool2d(return_indices=True)
      >>> x.max_unpool2d(places).tolist()
      [[[[0, 0], [0, 3]]]]
    """
    kernel = make_tuple(kernel_size, 2)
    rank = len(kernel)
    if indices.shape != self.shape or self.ndim < rank:
      mismatch("max_unpool2d", "needs the indices of each element", (self.uop, indices.uop), "give both of max_pool2d")
    lead, dims = self.shape[: self.ndim - rank], self.shape[self.ndim - rank :]
    strides = make_tuple(kernel if stride is None else stride, rank)
    each = zip(dims, kernel, strides, make_tuple(dilation, rank), _pad_amounts(padding, rank, "max_unpool2d"))
    pooled = [(n - 1) * s - a - b + d * (k - 1) + 1 for n, k, s, d, (a, b) in each]
    size = output_size[-rank:] if output_size else pooled
    flat = (prod(lead), prod(dims))
    empty = self.full((flat[0], prod(size)), 0, self.dtype)
    return empty.scatter(1, indices.reshape(flat), self.reshape(flat)).reshape((*lead, *size))

  @in_float32
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
    never counts).
    Shape: `(.., h, w) -> (.., height, width)`.

    Examples:
      >>> Tensor.arange(16).float().reshape(1, 1, 4, 4).avg_pool2d().tolist()
      [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    kernel = make_tuple(kernel_size, 2)
    how, axes = (kernel, stride, dilation, padding, ceil_mode), tuple(range(-len(kernel), 0))
    windows = self._windows(*how, 0, 0)
    if not ceil_mode and (count_include_pad or not any(make_tuple(padding, 1))):
      return windows.mean(axes)
    ones = self.full(self.shape[-len(kernel) :], 1.0, dtypes.float32, buffer=False)
    return windows.sum(axes).div(ones._windows(*how, int(count_include_pad), 0).sum(axes))

  def interpolate(self, size: tuple[int, ...], mode: str = "linear", align_corners: bool = False) -> Self:
    """The last dims resampled to `size`: "nearest", "nearest-exact" or "linear" (bilinear, …), as PyTorch does, with
    any number of dims before them. Integers are rounded to the nearest.
    ValueError for a size that is not of positive lengths.
    Shape: `(.., *dims) -> (.., *size)`.

    Examples:
      >>> Tensor([[[0.0, 2.0]]]).interpolate((4,)).tolist()
      [[[0.0, 0.5, 1.5, 2.0]]]
    """
    if mode in ("bilinear", "trilinear"):
      raise ValueError(f'interpolate: mode {mode!r} is called "linear" for any number of dims\n  fix: mode="linear"')
    check_choice("interpolate", "mode", mode, "nearest", "nearest-exact", "linear")
    lengths = [python_number(n) for n in size] if isinstance(size, (tuple, list)) else []
    if not 0 < len(lengths) <= self.ndim or not all(isinstance(s, int) and s > 0 for s in lengths):
      rule = "must be positive lengths of the last dims"
      raise ValueError(
        f"interpolate: size {size!r} {rule}, here {self.shape}\n  fix: size={self.shape[-1:]}, or others like it"
      )
    if mode == "linear" and not dtypes.is_float(self.dtype):
      return self._float().interpolate(size, mode, align_corners).round().cast(self.dtype)
    x = self
    dims = [(new / max(self.numpy_shape()[d], 1), -d, new) for d, new in enumerate(size, self.ndim - len(size))]
    for _, d, new in sorted(dims):  # what grows most comes last, of equals the first: what is left is whole rows
      dim, old = -d, int(self.shape[-d])
      if new == old:
        continue
      if mode != "linear" and old and new % old == 0 and new // old <= REPEATED:
        x = x.repeat_interleave(new // old, dim)
        continue
      place = self.arange(new).cast(x.dtype if mode == "linear" and x.dtype is dtypes.float64 else dtypes.float32)
      if mode != "linear":
        place = place.add(0 if mode == "nearest" else 0.5).mul(old / new).floor()
        x = (x if x is self else x.contiguous())._along(dim, place)  # in its own order, not with the picked dim first
        continue
      at = place.mul((old - 1) / max(1, new - 1)) if align_corners else place.add(0.5).mul(old / new).sub(0.5)
      at = at.clamp(0, old - 1)
      low = at.floor()
      part = at.sub(low)._lined(dim, self.ndim).cast(x.dtype)
      first, second = x._along(dim, low), x._along(dim, low.add(1).minimum(old - 1))
      x = first.add(second.sub(first).mul(part))
    return x._value()

  def _along(self, dim: int, places: Self) -> Self:
    """The elements at `places` (a vector) along `dim`."""
    return self.transpose(0, dim)._rows(places.int().clamp(0, self.shape[dim] - 1)).transpose(0, dim)

  # ---- normalisation

  @in_float32
  def layernorm(self, axis: int | tuple[int, ...] = -1, eps: float = 1e-5) -> Self:
    """(x - mean) / sqrt(var + eps) along `axis` (https://arxiv.org/abs/1607.06450).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([[1.0, 3.0]]).layernorm().numpy().round(3))
      [[-1.  1.]]
    """
    y = self.sub(self.mean(axis, keepdim=True))
    return y.mul(y.square().mean(axis, keepdim=True).add(eps).rsqrt())

  def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self, axis: Ints = 1) -> Self:
    """(x - mean) * weight * invstd + bias, the parameters along `axis` (https://arxiv.org/abs/1502.03167).
    Shape: `(..), (c), (c), (c), (c) -> (..)`.

    Examples:
      >>> x = Tensor([[1.0], [3.0]])
      >>> x.batchnorm(None, None, Tensor([2.0]), Tensor([1.0])).tolist()
      [[-1.0], [1.0]]
    """
    axes = self._dims(axis)
    shape = tuple(n if i in axes else 1 for i, n in enumerate(self.shape))
    x = self.sub(mean.reshape(shape))
    scale = invstd.reshape(shape) if invstd.ndim == len(axes) else invstd
    y = x.mul(scale if weight is None else weight.reshape(shape).mul(scale))
    return y if bias is None else y.add(bias.reshape(shape))

  def dropout(self, p: float = 0.5) -> Self:
    """While training, zeros with probability p and the rest scaled by 1/(1-p)
    (https://jmlr.org/papers/v15/srivastava14a.html). ValueError unless p is within [0, 1].
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor.ones(4).dropout(0.5).tolist()  # outside of training
      [1.0, 1.0, 1.0, 1.0]
    """
    if not isinstance(p := python_number(p), (int, float)) or not 0 <= p <= 1:
      raise ValueError(f"dropout: the probability must be within [0, 1], got {p!r}\n  fix: p=0.5, or another in there")
    if not TRAINING.value or p == 0:
      return self._value()
    return self._always(0) if p == 1 else self.rand_like(dtype=dtypes.float32).ge(p).where(self.mul(1 / (1 - p)), 0)

  # ---- attention

  def scaled_dot_product_attention(
    self,
    key: Self,
    value: Self,
    attn_mask: Self | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
  ) -> Self:
    """softmax(q kᵀ / sqrt(d) + mask) v (https://arxiv.org/abs/1706.03762): q (.., heads, t, d), k and v (.., heads, s,
    d).

    `attn_mask`: bool (True attends) or added to the scores; `is_causal`: query i sees keys up to i, of those that the
    mask leaves; one that sees no key gives zeros. With `enable_gqa` several heads of q share one of k and v. ValueError
    for other shapes, and for head counts that do not divide.
    Shape: `(.., t, d), (.., s, d), (.., s, v), (.., t, s) -> (.., t, v)`.

    Examples:
      >>> q = Tensor.ones(2, 4, 8)
      >>> q.scaled_dot_product_attention(q, q, is_causal=True).shape
      (2, 4, 8)
    """
    q, k, v = self, key, value
    self._check_attention(k, v, attn_mask, enable_gqa)
    if grouped := enable_gqa and min(q.ndim, k.ndim) > 2 and q.shape[-3] != k.shape[-3]:
      heads, shared = q.shape[-3], k.shape[-3]
      q, k, v = q.unflatten(-3, (shared, heads // shared)), k.unsqueeze(-3), v.unsqueeze(-3)
    wide = least_upper_dtype(q.dtype, k.dtype, dtypes.float32)
    scores = q.dot(k.transpose(-2, -1), dtype=wide).mul(1 / math.sqrt(q.shape[-1]))
    if is_causal:
      scores = self._tri(q.shape[-2], k.shape[-2], 1).where(-math.inf, scores)
    if attn_mask is not None:
      if grouped and attn_mask.ndim >= 3:
        attn_mask = attn_mask.unflatten(-3, (1, 1) if attn_mask.shape[-3] == 1 else q.shape[-4:-2])
      scores = attn_mask.where(scores, -math.inf) if attn_mask.dtype is dtypes.bool else scores.add(attn_mask)
    weights = scores.softmax(-1) if attn_mask is None else scores._softmax_or_zeros()
    out = weights.cast(self.dtype).dropout(dropout_p).dot(v)
    return out.flatten(-4, -3) if grouped else out

  def _check_attention(self, k: Self, v: Self, mask: Self | None, shares: bool) -> None:
    """ValueError for shapes that do not belong together; `shares`: several heads may have one of k and v."""
    us, order = (self.uop, k.uop, v.uop), "bring them to (.., heads, length, width)"
    if min(u.ndim for u in us) < 2 or self.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
      mismatch("attention", "q and k must have one width (dim -1), k and v one length (dim -2)", us, order)
    heads, fewer = (u.shape[-3] if min(u.ndim for u in us) > 2 else 1 for u in us[:2])
    if shares and heads != fewer and heads % fewer:
      fix = "check the order of dims: heads are dim -3"
      mismatch("attention", "the heads of q must be a multiple of those of k", us[:2], fix)
    batch, outer = (broadcast_shape(*(u.shape[:end] for u in us)) for end in (-3, -2))
    if (batch if shares else outer) is None:
      several = batch is not None and heads != fewer and heads % fewer == 0
      fix = "enable_gqa=True: several heads of q have one of k and v" if several else order
      mismatch("attention", "the dims before the last two must be equal or 1", us, fix)
    leading = (*(batch or ()), heads) if outer is None else outer
    scores = (*leading, self.shape[-2], k.shape[-2])
    if mask is not None and broadcast_shape(mask.shape, scores) is None:
      fix = f"a mask of shape {scores[-2:]}, of (1, 1, ..) before these, or of {scores}"
      mismatch("attention", f"the mask must repeat along the scores, which are {scores}", (*us[:2], mask.uop), fix)

  # ---- losses

  def _do_reduction(self, reduction: Reduction, weight: Self | None = None) -> Self:
    """The loss of each element as one; the mean over what `weight` counts."""
    check_choice("loss", "reduction", reduction, "mean", "sum", "none")
    if reduction == "mean" and weight is not None:
      wide = least_upper_dtype(self.dtype, dtypes.float32)  # the sum of many losses may be none of a half
      return self.sum(dtype=wide).div(weight.sum(dtype=wide if weight.is_floating_point() else None)).cast(self.dtype)
    if reduction == "mean":
      return self.mean()
    return self.sum() if reduction == "sum" else self._value()

  def binary_crossentropy(self, Y: Self, reduction: Reduction = "mean") -> Self:
    """-(y log p + (1-y) log(1-p)) of probabilities p, where 0 log 0 is 0.
    Shape: `(..), (..) -> ()`; (..) with reduction="none".

    Examples:
      >>> print(Tensor([0.9, 0.2]).binary_crossentropy(Tensor([1.0, 0.0])).numpy().round(3))
      0.164
    """
    self._check_targets("binary_crossentropy", Y)
    negative = Y.eq(1).where(0.0, Y.sub(1, reverse=True).mul(self.sub(1, reverse=True).log()))
    return Y.eq(0).where(0.0, Y.mul(self.log())).add(negative).neg()._do_reduction(reduction)

  def binary_crossentropy_logits(self, Y: Self, reduction: Reduction = "mean", pos_weight: Self | None = None) -> Self:
    """The binary cross entropy of sigmoid(x), without overflow; `pos_weight` scales the positive part. ValueError
    unless Y broadcasts to x's shape.
    Shape: `(..), (..), (..) -> ()`; (..) with reduction="none".

    Examples:
      >>> print(Tensor([2.0, -1.0]).binary_crossentropy_logits(Tensor([1.0, 0.0])).numpy().round(3))
      0.22
    """
    self._check_targets("binary_crossentropy_logits", Y)
    positive = Y if pos_weight is None else Y.mul(pos_weight)
    loss = positive.mul(self.logsigmoid()).add(Y.sub(1, reverse=True).mul(self.neg().logsigmoid())).neg()
    return loss._do_reduction(reduction)

  def sparse_categorical_crossentropy(
    self, Y: Self, ignore_index: int = -1, label_smoothing: float = 0.0, reduction: Reduction = "mean"
  ) -> Self:
    """Cross entropy of logits (.., classes) and class numbers Y (..); elements equal to `ignore_index` do not count.

    ValueError unless Y has the shape of the logits without the last dim, IndexError for a label of a list or an array
    that is no class; one that was computed has loss 0, and counts.
    Shape: `(.., classes), (..) -> ()`; (..) with reduction="none".

    Examples:
      >>> print(Tensor([[2.0, 0.0], [0.0, 3.0]]).sparse_categorical_crossentropy(Tensor([0, -1])).numpy().round(3))
      0.127
    """
    if Y.shape != self.shape[:-1]:
      rule = "the labels must have the logits' shape without the last dim"
      fix = "flatten both, e.g. logits.reshape(-1, classes) and Y.reshape(-1)"
      mismatch("sparse_categorical_crossentropy", rule, (self.uop, Y.uop), fix)
    self._check_labels("sparse_categorical_crossentropy", Y, self.ndim - 1, ignore_index)
    logs, counted = self.log_softmax(), Y.ne(ignore_index)
    loss = counted.where(logs._smoothed(logs._of_class(Y, -1), -1, label_smoothing), 0)
    return loss._do_reduction(reduction, counted)

  def cross_entropy(
    self,
    Y: Self,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    weight: Self | None = None,
    ignore_index: int | None = None,
  ) -> Self:
    """Cross entropy of logits (b, classes, *dims) and either class numbers (b, *dims) or probabilities of the logits'
    shape. `weight` (classes,) scales classes, and counts in the mean over class numbers; those equal to `ignore_index`
    do not count. ValueError unless the labels have such a shape, or for probabilities with an `ignore_index`;
    IndexError for a number of a list or an array that is no class; one that was computed has loss 0, and counts.
    Shape: `(b, classes, *dims), (b, *dims) -> ()`; (b, *dims) with reduction="none".

    Examples:
      >>> print(Tensor([[2.0, 0.0], [0.0, 3.0]]).cross_entropy(Tensor([0, 1])).numpy().round(3))
      0.088
    """
    classes_dim = 0 if self.ndim == 1 else 1
    logs, of_numbers = self.log_softmax(classes_dim), Y.ndim < self.ndim
    if weight is not None:
      logs = logs.mul(weight._lined(classes_dim, self.ndim))
    if of_numbers:
      self._check_label_shape("cross_entropy", Y, classes_dim)
      self._check_labels("cross_entropy", Y, classes_dim, ignore_index)
      picked = logs._of_class(Y, classes_dim)
    else:
      if Y.shape != self.shape:
        numbers = Y.shape == (self.shape[0], 1, *self.shape[2:]) and not Y.is_floating_point()
        fix = "class numbers have no dim of classes: Y.squeeze(1)" if numbers else f"give some of shape {self.shape}"
        mismatch("cross_entropy", "probabilities must have the logits' shape", (self.uop, Y.uop), fix)
      if ignore_index is not None:
        fix = "leave it out, and give rows of zeros"
        mismatch("cross_entropy", "ignore_index is of class numbers, and these are probabilities", [Y.uop], fix)
      picked = Y.mul(logs).sum(classes_dim)
    loss = logs._smoothed(picked, classes_dim, label_smoothing)
    return loss._mean_over(Y, weight, ignore_index, reduction) if of_numbers else loss._do_reduction(reduction)

  def _mean_over(self, Y: Self, weight: Self | None, ignore_index: int | None, reduction: Reduction) -> Self:
    """Losses of class numbers, reduced: each counts by the weight of its class; that of `ignore_index` does not."""
    loss, scale = self, None if weight is None else weight[Y]
    if ignore_index is not None:
      counted = Y.ne(ignore_index)
      loss, scale = counted.where(loss, 0), counted if scale is None else counted.where(scale, 0)
    return loss._do_reduction(reduction, scale)

  def _smoothed(self, picked: Self, dim: int, label_smoothing: float) -> Self:
    """The loss of log probabilities of which those of the labels are `picked`; a part of the label is spread evenly."""
    if not 0.0 <= label_smoothing <= 1.0:
      rule = "must be within [0, 1]"
      raise ValueError(
        f"label_smoothing {rule}, got {label_smoothing}\n  fix: label_smoothing=0.1, or another in there"
      )
    loss = picked.neg()
    return loss.mul(1 - label_smoothing).sub(self.mean(dim).mul(label_smoothing)) if label_smoothing else loss

  def _check_targets(self, name: str, Y: Self) -> None:
    """ValueError for targets (n,) of values (n, 1) and the like, which made a loss of each beside each."""
    if broadcast_shape(self.shape, Y.shape) != self.shape:
      fix = "give both one shape, e.g. x.squeeze(-1) or Y.unsqueeze(-1)"
      mismatch(name, "the targets must have the shape of x, or repeat along its dims", (self.uop, Y.uop), fix)

  def _outside(self, n: sint, allowed: int | None = None) -> int | None:
    """The first element that is not in [0, n), nor `allowed`; None where elements are not known, as those of a list or
    an array are as yet."""
    numbers = _known(self.uop) if isinstance(n, int) else None
    if numbers is None or not numbers.size or (numbers.min() >= 0 and numbers.max() < n):
      return None
    return next((x for x in numbers[(numbers < 0) | (numbers >= n)].tolist() if x != allowed), None)

  def _check_label_shape(self, name: str, Y: Self, dim: int) -> None:
    """ValueError unless labels are one for each element without the dim of classes: others would broadcast."""
    wanted = (*self.shape[:dim], *self.shape[dim + 1 :])
    if Y.shape == wanted:
      return
    fix = f"give labels of shape {wanted}"
    if self.ndim > 2 and Y.shape == self.shape[:-1]:
      fix = "classes are dim 1: logits.flatten(0, -2), Y.flatten()"
    elif Y.numel() == prod(wanted) and (Y.ndim == 1 or Y.squeeze().shape == tuple(n for n in wanted if n != 1)):
      fix = f"Y.reshape({wanted})"
    mismatch(name, "class numbers must have the logits' shape without dim 1", (self.uop, Y.uop), fix)

  def _check_labels(self, name: str, Y: Self, dim: int, ignored: int | None) -> None:
    """TypeError for labels that are no integers, IndexError for one that is no class, where labels are known."""
    if Y.is_floating_point():
      mismatch(name, "class numbers must be integers", (self.uop, Y.uop), "cast them: Y.int()", TypeError)
    n = self.shape[dim]
    if (bad := Y._outside(n, ignored)) is not None:
      fix = f"give labels from 0 to {n - 1}; to leave these out: ignore_index={bad}"
      mismatch(name, f"label {bad} is no class of {n}", (self.uop, Y.uop), fix, IndexError)

  def _of_class(self, Y: Self, dim: int) -> Self:
    """The element of class Y along `dim`; 0 where there is no such class."""
    return Y._one_hot(self.shape[dim], dim).where(self, 0).sum(dim)

  def nll_loss(
    self, Y: Self, weight: Self | None = None, ignore_index: int | None = None, reduction: Reduction = "mean"
  ) -> Self:
    """-log p of the class Y, of log probabilities (b, classes, *dims); `weight` (classes,) scales classes and counts in
    the mean. IndexError for a class of a list or an array that there is not; one that was computed has loss 0.
    ValueError without a dim of classes.
    Shape: `(b, classes, *dims), (b, *dims), (classes) -> ()`; (b, *dims) with reduction="none".

    Examples:
      >>> print(Tensor([[0.25, 0.75]]).log().nll_loss(Tensor([1])).numpy().round(3))
      0.288
    """
    if self.ndim < 2:
      rule = "needs log probabilities (b, classes, *dims) and class numbers (b, *dims)"
      mismatch("nll_loss", rule, (self.uop, Y.uop), "unsqueeze(0) both for a batch of one")
    self._check_label_shape("nll_loss", Y, 1)
    self._check_labels("nll_loss", Y, 1, ignore_index)
    loss = self._of_class(Y, 1).neg()
    return (loss if weight is None else loss.mul(weight[Y]))._mean_over(Y, weight, ignore_index, reduction)
