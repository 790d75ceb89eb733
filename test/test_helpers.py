"""What scripts import from tinygrad.helpers."""

import copy
import enum
import errno
import functools
import gc
import gzip
import hashlib
import http.server
import importlib
import inspect
import io
import math
import os
import pickle
import pkgutil
import re
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tinygrad
from tinygrad import Tensor, dtypes, helpers
from tinygrad.helpers import (
  Context,
  ContextVar,
  LazyModule,
  Timing,
  atomic_write,
  fetch,
  file_size,
  getenv,
  tqdm,
  trange,
  uncollected,
)
from tinygrad.uop import Ops

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
  "expression, want",
  [
    ("prod([2, 3])", 6),
    ("prod([])", 1),
    ("ceildiv(5, 2)", 3),
    ("round_up(5, 4)", 8),
    ("argfix(1, 2)", (1, 2)),
    ("argfix((1, 2))", (1, 2)),
    ("argfix([1, 2])", (1, 2)),
    ("argfix()", ()),
    ("argsort((3, 1, 2))", (1, 2, 0)),
    ("argsort([3, 1, 2])", [1, 2, 0]),
    ("all_int((1, 2.0))", False),
    ("flatten([[1], [2, 3]])", [1, 2, 3]),
    ("make_tuple(2, 3)", (2, 2, 2)),
    ("dedup([1, 2, 1])", [1, 2]),
    ("partition([1, 2, 3], lambda x: x > 1)", ([2, 3], [1])),
    ("get_child({'a': [1, 2]}, 'a.1')", 2),
    ("colored('x', 'red')", "x"),
    ("getenv('NOT_THERE', 'a')", "a"),
    ("size_to_str(1500)", "1.5 KB"),
  ],
)
def test_values(expression, want):
  got = eval(expression, vars(helpers))
  assert got == want and type(got) is type(want)


def test_argfix_takes_one_of_two_forms():
  with pytest.raises(ValueError, match="one by one or as one sequence"):
    helpers.argfix((1, 2), 3)


def test_colors_on_a_terminal(monkeypatch):
  monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
  assert helpers.colored("x", "red") == "\x1b[31mx\x1b[0m" and helpers.colored("x", "RED") == "\x1b[91mx\x1b[0m"
  assert helpers.colored("x", "red", True) == "\x1b[41mx\x1b[0m"
  with Context(NO_COLOR=1):
    assert helpers.colored("x", "red") == "x"


def test_timing(capsys):
  with Timing("took ", lambda ns: f" ({ns > 0})") as t:
    pass
  assert capsys.readouterr().out == f"took {t.seconds * 1e3:6.2f} ms (True)\n"
  with Timing("took ", enabled=False):
    pass
  assert capsys.readouterr().out == ""


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_progress_bar(monkeypatch):
  monkeypatch.setattr("sys.stderr", Terminal())
  assert list(tqdm([5, 6], desc="bar")) == [5, 6] and list(trange(3)) == [0, 1, 2]
  with tqdm(total=2000, unit_scale=True) as bar:
    bar.update(500)
    bar.set_description("now")
  drawn = sys.stderr.getvalue()
  assert "bar: 100%" in drawn and "2/2" in drawn and "now:  25%" in drawn and "500/2.00k" in drawn


LOG = """
from tinygrad.helpers import tqdm, trange
for _ in trange(1000, desc="steps"): pass
for _ in tqdm(iter("ab")): pass
for _ in tqdm([], "of nothing"): pass
for _ in tqdm("ab", "disabled", disable=True): pass
for _ in tqdm("ab", "too brief to be seen", leave=False): pass
with tqdm(desc="kernel", total=9.0, bar_format="BEAM {desc} {bar} {n:.0f}/{total:.0f} s") as bar:
  bar.update(4.0)
  tqdm.write("a line between")
  bar.update(5.0)
with tqdm(total=2000, unit="B", unit_scale=True) as bar:
  bar.set_description("bytes")
  bar.set_postfix(loss=1)
  bar.update(500)
"""


