"""Devices by name: which backends there are here, canonical names, `Device`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import pkgutil
import re
from collections.abc import Iterator

from tinygrad.device.backend import Backend, Capabilities
from tinygrad.device.errors import DeviceError, refuse
from tinygrad.device.world import World
from tinygrad.helpers import DEV, GlobalCounters, difflib, getenv


def number_of(name: str) -> int:
  """Which of its kind a device is: CPU:1 the second, CPU the first."""
  return int(name.partition(":")[2] or 0)


class _Devices:
  """`Device["CPU:1"]` opens a device; `Device.DEFAULT` is where new tensors go: what was assigned to it, the context
  variable DEV (`DEV=CPU:1` in the environment, `with Context(DEV="CPU:1")`), a kind set to 1 in the environment, CPU.
  """

  world: World | None = None  # the processes over which the devices are spread, once `distributed.initialize` has run

  @property
  def DEFAULT(self) -> str:
    if not DEV.value:
      return self._canonicalize(_chosen_kind())
    try:
      return self._canonicalize(DEV.value)
    except DeviceError as e:  # the line has no such name in it
      raise DeviceError(f"DEV={DEV.value}: {e}") from None

  @DEFAULT.setter
  def DEFAULT(self, name: str) -> None:
    DEV.value = self.canonicalize(name)

  @property
  def default(self) -> Backend:
    """The backend of `DEFAULT`."""
    return self[self.DEFAULT]

  def get_available_devices(self) -> Iterator[str]:
    """The kinds of device that can compute here."""
    return (k for k in backends() if self.capabilities(k).ordinary and not isinstance(self._attempt(k), str))

  @functools.cache  # noqa: B019 (one instance for the process)
  def _attempt(self, kind: str) -> Backend | str:
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
    if number and kind in backends() and self.capabilities(kind).files:
      return f"{kind}:{name[len(kind) + 1 :]}"
    if kind == "GPU":
      kind = self._resolve_gpu()
    if number and not number.isdigit():
      refuse(f"{name!r} is no device name", f"'{self._example(kind)}'  # KIND or KIND:NUMBER", error=DeviceError)
    if not re.fullmatch(r"[A-Z]+", kind) or kind not in backends():
      near = difflib.get_close_matches(kind, backends(), 1) or ["CPU"]
      fix = f"'{self._example(near[0])}'  # one of {', '.join(backends())}"
      refuse(f"unknown device {name!r}: there is no backend {kind!r}", fix, error=DeviceError)
    if SIMULATED and self.capabilities(kind).ordinary:
      kind = SIMULATED
    return kind if int(number or 0) == 0 else f"{kind}:{int(number)}"

  def canonicalize(self, device: str | None) -> str:
    """The one name of a device: upper case, `CPU` for `CPU:0`, GPU resolved; the default for None."""
    if device is None:
      return self.DEFAULT
    if not isinstance(device, str):
      refuse(f"a device is named by a string, got {device} of {type(device)}", "'CPU:1'", error=DeviceError)
    return self._canonicalize(device)

  def _example(self, kind: str) -> str:
    return f"{kind if kind in backends() else 'CPU'}:1"

  def _resolve_gpu(self) -> str:
    if (named := SIMULATED or os.environ.get("GPU", "1")) != "1":  # GPU=1 makes it the default, as do CPU=1, …
      if (kind := named.upper()) not in backends():
        fix = "unset GPU, or GPU=CPU, which runs GPU examples on the CPU"
        refuse(f"GPU={named} in the environment: there is no backend {kind!r}", fix, error=DeviceError)
      return kind
    faults = []
    for kind in GPUS:
      if not isinstance(found := self._attempt(kind), str):
        return kind
      faults.append(f"\n    {kind}: {found}")
    raise DeviceError(f"no GPU backend works here:{''.join(faults)}\n  {ON_CPU}")

  @functools.cache  # noqa: B019 (one instance for the process)
  def _open(self, name: str) -> Backend:
    with _packages_named(name):
      kind = _backend_class(name)
      backend = kind(name) if self.world is None else self.world.open(kind, name)
    if backend.kind in GPUS:  # whose drivers may be there and not work
      backend.check()
    opened[name] = backend
    return backend

  @functools.cache  # noqa: B019 (one instance for the process)
  def capabilities(self, name: str) -> Capabilities:
    """What a device, by its canonical name, or a kind can do. Loads its module, and opens nothing."""
    with _packages_named(name):
      return _backend_class(name).capabilities

  def __getitem__(self, name: str) -> Backend:
    return self._open(self.canonicalize(name))

  def count(self, name: str | None = None) -> int:
    """How many devices of a kind, the default one's unless given, may work side by side: `Device.count("GPU")`."""
    kind = self.canonicalize(name).partition(":")[0]
    if self.world is not None and self.capabilities(kind).ordinary:
      return len(self.world.names(kind))
    return int(self[name or self.DEFAULT].count())

  def local(self, kind: str | None = None) -> tuple[str, ...]:
    """The devices of a kind, the default one's unless given, that are in this process."""
    kind = self.canonicalize(kind or self.DEFAULT).partition(":")[0]
    if self.world is not None:
      return self.world.names(kind, self.world.index)
    return tuple(self.canonicalize(f"{kind}:{i}") for i in range(self.count(kind)))

  def place(self, name: str, there: int) -> int:
    """Which of the `there` devices of this machine a device of this process is, by its canonical name."""
    return number_of(name) if self.world is None or not there else self.world.place(name, there)

  def here(self, name: str) -> bool:
    """Whether a device, by its canonical name, is in this process."""
    return self.world is None or self.world.here(name)

  def join(self, world: World | None) -> None:
    """From here on devices are spread over several processes (None: over one again). Raises: DeviceError if some are in
    use already."""
    if used := [name for name, backend in opened.items() if world is not None and backend.capabilities.ordinary]:
      rule = f"{', '.join(used)} is in use already, as a device of this process alone"
      refuse(rule, "call tinygrad.distributed.initialize() before the first tensor is realized", error=DeviceError)
    self.world = world
    _Devices.capabilities.cache_clear()

  def mem_used(self, name: str) -> int:
    """Bytes that buffers hold on a device now. Of simulated devices the first of a mesh stands for all."""
    return GlobalCounters.mem_used_per_device.get(self.canonicalize(name), 0)

  def mem_peak(self, name: str) -> int:
    """The most bytes that buffers held on a device at once since `GlobalCounters.reset()`."""
    return GlobalCounters.peak_on.get(self.canonicalize(name), 0)


