"""Where in the user's program a line runs: inside which modules (objects with parts, as layers are) and functions."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tinygrad.helpers.formatting import is_passed

LAYERS = "nn", "apps"  # rooms of this package with what users have as parts of their models


class UserScope:
  """A module or function that runs inside `above`; None is the program. A module's name is that of the attribute which
  holds it (`blocks.3`), once it has been seen inside the object that has it; until then its class's, with a number."""

  __slots__ = ("above", "name", "named", "number")

  def __init__(self, above: UserScope | None, name: str, number: int = 0) -> None:
    self.above, self.name, self.number, self.named = above, name, number, False

  def is_in(self, other: UserScope) -> bool:
    """Whether it is the other, or runs inside it."""
    scope: UserScope | None = self
    while scope is not None and scope is not other:
      scope = scope.above
    return scope is other

  def __str__(self) -> str:
    return f"{self.name}#{self.number}" if self.number else self.name


_modules: dict[int, tuple[Any, UserScope]] = {}  # by id: what refers to the object, so that another is not taken for it
_functions: dict[tuple[UserScope | None, str], UserScope] = {}
_classes: dict[str, int] = {}


def scope_at(frame: FrameType | None) -> UserScope | None:
  """The innermost scope of a frame."""
  chain: list[tuple[Any, str]] = []  # objects, or the names of functions, the innermost first
  while frame is not None:
    code = frame.f_code
    if code.co_name == "<module>":  # what runs the program is no part of it
      break
    if code.co_argcount and code.co_varnames[0] == "self":
      owner = frame.f_locals.get("self")
      if _is_module(owner) and not (chain and chain[-1][0] is owner):
        chain.append((owner, ""))
    elif (
      not code.co_name.startswith("<")
      and not is_passed(frame.f_globals.get("__file__", ""))
      and chain[-1:] != [(None, code.co_name)]
    ):
      chain.append((None, code.co_name))
    frame = frame.f_back
  scope, holder = None, None
  for owner, name in reversed(chain):
    scope = _function(scope, name) if owner is None else _module(scope, holder, owner)
    holder = holder if owner is None else owner
  return scope


def _is_module(owner: Any) -> bool:
  package, _, inside = type(owner).__module__.partition(".")
  return hasattr(owner, "__dict__") and (package != "tinygrad" or inside.partition(".")[0] in LAYERS)


def _function(above: UserScope | None, name: str) -> UserScope:
  return _functions.setdefault((above, name), UserScope(above, name))


def _module(above: UserScope | None, holder: Any, owner: Any) -> UserScope:
  found = _modules.get(id(owner))
  if found is None or found[0]() is not owner:
    kind = type(owner).__name__
    number = _classes[kind] = _classes.get(kind, 0) + 1
    found = _modules[id(owner)] = _reference(owner), UserScope(above, kind, number if number > 1 else 0)
  scope = found[1]
  if not scope.named and holder is not None and not (above is not None and above.is_in(scope)):
    name = next((name for name, part in _parts(holder) if part is owner), None)
    if name is not None:
      scope.named, scope.name, scope.number, scope.above = True, name, 0, above
  return scope


def _parts(holder: Any) -> Iterator[tuple[str, Any]]:
  for name, value in vars(holder).items():
    yield name, value
    if isinstance(value, (list, tuple)):
      yield from ((f"{name}.{i}", x) for i, x in enumerate(value))
    elif isinstance(value, dict):
      yield from ((f"{name}.{key}", x) for key, x in value.items())


def _reference(owner: Any) -> Any:
  try:
    return weakref.ref(owner)
  except TypeError:  # a class with slots, and none for it
    return lambda: owner
