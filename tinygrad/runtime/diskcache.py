"""Compiled objects on disk, shared by processes: `CACHEDIR` (default ~/.cache/tinygrad), at most `CACHE_MB` megabytes
(default 512). Each backend makes its key where it compiles (`native.py`, `cl.py`, `cuda.py`): of the source, the
processor or device, and the compiler's version. Plans (`plans.py`), what BEAM chose and the roofline's peaks lie here,
too. Where nothing can be stored, a process keeps what it compiles for itself, and says so once."""

import contextlib
import os
import sys
from pathlib import Path

from tinygrad.helpers import atomic_write, blake2b, getenv, home_folder

_DIGEST = 32
_puts = 0
_told = False


def directory() -> Path:
  """Where entries live; read at every call, so that a process may change its environment. A user without a home has
  none that can be written."""
  return Path(os.environ.get("CACHEDIR") or os.path.join(home_folder(), ".cache", "tinygrad")) / "objects"


def _digest(data: bytes, name: str = "") -> bytes:
  """Of data, and of the name that they have: an entry in another's place is none."""
  found = blake2b(name.encode(), digest_size=_DIGEST)
  found.update(data)
  return found.digest()


def key_of(*parts: str) -> str:
  """The name of an entry: a digest of everything the object depends on."""
  return _digest(repr(parts).encode()).hex()


def get(key: str) -> bytes | None:
  """The entry, or None if there is none or it is damaged (then it is removed, and the caller makes it anew)."""
  path = directory() / key
  try:
    data = path.read_bytes()
  except OSError:
    return None
  whole = _digest(data[_DIGEST:], key) == data[:_DIGEST]
  with contextlib.suppress(OSError):  # removed meanwhile by another process, or the disk cannot be written
    if not whole:
      path.unlink()
    os.utime(path)  # the age that eviction goes by is the last use
  return data[_DIGEST:] if whole else None


def put(key: str, data: bytes) -> None:
  """Stores an entry: written beside and renamed, so that no reader sees a part of it. A full or read-only disk is no
  error: the cache only saves time."""
  global _puts, _told
  try:
    with atomic_write(directory() / key, lasting=False) as f:
      f.write(_digest(data, key) + data)
    _puts += 1
    if _puts % 64 == 1:
      evict(getenv("CACHE_MB", 512, 0) << 20)
  except OSError as e:
    if not _told:
      _told = True
      fix = "fix: CACHEDIR=/a/folder in the environment, with room and the right to write"
      print(f"compiled kernels are kept in memory only: {e}\n  {fix}", file=sys.stderr)


def evict(limit: int) -> None:
  """Removes entries, the longest unused first, until at most `limit` bytes are left. What cannot be removed stays."""
  entries, total = list[tuple[float, int, str]](), 0
  with os.scandir(directory()) as found:
    for entry in found:
      with contextlib.suppress(OSError):  # removed meanwhile by another process
        entries.append(((stat := entry.stat()).st_mtime, stat.st_size, entry.path))
        total += stat.st_size
  for _, size, path in sorted(entries) if total > limit else ():
    with contextlib.suppress(OSError):
      Path(path).unlink(missing_ok=True)
      total -= size
    if total <= limit:
      return
