"""Which values and ops of a problem are decided as one: those of equal layers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from tinygrad.solver.problem import Hint, Problem
from tinygrad.solver.solve import hints_by_slot, slots

ROUNDS = 6  # how many ops away what is around a value counts


@dataclass(slots=True)
class Classes:
  """Numbers of classes. `value[v]`, `edge[e]`: the class of each; `values`, `edges`: the members of each class, the
  first of which stands for all."""

  value: list[int]
  edge: list[int]
  values: list[list[int]]
  edges: list[list[int]]


def classes_of(problem: Problem, leaves: Sequence[int], merged: Sequence[int], hints: Sequence[Hint | None]) -> Classes:
  """Values are one class if they have one shape and hint and the same ops around them, as far as `ROUNDS` reach (color
  refinement). `merged[v]`: the value as which v is placed, itself or another; `hints` of those."""
  known: dict[Hashable, int] = {}
  leaf = {merged[v] for v in leaves}
  at: dict[int, list[tuple[int, int]]] = {r: [] for r in merged}
  for e, edge in enumerate(problem.edges):
    for i, v in enumerate(edge.values):
      if v is not None:
        at[merged[v]].append((e, i))

  def color(key: Hashable) -> int:
    return known.setdefault(key, len(known))

  def around() -> list[int]:
    """Of each op its rule and the colors of its values."""
    return [
      color((edge.rule, *(None if v is None else colors[merged[v]] for v in edge.values))) for edge in problem.edges
    ]

  colors = {r: color((problem.shapes[r], r in leaf, hints[r])) for r in at}
  for _ in range(ROUNDS):
    ops = around()
    colors = {r: color((colors[r], *sorted((ops[e], i) for e, i in at[r]))) for r in at}
  value, values = numbered([colors[r] for r in merged])
  edge_class, edges = numbered(around())
  return Classes(value, edge_class, values, edges)


def numbered(colors: Sequence[Hashable]) -> tuple[list[int], list[list[int]]]:
  """(the number of each one's class, the members of each class), in the order in which they come."""
  numbers: dict[Hashable, int] = {}
  members: list[list[int]] = []
  out = []
  for i, color in enumerate(colors):
    n = numbers.setdefault(color, len(numbers))
    if n == len(members):
      members.append([])
    members[n].append(i)
    out.append(n)
  return out, members


def followers(problem: Problem) -> tuple[list[int], list[Hint | None]]:
  """Of each value the one as which it is placed, and the hint of that: values of one group are placed alike, and what
  elementwise ops connect, unless two hints speak of it. Raises: Disagreement for hints of one group."""
  first = slots(problem)
  given = hints_by_slot(problem, first)
  said = [given.get(v) for v in first]

  def find(v: int) -> int:
    while first[v] != v:
      first[v] = v = first[first[v]]
    return v

  for edge in problem.edges:
    values = [v for v in edge.values if v is not None]
    if edge.rule.elementwise and len({problem.shapes[v] for v in values}) == 1:
      for v in values[1:]:
        a, b = find(values[0]), find(v)
        hints = {h for h in (said[a], said[b]) if h is not None}
        if a != b and len(hints) < 2:
          first[max(a, b)] = min(a, b)
          said[min(a, b)] = next(iter(hints), None)
  return [find(v) for v in range(len(first))], said