def test_a_log_gets_lines_instead_of_a_bar():
  ran = subprocess.run([sys.executable, "-c", LOG], capture_output=True, timeout=120, check=True, cwd=ROOT)
  text, lines = ran.stderr.decode(), ran.stderr.decode().splitlines()
  assert "\r" not in text and "\x1b" not in text and ran.stdout == b""
  want = [
    r"steps: 100% 1000/1000 \[",
    r"2 \[",
    "a line between",
    "BEAM kernel 9/9 s",
    r"bytes: +25% 500/2.00k \[.*loss=1\]",
  ]
  for line, pattern in zip(lines, want, strict=True):
    assert re.match(pattern, line), (line, pattern)


@pytest.mark.parametrize(
  ("total", "per_item", "said"),
  [
    (100, 1.0, [*range(10, 101, 10)]),  # a tenth
    (1000, 1 / 256, [256, 512, 768, 1000]),  # not twice within a second
    (20, 100.0, [*range(1, 21)]),  # after half a minute in any case
    (None, 1.0, [30, 60, 90, 100]),
  ],
)
@pytest.mark.parametrize("leave", [True, False])
def test_how_many_lines(monkeypatch, total, per_item, said, leave):
  """By a clock of its own."""
  out, now = io.StringIO(), [0.0]
  monkeypatch.setattr("sys.stderr", out)
  bar = tqdm(total=total, leave=leave)
  bar._time = lambda: now[0]
  bar.start_t = bar.last_print_t = 0.0
  bar.said = (0.0, 0)
  for _ in range(total or 100):
    now[0] += per_item
    bar.update()
  bar.close()
  lines = out.getvalue().splitlines()
  assert [int(re.search(r"(\d+)(/\d+)? \[", line)[1]) for line in lines] == said


def test_context_variables():
  mine = ContextVar("TEST_ONLY", 3)
  assert mine.value == 3 and mine >= 2 and mine == 3
  with Context(TEST_ONLY=5, WINO=1, BEAM=2):
    assert mine.value == 5 and helpers.WINO and helpers.BEAM >= 2
  assert mine.value == 3 and not helpers.WINO
  with pytest.raises(ValueError, match="exists already"):
    ContextVar("TEST_ONLY", 1)
  with pytest.raises(ValueError, match="unknown context variable 'NOPE'"):
    Context(NOPE=1)


def test_what_no_word_can_say_is_refused_in_the_environment(monkeypatch):
  monkeypatch.setenv("TEST_TUPLE", "1")
  with pytest.raises(ValueError, match=r"TEST_TUPLE is no word .*\n  fix: unset TEST_TUPLE; `with Context"):
    ContextVar("TEST_TUPLE", ())


def test_default_types():
  x = Tensor([5])
  with Context(DEFAULT_INT="int64", DEFAULT_FLOAT="HALF"):
    assert dtypes.default_int is Tensor([1]).dtype is Tensor.arange(3).dtype is dtypes.int64
    assert (x + 1).dtype is dtypes.int32 and (Tensor([1 << 40]) + 1).item() == (1 << 40) + 1
    assert dtypes.default_float is Tensor([1.5]).dtype is Tensor.rand(2).dtype is dtypes.half
  assert dtypes.default_int is Tensor([1]).dtype is dtypes.int32
  dtypes.default_int = "int16"
  try:
    assert Tensor(3).dtype is dtypes.int16
  finally:
    dtypes.default_int = dtypes.int32


