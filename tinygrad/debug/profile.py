"""What `DEBUG=2` shows of a kernel: its time, and how near that is to what the machine can do.

The roofline is measured with kernels of our own, the first time that a kind of device is asked for. A kernel's share is
the time that the nearer of the two bounds allows it, by the time that it took; what lies in a cache, or is narrower
than float32, may exceed it.
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

from tinygrad.device import Buffer, Device, short_devices
from tinygrad.dtype import dtypes
from tinygrad.helpers import (
  DEBUG,
  PROFILE,
  VIZ,
  Context,
  GlobalCounters,
  colored,
  cores,
  json,
  note,
  numpy,
  processor_model,
  say,
  size_to_str,
  source_line,
)
from tinygrad.runtime import diskcache
from tinygrad.schedule.items import ScheduleItem, Transfer
from tinygrad.uop import DEVICE_NUM, Ops, UOp, buffer_of
from tinygrad.viz import recorder

MATMUL, SUM = 1024, 1 << 25
RUNS, ENOUGH = 12, 0.5  # at most so many, and no more after so many seconds
WIDTH = 100  # columns of a line
VERSION = "1"  # of what is measured


PlanOf = Callable[[UOp], tuple[Any, list[UOp], dict[str, int]]]  # the engine's: the plan of a graph, and its buffers


def item_name(item: ScheduleItem, name: str, number: str = "") -> str:
  """Where an item runs, and its name (yellow if it reads from other devices)."""
  return f"*** {short_devices(item.devices):7s} {number}{colored(f'{name:20s}', 'yellow' if item.peers else None)}"


def label(item: ScheduleItem, name: str) -> str:
  """The same with the memory in use."""
  return f"{item_name(item, name)} mem {size_to_str(GlobalCounters.mem_used):>8s}"


def profile_line(item: ScheduleItem, name: str, ops: int, nbytes: int, seconds: float, plan_of: PlanOf) -> str:
  """Where it runs, its number and name, its time, rates, share of the roofline, the memory in use and the user's line:
  in 100 columns, of which long names take those of the memory."""
  text = f"{item_name(item, name, f'{GlobalCounters.kernel_count:4d} ')} {seconds * 1e6:8.1f} us"
  text += f" {ops / seconds * 1e-9:5.1f} GFLOP/s {nbytes / seconds * 1e-9:5.1f} GB/s"
  kind = item.devices[0].partition(":")[0]
  # a copy is the host's work, and may be to where nothing is computed (NPY, a disk)
  share = ""
  if not isinstance(item.kernel, Transfer) and not Device[item.devices[0]].capabilities.simulated:
    most_ops, most_bytes = peaks(kind, plan_of)
    machines = 1 if Device[kind].capabilities.processor else len(item.devices)
    share = f"{max(ops / most_ops, nbytes / most_bytes) / seconds / machines:4.0%}"
  origin = next((origin for _, origin in item.computes if origin), None)
  line = f" {source_line(*origin).partition(': ')[0]}" if origin else ""
  memory = f" {size_to_str(GlobalCounters.mem_used):>8s}"
  visible = len(text) + 5 + len(memory) + len(line)
  return f"{text} {share:4s}{memory if visible <= WIDTH or not line else ''}{line}"


def tell_times(stretch: Any, start: float, end: float, plan_of: PlanOf) -> None:
  """What is told of work (engine/run.py: Stretch) that ran between these seconds: DEBUG's line of the one item, and the
  events of traces; those of a stretch with stamps have the times of each kernel on each device."""
  first, seconds = stretch.work[0], end - start
  GlobalCounters.time_sum_s += seconds
  if DEBUG >= 2:
    say(profile_line(first.item, first.name, stretch.ops, stretch.nbytes, seconds, plan_of))
  if PROFILE.value and not first.simulated:
    rates = {"GFLOP/s": stretch.ops / seconds * 1e-9, "GB/s": stretch.nbytes / seconds * 1e-9}
    computes = [f"{op} at {source_line(*origin)}" if origin else op for op, origin in first.item.computes]
    said = {"flops": stretch.ops, "bytes": stretch.nbytes, **rates, "computes": computes}
    for device in first.item.devices:
      note(device, first.name, start, end, said | recorder.item_of(first.item))
  elif VIZ.value and stretch.stamps:
    for w, d, before, after in stretch.stamps:
      note(w.item.devices[d], w.name, before.seconds, after.seconds, recorder.item_of(w.item))
  elif VIZ.value and not first.simulated:
    for device in first.item.devices:
      note(device, first.name, start, end, recorder.item_of(first.item))
  if VIZ.value:
    for w in stretch.work:
      kind = w.item.devices[0].partition(":")[0]
      if w.program is not None and not w.simulated and kind not in recorder.PEAKS:
        recorder.PEAKS[kind] = (*peaks(kind, plan_of), Device[kind].capabilities.processor)


@functools.cache
def peaks(kind: str, plan_of: PlanOf) -> tuple[float, float]:
  """(operations, bytes) a second that kernels of ours reach: on the CPU with all cores, else on one device. Of a CPU
  that has nothing else to do they are kept on disk, by its model. Prints them."""
  target, processor, model = Device[kind].target, Device[kind].capabilities.processor, processor_model()
  key = diskcache.key_of("peaks", VERSION, model, str(cores()), str(target))
  if processor and (found := diskcache.get(key)):
    ops, nbytes = json.loads(found)
  else:
    ops, nbytes = rates_now(kind, plan_of)
    if processor and os.getloadavg()[0] < cores() / 2:
      diskcache.put(key, json.dumps((ops, nbytes)).encode())
  if VIZ and DEBUG < 2:
    return ops, nbytes
  where = f"{model}, {cores()} cores" if processor else "one device"
  say(f"*** {kind}: % is of the nearer of two bounds, measured on {where}:")
  say(f"*** {kind}: {ops * 1e-9:.0f} GFLOP/s (a float32 matmul), {nbytes * 1e-9:.0f} GB/s (a sum)")
  return ops, nbytes


def rates_now(kind: str, plan_of: PlanOf) -> tuple[float, float]:
  """(operations, bytes) a second of a float32 matmul and of a sum, now: in at most some seconds, nothing is printed."""
  device = Device.local(kind)[0]  # the first one of all may be another process's
  a, b = (UOp.buffer((MATMUL, MATMUL), dtypes.float32, device) for _ in range(2))
  n, x = MATMUL, UOp.buffer((SUM,), dtypes.float32, device)
  product = a.reshape((n, 1, n)).expand((n, n, n)).alu(Ops.MUL, b.reshape((1, n, n)).expand((n, n, n)))
  seconds = [fastest(value, device, plan_of) for value in (product.r(Ops.ADD, (2,)), x.r(Ops.ADD, (0,)))]
  return 2 * n**3 / seconds[0], 4 * SUM / seconds[1]


def fastest(value: UOp, device: str, plan_of: PlanOf) -> float:
  """Seconds of the best of some runs of the kernels for a value of buffers, which are filled with ones."""
  with Context(DEBUG=0, PROFILE=0, VIZ=0, CHECK_NAN=0, NOOPT=0, BEAM=0, CPU_THREADS=0):
    plan, buffers, _ = plan_of(UOp.sink(UOp.buffer(value.shape, value.dtype, device).assign(value)))
    memory = [*map(buffer_of, buffers), *(Buffer(device, (t.nbytes,), dtypes.uint8) for t in plan.temps)]
    backend, calls = Device[device], list[Any]()
    backend.settle([kernel.code for kernel in plan.programs if kernel is not None])
    for item, kernel in zip(plan.items, plan.programs, strict=True):
      assert kernel is not None
      known = {DEVICE_NUM: 0, **dict(item.constants)}
      handles = [memory[s].allocate().handle() for s in item.slots]
      calls.append(backend.bind(kernel.code, handles, [known[name] for name in item.variables]))
    batch = backend.batch(calls)
    for m in memory[: len(buffers)]:
      backend.copyin(m.handle(), memoryview(numpy.ones(m.shape, numpy.float32)).cast("B"))
    times: list[float] = []
    # the first may wait for a driver's compiler
    while len(times) < 2 or (len(times) < RUNS and sum(times[1:]) < ENOUGH):
      start = time.perf_counter()
      backend.submit_all([backend], [batch])
      backend.synchronize()
      times.append(time.perf_counter() - start)
  return min(times)
