"""Random programs with captured functions and state, in several processes beside one.

    python -m extra.fuzz_processes --seconds 600
    python -m extra.fuzz_processes --seed 5061 --count 1 --processes 4

The programs are those of extra/fuzz_captured.py, over the devices CPU:0 to CPU:3, which several processes have between
them. What decides what processes compute must be the same in all of them, so all else differs: each is delayed before
lines, has a thread that takes Python's lock and memory, another order of hashes, and plans on a disk of its own, of
which it has lost some. They share memory, send each other messages, or are as if on two hosts. Each process has to show
what one process with the four devices shows, to the last bit, or be refused with the same words; two hosts, which add
in another order, within roundings. A process that has not done a program after --patience seconds says where it is.
Programs come in batches, of which each starts the processes once; a process has to be as good after one as before.
Exit status: 0 if all agreed, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from extra.captured_programs import Script, written
from extra.fuzz_captured import REFUSED, ROUGH, World, poisoned
from extra.fuzz_programs import options, seeds
from extra.fuzz_threads import Shown, faults
from tinygrad import Context, Tensor, distributed
from tinygrad.transforms.step_gradients import UNKEPT

DEVICES = 4
WAYS = {"memory": {}, "messages": {"SHARED_MEMORY": "0"}, "hosts": {"HOSTS": "2"}}
PAUSE = 2e-3  # seconds, on average, before a line that is delayed


def disturb(seed: int, over: threading.Event) -> None:
  """Takes Python's lock, and memory for things that refer to each other, now and then."""
  rng, kept = random.Random(seed), list[Any]()
  while not over.is_set():
    sys.setswitchinterval(10 ** rng.uniform(-5, -2))
    kept = [[kept] for _ in range(rng.randrange(1, 2000))][: rng.randrange(1, 50)]
    sum(range(rng.randrange(1, 20000)))
    time.sleep(rng.expovariate(1 / PAUSE))
    kept = kept if rng.random() < 0.5 else []


def run(script: Script, rng: random.Random) -> Shown:
  first = script.placements[0]
  world = World(script, first if isinstance(first, str) else getattr(first[0], "devices", first[0])[0])

  def before() -> None:
    if rng.random() < 0.3:
      time.sleep(rng.expovariate(1 / PAUSE))

  try:
    with Context(**{**dict(script.settings), "BEAM": 0}), poisoned():
      world.run(before)
  except Exception as e:
    refused = any(said in str(e) for said in REFUSED.get(type(e), ()))
    return Shown(world.looks, f"{type(e).__name__}: {e}", refused)
  return Shown(world.looks)


def forget(folder: Path, rng: random.Random) -> None:
  """Some of the plans that the disk has, or all."""
  for file in sorted(x for x in folder.rglob("*") if x.is_file()):
    if rng.random() < 0.3:
      file.unlink()


def inside(asked: argparse.Namespace) -> int:
  """What each of the processes does: it writes what its programs show."""
  distributed.initialize(devices=DEVICES // asked.processes)
  own = distributed.process_index()
  rng = random.Random(time.time_ns() + own)
  os.environ["CACHEDIR"] = str(asked.folder / f"cache{own}")
  forget(Path(os.environ["CACHEDIR"]), rng)
  over = threading.Event()
  threading.Thread(target=disturb, args=(own, over), daemon=True).start()
  with open(asked.folder / f"{asked.way}.{own}", "wb") as f:
    for seed in range(asked.seed, asked.seed + asked.count):
      faulthandler.dump_traceback_later(asked.patience, exit=True)
      Tensor.manual_seed(seed)
      shown = run(written(seed, "CPU"), rng)
      pickle.dump(tuple(shown), f)
      f.flush()
      if shown.error and not shown.refused:  # one that is not the same in all has no end together
        break
  faulthandler.cancel_dump_traceback_later()
  over.set()
  return 0


def start(way: str, n: int, first: int, count: int, folder: Path, patience: float) -> tuple[str, list[list[Shown]]]:
  """What n processes complain of, and what each shows, program by program."""
  mpiexec = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(n)] if n > 1 else []
  for file in folder.glob(f"{way}.*"):
    file.unlink()
  said = ["--seed", first, "--count", count, "--processes", n, "--patience", patience, "--folder", folder, "--way", way]
  alone = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDRA", "MPI"))}
  done = subprocess.run(
    [*mpiexec, sys.executable, "-m", "extra.fuzz_processes", *map(str, said)],
    env={**alone, "CPU_THREADS": "1", **WAYS.get(way, {})},
    capture_output=True,
    text=True,
  )
  return done.stderr if done.returncode else "", [[*shown_in(folder / f"{way}.{i}")] for i in range(n)]


def shown_in(file: Path) -> Iterator[Shown]:
  with contextlib.suppress(EOFError, FileNotFoundError, pickle.UnpicklingError), open(file, "rb") as f:
    while True:
      yield Shown(*pickle.load(f))


def bits(got: Shown, want: Shown) -> Iterator[str]:
  """What is not the same, to the last bit."""
  if got.error != want.error:
    yield f"{got.error or 'no error'}, and in another {want.error or 'none'}"
  for k, (mine, other) in enumerate(zip(got.looks, want.looks)):
    if mine.keys() != other.keys():
      yield f"look {k}: names {sorted(mine.keys() ^ other.keys())}"
    for name in sorted(mine.keys() & other.keys()):
      x, y = mine[name], other[name]
      if x is not UNKEPT and y is not UNKEPT and not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
        yield f"look {k}: {name} differs in bits"


def batch(first: int, folder: Path, asked: argparse.Namespace) -> list[str]:
  """What is wrong in a few programs."""
  n, way = asked.processes, random.Random(first).choice(sorted(WAYS))
  alone_said, [alone] = start("alone", 1, first, asked.batch, folder, asked.patience)
  said, several = start(way, n, first, asked.batch, folder, asked.patience)
  found = [x for x in (alone_said, said) if x]
  for k, want in enumerate(alone):
    script = written(first + k, "CPU")
    for i, shown in enumerate(several):
      got = shown[k] if k < len(shown) else Shown([], "it did not come so far")
      wrong = [*bits(got, several[0][k])] if several[0][k:] else []
      wrong += faults(got, want, ROUGH[script.dtype]) if way == "hosts" else bits(got, want)
      if wrong:
        found.append(f"{script}\n# process {i}: {'; '.join(wrong[:4])}\n")
    if found:  # processes that have not done the same do not go on together
      break
  return [f"# --seed {first} --batch {asked.batch} --count 1 --processes {n}, by {way}\n{x}" for x in found]


def main(arguments: list[str] | None = None) -> int:
  parser = options("extra.fuzz_processes", __doc__, "CPU")
  parser.add_argument("--processes", type=int, default=4, help="2 or 4 (4)")
  parser.add_argument("--batch", type=int, default=8, help="programs of one start of the processes (8)")
  parser.add_argument("--patience", type=float, default=300, help="seconds for a program (300)")
  parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # within the processes
  parser.add_argument("--way", help=argparse.SUPPRESS)
  asked = parser.parse_args(arguments)
  if asked.folder is not None:
    return inside(asked)
  done = failed = 0
  with tempfile.TemporaryDirectory() as folder:
    for seed in seeds(asked):
      first = asked.seed + (seed - asked.seed) * asked.batch
      print(*(found := batch(first, Path(folder), asked)), sep="\n", end="", flush=True)
      done, failed = done + 1, failed + len(found)
  print(f"{done} batches of {asked.batch} programs from --seed {asked.seed} in {asked.processes}, {failed} failed")
  return int(failed > 0)


if __name__ == "__main__":
  sys.exit(main())
