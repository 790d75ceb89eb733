"""Hints in, placements out: `propagate` places what is not placed yet, weights after their uses, gradients and the
optimizer's state after the weights."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tinygrad.device import (
  Buffer,
  Computes,
  Device,
  Mesh,
  ShardTypeError,
  as_mesh,
  device_set,
  one_of_each_kind,
  refuse,
)
from tinygrad.engine.canonical import canonical
from tinygrad.engine.compile import schedule_of
from tinygrad.engine.program_order import program_order
from tinygrad.engine.realize import random_states, realize
from tinygrad.engine.run import recorders
from tinygrad.helpers import STRATEGY, Context, LazyModule, uncollected
from tinygrad.sharding.replacement import Replacement
from tinygrad.uop import Hooks, Ops, UOp, stored

if TYPE_CHECKING:
  from tinygrad.debug import report as reports
  from tinygrad.sharding import localize as localizing
  from tinygrad.solver import build, decided, graph, handed, prices, reasons, solve
  from tinygrad.solver.auto import automatic, fit, model, moved, search
  from tinygrad.solver.auto import machine as machines
  from tinygrad.solver.auto.automatic import Automatic
  from tinygrad.solver.auto.machine import Machine
  from tinygrad.solver.auto.moved import Moves
  from tinygrad.solver.auto.recompute import Recomputation
  from tinygrad.solver.graph import Answer
  from tinygrad.solver.reasons import Reason
else:
  build, decided, graph, handed, prices, reasons, solve, automatic, fit, model, moved, search, machines = (
    LazyModule(f"tinygrad.solver.{name}")
    for name in (
      "build",
      "decided",
      "graph",
      "handed",
      "prices",
      "reasons",
      "solve",
      "auto.automatic",
      "auto.fit",
      "auto.model",
      "auto.moved",
      "auto.search",
      "auto.machine",
    )
  )
  localizing, reports = LazyModule("tinygrad.sharding.localize"), LazyModule("tinygrad.debug.report")


class Propagation:
  """What `propagate` has decided. It prints as a list of inputs, weights and hinted values with their placements, and
  for each dim that is cut the hint and the user's line that say so, and by way of which ops."""

  def __init__(self, answer: Answer, before: dict[UOp, UOp]) -> None:
    self.answer, self.before = answer, before  # of each node that was placed, what it was

  def __str__(self) -> str:
    return reasons.table(self.answer)

  __repr__ = __str__

  def why(self, t: Any) -> list[Reason]:
    """The reasons for each cut dim of a Tensor that was among the outputs, or that these are computed from."""
    u = t if isinstance(t, UOp) else t.uop
    return reasons.reasons(self.answer, self.before.get(u, u))


def propagate(*outputs: Any, mesh: Mesh) -> Propagation:
  """Places everything that `outputs` (Tensors, or lists, tuples and dicts of them) are computed from and that is not
  placed yet, on the mesh, as hints (`Tensor.constrain`) and placements (`Tensor.shard`) say: forward from what they are
  said of to what is computed from it, and backward. Weights and other memory on one device move there at once;
  tensors that read them show their new placements. Nothing else is computed.

  Raises: ShardError for a hint that names no axis of the mesh; ShardTypeError for no mesh, or no Tensors.

  Examples:
    >>> x, w = Tensor.ones(4, 8).contiguous().realize(), Tensor.ones(8, 2).contiguous().realize()
    >>> y = x.constrain(P("d")) @ w
    >>> said = propagate(y, mesh=Mesh(("CPU:0", "CPU:1"), names=("d",)))
    >>> x.device.spec, w.device.spec, y.device.spec
    (P('d'), P(), P('d'))
  """
  return place_on(as_mesh("propagate", mesh), roots_of("propagate", outputs))


def check_machine(memory: Any, machine: Any) -> None:
  number = isinstance(memory, (int, float)) and not isinstance(memory, bool)
  if not (memory is None or (number and memory > 0)):
    refuse(f"auto: memory={memory!r} is no number of bytes on each device", "memory=80e9, or None: enough")
  if not (machine is None or isinstance(machine, machines.Machine)):
    fix = "machine=Machine(flops=1e15, bandwidth=3e12, link=4e11, latency=1e-5)  # of tinygrad.device.machine"
    refuse(f"auto: machine={machine!r} is no Machine", fix, error=ShardTypeError)


