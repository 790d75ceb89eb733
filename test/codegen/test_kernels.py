"""Kernels through every stage against numpy, in the sizes at which tiles, lanes and their rests begin and end."""

import numpy as np
import pytest
from codegen_kernels import dot, elementwise, evaluate, fold, launch, load, loop, num, op, reduce, run, sink, store

from tinygrad import Tensor
from tinygrad.codegen import lower_kernel, signature
from tinygrad.codegen.analysis.accesses import Analysis
from tinygrad.codegen.expressions import Values
from tinygrad.device import Device, Target
from tinygrad.dtype import dtypes, from_numpy_dtype
from tinygrad.helpers import Context
from tinygrad.numerics.lanes import transposed
from tinygrad.uop import Ops, ParamArg, UOp
from tinygrad.uop.loops import LoopIds

RNG = np.random.default_rng(0)
WIDE = Target("wide", 64, 32, scratch=64 << 20)


def normal(*shape, dtype=np.float32):
  return RNG.standard_normal(shape).astype(dtype)


def check(ast, arrays, variables=None, rtol=2e-5, atol=2e-5):
  names = sorted(variables or {})
  got = run(ast, arrays, [variables[n] for n in names] if variables else ())
  want = evaluate(ast, arrays, variables)
  if np.issubdtype(want.dtype, np.floating):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
  else:
    np.testing.assert_array_equal(got, want)


def matmul(m, n, k, a_layout="mk", b_layout="kn", c_layout="mn", epilogue=None, prologue=None):
  a, b = normal(m, k), normal(k, n)
  i, j, r = loop(m, 0), loop(n, 1), reduce(k, 2)
  sizes = {"m": m, "n": n, "k": k}
  ranges = {"m": i, "n": j, "k": r}

  def at(layout):
    return dot((ranges[layout[0]], sizes[layout[1]]), (ranges[layout[1]], 1))

  x, y = load(1, a, at(a_layout)), load(2, b, at(b_layout))
  if prologue:
    x, y = prologue(x), prologue(y)
  value = fold(Ops.ADD, op(Ops.MUL, x, y), r)
  if epilogue:
    value = epilogue(value, i, j)
  ranges_of_store = (i, j) if c_layout == "mn" else (j, i)
  ast = sink(store(at(c_layout), value, *ranges_of_store, size=m * n))
  return ast, [a if a_layout == "mk" else a.T.copy(), b if b_layout == "kn" else b.T.copy()]


@pytest.mark.parametrize("layouts", [("mk", "kn"), ("mk", "nk"), ("km", "kn"), ("km", "nk")])
@pytest.mark.parametrize(
  "sizes", [(1, 1, 1), (9, 33, 70), (33, 17, 16), (130, 67, 129), (128, 96, 64), (1, 100, 64), (100, 1, 64), (5, 7, 0)]
)
def test_matmul_in_every_layout_and_odd_sizes(layouts, sizes):
  check(*matmul(*sizes, *layouts))


def test_matmul_with_transposed_result_prologue_and_epilogue():
  bias = normal(70)

  def relu(x):
    return op(Ops.MAX, x, UOp.const(dtypes.float32, 0.0))

  ast, arrays = matmul(
    130, 70, 90, c_layout="nm", prologue=relu, epilogue=lambda v, i, j: op(Ops.ADD, relu(v), load(3, bias, j))
  )
  check(ast, [*arrays, bias])


def test_batched_matmul_with_a_shared_operand():
  a, b = normal(3, 20, 40), normal(40, 50)
  i, m, n, k = loop(3, 0), loop(20, 1), loop(50, 2), reduce(40, 3)
  value = fold(Ops.ADD, op(Ops.MUL, load(1, a, dot((i, 800), (m, 40), (k, 1))), load(2, b, dot((k, 50), (n, 1)))), k)
  check(sink(store(dot((i, 1000), (m, 50), (n, 1)), value, i, m, n, size=3000)), [a, b])


def test_half_operands_accumulated_in_float():
  a, b = normal(40, 64, dtype=np.float16), normal(64, 48, dtype=np.float16)
  i, j, k = loop(40, 0), loop(48, 1), reduce(64, 2)

  def wide(x):
    return op(Ops.CAST, x, dtype=dtypes.float32)

  value = fold(Ops.ADD, op(Ops.MUL, wide(load(1, a, dot((i, 64), (k, 1)))), wide(load(2, b, dot((k, 48), (j, 1))))), k)
  check(
    sink(store(dot((i, 48), (j, 1)), op(Ops.CAST, value, dtype=dtypes.float16), i, j, size=40 * 48)),
    [a, b],
    rtol=2e-3,
    atol=2e-3,
  )


@pytest.mark.parametrize("width", [5, 14, 26, 33])
@pytest.mark.parametrize("padding", [0, 1])
def test_convolution_as_a_window(width, padding):
  n, ci, co, height = 2, 5, 9, 8
  x, w = normal(n, ci, height, width), normal(co, ci, 3, 3)
  oh, ow = height - 2 + 2 * padding, width - 2 + 2 * padding
  b, o, h, q = loop(n, 0), loop(co, 1), loop(oh, 2), loop(ow, 3)
  c, kh, kw = reduce(ci, 4), reduce(3, 5), reduce(3, 6)
  y, z = dot((h, 1), (kh, 1)), dot((q, 1), (kw, 1))
  valid = None
  if padding:
    y, z = op(Ops.SUB, y, num(1)), op(Ops.SUB, z, num(1))

    def inside(v, n):
      return op(Ops.AND, op(Ops.CMPLT, num(-1), v), op(Ops.CMPLT, v, num(n)))

    valid = op(Ops.AND, inside(y, height), inside(z, width))
  at = dot((b, ci * height * width), (c, height * width), (y, width), (z, 1))
  value = fold(
    Ops.ADD, op(Ops.MUL, load(1, x, at, valid), load(2, w, dot((o, ci * 9), (c, 9), (kh, 3), (kw, 1)))), c, kh, kw
  )
  check(
    sink(store(dot((b, co * oh * ow), (o, oh * ow), (h, ow), (q, 1)), value, b, o, h, q, size=n * co * oh * ow)), [x, w]
  )


