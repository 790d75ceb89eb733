"""What a kernel reads of devices whose memory its own cannot reach, and how that comes to them.

Which elements these are is found from the kernel's own indices, so it holds for whatever a kernel computes beside the
communication that it is. The parts of its iterations are looked at by the bounds of their indices, and halved until
these say all, or until there are few elements, which are looked at one by one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinygrad.device import Buffer, Device, PeerCopy
from tinygrad.device.reach import within_reach
from tinygrad.dtype import dtypes
from tinygrad.helpers import numpy, prod
from tinygrad.runtime.transfer import as_bytes, host_array
from tinygrad.schedule.items import ScheduleItem
from tinygrad.uop import DEVICE_NUM, RANGES_FROM, Ops, UOp, evaluate, simplify, substitute

Bounds = dict[UOp, tuple[int, int]]  # least and greatest value
FEW = 1 << 14  # elements that are looked at one by one
MOST = 1 << 12  # parts of a kernel's iterations that are looked at


@dataclass(frozen=True, slots=True, eq=False)
class PeerPart:
  """What devices elsewhere read of the memory of device `number` of a buffer: elements of `itemsize` bytes, for memory
  of one of these devices that has the same layout."""

  source: Buffer
  number: int
  target: Buffer
  elements: Any  # a slice, or the numbers of the elements in order
  itemsize: int

  def view(self, memory: memoryview | None) -> Any:
    """Memory of one of both ends as rows of bytes, one for each element."""
    assert memory is not None
    nbytes = self.source.nbytes_per_device
    return numpy.frombuffer(memory, numpy.uint8, nbytes).reshape(-1, self.itemsize)

  def peer_copy(self) -> PeerCopy:
    """By the devices; of elements that do not lie side by side what lies between goes with them."""
    at = self.elements
    first, end = (at.start, at.stop) if isinstance(at, slice) else (int(at[0]), int(at[-1]) + 1)
    target = Device[self.target.devices[0]], self.target.handle()
    source = Device[self.source.devices[self.number]], self.source.handle(self.number)
    offset, nbytes = first * self.itemsize, (end - first) * self.itemsize
    return PeerCopy(*target, offset, *source, offset, nbytes)

  @property
  def nbytes(self) -> int:
    return bytes_found((self.elements, self.itemsize))

  def read(self) -> Any:
    """The elements side by side, as bytes in memory of the host; who calls has waited for what writes them."""
    name, handle = self.source.devices[self.number], self.source.handle(self.number)
    if (memory := Device[name].view(handle)) is None:
      row = Buffer(name, (self.source.nbytes_per_device,), dtypes.uint8).allocate([handle])
      memory = as_bytes(host_array(row, 0))
    return numpy.ascontiguousarray(self.view(memory)[self.elements])

  def room(self) -> Any:
    """Memory of the host for them: where they are to be, if that is in one piece and the host can address it."""
    memory = Device[self.target.devices[0]].view(self.target.handle())
    if memory is not None and isinstance(self.elements, slice):
      return self.view(memory)[self.elements]
    return numpy.empty((self.nbytes // self.itemsize, self.itemsize), numpy.uint8)

  def write(self, values: Any) -> None:
    """What `read` gives to where it is read, unless it is there, in `room`."""
    backend, handle, at = Device[self.target.devices[0]], self.target.handle(), self.elements
    if (memory := backend.view(handle)) is not None:
      rows = self.view(memory)
      if not isinstance(at, slice) or not numpy.may_share_memory(rows, values):
        rows[at] = values
    elif isinstance(at, slice):
      backend.copyin(handle, as_bytes(values), at.start * self.itemsize)
    else:
      whole = self.view(as_bytes(numpy.array(host_array(self.target, 0))))
      whole[at] = values
      backend.copyin(handle, as_bytes(whole))


def bring_parts(parts: Sequence[PeerPart]) -> None:
  if Device.world is None:
    bring_here(parts)
  else:
    Device.world.bring(parts)


def bring_here(parts: Sequence[PeerPart]) -> None:
  """Between devices of this process. Those that can do so copy from one another, behind what is queued; else all is
  waited for, and passes through the host."""
  kinds = {Device[d].kind: Device[d].capabilities for p in parts for d in (*p.source.devices, *p.target.devices)}
  if [c.copies for c in kinds.values()] == [True]:
    copies = [part.peer_copy() for part in parts]
    copies[0].target.copy_all(copies)
    return
  wait_for(parts)
  for part in parts:
    part.write(part.read())


def wait_for(parts: Sequence[PeerPart]) -> None:
  """Until what is read has been written, and what was brought before has been read."""
  for name in dict.fromkeys(d for p in parts for d in p.source.devices):
    if Device.here(name):
      Device[name].synchronize()


@dataclass(frozen=True, slots=True, eq=False)
class PeerCopies:
  """Copies of what a kernel reads of devices that its own do not reach: one for all of a group that reach each other.
  `memory`: of the kernel's parameters; `peers`: the numbers of those of which it reads everybody's."""

  item: ScheduleItem
  memory: list[Buffer]
  peers: Sequence[int] = ()
  made: dict[tuple[int, int, int], Buffer] = field(default_factory=dict)  # by parameter, whose, and for which group

  @property
  def apart(self) -> bool:
    """Whether there are any."""
    devices = self.item.devices if self.peers else ()
    return len(devices) > 1 and not Device[devices[0]].capabilities.simulated and len(within_reach(devices)) > 1

  @property
  def delivered(self) -> bool:
    """Whether they are filled beside the devices' work: those of processors, of what other hosts hold."""
    return self.apart and Device.world is not None and all(Device.capabilities(d).processor for d in self.item.devices)

  def pointers(self, i: int, d: int) -> Any:
    """Parameter i on device number d: its memory, or everybody's."""
    if i not in self.peers:
      return self.memory[i].handle(d)
    near, every = next(g for g in within_reach(self.item.devices) if d in g), range(len(self.item.devices))
    return [(self.memory[i].handle(k) if k in near else self.copy(i, k, near).handle()) for k in every]

  def copy(self, i: int, k: int, near: Sequence[int]) -> Buffer:
    """Of device k's memory of parameter i, on one of the devices `near`, for all of them."""
    row, device = (self.memory[i].nbytes_per_device,), self.item.devices[near[k % len(near)]]
    return self.made.setdefault((i, k, near[0]), Buffer(device, row, dtypes.uint8)).allocate()

  def all_made(self) -> list[Buffer]:
    groups, every = within_reach(self.item.devices) if self.apart else [], range(len(self.item.devices))
    return [self.copy(i, k, near) for i in self.peers for near in groups for k in every if k not in near]

  def parts(self) -> list[PeerPart]:
    """What fills them."""
    assert isinstance(self.item.kernel, UOp), "plans from disk have none (runtime/plans.py)"
    parts, n = list[PeerPart](), len(self.item.devices)
    for group in within_reach(self.item.devices):
      found = elements_read(self.item.kernel, self.item.constants, tuple(group), n)
      parts += [PeerPart(self.memory[i], k, self.copy(i, k, group), *what) for (i, k), what in found.items()]
    return parts


