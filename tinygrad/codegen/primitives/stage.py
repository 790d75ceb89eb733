"""`stage`: an operand is computed once for all that read it, into memory; `accumulate`: a reduction in blocks, whose
sums so far are in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinygrad.codegen.analysis.accesses import iteration_of, size
from tinygrad.codegen.primitives import IllegalStep
from tinygrad.codegen.primitives.rebind import IN_REGISTERS
from tinygrad.device.cores import WIDTH, swizzled
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod, round_up
from tinygrad.numerics.products import carries_rest, fast_two_sum
from tinygrad.ops.reduce import neutral
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loop_ids import LoopIds
from tinygrad.uop.rewrite import on_sources, rebuild, substitute_free

LINE = 64  # bytes, of which panels in memory are multiples
Stores = tuple[UOp, ...]
Scheduled = Callable[[Stores], Stores]  # how stores of their own loops are computed


def own_loops(loops: Sequence[UOp], ids: LoopIds) -> dict[UOp, UOp]:
  """Loops that run as these do, but for themselves."""
  return {r: ids.loop(r.src[0], AxisKind.LOOP) for r in loops}


def scratch(dtype: DType, offset: int, ids: LoopIds, nbytes: int = 0) -> UOp:
  """Memory `offset` bytes from the start of a worker's own."""
  return UOp.new(Ops.SCRATCH, dtype, (), (offset, ids.next(), nbytes))


@dataclass(frozen=True, slots=True)
class Panel:
  """What is to be staged: `operand`, with `loops` as the dims of its memory, the outermost first, of which the last
  `within` are a row, of `row` elements if that is more than they have; `offset` bytes from the start of scratch memory.
  `scheduled`: how it is filled. `tile`: it lies as a core reads it from there."""

  operand: UOp
  loops: tuple[UOp, ...]
  within: int
  row: int
  offset: int
  scheduled: Scheduled
  stages: int = 1  # blocks of memory, which iterations of the reduction around it take in turn
  tile: bool = False
  reading: int = 1  # of the blocks, those that may still be read when another is filled

  @property
  def around(self) -> list[UOp]:
    """The loops of reductions in which it is filled."""
    return [r for r in self.operand.loops if r not in self.loops and r.arg[1] is AxisKind.REDUCE]

  @property
  def rows(self) -> tuple[tuple[UOp, ...], tuple[UOp, ...], int]:
    """(the dims of rows, those within one, its elements)"""
    outer, inner = (self.loops[: len(self.loops) - self.within], self.loops[len(self.loops) - self.within :])
    return outer, inner, max(int(prod(map(size, inner))), self.row)

  @property
  def place(self) -> UOp:
    outer, inner, row = self.rows
    at, within = iteration_of(outer), iteration_of(inner)
    if self.tile:
      return affine(swizzled(at.uop(), within.uop(), int(prod(map(size, outer)))), {}).uop()
    return at.scaled(row).plus(within).uop()

  @property
  def nbytes(self) -> int:
    outer, _, row = self.rows
    row = round_up(row, WIDTH) if self.tile else row
    return round_up(int(prod(map(size, outer))) * row * self.operand.dtype.itemsize, LINE)


