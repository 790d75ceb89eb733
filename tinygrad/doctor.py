"""`python -m tinygrad.doctor`: whether this machine runs tinygrad well, and what to do where it does not.

What it looks at: versions; each kind of device, which compiles, runs and checks a kernel, or says which drivers were
tried and why they failed; settings in the environment; a program on one device and cut over two, against numpy; the
cache on disk; cores and load; and, for five seconds, how fast the default device multiplies matrices and reads memory,
beside what numpy's libraries reach on the same cores.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy

from tinygrad.debug import profile
from tinygrad.device import GPUS, Device, DeviceError
from tinygrad.engine.compile import plan_of
from tinygrad.helpers import CPU_THREADS, NO_COLOR, ContextVar, cores, getenv, processor_model, size_to_str, while_read
from tinygrad.runtime import diskcache
from tinygrad.tensor import Tensor

NEEDED = ("numpy", "llvmlite", "ml-dtypes", "tokenizers", "jinja2", "tqdm", "gguf", "safetensors")
# packages that bring more, and the extra that installs each
MORE = {
  "pyopencl": "opencl", "cuda-bindings": "cuda", "onnx": "onnx", "highspy": "auto", "uvicorn": "serve",
  "prompt_toolkit": "chat",
}  # fmt: skip
BLAS_SIDE, READ_BYTES = 1024, 128 << 20  # of what numpy is measured by: as large as what ours is
KINDS = ("CPU", *GPUS)  # the first works everywhere
PLACES = ("CACHEDIR", "CACHE_MB", "CPU_FEATURES", "GPU")  # settings that are read where they are used
SLOWING = {
  "NOOPT": "kernels are plain loops",
  "CHECK_NAN": "every kernel is waited for and looked at",
  "INTERPRET": "numpy evaluates each node",
}
PLAIN_WIDTH = 100
FULL, SLOW = 0.9, 0.4  # of the cache's limit; of what the machine can do
EPILOG = """what to do with it:
  a device says no      its line ends with a fix; GPU=CPU in the environment runs GPU programs on the processor
  the cache is full     CACHE_MB=2048 gives it more room; CACHEDIR=/a/folder another place
  the machine is slow   look at load: somebody else computes. A container may have fewer cores than the machine

