"""Kernels for targets with a grid of threads: which thread computes what, and how the threads of a group work together.

The grid is one-dimensional. A work group has `threads` × `lanes` threads: `threads` share out the parallel ranges, with
the work groups; `lanes` share every reduction, and the parallel ranges inside of which nothing is reduced (the columns
of a softmax). Where what a reduction reads is used by many threads of a group (a contraction), the group copies it to
local memory first, a block of the reduction at a time (`Staging`). Where the last thread's share reaches beyond a
range's end its loads read the last element again and its stores are guarded, so that all threads of a group reach every
barrier. Elements that one thread has side by side are loaded and stored as vectors, where they are aligned.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tinygrad.codegen.emit import Emitter, Sums
from tinygrad.codegen.heuristic import EPILOGUE, MAX_ROWS, Analysis, Item, Stages, efficiency, fold_plan, size, static
from tinygrad.codegen.plan import LoopNest, LoopPlan, Nests, Region, Tile, is_inlined, regions, sum_blocks
from tinygrad.codegen.scatter import DENSE, ByIndex, Known, added, scattered, updates
from tinygrad.codegen.values import Env
from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import NOOPT, ceildiv, prod, round_up
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loop_ids import LoopIds
from tinygrad.uop.rewrite import rewrite, substitute_free

GROUP = 256  # threads of a work group
ENOUGH = 1 << 15  # threads that keep a device busy
TOGETHER = 64  # iterations of a reduction from which several threads share it
VECTOR = 16  # bytes that a thread loads or stores at once
SHARED = 4  # threads that use an element, from which copying it to local memory pays
STEPS = 32  # most iterations of a reduction between two barriers
Counts = Mapping[UOp, int]  # by range


@dataclass(frozen=True, slots=True)
class Panel:
  """What a group copies of `operand` for one block of a reduction. `order`: the ranges it depends on, by their step in
  device memory, least first; neighbouring threads copy neighbours along the first, `vector` elements each. `rows`: the
  same ranges as they lie in local memory, innermost first, where a row is padded if it is written across; `offset`,
  `nbytes`: where."""

  operand: UOp
  order: tuple[UOp, ...]
  vector: int
  rows: tuple[UOp, ...]
  offset: int
  nbytes: int


@dataclass(frozen=True, slots=True)
class Staging:
  """A reduction in blocks: `length` iterations of its range `cut`, and all of those of its ranges after that. The group
  copies the `panels` of a block, meets, and adds up from there."""

  cut: UOp
  length: int
  panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Grid:
  """`shared`: the parallel ranges that groups and threads share out, outermost first, with the threads along each.
  `plan`: the tiles of all ranges, and the order of the parallel ranges that are left to loops. `lanes_first`: lanes are
  neighbouring threads, for it is the reduction that reads along memory. `stagings`: by the ranges of a reduction."""

  shared: tuple[tuple[UOp, int], ...]
  lanes: int
  plan: LoopPlan
  lanes_first: bool = False
  stagings: Mapping[tuple[UOp, ...], Staging] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
  """A thread's part of a range: its elements, where they are in what all threads have together, their UPCAST ranges
  (the copies, and those side by side), and the condition that the elements exist, if they may not."""

  value: UOp
  local: Affine
  ups: list[UOp]
  exists: list[UOp]


def power_of_two(n: int) -> int:
  """The greatest that is at most n."""
  return 1 << max(n, 1).bit_length() - 1


def plan_grid(stores: Sequence[UOp], target: Target) -> Grid:
  """The grid of stores that share their ranges. Neighbouring threads take neighbouring elements: of the range along
  which most accesses are contiguous, or, where that is a reduction's, of the reduction. With NOOPT: a thread an
  element."""
  ranges = stores[0].src[2:]
  if NOOPT:
    return Grid(tuple((r, 1) for r in ranges), 1, LoopPlan(()))
  a = Analysis(tuple(stores))
  folds = [i for i in a.items if i.fold is not None and not is_inlined(i.fold)]
  outer = [r for r in ranges if not folds or any(r in i.ranges for i in folds)]
  main = max(folds, key=lambda i: i.work, default=None)
  copies: dict[UOp, int] = {}
  lanes, lanes_first = 1, False
  outputs = int(prod(size(r) for r in outer))
  along = contiguous(a.items, outer) if outer else None
  axes = sorted(outer, key=lambda r: (r is not along, -ranges.index(r)))
  stagings: dict[tuple[UOp, ...], Staging] = {}
  if main is not None:
    held = sum(i.over == main.over for i in folds)
    most = min((target.vector_registers - MAX_ROWS - 1) // held, EPILOGUE // max(a.items[-1].operations, 1))
    most = min(most, 2 * EPILOGUE // max(main.operations, 1), max(outputs // ENOUGH, 4))
    copies = shares(main, axes, {}, most, MAX_ROWS)
    workers = outputs // max(int(prod(copies.values())), 1)
    lanes = lanes_of(main, workers, len(outer) < len(ranges), prod(copies.values()) > SHARED)
    lanes_first = lanes > 1 and reads_along(main)
    if target.cooperates and len(outer) == len(ranges) and workers >= ENOUGH // 8:
      group = max(min(GROUP, power_of_two(workers // 128)), 64)
      threads = shares(main, axes, copies, group, group)
      for own in dict.fromkeys(i.over for i in folds):
        if (staging := stage([i for i in folds if i.over == own], a, threads, copies, target)) is not None:
          stagings[own] = staging
  elif ranges and outputs >= 8 * ENOUGH:
    assert along is not None
    copies = {along: min(4, power_of_two(size(along) // 64))}
  if stagings:
    lanes, lanes_first = 1, False
  else:
    threads = shares(None, axes, copies, GROUP // lanes, GROUP)
  fold_plans = {i.over: plan_of_fold(i, copies, lanes, stagings.get(i.over)) for i in folds}
  shared = tuple((r, threads[r]) for r in sorted(threads, key=lambda r: (r is along, ranges.index(r))))
  rest = [r for r in ranges if r not in outer]
  last = contiguous(a.items, rest) if rest else None
  if last is not None:
    copies[last] = aligned_copies(last, 4)
  plan = LoopPlan(tuple(sorted(rest, key=lambda r: r is last)), {r: Tile(n) for r, n in copies.items()}, fold_plans)
  return Grid(shared, lanes, plan, lanes_first, stagings)


def plan_of_fold(
  i: Item, copies: Mapping[UOp, int], lanes: int, staged: Staging | None
) -> tuple[tuple[UOp, ...], Tile]:
  """The order of a reduction's loops, the lanes' last; and of which the last is unrolled."""
  if staged is not None:
    return i.over[: i.over.index(staged.cut) + 1], Tile()
  order, tile = fold_plan(i, None, 1, {r: Tile(n) for r, n in copies.items()})
  return tuple(sorted(order, key=lambda r: (least_step(i, r) == 1, size(r)))) if lanes > 1 else order, tile


def aligned_copies(r: UOp, n: int) -> int:
  """How many of n copies along r may lie side by side, so that none of them is beyond the end if the first is not."""
  return math.gcd(n, 4, size(r)) if static(r) else 1


def shares(item: Item | None, axes: Sequence[UOp], start: Mapping[UOp, int], limit: int, most: int) -> dict[UOp, int]:
  """Powers of two by range, of which the product is at most `limit` and each at most `most`: from `start`, the range is
  doubled that saves most loads (an operand is loaded once for all iterations along the ranges on which it does not
  depend), if any does or `start` is given; the first range where it makes little difference."""
  out = dict.fromkeys(axes, 1)

  def loads(more: UOp | None) -> float:
    extents = {r: n * start.get(r, 1) * (1 + (r is more)) for r, n in out.items()}
    used = prod(efficiency(size(r), n) for r, n in extents.items())
    each = [1 / prod(n for r, n in extents.items() if r not in x.strides) for x in item.accesses] if item else [used]
    return float(sum(each) / used)

  while 2 * prod(out.values()) <= limit:
    open_axes = [r for r in axes if out[r] < most and out[r] * start.get(r, 1) < size(r)]
    best = min(open_axes, key=lambda r: loads(r) * (0.9 if r is axes[0] else 1), default=None)
    if best is None or (most == MAX_ROWS and loads(best) > 0.99 * loads(None)):
      break
    out[best] *= 2
  return out


def stage(items: Sequence[Item], a: Analysis, threads: Counts, copies: Counts, target: Target) -> Staging | None:
  """How the group reduces `items`, which share their own ranges, through local memory, if an operand is used by enough
  of its threads."""
  own, known = items[0].over, {*threads, *items[0].over}
  operands = dict.fromkeys(x for i in items if known >= set(i.ranges) for x in Stages(a, target, 0).operands(i))
  used, extents = {}, {r: n * copies.get(r, 1) for r, n in threads.items()}
  for x in operands:
    loads = [a.access(u.src[0], u.dtype.itemsize) for u in a.loads(x)]
    users = prod(n for r, n in threads.items() if r not in a.deps[x])
    spans = not a.deps[x].isdisjoint(own) and not a.deps[x].isdisjoint(threads)
    if loads and spans and users >= SHARED and x not in a.reducing:
      used[x] = loads
  row = sum(x.dtype.itemsize * int(prod(extents.get(r, 1) for r in a.deps[x])) for x in used)
  left = min(STEPS, target.scratch // 2 // row) if row else 0
  cut, length = own[0], 0
  for cut in reversed(own):
    length = size(cut) if static(cut) and size(cut) <= left else power_of_two(left)
    extents[cut] = length
    left //= max(length, 1)
    if length < size(cut) or not static(cut):
      break
  if not used or prod(size(r) for r in own) == 0 or prod(extents.get(r, 1) for r in own) < SHARED:
    return None
  panels, offset = [], 0
  for x, loads in used.items():
    d = [r for r in (*threads, *own[own.index(cut) :]) if r in a.deps[x]]
    steps = {r: min((abs(y.strides[r] or math.inf) for y in loads if r in y.strides), default=math.inf) for r in d}
    order = sorted(d, key=steps.__getitem__)
    # innermost what a thread reads as a vector, else what most threads read side by side
    rows = sorted(d, key=lambda r: (r in own, -aligned_copies(r, copies.get(r, 1)), -threads.get(r, 1)))
    vector = aligned_copies(order[0], extents[order[0]])
    for y in loads:
      others = [s or 1 for r, s in y.strides.items() if r is not order[0]]
      vector = math.gcd(vector, *others) if y.strides.get(order[0]) == 1 and order[0] not in y.masked else 1
    nbytes = round_up(panel_layout(order, rows, extents)[1] * x.dtype.itemsize, 64)
    panels.append(Panel(x, tuple(order), vector, tuple(rows), offset, nbytes))
    offset += nbytes
  return Staging(cut, length, tuple(panels)) if offset <= target.scratch else None


def panel_layout(order: Sequence[UOp], rows: Sequence[UOp], extents: Mapping[UOp, int]) -> tuple[dict[UOp, int], int]:
  """(step along each range, elements) of a panel: rows begin at multiples of 4; where they are written across, they are
  longer by 4, so that the writes meet in fewer banks of the memory."""
  strides, elements = {}, round_up(extents[rows[0]], 4) + 4 * (rows[0] is not order[0])
  for r in rows[1:]:
    strides[r], elements = elements, elements * extents[r]
  return {**strides, rows[0]: 1}, elements


def least_step(item: Item, r: UOp) -> int | None:
  """The least step along r of an access that is read once: the one whose neighbours should be neighbouring threads'."""
  return min((abs(s) for x in item.accesses if (s := x.strides.get(r))), default=None)


