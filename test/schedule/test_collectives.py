"""Sharded graphs, compiled: every collective by loads from peers, against numpy and the interpreter."""

import functools
import itertools
import operator

import numpy as np
import pytest

from tinygrad import Tensor, nn
from tinygrad.debug.report import as_realized
from tinygrad.device import Buffer, Device, Mesh, P, Partial, Sharding, SubAxis, reach
from tinygrad.device import sums as device_sums
from tinygrad.dtype import dtypes
from tinygrad.engine.compile import _plans
from tinygrad.engine.realize import realize
from tinygrad.helpers import Context
from tinygrad.mixin.arrays import to_numpy
from tinygrad.numerics import parts
from tinygrad.runtime.peer_reads import elements_read
from tinygrad.runtime.transfer import host_array
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding import explain
from tinygrad.sharding.localize import localize
from tinygrad.uop import Ops, UOp, buffer_of

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
def test_reductions_of_partial_values(p, axes, op, f):
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
  parts = [host_array(buffer_of(u), i) for i in range(2)]
  np.testing.assert_array_equal(parts[0], a[:3])
  np.testing.assert_array_equal(parts[1][:2], a[3:])
  assert u.dtype is dtypes.float32


@pytest.mark.parametrize("op,f", [(Ops.ADD, np.sum), (Ops.MUL, np.prod), (Ops.MAX, np.max)])
def test_partial_values(op, f):
  """To make partial and to reduce is the identity; a reduction over two axes may run over one of them first."""
  a = integers(4, 6)
  x, y = M22.sub_axis("x"), M22.sub_axis("y")
  unreduced = Sharding.of(M22, (), (Partial((x, y), op),))
  for reduced in (Sharding(M22), Sharding(M22, P("x", None)), Sharding(M22, P(None, "y"))):
    check(placed(a, Sharding(M22)).move(unreduced, pinned=True).move(reduced, pinned=True), a)
  half = Sharding.of(M22, (), (Partial((y,), op),))
  check(
    placed(a, Sharding(M22)).move(unreduced, pinned=True).move(half, pinned=True).move(Sharding(M22), pinned=True), a
  )
  with Context(DEFER=1):
    u = placed(a, Sharding(M22, P("x", "y"))).r(op, (0, 1))
    assert u.device.partial
    check(u.move(Sharding.of(half.mesh, half.dims), pinned=True), f(a, keepdims=True))


def test_sums_that_are_deferred():
  a, c = integers(4, 6), integers(4, 1)
  with Context(DEFER=1):
    u = placed(a, Sharding(D2, 1)).r(Ops.ADD, (1,))
    assert u.device.partial
    check(u + placed(c, Sharding(D2)), a.sum(1, keepdims=True) + c)  # c is made partial: added once, not once a device
    check(u * 2.0 - u, a.sum(1, keepdims=True))


# ---- how they are carried out


def devices(n, kind="CPU"):
  return tuple(f"{kind}:{i}" for i in range(n))


def schedule_of(u):
  return create_schedule(localize(as_realized([u])))


def loaded_from_peers(schedule):
  """Bytes that each device loads through tables of peers, its own part included: an element once for every combination
  of the loops that its address depends on."""
  total = 0
  for item in schedule.items:
    for u in item.kernel.toposort():
      if u.op is Ops.LOAD and u.src[0].src[0].op is Ops.PEER:
        loops = [r for r in u.src[0].toposort() if r.op is Ops.RANGE]
        total += u.dtype.itemsize * int(np.prod([r.src[0].arg for r in loops]))
  return total


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_large_all_reduce_reads_twice_its_payload_and_not_n_times(n):
  large, small = (UOp.buffer((n, size), dtypes.float32, Sharding(devices(n, "NULL"), 0)) for size in (98304, 96))
  assert loaded_from_peers(schedule_of(small.r(Ops.ADD, (0,)))) == n * 4 * 96
  total = large.r(Ops.ADD, (0,))
  assert loaded_from_peers(schedule_of(total)) == 2 * 4 * 98304
  assert explain(total).wire == 2 * 4 * 98304 * (n - 1) / n  # what is another device's of it
  odd = UOp.buffer((n, 98304 + 1), dtypes.float32, Sharding(devices(n, "NULL"), 0))
  assert loaded_from_peers(schedule_of(odd.r(Ops.ADD, (0,)))) == n * 4 * (98304 + 1)


