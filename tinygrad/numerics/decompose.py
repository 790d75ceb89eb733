"""Ops that no processor has, as ops that all have: functions by range reduction and polynomials, narrow floats through
float32.

Bounds measured in test/codegen/test_decompose.py: for float32 1 ulp of EXP, LOG and POW (0.6 of POW where there is
float64), 1.1 of TANH, 1.2 of SIN and COS, 1.3 of ERF, for float64 1 of POW, 2 of EXP, LOG and ERF, 2.5 of TANH, 1.2 of
SIN and COS; infinities, NaN, denormals and the largest arguments included. Where a product and a sum are rounded one by
one (no FMA), EXP and SIN have up to 5% more, powers of two 20%, and ERF of float64 has 3. The SIN and COS of large
float64s are calls of the C library.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from tinygrad.device import Target
from tinygrad.dtype import ConstType, DType, dtypes, to_dtype, to_numpy_dtype
from tinygrad.helpers import LazyModule, numpy
from tinygrad.helpers.threefry import threefry2x32
from tinygrad.uop import GroupOp, Ops, UOp
from tinygrad.uop.rewrite import Sources, on_sources, rebuild, substitute_free

if TYPE_CHECKING:
  import fractions
else:  # for turns and logarithms alone; it loads decimal
  fractions = LazyModule("fractions")

# Least squares at Chebyshev nodes, in z = x*x; the error is that of the polynomial before rounding.
# (tanh x - x)/x^3, x <= 0.8: 4e-9 of the result; x <= 0.63: 5e-19
_TANH: dict[DType, Sequence[float]] = {}
_TANH[dtypes.float32] = (-0.333332986, 0.133322418, -0.0538535975, 0.0213065278, -0.00741417659, 0.00158704445)
_TANH[dtypes.float64] = (-0.3333333333333331, 0.1333333333332896, -0.05396825396562562, 0.0218694884568255,
  -0.008863234124011419, 0.0035921121282251993, -0.0014557138283209968, 0.000589399799125986, -0.0002368651594155053,
  9.129757243783774e-05, -2.9921550740687888e-05, 5.924462468000198e-06)  # fmt: skip
_TANH_ENDS = {dtypes.float32: (0.8, 20.0), dtypes.float64: (0.63, 40.0)}  # beyond: by exp; of twice that is 1
# erf(x)/x - 1, x < 1: 1e-9, 1e-19
_ERF: dict[DType, Sequence[float]] = {}
_ERF[dtypes.float32] = (0.12837917, -0.37612626, 0.112835996, -0.026854401, 0.005189444, -0.00080199435, 7.885848e-05)
_ERF[dtypes.float64] = (0.1283791670955126, -0.3761263890318375, 0.11283791670954885, -0.026866170645077788,
  0.005223977624827565, -0.0008548326981374919, 0.00012055331131078569, -1.4925595726347128e-05, 1.646100773129742e-06,
  -1.6350388193246509e-07, 1.4660273963736622e-08, -1.1374741276799654e-09, 5.960318004336808e-11)  # fmt: skip
# 2/3 + 2z/5 + 2z²/7 + …, z = s², s <= (√2 - 1)/(√2 + 1), times z: 1e-11; and the series
_LOG_SERIES = tuple(2 / (2 * k + 3) for k in range(11))
_LOG = {dtypes.float32: (0.6666666, 0.40000337, 0.28537238, 0.23583572), dtypes.float64: _LOG_SERIES}
# (log(1 + f) - f)/f^2, 1 + f in [√½, √2]: 2e-11 of the result
_LOG_OF_SINGLE = (-0.5000000001468831, 0.3333333409117956, -0.2499999636501514, 0.19999893324251394,
  -0.16666834067736372, 0.1429068961746215, -0.12499754322082685, 0.11009473496858996, -0.09901176324789632,
  0.09994736718009256, -0.09979518707490391, 0.055092320299535986)  # fmt: skip
_LOG2_OF_SINGLE = tuple(c / math.log(2) for c in (1.0, *_LOG_OF_SINGLE))  # log2(1 + f)/f
# log(erfc x), weighted by erfc, in x for 0.98 <= x <= 4: 2e-11; in x - 3.5 for 1 <= x <= 6: 2e-19
_LOG_ERFC: dict[DType, Sequence[float]] = {}
_LOG_ERFC[dtypes.float32] = (0.00020025227, -1.129642, -0.6330773, -0.10859776, 0.025346423, -0.00427144, 0.0004611716,
  -2.4981035e-05, 2.3446674e-07)  # fmt: skip
_LOG_ERFC[dtypes.float64] = (-14.112437402148364, -7.266099588367966, -0.9667530547472561, -0.005225658176636568,
  0.0008736875393253343, -0.00014729749538365105, 2.4386076470393392e-05, -3.89091391779324e-06, 5.840327284300652e-07,
  -8.092596871796482e-08, 1.095737213515212e-08, 9.845732324003447e-10, 8.3126743824902e-10, -3.495863513993794e-11,
  -3.6852267781265997e-10, -2.442650271874567e-10, -9.357933994533008e-11, -2.150818702461748e-11,
  -2.9150406027498626e-12, -1.7750494188964841e-13)  # fmt: skip
# beyond the first erf rounds to 1; the second is where the series begins
_ERF_ENDS = {dtypes.float32: (4.0, 0.0), dtypes.float64: (6.0, 3.5)}
# (sin t - t)/t^3 and (cos t - 1 + z/2)/z^2, t <= pi/4: 4e-9 and 1e-10 of the result; and by Taylor's series
_SIN = {dtypes.float32: (-0.16666655, 0.00833218824, -0.00019518099)}
_COS = {dtypes.float32: (0.0416666456, -0.00138873106, 2.44325529e-05)}
_SIN[dtypes.float64] = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9))
_COS[dtypes.float64] = tuple((-1) ** k / math.factorial(2 * k) for k in range(2, 9))
# the same for float64s of which a float32 is seen: 2e-11 and 2e-12 of the result
_SIN_OF_SINGLE = (-0.16666666663846846, 0.008333331871155, -0.00019840084727713652, 2.7249658002411695e-06)
_COS_OF_SINGLE = (0.041666666664313845, -0.0013888887668952103, 2.480059865933278e-05, -2.730073112777384e-07)
# pi/2 in parts, of 12 and 39 bits but the last: products with n < 2**12 are exact
_HALF_PI: dict[DType, tuple[float, ...]] = {dtypes.float32: (1.5703125, 0.0004837513, 7.5495336e-08, 2.563344e-12)}
_HALF_PI[dtypes.float64] = (1.5707963267923333, 2.5633441515905732e-12, 3.9455541665632055e-24)
# few enough bits that n * hi is exact
_LN2_HI = {dtypes.float32: 0.693359375, dtypes.float64: 6.93147180369123816490e-01}
_LN2_LO = {dtypes.float32: -2.12194440054690583e-4, dtypes.float64: 1.90821492927058770002e-10}
# (exp r - 1 - r)/r^2, |r| <= ln(2)/2: 3e-9 of exp r; and by Taylor's series
_TAYLOR = tuple(1 / math.factorial(k) for k in range(2, 14))
_EXPM1 = {dtypes.float32: (0.49999994, 0.1666652, 0.041668385, 0.008368794, 0.0013815127), dtypes.float64: _TAYLOR}
# (2^r - 1)/r, |r| <= 1/2: 2e-9 of 2^r
_EXP2M1 = (0.6931472065705698, 0.24022651243186793, 0.055503273922442045, 0.009618015450807559, 0.0013400384542500018,
  0.00015473252212055963)  # fmt: skip
_EXP2_ENDS = (-151.0, -126.0, 128.0)
# 1/80 + w/448 + …, w = s², s = 2f/(2 + f), the series for log(1 + f)
_LOG_TAIL = {
  d: tuple(0.25**k / (2 * k + 1) for k in range(2, n)) for d, n in {dtypes.float32: 6, dtypes.float64: 14}.items()
}
# a power is normal to be sure if its log2 is below; beyond, in its logarithm, it is 0 or infinite
_POWER_ENDS = {dtypes.float32: (125.0, 140.0), dtypes.float64: (1020.0, 800.0)}
# below: exp is 0, may be denormal; from: infinite
_EXP_ENDS = {dtypes.float32: (-105.0, -86.0, 88.7228394), dtypes.float64: (-750.0, -707.0, 709.7827128933841)}
_BITS = {dtypes.float16: dtypes.uint16, dtypes.float32: dtypes.uint32, dtypes.float64: dtypes.uint64}
_SIGNED = {dtypes.float32: dtypes.int32, dtypes.float64: dtypes.int64}
_NARROW = (dtypes.float16, dtypes.bfloat16, *dtypes.fp8s)
# The bits of 2/pi after the point, in words of 32
_TWO_OVER_PI = (0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
_OF_WORDS = {
  operator.add: Ops.ADD, operator.xor: Ops.XOR, operator.or_: Ops.OR, operator.lshift: Ops.SHL,
  operator.rshift: Ops.SHR,
}  # fmt: skip
Pair = tuple[UOp, UOp]
Types = tuple[DType, ...]
Functions = Mapping[DType, Mapping[Ops, Callable[..., UOp]]]


const = UOp.const


def alu(op: Ops, x: UOp, *others: UOp | ConstType) -> UOp:
  """A node whose other operands may be numbers."""
  src = (x, *(y if isinstance(y, UOp) else const(x.dtype, y) for y in others))
  return UOp.new(op, dtypes.bool if op in GroupOp.Comparison else x.dtype, src)


add, sub = partial(alu, Ops.ADD), partial(alu, Ops.SUB)
mul, less = partial(alu, Ops.MUL), partial(alu, Ops.CMPLT)


def where(condition: UOp, x: UOp | ConstType, y: UOp) -> UOp:
  return UOp.new(Ops.WHERE, y.dtype, (condition, x if isinstance(x, UOp) else const(y.dtype, x), y))


def unlikely(usual: UOp, x: UOp, y: UOp) -> UOp:
  """y if `usual`, which nearly always holds, else x, which is not computed where it does."""
  return UOp.new(Ops.WHERE, y.dtype, (alu(Ops.NOT, usual), x, y), True)


def cast(x: UOp, dtype: DType) -> UOp:
  return x if x.dtype is dtype else UOp.new(Ops.CAST, dtype, (x,))


def bitcast(x: UOp, dtype: DType) -> UOp:
  return UOp.new(Ops.BITCAST, dtype, (x,))


def polynomial(x: UOp, coefficients: Sequence[float], short: int = 8) -> UOp:
  """coefficients[0] + coefficients[1]·x + …, by Horner's rule; of more terms than are short all but the first, on which
  its error depends, by halves."""
  first, rest = (2, coefficients[2:]) if len(coefficients) > short else (-1, coefficients[-1:])
  out = by_halves(x, rest)
  for c in reversed(coefficients[:first]):
    out = add(mul(out, x), c)
  return out


def by_halves(x: UOp, coefficients: Sequence[float]) -> UOp:
  """The same as sums of products with x, x², x⁴, … (Estrin: Organization of computer systems, 1960): some more
  operations, of which few wait for each other. Horner's rule leaves a processor waiting that has no room for as many
  elements at once as their chains take."""
  parts = [const(x.dtype, c) for c in coefficients]
  while len(parts) > 1:
    pairs = zip(parts[::2], [*parts[1::2], None])
    parts, x = [low if high is None else add(mul(high, x), low) for low, high in pairs], mul(x, x)
  return parts[0]


def absolute(x: UOp) -> UOp:
  bits = _BITS[x.dtype]
  return bitcast(alu(Ops.AND, bitcast(x, bits), (1 << (bits.itemsize * 8 - 1)) - 1), x.dtype)


def with_sign_of(x: UOp, sign: UOp) -> UOp:
  """x >= 0 with the sign bit of `sign`."""
  bits = _BITS[x.dtype]
  return bitcast(alu(Ops.OR, bitcast(x, bits), alu(Ops.AND, bitcast(sign, bits), 1 << (bits.bitsize - 1))), x.dtype)


def rounded(x: UOp) -> tuple[UOp, UOp]:
  """x as a whole float, and as an integer in the last bits of another: all but what is left of a mantissa."""
  unit = 1.5 * 2.0 ** dtypes.finfo(x.dtype)[1]
  bits = add(x, unit)
  return sub(bits, unit), bitcast(bits, _SIGNED[x.dtype])


def scaled(x: UOp, n: UOp) -> UOp:
  """x·2**n, all normal; of n, the last bits of an integer, as many count as fill an exponent."""
  return bitcast(add(bitcast(x, _SIGNED[x.dtype]), alu(Ops.SHL, n, dtypes.finfo(x.dtype)[1])), x.dtype)


def clamped(x: UOp, most: float) -> UOp:
  return alu(Ops.MAX, alu(Ops.MIN, x, most), -most)


def normal_exp(x: UOp, shift: UOp | None = None) -> UOp:
  """exp(x)·2**shift = 2**(n + shift) · exp(r), n = round(x/ln 2), |r| <= ln(2)/2, where that is normal."""
  m, n = rounded(mul(x, 1 / math.log(2)))
  r = sub(sub(x, mul(m, _LN2_HI[x.dtype])), mul(m, _LN2_LO[x.dtype]))
  return scaled(polynomial(r, (1.0, 1.0, *_EXPM1[x.dtype])), n if shift is None else add(n, shift))


def normal_exp2(x: UOp, shift: UOp) -> UOp:
  """2**(x + shift) = 2**(n + shift)·2**r, r = x - n, |r| <= 1/2, where that is normal."""
  m, n = rounded(x)
  return scaled(polynomial(sub(x, m), (1.0, *_EXP2M1)), add(n, shift))


def lower_exp(x: UOp) -> UOp:
  return with_ends(x, normal_exp, _EXP_ENDS[x.dtype])


def with_ends(x: UOp, normal: Callable[[UOp, UOp], UOp], ends: tuple[float, float, float]) -> UOp:
  """exp(x), where it may be denormal in two steps. What is certain to be 0, as in masked attention, is not computed:
  processors take a hundred times as long for products that underflow."""
  low, tiny, high = ends
  nothing = less(x, low)
  denormal = alu(Ops.AND, less(x, tiny), alu(Ops.NOT, nothing))
  size = normal(x, where(denormal, 64, const(_SIGNED[x.dtype], 0)))
  size = mul(size, where(denormal, 2.0**-64, const(x.dtype, 1.0)))
  return where(nothing, 0.0, where(less(x, high), size, mul(x, math.inf)))


def is_normal(x: UOp) -> UOp:
  """Whether 0 < x < inf, x no denormal."""
  (exponent, mantissa), bits = dtypes.finfo(x.dtype), _BITS[x.dtype]
  return less(sub(bitcast(x, bits), 1 << mantissa), ((1 << exponent) - 2) << mantissa)


def normalized(x: UOp) -> tuple[UOp, UOp]:
  """(y, k): x = y·2**k, y normal if x > 0 is finite."""
  exponent, mantissa = dtypes.finfo(x.dtype)
  tiny = less(x, 2.0 ** (2 - (1 << (exponent - 1))))
  return where(tiny, mul(x, 2.0 ** (mantissa + 2)), x), where(tiny, -2.0 - mantissa, const(x.dtype, 0.0))


def exponent_of(x: UOp) -> tuple[UOp, UOp]:
  """(n, f): x = 2**n·(1 + f), 1 + f in [√½, √2), f exact, for normal x."""
  signed, mantissa = _SIGNED[x.dtype], dtypes.finfo(x.dtype)[1]
  # √½ as bits: subtracting it makes the exponent field count from √½·2**e
  root = 0x3F3504F3 if x.dtype is dtypes.float32 else 0x3FE6A09E667F3BCD
  e = alu(Ops.SHR, sub(bitcast(x, signed), root), mantissa)
  return cast(e, x.dtype), sub(bitcast(sub(bitcast(x, signed), alu(Ops.SHL, e, mantissa)), x.dtype), 1.0)


def lower_log(x: UOp, of: Callable[..., UOp] | None = None) -> UOp:
  of = of or log_of
  usual = of(x)
  out = where(less(x, 0.0), math.nan, where(less(x, math.inf), of(*normalized(x)), cast(x, usual.dtype)))
  return unlikely(is_normal(x), where(alu(Ops.CMPEQ, x, 0.0), -math.inf, out), usual)


def log_in_double(x: UOp, k: UOp | None = None) -> UOp:
  """log(x·2**k) as a float64 that is 2e-11 from it: (n + k)·ln 2 + f + f²·P(f), which has no quotient."""
  n, f = exponent_of(x)
  n, f = (cast(y, dtypes.float64) for y in (n if k is None else add(n, k), f))
  return add(mul(n, math.log(2)), add(f, mul(mul(f, f), polynomial(f, _LOG_OF_SINGLE))))


def log_of(x: UOp, k: UOp | None = None) -> UOp:
  """log(x·2**k) = (n + k)·ln 2 + log(1 + f); with s = f/(2 + f), log(1 + f) = f - (f²/2 - s·(f²/2 + R)), R =
  2·(s²/3 + s⁴/5 + …) (the arrangement of Sun's fdlibm, which keeps the leading term exact)."""
  dtype = x.dtype
  n, f = exponent_of(x)
  n, s = add(n, k) if k is not None else n, alu(Ops.FDIV, f, add(f, 2.0))
  rest, half = mul(z := mul(s, s), polynomial(z, _LOG[dtype])), mul(mul(f, f), 0.5)
  small = sub(half, add(mul(s, add(half, rest)), mul(n, _LN2_LO[dtype])))
  return add(mul(n, _LN2_HI[dtype]), sub(f, small))


def lower_tanh(x: UOp) -> UOp:
  """tanh(x) = a + a³·P(a²) for small a = |x|, else 1 - 2/(exp(2a) + 1), which of large a is 1, with the sign of x."""
  a, (small, large) = absolute(x), _TANH_ENDS[x.dtype]
  z = mul(a, a)
  inner = add(a, mul(mul(a, z), polynomial(z, _TANH[x.dtype])))
  e = normal_exp(alu(Ops.MIN, add(a, a), large))
  outer = alu(Ops.SUB, const(x.dtype, 1.0), alu(Ops.FDIV, const(x.dtype, 2.0), add(e, 1.0)))
  return with_sign_of(where(less(const(x.dtype, small), a), outer, inner), x)  # NaN is inner


def lower_erf(x: UOp) -> UOp:
  """erf(x) = x + x·P(x²) for |x| <= 1, else 1 - exp(Q(|x|)) with the sign of x; beyond an end it rounds to 1."""
  a, (end, centre) = absolute(x), _ERF_ENDS[x.dtype]
  inner = add(x, mul(x, polynomial(mul(x, x), _ERF[x.dtype])))
  at = alu(Ops.MIN, a, end)
  log = polynomial(sub(at, centre) if centre else at, _LOG_ERFC[x.dtype], short=20)  # powers of 2.5 are large
  outer = alu(Ops.SUB, const(x.dtype, 1.0), normal_exp(log))
  return where(less(const(x.dtype, 1.0), a), with_sign_of(outer, x), inner)  # NaN is inner


def lower_sin(x: UOp, op: Ops = Ops.SIN) -> UOp:
  """sin(x) = ±sin(r) or ±cos(r) by n mod 4, |x| = n·π/2 + r, |r| <= π/4; cos(x) is a quarter turn on. Near 0 products
  of n with parts of π/2 are exact (Cody and Waite: Software Manual for the Elementary Functions, 1980)."""
  x, turns = (x, 0) if op is Ops.SIN else (absolute(x), 1)
  a = absolute(x)
  *exact, middle, last = _HALF_PI[x.dtype]
  n, quadrant = rounded(mul(a, 2 / math.pi))
  near, part = reduce(lambda r, part: sub(r, mul(n, part)), exact, a), mul(n, middle)
  t = sub(near, part)
  rest = sub(sub(sub(near, t), part), mul(n, last))
  far = UOp.new(op, x.dtype, (x,)) if x.dtype is dtypes.float64 else sine(x, turns, *quarter_turns(a))
  return unlikely(less(a, 6000.0), far, sine(x, turns, quadrant, t, rest))


def sine(x: UOp, turns: int, q: UOp, t: UOp, rest: UOp) -> UOp:
  """sin((q + turns)·π/2 + t + rest), its sign changed where x < 0; what the first step loses, the last adds."""
  q, z = add(q, turns), mul(t, t)
  sin = add(t, add(mul(mul(t, z), polynomial(z, _SIN[x.dtype])), rest))
  cos = add(sub(mul(z, polynomial(z, (-0.5, *_COS[x.dtype]))), mul(t, rest)), 1.0)
  out = where(alu(Ops.CMPEQ, alu(Ops.AND, q, 1), 0), sin, cos)
  top = q.dtype.bitsize - 1
  sign = alu(Ops.XOR, alu(Ops.SHL, q, top - 1), bitcast(x, q.dtype))
  return bitcast(alu(Ops.XOR, bitcast(out, q.dtype), alu(Ops.AND, sign, -(1 << top))), x.dtype)


def lower_tan(x: UOp) -> UOp:
  """tan(x) of a float32 as a float64 that is 1e-10 from it, with |x| = n·π/2 + t, |t| <= π/4."""
  wide, (high, low, _) = cast(x, dtypes.float64), _HALF_PI[dtypes.float64]
  a = absolute(wide)
  n, quadrant = rounded(mul(a, 2 / math.pi))
  turns, t, rest = quarter_turns(absolute(x))
  far = tangent_of_turns(wide, cast(turns, quadrant.dtype), add(cast(t, wide.dtype), cast(rest, wide.dtype)))
  return unlikely(less(a, 6000.0), far, tangent_of_turns(wide, quadrant, sub(sub(a, mul(n, high)), mul(n, low))))


def tangent_of_turns(x: UOp, q: UOp, t: UOp) -> UOp:
  """tan(q·π/2 + t): sin t / cos t of an even q, -cos t / sin t of an odd one; its sign changed where x < 0."""
  z, top = mul(t, t), q.dtype.bitsize - 1
  sin = add(t, mul(mul(t, z), polynomial(z, _SIN_OF_SINGLE)))
  cos = polynomial(z, (1.0, -0.5, *_COS_OF_SINGLE))
  even = alu(Ops.CMPEQ, alu(Ops.AND, q, 1), 0)
  out = alu(Ops.FDIV, where(even, sin, cos), where(even, cos, sin))
  sign = alu(Ops.XOR, alu(Ops.SHL, q, top), bitcast(x, q.dtype))
  return bitcast(alu(Ops.XOR, bitcast(out, q.dtype), alu(Ops.AND, sign, -(1 << top))), x.dtype)


def quarter_turns(x: UOp) -> tuple[UOp, UOp, UOp]:
  """(quadrant, remainder in radians, what that lacks) of a float32 >= 2**-7, in integers (Payne and Hanek: Radian
  reduction for trigonometric functions, 1983): the 24-bit mantissa times the 96 bits of 2/π that matter."""
  word, long = dtypes.uint32, dtypes.uint64
  bits = bitcast(x, word)
  mantissa = cast(alu(Ops.OR, alu(Ops.AND, bits, 0x7FFFFF), 0x800000), long)
  # x = mantissa·2**e, e = exponent - 150. Bits of 2**e·2/π that weigh 4 or more give whole turns, so the window begins
  # at the bit that weighs 2, which is bit e - 2 after the point, or exponent - 120 of `words`.
  words = (0, *_TWO_OVER_PI)
  shift = sub(alu(Ops.AND, alu(Ops.SHR, bits, 23), 0xFF), 120)
  which, within = alu(Ops.SHR, shift, 5), cast(alu(Ops.AND, shift, 31), long)
  pick = []
  for k in range(4):
    w = const(word, words[k + 4])
    for i in (3, 2, 1, 0):
      w = where(alu(Ops.CMPEQ, which, i), words[k + i], w)
    pick.append(cast(w, long))
  pairs = [alu(Ops.OR, alu(Ops.SHL, a, 32), b) for a, b in zip(pick, pick[1:])]
  high, middle, low = (alu(Ops.AND, alu(Ops.SHR, alu(Ops.SHL, p, within), 32), 0xFFFFFFFF) for p in pairs)
  product = add(add(alu(Ops.SHL, mul(mantissa, high), 32), mul(mantissa, middle)), alu(Ops.SHR, mul(mantissa, low), 32))
  turns = alu(Ops.SHR, add(product, 1 << 61), 62)
  fraction = bitcast(sub(product, alu(Ops.SHL, turns, 62)), dtypes.int64)
  top = head(cast(fraction, x.dtype))
  rest = cast(sub(fraction, cast(top, fraction.dtype)), x.dtype)
  t, tail = times((top, rest), exactly(fractions.Fraction(math.pi) / (1 << 63), x.dtype))
  return cast(turns, dtypes.int32), (r := add(t, tail)), add(sub(tail, sub(r, t)), sub(x, x))  # NaN of infinity


# Numbers of half again as many bits as a float has as (head, tail): a head has half of them, so that the product of two
# is exact (Dekker: A floating-point technique for extending the available precision, 1971), fused with a sum or not.
_HEAD_BITS = {dtypes.float32: 12, dtypes.float64: 26}


def head(x: UOp) -> UOp:
  word, lost = _BITS[x.dtype], dtypes.finfo(x.dtype)[1] + 1 - _HEAD_BITS[x.dtype]
  return bitcast(alu(Ops.AND, bitcast(x, word), (1 << word.bitsize) - (1 << lost)), x.dtype)


def joined(x: UOp, y: UOp, *rest: UOp) -> Pair:
  """x + y + rest, where |x| is the largest and has a head's grid or is near the sum."""
  top = head(add(x, add(y, *rest) if rest else y))
  tail = sub(y, sub(top, x))
  return top, add(tail, *rest) if rest else tail


def times(x: Pair, y: Pair) -> Pair:
  return joined(mul(x[0], y[0]), add(mul(x[0], y[1]), mul(x[1], add(*y))))


def exactly(value: fractions.Fraction, dtype: DType) -> Pair:
  """The number nearest to `value` in a head and a tail."""
  unit = fractions.Fraction(2) ** (math.frexp(value)[1] - _HEAD_BITS[dtype])
  top = value // unit * unit
  return const(dtype, float(top)), const(dtype, float(value - top))


def log_pair(x: UOp, k: UOp) -> Pair:
  """log(x·2**k) = (n + k)·ln 2 + log(1 + f), log(1 + f) = s·(1 + s²/12 + s⁴/80 + …), s = 2f/(2 + f), for normal x."""
  n, f = exponent_of(x)
  n, part, major = add(n, k), alu(Ops.FDIV, const(x.dtype, 2.0), add(f, 2.0)), head(f)
  top = head(mul(f, part))
  rest = sub(sub(mul(sub(f, top), 2.0), mul(top, major)), mul(top, sub(f, major)))
  s = top, mul(mul(rest, 0.5), part)
  z, twelfth = times(s, s), exactly(fractions.Fraction(1, 12), x.dtype)
  w = add(*z)
  tail = add(mul(w, by_halves(w, _LOG_TAIL[x.dtype])), twelfth[1])
  rest = add(mul(z[0], tail), mul(z[1], add(tail, twelfth[0])))
  high, low = times(s, joined(const(x.dtype, 1.0), mul(z[0], twelfth[0]), rest))
  return joined(mul(n, _LN2_HI[x.dtype]), high, add(mul(n, _LN2_LO[x.dtype]), low))


Limit = Callable[[UOp, float], UOp]
Powered = tuple[UOp, UOp, UOp]  # (m, n, n as an integer): m·2**n, m near 1


def power_by_pairs(x: UOp, k: UOp, y: UOp, limited: Limit) -> Powered:
  """(x·2**k)**y for normal x."""
  p = times(log_pair(x, k), (head(y), sub(y, head(y))))
  n, bits = rounded(mul(limited(add(*p), _POWER_ENDS[x.dtype][1]), 1 / math.log(2)))
  high, low = (limited(sub(v, mul(n, ln2[x.dtype])), 1.0) for v, ln2 in zip(p, (_LN2_HI, _LN2_LO)))
  w = add(high, low)
  rest = mul(mul(w, w), by_halves(w, _EXPM1[x.dtype]))
  return add(add(high, add(low, rest)), 1.0), n, bits


def power_in_double(x: UOp, k: UOp, y: UOp, limited: Limit) -> Powered:
  """(x·2**k)**y for normal x of float32, in float64s that are 4e-9 from it: of p = y·log2(x·2**k) as 2**(p - n)."""
  n, f = (cast(v, dtypes.float64) for v in exponent_of(x))
  log2 = add(mul(f, polynomial(f, _LOG2_OF_SINGLE)), add(n, cast(k, dtypes.float64)))
  p = limited(mul(log2, cast(y, dtypes.float64)), 1000.0)
  n, bits = rounded(p)
  return polynomial(sub(p, n), (1.0, *_EXP2M1)), n, bits


def lower_pow(x: UOp, y: UOp, power: Callable[[UOp, UOp, UOp, Limit], Powered] = power_by_pairs) -> UOp:
  """x**y = 2**(y·log2 x); what is not sure to be normal by `any_power`."""
  if x.op is Ops.CONST and x.arg == 2 and x.dtype is dtypes.float32:
    return with_ends(y, normal_exp2, _EXP2_ENDS)
  a = absolute(x)
  m, n, bits = power(a, const(x.dtype, 0.0), y, lambda p, _: p)
  usual = alu(Ops.AND, is_normal(a), less(absolute(n), _POWER_ENDS[n.dtype][0]))
  size = cast(scaled(m, bits), x.dtype)
  rare = any_power(x, y, power)
  return unlikely(usual, rare, unlikely(less(const(x.dtype, 0.0), x), of_negative(x, y, size), size))


def of_negative(x: UOp, y: UOp, size: UOp) -> UOp:
  """x**y from |x|**y, where the sign bit of x may be set: negative for odd y, NaN of x < 0 where y is not whole."""
  whole = alu(Ops.CMPEQ, alu(Ops.FLOOR, y), y)
  half = mul(y, 0.5)
  odd = alu(Ops.AND, whole, alu(Ops.CMPNE, alu(Ops.FLOOR, half), half))
  word = _BITS[x.dtype]
  negative = alu(Ops.CMPNE, alu(Ops.SHR, bitcast(x, word), word.bitsize - 1), 0)
  out = where(alu(Ops.AND, negative, odd), alu(Ops.NEG, size), size)
  neither = alu(Ops.AND, alu(Ops.NOT, whole), less(absolute(x), math.inf))
  return where(alu(Ops.AND, less(x, 0.0), neither), math.nan, out)


def any_power(x: UOp, y: UOp, power: Callable[[UOp, UOp, UOp, Limit], Powered]) -> UOp:
  """x**y = 2**(y·log2|x|); special cases as in C's pow."""
  a = absolute(x)
  m, _, n = power(*normalized(a), clamped(y, 2.0**80), clamped)  # beyond, all but 1 overflows
  half = alu(Ops.SHR, n, 1)
  size = cast(mul(scaled(m, half), scaled(const(m.dtype, 1.0), sub(n, half))), x.dtype)
  zero = const(x.dtype, 0.0)
  inside = alu(Ops.AND, alu(Ops.AND, less(zero, a), less(a, math.inf)), alu(Ops.CMPEQ, y, y))
  outside = where(less(y, 0.0), alu(Ops.FDIV, const(x.dtype, 1.0), a), where(less(zero, y), a, y))
  size = where(inside, size, outside)  # of 0, infinity, NaN, of which no bits but that it is one can be relied upon
  one = alu(Ops.OR, alu(Ops.CMPEQ, x, 1.0), alu(Ops.CMPEQ, y, 0.0))
  return where(one, 1.0, of_negative(x, y, size))


_FUNCTIONS: dict[Ops, Callable[..., UOp]] = {  # of any float
  Ops.EXP: lower_exp, Ops.LOG: lower_log, Ops.SIN: lower_sin, Ops.COS: partial(lower_sin, op=Ops.COS),
  Ops.TANH: lower_tanh, Ops.ERF: lower_erf, Ops.POW: lower_pow,
}  # fmt: skip


def functions_of(target: Target) -> Functions:
  """How the target computes functions that it has not: a processor, which is half as fast with float64, powers of
  float32 with those."""
  single = {op: f for op, f in _FUNCTIONS.items() if op.name not in target.functions}
  if target.shares and target.float64 and Ops.POW in single:
    single[Ops.POW] = partial(lower_pow, power=power_in_double)
  return {dtypes.float32: single, dtypes.float64: _FUNCTIONS}


def _from_narrow(x: UOp) -> UOp:
  """Half or fp8 to float32: the bits, moved to where float32 has them, times the difference of the biases (exact,
  denormals too)."""
  (exponent, mantissa), width = dtypes.finfo(x.dtype), x.dtype.bitsize
  bits = cast(bitcast(x, to_dtype(f"uint{width}")), dtypes.uint32)
  sign = 1 << (width - 1)
  size = alu(Ops.AND, bits, sign - 1)
  value = mul(bitcast(alu(Ops.SHL, size, 23 - mantissa), dtypes.float32), 2.0 ** (127 - (1 << (exponent - 1)) + 1))
  if x.dtype is dtypes.fp8e4m3:  # no infinities, one NaN
    value = where(alu(Ops.CMPEQ, size, sign - 1), math.nan, value)
  else:
    top = ((1 << exponent) - 1) << mantissa
    nan = where(less(const(dtypes.uint32, top), size), math.nan, value)
    value = where(alu(Ops.CMPEQ, size, top), math.inf, nan)
  moved = alu(Ops.SHL, alu(Ops.AND, bits, sign), 32 - width)
  return bitcast(alu(Ops.OR, bitcast(value, dtypes.uint32), moved), dtypes.float32)


def _to_narrow(x: UOp, dtype: DType) -> UOp:
  """float32 to half or fp8, to nearest even. What is too large becomes infinity, or NaN where there is none (e4m3)."""
  (exponent, mantissa), width = dtypes.finfo(dtype), dtype.bitsize
  bias, drop, sign, size = (1 << (exponent - 1)) - 1, 23 - mantissa, 1 << (width - 1), absolute(x)
  bits, unit = bitcast(size, dtypes.uint32), const(dtypes.float32, 2.0 ** (24 - bias - mantissa))
  odd = alu(Ops.AND, alu(Ops.SHR, bits, drop), 1)
  usual = sub(alu(Ops.SHR, add(add(bits, (1 << (drop - 1)) - 1), odd), drop), (127 - bias) << mantissa)
  # the last bit of what is added counts the smallest denormals
  denormal = sub(bitcast(add(size, unit), dtypes.uint32), bitcast(unit, dtypes.uint32))
  rounded = where(less(size, 2.0 ** (1 - bias)), denormal, usual)
  if dtype is dtypes.fp8e4m3:
    rounded = where(less(size, 464.0 + 1e-4), alu(Ops.MIN, rounded, sign - 2), const(dtypes.uint32, sign - 1))
  else:
    rounded = alu(Ops.MIN, rounded, ((1 << exponent) - 1) << mantissa)
  rounded = where(alu(Ops.CMPNE, x, x), sign - 1, rounded)
  moved = alu(Ops.AND, alu(Ops.SHR, bitcast(x, dtypes.uint32), 32 - width), sign)
  return bitcast(cast(alu(Ops.OR, rounded, moved), to_dtype(f"uint{width}")), dtype)


def _from_bfloat16(x: UOp) -> UOp:
  """The upper half of a float32's bits."""
  return bitcast(alu(Ops.SHL, cast(bitcast(x, dtypes.uint16), dtypes.uint32), 16), dtypes.float32)


def _to_bfloat16(x: UOp) -> UOp:
  """float32 to bfloat16, to nearest even; NaN stays NaN."""
  bits = bitcast(x, dtypes.uint32)
  odd = alu(Ops.AND, alu(Ops.SHR, bits, 16), 1)
  rounded = alu(Ops.SHR, add(add(bits, odd), 0x7FFF), 16)
  return bitcast(cast(where(alu(Ops.CMPNE, x, x), 0x7FC0, rounded), dtypes.uint16), dtypes.bfloat16)


def _convert(x: UOp, dtype: DType, as_bits: Types) -> UOp:
  """CAST, with the types `as_bits` taken apart."""
  if x.dtype is dtype:
    return x
  if x.dtype in as_bits:
    wide = _from_bfloat16(x) if x.dtype is dtypes.bfloat16 else _from_narrow(x)
    return _convert(wide, dtype, as_bits)
  if x.dtype is dtypes.float64 and dtype in _NARROW:
    x = _round_to_odd(x)
  if dtype in as_bits:
    x = cast(x, dtypes.float32)
    return _to_bfloat16(x) if dtype is dtypes.bfloat16 else _to_narrow(x, dtype)
  return cast(x, dtype)


def widens(wide: UOp, x: UOp) -> bool:
  """Whether a float32 is x, by the processor's conversion or another."""
  return any(_convert(x, dtypes.float32, as_bits) is wide for as_bits in ((), _NARROW))


def _round_to_odd(x: UOp) -> UOp:
  """float64 to float32 such that rounding again to a narrower type equals rounding once: towards zero, with the last
  bit set where something was lost (Boldo and Melquiond: Emulation of a FMA and correctly rounded sums, 2008)."""
  near = cast(x, dtypes.float32)
  back, one = cast(near, dtypes.float64), const(dtypes.uint32, 1)
  bits = bitcast(near, dtypes.uint32)
  bits = where(less(absolute(x), absolute(back)), sub(bits, 1), bits)
  return bitcast(where(alu(Ops.CMPNE, back, x), alu(Ops.OR, bits, one), bits), dtypes.float32)


def _widened(u: UOp, src: tuple[UOp, ...], as_bits: Types, functions: Functions) -> UOp:
  """An op on narrow floats, computed in float32 and rounded once."""
  wide = tuple(_convert(s, dtypes.float32, as_bits) if s.dtype in _NARROW else s for s in src)
  if u.dtype not in _NARROW:
    return _function(UOp.new(u.op, u.dtype, wide, u.arg), functions)
  return _convert(_function(UOp.new(u.op, dtypes.float32, wide, u.arg), functions), u.dtype, as_bits)


def lower_shift(op: Ops, x: UOp, y: UOp) -> UOp:
  """A shift by the width or more (or by a negative y), which no processor defines: 0; to the right the sign."""
  width, signed = x.dtype.bitsize, x.dtype in dtypes.sints
  if 0 <= y.vmin and y.vmax < width:
    return alu(op, x, y)
  inside = less(bitcast(y, to_dtype(f"uint{width}")), width)
  if op is Ops.SHR and signed:
    return alu(op, x, where(inside, y, const(y.dtype, width - 1)))
  return where(inside, alu(op, x, alu(Ops.AND, y, width - 1)), const(x.dtype, 0))


def _function(u: UOp, functions: Functions) -> UOp:
  if u.op is Ops.THREEFRY:
    words: Pair = threefry2x32(u.src[:2], u.src[2:], lambda f, x, y: alu(_OF_WORDS[f], x, y))
    return words[u.arg]
  if (u.op is Ops.SHL or u.op is Ops.SHR) and u.dtype in dtypes.ints:
    return lower_shift(u.op, *u.src)
  lowered = functions[u.dtype].get(u.op) if u.dtype in functions else None
  return u if lowered is None else lowered(*u.src)


def rounded_to_single(sink: UOp) -> set[UOp]:
  """The float64s that nobody sees more of than a float32 has: multiplied or chosen at most, and then rounded."""
  order, seen = sink.toposort(), set[UOp]()
  for u in reversed(order):
    narrowed = u.op is Ops.CAST and dtypes.is_float(u.dtype) and u.dtype.itemsize <= 4
    passed = (u.op is Ops.MUL or u.op is Ops.WHERE) and u.dtype is dtypes.float64 and u not in seen
    if not narrowed and not passed:
      seen.update(u.src)
  return {u for u in order if u not in seen and u.dtype is dtypes.float64}


def of_single(x: UOp) -> UOp | None:
  """The float32 that a float64 is."""
  return x.src[0] if x.op is Ops.CAST and x.src[0].dtype is dtypes.float32 else None


def as_tangent(u: UOp) -> UOp | None:
  """tan(x), if that is what u is, as sin(x) / cos(x), of a float32."""
  if u.op is not Ops.FDIV or u.src[0].op is not Ops.SIN or u.src[1].op is not Ops.COS:
    return None
  angle, same = u.src[0].src[0], u.src[1].src[0]
  x = of_single(angle) if angle is same else None
  return None if x is None else lower_tan(x)


def decompose_stores(kernel: UOp, target: Target) -> UOp:
  """Functions and narrow floats taken apart, store by store."""
  return kernel.replace(src=tuple(decompose(s, target) if s.op is Ops.STORE else s for s in kernel.src))


def decompose(sink: UOp, target: Target) -> UOp:
  """The kernel with functions and narrow floats taken apart, but for what the target has itself."""
  as_bits, functions = tuple(d for d in _NARROW if d not in target.converts), functions_of(target)
  short = rounded_to_single(sink)
  sink = substitute_free(sink, {u: x for u in short if (x := as_tangent(u)) is not None})

  def make(u: UOp, src: Sources) -> UOp:
    if u.op is Ops.CONST and u.dtype in as_bits:
      word = to_dtype(f"uint{u.dtype.bitsize}")
      return bitcast(const(word, int(numpy.array(u.arg, to_numpy_dtype(u.dtype)).view(word.name))), u.dtype)
    if u.op is Ops.CAST:
      return _convert(src[0], u.dtype, as_bits)
    if u.op is Ops.LOG and u in short:
      x = of_single(src[0])
      return lower_log(src[0] if x is None else x, log_in_double)
    if u.op is Ops.FOLD or (u.op in GroupOp.Elementwise and u.op is not Ops.WHERE and u.op is not Ops.BITCAST):
      narrow = u.dtype in _NARROW or src[0].dtype in _NARROW
      return _widened(u, src, as_bits, functions) if narrow else _function(on_sources(u, src), functions)
    return on_sources(u, src)

  return rebuild(sink, make)