@pytest.fixture
def server(tmp_path, monkeypatch):
  """(URL of a server, its folder); what is fetched goes to a cache of the test's own."""
  folder = tmp_path / "served"
  (folder / "in").mkdir(parents=True)
  (folder / "a.txt").write_bytes(b"hello")
  (folder / "a.txt.gz").write_bytes(gzip.compress(b"hello"))
  (folder / "in" / "f.txt").write_text("hi")
  with tarfile.open(folder / "t.tar.gz", "w:gz") as archive:
    archive.add(folder / "in", "in")
  monkeypatch.setattr(helpers.download, "cache_dir", str(tmp_path / "cache"))

  class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
      pass

  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as it:
    thread = threading.Thread(target=it.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{it.server_port}", folder
    it.shutdown()
    thread.join()


def test_fetch(server, tmp_path):
  url, folder = server
  path = fetch(f"{url}/a.txt")
  assert path.read_bytes() == b"hello"
  assert path == tmp_path / "cache" / "downloads" / hashlib.md5(f"{url}/a.txt".encode()).hexdigest()
  (folder / "a.txt").write_bytes(b"changed")
  assert fetch(f"{url}/a.txt").read_bytes() == b"hello"
  assert fetch(f"{url}/a.txt", allow_caching=False).read_bytes() == b"changed"
  assert fetch(f"{url}/a.txt", "n.txt", "sub") == tmp_path / "cache" / "downloads" / "sub" / "n.txt"
  assert fetch(f"{url}/a.txt", tmp_path / "own").read_bytes() == b"changed"
  assert fetch(f"{url}/a.txt.gz", gunzip=True, sha256=hashlib.sha256(b"hello").hexdigest()).read_bytes() == b"hello"
  for _ in range(2):
    assert (fetch(f"{url}/t.tar.gz", extract=True) / "in" / "f.txt").read_text() == "hi"
  assert fetch(str(folder / "a.txt")) == folder / "a.txt"


@pytest.mark.parametrize("filtered", [True, False])
def test_an_archive_stays_in_its_folder(server, tmp_path, monkeypatch, filtered):
  """With Python's own filter, and as before it had one."""
  url, folder = server
  if not filtered:
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
  for name in ("../out.txt", "link"):
    with tarfile.open(folder / "bad.tar", "w") as archive:
      member = tarfile.TarInfo(name)
      if name == "link":
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
      archive.addfile(member)
    with pytest.raises((RuntimeError, tarfile.TarError), match="no file of its folder|absolute path"):
      fetch(f"{url}/bad.tar", allow_caching=False, extract=True)
  assert not [p for p in (tmp_path / "cache").rglob("*") if p.name in ("out.txt", "link")]
  assert (fetch(f"{url}/t.tar.gz", extract=True) / "in" / "f.txt").read_text() == "hi"


def test_an_archive_that_is_downloaded_again_is_unpacked_again(server, tmp_path):
  url, folder = server
  unpacked = fetch(f"{url}/t.tar.gz", extract=True)
  (folder / "in" / "f.txt").write_text("another")
  with tarfile.open(folder / "t.tar.gz", "w:gz") as archive:
    archive.add(folder / "in", "in")
  new = hashlib.sha256((folder / "t.tar.gz").read_bytes()).hexdigest()
  assert fetch(f"{url}/t.tar.gz", extract=True, sha256=new) == unpacked
  assert (unpacked / "in" / "f.txt").read_text() == "another"
  assert {p.name for p in unpacked.parent.iterdir()} == {unpacked.name, unpacked.name.removesuffix(".extract")}


def test_two_processes_unpack_one_archive(server, monkeypatch):
  """The second one finds the first one's folder where its own is to be."""
  url, _ = server
  unpack = helpers.download._unpack

  def slowly(archive, folder):
    unpack(archive, folder)
    monkeypatch.setattr(helpers.download, "_unpack", unpack)
    fetch(f"{url}/t.tar.gz", extract=True)

  monkeypatch.setattr(helpers.download, "_unpack", slowly)
  assert (fetch(f"{url}/t.tar.gz", extract=True) / "in" / "f.txt").read_text() == "hi"


def test_fetch_errors_leave_nothing(server, tmp_path):
  url, _ = server
  with pytest.raises(ConnectionError, match="answers 404"):
    fetch(f"{url}/missing")
  with pytest.raises(RuntimeError, match="its sha256 is 2cf24d.*, not 00"):
    fetch(f"{url}/a.txt", sha256="00")
  with pytest.raises(ConnectionError, match="no connection.*\n  fix: go online, or put the file at"):
    fetch("http://127.0.0.1:9/x")
  assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_a_cached_file_of_another_hash_is_downloaded_again(server):
  url, _ = server
  path = fetch(f"{url}/a.txt")
  path.write_bytes(b"damaged")
  assert fetch(f"{url}/a.txt").read_bytes() == b"damaged"
  assert fetch(f"{url}/a.txt", sha256=hashlib.sha256(b"hello").hexdigest()).read_bytes() == b"hello"
  with pytest.raises(RuntimeError, match="its sha256 is .*, not 00\n  fix: check URL and hash"):
    fetch(f"{url}/a.txt", sha256="00")
  assert path.read_bytes() == b"hello"


def test_a_folder_that_an_uninstalled_package_has_left_is_no_module(tmp_path, monkeypatch):
  (tmp_path / "left_behind").mkdir()
  monkeypatch.syspath_prepend(tmp_path)
  module = LazyModule("left_behind")
  with pytest.raises(ModuleNotFoundError, match="No module named 'left_behind'"):
    module.anything  # noqa: B018


def test_the_collector_is_kept_out_and_goes_on():
  """Where it went on before, whatever happens within."""

  @uncollected()
  def fails():
    assert not gc.isenabled()
    raise ValueError("within")

  with pytest.raises(ValueError, match="within"):
    fails()
  assert gc.isenabled()
  gc.disable()
  try:
    with uncollected():
      pass
    assert not gc.isenabled()
  finally:
    gc.enable()


@pytest.mark.parametrize(
  ("given", "value", "kind"),
  [
    ((3,), "x", "int"),
    ((0,), "", "int"),
    ((0.5,), "half", "float"),
    ((4, 1), "0", "int of 1 or more"),
    ((4, 1), "x", "int of 1 or more"),
    ((0.5, 0), "nan", "float of 0 or more"),
  ],
)
def test_a_setting_of_the_environment_that_is_none_is_named(monkeypatch, given, value, kind):
  monkeypatch.setenv("A_SETTING_OF_THIS_TEST", value)
  with pytest.raises(ValueError, match=rf"A_SETTING_OF_THIS_TEST={value!r} .* is no {kind}\n  fix: "):
    getenv("A_SETTING_OF_THIS_TEST", *given)


def test_the_environment_is_read_when_it_is_asked_for(monkeypatch):
  """A device that opens after CUDA_VIRTUAL was set has what it says, whatever an earlier one read."""
  assert getenv("A_SETTING_OF_THIS_TEST", 1) == 1
  monkeypatch.setenv("A_SETTING_OF_THIS_TEST", "2")
  assert getenv("A_SETTING_OF_THIS_TEST", 1) == 2


@pytest.mark.parametrize(("key", "value"), [("CPU_THREADS", -1), ("BEAM_SECONDS", -0.5), ("BEAM_SECONDS", math.nan)])
def test_a_setting_below_what_it_can_be_is_named(key, value):
  with pytest.raises(ValueError, match=f"{key}={value!r} is no number of 0 or more\n  fix: {key}="):
    Context(**{key: value})


def test_no_color_is_whatever_is_said(monkeypatch):
  """As no-color.org has it: `NO_COLOR=yes` stopped the import."""
  code = "from tinygrad.helpers import NO_COLOR; print(bool(NO_COLOR))"
  for value, want in (("yes", "True"), ("1", "True"), ("", "False")):
    monkeypatch.setenv("NO_COLOR", value)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout.strip() == want, said.stderr


def test_a_file_is_whole_whenever_a_ctrl_c_comes(tmp_path, monkeypatch):
  replace = os.replace

  def interrupted(source, target):
    replace(source, target)
    raise KeyboardInterrupt

  monkeypatch.setattr(os, "replace", interrupted)
  with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "whole") as f:
    f.write(b"abc")
  assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("whole", b"abc")]


