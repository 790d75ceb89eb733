"""What devices and the links between them can do: one model of a machine, by which `auto` chooses placements and by
which a schedule becomes a timeline (simulation/).

A `Cluster` is a kind of device and the levels of its network, from the innermost; a `Machine` is what that is to one
mesh, a link for each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinygrad.device.errors import refuse
from tinygrad.device.mesh import Mesh, SubAxis
from tinygrad.device.registry import Device, number_of
from tinygrad.helpers import ALLOW_TF32, PROCESS, numpy, prod


@dataclass(frozen=True, slots=True)
class Machine:
  """One device of a mesh. `flops`: operations a second; `bandwidth`: of its memory, bytes a second; `link`: bytes a
  second that it receives from others, one number or one for each mesh axis by name (what goes over several takes the
  slowest); `latency`: seconds that a collective takes besides."""

  flops: float
  bandwidth: float
  link: float | Mapping[str, float]
  latency: float

  def links(self, names: Sequence[str]) -> list[float]:
    """Those of mesh axes. Raises: ShardError for an axis without one."""
    if not isinstance(self.link, Mapping):
      return [self.link] * len(names)
    if without := [name for name in names if name not in self.link]:
      fix = f"Machine(..., link={ {**self.link, **dict.fromkeys(without, 1e10)} })"
      refuse(f"auto: machine.link={dict(self.link)} says nothing of the mesh axis {without[0]!r}", fix)
    return [self.link[name] for name in names]


@dataclass(frozen=True, slots=True)
class Chip:
  """One device. `flops`: operations a second of sums of products, by the type of the operands ("tf32": of float32 with
  ALLOW_TF32); `vector`: of all others.
  `bandwidth`: of its memory; `memory`: bytes; `host`: bytes a second from and to the host; `overhead`: seconds that a
  kernel takes besides; `target`: for what schedules are made ("": any; "CPU"; "sm_90x132", an architecture of CUDA and
  its multiprocessors)."""

  name: str
  flops: tuple[tuple[str, float], ...]
  vector: float
  bandwidth: float
  memory: float
  host: float
  overhead: float = 0.0
  target: str = ""

  def rate(self, dtype: str) -> float:
    """Of sums of products; what is not said of a type is done by the units for all other operations."""
    rates = dict(self.flops)
    if dtype == "float32" and ALLOW_TF32 and "tf32" in rates:
      return rates["tf32"]
    return rates.get(dtype, self.vector)


@dataclass(frozen=True, slots=True)
class Level:
  """A level of the network: it connects `size` units of the level below (devices, at the innermost). `bandwidth`: bytes
  a second that each device receives over it; `latency`: seconds of a round of messages. `topology`: "switch", each
  reaches each; "ring", neighbours alone; "memory", each reads what the others hold, in one round."""

  name: str
  size: int
  bandwidth: float
  latency: float
  topology: str = "switch"


@dataclass(frozen=True, slots=True)
class Cluster:
  """Devices of one kind and the levels that connect them, the innermost first: device number d is in unit
  d // (size₀ · … · sizeₗ) of level l. `overlap`: whether communication runs beside kernels."""

  name: str
  chip: Chip
  levels: tuple[Level, ...]
  overlap: bool = True

  def __len__(self) -> int:
    return int(prod(level.size for level in self.levels))

  def spans(self, devices: tuple[str, ...], sub_axes: tuple[SubAxis, ...]) -> tuple[float, ...]:
    """Of devices that differ in `sub_axes` of their place on a mesh: how many units of each level, within one of the
    level above, hold some of them; their product is the group. The group that reaches farthest counts."""
    return spans(tuple(level.size for level in self.levels), devices, sub_axes)

  def slowest(self, counts: Sequence[float]) -> Level:
    """The slowest level over which a group with such `spans` talks."""
    return min([level for level, n in zip(self.levels, counts) if n > 1] or self.levels[:1], key=lambda x: x.bandwidth)

  def machine(self, mesh: Mesh) -> Machine:
    """What the cluster is to a mesh: operations of the type that the chip names first, and as latency the longest of a
    level that an axis crosses."""
    over = {name: self.slowest(self.spans(mesh.devices, (mesh.sub_axis(name),))) for name in mesh.names}
    link = {name: level.bandwidth for name, level in over.items()}
    latency = max(level.latency for level in over.values())
    rates = [rate for _, rate in self.chip.flops] or [self.chip.vector]
    return Machine(rates[0], self.chip.bandwidth, link, latency)


def numbers(devices: Sequence[str]) -> tuple[int, ...]:
  """The places of devices in a cluster: what is behind the colon of a name."""
  return tuple(map(number_of, devices))


@PROCESS.cached
def spans(sizes: tuple[int, ...], devices: tuple[str, ...], sub_axes: tuple[SubAxis, ...]) -> tuple[float, ...]:
  """`Cluster.spans`, for levels of these sizes."""
  first = numpy.arange(len(devices))
  for axis in sub_axes:
    first = first[first // axis.stride % axis.size == 0]
  members = first[:, None]
  for axis in sub_axes:
    members = (members[..., None] + axis.stride * numpy.arange(axis.size)).reshape(len(first), -1)
  units = numpy.array(numbers(devices))[members]
  counts = [numpy.full(len(first), members.shape[1])]
  for size in sizes:
    units = numpy.sort(units // size, axis=1)
    counts.append(1 + (units[:, 1:] != units[:, :-1]).sum(axis=1))
  farthest = max(range(len(first)), key=lambda g: [int(c[g]) for c in reversed(counts)])
  held = [float(c[farthest]) for c in counts]
  return tuple([a / b for a, b in zip(held, held[1:])])


CPU = Machine(1e11, 2e10, 1e10, 2e-5)  # a share of a server's cores; devices of one machine exchange through memory
# NVIDIA H100 Tensor Core GPU data sheet, the SXM column: dense (half of what is said with sparsity); PCIe gen 5 and
# NVLink in one direction. No data sheet says latencies and what a launch takes: these are assumed
H100_SXM = Chip(
  name="H100 SXM",
  flops=(("bfloat16", 989e12), ("float16", 989e12), ("fp8e4m3", 1979e12), ("fp8e5m2", 1979e12), ("int8", 1979e12),
         ("tf32", 494.7e12), ("float64", 67e12)),
  vector=67e12, bandwidth=3.35e12, memory=80e9, host=64e9, overhead=2e-6, target="sm_90x132",
)  # fmt: skip
NVLINK_4 = Level("NVLink", 8, 450e9, 2e-6)
H100 = Machine(H100_SXM.rate("bfloat16"), H100_SXM.bandwidth, NVLINK_4.bandwidth, 1e-5)
KINDS = {"CPU": CPU, "CUDA": H100, "NULL": H100}
simulated: list[Cluster] = []  # what the simulated devices stand for, the innermost last


def machine_of(device: str) -> Machine:
  """What is assumed of a kind of device."""
  return KINDS.get(device.partition(":")[0], CPU)


def machine_for(mesh: Mesh) -> Machine:
  """What is assumed of a mesh's devices; of simulated ones the cluster that they stand for."""
  if simulated and Device.capabilities(mesh.devices[0]).simulated:
    return simulated[-1].machine(mesh)
  return machine_of(mesh.devices[0])
