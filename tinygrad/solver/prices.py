"""Of two graphs of one answer the one for which fewer bytes move, once `place` has looked at them. Where they differ in
implied moves alone, which it decides again, one of them is placed for both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tinygrad.device import Placement
from tinygrad.helpers import DEFER
from tinygrad.sharding.decisions import droppable
from tinygrad.sharding.moves import wire
from tinygrad.sharding.outcomes import is_partial
from tinygrad.sharding.place import Placer, bytes_of, with_casts_sunk
from tinygrad.sharding.placements import Placements, build_placed
from tinygrad.uop import GroupOp, Ops, UOp

Moved = tuple[int, Placement | None, Placement]  # what is moved, from where, and where to


@dataclass(slots=True)
class Unmoved:
  """A graph without its hints and without the moves that `place` drops. `number` of each node: one for all that are
  equal then; `wires`: the bytes of all moves; `narrowed`: those that a cast reads, which may be had for less."""

  number: dict[UOp, int] = field(default_factory=dict)
  wires: dict[Moved, float] = field(default_factory=dict)
  narrowed: set[Moved] = field(default_factory=set)

  @property
  def least(self) -> float:
    """The bytes that move in the graph as it is, at least."""
    return sum(nbytes for move, nbytes in self.wires.items() if move not in self.narrowed)


def without_moves(sink: UOp, known: dict[tuple[Any, ...], int]) -> Unmoved:
  """A graph without moves. `known`: the numbers of nodes without them, for several graphs."""
  graph = Unmoved()
  number, wires, moved = graph.number, graph.wires, dict[UOp, Moved]()
  for u in sink.toposort():
    op, dtype, src, arg = u.ref.key
    if op is Ops.CONSTRAIN:
      number[u] = number[src[0]]
      if src[0] in moved:
        moved[u] = moved[src[0]]
      continue
    if op is Ops.MOVE:
      x = src[0]
      moved[u] = move = number[x], x.device, u.arg.device
      if x.device is not None and move not in wires:
        wires[move] = wire(u.shape, dtype.itemsize, x.device, u.arg.device)
      if droppable(u):
        number[u] = number[x]
        continue
    elif op is Ops.CAST and src[0] in moved:
      graph.narrowed.add(moved[src[0]])
    number[u] = known.setdefault((op, dtype, arg, *[number[s] for s in src]), len(known))
  return graph


def are_placed_alike(one: UOp, two: UOp) -> bool:
  """Whether `place` makes one graph of both, and neither is better left as it is: they are the same without what it
  drops. (A view that is made anew for a move below it counts as the view that it is of the same value.)"""
  known = dict[tuple[Any, ...], int]()
  first, second = without_moves(one, known), without_moves(two, known)
  order = one.toposort()
  if not DEFER.value or first.number[one] != second.number[two] or not any(is_partial(u.device) for u in order):
    return False
  anew, least = Placer(order).run(), second.least
  if (most := bytes_at_most(anew)) <= least and most < first.least:
    return True
  again = bytes_as_placed(anew)
  return again <= least and again < with_casts_sunk(order).nbytes


def bytes_as_placed(anew: Placements) -> float:
  """The bytes that move in a graph whose implied moves `place` decides again."""
  return with_casts_sunk(build_placed(anew).toposort()).nbytes


def bytes_at_most(anew: Placements) -> float:
  """These at most, without the graph: as if each reader moved all that it reads for itself, and no cast saved any."""
  total, forms = 0.0, dict[int, float]()
  for u in anew.order:
    if u in anew.dropped:
      continue
    run = anew.runs[u]
    if run is not None:
      if (nbytes := forms.get(id(run))) is None:
        nbytes = forms[id(run)] = sum(map(bytes_between, run.src, run.forms))
      total += nbytes
    if u in anew.reduced:
      total += bytes_between(*anew.reduced[u])
    if u.op is Ops.MOVE or u.op in GroupOp.Remapping:
      total += bytes_of([u if run is None else UOp.new(u.op, u.dtype, run.forms, u.arg)])
  return total


def bytes_between(seen: UOp, form: UOp) -> float:
  """The bytes of all that is made anew of a value in another form."""
  there = set(seen.toposort()) if form is not seen else ()
  return bytes_of([u for u in form.toposort() if u not in there]) if there else 0.0
