"""Elementary functions and activations, written in the elementwise primitives."""

from __future__ import annotations

import math
from typing import Any, Self

from tinygrad.dtype import dtypes
from tinygrad.mixin.elementwise import Elementwise
from tinygrad.uop.ops import Ops


class Math(Elementwise):
  """Functions of a real argument take integers as floats."""

  __slots__ = ()

  # ---- exponentials and roots

  def exp(self) -> Self:
    return self._float_unary(Ops.EXP)

  def exp2(self) -> Self:
    return self._float_tensor().mul(math.log(2)).exp()

  def log(self) -> Self:
    return self._float_unary(Ops.LOG)

  def log2(self) -> Self:
    return self.log().mul(1 / math.log(2))

  def log10(self) -> Self:
    return self.log().mul(1 / math.log(10))

  def rsqrt(self) -> Self:
    """1 / sqrt(x)."""
    return self.sqrt().reciprocal()

  def logaddexp(self, other: Any) -> Self:
    """log(exp(x) + exp(y)) without overflow."""
    a, b = (self._wrap(u) for u in self._operands(other, "logaddexp"))
    m = a.maximum(b).detach()
    finite = m.isinf().where(0.0, m)  # inf - inf is nan
    return a.sub(finite).exp().add(b.sub(finite).exp()).log().add(finite)

  # ---- trigonometry

  def sin(self) -> Self:
    return self._float_unary(Ops.SIN)

  def cos(self) -> Self:
    return self._float_tensor().sub(math.pi / 2, reverse=True).sin()

  def tan(self) -> Self:
    return self.sin().div(self.cos())

  def asin(self) -> Self:
    """arcsin: atan(x / sqrt(1 - x²)), with the ends exact."""
    x = self._float_tensor()
    return x.div(x.mul(x).sub(1, reverse=True).sqrt()).atan()

  def acos(self) -> Self:
    return self.asin().sub(math.pi / 2, reverse=True)

  def atan(self) -> Self:
    """arctan by a minimax polynomial of degree 17 on [0, 1] after atan(x) = pi/2 - atan(1/x) (Abramowitz & Stegun
    4.4.49)."""
    x = self._float_tensor()
    size = x.abs()
    big = size.gt(1)
    t = big.where(big.where(size, 1.0).reciprocal(), size)
    z = t.mul(t)
    p = t.const_like(0.0028662257)
    for c in (
      -0.0161657367,
      0.0429096138,
      -0.0752896400,
      0.1065626393,
      -0.1420889944,
      0.1999355085,
      -0.3333314528,
      1.0,
    ):
      p = p.mul(z).add(c)
    r = p.mul(t)
    r = big.where(r.sub(math.pi / 2, reverse=True), r)
    return x.lt(0).where(r.neg(), r)

  def sinh(self) -> Self:
    return self.exp().sub(self.neg().exp()).mul(0.5)

  def cosh(self) -> Self:
    return self.exp().add(self.neg().exp()).mul(0.5)

  def tanh(self) -> Self:
    return self._float_unary(Ops.TANH)

  def asinh(self) -> Self:
    size = self._float_tensor().abs()
    r = size.add(size.mul(size).add(1).sqrt()).log()
    return self.lt(0).where(r.neg(), r)

  def acosh(self) -> Self:
    x = self._float_tensor()
    return x.add(x.mul(x).sub(1).sqrt()).log()

  def atanh(self) -> Self:
    x = self._float_tensor()
    return x.add(1).div(x.sub(1, reverse=True)).log().mul(0.5)

  def erf(self) -> Self:
    return self._float_unary(Ops.ERF)

  # ---- sign

  def sign(self) -> Self:
    """-1, 0 or 1; nan of nan. Its derivative is 0 everywhere."""
    x = self.detach()
    return x.lt(0).where(-1, x.gt(0).where(1, x))

  def abs(self) -> Self:
    if dtypes.is_unsigned(self.dtype) or self.dtype is dtypes.bool:
      return self
    return self.mul(self.sign()) if dtypes.is_float(self.dtype) else self.lt(0).where(self.neg(), self)

  def copysign(self, other: Any) -> Self:
    """The size of x with the sign of y (the sign bit, so that of -0.0 too)."""
    y = self._wrap(self._operands(other, "copysign")[1])._float_tensor()
    words = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}
    size = self._float_tensor().abs()
    return y._bits(words[y.dtype.itemsize]).lt(0).where(size.neg(), size)

  # ---- what kind of number

  def isnan(self) -> Self:
    return self.ne(self)

  def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
    if not dtypes.is_float(self.dtype):
      return self.const_like(False, dtypes.bool)
    up, down = self.eq(math.inf), self.eq(-math.inf)
    if detect_positive and detect_negative:
      return up.bitwise_or(down)
    return up if detect_positive else down if detect_negative else self.const_like(False, dtypes.bool)

  def isfinite(self) -> Self:
    return self.isinf().bitwise_or(self.isnan()).logical_not()

  def isclose(self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
    """|x - y| <= atol + rtol*|y|, infinities equal to themselves."""
    a, b = (self._wrap(u) for u in self._operands(other, "isclose"))
    near = a.isfinite().bitwise_and(b.isfinite()).bitwise_and(a.sub(b).abs().le(b.abs().mul(rtol).add(atol)))
    result = near.bitwise_or(a.eq(b))
    return result.bitwise_or(a.isnan().bitwise_and(b.isnan())) if equal_nan else result

  # ---- ranges

  def clamp(self, min_: Any = None, max_: Any = None) -> Self:
    """max(min_, min(x, max_)); either bound may be None. ValueError if both are."""
    if min_ is None and max_ is None:
      raise ValueError("clamp: give at least one of min_ and max_")
    x = self if min_ is None else self.maximum(min_)
    return x if max_ is None else x.minimum(max_)

  def clip(self, min_: Any = None, max_: Any = None) -> Self:
    """`clamp`."""
    return self.clamp(min_, max_)

  def lerp(self, end: Self, weight: Any) -> Self:
    """x + (end - x)*weight."""
    return self.add(end.sub(self).mul(weight))

  # ---- activations

  def relu(self) -> Self:
    """max(x, 0); its derivative at 0 is 0, where that of `maximum` is a half."""
    return self.gt(0).where(self, self.detach().maximum(0))

  def sigmoid(self) -> Self:
    return self._float_tensor().neg().exp().add(1).reciprocal()

  def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
    return self.mul(alpha).add(beta).clamp(0, 1)

  def silu(self) -> Self:
    """x * sigmoid(x) (https://arxiv.org/abs/1606.08415)."""
    return self.mul(self.sigmoid())

  def swish(self) -> Self:
    """`silu`."""
    return self.silu()

  def gelu(self, approximate: str = "tanh") -> Self:
    """x * Phi(x) (https://arxiv.org/abs/1606.08415), exactly ("none") or by its tanh approximation ("tanh")."""
    if approximate == "tanh":
      inner = self.mul(math.sqrt(2 / math.pi)).mul(self.mul(self).mul(0.044715).add(1))
      return self.mul(0.5).mul(inner.tanh().add(1))
    if approximate != "none":
      raise ValueError(f"gelu: unknown approximation {approximate!r}\n  fix: use 'tanh' or 'none'")
    return self.mul(0.5).mul(self.mul(1 / math.sqrt(2)).erf().add(1))

  def quick_gelu(self) -> Self:
    return self.mul(self.mul(1.702).sigmoid())

  def leaky_relu(self, neg_slope: float = 0.01) -> Self:
    return self.lt(0).where(self.mul(neg_slope), self)

  def relu6(self) -> Self:
    return self.clamp(0, 6)

  def hardswish(self) -> Self:
    return self.mul(self.add(3).relu6()).mul(1 / 6)

  def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
    return self.clamp(min_val, max_val)

  def elu(self, alpha: float = 1.0) -> Self:
    """x above 0, alpha*(exp(x) - 1) below (https://arxiv.org/abs/1511.07289)."""
    return self.gt(0).where(self, self.minimum(0).exp().sub(1).mul(alpha))

  def celu(self, alpha: float = 1.0) -> Self:
    return self.maximum(0).add(self.div(alpha).exp().sub(1).mul(alpha).minimum(0))

  def selu(self, alpha: float = 1.67326, gamma: float = 1.0507) -> Self:
    return self.elu(alpha).mul(gamma)

  def softplus(self, beta: float = 1.0) -> Self:
    """log(1 + exp(beta*x)) / beta."""
    x = self._float_tensor().mul(beta)
    return x.logaddexp(0.0).mul(1 / beta)

  def softsign(self) -> Self:
    return self.div(self.abs().add(1))

  def mish(self) -> Self:
    """x * tanh(softplus(x)) (https://arxiv.org/abs/1908.08681)."""
    return self.mul(self.softplus().tanh())

  def logsigmoid(self) -> Self:
    return self.neg().softplus().neg()

  # ---- the graph

  def detach(self) -> Self:
    """The value, through which no gradient flows."""
    return self._new(self.uop.detach())

  def contiguous(self) -> Self:
    """The value in a buffer of its own, so that nothing before it is fused into what comes after."""
    return self._new(self.uop.contiguous())

  def contiguous_backward(self) -> Self:
    """The value. A hint to give the gradient a buffer, which the scheduler here decides by itself."""
    return self
