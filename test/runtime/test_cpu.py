"""CPU devices: workers, barriers, fork, memory; and the cache of compiled objects."""

import ctypes
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.device import Device, Launch, Rendered
from tinygrad.helpers import PROCESS, Context
from tinygrad.runtime import cpu, diskcache, native
from tinygrad.uop import buffer_of

ADD_ONE = """
define void @add_one(ptr %args) {
  %slot = getelementptr i64, ptr %args, i64 1
  %p = load ptr, ptr %slot
  %x = load i64, ptr %p
  %y = add i64 %x, STEP
  store i64 %y, ptr %p
  ret void
}
"""


def until_set(before):
  """What waits until *flag, between the blocks `before` and `exit`, for so many turns at most that no test hangs."""
  return f"""loop:
  %i = phi i64 [ 0, %{before} ], [ %i1, %loop ]
  %i1 = add i64 %i, 1
  %v = load atomic i64, ptr %flag acquire, align 8
  %set = icmp ne i64 %v, 0
  %late = icmp ugt i64 %i1, 10000000000
  %stop = or i1 %set, %late
  br i1 %stop, label %exit, label %loop
"""


# waits until *flag, and adds the flag's value to *out
WAIT = (
  """
define void @wait(ptr %args) {
entry:
  %s1 = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %s1
  %s2 = getelementptr i64, ptr %args, i64 2
  %flag = load ptr, ptr %s2
  br label %loop
"""
  + until_set("entry")
  + """exit:
  %x = load i64, ptr %out
  %y = add i64 %x, %v
  store i64 %y, ptr %out
  ret void
}
"""
)


def compiled(device, source, name, **launch):
  return device.compile(Rendered(source, Launch(**launch)), name)


def number(device, value=0):
  handle = device.alloc(8)
  device.copyin(handle, memoryview(np.array([value], np.int64)))
  return handle


def read(device, handle):
  out = np.zeros(1, np.int64)
  device.copyout(memoryview(out), handle)
  return int(out[0])


def test_calls_run_in_order_and_copies_wait_for_them():
  device = Device["CPU"]
  add, double = (
    compiled(device, ADD_ONE.replace("add i64 %x, STEP", text), "add_one")
    for text in ("add i64 %x, 1", "mul i64 %x, 3")
  )
  x = number(device, 1)
  device.submit([device.bind(p, [x]) for p in (add, double, add, double)])
  assert read(device, x) == ((1 + 1) * 3 + 1) * 3


def test_launch_returns_before_the_work_is_done_and_two_devices_run_at_once():
  a, b = Device["CPU:1"], Device["CPU:2"]
  program = compiled(a, WAIT, "wait")
  out, flag = number(a), number(a)
  a.submit([a.bind(program, [out, flag])])
  time.sleep(0.05)
  assert ctypes.c_int64.from_address(out.address).value == 0  # still waiting
  store = compiled(b, ADD_ONE.replace("STEP", "5"), "add_one")
  b.submit([b.bind(store, [flag])])  # another worker must set the flag while the first waits for it
  b.synchronize()
  a.synchronize()
  assert read(a, out) == 5


def test_barriers_order_work_across_devices():
  devices = [Device[f"CPU:{i}"] for i in range(4)]
  program = compiled(devices[0], ADD_ONE.replace("STEP", "1"), "add_one")
  shared = number(devices[0])
  barrier = cpu.CPU.barrier(devices)
  for _ in range(50):  # only one device adds in each round; without barriers updates would be lost
    lists = [[] for _ in devices]
    for turn in range(len(devices)):
      for i, device in enumerate(devices):
        if i == turn:
          lists[i] += [device.bind(program, [shared])] * 3
        lists[i].append(barrier[i])
    cpu.CPU.submit_all(devices, lists)
  for device in devices:
    device.synchronize()
  assert read(devices[0], shared) == 50 * 4 * 3


def test_lists_with_barriers_from_several_threads_do_not_cross():
  devices = [Device["CPU:1"], Device["CPU:2"]]
  barriers = [cpu.CPU.barrier(devices) for _ in range(4)]

  def go(pair):
    for _ in range(100):
      cpu.CPU.submit_all(devices, [[pair[0]], [pair[1]]])

  threads = [threading.Thread(target=go, args=(pair,)) for pair in barriers]
  for t in threads:
    t.start()
  for t in threads:
    t.join()
  for device in devices:
    device.synchronize()