def stage_panels(kernel: UOp, panels: Sequence[Panel], ids: LoopIds) -> UOp:
  """In the place of operands loads from scratch memory, into which each is computed for all of its loops at once, in
  loops of its own, wherever the other loops that it depends on are open; of several together."""
  effects, memories, made = list[UOp](), list[UOp](), dict[UOp, UOp]()
  for p in panels:
    if wrong := [r for r in p.operand.loops if r not in p.loops and r.arg[1] in IN_REGISTERS]:
      rule = f"loop {min(r.arg[0] for r in wrong)} is one of registers, so what is staged has to span it"
      raise IllegalStep(rule, "stage it first")
    if any(r.src[0].op is not Ops.CONST for r in p.loops):
      raise IllegalStep("memory has a fixed size, and a loop that it is to span has none", "split that loop first")
    own = own_loops(p.loops, ids)
    stages, at = p.stages if len(p.around) == 1 else 1, p.place
    memory = scratch(p.operand.dtype, p.offset, ids, p.nbytes * stages)
    if stages > 1:
      turn = UOp.new(Ops.MOD, dtypes.index, (p.around[0], index(stages)))
      at = affine(at, {}).plus(Affine(0, {turn: 1}), p.nbytes // p.operand.dtype.itemsize).uop()
    where = UOp.new(Ops.INDEX, p.operand.dtype, (memory, at))
    there, value = (substitute_free(x, own) for x in (where, p.operand))
    effects += p.scheduled((UOp.new(Ops.STORE, dtypes.void, (there, value, *own.values())),))
    memories.append(where)
  ahead = max(min(p.stages - p.reading if len(p.around) == 1 else 0 for p in panels), 0)
  for p, where in zip(panels, memories):
    filled = UOp.new(Ops.AFTER, p.operand.dtype, (where.src[0], *effects), ahead or None)
    made[p.operand] = UOp.new(Ops.LOAD, p.operand.dtype, (where.replace(src=(filled, where.src[1])),))
  return rebuild(kernel, on_sources, made)


@dataclass(frozen=True, slots=True)
class Totals:
  """Where in scratch memory sums so far lie: `dims`, the loops on which they depend, the outermost first."""

  dims: tuple[UOp, ...]
  offset: int

  def nbytes(self, f: UOp) -> int:
    return round_up(int(prod(map(size, self.dims))) * f.dtype.itemsize, LINE)


def accumulate(
  kernel: UOp, f: UOp, r: UOp, length: int, totals: Totals, ids: LoopIds, scheduled: Sequence[Scheduled]
) -> UOp:
  """The reduction `f` in blocks of `length` iterations of its loop r, which is taken out of all that f depends on: in
  it a block adds to what there is in memory. `scheduled`: how it is begun, what a block adds, and the rest."""
  dtype, careful = f.dtype, carries_rest(f)
  place = iteration_of(totals.dims).uop()
  zero = UOp.const(dtype, 0)

  def places(own: dict[UOp, UOp]) -> list[UOp]:
    """Of the sums, and of what additions have lost."""
    offsets = [totals.offset + i * totals.nbytes(f) for i in range(1 + careful)]
    return [UOp.new(Ops.INDEX, dtype, (scratch(dtype, o, ids), substitute_free(place, own))) for o in offsets]

  def stores(values: Sequence[UOp], own: dict[UOp, UOp], *around: UOp) -> Stores:
    to = zip(places(own), values)
    return tuple(UOp.new(Ops.STORE, dtypes.void, (w, v, *around, *own.values())) for w, v in to)[::-1]

  own = own_loops(totals.dims, ids)
  effects = [*scheduled[0](stores([neutral(f), zero][: 1 + careful], own))]
  whole, rest = divmod(size(r), length)
  for count, base, n, how in ((whole, 0, length, scheduled[1]), (1, whole * length, rest, scheduled[2])):
    if n == 0 or count == 0:
      continue
    own, block = own_loops(totals.dims, ids), ids.loop(index(count), AxisKind.REDUCE) if count > 1 else None
    inner = {x: ids.loop(index(n) if x is r else x.src[0], AxisKind.REDUCE) for x in f.src[1:]}
    at = Affine(base, {inner[r]: 1} if block is None else {inner[r]: 1, block: n}).uop()
    part = substitute_free(f.src[0], {**inner, r: at, **own})
    part = UOp.new(Ops.FOLD, dtype, (part, *inner.values()), f.arg)
    old = [UOp.new(Ops.LOAD, dtype, (w,)) for w in places(own)]
    values: Stores
    if careful:
      values = fast_two_sum(old[0], UOp.new(Ops.ADD, dtype, (part, old[1])), zero, UOp.new)
    else:
      values = (UOp.new(f.arg, dtype, (old[0], part)),)
    effects += how(stores(values, own, *(() if block is None else (block,))))
  filled = [w.replace(src=(UOp.new(Ops.AFTER, dtype, (w.src[0], *effects)), w.src[1])) for w in places({})]
  reads = [UOp.new(Ops.LOAD, dtype, (w,)) for w in filled]
  total = reads[0] if len(reads) == 1 else UOp.new(Ops.ADD, dtype, tuple(reads))
  return rebuild(kernel, on_sources, {f: total})
