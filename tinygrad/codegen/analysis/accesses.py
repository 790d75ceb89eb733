"""What every load and store of a nest does along every loop: its stride, or that it does not depend on it; how much
work there is, and what that costs in vector instructions. Nothing here knows what a kernel computes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinygrad.codegen.expressions import MAX_SHUFFLED, MIN_SHUFFLED, usual_sources
from tinygrad.dtype import dtypes
from tinygrad.helpers import efficiency
from tinygrad.numerics.floor_division import DIVIDES
from tinygrad.numerics.products import multiplies_matrices
from tinygrad.uop import CARDS, Ops, UOp
from tinygrad.uop.affine import Affine, affine
from tinygrad.uop.loops import extent, iterations, static

GATHER = 3.0  # cost of one lane of an access that is not contiguous
TURN = 5.0  # cost of a vector that comes from transposing a square of as many; twice that to store one
MOST_TRANSPOSED = 16  # lanes of such
BROADCAST = 0.5  # cost of a load that all lanes share
OPERATION = 0.5  # cost of arithmetic, next to that of a load
MAX_ROWS = 8  # unrolled copies along one range: more rows at a power of two apart fall into one set of the first cache
INLINE, INLINE_MATRICES = 9, 4  # iterations of a reduction that is written out, and of a product of matrices
INLINE_NODES = 60  # of what it adds up


@dataclass(frozen=True, slots=True)
class Access:
  """A load or a store: its step in elements along each range; None where it is not a multiple of the range's number."""

  strides: dict[UOp, int | None]
  itemsize: int
  masked: frozenset[UOp]  # ranges on which its condition depends
  stored: bool = False
  word: int = 1  # elements that are read as one

  def cost(self, v: UOp | None, lanes: float) -> float:
    """Instructions for `lanes` neighbours along v."""
    if v is None or (step := self.strides.get(v, 0)) == 1:
      return 1.0
    if step == 0:  # all lanes share it, unless each has a condition of its own
      return lanes if v in self.masked else BROADCAST
    shuffled = MIN_SHUFFLED <= lanes <= extent(v) and (step == -1 or (v not in self.masked and not self.stored))
    if not shuffled or step is None or not -1 <= step <= MAX_SHUFFLED:
      return GATHER * lanes * self.word
    return 2.0 * step - 1 if step > 0 else 2.0

  def across(self, v: UOp | None, lanes: int) -> UOp | None:
    """The range along which an access that steps over rows along v is contiguous: a square of it can be transposed in
    registers."""
    if v is None or (step := self.strides.get(v)) is None or self.masked or self.word > 1:
      return None
    if not min(MOST_TRANSPOSED, extent(v)) >= lanes > 1:
      return None
    found = (r for r, s in self.strides.items() if s == 1 and static(r) and abs(step) >= min(lanes, extent(r)) > 1)
    return next(found, None)


@dataclass(slots=True, eq=False)
class Item:
  """A FOLD, or the stored values outside of FOLDs (fold None): the accesses and operations of one iteration."""

  fold: UOp | None
  ranges: tuple[UOp, ...]  # all that one iteration depends on
  accesses: list[Access]
  operations: int

  @property
  def work(self) -> float:
    return float(iterations(self.ranges))

  @property
  def over(self) -> tuple[UOp, ...]:
    """The ranges of the FOLD."""
    return () if self.fold is None else self.fold.src[1:]

  def cost(self, cut: UOp | None = None, part: float = 1.0) -> float:
    """Iterations and elements of memory that are read, where only this part of a range is taken."""
    over = [self.ranges, *(x.strides for x in self.accesses)]
    return sum(float(iterations(rs)) * (part if cut in rs else 1.0) for rs in over)


def folds_of(stores: Sequence[UOp]) -> list[UOp]:
  """The reductions of a nest, not those of nests that fill memory for it."""
  return [u for u in UOp.sink(*stores).toposort(lambda u: u.op is not Ops.AFTER) if u.op is Ops.FOLD]


def rereads(stores: Sequence[UOp]) -> set[UOp]:
  """The memory that is both written and read."""
  read = {u.src[0].src[0] for u in UOp.sink(*stores).toposort() if u.op is Ops.LOAD}
  return read & {s.src[0].src[0] for s in stores}


def is_inlined(fold: UOp) -> bool:
  """Whether a FOLD is so short that it becomes a chain of operations."""
  if not all(map(static, fold.src[1:])) or (times := iterations(fold.src[1:])) > INLINE:
    return False
  seen, stack = {fold.src[0]}, [fold.src[0]]
  while times > 1 and stack and len(seen) <= INLINE_NODES:
    u = stack.pop()
    if u.op is Ops.FOLD:
      return False
    more = [s for s in dict.fromkeys(u.src) if s not in seen]
    seen.update(more)
    stack += more
  return len(seen) <= INLINE_NODES and (times <= INLINE_MATRICES or not multiplies_matrices(fold))


