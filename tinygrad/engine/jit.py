"""`TinyJit`: a step is captured once and then replayed as prepared lists of calls, with other inputs and variable
values in their places. `function`: a part of a graph that depends on its arguments alone.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MethodType
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
  kind = type(x)
  return hasattr(kind, "uop") and hasattr(kind, "realize")


def walk(x: Any, leaf: Callable[[Any], Any], nest: Callable[[type, tuple[Any, ...], list[Any]], Any]) -> Any:
  """`nest(type, keys of a dict, parts)` of nested tuples, lists and dicts, and `leaf` of what is in them."""
  if isinstance(x, (list, tuple)):
    return nest(type(x), (), [walk(y, leaf, nest) for y in x])
  return nest(dict, tuple(x), [walk(y, leaf, nest) for y in x.values()]) if isinstance(x, dict) else leaf(x)


def build(kind: type, keys: tuple[Any, ...], parts: list[Any]) -> Any:
  """The tuple, list or dict of these parts."""
  if kind is dict:
    return dict(zip(keys, parts))
  return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def flatten(x: Any) -> tuple[Any, list[Any]]:
  """(form, leaves) of nested tuples, lists and dicts. The form can be hashed: two are equal where nothing but Tensors
  and UOps differs.
  """
  found: list[Any] = []

  def leaf(x: Any) -> Any:
    found.append(x)
    if is_tensor(x) or isinstance(x, UOp):
      return type(x)
    try:
      hash(x)
    except TypeError:
      return MethodType(type, x)  # equal for the very object alone: what is equal to it today may differ tomorrow
    return type(x), x

  return walk(x, leaf, lambda kind, keys, parts: (kind, keys, *parts)), found


def uops_of(found: Iterable[Any]) -> list[UOp]:
  """The graphs of the Tensors and UOps among leaves."""
  return [x if isinstance(x, UOp) else x.uop for x in found if isinstance(x, UOp) or is_tensor(x)]


def realize_all(found: list[Any]) -> None:
  """Realises the Tensors among leaves, together."""
  if tensors := [x for x in found if is_tensor(x)]:
    tensors[0].realize(*tensors[1:])


def read_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[UOp], dict[str, int]]:
  """(key, buffers, the variables' values) of a call, whose lazy Tensors are realised. The key holds the form of the
  arguments, their graph with buffers numbered and variables unbound (shapes, dtypes, placements with their device
  order, views, which arguments share a buffer), and the settings that change what Tensor methods compute.
  """
  settings = tuple(v.value for v in (TRAINING, DEFAULT_FLOAT, DEFAULT_INT, DEV))
  form, found = flatten((args, dict(sorted(kwargs.items()))))
  for x in found:
    if type(x).__hash__ is None and hasattr(x, "__array__"):
      raise JitError(f"an argument is a {type(x).__name__}, whose values may change unseen\n  fix: give Tensor(array)")
  realize_all(found)
  sink, buffers, variables = canonical(UOp.sink(*uops_of(found)))
  return (sink, form, settings), buffers, variables


class Made:
  """Memory that the step fills for the caller. What the caller still holds of an earlier call is never written again:
  the next replay then gets fresh memory.
  """

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


@dataclass(eq=False)
class Captured:
  """A step that can be replayed: its work, and where the inputs, the results and the variables stand in it."""

  work: list[Work]
  inputs: list[UOp]
  made: list[Made]
  variables: dict[str, int]
  form: Any  # the result, with the type of a Tensor in its place
  graph: UOp  # a SINK of its Tensors, over numbered buffers and unbound variables
  buffers: list[UOp | int | Made]  # of that graph: a BUFFER, the number of an input, or what the step has made

  def __post_init__(self) -> None:
    """Notes every pointer and variable that a replay may have to change."""
    self.stretches: list[Stretch] = engine.prepare(self.work)
    # of the last replay: the inputs' memory, then what was made
    self.slots: list[Buffer] = [buffer_of(u) for u in self.inputs] + [m.memory for m in self.made]
    number = {id(m): i for i, m in enumerate(self.slots)}
    # memory that the step writes, and is neither
    self.state = {id(m) for w in self.work for m in w.written} - number.keys()
    self.memory: dict[int, list[tuple[Any, Work, int, int]]] = {}  # slot -> (call, work, argument, device)
    self.values: dict[str, list[tuple[Any, int]]] = {}  # variable -> (call, its number)
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
          call.set_buffer(argument, w.pointers(argument, d))
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
    sources = self.graph.src
    mapping = {u: actual[-1 - u.arg.uid] for u in sources if u.op is Ops.BUFFER}
    if len(mapping) < len(sources):  # views
      mapping |= {u: actual[-1 - u.arg.uid] for u in self.graph.toposort() if u.op is Ops.BUFFER}
      mapping |= {v: v.bind(self.variables[v.arg[0]]) for v in self.graph.variables() if v.arg[0] in self.variables}
      sources = substitute(self.graph, mapping).src
    tensors = (mapping.get(u, u) for u in sources)
    return walk(self.form, lambda kind: kind and kind(next(tensors)), build)


def filled(work: Sequence[Work], memory: Buffer) -> bool:
  """Whether the step writes the memory before it reads it, so that nothing in it lasts from call to call."""
  first = next((w for w in work if any(m is memory for m in w.memory)), None)
  return first is None or all(m is not memory for m in first.memory[first.item.writes :])


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
    if state.captured is not None:
      state.captured.replay(inputs, variables)
      result: R = state.captured.results()
    elif state.count > 1:
      result = self.capture(state, inputs, variables, lambda: self.fxn(*args, **kwargs))
    else:
      self.realized(result := self.fxn(*args, **kwargs))
    return result

  def realized(self, result: R) -> tuple[Any, list[UOp]]:
    """A result with the types of its Tensors in their places, and the graphs of these, which are realised."""
    _, found = flatten(result)
    for x in found:
      if x is not None and not is_tensor(x):
        raise JitError(
          f"{self.name} returns {x!r} of type {type(x).__name__}, which a replay would repeat unchanged\n"
          "  fix: return Tensors (in tuples, lists, dicts) and None; compute the rest outside"
        )
    realize_all(found)
    return walk(result, lambda x: x if x is None else type(x), build), uops_of(found)

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
      targets = {id(m) for w in work for m in w.written}
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
  fxn: Any = None, *, precompile: bool = False, precompile_backward: bool = False,
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

  @functools.wraps(fxn)
  def checked(*args: Any, **kwargs: Any) -> Any:
    result = fxn(*args, **kwargs)
    name = getattr(fxn, "__qualname__", type(fxn).__name__)
    results = result if isinstance(result, tuple) else (result,)
    if not results or not all(map(is_tensor, results)):
      raise RuntimeError(
        f"function {name} returns {type(result).__name__}\n  fix: return a Tensor, or a tuple of Tensors"
      )
    given = set(UOp.sink(*uops_of(flatten((args, kwargs))[1])).toposort())
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
