"""The Metal backend before a recording double of pyobjc's Metal module.

The double keeps memory, and checks what Apple's documentation asks of a caller: which argument is bound where, that a
group has the threads that its kernel declares, that encoders end before their command buffer does anything else, that
no command buffer waits for a signal which has not been committed, that memory behind a table is declared, and that the
host touches no memory which commands still use. It compiles and runs nothing: whether Apple's compiler takes the
sources and what they compute, a Mac has to say (`DEV=METAL python -m pytest test/ops`).
"""

import contextlib
import re
import struct
import types

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.device import Device, DeviceError, Launch, Rendered
from tinygrad.runtime import metal

COMPILED = re.compile(r"\[\[max_total_threads_per_threadgroup\((\d+)\)\]\] kernel void (\w+)\((.*)\) \{")


class Buffer:
  def __init__(self, gpu, data):
    self.gpu, self.data, self.users = gpu, bytearray(data), []
    self.address = gpu.next_address
    gpu.next_address += (len(data) + 255) // 256 * 256
    gpu.buffers[self.address] = self

  def gpuAddress(self):
    return self.address

  def length(self):
    return len(self.data)

  def contents(self):
    assert all(c.completed for c in self.users), "the host touches memory that commands still use"
    return types.SimpleNamespace(as_buffer=lambda n: memoryview(self.data)[:n])


class Event:
  def __init__(self):
    self.committed = 0


class Commands:
  def __init__(self, queue):
    self.queue, self.encoder, self.log = queue, None, []
    self.committed = self.completed = False
    self.failure = None

  def computeCommandEncoder(self):
    assert not self.committed and self.encoder is None
    self.encoder = Encoder(self)
    return self.encoder

  def encodeSignalEvent_value_(self, event, value):
    assert self.encoder is None and not self.committed
    self.log.append(("signal", event, value))

  def encodeWaitForEvent_value_(self, event, value):
    assert self.encoder is None and not self.committed
    assert event.committed >= value, "waits for a signal that has not been committed"
    self.log.append(("wait", event, value))

  def commit(self):
    assert self.encoder is None and not self.committed
    self.committed = True
    self.queue.committed.append(self)
    for what, event, value in self.log:
      if what == "signal":
        assert value == event.committed + 1, "an event's values grow"
        event.committed = value

  def waitUntilCompleted(self):
    assert self.committed
    for c in self.queue.committed[: self.queue.committed.index(self) + 1]:
      c.completed = True

  def status(self):
    return (5 if self.failure else 4) if self.completed else 3 if self.committed else 0

  def error(self):
    return self.failure


class Encoder:
  def __init__(self, commands):
    self.commands, self.bound, self.used, self.pipeline = commands, {}, [], None

  def setComputePipelineState_(self, pipeline):
    self.pipeline, self.bound = pipeline, {}

  def setBuffer_offset_atIndex_(self, buffer, offset, i):
    assert isinstance(buffer, Buffer) and offset == 0
    self.bound[i] = buffer

  def setBytes_length_atIndex_(self, data, n, i):
    assert len(data) == n == 8
    self.bound[i] = struct.unpack("<q", data)[0]

  def useResource_usage_(self, buffer, usage):
    assert usage == 1 and buffer not in self.used, "it stays declared until the encoder ends"
    self.used.append(buffer)

  def dispatchThreadgroups_threadsPerThreadgroup_(self, groups, threads):
    assert self.commands.encoder is self and not self.commands.committed
    most, _, params = COMPILED.search(self.pipeline.source).groups()
    assert np.prod(threads) == int(most) and len(groups) == len(threads) == 3 and min(groups) >= 1
    wanted = re.findall(r"(device const ulong\*|device|constant const long&) .*?\[\[buffer\((\d+)\)\]\]", params)
    assert sorted(self.bound) == list(range(len(wanted))) == [int(i) for _, i in wanted]
    for kind, i in wanted:
      value = self.bound[int(i)]
      assert isinstance(value, int if kind.startswith("constant") else Buffer), (kind, value)
      if "ulong" in kind:
        entries = struct.unpack(f"<{len(value.data) // 8}Q", value.data)
        assert all(value.gpu.buffers[a] in self.used for a in entries)
    for b in [*self.bound.values(), *self.used]:
      if isinstance(b, Buffer):
        assert b.gpu is self.commands.queue.gpu, "memory of another GPU"
        b.users.append(self.commands)
    self.commands.log.append(("kernel", self.pipeline, dict(self.bound)))

  def endEncoding(self):
    assert self.commands.encoder is self
    self.commands.encoder = None


