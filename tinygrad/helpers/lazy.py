"""Modules that are imported on first use, so that `import tinygrad` stays fast."""

import importlib
from types import ModuleType
from typing import Any


class LazyModule:
  """A module that is imported on first use, so that `import tinygrad` stays fast."""

  __slots__ = ("_module", "_name")
  _module: ModuleType | None

  def __init__(self, name: str) -> None:
    self._name, self._module = name, None

  def __getattr__(self, attribute: str) -> Any:
    module = self._module
    if module is None:
      module = importlib.import_module(self._name)
      # a folder that an uninstalled package has left
      if hasattr(module, "__path__") and not getattr(module, "__file__", None):
        raise ModuleNotFoundError(f"No module named {self._name!r}", name=self._name)
      self._module = module
    return getattr(module, attribute)


try:
  from _blake2 import blake2b as blake2b  # hashlib's, without the libraries that hashlib loads: 4 MB of OpenSSL
except ImportError:  # another Python than CPython
  from hashlib import blake2b as blake2b

difflib, hashlib, json, numpy = map(LazyModule, ("difflib", "hashlib", "json", "numpy"))
