"""One op: what its values tell one another. Cuts of dims become cuts of factors, conflicts are resolved, and what each
value has room for becomes cuts of its dims.

Strategies, after Shardy's: "basic" takes of each factor what all values agree on; "aggressive" what those agree on that
say anything of it, and lets each value keep what fits beside its other cuts, factors of larger values first; "cost" is
that, and "larger" is by the bytes that all values which say the factor's cut would have to move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad.device import Mesh
from tinygrad.solver.axes import Axes, common, number_of_parts, prefix_beside
from tinygrad.solver.problem import Direction, Hint, Rule
from tinygrad.solver.projection import Projection, projected, rewritten

Cuts = dict[int, tuple[Axes, int]]  # by factor: what is to cut it, and the number of the tensor that says so


@dataclass(frozen=True, slots=True)
class Mode:
  """How a step is made: in which round of priorities, through which factors, in which directions, by which strategy;
  `atomic`: axes are not split into sub-axes."""

  round: int
  through: bool
  direction: Direction
  strategy: str
  atomic: bool


@dataclass(frozen=True, slots=True)
class Change:
  """What became of tensor number `tensor`, and for each dim that changed the number of the tensor that told it."""

  tensor: int
  hint: Hint
  told: tuple[tuple[int, int], ...]


def step(rule: Rule, hints: Sequence[Hint | None], weights: Sequence[float], mode: Mode, mesh: Mesh) -> list[Change]:
  """What an op changes of its values' hints (None: a value that takes no part)."""
  seen = {
    i: projected(h, lists, rule, mode.round, mode.atomic)
    for i, (h, lists) in enumerate(zip(hints, rule.tensors))
    if h is not None
  }
  forward, backward = Direction.FORWARD in mode.direction, Direction.BACKWARD in mode.direction
  givers = [i for i in seen if (forward if i < rule.sources else backward)]
  takers = [i for i in seen if (backward if i < rule.sources else forward)]
  cuts: Cuts = {}
  for f in range(len(rule.sizes)):
    if f not in rule.blocked and (not mode.through or is_pass_through(f, rule)):
      axes, giver = agreed({i: p.shown[f] for i, p in seen.items() if f in p.shown}, givers)
      if mode.strategy == "basic":
        axes = undisputed(f, axes, seen, mode.atomic)
      if axes:
        cuts[f] = axes, giver
  if not cuts:
    return []
  order = ordered(cuts, rule, seen, weights, mode.strategy)
  changed = {i: taken(seen[i], cuts, order, rule, mode) for i in takers if i >= rule.sources}
  for i in takers:
    if i < rule.sources:
      limited = cuts if mode.strategy == "basic" else as_far_as_results(cuts, seen, rule, mode.direction)
      changed[i] = taken(seen[i], limited, order, rule, mode)
  out: list[Change] = []
  for i, factors in changed.items():
    if factors and (hint := hints[i]) is not None:
      new = rewritten(hint, seen[i], factors, mesh)
      told = [(d, cuts[f][1]) for d, inner in enumerate(rule.tensors[i]) for f in inner if f in factors]
      out.append(Change(i, new, tuple(told)))
  return out


def is_pass_through(f: int, rule: Rule) -> bool:
  """Whether a factor is one of sources and of results, along which a cut costs nothing."""
  has = [any(f in inner for inner in lists) for lists in rule.tensors]
  return f not in rule.special and any(has[: rule.sources]) and any(has[rule.sources :])


def agreed(said: dict[int, Axes], givers: Sequence[int]) -> tuple[Axes, int]:
  """The longest cut of a factor that one of `givers` says, as far as no value is in conflict with it; and who says it
  first."""
  giver = max((i for i in givers if i in said), key=lambda i: number_of_parts(said[i]), default=-1)
  longest = said.get(giver, ())
  for axes in said.values():
    both = common(longest, axes)
    if number_of_parts(both) < min(number_of_parts(axes), number_of_parts(longest)):
      longest = both
  return longest, giver


def undisputed(f: int, axes: Axes, seen: dict[int, Projection], atomic: bool) -> Axes:
  """What of a cut every value of the factor could have: it is not closed there, and no other factor uses it."""
  for p in seen.values():
    if f in p.own:
      if f in p.closed:
        axes = common(axes, p.own[f])
      axes = prefix_beside(axes, p.others(f), atomic)
  return axes


def ordered(cuts: Cuts, rule: Rule, seen: dict[int, Projection], weights: Sequence[float], strategy: str) -> list[int]:
  """Which factors come first where values have room for one only: those of larger values, of an elementwise op the ones
  cut into more parts, of an earlier value. By cost: those for which all that say so weigh most."""

  def rank(f: int) -> tuple[float, float, int, int]:
    axes, giver = cuts[f]
    weight = weights[giver]
    if strategy == "cost":
      weight = sum(weights[i] for i, p in seen.items() if common(p.shown.get(f, ()), axes))
    return -weight, -number_of_parts(axes) if rule.elementwise else 0, giver, f

  return sorted(cuts) if strategy == "basic" else sorted(cuts, key=rank)


def as_far_as_results(cuts: Cuts, seen: dict[int, Projection], rule: Rule, direction: Direction) -> Cuts:
  """Sources tell one another what a result of the op has taken, too: else it would be moved to be computed."""
  out: Cuts = {}
  for f, (axes, giver) in cuts.items():
    results = [p.shown[f] for i, p in seen.items() if i >= rule.sources and f in p.shown]
    if results and giver < rule.sources:
      axes = max((common(axes, x) for x in results), key=number_of_parts)
    out[f] = axes, giver
  return out


def taken(p: Projection, cuts: Cuts, order: Sequence[int], rule: Rule, mode: Mode) -> set[int]:
  """Cuts the factors of a value as far as it has room for that; which ones have changed."""
  changed: set[int] = set()
  again = True
  while again:  # a factor may have room only when those major to it are wholly cut
    again = False
    for f in order:
      if f not in p.own or f in p.closed:
        continue
      old, wanted = p.own[f], cuts[f][0]
      if number_of_parts(wanted) == number_of_parts(old) or common(old, wanted) != old:
        continue
      new = p.room(f, prefix_beside(wanted, p.others(f), mode.atomic), rule.sizes, mode.atomic)
      if number_of_parts(new) > number_of_parts(old):
        if p.shown[f] == old:
          p.shown[f] = new
        p.own[f] = new
        changed.add(f)
        again = True
  return changed


__all__ = ["Change", "Mode", "step"]
