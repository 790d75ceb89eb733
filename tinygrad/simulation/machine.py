"""A cluster by a text: `h100x8:64` (64 hosts of 8 H100) or the path of a TOML file.

Figures of chips and links are those of public data sheets, in one direction and without sparsity; each preset names
them. Latencies and what a kernel takes besides are in no data sheet: they are assumed. docs/simulation.md has the
format of a file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tinygrad.device.cluster import Chip, Cluster, Level
from tinygrad.device.machine import CPU_CHIP, CPU_MEMORY, ETHERNET, H100_SXM, NVLINK_4
from tinygrad.helpers import difflib


class ClusterError(ValueError):
  """What names no cluster, or a file that describes none."""


@dataclass(frozen=True, slots=True)
class Preset:
  """A chip, what connects those of a host, and hosts: `sheet` says where the figures are from."""

  chip: Chip
  inside: Level
  outside: Level
  sheet: str
  overlap: bool = True


def infiniband(bandwidth: float) -> Level:
  return Level("InfiniBand", 1, bandwidth, 5e-6)


A100 = Chip(
  name="A100 SXM 80GB",
  flops=(("bfloat16", 312e12), ("float16", 312e12), ("int8", 624e12), ("tf32", 156e12), ("float64", 19.5e12)),
  vector=19.5e12, bandwidth=2.039e12, memory=80e9, host=32e9, overhead=2e-6, target="sm_80x108",
)  # fmt: skip
B200 = Chip(
  name="B200",
  flops=(("bfloat16", 2.25e15), ("float16", 2.25e15), ("fp8e4m3", 4.5e15), ("fp8e5m2", 4.5e15), ("int8", 4.5e15),
         ("float64", 37e12)),
  vector=75e12, bandwidth=8e12, memory=180e9, host=64e9, overhead=2e-6, target="sm_100x148",
)  # fmt: skip
MI300X = Chip(
  name="MI300X",
  flops=(("bfloat16", 1307.4e12), ("float16", 1307.4e12), ("fp8e4m3", 2614.9e12), ("fp8e5m2", 2614.9e12),
         ("int8", 2614.9e12), ("tf32", 653.7e12), ("float32", 163.4e12), ("float64", 163.4e12)),
  vector=163.4e12, bandwidth=5.3e12, memory=192e9, host=64e9, overhead=2e-6,
)  # fmt: skip
PRESETS = {
  "a100": Preset(A100, Level("NVLink", 8, 300e9, 2e-6), infiniband(25e9), "NVIDIA A100 and DGX A100 data sheets"),
  "h100": Preset(H100_SXM, NVLINK_4, infiniband(50e9), "NVIDIA H100 and DGX H100 data sheets"),
  "h200": Preset(
    replace(H100_SXM, name="H200 SXM", bandwidth=4.8e12, memory=141e9), NVLINK_4, infiniband(50e9),
    "NVIDIA H200 and DGX H200 data sheets",
  ),
  "b200": Preset(B200, Level("NVLink", 8, 900e9, 2e-6), infiniband(50e9), "NVIDIA DGX B200 data sheet"),
  "mi300x": Preset(
    MI300X, Level("Infinity Fabric", 8, 448e9, 2e-6), infiniband(50e9),
    "AMD Instinct MI300X data sheet; 400 Gb/s for each of them between hosts is assumed",
  ),
  "cpu": Preset(
    CPU_CHIP, CPU_MEMORY, ETHERNET, "assumed: a share of a server's cores, 10 Gb/s between hosts", overlap=False,
  ),
}  # fmt: skip
TOPOLOGIES = ("switch", "ring", "memory")


def cluster_of(text: str | Cluster) -> Cluster:
  """The cluster that a text names. Raises: ClusterError."""
  if isinstance(text, Cluster):
    return text
  if text.endswith(".toml"):
    return read_cluster(Path(text))
  if (match := re.fullmatch(r"([a-z0-9]+?)(?:x(\d+))?(?::(\d+))?", text.lower())) is None:
    raise ClusterError(f"{text!r} is no cluster\n  fix: 'h100x8:64'  # 64 hosts of 8, or the path of a .toml file")
  name, each, hosts = match[1], match[2], int(match[3] or 1)
  if name not in PRESETS:
    near = (difflib.get_close_matches(name, PRESETS, 1) or ["h100"])[0]
    raise ClusterError(f"{text!r}: there is no preset {name!r}\n  fix: '{near}x8:1'  # one of {', '.join(PRESETS)}")
  preset = PRESETS[name]
  here = int(each or preset.inside.size)
  if here < 1 or hosts < 1:
    raise ClusterError(f"{text!r}: a cluster has one device at least\n  fix: '{name}x{max(here, 1)}:{max(hosts, 1)}'")
  levels = replace(preset.inside, size=here), replace(preset.outside, size=hosts)
  return Cluster(f"{name}x{here}:{hosts}", preset.chip, levels, preset.overlap)


# ---------------------------------------------------------------- files


def read_cluster(path: Path) -> Cluster:
  """The cluster that a TOML file describes. Raises: ClusterError, with the file and the key that is wrong."""
  try:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
  except OSError as e:
    raise ClusterError(f"{path}: {e.strerror}\n  fix: SIM=h100x8:64, or the path of a file that is there") from e
  except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
    raise ClusterError(f"{path}: no TOML: {e}\n  fix: {EXAMPLE}") from e
  r = TableReader(path, data, "")
  chip, levels = r.table("device"), r.tables("level")
  r.known("name", "overlap", "device", "level")
  found = _chip(chip)
  made = tuple(map(_level, levels))
  return Cluster(r.text("name", path.stem), found, made, r.flag("overlap", True))


EXAMPLE = "[device] flops = 1e14, bandwidth = 1e12, memory = 8e10; [[level]] size = 8, bandwidth = 1e11, latency = 2e-6"


@dataclass(frozen=True, slots=True)
class TableReader:
  """A table of a file: reads what it should hold, and says what is wrong with it."""

  path: Path
  data: Mapping[str, Any]
  where: str

  def wrong(self, key: str, said: str, fix: str) -> ClusterError:
    return ClusterError(f"{self.path}: {self.where}{key} {said}\n  fix: {fix}")

  def known(self, *keys: str) -> None:
    for key in self.data:
      if key not in keys:
        near = (difflib.get_close_matches(key, keys, 1) or keys[:1])[0]
        raise self.wrong(key, "means nothing here", f"{near}  # one of {', '.join(keys)}")

  def number(self, key: str, default: float | None = None, least: float = 1e-300) -> float:
    x, fix = self.data.get(key, default), f"{key} = {EXAMPLES.get(key, 1e14):g}"
    if x is None:
      raise self.wrong(key, "is missing", fix)
    if isinstance(x, bool) or not isinstance(x, (int, float)) or not least <= x < float("inf"):
      raise self.wrong(key, f"= {x!r} is no number {'of at least' if least == 0 else 'above'} 0", fix)
    return float(x)

  def text(self, key: str, default: str) -> str:
    if not isinstance(x := self.data.get(key, default), str):
      raise self.wrong(key, f"= {x!r} is no text", f'{key} = "{x}"')
    return x

  def flag(self, key: str, default: bool) -> bool:
    if not isinstance(x := self.data.get(key, default), bool):
      raise self.wrong(key, f"= {x!r} is neither true nor false", f"{key} = true")
    return x

  def table(self, key: str) -> TableReader:
    if not isinstance(x := self.data.get(key), Mapping):
      raise self.wrong(key, "is missing" if x is None else "is no table", f"{EXAMPLE}")
    return TableReader(self.path, x, f"{key}.")

  def tables(self, key: str) -> list[TableReader]:
    x = self.data.get(key)
    if not isinstance(x, list) or not x or not all(isinstance(y, Mapping) for y in x):
      raise self.wrong(
        key, "is missing" if x is None else "is no list of tables", f"[[{key}]], once for each: {EXAMPLE}"
      )
    return [TableReader(self.path, y, f"{key}[{i}].") for i, y in enumerate(x)]


EXAMPLES = {"flops": 1e14, "vector": 1e13, "bandwidth": 1e11, "memory": 8e10, "size": 8, "latency": 2e-6, "host": 3e10}


def _chip(r: TableReader) -> Chip:
  r.known(*(f.name for f in fields(Chip)))
  flops: tuple[tuple[str, float], ...] = ()
  if isinstance(table := r.data.get("flops"), Mapping):
    rates = TableReader(r.path, table, f"{r.where}flops.")
    flops = tuple((key, rates.number(key)) for key in table)
  most = max((rate for _, rate in flops), default=0.0) or r.number("flops")
  return Chip(
    name=r.text("name", "device"),
    flops=flops,
    vector=r.number("vector", most),
    bandwidth=r.number("bandwidth"),
    memory=r.number("memory"),
    host=r.number("host", 32e9),
    overhead=r.number("overhead", 0.0, 0.0),
    target=r.text("target", ""),
  )


def _level(r: TableReader) -> Level:
  r.known(*(f.name for f in fields(Level)))
  size, topology = r.number("size"), r.text("topology", "switch")
  if size != int(size):
    raise r.wrong("size", f"= {size!r} is no whole number", f"size = {max(int(size), 1)}")
  if topology not in TOPOLOGIES:
    raise r.wrong("topology", f"= {topology!r} is none of {', '.join(TOPOLOGIES)}", 'topology = "switch"')
  return Level(
    r.text("name", r.where.rstrip(".")), int(size), r.number("bandwidth"), r.number("latency", None, 0.0), topology
  )
