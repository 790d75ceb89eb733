"""SentencePiece's two ways from text to tokens, by the scores that a GGUF file has (https://arxiv.org/abs/1808.06226).

`BPE` joins neighbours again and again, those whose piece has the highest score first. `Unigram` takes the pieces whose
scores have the highest sum (https://arxiv.org/abs/1804.10959). A space is the character SPACE.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tinygrad.apps import AppError
from tinygrad.helpers import Remade

SPACE = "\u2581"
WORDS_KEPT = 1 << 16
PENALTY = 10.0  # by which a character that is in no piece scores less than the worst piece


class TokenType:
  """Values of tokenizer.ggml.token_type. Control tokens have no text; the spelling of what the user defined is one."""

  NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class CharsmapError(Remade, AppError):
  """A map of characters that is damaged: says how, and a fix."""

  def __init__(self, problem: str):
    super().__init__(f"tokenizer.ggml.precompiled_charsmap: {problem}\n  fix: download or convert the model again")


class Charsmap:
  """SentencePiece's `precompiled_charsmap`: what characters become before anything else, by the longest match.

  u32 size of a trie; the trie, a double array of u32 units (https://github.com/s-yata/darts-clone); the texts that its
  values point to, each ended by a zero byte. A unit has a label (bits 0 to 7, and 31 where it is a value), whether a
  value follows (8), and the offset of its children (10 to 30, times 256 where 9 is set).
  """

  def __init__(self, raw: bytes):
    size = int.from_bytes(raw[:4], "little")
    if size % 4 or not 4 <= size <= len(raw) - 4:
      raise CharsmapError(f"its trie has {size} bytes, and {len(raw)} are there")
    self.units: list[int] = np.frombuffer(raw[4 : 4 + size], "<u4").tolist()
    self.texts = raw[4 + size :]

  def unit(self, at: int) -> int:
    if at >= len(self.units):
      raise CharsmapError(f"its trie has {len(self.units)} units, and leads to number {at}")
    return self.units[at]

  def longest(self, data: bytes, at: int) -> tuple[int, bytes] | None:
    """(bytes that match from `at` on, what they become)"""
    node, found = children(self.unit(0)), None
    for end in range(at, len(data)):
      node ^= data[end]
      unit = self.unit(node)
      if unit & 0x8000_00FF != data[end]:
        break
      node ^= children(unit)
      if unit >> 8 & 1:
        start = self.unit(node) & 0x7FFF_FFFF
        found = end + 1 - at, self.texts[start : self.texts.find(b"\0", start)]
    return found

  def __call__(self, text: str) -> str:
    data, out, at = text.encode("utf-8", "replace"), bytearray(), 0
    while at < len(data):
      if found := self.longest(data, at):
        out += found[1]
        at += found[0]
      else:
        size = next((i for i in range(1, 4) if at + i >= len(data) or data[at + i] & 0xC0 != 0x80), 4)
        out += data[at : at + size]
        at += size
    return out.decode("utf-8", "replace")


def children(unit: int) -> int:
  return (unit >> 10) << ((unit & 1 << 9) >> 6)


@dataclass(frozen=True, slots=True)
class Habits:
  """What happens to a text before it is cut: `charsmap`; a space `before` it; `squeeze`: of several spaces one stays,
  and none at the ends."""

  charsmap: Callable[[str], str] | None = None
  before: bool = True
  squeeze: bool = False

  def __call__(self, text: str) -> str:
    text = self.charsmap(text) if self.charsmap else text
    if self.squeeze:
      text = re.sub(" +", " ", text).strip(" ")
    return ((" " if self.before and text else "") + text).replace(" ", SPACE)


@dataclass(frozen=True)
class Pieces:
  """`ids` and `scores` of the pieces that text may be cut into; `fixed`: those whose spelling is always one token, and
  `unknown` the token of characters that are in none, where no byte has a token of its own."""

  ids: Mapping[str, int]
  scores: Mapping[str, float]
  bytes: Sequence[int]  # the tokens of bytes, empty where there are none
  unknown: int | None
  fixed: Mapping[str, int]
  habits: Habits
  words: dict[str, list[int]] = field(default_factory=dict)

  def encode(self, text: str, mark: str = "") -> list[int]:
    """`mark`: keeps what it is within from being fixed, and is no text."""
    out: list[int] = []
    for part in self.fixed_pattern.split(text) if self.fixed else [text]:
      if part in self.fixed:
        out.append(self.fixed[part])
      elif part:
        out += self.tokens(self.habits(part.replace(mark, "")))
    return out

  @cached_property
  def fixed_pattern(self) -> re.Pattern[str]:
    return re.compile(f"({'|'.join(map(re.escape, sorted(self.fixed, key=len, reverse=True)))})")

  @cached_property
  def crosses(self) -> bool:
    """Whether some piece goes on after a space that ends a word: else text is cut before each, and words are kept."""
    return any(SPACE in piece.lstrip(SPACE) for piece in self.ids)

  def tokens(self, text: str) -> list[int]:
    """Of a text that is written with SPACE. Several unknown characters in a row are one token."""
    out: list[int] = []
    for word in [text] if self.crosses else re.findall(f"{SPACE}*[^{SPACE}]+|{SPACE}+", text):
      if (found := self.words.get(word)) is None:
        if len(self.words) >= WORDS_KEPT:
          self.words.clear()
        found = self.words[word] = list(self.numbers(self.cut(word)))
      out += found
    return [i for n, i in enumerate(out) if i != self.unknown or out[n - 1 : n] != [i]]

  def numbers(self, cut: Sequence[str]) -> Iterator[int]:
    for piece in cut:
      if (i := self.ids.get(piece)) is not None:
        yield i
      elif self.bytes:
        yield from (self.bytes[b] for b in piece.encode("utf-8", "replace"))
      elif self.unknown is not None:
        yield self.unknown

  def cut(self, word: str) -> Sequence[str]:
    raise NotImplementedError


class BPE(Pieces):
  def cut(self, word: str) -> Sequence[str]:
    """Of neighbours whose piece has the highest score, the first are joined. Each is looked at once: n log n."""
    parts: list[str] = list(word)
    right, left = list(range(1, len(parts) + 1)), list(range(-1, len(parts) - 1))
    waiting: list[tuple[float, int, int, str]] = []

    def look(i: int, j: int) -> None:
      if 0 <= i and j < len(parts) and (score := self.scores.get(both := parts[i] + parts[j])) is not None:
        heapq.heappush(waiting, (-score, i, j, both))

    for i in range(len(parts) - 1):
      look(i, i + 1)
    while waiting:
      _, i, j, both = heapq.heappop(waiting)
      if not parts[i] or not parts[j] or parts[i] + parts[j] != both or right[i] != j:
        continue
      parts[i], parts[j], right[i] = both, "", right[j]
      if right[j] < len(parts):
        left[right[j]] = i
      look(left[i], i)
      look(i, right[i])
    return [p for p in parts if p]


class Unigram(Pieces):
  @cached_property
  def longest(self) -> int:
    return max(map(len, self.scores), default=1)

  @cached_property
  def worst(self) -> float:
    return min(self.scores.values(), default=0.0) - PENALTY

  def cut(self, word: str) -> Sequence[str]:
    """Viterbi: the best way to each place goes through one of those before it."""
    best, begins = [0.0] + [-math.inf] * len(word), [0] * (len(word) + 1)
    for i in range(len(word)):
      for j in range(i + 1, min(i + self.longest, len(word)) + 1):
        score = self.scores.get(word[i:j], self.worst if j == i + 1 else -math.inf)
        if best[i] + score > best[j]:
          best[j], begins[j] = best[i] + score, i
    out, end = [], len(word)
    while end:
      out.append(word[begins[end] : end])
      end = begins[end]
    return out[::-1]
