"""The public names and signatures of the `tinygrad` that is installed here, as JSON.

    cd /tmp && <the peer's python> <checkout>/extra/compat/collect.py <checkout>/test/data/peer_api.json

Run it with the interpreter of the environment whose tinygrad is to be described, in a folder that holds no `tinygrad`.
Only `dir` and `inspect.signature` are asked. Names with a leading underscore are left out, dunders of Tensor kept.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

# what users import; of the modules that are the peer's inside, the names that scripts hold
MODULES: dict[str, tuple[str, ...] | None] = {
  "tinygrad": None,
  "tinygrad.helpers": None,
  "tinygrad.nn": None,
  "tinygrad.nn.optim": None,
  "tinygrad.nn.state": None,
  "tinygrad.nn.datasets": None,
  "tinygrad.dtype": None,
  "tinygrad.nn.onnx": ("OnnxRunner",),
  "tinygrad.tensor": ("Tensor",),
  "tinygrad.engine.jit": ("TinyJit", "JitError"),
  "tinygrad.device": ("Device", "Buffer", "Compiled", "is_dtype_supported"),
}
CLASSES = ("tinygrad.Tensor", "tinygrad.dtypes", "tinygrad.Device", "tinygrad.GlobalCounters", "tinygrad.TinyJit")
HELPER_CLASSES = ("Context", "ContextVar", "Timing", "tqdm")
OUTSIDE = ("typing", "collections", "collections.abc", "dataclasses", "abc", "contextlib", "__future__", "builtins")


def show(value: Any) -> str:
  """A default as it prints, without addresses; devices, types and functions by name."""
  if inspect.isfunction(value) or inspect.isclass(value):
    return str(value.__name__)
  if type(value).__name__ == "ContextVar":
    value = value.value
  text = repr(value)
  return text.split(" at 0x")[0]


def signature(f: Any) -> list[list[str | None]] | None:
  """[name, kind, default] of each parameter; None where Python knows no signature."""
  try:
    parameters = inspect.signature(f).parameters.values()
  except (TypeError, ValueError):
    return None
  return [[p.name, p.kind.name, None if p.default is p.empty else show(p.default)] for p in parameters]


def entry(holder: Any, name: str) -> dict[str, Any]:
  """What kind of thing a name is, with its signature if it can be called."""
  static = inspect.getattr_static(holder, name)
  if isinstance(static, property) or type(static).__name__ in (
    "cached_property",
    "member_descriptor",
    "recursive_property",
  ):
    return {"kind": "property"}
  value = getattr(holder, name)
  if inspect.ismodule(value):
    return {"kind": "module"}
  if inspect.isclass(value):
    return {"kind": "class", "signature": signature(value)}
  if callable(value):
    # as called on an instance or on the class, whichever the declaration says; a plain function keeps its `self`
    kind = {"staticmethod": "static", "classmethod": "class method"}.get(type(static).__name__, "function")
    return {"kind": kind, "signature": signature(value)}
  if type(value).__name__ == "ContextVar":
    return {"kind": "value", "default": show(value.value)}
  return {"kind": "value"}


def own_names(module: types.ModuleType) -> list[str]:
  """Public names that the module defines or re-exports from its package; what it imports to work with is not API."""
  only = MODULES[module.__name__]
  if only is not None:
    return [n for n in only if hasattr(module, n)]
  helpers = vars(importlib.import_module("tinygrad.helpers"))
  out = []
  for name, value in vars(module).items():
    home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    foreign = isinstance(home, str) and not home.startswith("tinygrad")
    if name.startswith("_") or name in ("T", "U", "TYPE_CHECKING") or type(value).__module__ in OUTSIDE[:-1]:
      continue
    if foreign and (inspect.ismodule(value) or callable(value)):
      continue
    elsewhere = isinstance(home, str) and home != module.__name__ and not inspect.ismodule(value)
    if module.__name__ != "tinygrad" and (elsewhere or (module.__name__ != "tinygrad.helpers" and name in helpers)):
      continue  # described where it is defined
    out.append(name)
  return sorted(out)


def members(holder: Any, dunders: bool = False) -> dict[str, Any]:
  """The public attributes of a class or an instance; those special methods that `object` does not have like this."""
  names = [n for n in dir(holder) if not n.startswith("_")]
  if dunders:
    names += [
      n
      for n in dir(holder)
      if n.startswith("__") and callable(f := getattr(holder, n)) and f is not getattr(object, n, None)
    ]
  left = {"__class__", "__init_subclass__", "__subclasshook__", "__del__"}
  return {n: entry(holder, n) for n in sorted(names) if n not in left}


def collect() -> dict[str, Any]:
  """By module or class: name -> kind and signature."""
  names: dict[str, dict[str, Any]] = {}
  for path in MODULES:
    try:
      module = importlib.import_module(path)
    except ModuleNotFoundError:
      continue
    names[path] = {n: entry(module, n) for n in own_names(module)}
  for path in CLASSES:
    holder = getattr(importlib.import_module("tinygrad"), path.rpartition(".")[2])
    if path == "tinygrad.TinyJit":
      holder = type(holder(lambda: None))
    names[path] = members(holder, dunders=path == "tinygrad.Tensor")
  for module in ("tinygrad.nn", "tinygrad.nn.optim", "tinygrad.helpers"):
    for name, what in list(names[module].items()):
      if what["kind"] == "class" and (module != "tinygrad.helpers" or name in HELPER_CLASSES):
        holder = getattr(importlib.import_module(module), name)
        names[f"{module}.{name}"] = members(holder)
        if "__call__" in dir(holder) and isinstance(
          inspect.getattr_static(holder, "__call__", None), types.FunctionType
        ):
          names[f"{module}.{name}"]["__call__"] = entry(holder, "__call__")
  return names


def main() -> None:
  if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
    sys.exit(__doc__)
  sys.path = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]
  names = collect()
  origin = (
    f"tinygrad {importlib.metadata.version('tinygrad')}, Python {sys.version.split()[0]}, extra/compat/collect.py"
  )
  target = Path(sys.argv[1])
  temporary = target.with_name(f".{target.name}.{os.getpid()}")
  temporary.write_text(json.dumps({"origin": origin, "names": names}, indent=1, sort_keys=True) + "\n")
  os.replace(temporary, target)
  print(f"{origin}: {sum(map(len, names.values()))} names")


if __name__ == "__main__":
  main()
