"""`@kernel_schedule`: a user's steps in the place of those that the heuristic takes for a kernel.

    @kernel_schedule("r_64_64_64")
    def tiled(nest):
      nest.split("i1", 16)
      nest.vectorize("i1.i")
      nest.split("i0", 4)
      nest.unroll("i0.i")

    with tiled:
      (a @ b).realize()

`DEBUG=2` prints names of kernels, `DEBUG=3` each kernel's nests with the steps that were taken. Steps are data: noted
once, a setting (a capture under one is not replayed under another), kept with plans on disk.
"""

from __future__ import annotations

import itertools
import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from tinygrad.helpers import KERNEL_SCHEDULES, Context, LazyModule, user_line

if TYPE_CHECKING:
  from tinygrad.codegen import lower, nests, primitives
  from tinygrad.device import Target
else:  # a script that only imports the package does not wait for the compiler
  lower, nests, primitives = (LazyModule(f"tinygrad.codegen.{name}") for name in ("lower", "nests", "primitives"))

# by the kernel that steps are for, the names of those that have been planned under such steps
_planned: dict[str, dict[str, None]] = {}
_TOLD = 16  # of them at least
Tail = Literal["peel", "mask", "clamp", "overlap"]


class Given(NamedTuple):
  """The steps for one nest of the kernels of a name."""

  kernel: str
  nest: str
  steps: tuple[tuple[str, tuple[Any, ...]], ...]  # primitives with their arguments


class Recorder:
  """What a schedule's function is called with: each method is a primitive, noted with its arguments, which are checked
  here as far as no kernel is needed for it. Whether a step is legal is seen when a kernel is made.

  Loops are named as `DEBUG=3` prints them: i0, i1, … are parallel, from outside, k0, k1, … summed; a split loop x has
  blocks x.o, what is within one x.i, and the rest x.t.

  Raises: TypeError, ValueError for what is no name or number; AttributeError for what is no primitive."""

  def __init__(self) -> None:
    self.steps: list[tuple[str, tuple[Any, ...]]] = []

  def __getattr__(self, name: str) -> Any:
    known = (method for method in vars(Recorder) if not method.startswith("_"))
    raise AttributeError(f"a nest has no primitive {name!r}\n  fix: one of {', '.join(known)}")

  def split(self, name: str, size: int, tail: Tail = "peel") -> None:
    """A loop as one over blocks of `size` iterations, and one within a block. What becomes of a last one that is not
    whole: a loop of its own (peel), or one whose other iterations do nothing (mask), or what the last does, without
    storing it (clamp), or one that begins earlier (overlap)."""
    if tail not in get_args(Tail):
      raise ValueError(f"split: a tail of {tail!r}\n  fix: one of {', '.join(get_args(Tail))}")
    self._note("split", _loop(name), _count(size), tail)

  def join(self, *names: str) -> None:
    """Parallel loops, or those of one reduction, as one by the name of the last, which is its lowest digit."""
    self._note("join", *map(_loop, names))

  def unroll(self, name: str) -> None:
    """Iterations side by side in registers, of a sum each with an accumulator of its own."""
    self._note("unroll", _loop(name))

  def vectorize(self, name: str) -> None:
    """Iterations as the lanes of a vector."""
    self._note("vectorize", _loop(name))

  def chain(self, name: str) -> None:
    """Iterations of a sum one after the other, without a loop."""
    self._note("chain", _loop(name))

  def reorder(self, *names: str) -> None:
    """Loops nested in this order, the outermost first; names that there are none of are passed over."""
    self._note("reorder", *map(_loop, names))

  def stage(self, *panels: Sequence[Any]) -> None:
    """Operands in scratch memory, filled together. Of each `(operand, outer, inner, row, order, vector, tile)`, or the
    first two or more of these: its number, the loops that are its dims, those of a row, and a row's length (0: as many
    as there are); on a grid the loops in which threads copy it, neighbours that are aligned, whether cores read it."""
    self._note("stage", *map(_panel, panels))

  def accumulate(self, name: str, size: int, *dims: str) -> None:
    """A reduction in blocks of `size` iterations; what they add up to lies in memory with `dims`."""
    self._note("accumulate", _loop(name), _count(size), *map(_loop, dims))

  def pipeline(self, stages: int, reading: int = 1) -> None:
    """What is staged from now on is filled `stages` - `reading` blocks ahead."""
    self._note("pipeline", _count(stages), _count(reading))

  def narrow(self, core: str) -> None:
    """Operands are staged as narrow as a matrix core takes them."""
    self._note("narrow", core)

  def tensorize(self, core: str, m: str, n: str, k: str) -> None:
    """The sums over loop k by a matrix core, whose lanes share out rows m and columns n; they are `m`.lane then."""
    self._note("tensorize", core, *map(_loop, (m, n, k)))

  def launch(self, threads: int, lanes: int = 1, groups: int = 1) -> None:
    """A grid's group has `threads` times `lanes` threads; so many groups are a cluster."""
    self._note("launch", *map(_count, (threads, lanes, groups)))

  def bind(self, to: str, *names: str) -> None:
    """Loops to a grid's groups, threads, lanes or team."""
    self._note("bind", to, *map(_loop, names))

  def within(self, *grid: str) -> None:
    """By which of the grid the stores are computed; the last step of a nest on a grid."""
    self._note("within", *grid)

  def write_out(self) -> None:
    """Short sums as chains of operations."""
    self._note("write_out")

  def _note(self, name: str, *args: Any) -> None:
    self.steps.append((name, args))


