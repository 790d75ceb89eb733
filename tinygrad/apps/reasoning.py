"""What a model thinks before it answers: the text between <think> and </think>."""

from __future__ import annotations

from tinygrad.apps.generation import StopStrings

OPENS, CLOSES = "<think>", "</think>"
Parts = list[tuple[str, bool]]  # texts, and whether each is a thought


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
