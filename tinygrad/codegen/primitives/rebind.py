"""What primitives are made of: in the place of a loop, others; in one walk for as many loops as have been changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tinygrad.numerics.products import is_zero_beyond
from tinygrad.ops.reduce import neutral
from tinygrad.uop import AxisKind, GroupOp, Ops, UOp
from tinygrad.uop.indexing import all_of, gated
from tinygrad.uop.rewrite import Sources, on_sources, rebuild

Loops = tuple[UOp, ...]
Order = Mapping[UOp, int]  # the place of a loop among those that are reordered
# kinds of loops that are no loops in the code, by their order
IN_REGISTERS = {AxisKind.UPCAST: 1, AxisKind.CHAIN: 1, AxisKind.VECTOR: 2}


@dataclass(frozen=True, slots=True)
class Version:
  """What takes the place of a loop: the value of its variable, the loops that make it, and the condition under which
  the iteration exists, if some do not: `gate`, or `guard` where the value is in bounds all the same, so that what it
  leads to may be read. `lineage`, where the loops are those that stay: for each what it is a part of, and itself."""

  value: UOp
  loops: Loops
  gate: UOp | None = None
  guard: UOp | None = None
  lineage: tuple[Loops, ...] = ()


Known = tuple[tuple[UOp, int], ...]  # of the loops that something depends on, which expansion of each


class Rebinding:
  """A kernel in which the `versions` of a loop, one after the other, run in its place, and loops are nested in the
  given `orders`. What a loop's variable leads to is read only where there is such an iteration; `for_core`: products
  of what is not read are summed as 0."""

  def __init__(
    self, kernel: UOp, versions: Mapping[UOp, Sequence[Version]], orders: Sequence[Order] = (), for_core: bool = False
  ) -> None:
    self.versions, self.orders, self.for_core = versions, orders, for_core
    self.expanded: dict[UOp, list[Version]] = {}
    self.memos: dict[Known, dict[UOp, UOp]] = {}
    self.kernel = self.image(kernel, ())

  def images(self, u: UOp) -> list[UOp]:
    """What has become of a value."""
    loops = sorted((r for r in u.loops if r in self.versions), key=lambda r: r.arg[0])
    every = itertools.product(*(range(len(self.expansions(r))) for r in loops))
    return list(dict.fromkeys(self.image(u, tuple(zip(loops, numbers))) for numbers in every))

  # ---- loops

  def expansions(self, r: UOp) -> list[Version]:
    if (found := self.expanded.get(r)) is None:
      found = self.expanded[r] = list(self.expand(r))
    return found

  def expand(self, r: UOp) -> Iterator[Version]:
    if r not in self.versions:
      yield Version(r, (r,), lineage=((r,),))
      return
    for v in self.versions[r]:
      for parts in itertools.product(*map(self.expansions, v.loops)):
        values = {x: p.value for x, p in zip(v.loops, parts)}
        parts_of_it = v.value, v.gate, v.guard
        value, *conditions = (None if x is None else rebuild(x, on_sources, dict(values)) for x in parts_of_it)
        assert value is not None
        gate, guard = (all_of(x, *xs) for x, xs in zip(conditions, ([p.gate for p in parts], [p.guard for p in parts])))
        loops = tuple(x for p in parts for x in p.loops)
        lineage = tuple((r, *x) for p in parts for x in p.lineage)
        yield Version(value, loops, gate, guard, lineage)

  def nested(self, loops: Loops) -> list[UOp]:
    """Loops that are replaced, the outermost first."""
    return permuted(list(loops), [[self.place(self.outermost(r), order) for order in self.orders] for r in loops])

  def outermost(self, r: UOp) -> Loops:
    """The first part of a loop that has a place in an order."""
    lines = (line for e in self.expansions(r) for line in e.lineage)
    return next((x for x in lines if any(self.place(x, order) is not None for order in self.orders)), (r,))

  @staticmethod
  def place(line: Loops, order: Order) -> int | None:
    return next((order[x] for x in reversed(line) if x in order), None)

  def combinations(self, loops: Loops, known: Known) -> Iterator[tuple[Known, Loops, UOp | None]]:
    """What runs in the place of loops that are bound together: with what is known then, the loops, and the gate."""
    mine = [r for r in self.nested(loops) if r in self.versions]
    for numbers in itertools.product(*(range(len(self.expansions(r))) for r in mine)):
      chosen = {r: self.expansions(r)[n] for r, n in zip(mine, numbers)}
      now = tuple(sorted((*known, *zip(mine, numbers)), key=lambda k: k[0].arg[0]))
      out, lineage = list[UOp](), list[Loops]()
      for r in loops:
        e = chosen.get(r)
        out += (self.image(r, restricted(now, r.loops)),) if e is None else e.loops
        lineage += ((r,),) if e is None else e.lineage
      out = permuted(out, [[self.place(line, order) for order in self.orders] for line in lineage])
      conditions = (x for e in chosen.values() for x in (e.gate, e.guard))
      turns = sorted(dict.fromkeys(out), key=lambda r: IN_REGISTERS.get(r.arg[1], 0))  # vectors, no loops in code, last
      yield now, tuple(turns), all_of(*dict.fromkeys(conditions))

  # ---- nodes

  def image(self, root: UOp, known: Known) -> UOp:
    """What becomes of a node in these expansions of the loops that it depends on."""
    memo = self.memos.setdefault(known, {})
    if (found := memo.get(root)) is not None:
      return found

    def cut(u: UOp) -> UOp | None:
      if u in self.versions:
        return self.expansions(u)[dict(known)[u]].value
      if len(mine := restricted(known, u.loops)) < len(known):
        return self.image(u, mine)
      if u.op is Ops.FOLD:
        return self.fold(u, known)
      return self.effects(u, known) if u.op in GroupOp.Ordering else None

    def make(u: UOp, src: Sources) -> UOp:
      if u.op is Ops.LOAD and known:
        memory, place = u.src[0].src[:2]
        led = place.loops | memory.loops if memory.op is Ops.PEER else place.loops
        gates = [e.gate for r, n in known if r in led and (e := self.expansions(r)[n]).gate is not None]
        if (gate := all_of(*gates)) is not None:
          src = gated(src[0], gate), *src[1:]
      return on_sources(u, src)

    return rebuild(root, make, memo, cut)

  def fold(self, u: UOp, known: Known) -> UOp:
    parts = []
    for now, loops, gate in self.combinations(u.src[1:], known):
      value = self.image(u.src[0], restricted(now, u.src[0].loops))
      if gate is not None and not (self.for_core and u.arg is Ops.ADD and is_zero_beyond(value, gate)):
        value = UOp.new(Ops.WHERE, u.dtype, (gate, value, neutral(u)))
      alone = not loops and u.src[0].op is not Ops.DOT  # words are multiplied where their products are added
      parts.append(value if alone else UOp.new(Ops.FOLD, u.dtype, (value, *loops), u.arg))
    out = parts[0]
    for x in parts[1:]:
      out = UOp.new(u.arg, u.dtype, (out, x))
    return out

  def effects(self, u: UOp, known: Known) -> UOp:
    """Stores beside each other that share their loops share the versions of these."""
    src = list[UOp]()
    for loops, run in itertools.groupby(u.src, lambda s: s.src[2:] if s.op is Ops.STORE else None):
      if loops is None:
        src += (self.image(s, restricted(known, s.loops)) for s in run)
        continue
      stores = list(run)
      for now, over, gate in self.combinations(loops, known):
        for s in stores:
          where, value = (self.image(x, restricted(now, x.loops)) for x in s.src[:2])
          where = where if gate is None else gated(where, gate)
          src.append(s.replace(src=(where, value, *over)))
    return on_sources(u, tuple(src))


def restricted(known: Known, loops: frozenset[UOp]) -> Known:
  return tuple([k for k in known if k[0] in loops])


def permuted(loops: list[UOp], places: Sequence[Sequence[int | None]]) -> list[UOp]:
  """Loops in the given orders, one after the other: those that have a place in an order change places."""
  rows = list(zip(loops, places))
  for i in range(len(places[0]) if places else 0):
    moved = iter(sorted((row for row in rows if row[1][i] is not None), key=lambda row: row[1][i] or 0))
    rows = [next(moved) if row[1][i] is not None else row for row in rows]
  return [r for r, _ in rows]
