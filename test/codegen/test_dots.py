"""Sums of products of narrow numbers in words: the kernel says the same, and the processor's instructions do it."""

import ml_dtypes
import numpy as np
import pytest
from codegen_kernels import dot, evaluate, fold, load, loop, op, reduce, run, sink, store

from tinygrad import Tensor
from tinygrad.codegen import lower_kernel
from tinygrad.device import Device, Target
from tinygrad.dtype import dtypes
from tinygrad.numerics.dots import use_dots
from tinygrad.uop import Ops

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
  i, j, r, s = loop(m, 0), loop(n, 1), reduce(k, 2), reduce(more, 3)
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


@pytest.mark.skipif(not HAS & {"avx512vnni", "avxvnni"}, reason="this processor has no products of bytes (VNNI)")
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
