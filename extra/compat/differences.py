"""Where the public names of this package differ from those that were collected from tinygrad (test/data/peer_api.json).

    python -m extra.compat.differences            # all differences, and what docs/compatibility.md says about them
    python -m extra.compat.differences --new      # only those that it does not explain

A name is compatible if it exists, is called (or read) as there, and takes every call that is valid there, with the
same defaults: each parameter at its position and under its name, `*args` and `**kwargs` where they are, nothing more
that has to be given. A context variable has the same default.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

from extra.compat.collect import entry

ROOT = Path(__file__).parents[2]
API = ROOT / "test" / "data" / "peer_api.json"
TABLE = ROOT / "docs" / "compatibility.md"
Parameter = list[Any]  # name, kind, default
POSITIONAL = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")
KEYWORD = ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")


def holder_of(path: str) -> Any:
  """The module, class or instance that `tinygrad.nn`, `tinygrad.Device`, … is."""
  try:
    return importlib.import_module(path)
  except ModuleNotFoundError:
    parent, _, name = path.rpartition(".")
    return getattr(importlib.import_module(parent), name)


def without_self(parameters: list[Parameter]) -> list[Parameter]:
  return parameters[1:] if parameters and parameters[0][0] in ("self", "cls") else parameters


def same_default(theirs: str, ours: str) -> bool:
  """Equal as printed; the types' two names (`dtypes.float`, `dtypes.float32`) are one, and 0 is False."""
  alias = {"dtypes.float": "dtypes.float32", "dtypes.int": "dtypes.int32", "dtypes.half": "dtypes.float16"}
  alias |= {"False": "0", "True": "1"}
  return alias.get(theirs, theirs) == alias.get(ours, ours)


def call_problem(theirs: list[Parameter], ours: list[Parameter], operator: bool) -> str | None:
  """Why a call that binds to `theirs` may not bind, or mean the same, with `ours`; None if all do. Of an `operator`
  nobody gives arguments by name."""
  theirs, ours = without_self(theirs), without_self(ours)
  kinds = {p[1] for p in ours}
  slots = [p for p in ours if p[1] in POSITIONAL]
  named = {p[0]: p for p in ours if p[1] in KEYWORD}
  at = -1
  for name, kind, default in theirs:
    if kind in ("VAR_POSITIONAL", "VAR_KEYWORD"):
      if kind not in kinds:
        return f"takes no {'*' if kind == 'VAR_POSITIONAL' else '**'}{name}"
      continue
    mine: Parameter | None = named.get(name)
    if kind in POSITIONAL:
      at += 1
      here = slots[at] if at < len(slots) else None
      if here is None and "VAR_POSITIONAL" not in kinds:
        return f"takes no {at + 1} arguments by position ({name})"
      if here is not None and here[0] != name and not operator:
        return f"argument {at + 1} is {here[0]}, not {name}"
      mine = here or mine
    if mine is None and kind in KEYWORD and "VAR_KEYWORD" not in kinds and not operator:
      return f"has no argument {name}"
    if mine is not None and default is not None:
      if mine[2] is None:
        return f"needs {name}"
      if not same_default(default, mine[2]):
        return f"the default of {name} is {mine[2]}, not {default}"
  known = {p[0] for p in theirs}
  extra = [
    p[0] for p in ours if p[0] not in known and p[2] is None and p[1] in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
  ]
  if extra and not operator:
    return f"needs {extra[0]}"
  return None


def problem(holder: Any, name: str, there: dict[str, Any]) -> str | None:
  """How a name of `holder` differs from what it is there; None if it does not."""
  if there["kind"] == "module":
    return None if importlib.util.find_spec(f"{holder.__name__}.{name}") else "is missing"
  if not (hasattr(holder, name) or name in getattr(holder, "__slots__", ())):
    return "is missing"
  here = entry(holder, name)
  if "default" in there and name not in os.environ and there["default"] != here.get("default"):
    return f"the default is {here.get('default')}, not {there['default']}"
  if there["kind"] == "value" and here["kind"] == "class":  # an object there, whose attributes are compared
    return None
  called, calls = ("signature" in e for e in (there, here))
  if called != calls:
    return f"is a {here['kind']}, not a {there['kind']}"
  if not called or there["signature"] is None or here["signature"] is None:
    return None
  operator = name.startswith("__") and name not in ("__init__", "__call__")
  return call_problem(there["signature"], here["signature"], operator)


def differences() -> dict[str, str]:
  """Full name -> in what it differs."""
  out = {}
  for path, names in json.loads(API.read_text())["names"].items():
    try:
      holder = holder_of(path)
    except (AttributeError, ModuleNotFoundError):
      out[path] = "is missing"
      continue
    if path == "tinygrad.TinyJit":
      holder = type(holder(lambda: None))
    for name, there in names.items():
      if (found := problem(holder, name, there)) is not None:
        out[f"{path.removeprefix('tinygrad.')}.{name}"] = found
  return out


def explained() -> dict[str, str]:
  """Full name -> reason, from the table of docs/compatibility.md under the heading "Differences in names"."""
  out = {}
  section = TABLE.read_text().split("## Differences in names", 1)[1].split("\n## ", 1)[0]
  for line in section.splitlines():
    cells = [c.strip() for c in line.strip().strip("|").split(" | ")]
    if line.startswith("| `") and len(cells) == 2:
      out.update((name, cells[1]) for name in re.findall(r"`([\w.]+)`", cells[0]))
  return out


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--new", action="store_true", help="only what docs/compatibility.md does not explain")
  args = parser.parse_args()
  reasons, found = explained(), differences()
  for name, what in found.items():
    if name not in reasons or not args.new:
      print(f"{name}: {what}" + (f"  [{reasons[name]}]" if name in reasons else ""))
  stale = reasons.keys() - found.keys()
  print(
    f"{len(found)} differences, {len(found.keys() - reasons.keys())} not explained, {len(stale)} explained and gone"
  )
  for name in sorted(stale):
    print(f"gone: {name}")


if __name__ == "__main__":
  main()
