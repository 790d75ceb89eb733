"""A model that says what it is told to say."""

from __future__ import annotations

from typing import Any

import numpy as np
from fake_model import FakeModel


class Says(FakeModel):
  """Says `script`, where there is one, whatever it is told; its last token again and again."""

  script: tuple[int, ...] = ()
  ends: dict[int, int] = {}  # of the prompts

  def prefill(self, ids: Any, pos: int, slot: int = 0) -> np.ndarray:
    self.ends = self.ends | {slot: pos + len(ids)}
    return super().prefill(ids, pos, slot)

  def logits(self, slot: int, end: int) -> np.ndarray:
    if not self.script:
      return super().logits(slot, end)
    at = min(end - self.ends[slot], len(self.script) - 1)
    return np.where(np.arange(self.c.vocab) == self.script[at], 50.0, 0.0).astype(np.float32)
