"""Models by name, from a server on this machine that answers what huggingface_hub asks: downloads that break off, wrong
checksums, no network."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import Tiny
from tiny_models import write_folder

from tinygrad.apps import hub, llm
from tinygrad.apps.hub import NAMES, HubError, Wanted, find_model, is_path

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub (the extra hub)")


CODES = {403: "GatedRepo", 404: "RepoNotFound"}


class Hub(http.server.ThreadingHTTPServer):
  """`files` by repository and name. `breaks`: after so many bytes each answer of a file ends; `status`: of all."""

  daemon_threads = True

  def __init__(self) -> None:
    super().__init__(("127.0.0.1", 0), Answer)
    self.files: dict[str, dict[str, bytes]] = {}
    self.asked: list[tuple[str, str, str | None, str | None]] = []
    self.breaks, self.status, self.ranges, self.etags = 1 << 40, 200, True, dict[str, str]()

  @property
  def url(self) -> str:
    return f"http://127.0.0.1:{self.server_address[1]}"

  def taken(self, method: str = "GET") -> list[str | None]:
    """The ranges of files that were asked for."""
    return [r for m, path, r, _ in self.asked if m == method and "/resolve/" in path]


class Answer(http.server.BaseHTTPRequestHandler):
  server: Hub

  def log_message(self, *_: Any) -> None:
    pass

  def do_HEAD(self) -> None:
    self.answer()

  def do_GET(self) -> None:
    self.answer()

  def answer(self) -> None:
    hub_ = self.server
    hub_.asked.append((self.command, self.path, self.headers["Range"], self.headers["Authorization"]))
    if hub_.status != 200:
      return self.say(hub_.status, b"", {"X-Error-Code": CODES.get(hub_.status, "")})
    if listing := re.match(r"/api/models/(\w+/[\w.-]+)(/tree/\w+)?", self.path):
      return self.list_files(*listing.groups())
    repo, file = re.match(r"/(\w+/[\w.-]+)/resolve/\w+/([^?]+)", self.path).groups()
    data = hub_.files.get(repo, {}).get(file)
    if data is None:
      return self.say(404, b"", {"X-Error-Code": "EntryNotFound" if repo in hub_.files else "RepoNotFound"})
    etag = hub_.etags.get(file) or hashlib.sha256(data).hexdigest()
    about = {"ETag": f'"{etag}"', "X-Repo-Commit": "c" * 40, "X-Linked-Size": str(len(data)), "X-Linked-Etag": etag}
    first = int(re.match(r"bytes=(\d+)-", self.headers["Range"])[1]) if self.headers["Range"] and hub_.ranges else 0
    part = data[first:]
    more = {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"} if first else {}
    self.say(206 if first else 200, part[: hub_.breaks], about | more | {"Content-Length": str(len(part))})

  def list_files(self, repo: str, tree: str | None) -> None:
    files = self.server.files.get(repo)
    if files is None:
      return self.say(404, b"", {"X-Error-Code": "RepoNotFound"})
    listing = [{"type": "file", "path": f, "size": len(x), "oid": "0" * 40} for f, x in files.items()]
    whole = {"id": repo, "sha": "c" * 40, "siblings": [{"rfilename": f} for f in files], "tags": [], "private": False}
    self.say(200, json.dumps(listing if tree else whole).encode(), {"Content-Type": "application/json"})

  def say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
    self.send_response(status)
    for name, value in ({"Content-Length": str(len(body))} | headers).items():
      self.send_header(name, value)
    self.end_headers()
    if self.command == "GET":
      self.wfile.write(body)
    self.close_connection = True


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
  server = Hub()
  threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
  monkeypatch.setenv("HF_ENDPOINT", server.url)
  monkeypatch.setattr(hub, "cache_dir", str(tmp_path / "cache"))
  monkeypatch.setattr(hub, "PAUSE", 0.0)
  yield server
  server.shutdown()
  server.server_close()


DATA = bytes(range(256)) * 4000


def test_a_file_is_downloaded_once(served: Hub, tmp_path: Path):
  served.files["org/repo"] = {"a-Q8_0.gguf": DATA, "a-Q4_K_M.gguf": DATA[::-1], "README.md": b"x"}
  found = find_model("org/repo:q8_0")
  assert found == tmp_path / "cache/models/org/repo/a-Q8_0.gguf" and found.read_bytes() == DATA
  assert [p.name for p in found.parent.iterdir()] == ["a-Q8_0.gguf"], "no part is left"
  asked = len(served.asked)
  assert find_model("org/repo:a-Q8_0.gguf") == find_model("org/repo:Q8_0") == found and len(served.asked) == asked
  assert find_model("org/repo:Q4_K_M").read_bytes() == DATA[::-1]


def test_a_download_that_breaks_off_goes_on(served: Hub, tmp_path: Path):
  """Within one call, and, where it was given up, in the next."""
  served.files["org/repo"] = {"a.gguf": DATA}
  served.breaks = 400_000
  assert find_model("org/repo").read_bytes() == DATA
  assert served.taken() == [None, "bytes=400000-", "bytes=800000-"]
  find_model("org/repo").unlink()
  served.asked.clear()
  served.breaks = 0
  part = tmp_path / "cache/models/org/repo" / f"a.gguf.{hashlib.sha256(DATA).hexdigest()[:16]}.part"
  part.write_bytes(DATA[:123])
  with pytest.raises(HubError, match=r"the hub cannot be reached: .*\n  fix: put the file at .*org/repo/a.gguf, or"):
    find_model("org/repo")
  assert served.taken() == ["bytes=123-"] * hub.ATTEMPTS and part.read_bytes() == DATA[:123]
  served.breaks = 1 << 40
  assert find_model("org/repo").read_bytes() == DATA and served.taken()[-1] == "bytes=123-" and not part.exists()


def test_a_server_without_ranges_begins_anew(served: Hub, tmp_path: Path):
  served.files["org/repo"], served.ranges = {"a.gguf": DATA}, False
  part = tmp_path / "cache/models/org/repo" / f"a.gguf.{hashlib.sha256(DATA).hexdigest()[:16]}.part"
  part.parent.mkdir(parents=True)
  part.write_bytes(b"what was there")
  assert find_model("org/repo").read_bytes() == DATA


def test_a_wrong_checksum(served: Hub, tmp_path: Path):
  served.files["org/repo"], served.etags = {"a.gguf": DATA}, {"a.gguf": "0" * 64}
  with pytest.raises(HubError, match=rf"a.gguf came with the checksum {hashlib.sha256(DATA).hexdigest()}, and the hub"):
    find_model("org/repo")
  assert list((tmp_path / "cache/models/org/repo").iterdir()) == [], "nothing of it is left"
  served.etags = {"a.gguf": hashlib.sha1(b"blob %d\0" % len(DATA) + DATA).hexdigest()}  # as git has it
  assert find_model("org/repo").read_bytes() == DATA
  served.files["org/odd"], served.etags = {"b.gguf": DATA}, {"b.gguf": "none"}
  with pytest.raises(HubError, match="it tells no size or no checksum of b.gguf"):
    find_model("org/odd")


def test_two_at_once(served: Hub, tmp_path: Path):
  import fcntl

  served.files["org/repo"] = {"a.gguf": DATA}
  part = tmp_path / "cache/models/org/repo" / f"a.gguf.{hashlib.sha256(DATA).hexdigest()[:16]}.part"
  part.parent.mkdir(parents=True)
  with part.open("ab") as other:
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(HubError, match="is being downloaded by another process\n  fix: wait for it"):
      find_model("org/repo")


def test_another_process_is_done_just_before(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  """What was opened under the other name is the whole file then, or a new one that nobody needs."""
  import fcntl

  served.files["org/repo"] = {"a.gguf": DATA}
  target, lock = tmp_path / "cache/models/org/repo/a.gguf", fcntl.flock

  for opened in ("theirs", "new"):

    def after_another(out, how, opened=opened):
      part = Path(out.name)
      out.write(DATA)
      out.flush()
      part.replace(target)
      if opened == "new":
        part.touch()
      lock(out, how)

    monkeypatch.setattr(fcntl, "flock", after_another)
    assert find_model("org/repo") == target and target.read_bytes() == DATA
    assert [*target.parent.iterdir()] == [target] and served.taken() == []
    target.unlink()


def test_a_download_is_on_the_disk_before_it_has_its_name(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  served.files["org/repo"], seen = {"a.gguf": DATA}, []
  target = tmp_path / "cache/models/org/repo/a.gguf"
  monkeypatch.setattr(os, "fsync", lambda handle: seen.append((os.fstat(handle).st_ino, target.exists())))
  assert find_model("org/repo") == target
  assert seen == [(target.stat().st_ino, False)]


def test_offline(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  """Only what was downloaded, or put there by hand, is found; else the error says where to put it."""
  monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
  place = tmp_path / "cache/models/org/repo"
  with pytest.raises(HubError, match=rf"the hub cannot be reached: .*\n  fix: put the file at {place}/FILE.gguf, or"):
    find_model("org/repo")
  with pytest.raises(HubError, match=rf"fix: put the file at {place}/x.gguf, or name it with --model"):
    find_model("org/repo:x.gguf")
  place.mkdir(parents=True)
  (place / "x.gguf").write_bytes(DATA)
  assert find_model("org/repo") == find_model("org/repo:x.gguf") == place / "x.gguf"


@pytest.mark.parametrize(
  ("status", "match"),
  [
    (404, "org/none: there is no such repository, or it is private\n  fix: check the name, or set HF_TOKEN"),
    (403, "org/none: its owners have to let you in\n  fix: ask at https://huggingface.co/org/none, and set HF_TOKEN"),
    (500, "org/none: the hub cannot be reached: "),
  ],
)
def test_what_the_hub_refuses(served: Hub, status: int, match: str, monkeypatch: pytest.MonkeyPatch):
  served.status = status
  with pytest.raises(HubError, match=match):
    find_model("org/none")


def test_the_token_goes_to_the_hub_only(served: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
  monkeypatch.setenv("HF_TOKEN", "hf_secret")
  served.files["org/repo"] = {"a.gguf": DATA}
  find_model("org/repo")
  assert served.asked[-1][3] == "Bearer hf_secret"
  other = served.url.replace("127.0.0.1", "localhost")
  with (tmp_path / "out").open("ab+") as out:
    hub.fill(out, f"{other}/org/repo/resolve/main/a.gguf", len(DATA), served.url, "a.gguf")
  assert served.asked[-1][3] is None and (tmp_path / "out").read_bytes() == DATA


def test_what_is_taken_of_several():
  def pick(*files: str, file: str = "") -> list[str]:
    return Wanted("org/repo", file).pick(files)

  assert pick("a-Q8_0.gguf", "a-Q4_K_M.gguf", "a-f16.gguf") == ["a-Q4_K_M.gguf"]
  assert pick("a-Q3_K_L.gguf") == ["a-Q3_K_L.gguf"]
  assert pick("mmproj-a-f16.gguf", "a-Q8_0.gguf") == ["a-Q8_0.gguf"]
  assert pick("a-Q4_K_M-00001-of-00002.gguf", "a-F16.gguf") == ["a-F16.gguf"]
  assert pick("deep/a.Q4_K_M.gguf", "a-IQ4_K_M.gguf", file="q4_k_m") == ["deep/a.Q4_K_M.gguf"]
  folder = pick("config.json", "a.safetensors", "tokenizer.json", "x.bin", "onnx/y.json")
  assert folder == ["a.safetensors", "tokenizer.json", "config.json"]
  with pytest.raises(HubError, match="there is no file 'q2_k'\n  fix: one of a-Q8_0.gguf"):
    pick("a-Q8_0.gguf", file="q2_k")
  with pytest.raises(HubError, match="there are 2 files 'q8_0'\n  fix: one of a-Q8_0.gguf, b-Q8_0.gguf"):
    pick("a-Q8_0.gguf", "b-Q8_0.gguf", file="q8_0")
  with pytest.raises(HubError, match="holds neither a whole GGUF file nor config.json and .safetensors files"):
    pick("a-Q4_K_M-00001-of-00002.gguf", "config.json")


@pytest.mark.parametrize("name", ["nonsense", "a/b/c", "../b", "a/..", "a/b:../../x", "a/b:/etc/passwd", "a b/c", ""])
def test_names_that_are_none(name: str):
  with pytest.raises(HubError, match="is no file, and no name that is known\n  fix: --model with a file, a folder, "):
    find_model(name)


def test_every_short_name_is_a_repository_and_a_file():
  assert {"qwen3:0.6b", "llama3.2:1b"} <= set(NAMES)
  for short in NAMES:
    w = Wanted.parse(short.upper())
    assert w.file and re.fullmatch(r"[\w-]+/[\w.-]+", w.repo), short


def test_what_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "org" / "repo").mkdir(parents=True)
  assert is_path("org/repo") and is_path("/none") and is_path("./none") and is_path("~/x") and is_path("none/x.gguf")
  assert not is_path("org/other") and not is_path("qwen3:0.6b") and not is_path("org/repo:x.gguf")


def test_without_the_package(served: Hub, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(HubError, match=r"need huggingface_hub\n  fix: pip install 'tinygrad\[hub\]'; or --model PATH"):
    find_model("org/repo")


def test_the_program_takes_a_name(served: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
  file = Tiny("tiny").write(tmp_path / "t.gguf")
  served.files["org/repo"] = {"t-Q8_0.gguf": file.read_bytes()}
  asked = ["--prompt", "hello", "--max-tokens", "4", "--temperature", "0"]
  assert llm.main(["--model", "org/repo:Q8_0", *asked]) == 0
  said = capsys.readouterr()
  assert llm.main(["--model", str(file), *asked]) == 0 and capsys.readouterr().out == said.out
  assert llm.main(["--model", "no-such-model", *asked]) == 2 and "no name that is known" in capsys.readouterr().err


def test_a_folder(served: Hub, tmp_path: Path):
  """All of its files; config.json, which comes last, says that all are there."""
  source = write_folder("qwen3", tmp_path / "source")
  files = {f.name: f.read_bytes() for f in source.iterdir()}
  served.files["org/repo"] = files | {"README.md": b"x", "original/model.pth": b"x"}
  found = find_model("org/repo")
  assert found == tmp_path / "cache/models/org/repo"
  assert {f.name: f.read_bytes() for f in found.iterdir()} == files
  (found / "config.json").unlink()
  asked = len(served.asked)
  assert find_model("org/repo") == found and len(served.asked) > asked and (found / "config.json").exists()
