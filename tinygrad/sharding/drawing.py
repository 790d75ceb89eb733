"""Pictures of placements: which device holds which part of a tensor, as text and as SVG."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from tinygrad.device import Device, Sharding, short_devices, show_placement
from tinygrad.helpers import atomic_write
from tinygrad.uop.ops import UOp, render_shape

CELL_WIDTH, CELL_HEIGHT, MARGIN = 120, 44, 70  # of the SVG, in pixels
SHOWN = 6  # devices named in one cell

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Drawing:
  """A grid of the parts of a tensor: `cells[row][column]` names the devices that hold these ranges of indices."""

  title: str
  rows: tuple[str, ...]
  columns: tuple[str, ...]
  cells: tuple[tuple[str, ...], ...]

  def __str__(self) -> str:
    side = max(len(r) for r in self.rows)
    widths = [
      max(len(c), *(len(line) for row in self.cells for line in row[i].split("\n"))) for i, c in enumerate(self.columns)
    ]
    rule = " " * side + " +" + "+".join("-" * (w + 2) for w in widths) + "+"
    head = " " * side + "  " + " ".join(c.center(w + 2) for c, w in zip(self.columns, widths))
    lines = [self.title, head.rstrip(), rule]
    for name, row in zip(self.rows, self.cells):
      texts = [cell.split("\n") for cell in row]
      for i in range(max(map(len, texts))):
        parts = [(text[i] if i < len(text) else "").ljust(w) for text, w in zip(texts, widths)]
        lines.append(f"{name if i == 0 else '':>{side}s} | " + " | ".join(parts) + " |")
      lines.append(rule)
    return "\n".join(lines)

  __repr__ = __str__

  @property
  def svg(self) -> str:
    """The same as an SVG document; parts that the same devices hold have the same colour."""
    lines_a_cell = max(cell.count("\n") + 1 for row in self.cells for cell in row)
    height = max(CELL_HEIGHT, 16 * lines_a_cell + 12)
    holders = list(dict.fromkeys(cell for row in self.cells for cell in row))
    w, h = MARGIN + CELL_WIDTH * len(self.columns) + 10, MARGIN + height * len(self.rows) + 10
    out = [
      f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" font-family="monospace" font-size="12">',
      f'<text x="8" y="20">{escape(self.title)}</text>',
    ]
    for i, column in enumerate(self.columns):
      middle = MARGIN + CELL_WIDTH * i + CELL_WIDTH // 2
      out.append(f'<text x="{middle}" y="{MARGIN - 10}" text-anchor="middle">{escape(column)}</text>')
    for j, (name, row) in enumerate(zip(self.rows, self.cells)):
      top = MARGIN + height * j
      out.append(f'<text x="{MARGIN - 8}" y="{top + height // 2 + 4}" text-anchor="end">{escape(name)}</text>')
      for i, cell in enumerate(row):
        left, hue = MARGIN + CELL_WIDTH * i, 360 * holders.index(cell) // len(holders)
        out.append(
          f'<rect x="{left}" y="{top}" width="{CELL_WIDTH}" height="{height}" fill="hsl({hue},70%,82%)" stroke="#444"/>'
        )
        lines = cell.split("\n")
        for k, text in enumerate(lines):
          y = top + height // 2 + 4 + round(16 * (k - (len(lines) - 1) / 2))
          x = left + CELL_WIDTH // 2
          out.append(f'<text x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>')
    return "\n".join([*out, "</svg>\n"])

  def _repr_svg_(self) -> str:
    return self.svg

  def save(self, file: str | Path) -> None:
    """Writes the SVG, under a temporary name first."""
    with atomic_write(file) as f:
      f.write(self.svg.encode())


def draw(u: UOp) -> Drawing:
  """The grid of a value's placement."""
  shape = u.shape
  if not all(isinstance(n, int) for n in shape):
    raise ValueError(
      f"visualize: the shape {render_shape(shape)} is symbolic\n  fix: bind its variables, or draw a whole buffer"
    )
  where = u.device if u.device is not None else Device.DEFAULT
  title = f"{u.dtype.name}{render_shape(shape)} on {show_placement(where)}"
  if not isinstance(where, Sharding):
    return Drawing(
      title, (span((0, shape[0])) if shape else "",), (" x ".join(map(span, [(0, n) for n in shape[1:]])),), ((where,),)
    )
  cut = sorted((i for i in range(len(shape)) if where.parts(i) > 1), key=lambda i: -where.parts(i))
  drawn = sorted([*cut, *(i for i in range(len(shape)) if i not in cut)][:2])
  across = drawn[-1] if drawn else None
  down = drawn[0] if len(drawn) == 2 else None
  others = [i for i in cut if i not in (across, down)]
  devices, boxes = range(len(where)), [where.box(d, shape) for d in range(len(where))]

  def block(i: int | None, d: int) -> tuple[int, Range]:
    """The number of the block of dim i that a device holds, and its range."""
    return (0, (0, 0)) if i is None else (int(where.block(i, d)), boxes[d][i])

  rows, columns = (sorted({block(i, d) for d in devices}) for i in (down, across))
  held = {(r, c): [d for d in devices if (block(down, d), block(across, d)) == (r, c)] for r in rows for c in columns}
  cells = tuple(tuple(named(where, held[r, c], boxes, others) for c in columns) for r in rows)
  left = tuple("" if down is None else span(r) for _, r in rows)
  return Drawing(title, left, tuple("" if across is None else span(r) for _, r in columns), cells)


def named(where: Sharding, holders: list[int], boxes: list[tuple[Range, ...]], others: list[int]) -> str:
  """The devices of one cell, a line each where they hold different ranges of further dims."""
  if not others:
    names = [where.devices[d] for d in holders]
    text = short_devices(names)
    return text if len(text) <= 24 else "\n".join(names[:SHOWN] + (["…"] if len(names) > SHOWN else []))
  lines = [f"{where.devices[d]} " + " ".join(f"{i}:[{span(boxes[d][i])}]" for i in others) for d in holders]
  return "\n".join(lines[:SHOWN] + (["…"] if len(lines) > SHOWN else []))


def span(r: Range) -> str:
  return f"{r[0]}:{r[1]}" if r[0] < r[1] else "empty"
