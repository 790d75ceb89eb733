"""The local graph -> a list of kernels and copies in an order that respects every read and write."""

import heapq
import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from tinygrad.device import Placement, Sharding, Target, device_set
from tinygrad.dtype import dtypes
from tinygrad.helpers import prod, watched
from tinygrad.schedule import fuse
from tinygrad.schedule.deduplicate import shared_by_place
from tinygrad.schedule.homes import Home, layout, peel, whole
from tinygrad.schedule.items import Lines, Schedule, ScheduleItem, Temp, Transfer, plan
from tinygrad.schedule.lower import Kernel, lower, structural_key
from tinygrad.schedule.split import in_parts, in_two_steps, scatter_in_parts
from tinygrad.schedule.tile_and_fuse import tile_and_fuse
from tinygrad.schedule.windows import as_windows
from tinygrad.uop import GroupOp, Ops, UOp, check_graph
from tinygrad.uop.rewrite import Sources, on_sources, rebuild, rewrite, substitute

ANY_TARGET = Target("any")  # what all have in common


class ScheduleError(RuntimeError):
  """Effects in an order that cannot be."""


Version = frozenset[UOp]  # the ASSIGNs that a reader of a buffer sees
State = tuple[int, Version]  # the content of a slot at a time


@dataclass(slots=True)
class KernelToBe:
  """A kernel to be: the value `root` (or the ASSIGN `root`), what it waits for, what it reads and writes, in which
  version.
  """

  root: UOp
  after: set[int]
  reads: list[tuple[int, Version]]
  writes: int
  item: ScheduleItem | None = None


def reduction(u: UOp) -> UOp | None:
  return in_parts(u) if (v := as_windows(u)) is None else v


# what one kernel does badly
STEPS = {Ops.COLLECTIVE: in_two_steps, Ops.REDUCE: reduction, Ops.SCATTER: scatter_in_parts}


def create_schedule(sink: UOp, rows: bool = False, target: Target = ANY_TARGET) -> Schedule:
  """Kernels for SINK of ASSIGN(view of BUFFER | SHARD, value) in the local view; with `rows`, those that work on the
  same rows as one, as far as the target's cache goes. Raises ScheduleError if no order of the effects exists.
  """
  builder = _Builder(written_apart(rewrite(sink, STEPS)), rows, target)
  while (schedule := builder.build()) is None:
    builder = _Builder(builder.with_own() if builder.shared else builder.with_copies(), rows, target)
  return schedule


def written_apart(sink: UOp) -> UOp:
  """`sink` with the views that are written to as nodes of their own where they are read, too: what is read may get a
  buffer, for a copy to other devices as an example; what is written is the memory itself."""
  nodes = sink.toposort()
  written = {u for u in nodes if u.op is Ops.ASSIGN and u.src[0].op in GroupOp.View}
  readers = Counter(s for u in nodes for s in u.src) if written else Counter[UOp]()
  written = {u for u in written if any(readers[v] > 1 for v in u.src[0].down() if v.op in GroupOp.View)}
  if not written:
    return sink

  def make(u: UOp, src: Sources) -> UOp:
    if u in written:
      views = [*itertools.takewhile(lambda v: v.op in GroupOp.View, src[0].down())]
      target = views[-1].src[0].after()
      for v in reversed(views):
        target = v.replace(src=(target,))
      src = target, src[1]
    return on_sources(u, src)

  return rebuild(sink, make)


def nested(op: Ops, u: UOp, times: int) -> UOp:
  for _ in range(times):
    u = UOp.new(op, u.dtype, (u,))
  return u


def computed(value: UOp, stored: Container[UOp]) -> Lines:
  """The float ops that one kernel computes `value` with, the last one first, down to what it reads from memory; the
  value itself where there are none."""
  order = value.toposort(lambda u: u is value or u not in stored)
  ops = GroupOp.Elementwise | {Ops.REDUCE, Ops.GATHER, Ops.SCATTER, Ops.COLLECTIVE}
  mine = [u for u in reversed(order) if u.op in ops and dtypes.is_float(u.dtype) and (u is value or u not in stored)]
  return tuple(dict.fromkeys((u.op.name.lower(), u.origin) for u in mine or [value]))


