"""What is raised where devices and placements do not fit."""

from __future__ import annotations

from typing import NoReturn

from tinygrad.helpers import user_frame, user_line


class DeviceError(RuntimeError):
  """A device that does not exist here, cannot be opened, or failed while it ran."""


class ShardError(RuntimeError, ValueError):
  """A placement that cannot be, or operands whose placements do not go together."""


class ShardTypeError(ShardError, TypeError):
  """What is given as a placement, or as a part of one, is of a type that says none."""


def refuse(rule: str, fix: str, *operands: str, error: type[Exception] = ShardError) -> NoReturn:
  """Raises the error of a placement: the rule that was broken, the operands, the user's line, and code that works (in
  the names of the parameters: x, devices, mesh, placement, parts)."""
  here = [] if user_frame() is None else [f"in {user_line()}"]
  raise error("\n".join([rule, *(f"    {row}" for row in (*operands, *here)), f"  fix: {fix}"]))
