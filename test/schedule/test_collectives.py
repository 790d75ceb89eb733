"""Sharded graphs, compiled: every collective by loads from peers, against numpy and the interpreter."""

import itertools

import numpy as np
import pytest

import tinygrad.sharding  # noqa: F401
from tinygrad.device import Mesh, Owe, P, Sharding
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import realize, to_numpy
from tinygrad.helpers import Context
from tinygrad.uop.ops import Ops, UOp

RNG = np.random.default_rng(11)
D2 = ("CPU:0", "CPU:1")
D3 = ("CPU:0", "CPU:1", "CPU:2")
M22 = Mesh(("CPU:0", "CPU:1", "CPU:2", "CPU:3"), (2, 2), ("x", "y"))


def integers(*shape, dtype=np.float32):
  return RNG.integers(-4, 5, shape).astype(dtype)


def placed(x, placement):
  return UOp.from_numpy(x).copy_to_device(placement)


def check(u, want):
  """Integer-valued: bit for bit."""
  np.testing.assert_array_equal(to_numpy(u), want)
  with Context(INTERPRET=1):
    np.testing.assert_array_equal(to_numpy(u), want)


def matmul(a, b):
  m, k = a.shape
  n = b.shape[1]
  x = a.reshape((m, k, 1)).expand((m, k, n)) * b.reshape((1, k, n)).expand((m, k, n))
  return x.r(Ops.ADD, (1,)).reshape((m, n))


PLACEMENTS = [
  Sharding(D2), Sharding(D2, 0), Sharding(D2, 1), Sharding(D3, 0), Sharding(D3, 1),
  Sharding(M22, P("x", "y")), Sharding(M22, P("y", None)), Sharding(M22, P(("x", "y"))),
  Sharding(M22, P(None, ("y", "x"))), Sharding(M22),
]  # fmt: skip


@pytest.mark.parametrize("p", PLACEMENTS, ids=str)
@pytest.mark.parametrize("shape", [(8, 12), (5, 7), (1, 3)])
def test_round_trip(p, shape):
  a = integers(*shape)
  check(placed(a, p), a)
  check(placed(a, p) + 1.0, a + 1)


@pytest.mark.parametrize(
  "p,q", [x for x in itertools.permutations(PLACEMENTS, 2) if x[0].devices == x[1].devices], ids=str
)
def test_resharding(p, q):
  a = integers(6, 10)
  check(placed(a, p).copy_to_device(q) * 2.0, a * 2)


