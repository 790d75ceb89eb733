"""The choice of the least predicted time, and how near to that it certainly is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinygrad.device import refuse
from tinygrad.helpers import size_to_str
from tinygrad.solver.auto.bounds import Part, converged
from tinygrad.solver.auto.choices import Cut
from tinygrad.solver.auto.linear import CLOSE, relaxed
from tinygrad.solver.auto.program import Chosen, Program, mended

MOST_COLUMNS = 200_000  # of a linear program for all choices; in a larger one these are looked for by bounds
MOST_WHOLE = 150_000  # of one in which whole placements are searched for
MOST_LEFT = 500_000  # of one among which the best choice certainly is, or those near a known one


def least_time(p: Program) -> Chosen:
  """The placements of the least predicted time. Raises: ShardError where none fits the memory."""
  least = sum(min(v.memory) for v in p.values)
  if p.memory is not None and least > p.memory:
    said = f"auto: no placement fits in {size_to_str(p.memory)} on each device"
    refuse(said, f"memory={math.ceil(least)}  # the least that a placement holds; or more devices")
  known = solved(p) if p.columns() <= MOST_COLUMNS else None
  return known if known is not None and known.gap <= CLOSE else searched(p, known)


def searched(p: Program, known: Chosen | None = None) -> Chosen:
  """From a choice by messages, or the `known` one if that is better, to the best one that differs from it in one mesh
  axis of each value and each op, then in two, until it is close enough to the bound, or all that may be better has been
  looked at."""
  messages = converged(p)
  if not p.fits(chosen := mended(p, messages.decoded())):
    chosen = mended(p, p.smallest())
  found = Chosen(chosen, p.total(chosen), messages.bound())
  if known is not None:
    better = known if known.seconds < found.seconds else found
    found = Chosen(better.cuts, better.seconds, max(found.bound, known.bound))
  axes, radius = len(p.values[0].cuts[0]), 1
  while found.gap > CLOSE and radius <= axes:
    cuts, ways = near(p, found.cuts, messages.needed(found.seconds - found.bound), radius)
    part = p.kept(cuts, ways)
    if part.columns() > MOST_LEFT:
      break
    better = solved(part)
    if radius == axes:
      found.bound = max(found.bound, min(found.seconds, better.bound))
    if better.seconds < found.seconds * (1 - CLOSE / 10):
      found = Chosen([keep[k] for keep, k in zip(cuts, better.cuts)], better.seconds, found.bound)
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


def solved(p: Program) -> Chosen:
  """By the relaxation: of each value the cut that has most of it, mended by changing one value at a time. Where that is
  not close to the least (mostly where memory binds), by a search for whole placements, in a large program among those
  that the relaxation has shares of."""
  smallest = p.smallest()
  shares, bound = relaxed(p, p.total(smallest))
  chosen = most_of(p, shares)
  if not p.fits(chosen):  # no change of one value alone has made it fit
    chosen = mended(p, smallest)
  found = Chosen(chosen, p.total(chosen), bound)
  if found.gap > CLOSE and p.columns() <= MOST_WHOLE:
    better, bound = whole_choice(p, found.seconds)
    found.bound = max(found.bound, bound)
  elif found.gap > CLOSE:
    among = [sorted({k, *(k for k, x in enumerate(one) if x > 0)}) for one, k in zip(shares, chosen)]
    better = [keep[k] for keep, k in zip(among, whole_choice(p.kept(among), found.seconds)[0])]
  else:
    better = []
  if better and p.fits(better) and p.total(better) < found.seconds:
    found.cuts, found.seconds = better, p.total(better)
  found.bound = min(found.bound, found.seconds)
  return found


def whole_choice(p: Program, seconds: float) -> tuple[list[int], float]:
  """(the best choice that a search finds, empty if none; what no choice is below). `seconds`: of a known one."""
  shares, bound = relaxed(p, seconds, whole=True)
  return most_of(p, shares) if shares else [], bound


def most_of(p: Program, shares: Sequence[Sequence[float]]) -> list[int]:
  return mended(p, [max(range(len(one)), key=one.__getitem__) for one in shares])
