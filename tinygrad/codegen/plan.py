"""What codegen decides for one kernel, as data: tiles, lanes, loop order and staged operands."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, prod
from tinygrad.uop import Ops, UOp
from tinygrad.uop.affine import Affine, affine, index

CHUNK = 64  # iterations: loops that end early, where the rest is idle, do so at multiples of it


@dataclass(frozen=True, slots=True)
class Tile:
  """A range is split `r -> r0·(copies·lanes) + copy·lanes + lane`: `copies` are unrolled into registers, `lanes` are
  one vector."""

  copies: int = 1
  lanes: int = 1

  @property
  def size(self) -> int:
    return self.copies * self.lanes

  def part_of_chunk(self) -> Tile:
    return Tile(min(1 << (self.copies.bit_length() - 1), CHUNK // self.lanes), self.lanes)


Ranges = tuple[UOp, ...]
Tiles = dict[UOp, Tile]


@dataclass(frozen=True, slots=True)
class Stage:
  """`operand` is computed once, where `level` parallel loops are open, for all its uses inside: into scratch memory,
  `offset` bytes from its start, element `place` (an expression of the ranges). `ranges`: what it spans; of a range
  whose loop is open, the current tile."""

  operand: UOp
  level: int
  place: UOp
  ranges: tuple[UOp, ...]
  offset: int


@dataclass(frozen=True, slots=True)
class Block:
  """The reduction `fold` runs in blocks of `length` iterations of its range `range`, outside of all parallel loops;
  what the blocks add up to is kept in scratch memory, `offset` bytes from its start, element `place`. `ranges`: the
  parallel ranges it depends on."""

  fold: UOp
  range: UOp
  length: int
  place: UOp
  ranges: tuple[UOp, ...]
  offset: int
  nbytes: int


@dataclass(frozen=True, slots=True)
class LoopPlan:
  """`order`: the parallel ranges, outermost first. `tiles`: by parallel range. `folds`: by the ranges of a FOLD, their
  order and the tile of the last (lanes of a reduction are reduced at the end; copies are accumulators of their own)."""

  order: tuple[UOp, ...]
  tiles: dict[UOp, Tile] = field(default_factory=dict)
  folds: dict[tuple[UOp, ...], tuple[tuple[UOp, ...], Tile]] = field(default_factory=dict)
  stages: tuple[Stage, ...] = ()
  block: Block | None = None

  def in_chunks(self, ranges: Container[UOp]) -> LoopPlan:
    """With tiles that divide a CHUNK of these ranges."""
    tiles = {r: t.part_of_chunk() if r in ranges else t for r, t in self.tiles.items()}
    folds = {k: (order, t.part_of_chunk() if order[-1] in ranges else t) for k, (order, t) in self.folds.items()}
    return replace(self, tiles=tiles, folds=folds)


@dataclass(frozen=True, slots=True)
class Region:
  """A part of a split range: `count` times `tile` from `base`; `masked`: lanes at or beyond the range's end exist and
  do nothing."""

  count: UOp
  base: UOp
  tile: Tile
  masked: bool = False


@dataclass(frozen=True, slots=True)
class LoopNest:
  """Stores that share their ranges, and get loops of their own. `ends`: of loops the rest of which is idle, how many
  CHUNKs are not. `memory`: scratch memory, filled anew in each iteration of the loops around, that these have from
  others or leave to them, of which `taken` bytes are in use."""

  stores: tuple[UOp, ...]
  ends: Mapping[UOp, UOp] = field(default_factory=dict)
  memory: tuple[UOp, ...] = ()
  taken: int = 0


@dataclass(frozen=True, slots=True)
class LoopAround:
  """`count` iterations of the nests that `body` gives, told the loop's counter, or 0 where there is but one."""

  count: UOp
  body: Callable[[UOp], Nests]


Nests = Iterable[LoopNest | LoopAround]  # what a kernel does, in this order


def usual_sources(u: UOp) -> tuple[UOp, ...]:
  """What is always computed for `u`: of a WHERE with an arg all but what it unlikely chooses."""
  return u.src if u.op is not Ops.WHERE or u.arg is None else u.src[::2]


def regions(end: UOp, tile: Tile) -> Iterator[Region]:
  """Peels `end` iterations into whole tiles and the rest: a static rest is one smaller tile, a dynamic one a loop over
  single vectors."""
  size = tile.size
  if end.op is Ops.CONST:
    whole, rest = divmod(int(end.arg), size)
    if whole:
      yield Region(index(whole), index(0), tile)
    if rest:
      yield Region(index(1), index(whole * size), Tile(ceildiv(rest, tile.lanes), tile.lanes), rest % tile.lanes != 0)
    return
  if size == 1:
    yield Region(end, index(0), tile)
    return
  whole_count = UOp.new(Ops.IDIV, dtypes.index, (end, index(size)))
  base = UOp.new(Ops.MUL, dtypes.index, (whole_count, index(size)))
  yield Region(whole_count, index(0), tile)
  left = UOp.new(Ops.SUB, dtypes.index, (UOp.new(Ops.ADD, dtypes.index, (end, index(tile.lanes - 1))), base))
  yield Region(UOp.new(Ops.IDIV, dtypes.index, (left, index(tile.lanes))), base, Tile(1, tile.lanes), tile.lanes > 1)


# iterations of one accumulator after which a long sum of floats goes on in another, and one of products, whose many
# accumulators take longer to change
SUM_BLOCK, PRODUCTS_BLOCK = 48, 384


def of_products(f: UOp) -> bool:
  return f.src[0].op is Ops.MUL or f.src[0].op is Ops.DOT


def sum_blocks(region: Region, f: UOp) -> Iterator[tuple[int, Region]]:
  """A long region of the reduction `f` as (number of blocks, block) and the rest."""
  n = int(region.count.arg) if region.count.op is Ops.CONST else 0
  length = PRODUCTS_BLOCK if of_products(f) else SUM_BLOCK
  if n >= 2 * length:
    yield n // length, replace(region, count=index(length))
    base = Affine(n // length * length * region.tile.size).plus(affine(region.base, {})).uop()
    region = replace(region, count=index(n % length), base=base)
  if n < 2 * length or n % length:
    yield 1, region


INLINE = 9  # iterations of a reduction that is written out
INLINE_NODES = 60  # of what it adds up


def is_inlined(fold: UOp) -> bool:
  """Whether a FOLD is so short that it becomes a chain of operations."""
  if not all(r.src[0].op is Ops.CONST for r in fold.src[1:]) or prod(int(r.src[0].arg) for r in fold.src[1:]) > INLINE:
    return False
  seen, stack = {fold.src[0]}, [fold.src[0]]
  while stack and len(seen) <= INLINE_NODES:
    u = stack.pop()
    if u.op is Ops.FOLD:
      return False
    more = [s for s in dict.fromkeys(u.src) if s not in seen]
    seen.update(more)
    stack += more
  return len(seen) <= INLINE_NODES
