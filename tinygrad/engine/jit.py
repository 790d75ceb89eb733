"""`TinyJit`: a step is captured once and then replayed as prepared lists of calls, with other inputs and variable
values in their places.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

from tinygrad.engine.realize import (
  JitError,
  Run,
  Stretch,
  Work,
  canonical,
  execute,
  pointers,
  prepare,
  recorders,
  work_of,
)
from tinygrad.helpers import DEBUG, JIT
from tinygrad.uop.ops import Ops, UOp, buffer_of
from tinygrad.uop.rewrite import substitute

A = ParamSpec("A")
R = TypeVar("R")
KEPT_STATES = 256  # kinds of arguments that one function remembers


def is_tensor(x: Any) -> bool:
  """A Tensor, which this module sits below."""
  return isinstance(getattr(x, "uop", None), UOp) and hasattr(x, "realize")


def leaves(x: Any, found: list[Any]) -> Any:
  """Collects the Tensors and UOps in nested tuples, lists and dicts; returns what else there is, as a hashable part
  of the key.
  """
  if is_tensor(x) or isinstance(x, UOp):
    found.append(x)
    return type(x)
  if isinstance(x, (list, tuple)):
    return type(x), tuple(leaves(y, found) for y in x)
  if isinstance(x, dict):
    return dict, tuple((k, leaves(v, found)) for k, v in x.items())
  try:
    hash(x)
  except TypeError:
    return type(x), id(x)
  return type(x), x


def rebuild(x: Any, f: Callable[[Any], Any]) -> Any:
  """`x` with each Tensor replaced by f of it."""
  if is_tensor(x):
    return f(x)
  if isinstance(x, (list, tuple)) and not hasattr(x, "_fields"):
    return type(x)(rebuild(y, f) for y in x)
  if isinstance(x, dict):
    return {k: rebuild(v, f) for k, v in x.items()}
  return x


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
  """A call's inputs: the graph of all of them with buffers numbered and variables unbound, their buffers, and the
  variables' values.
  """

  key: tuple[Any, ...]
  buffers: list[UOp]
  variables: dict[str, int]


def read_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
  """Realises what is lazy. The key holds shapes, dtypes, placements with their device order, views, variables, and
  which arguments share a buffer.
  """
  found: list[Any] = []
  rest = leaves((args, tuple(sorted(kwargs.items()))), found)
  tensors = [x for x in found if is_tensor(x)]
  if tensors:
    tensors[0].realize(*tensors[1:])
  uops = [x.uop if is_tensor(x) else x for x in found]
  sink, buffers, variables = canonical(UOp.sink(*uops))
  return Arguments((sink, rest), buffers, variables)


@dataclass(slots=True, eq=False)
class Captured:
  """A step that can be replayed: its work, and where the inputs and variables stand in it."""

  work: list[Work]
  inputs: list[UOp]
  variables: dict[str, int]
  result: Any
  interpreted: list[Run] = field(default_factory=list)
  stretches: list[Stretch] = field(default_factory=list)
  memory: dict[int, list[tuple[Any, Work, int, int]]] = field(
    default_factory=dict
  )  # input -> (call, work, argument, device)
  values: dict[str, list[tuple[Any, int]]] = field(default_factory=dict)  # variable -> (call, its number)

  def __post_init__(self) -> None:
    self.find_places()

  def find_places(self) -> None:
    """Notes every pointer and variable that a replay may have to change."""
    self.stretches = prepare(self.work)
    number = {id(buffer_of(u)): i for i, u in enumerate(self.inputs)}
    self.memory, self.values = {}, {}
    for stretch in self.stretches:
      for w, d, call in stretch.bound:
        for i, m in enumerate(w.memory):
          if id(m) in number:
            self.memory.setdefault(number[id(m)], []).append((call, w, i, d))
        for i, name in enumerate(w.item.variables):
          if name in self.variables:
            self.values.setdefault(name, []).append((call, i))

  def replay(self, inputs: Sequence[UOp], variables: dict[str, int]) -> None:
    """Runs the step on other inputs of the same key. A call changes only when the last replay is done."""
    changed = {id(buffer_of(old)): buffer_of(new) for old, new in zip(self.inputs, inputs) if old is not new}
    moved = [i for i, (old, new) in enumerate(zip(self.inputs, inputs)) if old is not new]
    given = [name for name, value in variables.items() if self.variables[name] != value]
    if moved or given:
      for stretch in self.stretches:
        for backend in stretch.backends:
          backend.synchronize()
      for w in self.work:
        w.memory[:] = [changed.get(id(m), m) for m in w.memory]
        w.variables.update((n, variables[n]) for n in given if n in w.variables)
      for run in self.interpreted:
        run.memory[:] = [changed.get(id(m), m) for m in run.memory]
        run.variables.update((n, variables[n]) for n in given if n in run.variables)
      for i in moved:
        for call, w, argument, d in self.memory.get(i, ()):
          call.set_buffer(argument, pointers(w, argument, d))
      for name in given:
        for call, k in self.values.get(name, ()):
          call.set_variable(k, variables[name])
      self.inputs, self.variables = list(inputs), dict(variables)
    for run in self.interpreted:
      execute(run)
    for stretch in self.stretches:
      stretch.launch()


@dataclass(frozen=True, slots=True, eq=False)
class Output:
  """A Tensor of the result: `form` over numbered buffers and unbound variables; `buffers[i]` is a BUFFER, or the
  number of an input.
  """

  form: UOp
  buffers: tuple[UOp | int, ...]

  @staticmethod
  def of(u: UOp, arguments: Arguments) -> Output:
    sink, buffers, _ = canonical(UOp.sink(u))
    return Output(sink.src[0], tuple(arguments.buffers.index(b) if b in arguments.buffers else b for b in buffers))

  def uop(self, captured: Captured) -> UOp:
    """What the last replay has made: an input that was passed through, and a variable in the shape, are this call's."""
    actual = [captured.inputs[b] if isinstance(b, int) else b for b in self.buffers]
    mapping = {u: actual[-1 - u.arg.uid] for u in self.form.toposort() if u.op is Ops.BUFFER}
    mapping |= {
      v: v.bind(captured.variables[v.arg[0]]) for v in self.form.variables() if v.arg[0] in captured.variables
    }
    return substitute(self.form, mapping)