def bytes_by_level(item: ScheduleItem) -> tuple[int, int]:
  """What kernels read of other devices: of those that they reach, each device for itself; and of all others, once for a
  group of devices that reach each other."""
  if not isinstance(item.kernel, UOp):
    return 0, 0
  inside = between = 0
  for group in within_reach(item.devices):
    read = functools.partial(elements_read, item.kernel, item.constants, count=len(item.devices))
    inside += sum(bytes_found(what) for d in group for (_, k), what in read((d,)).items() if k in group)
    between += sum(map(bytes_found, read(tuple(group)).values()))
  return inside, between


def bytes_found(what: tuple[Any, int]) -> int:
  elements, itemsize = what
  return int(elements.stop - elements.start if isinstance(elements, slice) else elements.size) * itemsize


@functools.cache
def elements_read(
  kernel: UOp, known: tuple[tuple[str, int], ...], group: tuple[int, ...], count: int
) -> dict[tuple[int, int], tuple[Any, int]]:
  """By (parameter, number of another device): the elements that the devices numbered `group` read there, of `count`
  devices, and the bytes of one; only what they read. `known`: the values of variables."""
  marks: dict[int, Any] = {}
  sizes: dict[int, int] = {}
  for d in group:
    variables = {**dict(known), DEVICE_NUM: d}
    for u in kernel.toposort(functools.partial(has_iterations, variables)):
      if u.op is Ops.INDEX and u.src[0].op is Ops.PEER:
        param = u.src[0].src[0].arg
        sizes[param.slot] = u.src[0].dtype.itemsize
        mark = marks.setdefault(param.slot, numpy.zeros((count, param.size), numpy.bool_))
        PeerIndex(u, variables).mark(mark)
  out = {}
  for slot, mark in marks.items():
    for k in (k for k in range(count) if k not in group and mark[k].any()):
      lo, hi = int(mark[k].argmax()), mark.shape[1] - int(mark[k][::-1].argmax())
      out[slot, k] = slice(lo, hi) if mark[k, lo:hi].all() else numpy.flatnonzero(mark[k]), sizes[slot]
  return out


