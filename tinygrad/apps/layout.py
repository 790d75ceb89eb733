"""Where tensors go: one device, or a mesh of several, as the programs' options say."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinygrad import Device, Mesh, P, Sharding, Tensor
from tinygrad.apps import AppError
from tinygrad.device import Computes, PlacedLine, show_placement

if TYPE_CHECKING:
  from tinygrad.solver.reasons import Reason

PARTS = 999  # of an axis, at most


class ShardSpecError(AppError):
  """Devices or a mesh that cannot be: names the option's value and a fix."""


def parse_axes(spec: str, option: str) -> dict[str, int]:
  """Axes and into how many parts each cuts, from "4" (tp), "2x2" (dp and tp) or "dp=2,tp=2".

  Raises: ShardSpecError.
  """
  found: dict[str, int] = {}
  if re.fullmatch(r"[0-9]+(x[0-9]+)?", spec):
    sizes = spec.split("x")
    found = {name: int(n) for name, n in zip(("dp", "tp")[-len(sizes) :], sizes)}
  elif re.fullmatch(r"[a-z_]+=[0-9]+(,[a-z_]+=[0-9]+)*", spec):
    pairs = [pair.split("=") for pair in spec.split(",")]
    found = {name: int(n) for name, n in pairs}
    if len(found) < len(pairs):
      raise ShardSpecError(f"{option} {spec!r} names an axis twice\n  fix: {option} dp=2,tp=2")
  if not found or not all(1 <= n <= PARTS for n in found.values()):
    fix = f"{option} 2, or a mesh as {option} 2x2 or {option} dp=2,tp=2"
    raise ShardSpecError(f"{option} {spec!r} is no number of devices\n  fix: {fix}")
  return found


def parse_devices(names: str, count: int | None = None) -> tuple[str, ...]:
  """The devices of "GPU:0,GPU:1", each once, `count` of them.

  Raises: ShardSpecError; DeviceError for one that there cannot be.
  """
  found = tuple(Device.canonicalize(name.strip()) for name in names.split(","))
  if len(set(found)) < len(found):
    raise ShardSpecError(f"--devices {names!r} names one twice\n  fix: name each once")
  for name in found:
    if Device.capabilities(name).computes is Computes.NOTHING:
      raise ShardSpecError(f"--devices {names!r}: {name} computes nothing\n  fix: --devices {Device.DEFAULT}")
  if count not in (None, len(found)):
    fix = f"name {count} devices, or cut over {len(found)}"
    raise ShardSpecError(f"--devices {names!r} are {len(found)}, and the mesh has {count}\n  fix: {fix}")
  return found


def mesh_over(axes: dict[str, int], devices: tuple[str, ...] | None = None) -> str | Mesh:
  """`devices`, else the first of the default kind; a mesh of one is its device."""
  count = math.prod(axes.values())
  if count == 1:
    return devices[0] if devices else Device.DEFAULT
  named = devices or tuple(f"{Device.DEFAULT}:{i}" for i in range(count))
  return Mesh(named, tuple(axes.values()), tuple(axes))


