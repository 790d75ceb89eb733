"""Objects that may still live."""

import weakref
from collections.abc import Iterable
from typing import Any


class Holder(weakref.ref[Any]):
  """A tensor that may still live. Equal to itself alone: equality of tensors is element by element. `number`: of the
  tensor's last change, `born`: of the first; `thread`: whose the last was, `assigned`: if that was an assignment."""

  __slots__ = ("assigned", "born", "number", "thread")
  born: int
  number: int
  thread: int
  assigned: bool
  __hash__, __eq__ = object.__hash__, object.__eq__


def living(holders: Iterable[Holder]) -> list[Any]:
  """What lives of what is held."""
  return [x for holder in list(holders) if (x := holder()) is not None]
