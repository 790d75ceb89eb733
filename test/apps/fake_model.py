"""A language model that costs nothing and cannot be fooled: its logits are random numbers by a hash of all the tokens
that its slot's cache holds, so that whatever is read at a wrong place, or twice, or into another slot, gives another
text. It has what an engine needs of `LanguageModel`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sizes:
  context: int
  vocab: int
  pooling: str = "mean"


class FakeModel:
  def __init__(self, vocab: int, slots: int = 1, context: int = 200, seconds: float = 0.0, sharp: float = 2.0):
    """`seconds`: that a call takes. `sharp`: the deviation of logits."""
    self.c, self.slots, self.seconds, self.sharp = Sizes(context, vocab), slots, seconds, sharp
    self.caches = [np.full(context, -1) for _ in range(slots)]
    self.calls: list[tuple[str, int]] = []  # which, and how many tokens

  def logits(self, slot: int, end: int) -> np.ndarray:
    seen = self.caches[slot][:end]
    assert (seen >= 0).all(), "a position before was never written"
    key = np.frombuffer(seen.tobytes(), np.uint32)
    return np.random.default_rng(key).normal(0, self.sharp, self.c.vocab).astype(np.float32)

  def prefill(self, ids: Sequence[int], pos: int, slot: int = 0) -> np.ndarray:
    assert len(ids) > 0 and pos + len(ids) <= self.c.context
    time.sleep(self.seconds)
    self.calls.append(("prefill", len(ids)))
    self.caches[slot][pos : pos + len(ids)] = ids
    self.caches[slot][pos + len(ids) :] = -1
    return self.logits(slot, pos + len(ids))

  def embed(self, ids: Sequence[int], pos: int, slot: int = 0) -> np.ndarray:
    self.prefill(ids, pos, slot)
    return np.stack([self.logits(slot, pos + i + 1) for i in range(len(ids))])

  score = embed

  def decode(self, tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    assert len(tokens) == len(positions) == self.slots
    time.sleep(self.seconds)
    self.calls.append(("decode", sum(p >= 0 for p in positions)))
    out = np.full((self.slots, self.c.vocab), np.nan, np.float32)
    for slot, (token, pos) in enumerate(zip(tokens, positions)):
      if pos >= 0:
        self.caches[slot][pos], self.caches[slot][pos + 1 :] = token, -1
        out[slot] = self.logits(slot, pos + 1)
    return out
