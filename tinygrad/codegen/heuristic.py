"""Chooses the plan of a nest from what every load and store does along every range: its stride, or that it does not
depend on it.

Costs are in vector instructions per element of work; nothing here knows what the kernel computes. An operand that does
not depend on a range is reused along it: by registers within a tile, by scratch memory across the loops inside.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tinygrad.codegen.plan import Block, LoopPlan, Ranges, Stage, Tile, Tiles, is_inlined, usual_sources
from tinygrad.codegen.values import LEAST_TRANSPOSED, MAX_SHUFFLED, MIN_SHUFFLED
from tinygrad.device import Target
from tinygrad.dtype import dtypes
from tinygrad.helpers import NOOPT, ceildiv, prod, round_up
from tinygrad.ops import Trait, having
from tinygrad.uop import CARDS, Ops, UOp
from tinygrad.uop.affine import Affine, affine, index, row_major

GATHER = 3.0  # cost of one lane of an access that is not contiguous
TURN = 5.0  # cost of a vector that comes from transposing a square of as many; twice that to store one
MOST_TRANSPOSED = 16  # lanes of such
BROADCAST = 0.5  # cost of a load that all lanes share
OPERATION = 0.5  # cost of arithmetic, next to that of a load
DIVIDES = having(Trait.DIVIDES)
LINE = 64  # bytes
ACCUMULATORS = 8  # that hide the latency of an addition
MAX_ROWS = 8  # unrolled copies along one range: more rows at a power of two apart fall into one set of the first cache
EPILOGUE = 700  # operations on the reduced values that a tile may unroll to
COPIES = tuple(range(MAX_ROWS, 1, -1))  # of ranges that share a tile: rather more of the first
PANEL_PARTS = 2  # of the cache, of which staged operands may fill one
STAGE_REUSE = 8  # reads of a staged element that pay for its copying
MOST_STAGED = 8  # operands of one reduction: more streams than that contend for places in the cache
STAGE_WORK = 1 << 15  # iterations of a reduction below which nothing is staged
BLOCK_STEPS = 128  # least iterations of a reduction between two writes of its sums so far
FAR = 16  # steps of a reduction from page to page of memory that are taken together, at least
FAR_REUSE = 4  # times that such memory is read by the loops inside, at most
BLOCK_OUTPUTS = 256  # least outputs for which a reduction runs row by row


Staged = tuple[tuple[Stage, ...], list[int]]  # operands, and their bytes


@dataclass(frozen=True, slots=True)
class Access:
  """A load or a store: its step in elements along each range; None where it is not a multiple of the range's number."""

  strides: dict[UOp, int | None]
  itemsize: int
  masked: frozenset[UOp]  # ranges on which its condition depends
  stored: bool = False

  def cost(self, v: UOp | None, lanes: float) -> float:
    """Instructions for `lanes` neighbours along v."""
    if v is None or (step := self.strides.get(v, 0)) == 1:
      return 1.0
    if step == 0:  # all lanes share it, unless each has a condition of its own
      return lanes if v in self.masked else BROADCAST
    shuffled = MIN_SHUFFLED <= lanes <= size(v) and v not in self.masked and not self.stored
    if not shuffled or step is None or not -1 <= step <= MAX_SHUFFLED:
      return GATHER * lanes
    return 2.0 * step - 1 if step > 0 else 2.0

  def across(self, v: UOp | None, lanes: int) -> UOp | None:
    """The range along which an access that steps over rows along v is contiguous: a square of it can be transposed in
    registers."""
    if v is None or (step := self.strides.get(v)) is None or self.masked or lanes > MOST_TRANSPOSED or size(v) < lanes:
      return None
    found = (r for r, s in self.strides.items() if s == 1 and static(r) and size(r) >= LEAST_TRANSPOSED)
    return next(found, None) if abs(step) >= max(lanes, 2) else None


