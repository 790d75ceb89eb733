"""How a nest runs on a processor: vectors, a tile in registers, the order of the loops, operands in scratch memory.

Costs are in vector instructions per element of work; nothing here knows what the kernel computes. An operand that does
not depend on a loop is reused along it: by registers within a tile, by scratch memory across the loops inside."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tinygrad.codegen.analysis.accesses import (
  MAX_ROWS,
  OPERATION,
  TURN,
  Access,
  Analysis,
  Item,
  is_inlined,
  lane_cost,
  lane_of,
  lanes_for,
  operands_of,
)
from tinygrad.codegen.expressions import MIN_SHUFFLED
from tinygrad.codegen.nests import NestSchedule, Staged
from tinygrad.codegen.primitives.stage import LINE, bytes_of_sums
from tinygrad.device import Target
from tinygrad.helpers import NOOPT, ceildiv, efficiency, power_of_two, prod, round_up
from tinygrad.uop import Ops, UOp
from tinygrad.uop.loops import extent, iterations, static

ACCUMULATORS = 8  # that hide the latency of an addition
EPILOGUE = 700  # operations on the reduced values that a tile may unroll to
TOGETHER = 128  # steps of a reduction, over all of its tile, that are written out where what it reads slides
LONGEST = 12  # of them, all that there are
LOADS = 0.625  # for each operation of a tile, with which a processor keeps up
JUMP = 6  # lines of memory, read in a row, that take as long as one far from the last; each is as two operations
COPIES = tuple(range(MAX_ROWS, 1, -1))  # of loops that share a tile: rather more of the first
PANEL_PARTS = 2  # of the cache, of which staged operands may fill one
STAGE_REUSE, GATHERED_REUSE = 8, 3  # reads of a staged element that pay for its copying; of one that lanes would gather
MOST_STAGED = 8  # operands of one reduction: more streams than that contend for places in the cache
STAGE_WORK = 1 << 15  # iterations of a reduction below which nothing is staged
FAR = 8  # steps of a reduction from page to page of memory that are taken together: a processor reads so many ahead
FAR_BLOCKS = 512  # of such steps, at most: their sums are added one after the other
FAR_REUSE = 4  # times that such memory is read by the loops inside, at most
BLOCK_OUTPUTS = 256  # least outputs for which a reduction runs row by row
V_FIRST = 2  # times the lines of its panels that others may read, at most, where the loop of the vectors is the first

Ranges = tuple[UOp, ...]


@dataclass(frozen=True, slots=True)
class Tile:
  """So many neighbours of a loop are one vector, and of such so many copies in registers."""

  copies: int = 1
  lanes: int = 1

  @property
  def size(self) -> int:
    return self.copies * self.lanes

  def part_of(self, chunk: int) -> Tile:
    lanes = min(self.lanes, chunk)
    return Tile(min(power_of_two(self.copies), chunk // lanes), lanes)


Tiles = dict[UOp, Tile]


def as_registers(tile: Tile) -> tuple[bool, int]:
  """The order of the loops of a tile, the outermost first: copies of a vector vary fastest, and of others the fewest.
  What is read for a copy of the outermost is in use for a moment only, and what is held for all of them is little."""
  return tile.lanes > 1, -tile.copies


@dataclass(frozen=True, slots=True)
class StagedOperand:
  """An operand to be staged, with these loops (or their parts) as its dims, the outermost first."""

  operand: UOp
  dims: tuple[tuple[UOp, str], ...]  # a loop and its part: "" the whole, ".o", ".i"
  open_before: int  # how many parallel loops are open around it
  nbytes: int


@dataclass(frozen=True, slots=True)
class NestPlan:
  """What the heuristic has decided. `order`: the parallel loops, the outermost first. `folds`: by the loops of a
  reduction, their order and the tile of the last (its lanes are reduced at the end, its copies are accumulators).
  `block`: how many iterations of its first loop the main reduction takes at a time, or 0 for all."""

  order: Ranges
  tiles: Tiles = field(default_factory=dict)
  folds: dict[Ranges, tuple[Ranges, Tile]] = field(default_factory=dict)
  panels: tuple[StagedOperand, ...] = ()
  block: int = 0


def schedule_cpu(nest: NestSchedule) -> None:
  """Schedules a nest by the heuristic's plan; with NOOPT in plain loops."""
  if NOOPT:
    nest.write_out()
  else:
    carry_out(nest, plan_nest(nest))


