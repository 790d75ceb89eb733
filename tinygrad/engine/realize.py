"""From lazy values to memory: the one place that names all stages.

`realize` gives each root a buffer, then: canonical graph (buffers numbered, variables unbound) → `localize` →
`create_schedule` → a compiled `Plan`, cached under the canonical graph → `run`. Nothing here loops over the devices
of a simulated backend.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinygrad.device import Buffer, Device, Placement, Sharding, Target, device_set, one_of_each_kind
from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.engine.estimate import Estimate, estimate

# isort: off
from tinygrad.helpers import (
  BEAM,
  CHECK_NAN,
  CPU_THREADS,
  DEBUG,
  PROFILE,
  TILE_AND_FUSE,
  ContextVar,
  GlobalCounters,
  LazyModule,
)
from tinygrad.helpers import Settings, cores, note, numpy, prod, settings_from, source_line, span, watched

# isort: on
from tinygrad.uop import DEVICE_NUM, BufferArg, GroupOp, Ops, UOp, buffer_of, print_graph, simplify, substitute
from tinygrad.uop.node import map_arg, stored, uops_in, viewed

if TYPE_CHECKING:
  from tinygrad.schedule.items import ScheduleItem, Temp, Transfer

# the stages, imported by the first realize: a script that only imports the package does not wait for them
sharding, moves, scheduling = map(
  LazyModule, ("tinygrad.sharding.localize", "tinygrad.sharding.report", "tinygrad.schedule.schedule")
)
codegen, interpreter = map(LazyModule, ("tinygrad.codegen", "tinygrad.runtime.python"))
check_nan, profile, search = (LazyModule(f"tinygrad.engine.{name}") for name in ("check_nan", "profile", "search"))

Box = tuple[tuple[int, int], ...]  # for each dim a half-open range
INTERPRET = ContextVar("INTERPRET", 0, "schedule")  # 1: evaluate the localized graph in numpy instead of compiling it
REARRANGED = frozenset((Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND))  # two of a kind in a row are one
CACHED_PLANS = 1024
TURN = 2e-4  # seconds
MOST_BUFFERS = 1 << 40  # of one graph
BRIEF = 1 << 19  # operations and bytes that take less time than waking a thread for them
STAGED = 16 << 20  # bytes of a copy that pass through the host at once

# ---------------------------------------------------------------- programs


@dataclass(frozen=True, slots=True, eq=False)
class CompiledKernel:
  """A kernel, compiled for one kind of device."""

  name: str
  code: Any
  cost: Estimate
  peers: frozenset[int]  # the parameters that are tables of every device's memory


_programs: dict[tuple[UOp, Target, int, Settings], CompiledKernel] = {}


def program(ast: UOp, device: str, threads: int = 1) -> CompiledKernel:
  """The compiled kernel; once per AST and target. With `threads`, that many of the device's share it out if it pays."""
  backend = Device[device]
  key = (ast, backend.target, threads, settings_from("code"))
  if (found := _programs.get(key)) is None:
    cost = estimate(ast)
    if DEBUG >= 3:
      print(f"# kernel {cost.name}\n{print_graph(ast)}")
    with span("codegen", kernel=cost.name):
      planner = search.planner(ast, backend, threads, cost.name) if BEAM else None
      linear = codegen.lower_kernel(ast, backend.target, threads, planner)
    with span("render", kernel=cost.name):
      source = backend.render(linear, cost.name)
    if DEBUG >= 5:
      print(source)
    peers = frozenset(u.arg.slot for u in ast.toposort() if u.op is Ops.PARAM and u.arg.peers)
    found = _programs[key] = CompiledKernel(cost.name, backend.compile(source, cost.name), cost, peers)
  return found


# ---------------------------------------------------------------- plans


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
  """A schedule with its programs. `programs[i]` is None for a Transfer. With `local`, the localized graph, it is
  interpreted instead.
  """

  items: tuple[ScheduleItem, ...]
  programs: tuple[CompiledKernel | None, ...]
  buffers: tuple[int, ...]  # slot -> which of the canonical graph's buffers
  temps: tuple[Temp, ...]
  variables: frozenset[str] = frozenset()
  local: UOp | None = None


