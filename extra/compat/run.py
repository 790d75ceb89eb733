"""Runs the scripts of extra/compat/scripts on two installations and compares what they print.

    python -m extra.compat.run --peer <the python of an environment with tinygrad>     # both, and a table of agreement
    python -m extra.compat.run --peer <python> --save                                  # keep the peer's results for CI
    python -m extra.compat.run                                                         # here, against the kept results

A script prints JSON: by name the values, the tolerance (relative to the largest value of the peer's) and its reason.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
KEPT = ROOT / "test" / "data" / "compat_results.json"
Results = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
  """One result of a script on both sides."""

  script: str
  name: str
  count: int
  difference: float  # the largest, relative to the largest value there
  tolerance: float
  reason: str

  @property
  def agrees(self) -> bool:
    return self.difference <= self.tolerance


def names() -> list[str]:
  """The scripts."""
  return sorted(p.stem for p in SCRIPTS.glob("*.py") if p.stem != "common")


def run(script: str, python: str, ours: bool) -> Results:
  """The results of a script with the tinygrad of `python`, in a folder of its own. RuntimeError if it fails."""
  environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  if ours:
    environment["PYTHONPATH"] = str(ROOT)
  with tempfile.TemporaryDirectory() as folder:
    command = [python, str(SCRIPTS / f"{script}.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
  if done.returncode:
    raise RuntimeError(f"{script} fails with {python}\n{done.stderr.strip()[-2000:]}")
  out: Results = json.loads(done.stdout.strip().splitlines()[-1])
  return out


def compare(script: str, theirs: Results, ours: Results) -> list[Row]:
  """Each result of theirs beside ours; what is missing, not a number, or of another size differs infinitely."""
  rows = []
  for name, there in theirs.items():
    a, b = there["value"], ours.get(name, {"value": []})["value"]
    difference = math.inf
    if len(a) == len(b) and all(map(math.isfinite, (*a, *b))):
      difference = max((abs(x - y) for x, y in zip(a, b)), default=0.0) / max(1e-6, *map(abs, a), 0.0)
    rows.append(Row(script, name, len(a), difference, there["tolerance"], there["reason"]))
  return rows


def show(rows: list[Row]) -> str:
  """A table in Markdown."""
  head = [
    "| script | result | values | largest difference | allowed, because | |",
    "| --- | --- | --- | --- | --- | --- |",
  ]
  return "\n".join(
    head
    + [
      f"| {r.script} | {r.name} | {r.count} | {r.difference:.1e} | {r.tolerance:g}: {r.reason} | "
      f"{'agrees' if r.agrees else 'DIFFERS'} |"
      for r in rows
    ]
  )


def kept() -> tuple[str, dict[str, Results]]:
  """(where they come from, the peer's results by script)."""
  data = json.loads(KEPT.read_text()) if KEPT.exists() else {"origin": "", "scripts": {}}
  return data["origin"], data["scripts"]


def keep(origin: str, scripts: dict[str, Results]) -> None:
  temporary = KEPT.with_name(f".{KEPT.name}.{os.getpid()}")
  temporary.write_text(json.dumps({"origin": origin, "scripts": scripts}, sort_keys=True, indent=1) + "\n")
  os.replace(temporary, KEPT)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
    "--peer", metavar="PYTHON", help="interpreter of an environment with tinygrad (default: kept results)"
  )
  parser.add_argument("--save", action="store_true", help=f"keep the peer's results in {KEPT.relative_to(ROOT)}")
  parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"of {', '.join(names())} (default: all)")
  args = parser.parse_args()
  chosen = args.scripts or names()
  if unknown := set(chosen) - set(names()):
    parser.error(f"no script {', '.join(sorted(unknown))}; there are {', '.join(names())}")
  origin, results = kept()
  rows: list[Row] = []
  for script in chosen:
    start = time.perf_counter()
    if args.peer:
      results[script] = run(script, args.peer, ours=False)
    between = time.perf_counter()
    rows += compare(script, results[script], run(script, sys.executable, ours=True))
    taken = f"{between - start:5.1f} s there, {time.perf_counter() - between:5.1f} s here"
    print(
      f"{script:20s} {taken}  {'agrees' if all(r.agrees for r in rows if r.script == script) else 'DIFFERS'}",
      flush=True,
    )
  if args.peer and args.save:
    ask = "import importlib.metadata as m; print(m.version('tinygrad'))"
    version = subprocess.run([args.peer, "-c", ask], capture_output=True, text=True, cwd="/", check=True).stdout.strip()
    keep(f"tinygrad {version} on CPU, python -m extra.compat.run --save", results)
  print(show(rows))
  sys.exit(not all(r.agrees for r in rows))


if __name__ == "__main__":
  main()
