"""The cards: all that is to be known about each op. Importing this package registers them; a test holds them complete.
Which ops share a trait is asked here, where every op has its card."""

from tinygrad.ops import custom, elementwise, kernel, movement, placement, reduce
from tinygrad.uop.cards import Trait, having

__all__ = ["Trait", "custom", "elementwise", "having", "kernel", "movement", "placement", "reduce"]