@dataclass(slots=True, eq=False)
class Item:
  """A FOLD, or the stored values outside of FOLDs (fold None): the accesses and operations of one iteration."""

  fold: UOp | None
  ranges: tuple[UOp, ...]  # all that one iteration depends on
  accesses: list[Access]
  operations: int

  @property
  def work(self) -> float:
    return float(prod(size(r) for r in self.ranges))

  @property
  def over(self) -> tuple[UOp, ...]:
    """The ranges of the FOLD."""
    return () if self.fold is None else self.fold.src[1:]

  def cost(self, cut: UOp | None = None, part: float = 1.0) -> float:
    """Iterations and elements of memory that are read, where only this part of a range is taken."""
    over = [self.ranges, *(x.strides for x in self.accesses)]
    return sum(float(prod(size(r) for r in rs)) * (part if cut in rs else 1.0) for rs in over)


def size(r: UOp) -> int:
  """The (greatest) number of iterations."""
  return int(r.src[0].vmax)


def static(r: UOp) -> bool:
  return r.src[0].op is Ops.CONST


class Analysis:
  """Dependences and strides of one nest."""

  def __init__(self, stores: Sequence[UOp]) -> None:
    self.deps: dict[UOp, frozenset[UOp]] = {}
    self.forms: dict[UOp, Affine] = {}
    self.parallel = stores[0].src[2:]
    # loops that are open around the nest are none of its own: to it their counters are constants
    self.own = {*self.parallel, *(r for u in UOp.sink(*stores).toposort() if u.op is Ops.FOLD for r in u.src[1:])}
    self.reducing: set[UOp] = set()  # what has a FOLD below it, or is one
    self.varies: dict[UOp, frozenset[UOp]] = {}
    self.loaded: dict[UOp, frozenset[UOp]] = {}
    self.itemsize = 1
    self.items: list[Item] = []
    self.collected: set[UOp] = set()  # FOLDs
    self.residues: dict[UOp, int] = {}  # range -> copies with which a division by a constant becomes affine
    values = [s.src[1] for s in stores]
    for root in (*values, *(s.src[0] for s in stores)):
      self.scan(root)
    outer = frozenset(self.parallel)
    self.collect(None, values, outer, [self.access(s.src[0], s.src[1].dtype.itemsize, True) for s in stores])

  def scan(self, root: UOp) -> frozenset[UOp]:
    """The ranges that `root` depends on."""
    for u in root.toposort(lambda u: u not in self.deps):
      if u.op is Ops.RANGE:
        self.deps[u] = frozenset((u,)) & self.own
        continue
      d: frozenset[UOp] = frozenset().union(*(self.deps[s] for s in u.src)) if u.src else frozenset()
      self.deps[u] = d - frozenset(u.src[1:]) if u.op is Ops.FOLD else d
      if u.op is Ops.FOLD or not self.reducing.isdisjoint(u.src):
        self.reducing.add(u)
      if u.op is Ops.CMPLT and u.src[0].op is Ops.RANGE and u.src[1].op is Ops.CONST and size(u.src[0]) == 2:
        self.residues[u.src[0]] = 2  # a choice of two values that share their operands
      if u.dtype is dtypes.index and u.op in DIVIDES and u.src[1].op is Ops.CONST and u.src[1].arg > 0:
        for r, c in affine(u.src[0], self.forms).terms.items():
          copies = u.src[1].arg // math.gcd(c, u.src[1].arg)
          if r.op is Ops.RANGE and 1 < copies <= MAX_ROWS:
            self.residues[r] = math.lcm(self.residues.get(r, 1), copies)
    return self.deps[root]

  def access(self, where: UOp, itemsize: int, stored: bool = False) -> Access:
    strides: dict[UOp, int | None] = {}
    for atom, c in affine(where.src[1], self.forms).terms.items():
      for r in self.scan(atom):
        step = self.step(atom, r)
        strides[r] = None if r in strides or step is None else c * step
    strides.update(dict.fromkeys(self.deps[where.src[0]]))  # the pointer itself: a peer's
    masked = self.varying(where.src[2]) & self.scan(where.src[2]) if where.src[2:] else frozenset[UOp]()
    return Access(strides, itemsize, masked, stored)

  def varying(self, condition: UOp) -> frozenset[UOp]:
    """The ranges on which a condition depends, but by more than the number of the vector."""
    for u in condition.toposort(lambda u: u not in self.varies):
      below: Iterable[UOp] = () if u.op is Ops.IDIV and self.aligned(u) is not None else u.src
      self.varies[u] = frozenset((u,) if u.op is Ops.RANGE else ()).union(*(self.varies[s] for s in below))
    return self.varies[condition]

  def loads(self, root: UOp) -> frozenset[UOp]:
    """The LOADs below `root`."""
    for u in root.toposort(lambda u: u not in self.loaded):
      self.loaded[u] = frozenset((u,) if u.op is Ops.LOAD else ()).union(*(self.loaded[s] for s in u.src))
    return self.loaded[root]

  def step(self, atom: UOp, r: UOp) -> int | None:
    """What an atom grows by along r, within vectors that begin at multiples of their length."""
    return int(atom.op is Ops.MOD) if self.aligned(atom) is r else 1 if atom is r else None

  def aligned(self, u: UOp) -> UOp | None:
    """The range r of r // c or r % c where such vectors do not reach from one multiple of c to the next."""
    if u.op not in DIVIDES or u.src[1].op is not Ops.CONST or u.src[1].arg % MOST_TRANSPOSED:
      return None
    const, terms = affine(u.src[0], self.forms).split(MOST_TRANSPOSED)[1]
    return next((r for r, step in terms.items() if step == 1 and not const and len(terms) == 1), None)

  def collect(self, fold: UOp | None, roots: Sequence[UOp], ranges: frozenset[UOp], accesses: list[Access]) -> None:
    """Adds the item of `roots` and, first, those of the FOLDs below; what is in a FOLD that is written out counts
    here."""
    stack, seen, operations = [(u, 1) for u in roots], set[UOp](), 0
    while stack:
      u, times = stack.pop()
      if u in seen:
        continue
      seen.add(u)
      if u.dtype not in (dtypes.index, dtypes.void):
        self.itemsize = max(self.itemsize, u.dtype.itemsize)
      if u.op is Ops.FOLD and is_inlined(u):
        times *= int(prod(size(r) for r in u.src[1:]))
        operations += times
        stack.append((u.src[0], times))
      elif u.op is Ops.FOLD:
        if u not in self.collected:
          self.collected.add(u)
          self.collect(u, u.src[:1], self.deps[u] | frozenset(u.src[1:]), [])
      elif u.op is Ops.LOAD:
        accesses.extend([self.access(u.src[0], u.dtype.itemsize)] * times)
        stack.extend((s, times) for s in (*u.src[1:], *u.src[0].src[1:]))
      else:
        operations += times * (0 if u.dtype is dtypes.index else CARDS[u.op].cost)
        stack.extend((s, times) for s in usual_sources(u))
    mine = tuple(r for r in self.parallel if r in ranges) + tuple(r for r in ranges if r not in self.parallel)
    self.items.append(Item(fold, mine, accesses, operations))


