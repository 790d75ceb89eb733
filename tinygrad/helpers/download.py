"""Files from the network, downloaded once into the cache."""

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinygrad.helpers.files import atomic_write, home_folder
from tinygrad.helpers.lazy import LazyModule, hashlib
from tinygrad.helpers.progress import tqdm

gzip, tarfile, tempfile, url_errors, url_requests = map(
  LazyModule, ("gzip", "tarfile", "tempfile", "urllib.error", "urllib.request")
)

_caches = os.environ.get("XDG_CACHE_HOME", os.path.join(home_folder(), ".cache"))
cache_dir = os.environ.get("CACHEDIR") or os.path.join(_caches, "tinygrad")  # what is downloaded


def fetch(
  url: str,
  name: Path | str | None = None,
  subdir: str | None = None,
  gunzip: bool = False,
  allow_caching: bool = True,
  headers: Mapping[str, str] = {},
  sha256: str | None = None,
  extract: bool = False,
) -> Path:
  """The file at `url`, downloaded once into the cache (`downloads/subdir/name`, named by the URL's hash if no name is
  given) and unpacked there: `gunzip` a .gz, `extract` a tar archive into a folder. A local path is that path.

  A file in the cache whose `sha256` differs is downloaded again.
  Raises: ConnectionError offline or where the server has no such file; RuntimeError where what comes is not the file.

  Examples:
    >>> path = pathlib.Path("here.bin")
    >>> path.write_bytes(b"abc")
    3
    >>> fetch(str(path.resolve())).read_bytes()  # a local path is that path
    b'abc'
  """
  if url.startswith(("/", ".")):
    return Path(url)
  file = str(name) if name else hashlib.md5(url.encode()).hexdigest() + ".gunzip" * gunzip
  path = Path(cache_dir, "downloads", subdir or "", file)  # an absolute name is taken as it is
  fits = path.is_file() and (sha256 is None or hashlib.sha256(path.read_bytes()).hexdigest() == sha256)
  if anew := not fits or not allow_caching:
    _download(url, path, gunzip, headers, sha256)
  if not extract:
    return path
  folder = path.with_name(f"{path.name}.extract")
  if anew or not folder.is_dir():
    _extract(path, folder, anew)
  return folder


def _extract(path: Path, folder: Path, anew: bool) -> None:
  with tempfile.TemporaryDirectory(dir=path.parent) as made, tarfile.open(path) as archive:
    _unpack(archive, Path(made) / "all")
    if anew:  # the folder is that of another file
      with contextlib.suppress(FileNotFoundError):
        os.rename(folder, Path(made) / "before")
    try:
      os.rename(Path(made) / "all", folder)
    except OSError as e:
      if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # by another process, which has unpacked the same meanwhile
        raise


def _unpack(archive: Any, folder: Path) -> None:
  """The files of an archive, none of which may lie outside of the folder. Python before 3.11.4 cannot see to that."""
  filtered = hasattr(tarfile, "data_filter")
  for x in archive.getmembers():
    inside = (folder / x.name).resolve().is_relative_to(folder.resolve())
    if not inside or not (filtered or x.isfile() or x.isdir()):
      raise RuntimeError(f"fetch: {x.name!r} in the archive is no file of its folder\n  fix: unpack it by hand")
  if filtered:
    archive.extractall(folder, filter="data")
  else:
    archive.extractall(folder)


def _download(url: str, path: Path, gunzip: bool, headers: Mapping[str, str], sha256: str | None) -> None:
  request = url_requests.Request(url, headers={"User-Agent": "tinygrad", **headers})
  try:
    with url_requests.urlopen(request, timeout=30) as answer, atomic_write(path) as out:
      total, digest = int(answer.headers.get("Content-Length") or 0) * (not gunzip), hashlib.sha256()
      source = gzip.GzipFile(fileobj=answer) if gunzip else answer
      with tqdm(desc=url, total=total or None, unit="B", unit_scale=True) as bar:
        while chunk := source.read(1 << 20):
          out.write(chunk)
          digest.update(chunk)
          bar.update(len(chunk))
      if total and out.tell() != total:
        raise RuntimeError(f"fetch {url}: the file is {total} bytes, and {out.tell()} came\n  fix: try again")
      if sha256 not in (None, digest.hexdigest()):
        raise RuntimeError(f"fetch {url}: its sha256 is {digest.hexdigest()}, not {sha256}\n  fix: check URL and hash")
  except url_errors.HTTPError as e:
    raise ConnectionError(f"fetch {url}: the server answers {e.code} {e.reason}\n  fix: check the URL") from e
  except (url_errors.URLError, TimeoutError) as e:
    fix = f"go online, or put the file at {path} yourself"
    raise ConnectionError(f"fetch {url}: no connection ({getattr(e, 'reason', e)})\n  fix: {fix}") from e
