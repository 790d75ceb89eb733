"""Runs the code of a page of the documentation: `python test/page.py docs/start.md`, in a folder of the reader's own.

In the order of the page, and in one namespace:
  ```python                    runs; the lines that it prints are those after its `# ->`
  ```python title="train.py"   is written to that file, before anything runs; so is any other language
  ```sh                        runs in bash; what it prints on standard output likewise, where it has a `# ->`
`pip install` is left out: the environment has what it would bring; port 8000 is one that is free. Ends with status 1
and the difference.
"""

import contextlib
import io
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"# -> ?(.*)$", re.MULTILINE)
TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
  """A fenced block: its language, the file that it is to be written to, and its text."""

  language: str
  file: str | None
  code: str

  @property
  def said(self) -> list[str]:
    return [line.rstrip() for line in SAID.findall(self.code)]


def blocks(text: str) -> list[Block]:
  """The fenced blocks of a page."""
  return [
    Block(language, title[1] if (title := TITLE.search(rest)) else None, code)
    for language, rest, code in FENCE.findall(text)
  ]


def commands(block: Block) -> str:
  """What a reader who has installed everything types."""
  return "\n".join(x for x in block.code.splitlines() if not x.startswith("pip install"))


def free_port() -> int:
  with contextlib.closing(socket.socket()) as s:
    s.bind(("127.0.0.1", 0))
    return int(s.getsockname()[1])


def run_block(block: Block, namespace: dict[str, object], name: str) -> list[str]:
  """The lines that a block of Python or of commands prints."""
  if block.language == "sh":
    command = ["bash", "-euo", "pipefail", "-c", commands(block)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [line.rstrip() for line in result.stdout.splitlines()]
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    exec(compile(block.code, name, "exec"), namespace)
  return [line.rstrip() for line in printed.getvalue().splitlines()]


def run_page(text: str, name: str, skipped: tuple[str, ...] = ()) -> list[str]:
  """Runs a page here, and says which blocks print what they do not say. `skipped`: beginnings of blocks that do not
  run."""
  namespace: dict[str, object] = {"__name__": "__main__"}
  wrong = []
  for block in blocks(text):
    if block.file is not None:
      Path(block.file).write_text(block.code, encoding="utf-8")
  for block in blocks(text):
    if block.file is None and block.language in ("python", "sh") and not (skipped and block.code.startswith(skipped)):
      printed = run_block(block, namespace, name)
      if printed != block.said and (block.language == "python" or block.said):
        wrong.append(f"{name}:\n{block.code}printed:\n" + "".join(f"# -> {x}\n" for x in printed))
  return wrong


def main() -> None:
  page, *skipped = sys.argv[1:]
  sys.path[0] = ""  # the folder of the reader, not that of the tests
  text = re.sub(r"\b8000\b", str(free_port()), Path(page).read_text(encoding="utf-8"))
  wrong = run_page(text, os.path.basename(page), tuple(skipped))
  print(*wrong, sep="\n")
  sys.exit(bool(wrong))


if __name__ == "__main__":
  main()
