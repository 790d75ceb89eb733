"""The choice of the least predicted time, and how near to that it certainly is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

from tinygrad.device import refuse
from tinygrad.helpers import size_to_str
from tinygrad.solver.auto.choices import Cut
from tinygrad.solver.auto.hull import Hull
from tinygrad.solver.auto.linear import CLOSE, whole_choice
from tinygrad.solver.auto.program import Chosen, Part, Program, mended

MOST_WHOLE = 100_000  # columns of a linear program in which whole placements are searched for
MOST_LEFT = 500_000  # of one among which the best choice certainly is, or those near a known one


def check_memory(p: Program) -> None:
  """Raises: ShardError where no placement fits the memory."""
  if p.memory is not None and p.least() > p.memory:
    refuse_memory(p, p.least())


def refuse_memory(p: Program, least: float) -> NoReturn:
  said = f"auto: no placement fits in {size_to_str(p.memory or 0.0)} on each device"
  refuse(said, f"memory={math.ceil(least)}  # the least that a placement holds; or more devices")


def least_time(p: Program, hull: Hull | None = None) -> Chosen:
  """The placements of the least predicted time. `hull`: of the same program, if there is one. Raises: ShardError where
  none fits the memory."""
  check_memory(p)
  hull = hull or Hull(p)
  return refined(p, hull.chosen(p.memory), hull)


def refined(p: Program, found: Chosen, hull: Hull | None = None) -> Chosen:
  """A choice that is close enough to the bound, or the best that is found."""
  if found.gap <= CLOSE:
    return found
  hull = hull or Hull(p)
  return searched(p, found, hull) if hull.messages is not None else solved(p, found, hull)


def better(a: Chosen, b: Chosen) -> Chosen:
  """The faster one of two choices, with the higher of their bounds."""
  faster = b if b.seconds < a.seconds else a
  return Chosen(faster.cuts, faster.seconds, min(faster.seconds, max(a.bound, b.bound)), faster.edge)


def searched(p: Program, known: Chosen | None = None, hull: Hull | None = None) -> Chosen:
  """From a choice by messages, or the `known` one if that is better, to the best one that differs from it in one mesh
  axis of each value and each op, then in two, until it is close enough to the bound, or all that may be better has been
  looked at."""
  if hull is None or hull.messages is None:
    hull = Hull(p, by_messages=True)
  found = hull.chosen(p.memory)
  found = found if known is None else better(found, known)
  radius, axes = 1, len(p.values[0].cuts[0])
  while found.gap > CLOSE and radius <= axes:
    cuts, ways = near(p, found.cuts, hull.needed(p.memory, found.seconds), radius)
    part = p.kept(cuts, ways)
    if part.columns() > MOST_LEFT:
      break
    among = solved(part)
    if radius == axes:
      found.bound = max(found.bound, min(found.seconds, among.bound))
    if among.seconds < found.seconds * (1 - CLOSE / 10):
      found = Chosen([keep[k] for keep, k in zip(cuts, among.cuts)], among.seconds, found.bound, found.edge)
    else:
      radius += 1
  found.bound = min(found.bound, found.seconds)
  return found


def near(p: Program, chosen: Sequence[int], needed: Part, radius: int) -> Part:
  """Of each value the cuts, of each op the ways, that differ from a choice in no more mesh axes than `radius`."""

  def close(a: Cut, b: Cut) -> bool:
    return sum(x != y for x, y in zip(a, b)) <= radius

  cuts = [
    [k for k in sorted({*keep, c}) if close(v.cuts[k], v.cuts[c])] for v, c, keep in zip(p.values, chosen, needed[0])
  ]
  ways = []
  for op, keep in zip(p.ops, needed[1]):
    best = op.best(chosen)
    ways.append([w for w in sorted({*keep, best}) if close(op.ways[w].factors, op.ways[best].factors)])
  return cuts, ways


def solved(p: Program, known: Chosen | None = None, hull: Hull | None = None) -> Chosen:
  """By the relaxation; where that is not close to the least (mostly where memory binds), by a search for whole
  placements among those that may be part of a better choice."""
  hull = hull or Hull(p, by_messages=False)
  found = hull.chosen(p.memory)
  found = found if known is None else better(found, known)
  if found.gap <= CLOSE:
    return found
  cuts, ways = near(p, found.cuts, hull.needed(p.memory, found.seconds), len(p.values[0].cuts[0]))
  part = p.kept(cuts, ways)
  if part.columns() > MOST_WHOLE:
    return found
  chosen, bound = whole_choice(part, [keep.index(k) for keep, k in zip(cuts, found.cuts)])
  chosen = mended(p, [keep[k] for keep, k in zip(cuts, chosen)])
  return better(found, Chosen(chosen, p.total(chosen) if p.fits(chosen) else math.inf, bound, found.edge))
