"""Plans as data, and on disk: a process that computes what another has computed neither schedules nor compiles it.

An entry is kept by everything that a plan follows from: the graph, written out; the settings; what codegen knows of
each device; the cores; and this package's own files, by their sizes and times. It is JSON: the kernels by their names
in the cache of objects, what each is called with, and the memory between them."""

from __future__ import annotations

import enum
import functools
import os
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tinygrad.device import Device, DeviceError, Mesh, Placement, ShardError, Sharding, SubAxis
from tinygrad.device.reach import within_reach
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import PACKAGE, LazyModule, blake2b, cores, json, settings_from, stamp, started
from tinygrad.runtime import diskcache
from tinygrad.schedule.items import ScheduleItem, Temp, Transfer
from tinygrad.uop import UOp

if TYPE_CHECKING:
  from tinygrad import codegen
  from tinygrad.renderer import llvm
  from tinygrad.schedule import schedule as scheduling
else:
  codegen, llvm, scheduling = map(
    LazyModule, ("tinygrad.codegen", "tinygrad.renderer.llvm", "tinygrad.schedule.schedule")
  )


class Unwritten(Exception):
  """Something that is no plain data: a function of the user's, a device that keeps no programs."""


# what reading an entry may raise that is no plan
GARBLED = (ValueError, TypeError, KeyError, IndexError, ArithmeticError, DeviceError, ShardError, Unwritten)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledKernel:
  """A kernel, compiled for one kind of device, and what a run of it costs (debug/estimate.py)."""

  name: str
  code: Any
  ops: int
  nbytes: int
  peers: frozenset[int]  # the parameters that are tables of every device's memory
  mark: str = ""  # a digest of what it computes, by which processes know that they do the same

  def __str__(self) -> str:
    return f"{self.name} {self.mark}"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
  """A schedule with its programs. `programs[i]` is None for a Transfer. With `local`, the localized graph, it is
  interpreted instead."""

  items: tuple[ScheduleItem, ...]
  programs: tuple[CompiledKernel | None, ...]
  buffers: tuple[int, ...]  # slot -> which of the canonical graph's buffers
  temps: tuple[Temp, ...]
  variables: frozenset[str] = frozenset()
  local: UOp | None = None


# ---------------------------------------------------------------- keys


@functools.cache
def code_stamp() -> str:
  """This package's files. Raises Unwritten where it is not a folder of files."""
  files = sorted(
    os.path.join(folder, f) for folder, _, fs in os.walk(PACKAGE) for f in fs if f.endswith((".py", ".ll"))
  )
  if not files:
    raise Unwritten
  return stamp(files)


def plan_key(sink: UOp, devices: Iterable[str]) -> str | None:
  """The name of the entry of a canonical graph on devices; None for a graph that is not all plain data."""
  targets = [repr(Device[d].target) for d in devices]
  try:
    return diskcache.key_of(
      "plan", code_stamp(), *settings_from("placement").values, str(cores()), *targets, text(sink)
    )
  except Unwritten:
    return None


def mark_of(kernel: UOp) -> str:
  """A few letters that differ where kernels compute something else; none where a kernel is not all plain data."""
  try:
    return blake2b(text(kernel).encode(), digest_size=4).hexdigest()
  except Unwritten:
    return ""


def text(sink: UOp) -> str:
  """A graph, written out: equal texts are of equal graphs. Raises Unwritten."""
  numbers: dict[UOp, int] = {}
  lines: list[str] = []

  def add(root: UOp) -> int:
    for u in root.toposort():
      if u not in numbers:
        arg = "" if u.arg is None else arg_text(u.arg, add)
        numbers[u] = len(numbers)
        lines.append(f"{u.op.name} {u.dtype!r} {arg} {[numbers[s] for s in u.src]}")
    return numbers[root]

  add(sink)
  return "\n".join(lines)


def arg_text(x: Any, add: Any) -> str:
  """A node's arg: what it is and what is in it. Nodes in it are added to the graph's."""
  if isinstance(x, float) and x != x:
    return struct.pack("<d", x).hex()  # one of many
  if x is None or isinstance(x, (bool, int, float, str, DType)):
    return repr(x)
  if isinstance(x, UOp):
    return f"%{add(x)}"
  if isinstance(x, Sharding):
    return f"Sharding{x.home.shape}{placement_data(x)}"  # which devices are near, says the first mesh of them
  if isinstance(x, enum.Enum):
    return str(x)
  if isinstance(x, (tuple, list)):
    return f"{type(x).__name__}({', '.join([arg_text(y, add) for y in x])})"
  if is_dataclass(x) and type(x).__module__.startswith("tinygrad."):
    return f"{type(x).__name__}({', '.join([arg_text(getattr(x, f.name), add) for f in fields(x)])})"
  raise Unwritten


# ---------------------------------------------------------------- entries


