"""What devices and the links between them can do: one model of a machine, by which `auto` chooses placements and by
which a schedule becomes a timeline (simulation/).

A `Cluster` (cluster.py) is a kind of device and the levels of its network, from the innermost; a `Machine` is what that
is to one mesh, a link for each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinygrad.device.cluster import Chip, Cluster, Level
from tinygrad.device.errors import refuse
from tinygrad.device.mesh import Mesh, SubAxis
from tinygrad.device.registry import Device, number_of
from tinygrad.helpers import PROCESS, numpy


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


def numbers(devices: Sequence[str]) -> tuple[int, ...]:
  """The places of devices in a cluster: what is behind the colon of a name."""
  return tuple(map(number_of, devices))


@PROCESS.cached
def spans(sizes: tuple[int, ...], devices: tuple[str, ...], sub_axes: tuple[SubAxis, ...]) -> tuple[float, ...]:
  """Of devices that differ in `sub_axes` of their place on a mesh: how many units of each level (of these `sizes`),
  within one of the level above, hold some of them; their product is the group. The group that reaches farthest
  counts."""
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


def in_cluster(cluster: Cluster, mesh: Mesh) -> Machine:
  """What a cluster is to a mesh: operations of the type that its chip names first, and as latency the longest of a
  level that an axis crosses."""
  sizes, chip = cluster.sizes, cluster.chip
  over = {name: cluster.slowest(spans(sizes, mesh.devices, (mesh.sub_axis(name),))) for name in mesh.names}
  link = {name: level.bandwidth for name, level in over.items()}
  latency = max(level.latency for level in over.values())
  rates = [rate for _, rate in chip.flops] or [chip.vector]
  return Machine(rates[0], chip.bandwidth, link, latency)


CPU = Machine(1e11, 2e10, 1e10, 2e-5)  # a share of a server's cores; devices of one machine exchange through memory
CPU_CHIP = Chip("CPU", (), CPU.flops, CPU.bandwidth, 16e9, CPU.bandwidth, CPU.latency / 4, "CPU")
CPU_MEMORY = Level("memory", 2, 1e10, CPU.latency, "memory")
ETHERNET = Level("Ethernet", 1, 1.25e9, 3e-5)  # 10 Gb/s
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
    return in_cluster(simulated[-1], mesh)
  return machine_of(mesh.devices[0])