@pytest.fixture(params=["named", "unnamed"])
def new_files(request, monkeypatch):
  """As on systems that know no files without names, and as on this one."""
  if request.param == "named":
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)


def test_no_file_is_left_by_a_ctrl_c_that_comes_as_it_is_made(tmp_path, monkeypatch, new_files):
  made = os.open

  def interrupted(*args):
    os.close(made(*args))
    raise KeyboardInterrupt

  monkeypatch.setattr(os, "open", interrupted)
  with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "not yet"):
    pytest.fail("the block ran")
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("before", [None, b"before"])
def test_the_bytes_are_on_the_disk_before_a_file_has_its_name(tmp_path, monkeypatch, new_files, before):
  """Else a machine that stops just then leaves an empty file in the place of the one that was there."""
  path, seen = tmp_path / "file", []
  if before is not None:
    path.write_bytes(before)

  def synced(handle):
    seen.append((os.fstat(handle).st_ino, os.fstat(handle).st_size, path.read_bytes() if path.exists() else None))

  monkeypatch.setattr(os, "fsync", synced)
  with atomic_write(path) as f:
    f.write(b"abc")
  assert seen == [(path.stat().st_ino, 3, before)]
  with atomic_write(path, lasting=False) as f:
    f.write(b"of a cache")
  assert len(seen) == 1 and path.read_bytes() == b"of a cache"


