"""A plan at work: kernels bound to memory, in stretches between copies, handed over to the devices."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinygrad.device import Backend, BoundCall, Buffer, CallBatch, Device
from tinygrad.dtype import dtypes
from tinygrad.engine.compile import plan_of, program
from tinygrad.helpers import CHECK_NAN, DEBUG, PROFILE, VIZ, GlobalCounters, LazyModule, prod, say, span, uninterrupted
from tinygrad.helpers.threads import ThreadList
from tinygrad.runtime.call_lists import CallLists
from tinygrad.runtime.peer_reads import PeerCopies, bring_parts
from tinygrad.runtime.transfer import copy
from tinygrad.schedule.items import ScheduleItem, Transfer
from tinygrad.uop import DEVICE_NUM, UOp, buffer_of

if TYPE_CHECKING:
  from tinygrad.debug import check_nan, interpret, profile
  from tinygrad.runtime.plans import CompiledKernel, Plan
  from tinygrad.viz import recorder
else:
  of = "debug.check_nan", "debug.interpret", "debug.profile", "viz.recorder"
  check_nan, interpret, profile, recorder = (LazyModule(f"tinygrad.{name}") for name in of)


@dataclass(slots=True, eq=False)
class Run:
  """One execution: a plan with its memory (buffers of the slots, then temporaries) and the values of its variables."""

  plan: Plan
  memory: list[Buffer]
  variables: dict[str, int]
  within: Any = None  # what makes one of its stretches (transforms/run_loops.py: Repeat)


def run_of(plan: Plan, buffers: Sequence[UOp], values: dict[str, int], temps: Sequence[Buffer] | None = None) -> Run:
  """What `plan_of` gives, as one execution, with memory of its own for intermediate values, or `temps`."""
  if temps is None:
    temps = [Buffer(t.device, (t.nbytes,), dtypes.uint8, passing=None not in plan.programs) for t in plan.temps]
  run = Run(plan, [*map(buffer_of, buffers), *temps], values)
  if VIZ.value:
    recorder.bound(plan, buffers, run.memory)
  return run


Check = Callable[[dict[str, int]], None]  # raises for values that variables cannot have
limits: ThreadList[Callable[[Check], None]] = ThreadList()  # what a JIT that captures has to check of its replays
recorders: ThreadList[Callable[[Run], None]] = ThreadList()  # the JIT that captures, if one does: told of every run
before_replays: ThreadList[list[Callable[[], object]]] = ThreadList()  # of the JIT that captures: called before each
watchers: list[Callable[[Sequence[Work]], None]] = []  # told of all that is handed over (simulation/)
tracers: ThreadList[Any] = ThreadList()  # transforms whose functions are being called, innermost last (transforms/)


def execute(run: Run, starting: Callable[[], object] = lambda: None) -> None:
  """Runs a plan once, and tells the JIT if it captures. `starting` is called before anything runs."""
  for record in recorders:
    record(run)
  if run.plan.local is not None:
    starting()
    with span("interpret"):
      interpret.interpret(run.plan.local, run.memory, run.variables)
    return
  stretches = prepare(work_of(run), once=True)  # waits for what still compiles
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
  copies: PeerCopies
  within: Any = None  # as of its run

  @property
  def written(self) -> list[Buffer]:
    return self.memory[: self.item.writes]

  @property
  def simulated(self) -> bool:
    return Device[self.item.devices[0]].capabilities.simulated

  @property
  def brings(self) -> bool:
    """Whether the host has to do something before."""
    return self.program is None or (self.copies.apart and not self.copies.delivered)

  def bring(self) -> None:
    """What the host does before: the transfer between device sets that it is, or filling the copies."""
    if isinstance(self.item.kernel, Transfer):
      copy(self.item.kernel, self.memory[1], self.memory[0])
    else:
      bring_parts(self.copies.parts())

  @property
  def name(self) -> str:
    return "copy" if self.program is None else self.program.name


def work_of(run: Run) -> list[Work]:
  out = list[Work]()
  for item, p in zip(run.plan.items, run.plan.programs):
    memory = [run.memory[s] for s in item.slots]
    copies = PeerCopies(item, memory, () if p is None else sorted(p.peers))
    out.append(Work(item, p, memory, {**run.variables, **dict(item.constants)}, copies, run.within))
  return out


@dataclass(slots=True, eq=False)
class Stretch:
  """Items between two copies: the backends, and one batch of calls for each; `bound` says which call is which (work,
  device number)."""

  work: list[Work]
  backends: list[Backend] = field(default_factory=list)
  batches: list[tuple[list[Backend], list[CallBatch]]] = field(default_factory=list)  # for backends of one kind
  bound: list[tuple[Work, int, BoundCall]] = field(default_factory=list)
  stamps: list[tuple[Work, int, Any, Any]] = field(default_factory=list)  # beside them, where a recording needs those
  ops: int = 0
  nbytes: int = 0
  brings: bool = False  # whether the host has to do something before
  deliveries: dict[Work, Any] = field(default_factory=dict)  # what brings them beside the work (device/world.py)

  def __post_init__(self) -> None:
    for w in self.work:
      if w.program is not None:
        self.ops += w.program.ops * len(w.item.devices)
        self.nbytes += w.program.nbytes * len(w.item.devices)
      else:
        assert isinstance(w.item.kernel, Transfer)
        self.nbytes += prod(w.item.kernel.shape) * w.item.kernel.dtype.itemsize
    memory = {id(m): m.allocate() for w in self.work for m in w.memory}  # counted on simulated devices too
    self.brings = self.work[0].brings
    begun = list[list[Work]]([[] for _ in self.work])
    if Device.world is not None:
      begun = self.beginnings()
      Device.world.learn(self.text, [*memory.values(), *(b for w in self.work for b in w.copies.all_made())])
      self.deliveries = {w: Device.world.delivery() for before in begun for w in before}
    self.bind([(before, w) for before, w in zip(begun, self.work) if w.program is not None and not w.simulated])

  def bind(self, work: Sequence[tuple[Sequence[Work], Work]]) -> None:
    """Kernels with their pointers, each behind the beginnings of those that are delivered from then on."""
    calls = CallLists()
    for begun, w in work:
      assert w.program is not None
      devices, kind = w.item.devices, Device[w.item.devices[0]].kind
      for other in begun:
        calls.add(other.item.devices, self.deliveries[other].ready)
      if w in self.deliveries:
        calls.add(devices, self.deliveries[w].arrived)
        calls.meet(devices)
      touched = {id(m) for m in w.written}, {id(w.memory[i]) for i in w.copies.peers}
      calls.before(devices, *touched)
      for d, device in [(d, device) for d, device in enumerate(devices) if Device.here(device)]:
        args = [w.copies.pointers(i, d) for i in range(len(w.memory))]
        values = [d if name == DEVICE_NUM else w.variables[name] for name in w.item.variables]
        backend = Device[device]
        code = w.program.code if backend.kind == kind else another_kind(w.item.kernel, device)
        call = backend.bind(code, args, values, d)
        row = [call]
        if VIZ.value and backend.capabilities.stamps:
          self.stamps.append((w, d, before := backend.stamp(), after := backend.stamp()))
          row = [before, call, after]
        calls.of.setdefault(device, []).extend(row)
        self.bound.append((w, d, call))
      calls.after(devices, *touched)
    calls.end()
    lists = calls.of
    copying = [d for w in self.work if w.program is None and not w.simulated for d in w.item.devices]
    self.backends = [Device[d] for d in (*lists, *copying)]
    work_here = sum(w.program.ops + w.program.nbytes for w, *_ in self.bound if w.program)
    for kind in dict.fromkeys(Device[d].kind for d in lists):
      backends = [b for d in lists if (b := Device[d]).kind == kind]
      batches = [b.batch(lists[b.name], len(lists) == 1 and work_here < b.worth_waking) for b in backends]
      self.batches.append((backends, batches))

  def beginnings(self) -> list[list[Work]]:
    """Before each item, those of which all that is delivered is written then."""
    latest, out = dict[int, int](), list[list[Work]]([[] for _ in self.work])
    for at, w in enumerate(self.work):
      if w.copies.delivered:
        out[max(latest.get(id(w.memory[i]), 0) for i in w.copies.peers)].append(w)
      latest.update({id(m): at + 1 for m in w.written})
    return out

  @property
  def text(self) -> str:
    """What it does, which every process does alike."""
    each = (f"{w.program or 'copy'} {w.item.slots} of {w.memory} with {w.variables}" for w in self.work)
    return f"{len(self.work)} kernels and copies, the last of them " + "; ".join(reversed([*each]))

  def synchronize(self) -> float:
    """The second at which nothing is queued."""
    for backend in self.backends:
      backend.synchronize()
    return time.perf_counter()

  def delivered(self) -> Iterator[tuple[list[Backend], list[CallBatch]]]:
    """The batches, when what travels beside them is handed over. Both or neither: who waits for half has no end."""
    with uninterrupted():
      for w, delivery in self.deliveries.items():
        delivery.begin(w.copies.parts(), w.name)
      yield from self.batches

  def launch(self) -> None:
    """Hands the work over, one by one where that is watched; a copy between device sets is done here."""
    timed = DEBUG.value >= 2 or PROFILE.value or VIZ.value
    alone = DEBUG.value >= 2 or PROFILE.value or CHECK_NAN.value or (timed and len(self.stamps) < len(self.bound))
    if alone and len(self.work) > 1:
      with span("run", kernels=len(self.work)):
        for w in self.work:
          Stretch([w]).launch()
      return
    for tell in watchers:
      tell(self.work)
    start = self.synchronize() if alone or timed else 0.0  # what is still queued is not a part of the time
    if self.brings:
      self.work[0].bring()
    for backends, batches in self.delivered() if self.deliveries else self.batches:
      backends[0].submit_all(backends, batches)
    if CHECK_NAN.value:
      self.synchronize()
      check_nan.check_stretch(self.bound)
    GlobalCounters.kernel_count += len(self.work)
    GlobalCounters.global_ops += self.ops
    GlobalCounters.global_mem += self.nbytes
    if timed:
      profile.tell_times(self, start, self.synchronize(), plan_of)
    elif DEBUG.value:
      for w in self.work:
        say(profile.label(w.item, w.name))


def another_kind(kernel: UOp | Transfer | None, device: str) -> Any:
  """A kernel's code for a device that is not of the first one's kind."""
  assert isinstance(kernel, UOp)
  return program(kernel, device).code


def prepare(work: Sequence[Work], once: bool = False) -> list[Stretch]:
  """Stretches between copies, one hand-over a device each; unless it is for `once`, of the best code there is."""
  codes = [(w.item.devices[0], w.program.code) for w in work if w.program is not None and not (once or w.simulated)]
  for device in dict.fromkeys(d for d, _ in codes):
    Device[device].settle([code for d, code in codes if d == device])
  groups = itertools.groupby(work, lambda w: w.within or (w if w.brings else None))
  return [key([*ws]) if callable(key) else Stretch([*ws]) for key, ws in groups]
