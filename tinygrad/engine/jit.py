"""`TinyJit`: a step is captured once and then replayed as prepared lists of calls, with other inputs and variable
values in their places."""

import contextlib
import copy
import functools
import sys
import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from tinygrad.device import HOST_DEVICE, Buffer, Device, Mesh, ambient_meshes, as_mesh, pass_away
from tinygrad.dtype import dtypes
from tinygrad.engine.canonical import canonical
from tinygrad.engine.errors import JitError
from tinygrad.engine.forms import NUMBER, as_given, generalize
from tinygrad.engine.program_order import ClosedOver, closed_over, program_order
from tinygrad.engine.run import Check, Run, Stretch, Work, before_replays, limits, prepare, recorders, tracers, work_of
from tinygrad.helpers import DEBUG, JIT, PROCESS, at_fork, html_table, living, say, settings_from, uninterrupted, walk
from tinygrad.helpers.closures import numbers_around
from tinygrad.uop import Ops, UOp, buffer_of, give_memory, substitute, unseen

A = ParamSpec("A")
R = TypeVar("R")
Values = dict[str, int]  # of variables
# of types whose equal values differ in nothing: 0.0 is equal to -0.0
EXACT = {object.__eq__, type(None).__eq__, int.__eq__, str.__eq__}  # None has its own from Python 3.13 on
KEPT_STATES = 256  # kinds of arguments that one function remembers


def is_tensor(x: Any) -> bool:
  """A Tensor, which this module sits below."""
  return hasattr(type(x), "uop")


def uops_of(found: Iterable[Any]) -> list[UOp]:
  """The graphs of the Tensors and UOps among leaves."""
  return [x if type(x) is UOp else x.uop for x in found if type(x) is UOp or is_tensor(x)]


def realize_all(found: Iterable[Any]) -> None:
  """Realises the Tensors among leaves, together."""
  if tensors := [x for x in found if is_tensor(x)]:
    tensors[0].realize(*tensors[1:])


class Arguments:
  """What a replay finds in arguments: their Tensors and UOps, the buffers in the order in which they are first met, and
  the values of variables; and those that are neither buffer nor bound variable."""

  def __init__(self) -> None:
    self.found: list[Any] = []
    self.others: list[UOp] = []
    self.buffers: dict[UOp, int] = {}
    self.variables: Values = {}

  def signature(self, x: Any) -> Any:
    """What is left of nested tuples, lists and dicts without their memory and variables' values; it can be hashed.
    Shapes, dtypes, placements with their device order, and which share a buffer, are a part of it."""
    kind = type(x)
    if kind is UOp or hasattr(kind, "uop"):
      self.found += (x,)
      u = x if kind is UOp else x.uop
      if u.op is Ops.BUFFER and (kind is UOp or x.follows):  # a value that lies in another's memory is no input yet
        return kind, u.dtype, u.arg.shape, u.arg.device, self.buffers.setdefault(u, len(self.buffers))
      if u.op is not Ops.BIND or self.variables.setdefault(u.src[0].arg[0], u.src[1].arg) != u.src[1].arg:
        self.others += (u,)
      return kind, u.op, u.src[0] if u.op is Ops.BIND else None
    if isinstance(x, (list, tuple)):
      return (kind, *[self.signature(y) for y in x])
    if isinstance(x, dict):
      return (dict, tuple(x), *map(type, x), *[self.signature(y) for y in x.values()])
    try:
      hash(x)
    except TypeError:
      if hasattr(x, "__array__"):
        problem = f"an argument is a {kind.__name__}, whose values may change unseen"
        raise JitError(f"{problem}\n  fix: give Tensor(array)") from None
      return MethodType(type, x)  # equal for the very object alone: what is equal to it today may differ tomorrow
    return (kind, x) if kind.__eq__ in EXACT else (kind, x, repr(x))


