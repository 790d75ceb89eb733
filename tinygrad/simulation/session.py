"""Simulated devices as those of a cluster: for one call (`simulate`), or for a whole program (`SIM` in the
environment)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tinygrad.device import Device, Target, backends
from tinygrad.device.cluster import Cluster
from tinygrad.device.machine import simulated
from tinygrad.engine.jit import realize_all
from tinygrad.engine.program_order import program_order
from tinygrad.engine.run import Work, watchers
from tinygrad.helpers import SIM, Context, ContextVar, say, walk
from tinygrad.runtime import cuda, null
from tinygrad.simulation.machine import ClusterError, cluster_of
from tinygrad.simulation.pictures import duration
from tinygrad.simulation.program import StepProgram, WorkRecorder
from tinygrad.simulation.report import Simulation, check_ending
from tinygrad.simulation.timeline import timeline

# where the report of a program under SIM is written besides; .svg, .html or .json
SIM_FILE = ContextVar("SIM_FILE", "", None)
GROUP_MEMORY = {
  80: 163 << 10,
  90: 227 << 10,
  100: 227 << 10,
}  # bytes that a group of threads may have (CUDA programming guide)


def simulate(step: Callable[..., Any], *args: Any, cluster: str | Cluster = "", **kwargs: Any) -> Simulation:
  """Calls `step` once on simulated devices (NULL), and says what that takes on a cluster: "h100x8:64", the path of a
  TOML file, or what SIM says. The Tensors that it returns, and what it assigns, are computed with it; nothing is
  compiled, no value is there, and `TinyJit` changes nothing.

  Raises: ClusterError for what is no cluster, for devices that it has not, and where nothing ran on simulated ones."""
  with recording(cluster_of(cluster or SIM.value or "h100x8:1")) as recorder, Context(JIT=0):
    since, found = program_order.now, list[Any]()
    walk(step(*args, **kwargs), found.append)
    realize_all([*found, *program_order.assigned(since)])
  return simulation(recorder.program, recorder.cluster)


def simulation(program: StepProgram, cluster: Cluster) -> Simulation:
  """Raises: ClusterError for a program of nothing."""
  if not program.entries:
    rule = "nothing has run on simulated devices"
    raise ClusterError(
      f"{rule}\n  fix: Mesh([f'NULL:{{i}}' for i in range({len(cluster)})]), or SIM in the environment"
    )
  return Simulation(program, timeline(program, cluster))


@contextlib.contextmanager
def recording(cluster: Cluster) -> Iterator[WorkRecorder]:
  """A block in which simulated devices are those of a cluster, and what they are given is noted."""
  recorder = WorkRecorder(cluster)
  with standing_for(cluster), Context(SIM=cluster):
    watchers.append(recorder)
    try:
      yield recorder
    finally:
      watchers.remove(recorder)


@contextlib.contextmanager
def standing_for(cluster: Cluster) -> Iterator[None]:
  """A block in which schedules are made as for a cluster's devices, and `auto` knows what these can do."""
  kind = null.NullDevice
  before = kind.target, kind.devices
  target = target_named(cluster.chip.target)
  kind.target, kind.devices = replace(target, overlaps=cluster if cluster.overlap else None), len(cluster)
  simulated.append(cluster)
  try:
    yield
  finally:
    simulated.pop()
    kind.target, kind.devices = before


@functools.cache
def target_named(name: str) -> Target:
  """What schedules are made for. Raises: ClusterError for a name that says nothing."""
  if not name:
    return null.TARGET
  if name in backends():
    return Device[name].target
  if (match := re.fullmatch(r"sm_(\d+)a?x(\d+)", name)) is None:
    raise ClusterError(f"device.target = {name!r} is no target\n  fix: target = 'sm_90x132'  # or 'CPU', or ''")
  arch, units = int(match[1]), int(match[2])
  return cuda.target_of(divmod(arch, 10), units, GROUP_MEMORY.get(arch, 0))


# ---------------------------------------------------------------- SIM in the environment


class Session:
  """A whole program on a cluster: each distinct stretch of work is noted once, and counted."""

  def __init__(self, cluster: Cluster) -> None:
    self.cluster, self.programs = cluster, dict[tuple[int, ...], StepProgram]()
    self.held = contextlib.ExitStack()  # what lasts as long as the process

  def __call__(self, work: Sequence[Work]) -> None:
    key = tuple([id(w.item) for w in work])
    if (known := self.programs.get(key)) is not None:
      known.times += 1
      return
    recorder = WorkRecorder(self.cluster)
    recorder(work)
    if recorder.program.entries:
      self.programs[key] = recorder.program  # its items stay alive, so that no other has their ids

  def finish(self) -> None:
    """Prints what the program took; its longest part, over all of its runs, in full, and to SIM_FILE."""
    if not self.programs:
      say(f"SIM={self.cluster.name}: nothing has run on simulated devices")
      return
    found = [simulation(p, self.cluster) for p in self.programs.values()]
    takes = [s.program.times * s.seconds for s in found]
    first, runs = found[takes.index(max(takes))], sum(s.program.times for s in found)
    said = f"{duration(sum(takes))} in {runs} runs of {len(found)} programs"
    say(f"SIM={self.cluster.name}: {said}; most of it is {first.program.times} times this one")
    say(str(first))
    if SIM_FILE.value:
      first.save(SIM_FILE.value)
      say(f"written: {SIM_FILE.value}")


def begin(text: str) -> Session:
  """The rest of the process runs on a cluster; what that took is printed at its end. Raises: ClusterError."""
  cluster = cluster_of(text)
  if SIM_FILE.value:
    check_ending(SIM_FILE.value)
  session = Session(cluster)
  session.held.enter_context(standing_for(cluster))
  SIM.value = cluster
  watchers.append(session)
  atexit.register(session.finish)
  return session