def test_a_full_disk_is_said_of_the_file_and_leaves_what_was_there(tmp_path):
  (tmp_path / "kept").write_bytes(b"before")
  with pytest.raises(OSError, match=r"No space left.*kept"), atomic_write(tmp_path / "kept") as f:
    f.write(b"abc")
    raise OSError(errno.ENOSPC, "No space left on device")
  assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("kept", b"before")]


def test_a_file_that_is_replaced_keeps_its_mode_and_a_new_one_has_the_users(tmp_path, new_files):
  old = tmp_path / "old"
  old.write_bytes(b"before")
  old.chmod(0o604)
  before = os.umask(0o077)
  try:
    for path in (old, tmp_path / "new"):
      with atomic_write(path) as f:
        f.write(b"abc")
  finally:
    os.umask(before)
  assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("old", "new")] == [0o604, 0o600]


def test_a_link_stays_one_and_what_it_names_is_written(tmp_path, new_files):
  (tmp_path / "there").mkdir()
  for name in ("latest", "to come"):
    (tmp_path / name).symlink_to(tmp_path / "there" / name)
  (tmp_path / "there" / "latest").write_bytes(b"before")
  for name in ("latest", "to come"):
    with atomic_write(tmp_path / name) as f:
      f.write(name.encode())
    assert (tmp_path / name).is_symlink() and (tmp_path / "there" / name).read_bytes() == name.encode()
  assert len([*(tmp_path / "there").iterdir()]) == 2


def test_what_is_no_file_is_written_and_stays_what_it_is(tmp_path):
  """`PROFILE_FILE=/dev/null` of root replaced the machine's /dev/null by a file."""
  pipe = tmp_path / "pipe"
  os.mkfifo(pipe)
  with ThreadPoolExecutor(1) as pool:
    read = pool.submit(pipe.read_bytes)
    with atomic_write(pipe) as f:
      f.write(b"abc")
    assert read.result() == b"abc" and pipe.is_fifo() and [*tmp_path.iterdir()] == [pipe]