@functools.cache
def backends() -> tuple[str, ...]:
  """The kinds of device: the modules of the runtime."""
  runtime = importlib.import_module("tinygrad.runtime")
  return tuple(m.name.upper() for m in pkgutil.iter_modules(runtime.__path__) if m.name not in SHARED)


def _backend_class(name: str) -> type[Backend]:
  module = importlib.import_module(f"tinygrad.runtime.{name.partition(':')[0].lower()}")
  found: type[Backend] = module.open_device
  return found if Device.world is None else Device.world.backend(found)


@contextlib.contextmanager
def _packages_named(name: str) -> Iterator[None]:
  """Raises: DeviceError that says what to install, where a device's package is missing or does not load."""
  try:
    yield
  except ImportError as e:
    kind = name.partition(":")[0]
    extra = f"'tinygrad[{EXTRAS[kind]}]'" if kind in EXTRAS else e.name or "tinygrad"
    if isinstance(e, ModuleNotFoundError):
      raise DeviceError(f"device {name} needs the package {e.name!r}\n  fix: pip install {extra}") from e
    fix = f"pip install --force-reinstall {extra}"
    raise DeviceError(f"device {name}: its package does not load ({e})\n  fix: {fix}") from e


@functools.cache
def _chosen_kind() -> str:
  return next((kind for kind in (*backends(), "GPU") if os.environ.get(kind) == "1"), "CPU")


ON_CPU = "fix: GPU=CPU in the environment runs GPU examples on the CPU; what names CUDA or METAL has to name CPU"
HOST_DEVICE = "NPY"  # the device of numpy arrays, by way of which values come from the host and go there
GPUS = ("CUDA", "METAL", "CL")  # GPU is the first of these that works here
EXTRAS = {"CUDA": "cuda", "METAL": "metal", "CL": "opencl"}  # what brings a backend's packages
# modules of the runtime that are no backend
SHARED = ("call_lists", "diskcache", "elf", "native", "overlap", "peer_reads", "plans", "queues", "storage", "transfer")
SIMULATED = (
  "NULL" if getenv("SIM", "") else ""
)  # what stands for all devices that compute, where a cluster is simulated
opened: dict[str, Backend] = {}  # the backends in use
Device = _Devices()


@atexit.register
def _finish() -> None:
  """Work that is still queued ends before the interpreter takes its memory away."""
  for backend in opened.values():
    if not backend.lost:  # which has been told
      backend.synchronize()


def print_kinds() -> None:
  """Prints which kinds of device work here, and what brings those that do not."""
  for kind in ("CPU", *GPUS):
    default = ", the default" if kind == Device.DEFAULT.partition(":")[0] else ""
    found = Device._attempt(kind)
    print(f"{kind:5s} no    {found}" if isinstance(found, str) else f"{kind:5s} yes   {found.description}{default}")
  print("GPU   " + os.environ.get("GPU", "the first of these that works: " + ", ".join(GPUS)))