def read_arguments(
  args: tuple[Any, ...], kwargs: dict[str, Any], gradients: Any = None, around: tuple[Any, ...] = ()
) -> tuple[Any, list[UOp], Values, list[Any]]:
  """(key, buffers, the variables' values, the Tensors and UOps) of a call, whose lazy Tensors are realised. The key
  holds the signature of the arguments, of views their graph with buffers numbered and variables unbound, every setting
  that shapes programs, numbers `around` the function, and last the signature of the gradients that it reads."""
  names = tuple(sorted(kwargs)) if kwargs else ()
  settings = names, ambient_meshes.get(), settings_from("graph"), around
  given = (*args, *[kwargs[name] for name in names]) if names else args
  for _ in range(2):
    a = Arguments()
    try:
      found = [a.signature(x) for x in given]
      beside = a.signature(gradients.arguments(a.found)) if gradients and gradients.read else (list,)
    except RecursionError:
      raise JitError("an argument is a list or dict that holds itself\n  fix: give one that does not") from None
    if not a.others:
      return (None, settings, *found, beside), list(a.buffers), a.variables, a.found
    realize_all(a.found)
  sink, buffers, variables = canonical(UOp.sink(*uops_of(a.found)))
  return (sink, settings, *found, beside), buffers, variables, a.found


@contextlib.contextmanager
def numbers_bound(graph: UOp | None, inputs: list[UOp], values: Values, given: Iterable[Any]) -> Iterator[None]:
  """While a function is captured, the Tensors that it is given have variables where `graph`, of their key, has them for
  numbers; what then stands for those has the numbers again."""
  if not (names := {name for name in values if name.startswith(NUMBER)}) or graph is None:
    yield
    return
  began, bound = program_order.now, {v: v.bind(values[v.arg[0]]) for v in graph.variables() if v.arg[0] in values}
  numbers = {b: b.src[1] for v, b in bound.items() if v.arg[0] in names}
  mapping = {u: inputs[-1 - u.arg.uid] for u in graph.toposort() if u.op is Ops.BUFFER} | bound
  for x, u in zip(given, substitute(graph, mapping).src, strict=True):
    if not names.isdisjoint(v.arg[0] for v, _ in u.bound):
      x.uop = u
  try:
    yield
  finally:
    for x in (*given, *program_order.changed_here(began)):
      if is_tensor(x) and not names.isdisjoint(v.arg[0] for v, _ in x.uop.bound):
        x.uop = substitute(x.uop, numbers)


class Made:
  """Memory that the step fills for the caller. What the caller still holds of an earlier call is never written again:
  the next replay then gets other memory."""

  def __init__(self, u: UOp, given: Sequence[Any]) -> None:
    self.memory = self.spare = buffer_of(u)
    self.origin, self.ended = u.origin, program_order.ended.noted(u, given)
    give_memory(u, self.cover())
    self.shown_spare = self.shown

  def cover(self) -> Buffer:
    """The memory as what the caller gets, which tells by its life whether somebody holds it."""
    m = self.memory
    cover = Buffer(m.device, m.shape, m.dtype, m.handles, m)
    self.shown = weakref.ref(cover)
    return cover

  def another(self) -> Buffer:
    """The memory of the replay before the last, if that is free again, as where each result takes the last one's place;
    else fresh."""
    m, free = self.memory, self.spare  # one memory until there is another
    if free is m or self.shown_spare() is not None:
      free = Buffer(m.device, m.shape, m.dtype).allocate()
    self.spare, self.shown_spare, self.memory = m, self.shown, free
    return free

  def show(self, given: Sequence[Any]) -> UOp:
    m = self.memory
    u = UOp.buffer(m.shape, m.dtype, m.device, self.cover(), self.origin)
    return program_order.ended.note(u, self.ended, given) if self.ended else u