def placement_data(placement: Placement) -> Any:
  """A placement as JSON has it: a name, or devices, cuts and what it is partial by."""
  if isinstance(placement, str):
    return placement
  partial = [[o.op.name, o.disjoint, [[d.size, d.stride] for d in o.sub_axes]] for o in placement.partial]
  return [list(placement.devices), [[[d.size, d.stride] for d in dim] for dim in placement.dims], partial]


def placement_of(data: Any) -> Placement:
  """Raises Unwritten for one that is partial, which is nowhere in a schedule."""
  if isinstance(data, str):
    return data
  devices, dims, partial = data
  if partial:
    raise Unwritten
  made: Placement = Sharding.of(Mesh(tuple(devices)), [[SubAxis(int(n), int(s)) for n, s in dim] for dim in dims])
  return made


def store_plan(key: str, plan: Plan) -> None:
  """Stores a plan, if another process will find the code of all its programs."""
  numbers: dict[CompiledKernel, int] = {}
  programs, items = list[Any](), list[Any]()
  if any(is_apart(item) for item in plan.items):
    return
  for item, p in zip(plan.items, plan.programs):
    if p is not None and p not in numbers:
      backend = Device[item.devices[0]]
      if (code := backend.stored(p.code)) is None or any(Device[d].kind != backend.kind for d in item.devices):
        return
      numbers[p] = len(numbers)
      programs.append([p.name, code, p.ops, p.nbytes, sorted(p.peers), p.mark])
    what = transfer_data(item.kernel) if p is None else numbers[p]
    counts = item.peers, item.writes, item.constants, item.after
    items.append([what, item.slots, item.devices, item.variables, *counts])
  temps = [[placement_data(t.device), t.nbytes] for t in plan.temps]
  data = {"programs": programs, "items": items, "buffers": plan.buffers, "temps": temps}
  diskcache.put(key, json.dumps(data | {"variables": sorted(plan.variables)}).encode())


def stored_plan(key: str) -> Plan | None:
  """The plan that was stored; None if there is none that can be read, or a kernel of it is gone."""
  if (data := diskcache.get(key)) is None:
    return None
  try:
    return _read(json.loads(data))
  except GARBLED:  # not what `store_plan` writes
    return None


@functools.cache
def expect(devices: Sequence[str]) -> None:
  """A plan that is not on disk foretells others: what makes them is loaded while the caller still makes its inputs."""
  for device in devices:
    Device[device].expect()
  if not _loaders:
    stages = lambda: (scheduling.create_schedule, codegen.lower_kernel, llvm.render)  # noqa: E731
    if (loader := started("loading", stages)) is not None:
      _loaders.append(loader)
      os.register_at_fork(before=loader.join)  # a child would wait for ever for what is half imported


_loaders: list[threading.Thread] = []


def is_apart(item: ScheduleItem) -> bool:
  """Whether it reads of devices that its own do not reach: the kernel itself, which no entry has, tells what."""
  return item.peers and len(within_reach(item.devices)) > 1


def transfer_data(kernel: Any) -> Any:
  assert isinstance(kernel, Transfer), kernel
  return [list(kernel.shape), kernel.dtype.name, placement_data(kernel.source), placement_data(kernel.result)]


def _read(data: Any) -> Plan | None:
  temps = tuple(Temp(placement_of(device), int(nbytes)) for device, nbytes in data["temps"])
  buffers = _numbers(data["buffers"])
  users: dict[int, str] = {}
  items, used = list[ScheduleItem](), list[int | None]()
  for what, slots, devices, variables, peers, writes, constants, after in data["items"]:
    kernel = None
    if isinstance(what, list):
      shape, dtype, source, result = what
      kernel = Transfer(_numbers(shape), dtypes.by_name[dtype], placement_of(source), placement_of(result))
    told = tuple((str(name), int(value)) for name, value in constants)
    where, names = tuple(map(str, devices)), tuple(map(str, variables))
    flags = bool(peers), (), int(writes), told, _numbers(after)
    items.append(ScheduleItem(kernel, _numbers(slots), where, names, *flags))
    used.append(None if kernel is not None else int(what))
    if kernel is None:
      users[int(what)] = where[0]
  if any(not 0 <= s < len(buffers) + len(temps) for item in items for s in (*item.slots, *item.after)):
    raise ValueError("a slot that nothing is in")
  if any(is_apart(item) for item in items):
    return None
  programs = [_program(users[i], *fields) for i, fields in enumerate(data["programs"])]
  if any(p.code is None for p in programs):
    return None
  mine = tuple(None if i is None else programs[i] for i in used)
  return Plan(tuple(items), mine, buffers, temps, frozenset(map(str, data["variables"])))


def _program(
  device: str, name: str, code: Any, ops: int, nbytes: int, peers: Sequence[int], mark: str
) -> CompiledKernel:
  found = Device[device].restore(str(name), code)
  return CompiledKernel(str(name), found, int(ops), int(nbytes), frozenset(_numbers(peers)), str(mark))


def _numbers(data: Iterable[Any]) -> tuple[int, ...]:
  return tuple(map(int, data))
