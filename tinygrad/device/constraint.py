"""Hints: what the user says of how a value is to be placed, by names of mesh axes, before there is a mesh. A hint is
beside a value's placement and never part of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad.device.errors import ShardTypeError, refuse
from tinygrad.device.mesh import Mesh, SubAxis, as_index
from tinygrad.device.partition_spec import P, cuts_or_rule, repaired
from tinygrad.device.sharding import Sharding

OPEN = "?"  # in a P: the dim may be cut further than by the axes before it
DIRECTIONS = ("both", "forward", "backward", "none")


@dataclass(frozen=True, slots=True)
class Constraint:
  """A hint, by names of mesh axes. Of each dim: `dims`, the axes and sub-axes that cut it (major to minor), `opened`,
  whether it may be cut further, `priorities`, the round in which what it says is propagated (0 first).

  `replicated`: axes that cut no dim. `reduced`: axes over which the value is whole here: a sum over them is not put off
  beyond this point. `group`: values of one group are placed alike. `propagate`: what passes this point: "both"
  directions, only "forward" (to the readers), only "backward" (to what it is computed from), or "none".
  """

  dims: tuple[tuple[str, ...], ...]
  opened: tuple[bool, ...]
  priorities: tuple[int, ...]
  replicated: tuple[str, ...] = ()
  reduced: tuple[str, ...] = ()
  group: Hashable = None
  propagate: str = "both"

  @property
  def spec(self) -> P:
    """The dims as they are written."""
    entries = [(*names, OPEN) if is_open else names for names, is_open in zip(self.dims, self.opened)]
    return P(*(None if not e else e[0] if len(e) == 1 else e for e in entries))

  def sub_axes(self, mesh: Mesh) -> tuple[tuple[tuple[SubAxis, ...], ...], tuple[SubAxis, ...], tuple[SubAxis, ...]]:
    """(of each dim, replicated, reduced) on a mesh. Raises: ShardError for what is no axis of it, or is used twice."""
    (*dims, replicated), rule, why = cuts_or_rule(mesh, P(*self.dims, self.replicated))
    (reduced,), reduced_rule, reduced_why = cuts_or_rule(mesh, P(self.reduced))
    if rule or reduced_rule:
      refuse(f"{self!r}: {rule or reduced_rule}", f"x.{self.repaired(mesh)!r}  # {why or reduced_why}")
    return tuple(dims), replicated, reduced

  def repaired(self, mesh: Mesh) -> Constraint:
    """Without the axes that the mesh does not have, or that are used before."""
    *dims, replicated, reduced = (
      (entry,) if isinstance(entry, str) else entry or ()
      for entry in (*repaired(mesh, P(*self.dims, self.replicated)), *repaired(mesh, P(self.reduced)))
    )
    return replace(self, dims=tuple(dims), replicated=replicated, reduced=reduced)

  @property
  def of_gradient(self) -> Constraint:
    """The hint for the gradient of the value, which is placed as the value is."""
    return replace(self, reduced=(), group=None)

  def __repr__(self) -> str:
    said = [repr(self.spec)]
    if any(self.priorities):
      same = len({*self.priorities}) == 1
      said.append(f"priority={self.priorities[0] if same else self.priorities}")
    named = (("replicated", self.replicated), ("reduced", self.reduced), ("group", self.group))
    said += [f"{name}={value!r}" for name, value in named if value not in ((), None)]
    said += [f"propagate={self.propagate!r}"] if self.propagate != "both" else []
    return f"constrain({', '.join(said)})"


def constraint(
  rank: int,
  spec: Any = None,
  priority: int | Sequence[int] = 0,
  replicated: Sequence[str] = (),
  reduced: Sequence[str] = (),
  group: Hashable = None,
  propagate: str = "both",
) -> Constraint:
  """The hint for a value of `rank` dims. `spec`: a `P` in which `OPEN` may stand alone or behind a dim's axes; without
  one every dim is open. Dims that it does not reach are closed, as those with None.

  Raises: ShardError for more dims than there are, an OPEN before axes, a direction or a priority that is none;
  ShardTypeError for a spec that is no `P`.
  """
  if spec is not None and not isinstance(spec, P):
    refuse(f"constrain: a spec is a P, not {spec!r}", f"x.constrain({_spec_like(spec)})", error=ShardTypeError)
  entries = P(*(OPEN,) * rank) if spec is None else spec
  if len(entries) > rank:
    refuse(f"constrain: {entries!r} has {len(entries)} dims, the tensor {rank}", f"x.constrain({P(*entries[:rank])!r})")
  listed = [(e,) if isinstance(e, str) else e or () for e in entries] + [()] * (rank - len(entries))
  for names in listed:
    if OPEN in names[:-1]:
      fixed = (*(n for n in names if n != OPEN), OPEN)
      refuse(f"constrain: {names!r} of {entries!r}: OPEN stands behind a dim's axes", f"{fixed!r}")
  if propagate not in DIRECTIONS:
    refuse(f"constrain: propagate={propagate!r} is none of {', '.join(DIRECTIONS)}", 'propagate="both"')
  try:
    hash(group)
  except TypeError:
    rule = f"constrain: group={group!r} of type {type(group).__name__} cannot be told from others: it has no hash"
    refuse(rule, 'group="kv"  # any name', error=ShardTypeError)
  hint = Constraint(
    tuple(tuple(n for n in names if n != OPEN) for names in listed),
    tuple(OPEN in names for names in listed),
    _priorities(priority, rank),
    _names("replicated", replicated),
    _names("reduced", reduced),
    group,
    propagate,
  )
  if (once := _without_repeats(hint)) != hint:
    refuse(f"{hint!r}: an axis is named twice", f"x.{once!r}  # each mesh axis cuts one dim, or none")
  return hint


def _without_repeats(hint: Constraint) -> Constraint:
  """Each axis where it is named first."""
  seen: set[str] = set()

  def first(names: tuple[str, ...]) -> tuple[str, ...]:
    kept = tuple(n for n in dict.fromkeys(names) if n not in seen)
    seen.update(kept)
    return kept

  dims = tuple(map(first, hint.dims))
  return replace(hint, dims=dims, replicated=first(hint.replicated), reduced=tuple(dict.fromkeys(hint.reduced)))


def _spec_like(given: Any) -> str:
  """The `P` that may have been meant."""
  if isinstance(given, Sharding):
    return repr(given.spec)
  names = given if isinstance(given, (tuple, list)) else (given,)
  if all(n is None or isinstance(n, str) for n in names):
    return repr(P(*names))
  return "P('x', OPEN)"


def _priorities(given: Any, rank: int) -> tuple[int, ...]:
  """One for each dim."""
  listed = tuple(given) if isinstance(given, (tuple, list)) else (given,) * rank
  numbers = tuple(as_index(n) for n in listed)
  if len(numbers) != rank or any(n is None or n < 0 for n in numbers):
    rule = f"constrain: priority={given!r}: a number from 0 on, or one for each of the {rank} dims"
    refuse(rule, "priority=0  # the first round")
  return tuple(n for n in numbers if n is not None)


def _names(what: str, given: Any) -> tuple[str, ...]:
  listed = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
  if not all(isinstance(n, str) and n for n in listed):
    refuse(f"constrain: {what}={given!r}: names of mesh axes", f'{what}=("x",)', error=ShardTypeError)
  return listed
