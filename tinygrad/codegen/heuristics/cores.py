"""How a contraction runs on matrix cores: a group has a block of the result, each of its warps a tile of that, in
registers. A block of both operands, as narrow as they are, lies in local memory, in rows that are longer by 16 bytes
(or 8 elements), so that the lanes of a warp read from different banks; of products of whole blocks as tiles, where
cores read such."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tinygrad.codegen.analysis.accesses import neighbours, rereads
from tinygrad.codegen.heuristics.cpu import unroll
from tinygrad.codegen.nests import NestSchedule, Staged
from tinygrad.codegen.primitives.split import Tail
from tinygrad.codegen.primitives.stage import LINE
from tinygrad.device import Target
from tinygrad.device.cores import EIGHT_ROWS, Core, SwizzledTile
from tinygrad.helpers import ALLOW_TF32, NOOPT, ceildiv, prod, round_up
from tinygrad.numerics.fragments import narrow_factors, narrowed
from tinygrad.numerics.products import is_zero_unread
from tinygrad.uop import AxisKind, Ops, UOp, simplify
from tinygrad.uop.affine import Affine, index
from tinygrad.uop.loops import LoopIds, extent, iterations, static
from tinygrad.uop.rewrite import substitute_free

LEAST_BLOCK, BLOCK = 32, 128  # rows and columns of a group
TILE = 64 * 32  # most elements of a warp's
LEAST = 16  # rows and columns from which a core is worth its while
STAGES = 4  # blocks of an operand at most, of which all but one are under way
ROW = 64  # bytes of the reduction in a block of an operand
BANDS = 16, 8  # blocks of rows (columns) over which groups go before the next columns (rows): those at work read few
DEPTH = 256  # iterations of it at once, at most, in a nest that is one of several
Triple = tuple[UOp, UOp, UOp]


@dataclass(frozen=True, slots=True)
class Product:
  """Loops m, n and k on `core`, with the rows and columns of a group's block and a warp's tile, and `depth` iterations
  of k at once. `operands`: those that are copied. `cost`: cycles of a step along k, where blocks are chosen by it.
  `joined`: the reduction's other loops, which run as one with k. `tail`: what becomes of a last block of k."""

  core: Core
  loops: Triple
  block: tuple[int, int]
  tile: tuple[int, int]
  depth: int
  operands: tuple[Staged, ...]
  stages: int
  cost: float = math.inf
  joined: tuple[UOp, ...] = ()
  tail: Tail = "peel"


def on_core(f: UOp, target: Target) -> Iterator[tuple[Core, UOp, UOp]]:
  """The cores that sum products as a reduction does, and both operands as they take them."""
  for core in target.cores if not NOOPT else ():
    if (core.operand.itemsize < 4 or ALLOW_TF32) and (pair := narrow_factors(f, core.operand)) is not None:
      yield core, *pair


def plan_product(nest: NestSchedule) -> Product | None:
  """The product that a nest's only reduction is, if there is a core for it and it is large enough: the cheapest."""
  if len(nest.a.folds) != 1 or set(nest.a.folds[0].ranges) != {*nest.parallel, *nest.a.folds[0].over}:
    return None
  return min(products(nest), key=lambda p: p.cost, default=None)


def products(nest: NestSchedule) -> Iterator[Product]:
  a, item = nest.a, nest.a.folds[0]
  assert item.fold is not None
  for core, x, y in on_core(item.fold, nest.room.target):
    if a.reducing & {x, y}:
      continue
    m, n = (longest([r for r in nest.parallel if r in a.deps[p] and r not in a.deps[q]]) for p, q in ((x, y), (y, x)))
    k = longest([r for r in item.over if r in a.deps[x] and r in a.deps[y]])
    if m is None or n is None or k is None or min(map(extent, (m, n))) < LEAST:
      continue
    if extent(k) < ROW // core.operand.itemsize:
      continue
    if any(s.stored and s.strides.get(m) == 1 for s in a.items[-1].accesses):  # a lane's neighbours are of a row
      x, y, m, n = y, x, n, m
    how = tiled_member if nest.grid else of_tiles if core.late else tiled_product
    for found in how(nest, core, (x, y), (m, n, k)):
      if core.takes([s.inner[0].startswith("k") for s in found.operands]):
        others = tuple(r for r in item.over if r is not k)
        may = not nest.grid and all(static(r) and r not in nest.limited for r in others)
        joined = others if may and extent(k) % found.depth == 0 else ()
        yield replace(found, joined=joined, tail="mask" if all(map(is_zero_unread, (x, y))) else "peel")


def longest(loops: Sequence[UOp]) -> UOp | None:
  return max((r for r in loops if static(r)), key=extent, default=None)


