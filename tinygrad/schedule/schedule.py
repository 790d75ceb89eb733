"""The local graph -> a list of kernels and copies in an order that respects every read and write."""

import functools
import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from tinygrad.device import Target, device_set
from tinygrad.dtype import dtypes
from tinygrad.helpers import ALLOW_TF32, KEPT_KERNELS, PROCESS, watched
from tinygrad.numerics.layouts import innermost_for_cores
from tinygrad.numerics.parts import in_parts, in_sum_steps, joined_in_groups, scatter_in_parts, squares_in_parts
from tinygrad.numerics.products import products_apart
from tinygrad.numerics.windows import as_windows, without_overlap
from tinygrad.schedule import fuse
from tinygrad.schedule.deduplicate import shared_by_place
from tinygrad.schedule.device_sets import DeviceSets
from tinygrad.schedule.homes import CONTENT, MEMORY, Home, Slots, elements, is_fence, peel
from tinygrad.schedule.items import Lines, Schedule, ScheduleItem, Temp, Transfer, plan_memory, uses_of
from tinygrad.schedule.lower import lower, structural_key
from tinygrad.schedule.order import KernelToBe, Order, State, versions
from tinygrad.schedule.tile_and_fuse import tile_and_fuse
from tinygrad.uop import GroupOp, Ops, ParamArg, UOp
from tinygrad.uop.rewrite import Sources, on_sources, rebuild, rewrite

Planned = tuple[Sequence[ScheduleItem], dict[int, int], list[Temp]]  # items, and what `plan_memory` gives for them
Rule = Callable[[UOp], UOp | None]
Arrange = Callable[[Sequence[ScheduleItem], Mapping[int, Temp], Sequence[UOp]], Planned]
ANY_TARGET = Target("any")  # what all have in common
# by structural key, in whose order their slots count
_lowered: dict[UOp, ScheduleItem] = PROCESS.table(KEPT_KERNELS)
COMPUTES = GroupOp.Elementwise | fuse.REDUCES  # and do not only move elements
FAR = 64  # nodes: effects that are no further apart keep their order, in which they may share a kernel


def no_elements(u: UOp) -> UOp | None:
  """A value that has none -> a constant, for which nothing is to be computed."""
  return UOp.const(u.dtype, 0).broadcast_to(u.shape) if 0 in u.max_shape else None


def written_apart(u: UOp) -> UOp | None:
  """An ASSIGN to views -> to nodes of its own for these: what is read may get a buffer, for a copy to other devices as
  an example; what is written is the memory itself."""
  if (x := no_elements(u.src[1])) is not None and x is not u.src[1]:
    return u.replace(src=(u.src[0], x))
  views = [*itertools.takewhile(lambda v: v.op in GroupOp.View, u.src[0].down())]
  if not views or is_fence(views[-1].src[0]):
    return None
  target = views[-1].src[0].after()
  for v in reversed(views):
    target = v.replace(src=(target,))
  return u.replace(src=(target, u.src[1]))


def first_of(*rules: Rule) -> Rule:
  return lambda u: next((v for rule in rules if (v := rule(u)) is not None), None)


# what one kernel does badly, or none need do
SUMS: tuple[Rule, ...] = (without_overlap, as_windows, products_apart, squares_in_parts, in_parts)
STEPS: dict[Ops, Rule] = {
  Ops.SCATTER: scatter_in_parts,
  Ops.ASSIGN: written_apart,
  Ops.CAT: joined_in_groups,
  Ops.COLLECTIVE: first_of(no_elements, in_sum_steps),
}


def steps_for(target: Target) -> dict[Ops, Rule]:
  """What does in several steps what one kernel of the target does badly."""
  kinds = {core.operand for core in target.cores} - ({dtypes.float32} if not ALLOW_TF32 else set())
  on_cores = [functools.partial(innermost_for_cores, kinds=kinds)] if kinds else []
  return STEPS | {Ops.REDUCE: first_of(*SUMS, *on_cores)}


def as_is(items: Sequence[ScheduleItem], temps: Mapping[int, Temp], buffers: Sequence[UOp]) -> Planned:
  return items, *plan_memory(uses_of(items, temps), temps)


def create_schedule(sink: UOp, rows: bool = False, target: Target = ANY_TARGET, arrange: Arrange = as_is) -> Schedule:
  """Kernels for SINK of ASSIGN(view of BUFFER | SHARD, value) in the local view; with `rows`, those that work on the
  same rows as one, as far as the target's cache goes. `arrange`: what gives them their last order, and memory. Raises
  ScheduleError if no order of the effects exists."""
  sink, schedule = rewrite(nearest_first(sink), steps_for(target)), None
  while schedule is None:
    builder = _Builder(sink, rows, target)
    if (schedule := builder.build(arrange)) is None:
      sink = builder.sets.with_own(builder.shared) if builder.shared else builder.with_copies()
  return schedule


