"""Blocks of what streams in which a condition leaves nothing to do: those of keys beyond the diagonal of a causal mask,
or, of queries, before it.

An iteration of a loop that stores share does nothing if what it leaves in memory is what was there, but for memory that
each iteration fills before it reads it. That is worked out store by store from what comparisons of indices are in all
of the iteration's elements: constants are folded, what is stored is known to those that follow, and where a value
depends on a condition that is not known it has to be the same both ways."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from tinygrad.dtype import dtypes, to_numpy_dtype
from tinygrad.helpers import numpy
from tinygrad.ops.reduce import identity_element
from tinygrad.uop import AxisKind, GroupOp, Ops, UOp, simplify
from tinygrad.uop.affine import Affine, affine, index, plain
from tinygrad.uop.cards import evaluate
from tinygrad.uop.loops import LoopIds, iterations, shared_rows, static
from tinygrad.uop.rewrite import on_sources, substitute_free

Values = Mapping[UOp, UOp]  # of nodes, what they are
Contents = dict[UOp, UOp | None]  # of memory that has been written in the iteration; None: nothing is known of it
Bound = tuple[UOp, bool]  # an iteration, by rows; whether those from there on are idle, or those before
MOST_WAYS = 5  # conditions that are looked at both ways


def block_limits(stores: Sequence[UOp]) -> Iterator[UOp]:
  """`loop < end` and `begin - 1 < loop`, which hold in all iterations that have something to do, for loops that stores
  share and that keep their order; with `begin` and `end` expressions of rows."""
  users = Counter(r for s in stores for r in s.src[2:] if r.arg[1] is AxisKind.REDUCE)
  for block in (r for r, n in users.items() if n > 1 and static(r)):
    within = [s for s in stores if block in s.src[2:]]
    rows = {*shared_rows(within)} - {block}
    found: dict[Bound, dict[UOp, UOp]] = {}
    for u in UOp.sink(*within).toposort():
      for bound, holds in turns(u, block, rows):
        found.setdefault(bound, {})[u] = UOp.const(dtypes.bool, holds)
    met = set[bool]()
    for (at, beyond), known in found.items():
      if beyond not in met and changes_nothing(stores, within, known):
        met.add(beyond)
        yield limit_of(block, at, beyond)


def limit_of(block: UOp, at: UOp, beyond: bool) -> UOp:
  """What holds of iterations that are not beyond, or before, this one."""
  sides = (block, at) if beyond else (UOp.new(Ops.ADD, dtypes.index, (at, index(-1))), block)
  return UOp.new(Ops.CMPLT, dtypes.bool, sides)


class RowBlock(NamedTuple):
  """`many` of them from `first` on, in the loop `row`."""

  row: UOp
  first: UOp
  many: int

  def ends(self, op: Ops, x: UOp) -> UOp:
    """The least, or the most, of what rises with the rows, or falls."""
    ends = (substitute_free(x, {self.row: affine(self.first, {}).plus(Affine(i)).uop()}) for i in (0, self.many - 1))
    return UOp.new(op, dtypes.index, tuple(ends))


def blocks_of_rows(limits: Sequence[UOp], rows: RowBlock) -> Iterator[tuple[UOp, UOp, UOp]]:
  """Of loops with such limits (loop, the first block, how many) in which any of the rows has something to do. The first
  is a block that there is."""
  for r in dict.fromkeys(s for x in limits for s in x.src if s.op is Ops.RANGE and s.arg[1] is AxisKind.REDUCE):
    begin, end = index(0), r.src[0]
    for x, y in (limit.src for limit in limits):
      if x is r:
        end = UOp.new(Ops.MIN, dtypes.index, (end, rows.ends(Ops.MAX, y)))
      elif y is r:
        begin = UOp.new(Ops.MAX, dtypes.index, (begin, rows.ends(Ops.MIN, x) + 1))
    begin = simplify(UOp.new(Ops.MIN, dtypes.index, (begin, r.src[0] - 1)))
    yield r, begin, simplify(UOp.new(Ops.MAX, dtypes.index, (end - begin, index(0))))


def edges_apart(stores: Sequence[UOp], limits: Sequence[UOp], rows: RowBlock, ids: LoopIds) -> Iterator[UOp]:
  """The stores. Where a condition that leaves blocks idle, from row to row others, chooses a constant, it is asked only
  in blocks in which it differs: what is stored as if it did not is put right there, in a loop of one iteration."""
  around = {*shared_rows(stores)}
  for s in stores:
    edges, known = [index(0)], dict[UOp, UOp]()
    for r, u in itertools.product((r for r in s.src[2:] if r.arg[1] is AxisKind.REDUCE), s.src[1].toposort()):
      for (idle, _), ((at, beyond), holds) in itertools.permutations(turns(u, r, around), 2):
        if limit_of(r, *idle) in limits and not at.loops.isdisjoint(around):
          known[u] = UOp.const(dtypes.bool, holds)
          edges.append(rows.ends(Ops.MAX, at) - r if beyond else r + 1 - rows.ends(Ops.MIN, at))
    if known and (parts := usual_and_right(s, known)) is not None:
      most = functools.reduce(lambda x, y: UOp.new(Ops.MAX, dtypes.index, (x, y)), edges)
      once = ids.loop(simplify(UOp.new(Ops.MIN, dtypes.index, (most, index(1)))), AxisKind.REDUCE)
      yield s.replace(src=(s.src[0], parts[0], *s.src[2:]))
      yield s.replace(src=(s.src[0], parts[1], *s.src[2:], once))
    else:
      yield s


def usual_and_right(store: UOp, known: Values) -> tuple[UOp, UOp] | None:
  """What is stored where comparisons are `known`, and what is right where they may be otherwise: of that, or a
  constant. None where what is chosen is no constant, or goes into what is stored beside what is none."""
  where, chosen, above = store.src[0], store.src[1], list[tuple[UOp, int]]()

  def holds(u: UOp) -> bool | None:
    asked = with_known(u.src[0], known, {}) if u.op is Ops.WHERE else None
    return None if asked is None or asked.op is not Ops.CONST else bool(asked.arg)

  while (there := holds(chosen)) is None:
    some = [i for i, x in enumerate(chosen.src) if x.op is not Ops.CONST]
    if chosen.op not in GroupOp.Elementwise or len(some) != 1:
      return None
    above.append((chosen, some[0]))
    chosen = chosen.src[some[0]]
  condition, *both = chosen.src
  usual, other = both if there else both[::-1]
  for u, i in reversed(above):
    usual, other = (on_sources(u, (*u.src[:i], x, *u.src[i + 1 :])) for x in (usual, other))
  if (other := simplify(other)).op is not Ops.CONST:
    return None
  both = [UOp.new(Ops.LOAD, usual.dtype, (where,)), other]
  return usual, UOp.new(Ops.WHERE, usual.dtype, (condition, *(both if there else both[::-1])))


def turns(u: UOp, block: UOp, rows: set[UOp]) -> Iterator[tuple[Bound, bool]]:
  """From which iteration of `block` on, and up to which, a comparison is the same for all elements, and what it is: by
  `rows`, and what is the same in the whole kernel."""
  x, y = (plain(s) for s in u.src) if u.op is Ops.CMPLT else (None, None)
  if x is None or y is None:
    return
  difference = affine(x, {}).plus(affine(y, {}), -1)
  step = difference.terms.get(block, 0)
  own = {r: c for r, c in difference.terms.items() if r is not block and r not in rows and r.loops}
  if not step or any(r.op is not Ops.RANGE or not static(r) for r in own):
    return
  rest = Affine(difference.const, {r: c for r, c in difference.terms.items() if r in rows or not r.loops})
  low, high = Affine(0, own).bounds()
  if step > 0:  # it is less for the first blocks
    yield (whole(rest.scaled(-1).plus(Affine(step - 1 - low)), step), True), False
    yield (whole(rest.scaled(-1).plus(Affine(step - 1 - high)), step), False), True
  else:
    yield (whole(rest.plus(Affine(high - step)), -step), True), True
    yield (whole(rest.plus(Affine(low - step)), -step), False), False


def whole(x: Affine, step: int) -> UOp:
  """x / step, rounded down."""
  return UOp.new(Ops.IDIV, dtypes.index, (x.uop(), index(step))) if step > 1 else x.uop()


def changes_nothing(stores: Sequence[UOp], within: Sequence[UOp], known: Values) -> bool:
  """Whether an iteration in which comparisons are `known` leaves memory as it was, or as nobody reads it."""
  inside, written = set(within), Contents()
  read = [{u.src[0].src[0] for u in s.src[1].toposort() if u.op is Ops.LOAD} for s in stores]
  outside = set[UOp]().union(*(some for s, some in zip(stores, read) if s not in inside))
  before = set[UOp]()  # read in the iteration so far
  for s, reads in zip(stores, read):
    if s not in inside:
      continue
    where, value, *loops = s.src
    memory, before = where.src[0], before | reads
    if memory not in written and is_the_same(value, UOp.new(Ops.LOAD, value.dtype, (where,)), known, written):
      continue
    own = iterations(r for r in loops if r in where.src[1].loops)
    if memory.arg.given or memory in before or memory in outside or own != memory.arg.size:
      return False
    content = with_known(value, known, written)
    alone = content is not None and content.loops.isdisjoint(loops)
    written[memory] = content if alone else None
  return True


def is_the_same(value: UOp, want: UOp, known: Values, written: Contents, ways: int = MOST_WAYS) -> bool:
  """Whether a value is `want`, whatever is not known."""
  if (v := with_known(value, known, written)) is want:
    return True
  open_one = next((u.src[0] for u in v.toposort() if u.op is Ops.WHERE), None) if v is not None and ways else None
  if open_one is None:
    return False
  more = dict(known) | {open_one: UOp.const(dtypes.bool, False)}, dict(known) | {open_one: UOp.const(dtypes.bool, True)}
  if open_one.op is Ops.CMPEQ and open_one.src[1].op is Ops.CONST:
    more[1][open_one.src[0]] = open_one.src[1]
  return all(is_the_same(value, want, some, written, ways - 1) for some in more)


def with_known(root: UOp, known: Values, written: Contents) -> UOp | None:
  """A value with what is known put in, of memory as it was before the iteration; None if nothing is known of it."""
  made: dict[UOp, UOp | None] = {}
  for u in root.toposort(lambda u: u.dtype is not dtypes.index and u.op is not Ops.INDEX):
    if u in known:
      v: UOp | None = known[u]
    elif u.op is Ops.LOAD:
      v = written.get(u.src[0].src[0], u) if len(u.src) == 1 or u.src[0].src[0] not in written else None
    elif u.op is Ops.FOLD:
      v = sum_of(u, made[u.src[0]])
    elif u.op in GroupOp.Elementwise and all(s in made for s in u.src):
      v = folded(u, [made[s] for s in u.src])
    else:
      v = u if u.op is Ops.CONST else None
    made[u] = known.get(v, v) if v is not None else None
  return made[root]


def sum_of(f: UOp, x: UOp | None) -> UOp | None:
  """What a reduction of equal elements is, where that is one of them."""
  if x is None or x.op is not Ops.CONST:
    return None
  nothing = identity_element(f.arg, f.dtype)
  return x if x.arg == nothing or f.arg is Ops.MAX or f.arg is Ops.MIN else None


def folded(u: UOp, src: Sequence[UOp | None]) -> UOp | None:
  """An elementwise op of such values. What 0 is multiplied with, and -inf added to, is taken for finite."""
  x, y = src[0], src[1] if len(src) > 1 else None
  numbers = [s.arg if s is not None and s.op is Ops.CONST else None for s in src]
  if u.op is Ops.WHERE and (numbers[0] is not None or src[1] is src[2]):
    return src[1 if numbers[0] else 2]
  if all(n is not None for n in numbers):
    with numpy.errstate(all="ignore"):
      values = [numpy.asarray(n, to_numpy_dtype(s.dtype)) for n, s in zip(numbers, u.src)]
      return UOp.const(u.dtype, numpy.asarray(evaluate(u, values, ())).item())
  for one, other in ((numbers[0], y), (numbers[-1], x)):
    if u.op is Ops.MUL and one == 0:
      return UOp.const(u.dtype, 0)
    if (u.op is Ops.AND or u.op is Ops.OR) and u.dtype is dtypes.bool and one is (u.op is Ops.OR):
      return UOp.const(dtypes.bool, one)
    if (u.op is Ops.MUL and one == 1) or (u.op is Ops.ADD and one == 0) or (u.op is Ops.MAX and one == -inf):
      return other
  if (u.op is Ops.ADD and -inf in numbers) or (u.op is Ops.SUB and numbers[0] == -inf):
    return UOp.const(u.dtype, -inf)
  return with_sources(u, src)


def with_sources(u: UOp, src: Sequence[UOp | None]) -> UOp | None:
  return None if None in src else u.replace(src=tuple(s for s in src if s is not None))
