"""The order of the program: what tensors stand for while assignments and replays write to memory that others read.

docs/assignment.md says what is shown to whom. This room knows of a tensor (`Live`) its node, whether it follows memory,
and the number of its last change."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from tinygrad.device import reduced_placement
from tinygrad.engine.realize import realize
from tinygrad.engine.run import recorders
from tinygrad.helpers import Holder, OfThread, ThreadList, dedup, in_turn, living, uninterrupted
from tinygrad.ops import Trait, having
from tinygrad.sharding.costs import at_placement
from tinygrad.sharding.replacement import Replacement
from tinygrad.uop import Ops, Ref, UOp, buffer_of, side_table

VIEWS = having(Trait.VIEW)
ClosedOver = dict[Holder, UOp]
closed_over: ThreadList[ClosedOver] = ThreadList()
"""For each capture that goes on the tensors that it has read from outside, and what they stand for."""


class Live(Protocol):
  """A tensor, as far as its place in the program goes."""

  uop: UOp
  follows: bool  # whether it is memory, or a view of it; otherwise a value, which stays as it was when it was made
  _holder: Holder


def memory_state(u: UOp, moved: bool = False) -> UOp | None:
  """The BUFFER, or its newest AFTER, that `u` is a view of; None if `u` is computed. `moved`: also where
  elements had to move for the view (flat, of an uneven cut); such a view reads what is written to the memory."""
  while u.op in VIEWS or (moved and u.op is Ops.MOVE and not u.arg.pinned):
    u = u.src[0]
  return u if u.op is Ops.BUFFER or u.op is Ops.AFTER else None


class ProgramOrder:
  """Every tensor that lives, in the order of its last change: what a realize, an assignment, `backward` and a replay
  look through."""

  inputs = OfThread(set[UOp]())  # memory that a function was given, which stays where it is

  def __init__(self) -> None:
    self.now = 0  # the number of the last change of a tensor
    self.ended: Any  # what gradients do not flow through: transforms/ended.py
    self.step_gradients: Any  # what captured functions do with gradients: transforms/step_gradients.py
    self.steps: list[tuple[int, int]] = []  # that go on: the thread, and the number at which it began
    self._live: dict[Holder, None] = {}
    self._graphs: dict[Holder, None] = {}  # those that are more than memory as it is: a realize must not look at all
    # by state of memory the tensors that are or were views of it: to write to one must not look at all that live
    self._views: dict[Ref, dict[int, Holder]] = side_table()
    # buffers of values that were computed because memory which they read was to be written: no tensor follows them
    self._unowned: weakref.WeakSet[UOp] = weakref.WeakSet()

  # ---- who lives

  def enter(self, t: Live) -> None:
    """Notes that a tensor is new."""
    t._holder = holder = Holder(t, self._leave)
    holder.thread, holder.assigned = threading.get_ident(), False
    holder.born = holder.number = self.now = self.now + 1
    self._live[holder] = None
    self.sees(t, t.uop)

  def _leave(self, holder: Holder) -> None:
    self._live.pop(holder, None)
    self._graphs.pop(holder, None)

  def reenter(self, t: Live, assigned: bool = False) -> None:
    """Notes that a tensor stands for something new."""
    holder, live = t._holder, self._live
    holder.thread, holder.assigned = threading.get_ident(), assigned
    holder.number = self.now = self.now + 1
    del live[holder]  # nothing is called until it is the last one, so that no Ctrl-C comes between
    live[holder] = None

  def sees(self, t: Live, u: UOp) -> None:
    """Notes that a tensor, once it is entered, is to stand for `u`, and of what memory it then is a view."""
    if u.op is Ops.BUFFER:
      self._graphs.pop(t._holder, None)
      state: UOp | None = u
    else:
      self._graphs[t._holder] = None
      state = memory_state(u, moved=True)
    if state is not None:
      views, number = self._views.setdefault(state.ref, {}), id(t)
      if number not in views:
        views[number] = Holder(t, lambda _: views.pop(number))

  def live(self) -> list[Any]:
    return living(self._live)

  def views(self, state: UOp) -> list[Any]:
    """The tensors that are or were views of a state of memory."""
    return living(self._views.get(state.ref, {}).values())

  def standing(self, nodes: Iterable[UOp]) -> list[Any]:
    """The tensors that are more than memory as it is, and those that are or were views of states of memory among these
    nodes, in the order of their last change."""
    found = {id(t): t for u in nodes if u.op is Ops.BUFFER or u.op is Ops.AFTER for t in self.views(u)}
    found.update((id(t), t) for t in living(self._graphs))
    return sorted(found.values(), key=lambda t: t._holder.number)

  def changed(self, since: int) -> list[Any]:
    """The tensors that have changed after number `since`, the last one first."""
    while True:
      try:
        return living(itertools.takewhile(lambda h: h.number > since, reversed(self._live)))
      except RuntimeError:  # another thread, or a collection of garbage, has changed who lives: look again
        continue

  def changed_here(self, since: int) -> list[Any]:
    """Those of them that it was this thread which changed."""
    return [t for t in self.changed(since) if t._holder.thread == threading.get_ident()]

  def assigned(self, since: int) -> list[Any]:
    """The tensors that this thread has assigned to after number `since`: those whose memory waits for it, and those
    that had none and stand for the value."""
    mine = [t for t in self.changed_here(since) if t._holder.assigned]
    return _with_values([t for t in mine if t.uop.op is not Ops.BUFFER or not t.follows])

  # ---- what runs

  def own(self, asked: Sequence[Live]) -> None:
    """Before a realize: a value whose node is, or becomes, another tensor's memory is to be a copy."""
    taken: set[UOp] = set()
    for t in asked:
      if not t.follows and (t.uop in taken or (memory_state(t.uop) is not None and t.uop not in self._unowned)):
        t.uop = t.uop.clone()
      self._unowned.discard(t.uop)
      taken.add(t.uop)

  @in_turn
  def run(self, asked: Sequence[Live], read: Sequence[Live] = ()) -> list[UOp]:
    """Computes `asked` and `read`, in one go with all that has to happen by then (what reads memory that an assignment
    among them overwrites, the assignments that this takes; before, if a variable has another value): so what is asked
    for first does not matter. Each tensor but `read` then holds its buffer; returns what `read` would be."""
    roots = {id(t): _root(t) for t in asked} | {id(t): t.uop for t in read}
    whole = UOp.sink(*roots.values())  # which keeps its order while it lives, for all who ask
    began = max((n for thread, n in self.steps if thread == threading.get_ident()), default=0)
    if recorders:
      for noted in closed_over[-1:]:
        noted.update(self._read_from_outside(set(whole.toposort()), began))
      if earlier := [t for t in self.readers(roots) if t._holder.number <= began]:
        with recorders.emptied():  # a replay must not write to them
          self._due_now(earlier)
        return self.run(asked, read)
    due: list[Live] = []
    while more := self.readers(roots):
      for t in more:
        _copy_value(t)
        roots[id(t)] = _root(t)
      due += more
    if apart := _bound_otherwise([*asked, *due], UOp.sink(*(t.uop for t in read))):
      for t in apart:  # first what is to be written: that writes to nothing which others wait to read
        values = (u.src[1] for u in _root(t).toposort() if u.op is Ops.ASSIGN and u.src[1].bound)
        self.run([next(map(type(t), values), t)])
      return self.run(asked, read)
    order, planned = dedup(roots.values()), dict[UOp, object]()
    with contextlib.ExitStack() as begun:  # a Ctrl-C between would leave effects that happened to happen again
      done = realize(*order, starting=lambda sink: planned.setdefault(sink, begun.enter_context(uninterrupted())))
      made = dict(zip(order, done, strict=True))
      self.rebase([*asked, *due], [*order, *planned], {(u := roots[id(t)]): made[u] for t in (*asked, *due)})
      self._unowned.update(t.uop for t in due if not t.follows)
      for t in asked:
        t.follows = True
    return [made[roots[id(t)]] for t in read]

  def _read_from_outside(self, nodes: set[UOp], before: int) -> ClosedOver:
    """Of the tensors older than number `before` that are among these nodes, and not given: what they stand for."""
    found = (t for t in self.standing(nodes) if t.uop in nodes and t._holder.number <= before)
    return self.stand(found)

  def stand(self, tensors: Iterable[Live]) -> ClosedOver:
    """What tensors stand for that are not given."""
    return {t._holder: u for t in tensors if (u := _stands_for(t)) not in self.inputs}

  def outdated(self, noted: ClosedOver) -> list[Any]:
    """The tensors that stand for something else by now: a value that was changed, or computed, or other memory."""
    changed = ((t, u) for h, u in noted.items() if (t := h()) is not None and t.uop is not u)
    return [t for t, u in changed if _stands_for(t) is not u]

  def computed_of(self, noted: ClosedOver, memory: Collection[int]) -> list[Any]:
    """The tensors among those noted that are computed of Buffers (by id), in which a replay finds something else."""
    below = _depending(noted.values(), lambda u: u.op is Ops.BUFFER and id(buffer_of(u)) in memory)
    return living(h for h, u in noted.items() if u in below and u.op is not Ops.BUFFER)

  @contextlib.contextmanager
  def step(self) -> Iterator[int]:
    """While a captured function runs: what this thread assigns is left to it. Gives the number at which it begins."""
    self.steps.append(entry := (threading.get_ident(), self.now))
    try:
      yield entry[1]
    finally:
      self.steps.remove(entry)

  @in_turn
  def settle(self, since: int, written: set[int], used: set[int] | None) -> None:
    """Before Buffers (by id) are `written` and `used` (None: nobody knows which) of which no graph tells: assignments
    happen, those of other threads if they need the same memory, and values that read what is written are computed, as
    far as their tensors have changed after number `since`."""
    due, me = list[Live](), threading.get_ident()
    began = {thread: n for thread, n in reversed(self.steps.copy()) if thread != me}  # of each its outermost step
    for t in self.changed(since):
      mine = t._holder.thread == me and t._holder.assigned
      state = memory_state(t.uop, moved=True) if t.follows else None
      captured = t._holder.number > began.get(t._holder.thread, self.now)  # perhaps, by the thread that has made it
      if captured or (t.follows and (state is None or state.op is Ops.BUFFER)):  # or memory as it is
        continue
      nodes = t.uop.toposort()
      memory = {id(buffer_of(u)) for u in nodes if u.op is Ops.BUFFER}
      waits = any(u.op is Ops.AFTER for u in nodes) and (mine or used is None or not memory.isdisjoint(used))
      if waits or not memory.isdisjoint(written):
        due.append(t)
    if due := _with_values(due):
      self._due_now(due)

  def _due_now(self, tensors: Sequence[Live]) -> None:
    """Computes values, and does what was assigned, before something else happens. A value stays one: its memory is no
    tensor's, nor read by what is equal to it, which a step may have to compute for itself."""
    values = [t for t in tensors if not t.follows]
    for t in values:
      t.uop = t.uop.clone()
    self.run(tensors)
    self._unowned.update(t.uop for t in values)
    for t in values:
      t.follows = False

  def readers(self, roots: dict[int, UOp]) -> list[Live]:
    """Live tensors, but for those (by id) of `roots`, that read a state of memory which an assignment below these
    overwrites."""
    order = UOp.sink(*roots.values()).toposort()
    reads: dict[UOp, bool] = {}  # whether a value depends on such a state
    for u in order:
      if u.op is Ops.ASSIGN and (state := memory_state(u.src[0])) is not None:
        reads[state] = True
    if not reads:
      return []
    waiting, first = [], min(u.number for u in reads)  # what was made before it does not contain it
    for u in order:  # what happens now, happens in order
      if u.op is Ops.AFTER or u.op is Ops.ASSIGN:
        reads.setdefault(u, False)
    for t in self.standing(reads):
      state = memory_state(t.uop, moved=True) if t.follows else None
      if state is None or (state.op is Ops.AFTER and state not in reads):  # views of memory follow it
        for u in t.uop.toposort(lambda u: u.number >= first and u not in reads):
          reads[u] = any(reads.get(s) for s in u.src)
        if reads.get(t.uop) and id(t) not in roots:
          waiting.append(t)
    return _with_values(waiting)

  def rebase(self, asked: Sequence[Live], roots: Sequence[UOp], made: dict[UOp, UOp]) -> None:
    """After `roots` have run: live tensors that contain what was `made`, or wait for effects that have happened, read
    buffers instead.

    A tensor that happens to be equal to a root without having been asked for does not get its buffer, and what was made
    of it does not read that: it can still be differentiated."""
    order = UOp.sink(*roots).toposort()
    done = {u: u.base for u in order if u.op is Ops.AFTER}
    done.update((u, v) for u, v in made.items() if u is not v)
    if not done:
      return
    live, holders, first = self.standing(order), {id(t) for t in asked}, min(u.number for u in done)
    self.ended.note_made(live, order, made)
    equal = {t.uop for t in live if t.uop in made and id(t) not in holders and t.uop.op is not Ops.AFTER}
    replacement = Replacement(done)
    others = Replacement({u: v for u, v in done.items() if u not in equal}) if equal else replacement
    for t in live:
      u = t.uop
      if u.op is Ops.BUFFER or u.op is Ops.CONST or u.number < first:
        continue
      v = (replacement if id(t) in holders else others).of(u)
      if v is not u:  # else another thread's tensor may stand for something newer by now
        where = reduced_placement(u.device)  # where the tensor showed it
        t.uop = v if reduced_placement(v.device) == where else at_placement(v, where)


