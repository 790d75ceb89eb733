"""Small things that every stage uses: environment, context variables, counters, integer and sequence helpers."""

from __future__ import annotations

import contextlib
import functools
import importlib
import linecache
import operator
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")
PACKAGE = os.path.dirname(os.path.abspath(__file__))


class LazyModule:
  """A module that is imported on first use, so that `import tinygrad` stays fast."""

  __slots__ = ("_module", "_name")
  _module: ModuleType | None

  def __init__(self, name: str) -> None:
    self._name, self._module = name, None

  def __getattr__(self, attribute: str) -> Any:
    module = self._module
    if module is None:
      self._module = module = importlib.import_module(self._name)
    return getattr(module, attribute)


numpy: Any = LazyModule("numpy")
tempfile: Any = LazyModule("tempfile")


@functools.cache
def getenv(key: str, default: Any = 0) -> Any:
  """The environment's value of `key`, with the type of `default`."""
  value = os.environ.get(key)
  return default if value is None else type(default)(value)


class ContextVar:
  """A setting with a default, an environment variable and a scoped override (`Context`)."""

  all: ClassVar[dict[str, ContextVar]] = {}
  __slots__ = ("key", "value")

  def __init__(self, key: str, default: Any) -> None:
    if key in ContextVar.all:
      raise ValueError(f"context variable {key} exists already")
    self.key, self.value = key, getenv(key, default)
    ContextVar.all[key] = self

  def __bool__(self) -> bool:
    return bool(self.value)

  def __ge__(self, x: Any) -> bool:
    return bool(self.value >= x)

  def __gt__(self, x: Any) -> bool:
    return bool(self.value > x)

  def __lt__(self, x: Any) -> bool:
    return bool(self.value < x)

  def __eq__(self, x: object) -> bool:
    return bool(self.value == x)

  __hash__ = object.__hash__

  def __repr__(self) -> str:
    return f"ContextVar({self.key}={self.value!r})"


class Context(contextlib.ContextDecorator):
  """`with Context(DEBUG=2): ...` sets context variables for a block; unknown names raise."""

  def __init__(self, **settings: Any) -> None:
    unknown = [k for k in settings if k not in ContextVar.all]
    if unknown:
      raise ValueError(f"unknown context variable {unknown[0]!r}; known: {', '.join(sorted(ContextVar.all))}")
    self.settings = settings
    self.saved: list[dict[str, Any]] = []

  def __enter__(self) -> Context:
    self.saved.append({k: ContextVar.all[k].value for k in self.settings})
    for k, v in self.settings.items():
      ContextVar.all[k].value = v
    return self

  def __exit__(self, *_: object) -> None:
    for k, v in self.saved.pop().items():
      ContextVar.all[k].value = v


DEBUG = ContextVar("DEBUG", 0)
SPEC = ContextVar("SPEC", 1)
DEFER = ContextVar("DEFER", 1)  # 1: reductions may stay owed; 0: they are settled where they arise
RESHARD = ContextVar("RESHARD", 1)  # 0: an implied move is an error
JIT = ContextVar("JIT", 1)
NOOPT = ContextVar("NOOPT", 0)
BEAM = ContextVar("BEAM", 0)
TRAINING = ContextVar("TRAINING", 0)
CHECK_NAN = ContextVar("CHECK_NAN", 0)
DEFAULT_FLOAT = ContextVar("DEFAULT_FLOAT", "float32")
REDUCE_DTYPE = ContextVar("REDUCE_DTYPE", "float32")  # what half-precision owed sums are carried in


class GlobalCounters:
  """What ran since `reset()`: floating-point operations, bytes of memory traffic, seconds (DEBUG>=2), kernels, the most
  bytes in use on each device; and the bytes in use now.
  """

  global_ops: ClassVar[int] = 0
  global_mem: ClassVar[int] = 0
  time_sum_s: ClassVar[float] = 0.0
  kernel_count: ClassVar[int] = 0
  mem_used: ClassVar[int] = 0
  used_on: ClassVar[dict[str, int]] = {}  # by the device's canonical name; read it with Device.mem_used
  peak_on: ClassVar[dict[str, int]] = {}  # Device.mem_peak

  @staticmethod
  def reset() -> None:
    GlobalCounters.global_ops = GlobalCounters.global_mem = GlobalCounters.kernel_count = 0
    GlobalCounters.time_sum_s = 0.0
    GlobalCounters.peak_on.clear()
    GlobalCounters.peak_on.update(GlobalCounters.used_on)

  @staticmethod
  def allocated(device: str, nbytes: int) -> None:
    """Notes memory that buffers take on a device, or give back (negative)."""
    used = GlobalCounters.used_on[device] = GlobalCounters.used_on.get(device, 0) + nbytes
    if used > GlobalCounters.peak_on.get(device, 0):
      GlobalCounters.peak_on[device] = used