@dataclass(slots=True, eq=False)
class Run:
  """One execution: a plan with its memory (buffers of the slots, then temporaries) and the values of its variables."""

  plan: Plan
  memory: list[Buffer]
  variables: dict[str, int]


_plans: dict[tuple[Any, ...], Plan] = {}
_renumbered = itertools.count(1)
random_states: weakref.WeakKeyDictionary[UOp, tuple[int, int, int]] = weakref.WeakKeyDictionary()
"""What random numbers are computed from (mixin/random.py): memory that is nobody's."""
recorders: list[Callable[[Run], None]] = []  # the JIT that captures, if one does: told of every run


def canonical(sink: UOp, first: int = -1) -> tuple[UOp, list[UOp], dict[str, int]]:
  """`sink` with its buffers numbered in order, from `first` down, and its variables unbound: the key of its plan. Also
  the buffers, and the variables' values.

  Raises ValueError if a variable is bound to two values.
  """
  buffers: list[UOp] = []
  values: dict[str, int] = {}
  mapping: dict[UOp, UOp] = {}
  changed: list[UOp] = []  # what does not only follow from its changed sources
  copies = itertools.count()  # each CONTIGUOUS is told apart by a number, which here becomes its place in the order

  def unbind(u: UOp) -> None:
    variable, value = u.unbind()
    name = variable.arg[0]
    if values.setdefault(name, value) != value:
      problem = f"variable {name} is bound to {values[name]} and to {value} in one computation"
      raise ValueError(f"{problem}\n  fix: bind it once, or use two names")
    mapping[u] = variable

  for u in sink.toposort():
    if u.op is Ops.BUFFER:
      mapping[u] = UOp.new(Ops.BUFFER, u.dtype, (), BufferArg(first - len(buffers), u.arg.shape, u.arg.device))
      buffers.append(u)
    elif u.op is Ops.CONST and u.src:
      mapping[u] = UOp.const(u.dtype, u.arg)
    elif (
      u.op is Ops.CONTIGUOUS
      or (u.op is Ops.DETACH and u.arg is not None)
      or (u.op in REARRANGED and u.src[0].op in REARRANGED)
    ):
      changed.append(u)
    elif u.op is Ops.BIND:
      unbind(u)
    elif type(u.arg) is tuple and u.op not in (Ops.VARIABLE, Ops.REDUCE, Ops.PERMUTE, Ops.FLIP):
      for inner in uops_in(u.arg):
        for v in inner.toposort():
          if v.op is Ops.BIND:
            unbind(v)
  for u in changed:  # sources first, so that what is replaced holds what was replaced before
    x = substitute(u.src[0], {}, mapping)
    if u.op is Ops.CONTIGUOUS:
      mapping[u] = u.replace(src=(x,), arg=next(copies))
    elif u.op is Ops.DETACH:
      mapping[u] = u.replace(src=(x,), arg=None)
    else:
      mapping[u] = at_once(u, x, map_arg(u.arg, lambda v: substitute(v, {}, mapping)))
  return substitute(sink, {}, mapping), buffers, values


def at_once(u: UOp, x: UOp, arg: Any) -> UOp:
  """x rearranged as `u` does it, by `arg`; what x does to the same end is done with it. (The user's graph has both, for
  each is a value that a derivative may be asked by.)"""
  if x.op is not u.op or (u.op is not Ops.PERMUTE and isinstance(u.device, Sharding)):
    return u.replace(src=(x,), arg=arg)
  y = x.src[0]
  if u.op is Ops.PERMUTE:
    arg = tuple([x.arg[i] for i in arg])
  same = arg == (y.shape if u.op is Ops.RESHAPE else (*range(u.ndim),))
  return y if same else u.replace(src=(y,), arg=arg)


