"""Elementwise arithmetic, comparisons and bits, and the operators that stand for them."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, Self, TypeAlias, TypeVar

from tinygrad.dtype import DType, check_holds, dtypes, holds_number, least_upper_float, to_dtype
from tinygrad.mixin.base import Base, Scalar, check_choice, common_dtype, common_shape, mismatch, weak_dtype
from tinygrad.mixin.movement import Movement
from tinygrad.ops import Trait, having
from tinygrad.ops.elementwise import OF_BOOLS
from tinygrad.uop import CARDS, GroupOp, Ops, UOp

T = TypeVar("T", bound="Elementwise")

Operator: TypeAlias = Callable[[T, Any], T]


def unary(op: Ops) -> Callable[[T], T]:
  """The method of a primitive of floats."""
  return lambda self: self._unary(op)


def operators(method: Callable[[T, Any, bool], T]) -> tuple[Operator[T], ...]:
  """What a method stands for: `x op y`, the operator that finds its tensor on its right, and `x op= y`."""

  def applied(reverse: bool) -> Operator[T]:
    return lambda self, x: method(self, x, reverse)

  return applied(False), applied(True), lambda self, x: self.assign(method(self, x, False))


class Elementwise(Movement):
  __slots__ = ()

  # ---- how ops are applied

  def alu(self, op: Ops, *src: Self) -> Self:
    """An elementwise primitive of this and other tensors, whose shapes and types must be the ones it takes.
    Shape: `(..), … -> (..)`.

    Examples:
      >>> Tensor([1, 2]).alu(Ops.MUL, Tensor([3, 4])).tolist()
      [3, 8]
    """
    return self._new(self.uop.alu(op, *(s.uop for s in src)))

  def ufix(self, x: Any) -> Self:
    """An operand as a tensor: a number takes the type that it has beside this one.
    Shape: `(*dims) -> ()`; of a tensor its own.

    Examples:
      >>> Tensor([1.0]).ufix(2).dtype
      dtypes.float32
    """
    return x if isinstance(x, type(self)) else self._wrap(self._lift(x, "ufix"))

  def assign(self, x: Any) -> Self:
    """Writes x into this tensor's memory.

    Examples:
      >>> x = Tensor.zeros(2).contiguous().realize()
      >>> x.assign([1.0, 2.0]).tolist()
      [1.0, 2.0]
    """
    raise NotImplementedError

  def _float(self) -> Self:
    return self.cast(least_upper_float(self.dtype))

  def _unary(self, op: Ops) -> Self:
    """A primitive of floats; integers are taken as floats."""
    return self._new(self._float().uop.alu(op))

  def _whole(self, op: Ops) -> Self:
    """A primitive that gives whole numbers; integers stay as they are."""
    return self._unary(op) if dtypes.is_float(self.dtype) else self._value()

  def _bits(self, dtype: DType) -> Self:
    """The same bits read as another type of the same width."""
    return self._new(self.uop.bitcast(dtype))

  def _binary(self, op: Ops, x: Any, name: str, reverse: bool = False) -> Self:
    a, b = self._operands(x, name, reverse)
    return self._new(a.alu(OF_BOOLS.get(op, op) if a.dtype is dtypes.bool else op, b))

  def _comparison(self, op: Ops, x: Any, name: str, reverse: bool = False) -> Self:
    return self._binary(op, self._comparable(x), name, reverse)

  def _beyond(self, x: Any) -> Any:
    """-1 or 1 for an integer below, or above, all that this integer type holds; 0 for all else."""
    if not isinstance(x, (Base, UOp)) and getattr(x, "shape", None) == ():  # a numpy scalar is a number too
      x = x.item()
    beyond = isinstance(x, int) and not holds_number(weak_dtype(self.dtype, x), x)
    return (-1 if x < 0 else 1) if beyond else 0

  def _comparable(self, x: Any) -> Any:
    """A number beyond what this integer type holds is above, or below, every element, as infinity is: of a float type
    that holds all integers, which the default one need not be."""
    side = self._beyond(x)
    return self._wrap(UOp.const(dtypes.float32, side * math.inf)) if side else x

  def _integer_binary(self, op: Ops, x: Any, name: str, reverse: bool = False, boolean: bool = False) -> Self:
    a, b = self._operands(x, name, reverse)
    if dtypes.is_float(a.dtype) or (dtypes.is_bool(a.dtype) and not boolean):
      kinds = "integers or bools" if boolean else "integers"
      mismatch(name, f"works on {kinds}", (a, b), "cast the operands, e.g. x.int()", TypeError)
    return self._new(a.alu(op, b))

  def const_like(self, b: Scalar, dtype: DType | None = None) -> Self:
    """A constant of this shape, in this type unless given.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0, 2.0]).const_like(7).tolist()
      [7.0, 7.0]
    """
    d = self.dtype if dtype is None else to_dtype(dtype)
    check_holds(d, b)
    return self._wrap(UOp.const(d, b).broadcast_to(self.shape))

  def _always(self, value: Scalar) -> Self:
    """`value` whatever the element is, nan too: unlike `const_like` it depends on this tensor, with derivative 0."""
    return self.ne(self).where(self.const_like(value), value)

  # ---- arithmetic

  def neg(self) -> Self:
    """-x; of a bool its negation.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([1.0, -2.0]).neg().tolist()
      [-1.0, 2.0]
    """
    return self.alu(Ops.NOT if self.dtype is dtypes.bool else Ops.NEG)

  def add(self, x: Any, reverse: bool = False) -> Self:
    """x + y; of bools their or.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2]).add(10).tolist()
      [11, 12]
      >>> (Tensor([1, 2]) + 0.5).tolist()
      [1.5, 2.5]
    """
    return self._binary(Ops.ADD, x, "add", reverse)

  def sub(self, x: Any, reverse: bool = False) -> Self:
    """x - y. TypeError for bools.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([5, 7]).sub(2).tolist()
      [3, 5]
    """
    a, b = self._operands(x, "sub", reverse)
    if a.dtype is dtypes.bool:
      mismatch("sub", "bools cannot be subtracted", (a, b), "use ^ for their difference, or cast to int", TypeError)
    return self._new(a.alu(Ops.SUB, b))

  def mul(self, x: Any, reverse: bool = False) -> Self:
    """x * y; of bools their and.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2]).mul(Tensor([3, 4])).tolist()
      [3, 8]
    """
    return self._binary(Ops.MUL, x, "mul", reverse)

  def div(self, x: Any, reverse: bool = False, rounding_mode: Literal["trunc", "floor"] | None = None) -> Self:
    """x / y as a float; with `rounding_mode` the quotient rounded toward zero or down, integers staying integers.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([3, 4]).div(2).tolist()
      [1.5, 2.0]
      >>> Tensor([-7]).div(2, rounding_mode="trunc").tolist()
      [-3]
    """
    if rounding_mode is None and self._beyond(x):
      x = float(x)  # the quotient is one of floats
    a, b = self._operands(x, "div", reverse)
    if rounding_mode is None:
      dtype = least_upper_float(a.dtype)
      return self._new(a.cast(dtype).alu(Ops.FDIV, b.cast(dtype)))
    check_choice("div", "rounding_mode", rounding_mode, "trunc", "floor")
    if dtypes.is_float(a.dtype):
      q = self._new(a.alu(Ops.FDIV, b))
      return q.trunc() if rounding_mode == "trunc" else q._floored(self._wrap(a), self._wrap(b))
    if dtypes.is_bool(a.dtype):
      a, b = a.cast(dtypes.uint8), b.cast(dtypes.uint8)
    q = self._new(a.alu(Ops.IDIV, b))
    if rounding_mode == "floor" or dtypes.is_unsigned(a.dtype):
      return q
    x0, y0 = self._wrap(a), self._wrap(b)
    rounded_down = x0.mod(y0).ne(0).bitwise_and(x0.lt(0).ne(y0.lt(0)))
    return q.add(rounded_down.cast(q.dtype))

  def _floored(self, x: Self, y: Self) -> Self:
    """x // y of floats, given x / y, so that x == x // y * y + x % y: 1 // 0.1 is 9, as 0.1 is a little more than a
    tenth, although the quotient rounds to 10. As CPython's float_floor_div."""
    wide = x._wide()
    x, y = x.cast(wide), y.cast(wide)
    rest = x.fmod(y)
    whole = x.sub(rest).div(y).round().sub(rest._is_against(y).cast(wide))
    return y.eq(0).where(self, whole.cast(self.dtype))

  def _is_against(self, divisor: Self) -> Self:
    """Whether a remainder has the other sign than its divisor."""
    return self.ne(0).bitwise_and(self.lt(0).ne(divisor.lt(0)))

  def mod(self, x: Any, reverse: bool = False) -> Self:
    """x - y*floor(x/y): the remainder with the sign of the divisor, as Python's %.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([-7, 7]).mod(3).tolist()
      [2, 1]
    """
    a, b = self._operands(x, "mod", reverse)
    if not dtypes.is_float(a.dtype):
      return self._integer_binary(Ops.MOD, x, "mod", reverse)
    divisor, rest = self._wrap(b), self._wrap(a).fmod(self._wrap(b))
    return rest._is_against(divisor).where(rest.add(divisor), rest)

  def fmod(self, x: Any) -> Self:
    """The remainder with the sign of the dividend, as C's fmod: exact of float32 where |x / y| < 2**29 and the device
    has float64, of float64 where it is below 2**52, of what has no wider type than float32 where it is below 2**23.
    Else it is off by as much as x / y times y is rounded.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([-7.0, 7.0]).fmod(3).tolist()
      [-1.0, 1.0]
    """
    a, b = self._both(x, "fmod")
    kind = a.dtype
    if not dtypes.is_float(kind):
      return a.sub(a.div(b, rounding_mode="trunc").mul(b))
    wide = a._wide()
    a, b = a.cast(wide), b.cast(wide)
    quotient = a.div(b, rounding_mode="trunc")
    if kind is not wide and wide is dtypes.float64:  # the product is exact
      rest = a.sub(quotient.mul(b))
    else:
      rest = a._less_product(quotient, b)
      over = rest._is_against(a)  # x / y was rounded up to this whole
      rest = over.where(rest.add(quotient.lt(0).where(b.neg(), b)), rest)
    return quotient.eq(0).where(a, rest).cast(kind)  # 0 * inf is nan

  def _less_product(self, quotient: Self, y: Self) -> Self:
    """x - q*y for the whole q next to x / y, exact where q has a bit less than the type: q and y are cut into halves
    whose products are exact, with or without fused multiply-adds (T. J. Dekker, 1971), and so is what is left after
    each, a multiple of y's last bit."""
    low = 27 if self.dtype is dtypes.float64 else 12  # bits that q's upper half has not; y's lacks one less
    q1, y1 = quotient._upper(low), y._upper(low - 1)
    q0, y0 = quotient.sub(q1), y.sub(y1)
    return self.sub(q1.mul(y1)).sub(q1.mul(y0)).sub(q0.mul(y1)).sub(q0.mul(y0))

  def _upper(self, low: int) -> Self:
    """The floats without their last bits, as constants to a gradient."""
    word = dtypes.uint64 if self.dtype is dtypes.float64 else dtypes.uint32
    mask = (1 << 8 * word.itemsize) - (1 << low)
    bits: Self = self._new(self.uop.detach())._bits(word).bitwise_and(mask)
    return bits._bits(self.dtype)

  def maximum(self, x: Any) -> Self:
    """The greater of x and y, nan if one is; where they are equal each has half of the derivative.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 5]).maximum(3).tolist()
      [3, 5]
    """
    return self._binary(Ops.MAX, x, "maximum")

  def minimum(self, x: Any) -> Self:
    """The lesser of x and y, nan if one is; where they are equal each has half of the derivative.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 5]).minimum(3).tolist()
      [1, 3]
    """
    return self._binary(Ops.MIN, x, "minimum")

  def pow(self, x: Any, reverse: bool = False) -> Self:
    """x ** y. Integers to a negative number raise TypeError; a constant whole exponent is multiplications, 0.5 a square
    root.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([2.0, 3.0]).pow(2).tolist()
      [4.0, 9.0]
      >>> (2 ** Tensor([1.0, 3.0])).tolist()
      [2.0, 8.0]
    """
    if not reverse and isinstance(x, (int, float)) and not isinstance(x, bool):
      number = dtypes.default_int if isinstance(x, int) else dtypes.default_float
      narrower = self.dtype is dtypes.bool or isinstance(x, float) and not dtypes.is_float(self.dtype)
      base = self.cast(number) if narrower else self
      if x < 0 and not dtypes.is_float(base.dtype):
        fix = "cast the base to a float first: x.float() ** y"
        mismatch("pow", f"an integer to the power of {x} is not an integer", [self.uop], fix, TypeError)
      if abs(x) <= 64 and x == int(x):
        y = base.cast(base._wide()) if abs(x) > 3 or x < -1 else base
        y = y.reciprocal() if x < 0 else y  # first: x² may be 0 or infinite, and the derivative of its reciprocal nan
        bits = f"{abs(int(x)):b}"[1:]  # of the exponent, below the first
        y = functools.reduce(lambda p, bit: p.mul(p).mul(y) if bit == "1" else p.mul(p), bits, y if x else y._always(1))
        return y.cast(base.dtype)._value()
      if x in (0.5, -0.5):
        root = base.sqrt()
        return root if x > 0 else root.reciprocal()
    a, b = self._operands(x, "pow", reverse)
    if dtypes.is_float(a.dtype):
      return self._new(a.alu(Ops.POW, b))
    base, n = self._new(a), self._new(b)
    one, unit = base.const_like(1), base.eq(1) if dtypes.is_unsigned(a.dtype) else base.eq(1) | base.eq(-1)
    below, odd = n < 0, n & 1
    n, out = below.where(odd, n), one
    for _ in range(8 * a.dtype.itemsize - (not dtypes.is_unsigned(a.dtype))):  # what does not fit wraps around
      out, base, n = (n & 1).ne(0).where(out * base, out), base * base, n >> 1
    return (below & ~unit).where(0, out)

  # unary functions without a line here are methods too (below), which type checkers do not see
  def exp(self) -> Self:
    """e to the power of x.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 1.0]).exp().numpy().round(3))
      [1.    2.718]
    """
    return self._unary(Ops.EXP)

  def log(self) -> Self:
    """The natural logarithm; nan below 0, -inf at 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([1.0, 2.0]).log().numpy().round(3))
      [0.    0.693]
    """
    return self._unary(Ops.LOG)

  def sqrt(self) -> Self:
    """The square root; nan below 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([4.0, 9.0]).sqrt().tolist()
      [2.0, 3.0]
    """
    return self._unary(Ops.SQRT)

  def reciprocal(self) -> Self:
    """1 / x.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([2.0, 4.0]).reciprocal().tolist()
      [0.5, 0.25]
    """
    return self._unary(Ops.RECIP)

  def sin(self) -> Self:
    """The sine of angles in radians.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 1.0]).sin().numpy().round(3))
      [0.    0.841]
    """
    return self._unary(Ops.SIN)

  def cos(self) -> Self:
    """The cosine of angles in radians.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([0.0, 1.0]).cos().numpy().round(3))
      [1.   0.54]
    """
    return self._unary(Ops.COS)

  def tanh(self) -> Self:
    """The hyperbolic tangent.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).tanh().numpy().round(3))
      [-0.762  0.     0.762]
    """
    return self._unary(Ops.TANH)

  def erf(self) -> Self:
    """The error function.
    Shape: `(..) -> (..)`.

    Examples:
      >>> print(Tensor([-1.0, 0.0, 1.0]).erf().numpy().round(3))
      [-0.843  0.     0.843]
    """
    return self._unary(Ops.ERF)

  def square(self) -> Self:
    """x * x.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-2.0, 3.0]).square().tolist()
      [4.0, 9.0]
    """
    return self.mul(self)

  def usum(self, *xs: Self) -> Self:
    """self + xs[0] + …
    Shape: `(..), … -> (..)`.

    Examples:
      >>> Tensor([2]).usum(Tensor([3]), Tensor([4])).tolist()
      [9]
    """
    return functools.reduce(lambda a, b: a.add(b), xs, self._value())

  def uprod(self, *xs: Self) -> Self:
    """self * xs[0] * …
    Shape: `(..), … -> (..)`.

    Examples:
      >>> Tensor([2]).uprod(Tensor([3]), Tensor([4])).tolist()
      [24]
    """
    return functools.reduce(lambda a, b: a.mul(b), xs, self._value())

  # ---- rounding

  def floor(self) -> Self:
    """The greatest whole number that is not above x; integers stay.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-1.5, 1.5]).floor().tolist()
      [-2.0, 1.0]
    """
    return self._whole(Ops.FLOOR)

  def ceil(self) -> Self:
    """The least whole number that is not below x; integers stay.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-1.5, 1.5]).ceil().tolist()
      [-1.0, 2.0]
    """
    return self._whole(Ops.CEIL)

  def round(self) -> Self:
    """The nearest whole number, of halves the even one; integers stay.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([0.5, 1.5, 2.6]).round().tolist()
      [0.0, 2.0, 3.0]
    """
    return self._whole(Ops.ROUND)

  def trunc(self) -> Self:
    """Toward zero.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([-1.5, 1.5]).trunc().tolist()
      [-1.0, 1.0]
    """
    return self.lt(0).where(self.ceil(), self.floor()) if dtypes.is_float(self.dtype) else self._value()

  # ---- comparison and choice

  def lt(self, x: Any) -> Self:
    """x < y, as bools.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2, 3]).lt(2).tolist()
      [True, False, False]
    """
    return self._comparison(Ops.CMPLT, x, "lt")

  def gt(self, x: Any) -> Self:
    """x > y, as bools.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2, 3]).gt(2).tolist()
      [False, False, True]
    """
    return self._comparison(Ops.CMPLT, x, "gt", True)

  def eq(self, x: Any) -> Self:
    """x == y, as bools; nan equals nothing.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2]).eq(2).tolist()
      [False, True]
    """
    return self._comparison(Ops.CMPEQ, x, "eq")

  def ne(self, x: Any) -> Self:
    """x != y, as bools.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2]).ne(2).tolist()
      [True, False]
    """
    return self._comparison(Ops.CMPNE, x, "ne")

  def _or_equal(self, x: Any, name: str, reverse: bool) -> Self:
    a, b = self._operands(self._comparable(x), name, reverse)
    if dtypes.is_float(a.dtype):  # nan is neither below, equal nor above
      return self._new(a.alu(Ops.CMPLT, b).alu(Ops.OR, a.alu(Ops.CMPEQ, b)))
    return self._new(b.alu(Ops.CMPLT, a).alu(Ops.NOT))

  def le(self, x: Any) -> Self:
    """x <= y, as bools.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2, 3]).le(2).tolist()
      [True, True, False]
    """
    return self._or_equal(x, "le", False)

  def ge(self, x: Any) -> Self:
    """x >= y, as bools.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2, 3]).ge(2).tolist()
      [False, True, True]
    """
    return self._or_equal(x, "ge", True)

  def where(self, x: Any, y: Any) -> Self:
    """x where this bool tensor is True, else y; both broadcast. TypeError if this is no bool tensor.
    Shape: `(..), (..), (..) -> (..)`.

    Examples:
      >>> Tensor([True, False]).where(Tensor([1, 2]), 0).tolist()
      [1, 0]
    """
    if self.dtype is not dtypes.bool:
      fix = "compare first, e.g. (c != 0).where(x, y)"
      mismatch("where", "the condition must be a bool tensor", [self.uop], fix, TypeError)
    first = next((v for v in (x, y) if isinstance(v, (Base, UOp))), None)
    like = UOp.const(max(map(dtypes.from_py, (x, y))), 0) if first is None else self._lift(first, "where")
    a, b = (self._wrap(like)._lift(v, "where") for v in (x, y))
    shape = common_shape("where", (self.uop, a, b), "the shapes of condition and branches")
    dtype = common_dtype(a.dtype, b.dtype)
    x, y = (u.cast(dtype).broadcast_to(shape) for u in (a, b))
    return self._new(self.uop.broadcast_to(shape).alu(Ops.WHERE, x, y))

  def masked_fill(self, mask: Self, value: Any) -> Self:
    """`value` where `mask` is True.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2, 3]).masked_fill(Tensor([True, False, True]), 0).tolist()
      [0, 2, 0]
    """
    return mask.where(self._wrap(self._lift(value, "masked_fill")), self)

  # ---- bits

  def bitwise_and(self, x: Any, reverse: bool = False) -> Self:
    """x & y of integers or bools. TypeError for floats.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([6, 3]).bitwise_and(2).tolist()
      [2, 2]
    """
    return self._integer_binary(Ops.AND, x, "bitwise_and", reverse, boolean=True)

  def bitwise_or(self, x: Any, reverse: bool = False) -> Self:
    """x | y of integers or bools. TypeError for floats.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([4, 3]).bitwise_or(2).tolist()
      [6, 3]
    """
    return self._integer_binary(Ops.OR, x, "bitwise_or", reverse, boolean=True)

  def bitwise_xor(self, x: Any, reverse: bool = False) -> Self:
    """x ^ y of integers or bools. TypeError for floats.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([6, 3]).bitwise_xor(2).tolist()
      [4, 1]
    """
    return self._integer_binary(Ops.XOR, x, "bitwise_xor", reverse, boolean=True)

  def bitwise_not(self) -> Self:
    """~x; of a bool its negation. TypeError for floats.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([0, 5]).bitwise_not().tolist()
      [-1, -6]
    """
    if dtypes.is_float(self.dtype):
      mismatch("bitwise_not", "works on integers or bools", [self.uop], "cast first, e.g. x.int()", TypeError)
    return self.alu(Ops.NOT)

  def logical_not(self) -> Self:
    """x == 0.
    Shape: `(..) -> (..)`.

    Examples:
      >>> Tensor([0, 5]).logical_not().tolist()
      [True, False]
    """
    return self.cast(dtypes.bool).alu(Ops.NOT)

  def lshift(self, x: Any, reverse: bool = False) -> Self:
    """x << y; 0 where y is the type's width or more, or negative.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([1, 2]).lshift(3).tolist()
      [8, 16]
    """
    return self._integer_binary(Ops.SHL, x, "lshift", reverse)

  def rshift(self, x: Any, reverse: bool = False) -> Self:
    """x >> y; arithmetic for signed types. Where y is the type's width or more, or negative, only the sign is left.
    Shape: `(..), (..) -> (..)`.

    Examples:
      >>> Tensor([-8, 9]).rshift(1).tolist()
      [-4, 4]
    """
    return self._integer_binary(Ops.SHR, x, "rshift", reverse)

  # ---- operators

  def _floordiv(self, x: Any, reverse: bool = False) -> Self:
    return self.div(x, reverse, "floor")

  def __pos__(self) -> Self:
    return self._value()

  def __divmod__(self, x: Any) -> tuple[Self, Self]:
    return self // x, self % x

  def __rdivmod__(self, x: Any) -> tuple[Self, Self]:
    return x // self, x % self

  def __round__(self, digits: int | None = None) -> Self:
    if digits is not None:
      problem = "round: a tensor is rounded to whole numbers"
      raise TypeError(f"{problem}\n  fix: (x * 10**{digits!r}).round() / 10**{digits!r}")
    return self.round()

  __neg__, __invert__ = neg, bitwise_not
  __add__, __radd__, __iadd__ = operators(add)
  __sub__, __rsub__, __isub__ = operators(sub)
  __mul__, __rmul__, __imul__ = operators(mul)
  __truediv__, __rtruediv__, __itruediv__ = operators(div)
  __floordiv__, __rfloordiv__, __ifloordiv__ = operators(_floordiv)
  __mod__, __rmod__ = operators(mod)[:2]
  __pow__, __rpow__, __ipow__ = operators(pow)
  __and__, __rand__, __iand__ = operators(bitwise_and)
  __or__, __ror__, __ior__ = operators(bitwise_or)
  __xor__, __rxor__, __ixor__ = operators(bitwise_xor)
  __lshift__, __rlshift__, __ilshift__ = operators(lshift)
  __rshift__, __rrshift__, __irshift__ = operators(rshift)
  __lt__, __gt__, __le__, __ge__ = lt, gt, le, ge
  __hash__ = object.__hash__

  def __eq__(self, x: Any) -> Self:  # type: ignore[override]
    return self.eq(x)

  def __ne__(self, x: Any) -> Self:  # type: ignore[override]
    return self.ne(x)


for _op in GroupOp.Unary - having(Trait.CONVERTS):
  if CARDS[_op].render == f"{_op.name.lower()}({{0}})" and not hasattr(Elementwise, _op.name.lower()):
    setattr(Elementwise, _op.name.lower(), unary(_op))
