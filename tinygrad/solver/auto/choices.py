"""The ways to place a value and to run an op on a mesh, each mesh axis cutting one dim, or one factor, or nothing; and
what each takes, in seconds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Mesh, Partial, Placement, Sharding, SubAxis, refuse
from tinygrad.device.sub_axes import overlap
from tinygrad.helpers import numpy, prod
from tinygrad.sharding.moves import Step, plan
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.axes import common, within_axes
from tinygrad.solver.problem import Hint, Rule
from tinygrad.uop import Ops

Cut = tuple[int, ...]  # by mesh axis the dim, or factor, that it cuts; -1: none
Want = tuple[Cut, frozenset[int]]  # how an op wants a source, or gives a result: that is partial over these axes
NONE = -1
MOST_AXES = 3  # of a mesh: the ways to cut an op grow as the power of them


@dataclass(frozen=True, slots=True)
class Way:
  """How an op runs: `factors`, which of them each axis cuts; `wants`, of each source, then of each result;
  `seconds` on each device."""

  factors: Cut
  wants: tuple[Want, ...]
  seconds: float


class Choices:
  """Placements and ways on one mesh and machine, priced."""

  def __init__(self, mesh: Mesh, machine: Machine) -> None:
    self.mesh, self.machine = mesh, machine
    names = [name for name in mesh.names if mesh.sub_axis(name).size > 1]
    self.axes = [mesh.sub_axis(name) for name in names]
    self.links = machine.links(names)
    if len(self.axes) > MOST_AXES:
      rule = f"auto: {mesh} has {len(self.axes)} axes, and choices are looked at for {MOST_AXES}"
      refuse(rule, "Mesh(mesh.devices, (a, b), names)  # two of the axes as one")
    self.units: dict[tuple[Any, ...], tuple[float, ...]] = {}
    self.tables: dict[tuple[Any, ...], Any] = {}

  def dims(self, cut: Cut, rank: int) -> tuple[tuple[SubAxis, ...], ...]:
    """The sub-axes that cut each dim, major to minor in the order of the mesh."""
    return tuple(tuple(a for a, d in zip(self.axes, cut) if d == i) for i in range(rank))

  def placement(self, cut: Cut, rank: int) -> Placement:
    return Sharding.of(self.mesh, self.dims(cut, rank))  # type: ignore[no-any-return]

  def parts(self, cut: Cut, i: int) -> int:
    return prod(a.size for a, d in zip(self.axes, cut) if d == i)

  def cuts(self, shape: Sequence[int], hint: Hint | None) -> list[Cut]:
    """How a value may be placed: dims are cut evenly, and as its hint says."""
    found = [
      cut
      for cut in itertools.product(range(NONE, len(shape)), repeat=len(self.axes))
      if all(n % self.parts(cut, i) == 0 for i, n in enumerate(shape)) and self.allows(hint, cut, len(shape))
    ]
    return found or [(NONE,) * len(self.axes)]

  def allows(self, hint: Hint | None, cut: Cut, rank: int) -> bool:
    if hint is None:
      return True
    dims = [within_axes(d, self.mesh) for d in self.dims(cut, rank)]
    used = [a for a, d in zip(self.axes, cut) if d != NONE]
    return all(
      said == found or (is_open and common(said, found) == said)
      for said, found, is_open in zip(hint.dims, dims, hint.opened)
    ) and not any(a in used for a in hint.replicated)

  def ways(self, rule: Rule, itemsize: int, touched: Sequence[float] | None) -> list[Way]:
    """How an op may run: each axis cuts a factor that can be cut, or none. `touched`: the bytes that it reads of each
    source and writes of each result, uncut; None: it takes no time itself."""
    factors = [f for f in range(len(rule.sizes)) if f not in rule.blocked and rule.sizes[f] > 1]
    out = []
    for cut in itertools.product((NONE, *factors), repeat=len(self.axes)):
      if all(rule.sizes[f] % self.parts(cut, f) == 0 for f in factors):
        dims = [self.of_tensor(cut, lists, rule) for lists in rule.tensors]
        if all(d is not None for d in dims):
          out.append(self.way(cut, [d for d in dims if d is not None], rule, itemsize, touched))
    return out

  def of_tensor(self, cut: Cut, lists: tuple[tuple[int, ...], ...], rule: Rule) -> Cut | None:
    """The dims of a tensor that are cut where factors are; None if a dim cannot be cut so: factors major to a cut one
    must be wholly cut, by axes major to its own."""
    place = {f: (i, inner) for i, inner in enumerate(lists) for f in inner}
    for a, f in enumerate(cut):
      if f in place and f != NONE:
        inner = place[f][1]
        for g in inner[: inner.index(f)]:
          if self.parts(cut, g) != rule.sizes[g] or any(other == g for other in cut[a + 1 :]):
            return None
    return tuple(place[f][0] if f in place else NONE for f in cut)

  def way(self, cut: Cut, dims: Sequence[Cut], rule: Rule, itemsize: int, touched: Sequence[float] | None) -> Way:
    n = rule.sources
    sums = [frozenset(a for a, f in enumerate(cut) if f != NONE and d[a] == NONE and f in rule.special) for d in dims]
    here = [prod(rule.sizes[f] for inner in lists for f in inner) for lists in rule.tensors]
    parts = [prod(self.axes[a].size for a, i in enumerate(d) if i != NONE) for d in dims]
    seconds = 0.0
    if touched is not None:
      work = 2.0 * prod(rule.sizes) / prod(self.axes[a].size for a, f in enumerate(cut) if f != NONE)
      moved = sum(nbytes / part for nbytes, part in zip(touched, parts))
      seconds = max(max(1, n // 2) * work / self.machine.flops, moved / self.machine.bandwidth)
    for i in range(n, len(dims)):
      halo = [f for a, f in enumerate(cut) if f in rule.special and dims[i][a] != NONE]
      seconds += here[i] / parts[i] * itemsize / min(self.links) + self.machine.latency if halo else 0.0
    return Way(cut, tuple(zip(dims, [frozenset()] * n + sums[n:])), seconds)

  def table(
    self,
    shape: tuple[int, ...],
    itemsize: int,
    cuts: Sequence[Cut],
    wants: Sequence[Want],
    source: bool,
    reads: int = 0,
  ) -> Any:
    """[cuts, wants]: the seconds that bring a value from each of its cuts to each of `wants`, or from those, which may
    be partial, to the cuts. `reads`: of one that would not be in memory otherwise, how often it is read, after it has
    been written."""
    parts = prod(a.size for a in self.axes)
    like = tuple([math.gcd(n, parts) for n in shape])
    key = tuple(cuts), tuple(wants), source, like
    if (found := self.tables.get(key)) is None:
      moves = [[(cut, want, over) if source else (want, cut, over) for want, over in wants] for cut in cuts]
      priced = [[self.unit(*move, like) for move in row] for row in moves]
      found = self.tables[key] = numpy.array(priced).reshape(len(cuts), len(wants), 4)
    here = (found[..., 2] + reads * found[..., 3]) / self.machine.bandwidth if reads else 0.0
    return (found[..., 0] + here) * (prod(shape) * itemsize) + found[..., 1]

  def link(self, step: Step) -> float:
    """Bytes a second of a step: of the slowest axis that it goes over."""
    over = [link for axis, link in zip(self.axes, self.links) if any(overlap(axis, d) for d in step.sub_axes)]
    return min(over or self.links)

  def unit(self, a: Cut, b: Cut, over: frozenset[int], like: tuple[int, ...]) -> tuple[float, ...]:
    """(seconds for each byte of the whole value, and besides, the share of it that a device holds before, and after) of
    one move of a value of a shape in as many parts as that of `like`. Dims are cut evenly, so that it does not matter
    which they are and how long; of those that are not cut only where a sum may be scattered over them on its way."""
    if a == b and not over:
      return 0.0, 0.0, 0.0, 0.0
    names: dict[int, int] = {NONE: NONE}
    a, b = (tuple([names.setdefault(d, len(names) - 1) for d in cut]) for cut in (a, b))
    used = [like[d] for d in names if d != NONE]
    others = {n for i, n in enumerate(like) if i not in names and n > 1} if over else set()
    key = a, b, over, shape = a, b, over, (*used, *sorted(others))
    if (known := self.units.get(key)) is None:
      partial = (Partial(tuple(self.axes[i] for i in sorted(over)), Ops.ADD),) if over else ()
      here = Sharding.of(self.mesh, self.dims(a, len(shape)), partial)
      steps = [step for step in plan(shape, 1, here, self.placement(b, len(shape))) if step.nbytes]
      seconds = sum(step.nbytes / self.link(step) for step in steps) / prod(shape)
      shares = (1 / prod(x.size for x, d in zip(self.axes, cut) if d != NONE) for cut in (a, b))
      known = self.units[key] = (seconds, self.machine.latency * len(steps), *(n if steps else 0.0 for n in shares))
    return known
