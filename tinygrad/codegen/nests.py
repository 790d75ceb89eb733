"""A nest, stores that share their own loops, and how it is computed: a list of primitives.

Loops have names: `i0`, `i1`, … the parallel ones, `k0`, … those of reductions, as they are met; a split of `x` makes
`x.o` (outer), `x.i` (inner) and `x.t` (what is left). A step is plain data: a method's name and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tinygrad.codegen.analysis.accesses import Analysis, folds_of, is_inlined, operands_of, rereads
from tinygrad.codegen.primitives import IllegalStep, bind, split
from tinygrad.codegen.primitives.rebind import IN_REGISTERS, Rebinding, Version
from tinygrad.codegen.primitives.stage import Limits, Panel, Scheduled, Stores, accumulate, bytes_of_sums, stage_panels
from tinygrad.codegen.primitives.tensorize import tensorize
from tinygrad.device import Target
from tinygrad.device.cores import EIGHT_ROWS, Core
from tinygrad.helpers import prod, round_up
from tinygrad.numerics.fragments import narrowed
from tinygrad.numerics.idle_loops import CHUNK
from tinygrad.numerics.products import carries_rest
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import affine, index
from tinygrad.uop.loops import LoopIds, extent, iterations, static
from tinygrad.uop.rewrite import on_sources, rebuild

WRITTEN_OUT = 64  # steps of a short reduction, over all of its tile, beyond which it is a loop


class ScheduleStep(NamedTuple):
  """One primitive with its arguments."""

  name: str
  args: tuple[Any, ...]

  def __str__(self) -> str:
    """As `@kernel_schedule` takes it."""
    plain = (tuple(x) if isinstance(x, Staged) else x for x in self.args)
    return f"{self.name}({', '.join(map(repr, plain))})"


Heuristic = Callable[["NestSchedule"], None]


class Staged(NamedTuple):
  """Operand number `operand` in memory: with the loops `outer` as its dims, the outermost first, and then those of a
  row, `inner`, which has `row` elements, or as many as there are. `order`: in which loops threads copy it, what is
  nearest in the memory that it comes from first; there `vector` neighbours are aligned. `tile`: as a core reads it."""

  operand: int
  outer: tuple[str, ...]
  inner: tuple[str, ...] = ()
  row: int = 0
  order: tuple[tuple[str, ...], ...] = ()
  vector: int = 1
  tile: bool = False


Fill = tuple[list[list[str]], int]  # how threads fill memory together: `Staged`'s order, in names of its own; vectors


class Room(NamedTuple):
  """What the nests of a kernel have in common. `steps`: by nest, what was done with it; `outside`: bytes of scratch
  memory that are filled outside of all nests."""

  target: Target
  ids: LoopIds
  heuristic: Heuristic
  steps: dict[str, list[ScheduleStep]]
  outside: list[int]
  written: set[UOp]  # memory that the kernel stores in
  grid: dict[str, UOp] = {}  # that the nests of a group of threads have in common,
  row: UOp | None = None  # and the loop over the rows that it has


class NestSchedule:
  """A nest and its loops by name. Each primitive makes of it one that computes the same, or raises IllegalStep."""

  def __init__(
    self, label: str, stores: Stores, around: Collection[UOp], limits: Limits, room: Room, taken: int, most: int = 0
  ) -> None:
    self.label, self.room, self.taken = label, room, taken
    self.most = most  # bytes of scratch memory that other nests take, one after the other
    self.around = tuple(r for r in stores[0].src[2:] if r in around)  # the outermost first
    self.kernel = UOp.sink(*stores)
    self.limited = limits
    self.parallel = tuple(r for r in stores[0].src[2:] if r not in around and r.arg[1] is AxisKind.LOOP)
    self.names = {f"i{n}": r for n, r in enumerate(self.parallel)}
    self.grid = {**room.grid}  # the numbers of groups, threads and lanes, if they are threads of a grid
    self.versions: dict[UOp, list[Version]] = {}  # what is to take the place of loops,
    self.orders: list[dict[UOp, int]] = []  # and how they are to be nested
    self.operands: list[list[UOp]] = []  # what may be staged, each with its images in the parts of split loops
    self.a: Analysis
    self.fill: Fill | None = None  # if it is one
    self.stages = self.reading = 1  # blocks of memory for what is staged within a reduction, and those in use
    self.blocked = False  # its reduction is one of blocks already
    self.for_core = False  # its operands are what a core takes
    self.steps = room.steps[label] = []
    self.name_reductions()

  def analyse(self) -> Analysis:
    """Strides and dependences. What may be staged is numbered by it."""
    self.a = a = Analysis(self.kernel.src, self.parallel)
    self.operands = [[x] for x in dict.fromkeys(x for i in a.folds for x in operands_of(a, i))]
    if self.grid and self.around and not a.folds:  # what comes anew with each block that nests share
      read = dict.fromkeys(u for s in self.kernel.src for u in a.loads(s.src[1]) if self.around[-1] in u.loops)
      self.operands = [[u] for u in read if u.src[0].src[0].op is Ops.PARAM]
    return a

  def number_of(self, operand: UOp) -> int:
    """Of what `analyse` has found that may be staged."""
    return next(i for i, images in enumerate(self.operands) if images[0] is operand)

  def name_of(self, r: UOp) -> str:
    return next(name for name, x in self.names.items() if x is r)

  def name_reductions(self) -> None:
    over = dict.fromkeys(r for f in folds_of(self.kernel.src) for r in f.src[1:])
    self.names |= {f"k{n}": r for n, r in enumerate(over)}

  def loop(self, name: str) -> UOp:
    if name not in self.names:
      raise IllegalStep(f"there is no loop {name}", f"one of {', '.join(self.names)}")
    return self.names[name]

  def note(self, name: str, *args: Any) -> None:
    self.steps.append(ScheduleStep(name, args))

  def settle(self) -> None:
    """Makes the kernel of which the steps so far have spoken."""
    if self.versions or self.orders:
      made = Rebinding(self.kernel, self.versions, self.orders, self.for_core)
      self.limited = {r: limit for r, limit in self.limited.items() if r not in self.versions}
      self.kernel, self.versions, self.orders = made.kernel, {}, []
      self.check_fills()
      self.operands = [list(dict.fromkeys(y for x in images for y in made.images(x))) for images in self.operands]

  def check_fills(self) -> None:
    fills = (u for u in self.kernel.toposort() if u.op is Ops.AFTER)
    if wrong := [r for u in fills for r in u.loops if r.arg[1] in IN_REGISTERS]:
      rule = f"loop {min(r.arg[0] for r in wrong)} is one of registers, so what is staged has to span it"
      raise IllegalStep(rule, "stage it first, or with that loop among its dims")

  def core(self, name: str) -> Core:
    if (found := next((c for c in self.room.target.cores if c.name == name), None)) is None:
      raise IllegalStep(f"{self.room.target.name} has no core {name}", "one of its Target.cores")
    return found

  # ---- primitives

  def split(self, name: str, size: int, tail: split.Tail = "peel") -> None:
    """`name` -> name.o, name.i and, where a last block is not whole and is to be peeled, name.t."""
    self.note("split", name, size, tail)
    r = self.loop(name)
    n = r.src[0].arg if static(r) else 0
    if tail == "overlap" and (n < size or (n % size > 0 and (rereads(self.kernel.src) or r.arg[1] is AxisKind.REDUCE))):
      rule = f"blocks of {size} overlap in a parallel loop of at least as many, if nothing reads what is stored"
      raise IllegalStep(rule, 'split it with tail="clamp"')
    versions, parts = split.split_loop(r, size, self.limited.get(r), self.room.ids, tail)
    self.check_chunks(name, r, lambda chunk: chunk % size == 0)
    self.versions[r] = versions
    del self.names[name]
    self.names |= {f"{name}.{part}": r for part, r in parts.items() if r is not None}

  def join(self, *names: str) -> None:
    """Parallel loops, or those of one reduction, as one by the name of the last, which is its lowest digit."""
    loops = [self.loop(name) for name in names]
    if len(loops) > 1:
      self.note("join", *names)
      for name, r in zip(names, loops):
        self.check_chunks(name, r, lambda chunk: False)
      if len({r.arg[1] for r in loops}) > 1 or not all(map(static, loops)):
        raise IllegalStep("loops that are joined are of one kind, and of known lengths", "join others")
      joined = self.room.ids.loop(index(iterations(loops)), loops[0].arg[1])
      self.versions |= bind.bind(loops, joined)
      self.names = {n: r for n, r in self.names.items() if n not in names} | {names[-1]: joined}

  def unroll(self, name: str) -> None:
    self.mark("unroll", name, AxisKind.UPCAST)

  def vectorize(self, name: str) -> None:
    self.mark("vectorize", name, AxisKind.VECTOR)

  def chain(self, name: str) -> None:
    self.mark("chain", name, AxisKind.CHAIN)

  def mark(self, step: str, name: str, kind: AxisKind) -> None:
    self.note(step, name)
    r = self.loop(name)
    self.check_chunks(name, r, lambda chunk: False)
    self.versions[r], self.names[name] = split.mark(r, kind)

  @property
  def chunks(self) -> dict[UOp, int]:
    """Of the loops that may end early: they do after a multiple of so many iterations, a power of two."""
    ends = {r: affine(limit, {}).divisor() or CHUNK for r, limit in self.limited.items()}
    return {r: n & -n for r, n in ends.items()}

  def check_chunks(self, name: str, r: UOp, ends: Callable[[int], bool]) -> None:
    """A loop that may end early has to: what lies beyond in memory that others fill is nothing."""
    if r in self.limited and not ends(chunk := self.chunks[r]):
      rule = f"loop {name} ends after a multiple of {chunk} iterations, where the rest leaves nothing to do"
      raise IllegalStep(rule, f"split it first, by a part of {chunk}")

  def reorder(self, *names: str) -> None:
    """Loops nested in this order, wherever several of them are nested; the others keep their places. Parallel loops may
    run in any order, and so may those of one reduction. Names that there are none of are passed over."""
    if len(order := [self.names[n] for n in names if n in self.names]) > 1:
      self.note("reorder", *names)
      self.orders.append({r: i for i, r in enumerate(order)})

  def launch(self, threads: int, lanes: int = 1, groups: int = 1) -> None:
    """A group of the grid has so many threads, times lanes; so many groups are a cluster, which has all their lanes."""
    self.note("launch", threads, lanes, groups)
    if groups > self.room.target.cluster:
      raise IllegalStep(f"{groups} groups, of which {self.room.target.cluster} make a cluster", "launch it with fewer")
    for to, n in (("cluster", groups), ("threads", threads), ("lanes", lanes)):
      if n > 1:
        self.grid[to] = self.room.ids.loop(index(n), AxisKind.CLUSTER if to == "cluster" else AxisKind.LOCAL)

  def bind(self, to: str, *names: str) -> None:
    """Parallel loops to the `groups` of a grid, to the `threads` of a group, or its whole `team`, with the lanes of
    each; to `lanes`, loops of reductions and those in which their results are used. Those of the names that there are.
    """
    if loops := [self.names.pop(n) for n in names if n in self.names]:
      self.note("bind", to, *names)
      if to == "groups":
        self.grid[to] = self.room.ids.loop(index(int(prod(max(extent(r), 1) for r in loops))), AxisKind.GLOBAL)
      members = {"team": ("threads", "lanes"), "lanes": ("cluster", "lanes")}
      numbers = [self.grid[n] for n in members.get(to, (to,)) if n in self.grid]
      if not numbers:
        raise IllegalStep(f"the group has no {to}", "launch it with some")
      for some in ([r] for r in loops) if to == "lanes" else (loops,):
        self.versions |= bind.bind(some, *numbers)

  def within(self, *grid: str) -> None:
    """The stores are computed by these of the grid."""
    self.note("within", *grid)
    self.settle()
    threads = [self.grid[to] for to in grid if to in self.grid]
    for u in self.kernel.toposort():
      if u.op is Ops.MMA and not bind.is_lane(u.src[2], threads, u.arg.lanes):
        rule = f"the lanes of core {u.arg} are not threads side by side"
        raise IllegalStep(rule, "bind them last, to the first threads")
    self.kernel = bind.with_threads(self.kernel, threads)

  def stage(self, *panels: Staged) -> None:
    """Operands in scratch memory, filled together. In what is left of a split loop x, x.t stands for x.i."""
    self.note("stage", *panels)
    self.settle()
    together: dict[frozenset[UOp], list[Panel]] = {}
    reducing = {r for f in folds_of(self.kernel.src) for r in f.src[1:]}
    for spec in map(Staged._make, panels):
      if spec.operand >= len(self.operands):
        raise IllegalStep(f"there is no operand {spec.operand}", f"one of {len(self.operands)}, from 0 on")
      for n, image in enumerate(self.operands[spec.operand]):
        panel = self.panel(spec, image, f"{self.label}.panel{spec.operand}" + (f".{n}" if n else ""))
        offset = self.place(panel, not reducing.isdisjoint(panel.around) or self.inside(image))
        # within a reduction it is filled anew, by threads with others that are then
        key = frozenset(panel.around if spec.order else (image,))
        together.setdefault(key, []).append(replace(panel, offset=offset))
    for some in together.values():
      self.kernel = stage_panels(self.kernel, some, self.room.ids)
    self.check_fills()

  def panel(self, spec: Staged, image: UOp, label: str) -> Panel:
    def loops(names: Sequence[str]) -> list[UOp]:
      """Of this image, and of a length that is known: along others it is filled for each iteration."""
      rest = {n: n.removesuffix("i") + "t" for n in names if n.endswith(".i")}
      found = (self.names.get(part) for name in names for part in (name, rest.get(name, "")))
      return [r for r in found if r in image.loops and static(r)]

    outer, inner = loops(spec.outer), loops(spec.inner)
    number = {r: f"i{n}" for n, r in enumerate((*outer, *inner))}
    fill = [[number[r] for r in loops(group)] for group in spec.order], spec.vector
    scheduled = self.scheduled(label, 1 << 62, fill=fill)
    panel = Panel(image, (*outer,), (*inner,), spec.row, 0, scheduled, tile=spec.tile, reading=self.reading)
    return replace(panel, stages=self.stages) if len(panel.around) == 1 else panel

  def inside(self, image: UOp) -> bool:
    """Whether it has to be filled within the innermost of the loops that nests share."""
    below = image.toposort()
    written = any(u.op is Ops.INDEX and u.src[0] in self.room.written for u in below)
    return not self.around or self.around[-1] in below or written

  def place(self, panel: Panel, inside: bool) -> int:
    """Where in scratch memory there is room. What is filled outside of a loop that nests share stays there for all of
    its iterations, at the end of the memory; panels inside follow one another in time."""
    nbytes, unit = panel.nbytes * panel.stages, EIGHT_ROWS if panel.tile else 1
    end, self.taken = self.room.target.scratch - sum(self.room.outside), round_up(self.taken, unit)
    if self.taken > (last := (end - nbytes) // unit * unit):
      raise IllegalStep(f"{nbytes} bytes do not fit in scratch memory", "stage fewer loops of the operand")
    if not inside:
      self.room.outside.append(end - last)
      return last
    self.taken += nbytes
    return self.taken - nbytes

  def narrow(self, core: str) -> None:
    """What is widened alone is staged as it is, where it is what the core takes."""
    self.note("narrow", core)
    self.for_core, kind = True, self.core(core).operand
    self.operands = [[x if (y := narrowed(x, kind)) is None else y for x in images] for images in self.operands]

  def tensorize(self, core: str, m: str, n: str, k: str) -> None:
    """The sums of products over loop k by a core; `m`.lane, among whose iterations its rows and columns, loops m and n,
    are shared out, is to be threads side by side."""
    self.note("tensorize", core, m, n, k)
    self.settle()
    loops = [self.loop(name) for name in (m, n, k)]
    self.kernel, lane = tensorize(self.kernel, self.core(core), (loops[0], loops[1], loops[2]), self.room.ids)
    self.operands = []
    self.check_fills()
    self.names = {name: r for name, r in self.names.items() if r not in loops} | {f"{m}.lane": lane}

  def pipeline(self, stages: int, reading: int = 1) -> None:
    """What is staged from now on within a reduction is filled `stages` - `reading` of its iterations ahead."""
    self.note("pipeline", stages, reading)
    self.stages, self.reading = stages, reading
    self.taken = max(self.taken, self.most if stages > 1 else 0)

  def accumulate(self, name: str, size: int, *dims: str) -> None:
    """The reduction over loop `name` in blocks of `size`; what they add up to is in memory with `dims`."""
    self.note("accumulate", name, size, *dims)
    self.settle()
    r, loops, offset = self.loop(name), [*map(self.loop, dims)], self.taken
    if not all(map(static, (*loops, r))):
      raise IllegalStep("sums so far lie in memory of a fixed size, and a loop has none", "accumulate in registers")
    self.check_chunks(name, r, lambda chunk: size % chunk == 0 or chunk % size == 0)
    f = next(f for f in folds_of(self.kernel.src) if r in f.src[1:])
    self.taken += bytes_of_sums(f, loops) * (1 + carries_rest(f))
    how = [self.scheduled(f"{self.label}.{part}", self.taken, True) for part in ("begin", "block", "rest")]
    self.kernel = accumulate(self.kernel, f, r, size, self.limited.get(r), loops, offset, self.room.ids, how)
    self.blocked, self.operands = True, []
    self.names = {n: x for n, x in self.names.items() if x in self.parallel}
    self.name_reductions()

  def write_out(self) -> None:
    """Short reductions as chains of operations."""
    self.settle()
    made: dict[UOp, UOp] = {}
    for f in folds_of(self.kernel.src):
      if f.src[0].op is not Ops.MMA and is_inlined(f) and not any(map(self.is_fixed, f.src[1:])):
        tile = {r for r in f.toposort() if r.op is Ops.RANGE and r.arg[1] is AxisKind.UPCAST}
        if iterations(r for r in (*tile, *f.src[1:])) <= WRITTEN_OUT:
          own = self.room.ids.like(f.src[1:], AxisKind.UPCAST)
          made[f] = f.replace(src=(rebuild(f.src[0], on_sources, dict(own)), *own.values()))
    if made:
      self.note("write_out")
      self.kernel = rebuild(self.kernel, on_sources, made)

  def is_fixed(self, r: UOp) -> bool:
    """Whether a loop of a reduction is to stay one: its iterations are registers' already, or it may end early."""
    return r.arg[1] in IN_REGISTERS or r in self.limited

  # ---- what is done with nests

  def scheduled(self, label: str, taken: int, blocked: bool = False, fill: Fill | None = None) -> Scheduled:
    """How a nest is computed that this one makes, beside memory that is taken."""

    def stores_of(stores: Stores, limits: Limits) -> Stores:
      nest = NestSchedule(label, stores, (), limits, self.room, taken)
      nest.blocked, nest.grid, nest.fill = blocked, dict(self.grid), fill
      return nest.scheduled_stores()

    return stores_of

  def scheduled_stores(self) -> Stores:
    """The stores as they are to be computed."""
    self.room.heuristic(self)
    self.settle()
    return split.clip(self.kernel, self.limited, self.room.ids).src