def _depending(roots: Iterable[UOp], on: Callable[[UOp], bool]) -> set[UOp]:
  """The nodes of these graphs that are such a node, or depend on one."""
  found = set[UOp]()
  for u in UOp.sink(*roots).toposort():
    if on(u) or not found.isdisjoint(u.src):
      found.add(u)
  return found


def _with_values(tensors: list[Live]) -> list[Live]:
  """All but those that somebody has kept of a function that was traced: what they are made of stands for arguments."""
  traced = _depending((t.uop for t in tensors), lambda u: u.op is Ops.HOLE) if tensors else ()
  return [t for t in tensors if t.uop not in traced]


def _root(t: Live) -> UOp:
  """What has to run for `t`: of a view its memory."""
  state = memory_state(t.uop, moved=True) if t.follows else None
  return t.uop if state is None else state


def _stands_for(t: Live) -> UOp:
  """The BUFFER that `t` is a view of; of a value its node."""
  state = memory_state(t.uop, moved=True) if t.follows else None
  return t.uop if state is None else state.base


def _bound_otherwise(tensors: Sequence[Live], sink: UOp) -> list[Live]:
  """Those in which a variable has another value than below `sink` and in those before."""
  known, apart = dict(sink.bound), list[Live]()
  for t in tensors:
    if any(known.get(v, n) != n for v, n in _root(t).bound):
      apart.append(t)
    else:
      known.update(_root(t).bound)
  return apart


def _copy_value(t: Live) -> None:
  """A value that lies in memory is to be a copy: the memory is about to be written."""
  if not t.follows and memory_state(t.uop) is not None:
    t.uop = t.uop.clone()


program_order = ProgramOrder()
