"""Sums of products of narrow numbers, by instructions that take several at a time.

Such an instruction (VNNI, AVX512-BF16) multiplies the parts of two words of 32 bits, pair by pair, and adds the
products to a number of 32 bits. So the operands become words of neighbours along the reduction: values like any other,
which codegen stages in scratch memory where they are used often. DOT of two words is what the accumulator gains.
"""

from __future__ import annotations

from tinygrad.device import Target
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import index
from tinygrad.uop.loop_ids import LoopIds
from tinygrad.uop.rewrite import substitute_free

REUSE = 16  # least times that a word is used, and length of the reduction in words: else it is not worth making
BIAS = 0x80808080  # in each byte, the difference of what it is as a signed and as an unsigned number


def use_dots(sink: UOp, target: Target) -> UOp:
  """The kernel with the FOLDs of products that the target has an instruction for."""
  features = set(target.features)
  # Intel's for bfloat16 does half of what multiplications of float32 do (Sapphire Rapids: a quarter of their rate)
  bytewise = bool(features & {"avx512vnni", "avxvnni"})
  bf16 = "avx512bf16" in features and target.vendor == "AMD"
  if not bytewise and not bf16:
    return sink
  parallel, made = sink.src[0].src[2:], dict[UOp, UOp]()
  rows = {r for s in sink.src for r in s.src[2:]}  # a sum over rows is one of parts (rows.py), and stays a FOLD
  ids = LoopIds(sink)
  for f in sink.toposort():
    if (pair := narrow_product(f)) is None or not (bf16 if pair[0].dtype is dtypes.bfloat16 else bytewise):
      continue
    if not rows.isdisjoint(f.src[1:]):
      continue
    reached = [{u for u in x.toposort() if u.op is Ops.RANGE} for x in pair]
    length = 4 // pair[0].dtype.itemsize
    along = [r for r in f.src[1:] if r.src[0].op is Ops.CONST and r.src[0].arg >= REUSE * length]
    if along and all(prod(r.src[0].vmax for r in parallel if r not in have) >= REUSE for have in reached):
      made[f] = words_of(f, pair, max(along, key=lambda r: int(r.src[0].arg)), length, ids)
  return substitute_free(sink, made)


def narrow_product(f: UOp) -> tuple[UOp, UOp] | None:
  """(x, y) where f sums x·y in 32 bits: both bfloat16, or bytes of which x may be unsigned."""
  is_sum = f.op is Ops.FOLD and f.arg is Ops.ADD and f.src[0].op is Ops.MUL
  if not is_sum or any(s.op is not Ops.CAST for s in f.src[0].src):
    return None
  x, y = (s.src[0] for s in f.src[0].src)
  if f.dtype is dtypes.float32:
    return (x, y) if x.dtype is y.dtype is dtypes.bfloat16 else None
  x, y = (y, x) if y.dtype is dtypes.uint8 else (x, y)
  fits = f.dtype is dtypes.int32 and x.dtype in (dtypes.int8, dtypes.uint8) and y.dtype is dtypes.int8
  return (x, y) if fits else None


def words_of(f: UOp, pair: tuple[UOp, UOp], r: UOp, length: int, ids: LoopIds) -> UOp:
  """The FOLD of x·y with `length` iterations of its range r at a time, and those that are left over."""
  whole, left = divmod(int(r.src[0].arg), length)
  steps, kind = ids.loop(index(whole), AxisKind.REDUCE), pair[0].dtype
  x, y = (word(v, r, steps, length) for v in pair)
  over = tuple(steps if s is r else s for s in f.src[1:])

  def total(x: UOp, y: UOp) -> UOp:
    return UOp.new(Ops.FOLD, f.dtype, (UOp.new(Ops.DOT, f.dtype, (x, y), kind), *over), Ops.ADD)

  if kind is dtypes.int8:  # the instruction takes x as unsigned: x + 128, and 128·y less
    bias = UOp.const(dtypes.uint32, BIAS)
    out = UOp.new(Ops.SUB, f.dtype, (total(UOp.new(Ops.XOR, dtypes.uint32, (x, bias)), y), total(bias, y)))
  else:
    out = total(x, y)
  others = tuple(s for s in f.src[1:] if s is not r)
  for i in range(left):
    value = substitute_free(f.src[0], {r: index(whole * length + i)})
    value = UOp.new(Ops.FOLD, f.dtype, (value, *others), Ops.ADD) if others else value
    out = UOp.new(Ops.ADD, f.dtype, (out, value))
  return out


def word(value: UOp, r: UOp, steps: UOp, length: int) -> UOp:
  """`length` neighbours of a value along r, the first in the lowest bits."""
  bits: DType = dtypes.uint8 if value.dtype.itemsize == 1 else dtypes.uint16
  out: UOp | None = None
  for i in range(length):
    at = UOp.new(Ops.ADD, dtypes.index, (UOp.new(Ops.MUL, dtypes.index, (steps, index(length))), index(i)))
    part = UOp.new(Ops.BITCAST, bits, (substitute_free(value, {r: at}),))
    part = UOp.new(Ops.CAST, dtypes.uint32, (part,))
    part = UOp.new(Ops.SHL, dtypes.uint32, (part, UOp.const(dtypes.uint32, i * 32 // length))) if i else part
    out = part if out is None else UOp.new(Ops.OR, dtypes.uint32, (out, part))
  assert out is not None
  return out
