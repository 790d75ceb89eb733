"""Kernels for targets with a grid of threads: which thread computes what, and how threads reduce together.

The grid is one-dimensional. A work group has `threads` × `lanes` threads: `threads` share out the parallel ranges, with
the work groups; `lanes` share every reduction, and the parallel ranges inside of which nothing is reduced (the columns
of a softmax). Where the last thread's share reaches beyond a range's end its loads read the last element again and its
stores are guarded, so that all threads of a group reach every barrier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinygrad.codegen.emit import BLOCK, Emitter, Env, substitute
from tinygrad.codegen.heuristic import EPILOGUE, Analysis, Item, fold_plan, size, static, tile_for
from tinygrad.codegen.plan import Plan, Tile, is_inlined
from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import NOOPT, ceildiv, prod
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.ops import AxisKind, Ops, UOp

GROUP = 256  # threads of a work group
ENOUGH = 1 << 15  # threads that keep a device busy
TOGETHER = 64  # iterations of a reduction from which several threads share it


@dataclass(frozen=True, slots=True)
class Grid:
  """`shared`: the parallel ranges that groups and threads share out, outermost first, with the threads along each.
  `plan`: the tiles of all ranges, and the order of the parallel ranges that are left to loops. `lanes_first`: lanes are
  neighbouring threads, for it is the reduction that reads along memory."""

  shared: tuple[tuple[UOp, int], ...]
  lanes: int
  plan: Plan
  lanes_first: bool = False


def power_of_two(n: int) -> int:
  """The greatest that is at most n."""
  return 1 << max(n, 1).bit_length() - 1


def plan_grid(stores: Sequence[UOp], target: Target) -> Grid:
  """The grid of stores that share their ranges. Neighbouring threads take neighbouring elements: of the range along
  which most accesses are contiguous, or, where that is a reduction's, of the reduction. With NOOPT: a thread an
  element."""
  ranges = stores[0].src[2:]
  if NOOPT:
    return Grid(tuple((r, 1) for r in ranges), 1, Plan(()))
  a = Analysis(tuple(stores))
  folds = [i for i in a.items if i.fold is not None and not is_inlined(i.fold)]
  outer = {r for i in folds for r in i.ranges} & set(ranges) if folds else set(ranges)
  main = max(folds, key=lambda i: i.work, default=None)
  tiles: dict[UOp, Tile] = {}
  lanes, lanes_first = 1, False
  if main is not None:
    lanes_first = reads_along(main)
    tiles = tile_for(main, None, 1, tuple(r for r in ranges if r in outer), target, EPILOGUE)
    lanes = lanes_of(main, int(prod(size(r) for r in outer)), tiles, bool(outer != set(ranges)))
  elif ranges and prod(size(r) for r in ranges) >= 8 * ENOUGH:
    v = contiguous(a.items, ranges)
    tiles = {v: Tile(min(4, power_of_two(size(v) // 64)))}
  left = GROUP // lanes
  threads: dict[UOp, int] = {}
  along = contiguous(a.items, [r for r in ranges if r in outer]) if outer else None
  for r in sorted((r for r in ranges if r in outer), key=lambda r: (r is not along, -ranges.index(r))):
    steps = ceildiv(size(r), tiles.get(r, Tile()).size)
    threads[r] = min(left, power_of_two(2 * steps - 1))
    left //= threads[r]
  fold_plans = {}
  for i in folds:
    assert i.fold is not None
    order, tile = fold_plan(i, None, 1, tiles)
    own = sorted(order, key=lambda r: (step_of(i, r) == 1, size(r)))
    fold_plans[i.fold.src[1:]] = (tuple(own) if lanes > 1 else order, tile)
  shared = tuple((r, threads[r]) for r in sorted(threads, key=lambda r: (r is along, ranges.index(r))))
  rest = [r for r in ranges if r not in outer]
  last = contiguous(a.items, rest) if rest else None
  looped = sorted(rest, key=lambda r: r is last)
  return Grid(shared, lanes, Plan(tuple(looped), tiles, fold_plans), lanes_first)


def step_of(item: Item, r: UOp) -> int | None:
  """The least step along r of an access that is read once: the one whose neighbours should be neighbouring threads'."""
  return min((abs(s) for x in item.accesses if (s := x.strides.get(r))), default=None)


def contiguous(items: Sequence[Item], ranges: Sequence[UOp]) -> UOp:
  """The range along which the most accesses go in steps of one, weighted by how often they are done."""

  def weight(r: UOp) -> float:
    return sum(i.work for i in items for x in i.accesses if x.strides.get(r) == 1)

  return max(reversed(ranges), key=weight)


