"""The order of a schedule's steps: sources first, and who reads a buffer's old content before who overwrites it; and
which content that is."""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tinygrad.schedule.items import ScheduleItem
from tinygrad.uop import Collective, Ops, UOp

Version = frozenset[UOp]  # the ASSIGNs that a reader of a buffer sees
State = tuple[int, Version]  # the content of a slot at a time


def versions(nodes: Sequence[UOp]) -> Mapping[UOp, Version]:
  """The ASSIGNs that have happened to the buffer that a node stands for."""
  seen, below = defaultdict[UOp, Version](frozenset), dict[UOp, Version]()  # those of a reader, all below
  for u in UOp.sink(*(u for u in nodes if u.op is Ops.AFTER)).toposort():
    own = (u,) if u.op is Ops.ASSIGN else ()
    parts = {v for s in u.src if (v := below[s])}
    below[u] = parts.pop() if len(parts) == 1 and not own else frozenset(own).union(*parts)
    if u.op is Ops.AFTER or u.op is Ops.DETACH:  # what is read is what lies there
      seen[u] = seen[u.src[0]].union(*(below[s] for s in u.src[1:]))
  return seen


class ScheduleError(RuntimeError):
  """Effects in an order that cannot be."""


@dataclass(slots=True)
class KernelToBe:
  """A kernel to be: the value `root` (or the ASSIGN `root`), what it waits for, what it reads and writes, in which
  version."""

  root: UOp
  after: set[int]
  reads: list[tuple[int, Version]]
  writes: int
  item: ScheduleItem | None = None
  waits: list[int] = field(default_factory=list)  # the slots of what it waits for, and does not read
  moves: list[Collective] = field(default_factory=list)


class Order:
  """Orders `steps`; `made`: stored value or ASSIGN -> its step; `nbytes`: of intermediate values, by
  slot, where steps wait for the sake of memory."""

  def __init__(self, steps: Sequence[KernelToBe], made: Mapping[UOp, int], nbytes: Mapping[int, int]) -> None:
    self.steps, self.made, self.nbytes = steps, made, nbytes
    self.copies: set[State] = set()  # contents that no order of the steps keeps for all who read them

  def run(self) -> list[KernelToBe]:
    """Sources first, and who reads a buffer's old content before who overwrites it; otherwise first what leaves most
    memory, then as the graph lists them. Content that is needed after it must be overwritten goes to `copies`; the
    order then holds once these exist."""
    readers: dict[int, list[tuple[int, Version]]] = {}
    for i, s in enumerate(self.steps):
      for slot, version in s.reads:
        readers.setdefault(slot, []).append((i, version))
    waiting = [set(s.after) for s in self.steps]
    for i, s in enumerate(self.steps):
      if s.root.op is Ops.ASSIGN:
        waiting[i] |= {r for r, version in readers.get(s.writes, ()) if r != i and s.root not in version}
    then: dict[int, list[int]] = {}
    for i, before in enumerate(waiting):
      for j in before:
        then.setdefault(j, []).append(i)
    users = [{j for j in then.get(i, ()) if i in self.steps[j].after} for i in range(len(self.steps))]
    ready = [(self.takes(i, users), i) for i, before in enumerate(waiting) if not before]
    heapq.heapify(ready)
    out: dict[int, None] = {}
    while len(out) < len(self.steps):
      i = heapq.heappop(ready)[1] if ready else self.unblock(waiting, readers)
      if i in out:
        continue
      out[i] = None
      for j in then.get(i, ()):
        if i in waiting[j]:
          waiting[j].remove(i)
          if not waiting[j]:
            heapq.heappush(ready, (self.takes(j, users), j))
      for j in self.steps[i].after if self.nbytes else ():
        users[j].discard(i)
        for k in users[j] if len(users[j]) == 1 else ():  # the last one
          if not waiting[k]:
            heapq.heappush(ready, (self.takes(k, users), k))
    return [self.steps[i] for i in out]

  def takes(self, i: int, users: Sequence[set[int]]) -> int:
    """The bytes that a step takes less those that it leaves, of what it is the last to read; 1 if it leaves fewer."""
    step = self.steps[i]
    freed = sum(self.nbytes.get(self.steps[j].writes, 0) for j in step.after if users[j] == {i})
    taken = self.nbytes.get(step.writes, 0)
    return taken - freed if 0 < freed >= taken else 1

  def unblock(self, waiting: Sequence[set[int]], readers: Mapping[int, Sequence[tuple[int, Version]]]) -> int:
    """An ASSIGN that can run now if what is still to be read of the old content is copied first; notes the copies.

    Of the steps that wait, the first in the order of data waits for readers only. What these read is complete, unless
    it is after an ASSIGN that is not before this one."""
    diverging: list[UOp] = []
    for i, s in enumerate(self.steps):
      if not waiting[i] or any(j in waiting[i] for j in s.after):
        continue
      old = {v for r, v in readers[s.writes] if r in waiting[i] and s.root not in v}
      if any(waiting[self.made[a]] for v in old for a in v):
        diverging.append(s.root)
        continue
      self.copies |= {(s.writes, v) for v in old}
      waiting[i].clear()
      return i
    assert diverging, "steps wait for each other's values"
    what = f"{diverging[0].dtype.name}{list(diverging[0].src[0].shape)}"
    problem = f"two assigns to one buffer ({what}), neither after the other, and both contents are needed"
    raise ScheduleError(f"{problem}\n  fix: write to a .clone() of it for one of them")
