"""Slots of a schedule: in which memory each stored value lies, a buffer or an intermediate one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tinygrad.device import Placement, Sharding
from tinygrad.schedule import fuse
from tinygrad.schedule.homes import Home, in_one_memory, peel, stretch
from tinygrad.schedule.items import Temp
from tinygrad.uop import Ops, UOp


class Slots:
  """`homes` of what is stored, and `temps`, the intermediate memory by slot; the buffers' slots are the first.

  `nodes`: the graph, sources first; `where` each is computed. What is `stored` lies in the buffer that it is assigned
  to, if that is new; else in a temporary."""

  def __init__(self, nodes: Sequence[UOp], where: Mapping[UOp, Placement], stored: Sequence[UOp]) -> None:
    self.where = where
    self.buffers = [u for u in nodes if u.op is Ops.BUFFER]
    self.homes: dict[UOp, Home] = {}
    self.temps: dict[int, Temp] = {}
    number = {u: i for i, u in enumerate(self.buffers)}
    for u in nodes:
      if u.op in fuse.MEMORY:  # of parts the SHARD, which is what is read
        self.homes[u] = Home(number[u.src[0] if u.src else u], u.max_shape, fuse.elements(u))
    readers = Counter(s for u in nodes for s in u.src)
    # a copy between devices and a user's kernel know no part of a memory: what they write and read is a whole one
    users = [u for u in nodes if u.op is Ops.COLLECTIVE or u.op is Ops.CALL]
    apart = {v for u in users for x in (u, *u.src) for v in in_one_memory(x)}
    for u in nodes:
      if u.op is not Ops.ASSIGN or any(readers[x] > 1 for x in u.src[0].down()):
        continue
      (buffer, start), value = stretch(u.src[0]), peel(u.src[1])
      if buffer not in self.homes or value in self.homes or value.op in fuse.LEAVES:
        continue
      if start is None or value not in apart:
        memory = self.homes[buffer]
        self.homes[value] = Home(memory.slot, value.max_shape, memory.size, start)
    for u in stored:
      if u not in self.homes:
        below = peel(u.src[0]) if u.op is Ops.CONTIGUOUS else u
        there = None if below.op in fuse.MEMORY else self.homes.get(below)
        self.homes[u] = replace(there or self.new_home(u), shape=u.max_shape)

  def new_home(self, u: UOp) -> Home:
    """In a temporary."""
    slot, device = len(self.buffers) + len(self.temps), self.where[u]
    # memory is shared whatever the cuts
    alike = Sharding.of(device.mesh, ()) if isinstance(device, Sharding) else device
    self.temps[slot] = Temp(alike, fuse.nbytes(u))
    return Home(slot, u.max_shape, fuse.elements(u))

  def slot_of(self, view: UOp) -> int:
    return next(self.homes[v].slot for v in view.down() if v in self.homes)