class Queue:
  def __init__(self, gpu):
    self.gpu, self.committed = gpu, []

  def commandBuffer(self):
    for c in self.committed[:-64]:  # it waits until fewer are under way
      c.completed = True
    return Commands(self)


class GPU:
  limit = 1 << 30

  def __init__(self, name):
    self.title, self.buffers, self.next_address, self.compiled = name, {}, 1 << 20, []

  def name(self):
    return self.title

  def newCommandQueue(self):
    return Queue(self)

  def newSharedEvent(self):
    return Event()

  def newBufferWithLength_options_(self, n, options):
    assert options == 0 and n > 0
    return Buffer(self, bytes(n)) if n <= self.limit else None

  def newBufferWithBytes_length_options_(self, data, n, options):
    assert options == 0 and len(data) == n
    return Buffer(self, data)

  def newLibraryWithSource_options_error_(self, source, options, error):
    assert options.strict and options.version == 0x30000 and error is None
    if "syntax error" in source:
      return None, "program_source:3:1: error: expected ';'\nprogram_source:4:1: note: here"
    self.compiled.append(source)
    return types.SimpleNamespace(newFunctionWithName_=lambda name: (source, name)), None

  def newComputePipelineStateWithFunction_error_(self, function, error):
    source, name = function
    assert COMPILED.search(source)[2] == name
    return types.SimpleNamespace(source=source), None


class Options:
  @classmethod
  def alloc(cls):
    return cls()

  def init(self):
    return self

  def respondsToSelector_(self, name):
    assert name == "setMathMode:"
    return self.modes

  modes = True  # as from macOS 15 on

  def setLanguageVersion_(self, version):
    self.version = version

  def setMathMode_(self, mode):
    assert self.modes
    self.strict = mode == 0

  def setFastMathEnabled_(self, on):
    assert not self.modes, "deprecated"
    self.strict = not on


@pytest.fixture
def gpus(monkeypatch):
  """Two GPUs with two virtual devices each."""
  found = [GPU("first"), GPU("second")]
  double = types.SimpleNamespace(
    MTLCopyAllDevices=lambda: found, MTLCompileOptions=Options, MTLSizeMake=lambda x, y, z: (x, y, z)
  )
  monkeypatch.setattr(metal, "metal", double)
  monkeypatch.setattr(metal, "objc", types.SimpleNamespace(autorelease_pool=contextlib.nullcontext))
  monkeypatch.setattr(metal.platform, "system", lambda: "Darwin")
  monkeypatch.setenv("METAL_VIRTUAL", "2")
  metal.gpus.cache_clear()
  yield found
  metal.gpus.cache_clear()


@pytest.fixture
def devices(gpus, monkeypatch):
  """METAL:0 and METAL:1, on the first GPU, where the engine finds them."""
  made = {name: metal.open_device(name) for name in ("METAL", "METAL:1")}
  known = type(Device)._open
  monkeypatch.setattr(type(Device), "_open", lambda self, name: made[name] if name in made else known(self, name))
  yield list(made.values())
  for d in made.values():
    d.synchronize()


def kernels(device):
  return [(c, entry) for c in device.queue.committed for entry in c.log if entry[0] == "kernel"]


