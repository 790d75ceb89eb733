"""Run the same workloads here and in the environments of peers, in one call, and print medians and ratios.

    python -m extra.bench matmul1024 conv_train
    python -m extra.bench gpt4_train --peers tinygrad=/path/to/venv torch=/path/to/venv jax=/path/to/venv
    python -m extra.bench                                       # every workload of this project, without peers

A peer is KIND=VENV, where KIND names the workloads file work_KIND.py: tinygrad (0.14), torch or jax. Every workload
runs in one process an environment; the processes take turns call by call, so that a change of the machine's load meets
all alike, with a pause between, so that none meets the threads of another that still spin.

  cold   the first call of a fresh process with an empty cache: tracing, compiling, one run (the median of --cold such)
  cached the same with the cache that another process has filled (here: compiled kernels on disk)
  warm   the median (and the best) of the calls after two that are not counted
  ×      a peer's time by ours: 2.0 means that this project takes half the time
  error  the largest deviation from the result in float64, relative to the largest value; × is ours by the peer's

After the table come the workloads that a peer does faster, the worst first. The figures as JSON (after each workload)
and a picture of the ratios go to --out. What else the machine does changes times: compare within one run only.
`python -m extra.bench.counts` has figures that are the same everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from extra.bench.workers import HERE, BenchError, Environment, Worker, machine
from tinygrad.helpers import tqdm

WARM = 2  # calls after the cold one that are not counted: a JIT captures in the second
PAUSE = 0.05  # seconds before each call: threads that spin after another environment's are asleep by then


def environments(peers: list[str]) -> list[Environment]:
  """This project, then the peers in the order given."""
  found = [Environment("here", Path(sys.executable), HERE / "work_tinygrad.py", ours=True)]
  for peer in peers:
    kind, _, folder = peer.partition("=")
    python, script = Path(folder) / "bin" / "python", HERE / f"work_{kind}.py"
    if not folder or not script.exists():
      kinds = ", ".join(sorted(p.stem.removeprefix("work_") for p in HERE.glob("work_*.py")))
      raise BenchError(f"{peer!r} is no peer\n  fix: KIND=VENV, KIND one of {kinds}, e.g. torch=/path/to/venv")
    if not python.exists():
      raise BenchError(f"{peer!r}: there is no {python}\n  fix: python -m venv {folder}, then install {kind} in it")
    found.append(Environment(kind, python, script))
  return found


def measure_import(envs: list[Environment], rounds: int) -> dict[str, Any]:
  """Seconds of the framework's import, each in a fresh process, the environments in turn."""
  times: dict[str, list[float]] = {e.name: [] for e in envs}
  for _ in range(rounds + 1):
    for e in envs:
      times[e.name].append(json.loads(e.output("--import"))["import_s"])
  return {name: summary(ts[1:], [], {}, None) for name, ts in times.items()}  # the first reads the files from disk


def measure_first(envs: list[Environment], rounds: int, cold_rounds: int) -> dict[str, Any]:
  """Seconds from nothing imported to the first result, each in a fresh process, the environments in turn: with an empty
  cache, and with the one that such a process has left."""
  cold: dict[str, list[float]] = {e.name: [] for e in envs}
  times: dict[str, list[float]] = {e.name: [] for e in envs}
  caches: dict[str, Path] = {}
  with contextlib.ExitStack() as held:
    for e in (e for _ in range(cold_rounds + 1) for e in envs):
      cache = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
      cold[e.name].append(e.first_result(cache))
      caches[e.name] = cache
    for e in (e for _ in range(rounds) for e in envs):
      times[e.name].append(e.first_result(caches[e.name]))
  # the first process of all reads the framework's files from disk
  results = {name: summary(ts, cold[name][1:], {}, None) for name, ts in times.items()}
  return {name: row | {"cached_s": row["median_s"]} for name, row in results.items()}


def measure(
  envs: list[Environment], workload: str, rounds: int, cold_rounds: int, limit: float = float("inf")
) -> dict[str, Any]:
  """One workload in every environment that has it: {environment: summary or {"failed": why}}. A peer whose first call
  takes more than `limit` seconds is left out."""
  results: dict[str, Any] = {}
  cold: dict[str, list[float]] = {e.name: [] for e in envs}
  workers: dict[str, Worker] = {}
  try:
    for last in [False] * (cold_rounds - 1) + [True]:
      for e in envs:
        if e.name in results:
          continue
        try:
          worker = Worker(e, workload)
          workers[e.name] = worker
          cold[e.name].append(worker.call())
          if not e.ours and cold[e.name][-1] > limit:
            raise BenchError(f"{e.name}: left out, for its first call took {seconds(cold[e.name][-1])} (--limit)")
        except BenchError as problem:
          results[e.name] = {"failed": str(problem)}
        if (not last or e.name in results) and e.name in workers:
          workers.pop(e.name).close()
    alive = [e.name for e in envs if e.name not in results]
    times: dict[str, list[float]] = {name: [] for name in alive}
    for number in range(WARM + rounds):
      for name in alive:
        time.sleep(PAUSE)
        took = workers[name].call()
        if number >= WARM:
          times[name].append(took)
    for e in (e for e in envs if e.name in alive):
      results[e.name] = summary(times[e.name], cold[e.name], workers[e.name].hello, workers[e.name].check())
      with contextlib.closing(Worker(e, workload, workers[e.name])) as again:
        results[e.name]["cached_s"] = again.call()
  finally:
    for worker in workers.values():
      worker.close()
  return results