def test_weight_gradient_of_a_convolution():
  n, ci, co, height, width = 2, 3, 4, 9, 21
  x, g = normal(n, ci, height, width), normal(n, co, height - 2, width - 2)
  o, c, kh, kw = loop(co, 0), loop(ci, 1), loop(3, 2), loop(3, 3)
  b, h, q = reduce(n, 4), reduce(height - 2, 5), reduce(width - 2, 6)
  at = dot((b, ci * height * width), (c, height * width), (h, width), (kh, width), (q, 1), (kw, 1))
  grad = dot((b, co * (height - 2) * (width - 2)), (o, (height - 2) * (width - 2)), (h, width - 2), (q, 1))
  value = fold(Ops.ADD, op(Ops.MUL, load(1, x, at), load(2, g, grad)), b, h, q)
  check(
    sink(store(dot((o, ci * 9), (c, 9), (kh, 3), (kw, 1)), value, o, c, kh, kw, size=co * ci * 9)), [x, g], atol=1e-4
  )


@pytest.mark.parametrize("rows,columns", [(1, 1), (7, 16), (5, 100), (64, 257), (3, 0), (0, 3)])
@pytest.mark.parametrize("code", [Ops.ADD, Ops.MAX, Ops.MIN])
def test_reductions_of_rows_and_columns(rows, columns, code):
  x = normal(rows, columns)
  i, k = loop(rows, 0), reduce(columns, 1)
  check(sink(store(i, fold(code, load(1, x, dot((i, columns), (k, 1))), k), i, size=rows)), [x])
  j, m = loop(columns, 2), reduce(rows, 3)
  check(sink(store(j, fold(code, load(1, x, dot((m, columns), (j, 1))), m), j, size=columns)), [x])


@pytest.mark.parametrize("n", [0, 1, 15, 16, 1000, 100003])
def test_sum_of_everything(n):
  x = normal(n)
  k = reduce(n, 0)
  check(sink(store(num(0), fold(Ops.ADD, load(1, x, k), k), size=1)), [x], atol=1e-3)


def test_long_sums_are_accurate():
  x = np.full(1 << 24, 0.1, np.float32)
  k = reduce(x.size, 0)
  got = run(sink(store(num(0), fold(Ops.ADD, load(1, x, k), k), size=1)), [x])
  np.testing.assert_allclose(got, x.astype(np.float64).sum(), rtol=1e-5)  # one accumulator for each lane is off by 1e-3


@pytest.mark.parametrize(
  "dtype",
  [
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
    np.float16,
    np.float32,
    np.float64,
    np.bool_,
  ],
)
def test_every_dtype_is_loaded_stored_and_reduced(dtype):
  x = RNG.integers(0, 2, 203).astype(dtype) if dtype is np.bool_ else RNG.integers(1, 90, 203).astype(dtype)
  i, k = loop(203, 0), reduce(203, 1)
  copied = sink(store(i, load(1, x, i), i, size=203))
  np.testing.assert_array_equal(run(copied, [x], fill=0), x)
  for code, function in ((Ops.MAX, np.max), (Ops.MIN, np.min)):
    got = run(sink(store(num(0), fold(code, load(1, x, k), k), size=1)), [x])
    np.testing.assert_array_equal(got[0], function(x))


def test_softmax_in_one_kernel_with_one_range_in_two_folds():
  x = normal(37, 53)
  i, j, k = loop(37, 0), loop(53, 1), reduce(53, 2)

  def at(r):
    return load(1, x, dot((i, 53), (r, 1)))

  top = fold(Ops.MAX, at(k), k)
  total = fold(Ops.ADD, op(Ops.EXP, op(Ops.SUB, at(k), top)), k)
  check(
    sink(store(dot((i, 53), (j, 1)), op(Ops.FDIV, op(Ops.EXP, op(Ops.SUB, at(j), top)), total), i, j, size=37 * 53)),
    [x],
  )


def test_two_folds_share_a_loop():
  x = normal(40, 300)
  i, k = loop(40, 0), reduce(300, 1)
  v = load(1, x, dot((i, 300), (k, 1)))
  value = op(Ops.SUB, fold(Ops.ADD, op(Ops.MUL, v, v), k), fold(Ops.ADD, v, k))
  ast = sink(store(i, value, i, size=40))
  check(ast, [x], rtol=1e-4, atol=1e-3)
  loops = [u for u in lower_kernel(ast, WIDE) if u.op is Ops.RANGE and u.arg[1].name == "REDUCE"]
  inner = [u for u in loops if u.src[0].arg * 16 <= 300]
  assert len(inner) <= 2  # the loops over whole vectors of the rows' tile, not twice as many


@pytest.mark.parametrize("value", [0, 1, 16, 57, 100])
def test_dynamic_ends(value):
  n = UOp.variable("n", 0, 100)
  x, y = normal(100), normal(100, 100)
  i = loop(n, 0)
  check(sink(store(i, op(Ops.ADD, load(1, x, i), UOp.const(dtypes.float32, 1.5)), i, size=100)), [x], {"n": value})
  m, k = loop(100, 1), reduce(n, 2)
  check(sink(store(m, fold(Ops.ADD, load(1, y, dot((m, 100), (k, 1))), k), m, size=100)), [y], {"n": value})
  a, b, r = loop(n, 3), loop(100, 4), reduce(n, 5)
  product = op(Ops.MUL, load(1, y, dot((a, 100), (r, 1))), load(2, y, dot((r, 100), (b, 1))))
  check(sink(store(dot((a, 100), (b, 1)), fold(Ops.ADD, product, r), a, b, size=10000)), [y, y], {"n": value})