@dataclass(eq=False)
class Captured:
  """A step that can be replayed: its work, and where the inputs, the results and the variables stand in it."""

  work: list[Work]
  inputs: list[UOp]
  made: list[Made]
  variables: Values
  structure: Any  # the result, with the type of a Tensor in its place, or its number if it is an argument
  graph: UOp  # a SINK of its Tensors, over numbered buffers and unbound variables
  limits: list[Check]  # what variables' values have to keep to
  buffers: list[UOp | int | Made]  # of that graph: a BUFFER, the number of an input, or what the step has made
  closed_over: ClosedOver
  before: list[Callable[[], object]]
  left: Any  # in `.grad`, if anything is

  def __post_init__(self) -> None:
    """Notes every pointer and variable that a replay may have to change."""
    self.stretches: list[Stretch] = prepare(self.work)
    # by what they are called: plans that were read from disk have programs of their own, equal to those that were made
    each = dict.fromkeys(str(w.program or "copy") for w in self.work)
    self.text = f"replay of {len(self.work)} kernels and copies: {', '.join(each)}"
    self.alone = self.stretches[0] if len(self.stretches) == 1 else None
    # those that have queued work whose arguments a replay would change
    self.queues = dict.fromkeys(b for s in self.stretches for b in s.backends if b.capabilities.cells)
    slots: list[Buffer] = [buffer_of(u) for u in self.inputs] + [m.memory for m in self.made]
    number = {id(m): i for i, m in enumerate(slots)}
    for batch in (b for s in self.stretches for _, batches in s.batches for b in batches):
      batch.inputs, batch.whole = self.inputs, self.alone is not None  # lent memory lives as long as a reader is queued
    # of the last replay: the inputs, and the memory of what was made; None where that must be looked at anew
    self.given: list[Any] = [*self.inputs, *slots[len(self.inputs) :]]
    # memory that the step writes, and is neither
    self.state = {id(m) for w in self.work for m in w.written} - number.keys()
    self.n_inputs = len(self.inputs)
    self.single = isinstance(self.structure, type) and self.graph.src[0].op is Ops.BUFFER  # one result, no view
    written = {number.get(id(m)) for w in self.work for m in w.written}
    self.written_inputs = [i for i in range(self.n_inputs) if i in written]
    # memory of its own that no input may be: one of the two is written
    self.every = {id(m): m for w in self.work for m in w.memory if id(m) not in number}
    self.overlapping = self.overlaps(self.inputs)
    self.own: Container[int] = self.every if self.written_inputs else self.state
    self.settled = -1  # the number of the last change of a Tensor that has been looked at
    # by number of the memory, or variable: where it stands in the work (container, key), in what compiled code reads
    # (words, index, device number), and in calls that have to be told (call, work, argument, device number)
    self.places: dict[Any, tuple[list[Any], list[Any], list[Any]]]
    self.places = {key: ([], [], []) for key in (*range(len(slots)), *self.variables)}
    for w in self.work:
      found = [(number.get(id(m)), w.memory, i) for i, m in enumerate(w.memory)]
      for key, container, i in [*found, *((name, w.variables, name) for name in w.variables)]:
        if key in self.places:
          self.places[key][0].append((container, i))
    for w, d, call in (b for stretch in self.stretches for b in stretch.bound):
      for i, key in enumerate([*(number.get(id(m)) for m in w.memory), *w.item.variables]):
        if key in self.places:
          if Device.capabilities(w.item.devices[d]).cells and not w.copies.apart:
            self.places[key][1].extend(call.cells(i, d))
          else:
            self.places[key][2].append((call, w, i, d))

  def put(self, key: Any, x: Any) -> None:
    """Replaces memory, or a variable's value. No call for each kernel where these have `cells`."""
    in_work, in_code, calls = self.places[key]
    for container, i in in_work:
      container[i] = x
    handles = x.handles if type(x) is Buffer else None
    for array, i, d in in_code:
      array[i] = x if handles is None else handles[d].address
    for call, w, i, d in calls:
      if i < len(w.memory):
        call.set_buffer(i, w.copies.pointers(i, d))
      else:
        call.set_variable(i - len(w.memory), x)

  def shared(self, inputs: Sequence[UOp]) -> tuple[tuple[int, int | Buffer], ...]:
    """Which inputs are memory that the step has of its own, or have bytes in common with such, or with one another,
    so that it orders its work for other calls than this."""
    changed = [(i, buffer_of(u)) for i, (u, v) in enumerate(zip(inputs, self.inputs)) if u is not v]
    found: list[tuple[int, int | Buffer]] = [(i, m) for i, m in changed if id(m) in self.own]
    if any(m.lent for _, m in changed):
      found += (p for p in self.overlaps(inputs) if p not in self.overlapping)
    return tuple(found)

  def overlaps(self, inputs: Sequence[UOp]) -> list[tuple[int, int | Buffer]]:
    """Which of them, by number, have bytes in common with which others, or with which memory of the step's own."""
    given = list(enumerate(map(buffer_of, inputs)))
    others: list[tuple[int | Buffer, Buffer]] = [*given, *((m, m) for m in self.every.values())]
    lent = [(j, m) for j, m in others if m.lent]
    return [(i, j) for i, m in given if m.lent for j, other in lent if other is not m and m.overlaps(other)]

  def renew(self, given: Sequence[Any], first: int) -> None:
    """Replaces memory, from number `first` on, where other is given."""
    for backend in self.queues:
      backend.synchronize()
    for i, x in enumerate(given, first):
      if x is not self.given[i]:
        self.given[i] = None  # until it is in all its places, whatever interrupts
        if type(x) is UOp:
          self.inputs[i] = x
        self.put(i, buffer_of(x).allocate() if type(x) is UOp else x)
        self.given[i] = x

  def tell(self, given: Sequence[Any], changed: bool, variables: Values) -> None:
    """Learns where inputs and results lie in other processes. What one of them still holds, others may not."""
    assert Device.world is not None
    buffers = [buffer_of(x) if type(x) is UOp else x for x in given]
    what = f"{self.text}, {variables}" if variables else self.text
    if moved := Device.world.learn(what, buffers, changed):
      self.given = [None if i in moved else x for i, x in enumerate(self.given)]
      self.renew(given, 0)

  def settle(self, inputs: Sequence[UOp]) -> list[Any]:
    """Before a replay, where some Tensor has changed: what was assigned happens. Those that the step has read from
    outside, and that stand for something else now."""
    if any(inputs[i] is not self.given[i] for i in self.written_inputs):
      self.settled = -1  # nobody has looked at what reads these
    taken, given_memory = {id(buffer_of(inputs[i])) for i in self.written_inputs}, {id(buffer_of(u)) for u in inputs}
    program_order.settle(self.settled, self.state | taken, self.every.keys() | given_memory)
    self.settled = program_order.now
    return program_order.outdated(self.closed_over)

  def replay(self, inputs: Sequence[UOp], variables: Values, given: Sequence[Any]) -> Any:
    """Runs the step on other inputs of the same key; what it makes, as fresh Tensors beside those of `given`."""
    n = self.n_inputs
    for check in self.limits if variables != self.variables else ():
      check(variables)
    if changed := inputs != self.given[:n]:
      self.renew(inputs, 0)
    for prepare_replay in self.before:
      prepare_replay()
    if self.left is not None:
      self.left.free(given)
    # then, for memory that the last inputs, or gradients, alone held is free now
    made = [m.memory if m.shown() is None else m.another() for m in self.made]
    if Device.world is not None:
      self.tell([*inputs, *made], changed or made != self.given[n:], variables)
    if made != self.given[n:] or variables != self.variables:
      self.renew(made, n)
    if variables != self.variables:
      self.variables = {}
      for name, value in variables.items():
        self.put(name, value)
      self.variables = variables
    if self.alone is not None:  # one hand-over, which is made or not
      self.alone.launch()
    else:
      with uninterrupted():  # a step is done or not
        for stretch in self.stretches:
          stretch.launch()
    results = self.results(given) if self.left is None else self.left.leave(self.results(given), given)
    self.settled = program_order.now
    return results

  def results(self, given: Sequence[Any]) -> Any:
    """What the last replay has made, as fresh Tensors over its memory; what it was given is that very Tensor."""
    actual = [self.inputs[b] if type(b) is int else b.show(given) if type(b) is Made else b for b in self.buffers]
    sources = self.graph.src
    if self.single:
      return self.structure(actual[0])
    mapping = {u: actual[-1 - u.arg.uid] for u in sources if u.op is Ops.BUFFER}
    if len(mapping) < len(sources):  # views
      mapping = {u: actual[-1 - u.arg.uid] for u in self.graph.toposort() if u.op is Ops.BUFFER}
      mapping |= {
        v: as_given(v, self.variables[v.arg[0]]) for v in self.graph.variables() if v.arg[0] in self.variables
      }
      sources = substitute(self.graph, mapping).src
    tensors = (mapping.get(u, u) for u in sources)
    return walk(self.structure, lambda x: given[x] if type(x) is int else x and x(next(tensors)))


