"""How a contraction runs on matrix cores: a group has a block of the result, each of its warps a tile of that, in
registers. A block of both operands, as narrow as they are, lies in local memory, in rows that are longer by 16 bytes
(or 8 elements), so that the lanes of a warp read from different banks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad.codegen.analysis.accesses import Analysis, is_inlined, neighbours, size, static
from tinygrad.codegen.heuristics.cpu import unroll
from tinygrad.codegen.nests import NestSchedule, Staged
from tinygrad.codegen.primitives.tensorize import narrowed
from tinygrad.device.cores import Core
from tinygrad.helpers import ALLOW_TF32, NOOPT, ceildiv, prod
from tinygrad.uop import Ops, UOp

BLOCK = 128  # most rows, and columns, of a group's part of the result
TILE = 64 * 32  # most elements of a warp's
LEAST = 16  # rows and columns from which a core is worth its while
STAGES = 4  # blocks of an operand at most, of which all but one are under way
ROW = 64  # bytes of the reduction in a block of an operand


@dataclass(frozen=True, slots=True)
class Operand:
  """One of a product's: its rows in local memory are along `inner`, `row` elements each; `vector` neighbours are copied
  at once."""

  number: int
  outer: UOp
  inner: UOp
  row: int
  vector: int


@dataclass(frozen=True, slots=True)
class Product:
  """Loops m, n and k on `core`, with the rows and columns of a group's block and a warp's tile, and `depth` iterations
  of k at once. `others`: parallel loops beside m and n."""

  core: Core
  loops: tuple[UOp, UOp, UOp]
  block: tuple[int, int]
  tile: tuple[int, int]
  depth: int
  operands: tuple[Operand, Operand]
  others: tuple[UOp, ...]
  stages: int


def plan_product(nest: NestSchedule, a: Analysis) -> Product | None:
  """The product that a nest's only reduction is, if there is a core for it and it is large enough."""
  folds = [i for i in a.items if i.fold is not None and not is_inlined(i.fold)]
  if NOOPT or len(folds) != 1 or set(folds[0].ranges) != {*nest.parallel, *folds[0].over}:
    return None
  item, stores = folds[0], a.items[-1].accesses
  assert item.fold is not None
  value = item.fold.src[0]
  for core in nest.room.target.cores if value.op is Ops.MUL and item.fold.arg is Ops.ADD else ():
    pair = [narrowed(x, core.operand) for x in value.src]
    if core.operand.itemsize == 4 and not ALLOW_TF32:
      continue
    x, y = pair
    if x is None or y is None or a.reducing & {x, y}:
      continue
    m, n = (longest([r for r in nest.parallel if r in a.deps[p] and r not in a.deps[q]]) for p, q in ((x, y), (y, x)))
    k = longest([r for r in item.over if r in a.deps[x] and r in a.deps[y]])
    if m is None or n is None or k is None or min(size(m), size(n)) < LEAST or size(k) < ROW // core.operand.itemsize:
      continue
    if any(s.stored and s.strides.get(m) == 1 for s in stores):  # a lane's neighbours are of a row
      x, y, m, n = y, x, n, m
    return tiled_product(nest, a, core, (x, y), (m, n, k))
  return None


def longest(loops: Sequence[UOp]) -> UOp | None:
  return max((r for r in loops if static(r)), key=size, default=None)


def tiled_product(
  nest: NestSchedule, a: Analysis, core: Core, pair: Sequence[UOp], loops: tuple[UOp, UOp, UOp]
) -> Product:
  m, n, k = loops
  others = tuple(r for r in nest.parallel if r is not m and r is not n)
  block = blocks(size(m), size(n), int(prod(map(size, others))), nest.room.target.units, core)
  tile = block
  while prod(tile) > TILE or (prod(block) // prod(tile) < 4 and prod(tile) > TILE // 4):
    tile = (tile[0] // 2, tile[1]) if tile[0] > tile[1] else (tile[0], tile[1] // 2)
  depth = ROW // core.operand.itemsize
  numbers = {narrowed(x, core.operand): i for i, (x, *_) in enumerate(nest.operands)}
  placed = []
  for x, side, extent in zip(pair, (m, n), block):
    loads = [a.access(u.src[0], u.dtype.itemsize) for u in a.loads(x)]
    inner = side if any(y.strides.get(side) == 1 for y in loads) else k
    outer = k if inner is side else side
    row = extent + 8 if inner is side else depth + 16 // core.operand.itemsize
    whole = depth if inner is k else extent if size(side) % extent == 0 else 1
    placed.append(
      Operand(numbers[x], outer, inner, row, neighbours(loads, inner, math.gcd(whole, 16 // core.operand.itemsize)))
    )
  nbytes = sum(x.row * (depth if x.inner is not k else b) for x, b in zip(placed, block)) * core.operand.itemsize
  stages = max(min(STAGES, nest.room.target.scratch // (2 * nbytes), size(k) // depth), 1)
  return Product(core, loops, block, tile, depth, (placed[0], placed[1]), others, stages)


def blocks(m: int, n: int, others: int, units: int, core: Core) -> tuple[int, int]:
  """Rows and columns of a group's block: as many as make a group for each multiprocessor."""
  rows, columns = (min(BLOCK, max(1 << (x - 1).bit_length(), 32)) for x in (m, n))
  while ceildiv(m, rows) * ceildiv(n, columns) * others < units and max(rows, columns) > 32:
    rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
  return rows, columns


def schedule_product(nest: NestSchedule, p: Product) -> None:
  names = {r: name for name, r in nest.names.items()}
  m, n, k = (names[r] for r in p.loops)
  (rows, columns), core = p.tile, p.core
  nest.narrow(core.name)
  nest.launch(core.lanes * prod(p.block) // prod(p.tile))
  for name, many in zip((m, n), p.block):
    nest.split(name, many, "clamp")
  nest.split(k, p.depth)
  inside = {r: f"{names[r]}.i" for r in p.loops}
  parts = [((inside[x.outer],), (inside[x.inner],)) for x in p.operands]
  nest.pipeline(p.stages)
  nest.stage(*(Staged(x.number, o, i, x.row, (i, o), x.vector) for x, (o, i) in zip(p.operands, parts)))
  for name, tile, many in ((f"{m}.i", rows, core.m), (f"{n}.i", columns, core.n)):
    nest.split(name, tile)
    nest.split(f"{name}.i", many)
  nest.split(f"{k}.i", core.k)
  nest.tensorize(core.name, f"{m}.i.i.i", f"{n}.i.i.i", f"{k}.i.i")
  for name in (f"{m}.i.i.o", f"{n}.i.i.o"):
    if name in nest.names:
      unroll(nest, name)
  nest.bind("groups", *(names[r] for r in p.others), f"{m}.o", f"{n}.o")
  nest.bind("threads", f"{m}.i.o", f"{n}.i.o", f"{m}.i.i.i.lane")
  nest.within("groups", "threads")
  nest.write_out()
