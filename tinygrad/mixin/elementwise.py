"""Elementwise arithmetic, comparisons, bits and casts, and the operators that stand for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, Self, TypeAlias, TypeVar

from tinygrad.dtype import DType, dtypes, least_upper_float, to_dtype
from tinygrad.mixin.base import Base, Scalar, broadcast_shape, broadcast_to, common_dtype, describe, full, mismatch
from tinygrad.mixin.movement import Movement
from tinygrad.uop.ops import Ops, UOp

_bool: TypeAlias = bool  # inside the class the names are its methods
_int: TypeAlias = int
T = TypeVar("T", bound="Elementwise")


def cast_to(u: UOp, dtype: DType) -> UOp:
  return u if u.dtype is dtype else u.cast(dtype)


def operator(method: Callable[[T, Any, _bool], T], reverse: _bool = False) -> Callable[[T, Any], T]:
  """The operator that a method stands for; `reverse` if it finds its tensor on its right."""

  def call(self: T, x: Any) -> T:
    return method(self, x, reverse)

  return call


class Elementwise(Movement):
  __slots__ = ()

  # ---- types

  def cast(self, dtype: DType | str) -> Self:
    """Elements converted to `dtype`; floats to integers truncate toward zero, anything to bool is `!= 0`."""
    d = dtype if isinstance(dtype, DType) else to_dtype(dtype)
    if self.dtype is d:
      return self
    return self.ne(0) if d is dtypes.bool else self._new(self.uop.cast(d))

  def bitcast(self, dtype: DType | str) -> Self:
    """The same bits read as another type; between widths the last dim grows or shrinks. ValueError if it does not
    divide."""
    d = to_dtype(dtype)
    old, new = self.dtype.itemsize, d.itemsize
    if old == new:
      return self._new(self.uop.bitcast(d))
    words = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
    if not self.ndim or self.shape[-1] * old % new:
      rule = f"bitcast: the last dim of {describe(self.uop)} does not divide into elements of {new} bytes ({d})"
      raise ValueError(f"{rule}\n  fix: pad it to a multiple of {new // old} elements, or cast to convert the values")
    bits = self._new(self.uop.bitcast(words[old]))
    if new < old:
      parts = [bits.rshift(8 * new * i).cast(words[new]) for i in range(old // new)]
      return parts[0].stack(*parts[1:], dim=-1).flatten(-2)._bits(d)
    k = new // old
    split = bits.reshape((*self.shape[:-1], self.shape[-1] // k, k)).cast(words[new])
    parts = [split._slice(self.ndim, i, i + 1).squeeze(-1).lshift(8 * old * i) for i in range(k)]
    return functools.reduce(lambda x, y: x.bitwise_or(y), parts)._bits(d)

  def _bits(self, dtype: DType) -> Self:
    return self._new(self.uop.bitcast(dtype))

  def bool(self) -> Self:
    return self.cast(dtypes.bool)

  def half(self) -> Self:
    return self.cast(dtypes.float16)

  def bfloat16(self) -> Self:
    return self.cast(dtypes.bfloat16)

  def float(self) -> Self:
    return self.cast(dtypes.float32)

  def double(self) -> Self:
    return self.cast(dtypes.float64)

  def short(self) -> Self:
    return self.cast(dtypes.int16)

  def int(self) -> Self:
    return self.cast(dtypes.int32)

  def long(self) -> Self:
    return self.cast(dtypes.int64)

  # ---- how ops are applied

  def alu(self, op: Ops, *src: Self) -> Self:
    """An elementwise primitive of this and other tensors, whose shapes and types must be the ones it takes."""
    return self._new(self.uop.alu(op, *(s.uop for s in src)))

  def ufix(self, x: Any) -> Self:
    """An operand as a tensor: a number takes the type that it has beside this one."""
    return x if isinstance(x, type(self)) else self._wrap(self._lift(x, "ufix"))

  def _unary(self, op: Ops) -> Self:
    return self._new(self.uop.alu(op))

  def _float(self) -> UOp:
    return cast_to(self.uop, least_upper_float(self.dtype))

  def _float_tensor(self) -> Self:
    return self._new(self._float())

  def _float_unary(self, op: Ops) -> Self:
    return self._new(self._float().alu(op))

  def _binary(self, op: Ops, x: Any, name: str, reverse: _bool = False) -> Self:
    a, b = self._operands(x, name, reverse)
    return self._new(a.alu(op, b))

  def _integer_binary(self, op: Ops, x: Any, name: str, reverse: _bool = False, boolean: _bool = False) -> Self:
    a, b = self._operands(x, name, reverse)
    if dtypes.is_float(a.dtype) or (dtypes.is_bool(a.dtype) and not boolean):
      kinds = "integers or bools" if boolean else "integers"
      mismatch(name, f"works on {kinds}", (a, b), "cast the operands, e.g. x.int()", TypeError)
    return self._new(a.alu(op, b))

  def const_like(self, b: Scalar, dtype: DType | None = None) -> Self:
    """A constant of this shape, in this type unless given."""
    return self._wrap(full(dtype or self.dtype, b, self.shape))

  # ---- arithmetic

  def neg(self) -> Self:
    """-x; of a bool its negation."""
    return self._unary(Ops.NOT if self.dtype is dtypes.bool else Ops.NEG)

  def add(self, x: Any, reverse: _bool = False) -> Self:
    """x + y; of bools their or."""
    a, b = self._operands(x, "add", reverse)
    return self._new(a.alu(Ops.OR if a.dtype is dtypes.bool else Ops.ADD, b))

  def sub(self, x: Any, reverse: _bool = False) -> Self:
    """x - y. TypeError for bools."""
    a, b = self._operands(x, "sub", reverse)
    if a.dtype is dtypes.bool:
      mismatch("sub", "bools cannot be subtracted", (a, b), "use ^ for their difference, or cast to int", TypeError)
    return self._new(a.alu(Ops.SUB, b))

  def mul(self, x: Any, reverse: _bool = False) -> Self:
    """x * y; of bools their and."""
    a, b = self._operands(x, "mul", reverse)
    return self._new(a.alu(Ops.AND if a.dtype is dtypes.bool else Ops.MUL, b))

  def div(self, x: Any, reverse: _bool = False, rounding_mode: Literal["trunc", "floor"] | None = None) -> Self:
    """x / y as a float; with `rounding_mode` the quotient rounded toward zero or down, integers staying integers."""
    a, b = self._operands(x, "div", reverse)
    if rounding_mode is None:
      dtype = least_upper_float(a.dtype)
      return self._new(cast_to(a, dtype).alu(Ops.FDIV, cast_to(b, dtype)))
    if rounding_mode not in ("trunc", "floor"):
      raise ValueError(f"div: unknown rounding_mode {rounding_mode!r}\n  fix: use None, 'trunc' or 'floor'")
    if dtypes.is_float(a.dtype):
      q = self._new(a.alu(Ops.FDIV, b))
      return q.trunc() if rounding_mode == "trunc" else q.floor()
    if dtypes.is_bool(a.dtype):
      a, b = a.cast(dtypes.uint8), b.cast(dtypes.uint8)
    q = self._new(a.alu(Ops.IDIV, b))
    if rounding_mode == "floor" or dtypes.is_unsigned(a.dtype):
      return q
    x0, y0 = self._wrap(a), self._wrap(b)
    rounded_down = x0.mod(y0).ne(0).bitwise_and(x0.lt(0).ne(y0.lt(0)))
    return q.add(rounded_down.cast(q.dtype))

  def mod(self, x: Any, reverse: _bool = False) -> Self:
    """x - y*floor(x/y): the remainder with the sign of the divisor, as Python's %."""
    a, b = (self._wrap(u) for u in self._operands(x, "mod", reverse))
    if not dtypes.is_float(a.dtype):
      return self._integer_binary(Ops.MOD, x, "mod", reverse)
    rest = a.fmod(b)
    return rest.ne(0).bitwise_and(rest.lt(0).ne(b.lt(0))).where(rest.add(b), rest)

  def fmod(self, x: Any) -> Self:
    """The remainder with the sign of the dividend, as C's fmod."""
    a, b = (self._wrap(u) for u in self._operands(x, "fmod"))
    quotient = a.div(b, rounding_mode="trunc")
    return quotient.eq(0).where(a, a.sub(quotient.mul(b)))  # 0 * inf is nan

  def maximum(self, x: Any) -> Self:
    return self._binary(Ops.MAX, x, "maximum")

  def minimum(self, x: Any) -> Self:
    return self._binary(Ops.MIN, x, "minimum")

  def pow(self, x: Any, reverse: _bool = False) -> Self:
    """x ** y. Integers to a negative number raise TypeError; a constant whole exponent is multiplications, 0.5 a square
    root."""
    if not reverse and isinstance(x, (int, float)) and not isinstance(x, bool):
      base = self if dtypes.is_float(self.dtype) or isinstance(x, int) else self.cast(dtypes.default_float)
      if x < 0 and not dtypes.is_float(base.dtype):
        fix = "cast the base to a float first: x.float() ** y"
        mismatch("pow", f"an integer to the power of {x} is not an integer", [self.uop], fix, TypeError)
      if x == int(x) and abs(x) <= 64:
        y = base._whole_power(abs(int(x)))
        return y if x >= 0 else y.reciprocal()
      if x in (0.5, -0.5):
        root = base.sqrt()
        return root if x > 0 else root.reciprocal()
    a, b = self._operands(x, "pow", reverse)
    if dtypes.is_float(a.dtype):
      return self._new(a.alu(Ops.POW, b))
    base, n = self._new(a), self._new(b)
    one, unit = base.const_like(1), base.eq(1) if dtypes.is_unsigned(a.dtype) else base.eq(1) | base.eq(-1)
    below, odd = n < 0, n & 1
    n, out = below.where(odd, n.minimum(odd + 62)), one  # beyond 63, only powers of -1, 0 and 1 fit
    for _ in range(6):
      out, base, n = (n & 1).ne(0).where(out * base, out), base * base, n >> 1
    return (below & ~unit).where(0, out)

  def _whole_power(self, n: _int) -> Self:
    if n == 0:
      return self.const_like(1)
    square, result = self, None
    while True:
      if n & 1:
        result = square if result is None else result.mul(square)
      n >>= 1
      if not n and result is not None:
        return result
      square = square.mul(square)

  def reciprocal(self) -> Self:
    return self._float_unary(Ops.RECIP)

  def sqrt(self) -> Self:
    return self._float_unary(Ops.SQRT)

  def square(self) -> Self:
    return self.mul(self)

  def usum(self, *xs: Self) -> Self:
    """self + xs[0] + …"""
    return functools.reduce(lambda a, b: a.add(b), xs, self)

  def uprod(self, *xs: Self) -> Self:
    """self * xs[0] * …"""
    return functools.reduce(lambda a, b: a.mul(b), xs, self)

  # ---- rounding

  def _rounded(self, op: Ops) -> Self:
    return self._unary(op) if dtypes.is_float(self.dtype) else self

  def floor(self) -> Self:
    return self._rounded(Ops.FLOOR)

  def ceil(self) -> Self:
    return self._rounded(Ops.CEIL)

  def round(self) -> Self:
    """To the nearest whole number, halves to the even one."""
    return self._rounded(Ops.ROUND)

  def trunc(self) -> Self:
    """Toward zero."""
    return self.lt(0).where(self.ceil(), self.floor()) if dtypes.is_float(self.dtype) else self

  # ---- comparison and choice

  def lt(self, x: Any) -> Self:
    return self._binary(Ops.CMPLT, x, "lt")

  def gt(self, x: Any) -> Self:
    return self._binary(Ops.CMPLT, x, "gt", reverse=True)

  def _or_equal(self, x: Any, name: str, reverse: _bool) -> Self:
    a, b = self._operands(x, name, reverse)
    if dtypes.is_float(a.dtype):  # nan is neither below, equal nor above
      return self._new(a.alu(Ops.CMPLT, b).alu(Ops.OR, a.alu(Ops.CMPEQ, b)))
    return self._new(b.alu(Ops.CMPLT, a).alu(Ops.NOT))

  def le(self, x: Any) -> Self:
    return self._or_equal(x, "le", False)

  def ge(self, x: Any) -> Self:
    return self._or_equal(x, "ge", True)

  def eq(self, x: Any) -> Self:
    return self._binary(Ops.CMPEQ, x, "eq")

  def ne(self, x: Any) -> Self:
    return self._binary(Ops.CMPNE, x, "ne")

  def where(self, x: Any, y: Any) -> Self:
    """x where this bool tensor is True, else y; both broadcast. TypeError if this is no bool tensor."""
    if self.dtype is not dtypes.bool:
      fix = "compare first, e.g. (c != 0).where(x, y)"
      mismatch("where", "the condition must be a bool tensor", [self.uop], fix, TypeError)
    tensors = [v for v in (x, y) if isinstance(v, (Base, UOp))]
    if tensors:
      like = self._wrap(self._lift(tensors[0], "where"))
    else:
      like = self._wrap(UOp.const(max(dtypes.from_py(v) for v in (x, y)), 0))
    a, b = like._lift(x, "where"), like._lift(y, "where")
    shape = broadcast_shape(self.shape, a.shape, b.shape)
    if shape is None:
      rule = "the shapes of condition and branches must be equal or 1 in every dim"
      mismatch("where", rule, (self.uop, a, b), "reshape them so that dims line up")
    dtype = common_dtype(a.dtype, b.dtype)
    x, y = (broadcast_to(cast_to(u, dtype), shape) for u in (a, b))
    return self._new(broadcast_to(self.uop, shape).alu(Ops.WHERE, x, y))

  def masked_fill(self, mask: Self, value: Any) -> Self:
    """`value` where `mask` is True."""
    return mask.where(value, self)

  # ---- bits

  def bitwise_and(self, x: Any, reverse: _bool = False) -> Self:
    return self._integer_binary(Ops.AND, x, "bitwise_and", reverse, boolean=True)

  def bitwise_or(self, x: Any, reverse: _bool = False) -> Self:
    return self._integer_binary(Ops.OR, x, "bitwise_or", reverse, boolean=True)

  def bitwise_xor(self, x: Any, reverse: _bool = False) -> Self:
    return self._integer_binary(Ops.XOR, x, "bitwise_xor", reverse, boolean=True)

  def bitwise_not(self) -> Self:
    """~x; of a bool its negation. TypeError for floats."""
    if dtypes.is_float(self.dtype):
      mismatch("bitwise_not", "works on integers or bools", [self.uop], "cast first, e.g. x.int()", TypeError)
    return self._unary(Ops.NOT)

  def logical_not(self) -> Self:
    """x == 0."""
    return self.bool()._unary(Ops.NOT)

  def lshift(self, x: Any, reverse: _bool = False) -> Self:
    """x << y; 0 where y is the type's width or more, or negative."""
    return self._integer_binary(Ops.SHL, x, "lshift", reverse)

  def rshift(self, x: Any, reverse: _bool = False) -> Self:
    """x >> y; arithmetic for signed types. Where y is the type's width or more, or negative, only the sign is left."""
    return self._integer_binary(Ops.SHR, x, "rshift", reverse)

  # ---- operators

  __neg__, __invert__ = neg, bitwise_not
  __add__, __radd__ = operator(add), operator(add, True)
  __sub__, __rsub__ = operator(sub), operator(sub, True)
  __mul__, __rmul__ = operator(mul), operator(mul, True)
  __truediv__, __rtruediv__ = operator(div), operator(div, True)
  __mod__, __rmod__ = operator(mod), operator(mod, True)
  __pow__, __rpow__ = operator(pow), operator(pow, True)
  __and__, __rand__ = operator(bitwise_and), operator(bitwise_and, True)
  __or__, __ror__ = operator(bitwise_or), operator(bitwise_or, True)
  __xor__, __rxor__ = operator(bitwise_xor), operator(bitwise_xor, True)
  __lshift__, __rlshift__ = operator(lshift), operator(lshift, True)
  __rshift__, __rrshift__ = operator(rshift), operator(rshift, True)
  __lt__, __gt__, __le__, __ge__ = lt, gt, le, ge
  __eq__, __ne__ = eq, ne  # type: ignore[assignment]
  __hash__ = object.__hash__

  def __floordiv__(self, x: Any) -> Self:
    return self.div(x, rounding_mode="floor")

  def __rfloordiv__(self, x: Any) -> Self:
    return self.div(x, True, rounding_mode="floor")
