"""What is raised where devices and placements do not fit."""

from __future__ import annotations

from typing import NoReturn

from tinygrad.helpers import user_frame, user_line


class DeviceError(RuntimeError):
  """A device that does not exist here, cannot be opened, or failed while it ran.

  Examples:
    >>> try:
    ...   Tensor([1.0], device='CPUU')
    ... except DeviceError as error:
    ...   print(str(error).splitlines()[0])
    unknown device 'CPUU': there is no backend 'CPUU'
  """


class ShardError(RuntimeError, ValueError):
  """A placement that cannot be, or operands whose placements do not go together.

  Examples:
    >>> try:
    ...   Tensor.ones(4).shard(('CPU:0', 'CPU:1'), axis=1)
    ... except ShardError as error:
    ...   print(str(error).splitlines()[-1].strip())
    fix: x.shard(devices, axis=0)
  """


class ShardTypeError(ShardError, TypeError):
  """What is given as a placement, or as a part of one, is of a type that says none."""


def refuse(rule: str, fix: str, *operands: str, error: type[Exception] = ShardError) -> NoReturn:
  """Raises the error of a placement: the rule that was broken, the operands, the user's line, and code that works (in
  the names of the parameters: x, devices, mesh, placement, parts)."""
  here = [] if user_frame() is None else [f"in {user_line()}"]
  raise error("\n".join([rule, *(f"    {row}" for row in (*operands, *here)), f"  fix: {fix}"]))