def _loop(name: Any) -> str:
  if not isinstance(name, str):
    raise TypeError(f"{name!r} is no loop's name\n  fix: one as DEBUG=3 prints it, such as 'i0'")
  return name


def _count(n: Any, least: int = 1) -> int:
  if not isinstance(n, numbers.Integral) or n < least:
    raise ValueError(f"{n!r} is no number of iterations, threads or elements\n  fix: an integer of at least {least}")
  return int(n)


def _panel(spec: Any) -> tuple[Any, ...]:
  """As `codegen.nests.Staged`."""
  shown = "an operand is staged as (number, loops of its dims, loops of a row, its length, …)"
  if isinstance(spec, str) or not isinstance(spec, Sequence) or not 2 <= len(spec) <= 7:
    raise TypeError(f"{shown}, not {spec!r}\n  fix: (0, ('k0', 'i1'))")
  defaults: list[Any] = [(), 0, (), 1, False]
  operand, outer, inner, row, order, vector, tile = [*spec, *defaults[len(spec) - 2 :]]
  for some in itertools.chain((outer, inner, order), order if isinstance(order, Sequence) else ()):
    if isinstance(some, str) or not isinstance(some, Sequence):
      raise TypeError(f"{shown}, not with {some!r} where several are named\n  fix: a tuple of names")
  dims, elements, *threads = (tuple(map(_loop, some)) for some in (outer, inner, *order))
  return _count(operand, 0), dims, elements, _count(row, 0), tuple(threads), _count(vector), bool(tile)


def note_planned(names: Sequence[str]) -> None:
  """Kernels that are about to run, or to be captured, under the schedules that are set."""
  for g in KERNEL_SCHEDULES.value:
    seen = _planned.setdefault(g.kernel, {})
    seen.update(dict.fromkeys(n for n in names if n == g.kernel or len(seen) < _TOLD))


class KernelSchedule(Context):
  """`with` it, kernels of that name run by these steps. A warning at its end where there has been none."""

  def __init__(self, given: Given) -> None:
    super().__init__(KERNEL_SCHEDULES=())
    self.given = given

  def __enter__(self) -> KernelSchedule:
    mine = self.given.kernel, self.given.nest
    others = tuple(g for g in KERNEL_SCHEDULES.value if (g.kernel, g.nest) != mine)
    self.settings = {"KERNEL_SCHEDULES": (*others, self.given)}
    super().__enter__()
    return self

  def __exit__(self, *raised: Any) -> None:
    super().__exit__(*raised)
    names = _planned.get(self.given.kernel, ())
    if raised[0] is None and self.given.kernel not in names:
      ran = f"of those that did run, {', '.join(names)}" if names else "realize() within it what is to be computed"
      rule = f"kernel_schedule: no kernel named {self.given.kernel} has run in this block"
      warnings.warn(f"{rule}\n    in {user_line()}\n  fix: {ran}", stacklevel=2)