def test_a_sharded_step_and_its_replay_keep_the_rules(devices):
  x = Tensor(np.ones((8, 6), np.float32)).shard(("METAL:0", "METAL:1"), axis=1).realize()
  w = Tensor(np.ones((6, 4), np.float32)).shard(("METAL:0", "METAL:1"), axis=0).realize()

  @TinyJit
  def step(x):
    return (x @ w).relu().sum(axis=0).realize()

  for _ in range(4):
    assert step(x).numpy().shape == (4,)
  for d in devices:
    d.synchronize()
    assert len(kernels(d)) >= 8
    assert any("Peer<float>*" in entry[1].source for _, entry in kernels(d))
    order = [entry[0] for c in d.queue.committed for entry in c.log]
    assert order.count("signal") == order.count("wait") >= 4
    assert all(c.completed for c in d.queue.committed)


def test_signals_are_committed_before_any_queue_waits(devices):
  """The rule that `Commands` checks is broken by the obvious order: each device signals and waits in turn."""
  first, second = devices
  first.meet(devices)
  assert [e[0] for e in second.queue.committed[0].log] == ["signal"]
  assert [e[0] for e in first.queue.committed[0].log] == ["wait", "signal"]
  assert [e[0] for e in second.open().log] == ["wait"]
  with pytest.raises(AssertionError, match="not been committed"):
    first.open().encodeWaitForEvent_value_(second.event, second.reached + 1)


def test_memory_is_the_hosts_after_a_wait(devices):
  d = devices[0]
  a, b = d.alloc(64), d.alloc(64)
  data = np.arange(16, dtype=np.float32)
  d.copyin(a, memoryview(data))
  source = "[[max_total_threads_per_threadgroup(16)]] kernel void k("
  source += "device float* p0 [[buffer(0)]], device float* p1 [[buffer(1)]], constant const long& n [[buffer(2)]]) {}"
  program = d.compile(Rendered(source, Launch(threads=(16, 1, 1))), "k")
  call = d.bind(program, [b, a], [7])
  d.submit_all([d], [d.batch([call])])
  assert kernels(d)[0][1][2] == {0: b, 1: a, 2: 7}
  with pytest.raises(AssertionError, match="commands still use"):
    d.view(a)
  got = np.zeros(16, np.float32)
  d.copyout(memoryview(got), a)
  np.testing.assert_array_equal(got, data)
  d.copyin(a, memoryview(data[:2]), 8)
  assert d.view(a)[8:16] == data[:2].tobytes()
  assert d.compile(Rendered(source, Launch(threads=(16, 1, 1))), "k").built[0] is not None
  d.free(a, 64)
  assert d.alloc(64) is a


def test_a_table_that_queued_work_reads_is_not_overwritten(devices):
  d = devices[0]
  a, b = d.alloc(64), d.alloc(64)
  source = "[[max_total_threads_per_threadgroup(1)]] kernel void k("
  source += "device float* p0 [[buffer(0)]], device const ulong* p1 [[buffer(1)]]) {}"
  program = d.compile(Rendered(source), "k")
  call = d.bind(program, [a, [a, b]])
  d.submit_all([d], [d.batch([call])])
  call.set_buffer(1, [b, a])
  d.submit_all([d], [d.batch([call])])
  tables = [entry[2][1] for _, entry in kernels(d)]
  assert [struct.unpack("<2Q", t.data) for t in tables] == [(a.address, b.address), (b.address, a.address)]


def test_devices_meet_at_two_waits_each(gpus):
  made = [metal.open_device(f"METAL:{i}") for i in range(4)]
  made[1].meet(made)
  for d in made:
    d.flush()
  logs = [[e[0] for c in d.queue.committed for e in c.log] for d in made]
  assert logs == [["wait"] * 3 + ["signal"]] + [["signal", "wait"]] * 3


