"""Equal layers, of which some may be placed one way and some another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tinygrad.solver.auto.classes import Classes, numbered
from tinygrad.solver.problem import Problem


@dataclass(slots=True)
class Layers:
  """Parts of a problem that hang together only through values that are alone in their class, as the stream through all
  layers; so any of them may be placed as any other. `of[v]`: the part of the value as which v is placed, None: of none;
  `between`: the classes that are of none."""

  of: list[int | None]
  between: list[int]

  def split(self, problem: Problem, classes: Classes, apart: Collection[int]) -> Classes:
    """Classes in which what belongs to the parts `apart` is distinct from what belongs to others."""

    def is_apart(values: Iterable[int | None]) -> bool:
      return any(v is not None and self.of[v] in apart for v in values)

    value, values = numbered([(c, is_apart((v,))) for v, c in enumerate(classes.value)])
    edge, edges = numbered([(c, is_apart(e.values)) for c, e in zip(classes.edge, problem.edges)])
    return Classes(value, edge, values, edges)


def equal_layers(problem: Problem, merged: Sequence[int], classes: Classes) -> Layers:
  count = [len({merged[v] for v in members}) for members in classes.values]
  first = list(range(len(merged)))

  def find(v: int) -> int:
    while first[v] != v:
      first[v] = v = first[first[v]]
    return v

  for edge in problem.edges:
    within = [merged[v] for v in edge.values if v is not None and count[classes.value[v]] > 1]
    for v in within[1:]:
      a, b = find(within[0]), find(v)
      first[max(a, b)] = min(a, b)
  of = [find(merged[v]) if count[c] > 1 else None for v, c in enumerate(classes.value)]
  return Layers(of, [c for c, n in enumerate(count) if n == 1])
