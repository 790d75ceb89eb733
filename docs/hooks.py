"""What mkdocs asks of a page before it makes HTML of it, and after."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./(?:extra|tinygrad|test|examples)/[^)]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
  """Links to files of the repository that are no pages, which lead somewhere in a clone, are names of files here."""
  return OUTSIDE.sub(lambda m: f"{m[1]} (`{m[2].removeprefix('../')}`)", markdown)


def on_page_content(html: str, **_: Any) -> str:
  """What a docstring says of shapes stands on a line of its own."""
  return html.replace("\nShape: <code>", "<br>\nShape: <code>")
