"""Layers: objects with their parameters as attributes, called on tensors. Layouts and initial values are those of
PyTorch."""

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tinygrad.dtype import dtypes
from tinygrad.helpers import TRAINING, LazyModule, make_tuple, prod
from tinygrad.mixin.base import mismatch, tensors_alone
from tinygrad.mixin.foreign_names import without_foreign
from tinygrad.nn import checkpoints, datasets, optim, state
from tinygrad.nn.foreign_layers import FOREIGN_LAYERS, LAYER_OPTIONS, OF_EMBEDDING, OF_LAYER, no_such
from tinygrad.tensor import Tensor

if TYPE_CHECKING:
  from tinygrad.nn import lr_scheduler, utils
else:
  lr_scheduler, utils = LazyModule("tinygrad.nn.lr_scheduler"), LazyModule("tinygrad.nn.utils")

  def __getattr__(name: str) -> NoReturn:
    """Of a name that there is not: an AttributeError with what does here what the module of torch.nn does."""
    no_such(f"module {__name__!r} has no attribute {name!r}", name, FOREIGN_LAYERS)


Ints = int | tuple[int, ...]
__all__ = [
  "BatchNorm", "BatchNorm2d", "BatchNorm3d", "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "Embedding",
  "GroupNorm", "InstanceNorm", "LSTMCell", "LayerNorm", "LayerNorm2d", "Linear", "RMSNorm", "checkpoints", "datasets",
  "lr_scheduler", "optim", "state", "utils",
]  # fmt: skip


def _uniform(shape: tuple[int, ...], fan_in: int, out: int, bias: bool) -> tuple[Tensor, Tensor | None]:
  """A weight and a bias, uniform within 1 / sqrt(fan_in)."""
  high = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
  weight = Tensor.uniform(*shape, low=-high, high=high)
  return weight, Tensor.uniform(out, low=-high, high=high) if bias else None


def _weight_and_bias(shape: tuple[int, ...], given: bool) -> tuple[Tensor | None, Tensor | None]:
  """A weight of ones and a bias of zeros; or neither."""
  return (Tensor.ones(*shape), Tensor.zeros(*shape)) if given else (None, None)


def _kernel_shape(name: str, whole: int, cut: int, groups: int, kernel: tuple[int, ...]) -> tuple[int, ...]:
  """Of a convolution's weight: `cut` channels, those of one of the groups. ValueError for what makes no convolution."""
  if min(kernel) < 1:
    raise ValueError(f"{name}: kernel_size={kernel} has no elements\n  fix: give 1 or more")
  if groups < 1 or whole % groups or cut % groups:
    fix = f"groups that divide both, e.g. {math.gcd(whole, cut)}"
    raise ValueError(f"{name}: groups={groups} do not divide {whole} and {cut} channels\n  fix: {fix}")
  return whole, cut // groups, *kernel


def _check_channels(layer: object, n: int, x: Tensor) -> None:
  """Of a normalization; one channel would broadcast."""
  if x.ndim < 2 or x.shape[1] != n:
    name, rule = type(layer).__name__, f"this one is of {n} channels, which are dim 1 of x"
    mismatch(name, rule, [x.uop], f"x of shape (batch, {n}, ..), or nn.{name} of x's channels")


def _check_features(name: str, rows: str, n: Any, x: Tensor, what: str = "x") -> None:
  if x.ndim == 0 or x.shape[-1] != n or (rows != ".." and x.ndim != 2):
    rule = f"this one takes {n} features, which are the last dim of {what}"
    mismatch(name, rule, [x.uop], f"{what} of shape ({rows}, {n}), or nn.{name} of {what}'s features")


class _Layer:
  """What all layers are: a name of PyTorch's modules that there is not is an error with what does the same here."""

  def __init_subclass__(cls) -> None:
    if "__init__" in vars(cls) and cls.__module__ == __name__:
      cls.__init__ = without_foreign(f"{cls.__name__}.__init__", cls.__init__, LAYER_OPTIONS)  # type: ignore[method-assign]
    if "__call__" in vars(cls) and cls.__module__ == __name__:
      type.__setattr__(cls, "__call__", tensors_alone(vars(cls)["__call__"], cls.__name__, Tensor))

  if not TYPE_CHECKING:

    def __getattr__(self, name: str) -> NoReturn:
      no_such(f"{type(self).__name__!r} object has no attribute {name!r}", name, OF_LAYER)


class Linear(_Layer):
  """x (.., in) -> x · weightᵀ + bias (.., out); weight (out, in).
  Shape: `(.., in_features) -> (.., out_features)`.

  Examples:
    >>> layer = nn.Linear(3, 4)
    >>> layer(Tensor.ones(5, 3)).shape, layer.weight.shape, layer.bias.shape
    ((5, 4), (4, 3), (4,))
  """

  def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
    self.weight, self.bias = _uniform((out_features, in_features), in_features, out_features, bias)

  def __call__(self, x: Tensor) -> Tensor:
    _check_features("Linear", "..", self.weight.shape[1], x)
    return x.linear(self.weight.transpose(), self.bias)


