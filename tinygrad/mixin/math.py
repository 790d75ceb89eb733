"""Elementary functions and activations, written in the elementwise primitives."""

import functools
import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tinygrad.dtype import dtypes, to_dtype
from tinygrad.mixin.base import check_choice
from tinygrad.mixin.elementwise import Elementwise

P = ParamSpec("P")
T = TypeVar("T", bound=Elementwise)
# (atan x)/x, |x| <= 1, in x*x, from the highest power: 5e-18 of the result
ATAN = (1.3232510843605093e-05, -0.0001522366573754924, 0.0008316795837053217, -0.0028859558825863234,
  0.007198571464736322, -0.013903565408396979, 0.021988145732047954, -0.02990663331734241, 0.03664373062497292,
  -0.042192722683588396, 0.04722359615581199, -0.052535302041946744, 0.05880530605881942, -0.06666404563057886,
  0.07692279906757409, -0.09090907009385782, 0.11111111007433314, -0.1428571428259106, 0.1999999999995179,
  -0.3333333333333307, 1.0)  # fmt: skip
HUGE = 2.0**62  # x*x does not overflow below, and x*x + 1 is x*x above


def in_float32(method: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
  """A function of several steps, which takes integers as floats and narrower floats as float32, rounding once, at
  the end."""

  @functools.wraps(method)
  def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> T:
    x = self._float()
    return method(x if x.dtype.itemsize >= 4 else x.float(), *args, **kwargs).cast(x.dtype)

  return call


def in_float64(method: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
  """As `in_float32`, and float32 as float64 where the device has it: the errors of the steps would add up."""
  return in_float32(functools.wraps(method)(lambda x, *args, **kwargs: method(x.cast(x._wide()), *args, **kwargs)))


class Math(Elementwise):
  """Functions of a real argument take integers as floats."""

  __slots__ = ()

  # ---- exponentials and roots

  @in_float32
  def exp2(self) -> Self:
    """2 to the power of x.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 3.0]).exp2().numpy().round(3))
      [0.5 1.  8. ]
    """
    return self.pow(2, reverse=True)

  @in_float64
  def log2(self) -> Self:
    """The logarithm to the base of 2; nan below 0, -inf at 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([1.0, 8.0]).log2().numpy().round(3))
      [0. 3.]
    """
    return self.log().mul(math.log2(math.e))

  @in_float64
  def log10(self) -> Self:
    """The logarithm to the base of 10; nan below 0, -inf at 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([1.0, 100.0]).log10().numpy().round(3))
      [0. 2.]
    """
    return self.log().mul(math.log10(math.e))

  @in_float32
  def rsqrt(self) -> Self:
    """1 / sqrt(x).
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0, 4.0]).rsqrt().tolist()
      [1.0, 0.5]
    """
    return self.sqrt().reciprocal()

  def logaddexp(self, other: Any) -> Self:
    """log(exp(x) + exp(y)) without overflow.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 1000.0]).logaddexp(Tensor([0.0, 1000.0])).numpy().round(3))
      [6.930000e-01 1.000693e+03]
    """
    a, b = self._both(other, "logaddexp")
    greater = a.maximum(b)
    size = a.eq(b).where(0.0, a.sub(b).abs())  # inf - inf is nan
    return greater.add(size.neg().exp()._log1p())

  def _log1p(self) -> Self:
    """log(1 + x), exact where u = 1 + x rounded is not: log u + (x - (u - 1))/u."""
    u = self.add(1)
    lost = self.sub(u.sub(1))
    return u.eq(1).where(self, u.log().add(lost.abs().gt(0).where(lost.div(u), 0.0).detach()))

  def _expm1(self) -> Self:
    """exp(x) - 1, exact where that cancels: u - 1 + u*(x - log u), u = exp(x) rounded."""
    u = self.exp()
    lost = self.abs().lt(1).where(u.mul(self.sub(u.log())), 0.0).detach()
    return u.eq(1).where(self, u.sub(1).add(lost))

  # ---- trigonometry

  @in_float64
  def tan(self) -> Self:
    """The tangent of angles in radians.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 1.0]).tan().numpy().round(3))
      [0.    1.557]
    """
    return self.sin().div(self.cos())

  def _cosine(self) -> Self:
    """sqrt(1 - x²), of x the sine of the angle: the product (1 + x)(1 - x) loses nothing, and the derivative of 1 - x²
    is none of 0 * inf at the ends."""
    near = self.square().sub(1, reverse=True)
    exact = self.add(1).mul(self.sub(1, reverse=True))
    return near.add(exact.sub(near).detach()).sqrt()

  @in_float64
  def asin(self) -> Self:
    """2 atan(x / (1 + sqrt(1 - x²))), in radians.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).asin().numpy().round(3))
      [-1.571  0.     1.571]
    """
    return self.div(self._cosine().add(1)).atan().mul(2)

  @in_float64
  def acos(self) -> Self:
    """2 atan(sqrt(1 - x²) / (1 + x)), for x below 0 by pi - acos(-x), in radians.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).acos().numpy().round(3))
      [3.142 1.571 0.   ]
    """
    below = self.lt(0)
    size = below.where(self.neg(), self)
    angle = size._cosine().div(size.add(1)).atan().mul(2)
    return below.where(angle.sub(math.pi, reverse=True), angle)

  @in_float64
  def atan(self) -> Self:
    """arctan in radians, by a polynomial on [-1, 1] after atan(x) = pi/2 - atan(1/x).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).atan().numpy().round(3))
      [-0.785  0.     0.785]
    """
    big = self.detach().abs().gt(1)
    t = big.where(big.where(self, 1.0).reciprocal(), self)
    z = t.square()
    r = functools.reduce(lambda p, c: p.mul(z).add(c), ATAN, t.const_like(0)).mul(t)
    return big.where(self.sign().mul(math.pi / 2).sub(r), r)

  @in_float64
  def sinh(self) -> Self:
    """(exp(x) - exp(-x)) / 2, exact near 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 1.0]).sinh().numpy().round(3))
      [0.    1.175]
    """
    small = self.abs().lt(1)
    e = small.where(self, 0.0)._expm1()
    return small.where(e.add(e.div(e.add(1))), self.exp().sub(self.neg().exp())).mul(0.5)

  @in_float64
  def cosh(self) -> Self:
    """(exp(x) + exp(-x)) / 2.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 1.0]).cosh().numpy().round(3))
      [1.    1.543]
    """
    return self.exp().add(self.neg().exp()).mul(0.5)

  @in_float64
  def asinh(self) -> Self:
    """log(x + sqrt(x² + 1)), by log1p.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 2.0]).asinh().numpy().round(3))
      [-0.881  0.     1.444]
    """
    side = self.const_like(1.0).copysign(self)  # the derivative of abs at 0 is none of asinh's
    size = self.mul(side)
    huge = size.gt(HUGE)
    x = huge.where(0.0, size)
    r = x.add(x.square().div(x.square().add(1).sqrt().add(1)))._log1p()
    return huge.where(huge.where(size, 1.0).log().add(math.log(2)), r).mul(side)

  @in_float64
  def acosh(self) -> Self:
    """2 asinh(sqrt((x - 1)/2)); nan below 1, where the derivative below -1 is 1/sqrt(x² - 1) still, as in PyTorch.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([1.0, 2.0]).acosh().numpy().round(3))
      [0.    1.317]
    """
    side = self.const_like(1.0).copysign(self)
    r = self.mul(side).sub(1).mul(0.5).sqrt().asinh().mul(2)
    return r.mul(side).add(self.lt(0).where(math.nan, 0.0))

  @in_float64
  def atanh(self) -> Self:
    """log((1 + x) / (1 - x)) / 2; nan outside [-1, 1].
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-0.5, 0.0, 0.5]).atanh().numpy().round(3))
      [-0.549  0.     0.549]
    """
    return self._log1p().sub(self.neg()._log1p()).mul(0.5)

  # ---- sign

  def sign(self) -> Self:
    """-1, 0 or 1; nan of nan. Its derivative is 0 everywhere.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-3.0, 0.0, 2.0]).sign().tolist()
      [-1.0, 0.0, 1.0]
    """
    return self.lt(0).where(-1, self.gt(0).where(1, self.detach()))

  def abs(self) -> Self:
    """The size of x, without its sign; its derivative at 0 is 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-1.5, 2.0]).abs().tolist()
      [1.5, 2.0]
    """
    if dtypes.is_unsigned(self.dtype) or self.dtype is dtypes.bool:
      return self._value()
    return self.mul(self.sign()) if dtypes.is_float(self.dtype) else self.lt(0).where(self.neg(), self)

  def copysign(self, other: Any) -> Self:
    """The size of x with the sign of y (the sign bit, so that of -0.0 too).
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1.0, 2.0]).copysign(Tensor([-0.0, 3.0])).tolist()
      [-1.0, 2.0]
    """
    y, size = self._both(other, "copysign")[1]._float(), self._float().abs()
    return y._bits(to_dtype(f"int{y.dtype.bitsize}")).lt(0).where(size.neg(), size)

  # ---- what kind of number

  def isnan(self) -> Self:
    """Whether each element is nan, as bools.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0, float("inf"), float("nan")]).isnan().tolist()
      [False, False, True]
    """
    return self.ne(self)

  def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
    """Whether each element is infinite, of the signs that are asked for, as bools.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0, float("inf"), float("nan")]).isinf().tolist()
      [False, True, False]
    """
    up, down = math.inf if detect_positive else math.nan, -math.inf if detect_negative else math.nan
    return self.eq(up).bitwise_or(self.eq(down))  # nothing equals nan

  def isfinite(self) -> Self:
    """Whether each element is neither infinite nor nan, as bools.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0, float("inf"), float("nan")]).isfinite().tolist()
      [True, False, False]
    """
    return self.isinf().bitwise_or(self.isnan()).logical_not()

  def isclose(self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
    """|x - y| <= atol + rtol*|y|, infinities equal to themselves.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1.0, 2.0]).isclose(Tensor([1.0, 2.1])).tolist()
      [True, False]
    """
    a, b = self._both(other, "isclose")
    near = a.isfinite().bitwise_and(b.isfinite()).bitwise_and(a.sub(b).abs().le(b.abs().mul(rtol).add(atol)))
    result = near.bitwise_or(a.eq(b))
    return result.bitwise_or(a.isnan().bitwise_and(b.isnan())) if equal_nan else result

  # ---- ranges

  def clamp(self, min_: Any = None, max_: Any = None) -> Self:
    """x, at least min_ and at most max_; either may be None. The derivative at a bound is 1. ValueError if both are.
    Shape: `(..), (..), (..) -> (..)`.

    Examples:
      >>> Tensor([-2.0, 0.5, 3.0]).clamp(-1, 1).tolist()
      [-1.0, 0.5, 1.0]
    """
    if min_ is None and max_ is None:
      raise ValueError("clamp: give at least one of min_ and max_")
    x = self if min_ is None else self.lt(min_).where(min_, self)
    return x if max_ is None else x.gt(max_).where(max_, x)

  clip = clamp

  def lerp(self, end: Self, weight: Any) -> Self:
    """x + (end - x)*weight.
    Shape: `(..), (..), (..) -> (..)`.

    Examples:
      >>> Tensor([0.0, 10.0]).lerp(Tensor([1.0, 20.0]), 0.5).tolist()
      [0.5, 15.0]
    """
    return self.add(end.sub(self).mul(weight))

  # ---- activations

  def relu(self) -> Self:
    """max(x, 0); its derivative at 0 is 0, where that of `maximum` is a half.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-1.0, 0.0, 2.0]).relu().tolist()
      [0.0, 0.0, 2.0]
    """
    return self.gt(0).where(self, self.detach().maximum(0))

  @in_float32
  def sigmoid(self) -> Self:
    """1 / (1 + exp(-x)), below 0 exp(x) / (1 + exp(x)): neither a value nor a derivative overflows or is lost.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1000.0, 0.0, 1.0]).sigmoid().numpy().round(3))
      [0.    0.5   0.731]
    """
    below = self.lt(0)
    e = below.where(self, self.neg()).exp()
    return below.where(e, 1.0).div(e.add(1))

  @in_float32
  def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
    """alpha*x + beta, at least 0 and at most 1.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-4.0, 0.0, 1.0]).hardsigmoid().numpy().round(3))
      [0.    0.5   0.667]
    """
    return self.mul(alpha).add(beta).hardtanh(0, 1)

  @in_float32
  def silu(self) -> Self:
    """x * sigmoid(x) (https://arxiv.org/abs/1606.08415).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).silu().numpy().round(3))
      [-0.269  0.     0.731]
    """
    return self.mul(self.sigmoid())

  swish = silu

  @in_float32
  def gelu(self, approximate: str = "tanh") -> Self:
    """x * Phi(x) (https://arxiv.org/abs/1606.08415), exactly ("none") or by its tanh approximation ("tanh").
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).gelu().numpy().round(3))
      [-0.159  0.     0.841]
      >>> print(Tensor([-1.0, 0.0, 1.0]).gelu("none").numpy().round(3))
      [-0.159  0.     0.841]
    """
    check_choice("gelu", "approximation", approximate, "tanh", "none")
    if approximate == "tanh":
      inner = self.mul(math.sqrt(2 / math.pi)).mul(self.mul(self).mul(0.044715).add(1))
      return self.mul(0.5).mul(inner.tanh().add(1))

    return self.mul(0.5).mul(self.mul(1 / math.sqrt(2)).erf().add(1))

  @in_float32
  def quick_gelu(self) -> Self:
    """x * sigmoid(1.702 x): near `gelu`, with one exponential.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).quick_gelu().numpy().round(3))
      [-0.154  0.     0.846]
    """
    return self.mul(self.mul(1.702).sigmoid())

  def leaky_relu(self, neg_slope: float = 0.01) -> Self:
    """x above 0, neg_slope*x below.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-2.0, 3.0]).leaky_relu(0.25).tolist()
      [-0.5, 3.0]
    """
    return self.gt(0).where(self, self.mul(neg_slope))

  def relu6(self) -> Self:
    """x, at least 0 and at most 6; its derivative at the bounds is 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-1.0, 3.0, 9.0]).relu6().tolist()
      [0.0, 3.0, 6.0]
    """
    return self.hardtanh(0, 6)

  @in_float32
  def hardswish(self) -> Self:
    """x * relu6(x + 3) / 6 (https://arxiv.org/abs/1905.02244).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-4.0, 1.0, 3.0]).hardswish().numpy().round(3))
      [-0.     0.667  3.   ]
    """
    return self.mul(self.add(3).relu6()).mul(1 / 6)

  def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
    """`clamp`, with a derivative of 0 at the bounds.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-2.0, 0.5, 3.0]).hardtanh().tolist()
      [-1.0, 0.5, 1.0]
    """
    return self.gt(min_val).bitwise_and(self.lt(max_val)).where(self, self.detach().clamp(min_val, max_val))

  @in_float32
  def elu(self, alpha: float = 1.0) -> Self:
    """x above 0, alpha*(exp(x) - 1) below (https://arxiv.org/abs/1511.07289).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).elu().numpy().round(3))
      [-0.632  0.     1.   ]
    """
    return self.gt(0).where(self, self.gt(0).where(0.0, self)._expm1().mul(alpha))

  @in_float32
  def celu(self, alpha: float = 1.0) -> Self:
    """x above 0, alpha*(exp(x/alpha) - 1) below (https://arxiv.org/abs/1704.07483).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).celu().numpy().round(3))
      [-0.632  0.     1.   ]
    """
    return self.gt(0).where(self, self.gt(0).where(0.0, self).div(alpha)._expm1().mul(alpha))

  @in_float32
  def selu(self, alpha: float = 1.67326, gamma: float = 1.0507) -> Self:
    """gamma * elu(x, alpha) (https://arxiv.org/abs/1706.02515).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).selu().numpy().round(3))
      [-1.111  0.     1.051]
    """
    return self.elu(alpha).mul(gamma)

  @in_float32
  def softplus(self, beta: float = 1.0) -> Self:
    """log(1 + exp(beta*x)) / beta.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-100.0, 0.0, 1.0]).softplus().numpy().round(3))
      [0.    0.693 1.313]
    """
    return self.mul(beta).logaddexp(0.0).mul(1 / beta)

  @in_float32
  def softsign(self) -> Self:
    """x / (1 + |x|).
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-1.0, 0.0, 3.0]).softsign().tolist()
      [-0.5, 0.0, 0.75]
    """
    return self.div(self.abs().add(1))

  @in_float32
  def mish(self) -> Self:
    """x * tanh(softplus(x)) (https://arxiv.org/abs/1908.08681).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).mish().numpy().round(3))
      [-0.303  0.     0.865]
    """
    return self.mul(self.softplus().tanh())

  @in_float32
  def logsigmoid(self) -> Self:
    """log(sigmoid(x)), without overflow.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-100.0, 0.0]).logsigmoid().numpy().round(3))
      [-100.      -0.693]
    """
    return self.neg().softplus().neg()

  # ---- the graph

  def detach(self) -> Self:
    """The value, through which no gradient flows.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor([3.0])
      >>> (x * x.detach()).sum().gradient(x)[0].tolist()
      [3.0]
    """
    return self._seen(self.uop.detach())

  def contiguous(self) -> Self:
    """The value in a buffer of its own, so that nothing before it is fused into what comes after.
    Shape: `(..) -> (..)`.

    Examples:
      >>> x = Tensor.ones(2, 3).T.contiguous()
      >>> x.realize().shape
      (3, 2)
    """
    return self._new(self.uop.contiguous())

  def contiguous_backward(self) -> Self:
    """The value. A hint to give the gradient a buffer, which the scheduler here decides by itself.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0]).contiguous_backward().tolist()
      [1.0]
    """
    return self._value()
