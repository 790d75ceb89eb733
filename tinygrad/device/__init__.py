"""Where values live: device names, meshes, placements (`Sharding`), buffers, and what a backend has to offer."""

from __future__ import annotations

import atexit
import functools
import importlib
import itertools
import os
import pkgutil
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tinygrad.dtype import DType
from tinygrad.helpers import DEV, MIXED, GlobalCounters, ceildiv, prod


class DeviceError(RuntimeError):
  """A device that does not exist here, cannot be opened, or failed while it ran."""


class ShardError(ValueError):
  """A placement that cannot be, or operands whose placements do not go together."""


# ---------------------------------------------------------------- meshes and placements


Names = Sequence[str]


class Mesh:
  """Ordered distinct devices as a row-major grid with named axes: `Mesh(("CPU:0", …, "CPU:3"), (2, 2), ("dp", "tp"))`.

  Without a shape the mesh is one axis of all devices. Equal meshes are the same object.
  Raises: ShardError for repeated devices, several kinds without MIXED=1, a shape that does not multiply to their
  number, or names that don't match it.
  """

  kinds: tuple[str, ...]  # the first device of each kind
  devices: tuple[str, ...]
  home: Mesh  # the first mesh over these devices: what finds things by devices without looking at each of them
  shape: tuple[int, ...]
  names: tuple[str, ...]
  _interned: ClassVar[dict[tuple[Any, ...], Mesh]] = {}
  _homes: ClassVar[dict[tuple[str, ...], Mesh]] = {}
  _spoken: ClassVar[dict[Mesh, Mesh]] = {}  # home -> the mesh whose names the user last placed with

  def __new__(cls, devices: Names, shape: Sequence[int] | None = None, names: Names | None = None) -> Mesh:
    if isinstance(devices, str):
      raise ShardError(f"a mesh needs a sequence of devices, got the string {devices!r}\n  fix: Mesh(({devices!r},))")
    devs = tuple(Device.canonicalize(d) for d in devices)
    if not devs or len(set(devs)) != len(devs):
      fix = "name each device once, e.g. ('CPU:0', 'CPU:1')"
      raise ShardError(f"a mesh needs distinct devices, got {devs}\n  fix: {fix}")
    kinds = {d.partition(":")[0]: d for d in reversed(devs)}
    if len(kinds) > 1 and not (MIXED and NOT_FOR_COMPUTING.isdisjoint(kinds)):
      fix = "use one; where all compute, MIXED=1 in the environment allows more, which then read through the host"
      raise ShardError(f"{short_devices(devs)}: a value is cut over devices of one kind\n  fix: {fix}")
    dims = (len(devs),) if shape is None else tuple(int(n) for n in shape)
    if prod(dims) != len(devs) or min(dims, default=1) < 1:
      said = f"a mesh of shape {dims} has {prod(dims)} places, but {len(devs)} devices were given"
      raise ShardError(f"{said}\n  fix: make the shape's product {len(devs)}")
    axes = tuple("xyzuvw"[i] if i < 6 else f"a{i}" for i in range(len(dims))) if names is None else tuple(names)
    if len(axes) != len(dims) or len(set(axes)) != len(axes):
      raise ShardError(f"a mesh of shape {dims} needs {len(dims)} distinct axis names, got {axes}")
    key = (devs, dims, axes)
    if (found := Mesh._interned.get(key)) is not None:
      return found
    self = object.__new__(cls)
    self.home = Mesh._homes.setdefault(devs, self)
    self.devices, self.shape, self.names = self.home.devices if self.home is not self else devs, dims, axes
    self.kinds = tuple(d for d in devs if d in kinds.values())
    return Mesh._interned.setdefault(key, self)

  def __len__(self) -> int:
    return len(self.devices)

  def __reduce__(self) -> tuple[Any, ...]:
    return Mesh, (self.devices, self.shape, self.names)

  def __repr__(self) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.shape, strict=True))
    return f"Mesh({short_devices(self.devices)}, {axes})"

  @property
  def spoken(self) -> Mesh:
    """The mesh over the same devices with the names that the user last used: placements don't know names, so this is
    how they print."""
    return Mesh._spoken.get(self.home, self)

  def axes_of(self, digits: Sequence[Digit]) -> tuple[str, ...]:
    """The axes and sub-axes that the digits are, major to minor; `size@stride` for one that crosses them."""
    out: list[str] = []
    for d in merge_digits(sorted(digits, key=lambda d: -d.stride)):
      parts, covered = list[str](), 1
      for i, (name, n) in enumerate(zip(self.names, self.shape, strict=True)):
        stride = prod(self.shape[i + 1 :])
        lo, hi = max(d.stride, stride), min(d.stride * d.size, stride * n)
        if lo < hi and hi % lo == 0 and lo % stride == 0 and (stride * n) % hi == 0:
          parts.append(name if (lo, hi) == (stride, stride * n) else f"{name}:({stride * n // hi}){hi // lo}")
          covered *= hi // lo
      out += parts if covered == d.size else [f"{d.size}@{d.stride}"]
    return tuple(out)

  def digits(self, entry: str) -> Digit:
    """The digit of an axis `"x"`, or of a sub-axis `"x:(p)k"`: view x as [p, k, n/(pk)] and take k."""
    match = re.fullmatch(r"([^:]+)(?::\((\d+)\)(\d+))?", entry)
    if match is None or match[1] not in self.names:
      fix = f"use one of {', '.join(self.names)}, or a sub-axis such as '{self.names[0]}:(1)2'"
      raise ShardError(f"{entry!r} is no axis of {self}\n  fix: {fix}")
    i = self.names.index(match[1])
    n, stride = self.shape[i], prod(self.shape[i + 1 :])
    if match[2] is None:
      return Digit(n, stride)
    p, k = int(match[2]), int(match[3])
    if p < 1 or k < 1 or n % (p * k):
      raise ShardError(f"sub-axis {entry!r}: {p}*{k} does not divide the axis size {n}")
    return Digit(k, stride * (n // (p * k)))


@dataclass(frozen=True, slots=True, order=True)
class Digit:
  """A digit of the device's number within the mesh: `number // stride % size`."""

  size: int
  stride: int


@dataclass(frozen=True, slots=True)
class Owe:
  """A reduction still owed over `digits`; `disjoint`: at most one coordinate holds a value that is not zero."""

  digits: tuple[Digit, ...]
  op: Any  # the reduce op (Ops); this module sits below the IR and only compares and prints it
  disjoint: bool = False


class P(tuple[Any, ...]):
  """PartitionSpec: for each tensor dim None, a mesh axis name, or a tuple of names (major to minor). `P("dp",
  None)`.
  """

  __slots__ = ()

  def __new__(cls, *dims: str | None | tuple[str, ...]) -> P:
    return super().__new__(cls, dims)

  def __repr__(self) -> str:
    return f"P({', '.join(map(repr, self))})"


def merge_digits(digits: Sequence[Digit]) -> tuple[Digit, ...]:
  """Normal form of an ordered digit list: no size 1, neighbours that are adjacent digits of the number joined."""
  out: list[Digit] = []
  for d in digits:
    if d.size == 1:
      continue
    if out and out[-1].stride == d.size * d.stride:
      out[-1] = Digit(out[-1].size * d.size, d.stride)
    else:
      out.append(d)
  return tuple(out)


class Sharding:
  """Where a value lives and how: its devices, for each dim the digits that cut it (major to minor), and reductions
  still owed.

  `Sharding(("GPU:0", "GPU:1"), axis=0)` cuts dim 0 in two; `axis=None` replicates; `Sharding(mesh, P("dp", None))` is
  the general form.
  Digits in neither replicate. Frozen and interned in one normal form: equal placements are the same object.
  On one device it is that device's plain name (a `str` is returned).
  Raises: ShardError for an axis used twice, a negative or repeated axis, digits that overlap.
  """

  mesh: Mesh
  devices: tuple[str, ...]
  dims: tuple[tuple[Digit, ...], ...]
  pending: tuple[Owe, ...]
  parts_: tuple[int, ...]
  settled: Sharding  # without debts: owed digits replicate
  used: tuple[Digit, ...]  # every digit that cuts or is owed
  _interned: ClassVar[dict[tuple[Any, ...], Sharding]] = {}

  def __new__(cls, devices: Mesh | Sequence[str], axis: int | P | Sequence[Any] | None = None) -> Any:
    mesh = devices if isinstance(devices, Mesh) else Mesh(devices)
    if isinstance(devices, Mesh):
      Mesh._spoken[mesh.home] = mesh
    dims: list[tuple[Digit, ...]] = []
    if isinstance(axis, int):
      if axis < 0:
        said = f"axis={axis}: a Sharding does not know the tensor's rank, so the axis must be >= 0"
        raise ShardError(f"{said}\n  fix: Tensor.shard(devices, axis={axis}) counts from the end")
      dims = [()] * axis + [(Digit(len(mesh), 1),)]
    elif axis is not None:
      dims = [tuple(map(mesh.digits, (names,) if isinstance(names, str) else names or ())) for names in axis]
    return Sharding.of(mesh, dims)

  @staticmethod
  def of(mesh: Mesh, dims: Sequence[Sequence[Digit]], pending: Sequence[Owe] = ()) -> Any:
    """The interned normal form of the given digits; the mesh's only device as a `str` if it has one."""
    if len(mesh) == 1:
      return mesh.devices[0]
    cut = [merge_digits(d) for d in dims]
    while cut and not cut[-1]:
      cut.pop()
    owed: list[Owe] = []
    ops = dict.fromkeys(o.op for o in pending)  # debts of one op have one order; those of two don't commute
    for op, disjoint in itertools.product(ops, (False, True)):
      digits = [d for o in pending if o.op is op and o.disjoint == disjoint for d in o.digits]
      if merged := merge_digits(sorted(digits, key=lambda d: -d.stride)):
        owed.append(Owe(merged, op, disjoint))
    debts = tuple(owed)
    key = (mesh.home, tuple(cut), debts)
    if (found := Sharding._interned.get(key)) is not None:
      return found
    self = object.__new__(Sharding)
    self.mesh, self.devices, self.dims, self.pending = mesh, mesh.devices, tuple(cut), debts
    self.used = (*(d for dim in cut for d in dim), *(d for o in debts for d in o.digits))
    _check_chain(mesh, self.used)
    self.parts_ = tuple(prod(d.size for d in dim) for dim in cut)
    self.settled = Sharding.of(mesh, cut) if debts else self
    return Sharding._interned.setdefault(key, self)

  @property
  def axis(self) -> int | None:
    """The one cut dim; None if replicated. Raises ShardError if several dims are cut."""
    cut = [i for i, d in enumerate(self.dims) if d]
    if len(cut) > 1:
      raise ShardError(f"{self} cuts dims {cut}; .axis exists only where one is cut\n  fix: read .dims")
    return cut[0] if cut else None

  def __len__(self) -> int:
    return len(self.devices)

  def __iter__(self) -> Iterator[str]:
    return iter(self.devices)

  def __getitem__(self, i: int) -> str:
    return self.devices[i]

  def __reduce__(self) -> tuple[Any, ...]:
    return Sharding.of, (self.mesh, self.dims, self.pending)

  @property
  def replicated(self) -> bool:
    """No dim is cut (debts aside)."""
    return not self.dims

  def with_dims(self, dims: Sequence[Sequence[Digit]]) -> Any:
    return Sharding.of(self.mesh, dims, self.pending)

  def cut(self, i: int) -> tuple[Digit, ...]:
    """The digits that cut dim i."""
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
    if len(self.parts_) > len(shape):
      cut = f"{self} cuts dim {len(self.parts_) - 1}"
      raise ShardError(f"{cut}, but the tensor of shape {tuple(shape)} has {len(shape)} dims")
    sizes = ((n, self.parts(i)) for i, n in enumerate(shape))
    return tuple(n if k == 1 else ceildiv(n if isinstance(n, int) else n.vmax, k) for n, k in sizes)

  def box(self, number: int, shape: Sequence[int], upper: Sequence[int] | None = None) -> tuple[tuple[int, int], ...]:
    """The half-open range of global indices that device `number` holds, for each dim (possibly empty): blocks of an
    upper bound of the shape, cut off at the shape."""
    sizes = self.local_shape(upper or shape)
    los = [min(n, self.block(i, number) * size) for i, (n, size) in enumerate(zip(shape, sizes, strict=True))]
    return tuple((lo, min(n, lo + size)) for lo, n, size in zip(los, shape, sizes))

  def __repr__(self) -> str:
    parts = ", ".join(_axes(self.mesh, dim) or "-" for dim in self.dims)
    owed = "".join(f" owes {o.op.name.lower()} over {_axes(self.mesh, o.digits)}" for o in self.pending)
    return f"Sharding({short_devices(self.devices)}: {parts or 'replicated'}{owed})"


Placement = str | Sharding


def _check_chain(mesh: Mesh, digits: Sequence[Digit]) -> None:
  """The digits of one placement must not overlap and must form a divisor chain of the device's number."""
  below = 1
  for d in sorted(digits, key=lambda d: d.stride):
    if d.stride % below or len(mesh) % (d.size * d.stride):
      said = f"{_axes(mesh, (d,))} of {mesh} is used twice, or overlaps another part of the same placement"
      raise ShardError(f"{said}\n  fix: let each mesh axis cut one dim")
    below = d.size * d.stride


def _axes(mesh: Mesh, digits: Sequence[Digit]) -> str:
  """The axis, or axes, or sub-axis, that each digit is; names only print."""
  return "+".join("*".join(mesh.spoken.axes_of((d,))) for d in digits)


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


def show_placement(placement: Placement | None) -> str:
  """How error messages print a placement: `CPU:0-3, dim 0 over "d"`."""
  if not isinstance(placement, Sharding):
    return "any device" if placement is None else placement
  mesh = placement.mesh
  cuts = [f'dim {i} over "{_axes(mesh, dim)}"' for i, dim in enumerate(placement.dims) if dim]
  owed = [f'owes {o.op.name.lower()} over "{_axes(mesh, o.digits)}"' for o in placement.pending]
  return ", ".join([short_devices(placement.devices), *(cuts or ["replicated"]), *owed])


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
    DEV.value = self._canonicalize(name)

  @property
  def default(self) -> Any:
    """The backend of `DEFAULT`."""
    return self[self.DEFAULT]

  def get_available_devices(self) -> Iterator[str]:
    """The kinds of device that can compute here."""
    return (k for k in backends() if k not in NOT_FOR_COMPUTING and not isinstance(self._attempt(k), str))

  def _attempt(self, kind: str) -> Any:
    """The backend, or in one line why there is none."""
    try:
      return self._open(kind)
    except DeviceError as e:
      return str(e).replace("\n  fix:", "; fix:")

  @functools.cache  # noqa: B019 (one instance for the process)
  def _canonicalize(self, name: str) -> str:
    kind, _, number = name.upper().partition(":")
    if kind == "DISK" and number:  # of a file
      return f"DISK:{name[5:]}"
    if kind == "GPU":
      kind = self._resolve_gpu()
    if number and not number.isdigit():
      raise DeviceError(f"{name!r} is no device name\n  fix: KIND or KIND:NUMBER, e.g. CPU:1")
    if not re.fullmatch(r"[A-Z]+", kind) or kind not in backends():
      fix = f"one of {', '.join(backends())}, e.g. CPU:1"
      raise DeviceError(f"unknown device {name!r}: there is no backend {kind!r}\n  fix: {fix}")
    return kind if int(number or 0) == 0 else f"{kind}:{int(number)}"

  def canonicalize(self, device: str | None) -> str:
    """The one name of a device: upper case, `CPU` for `CPU:0`, GPU resolved; the default for None."""
    if device is None:
      return self.DEFAULT
    if not isinstance(device, str):
      raise DeviceError(f"a device is named by a string, got {device!r} of type {type(device).__name__}")
    return self._canonicalize(device)

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
      opened[name] = importlib.import_module(f"tinygrad.runtime.{kind.lower()}").open_device(name)
    except ModuleNotFoundError as e:
      extra = f"'tinygrad[{EXTRAS[kind]}]'" if kind in EXTRAS else e.name
      raise DeviceError(f"device {name} needs the package {e.name!r}\n  fix: pip install {extra}") from e
    return opened[name]

  def __getitem__(self, name: str) -> Any:
    return self._open(self.canonicalize(name))

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
