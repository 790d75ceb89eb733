"""A cluster as data: a kind of device, and the levels of the network between them. What it is to a mesh: machine.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad.helpers import ALLOW_TF32, prod


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
    return int(prod(self.sizes))

  @property
  def sizes(self) -> tuple[int, ...]:
    return tuple(level.size for level in self.levels)

  def slowest(self, counts: Sequence[float]) -> Level:
    """The slowest level over which a group with such `spans` (machine.py) talks."""
    return min([level for level, n in zip(self.levels, counts) if n > 1] or self.levels[:1], key=lambda x: x.bandwidth)
