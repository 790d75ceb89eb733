"""Streaming reductions: a kernel of rows that goes once, block by block, through what its reductions are over, so that
memory of a row for a value of each element holds those of a block.

The law, for a function f with f(x, t') = f(x, t) · r(t, t'), as exp(x - t') = exp(x - t) · exp(t - t'): a sum of such
over the elements so far, relative to a pivot t, is brought to another one by a product, Σf(x, t') = r(t, t') · Σf(x, t)
– so t may be a total of these elements, too, as their maximum, which later ones change (Milakov, Gimelshein: Online
normalizer calculation for softmax, 2018). What a term has as a factor that is the same for all elements is multiplied
with the total (a softmax's denominator).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import ceildiv, round_up
from tinygrad.ops.reduce import identity_element, neutral
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp, simplify
from tinygrad.uop.affine import Affine, index, row_major
from tinygrad.uop.indexing import both
from tinygrad.uop.loops import LoopIds, extent, iterations, shared_rows, static
from tinygrad.uop.rewrite import Sources, on_sources, rebuild, substitute_free

Rates = dict[UOp, float]  # pivot -> c: a value grows by exp(c · (t' - t)) where a pivot t becomes t'
BLOCKS = (64, 32, 16)  # elements
ROOM, SHORT = 1250, 32  # bytes of a row that matrix cores keep in registers; the block that is short enough for any
LEAST, MOST = 32, 128  # elements of a piece
LONG = 256  # at least, of one that streams
SWEEPS = 2  # through all elements, at most


class Unstreamable(Exception):
  """A reduction needs what another has only when all elements have been seen."""


@dataclass(frozen=True, slots=True)
class Factored:
  """A value as `core`, which is known for an element when the totals so far are, and grows with these by `rates`, times
  `post`, which is the same for all elements and known at the end."""

  core: UOp
  rates: Rates = field(default_factory=dict)
  post: tuple[UOp, ...] = ()


def read_ones(stores: Sequence[UOp]) -> list[UOp]:
  """Without those to memory of a row that no other reads for something that is kept."""
  reads = [(s.src[0].src[0], {u.src[0].src[0] for u in s.src[1].toposort() if u.op is Ops.LOAD}) for s in stores]
  needed, more = set[UOp](), {p for p, _ in reads if p.arg.given}
  while not more <= needed:
    needed |= more
    more = set[UOp]().union(*(read for p, read in reads if p in needed))
  return [s for s in stores if s.src[0].src[0] in needed]


class Stream:
  """The stores of a row in the order in which they are to run: `begin`, those of a block, `end`. What a value needs of
  all elements, and not as a factor or a pivot, is known after a first sweep through them; it is in another one that
  what is computed from it streams, with all that it is made of computed again."""

  kind = AxisKind.REDUCE

  def __init__(self, kernel: UOp, block: int) -> None:
    self.stores, self.ids = kernel.src, LoopIds(kernel)
    self.rows = shared_rows(kernel.src)
    self.memories = self.streamed_memories()
    self.factors = factors_of_sums(kernel) & self.memories.keys()
    self.blank = set[UOp]()  # memory that holds 0 for elements that are not there
    self.ends = self.ends_of_loops()  # of loops through the elements
    self.length = max((int(n.vmax) for n in self.ends), default=0)
    block = self.block_size(block)
    if len(self.ends) != 1 or self.length <= block:
      raise Unstreamable
    self.block = self.ids.loop(self.number_of_blocks(block), self.kind)
    self.step = self.ids.loop(index(block), AxisKind.LOOP)
    self.size, self.own = block, min(u.arg.slot for u in kernel.toposort() if u.op is Ops.PARAM)
    self.at = self.element()
    self.exists = self.guard()  # whether it is one; None: always
    self.begin, self.within, self.end = list[UOp](), list[UOp](), list[UOp]()
    self.swept: list[list[UOp]] = []  # what earlier sweeps do
    self.known: dict[UOp, UOp] = {}  # a LOAD of what the row has stored for itself -> as it is computed
    self.complete: dict[UOp, UOp] = {}  # reduction -> what it is, after earlier sweeps
    self.maps: dict[UOp, Factored] = {}  # memory -> what it holds for an element
    self.sums: dict[UOp, Factored] = {}  # reduction -> what it is at the end
    self.before: dict[UOp, UOp] = {}  # a total so far -> as it was before the block; those of one element a row
    self.depends: dict[UOp, bool] = {}

  def block_size(self, block: int) -> int:
    return block

  def number_of_blocks(self, size: int) -> UOp:
    """As many as hold all elements; where a variable says how many there are, of this run."""
    (n,) = self.ends
    return index(ceildiv(self.length, size)) if n.op is Ops.CONST else simplify((n + (size - 1)) // size)

  def element(self) -> UOp:
    return Affine(0, {self.block: self.size, self.step: 1}).uop()

  def guard(self) -> UOp | None:
    whole = self.ends == {index(self.length)} and self.length % self.size == 0
    return None if whole else UOp.new(Ops.CMPLT, dtypes.bool, (self.at, *self.ends))

  def streamed_memories(self) -> dict[UOp, None]:
    """Memory of a row that holds an element for each of those that reductions are over."""
    written = (s.src[0].src[0] for s in self.stores)
    found = dict.fromkeys(p for p in written if not p.arg.given and p.arg.size > 1)
    if len({p.arg.size for p in found}) > 1:
      raise Unstreamable
    return found

  def ends_of_loops(self) -> set[UOp]:
    places = [s.src[0].src[1] for s in self.stores if s.src[0].src[0] in self.memories]
    if any(at.op is not Ops.RANGE for at in places):
      raise Unstreamable
    return {at.src[0] for at in places}

  # ---- loops

  def loop_of(self, nodes: Iterable[UOp], loops: Sequence[UOp]) -> UOp | None:
    """The one of `loops` that goes through the elements; None if none does."""
    places = {u.src[1] for u in nodes if u.op is Ops.INDEX and u.src[0] in self.memories}
    mine = [r for r in loops if r in places]
    if len(mine) > 1:
      raise Unstreamable
    return mine[0] if mine else None

  def memory(self, dtype: DType, size: int) -> UOp:
    self.own -= 1
    return UOp.new(Ops.PARAM, dtype, (), ParamArg(self.own, size))

  def store(self, where: UOp, value: UOp, *loops: UOp) -> UOp:
    return UOp.new(Ops.STORE, dtypes.void, (where, value, *self.rows, *loops))

  # ---- values

  def run(self) -> tuple[UOp, ...]:
    for i, s in enumerate(self.stores):
      try:
        self.take(s)
      except Unstreamable:
        self.sweep_again(self.stores[:i])
        self.take(s)
    kept, within = {s.src[0].src[0] for s in self.end}, [s for some in self.swept for s in some] + self.within
    if not self.sums or any(u.op is Ops.INDEX and u.src[0] in kept for u in UOp.sink(*within).toposort()):
      raise Unstreamable
    return tuple(self.kernels())

  def take(self, s: UOp) -> None:
    where, value, *loops = s.src
    own = [r for r in loops if r not in self.rows]
    value = substitute_free(substitute_free(value, self.known), self.complete)
    if where.src[0] in self.memories:
      if own != [where.src[1]]:
        raise Unstreamable
      self.map(where, value, own[0])
      return
    if not own and len(where.src) == 2:
      self.known[UOp.new(Ops.LOAD, where.dtype, (where,))] = substitute_free(s.src[1], self.known)
    value = self.final(value)
    if any(u.op is Ops.INDEX and u.src[0] in self.memories for u in value.toposort()):
      raise Unstreamable
    self.end.append(s.replace(src=(where, value, *loops)))

  def sweep_again(self, before: Sequence[UOp]) -> None:
    """Another sweep, in which totals so far are complete, as far as the stores `before` go."""
    if not self.sums or len(self.swept) + 1 == SWEEPS:
      raise Unstreamable
    self.complete |= self.totals()
    self.swept.append(self.sweep())
    self.block, self.step = self.ids.like((self.block, self.step)).values()
    self.at = self.element()
    self.exists = self.guard()
    for made in (self.begin, self.within, self.maps, self.sums, self.before, self.depends):
      made.clear()
    for s in before:
      if s.src[0].src[0] in self.memories:
        self.take(s)

  def totals(self) -> dict[UOp, UOp]:
    """What reductions are when all elements have been seen."""
    return {f: self.final(f) for f in self.sums}

  def sweep(self) -> list[UOp]:
    return [*self.begin, *self.within]

  def kernels(self) -> Iterator[UOp]:
    yield UOp.sink(*read_ones([s for some in (*self.swept, self.sweep(), self.end) for s in some]))

  def map(self, where: UOp, value: UOp, loop: UOp) -> None:
    f = self.factored(self.guarded(substitute_free(value, {loop: self.at})))
    # what is narrow is kept as narrow as it is: matrix cores take it so
    core = f.core.src[0] if is_widened(f.core) else f.core
    at = UOp.new(Ops.INDEX, core.dtype, (self.memory(core.dtype, self.size), self.step))
    value = core
    if self.exists is not None and where.src[0] in self.factors:
      self.blank.add(at.src[0])
      value = UOp.new(Ops.WHERE, core.dtype, (self.exists, core, UOp.const(core.dtype, 0)))
    self.within.append(self.store(at, value, self.block, self.step))
    kept = UOp.new(Ops.LOAD, core.dtype, (at,))
    self.maps[where.src[0]] = Factored(f.core.replace(src=(kept,)) if core is not f.core else kept, f.rates, f.post)

  def factored(self, u: UOp) -> Factored:
    """A value for the element `self.at`."""
    if u.op is Ops.LOAD and u.src[0].src[0] in self.memories:
      if u.src[0].src[1] is not self.at or u.src[0].src[0] not in self.maps or len(u.src[0].src) > 2:
        raise Unstreamable
      return self.maps[u.src[0].src[0]]
    if u.op is Ops.FOLD and self.loop_of(u.src[0].toposort(), u.src[1:]) is not None:
      return Factored(UOp.const(u.dtype, 1), {}, (self.final(u),))
    if not self.involved(u):
      return Factored(u)
    if self.same_for_all(u):
      return Factored(UOp.const(u.dtype, 1), {}, (self.final(u),))
    if u.op is Ops.MUL:
      a, b = map(self.factored, u.src)
      rates = {t: a.rates.get(t, 0) + b.rates.get(t, 0) for t in a.rates | b.rates}
      return Factored(u.replace(src=(a.core, b.core)), rates, (*a.post, *b.post))
    if u.op is Ops.CAST and dtypes.is_float(u.dtype) and dtypes.is_float(u.src[0].dtype):
      f = self.factored(u.src[0])  # as far as rounding goes: what is rounded is relative to the pivot
      return Factored(u.replace(src=(f.core,)), f.rates, f.post)
    if u.op is Ops.EXP:
      base, rates = self.exponent(u.src[0], 1.0)
      return Factored(u.replace(src=(base,)), rates)
    made = [self.factored(s) for s in u.src]
    if any(f.rates or f.post for f in made):
      raise Unstreamable
    return Factored(u.replace(src=tuple(f.core for f in made)))

  def same_for_all(self, u: UOp) -> bool:
    return self.step not in u.loops

  def involved(self, u: UOp) -> bool:
    """Whether a value has to do with the elements, or with totals of them."""
    for x in u.toposort(lambda x: x not in self.depends):
      own = x.op is Ops.INDEX and x.src[0] in self.memories
      self.depends[x] = own or any(self.depends[s] for s in x.src)
    return self.depends[u]

  def exponent(self, u: UOp, c: float) -> tuple[UOp, Rates]:
    """An exponent with totals so far in the place of totals, and the pivots in it, times c."""
    if self.involved(u) and self.same_for_all(u):
      p = pivot(self.final(u))
      return p, {p: c}
    if u.op is Ops.ADD or u.op is Ops.SUB:
      (x, a), (y, b) = self.exponent(u.src[0], c), self.exponent(u.src[1], -c if u.op is Ops.SUB else c)
      return u.replace(src=(x, y)), {t: a.get(t, 0) + b.get(t, 0) for t in a | b}
    if u.op is Ops.MUL and u.src[1].op is Ops.CONST:
      x, a = self.exponent(u.src[0], c * u.src[1].arg)
      return u.replace(src=(x, u.src[1])), a
    f = self.factored(u)
    if f.rates or f.post:
      raise Unstreamable
    return f.core, {}

  # ---- totals

  def final(self, u: UOp) -> UOp:
    """A value that is the same for all elements, from totals when these are complete."""
    made: dict[UOp, UOp] = {}
    for f in u.toposort():
      if f.op is Ops.FOLD and self.involved(f):
        total = self.total(f)
        value = total
        for p in self.sums[f].post:
          value = UOp.new(Ops.MUL, f.dtype, (value, UOp.new(Ops.CAST, f.dtype, (p,)) if p.dtype is not f.dtype else p))
        made[f] = value
    return substitute_free(u, made)

  def total(self, f: UOp) -> UOp:
    """A LOAD of what a reduction over the elements amounts to so far."""
    if (found := self.sums.get(f)) is not None:
      return found.core
    nodes = f.src[0].toposort()
    if (loop := self.loop_of(nodes, f.src[1:])) is None:
      raise Unstreamable
    term = self.factored(self.guarded(substitute_free(f.src[0], {loop: self.at})))
    if (term.rates or term.post) and f.arg is not Ops.ADD:
      raise Unstreamable
    free = [r for r in self.open_loops(f) if r is not loop and r not in f.src[1:]]
    if not all(map(static, free)):
      raise Unstreamable
    own = self.ids.like(free, AxisKind.LOOP)
    memory = self.memory(f.dtype, iterations(free))
    place = row_major((r, extent(r)) for r in free)
    there = UOp.new(Ops.INDEX, f.dtype, (memory, place))
    here = substitute_free(there, own)
    inner = self.ids.like((r for r in f.src[1:] if r is not loop), AxisKind.REDUCE)
    step = self.ids.loop(self.step.src[0], AxisKind.REDUCE)
    core = term.core
    if self.exists is not None and not (f.arg is Ops.ADD and self.is_nothing(core)):
      core = UOp.new(Ops.WHERE, f.dtype, (self.exists, core, neutral(f)))
    core = substitute_free(core, {self.step: step, **inner, **own})
    part = UOp.new(Ops.FOLD, f.dtype, (core, step, *inner.values()), f.arg)
    total = UOp.new(Ops.LOAD, f.dtype, (there,))
    self.sums[f] = Factored(total, term.rates, term.post)
    self.add(total, here, part, [*own.values()], term.rates)
    return total

  def add(self, total: UOp, here: UOp, part: UOp, own: list[UOp], rates: Rates) -> None:
    """The part of a block is added to a total so far, which lies `here`, as the loops `own` go."""
    op = part.arg
    self.begin.append(self.store(here, UOp.const(part.dtype, identity_element(op, part.dtype)), *own))
    old = UOp.new(Ops.LOAD, part.dtype, (here,))
    for t, c in rates.items():
      so_far = {f.core for f in self.sums.values()}
      if not {u for u in t.toposort() if u in so_far} <= self.before.keys():
        raise Unstreamable
      old = grown(old, substitute_free(t, self.before), t, c)
    both = UOp.new(op, part.dtype, (old, part))
    if not own:
      # what grows with it needs the one before, too
      before = UOp.new(Ops.INDEX, part.dtype, (self.memory(part.dtype, 1), index(0)))
      self.within.append(self.store(before, UOp.new(Ops.LOAD, part.dtype, (here,)), self.block))
      self.before[total] = UOp.new(Ops.LOAD, part.dtype, (before,))
    self.within.append(self.store(here, both, self.block, *own))

  def is_nothing(self, u: UOp) -> bool:
    """Whether it is 0 for an element that is not there: of a product both factors are, for one may be infinite."""
    if u.op is Ops.CAST or u.op is Ops.MUL:
      return all(map(self.is_nothing, u.src))
    return u.op is Ops.LOAD and (u.src[0].src[0] in self.blank or u.src[0].src[2:] == (self.exists,))

  def guarded(self, u: UOp) -> UOp:
    """A value that reads no element that is not there."""
    if self.exists is None:
      return u
    inside = {x for x in u.toposort() if x.op is Ops.INDEX and x.src[0].arg.given and self.step in x.loops}

    def make(x: UOp, src: Sources) -> UOp:
      if x.op is Ops.INDEX and x in inside:
        gate = both(src[2] if len(src) > 2 else None, self.exists)
        return x.replace(src=src[:2] if gate is None else (*src[:2], gate))
      if x.op is Ops.LOAD and x.src[0] in inside and len(src) < 2 < len(src[0].src):
        src = (*src, UOp.const(x.dtype, 0))
      return on_sources(x, src)

    return rebuild(u, make)

  def open_loops(self, f: UOp) -> list[UOp]:
    """The loops that a reduction depends on, but rows and its own."""
    free = f.loops.difference((*self.rows, self.step, self.block))
    return sorted(free, key=lambda r: r.arg[0])


class InPieces(Stream):
  """Two kernels: of each of many pieces of the elements, which is a row of its own, what it amounts to; and the totals
  of these. A piece in which there is no element adds nothing to a total. Each sweep before the last is one more kernel,
  whose totals the pieces of the next have in memory of their own."""

  kind = AxisKind.LOOP

  def __init__(self, kernel: UOp, wanted: int, first: int) -> None:
    super().__init__(kernel, wanted)
    self.first, self.pieces = first, self.block.src[0].arg
    self.other = self.ids.loop(self.block.src[0], AxisKind.REDUCE)
    self.parts: list[UOp] = []  # stores of what a piece amounts to
    self.whole: dict[UOp, UOp] = {}  # where a piece has a total of an earlier sweep -> that, of all pieces
    self.computed: dict[UOp, UOp] = {}  # that, as it lies in memory of the piece -> as it is computed
    self.of_piece: dict[UOp, UOp] = {}  # a total of one piece -> that of `other`, as the first kernel leaves it
    self.of_all: dict[UOp, UOp] = {}  # -> that of all pieces
    kept = [s for s in self.stores if s.src[0].src[0].arg.given]
    own = [r.src[0] for s in kept for r in s.src[2:] if r not in self.rows]
    if any(n.op is not Ops.CONST or n.arg >= self.length for n in own):
      raise Unstreamable

  def block_size(self, block: int) -> int:
    """So many elements that all rows together have as many pieces as are wanted."""
    if not all(map(static, self.rows)):
      raise Unstreamable
    elements = iterations(self.rows) * self.length
    return min(max(1 << (elements // block).bit_length() - 1, LEAST), MOST) if elements >= block else LEAST

  def ends_of_loops(self) -> set[UOp]:
    """Where nothing is in memory of a row for each of them, elements are what the reductions are over whose lengths are
    known late; those of others are cut before there are kernels (numerics/parts.py)."""
    loops = (r for s in self.stores for f in s.toposort() if f.op is Ops.FOLD for r in f.src[1:])
    return super().ends_of_loops() if self.memories else {r.src[0] for r in loops if not static(r)}

  def loop_of(self, nodes: Iterable[UOp], loops: Sequence[UOp]) -> UOp | None:
    if self.memories:
      return super().loop_of(nodes, loops)
    mine = [r for r in loops if r.src[0] in self.ends]
    return mine[0] if len(mine) == 1 else None

  def involved(self, u: UOp) -> bool:
    for x in u.toposort(lambda x: x not in self.depends) if not self.memories else ():
      own = x.op is Ops.FOLD and self.loop_of((), x.src[1:]) is not None
      self.depends[x] = own or any(self.depends[s] for s in x.src)
    return super().involved(u)

  def number_of_blocks(self, size: int) -> UOp:
    return index(ceildiv(self.length, size))

  def totals(self) -> dict[UOp, UOp]:
    found = {f: substitute_free(whole, self.of_all) for f, whole in super().totals().items()}
    if any(total.core.src[0].src[0].arg.size > 1 for total in self.sums.values()):
      raise Unstreamable
    places = {f: UOp.new(Ops.INDEX, f.dtype, (self.memory(f.dtype, 1), index(0))) for f in found}
    self.whole |= {where: found[f] for f, where in places.items()}
    loads = {f: UOp.new(Ops.LOAD, f.dtype, (where,)) for f, where in places.items()}
    self.of_all |= {loads[f]: whole for f, whole in found.items()}
    return loads

  def sweep_again(self, before: Sequence[UOp]) -> None:
    super().sweep_again(before)
    self.begin = [self.store(where, value, self.block) for where, value in self.whole.items()]

  def add(self, total: UOp, here: UOp, part: UOp, own: list[UOp], rates: Rates) -> None:
    digits, size = [(r, extent(r)) for r in self.rows], here.src[0].arg.size
    n = iterations(self.rows) * self.pieces * size
    memory = UOp.new(Ops.PARAM, part.dtype, (), ParamArg(self.first + len(self.computed), n))

    def place(piece: UOp, at: UOp) -> UOp:
      return UOp.new(Ops.INDEX, part.dtype, (memory, row_major((*digits, (piece, self.pieces), (at, size)))))

    mine = UOp.new(Ops.LOAD, part.dtype, (here,))
    self.within.append(self.store(here, part, self.block, *own))
    self.parts.append(self.store(place(self.block, here.src[1]), mine, self.block, *own))
    self.computed[mine] = part
    value = self.of_piece[total] = UOp.new(Ops.LOAD, part.dtype, (place(self.other, total.src[0].src[1]),))
    for t, c in rates.items():
      value = grown(value, substitute_free(t, self.of_piece), substitute_free(t, self.of_all), c)
    each = self.ids.loop(self.other.src[0], AxisKind.REDUCE)
    self.of_all[total] = UOp.new(Ops.FOLD, part.dtype, (substitute_free(value, {self.other: each}), each), part.arg)

  def sweep(self) -> list[UOp]:
    read = {u.src[0] for s in self.within for u in s.src[1].toposort() if u.op is Ops.INDEX}
    kept = {x: part for x, part in self.computed.items() if x.src[0].src[0] not in read}
    parts = [s.replace(src=(s.src[0], kept.get(s.src[1], s.src[1]), *s.src[2:])) for s in self.parts]
    self.parts = []
    return read_ones([*self.begin, *self.within, *parts])

  def kernels(self) -> Iterator[UOp]:
    for stores in (*self.swept, self.sweep()):
      yield UOp.sink(*stores)
    yield UOp.sink(*(substitute_free(s, self.of_all) for s in self.end))


class LongPieces(InPieces):
  """Those of rows that stream, at most as many as are wanted: each streams itself, so it has whole blocks, but for the
  last where elements do not divide so without half of the pieces; groups of threads have rows of one piece."""

  def block_size(self, block: int) -> int:
    if not all(map(static, self.rows)) or not self.memories or self.ends != {index(self.length)}:
      raise Unstreamable
    if (most := min(block, self.length // LONG)) < 2:
      raise Unstreamable
    whole = (n for n in range(most, (most - 1) // 2, -1) if n > 1 and self.length % (n * BLOCKS[0]) == 0)
    return round_up(ceildiv(self.length, next(whole, most)), BLOCKS[0])

  def sweep(self) -> list[UOp]:
    rows = (*self.rows[:-1], self.block, self.rows[-1])
    stores = super().sweep()
    return [s.replace(src=(*s.src[:2], *rows, *(r for r in s.src[2:] if r not in rows))) for s in stores]


def factors_of_sums(kernel: UOp) -> set[UOp]:
  """Memory of which sums of products have a factor."""
  sums = (f.src[0] for f in kernel.toposort() if f.op is Ops.FOLD and f.arg is Ops.ADD and f.src[0].op is Ops.MUL)
  return {u.src[0].src[0] for x in sums for u in x.toposort() if u.op is Ops.LOAD}


def grown(total: UOp, before: UOp, after: UOp, c: float) -> UOp:
  """What grows by exp(c · (t' - t)), where a pivot t becomes t': where there was none, it is nothing."""
  if before.op is Ops.WHERE:
    before = before.replace(src=(*before.src[:2], after))
  more = UOp.new(Ops.MUL, after.dtype, (UOp.new(Ops.SUB, after.dtype, (after, before)), UOp.const(after.dtype, c)))
  by = UOp.new(Ops.EXP, after.dtype, (more,))
  return UOp.new(Ops.MUL, total.dtype, (total, UOp.new(Ops.CAST, total.dtype, (by,))))


def is_widened(u: UOp) -> bool:
  """Whether it is a narrower float, as it is."""
  floats = u.op is Ops.CAST and dtypes.is_float(u.dtype) and dtypes.is_float(u.src[0].dtype)
  return floats and u.src[0].dtype.itemsize < u.dtype.itemsize


def pivot(x: UOp) -> UOp:
  """What makes of totals a pivot: 0 where that is not finite, as a maximum of nothing is not."""
  nothing, zero = UOp.new(Ops.SUB, x.dtype, (x, x)), UOp.const(x.dtype, 0)
  return UOp.new(Ops.WHERE, x.dtype, (UOp.new(Ops.CMPEQ, dtypes.bool, (nothing, zero)), x, zero))


def streamed(kernel: UOp) -> tuple[UOp, ...] | None:
  """The kernel of rows in blocks of elements; None if that cannot be."""
  found = None
  for block in BLOCKS:
    try:
      found = Stream(kernel, block).run()
    except Unstreamable:
      continue
    own = {u for u in UOp.sink(*found).toposort() if u.op is Ops.PARAM and not u.arg.given}
    narrow = any(p.dtype.itemsize < 4 for p in own)
    if not narrow or block <= SHORT or sum(p.arg.size * p.dtype.itemsize for p in own) <= ROOM:
      break
  return found


def in_pieces(kernel: UOp, wanted: int, first: int) -> tuple[UOp, ...] | None:
  """The kernels of rows in pieces, about as many as are wanted, and of what these amount to, which is in memories from
  PARAM `first` on; None if that cannot be."""
  try:
    return InPieces(kernel, wanted, first).run()
  except Unstreamable:
    return None


def streamed_in_pieces(kernel: UOp, most: int, first: int) -> tuple[UOp, ...] | None:
  """The same of rows that stream, as do their pieces, of which there are at most so many."""
  try:
    *pieces, whole = LongPieces(kernel, most, first).run()
  except Unstreamable:
    return None
  found = [x for piece in pieces for x in streamed(piece) or ()]
  return (*found, whole) if len(found) == len(pieces) else None
