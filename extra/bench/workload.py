"""The measured side of the benchmarks: prepares one workload, then times one call whenever the parent asks for it.

Only the standard library is imported here, since this file also runs in the environments of the peers. The file
`work_*.py` of a framework names its workloads and hands them to `main`, which serves one (`--serve NAME`, the protocol
of `extra/bench/__main__.py`) or, as a program of its own, runs them and prints a JSON line for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CALLS = 12  # timed calls of a workload when a file is run by hand
WARM = 2  # calls after the first that are not timed: a JIT captures in the second


@dataclass(frozen=True, slots=True)
class Work:
  """A prepared workload. `run()` does one call and returns when its result is there; its inputs lie ready in memory.

  `flops` and `nbytes` are of one call (0: not meaningful); `error()` is the largest deviation from the result in
  float64, relative to the largest value, or None where there is none to compare with.
  """

  run: Callable[[], Any]
  flops: int = 0
  nbytes: int = 0
  error: Callable[[], float | None] = lambda: None


def timed(run: Callable[[], Any]) -> float:
  """Seconds of one call."""
  start = time.perf_counter()
  run()
  return time.perf_counter() - start


def serve(name: str, prepare: Callable[[], Work], import_s: float) -> None:
  """Answer the parent's lines: `call` -> {"s": seconds}, `check` -> {"error": ..}, until the end of the input.

  The first `call` is the cold one: nothing of this workload ran before it in this process but the making of its inputs.
  """
  reply = sys.stdout
  sys.stdout = sys.stderr  # what a framework prints must not mix with the protocol
  work = prepare()
  print(
    json.dumps({"ready": name, "import_s": import_s, "flops": work.flops, "nbytes": work.nbytes}),
    file=reply,
    flush=True,
  )
  for line in sys.stdin:
    answer = {"s": timed(work.run)} if line.strip() == "call" else {"error": work.error()}
    print(json.dumps(answer), file=reply, flush=True)


def run_alone(name: str, prepare: Callable[[], Work]) -> dict[str, Any]:
  """Time one workload in this process: the first call, then the median and the best of `CALLS`."""
  work = prepare()
  cold = timed(work.run)
  for _ in range(WARM):
    work.run()
  times = [timed(work.run) for _ in range(CALLS)]
  median = statistics.median(times)
  return {
    "name": name,
    "cold_s": round(cold, 4),
    "median_s": median,
    "best_s": min(times),
    "gflops": round(work.flops / median / 1e9, 2),
    "gbs": round(work.nbytes / median / 1e9, 2),
    "err": work.error(),
  }


def main(doc: str | None, workloads: dict[str, Callable[[], Work]], import_s: float) -> None:
  """The command line of a `work_*.py`."""
  parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="*", metavar="WORKLOAD", help=f"all if none is named: {' '.join(workloads)}")
  parser.add_argument("--serve", action="store_true", help="answer `call` and `check` lines on the standard input")
  parser.add_argument("--list", action="store_true", help="print the names as JSON and stop")
  parser.add_argument(
    "--import", action="store_true", dest="import_only", help="print the seconds of the import and stop"
  )
  args = parser.parse_args()
  if unknown := [n for n in args.names if n not in workloads]:
    parser.error(f"unknown workload {unknown[0]}; one of {' '.join(workloads)}")
  if args.list:
    print(json.dumps(list(workloads)))
  elif args.import_only:
    print(json.dumps({"import_s": import_s}))
  elif args.serve:
    serve(args.names[0], workloads[args.names[0]], import_s)
  else:
    print(json.dumps({"name": "import", "best_s": import_s}), flush=True)
    for name in args.names or workloads:
      print(json.dumps(run_alone(name, workloads[name])), flush=True)