class Analysis:
  """Dependences and strides of one nest, the stores of which share the loops `parallel`."""

  def __init__(self, stores: Sequence[UOp], parallel: tuple[UOp, ...]) -> None:
    self.deps: dict[UOp, frozenset[UOp]] = {}
    self.forms: dict[UOp, Affine] = {}
    self.parallel = parallel
    # loops that are open around the nest are none of its own: to it their counters are constants
    self.own = {*self.parallel, *(r for f in folds_of(stores) for r in f.src[1:])}
    self.reducing: set[UOp] = set()  # what has a FOLD below it, or is one
    self.varies: dict[UOp, frozenset[UOp]] = {}
    self.itemsize = 1
    self.items: list[Item] = []
    self.collected: set[UOp] = set()  # FOLDs
    self.residues: dict[UOp, int] = {}  # range -> copies with which a division by a constant becomes affine
    values = [s.src[1] for s in stores]
    for root in (*values, *(s.src[0] for s in stores)):
      self.scan(root)
    outer = frozenset(self.parallel)
    stored = [self.access(s.src[0], s.src[1].dtype.itemsize, True) for s in stores]
    # of addresses, the types of those that lanes have one each of; else one is broadcast
    self.along = {r for x in stored for r, step in x.strides.items() if step == 1}
    self.data = set(UOp.sink(*values).toposort(lambda u: u.op is not Ops.INDEX and u.dtype is not dtypes.index))
    self.collect(None, values, outer, stored)
    self.folds = [i for i in self.items if i.fold is not None]
    self.main = max(self.folds, key=lambda i: i.work, default=None)  # the reduction with the most work

  def scan(self, root: UOp) -> frozenset[UOp]:
    """The ranges that `root` depends on."""
    for u in root.toposort(lambda u: u not in self.deps):
      self.deps[u] = u.loops & self.own
      if u.op is Ops.AFTER:  # memory that is filled before the nest
        continue
      if u.op is Ops.FOLD or not self.reducing.isdisjoint(u.src):
        self.reducing.add(u)
      if u.op is Ops.CMPLT and u.src[0].op is Ops.RANGE and u.src[1].op is Ops.CONST and extent(u.src[0]) == 2:
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
    word = where.dtype.itemsize // where.src[0].dtype.itemsize
    strides = {r: 1 if step == word else step for r, step in strides.items()}
    strides.update(dict.fromkeys(self.deps[where.src[0]]))  # the pointer itself: a peer's
    masked = self.varying(where.src[2]) & self.scan(where.src[2]) if where.src[2:] else frozenset[UOp]()
    return Access(strides, itemsize, masked, stored, word)

  def varying(self, condition: UOp) -> frozenset[UOp]:
    """The ranges on which a condition depends, but by more than the number of the vector."""
    for u in condition.toposort(lambda u: u not in self.varies):
      below: Iterable[UOp] = () if u.op is Ops.IDIV and self.aligned(u) is not None else u.src
      self.varies[u] = frozenset((u,) if u.op is Ops.RANGE else ()).union(*(self.varies[s] for s in below))
    return self.varies[condition]

  def loads(self, root: UOp) -> list[UOp]:
    """The LOADs below `root`."""
    return [u for u in root.toposort() if u.op is Ops.LOAD]

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
      if u.dtype not in (dtypes.index, dtypes.void) and (u in self.data or not self.along.isdisjoint(self.deps[u])):
        self.itemsize = max(self.itemsize, u.dtype.itemsize)
      if u.op is Ops.FOLD and is_inlined(u):
        times *= iterations(u.src[1:])
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
    mine = [r for r in self.parallel if r in ranges]
    mine += sorted(ranges.difference(mine), key=lambda r: r.arg[0])
    self.items.append(Item(fold, (*mine,), accesses, operations))


def lanes_for(r: UOp, most: int) -> int:
  """The vector length along r: the longest, or what covers the range."""
  n = extent(r)
  return most if n >= most else 1 << max(n - 1, 0).bit_length()


def lane_cost(item: Item, r: UOp | None, most: int) -> float:
  """Instructions per iteration of an item that is vectorised along r (None: not); lanes of a reduction are reduced at
  its end."""
  if r is None:
    return len(item.accesses) + OPERATION * item.operations
  lanes = lanes_for(r, most)
  used, over = lanes * efficiency(extent(r), lanes), item.over
  rows = None if over else next((x for a in item.accesses if (x := a.across(r, lanes)) is not None), None)
  turned = [rows is not None and a.across(r, lanes) is rows for a in item.accesses]  # all of one square
  costs = [TURN * (1 + a.stored) if t else a.cost(r, lanes) for t, a in zip(turned, item.accesses)]
  finish = 2.0 * lanes.bit_length() / max(iterations(over), 1) if r in over else 0.0
  return (sum(costs) + OPERATION * item.operations) / used + finish


def lane_of(item: Item, v: UOp | None, most: int) -> UOp | None:
  """The range along which an item is vectorised where its nest is along v: a reduction that does not depend on v, along
  one of its own, if that pays."""
  return v if v in item.ranges else min((None, *item.over), key=lambda r: lane_cost(item, r, most))


def operands_of(a: Analysis, item: Item) -> list[UOp]:
  """The largest values below the FOLD that do not depend on all of its ranges."""
  assert item.fold is not None
  every, out, stack, seen = frozenset(item.ranges), [], [item.fold.src[0]], set[UOp]()
  while stack:
    u = stack.pop()
    if u in seen:
      continue
    seen.add(u)
    computed = u.dtype is dtypes.index or (u.dtype is dtypes.bool and u.op is not Ops.LOAD)
    if not a.deps[u] or u.op is Ops.FOLD or u.op is Ops.CONST or computed:
      continue
    if a.deps[u] != every:
      out.append(u)
    elif u.op is not Ops.LOAD:
      stack.extend(u.src)
  return out


def neighbours(loads: Iterable[Access], along: UOp, most: int) -> int:
  """How many elements beside each other, and aligned, all of them may read at once."""
  for x in loads:
    steps = [s or 1 for r, s in x.strides.items() if r is not along]
    most = math.gcd(most, *steps) if x.strides.get(along) == 1 and along not in x.masked else 1
  return most
