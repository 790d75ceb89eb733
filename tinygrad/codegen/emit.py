"""Emission: a kernel's loops are opened in the planned order, and every value is emitted once, in the outermost loop in
which it is known.

Linear form: RANGE … ENDRANGE enclose loop bodies; `INDEX(pointer, offset[, mask])` of a vector dtype is contiguous
where the offset is scalar, a gather where the offset is a vector; ACC is a register, set by STORE and read by LOAD;
FOLD without ranges reduces the lanes of a vector; IDIV and MOD truncate, by what is never 0, and have arg True where
both operands are known to be non-negative.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tinygrad.codegen.plan import (
  CHUNK,
  LoopAround,
  LoopNest,
  LoopPlan,
  Nests,
  Region,
  Stage,
  Tile,
  is_inlined,
  of_products,
  regions,
  sum_blocks,
)
from tinygrad.codegen.values import Env, LoopScope, Values
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod
from tinygrad.ops.reduce import identity_element
from tinygrad.uop import AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, affine, index
from tinygrad.uop.loop_ids import LoopIds
from tinygrad.uop.rewrite import substitute_free

# FOLDs that share loops, an environment for each element of their tile, accumulators by FOLD, element and copy
Sums = tuple[list[UOp], list[Env], list[list[list[UOp]]]]
PlanOf = Callable[[tuple[UOp, ...], int], LoopPlan]  # of stores, and how many bytes of scratch memory are taken
IN_TILE = (AxisKind.UPCAST, AxisKind.VECTOR)
WRITTEN_OUT = 64  # steps of a short reduction, over all of its tile, beyond which it is a loop


class Emitter(Values):
  """Emits the nests of one kernel; `plan_of` decides about the loops of each, and those that pack staged operands."""

  def __init__(self, plan_of: PlanOf, ids: LoopIds) -> None:
    super().__init__(ids)
    self.plan_of = plan_of
    self.within = LoopNest(())  # what is being emitted
    self.floor = 0  # how many of the open scopes are never left: those of the grid
    self.totals: dict[UOp, UOp] = {}  # accumulator -> the one that takes its blocks
    self.acc_home: dict[UOp, LoopScope] = {}
    self.folds: dict[tuple[UOp, ...], list[UOp]] = {}  # of the leaf, by their ranges
    self.fold_numbers: dict[UOp, int] = {}
    self.folds_memo: dict[UOp, int] = {}

  # ---- loops

  def trips(self, r: UOp, count: UOp, base: Affine, step: int) -> UOp:
    """So many iterations of `step` of the range's from `base` on, or less, where the rest is idle."""
    if (end := self.within.ends.get(r)) is None:
      return count
    left = affine(end, self.affine_memo).scaled(CHUNK).plus(base, -1).plus(Affine(step - 1)).uop()
    left = UOp.new(Ops.MAX, dtypes.index, (left, index(0)))
    return UOp.new(Ops.MIN, dtypes.index, (UOp.new(Ops.IDIV, dtypes.index, (left, index(step))), count))

  def split(self, r: UOp, region: Region, counter: UOp) -> tuple[UOp, UOp | None, UOp | None]:
    """(the value of `r` within the region, its UPCAST range, its VECTOR range), the latter two registered."""
    tile = region.tile
    at = affine(counter, self.affine_memo).scaled(tile.size).plus(affine(region.base, self.affine_memo))
    copies = lanes = None
    if tile.copies > 1:
      copies = self.ids.loop(index(tile.copies), AxisKind.UPCAST)
      # copies of a vector vary fastest: what is broadcast for a row is in use for a moment only
      self.unrolled.insert(len(self.unrolled) if tile.lanes > 1 else 0, copies)
      self.unrolled_bits |= self.bit(copies)
      at = at.plus(Affine(0, {copies: tile.lanes}))
    if tile.lanes > 1:
      lanes = self.ids.loop(index(tile.lanes), AxisKind.VECTOR)
      self.vector_bits |= self.bit(lanes)
      at = at.plus(Affine(0, {lanes: 1}))
    out = at.uop()
    if lanes is not None and region.masked:
      self.limits[lanes] = UOp.new(Ops.CMPLT, dtypes.bool, (out, r.src[0]))
    return out, copies, lanes

  def forget(self, copies: UOp | None, lanes: UOp | None) -> None:
    """A region ends: its tile's ranges no longer matter."""
    if copies is not None:
      self.unrolled.remove(copies)
    if lanes is not None:
      self.limits.pop(lanes, None)

  def environments(self, deps: int) -> Iterator[Env]:
    rs = self.ups(deps)
    for numbers in itertools.product(*(range(int(r.src[0].arg)) for r in rs)):
      yield dict(zip(rs, numbers, strict=True))

  def nest(self, stores: Sequence[UOp], plan: LoopPlan, level: int = 0, mapping: dict[UOp, UOp] | None = None) -> None:
    """The loops of `plan.order[level:]` around `stores`; `mapping` gives the ranges already split."""
    mapping = mapping or {}
    for stage in plan.stages:
      if stage.level == level:
        stores = self.pack(stores, stage, mapping)
    if level == len(plan.order):
      self.leaf([substitute_free(s, mapping) for s in stores], plan)
      return
    r = plan.order[level]
    for region in regions(r.src[0], plan.tiles.get(r, Tile())):
      trips = self.trips(r, region.count, affine(region.base, self.affine_memo), region.tile.size)
      with self.loop(trips, AxisKind.LOOP) as counter:
        at, copies, lanes = self.split(r, region, counter)
        self.nest(stores, plan, level + 1, {**mapping, r: at})
        self.forget(copies, lanes)

  def scratch(self, dtype: DType, offset: int, nbytes: int = 0) -> UOp:
    """Scratch memory `offset` bytes from its start (`nbytes`, where it has to be declared). It is filled anew in every
    loop that is open now, so what is read from it depends on them all."""
    memory = UOp.new(Ops.SCRATCH, dtype, (), (offset, self.ids.next(), nbytes))
    self.deps_memo[memory] = self.opened()
    return memory

  def opened(self) -> int:
    """The loops that are open now, as bits."""
    return sum(self.bits[s.out[0]] for s in self.stack[1:])

  def pack(self, stores: Sequence[UOp], stage: Stage, mapping: dict[UOp, UOp]) -> list[UOp]:
    """Emits the loops that compute a staged operand; gives the stores with loads from scratch memory in its place."""
    dtype = stage.operand.dtype
    where = UOp.new(Ops.INDEX, dtype, (self.scratch(dtype, stage.offset), stage.place))
    inside, loops = dict(mapping), []
    for r in stage.ranges:
      if r not in mapping:
        loops.append(r)
        continue
      at = affine(mapping[r], self.affine_memo)  # its loop is open: the current tile, as far as the range goes
      tile = Affine(0, {x: c for x, c in at.terms.items() if x.op is Ops.RANGE and x.arg[1] in IN_TILE})
      start = at.plus(tile, -1)
      extent = 1 + tile.bounds()[1]
      if not start.terms:
        extent = min(extent, int(r.src[0].arg) - start.const)
      t = self.ids.loop(index(extent), AxisKind.LOOP)
      inside[r] = start.plus(Affine(0, {t: 1})).uop()
      loops.append(t)
    copy = substitute_free(UOp.new(Ops.STORE, dtypes.void, (where, stage.operand)), inside)
    copy = UOp.new(Ops.STORE, dtypes.void, (*copy.src, *loops))
    self.nest([copy], self.planned([copy], 1 << 62))
    return [substitute_free(s, {stage.operand: UOp.new(Ops.LOAD, dtype, (where,))}) for s in stores]

  def planned(self, stores: Sequence[UOp], taken: int) -> LoopPlan:
    plan = self.plan_of(tuple(stores), taken)
    return plan.in_chunks(self.within.ends) if self.within.ends else plan

  def nests(self, of: Nests) -> None:
    """One after the other; what each has written, those after it read anew."""
    for x in of:
      if isinstance(x, LoopAround):
        with self.loop(x.count, AxisKind.LOOP) as counter:
          self.nests(x.body(counter))
      else:
        self.loop_nest(x)
        self.forget_memory()

  def loop_nest(self, within: LoopNest) -> None:
    """Stores that share their ranges, in planned loops; if the plan says so, with their reduction in blocks around."""
    self.within = within
    stores: Sequence[UOp] = within.stores
    for memory in within.memory:  # the first that gets it stands in just the loops in which it is filled
      self.deps_memo.setdefault(memory, self.opened())
    plan = self.planned(stores, within.taken)
    if plan.block is None:
      self.nest(stores, plan)
      return
    b, dtype, zero = plan.block, plan.block.fold.dtype, UOp.const(plan.block.fold.dtype, 0)
    careful = carries_rest(b.fold)
    taken = b.offset + b.nbytes * (1 + careful)

    def where(number: int) -> UOp:
      """Of what the blocks add up to; number 1: of what these additions have lost."""
      return UOp.new(Ops.INDEX, dtype, (self.scratch(dtype, b.offset + number * b.nbytes), b.place))

    def kept() -> list[UOp]:
      return [UOp.new(Ops.LOAD, dtype, (where(i),)) for i in range(1 + careful)]

    def write(*values: UOp) -> None:
      stores = [UOp.new(Ops.STORE, dtypes.void, (where(i), v, *b.ranges)) for i, v in enumerate(values)][::-1]
      self.nest(stores, replace(self.planned(stores, taken), block=None))

    write(*[UOp.const(dtype, identity_element(b.fold.arg, dtype)), zero][: 1 + careful])
    whole, rest = divmod(int(b.range.src[0].arg), b.length)
    for count, base, length in ((whole, 0, b.length), (1, whole * b.length, rest)):
      if length == 0:
        continue
      with self.loop(index(count), AxisKind.REDUCE) as counter:
        r = self.ids.loop(index(length), AxisKind.REDUCE)
        at = Affine(base, {r: 1}).plus(affine(counter, self.affine_memo), b.length).uop()
        part = substitute_free(b.fold.src[0], {b.range: at})
        part = UOp.new(Ops.FOLD, dtype, (part, *(r if x is b.range else x for x in b.fold.src[1:])), b.fold.arg)
        old = kept()
        if careful:
          write(*fast_two_sum(old[0], UOp.new(Ops.ADD, dtype, (part, old[1])), zero, UOp.new))
        else:
          write(UOp.new(b.fold.arg, dtype, (old[0], part)))
    total = functools.reduce(lambda x, y: UOp.new(Ops.ADD, dtype, (x, y)), kept())
    stores = [substitute_free(s, {b.fold: total}) for s in stores]
    self.nest(stores, replace(self.planned(stores, taken), block=None))

  def leaf(self, stores: Sequence[UOp], plan: LoopPlan) -> None:
    self.folds = {}
    for f in dict.fromkeys(v for s in stores for v in self.value_order(s.src[1]) if v.op is Ops.FOLD):
      self.folds.setdefault(f.src[1:], []).append(f)
    self.plan = plan
    for env in self.environments(self.deps(UOp.sink(*stores))):
      for s in stores:
        self.store(s, env)

  # ---- reductions

  def together(self, f: UOp) -> list[UOp]:
    """`f` and the FOLDs over the same ranges that can share its loop: none needs another's result."""
    group, members, below = [f], self.fold_bit(f), self.folds_in(f)
    for g in self.folds.get(f.src[1:], ()):
      if below & self.fold_bit(g) or self.deps(g) != self.deps(f) or is_inlined(g):
        continue
      if not self.folds_in(g) & members:
        group.append(g)
        members |= self.fold_bit(g)
        below |= self.folds_in(g)
    return group

  def fold_bit(self, f: UOp) -> int:
    return 1 << self.fold_numbers.setdefault(f, len(self.fold_numbers))

  def folds_in(self, u: UOp) -> int:
    """The FOLDs that a value is made of, itself included, as bits."""
    for v in u.toposort(lambda v: v not in self.folds_memo):
      found = self.fold_bit(v) if v.op is Ops.FOLD else 0
      for s in v.src:
        found |= self.folds_memo[s]
      self.folds_memo[v] = found
    return self.folds_memo[u]

  def fold(self, f: UOp, env: Env) -> None:
    """Emits the reduction `f` for all elements of its tile, in the outermost loop that knows its operands."""
    deps = self.deps(f)
    level = max((self.floor, *(i for i, s in enumerate(self.stack) if i and self.bits[s.out[0]] & deps)))
    steps = prod(int(r.src[0].vmax) for r in (*self.ups(deps), *f.src[1:]))
    with self.outside(level):
      if is_inlined(f) and steps <= WRITTEN_OUT:
        self.inline(f, deps)
      else:
        self._fold(self.together(f), deps)

  def inline(self, f: UOp, deps: int) -> None:
    """A short reduction, written out."""
    places = itertools.product(*(map(index, range(int(r.src[0].arg))) for r in f.src[1:]))
    values = [substitute_free(f.src[0], dict(zip(f.src[1:], at, strict=True))) for at in places]
    rs = self.ups(deps)
    for env in list(self.environments(deps)):
      out = UOp.const(f.dtype, identity_element(f.arg, f.dtype))
      for i, v in enumerate(values):
        x = self.value(v, env)
        out = x if i == 0 else self.apply(UOp.new(f.arg, f.dtype, (f, f)), [out, x])
      self.memo[f if not rs else (f, tuple(env[r] for r in rs))] = (out, self.home.get(out, self.root))

  def register(self, f: UOp, dtype: DType, home: LoopScope) -> UOp:
    """An accumulator of the reduction `f`, which starts in `home`."""
    acc = UOp.new(Ops.ACC, dtype, (), self.ids.next())
    home.out.extend((acc, UOp.new(Ops.STORE, dtypes.void, (acc, UOp.const(f.dtype, identity_element(f.arg, f.dtype))))))
    self.acc_home[acc] = home
    return acc

  def _fold(self, group: list[UOp], deps: int) -> None:
    ranges = group[0].src[1:]
    order, tile = self.plan.folds.get(ranges, (ranges, Tile()))
    if tile.lanes > 1 and deps & self.vector_bits:
      tile = Tile(1, 1)
    outer = list(self.environments(deps))

    def register(f: UOp) -> UOp:
      return self.register(f, f.dtype.vec(max(tile.lanes, self.lanes_of(f))), home)

    home = self.stack[-1]
    reserved = [[[register(f) for _ in range(tile.copies)] for _ in outer] for f in group]
    self._fold_loops((group, outer, reserved), list(order), tile, {})
    rs = self.ups(deps)
    results: list[tuple[UOp, object, UOp]] = []  # (FOLD, key of its memo, value)
    for g, f in enumerate(group):
      for e, env in enumerate(outer):
        used = [*reserved[g][e], *(self.totals[a] for a in reserved[g][e] if a in self.totals)]
        read = [self.put(UOp.new(Ops.LOAD, a.dtype, (a,))) for a in used]
        while len(read) > 1:  # pairwise
          pairs = [read[i : i + 2] for i in range(0, len(read), 2)]
          read = [self.node(f.arg, p[0].dtype, tuple(p), None, home) if len(p) > 1 else p[0] for p in pairs]
        out = self.node(Ops.FOLD, f.dtype, (read[0],), f.arg, home) if tile.lanes > 1 else read[0]
        results.append((f, f if not rs else (f, tuple(env[r] for r in rs)), out))
    for key, out in self.across(results):
      self.memo[key] = (out, home)

  def across(self, results: Sequence[tuple[UOp, object, UOp]]) -> Iterator[tuple[object, UOp]]:
    """What reductions amount to, given what each thread has."""
    return ((key, out) for _, key, out in results)

  def _fold_loops(self, sums: Sums, order: list[UOp], tile: Tile, mapping: dict[UOp, UOp]) -> None:
    if len(order) > 1:
      with self.loop(order[0].src[0], AxisKind.REDUCE) as counter:
        if order[0].src[0].op is not Ops.CONST or order[0].src[0].arg > 0:
          self._fold_loops(sums, order[1:], tile, {**mapping, order[0]: counter})
      return
    r, group = order[0], sums[0]
    blocked = group[0].dtype in (dtypes.float32, dtypes.float16) and any(f.arg is Ops.ADD for f in group)
    for region in regions(r.src[0], tile):
      for blocks, part in sum_blocks(region, group[0]) if blocked else ((1, region),):
        base, length = affine(part.base, self.affine_memo), tile.size * (int(part.count.arg) if blocks > 1 else 1)
        times = self.trips(r, index(blocks), base, length) if blocks > 1 else index(1)
        with self.loop(times, AxisKind.REDUCE) as block:
          base = base.plus(affine(block, self.affine_memo), length)
          with self.loop(self.trips(r, part.count, base, part.tile.size), AxisKind.REDUCE) as counter:
            at, copies, lanes = self.split(r, part, counter)
            if block.op is Ops.RANGE:
              at = Affine(0, {block: length}).plus(affine(at, self.affine_memo)).uop()
            values = [self.along(f.src[0], {**mapping, r: at}) for f in group]
            exists = self.limits.get(lanes) if lanes is not None else None
            self.accumulate_tile(sums, values, (copies, part.tile.copies), exists)
            self.forget(copies, lanes)
          if block.op is Ops.RANGE:
            self.flush(sums)

  def accumulate_tile(self, sums: Sums, values: list[UOp], copies: tuple[UOp | None, int], exists: UOp | None) -> None:
    """One step of the reductions of `sums`, for all of their tile; `copies`: its UPCAST range, and how many."""
    group, outer, registers = sums
    for c in range(copies[1]):
      for e, env in enumerate(outer):
        here = env if copies[0] is None else {**env, copies[0]: c}
        mask = None if exists is None else self.emit(exists, here)
        if mask is not None and mask.op is Ops.CONST and not mask.arg:  # a copy beyond the end, in every lane
          continue
        for g, f in enumerate(group):
          x = values[g]
          terms = [self.value(s, here) for s in (x.src if x.op is Ops.DOT else (x,))]
          self.accumulate(x.op if x.op is Ops.DOT else f.arg, registers[g][e][c], terms, mask, x.arg)

  def accumulate(self, op: Ops, acc: UOp, terms: Sequence[UOp], mask: UOp | None, arg: object = None) -> None:
    """acc = op(acc, *terms), in the lanes that exist."""
    terms = [self.broadcast(x, acc.dtype.count) for x in terms]
    old = self.put(UOp.new(Ops.LOAD, acc.dtype, (acc,)))
    new = self.put(UOp.new(op, acc.dtype, (old, *terms), arg if op is Ops.DOT else None))
    if mask is not None and mask.op is not Ops.CONST:
      new = self.put(UOp.new(Ops.WHERE, acc.dtype, (mask, new, old)))
    self.put(UOp.new(Ops.STORE, dtypes.void, (acc, new)))

  def flush(self, sums: Sums) -> None:
    """Adds the accumulators of a block to totals. They start anew: a sum that carries one, with the rest."""
    for f, of_group in zip(sums[0], sums[2], strict=True):
      for acc in (a for of_tile in of_group for a in of_tile):
        if (total := self.totals.get(acc)) is None:
          total = self.totals[acc] = self.register(f, acc.dtype, self.acc_home[acc])
        old, x = (self.put(UOp.new(Ops.LOAD, acc.dtype, (a,))) for a in (total, acc))
        rest = self.broadcast(UOp.const(f.dtype, identity_element(f.arg, f.dtype)), acc.dtype.count)
        if carries_rest(f):
          new, rest = fast_two_sum(old, x, rest, lambda op, dtype, src: self.put(UOp.new(op, dtype, src)))
        else:
          new = self.put(UOp.new(f.arg, acc.dtype, (old, x)))
        self.put(UOp.new(Ops.STORE, dtypes.void, (total, new)))
        self.put(UOp.new(Ops.STORE, dtypes.void, (acc, rest)))


def carries_rest(f: UOp) -> bool:
  """Whether what the additions of blocks lose is kept: of a sum of floats, if not of products."""
  return f.arg is Ops.ADD and dtypes.is_float(f.dtype) and not of_products(f)


def fast_two_sum(total: UOp, x: UOp, zero: UOp, new: Callable[[Ops, DType, tuple[UOp, ...]], UOp]) -> tuple[UOp, UOp]:
  """total + x, and what that has lost, if it is finite, else `zero` (T. Dekker). `new` makes the nodes."""
  both = new(Ops.ADD, x.dtype, (total, x))
  lost = new(Ops.SUB, x.dtype, (x, new(Ops.SUB, x.dtype, (both, total))))
  finite = new(Ops.CMPEQ, dtypes.bool.vec(x.dtype.count), (lost, lost))
  return both, new(Ops.WHERE, x.dtype, (finite, lost, zero))