def has_iterations(variables: Mapping[str, int], u: UOp) -> bool:
  """Not: a store or a reduction over a loop without iterations, as where a device's block is empty. (The loop may be in
  no index: of length 0 or 1, it is read as 0 there.)"""
  ends = [r.src[0] for r in u.src[RANGES_FROM[u.op] :]] if u.op in RANGES_FROM else []
  known = {
    v: UOp.const(dtypes.index, variables[v.arg[0]]) for x in ends for v in x.variables() if v.arg[0] in variables
  }
  return all(x.op is Ops.CONST or simplify(substitute(x, known)).bounds[1] > 0 for x in ends)


class PeerIndex:
  """An INDEX into the memory of peers: whose, where, and on what condition."""

  def __init__(self, u: UOp, variables: Mapping[str, int]) -> None:
    self.owner, self.place, *gate = u.src[0].src[1], *u.src[1:]
    self.gate = gate[0] if gate else UOp.const(dtypes.bool, True)
    self.nodes, self.variables = UOp.sink(self.owner, self.place, self.gate).toposort()[:-1], variables
    self.exact = all(u.arg[0] in variables for u in self.nodes if u.op is Ops.VARIABLE)
    self.understood = all(rule_of(u) is not None or not u.src or u.op is Ops.RANGE for u in self.nodes)
    self.loops = [u for u in self.nodes if u.op is Ops.RANGE]
    self.inner = [r for r in self.loops if r in self.place.toposort()]

  def bounds(self, part: Bounds) -> Bounds:
    """Of all nodes, for some iterations."""
    found = dict(part)
    for u in (u for u in self.nodes if u not in part):
      if u.op is Ops.CONST:
        found[u] = int(u.arg), int(u.arg)
      elif u.op is Ops.VARIABLE and u.arg[0] in self.variables:
        found[u] = (self.variables[u.arg[0]],) * 2
      elif u.op is Ops.RANGE:
        found[u] = 0, found[u.src[0]][1] - 1
      else:
        rule = rule_of(u)
        found[u] = u.bounds if rule is None else rule(*(found[s] for s in u.src))
    return found

  def mark(self, marks: Any) -> None:
    """Notes in (devices, elements) what is read."""
    if not self.understood:  # it depends on values
      marks[:] = True
      return
    rest = [{r: b for r, b in self.bounds({}).items() if r.op is Ops.RANGE}]
    for seen in itertools.count():
      if not rest:
        return
      part = rest.pop()
      found = self.bounds(part)
      (k, most), (lo, hi), gate = found[self.owner], found[self.place], found[self.gate]
      if gate[1] == 0 or any(b < a for a, b in part.values()):
        continue
      several = [r for r in self.loops if part[r][0] < part[r][1]]
      elements = prod(part[r][1] - part[r][0] + 1 for r in self.inner)
      if not several or seen > MOST or (k == most and gate[0] and hi - lo < elements):
        marks[max(k, 0) : most + 1, max(lo, 0) : hi + 1] = True
      elif self.exact and prod(part[r][1] - part[r][0] + 1 for r in several) <= FEW:
        self.mark_each(part, several, marks)
      else:
        rest += min([in_halves(part, r) for r in several], key=self.spread)

  def spread(self, parts: Iterable[Bounds]) -> tuple[int, int]:
    """How far apart what is read in parts lies: in how many devices, and in how many elements."""
    each = [self.bounds(part) for part in parts]
    owners, places = ([b[u][1] - b[u][0] for b in each] for u in (self.owner, self.place))
    return sum(owners), sum(places)

  def mark_each(self, part: Bounds, several: Sequence[UOp], marks: Any) -> None:
    """The same, element by element."""
    values: dict[UOp, Any] = {}
    for u in self.nodes:
      if u.op is Ops.RANGE:
        a, b = part[u]
        axis = [1] * (len(several) - several.index(u)) if u in several else [1]
        values[u] = numpy.arange(a, b + 1).reshape(-1, *axis[1:])
      elif u.op is Ops.VARIABLE:
        values[u] = numpy.array(self.variables[u.arg[0]])
      else:
        values[u] = numpy.array(u.arg) if u.op is Ops.CONST else evaluate(u, [values[s] for s in u.src], ())
    owner, place, gate = numpy.broadcast_arrays(*(values[u] for u in (self.owner, self.place, self.gate)))
    marks[owner[gate], place[gate]] = True


