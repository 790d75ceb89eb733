"""Kernels in pieces for the threads of a processor, which run one after another, in an order that is chosen
(extra/fuzz_programs.py, `--orders`). What a piece computes depends on no other piece of its kernel, so that the bits
are the same in any order; threads at once show one that does not only now and then."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from tinygrad.codegen import share
from tinygrad.helpers import PROCESS
from tinygrad.runtime import cpu

ORDERS = ("forwards", "backwards", "shuffled", "shuffled again", "at once")
# what is shared out where it does not pay, too: kernels of a few elements
EAGER = {"WORTHWHILE": 64, "LEAST": 16, "PAYS": 4.0, "REPEATED": 3.0, "UNEVEN": 3.0}


@contextlib.contextmanager
def eagerly_shared() -> Iterator[None]:
  """Within, kernels are shared out that would be faster alone, into pieces that overlap more."""
  with PROCESS.anew(), mock.patch.multiple(share, **EAGER):
    yield


@contextlib.contextmanager
def in_order(order: str) -> Iterator[None]:
  """Within, one thread of a processor runs all pieces of a kernel, in this order; or all threads do, "at once"."""

  def dealt(calls: Sequence[cpu.Call], threads: int, keep: list[Any]) -> list[cpu.Table]:
    row: cpu.Table = []
    for c in calls:
      launch = None if c.program is None else c.program.launch
      pieces = range(0 if launch is None or launch.workers == 1 else launch.pieces)
      for words in [of_piece(c, piece) for piece in in_turn(pieces, order)] or [c.words]:
        keep.append(words)
        row.append((c.built, ctypes.addressof(words)))
    return [row]

  with contextlib.nullcontext() if order == "at once" else mock.patch.object(cpu, "deal_out", dealt):
    yield


def in_turn(pieces: range, order: str) -> Sequence[int]:
  if order.startswith("shuffled"):
    return random.Random(order).sample(pieces, len(pieces))
  return pieces[::-1] if order == "backwards" else pieces


def of_piece(c: cpu.Call, piece: int) -> Any:
  """What the kernel is given for it."""
  words = type(c.words)(*c.words)
  words[c.program.launch.word] = piece
  return words
