"""The CUDA backend over an emulated driver (cuda_emulator.py), which runs what is queued in the worst order that events
allow and notes what a GPU would do silently; and what NVRTC says. A machine with a GPU: `python -m extra.gpu_check`."""

import contextlib
import importlib.util
import math
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import cuda_emulator
import ml_dtypes
import numpy as np
import pytest
from packaging.requirements import Requirement

from tinygrad import Tensor, TinyJit, Variable, codegen, vmap
from tinygrad.codegen import linearize
from tinygrad.device import Device, DeviceError
from tinygrad.device.reach import within_reach
from tinygrad.dtype import dtypes
from tinygrad.engine import compile as engine
from tinygrad.helpers import PROCESS, Context
from tinygrad.numerics import own_memory, split_sums, streaming
from tinygrad.renderer import mma
from tinygrad.runtime import cuda, queues
from tinygrad.schedule import row_groups, tile_and_fuse
from tinygrad.uop import AxisKind, Ops

if not cuda_emulator.has_compiler():
  pytest.skip("the emulated driver compiles kernels for the host with g++", allow_module_level=True)

FOUR = tuple(f"EMULATED:{i}" for i in range(4))  # two physical devices, in two each
has_nvrtc = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("nvidia") is not None


@pytest.fixture(scope="module")
def module():
  """The backend, with its four devices open."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("CUDA_VIRTUAL", "2")
    found = cuda_emulator.install(devices=2)
    found.driver.enabled.add((0, 1))  # as if another library of the process had done so
    for name in FOUR:
      Device[name].synchronize()
    yield found


@pytest.fixture(params=["lazy", "eager", "shuffled"])
def driver(module, request):
  driver = module.driver
  driver.order, driver.table_length = request.param, 4
  driver.calls.clear(), driver.launched.clear(), driver.faults.clear()
  yield driver
  for name in FOUR:
    Device[name].synchronize()
  driver.order = "eager"
  assert driver.faults == []


@pytest.fixture
def lazy(module):
  """Where the order is of no interest. Whatever a test breaks is whole again after it."""
  driver = module.driver
  driver.order = "lazy"
  driver.calls.clear(), driver.faults.clear()
  yield driver
  driver.broken.clear(), driver.refuse.clear(), driver.unknown.clear(), module.lost.clear()
  driver.capacity = 1 << 30
  for name in FOUR:
    Device[name].synchronize()
    Device[name].pool.clear()
    Device[name].pooled = 0
  assert driver.faults == []


@contextlib.contextmanager
def replaced(driver, name, function):
  """A driver in which one function is another."""
  setattr(driver, name, function)
  try:
    yield
  finally:
    delattr(driver, name)


def normal(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x):
  e = np.exp(x - x.max(1, keepdims=True))
  return e / e.sum(1, keepdims=True)


# ---------------------------------------------------------------- order


@pytest.mark.parametrize("rows", [15, 200])
def test_places_are_computed_from_what_lies_in_local_memory(lazy, rows):
  x, w = normal(0, rows, 8), normal(1, 8, 6)
  got = vmap(lambda row: row[row.argsort(0)])(Tensor(x, device=FOUR[0]) @ Tensor(w, device=FOUR[0])).numpy()
  np.testing.assert_allclose(got, np.sort(x @ w, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("barrier", [True, False])
def test_lanes_that_meet_by_registers_order_nothing_in_memory(lazy, barrier, monkeypatch, fresh):
  """A row's sum so far, which all its lanes read and one writes, lies in the group's memory where nests share rows out
  differently: cores one way, a product whose rows are no whole vectors another."""
  monkeypatch.setattr(Device[FOUR[0]], "target", cuda.target_of((9, 0), 132, 227 << 10))
  if not barrier:
    monkeypatch.setattr(linearize, "is_own", lambda memory: True)
  x, y, z = (
    Tensor(normal(i, *s), device=FOUR[0]).cast("bfloat16") for i, s in enumerate([(64, 64), (64, 64), (64, 33)])
  )
  got = ((x @ y).softmax(-1) @ z).float().numpy()
  a, b, c = (t.float().numpy() for t in (x, y, z))
  np.testing.assert_allclose(got, softmax(a @ b) @ c, atol=0.1)
  assert any("written while another thread may read it" in fault for fault in lazy.faults) != barrier
  lazy.faults.clear()


def test_sharded_programs_in_every_order(driver):
  x, a, b = normal(0, 13, 70), normal(1, 9, 32), normal(2, 32, 6)
  got = Tensor(x).shard(FOUR, axis=1).softmax(-1).sum(0).numpy()
  np.testing.assert_allclose(got, softmax(x).sum(0), rtol=1e-5)
  got = Tensor(a).shard(FOUR, axis=1) @ Tensor(b).shard(FOUR, axis=0)
  np.testing.assert_allclose(got.relu().numpy(), np.maximum(a @ b, 0), rtol=1e-4, atol=1e-5)
  moved = Tensor(a).shard(FOUR, axis=0).shard(FOUR, axis=1) + 1  # all to all
  np.testing.assert_array_equal(moved.numpy(), a + 1)
  assert "cuStreamWaitEvent" in driver.calls and ("cuMemcpyPeerAsync" in driver.calls) != bool(driver.reach)


def test_bfloat16_is_converted_by_the_processor_and_functions_are_its_library_s(module, lazy, monkeypatch):
  """Every bfloat16 and what lies about the middle of two, and the infinities, by the instruction; from sm_80 on."""
  wide = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
  x = np.concatenate([(wide.view(np.uint32) + n).view(np.float32) for n in (0, 1, 0x7FFF, 0x8000, 0x8001)])
  found, compile_source = [], module.compile_source
  monkeypatch.setattr(module, "compile_source", lambda x, *rest: found.append(x) or compile_source(x, *rest))
  with np.errstate(invalid="ignore"):
    want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
  got = Tensor(x, device=FOUR[0]).cast("bfloat16").cast("float32").numpy()
  np.testing.assert_array_equal(got, want)
  assert np.signbit(got[~np.isnan(x)]).tolist() == np.signbit(want[~np.isnan(x)]).tolist()
  assert any("= bfloat16_of_float(" in source for source in found)
  assert cuda.target_of((7, 5), 40, 0).converts == (dtypes.float16,)
  a = np.linspace(-3, 3, 1000).astype(np.float32)
  for name in ("exp", "tanh", "erf", "log"):
    y = getattr(Tensor(np.abs(a) if name == "log" else a, device=FOUR[0]), name)().numpy()
    assert np.allclose(y, getattr(Tensor(np.abs(a) if name == "log" else a), name)().numpy(), rtol=3e-7, atol=3e-7)
    assert f"= {name}(" in found[-1]


def test_devices_that_do_not_meet_read_what_is_not_there_yet(module, lazy, monkeypatch):
  """The emulator would tell a missing barrier."""
  x = normal(0, 8, 4)
  there = Tensor(x).shard(FOUR, axis=0).realize()
  np.testing.assert_allclose(((there + 1).sum(0) * 2).numpy(), ((x + 1).sum(0) * 2), rtol=1e-5)
  monkeypatch.setattr(module.CUDA, "meet", lambda self, devices: None)
  wrong = ((there + 2).sum(0) * 2).numpy()
  assert not np.allclose(wrong, (x + 2).sum(0) * 2)
  for name in FOUR:
    Device[name].synchronize()
  lazy.faults.clear()


def step(devices, driver=None):
  """Six calls of a captured step with memory of its own, other inputs and a variable: its results."""
  weight = Tensor(normal(3, 12, 8)).shard(devices, axis=0).realize()

  @TinyJit
  def f(x, n):
    loss = ((x @ weight).relu() * n).sum(0)
    weight.assign(weight - loss * 0.01).realize()
    return loss.realize()

  out = []
  for i in range(6):
    if driver is not None:
      driver.calls.clear()
    n = Variable("n", 1, 9).bind(1 + i // 2)
    out.append(f(Tensor(normal(10 + i, 8, 12)).shard(devices, axis=1).realize(), n).numpy())
  return out


def test_a_replayed_step_is_one_launch_with_its_arguments_changed(driver):
  got = step(FOUR, driver)
  for ours, theirs in zip(got, step(("CPU:0", "CPU:1", "CPU:2", "CPU:3"))):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
  assert driver.calls.count("cuGraphLaunch") == 1
  assert driver.calls.count("cuGraphInstantiate") == 0 < driver.calls.count("cuGraphExecKernelNodeSetParams")


def test_devices_meet_at_two_waits_each(lazy):
  devices = [Device[name] for name in FOUR]
  lazy.calls.clear()
  devices[2].meet(devices)
  assert lazy.calls.count("cuStreamWaitEvent") == 6  # all pairs would be 12


def test_each_device_begins_to_gather_with_its_own_part(lazy, monkeypatch):
  turns, run_kernel = {}, cuda_emulator.Driver.kernel

  def kernel(self, stream, function, grid, block, words, *more):
    if any("turn" in p for p in function.parameters):
      turns[self.streams.index(stream)] = words[-2].value, grid[0]
    run_kernel(self, stream, function, grid, block, words, *more)

  monkeypatch.setattr(cuda_emulator.Driver, "kernel", kernel)
  x = normal(1, 64, 512)
  np.testing.assert_array_equal(Tensor(x).shard(FOUR, axis=0).realize().shard(FOUR).numpy(), x)
  groups = {g for _, g in turns.values()}
  assert len(groups) == 1 and groups.pop() > 4
  assert sorted(t for t, _ in turns.values()) == [d * g // 4 for d, (_, g) in enumerate(turns.values())]


def test_a_plan_from_disk_has_the_same_kernels(lazy, monkeypatch, tmp_path):
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  plain, planned = engine.make_plan, []
  monkeypatch.setattr(engine, "make_plan", lambda sink, *first: planned.append(sink) or plain(sink, *first))
  x = normal(1, 64, 512)

  def gathered():
    rows = Tensor(x).shard(FOUR, axis=0).softmax(1).realize()
    return rows.shard(FOUR).numpy()  # by a kernel in which each device begins with its own part

  with Context(PLAN_CACHE=1, SPEC=1):
    first = []
    for n in (True, False):
      with PROCESS.anew():
        first.append(gathered().tobytes())
      assert bool(planned) is n
      planned.clear()
  assert first[0] == first[1]


def test_what_changes_between_launches_lies_in_memory_and_no_node_is_told(driver):
  """A position, say, in many kernels of a step: one copy, and nothing that the host waits for."""
  x, w = normal(1, 8, 12), normal(2, 12, 12)
  there, weight = (Tensor(v).shard(FOUR, axis=0).realize() for v in (x, w))

  @TinyJit
  def f(t, n):
    y = (t @ weight) * n
    return ((y.relu() @ weight).sum(0) + n).realize()

  for i in range(9):
    driver.calls.clear()
    out = f(there, Variable("n", 1, 99).bind(3 * i + 1))
    called, n = list(driver.calls), 3 * i + 1
    want = (np.maximum(x @ w * n, 0) @ w).sum(0) + n
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-4)
    del out  # else the next call fills other memory, of which the graph has to be told
    if i > 4:  # run, captured, replayed, made a graph; then the variable has moved
      assert called.count("cuMemcpyHtoDAsync") == 4 and called.count("cuGraphLaunch") == 1
      assert not {"cuGraphExecKernelNodeSetParams", "cuLaunchKernel"} & set(called)
      assert not {"cuStreamSynchronize", "cuEventSynchronize"} & set(called)


def test_a_graph_is_told_of_the_kernels_alone_whose_arguments_are_others(lazy):
  """Not of those that read peers by a table, which is written anew where it lies."""
  jit = TinyJit(lambda x: ((x.shard(FOUR) * 2 + 1).sum(0)).realize())
  for i in range(6):
    x = Tensor(normal(i, 8, 4)).shard(FOUR, axis=0).realize()
    lazy.calls.clear()
    out = jit(x)
    called = list(lazy.calls)
    np.testing.assert_allclose(out.numpy(), (normal(i, 8, 4) * 2 + 1).sum(0), rtol=1e-4, atol=1e-4)
    del out
  assert called.count("cuGraphLaunch") == 1 and called.count("cuMemcpyHtoDAsync") >= 4  # the tables
  assert "cuGraphExecKernelNodeSetParams" not in called


def test_a_replay_with_other_inputs_waits_for_nothing(driver):
  jit = TinyJit(lambda x: (x.sum(0) * 2 + x).realize())
  given = [Tensor(normal(i, 8, 4)).shard(FOUR, axis=0).realize() for i in range(8)]
  out = []
  for i, x in enumerate(given):
    if i == 5:
      driver.calls.clear()
    out.append(jit(x))
  assert not {"cuStreamSynchronize", "cuEventSynchronize"} & set(driver.calls)
  for i, y in enumerate(out):
    np.testing.assert_allclose(y.numpy(), normal(i, 8, 4).sum(0) * 2 + normal(i, 8, 4), rtol=1e-5, atol=1e-5)


def reductions(i, w):
  """What is written elsewhere is read: sums over all devices, behind them what is computed on each."""
  x = normal(i, 8, 4) + 3
  t = Tensor(x).shard(FOUR, axis=0).realize()

  def step(t):
    z = (t * 2) @ w
    u = ((t + 1).sum(0).relu() * 2).shard(FOUR, axis=0)
    return ((u.sum() + z.sum(0)) * (u + z.sum(0))).realize()

  y, z = np.maximum((x + 1).sum(0), 0) * 2, (x * 2) @ normal(8, 4, 4)
  return step, t, (y.sum() + z.sum(0)) * (y + z.sum(0))


def updates(i, w):
  """What others read is written: a state that is gathered, and then a step further."""
  x = normal(i, 4, 4)

  def step(t):
    y = (w.shard(FOUR) * t).realize()
    w.assign(w + 1).realize()
    return y

  return step, Tensor(x).shard(FOUR).realize(), x * (normal(8, 4, 4) + i)


@pytest.mark.parametrize(("program", "edges"), [(reductions, "writer"), (updates, "readers")])
def test_a_graph_without_its_edges_is_wrong(module, driver, program, edges, monkeypatch):
  """The emulator runs a graph's nodes in the worst order that its edges allow."""
  right, real = {}, module.Graph.behind

  def behind(self, chain, nodes):
    kind = self.writer.values() if edges == "writer" else [n for of in self.readers.values() for n in of]
    return real(self, chain, [n for n in nodes if all(n is not x for x in kind)])

  for whole in (True, False):
    if not whole:
      monkeypatch.setattr(module.Graph, "behind", behind)
    w, jit = Tensor(normal(8, 4, 4)).shard(FOUR, axis=0).realize(), None
    for i in range(7):
      step, t, want = program(i, w)
      jit = jit or TinyJit(step)
      right[whole, i] = np.allclose(jit(t).numpy(), want, rtol=1e-3, atol=1e-3)
  assert all(right[True, i] for i in range(7)), right
  assert driver.order != "lazy" or not all(right[False, i] for i in range(3, 7)), right


