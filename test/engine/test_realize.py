"""realize, counters, host copies and the PYTHON device."""

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, Variable, dtypes
from tinygrad.debug.estimate import estimate
from tinygrad.device import Sharding
from tinygrad.engine import program_order
from tinygrad.engine.canonical import canonical
from tinygrad.engine.compile import _programs
from tinygrad.engine.errors import UnboundError
from tinygrad.engine.realize import realize
from tinygrad.helpers import Context, GlobalCounters, living
from tinygrad.mixin.arrays import to_numpy
from tinygrad.runtime.python import assemble
from tinygrad.runtime.transfer import host_array
from tinygrad.uop import Ops, UOp, buffer_of

D2, P2 = ("CPU:0", "CPU:1"), ("PYTHON:0", "PYTHON:1")
RNG = np.random.default_rng(3)


def array(*shape):
  return RNG.standard_normal(shape, dtype=np.float32)


def test_a_root_gets_a_buffer_and_a_view_of_one_stays_a_view():
  (x,) = realize((Tensor(array(4, 6)) + 1).uop)
  assert x.op is Ops.BUFFER
  GlobalCounters.reset()
  (v,) = realize(x.shrink(((1, 3), (0, 6))).reshape((12,)))
  assert v.base is x and GlobalCounters.kernel_count == 0


def test_one_root_asked_for_twice_is_computed_once():
  u = (Tensor(array(4)).realize() + 1).uop
  GlobalCounters.reset()
  a, b = realize(u, u)
  assert a is b and GlobalCounters.kernel_count == 1


def test_counters():
  x, w = Tensor(array(32, 64)).realize(), Tensor(array(64, 16)).realize()
  GlobalCounters.reset()
  (x @ w).realize()
  assert GlobalCounters.kernel_count == 1
  assert GlobalCounters.global_ops == 2 * 32 * 64 * 16
  assert GlobalCounters.global_mem == 4 * (32 * 64 + 64 * 16 + 32 * 16)
  GlobalCounters.reset()
  (x.shard(D2, axis=0) @ w.shard(D2)).realize()
  assert GlobalCounters.global_ops == 2 * 32 * 64 * 16


def test_memory_in_use_goes_back():
  before = GlobalCounters.mem_used
  t = (Tensor(array(1000)) + 1).realize()
  assert GlobalCounters.mem_used == before + 4000
  del t
  assert GlobalCounters.mem_used == before


def test_debug_lines(capsys):
  x = Tensor(array(8, 8)).realize()
  with Context(DEBUG=2):
    (x + 1).realize()
  out = capsys.readouterr().out
  assert "CPU" in out and "E_64" in out and "GFLOP/s" in out and "GB/s" in out
  with Context(DEBUG=1):
    (x + 2).realize()
  assert "E_64" in capsys.readouterr().out


def test_kernels_are_compiled_once():
  x = Tensor(array(5, 11)).realize()
  (x * 7).realize()
  count = len(_programs)
  (Tensor(array(5, 11)).realize() * 7).realize()
  Tensor.realize(x * 7)
  assert len(_programs) == count


def test_estimate_names_and_counts():
  r = UOp.new(Ops.RANGE, dtypes.index, (UOp.const(dtypes.index, 5),), (0, None))
  assert estimate(UOp.sink(r)).name == "E_5"


def test_each_device_receives_its_own_slice_only():
  a = array(6, 4)
  t = Tensor(a).shard(D2, axis=0).realize()
  buffer = buffer_of(t.uop)
  assert buffer.nbytes_per_device == a.nbytes // 2
  np.testing.assert_array_equal(host_array(buffer, 1), a[3:])


def test_unbound_variable():
  x = Tensor(array(8))
  with pytest.raises(UnboundError, match="variable n has no value"):
    x[: Variable("n", 1, 8)].sum().realize()


def test_variable_with_two_values():
  x, n = Tensor(array(8)), Variable("n", 1, 8)
  with pytest.raises(ValueError, match="bound to 2 and to 3"):
    (x[: n.bind(2)].sum() + x[: n.bind(3)].sum()).realize()


