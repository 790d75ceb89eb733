"""Sums of products, as ops of their own: a matmul is a RESHAPE and an EXPAND of each operand, a MUL and a REDUCE; where
several are added before the REDUCE, as the gradient of what several matmuls read is, they are one op. What stands
between its operands and its result has no placement that anybody would ask for; the factors are the MUL's dims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.solver.problem import Rule
from tinygrad.uop import GroupOp, Ops, UOp, factor_rule

Lists = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Contraction:
  """`reduce` of `muls`, added, is a sum of products of `operands`, two of each MUL, by `rule`. `between`: the nodes
  from there to the MULs, with these."""

  reduce: UOp
  muls: tuple[UOp, ...]
  operands: tuple[UOp, ...]
  rule: Rule
  between: tuple[UOp, ...]

  def of(self, mul: UOp) -> slice:
    """Which of the operands are those of a MUL."""
    i = 2 * self.muls.index(mul)
    return slice(i, i + 2)


@dataclass(slots=True)
class Contractions:
  """Those of a graph by their REDUCE and by their MUL, and all that stands between operands and results."""

  by_reduce: dict[UOp, Contraction]
  by_mul: dict[UOp, Contraction]
  inside: set[UOp]


def contractions(order: Sequence[UOp], same: Mapping[UOp, UOp]) -> Contractions:
  """The contractions of a graph, its nodes by depth. `same`: one node for all that are one value, of which
  each reader counts: a view is built anew where it is read elsewhere."""
  readers: dict[UOp, set[UOp]] = {}
  for u in order:
    here = same[u]
    for s in u.src:
      if (there := same[s]) is not here:
        if (by := readers.get(there)) is None:
          readers[there] = {here}
        else:
          by.add(here)
  summed = {u: nodes for u in order if u.op is Ops.REDUCE and (nodes := products_of(u, same, readers))}
  within = {same[v] for nodes in summed.values() for v in nodes}
  for u in reversed(order):  # readers before what they read
    if u.op in GroupOp.Rearranging and (by := readers.get(same[u])) and by <= within:
      within.add(same[u])
  inside = {u for u in order if same[u] in within}
  found, below = Contractions({}, {}, inside), Below()
  for reduce, nodes in summed.items():
    muls = tuple(v for v in nodes if v.op is Ops.MUL)
    first = muls[0]
    ends = [below.end(s, dims_of(first), inside) for mul in muls for s in mul.src]
    out = tuple(() if i in reduce.arg[1] else (i,) for i in range(first.ndim))
    rule = Rule((*(lists for _, lists in ends), out), first.max_shape, len(ends), special=frozenset(reduce.arg[1]))
    c = found.by_reduce[reduce] = Contraction(reduce, muls, tuple(u for u, _ in ends), rule, tuple(nodes))
    found.by_mul |= dict.fromkeys(muls, c)
  found.inside = {u for c in found.by_reduce.values() for u in all_between(c)}
  return found


def products_of(u: UOp, same: Mapping[UOp, UOp], readers: Mapping[UOp, set[UOp]]) -> list[UOp]:
  """The MULs that a REDUCE sums, and what is between; none, if anything else reads one of them."""
  todo, found = [u.src[0]] if u.arg[0] is Ops.ADD else [], list[UOp]()
  while todo:
    x = todo.pop()
    is_move = bool(x.src) and same[x] is same[x.src[0]]
    if len(readers[same[x]]) > 1 or not (x.op is Ops.MUL or x.op is Ops.ADD or x.op is Ops.CAST or is_move):
      return []
    found.append(x)
    if x.op is not Ops.MUL:
      todo += x.src
  return found


def dims_of(u: UOp) -> Lists:
  return tuple((i,) for i in range(u.ndim))


class Below:
  """What lies below rearranged values; of equal ops on values of equal shapes it is asked once."""

  def __init__(self) -> None:
    self.known: dict[tuple[Any, ...], Lists | None] = {}

  def end(self, u: UOp, lists: Lists, inside: set[UOp]) -> tuple[UOp, Lists]:
    """Down from `u`, whose dims are these factors, to the operand, and the factors of its dims."""
    while u in inside and u.src:
      key = (u.op, u.arg, u.src[0].shape, lists)
      if key not in self.known:
        self.known[key] = source_lists(u, lists)
      if (below := self.known[key]) is None:
        break
      u, lists = u.src[0], below
    return u, lists


def source_lists(u: UOp, lists: Lists) -> Lists | None:
  """The factors of the dims of a rearranged value's source; None where a dim would have a part of one."""
  f = factor_rule(u)
  if f.blocked:
    return None
  names: dict[int, tuple[int, ...]] = {}
  for inner, mine in zip(f.out, lists, strict=True):
    if len(inner) == 1:
      names[inner[0]] = mine
    elif inner and mine:
      return None
  return tuple(tuple(g for factor in inner for g in names.get(factor, ())) for inner in f.src[0])


def all_between(c: Contraction) -> Iterator[UOp]:
  """The nodes of a contraction below its REDUCE and above its operands."""
  yield from c.between
  for s, operand in zip((s for mul in c.muls for s in mul.src), c.operands):
    while s is not operand:
      yield s
      s = s.src[0]
