"""Kernels of hand-built graphs against numpy: odd sizes, pads, windows, cats, gathers, symbolic dims; and by the
interpreter of the same graph.
"""

import numpy as np
import pytest

import tinygrad.sharding  # noqa: F401
from tinygrad import Tensor
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import realize
from tinygrad.helpers import PROCESS, Context, GlobalCounters
from tinygrad.mixin.arrays import to_numpy
from tinygrad.schedule import schedule as scheduling
from tinygrad.schedule.loops import split_ranges
from tinygrad.schedule.lower import lower
from tinygrad.schedule.order import ScheduleError
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp
from tinygrad.uop.symbolic import simplify

RNG = np.random.default_rng(7)


def array(*shape, dtype=np.float32):
  return RNG.standard_normal(shape).astype(dtype)


def on_cpu(x):
  return UOp.from_numpy(np.ascontiguousarray(x)).copy_to_device("CPU")


def check(u, want, rtol=1e-5, atol=1e-5):
  """The compiled kernels and the interpreter agree with numpy."""
  np.testing.assert_allclose(to_numpy(u), want, rtol=rtol, atol=atol)
  with Context(INTERPRET=1):
    np.testing.assert_allclose(to_numpy(u), want, rtol=rtol, atol=atol)


def matmul(a, b):
  m, k = a.shape
  n = b.shape[1]
  x = a.reshape((m, k, 1)).expand((m, k, n)) * b.reshape((1, k, n)).expand((m, k, n))
  return x.r(Ops.ADD, (1,)).reshape((m, n))


def view(x, size, stride=1, dilation=1, k=3):
  """Windows of the last dim of a 2-D value: [n, out, k]."""
  n, m = x.shape
  out = (m - dilation * (k - 1) - 1) // stride + 1
  return x.reshape((n, m, 1)).expand((n, m, k)).window(1, 2, stride, dilation, out)


@pytest.mark.parametrize("m,k,n", [(1, 1, 1), (3, 5, 7), (16, 16, 16), (33, 17, 65), (1, 100, 30), (100, 1, 3)])
def test_matmul_with_epilogue(m, k, n):
  a, b, c = array(m, k), array(k, n), array(1, n)
  got = (matmul(on_cpu(a), on_cpu(b)) + on_cpu(c).expand((m, n))).maximum(0.0)
  check(got, np.maximum(a @ b + c, 0), atol=1e-4)


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4), (1, 9, 1)])
@pytest.mark.parametrize("op,f", [(Ops.ADD, np.sum), (Ops.MAX, np.max), (Ops.MIN, np.min), (Ops.MUL, np.prod)])
def test_reductions(shape, op, f):
  a = array(*shape)
  check(on_cpu(a).r(op, range(len(shape))), f(a, keepdims=True))
  check(on_cpu(a).r(op, (0,)), f(a, axis=0, keepdims=True))
  check(on_cpu(a).r(op, (len(shape) - 1,)), f(a, axis=-1, keepdims=True))


def test_movement_chain():
  a = array(6, 10)
  x = (
    on_cpu(a)
    .permute((1, 0))
    .reshape((5, 2, 6))
    .flip((0, 2))
    .shrink(((1, 5), (0, 2), (2, 6)))
    .permute((2, 0, 1))
    .reshape((4, 8))
  )
  want = a.T.reshape(5, 2, 6)[::-1, :, ::-1][1:5, :, 2:6].transpose(2, 0, 1).reshape(4, 8)
  check(x, want)
  check(x.r(Ops.ADD, (1,)), want.sum(1, keepdims=True))


def test_reshape_that_splits_nothing():
  a = array(4, 6)
  check(on_cpu(a).permute((1, 0)).reshape((3, 8)) + 1.0, a.T.reshape(3, 8) + 1)
  check(on_cpu(a).permute((1, 0)).reshape((24,)).reshape((2, 12)).permute((1, 0)), a.T.reshape(2, 12).T)