def test_masked_loads_with_another_value():
  x = normal(50)
  i = loop(70, 0)
  at = op(Ops.SUB, i, num(10))
  valid = op(Ops.AND, op(Ops.CMPLT, num(-1), at), op(Ops.CMPLT, at, num(50)))
  check(sink(store(i, load(1, x, at, valid), i, size=70)), [x])
  check(sink(store(i, load(1, x, at, valid, UOp.const(dtypes.float32, 3.0)), i, size=70)), [x])
  k = reduce(70, 1)
  at = op(Ops.SUB, k, num(10))
  valid = op(Ops.AND, op(Ops.CMPLT, num(-1), at), op(Ops.CMPLT, at, num(50)))
  check(
    sink(store(num(0), fold(Ops.MAX, load(1, x - 100, at, valid, UOp.const(dtypes.float32, -np.inf)), k), size=1)),
    [x - 100],
  )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int8])
@pytest.mark.parametrize("other", [None, 3])
@pytest.mark.parametrize("n", [10, 33, 70, 128])
def test_each_second_element_where_there_is_one(n, other, dtype):
  """x[2 i - 7] and what lies around it: the windows of a stride, at the ends of what they slide over."""
  x = (normal(90) * 50).astype(dtype)
  i = loop(n, 0)
  at = op(Ops.SUB, op(Ops.MUL, i, num(2)), num(7))
  valid = op(Ops.AND, op(Ops.CMPLT, num(-1), at), op(Ops.CMPLT, at, num(90)))
  none = () if other is None else (UOp.const(load(1, x, at).dtype, other),)
  ast = sink(store(i, load(1, x, at, valid, *none), i, size=n))
  np.testing.assert_array_equal(run(ast, [x]), evaluate(ast, [x]))


def test_gather_and_modular_indices():
  x, indices = normal(30, 20), RNG.integers(0, 30, 45).astype(np.int32)
  i, j = loop(45, 0), loop(20, 1)
  row = op(Ops.CAST, load(2, indices, i), dtype=dtypes.index)
  check(
    sink(store(dot((i, 20), (j, 1)), load(1, x, op(Ops.ADD, op(Ops.MUL, row, num(20)), j)), i, j, size=900)),
    [x, indices],
  )
  f = loop(600, 2)  # a transpose through one flat range
  at = op(Ops.ADD, op(Ops.MUL, op(Ops.MOD, f, num(30)), num(20)), op(Ops.IDIV, f, num(30)))
  check(sink(store(f, load(1, x, at), f, size=600)), [x])
  r = loop(100, 3)  # reversed, and repeated
  check(sink(store(r, load(1, x, op(Ops.SUB, num(599), op(Ops.MOD, r, num(7)))), r, size=100)), [x])


def test_transposed_copy():
  x = normal(50, 70)
  i, j = loop(70, 0), loop(50, 1)
  check(sink(store(dot((i, 50), (j, 1)), load(1, x, dot((j, 70), (i, 1))), i, j, size=3500)), [x])


def test_ranges_as_values():
  i, j = loop(30, 0), loop(40, 1)
  value = op(Ops.CAST, op(Ops.ADD, op(Ops.MUL, i, num(40)), j), dtype=dtypes.float32)
  check(sink(store(dot((i, 40), (j, 1)), value, i, j, size=1200)), [])
  triangle = op(Ops.WHERE, op(Ops.CMPLT, j, i), UOp.const(dtypes.float32, 1.0), UOp.const(dtypes.float32, -np.inf))
  check(sink(store(dot((i, 40), (j, 1)), triangle, i, j, size=1200)), [])


def test_several_stores():
  x = normal(100)
  i = loop(100, 0)
  v = load(2, x, i)
  ast = sink(store(i, op(Ops.ADD, v, v), i, size=100), store(i, op(Ops.MUL, v, v), i, size=100, slot=1))
  out = np.zeros_like(x)
  np.testing.assert_array_equal(run(ast, [out, x]), x + x)


def test_masked_store():
  x = normal(64)
  i = loop(64, 0)
  ast = sink(store(i, load(1, x, i), i, size=64))
  where = ast.src[0].src[0]
  valid = op(Ops.CMPNE, op(Ops.MOD, i, num(3)), num(0))
  masked = UOp.new(Ops.INDEX, where.dtype, (*where.src, valid))
  check(sink(UOp.new(Ops.STORE, dtypes.void, (masked, *ast.src[0].src[1:]))), [x])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_integer_division_floors_and_never_traps(dtype):
  info = np.iinfo(dtype)
  a = np.concatenate([RNG.integers(info.min, info.max, 300, dtype=dtype), np.array([info.min, info.max, 0], dtype)])
  b = np.concatenate(
    [RNG.integers(0 if info.min == 0 else -6, 7, 300).astype(dtype), np.array([info.max, info.max, 1], dtype)]
  )
  if info.min:
    b[-3] = -1  # the quotient of the least integer by -1 does not fit
  with np.errstate(all="ignore"):
    np.testing.assert_array_equal(elementwise(Ops.IDIV, a, b), np.floor_divide(a, b))
    np.testing.assert_array_equal(elementwise(Ops.MOD, a, b), np.mod(a, b))


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 8, -3])
def test_integer_division_by_constants(divisor):
  x = RNG.integers(-1000, 1000, 500).astype(np.int32)
  i = loop(500, 0)
  for code in (Ops.IDIV, Ops.MOD):
    check(sink(store(i, op(code, load(1, x, i), UOp.const(dtypes.int32, divisor)), i, size=500)), [x])


