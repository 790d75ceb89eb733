"""The cards: all that is to be known about each op. Importing this package registers them; a test holds them
complete.
"""

from tinygrad.ops import elementwise, kernel, movement, placement, reduce

__all__ = ["elementwise", "kernel", "movement", "placement", "reduce"]
