"""`stage`: an operand is computed once for all that read it, into memory; `accumulate`: a reduction in blocks, whose
sums so far are in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tinygrad.codegen.primitives import IllegalStep
from tinygrad.codegen.primitives.split import trips
from tinygrad.device.cores import WIDTH, swizzled
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import round_up
from tinygrad.numerics.products import carries_rest, fast_two_sum
from tinygrad.ops.reduce import neutral
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loops import LoopIds, extent, iteration_of, iterations, static
from tinygrad.uop.rewrite import on_sources, rebuild, substitute_free

LINE = 64  # bytes, of which panels in memory are multiples
Stores = tuple[UOp, ...]
Limits = Mapping[UOp, UOp]  # by loop, from which iteration on nothing is left to do (`clip_loops`)
Scheduled = Callable[[Stores, Limits], Stores]  # how stores of their own loops are computed


def scratch(dtype: DType, offset: int, ids: LoopIds, nbytes: int) -> UOp:
  """`nbytes` of memory, `offset` bytes from the start of a worker's own."""
  return UOp.new(Ops.SCRATCH, dtype, (), (offset, ids.next(), nbytes))


@dataclass(frozen=True, slots=True)
class Panel:
  """What is to be staged: `operand`, with the loops `outer` as the dims of its memory, the outermost first, and then
  those of a row, `inner`, of `row` elements if that is more than they have; `offset` bytes from the start of scratch
  memory. `scheduled`: how it is filled. `tile`: it lies as a core reads it from there."""

  operand: UOp
  outer: tuple[UOp, ...]
  inner: tuple[UOp, ...]
  row: int
  offset: int
  scheduled: Scheduled
  stages: int = 1  # blocks of memory, which iterations of the one reduction around it take in turn
  tile: bool = False
  reading: int = 1  # of the blocks, those that may still be read when another is filled

  @property
  def loops(self) -> tuple[UOp, ...]:
    return *self.outer, *self.inner

  @property
  def around(self) -> list[UOp]:
    """The loops of reductions in which it is filled."""
    return [r for r in self.operand.loops if r not in self.loops and r.arg[1] is AxisKind.REDUCE]

  @property
  def elements(self) -> tuple[int, int]:
    """(rows, elements of each)"""
    return iterations(self.outer), max(iterations(self.inner), self.row)

  @property
  def place(self) -> UOp:
    at, within, (rows, row) = iteration_of(self.outer), iteration_of(self.inner), self.elements
    if self.tile:
      return affine(swizzled(at.uop(), within.uop(), rows), {}).uop()
    return at.scaled(row).plus(within).uop()

  @property
  def nbytes(self) -> int:
    rows, row = self.elements
    return round_up(rows * (round_up(row, WIDTH) if self.tile else row) * self.operand.dtype.itemsize, LINE)


def pipeline_of(filled: UOp) -> tuple[int, int]:
  """Of an AFTER: in how many blocks of memory it is filled, and how many iterations ahead."""
  return filled.arg or (1, 0)


