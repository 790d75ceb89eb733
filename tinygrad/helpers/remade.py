"""Exceptions that come from another process as they were raised there."""

import copyreg
from typing import Any


class Remade(Exception):
  """Of exceptions whose class makes the message: a copy has that message. Python makes one by giving the message to the
  class as if it were the first of what the message is made of, at which a pool of processes waits without end."""

  def __reduce__(self) -> tuple[Any, ...]:
    return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]
