"""The page: a recording and the program that shows it, in one HTML file that asks no server for anything."""

from __future__ import annotations

import base64
import functools
import gzip
import os
from html import escape
from pathlib import Path
from typing import Any

from tinygrad.helpers import atomic_write, json
from tinygrad.viz.trace import FORMAT, VERSION

BUNDLE = Path(__file__).with_name("bundle")  # docs/architecture.md, 10


class TraceError(ValueError):
  """A file is no recording, or one of another version."""


@functools.cache
def _bundled(name: str) -> str:
  return (BUNDLE / name).read_text(encoding="utf-8")


def page_of(trace: dict[str, Any], tab: str = "overview") -> str:
  """The page of a recording, as HTML, which opens with a tab. The recording is in it compressed: a browser takes it
  apart."""
  packed = base64.b64encode(gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0)).decode()
  head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(trace["program"])}</title>'
  look = f"<style>{_bundled('viewer.css')}</style></head><body>"
  data = f'<script id="recording" type="application/gzip" data-tab="{tab}">{packed}</script>'
  return f"{head}{look}{data}<script>{_bundled('viewer.js')}</script></body></html>\n"


def write_recording(trace: dict[str, Any], file: str | os.PathLike[str]) -> None:
  """Writes the page, or, to a name that ends in .json, the recording itself."""
  text = json.dumps(trace, separators=(",", ":")) if os.fspath(file).endswith(".json") else page_of(trace)
  with atomic_write(file) as f:
    f.write(text.encode(errors="replace"))  # a name of bytes that are no text stands in the title


def read_recording(file: str | os.PathLike[str]) -> dict[str, Any]:
  """A recording, or the trace of PROFILE=1, from its file. Raises TraceError for other files, and OSError."""
  rule = f"{file} is no recording of VIZ=1, and no trace of PROFILE=1"
  try:
    found = json.loads(Path(file).read_text(encoding="utf-8"))
  except ValueError as e:
    raise TraceError(f"{rule}: {e}\n  fix: VIZ=1 VIZ_FILE=trace.json python train.py") from None
  if isinstance(found, dict) and isinstance(found.get("traceEvents"), list):
    return from_events(found["traceEvents"], os.path.basename(file))
  if not isinstance(found, dict) or found.get("format") != FORMAT:
    raise TraceError(f"{rule}\n  fix: VIZ=1 VIZ_FILE=trace.json python train.py")
  if found.get("version") != VERSION:
    problem = f"{file} is a recording of version {found.get('version')}, and this package reads version {VERSION}"
    raise TraceError(f"{problem}\n  fix: record it again, or read_recording it with the package that wrote it")
  return found


def from_events(rows: list[Any], name: str) -> dict[str, Any]:
  """The trace that PROFILE=1 writes, as a recording that has nothing but times."""
  names = {r["tid"]: r["args"]["name"] for r in rows if r.get("name") == "thread_name" and r.get("ph") == "M"}
  spans = [r for r in rows if r.get("ph") == "X"]
  zero = min((r["ts"] for r in spans), default=0.0)
  tracks = []
  for tid, track in names.items():
    events = [[r["name"], r["ts"] - zero, r["dur"], -1, -1] for r in spans if r["tid"] == tid]
    tracks.append({"name": track, "python": track.startswith("Python"), "events": sorted(events, key=lambda e: e[1])})
  about = {"format": FORMAT, "version": VERSION, "program": name, "plans": [], "kernels": [], "peaks": {}}
  empty = {"before": dict[str, int](), "rows": list[Any]()}
  return about | {"tracks": tracks, "memory": empty, "strings": [], "lines": [], "scopes": [], "around": 0}