@pytest.mark.parametrize("fill", [0.0, -float("inf"), 3.5])
def test_pad_selects_and_never_multiplies(fill):
  a = array(3, 4)
  a[0, 0] = np.inf
  want = np.pad(a, ((1, 2), (0, 3)), constant_values=fill)
  check(on_cpu(a).pad(((1, 2), (0, 3)), fill), want)
  check(on_cpu(a).pad(((1, 2), (0, 3)), fill).r(Ops.MAX, (0,)), want.max(0, keepdims=True))


def test_pad_of_a_computed_value():
  a = array(3, 4)
  check(on_cpu(a).alu(Ops.EXP).pad(((0, 1), (2, 0)), 0.0) * 2.0, np.pad(np.exp(a), ((0, 1), (2, 0))) * 2)


def test_pad_after_pad_and_shrink():
  a = array(5)
  x = on_cpu(a).pad(((2, 2),), 1.0).shrink(((1, 8),)).pad(((0, 3),), -1.0)
  check(x, np.pad(np.pad(a, 2, constant_values=1)[1:8], (0, 3), constant_values=-1))


def test_cat():
  a, b, c = array(2, 3), array(1, 3), array(4, 3)
  want = np.concatenate([a, b * 2, c])
  x = UOp.cat([on_cpu(a), on_cpu(b) * 2.0, on_cpu(c)], 0)
  check(x, want)
  check(x.r(Ops.ADD, (0,)), want.sum(0, keepdims=True))
  check(UOp.cat([x, x], 1).flip((0,)), np.concatenate([want, want], 1)[::-1])


@pytest.mark.parametrize("stride,dilation,k", [(1, 1, 3), (2, 1, 3), (1, 2, 2), (3, 2, 3), (2, 1, 2)])
def test_window_and_spread(stride, dilation, k):
  a = array(2, 13)
  out = (13 - dilation * (k - 1) - 1) // stride + 1
  want = np.stack([a[:, i * dilation :][:, ::stride][:, :out] for i in range(k)], -1)
  w = view(on_cpu(a), out, stride, dilation, k)
  check(w, want)
  check(w.r(Ops.MAX, (2,)), want.max(2, keepdims=True))
  g = array(2, out, k)
  back = np.zeros((2, 13), np.float32)
  for i in range(k):
    for o in range(out):
      back[:, o * stride + i * dilation] += g[:, o, i]
  check(on_cpu(g).spread(1, 2, stride, dilation, 13).r(Ops.ADD, (2,)).reshape((2, 13)), back)


def test_gather_outside_is_zero():
  table, rows = array(5, 3), np.array([[0, 4], [5, -1], [2, 2]], np.int32)
  want = np.where(((rows >= 0) & (rows < 5))[..., None], table[np.clip(rows, 0, 4)], 0)
  check(on_cpu(table).gather(on_cpu(rows)), want)
  check((on_cpu(table) * 2.0).gather(on_cpu(rows)).r(Ops.ADD, (0,)), (want * 2).sum(0, keepdims=True))


def test_iota_and_mask():
  a = array(6, 6)
  i = UOp.iota(6).reshape((6, 1)).expand((6, 6))
  j = UOp.iota(6).reshape((1, 6)).expand((6, 6))
  check((i < j).where(0.0, on_cpu(a)), np.tril(a))


@pytest.mark.parametrize(
  "a,b",
  [
    (np.int32, np.float32),
    (np.float32, np.int8),
    (np.uint8, np.int64),
    (np.float16, np.float32),
    (np.float32, np.float16),
    (np.int32, np.bool_),
  ],
)
def test_casts(a, b):
  x = np.array([[0, 1, 2], [3, 5, 7]], a)
  from tinygrad.dtype import from_numpy_dtype

  check(on_cpu(x).cast(from_numpy_dtype(np.dtype(b))), x.astype(b))


def test_two_reductions_of_one_input():
  a = array(9, 11)
  x = on_cpu(a)
  mean = x.r(Ops.ADD, (1,)) * (1 / 11)
  d = x - mean.expand((9, 11))
  var = (d * d).r(Ops.ADD, (1,)) * (1 / 11)
  y = d * (var + 1e-5).alu(Ops.SQRT).alu(Ops.RECIP).expand((9, 11))
  check(y, (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5), atol=1e-4)


