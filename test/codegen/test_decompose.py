"""Accuracy of functions against the C library in a wider type, on ordinary and extreme arguments."""

from dataclasses import replace

import codegen_kernels
import ml_dtypes
import numpy as np
import pytest
from codegen_kernels import FUNCTIONS, elementwise, evaluate, load, loop, run, sink, store

from tinygrad import Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.device import Device, Target
from tinygrad.dtype import dtypes
from tinygrad.numerics.decompose import decompose, rounded_to_single
from tinygrad.uop import Ops, ParamArg, UOp

# bounds are those of processors that round a product and a sum once
FUSED = bool({"fma", "neon"} & set(Device["CPU"].target.features))
ROUNDED_TWICE = 1.0 if FUSED else 1.05
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-40, 1.17549435e-38, 1.0, -1.0, 3.4e38, -3.4e38]


def arguments(low, high, dtype=np.float32, extra=()):
  rng = np.random.default_rng(0)
  spread = np.concatenate([rng.uniform(low, high, 4000), np.exp(rng.uniform(-60, np.log(high), 2000)), SPECIAL, extra])
  return spread.astype(dtype)


def ulps(got, want, dtype=np.float32):
  """Errors in units of the last place of the rounded true value; NaN and infinities must agree exactly."""
  with np.errstate(over="ignore", invalid="ignore"):
    rounded = want.astype(dtype)
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(got[special], rounded[special])
    assert np.isfinite(got[~special]).all()
    space = np.spacing(np.abs(rounded[~special])).astype(want.dtype)
    return np.abs(got[~special].astype(want.dtype) - want[~special]) / space


@pytest.mark.parametrize(
  ("op", "function", "low", "high", "bound"),
  [
    (Ops.EXP, np.exp, -110, 95, 1),
    (Ops.LOG, np.log, 1e-3, 3e38, 1),
    (Ops.LOG, np.log, 0.5, 2, 1),
    *((op, f, -x, x, 1.2) for op, f in ((Ops.SIN, np.sin), (Ops.COS, np.cos)) for x in (10, 6000, 1e6, 3e38)),
    (Ops.TANH, np.tanh, -1, 1, 1.1),
    (Ops.TANH, np.tanh, -10, 10, 1.1),
    (Ops.SQRT, np.sqrt, 0, 1e38, 0.51),
  ],
)
def test_float32_functions(op, function, low, high, bound):
  x = arguments(low, high)
  with np.errstate(all="ignore"):
    want = function(x.astype(np.longdouble))
  assert ulps(elementwise(op, x), want).max() <= bound * ROUNDED_TWICE


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 1.3), (np.float64, 2 if FUSED else 3)])
def test_erf(dtype, bound):
  from math import erf

  x = arguments(-7, 7, dtype)
  want = np.array([erf(float(v)) for v in x])
  assert ulps(elementwise(Ops.ERF, x), want, dtype).max() <= bound


@pytest.mark.parametrize(
  ("op", "function", "low", "high"),
  [(Ops.EXP, np.exp, -760, 720), (Ops.LOG, np.log, 1e-3, 1e300), (Ops.LOG, np.log, 0.5, 2)],
)
def test_float64_functions(op, function, low, high):
  x = arguments(low, high, np.float64, [5e-324, 2.3e-308, 1.7e308])
  with np.errstate(all="ignore"):
    want = function(x.astype(np.longdouble))
  assert ulps(elementwise(op, x), want, np.float64).max() <= 2


@pytest.mark.parametrize("op,function", [(Ops.SIN, np.sin), (Ops.COS, np.cos), (Ops.TANH, np.tanh)])
@pytest.mark.parametrize("high", [50, 1e6, 1e300])
def test_trigonometry_and_tanh_of_float64(op, function, high):
  """By polynomials near 0, by the C library beyond."""
  x = np.concatenate([np.random.default_rng(1).uniform(-high, high, 3000), np.arange(1, 3000) * (np.pi / 2)])
  assert ulps(elementwise(op, x), function(x.astype(np.longdouble)), np.float64).max() <= (
    2.5 if op is Ops.TANH else 1.2
  )


def test_powers_of_two_of_float32():
  x = np.concatenate([arguments(-155, 130), np.arange(-152, 130, dtype=np.float32)])
  i = loop(x.size, 0)
  value = codegen_kernels.op(Ops.POW, UOp.const(dtypes.float32, 2.0), load(1, x, i))
  with np.errstate(all="ignore"):
    want = np.exp2(x.astype(np.longdouble))
  assert ulps(run(sink(store(i, value, i, size=x.size)), [x]), want).max() <= (1 if FUSED else 1.2)