def summary(times: list[float], cold: list[float], hello: dict[str, Any], error: float | None) -> dict[str, Any]:
  median = statistics.median(times)
  return {
    "median_s": median,
    "best_s": min(times),
    "calls": len(times),
    "cold_s": statistics.median(cold) if cold else None,
    "cached_s": None,
    "gflops": hello.get("flops", 0) / median / 1e9 or None,
    "gbs": hello.get("nbytes", 0) / median / 1e9 or None,
    "error": error,
  }


def seconds(s: float | None) -> str:
  """Three digits in the unit that suits."""
  if s is None:
    return "-"
  value, unit = (s, "s") if s >= 1 else (s * 1e3, "ms") if s >= 1e-3 else (s * 1e6, "µs")
  return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


def table(results: dict[str, dict[str, Any]], names: list[str]) -> Table:
  """A row a workload and environment: median, best, rate, cold time; for peers the ratios to ours."""
  out = Table(
    title="×: the peer's time by ours; above 1 this project is faster", title_justify="left", box=box.SIMPLE_HEAD
  )
  out.padding, out.pad_edge = 0, False  # 90 columns are enough for the widest row
  for heading in ("workload", "where", "median", "×", "best", "rate", "cold", "×", "cached"):
    out.add_column(heading, justify="left" if heading in ("workload", "where") else "right", no_wrap=True)
  for workload, row in results.items():
    ours, title = row.get("here", {}), workload
    for name in (n for n in names if n in row):
      got = row[name]
      if "failed" in got:
        out.add_row(title, name, "failed")
      else:
        rate = f"{got['gflops']:.1f} GF/s" if got["gflops"] else f"{got['gbs']:.1f} GB/s" if got["gbs"] else ""
        ratios = [ratio(got, ours, key) if name != "here" else "" for key in ("median_s", "cold_s")]
        times = seconds(got["median_s"]), seconds(got["best_s"]), seconds(got["cold_s"])
        out.add_row(title, name, times[0], ratios[0], times[1], rate, times[2], ratios[1], seconds(got["cached_s"]))
      title = ""
  return out


def accuracy(results: dict[str, dict[str, Any]], names: list[str]) -> Table:
  """Errors against float64, and ours by each peer's."""
  out = Table(title="error against float64; ×: ours by the peer's", title_justify="left", box=box.SIMPLE_HEAD)
  out.padding, out.pad_edge = 0, False
  out.add_column("workload", no_wrap=True)
  for name in names:
    out.add_column(name, justify="right")
    if name != "here":
      out.add_column("×", justify="right")
  for workload, row in results.items():
    if (ours := row.get("here", {}).get("error")) is None:
      continue
    cells = [f"{ours:.2g}"]
    for name in names[1:]:
      error = row.get(name, {}).get("error")
      cells += ["", ""] if error is None else [f"{error:.2g}", f"{ours / error:.2g}" if error else ""]
    out.add_row(workload, *cells)
  return out


def behind(results: dict[str, dict[str, Any]]) -> list[tuple[float, str, str]]:
  """(best peer's median by ours, workload, that peer) where it is below 1, the worst first."""
  found = []
  for workload, row in results.items():
    peers = [(got["median_s"], name) for name, got in row.items() if name != "here" and "median_s" in got]
    if peers and "median_s" in row.get("here", {}):
      best, name = min(peers)
      found.append((best / row["here"]["median_s"], workload, name))
  return sorted(x for x in found if x[0] < 1)


def ratio(peer: dict[str, Any], ours: dict[str, Any], key: str) -> str:
  return f"{peer[key] / ours[key]:.3g}" if peer[key] and ours.get(key) else ""


