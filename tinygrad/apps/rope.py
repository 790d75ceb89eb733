"""Rotary positions: by which angles pairs of dims turn, and how these stretch beyond the context of the training.

A pair at position p turns by p · frequency; the plain frequencies are base^(-2i/dims) (https://arxiv.org/abs/2104.09864).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rope:
  """`frequencies` of the pairs, in radians a position; what turns is also multiplied by `amplitude`."""

  frequencies: tuple[float, ...]
  amplitude: float = 1.0

  def tables(self, length: int, neighbours: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin [length, dims], sin with the first of each pair negated: x cos + (x, pairs swapped) sin turns x."""
    angle = np.arange(length)[:, None] * np.array(self.frequencies)
    cos, sin = np.cos(angle) * self.amplitude, np.sin(angle) * self.amplitude
    axis = 2 if neighbours else 1
    pairs = np.stack([cos, cos], axis), np.stack([-sin, sin], axis)
    c, s = (x.reshape(length, 2 * len(self.frequencies)).astype(np.float32) for x in pairs)
    return c, s


def plain_frequencies(base: float, dims: int) -> NDArray[np.float64]:
  frequencies: NDArray[np.float64] = base ** (-np.arange(0, dims, 2) / dims)
  return frequencies


@dataclass(frozen=True, slots=True)
class Yarn:
  """YaRN (https://arxiv.org/abs/2309.00071, section 3.2): pairs that turn more than `fast` times within `original`
  positions stay, those that turn less than `slow` times are divided by `factor`, between them it is blended.

  `whole`: the first and last blended pairs are rounded outwards.
  """

  factor: float
  original: int
  fast: float = 32.0
  slow: float = 1.0
  whole: bool = True

  def frequencies(self, base: float, dims: int) -> NDArray[np.float64]:
    def pair(turns: float) -> float:
      return dims * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(self.fast), pair(self.slow)
    if self.whole:
      low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    blend = np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)
    plain = plain_frequencies(base, dims)
    blended: NDArray[np.float64] = plain * (1 - blend) + plain / self.factor * blend
    return blended

  @property
  def amplitude(self) -> float:
    """Equation 22."""
    return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0


def llama3_factors(
  base: float, dims: int, factor: float, low: float, high: float, original: int
) -> NDArray[np.float32]:
  """By what Llama 3.1 divides frequencies: waves longer than original / low by `factor`, shorter than original / high
  by 1, and smoothly between (https://arxiv.org/abs/2407.21783; the fields of config.json's rope_scaling)."""
  waves = 2 * np.pi / plain_frequencies(base, dims)
  smooth = np.clip((original / waves - low) / (high - low), 0, 1)
  return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def long_rope_amplitude(longest: int, original: int) -> float:
  """LongRoPE's sqrt(1 + ln(s) / ln(original)) for a context s times as long (https://arxiv.org/abs/2402.13753)."""
  stretch = longest / original
  return math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0


def divided(frequencies: NDArray[np.float64], by: float | Sequence[float] | NDArray[np.float32]) -> tuple[float, ...]:
  return tuple(float(x) for x in frequencies / np.asarray(by, np.float64))
