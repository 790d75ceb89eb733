"""Small things that every stage uses: environment, context variables, counters, integer and sequence helpers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import linecache
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, ClassVar, Generic, Self, TypeVar

T = TypeVar("T")
PACKAGE = os.path.dirname(os.path.abspath(__file__))
_caches = os.environ.get("XDG_CACHE_HOME", os.path.join(os.path.expanduser("~"), ".cache"))
cache_dir = os.environ.get("CACHEDIR") or os.path.join(_caches, "tinygrad")  # what is downloaded


class LazyModule:
  """A module that is imported on first use, so that `import tinygrad` stays fast."""

  __slots__ = ("_module", "_name")
  _module: ModuleType | None

  def __init__(self, name: str) -> None:
    self._name, self._module = name, None

  def __getattr__(self, attribute: str) -> Any:
    module = self._module
    if module is None:
      module = importlib.import_module(self._name)
      # a folder that an uninstalled package has left
      if hasattr(module, "__path__") and not getattr(module, "__file__", None):
        raise ModuleNotFoundError(f"No module named {self._name!r}", name=self._name)
      self._module = module
    return getattr(module, attribute)


numpy, tempfile, gzip, hashlib, json, profiling, progress, pstats, tarfile, url_errors, url_requests = map(
  LazyModule, "numpy tempfile gzip hashlib json cProfile tqdm pstats tarfile urllib.error urllib.request".split()
)
logs: Any = LazyModule("tinygrad.logbar")

OSX, WIN = sys.platform == "darwin", sys.platform == "win32"
CI = os.environ.get("CI", "") not in ("", "0", "false")


@functools.cache
def getenv(key: str, default: Any = 0) -> Any:
  """The environment's value of `key`, with the type of `default`."""
  value = os.environ.get(key)
  return default if value is None else type(default)(value)


def _comparing(by: Callable[[Any, Any], Any]) -> Callable[[ContextVar, Any], bool]:
  return lambda self, x: bool(by(self.value, x))


STAGES = ("graph", "placement", "schedule", "code")


class ContextVar:
  """A setting with a default, an environment variable and a scoped override (`Context`).

  `shapes` is the first of STAGES that asks for it in order to decide what is computed: what Tensor's methods build,
  where that runs, in which kernels, in which code. Whoever keeps the results of a stage for later keeps them by
  `settings_from` it. None: no program changes. A setting of the user's own may change what a function builds.
  """

  all: ClassVar[dict[str, ContextVar]] = {}
  __slots__ = ("key", "shapes", "value")

  def __init__(self, key: str, default_value: Any, shapes: str | None = "graph") -> None:
    if key in ContextVar.all:
      raise ValueError(f"context variable {key} exists already")
    assert shapes is None or shapes in STAGES, shapes
    self.key, self.shapes, self.value = key, shapes, getenv(key, default_value)
    ContextVar.all[key] = self

  def __setattr__(self, name: str, value: Any) -> None:
    object.__setattr__(self, name, value)
    if name == "value" and self.shapes is not None:
      _in_force.clear()

  def __bool__(self) -> bool:
    return bool(self.value)

  __ge__, __gt__, __lt__ = map(_comparing, (operator.ge, operator.gt, operator.lt))
  __eq__ = _comparing(operator.eq)
  __hash__ = object.__hash__

  def __repr__(self) -> str:
    return f"ContextVar({self.key}={self.value!r})"


class Settings:
  """The values of settings, in a key: equal ones are the same object, so that comparing costs nothing."""

  __slots__ = ("values",)

  def __init__(self, values: tuple[str, ...]) -> None:
    self.values = values

  def __repr__(self) -> str:
    return f"Settings({', '.join(self.values)})"


_known: dict[tuple[str, ...], Settings] = {}
_in_force: dict[tuple[str, str], Settings] = {}  # by stages; emptied when a setting changes


def settings_from(first: str, last: str = STAGES[-1]) -> Settings:
  """Every setting that shapes programs in the stages `first` to `last`, as it is now."""
  if (found := _in_force.get((first, last))) is None:
    stages = STAGES[STAGES.index(first) : STAGES.index(last) + 1]
    values = tuple(sorted(f"{v.key}={v.value!r}" for v in ContextVar.all.values() if v.shapes in stages))
    found = _in_force[first, last] = _known.setdefault(values, Settings(values))
  return found


