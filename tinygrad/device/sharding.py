"""Placements: on which devices a value lives, how its dims are cut, and over what it is partial."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tinygrad.device.errors import ShardTypeError, refuse
from tinygrad.device.mesh import (
  Mesh,
  SubAxis,
  _axes,
  _canonical_names,
  _Frozen,
  as_index,
  device_code,
  merge_sub_axes,
  overlapping,
  short_devices,
)
from tinygrad.device.partition_spec import P, as_spec, cuts_of, spec_of
from tinygrad.device.registry import Device
from tinygrad.helpers import ceildiv, hue, prod

DeviceNames = tuple[str, ...] | list[str]  # of devices; a `str` alone is no sequence of them
Entry = str | None | tuple[str, ...] | list[str]  # of a P

_shardings: dict[tuple[Any, ...], Sharding] = {}
_written: dict[Sharding, Mesh] = {}  # the mesh with which a placement was last written: nodes made of it keep its names


@dataclass(frozen=True, slots=True)
class Partial:
  """A reduction that has not run, over `sub_axes`; `disjoint`: at most one coordinate holds a value that is not
  zero."""

  sub_axes: tuple[SubAxis, ...]
  op: Any  # the reduce op (Ops); this module sits below the IR and only compares and prints it
  disjoint: bool = False


class Sharding(_Frozen):
  """Where a value lives and how: its devices, for each dim the sub-axes that cut it (major to minor), and reductions
  still owed.

  `Sharding(("GPU:0", "GPU:1"), axis=0)` cuts dim 0 in two; `axis=None` replicates; `Sharding(mesh, P("dp", None))` is
  the general form.
  `partial={"tp": Ops.ADD}` says over which axes a reduction is owed, and which; `disjoint` which of them are disjoint.
  Sub-axes in neither replicate. Frozen and interned in one normal form: equal placements are the same object.
  On one device it is that device's plain name (a `str` is returned).
  Raises: ShardError for an axis used twice, a negative or repeated axis, sub-axes that overlap.

  Examples:
    >>> Sharding(("CPU:0", "CPU:1"), axis=0).axis
    0
    >>> mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
    >>> placement = Sharding(mesh, P(None, 'model'))
    >>> placement.local_shape((4, 6)), placement.spec
    ((4, 3), P(None, 'model'))
    >>> Sharding(("CPU:1",))
    'CPU:1'
  """

  __slots__ = ("devices", "dims", "home", "partial", "parts_", "reduced", "used")
  home: Mesh  # the first mesh over its devices
  devices: tuple[str, ...]
  dims: tuple[tuple[SubAxis, ...], ...]
  partial: tuple[Partial, ...]
  parts_: tuple[int, ...]
  reduced: Sharding  # not partial: those sub-axes replicate
  used: tuple[SubAxis, ...]  # every sub-axis that cuts, or over which it is partial

  # typed as what it nearly always is: of one device it is a `str`, and how many there are no type tells
  def __new__(
    cls,
    devices: Mesh | DeviceNames,
    axis: int | P | tuple[Entry, ...] | list[Entry] | None = None,
    partial: Mapping[str, Any] | None = None,
    disjoint: Collection[str] = (),
  ) -> Self:
    mesh = devices if isinstance(devices, Mesh) else Mesh(devices)
    dims: list[tuple[SubAxis, ...]] = []
    if (number := as_index(axis)) is not None:
      if number < 0:
        said = f"axis={number}: a Sharding does not know the tensor's rank, so the axis must be >= 0"
        refuse(said, f"Sharding(devices, axis=0)  # or x.shard(devices, axis={number}), which counts from the end")
      dims = [()] * number + [(SubAxis(len(mesh), 1),)]
    elif axis is not None:
      dims = cuts_of(mesh, as_spec(axis, mesh))
    made = Sharding.of(mesh, dims, _partials_of(mesh, partial or {}, disjoint))
    if isinstance(made, Sharding):
      _written[made] = mesh
    return made  # type: ignore[no-any-return]

  @staticmethod
  def of(mesh: Mesh, dims: Sequence[Sequence[SubAxis]], partial: Sequence[Partial] = ()) -> Any:
    """The interned normal form of the given sub-axes; the mesh's only device as a `str` if it has one. ShardError for
    sub-axes that overlap.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
      >>> Sharding.of(mesh, [[mesh.sub_axis('d')]]) is Sharding(mesh, P('d'))
      True
    """
    if len(mesh) == 1:
      return mesh.devices[0]
    cut = [merge_sub_axes(d) for d in dims]
    while cut and not cut[-1]:
      cut.pop()
    merged: list[Partial] = []
    ops = dict.fromkeys(o.op for o in partial)  # entries of one op have one order; those of two don't commute
    for op, disjoint in itertools.product(ops, (False, True)):
      sub_axes = [d for o in partial if o.op is op and o.disjoint == disjoint for d in o.sub_axes]
      if whole := merge_sub_axes(sorted(sub_axes, key=lambda d: -d.stride)):
        merged.append(Partial(whole, op, disjoint))
    partials = tuple(merged)
    key = (mesh.home, tuple(cut), partials)
    if (found := _shardings.get(key)) is not None:
      return found
    used = (*(d for dim in cut for d in dim), *(d for o in partials for d in o.sub_axes))
    if overlap := overlapping(mesh, used):
      refuse(
        f"{overlap} of {mesh} is used twice, or overlaps another part of the same placement", "P()  # a copy on each"
      )
    self = object.__new__(Sharding)
    reduced = Sharding.of(mesh, cut) if partials else self
    self._fill(home=mesh.home, devices=mesh.devices, dims=tuple(cut), partial=partials, used=used, reduced=reduced)
    self._fill(parts_=tuple(prod(d.size for d in dim) for dim in cut))
    _written[self] = mesh
    return _shardings.setdefault(key, self)

  __hash__ = object.__hash__

  def __eq__(self, other: object) -> bool:
    """Itself alone; beside a plain tuple of names it compares as its devices do: `t.device == ("CPU:0", "CPU:1")`."""
    return self is other or (type(other) is tuple and self.devices == _canonical_names(other))

  @property
  def mesh(self) -> Mesh:
    """The mesh, and so the names, with which the placement was last written. A node that is made of it keeps them.

    Examples:
      >>> mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
      >>> str(Sharding(mesh, P('data')).mesh)
      'Mesh(CPU:0-3, data=2, model=2)'
    """
    return _written[self]

  @property
  def spec(self) -> P:
    """How its dims are cut, in the names of its mesh: `Sharding(s.mesh, s.spec) is s.reduced`.

    Examples:
      >>> mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
      >>> Sharding(mesh, P(None, ('data', 'model'))).spec
      P(None, ('data', 'model'))
    """
    return spec_of(self.mesh, self.dims)

  @property
  def axis(self) -> int | None:
    """The one cut dim; None if replicated. Raises ShardError if several dims are cut.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
      >>> Sharding(mesh, P(None, 'd')).axis
      1
    """
    cut = [i for i, d in enumerate(self.dims) if d]
    if len(cut) > 1:
      refuse(f"{self} cuts dims {cut}; .axis exists only where one is cut", "placement.dims")
    return cut[0] if cut else None

  def __len__(self) -> int:
    return len(self.devices)

  def __iter__(self) -> Iterator[str]:
    return iter(self.devices)

  def __getitem__(self, i: int) -> str:
    return self.devices[i]

  def __reduce__(self) -> tuple[Any, ...]:
    return Sharding.of, (self.mesh, self.dims, self.partial)

  @property
  def replicated(self) -> bool:
    """No dim is cut (partial or not).

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
      >>> Sharding(mesh).replicated, Sharding(mesh, P('d')).replicated
      (True, False)
    """
    return not self.dims

  def with_dims(self, dims: Sequence[Sequence[SubAxis]]) -> Any:
    """The same devices, cut as `dims` says: for each dim its sub-axes, major to minor.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
      >>> cut = Sharding(mesh, P('d'))
      >>> cut.with_dims([(), *cut.dims]).axis
      1
    """
    return Sharding.of(self.mesh, dims, self.partial)

  def cut(self, i: int) -> tuple[SubAxis, ...]:
    """The sub-axes that cut dim i.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
      >>> Sharding(mesh, P('d')).cut(0), Sharding(mesh, P('d')).cut(1)
      ((SubAxis(size=2, stride=1),), ())
    """
    return self.dims[i] if i < len(self.dims) else ()

  def parts(self, i: int) -> int:
    """Into how many blocks dim i is cut.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
      >>> Sharding(mesh, P('d')).parts(0), Sharding(mesh, P('d')).parts(1)
      (2, 1)
    """
    return self.parts_[i] if i < len(self.parts_) else 1

  def block(self, i: int, number: Any) -> Any:
    """The block of dim i that device `number` (an int, or an integer expression) holds.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
      >>> [Sharding(mesh, P('d')).block(0, i) for i in range(2)]
      [0, 1]
    """
    b: Any = 0
    for d in self.cut(i):
      b = b * d.size + number // d.stride % d.size
    return b

  def local_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
    """The block's shape: ceil(n / parts); a symbolic dim is cut by its upper bound, and stays as it is where uncut.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
      >>> Sharding(mesh, P('d')).local_shape((5, 3))
      (3, 3)
    """
    check_fits(self, shape)
    sizes = ((n, self.parts(i)) for i, n in enumerate(shape))
    return tuple(n if k == 1 else ceildiv(n if isinstance(n, int) else n.vmax, k) for n, k in sizes)

  def box(self, number: int, shape: Sequence[int], upper: Sequence[int] | None = None) -> tuple[tuple[int, int], ...]:
    """The half-open range of global indices that device `number` holds, for each dim (possibly empty): blocks of an
    upper bound of the shape, cut off at the shape.

    Examples:
      >>> mesh = Mesh(("CPU:0", "CPU:1"), names=("d",))
      >>> [Sharding(mesh, P('d')).box(i, (5, 3)) for i in range(2)]
      [((0, 3), (0, 3)), ((3, 5), (0, 3))]
    """
    sizes = self.local_shape(upper or shape)
    los = [min(n, self.block(i, number) * size) for i, (n, size) in enumerate(zip(shape, sizes, strict=True))]
    return tuple((lo, min(n, lo + size)) for lo, n, size in zip(los, shape, sizes))

  def __repr__(self) -> str:
    mesh, where = self.mesh, "" if self.mesh.names == ("x",) else repr(self.mesh)
    named = [(name, o) for o in self.partial for d in o.sub_axes for name in mesh.axes_of((d,))]
    parts = [where or device_code(self.devices)]
    if self.dims:
      parts.append(repr(self.spec) if where or self.dims[-1] != (SubAxis(len(mesh), 1),) else f"axis={self.axis}")
    if named:
      parts.append(f"partial={{{', '.join(f'{name!r}: Ops.{o.op.name}' for name, o in named)}}}")
    if disjoint := tuple(name for name, o in named if o.disjoint):
      parts.append(f"disjoint={disjoint}")
    return f"Sharding({', '.join(parts)})"

  def _repr_html_(self) -> str:
    """The mesh, in a colour for each block, with the block's number in each dim that is cut."""
    cut = [i for i, d in enumerate(self.dims) if d]
    blocks = [tuple(self.block(i, number) for i in cut) for number in range(len(self))]
    distinct = list(dict.fromkeys(blocks))
    colors = [hue(distinct.index(b), len(distinct)) for b in blocks]
    notes = [", ".join(f"dim {i}: {k + 1}/{self.parts(i)}" for i, k in zip(cut, b)) for b in blocks]
    return self.mesh._grid_html(str(self), colors, notes)

  def __str__(self) -> str:
    mesh = self.mesh
    parts = ", ".join(_axes(mesh, dim) or "-" for dim in self.dims)
    partial = "".join(f", partial by {o.op.name.lower()} over {_axes(mesh, o.sub_axes)}" for o in self.partial)
    return f"Sharding({short_devices(self.devices)}: {parts or 'replicated'}{partial})"


