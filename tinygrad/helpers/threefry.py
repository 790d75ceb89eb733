"""Random bits of a counter: Threefry-2x32 (J. Salmon, M. Moraes, R. Dror, D. Shaw: Parallel Random Numbers: As Easy as
1, 2, 3. SC 2011)."""

from collections.abc import Callable, Sequence
from operator import add, lshift, or_, rshift, xor
from typing import Any

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # table 3 of the paper
PARITY = 0x1BD11BDA  # C240 of the paper, lower word
Operation = Callable[[Callable[[Any, Any], Any], Any, Any], Any]


def threefry2x32(counter: Sequence[Any], key: Sequence[Any], do: Operation) -> tuple[Any, Any]:
  """20 rounds on pairs of words of 32 bits. `do`: one of Python's operators on two words, or on a word and a number."""
  keys = (*key, do(xor, do(xor, *key), PARITY))
  x, y = (do(add, *words) for words in zip(counter, key, strict=True))
  for group in range(5):
    for turn in ROTATIONS[group % 2]:
      x = do(add, x, y)
      y = do(xor, do(or_, do(lshift, y, turn), do(rshift, y, 32 - turn)), x)
    x = do(add, x, keys[(group + 1) % 3])
    y = do(add, y, do(add, keys[(group + 2) % 3], group + 1))
  return x, y
