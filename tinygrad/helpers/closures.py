"""Numbers and texts that a function reads around itself."""

import dis
import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from tinygrad.helpers.sequences import exact

PLAIN_TYPES = frozenset((int, bool, str, float))


def _function_of(f: Any) -> FunctionType | None:
  """The function that a callable runs, without what is wrapped around it."""
  while isinstance(f, (functools.partial, MethodType)) or hasattr(f, "__wrapped__"):
    f = f.func if isinstance(f, functools.partial) else f.__func__ if isinstance(f, MethodType) else f.__wrapped__
  if not isinstance(f, FunctionType):
    f = inspect.getattr_static(type(f), "__call__", None)
  return f if isinstance(f, FunctionType) else None


def _names(code: CodeType, op: str) -> set[str]:
  """The names on which a function, or one within it, does this."""
  within = (c for c in code.co_consts if isinstance(c, CodeType))
  return {i.argval for i in dis.get_instructions(code) if i.opname == op}.union(*(_names(c, op) for c in within))


def numbers_around(f: Callable[..., Any]) -> Callable[[], tuple[Any, ...]]:
  """What gives the numbers and texts that a function now reads by names of functions around it and of its module, but
  for those that it sets; None in the place of other values."""
  if (function := _function_of(f)) is None:
    return tuple
  code, of_module = function.__code__, function.__globals__
  cells = [c for n, c in zip(code.co_freevars, function.__closure__ or ()) if n not in _names(code, "STORE_DEREF")]
  names = sorted(_names(code, "LOAD_GLOBAL") - _names(code, "STORE_GLOBAL"))

  def read() -> tuple[Any, ...]:
    found = [of_module.get(name) for name in names]
    for cell in cells:
      try:
        found.append(cell.cell_contents)
      except ValueError:  # not set as yet
        found.append(None)
    return tuple([(type(x), exact(x)) if type(x) in PLAIN_TYPES else None for x in found])

  return read if names or cells else tuple