def carry_out(nest: NestSchedule, plan: NestPlan) -> None:
  """Schedules a nest by a plan; what is left of it where its reduction is one of blocks, by the heuristic's."""
  if plan.block:
    main = nest.a.main
    assert main is not None
    v = next((r for r, t in plan.tiles.items() if t.lanes > 1), None)
    dims, r, length = sorted(dims_of_sums(main), key=lambda r: r is v), main.over[0], plan.block
    if (chunk := nest.chunks.get(r)) is not None:
      length = length // chunk * chunk or power_of_two(length)
    nest.accumulate(nest.name_of(r), length, *map(nest.name_of, dims))
    plan = plan_nest(nest)
  realise(nest, plan)


def dims_of_sums(main: Item) -> Ranges:
  """The parallel loops by which blocks of a reduction add up."""
  return tuple(r for r in main.ranges if r not in main.over)


def sums_fit(main: Item, stages: Stages) -> bool:
  """Whether there is room for what the blocks of a reduction add up to."""
  assert main.fold is not None
  nbytes = bytes_of_sums(main.fold, dims_of_sums(main))
  return all(map(static, main.ranges)) and stages.taken + nbytes <= stages.target.scratch // 4


def realise(nest: NestSchedule, plan: NestPlan) -> None:
  """The plan, in primitives; tiles divide a chunk of the loops that may end early."""

  def ending(r: UOp, tile: Tile) -> Tile:
    return tile.part_of(nest.chunks[r]) if r in nest.limited else tile

  tiles = {r: ending(r, tile) for r, tile in plan.tiles.items()}
  folds = {over: (order, ending(order[-1], tile)) for over, (order, tile) in plan.folds.items()}
  plan = replace(plan, tiles=tiles, folds=folds)
  names = {r: nest.name_of(r) for r in (*plan.order, *(r for over in plan.folds for r in over))}
  panels = [(nest.number_of(p.operand), p.dims) for p in plan.panels]
  tiled = [r for r in plan.order if plan.tiles.get(r, Tile()).size > 1]
  for r in tiled:
    nest.split(names[r], plan.tiles[r].size)
  registers = tiled[::-1]
  registers.sort(key=lambda r: as_registers(plan.tiles[r]))
  loops = [names[r] + part for r in plan.order for part in ((".o", ".w") if r in tiled else ("",))]
  nest.reorder(*loops, *(names[r] + part for r in registers for part in (".i", ".t")))
  for number, dims in panels:
    nest.stage(Staged(number, tuple(names[r] + part for r, part in dims)))
  for over, (order, tile) in plan.folds.items():
    if order != over:
      nest.reorder(*(names[r] for r in order))
    if tile.size > 1 and names[order[-1]] in nest.names:
      nest.split(names[order[-1]], tile.size)
      if order[-1] in plan.tiles:  # a window's
        for part in (".i", ".t"):
          unroll(nest, names[order[-1]] + part, chained=True)
      else:
        in_registers(nest, names[order[-1]], tile)
  for r in tiled:
    in_registers(nest, names[r], plan.tiles[r])
  nest.write_out()


def in_registers(nest: NestSchedule, name: str, tile: Tile) -> None:
  """The parts of a split loop as copies of vectors; of the rest as many as there are, the last with idle lanes."""
  for part in (f"{name}.i", f"{name}.t"):
    if part not in nest.names:
      continue
    if tile.lanes == 1:
      unroll(nest, part)
    elif part.endswith("i") and tile.copies == 1:
      nest.vectorize(part)
    else:
      nest.split(part, tile.lanes, "mask")
      unroll(nest, f"{part}.o")
      nest.vectorize(f"{part}.i")


