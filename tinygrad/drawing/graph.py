"""The graph that values are computed from, as placed: nodes in the colour of their placement, moves, hints, reasons."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Protocol

from tinygrad.device import Placement, Sharding, hint_of, reasons_for, show_placement, spec_of
from tinygrad.drawing.drawing import Drawing
from tinygrad.drawing.layered import BENT, layered
from tinygrad.helpers import size_to_str, source_line
from tinygrad.ops import Trait, having
from tinygrad.uop import GroupOp, Ops, UOp, mesh_of, render_shape
from tinygrad.viz import page, trace

LAYER, LINE, LETTER, MARGIN = 92, 15, 7.3, 20  # pixels: between layers, between lines, a letter's width, around it all
# no nodes of their own where nothing moves: their source is drawn
FOLDED = GroupOp.Rearranging | GroupOp.View | having(Trait.IDENTITY) | GroupOp.Remapping - having(Trait.GATED)
READ_AS = having(Trait.SEEN_THROUGH) & having(Trait.ONE_TO_ONE) | having(Trait.IDENTITY)
EFFECTS = having(Trait.EFFECT)
SUMMED = having(Trait.CONVERTS) | GroupOp.Rearranging | having(Trait.IDENTITY)  # between a product and its sum


class Communication(Protocol):
  """What is drawn of a row of `explain`."""

  @property
  def kind(self) -> str: ...
  @property
  def axes(self) -> tuple[str, ...]: ...
  @property
  def wire(self) -> float: ...
  @property
  def where(self) -> str: ...
  @property
  def why(self) -> str: ...
  @property
  def hints(self) -> tuple[str, ...]: ...


@dataclass(slots=True)
class Node:
  """What stands in the picture: a value, where `moves` is empty; else the moves of one, and `key` tells the placement
  after it. `lines`: what is written in it; `hints`: what was said of it; `title`: what is shown where one points."""

  kind: str
  lines: list[str]
  key: str
  title: list[str]
  moves: list[Communication] = field(default_factory=list)
  hints: list[str] = field(default_factory=list)
  origin: tuple[str, int] | None = None

  @property
  def text(self) -> list[str]:
    return [*self.lines, *dict.fromkeys(self.hints)]

  @property
  def width(self) -> float:
    return max(map(len, self.text)) * LETTER + 16

  @property
  def height(self) -> int:
    return len(self.text) * LINE + 10


@dataclass(frozen=True, slots=True)
class GraphDrawing(Drawing):
  """`nodes`, sources first; `edges`, pairs of their numbers; `legend`: the placements, a colour each."""

  nodes: tuple[Node, ...]
  edges: tuple[tuple[int, int], ...]
  legend: tuple[str, ...]

  def __str__(self) -> str:
    sources: dict[int, list[str]] = {}
    for a, b in self.edges:
      sources.setdefault(b, []).append(f"%{a}")
    return "\n".join(
      f"%{i:<4d} {' '.join(n.text)}{f' ({chr(44).join(sources[i])})' if i in sources else ''}  {n.key}"
      for i, n in enumerate(self.nodes)
    )

  __repr__ = __str__

  def html(self) -> str:
    """The picture as a page in which one can search and read why values move (docs/howto/viewer.md)."""
    return page.page_of(trace.drawn("visualize", self.nodes, self.edges), "graph")

  @property
  def svg(self) -> str:
    """The picture; the same bytes for the same graph."""
    places = layered([n.width for n in self.nodes], self.edges)
    head = MARGIN + LINE * (len(self.legend) + 2)
    color = {key: f"hsl({360 * i // len(self.legend)},70%,82%)" for i, key in enumerate(self.legend)}
    right = max([x + n.width / 2 for (x, _), n in zip(places.at, self.nodes)], default=0)
    w = max([right, *(len(key) * LETTER + 30 for key in self.legend)]) + 2 * MARGIN
    h = head + LAYER * (max((k for _, k in places.at), default=0) + 1)
    size = f'width="{w:.0f}" height="{h}" viewBox="0 0 {w:.0f} {h}"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="12">']
    for i, key in enumerate(self.legend):
      top = MARGIN + LINE * i
      out.append(f'<rect class="legend" x="{MARGIN}" y="{top - 10}" width="12" height="12" fill="{color[key]}"/>')
      out.append(f'<text x="{MARGIN + 18}" y="{top}">{escape(key)}</text>')

    def point(x: float, k: int) -> tuple[float, float]:
      return x + MARGIN, head + LAYER * k + LAYER / 2

    for (a, b), way in zip(self.edges, places.ways):
      thick = self.nodes[a].kind == "move" or self.nodes[b].kind == "move"
      is_long = way[-1][1] - way[0][1] > BENT
      look = 'stroke="#c33" stroke-width="3"' if thick else f'stroke="#{"bbb" if is_long else "666"}"'
      out.append(f'<path d="{curve([point(*p) for p in way])}" fill="none" {look}/>')
    for n, p in zip(self.nodes, places.at):
      out += shape(n, *point(*p), color[n.key])
    return "\n".join([*out, "</svg>\n"])


def curve(points: Sequence[tuple[float, float]]) -> str:
  """A smooth path, upright at each point."""
  (x, y), out = points[0], [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
  for u, v in points[1:]:
    out.append(f"C{x:.1f} {(y + v) / 2:.1f} {u:.1f} {(y + v) / 2:.1f} {u:.1f} {v:.1f}")
    x, y = u, v
  return "".join(out)


def shape(n: Node, x: float, y: float, color: str) -> Iterable[str]:
  """A node as a group of SVG elements; machines find the kind, axes and bytes of moves in its attributes."""
  data = f'class="{n.kind}"'
  if n.moves:
    kinds, axes, wire = (" ".join(x) for x in zip(*((m.kind, "+".join(m.axes), str(m.wire)) for m in n.moves)))
    data += f' data-kind="{escape(kinds)}" data-axes="{escape(axes)}" data-bytes="{wire}"'
  stroke = '"#c33" stroke-width="2"' if n.moves else '"#222" stroke-width="3"' if n.hints else '"#666"'
  place = f'x="{x - n.width / 2:.1f}" y="{y - n.height / 2:.1f}" width="{n.width:.1f}" height="{n.height}"'
  yield f"<g {data}><title>{escape(chr(10).join(n.title))}</title>"
  yield f'<rect {place} rx="{n.height / 2 if n.moves else 4:.1f}" fill="{color}" stroke={stroke}/>'
  top = y - n.height / 2 + LINE + 1
  for i, text in enumerate(n.text):
    weight = ' font-weight="bold"' if i >= len(n.lines) else ""
    yield f'<text x="{x:.1f}" y="{top + LINE * i:.1f}" text-anchor="middle"{weight}>{escape(text)}</text>'
  yield "</g>"


# ---------------------------------------------------------------- from nodes


def draw_graph(roots: Sequence[UOp], order: Sequence[UOp], rows: Sequence[tuple[UOp, Communication]]) -> GraphDrawing:
  """`roots`: the values that were asked for; `order`: the placed graph of their realization, sources first; `rows`:
  its moves, each with the node that moves."""
  return _Picture(roots, order, rows).run()


class _Picture:
  def __init__(self, roots: Sequence[UOp], order: Sequence[UOp], rows: Sequence[tuple[UOp, Communication]]) -> None:
    self.order = list(order)
    seen = set(order)
    self.order += [u for u in UOp.sink(*(r.base for r in roots)).toposort()[:-1] if u not in seen and not u.src]
    self.known = {u for u in UOp.sink(*roots).toposort() if u.op is Ops.BUFFER}
    self.moves: dict[UOp, list[Communication]] = {}
    for u, row in rows:
      self.moves.setdefault(u, []).append(row)
    self.readers: dict[UOp, list[UOp]] = {}
    for u in self.order:
      for s in dict.fromkeys(u.src):
        self.readers.setdefault(s, []).append(u)
    self.nodes: list[Node] = []
    self.edges: dict[tuple[int, int], None] = {}
    self.keys: dict[Placement | None, str] = {}
    self.feeds: dict[UOp, tuple[int, ...]] = {}  # the nodes that a reader's edges come from
    self.products = {m: u for u in self.order if (m := self.product(u)) is not None}
    self.sums = set(self.products.values())

  def run(self) -> GraphDrawing:
    for u in self.order:
      sources = tuple(dict.fromkeys(i for s in u.src for i in self.feeds[s]))
      if u.op is Ops.SINK or self.is_folded(u):
        self.feeds[u] = sources
        if len(sources) == 1 and (hint := hint_of(u.origin)):
          self.nodes[sources[0]].hints.append(hint)
      elif u.op is Ops.AFTER:
        self.feeds[u] = sources[-1:]
      else:
        self.nodes.append(self.node(u))
        self.feeds[u] = (len(self.nodes) - 1,)
        self.edges.update(dict.fromkeys((i, len(self.nodes) - 1) for i in sources))
    used = Counter(n.key for n in self.nodes)
    return GraphDrawing(tuple(self.nodes), tuple(self.edges), tuple(key for key in self.keys.values() if used[key]))

  def product(self, u: UOp) -> UOp | None:
    """The product that a sum alone reads: both are one node."""
    if u.op is not Ops.REDUCE or u.arg[0] is not Ops.ADD:
      return None
    for x in u.src[0].down():
      if x in self.moves or len(self.readers[x]) > 1:
        return None
      if x.op not in SUMMED:
        return x if x.op is Ops.MUL else None
    return None

  def is_folded(self, u: UOp) -> bool:
    if u in self.moves or u.op in EFFECTS or (u.op is Ops.MOVE and u.arg.hinted):
      return False
    made_for_it = u.op is Ops.BUFFER and u not in self.known and u in self.readers  # what a realize stores into
    return u.device is None or u in self.products or made_for_it or u.op in FOLDED

  def node(self, u: UOp) -> Node:
    face = u  # a sum is shown in the shape in which it is read
    while u.op is Ops.REDUCE and [x.op in READ_AS for x in self.readers.get(face, ())] == [True]:
      (face,) = self.readers[face]
    value = f"{u.dtype.name}{render_shape(face.shape)}"
    title = [f"{self.name(u)}: {value}", self.key(u)]
    title += [source_line(*u.origin)] if u.origin is not None else []
    title += dict.fromkeys(reasons_for(face.origin, face.device) or reasons_for(u.origin, u.device))
    hints = [hint] if (hint := hint_of(u.origin)) else []
    if (moves := self.moves.get(u)) is None:
      kind = "input" if u.op is Ops.BUFFER else "output" if u.op in EFFECTS else "op"
      said = [] if kind == "output" else hints
      return Node(kind, [self.name(u), value], self.key(u), title, hints=said, origin=u.origin)
    lines = [f"{m.kind} {'+'.join(m.axes)} {size_to_str(m.wire)}".replace("  ", " ") for m in moves]
    title = [x for m, said in zip(moves, lines) for x in (said, os.path.basename(m.where), m.why, *m.hints)]
    return Node("move", lines, self.key(u), [*title, value], moves, hints, u.origin)

  def name(self, u: UOp) -> str:
    if u.op is Ops.CUSTOM:
      return str(u.arg[1].name)
    if u in self.sums:
      return "contraction"
    if u.op in EFFECTS:
      return "assign" if u.src[0].base in self.known else "output"
    if u.op is Ops.MOVE:
      return "slice"  # of what is held there
    return f"reduce {u.arg[0].name.lower()}" if u.op is Ops.REDUCE else u.op.name.lower()

  def key(self, u: UOp) -> str:
    """How the legend names a placement; values of one placement have one."""
    if (key := self.keys.get(u.device)) is None:
      mesh, at = mesh_of(u), u.device
      spec = f"{spec_of(mesh or at.mesh, at.dims)}  " if isinstance(at, Sharding) else ""
      key = self.keys[at] = f"{spec}{show_placement(at, mesh)}"
    return key
