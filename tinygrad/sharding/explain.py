"""Lists the moves of a graph: what travels, between which placements, how many bytes, and whose line asked for it."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad.device import Placement, Sharding, show_placement
from tinygrad.helpers import numpy, prod, size_to_str
from tinygrad.sharding.localize import Localizer, whole_assigns
from tinygrad.sharding.moves import ints, plan
from tinygrad.sharding.place import place
from tinygrad.uop.cards import CARDS
from tinygrad.uop.ops import Ops, UOp, render_shape

COUNTED_ELEMENTS = 1 << 22  # an index map of more elements is charged as the whole local result


@dataclass(frozen=True, slots=True)
class MoveRecord:
  """One communication. `nbytes`: received per device, the largest over the devices. `line`: `file:line` that made the
  node."""

  kind: str
  shape: str
  source: str
  result: str
  nbytes: float
  line: str
  why: str

  def __str__(self) -> str:
    what = f"{self.kind:15s} {size_to_str(self.nbytes):>9s}  {self.shape}: {self.source} -> {self.result}"
    return f"{what}  {self.line}  ({self.why})"


def explain(*roots: UOp) -> list[MoveRecord]:
  """The moves that realizing `roots` performs, in order; slices and other steps in which no byte travels are left
  out."""
  sink = whole_assigns(place(UOp.sink(*roots)))
  localizer = Localizer(sink)
  consumer: dict[UOp, UOp] = {}
  for u in sink.toposort():
    for s in u.src:
      consumer.setdefault(s, u)
  found: list[MoveRecord] = []
  for u in sink.toposort():
    x = u.src[0] if u.src else u
    if u.op is Ops.MOVE and x.device is not None and u.device is not None:
      reader = consumer[u]
      why = (
        "written by the user"
        if u.arg.pinned
        else "a reduction over a cut dim"
        if owes(x)
        else f"wanted by {reader.op.name.lower()}"
      )
      for step in plan(ints(u.shape), u.dtype.itemsize, x.device, u.device):
        if step.nbytes:
          found.append(
            MoveRecord(
              step.kind, describe(u), show_placement(step.a), show_placement(step.b), step.nbytes, line(u), why
            )
          )
    elif u.device is not None and localizer.is_remap(u) and not inner(u, consumer, localizer):
      found.append(remap_record(u, localizer))
  return found


def owes(u: UOp) -> bool:
  return isinstance(u.device, Sharding) and bool(u.device.pending)


def inner(u: UOp, consumer: dict[UOp, UOp], localizer: Localizer) -> bool:
  """Whether u is part of a longer index map above it."""
  return localizer.uses[u] == 1 and localizer.is_remap(consumer[u])


def remap_record(u: UOp, localizer: Localizer) -> MoveRecord:
  template, holes = localizer.template(u)
  assert u.device is not None
  nbytes = remap_bytes(template, holes, u.device) * u.dtype.itemsize
  return MoveRecord(
    "remap",
    describe(u),
    show_placement(holes[0].device),
    show_placement(u.device),
    nbytes,
    line(u),
    f"{u.op.name.lower()} along a cut dim",
  )


def remap_bytes(template: UOp, holes: list[UOp], result: Placement) -> int:
  """Elements of a device's block of the result that it does not hold in its blocks of the sources; the largest over the
  devices."""
  shape = ints(template.shape)
  whole = prod(shape) if isinstance(result, str) else prod(result.local_shape(shape))
  if not isinstance(result, Sharding) or any(not isinstance(n, int) for u in template.toposort() for n in u.shape):
    return int(whole)
  if sum(prod(h.max_shape) for h in holes) + prod(shape) > COUNTED_ELEMENTS:
    return int(whole)
  worst = 0
  for d in range(len(result)):
    foreign: dict[UOp, object] = {}  # 1 where the element lives elsewhere
    for u in template.toposort():
      if u.op is Ops.HOLE:
        mask = numpy.ones(u.shape, numpy.int64)
        held = holes[u.arg[0]].device
        mask[tuple(slice(lo, hi) for lo, hi in held.box(d, u.shape)) if isinstance(held, Sharding) else ...] = 0
        foreign[u] = mask
      elif not u.src or u.op is Ops.CONST:
        foreign[u] = numpy.zeros(u.shape, numpy.int64)
      elif u.op is Ops.PAD:
        foreign[u] = numpy.pad(foreign[u.src[0]], u.arg[0])
      else:
        evaluate = CARDS[u.op].evaluate
        assert evaluate is not None
        moves = all(s in foreign for s in u.src) and u.device is None and u.op in MOVEMENT
        foreign[u] = evaluate(u, [foreign[s] for s in u.src], u.shape) if moves else numpy.zeros(u.shape, numpy.int64)
    block = tuple(slice(lo, hi) for lo, hi in result.box(d, shape))
    worst = max(worst, int(numpy.asarray(foreign[template])[block].sum()))
  return worst


MOVEMENT = frozenset((Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.SHRINK, Ops.FLIP, Ops.CAT, Ops.WINDOW, Ops.SPREAD))


def describe(u: UOp) -> str:
  return f"{u.dtype.name}{render_shape(u.shape)}"


def line(u: UOp) -> str:
  return f"{u.origin[0]}:{u.origin[1]}" if u.origin is not None else "?"
