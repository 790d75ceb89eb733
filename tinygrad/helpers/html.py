"""What notebooks show: tables and grids of cells as HTML that needs nothing else and reads well on light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

CELL = "padding:2px 8px;border:1px solid #8888;text-align:left"


def hue(i: int, n: int) -> str:
  """The colour of the i-th of n kinds, as the pictures have it."""
  return f"hsl({360 * i // max(n, 1)},70%,82%)"


def html_cell(text: Any, color: str | None = None, tag: str = "td") -> str:
  look = f";background:{color};color:#111" if color is not None else ""
  return f'<{tag} style="{CELL}{look}">{escape(str(text))}</{tag}>'


def html_block(title: str, *parts: str) -> str:
  """A title, and what stands under it."""
  return f'<div style="font-family:monospace;font-size:12px"><div><b>{escape(title)}</b></div>{"".join(parts)}</div>'


def html_rows(rows: Iterable[Iterable[str]]) -> str:
  """A table of cells."""
  lines = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
  return f'<table style="border-collapse:collapse;margin:4px 0">{lines}</table>'


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  """A title and a table with a head."""
  head = [html_cell(name, tag="th") for name in columns]
  return html_block(title, html_rows([head, *([html_cell(x) for x in row] for row in rows)]))
