"""What a computation moves between devices: kind, mesh axes, bytes, whose line asked for it, and why. Nothing runs."""

import functools
import math
import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinygrad.device import (
  Device,
  Mesh,
  PlacedLine,
  Placement,
  Sharding,
  device_set,
  hint_of,
  reasons_for,
  reduced_placement,
  show_placement,
)
from tinygrad.device.sub_axes import SubAxes, atoms, boundaries, size_of
from tinygrad.helpers import STRATEGY, LazyModule, atomic_write, html_table, numpy, prod, size_to_str, source_line
from tinygrad.ops import Trait, having
from tinygrad.sharding.index_maps import is_remap, template_of
from tinygrad.sharding.localize import COMPLETE, drop_hints, localize, run_passes
from tinygrad.sharding.lower_to_local import Localizer
from tinygrad.sharding.moves import Step, ints, wire
from tinygrad.sharding.partial import partials_of
from tinygrad.sharding.place import placed
from tinygrad.uop import Collective, Ops, UOp, evaluate, map_arg, mesh_of, render_shape, stored, substitute, viewed

if TYPE_CHECKING:
  from tinygrad.runtime import peer_reads
  from tinygrad.schedule import schedule as scheduling
  from tinygrad.viz import page, trace
else:
  of = "runtime.peer_reads", "schedule.schedule", "viz.page", "viz.trace"
  peer_reads, scheduling, page, trace = (LazyModule(f"tinygrad.{name}") for name in of)

COUNTED_ELEMENTS = 1 << 22  # an index map of more elements is charged as the whole local result
COUNTED_DEVICES = 256  # of more devices, so many at both ends are looked at
WIDTH = 100  # columns of a line
SEARCHED = 64  # values below a move that are asked for their hints
EFFECTS = having(Trait.EFFECT)
# what comes after these wants the move
PASSED = having(Trait.SEEN_THROUGH) | having(Trait.IDENTITY)
RESOLVED = {
  "cost": "a contested axis goes where the fewest bytes travel",
  "basic": "a contested axis cuts nothing (STRATEGY=basic)",
  "aggressive": "a contested axis goes where it cuts the work most (STRATEGY=aggressive)",
}
VERBS = {"all_reduce": "reduced", "reduce_scatter": "reduced and scattered", "all_gather": "gathered"}