def test_nan_passes_through_extrema_in_either_place():
  x = np.array([1.0, np.nan, 2.0, np.nan, -np.inf, 0.0] * 7, np.float32)
  y = np.array([np.nan, 1.0, 3.0, np.nan, np.nan, -1.0] * 7, np.float32)
  np.testing.assert_array_equal(elementwise(Ops.MAX, x, y), np.maximum(x, y))
  np.testing.assert_array_equal(elementwise(Ops.MIN, x, y), np.minimum(x, y))
  k = reduce(42, 0)
  assert np.isnan(run(sink(store(num(0), fold(Ops.MAX, load(1, x, k), k), size=1)), [x])[0])
  i = loop(42, 1)
  np.testing.assert_array_equal(
    run(sink(store(i, op(Ops.MAX, load(1, x, i), UOp.const(dtypes.float32, 0.0)), i, size=42)), [x]), np.maximum(x, 0)
  )


def test_casts_of_every_pair():
  kinds = [
    np.bool_,
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
    np.float16,
    np.float32,
    np.float64,
  ]
  for a in kinds:
    x = np.arange(0, 100).astype(a) if np.dtype(a).kind in "bu" else np.arange(-50, 50).astype(a)
    for b in kinds:
      if np.dtype(a).kind == "f" and np.dtype(b).kind == "u":
        continue  # a negative float as an unsigned integer is undefined
      np.testing.assert_array_equal(
        elementwise(Ops.CAST, x, dtype=from_numpy_dtype(np.dtype(b))), x.astype(b), err_msg=f"{a} -> {b}"
      )


@pytest.mark.parametrize(
  "target", [Target("narrow", 16, 16), Target("avx", 32, 16, scratch=1 << 16), Target("wide", 64, 32, scratch=1 << 24)]
)
def test_plans_for_other_targets_are_correct(target, monkeypatch):
  device = Device["CPU"]
  monkeypatch.setattr(
    device, "target", Target(target.name, target.vector_bytes, target.vector_registers, max(target.scratch, 64))
  )
  monkeypatch.setattr(device, "arenas", [])
  for layouts in (("mk", "kn"), ("km", "nk")):
    check(*matmul(45, 70, 129, *layouts))


@pytest.mark.parametrize("step", [2, 3, 4, 5, -1, -2])
def test_strided_loads(step):
  n = 75
  x = normal(abs(step) * (n - 1) + 1)  # the last element wanted is the last there is
  i = loop(n, 0)
  start = 0 if step > 0 else x.size - 1
  at = op(Ops.ADD, op(Ops.MUL, i, num(step)), num(start))
  check(sink(store(i, load(1, x, at), i, size=n)), [x])


@pytest.mark.parametrize("window", [2, 3])
def test_pooling_windows_are_written_out(window):
  x = normal(6, 8 * window, 20 * window)
  i, j, k = loop(6, 0), loop(8, 1), loop(20, 2)
  a, b = reduce(window, 3), reduce(window, 4)
  width = 20 * window
  at = dot((i, 8 * window * width), (j, window * width), (a, width), (k, window), (b, 1))
  ast = sink(store(dot((i, 160), (j, 20), (k, 1)), fold(Ops.MAX, load(1, x, at), a, b), i, j, k, size=960))
  check(ast, [x])
  assert not any(u.op is Ops.ACC for u in lower_kernel(ast, WIDE))


def sliding(rows, stride, kernel=7):
  """A window over two dims of each of six images, with weights of its own for each: nothing else reads them again."""
  width = 40
  height = (rows - 1) * stride + kernel
  x, w = normal(6, height, width), normal(6, kernel, 5)
  b, i, j, k, m = loop(6, 0), loop(rows, 1), loop(width - 4, 2), reduce(kernel, 3), reduce(5, 4)
  image = load(1, x, dot((b, height * width), (i, stride * width), (k, width), (j, 1), (m, 1)))
  value = fold(Ops.ADD, op(Ops.MUL, image, load(2, w, dot((b, kernel * 5), (k, 5), (m, 1)))), k, m)
  where = dot((b, rows * (width - 4)), (i, width - 4), (j, 1))
  return sink(store(where, value, b, i, j, size=6 * rows * (width - 4))), [x, w]


SLIDING = [(24, 1, 7), (24, 2, 7), (7, 1, 3), (9, 1, 12), (24, 1, 15)]  # the last in two parts


@pytest.mark.parametrize(("rows", "stride", "kernel"), SLIDING)
def test_a_window_that_slides_is_read_once_for_several_rows(rows, stride, kernel, monkeypatch):
  ast, arrays = sliding(rows, stride, kernel)
  check(ast, arrays)
  linear = lower_kernel(ast, WIDE)
  loads = [u.src[0].src[0] for u in linear if u.op is Ops.LOAD and u.src[0].op is Ops.INDEX]
  products = sum(u.op is Ops.MUL and u.dtype.scalar() is dtypes.float32 for u in linear)
  assert sum(p.arg.slot == 1 for p in loads) <= (0.5 if stride == 1 else 0.7) * products
  assert sum(u.op is Ops.ACC for u in linear) <= 32  # rows, not rows times steps
  got = run(ast, arrays)
  for target in (Target("narrow", 16, 16, scratch=1 << 16), Target("few", 32, 5, scratch=1 << 16)):
    monkeypatch.setattr(Device["CPU"], "target", target)  # sums have one order, whatever is in registers
    np.testing.assert_array_equal(run(ast, arrays), got)