def test_logarithms_that_are_rounded_to_float32_are_short():
  """And those of which a difference is taken first are not, for there the leading digits go."""
  x = np.random.default_rng(5).uniform(0.5, 3e5, 5000).astype(np.float32)
  y = np.nextafter(x, np.float32(np.inf))
  i = loop(x.size, 0)
  op = codegen_kernels.op
  a, b = (op(Ops.LOG, op(Ops.CAST, load(k, v, i), dtype=dtypes.float64)) for k, v in ((1, x), (2, y)))

  def kernel(value):
    return sink(store(i, op(Ops.CAST, value, dtype=dtypes.float32), i, size=x.size))

  want = np.log1p((y.astype(np.longdouble) - x) / x)
  np.testing.assert_allclose(run(kernel(b - a), [x, y]), want, rtol=1e-6)
  for value, short in (
    (a, True),
    (a * 3.0, True),
    (a * b * 2.0, True),
    (-a, False),
    (a - 3.0, False),
    ((a - b) * 2.0, False),
  ):
    assert (a in rounded_to_single(kernel(value))) is short
  assert a not in rounded_to_single(sink(store(i, a, i, size=x.size)))
  assert ulps(run(kernel(a), [x]), np.log(x.astype(np.longdouble))).max() <= 0.51


@pytest.mark.parametrize("op", [Ops.EXP, Ops.LOG, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF, Ops.POW])
def test_nan_of_any_bits_stays_nan(op):
  """The bits of a NaN are no exponent that a result could be scaled by."""
  bits = np.random.default_rng(11).integers(0x7F800001, 0x80000000, 2000, dtype=np.uint32)
  bits[::2] |= 1 << 31
  x, other = bits.view(np.float32), np.resize(np.array([2, 0.5, np.inf, -2, 3e38], np.float32), bits.size)
  for arrays in ((x, other), (other, x)) if op is Ops.POW else ((x,),):
    assert np.isnan(elementwise(op, *arrays)).all()


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFC00000, 0x7FC00000])
@pytest.mark.parametrize("op", [Ops.EXP, Ops.LOG, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF, Ops.POW])
def test_nan_stays_nan_whatever_bits_a_device_gives_it(op, bits, monkeypatch):
  """Processors keep the bits of an operand, NVIDIA's GPUs set them all."""

  def of_device(f):
    def g(*xs):
      out = np.asarray(f(*xs))
      return np.where(np.isnan(out), np.uint32(bits).view(np.float32), out) if out.dtype == np.float32 else out

    return g

  for name, f in {**FUNCTIONS, Ops.FLOOR: np.floor}.items():
    monkeypatch.setitem(FUNCTIONS, name, f if name is Ops.WHERE else of_device(f))
  x, two = np.full(4, np.nan, np.float32), np.array([2, 0.5, -2, np.inf], np.float32)
  for arrays in ((x, two), (two, x)) if op is Ops.POW else ((x,),):
    i = loop(4, 0)
    value = UOp.new(op, dtypes.float32, tuple(load(k + 1, y, i) for k, y in enumerate(arrays)))
    ast = decompose(sink(store(i, value, i, size=4)), Target("any"))
    assert np.isnan(evaluate(ast, arrays)).all(), evaluate(ast, arrays)


@pytest.mark.parametrize("op,function", [(Ops.SIN, np.sin), (Ops.COS, np.cos)])
def test_near_multiples_of_half_pi_and_of_any_bits(op, function):
  rng = np.random.default_rng(6)
  x = rng.integers(0, 0x7F800000, 30000, dtype=np.uint32).view(np.float32)
  x = np.concatenate([x, (np.arange(1, 30000) * (np.pi / 2)).astype(np.float32)]) * np.float32(-1)
  assert ulps(elementwise(op, x), function(x.astype(np.longdouble))).max() <= 1.2 * ROUNDED_TWICE


@pytest.mark.parametrize(
  ("op", "other"),
  [(Ops.SIN, 1e9), (Ops.SIN, np.inf), (Ops.LOG, 0.0), (Ops.LOG, 1e-42), (Ops.POW, -2.0), (Ops.POW, 0.0)],
)
def test_no_element_depends_on_its_neighbours(op, other):
  """Where one lane of a vector takes the branch for unusual arguments, the others hold what they held before: the two
  ways to a sine differ in the last bit."""
  x = np.random.default_rng(8).uniform(1, 5000, 4096).astype(np.float32)
  mixed = np.where(np.arange(4096) % 7, x, np.float32(other))
  y = (np.random.default_rng(9).uniform(-3, 3, 4096).astype(np.float32),) if op is Ops.POW else ()
  alone, beside = elementwise(op, x, *y), elementwise(op, mixed, *y)
  np.testing.assert_array_equal(alone[mixed == x], beside[mixed == x])
  assert (alone != beside)[mixed != x].all()


