"""From an engine's events to the parts of an answer in OpenAI's shapes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from tinygrad.apps.generation import Event, Finish, StopStrings
from tinygrad.apps.reasoning import Thinker
from tinygrad.apps.sampling import Drawn
from tinygrad.apps.server.tools import CallSyntax, Tool, calls_in
from tinygrad.apps.tokenizer import Tokenizer


@dataclass(slots=True)
class ChatText:
  """Events to deltas of a message: content, reasoning, and, at the end of a text that holds them, calls of tools;
  of several the first where they may not be `parallel`."""

  tools: tuple[Tool, ...]
  syntax: CallSyntax
  reasoning: Thinker
  parallel: bool = True
  gate: StopStrings = field(init=False)
  call: str | None = None  # the text from where a call may have begun
  blank: str = ""  # and what came before it is clear whether one has
  begun: bool = False
  calls: int = 0

  def __post_init__(self) -> None:
    self.gate = StopStrings([self.syntax.opens] if self.tools else [])

  def push(self, event: Event) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    parts = self.reasoning.push(event.text)
    if event.finish is not None:
      parts += self.reasoning.rest()
    for text, thought in parts:
      if thought:
        deltas.append({"reasoning_content": text})
      elif text := self.content(text):
        deltas.append({"content": text})
    return deltas + (self.end() if event.finish is not None else [])

  def content(self, text: str) -> str:
    """What of a text may be shown now."""
    if self.call is not None:
      self.call += text
      return ""
    if self.begun or not self.tools:
      return text
    if not self.syntax.opens:  # a call is the whole answer
      self.blank += text
      if not self.blank.strip():
        return ""
      text, self.blank, self.begun = self.blank, "", True
      if text.lstrip()[0] in "{[":
        self.call, text = text, ""
      return text
    shown, opened = self.gate.push(text)
    if opened:
      self.call, self.gate.held = self.gate.held[len(shown) :], ""
    return shown

  def end(self) -> list[dict[str, Any]]:
    left = self.call if self.call is not None else self.gate.held + self.blank
    calls = calls_in(left, self.tools, self.syntax) if self.call is not None else []
    calls = calls if self.parallel else calls[:1]
    self.calls = len(calls)
    if calls:
      return [{"tool_calls": [{"index": i, **call.shown}]} for i, call in enumerate(calls)]
    return [{"content": left}] if left else []

  def finish(self, why: Finish) -> str:
    return "tool_calls" if self.calls else why.value


def message_of(deltas: list[dict[str, Any]]) -> dict[str, Any]:
  """The message that deltas make."""
  message: dict[str, Any] = {"role": "assistant", "content": None}
  for delta in deltas:
    for name, value in delta.items():
      if name == "tool_calls":
        message.setdefault(name, []).extend({k: v for k, v in call.items() if k != "index"} for call in value)
      else:
        message[name] = (message.get(name) or "") + value
  if message["content"] is None and "tool_calls" not in message:
    message["content"] = ""
  return message


def likelihood(x: float | None) -> float | None:
  """JSON has no infinity."""
  return None if x is None else max(x, -9999.0)


def chat_logprobs(drawn: list[Drawn], tokenizer: Tokenizer) -> dict[str, Any]:
  def shown(token: int, logprob: float | None) -> dict[str, Any]:
    piece = tokenizer.pieces[token]
    text = piece.decode("utf-8", "replace") or tokenizer.names[token]
    return {"token": text, "logprob": likelihood(logprob), "bytes": list(piece or text.encode())}

  content = [shown(d.token, d.logprob) | {"top_logprobs": [shown(i, x) for i, x in d.likeliest]} for d in drawn]
  return {"content": content, "refusal": None}


def letters(drawn: list[Drawn], tokenizer: Tokenizer) -> int:
  """How long the text of some tokens is, each by itself."""
  return sum(len(tokenizer.pieces[d.token].decode("utf-8", "replace")) for d in drawn)


def completion_logprobs(drawn: list[Drawn], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
  """`offset`: characters of the text before. The first token of a prompt has no likelihood."""

  def shown(token: int) -> str:
    return tokenizer.pieces[token].decode("utf-8", "replace") or tokenizer.names[token]

  lengths = [letters([d], tokenizer) for d in drawn]
  offsets = list(itertools.accumulate(lengths[:-1], initial=offset)) if drawn else []
  return {
    "tokens": [shown(d.token) for d in drawn],
    "token_logprobs": [likelihood(d.logprob) for d in drawn],
    "top_logprobs": [None if d.logprob is None else {shown(i): likelihood(x) for i, x in d.likeliest} for d in drawn],
    "text_offset": offsets,
  }