def filled(work: Sequence[Work], memory: Buffer) -> bool:
  """Whether the step writes the memory before it reads it, so that nothing in it lasts from call to call."""
  first = next((w for w in work if any(m is memory for m in w.memory)), None)
  return first is None or all(m is not memory for m in first.memory[first.item.writes :])


def take_up(run: Run, runs: list[Run], empty: list[Buffer]) -> None:
  """Of a step's runs those of one plan have one memory for what is within. `empty`: what nothing had filled before."""
  n, first = len(run.plan.buffers), next((r for r in runs if r.plan is run.plan), run)
  run.memory[n:] = first.memory[n:]
  empty.extend(m for m in run.memory if not m.handles)
  runs.append(run)


@dataclass(slots=True, eq=False)
class State:
  """What is known of one key: how often it was called, and the capture."""

  count: int = 0
  captured: Captured | None = None


_captures: weakref.WeakSet[Any] = weakref.WeakSet()


def _after_fork() -> None:
  """In the child the other threads are not there: what they were in is captured anew."""
  me = threading.get_ident()
  program_order.steps[:] = [entry for entry in program_order.steps if entry[0] == me]
  for step in [*_captures]:
    if not step.lock.acquire(blocking=False):
      step.lock = threading.RLock()
      step.reset()
    else:
      step.lock.release()