class Setting(Generic[T]):
  """A class's attribute that is a context variable's: reads and sets it, by what its value is `held` as."""

  def __init__(self, variable: ContextVar, shown: Callable[[Any], T], held: Callable[[Any], Any]) -> None:
    self.variable, self.shown, self.held = variable, shown, held

  def __get__(self, cls: Any, kind: Any) -> T:
    return self.shown(self.variable.value)

  def __set__(self, cls: Any, value: Any) -> None:
    self.variable.value = self.held(value)


class Context(contextlib.ContextDecorator):
  """`with Context(DEBUG=2): ...` sets context variables for a block; unknown names raise. With PROFILE=1, the block's
  trace is written when it ends."""

  def __init__(self, **settings: Any) -> None:
    unknown = [k for k in settings if k not in ContextVar.all]
    if unknown:
      raise ValueError(f"unknown context variable {unknown[0]!r}; known: {', '.join(sorted(ContextVar.all))}")
    self.settings = settings
    self.saved: list[tuple[dict[str, Any], int]] = []

  def __enter__(self) -> Self:
    self.saved.append(({k: ContextVar.all[k].value for k in self.settings}, len(_events)))
    for k, v in self.settings.items():
      ContextVar.all[k].value = v
    return self

  def __exit__(self, *_: object) -> None:
    values, first = self.saved.pop()
    traced = _events[first:] if self.settings.get("PROFILE") else None
    file = PROFILE_FILE.value
    for k, v in values.items():
      ContextVar.all[k].value = v
    if traced is not None:
      if not PROFILE:
        del _events[first:]
      write_trace(traced, file)


DEBUG = ContextVar("DEBUG", 0, None)
SPEC = ContextVar("SPEC", 1, None)
DEFER = ContextVar("DEFER", 1, "placement")  # 1: values may stay partial; 0: they are reduced where they arise
MIXED = ContextVar("MIXED", 0, None)  # 1: a value may be sharded over devices of several kinds
RESHARD = ContextVar("RESHARD", 1, "placement")  # 0: an implied move is an error
# who gets a contested axis: cost (the fewest bytes), basic, aggressive
STRATEGY = ContextVar("STRATEGY", "cost", "placement")
JIT = ContextVar("JIT", 1, None)
NOOPT = ContextVar("NOOPT", 0, "code")
ROWS = ContextVar("ROWS", 1, "schedule")  # kernels that work on the same rows run as one (CPU)
# plans of a kernel that a search goes on from at each step; 0: the heuristic's is taken
BEAM = ContextVar("BEAM", 0, "code")
BEAM_SECONDS = ContextVar("BEAM_SECONDS", 10.0, "code")  # that the search for one kernel may take
# of one device for one kernel; 0: the cores over the devices at work
CPU_THREADS = ContextVar("CPU_THREADS", 0, "schedule")
TRAINING = ContextVar("TRAINING", 0, "graph")
NO_GRAD = ContextVar("NO_GRAD", 0, "graph")  # 1: no gradient flows through what is computed
CHECK_NAN = ContextVar("CHECK_NAN", 0, "schedule")
PROFILE = ContextVar("PROFILE", 0, None)
PROFILE_FILE = ContextVar("PROFILE_FILE", "trace.json", None)
DEFAULT_FLOAT = ContextVar("DEFAULT_FLOAT", "float32", "graph")
DEFAULT_INT = ContextVar("DEFAULT_INT", "int32", "graph")
DEV = ContextVar("DEV", "", "graph")  # where new tensors go (Device.DEFAULT)
NO_COLOR = ContextVar("NO_COLOR", 0, None)
REDUCE_DTYPE = ContextVar("REDUCE_DTYPE", "float32", "graph")  # what partial sums of half precision are carried in

