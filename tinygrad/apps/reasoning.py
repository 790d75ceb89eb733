"""What a model thinks before it answers: the text between <think> and </think>, or gpt-oss's channel for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from tinygrad.apps.generation import StopStrings
from tinygrad.apps.tokenizer import Tokenizer

OPENS, CLOSES = "<think>", "</think>"
Parts = list[tuple[str, bool]]  # texts, and whether each is a thought
CHANNEL, MESSAGE, END, START, CALL, RETURN, CONSTRAIN = (
  f"<|{name}|>" for name in ("channel", "message", "end", "start", "call", "return", "constrain")
)
TO = " to="  # of a call, also before its channel
MISTRALS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")


@dataclass(frozen=True, slots=True)
class Marks:
  """Control tokens that structure an answer: which are `shown` in its text, and which end it (None: the file's)."""

  shown: frozenset[int] = frozenset()
  ends: frozenset[int] | None = None

  @staticmethod
  def of(tokenizer: Tokenizer) -> Marks:
    """By its chat template."""
    template = tokenizer.template or ""
    if CHANNEL in template:
      shown = found_in(tokenizer, (CHANNEL, MESSAGE, END, START, CALL, CONSTRAIN))
      return Marks(shown, found_in(tokenizer, (CALL, RETURN)) | (tokenizer.ends - shown))
    return Marks(found_in(tokenizer, MISTRALS) if MISTRALS[0] in template else frozenset())


def found_in(tokenizer: Tokenizer, names: tuple[str, ...]) -> frozenset[int]:
  return frozenset(tokenizer.names.index(name) for name in names if name in tokenizer.names)


class Thinker(Protocol):
  def push(self, text: str) -> Parts: ...
  def rest(self) -> Parts: ...


def reasoning(tokenizer: Tokenizer, prompt: str) -> Thinker:
  return Channels() if CHANNEL in (tokenizer.template or "") else Reasoning(prompt)


class Channels:
  """gpt-oss's messages (https://cookbook.openai.com/articles/openai-harmony): each has a header, up to <|message|>, and
  a body, up to <|end|>, <|call|> or the next header. Those in the channel "analysis" are thoughts; one to a function
  is a call, and comes in the form that the most models write, between <tool_call> and </tool_call>."""

  def __init__(self) -> None:
    self.held, self.after = "", ""  # what waits, and what comes after the body
    self.begun, self.header, self.thought = False, True, False

  def push(self, text: str) -> Parts:
    self.held += text
    parts: Parts = []
    if not self.begun:
      if TO.startswith(self.held):
        return []
      self.begun, self.header = True, self.held.startswith((CHANNEL, START, TO))
    while True:
      mark = re.search("|".join(map(re.escape, (MESSAGE,) if self.header else (END, CALL, START, CHANNEL))), self.held)
      if not self.header:
        body = self.held[: mark.start()] if mark else self.held
        parts += [(body, self.thought)] if body else []
        self.held = "" if mark is None else self.held
      if mark is None:
        return parts
      if self.header:
        parts += self.opened(self.held[: mark.start()])
      else:
        parts += self.closed()
      self.header, self.held = not self.header, self.held[mark.end() :]

  def opened(self, header: str) -> Parts:
    to = re.search(r"to=functions\.([\w.-]+)", header)
    self.thought = not to and "analysis" in header
    if to is None:
      return []
    self.after = "}</tool_call>"
    return [(f'<tool_call>{{"name": "{to[1]}", "arguments": ', False)]

  def closed(self) -> Parts:
    after, self.after = self.after, ""
    return [(after, False)] if after else []

  def rest(self) -> Parts:
    waits = [] if self.begun or not self.held else [(self.held, False)]
    return waits + self.closed()


class Reasoning:
  """Splits text as it comes into thought and answer; the marks, and empty lines after them, are in neither.

  A thought can only begin a text. `prompt` is what comes before, and may have begun one.
  """

  def __init__(self, prompt: str = ""):
    self.inside = prompt.rstrip().endswith(OPENS)
    self.before = not self.inside  # it is not yet clear which comes first
    self.held, self.closing, self.trim = "", StopStrings([CLOSES]), self.inside

  def push(self, text: str) -> Parts:
    if self.before:
      self.held += text
      start = self.held.lstrip()
      if start != OPENS and OPENS.startswith(start):
        return []
      self.before, self.inside = False, start.startswith(OPENS)
      self.trim, text = self.inside, start.removeprefix(OPENS) if self.inside else self.held
      self.held = ""
    if not self.inside:
      return self.shown(text, False)
    thought, closed = self.closing.push(text)
    parts = self.shown(thought, True)
    if closed:
      self.inside, self.trim = False, True
      parts += self.shown(self.closing.held[len(thought) + len(CLOSES) :], False)
      self.closing.held = ""
    return parts

  def shown(self, text: str, thought: bool) -> Parts:
    if self.trim:
      text = text.lstrip("\n")
      self.trim = not text
    return [(text, thought)] if text else []

  def rest(self) -> Parts:
    """What waited for more."""
    held = self.held + self.closing.held
    self.held = self.closing.held = ""
    return self.shown(held, self.inside)
