"""The plan of a kernel for a grid of threads, as data: which ranges its threads and work groups share out, how many
lanes share a reduction, and what a group copies to local memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tinygrad.codegen.heuristic import EPILOGUE, MAX_ROWS, Analysis, Item, Stages, efficiency, fold_plan, size, static
from tinygrad.codegen.plan import LoopPlan, Tile, is_inlined
from tinygrad.device import Target
from tinygrad.helpers import NOOPT, prod, round_up
from tinygrad.uop import UOp

GROUP = 256  # threads of a work group
ENOUGH = 1 << 15  # threads that keep a device busy
TOGETHER = 64  # iterations of a reduction from which several threads share it
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