def test_who_waits_takes_part_and_queues_wrap_around():
  device = cpu.open_device("CPU:77")
  program = compiled(device, ADD_ONE.replace("STEP", "1"), "add_one")
  x = number(device)
  batch = device.batch([device.bind(program, [x])])
  for i in range(3 * cpu.QUEUED):  # more than a queue holds
    device.submit(batch)
    if i % 50 == 7:
      device.synchronize()
      assert device.done.value == device.submitted == i + 1
  device.synchronize()
  assert read(device, x) == 3 * cpu.QUEUED
  time.sleep(0.05)  # its thread sleeps
  device.submit(batch)
  deadline = time.monotonic() + 10
  while device.done.value < device.submitted and time.monotonic() < deadline:
    time.sleep(0.001)
  assert device.done.value == device.submitted  # nobody waited: the thread woke


def test_brief_jobs_are_run_by_who_submits_them_but_not_before_what_is_queued():
  device = cpu.open_device("CPU:75")
  x, out, flag = number(device), number(device), number(device)
  batch = device.batch([device.bind(compiled(device, ADD_ONE.replace("STEP", "1"), "add_one"), [x])], brief=True)
  device.submit(batch)
  assert ctypes.c_int64.from_address(x.address).value == 1 and device.submitted == device.started == 0
  device.submit([device.bind(compiled(device, WAIT, "wait"), [out, flag])])
  device.submit(batch)
  time.sleep(0.05)
  assert ctypes.c_int64.from_address(x.address).value == 1  # the job before still waits
  ctypes.c_int64.from_address(flag.address).value = 1
  assert read(device, x) == 2


def test_one_thread_computes_what_takes_a_millisecond_itself():
  sizes = [1 << 12, 1 << 19, 1 << 22]  # ours to wait for always, on one thread, and never
  for threads, brief in ((1, [True, True, False]), (2, [True, False, False])):
    with Context(CPU_THREADS=threads):
      device = cpu.open_device(f"CPU:{76 + threads}")
    assert [12 * n < device.worth_waking for n in sizes] == brief


# adds one to the element of its piece, and waits if that is 0 until *flag, which it sets if it is 3
HALVES = {"pieces": 8, "word": 3, "workers": 2}
COUNT = (
  """
define void @count(ptr %args) {
entry:
  %s1 = getelementptr i64, ptr %args, i64 1
  %counts = load ptr, ptr %s1
  %s2 = getelementptr i64, ptr %args, i64 2
  %flag = load ptr, ptr %s2
  %s3 = getelementptr i64, ptr %args, i64 3
  %piece = load i64, ptr %s3
  %p = getelementptr i64, ptr %counts, i64 %piece
  %d = atomicrmw add ptr %p, i64 1 seq_cst
  %third = icmp eq i64 %piece, 3
  br i1 %third, label %sets, label %others
sets:
  store atomic i64 1, ptr %flag release, align 8
  ret void
others:
  %first = icmp eq i64 %piece, 0
  br i1 %first, label %loop, label %exit
"""
  + until_set("others")
  + """exit:
  ret void
}
"""
)


@pytest.mark.parametrize("helpers", [False, True])
def test_each_piece_is_done_once_by_whoever_comes(helpers):
  """Alone, the caller does the pieces of both threads; with a helper, what one of them cannot begin the other does:
  piece 0 is finished after piece 3, of the same half."""
  device = cpu.open_device("CPU:73")
  counts, flag = device.alloc(64), number(device, not helpers)
  device.copyin(counts, memoryview(np.zeros(8, np.int64)))
  batch = device.batch([device.bind(compiled(device, COUNT, "count", **HALVES), [counts, flag])])
  assert len(batch.tables) == 2
  device.started += 2 * (not helpers)
  for _ in range(3):
    device.submit(batch)
    device.synchronize()
    if helpers:
      device.copyin(flag, memoryview(np.zeros(1, np.int64)))
  out = np.zeros(8, np.int64)
  device.copyout(memoryview(out), counts)
  assert out.tolist() == [3] * 8
  device.started -= 2 * (not helpers)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not bind threads to cores")