# Settings of tinygrad's own compiler and runtime that scripts hold: they can be set and read, and change nothing here
# (docs/compatibility.md says what takes their place).
globals().update(
  {name: ContextVar(name, default, None) for name, default in {
    "ALL2ALL": 0, "ALLOW_DEVICE_USAGE": 1, "ALLOW_TF32": 0, "ALLREDUCE_CAST": 1, "CACHELEVEL": 2, "CAPTURING": 1,
    "CCACHE": 1, "CHECK_OOB": 0, "DISABLE_FAST_IDIV": 1, "FLOAT16": 0, "FUSE_OPTIM": 0, "IGNORE_BEAM_CACHE": 0,
    "IMAGE": 0, "JIT_BATCH_SIZE": 32, "LRU": 1, "MAX_BUFFER_SIZE": 0, "MAX_KERNEL_BUFFERS": 0, "NOLOCALS": 0,
    "NO_MEMORY_PLANNER": 0, "PARALLEL": 0, "PCONTIG": 0, "RING": 1, "SCACHE": 1, "SPLIT_REDUCEOP": 1,
    "TC_OPT": 0, "TC_SELECT": -1, "TRACEMETA": 1, "TRANSCENDENTAL": 1, "USE_ATOMICS": 0, "USE_TC": 1,
    "VALIDATE_WITH_CPU": 0, "VIZ": 0, "WINO": 0,
  }.items()}
)  # fmt: skip


def watched() -> bool:
  """Whether kernels run one by one, to be timed or looked at, and tell the user's lines."""
  return DEBUG >= 2 or bool(PROFILE) or bool(CHECK_NAN)


# its track (a device or a thread of Python), name, from and to in seconds, what else there is to say
Event = tuple[str, str, float, float, dict[str, Any]]
MOST_EVENTS = 1 << 20  # more than a viewer opens
_events: list[Event] = []


def note(track: str, name: str, start: float, end: float, more: dict[str, Any]) -> None:
  """An event for the trace of PROFILE=1; what comes after MOST_EVENTS is left out."""
  if PROFILE and len(_events) < MOST_EVENTS:
    _events.append((track, name, start, end, more))


@contextlib.contextmanager
def span(name: str, **more: Any) -> Iterator[None]:
  """`with span("schedule"): ...`: how long a block takes, for the trace."""
  start = time.perf_counter()
  try:
    yield
  finally:
    note(f"Python {threading.current_thread().name}", name, start, time.perf_counter(), more)


def profile_marker(name: str, color: str = "gray") -> None:
  """A moment in the trace of PROFILE=1, by its name; `color` is accepted, and viewers choose their own."""
  now = time.perf_counter()
  note(f"Python {threading.current_thread().name}", name, now, now, {})


class Profiling(contextlib.ContextDecorator):
  """`with Profiling(): ...` prints where Python spends its time in the block, measured by cProfile: the first `frac` of
  all functions by `sort` (a key of pstats), times multiplied by `ts`; or, with `fn`, writes the profile to that file.
  """

  def __init__(
    self, enabled: bool = True, sort: str = "cumtime", frac: float = 0.2, fn: str | None = None, ts: float = 1
  ) -> None:
    self.enabled, self.sort, self.frac, self.fn, self.scale = enabled, sort, frac, fn, ts

  def __enter__(self) -> Self:
    self.profile = profiling.Profile()
    if self.enabled:
      self.profile.enable()
    return self

  def __exit__(self, *_: object) -> None:
    if not self.enabled:
      return
    self.profile.disable()
    if self.fn is not None:
      self.profile.dump_stats(self.fn)
      return
    stats = pstats.Stats(self.profile).strip_dirs().sort_stats(self.sort)
    shown = stats.fcn_list[: max(1, int(len(stats.fcn_list) * self.frac))]
    for file, line, name in shown:
      _, calls, own, total, _ = stats.stats[file, line, name]
      ms, whole = own * 1e3 * self.scale, total * 1e3 * self.scale
      print(f"n:{calls:8d}  own:{ms:9.2f} ms  with callees:{whole:9.2f} ms  {name} ({file}:{line})")


class Profile(Context):
  """`with Profile("step.json"): ...` writes a trace of what runs in the block (docs/profiling.md), by default to
  PROFILE_FILE."""

  def __init__(self, file: str | os.PathLike[str] | None = None) -> None:
    super().__init__(PROFILE=1, **({} if file is None else {"PROFILE_FILE": os.fspath(file)}))