def save_picture(results: dict[str, dict[str, Any]], names: list[str], path: Path) -> None:
  """Bars of peer median by ours, on a logarithmic scale, one colour a peer."""
  import matplotlib

  matplotlib.use("Agg")
  import matplotlib.pyplot as plt

  rows = [w for w, row in results.items() if "median_s" in row.get("here", {})]
  peers = [n for n in names[1:] if any("median_s" in results[w].get(n, {}) for w in rows)]
  if not rows or not peers:
    return
  figure, axes = plt.subplots(figsize=(8, 0.9 + 0.22 * len(rows) * (len(peers) + 0.6)), layout="constrained")
  height = 0.8 / len(peers)
  for i, peer in enumerate(peers):
    has = [(y, results[w]) for y, w in enumerate(rows) if "median_s" in results[w].get(peer, {})]
    ratios = [row[peer]["median_s"] / row["here"]["median_s"] for _, row in has]
    bars = axes.barh([y + (i - (len(peers) - 1) / 2) * height for y, _ in has], [r - 1 for r in ratios], height, 1)
    bars.set_label(peer)
    axes.bar_label(bars, [f" {r:.2g} " for r in ratios], fontsize=7)
  axes.axvline(1, color="black", linewidth=0.8)
  axes.set(xscale="log", yticks=range(len(rows)), yticklabels=rows, xlabel="peer's median / this project's median")
  axes.margins(x=0.12)
  axes.invert_yaxis()
  axes.legend(loc="best", fontsize=8)
  temporary = path.with_name(path.name + ".tmp")
  figure.savefig(temporary, dpi=150, format=path.suffix[1:])
  os.replace(temporary, path)
  plt.close(figure)


def save_json(data: dict[str, Any], path: Path) -> None:
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(json.dumps(data, indent=2) + "\n")
  os.replace(temporary, path)


def parse() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="python -m extra.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="all if none is named; --list prints the names")
  parser.add_argument("--peers", nargs="+", default=[], metavar="KIND=VENV", help="environments to measure beside this")
  parser.add_argument("--rounds", type=int, default=12, metavar="N", help="counted calls of each (12; at least 10)")
  parser.add_argument("--cold", type=int, default=3, metavar="N", help="fresh processes for the cold figure (3)")
  parser.add_argument(
    "--limit", type=float, default=60, metavar="S", help="leave a peer out whose first call takes longer (60 seconds)"
  )
  parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the JSON and the picture")
  parser.add_argument("--list", action="store_true", help="print the names of the workloads and stop")
  args = parser.parse_args()
  if args.rounds < 10:
    parser.error("--rounds: a median of fewer than 10 calls says little; give 10 or more")
  if args.cold < 1:
    parser.error("--cold: at least one fresh process is needed")
  return args


def main() -> int:
  args, console = parse(), Console(width=None if sys.stdout.isatty() else 100)
  try:
    envs = environments(args.peers)
    has = {e.name: json.loads(e.output("--list")) for e in envs}
  except BenchError as problem:
    console.print(f"[red]{problem}", highlight=False)
    return 2
  known = ["import", "repl1", *has["here"]]
  if args.list:
    print("\n".join(known))
    return 0
  if unknown := [w for w in args.workloads if w not in known]:
    console.print(f"[red]unknown workload {unknown[0]!r}\n  fix: one of {', '.join(known)}", highlight=False)
    return 2
  wanted, names = args.workloads or known, [e.name for e in envs]
  results: dict[str, dict[str, Any]] = {}
  report = {"machine": machine(), "started": time.strftime("%Y-%m-%d %H:%M:%S"), "rounds": args.rounds}
  report["packages"] = {e.name: e.packages() for e in envs}
  args.out.mkdir(parents=True, exist_ok=True)
  try:
    with tqdm(total=len(wanted), leave=False) as bar:
      for workload in wanted:
        bar.set_description(workload)
        if workload == "import":
          results[workload] = measure_import(envs, args.rounds)
        elif workload == "repl1":
          results[workload] = measure_first(envs, args.rounds, args.cold)
        else:
          mine = [e for e in envs if workload in has[e.name]]
          results[workload] = measure(mine, workload, args.rounds, args.cold, args.limit)
        save_json(report | {"load_at_end": os.getloadavg()[0], "results": results}, args.out / "bench.json")
        bar.update()
  except KeyboardInterrupt:
    console.print("stopped; what was measured so far follows")
  console.print(table(results, names))
  if any(row.get("here", {}).get("error") is not None for row in results.values()):
    console.print(accuracy(results, names))
  for share, workload, name in behind(results):
    console.print(f"behind {name}: {workload} at {share:.2f} of its speed", highlight=False)
  failures = [(w, n, r["failed"]) for w, row in results.items() for n, r in row.items() if "failed" in r]
  for workload, _, why in failures:
    console.print(f"{workload}: {why}", style="red", highlight=False, markup=False)
  save_picture(results, names, args.out / "bench.png")
  console.print(f"figures in {args.out}", highlight=False, soft_wrap=True)
  return 1 if any(name == "here" for _, name, _ in failures) else 0


if __name__ == "__main__":
  sys.exit(main())
