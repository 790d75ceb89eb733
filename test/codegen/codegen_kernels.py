"""Hand-made kernel ASTs and their runner, for tests of codegen and the CPU backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad.codegen import lower_kernel
from tinygrad.device import Device
from tinygrad.dtype import DType, dtypes, from_numpy_dtype, to_numpy_dtype
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp

INDEX = dtypes.index


def num(n: int) -> UOp:
  return UOp.const(INDEX, n)


def loop(end: int | UOp, number: int) -> UOp:
  return UOp.new(Ops.RANGE, INDEX, (num(end) if isinstance(end, int) else end,), (number, AxisKind.LOOP))


def reduce(end: int | UOp, number: int) -> UOp:
  return UOp.new(Ops.RANGE, INDEX, (num(end) if isinstance(end, int) else end,), (number, AxisKind.REDUCE))


def op(code: Ops, *src: UOp, dtype: DType | None = None, arg: object = None) -> UOp:
  comparison = code in (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE)
  return UOp.new(code, dtype or (dtypes.bool if comparison else src[-1].dtype), src, arg)


def dot(*terms: tuple[UOp, int]) -> UOp:
  """Σ range·stride"""
  out = num(0)
  for r, stride in terms:
    out = op(Ops.ADD, out, op(Ops.MUL, r, num(stride)))
  return out


def load(slot: int, array: np.ndarray, offset: UOp, valid: UOp | None = None, other: UOp | None = None) -> UOp:
  dtype = from_numpy_dtype(array.dtype)
  param = UOp.new(Ops.PARAM, dtype, (), ParamArg(slot, array.size))
  index = UOp.new(Ops.INDEX, dtype, (param, offset) if valid is None else (param, offset, valid))
  return UOp.new(Ops.LOAD, dtype, (index,) if other is None else (index, other))


def fold(code: Ops, value: UOp, *ranges: UOp) -> UOp:
  return UOp.new(Ops.FOLD, value.dtype, (value, *ranges), code)


def store(offset: UOp, value: UOp, *ranges: UOp, size: int, slot: int = 0) -> UOp:
  param = UOp.new(Ops.PARAM, value.dtype, (), ParamArg(slot, size))
  return UOp.new(Ops.STORE, dtypes.void, (UOp.new(Ops.INDEX, value.dtype, (param, offset)), value, *ranges))


def sink(*stores: UOp) -> UOp:
  return UOp.new(Ops.SINK, dtypes.void, stores)


def launch(device: Any, program: Any, args: Sequence[Any], variables: Sequence[int] = ()) -> None:
  device.submit_all([device], [device.batch([device.bind(program, args, variables)])])


def run(
  ast: UOp, arrays: Sequence[np.ndarray], variables: Sequence[int] = (), fill: float = 77, heuristic: Any = None
) -> np.ndarray:
  """Runs the kernel on the default device with `arrays` as slots 1, 2, …; gives slot 0, which starts as `fill` (so that
  what is not stored shows)."""
  device = Device[Device.DEFAULT]
  target = next(p for s in ast.src if (p := s.src[0].src[0]).arg.slot == 0)
  out = np.full(target.arg.size, fill).astype(to_numpy_dtype(target.dtype))
  linear = lower_kernel(ast, device.target, **({} if heuristic is None else {"heuristic": heuristic}))
  program = device.compile(device.render(linear, "kernel_under_test"), "kernel_under_test")
  handles = []
  for array in (out, *arrays):
    handles.append(device.alloc(array.nbytes))
    device.copyin(
      handles[-1], memoryview(np.ascontiguousarray(array).view(np.uint8)) if array.size else memoryview(b"")
    )
  launch(device, program, handles, variables)
  result = np.empty(out.nbytes, np.uint8)
  device.copyout(memoryview(result), handles[0])
  for handle, array in zip(handles, (out, *arrays)):
    device.free(handle, array.nbytes)
  return result.view(out.dtype)


def elementwise(code: Ops, *arrays: np.ndarray, dtype: DType | None = None) -> np.ndarray:
  """One op over equally long arrays, in a kernel."""
  i = loop(arrays[0].size, 0)
  value = op(code, *(load(k + 1, x, i) for k, x in enumerate(arrays)), dtype=dtype)
  return run(sink(store(i, value, i, size=arrays[0].size)), arrays)


def words_times_words(x: np.ndarray, y: np.ndarray, kind: DType) -> np.ndarray:
  """DOT, as the processors' manuals have it: bfloat16 pairs; bytes, unsigned by signed."""
  x, y = (np.ascontiguousarray(np.asarray(v, np.uint32)[..., None]) for v in (x, y))
  if kind is dtypes.bfloat16:
    parts = (v.view(np.uint16).astype(np.uint32) << 16 for v in (x, y))
    x, y = (np.ascontiguousarray(v).view(np.float32) for v in parts)
    return (x * y).sum(-1)
  return (x.view(np.uint8).astype(np.int32) * y.view(np.int8)).sum(-1, dtype=np.int32)


# ---- the oracle: every range is an axis, every expression an array over all of them


