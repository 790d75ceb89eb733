"""How the dims of a value are cut over the axes of a mesh, by their names: `P`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.device.errors import ShardTypeError, refuse
from tinygrad.device.mesh import Mesh, SubAxis, _Frozen, as_index, in_short, overlapping
from tinygrad.helpers import difflib

_specs: dict[tuple[Any, ...], P] = {}


class P(_Frozen, tuple[Any, ...]):
  """PartitionSpec: for each tensor dim None, a mesh axis name, or a tuple of names (major to minor). `P("dp",
  None)`. Equal ones are the same object. ShardTypeError for anything else.

  Examples:
    >>> P("data", None)
    P('data', None)
    >>> P(("data", "model"), None) == P(["data", "model"], None)
    True
    >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
    >>> Tensor.ones(4, 2).shard(mesh, P('d')).device.spec
    P('d')
  """

  __slots__ = ()

  def __new__(cls, *dims: str | None | Sequence[str]) -> P:
    entries: tuple[Any, ...] = tuple(tuple(d) if isinstance(d, list) else d for d in dims)
    wrong = [d for d in entries if not (d is None or _is_name(d) or (isinstance(d, tuple) and all(map(_is_name, d))))]
    if wrong:
      given = f"P({', '.join('...' if d is ... else repr(d) for d in entries)})"
      rule = f"{given}: for each dim of the tensor a P has None, the name of a mesh axis, or a tuple of names"
      if len(entries) == 1 and (axis := as_index(wrong[0])) is not None and axis >= 0:
        refuse(rule, f"Sharding(devices, axis={axis})  # a dim by its number", error=ShardTypeError)
      fixed = cls(
        *(tuple(filter(_is_name, d)) if isinstance(d, tuple) else d if _is_name(d) else None for d in entries)
      )
      refuse(rule, f"{fixed!r}", error=ShardTypeError)
    plain = tuple(tuple(map(str, d)) if isinstance(d, tuple) else d if d is None else str(d) for d in entries)
    return _specs.setdefault(plain, super().__new__(cls, plain))

  def __getnewargs__(self) -> tuple[Any, ...]:
    return tuple(self)

  def __repr__(self) -> str:
    return f"P({', '.join(map(repr, self))})"


def _is_name(entry: Any) -> bool:
  return isinstance(entry, str) and entry != ""


PartitionSpec = P


def as_spec(axis: Any, mesh: Mesh) -> P:
  """How dims are cut, given in another way than by the number of one: a `P`, or what one is made of."""
  if isinstance(axis, P):
    return axis
  if isinstance(axis, (tuple, list)):
    return P(*axis)
  rule = f"axis={in_short(axis)} of type {type(axis).__name__} is neither the number of a dim nor a P of axis names"
  named = isinstance(axis, str) and not isinstance(mesh._sub_axis(axis), str)
  refuse(rule, f"P({axis!r})" if named else f"{int(axis) if _is_whole(axis) else 0}  # the axis", error=ShardTypeError)


def _is_whole(n: Any) -> bool:
  return isinstance(n, (bool, float)) and n >= 0 and float(n).is_integer()


def cuts_of(mesh: Mesh, spec: P) -> list[tuple[SubAxis, ...]]:
  """The sub-axes that cut each dim. ShardError for what is no axis of the mesh, or is used twice."""
  good, rule, why = cuts_or_rule(mesh, spec)
  if rule:
    refuse(f"{spec!r}: {rule}", f"{repaired(mesh, spec)!r}  # {why}")
  return good


def cuts_or_rule(mesh: Mesh, spec: P) -> tuple[list[tuple[SubAxis, ...]], str, str]:
  """(the sub-axes that cut each dim, the rule that this breaks or "", what may be written instead)."""
  dims = [tuple(map(mesh._sub_axis, _names_of(entry))) for entry in spec]
  wrong = [d for dim in dims for d in dim if isinstance(d, str)]
  good = [tuple(d for d in dim if isinstance(d, SubAxis)) for dim in dims]
  if wrong:
    return good, wrong[0], f"axes: {', '.join(map(repr, mesh.names))}; parts of one: '{mesh.names[0]}:(1)2'"
  if overlap := overlapping(mesh, [d for dim in good for d in dim]):
    rule = f"{overlap} of {mesh} is used twice, or overlaps another part of the same placement"
    return good, rule, "each mesh axis cuts one dim"
  return good, "", ""


def _names_of(entry: Any) -> tuple[str, ...]:
  return (entry,) if isinstance(entry, str) else entry or ()


def spec_of(mesh: Mesh, dims: Sequence[Sequence[SubAxis]]) -> P:
  """The `P` that cuts dims so: what `cuts_of` gives for it on this mesh is `dims`, joined where they are adjacent."""
  names = [tuple(name for d in dim for name in mesh.axes_of((d,))) for dim in dims]
  return P(*(None if not n else n[0] if len(n) == 1 else n for n in names))


def repaired(mesh: Mesh, spec: P) -> P:
  """The spec without what cannot be; a name that differs from an axis by little is taken for that."""
  used: list[SubAxis] = []
  dims: list[Any] = []
  for entry in spec:
    kept: list[str] = []
    for name in _names_of(entry):
      near = [name, *difflib.get_close_matches(name.partition(":")[0], mesh.names, 1, 0.5)]
      fits = (n for n in near if isinstance(d := mesh._sub_axis(n), SubAxis) and not overlapping(mesh, [*used, d]))
      if (good := next(fits, None)) is not None:
        used.append(mesh.sub_axis(good))
        kept.append(good)
    dims.append(None if not kept else kept[0] if len(kept) == 1 else tuple(kept))
  return P(*dims)