status: 0, all is well; 1, something does not work that programs need; 2, these options are not known.
"""


@dataclass
class Finding:
  """A section: its rows, and what is wrong or could be better, each with what to do."""

  title: str
  columns: tuple[str, ...]
  rows: list[tuple[str, ...]] = field(default_factory=list)
  faults: list[str] = field(default_factory=list)
  advice: list[str] = field(default_factory=list)


def version_of(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def look_at_versions() -> Finding:
  """What is installed, and what is not that could be."""
  found = Finding("versions", ("what", "version", "note"))
  found.rows += [
    ("tinygrad", package_version(), str(Path(__file__).parent)),
    ("python", platform.python_version(), platform.python_implementation()),
    ("system", platform.system(), f"{platform.release()} {platform.machine()}"),
  ]
  for package in NEEDED:
    version = version_of(package)
    found.rows.append((package, version or "missing", ""))
    if version is None:
      found.faults.append(f"the package {package} is missing: pip install {package}")
  for package, extra in MORE.items():
    if (version := version_of(package)) is None:
      found.rows.append((package, "-", f"pip install 'tinygrad[{extra}]'"))
    else:
      found.rows.append((package, version, f"extra [{extra}]"))
  return found


def default_kind() -> str:
  """The kind of the device where new tensors go. Raises: DeviceError where there is none."""
  return Device.DEFAULT.partition(":")[0]


def look_at_devices() -> Finding:
  """Which kinds of device work, and why the others do not."""
  found = Finding("devices", ("kind", "works", "what, or why not"))
  try:
    default = default_kind()
  except DeviceError as e:
    default = ""
    found.faults.append(f"the default device: {one_line(e)}")
  for kind in KINDS:
    tried = Device._attempt(kind)
    chosen = kind == default
    if not isinstance(tried, str):
      found.rows.append((kind, "yes, the default" if chosen else "yes", tried.description))
      continue
    found.rows.append((kind, "no", tried))
    if chosen or kind == KINDS[0]:
      found.faults.append(f"{kind} does not work: {tried}")
  named = os.environ.get("GPU", "1")
  found.rows.append(("GPU", "", named if named != "1" else f"the first that works of {', '.join(GPUS)}"))
  return found


def look_at_settings() -> Finding:
  """The settings that the environment makes."""
  found = Finding("settings", ("name", "value", "note"))
  for name in sorted({*ContextVar.all, *PLACES} & set(os.environ)):
    slows = name in SLOWING and os.environ[name] not in ("", "0")
    found.rows.append((name, os.environ[name], SLOWING[name] if slows else ""))
    if slows:
      found.advice.append(f"{name}={os.environ[name]}: {SLOWING[name]}; unset it for speed")
  if not found.rows:
    found.rows.append(("-", "", "none is set: all have their defaults"))
  return found


def one_line(error: Exception) -> str:
  return "; ".join(line.strip() for line in str(error).splitlines())


def look_at_programs() -> Finding:
  """Small programs, whose results are known: on the default device, and on two of its kind."""
  found = Finding("programs", ("program", "result", "note"))
  x = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
  try:
    kind = default_kind()
  except DeviceError:  # of which the devices tell
    return found
  two = (f"{kind}:0", f"{kind}:1")
  programs: dict[str, Callable[[], Tensor]] = {
    "a matmul": lambda: Tensor(x) @ Tensor(x.T),
    "rows on two devices": lambda: Tensor(x).shard(two, axis=0) @ Tensor(x.T).shard(two),
    "a sum over two devices": lambda: Tensor(x).shard(two, axis=1) @ Tensor(x.T).shard(two, axis=0),
  }
  for name, program in programs.items():
    try:
      right = bool((program().numpy() == x @ x.T).all())
      found.rows.append((name, "right" if right else "WRONG", ""))
      if not right:
        found.faults.append(f"{name} on {kind} computes what is wrong: run with NOOPT=1, and report it")
    except (DeviceError, RuntimeError, OSError, MemoryError) as e:
      found.rows.append((name, "fails", one_line(e)))
      found.faults.append(f"{name} on {kind}: {one_line(e)}")
  return found


def look_at_cache() -> Finding:
  """Where compiled kernels are kept, and how full that is."""
  found = Finding("cache", ("what", "value", "note"))
  folder, limit = diskcache.directory(), getenv("CACHE_MB", 512, 0) << 20
  sizes = [f.stat().st_size for f in folder.iterdir() if f.is_file()] if folder.is_dir() else []
  found.rows.append(("folder", str(folder), "CACHEDIR" if "CACHEDIR" in os.environ else "the default"))
  found.rows.append(("entries", str(len(sizes)), f"{size_to_str(sum(sizes))} of {size_to_str(limit)}"))
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      room = shutil.disk_usage(folder).free
    found.rows.append(("disk", size_to_str(room), "free"))
    if room < limit - sum(sizes):
      found.advice.append(f"the disk has {size_to_str(room)} left: CACHEDIR=/a/folder moves the cache")
  except OSError as e:
    found.rows.append(("disk", "cannot be written", str(e)))
    found.faults.append(f"nothing can be stored in {folder} ({e}): CACHEDIR=/a/folder that can be written")
  if sum(sizes) > FULL * limit:
    found.advice.append(
      "the cache is nearly full, and drops what was not used for longest: CACHE_MB=2048 makes it larger"
    )
  return found


def look_at_cores() -> Finding:
  """The cores that programs may use, and who else uses them."""
  found = Finding("threads", ("what", "value", "note"))
  usable, all_of_them = cores(), os.cpu_count() or 1
  load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
  found.rows += [
    ("processor", processor_model(), ""),
    ("cores", str(usable), "" if usable == all_of_them else f"of {all_of_them}: this process may use no more"),
    ("threads of a kernel", str(CPU_THREADS.value or usable), "CPU_THREADS" if CPU_THREADS.value else "one a core"),
    ("load", f"{load:.1f}", "processes that compute, on average of a minute"),
  ]
  if load > usable * 0.75:
    found.advice.append(
      f"the load is {load:.1f} on {usable} cores: others compute, so what is measured now is too slow"
    )
  return found


# ---------------------------------------------------------------- speed


def best_seconds(run: Callable[[], object], budget: float) -> float:
  """The least time of some runs, which take `budget` seconds together (one more than fits)."""
  run()
  times: list[float] = []
  while not times or sum(times) < budget:
    start = time.perf_counter()
    run()
    times.append(time.perf_counter() - start)
  return min(times)


def numpy_rates(budget: float) -> tuple[float, float]:
  """(operations, bytes) a second of numpy: its matmul, and sums in a thread for each core."""
  a = numpy.ones((BLAS_SIDE, BLAS_SIDE), numpy.float32)
  parts = numpy.array_split(numpy.ones(READ_BYTES // 4, numpy.float32), cores())

  def read() -> None:
    threads = [threading.Thread(target=numpy.add.reduce, args=(part,)) for part in parts]
    for t in threads:
      t.start()
    for t in threads:
      t.join()

  flops = 2 * BLAS_SIDE**3 / best_seconds(lambda: a @ a, budget / 2)
  return flops, READ_BYTES / best_seconds(read, budget / 2)


def look_at_speed(seconds: float) -> Finding:
  """What kernels of ours reach, beside numpy's on the same processor; of a GPU ours alone."""
  found = Finding("speed", ("what", "here", "the machine", "share"))
  kind = default_kind()
  ours = profile.rates_now(kind, plan_of)
  units = (("float32 matmul of 1024", 1e-9, "GFLOP/s"), ("reading 128 MB", 1e-9, "GB/s"))
  theirs = numpy_rates(seconds / 2) if Device[kind].capabilities.processor else (None, None)
  for (name, factor, unit), mine, other in zip(units, ours, theirs, strict=True):
    shown = f"{mine * factor:.1f} {unit}"
    if other is None:
      found.rows.append((name, shown, "-", ""))
      continue
    found.rows.append((name, shown, f"{other * factor:.1f} {unit} (numpy)", f"{mine / other:.0%}"))
    if mine < SLOW * other:
      found.advice.append(f"{name}: {mine / other:.0%} of what numpy reaches; BEAM=2 looks for faster kernels")
  return found