@pytest.mark.parametrize("p", PLACEMENTS, ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("op,f", [(Ops.ADD, np.sum), (Ops.MAX, np.max)])
def test_reductions_settle(p, axes, op, f):
  a = integers(6, 9)
  check(placed(a, p).r(op, axes), f(a, axis=axes, keepdims=True))


@pytest.mark.parametrize("p,q", [(0, 0), (1, 0), (2, 1), (1, 2), (5, 5), (6, 9), (8, 6)])
def test_matmul(p, q):
  a, b = integers(6, 10), integers(10, 7)
  check(matmul(placed(a, PLACEMENTS[p]), placed(b, PLACEMENTS[q])), a @ b)


@pytest.mark.parametrize("p", [Sharding(D2, 0), Sharding(D3, 0), Sharding(D3, 1), Sharding(M22, P("x", "y"))], ids=str)
def test_index_maps_along_cut_dims(p):
  a = integers(7, 8)
  x = placed(a, p)
  check(x.shrink(((1, 5), (2, 7))), a[1:5, 2:7])
  check(x.flip((0, 1)), a[::-1, ::-1])
  check(x.pad(((1, 2), (0, 3)), 5.0), np.pad(a, ((1, 2), (0, 3)), constant_values=5))
  check(UOp.cat([x, x * 2.0], 0), np.concatenate([a, a * 2]))
  check(UOp.cat([x.shrink(((0, 7), (4, 8))), x.shrink(((0, 7), (0, 4)))], 1) + 1.0, np.roll(a, 4, 1) + 1)
  check(x.pad(((1, 0), (0, 0))).shrink(((0, 7), (0, 8))) - x, np.pad(a, ((1, 0), (0, 0)))[:7] - a)


@pytest.mark.parametrize("p", [Sharding(D2, 0), Sharding(D3, 0), Sharding(M22, P("x", "y"))], ids=str)
def test_gather_from_a_cut_table(p):
  table, rows = integers(9, 4), np.array([8, 0, 3, 3], np.int32)
  check(placed(table, p).gather(placed(rows, Sharding(p.mesh))), table[rows])


def test_half_sums_are_carried_in_float32():
  a = np.full((2, 4), 60000, np.float16)
  a[1] = -59999
  x = placed(a, Sharding(D2, 0))
  partial = np.float32(a).sum(0, keepdims=True).astype(np.float16)
  check(x.r(Ops.ADD, (0,)), partial)


def test_assign_to_a_cut_buffer_and_its_part():
  a, b = integers(6, 4), integers(2, 4)
  for p in (Sharding(D2, 0), Sharding(D3, 0), Sharding(D2, 1)):
    (buffer,) = realize(placed(a, p) * 1.0)
    realize(buffer.assign(buffer * 2.0))
    check(buffer, a * 2)
    realize(buffer.shrink(((1, 3), (0, 4))).assign(placed(b, Sharding(p.mesh))))
    want = a * 2
    want[1:3] = b
    check(buffer, want)


def test_symbolic_dim_of_a_cut_value():
  a = integers(10, 6)
  n = UOp.variable("n", 1, 10).bind(7)
  for p in (Sharding(D2, 1), Sharding(D3, 1)):
    x = placed(a, p).shrink(((0, n), (0, 6)))
    check(x.r(Ops.ADD, (0,)), a[:7].sum(0, keepdims=True))
    check(x.r(Ops.ADD, (1,)), a[:7].sum(1, keepdims=True))


def test_each_device_holds_its_part():
  a = integers(5, 3)
  (u,) = realize(placed(a, Sharding(D2, 0)))
  from tinygrad.engine.realize import host_array
  from tinygrad.uop.ops import buffer_of

  parts = [host_array(buffer_of(u), i) for i in range(2)]
  np.testing.assert_array_equal(parts[0], a[:3])
  np.testing.assert_array_equal(parts[1][:2], a[3:])
  assert u.dtype is dtypes.float32


@pytest.mark.parametrize("op,f", [(Ops.ADD, np.sum), (Ops.MUL, np.prod), (Ops.MAX, np.max)])
def test_values_that_owe(op, f):
  """A lift and its settlement are the identity; a debt over two axes may be paid for one of them first."""
  a = integers(4, 6)
  x, y = M22.digits("x"), M22.digits("y")
  owing = Sharding.of(M22, (), (Owe((x, y), op),))
  for settled in (Sharding(M22), Sharding(M22, P("x", None)), Sharding(M22, P(None, "y"))):
    check(placed(a, Sharding(M22)).move(owing, pinned=True).move(settled, pinned=True), a)
  half = Sharding.of(M22, (), (Owe((y,), op),))
  check(placed(a, Sharding(M22)).move(owing, pinned=True).move(half, pinned=True).move(Sharding(M22), pinned=True), a)
  with Context(DEFER=1):
    u = placed(a, Sharding(M22, P("x", "y"))).r(op, (0, 1))
    assert u.device.pending
    check(u.move(half.with_pending(u.device.pending[:0]), pinned=True), f(a, keepdims=True))


def test_sums_that_are_deferred():
  a, c = integers(4, 6), integers(4, 1)
  with Context(DEFER=1):
    u = placed(a, Sharding(D2, 1)).r(Ops.ADD, (1,))
    assert u.device.pending
    check(u + placed(c, Sharding(D2)), a.sum(1, keepdims=True) + c)  # c is lifted: added once, not once a device
    check(u * 2.0 - u, a.sum(1, keepdims=True))