def ancestors(node):
  seen, waiting = {}, list(node.before)
  while waiting:
    if id(n := waiting.pop()) not in seen:
      seen[id(n)] = n
      waiting += n.before
  return seen


def test_devices_move_values_while_they_compute_what_does_not_need_them(lazy, monkeypatch):
  graphs, instantiate = [], cuda_emulator.Driver.cuGraphInstantiate
  monkeypatch.setattr(
    cuda_emulator.Driver, "cuGraphInstantiate", lambda self, g, flags: graphs.append(g) or instantiate(self, g, flags)
  )
  a, b = (Tensor(normal(k, 8, 8)).shard(FOUR, axis=0).realize() for k in (1, 2))

  @TinyJit
  def f(x, y):
    first = (x * 3 - 1).sum(0)  # is reduced while
    second = (y.exp() * 2).sin()  # this is computed
    Tensor.realize(first, second)
    return first, second

  for _ in range(5):
    first, second = f(a, b)
  np.testing.assert_allclose(first.numpy(), (normal(1, 8, 8) * 3 - 1).sum(0), rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(second.numpy(), np.sin(np.exp(normal(2, 8, 8)) * 2), rtol=1e-4, atol=1e-4)
  (graph,) = graphs
  kernels = [n for n in graph if n.params is not None]
  moves = [n for n in kernels if any("const unsigned long long*" in p for p in n.params[0].parameters)]
  compute = [n for n in kernels if n not in moves]
  assert len(moves) == 4 and len(compute) >= 8
  for move in moves:  # each behind the sums of all devices
    assert len([n for n in compute if id(n) in ancestors(move)]) >= 4
    assert not [n for n in compute if id(move) in ancestors(n)]
  free = [n for n in compute if not any(id(n) in ancestors(move) for move in moves)]
  assert len(free) >= 4, "some of the computation has nothing to do with the move"
  assert sum(len(n.before) for n in graph) <= 2 * len(graph)


def test_the_kernels_of_one_device_are_one_chain(lazy, monkeypatch):
  """No edge says what another says."""
  graphs, instantiate = [], cuda_emulator.Driver.cuGraphInstantiate
  monkeypatch.setattr(
    cuda_emulator.Driver, "cuGraphInstantiate", lambda self, g, flags: graphs.append(g) or instantiate(self, g, flags)
  )
  w = Tensor(normal(1, 8, 8), device=FOUR[1]).realize()
  jit = TinyJit(lambda x: ((((x @ w).relu() @ w + x.sum(0) @ w).softmax() @ w).relu() @ w @ w).realize())
  for i in range(4):
    jit(Tensor(normal(i, 8, 8), device=FOUR[1]).realize())
  (graph,) = graphs
  assert len(graph) > 2 and [len(n.before) for n in graph] == [0] + [1] * (len(graph) - 1)


def test_replays_neither_leak_memory_nor_wait_for_the_host(lazy):
  jit = TinyJit(lambda x, y: (x @ y).relu().realize())
  args = [
    Tensor(normal(1, 4, 16)).shard(FOUR, axis=1).realize(),
    Tensor(normal(2, 16, 4)).shard(FOUR, axis=0).realize(),
  ]
  held = []
  for i in range(9):
    if i == 8:
      lazy.calls.clear()
    out = jit(*args) if i % 2 else jit(args[0] if i > 6 else args[0].clone().realize(), args[1])
    held.append(len(lazy.memory))
  assert held[-1] <= held[5], held
  assert "cuGraphLaunch" in lazy.calls and "cuLaunchKernel" not in lazy.calls
  assert not {"cuMemAlloc", "cuMemFree"} & set(lazy.calls)
  np.testing.assert_allclose(out.numpy(), np.maximum(normal(1, 4, 16) @ normal(2, 16, 4), 0), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("nbytes", [0, 5, 1000, 10_007])
def test_copies_go_through_two_halves_of_pinned_memory(module, driver, monkeypatch, nbytes):
  monkeypatch.setattr(module, "HALF", 1000)
  device = module.CUDA("EMULATED:1")
  data = np.random.default_rng(0).integers(0, 256, nbytes).astype(np.uint8)
  handle = device.alloc(nbytes + 64)
  device.copyin(handle, memoryview(data), 64)
  out = np.zeros(nbytes, np.uint8)
  device.copyout(memoryview(out), handle, 64)
  np.testing.assert_array_equal(out, data)
  shifted = np.zeros(max(nbytes - 3, 0), np.uint8)
  device.copyout(memoryview(shifted), handle, 67)
  np.testing.assert_array_equal(shifted, data[3:])


def test_a_half_is_used_again_only_when_its_event_has_come(module, lazy, monkeypatch):
  monkeypatch.setattr(module, "HALF", 1000)
  device, data = module.CUDA("EMULATED:1"), np.arange(5000).astype(np.uint8)
  handle = device.alloc(5000)
  device.copyin(handle, memoryview(data))
  assert len(device.stream.ops) == 4  # the last two pieces and their events are still queued: nobody has waited
  out = np.zeros(5000, np.uint8)
  device.copyout(memoryview(out), handle)
  np.testing.assert_array_equal(out, data)
  with replaced(lazy, "cuEventSynchronize", lambda event: None):
    device.copyin(handle, memoryview(data[::-1].copy()))
  device.copyout(memoryview(out), handle)
  assert not np.array_equal(out, data[::-1])  # it would have been told


def test_small_copies_wait_for_nothing_until_they_fill_the_staging_memory(module, lazy, monkeypatch):
  monkeypatch.setattr(module, "HALF", 1000)
  device, rng = module.CUDA("EMULATED:1"), np.random.default_rng(0)
  handle, want = device.alloc(5000), np.zeros(5000, np.uint8)
  device.copyin(handle, memoryview(want))
  device.synchronize()
  for i in range(200):
    begin, n = int(rng.integers(0, 4000)), int(rng.integers(1, 100 if i < 20 else 999))
    want[begin : begin + n] = data = rng.integers(0, 256, n).astype(np.uint8)
    device.copyin(handle, memoryview(data), begin)
    if i == 6:
      assert len(device.stream.ops) == 14, "seven copies and the records of their events are queued"
  out = np.zeros(5000, np.uint8)
  device.copyout(memoryview(out), handle)
  np.testing.assert_array_equal(out, want)


def test_freed_memory_fits_what_is_about_as_large(lazy):
  device = Device[FOUR[0]]
  a = device.alloc(1000)
  device.free(a, 1000)
  lazy.calls.clear()
  assert device.alloc(900) is a and "cuMemAlloc" not in lazy.calls
  big = device.alloc((5 << 20) + 1)
  device.free(big, (5 << 20) + 1)
  assert device.alloc(6 << 20) is big
  assert device.alloc(7 << 20) is not big
  kept = device.kept
  assert kept == (1 << 30) // 4  # half of a physical device's, shared by two
  device.free(device.alloc(kept + 1), kept + 1)
  assert len(device.leaving) == 1
  used = lazy.used[0]
  device.synchronize()
  assert device.leaving == [] and lazy.used[0] < used - kept


NO_ROOM = (
  r"cuMemAlloc: the device is out of memory\n    Buffer\(EMULATED, uint8\[41943040\]\), realized at test_cuda\.py:.*"
  r"\n  fix: smaller batches"
)


def test_out_of_memory_gives_back_what_all_virtual_devices_keep_and_tries_again(lazy):
  zero, one = Device[FOUR[0]], Device[FOUR[1]]
  lazy.capacity = lazy.used[0] + (64 << 20)
  one.free(one.alloc(40 << 20), 40 << 20)
  zero.free(zero.alloc(20 << 20), 20 << 20)
  before = lazy.used[0]
  held = zero.alloc(50 << 20)  # fits only without the 60 MiB that are kept
  assert lazy.used[0] == before - (60 << 20) + (50 << 20) and one.pooled == zero.pooled == 0
  with pytest.raises(MemoryError, match=NO_ROOM):
    Tensor.zeros(40 << 20, device=FOUR[0], dtype="uint8").contiguous().realize()
  del held
  np.testing.assert_array_equal((Tensor(normal(5, 5), device=FOUR[0]) + 1).numpy(), normal(5, 5) + 1)


def test_memory_is_freed_in_its_context_and_the_caller_goes_on_in_its_own(module, lazy):
  """A finalizer may run between the choice of a context and the allocation for which it was made."""
  dropped = [Device[FOUR[2]].new_memory(512)]  # of the other physical device
  choose = object.__getattribute__(lazy, "cuCtxSetCurrent")

  def interrupted(context):
    choose(context)
    dropped.clear()

  used = list(lazy.used)
  with replaced(lazy, "cuCtxSetCurrent", interrupted):
    memory = Device[FOUR[0]].new_memory(1024)
  assert lazy.memory[memory.address][0] == 0 and lazy.used == [used[0] + 1024, used[1] - 512]


# ---------------------------------------------------------------- peers


def test_devices_that_cannot_read_each_other_are_brought_what_they_read(module, driver):
  groups = within_reach
  driver.reach.clear()
  try:
    module.reaches.cache_clear(), groups.cache_clear(), driver.enabled.clear()
    assert groups(FOUR) == [[0, 1], [2, 3]] and groups(FOUR[:2]) == [[0, 1]] and not module.reaches(0, 1)
    test_sharded_programs_in_every_order(driver)
    for ours, theirs in zip(step(FOUR, driver), step(("CPU:0", "CPU:1", "CPU:2", "CPU:3"))):
      np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert "cuCtxEnablePeerAccess" not in driver.calls and "cuMemcpyPeerAsync" in driver.calls
    driver.reach |= {(0, 1), (1, 0)}
    module.reaches.cache_clear()
    driver.refuse["cuCtxEnablePeerAccess"] = cuda_emulator.CUresult.CUDA_ERROR_INVALID_VALUE  # too many peers, say
    assert not module.reaches(0, 1) and module.reaches(1, 0)
  finally:
    driver.reach |= {(0, 1), (1, 0)}
    module.reaches.cache_clear(), groups.cache_clear()
    driver.enabled |= {(0, 1), (1, 0)}
  assert groups(FOUR) == [[0, 1, 2, 3]]


THROUGH_HOST = {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuStreamSynchronize", "cuEventSynchronize"}
MOVES = [  # (devices, cut dim)
  ((FOUR[:1], None), (FOUR[3:], None)),
  ((FOUR[:2], None), (FOUR[2:], None)),
  ((FOUR[:3], 0), (FOUR[1:], 0)),
  ((FOUR[:2], 0), (FOUR[2:], 1)),
  ((FOUR[:3], 1), (FOUR[3:], None)),
  ((FOUR[1:2], None), (FOUR[2:], 1)),
]


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_devices_copy_from_one_another_and_the_host_waits_for_nothing(driver, source, target):
  """The value has only been queued where it comes from, and what is copied is used at once."""
  x = normal(1, 11, 7)
  there = Tensor(x).shard(*source).realize()
  warm = ((there * 2).realize().shard(*target) + 1).realize()
  driver.calls.clear()
  out = ((there * 2).realize().shard(*target) + 1).realize()
  assert "cuMemcpyPeerAsync" in driver.calls and not THROUGH_HOST & set(driver.calls)
  np.testing.assert_array_equal(out.numpy(), x * 2 + 1)
  np.testing.assert_array_equal(warm.numpy(), x * 2 + 1)


def test_a_copy_before_its_source_is_there_would_be_noticed(module, lazy, monkeypatch):
  x = normal(1, 11, 7)
  there = Tensor(x, device=FOUR[0]).realize()
  monkeypatch.setattr(module.CUDA, "meet", lambda self, devices: None)
  assert not np.array_equal((there * 3).realize().to(FOUR[3]).numpy(), x * 3)


def test_what_falls_into_many_pieces_goes_through_the_host(driver):
  x = normal(1, 300, 6)
  there = Tensor(x).shard(FOUR[:2], axis=1).realize()
  driver.calls.clear()
  np.testing.assert_array_equal(there.shard(FOUR[2:], axis=0).numpy(), x)
  assert "cuMemcpyPeerAsync" not in driver.calls and "cuMemcpyDtoHAsync" in driver.calls


def test_a_copy_that_is_timed_is_waited_for(lazy, capsys):
  there = Tensor(normal(1, 11, 7), device=FOUR[0]).realize()
  with Context(DEBUG=2):
    moved = there.to(FOUR[3]).realize()
  assert not Device[FOUR[3]].stream.ops and "copy" in capsys.readouterr().out
  del moved


def test_a_captured_step_over_two_device_sets_waits_for_nothing(driver):
  """A pipeline of two stages."""
  w = [Tensor(normal(k, 6, 6), device=FOUR[2 * k]).realize() for k in (0, 1)]
  jit = TinyJit(lambda x: ((x @ w[0]).relu().to(FOUR[2]) @ w[1]).realize())
  out = []
  for i in range(6):
    x = Tensor(normal(i, 4, 6), device=FOUR[0]).realize()
    driver.calls.clear()
    out.append(jit(x))
  assert "cuMemcpyPeerAsync" in driver.calls and not THROUGH_HOST & set(driver.calls)
  for i, y in enumerate(out):
    want = np.maximum(normal(i, 4, 6) @ normal(0, 6, 6), 0) @ normal(1, 6, 6)
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- faults


def test_a_lost_device_names_the_kernels_and_the_line_and_the_process_goes_on(module, lazy):
  x = Tensor(normal(1, 30), device=FOUR[1]).realize()
  lazy.fault_in = ("E_", cuda_emulator.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
  with pytest.raises(DeviceError) as told:
    (x * 3).numpy()  # this line
  said = str(told.value)
  assert re.search(r"EMULATED:1 is lost, with its memory: ILLEGAL_ADDRESS in one of the kernels queued since", said)
  assert re.search(r"\n    E_\w+ in test_cuda.py:\d+: \(x \* 3\).numpy\(\)  # this line", said), said
  assert "fix: start a new process, with DEBUG=2" in said
  for use in (lambda: x.numpy(), lambda: (x + 1).realize(), lambda: Tensor([1.0], device=FOUR[0]).realize()):
    with pytest.raises(DeviceError, match=r"EMULATED(:1)? was lost earlier \(ILLEGAL_ADDRESS\)\n  fix: start a new"):
      use()
  assert Device[FOUR[1]].lost and not Device[FOUR[2]].lost
  for other in ("CPU", FOUR[2]):  # the other physical device
    np.testing.assert_array_equal((Tensor(normal(5, 5), device=other) + 1).numpy(), normal(5, 5) + 1)


def test_what_fails_at_the_launch_names_its_kernel(lazy):
  x = Tensor(normal(1, 30), device=FOUR[0]).realize()
  lazy.refuse["cuLaunchKernel"] = cuda_emulator.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
  with pytest.raises(DeviceError, match=r"EMULATED: launching E_\w+ \(\d+ threads a group\): cuLaunchKernel failed"):
    (x * 5).numpy()
  np.testing.assert_array_equal((x * 5).numpy(), normal(1, 30) * 5)
  lazy.unknown = {"sm_90a", "compute_90"}
  with pytest.raises(DeviceError, match=r"does not take \w+ of NVRTC 13.0 \(sm_90a: cuModuleLoadData .*; compute_90: "):
    (x * 5 - 17).numpy()
  lazy.unknown = set()
  np.testing.assert_array_equal((x * 5 - 17).numpy(), normal(1, 30) * 5 - 17)


def test_the_first_kernel_shows_whether_a_driver_works(module, lazy, monkeypatch):
  device, first = Device[FOUR[0]], r"EMULATED: the first kernel "
  monkeypatch.setattr(queues, "_checked", set())
  with monkeypatch.context() as m:
    m.setattr(lazy, "unknown", {"sm_90a", "compute_90"})
    with pytest.raises(DeviceError, match=rf"(?s){first}failed: EMULATED: the driver, .*fix: update the NVIDIA"):
      device.check()
  with monkeypatch.context() as m:
    m.setattr(module, "compile_source", lambda *_: (_ for _ in ()).throw(RuntimeError("no libnvrtc.so")))
    with pytest.raises(DeviceError, match=rf"{first}failed: RuntimeError: no libnvrtc.so\n  fix: update the driver"):
      device.check()
  with monkeypatch.context() as m:
    m.setattr(module.CUDA, "enqueue", lambda self, call: None)
    with pytest.raises(DeviceError, match=rf"{first}computed \[0.0, 0.0, .* instead of \[3.0, 3.5, "):
      device.check()
  device.check()
  launched = len(lazy.calls)
  device.check()
  assert len(lazy.calls) == launched, "once is enough"


def test_devices_that_are_not_there(module, lazy, monkeypatch):
  monkeypatch.setenv("CUDA_VIRTUAL", "2")
  with pytest.raises(DeviceError, match=r"EMULATED:4: there are 2 NVIDIA devices here\n  fix: CUDA_VIRTUAL=n"):
    module.CUDA("EMULATED:4")
  none = cuda_emulator.install("nothing", devices=0)
  with pytest.raises(DeviceError, match=r"there is no NVIDIA device here\n  fix: GPU=CPU"):
    none.open_device("NOTHING")
  none.driver.refuse["cuInit"] = cuda_emulator.CUresult.CUDA_ERROR_NO_DEVICE
  message = r"(?s)no NVIDIA driver works here \(cuInit failed: CUDA_ERROR_NO_DEVICE\).*fix: .*has to name CPU"
  with pytest.raises(DeviceError, match=message):
    none.open_device("NOTHING")


# ---------------------------------------------------------------- architectures


def requirements(text):
  """The packages that a fix asks for, each of which pip can read."""
  return [Requirement(r) for r in re.findall(r"'([^']+)'", text.partition("fix: ")[2])]


ARCHS = [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((12, 1), "compute_100"), ((8, 9), "compute_80")]


@pytest.mark.parametrize(("capability", "arch"), ARCHS)
def test_what_is_compiled_for_a_capability(module, capability, arch):
  """All instructions of what the compiler knows, and the newest PTX for what it does not."""
  assert module.arch_of(capability) == arch


def test_a_device_that_is_too_old_for_the_compiler_is_told_of_an_older_one(module):
  with pytest.raises(DeviceError, match=r"NVRTC 13.0 compiles for capability 7.5 and newer, this device has 7.0") as e:
    module.arch_of((7, 0))
  binding, compiler = requirements(str(e.value))
  assert (binding.name, compiler.name) == ("cuda-bindings", "nvidia-cuda-nvrtc-cu12")
  assert "12.9.1" in binding.specifier and "13.0" not in binding.specifier


def test_a_driver_that_does_not_take_machine_code_is_given_ptx(lazy):
  x = Tensor(normal(1, 30), device=FOUR[0]).realize()
  lazy.unknown.add("sm_90a")
  np.testing.assert_array_equal((x * 6 - 19).numpy(), normal(1, 30) * 6 - 19)
  assert lazy.loaded[-1] == "compute_90"
  lazy.unknown.clear()
  np.testing.assert_array_equal((x * x - 20).numpy(), normal(1, 30) * normal(1, 30) - 20)
  assert lazy.loaded[-1] == "sm_90a"


def test_an_old_driver_is_told_of_the_compiler_that_it_takes(lazy, monkeypatch):
  monkeypatch.setattr(lazy, "version", 12040)
  lazy.unknown |= {"sm_90a", "compute_90"}
  said = (
    r"EMULATED: the driver, of CUDA 12.4, does not take \w+ of NVRTC 13.0 \(.*\n  fix: update the NVIDIA driver, or p"
  )
  with pytest.raises(DeviceError, match=said) as e:
    (Tensor(normal(1, 30), device=FOUR[0]) * 6 - 21).numpy()
  _, compiler = requirements(str(e.value))
  assert compiler.name == "nvidia-cuda-nvrtc-cu12"
  assert "12.4.127" in compiler.specifier and not {"12.5.40", "13.0.48"} & {*compiler.specifier.filter(["12.5.40"])}


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch):
  def missing():
    raise RuntimeError("Failure finding libnvrtc.so.13")

  monkeypatch.setattr(cuda, "nvrtc", SimpleNamespace(nvrtcVersion=missing))
  cuda.toolchain.cache_clear()
  monkeypatch.setattr(cuda.importlib.metadata, "version", lambda package: {"cuda-bindings": "13.0.1"}[package])
  with pytest.raises(DeviceError, match=r"CUDA: NVRTC, .*\(Failure finding libnvrtc.so.13\)\n  fix: pip install") as e:
    cuda.compile_source("", "k", "sm_90a")
  assert [r.name for r in requirements(str(e.value))] == ["cuda-bindings", "nvidia-cuda-nvrtc"]


@pytest.mark.skipif(not has_nvrtc, reason="compiling for CUDA needs the extra [cuda]: cuda-bindings and NVRTC")
def test_ptx_for_what_a_compiler_does_not_know():
  (major, minor), known = cuda.toolchain()
  assert major >= 12 and 90 in known
  newer = (known[-1] + 10) // 10, 0
  code = cuda.compile_source('extern "C" __global__ void k() { }', "k", cuda.arch_of(newer))
  assert f".target sm_{known[-1]}".encode() in code and b".entry k(" in code


@pytest.mark.skipif(not has_nvrtc, reason="compiling for CUDA needs the extra [cuda]: cuda-bindings and NVRTC")
def test_what_nvrtc_says_of_a_kernel_that_is_wrong():
  with pytest.raises(DeviceError, match=r"CUDA: compiling broken for sm_90 failed: broken.cu\(1\): error: "):
    cuda.compile_source("__global__ void broken() { nonsense }", "broken", "sm_90")
  with pytest.raises(DeviceError, match=r"CUDA: compiling fine for sm_9 failed: nvrtc: error: invalid value"):
    cuda.compile_source("__global__ void fine() { }", "fine", "sm_9")


@pytest.mark.skipif(not has_nvrtc, reason="compiling for CUDA needs the extra [cuda]: cuda-bindings and NVRTC")
def test_nvrtc_writes_its_log_into_memory_that_nothing_else_has(monkeypatch):
  """It writes into bytes: a log of one byte in the one object b" " of the process once made it b"\\0" everywhere."""
  nvrtc = importlib.import_module("cuda.bindings.nvrtc")
  logs, get = [], nvrtc.nvrtcGetProgramLog
  monkeypatch.setattr(nvrtc, "nvrtcGetProgramLog", lambda program, log: logs.append(log) or get(program, log))
  for _ in range(2):
    assert cuda.compiled_anew('extern "C" __global__ void k() { }', "k", "sm_90")[1] == ""
  assert len(logs[0]) == 1 and logs[0] is not logs[1]
  assert not any(log is bytes([value]) for log in logs for value in range(256))


# ---------------------------------------------------------------- kinds of devices


def test_a_captured_step_on_two_kinds_of_devices(driver):
  @TinyJit
  def f(x, y):
    u, v = x * 2 + 1, (y * 3).sum(0)
    Tensor.realize(u, v)
    return u, v

  for i in range(4):
    x, y = normal(i, 5, 7), normal(i + 9, 6, 3)
    u, v = f(Tensor(x, device="CPU:1").realize(), Tensor(y, device=FOUR[3]).realize())
    assert (u.device, v.device) == ("CPU:1", FOUR[3])
    np.testing.assert_allclose(u.numpy(), x * 2 + 1, rtol=1e-6)
    np.testing.assert_allclose(v.numpy(), (y * 3).sum(0), rtol=1e-4)
  assert len(f.captured.stretches) == 1


@pytest.mark.parametrize("devices", [("CPU:0", FOUR[1]), (FOUR[2], "CPU:1", FOUR[0], "CPU:3")])
def test_a_mesh_of_two_kinds_where_it_is_asked_for(driver, devices):
  x, a, b = normal(0, 13, 70), normal(1, 9, 32), normal(2, 32, 6)
  driver.table_length = len(devices)
  with Context(MIXED=1):
    np.testing.assert_array_equal((Tensor(x).shard(devices, axis=0) * 2 + 1).numpy(), x * 2 + 1)
    jit = TinyJit(lambda p, q: (p @ q).relu().realize())
    for i in range(5):
      got = jit(Tensor(a + i).shard(devices, axis=1).realize(), Tensor(b).shard(devices, axis=0).realize())
      np.testing.assert_allclose(got.numpy(), np.maximum((a + i) @ b, 0), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- matrix cores


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("kind", "bits"), [("bfloat16", 8), ("float16", 11)])
@pytest.mark.parametrize(("m", "n"), [(128, 192), (200, 136)])
def test_products_on_cores_of_four_warps(module, lazy, kind, bits, layout, m, n):
  """Of whole blocks, and of such that overlap, in either dim."""
  k = 320
  x, y = (np.random.default_rng(m).integers(-8, 9, s).astype(np.float32) for s in ((m, k), (k, n)))
  a, b = (Tensor(v if of == "N" else v.T, device="EMULATED").cast(kind).realize() for v, of in zip((x, y), layout))
  before = len(cuda_emulator._compiled)
  got = ((a if layout[0] == "N" else a.T) @ (b if layout[1] == "N" else b.T)).float().numpy()
  assert any("wgmma.mma_async" in source for source in [*cuda_emulator._compiled][before:])
  np.testing.assert_allclose(got, x @ y, rtol=2.0**-bits)


@pytest.mark.parametrize("n", [256, 200])
def test_what_a_product_is_added_to_is_added_once(module, lazy, n):
  """Blocks that overlap would add what they have in common twice."""
  x, y, z = (np.random.default_rng(n).integers(-1, 2, s).astype(np.float32) for s in ((n, 128), (128, n), (n, n)))
  a, b = (Tensor(v, device="EMULATED").cast("bfloat16").realize() for v in (x, y))
  c = Tensor(z, device="EMULATED").realize()
  before = len(cuda_emulator._compiled)
  np.testing.assert_array_equal(c.assign(c + (a @ b).float()).numpy(), z + x @ y)
  assert any("wgmma.mma_async" in source for source in [*cuda_emulator._compiled][before:]) == (n == 256)


FENCE, MEET = r'asm volatile\("fence\.proxy\.async.*', r"__syncthreads\(\);"
HAZARDS = {  # what is taken from a product's code, what it becomes, and what is then told
  "no fence between threads' memory and cores": (FENCE, "", "has not published by a fence"),
  "the fence after the barrier": (rf"({FENCE})\n *({MEET})", r"\2 \1", "has not published by a fence"),
  "no fence of registers": (r'asm volatile\("wgmma\.fence.*', "", "without a fence of wgmma"),
  "nobody waits for the last product": (r'asm volatile\("wgmma\.wait_group\.sync\.aligned 0.*', "", "under way"),
  "the last may be under way": (r"(wgmma\.wait_group\.sync\.aligned) 0", r"\1 1", "before the product has been"),
  "none is committed": (r'asm volatile\("wgmma\.commit.*', "", "while a product reads it"),
  "registers are read meanwhile": (r"(.*wgmma\.commit)", r"d0 = d0 * 2; \1", "registers of a product are changed"),
  "nobody waits for copies": (r'asm volatile\("cp\.async\.wait_group.*', "", "reads what has not come"),
  "a group of copies too many is under way": (r"cp\.async\.wait_group 1", "cp.async.wait_group 2", "what has not come"),
  "no barrier in the loop": (rf"(for \(int r\d+ = 0; (?:.*\n)*?.*){MEET}", r"\1", "since the last barrier"),
  "memory that is in use is filled": (
    r"\((v\d+) % 4\)",
    r"(\1 % 2)",
    "a product reads what has not come|while a product",
  ),
  "lines that are not swizzled": (r"1ull << 62", "0ull << 62", "not of 128 bytes' swizzling"),
  "copies from where none may begin": (r"(copy_later<16>\(&s1\[v\d+\], &p1\[v\d+)", r"\1 + 1", "is not aligned"),
  "more than a group has": (r"scratch \+ 0;", "scratch + 24576;", "beyond a group's"),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_what_a_product_may_not_do_is_told(module, lazy, name, monkeypatch):
  """What a GPU would answer with other numbers, now and then: rules of the PTX ISA about wgmma, proxies, cp.async and a
  group's memory. Each is broken in what is generated for a product, of which nothing is told as it is."""
  pattern, other, told = HAZARDS[name]
  x, y = (np.random.default_rng(0).integers(-8, 9, s).astype(np.float32) for s in ((64, 320), (320, 64)))

  def product():
    a, b = (Tensor(v, device="EMULATED").cast("bfloat16").realize() for v in (x, y))
    return (a @ b).float().numpy()

  np.testing.assert_allclose(product(), x @ y, rtol=2.0**-8)
  assert lazy.faults == []
  changed = []

  def compiled(source, *_):
    found = re.sub(pattern, other, source) if "wgmma.mma_async" in source else source
    changed.extend([source] * (found != source))
    return f"//sm_90a\n{found}".encode()

  monkeypatch.setattr(module, "compile_source", compiled)
  with PROCESS.anew():
    product()
  assert changed and any(re.search(told, x) for x in lazy.faults), lazy.faults
  lazy.faults.clear()


@pytest.mark.parametrize(
  ("taken", "told"), [("after", "read without a barrier"), ("before", "another thread may read")]
)
def test_threads_that_do_not_meet_are_told_of(module, lazy, taken, told, monkeypatch):
  """Two reductions by way of a group's memory: the barrier after a write, and the one before the next write."""
  x = Tensor(normal(0, 300, 4100), device="EMULATED").realize()

  def compiled(source, *_):
    meets = [m.span() for m in re.finditer(MEET, source)]
    begin, end = meets[1 if taken == "after" else 2] if len(meets) > 3 else (0, 0)
    return f"//sm_90a\n{source[:begin]}{source[end:]}".encode()

  monkeypatch.setattr(module, "compile_source", compiled)
  with PROCESS.anew():
    x.softmax().realize()
    Device["EMULATED"].synchronize()
  assert any(told in x for x in lazy.faults), lazy.faults
  lazy.faults.clear()


ROWS = {  # of x, in float64
  "softmax": (lambda x: x.softmax(), lambda x: np.exp(x - x.max(1, keepdims=True)), lambda y: y.sum(1, keepdims=True)),
  "log_softmax": (lambda x: x.log_softmax(), lambda x: x - np.log(np.exp(x).sum(1, keepdims=True)), None),
  "layernorm": (
    lambda x: x.layernorm(),
    lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5),
    None,
  ),
  "argmax": (lambda x: x.argmax(1), lambda x: x.argmax(1), None),
  "std": (lambda x: x.std(1), lambda x: x.std(1, ddof=1), None),
}


@pytest.fixture
def short(module, lazy, monkeypatch):
  """Rows of 512 columns fit a group of threads, of 4096 a cluster; the sources of kernels, as they are compiled."""
  device, sources, compiled = Device["EMULATED"], [], module.compile_source
  monkeypatch.setattr(device, "target", replace(device.target, vector_registers=12, group=64))
  monkeypatch.setattr(module, "compile_source", lambda source, *more: sources.append(source) or compiled(source, *more))
  with PROCESS.anew():
    yield sources


def clusters(sources):
  return [math.prod(cuda_emulator.cluster_of(source)) for source in sources]


@pytest.mark.parametrize("columns", [513, 1100, 2048, 4096])
@pytest.mark.parametrize("name", ROWS)
def test_rows_that_groups_of_a_cluster_hold_together(short, lazy, name, columns):
  """In one kernel, which reads them once."""
  f, g, divisor = ROWS[name]
  x = normal(0, 130, columns)
  want = g(x.astype(np.float64))
  want = want if divisor is None else want / divisor(want)
  given = Tensor(x, device="EMULATED").realize()
  lazy.launched.clear()
  np.testing.assert_allclose(f(given).numpy(), want, rtol=1e-5, atol=1e-5)
  assert clusters(short) == [1 << (-(-columns // 512) - 1).bit_length()]
  assert len(lazy.launched) == 1 and lazy.faults == []


def test_a_row_of_more_than_a_cluster_holds_is_one_group_s(short, lazy):
  x = normal(0, 130, 4100)
  np.testing.assert_allclose(Tensor(x, device="EMULATED").softmax().numpy().sum(1), 1, rtol=1e-5)
  assert set(clusters(short)) == {1} and lazy.faults == []


@pytest.mark.parametrize(("columns", "numbers"), [(4096, {8}), (2049, {8}), (1100, {4}), (4100, {1})])
def test_few_rows_have_a_cluster_each(short, lazy, columns, numbers, monkeypatch):
  """Rows of which a group each would leave most of a device idle are one kernel, where clusters hold them; else each of
  its reductions is one. (Mutant: no clusters in `has_few_rows`, three kernels.)"""
  monkeypatch.setattr(row_groups, "ROW_WORK", 1)
  monkeypatch.setattr(Device["EMULATED"], "target", replace(Device["EMULATED"].target, units=2))
  x = normal(0, 20, columns)
  want = np.exp(x.astype(np.float64))
  given = Tensor(x, device="EMULATED").realize()
  np.testing.assert_allclose(given.softmax().numpy(), want / want.sum(1, keepdims=True), rtol=1e-5)
  assert {*clusters(short)} == numbers and (len(short) == 1) == (numbers != {1}) and lazy.faults == []


@pytest.mark.parametrize("columns", [16, 48, 50, 512])
@pytest.mark.parametrize("name", ROWS)
def test_few_columns_have_a_cluster_each(short, lazy, name, columns, monkeypatch):
  """Whose groups share out what is across memory; many have a group each."""
  monkeypatch.setattr(Device["EMULATED"], "target", replace(Device["EMULATED"].target, units=16))
  f, g, divisor = ROWS[name]
  x = normal(0, columns, 600)
  want = g(x.astype(np.float64))
  want = want if divisor is None else want / divisor(want)
  given = Tensor(np.ascontiguousarray(x.T), device="EMULATED").realize()
  np.testing.assert_allclose(f(given.T).T.numpy(), want.T, rtol=1e-5, atol=1e-5)
  assert (max(clusters(short)) > 1) == (columns < 512) and lazy.faults == []


ALL_MEET = re.escape(mma.TOGETHER)
BESIDE = {  # what is changed in the code of a cluster, the how manieth of it, what it becomes, and what is then told
  "read before it is written": (ALL_MEET, 0, "", "without a barrier of the cluster after"),
  "read after a barrier of the group": (ALL_MEET, 0, "__syncthreads();", "without a barrier of the cluster after"),
  "read after another one": (ALL_MEET, 1, "__syncthreads();", "without a barrier of the cluster after"),
  "written while it is read": (r"scratch \+ 512\b", 0, "scratch + 1024", "written while another group"),
  "gone when it is read": (ALL_MEET, -1, "", "has ended|ends while another"),
  "a group that is not there": (r"of_group\((\w+), 2\)", 0, r"of_group(\1, 4)", "has no such group"),
  "one that does not come": (ALL_MEET, -1, r"if (blockIdx.y) { \g<0> }", "not every group comes|ends while another"),
  "threads that do not come": (ALL_MEET, -1, r"if (threadIdx.x) { \g<0> }", "not every thread comes"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_groups_of_a_cluster_may_not_do_is_told(module, short, lazy, name, monkeypatch):
  """Rules of the PTX ISA about memory of other groups, each broken in a softmax, of which nothing is told as it is."""
  pattern, which, other, told = BESIDE[name]

  def compiled(source, *_):
    if found := [*re.finditer(pattern, source)] if "__cluster_dims__(1, 4, 1)" in source else []:
      begin, end = found[which].span()
      source = source[:begin] + found[which].expand(other) + source[end:]
    return f"//sm_90a\n{source}".encode()

  monkeypatch.setattr(module, "compile_source", compiled)
  Tensor(normal(0, 130, 2000), device="EMULATED").softmax().realize()
  Device["EMULATED"].synchronize()
  assert any(re.search(told, x) for x in lazy.faults), lazy.faults
  lazy.faults.clear()


@pytest.mark.parametrize(("dims", "capability"), [("1, 3, 1", (9, 0)), ("1, 16, 1", (9, 0)), ("1, 4, 1", (8, 0))])
def test_a_cluster_that_cannot_be_launched_is_refused(module, short, lazy, dims, capability, monkeypatch):
  """It divides the grid, has at most eight groups, and needs a device that has clusters."""
  monkeypatch.setattr(lazy, "capability", capability)

  def compiled(source, *_):
    return f"//sm_90a\n{re.sub('__cluster_dims__.1, 4, 1.', f'__cluster_dims__({dims})', source)}".encode()

  monkeypatch.setattr(module, "compile_source", compiled)
  with pytest.raises(DeviceError, match="INVALID_CLUSTER_SIZE"):
    Tensor(normal(0, 130, 2000), device="EMULATED").softmax().realize()
    Device["EMULATED"].synchronize()


def random_rows(seed):
  """A few reductions of rows, each of what the ones before amount to, and something with all of them."""
  rng = random.Random(seed)
  x, y = (normal(seed + i, 130, rng.randint(513, 4096)) for i in (0, 1))
  y = np.resize(y, x.shape)

  def made(x, y, ops):
    rng, seen = random.Random(seed), []
    for _ in range(rng.randint(2, 4)):
      term = rng.choice((x, x * y, x * x, ops["max"](x, y)))
      if seen and rng.random() < 0.7:
        term = x * (1 / (1 + seen[-1] * seen[-1])) - term
      seen.append(ops[rng.choice(("sum", "min", "most"))](term))
    total = seen[0]
    for other in seen[1:]:
      total = total * 0.5 + other
    return total if rng.random() < 0.3 else x - total * y

  return x, y, made


@pytest.mark.parametrize("seed", range(12))
def test_random_rows_in_clusters(short, lazy, seed):
  x, y, made = random_rows(seed)
  with_numpy = {"max": np.maximum, "sum": lambda x: x.mean(1, keepdims=True), "min": lambda x: x.min(1, keepdims=True)}
  of_tensors = {
    "max": Tensor.maximum,
    "sum": lambda x: x.mean(1, keepdim=True),
    "min": lambda x: x.min(1, keepdim=True),
  }
  want = made(*(v.astype(np.float64) for v in (x, y)), with_numpy | {"most": lambda x: x.max(1, keepdims=True)})
  given = [Tensor(v, device="EMULATED").realize() for v in (x, y)]
  got = made(*given, of_tensors | {"most": lambda x: x.max(1, keepdim=True)}).numpy()
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
  assert lazy.faults == []


@pytest.mark.parametrize("bits", ["32ull << 32", "16ull << 32"])
def test_a_matrix_descriptor_is_read_as_it_is_written(module, lazy, bits, monkeypatch):
  """Eight rows begin 1024 bytes after eight others, not 512 or 256."""
  x, y = (np.random.default_rng(0).integers(-8, 9, (64, 64)).astype(np.float32) for _ in range(2))
  a, b = (Tensor(v, device="EMULATED").cast("bfloat16").realize() for v in (x, y))
  asked = "64ull << 32", bits

  def compiled(source, *_):
    return f"//sm_90a\n{source.replace(*asked)}".encode()

  with PROCESS.anew():
    monkeypatch.setattr(module, "compile_source", compiled)
    off = (a @ b).float().numpy()
  assert np.abs(off - x @ y).max() > 1
  lazy.faults.clear()


@pytest.mark.parametrize("sizes", [(64, 48, 96), (100, 72, 100), (33, 17, 40)])
@pytest.mark.parametrize(("kind", "bits"), [("bfloat16", 8), ("float16", 11), ("float32", 11)])
def test_products_on_cores(module, lazy, kind, bits, sizes):
  """Float32 only where it is asked for; operands of a few bits, so that all but the last rounding is exact."""
  m, n, k = sizes
  x, y = (np.random.default_rng(m).integers(-8, 9, s).astype(np.float32) for s in ((m, k), (n, k)))
  a, b = (Tensor(v, device="EMULATED").cast(kind).realize() for v in (x, y))
  before = len(cuda_emulator._compiled)
  with Context(ALLOW_TF32=1):
    got = (a @ b.T).float().numpy()
  assert any("mma.sync" in source or "wgmma" in source for source in [*cuda_emulator._compiled][before:])
  np.testing.assert_allclose(got, x @ y.T, rtol=2.0**-bits)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "bits"), [("bfloat16", 8), ("float16", 11)])
def test_attention_on_cores_is_one_kernel(module, lazy, kind, bits, causal):
  numbers = np.random.default_rng(bits)
  q, k, v = (Tensor(numbers.standard_normal((16, 128, 32)), device="EMULATED").cast(kind).realize() for _ in range(3))
  before = len(cuda_emulator._compiled)
  got = q.scaled_dot_product_attention(k, v, is_causal=causal).float().numpy()
  (source,) = [s for s in [*cuda_emulator._compiled][before:] if "mma.sync" in s]
  assert source.count("mma_m16n8k16") > 2 and "exp" in source
  a, b, c = (x.float().numpy().astype(np.float64) for x in (q, k, v))
  scores = a @ b.swapaxes(-1, -2) / np.sqrt(32)
  scores = np.where(np.tri(128, dtype=bool), scores, -np.inf) if causal else scores
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  np.testing.assert_allclose(got, weights @ c / weights.sum(-1, keepdims=True), rtol=2.0**-bits, atol=4 * 2.0**-bits)


def test_gradients_of_attention_with_products_on_cores(module, lazy):
  numbers = np.random.default_rng(0)
  q, k, v, g = (Tensor(numbers.standard_normal((16, 64, 32)), device="EMULATED").half().realize() for _ in range(4))
  a, b, c, d = (x.float().numpy().astype(np.float64) for x in (q, k, v, g))
  got = (q.scaled_dot_product_attention(k, v) * g).float().sum().gradient(q, k, v)
  weights = np.exp(a @ b.swapaxes(-1, -2) / np.sqrt(32))
  weights /= weights.sum(-1, keepdims=True)
  up = d @ c.swapaxes(-1, -2)
  inner = weights * (up - (up * weights).sum(-1, keepdims=True)) / np.sqrt(32)
  for have, want in zip(got, (inner @ b, inner.swapaxes(-1, -2) @ a, weights.swapaxes(-1, -2) @ d), strict=True):
    np.testing.assert_allclose(have.float().numpy(), want, rtol=2e-2, atol=2e-2)


def attended(kind, error, causal, length, width=16, heads=6, band=0):
  """What attention and its gradients are by the plan whose kernels and bytes between them are given back, beside
  numpy's; what is quadratic is computed again however small it is. `band`: so many keys each query sees."""
  numbers, plans, make = np.random.default_rng(0), [], engine.make_plan
  shape = (heads, length, width)
  q, k, v, g = (Tensor(numbers.standard_normal(shape), device="EMULATED").cast(kind).realize() for _ in range(4))
  a, b, c, d = (x.float().numpy().astype(np.float64) for x in (q, k, v, g))
  seen = np.tri(length, dtype=bool) & (~np.tri(length, k=-band, dtype=bool) | (not band)) | (not causal)
  j = Tensor.arange(length, device="EMULATED")
  mask = (j <= j.unsqueeze(1)) & (j.unsqueeze(1) < j + band) if band else None
  out = q.scaled_dot_product_attention(k, v, attn_mask=mask, is_causal=causal and not band)
  with pytest.MonkeyPatch.context() as patch, PROCESS.anew():
    patch.setattr(tile_and_fuse, "RECOMPUTE_ON_GRID", 1 << 10)
    patch.setattr(engine, "make_plan", lambda *args: plans.append(make(*args)) or plans[-1])
    got = (out, *out.gradient(q, k, v, gradient=g))
    Tensor.realize(*got)
  scores = np.where(seen, a @ b.swapaxes(-1, -2) / width**0.5, -np.inf)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  up = d @ c.swapaxes(-1, -2)
  inner = weights * (up - (up * weights).sum(-1, keepdims=True)) / width**0.5
  wanted = weights @ c, inner @ b, inner.swapaxes(-1, -2) @ a, weights.swapaxes(-1, -2) @ d
  for have, want in zip(got, wanted, strict=True):
    np.testing.assert_allclose(have.float().numpy(), want, rtol=error, atol=error)
  (plan,) = plans
  return len(plan.items), sum(t.nbytes for t in plan.temps)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "error"), [("float32", 1e-5), ("bfloat16", 8e-2), ("float16", 1e-2)])
def test_gradients_of_attention_keep_no_weights(module, lazy, kind, error, causal):
  """What is quadratic in the length is computed again, block by block, by whoever reads it."""
  assert attended(kind, error, causal, 96) == (4, 3 * 6 * 96 * 4)


@pytest.mark.parametrize(
  ("length", "width", "kind", "causal"),
  [
    (97, 16, "float32", True),
    (97, 16, "bfloat16", False),
    (131, 24, "float32", False),
    (131, 24, "bfloat16", True),
    (165, 80, "float32", True),
  ],
)
def test_nor_do_those_of_lengths_that_no_block_divides(module, lazy, length, width, kind, causal):
  """Of a last block that is not whole, what is beyond the end is read nowhere and counts for nothing."""
  kernels, nbytes = attended(kind, 1e-5 if kind == "float32" else 1e-1, causal, length, width, 3)
  assert kernels == 4 and nbytes < 2 * 3 * 3 * length * 4


@pytest.mark.parametrize(
  ("kind", "error", "length", "causal"),
  [("bfloat16", 8e-2, 128, False), ("float16", 1e-2, 192, True), ("float16", 1e-2, 131, False)],
)
def test_all_products_of_attention_run_on_cores_of_four_warps(module, lazy, kind, error, length, causal):
  """Those of its gradients, too: one operand from registers, be it what the product before gave; the other a tile."""
  before = len(cuda_emulator._compiled)
  assert attended(kind, error, causal, length, 64, 16)[0] == 4
  calls = [re.findall(r"^ +mma_(wgmma|m16)", s, re.M) for s in [*cuda_emulator._compiled][before:]]
  assert [len(x) for x in calls if x] == [4, 10, 6, 4] and {x for some in calls for x in some} == {"wgmma"}


@pytest.mark.parametrize("band", [1, 40])
def test_queries_see_a_band_of_keys(module, lazy, band):
  """Of one key each: a group has one block, and nothing to fill ahead of it."""
  attended("float16", 1e-2, True, 192, 64, 16, band)


def test_gradients_of_wide_heads_on_cores_of_four_warps(module, lazy):
  """In the queries' gradient blocks have 32 keys."""
  before = len(cuda_emulator._compiled)
  assert attended("float16", 1e-2, True, 256, 128, 4)[0] == 4
  calls = [re.findall(r"^ +mma_(wgmma|m16)", s, re.M) for s in [*cuda_emulator._compiled][before:]]
  assert [len(x) for x in calls if x] == [5, 14, 8, 5] and {x for some in calls for x in some} == {"wgmma"}


@pytest.mark.parametrize(
  ("kind", "error", "causal"),
  [("float32", 1e-5, True), ("bfloat16", 8e-2, False), ("float16", 1e-2, True)],
)
@pytest.mark.parametrize("length", [256, 232])
def test_attention_of_one_head_in_pieces(module, lazy, monkeypatch, kind, error, causal, length):
  """Each sweep of its gradients, too, in two pieces, of which each streams."""
  for name, n in {"LAUNCH": 1, "BALANCE": 1, "BALANCE_OF_CORES": 1, "ROWS": 256, "ROWS_OF_CORES": 256}.items():
    monkeypatch.setattr(split_sums, name, n)
  monkeypatch.setattr(streaming, "LONG", 96)
  assert attended(kind, error, causal, length, 64, 1)[0] == 9


def test_registers_hold_halves_as_they_have_been_rounded(module, lazy, monkeypatch):
  """As float32 where they are read so: the bits are those of halves in local memory."""
  numbers = np.random.default_rng(0)
  given = [Tensor(numbers.standard_normal((16, 128, 64)), device="EMULATED").bfloat16().realize() for _ in range(4)]
  found, sources = [], []
  for most in (own_memory.MOST, 0):
    monkeypatch.setattr(own_memory, "MOST", most)
    monkeypatch.setattr(tile_and_fuse, "RECOMPUTE_ON_GRID", 1 << 10)
    before = len(cuda_emulator._compiled)
    with PROCESS.anew():
      out = given[0].scaled_dot_product_attention(*given[1:3])
      got = out.gradient(*given[:3], gradient=given[3])
      Tensor.realize(*got)
    found.append([x.float().numpy() for x in got])
    sources.append("".join([*cuda_emulator._compiled][before:]))
  rounded = [source.count("= rounded_to_bfloat16(") for source in sources]
  assert rounded[0] > 0 == rounded[1], "a conversion is apart from its opposite in memory"
  for x, y in zip(*found, strict=True):
    np.testing.assert_array_equal(x, y)


def groups_of(linears):
  """Of each kernel with products on cores of four warps: threads of a group, bytes of its local memory."""
  late = [x for x in linears if any(u.op is Ops.MMA and u.arg.late for u in x)]
  own = ([u for u in x if u.op is Ops.SCRATCH and u.arg[0] >= 0] for x in late)
  local = [max((u.arg[0] + u.arg[2] for u in memory), default=0) for memory in own]
  loops = ({u for u in x if u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL} for x in late)
  return [(int(np.prod([r.src[0].arg for r in some])), n) for some, n in zip(loops, local, strict=True)]


@pytest.mark.parametrize(
  ("width", "threads"), [(64, [256, 128, 128, 256]), (128, [128, 256, 256, 128]), (256, [256, 128, 256, 256])]
)
def test_two_teams_read_one_copy_where_registers_hold_an_even_number_of_them(module, lazy, monkeypatch, width, threads):
  """Forward, and the gradients of queries, keys and values: forward and values of 64 columns have room for four teams,
  of 128 for three. Of 256 the sums of the second do not fit local memory of this device beside another team's."""
  found, lower = [], codegen.lower_kernel
  monkeypatch.setattr(codegen, "lower_kernel", lambda *args: found.append(lower(*args)) or found[-1])
  assert attended("bfloat16", 1e-1, False, 512, width, 2)[0] == 4
  target = Device["EMULATED"].target
  groups = groups_of(found)
  assert [n for n, _ in groups] == threads and all(n <= target.scratch for _, n in groups)


@pytest.mark.parametrize(("capability", "kib", "width"), [((8, 0), 163, 128), ((8, 9), 99, 64), ((8, 9), 99, 128)])
def test_registers_hold_the_rows_of_attention_where_warps_multiply(module, lazy, monkeypatch, capability, kib, width):
  """So local memory has room for what comes block by block, in groups of two teams; with rows in it a product of the
  keys' gradient had none, and ran on no core. (Mutant: a product that finds no room for two blocks runs on no core.)"""
  found, lower = [], codegen.lower_kernel
  monkeypatch.setattr(codegen, "lower_kernel", lambda *args: found.append(lower(*args)) or found[-1])
  target = cuda.target_of(capability, 1, kib << 10)
  monkeypatch.setattr(Device["EMULATED"], "target", target)
  assert attended("bfloat16", 1e-1, False, 256, width, 2)[0] == 4
  kernels = [x for x in found if any(u.op is Ops.MMA for u in x)]
  loops = ({u for u in x if u.op is Ops.RANGE and u.arg[1] is AxisKind.LOCAL} for x in kernels)
  memory = [[u for u in x if u.op is Ops.SCRATCH and u.arg[0] >= 0] for x in kernels]
  assert [np.prod([r.src[0].arg for r in some]) for some in loops] == [256] * 4
  assert all(u.dtype is dtypes.bfloat16 or u.arg[2] <= 2048 for some in memory for u in some)  # copies, and statistics
  assert all(u.arg[0] + u.arg[2] <= target.scratch for some in memory for u in some)


def test_those_of_wide_heads_in_shorter_blocks(module, lazy):
  assert attended("bfloat16", 1e-1, False, 520, 256, 1)[0] == 4


def counts_what_is_beyond(patch):
  patch.setattr(streaming.Stream, "is_nothing", lambda *_: True)


def leaves_it_as_it_is(patch):
  patch.setattr(streaming.Stream, "guard", lambda _: None)


def begins_a_block_too_late(patch):
  patch.setattr(streaming.Stream, "number_of_blocks", lambda self, size: streaming.index(self.length // size))


@pytest.mark.parametrize("mutant", [counts_what_is_beyond, leaves_it_as_it_is, begins_a_block_too_late])
def test_a_mutant_of_the_last_block_is_seen(mutant, module, lazy, monkeypatch):
  mutant(monkeypatch)
  with pytest.raises(AssertionError):
    attended("float32", 1e-5, False, 97)
  lazy.faults.clear()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_attention_of_a_prompt_wherever_it_begins(module, lazy, kind, masked):
  """As a language model has it: as many keys as a variable says."""
  heads, most, tokens, width, numbers = 4, 256, 64, 32, np.random.default_rng(0)
  q, k, v = (
    Tensor(numbers.standard_normal((heads, n, width)), device="EMULATED").cast(kind).realize()
    for n in (tokens, most, most)
  )
  a, b, c = (x.float().numpy().astype(np.float64) for x in (q, k, v))
  places = Tensor.arange(most).to("EMULATED").realize()
  for at in (0, 37, most - tokens):
    here = Variable("at", 0, most - tokens).bind(at)
    there = places[: here + tokens].unsqueeze(0) <= places[here : here + tokens].unsqueeze(1)
    keys, values = (x[:, : here + tokens] for x in (k, v))
    got = q.scaled_dot_product_attention(keys, values, attn_mask=there if masked else None).float().numpy()
    scores = a @ b[:, : at + tokens].swapaxes(1, 2) / width**0.5
    seen = np.arange(at + tokens) <= at + np.arange(tokens)[:, None]
    scores = np.where(seen | (not masked), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    error = 1e-5 if kind == "float32" else 2e-2
    np.testing.assert_allclose(got, weights @ c[:, : at + tokens], rtol=error, atol=error)


def test_a_product_in_more_local_memory_than_every_kernel_has(module, lazy):
  x, y = (
    np.random.default_rng(i).integers(-4, 5, s).astype(np.float16) for i, s in enumerate(((256, 160), (160, 256)))
  )
  a, b = (Tensor(v, device="EMULATED").realize() for v in (x, y))
  lazy.calls.clear()
  np.testing.assert_array_equal((a @ b).numpy(), x @ y)
  assert "cuFuncSetAttribute" in lazy.calls


def test_a_product_of_float32_is_exact(module, lazy):
  """Of factors of more bits than TF32 has, and sums of no more than float32 has, in whatever order."""
  numbers = np.random.default_rng(0)
  x, y = numbers.integers(-(1 << 13), 1 << 13, (32, 32)), numbers.integers(-4, 5, (32, 32))
  a, b = (Tensor(v.astype(np.float32), device="EMULATED") for v in (x, y))
  np.testing.assert_array_equal((a @ b).numpy(), x @ y)