def test_symbolic_dim():
  a = array(10, 4)
  n = UOp.variable("n", 1, 10).bind(7)
  x = on_cpu(a).shrink(((0, n), (0, 4)))
  check((x * 2.0).r(Ops.ADD, (0,)), a[:7].sum(0, keepdims=True) * 2)
  check(x.r(Ops.ADD, (1,)).expand((n, 4)) + x, a[:7].sum(1, keepdims=True) + a[:7])
  check(matmul(x, on_cpu(a.T.copy())), a[:7] @ a.T, atol=1e-4)


def test_symbolic_offset_and_cat():
  a, b = array(10, 3), array(2, 3)
  p = UOp.variable("p", 0, 8).bind(5)
  got = UOp.cat([on_cpu(a).shrink(((0, p), (0, 3))), on_cpu(b)], 0)
  check(got, np.concatenate([a[:5], b]))
  check(on_cpu(a).shrink(((p, p + 2), (0, 3))), a[5:7])


def test_empty_reduction_and_empty_value():
  a = on_cpu(array(3, 4)).shrink(((0, 3), (2, 2)))
  check(a.r(Ops.ADD, (1,)), np.zeros((3, 1)))
  assert to_numpy(a).shape == (3, 0)


def test_assign_whole_and_view():
  a = array(4, 5)
  (buffer,) = realize(on_cpu(a) * 1.0)
  realize(buffer.assign(buffer + 1.0))
  np.testing.assert_array_equal(to_numpy(buffer), a + 1)
  realize(buffer.shrink(((1, 3), (0, 5))).assign(on_cpu(a).shrink(((0, 2), (0, 5)))))
  want = a + 1
  want[1:3] = a[:2]
  np.testing.assert_array_equal(to_numpy(buffer), want)


def test_assign_that_reads_its_target_elsewhere():
  """In place, element (i, j) must not be overwritten before (j, i) has been read."""
  a = array(6, 6)
  (buffer,) = realize(on_cpu(a) * 1.0)
  realize(buffer.assign(buffer.permute((1, 0)) + buffer))
  np.testing.assert_array_equal(to_numpy(buffer), a.T + a)
  realize(buffer.assign(buffer.flip((0,))))
  np.testing.assert_array_equal(to_numpy(buffer), (a.T + a)[::-1])


def test_old_content_is_read_before_the_assign_and_new_content_after():
  a = array(3, 3)
  (buffer,) = realize(on_cpu(a) * 1.0)
  old = buffer * 10.0
  after = buffer.after(buffer.assign(buffer + 1.0))
  new = after * 100.0
  x, y, z = realize(new, old, after)
  np.testing.assert_allclose(to_numpy(x), (a + 1) * 100)
  np.testing.assert_allclose(to_numpy(y), a * 10)
  np.testing.assert_allclose(to_numpy(z), a + 1)


def test_old_and_new_content_in_one_value():
  a = array(3, 3)
  (buffer,) = realize(on_cpu(a) * 1.0)
  after = buffer.after(buffer.assign(buffer + 1.0))
  (x,) = realize(after * buffer)
  np.testing.assert_array_equal(to_numpy(x), (a + 1) * a)
  np.testing.assert_array_equal(to_numpy(buffer), a + 1)


def test_each_of_three_contents_in_one_value():
  a = array(4, 3)
  (buffer,) = realize(on_cpu(a) * 1.0)
  one = buffer.after(buffer.shrink(((0, 2), (0, 3))).assign(on_cpu(a).shrink(((2, 4), (0, 3)))))
  two = one.after(one.flip((0,)).assign(one + buffer))
  (x,) = realize(buffer * 100.0 + one * 10.0 + two)
  first = a.copy()
  first[:2] = a[2:]
  second = (first + a)[::-1]
  np.testing.assert_allclose(to_numpy(x), a * 100 + first * 10 + second, rtol=1e-6)
  np.testing.assert_array_equal(to_numpy(buffer), second)


