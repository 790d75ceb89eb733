"""Models by name: `qwen3:0.6b`, or `org/repo[:file]` at huggingface.co, downloaded once into the cache.

The package huggingface_hub knows where a file is, how large, and its checksum; the bytes are taken here, so that what
has come stays when a download breaks off, in this process or the next. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE`
mean what they mean to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import importlib.util
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tinygrad.apps import AppError
from tinygrad.helpers import LazyModule, cache_dir, tqdm

hub: Any = LazyModule("huggingface_hub")
hub_errors: Any = LazyModule("huggingface_hub.errors")
hub_utils: Any = LazyModule("huggingface_hub.utils")

ATTEMPTS, TIMEOUT, PAUSE = 5, 30, 0.5  # without a byte in between; seconds without one; seconds before the next
READ = 1 << 20
# What is taken of a repository that has several, the first that there is: small, and near to the floats.
PREFERRED = ("q4_k_m", "q4_0", "q8_0", "mxfp4", "q6_k", "q5_k_m", "bf16", "f16", "f32")
FOLDER = (".json", ".safetensors", ".jinja")  # what of a repository without GGUF files makes a folder
SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
# Short names: a repository, and the end of a file's name in it.
NAMES: dict[str, str] = {
  "qwen3:0.6b": "Qwen/Qwen3-0.6B-GGUF:Q8_0", "qwen3:1.7b": "Qwen/Qwen3-1.7B-GGUF:Q8_0",
  "qwen3:4b": "Qwen/Qwen3-4B-GGUF:Q4_K_M", "qwen3:8b": "Qwen/Qwen3-8B-GGUF:Q4_K_M",
  "qwen3:14b": "Qwen/Qwen3-14B-GGUF:Q4_K_M", "qwen3:32b": "Qwen/Qwen3-32B-GGUF:Q4_K_M",
  "qwen3:30b-a3b": "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M",
  "qwen2.5:0.5b": "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", "qwen2.5:1.5b": "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M",
  "qwen2.5:3b": "Qwen/Qwen2.5-3B-Instruct-GGUF:Q4_K_M", "qwen2.5:7b": "bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M",
  "llama3.2:1b": "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
  "llama3.2:3b": "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
  "llama3.1:8b": "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
  "mistral:7b": "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M",
  "gemma2:2b": "bartowski/gemma-2-2b-it-GGUF:Q4_K_M", "gemma2:9b": "bartowski/gemma-2-9b-it-GGUF:Q4_K_M",
  "gemma3:1b": "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "gemma3:4b": "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
  "gemma3:12b": "ggml-org/gemma-3-12b-it-GGUF:Q4_K_M", "gemma3:27b": "ggml-org/gemma-3-27b-it-GGUF:Q4_K_M",
  "phi3.5:3.8b": "bartowski/Phi-3.5-mini-instruct-GGUF:Q4_K_M", "phi4:14b": "bartowski/phi-4-GGUF:Q4_K_M",
  "smollm2:135m": "bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0",
  "smollm2:360m": "bartowski/SmolLM2-360M-Instruct-GGUF:Q8_0",
  "smollm2:1.7b": "bartowski/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M", "smollm3:3b": "ggml-org/SmolLM3-3B-GGUF:Q4_K_M",
  "granite3.3:2b": "ibm-granite/granite-3.3-2b-instruct-GGUF:Q4_K_M",
  "granite3.3:8b": "ibm-granite/granite-3.3-8b-instruct-GGUF:Q4_K_M",
  "olmo2:7b": "allenai/OLMo-2-1124-7B-Instruct-GGUF:Q4_K_M",
  "olmoe:7b": "allenai/OLMoE-1B-7B-0924-Instruct-GGUF:Q4_K_M",
  "mixtral:8x7b": "TheBloke/Mixtral-8x7B-Instruct-v0.1-GGUF:Q4_K_M", "gpt-oss:20b": "ggml-org/gpt-oss-20b-GGUF:mxfp4",
}  # fmt: skip


class HubError(AppError):
  """A model that cannot be had by its name: says why, and where to put its file."""


@dataclass(frozen=True, slots=True)
class Wanted:
  """`file`: its name in the repository, or how that ends (`Q4_K_M`); empty: what there is."""

  repo: str
  file: str

  @staticmethod
  def parse(name: str) -> Wanted:
    """Raises HubError."""
    repo, _, file = NAMES.get(name.lower(), name).partition(":")
    part = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
    fits = re.fullmatch(f"{part}/{part}", repo) and ".." not in repo
    inside = not file or not (Path(file).is_absolute() or {"..", "."} & set(file.split("/")))
    if not fits or not inside:
      fix = f"a file, a folder, org/repo[:file], or one of {', '.join(NAMES)}"
      raise HubError(f"--model {name!r} is no file, and no name that is known\n  fix: --model with {fix}")
    return Wanted(repo, file)

  @property
  def place(self) -> Path:
    """Where its files are kept."""
    return Path(cache_dir, "models", self.repo)

  def pick(self, files: Sequence[str]) -> list[str]:
    """Of the files of the repository those that make the model: one GGUF file, or those of a folder; the last one is
    the sign that all are there. Raises HubError."""
    whole = [f for f in files if f.endswith(".gguf") and not SPLIT.search(f) and "mmproj" not in f.lower()]
    if self.file:
      end = re.compile(rf"(^|[-._/]){re.escape(self.file.removesuffix('.gguf'))}\.gguf$", re.IGNORECASE)
      found = [self.file] if self.file in files else [f for f in whole if end.search(f)]
      if len(found) == 1:
        return found
      problem = f"there are {len(found)} files {self.file!r}" if found else f"there is no file {self.file!r}"
      raise HubError(f"{self.repo}: {problem}\n  fix: one of {', '.join(found or whole or files)}")
    for tag in PREFERRED:
      if found := sorted(f for f in whole if f.lower().endswith(f"{tag}.gguf")):
        return found[:1]
    if whole:
      return sorted(whole)[:1]
    folder = sorted(f for f in files if f.endswith(FOLDER) and "/" not in f)
    if "config.json" in folder and any(f.endswith(".safetensors") for f in folder):
      return [f for f in folder if f != "config.json"] + ["config.json"]
    problem = "holds neither a whole GGUF file nor config.json and .safetensors files"
    raise HubError(f"{self.repo}: {problem}\n  fix: another repository, such as one of {', '.join(NAMES)}")


def is_path(name: str) -> bool:
  """Whether --model names a file or a folder, rather than a model of the hub."""
  return Path(name).exists() or name.startswith(("/", ".", "~")) or (name.endswith(".gguf") and ":" not in name)


def find_model(name: str) -> Path:
  """The GGUF file, or the folder, of a model: as it lies in the cache, or downloaded. Raises HubError."""
  w = Wanted.parse(name)
  here = kept_files(w)
  if not here:
    check_installed()
    with told(w, ""):
      names = listed(w.repo)
    here = w.pick(names)
    for file in here:
      download(w, file)
  return w.place if len(here) > 1 else w.place / here[0]


def kept_files(w: Wanted) -> list[str]:
  """Those of the model, where all of them are in the cache."""
  files = [f.relative_to(w.place).as_posix() for f in w.place.rglob("*") if f.is_file()]
  try:
    return w.pick(files)
  except HubError:
    return []


def listed(repo: str) -> list[str]:
  """The names of the files of a repository."""
  client = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="tinygrad")
  return [f.rfilename for f in client.model_info(repo).siblings or ()]  # list_repo_files tries for 20 s to be online


@contextlib.contextmanager
def told(w: Wanted, file: str) -> Iterator[None]:
  """What the hub or the network says, as a HubError."""
  place = w.place / (file or w.file if (file or w.file).endswith(".gguf") else "FILE.gguf")
  fix = f"put the file at {place}, or name it with --model; or try again online"
  try:
    yield
  except (hub_errors.GatedRepoError, hub_errors.RepositoryNotFoundError) as e:
    gated = isinstance(e, hub_errors.GatedRepoError)
    problem = "its owners have to let you in" if gated else "there is no such repository, or it is private"
    way = f"ask at https://huggingface.co/{w.repo}, and set HF_TOKEN" if gated else "check the name, or set HF_TOKEN"
    raise HubError(f"{w.repo}: {problem}\n  fix: {way}") from e
  # the base of what huggingface_hub's client raises, whichever that is, and of what urllib does
  except (*hub_errors.HfHubHTTPError.__bases__, hub_errors.HfHubHTTPError, OSError, http.client.HTTPException) as e:
    why = str(e).partition("\n")[0] or type(e).__name__
    raise HubError(f"{w.repo}: the hub cannot be reached: {why}\n  fix: {fix}") from e


def download(w: Wanted, file: str) -> None:
  """Brings a file to its place, under another name until it is whole and its checksum is right. What a download that
  broke off has brought is gone on from. Raises HubError."""
  target = w.place / file
  if target.exists():
    return
  with told(w, file):
    endpoint = os.environ.get("HF_ENDPOINT")
    url = hub.hf_hub_url(w.repo, file, endpoint=endpoint)
    about = hub.get_hf_file_metadata(url, library_name="tinygrad", endpoint=endpoint)
    if about.size is None or not re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", about.etag or ""):
      raise OSError(f"it tells no size or no checksum of {file}")
  target.parent.mkdir(parents=True, exist_ok=True)
  part = target.with_name(f"{target.name}.{about.etag[:16]}.part")  # of another version nothing is gone on from
  with part.open("ab+") as out:
    try:
      fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
      raise HubError(f"{part} is being downloaded by another process\n  fix: wait for it") from e
    if target.exists():  # what was opened was that: another process has just given it its name
      part.unlink(missing_ok=True)
      return
    with told(w, file):
      fill(out, about.location, about.size, url, file)
    if (got := checksum(out, about.etag, about.size)) != about.etag:
      part.unlink()
      problem = f"{file} came with the checksum {got}, and the hub's is {about.etag}; it was removed"
      raise HubError(f"{w.repo}: {problem}\n  fix: try again; or put the file at {target}")
    os.fsync(out.fileno())  # whether a file with its name is right is not asked again
    part.replace(target)


def fill(out: IO[bytes], url: str, size: int, asked: str, name: str) -> None:
  """Takes what is missing of `size` bytes; a connection that breaks is opened again. `asked`: the URL at the hub, which
  may have led to another host, for which the token is not. Raises OSError, HTTPException."""
  same = urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(asked).netloc
  headers = hub_utils.build_hf_headers(library_name="tinygrad") if same else {"user-agent": "tinygrad"}
  at, left = out.seek(0, os.SEEK_END), ATTEMPTS
  with tqdm(desc=name, total=size, unit="B", unit_scale=True, initial=min(at, size)) as bar:
    while (at := out.tell()) < size:
      try:
        for chunk in bytes_from(out, url, headers):
          out.write(chunk)
          bar.update(len(chunk))
          left = ATTEMPTS
          if out.tell() > size:
            break
      except urllib.error.HTTPError as e:
        if e.code < 500:
          raise
        left = again(left, e)
      except (OSError, http.client.HTTPException) as e:
        left = again(left, e)
      else:
        if out.tell() < size:
          left = again(left, OSError(f"it ended at {out.tell()} of {size} bytes"))
    out.flush()


def again(left: int, e: Exception) -> int:
  """How many attempts are left after one that failed, after a pause; raises what it failed by after the last."""
  if left <= 1:
    raise e
  time.sleep(PAUSE * (ATTEMPTS - left))
  return left - 1


def bytes_from(out: IO[bytes], url: str, headers: dict[str, str]) -> Iterator[bytes]:
  """What follows after what there is; where the server begins anew, all."""
  at = out.tell()
  request = urllib.request.Request(url, headers=headers | ({"Range": f"bytes={at}-"} if at else {}))
  with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
    if at and answer.status != 206:
      out.seek(0)
      out.truncate()
    while chunk := answer.read1(READ):
      yield chunk


def checksum(out: IO[bytes], etag: str, size: int) -> str:
  """A file's SHA-256, or where the hub has git's (40 digits) that of a blob."""
  digest = hashlib.sha256() if len(etag) == 64 else hashlib.sha1(b"blob %d\0" % size)
  out.seek(0)
  while chunk := out.read(READ):
    digest.update(chunk)
  return digest.hexdigest()


def check_installed() -> None:
  """Raises HubError where huggingface_hub is not."""
  if importlib.util.find_spec("huggingface_hub") is None:
    raise HubError("models by name need huggingface_hub\n  fix: pip install 'tinygrad[hub]'; or --model PATH")
