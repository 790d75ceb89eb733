"""Attacks on the kernel cache: whatever becomes of its files and its disk, kernels are compiled anew and are right."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tinygrad.runtime import diskcache

ROOT = Path(__file__).parents[2]
# A program of some kernels, on one device and on two; it prints one line if all is right.
PROGRAM = """
import numpy as np
from tinygrad import Tensor, nn
x = np.arange(24, dtype=np.float32).reshape(4, 6) / 7
for device in ("CPU", ("CPU:0", "CPU:1")):
  t = Tensor(x).to(device) if device == "CPU" else Tensor(x).shard(device, axis=0)
  np.testing.assert_allclose((t.exp() @ t.permute(1, 0)).sum(0).numpy(), (np.exp(x) @ x.T).sum(0), rtol=1e-5)
  e = np.exp(x)
  np.testing.assert_allclose(t.softmax(-1).max(1).numpy(), (e / e.sum(1, keepdims=True)).max(1), rtol=1e-5)
print("right")
"""
TOLD = "compiled kernels are kept in memory only: "


def run(code=PROGRAM, before="", cwd=None, preexec=None, **environment):
  """(what it printed, its errors); an environment variable that is None is not set. Each kernel is compiled once: how
  many are compiled again before a process ends depends on how busy the machine is."""
  inherited = {k: v for k, v in os.environ.items() if k not in ("CACHEDIR", "HOME", "XDG_CACHE_HOME")}
  wanted = {k: v for k, v in environment.items() if v is not None}
  done = subprocess.run(
    [sys.executable, "-c", before + code],
    capture_output=True, text=True, cwd=cwd, preexec_fn=preexec,
    env={**inherited, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "QUICK_CODE": "0", **wanted},
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  return done.stdout, done.stderr


def entries(cache):
  return {p.name: p.read_bytes() for p in (cache / "objects").iterdir()}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
  """The entries that PROGRAM leaves behind."""
  cache = tmp_path_factory.mktemp("cache")
  assert run(CACHEDIR=str(cache)) == ("right\n", "")
  made = entries(cache)
  assert len(made) >= 4
  return made


@pytest.mark.parametrize(
  "how", ["flipped", "cut", "empty", "of another kernel", "another kernel", "a folder", "longer"]
)
def test_damaged_entries_are_made_anew(filled, tmp_path, how):
  rng, folder = random.Random(0), tmp_path / "objects"
  folder.mkdir()
  names = sorted(filled)
  for i, name in enumerate(names):
    data = bytearray(filled[name])
    at = rng.randrange(len(data))
    if how == "flipped":
      data[at] ^= 1 << rng.randrange(8)
    elif how == "cut":
      del data[at:]
    elif how == "empty":
      data.clear()
    elif how == "of another kernel":  # whose beginning says what it should be
      data[32:] = filled[names[i - 1]][32:]
    elif how == "another kernel":
      data[:] = filled[names[i - 1]]
    elif how == "longer":
      data += b"\0"
    if how == "a folder":
      (folder / name).mkdir()
    else:
      (folder / name).write_bytes(data)
  out, err = run(CACHEDIR=str(tmp_path))
  assert out == "right\n"
  if how == "a folder":  # nothing can be stored under these names
    assert err.count(TOLD) == 1
  else:
    assert err == "" and entries(tmp_path) == filled


def kill_while_writing(number):
  """Code that ends the process, as kill -9 does, when the half of an entry is written."""
  return f"""
