"""All consumers known: the pass that decides again what the hooks could only decide from the leaves up."""

import itertools
from collections import Counter
from collections.abc import Sequence

from tinygrad.device import Placement, Sharding
from tinygrad.helpers import DEFER, SPEC, Context, prod
from tinygrad.sharding.abstract_values import COMPARED, SEEN, abstract_of, distinguished, leaf
from tinygrad.sharding.cast_sinking import sink_casts
from tinygrad.sharding.costs import at_placement
from tinygrad.sharding.decision_cache import AS_GIVEN, OpPlacement, known_costs, roots_step, settings, step_of, steps
from tinygrad.sharding.decisions import droppable
from tinygrad.sharding.moves import wire
from tinygrad.sharding.outcomes import is_partial, result
from tinygrad.sharding.placements import Placements, build_placed
from tinygrad.uop import GroupOp, Ops, UOp, factor_rule


def place(sink: UOp) -> Placements:
  """Where each node runs, now that every consumer is known: the hooks' graph, or that with its implied moves decided
  again where this saves bytes; roots arrive at the placement that their Tensor showed. Both are priced with their casts
  sunk. The map is over the graph that was chosen: what is decided again is built to be priced, for a move that several
  nodes ask for travels once."""
  sink.shape, sink.device  # noqa: B018 (fills in those of all nodes below)
  order = sink.toposort()
  if not any(is_partial(u.device) for u in order):
    return Placements(order)
  found = with_casts_sunk(order)
  if DEFER.value:
    with Context(RESHARD=1):  # where that forbids a move, the hooks have said so
      again = with_casts_sunk(build_placed(Placer(order).run()).toposort())
    if again.nbytes < found.nbytes:
      found = again
  sink = found.order[-1]
  if sink.op is Ops.SINK and any(is_partial(u.device) for u in sink.src):
    found = with_casts_sunk(sink.replace(src=tuple(at_placement(u, u.device) for u in sink.src)).toposort())
  return found


def with_casts_sunk(order: Sequence[UOp]) -> Placements:
  """A graph as it was made, but for the casts that move fewer bytes behind a reduce-scatter."""
  casts = sink_casts(order)
  return Placements(order, casts=casts, nbytes=bytes_of(order) - sum(c.saved for c in casts.values()))


def placed(sink: UOp) -> UOp:
  """`sink` with every node where `place` wants it."""
  built = build_placed(place(sink))
  if SPEC.value >= 2:
    for u in built.toposort():
      there = u.device if u.op is Ops.SINK else result(u)
      assert there == u.device, f"{u!r} is placed as {u.device}, not {there}"
  return built


def bytes_of(order: Sequence[UOp]) -> float:
  """Bytes that each device receives in all moves of a graph; index maps along cut dims as `decide` charges them."""
  total = 0.0
  for u in order:
    if u.op is not Ops.MOVE and u.op not in GroupOp.Remapping:
      continue
    if not isinstance(u.device, Sharding) or not u.src or u.src[0].device is None:
      continue
    if u.op is Ops.MOVE:
      total += wire(u.shape, u.dtype.itemsize, u.src[0].device, u.device)
    elif any(u.device.cut(i) for i in factor_rule(u).remapped):
      total += prod(u.device.local_shape(u.max_shape)) * u.dtype.itemsize
  return total


