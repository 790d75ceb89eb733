"""Random programs with captured functions and state, several at once in threads of one process.

    python -m extra.fuzz_threads --seconds 600
    python -m extra.fuzz_threads --seed 5061 --count 1 --threads 6

The programs are those of extra/fuzz_captured.py, each in a thread with its own state and functions, again and again:
while one captures, others compile, replay, compute at once, donate, assign, differentiate, fail within, and free
memory; they share the devices and everything that the process keeps. What programs of one process have in common by
what it says, settings and random numbers, is the same for all of them: the settings are the first one's, all train, and
random numbers are constants. One more thread takes memory, fills, reads and frees it, on the same devices, and collects
garbage. Python changes threads after every few bytecodes. Each program has to show what it shows alone, afterwards, as
far as neither is refused; what it is to show, extra/fuzz_captured.py asks. Threads that are not done after --patience
seconds are a fault: where each stands is printed. Batches with the seeds that follow --seed run until the time is over.
Exit status: 0 if all agreed, 1 if not, 2 if threads were not done.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from extra.captured_programs import Script, written
from extra.fuzz_captured import REFUSED, ROUGH, World, differs, poisoned
from extra.fuzz_programs import options, seeds
from tinygrad import Context, Tensor
from tinygrad.transforms.step_gradients import UNKEPT

MOST = 6  # values that the thread beside the programs keeps


class SharedWorld(World):
  """What is one for the whole process is the same for every program."""

  trained = True

  def uniform(self, *shape: int) -> Tensor:
    return self.at(Tensor.full(shape, 0.25, dtype=self.names["F"]), 0)

  def drop(self, t: Tensor) -> Tensor:
    return t * 0.5


class Shown(NamedTuple):
  """What a run shows: all that has a name, at each look; and what it ended by, if not by itself."""

  looks: list[dict[str, np.ndarray]]
  error: str = ""
  refused: bool = False  # for what depends on garbage, too: whether something is still to be read


def of_seed(seed: int, device: str) -> Script:
  script = written(seed, device)
  main = tuple(line for line in script.main if not line.startswith("Tensor.training"))
  return dataclasses.replace(script, main=main)


def run(script: Script) -> Shown:
  first = script.placements[0]
  world = SharedWorld(script, first if isinstance(first, str) else getattr(first[0], "devices", first[0])[0])
  try:
    world.run(lambda: None)
  except Exception as e:
    refused = any(said in str(e) for said in REFUSED.get(type(e), ()))
    return Shown(world.looks, f"{type(e).__name__}: {e}", refused)
  return Shown(world.looks)


def faults(got: Shown, want: Shown, rough: float) -> Iterator[str]:
  if got.error != want.error and not (got.refused or want.refused):
    yield got.error or f"no error, and alone {want.error}"
  for k, (mine, alone) in enumerate(zip(got.looks, want.looks)):
    if mine.keys() != alone.keys():
      yield f"look {k}: names {sorted(mine.keys() ^ alone.keys())}"
    for name in mine.keys() & alone.keys():
      if mine[name] is not UNKEPT and alone[name] is not UNKEPT:
        yield from (f"look {k}: {name} {why}" for why in differs(mine[name], alone[name], rough))


def churn(device: str, seed: int, over: threading.Event) -> list[str]:
  """Takes, fills, reads and frees memory until it is over, and collects garbage."""
  rng, kept = np.random.default_rng(seed), list[tuple[Tensor, np.ndarray]]()
  while not over.is_set():
    a = rng.integers(-8, 8, (2 * int(rng.integers(1, 150)), int(rng.integers(1, 300)))).astype(np.float32)
    t = Tensor(a).to(f"{device}:{rng.integers(4)}")
    match way := int(rng.integers(4)):
      case 0:
        t = t.contiguous().realize()
        t, a = t.assign(t * 2 + 1), a * 2 + 1
      case 1:
        t, a = (t.T @ t).realize(), a.T @ a
      case 2:
        t, a = t.to(None).shard((f"{device}:0", f"{device}:1"), axis=0).sum(0) + 1, a.sum(0) + 1
    kept.append((t, a))
    if len(kept) > MOST:
      t, a = kept.pop(int(rng.integers(MOST)))
      if not np.array_equal(t.numpy(), a):
        return [f"memory is not what it was (way {way})"]
    if rng.random() < 0.05:
      gc.collect()
  return []


def together(work: list[Callable[[], Any]], beside: Callable[[threading.Event], Any], patience: float) -> list[Any]:
  """What functions return that run at once, and last what runs beside them until they have. Ends the process where one
  does not end."""
  over, gate, found = threading.Event(), threading.Barrier(len(work)), [None] * (len(work) + 1)

  def begin(i: int) -> None:
    gate.wait()
    found[i] = work[i]()

  def begin_beside() -> None:
    try:
      found[-1] = beside(over)
    except Exception as e:
      found[-1] = [f"{type(e).__name__}: {e}"]

  threads = [threading.Thread(target=begin, args=(i,), daemon=True) for i in range(len(work))]
  threads.append(threading.Thread(target=begin_beside, daemon=True))
  interval = sys.getswitchinterval()
  sys.setswitchinterval(1e-5)
  for t in threads:
    t.start()
  for t in threads:
    if t is threads[-1]:
      over.set()
    t.join(patience)
  sys.setswitchinterval(interval)
  if any(t.is_alive() for t in threads):
    faulthandler.dump_traceback(all_threads=True)
    sys.stdout.flush()
    os._exit(2)
  return found


def batch(seed: int, asked: argparse.Namespace) -> list[str]:
  """What is wrong in one: programs, and what was not as it is alone."""
  scripts = [of_seed(seed * asked.threads + i, asked.device) for i in range(asked.threads)]
  with Context(**{**dict(scripts[0].settings), "BEAM": 0}), Tensor.train(), poisoned():
    work = [lambda s=script: [run(s) for _ in range(asked.times)] for script in scripts]
    *shown, found = together(work, lambda over: churn(asked.device, seed, over), asked.patience)
    for script, several in zip(scripts, shown):
      alone = run(script)
      for k, got in enumerate(several):
        if wrong := [*faults(got, alone, ROUGH[script.dtype])]:
          found.append(f"{script}\n# the {k + 1}. time: {'; '.join(wrong[:4])}\n")
  return [f"# --seed {seed} --count 1 --threads {asked.threads} --times {asked.times}\n{x}" for x in found]


def main(arguments: list[str] | None = None) -> int:
  parser = options("extra.fuzz_threads", __doc__, "CPU, CL")
  parser.add_argument("--threads", type=int, default=4, help="programs at once (4)")
  parser.add_argument("--times", type=int, default=2, help="how often each runs (2)")
  parser.add_argument("--patience", type=float, default=300, help="seconds for a batch (300)")
  asked = parser.parse_args(arguments)
  done = failed = 0
  for seed in seeds(asked):
    print(*(found := batch(seed, asked)), sep="\n", end="" if not found else "\n", flush=True)
    done, failed = done + 1, failed + len(found)
  print(f"{done} batches of {asked.threads} programs from --seed {asked.seed} on {asked.device}, {failed} failed")
  return int(failed > 0)


if __name__ == "__main__":
  sys.exit(main())