import os, signal
import tinygrad.runtime.diskcache as diskcache
real, count = diskcache.atomic_write, [0]
class Half:
  def __init__(self, f): self.f = f
  def write(self, data):
    count[0] += 1
    if count[0] == {number}:
      self.f.write(data[:len(data) // 2])
      self.f.flush()
      os.kill(os.getpid(), signal.SIGKILL)
    return self.f.write(data)
import contextlib
@contextlib.contextmanager
def writing(path, lasting):
  with real(path, lasting) as f:
    yield Half(f)
diskcache.atomic_write = writing
"""


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_where_files_may_be_without_names(filled, tmp_path):
  if not hasattr(os, "O_TMPFILE"):
    pytest.skip("Linux's")
  with pytest.raises(AssertionError):
    run(before=kill_while_writing(2), CACHEDIR=str(tmp_path))
  left = entries(tmp_path)
  assert len(left) == 1 and left.items() <= filled.items()


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_is_read(filled, tmp_path):
  named = "import os\nvars(os).pop('O_TMPFILE', None)\n"
  for number in (1, 2, 3):
    with pytest.raises(AssertionError):
      run(before=named + kill_while_writing(number), CACHEDIR=str(tmp_path))
    left = entries(tmp_path)
    assert any(name.startswith(".") for name in left), "the half of an entry"
    assert all(filled[name] == data for name, data in left.items() if not name.startswith("."))
  assert run(CACHEDIR=str(tmp_path)) == ("right\n", "")
  assert {name: data for name, data in entries(tmp_path).items() if not name.startswith(".")} == filled
  diskcache_limit = f"from tinygrad.runtime import diskcache; diskcache.evict({sum(map(len, filled.values()))})"
  run(diskcache_limit, CACHEDIR=str(tmp_path))
  assert not any(name.startswith(".") for name in entries(tmp_path)), "what was left is the longest unused"


def full(nbytes):
  """No file may be longer, as on a disk that is full."""
  import resource

  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes fail instead
  resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


@pytest.mark.parametrize("room", [0, 40, 1000])
def test_a_full_disk_is_told_once_and_kernels_are_right(tmp_path, room):
  out, err = run(CACHEDIR=str(tmp_path), preexec=lambda: full(room))
  assert out == "right\n" and err.count(TOLD) == 1 and "fix: CACHEDIR=" in err
  assert all(len(data) <= room and not name.startswith(".") for name, data in entries(tmp_path).items())


READ_ONLY = """
import builtins, errno, os, pathlib
def refuse(*args, **settings):
  raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(args[0]) if args else "")
os.utime = os.unlink = os.replace = os.mkdir = os.open = refuse
pathlib.Path.unlink = refuse
"""  # root may write anywhere, so that permissions show nothing here


def test_a_read_only_disk_is_read_and_its_damaged_entries_are_not(filled, tmp_path):
  folder = tmp_path / "objects"
  folder.mkdir()
  for i, name in enumerate(sorted(filled)):
    (folder / name).write_bytes(filled[name][: -(i % 2)] if i % 2 else filled[name])
  before = entries(tmp_path)
  out, err = run(before=READ_ONLY, CACHEDIR=str(tmp_path))
  assert out == "right\n" and err.count(TOLD) == 1 and "Read-only file system" in err
  assert entries(tmp_path) == before


UNKNOWN = "import pwd\npwd.getpwuid = pwd.getpwnam = lambda _: (_ for _ in ()).throw(KeyError('who?'))\n"


def test_a_user_whom_the_system_does_not_know_gets_no_home_in_the_current_folder(tmp_path):
  out, err = run(before=UNKNOWN, cwd=tmp_path)
  assert out == "right\n" and err.count(TOLD) == 1, err
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("home", ["", "/dev/null", "/proc/no such", None])
def test_without_a_home_kernels_are_kept_in_memory_which_is_said_once(home, tmp_path):
  """`None`: a user whom the system does not know. Where HOME is empty, root may write to /.cache."""
  out, err = run(before=READ_ONLY + (UNKNOWN if home is None else ""), cwd=tmp_path, HOME=home)
  assert out == "right\n" and err.count(TOLD) == 1 and err.count("\n") == 2, err
  assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_may_be_the_current_one():
  out, err = run(cwd="/proc", CACHEDIR="/proc/here")
  assert out == "right\n" and err.count(TOLD) == 1


def test_eviction_leaves_what_cannot_be_removed(tmp_path, monkeypatch):
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  (tmp_path / "objects" / "folder").mkdir(parents=True)
  os.utime(tmp_path / "objects" / "folder", (1, 1))
  diskcache.put("a", bytes(100))
  diskcache.evict(0)
  assert [p.name for p in (tmp_path / "objects").iterdir()] == ["folder"]