def write_trace(events: Sequence[Event], file: str) -> None:
  """Events in the format that Perfetto (ui.perfetto.dev) and chrome://tracing open."""
  tracks = {track: i for i, track in enumerate(dict.fromkeys(e[0] for e in events), 1)}
  rows = [{"name": "thread_name", "ph": "M", "pid": 1, "tid": i, "args": {"name": t}} for t, i in tracks.items()]
  for track, name, start, end, more in events:
    at = {"pid": 1, "tid": tracks[track], "ts": start * 1e6, "dur": (end - start) * 1e6}
    rows.append({"name": name, "ph": "X", **at, "args": more})
  with atomic_write(file) as f:
    f.write(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}).encode())


atexit.register(lambda: write_trace(_events, PROFILE_FILE.value) if PROFILE else None)


class GlobalCounters:
  """What ran since `reset()`: floating-point operations, bytes of memory traffic, seconds (DEBUG>=2), kernels, the most
  bytes in use on each device; and the bytes in use now.
  """

  global_ops: ClassVar[int] = 0
  global_mem: ClassVar[int] = 0
  time_sum_s: ClassVar[float] = 0.0
  kernel_count: ClassVar[int] = 0
  mem_used: ClassVar[int] = 0
  mem_used_per_device: ClassVar[dict[str, int]] = {}  # by the device's canonical name; read it with Device.mem_used
  peak_on: ClassVar[dict[str, int]] = {}  # Device.mem_peak

  @staticmethod
  def reset() -> None:
    GlobalCounters.global_ops = GlobalCounters.global_mem = GlobalCounters.kernel_count = 0
    GlobalCounters.time_sum_s = 0.0
    GlobalCounters.peak_on = dict(GlobalCounters.mem_used_per_device)

  @staticmethod
  def allocated(device: str, nbytes: int) -> None:
    """Notes memory that buffers take on a device, or give back (negative)."""
    used = GlobalCounters.mem_used_per_device[device] = GlobalCounters.mem_used_per_device.get(device, 0) + nbytes
    if used > GlobalCounters.peak_on.get(device, 0):
      GlobalCounters.peak_on[device] = used


def cores() -> int:
  """The processor cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prod(x: Iterable[T]) -> T | int:
  """The product; 1 for nothing. Works for symbolic integers."""
  return functools.reduce(operator.mul, x, 1)


def ceildiv(num: Any, amt: Any) -> Any:
  """ceil(num / amt) for integers, symbolic ones included."""
  return -(-num // amt) if isinstance(num, int) else (num + (amt - 1)) // amt


def round_up(num: int, amt: int) -> int:
  """The least multiple of `amt` that is not below `num`."""
  return -(-num // amt) * amt


def dedup(x: Iterable[T]) -> list[T]:
  """Each element once, in the order of first appearance."""
  return list(dict.fromkeys(x))


def argfix(*x: Any) -> tuple[Any, ...]:
  """The arguments of `f(1, 2)` and of `f((1, 2))` alike."""
  if x and isinstance(x[0], (tuple, list)):
    if len(x) != 1:
      raise ValueError(f"give the numbers one by one or as one sequence, not {x}")
    return tuple(x[0])
  return x


def argsort(x: Sequence[Any]) -> Any:
  """The indices that sort x, as a tuple (of a list: a list)."""
  return type(x)(sorted(range(len(x)), key=x.__getitem__))  # type: ignore[call-arg]


def flatten(l: Iterable[Iterable[T]]) -> list[T]:
  return [x for inner in l for x in inner]


def all_int(t: Iterable[Any]) -> bool:
  return all(isinstance(x, int) for x in t)


def make_tuple(x: int | Sequence[int], cnt: int) -> tuple[int, ...]:
  return (x,) * cnt if isinstance(x, int) else tuple(x)


def get_child(obj: Any, key: str) -> Any:
  """`get_child(model, "layers.0.weight")`: through attributes, lists and dicts."""
  for part in key.split("."):
    obj = obj[int(part)] if part.isdigit() else obj[part] if isinstance(obj, dict) else getattr(obj, part)
  return obj


def children_of(obj: Any) -> Iterable[tuple[Any, Any]]:
  """What an object holds, by name: a dict's and a list's elements, an object's attributes."""
  if hasattr(obj, "_asdict"):
    return obj._asdict().items()  # type: ignore[no-any-return]
  if isinstance(obj, dict):
    return obj.items()
  if isinstance(obj, (list, tuple)):
    return enumerate(obj)
  return vars(obj).items() if hasattr(obj, "__dict__") and not isinstance(obj, type) else ()


