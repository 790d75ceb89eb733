"""Where values live: device names, meshes, placements (`Sharding`), buffers, and what a backend has to offer."""

from __future__ import annotations

import atexit
import difflib
import functools
import importlib
import itertools
import operator
import os
import pkgutil
import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, NoReturn, Self

from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import DEV, MIXED, GlobalCounters, ceildiv, cores, prod, user_frame, user_line


class DeviceError(RuntimeError):
  """A device that does not exist here, cannot be opened, or failed while it ran."""


class ShardError(RuntimeError, ValueError):
  """A placement that cannot be, or operands whose placements do not go together."""


class ShardTypeError(ShardError, TypeError):
  """What is given as a placement, or as a part of one, is of a type that says none."""


def refuse(rule: str, fix: str, *operands: str, error: type[Exception] = ShardError) -> NoReturn:
  """Raises the error of a placement: the rule that was broken, the operands, the user's line, and code that works (in
  the names of the parameters: x, devices, mesh, placement, parts)."""
  here = [] if user_frame() is None else [f"in {user_line()}"]
  raise error("\n".join([rule, *(f"    {row}" for row in (*operands, *here)), f"  fix: {fix}"]))


# ---------------------------------------------------------------- meshes and placements


Names = Sequence[str]


class _Frozen:
  """Equal ones are one object, which all that is placed alike shares: it cannot be written to, and has no copies."""

  __slots__ = ()

  def __setattr__(self, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"{self!r} is frozen, .{name} cannot be set\n  fix: make another {type(self).__name__}")

  def __delattr__(self, name: str) -> None:
    raise FrozenInstanceError(f"{self!r} is frozen, .{name} cannot be deleted")

  def __copy__(self) -> Self:
    return self

  def __deepcopy__(self, memo: dict[int, Any]) -> Self:
    return self

  def _fill(self, **fields: Any) -> None:
    for name, value in fields.items():
      object.__setattr__(self, name, value)


_homes: dict[tuple[str, ...], Mesh] = {}
_meshes: dict[tuple[Any, ...], Mesh] = {}
_shardings: dict[tuple[Any, ...], Sharding] = {}
_written: dict[Sharding, Mesh] = {}  # the mesh with which a placement was last written: nodes made of it keep its names