@pytest.mark.parametrize("images, rows, taps", [(2, 20, 3), (1, 9, 5)])
def test_a_sum_whose_steps_are_vectors_keeps_them_where_something_slides(images, rows, taps):
  """Of few results, along which an image slides: its weights' gradient."""
  width = 48
  span = width + taps - 1
  g, x = normal(images, rows, width), normal(images, rows + taps - 1, span)
  i, j, b, k, m = loop(taps, 0), loop(taps, 1), reduce(images, 2), reduce(rows, 3), reduce(width, 4)
  there = load(1, g, dot((b, rows * width), (k, width), (m, 1)))
  image = load(2, x, dot((b, (rows + taps - 1) * span), (k, span), (i, span), (j, 1), (m, 1)))
  ast = sink(store(dot((i, taps), (j, 1)), fold(Ops.ADD, op(Ops.MUL, there, image), b, k, m), i, j, size=taps * taps))
  check(ast, [g, x], rtol=1e-4, atol=1e-3)
  products = [u for u in lower_kernel(ast, WIDE) if u.op is Ops.MUL and dtypes.is_float(u.dtype)]
  assert products and all(u.dtype.count > 1 for u in products)


@pytest.mark.parametrize("k", [5, 8, 9])
def test_a_short_product_of_matrices_is_one(k):
  """Of which one lies the other way: it is staged, and not read element by element for each result, as in a chain."""
  ast, arrays = matmul(128, 96, k, "mk", "nk")
  check(ast, arrays)
  linear = lower_kernel(ast, WIDE)
  assert any(u.op is Ops.SCRATCH for u in linear) and any(u.op is Ops.ACC for u in linear)


@pytest.mark.parametrize("layouts", [("mk", "kn"), ("km", "kn")])
def test_a_long_reduction_runs_in_blocks_of_its_outer_range(layouts):
  ast, arrays = matmul(100, 50, 20011, *layouts)
  check(ast, arrays, rtol=1e-4, atol=2e-3)
  scratch = {u.arg[0] for u in lower_kernel(ast, WIDE) if u.op is Ops.SCRATCH}
  assert len(scratch) >= 2  # the sums so far, and a panel


@pytest.mark.parametrize("n", [256, 1000, 1003])
def test_a_vector_times_a_wide_matrix_streams_rows(n):
  ast, arrays = matmul(1, n, 130)
  check(ast, arrays)
  assert any(u.op is Ops.SCRATCH for u in lower_kernel(ast, WIDE))


def test_a_deep_chain_of_operations():
  x = normal(64)
  i = loop(64, 0)
  value = load(1, x, i)
  for k in range(3000):
    value = op(Ops.ADD if k % 2 else Ops.SUB, value, UOp.const(dtypes.float32, 1.0))
  np.testing.assert_allclose(run(sink(store(i, value, i, size=64)), [x]), x, rtol=1e-3, atol=1e-3)


def test_loads_from_the_buffers_of_peers():
  devices = [Device[f"{Device.DEFAULT}:{i}"] for i in range(3)]
  n = 40
  number = UOp.variable("_device_num", 0, 2)
  i, j = loop(3, 0), loop(n, 1)
  table = UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(1, n, True))
  for owner in (op(Ops.MOD, op(Ops.ADD, number, num(1)), num(3)), op(Ops.MOD, op(Ops.ADD, i, j), num(3))):
    peer = UOp.new(Ops.PEER, dtypes.float32, (table, owner))
    value = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (peer, j)),))
    ast = sink(store(dot((i, n), (j, 1)), value, i, j, size=3 * n))
    program = devices[0].compile(devices[0].render(lower_kernel(ast, devices[0].target), "peers"), "peers")
    held = [normal(n) for _ in devices]
    handles = [d.alloc(n * 4) for d in devices]
    for d, h, x in zip(devices, handles, held, strict=True):
      d.copyin(h, memoryview(x))
    slots = [u.arg for u in signature(ast) if u.op is Ops.VARIABLE]
    for me, d in enumerate(devices):
      out = d.alloc(3 * n * 4)
      launch(d, program, [out, handles], [me] * len(slots))
      got = np.zeros((3, n), np.float32)
      d.copyout(memoryview(got), out)
      if slots:
        want = np.tile(held[(me + 1) % 3], (3, 1))
      else:
        want = np.array([[held[(a + b) % 3][b] for b in range(n)] for a in range(3)])
      np.testing.assert_array_equal(got, want)


def test_unrolling_by_the_divisor_makes_divisions_vanish():
  x = normal(40, 12)
  i, j, k = loop(40, 0), loop(24, 1), reduce(2, 2)  # every second place holds an element: the gradient of a pool
  at = op(Ops.SUB, j, k)
  even = op(Ops.CMPEQ, op(Ops.MOD, at, num(2)), num(0))
  valid = op(Ops.AND, op(Ops.CMPLT, num(-1), at), even)
  offset = op(Ops.ADD, op(Ops.MUL, i, num(12)), op(Ops.IDIV, at, num(2)))
  ast = sink(store(dot((i, 24), (j, 1)), fold(Ops.ADD, load(1, x, offset, valid), k), i, j, size=960))
  check(ast, [x])
  assert not any(u.op in (Ops.MOD, Ops.IDIV, Ops.CMPEQ) for u in lower_kernel(ast, WIDE))


def widths(ast, slot):
  """The lanes of the loads of a parameter, and whether one gathers."""
  loads = [u.src[0] for u in lower_kernel(ast, WIDE) if u.op is Ops.LOAD and u.src[0].op is Ops.INDEX]
  mine = [x for x in loads if x.src[0].op is Ops.PARAM and x.src[0].arg.slot == slot]
  return {x.dtype.count for x in mine}, any(x.src[1].dtype.count > 1 for x in mine)