def roots_of(name: str, outputs: Any) -> list[UOp]:
  if not (roots := [t.uop for t in _tensors(outputs)]):
    refuse(f"{name}: there is no Tensor among its outputs", f"{name}(loss, mesh=mesh)", error=ShardTypeError)
  return roots


def _tensors(x: Any) -> Iterable[Any]:
  if isinstance(x, dict):
    x = list(x.values())
  if isinstance(x, (list, tuple)):
    return (t for y in x for t in _tensors(y))
  return (x,) if hasattr(x, "uop") else ()


@uncollected()
def auto(*outputs: Any, mesh: Mesh, memory: float | None = None, machine: Machine | None = None) -> Automatic:
  """`propagate`, with placements chosen by predicted time where hints and placements leave a choice: of inputs, of
  weights, and so of what is computed between (docs/auto.md). It prints as a table of what was chosen.

  `memory`: bytes that a device has for inputs, weights, the optimizer's state and what lives at once besides (None:
  enough); where that is less than the fastest placement takes, values may be computed again. `machine`: what a device
  and its links can do (None: what is assumed of the mesh's devices).
  Raises: ShardError where nothing fits the memory, or for one that is no number of bytes, and as `propagate`;
  ShardTypeError for another machine; ModuleNotFoundError without highspy.

  Examples:
    >>> x, w = Tensor.ones(4, 8).contiguous().realize(), Tensor.ones(8, 2).contiguous().realize()
    >>> y = x @ w
    >>> said = auto(y, mesh=Mesh(("CPU:0", "CPU:1"), names=("d",)))
    >>> 0 <= said.gap < 1
    True
  """
  check_machine(memory, machine)
  roots, on = roots_of("auto", outputs), machine or machines.machine_for(as_mesh("auto", mesh))
  looked = search.Search(model.Model(UOp.sink(*roots), mesh, on))
  if memory is None:
    found = automatic.answered(looked.model, looked.within(None))
  else:
    found = fit.Fitting(looked, lambda chosen: as_placed(chosen.answer, roots), planned_bytes, on, memory).fitted()
  placing = Placing(found.answer)
  apply(placing, roots, found.again)
  placed = roots_of("auto", outputs)
  return replace(found, moved=moved.Moved(lambda: moves_below(placed), placing.leaves))


def moves_below(roots: list[UOp]) -> Moves:
  """What moves when `roots` are realized, and the bytes that each device receives."""
  graph, rows = reports.rows_of(roots)
  return graph, [(u, row.wire) for u, row in rows]


def place_on(mesh: Mesh, roots: Sequence[UOp]) -> Propagation:
  """Places what `roots` are computed from. What a function was given stays where it is, and is moved when it is
  read."""
  placing = place_by_hints(roots, mesh)
  return Propagation(placing.found, apply(placing))


def planned_bytes(roots: Sequence[UOp]) -> float:
  """The bytes that the device with most of them holds while placed values are realized; no kernel is compiled."""
  local = localizing.localize(canonical(reports.as_realized(list(roots)))[0])
  buffers = [Buffer(u.arg.device, u.arg.shape, u.dtype) for u in local.toposort() if u.op is Ops.BUFFER]
  schedule = schedule_of(local, [d for b in buffers for d in one_of_each_kind(b.device)])
  memory = [(b.device, b.nbytes_per_device) for b in buffers] + [(t.device, t.nbytes) for t in schedule.temps]
  held = Counter[str]()
  for at, nbytes in memory:
    held.update(dict.fromkeys(device_set(at), nbytes))
  return max((n for d, n in held.items() if Device.capabilities(d).computes is Computes.KERNELS), default=0)