def lanes_of(main: Item, outputs: int, tiles: dict[UOp, Tile], inner: bool) -> int:
  """How many threads share each reduction: where rows are computed with their reductions, where a reduction reads
  along memory, or where there are too few outputs for as many threads."""
  assert main.fold is not None
  length = int(prod(size(r) for r in main.fold.src[1:]))
  if length < TOGETHER or not all(static(r) for r in main.fold.src[1:]):
    return 1
  workers = outputs // max(int(prod(t.size for t in tiles.values())), 1)
  if inner or workers < ENOUGH // 8 or reads_along(main):
    return min(GROUP, power_of_two(length // 4), max(power_of_two(4 * ENOUGH // max(workers, 1)), 32))
  return 1


def reads_along(item: Item) -> bool:
  """Whether the elements that a reduction adds up are neighbours, and those of neighbouring results are not."""
  assert item.fold is not None
  own = item.fold.src[1:]
  outside = any(x.strides.get(r) == 1 for x in item.accesses for r in item.ranges if r not in own)
  return not outside and any(step_of(item, r) == 1 for r in own)


class GridEmitter(Emitter):
  """Emits one kernel for a grid."""

  def __init__(self, target: Target, first: int) -> None:
    super().__init__(lambda stores, taken: Plan(tuple(stores[0].src[2:])), first)
    self.target = target
    self.guards: list[UOp] = []  # conditions of a store, beside its own
    self.lane: UOp = index(0)
    self.thread: UOp = index(0)
    self.lanes = self.threads = 1
    self.spread_loops: set[UOp] = set()  # loops whose iterations are shared out among the lanes

  def kernel(self, stores: Sequence[UOp]) -> None:
    assert not self.root.out or self.stack == [self.root], "one nest a kernel"
    grid = plan_grid(stores, self.target)
    counts = [max(ceildiv(size(r), grid.plan.tiles.get(r, Tile()).size * n), 1) for r, n in grid.shared]
    self.threads, self.lanes = int(prod(n for _, n in grid.shared)), grid.lanes
    local = (self.lanes, self.threads) if grid.lanes_first else (self.threads, self.lanes)
    with (
      self.loop(index(int(prod(counts))), AxisKind.GLOBAL) as group,
      self.loop(index(local[0]), AxisKind.LOCAL) as first,
      self.loop(index(local[1]), AxisKind.LOCAL) as second,
    ):
      self.lane, self.thread = (first, second) if grid.lanes_first else (second, first)
      self.floor = len(self.stack) - 1
      mapping: dict[UOp, UOp] = {}
      group_stride, thread_stride = int(prod(counts)), self.threads
      for (r, n), count in zip(grid.shared, counts):
        group_stride, thread_stride = group_stride // count, thread_stride // n
        mapping[r] = self.share(
          r, digit(group, group_stride, count), digit(self.thread, thread_stride, n), n, grid.plan.tiles.get(r, Tile())
        )[0]
      self.nest(stores, grid.plan, 0, mapping)

  def share(self, r: UOp, step: UOp, worker: UOp, workers: int, tile: Tile) -> tuple[UOp, UOp | None, UOp | None]:
    """(the element of `r` that a worker has at a step, its UPCAST range, the condition that it exists): workers take
    neighbours, a worker's copies lie `workers` apart."""
    at = Affine(0).plus(affine(step, self.affine_memo), tile.copies * workers).plus(affine(worker, self.affine_memo))
    copies = None
    if tile.copies > 1:
      copies = UOp.new(Ops.RANGE, dtypes.index, (index(tile.copies),), (next(self.ids), AxisKind.UPCAST))
      self.unrolled.append(copies)
      self.unrolled_bits |= self.bit(copies)
      at = at.plus(Affine(0, {copies: workers}))
    out, end = at.uop(), r.src[0]
    if end.op is Ops.CONST and affine(out, self.affine_memo).bounds()[1] < end.arg:
      return out, copies, None
    exists = UOp.new(Ops.CMPLT, dtypes.bool, (out, end))
    last = affine(end, self.affine_memo).plus(Affine(-1)).uop()
    out = UOp.new(Ops.MIN, dtypes.index, (out, last))
    if last.vmin < 0:
      out = UOp.new(Ops.MAX, dtypes.index, (out, index(0)))
    self.guards.append(exists)
    return out, copies, exists

  def steps(self, r: UOp, share: int) -> UOp:
    """How often each of the lanes takes its share of `r`."""
    total = affine(r.src[0], self.affine_memo).plus(Affine(share - 1)).uop()
    if total.op is Ops.CONST:
      return index(total.arg // share)
    return UOp.new(Ops.IDIV, dtypes.index, (total, index(share)))

  def nest(self, stores: Sequence[UOp], plan: Plan, level: int = 0, mapping: dict[UOp, UOp] | None = None) -> None:
    """As on other targets, but that the lanes share out the innermost loop."""
    if self.lanes == 1 or level != len(plan.order) - 1:
      super().nest(stores, plan, level, mapping)
      return
    r, before = plan.order[level], len(self.guards)
    tile = plan.tiles.get(r, Tile())
    with self.loop(self.steps(r, tile.copies * self.lanes), AxisKind.LOOP) as counter:
      self.spread_loops.add(counter)
      at, copies, _ = self.share(r, counter, self.lane, self.lanes, tile)
      super().nest(stores, plan, level + 1, {**(mapping or {}), r: at})
      self.forget(copies, None)
    del self.guards[before:]

  def leaf(self, stores: Sequence[UOp], plan: Plan) -> None:
    guards = list(self.guards)
    if self.lanes > 1 and not plan.order:
      guards.append(UOp.new(Ops.CMPEQ, dtypes.bool, (self.lane, index(0))))
    super().leaf([guarded(s, guards) for s in stores], plan)

  # ---- reductions

  def cooperates(self, deps: int) -> bool:
    """Whether all lanes come to this reduction together."""
    return (
      self.lanes > 1
      and not (self.lane.op is Ops.RANGE and deps & self.bit(self.lane))
      and not any(s.out[0] in self.spread_loops for s in self.stack[1:])
    )

  def _fold_loops(
    self,
    group: list[UOp],
    order: list[UOp],
    tile: Tile,
    mapping: dict[UOp, UOp],
    outer: list[Env],
    registers: list[list[list[UOp]]],
  ) -> None:
    if len(order) > 1 or not self.cooperates(self.deps(group[0])):
      super()._fold_loops(group, order, tile, mapping, outer, registers)
      return
    r, before = order[0], len(self.guards)
    steps = self.steps(r, tile.copies * self.lanes)
    blocks, length = 1, steps
    if steps.op is Ops.CONST and steps.arg >= 8 * BLOCK:  # a long sum in parts of like size, for accuracy
      length = index(max(BLOCK, power_of_two(math.isqrt(steps.arg))))
      blocks = ceildiv(steps.arg, length.arg)
    with self.loop(index(blocks), AxisKind.REDUCE) as block:
      with self.loop(length, AxisKind.REDUCE) as counter:
        self.spread_loops |= {block, counter}
        step = Affine(0).plus(affine(block, {}), length.arg).plus(affine(counter, {})).uop() if blocks > 1 else counter
        at, copies, exists = self.share(r, step, self.lane, self.lanes, tile)
        del self.guards[before:]
        values = [substitute(f.src[0], {**mapping, r: at}) for f in group]
        self.accumulate_tile(group, values, (copies, tile.copies), exists, outer, registers)
        self.forget(copies, None)
      if blocks > 1:
        self.flush(group, registers)

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
    memory = [self.scratch(f.dtype, 8 * workers * i, 8 * workers) for i, (f, _, _) in enumerate(results)]
    mine = Affine(0).plus(affine(self.lane, {}), self.threads).plus(affine(self.thread, {}))

    def at(m: UOp, lane: int, mask: UOp | None = None) -> UOp:
      """The entry `lane` lanes beyond this thread's."""
      place = self.parts(mine.plus(Affine(lane * self.threads)), {})[0]
      return UOp.new(Ops.INDEX, m.dtype, (m, place) if mask is None else (m, place, mask))

    def write(m: UOp, value: UOp, mask: UOp | None = None) -> None:
      self.put(UOp.new(Ops.STORE, dtypes.void, (self.put(at(m, 0, mask)), value)))

    def read(where: UOp) -> UOp:
      return self.put(UOp.new(Ops.LOAD, where.dtype, (self.put(where),)))

    memory = [self.put(m) for m in memory]
    self.barrier()
    for m, (_, _, value) in zip(memory, results):
      write(m, value)
    half = self.lanes // 2
    while half:
      self.barrier()
      mask = self.emit(UOp.new(Ops.CMPLT, dtypes.bool, (self.lane, index(half))), {})
      for m, (f, _, _) in zip(memory, results):
        pair = (read(at(m, 0)), read(at(m, half, mask)))
        write(m, self.put(UOp.new(f.arg, f.dtype, pair)), mask)
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
  condition = where.src[2] if len(where.src) > 2 else None
  for g in guards:
    condition = g if condition is None else UOp.new(Ops.AND, dtypes.bool, (condition, g))
  if condition is None:
    return store
  return store.replace(src=(where.replace(src=(*where.src[:2], condition)), *store.src[1:]))
