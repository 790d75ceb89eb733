"""Names of values in a source whose loops are blocks."""

from typing import TypeVar

from tinygrad.uop import UOp

T = TypeVar("T")


class ScopedNames(dict[UOp, T]):
  """What values are called where the source has got to. A value may stand in a loop and also before it: the code of a
  loop is made first where what is around it turns out to need the same. Behind the loop it is the one before."""

  def __init__(self) -> None:
    super().__init__()
    self.hidden: list[dict[UOp, T]] = []

  def __setitem__(self, u: UOp, name: T) -> None:
    if self.hidden and u in self:
      self.hidden[-1].setdefault(u, self[u])
    super().__setitem__(u, name)

  def open(self) -> None:
    self.hidden.append({})

  def close(self) -> None:
    self.update(self.hidden.pop())