Placement = str | Sharding


def _partials_of(mesh: Mesh, partial: Mapping[str, Any], disjoint: Collection[str]) -> list[Partial]:
  """The reductions owed over axes of a mesh. ShardError for what is no axis, or no op."""
  if not isinstance(partial, Mapping) or any(not hasattr(op, "name") for op in partial.values()):
    names = tuple(partial) if isinstance(partial, Mapping) else mesh.names[:1]
    rule = f"partial={partial!r}: for each mesh axis over which a reduction is owed, its op"
    refuse(rule, f"{{{', '.join(f'{name!r}: Ops.ADD' for name in names)}}}", error=ShardTypeError)
  if isinstance(disjoint, str) or not set(disjoint) <= partial.keys():
    fits = tuple(name for name in partial if name == disjoint or name in tuple(disjoint))
    refuse(f"disjoint={disjoint!r}: a tuple of axes that partial={partial!r} names", f"{fits}", error=ShardTypeError)
  return [Partial((mesh.sub_axis(name),), op, name in disjoint) for name, op in partial.items()]


def check_fits(placement: Placement, shape: Sequence[Any]) -> None:
  """A placement beside the shape of what is placed: it may only cut dims that are there. Raises ShardError."""
  if isinstance(placement, str) or len(placement.dims) <= len(shape):
    return
  rank = len(shape)
  dims = list(placement.dims[:rank])
  if rank and not any(dims):  # the last dim is cut instead
    dims[-1] = placement.dims[-1]
  rule = f"{placement} cuts dim {len(placement.dims) - 1}, but the tensor of shape {tuple(shape)} has {rank} dims"
  refuse(rule, spelled(Sharding.of(placement.mesh, dims), "devices", "mesh"))