def test_what_is_the_same_for_a_block_is_read_once_a_vector():
  x, scale, row, shifted = normal(1024), normal(64), normal(16), normal(65)
  i = loop(1024, 0)
  block, place = op(Ops.IDIV, i, num(16)), op(Ops.MOD, i, num(16))
  product = op(Ops.MUL, load(1, x, i), op(Ops.MUL, load(2, scale, block), load(3, row, place)))
  ast = sink(store(i, product, i, size=1024))
  check(ast, [x, scale, row])
  assert widths(ast, 2) == ({1}, False) and widths(ast, 3) == ({16}, False)
  next_block = load(1, shifted, op(Ops.IDIV, op(Ops.ADD, i, num(1)), num(16)))  # a vector may reach into it
  check(sink(store(i, next_block, i, size=1024)), [shifted])


def test_what_is_read_from_its_end_is_read_in_vectors():
  x = normal(30 * 64)
  i, j = loop(30, 0), loop(64, 1)
  last_first = op(Ops.ADD, dot((i, 64), (j, -1)), num(63))
  ast = sink(store(dot((i, 64), (j, 1)), load(1, x, last_first), i, j, size=30 * 64))
  check(ast, [x])
  assert widths(ast, 1) == ({16}, False)


@pytest.mark.parametrize("columns", [64, 45, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float64])
def test_what_is_read_from_its_end_where_there_is_some_is_read_in_vectors(columns, dtype):
  x, y = normal(30, columns).astype(dtype), normal(30, columns).astype(dtype)
  i, j = loop(30, 0), loop(columns, 1)
  last_first = op(Ops.ADD, dot((i, columns), (j, -1)), num(columns - 3))  # two of each row are not there
  there = op(Ops.CMPLT, j, num(columns - 2))
  for other in (UOp.const(from_numpy_dtype(x.dtype), 7), load(2, y, dot((i, columns), (j, 1)))):
    ast = sink(store(dot((i, columns), (j, 1)), load(1, x, last_first, there, other), i, j, size=x.size))
    check(ast, [x] if other.op is Ops.CONST else [x, y])
    if columns == 64:
      assert widths(ast, 1) == ({64 // x.itemsize}, False)


def test_the_type_of_an_address_counts_where_lanes_have_one_each():
  table, at = normal(100, 64), RNG.integers(0, 100, (50, 64)).astype(np.int64)
  i, j = loop(50, 0), loop(64, 1)

  def rows(address):
    row = op(Ops.CAST, address, dtype=dtypes.index)
    where = op(Ops.ADD, op(Ops.MUL, row, num(64)), j)
    ast = sink(store(dot((i, 64), (j, 1)), load(1, table, where), i, j, size=50 * 64))
    check(ast, [table, at])
    return Analysis(ast.src, (i, j)).itemsize, widths(ast, 1)

  assert rows(load(2, at, i)) == (4, ({16}, False))
  assert rows(load(2, at, dot((i, 64), (j, 1)))) == (8, ({1}, False))


def test_vectors_lie_along_the_operand_that_a_reduction_would_read_across():
  a, b = np.zeros(128 * 1000, np.float32), np.zeros(1000 * 1000, np.float32)  # 128 fills its vectors, 1000 does not
  i, j, k = loop(128, 0), loop(1000, 1), reduce(1000, 2)
  product = op(Ops.MUL, load(1, a, dot((i, 1000), (k, 1))), load(2, b, dot((k, 1000), (j, 1))))
  ast = sink(store(dot((i, 1000), (j, 1)), fold(Ops.ADD, product, k), i, j, size=128000))
  assert widths(ast, 2)[0] == {16}


@pytest.mark.parametrize("rows", [30, 50])
def test_an_operand_that_a_few_tiles_read_is_turned_once(rows):
  """Weights of a layer, for few rows: these are not what fills vectors."""
  ast, arrays = matmul(rows, 1024, 64, "mk", "nk")
  check(ast, arrays, rtol=1e-4, atol=1e-4)
  linear = lower_kernel(ast, WIDE)
  assert any(u.op is Ops.SCRATCH for u in linear)
  stores = [u.src[0] for u in linear if u.op is Ops.STORE and u.src[0].op is Ops.INDEX]
  results = [at for at in stores if at.src[0].op is Ops.PARAM]
  assert results and all(at.dtype.count == 16 and at.src[1].dtype.count == 1 for at in results)


@pytest.mark.parametrize("columns", [17, 33, 50])
def test_what_is_read_once_is_read_in_one_pass(columns):
  """A sum over rows: of the last of their vectors some lanes are idle, rather than that it is a loop of its own."""
  x = normal(200, columns)
  j, k = loop(columns, 0), reduce(200, 1)
  ast = sink(store(dot((j, 1)), fold(Ops.ADD, load(1, x, dot((k, columns), (j, 1))), k), j, size=columns))
  check(ast, [x], rtol=1e-4, atol=1e-4)
  assert sum(u.op is Ops.RANGE and u.src[0].arg > 40 for u in lower_kernel(ast, WIDE)) == 1


def test_operands_of_two_reductions_that_share_loops_are_both_staged():
  n, m, over = 64, 256, 128
  xs = [normal(size) for size in (n * over, m * over, n * over, m * over)]
  i, j, k = loop(n, 0), loop(m, 1), reduce(over, 2)

  def product(slot):
    left, right = load(slot, xs[slot - 1], dot((i, over), (k, 1))), load(slot + 1, xs[slot], dot((j, over), (k, 1)))
    return fold(Ops.ADD, op(Ops.MUL, left, right), k)

  ast = sink(store(dot((i, m), (j, 1)), op(Ops.ADD, product(1), product(3)), i, j, size=n * m))
  check(ast, xs, rtol=1e-3, atol=1e-3)
  assert len({u.arg[0] for u in lower_kernel(ast, WIDE) if u.op is Ops.SCRATCH}) == 2


@pytest.mark.parametrize("target", [WIDE, Target("narrow", 16, 16, scratch=64 << 20)])
@pytest.mark.parametrize("sizes", [(6, 64, 48, 100), (70, 4, 200, 40), (70, 200, 4, 40), (3, 100, 50, 150)])
def test_staged_operands_are_those_of_the_current_iteration(target, sizes, monkeypatch):
  device = Device["CPU"]
  monkeypatch.setattr(device, "target", target)
  monkeypatch.setattr(device, "arenas", [])
  batch, m, n, k = sizes
  a, b = normal(batch, k, m), normal(batch, n, k)
  g, i, j, r = loop(batch, 0), loop(m, 1), loop(n, 2), reduce(k, 3)
  x = op(Ops.MAX, load(1, a, dot((g, k * m), (r, m), (i, 1))), UOp.const(dtypes.float32, 0.0))
  y = op(Ops.MAX, load(2, b, dot((g, n * k), (j, k), (r, 1))), UOp.const(dtypes.float32, 0.0))
  value = fold(Ops.ADD, op(Ops.MUL, x, y), r)
  check(sink(store(dot((g, m * n), (i, n), (j, 1)), value, g, i, j, size=batch * m * n)), [a, b], rtol=1e-4, atol=1e-4)


def test_blocks_with_both_operands_staged_on_narrow_registers(monkeypatch):
  device = Device["CPU"]
  monkeypatch.setattr(device, "target", Target("narrow", 16, 16, scratch=64 << 20))
  monkeypatch.setattr(device, "arenas", [])
  check(*matmul(100, 50, 20011, "km", "kn"), rtol=1e-4, atol=2e-3)


def rows_of_a_table(columns):
  at, table = np.zeros((4, 20), np.int64), normal(10, columns)
  i, d, k = loop(4, 0), loop(columns, 1), reduce(20, 2)
  row = op(Ops.CAST, load(1, at, dot((i, 20), (k, 1))), dtype=dtypes.index)
  total = fold(Ops.ADD, load(2, table, dot((row, columns), (d, 1))), k)
  return sink(store(dot((i, columns), (d, 1)), total, i, d, size=4 * columns))


@pytest.mark.parametrize("columns", [64, 96])
def test_what_is_added_once_takes_no_register_of_its_own(columns):
  """A row is read at once: eight or twelve vectors beside as many sums in sixteen registers, each free when added."""
  linear = lower_kernel(rows_of_a_table(columns), Target("avx", 32, 16, scratch=1 << 16))
  assert [u.src[0].arg for u in linear if u.op is Ops.RANGE] == [4, 20]
  assert sum(u.op is Ops.ACC for u in linear) == columns // 8


# ---- squares transposed in registers


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.float16])
@pytest.mark.parametrize("sizes", [(64, 64), (37, 50), (16, 200), (130, 17), (5, 90), (90, 5), (300, 12), (2, 99)])
def test_transposed_squares(sizes, dtype):
  n, m = sizes
  x = (normal(m, n) * 50).astype(dtype)
  i, j = loop(n, 0), loop(m, 1)
  ast = sink(store(dot((i, m), (j, 1)), op(Ops.ADD, v := load(1, x, dot((j, n), (i, 1))), v), i, j, size=n * m))
  np.testing.assert_array_equal(run(ast, [x]), evaluate(ast, [x]))


