"""Files that are whole or not there, and what tells whether they have changed."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def home_folder() -> str:
  """The user's; of a user whom the system does not know, one that cannot be written, and no `~` in the current one."""
  found = os.path.expanduser("~")
  return os.path.join(os.devnull, "home") if found == "~" else found


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Any]:
  """Opens a binary file beside `path` and renames it to `path` when the block ends well; removes it otherwise."""
  target = Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  name = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
  try:  # a Ctrl-C just after the file is made removes it, too
    handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o644)
    with os.fdopen(handle, "wb") as f:
      yield f
    os.chmod(name, 0o644)
    os.replace(name, target)
  except BaseException as e:
    with contextlib.suppress(OSError):  # just after the renaming it is gone
      name.unlink()
    if isinstance(e, OSError) and e.filename is None:  # of a full disk
      e.filename = os.fspath(target)
    raise


def stamp(paths: Iterable[str | os.PathLike[str]]) -> str:
  """What changes when one of the files does: their names, sizes and times, by which Python, too, knows whether its
  bytecode is of a file."""
  return "\n".join(f"{path} {(s := os.stat(path)).st_size} {s.st_mtime_ns}" for path in paths)
