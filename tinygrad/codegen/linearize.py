"""Linear code of a kernel: a list of stores, each in its loops. Stores beside each other whose loops begin alike share
these. Nothing is decided here: the kinds of loops, their order and what is staged stand in the kernel.

Linear form: RANGE … ENDRANGE enclose loop bodies; `INDEX(pointer, offset[, mask])` of a vector dtype is contiguous
where the offset is scalar, a gather where the offset is a vector; ACC is a register, set by STORE and read by LOAD;
FOLD without ranges reduces the lanes of a vector; IDIV and MOD truncate, by what is never 0, and have arg True where
both operands are known to be non-negative."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tinygrad.codegen.expressions import Env, Key, LoopScope, Values
from tinygrad.codegen.primitives.rebind import IN_REGISTERS
from tinygrad.codegen.primitives.stage import pipeline_of
from tinygrad.device import Target
from tinygrad.device.cores import Core, SwizzledTile
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import prod
from tinygrad.numerics.fragments import row_of_eight
from tinygrad.numerics.lanes import running
from tinygrad.numerics.own_memory import is_own
from tinygrad.numerics.products import beginnings, carries_rest, fast_two_sum, of_products, rests
from tinygrad.ops.reduce import neutral
from tinygrad.uop import RANGES_FROM, AxisKind, Ops, UOp
from tinygrad.uop.affine import Affine, index
from tinygrad.uop.indexing import gated, within_bounds
from tinygrad.uop.loops import LoopIds, extent, iterations, static
from tinygrad.uop.rewrite import substitute_free

# iterations of one accumulator after which a long sum of floats goes on in another, and one of products, whose many
# accumulators take longer to change
SUM_BLOCK, PRODUCTS_BLOCK = 48, 384
Pending = tuple[UOp, tuple[UOp, ...]]  # a store, and its loops that are not open yet
Result = tuple[UOp, list[Key], UOp]  # a FOLD, what its result is known as, and that
Totals = dict[UOp, UOp]  # accumulator -> the one that takes its blocks
AT_ONCE = 4  # reductions of which groups of a cluster tell one another
THREADS = AxisKind.GLOBAL, AxisKind.CLUSTER, AxisKind.LOCAL
COPIES = AxisKind.UPCAST, AxisKind.CHAIN
Element = tuple[Env, Env]  # of a tile: of what is around a reduction, and of what is unrolled of itself


def linear_code(kernel: UOp, target: Target) -> list[UOp]:
  """The list begins with the kernel's whole signature (params, variables)."""
  out = Linearizer(kernel, target)
  for u in signature(kernel):
    out.values.node(u.op, u.dtype, (), u.arg)
  out.effects([(s, s.src[2:] if s.op is Ops.STORE else s.src) for s in kernel.src])
  return out.values.root.out


def signature(ast: UOp) -> list[UOp]:
  """What a kernel is called with: the PARAMs by slot, then the VARIABLEs by name, `_device_num` among them."""
  nodes = ast.toposort()
  params = sorted((u for u in nodes if u.op is Ops.PARAM and u.arg.given), key=lambda u: u.arg.slot)
  return params + sorted((u for u in nodes if u.op is Ops.VARIABLE), key=lambda u: u.arg)


def as_async_copy(u: UOp) -> UOp:
  """A store of 4, 8 or 16 bytes that were loaded together, or are 0, as one that takes place later."""
  if u.op is not Ops.STORE or u.src[1].dtype.count * u.src[1].dtype.itemsize not in (4, 8, 16):
    return u
  parts = u.src[1].src if u.src[1].op is Ops.VECTORIZE else u.src[1:]
  whole = parts[0].src[0] if parts[0].op is Ops.EXTRACT else parts[0]
  picks = [x.src for x in parts if x.op is Ops.EXTRACT and x.arg == (parts.index(x),)]
  others = [y for x in whole.src[1:] for y in (x.src if x.op is Ops.VECTORIZE else (x,))]
  loaded = whole.op is Ops.LOAD and whole.dtype is u.src[1].dtype and whole.src[0].src[0].op is Ops.PARAM
  together = parts == (whole,) or picks == [(whole,)] * len(parts)
  if not loaded or not together or any(y is not UOp.const(y.dtype, 0) for y in others):
    return u
  return UOp.new(Ops.COPY, dtypes.void, (u.src[0], whole.src[0]))