def test_threads_keep_off_the_core_of_who_submits():
  device = cpu.open_device("CPU:72")
  counts, flag = device.alloc(64), number(device, 1)
  batch = device.batch([device.bind(compiled(device, COUNT, "count", **HALVES), [counts, flag])])
  allowed = os.sched_getaffinity(0)
  try:
    for core in sorted(allowed)[:2]:
      os.sched_setaffinity(0, {core})  # where the caller is then, and stays for a moment
      os.sched_setaffinity(0, allowed)
      device.submit(batch)
      device.synchronize()
      assert device.core in allowed or len(allowed) == 1
      assert [os.sched_getaffinity(t.native_id) for t in device.threads] == [allowed - {device.core} or allowed]
    other = cpu.open_device("CPU:71")
    cpu.CPU.submit_all([device, other], [batch, other.batch([])])  # nobody takes part in the work of both
    device.synchronize()
    assert [os.sched_getaffinity(t.native_id) for t in device.threads] == [allowed] * 2
  finally:
    os.sched_setaffinity(0, allowed)


def test_a_part_waits_for_all_parts_of_the_jobs_before_its_own():
  """One part of the first job is done at once, the other waits; the second job adds to what either has left."""
  device = cpu.open_device("CPU:74")
  x, y, out, flag = (number(device) for _ in range(4))
  program = compiled(device, ADD_ONE.replace("STEP", "1"), "add_one")
  first = device.batch([device.bind(compiled(device, WAIT, "wait"), [out, flag])])
  other = device.batch([device.bind(program, [x])])
  first.tables += other.tables
  device.submit(first, alone=False)  # two threads
  device.submit([device.bind(program, [y])])
  deadline = time.monotonic() + 10
  while device.done.value < 1 and time.monotonic() < deadline:
    time.sleep(0.001)
  time.sleep(0.02)
  assert [ctypes.c_int64.from_address(m.address).value for m in (x, y)] == [1, 0]
  ctypes.c_int64.from_address(flag.address).value = 1
  assert read(device, y) == 1 and device.started == 2 and device.done.value == 3


kept_code = []  # which threads of a device run until the process ends


def test_a_part_that_is_taken_is_run_though_its_place_in_the_queue_is_given_away(monkeypatch):
  """Whoever has taken the first of three parts rests before it runs. The other two are done, so there is room for two
  jobs behind a full queue, in the places of the first two. (Mutant: the table is read when the part is taken.)"""
  taken, go = threading.Event(), threading.Event()

  @ctypes.CFUNCTYPE(None, ctypes.c_int64)
  def rest(part):
    if part == 0:
      taken.set()
      go.wait(60)

  source = Path(cpu.__file__).with_suffix(".ll").read_text()
  for name, value in (("ETIMEDOUT", errno.ETIMEDOUT), ("CLOCK", cpu.CLOCK)):
    source = source.replace(name, str(value))
  before, after = source.rsplit("work:\n", 1)
  call = f"  %rest = inttoptr i64 {ctypes.cast(rest, ctypes.c_void_p).value} to ptr\n  call void %rest(i64 %taken)\n"
  kept_code.append(rest)
  code = native.compile_object(f"{before}work:\n{call}{after}", "resting")
  kept_code.append(there := native.loaded(code, "tg_wait"))
  kept_code.append(waits := ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * 3)(there[0]))
  runtime = cpu._runtime()._replace(wait=waits)
  monkeypatch.setattr(cpu, "_runtime", lambda: runtime)
  device = cpu.open_device("CPU:70")
  program = compiled(device, ADD_ONE.replace("STEP", "1"), "add_one")
  memory = [number(device) for _ in range(4)]
  first, *others, later = [device.batch([device.bind(program, [m])]) for m in memory]
  first.tables += [table for batch in others for table in batch.tables]
  device.submit(first, alone=False)
  assert taken.wait(60)
  deadline = time.monotonic() + 60
  while device.done.value < 2 and time.monotonic() < deadline:
    time.sleep(0.001)
  for _ in range(cpu.QUEUED - 1):
    device.submit(later)
  assert device.done.value == 2
  go.set()
  assert [read(device, m) for m in memory] == [1, 1, 1, cpu.QUEUED - 1]


