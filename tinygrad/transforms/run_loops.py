"""Loops at work: before a graph is planned, the loops in it run, and their results are memory.

A body is placed, lowered and compiled as one graph over buffers, which reads an element of each stack at the value of a
variable; its plan then runs once for each step, with two buffers for each carry, in turn. A body with loops of its own
is realized step by step: its loops run, and what is left is a plan again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinygrad.device import Backend, BoundCall, Buffer, CallBatch, Device, reduced_placement
from tinygrad.engine.compile import plan_of
from tinygrad.engine.errors import JitError
from tinygrad.engine.realize import realize
from tinygrad.engine.run import Run, Stretch, Work, execute, prepare, recorders, run_of, work_of
from tinygrad.helpers import uninterrupted
from tinygrad.runtime.plans import Plan
from tinygrad.runtime.transfer import at_rest, host_array
from tinygrad.transforms.conditional_loop import WhileLoop, WhileOp
from tinygrad.transforms.loop import ScanLoop, ScanOp, element
from tinygrad.transforms.tracing import with_replaced
from tinygrad.uop import CARDS, Ops, UOp, buffer_of

Nodes = tuple[UOp, ...]
STEP = "scan_step"  # the variable that says which element of the stacks it is; behind it how many loops run around it
running: list[str] = []


def is_loop(u: UOp) -> bool:
  return u.op is Ops.CUSTOM and isinstance(u.arg[1], (ScanOp, WhileOp))


def loops_run(roots: Sequence[UOp]) -> Sequence[UOp]:
  """`roots` with memory in the place of the results of loops below them, which have run. A loop of what an assignment
  makes, whose old content somebody still reads, stays: it is unrolled into the graph.
  Raises: TypeError where that is one of which nobody knows how many steps it has."""
  order = UOp.sink(*roots).toposort()
  found = [u for u in order if is_loop(u)]
  if not found:
    return roots
  if (happened := effects_below(found, roots)) is None:
    if any(isinstance(u.arg[1], WhileOp) for u in found):
      rule = "while_loop: it reads what was assigned to a Tensor, of which the content before that is still to be read"
      raise TypeError(f"{rule}\n  fix: call realize() on that Tensor before the loop")
    return roots
  groups: dict[tuple[Any, Nodes], list[UOp]] = {}
  for u in found:
    groups.setdefault((u.arg[1].loop, u.src), []).append(u)
  made: dict[UOp, UOp] = {}  # results, and contents that are there by now
  for (loop, src), nodes in groups.items():
    if due := [u for u in UOp.sink(*src).toposort() if u in happened and u not in made]:
      realize(*(with_replaced(u, dict(made)) for u in due))  # also for carries that nothing asked for depends on
      made |= {u: u.base for u in due}
    run = run_loop if isinstance(loop, ScanLoop) else run_while
    results = run(loop, [with_replaced(x, dict(made)) for x in src], nodes)
    made |= {u: brought(memory, u) for u, memory in results.items()}
  return [with_replaced(u, dict(made)) for u in roots]


def brought(memory: UOp, u: UOp) -> UOp:
  """The memory of a result where the node says that it is: a carry that has no place is told of as by its sources."""
  there = u.device
  if there is None or memory.device == there or u.arg[1].placed is not None:
    return memory
  return memory.copy_to_device(there)


def effects_below(found: Sequence[UOp], roots: Sequence[UOp]) -> set[UOp] | None:
  """The contents of memory after assignments that loops wait for; None where something that is not there by then reads
  the content before one of these."""
  there = {u for u in UOp.sink(*(s for u in found for s in u.src)).toposort() if u.op is Ops.AFTER}
  before = {u.src[0] for u in there}
  rest = UOp.sink(*roots).toposort(lambda u: u not in there) if before else []
  return None if any(s in before for u in rest if u.op is not Ops.AFTER for s in u.src) else there


def run_loop(loop: ScanLoop, src: Sequence[UOp], nodes: Iterable[UOp]) -> dict[UOp, UOp]:
  """Runs a loop on its sources; for each node, the memory that has its value."""
  wanted = {u: u.arg[1].out for u in nodes}
  stacks = {out: new_memory(u.shape, u) for u, out in wanted.items() if not isinstance(out, int)}
  carries = needed_carries(loop, wanted.values())
  given = in_memory(loop, src, carries)
  turns = [{i: new_memory(loop.holes[i].shape, given[i]) for i in carries} for _ in range(2)]
  if not loop.length:
    turns = [{i: given[i].clone() for i in carries}]
  else:
    name = f"{STEP}{len(running)}"
    running.append(name)
    try:
      steps = Steps(loop, given, turns, stacks, UOp.variable(name, 0, loop.length - 1))
      run = steps.run_with_loops if any(is_loop(u) for u in steps.graph(0).toposort()) else steps.run
      for k in range(loop.length):
        run(k)
    finally:
      running.pop()
  last = turns[(loop.length - 1) % len(turns)]
  return {u: last[out] if isinstance(out, int) else stacks[out] for u, out in wanted.items()}


@dataclass(slots=True, eq=False)
class Steps:
  """The steps of a loop on memory: `given` are its sources, `turns` its carries after every other step."""

  loop: ScanLoop
  given: Sequence[UOp]
  turns: Sequence[Mapping[int, UOp]]
  stacks: Mapping[Any, UOp]
  variable: UOp
  runs: dict[int, Run] = field(default_factory=dict)
  prepared: dict[int, "Prepared"] = field(default_factory=dict)

  def number(self, k: int) -> int:
    """Which element of the stacks is that of the k-th step."""
    return self.loop.length - 1 - k if self.loop.reverse else k

  def graph(self, k: int) -> UOp:
    here = {**dict(enumerate(self.given)), **(self.turns[(k - 1) % 2] if k else {})}
    return step_graph(self.loop, here, self.turns[k % 2], self.stacks, self.variable.bind(self.number(k)))

  def run_with_loops(self, k: int) -> None:
    """A step that runs loops of its own."""
    realize(*self.graph(k).src)

  def run(self, k: int) -> None:
    turn = 0 if k == 0 else 1 if k % 2 else 2  # what it reads from and writes to
    if turn not in self.runs:
      plan, buffers, values = plan_of(self.graph(k))
      self.runs[turn] = run_of(plan, buffers, values, self.temps(plan))
    run, name, at = self.runs[turn], self.variable.arg[0], self.number(k)
    if recorders or run.plan.local is not None:  # each step is told of by itself
      execute(replace(run, variables={**run.variables, name: at}))
    else:
      if turn not in self.prepared:
        self.prepared[turn] = Prepared(run, name)
      self.prepared[turn].launch(at)

  def temps(self, plan: Plan) -> list[Buffer] | None:
    """One memory for all turns that need the same: where two sources are one buffer, the first turn may need less."""
    alike = [run for run in self.runs.values() if run.plan.temps == plan.temps]
    return alike[0].memory[len(alike[0].memory) - len(plan.temps) :] if alike else None


class Prepared:
  """A step whose calls are bound once, and told which step it is."""

  def __init__(self, run: Run, name: str) -> None:
    self.work, self.name = work_of(run), name
    self.stretches = prepare(self.work)
    self.backends = dict.fromkeys(b for s in self.stretches for b in s.backends)
    self.cells: list[tuple[Any, int]] = []  # where compiled code reads the number of the step
    self.calls: list[tuple[Any, int]] = []  # calls that have to be told, and which of their variables it is
    for w, d, call in (b for s in self.stretches for b in s.bound):
      for i, variable in enumerate(w.item.variables):
        if variable == self.name and Device.capabilities(w.item.devices[d]).cells and not w.copies.apart:
          self.cells += [(array, at) for array, at, _ in call.cells(len(w.memory) + i, d)]
        elif variable == self.name:
          self.calls.append((call, i))

  def launch(self, step: int) -> None:
    for backend in self.backends:
      if backend.capabilities.cells:  # else what is queued has its arguments
        backend.synchronize()
    for w in self.work:
      w.variables[self.name] = step
    for array, at in self.cells:
      array[at] = step
    for call, i in self.calls:
      call.set_variable(i, step)
    with uninterrupted():  # a step is done or not
      for stretch in self.stretches:
        stretch.launch()


def run_while(loop: WhileLoop, src: Sequence[UOp], nodes: Iterable[UOp]) -> dict[UOp, UOp]:
  """Runs a loop for as long as its condition holds; for each node, the memory that has its value."""
  step, n = loop.body, len(loop.body.after)
  given = in_memory(step, src, range(n))
  state = [new_memory(h.shape, x) for h, x in zip(step.holes, given[:n])]

  def over(carries: Sequence[UOp]) -> dict[UOp, UOp]:
    return dict(zip(step.holes, [*carries, *given[n:]]))

  def become(carries: Sequence[UOp]) -> UOp:
    """What makes these the state."""
    return UOp.sink(
      *(s.assign(x) for s, x in zip(state, carries)), holds.assign(with_replaced(loop.test, over(carries)))
    )

  holds = new_memory((), with_replaced(loop.test, over(given[:n])))
  realize(*become(given[:n]).src)
  again, repeat = become([with_replaced(y, over(state)) for y in step.after]), Repeat(buffer_of(holds))
  if any(is_loop(u) for u in again.toposort()):
    if recorders:
      rule = "while_loop: a loop within it cannot be captured, for nothing says how often its steps are to be replayed"
      raise JitError(f"{rule}\n  fix: a scan with a known length around the inner one, or call it outside of TinyJit")
    while repeat.wanted():
      realize(*again.src)
    return {u: state[u.arg[1].out] for u in nodes}
  run = run_of(*plan_of(again))
  if run.plan.local is None:
    execute(replace(run, within=repeat))
  else:
    while repeat.wanted():
      execute(run)
  return {u: state[u.arg[1].out] for u in nodes}


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
  """A stretch that is repeated while `holds`, one bool, is true in memory."""

  holds: Buffer

  def __call__(self, work: Sequence[Work]) -> "Repeated":
    return Repeated(self, prepare([replace(w, within=None) for w in work]))

  def wanted(self) -> bool:
    for device in self.holds.devices:
      Device[device].synchronize()
    with at_rest(self.holds):
      return bool(host_array(self.holds, 0))


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
  """Stretches that run again and again; to who binds them to other memory they are like one."""

  again: Repeat
  stretches: list[Stretch]

  @property
  def backends(self) -> list[Backend]:
    return [b for s in self.stretches for b in s.backends]

  @property
  def batches(self) -> list[tuple[list[Backend], list[CallBatch]]]:
    return [b for s in self.stretches for b in s.batches]

  @property
  def bound(self) -> list[tuple[Work, int, BoundCall]]:
    return [b for s in self.stretches for b in s.bound]

  def launch(self) -> None:
    while self.again.wanted():
      with uninterrupted():  # a step is done or not
        for stretch in self.stretches:
          stretch.launch()


def needed_carries(loop: ScanLoop, outs: Iterable[UOp | int]) -> list[int]:
  """The carries that are asked for, or that what is asked for depends on."""
  number = {h: i for i, h in enumerate(loop.holes[: len(loop.after)])}
  needed: set[int] = set()
  stack = list(outs)
  while stack:
    out = stack.pop()
    if isinstance(out, int) and out in needed:
      continue
    if isinstance(out, int):
      needed.add(out)
    stack += [number[u] for u in (loop.after[out] if isinstance(out, int) else out).toposort() if u in number]
  return sorted(needed)


def new_memory(shape: Sequence[int], like: UOp) -> UOp:
  return UOp.buffer(shape, like.dtype, Device.DEFAULT if like.device is None else reduced_placement(like.device))


def in_memory(loop: ScanLoop, src: Sequence[UOp], carries: Sequence[int]) -> list[UOp]:
  """The sources where the body expects them, and computed: a carry as memory of its own shape; what has no place is
  made where it is read."""
  made: list[UOp] = []
  for i, x in enumerate(src):
    there, carry = loop.place(i), i in carries
    if there is not None and x.device is not None and x.device != there:
      x = x.copy_to_device(there)
    elif carry and x.device is None:
      x = x.copy_to_device(Device.DEFAULT if there is None else there)
    made.append(x.contiguous() if carry else x)
  placed = [x for i, x in enumerate(made) if x.device is not None and (i in carries or i >= len(loop.after))]
  computed = [next(u for u in x.down() if CARDS[u.op].index_map is None) for x in placed]  # views stay views
  done = dict(zip(computed, realize(*computed)))
  return [with_replaced(x, dict(done)) if x in placed else x for x in made]


def step_graph(
  loop: ScanLoop, here: Mapping[int, UOp], there: Mapping[int, UOp], stacks: Mapping[Any, UOp], step: UOp
) -> UOp:
  """One step: reads the carries `here` and an element of each stack, and writes `there` and to the elements of the
  results."""
  elements = range(len(loop.after), len(loop.after) + loop.stacks)
  memo = {h: element(here[i], step) if i in elements else here[i] for i, h in enumerate(loop.holes)}
  stores = [there[i].assign(with_replaced(loop.after[i], memo)) for i in there]
  for out, stack in stacks.items():
    value = with_replaced(out, memo)
    at = stack.shrink([(step, step + 1)] + [(0, n) for n in stack.shape[1:]])
    stores.append(at.assign(value.reshape((1, *value.shape))))
  return UOp.sink(*stores)