def nearest_first(sink: UOp) -> UOp:
  """`sink` with the effects first that take the fewest steps to compute: in the order of the graph, a weight is then
  updated as soon as its gradient can be, and what that is computed from need not be kept any longer."""
  depth: dict[UOp, int] = {}
  for u in sink.toposort():
    depth[u] = 1 + max((depth[s] for s in u.src), default=0)
  return sink.replace(src=tuple(sorted(sink.src, key=lambda u: depth[u] // FAR)))


def computed(value: UOp, stored: Container[UOp]) -> Lines:
  """The float ops that one kernel computes `value` with, the last one first, down to what it reads from memory; the
  value itself where there are none."""
  order = reversed(value.toposort(lambda u: u is value or u not in stored))
  floats = [u for u in order if dtypes.is_float(u.dtype) and (u is value or u not in stored)]
  mine = [u for u in floats if u.op in COMPUTES or u.op is Ops.GATHER or u.op is Ops.COLLECTIVE]
  # a move that a pass has put in is of the line of what moves
  lines = ((u, next((v.origin for v in u.down() if v.origin is not None), None)) for u in mine or [value])
  return tuple(dict.fromkeys((u.op.name.lower(), line) for u, line in lines))


class _Builder:
  """One try at a schedule: what lies where, a step for each stored value and ASSIGN, their order."""

  def __init__(self, sink: UOp, rows: bool, target: Target) -> None:
    self.sink, self.nodes, self.rows, self.target = sink, sink.toposort(), rows, target
    self.sets = DeviceSets(self.nodes)
    self.slots = Slots(self.nodes, self.sets.where, fuse.choose(sink, target, rows))
    self.versions = versions(self.nodes)
    self.steps: list[KernelToBe] = []
    self.made: dict[UOp, int] = {}  # stored value or ASSIGN -> its step
    self.copies: set[State] = set()  # contents that no order of the steps keeps for all who read them
    self.shared = self.sets.shared(self.slots.homes)  # stored values that are read on several device sets

  def build(self, arrange: Arrange) -> Schedule | None:
    """The schedule, or None if the graph needs `copies` first, or values to be apart that are `shared`."""
    if self.shared:
      return None
    for u in self.nodes:
      if u.op is Ops.ASSIGN or (u in self.slots.homes and u.op not in MEMORY):
        self.add_step(u)
    sizes = {slot: t.nbytes for slot, t in self.slots.temps.items()} if any(s.waits for s in self.steps) else {}
    order = Order(self.steps, self.made, sizes)
    steps, self.copies = order.run(), self.copies | order.copies
    return None if self.copies else self.finish([step.item for step in steps if step.item is not None], arrange)

  def with_copies(self) -> UOp:
    """The graph with a copy of each content in `copies` where it is read; what is written stays where it is."""
    made: dict[UOp, UOp] = {}  # as a value
    kept: dict[UOp, UOp] = {}  # as what is written to, or as the state that a later one builds on

    def as_memory(u: UOp) -> UOp:
      if u not in kept:
        kept[u] = u.replace(src=(as_memory(u.src[0]), *(made[s] for s in u.src[1:]))) if u.src else u
      return kept[u]

    def make(u: UOp, src: Sources) -> UOp:
      if u.op is Ops.ASSIGN:
        return on_sources(u, (as_memory(u.src[0]), src[1]))
      if u.op not in CONTENT:
        return on_sources(u, src)
      if (self.slots.slot_of(u), self.versions[u]) not in self.copies:
        return as_memory(u)
      return UOp.new(Ops.CONTIGUOUS, u.dtype, (as_memory(u),), ("old content", len(made)))

    return rebuild(self.sink, make, made)

  def add_step(self, u: UOp) -> None:
    """Lowers `u` to a kernel, and notes what it waits for and reads."""
    written, value = u.src if u.op is Ops.ASSIGN else (u, u)
    target, slot = self.slots.homes[u] if written is u else written, self.slots.slot_of(written)
    held = peel(value.src[0]) if u.op is Ops.CONTIGUOUS else peel(value)
    if held in self.made and self.slots.homes[held].slot == slot:
      self.made[u] = self.made[held]
      return
    step = KernelToBe(u, set(), [], slot)
    self.walk(step, value, target)
    if 0 not in value.max_shape:
      item = self.item(value, target)
      clashes = not isinstance(target, Home) and overwrites_what_it_reads(item)
      if clashes and value.op in CONTENT:
        self.copies.add((slot, self.versions[value]))  # it is the target's own content
      elif clashes:  # it would read what it has written already: the value goes to a temporary first
        self.slots.homes[value] = self.slots.new_home(value)
        self.add_step(value)
        self.add_step(u)
        return
      devices = device_set(self.sets.where[value if isinstance(target, Home) else target])
      ops, moves = computed(value, self.slots.homes) if watched() else (), tuple(step.moves) if item.peers else ()
      step.item = replace(item, devices=devices, computes=ops, after=tuple(step.waits), moves=moves)
    self.made[u] = len(self.steps)
    self.steps.append(step)

  def item(self, value: UOp, target: Home | UOp) -> ScheduleItem:
    """What stores `value`, on no devices yet: a copy where no kernel can do it, a kernel that the user wrote, or one of
    `lower`, once in a process for those that differ in their slots only: as those of a model's layers do, and of the
    plans among which `auto` chooses."""
    homes, slot_of = self.slots.homes, self.slots.slot_of
    if value.op is Ops.COLLECTIVE and isinstance(target, Home):
      (source, *others), result = value.arg.placements, value.arg.result
      if not others and device_set(source) != device_set(result):
        transfer = Transfer(value.arg.template.max_shape, value.dtype, source, result)
        return ScheduleItem(transfer, (target.slot, slot_of(value.src[0])), (), (), False)
    if value.op is Ops.CALL and isinstance(target, Home):
      xs = value, *value.src
      params = [UOp.new(Ops.PARAM, x.dtype, (), ParamArg(i, elements(x))) for i, x in enumerate(xs)]
      ast = UOp.new(Ops.CALL, value.dtype, tuple(params), value.arg)
      return ScheduleItem(ast, tuple(map(slot_of, xs)), (), (), False)
    key, slots = structural_key(value, target, homes)
    if (known := _lowered.get(key)) is None:
      known = _lowered[key] = lower(key)
    return replace(known, slots=tuple(slots[i] for i in known.slots))

  def walk(self, step: KernelToBe, value: UOp, target: Home | UOp) -> None:
    """Reads and dependencies: everything down to stored values."""
    seen, stack = set[UOp](), [value]
    if not isinstance(target, Home):
      memory = next(v for v in target.down() if v.op in CONTENT)
      step.after |= {self.made[a] for a in self.versions[memory]}
    while stack:
      u = stack.pop()
      if u in seen:
        continue
      seen.add(u)
      if u.op in CONTENT:
        version = self.versions[u]
        step.after |= {self.made[a] for a in version}
        step.reads.append((self.slots.slot_of(u), version))
      elif u in self.made:
        step.after.add(self.made[u])
      else:
        stack += fuse.computed_from(u)
        step.moves += [u.arg] if u.op is Ops.COLLECTIVE else []
      if u.op is Ops.WAIT:
        below = UOp.sink(*u.src[1:]).toposort(lambda u: u not in self.made)
        waits = {self.made[s] for v in below for s in v.src if s in self.made}
        step.after |= waits
        step.waits += [self.steps[i].writes for i in waits]

  def finish(self, items: Sequence[ScheduleItem], arrange: Arrange) -> Schedule:
    placements = [*(b.arg.device for b in self.slots.buffers), *(t.device for t in self.slots.temps.values())]
    for i in (i for i in items if isinstance(i.kernel, UOp)):  # devices meet where they read each other's parts alone
      assert all(device_set(placements[s]) == i.devices for s in i.slots), "a kernel reads what other devices compute"
    items = shared_by_place(tile_and_fuse(items, self.slots.temps, self.target) if self.rows else items)
    items, at, pool = arrange(items, self.slots.temps, self.slots.buffers)
    number = {s: s for s in range(len(self.slots.buffers))} | {s: len(self.slots.buffers) + n for s, n in at.items()}
    numbers = [[tuple(number[s] for s in slots if s in number) for slots in (i.slots, i.after)] for i in items]
    items = [replace(i, slots=slots, after=after) for i, (slots, after) in zip(items, numbers)]
    return Schedule(tuple(items), tuple(self.slots.buffers), tuple(pool))


def overwrites_what_it_reads(item: ScheduleItem) -> bool:
  """Whether the written memory is also read, at any other place than the one just written, or by a peer."""
  assert isinstance(item.kernel, UOp)
  written = item.kernel.src[0].src[0].src[1]
  other = (u.src[0] for u in item.kernel.toposort() if u.op is Ops.INDEX and u.src[1] is not written)
  if any((x.src[0] if x.op is Ops.PEER else x).arg.slot == 0 for x in other):
    return True
  return item.slots.count(item.slots[0]) > 1  # the same memory, by the table of peers
