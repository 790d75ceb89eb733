"""What a graph holds in memory at once, before it is cut: which values are stored at all, from when until when."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from tinygrad.helpers import prod
from tinygrad.numerics.windows import as_windows
from tinygrad.schedule import fuse
from tinygrad.schedule.homes import peel
from tinygrad.schedule.schedule import ANY_TARGET
from tinygrad.sharding.moves import wire
from tinygrad.solver.graph import Asked
from tinygrad.uop import GroupOp, Ops, UOp
from tinygrad.uop.rewrite import Sources, on_sources, rebuild

ANYWHERE = "NULL:0"  # one device: what is stored is decided of what each of them runs


def is_view(u: UOp) -> bool:
  """It shows memory of others, and takes none. Moves are those of a graph whose placements are to be decided."""
  return u.op is Ops.MOVE or is_placed_view(u)


def is_placed_view(u: UOp) -> bool:
  """The same in a graph that is placed, where moves are made: what arrives takes memory."""
  if u.op is Ops.MOVE:
    here, there = u.src[0].device, u.device
    return here is not None and there is not None and wire(u.max_shape, u.dtype.itemsize, here, there) == 0
  shows = u.op is Ops.DETACH or u.op is Ops.CONSTRAIN or u.op is Ops.AFTER or u.op is Ops.ASSIGN
  return shows or u.op in GroupOp.Movement


def readers_of(order: Sequence[UOp]) -> dict[UOp, dict[UOp, None]]:
  """Of each node those that read it, views looked through, but for EXPAND, behind which each element is read often."""
  found: dict[UOp, dict[UOp, None]] = {u: {} for u in order}
  for u in reversed(order):
    for s in u.src:
      if s in found:
        looked_through = is_view(u) and u.op is not Ops.EXPAND and u.op is not Ops.ASSIGN
        found[s] |= found[u] if looked_through else {u: None}
  return found


def fused_ones(order: Sequence[UOp]) -> set[UOp]:
  """What has no memory of its own: views; what one elementwise op alone reads, in whose kernel it is computed, or only
  reductions, if need be by way of elementwise ops; what a sum alone reads that spreads windows, as the gradient of a
  convolution in its input is one kernel; and what is assigned, which lies where it is assigned to."""
  fused: set[UOp] = set()
  summed: set[UOp] = set()
  spread: set[UOp] = set()  # what lies below sums that spread windows
  readers = readers_of(order)
  for u in reversed(order):
    by = list(readers[u])
    if u.op in GroupOp.Elementwise and by and all(r.op is Ops.REDUCE or r in summed for r in by):
      summed.add(u)
    if u.op is Ops.SPREAD:
      spread.add(next(v for v in u.src[0].down() if not is_view(v)))
    alone = len(by) == 1 and (by[0].op in GroupOp.Elementwise or u in spread)
    if u in summed or is_view(u) or (u.op is not Ops.BUFFER and (alone or any(r.op is Ops.ASSIGN for r in by))):
      fused.add(u)
  return fused


def fused_by_schedule(order: Sequence[UOp], views: Callable[[UOp], bool]) -> set[UOp]:
  """What has no memory of its own by the rule of the schedule (`fuse.choose`): what is computed where it is read. What
  a move sends is in memory, and what arrives; so are results."""
  made: dict[UOp, UOp] = {}
  place = {u: i for i, u in enumerate(order)}
  sent: dict[UOp, UOp] = {}  # of what is moved by what it is in memory

  def in_memory(u: UOp, x: UOp) -> UOp:
    kept = UOp.new(Ops.CONTIGUOUS, x.dtype, (made[x],), ("sent", place[u]))
    sent[kept] = x
    return kept

  def make(u: UOp, src: Sources) -> UOp:
    if u.op is Ops.BUFFER:
      return u.replace(arg=u.arg._replace(device=ANYWHERE))
    if u.op is Ops.SINK:
      src = tuple([s if s.op is Ops.ASSIGN else in_memory(u, x) for x, s in zip(u.src, src)])
    if u.op is Ops.CONSTRAIN or (u.op is Ops.MOVE and views(u)):
      return src[0]
    if u.op is Ops.MOVE:
      return UOp.new(Ops.CONTIGUOUS, u.dtype, (in_memory(u, u.src[0]),), ("arrived", place[u]))
    new = on_sources(u, src)
    windows = as_windows(new) if u.op is Ops.REDUCE else None
    return new if windows is None else windows

  stored = set(fuse.choose(rebuild(order[-1], make, made), ANY_TARGET, rows=True))
  held = {next(v for v in x.down() if not views(v)) for kept, x in sent.items() if kept in stored}
  return {u for u in order if u not in held and u.op is not Ops.BUFFER and (views(u) or peel(made[u]) not in stored)}


def held_bytes(asked: Asked, leaves: set[int], fused: set[UOp]) -> tuple[list[float], int]:
  """Of each value the bytes that it has in memory when the most is held, uncut, and that moment: leaves always, others
  from when they are computed until they are last read. What is fused takes none; who reads it reads what it is computed
  from."""
  nbytes = [float(prod(u.max_shape) * u.dtype.itemsize) for u in asked.nodes]
  spans: dict[int, tuple[int, int]] = {}
  for u, (begin, end) in lifetimes(asked.order, fused).items():
    if (v := asked.number.get(u)) is not None and v not in leaves:
      before = spans.get(v, (begin, end))
      spans[v] = min(begin, before[0]), max(end, before[1])
  at = moment_of_most([(*span, nbytes[v]) for v, span in spans.items()], len(asked.order))
  alive = leaves.union(v for v, (begin, end) in spans.items() if begin <= at <= end)
  return [n if v in alive else 0.0 for v, n in enumerate(nbytes)], at


Lives = Sequence[tuple[int, int, float]]  # from when until when, and how many bytes


def held_at(lives: Lives, moments: int) -> list[float]:
  """The bytes that are held at each moment."""
  change = [0.0] * (moments + 2)
  for begin, end, nbytes in lives:
    change[begin] += nbytes
    change[end + 1] -= nbytes
  return list(itertools.accumulate(change))


def moment_of_most(lives: Lives, moments: int) -> int:
  """When the most bytes are held."""
  held = held_at(lives, moments)
  return max(range(len(held)), key=held.__getitem__)


def most_bytes(lives: Lives, moments: int) -> float:
  return max(held_at(lives, moments))


def moment_of_waiting(order: Sequence[UOp], fused: set[UOp], nbytes: Callable[[UOp], float]) -> int:
  """When the most bytes are held that nobody reads for a while: of each value from one reader to the next where that
  takes longest."""
  read: dict[UOp, set[int]] = {}
  waits: list[tuple[int, int, float]] = []
  for i in range(len(order) - 1, -1, -1):
    u = order[i]
    places = {i} if u not in fused else read.get(u, set())
    for s in u.src:
      read.setdefault(s, set()).update(places)
    if u not in fused and u.src and u.device is not None:
      at = sorted((i, *read.get(u, ())))
      begin, end = max(itertools.pairwise(at), key=lambda pair: pair[1] - pair[0], default=(i, i))
      waits += [(begin + 1, end - 1, nbytes(u))] if end - begin > 1 else []
  return moment_of_most(waits, len(order))


def sources_of(u: UOp) -> Iterable[UOp]:
  return u.src


def lifetimes(
  order: Sequence[UOp], fused: set[UOp], reads: Callable[[UOp], Iterable[UOp]] = sources_of
) -> dict[UOp, tuple[int, int]]:
  """When nodes that are stored are computed, and last read: places in the order. `reads`: what counts as read by a
  node; what is fused into nothing reads nothing."""
  read = last_reads(order, fused, reads)
  return {u: (i, read.get(u, i)) for i, u in enumerate(order) if u not in fused}


def last_reads(
  order: Sequence[UOp], fused: set[UOp], reads: Callable[[UOp], Iterable[UOp]] = sources_of
) -> dict[UOp, int]:
  """When nodes are last read, stored or not. An update runs where it stands, and reads all that it is computed from."""
  read: dict[UOp, int] = {}
  for i in range(len(order) - 1, -1, -1):
    u = order[i]
    runs = u not in fused or u.op is Ops.ASSIGN
    for s in reads(u) if runs or u in read else ():
      read[s] = max(read.get(s, 0), i if runs else read[u])
  return read


def shown_bytes(u: UOp) -> float:
  """Of what a view shows, the least that there is below it: what is sent where it is moved."""
  nbytes = prod(u.max_shape) * u.dtype.itemsize
  while is_view(u) and u.src:
    u = u.src[0]
    nbytes = min(nbytes, prod(u.max_shape) * u.dtype.itemsize)
  return float(nbytes)
