"""Elementary functions and activations, written in the elementwise primitives."""

import functools
import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tinygrad.dtype import DType, dtypes, to_dtype
from tinygrad.mixin.base import also_named, check_choice, python_number
from tinygrad.mixin.casts import Casts
from tinygrad.transforms.tangent_rules import custom_jvp

P = ParamSpec("P")
T = TypeVar("T", bound=Casts)
# (f(x)/x - 1)/x² in x², least squares at Chebyshev nodes, for float64 and what is rounded to float32; with the error
# of f(x): asin (6e-20, 1e-12) and atanh (3e-20, 6e-12) for |x| <= 1/2, atan (5e-18, 9e-12) and sinh (7e-23, 6e-11) to 1
SERIES = {
  "asin": ((0.1666666666666666, 0.07500000000002562, 0.04464285713965629, 0.030381944646400077, 0.022372151547253662,
    0.017352946390760602, 0.013961859133468275, 0.011586109120318397, 0.009481094432887676, 0.01002362388782477,
    0.0006356269750115389, 0.024928712305121923, -0.026282034217700246, 0.03372046873270213),
    (0.1666666662657668, 0.07500005056638288, 0.044640682292376575, 0.030426939213505623, 0.021862084173713575,
    0.020663838803641817, 0.0019355979209722425, 0.032955634700828754)),
  "atan": ((-0.3333333333333307, 0.1999999999995179, -0.1428571428259106, 0.11111111007433314, -0.09090907009385782,
    0.07692279906757409, -0.06666404563057886, 0.05880530605881942, -0.052535302041946744, 0.04722359615581199,
    -0.042192722683588396, 0.03664373062497292, -0.02990663331734241, 0.021988145732047954, -0.013903565408396979,
    0.007198571464736322, -0.0028859558825863234, 0.0008316795837053217, -0.0001522366573754924,
    1.3232510843605093e-05),
    (-0.333333331298188, 0.1999998531510983, -0.1428534298959688, 0.11106366062058161, -0.0905493176269853,
    0.07515298932101946, -0.06068485037140739, 0.04436368706850519, -0.026742535880982115, 0.01190874444256929,
    -0.003376353626194161, 0.0004490475023362902)),
  "sinh": ((0.16666666666666666, 0.008333333333333333, 0.0001984126984126959, 2.755731922412023e-06,
    2.5052108345643517e-08, 1.6059050705650406e-10, 7.646476373374103e-13, 2.8483980100874463e-15),
    (0.16666666489632068, 0.00833335052840652, 0.00019836079798265813, 2.8173635879115642e-06)),
  "atanh": ((0.33333333333333337, 0.19999999999998344, 0.1428571428595041, 0.11111111094061171, 0.0909090982300999,
    0.07692287265592669, 0.06667057470556029, 0.058770531675620276, 0.053150752139929786, 0.04391823751302372,
    0.06259454341585002, -0.030263181054392508, 0.21363735664170416, -0.24500580132294178, 0.2594388644962013),
    (0.33333333102927726, 0.2000002902195078, 0.14284467912310575, 0.11136852166131471, 0.08799735941993782,
    0.09576775460384836, -0.0014794787229155384, 0.17897534703470727)),
}  # fmt: skip
FAR = 2.0**100  # of whose reciprocal no function here sees anything
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


@custom_jvp
def _sinh(x: Any) -> Any:
  size = x.lt(0).where(x.neg(), x)
  wide = size.cast(x._wide())
  e = wide.exp()
  y = size.lt(1).where(wide._odd("sinh", x.dtype), e.sub(e.reciprocal()).mul(0.5)).cast(x.dtype)
  return x.lt(0).where(y.neg(), y)


@custom_jvp
def _cosh(x: Any) -> Any:
  e = x.lt(0).where(x.neg(), x).exp()
  return e.add(e.reciprocal()).mul(0.5)


@custom_jvp
def _atanh(x: Any) -> Any:
  wide = x.cast(x._wide())
  far = wide.add(1).div(wide.sub(1, reverse=True)).log().mul(0.5)
  return x.abs().le(0.5).where(wide._odd("atanh", x.dtype), far).cast(x.dtype)