@pytest.mark.parametrize("placement", ["PYTHON", Sharding(P2, 0), Sharding(P2, 1), Sharding(P2)], ids=str)
def test_python_device(placement):
  a, b = array(5, 6), array(6, 3)
  x, w = Tensor(a, device=placement), Tensor(b, device="PYTHON" if isinstance(placement, str) else Sharding(P2))
  y = ((x @ w).relu() + 1).softmax(axis=-1)
  e = np.exp(np.maximum(a @ b, 0) + 1)
  np.testing.assert_allclose(y.numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
  x = x.realize()
  x.assign(x * 2)
  np.testing.assert_array_equal(x.numpy(), a * 2)


def test_jit_on_the_python_device():
  w = Tensor([1.0, 2.0], device="PYTHON").realize()
  f = TinyJit(lambda x: (x * w).sum())
  for k in range(5):
    assert f(Tensor([1.0 * k, 1.0], device="PYTHON")).item() == k + 2


def test_replicas_that_differ_are_found():
  p = Sharding(P2)
  with pytest.raises(AssertionError, match="replicas"):
    assemble([np.zeros(3, np.float32), np.array([0, 0, -0.0], np.float32)], p, (3,), (3,))


def test_constants_of_several_devices_are_read_by_one():
  """Nothing but what reads them tells how many devices hold them."""
  with Context(INTERPRET=1):
    y = Tensor.full((5, 5), 3.0, device=Sharding(P2, 1)) + 20
    np.testing.assert_array_equal(y.to("PYTHON").numpy(), np.full((5, 5), 23.0))


def test_padding_of_an_uneven_block_is_poison():
  """Memory that nothing may read holds nan: a program that reads it shows."""
  t = Tensor(array(5, 2), device=Sharding(P2, 0)).realize()
  last = host_array(buffer_of((t + 0.0).realize().uop), 1)
  assert np.isnan(last[2]).all() and not np.isnan(last[:2]).any()


def test_to_numpy_is_a_copy():
  t = Tensor(array(3)).realize()
  a = to_numpy(t.uop)
  a[:] = 7
  assert not (t.numpy() == 7).any()


def test_cross_device_copy():
  a = array(4, 4)
  x = Tensor(a, device="CPU:0").realize()
  y = x.to("CPU:1") + 1
  assert y.device == "CPU:1"
  np.testing.assert_array_equal((y.to("CPU:0") + x).numpy(), a + 1 + a)
  z = y.shard(("CPU:2", "CPU:3"), axis=1)
  np.testing.assert_array_equal((z * 2).numpy(), (a + 1) * 2)


def test_views_and_arithmetic_of_host_arrays():
  a = array(4, 6)
  u = UOp.from_numpy(a)
  np.testing.assert_array_equal(to_numpy(u.shrink(((1, 3), (0, 6))).permute((1, 0))), a[1:3].T)
  np.testing.assert_array_equal(to_numpy(u + 1.0), a + 1)
  v = to_numpy(u)
  v[:] = 0
  assert a.any()


def test_a_step_does_not_look_into_values_that_are_older_than_what_it_writes(monkeypatch):
  """As the parameters of layers that were stacked: they live on, and nobody asks for them."""

  def visited(bystanders):
    older = [Tensor.rand(8) * i + 1 for i in range(bystanders)]
    w = Tensor.ones(8).contiguous().realize()
    newer = w * 3
    seen, toposort = [], UOp.toposort
    with monkeypatch.context() as m:
      m.setattr(UOp, "toposort", lambda *args: seen.append(found := toposort(*args)) or found)
      w.assign(w * 2 + 1).realize()
    assert w.tolist() == [3] * 8 and newer.tolist() == [3] * 8 and len(older) == bystanders
    return sum(map(len, seen))

  visited(1)
  assert visited(50) == visited(1)


@pytest.mark.parametrize(
  "work",
  (
    lambda x: (x + 1).realize(),
    lambda x: x.assign(x * 2).realize(),
    lambda x: x[1:3].assign(x[0:2]).realize(),
    lambda x: (x.contiguous().requires_grad_() * 2).sum().realize(),
    lambda x: Tensor.rand(4).realize(),
  ),
)
def test_a_realize_does_not_look_at_all_that_lives(monkeypatch, work):
  """However many tensors have memory beside. (Mutant: `standing` is `live`.)"""
  x, looked_at = Tensor([1.0, 2.0, 3.0, 4.0]).realize(), list[int]()
  monkeypatch.setattr(program_order, "living", lambda held: looked_at.append(len(found := living(held))) or found)
  costs = []
  for _ in range(2):
    looked_at.clear()
    work(x)
    costs.append(sum(looked_at))
    beside = [Tensor.empty(2) for _ in range(100)]
  assert len(beside) == 100 and costs[1] <= costs[0] + 2


@pytest.mark.parametrize("interpreted", [0, 1])
def test_constants_are_where_they_are_read_beside_more_devices(interpreted):
  """Mutant: the interpreter has a constant on as many devices as there are in the graph, where a cut of fewer has no
  block."""
  three, four = (Tensor.zeros(4).contiguous().shard([f"CPU:{i}" for i in range(n)], axis=0).realize() for n in (3, 4))
  three.assign(Tensor.full((4,), 2.0))
  four.assign(Tensor.full((4,), 3.0))
  with Context(INTERPRET=interpreted):
    Tensor.realize(three, four)
  assert three.tolist() == [2.0] * 4 and four.tolist() == [3.0] * 4


@pytest.mark.parametrize(
  "again", [lambda m: m.max(), lambda m: m.reshape(()), lambda m: m * 1], ids=["max", "reshape", "of the same numbers"]
)
def test_equal_values_that_are_computed_before_a_capture_share_no_memory(again):
  """Mutant: each of them is taken for the owner of the buffer that they have in common."""
  x = Tensor([1.0, 2.0]).realize()
  x.assign(x + 1)
  a = x.max()
  b = again(a)
  step = TinyJit(lambda y: y + 1)
  for _ in range(3):
    step(Tensor([1.0]).realize())
  a.assign(a + 1)
  assert (a.item(), b.item(), x.tolist()) == (4.0, 3.0, [2.0, 3.0])


def test_variables_come_in_the_order_of_their_names():
  """Whatever their values: what processes are about to do is compared by its text."""
  names = [f"v{i}" for i in range(9)]
  x = sum(Tensor(Variable(name, 0, 9).bind(4)) for name in reversed(names))
  assert list(canonical(UOp.sink(x.uop))[2].items()) == [(name, 4) for name in names]