def test_the_groups_of_a_large_all_reduce_are_those_that_hold_parts():
  mesh = Mesh(devices(8, "NULL"), (4, 2), ("dp", "tp"))
  x = UOp.buffer((4, 64, 2048), dtypes.float32, Sharding(mesh, P("dp", None, "tp")))
  assert loaded_from_peers(schedule_of(x.r(Ops.ADD, (0,)))) == 2 * 4 * 64 * 1024
  both = UOp.buffer((4, 2, 64, 512), dtypes.float32, Sharding(mesh, P("dp", "tp")))
  for total in (both.r(Ops.ADD, (0, 1)), both.r(Ops.ADD, (0,)).r(Ops.ADD, (1,))):
    assert loaded_from_peers(schedule_of(total)) == 2 * 4 * 64 * 512
  mesh = Mesh(devices(8), (4, 2), ("dp", "tp"))
  a = integers(4, 2, 64, 512)
  x = placed(a, Sharding(mesh, P("dp", "tp")))
  np.testing.assert_array_equal(to_numpy(x.r(Ops.ADD, (0,)).r(Ops.ADD, (1,))), a.sum((0, 1), keepdims=True))
  for cuts in (P("dp", None, "tp"), P("dp", "tp"), P("tp", None, "dp"), P("dp")):
    a = integers(4, 64, 2048)
    for axes in (0, 2):
      got = placed(a, Sharding(mesh, cuts)).r(Ops.ADD, (axes,))
      np.testing.assert_array_equal(to_numpy(got), a.sum(axes, keepdims=True))


def tree(parts):
  """(x0 + x1) + (x2 + x3) …: neighbours by twos as long as their number is even, then one after the other."""
  while len(parts) > 1 and len(parts) % 2 == 0:
    parts = [a + b for a, b in zip(parts[::2], parts[1::2])]
  return functools.reduce(operator.add, parts)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 12])
@pytest.mark.parametrize("size", [96, 7 * 30720, 10007])
def test_parts_are_added_as_a_tree_over_the_numbers_of_the_devices(n, size):
  """In one step or two, of even blocks or not, scattered or not, interpreted too: each device holds the same bits."""
  a = RNG.standard_normal((n, size)).astype(np.float32)
  want = tree([*a])
  (u,) = realize(placed(a, Sharding(devices(n), 0)).r(Ops.ADD, (0,)))
  for i in range(n):
    assert host_array(buffer_of(u), i).tobytes() == want.tobytes()
  scattered = placed(a, Sharding(devices(n), 0)).r(Ops.ADD, (0,)).move(Sharding(devices(n), 1), pinned=True)
  check(realize(scattered)[0], want[None])
  check(placed(a, Sharding(devices(n), 0)).r(Ops.ADD, (0,)) * 2.0, want[None] * 2)
  if n > 3 and n % 2 == 0:
    assert want.tobytes() != functools.reduce(operator.add, a).tobytes(), "another order has the same bits"


@pytest.mark.parametrize(
  "shape,names", [((2, 3, 2), "xz"), ((2, 2, 2), "xz"), ((4, 3), "x"), ((2, 6), "y"), ((3, 4), "xy")]
)
def test_a_group_of_devices_adds_in_the_order_of_their_numbers(shape, names):
  """The inner axes of a mesh first, whatever else cuts the value."""
  mesh = Mesh(devices(int(np.prod(shape))), shape, tuple("xyz"[: len(shape)]))
  n = int(np.prod([shape["xyz".index(name)] for name in names]))
  a = RNG.standard_normal((n, 5, 48)).astype(np.float32)
  rest = tuple(name for name in mesh.names if name not in names)
  parts = a.reshape(*(shape["xyz".index(name)] for name in names), 5, 48)
  want = parts if len(names) > 1 and n % 2 == 0 and names != "xy" else a[None]
  want = tree([tree([*inner]) for inner in want])
  for cut in (None, rest or None):
    check(placed(a, Sharding(mesh, P(tuple(names), None, cut))).r(Ops.ADD, (0,)), want[None])