def colored(st: str, color: str | None, background: bool = False) -> str:
  """`st` in a terminal color (upper case: bright), if standard output is a terminal and NO_COLOR is not set."""
  colors = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]
  if color is None or NO_COLOR or not sys.stdout.isatty():
    return st
  return f"\x1b[{30 + colors.index(color.lower()) + 60 * color.isupper() + 10 * background}m{st}\x1b[0m"


def size_to_str(s: float) -> str:
  """1536 -> '1.5 KB'."""
  for unit in ("B", "KB", "MB", "GB"):
    if abs(s) < 1000:
      return f"{s:.0f} {unit}" if unit == "B" else f"{s:.1f} {unit}"
    s /= 1000
  return f"{s:.1f} TB"


class Timing(contextlib.ContextDecorator):
  """Prints the milliseconds a block took after `prefix`, and what `on_exit` makes of the nanoseconds."""

  def __init__(self, prefix: str = "", on_exit: Callable[[int], str] | None = None, enabled: bool = True) -> None:
    self.prefix, self.on_exit, self.enabled, self.start, self.seconds = prefix, on_exit, enabled, 0.0, 0.0

  def __enter__(self) -> Timing:
    self.start = time.perf_counter()
    return self

  def __exit__(self, *_: object) -> None:
    self.seconds = time.perf_counter() - self.start
    if self.enabled:
      print(f"{self.prefix}{self.seconds * 1e3:6.2f} ms{self.on_exit(int(self.seconds * 1e9)) if self.on_exit else ''}")


class tqdm:
  """The progress bar of the package tqdm on standard error: `for x in tqdm(xs): ...`, or
  `with tqdm(total=n) as bar: ... bar.update(k)`. It is drawn at most `rate` times a second; where standard error is no
  terminal, it is a line for every tenth of the work (`logbar.py`).
  """

  def __new__(
    cls, iterable: Iterable[Any] | None = None, desc: str = "", disable: bool | None = False, unit: str = "it",
    unit_scale: Any = False, total: float | None = None, rate: int = 100, **kwargs: Any,
  ) -> Any:  # fmt: skip
    settings = {"disable": bool(disable), "unit": unit, "unit_scale": unit_scale, "total": total, **kwargs}
    if not getattr(kwargs.get("file") or sys.stderr, "isatty", bool)():
      return logs.LogBar(iterable, desc, **settings)
    return progress.tqdm(iterable, desc, mininterval=1 / rate, **settings)

  @staticmethod
  def write(s: str) -> None:
    """A line above the bar."""
    progress.tqdm.write(s, file=sys.stderr)


def trange(n: int, **kwargs: Any) -> Any:
  """`tqdm(range(n))`."""
  return tqdm(range(n), **kwargs)


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


_signals: Any = importlib.import_module("_signal")  # what `signal` wraps in fifty calls that make enums


class uninterrupted:
  """Within, the first Ctrl-C waits for the end of the block, so that what is begun there is also noted; the second
  comes at once. Only the main thread is ever interrupted."""

  __slots__ = ("before", "hits")
  before: Any  # the handler that was there
  hits: int

  def __enter__(self) -> None:
    self.hits, self.before = 0, _signals.getsignal(signal.SIGINT)
    if callable(self.before):  # neither ignored nor another library's
      try:
        _signals.signal(signal.SIGINT, self.note)
      except ValueError:  # in another thread
        self.before = None

  def note(self, number: int, frame: FrameType | None) -> None:
    self.hits += 1
    if self.hits > 1:
      self.before(number, frame)

  def __exit__(self, *_: object) -> None:
    if callable(self.before):
      _signals.signal(signal.SIGINT, self.before)
      if self.hits == 1:
        signal.raise_signal(signal.SIGINT)


