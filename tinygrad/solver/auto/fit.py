"""Placements, and what is computed again, so that the plan of a graph fits the memory of its devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tinygrad.device import ShardError, refuse
from tinygrad.helpers import size_to_str
from tinygrad.solver.auto.automatic import Automatic
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.auto.recompute import Dropping
from tinygrad.uop import UOp

TRIES = 3  # to find the limit of the model under which the plan fits

Roots = Sequence[UOp]


def fitted(
  choose: Callable[[float | None], Automatic],
  built: Callable[[Automatic], Roots],
  planned: Callable[[Roots], float],
  machine: Machine,
  memory: float,
) -> Automatic:
  """What `choose` finds under a limit of the model's memory (None: without), such that each device holds at most
  `memory` bytes by the plan of what is `built`: by placements alone, or by values that are computed again, where that
  takes less time. Raises: ShardError where nothing fits."""
  free = in_plan(choose(None), built, planned)
  if free.memory <= memory:
    return free
  scale = free.program.held(free.chosen.cuts) / free.memory  # of the model's bytes to the plan's
  least = sum(min(v.memory) for v in free.program.values)
  alone = by_placement(choose, built, planned, memory, scale)
  limits = [math.sqrt(memory * free.memory) * scale] + ([memory * scale] if alone is None else [])
  others = [in_plan(choose(max(limit, least)), built, planned) for limit in limits]
  found = [] if alone is None else [alone]
  for i, start in enumerate(starts := [free, *others]):
    chosen = replace(start.chosen, bound=free.chosen.bound)
    if start.memory <= memory:
      found.append(replace(start, chosen=chosen))
    elif all(start.chosen.cuts != other.chosen.cuts for other in starts[:i]):
      again = Dropping(built(start), machine, planned).fitted(memory)
      found.append(replace(start, chosen=chosen, again=again, nbytes=again.nbytes))
  fits = [a for a in found if a.memory <= memory]
  if not fits:
    smallest = math.ceil(min(a.memory for a in found))
    said = f"auto: nothing fits in {size_to_str(memory)} on each device, values computed again included"
    refuse(said, f"memory={smallest}  # the least that was found; or more devices")
  return min(fits, key=lambda a: a.seconds)


def in_plan(found: Automatic, built: Callable[[Automatic], Roots], planned: Callable[[Roots], float]) -> Automatic:
  """A choice with the bytes that its plan holds."""
  return replace(found, nbytes=planned(built(found)))


def by_placement(
  choose: Callable[[float | None], Automatic],
  built: Callable[[Automatic], Roots],
  planned: Callable[[Roots], float],
  memory: float,
  scale: float,
) -> Automatic | None:
  """A choice whose plan fits without anything computed again."""
  limit = memory * scale
  for _ in range(TRIES):
    try:
      found = in_plan(choose(limit), built, planned)
    except ShardError:
      return None
    if found.memory <= memory:
      return found
    limit *= memory / found.memory
  return None
