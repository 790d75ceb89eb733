"""How a kernel runs on a grid of threads: which loops its threads and groups share out, how many lanes share a
reduction, and what a group copies to local memory.

Lanes share reductions, and the parallel loops inside of which nothing is reduced (the columns of a softmax). What many
threads of a group use (a contraction's operands) the group copies, a block of the reduction at a time. A thread whose
share reaches beyond a loop's end reads the last element again and stores nothing, so that all reach every barrier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tinygrad.codegen.analysis.accesses import MAX_ROWS, Item, neighbours, operands_of, rereads
from tinygrad.codegen.expressions import VECTOR
from tinygrad.codegen.heuristics.cores import plan_product, schedule_member, schedule_product
from tinygrad.codegen.heuristics.cpu import EPILOGUE, Tile, fold_plan, unroll
from tinygrad.codegen.nests import Fill, NestSchedule, Staged
from tinygrad.codegen.primitives.split import Tail
from tinygrad.device import Target
from tinygrad.helpers import NOOPT, ceildiv, efficiency, power_of_two, prod, round_up
from tinygrad.numerics.own_memory import WORD
from tinygrad.numerics.split_sums import FEW, MOST_ROWS
from tinygrad.uop import Ops, UOp
from tinygrad.uop.loops import extent, iterations, static

TOGETHER, BESIDE = 64, 8  # iterations of a reduction from which several threads share it, and of one along memory
SHARED = 4  # threads that use an element, from which copying it to local memory pays
PLAIN = 48 << 10  # bytes of local memory, at most, for operands as they are computed
STEPS = 32  # most iterations of a reduction between two barriers,
STEPS_OF_ROWS = 64  # and of one of several nests that has no more: what is the same for all blocks of a row then stays
FULL = 64  # results of a thread, as many as registers hold beside the operands of a product
LEAST_TILE = 4  # and at least, of products
HIDING = 1.5  # groups of a multiprocessor with which loads and products hide each other's latency
AHEAD, ONCE = 4, 8  # steps of a reduction across memory that lanes load at once, of at most so many results
SQUARE = 32  # rows and columns that a group turns at once
MEMORY_LINE, SECTOR = 128, 32  # bytes; the least that is read at once
Counts = Mapping[UOp, int]  # by loop


@dataclass(frozen=True, slots=True)
class Staging:
  """A reduction in blocks: `length` iterations of its loop `cut`, and all of those of its loops after that. A group
  copies the `panels` of a block."""

  cut: UOp
  length: int
  panels: tuple[Staged, ...]
  nbytes: int


Stagings = dict[tuple[UOp, ...], Staging]  # by the loops of reductions


@dataclass(frozen=True, slots=True)
class Grid:
  """`shared`: the parallel loops that groups and threads share out, outermost first, with the threads along each, and
  `copies` of a thread. `rest`: the other parallel loops. `folds`: by the loops of a reduction, their order and the tile
  of the last. `lanes_first`: lanes are neighbouring threads, for it is the reduction that reads along memory. `beside`:
  by loop, how many of a thread's iterations lie side by side, if there are as many; elsewhere it is as usual."""

  shared: tuple[tuple[UOp, int], ...]
  copies: Mapping[UOp, int] = field(default_factory=dict)
  lanes: int = 1
  lanes_first: bool = False
  rest: tuple[UOp, ...] = ()
  folds: Mapping[tuple[UOp, ...], tuple[tuple[UOp, ...], Tile]] = field(default_factory=dict)
  stagings: Mapping[tuple[UOp, ...], Staging] = field(default_factory=dict)
  beside: Counts = field(default_factory=dict)
  wide: int = 1  # a group has so many times as many threads as others

  @property
  def threads(self) -> int:
    return int(prod(n for _, n in self.shared))


def schedule_gpu(nest: NestSchedule) -> None:
  """Schedules a kernel by the heuristic's grid, or what a group copies to local memory."""
  if nest.fill is not None:
    return schedule_fill(nest, nest.fill)
  nest.analyse()
  if (product := plan_product(nest)) is not None:
    schedule_product(nest, product)
  elif (turned := turned_load(nest)) is not None:
    schedule_turned(nest, turned)
  elif not schedule_member(nest):
    Primitives(nest, plan_member(nest) if nest.grid else plan_grid(nest)).make()