FUNCTIONS = {
  Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.MIN: np.minimum,
  Ops.IDIV: np.floor_divide, Ops.MOD: np.mod, Ops.CMPLT: np.less, Ops.CMPEQ: np.equal, Ops.CMPNE: np.not_equal,
  Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor, Ops.SHL: np.left_shift, Ops.WHERE: np.where,
  Ops.SHR: np.right_shift, Ops.NEG: np.negative, Ops.NOT: np.invert, Ops.EXP: np.exp, Ops.SQRT: np.sqrt,
  Ops.FDIV: np.divide,
}  # fmt: skip


def identity_of(op: Ops, dtype: DType) -> int | float | bool:
  return {Ops.ADD: 0, Ops.MUL: 1, Ops.MAX: dtypes.min(dtype), Ops.MIN: dtypes.max(dtype)}[op]


class Interpreter:
  """Values of a kernel's nodes in plain numpy, one axis for each of its ranges."""

  def __init__(self, ast: UOp, arrays: Sequence[np.ndarray], bound: dict[str, int]) -> None:
    self.arrays, self.bound = arrays, bound
    self.axes = {r: i for i, r in enumerate(u for u in ast.toposort() if u.op is Ops.RANGE)}
    self.memo: dict[UOp, np.ndarray] = {}

  def value(self, u: UOp) -> np.ndarray:
    if u not in self.memo:
      self.memo[u] = np.asarray(self.compute(u))
    return self.memo[u]

  def over(self, ranges: Sequence[UOp], shape: Sequence[int] = ()) -> list[int]:
    """The shape of a value over these ranges, and over those of `shape`."""
    full = list(shape) or [1] * len(self.axes)
    for r in ranges:
      full[self.axes[r]] = int(self.value(r.src[0]).item())
    return full

  def compute(self, u: UOp) -> np.ndarray:
    kind = to_numpy_dtype(u.dtype) if u.dtype is not dtypes.void else None
    match u.op:
      case Ops.CONST:
        return np.array(u.arg, kind)
      case Ops.VARIABLE:
        return np.array(self.bound[u.arg[0]], np.int64)
      case Ops.RANGE:
        return np.arange(int(self.value(u.src[0]).item())).reshape([-1 if r is u else 1 for r in self.axes])
      case Ops.LOAD:
        return self.load(u)
      case Ops.FOLD:
        return self.fold(u)
    xs = [self.value(s) for s in u.src]
    with np.errstate(all="ignore"):
      match u.op:
        case Ops.DOT:
          return words_times_words(*xs, u.arg.scalar())
        case Ops.ONE_HOT:
          return np.where(xs[0] == xs[1], xs[2], np.asarray(identity_of(u.arg, u.dtype), kind))
        case Ops.CAST:
          return xs[0].astype(kind)
        case Ops.BITCAST:
          return xs[0].view(kind)
      return FUNCTIONS[u.op](*xs)

  def load(self, u: UOp) -> np.ndarray:
    where, kind = u.src[0], to_numpy_dtype(u.dtype)
    offset, memory = self.value(where.src[1]), self.arrays[where.src[0].arg.slot - 1].ravel()
    if u.dtype.itemsize > where.src[0].dtype.itemsize:  # neighbours as one number
      parts = memory[offset[..., None] + np.arange(u.dtype.itemsize // memory.itemsize)]
      return np.ascontiguousarray(parts).view(kind)[..., 0]
    if len(where.src) < 3:
      return memory[offset]
    valid, offset = np.broadcast_arrays(self.value(where.src[2]), offset)
    other = self.value(u.src[1]) if len(u.src) > 1 else np.zeros((), kind)
    safe = np.where(valid, offset, 0)
    return np.where(valid, memory[safe] if memory.size else np.zeros(safe.shape, kind), other)

  def fold(self, u: UOp) -> np.ndarray:
    x, ranges = self.value(u.src[0]), u.src[1:]
    x = np.broadcast_to(x, self.over(ranges, x.shape))
    wide = x.astype(np.float64) if u.dtype is dtypes.float32 else x
    start = {} if x.size else {"initial": identity_of(u.arg, u.dtype)}
    axes = tuple(self.axes[r] for r in ranges)
    return FUNCTIONS[u.arg].reduce(wide, axis=axes, keepdims=True, **start).astype(to_numpy_dtype(u.dtype))


def evaluate(
  ast: UOp, arrays: Sequence[np.ndarray], variables: dict[str, int] | None = None, fill: float = 77
) -> np.ndarray:
  """Slot 0 after the kernel, in plain numpy."""
  first = ast.src[0].src[0].src[0]
  out = np.full(first.arg.size, fill).astype(to_numpy_dtype(first.dtype))
  x = Interpreter(ast, arrays, variables or {})
  for where, value, *ranges in (s.src for s in ast.src):
    full = x.over(ranges)
    offset, v = np.broadcast_to(x.value(where.src[1]), full), np.broadcast_to(x.value(value), full)
    keep = np.broadcast_to(x.value(where.src[2]), full) if len(where.src) > 2 else np.ones(full, bool)
    out[offset[keep]] = v[keep]
  return out