def test_what_is_unlikely_to_be_needed_is_in_a_branch_of_its_own():
  """The integers of 64 bits that reduce a large argument are computed in a loop of one iteration or none, outside of
  which vectors are as wide as float32 allows."""
  i, target = loop(4096, 0), Device["CPU"].target
  x = load(1, np.zeros(4096, np.float32), i)
  linear = lower_kernel(sink(store(i, UOp.new(Ops.SIN, dtypes.float32, (x,)), i, size=4096)), target)
  inside, wide = [], []
  for u in linear:
    if u.op is Ops.RANGE:
      inside.append(u.src[0].op is not Ops.CONST)
    elif u.op is Ops.ENDRANGE:
      inside.pop()
    elif u.dtype.scalar() is dtypes.uint64 and u.op is not Ops.VECTORIZE:  # constants stand before all loops
      wide.append(any(inside))
  assert wide and all(wide)
  assert max(u.dtype.count for u in linear if u.op is Ops.LOAD) == target.vector_bytes // 4


@pytest.mark.parametrize("shape", [(4, 2, 8), (4, 2, 6), (4, 8)])
@pytest.mark.parametrize("beside", [False, True])
def test_an_unlikely_branch_of_what_is_padded(shape, beside):
  """For the elements of a tile that are padding all is a constant, but for the conditions on its way, which need the
  loops. (Mutant: the branch stands where what it chooses between is known.)"""
  array = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float64)
  pads = ((0, 3), (0, 2), (0, 0))[: len(shape)]
  padded, x = np.pad(array, pads, constant_values=3.0), Tensor(array).realize().pad(pads, value=3.0)
  sign = (x < 0).where(-1.0, (x > 0).where(1.0, x))
  y = ((-(x == 0).where(0.0, x * sign)).exp() + 1).log().contiguous()
  Tensor.realize(y, *[x.contiguous()] * beside)
  np.testing.assert_allclose(y.numpy(), np.log(np.exp(-np.abs(padded)) + 1), rtol=1e-14)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3])
@pytest.mark.parametrize("op", [Ops.EXP, Ops.LOG, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF, Ops.POW, Ops.SQRT])
def test_no_function_needs_float64(op, dtype):
  """A device without float64 computes the same."""
  x = UOp.new(Ops.PARAM, dtype, (), ParamArg(0, 1))
  found = decompose(UOp.new(op, dtype, (x,) * (2 if op is Ops.POW else 1)), Target("any")).toposort()
  assert found and not [u for u in found if u.dtype is dtypes.float64]
  assert op is Ops.SQRT or op not in {u.op for u in found}


POWERS = [(np.float32, True, 0.6), (np.float32, False, 1), (np.float64, True, 1)]


@pytest.fixture(params=POWERS, ids=["float32 in float64", "float32 by pairs", "float64"])
def powers(request, monkeypatch):
  """A type, powers of it, and the bound of their errors: on a device that has float64, or that has not."""
  dtype, float64, bound = request.param
  device = Device["CPU"]
  monkeypatch.setattr(device, "target", replace(device.target, float64=float64))
  return dtype, bound


@pytest.mark.parametrize("kind", ["any", "full range", "near 1"])
def test_power_of_any_size(kind, powers):
  """Where log2 has to be more exact than its type, and where the result is a denormal."""
  (dtype, bound), rng = powers, np.random.default_rng(7)
  word, kinds = (np.uint32, np.finfo(np.float32)) if dtype is np.float32 else (np.uint64, np.finfo(np.float64))
  x = rng.integers(1, np.array(np.inf, dtype).view(word), 20000, dtype=word).view(dtype)
  if kind == "near 1":
    x = (1 + rng.uniform(-1, 1, 20000) * np.exp2(-rng.uniform(0, kinds.nmant + 1, 20000))).astype(dtype)
  with np.errstate(all="ignore"):
    y = (rng.uniform(kinds.minexp - kinds.nmant - 1, kinds.maxexp, 20000) / np.log2(x.astype(np.longdouble))).astype(
      dtype
    )
    y = rng.integers(0, np.iinfo(word).max, 20000, dtype=word).view(dtype) if kind == "any" else y
    want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
  assert ulps(elementwise(Ops.POW, x, y), want, dtype).max() <= bound


