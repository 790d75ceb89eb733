"""Settings: environment variables with a default and a scoped override."""

from __future__ import annotations

import contextlib
import difflib
import operator
import os
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Self, TypeVar

T = TypeVar("T")


def getenv(key: str, default: Any = 0, least: float | None = None) -> Any:
  """What the environment says of `key` now, with the type of `default`. ValueError for what is none of that type, and
  for a number below `least`.

  Examples:
    >>> getenv("NOT_SET", 3)
    3
  """
  value = os.environ.get(key)
  try:
    found = default if value is None else type(default)(value)
  except ValueError:
    found = None
  if found is None or (least is not None and not found >= least):
    kind = type(default).__name__ + ("" if least is None else f" of {least} or more")
    raise ValueError(f"{key}={value!r} in the environment is no {kind}\n  fix: export {key}={default}, or unset it")
  return found


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
  __slots__ = ("check", "default", "key", "least", "shapes", "value")

  def __init__(self, key: str, default_value: Any, shapes: str | None = "graph", least: float | None = None) -> None:
    if key in ContextVar.all:
      raise ValueError(f"context variable {key} exists already\n  fix: another name, or ContextVar.all[{key!r}]")
    assert shapes is None or shapes in STAGES, shapes
    if isinstance(default_value, tuple) and key in os.environ:
      raise ValueError(f"{key} is no word that the environment can say\n  fix: unset {key}; `with Context({key}=…)`")
    self.key, self.shapes, self.default, self.least = key, shapes, default_value, least
    self.check: Callable[[Any], object] = self.of_type
    self.value = getenv(key, default_value)
    ContextVar.all[key] = self

  def of_type(self, value: Any) -> None:
    """ValueError for what is no number, where the default is one, and for one below `least`."""
    if not isinstance(self.default, (int, float)):
      return
    if not isinstance(value, (int, float)) or (self.least is not None and not value >= self.least):
      kind = "number" if self.least is None else f"number of {self.least} or more"
      raise ValueError(f"{self.key}={value!r} is no {kind}\n  fix: {self.key}={self.default}, or leave it out")

  def refine(self, check: Callable[[Any], object]) -> None:
    """`check` raises for a value that this variable cannot have; where it is set, and now, if it has one."""
    check(self.value)
    self.check = check

  def __setattr__(self, name: str, value: Any) -> None:
    if name == "value":
      self.check(value)
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
  """`with Context(DEBUG=2): ...` sets context variables for a block; what is none raises, name or value. With
  PROFILE=1, the block's trace is written when it ends.

  Examples:
    >>> with Context(RESHARD=0):
    ...   y = Tensor([1.0]) + 1
    >>> y.item()
    2.0
  """

  # by setting: what its value in a block begins, and gives what is to be done at the block's end
  begins: ClassVar[dict[str, Callable[[Any], Callable[[], None]]]] = {}

  def __init__(self, **settings: Any) -> None:
    unknown = [k for k in settings if k not in ContextVar.all]
    if unknown:
      near = difflib.get_close_matches(unknown[0].upper(), ContextVar.all, 1) or ["DEBUG"]
      known = ", ".join(sorted(ContextVar.all))
      raise ValueError(f"unknown context variable {unknown[0]!r}; known: {known}\n  fix: {near[0]}")
    for k, v in settings.items():
      ContextVar.all[k].check(v)
    self.settings = settings
    self.saved: list[tuple[dict[str, Any], list[Callable[[], None]]]] = []

  def __enter__(self) -> Self:
    before = {k: ContextVar.all[k].value for k in self.settings}
    self.saved.append((before, [Context.begins[k](v) for k, v in self.settings.items() if k in Context.begins]))
    for k, v in self.settings.items():
      ContextVar.all[k].value = v
    return self

  def __exit__(self, *_: object) -> None:
    before, ends = self.saved.pop()
    try:
      for end in ends:
        end()
    finally:
      for k, v in before.items():
        ContextVar.all[k].value = v