def stage_panels(kernel: UOp, panels: Sequence[Panel], ids: LoopIds) -> UOp:
  """In the place of operands loads from scratch memory, into which each is computed for all of its loops at once, in
  loops of its own, wherever the other loops that it depends on are open; of several together."""
  effects, memories, made = list[UOp](), list[UOp](), dict[UOp, UOp]()
  for p in panels:
    if not all(map(static, p.loops)):
      raise IllegalStep("memory has a fixed size, and a loop that it is to span has none", "split that loop first")
    own = ids.like(p.loops, AxisKind.LOOP)
    at, memory = p.place, scratch(p.operand.dtype, p.offset, ids, p.nbytes * p.stages)
    if p.stages > 1:
      turn = UOp.new(Ops.MOD, dtypes.index, (p.around[0], index(p.stages)))
      at = affine(at, {}).plus(Affine(0, {turn: 1}), p.nbytes // p.operand.dtype.itemsize).uop()
    where = UOp.new(Ops.INDEX, p.operand.dtype, (memory, at))
    there, value = (substitute_free(x, own) for x in (where, p.operand))
    effects += p.scheduled((UOp.new(Ops.STORE, dtypes.void, (there, value, *own.values())),), {})
    memories.append(where)
  pipeline = (panels[0].stages, max(panels[0].stages - panels[0].reading, 0)) if panels[0].stages > 1 else None
  for p, where in zip(panels, memories):
    filled = UOp.new(Ops.AFTER, p.operand.dtype, (where.src[0], *effects), pipeline)
    made[p.operand] = UOp.new(Ops.LOAD, p.operand.dtype, (where.replace(src=(filled, where.src[1])),))
  return rebuild(kernel, on_sources, made)


def bytes_of_sums(f: UOp, dims: Sequence[UOp]) -> int:
  """Of a result of the reduction `f` for all iterations of these loops."""
  return round_up(iterations(dims) * f.dtype.itemsize, LINE)


def added(f: UOp, old: Sequence[UOp], part: UOp) -> Stores:
  """What a reduction amounts to with one part more, and what that addition has lost, if that is kept."""
  if len(old) == 1:
    return (UOp.new(f.arg, f.dtype, (old[0], part)),)
  return fast_two_sum(old[0], UOp.new(Ops.ADD, f.dtype, (part, old[1])), UOp.const(f.dtype, 0), UOp.new)


def accumulate(
  kernel: UOp,
  f: UOp,
  r: UOp,
  length: int,
  limit: UOp | None,
  dims: Sequence[UOp],
  offset: int,
  ids: LoopIds,
  how: Sequence[Scheduled],
) -> UOp:
  """The reduction `f` in blocks of `length` iterations of its loop r, which is taken out of all that f depends on: in
  it a block adds to what there is in memory, `offset` bytes from its start, by the loops `dims` on which f depends, the
  outermost first. `limit`: from which iteration of r on nothing is left to do. `how`: how it is begun, what a block
  adds, and the rest."""
  dtype, careful = f.dtype, carries_rest(f)
  place = iteration_of(dims).uop()

  def places(own: dict[UOp, UOp]) -> list[UOp]:
    """Of the sums, and of what additions have lost."""
    nbytes = bytes_of_sums(f, dims)
    memory = [scratch(dtype, offset + i * nbytes, ids, nbytes) for i in range(1 + careful)]
    return [UOp.new(Ops.INDEX, dtype, (m, substitute_free(place, own))) for m in memory]

  def stores(values: Sequence[UOp], own: dict[UOp, UOp], *around: UOp) -> Stores:
    to = zip(places(own), values)
    return tuple(UOp.new(Ops.STORE, dtypes.void, (w, v, *around, *own.values())) for w, v in to)[::-1]

  own = ids.like(dims, AxisKind.LOOP)
  effects = [*how[0](stores([neutral(f), UOp.const(dtype, 0)][: 1 + careful], own), {})]
  whole, rest = divmod(extent(r), length)
  for count, base, n, scheduled in ((whole, 0, length, how[1]), (1, whole * length, rest, how[2])):
    if n == 0 or count == 0:
      continue
    own, end = ids.like(dims, AxisKind.LOOP), trips(limit, index(count), index(0), n)
    block = ids.loop(end, AxisKind.REDUCE) if count > 1 else None
    start = Affine(base, {} if block is None else {block: n})
    inner = {x: ids.loop(index(n) if x is r else x.src[0], AxisKind.REDUCE) for x in f.src[1:]}
    at = start.plus(Affine(0, {inner[r]: 1})).uop()
    part = substitute_free(f.src[0], {**inner, r: at, **own})
    part = UOp.new(Ops.FOLD, dtype, (part, *inner.values()), f.arg)
    old = [UOp.new(Ops.LOAD, dtype, (w,)) for w in places(own)]
    left = {} if limit is None else {inner[r]: affine(limit, {}).plus(start, -1).uop()}
    effects += scheduled(stores(added(f, old, part), own, *(() if block is None else (block,))), left)
  filled = [w.replace(src=(UOp.new(Ops.AFTER, dtype, (w.src[0], *effects)), w.src[1])) for w in places({})]
  reads = [UOp.new(Ops.LOAD, dtype, (w,)) for w in filled]
  total = reads[0] if len(reads) == 1 else UOp.new(Ops.ADD, dtype, tuple(reads))
  return rebuild(kernel, on_sources, {f: total})