class Placing:
  """An answer, built. `leaves`: what is not placed yet, where it is to be; `stores`: what fills those that are memory,
  which moves at once; `made`: what each node becomes."""

  def __init__(self, found: Answer, draft: bool = False) -> None:
    self.found = found
    self.leaves: dict[UOp, UOp] = {}
    self.stores: dict[UOp, UOp] = {}
    for u in found.asked.leaves:
      target = found[u]
      assert target is not None
      if u.op is Ops.MOVE:
        self.leaves[u] = decided.moved_to(u.src[0], target, u)
      elif u in random_states or u in program_order.inputs:
        self.leaves[u] = decided.moved_to(u, target, u)
      elif u.device != target:
        self.stores[u] = stored(decided.moved_to(u, target, u), target)
        self.leaves[u] = self.stores[u].src[0]
    self.made = build.build_answer(found, self.leaves)
    self.draft = True
    if not draft:
      self.settled()

  @functools.cached_property
  def written(self) -> dict[UOp, UOp]:
    """What each node would become as the graph is written."""
    with Context(RESHARD=1):  # a hint allows the moves that it takes
      return build.build_answer(self.found, self.leaves, wished=False)

  def settled(self) -> Placing:
    """Looks whether fewer bytes move as the graph is written, and whether as few do if nothing changes; until then it
    is a draft."""
    if self.draft and self.found.decisions is None:
      sink, written, now = self.found.asked.order[-1], self.written, build.as_found(self.found)
      with Context(RESHARD=1):
        best = fewer_bytes(sink, self.made, written)
        self.made = best if now is None else fewer_bytes(sink, now, best)
    self.draft = False
    return self


def fewer_bytes(sink: UOp, made: dict[UOp, UOp], other: dict[UOp, UOp]) -> dict[UOp, UOp]:
  """Of two graphs the one for which fewer bytes move, the first one if as many do. An op is run in the way of its own
  fewest bytes, in either: what that costs further on is only known of a whole graph."""
  one = build.without_hints(made[sink])
  if prices.are_placed_alike(one, build.as_shown(other[sink])):
    return made
  two = build.without_hints(other[sink])
  return made if one is two or reports.bytes_moved(one) <= reports.bytes_moved(two) else other


@uncollected()
def place_by_hints(roots: Sequence[UOp], mesh: Mesh) -> Placing:
  """What `propagate` makes of values."""
  return ByHints(UOp.sink(*roots), mesh).placed()


