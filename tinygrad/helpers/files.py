"""Files that are whole or not there, and what tells whether they have changed."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tinygrad.helpers.lazy import LazyModule

shutil, tempfile = map(LazyModule, ("shutil", "tempfile"))
FilePath = str | os.PathLike[str]


def home_folder() -> str:
  """The user's; of a user whom the system does not know, one that cannot be written, and no `~` in the current one."""
  found = os.path.expanduser("~")
  return os.path.join(os.devnull, "home") if found == "~" else found


def file_size(path: FilePath) -> int:
  """Of a file whose bytes can be mapped. Raises OSError for what is none, as for what is not there: whoever opens a
  pipe waits for a writer, and a device has no size."""
  mode = (found := os.stat(path)).st_mode
  if stat.S_ISDIR(mode):
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
  if not stat.S_ISREG(mode):
    raise OSError(f"{os.fspath(path)} is a pipe or a device, and no file\n  fix: write its bytes to a file first")
  return found.st_size


@contextlib.contextmanager
def atomic_write(path: FilePath, lasting: bool = True) -> Iterator[Any]:
  """Opens a binary file that takes the place of the one at `path` when the block ends well, and is gone otherwise. A
  link stays one. What is no file (/dev/null, a pipe) gets the bytes then. The bytes are on the disk before the file has
  its name, so that a machine that stops leaves one or the other; not `lasting`: for what whoever reads it checks, and
  can make again. Raises: OSError, which names `path`."""
  mode = None
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    mode = os.stat(path).st_mode
  if mode is not None and stat.S_ISDIR(mode):
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
  if mode is not None and not os.access(path, os.W_OK):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
  regular = mode is None or stat.S_ISREG(mode)
  with _replacement(path, mode, lasting) if regular else _copied_at_the_end(path) as f:
    yield f


@contextlib.contextmanager
def _copied_at_the_end(path: FilePath) -> Iterator[Any]:
  with tempfile.TemporaryFile() as f:
    yield f
    f.seek(0)
    with open(path, "wb") as out:
      shutil.copyfileobj(f, out)


@contextlib.contextmanager
def _replacement(path: FilePath, mode: int | None, lasting: bool) -> Iterator[Any]:
  target = Path(os.path.realpath(path))
  name = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}")
  try:  # a Ctrl-C just after the file is made removes it, too
    target.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(_new_file(name), "wb") as f:
      yield f
      f.flush()
      if lasting:
        os.fsync(f.fileno())
      if not os.path.lexists(name):  # with a folder's fd, which an absolute path does not use, Python follows the link
        os.link(f"{FDS}/{f.fileno()}", name, src_dir_fd=f.fileno())
    if mode is not None:
      os.chmod(name, stat.S_IMODE(mode))
    os.replace(name, target)
  except BaseException as e:
    with contextlib.suppress(OSError):  # just after the renaming it is gone
      name.unlink()
    ours = isinstance(e, OSError) and e.filename in (None, os.fspath(name))  # None: of a full disk
    if not isinstance(e, OSError) or not ours or e.errno is None:
      raise
    raise OSError(e.errno, e.strerror, os.fspath(path)) from e


FDS = "/proc/self/fd"


def _new_file(name: Path) -> int:
  """Without a name until it is whole, where the system has such: a process that is killed leaves nothing then."""
  if (unnamed := getattr(os, "O_TMPFILE", 0)) and os.path.isdir(FDS):
    with contextlib.suppress(OSError):
      return os.open(name.parent, unnamed | os.O_RDWR, 0o666)
  return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)


def stamp(paths: Iterable[FilePath]) -> str:
  """What changes when one of the files does: their names, sizes and times, by which Python, too, knows whether its
  bytecode is of a file."""
  return "\n".join(f"{path} {(s := os.stat(path)).st_size} {s.st_mtime_ns}" for path in paths)