DEBUG = ContextVar("DEBUG", 0, None)
SPEC = ContextVar("SPEC", 1, None)
DEFER = ContextVar("DEFER", 1, "placement")  # 1: values may stay partial; 0: they are reduced where they arise
MIXED = ContextVar("MIXED", 0, None)  # 1: a value may be sharded over devices of several kinds
RESHARD = ContextVar("RESHARD", 1, "placement")  # 0: an implied move is an error
# who gets a contested axis: cost (the fewest bytes), basic, aggressive
STRATEGY = ContextVar("STRATEGY", "cost", "placement")
JIT = ContextVar("JIT", 1, None)
ALLOW_TF32 = ContextVar("ALLOW_TF32", 0, "code")  # 1: products of float32 by cores that round operands to 11 bits
NOOPT = ContextVar("NOOPT", 0, "code")
TILE_AND_FUSE = ContextVar("TILE_AND_FUSE", 1, "schedule")  # kernels that work on the same rows run as one
# plans of a kernel that a search goes on from at each step; 0: the heuristic's is taken
BEAM = ContextVar("BEAM", 0, "code")
KERNEL_SCHEDULES = ContextVar("KERNEL_SCHEDULES", (), "code")  # users' own steps (tuning/by_hand.py)
QUICK_CODE = ContextVar("QUICK_CODE", 1, None)  # 1: LLVM compiles small work in a hurry at first, to the same bits
PLAN_CACHE = ContextVar("PLAN_CACHE", 1, None)  # 1: plans are kept on disk, too
BEAM_SECONDS = ContextVar("BEAM_SECONDS", 10.0, "code", 0)  # that the search for one kernel may take
# of one device for one kernel; 0: the cores over the devices at work
CPU_THREADS = ContextVar("CPU_THREADS", 0, "schedule", 0)
SIM = ContextVar("SIM", "", "code")  # the cluster that simulated devices stand for (docs/simulation.md)
TRAINING = ContextVar("TRAINING", 0, "graph")
NO_GRAD = ContextVar("NO_GRAD", 0, "graph")  # 1: no gradient flows through what is computed
CHECK_NAN = ContextVar("CHECK_NAN", 0, "schedule")
PROFILE = ContextVar("PROFILE", 0, None)
PROFILE_FILE = ContextVar("PROFILE_FILE", "trace.json", None)
# 1: what is computed is recorded, and a page shows it (tinygrad/viz/); of "code", for what is compiled is shown as well
VIZ = ContextVar("VIZ", 0, "code")
VIZ_FILE = ContextVar("VIZ_FILE", "viz.html", None)
DEFAULT_FLOAT = ContextVar("DEFAULT_FLOAT", "float32", "graph")
DEFAULT_INT = ContextVar("DEFAULT_INT", "int32", "graph")
DEV = ContextVar("DEV", "", "graph")  # where new tensors go (Device.DEFAULT)
NO_COLOR = ContextVar("NO_COLOR", "", None)  # anything but nothing (no-color.org)
REDUCE_DTYPE = ContextVar("REDUCE_DTYPE", "float32", "graph")  # what partial sums of half precision are carried in

# Settings of tinygrad's own compiler and runtime that scripts hold: they can be set and read, and change nothing here
# (docs/compatibility.md says what takes their place).
ACCEPTED = {
  "ALL2ALL": 0, "ALLOW_DEVICE_USAGE": 1, "ALLREDUCE_CAST": 1, "CACHELEVEL": 2, "CAPTURING": 1,
  "CCACHE": 1, "CHECK_OOB": 0, "DISABLE_FAST_IDIV": 1, "FLOAT16": 0, "FUSE_OPTIM": 0, "IGNORE_BEAM_CACHE": 0,
  "IMAGE": 0, "JIT_BATCH_SIZE": 32, "LRU": 1, "MAX_BUFFER_SIZE": 0, "MAX_KERNEL_BUFFERS": 0, "NOLOCALS": 0,
  "NO_MEMORY_PLANNER": 0, "PARALLEL": 0, "PCONTIG": 0, "RING": 1, "SCACHE": 1, "SPLIT_REDUCEOP": 1,
  "TC_OPT": 0, "TC_SELECT": -1, "TRACEMETA": 1, "TRANSCENDENTAL": 1, "USE_ATOMICS": 0, "USE_TC": 1,
  "VALIDATE_WITH_CPU": 0, "WINO": 0,
}  # fmt: skip
for _name, _default in ACCEPTED.items():
  ContextVar(_name, _default, None)


def watched() -> bool:
  """Whether kernels tell the user's lines: they are timed or looked at, or are simulated."""
  return DEBUG >= 2 or bool(PROFILE) or bool(CHECK_NAN) or bool(SIM) or bool(VIZ)