@pytest.mark.parametrize("count", (2, 3))
def test_buffers_exchange_their_contents(count):
  arrays = [array(4) for _ in range(count)]
  buffers = [realize(on_cpu(a) * 1.0)[0] for a in arrays]
  stores = [b.assign(buffers[(i + 1) % count] * 2.0) for i, b in enumerate(buffers)]
  realize(*stores)
  for i, b in enumerate(buffers):
    np.testing.assert_array_equal(to_numpy(b), arrays[(i + 1) % count] * 2)


def test_old_content_of_shards_moves_after_the_assign():
  """Every device reads its peers' old parts once these hold the new content."""
  a = array(6, 4)
  x = Tensor(a).shard(("CPU:0", "CPU:1"), axis=0).realize()
  old = x.uop
  new = old.after(old.assign(old * 2.0))
  total = (new * old.flip((0,))).r(Ops.ADD, (0,))
  np.testing.assert_allclose(to_numpy(realize(total)[0]), (a * 2 * a[::-1]).sum(0, keepdims=True), rtol=1e-5)
  np.testing.assert_array_equal(x.numpy(), a * 2)


def test_no_copy_where_an_order_exists():
  a = array(5)
  x, y, z = (realize(on_cpu(a) * 1.0)[0] for _ in range(3))
  before = GlobalCounters.kernel_count
  realize(x.assign(y * 2.0), y.assign(z * 3.0), z.assign(z + 1.0))
  assert GlobalCounters.kernel_count - before == 3


def test_the_same_buffer_assigned_twice_apart_is_an_error():
  a = array(3)
  (buffer,) = realize(on_cpu(a) * 1.0)
  one, two = buffer.after(buffer.assign(buffer + 1.0)), buffer.after(buffer.assign(buffer * 2.0))
  with pytest.raises(ScheduleError, match=r"neither after the other(.|\n)*fix: write to a .clone\(\) of it"):
    realize(one + two)
  np.testing.assert_array_equal(to_numpy(buffer), a)


def test_quantised_matmul():
  q, scale, x = RNG.integers(-127, 127, (8, 4, 32)).astype(np.int8), array(8, 4, 1, dtype=np.float16), array(3, 128)
  w = on_cpu(q).cast(dtypes.float32) * on_cpu(scale).cast(dtypes.float32).expand((8, 4, 32))
  want = x @ (q.astype(np.float32) * scale.astype(np.float32)).reshape(8, 128).T
  check(matmul(on_cpu(x), w.reshape((8, 128)).permute((1, 0))), want, rtol=1e-4, atol=1e-2)


def test_an_operand_that_drops_out_is_no_argument():
  """where(c, x, x) reads no c: the kernel's other arguments and its variables keep their places."""
  a = array(6)
  c = on_cpu(a > 0)
  n = UOp.variable("n", 1, 6).bind(4)
  x = c.where(on_cpu(a), on_cpu(a)) + on_cpu(a * 2)
  check(x.shrink(((0, n),)) + UOp.new(Ops.CAST, dtypes.float32, (n,)).reshape((1,)).expand((n,)), (a * 3)[:4] + 4)


@pytest.mark.parametrize("way", ["detach", "contiguous", "contiguous_backward", "clone"])
def test_what_is_joined_to_a_cut_value_and_lives_anywhere_may_be_marked(way):
  """It is within the template of the communication, as it is."""
  x = Tensor(np.arange(5, dtype=np.float32)).realize().shard(("CPU:0", "CPU:1"), axis=0)
  marked = getattr(Tensor.arange(3).float() * 2, way)()
  assert x.cat(marked, dim=0).tolist() == [0, 1, 2, 3, 4, 0, 2, 4]


# ---- kernels that differ in their slots only


def lowered(monkeypatch, f):
  """How many kernels are lowered for the values that f makes, and these."""
  count = []
  with monkeypatch.context() as m, PROCESS.anew():
    m.setattr(scheduling, "lower", lambda *a: count.append(a) or lower(*a))
    values = f()
    Tensor.realize(*values)
  return len(count), [v.numpy() for v in values]


