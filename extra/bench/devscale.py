"""How the cost of one training step grows with the number of simulated devices: it should not.

    python -m extra.bench.devscale
    python -m extra.bench.devscale 2 8 32 --peers tinygrad=/path/to/venv --warm 3

For every number of devices a fresh process with an empty cache builds and realizes the step of work_devscale.py on NULL
devices (no memory, no work), once cold and --warm times warm; the environments take turns. Prints the cold step, the
median and the best warm one, and each relative to the smallest number of devices; JSON goes to --out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from extra.bench.__main__ import save_json, seconds
from extra.bench.workers import HERE, BenchError, Environment, machine
from tinygrad.helpers import tqdm


def environments(peers: list[str]) -> list[Environment]:
  script = HERE / "work_devscale.py"
  found = [Environment("here", Path(sys.executable), script, ours=True)]
  for peer in peers:
    name, _, folder = peer.partition("=")
    python = Path(folder) / "bin" / "python"
    if name != "tinygrad" or not python.exists():
      raise BenchError(f"{peer!r} is no peer here\n  fix: tinygrad=VENV, a virtual environment with tinygrad 0.14")
    found.append(Environment(name, python, script))
  return found


def measure(e: Environment, devices: int, warm: int) -> dict[str, Any]:
  try:
    got = json.loads(e.output(str(devices), "--warm", str(warm)))
  except BenchError as problem:
    return {"devices": devices, "failed": str(problem)}
  steps = [w["step_s"] for w in got["warm"]]
  return got | {"cold_s": got["cold"]["step_s"], "median_s": statistics.median(steps), "best_s": min(steps)}


def table(results: dict[str, list[dict[str, Any]]]) -> Table:
  out = Table(
    title="one step; ×: relative to the smallest number of devices", title_justify="left", box=box.SIMPLE_HEAD
  )
  for heading in ("where", "devices", "cold", "×", "warm", "×", "best"):
    out.add_column(heading, justify="left" if heading == "where" else "right", no_wrap=True)
  for name, rows in results.items():
    first = next((row for row in rows if "failed" not in row), None)
    for row in rows:
      if first is None or "failed" in row:
        out.add_row(name, str(row["devices"]), "failed")
      else:
        ratios = [f"{row[key] / first[key]:.2f}" for key in ("cold_s", "median_s")]
        times = [seconds(row[key]) for key in ("cold_s", "median_s", "best_s")]
        out.add_row(name, str(row["devices"]), times[0], ratios[0], times[1], ratios[1], times[2])
  return out


def main() -> int:
  parser = argparse.ArgumentParser(
    prog="python -m extra.bench.devscale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("devices", nargs="*", type=int, default=[2, 8, 64, 512], help="numbers of devices (2 8 64 512)")
  parser.add_argument("--peers", nargs="+", default=[], metavar="tinygrad=VENV", help="environments to measure beside")
  parser.add_argument("--warm", type=int, default=10, metavar="N", help="warm steps of each (10)")
  parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the JSON")
  args, console = parser.parse_args(), Console()
  try:
    envs = environments(args.peers)
  except BenchError as problem:
    console.print(problem, style="red", highlight=False, markup=False)
    return 2
  results: dict[str, list[dict[str, Any]]] = {e.name: [] for e in envs}
  try:
    for devices in tqdm(args.devices, "devices", leave=False):
      for e in envs:
        results[e.name].append(measure(e, devices, args.warm))
  except KeyboardInterrupt:
    console.print("stopped; what was measured so far follows")
  console.print(table(results))
  for name, rows in results.items():
    for row in rows:
      if "failed" in row:
        console.print(f"{name}, {row['devices']} devices: {row['failed']}", style="red", highlight=False, markup=False)
  args.out.mkdir(parents=True, exist_ok=True)
  report = {"machine": machine(), "started": time.strftime("%Y-%m-%d %H:%M:%S"), "results": results}
  save_json(report, args.out / "devscale.json")
  return 1 if any("failed" in row for row in results["here"]) else 0


if __name__ == "__main__":
  sys.exit(main())