def test_squares_are_read_row_by_row_and_turned_once():
  x = normal(64, 64)
  i, j = loop(64, 0), loop(64, 1)
  ast = sink(store(dot((i, 64), (j, 1)), load(1, x, dot((j, 64), (i, 1))), i, j, size=64 * 64))
  linear = lower_kernel(ast, WIDE)
  assert sum(u.op is Ops.LOAD for u in linear) == 16 and sum(u.op is Ops.EXTRACT for u in linear) == 16 * 4
  assert not any(u.op is Ops.INDEX and u.src[1].dtype.count > 1 for u in linear)  # nothing is gathered or scattered
  with Context(SPEC=1):
    rows = [
      UOp.new(Ops.VECTORIZE, dtypes.int32.vec(8), tuple(UOp.const(dtypes.int32, 8 * r + c) for c in range(8)))
      for r in range(8)
    ]

  def values(u):
    if u.op is Ops.VECTORIZE:
      return [s.arg for s in u.src]
    both = values(u.src[0]) + values(u.src[1])
    return [both[p] for p in u.arg]

  columns = transposed(Values(LoopIds(), None, None), rows)
  assert [values(c) for c in columns] == [[8 * r + c for r in range(8)] for c in range(8)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("few", [3, 7, 12])
def test_few_neighbours_are_turned_too(few, turned):
  """Fewer than lanes, so that rows of several lanes are one vector in memory; and all accesses that are counted as
  turned are those of one square, which the outermost loop's lanes would not be."""
  x = normal(40, few, 96)
  b, i, j = loop(40, 0), loop(few, 1), loop(96, 2)
  these, those = dot((b, few * 96), (i, 96), (j, 1)), dot((b, few * 96), (j, few), (i, 1))
  loops, at = ((b, i, j), (these, those)) if turned else ((b, j, i), (those, these))
  ast = sink(store(at[0], load(1, x, at[1]), *loops, size=x.size))
  np.testing.assert_array_equal(run(ast, [x]), evaluate(ast, [x]))
  linear = lower_kernel(ast, WIDE)
  assert not any(u.op is Ops.INDEX and u.src[1].dtype.count > 1 for u in linear)  # nothing is gathered or scattered
  assert max(u.dtype.count for u in linear if u.op is Ops.LOAD) >= min(few, 8)


def test_one_column_is_no_square():
  """What is left of 4097 terms is a block of one: rows of one element were put together as vectors, which LLVM
  refused."""
  check(*matmul(33, 64, 4097, b_layout="nk"), rtol=1e-4, atol=1e-3)


def test_conditions_are_computed_where_they_are_needed():
  """A reduction in parts, the last of which is not full: a packed copy of its condition would be read by gathers."""
  i, part, r = loop(32, 0), loop(8, 1), reduce(6283, 2)
  x = np.random.default_rng(0).standard_normal((32, 50257)).astype(np.float32)
  at = dot((part, 6283), (r, 1))
  inside = op(Ops.CMPLT, at, num(50257))
  value = load(1, x, dot((i, 50257), (part, 6283), (r, 1)), inside, UOp.const(dtypes.float32, 0.0))
  value = op(Ops.WHERE, inside, op(Ops.ADD, value, value), UOp.const(dtypes.float32, -0.0))
  ast = sink(store(dot((i, 8), (part, 1)), fold(Ops.ADD, value, r), i, part, size=256))
  assert not any(u.op is Ops.SCRATCH for u in lower_kernel(ast, Device["CPU"].target))
  want = 2 * np.add.reduceat(x.astype(np.float64), np.arange(0, 50257, 6283), axis=1)
  np.testing.assert_allclose(run(ast, [x.ravel()]).reshape(32, 8), want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("code", [Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE])
@pytest.mark.parametrize(
  ("step", "limit", "kind"),
  [
    (1, 70, dtypes.int32),
    (-3, -8, dtypes.int32),
    (1 << 20, 70 << 20, dtypes.int32),
    (1 << 27, 70 << 27, dtypes.index),
  ],
)
def test_numbers_of_lanes_are_compared_as_short_ones_where_they_are(code, step, limit, kind):
  x = normal(40 * 64)
  i, j = loop(40, 0), loop(64, 1)
  there = op(code, dot((i, step), (j, step)), num(limit))
  ast = sink(
    store(
      dot((i, 64), (j, 1)), load(1, x, dot((i, 64), (j, 1)), there, UOp.const(dtypes.float32, 2)), i, j, size=x.size
    )
  )
  check(ast, [x])
  vectors = {u.src[0].dtype for u in lower_kernel(ast, WIDE) if u.op is code and u.src[0].dtype.count > 1}
  assert vectors == {kind.vec(16)}


def test_of_two_results_of_one_pair_each_is_computed_once():
  """As in a network that sorts: beside each other lie the lesser and the greater of two."""
  x = normal(64, 2, 32)
  i, c, j = loop(64, 0), loop(2, 1), loop(32, 2)
  a, b = (load(1, x, op(Ops.ADD, dot((i, 64), (j, 1)), num(n))) for n in (0, 32))
  first = op(Ops.CMPLT, c, num(1))
  value = op(Ops.WHERE, first, op(Ops.MIN, a, b), op(Ops.MAX, a, b), dtype=dtypes.float32)
  ast = sink(store(dot((i, 64), (c, 32), (j, 1)), value, i, c, j, size=64 * 64))
  linear = lower_kernel(ast, WIDE)
  found = {code: sum(u.op is code for u in linear) for code in (Ops.LOAD, Ops.MIN, Ops.MAX, Ops.STORE, Ops.WHERE)}
  n = found[Ops.MIN]
  assert found == {Ops.LOAD: 2 * n, Ops.MIN: n, Ops.MAX: n, Ops.STORE: 2 * n, Ops.WHERE: 0}
  np.testing.assert_array_equal(run(ast, [x]), evaluate(ast, [x]))


def test_a_stack_reads_vectors_of_its_parts():
  """Lanes across the parts would each have a condition of their own, and gather."""
  xs = [normal(8, 64) for _ in range(32)]
  i, j, k = loop(32, 0), loop(8, 1), loop(64, 2)
  value = UOp.const(dtypes.float32, 0.0)
  for n, x in reversed(list(enumerate(xs))):
    inside = op(Ops.CMPLT, i, num(n + 1))
    part = load(n + 1, x, dot((j, 64), (k, 1)), inside, UOp.const(dtypes.float32, 0.0))
    value = op(Ops.WHERE, inside, part, value, dtype=dtypes.float32)
  ast = sink(store(dot((i, 512), (j, 64), (k, 1)), value, i, j, k, size=32 * 512))
  check(ast, xs)
  assert all(u.src[1].dtype.count == 1 for u in lower_kernel(ast, WIDE) if u.op is Ops.INDEX)


def test_a_short_reduction_beside_a_large_tile_is_a_loop():
  """Written out, it would be as many times its length as there are vectors in the tile."""
  counts, w = normal(96, 96, 4), reduce(4, 3)

  def divided(total, i, j):
    return op(Ops.FDIV, total, fold(Ops.ADD, load(3, np.abs(counts) + 1, dot((i, 384), (j, 4), (w, 1))), w))

  ast, arrays = matmul(96, 96, 64, epilogue=divided)
  check(ast, [*arrays, np.abs(counts) + 1])
  linear = lower_kernel(ast, WIDE)
  accumulators = sum(u.op is Ops.ACC for u in linear)
  reads = [u for u in linear if u.op is Ops.LOAD and u.src[0].op is Ops.INDEX and u.src[0].src[0].op is Ops.PARAM]
  assert sum(u.src[0].src[0].arg.slot == 3 for u in reads) <= 4 * accumulators // 2


def test_a_rest_that_is_empty_on_every_device():
  """Rows of 13 or 11 on each device, of 64: one loop over both, of which whole vectors leave nothing, as known only
  after the length's expression is simplified."""
  x = np.arange(5 * 50 * 64, dtype=np.float32).reshape(5, 50, 64)
  got = (Tensor(x).shard([f"CPU:{i}" for i in range(4)], axis=1) + 1).numpy()
  np.testing.assert_array_equal(got, x + 1)