def contiguous(items: Sequence[Item], ranges: Sequence[UOp]) -> UOp:
  """The range along which the most accesses go in steps of one, weighted by how often they are done."""

  def weight(r: UOp) -> float:
    return sum(i.work for i in items for x in i.accesses if x.strides.get(r) == 1)

  return max(reversed(ranges), key=weight)


def lanes_of(main: Item, workers: int, inner: bool, reused: bool) -> int:
  """How many threads share each reduction: where rows are computed with their reductions, where a reduction reads
  along memory what is used once, or where there are too few outputs for as many threads."""
  length = int(prod(map(size, main.over)))
  if length < TOGETHER or not all(map(static, main.over)):
    return 1
  if inner or workers < ENOUGH // 8 or (reads_along(main) and not reused):
    return min(GROUP, power_of_two(length // 4), max(power_of_two(4 * ENOUGH // max(workers, 1)), 32))
  return 1


def reads_along(item: Item) -> bool:
  """Whether the elements that a reduction adds up are neighbours, and those of neighbouring results are not."""
  outside = any(x.strides.get(r) == 1 for x in item.accesses for r in item.ranges if r not in item.over)
  return not outside and any(least_step(item, r) == 1 for r in item.over)


def sharers(store: UOp, place: UOp, target: Target) -> int:
  """How many threads share out the rows of a SCATTER, with one for each column or more; 0 where each row rather looks
  at every update: there are few, or hardly more than threads."""
  columns = int(prod(size(r) for r in store.src[2:] if r is not place))
  workers = power_of_two(ENOUGH // max(columns, 1))
  return workers if size(place) > target.few_rows + 2 * workers else 0


class GridEmitter(Emitter):
  """Emits one kernel for a grid."""

  def __init__(self, target: Target, ids: LoopIds) -> None:
    super().__init__(lambda stores, taken: LoopPlan(tuple(stores[0].src[2:])), ids)
    self.target = target
    self.guards: list[UOp] = []  # conditions of a store, beside its own
    self.sides: dict[UOp, int] = {}  # UPCAST range of elements side by side -> how many
    self.local: dict[UOp, Affine] = {}  # shared range -> where in the group's part of it this thread's elements are
    self.starts: dict[UOp, Affine] = {}  # shared range -> where the group's part of it begins
    self.mapping: dict[UOp, UOp] = {}  # shared range -> this thread's elements
    self.grid = Grid((), 1, LoopPlan(()))
    self.lane, self.thread = index(0), index(0)
    self.lanes = self.threads = 1
    self.shared_loops: set[UOp] = set()  # loops whose iterations are shared out among the lanes

  def kernel(self, stores: Sequence[UOp]) -> None:
    """The stores of a kernel, which share their ranges."""
    assert not self.root.out or self.stack == [self.root], "one nest a kernel"
    if (
      not NOOPT
      and (found := scattered(stores[0])) is not None
      and (workers := sharers(stores[0], found[1][0], self.target))
    ):
      self.scatter(stores[0], *found, workers)
      return
    stores = [rewrite(s, DENSE) for s in stores]
    with self.threads_of(plan_grid(stores, self.target)):
      self.nest(stores, self.grid.plan, 0, self.mapping)

  @contextlib.contextmanager
  def threads_of(self, grid: Grid) -> Iterator[None]:
    """Opens the loops over groups and threads; `mapping` then has the elements of each of the latter."""
    self.grid = grid
    copies = {r: grid.plan.tiles.get(r, Tile()).copies for r, _ in grid.shared}
    counts = [max(ceildiv(size(r), copies[r] * n), 1) for r, n in grid.shared]
    self.threads, self.lanes = int(prod(n for _, n in grid.shared)), grid.lanes
    local = (self.lanes, self.threads) if grid.lanes_first else (self.threads, self.lanes)
    sizes = (int(prod(counts)), AxisKind.GLOBAL), (local[0], AxisKind.LOCAL), (local[1], AxisKind.LOCAL)
    with contextlib.ExitStack() as loops:
      group, first, second = (loops.enter_context(self.loop(index(n), kind)) for n, kind in sizes)
      self.lane, self.thread = (first, second) if grid.lanes_first else (second, first)
      self.floor = len(self.stack) - 1
      group_stride, thread_stride = sizes[0][0], self.threads
      for (r, n), count in zip(grid.shared, counts):
        group_stride, thread_stride = group_stride // count, thread_stride // n
        self.starts[r] = affine(digit(group, group_stride, count), {}).scaled(n * copies[r])
        thread, most = digit(self.thread, thread_stride, n), copies[r]
        part = self.share(r, self.starts[r], thread, n, most, aligned_copies(r, most))
        self.mapping[r], self.local[r] = part.value, part.local
        self.guards += part.exists
      yield

  def scatter(self, store: UOp, f: UOp, parts: ByIndex, start: UOp, workers: int) -> None:
    """A thread has what some rows hold in some columns: every `workers`-th row. It goes through all updates, in order,
    and adds those of its rows, so that the sum has the same bits in every run."""
    (place, chosen, inside, value, _), (where, _, *loops) = parts, store.src
    start, value = (rewrite(x, DENSE) for x in (start, value))
    worker, row = (self.ids.loop(n, AxisKind.LOOP) for n in (index(workers), index(ceildiv(size(place), workers))))
    columns = sorted((r for r in loops if r is not place), key=lambda r: affine(where.src[1], {}).terms.get(r, 0) != 1)
    threads = shares(None, [*columns, worker], {}, GROUP, GROUP)
    with self.threads_of(Grid(tuple((r, threads[r]) for r in (worker, *reversed(columns))), 1, LoopPlan((row,)))):
      at = Affine(0, {worker: 1, row: workers}).uop()
      exists = UOp.new(Ops.CMPLT, dtypes.bool, (at, place.src[0]))
      begin = substitute_free(UOp.new(Ops.STORE, dtypes.void, (where, start)), {place: at})
      self.nest([guarded(begin, (exists,))], self.grid.plan, 0, self.mapping)
      self.written.add(where.src[0])
      self.forget_memory()
      mine = UOp.new(Ops.CMPEQ, dtypes.bool, (UOp.new(Ops.MOD, dtypes.index, (chosen, index(workers))), worker))
      mine = UOp.new(Ops.AND, dtypes.bool, (inside, mine)) if workers > 1 else inside

      def one(at: Known) -> Nests:
        return (LoopNest((added(f, where, value, {**at, place: substitute_free(chosen, at)}),)),)

      self.nests((updates(f.src[1:], self.mapping, mine, one),))

  def share(self, r: UOp, start: Affine, worker: UOp, workers: int, copies: int, vector: int = 1) -> Part:
    """The part of `r` from `start` that one of `workers` has: they take neighbours (or neighbouring vectors), and a
    worker's copies lie `workers` apart."""
    at, ups = affine(worker, {}), [index(0), index(0)]
    for i, n in enumerate((copies // vector, vector)):
      if n > 1:
        ups[i] = self.ids.loop(index(n), AxisKind.UPCAST)
        self.unrolled.append(ups[i])
        self.unrolled_bits |= self.bit(ups[i])
    at = at.plus(affine(ups[0], {}), workers)
    if vector > 1:
      self.sides[ups[1]] = vector
    place = Affine(start.const // vector, {x: c // vector for x, c in start.terms.items()}).plus(at)
    out, end, exists = place.uop(), r.src[0] if vector == 1 else index(size(r) // vector), []
    if end.op is not Ops.CONST or place.bounds()[1] >= end.arg:
      exists.append(UOp.new(Ops.CMPLT, dtypes.bool, (out, end)))
      last = affine(end, self.affine_memo).plus(Affine(-1)).uop()
      out = UOp.new(Ops.MIN, dtypes.index, (out, last))
      if last.vmin < 0:
        out = UOp.new(Ops.MAX, dtypes.index, (out, index(0)))
    side = affine(ups[1], {})
    value = affine(out, self.affine_memo).scaled(vector).plus(side).uop()
    return Part(value, at.scaled(vector).plus(side), ups, exists)

  def drop(self, *parts: Part) -> None:
    self.unrolled = [u for u in self.unrolled if not any(u in p.ups for p in parts)]

  def steps(self, r: UOp, share: int) -> UOp:
    """How often each of the lanes takes its share of `r`."""
    total = affine(r.src[0], self.affine_memo).plus(Affine(share - 1)).uop()
    dynamic = total.op is not Ops.CONST
    return UOp.new(Ops.IDIV, dtypes.index, (total, index(share))) if dynamic else index(total.arg // share)

  def nest(self, stores: Sequence[UOp], plan: LoopPlan, level: int = 0, mapping: dict[UOp, UOp] | None = None) -> None:
    """As on other targets, but that the lanes share out the innermost loop."""
    if self.lanes == 1 or level != len(plan.order) - 1:
      super().nest(stores, plan, level, mapping)
      return
    r, before = plan.order[level], len(self.guards)
    copies = plan.tiles.get(r, Tile()).copies
    with self.loop(self.steps(r, copies * self.lanes), AxisKind.LOOP) as counter:
      self.shared_loops.add(counter)
      start = affine(counter, {}).scaled(copies * self.lanes)
      part = self.share(r, start, self.lane, self.lanes, copies, aligned_copies(r, copies))
      self.guards += part.exists
      super().nest(stores, plan, level + 1, {**(mapping or {}), r: part.value})
      self.drop(part)
    del self.guards[before:]

  def leaf(self, stores: Sequence[UOp], plan: LoopPlan) -> None:
    guards = list(self.guards)
    if self.lanes > 1 and not plan.order:
      guards.append(UOp.new(Ops.CMPEQ, dtypes.bool, (self.lane, index(0))))
    super().leaf([guarded(s, guards) for s in stores], plan)

  # ---- vectors

  def beside(self, where: UOp, env: Env, other: Sequence[UOp] = ()) -> tuple[UOp, int] | None:
    """(UPCAST range, elements) along which the access is an aligned vector, under one condition for all of it."""
    for lane, count in self.sides.items():
      n, bit = min(count, VECTOR // where.dtype.itemsize), self.bits[lane]
      if lane not in env or n < 2 or any(self.deps(x) & bit for x in (where.src[0], *where.src[2:], *other)):
        continue
      form = affine(where.src[1], self.affine_memo)
      if form.terms.get(lane) != 1 or any(x is not lane and self.deps(x) & bit for x in form.terms):
        continue
      form = self.resolve(form, {r: at for r, at in env.items() if r is not lane})
      if form.const % n == 0 and all(c % n == 0 for x, c in form.terms.items() if x is not lane):
        return lane, n
    return None

  def load(self, u: UOp, env: Env) -> UOp:
    if (found := self.beside(u.src[0], env, u.src[1:])) is None:
      return super().load(u, env)
    lane, n = found
    first = {**env, lane: env[lane] // n * n}
    memory, base, _, mask, safe = self.reach(u.src[0], first)
    if mask is not None and mask.op is Ops.CONST:
      return super().load(u, env)
    src = [self.place(u.dtype, n, memory, base, 1, mask)]
    if mask is not None and len(u.src) > 1:
      src.append(self.broadcast(self.emit(u.src[1], first), n))
    here = self.stack[-1] if not safe or memory.op is Ops.SCRATCH else None
    whole = self.node(Ops.LOAD, src[0].dtype, tuple(src), None, here)
    return self.node(Ops.EXTRACT, u.dtype, (whole,), (env[lane] % n,))

  def store(self, u: UOp, env: Env) -> None:
    """A vector is stored with its last element."""
    if (found := self.beside(u.src[0], env)) is None:
      super().store(u, env)
      return
    lane, n = found
    if (env[lane] + 1) % n:
      return
    values = [self.value(u.src[1], {**env, lane: env[lane] + 1 - n + i}) for i in range(n)]
    memory, base, _, mask, _ = self.reach(u.src[0], {**env, lane: env[lane] + 1 - n})
    if mask is None or mask.op is not Ops.CONST:
      where = self.place(values[0].dtype, n, memory, base, 1, mask)
      self.put(UOp.new(Ops.STORE, dtypes.void, (where, self.node(Ops.VECTORIZE, where.dtype, tuple(values)))))

  # ---- reductions

  def cooperates(self, deps: int) -> bool:
    """Whether all lanes come to this reduction together."""
    known = self.lane.op is Ops.RANGE and deps & self.bit(self.lane)
    return self.lanes > 1 and not known and not any(s.out[0] in self.shared_loops for s in self.stack[1:])

  def _fold_loops(self, sums: Sums, order: list[UOp], tile: Tile, mapping: dict[UOp, UOp]) -> None:
    group = sums[0]
    if len(order) == 1 and (staging := self.grid.stagings.get(group[0].src[1:])) is not None:
      for start, length in self.rounds(sums, regions(staging.cut.src[0], Tile(staging.length))):
        with self.block(group, staging, {**mapping, staging.cut: start.uop()}, length) as values:
          self.accumulate_tile(sums, values, (None, 1), None)
        self.barrier()
      return
    if len(order) > 1 or not self.cooperates(self.deps(group[0])):
      super()._fold_loops(sums, order, tile, mapping)
      return
    r, depth, together = order[0], len(self.stack), tile.copies * self.lanes
    for start, _ in self.rounds(sums, (Region(self.steps(r, together), index(0), Tile(together)),)):
      self.shared_loops |= {s.out[0] for s in self.stack[depth:]}
      part = self.share(r, start, self.lane, self.lanes, tile.copies)
      values = [self.along(f.src[0], {**mapping, r: part.value}) for f in group]
      copies, exists = part.ups[0] if tile.copies > 1 else None, part.exists[0] if part.exists else None
      self.accumulate_tile(sums, values, (copies, tile.copies), exists)
      self.drop(part)

  def rounds(self, sums: Sums, of: Iterable[Region]) -> Iterator[tuple[Affine, int]]:
    """Opens the loops over the tiles of a reduction's range, for each region: (where a tile starts, its size). A long
    sum is in parts of like size, for accuracy."""
    for region in of:
      for blocks, part in sum_blocks(region, sums[0][0]):
        with self.loop(index(blocks), AxisKind.REDUCE) as block:
          with self.loop(part.count, AxisKind.REDUCE) as counter:
            step = affine(counter, {}).plus(affine(block, {}), part.count.arg if blocks > 1 else 0)
            yield affine(part.base, self.affine_memo).plus(step, part.tile.size), part.tile.size
          if blocks > 1:
            self.flush(sums)

  @contextlib.contextmanager
  def block(self, group: list[UOp], s: Staging, counters: dict[UOp, UOp], length: int) -> Iterator[list[UOp]]:
    """Copies the panels of a block and opens its loops: what is added up there. `counters`: the reduction's ranges up
    to that which is cut, of which it is where the block begins."""
    inner = group[0].src[group[0].src.index(s.cut) + 1 :]
    extents = {r: n * self.grid.plan.tiles.get(r, Tile()).copies for r, n in self.grid.shared}
    extents |= {s.cut: length, **{r: size(r) for r in inner}}
    copied = [(p, *self.fill(p, {**counters, **dict.fromkeys(inner, index(0))}, extents)) for p in s.panels]
    self.barrier()
    with contextlib.ExitStack() as loops:
      local, reads = dict(self.local), dict(counters)
      for r in (s.cut, *inner):
        local[r] = affine(loops.enter_context(self.loop(index(extents[r]), AxisKind.REDUCE)), {})
        reads[r] = affine(counters.get(r, index(0)), {}).plus(local[r]).uop()
      for p, memory, strides in copied:
        place = functools.reduce(lambda at, r: at.plus(local[r], strides[r]), p.rows, Affine(0))
        where = UOp.new(Ops.INDEX, memory.dtype, (memory, place.uop()))
        reads[substitute_free(p.operand, self.mapping)] = UOp.new(Ops.LOAD, memory.dtype, (where,))
      yield [substitute_free(f.src[0], reads) for f in group]

  def fill(self, p: Panel, counters: Mapping[UOp, UOp], extents: Mapping[UOp, int]) -> tuple[UOp, dict[UOp, int]]:
    """All threads of the group copy one panel: (its memory, step in it along each range)."""
    strides, _ = panel_layout(p.order, p.rows, extents)
    memory = self.scratch(p.operand.dtype, p.offset, p.nbytes)
    inside, place, guards, parts = dict(counters), Affine(0), [], []
    left, stride = self.threads, 1
    for r in p.order:
      vector = math.gcd(p.vector, extents[r]) if r is p.order[0] else 1
      workers = left if r is p.order[-1] else min(left, power_of_two(2 * ceildiv(extents[r], vector) - 1))
      copies = ceildiv(extents[r], workers * vector) * vector
      start = self.starts[r] if r in self.starts else affine(counters[r], {})
      part = self.share(r, start, digit(self.thread, stride, workers), workers, copies, vector)
      parts.append(part)
      inside[r], place = part.value, place.plus(part.local, strides[r])
      if copies * workers > extents[r]:
        first = part.local.plus(affine(part.ups[1], {}), -1).uop()
        guards.append(UOp.new(Ops.CMPLT, dtypes.bool, (first, index(extents[r]))))
      left, stride = left // workers, stride * workers
    where = UOp.new(Ops.INDEX, memory.dtype, (memory, place.uop()))
    copy = guarded(UOp.new(Ops.STORE, dtypes.void, (where, substitute_free(p.operand, inside))), guards)
    for env in self.environments(self.deps(copy)):
      self.store(copy, env)
    self.drop(*parts)
    return memory, strides

  def across(self, results: Sequence[tuple[UOp, object, UOp]]) -> Iterator[tuple[object, UOp]]:
    """The lanes' parts, reduced in scratch memory by halves."""
    if not results or not self.cooperates(self.deps(results[0][0])):
      yield from super().across(results)
      return
    workers = self.threads * self.lanes
    most = max(self.target.scratch // (workers * 8), 1)
    for first in range(0, len(results), most):
      yield from self.halves(results[first : first + most], workers)

  def halves(self, results: Sequence[tuple[UOp, object, UOp]], workers: int) -> Iterator[tuple[object, UOp]]:
    memory = [self.put(self.scratch(f.dtype, 8 * workers * i, 8 * workers)) for i, (f, _, _) in enumerate(results)]
    mine = Affine(0).plus(affine(self.lane, {}), self.threads).plus(affine(self.thread, {}))

    def at(m: UOp, lane: int, mask: UOp | None = None) -> UOp:
      """The entry `lane` lanes beyond this thread's."""
      place = self.parts(mine.plus(Affine(lane * self.threads)), {})[0]
      return UOp.new(Ops.INDEX, m.dtype, (m, place) if mask is None else (m, place, mask))

    def write(m: UOp, value: UOp, mask: UOp | None = None) -> None:
      self.put(UOp.new(Ops.STORE, dtypes.void, (self.put(at(m, 0, mask)), value)))

    def read(where: UOp) -> UOp:
      return self.put(UOp.new(Ops.LOAD, where.dtype, (self.put(where),)))

    self.barrier()
    for m, (_, _, value) in zip(memory, results):
      write(m, value)
    half = self.lanes // 2
    while half:
      self.barrier()
      mask = self.emit(UOp.new(Ops.CMPLT, dtypes.bool, (self.lane, index(half))), {})
      for m, (f, _, _) in zip(memory, results):
        write(m, self.put(UOp.new(f.arg, f.dtype, (read(at(m, 0)), read(at(m, half, mask))))), mask)
      half //= 2
    self.barrier()
    for m, (_, key, _) in zip(memory, results):
      yield key, read(UOp.new(Ops.INDEX, m.dtype, (m, self.thread)))

  def barrier(self) -> None:
    self.put(UOp.new(Ops.BARRIER, dtypes.void))


def digit(x: UOp, stride: int, count: int) -> UOp:
  """x // stride % count, for x below stride · count · …"""
  if stride > 1:
    x = UOp.new(Ops.IDIV, dtypes.index, (x, index(stride)))
  return UOp.new(Ops.MOD, dtypes.index, (x, index(count))) if count > 1 else index(0)


def guarded(store: UOp, guards: Sequence[UOp]) -> UOp:
  where = store.src[0]
  if not (every := (*where.src[2:], *guards)):
    return store
  condition = functools.reduce(lambda x, y: UOp.new(Ops.AND, dtypes.bool, (x, y)), every)
  return store.replace(src=(where.replace(src=(*where.src[:2], condition)), *store.src[1:]))