def spelled(placement: Placement, devices: str = "", mesh: str = "") -> str:
  """The placement as code, in which `devices` and `mesh` stand for its own."""
  if isinstance(placement, str):
    return repr(placement)
  m = placement.mesh
  cut = [i for i, dim in enumerate(placement.dims) if dim]
  if not cut or (len(cut) == 1 and placement.dims[cut[0]] == (SubAxis(len(m), 1),)):
    axis = f", axis={cut[0]}" if cut else ""
    return f"Sharding({devices or repr(m.devices)}{axis})"
  return f"Sharding({mesh or f'Mesh({m.devices!r}, {m.shape}, {m.names})'}, {placement.spec!r})"


def device_set(placement: Placement) -> tuple[str, ...]:
  """The devices of a placement, in mesh order."""
  return (placement,) if isinstance(placement, str) else placement.devices


def one_of_each_kind(placement: Placement) -> tuple[str, ...]:
  return (placement,) if isinstance(placement, str) else placement.mesh.kinds


def same_devices(a: Placement, b: Placement) -> bool:
  """Whether two placements are over the same devices in the same order, however many these are."""
  return a.home is b.home if isinstance(a, Sharding) and isinstance(b, Sharding) else a == b


def show_placement(placement: Placement | None, mesh: Mesh | None = None) -> str:
  """How error messages print a placement: `CPU:0-3, dim 0 over "d"`, by the names of `mesh` (as it was written)."""
  if not isinstance(placement, Sharding):
    return "any device" if placement is None else placement
  if mesh is None or mesh.home is not placement.home:
    mesh = placement.mesh
  cuts = [f'dim {i} over "{_axes(mesh, dim)}"' for i, dim in enumerate(placement.dims) if dim]
  partial = [f'partial by {o.op.name.lower()} over "{_axes(mesh, o.sub_axes)}"' for o in placement.partial]
  return ", ".join([short_devices(placement.devices), *(cuts or ["replicated"]), *partial])


def reduced_placement(device: Placement | None) -> Placement:
  """Where a value is that was realized: reduced; one that lives anywhere, on the default device."""
  return Device.DEFAULT if device is None else device.reduced if isinstance(device, Sharding) else device