def test_where_no_file_can_be_is_said_of_its_path_before_the_block(tmp_path, monkeypatch):
  (tmp_path / "folder").mkdir()
  (tmp_path / "kept").write_bytes(b"before")
  wrong = {"folder": (IsADirectoryError, "folder"), "kept/x": (OSError, "kept"), "n" * 256: (OSError, "n" * 256)}
  for name, (error, said) in wrong.items():
    with pytest.raises(error, match=f"'{re.escape(str(tmp_path / said))}'$"), atomic_write(tmp_path / name):
      pytest.fail("the block ran")
  with pytest.raises(OSError, match=r"directory: '/proc/not here'$"), atomic_write("/proc/not here"):
    pytest.fail("the block ran")
  with pytest.raises(OSError, match=f"'{tmp_path / 'made'}'$"), atomic_write(tmp_path / "made"):
    (tmp_path / "made").mkdir()
  (tmp_path / "made").rmdir()
  monkeypatch.setattr(os, "access", lambda path, how: False)  # root may write all
  with pytest.raises(PermissionError, match="Permission denied: .*/kept'"), atomic_write(tmp_path / "kept"):
    pytest.fail("the block ran")
  assert (tmp_path / "kept").read_bytes() == b"before" and len([*tmp_path.iterdir()]) == 2


def test_the_longest_name_that_a_file_may_have_is_taken(tmp_path, new_files):
  with atomic_write(tmp_path / ("é" * 127)) as f:
    f.write(b"abc")
  assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"abc"]


def test_a_file_whose_bytes_can_be_mapped(tmp_path):
  (tmp_path / "file").write_bytes(b"abc")
  assert file_size(tmp_path / "file") == 3
  os.mkfifo(tmp_path / "pipe")
  for path in (tmp_path / "pipe", "/dev/null"):
    with pytest.raises(OSError, match=f"{path} is a pipe or a device, and no file\n  fix: "):
      file_size(path)
  with pytest.raises(IsADirectoryError, match=str(tmp_path)):
    file_size(tmp_path)


def test_members_are_an_enums_and_found_without_a_call():
  """EnumType has a `__getattr__` until Python 3.12, and a class of a type with one is asked by a call."""
  assert type(Ops).__getattribute__ is type.__getattribute__ and not hasattr(type(Ops), "__getattr__")
  assert isinstance(Ops.ADD, Ops) and not isinstance(1, Ops) and isinstance(Ops.ADD, enum.IntEnum)
  assert Ops(int(Ops.ADD)) is Ops["ADD"] is Ops.ADD and Ops.ADD in list(Ops) and repr(Ops.ADD) == "Ops.ADD"
  assert pickle.loads(pickle.dumps(Ops.ADD)) is Ops.ADD
  with pytest.raises(ValueError, match="is not a valid Ops"):
    Ops(-1)
  with pytest.raises(AttributeError, match="no attribute 'ADDED'"):
    _ = Ops.ADDED


# ---------------------------------------------------------------- errors go from process to process


def exceptions_of_the_package():
  """Each exception class that makes its message itself, of every module."""
  for module in pkgutil.walk_packages(tinygrad.__path__, "tinygrad."):
    if not module.name.endswith("__main__"):
      importlib.import_module(module.name)
  todo, found = [Exception], set()
  while todo:
    kinds = todo.pop().__subclasses__()
    todo += [kind for kind in kinds if kind not in found]
    found |= set(kinds)
  ours = [kind for kind in found if kind.__module__.startswith("tinygrad.")]
  return [kind for kind in ours if getattr(kind.__init__, "__code__", None) is not None]


def test_an_error_that_makes_its_message_is_copied_as_it_is():
  """In a pool of processes one that is not ends the pool: its caller waits without end."""
  kinds = exceptions_of_the_package()
  assert len(kinds) > 10
  for kind in kinds:
    given = [f"<{name}>" for name in [*inspect.signature(kind).parameters][:4]]
    error = kind(*given)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
      assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))
