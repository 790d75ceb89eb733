"""Reshards of a file of cases: our bytes against those of the sequence of collectives that each case lists.

    python -m extra.reshard_cases test/data/shardy_reshard.json

Each case moves a tensor from one placement to another. The listed sequence is charged as a ring does it (all-gather and
all-to-all (n-1)/n, permute 1, slice 0, of the bytes of a device's block; where an all-to-all cuts a dim unevenly, or in
more parts than it is long, blocks are padded to the larger of both sides); ours is what `explain` counts, of the device
that receives most. The move is also carried out, by the interpreter of the localized program, and its values are
compared. The exit status is 1 if a case fails: more bytes than listed, or wrong values.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from tinygrad import Context, Mesh, P, Sharding, Tensor
from tinygrad.helpers import prod
from tinygrad.sharding import explain

ITEMSIZE = 4  # float32


@dataclass(frozen=True, slots=True)
class Result:
  """One case: bytes that each device receives, and whether the values arrived as they were."""

  name: str
  kinds: tuple[str, ...]
  ours: float
  listed: float
  right: bool

  @property
  def passed(self) -> bool:
    return self.right and self.ours <= self.listed


def mesh_of(spec: dict[str, Any]) -> Mesh:
  """A mesh over CPU devices; without axes it is one device."""
  sizes = [n for _, n in spec["axes"]]
  ids = spec.get("device_ids", range(prod(sizes)))
  return Mesh([f"CPU:{i}" for i in ids], sizes or (1,), [name for name, _ in spec["axes"]] or ("all",))


def axes_of(dims: list[list[str]]) -> list[tuple[str, ...]]:
  """For each dim its axes; "?" (open) asks for nothing."""
  return [tuple(axis for axis in dim if axis != "?") for dim in dims]


def size_of(mesh: Mesh, axes: Any) -> int:
  return int(prod(mesh.sub_axis(axis).size for axis in axes))


def block(shape: list[int], mesh: Mesh, dims: list[list[str]]) -> int:
  """Bytes of a device's part."""
  parts = [size_of(mesh, axes) for axes in axes_of(dims)]
  return int(prod(-(-n // k) for n, k in zip(shape, [*parts, *[1] * len(shape)]))) * ITEMSIZE


def listed_bytes(case: dict[str, Any]) -> float:
  """What the case's sequence of collectives costs."""
  mesh = mesh_of(case["mesh"])
  total, now = 0.0, block(case["shape"], mesh, case["from"]["dims"])
  for step in case["collectives"]:
    there = mesh if case["mesh"]["axes"] else mesh_of(case["to_mesh"])
    then = block(case["shape"], there, step["out"]["dims"])
    match step["op"]:
      case "all_gather":
        n = size_of(mesh, [axis for axes in step["axes"] for axis in axes])
        total += then * (n - 1) / n
      case "all_to_all":
        n = size_of(mesh, [axis for axes, _, _ in step["moves"] for axis in axes])
        total += max(now, then) * (n - 1) / n
      case "collective_permute":
        total += now
      case "reshard":
        total += then
      case "all_slice":
        pass
      case other:
        raise ValueError(f"case {case['name']}: unknown collective {other!r}")
    now = then
  return total


def check(case: dict[str, Any]) -> Result:
  """Counts and carries out one case."""
  mesh = mesh_of(case["mesh"])
  a = Sharding(mesh, P(*axes_of(case["from"]["dims"])))
  b = Sharding(mesh_of(case.get("to_mesh", case["mesh"])), P(*axes_of(case["to"]["dims"])))
  value = numpy.arange(prod(case["shape"]), dtype=numpy.float32).reshape(case["shape"])
  with Context(INTERPRET=1):
    x = Tensor(value).to(a).realize()
    y = x.to(b)
    moved = explain(y)
    y.realize()
    right = y.device == b and bool((y.numpy() == value).all())
  return Result(case["name"], tuple(r.kind for r in moved), moved.wire + moved.copied, listed_bytes(case), right)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog="python -m extra.reshard_cases", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("file", type=Path, help="a file of cases, e.g. test/data/shardy_reshard.json")
  args = parser.parse_args(argv)
  results = [check(case) for case in json.loads(args.file.read_text())["cases"]]
  width = max((len(r.name) for r in results), default=4)
  print(f"{'case':{width}s} {'listed':>8s} {'ours':>8s}  moves")
  for r in results:
    verdict = "" if r.passed else "  WRONG VALUES" if not r.right else "  MORE BYTES"
    print(f"{r.name:{width}s} {r.listed:8.0f} {r.ours:8.0f}  {' '.join(r.kinds) or '-'}{verdict}")
  failed = sum(not r.passed for r in results)
  print(f"{len(results) - failed} passed, {failed} failed")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
