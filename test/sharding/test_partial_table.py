"""Each row of the table of partial values: where an op may run before the reduction it does, and the count
of bytes shows it; where it may not, running it there would give visibly other values."""

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.device import Device, Mesh, Partial, Sharding, SubAxis
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import PROCESS, Context
from tinygrad.mixin.arrays import to_numpy
from tinygrad.sharding import explain, partial
from tinygrad.uop import Ops, UOp, buffer_of

N = 4
LINE = Mesh([f"CPU:{i}" for i in range(N)])
GRID = Mesh([f"CPU:{i}" for i in range(N)], (2, 2))
SHAPE = (8, 16)
FOLD = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.MIN: np.minimum}
F32, F16, I8, I32, U8 = dtypes.float32, dtypes.float16, dtypes.int8, dtypes.int32, dtypes.uint8


def numbers(seed, dtype, shape=SHAPE):
  """Small integers, of which sums and products are exact; never zero."""
  rng = np.random.default_rng(seed)
  low = 1 if dtypes.is_unsigned(dtype) else -3
  x = rng.integers(low, 4, shape)
  return np.where(x == 0, 2, x).astype(to_numpy_dtype(dtype))


def unreduced(parts, by, dtype, mesh=LINE, sub_axis=None, disjoint=False):
  """A buffer whose device d holds parts[coordinate of d] and is partial by their reduction."""
  sub_axis = sub_axis or SubAxis(N, 1)
  u = UOp.buffer(parts[0].shape, dtype, Sharding.of(mesh, (), (Partial((sub_axis,), by, disjoint),)))
  buffer = buffer_of(u)
  for d, handle in enumerate(buffer.allocate().handles):
    part = np.ascontiguousarray(parts[d // sub_axis.stride % sub_axis.size])
    Device[buffer.devices[d]].copyin(handle, memoryview(part.reshape(-1).view(np.uint8)))
  return u


def plain(value, device="CPU"):
  return UOp.from_numpy(value).copy_to_device(device)


def replicated(value):
  return plain(value, Sharding(LINE))


def value_of(u):
  return to_numpy(u)


def combine(by, values):
  out = values[0]
  for v in values[1:]:
    out = FOLD[by](out, v)
  return out


C = numbers(99, F32)
MASK = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) % 3 == 0
KEEP, UNREDUCE, MAX, MIN = "keep", "unreduce", "max", "min"

# name, op, dtype, f, verdict (keep: the result is partial by the same; max, min: by that; None: reduced before)
ROWS = [
  ("reshape", Ops.ADD, F32, lambda x: x.reshape((16, 8)), KEEP),
  ("permute", Ops.MAX, F32, lambda x: x.permute((1, 0)), KEEP),
  ("expand", Ops.MUL, F32, lambda x: x.reshape((8, 1, 16)).expand((8, 2, 16)), KEEP),
  ("flip", Ops.MIN, F32, lambda x: x.flip((0,)), KEEP),
  ("shrink", Ops.ADD, F32, lambda x: x.shrink(((1, 7), (0, 16))), KEEP),
  ("gather, replicated index", Ops.ADD, F32, lambda x: x.gather(UOp.iota(5, I32)), KEEP),
  ("sum over another dim", Ops.ADD, F32, lambda x: x.r(Ops.ADD, (0,)), KEEP),
  ("max over another dim", Ops.MAX, F32, lambda x: x.r(Ops.MAX, (0,)), KEEP),
  ("max of a sum", Ops.ADD, F32, lambda x: x.r(Ops.MAX, (0,)), None),
  ("sum of a max", Ops.MAX, F32, lambda x: x.r(Ops.ADD, (0,)), None),
  ("sum of a product", Ops.MUL, F32, lambda x: x.r(Ops.ADD, (0,)), None),
  ("pad with 0", Ops.ADD, F32, lambda x: x.pad(((1, 1), (0, 0))), KEEP),
  ("pad with 2", Ops.ADD, F32, lambda x: x.pad(((1, 1), (0, 0)), 2), UNREDUCE),
  ("pad with 2", Ops.MAX, F32, lambda x: x.pad(((1, 1), (0, 0)), 2), KEEP),
  ("pad with 1", Ops.MUL, F32, lambda x: x.pad(((1, 1), (0, 0)), 1), KEEP),
  ("pad with 2", Ops.MUL, F32, lambda x: x.pad(((1, 1), (0, 0)), 2), UNREDUCE),
  ("where", Ops.ADD, F32, lambda x: like(x, MASK).alu(Ops.WHERE, x, like(x, C)), UNREDUCE),
  ("where, constant", Ops.ADD, F32, lambda x: like(x, MASK).where(3.0, x), UNREDUCE),
  ("where", Ops.MAX, F32, lambda x: like(x, MASK).alu(Ops.WHERE, x, like(x, C)), KEEP),
  ("where", Ops.MUL, F32, lambda x: like(x, MASK).alu(Ops.WHERE, x, like(x, C)), UNREDUCE),
  ("add a replicated", Ops.ADD, F32, lambda x: x + like(x, C), UNREDUCE),
  ("add a constant", Ops.ADD, F32, lambda x: x + 3.0, UNREDUCE),
  ("subtract from", Ops.ADD, F32, lambda x: like(x, C) - x, UNREDUCE),
  ("add an integer", Ops.ADD, I8, lambda x: x + 3, UNREDUCE),
  ("add a constant", Ops.MAX, F32, lambda x: x + 3.0, KEEP),
  ("constant minus max", Ops.MAX, F32, lambda x: 3.0 - x, MIN),
  ("constant minus min", Ops.MIN, F32, lambda x: 3.0 - x, MAX),
  ("integer minus max", Ops.MAX, U8, lambda x: 3 - x, None),
  ("add to a product", Ops.MUL, F32, lambda x: x + 3.0, None),
  ("maximum with a sum", Ops.ADD, F32, lambda x: x.maximum(1.0), None),
  ("maximum with a max", Ops.MAX, F32, lambda x: x.maximum(like(x, C)), KEEP),
  ("minimum with a max", Ops.MAX, F32, lambda x: x.minimum(1.0), KEEP),
  ("maximum with a product", Ops.MUL, F32, lambda x: x.maximum(1.0), None),
  ("times a replicated", Ops.ADD, F32, lambda x: x * like(x, C), KEEP),
  ("divided by a replicated", Ops.ADD, F32, lambda x: x / 4.0, KEEP),
  ("divides", Ops.ADD, F32, lambda x: 6.0 / (x * 2.0), None),
  ("times 2", Ops.MAX, F32, lambda x: x * 2.0, KEEP),
  ("times -2", Ops.MAX, F32, lambda x: x * -2.0, MIN),
  ("times a replicated", Ops.MAX, F32, lambda x: x * like(x, C), None),
  ("integer times 100", Ops.MAX, I8, lambda x: x * 100, None),
  ("times a replicated", Ops.MUL, F32, lambda x: x * like(x, C), UNREDUCE),
  ("divided by a replicated", Ops.MUL, F32, lambda x: x / 2.0, UNREDUCE),
  ("divides", Ops.MUL, F32, lambda x: 6.0 / x + 1.0, None),
  ("negation", Ops.ADD, F32, lambda x: -x, KEEP),
  ("negation", Ops.MAX, F32, lambda x: -x, MIN),
  ("negation of unsigned", Ops.MAX, U8, lambda x: -x, None),
  ("negation", Ops.MUL, F32, lambda x: -x, UNREDUCE),
  ("floor division", Ops.ADD, I32, lambda x: x // 2, None),
  ("modulo", Ops.ADD, I32, lambda x: x % 3, None),
  ("shift", Ops.ADD, I32, lambda x: x.alu(Ops.SHR, x.const_like(1)), None),
  ("bit op", Ops.ADD, I32, lambda x: x & 5, None),
  ("wider float", Ops.ADD, F32, lambda x: x.cast(dtypes.float64), KEEP),
  ("narrower float", Ops.ADD, F32, lambda x: (x * 683.0).cast(F16), None),
  ("narrower float", Ops.MAX, F32, lambda x: x.cast(F16), KEEP),
  ("narrower integer", Ops.ADD, I32, lambda x: (x * 100).cast(I8), KEEP),
  ("narrower integer", Ops.MAX, I32, lambda x: (x * 100).cast(I8), None),
  ("wider integer", Ops.ADD, I8, lambda x: (x * 30).cast(I32), None),
  ("wider integer", Ops.MAX, I8, lambda x: x.cast(I32), KEEP),
  ("signed to unsigned", Ops.MAX, I8, lambda x: x.cast(dtypes.uint32), None),
  ("integer to float", Ops.MAX, I32, lambda x: x.cast(F32), KEEP),
  ("float to integer", Ops.ADD, F32, lambda x: (x * 0.5).cast(I32), None),
  ("to bool", Ops.ADD, I32, lambda x: (x + x).ne(x.const_like(4)), None),
  ("relu", Ops.MAX, F32, lambda x: x.maximum(0.0), KEEP),
  ("floor", Ops.MAX, F32, lambda x: (x * 0.5).alu(Ops.FLOOR), KEEP),
  ("ceil", Ops.MIN, F32, lambda x: (x * 0.5).alu(Ops.CEIL), KEEP),
  ("round", Ops.ADD, F32, lambda x: (x * 0.25).alu(Ops.ROUND), None),
  ("exp", Ops.ADD, F32, lambda x: x.alu(Ops.EXP), None),
  ("square", Ops.ADD, F32, lambda x: x * x, None),
  ("compare", Ops.MAX, F32, lambda x: x.alu(Ops.CMPLT, x.const_like(2.0)), None),
  ("number to bool", Ops.ADD, I32, lambda x: x.cast(dtypes.bool), None),
  ("number to bool", Ops.ADD, F32, lambda x: x.cast(dtypes.bool), None),
  ("bitcast", Ops.ADD, F32, lambda x: x.bitcast(I32), None),
]  # fmt: skip


def like(x, value):
  """`value` where x lives: replicated beside a sharded x."""
  return replicated(value) if isinstance(x.device, Sharding) else plain(value)


def tail(y, by):
  """One number, by reductions that commute with the one before: what is partial shrinks to a few bytes if it was
  kept."""
  return y.r(by, tuple(range(y.ndim)))


@pytest.mark.parametrize("name,by,dtype,f,verdict", ROWS, ids=[f"{r[0]}-{r[1].name}-{r[2].name}" for r in ROWS])
def test_row(name, by, dtype, f, verdict):
  parts = [numbers(d, dtype) for d in range(N)]
  want = value_of(f(plain(combine(by, parts))))
  for defer in (0, 1):
    with Context(DEFER=defer):
      assert same(value_of(f(unreduced(parts, by, dtype))), want)
  # the op on each device's part, reduced as if nothing were to be minded
  on_parts = [value_of(f(plain(p))) for p in parts]
  whole = np.prod(SHAPE) * dtype.itemsize * 2 * (N - 1) / N
  with Context(DEFER=1):
    x = unreduced(parts, by, dtype)
    y = f(x)
    if verdict is None:
      assert y.device.partial == ()
      assert wire(tail(y, by) if y.dtype is not dtypes.bool else y) >= whole
      assert not np.array_equal(combine(by, on_parts), want), "running the op on the parts would be noticed"
      return
    after = {MAX: Ops.MAX, MIN: Ops.MIN}.get(verdict, by)
    if y.size * y.dtype.itemsize <= x.size * x.dtype.itemsize:  # else the hook pays where fewer bytes are partial
      assert [o.op for o in y.device.partial] == [after]
    assert wire(tail(y, after)) <= 8 * 2 * (N - 1) / N < whole  # one number travels, not the whole value
  if verdict is KEEP:
    assert same(combine(by, on_parts), want)
    others = [op for op in FOLD if op is not by]
    assert any(not np.array_equal(combine(op, on_parts), want) for op in others)  # another reduction would be noticed
  else:  # made partial, or turned around: without that the values are others
    assert not np.array_equal(combine(by, on_parts), want)


def same(x, y):
  return x.dtype == y.dtype and np.allclose(x, y, rtol=1e-6, atol=0)


def wire(*roots):
  """Bytes that each device receives from the others; what comes from the host is apart."""
  return sum(m.wire for m in explain(*roots) if m.kind != "copy")


# ---------------------------------------------------------------- constants that are 0 or not finite

BY_A_CONSTANT = {
  "x * c": lambda x, c: x * c,
  "c * x": lambda x, c: c * x,
  "x / c": lambda x, c: x / c,
  "c / x": lambda x, c: c / x,
  "x * 2 * c": lambda x, c: x * 2 * c,
  "(x * c).sum": lambda x, c: (x * c).sum(),
  "x + c": lambda x, c: x + c,
  "c - x": lambda x, c: c - x,
  "max(x, c)": lambda x, c: x.maximum(c),
  "min(x, c)": lambda x, c: x.minimum(c),
  "x ** c": lambda x, c: x.pow(c),
  "where(x > c, x, c)": lambda x, c: (x > c).where(x, c),
  "pad(x, c)": lambda x, c: x.pad((1, 0), value=c),
}
PARTIAL = {
  Ops.ADD: lambda x: x.sum(0),
  Ops.MUL: lambda x: x.prod(0),
  Ops.MAX: lambda x: x.max(0),
  Ops.MIN: lambda x: x.min(0),
  None: lambda x: x[Tensor([38, 0]).to(x.device)],  # a lookup: one device holds the row, the others zeros
}
EXTREME = (0.0, -0.0, np.inf, -np.inf, np.nan, -2.0, 2.0**-90, 2.0**90)
# of both signs on both devices, that cancel in part or wholly; infinities; zeros
TERMS = np.array(
  [
    [3, -1, 2, 0, np.inf, 0],
    [-1, 3, -5, 0, 1, 0],
    [2, 1, 4, -1, 0, 1],
    [-3, 1, 0, 2, -1, -np.inf],
    [1, 1, -1, 1, 2, 3],
  ],
  np.float32,
)


def check_constants(name, by):
  """Beside one device; zeros of either sign are equal."""
  terms = TERMS if by else np.tile(TERMS, (8, 1))  # so long that the table stays where it is
  tensors = [] if name.startswith("pad") else [Tensor(v) for v in (0.0, np.inf, 0, -2)]
  for c in (*EXTREME, *tensors):
    want = BY_A_CONSTANT[name](PARTIAL[by](Tensor(terms, device="PYTHON")), c).numpy()
    for defer in (0, 1):
      with Context(DEFER=defer):
        got = BY_A_CONSTANT[name](PARTIAL[by](Tensor(terms).shard(("PYTHON:0", "PYTHON:1"), 0)), c).numpy()
      np.testing.assert_allclose(got, want, 1e-6, 1e-20, err_msg=f"{name}, c = {c}, DEFER={defer}")


@pytest.mark.parametrize("by", PARTIAL, ids=str)
@pytest.mark.parametrize("name", BY_A_CONSTANT)
def test_constants_that_are_0_or_not_finite(name, by):
  check_constants(name, by)


@pytest.mark.parametrize("name,by", [("x * c", Ops.ADD), ("x / c", Ops.ADD), ("x * c", Ops.MAX), ("c * x", None)])
def test_parts_scaled_by_any_constant_would_be_noticed(name, by, monkeypatch):
  monkeypatch.setattr(partial, "may_scale", lambda u: True)
  PROCESS.forget()
  with pytest.raises(AssertionError):
    check_constants(name, by)
  monkeypatch.undo()
  PROCESS.forget()


# ---------------------------------------------------------------- two partial operands


def pair(by_x=Ops.ADD, by_y=Ops.ADD, dtype=F32):
  parts = [numbers(d, dtype) for d in range(N)], [numbers(10 + d, dtype) for d in range(N)]
  x, y = (unreduced(p, by, dtype) for p, by in zip(parts, (by_x, by_y)))
  return x, y, combine(by_x, parts[0]), combine(by_y, parts[1]), parts


def test_two_sums_are_added_before_one_reduction():
  with Context(DEFER=1):
    x, y, a, b, _ = pair()
    z = x + y
    assert z.device.partial == x.device.partial
    assert len(moves_of(z)) == 1
    assert np.array_equal(value_of(z), a + b)


@pytest.mark.parametrize("by", (Ops.MAX, Ops.MIN))
def test_two_extrema_of_one_kind_stay_of_two_kinds_are_reduced(by):
  with Context(DEFER=1):
    x, y, a, b, parts = pair(by, by)
    z = x.alu(by, y)
    assert z.device.partial == x.device.partial
    assert np.array_equal(value_of(z), FOLD[by](a, b))
    other = Ops.MIN if by is Ops.MAX else Ops.MAX
    w = x.alu(other, y)
    assert w.device.partial == ()
    assert np.array_equal(value_of(w), FOLD[other](a, b))
    wrong = combine(by, [FOLD[other](p, q) for p, q in zip(*parts)])
    assert not np.array_equal(wrong, FOLD[other](a, b))


def test_of_two_sums_over_the_same_devices_one_is_reduced():
  with Context(DEFER=1):
    x, y, a, b, parts = pair()
    z = x * y
    assert z.device.partial == x.device.partial  # the other is paid
    assert len(moves_of(z.r(Ops.ADD, (0, 1)))) == 2
    assert np.array_equal(value_of(z), a * b)
    assert not np.array_equal(sum(p * q for p, q in zip(*parts)), a * b)


def test_two_sums_over_different_devices_multiply_out():
  rows, columns = SubAxis(2, 2), SubAxis(2, 1)
  p, q = [numbers(d, F32) for d in range(2)], [numbers(5 + d, F32) for d in range(2)]
  with Context(DEFER=1):
    z = unreduced(p, Ops.ADD, F32, GRID, rows) * unreduced(q, Ops.ADD, F32, GRID, columns)
    assert z.device.partial == (Partial((SubAxis(4, 1),), Ops.ADD),)
    assert np.array_equal(value_of(z), (p[0] + p[1]) * (q[0] + q[1]))


def test_two_products_stay():
  with Context(DEFER=1):
    x, y, a, b, _ = pair(Ops.MUL, Ops.MUL)
    z = x * y
    assert z.device.partial == x.device.partial
    assert np.array_equal(value_of(z), a * b)


def test_a_sum_and_a_max_are_reduced():
  with Context(DEFER=1):
    x, y, a, b, _ = pair(Ops.ADD, Ops.MAX)
    assert (x + y).device.partial == ()
    assert np.array_equal(value_of(x + y), a + b)


def test_an_index_and_a_condition_are_reduced_first():
  parts = [np.full(3, d, np.int32) for d in range(N)]
  table = numbers(1, F32)
  with Context(DEFER=1):
    rows = replicated(table).gather(unreduced(parts, Ops.ADD, I32))
    assert rows.device.partial == ()
    assert np.array_equal(value_of(rows), table[[6, 6, 6]])
    bits = [numbers(d, I8) > 1 for d in range(N)]
    mask = unreduced(bits, Ops.MAX, dtypes.bool)
    chosen = mask.alu(Ops.WHERE, replicated(table), replicated(-table))
    assert chosen.device.partial == ()
    assert np.array_equal(value_of(chosen), np.where(np.logical_or.reduce(bits), table, -table))


# ---------------------------------------------------------------- disjoint


def lookup():
  table = numbers(3, F32, (8, 6))
  ids = np.array([7, 0, 3, 3, 5], np.int32)
  placed = plain(table, Sharding(LINE, 0)).gather(replicated(ids))
  return placed, table[ids], table, ids


def test_a_lookup_is_disjoint_and_functions_with_f0_0_run_before_the_sum():
  with Context(DEFER=1):
    rows, want, _, _ = lookup()
    assert [o.disjoint for o in rows.device.partial] == [True]
    y = (rows * 2.0).maximum(0.0).alu(Ops.SQRT)
    assert [o.disjoint for o in y.device.partial] == [True]
    assert np.allclose(value_of(y), np.sqrt(np.maximum(want * 2, 0)))
    assert len(moves_of(y)) == 1
    assert rows.alu(Ops.EXP).device.partial == ()  # exp(0) is 1
    assert rows.maximum(1.0).device.partial == ()
    assert np.array_equal(value_of(rows.maximum(1.0)), np.maximum(want, 1))


def test_a_lookup_that_is_added_to_is_no_longer_disjoint():
  with Context(DEFER=1):
    rows, want, _, _ = lookup()
    y = rows + 1.0
    assert [o.disjoint for o in y.device.partial] == [False]
    assert np.array_equal(value_of(y.maximum(0.0)), np.maximum(want + 1, 0))


def test_lookups_by_one_index_multiply_by_two_they_do_not():
  with Context(DEFER=1):
    rows, want, table, ids = lookup()
    assert [o.disjoint for o in (rows * rows).device.partial] == [True]
    assert np.array_equal(value_of(rows * rows), want * want)
    other = plain(table, Sharding(LINE, 0)).gather(replicated(ids[::-1].copy()))
    both = rows * other
    assert np.array_equal(value_of(both), want * want[::-1])
    turned = rows * rows.flip((0,))
    assert np.array_equal(value_of(turned), want * want[::-1])
    blocks = [np.where((ids // 2 == d)[:, None], table[ids], 0) for d in range(N)]
    assert not np.array_equal(sum(b * b[::-1] for b in blocks), want * want[::-1])


def test_reductions_of_a_lookup():
  with Context(DEFER=1):
    rows, want, _, _ = lookup()
    along = rows.r(Ops.MAX, (1,))
    assert [o.disjoint for o in along.device.partial] == [True]  # each row has one owner
    assert np.array_equal(value_of(along), want.max(1, keepdims=True))
    across = rows.r(Ops.MAX, (0,))
    assert across.device.partial == ()
    assert np.array_equal(value_of(across), want.max(0, keepdims=True))
    summed = rows.r(Ops.ADD, (0,))
    assert [o.disjoint for o in summed.device.partial] == [False]
    assert np.array_equal(value_of(summed * summed), want.sum(0, keepdims=True) ** 2)


# ---------------------------------------------------------------- one reduction, at the smallest tensor


def contraction_over_a_cut_dim(n=8):
  a, b = numbers(1, F32, (n, 16)), numbers(2, F32, (16, n))
  x, y = plain(a, Sharding(LINE, 1)), plain(b, Sharding(LINE, 0))
  left, right = x.reshape((n, 16, 1)).expand((n, 16, n)), y.reshape((1, 16, n)).expand((n, 16, n))
  return (left * right).r(Ops.ADD, (1,)).reshape((n, n)), a @ b


def moves_of(*roots):
  return [(m.kind, m.wire) for m in explain(*roots) if m.kind != "copy"]


def test_all_consumers_share_one_reduction():
  whole = 8 * 8 * 4 * 2 * (N - 1) / N
  with Context(DEFER=1):
    z, want = contraction_over_a_cut_dim()
    y = (z * 3.0).maximum(0.0) + z
    assert moves_of(y) == [("all_reduce", whole)]
    assert np.array_equal(value_of(y), np.maximum(want * 3, 0) + want)
    assert moves_of((z * 3.0).maximum(0.0), (z + 1.0).maximum(0.0)) == [("all_reduce", whole)]
  with Context(DEFER=0):
    z, _ = contraction_over_a_cut_dim()
    assert moves_of((z * 3.0).maximum(0.0) + z) == [("all_reduce", whole)]


def test_the_reduction_is_at_the_smallest_tensor():
  with Context(DEFER=1):
    z, want = contraction_over_a_cut_dim()
    assert moves_of(z.r(Ops.ADD, (0, 1))) == [("all_reduce", 4 * 2 * (N - 1) / N)]
    wide = z.reshape((8, 8, 1)).expand((8, 8, 32)).maximum(0.0)
    assert moves_of(wide) == [("all_reduce", 8 * 8 * 4 * 2 * (N - 1) / N)]
    assert np.array_equal(value_of(wide)[:, :, 5], np.maximum(want, 0))


def test_readers_that_want_a_cut_share_one_reduce_scatter():
  """As an optimizer reads a gradient for both of its moments, which are cut like the weight."""
  with Context(DEFER=1):
    z, want = contraction_over_a_cut_dim()
    m, v = (plain(numbers(i, F32, (8, 8)), Sharding(LINE, 0)) for i in (5, 6))
    g = z.move(Sharding(LINE, 0), pinned=False)  # as gradients are handed out
    first, second = m + g * 0.5, v + g * g
    assert moves_of(first, second) == [("reduce_scatter", 8 * 8 * 4 * (N - 1) / N)]
    assert first.device == second.device == Sharding(LINE, 0)
    assert np.array_equal(value_of(second), numbers(6, F32, (8, 8)) + want * want)


def test_the_device_of_a_tensor_shows_no_debt():
  with Context(DEFER=1):
    x = Tensor(numbers(1, F32)).shard(LINE.devices, axis=1)
    total = x.sum(1)
    assert total.uop.device.partial != ()
    assert total.device == Sharding(LINE)
    assert total.realize().device == Sharding(LINE)
    assert np.array_equal(total.numpy(), numbers(1, F32).sum(1))


# ---------------------------------------------------------------- known traps


def test_max_over_a_cut_dim_is_no_sum():
  value = numbers(1, F32)
  x = Tensor(value).shard(LINE.devices, axis=1)
  for defer in (0, 1):
    with Context(DEFER=defer):
      assert np.array_equal(x.max(1).numpy(), value.max(1))
  assert not np.array_equal(sum(b.max(1) for b in np.split(value, N, 1)), value.max(1))


def test_the_sum_of_halves_keeps_range_and_precision():
  value = np.tile(np.array([60000, 60000, -60000, -60000], np.float16), (3, 1))
  with np.errstate(over="ignore"):
    assert np.isinf(sum(np.float16(value[:, i]) for i in range(4))[0])
  for defer in (0, 1):
    with Context(DEFER=defer):
      u = plain(value, Sharding(LINE, 1)).r(Ops.ADD, (1,))
      assert u.dtype is F16
      assert np.array_equal(value_of(u), np.zeros((3, 1), np.float16))
      assert np.array_equal(Tensor(value).shard(LINE.devices, axis=1).sum(1).numpy(), np.zeros(3, np.float16))


def test_partial_halves_do_not_overflow_on_one_device():
  """Two devices with 80000 and -80000 between them: each part is beyond the range of halves."""
  value = np.tile(np.array([40000, 40000, 1, 1, -40000, -40000, 1, 1], np.float16), (3, 1))
  for defer in (0, 1):
    with Context(DEFER=defer):
      u = plain(value, Sharding(LINE, 1)).r(Ops.ADD, (1,))
      assert np.array_equal(value_of(u), np.full((3, 1), 4, np.float16))


@pytest.mark.parametrize("defer", (0, 1))
def test_negative_zero_survives(defer):
  with Context(DEFER=defer):
    parts = [np.full(SHAPE, -0.0, np.float32)] * N
    y = unreduced(parts, Ops.ADD, F32) + replicated(np.full(SHAPE, -0.0, np.float32))
    assert np.signbit(value_of(y)).all()
    assert not np.signbit(sum(parts) + np.float32(0.0)).any()  # +0.0 on the other devices would lose it


@pytest.mark.parametrize("defer", (0, 1))
@pytest.mark.parametrize("n", (3, 5, 7))
def test_uneven_mean_and_empty_blocks(defer, n):
  value = numbers(n, F32, (n, 6))
  with Context(DEFER=defer):
    x = Tensor(value).shard(LINE.devices, axis=0)
    assert np.allclose(x.mean(0).numpy(), value.mean(0), rtol=1e-6, atol=1e-6)
    assert np.array_equal((x.max(0) * -2.0 + 1.0).numpy(), value.max(0) * -2 + 1)
    assert np.array_equal((x.prod(0) * 3).numpy(), value.prod(0) * 3)
  size = -(-n // N)
  means = [value[d * size : (d + 1) * size].mean(0) for d in range(N) if d * size < n]
  if n == 5:  # blocks of 2, 2, 1, 0: the mean of means is another number
    assert not np.allclose(np.mean(means, 0), value.mean(0))


@pytest.mark.parametrize("defer", (0, 1))
def test_masks_select_and_do_not_multiply(defer):
  """0 * inf is nan: what a device does not own must not be multiplied away."""
  value = numbers(1, F32, (6, 4))
  value[1] = np.inf
  with Context(DEFER=defer):
    table = plain(value, Sharding(LINE, 0))
    got = value_of(table.gather(replicated(np.array([1, 0, 5], np.int32))))
  assert np.array_equal(got, value[[1, 0, 5]])


def test_a_scalar_is_added_once():
  with Context(DEFER=1):
    z, want = contraction_over_a_cut_dim()
    assert np.array_equal(value_of(z + 1.0), want + 1)
    assert not np.array_equal(want + N, want + 1)


# ---------------------------------------------------------------- wrong rules are noticed


def test_unions_forget_no_reduction():
  x, y = (Partial((SubAxis(2, stride),), Ops.ADD) for stride in (2, 1))
  assert partial.union([(x,), (y,)]) == (x, y)
  assert partial.union([(x,), (Partial((SubAxis(4, 1),), Ops.ADD),)]) is None


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("defer", [0, 1])
def test_two_reductions_beside_one_over_both_axes(order, defer):
  """A reduction over two axes at once, and one over each (one of them disjoint), are over the same devices."""
  rows, columns = SubAxis(2, 2), SubAxis(2, 1)
  entries = (Partial((rows,), Ops.ADD, True), Partial((columns,), Ops.ADD))[::order]
  x = unreduced([np.full(SHAPE, d + 1.0, np.float32) for d in range(N)], Ops.ADD, F32)
  u = UOp.buffer(SHAPE, F32, Sharding.of(GRID, (), entries))
  for d, handle in enumerate(buffer_of(u).allocate().handles):
    part = np.full(SHAPE, d + 1.0 if d < 2 else 0.0, np.float32)  # the other row of the mesh holds nothing
    Device[buffer_of(u).devices[d]].copyin(handle, memoryview(part.reshape(-1).view(np.uint8)))
  condition = replicated(np.arange(SHAPE[1]).reshape(1, -1).repeat(SHAPE[0], 0) % 2 == 0)
  with Context(DEFER=defer):
    assert value_of(u).tolist() == np.full(SHAPE, 3.0).tolist()
    chosen, swapped = value_of(condition.alu(Ops.WHERE, x, u)), value_of(condition.alu(Ops.WHERE, u, x))
    assert (chosen[:, ::2] == 10).all() and (chosen[:, 1::2] == 3).all()
    assert (swapped[:, ::2] == 3).all() and (swapped[:, 1::2] == 10).all()
    assert (value_of(x.alu(Ops.ADD, u)) == 13).all()