def test_what_is_done_is_not_kept(devices):
  """Thousands of hand-overs between waits; an error among the first of them is told all the same."""
  d = devices[0]
  source = "[[max_total_threads_per_threadgroup(1)]] kernel void k(device float* p0 [[buffer(0)]]) {}"
  call = d.bind(d.compile(Rendered(source), "k"), [d.alloc(64)])
  batch = d.batch([call])
  for i in range(1000):
    d.submit_all([d], [batch])
    assert len(d.committed) <= 66
    if i == 3:
      d.queue.committed[-1].failure = "Caused GPU Hang Error"
  with pytest.raises(DeviceError, match=r"work that was queued failed: Caused GPU Hang Error\n  among"):
    d.synchronize()
  d.synchronize()
  assert not d.committed


def test_memory_behind_a_table_is_declared_once_in_an_encoder(devices):
  """The double refuses a second time; a new encoder has to be told again."""
  d = devices[0]
  a, b = d.alloc(64), d.alloc(64)
  source = "[[max_total_threads_per_threadgroup(1)]] kernel void k("
  source += "device float* p0 [[buffer(0)]], device const ulong* p1 [[buffer(1)]]) {}"
  call = d.bind(d.compile(Rendered(source), "k"), [a, [a, b]])
  for _ in range(2):
    d.submit_all([d], [d.batch([call] * 3)])
  assert len(kernels(d)) == 6


def test_before_macos_15_options_know_no_math_modes(devices, monkeypatch):
  monkeypatch.setattr(Options, "modes", False)
  devices[0].compile(Rendered("[[max_total_threads_per_threadgroup(1)]] kernel void k() {"), "k")


def test_faults_are_typed_and_the_device_goes_on(devices):
  d = devices[0]
  with pytest.raises(DeviceError, match=r"METAL \(first\): compiling bad: program_source:3:1: error: expected ';'$"):
    d.compile(Rendered("\n\nsyntax error"), "bad")
  with pytest.raises(MemoryError, match=r"METAL: no memory for a buffer of 2147483648 bytes(.|\n)*fix: smaller"):
    d.alloc(1 << 31)
  Tensor(np.ones(40, np.float32), device="METAL").contiguous().add(7).realize()
  d.queue.committed[-1].failure = "Caused GPU Hang Error"
  what = (
    r"METAL \(first\): work that was queued failed: Caused GPU Hang Error\n  among\n    \w+(.|\n)*test_metal.py:\d+"
  )
  with pytest.raises(DeviceError, match=what):
    d.synchronize()
  d.synchronize()
  assert d.alloc(1 << 10).length() == 1 << 10


def test_virtual_devices_share_a_gpu_and_others_are_told_apart(gpus):
  made = [metal.open_device(f"METAL:{i}") for i in range(4)]
  assert [d.gpu.title for d in made] == ["first", "first", "second", "second"]
  assert len({id(d.queue) for d in made}) == 4
  assert made[0].reaches(made[1]) and not made[1].reaches(made[2])
  assert made[3].description == "4 of second" and not made[0].target.float64
  with pytest.raises(DeviceError, match=r"METAL:4: there are 2 Metal devices here\n  fix: METAL_VIRTUAL=n"):
    metal.open_device("METAL:4")


def test_float64_is_refused_and_kernels_know_no_double(devices, gpus):
  with pytest.raises(TypeError, match="float64: METAL has no float64"):
    Tensor(np.ones(3), device="METAL")
  x = Tensor(np.ones(40, np.float32), device="METAL").realize()
  for y in (x.sin(), x**x, x.exp(), x.log(), x.erf(), x.tanh(), x.half().sin(), x.cast("int32") ** x.cast("int32")):
    y.realize()
  assert len(gpus[0].compiled) >= 8 and not [s for s in gpus[0].compiled if "double" in s]


def test_without_a_mac_or_a_gpu_the_error_says_so(gpus, monkeypatch):
  gpus.clear()
  with pytest.raises(DeviceError, match=r"there is no Metal device here\n  fix: GPU=CPU"):
    metal.open_device("METAL")
  monkeypatch.setattr(metal.platform, "system", lambda: "Linux")
  with pytest.raises(DeviceError, match=r"METAL needs macOS \(this is Linux\)\n  fix: GPU=CPU"):
    metal.open_device("METAL")