class Sums(NamedTuple):
  """The reductions that share their loops, and their accumulators: of each, by element of the tile."""

  group: list[UOp]
  elements: list[Element]
  accumulators: list[list[UOp]]
  home: LoopScope
  totals: Totals


class Linearizer:
  """Opens a kernel's loops, and emits what is stored and reduced in them."""

  def __init__(self, kernel: UOp, target: Target) -> None:
    self.ids, self.target = LoopIds(kernel), target
    self.values = v = Values(self.ids, self.fold, self.fill, target.threads)
    self.floor = 0  # how many of the open scopes are those of a grid, which no thread leaves
    self.folds: dict[tuple[UOp, ...], list[UOp]] = {}  # of the stores that are being emitted, by their ranges
    self.told = set[UOp]()  # what lanes have written since they met: others need not know of it
    self.beside = 0  # depth of the innermost scope in which stores without a common loop follow one another
    # effects that something read waits for -> where they were emitted, and of which memory they are made
    self.filled: dict[tuple[UOp, ...], tuple[LoopScope, frozenset[UOp]]] = {}
    # of groups that have told one another something: in which part of memory, and where they meet when all have read it
    self.turn, self.met = 1, (v.stack[0], 0)
    self.fresh = set[UOp]()  # accumulators whose first term is all they have
    self.late: dict[tuple[UOp, ...], Core] = {}  # accumulators of products that may still be under way
    nodes = kernel.toposort()
    loops = [r for u in nodes if u.op in RANGES_FROM for r in u.src[RANGES_FROM[u.op] :]]
    self.rest_of, self.begins = rests(nodes), beginnings(nodes)
    v.unrolled = list(dict.fromkeys(r for r in loops if r.arg[1] in COPIES))
    v.unrolled_bits = sum(map(v.bit, v.unrolled))
    v.vectors = [r for r in dict.fromkeys(loops) if r.arg[1] is AxisKind.VECTOR]
    if len(kernel.src) > 1:
      v.written = {s.src[0].src[0] for s in kernel.src if s.op is Ops.STORE}
    for s in kernel.src:
      if s.op is Ops.STORE and (memory := s.src[0].src[0]).op is Ops.SCRATCH:  # anew in each iteration of these loops
        for r in s.src[2:]:
          v.deps_memo[memory] = v.deps_memo.get(memory, 0) | v.bit(r) * (r.arg[1] not in IN_REGISTERS)
    self.ahead = {u.src[1:]: u for u in nodes if u.op is Ops.AFTER and pipeline_of(u)[1]}
    self.taken = max((u.arg[0] + u.arg[2] for u in nodes if u.op is Ops.SCRATCH), default=0)  # bytes of scratch memory

  # ---- loops

  def effects(self, stores: Sequence[Pending]) -> None:
    """Stores in their order; neighbours share the loops that they have next in common."""
    v = self.values
    found = [(r, list(group)) for r, group in itertools.groupby(stores, self.next_loop)]
    runs = [(r, self.runs(some) if isinstance(r, tuple) and some[1:] else [some]) for r, some in found]
    groups = [(r, some) for r, parts in runs for some in parts]
    before, self.beside = self.beside, len(v.stack) - 1 if len(groups) > 1 else self.beside
    for r, group in groups:
      written = {s.src[0].src[0] for s, _ in group if s.op is Ops.STORE}
      if isinstance(r, tuple) and r[0].op is Ops.BARRIER:
        self.barrier("memory")
      elif isinstance(r, tuple):
        self.leaf([s for s, _ in group])
      else:
        with v.iterations(r):
          self.floor += r.arg[1] in THREADS
          self.effects([(s, loops[1:]) for s, loops in group])
          self.floor -= r.arg[1] in THREADS
      if len(groups) > 1:
        v.forget_memory(written)
        self.filled = {key: f for key, f in self.filled.items() if f[1].isdisjoint(written)}
    self.beside = before

  def runs(self, stores: Sequence[Pending]) -> Iterator[list[Pending]]:
    """Of stores of one tile, those that read nothing that others before them have written."""
    run, written = list[Pending](), set[UOp]()
    for s, loops in stores:
      if run and not written.isdisjoint(self.values.reads(UOp.sink(s.src[1], *s.src[0].src[1:]))):
        yield run
        run, written = [], set()
      run.append((s, loops))
      written.add(s.src[0].src[0])
    yield run

  def next_loop(self, pending: Pending) -> UOp | tuple[UOp, ...]:
    """The next loop; where there is none, what tells those that are computed together from others."""
    store, loops = pending
    return loops[0] if loops and loops[0].arg[1] not in IN_REGISTERS else loops or (store,)

  def environments(self, ranges: Sequence[UOp], *kinds: AxisKind) -> Iterator[Env]:
    """The numbers of all copies, of those of the ranges that are of these kinds."""
    copied = [r for r in ranges if r.arg[1] in (kinds or COPIES)]
    for numbers in itertools.product(*(range(extent(r)) for r in copied)):
      yield dict(zip(copied, numbers, strict=True))

  def leaf(self, stores: Sequence[UOp]) -> None:
    """Stores of the same tile, without loops around them but those that are open."""
    v, before = self.values, self.folds
    self.folds = {}
    for f in dict.fromkeys(u for s in stores for u in v.value_order(s.src[1]) if u.op is Ops.FOLD):
      self.folds.setdefault(f.src[1:], []).append(f)
    tile = list(self.environments(stores[0].src[2:]))
    shared = [f for over, some in self.folds.items() if any(r.arg[1] in THREADS for r in over) for f in some]
    if not self.told.isdisjoint(v.reads(UOp.sink(*(f.src[0] for f in shared)))):
      self.barrier("memory")
    self.read_first(stores, tile)
    for env, s in itertools.product(tile, stores):
      v.store(s, env)
    self.told |= {s.src[0].src[0] for s in stores if s.src[0].src[0].op is Ops.PARAM}
    self.folds = before

  def read_first(self, stores: Sequence[UOp], tile: Sequence[Env]) -> None:
    """When lanes have met they go on apart: of the memory that one of them writes, all have read what they need. That
    they meet by registers orders nothing that they do in memory, so there is a barrier between."""
    if any(r.arg[1] in THREADS for ranges in self.folds for r in ranges):
      loads = [(u, s.src[0].src[0]) for s in stores for u in self.values.value_order(s.src[1]) if u.op is Ops.LOAD]
      read = [u for u, written in loads if u.src[0].src[0] is written]
      for u, env in itertools.product(read, tile):
        self.values.value(u, env)
      if not all(is_own(u.src[0].src[0]) for u in read):
        self.barrier()

  def fill(self, after: UOp) -> None:
    """Emits what an AFTER waits for, in the outermost loop that knows it, if it is not known."""
    v, stores = self.values, after.src[1:]
    if (found := self.filled.get(stores)) is not None and found[0].open:
      return
    memory = v.reads(UOp.sink(*stores)).difference(s.src[0].src[0] for s in stores)
    level = max(v.level_of(v.deps(after)), self.floor)
    once = [s.bit for s in v.stack].count(v.stack[level].bit) == 1  # its loop is no loop of blocks
    _, ahead = pipeline_of(after)
    mine = (r for r in v.iteration if v.bit(r) == v.stack[level].bit and r.arg[1] not in THREADS)
    if ahead and once and (r := next(mine, None)) is not None:
      self.prefetch(stores, r, level, ahead)
      self.filled[stores] = v.stack[level], memory
      return
    with v.outside(level if memory.isdisjoint(v.written) else max(level, self.beside)):
      together = any(r in v.iteration and r.arg[1] in THREADS for s in stores for r in s.src[2:])
      if together:  # what others may still read of it, and then what they have written
        self.barrier()
      self.effects([(s, tuple(r for r in s.src[2:] if r.arg[1] not in THREADS)) for s in stores])
      if together:
        self.barrier()
      self.filled[stores] = v.stack[-1], memory

  def prefetch(self, stores: Sequence[UOp], r: UOp, level: int, ahead: int) -> None:
    """Memory in blocks that iterations of r take in turn: the first are filled before the loop, and in each iteration,
    when what it needs has come and no thread is still at the one before, that of `ahead` iterations later. Of an
    iteration that there is not nothing is begun, for nobody would wait for it."""
    v, end = self.values, r.src[0]

    def of_iteration(at: UOp) -> list[UOp]:
      there, at = UOp.new(Ops.CMPLT, dtypes.bool, (at, end)), within_bounds(at, end)
      moved = [substitute_free(s, {r: at}) for s in stores]
      return [s.replace(src=(gated(s.src[0], there), *s.src[1:])) for s in moved]

    with v.outside(level - 1):
      self.barrier()
      for n in range(ahead):
        self.begin_copies(of_iteration(index(n)) if n < end.vmax else [])
    with v.outside(level):
      # what is filled one iteration ahead comes after what others have filled since
      beside = sum(bool(v.deps(u) & v.bit(r)) for u in self.ahead.values())
      self.barrier(max(beside, 1) - 1 if ahead == 1 else ahead - 1)
      self.begin_copies(of_iteration(UOp.new(Ops.ADD, dtypes.index, (r, index(ahead)))))

  def begin_copies(self, stores: Sequence[UOp]) -> None:
    """Stores, of which those that copy from a kernel's arguments need not have come before they are waited for."""
    out = self.values.stack[-1].out
    first = len(out)
    self.effects([(s, tuple(r for r in s.src[2:] if r.arg[1] not in THREADS)) for s in stores])
    out[first:] = [as_async_copy(u) for u in out[first:]]
    self.values.put(Ops.COMMIT, dtypes.void, (), self.ids.next())

  def barrier(self, of: int | str | None = None) -> None:
    """`of`: of copies that have been begun, as many groups may still be under way; or "memory", the device's too; or
    "cluster", of all of its groups, which then know what is in one another's memory."""
    self.told = set() if of in ("memory", "cluster") else self.told
    self.values.put(Ops.BARRIER, dtypes.void, (), of)

  # ---- reductions

  def together(self, f: UOp) -> list[UOp]:
    """`f` and the FOLDs over the same ranges that can share its loop: none needs another's result."""
    v, group, members, below = self.values, [f], self.values.bit(f), self.values.deps(f)
    for g in self.folds.get(f.src[1:], ()):
      if not below & v.bit(g) and not v.deps(g) & members and v.loops(g) == v.loops(f):
        group.append(g)
        members |= v.bit(g)
        below |= v.deps(g)
    return group

  def fold(self, f: UOp, env: Env) -> None:
    """Emits the reduction `f`, in the outermost loop that knows its operands: written out where it has no loops, else
    for all elements of its tile."""
    v = self.values
    with v.outside(max(v.level_of(v.deps(f)), self.floor)):
      if f not in self.rest_of and (out := running(v, f, env)) is not None:
        v.memo[v.key_of(f, env)] = out, v.home.get(out, v.root)
      elif f.src[0].op is Ops.MMA or any(r.arg[1] not in IN_REGISTERS for r in f.src[1:]):
        self.reduce(self.together(f))
      else:
        self.reduce_unrolled(f, env)

  def reduce_unrolled(self, f: UOp, env: Env) -> None:
    v = self.values
    out: UOp | None = None
    for own in self.environments(f.src[1:]):
      if (found := self.term(f, {**env, **own})) is None:
        continue
      op, terms, arg = found
      if out is None and op is not Ops.DOT:
        out = terms[0]
      else:
        start = neutral(f) if out is None else out
        out = v.apply(UOp.new(op, f.dtype, (f,) * (1 + len(terms)), arg), [start, *terms])
    out = neutral(f) if out is None else out
    if any(r.arg[1] is AxisKind.VECTOR for r in f.src[1:]):
      out = v.node(Ops.FOLD, f.dtype, (v.broadcast(out, self.lanes(f)),), f.arg)
    v.memo[v.key_of(f, env)] = out, v.home.get(out, v.root)

  def term(self, f: UOp, here: Env) -> tuple[Ops, list[UOp], object] | None:
    """What one step adds: the operation and its operands; None where it adds nothing."""
    v, x = self.values, f.src[0]
    if x.op is Ops.WHERE and x.src[2] is neutral(f) and x.arg is None:
      condition = v.value(x.src[0], here)
      if condition.op is Ops.CONST and not condition.arg:
        return None
      if (dot := x.src[1]).op is Ops.DOT:  # words of zeros add nothing
        x = dot.replace(src=tuple(UOp.new(Ops.WHERE, s.dtype, (x.src[0], s, UOp.const(s.dtype, 0))) for s in dot.src))
    if x.op is Ops.DOT:
      return Ops.DOT, [v.value(s, here) for s in x.src], x.arg
    return f.arg, [v.value(x, here)], None

  def lanes(self, f: UOp) -> int:
    """Of the accumulators of `f`: its own, or those of the vectors that it gives."""
    return next((extent(r) for r in f.src[1:] if r.arg[1] is AxisKind.VECTOR), 0) or self.values.lanes_of(f)

  def register(self, f: UOp, dtype: DType, home: LoopScope, start: UOp | None = None) -> UOp:
    """An accumulator of the reduction `f`, which starts in `home`."""
    acc = UOp.new(Ops.ACC, dtype, (), self.ids.next())
    home.out.extend((acc, UOp.new(Ops.STORE, dtypes.void, (acc, neutral(f) if start is None else start))))
    return acc

  def reduce(self, group: list[UOp]) -> None:
    """Reductions, and those that go on with the rest of a split loop in the same accumulators."""
    v, ranges = self.values, group[0].src[1:]
    around = list(self.environments(v.ups(v.deps(group[0]))))
    own = list(self.environments(ranges, AxisKind.UPCAST))
    elements, home = [(env, up) for env in around for up in own], v.stack[-1]
    names, registers = [[f] for f in group], list[list[UOp]]()
    for f, known in zip(group, names):
      if f.src[0].op is Ops.MMA:  # what a core adds to, it adds to for every copy of its reduction
        x, whole = self.begins.get(f, (f, f))
        begun = x is not f and not v.deps(x) & v.unrolled_bits & ~v.deps(f) and v.level_of(v.deps(x)) < len(v.stack)
        starts = [v.value(x, env) if begun else None for env in around]
        known += [whole] * begun
        registers.append([a for s in starts for a in [self.register(f, f.dtype, home, s)] * len(own)])
      else:
        registers.append([self.register(f, f.dtype.vec(self.lanes(f)), home) for _ in elements])
    sums = Sums(group, elements, registers, home, {})
    loops = self.loops_of(ranges)
    self.fresh = {a for f, some in zip(group, registers) if not loops and f not in self.begins for a in some}
    self.reduction_loops(sums, loops)
    ends = list(group)  # as what each has ended, beside what it is known as
    while rest := self.continued(group[0], ends, around, len(own)):
      fewer = list(self.environments(rest[0].src[1:], AxisKind.UPCAST))
      some = [i for i in range(len(elements)) if i % len(own) < len(fewer)]
      accumulators = [[a[i] for i in some] for a in registers]
      less = Sums(rest, [(elements[i][0], fewer[i % len(own)]) for i in some], accumulators, home, sums.totals)
      self.reduction_loops(less, self.loops_of(rest[0].src[1:]))
      ends = [self.rest_of[x][1] for x in ends]
      for known, *more in zip(names, rest, ends):
        known += more
    results: list[Result] = []
    self.wait_for_products()
    for g, f in enumerate(group):
      for e, env in enumerate(around):
        used = list(dict.fromkeys(registers[g][e * len(own) : (e + 1) * len(own)]))
        used = [*used, *(sums.totals[a] for a in used if a in sums.totals)]
        read = [*map(v.read, used)]
        while len(read) > 1:  # pairwise
          pairs = [read[i : i + 2] for i in range(0, len(read), 2)]
          read = [v.node(f.arg, p[0].dtype, tuple(p), None, home) if len(p) > 1 else p[0] for p in pairs]
        vector = any(r.arg[1] is AxisKind.VECTOR for r in ranges)
        out = v.node(Ops.FOLD, f.dtype, (read[0],), f.arg, home) if vector else read[0]
        results.append((f, [v.key_of(x, env) for x in names[g]], out))
    for r in (r for r in reversed(ranges) if r.arg[1] in THREADS):
      results = self.reduce_across(results, r)
    for _, keys, out in results:
      for key in keys:
        v.memo[key] = out, home

  def loops_of(self, ranges: Sequence[UOp]) -> list[UOp]:
    return [r for r in ranges if r.arg[1] not in (*IN_REGISTERS, *THREADS) and r.src[0] is not index(1)]

  def continued(self, first: UOp, ends: Sequence[UOp], around: Sequence[Env], copies: int) -> list[UOp]:
    """The reductions that go on where these have ended, if all do, in loops that they share. `first`: that of the first
    of these began."""
    v, out = self.values, list[UOp]()
    for f in ends:
      g = self.rest_of[f][0] if f in self.rest_of else None
      if g is None or v.loops(g) != v.loops(f) or any(v.emitted(g, env) is not None for env in around):
        return []
      out.append(g)
    ups = iterations(r for r in out[0].src[1:] if r.arg[1] is AxisKind.UPCAST)
    vectors = {any(r.arg[1] is AxisKind.VECTOR for r in g.src[1:]) for g in (*out, first)}
    alike = all(g.src[1:] == out[0].src[1:] and self.lanes(g) == self.lanes(first) for g in out)
    return out if alike and ups <= copies and len(vectors) == 1 else []

  def reduce_across(self, results: Sequence[Result], lane: UOp) -> list[Result]:
    """What reductions amount to, given what each lane has, or each group of a cluster: within a warp by its registers,
    by halves; else in scratch memory, of as many at once as there is room for."""
    v, counts = self.values, {r: extent(r) for r in self.values.iteration if r.arg[1] is AxisKind.LOCAL}
    beside = math.gcd(extent(lane), max(self.target.warp, 1)) if lane is next(iter(counts), None) else 1
    for half in (1 << i for i in range(beside.bit_length() - 1)):
      shuffled = ((f, keys, x, v.put(Ops.SHUFFLE, x.dtype, (x,), half)) for f, keys, x in results)
      results = [(f, keys, v.put(f.arg, x.dtype, (x, y))) for f, keys, x, y in shuffled]
    if beside == extent(lane):
      return list(results)
    most = max((self.target.scratch - self.taken) // (8 * prod(counts.values())), 1)
    most = min(most, AT_ONCE) if any(r.arg[1] is AxisKind.CLUSTER for r in v.iteration) else most
    parts = (results[i : i + most] for i in range(0, len(results), most))
    return [x for some in parts for x in self.reduce_apart(some, lane, beside, counts)]

  def reduce_apart(self, results: Sequence[Result], lane: UOp, beside: int, counts: dict[UOp, int]) -> Iterator[Result]:
    """The same, of warps of `beside` lanes, of lanes that lie apart, and of groups: each thread reads what those of its
    number in the others have written. Groups write to one part of memory and then to another: all have read what is
    written over, and none ends before the others have read."""
    v, number, nbytes = self.values, Affine(0), 8 * int(prod(counts.values()))
    for r, n in counts.items():  # the number of the thread among those that have the same lane
      number = number if r is lane else number.scaled(n).plus(v.iteration[r])
    threads, groups = int(prod(n for r, n in counts.items() if r is not lane)), extent(lane) * (lane not in counts)
    mine = number if groups else v.iteration[lane].scaled(threads).plus(number)
    apart = extent(lane) if beside == 1 and not groups else 0
    scope, self.turn = v.stack[-1], 3 - self.turn if groups else self.turn
    taken = self.taken + self.turn * AT_ONCE * nbytes * (groups > 0)
    blocks = [(taken + nbytes * i, self.ids.next(), nbytes) for i in range(len(results))]
    memory = [v.put(Ops.SCRATCH, f.dtype, (), arg) for (f, *_), arg in zip(results, blocks)]

    def at(m: UOp, place: Affine = mine, *mask: UOp) -> UOp:
      return v.put(Ops.INDEX, m.dtype, (m, v.parts(place, {})[0], *mask))

    def total(f: UOp, places: Iterable[UOp]) -> UOp:
      return functools.reduce(lambda x, y: v.put(f.arg, f.dtype, (x, y)), [v.read(x) for x in places])

    if groups and scope is self.met[0]:
      del scope.out[self.met[1]]
    elif not groups:
      self.barrier()
    for m, (_, _, value) in zip(memory, results):
      v.write(at(m), value)
    for half in (apart >> i for i in range(1, apart.bit_length())):
      self.barrier()
      mask = v.emit(UOp.new(Ops.CMPLT, dtypes.bool, (lane, index(half))), {})
      for m, (f, _, _) in zip(memory, results):
        both = (mine,), (mine.plus(Affine(half * threads)), mask)
        value = total(f, (at(m, *x) for x in both))
        v.write(at(m, mine, mask), value)
    self.barrier("cluster" if groups else None)
    for m, (f, keys, _) in zip(memory, results):
      peers = [v.put(Ops.PEER, m.dtype, (m, index(i))) for i in range(groups)]
      warps = [number.plus(Affine(threads * w)) for w in range(0, extent(lane), apart or beside)]
      yield f, keys, total(f, [at(x) for x in peers] or [at(m, x) for x in warps])
    if groups:
      self.met = scope, len(scope.out)
      self.barrier("cluster")

  def reduction_loops(self, sums: Sums, loops: Sequence[UOp]) -> None:
    if not loops:
      self.step(sums)
    elif len(loops) > 1:
      with self.values.iterations(loops[0]):
        self.reduction_loops(sums, loops[1:])
    else:
      for _ in self.blocks(sums, loops[0]):
        self.step(sums)

  def blocks(self, sums: Sums, r: UOp) -> Iterator[None]:
    """Opens the innermost loop of a reduction; a long sum of floats is one of blocks."""
    v, n = self.values, extent(r) if static(r) else 0
    sums_up = [f for f in sums.group if f.arg is Ops.ADD and f.src[0].op is not Ops.MMA]
    floats = any(f.dtype in (dtypes.float32, dtypes.float16) for f in sums_up)
    length = PRODUCTS_BLOCK if of_products(sums.group[0]) else SUM_BLOCK
    if not floats or n < 2 * length:
      with v.iterations(r):
        yield
      return
    bit = v.bit(r)
    with v.loop(index(n // length), r.arg[1], bit) as block:
      with v.loop(index(length), r.arg[1], bit) as counter:
        v.iteration[r] = v.form(block).scaled(length).plus(v.form(counter))
        yield
      self.flush(sums)
    if n % length:
      with v.loop(index(n % length), r.arg[1], bit) as counter:
        v.iteration[r] = v.form(index(n // length * length)).plus(v.form(counter))
        yield
    del v.iteration[r]

  def step(self, sums: Sums) -> None:
    """One step of the reductions, for all of their tile."""
    of_own = sorted(
      range(len(sums.elements)), key=lambda i: tuple(sums.elements[i][1].values())
    )  # the elements of a copy together
    for link, i in itertools.product(self.environments(sums.group[0].src[1:], AxisKind.CHAIN), of_own):
      here = {**sums.elements[i][0], **sums.elements[i][1], **link}
      for f, accumulators in zip(sums.group, sums.accumulators, strict=True):
        if f.src[0].op is Ops.MMA:
          self.multiply(f.src[0], here, sums, accumulators)
        elif (found := self.term(f, here)) is not None:
          self.accumulate(accumulators[i], *found)
    if any(f.src[0].op is Ops.MMA and self.reads_what_is_filled_next(f) for f in sums.group):
      self.wait_for_products()

  def reads_what_is_filled_next(self, f: UOp) -> bool:
    """Whether a product may still be under way when the next iteration of its loops fills the memory that it reads."""
    core, over = f.src[0].arg, sum(map(self.values.bit, f.src[1:]))
    tiles = [x.src[0].src[0] for x, h in zip(f.src[0].src, (core.a, core.b)) if isinstance(h, SwizzledTile)]
    again = [pipeline_of(x) for x in tiles if self.values.deps(x) & over]
    return any(stages - ahead < 2 for stages, ahead in again)

  def wait_for_products(self) -> None:
    for mine, core in self.late.items():
      self.issue_product(core, mine)
    self.late.clear()

  def multiply(self, u: UOp, here: Env, sums: Sums, accumulators: Sequence[UOp]) -> None:
    """One product of a core for all the elements of its result that a lane holds, with the first of them."""
    v, core, (x, y, _, element) = self.values, u.arg, u.src[:4]
    digits = v.ups(v.deps(element))
    if any(here[r] for r in digits):
      return

    def number(e: Env) -> int:
      return v.resolve(v.form(element), e).const

    numbers, around = {tuple(env.values()): i for i, (env, _) in enumerate(sums.elements)}, sums.elements[0][0]
    these = [{**here, **e} for e in sorted(self.environments(digits), key=number)]
    mine = [accumulators[numbers[tuple([e[r] for r in around])]] for e in these]
    of_a, of_b = u.src[4:][: len(core.a.registers)], u.src[4:][len(core.a.registers) :]
    src = list[UOp]()
    for value, loops, held in ((x, of_a, core.a), (y, of_b, core.b)):
      if isinstance(held, SwizzledTile):  # where it lies
        memory, base, *_ = v.address(value.src[0], here)
        src.append(v.place(value.dtype, 1, memory, base, 0, None))
        continue
      values = self.load_matrix(core, value, u.src[2], loops, here)
      values = values or tuple(v.value(value, {**here, **e}) for e in self.environments(loops))
      src.append(v.node(Ops.VECTORIZE, value.dtype.vec(len(values)), values))
    self.issue_product(core, mine, src)
    if core.late:
      self.late[*mine] = core

  def load_matrix(self, core: Core, x: UOp, lane: UOp, loops: Sequence[UOp], here: Env) -> tuple[UOp, ...]:
    """What a lane holds of an operand in a group's memory, read by all lanes of a warp together, with what they hold of
    the next tile where that makes it eight elements; nothing where that cannot be."""
    v, n = self.values, 8 // iterations(loops)
    if not core.eights or x.op is not Ops.LOAD or x.src[0].src[0].op is not Ops.AFTER or len(x.src[0].src) > 2:
      return ()
    others = [r for r in v.ups(v.deps(x.src[0].src[1])) if r not in loops and extent(r) % n == 0][::-1][: n - 1]
    if len(others) < n - 1 or (found := row_of_eight(x.src[0].src[1], lane, loops, others)) is None:
      return ()
    place, turned = found
    first = {**here, **{r: here[r] // n * n for r in others}}
    memory, base, *_ = v.address(x.src[0].replace(src=(x.src[0].src[0], place)), first)
    where = v.place(x.dtype, 8, memory, base, 1, None)
    whole = v.node(Ops.LOAD, where.dtype, (where,), "turned" if turned else "eights", v.stack[-1])
    skip = sum(here[r] % n for r in others) * (8 // n)
    return tuple(v.node(Ops.EXTRACT, x.dtype, (whole,), (skip + i,)) for i in range(8 // n))

  def issue_product(self, core: Core, mine: Sequence[UOp], src: Sequence[UOp] = ()) -> None:
    """A core's product for these registers; without operands: all that have been begun have come."""
    v, fresh = self.values, core.late and self.fresh.issuperset(mine)
    old = [UOp.const(a.dtype, 0) if fresh else v.read(a) for a in mine]
    self.fresh.difference_update(mine)
    whole = v.put(Ops.VECTORIZE, core.result.vec(len(old)), tuple(old))
    new = v.put(Ops.MMA, whole.dtype, (whole, *src), core)
    for i, a in enumerate(mine):
      v.write(a, v.put(Ops.EXTRACT, a.dtype, (new,), (i,)))

  def accumulate(self, acc: UOp, op: Ops, terms: Sequence[UOp], arg: object) -> None:
    """acc = op(acc, *terms)"""
    v = self.values
    terms = [v.broadcast(x, acc.dtype.count) for x in terms]
    first = acc in self.fresh and op is not Ops.DOT
    self.fresh.discard(acc)
    v.write(acc, terms[0] if first else v.put(op, acc.dtype, (v.read(acc), *terms), arg))

  def flush(self, sums: Sums) -> None:
    """Adds the accumulators of a block to totals. They start anew: a sum that carries one, with the rest."""
    v = self.values
    for f, accumulators in zip(sums.group, sums.accumulators, strict=True):
      for acc in accumulators:
        if (total := sums.totals.get(acc)) is None:
          total = sums.totals[acc] = self.register(f, acc.dtype, sums.home)
        old, x = v.read(total), v.read(acc)
        rest = v.broadcast(neutral(f), acc.dtype.count)
        if carries_rest(f):
          new, rest = fast_two_sum(old, x, rest, v.put)
        else:
          new = v.put(f.arg, acc.dtype, (old, x))
        v.write(total, new)
        v.write(acc, rest)
