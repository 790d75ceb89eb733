"""How much faster a workload is on two CPU devices than on one, each with one thread (CPU_THREADS=1, unless that is
set): the two in one process, call by call in turn.

    python -m extra.bench.scaling                                   # conv_train and gpt4_train, data parallel
    python -m extra.bench.scaling matmul2048=matmul2048_shard2 --rounds 30

Each argument is ONE=TWO, names of workloads (`python -m extra.bench --list`). The figure is the median of the ratios of
neighbouring calls. It means something on a machine with two idle cores only; what other processes took of the cores
meanwhile is printed beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("CPU_THREADS", "1")  # read at the import
sys.path.insert(0, str(Path(__file__).parent))
import work_tinygrad
from workload import WARM, Work, timed

from tinygrad.helpers import trange

PAIRS = ("conv_train=conv_train_dp2", "gpt4_train=gpt4_train_dp2")


def busy() -> float:
  """Seconds that all cores have spent on all processes (Linux)."""
  ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
  return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def compare(one: Work, two: Work, rounds: int) -> tuple[list[tuple[float, float]], float]:
  """Seconds of each pair of calls, and the share of the cores that other processes took."""
  for work in (one, two):
    for _ in range(1 + WARM):
      work.run()
  start, others = time.perf_counter(), busy() - time.process_time()
  pairs = [(timed(one.run), timed(two.run)) for _ in trange(rounds, leave=False)]
  taken = busy() - time.process_time() - others
  return pairs, max(taken, 0.0) / (time.perf_counter() - start) / (os.cpu_count() or 1)


def main() -> int:
  parser = argparse.ArgumentParser(
    prog="python -m extra.bench.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("pairs", nargs="*", default=PAIRS, metavar="ONE=TWO", help=f"workloads ({' '.join(PAIRS)})")
  parser.add_argument("--rounds", type=int, default=12, metavar="N", help="pairs of calls (12)")
  args = parser.parse_args()
  for pair in args.pairs:
    names = pair.split("=")
    if len(names) != 2 or unknown_in(names):
      known = " ".join(work_tinygrad.WORKLOADS)
      parser.error(f"{pair!r} names no two workloads\n  fix: ONE=TWO of {known}, e.g. {PAIRS[0]}")
  for pair in args.pairs:
    one, two = (work_tinygrad.WORKLOADS[name]() for name in pair.split("="))
    times, others = compare(one, two, args.rounds)
    medians = [statistics.median(t) * 1e3 for t in zip(*times)]
    faster = statistics.median(a / b for a, b in times)
    print(f"{pair:28s} {medians[0]:8.1f} ms {medians[1]:8.1f} ms   {faster:.2f}x   others {others:.0%} of the cores")
  return 0


def unknown_in(names: list[str]) -> bool:
  return any(name not in work_tinygrad.WORKLOADS for name in names)


if __name__ == "__main__":
  sys.exit(main())