class Turned(NamedTuple):
  """A load that goes along memory by one loop, where what is stored does by another."""

  load: UOp
  inner: UOp
  outer: UOp


def turned_load(nest: NestSchedule) -> Turned | None:
  """The one that a group is to turn in local memory, so that its threads read and write neighbours: the only load of a
  kernel that only computes elements."""
  a = nest.a
  loads = [u for s in nest.kernel.src for u in a.loads(s.src[1])]
  if nest.grid or a.folds or len(loads) != 1 or NOOPT or not nest.room.target.cooperates:
    return None
  stored, *more = (x for x in a.items[-1].accesses if x.stored)
  read = a.access(loads[0].src[0], loads[0].dtype.itemsize)
  inner, outer = (next((r for r, step in x.strides.items() if step == 1), None) for x in (read, stored))
  if more or inner is None or outer is None or inner is outer or read.masked or outer not in read.strides:
    return None
  return Turned(loads[0], inner, outer) if all(static(r) and extent(r) >= SQUARE for r in (inner, outer)) else None


def schedule_turned(nest: NestSchedule, turned: Turned) -> None:
  """Squares of elements, of which a thread has several: rows in local memory are one word longer, so that neighbours
  down a column are in other banks."""
  inner, outer = nest.name_of(turned.inner), nest.name_of(turned.outer)
  others, many = [name for name in nest.names if name not in (inner, outer)], nest.room.target.group // SQUARE
  nest.launch(SQUARE * many)
  for name in (inner, outer):
    nest.split(name, SQUARE, "clamp")
  nest.operands = [[turned.load]]
  row = SQUARE + max(4 // turned.load.dtype.itemsize, 1)
  nest.stage(Staged(0, (f"{inner}.i",), (f"{outer}.i",), row, ((f"{inner}.i",), (f"{outer}.i",))))
  nest.split(f"{inner}.i", many)
  unroll(nest, f"{inner}.i.o")
  nest.bind("groups", *others, f"{inner}.o", f"{outer}.o")
  nest.bind("threads", f"{inner}.i.i", f"{outer}.i")
  nest.within("groups", "threads")


class Primitives:
  """The grid, in primitives: blocks of loops for groups, which threads and lanes share out, and copies of a thread."""

  def __init__(self, nest: NestSchedule, grid: Grid) -> None:
    self.nest, self.grid = nest, grid
    self.names = {r: name for name, r in nest.names.items()}
    self.threads, self.lanes, self.unrolled = list[str](), list[str](), list[str]()
    # who reads the last element again is not to meet there who writes it
    self.tail: Tail = "mask" if nest.grid and rereads(nest.kernel.src) else "clamp"

  def make(self) -> None:
    nest, grid = self.nest, self.grid
    if not nest.grid:
      most = nest.room.target.group * grid.wide // grid.threads
      nest.launch(grid.threads, min(grid.lanes, most), ceildiv(grid.lanes, most))
    shared = [(n, *self.blocks(self.names[r], n, grid.copies[r], self.vector(r), self.tail)) for r, n in grid.shared]
    for over, (order, tile) in grid.folds.items():
      if (staging := grid.stagings.get(over)) is not None:
        nest.split(self.names[staging.cut], staging.length)
      else:
        self.reduction(over, order, tile)
    for r in grid.rest[-1:]:  # the innermost of the loops that groups do not share out
      name, copies, vector = self.joined(grid.rest, grid.copies[r], self.vector(r))
      _, block, copies = self.blocks(name, grid.lanes, copies, vector, self.tail)
      self.workers(block, grid.lanes, copies, self.lanes)
    for staging in grid.stagings.values():
      nest.stage(*staging.panels)
    for n, _, block, copies in shared:
      self.workers(block, n, copies, self.threads)
    nest.bind("groups", *(outer for _, outer, _, _ in shared))
    nest.bind("threads", *self.threads)
    nest.bind("lanes", *self.lanes)
    for name in self.unrolled:
      unroll(nest, name)
    nest.within("groups", "cluster", *(("lanes", "threads") if grid.lanes_first else ("threads", "lanes")))
    nest.write_out()

  def vector(self, r: UOp) -> int:
    """How many of a worker's copies along a parallel loop lie side by side."""
    return aligned_copies(r, self.grid.copies[r], self.grid.beside.get(r, 4))

  def blocks(self, name: str, number: int, copies: int, vector: int, tail: Tail) -> tuple[str, str, int]:
    """(the loop over blocks of `number` workers' shares, that within one, and how many of its iterations each worker
    has). Of a worker's copies a `vector` lies side by side, the others `number` shares apart."""
    if vector > 1:
      self.nest.split(name, vector)
      self.unrolled.append(f"{name}.i")
      name = f"{name}.o"
    if name not in self.nest.names or number * copies == vector:  # it is as long as a vector, or so are the blocks
      return name, "", 1
    self.nest.split(name, copies // vector * number, tail)
    return f"{name}.o", f"{name}.i", copies // vector

  def workers(self, block: str, number: int, copies: int, to: list[str]) -> None:
    """Shares out a block of number·copies iterations."""
    if block in self.nest.names and number == 1:
      self.unrolled.append(block)
    elif block in self.nest.names and copies == 1:
      to.append(block)
    elif block in self.nest.names:
      self.nest.split(block, number)
      self.unrolled.append(f"{block}.o")
      to.append(f"{block}.i")

  def joined(self, order: Sequence[UOp], copies: int, vector: int) -> tuple[str, int, int]:
    """The last of these loops, joined with so many before it as give all lanes something to do; and its copies, of
    which a vector lies side by side."""
    outer, wanted, here = list[str](), self.grid.lanes * ceildiv(copies, vector), extent(order[-1]) // vector
    last = self.names[order[-1]]
    for r in order[-2::-1]:
      if here >= wanted or not (static(r) and static(order[-1])) or {r, order[-1]} & self.nest.limited.keys():
        break
      outer, here = [self.names[r], *outer], here * extent(r)
    if not outer:
      return last, copies, vector
    if vector > 1:
      self.nest.split(last, vector)
      self.unrolled.append(f"{last}.i")
      last = f"{last}.o"
    names = [*outer, *([last] if last in self.nest.names else [])]
    self.nest.join(*names)
    return names[-1], copies // vector, 1

  def reduction(self, over: tuple[UOp, ...], order: tuple[UOp, ...], tile: Tile) -> None:
    """Its last loop, among the lanes if these come to it together: if it is of nothing that they share out already."""
    if order != over:
      self.nest.reorder(*(self.names[r] for r in order))
    last, lanes, items = self.names[order[-1]], self.grid.lanes, [i for i in self.nest.a.items if i.over == over]
    apart = {*self.grid.rest, *(r for other in self.grid.folds for r in other if r not in over)}
    if lanes > 1 and all(apart.isdisjoint(i.ranges) for i in items):
      again = loops_again(items, order)
      self.unrolled += map(self.names.__getitem__, again)
      order = tuple(r for r in order if r not in again)
      vector = self.grid.beside.get(order[-1]) or neighbours_of(order, items, lanes)
      copies = max(tile.copies, vector)
      last, copies, vector = self.joined(order, copies, vector)
      _, block, copies = self.blocks(last, lanes, copies, vector, "clamp")
      self.workers(block, lanes, copies, self.lanes)
    else:  # each lane reads rows of its own
      along = neighbours_of(order[-1:], items, 1) if lanes > 1 and all(map(reads_once, items)) else 1
      if (copies := max(tile.copies, along)) > 1:
        self.nest.split(last, copies)
        self.unrolled += [f"{last}.i", f"{last}.t"]


def plan_grid(nest: NestSchedule) -> Grid:
  """The grid of stores that share their loops. Neighbouring threads take neighbouring elements: of the loop along which
  most accesses are contiguous, or, where that is a reduction's, of the reduction. With NOOPT: a thread an element."""
  ranges, target = nest.parallel, nest.room.target
  a = nest.a
  if NOOPT:
    return Grid(tuple((r, 1) for r in ranges), dict.fromkeys(ranges, 1))
  main, outer = a.main, [r for r in ranges if not a.folds or any(r in i.ranges for i in a.folds)]
  copies: Counts = {}
  lanes = beside = 1
  outputs = iterations(outer)
  along = contiguous(a.items, outer)
  axes = sorted(outer, key=lambda r: (r is not along, -ranges.index(r)))
  stagings = Stagings()
  if main is not None:
    held = sum(i.over == main.over for i in a.folds)
    most = min((target.vector_registers - MAX_ROWS - 1) // held, EPILOGUE // max(a.items[-1].operations, 1))
    most = min(most, 2 * EPILOGUE // max(main.operations, 1), FULL)
    once = rows_beside(main, outer)
    copies = once or tile_of(main, axes, most, outputs, target)
    workers = outputs // max(int(prod(copies.values())), 1)
    lanes = lanes_of(main, workers, len(outer) < len(ranges), not once and prod(copies.values()) > SHARED, target)
    tiles = len(outer) == len(ranges) and not once and not (lanes > 1 and reads_once(main))
    if lanes > 1 and (row := kept_row(nest, outer)) is not None:
      copies, lanes = dict.fromkeys(axes, 1), row.lanes(lanes, target)
    elif (found := columns_of(main, along, copies, outputs, target, once)) is not None:
      copies, lanes, beside = found
    elif target.cooperates and tiles and workers >= target.busy // 32:
      group = max(min(target.group, power_of_two(workers // 128)), 64)
      threads = shares(main, axes, copies, group, group)
      stagings = staged(nest, a.folds, threads, copies, min(target.scratch, PLAIN))
  elif along is not None and outputs >= 8 * target.busy:
    copies = {along: min(4, power_of_two(extent(along) // 64))}
  if not stagings:
    threads = shares(None, axes, copies, max(target.group // lanes, beside), target.group)
  return grid_of(nest, threads, copies, lanes, stagings)


class KeptRow(NamedTuple):
  """Elements, in the loops `over`, that passes over a row all read, once if threads keep them in registers: `words` of
  each. `beside`: how many lie side by side, and aligned. `wide`: words of a value, and times a group's threads."""

  over: tuple[UOp, ...]
  words: int
  beside: int
  wide: int

  def lanes(self, least: int, target: Target) -> int:
    """How many threads have it: so many that it fits, if there are as many, in a group or all groups of a cluster."""
    words, few = extent(self.over[0]) * self.words, target.vector_registers // 3
    lanes = min(max(least, power_of_two(2 * ceildiv(words, few) - 1)), target.group * self.wide)
    groups = power_of_two(2 * ceildiv(words, 2 * few * lanes) - 1)
    return lanes * groups if groups <= target.cluster else min(lanes, target.group)

  def copies(self, lanes: int) -> tuple[int, int]:
    """(elements of each thread, of these side by side)"""
    each = ceildiv(extent(self.over[0]), lanes)
    return round_up(each, beside := math.gcd(self.beside, power_of_two(each))), beside


def kept_row(nest: NestSchedule, outer: Sequence[UOp]) -> KeptRow | None:
  """What several reductions read along memory, or one and what is computed with it, one after the other."""
  a, over, memory, beside, wide = nest.a, list[UOp](), list[UOp](), VECTOR, 1
  for i in (*a.folds, a.items[-1]):
    own = [r for r in i.ranges if r not in outer]
    if len(own) > 1 or not all(map(static, own)) or (i.fold is not None and i.over != (*own,)):
      return None
    values = [s.src[1] for s in nest.kernel.src] if i.fold is None else i.fold.src[:1]
    row = {u for x in values for u in a.loads(x) if not a.deps[u].isdisjoint(own)}
    kept = (v for v in UOp.sink(*values).toposort() if v in row or (v.op is Ops.CAST and v.src[0] in row))
    wide = max([wide, *(ceildiv(v.dtype.itemsize, 4) for v in kept)]) if nest.room.target.cluster > 1 else 1
    memory += {u.src[0].src[0] for u in row}
    along = [x for x in i.accesses for r in own if x.strides.get(r, 0) != 0]
    if any(x.strides[own[0]] != 1 for x in along):
      return None
    beside = math.gcd(beside, *(VECTOR // x.itemsize for x in along if not x.stored))
    beside = neighbours(along, own[0], math.gcd(beside, extent(own[0]))) if own else beside
    over += own
  words = sum(memory.count(m) > 1 for m in set(memory))
  alike = len({extent(r) for r in over}) == 1 and nest.room.target.cooperates
  return KeptRow((*over,), words * wide, beside, wide) if words and alike else None


def staged(nest: NestSchedule, items: list[Item], threads: Counts, copies: Counts, room: int) -> Stagings:
  """What groups of these threads copy to local memory, by the loops of the reductions that use it."""
  out = Stagings()
  for own in dict.fromkeys(i.over for i in items):
    left = room - sum(s.nbytes for s in out.values())
    if (found := stage(nest, [i for i in items if i.over == own], threads, copies, left)) is not None:
      out[own] = found
  return out


def grid_of(nest: NestSchedule, threads: Counts, copies: Counts, lanes: int, stagings: Stagings) -> Grid:
  """The grid of so many threads and copies along each loop that threads share out. All else follows."""
  ranges, a, main = nest.parallel, nest.a, nest.a.main
  lanes = 1 if stagings or main is None else lanes
  along = contiguous(a.items, tuple(threads))
  fold_plans = {i.over: plan_of_fold(i, copies, lanes, stagings.get(i.over)) for i in a.folds}
  shared = tuple((r, threads[r]) for r in sorted(threads, key=lambda r: (r is along, ranges.index(r))))
  rest, copies = [r for r in ranges if r not in threads], dict(copies)
  last = contiguous(a.items, rest)
  if last is not None:
    copies[last] = aligned_copies(last, 4)
  every = {r: copies.get(r, 1) for r in ranges}
  lanes_first = main is not None and lanes > 1 and reads_along(main)
  wide = {r: max(VECTOR // min(x.itemsize for i in a.items for x in i.accesses), 4) for r in threads}
  row = kept_row(nest, tuple(threads)) if lanes > 1 and all(copies[r] == 1 for r in threads) else None
  inner, times = (*sorted(rest, key=lambda r: r is last),), 1 if row is None else row.wide
  grid = Grid(shared, every, lanes, lanes_first, inner, fold_plans, stagings, wide, times)
  mine, beside = row.copies(lanes) if row is not None else (0, 0)
  if row is None or 3 * mine * row.words > 2 * nest.room.target.vector_registers:
    return grid
  kept = {over: (order, Tile(mine)) for over, (order, _) in fold_plans.items()}
  copies = {**every, **dict.fromkeys(rest, mine)}
  return replace(grid, copies=copies, folds=kept, beside={**wide, **dict.fromkeys(row.over, beside)})


def plan_member(nest: NestSchedule) -> Grid:
  """What a group's threads do of a nest that is one of several (group_rows.py): rows are theirs, the rest lanes'."""
  a, numbers = nest.a, {name: extent(r) for name, r in nest.grid.items()}
  threads, lanes = numbers.get("threads", 1), numbers.get("lanes", 1)
  rows = tuple(r for r in nest.parallel if r is nest.room.row)
  own = tuple(r for r in nest.parallel if r not in rows)
  last = contiguous(a.items, own)
  copies = {r: extent(r) // threads for r in rows} | dict.fromkeys(own, 1)
  shared, stagings = dict.fromkeys(rows, threads), Stagings()
  if last is not None and static(last):
    copies[last] = aligned_copies(last, max(min(extent(last) // lanes, 4), 1))
    overs = {i.over for i in a.folds if set(i.ranges) >= {last, *i.over} and nest.room.target.cooperates}
    contracted, room = [i for i in a.folds if i.over in overs], nest.room.target.scratch - nest.taken
    stagings = staged(nest, contracted, shared | {last: lanes}, copies, room)
  plans = {i.over: plan_of_fold(i, copies, lanes, stagings.get(i.over)) for i in a.folds}
  return Grid(tuple(shared.items()), copies, lanes, True, (*sorted(own, key=lambda r: r is last),), plans, stagings)


def plan_of_fold(i: Item, copies: Counts, lanes: int, staged: Staging | None) -> tuple[tuple[UOp, ...], Tile]:
  """The order of a reduction's loops, the lanes' last; and of which the last is unrolled."""
  if staged is not None:
    return i.over[: i.over.index(staged.cut) + 1], Tile()
  order, tile = fold_plan(i, None, 1, {r: Tile(n) for r, n in copies.items()})
  held, last = prod(n for r, n in copies.items() if r in i.ranges), order[-1]
  if lanes > 1 and least_step(i, last) != 1 and static(last) and extent(last) >= AHEAD * lanes and held <= ONCE:
    tile = Tile(AHEAD)
  along = contiguous([i], order)  # what lies in local memory has few elements
  by_lanes = sorted(order, key=lambda r: ((least_step(i, r) == 1) * (1 + (r is along)), extent(r)))
  return tuple(by_lanes) if lanes > 1 else order, tile


def neighbours_of(order: Sequence[UOp], items: Sequence[Item], lanes: int) -> int:
  """How many iterations of a reduction's last loop a lane takes side by side: as many as are read at once, or make a
  word, if there are as many for each."""
  r = order[-1]
  loads = [x for i in items for x in i.accesses if x.strides.get(r) == 1]
  if not loads or not all(map(static, order)):
    return 1
  kind, each = min(x.itemsize for x in loads), math.gcd(extent(r), power_of_two(ceildiv(iterations(order), lanes)))
  most = max(neighbours(loads, r, math.gcd(each, VECTOR // kind)), math.gcd(each, max(WORD // kind, 1)))
  return most if most < extent(r) else 1


def loops_again(items: Sequence[Item], order: Sequence[UOp]) -> list[UOp]:
  """Short loops of a reduction for which neighbours that it reads along the last are the same: a lane has all of these
  iterations, so that it reads them once, and what depends on their numbers is known."""
  along = [x for i in items for x in i.accesses if x.strides.get(order[-1]) == 1]
  short = [r for r in order[:-1] if static(r) and extent(r) <= ONCE and any(r not in x.strides for x in along)]
  return short if iterations(short) <= ONCE else []


def rows_beside(i: Item, outer: Sequence[UOp]) -> Counts:
  """Copies of a thread with which it reads a matrix once, that is multiplied with few rows; none for others."""
  if not i.accesses:
    return {}
  *less, (most, matrix) = sorted(((iterations(x.strides), x) for x in i.accesses), key=lambda x: x[0])
  rows = [r for r in outer if r not in matrix.strides]
  if any(FEW * n > most for n, _ in less) or not all(map(static, rows)) or iterations(rows) > MOST_ROWS:
    return {}
  return {r: min(extent(r), MAX_ROWS) if r in rows else 1 for r in outer}


def columns_of(
  i: Item, along: UOp | None, copies: Counts, outputs: int, target: Target, once: Counts
) -> tuple[Counts, int, int] | None:
  """(copies of a thread, neighbours in memory, lanes, and threads beside one another, at least) of sums across memory
  in which nothing is read twice: a group reads lines of memory, or less where there would be hardly as many groups as
  multiprocessors."""
  length, kind = iterations(i.over), min((x.itemsize for x in i.accesses), default=VECTOR)
  if along is None or length < TOGETHER or not target.cooperates or (not once and max(copies.values()) > 1):
    return None
  read = [x for x in i.accesses if not once or along in x.strides]
  if not static(along) or any(x.strides.get(along) != 1 for x in read) or not read:
    return None
  most = max(2 * ONCE // int(prod(copies.values())), 1)
  beside = neighbours(read, along, math.gcd(extent(along), VECTOR // kind, power_of_two(most)))
  workers, line = outputs // int(beside * prod(copies.values())), MEMORY_LINE // (beside * kind)
  while line * beside * kind > 2 * SECTOR and workers // line < 2 * target.units:
    line //= 2
  groups = max(workers // line, 1)  # where they are few, those of a cluster have the same columns, or there are fewer
  cluster = min(target.cluster, power_of_two(2 * target.units // groups)) if groups < target.units else 1
  line //= 2 if cluster == 1 and groups < target.units and line * beside * kind > SECTOR else 1
  enough = power_of_two(max(target.busy // max(workers, 1), 1))
  return {**copies, along: beside}, min(enough, target.group // line * cluster, power_of_two(length // AHEAD)), line


def aligned_copies(r: UOp, n: int, most: int = 4) -> int:
  """How many of n copies along r may lie side by side, so that none of them is beyond the end if the first is not."""
  return math.gcd(n, most, extent(r)) if static(r) else 1


def tile_of(i: Item, axes: Sequence[UOp], most: int, outputs: int, target: Target) -> dict[UOp, int]:
  """Copies of a thread, at most `most`, with which the multiprocessor that has the most groups is done first: more of
  them read operands less often, fewer leave more groups, whose warps hide each other's latency."""

  def cycles(copies: Counts) -> float:
    each = int(prod(copies.values()))
    groups = ceildiv(outputs, each * target.group)
    loads = sum(1 / prod(n for r, n in copies.items() if r not in x.strides) for x in i.accesses)
    return float(ceildiv(groups, target.units) * each * (1 + loads) * max(HIDING * target.units / groups, 1))

  sizes = [most >> n for n in range(most.bit_length()) if most >> n >= LEAST_TILE] or [most]
  return min((shares(i, axes, {}, n, MAX_ROWS) for n in sizes), key=cycles)


def shares(item: Item | None, axes: Sequence[UOp], start: Mapping[UOp, int], limit: int, most: int) -> dict[UOp, int]:
  """Powers of two by range, of which the product is at most `limit` and each at most `most`: from `start`, the range is
  doubled that saves most loads (an operand is loaded once for all iterations along the ranges on which it does not
  depend), if any does or `start` is given; the first range where it makes little difference."""
  out = dict.fromkeys(axes, 1)

  def loads(more: UOp | None) -> float:
    extents = {r: n * start.get(r, 1) * (1 + (r is more)) for r, n in out.items()}
    used = prod(efficiency(extent(r), n) for r, n in extents.items())
    each = [1 / prod(n for r, n in extents.items() if r not in x.strides) for x in item.accesses] if item else [used]
    return float(sum(each) / used)

  while 2 * prod(out.values()) <= limit:
    open_axes = [r for r in axes if out[r] < most and out[r] * start.get(r, 1) < extent(r)]
    best = min(open_axes, key=lambda r: loads(r) * (0.9 if r is axes[0] else 1), default=None)
    if best is None or (most == MAX_ROWS and loads(best) > 0.99 * loads(None)):
      break
    out[best] *= 2
  return out


def stage(nest: NestSchedule, items: Sequence[Item], threads: Counts, copies: Counts, room: int) -> Staging | None:
  """How the group reduces `items`, which share their own ranges, through local memory of at most `room` bytes, if an
  operand is used by enough of its threads."""
  a, own, known = nest.a, items[0].over, {*threads, *items[0].over}
  operands = dict.fromkeys(x for i in items if known >= set(i.ranges) for x in operands_of(a, i))
  used, extents = {}, {r: n * copies.get(r, 1) for r, n in threads.items()}
  for x in operands:
    loads = [a.access(u.src[0], u.dtype.itemsize) for u in a.loads(x)]
    users = prod(n for r, n in threads.items() if r not in a.deps[x])
    spans = not a.deps[x].isdisjoint(own) and not a.deps[x].isdisjoint(threads)
    local = any(u.src[0].src[0].op is Ops.SCRATCH for u in a.loads(x))
    if loads and spans and users >= SHARED and x not in a.reducing and not local:
      used[x] = loads
  row = sum(x.dtype.itemsize * int(prod(extents.get(r, 1) for r in a.deps[x])) for x in used)
  whole = nest.grid and all(map(static, own)) and iterations(own) <= STEPS_OF_ROWS
  left = min(STEPS_OF_ROWS if whole else STEPS, room // 2 // row) if row else 0
  cut, length = own[0], 0
  for cut in reversed(own):
    length = extent(cut) if static(cut) and extent(cut) <= left else power_of_two(left)
    extents[cut] = length
    left //= max(length, 1)
    if length < extent(cut) or not static(cut):
      break
  if not used or iterations(own) == 0 or prod(extents.get(r, 1) for r in own) < SHARED:
    return None
  panels, offset, parts = [], 0, dict[UOp, tuple[str, ...]]()
  for r in known:  # of a block; what threads share out may be split into elements side by side before
    name = nest.name_of(r)
    parts[r] = (f"{name}.o.i", f"{name}.i") if r in threads else (f"{name}.i" if r is cut else name,)
  for x, loads in used.items():
    d = [r for r in (*threads, *own[own.index(cut) :]) if r in a.deps[x]]
    steps = {r: min((abs(y.strides[r] or math.inf) for y in loads if r in y.strides), default=math.inf) for r in d}
    order = sorted(d, key=steps.__getitem__)
    # innermost what a thread reads as a vector, else what most threads read side by side
    rows = sorted(d, key=lambda r: (r in own, -aligned_copies(r, copies.get(r, 1)), -threads.get(r, 1)))
    vector = neighbours(loads, order[0], aligned_copies(order[0], extents[order[0]]))
    # where rows are written across, they are longer by 4, so that the writes meet in fewer banks of the memory
    wide = round_up(extents[rows[0]], 4) + 4 * (rows[0] is not order[0])
    offset += round_up(wide * int(prod(extents[r] for r in rows[1:])) * x.dtype.itemsize, 64)
    outer = tuple(part for r in rows[:0:-1] for part in parts[r])
    panels.append(Staged(nest.number_of(x), outer, parts[rows[0]], wide, tuple(parts[r] for r in order), vector))
  rest = extent(cut) % length if static(cut) else 1  # what a block leaves over
  offset += 64 * len(panels) + offset * rest // length
  return Staging(cut, length, tuple(panels), offset) if offset <= room else None


def schedule_fill(nest: NestSchedule, fill: Fill) -> None:
  """The group's threads copy a panel together, in vectors of neighbours."""
  (order, aligned), shared = fill, list[str]()
  for i, (block, *beside) in enumerate(x for x in order if x):
    if i == 0 and beside and aligned > 1:
      nest.unroll(beside[0])
    elif beside:
      shared.append(beside[0])
    elif i == 0 and (vector := math.gcd(aligned, extent(nest.names[block]))) > 1:
      nest.split(block, vector)
      nest.unroll(f"{block}.i")
      block += ".o"
    if block in nest.names:
      shared.append(block)
  left = iterations(nest.grid[to] for to in ("threads", "lanes") if to in nest.grid)
  threads = list[str]()
  for name in shared:
    many = extent(nest.names[name])
    mine = left if name is shared[-1] else min(left, power_of_two(2 * many - 1))
    left //= mine
    nest.split(name, mine, "clamp")
    if f"{name}.o" in nest.names:
      nest.unroll(f"{name}.o")
    threads.insert(0, f"{name}.i")
  nest.bind("team", *threads)


def least_step(item: Item, r: UOp) -> int | None:
  """The least step along r of an access that is read once: the one whose neighbours should be neighbouring threads'."""
  return min((abs(s) for x in item.accesses if (s := x.strides.get(r))), default=None)


def contiguous(items: Sequence[Item], ranges: Sequence[UOp]) -> UOp | None:
  """The range along which the most accesses go in steps of one, weighted by how many elements they read: what is the
  same along a loop is read once."""

  def weight(r: UOp) -> int:
    return sum(iterations(x.strides) for i in items for x in i.accesses if x.strides.get(r) == 1)

  return max(reversed(ranges), key=weight, default=None)


def lanes_of(main: Item, workers: int, inner: bool, reused: bool, target: Target) -> int:
  """How many threads share each reduction: where rows are computed with their reductions, where a reduction reads
  along memory what is used once, or where there are too few outputs for as many threads."""
  length, busy = iterations(main.over), target.busy
  if length < TOGETHER:
    return power_of_two(length // 4) if length >= BESIDE and reads_along(main) and not reused else 1
  if inner or workers < busy // (32 if reused else 8) or (reads_along(main) and not reused):
    return min(target.group, power_of_two(length // 4), max(power_of_two(busy // max(workers, 1)), 32))
  return 1


def reads_once(item: Item) -> bool:
  """Whether a reduction reads along memory what no other result needs."""
  return reads_along(item) and any(x.strides.keys() >= {*item.ranges} for x in item.accesses)


def reads_along(item: Item) -> bool:
  """Whether the elements that a reduction adds up are neighbours, and those of neighbouring results are not."""
  outside = any(x.strides.get(r) == 1 for x in item.accesses for r in item.ranges if r not in item.over)
  return not outside and any(least_step(item, r) == 1 for r in item.over)
