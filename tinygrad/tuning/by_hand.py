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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tinygrad.helpers import KERNEL_SCHEDULES, Context, LazyModule

if TYPE_CHECKING:
  from tinygrad.codegen import lower, nests, primitives
  from tinygrad.device import Target
else:  # a script that only imports the package does not wait for the compiler
  lower, primitives = (LazyModule(f"tinygrad.codegen.{name}") for name in ("lower", "primitives"))

PRIMITIVES = (
  "split",
  "reorder",
  "unroll",
  "vectorize",
  "stage",
  "accumulate",
  "pipeline",
  "narrow",
  "tensorize",
  "launch",
  "bind",
  "within",
  "write_out",
)


class Given(NamedTuple):
  """The steps for one nest of the kernels of a name."""

  kernel: str
  nest: str
  steps: tuple[tuple[str, tuple[Any, ...]], ...]  # primitives with their arguments


class Recorder:
  """What a schedule's function is called with: notes the steps that it is told, which are checked when a kernel is
  made."""

  def __init__(self) -> None:
    self.steps: list[tuple[str, tuple[Any, ...]]] = []

  def __getattr__(self, name: str) -> Callable[..., None]:
    if name not in PRIMITIVES:
      raise AttributeError(f"a nest has no primitive {name!r}\n  fix: one of {', '.join(PRIMITIVES)}")
    return lambda *args: self.steps.append((name, args))


class KernelSchedule(Context):
  """`with` it, kernels of that name run by these steps."""

  def __init__(self, given: Given) -> None:
    super().__init__(KERNEL_SCHEDULES=())
    self.given = given

  def __enter__(self) -> KernelSchedule:
    mine = self.given.kernel, self.given.nest
    others = tuple(g for g in KERNEL_SCHEDULES.value if (g.kernel, g.nest) != mine)
    self.settings = {"KERNEL_SCHEDULES": (*others, self.given)}
    super().__enter__()
    return self


def kernel_schedule(kernel: str, nest: str = "0") -> Callable[[Callable[[Any], None]], KernelSchedule]:
  """Makes of a function over a nest a context in which kernels named `kernel` run their nest by its steps.

  Of a kernel of several nests, and of memory that is filled (`0.panel1`), `nest` says which, as `DEBUG=3` prints it;
  the others are computed as before. What steps compute is what the kernel computes: sums may add up in another order.

  Raises, where a kernel of this name is made: IllegalStep for a step that cannot be taken, with kernel, nest and step.

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

  def made(function: Callable[[Any], None]) -> KernelSchedule:
    function(recorder := Recorder())
    return KernelSchedule(Given(kernel, nest, tuple(recorder.steps)))

  return made


def given(kernel: str, target: Target) -> nests.Heuristic | None:
  """The heuristic with the steps that users have given for nests of this kernel; None if they have not."""
  mine = {g.nest: g.steps for g in KERNEL_SCHEDULES.value if g.kernel == kernel}

  def schedule(nest: nests.NestSchedule) -> None:
    if nest.label not in mine:
      return lower.heuristic_of(target)(nest)
    where = f"kernel {kernel}, nest {nest.label}"
    nest.analyse()
    for name, args in mine[nest.label]:
      try:
        if name in ("launch", "bind", "within") and not target.threads:
          raise primitives.IllegalStep(f"{target.name} has no grid of threads", "leave it out")
        getattr(nest, name)(*args)
      except (primitives.IllegalStep, TypeError) as e:
        rule, _, fix = str(e).partition("\n  fix: ")
        step = f"{where}, {name}({', '.join(map(str, args))})"
        raise primitives.IllegalStep(f"{step}: {rule}", fix or "DEBUG=3 prints the steps of kernels") from e
    if nest.grid and not any(name == "within" for name, _ in mine[nest.label]):
      rule = "the steps do not say by which of the grid the stores are computed"
      raise primitives.IllegalStep(f"{where}: {rule}", "end with nest.within('groups', 'threads')")

  return schedule if mine else None
