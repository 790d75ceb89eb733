"""Sums of products of narrow numbers in words: the kernel says the same, and the processor's instructions do it."""

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, num, op, reduce, run, sink, store

from tinygrad import Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.device import Device, Target
from tinygrad.dtype import dtypes
from tinygrad.numerics import dots
from tinygrad.numerics.dots import use_dots
from tinygrad.renderer import llvm
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, affine

TARGET = Target("CPU", 64, 32, features=("avx512bf16", "avx512vnni"), scratch=1 << 20, vendor="AMD")
KINDS = {"signed": (np.int8, np.int8), "unsigned": (np.uint8, np.int8), "swapped": (np.int8, np.uint8)}
KINDS["bfloat16"] = ml_dtypes.bfloat16, ml_dtypes.bfloat16


def numbers(kind, *shape, seed=0):
  rng = np.random.default_rng(seed)
  if kind is ml_dtypes.bfloat16:
    return rng.integers(-64, 65, shape).astype(kind)  # products and sums are exact
  return rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)


def product(kinds, m, k, n, more=1):
  """(kernel of an (m, k) by a (k, n) matrix, `more` times added up, its operands)"""
  a, b = numbers(kinds[0], m, more, k), numbers(kinds[1], k, more, n, seed=1)
  i, j, r, s = loop(m, 0), loop(n, 1), reduce(k, 2), reduce(more, 3) if more > 1 else num(0)
  out = dtypes.float32 if kinds[0] is ml_dtypes.bfloat16 else dtypes.int32
  x = op(Ops.CAST, load(1, a, dot((i, more * k), (s, k), (r, 1))), dtype=out)
  y = op(Ops.CAST, load(2, b, dot((r, more * n), (s, n), (j, 1))), dtype=out)
  value = fold(Ops.ADD, op(Ops.MUL, x, y), *([r, s] if more > 1 else [r]))
  return sink(store(dot((i, n), (j, 1)), value, i, j, size=m * n)), [a, b]


def uses(ast):
  return sum(u.op is Ops.DOT for u in ast.toposort())


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("sizes", [(16, 64, 16), (17, 67, 33), (40, 129, 16, 3)])
def test_the_kernel_in_words_says_the_same(kinds, sizes):
  ast, arrays = product(kinds, *sizes)
  words = use_dots(ast, TARGET)
  assert uses(words) == (2 if kinds == KINDS["signed"] else 1)
  np.testing.assert_array_equal(evaluate(words, arrays), evaluate(ast, arrays))
  linear = lower_kernel(ast, TARGET)
  assert all(len(u.src) == 3 for u in linear if u.op is Ops.DOT) and any(u.op is Ops.DOT for u in linear)


