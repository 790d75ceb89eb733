"""What a device and its links can do, by which predicted times are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinygrad.device import refuse


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


CPU = Machine(1e11, 2e10, 1e10, 2e-5)  # a share of a server's cores; devices of one machine exchange through memory
# NVIDIA H100 SXM, from its data sheet: dense bfloat16, HBM3, NVLink (half of its 900 GB/s in each direction)
H100 = Machine(989e12, 3.35e12, 4.5e11, 1e-5)
KINDS = {"CPU": CPU, "CUDA": H100, "NULL": H100}


def machine_of(device: str) -> Machine:
  """What is assumed of a kind of device."""
  return KINDS.get(device.partition(":")[0], CPU)