class Placer:
  """Places a graph anew, its implied moves dropped.

  Once with every reduction put off for as long as it may be, to see what the consumers of each value ask for; then from
  the sinks up, `down(v) = min(reduce v here, the reductions its consumers ask for, each once, + sum of down(consumers
  that keep))`; and once more with reductions where that is cheaper than below. Both times only abstract values are
  placed; `build_placed` makes the nodes."""

  def __init__(self, order: Sequence[UOp]) -> None:
    self.order, self.under = order, settings()
    self.base: dict[UOp, UOp] = {}  # an implied move that is dropped -> what it moves
    for u in order:
      if u.op in AS_GIVEN and droppable(u):
        self.base[u] = self.base.get(u.src[0], u.src[0])
    self.uses = Counter(itertools.chain.from_iterable(u.src for u in order if u not in self.base))
    for u, x in self.base.items():
      self.uses[x] += self.uses[u]
    self.plan: dict[UOp, OpPlacement | None] = {}  # None: as the hooks made it
    self.abstracts: dict[UOp, UOp] = {}
    self.summed: dict[UOp, UOp] = {}  # abstract values of what only feeds a contraction, as that has placed it
    self.contracted: set[UOp] = set()
    self.unsummed: dict[UOp, UOp] = {}  # and as they were before
    self.partial_values: list[UOp] = []  # or with partial sources, in order; if twice, the last counts
    self.paid: dict[UOp, tuple[UOp, UOp]] = {}  # what is reduced where it arises: its abstract value, before and after

  def run(self) -> Placements:
    self.keep_all()
    self.pay(*self.prices())
    return Placements(self.order, self.plan, self.base, self.paid)

  def take(self, u: UOp, later: float | None) -> OpPlacement:
    """Notes, and returns, how u runs on the abstract values that its sources have now."""
    src = tuple([self.abstracts[s] for s in u.src])
    if u.op in COMPARED:
      src = distinguished(u.op, tuple([self.base.get(s, s) for s in u.src]), src)
    way = u.op, u.dtype, src, u.arg, later, self.under
    if (step := steps.get(way)) is None:  # nearly always it is known
      step = roots_step(u, src) if u.op is Ops.SINK else step_of(*way)
    self.plan[u], self.abstracts[u] = step, step.result
    return step

  def keep_all(self) -> None:
    """The plan with every reduction put off for as long as it may be."""
    plan, abstracts, base = self.plan, self.abstracts, self.base
    as_made: set[UOp] = set()  # nodes that stay what the hooks made, and are not partial
    for u in self.order:
      if u in base:
        abstracts[u] = abstracts[base[u]]
        continue
      if as_made.issuperset(u.src):
        plan[u] = None
        device = u.device
        if isinstance(device, Sharding) and device.partial:
          abstracts[u] = abstract_of(u)
          self.partial_values.append(u)
        else:
          abstracts[u] = abstract_of(u) if u.op in SEEN else leaf(u.dtype, u.shape, device)
          as_made.add(u)
        continue
      step = self.take(u, 0.0)
      if u.op is Ops.REDUCE and step.forms is not step.src:
        self.follow(u, step)
      if step.asks or is_partial(step.result.device):
        self.partial_values.append(u)

  def pay(self, down: dict[UOp, float], paid: set[UOp]) -> None:
    """The plan again with reductions charged as `down` says, and those in `paid` run where they arise."""
    plan, abstracts, base = self.plan, self.abstracts, self.base
    abstracts.update(self.unsummed)
    changed: set[UOp] = set()
    for u in self.order:
      if u in base:
        if base[u] in changed:
          changed.add(u)
          abstracts[u] = abstracts[base[u]]
        continue
      step, clean = plan[u], changed.isdisjoint(u.src)
      if clean and (step is None or step.fixed) and u not in paid:
        continue
      before = abstracts[u]
      if not clean or (step is not None and not step.fixed):
        self.take(u, down.get(u))
      if u in paid:
        here = abstracts[u]
        self.paid[u] = here, at_placement(here, here.device)
        abstracts[u] = self.paid[u][1]
      if abstracts[u] is not before:
        changed.add(u)

  def follow(self, u: UOp, step: OpPlacement) -> None:
    """Notes the form in which a contraction has placed the MUL that only feeds it."""
    old, new = self.base.get(u.src[0], u.src[0]), step.forms[0]
    followed: list[UOp] = []
    while self.abstracts[old] is not new and self.uses[old] == 1 and old.op is new.op:
      self.unsummed[old] = self.abstracts[old]
      self.abstracts[old] = self.summed[old] = new
      followed.append(old)
      if old.op is Ops.MUL:
        break
      old, new = self.base.get(old.src[0], old.src[0]), new.src[0]
    self.contracted.add(u)
    self.partial_values.extend(reversed(followed))

  def prices(self) -> tuple[dict[UOp, float], set[UOp]]:
    """`down` of every partial value, and the values that are best reduced where they arise."""
    down, paid = dict[UOp, float](), set[UOp]()
    kept: dict[UOp, float] = {}  # bytes of reductions below consumers that stay partial
    asked: dict[UOp, dict[Placement, None]] = {}  # what the other consumers reduce the value to
    ways = known_costs
    wholes: dict[UOp, float] = {}
    abstracts, base, summed = self.abstracts, self.base, self.summed
    for u in dict.fromkeys(reversed(self.partial_values)):
      v = abstracts[u]
      here = v.device
      if isinstance(here, Sharding) and here.partial and u.op is not Ops.MOVE:
        if (whole := wholes.get(v)) is None:
          whole = wholes[v] = ways.cost(v, here.reduced)
        below = kept.get(u, 0.0)
        if (wanted := asked.get(u)) is not None:
          below += sum([ways.cost(v, p) for p in wanted])
          if here.reduced in wanted:
            paid.add(u)
        if whole < below:
          paid.add(u)
        down[u] = min(whole, below)
      step = self.plan[u]
      if u in summed or u in self.contracted:
        forms = summed[u].src if u in summed else step.forms if step is not None else ()
        asks = OpPlacement.of(tuple([abstracts[s] for s in u.src]), forms, v, True).asks
      else:
        asks = () if step is None else step.asks
      for i, p in asks:
        x = base.get(u.src[i], u.src[i])
        if p is None:
          kept[x] = kept.get(x, 0.0) + down.get(u, 0.0)
        else:
          asked.setdefault(x, {})[p] = None
    return down, paid
