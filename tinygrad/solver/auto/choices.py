"""The ways to place a value and to run an op on a mesh, each mesh axis cutting one dim, or one factor, or nothing; and
what each takes, in seconds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad.device import Mesh, Partial, Sharding, SubAxis, refuse
from tinygrad.helpers import prod
from tinygrad.sharding.moves import plan
from tinygrad.solver.auto.machine import Machine
from tinygrad.solver.axes import common, within_axes
from tinygrad.solver.problem import Hint, Rule
from tinygrad.uop import Ops

Cut = tuple[int, ...]  # by mesh axis the dim, or factor, that it cuts; -1: none
NONE = -1
MOST_AXES = 2  # of a mesh: the ways to cut an op grow as the power of them


@dataclass(frozen=True, slots=True)
class Way:
  """How an op runs: `needs`, of each source its cut; `gives`, of each result its cut and the mesh axes over which it is
  partial; `seconds` on each device."""

  needs: tuple[Cut, ...]
  gives: tuple[tuple[Cut, frozenset[int]], ...]
  seconds: float


class Choices:
  """Placements and ways on one mesh and machine, priced."""

  def __init__(self, mesh: Mesh, machine: Machine) -> None:
    self.mesh, self.machine = mesh, machine
    self.axes = [axis for name in mesh.names if (axis := mesh.sub_axis(name)).size > 1]
    if len(self.axes) > MOST_AXES:
      rule = f"auto: {mesh} has {len(self.axes)} axes, and choices are looked at for {MOST_AXES}"
      refuse(rule, "Mesh(mesh.devices, (a, b), names)  # two of the axes as one")
    self.prices: dict[tuple[object, ...], float] = {}

  def dims(self, cut: Cut, rank: int) -> tuple[tuple[SubAxis, ...], ...]:
    """The sub-axes that cut each dim, major to minor in the order of the mesh."""
    return tuple(tuple(a for a, d in zip(self.axes, cut) if d == i) for i in range(rank))

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

  def ways(self, rule: Rule, itemsize: int, heavy: bool, stored: Sequence[bool]) -> list[Way]:
    """How an op may run: each axis cuts a factor that can be cut, or none. `heavy`: it reads and writes memory, of its
    tensors those that are `stored`."""
    factors = [f for f in range(len(rule.sizes)) if f not in rule.blocked and rule.sizes[f] > 1]
    out = []
    for cut in itertools.product((NONE, *factors), repeat=len(self.axes)):
      if all(rule.sizes[f] % self.parts(cut, f) == 0 for f in factors):
        dims = [self.of_tensor(cut, lists, rule) for lists in rule.tensors]
        if all(d is not None for d in dims):
          out.append(self.way(cut, [d for d in dims if d is not None], rule, itemsize, heavy, stored))
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

  def way(self, cut: Cut, dims: Sequence[Cut], rule: Rule, itemsize: int, heavy: bool, stored: Sequence[bool]) -> Way:
    n = rule.sources
    sums = [frozenset(a for a, f in enumerate(cut) if f != NONE and d[a] == NONE and f in rule.special) for d in dims]
    here = [prod(rule.sizes[f] for inner in lists for f in inner) for lists in rule.tensors]
    parts = [prod(self.axes[a].size for a, i in enumerate(d) if i != NONE) for d in dims]
    work = 2.0 * prod(rule.sizes) / prod(self.axes[a].size for a, f in enumerate(cut) if f != NONE)
    moved = sum(size / part for size, part, counts in zip(here, parts, stored) if counts) * itemsize
    seconds = max(work / self.machine.flops, moved / self.machine.bandwidth) if heavy else 0.0
    for i in range(n, len(dims)):
      halo = [f for a, f in enumerate(cut) if f in rule.special and dims[i][a] != NONE]
      seconds += here[i] / parts[i] * itemsize / self.machine.link + self.machine.latency if halo else 0.0
    return Way(tuple(dims[:n]), tuple(zip(dims[n:], sums[n:])), seconds)

  def seconds(self, shape: tuple[int, ...], itemsize: int, a: Cut, b: Cut, over: frozenset[int] = frozenset()) -> float:
    """To bring a value from one placement, in which it may be partial over mesh axes, to another."""
    if a == b and not over:
      return 0.0
    key = shape, itemsize, a, b, over
    if (known := self.prices.get(key)) is None:
      partial = (Partial(tuple(self.axes[i] for i in sorted(over)), Ops.ADD),) if over else ()
      here = Sharding.of(self.mesh, self.dims(a, len(shape)), partial)
      steps = plan(shape, itemsize, here, Sharding.of(self.mesh, self.dims(b, len(shape))))
      known = sum(s.nbytes / self.machine.link + self.machine.latency * (s.nbytes > 0) for s in steps)
      self.prices[key] = known
    return known