def sums(shape, names, dtype=np.float32):
  """All-reduces and reduce-scatters over all axes of a mesh or some, along any dim, beside other cuts; planned anew."""
  _plans.clear()
  mesh = Mesh(devices(int(np.prod(shape))), shape, tuple("xyz"[: len(shape)]))
  n = int(np.prod([shape["xyz".index(name)] for name in names]))
  rest, names = tuple(name for name in mesh.names if name not in names) or None, tuple(names)
  a = (np.random.default_rng(3).standard_normal((n, 16, 48)) * 100).astype(dtype)
  for cut in (None, rest):
    with Context(REDUCE_DTYPE=a.dtype.name):
      total = placed(a, Sharding(mesh, P(names, None, cut))).r(Ops.ADD, (0,))
    specs = [P(None, names, cut), P(None, None, (*(cut or ()), *names)), P(None, names[::-1], cut), P(None, names[:1])]
    for placement in (total.device.reduced, *(Sharding(mesh, spec) for spec in specs)):
      u = total.move(placement, pinned=True)
      yield len(schedule_of(u).items), to_numpy(*realize(u)).tobytes()


@pytest.mark.parametrize("near", [2, 3, 4])
@pytest.mark.parametrize(
  "shape,names", [((8,), "x"), ((2, 4), "x"), ((2, 2, 2), "xz"), ((4, 2), "xy"), ((2, 2, 3), "xy"), ((12,), "x")]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sums_by_levels_have_the_bits_of_sums_in_one(near, shape, names, dtype, monkeypatch):
  """As if `near` devices in a row reached each other, and no others."""
  one = [*sums(shape, names, dtype)]
  monkeypatch.setattr(reach, "in_a_row", lambda devices: near)
  found = [*sums(shape, names, dtype)]
  assert [bits for _, bits in found] == [bits for _, bits in one]
  apart = dtype != np.float16 and near in {(8,): (2, 4), (2, 2, 2): (2, 4), (4, 2): (2, 4), (12,): (2, 4)}.get(
    shape, ()
  )
  assert any(there > here for (here, _), (there, _) in zip(one, found)) == apart


@pytest.mark.parametrize("dtype,fault", [(np.float32, "order"), (np.float16, "rounded")])
def test_sums_by_wrong_levels_have_other_bits(dtype, fault, monkeypatch):
  """Of three devices in a row where twelve are added by twos; of halves that are rounded in between."""
  one = [bits for _, bits in sums((12,), "x", dtype)]
  monkeypatch.setattr(reach, "in_a_row", lambda devices: 3 if fault == "order" else 2)
  if fault == "order":
    monkeypatch.setattr(device_sums, "near_and_far", lambda sub_axes, devices: ((SubAxis(3, 1),), (SubAxis(4, 3),)))
  else:
    monkeypatch.setattr(parts, "HALVES", ())
  assert [bits for _, bits in sums((12,), "x", dtype)] != one


def test_a_kernel_that_alone_reads_a_communication_loads_from_the_peers_itself():
  x = UOp.buffer((4, 64), dtypes.float32, Sharding(devices(2, "NULL"), 0))
  total = x.r(Ops.ADD, (0,))
  once = schedule_of((total + 1.0).alu(Ops.SQRT))
  assert [i.peers for i in once.items] == [False, True]
  assert len(schedule_of((total + 1.0).alu(Ops.SQRT) * total).items) == 2  # one reader that uses it twice
  columns = (total.reshape((64,)) + 1.0).r(Ops.ADD, (0,)) * total.reshape((64,)).r(Ops.MAX, (0,))
  assert sum(i.peers for i in schedule_of(columns).items) == 1  # more than one reader: stored
  product = matmul(total.reshape((8, 8)), UOp.buffer((8, 8), dtypes.float32, Sharding(devices(2, "NULL"))))
  assert [i.peers for i in schedule_of(product).items] == [False, True, False]  # each element is read many times


def test_communications_within_one_kernel():
  """Two with equal templates, their values in one expression, and one within another's reader."""
  a, b = integers(3, 12), integers(3, 12)
  x, y = (placed(v, Sharding(D3, 0)).r(Ops.ADD, (0,)) for v in (a, b))
  z = placed(b, Sharding(D3, 1)).move(Sharding(D3), pinned=True)
  check(
    x * 2.0 + y * y.shrink(((0, 1), (2, 3))).expand((1, 12)),
    a.sum(0, keepdims=True) * 2 + b.sum(0, keepdims=True) * b.sum(0)[2],
  )
  check(z * 3.0 + x.expand((3, 12)), b * 3 + a.sum(0, keepdims=True))


@pytest.mark.parametrize("p,q", [(Sharding(D2, 0), Sharding(D2, 1)), (Sharding(D3, 1), Sharding(D3, 0))], ids=str)
def test_no_peer_reads_what_an_assign_has_overwritten(p, q):
  """x = x.T + 1, again and again: each device reads the others' old parts through the move."""
  a = integers(300, 300)
  (x,) = realize(placed(a, p) * 1.0)
  for i in range(1, 9):
    realize(x.assign(x.move(q, pinned=True).permute((1, 0)) + 1.0))
    np.testing.assert_array_equal(to_numpy(x), (a.T if i % 2 else a) + i)


def poison(names):
  """Leaves memory full of NaN behind, of the sizes that a training step asks for."""
  for name in names:
    kept = [Buffer(name, (size,), dtypes.uint8).allocate() for size in range(64, 64 * 65, 64) for _ in range(4)]
    for buffer in kept:
      Device[name].view(buffer.handle())[:] = b"\xff" * buffer.shape[0]


@pytest.mark.parametrize("cuts", [(None, None), (0, 1)])
def test_training_gives_the_same_bits_every_time(cuts):
  """The same sharded steps, five times, each with new plans and in memory with other content before."""
  names = devices(4)

  def train():
    rng = np.random.default_rng(5)
    w1, w2 = (Tensor(rng.standard_normal((96, 96)).astype(np.float32)).shard(names, axis=c) for c in cuts)
    x = Tensor(rng.standard_normal((31, 96)).astype(np.float32)).shard(names, axis=0)  # an uneven cut
    weights = [w1.requires_grad_(), w2.requires_grad_()]
    optimizer = nn.optim.Adam(weights, lr=1e-2)
    losses = []
    with Tensor.train():
      for _ in range(3):
        optimizer.zero_grad()
        loss = ((x @ w1).relu() @ w2).square().mean().backward()
        optimizer.step()
        losses.append(loss.numpy().tobytes())
    replicas = [[s.numpy().tobytes() for s in w.shards] for w in weights]
    if cuts[0] is None:
      assert all(len(set(r)) == 1 for r in replicas)
    return losses, replicas

  results = []
  for _ in range(5):
    _plans.clear()
    poison(names)
    results.append(train())
  assert np.isfinite(np.frombuffer(results[0][0][-1], np.float32)).all()
  assert all(r == results[0] for r in results[1:])


def test_a_device_whose_block_is_empty_reads_nothing():
  """Of a dim of length one that is cut in two. (What it would read lies beyond the others' memory.)"""
  mesh = Mesh(devices(4, "NULL"), (2, 2), ("x", "y"))
  x = UOp.buffer((8, 1, 6), dtypes.float32, Sharding(mesh, P(None, None, "y")))
  (kernel,) = (i.kernel for i in schedule_of(x.move(Sharding(mesh, P("x", "y")), pinned=True)).items if i.peers)
  read = [elements_read(kernel, (), (d,), 4) for d in range(4)]
  assert read == [{(1, 1): (slice(0, 12), 4)}, {}, {(1, 3): (slice(0, 12), 4)}, {}]