class ByHints:
  """Which hints count, and what is placed by these. A hint that nobody reads says where a result is to be; one that
  leaves no dim open may state what was decided. One that is met without it is inert: so what was decided can be said
  of any value, and nothing changes."""

  def __init__(self, sink: UOp, mesh: Mesh) -> None:
    self.sink, self.mesh, self.policy = sink, mesh, solve.Policy(STRATEGY.value)
    self.may_be_inert, self.unread = graph.closed_hints(sink), graph.unread_hints(sink)
    self.read = self.may_be_inert - self.unread
    self.opened = [u for u in sink.toposort() if u.op is Ops.CONSTRAIN and graph.has_room(u, mesh)]

  def placed(self) -> Placing:
    """Of the hints that are not met one of the earliest round comes to count, those that are read first, and those that
    say less: others may then be met. So few count that need not; and not many placements are made for many that must:
    with it go half as many results as have, or all hints that say the same of equal layers; and what is read is looked
    at in drafts. In the end each of these is left out once, but for the last, which the others did not meet. Where one
    on a result counts, which of them these are is no matter then."""
    inert, counted = self.may_be_inert, list[Set[UOp]]()
    while not isinstance(found := self.placed_without(inert), Placing):
      counted.append(found)
      inert = inert - found
    for more in counted[:-1]:
      if isinstance(fewer := self.placed_without(inert | more), Placing):
        inert, found = inert | more, fewer
    return found if inert >= graph.unread_hints(self.sink, True) else self.with_results_stated(found, inert)

  def placed_without(self, inert: Set[UOp]) -> Placing | Set[UOp]:
    """What is placed where some hints do not count; if not all of them are met by it, which are to count next."""
    found = graph.answer(self.sink, self.mesh, self.policy, inert)
    if wanting := graph.wanting(found, inert & self.read, self.read - inert):
      return wanting
    placing = Placing(found, draft=bool(self.read))
    if not (unmet := self.unmet_by_draft(placing, inert)):
      placing = self.as_built(placing.settled())
      met = graph.met(inert, placing.made, self.mesh)
      found.met.update(met)
      if not (unmet := inert - met.keys()):
        return placing
    unmet = graph.with_those_below(unmet, inert)
    if unmet & self.read:
      return graph.next_to_count(found, unmet & self.read, self.read - inert)
    return graph.earliest(unmet, found.asked.by_depth, max(len(self.unread - inert) // 2, 1))

  def unmet_by_draft(self, placing: Placing, inert: Set[UOp]) -> Set[UOp]:
    """The hints that a draft does not meet, and what it becomes does not either; none where that is not known yet."""
    if not self.read or not (unmet := inert - graph.met(inert, placing.made, self.mesh).keys()):
      return frozenset()
    if graph.is_as_wished(placing.found, placing.made):
      return unmet
    is_known = not self.opened and unmet == inert - graph.met(inert, placing.written, self.mesh).keys()
    return unmet if is_known else frozenset()

  def with_results_stated(self, placing: Placing, inert: Set[UOp]) -> Placing:
    """The same leaves and results, with what is between decided from these alone: as it was, if they can't be had so,
    or what is inert is not met then."""
    asked = placing.found.asked
    again = self.as_built(Placing(graph.restated(placing.found, placing.made, graph.ends(asked), self.policy)))
    if not graph.met(inert, again.made, self.mesh).keys() >= inert:
      return placing
    roots = self.sink.src
    cuts = ([graph.cuts_on(way.made[u], self.mesh) for u in roots] for way in (placing, again))
    return again if next(cuts) == next(cuts) else placing

  def as_built(self, placing: Placing) -> Placing:
    """What follows from what is between being where it was built, which may not be where the answer wishes it, as often
    as fewer bytes move then: hints that are open, and moves for them, follow what was built."""
    while self.opened and not graph.is_as_wished(placing.found, placing.made):
      found = graph.restated(placing.found, placing.made, graph.between(placing.found.asked), self.policy)
      if all(found[u] == placing.found[u] for u in self.opened):
        break
      again = Placing(found)
      now, then = (reports.bytes_moved(build.without_hints(way.made[self.sink])) for way in (placing, again))
      if then >= now:
        break
      placing = again
    return placing


@uncollected()
def apply(placing: Placing, roots: Sequence[UOp] = (), again: Recomputation | None = None) -> dict[UOp, UOp]:
  """Every live tensor at the placements of an answer, and what is read late below `roots` computed `again`; of each
  node that was placed, what it was."""
  found, made, leaves = placing.found, placing.made, placing.leaves
  with recorders.emptied():
    realize(*placing.stores.values())
  graph.first_uid.update({leaves[u].base: graph.first_uid.get(u, u.arg.uid) for u in placing.stores})
  hints = (u for u in found.asked.order if u.op is Ops.CONSTRAIN and u not in found.asked.inert)
  graph.counted.update(handed.before_moves(made[u]) for u in hints)
  handed.follow_gradients(made, found.asked.gradients)
  reasons.note_reasons(found, made)
  if again is not None:
    late = again.applied([made[u] for u in roots])
    made = {u: late.get(v, v) for u, v in made.items()}
  placed = {u: v for u, v in made.items() if u in found.asked.number}
  replaced = Replacement({u: v for u, v in placed.items() if u is not v})
  replaced.done.update(placed)  # what is as it was stays, whatever becomes of the moves below it
  for t in program_order.live():
    if t.follows and t.uop.base in program_order.inputs:
      continue
    if (v := replaced.of(t.uop)) is not t.uop:
      t.uop = v
  return {v: u for u, v in reversed(made.items())}


def as_propagated(roots: Sequence[UOp], mesh: Mesh) -> list[UOp]:
  """What `propagate` would make of values."""
  return noted(place_by_hints(roots, as_mesh("explain", mesh)), roots)


def as_placed(found: Answer, roots: Sequence[UOp]) -> list[UOp]:
  """What `apply` would make of values. Memory that it would move is stood for by buffers that nobody fills; no tensor
  changes."""
  return noted(Placing(found), roots)


def noted(placing: Placing, roots: Sequence[UOp]) -> list[UOp]:
  """What values become, each with its reasons."""
  reasons.note_reasons(placing.found, placing.made)
  return [placing.made[u] for u in roots]


Hooks.propagated, Hooks.reports = as_propagated, reports