@dataclass(frozen=True, slots=True)
class Layout:
  """Where weights go: one device, or a mesh over all of whose axes they are cut.

  `shared`: the axes over which kv heads are cut, where these are not all, because there are fewer kv heads: devices
  that differ along the others hold the same ones.
  """

  where: str | Mesh
  shared: tuple[str, ...] | None = None

  @staticmethod
  def parse(spec: str | None, devices: str | None = None, option: str = "--shard") -> Layout:
    """ "2": two devices in a row; "2x2" or "dp=2,tp=2": a mesh with the axes dp and tp; "1": the default device.
    `devices` names them, and without a spec says how many.

    Raises: ShardSpecError, DeviceError.
    """
    axes = None if spec is None else parse_axes(spec, option)
    named = None if devices is None else parse_devices(devices, None if axes is None else math.prod(axes.values()))
    return Layout(mesh_over(axes or {"tp": len(named or ("",))}, named))

  def for_heads(self, kv_heads: int) -> Layout:
    """These devices, of which as many as can have kv heads of their own: an axis that is longer is taken apart.

    Of n devices and k kv heads, gcd(n, k) have other ones; n / gcd(n, k) each have the same.
    """
    if isinstance(self.where, str) or kv_heads % self.count == 0:
      return self
    axes, shared, left = dict[str, int](), list[str](), kv_heads
    for name, size in zip(self.where.names, self.where.shape):
      own = math.gcd(left, size)
      left //= own
      if own > 1:
        axes[name] = own
        shared.append(name)
      if own < size:
        axes[name if own == 1 else f"{name}_copies"] = size // own
    return Layout(Mesh(tuple(self.where.devices), tuple(axes.values()), tuple(axes)), tuple(shared))

  @property
  def copies(self) -> int:
    """How many devices hold the same kv heads."""
    if isinstance(self.where, str) or self.shared is None:
      return 1
    sizes = dict(zip(self.where.names, self.where.shape))
    return self.count // math.prod(sizes[name] for name in self.shared)

  @property
  def devices(self) -> tuple[str, ...]:
    return (self.where,) if isinstance(self.where, str) else tuple(self.where.devices)

  @property
  def count(self) -> int:
    return 1 if isinstance(self.where, str) else math.prod(self.where.shape)

  def cut(self, dim: int, kv: bool = False) -> P:
    """A hint: `dim` is cut over these devices, and no other. `kv`: it counts kv heads, or what each of them has."""
    if isinstance(self.where, str):
      return P()
    first = tuple(self.where.names) if self.shared is None else self.shared
    # the heads of one kv head lie side by side, so the axes that cut kv heads come first
    names = first if kv else (*first, *(name for name in self.where.names if name not in first))
    return P(*[None] * dim, names) if names else P()

  def put(self, x: Tensor | NDArray[np.generic], at: str | Sharding | None = None) -> Tensor:
    """`x` at a placement, else replicated on these devices. Of a host array each device receives its slice only."""
    t, where = x if isinstance(x, Tensor) else Tensor(x), self.where if at is None else at
    return t.to(where) if isinstance(where, str) else t.shard(where)

  def over(self, x: NDArray[np.generic], at: str | Sharding) -> Tensor:
    """As `put`, of memory that is never written and outlives the tensor: a processor's devices whose parts lie in one
    piece use them where they lie."""
    if isinstance(at, str):
      return _viewed(x, at)
    if at.axis:
      return self.put(x, at)
    boxes = [tuple(slice(*r) for r in at.box(i, x.shape)) for i in range(self.count)]
    return Tensor.from_shards([_viewed(x[box], name) for box, name in zip(boxes, at.devices)], at)


@dataclass(frozen=True, slots=True)
class WeightPlaces:
  """Where weights and caches go, and for each cut dim why: which hint, on which line. `found`: by the names of the
  first layer, whose placements are those of every layer."""

  where: str | Mesh
  found: Mapping[str, tuple[Sharding, list[Reason]]] = field(default_factory=dict)

  def of(self, name: str) -> str | Sharding:
    if isinstance(self.where, str):
      return self.where
    return self.found[_of_first_layer(name)][0]

  def noted(self, name: str, t: Tensor) -> Tensor:
    """A weight in its place, whose memory knows why it is cut: `explain` tells it."""
    at, why = self.found.get(_of_first_layer(name), (None, []))
    memory = t.uop.base.stamp()
    if at is not None and memory.origin is not None:
      memory.origin = PlacedLine.of(memory.origin, cuts=lambda: [(r.dim, at.cut(r.dim), str(r)) for r in why])
    return t

  def told(self) -> list[str]:
    """A line for each weight, and one for each cut dim of it."""
    lines = []
    for name, (at, why) in self.found.items():
      lines += [f"{name.replace('blk.0.', 'blk.*.'):30s} {show_placement(at)}", *(f"  {reason}" for reason in why)]
    return lines


def _of_first_layer(name: str) -> str:
  return re.sub(r"^blk\.\d+\.", "blk.0.", name)


def _viewed(x: NDArray[np.generic], device: str) -> Tensor:
  if not (Device[device].capabilities.wraps and x.flags.c_contiguous and x.flags.aligned and x.size):
    return Tensor(x, device=device)
  return Tensor.from_blob(x.ctypes.data, x.shape, x.dtype.name, device)