def in_halves(part: Bounds, r: UOp) -> list[Bounds]:
  a, b = part[r]
  return [{**part, r: (a, (a + b) // 2)}, {**part, r: ((a + b) // 2 + 1, b)}]


# ---------------------------------------------------------------- bounds of results by those of operands

Bound = tuple[int, int]


def of_corners(f: Callable[[int, int], int]) -> Callable[[Bound, Bound], Bound]:
  """Of what is monotone in each operand."""

  def bound(x: Bound, y: Bound) -> Bound:
    corners = [f(a, b) for a in x for b in y]
    return min(corners), max(corners)

  return bound


def quotient(x: Bound, y: Bound) -> Bound:
  return of_corners(lambda a, b: a // b)(x, y) if y[0] > 0 else (-(1 << 62), 1 << 62)


def remainder(x: Bound, y: Bound) -> Bound:
  n = y[0]
  if 0 < n == y[1] and x[0] // n == x[1] // n:
    return x[0] % n, x[1] % n
  return (0, y[1] - 1) if n > 0 else (-(1 << 62), 1 << 62)


def equal(x: Bound, y: Bound) -> Bound:
  return int(x[0] == x[1] == y[0] == y[1]), int(x[0] <= y[1] and y[0] <= x[1])


def either(on: Bound, x: Bound, y: Bound) -> Bound:
  return x if on[0] else y if not on[1] else (min(x[0], y[0]), max(x[1], y[1]))


BOUNDS: dict[Ops, Callable[..., Bound]] = {
  Ops.ADD: lambda x, y: (x[0] + y[0], x[1] + y[1]),
  Ops.SUB: lambda x, y: (x[0] - y[1], x[1] - y[0]),
  Ops.MUL: of_corners(lambda a, b: a * b),
  Ops.NEG: lambda x: (-x[1], -x[0]),
  Ops.IDIV: quotient,
  Ops.MOD: remainder,
  Ops.MAX: of_corners(max),
  Ops.MIN: of_corners(min),
  Ops.CMPLT: lambda x, y: (int(x[1] < y[0]), int(x[0] < y[1])),
  Ops.CMPEQ: equal,
  Ops.CMPNE: lambda x, y: (1 - equal(x, y)[1], 1 - equal(x, y)[0]),
  Ops.WHERE: either,
  Ops.CAST: lambda x: x,
}
LOGIC: dict[Ops, Callable[..., Bound]] = {
  Ops.AND: of_corners(min),
  Ops.OR: of_corners(max),
  Ops.NOT: lambda x: (1 - x[1], 1 - x[0]),
}


def rule_of(u: UOp) -> Callable[..., Bound] | None:
  """How the bounds of a whole number, or of what is true or not, follow from those of its operands."""
  if not all(x.dtype is dtypes.bool or x.dtype is dtypes.index or dtypes.is_int(x.dtype) for x in (u, *u.src)):
    return None
  return LOGIC.get(u.op) if u.dtype is dtypes.bool and u.op in LOGIC else BOUNDS.get(u.op)
