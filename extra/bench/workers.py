"""The measuring side's other end: processes in several environments, one workload each, asked in turn."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


# by the kind of framework, a first result as a user at the prompt sees it
FIRST_RESULT = {
  "tinygrad": "from tinygrad import Tensor; print((Tensor([1, 2, 3]) + 1).tolist())",
  "torch": "import torch; print((torch.tensor([1, 2, 3]) + 1).tolist())",
  "jax": "import jax.numpy as jnp; print((jnp.array([1, 2, 3]) + 1).tolist())",
}


class BenchError(RuntimeError):
  """A measured process stopped; its last lines say why."""


@dataclass(frozen=True, slots=True)
class Environment:
  """An interpreter and the workloads file that it runs. `name` is what tables call it."""

  name: str
  python: Path
  script: Path
  ours: bool = False

  def variables(self, cache: Path) -> dict[str, str]:
    """The environment of a measured process: whatever it caches goes to `cache`, which begins empty."""
    # a checkout has to write its bytecode, which pip has made of the peers
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    # this project and 0.14 each know one of these; PyTorch and JAX keep nothing on disk unless told to
    kept |= {"CACHEDIR": str(cache), "XDG_CACHE_HOME": str(cache), "CACHEDB": str(cache / "peer.db")}
    return kept | ({"PYTHONPATH": str(ROOT)} if self.ours else {})

  def start(self, *args: str, cache: Path, **options: Any) -> subprocess.Popen[str]:
    """The workloads file as a process, outside the checkout so that no peer can pick up this project's package."""
    command = [str(self.python), str(self.script), *args]
    return subprocess.Popen(command, text=True, cwd=cache, env=self.variables(cache), **options)

  def output(self, *args: str) -> str:
    """What the workloads file prints, from a fresh process."""
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
      process = self.start(*args, cache=Path(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
      out, err = process.communicate()
      if process.returncode:
        raise BenchError(f"{self.name}: {' '.join(args)} failed\n{last_lines(err)}")
      return out

  def first_result(self, cache: Path) -> float:
    """Seconds that FIRST_RESULT takes, import included, in a fresh process."""
    line = FIRST_RESULT[self.script.stem.removeprefix("work_")]
    code = f"import time; start = time.perf_counter(); {line}; print(time.perf_counter() - start)"
    command, env = [str(self.python), "-c", code], self.variables(cache)
    done = subprocess.run(command, capture_output=True, text=True, cwd=cache, env=env)
    shown, _, took = done.stdout.partition("\n")
    if done.returncode or shown != "[2, 3, 4]":
      raise BenchError(f"{self.name}: repl1 failed\n{last_lines(done.stdout + done.stderr)}")
    return float(took)

  def packages(self) -> dict[str, str]:
    """Versions of what is measured, as the environment's package metadata has them."""
    code = (
      "import importlib.metadata as m, json, sys; "
      "names = {d.metadata['Name'].lower() for d in m.distributions()}; "
      "wanted = ('tinygrad', 'numpy', 'llvmlite', 'torch', 'jax', 'jaxlib'); "
      "print(json.dumps({'python': sys.version.split()[0], **{n: m.version(n) for n in wanted if n in names}}))"
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:  # not the checkout, whose metadata Python would find
      env, command = self.variables(Path(cache)), [str(self.python), "-c", code]
      done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cache, env=env)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def last_lines(text: str, count: int = 8) -> str:
  return "\n".join("    " + line for line in text.strip().splitlines()[-count:])


@dataclass(slots=True)
class Worker:
  """One process that serves one workload, with the cache that `after` has filled or an empty one of its own; `call()`
  gives the seconds of one call."""

  environment: Environment
  workload: str
  after: Worker | None = None
  cache: Path = field(init=False)
  log: Path = field(init=False)
  process: subprocess.Popen[str] = field(init=False)
  hello: dict[str, Any] = field(init=False)

  def __post_init__(self) -> None:
    self.cache = Path(tempfile.mkdtemp(prefix="bench-")) if self.after is None else self.after.cache
    self.log = self.cache / ("stderr.txt" if self.after is None else "stderr-cached.txt")
    with self.log.open("w") as log:
      pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
      self.process = self.environment.start("--serve", self.workload, cache=self.cache, **pipes)
    try:
      self.hello = self.answer()
    except BaseException:
      self.close()
      raise

  def answer(self) -> dict[str, Any]:
    assert self.process.stdout is not None
    line = self.process.stdout.readline()
    if not line:
      self.process.wait()
      raise BenchError(f"{self.environment.name}: {self.workload} stopped\n{last_lines(self.log.read_text())}")
    answer: dict[str, Any] = json.loads(line)
    return answer

  def ask(self, line: str) -> dict[str, Any]:
    assert self.process.stdin is not None
    try:
      self.process.stdin.write(line + "\n")
      self.process.stdin.flush()
    except BrokenPipeError:
      pass  # the process is gone: the empty answer below says why
    return self.answer()

  def call(self) -> float:
    return float(self.ask("call")["s"])

  def check(self) -> float | None:
    error: float | None = self.ask("check")["error"]
    return error

  def close(self) -> None:
    """End the process that was started here and remove its own cache."""
    self.process.kill()
    self.process.wait()
    for pipe in (self.process.stdin, self.process.stdout):
      if pipe is not None:
        pipe.close()
    if self.after is None:
      shutil.rmtree(self.cache, ignore_errors=True)


def machine() -> dict[str, Any]:
  """What the figures were measured on."""
  model = platform.processor() or platform.machine()
  cpuinfo = Path("/proc/cpuinfo")
  if cpuinfo.exists():
    names = [
      line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
    ]
    model = names[0] if names else model
  return {
    "cpu": model,
    "cores": len(os.sched_getaffinity(0)),
    "system": platform.platform(),
    "load": os.getloadavg()[0],
  }
