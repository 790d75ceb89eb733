"""Between the dims of a value and the factors of an op: which factor each sub-axis cuts, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinygrad.device import Mesh, SubAxis
from tinygrad.solver.axes import Axes, dividing, within_axes
from tinygrad.solver.problem import Hint, Rule

Lists = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Projection:
  """A value's cuts by the factors of an op. `own`: what cuts each factor; `shown`: that, but for dims whose round has
  not come; `closed`: factors that stay as they are; `elsewhere`: sub-axes that are in use besides, or must not be."""

  lists: Lists
  own: dict[int, Axes]
  shown: dict[int, Axes]
  closed: set[int]
  elsewhere: list[SubAxis]

  def others(self, factor: int) -> list[SubAxis]:
    """What may not cut `factor` as well."""
    return [*self.elsewhere, *(d for f, axes in self.own.items() if f != factor for d in axes)]

  def room(self, factor: int, axes: Axes, sizes: tuple[int, ...], atomic: bool) -> Axes:
    """What of `axes` can cut the factor in this value: within a dim a factor must be cut evenly, and the factors major
    to it whole, but for the last one of the dim, unless axes are `atomic`."""
    for inner in self.lists:
      if factor in inner:
        at = inner.index(factor)
        for f in inner[:at]:
          if dividing(self.own.get(f, ()), sizes[f], atomic)[2] != 1:
            return self.own[factor]
        return axes if at == len(inner) - 1 and not atomic else dividing(axes, sizes[factor], atomic)[0]
    return ()


def projected(hint: Hint, lists: Lists, rule: Rule, round_: int, atomic: bool) -> Projection:
  """Dims to factors. Of a dim of several factors the major ones take what cuts them evenly, the last one all the rest;
  what is left of a factor that is not wholly cut freezes the dim."""
  p = Projection(lists, {}, {}, set(), [*hint.replicated, *hint.unreduced])
  for axes, is_open, priority, inner in zip(hint.dims, hint.opened, hint.priorities, lists, strict=True):
    rest = axes
    for f in inner[:-1]:
      p.own[f], rest, left = dividing(rest, rule.sizes[f], atomic)
      if rest and left != 1:
        p.elsewhere += rest
        p.own.update((g, ()) for g in inner if g not in p.own)
        is_open, rest = False, ()
    if inner:
      p.own.setdefault(inner[-1], rest)
    else:
      p.elsewhere += axes
    p.shown.update((f, () if priority > round_ else p.own[f]) for f in inner)
    if not is_open:
      p.closed.update(inner)
  return p


def rewritten(hint: Hint, p: Projection, changed: set[int], mesh: Mesh) -> Hint:
  """Factors to dims: the hint with what cuts the factors `changed`."""
  dims = list(hint.dims)
  for i, inner in enumerate(p.lists):
    if not changed.isdisjoint(inner):
      dims[i] = within_axes((d for f in inner for d in p.own[f]), mesh)
  return replace(hint, dims=tuple(dims))
