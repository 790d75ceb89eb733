"""How the processes of one host meet: each leaves a message where the others find it, and waits until theirs are there.

What waits is native code over counters in memory that all see, so a meeting takes what a line of a cache takes to go
from one core to another, and no call of MPI.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from typing import Any

from tinygrad.runtime.cpu import arrive

WORDS = 128  # of a message
NUMBER_AT, BOXES_AT = 1600, 2048  # bytes of a process's first page
SIZE = 8 * WORDS
LOOKS = 200  # at another's counter, before whoever waits looks after what else may be


class Boxes:
  """Two for each process, used in turns: who writes the next but one knows that this one has been read by all, for they
  have come to the one between."""

  def __init__(self, index: int, pages: Sequence[memoryview], addresses: Sequence[int]) -> None:
    self.number, self.index = 0, index
    ends = [(BOXES_AT + k * SIZE, BOXES_AT + (k + 1) * SIZE) for k in (0, 1)]
    self.boxes = [[page[a:b].cast("Q") for page in pages] for a, b in ends]
    own, *others = sorted(range(len(pages)), key=lambda rank: rank != index)
    counters = [addresses[rank] + NUMBER_AT for rank in (own, *others)]
    self.words = (ctypes.c_uint64 * (4 + len(others)))(counters[0], 0, len(others), LOOKS, *counters[1:])
    self.others, self.address = len(others), ctypes.addressof(self.words)

  def put(self, message: Sequence[int]) -> None:
    """Leaves a message; `come` tells the others that it is there."""
    self.number += 1
    self.words[1] = self.number
    self.boxes[self.number & 1][self.index][: len(message)] = memoryview(array.array("Q", message))

  def come(self) -> bool:
    """Whether all messages are there; waits a little for them."""
    return arrive(self.address) == self.others

  def messages(self) -> Sequence[Any]:
    """By process. They stay until the next but one is put."""
    return self.boxes[self.number & 1]
