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
from dataclasses import dataclass

from tinygrad.codegen.emit import Emitter, Sums
from tinygrad.codegen.grid_plan import (
  GROUP,
  Grid,
  Panel,
  Staging,
  aligned_copies,
  panel_layout,
  plan_grid,
  power_of_two,
  sharers,
  shares,
)
from tinygrad.codegen.heuristic import size
from tinygrad.codegen.plan import LoopNest, LoopPlan, Nests, Region, Tile, regions, sum_blocks
from tinygrad.codegen.scatter import DENSE, ByIndex, Known, added, scattered, updates
from tinygrad.codegen.values import Env
from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import NOOPT, ceildiv, prod
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loop_ids import LoopIds
from tinygrad.uop.rewrite import rewrite, substitute_free

VECTOR = 16  # bytes that a thread loads or stores at once


@dataclass(frozen=True, slots=True)
class Part:
  """A thread's part of a range: its elements, where they are in what all threads have together, their UPCAST ranges
  (the copies, and those side by side), and the condition that the elements exist, if they may not."""

  value: UOp
  local: Affine
  ups: list[UOp]
  exists: list[UOp]


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
