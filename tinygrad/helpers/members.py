"""The members of an enum by attributes of a plain class, which are found in a fifth of the time: of an enum itself
`EnumType.__getattr__` (until Python 3.12) makes each a call."""

import enum
from collections.abc import Iterator
from typing import Any


class Members(type):
  """The metaclass of such a class; otherwise it does what the enum does. Members are still the enum's."""

  kind: type[enum.Enum]

  def __new__(cls, kind: type[enum.Enum]) -> Any:
    kind.__qualname__ += ".kind"  # by which members are unpickled
    return super().__new__(cls, kind.__name__, (), {"__module__": kind.__module__, "kind": kind, **kind.__members__})

  def __call__(cls, value: Any) -> enum.Enum:
    return cls.kind(value)

  def __getitem__(cls, name: str) -> enum.Enum:
    return cls.kind[name]

  def __iter__(cls) -> Iterator[enum.Enum]:
    return iter(cls.kind)

  def __instancecheck__(cls, x: object) -> bool:
    return isinstance(x, cls.kind)