_sinh.defjvp(lambda x, t: (_sinh(*x), t[0].mul(x[0].cosh())))
_cosh.defjvp(lambda x, t: (_cosh(*x), t[0].mul(x[0].sinh())))
_atanh.defjvp(lambda x, t: (_atanh(*x), t[0].div(x[0].add(1).mul(x[0].sub(1, reverse=True)))))


class Math(Casts):
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
    below = a.lt(b)  # one side where they are equal, as derivatives of derivatives need it
    greater, less = below.where(b, a), below.where(a, b)
    size = greater.eq(less).bitwise_and(greater.isinf()).where(0.0, less.sub(greater))  # inf - inf is nan
    return greater.add(size.exp()._log1p())

  def _log1p(self) -> Self:
    """log(1 + x), exact where u = 1 + x rounded is not: log u + (x - (u - 1))/u."""
    u = self.add(1)
    lost = self.sub(u.sub(1))
    near = u.eq(1).where(self, 0.0)
    small = near.mul(near.mul(near.mul(1 / 3).sub(0.5)).add(1))  # which is x, and has the derivatives
    return u.eq(1).where(small, u.log().add(lost.abs().gt(0).where(lost.div(u), 0.0).detach()))

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

  def _odd(self, function: str, dtype: DType) -> Self:
    """x + x³·P(x²), which is rounded to `dtype`, and 0 with its sign."""
    z, (*coefficients, last) = self.square(), SERIES[function][dtype is not dtypes.float64]
    p = functools.reduce(lambda p, c: p.mul(z).add(c), reversed(coefficients), z.const_like(last))
    if dtype is dtypes.float64:
      return z.eq(0).where(self, self.add(self.mul(z).mul(p)))
    return self.mul(z.mul(p).add(1))  # in a wider type, where it makes no difference

  def _arcsine(self) -> tuple[Self, Self]:
    """(whether |x| <= 1/2, the arc sine in the wider type of x where it is, else of sqrt((1 - |x|)/2)): asin x = pi/2 -
    2 asin(sqrt((1 - x)/2))."""
    x = self.cast(self._wide())
    near = x.detach().abs().le(0.5)
    half = x.lt(0).where(x, x.neg()).add(1).mul(0.5)
    return near, near.where(x, near.where(0.25, half).sqrt())._odd("asin", self.dtype)

  @in_float32
  def asin(self) -> Self:
    """x + x³·P(x²) for |x| <= 1/2, beyond by asin(x) = pi/2 - 2 asin(sqrt((1 - x)/2)), in radians.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).asin().numpy().round(3))
      [-1.571  0.     1.571]
    """
    near, angle = self._arcsine()
    rest = angle.mul(-2).add(math.pi / 2)
    return near.where(angle, self.lt(0).where(rest.neg(), rest))

  @in_float32
  def acos(self) -> Self:
    """pi/2 - asin(x) for |x| <= 1/2, above 2 asin(sqrt((1 - x)/2)), below pi - acos(-x), in radians.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).acos().numpy().round(3))
      [3.142 1.571 0.   ]
    """
    near, angle = self._arcsine()
    rest = angle.mul(2)
    return near.where(angle.sub(math.pi / 2, reverse=True), self.lt(0).where(rest.sub(math.pi, reverse=True), rest))

  @in_float32
  def atan(self) -> Self:
    """arctan in radians, by a polynomial on [-1, 1] after atan(x) = pi/2 - atan(1/x).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).atan().numpy().round(3))
      [-0.785  0.     0.785]
    """
    big, wide = self.detach().abs().gt(1), self._wide()
    x = big.where(self, 1.0).clamp(-FAR, FAR)
    t = x.reciprocal().cast(wide)
    if wide is not self.dtype:  # a step of Newton's
      t = t.mul(x.cast(wide).mul(t).sub(2, reverse=True))
    r = big.where(t, self.cast(wide))._odd("atan", self.dtype)
    return big.where(self.lt(0).where(-math.pi / 2, r.const_like(math.pi / 2)).sub(r), r)

  @in_float32
  def sinh(self) -> Self:
    """(exp(x) - exp(-x)) / 2, exact near 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 1.0]).sinh().numpy().round(3))
      [0.    1.175]
    """
    y: Self = _sinh(self)
    return y

  @in_float64
  def cosh(self) -> Self:
    """(exp(x) + exp(-x)) / 2.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 1.0]).cosh().numpy().round(3))
      [1.    1.543]
    """
    y: Self = _cosh(self)
    return y

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

  @in_float32
  def atanh(self) -> Self:
    """x + x³·P(x²) for |x| <= 1/2, beyond log((1 + x) / (1 - x)) / 2; nan outside [-1, 1].
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-0.5, 0.0, 0.5]).atanh().numpy().round(3))
      [-0.549  0.     0.549]
    """
    y: Self = _atanh(self)
    return y

  # ---- sign

  def sign(self) -> Self:
    """-1, 0 or 1; nan of nan. Its derivative is 0 everywhere.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-3.0, 0.0, 2.0]).sign().tolist()
      [-1.0, 0.0, 1.0]
    """
    positive = self.gt(0).where(1, self.detach())
    return positive if dtypes.is_unsigned(self.dtype) else self.lt(0).where(-1, positive)

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

  __abs__ = abs

  def copysign(self, other: Any) -> Self:
    """The size of x with the sign of y (the sign bit, so that of -0.0 too).
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1.0, 2.0]).copysign(Tensor([-0.0, 3.0])).tolist()
      [-1.0, 2.0]
    """
    y, size = self._float()._both(other, "copysign")[1]._float(), self._float().abs()
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

  @also_named(min="min_", max="max_")
  def clamp(self, min_: Any = None, max_: Any = None) -> Self:
    """x, at least min_ and at most max_; either may be None, or beyond all integers of the type, which is no bound. The
    derivative at a bound is 1. ValueError if both are None.
    Shape: `(..), (..), (..) -> (..)`.

    Examples:
      >>> Tensor([-2.0, 0.5, 3.0]).clamp(-1, 1).tolist()
      [-1.0, 0.5, 1.0]
    """
    if min_ is None and max_ is None:
      raise ValueError("clamp: neither min_ nor max_ is given\n  fix: give at least one of them, e.g. x.clamp(0)")
    wide = (min_ is None or self._beyond(min_) < 0, max_ is None or self._beyond(max_) > 0)  # no bound for this type
    low, high = (None if skip else self._wrap(self._lift(x, "clamp")) for x, skip in zip((min_, max_), wide))
    x = self._value() if low is None else self.lt(low).where(low, self)
    return x if high is None else x.gt(high).where(high, x)

  clip = clamp

  def lerp(self, end: Self, weight: Any) -> Self:
    """x + (end - x)*weight, computed from the nearer end: x where weight is 0, `end` where it is 1, if both are finite.
    Shape: `(..), (..), (..) -> (..)`.

    Examples:
      >>> Tensor([0.0, 10.0]).lerp(Tensor([1.0, 20.0]), 0.5).tolist()
      [0.5, 15.0]
    """
    way = end.sub(self)
    if isinstance(weight, (int, float)):
      return self.add(way.mul(weight)) if weight < 0.5 else end.add(way.mul(weight - 1))
    weight = python_number(weight)
    near = self._wrap(self._lift(weight, "lerp")).lt(0.5)
    return near.where(self, end).add(way.mul(near.where(weight, -1 + weight)))

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

  @also_named(negative_slope="neg_slope")
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
  def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
    """gamma * elu(x, alpha) (https://arxiv.org/abs/1706.02515).
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).selu().numpy().round(3))
      [-1.111  0.     1.051]
    """
    return self.elu(alpha).mul(gamma)

  @in_float32
  def softplus(self, beta: float = 1.0) -> Self:
    """log(1 + exp(beta*x)) / beta. ValueError for a beta of 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-100.0, 0.0, 1.0]).softplus().numpy().round(3))
      [0.    0.693 1.313]
    """
    if isinstance(beta, (int, float)) and beta == 0:
      raise ValueError(
        "softplus: beta must not be 0, for it divides\n  fix: beta=1.0, or relu, which a large beta nears"
      )
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