def lanes_for(r: UOp, most: int) -> int:
  """The vector length along r: the longest, or what covers the range."""
  n = size(r)
  return most if n >= most else 1 << max(n - 1, 0).bit_length()


def efficiency(n: int, step: int) -> float:
  """The used part of n iterations in steps of `step`."""
  return n / (ceildiv(n, step) * step) if n else 1.0


def lane_cost(item: Item, r: UOp | None, most: int) -> float:
  """Instructions per iteration of an item that is vectorised along r (None: not); lanes of a reduction are reduced at
  its end."""
  if r is None:
    return len(item.accesses) + OPERATION * item.operations
  lanes = lanes_for(r, most)
  used = lanes * efficiency(size(r), lanes)
  costs = [
    a.cost(r, lanes) if item.over or a.across(r, lanes) is None else TURN * (1 + a.stored) for a in item.accesses
  ]
  finish = 2.0 * lanes.bit_length() / max(int(prod(map(size, item.over))), 1) if r in item.over else 0.0
  return (sum(costs) + OPERATION * item.operations) / used + finish


def item_cost(item: Item, v: UOp | None, most: int) -> float:
  """Instructions per iteration where the nest is vectorised along v; a reduction that is not, along a range of its
  own."""
  return min(lane_cost(item, r, most) for r in ((v,) if v in item.ranges else (None, *item.over)))