@pytest.mark.parametrize("kind, length", [("bfloat16", 2), ("unsigned", 4)])
def test_a_sum_that_may_end_early_ends_with_a_word(kind, length):
  """Of as many numbers; one that ends with any element stays: beyond may be what nobody has written."""
  ast, _ = product(KINDS[kind], 64, 256, 64)
  (f,) = (u for u in ast.toposort() if u.op is Ops.FOLD)
  row, r = ast.src[0].src[2], f.src[1]

  def ending(*end):
    return sink(*ast.src, UOp.new(Ops.CMPLT, dtypes.bool, (r, dot(*end))))

  words = use_dots(ending((row, 4 * length), (num(1), length)), TARGET)
  *_, limit = words.src
  assert uses(words) and affine(limit.src[1], {}) == Affine(1, {row: 4})
  assert limit.src[0].src[0] is num(256 // length) and limit.src[0] in words.src[0].toposort()
  kernel = ending((row, length), (num(1), 1))
  assert use_dots(kernel, TARGET) is kernel


@pytest.mark.parametrize("kind", ["bfloat16", "unsigned"])
@pytest.mark.parametrize("tail", ["peel", "mask"])
def test_a_rest_of_one_word_is_added_too(kind, tail):
  """A sum without a loop is still one: its instruction adds. (Mutant: what has no loop is no sum.)"""
  length = {"bfloat16": 2, "unsigned": 4}[kind]
  ast, arrays = product(KINDS[kind], 16, 65 * length, 16)

  def in_fours(nest):
    nest.split("k0", 4, tail)
    nest.unroll("k0.i")

  linear = lower_kernel(ast, TARGET, heuristic=in_fours)
  assert all(len(u.src) == 3 for u in linear if u.op is Ops.DOT)
  if set(TARGET.features) <= set(Device["CPU"].target.features):
    np.testing.assert_array_equal(run(ast, arrays, heuristic=in_fours), evaluate(ast, arrays))


def test_where_words_do_not_pay_the_kernel_stays():
  for kinds, sizes in (
    (KINDS["signed"], (1, 4096, 4096)),  # each byte is used once
    (KINDS["signed"], (64, 32, 64)),  # a short sum
    ((np.uint8, np.uint8), (64, 64, 64)),  # which no instruction multiplies
    ((np.int16, np.int16), (64, 64, 64)),
  ):
    ast, _ = product(kinds, *sizes)
    assert use_dots(ast, TARGET) is ast
  ast, _ = product(KINDS["bfloat16"], 64, 64, 64)
  assert use_dots(ast, Target("CPU", 64, 32, features=("avx512bf16", "avx512vnni"))) is ast
  i, j, r = loop(64, 0), loop(64, 1), reduce(64, 2)
  x = load(1, np.zeros((64, 64), np.int8), dot((i, 64), (r, 1)))
  y = load(2, np.zeros((64, 64), np.int8), dot((r, 64), (j, 1)))
  wraps = sink(store(dot((i, 64), (j, 1)), fold(Ops.ADD, op(Ops.MUL, x, y), r), i, j, size=4096))  # in 8 bits
  assert use_dots(wraps, TARGET) is wraps


HAS = set(getattr(Device["CPU"].target, "features", ()))


BYTES = pytest.mark.skipif(
  not dots.multiplies_bytes(Device["CPU"].target), reason="this processor has no products of bytes (VNNI, AVX2)"
)


@BYTES
@pytest.mark.parametrize("kinds", ["signed", "unsigned", "swapped"])
@pytest.mark.parametrize(
  ("sizes", "width"), [((64, 64, 64), 64), ((33, 67, 129), 32), ((64, 64, 64), 16), ((16, 1027, 40, 2), 64)]
)
def test_bytes_as_pairs_of_16_bits(kinds, sizes, width):
  """In instructions as wide as the kernel's vectors or less. The greatest bytes, too, of which two products are more
  than 16 bits hold."""
  ast, arrays = product(KINDS[kinds], *sizes)
  width = min(width, Device["CPU"].target.vector_bytes)
  words = use_dots(ast, replace(TARGET, features=("avx2",), vector_bytes=width))
  assert {u.arg for u in words.toposort() if u.op is Ops.DOT} == {dtypes.int16.vec(width // 2)}
  extremes = [np.full_like(a, np.iinfo(a.dtype).max if i == 0 else np.iinfo(a.dtype).min) for i, a in enumerate(arrays)]
  for given in (arrays, extremes):
    want = evaluate(ast, given)
    np.testing.assert_array_equal(evaluate(words, given), want)
    np.testing.assert_array_equal(run(words, given), want)


@pytest.mark.parametrize(
  "features", [("avx2",), ("avxvnni",), ("avx2", "avx512bw", "avx512f"), ("avx512f", "avx512vnni")]
)
def test_processors_that_multiply_bytes(features):
  assert dots.multiplies_bytes(replace(TARGET, features=features))


@pytest.mark.parametrize("features", [(), ("sse4.2",), ("avx2", "avx512f")])
def test_processors_that_do_not(features):
  """Pairs of 16 bits have to be as wide as its vectors are."""
  assert not dots.multiplies_bytes(replace(TARGET, features=features))


@BYTES
@pytest.mark.parametrize("kinds", ["signed", "unsigned", "swapped"])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (33, 67, 129), (100, 1000, 18), (16, 1027, 40, 2)])
def test_the_instructions_for_bytes(kinds, sizes):
  ast, arrays = product(KINDS[kinds], *sizes)
  assert uses(use_dots(ast, Device["CPU"].target))
  np.testing.assert_array_equal(run(ast, arrays), evaluate(ast, arrays))


@pytest.mark.skipif("avx512bf16" not in HAS, reason="this processor has no products of bfloat16 pairs")
@pytest.mark.parametrize("sizes", [(64, 64, 64), (33, 67, 129)])
def test_the_instruction_for_bfloat16(sizes):
  ast, arrays = product(KINDS["bfloat16"], *sizes)
  words = use_dots(ast, TARGET)
  assert uses(words)
  np.testing.assert_array_equal(run(words, arrays), evaluate(ast, arrays))


def test_matrices_of_bytes_whose_dims_are_too_short_for_vectors():
  rng = np.random.default_rng(0)
  a, b = rng.integers(-128, 128, (3, 3, 3, 80)).astype(np.int8), rng.integers(-128, 128, (3, 3, 3, 80)).astype(np.int8)
  x, y = Tensor(a).cast(dtypes.int32), Tensor(b).cast(dtypes.int32)
  got = (x.reshape(3, 3, 3, 1, 1, 1, 80) * y.reshape(1, 1, 1, 3, 3, 3, 80)).sum(-1).numpy()
  np.testing.assert_array_equal(got, np.einsum("abck,defk->abcdef", a.astype(np.int32), b.astype(np.int32)))


def test_a_wrong_bias_would_be_seen(monkeypatch):
  ast, arrays = product(KINDS["signed"], 16, 64, 16)
  monkeypatch.setattr("tinygrad.numerics.dots.BIAS", 0x80808000)
  assert (evaluate(use_dots(ast, TARGET), arrays) != evaluate(ast, arrays)).any()


# ---- four neighbours as one word


def cast(dtype, x):
  return op(Ops.CAST, x, dtype=dtype)


def nibble(x, half):
  """One of the two numbers of a byte, by a loop of two."""
  shift = cast(dtypes.uint8, op(Ops.MUL, cast(dtypes.int32, half), UOp.const(dtypes.int32, 4)))
  return op(Ops.AND, op(Ops.SHR, x, shift), UOp.const(dtypes.uint8, 15))


def byte(n, dtype=dtypes.uint8):
  return UOp.const(dtype, n)


def less(x, n):
  return op(Ops.SUB, cast(dtypes.int8, x), byte(n, dtypes.int8))


def six_bits(a, b, half):
  return op(Ops.OR, nibble(a, half), op(Ops.SHL, op(Ops.AND, b, byte(3)), byte(4)))


def by_a_bit(a, b, half):
  bit = op(Ops.CMPNE, op(Ops.AND, a, byte(4)), byte(0))
  return op(Ops.WHERE, bit, byte(-100, dtypes.int8), op(Ops.BITCAST, b, dtype=dtypes.int8))


# x as a function of a byte of each of two arrays and of a loop of two
OF_BYTES = {
  "plain": lambda a, b, half: a,
  "signed": lambda a, b, half: op(Ops.BITCAST, a, dtype=dtypes.int8),
  "nibbles": lambda a, b, half: nibble(a, half),
  "less": lambda a, b, half: less(nibble(a, half), 8),
  "six bits": lambda a, b, half: less(six_bits(a, b, half), 32),
  "shifted out": lambda a, b, half: op(Ops.SHL, op(Ops.XOR, a, b), byte(3)),
  "chosen": by_a_bit,
}


def short_product(kind, rows=5, blocks=3, stride=33):
  """(kernel: for each row the sum over blocks and 2·4 words of scale · Σ x·y over four neighbours, its operands). The
  bytes of a block do not lie at multiples of 4."""
  a, b = (numbers(np.uint8, rows * blocks * stride + 32, seed=s) for s in (0, 1))
  y = numbers(np.int8, blocks * 32, seed=2)
  scales = np.array([2.0, -0.5, 1.0], np.float32)
  i, block, half, w, r = loop(rows, 0), reduce(blocks, 1), reduce(2, 2), reduce(4, 3), reduce(4, 4)
  at = dot((i, blocks * stride), (block, stride), (w, 4), (r, 1))
  x = OF_BYTES[kind](load(1, a, at), load(2, b, at), half)
  z = load(3, y, dot((block, 32), (half, 16), (w, 4), (r, 1)))
  total = fold(Ops.ADD, op(Ops.MUL, cast(dtypes.int32, x), cast(dtypes.int32, z)), r)
  value = op(Ops.MUL, cast(dtypes.float32, total), load(4, scales, block))
  return sink(store(i, fold(Ops.ADD, value, block, half, w), i, size=rows)), [a, b, y, scales]


@pytest.mark.parametrize("kind", OF_BYTES)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_four_neighbours_are_one_word(kind, rows):
  ast, arrays = short_product(kind, rows)
  words = use_dots(ast, TARGET)
  assert uses(words) and not any(u.op is Ops.LOAD and u.dtype.itemsize == 1 for u in words.toposort())
  want = evaluate(ast, arrays)
  np.testing.assert_array_equal(evaluate(words, arrays), want)  # sums of integers and halves: exact in float32
  np.testing.assert_array_equal(run(ast, arrays), want)
  assert any(u.op is Ops.DOT for u in lower_kernel(ast, TARGET))


@pytest.mark.parametrize("change", ["carries", "zero", "bits"])
def test_words_whose_bytes_run_into_each_other_would_be_seen(change, monkeypatch):
  """Mutants: nothing is masked after a shift; the zero of unsigned bytes is forgotten; a bit chooses for its place."""
  kind = {"carries": "nibbles", "zero": "less", "bits": "chosen"}[change]
  ast, arrays = short_product(kind)
  want = evaluate(ast, arrays)
  if change == "zero":
    right = dots.unsigned_word
    monkeypatch.setattr(dots, "unsigned_word", lambda x, r: (right(x, r)[0], 0))
  else:
    in_each = dots.in_each_byte
    monkeypatch.setattr(dots, "in_each_byte", lambda n: in_each(255 if n in (1, 4) or n == 15 else n))
  assert (evaluate(use_dots(ast, TARGET), arrays) != want).any()


def product_of_bits(rows=5, blocks=3):
  """(kernel: for each row the sum over blocks and 4 words of y where a bit of the block's number is set, operands)."""
  bits, y = numbers(np.uint16, rows * blocks), numbers(np.int8, blocks * 16, seed=2)
  i, block, w, r = loop(rows, 0), reduce(blocks, 1), reduce(4, 2), reduce(4, 3)
  number = load(1, bits, dot((i, blocks), (block, 1)))
  place = cast(dtypes.uint16, cast(dtypes.int32, dot((w, 4), (r, 1))))
  x = cast(dtypes.uint8, op(Ops.AND, op(Ops.SHR, number, place), UOp.const(dtypes.uint16, 1)))
  z = load(2, y, dot((block, 16), (w, 4), (r, 1)))
  total = fold(Ops.ADD, op(Ops.MUL, cast(dtypes.int32, x), cast(dtypes.int32, z)), r)
  return sink(store(i, fold(Ops.ADD, cast(dtypes.float32, total), block, w), i, size=rows)), [bits, y]


def test_four_bits_of_a_number_are_the_bytes_of_a_word(monkeypatch):
  ast, arrays = product_of_bits()
  words, want = use_dots(ast, TARGET), evaluate(ast, arrays)
  assert uses(words)
  np.testing.assert_array_equal(evaluate(words, arrays), want)
  np.testing.assert_array_equal(run(ast, arrays), want)
  monkeypatch.setattr(dots, "SPREAD", dots.SPREAD << 1)  # a mutant
  assert (evaluate(use_dots(ast, TARGET), arrays) != want).any()


def test_shifts_and_masks_of_a_word_are_one_of_each():
  rng, x = np.random.default_rng(0), load(1, np.zeros(1, np.uint32), num(0))
  for _ in range(300):
    word, want = x, (values := rng.integers(0, 1 << 32, 20, np.uint64))
    for _ in range(rng.integers(1, 5)):
      left, kept = int(rng.integers(-9, 10)), int(rng.integers(0, 1 << 32))
      word = dots.part_of_word(word, left, kept)
      want = (want << np.uint64(left) if left >= 0 else want >> np.uint64(-left)) & np.uint64(kept)
    assert len([u for u in word.toposort() if u.op in (Ops.SHL, Ops.SHR)]) <= 1
    assert len([u for u in word.toposort() if u.op is Ops.AND]) <= 1
    np.testing.assert_array_equal([value_at(word, x, int(v)) for v in values], want)


def value_at(u, x, value):
  if u is x or u.op is Ops.CONST:
    return value if u is x else u.arg
  a, b = (value_at(s, x, value) for s in u.src)
  if u.op is Ops.AND:
    return a & b
  return (a << b) & dots.WHOLE if u.op is Ops.SHL else a >> b


@pytest.mark.parametrize("kind", ["less", "six bits"])
def test_what_is_less_is_where_a_sum_of_words_begins(kind, monkeypatch):
  """A sum that takes a DOT in is one instruction, with the same bits."""
  ast, arrays = short_product(kind)
  linear = lower_kernel(ast, TARGET)
  source, got = llvm.render(linear, "kernel").source, run(ast, arrays)
  monkeypatch.setattr(llvm, "is_dot_alone", lambda u, i: False)
  apart = llvm.render(linear, "kernel").source
  assert source != apart and source.count("vpdpbusd") == apart.count("vpdpbusd")
  np.testing.assert_array_equal(got, evaluate(ast, arrays))


def test_neighbours_that_may_end_early_are_no_word():
  ast, _ = short_product(next(iter(OF_BYTES)))
  f = next(u for u in ast.toposort() if u.op is Ops.FOLD and u.dtype is dtypes.int32)
  kernel = sink(*ast.src, UOp.new(Ops.CMPLT, dtypes.bool, (f.src[1], dot((ast.src[0].src[2], 4)))))
  assert uses(use_dots(ast, TARGET)) and use_dots(kernel, TARGET) is kernel


def test_bytes_apart_or_under_a_condition_are_no_word():
  a, y = numbers(np.uint8, 256), numbers(np.int8, 256)
  for step, valid in ((2, False), (1, True)):
    i, r = loop(16, 0), reduce(4, 1)
    at = dot((i, 4), (r, step))
    x = load(1, a, at, op(Ops.CMPLT, r, UOp.const(dtypes.index, 3)), byte(0)) if valid else load(1, a, at)
    z = load(2, y, dot((r, 1)))
    value = fold(Ops.ADD, op(Ops.MUL, cast(dtypes.int32, x), cast(dtypes.int32, z)), r)
    ast = sink(store(i, value, i, size=16))
    assert use_dots(ast, TARGET) is ast
    np.testing.assert_array_equal(run(ast, [a, y]), evaluate(ast, [a, y]))


def test_words_along_lanes_that_lie_apart():
  """Each lane's word is put together where they are not neighbours."""
  a, y = numbers(np.uint8, 16 * 7 + 4), numbers(np.int8, 4)
  i, r = loop(16, 0), reduce(4, 1)
  x, z = load(1, a, dot((i, 7), (r, 1))), load(2, y, dot((r, 1)))
  ast = sink(store(i, fold(Ops.ADD, op(Ops.MUL, cast(dtypes.int32, x), cast(dtypes.int32, z)), r), i, size=16))
  assert uses(use_dots(ast, TARGET))

  def rows_as_lanes(nest):
    nest.vectorize("i0")

  linear = lower_kernel(ast, Device["CPU"].target, heuristic=rows_as_lanes)
  assert any(u.dtype.count == 16 for u in linear)
  np.testing.assert_array_equal(run(ast, [a, y], heuristic=rows_as_lanes), evaluate(ast, [a, y]))
  for width, features in ((16, ("avxvnni",)), (32, ("avxvnni",)), (64, ("avx512vnni",))):
    source = llvm.render(
      lower_kernel(ast, replace(TARGET, features=features, vector_bytes=width), heuristic=rows_as_lanes), "kernel"
    ).source
    assert re.findall(r"call .*vpdpbusd\.(\d+)", source) == [str(8 * width)] * (64 // width)  # LLVM knows none wider


def test_a_reduction_within_one_of_lanes_has_no_lanes_of_its_own():
  """Both would be vectors along different loops, and the operands of the inner one lay along the two at once."""
  rng = np.random.default_rng(0)
  x, y = (rng.integers(-9, 9, shape).astype(np.int16) for shape in ((8 * 64 * 16,), (64 * 16,)))
  i, outer, inner = loop(8, 0), reduce(64, 1), reduce(16, 2)
  a = load(1, x, dot((i, 1024), (outer, 16), (inner, 1)))
  b = load(2, y, dot((outer, 16), (inner, 1)))
  total = fold(Ops.ADD, op(Ops.MUL, cast(dtypes.int32, a), cast(dtypes.int32, b)), inner)
  value = fold(Ops.ADD, op(Ops.MUL, cast(dtypes.float32, total), UOp.const(dtypes.float32, 0.5)), outer)
  ast = sink(store(i, value, i, size=8))
  np.testing.assert_array_equal(run(ast, [x, y]), evaluate(ast, [x, y]))


@pytest.mark.parametrize("limit", [0, 5, 8])
@pytest.mark.parametrize("other", [None, 7])
def test_a_word_under_a_condition_reads_nothing_beyond(limit, other):
  """Four bytes as one number where the condition holds, else what is said for the others, or 0."""
  x = np.random.default_rng(limit).integers(0, 256, 32).astype(np.uint8)
  i = loop(8, 0)
  where = load(1, x[: 4 * limit], op(Ops.MUL, i, num(4)), op(Ops.CMPLT, i, num(limit))).src[0]
  alternative = () if other is None else (UOp.const(dtypes.uint32, other),)
  word = UOp.new(Ops.LOAD, dtypes.uint32, (where, *alternative))
  want = np.where(np.arange(8) < limit, x.view("<u4"), other or 0)
  if limit:
    np.testing.assert_array_equal(run(sink(store(i, word, i, size=8)), [x[: 4 * limit]]), want)
  assert Ops.CMPLT in {u.op for u in dots.put_together(word).toposort()}, "each byte has the condition"


@pytest.mark.parametrize("columns", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("bits", [np.uint8, np.int8])
def test_words_that_are_put_together_of_bytes_keep_their_signs(columns: int, bits: type):
  """Lanes that are no whole vector read bytes one by one; a negative one's sign must not reach the next."""
  w, x = numbers(bits, 16, 6, 8, 1, 4), numbers(np.int8, 1, 6, 8, columns, 4, seed=1)
  products = Tensor(w).realize().cast(dtypes.int32) * Tensor(x).realize().cast(dtypes.int32)
  want = (w.astype(np.int32) * x.astype(np.int32)).sum(-1).sum(2)
  np.testing.assert_array_equal(products.sum(-1).sum(2).numpy(), want)
  got = products.sum(-1).sum(2).float().sum(1).numpy()
  np.testing.assert_array_equal(got, want.sum(1))


@pytest.mark.parametrize("kinds", ["signed", "unsigned", "swapped"])
@pytest.mark.parametrize("tail", ["mask", "clamp"])
@pytest.mark.parametrize("unrolled", [False, True])
def test_words_of_a_last_block_that_is_not_whole(kinds, unrolled, tail):
  """Its other iterations add nothing, be they steps of a loop or written out, and whatever they read."""
  ast, arrays = product(KINDS[kinds], 16, 68, 16)
  words = use_dots(ast, replace(TARGET, features=("avx2",), vector_bytes=Device["CPU"].target.vector_bytes))

  def in_blocks(nest):
    name = next(name for name in nest.names if name.startswith("k"))
    nest.split(name, 5, tail)
    for part in (f"{name}.o", f"{name}.i") if unrolled else ():
      nest.unroll(part)

  linear = lower_kernel(words, TARGET, heuristic=in_blocks)
  assert any(u.op is Ops.DOT for u in linear)
  assert any(u.op is Ops.RANGE and u.arg[1] is AxisKind.REDUCE for u in linear) is not unrolled
  np.testing.assert_array_equal(run(words, arrays, heuristic=in_blocks), evaluate(ast, arrays))
