"""Where stored values lie: in a slot of the schedule, a buffer or an intermediate memory, laid out row-major by upper
bounds of symbolic dims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tinygrad.device import Placement, Sharding
from tinygrad.helpers import prod
from tinygrad.ops import Trait, having
from tinygrad.schedule.items import Temp
from tinygrad.uop import Ops, UOp, is_int
from tinygrad.uop.indexing import Index, flat_index
from tinygrad.uop.node import sint_to_uop as number

TRANSPARENT = having(Trait.IDENTITY)
MEMORY = having(Trait.MEMORY)
CONTENT = MEMORY | having(Trait.IDENTITY, Trait.EFFECT)  # of memory: as it is at first, or after effects
IN_MEMORY = having(Trait.IN_MEMORY)
LEAVES = CONTENT | having(Trait.PLACELESS)


def elements(u: UOp) -> int:
  """Elements, by the upper bounds of symbolic dims."""
  return int(prod(u.max_shape))


def nbytes(u: UOp) -> int:
  return elements(u) * u.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Home:
  """Where a stored value lies: its slot, the shape by which it is laid out (row-major, upper bounds of symbolic dims),
  and how many elements the memory has; in a part of larger memory also where that begins."""

  slot: int
  shape: tuple[int, ...]
  size: int
  start: UOp | None = None

  def place(self, idx: Index) -> UOp:
    """Of an element, in the memory."""
    flat = flat_index(idx, self.shape)
    return flat if self.start is None else flat + self.start


def is_fence(u: UOp) -> bool:
  """An AFTER of nothing: the memory itself, where it is written to."""
  return u.op is Ops.AFTER and len(u.src) == 1


def keeps_order(u: UOp) -> bool:
  """A reshape that leaves every element where it is in memory."""
  return u.op is Ops.RESHAPE and all(isinstance(n, int) for n in (*u.shape, *u.src[0].shape))


def peel(u: UOp) -> UOp:
  """Below reshapes that leave every element where it is in memory."""
  return next(v for v in u.down() if not keeps_order(v))


def in_one_memory(u: UOp) -> Iterator[UOp]:
  """`u`, and what may lie where it does: below what leaves every element where it is."""
  for v in u.down():
    yield v
    if not keeps_order(v) and v.op not in TRANSPARENT and v.op is not Ops.CONTIGUOUS:
      return


def stretch(view: UOp) -> tuple[UOp, UOp | None]:
  """(memory, where the view begins in it; None: it is all of it, or only shorter by a symbol) of a view whose elements
  lie side by side there. Memory is laid out by upper bounds, so that a shrink to a symbolic length moves nothing."""
  view, start = peel(view), None
  while view.op is Ops.SHRINK:
    below, sizes = view.src[0], view.src[0].max_shape
    cut = [i for i, (n, m) in enumerate(zip(view.max_shape, sizes)) if n != m]
    if cut or not all(is_int(lo, 0) for lo, _ in view.arg):
      if start is not None or any(not is_int(n, 1) for n in view.shape[: max(cut, default=0)]):
        break
      if not all(isinstance(n, int) for n in (*view.shape, *below.shape)):
        break
      start = flat_index([number(lo) for lo, _ in view.arg], sizes)
    view = below
  return view.src[0] if is_fence(view) else view, start


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
      if u.op in MEMORY:  # of parts the SHARD, which is what is read
        self.homes[u] = Home(number[u.src[0] if u.src else u], u.max_shape, elements(u))
    readers = Counter(s for u in nodes for s in u.src)
    # a copy between devices and a user's kernel know no part of a memory: what they write and read is a whole one
    apart = {v for u in nodes if u.op in IN_MEMORY for x in (u, *u.src) for v in in_one_memory(x)}
    for u in nodes:
      if u.op is not Ops.ASSIGN or any(readers[x] > 1 for x in u.src[0].down()):
        continue
      (buffer, start), value = stretch(u.src[0]), peel(u.src[1])
      if buffer not in self.homes or value in self.homes or value.op in LEAVES:
        continue
      if start is None or value not in apart:
        memory = self.homes[buffer]
        self.homes[value] = Home(memory.slot, value.max_shape, memory.size, start)
    for u in stored:
      if u not in self.homes:
        below = peel(u.src[0]) if u.op is Ops.CONTIGUOUS else u
        there = None if below.op in MEMORY else self.homes.get(below)
        self.homes[u] = replace(there or self.new_home(u), shape=u.max_shape)

  def new_home(self, u: UOp) -> Home:
    """In a temporary."""
    slot, device = len(self.buffers) + len(self.temps), self.where[u]
    # memory is shared whatever the cuts
    alike = Sharding.of(device.mesh, ()) if isinstance(device, Sharding) else device
    self.temps[slot] = Temp(alike, nbytes(u))
    return Home(slot, u.max_shape, elements(u))

  def slot_of(self, view: UOp) -> int:
    return next(self.homes[v].slot for v in view.down() if v in self.homes)