@dataclass(frozen=True, slots=True)
class Row:
  """One communication of every device.

  `kind`: all_reduce, reduce_scatter, all_gather, all_to_all, permute, or copy (between device sets, and from the host).
  `axes`: the mesh axes over which devices exchange; `n`: how many exchange with each other. `payload`: bytes of the
  operand's block (of an all-gather and a copy: of the result's); `wire`: bytes that each device receives on a ring, or
  by a direct exchange. Of uneven parts the largest counts.
  `where`: `file:line` of what forced the move (of a backward pass the forward line); `made_at`: of the moved value.
  `hints`: the hints that cut what is moved, what was summed, or what reads it over these axes, and on which lines.
  """

  kind: str
  axes: tuple[str, ...]
  n: int
  payload: float
  wire: float
  where: str
  made_at: str
  why: str
  value: str
  source: str
  result: str
  hints: tuple[str, ...] = ()

  def __str__(self) -> str:
    what = f"{self.kind:14s} {'+'.join(self.axes) or '-':10s} {self.n:4d} {size_to_str(self.payload):>9s}"
    said = f"{what} {size_to_str(self.wire):>9s}  {self.value}  {os.path.basename(self.where)}"
    why = textwrap.wrap(self.why, WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
    return "\n".join([said, *why, *(f"    {hint}" for hint in self.hints)])


class Report(tuple[Row, ...]):
  """The communications of a computation, in order. `payload` and `wire` add up those between the devices of one set;
  `copied` is what is copied between sets and from the host. It prints as a table; `html()` is a page that shows it
  together with the graph (docs/howto/viewer.md), and `save` writes that."""

  found: tuple[UOp, list[UOp], list[UOp], list[tuple[UOp, UOp, Row]]]  # the graph, and `moves_of` it

  def html(self) -> str:
    """A page of its own: the moves, and the graph with them."""
    sink, graph, local, rows = self.found
    return page.page_of(trace.planned_moves("explain", sink.toposort(), (graph, local, rows)))

  def save(self, file: str | os.PathLike[str]) -> None:
    """Writes `html()`, under a temporary name first."""
    with atomic_write(file) as f:
      f.write(self.html().encode())

  @property
  def rows(self) -> tuple[Row, ...]:
    return tuple(self)

  @property
  def payload(self) -> float:
    return whole_number(sum(r.payload for r in self if r.kind != "copy"))

  @property
  def wire(self) -> float:
    return whole_number(sum(r.wire for r in self if r.kind != "copy"))

  @property
  def copied(self) -> float:
    return whole_number(sum(r.wire for r in self if r.kind == "copy"))

  @functools.cached_property
  def by_level(self) -> tuple[int, int]:
    """(inside hosts, between hosts): the bytes that kernels of all devices together read of other devices, by their
    indices. What several devices of a host read of another host's is received once, and counts so."""
    if Device.world is None:
      return 0, 0
    graph = self.found[0]
    # constants as plans have them, without numbers
    plain = {u: UOp.const(u.dtype, u.arg) for u in graph.toposort() if u.op is Ops.CONST and u.src}
    items = scheduling.create_schedule(localize(substitute(graph, plain))).items
    inside, between = zip((0, 0), *map(peer_reads.bytes_by_level, items))
    return sum(inside), sum(between)

  @property
  def inside_hosts(self) -> int:
    """Of the devices of several processes (docs/hosts.md) the bytes that they read of others of their host."""
    return self.by_level[0]

  @property
  def between_hosts(self) -> int:
    """Of the devices of several processes the bytes that all hosts together receive from others."""
    return self.by_level[1]

  def __str__(self) -> str:
    if not self:
      return "nothing moves"
    head = f"{'move':14s} {'axes':10s} {'n':>4s} {'payload':>9s} {'wire':>9s}  value, line; why"
    total = f"{'total':14s} {'':15s} {size_to_str(self.payload):>9s} {size_to_str(self.wire):>9s}"
    copied = f"  and {size_to_str(self.copied)} copied" if self.copied else ""
    near, far = map(size_to_str, self.by_level)
    levels = f"  of all devices' bytes {near} inside hosts, {far} between hosts" if self.between_hosts else ""
    return "\n".join([head, *map(str, self), total + copied + levels])

  __repr__ = __str__

  def _repr_html_(self) -> str:
    columns = ("move", "axes", "n", "each receives", "value", "from", "to", "line", "why")
    rows = [
      (
        r.kind,
        "+".join(r.axes),
        r.n,
        size_to_str(r.wire),
        r.value,
        r.source,
        r.result,
        os.path.basename(r.where),
        r.why,
      )
      for r in self
    ]
    said = f"{size_to_str(self.wire)} travel to each device" if self.wire else "nothing moves between devices"
    return html_table(said + (f", {size_to_str(self.copied)} are copied" if self.copied else ""), columns, rows)


def report(sink: UOp) -> Report:
  """The moves of a graph on its way through `place` and `localize`."""
  graph, local, rows = moves_of(sink)
  made = Report(row for *_, row in rows)
  made.found = sink, graph, local, rows
  return made


def rows_of(roots: list[UOp]) -> tuple[list[UOp], list[tuple[UOp, Row]]]:
  """The nodes of a graph, as they are placed when `roots` are realized, and its rows, each with the node that moves."""
  graph, _, found = moves_of(as_realized(roots))
  return graph, [(u, row) for u, _, row in found]


def moves_of(sink: UOp) -> tuple[list[UOp], list[UOp], list[tuple[UOp, UOp, Row]]]:
  """The nodes of a graph as they are placed, those of its local view, and its rows, each with the node that moves in
  both."""
  graph = run_passes(COMPLETE, sink).toposort()
  localizer = Localizer(graph)
  local = localizer.run()
  readers = {s: u for u in reversed(graph) for s in u.src}  # the first of each
  rows = []
  for c in (nodes := local.toposort()):
    if c.op is Ops.COLLECTIVE and c in localizer.rules.made:
      u, step = localizer.rules.made[c]
      row = remap_row(c, u) if step is None else step_row(u, step, readers)
      if row.wire:
        rows.append((u, c, row))
  return graph, nodes, rows


def bytes_moved(sink: UOp) -> float:
  """The bytes that each device receives in all moves of a graph, once it is placed. Index maps in a row are counted one
  by one."""
  return math.fsum(map(received_for, placed(drop_hints(sink)).toposort()))  # in whatever order


def received_for(u: UOp) -> float:
  """What a device receives for a node of a placed graph."""
  if u.op is Ops.MOVE and u.device is not None and u.src[0].device is not None:
    return wire(u.shape, u.dtype.itemsize, u.src[0].device, u.device)
  if not is_remap(u):
    return 0.0
  template, filled = template_of(u, Counter())
  at = tuple([reduced_placement(x.device) for x in filled if x.device is not None])
  return float(remap_traffic(template, at, reduced_placement(u.device))[0] * u.dtype.itemsize)


def as_realized(roots: list[UOp]) -> UOp:
  """The effects that realizing `roots` has: those below them, and each computed value's store into a new buffer."""
  order = UOp.sink(*roots).toposort()
  note_hints(order)
  effects = dict.fromkeys(u for u in order if u.op is Ops.ASSIGN)
  for root in roots:
    # constants live anywhere; a view of memory stays one
    if root.device is not None and (base := viewed(root)).op is not Ops.BUFFER and base.op not in EFFECTS:
      effects[stored(root, reduced_placement(root.device))] = None
  return UOp.sink(*effects)


def note_hints(order: Sequence[UOp]) -> None:
  """Notes each hint at the line of the value that it speaks of: passes drop hints, and keep lines."""
  at = {u.src[0]: u for u in order if u.op is Ops.MOVE and u.arg.hinted}
  for u in order:
    if u.op is Ops.CONSTRAIN:
      x = at[u] if u in at else next(v for v in u.down() if v.op is not Ops.CONSTRAIN)
      line, said = x.stamp().origin, str(u.arg)
      if line is not None and said not in hint_of(line):
        cuts = line.cuts if isinstance(line, PlacedLine) else list
        x.origin = PlacedLine.of(line, f"{hint_of(line)} {said}".strip(), cuts)


# ---------------------------------------------------------------- rows


def step_row(u: UOp, step: Step, readers: dict[UOp, UOp]) -> Row:
  """The row of a step of the MOVE `u`."""
  x, reader = u.src[0], readers.get(u)
  while reader is not None and reader.op in PASSED and reader in readers:
    reader = readers[reader]
  # a hook that reduces, and the user who places, stamp their move; one that `place` puts in is its reader's
  lines = [u.origin, reader.origin if reader is not None else None, x.origin]
  return row_of(u, step, line(*lines), line(x.origin, u.origin), why(u, step, reader), hints_of(u, step, reader))


def row_of(u: UOp, step: Step, where: str, made_at: str, reason: str, hints: tuple[str, ...] = ()) -> Row:
  axes = names_of(u, step.b).axes_of(step.sub_axes) if isinstance(step.b, Sharding) else ()
  n, value = (
    size_of(step.sub_axes) if step.sub_axes else len(device_set(step.b)),
    f"{u.dtype.name}{render_shape(u.shape)}",
  )
  payload, wire, (a, b) = whole_number(step.payload), whole_number(step.nbytes), (shown(u, p) for p in (step.a, step.b))
  return Row(step.kind, axes, n, payload, wire, where, made_at, reason, value, a, b, hints)


def why(u: UOp, step: Step, reader: UOp | None) -> str:
  """One sentence: which op wants the move, by which rule."""
  x = u.src[0]
  wants = "the result" if reader is None or reader.op is Ops.ASSIGN or reader.op is Ops.SINK else op_name(reader)
  if step.kind == "copy":
    return f"{device_set(step.a)[0]} is no device of {shown(u, step.b)}: each device receives its part"
  if step.kind in ("all_reduce", "reduce_scatter"):
    ops = "+".join(dict.fromkeys(o.op.name.lower() for o in step.a.partial)) if isinstance(step.a, Sharding) else ""
    made = op_name(unreduced_source(x))
    return f"{made} over a cut dim is partial ({ops}), and {wants} needs it {VERBS[step.kind]}"
  if (
    x.op is Ops.CAST
    and (summed := x.src[0]).op is Ops.MOVE
    and partials_of(summed.src[0])
    and step.kind == "all_gather"
  ):
    return f"{wants} needs it whole: summed in {summed.dtype.name}, gathered in {x.dtype.name}"
  if u.arg.whole:
    return f"{wants} takes it whole: {shown(u, u.device)}"
  if u.arg.pinned:
    by_hint = "a hint asks for it" if hint_of(u.origin) else "automatic placement chose it"
    return f"{by_hint if u.arg.hinted else 'the user placed it'}: {shown(u, u.device)}"
  return f"{wants} wants it at {shown(u, u.device)}: {RESOLVED[STRATEGY.value]}"


def hints_of(u: UOp, step: Step, reader: UOp | None) -> tuple[str, ...]:
  """The hints behind a move: the one that asks for it, and those that cut over its axes the nearest values below (what
  was summed, or what is moved) and what reads it."""
  asked = hint_of(u.origin) if u.arg.hinted else ""
  found = [f"{asked} in {source_line(*u.origin)}"] if asked and u.origin is not None else []
  x = unreduced_source(u.src[0]) if partials_of(u.src[0]) else u
  stack = list(reversed(x.src))
  for _ in range(SEARCHED):
    if not stack:
      break
    v = stack.pop()
    reasons = reasons_for(v.origin, v.device, step.sub_axes)
    found += reasons
    stack += [] if reasons else reversed(v.src)
  if reader is not None:
    found += reasons_for(reader.origin, reader.device, step.sub_axes)
  return tuple(dict.fromkeys(found))


def op_name(u: UOp) -> str:
  return u.arg[1].name if u.op is Ops.CUSTOM else u.op.name.lower()


def unreduced_source(x: UOp) -> UOp:
  """The op that `x` is partial by (one of them): what lies between ran before the reduction."""
  while unreduced := [s for s in x.src if partials_of(s)]:
    x = next((s for s in unreduced if s.op is not Ops.MOVE), unreduced[0])  # a MOVE may make it partial
  return x


def remap_row(c: UOp, u: UOp) -> Row:
  """The row of an index map along a cut dim."""
  lines, reason = [s.origin for s in u.src], f"{u.op.name.lower()} along a cut dim: its elements change owner"
  return row_of(u, remap_step(c.arg, c.dtype.itemsize), line(u.origin, *lines), line(*lines, u.origin), reason)


def remap_step(c: Collective, itemsize: int) -> Step:
  """An index map along a cut dim as a step: the bytes whose owner changes."""
  elements, sub_axes, peers = remap_traffic(c.template, c.placements, c.result)
  nbytes, parts = float(elements * itemsize), prod(c.result.parts_) if isinstance(c.result, Sharding) else 1
  grows = all(isinstance(p, Sharding) and prod(p.parts_) > parts for p in c.placements)
  kind = "all_gather" if grows else "permute" if peers <= 2 else "all_to_all"
  return Step(kind, c.placements[0], c.result, sub_axes, nbytes, nbytes)


def remap_traffic(template: UOp, sources: tuple[Placement, ...], result: Placement) -> tuple[int, SubAxes, int]:
  """Elements of a device's block of the result that it does not hold in its blocks of the sources (the most over the
  devices), the sub-axes in which owners differ, and the most owners that one device receives from.

  Every element is marked with its source and with its owner's number on the sub-axes that cut the source; the marks go
  through the template as the values do.
  """
  shape, nodes = ints(template.shape), template.toposort()
  cuts = [s for s in sources if isinstance(s, Sharding)]
  symbolic: list[UOp] = []
  for u in nodes:
    map_arg((u.shape, u.arg), symbolic.append)
  elements = prod(shape) + sum(prod(ints(u.shape)) for u in nodes if u.op is Ops.HOLE)
  if isinstance(result, str) or len(cuts) < len(sources) or symbolic or elements > COUNTED_ELEMENTS:
    return int(prod(shape if isinstance(result, str) else result.local_shape(shape))), (), len(device_set(result))
  marks: dict[UOp, Any] = {}
  for u in nodes:
    if u.op is Ops.HOLE:
      marks[u] = owners(cuts[u.arg[0]], u.shape) + u.arg[0] * len(result) + 1
    elif any(s in marks for s in u.src):
      xs = [marks.get(s, numpy.zeros(s.shape, numpy.int64)) for s in u.src]
      marks[u] = numpy.pad(xs[0], u.arg[0]) if u.op is Ops.PAD else evaluate(u, xs, u.shape)
  chain = boundaries(len(result), [result.used, *(s.used for s in cuts)])
  sub_axes = atoms((*result.used, *(d for s in cuts for d in s.used)), chain) or ()
  found: set[Any] = set()
  worst, peers, devices = 0, 0, range(len(result))
  for d in [*devices[:COUNTED_DEVICES], *devices[COUNTED_DEVICES:][-COUNTED_DEVICES:]]:
    part = marks[template][tuple(slice(lo, hi) for lo, hi in result.box(d, shape))]
    marked, counts = numpy.unique(part, return_counts=True)
    foreign, senders = 0, set()
    for mark, count in zip(marked.tolist(), counts.tolist()):
      hole, sender = divmod(mark - 1, len(result))
      here = owner(cuts[hole], d)
      if mark != 0 and sender != here:
        foreign += count
        senders.add(sender)
        found |= {g for g in sub_axes if sender // g.stride % g.size != here // g.stride % g.size}
    worst, peers = max(worst, foreign), max(peers, len(senders))
  return worst, tuple(sorted(found, key=lambda g: -g.stride)), peers


def owner(s: Sharding, d: int) -> int:
  """The device that holds what `d` does, and has 0 in the sub-axes that do not cut."""
  return sum(d // g.stride % g.size * g.stride for g in s.used)


def owners(s: Sharding, shape: tuple[int, ...]) -> Any:
  """For every element its `owner`."""
  out = numpy.zeros(shape, numpy.int64)
  for d in {owner(s, d) for d in range(len(s))}:
    out[tuple(slice(*ends) for ends in s.box(d, shape))] = d
  return out


# ---------------------------------------------------------------- words


def names_of(u: UOp, placement: Sharding) -> Mesh:
  """The mesh with whose names a placement of `u` or of its source prints: that of the nearest value which has some."""
  found = (mesh_of(x) for x in (u, *u.src))
  return next((m for m in found if m is not None and m.home is placement.home), placement.mesh)


def shown(u: UOp, placement: Placement | None) -> str:
  return show_placement(placement, names_of(u, placement) if isinstance(placement, Sharding) else None)


def whole_number(x: float) -> float:
  """An int where it is one: bytes read better so."""
  return int(x) if x == int(x) else x


def line(*origins: tuple[str, int] | None) -> str:
  """The first that is known, as `file:line`."""
  known = next((o for o in origins if o is not None), None)
  return f"{known[0]}:{known[1]}" if known is not None else "?"
