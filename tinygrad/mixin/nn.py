"""What neural networks are made of: normalisation, dropout, attention, losses."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, Self

from tinygrad.dtype import dtypes, least_upper_dtype
from tinygrad.helpers import TRAINING
from tinygrad.mixin.base import check_choice, mismatch
from tinygrad.mixin.convolution import Convolution, Ints

Reduction = Literal["mean", "sum", "none"]


class NN(Convolution):
  __slots__ = ()

  def sequential(self, ll: list[Callable[[Self], Self]]) -> Self:
    """The functions applied one after the other."""
    return functools.reduce(lambda x, f: f(x), ll, self)

  # ---- normalisation

  def layernorm(self, axis: int | tuple[int, ...] = -1, eps: float = 1e-5) -> Self:
    """(x - mean) / sqrt(var + eps) along `axis` (https://arxiv.org/abs/1607.06450)."""
    y = self.sub(self.mean(axis, keepdim=True))
    return y.mul(y.square().mean(axis, keepdim=True).add(eps).rsqrt())

  def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self, axis: Ints = 1) -> Self:
    """(x - mean) * weight * invstd + bias, the parameters along `axis` (https://arxiv.org/abs/1502.03167)."""
    axes = self._dims(axis)
    shape = tuple(n if i in axes else 1 for i, n in enumerate(self.shape))
    x = self.sub(mean.reshape(shape))
    scale = invstd.reshape(shape) if invstd.ndim == len(axes) else invstd
    y = x.mul(scale if weight is None else weight.reshape(shape).mul(scale))
    return y if bias is None else y.add(bias.reshape(shape))

  def dropout(self, p: float = 0.5) -> Self:
    """While training, zeros with probability p and the rest scaled by 1/(1-p) (https://jmlr.org/papers/v15/srivastava14a.html)."""
    if not 0 <= p <= 1:
      raise ValueError(f"dropout: the probability must be within [0, 1], got {p}")
    if not TRAINING.value or p == 0:
      return self
    return self.zeros_like() if p == 1 else self.rand_like(dtype=dtypes.float32).ge(p).where(self.mul(1 / (1 - p)), 0)

  # ---- attention

  def scaled_dot_product_attention(
    self, key: Self, value: Self, attn_mask: Self | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    enable_gqa: bool = False,
  ) -> Self:  # fmt: skip
    """softmax(q kᵀ / sqrt(d) + mask) v (https://arxiv.org/abs/1706.03762): q (.., heads, t, d), k and v (.., heads, s,
    d).

    `attn_mask`: bool (True attends) or added to the scores; `is_causal`: query i sees keys up to i. With `enable_gqa`
    several heads of q share one of k and v. ValueError for both kinds of mask, or head counts that do not divide.
    """
    q, k, v = self, key, value
    if enable_gqa and q.shape[-3] != k.shape[-3]:
      heads, shared = q.shape[-3], k.shape[-3]
      if heads % shared:
        rule, fix = "the heads of q must be a multiple of those of k", "check the order of dims: heads are dim -3"
        mismatch("attention", rule, (q.uop, k.uop), fix)
      q, k, v = q.unflatten(-3, (shared, heads // shared)), k.unsqueeze(-3), v.unsqueeze(-3)
    wide = least_upper_dtype(q.dtype, k.dtype, dtypes.float32)
    scores = q.dot(k.transpose(-2, -1), dtype=wide).mul(1 / math.sqrt(q.shape[-1]))
    if is_causal:
      if attn_mask is not None:
        raise ValueError("attention: give attn_mask or is_causal, not both\n  fix: put the causal part into the mask")
      attn_mask = self._tri(q.shape[-2], k.shape[-2], 1).logical_not()
    if attn_mask is not None:
      if q.ndim > self.ndim and attn_mask.ndim >= 3:
        attn_mask = attn_mask.unflatten(-3, (1, 1) if attn_mask.shape[-3] == 1 else q.shape[-4:-2])
      scores = attn_mask.where(scores, -math.inf) if attn_mask.dtype is dtypes.bool else scores.add(attn_mask)
    out = scores.softmax(-1).cast(self.dtype).dropout(dropout_p).dot(v)
    return out.reshape((*self.shape[:-1], v.shape[-1])) if q.ndim > self.ndim else out

  # ---- losses

  def _do_reduction(self, reduction: Reduction, weight: Self | None = None) -> Self:
    """The loss of each element as one; the mean over what `weight` counts."""
    check_choice("loss", "reduction", reduction, "mean", "sum", "none")
    if reduction == "mean":
      return self.mean() if weight is None else self.sum().div(weight.sum())
    return self.sum() if reduction == "sum" else self

  def binary_crossentropy(self, Y: Self, reduction: Reduction = "mean") -> Self:
    """-(y log p + (1-y) log(1-p)) of probabilities p."""
    negative = Y.sub(1, reverse=True).mul(self.sub(1, reverse=True).log())
    return Y.mul(self.log()).add(negative).neg()._do_reduction(reduction)

  def binary_crossentropy_logits(self, Y: Self, reduction: Reduction = "mean", pos_weight: Self | None = None) -> Self:
    """The binary cross entropy of sigmoid(x), without overflow; `pos_weight` scales the positive part."""
    positive = Y if pos_weight is None else Y.mul(pos_weight)
    loss = positive.mul(self.logsigmoid()).add(Y.sub(1, reverse=True).mul(self.neg().logsigmoid())).neg()
    return loss._do_reduction(reduction)

  def sparse_categorical_crossentropy(
    self, Y: Self, ignore_index: int = -1, label_smoothing: float = 0.0, reduction: Reduction = "mean"
  ) -> Self:
    """Cross entropy of logits (.., classes) and class numbers Y (..); elements equal to `ignore_index` do not count.

    ValueError unless Y has the shape of the logits without the last dim.
    """
    if Y.shape != self.shape[:-1]:
      rule = "the labels must have the logits' shape without the last dim"
      fix = "flatten both, e.g. logits.reshape(-1, classes) and Y.reshape(-1)"
      mismatch("sparse_categorical_crossentropy", rule, (self.uop, Y.uop), fix)
    logs, counted = self.log_softmax(), Y.ne(ignore_index)
    loss = counted.where(logs._smoothed(logs._of_class(Y, -1), -1, label_smoothing), 0)
    return loss._do_reduction(reduction, counted)

  def cross_entropy(self, Y: Self, reduction: Reduction = "mean", label_smoothing: float = 0.0) -> Self:
    """Cross entropy of logits (b, classes, *dims) and either class numbers (b, *dims) or probabilities of the logits'
    shape."""
    classes_dim = 0 if self.ndim == 1 else 1
    logs = self.log_softmax(classes_dim)
    if Y.ndim < self.ndim:
      if Y.shape != (*self.shape[:classes_dim], *self.shape[classes_dim + 1 :]):
        rule = "class numbers must have the logits' shape without dim 1"
        mismatch("cross_entropy", rule, (self.uop, Y.uop), "reshape the labels")
      picked = logs._of_class(Y, classes_dim)
    else:
      if Y.shape != self.shape:
        mismatch("cross_entropy", "probabilities must have the logits' shape", (self.uop, Y.uop), "reshape the labels")
      picked = Y.mul(logs).sum(classes_dim)
    return logs._smoothed(picked, classes_dim, label_smoothing)._do_reduction(reduction)

  def _smoothed(self, picked: Self, dim: int, label_smoothing: float) -> Self:
    """The loss of log probabilities of which those of the labels are `picked`; a part of the label is spread evenly."""
    if not 0.0 <= label_smoothing <= 1.0:
      raise ValueError(f"label_smoothing must be within [0, 1], got {label_smoothing}")
    loss = picked.neg()
    return loss.mul(1 - label_smoothing).sub(self.mean(dim).mul(label_smoothing)) if label_smoothing else loss

  def _of_class(self, Y: Self, dim: int) -> Self:
    """The element of class Y along `dim`; 0 where there is no such class."""
    return Y._one_hot(self.shape[dim], dim).where(self, 0).sum(dim)

  def nll_loss(
    self, Y: Self, weight: Self | None = None, ignore_index: int | None = None, reduction: Reduction = "mean"
  ) -> Self:
    """-log p of the class Y, of log probabilities (b, classes, *dims); `weight` (classes,) scales classes and counts in
    the mean."""
    scale: Any = self.ones_like().float()._slice(1, 0, 1).squeeze(1) if weight is None else weight[Y]
    if ignore_index is not None:
      scale = Y.ne(ignore_index).where(scale, 0)
    return self._of_class(Y, 1).neg().mul(scale)._do_reduction(reduction, scale)
