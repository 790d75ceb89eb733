"""Which device holds which part of a tensor, as text and as SVG."""

from dataclasses import dataclass
from html import escape

from tinygrad.device import Device, Sharding, device_set, short_devices, show_placement
from tinygrad.drawing.drawing import Drawing
from tinygrad.uop import UOp, mesh_of, render_shape

CELL_WIDTH, CELL_HEIGHT, MARGIN = 120, 44, 70  # of the SVG, in pixels
LETTER_WIDTH = 8  # at most, in a monospaced font of 12 pixels
SHOWN = 6  # devices named in one cell

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PartGrid(Drawing):
  """A grid of the parts of a tensor: `cells[row][column]` names the devices that hold these ranges of indices."""

  title: str
  rows: tuple[str, ...]
  columns: tuple[str, ...]
  cells: tuple[tuple[str, ...], ...]

  def __str__(self) -> str:
    side = max(len(r) for r in self.rows)
    texts_in = [[c, *(x for row in self.cells for x in row[i].split("\n"))] for i, c in enumerate(self.columns)]
    widths = [max(map(len, texts)) for texts in texts_in]
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
    height = max(CELL_HEIGHT, 16 * max(cell.count("\n") + 1 for row in self.cells for cell in row) + 12)
    holders = list(dict.fromkeys(cell for row in self.cells for cell in row))
    w = max(MARGIN + CELL_WIDTH * len(self.columns) + 10, 16 + LETTER_WIDTH * len(self.title))
    h = MARGIN + height * len(self.rows) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" font-family="monospace" font-size="12">']

    def write(x: int, y: int, text: str, anchor: str = "middle") -> None:
      out.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')

    write(8, 20, self.title, "start")
    for i, column in enumerate(self.columns):
      write(MARGIN + CELL_WIDTH * i + CELL_WIDTH // 2, MARGIN - 10, column)
    for j, (name, row) in enumerate(zip(self.rows, self.cells)):
      top, middle = MARGIN + height * j, MARGIN + height * j + height // 2 + 4
      write(MARGIN - 8, middle, name, "end")
      for i, cell in enumerate(row):
        left, lines, hue = MARGIN + CELL_WIDTH * i, cell.split("\n"), 360 * holders.index(cell) // len(holders)
        size = f'x="{left}" y="{top}" width="{CELL_WIDTH}" height="{height}"'
        out.append(f'<rect {size} fill="hsl({hue},70%,82%)" stroke="#444"/>')
        for k, line in enumerate(lines):
          write(left + CELL_WIDTH // 2, middle + round(16 * (k - (len(lines) - 1) / 2)), line)
    return "\n".join([*out, "</svg>\n"])


def draw_grid(u: UOp) -> PartGrid:
  """The grid of a value's placement."""
  shape = u.shape
  if not all(isinstance(n, int) for n in shape):
    fix = "bind its variables, or draw a whole buffer"
    raise ValueError(f"visualize: the shape {render_shape(shape)} is symbolic\n  fix: {fix}")
  where = u.device if u.device is not None else Device.DEFAULT
  title = f"{u.dtype.name}{render_shape(shape)} on {show_placement(where, mesh_of(u))}"
  devices, whole = device_set(where), tuple((0, n) for n in shape)
  boxes = {d: where.box(i, shape) if isinstance(where, Sharding) else whole for i, d in enumerate(devices)}
  ranges: dict[int | None, list[Range]] = {i: sorted({b[i] for b in boxes.values()}) for i in range(len(shape))}
  ranges[None] = [(0, 0)]  # of a dim that is not there
  by_parts = sorted(range(len(shape)), key=lambda i: -len(ranges[i]))
  drawn, others = sorted(by_parts[:2]), [i for i in by_parts[2:] if len(ranges[i]) > 1]
  rows, columns = [[(i, r) for r in ranges[i]] for i in (None, None, *drawn)[-2:]]

  def cell(*place: tuple[int | None, Range]) -> str:
    """What holds the ranges of a row and a column."""
    return named([d for d, box in boxes.items() if all(i is None or box[i] == r for i, r in place)], boxes, others)

  left, top = (tuple("" if i is None else range_text(r) for i, r in line) for line in (rows, columns))
  return PartGrid(title, left, top, tuple(tuple(cell(r, c) for c in columns) for r in rows))


def named(holders: list[str], boxes: dict[str, tuple[Range, ...]], others: list[int]) -> str:
  """The devices of one cell, a line each where they hold different ranges of further dims."""
  if not others and len(text := short_devices(holders)) <= 24:
    return text
  lines = [" ".join([d, *(f"{i}:[{range_text(boxes[d][i])}]" for i in others)]) for d in holders]
  return "\n".join(lines[:SHOWN] + (["…"] if len(lines) > SHOWN else []))


def range_text(r: Range) -> str:
  return f"{r[0]}:{r[1]}" if r[0] < r[1] else "empty"