def prod(xs: Iterable[Any]) -> Any:
  """The product; 1 for nothing. Works for symbolic integers."""
  return functools.reduce(operator.mul, xs, 1)


def ceildiv(a: Any, b: Any) -> Any:
  """ceil(a / b) for integers, symbolic ones included."""
  return -(-a // b) if isinstance(a, int) else (a + (b - 1)) // b


def round_up(n: int, multiple: int) -> int:
  return -(-n // multiple) * multiple


def dedup(xs: Iterable[T]) -> list[T]:
  """Each element once, in the order of first appearance."""
  return list(dict.fromkeys(xs))


def argsort(xs: Sequence[Any]) -> tuple[int, ...]:
  return tuple(sorted(range(len(xs)), key=xs.__getitem__))


def flatten(xs: Iterable[Iterable[T]]) -> list[T]:
  return [x for inner in xs for x in inner]


def all_same(xs: Sequence[Any]) -> bool:
  return all(x == xs[0] for x in xs[1:])


def all_int(xs: Iterable[Any]) -> bool:
  return all(isinstance(x, int) for x in xs)


def make_tuple(x: int | Sequence[int], count: int) -> tuple[int, ...]:
  return (x,) * count if isinstance(x, int) else tuple(x)


def colored(text: str, color: str | None) -> str:
  """`text` in a terminal color, if standard output is a terminal."""
  colors = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]
  if color is None or not sys.stdout.isatty():
    return text
  return f"\x1b[{30 + colors.index(color)}m{text}\x1b[0m"


def size_to_str(nbytes: float) -> str:
  """1536 -> '1.5 KB'."""
  for unit in ("B", "KB", "MB", "GB"):
    if abs(nbytes) < 1000:
      return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
    nbytes /= 1000
  return f"{nbytes:.1f} TB"


class Timing(contextlib.ContextDecorator):
  """Prints the milliseconds a block took, with `prefix`."""

  def __init__(self, prefix: str = "", enabled: bool = True) -> None:
    self.prefix, self.enabled, self.start, self.seconds = prefix, enabled, 0.0, 0.0

  def __enter__(self) -> Timing:
    self.start = time.perf_counter()
    return self

  def __exit__(self, *_: object) -> None:
    self.seconds = time.perf_counter() - self.start
    if self.enabled:
      print(f"{self.prefix}{self.seconds * 1e3:6.2f} ms")


def cache_dir() -> Path:
  """Where compiled objects are kept: `$CACHEDIR`, else `$XDG_CACHE_HOME/tinygrad`, else `~/.cache/tinygrad`."""
  if (explicit := os.environ.get("CACHEDIR")) is not None:
    return Path(explicit)
  return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tinygrad"


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Any]:
  """Opens a binary file beside `path` and renames it to `path` when the block ends well; removes it otherwise."""
  target = Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
  try:
    with os.fdopen(handle, "wb") as f:
      yield f
    os.chmod(name, 0o644)
    os.replace(name, target)
  except BaseException:
    os.unlink(name)
    raise


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
  """Within, the first Ctrl-C only makes the yielded function true, to be asked where work may end; the second raises
  KeyboardInterrupt. (Raised at once, it may land in a finalizer, where Python drops it.)"""
  hits: list[int] = []

  def handle(number: int, frame: FrameType | None) -> None:
    hits.append(number)
    if len(hits) > 1:
      raise KeyboardInterrupt

  before = signal.signal(signal.SIGINT, handle)
  try:
    yield lambda: bool(hits)
  finally:
    signal.signal(signal.SIGINT, before)


def user_frame() -> FrameType | None:
  """The innermost frame outside this package: the user's line."""
  frame: FrameType | None = sys._getframe(1)
  while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
    frame = frame.f_back
  return frame


def source_line(filename: str, number: int) -> str:
  """`file.py:41: y = h + skip`, for error messages."""
  code = linecache.getline(filename, number).strip()
  return f"{os.path.basename(filename)}:{number}" + (f": {code}" if code else "")


def user_line() -> str:
  """`source_line` of the user's line."""
  frame = user_frame()
  return "<unknown>" if frame is None else source_line(frame.f_code.co_filename, frame.f_lineno)


def partition(xs: Iterable[T], condition: Callable[[T], bool]) -> tuple[list[T], list[T]]:
  """(those that fulfil the condition, the others)."""
  yes: list[T] = []
  no: list[T] = []
  for x in xs:
    (yes if condition(x) else no).append(x)
  return yes, no