# ---------------------------------------------------------------- what is shown


def examine(quick: bool, seconds: float) -> list[Finding]:
  """All sections; `quick`: without what takes seconds."""
  looks: list[Callable[[], Finding]] = [
    look_at_versions, look_at_devices, look_at_settings, look_at_programs, look_at_cache, look_at_cores
  ]  # fmt: skip
  found = [look() for look in looks]
  if not quick and not found[1].faults:
    found.append(look_at_speed(seconds))
  return found


def print_plain(finding: Finding) -> None:
  """A section as text, of which the last column is wrapped."""
  widths = [max(len(row[i]) for row in finding.rows) for i in range(len(finding.columns) - 1)] if finding.rows else []
  print(f"\n{finding.title}")
  for *first, last in finding.rows:
    start = "  " + "".join(text.ljust(width + 2) for text, width in zip(first, widths))
    lines = textwrap.wrap(last, max(30, PLAIN_WIDTH - len(start)), break_long_words=False, break_on_hyphens=False)
    print((start + f"\n{' ' * len(start)}".join(lines)).rstrip())


def print_rich(finding: Finding) -> None:
  from rich.box import SIMPLE_HEAD
  from rich.console import Console
  from rich.table import Table

  table = Table(*finding.columns, title=finding.title, title_justify="left", box=SIMPLE_HEAD, highlight=True)
  for row in finding.rows:
    table.add_row(*(text.replace("[", r"\[") for text in row))
  Console().print(table)


def verdict(found: Sequence[Finding]) -> list[str]:
  """The last lines: what is wrong, what could be better, or that all is well."""
  faults = [x for f in found for x in f.faults]
  advice = [x for f in found for x in f.advice]
  lines = [*(f"wrong: {x}" for x in faults), *(f"better: {x}" for x in advice)]
  return lines or ["all is well"]


def as_json(found: Sequence[Finding]) -> str:
  sections = {f.title: [dict(zip(f.columns, row)) for row in f.rows] for f in found}
  faults, advice = ([x for f in found for x in getattr(f, name)] for name in ("faults", "advice"))
  return json.dumps({"tinygrad": package_version(), **sections, "faults": faults, "advice": advice}, indent=2)


@functools.cache
def package_version() -> str:
  return str(importlib.import_module("tinygrad").__version__)


def show(found: Sequence[Finding], as_object: bool) -> None:
  """Prints what was found: as JSON, in tables where there is a terminal, else as text."""
  if as_object:
    print(as_json(found))
    return
  print(f"tinygrad {package_version()}")
  pretty = sys.stdout.isatty() and not NO_COLOR and importlib.util.find_spec("rich") is not None
  for finding in found:
    (print_rich if pretty else print_plain)(finding)
  print("\n" + "\n".join(verdict(found)))


def status_of(found: Sequence[Finding]) -> int:
  return int(any(f.faults for f in found))


def doctor_options() -> argparse.ArgumentParser:
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser("python -m tinygrad.doctor", description=__doc__, epilog=EPILOG, formatter_class=raw)
  parser.add_argument("--quick", action="store_true", help="do not measure speed")
  parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="to measure for (default: 5)")
  parser.add_argument("--json", action="store_true", help="for programs: one object, a list for each section")
  return parser


def run_doctor(arguments: Sequence[str] | None = None) -> int:
  options = doctor_options().parse_args(arguments)
  found = examine(options.quick, options.seconds)
  with while_read():
    show(found, options.json)
  return status_of(found)


if __name__ == "__main__":
  sys.exit(run_doctor())
