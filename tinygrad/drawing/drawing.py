"""What every picture can do."""

from pathlib import Path

from tinygrad.helpers import atomic_write


class Drawing:
  """A picture: `svg` is the document, `save` writes it, notebooks show it, `html` is a page, and it prints as text."""

  __slots__ = ()

  @property
  def svg(self) -> str:
    """The picture as an SVG document."""
    raise NotImplementedError

  def html(self) -> str:
    """A page of its own."""
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><body>{self.svg}</body></html>\n'

  def _repr_svg_(self) -> str:
    return self.svg

  def save(self, file: str | Path) -> None:
    """Writes the SVG, under a temporary name first."""
    with atomic_write(file) as f:
      f.write(self.svg.encode())