def unroll(nest: NestSchedule, name: str, chained: bool = False) -> None:
  """The copies that there are; those of a rest that is not known before it runs stay a loop."""
  if name in nest.names and static(nest.names[name]):
    (nest.chain if chained else nest.unroll)(name)


def plan_nest(nest: NestSchedule) -> NestPlan:
  """What the strides of a nest suggest."""
  stages = Stages(nest)
  a, target, main, most = stages.a, stages.target, stages.a.main, stages.most
  # a range whose copies make divisions affine is better unrolled than divided lane by lane
  lanes = [r for r in a.parallel if extent(r) >= min(MIN_SHUFFLED, most) and r not in a.residues]
  v = min((None, *lanes), key=lambda v: sum(i.work * stages.discount(i, v) for i in a.items))
  tiles = {} if v is None else {v: Tile(1, lanes_for(v, most))}
  if main is not None and main.work >= 4 * iterations(a.parallel):
    most_copies = max(EPILOGUE // max(a.items[-1].operations, 1), ACCUMULATORS)
    tiles.update(tile_for(main, v, most, a.parallel, target, most_copies))
  else:
    tiles.update(tile_elementwise(a, v, most))
    for r, copies in a.residues.items():
      all_copies = copies * prod(t.copies for t in tiles.values())
      if r in a.parallel and r not in tiles and copies <= extent(r) and all_copies <= 2 * MAX_ROWS:
        tiles[r] = Tile(copies)
  return complete(nest, stages, v, tiles)


def complete(nest: NestSchedule, stages: Stages, v: UOp | None, tiles: Tiles) -> NestPlan:
  """The plan that follows from the vector's loop and the tiles."""
  a, main, most = stages.a, stages.a.main, stages.most
  folds, lanes = dict[Ranges, tuple[Ranges, Tile]](), [v]
  inner_last = a.folds[::-1]
  for i in sorted(inner_last, key=lambda i: v in i.ranges):
    along = next((r for r in lanes if r in i.ranges), v)  # that of a reduction around it is its own, too
    folds[i.over] = fold_plan(i, along, most, tiles)  # of those in one loop, for what gives vectors
    lanes += folds[i.over][0][-1:] if folds[i.over][1].lanes > 1 else []
  order = loop_order(a, main, v, tiles, stages.target.cache)
  if main is None or not stages.at_top(main):
    return NestPlan(order, tiles, folds)
  panels = stages.choose(main, order, tiles, v)
  return NestPlan(order, tiles, folds, panels, 0 if nest.blocked else block_for(main, v, tiles, panels, stages))


def block_for(main: Item, v: UOp | None, tiles: Tiles, panels: Sequence[StagedOperand], stages: Stages) -> int:
  """How many iterations of the reduction are a block, where its panels would not fit the cache, or where every step
  jumps to another page of memory; else 0."""
  assert main.fold is not None
  target, dims = stages.target, dims_of_sums(main)
  if v not in dims or not sums_fit(main, stages):
    return 0
  panel = max((p.nbytes for p in panels if p.open_before > 0), default=0)
  first, last = main.over[0], main.over[-1]
  room = target.cache // PANEL_PARTS
  if panel > room:
    length = extent(first) * room // (2 * panel)
    length = max((d for d in range(max(length // 3, 1), length + 1) if extent(first) % d == 0), default=length)
  else:
    times = {r: ceildiv(extent(r), tiles.get(r, Tile()).size) for r in main.ranges}
    streams = [x for x in main.accesses if x.strides.get(v) == 1]
    streams = [x for x in streams if prod(n for r, n in times.items() if r not in x.strides) <= FAR_REUSE]
    far = any((s := x.strides.get(last)) is not None and abs(s) * x.itemsize >= 1024 for x in streams)
    few = extent(last) < 64 or iterations(dims) < BLOCK_OUTPUTS
    if first is not last or not far or few or bytes_of_sums(main.fold, dims) > room // 2:
      return 0
    sums = max(prod(t.size for r, t in tiles.items() if r not in x.strides) for x in streams)  # of each that is read
    length = max(FAR * sums, extent(last) // FAR_BLOCKS)
  return length


class Window(NamedTuple):
  """A loop of a reduction, `over`, along which what is read slides as along the parallel loop `along`: with `steps` of
  it at once, copies of that read most of it once."""

  over: UOp
  along: UOp
  steps: int

  def part(self, x: Access, copies: int) -> float:
    """Of what so many copies read in all steps, that which is not the same."""
    along, over = x.strides.get(self.along, 0), x.strides.get(self.over, 0)
    if along is None or over is None:
      return 1.0
    places = {i * along + j * over for i in range(copies) for j in range(self.steps)}
    return len(places) / self.steps / (copies if along else 1)


def windows_of(item: Item, parallel: Sequence[UOp]) -> list[Window]:
  """Those over the first loop that has one, of what hardly any other loop reads again."""
  reads = [x for x in item.accesses if iterations(r for r in item.ranges if r not in x.strides) < MAX_ROWS]
  for k in filter(static, item.over):
    every = [Window(k, r, extent(k) if extent(k) <= LONGEST else MAX_ROWS) for r in parallel]
    if found := [w for w in every if any({*w[:2]} <= x.strides.keys() and w.part(x, 2) < 1 for x in reads)]:
      return found
  return []


def tile_elementwise(a: Analysis, v: UOp | None, most: int) -> dict[UOp, Tile]:
  """Without a reduction: a few vectors at a time; where nothing is contiguous, one cache line of what is read
  across."""
  item = a.items[-1]
  if v is not None:
    lanes = lanes_for(v, most)
    if (rows := next((r for x in item.accesses if (r := x.across(v, lanes)) in a.parallel), None)) is not None:
      return {v: Tile(1, lanes), rows: Tile(lanes)}
    wanted = 4 if item.operations < 8 and extent(v) >= 4 * lanes else 2
    return {v: Tile(wanted if item.operations < 24 and extent(v) >= 2 * lanes else 1, lanes)}
  if not a.parallel:
    return {}
  inner = a.parallel[-1]
  for access in item.accesses:
    for r in a.parallel:
      if r is not inner and access.strides.get(r) == 1 and extent(r) > 1:
        return {r: Tile(min(MAX_ROWS, extent(r)))}
  few = item.operations < 64 and static(inner)
  return {inner: Tile(max(extent(inner), 1) if extent(inner) <= MAX_ROWS else 4)} if few else {}


def tile_for(item: Item, v: UOp | None, most: int, parallel: Ranges, target: Target, most_copies: int) -> Tiles:
  """The register tile: copies along v and up to two more ranges, so that every operand loaded is used often, within the
  registers; and of a loop of the reduction along which an operand slides, so many steps at once."""
  lane = lane_of(item, v, most)
  lanes = lanes_for(lane, most) if lane is not None else 1
  axes = [r for r in parallel if r in item.ranges and extent(r) > 1]
  # near each other first
  near = sorted(
    axes, key=lambda r: min((abs(s) for x in item.accesses if (s := x.strides.get(r)) is not None), default=0)
  )
  others = [r for r in near if r is not v]
  free = [r for r in others if any(r not in x.strides for x in item.accesses)]
  if not free and v in axes and extent(v) <= lanes:  # there are no copies of v: neighbours take their place
    free = others[:1]
  best: tuple[float, Tiles] = (math.inf, {})
  beyond = 1 if free else lanes  # with idle lanes, what nothing reads again is read in one pass
  own = [n for n in (2, 3, 4, 6, 8, 12) if v is not None and v in item.ranges and n * lanes < extent(v) + beyond]
  # operands that are not contiguous count as if staged, for otherwise another lane range was chosen
  steps = [(min(x.cost(lane, lanes), 2.0), x) for x in item.accesses]
  pairs: list[tuple[Window | None, Ranges]] = [(None, ()), *((None, (r,)) for r in free)]
  pairs += [(None, pair) for pair in itertools.combinations(free, 2)]
  if lane is v and (windows := windows_of(item, others)):  # all processors take the same steps, in one order
    pairs = [(w, (w.along, *pair)) for w in windows for pair in ((), *((r,) for r in free)) if w.along not in pair]
  for mine, (window, pair) in itertools.product((1, *own), pairs):
    for counts in itertools.product(*([c for c in COPIES if c <= extent(r)] for r in pair)):
      copies, tile = dict(zip(pair, counts, strict=True)), mine * prod(counts)
      if tile > min(target.vector_registers, most_copies) or (window and tile * window.steps > TOGETHER):
        continue
      times, cost = idle(copies, v, mine, lanes), float(max(item.operations, 1))
      if cost >= (limit := best[0] * 0.999 / times):
        continue
      loads, vectors = reads_of(item.accesses, v, mine, copies, window)
      if tile + vectors + 1 > target.vector_registers:
        continue
      cost += max(sum(loads) / tile - LOADS, 0.0)
      cost += sum(n * step for n, (step, _) in zip(loads, steps, strict=True)) / tile
      if cost >= limit:
        continue
      tiles = {r: Tile(c) for r, c in copies.items()}
      if window is not None:
        tiles[window.over] = Tile(window.steps)
      else:
        jumps = sum(jumps_of(x, item.over, tiles) for step, x in steps if step <= 1)
        cost += 2 * JUMP * jumps / iterations(item.over) / tile
      if v is not None and v in item.ranges:
        tiles[v] = Tile(mine, lanes)
      if cost < limit:
        best = cost * times, tiles
  return best[1]


def idle(copies: dict[UOp, int], v: UOp | None, mine: int, lanes: int) -> float:
  """How many times as long a tile takes as one whose loops it divides, and whose sums hide each other's latency."""
  times = max(1.0, 1 + 0.5 * (1 - mine * prod(copies.values()) / ACCUMULATORS))
  for r, c in copies.items():
    times /= efficiency(extent(r), c) * (1.0 if extent(r) % c == 0 else 0.97)
  return times if v is None else times / efficiency(extent(v), mine * lanes)


def reads_of(
  accesses: Sequence[Access], v: UOp | None, mine: int, copies: dict[UOp, int], window: Window | None
) -> tuple[list[float], int]:
  """How often a tile of `mine` copies of v and of these of other loops loads each operand in a step; and how many
  registers of one are in use at once."""
  loads, vectors = list[float](), 0
  nested = [*sorted(copies.items(), key=lambda loop: as_registers(Tile(loop[1]))), (v, mine)]
  for x in accesses:
    held = mine if v in x.strides else 1
    count = held * prod(c for r, c in copies.items() if r in x.strides)
    if window is None:
      loads.append(count)
      vectors = max(vectors, live_registers(x, nested))
    else:
      loads.append(count * window.part(x, copies[window.along]))
      vectors = max(vectors, count if window.along in x.strides else held)
  return loads, vectors


def live_registers(x: Access, copies: Sequence[tuple[UOp | None, int]]) -> int:
  """How many registers of something are in use at once in a tile of these loops, the outermost first: those that a loop
  uses again on which it does not depend."""
  again = itertools.dropwhile(lambda loop: loop[1] == 1 or loop[0] in x.strides, copies)
  return int(prod(times for r, times in again if r in x.strides))


def fold_plan(item: Item, v: UOp | None, most: int, tiles: Tiles) -> tuple[Ranges, Tile]:
  """Order of a reduction's ranges (the last is split), and the split: lanes unless the parallel ranges give them, and
  accumulators."""
  ranges = item.over
  if (k := next((r for r in ranges if r in tiles), None)) is not None:  # of which several steps are taken at once
    return (*(r for r in ranges if r is not k), k), tiles[k]
  held = int(prod(t.copies for r, t in tiles.items() if r in item.ranges))
  wanted = max(ACCUMULATORS // max(held, 1), 1)
  if v is not None and v in item.ranges:
    copies = min(wanted, 4, max(extent(ranges[-1]) // 4, 1))
    if extent(ranges[-1]) * held <= 2 * MAX_ROWS and any(ranges[-1] in x.masked for x in item.accesses):
      copies = extent(ranges[-1])  # which makes the conditions constants
    return ranges, Tile(copies, 1)
  if (lane := lane_of(item, v, most)) is None:
    return ranges, Tile(1, 1)
  lanes = lanes_for(lane, most)
  return (*(r for r in ranges if r is not lane), lane), Tile(max(min(wanted, extent(lane) // lanes), 1), lanes)


def loop_order(a: Analysis, main: Item | None, v: UOp | None, tiles: Tiles, cache: int) -> tuple[UOp, ...]:
  """Without a reduction the vectors run innermost. With one: first ranges along which nothing is reused, then the
  others, the innermost that for which a tile reads the fewest lines anew. v, whose panel of operands is used by all
  loops inside, is the first of these, unless that is far from so, and a cache holds its panels together."""
  if main is None or v is None or v not in main.ranges:
    return (*(r for r in a.parallel if r is not v), *((v,) if v is not None else ()))
  shared = [r for r in a.parallel if r is not v and r in main.ranges and all(r in x.strides for x in main.accesses)]

  packed = [x.strides.get(v, 1) != 1 for x in main.accesses]
  panels = sum(x.itemsize * iterations(x.strides) for x, is_panel in zip(main.accesses, packed) if is_panel)
  runs = [(x, *pieces_of(x, main.over, tiles, is_panel)) for x, is_panel in zip(main.accesses, packed)]

  def anew(r: UOp) -> float:
    found = sum(pieces * (JUMP + nbytes / LINE) for x, pieces, nbytes in runs if r in x.strides)
    if r is v:
      return found * V_FIRST if panels <= cache else math.inf
    return found

  return (*shared, *sorted((v, *(r for r in a.parallel if r is not v and r not in shared)), key=anew, reverse=True))


def jumps_of(x: Access, over: Ranges, tiles: Tiles) -> int:
  """How many more pieces of something a run of a reduction reads than one step; none of what is far from step to step,
  which is staged."""
  if abs(x.strides.get(over[-1]) or 0) * x.itemsize > LINE:
    return 0
  return max(pieces_of(x, over, tiles)[0] - pieces_of(x, (), tiles)[0], 0)


def pieces_of(x: Access, over: Ranges, tiles: Tiles, packed: bool = False) -> tuple[int, int]:
  """In how many pieces, each far from the others, a tile reads something in a run of a reduction; bytes of each."""
  steps = [(abs(s or 0), extent(r) if r in over else tiles.get(r, Tile()).size) for r, s in x.strides.items()]
  span, apart = x.itemsize, 1
  for step, times in sorted(steps):
    if packed:
      span *= times
    elif 0 < step * x.itemsize <= max(span, LINE):
      span += step * x.itemsize * (times - 1)
    else:
      apart *= times
  return apart, span


class Stages:
  """Which operands of a nest are worth copying into scratch memory, packed in the order in which they are read."""

  def __init__(self, nest: NestSchedule) -> None:
    self.a, self.target, self.taken = nest.analyse(), nest.room.target, nest.taken
    self.most = max(self.target.vector_bytes // self.a.itemsize, 1)  # lanes of a vector

  def at_top(self, item: Item) -> bool:
    """Its operands are known within the parallel loops: no range of another reduction is among its own."""
    return set(item.ranges) <= {*self.a.parallel, *item.over}

  def packable(self, item: Item, operand: UOp) -> bool:
    """It is known per iteration of the reduction, and every range has a fixed length."""
    d = self.a.deps[operand]
    return d >= set(item.over) and all(map(static, d)) and operand not in self.a.reducing

  def discount(self, item: Item, v: UOp | None) -> float:
    """The item's cost if operands that are not contiguous along v may be staged where they are reused enough."""
    if item.fold is None or v is None or v not in item.ranges:
      return lane_cost(item, lane_of(item, v, self.most), self.most)
    lanes = lanes_for(v, self.most)
    used = lanes * efficiency(extent(v), lanes)
    cost = OPERATION * item.operations
    staged: set[UOp] = set()  # and what is below: what several operands read counts once
    for operand in operands_of(self.a, item):
      d = self.a.deps[operand]
      reuse = iterations(r for r in self.a.parallel if r in item.ranges and r not in d)
      if v in d and self.packable(item, operand) and reuse >= GATHERED_REUSE * MAX_ROWS:
        below = operand.toposort(lambda u: u not in staged)
        staged.update(below)
        read = [self.a.access(u.src[0], 1) for u in below if u.op is Ops.LOAD]
        packed = sum(3.0 * lanes if x.across(v, lanes) is None else TURN for x in read)
        cost += min(1.0 + packed / reuse, sum(x.cost(v, lanes) for x in read))
    for u in item.fold.src[0].toposort(lambda u: u.op is not Ops.FOLD or is_inlined(u)):
      if u.op is Ops.LOAD and u not in staged:
        x = self.a.access(u.src[0], 1)
        # what all lanes share is a line of memory at each step, if the reduction goes across its lines
        cost += max(x.cost(v, lanes), 1.0 if (x.strides.get(item.over[-1]) or 0) * u.dtype.itemsize >= LINE else 0.0)
    return cost / used

  def choose(self, item: Item, order: Ranges, tiles: Tiles, v: UOp | None) -> tuple[StagedOperand, ...]:
    """The operands that are read across a line at every step of the innermost reduction, or computed, and read
    often, as far as there is room."""
    if item.fold is None or item.work < STAGE_WORK:
      return ()

    def reuse(d: frozenset[UOp]) -> int:
      inside = itertools.dropwhile(d.__contains__, order)
      return int(prod(ceildiv(extent(r), tiles.get(r, Tile()).size) for r in inside if r not in d))

    together = dict.fromkeys(x for i in self.a.items if i.over == item.over for x in operands_of(self.a, i))
    known = {x: reuse(self.a.deps[x]) for x in together if self.packable(item, x)}
    wanted = [x for x, times in known.items() if self.worthwhile(x, item.fold.src[-1], v, times)]
    return self.panels(item, wanted, order, tiles)

  def panels(self, item: Item, wanted: Sequence[UOp], order: Ranges, tiles: Tiles) -> tuple[StagedOperand, ...]:
    """These operands, as far as there is room."""
    out, offset = list[StagedOperand](), self.taken
    for x in wanted[:MOST_STAGED]:
      panel = self.panel(item, x, order, tiles)
      rests = [r for r in self.a.deps[x] if extent(r) % tiles.get(r, Tile()).size]
      if offset + panel.nbytes * (1 + len(rests)) <= self.target.scratch:
        out.append(panel)
        offset += panel.nbytes * (1 + len(rests))
    return tuple(out)

  def worthwhile(self, operand: UOp, inner: UOp, v: UOp | None, times: int) -> bool:
    """Of what is read so many times."""
    if operand.op is not Ops.LOAD:
      return times >= STAGE_REUSE
    x = self.a.access(operand.src[0], operand.dtype.itemsize)
    if v in x.strides and x.strides[v] != 1:
      return times >= GATHERED_REUSE
    far = (step := x.strides.get(inner, 0)) is None or abs(step) * x.itemsize > LINE
    return times >= STAGE_REUSE and (bool(x.masked) or far)

  def panel(self, item: Item, operand: UOp, order: Ranges, tiles: Tiles) -> StagedOperand:
    """Tiles outermost, then the reduction, then what is in a tile."""
    d = self.a.deps[operand]
    level = next((i for i, r in enumerate(order) if r not in d), len(order))
    later = [r for r in order[level:] if r in d]
    dims = [(r, ".o" if tiles.get(r, Tile()).size > 1 else "") for r in later] + [(r, "") for r in item.over]
    within = [r for r in order if r in d and tiles.get(r, Tile()).size > 1]
    dims += [(r, ".i") for r in sorted(within, key=lambda r: tiles[r].lanes)]
    blocks = {r: tiles.get(r, Tile()).size for r in (*d, *item.over)}
    elements = int(prod({"": extent(r), ".o": ceildiv(extent(r), blocks[r])}.get(part, blocks[r]) for r, part in dims))
    return StagedOperand(operand, tuple(dims), level, round_up(elements * operand.dtype.itemsize, LINE))
