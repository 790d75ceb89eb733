"""From a canonical graph to a plan: localize, schedule, and a program for each kernel; kept for equal graphs."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinygrad.debug.estimate import estimate
from tinygrad.device import Computes, Device, Target, one_of_each_kind, refuse
from tinygrad.engine.canonical import canonical
from tinygrad.engine.errors import UnboundError
from tinygrad.engine.forms import generalize
from tinygrad.helpers import (
  BEAM,
  CHECK_NAN,
  CPU_THREADS,
  DEBUG,
  KEPT_KERNELS,
  KERNEL_SCHEDULES,
  PLAN_CACHE,
  PROCESS,
  SIM,
  SPEC,
  TILE_AND_FUSE,
  VIZ,
  ContextVar,
  LazyModule,
  Settings,
  cores,
  say,
  settings_from,
  span,
  watched,
)
from tinygrad.uop import DEVICE_NUM, Ops, UOp, print_graph

if TYPE_CHECKING:
  from tinygrad import codegen
  from tinygrad.debug import cost as costs
  from tinygrad.debug import report as moves
  from tinygrad.runtime import overlap, plans
  from tinygrad.runtime.plans import CompiledKernel, Plan
  from tinygrad.schedule import schedule as scheduling
  from tinygrad.schedule.items import Schedule
  from tinygrad.sharding import localize as sharding
  from tinygrad.tuning import by_hand, search
  from tinygrad.viz import recorder
else:  # the stages, imported by the first realize: a script that only imports the package does not wait for them
  of = "codegen", "tuning.by_hand", "tuning.search", "runtime.plans", "schedule.schedule", "sharding.localize"
  codegen, by_hand, search, plans, scheduling, sharding = (LazyModule(f"tinygrad.{name}") for name in of)
  costs, moves, overlap = (LazyModule(f"tinygrad.{name}") for name in ("debug.cost", "debug.report", "runtime.overlap"))
  recorder = LazyModule("tinygrad.viz.recorder")

INTERPRET = ContextVar("INTERPRET", 0, "schedule")  # 1: evaluate the localized graph in numpy instead of compiling it
CACHED_ITEMS = 1 << 15  # of all plans that are kept; a plan counts as 32 at least
TURN = 2e-4  # seconds
BYTES_OF_WORK = 16  # that take as long as an operation
MOST_BUFFERS = 1 << 40  # of one graph
_programs: dict[tuple[UOp, Target, int, Settings], CompiledKernel] = PROCESS.table(KEPT_KERNELS)
_plans: dict[tuple[Any, ...], Plan] = PROCESS.table(CACHED_ITEMS, lambda plan: max(len(plan.items), 32))
_renumbered = itertools.count(1)


def program(ast: UOp, device: str, threads: int = 1) -> CompiledKernel:
  """The compiled kernel; once per AST and target. With `threads`, that many of the device's share it out if it pays."""
  backend = Device[device]
  key = (ast, backend.target, threads, settings_from("code"))
  if (found := _programs.get(key)) is not None:
    return found
  cost, code, peers = estimate(ast), None, frozenset[int]()
  simulated = SIM and backend.capabilities.simulated  # what it costs is all that anybody asks
  if ast.op is Ops.CALL and not simulated:
    code = backend.compile_source(dict(ast.arg.sources)[backend.kind], ast.arg.name, len(ast.src), ast.arg.dims)
  elif not simulated:
    if DEBUG >= 3:
      say(f"# kernel {cost.name}\n{print_graph(ast)}")
    with span("codegen", kernel=cost.name):
      given = by_hand.given(cost.name, backend.target) if KERNEL_SCHEDULES else None
      planner = given or (search.planner(ast, backend, threads, cost.name) if BEAM.value > 0 else None)
      linear = codegen.lower_kernel(ast, backend.target, threads, planner)
      if given is not None:
        given.check()
    with span("render", kernel=cost.name):
      rendered = backend.render(linear, cost.name)
    if DEBUG >= 5:
      say(f"# {rendered.launch}\n{rendered.source}")
    if not watched():  # then what is measured is the code that stays
      rendered = rendered._replace(work=cost.ops + cost.nbytes // BYTES_OF_WORK)
    peers = frozenset(u.arg.slot for u in ast.toposort() if u.op is Ops.PARAM and u.arg.peers)
    code = backend.compile(rendered, cost.name)
    if VIZ:
      recorder.compiled(code, ast, rendered)
  found = _programs[key] = plans.CompiledKernel(cost.name, code, cost.ops, cost.nbytes, peers, plans.mark_of(ast))
  return found


def make_plan(sink: UOp, first: int = -1) -> Plan:
  """Localizes, schedules and compiles a canonical graph, whose buffers are numbered from `first` down."""
  if any(u.op is Ops.HOLE for u in sink.toposort()):
    rule = "a value is read or realized that has none: its function (of vmap, scan, a custom op, …) is being traced"
    refuse(rule, "return it and read the result; pass in what is computed outside")
  with span("localize"):
    local = sharding.localize(sink)
  for level, what, graph in ((7, "the graph, in the global view", sink), (6, "the program of each device", local)):
    if DEBUG >= level:
      say(f"# {what}\n{print_graph(graph)}")
  devices = [d for u in local.toposort() if u.op is Ops.BUFFER for d in one_of_each_kind(u.arg.device)]
  how = {Device.capabilities(d).computes for d in devices}
  if INTERPRET or Computes.INTERPRETED in how or how == {Computes.ON_HOST}:
    slots = tuple(first - u.arg.uid for u in local.toposort() if u.op is Ops.BUFFER)
    return plans.Plan((), (), slots, (), local=local)
  before, collects = sys.getswitchinterval(), gc.isenabled()
  sys.setswitchinterval(TURN)  # a backend's thread that compiles needs the interpreter often and briefly
  gc.disable()  # what is made here is no garbage that only the collector finds
  try:
    with span("schedule"):
      schedule = schedule_of(local, devices)
    mine = {d for i in schedule.items for d in i.devices if Device.capabilities(d).processor}
    threads = CPU_THREADS.value or max(cores() // max(len(mine), 1), 1)  # of each of them, for one kernel
    kernels = ((i.kernel, i.devices[0]) for i in schedule.items)
    programs = tuple(program(k, d, threads) if isinstance(k, UOp) else None for k, d in kernels)
  finally:
    sys.setswitchinterval(before)
    if collects:
      gc.enable()
  names = frozenset(name for i in schedule.items for name in {*i.variables} - dict(i.constants).keys())
  slots = tuple(first - u.arg.uid for u in schedule.buffers)
  return plans.Plan(schedule.items, programs, slots, schedule.temps, names - {DEVICE_NUM})


def kept_plan(sink: UOp) -> Plan:
  """The plan of a canonical graph: from disk, if a process has left it there, else made, and left there."""
  devices = dict.fromkeys(d for u in sink.toposort() if u.op is Ops.BUFFER for d in one_of_each_kind(u.arg.device))
  alone = Device.world is None or BEAM.value <= 0  # several processes search together, or none of them
  if INTERPRET or SPEC >= 2 or not (PLAN_CACHE and alone) or (key := plans.plan_key(sink, devices)) is None:
    return make_plan(sink)
  if (plan := plans.stored_plan(key)) is None:
    plans.expect(tuple(devices))
    plan = make_plan(sink)
    if plan.local is None:
      plans.store_plan(key, plan)
  return plan


def schedule_of(local: UOp, devices: Sequence[str]) -> Schedule:
  """The schedule of a local graph whose memory is on devices of these kinds."""
  targets = {Device[d].target for d in devices if Device.capabilities(d).computes is Computes.KERNELS}
  target = targets.pop() if len(targets) == 1 else scheduling.ANY_TARGET
  ahead = not any(Device.capabilities(d).simulated for d in devices)
  arrange = scheduling.as_is if target.overlaps is None else overlap.hiding(costs.prices(target.overlaps), ahead)
  return scheduling.create_schedule(local, bool(TILE_AND_FUSE) and not CHECK_NAN and target.fuses, target, arrange)


def plan_of(sink: UOp, once: bool = False) -> tuple[Plan, list[UOp], dict[str, int]]:
  """The plan of a graph, from the cache if an equal one has been made, with its buffers by slot and its variables'
  values. What runs `once` may have the plan of a graph with other numbers, which are variables then."""
  key_sink, buffers, values = canonical(sink)
  key: tuple[Any, ...] = (key_sink, settings_from("placement"))
  first = -1
  if watched():  # a plan that tells lines is of these lines only, and of nodes that no other plan has
    key += (tuple(u.origin for u in sink.toposort()),)
    first -= next(_renumbered) * MOST_BUFFERS
  if (plan := _plans.get(key)) is None and once and first == -1:
    key_sink, values = generalize(key_sink, values)
    plan = _plans.get(key := (key_sink, *key[1:]))
  if plan is None:
    if first != -1:
      key_sink = canonical(sink, first)[0]
    plan = kept_plan(key_sink) if first == -1 else make_plan(key_sink, first)
    if VIZ:
      recorder.planned(plan, key_sink, moves.moves_of(key_sink))
    _plans[key] = plan
  if KERNEL_SCHEDULES:
    by_hand.note_planned([p.name for p in plan.programs if p is not None])
  if missing := sorted(plan.variables - values.keys()):
    raise UnboundError(missing)
  return plan, [buffers[i] for i in plan.buffers], values
