"""Training runs in which processes are killed, stopped, or fail, at random moments, and start again.

    python -m extra.chaos --runs 100 -n 4
    python -m extra.chaos --first 50 --runs 50 -n 4   # the second half of them

Each run trains a small network with checkpoints under `tinygrad.launch --restarts`; something happens to one of its
processes at a random moment: kill -9, SIGSTOP, an exception, a full disk (files that do not grow). It has to end with
the losses of the run to which nothing happened; every checkpoint that has a name has to be readable, and no process may
be left. Needs `tinygrad[mpi]`.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tinygrad.nn.state import safe_load

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "test/distributed/trains.py"
KINDS = ("kill", "stop", "raise", "full")


def left() -> list[int]:
  """The processes of training runs that are still there."""
  found = []
  for path in Path("/proc").glob("[0-9]*/cmdline"):
    try:
      found += [int(path.parent.name)] if os.fsencode(SCRIPT) in path.read_bytes().split(b"\0") else []
    except OSError:  # it has just ended
      continue
  return found


def train(n: int, folder: Path, steps: int, wrong: list[str]) -> dict[int, str]:
  """The loss of each step, as the first process prints it."""
  command = [sys.executable, "-m", "tinygrad.launch", "-n", str(n), "--restarts", "3", str(SCRIPT)]
  done = subprocess.run(
    [*command, str(folder), str(steps), str(n), *wrong], capture_output=True, text=True, cwd=ROOT, check=False
  )
  if done.returncode:
    raise SystemExit(f"{wrong}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
  return {int(i): loss for i, loss in re.findall(r"(?m)^0\| step (\d+) (\S+)$", done.stdout)}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=int, default=20)
  parser.add_argument("--first", type=int, default=0, help="the run with which to begin")
  parser.add_argument("-n", type=int, default=4, help="processes")
  parser.add_argument("--steps", type=int, default=12)
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  chance = random.Random(args.seed)
  with tempfile.TemporaryDirectory() as folder:
    want = train(args.n, Path(folder) / "undisturbed", args.steps, [])
    plans = [
      f"{chance.choice(KINDS)}:{chance.randrange(args.n)}:{chance.randrange(args.steps)}"
      for _ in range(args.first + args.runs)
    ]
    for i, what in [*enumerate(plans)][args.first :]:
      here = Path(folder) / str(i)
      got = train(args.n, here, args.steps, [what])
      for file in here.glob("*/*.safetensors"):
        safe_load(file)
      verdict = "same losses" if got == want else f"OTHER LOSSES: {got} instead of {want}"
      print(f"{i + 1:4d}  {what:14s} {verdict}, {len(left())} processes left", flush=True)
      if got != want or left():
        raise SystemExit(1)


if __name__ == "__main__":
  main()
