"""Device sets: on which devices each value of a local graph is computed."""

from collections.abc import Iterable, Sequence, Set

from tinygrad.device import Placement, device_set
from tinygrad.schedule.homes import LEAVES
from tinygrad.uop import Ops, UOp
from tinygrad.uop.rewrite import on_sources, substitute

Devices = tuple[str, ...]


class DeviceSets:
  """`where` each node (sources first) is computed: its buffers' devices and, where there are none, its first
  consumer's."""

  def __init__(self, nodes: Sequence[UOp]) -> None:
    self.nodes = nodes
    self.where: dict[UOp, Placement] = {}
    self.used: dict[UOp, set[Devices]] = {}  # on which sets a value is used; empty where there is one: nothing to tell
    where = self.where
    for u in nodes:
      if u.op is Ops.BUFFER:
        where[u] = u.arg.device
      elif u.op is Ops.COLLECTIVE:
        where[u] = u.arg.result
      elif (found := next((where[s] for s in u.src if s in where), None)) is not None:
        where[u] = found
    given = [p for u in nodes if u.op is Ops.COLLECTIVE for p in u.arg.placements]
    if len({device_set(p) for p in {*where.values(), *given}}) > 1:
      self.used = {u: {device_set(p)} for u, p in where.items()}
    anywhere = {u for u in nodes if u not in where} if self.used else ()
    for u in reversed(nodes):
      same = [where[u]] * len(u.src) if u in where else []
      for s, placement in zip(u.src, u.arg.placements if u.op is Ops.COLLECTIVE else same):
        where.setdefault(s, placement)
        if s in anywhere:
          here = {device_set(placement)} if u.op is Ops.COLLECTIVE else self.used[u]
          self.used[s] = self.used.get(s, set()) | here

  def shared(self, stored: Iterable[UOp]) -> set[UOp]:
    """Those of the `stored` values that live anywhere, made of constants, and are read on several sets."""
    return {u for u in stored if len(self.used[u]) > 1} if self.used else set()

  def with_own(self, shared: Set[UOp]) -> UOp:
    """The graph with each of the `shared` values once for each device set that reads it, as nodes of its own."""
    leaves = [u for u in UOp.sink(*shared).toposort() if u.op in LEAVES]
    made: dict[tuple[UOp, Devices], UOp] = {}
    for u in self.nodes:
      for here in sorted(self.used[u]):
        if u in shared:
          made[u, here] = substitute(u, {x: UOp.new(Ops.DETACH, x.dtype, (x,), here) for x in leaves})
          continue
        there = map(device_set, u.arg.placements) if u.op is Ops.COLLECTIVE else [here] * len(u.src)
        src = [made[s, on if len(self.used[s]) > 1 else min(self.used[s])] for s, on in zip(u.src, there)]
        made[u, here] = on_sources(u, tuple(src))
    sink = self.nodes[-1]
    return made[sink, min(self.used[sink])]