def make_plan(sink: UOp, first: int = -1) -> Plan:
  """Localizes, schedules and compiles a canonical graph, whose buffers are numbered from `first` down."""
  with span("localize"):
    local = sharding.localize(sink)
  for level, what, graph in ((7, "the graph, in the global view", sink), (6, "the program of each device", local)):
    if DEBUG >= level:
      print(f"# {what}\n{print_graph(graph)}")
  devices = [d for u in local.toposort() if u.op is Ops.BUFFER for d in one_of_each_kind(u.arg.device)]
  if INTERPRET or set(devices) == {"NPY"} or any(getattr(Device[d], "interprets", False) for d in devices):
    buffers = [u for u in local.toposort() if u.op is Ops.BUFFER]
    return Plan((), (), tuple(first - u.arg.uid for u in buffers), (), local=local)
  together = bool(TILE_AND_FUSE) and not CHECK_NAN and all(Device[d].target.shares for d in set(devices))
  before, collects = sys.getswitchinterval(), gc.isenabled()
  sys.setswitchinterval(TURN)  # a backend's thread that compiles needs the interpreter often and briefly
  gc.disable()  # what is made here is no garbage that only the collector finds
  try:
    with span("schedule"):
      schedule = scheduling.create_schedule(local, together)
    mine = {d for i in schedule.items for d in i.devices if d.startswith("CPU")}
    threads = CPU_THREADS.value or max(cores() // max(len(mine), 1), 1)  # of each of its CPU devices, for one kernel
    kernels = ((i.kernel, i.devices[0]) for i in schedule.items)
    programs = tuple(None if isinstance(k, scheduling.Transfer) else program(k, d, threads) for k, d in kernels)
  finally:
    sys.setswitchinterval(before)
    if collects:
      gc.enable()
  names = frozenset(name for i in schedule.items for name in {*i.variables} - dict(i.constants).keys())
  slots = tuple(first - u.arg.uid for u in schedule.buffers)
  return Plan(schedule.items, programs, slots, schedule.temps, names - {DEVICE_NUM})


def plan_of(sink: UOp) -> tuple[Plan, list[UOp], dict[str, int]]:
  """The plan of a graph, from the cache if an equal one has been made, with its buffers by slot and its variables'
  values.
  """
  key_sink, buffers, values = canonical(sink)
  key: tuple[Any, ...] = (key_sink, settings_from("placement"))
  first = -1
  if watched():  # a plan that tells lines is of these lines only, and of nodes that no other plan has
    key += (tuple(u.origin for u in sink.toposort()),)
    first -= next(_renumbered) * MOST_BUFFERS
  if (plan := _plans.get(key)) is None:
    plan = make_plan(key_sink if first == -1 else canonical(sink, first)[0], first)
    while len(_plans) >= CACHED_PLANS:
      del _plans[next(iter(_plans))]
    _plans[key] = plan
  if missing := sorted(plan.variables - values.keys()):
    raise UnboundError(missing)
  return plan, [buffers[i] for i in plan.buffers], values


# ---------------------------------------------------------------- realize


def reduced_placement(device: Placement | None) -> Placement:
  return Device.DEFAULT if device is None else device.reduced if isinstance(device, Sharding) else device


def realize(*roots: UOp, starting: Callable[[], object] = lambda: None) -> list[UOp]:
  """Computes `roots` and performs the effects among them and below them. `starting` is called when all is planned and
  compiled, before anything runs.

  Returns for each root the BUFFER with its value, at the root's placement, not partial; for a view of a buffer that
  view, the effects before it done.
  """
  waiting = [base for root in dict.fromkeys(roots) if (base := viewed(root)).op in (Ops.AFTER, Ops.ASSIGN)]
  effects = [u for u in UOp.sink(*waiting).toposort() if u.op is Ops.ASSIGN]
  made = {root: _prepare(root, effects) for root in dict.fromkeys(roots)}
  if effects:
    sink = UOp.sink(*effects)
    if DEBUG >= 2 and (found := moves.report(sink)).rows:
      print(found)
    with span("plan"):
      plan, buffers, values = plan_of(sink)
    temps = [Buffer(t.device, (t.nbytes,), dtypes.uint8) for t in plan.temps]
    execute(Run(plan, [*map(buffer_of, buffers), *temps], values), starting)
  return [made[root] for root in roots]


def _prepare(root: UOp, effects: list[UOp]) -> UOp:
  """What `root` will be once `effects` have run; a computed value adds its own."""
  if viewed(root).op in (Ops.BUFFER, Ops.AFTER, Ops.ASSIGN):
    *above, u = root.down()
    for v in reversed(above):
      u = v.replace(src=(u,)) if v.op in GroupOp.View else u
    return u
  effects.append(store := stored(root, reduced_placement(root.device)))
  return store.src[0]


def check_outside(u: UOp, what: str, fix: str) -> None:
  """Raises JitError inside a function that is being captured."""
  if recorders:
    problem = f"the {what} of {u.dtype.name}{list(u.shape)} is read while a function is being captured"
    raise JitError(f"{problem}: replay would not read it again\n  fix: return the Tensor from the function and {fix}")


READ_OUTSIDE = "read it outside (.item(), .numpy(), .tolist())"


def to_numpy(u: UOp) -> Any:
  """The value as a numpy array of its own. Raises JitError inside a function that is being captured."""
  check_outside(u, "value", READ_OUTSIDE)
  (done,) = realize(UOp.new(Ops.CONTIGUOUS, u.dtype, (u,)) if u.device == "NPY" else u.copy_to_device("NPY"))
  host = host_array(buffer_of(viewed(done)), 0)
  static = all(isinstance(n, int) for n in u.shape)
  return host if static else host[tuple(slice(value_of(n)) for n in u.shape)]


class Held:
  """What a numpy array over a buffer's memory refers to: the buffer lives as long as the array."""

  def __init__(self, owner: Buffer) -> None:
    array = host_array(owner, 0)
    self.__array_interface__, self.owner = array.__array_interface__, (array, owner)


def to_numpy_once(u: UOp) -> Any:
  """The value of a BUFFER that nobody else has, as a numpy array. On one device whose memory the host can address it is
  not copied: the buffer is the array's alone.
  """
  if recorders or not isinstance(u.device, str) or Device[u.device].simulated:
    return to_numpy(u)
  return numpy.asarray(Held(buffer_of(u)))


def value_of(x: Any) -> int:
  """A dim whose variables are bound."""
  if isinstance(x, int):
    return x
  value = simplify(substitute(x, {u: u.src[1] for u in x.toposort() if u.op is Ops.BIND}))
  if value.op is not Ops.CONST:
    raise UnboundError([v.arg[0] for v in value.variables()])
  return int(value.arg)


class UnboundError(ValueError):
  """A computation with a variable that has no value."""

  def __init__(self, names: Sequence[str]) -> None:
    fix = f"use Variable({names[0]!r}, lo, hi).bind(value) in shapes and indices"
    super().__init__(f"variable {names[0]} has no value\n  fix: {fix}")


class JitError(RuntimeError):
  """A function that cannot be captured, or a replay with arguments that don't fit."""


# ---------------------------------------------------------------- run


def execute(run: Run, starting: Callable[[], object] = lambda: None) -> None:
  """Runs a plan once, and tells the JIT if it captures. `starting` is called before anything runs."""
  for record in recorders:
    record(run)
  if run.plan.local is not None:
    starting()
    with span("interpret"):
      interpret(run)
    return
  stretches = prepare(work_of(run))  # waits for what still compiles
  starting()
  for stretch in stretches:
    stretch.launch()


@dataclass(frozen=True, slots=True, eq=False)
class Work:
  """One item with its program and its memory."""

  item: ScheduleItem
  program: CompiledKernel | None
  memory: list[Buffer]
  variables: dict[str, int]
  copies: dict[tuple[int, int, int], Buffer] = field(default_factory=dict)  # (argument, whose part, on which device)

  @property
  def written(self) -> list[Buffer]:
    return self.memory[: self.item.writes]

  @property
  def simulated(self) -> bool:
    return bool(Device[self.item.devices[0]].simulated)

  @property
  def apart(self) -> bool:
    """Whether its devices cannot read one another's memory, as it would: their parts are brought to each before."""
    assert self.program is not None
    return bool(self.program.peers) and not self.simulated and not within_reach(self.item.devices)

  def pointers(self, i: int, d: int) -> Any:
    """Argument i of the kernel on device number d: its memory, or everybody's."""
    assert self.program is not None
    if i not in self.program.peers:
      return self.memory[i].handle(d)
    out, own, apart = [], self.memory[i], self.apart
    for k in range(len(self.item.devices)):
      if apart and k != d:
        here = self.copies.setdefault((i, k, d), Buffer(self.item.devices[d], (own.nbytes_per_device,), dtypes.uint8))
        out.append(here.handle())
      else:
        out.append(own.handle(k))
    return out

  def bring(self) -> None:
    """What the host does before: the transfer between device sets that it is, or filling the copies."""
    if isinstance(self.item.kernel, scheduling.Transfer):
      copy(self.item.kernel, self.memory[1], self.memory[0])
      return
    for device in self.item.devices:
      Device[device].synchronize()
    for (i, k, _), here in self.copies.items():
      part = Buffer(self.item.devices[k], here.shape, here.dtype).allocate([self.memory[i].handle(k)])
      box = tuple((0, n) for n in here.shape)
      copy_blocks(here.shape, {box: (part, 0)}, [(box, here, 0)])

  @property
  def name(self) -> str:
    return "copy" if self.program is None else self.program.name


def work_of(run: Run) -> list[Work]:
  plan = run.plan
  each = zip(plan.items, plan.programs)
  return [Work(i, p, [run.memory[s] for s in i.slots], {**run.variables, **dict(i.constants)}) for i, p in each]


@dataclass(slots=True, eq=False)
class Stretch:
  """Items between two copies: the backends, and one batch of calls for each; `bound` says which call is which (work,
  device number).
  """

  work: list[Work]
  backends: list[Any] = field(default_factory=list)
  batches: list[tuple[Any, list[Any], list[Any]]] = field(default_factory=list)  # kind, backends of it, their batches
  bound: list[tuple[Work, int, Any]] = field(default_factory=list)
  ops: int = 0
  nbytes: int = 0

  def __post_init__(self) -> None:
    for w in self.work:
      if w.program is not None:
        self.ops += w.program.cost.ops * len(w.item.devices)
        self.nbytes += w.program.cost.nbytes * len(w.item.devices)
      else:
        assert isinstance(w.item.kernel, scheduling.Transfer)
        self.nbytes += prod(w.item.kernel.shape) * w.item.kernel.dtype.itemsize
    for memory in (m for w in self.work for m in w.memory):
      memory.allocate()  # counted on simulated devices too
    self.bind([w for w in self.work if w.program is not None and not w.simulated])

  def bind(self, work: Sequence[Work]) -> None:
    """Kernels with their pointers, and barriers where devices meet: before they read what a peer has written since the
    last barrier (or before this stretch), before they write what a peer may still read, and at the end.
    """
    lists: dict[str, list[Any]] = {}
    met: dict[tuple[str, ...], tuple[set[int], set[int]]] = {}  # by device set: memory written and read by peers since

    def meet(devices: tuple[str, ...]) -> None:
      if len(devices) > 1:
        for d, call in zip(devices, Device[devices[0]].barrier([Device[d] for d in devices])):
          lists.setdefault(d, []).append(call)
      met[devices] = set(), set()

    for w in work:
      assert w.program is not None and isinstance(w.item.kernel, UOp)
      devices, kind = w.item.devices, type(Device[w.item.devices[0]])
      targets = {id(m) for m in w.written}
      from_peers = set() if w.apart else {id(w.memory[i]) for i in w.program.peers}
      since = met.get(devices)
      if from_peers if since is None else since[0] & from_peers or targets & since[1]:
        meet(devices)
      for d, device in enumerate(devices):
        args = [w.pointers(i, d) for i in range(len(w.memory))]
        values = [d if name == DEVICE_NUM else w.variables[name] for name in w.item.variables]
        backend = Device[device]
        code = w.program.code if type(backend) is kind else program(w.item.kernel, device).code
        call = backend.bind(code, args, values)
        lists.setdefault(device, []).append(call)
        self.bound.append((w, d, call))
      if devices in met:
        met[devices][0].update(targets)
        met[devices][1].update(from_peers)
    for devices, (_, read) in list(met.items()):
      if read:
        meet(devices)
    self.backends = [Device[d] for d in lists]
    for kind in dict.fromkeys(map(type, self.backends)):
      backends = [b for b in self.backends if type(b) is kind]
      batches = [b.batch(lists[b.name]) for b in backends]
      batches[0].brief = len(lists) == 1 and self.ops + self.nbytes < BRIEF
      self.batches.append((kind, backends, batches))

  def synchronize(self) -> float:
    """The second at which nothing is queued."""
    for backend in self.backends:
      backend.synchronize()
    return time.perf_counter()

  def launch(self) -> None:
    """Hands the work over, one by one where that is watched; a copy between device sets is done here."""
    alone = DEBUG.value >= 2 or PROFILE.value or CHECK_NAN.value
    if alone and len(self.work) > 1:
      with span("run", kernels=len(self.work)):
        for w in self.work:
          Stretch([w]).launch()
      return
    start = self.synchronize() if alone else 0.0  # what is still queued is not a part of the time
    first = self.work[0]
    if first.program is None or first.copies:
      first.bring()
    for kind, backends, batches in self.batches:
      kind.submit_all(backends, batches)
    if CHECK_NAN.value:
      self.check_nan()
    GlobalCounters.kernel_count += len(self.work)
    GlobalCounters.global_ops += self.ops
    GlobalCounters.global_mem += self.nbytes
    if DEBUG.value >= 2 or PROFILE.value:
      self.measured(start, self.synchronize())
    elif DEBUG.value:
      for w in self.work:
        print(profile.label(w.item, w.name))

  def measured(self, start: float, end: float) -> None:
    """DEBUG's line and the trace's event for the one item of a stretch."""
    w, seconds = self.work[0], end - start
    GlobalCounters.time_sum_s += seconds
    if DEBUG >= 2:
      print(profile.line(w.item, w.name, self.ops, self.nbytes, seconds))
    if PROFILE and not Device[w.item.devices[0]].simulated:
      rates = {"GFLOP/s": self.ops / seconds * 1e-9, "GB/s": self.nbytes / seconds * 1e-9}
      computes = [f"{op} at {source_line(*origin)}" if origin else op for op, origin in w.item.computes]
      for device in w.item.devices:
        note(device, w.name, start, end, {"flops": self.ops, "bytes": self.nbytes, **rates, "computes": computes})

  def check_nan(self) -> None:
    """Raises NonFiniteError if what is left of the kernels' results holds NaN or infinity."""
    self.synchronize()
    last = {id(w.memory[0]): w for w in self.work}
    for w, d in [(w, d) for w, d, _ in self.bound if last[id(w.memory[0])] is w]:
      args = w.item.devices[d], w.memory[0].handle(d), {**w.variables, DEVICE_NUM: d}
      check_nan.check_kernel(w.name, w.item.kernel, w.item.computes, *args)


def prepare(work: Iterable[Work]) -> list[Stretch]:
  """Stretches between copies, one hand-over a device each."""
  groups = itertools.groupby(work, lambda w: w if w.program is None or w.apart else None)
  return [Stretch([*ws]) for _, ws in groups]


@functools.cache
def within_reach(devices: tuple[str, ...]) -> bool:
  """Whether a kernel on any of the devices can read the memory of all."""
  backends = [Device[d] for d in devices]
  return len({type(b) for b in backends}) == 1 and all(b.reaches(other) for b in backends for other in backends)


# ---------------------------------------------------------------- host copies and the interpreter


def addressed(buffer: Buffer, i: int) -> Any:
  """Device i's part of a buffer as a numpy array over its memory, when the device has finished what was queued; None
  where the host cannot address that. What simulated devices hold reads as zeros."""
  backend, dtype, shape = Device[buffer.devices[i]], to_numpy_dtype(buffer.dtype), buffer.local_shape
  if backend.simulated:
    return numpy.broadcast_to(numpy.zeros((), dtype), shape)
  handle = buffer.handle(i)
  if hasattr(backend, "array"):
    return backend.array(handle, dtype, shape)
  if (view := backend.view(handle)) is None:
    return None
  backend.synchronize()
  return numpy.frombuffer(view, dtype, count=prod(shape)).reshape(shape)


def host_array(buffer: Buffer, i: int) -> Any:
  """Device i's part of a buffer as a numpy array: over its memory where the host can address that, else a copy."""
  if (array := addressed(buffer, i)) is None:
    Device[buffer.devices[i]].synchronize()
    array = numpy.empty(buffer.local_shape, to_numpy_dtype(buffer.dtype))
    Device[buffer.devices[i]].copyout(as_bytes(array), buffer.handle(i))
  return array


def as_bytes(array: Any) -> memoryview:
  return memoryview(array.reshape(-1).view(numpy.uint8))


def readable(u: UOp) -> Buffer:
  """The memory of a BUFFER. Raises JitError inside a function that is being captured."""
  check_outside(u, "memory", "save it outside")
  return buffer_of(u)


def host_blocks(u: UOp) -> dict[Box, Any]:
  """The distinct blocks of a BUFFER as numpy arrays over its memory, valid part only, by where they lie in the whole.
  What simulated devices hold reads as zeros. Raises JitError inside a function that is being captured.
  """
  buffer = readable(u)
  out: dict[Box, Any] = {}
  for i in range(len(buffer.devices)):
    box = box_of(buffer.device, i, buffer.shape)
    if box not in out:
      out[box] = host_array(buffer, i)[tuple(slice(hi - lo) for lo, hi in box)]
  return out


def join(parts: Sequence[UOp], placement: Sharding, shape: tuple[int, ...]) -> UOp:
  """A BUFFER of `shape` whose block on device i is `parts[i]`, a BUFFER: its very memory if that lies there and the
  block is full, else a copy.
  """
  whole = Buffer(placement, shape, parts[0].dtype)
  blocks: list[Buffer] = []
  for name, part in zip(placement.devices, parts, strict=True):
    block = buffer_of(part)
    if block.device != name or block.shape != whole.local_shape:
      block = Buffer(name, whole.local_shape, part.dtype).allocate()
      if not Device[name].simulated:
        box = tuple((0, n) for n in part.shape)
        copy_blocks(part.shape, {box: (readable(part), 0)}, [(box, block, 0)])
    blocks.append(block)
  return UOp.buffer(shape, whole.dtype, placement, whole.allocate([b.handle() for b in blocks], blocks))


def typed(memory: Buffer, transfer: Transfer, device: Placement) -> Buffer:
  """The memory of a temporary as a buffer of the transfer's value."""
  if memory.dtype is transfer.dtype and memory.shape == transfer.shape:
    return memory
  handles = [memory.handle(i) for i in range(len(device_set(device)))]
  return Buffer(device, transfer.shape, transfer.dtype).allocate(handles)


def copy(transfer: Transfer, source: Buffer, target: Buffer) -> None:
  """Each device of the target receives its own box, from the first device that holds what is in it."""
  if Device[target.devices[0]].simulated:
    return
  source, target = typed(source, transfer, transfer.source), typed(target, transfer, transfer.result)
  ins = {box_of(transfer.source, d, transfer.shape): (source, d) for d in reversed(range(len(source.devices)))}
  outs = [(box_of(transfer.result, d, transfer.shape), target, d) for d in range(len(target.devices))]
  copy_blocks(transfer.shape, ins, outs)


def copy_blocks(shape: Sequence[int], ins: dict[Box, tuple[Buffer, int]], outs: list[tuple[Box, Buffer, int]]) -> None:
  """Fills the blocks `outs` (what box of a value of `shape`, on which device of which buffer) from the blocks `ins`.

  What the host cannot address passes through it in pieces of at most STAGED bytes or one row, each of them whole
  along the last dims, so that it is contiguous in every block; elements beyond a block's box become undefined.
  """
  itemsize = next(iter(ins.values()))[0].dtype.itemsize
  k = next((k for k in range(len(shape)) if prod(shape[k + 1 :]) * itemsize <= STAGED), 0)  # the dim of the pieces
  rows = max(STAGED // max(prod(shape[k + 1 :]) * itemsize, 1), 1)
  for buffer, i in ins.values():
    Device[buffer.devices[i]].synchronize()
  memory = {(id(b), i): addressed(b, i) for b, i in (*ins.values(), *((b, i) for _, b, i in outs))}

  def part(box: Box, buffer: Buffer, i: int, piece: Box, read: bool) -> tuple[Any, tuple[int, ...], int] | None:
    """What of a block lies in the piece: as an array, where that begins in the value, and the byte of the block."""
    both = meet(box, piece)
    if both is None or (array := memory[id(buffer), i]) is not None:
      return None if both is None else (array, tuple(lo for lo, _ in box), 0)
    sizes = [hi - lo for lo, hi in both[: k + 1]] + list(buffer.local_shape[k + 1 :])
    start = [lo - a for (lo, _), (a, _) in zip(both[: k + 1], box)]
    offset = sum(n * prod(buffer.local_shape[d + 1 :]) for d, n in enumerate(start)) * itemsize
    array = numpy.empty(sizes, to_numpy_dtype(buffer.dtype))
    if read:
      Device[buffer.devices[i]].copyout(as_bytes(array), buffer.handle(i), offset)
    return array, tuple(lo for lo, _ in both[: k + 1]) + tuple(lo for lo, _ in box[k + 1 :]), offset

  for first in numpy.ndindex(*shape[:k], *(-(-n // rows) for n in shape[k : k + 1])):
    piece = tuple((n, n + 1) for n in first[:k]) + tuple((n * rows, (n + 1) * rows) for n in first[k:])
    piece += tuple((0, n) for n in shape[k + 1 :])
    have = [(box, *found) for box, (b, i) in ins.items() if (found := part(box, b, i, piece, True)) is not None]
    for box, buffer, d in outs:
      if (found := part(box, buffer, d, piece, False)) is None:
        continue
      array, origin, offset = found
      for other, values, begin, _ in have:
        if (both := meet(box, piece, other)) is not None:
          there, here = (tuple(slice(lo - a, hi - a) for (lo, hi), a in zip(both, at)) for at in (origin, begin))
          array[there] = values[here]
      if memory[id(buffer), d] is None:
        Device[buffer.devices[d]].copyin(buffer.handle(d), as_bytes(array), offset)


def meet(*boxes: Box) -> Box | None:
  """What is in all boxes; None if nothing is."""
  both = tuple((max(lo for lo, _ in dims), min(hi for _, hi in dims)) for dims in zip(*boxes))
  return both if all(lo < hi for lo, hi in both) else None


def box_of(p: Placement, d: int, shape: Sequence[int]) -> Box:
  return tuple((0, n) for n in shape) if isinstance(p, str) else p.box(d, shape)


def interpret(run: Run) -> None:
  """The plan's localized graph in numpy, over the buffers' own memory where the host can address that."""
  local = run.plan.local
  assert local is not None
  order = [u for u in local.toposort() if u.op is Ops.BUFFER]
  if all(Device[d].simulated for b in run.memory for d in b.devices):  # they compute nothing
    GlobalCounters.kernel_count += 1
    return
  arrays = {u: [host_array(b, i) for i in range(len(b.devices))] for u, b in zip(order, run.memory)}
  for of in arrays.values():  # what is written to simulated memory is dropped
    of[:] = [a if a.flags.writeable else numpy.array(a) for a in of]
  machine = interpreter.Interpreter(arrays.__getitem__, run.variables)
  machine.run(local)
  for u, b in zip(order, run.memory):
    for i, array in enumerate(arrays[u]):
      if addressed(b, i) is None:  # computed on a copy
        Device[b.devices[i]].copyin(b.handle(i), as_bytes(array))
  if CHECK_NAN:
    for u in local.toposort():
      if u.op is Ops.ASSIGN:
        check_nan.check_values(u.src[1], machine.values, device_set(reduced_placement(u.src[0].device)))
  GlobalCounters.kernel_count += 1
