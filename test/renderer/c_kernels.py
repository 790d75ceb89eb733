"""A few kernels that between them show everything a C dialect has to spell."""

from __future__ import annotations

from tinygrad.device import Target
from tinygrad.dtype import DType, dtypes
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp

GRID = Target("GRID", vector_registers=64, scratch=32 << 10, threads=True)


def num(n: int) -> UOp:
  return UOp.const(dtypes.index, n)


def ranged(n: int, number: int, kind: AxisKind = AxisKind.LOOP) -> UOp:
  return UOp.new(Ops.RANGE, dtypes.index, (num(n),), (number, kind))


def load(slot: int, dtype: DType, size: int, at: UOp, *valid: UOp) -> UOp:
  param = UOp.new(Ops.PARAM, dtype, (), ParamArg(slot, size))
  return UOp.new(Ops.LOAD, dtype, (UOp.new(Ops.INDEX, dtype, (param, at, *valid)),))


def kernel(size: int, at: UOp, value: UOp, *ranges: UOp) -> UOp:
  param = UOp.new(Ops.PARAM, value.dtype, (), ParamArg(0, size))
  store = UOp.new(Ops.STORE, dtypes.void, (UOp.new(Ops.INDEX, value.dtype, (param, at)), value, *ranges))
  return UOp.new(Ops.SINK, dtypes.void, (store,))


def fold(op: Ops, value: UOp, r: UOp) -> UOp:
  return UOp.new(Ops.FOLD, value.dtype, (value, r), op)


def alu(op: Ops, *src: UOp) -> UOp:
  dtype = dtypes.bool if op in (Ops.CMPLT, Ops.CMPNE) else src[-1].dtype
  return UOp.new(op, dtype, src)


def cast(x: UOp, dtype: DType) -> UOp:
  return UOp.new(Ops.CAST, dtype, (x,))


def narrow_floats() -> UOp:
  """half and bfloat16 in, half out"""
  i = ranged(1000, 0)
  x, y = cast(load(1, dtypes.float16, 1000, i), dtypes.float32), cast(load(2, dtypes.bfloat16, 1000, i), dtypes.float32)
  return kernel(1000, i, cast(alu(Ops.MUL, x, y), dtypes.float16), i)


def matmul() -> UOp:
  """tiles in registers, sizes that no tile divides"""
  i, j, k = ranged(130, 0), ranged(70, 1), ranged(50, 2, AxisKind.REDUCE)
  x = load(1, dtypes.float32, 130 * 50, i * 50 + k)
  y = load(2, dtypes.float32, 50 * 70, k * 70 + j)
  return kernel(130 * 70, i * 70 + j, fold(Ops.ADD, alu(Ops.MUL, x, y), k), i, j)


def softmax() -> UOp:
  """reductions that threads share, through local memory"""
  i, j, k = ranged(37, 0), ranged(300, 1), ranged(300, 2, AxisKind.REDUCE)
  top = fold(Ops.MAX, load(1, dtypes.float32, 11100, i * 300 + k), k)
  total = fold(Ops.ADD, alu(Ops.EXP, alu(Ops.SUB, load(1, dtypes.float32, 11100, i * 300 + k), top)), k)
  value = alu(Ops.FDIV, alu(Ops.EXP, alu(Ops.SUB, load(1, dtypes.float32, 11100, i * 300 + j), top)), total)
  return kernel(11100, i * 300 + j, value, i, j)


def integers() -> UOp:
  """division that floors, sums that wrap, bool and int8 in memory"""
  i = ranged(99, 0)
  x, y = load(1, dtypes.int32, 99, i), load(2, dtypes.int32, 99, i)
  quotient = alu(Ops.IDIV, x, y)
  odd = alu(Ops.CMPNE, alu(Ops.MOD, x, y), UOp.const(dtypes.int32, 0))
  value = UOp.new(
    Ops.WHERE, dtypes.int32, (load(3, dtypes.bool, 99, i), alu(Ops.ADD, quotient, x), cast(odd, dtypes.int32))
  )
  return kernel(99, i, cast(value, dtypes.int8), i)


def window() -> UOp:
  """a load with a condition, a variable, infinity"""
  i = ranged(64, 0)
  at = i + UOp.new(Ops.VARIABLE, dtypes.index, (), ("v", -3, 3))
  inside = alu(Ops.AND, alu(Ops.CMPLT, num(-1), at), alu(Ops.CMPLT, at, num(64)))
  x = load(1, dtypes.float32, 64, at, inside)
  return kernel(64, i, UOp.new(Ops.WHERE, dtypes.float32, (inside, x, UOp.const(dtypes.float32, float("-inf")))), i)


def all_reduce() -> UOp:
  """the buffers of peers"""
  i, d = ranged(40, 0), ranged(3, 1, AxisKind.REDUCE)
  table = UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(1, 40, True))
  peer = UOp.new(Ops.PEER, dtypes.float32, (table, d))
  x = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (peer, i)),))
  return kernel(40, i, fold(Ops.ADD, x, d), i)


def vectors(dtype: DType, width: int, count: int, shift: int = 0, size: int = 64) -> list[UOp]:
  """Linear code: each thread doubles `width` neighbours, the last `shift` elements later; those from `count` on are
  not read (3 in their place) and not written. By way of local memory."""
  lanes, n = dtype.vec(width), size // width
  out, x = (UOp.new(Ops.PARAM, dtype, (), ParamArg(slot, size)) for slot in (0, 1))
  thread = UOp.new(Ops.RANGE, dtypes.index, (num(n),), (0, AxisKind.LOCAL))
  at = UOp.new(Ops.MUL, dtypes.index, (thread, num(width)))
  shifted = UOp.new(Ops.ADD, dtypes.index, (at, num(shift)))
  inside = UOp.new(Ops.CMPLT, dtypes.bool, (at, num(count)))
  mask = UOp.new(Ops.VECTORIZE, dtypes.bool.vec(width), (inside,))
  three = UOp.const(dtype, 3)
  three = UOp.new(Ops.VECTORIZE, lanes, (three,))
  here = UOp.new(Ops.INDEX, lanes, (x, shifted, mask))
  value = UOp.new(Ops.LOAD, lanes, (here, three))
  memory = UOp.new(Ops.SCRATCH, dtype, (), (16, 1, size * dtype.itemsize))
  local = UOp.new(Ops.INDEX, lanes, (memory, at))
  put = UOp.new(Ops.STORE, dtypes.void, (local, value))
  barrier = UOp.new(Ops.BARRIER, dtypes.void, ())
  again = UOp.new(Ops.LOAD, lanes, (local,))
  double = UOp.new(Ops.OR if dtype is dtypes.bool else Ops.ADD, lanes, (again, again))
  there = UOp.new(Ops.INDEX, lanes, (out, at, mask))
  store = UOp.new(Ops.STORE, dtypes.void, (there, double))
  end = UOp.new(Ops.ENDRANGE, dtypes.void, (thread,))
  return [
    out,
    x,
    thread,
    at,
    shifted,
    inside,
    mask,
    three,
    here,
    value,
    memory,
    local,
    put,
    barrier,
    again,
    double,
    there,
    store,
    end,
  ]


KERNELS = {f.__name__: f for f in (narrow_floats, matmul, softmax, integers, window, all_reduce)}
