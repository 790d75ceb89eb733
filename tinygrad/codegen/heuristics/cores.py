"""How a contraction runs on matrix cores: a group has a block of the result, each of its warps a tile of that, in
registers. A block of both operands, as narrow as they are, lies in local memory, in rows that are longer by 16 bytes
(or 8 elements), so that the lanes of a warp read from different banks; of products of whole blocks as tiles, where
cores read such."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinygrad.codegen.analysis.accesses import Analysis, is_inlined, neighbours, size, static
from tinygrad.codegen.heuristics.cpu import unroll
from tinygrad.codegen.nests import NestSchedule, Staged
from tinygrad.codegen.primitives.stage import LINE
from tinygrad.device import Target
from tinygrad.device.cores import EIGHT_ROWS, Core, SwizzledTile
from tinygrad.helpers import ALLOW_TF32, NOOPT, ceildiv, prod, round_up
from tinygrad.numerics.fragments import narrowed
from tinygrad.uop import AxisKind, Ops, UOp

BLOCK, WIDE = (128, 128), (128, 256)  # most rows and columns of a group; and where cores read its memory
TILE = 64 * 32  # most elements of a warp's
LEAST = 16  # rows and columns from which a core is worth its while
STAGES = 4  # blocks of an operand at most, of which all but one are under way
ROW = 64  # bytes of the reduction in a block of an operand
BAND = 16  # blocks of rows over which groups go before the next columns, so that those at work read few of both
DEPTH = 256  # iterations of it at once, at most, in a nest that is one of several
Triple = tuple[UOp, UOp, UOp]


@dataclass(frozen=True, slots=True)
class Product:
  """Loops m, n and k on `core`, with the rows and columns of a group's block and a warp's tile, and `depth` iterations
  of k at once. `operands`: those that are copied."""

  core: Core
  loops: Triple
  block: tuple[int, int]
  tile: tuple[int, int]
  depth: int
  operands: tuple[Staged, ...]
  stages: int


def on_core(f: UOp, target: Target) -> Iterator[tuple[Core, UOp, UOp]]:
  """The cores that sum products as a reduction does, and both operands as they take them."""
  for core in target.cores if f.src[0].op is Ops.MUL and f.arg is Ops.ADD and not NOOPT else ():
    x, y = (narrowed(s, core.operand) for s in f.src[0].src)
    if x is not None and y is not None and (core.operand.itemsize < 4 or ALLOW_TF32):
      yield core, x, y


def plan_product(nest: NestSchedule, a: Analysis) -> Product | None:
  """The product that a nest's only reduction is, if there is a core for it and it is large enough."""
  folds = [i for i in a.items if i.fold is not None and not is_inlined(i.fold)]
  if len(folds) != 1 or set(folds[0].ranges) != {*nest.parallel, *folds[0].over}:
    return None
  item, stores = folds[0], a.items[-1].accesses
  assert item.fold is not None
  for core, x, y in on_core(item.fold, nest.room.target):
    if a.reducing & {x, y}:
      continue
    m, n = (longest([r for r in nest.parallel if r in a.deps[p] and r not in a.deps[q]]) for p, q in ((x, y), (y, x)))
    k = longest([r for r in item.over if r in a.deps[x] and r in a.deps[y]])
    if m is None or n is None or k is None or min(size(m), size(n)) < LEAST or size(k) < ROW // core.operand.itemsize:
      continue
    if any(s.stored and s.strides.get(m) == 1 for s in stores):  # a lane's neighbours are of a row
      x, y, m, n = y, x, n, m
    how = tiled_member if nest.grid else of_tiles if core.late else tiled_product
    found = how(nest, a, core, (x, y), (m, n, k))
    if found is not None and core.takes([(s.inner[0].startswith("k"), s.vector) for s in found.operands]):
      return found
  return None


def longest(loops: Sequence[UOp]) -> UOp | None:
  return max((r for r in loops if static(r)), key=size, default=None)


