"""Steps of training with the batch on two: two devices of one process, two processes, and PyTorch's processes (gloo).

    python -m extra.bench.data_parallel                        # about a minute
    python -m extra.bench.data_parallel --torch /path/to/venv  # beside torch.distributed

conv_train and gpt4_train are those of work_tinygrad.py and work_torch.py; each device or process has one thread and
half of the batch. Every way runs in programs of its own, the ways in turns, and the median step of its best round
counts: what else the machine does meets all alike, if it lasts.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
STEPS = {"conv_train": 40, "gpt4_train": 15}
WARM = 4


def measured(run: Callable[[], object], steps: int) -> float:
  """Seconds of a step: the median."""
  times = []
  for _ in range(WARM + steps):
    start = time.perf_counter()
    run()
    times.append(time.perf_counter() - start)
  return statistics.median(times[WARM:])


def work(name: str) -> None:
  """One way's program: prints the seconds of a step."""
  sys.path.insert(0, str(HERE))
  from tinygrad import distributed

  distributed.initialize(2 if "PMI_SIZE" not in os.environ else 1)
  import work_tinygrad

  seconds = measured(work_tinygrad.WORKLOADS[f"{name}_dp2"]().run, STEPS[name])
  if distributed.process_index() == 0:
    print(json.dumps(seconds), flush=True)


def torch_pair(python: str, name: str) -> float:
  """Two processes of PyTorch, which find each other at a port that is free."""
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = str(s.getsockname()[1])
  env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "THREADS": "1"}
  command = [python, str(HERE / "work_gloo.py"), name, str(STEPS[name])]
  pair = [subprocess.Popen(command, env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True) for r in (0, 1)]
  said = [p.communicate(timeout=300)[0] for p in pair]
  return float(json.loads(said[0]))


def own(command: list[str], name: str) -> float:
  env = {**os.environ, "CPU_THREADS": "1"}
  done = subprocess.run([*command, "--work", name], env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
  return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("steps", nargs="*", metavar="STEP", help="conv_train, gpt4_train: both if none is named")
  parser.add_argument("--torch", default="", help="a virtual environment with PyTorch")
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--work", choices=STEPS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.work:
    work(args.work)
    return
  program = [sys.executable, "-m", "extra.bench.data_parallel"]
  ways: dict[str, Callable[[str], float]] = {
    "2 devices": lambda name: own(program, name),
    "2 processes": lambda name: own([str(Path(sys.executable).parent / "mpiexec"), "-n", "2", *program], name),
  }
  if args.torch:
    ways["gloo"] = lambda name: torch_pair(str(Path(args.torch) / "bin" / "python"), name)
  print(f"{'':12s}" + "".join(f"{way + ' ms':>16s}" for way in ways) + f"{'devices/ours':>14s}{'gloo/ours':>11s}")
  for name in args.steps or STEPS:
    best: dict[str, float] = {}
    for _ in range(args.rounds):
      for way, run in ways.items():
        best[way] = min(best.get(way, float("inf")), run(name))
    ours = best["2 processes"]
    ratio = f"{best['gloo'] / ours:11.2f}" if "gloo" in best else ""
    row = "".join(f"{best[way] * 1e3:16.2f}" for way in ways)
    print(f"{name:12s}{row}{best['2 devices'] / ours:14.2f}{ratio}", flush=True)


if __name__ == "__main__":
  main()
