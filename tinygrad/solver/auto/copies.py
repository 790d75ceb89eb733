"""The problem as automatic placement poses it: what elementwise ops connect is one, and what several other ops read may
have a second placement beside the one where it is held, to which it is moved once for all of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tinygrad.helpers import prod
from tinygrad.solver.auto.classes import followers
from tinygrad.solver.auto.memory import is_view
from tinygrad.solver.auto.traffic import is_heavy
from tinygrad.solver.graph import Asked
from tinygrad.solver.problem import Edge, Hint, Problem, Rule
from tinygrad.uop import GroupOp, Ops, UOp


@dataclass(slots=True)
class Posed:
  """`merged[v]`: the value as which v is placed; `hints` of those. `nodes`, `ops`: what values and edges are (None: a
  copy). `copies`: of what has one its number; `readers`: how many ops read the memory of a value."""

  problem: Problem
  merged: list[int]
  hints: list[Hint | None]
  nodes: list[UOp]
  ops: list[UOp | None]
  copies: dict[int, int]
  readers: Counter[int]

  def follows(self, edge: Edge) -> bool:
    """Whether its values are placed as one."""
    return edge.rule.elementwise and len({self.merged[v] for v in edge.values if v is not None}) == 1

  def held(self, place: Mapping[UOp, int], moment: int) -> set[int]:
    """What has a copy that ops read before a moment and after it."""
    early, late = set[int](), set[int]()
    for u, edge in zip(self.ops, self.problem.edges):
      if u is not None and not self.follows(edge):
        into = late if place[u] > moment else early
        into.update(v for v in edge.values[: edge.rule.sources] if v is not None)
    return {v for v, copy in self.copies.items() if copy in early and copy in late}

  def reads(self, v: int, copied: bool, fused: set[UOp]) -> int:
    """Of a value that is not in memory unless it is moved, how often what an op reads of it, or what is copied, is
    read."""
    u = self.nodes[v]
    while u in fused and is_view(u) and u.op is not Ops.EXPAND:
      u = u.src[0]
    is_copy = v >= len(self.nodes) - len(self.copies)
    return 0 if u not in fused or is_copy else self.readers[v] if copied else 1


def posed(asked: Asked) -> Posed:
  """The copies are further values, each with an edge that only moves what it copies; those who read it elementwise,
  and so are placed with it, read it where it is held."""
  p = without_uniform(asked)
  found = Posed(p, *followers(p), list(asked.nodes), list(asked.ops), {}, Counter())
  heavy = [e for e, u in zip(p.edges, asked.ops) if is_heavy(u)]
  read = found.readers = Counter(v for e in heavy for v in e.values[: e.rule.sources] if v is not None)
  copied = [v for v, n in read.items() if n > 1 and prod(p.shapes[v]) > 1]
  found.copies = {v: len(p.shapes) + i for i, v in enumerate(copied)}
  edges = []
  for e in p.edges:
    n = 0 if found.follows(e) else e.rule.sources
    sources = [None if v is None else found.copies.get(v, v) for v in e.values[:n]]
    edges.append(dataclasses.replace(e, values=(*sources, *e.values[n:])))
  for v, copy in found.copies.items():
    dims = tuple((i,) for i in range(len(p.shapes[v])))
    edges.append(Edge(Rule((dims, dims), p.shapes[v], 1, elementwise=True), (v, copy)))
  found.problem = dataclasses.replace(
    p, edges=edges, shapes=p.shapes + [p.shapes[v] for v in copied], hints=p.hints + [None] * len(copied)
  )
  found.merged += found.copies.values()
  found.hints += [None] * len(copied)
  found.nodes += [asked.nodes[v] for v in copied]
  found.ops += [None] * len(copied)
  return found


def without_uniform(asked: Asked) -> Problem:
  """The problem where what is one element, repeated, takes no part in elementwise ops: it is whole on each device, and
  does not place alike what has nothing else in common, as an optimizer's weights."""
  p, uniform = asked.problem, set[int]()
  for v, u in enumerate(asked.nodes):
    alike = u.op in GroupOp.Rearranging or u.op in GroupOp.KeepsPlacement
    sources = [asked.number.get(s) for s in u.src]
    if alike and p.hints[v] is None and all(i is None or i in uniform or prod(p.shapes[i]) == 1 for i in sources):
      uniform.add(v)
  edges = []
  for e in p.edges:
    if e.rule.elementwise and any(v is not None and v not in uniform for v in e.values):
      e = dataclasses.replace(e, values=tuple([None if v in uniform else v for v in e.values]))
    edges.append(e)
  whole = [
    Hint.of(p.mesh, [()] * len(s), (False,) * len(s)) if v in uniform else h
    for v, (s, h) in enumerate(zip(p.shapes, p.hints))
  ]
  return dataclasses.replace(p, edges=edges, hints=whole)