def of_tiles(nest: NestSchedule, core: Core, pair: Sequence[UOp], loops: Triple) -> Iterator[Product]:
  """Of operands that the core reads where a group has copied them, 16 bytes at once. Blocks overlap where they do not
  divide a loop, so nothing may read what is stored."""
  target, again, cut = nest.room.target, rereads(nest.kernel.src), all(map(is_zero_unread, pair))
  for teams in range(1, core.teams + 1):
    block = teams * core.m, core.n
    parts = [divmod(extent(r), x) for r, x in zip(loops, (*block, core.k))]
    if (parts[2][1] and not cut) or not all(whole for whole, _ in parts) or (again and any(x for _, x in parts[:2])):
      continue
    placed, nbytes = staged_operands(nest, core, pair, loops, block, core.k)
    nbytes, room = nbytes - EIGHT_ROWS, target.scratch - EIGHT_ROWS
    if (stages := min(STAGES, room // nbytes, ceildiv(iterations(nest.a.folds[0].over), core.k))) > 1:
      groups = int(prod(ceildiv(extent(r), dict(zip(loops, block)).get(r, 1)) for r in nest.parallel))
      cost = core.cycles(teams, groups, target.units, room // (stages * nbytes))
      yield Product(core, loops, block, (core.m, core.n), core.k, placed, stages, cost)


def tiled_product(nest: NestSchedule, core: Core, pair: Sequence[UOp], loops: Triple) -> Iterator[Product]:
  """Of fragments that lanes read. Of blocks there are as many as make a group for most multiprocessors."""
  (m, n, _), others = map(extent, loops), iterations(r for r in nest.parallel if r not in loops)
  terms = iterations(nest.a.folds[0].over)
  rows, columns = (min(BLOCK, max(1 << (x - 1).bit_length(), LEAST_BLOCK)) for x in (m, n))
  busy = nest.room.target.units * 3 // 4
  while ceildiv(m, rows) * ceildiv(n, columns) * others < busy and max(rows, columns) > LEAST_BLOCK:
    rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
  tile = block = rows, columns
  while prod(tile) > TILE or (prod(block) // prod(tile) < 4 and prod(tile) > TILE // 4):
    tile = (tile[0] // 2, tile[1]) if tile[0] > tile[1] else (tile[0], tile[1] // 2)
  depth = ROW // core.operand.itemsize
  placed, nbytes = staged_operands(nest, core, pair, loops, block, depth)
  stages = max(min(STAGES, nest.room.target.scratch // (2 * nbytes), ceildiv(terms, depth)), 1)
  yield Product(core, loops, block, tile, depth, placed, stages)


def tiled_member(nest: NestSchedule, core: Core, pair: Sequence[UOp], loops: Triple) -> Iterator[Product]:
  """One of several nests of a group, each of whose warps has some of the rows."""
  (m, n, k), warps = loops, iterations(r for r in nest.grid.values() if r.arg[1] is AxisKind.LOCAL) // core.lanes
  depths = [
    d for d in range(core.k, min(extent(k), core.k if core.across else DEPTH) + 1, core.k) if extent(k) % d == 0
  ]
  whole = extent(m) == warps * core.m and extent(n) % core.n == 0 and m is nest.room.row
  if not whole or not depths or {m, n} != {*nest.parallel}:
    return
  ahead = 1 + (depths[-1] == extent(k) and nest.around != ())
  room = nest.room.target.scratch - max(nest.taken, nest.most) - sum(nest.room.outside)
  for stages, depth in ((ahead, depths[-1]), *((1, d) for d in depths[::-1])):
    placed, nbytes = staged_operands(nest, core, pair, loops, (extent(m), extent(n)), depth)
    if nbytes * stages <= room:
      yield Product(core, loops, (extent(m), extent(n)), (core.m, extent(n)), depth, placed, stages)
      return


def schedule_member(nest: NestSchedule) -> bool:
  """One of several nests of a group, shared out as lanes hold what a core gives, if it is of such rows and columns."""
  core, row = next((c for c in nest.room.target.cores if not c.late), None), nest.room.row
  inner = [name for name, r in nest.names.items() if r is not row]
  if core is None or row not in nest.parallel or len(inner) > 1:
    return False
  name, warps = nest.name_of(row), extent(row) // core.m
  (down, _, _), (across, _, _) = core.d.lanes
  columns = [nest.names[x] for x in inner]
  team = [extent(nest.grid[to]) for to in ("threads", "lanes") if to in nest.grid]
  whole = all(static(r) and extent(r) % core.n == 0 < extent(r) <= 2 * DEPTH for r in columns)
  if team != [warps * down, across] or not whole:
    return False
  # what a block has of its columns, and all rows read
  of_columns = [i for i, (x, *_) in enumerate(nest.operands) if x.op is Ops.LOAD and nest.a.deps[x] == {*columns}]
  nbytes = sum(2 * round_up(extent(r) * nest.operands[i][0].dtype.itemsize, LINE) for r in columns for i in of_columns)
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


def staged_operands(
  nest: NestSchedule, core: Core, pair: Sequence[UOp], loops: Triple, block: tuple[int, int], depth: int
) -> tuple[tuple[Staged, ...], int]:
  """How the operands that are in device memory lie in a group's, and in how many bytes."""
  placed, nbytes, (m, n, k), itemsize = list[Staged](), EIGHT_ROWS * core.late, loops, pair[0].dtype.itemsize
  for x, side, many, held in zip(pair, (m, n), block, (core.a, core.b)):
    # rows of a member are each a warp's alone: it keeps what is the same in all iterations that nests share
    kept = nest.grid and side is m and {*nest.around}.isdisjoint(x.toposort())
    if kept or any(u.src[0].src[0].op is Ops.SCRATCH for u in nest.a.loads(x)):
      continue
    loads = [nest.a.access(u.src[0], u.dtype.itemsize) for u in nest.a.loads(x)]
    inner = side if any(y.strides.get(side) == 1 for y in loads) else k
    outer = k if inner is side else side
    tile = isinstance(held, SwizzledTile)
    row = many + 8 * (not tile) if inner is side else depth + 16 // itemsize * (not tile)
    whole = extent(inner) if inner is k or last_block(nest, side, many) == "overlap" else 1
    vector = neighbours([replace(y, masked=frozenset()) for y in loads], inner, math.gcd(whole, 16 // itemsize))
    gates = [gate for u in nest.a.loads(x) for gate in u.src[0].src[2:]]
    vector = max(vector if all(same_for(gate, inner, vector, nest.room.ids) for gate in gates) else 1, 4 // itemsize)
    o, i = ((f"{nest.name_of(r)}.i",) for r in (outer, inner))
    number = next(j for j, (y, *_) in enumerate(nest.operands) if narrowed(y, x.dtype) is x)
    placed.append(Staged(number, o, i, row, (i, o), vector, tile))
    nbytes += round_up(row * (depth if inner is not k else many) * itemsize, LINE)
  return tuple(placed), nbytes


def same_for(condition: UOp, r: UOp, many: int, ids: LoopIds) -> bool:
  """Whether it is so for so many neighbours along r, from a multiple of as many on."""
  block, one = (ids.loop(index(n), r.arg[1]) for n in (ceildiv(extent(r), many), many))
  return one not in simplify(substitute_free(condition, {r: Affine(0, {block: many, one: 1}).uop()})).loops


def last_block(nest: NestSchedule, r: UOp, many: int) -> Tail:
  """What becomes of one that is not whole: where that may be, its neighbours are as well aligned as those of others."""
  return "clamp" if extent(r) < many or (extent(r) % many and rereads(nest.kernel.src)) else "overlap"


def schedule_product(nest: NestSchedule, p: Product) -> None:
  m, n, k = map(nest.name_of, p.loops)
  (rows, columns), core = p.tile, p.core
  own = core.late and not nest.room.grid
  nest.narrow(core.name)
  if not nest.grid:
    nest.launch(prod(p.block) // prod(p.tile), core.lanes)
  for r, name, many in zip(p.loops, (m, n), p.block):
    nest.split(name, many, last_block(nest, r, many))
  if p.joined:
    nest.join(*(nest.name_of(r) for r in p.joined), k)
  nest.split(k, p.depth, p.tail)
  nest.pipeline(p.stages, 1 + own)
  if p.operands:
    nest.stage(*p.operands)
  for name, tile, many in ((f"{m}.i", rows, core.m), (f"{n}.i", columns, core.n)):
    nest.split(name, tile)
    nest.split(f"{name}.i", many)
  nest.split(f"{k}.i", core.k)
  nest.tensorize(core.name, f"{m}.i.i.i", f"{n}.i.i.i", f"{k}.i.i")
  for name in (f"{m}.i.i.o", f"{n}.i.i.o"):
    unroll(nest, name)
  both = f"{m}.o", f"{n}.o"
  if bands := [(x, band) for x, band in zip(both, BANDS) if x in nest.names and extent(nest.names[x]) % band == 0]:
    nest.split(*bands[0])
  others = (nest.name_of(r) for r in nest.parallel if r not in p.loops)
  nest.bind("groups", *others, f"{n}.o.o", f"{m}.o.o", *both, f"{n}.o.i", f"{m}.o.i")
  if nest.room.grid:
    unroll(nest, f"{k}.i.o")
    nest.bind("team", f"{m}.i.o", f"{m}.i.i.i.lane")
  nest.bind("threads", f"{m}.i.o", f"{n}.i.o")
  nest.bind("lanes", f"{m}.i.i.i.lane")
  nest.within("groups", "lanes", "threads")
  nest.write_out()