class Conv2d(_Layer):
  """x (b, in, *dims) -> (b, out, *positions); weight (out, in/groups, *kernel). `padding` may be "same" or "valid".

  `kernel_size`: an int is a square; a tuple gives the rank.
  Shape: `(b, in_channels, *dims) -> (b, out_channels, *positions)`.

  Examples:
    >>> nn.Conv2d(3, 8, 3, padding=1)(Tensor.ones(2, 3, 16, 16)).shape
    (2, 8, 16, 16)
  """

  def __init__(
    self,
    in_channels: int,
    out_channels: int,
    kernel_size: Ints,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    bias: bool = True,
  ) -> None:
    self.kernel_size = make_tuple(kernel_size, 2)
    self.stride, self.dilation, self.groups = stride, dilation, groups
    self.padding = _named_padding(padding, stride, dilation, self.kernel_size) if isinstance(padding, str) else padding
    shape = _kernel_shape("Conv2d", out_channels, in_channels, groups, self.kernel_size)
    self.weight, self.bias = _uniform(shape, prod(shape[1:]), out_channels, bias)

  def __call__(self, x: Tensor) -> Tensor:
    return x.conv2d(self.weight, self.bias, self.groups, self.stride, self.dilation, self.padding)


def _named_padding(padding: str, stride: Ints, dilation: Ints, kernel: tuple[int, ...]) -> Ints:
  if padding.lower() == "valid":
    return 0
  if padding.lower() != "same":
    raise ValueError(f"unknown padding {padding!r}\n  fix: use 'same', 'valid' or numbers")
  if any(s != 1 for s in make_tuple(stride, len(kernel))):
    raise ValueError(f"padding 'same' needs stride 1, got {stride}\n  fix: give the padding as numbers")
  both = [(d * (k - 1) // 2, d * (k - 1) - d * (k - 1) // 2) for d, k in zip(make_tuple(dilation, len(kernel)), kernel)]
  return tuple(p for pair in reversed(both) for p in pair)


def Conv1d(
  in_channels: int,
  out_channels: int,
  kernel_size: int,
  stride: int = 1,
  padding: int | str = 0,
  dilation: int = 1,
  groups: int = 1,
  bias: bool = True,
) -> Conv2d:
  """x (b, in, n) -> (b, out, positions).
  Shape: `(b, in_channels, n) -> (b, out_channels, positions)`.

  Examples:
    >>> nn.Conv1d(3, 8, 3)(Tensor.ones(2, 3, 16)).shape
    (2, 8, 14)
  """
  return Conv2d(in_channels, out_channels, (kernel_size,), stride, padding, dilation, groups, bias)


class ConvTranspose2d(_Layer):
  """The adjoint of `Conv2d` in its input; weight (in, out/groups, *kernel).
  Shape: `(b, in_channels, *dims) -> (b, out_channels, *positions)`.

  Examples:
    >>> nn.ConvTranspose2d(3, 8, 2, stride=2)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 8, 8, 8)
  """

  def __init__(
    self,
    in_channels: int,
    out_channels: int,
    kernel_size: Ints,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    bias: bool = True,
  ) -> None:
    self.kernel_size, self.stride, self.dilation, self.groups = make_tuple(kernel_size, 2), stride, dilation, groups
    self.padding, self.output_padding = padding, output_padding
    shape = _kernel_shape("ConvTranspose2d", in_channels, out_channels, groups, self.kernel_size)
    self.weight, self.bias = _uniform(shape, prod(shape[1:]), out_channels, bias)

  def __call__(self, x: Tensor) -> Tensor:
    numbers = self.groups, self.stride, self.dilation, self.padding, self.output_padding
    return x.conv_transpose2d(self.weight, self.bias, *numbers)


def ConvTranspose1d(
  in_channels: int,
  out_channels: int,
  kernel_size: int,
  stride: int = 1,
  padding: int = 0,
  output_padding: int = 0,
  dilation: int = 1,
  groups: int = 1,
  bias: bool = True,
) -> ConvTranspose2d:
  """The adjoint of `Conv1d` in its input.
  Shape: `(b, in_channels, n) -> (b, out_channels, positions)`.

  Examples:
    >>> nn.ConvTranspose1d(3, 8, 2, stride=2)(Tensor.ones(2, 3, 4)).shape
    (2, 8, 8)
  """
  sizes = in_channels, out_channels, (kernel_size,)
  return ConvTranspose2d(*sizes, stride, padding, output_padding, dilation, groups, bias)


class Embedding(_Layer):
  """Integers (..) -> rows of weight (.., embed_size). IndexError for a number of a list or an array that is not in
  [0, vocab_size); one that was computed gives zeros.
  Shape: `(..) -> (.., embed_size)`.

  Examples:
    >>> nn.Embedding(10, 4)(Tensor([[1, 2, 3]])).shape
    (1, 3, 4)
  """

  @functools.partial(without_foreign, "Embedding.__init__", fixes=OF_EMBEDDING)
  def __init__(self, vocab_size: int, embed_size: int) -> None:
    self.vocab_sz, self.embed_sz = vocab_size, embed_size
    self.weight = Tensor.glorot_uniform(vocab_size, embed_size)

  def __call__(self, idx: Tensor) -> Tensor:
    if not dtypes.is_int(idx.dtype):
      raise TypeError(f"Embedding needs integers, got {idx.dtype}\n  fix: cast the index, e.g. idx.int()")
    n = self.weight.shape[0]
    if (bad := idx._outside(n)) is not None:
      fix = f"nn.Embedding({bad + 1}, {self.embed_sz}), or numbers to {n - 1}" if bad > 0 else "idx.maximum(0)"
      raise IndexError(f"Embedding: {bad} is no row of {n}\n  fix: {fix}")
    return self.weight._rows(idx)


class LayerNorm(_Layer):
  """Zero mean and unit variance over the last dims `normalized_shape`, then scale and shift
  (https://arxiv.org/abs/1607.06450).
  Shape: `(.., *normalized_shape) -> (.., *normalized_shape)`.

  Examples:
    >>> print(nn.LayerNorm(2)(Tensor([[1.0, 3.0]])).numpy().round(3))
    [[-1.  1.]]
  """

  def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True) -> None:
    self.normalized_shape = make_tuple(normalized_shape, 1)
    self.axis = tuple(-1 - i for i in range(len(self.normalized_shape)))
    self.eps, self.elementwise_affine = eps, elementwise_affine
    self.weight, self.bias = _weight_and_bias(self.normalized_shape, elementwise_affine)

  def __call__(self, x: Tensor) -> Tensor:
    if x.shape[-len(self.normalized_shape) :] != self.normalized_shape:
      rule, last = f"this one is over {self.normalized_shape}, which are the last dims of x", str(self.normalized_shape)
      mismatch("LayerNorm", rule, [x.uop], f"x of shape (.., {last[1:]}, or nn.LayerNorm of x's last dims")
    y = x.layernorm(self.axis, self.eps)
    return y if self.weight is None or self.bias is None else y * self.weight + self.bias


class LayerNorm2d(LayerNorm):
  """LayerNorm over the channels of (b, c, h, w).
  Shape: `(b, normalized_shape, h, w) -> (b, normalized_shape, h, w)`.

  Examples:
    >>> nn.LayerNorm2d(3)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
  """

  def __call__(self, x: Tensor) -> Tensor:
    return super().__call__(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm(_Layer):
  """x / sqrt(mean(x²) + eps) * weight over the last dim, in at least float32 (https://arxiv.org/abs/1910.07467).
  Shape: `(.., dim) -> (.., dim)`.

  Examples:
    >>> print(nn.RMSNorm(2)(Tensor([[3.0, 4.0]])).numpy().round(3))
    [[0.849 1.131]]
  """

  def __init__(self, dim: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
    self.dim, self.eps = dim, eps
    self.weight = Tensor.ones(dim) if elementwise_affine else None

  def __call__(self, x: Tensor) -> Tensor:
    _check_features("RMSNorm", "..", self.dim, x)
    wide = x if x.dtype is dtypes.float64 else x.float()
    y = (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).cast(x.dtype)
    return y if self.weight is None else y * self.weight


class GroupNorm(_Layer):
  """LayerNorm over each of `num_groups` groups of channels of (b, c, *dims) (https://arxiv.org/abs/1803.08494).
  Shape: `(b, num_channels, *dims) -> (b, num_channels, *dims)`.

  Examples:
    >>> nn.GroupNorm(2, 4)(Tensor.ones(2, 4, 8)).shape
    (2, 4, 8)
  """

  def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
    if num_groups < 1 or num_channels % num_groups:
      fix = f"as many groups as divide {num_channels}, e.g. 1"
      raise ValueError(f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups\n  fix: {fix}")
    self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
    self.weight, self.bias = _weight_and_bias((num_channels,), affine)

  def __call__(self, x: Tensor) -> Tensor:
    _check_channels(self, self.num_channels, x)
    y = x.reshape(x.shape[0], self.num_groups, -1).layernorm(eps=self.eps).reshape(x.shape)
    if self.weight is None or self.bias is None:
      return y
    return y * self.weight._lined(1, x.ndim) + self.bias._lined(1, x.ndim)


class InstanceNorm(GroupNorm):
  """Each channel of each element of the batch by itself (https://arxiv.org/abs/1607.08022).
  Shape: `(b, num_features, *dims) -> (b, num_features, *dims)`.

  Examples:
    >>> nn.InstanceNorm(4)(Tensor.ones(2, 4, 8)).shape
    (2, 4, 8)
  """

  def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
    super().__init__(num_features, num_features, eps, affine)
    self.num_features = num_features


class BatchNorm(_Layer):
  """Zero mean and unit variance of each channel over the batch (https://arxiv.org/abs/1502.03167).

  While training (`Tensor.train()`) with the batch's statistics, which running ones follow; else with the running ones.
  `momentum`: the part of the new ones; None: running ones are the mean over all batches so far, as in PyTorch.
  Shape: `(b, sz, *dims) -> (b, sz, *dims)`.

  Examples:
    >>> norm = nn.BatchNorm(3)
    >>> norm(Tensor.ones(2, 3, 4, 4)).shape, norm.running_mean.shape
    ((2, 3, 4, 4), (3,))
  """

  def __init__(
    self,
    sz: int,
    eps: float = 1e-5,
    affine: bool = True,
    track_running_stats: bool = True,
    momentum: float | None = 0.1,
  ) -> None:
    self.sz, self.eps, self.track_running_stats, self.momentum = sz, eps, track_running_stats, momentum
    self.weight, self.bias = _weight_and_bias((sz,), affine)
    self.num_batches_tracked = Tensor.zeros(dtype=dtypes.int64, requires_grad=False)
    if track_running_stats:
      self.running_mean, self.running_var = Tensor.zeros(sz, requires_grad=False), Tensor.ones(sz, requires_grad=False)

  def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, biased variance) of each channel: of the batch while training, else the running ones.

    Examples:
      >>> nn.BatchNorm(3).calc_stats(Tensor.ones(2, 3, 4, 4))[0].shape
      (3,)
    """
    if self.track_running_stats and not TRAINING.value:
      return self.running_mean, self.running_var
    axes = tuple(i for i in range(x.ndim) if i != 1)
    x = x if x.dtype.itemsize >= 4 else x.float()  # squares of halves overflow
    mean = x.mean(axes)
    return mean, (x - mean._lined(1, x.ndim)).square().mean(axes)

  def __call__(self, x: Tensor) -> Tensor:
    _check_channels(self, self.sz, x)
    mean, var = self.calc_stats(x)
    scale = (var + self.eps).rsqrt()
    if self.track_running_stats and TRAINING.value:
      n = x.numel() // x.shape[1]
      unbiased = var.detach() * (n / max(1, n - 1))
      self.num_batches_tracked.assign(self.num_batches_tracked + 1)
      part = self.momentum if self.momentum is not None else 1 / self.num_batches_tracked
      for running, new in ((self.running_mean, mean.detach()), (self.running_var, unbiased)):
        running.assign(((1 - part) * running + part * new.cast(running.dtype)).cast(running.dtype))
    if x.is_floating_point() and (TRAINING.value or not self.track_running_stats):
      mean, scale = mean.cast(x.dtype), scale.cast(x.dtype)
    return x.batchnorm(self.weight, self.bias, mean, scale)


BatchNorm2d = BatchNorm3d = BatchNorm


class LSTMCell(_Layer):
  """One step: x (b, input), (h, c) each (b, hidden) -> new (h, c); gates in the order input, forget, cell, output.
  Shape: `(b, input_size), (b, hidden_size), (b, hidden_size) -> (b, hidden_size), (b, hidden_size)`.

  Examples:
    >>> h, c = nn.LSTMCell(3, 5)(Tensor.ones(2, 3))
    >>> h.shape, c.shape
    ((2, 5), (2, 5))
  """

  def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
    bound, gates, sizes = 1 / math.sqrt(hidden_size), 4 * hidden_size, (input_size, hidden_size)
    self.weight_ih, self.weight_hh = (Tensor.uniform(gates, n, low=-bound, high=bound) for n in sizes)
    self.bias_ih, self.bias_hh = (Tensor.zeros(gates) if bias else None for _ in range(2))

  def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    _check_features("LSTMCell", "batch", self.weight_ih.shape[1], x)
    h, c = hc if hc is not None else (Tensor.zeros(x.shape[0], self.weight_hh.shape[1], dtype=x.dtype),) * 2
    for kept, what in ((h, "h"), (c, "c")):
      _check_features("LSTMCell", "batch", self.weight_hh.shape[1], kept, what)
    gates = x.linear(self.weight_ih.T, self.bias_ih) + h.linear(self.weight_hh.T, self.bias_hh)
    i, f, g, o = gates.chunk(4, dim=1)
    new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * new_c.tanh(), new_c