def plan_nest(stores: tuple[UOp, ...], target: Target, taken: int = 0) -> LoopPlan:
  """The plan of stores that share their ranges; `taken` bytes of scratch memory are in use. With NOOPT: plain loops."""
  if NOOPT:
    return LoopPlan(tuple(r for r in stores[0].src[2:]))
  a = Analysis(stores)
  most = max(target.vector_bytes // a.itemsize, 1)
  main = max((i for i in a.items if i.fold is not None), key=lambda i: i.work, default=None)
  stages = Stages(a, target, taken)

  def total(v: UOp | None) -> float:
    return sum(i.work * stages.discount(i, v, most) for i in a.items)

  # a range whose copies make divisions affine is better unrolled than divided lane by lane
  lanes = [r for r in a.parallel if size(r) >= min(MIN_SHUFFLED, most) and r not in a.residues]
  v = min((None, *lanes), key=total)
  tiles = {} if v is None else {v: Tile(1, lanes_for(v, most))}
  if main is not None and main.work >= 4 * prod(size(r) for r in a.parallel):
    most_copies = max(EPILOGUE // max(a.items[-1].operations, 1), ACCUMULATORS)
    tiles.update(tile_for(main, v, most, a.parallel, target, most_copies))
  else:
    tiles.update(tile_elementwise(a, v, most))
    for r, copies in a.residues.items():
      all_copies = copies * prod(t.copies for t in tiles.values())
      if r in a.parallel and r not in tiles and copies <= size(r) and all_copies <= 2 * MAX_ROWS:
        tiles[r] = Tile(copies)
  return complete(a, main, v, tiles, target, taken)


def complete(a: Analysis, main: Item | None, v: UOp | None, tiles: Tiles, target: Target, taken: int) -> LoopPlan:
  """The plan that follows from the vector range and the tiles."""
  stages = Stages(a, target, taken)
  most = max(target.vector_bytes // a.itemsize, 1)
  fold_plans = {i.fold.src[1:]: fold_plan(i, v, most, tiles) for i in a.items if i.fold is not None}
  order = loop_order(a, main, v)
  if main is None or not stages.at_top(main):
    return LoopPlan(order, tiles, fold_plans)
  staged = stages.choose(main, order, tiles, v)
  return LoopPlan(order, tiles, fold_plans, staged[0], block_for(main, v, tiles, staged, target, taken))


def block_for(main: Item, v: UOp | None, tiles: Tiles, staged: Staged, target: Target, taken: int) -> Block | None:
  """Blocks of the reduction where its panels would not fit the cache, or where every step jumps to another page of
  memory."""
  sums = block_of(main, v, 1, taken)
  there_is_room = taken + sums.nbytes <= target.scratch // 4
  if v is None or v not in sums.ranges or not all(map(static, main.ranges)) or not there_is_room:
    return None
  panel = max((n for s, n in zip(*staged, strict=True) if s.level > 0), default=0)
  first, last = main.over[0], main.over[-1]
  room = target.cache // PANEL_PARTS
  if panel > room:
    length = size(first) * room // (2 * panel)
    if length == 0 or length * prod(size(r) for r in main.over[1:]) < BLOCK_STEPS:
      return None
    length = max((d for d in range(max(length // 3, 1), length + 1) if size(first) % d == 0), default=length)
  else:
    times = {r: ceildiv(size(r), tiles.get(r, Tile()).size) for r in main.ranges}
    streams = [x for x in main.accesses if x.strides.get(v) == 1]
    streams = [x for x in streams if prod(n for r, n in times.items() if r not in x.strides) <= FAR_REUSE]
    far = any((s := x.strides.get(last)) is not None and abs(s) * x.itemsize >= 1024 for x in streams)
    few = size(last) < 64 or prod(map(size, sums.ranges)) < BLOCK_OUTPUTS
    if first is not last or not far or few or sums.nbytes > room // 2:
      return None
    length = max(FAR, 1 << (size(last).bit_length() // 2))
  return replace(sums, length=length)


def block_of(main: Item, v: UOp | None, length: int, taken: int) -> Block:
  """Blocks of `length` iterations of the reduction's first range; what they add up to lies along v."""
  assert main.fold is not None
  ranges = tuple(r for r in main.ranges if r not in main.over)
  nbytes = round_up(int(prod(size(r) for r in ranges)) * main.fold.dtype.itemsize, LINE)
  place = row_major((r, size(r)) for r in sorted(ranges, key=lambda r: r is v))
  return Block(main.fold, main.over[0], length, place, ranges, taken, nbytes)


def tile_elementwise(a: Analysis, v: UOp | None, most: int) -> dict[UOp, Tile]:
  """Without a reduction: a few vectors at a time; where nothing is contiguous, one cache line of what is read
  across."""
  item = a.items[-1]
  if v is not None:
    lanes = lanes_for(v, most)
    if (rows := next((r for x in item.accesses if (r := x.across(v, lanes)) in a.parallel), None)) is not None:
      return {v: Tile(1, lanes), rows: Tile(lanes)}
    wanted = 4 if item.operations < 8 and size(v) >= 4 * lanes else 2
    return {v: Tile(wanted if item.operations < 24 and size(v) >= 2 * lanes else 1, lanes)}
  if not a.parallel:
    return {}
  inner = a.parallel[-1]
  for access in item.accesses:
    for r in a.parallel:
      if r is not inner and access.strides.get(r) == 1 and size(r) > 1:
        return {r: Tile(min(MAX_ROWS, size(r)))}
  few = item.operations < 64 and static(inner)
  return {inner: Tile(max(size(inner), 1) if size(inner) <= MAX_ROWS else 4)} if few else {}


def tile_for(item: Item, v: UOp | None, most: int, parallel: Ranges, target: Target, most_copies: int) -> Tiles:
  """The register tile: copies along v and up to two more ranges, so that every operand loaded is used often, within the
  registers."""
  lane = v if v in item.ranges else min((None, *item.over), key=lambda r: lane_cost(item, r, most))
  lanes = lanes_for(lane, most) if lane is not None else 1
  axes = [r for r in parallel if r in item.ranges and size(r) > 1]
  # near each other first
  near = sorted(
    axes, key=lambda r: min((abs(s) for x in item.accesses if (s := x.strides.get(r)) is not None), default=0)
  )
  others = [r for r in near if r is not v]
  free = [r for r in others if any(r not in x.strides for x in item.accesses)]
  if not free and v in axes and size(v) <= lanes:  # there are no copies of v: neighbours take their place
    free = others[:1]
  best: tuple[float, Tiles] = (math.inf, {})
  pairs: list[tuple[UOp, ...]] = [(), *((r,) for r in free), *itertools.combinations(free, 2)]
  own = [n for n in (2, 3, 4, 6, 8, 12) if v is not None and v in item.ranges and n * lanes <= size(v)]
  # operands that are not contiguous count as if staged, for otherwise another lane range was chosen
  steps = [(min(x.cost(lane, lanes), 2.0), x.strides) for x in item.accesses]
  for mine in (1, *own):
    for pair in pairs:
      for counts in itertools.product(*([c for c in COPIES if c <= size(r)] for r in pair)):
        tile = mine * prod(counts)
        if tile > min(target.vector_registers, most_copies):
          continue
        loads, vectors = 0.0, 0
        for step, strides in steps:
          copies = prod(c for r, c in zip(pair, counts, strict=True) if r in strides) * (mine if v in strides else 1)
          loads += copies * step
          vectors = max(vectors, min(copies, mine if v in strides else 1))
        if tile + vectors + 1 > target.vector_registers:
          continue
        cost = (loads + tile * max(item.operations, 1)) / tile
        cost *= max(1.0, 1 + 0.5 * (1 - tile / ACCUMULATORS))
        for r, c in zip(pair, counts, strict=True):
          cost /= efficiency(size(r), c) * (1.0 if size(r) % c == 0 else 0.97)
        if v is not None and mine > 1:
          cost /= efficiency(size(v), mine * lanes)
        if cost < best[0] * 0.999:
          best = (cost, {r: Tile(c) for r, c in zip(pair, counts, strict=True)})
          if v is not None and v in item.ranges:
            best[1][v] = Tile(mine, lanes)
  return best[1]


def fold_plan(item: Item, v: UOp | None, most: int, tiles: Tiles) -> tuple[Ranges, Tile]:
  """Order of a reduction's ranges (the last is split), and the split: lanes unless the parallel ranges give them, and
  accumulators."""
  ranges = item.over
  held = int(prod(t.copies for r, t in tiles.items() if r in item.ranges))
  wanted = max(ACCUMULATORS // max(held, 1), 1)
  if v is not None and v in item.ranges:
    copies = min(wanted, 4, max(size(ranges[-1]) // 4, 1))
    if size(ranges[-1]) * held <= 2 * MAX_ROWS and any(ranges[-1] in x.masked for x in item.accesses):
      copies = size(ranges[-1])  # which makes the conditions constants
    return ranges, Tile(copies, 1)
  if (lane := min((None, *ranges), key=lambda r: lane_cost(item, r, most))) is None:
    return ranges, Tile(1, 1)
  lanes = lanes_for(lane, most)
  return (*(r for r in ranges if r is not lane), lane), Tile(max(min(wanted, size(lane) // lanes), 1), lanes)


def loop_order(a: Analysis, main: Item | None, v: UOp | None) -> tuple[UOp, ...]:
  """Without a reduction the vectors run innermost. With one: first ranges along which nothing is reused, then v (its
  panel of operands is used by all loops inside), then the others as written."""
  if main is None or v is None or v not in main.ranges:
    return (*(r for r in a.parallel if r is not v), *((v,) if v is not None else ()))
  shared = [r for r in a.parallel if r is not v and r in main.ranges and all(r in x.strides for x in main.accesses)]
  return (*shared, v, *(r for r in a.parallel if r is not v and r not in shared))


class Stages:
  """Which operands are worth copying into scratch memory, packed in the order in which they are read."""

  def __init__(self, a: Analysis, target: Target, taken: int) -> None:
    self.a, self.target, self.taken = a, target, taken

  def operands(self, item: Item) -> list[UOp]:
    """The largest values below the FOLD that do not depend on all of its ranges."""
    assert item.fold is not None
    every, out, stack, seen = frozenset(item.ranges), [], [item.fold.src[0]], set[UOp]()
    while stack:
      u = stack.pop()
      if u in seen:
        continue
      seen.add(u)
      computed = u.dtype is dtypes.index or (u.dtype is dtypes.bool and u.op is not Ops.LOAD)
      if not self.a.deps[u] or u.op is Ops.FOLD or u.op is Ops.CONST or computed:
        continue
      if self.a.deps[u] != every:
        out.append(u)
      elif u.op is not Ops.LOAD:
        stack.extend(u.src)
    return out

  def at_top(self, item: Item) -> bool:
    """Its operands are known within the parallel loops: no range of another reduction is among its own."""
    return set(item.ranges) <= {*self.a.parallel, *item.over}

  def packable(self, item: Item, operand: UOp) -> bool:
    """It is known per iteration of the reduction, and every range has a fixed length."""
    d = self.a.deps[operand]
    return d >= set(item.over) and all(map(static, d)) and operand not in self.a.reducing

  def discount(self, item: Item, v: UOp | None, most: int) -> float:
    """The item's cost if operands that are not contiguous along v may be staged where they are reused enough."""
    if item.fold is None or v is None or v not in item.ranges:
      return item_cost(item, v, most)
    lanes = lanes_for(v, most)
    used = lanes * efficiency(size(v), lanes)
    cost = OPERATION * item.operations
    staged: set[UOp] = set()  # and what is below: what several operands read counts once
    for operand in self.operands(item):
      d = self.a.deps[operand]
      reuse = prod(size(r) for r in self.a.parallel if r in item.ranges and r not in d)
      if v in d and self.packable(item, operand) and reuse >= STAGE_REUSE * MAX_ROWS:
        below = operand.toposort(lambda u: u not in staged)
        staged.update(below)
        read = [self.a.access(u.src[0], 1) for u in below if u.op is Ops.LOAD]
        packed = sum(3.0 * lanes if x.across(v, lanes) is None else TURN for x in read)
        cost += min(1.0 + packed / reuse, sum(x.cost(v, lanes) for x in read))
    for u in item.fold.src[0].toposort(lambda u: u is item.fold or u.op is not Ops.FOLD):
      if u.op is Ops.LOAD and u not in staged:
        x = self.a.access(u.src[0], 1)
        # what all lanes share is a line of memory at each step, if the reduction goes across its lines
        cost += max(x.cost(v, lanes), 1.0 if (x.strides.get(item.over[-1]) or 0) * u.dtype.itemsize >= LINE else 0.0)
    return cost / used

  def choose(self, item: Item, order: Ranges, tiles: Tiles, v: UOp | None) -> Staged:
    """The operands that are read across a line at every step of the innermost reduction, or computed, and read
    often."""
    if item.fold is None or item.work < STAGE_WORK or not self.at_top(item):
      return (), []

    def reuse(d: frozenset[UOp]) -> int:
      inside = itertools.dropwhile(d.__contains__, order)
      return int(prod(ceildiv(size(r), tiles.get(r, Tile()).size) for r in inside if r not in d))

    together = dict.fromkeys(x for i in self.a.items if i.over == item.over for x in self.operands(i))
    often = [x for x in together if self.packable(item, x) and reuse(self.a.deps[x]) >= STAGE_REUSE]
    return self.packed(item, [x for x in often if self.worthwhile(x, item.fold.src[-1], v)], order, tiles)

  def packed(self, item: Item, operands: Sequence[UOp], order: Ranges, tiles: Tiles) -> Staged:
    """These operands staged, as far as there is room, and their bytes."""
    out, sizes, offset = list[Stage](), list[int](), self.taken
    for operand in operands[:MOST_STAGED]:
      d = self.a.deps[operand]
      level = next((i for i, r in enumerate(order) if r not in d), len(order))
      place, elements, spanned = self.layout(item, d, order, level, tiles)
      nbytes = round_up(elements * operand.dtype.itemsize, LINE)
      if offset + nbytes > self.target.scratch:
        continue
      out.append(Stage(operand, level, place, spanned, offset))
      offset += nbytes
      sizes.append(nbytes)
    return tuple(out), sizes

  def worthwhile(self, operand: UOp, inner: UOp, v: UOp | None) -> bool:
    if operand.op is not Ops.LOAD:
      return True
    x = self.a.access(operand.src[0], operand.dtype.itemsize)
    far = (step := x.strides.get(inner, 0)) is None or abs(step) * x.itemsize > LINE
    return bool(x.masked) or far or (v in x.strides and x.strides[v] != 1)

  def layout(self, item: Item, d: frozenset[UOp], order: Ranges, level: int, tiles: Tiles) -> tuple[UOp, int, Ranges]:
    """(offset of an element, number of elements, ranges) of a panel: tiles outermost, then the reduction, then what is
    in a tile."""
    opened = [r for r in order[:level] if r in d]
    later = [r for r in order[level:] if r in d]
    steps = [(r, tiles.get(r, Tile()).size) for r in later]
    digits = [(UOp.new(Ops.IDIV, dtypes.index, (r, index(n))) if n > 1 else r, ceildiv(size(r), n)) for r, n in steps]
    digits += [(r, size(r)) for r in item.over]
    lanes_last = sorted((r for r in opened + later if tiles.get(r, Tile()).size > 1), key=lambda r: tiles[r].lanes)
    digits += [(UOp.new(Ops.MOD, dtypes.index, (r, index(n := tiles[r].size))), n) for r in lanes_last]
    return row_major(digits), int(prod(n for _, n in digits)), (*opened, *later, *item.over)