class Mesh(_Frozen):
  """Ordered distinct devices as a row-major grid with named axes: `Mesh(("CPU:0", …, "CPU:3"), (2, 2), ("dp", "tp"))`.

  Without a shape the mesh is one axis of all devices, or has the shape of an array of devices; `Mesh(devices, ("d",))`
  gives names alone. Equal meshes are the same object.
  Raises: ShardError for repeated devices, several kinds without MIXED=1, a shape that does not multiply to their
  number, or names that don't match it.
  """

  __slots__ = ("devices", "home", "kinds", "names", "shape")
  kinds: tuple[str, ...]  # the first device of each kind
  devices: tuple[str, ...]
  home: Mesh  # the first mesh over these devices: what finds things by devices without looking at each of them
  shape: tuple[int, ...]
  names: tuple[str, ...]

  def __new__(cls, devices: Names, shape: Sequence[int] | Names | None = None, names: Names | None = None) -> Mesh:
    devs, grid = _listed_devices(devices)
    if names is None and isinstance(shape, (tuple, list)) and shape and all(isinstance(n, str) for n in shape):
      shape, names = None, shape
    dims = grid if shape is None else _mesh_shape(shape, len(devs), 1 if names is None else len(names))
    axes = tuple("xyzuvw"[i] if i < 6 else f"a{i}" for i in range(len(dims)))
    axes = axes if names is None else _axis_names(names, dims, axes)
    key = (devs, dims, axes)
    if (found := _meshes.get(key)) is not None:
      return found
    self = object.__new__(cls)
    home = _homes.setdefault(devs, self)
    firsts = {d.partition(":")[0]: d for d in reversed(devs)}
    kinds = tuple(d for d in devs if d in firsts.values())
    self._fill(home=home, devices=devs if home is self else home.devices, shape=dims, names=axes, kinds=kinds)
    return _meshes.setdefault(key, self)

  def __len__(self) -> int:
    return len(self.devices)

  def __reduce__(self) -> tuple[Any, ...]:
    return Mesh, (self.devices, self.shape, self.names)

  def __repr__(self) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.shape, strict=True))
    return f"Mesh({short_devices(self.devices)}, {axes})"

  def axes_of(self, sub_axes: Sequence[SubAxis]) -> tuple[str, ...]:
    """The axes and sub-axes that the sub-axes are, major to minor; `size@stride` for one that crosses them."""
    out: list[str] = []
    for d in merge_sub_axes(sorted(sub_axes, key=lambda d: -d.stride)):
      parts, covered = list[str](), 1
      for i, (name, n) in enumerate(zip(self.names, self.shape, strict=True)):
        stride = prod(self.shape[i + 1 :])
        lo, hi = max(d.stride, stride), min(d.stride * d.size, stride * n)
        if lo < hi and hi % lo == 0 and lo % stride == 0 and (stride * n) % hi == 0:
          parts.append(name if (lo, hi) == (stride, stride * n) else f"{name}:({stride * n // hi}){hi // lo}")
          covered *= hi // lo
      out += parts if covered == d.size else [f"{d.size}@{d.stride}"]
    return tuple(out)

  def sub_axis(self, entry: str) -> SubAxis:
    """The sub-axis of an axis `"x"`, or of a sub-axis `"x:(p)k"`: view x as [p, k, n/(pk)] and take k. ShardError for
    any other."""
    if isinstance(found := self._sub_axis(entry), str):
      refuse(found, repr(self.names[0]))
    return found

  def _sub_axis(self, entry: str) -> SubAxis | str:
    """The sub-axis, or what is wrong."""
    match = re.fullmatch(r"([^:]+)(?::\((\d+)\)(\d+))?", entry)
    if match is None or match[1] not in self.names:
      return f"{entry!r} is no axis of {self}"
    i = self.names.index(match[1])
    n, stride = self.shape[i], prod(self.shape[i + 1 :])
    if match[2] is None:
      return SubAxis(n, stride)
    p, k = int(match[2]), int(match[3])
    if p < 1 or k < 1 or n % (p * k):
      return f"sub-axis {entry!r}: {p}*{k} does not divide the axis size {n}"
    return SubAxis(k, stride * (n // (p * k)))


def _listed_devices(devices: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
  """(the canonical names of a mesh's devices, the shape of the array that they were given in)."""
  example = "('CPU:0', 'CPU:1')"
  if isinstance(devices, str):
    refuse(f"a mesh needs a sequence of devices, got the string {devices!r}", f"({devices!r},)", error=ShardTypeError)
  if isinstance(devices, (Mesh, Sharding)):
    name = "mesh" if isinstance(devices, Mesh) else "placement"
    refuse(f"a mesh needs a sequence of devices, got {devices!r}", f"{name}.devices", error=ShardTypeError)
  if isinstance(devices, (set, frozenset, dict)):
    rule = f"a mesh needs devices in an order, got a {type(devices).__name__}"
    refuse(rule, "tuple(sorted(devices))", error=ShardTypeError)
  listed = _flat(devices) if isinstance(devices, Iterable) else None
  if listed is None or any(not isinstance(d, str) for d in listed):
    rule = f"a mesh needs a sequence of device names, got {devices!r} of type {type(devices).__name__}"
    refuse(rule, example, error=ShardTypeError)
  devs = tuple(Device.canonicalize(str(d)) for d in listed)
  if not devs or len(set(devs)) != len(devs):
    fix = repr(tuple(dict.fromkeys(devs))) if devs else example
    refuse(f"a mesh needs distinct devices, got {devs}", f"{fix}  # each device once")
  kinds = [d.partition(":")[0] for d in devs]
  if len(set(kinds)) > 1 and not (MIXED and NOT_FOR_COMPUTING.isdisjoint(kinds)):
    one = tuple(d for d, kind in zip(devs, kinds) if kind == kinds[0])
    more = "where all compute, MIXED=1 in the environment allows several kinds, which then read through the host"
    refuse(f"{short_devices(devs)}: a value is cut over devices of one kind", f"{one!r}  # {more}")
  return devs, tuple(getattr(devices, "shape", (len(devs),)))


def _canonical_names(names: tuple[Any, ...]) -> tuple[str, ...] | None:
  """None where one of them is no device's name."""
  try:
    return tuple(map(Device.canonicalize, names))
  except DeviceError:
    return None


def _flat(devices: Any) -> list[Any]:
  return list(devices.ravel()) if hasattr(devices, "ravel") else list(devices)


def _mesh_shape(shape: Any, count: int, rank: int) -> tuple[int, ...]:
  """The sizes of a mesh's axes. `rank`: how many names there are, which a fix must keep to."""
  right = (count, *(1,) * (rank - 1))
  if not isinstance(shape, Iterable) or isinstance(shape, str):
    refuse(f"a mesh's shape is a sequence of sizes, got {shape!r}", f"{right}  # the shape", error=ShardTypeError)
  sizes = list(shape)
  dims = tuple(n for n in map(as_index, sizes) if n is not None)
  if len(dims) < len(sizes):
    whole = tuple(int(n) for n in sizes if as_index(n) is not None or (isinstance(n, float) and n.is_integer()))
    right = whole if len(whole) == len(sizes) and prod(whole) == count else right
    refuse(f"a mesh's shape is a sequence of integers, got {shape!r}", f"{right}  # the shape", error=ShardTypeError)
  if prod(dims) != count or min(dims, default=1) < 1:
    said = f"a mesh of shape {dims} has {prod(dims)} places, but {count} devices were given"
    refuse(said, f"{right}  # a shape whose product is {count}")
  return dims


def _axis_names(names: Any, dims: tuple[int, ...], default: Names) -> tuple[str, ...]:
  given = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
  good = len(given) == len(dims) == len(set(map(str, given))) and not isinstance(names, str)
  if good and all(isinstance(n, str) and AXIS_NAME.fullmatch(n) for n in given):
    return tuple(given)
  cleaned = list(names) if isinstance(names, str) and len(names) == len(dims) else given
  fixed = list[str]()
  for i in range(len(dims)):
    name = re.sub(r"\W+", "_", str(cleaned[i])) if i < len(cleaned) else ""
    fixed.append(name if AXIS_NAME.fullmatch(name) and name not in fixed else default[i])
  rule = (
    f"a mesh of shape {dims} needs {len(dims)} distinct axis names, strings of letters, sub-axes, '_', '-' and '.', "
  )
  kind = ShardError if all(isinstance(n, str) for n in given) and not isinstance(names, str) else ShardTypeError
  refuse(f"{rule}got {names!r}", f"{tuple(fixed)}  # the names", error=kind)


AXIS_NAME = re.compile(r"[\w.-]+")


def as_index(n: Any) -> int | None:
  """An integer of any kind (numpy's too) as a Python int; None for anything else, bool included."""
  return None if isinstance(n, bool) or not hasattr(n, "__index__") else operator.index(n)


@dataclass(frozen=True, slots=True, order=True)
class SubAxis:
  """A sub-axis of the device's number within the mesh: `number // stride % size`."""

  size: int
  stride: int


@dataclass(frozen=True, slots=True)
class Partial:
  """A reduction that has not run, over `sub_axes`; `disjoint`: at most one coordinate holds a value that is not
  zero."""

  sub_axes: tuple[SubAxis, ...]
  op: Any  # the reduce op (Ops); this module sits below the IR and only compares and prints it
  disjoint: bool = False


class P(tuple[Any, ...]):
  """PartitionSpec: for each tensor dim None, a mesh axis name, or a tuple of names (major to minor). `P("dp",
  None)`. ShardTypeError for anything else.
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
    return super().__new__(cls, entries)

  def __getnewargs__(self) -> tuple[Any, ...]:
    return tuple(self)

  def __repr__(self) -> str:
    return f"P({', '.join(map(repr, self))})"


def _is_name(entry: Any) -> bool:
  return isinstance(entry, str) and entry != ""


def merge_sub_axes(sub_axes: Sequence[SubAxis]) -> tuple[SubAxis, ...]:
  """Normal form of an ordered sub-axis list: no size 1, neighbours that are adjacent sub-axes of the number joined."""
  out: list[SubAxis] = []
  for d in sub_axes:
    if d.size == 1:
      continue
    if out and out[-1].stride == d.size * d.stride:
      out[-1] = SubAxis(out[-1].size * d.size, d.stride)
    else:
      out.append(d)
  return tuple(out)


class Sharding(_Frozen):
  """Where a value lives and how: its devices, for each dim the sub-axes that cut it (major to minor), and reductions
  still owed.

  `Sharding(("GPU:0", "GPU:1"), axis=0)` cuts dim 0 in two; `axis=None` replicates; `Sharding(mesh, P("dp", None))` is
  the general form.
  Sub-axes in neither replicate. Frozen and interned in one normal form: equal placements are the same object.
  On one device it is that device's plain name (a `str` is returned).
  Raises: ShardError for an axis used twice, a negative or repeated axis, sub-axes that overlap.
  """

  __slots__ = ("devices", "dims", "mesh", "partial", "parts_", "reduced", "used")
  mesh: Mesh
  devices: tuple[str, ...]
  dims: tuple[tuple[SubAxis, ...], ...]
  partial: tuple[Partial, ...]
  parts_: tuple[int, ...]
  reduced: Sharding  # not partial: those sub-axes replicate
  used: tuple[SubAxis, ...]  # every sub-axis that cuts, or over which it is partial

  def __new__(cls, devices: Mesh | Sequence[str], axis: int | P | Sequence[Any] | None = None) -> Any:
    mesh = devices if isinstance(devices, Mesh) else Mesh(devices)
    dims: list[tuple[SubAxis, ...]] = []
    if (number := as_index(axis)) is not None:
      if number < 0:
        said = f"axis={number}: a Sharding does not know the tensor's rank, so the axis must be >= 0"
        refuse(said, f"Sharding(devices, axis=0)  # or x.shard(devices, axis={number}), which counts from the end")
      dims = [()] * number + [(SubAxis(len(mesh), 1),)]
    elif axis is not None:
      dims = _dims_of(mesh, as_spec(axis, mesh))
    made = Sharding.of(mesh, dims)
    if isinstance(made, Sharding):
      _written[made] = mesh
    return made

  @staticmethod
  def of(mesh: Mesh, dims: Sequence[Sequence[SubAxis]], partial: Sequence[Partial] = ()) -> Any:
    """The interned normal form of the given sub-axes; the mesh's only device as a `str` if it has one."""
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
    self._fill(mesh=mesh, devices=mesh.devices, dims=tuple(cut), partial=partials, used=used, reduced=reduced)
    self._fill(parts_=tuple(prod(d.size for d in dim) for dim in cut))
    return _shardings.setdefault(key, self)

  __hash__ = object.__hash__

  def __eq__(self, other: object) -> bool:
    """Itself alone; beside a plain tuple of names it compares as its devices do: `t.device == ("CPU:0", "CPU:1")`."""
    return self is other or (type(other) is tuple and self.devices == _canonical_names(other))

  @property
  def axis(self) -> int | None:
    """The one cut dim; None if replicated. Raises ShardError if several dims are cut."""
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
    """No dim is cut (partial or not)."""
    return not self.dims

  def with_dims(self, dims: Sequence[Sequence[SubAxis]]) -> Any:
    return Sharding.of(self.mesh, dims, self.partial)

  def cut(self, i: int) -> tuple[SubAxis, ...]:
    """The sub-axes that cut dim i."""
    return self.dims[i] if i < len(self.dims) else ()

  def parts(self, i: int) -> int:
    """Into how many blocks dim i is cut."""
    return self.parts_[i] if i < len(self.parts_) else 1

  def block(self, i: int, number: Any) -> Any:
    """The block of dim i that device `number` (an int, or an integer expression) holds."""
    b: Any = 0
    for d in self.cut(i):
      b = b * d.size + number // d.stride % d.size
    return b

  def local_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
    """The block's shape: ceil(n / parts); a symbolic dim is cut by its upper bound, and stays as it is where uncut."""
    check_fits(self, shape)
    sizes = ((n, self.parts(i)) for i, n in enumerate(shape))
    return tuple(n if k == 1 else ceildiv(n if isinstance(n, int) else n.vmax, k) for n, k in sizes)

  def box(self, number: int, shape: Sequence[int], upper: Sequence[int] | None = None) -> tuple[tuple[int, int], ...]:
    """The half-open range of global indices that device `number` holds, for each dim (possibly empty): blocks of an
    upper bound of the shape, cut off at the shape."""
    sizes = self.local_shape(upper or shape)
    los = [min(n, self.block(i, number) * size) for i, (n, size) in enumerate(zip(shape, sizes, strict=True))]
    return tuple((lo, min(n, lo + size)) for lo, n, size in zip(los, shape, sizes))

  def __repr__(self) -> str:
    mesh = written_mesh(self)
    parts = ", ".join(_axes(mesh, dim) or "-" for dim in self.dims)
    partial = "".join(f", partial by {o.op.name.lower()} over {_axes(mesh, o.sub_axes)}" for o in self.partial)
    return f"Sharding({short_devices(self.devices)}: {parts or 'replicated'}{partial})"


Placement = str | Sharding


def as_spec(axis: Any, mesh: Mesh) -> P:
  """How dims are cut, given in another way than by the number of one: a `P`, or what one is made of."""
  if isinstance(axis, P):
    return axis
  if isinstance(axis, (tuple, list)):
    return P(*axis)
  rule = f"axis={axis!r} of type {type(axis).__name__} is neither the number of a dim nor a P of axis names"
  named = isinstance(axis, str) and not isinstance(mesh._sub_axis(axis), str)
  refuse(rule, f"P({axis!r})" if named else f"{int(axis) if _is_whole(axis) else 0}  # the axis", error=ShardTypeError)


def _is_whole(n: Any) -> bool:
  return isinstance(n, (bool, float)) and n >= 0 and float(n).is_integer()


def _dims_of(mesh: Mesh, spec: P) -> list[tuple[SubAxis, ...]]:
  """The sub-axes that cut each dim. ShardError for what is no axis of the mesh, or is used twice."""
  dims = [tuple(map(mesh._sub_axis, _names_of(entry))) for entry in spec]
  wrong = [d for dim in dims for d in dim if isinstance(d, str)]
  good = [tuple(d for d in dim if isinstance(d, SubAxis)) for dim in dims]
  if wrong:
    axes = ", ".join(map(repr, mesh.names))
    refuse(f"{spec!r}: {wrong[0]}", f"{_repaired(mesh, spec)!r}  # axes: {axes}; parts of one: '{mesh.names[0]}:(1)2'")
  if overlap := overlapping(mesh, [d for dim in good for d in dim]):
    rule = f"{spec!r}: {overlap} of {mesh} is used twice, or overlaps another part of the same placement"
    refuse(rule, f"{_repaired(mesh, spec)!r}  # each mesh axis cuts one dim")
  return good


def _names_of(entry: Any) -> tuple[str, ...]:
  return (entry,) if isinstance(entry, str) else entry or ()


def _repaired(mesh: Mesh, spec: P) -> P:
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


def overlapping(mesh: Mesh, sub_axes: Sequence[SubAxis]) -> str:
  """Which of one placement's sub-axes overlap: they must form a divisor chain of the device's number. "" if none do."""
  below = 1
  for d in sorted((d for d in sub_axes if d.size > 1), key=lambda d: d.stride):
    if d.stride % below or len(mesh) % (d.size * d.stride):
      return _axes(mesh, (d,))
    below = d.size * d.stride
  return ""


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
  m = written_mesh(placement)
  cut = [i for i, dim in enumerate(placement.dims) if dim]
  if not cut or (len(cut) == 1 and placement.dims[cut[0]] == (SubAxis(len(m), 1),)):
    axis = f", axis={cut[0]}" if cut else ""
    return f"Sharding({devices or repr(m.devices)}{axis})"
  names = [
    m.axes_of(dim) if len(dim) == 1 else tuple(n for d in dim for n in m.axes_of((d,))) for dim in placement.dims
  ]
  spec = P(*(None if not n else n[0] if len(n) == 1 else n for n in names))
  return f"Sharding({mesh or f'Mesh({m.devices!r}, {m.shape}, {m.names})'}, {spec!r})"


def _axes(mesh: Mesh, sub_axes: Sequence[SubAxis]) -> str:
  """The axis, or axes, or sub-axis, that each sub-axis is; names only print."""
  return "+".join("*".join(mesh.axes_of((d,))) for d in sub_axes)


def short_devices(devices: Sequence[str]) -> str:
  """`CPU:0-3` for consecutive devices of one kind, else the names."""
  if len(devices) == 1:
    return devices[0]
  split = [(name, int(number or 0)) for name, _, number in (d.partition(":") for d in devices)]
  kind, first = split[0]
  if all(s == (kind, first + i) for i, s in enumerate(split)):
    return f"{kind}:{first}-{first + len(split) - 1}"
  return ", ".join(devices)


def device_set(placement: Placement) -> tuple[str, ...]:
  """The devices of a placement, in mesh order."""
  return (placement,) if isinstance(placement, str) else placement.devices


def one_of_each_kind(placement: Placement) -> tuple[str, ...]:
  return (placement,) if isinstance(placement, str) else placement.mesh.kinds


def same_devices(a: Placement, b: Placement) -> bool:
  """Whether two placements are over the same devices in the same order, however many these are."""
  return a.mesh.home is b.mesh.home if isinstance(a, Sharding) and isinstance(b, Sharding) else a == b


def written_mesh(placement: Sharding) -> Mesh:
  """The mesh, and so the names, with which the placement was last written. A node that is made of it keeps them."""
  return _written.get(placement, placement.mesh)


def show_placement(placement: Placement | None, mesh: Mesh | None = None) -> str:
  """How error messages print a placement: `CPU:0-3, dim 0 over "d"`, by the names of `mesh` (as it was written)."""
  if not isinstance(placement, Sharding):
    return "any device" if placement is None else placement
  if mesh is None or mesh.home is not placement.mesh.home:
    mesh = written_mesh(placement)
  cuts = [f'dim {i} over "{_axes(mesh, dim)}"' for i, dim in enumerate(placement.dims) if dim]
  partial = [f'partial by {o.op.name.lower()} over "{_axes(mesh, o.sub_axes)}"' for o in placement.partial]
  return ", ".join([short_devices(placement.devices), *(cuts or ["replicated"]), *partial])


# ---------------------------------------------------------------- backends


PIECE = "_piece_of_"  # and a number of threads: the variable that says which piece of a kernel they share is to be done


@dataclass(frozen=True, slots=True)
class Target:
  """What codegen has to know of a device: sizes in bytes where not said otherwise."""

  name: str
  vector_bytes: int = 16  # widest SIMD register
  vector_registers: int = 16
  scratch: int = 0  # fast memory for staged operands, per worker
  threads: bool = False  # grid of threads (GPU) rather than loops
  cooperates: bool = True  # threads of a group gain by copying to scratch memory what they share
  shares: bool = False  # threads of the device may share a kernel out (CPU)
  features: tuple[str, ...] = ()
  float64: bool = True
  halves: bool = True  # it converts between half and float32


@dataclass(frozen=True, slots=True)
class Renderer:
  """What a backend's code generation offers to programs that ask: `Device[name].renderer`."""

  target: Target

  def supported_dtypes(self) -> set[DType]:
    """The types that tensors on the device may have."""
    return {d for d in dtypes.all if d is not dtypes.float64 or self.target.float64}


class Backend:
  """One device. What is queued on it runs in order and may still run when `submit_all` and `free` have returned;
  `synchronize` waits and raises what failed. A backend adds

    alloc(nbytes) -> handle, free(handle, nbytes)
    copyin(handle, data: memoryview, offset=0), copyout(data, handle, offset=0): offset is 0 where there is a `view`
    render(linear, name) -> source, compile(source, name) -> program
    bind(program, args, variables) -> a call of `program`: its buffers by slot (a list of every device's for a table of
      peers), variables by name
    barrier(devices) -> one call for each device; none returns before all have come so far
    batch(calls) -> calls as one hand-over, which may be submitted again
    submit_all(devices, lists): queues one batch on each device
    synchronize()
  """

  target: Target
  simulated = False  # has no memory and does no work: the engine does not loop over its devices
  interprets = False  # the engine evaluates what is computed there
  description = "virtual devices with threads of their own"

  def __init__(self, name: str) -> None:
    self.name = name

  @property
  def renderer(self) -> Renderer:
    return Renderer(self.target)

  def count(self) -> int:
    """How many devices of this kind may work side by side: those of the machine, of virtual ones a core each."""
    return cores()

  def check(self) -> None:
    """Raises: DeviceError where the driver cannot compile a kernel, run it and give the right values."""

  def view(self, handle: Any) -> Any:
    """The memory itself as a memoryview, where the host can address it (synchronize first)."""

  def reaches(self, other: Any) -> bool:
    """Whether kernels here can read the memory of another device of this kind."""
    return True


class _Devices:
  """`Device["CPU:1"]` opens a device; `Device.DEFAULT` is where new tensors go: what was assigned to it, the context
  variable DEV (`DEV=CPU:1` in the environment, `with Context(DEV="CPU:1")`), a kind set to 1 in the environment, CPU.
  """

  @property
  def DEFAULT(self) -> str:
    return self._canonicalize(DEV.value or _chosen_kind())

  @DEFAULT.setter
  def DEFAULT(self, name: str) -> None:
    DEV.value = self.canonicalize(name)

  @property
  def default(self) -> Any:
    """The backend of `DEFAULT`."""
    return self[self.DEFAULT]

  def get_available_devices(self) -> Iterator[str]:
    """The kinds of device that can compute here."""
    return (k for k in backends() if k not in NOT_FOR_COMPUTING and not isinstance(self._attempt(k), str))

  @functools.cache  # noqa: B019 (one instance for the process)
  def _attempt(self, kind: str) -> Any:
    """The backend, which has compiled and run a kernel, or in one line why there is none."""
    try:
      backend = self._open(kind)
      backend.check()
      return backend
    except DeviceError as e:
      return "; ".join(line.strip() for line in str(e).splitlines())

  @functools.cache  # noqa: B019 (one instance for the process)
  def _canonicalize(self, name: str) -> str:
    kind, _, number = name.upper().partition(":")
    if kind == "DISK" and number:  # of a file
      return f"DISK:{name[5:]}"
    if kind == "GPU":
      kind = self._resolve_gpu()
    if number and not number.isdigit():
      refuse(f"{name!r} is no device name", f"'{self._example(kind)}'  # KIND or KIND:NUMBER", error=DeviceError)
    if not re.fullmatch(r"[A-Z]+", kind) or kind not in backends():
      near = difflib.get_close_matches(kind, backends(), 1) or ["CPU"]
      fix = f"'{self._example(near[0])}'  # one of {', '.join(backends())}"
      refuse(f"unknown device {name!r}: there is no backend {kind!r}", fix, error=DeviceError)
    return kind if int(number or 0) == 0 else f"{kind}:{int(number)}"

  def canonicalize(self, device: str | None) -> str:
    """The one name of a device: upper case, `CPU` for `CPU:0`, GPU resolved; the default for None."""
    if device is None:
      return self.DEFAULT
    if not isinstance(device, str):
      refuse(f"a device is named by a string, got {device!r} of {type(device)}", "'CPU:1'", error=DeviceError)
    return self._canonicalize(device)

  def _example(self, kind: str) -> str:
    return f"{kind if kind in backends() else 'CPU'}:1"

  def _resolve_gpu(self) -> str:
    if (named := os.environ.get("GPU", "1")) != "1":  # GPU=1 makes it the default, as do CPU=1, …
      return named.upper()
    faults = []
    for kind in GPUS:
      if not isinstance(found := self._attempt(kind), str):
        return kind
      faults.append(f"\n    {kind}: {found}")
    raise DeviceError(f"no GPU backend works here:{''.join(faults)}\n  {ON_CPU}")

  @functools.cache  # noqa: B019 (one instance for the process)
  def _open(self, name: str) -> Any:
    kind = name.partition(":")[0]
    try:
      backend = importlib.import_module(f"tinygrad.runtime.{kind.lower()}").open_device(name)
    except ImportError as e:
      extra = f"'tinygrad[{EXTRAS[kind]}]'" if kind in EXTRAS else e.name
      if isinstance(e, ModuleNotFoundError):
        raise DeviceError(f"device {name} needs the package {e.name!r}\n  fix: pip install {extra}") from e
      fix = f"pip install --force-reinstall {extra}"
      raise DeviceError(f"device {name}: its package does not load ({e})\n  fix: {fix}") from e
    if kind in GPUS:  # whose drivers may be there and not work
      backend.check()
    opened[name] = backend
    return backend

  def __getitem__(self, name: str) -> Any:
    return self._open(self.canonicalize(name))

  def count(self, name: str | None = None) -> int:
    """How many devices of a kind, the default one's unless given, may work side by side: `Device.count("GPU")`."""
    return int(self[name or self.DEFAULT].count())

  def mem_used(self, name: str) -> int:
    """Bytes that buffers hold on a device now. Of simulated devices the first of a mesh stands for all."""
    return GlobalCounters.mem_used_per_device.get(self.canonicalize(name), 0)

  def mem_peak(self, name: str) -> int:
    """The most bytes that buffers held on a device at once since `GlobalCounters.reset()`."""
    return GlobalCounters.peak_on.get(self.canonicalize(name), 0)


def backends() -> tuple[str, ...]:
  """The kinds of device: the modules of the runtime."""
  runtime = importlib.import_module("tinygrad.runtime")
  return tuple(m.name.upper() for m in pkgutil.iter_modules(runtime.__path__) if m.name not in SHARED)


@functools.cache
def _chosen_kind() -> str:
  return next((kind for kind in (*backends(), "GPU") if os.environ.get(kind) == "1"), "CPU")


ON_CPU = "fix: GPU=CPU in the environment runs GPU examples on the CPU"
GPUS = ("CUDA", "METAL", "CL")  # GPU is the first of these that works here
EXTRAS = {"CUDA": "cuda", "METAL": "metal", "CL": "opencl"}  # what brings a backend's packages
NOT_FOR_COMPUTING = frozenset(("NULL", "PYTHON", "NPY", "DISK"))  # simulated, for reference, or memory only
SHARED = ("diskcache", "queues")  # modules of the runtime that are no backend
opened: dict[str, Any] = {}  # the backends in use
Device = _Devices()


@atexit.register
def _finish() -> None:
  """Work that is still queued ends before the interpreter takes its memory away."""
  for backend in opened.values():
    if not getattr(backend, "lost", False):  # which has been told
      backend.synchronize()


# ---------------------------------------------------------------- buffers


@dataclass(eq=False, slots=True, weakref_slot=True)
class Buffer:
  """The memory of one value in one placement; each device's part is allocated on first use.

  `shape` is the logical shape (upper bounds of symbolic dims). `handles[i]` is the memory of device i of the placement.
  """

  device: Placement
  shape: tuple[int, ...]
  dtype: DType
  handles: list[Any] = field(default_factory=list)
  _owner: Any = None

  @property
  def devices(self) -> tuple[str, ...]:
    return device_set(self.device)

  @property
  def local_shape(self) -> tuple[int, ...]:
    return self.shape if isinstance(self.device, str) else self.device.local_shape(self.shape)

  @property
  def nbytes_per_device(self) -> int:
    return int(prod(self.local_shape)) * self.dtype.itemsize

  def allocate(self, handles: Sequence[Any] | None = None, owner: Any = None) -> Buffer:
    """Gives the buffer memory: `handles`, which `owner` keeps (None: somebody who outlives the buffer), or fresh memory
    on every device. No-op if it has some.
    """
    if self.handles:
      return self
    if handles is not None:
      self.handles, self._owner = list(handles), owner
      return self
    nbytes = self.nbytes_per_device
    first = Device[self.devices[0]]
    backends = [first] if first.simulated else [Device[d] for d in self.devices]
    got: list[Any] = []
    try:
      for b in backends:
        got.append(b.alloc(nbytes))
    except MemoryError:
      for b, handle in zip(backends, got):  # those that had room
        b.free(handle, nbytes)
      raise
    self.handles = got
    total = nbytes * len(self.devices)
    GlobalCounters.mem_used += total
    for b in backends:
      GlobalCounters.allocated(b.name, nbytes)
    weakref.finalize(self, _release, backends, list(self.handles), nbytes, total).atexit = False
    return self

  def handle(self, i: int = 0) -> Any:
    """The memory on device i of the placement, allocated if need be. On a simulated backend all devices share one."""
    if not self.handles:
      self.allocate()
    return self.handles[i if i < len(self.handles) else 0]

  def __repr__(self) -> str:
    return f"Buffer({show_placement(self.device)}, {self.dtype.name}{list(self.shape)})"


def _release(backends: list[Any], handles: list[Any], nbytes: int, total: int) -> None:
  GlobalCounters.mem_used -= total
  for backend, handle in zip(backends, handles, strict=True):
    GlobalCounters.allocated(backend.name, -nbytes)
    backend.free(handle, nbytes)


def report() -> None:
  """Prints which kinds of device work here, and what brings those that do not."""
  for kind in ("CPU", *GPUS):
    default = ", the default" if kind == Device.DEFAULT.partition(":")[0] else ""
    found = Device._attempt(kind)
    print(f"{kind:5s} no    {found}" if isinstance(found, str) else f"{kind:5s} yes   {found.description}{default}")
  print("GPU   " + os.environ.get("GPU", "the first of these that works: " + ", ".join(GPUS)))