def of_tiles(nest: NestSchedule, a: Analysis, core: Core, pair: Sequence[UOp], loops: Triple) -> Product | None:
  """Of operands that the core reads where a group has copied them, 16 bytes at once."""
  (m, n, k), most = loops, blocks(nest, loops, WIDE, core.m)
  block = max(math.gcd(size(m), most[0]), core.m), max(math.gcd(size(n), most[1]), core.m)
  if block[1] != core.n or any(size(r) % x for r, x in zip(loops, (*block, core.k))):
    return None
  placed, nbytes = staged_operands(nest, a, core, pair, loops, block, core.k)
  stages = min(STAGES, nest.room.target.scratch // nbytes, size(k) // core.k)
  return Product(core, loops, block, (core.m, core.n), core.k, placed, stages) if stages > 1 else None


def tiled_product(nest: NestSchedule, a: Analysis, core: Core, pair: Sequence[UOp], loops: Triple) -> Product:
  k, tile = loops[2], (block := blocks(nest, loops, BLOCK, 32))
  while prod(tile) > TILE or (prod(block) // prod(tile) < 4 and prod(tile) > TILE // 4):
    tile = (tile[0] // 2, tile[1]) if tile[0] > tile[1] else (tile[0], tile[1] // 2)
  depth = ROW // core.operand.itemsize
  placed, nbytes = staged_operands(nest, a, core, pair, loops, block, depth)
  stages = max(min(STAGES, nest.room.target.scratch // (2 * nbytes), size(k) // depth), 1)
  return Product(core, loops, block, tile, depth, placed, stages)


def tiled_member(nest: NestSchedule, a: Analysis, core: Core, pair: Sequence[UOp], loops: Triple) -> Product | None:
  """One of several nests of a group, each of whose warps has some of the rows."""
  (m, n, k), warps = loops, prod(size(r) for r in nest.grid.values() if r.arg[1] is AxisKind.LOCAL) // core.lanes
  depths = [d for d in range(core.k, min(size(k), core.k if core.across else DEPTH) + 1, core.k) if size(k) % d == 0]
  whole = size(m) == warps * core.m and size(n) % core.n == 0 and m is nest.room.row
  if not whole or not depths or {m, n} != {*nest.parallel}:
    return None
  placed, nbytes = staged_operands(nest, a, core, pair, loops, (size(m), size(n)), depths[-1])
  stages = 1 + (depths[-1] == size(k) and nest.around != ())
  if max(nest.taken, nest.most) + sum(nest.room.outside) + nbytes * stages > nest.room.target.scratch:
    return None
  return Product(core, loops, (size(m), size(n)), (core.m, size(n)), depths[-1], placed, stages)


def schedule_member(nest: NestSchedule, a: Analysis) -> bool:
  """One of several nests of a group, shared out as lanes hold what a core gives, if it is of such rows and columns."""
  core, row = next((c for c in nest.room.target.cores if not c.late), None), nest.room.row
  inner = [name for name, r in nest.names.items() if r is not row]
  if core is None or row not in nest.parallel or len(inner) > 1:
    return False
  name, warps = nest.name_of(row), size(row) // core.m
  (down, _, _), (across, _, _) = core.d.lanes
  columns = [nest.names[x] for x in inner]
  team = [size(nest.grid[to]) for to in ("threads", "lanes") if to in nest.grid]
  whole = all(static(r) and size(r) % core.n == 0 < size(r) <= 2 * DEPTH for r in columns)
  if team != [warps * down, across] or not whole:
    return False
  # what a block has of its columns, and all rows read
  of_columns = [i for i, (x, *_) in enumerate(nest.operands) if x.op is Ops.LOAD and a.deps[x] == {*columns}]
  nbytes = sum(2 * size(r) * 4 for r in columns for _ in of_columns)
  if nbytes and max(nest.taken, nest.most) + sum(nest.room.outside) + nbytes < nest.room.target.scratch:
    nest.pipeline(2)
    nest.stage(*(Staged(i, (), (inner[0],), 0, ((inner[0],),)) for i in of_columns))
  nest.split(name, core.m)
  nest.split(f"{name}.i", down)
  for x in inner:
    nest.split(x, core.n)
    nest.split(f"{x}.i", core.n // across)
    nest.bind("lanes", f"{x}.i.o")
  nest.bind("threads", f"{name}.o", f"{name}.i.i")
  for x in (f"{name}.i.o", *(f"{x}.{part}" for x in inner for part in ("o", "i.i"))):
    unroll(nest, x)
  nest.within("groups", "lanes", "threads")
  nest.write_out()
  return True


def staged_number(nest: NestSchedule, narrow: UOp) -> int:
  return next(i for i, (x, *_) in enumerate(nest.operands) if narrowed(x, narrow.dtype) is narrow)


def staged_operands(
  nest: NestSchedule, a: Analysis, core: Core, pair: Sequence[UOp], loops: Triple, block: tuple[int, int], depth: int
) -> tuple[tuple[Staged, ...], int]:
  """How the operands that are in device memory lie in a group's, and in how many bytes."""
  placed, nbytes, (m, n, k), itemsize = list[Staged](), EIGHT_ROWS * core.late, loops, pair[0].dtype.itemsize
  for x, side, extent, held in zip(pair, (m, n), block, (core.a, core.b)):
    # rows of a member are each a warp's alone: it keeps what is the same in all iterations that nests share
    kept = nest.grid and side is m and {*nest.around}.isdisjoint(x.toposort())
    if kept or any(u.src[0].src[0].op is Ops.SCRATCH for u in a.loads(x)):
      continue
    loads = [a.access(u.src[0], u.dtype.itemsize) for u in a.loads(x)]
    inner = side if any(y.strides.get(side) == 1 for y in loads) else k
    outer = k if inner is side else side
    tile = isinstance(held, SwizzledTile)
    row = extent + 8 * (not tile) if inner is side else depth + 16 // itemsize * (not tile)
    whole = depth if inner is k else extent if size(side) % extent == 0 else 1
    vector = neighbours(loads, inner, math.gcd(whole, 16 // itemsize))
    o, i = ((f"{nest.name_of(r)}.i",) for r in (outer, inner))
    placed.append(Staged(staged_number(nest, x), o, i, row, (i, o), vector, tile))
    nbytes += round_up(row * (depth if inner is not k else extent) * itemsize, LINE)
  return tuple(placed), nbytes


def blocks(nest: NestSchedule, loops: Triple, most: tuple[int, int], least: int) -> tuple[int, int]:
  """Rows and columns of a group's block: as many as make a group for most multiprocessors."""
  m, n, others = size(loops[0]), size(loops[1]), int(prod(size(r) for r in nest.parallel if r not in loops))
  rows, columns = (min(x, max(1 << (r - 1).bit_length(), least)) for r, x in zip((m, n), most))
  busy = nest.room.target.units * 3 // 4
  while ceildiv(m, rows) * ceildiv(n, columns) * others < busy and max(rows, columns) > least:
    rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
  return rows, columns


def schedule_product(nest: NestSchedule, p: Product) -> None:
  names = {r: name for name, r in nest.names.items()}
  m, n, k = (names[r] for r in p.loops)
  (rows, columns), core = p.tile, p.core
  nest.narrow(core.name)
  if not nest.grid:
    nest.launch(prod(p.block) // prod(p.tile), core.lanes)
  for name, many in zip((m, n), p.block):
    nest.split(name, many, "clamp")
  nest.split(k, p.depth)
  nest.pipeline(p.stages, 1 + (core.late and not nest.room.grid))
  if p.operands:
    nest.stage(*p.operands)
  for name, tile, many in ((f"{m}.i", rows, core.m), (f"{n}.i", columns, core.n)):
    nest.split(name, tile)
    nest.split(f"{name}.i", many)
  nest.split(f"{k}.i", core.k)
  nest.tensorize(core.name, f"{m}.i.i.i", f"{n}.i.i.i", f"{k}.i.i")
  for name in (f"{m}.i.i.o", f"{n}.i.i.o"):
    if name in nest.names:
      unroll(nest, name)
  if f"{m}.o" in nest.names and size(nest.names[f"{m}.o"]) % BAND == 0:
    nest.split(f"{m}.o", BAND)
  nest.bind(
    "groups", *(names[r] for r in nest.parallel if r not in p.loops), f"{m}.o", f"{m}.o.o", f"{n}.o", f"{m}.o.i"
  )
  if nest.room.grid:
    unroll(nest, f"{k}.i.o")
    nest.bind("team", f"{m}.i.o", f"{m}.i.i.i.lane")
  nest.bind("threads", f"{m}.i.o", f"{n}.i.o")
  nest.bind("lanes", f"{m}.i.i.i.lane")
  nest.within("groups", "lanes", "threads")
  nest.write_out()