class _Builder:
  def __init__(self, sink: UOp, rows: bool, target: Target) -> None:
    self.sink, self.nodes, self.rows, self.target = sink, sink.toposort(), rows, target
    self.buffers = [u for u in self.nodes if u.op is Ops.BUFFER]
    self.number = {u: i for i, u in enumerate(self.buffers)}
    self.homes: dict[UOp, Home] = {}
    self.temps: dict[int, Temp] = {}
    self.where = self.devices()
    self.steps: list[KernelToBe] = []
    self.kernels: dict[object, Kernel] = {}  # by structural key, in whose order their slots count
    self.made: dict[UOp, int] = {}  # stored value or ASSIGN -> its step
    self.versions: dict[UOp, Version] = {}
    self.assigns: dict[UOp, Version] = {}
    self.copies: set[State] = set()  # contents that no order of the steps keeps for all who read them
    self.shared: set[UOp] = set()  # stored values that live anywhere, made of constants, and are read on several sets

  def devices(self) -> dict[UOp, Placement]:
    """On which devices each value is computed: its buffers' and, where there are none, its first consumer's. Notes on
    which device sets, by number, the latter is `used`."""
    where: dict[UOp, Placement] = {}
    for u in self.nodes:
      if u.op is Ops.BUFFER:
        where[u] = u.arg.device
      elif u.op is Ops.COLLECTIVE:
        where[u] = u.arg.result
      elif (found := next((where[s] for s in u.src if s in where), None)) is not None:
        where[u] = found
    given = [p for u in self.nodes if u.op is Ops.COLLECTIVE for p in u.arg.placements]
    distinct = dict.fromkeys([*where.values(), *given])
    self.sets = {devices: i for i, devices in enumerate(dict.fromkeys(map(device_set, distinct)))}
    self.used: dict[UOp, set[int]] = {}  # with one set there is nothing to tell
    if len(self.sets) > 1:
      self.used = {u: {self.sets[device_set(p)]} for u, p in where.items()}
    anywhere = {u for u in self.nodes if u not in where} if self.used else ()
    for u in reversed(self.nodes):
      same = [where[u]] * len(u.src) if u in where else []
      for s, placement in zip(u.src, u.arg.placements if u.op is Ops.COLLECTIVE else same):
        where.setdefault(s, placement)
        if s in anywhere:
          here = {self.sets[device_set(placement)]} if u.op is Ops.COLLECTIVE else self.used[u]
          self.used[s] = self.used.get(s, set()) | here
    return where

  def build(self) -> Schedule | None:
    """The schedule, or None if the graph needs `copies` first, or values to be apart that are `shared`."""
    self.place_homes(fuse.choose(self.sink, None if self.rows else self.target.few_rows))
    self.shared = {u for u in self.homes if len(self.used[u]) > 1} if self.used else set()
    if self.shared:
      return None
    for u in self.nodes:
      if u.op is Ops.ASSIGN or (u in self.homes and u.op not in (Ops.BUFFER, Ops.SHARD)):
        self.add_step(u)
    steps = self.order()
    return None if self.copies else self.finish([step.item for step in steps if step.item is not None])

  def with_own(self) -> UOp:
    """The graph with each of the `shared` values once for each device set that reads it, as nodes of its own."""
    leaves = [u for u in UOp.sink(*self.shared).toposort() if u.op in fuse.LEAVES]
    made: dict[tuple[UOp, int], UOp] = {}  # by the number of the device set
    for u in self.nodes:
      for i in self.used[u]:
        if u in self.shared:
          made[u, i] = substitute(u, {x: nested(Ops.DETACH, x, i) for x in leaves})
          continue
        there = [self.sets[device_set(p)] for p in u.arg.placements] if u.op is Ops.COLLECTIVE else [i] * len(u.src)
        src = [made[s, k if len(self.used[s]) > 1 else min(self.used[s])] for s, k in zip(u.src, there)]
        made[u, i] = on_sources(u, tuple(src))
    return made[self.sink, min(self.used[self.sink])]

  def with_copies(self) -> UOp:
    """The graph with a copy of each content in `copies` where it is read; what is written stays where it is."""
    made: dict[UOp, UOp] = {}  # as a value
    kept: dict[UOp, UOp] = {}  # as what is written to, or as the state that a later one builds on

    def memory(u: UOp) -> UOp:
      if u not in kept:
        kept[u] = u.replace(src=(memory(u.src[0]), *(made[s] for s in u.src[1:]))) if u.src else u
      return kept[u]

    def make(u: UOp, src: Sources) -> UOp:
      if u.op is Ops.ASSIGN:
        return on_sources(u, (memory(u.src[0]), src[1]))
      if u.op not in (Ops.AFTER, Ops.BUFFER, Ops.SHARD):
        return on_sources(u, src)
      if (self.slot_of(u), self.version(u)) not in self.copies:
        return memory(u)
      return UOp.new(Ops.CONTIGUOUS, u.dtype, (memory(u),), ("old content", len(made)))

    return rebuild(self.sink, make, made)

  def place_homes(self, stored: Sequence[UOp]) -> None:
    """Where each stored value lies: in the buffer that it is assigned to, if that is new; else in a temporary."""
    for u in self.nodes:
      if u.op is Ops.BUFFER:
        shape = u.shape if isinstance(u.arg.device, str) else u.arg.device.local_shape(u.shape)
        self.homes[u] = Home(self.number[u], layout(shape))
      elif u.op is Ops.SHARD:
        self.homes[u] = Home(self.number[u.src[0]], layout(u.shape))
    readers = Counter(s for u in self.nodes for s in u.src)
    for u in self.nodes:
      if u.op is not Ops.ASSIGN or any(readers[x] > 1 for x in u.src[0].down()):
        continue
      buffer, value = whole(u.src[0]), peel(u.src[1])
      if buffer in self.homes and value not in self.homes and value.op not in fuse.LEAVES and value.op is not Ops.AFTER:
        self.homes[value] = Home(self.homes[buffer].slot, layout(value.shape))
    for u in stored:
      if u not in self.homes:
        below = peel(u.src[0]) if u.op is Ops.CONTIGUOUS else u
        there = below in self.homes and below.op not in (Ops.BUFFER, Ops.SHARD)
        self.homes[u] = Home(self.homes[below].slot if there else self.new_temp(u), layout(u.shape))

  def new_temp(self, u: UOp) -> int:
    slot, device = len(self.buffers) + len(self.temps), self.where[u]
    # memory is shared whatever the cuts
    alike = Sharding.of(device.mesh, ()) if isinstance(device, Sharding) else device
    self.temps[slot] = Temp(alike, prod(layout(u.shape)) * u.dtype.itemsize)
    return slot

  def version(self, u: UOp) -> Version:
    """The ASSIGNs that have happened to the buffer that `u` stands for."""
    chain = [u]
    while chain[-1] not in self.versions and chain[-1].op in (Ops.AFTER, Ops.SHARD, Ops.DETACH):
      chain.append(chain[-1].src[0])
    for v in reversed(chain):
      if v not in self.versions:
        below = self.versions[v.src[0]] if v.op in (Ops.AFTER, Ops.SHARD, Ops.DETACH) else frozenset()
        self.versions[v] = below.union(*(self.assigned(s) for s in v.src[1:])) if v.op is Ops.AFTER else below
    return self.versions[u]

  def assigned(self, root: UOp) -> Version:
    """The ASSIGNs among and below `root`."""
    for u in root.toposort(lambda u: u not in self.assigns):
      own = (u,) if u.op is Ops.ASSIGN else ()
      parts = {self.assigns[s] for s in u.src} - {frozenset()}
      self.assigns[u] = parts.pop() if len(parts) == 1 and not own else frozenset(own).union(*parts)
    return self.assigns[root]

  def add_step(self, u: UOp) -> None:
    """Lowers `u` to a kernel, and notes what it waits for and reads."""
    written, value = u.src if u.op is Ops.ASSIGN else (u, u)
    target, slot = self.homes[u] if written is u else written, self.slot_of(written)
    held = peel(value.src[0]) if u.op is Ops.CONTIGUOUS else peel(value)
    if held in self.made and self.homes[held].slot == slot:
      self.made[u] = self.made[held]
      return
    step = KernelToBe(u, set(), [], slot)
    self.walk(step, value, target)
    if 0 not in layout(value.shape):
      if (transfer := self.transfer(value)) is not None and isinstance(target, Home):
        slots, lines = (slot, self.slot_of(value.src[0])), computed(value, self.homes) if watched() else ()
        step.item = ScheduleItem(transfer, slots, device_set(transfer.result), (), False, lines)
      else:
        kernel = self.kernel(value, target, self.homes)
        if not isinstance(target, Home) and overwrites_what_it_reads(kernel):
          kernel = self.through_temp(step, value, target)
        step.item = self.item(kernel, value, value if isinstance(target, Home) else target)
    self.made[u] = len(self.steps)
    self.steps.append(step)

  def slot_of(self, view: UOp) -> int:
    return next(self.homes[v].slot for v in view.down() if v in self.homes)

  def through_temp(self, step: KernelToBe, value: UOp, target: UOp) -> Kernel:
    """The value goes to a temporary first: the kernel would read elements of its target that it has written already."""
    home = Home(self.new_temp(value), layout(value.shape))
    item = self.item(self.kernel(value, home, self.homes), value, value)
    self.steps.append(KernelToBe(value, step.after, step.reads, home.slot, item))
    step.after, step.reads = {len(self.steps) - 1}, []
    return self.kernel(value, target, {**self.homes, value: home})

  def kernel(self, value: UOp, target: Home | UOp, homes: Mapping[UOp, Home]) -> Kernel:
    """`lower`, once for kernels that differ in their slots only: as those of a model's layers do."""
    key, slots = structural_key(value, target, homes)
    if key not in self.kernels:
      new = lower(value, target, homes)
      check_graph(new.ast, "kernel")
      self.kernels[key] = replace(new, slots=tuple(map(slots.index, new.slots)))
    known = self.kernels[key]
    return replace(known, slots=tuple(slots[i] for i in known.slots))

  def item(self, kernel: Kernel, value: UOp, at: UOp) -> ScheduleItem:
    names = tuple(v.arg[0] for v in kernel.ast.variables())
    ops = computed(value, self.homes) if watched() else ()
    return ScheduleItem(kernel.ast, kernel.slots, device_set(self.where[at]), names, kernel.peers, ops)

  def transfer(self, u: UOp) -> Transfer | None:
    """A move to other devices, which no kernel can do."""
    if u.op is not Ops.COLLECTIVE or len(u.src) > 1:
      return None
    source, result, shape = u.arg.placements[0], u.arg.result, u.arg.template.shape
    return None if device_set(source) == device_set(result) else Transfer(layout(shape), u.dtype, source, result)

  def walk(self, step: KernelToBe, value: UOp, target: Home | UOp) -> None:
    """Reads and dependencies: everything down to stored values."""
    seen, stack = set[UOp](), list(value.src) if isinstance(target, Home) else [value]
    if not isinstance(target, Home):
      view = target
      while view.op not in (Ops.BUFFER, Ops.SHARD, Ops.AFTER):
        stack += view.src[1:]
        view = view.src[0]
      step.after |= {self.made[a] for a in self.version(view)}
    while stack:
      u = stack.pop()
      if u in seen:
        continue
      seen.add(u)
      if u.op in (Ops.AFTER, Ops.BUFFER, Ops.SHARD):
        version = self.version(u)
        step.after |= {self.made[a] for a in version}
        step.reads.append((self.slot_of(u), version))
      elif u in self.made:
        step.after.add(self.made[u])
      else:
        stack += u.src

  def order(self) -> list[KernelToBe]:
    """Sources first, and who reads a buffer's old content before who overwrites it; otherwise as the graph lists
    them. Content that is needed after it must be overwritten goes to `copies`; the order then holds once these exist.
    """
    readers: dict[int, list[tuple[int, Version]]] = {}
    for i, s in enumerate(self.steps):
      for slot, version in s.reads:
        readers.setdefault(slot, []).append((i, version))
    waiting = [set(s.after) for s in self.steps]
    for i, s in enumerate(self.steps):
      if s.root.op is Ops.ASSIGN:
        waiting[i] |= {r for r, version in readers.get(s.writes, ()) if r != i and s.root not in version}
    then: dict[int, list[int]] = {}
    for i, before in enumerate(waiting):
      for j in before:
        then.setdefault(j, []).append(i)
    ready = [i for i, before in enumerate(waiting) if not before]
    heapq.heapify(ready)
    out: list[int] = []
    while len(out) < len(self.steps):
      i = heapq.heappop(ready) if ready else self.unblock(waiting, readers)
      out.append(i)
      for j in then.get(i, ()):
        if i in waiting[j]:
          waiting[j].remove(i)
          if not waiting[j]:
            heapq.heappush(ready, j)
    return [self.steps[i] for i in out]

  def unblock(self, waiting: Sequence[set[int]], readers: Mapping[int, Sequence[tuple[int, Version]]]) -> int:
    """An ASSIGN that can run now if what is still to be read of the old content is copied first; notes the copies.

    Of the steps that wait, the first in the order of data waits for readers only. What these read is complete, unless
    it is after an ASSIGN that is not before this one.
    """
    diverging: list[UOp] = []
    for i, s in enumerate(self.steps):
      if not waiting[i] or any(j in waiting[i] for j in s.after):
        continue
      old = {v for r, v in readers[s.writes] if r in waiting[i] and s.root not in v}
      if any(waiting[self.made[a]] for v in old for a in v):
        diverging.append(s.root)
        continue
      self.copies |= {(s.writes, v) for v in old}
      waiting[i].clear()
      return i
    assert diverging, "steps wait for each other's values"
    what = f"{diverging[0].dtype.name}{list(diverging[0].src[0].shape)}"
    problem = f"two assigns to one buffer ({what}), neither after the other, and both contents are needed"
    raise ScheduleError(f"{problem}\n  fix: write to a .clone() of it for one of them")

  def finish(self, items: Sequence[ScheduleItem]) -> Schedule:
    placements = [*(b.arg.device for b in self.buffers), *(t.device for t in self.temps.values())]
    for i in items:
      if isinstance(i.kernel, UOp):  # devices meet where they read each other's parts, and nowhere else
        assert all(device_set(placements[s]) == i.devices for s in i.slots), "a kernel reads what other devices compute"
    items = shared_by_place(tile_and_fuse(items, self.temps, self.target.cache) if self.rows else items)
    at, pool = plan([i.slots for i in items], self.temps)
    first = len(self.buffers)
    slots = [tuple(s if s < first else first + at[s] for s in i.slots) for i in items]
    return Schedule(tuple(replace(i, slots=s) for i, s in zip(items, slots)), tuple(self.buffers), tuple(pool))


def overwrites_what_it_reads(kernel: Kernel) -> bool:
  """Whether the written memory is also read, at any other place than the one just written, or by a peer."""
  written = kernel.ast.src[0].src[0].src[1]
  for u in kernel.ast.toposort():
    if u.op is Ops.INDEX and u.src[1] is not written:
      if (u.src[0].src[0] if u.src[0].op is Ops.PEER else u.src[0]).arg.slot == 0:
        return True
  return kernel.slots.count(kernel.slots[0]) > 1  # the same memory, by the table of peers