def test_many_callers_of_a_device_lose_no_job():
  device = cpu.open_device("CPU:76")
  program = compiled(device, ADD_ONE.replace("STEP", "1"), "add_one")
  x = number(device)
  batch = device.batch([device.bind(program, [x])])

  def go():
    for i in range(500):
      device.submit(batch)
      if i % 7 == 0:
        device.synchronize()

  threads = [threading.Thread(target=go) for _ in range(4)]
  for t in threads:
    t.start()
  for t in threads:
    t.join()
  assert read(device, x) == 4 * 500 and not device.pending


def test_lent_memory_lives_as_long_as_a_replay_that_reads_it_is_queued():
  device = Device["CPU"]
  out, flag = number(device), number(device)
  room = np.zeros((1 << 20) + 16, np.float32)
  lent = room[-room.ctypes.data % cpu.ALIGNMENT // 4 :][: 1 << 20]
  alive = weakref.ref(lent)
  step, x, y = TinyJit(lambda x: x * 2 + 1), Tensor.from_dlpack(lent), Tensor(np.ones(1 << 20, np.float32)).realize()
  for given in (y, y, x):
    step(given)
  device.submit([device.bind(compiled(device, WAIT, "wait"), [out, flag])])
  step(x)
  del step, x, lent, given
  gc.collect()
  assert alive() is not None
  ctypes.c_int64.from_address(flag.address).value = 1
  device.synchronize()
  gc.collect()
  assert alive() is None


def test_prepared_calls_take_new_arguments():
  device = Device["CPU"]
  program = compiled(device, ADD_ONE.replace("STEP", "1"), "add_one")
  x, y = number(device, 10), number(device, 20)
  call = device.bind(program, [x])
  device.submit([call])
  device.synchronize()
  call.set_buffer(0, y)
  device.submit([call])
  assert (read(device, x), read(device, y)) == (11, 21)


def test_memory_is_aligned_reused_and_shared_without_a_copy():
  device = Device["CPU"]
  a = device.alloc(1000)
  assert a.address % cpu.ALIGNMENT == 0
  device.free(a, 1000)
  assert device.alloc(1000) is a
  view = np.frombuffer(device.view(a), np.uint8)
  view[:] = 7
  out = np.zeros(1000, np.uint8)
  device.copyout(memoryview(out), a)
  assert (out == 7).all()
  room = np.zeros(4096 + 64, np.uint8)
  start = -room.ctypes.data % cpu.ALIGNMENT
  aligned, odd = room[start : start + 4096], room[start + 1 : start + 4097].view(np.float32)
  assert device.wrap(odd) is None
  wrapped = device.wrap(aligned)
  assert wrapped.address == aligned.ctypes.data
  device.copyin(wrapped, memoryview(np.full(4096, 3, np.uint8)))
  assert (aligned == 3).all()
  device.free(wrapped, 4096)
  assert device.alloc(4096) is not wrapped  # the array's memory is not ours to give away


def test_empty_buffers():
  device = Device["CPU"]
  empty = device.alloc(0)
  device.copyin(empty, memoryview(np.zeros(0, np.float32)))
  device.copyout(memoryview(np.zeros(0, np.float32)), empty)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_devices_work_in_a_forked_child():
  device = Device["CPU"]
  program = compiled(device, ADD_ONE.replace("STEP", "1"), "add_one")
  x = number(device)
  device.submit([device.bind(program, [x])])
  device.synchronize()
  child = os.fork()
  if child == 0:
    device.submit([device.bind(program, [x])])
    os._exit(0 if read(device, x) == 2 else 1)
  deadline = time.monotonic() + 30
  while (result := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
    time.sleep(0.01)
  if result[0] == 0:
    os.kill(child, 9)
    os.waitpid(child, 0)
  assert result[0] == child and result[1] == 0
  assert read(device, x) == 1  # the child has its own memory


# ---- the cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
  number(Device["CPU"])  # opened: what it is made of is kept in the cache too, once for a process
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  return tmp_path / "objects"


def test_objects_are_cached_and_damaged_entries_are_made_anew(cache, monkeypatch):
  made = []
  plain = native.Compiler.object_code
  record = lambda self, source, hurry=False: made.append(source) or plain(self, source, hurry)  # noqa: E731
  monkeypatch.setattr(native.Compiler, "object_code", record)
  source = ADD_ONE.replace("STEP", "41")
  for _ in range(2):
    with PROCESS.anew():
      assert native.compile_kernel(Rendered(source), "add_one").address
  assert len(made) == 1 and len(list(cache.iterdir())) == 1
  entry = next(cache.iterdir())
  whole = entry.read_bytes()
  for damaged in (b"", whole[:-1], whole[:40] + b"\x00" + whole[41:], b"\xff" * len(whole)):
    entry.write_bytes(damaged)
    made.clear()
    device = Device["CPU"]
    with PROCESS.anew():
      program = compiled(device, source, "add_one")
    x = number(device)
    device.submit([device.bind(program, [x])])
    assert read(device, x) == 41
    assert len(made) == (damaged != whole)
    assert entry.read_bytes() == whole


def test_the_key_depends_on_all_parts_and_their_borders():
  assert diskcache.key_of("ab", "c") != diskcache.key_of("a", "bc")
  assert (
    len({diskcache.key_of("ir", "cpu", "features", "version"), diskcache.key_of("ir", "cpu2", "features", "version")})
    == 2
  )


def test_the_longest_unused_entries_are_evicted(cache):
  for i in range(6):
    diskcache.put(f"entry{i}", bytes(1000))
    os.utime(cache / f"entry{i}", (i, i))
  diskcache.get("entry0")  # used just now
  diskcache.evict(3200)
  assert {p.name for p in cache.iterdir()} == {"entry0", "entry4", "entry5"}


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
  blocked = tmp_path / "file"
  blocked.write_text("not a directory")
  monkeypatch.setenv("CACHEDIR", str(blocked))
  diskcache.put("key", b"data")
  assert diskcache.get("key") is None
  assert native.compile_here(ADD_ONE.replace("STEP", "7"), "add_one")[0]


def test_processes_share_the_cache_at_the_same_time(cache):
  script = """
import sys
from tinygrad.runtime import diskcache
for i in range(200):
  key, data = f"k{i % 10}", bytes([i % 10]) * 5000
  diskcache.put(key, data)
  found = diskcache.get(f"k{(i * 7) % 10}")
  assert found is None or found == bytes([(i * 7) % 10]) * 5000
  if i % 20 == 0:
    diskcache.evict(20000)
"""
  root = str(Path(__file__).parents[2])
  environment = {**os.environ, "PYTHONPATH": root}
  workers = [
    subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE) for _ in range(3)
  ]
  for w in workers:
    _, errors = w.communicate(timeout=60)
    assert w.returncode == 0, errors.decode()
  assert not [p for p in cache.iterdir() if p.name.startswith(".")]  # no temporary files left


# ---- NULL


def test_null_devices_hold_and_do_nothing():
  device = Device["NULL:3"]
  assert device.capabilities.simulated and device.alloc(1 << 50) is None
  out = np.ones(8, np.uint8)
  device.copyout(memoryview(out), None)
  assert (out == 0).all()
  device.synchronize()


def test_waiting_can_be_interrupted_and_resumed():
  device = cpu.open_device("CPU:78")
  program = compiled(device, WAIT, "wait")
  out, flag = number(device), number(device)
  device.submit([device.bind(program, [out, flag])])
  while ctypes.c_int64.from_address(device.queue + 8 * 16).value == 0:
    time.sleep(0.001)  # until the device's thread has begun, so that this one only waits
  interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
  interrupt.start()
  with pytest.raises(KeyboardInterrupt):
    device.synchronize()
  ctypes.c_int64.from_address(flag.address).value = 9
  device.synchronize()  # still waits for the work
  assert ctypes.c_int64.from_address(out.address).value == 9


def test_memory_beyond_the_pool_is_given_back_when_the_work_before_is_done(monkeypatch):
  device = cpu.open_device("CPU:79")
  monkeypatch.setattr(device, "kept", 0)
  program = compiled(device, ADD_ONE.replace("STEP", "1"), "add_one")
  x = number(device)
  out, flag = number(device), number(device)
  device.submit([device.bind(compiled(device, WAIT, "wait"), [out, flag])])
  device.submit([device.bind(program, [x])])
  device.free(device.alloc(1 << 20), 1 << 20)
  assert [isinstance(kept, cpu.Memory) for _, kept in device.pending][-1]  # the work may still use it
  ctypes.c_int64.from_address(flag.address).value = 1
  device.synchronize()
  assert not device.pending and device.pooled == 0 and read(device, x) == 1


@pytest.fixture
def resting(monkeypatch):
  """Memory that nobody has needed since the last look rests long enough."""
  monkeypatch.setattr(cpu, "REST", 0.0)
  monkeypatch.setattr(cpu, "FETCHED", 0.0)


def step_of(scale):
  """A step with an intermediate value of a megabyte, and its memory."""
  x = Tensor(np.eye(512, dtype=np.float32)).realize()
  step = TinyJit(lambda: ((x * scale) @ x).contiguous() @ x)
  for _ in range(4):
    assert step().numpy().sum() == 512 * scale
  (batch,) = [b for s in step.captured.stretches for _, batches in s.batches for b in batches]
  return step, [m for m, _ in batch.passing if m.nbytes >= 1 << 20]


def holds_something(memory):
  """In its whole pages."""
  start, end = -(-memory.address // cpu.PAGE), (memory.address + memory.nbytes) // cpu.PAGE
  return any(ctypes.string_at(start * cpu.PAGE, (end - start) * cpu.PAGE).strip(b"\0"))


def test_what_passes_in_a_step_loses_its_pages_while_others_are_replayed(resting):
  (a, mine), (b, _) = step_of(2), step_of(3)
  assert mine
  for _ in range(2):
    a().numpy()
    assert all(map(holds_something, mine))
    for _ in range(4):
      assert b().numpy().sum() == 512 * 3
    assert not any(map(holds_something, mine))
    assert a().numpy().sum() == 512 * 2


def test_memory_of_a_step_that_is_gone_is_somebody_elses(resting):
  (a, mine), (b, _) = step_of(2), step_of(3)
  a().numpy()
  kept = a.captured.stretches[0].batches  # as the queue keeps them for a while  # noqa: F841
  a.reset()
  del a
  gc.collect()
  others = [Tensor.full((mine[0].nbytes // 4,), 7.0 + i).contiguous().realize() for i in range(16)]
  taken = {m.address for m in mine} & {buffer_of(t.uop).handle().address for t in others}
  assert taken
  for _ in range(6):
    b().numpy()
  assert all((t.numpy() == 7 + i).all() for i, t in enumerate(others))


def test_what_passes_is_held_while_a_step_runs_kernel_by_kernel(resting):
  (a, mine), (b, _) = step_of(2), step_of(3)
  a().numpy()
  for m in mine:
    m.held = True  # as when the step's kernels are handed over one by one
  for _ in range(6):
    b().numpy()
  assert all(map(holds_something, mine))
  a().numpy()
  for _ in range(6):
    b().numpy()
  assert not any(map(holds_something, mine))


def test_freed_memory_and_scratch_lose_their_pages_when_nothing_is_at_work(resting):
  b, _ = step_of(3)
  device = Device["CPU"]
  freed = device.alloc(1 << 20)
  ctypes.memset(freed.address, 1, freed.nbytes)
  device.free(freed, freed.nbytes)
  arena = device.scratch(0)
  ctypes.memset(arena, 1, 1 << 16)
  device.synchronize()
  for _ in range(6):
    b().numpy()
  assert not holds_something(freed) and ctypes.string_at(arena + 4096, 1 << 14).count(1) == 0


def test_threads_wait_for_every_buffer_that_a_kernel_writes():
  """The second of two buffers written is read by threads that did not write it: all wait between the kernels, but not
  where the next kernel touches neither. (Mutant: only the first counts.) What is lent twice, or in part, is one
  memory."""
  memory = [cpu.Memory((i + 1) << 12, 64, owner=True) for i in range(5)]

  def call(writes, *slots):
    return cpu.Call(
      None,
      cpu.MachineCode("k", None, Launch(writes=writes, pieces=4, workers=2)),
      0,
      [memory[s] for s in slots],
      ctypes.c_int64(),
      (ctypes.c_int64(),),
    )

  def waits(*calls):
    rows = cpu.deal_out(calls, 2, [])
    assert len(rows[0]) == len(rows[1])
    return len(rows[0]) - len(calls)

  assert waits(call(2, 0, 1, 2), call(1, 3, 1)) == 1
  assert waits(call(2, 0, 1, 2), call(1, 3, 4)) == 0
  assert waits(call(1, 3, 1), call(2, 0, 1, 2)) == 1
  assert waits(call(1, 0, 1), call(1, 2, 0), call(1, 3, 0)) == 1  # all have waited
  assert waits(call(1, 0, 1), call(1, 2, 1), call(1, 1, 3)) == 2  # for each that reads what is written
  memory += [cpu.Memory((1 << 12) + at, 32, owner=True) for at in (0, 60, 64)]
  assert [waits(call(1, 0, 1), call(1, 2, other)) for other in (5, 6, 7)] == [1, 1, 0]
  assert [waits(call(1, 2, other), call(1, 0, 1)) for other in (5, 6, 7)] == [1, 1, 0]


def test_a_captured_step_keeps_the_order_of_tensors_over_one_array():
  """Each kernel waits for what the one before has written, though the second Tensor is other memory, by its address."""
  array = lent(1 << 16)
  x, whole, half = (Tensor.from_dlpack(a) for a in (array, array, array[1 << 15 :]))

  @TinyJit
  def step(k):
    x.assign(x * 0.5 + k.sin()).realize()
    return (whole * 2).realize(), (half + 1).realize()

  with Context(CPU_THREADS=2):
    for i in range(4):
      twice, more = (t.numpy() for t in step(Tensor(np.full(1 << 16, i, np.float32)).realize()))
      np.testing.assert_array_equal(twice, array * 2)
      np.testing.assert_array_equal(more, array[1 << 15 :] + 1)
  assert meetings(step.captured) == [1, 1]


def meetings(captured):
  """How often each thread waits for the others in a captured step."""
  tables = captured.stretches[0].batches[0][1][0].keep[1]
  return [[*table[::2]].count(cpu._runtime().meet) for table in tables]


def lent(n):
  """An array that a Tensor may lie over."""
  room = np.zeros(n + 16, np.float32)
  return room[-room.ctypes.data % cpu.ALIGNMENT // 4 :][:n]


@pytest.mark.parametrize("kind", ("one array", "a part of it", "memory that became an array"))
def test_arguments_that_are_the_same_bytes_only_later_are_captured_apart(kind):
  """A step that was captured with arrays apart has no thread wait for the other; nor does it know that two are one."""
  n = 1 << 16

  @TinyJit
  def step(x, y, k):
    x.assign(x * 0.5 + k.sin()).realize()
    return (y * 2).realize()

  def arguments(together):
    if kind == "memory that became an array":
      x = Tensor(lent(n)).contiguous().realize()
      return x, Tensor.from_dlpack(np.from_dlpack(x) if together else lent(n))
    a = lent(n)
    part = a if kind == "one array" else a[: n // 2]
    return Tensor.from_dlpack(a), Tensor.from_dlpack(part if together else lent(len(part)))

  with Context(CPU_THREADS=2):
    captured = []
    for i, together in enumerate((False, False, False, True, True, True, False, True)):
      (x, y), k = arguments(together), Tensor(np.full(n, i, np.float32)).realize()
      before = y.numpy()
      result = step(x, y, k).numpy()
      np.testing.assert_array_equal(result, (x.numpy()[: len(before)] if together else before) * 2)
      captured.append(step.captured)
  apart, one = captured[2], captured[5]
  assert captured == [None, apart, apart, None, one, one, apart, one] and apart is not one
  assert [meetings(c) for c in (apart, one)] == [[0, 0], [1, 1]]


def test_an_argument_that_is_bytes_of_a_steps_own_memory_only_later_is_captured_apart():
  n = 1 << 16
  array = lent(n)
  x = Tensor.from_dlpack(array)

  @TinyJit
  def step(y, k):
    x.assign(x * 0.5 + k.sin()).realize()
    return (y * 2).realize()

  with Context(CPU_THREADS=2):
    for i, part in enumerate([lent(n // 2), lent(n // 2), lent(n // 2), *[array[n // 2 :]] * 3]):
      result = step(Tensor.from_dlpack(part), Tensor(np.full(n, i, np.float32)).realize()).numpy()
      np.testing.assert_array_equal(result, part * 2)
      assert step.captured is None or meetings(step.captured) == ([0, 0] if i < 3 else [1, 1])