def kernel_schedule(kernel: str, nest: str = "0") -> Callable[[Callable[[Recorder], None]], KernelSchedule]:
  """Makes of a function over a nest a context in which kernels named `kernel` run their nest by its steps.

  Of a kernel of several nests, and of memory that is filled (`0.panel1`), `nest` says which, as `DEBUG=3` prints it;
  the others are computed as before. What steps compute is what the kernel computes: sums may add up in another order.
  The steps that `DEBUG=3` prints are those of a function that makes the same kernel. A block in which no kernel of this
  name runs ends with a warning.

  Raises: TypeError for what is no name. Where a kernel of this name is made: IllegalStep for a nest that it does not
  have, and for a step that cannot be taken, with kernel, nest and step.

  Examples:
    >>> @kernel_schedule("r_64_64_64")
    ... def tiled(nest):
    ...   nest.split("i1", 16)
    ...   nest.vectorize("i1.i")
    ...
    >>> a = Tensor.ones(64, 64).contiguous().realize()
    >>> with tiled:
    ...   y = (a @ a).realize()
    >>> y.sum().item()
    262144.0
  """

  if not (isinstance(kernel, str) and isinstance(nest, str) and kernel and nest):
    raise TypeError(f"kernel {kernel!r}, nest {nest!r}: both are names\n  fix: as DEBUG=3 prints them: 'r_64_64', '0'")

  def made(function: Callable[[Recorder], None]) -> KernelSchedule:
    function(recorder := Recorder())
    return KernelSchedule(Given(kernel, nest, tuple(recorder.steps)))

  return made


class GivenSteps:
  """The heuristic with the steps that users have given for nests of one kernel."""

  def __init__(self, kernel: str, target: Target) -> None:
    self.kernel, self.target = kernel, target
    self.steps = {g.nest: g.steps for g in KERNEL_SCHEDULES.value if g.kernel == kernel}
    self.seen: list[str] = []  # labels of nests

  def __call__(self, nest: nests.NestSchedule) -> None:
    self.seen.append(nest.label)
    if nest.label not in self.steps:
      return lower.heuristic_of(self.target)(nest)
    steps, where = self.steps[nest.label], f"kernel {self.kernel}, nest {nest.label}"
    nest.analyse()
    for name, args in steps:
      try:
        if name in ("launch", "bind", "within") and not self.target.threads:
          raise primitives.IllegalStep(f"{self.target.name} has no grid of threads", "leave it out")
        getattr(nest, name)(*args)
      except primitives.IllegalStep as e:
        rule, _, fix = str(e).partition("\n  fix: ")
        raise primitives.IllegalStep(f"{where}, {nests.ScheduleStep(name, args)}: {rule}", fix) from e
    if nest.grid and not any(name == "within" for name, _ in steps):
      rule = "the steps do not say by which of the grid the stores are computed"
      raise primitives.IllegalStep(f"{where}: {rule}", "end with nest.within('groups', 'threads')")

  def check(self) -> None:
    """Raises: IllegalStep where there are steps for a nest that the kernel, now that it is made, does not have."""
    if missing := sorted(self.steps.keys() - self.seen):
      fix = f"one of {', '.join(dict.fromkeys(self.seen))}"
      raise primitives.IllegalStep(f"kernel {self.kernel}: it has no nest {', '.join(missing)}", fix)


def given(kernel: str, target: Target) -> GivenSteps | None:
  """The steps for a kernel; None if users have given none."""
  return GivenSteps(kernel, target) if any(g.kernel == kernel for g in KERNEL_SCHEDULES.value) else None