def fetch(
  url: str, name: Path | str | None = None, subdir: str | None = None, gunzip: bool = False, allow_caching: bool = True,
  headers: Mapping[str, str] = {}, sha256: str | None = None, extract: bool = False,
) -> Path:  # fmt: skip
  """The file at `url`, downloaded once into the cache (`downloads/subdir/name`, named by the URL's hash if no name is
  given) and unpacked there: `gunzip` a .gz, `extract` a tar archive into a folder. A local path is that path.

  A file in the cache whose `sha256` differs is downloaded again.
  Raises: ConnectionError offline or where the server has no such file; RuntimeError where what comes is not the file.
  """
  if url.startswith(("/", ".")):
    return Path(url)
  file = str(name) if name else hashlib.md5(url.encode()).hexdigest() + ".gunzip" * gunzip
  path = Path(cache_dir, "downloads", subdir or "", file)  # an absolute name is taken as it is
  fits = path.is_file() and (sha256 is None or hashlib.sha256(path.read_bytes()).hexdigest() == sha256)
  if not fits or not allow_caching:
    _download(url, path, gunzip, headers, sha256)
  if not extract:
    return path
  folder = path.with_name(f"{path.name}.extract")
  if not folder.is_dir():
    with tempfile.TemporaryDirectory(dir=path.parent) as made, tarfile.open(path) as archive:
      archive.extractall(Path(made) / "all", filter="data")
      os.rename(Path(made) / "all", folder)
  return folder


def _download(url: str, path: Path, gunzip: bool, headers: Mapping[str, str], sha256: str | None) -> None:
  request = url_requests.Request(url, headers={"User-Agent": "tinygrad", **headers})
  try:
    with url_requests.urlopen(request, timeout=30) as answer, atomic_write(path) as out:
      total, digest = int(answer.headers.get("Content-Length") or 0) * (not gunzip), hashlib.sha256()
      source = gzip.GzipFile(fileobj=answer) if gunzip else answer
      with tqdm(desc=url, total=total or None, unit="B", unit_scale=True) as bar:
        while chunk := source.read(1 << 20):
          out.write(chunk)
          digest.update(chunk)
          bar.update(len(chunk))
      if total and out.tell() != total:
        raise RuntimeError(f"fetch {url}: the file is {total} bytes, and {out.tell()} came\n  fix: try again")
      if sha256 not in (None, digest.hexdigest()):
        raise RuntimeError(f"fetch {url}: its sha256 is {digest.hexdigest()}, not {sha256}\n  fix: check URL and hash")
  except url_errors.HTTPError as e:
    raise ConnectionError(f"fetch {url}: the server answers {e.code} {e.reason}\n  fix: check the URL") from e
  except (url_errors.URLError, TimeoutError) as e:
    fix = f"go online, or put the file at {path} yourself"
    raise ConnectionError(f"fetch {url}: no connection ({getattr(e, 'reason', e)})\n  fix: {fix}") from e


def user_frame() -> FrameType | None:
  """The innermost frame outside this package, and outside contextlib and what dataclasses generate: the user's line."""
  frame: FrameType | None = sys._getframe(1)
  while frame is not None and frame.f_globals.get("__file__", "").startswith((PACKAGE, contextlib.__file__)):
    frame = frame.f_back
  return None if frame is not None and frame.f_globals.get("__name__") == "runpy" else frame  # which runs this package


def source_line(filename: str, number: int) -> str:
  """`file.py:41: y = h + skip`, for error messages."""
  code = linecache.getline(filename, number).strip()
  return f"{os.path.basename(filename)}:{number}" + (f": {code}" if code else "")


def user_line() -> str:
  """`source_line` of the user's line."""
  frame = user_frame()
  return "<unknown>" if frame is None else source_line(frame.f_code.co_filename, frame.f_lineno)


def partition(itr: Iterable[T], fxn: Callable[[T], bool]) -> tuple[list[T], list[T]]:
  """(those that fulfil the condition, the others)."""
  yes, no = list[T](), list[T]()
  for x in itr:
    (yes if fxn(x) else no).append(x)
  return yes, no