@dataclass(slots=True, eq=False)
class State:
  """What is known of one key: how often it was called, and the capture."""

  count: int = 0
  captured: Captured | None = None
  outputs: list[Output] = field(default_factory=list)  # of the Tensors in the result


class TinyJit(Generic[A, R]):
  """`@TinyJit` on a function of Tensors: the first call with some kind of arguments runs it, the second captures what
  it computes, later ones replay that.

  Inputs are the Tensors and bound Variables in the arguments (nested lists, tuples, dicts too); they are realised
  first. All other arguments, shapes, dtypes, placements and their device order, and which arguments share memory are
  part of the key: other kinds of arguments are captured on their own. The returned Tensors' memory is written again
  by the next replay; `.clone()` what has to last. Nothing but computation is replayed: Python side effects happen
  twice. `JIT=0` switches it off.
  Raises: JitError if a value is read inside (`.item()`, `.numpy()`), or if the function computes nothing.
  """

  def __init__(self, fxn: Callable[A, R]) -> None:
    self.fxn = fxn
    self.reset()
    functools.update_wrapper(self, fxn, updated=())

  def reset(self) -> None:
    """Forgets every capture."""
    self.states: dict[tuple[Any, ...], State] = {}
    self.last: State | None = None

  @property
  def cnt(self) -> int:
    """How often the kind of arguments of the last call has been seen."""
    return 0 if self.last is None else self.last.count

  @property
  def captured(self) -> Captured | None:
    """What the kind of arguments of the last call replays; None before its second call."""
    return None if self.last is None else self.last.captured

  def __get__(self, instance: Any, owner: Any = None) -> Any:
    return self if instance is None else functools.partial(self.__call__, instance)

  def __call__(self, *args: A.args, **kwargs: A.kwargs) -> R:
    if not JIT or recorders:  # inside another capture it is a part of that one
      return self.fxn(*args, **kwargs)
    arguments = read_arguments(args, kwargs)
    if arguments.key not in self.states and len(self.states) >= KEPT_STATES:
      del self.states[next(iter(self.states))]
    state = self.last = self.states.setdefault(arguments.key, State())
    state.count += 1
    if state.count == 1:
      return self.realized(self.fxn(*args, **kwargs))
    if state.captured is None:
      return self.capture(state, arguments, lambda: self.fxn(*args, **kwargs))
    state.captured.replay(arguments.buffers, arguments.variables)
    return self.result(state)

  def realized(self, result: R) -> R:
    found: list[Any] = []
    leaves(result, found)
    if tensors := [x for x in found if is_tensor(x)]:
      tensors[0].realize(*tensors[1:])
    return result

  def capture(self, state: State, arguments: Arguments, call: Callable[[], R]) -> R:
    """Runs the function once more, and notes every run of the engine."""
    runs: list[Run] = []
    recorders.append(runs.append)
    try:
      result = self.realized(call())
    finally:
      recorders.pop()
    if not runs:
      name = getattr(self.fxn, "__name__", type(self.fxn).__name__)
      raise JitError(
        f"{name}: nothing was computed, so there is nothing to replay\n"
        "  fix: return the Tensor that it computes, or call .realize() on it inside"
      )
    for run in runs:
      for name, value in run.variables.items():
        if arguments.variables.get(name, value) != value:
          raise JitError(
            f"variable {name} is {arguments.variables[name]} in the arguments and {value} inside the function\n"
            "  fix: use the argument itself, or another name"
          )
    work = [w for run in runs if run.plan.local is None for w in work_of(run)]
    interpreted = [run for run in runs if run.plan.local is not None]
    state.captured = Captured(work, list(arguments.buffers), dict(arguments.variables), result, interpreted)
    found: list[Any] = []
    leaves(result, found)
    state.outputs = [Output.of(x.uop, arguments) for x in found if is_tensor(x)]
    if DEBUG >= 1:
      print(f"JIT captured {len(work)} kernels and copies, {len(arguments.buffers)} inputs")
    return result

  def result(self, state: State) -> R:
    """The captured result with fresh Tensors over its memory."""
    captured = state.captured
    assert captured is not None
    outputs = iter(state.outputs)
    result: R = rebuild(captured.result, lambda t: type(t)(next(outputs).uop(captured)))
    return result
