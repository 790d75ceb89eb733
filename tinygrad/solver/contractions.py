"""Sums of products, as ops of their own: a matmul is a RESHAPE and an EXPAND of each operand, a MUL and a REDUCE. What
stands between its operands and its result has no placement that anybody would ask for; the factors are the MUL's dims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tinygrad.solver.problem import Rule
from tinygrad.uop import GroupOp, Ops, UOp, factor_rule

Lists = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Contraction:
  """`reduce` of `mul` (perhaps cast between) is a sum of products of `operands`, by `rule`."""

  reduce: UOp
  mul: UOp
  operands: tuple[UOp, ...]
  rule: Rule


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
    for s in u.src:
      if same[s] is not same[u]:
        readers.setdefault(same[s], set()).add(same[u])
  sums = {mul: u for u in order if u.op is Ops.REDUCE and (mul := product_of(u, same, readers)) is not None}
  within, summed = {same[mul] for mul in sums}, {same[u] for u in sums.values()}
  for u in reversed(order):  # readers before what they read
    if u.op in GroupOp.Rearranging or (u.op is Ops.CAST and same[u.src[0]] in within):
      if (by := readers.get(same[u])) and by <= within | summed:
        within.add(same[u])
  inside = {u for u in order if same[u] in within}
  found = Contractions({}, {}, inside)
  for mul, reduce in sums.items():
    ends = [end(s, dims_of(mul), inside) for s in mul.src]
    out = tuple(() if i in reduce.arg[1] else (i,) for i in range(mul.ndim))
    rule = Rule((*(lists for _, lists in ends), out), mul.max_shape, len(ends), special=frozenset(reduce.arg[1]))
    c = Contraction(reduce, mul, tuple(u for u, _ in ends), rule)
    found.by_reduce[reduce] = found.by_mul[mul] = c
  found.inside = {u for c in found.by_mul.values() for u in between(c)}
  return found


def product_of(u: UOp, same: Mapping[UOp, UOp], readers: Mapping[UOp, set[UOp]]) -> UOp | None:
  """The MUL that a REDUCE sums, if nothing else reads it."""
  x = u.src[0]
  while len(readers[same[x]]) == 1 and (x.op is Ops.CAST or (x.src and same[x] is same[x.src[0]])):
    x = x.src[0]
  return x if u.arg[0] is Ops.ADD and x.op is Ops.MUL and len(readers[same[x]]) == 1 else None


def dims_of(u: UOp) -> Lists:
  return tuple((i,) for i in range(u.ndim))


def end(u: UOp, lists: Lists, inside: set[UOp]) -> tuple[UOp, Lists]:
  """Down from `u`, whose dims are these factors, to the operand, and the factors of its dims."""
  while u in inside and u.src and (below := source_lists(u, lists)) is not None:
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


def between(c: Contraction) -> Iterator[UOp]:
  """The nodes of a contraction below its REDUCE and above its operands."""
  u = c.reduce.src[0]
  while u is not c.mul:
    yield u
    u = u.src[0]
  yield u
  for s, operand in zip(c.mul.src, c.operands):
    while s is not operand:
      yield s
      s = s.src[0]