def test_power(powers):
  (dtype, bound), rng = powers, np.random.default_rng(2)
  x, y = rng.uniform(0, 20, 3000).astype(dtype), rng.uniform(-12, 12, 3000).astype(dtype)
  with np.errstate(all="ignore"):
    want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
  assert ulps(elementwise(Ops.POW, x, y), want, dtype).max() <= bound
  cases = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, np.inf, -np.inf, np.nan, 3.0, -3.0], dtype)
  a, b = (v.ravel() for v in np.meshgrid(cases, cases))
  with np.errstate(all="ignore"):
    got, want = elementwise(Ops.POW, a, b), np.power(a, b)
  np.testing.assert_allclose(got, want, rtol=2 * np.finfo(dtype).eps)  # numpy itself is 1 ulp off
  np.testing.assert_array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])


@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_round_once(narrow):
  rng = np.random.default_rng(3)
  a, b = rng.standard_normal(501).astype(narrow), rng.standard_normal(501).astype(narrow)
  for op, function in ((Ops.ADD, np.add), (Ops.MUL, np.multiply), (Ops.MAX, np.maximum)):
    want = function(a.astype(np.float32), b.astype(np.float32)).astype(narrow)
    np.testing.assert_array_equal(elementwise(op, a, b).view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize("halves", [True, False])
def test_half_conversions(halves, monkeypatch):
  """All halves; what lies between neighbours, and beside that; by the processor, and by their bits."""
  device = Device["CPU"]
  if halves and dtypes.float16 not in device.target.converts:
    pytest.skip("this processor, or CPU_FEATURES, has no conversion of half")
  monkeypatch.setattr(device, "target", replace(device.target, converts=(dtypes.float16,) if halves else ()))
  every = np.arange(1 << 16).astype(np.uint16).view(np.float16)
  wide = every.astype(np.float32)
  np.testing.assert_array_equal(elementwise(Ops.CAST, every, dtype=dtypes.float32), wide)
  with np.errstate(all="ignore"):
    finite = np.unique(wide[np.isfinite(wide)])
    between = (finite[1:] + finite[:-1]) / 2
    ends = np.array([65519, 65520, 65536, 1e6, 3e38, 1e-45, 2.0**-25, np.inf, np.nan], np.float32)
    ends = np.concatenate([between, ends, -ends])
    x = np.concatenate([ends, np.nextafter(ends, np.float32(np.inf)), np.nextafter(ends, np.float32(-np.inf))])
    got, want = elementwise(Ops.CAST, x, dtype=dtypes.float16), x.astype(np.float16)
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(np.signbit(got[~np.isnan(x)]), np.signbit(want[~np.isnan(x)]))
  a, b = every[:9000], every[9000:18000]
  np.testing.assert_array_equal(elementwise(Ops.ADD, a, b), a + b)


@pytest.mark.parametrize(
  ("name", "numpy_dtype"), [("fp8e4m3", ml_dtypes.float8_e4m3fn), ("fp8e5m2", ml_dtypes.float8_e5m2)]
)
def test_fp8_conversions(name, numpy_dtype):
  every = np.arange(256).astype(np.uint8).view(numpy_dtype)
  np.testing.assert_array_equal(elementwise(Ops.CAST, every, dtype=dtypes.float32), every.astype(np.float32))
  x = (np.random.default_rng(4).standard_normal(4000) * np.exp(np.random.default_rng(5).uniform(-12, 14, 4000))).astype(
    np.float32
  )
  x = np.concatenate(
    # 0.5 + 2^-23 times the smallest denormal is above the half, by less than a denormal of float32 shows when scaled
    [
      x,
      np.float32(0.5 + 2.0**-23) * np.float32([2**-9, 2**-16]),
      np.array([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 57344, 61439, 61440, 1e9], np.float32),
    ]
  )
  got, want = elementwise(Ops.CAST, x, dtype=getattr(dtypes, name)), x.astype(numpy_dtype)
  np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_bfloat16_conversions_keep_nan_and_round_to_even():
  x = np.array([1.0, 1.00390625, 1.01171875, np.nan, np.inf, -np.inf, 3.4e38, 1e-40, -0.0], np.float32)
  np.testing.assert_array_equal(
    elementwise(Ops.CAST, x, dtype=dtypes.bfloat16).astype(np.float32), x.astype(ml_dtypes.bfloat16).astype(np.float32)
  )