def test_layers_share_the_lowering_of_their_kernels(monkeypatch):
  def layers(n):
    x = Tensor(array(4, 16)).realize()
    weights = [Tensor(array(16, 16)).realize() for _ in range(n)]
    for w in weights:
      x = (x @ w).relu().layernorm()
    return [x]

  assert lowered(monkeypatch, lambda: layers(3))[0] == lowered(monkeypatch, lambda: layers(9))[0]


def test_plans_share_the_lowering_of_their_kernels(monkeypatch):
  """Another graph that holds the same product, over other memory, lowers what is new in it only."""
  (x, y), (w, v) = ([Tensor(array(*shape)).realize() for _ in range(2)] for shape in ((4, 16), (16, 16)))

  def programs():
    (x @ w).realize()
    return [y @ v, y.cumsum()]

  count, (product, _) = lowered(monkeypatch, programs)
  assert count == lowered(monkeypatch, lambda: [y @ v, y.cumsum()])[0]
  np.testing.assert_allclose(product, y.numpy() @ v.numpy(), rtol=1e-5, atol=1e-6)


def test_kernels_of_other_structure_are_lowered_apart(monkeypatch):
  a, b = array(4, 6), array(4, 6)
  x, y = Tensor(a).realize(), Tensor(b).realize()

  def values():
    squares = [(x * x).contiguous(), (x * y).contiguous(), (y * x).contiguous()]
    fills = [x.pad(((0, 0), (0, 1)), value=v).contiguous() for v in (0.0, -0.0)]
    return [*squares, *fills, x.sum(0), x.sum(1), (x + 1.0).contiguous(), (x + 2.0).contiguous(), x.permute(1, 0) + 1.0]

  count, got = lowered(monkeypatch, values)
  assert count == 9  # x·y and y·x are one
  padded = [np.pad(a, ((0, 0), (0, 1)), constant_values=v) for v in (0.0, -0.0)]
  want = [a * a, a * b, a * b, *padded, a.sum(0), a.sum(1), a + 1, a + 2, a.T + 1]
  for g, w in zip(got, want, strict=True):
    np.testing.assert_allclose(g, w, rtol=1e-6)
  assert not np.signbit(got[3][:, -1]).any() and np.signbit(got[4][:, -1]).all()

  class ByShape(dict):
    """A mutant: what has the same shape is one."""

    def get(self, key):
      return super().get(key.src[1].shape)

    def __setitem__(self, key, item):
      super().__setitem__(key.src[1].shape, item)

  monkeypatch.setattr(scheduling, "_lowered", ByShape())
  assert any(not np.array_equal(g, w) for g, w in zip(got, lowered(monkeypatch, values)[1]))


def test_a_shifted_range_is_split_by_what_divides_it():
  """(r + 1) // 2 and (r + 1) % 2 with r = 2·a + b: a is outside of both, so that what is read there lies along a."""
  r = UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, 32),), (0, AxisKind.LOOP))
  odd = UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, 33),), (1, AxisKind.LOOP))

  def kernel(*ranges):
    out, x = (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(slot, 1 << 12)) for slot in range(2))
    at = UOp.const(dtypes.index, 0)
    for i in ranges:
      at = at * 64 + (i + 1) // 2 + (i + 1) % 2 * 32
    value = UOp.new(Ops.LOAD, dtypes.float32, (UOp.new(Ops.INDEX, dtypes.float32, (x, at)),))
    where = UOp.new(Ops.INDEX, dtypes.float32, (out, sum((i * 64**n for n, i in enumerate(ranges)), start=r * 0)))
    return UOp.sink(UOp.new(Ops.STORE, dtypes.void, (where, value, *ranges)))

  new = split_ranges(simplify(kernel(r)))
  assert [i.src[0].arg for i in new.src[0].src[2:]] == [16, 2]
  inner = new.src[0].src[3]
  divided = [u.src[0] for u in new.toposort() if u.op in (Ops.IDIV, Ops.MOD)]
  assert divided and all({i for i in u.toposort() if i.op is Ops.RANGE} == {inner} for u in divided)
  both = split_ranges(simplify(kernel(r, odd)))
  assert [i.src[0].arg for i in both.src[0].src[2:]] == [16, 2, 33]  # 2 does not divide 33
