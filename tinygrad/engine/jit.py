"""`TinyJit`: a step is captured once and then replayed as prepared lists of calls, with other inputs and variable
values in their places. `function`: a part of a graph that depends on its arguments alone.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

from tinygrad.device import Buffer
from tinygrad.dtype import dtypes
from tinygrad.engine import realize as engine
from tinygrad.engine.realize import JitError, Run, Stretch, Work, canonical, recorders
from tinygrad.helpers import DEBUG, DEFAULT_FLOAT, DEFAULT_INT, DEV, JIT, TRAINING
from tinygrad.uop.ops import Ops, UOp, buffer_of
from tinygrad.uop.rewrite import substitute

A = ParamSpec("A")
R = TypeVar("R")
KEPT_STATES = 256  # kinds of arguments that one function remembers


def is_tensor(x: Any) -> bool:
  """A Tensor, which this module sits below."""
  return isinstance(getattr(x, "uop", None), UOp) and hasattr(x, "realize")


@dataclass(frozen=True, slots=True, eq=False)
class Same:
  """An object that cannot be hashed, as itself: what is equal to it today may differ tomorrow."""

  it: Any

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Same) and self.it is other.it

  def __hash__(self) -> int:
    return id(self.it)


@dataclass(frozen=True, slots=True)
class Hole:
  """The place of a Tensor or UOp in a form."""

  kind: type


@dataclass(frozen=True, slots=True)
class Nest:
  """A tuple, list or dict in a form."""

  kind: type
  keys: tuple[Any, ...]  # of a dict
  parts: tuple[Any, ...]


def flatten(x: Any, found: list[Any]) -> Any:
  """Collects the leaves of nested tuples, lists and dicts; returns their form, which can be hashed: two forms are equal
  where nothing but Tensors and UOps differs.
  """
  if isinstance(x, (list, tuple)):
    return Nest(type(x), (), tuple(flatten(y, found) for y in x))
  if isinstance(x, dict):
    return Nest(dict, tuple(x), tuple(flatten(y, found) for y in x.values()))
  found.append(x)
  if is_tensor(x) or isinstance(x, UOp):
    return Hole(type(x))
  try:
    hash(x)
  except TypeError:
    return Same(x)
  return type(x), x


def rebuild(form: Any, tensors: Iterator[UOp]) -> Any:
  """What had the form of a result, with other Tensors."""
  if isinstance(form, Hole):
    return form.kind(next(tensors))
  if not isinstance(form, Nest):
    return None  # nothing else is in a result
  parts = [rebuild(part, tensors) for part in form.parts]
  if form.kind is dict:
    return dict(zip(form.keys, parts))
  return form.kind(*parts) if hasattr(form.kind, "_fields") else form.kind(parts)


def uops_of(found: Iterable[Any]) -> list[UOp]:
  """The graphs of the Tensors and UOps among leaves."""
  return [x.uop if is_tensor(x) else x for x in found if is_tensor(x) or isinstance(x, UOp)]


def realize_all(found: list[Any]) -> None:
  """Realises the Tensors among leaves, together."""
  if tensors := [x for x in found if is_tensor(x)]:
    tensors[0].realize(*tensors[1:])


def read_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[UOp], dict[str, int]]:
  """(key, buffers, the variables' values) of a call, whose lazy Tensors are realised. The key holds the form of the
  arguments, their graph with buffers numbered and variables unbound (shapes, dtypes, placements with their device
  order, views, which arguments share a buffer), and the settings that change what Tensor methods compute.
  """
  found: list[Any] = []
  settings = tuple(v.value for v in (TRAINING, DEFAULT_FLOAT, DEFAULT_INT, DEV))
  form = flatten((args, dict(sorted(kwargs.items())), settings), found)
  for x in found:
    if hasattr(x, "__array__") and type(x).__hash__ is None:
      raise JitError(f"an argument is a {type(x).__name__}, whose values may change unseen\n  fix: give Tensor(array)")
  realize_all(found)
  sink, buffers, variables = canonical(UOp.sink(*uops_of(found)))
  return (sink, form), buffers, variables


class Made:
  """Memory that the step fills for the caller. What the caller still holds of an earlier call is never written again:
  the next replay then gets fresh memory.
  """

  __slots__ = ("memory", "shown")
  shown: weakref.ref[Buffer]

  def __init__(self, memory: Buffer) -> None:
    self.memory, self.shown = memory, weakref.ref(memory)

  def writable(self) -> Buffer:
    if self.shown() is not None:
      self.memory = Buffer(self.memory.device, self.memory.shape, self.memory.dtype).allocate()
    return self.memory

  def show(self) -> UOp:
    """A BUFFER over the memory, which tells by its life whether somebody holds it."""
    m = self.memory
    shown = Buffer(m.device, m.shape, m.dtype).allocate(m.handles, m)
    self.shown = weakref.ref(shown)
    return UOp.buffer(m.shape, m.dtype, m.device, shown)


@dataclass(slots=True, eq=False)
class Captured:
  """A step that can be replayed: its work, and where the inputs, the results and the variables stand in it."""

  work: list[Work]
  inputs: list[UOp]
  made: list[Made]
  variables: dict[str, int]
  form: Any  # of the result
  graph: UOp  # a SINK of its Tensors, over numbered buffers and unbound variables
  buffers: list[UOp | int | Made]  # of that graph: a BUFFER, the number of an input, or what the step has made
  stretches: list[Stretch] = field(default_factory=list)
  slots: list[Buffer] = field(default_factory=list)  # of the last replay: the inputs' memory, then what was made
  state: set[int] = field(default_factory=set)  # memory that the step writes and that is neither
  # slot -> (call, work, argument, device)
  memory: dict[int, list[tuple[Any, Work, int, int]]] = field(default_factory=dict)
  values: dict[str, list[tuple[Any, int]]] = field(default_factory=dict)  # variable -> (call, its number)

  def __post_init__(self) -> None:
    """Notes every pointer and variable that a replay may have to change."""
    self.stretches = engine.prepare(self.work)
    self.slots = [buffer_of(u) for u in self.inputs] + [m.memory for m in self.made]
    number = {id(m): i for i, m in enumerate(self.slots)}
    self.state = {id(w.memory[0]) for w in self.work} - number.keys()
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
    # what it keeps in place must not change while it is read as an input
    self.inputs = [engine.realize(u.clone())[0] if id(buffer_of(u)) in self.state else u for u in inputs]
    slots = [buffer_of(u) for u in self.inputs] + [m.writable() for m in self.made]
    moved = [i for i, (old, new) in enumerate(zip(self.slots, slots)) if old is not new]
    given = [name for name, value in variables.items() if self.variables[name] != value]
    if moved or given:
      for stretch in self.stretches:
        for backend in stretch.backends:
          backend.synchronize()
      changed = {id(self.slots[i]): slots[i] for i in moved}
      for w in self.work:
        w.memory[:] = [changed.get(id(m), m) for m in w.memory]
        w.variables.update((n, variables[n]) for n in given if n in w.variables)
      for i in moved:
        for call, w, argument, d in self.memory.get(i, ()):
          call.set_buffer(argument, engine.pointers(w, argument, d))
      for name in given:
        for call, k in self.values.get(name, ()):
          call.set_variable(k, variables[name])
      self.slots, self.variables = slots, dict(variables)
    for stretch in self.stretches:
      stretch.launch()

  def results(self) -> Any:
    """What the last replay has made, as fresh Tensors over its memory."""
    shown = {m: m.show() for m in self.made}
    actual = [self.inputs[b] if isinstance(b, int) else shown[b] if isinstance(b, Made) else b for b in self.buffers]
    mapping = {u: actual[-1 - u.arg.uid] for u in self.graph.toposort() if u.op is Ops.BUFFER}
    mapping |= {v: v.bind(self.variables[v.arg[0]]) for v in self.graph.variables() if v.arg[0] in self.variables}
    return rebuild(self.form, iter(substitute(self.graph, mapping).src))


def filled(work: Sequence[Work], memory: Buffer) -> bool:
  """Whether the step writes the memory before it reads it, so that nothing in it lasts from call to call."""
  first = next((w for w in work if any(m is memory for m in w.memory)), None)
  return first is None or (first.memory[0] is memory and all(m is not memory for m in first.memory[1:]))


@dataclass(slots=True, eq=False)
class State:
  """What is known of one key: how often it was called, and the capture."""

  count: int = 0
  captured: Captured | None = None


class TinyJit(Generic[A, R]):
  """`@TinyJit` on a function of Tensors: the first call with some kind of arguments runs it, the second captures what
  it computes, later ones replay that.

  Inputs are the Tensors and bound Variables in the arguments (nested lists, tuples, dicts too); they are realised
  first. All other arguments, shapes, dtypes, placements and their device order, which arguments share memory,
  `Tensor.training`, the default types and device are part of the key: other kinds of arguments are captured apart.
  A result that is still held is not written again: the replay after it fills fresh memory. Results may be arguments
  of the next call. Nothing but computation is replayed: Python side effects happen twice, and a Tensor that the
  function stores elsewhere keeps the captured call's value, unless it is assigned to. `JIT=0` switches it off, and what
  is interpreted is run anew in every call.
  `prune` is taken and changes nothing.
  Raises: JitError if a value is read inside (`.item()`, `.numpy()`), if the function computes nothing, returns
  something that is no Tensor (a replay could not renew it), or is given an array that is no Tensor.
  """

  def __new__(cls, fxn: Callable[A, R] | None = None, prune: bool = False) -> Any:
    return functools.partial(cls, prune=prune) if fxn is None else super().__new__(cls)

  def __init__(self, fxn: Callable[A, R], prune: bool = False) -> None:
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
    key, inputs, variables = read_arguments(args, kwargs)
    if key not in self.states and len(self.states) >= KEPT_STATES:
      del self.states[next(iter(self.states))]
    state = self.last = self.states.setdefault(key, State())
    state.count += 1
    if state.count == 1:
      result = self.fxn(*args, **kwargs)
      self.realized(result)
    elif state.captured is None:
      result = self.capture(state, inputs, variables, lambda: self.fxn(*args, **kwargs))
    else:
      state.captured.replay(inputs, variables)
      result = state.captured.results()
    return result

  def realized(self, result: R) -> tuple[Any, list[UOp]]:
    """The form of a result, and the graphs of its Tensors, which are realised."""
    found: list[Any] = []
    form = flatten(result, found)
    for x in found:
      if x is not None and not is_tensor(x):
        raise JitError(
          f"{self.name} returns {x!r} of type {type(x).__name__}, which a replay would repeat unchanged\n"
          "  fix: return Tensors (in tuples, lists, dicts) and None; compute the rest outside"
        )
    realize_all(found)
    return form, uops_of(found)

  @property
  def name(self) -> str:
    return str(getattr(self.fxn, "__name__", type(self.fxn).__name__))

  def capture(self, state: State, inputs: list[UOp], variables: dict[str, int], call: Callable[[], R]) -> R:
    """Runs the function once more, and notes every run of the engine; nothing is kept where a run is interpreted."""
    runs: list[Run] = []
    earlier = UOp.buffer((0,), dtypes.uint8, "NPY").arg.uid
    recorders.append(runs.append)
    try:
      result = call()
      form, results = self.realized(result)
    finally:
      recorders.pop()
    if not runs:
      raise JitError(
        f"{self.name}: nothing was computed, so there is nothing to replay\n"
        "  fix: return the Tensor that it computes, or call .realize() on it inside"
      )
    for run in runs:
      for name, value in run.variables.items():
        if variables.get(name, value) != value:
          raise JitError(
            f"variable {name} is {variables[name]} in the arguments and {value} inside the function\n"
            "  fix: use the argument itself, or another name"
          )
    if all(run.plan.local is None for run in runs):
      work = [w for run in runs for w in engine.work_of(run)]
      targets = {id(w.memory[0]) for w in work}
      made = {
        u: Made(m)
        for u in UOp.sink(*results).toposort()
        if u.op is Ops.BUFFER and u.arg.uid > earlier and id(m := buffer_of(u)) in targets and filled(work, m)
      }
      graph, buffers, _ = canonical(UOp.sink(*results))
      places = [inputs.index(b) if b in inputs else made.get(b, b) for b in buffers]
      state.captured = Captured(work, inputs, list(made.values()), variables, form, graph, places)
      if DEBUG >= 1:
        print(f"JIT captured {len(work)} kernels and copies, {len(inputs)} inputs")
    return result


def function(
  fxn: Callable[..., Any] | None = None, *, precompile: bool = False, precompile_backward: bool = False,
  allow_implicit: bool = False, grad_fxn: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
  """`@function` on a function of Tensors that returns a Tensor or a tuple of them, and computes them from its arguments
  alone: with other memory in its graph (a weight, a Tensor made from data) it raises, unless `allow_implicit`. It
  stays lazy and is differentiated as if written in place; equal calls share their compiled kernels, so the
  `precompile` flags change nothing.
  Raises: RuntimeError for implicit memory and for other results; NotImplementedError for `grad_fxn`.
  """
  if grad_fxn is not None:
    raise NotImplementedError(
      "function: grad_fxn is written in nodes of tinygrad's own graph, which are others here\n"
      "  fix: leave it out: the gradient follows from what the function computes"
    )
  if fxn is None:
    return functools.partial(function, allow_implicit=allow_implicit)
  call: Callable[..., Any] = fxn

  @functools.wraps(call)
  def checked(*args: Any, **kwargs: Any) -> Any:
    result = call(*args, **kwargs)
    name = getattr(call, "__qualname__", type(call).__name__)
    results = result if isinstance(result, tuple) else (result,)
    if not results or not all(map(is_tensor, results)):
      raise RuntimeError(
        f"function {name} returns {type(result).__name__}\n  fix: return a Tensor, or a tuple of Tensors"
      )
    found: list[Any] = []
    flatten((args, tuple(kwargs.values())), found)
    given = set(UOp.sink(*uops_of(found)).toposort())
    order = UOp.sink(*uops_of(results)).toposort(lambda u: u not in given)
    implicit = [u for u in order if u.op is Ops.BUFFER and u not in given]
    if implicit and not allow_implicit:
      shown = "".join(f"\n  {u.dtype.name}{list(u.shape)} on {u.device}" for u in implicit[:5])
      raise RuntimeError(
        f"function {name} reads {len(implicit)} buffers that are no arguments{shown}\n"
        "  fix: pass them as arguments, or @function(allow_implicit=True)"
      )
    return result

  return checked