at_fork(in_child=_after_fork)


class TinyJit(Generic[A, R]):
  """`@TinyJit` on a function of Tensors: the first call with some kind of arguments runs it, the second captures what
  it computes, later ones replay that.

  Inputs are the Tensors and bound Variables in the arguments (nested lists, tuples, dicts too); they are realised
  first. All other arguments, names of keywords, shapes, dtypes, placements and their device order, hints, which
  arguments share memory, the ambient meshes, and every setting that can change the program (`ContextVar.shapes`:
  `Tensor.training`, the default types and device, DEFER, …) are part of the key: other kinds are captured apart. So are
  numbers and texts that the function reads, and does not set, by names around it (of its module, or a function). Where
  slices begin (`step(x[i : i + 64])`) is none from the second such call on. A call whose argument is memory that the
  captured step keeps itself (`step(w)` where the step assigns to w) is captured apart, too; but what was captured with
  w as its argument takes that for an argument alone: give other arguments first.
  A result that is still held is not written again: the replay after it fills fresh memory. An argument that the
  function returns is that Tensor; results may be the next arguments. The gradients that it reads before it sets them
  are arguments, too, and those that it leaves in `.grad` are results; one that an optimizer has used up is not stored
  (JitError where it is read). Random numbers are those that the function would draw. Nothing else of what Python does
  is replayed: side effects happen twice, numbers of objects (`self.rate`) are those of the capture, and a Tensor that
  the function stores elsewhere keeps the captured call's value, unless it is assigned to, which happens in each call,
  together with the results. What it reads from outside is read in each call; where such a Tensor had no memory and is
  assigned to, or is replaced, the step is captured once more. `JIT=0` switches it off, and what is interpreted is run
  anew in every call.
  `mesh`: what the function computes is placed on it as hints say (`Tensor.constrain`), as in `with mesh:`; arguments on
  one device stay there, and go to where they are used in each call. `prune` is taken and changes nothing.
  Raises: JitError if a value is read inside (`.item()`, `.numpy()`), if the function computes nothing, returns
  something that is no Tensor (a replay could not renew it), or is given an array that is no Tensor."""

  def __new__(cls, fxn: Callable[A, R] | None = None, prune: bool = False, mesh: Mesh | None = None) -> Self:
    return functools.partial(cls, prune=prune, mesh=mesh) if fxn is None else super().__new__(cls)  # type: ignore[return-value]

  @overload
  def __init__(self, fxn: Callable[A, R], prune: bool = False, mesh: Mesh | None = None) -> None: ...
  @overload
  def __init__(
    self: "TinyJit[[Callable[..., Any]], Any]", *, prune: bool = False, mesh: Mesh | None = None
  ) -> None: ...
  def __init__(self, fxn: Any = None, prune: bool = False, mesh: Mesh | None = None) -> None:
    if not callable(fxn):
      raise TypeError(f"TinyJit captures a function, not {fxn!r}\n  fix: TinyJit(f), or @TinyJit above def f")
    self.fxn: Callable[A, R] = fxn
    self.around = numbers_around(fxn)
    self.mesh = None if mesh is None else as_mesh("TinyJit", mesh)
    self.lock = threading.RLock()
    _captures.add(self)
    self.reset()
    functools.update_wrapper(self, fxn, updated=())

  def __reduce__(self) -> str | tuple[Any, ...]:
    """Pickled as its function, without what it has captured; a decorated function by its name, which is this step's."""
    name: str = getattr(self, "__qualname__", "")
    found: Any = sys.modules.get(self.__module__)
    for part in name.split("."):
      found = getattr(found, part, None)
    return name if found is self else (type(self), (self.fxn, False, self.mesh))

  def __copy__(self) -> Self:
    return type(self)(self.fxn, False, self.mesh)

  def __deepcopy__(self, memo: dict[int, Any]) -> Self:
    return type(self)(copy.deepcopy(self.fxn, memo), False, self.mesh)

  def reset(self) -> None:
    """Forgets every capture."""
    self.states: dict[tuple[Any, ...], State] = defaultdict(State)
    self.last: State | None = None
    self.gradients = program_order.step_gradients()

  def _repr_html_(self) -> str:
    rows = [(s.count, "-" if s.captured is None else len(s.captured.work)) for s in self.states.values()]
    return html_table(f"TinyJit of {self.name}", ("calls of a kind", "kernels and copies captured"), rows)

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
    if not JIT.value or recorders.items or tracers.items:  # a part of another capture, or of a transform
      with self.placing([] if tracers.items else read_arguments(args, kwargs)[1]):
        return self.fxn(*args, **kwargs)
    with self.lock:  # a replay binds its arguments where compiled calls read them: threads take turns
      key, inputs, variables, given = read_arguments(args, kwargs, self.gradients, self.around())
      if key[0] is not None and key not in self.states:  # views
        if all(is_tensor(x) or x.op is Ops.BUFFER or x.op is Ops.BIND for x in given):
          graph, variables = generalize(key[0], variables)
          key = graph, *key[1:]
      while True:
        if key not in self.states and len(self.states) >= KEPT_STATES:
          self.forget_oldest()
        state = self.last = self.states[key]
        captured = state.captured
        if captured is not None and (captured.settled != program_order.now or inputs != captured.inputs):
          if outdated := captured.settle(inputs):
            realize_all(outdated)  # what is assigned to them from now on is seen by replays
            captured = state.captured = None
        if captured is None or inputs == captured.inputs or not (shared := captured.shared(inputs)):
          break
        key = *key[:-1], shared, key[-1]  # inputs that are memory which the captured step has of its own
      state.count += 1
      if captured is not None:
        result: R = captured.replay(inputs, variables, given)
        return result
      with self.placing(inputs):
        if state.count > 1:
          with numbers_bound(key[0], inputs, variables, given):
            return self.capture(state, inputs, variables, given, lambda: self.fxn(*args, **kwargs))
        with program_order.step() as began, self.gradients.call(given, began) as call:
          self.realized(result := self.fxn(*args, **kwargs), began)
        if (new := call.learn()) and all(grad is None for grad in new):  # the key that it would have had
          self.states[*key[:-1], (*key[-1], *[(type(None), None)] * len(new))] = self.states.pop(key)
      return result

  def forget_oldest(self) -> None:
    """Makes room for another kind of arguments; that there are as many is told."""
    del self.states[next(iter(self.states))]
    kinds = f"{KEPT_STATES} kinds of arguments and numbers around it"
    rule = f"{self.name} is called with more than {kinds}, each captured for itself"
    warnings.warn(f"{rule}\n  fix: give numbers that change as Tensors, and lengths as bound Variables", stacklevel=3)

  @contextlib.contextmanager
  def placing(self, inputs: Sequence[UOp] = ()) -> Iterator[None]:
    """What is computed here goes to the mesh; what is given stays where it is."""
    outer, program_order.inputs = program_order.inputs, {*program_order.inputs, *inputs}
    try:
      with self.mesh or contextlib.nullcontext():
        yield
    finally:
      program_order.inputs = outer

  def realized(self, result: Any, since: int, more: Iterable[Any] = ()) -> list[Any]:
    """The Tensors of a result, which are realised together with `more` and what has been assigned after change number
    `since`."""
    found: list[Any] = []

    def leaf(x: Any) -> None:
      if is_tensor(x):
        found.append(x)
      elif x is not None:
        problem = f"{self.name} returns {x!r} of type {type(x).__name__}, which a replay would repeat unchanged"
        raise JitError(f"{problem}\n  fix: return Tensors (in tuples, lists, dicts) and None; compute the rest outside")

    walk(result, leaf)
    realize_all([*found, *more, *program_order.assigned(since)])
    return found

  @property
  def name(self) -> str:
    return str(getattr(self.fxn, "__name__", type(self.fxn).__name__))

  def capture(self, state: State, inputs: list[UOp], variables: Values, given: list[Any], call: Callable[[], R]) -> R:
    """Runs the function once more, and notes every run of the engine; nothing is kept where a run is interpreted, nor
    where values from outside were computed of its arguments or of what it writes, or had no memory when they were
    written: they are realised, and the next call captures."""
    program_order.settle(-1, set(), None)
    runs, empty, checks, outside, before = list[Run](), list[Buffer](), list[Check](), ClosedOver(), list[Any]()
    shown = {id(x): (i, x.uop) for i, x in enumerate(given) if is_tensor(x)}
    earlier = UOp.buffer((0,), dtypes.uint8, HOST_DEVICE).arg.uid
    recording = recorders.holding(lambda run: take_up(run, runs, empty))
    noted, limited = closed_over.holding(outside), limits.holding(checks.append)
    with program_order.step() as began, recording, noted, limited, before_replays.holding(before):
      with self.gradients.call(given, began) as touched:
        left = touched.left(result := call())
        found = self.realized(left.beside(result), began, left.memory.values())
    if not runs and not found:
      fix = "return the Tensor that it computes, or call .realize() on it inside"
      raise JitError(f"{self.name}: nothing was computed, so there is nothing to replay\n  fix: {fix}")
    for name, value in (pair for run in runs for pair in run.variables.items()):
      if variables.get(name, value) != value:
        problem = f"variable {name} is {variables[name]} in the arguments and {value} inside the function"
        raise JitError(f"{problem}\n  fix: use the argument itself, or another name")
    written = [t for t in program_order.changed_here(began) if t._holder.born <= began]
    work = [w for run in runs for w in work_of(run)]
    targets = {id(m) for w in work for m in w.written}
    unlike = program_order.computed_of(outside, targets.union(id(buffer_of(u)) for u in inputs))
    unlike += (t for t in written if t._holder.assigned and (u := t.uop.base).op is Ops.BUFFER and u.arg.uid > earlier)
    realize_all(unlike)
    outside.update(program_order.stand([*living(outside), *written]))
    if not touched.learn() and not unlike and all(run.plan.local is None for run in runs):
      PROCESS.drop([run.plan for run in runs])  # which nobody looks for again
      pass_away(unseen(empty))
      same = {id(x): shown[id(x)][0] for x in found if id(x) in shown and shown[id(x)][1] is x.uop}
      results = uops_of(x for x in found if id(x) not in same)
      structure = walk(left.beside(result), lambda x: None if x is None else same.get(id(x), type(x)))
      fresh = [u for u in UOp.sink(*results).toposort() if u.op is Ops.BUFFER and u.arg.uid > earlier]
      made = {u: Made(u, given) for u in fresh if id(m := buffer_of(u)) in targets and filled(work, m)}
      graph, buffers, _ = canonical(UOp.sink(*results))
      places = [inputs.index(b) if b in inputs else made.get(b, b) for b in buffers]
      state.captured = Captured(
        work, inputs, list(made.values()), variables, structure, graph, checks, places, outside, before, left or None
      )
      left.leave(left.beside(result), given)
      if DEBUG >= 1:
        say(f"JIT captured {len(work)} kernels and copies, {len(inputs)} inputs")
    return result
