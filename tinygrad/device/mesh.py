"""Meshes: ordered devices with a shape and named axes; sub-axes, parts of those."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, NoReturn, Self

from tinygrad.device.errors import DeviceError, ShardError, ShardTypeError, refuse
from tinygrad.device.registry import Device
from tinygrad.helpers import MIXED, html_block, html_cell, html_rows, hue, prod

Names = Sequence[str]
SHOWN_IN_HTML = 64  # devices of a mesh


class _Frozen:
  """Equal ones are one object, which all that is placed alike shares: it cannot be written to, and has no copies.
  `repr` is code that gives the object again, `str` what messages print."""

  __slots__ = ()

  def __setattr__(self, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"{self} is frozen, .{name} cannot be set\n  fix: make another {type(self).__name__}")

  def __delattr__(self, name: str) -> None:
    raise FrozenInstanceError(f"{self} is frozen, .{name} cannot be deleted")

  def __copy__(self) -> Self:
    return self

  def __deepcopy__(self, memo: dict[int, Any]) -> Self:
    return self

  def _fill(self, **fields: Any) -> None:
    for name, value in fields.items():
      object.__setattr__(self, name, value)


_homes: dict[tuple[str, ...], Mesh] = {}
_meshes: dict[tuple[Any, ...], Mesh] = {}


class Mesh(_Frozen):
  """Ordered distinct devices as a row-major grid with named axes: `Mesh(("CPU:0", …, "CPU:3"), (2, 2), ("dp", "tp"))`.

  Without a shape the mesh is one axis of all devices, or has the shape of an array of devices; `Mesh(devices, ("d",))`
  gives names alone. Equal meshes are the same object. `with mesh:` makes it the `ambient_mesh`.
  Raises: ShardError for repeated devices, several kinds without MIXED=1, a shape that does not multiply to their
  number, or names that don't match it; ShardTypeError for `axis_names=` and other keywords than these three.

  Examples:
    >>> mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
    >>> len(mesh), mesh.shape, mesh.names
    (4, (2, 2), ('data', 'model'))
    >>> Mesh(('CPU:0', 'CPU:1')) is Mesh(['CPU', 'CPU:1'])
    True
  """

  __slots__ = ("devices", "home", "kinds", "names", "shape")
  kinds: tuple[str, ...]  # the first device of each kind
  devices: tuple[str, ...]
  home: Mesh  # the first mesh over these devices: what finds things by devices without looking at each of them
  shape: tuple[int, ...]
  names: tuple[str, ...]

  def __new__(
    cls, devices: Names, shape: Sequence[int] | Names | None = None, names: Names | None = None, **others: Any
  ) -> Mesh:
    if others:
      _refuse_keywords(others, shape, names)
    devs, grid = _listed_devices(devices, shape)
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

  def __enter__(self) -> Self:
    ambient_meshes.set((*ambient_meshes.get(), self))
    return self

  def __exit__(self, *error: object) -> None:
    *outer, last = ambient_meshes.get()
    if last is not self:  # a generator's block may end within another's
      outer = [*outer, last]
      del outer[len(outer) - 1 - outer[::-1].index(self)]
    ambient_meshes.set(tuple(outer))

  def __repr__(self) -> str:
    axes = "" if self.names == ("x",) else f", {self.shape}, {self.names}"
    return f"Mesh({device_code(self.devices)}{axes})"

  def __str__(self) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.shape, strict=True))
    return f"Mesh({short_devices(self.devices)}, {axes})"

  def _grid_html(self, title: str, colors: Sequence[str], notes: Sequence[str] = ()) -> str:
    """The devices as a grid: a line for each index of the first axis, each in its colour, a note beside its name."""
    width, shown = len(self) // self.shape[0], min(len(self), SHOWN_IN_HTML)
    cells = [html_cell(" ".join(x), color) for x, color in zip(zip(self.devices, notes or [""] * len(self)), colors)]
    lines = [cells[i : min(i + width, shown)] for i in range(0, shown, width)]
    rest = f"<div>and {len(self) - shown} more</div>" if shown < len(self) else ""
    return html_block(title, html_rows(lines), rest)

  def _repr_html_(self) -> str:
    return self._grid_html(str(self), [hue(i, len(self)) for i in range(len(self))])

  def axes_of(self, sub_axes: Sequence[SubAxis]) -> tuple[str, ...]:
    """The axes and sub-axes that the sub-axes are, major to minor; `size@stride` for one that crosses them.

    Examples:
      >>> mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
      >>> mesh.axes_of([mesh.sub_axis("model")])
      ('model',)
    """
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
    """The sub-axis of an axis `"x"`, of a sub-axis `"x:(p)k"` (view x as [p, k, n/(pk)] and take k), or of one that
    crosses axes, `"size@stride"`: what `axes_of` gives. ShardError for any other.

    Examples:
      >>> mesh = Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ("data", "model"))
      >>> mesh.sub_axis('data')
      SubAxis(size=2, stride=2)
      >>> mesh.sub_axis('model')
      SubAxis(size=2, stride=1)
    """
    if isinstance(found := self._sub_axis(entry), str):
      refuse(found, repr(self.names[0]))
    return found

  def _sub_axis(self, entry: str) -> SubAxis | str:
    """The sub-axis, or what is wrong."""
    if (crossing := re.fullmatch(r"(\d+)@(\d+)", entry)) is not None:
      size, stride = map(int, crossing.groups())
      divides = size * stride > 0 and len(self) % (size * stride) == 0
      return SubAxis(size, stride) if divides else f"{entry!r}: {size}*{stride} does not divide {len(self)} devices"
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


DeviceMesh = Mesh

ambient_meshes: ContextVar[tuple[Mesh, ...]] = ContextVar("ambient meshes", default=())  # the inner one last


def ambient_mesh() -> Mesh | None:
  """The mesh of the innermost `with mesh:` around the caller, in this thread (or task); None outside of any."""
  return ambient_meshes.get()[-1] if ambient_meshes.get() else None


def as_mesh(name: str, mesh: Any) -> Mesh:
  """The mesh that `name` was given. Raises: ShardTypeError for what is none."""
  if not isinstance(mesh, Mesh):
    refuse(f"{name}: mesh={mesh!r} is no Mesh", 'mesh=Mesh(("CPU:0", "CPU:1"), names=("dp",))', error=ShardTypeError)
  return mesh


def _refuse_keywords(others: dict[str, Any], shape: Any, names: Any) -> NoReturn:
  """Keywords of `jax.sharding.Mesh`, `jax.make_mesh` and `torch.distributed.DeviceMesh` have other names here."""
  here = {"axis_names": "names", "mesh_dim_names": "names", "axis_shapes": "shape", "mesh_shape": "shape"}
  given = {"shape": shape, "names": names, **{here[k]: v for k, v in others.items() if k in here}}
  plain = {k: v if isinstance(v, str) else tuple(_flat(v)) for k, v in given.items() if isinstance(v, Iterable)}
  plain = {k: v for k, v in plain.items() if k == "names" or all(as_index(n) is not None for n in v)}
  code = ", ".join(["devices", *(f"{k}={v!r}" for k, v in plain.items())])
  said = "a mesh is made of devices, shape= and names=, got "
  refuse(f"{said}{', '.join(f'{k}={v!r}' for k, v in others.items())}", f"Mesh({code})", error=ShardTypeError)


def _listed_devices(devices: Any, shape: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
  """(the canonical names of a mesh's devices, the shape of the array that they were given in)."""
  example = "('CPU:0', 'CPU:1')"
  if isinstance(devices, str):
    sizes = [as_index(n) or 0 for n in shape] if isinstance(shape, (tuple, list)) else []
    kind = devices.partition(":")[0]
    fix = f"({devices!r},)" if prod(sizes) < 2 else f"[f'{kind}:{{i}}' for i in range({prod(sizes)})]"
    refuse(f"a mesh needs a sequence of devices, got the string {devices!r}", fix, error=ShardTypeError)
  if isinstance(devices, _Frozen):  # a mesh, or a placement
    name = "mesh" if isinstance(devices, Mesh) else "placement"
    refuse(f"a mesh needs a sequence of devices, got {devices}", f"{name}.devices", error=ShardTypeError)
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
  if len(set(kinds)) > 1 and not (MIXED and all(Device.capabilities(kind).ordinary for kind in kinds)):
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
  return list(devices.ravel().tolist()) if hasattr(devices, "ravel") else list(devices)


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
    return tuple(map(str, given))
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


def overlapping(mesh: Mesh, sub_axes: Sequence[SubAxis]) -> str:
  """Which of one placement's sub-axes overlap: they must form a divisor chain of the device's number. "" if none do."""
  below = 1
  for d in sorted((d for d in sub_axes if d.size > 1), key=lambda d: d.stride):
    if d.stride % below or len(mesh) % (d.size * d.stride):
      return _axes(mesh, (d,))
    below = d.size * d.stride
  return ""


def _axes(mesh: Mesh, sub_axes: Sequence[SubAxis]) -> str:
  """The axis, or axes, or sub-axis, that each sub-axis is; names only print."""
  return "+".join("*".join(mesh.axes_of((d,))) for d in sub_axes)


def short_devices(devices: Sequence[str]) -> str:
  """`CPU:0-3` for consecutive devices of one kind, else the names."""
  if len(devices) == 1:
    return devices[0]
  kind, numbers = _run_of(devices)
  return f"{kind}:{numbers.start}-{numbers.stop - 1}" if numbers else ", ".join(devices)


def device_code(devices: Sequence[str]) -> str:
  """The names as code: a tuple, or a list over the numbers of many consecutive devices."""
  kind, numbers = _run_of(devices)
  return f"[f'{kind}:{{i}}' for i in {numbers}]" if len(numbers) > LISTED else repr(tuple(devices))


LISTED = 8


def _run_of(devices: Sequence[str]) -> tuple[str, range]:
  """(kind, the numbers) of consecutive devices of one kind; an empty range for others."""
  split = [(name, number or "0") for name, _, number in (d.partition(":") for d in devices)]
  kind, number = split[0]
  first = int(number) if number.isdigit() else 0
  whole = all(s == (kind, str(first + i)) for i, s in enumerate(split))
  return kind, range(first, first + len(split)) if whole else range(0)


def in_short(x: Any) -> str:
  """How messages print what a user gave: its `repr`, but of meshes and placements `str`."""
  return str(x) if isinstance(x, _Frozen) else repr(x)
