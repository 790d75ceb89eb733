"""What a computation that cannot be run, or a function that cannot be captured, is answered with."""

from collections.abc import Sequence

from tinygrad.helpers import Remade


class UnboundError(Remade, ValueError):
  """A computation with a variable that has no value."""

  def __init__(self, names: Sequence[str]) -> None:
    fix = f"use Variable({names[0]!r}, lo, hi).bind(value) in shapes and indices"
    super().__init__(f"variable {names[0]} has no value\n  fix: {fix}")


class JitError(RuntimeError):
  """A function that cannot be captured, or a replay with arguments that don't fit."""
