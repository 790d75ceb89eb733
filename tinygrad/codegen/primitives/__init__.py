"""What a kernel's schedule is made of: each step makes of a kernel one that computes the same, or raises."""

from tinygrad.helpers import Remade


class IllegalStep(Remade, ValueError):
  """A step of a kernel's schedule that would not keep what the kernel computes, or cannot be made."""

  def __init__(self, rule: str, fix: str) -> None:
    super().__init__(f"{rule}\n  fix: {fix}")
