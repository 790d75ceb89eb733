"""Grammars that a text has to keep, such as JSON by a schema, through llguidance: which tokens may come next."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad.apps import AppError
from tinygrad.apps.tokenizer import Tokenizer
from tinygrad.helpers.lazy import LazyModule

llguidance = LazyModule("llguidance")


# Between JSON's parts: a new line and an indent at most, or a model may go on with spaces for ever.
SPACING = {"whitespace_flexible": True, "whitespace_pattern": r"\n? {0,24}"}


class GrammarError(AppError):
  """A grammar that cannot be: says what llguidance says of it."""


class Vocabulary:
  """A tokenizer as llguidance asks for it."""

  def __init__(self, tokenizer: Tokenizer):
    self.tokenizer, self.eos_token_id, self.bos_token_id = tokenizer, min(tokenizer.ends), tokenizer.bos
    # tokens without a text may not come in one; each needs bytes of its own
    self.special_token_ids = [i for i, piece in enumerate(tokenizer.pieces) if not piece]
    self.tokens = [p or f"<|{i}|>".encode() for i, p in enumerate(tokenizer.pieces)]

  def __call__(self, text: str) -> list[int]:
    return self.tokenizer.encode(text, bos=False)


class Grammars:
  """Makes the grammars of one tokenizer. Its tables are made on first use, which takes a moment."""

  def __init__(self, tokenizer: Tokenizer):
    self.tokenizer, self.lock, self.made = tokenizer, threading.Lock(), None

  def tables(self) -> Any:
    with self.lock:
      if self.made is None:
        if not self.tokenizer.ends:
          raise GrammarError("the model's file names no end token\n  fix: ask without a grammar")
        wrapped = llguidance.TokenizerWrapper(Vocabulary(self.tokenizer))
        self.made = llguidance.LLTokenizer(wrapped, eos_token=sorted(self.tokenizer.ends))
      return self.made

  def json(self, schema: dict[str, Any], before: str = "") -> MatchedGrammar:
    """JSON that a schema allows, after what is written in Lark. Raises GrammarError."""
    return self.lark(f"start: {before} answer\nanswer: {json_rule(schema)}")

  def lark(self, text: str) -> MatchedGrammar:
    """A text by a grammar in llguidance's Lark syntax. Raises GrammarError."""
    return MatchedGrammar(
      llguidance.LLMatcher(self.tables(), llguidance.LLMatcher.grammar_from_lark(text), log_level=0)
    )


def json_rule(schema: dict[str, Any]) -> str:
  """What a rule of a Lark grammar says of JSON by a schema."""
  return f"%json {json.dumps(schema | {'x-guidance': SPACING})}"


class MatchedGrammar:
  """One text on its way through a grammar (`generation.Grammar`)."""

  def __init__(self, matcher: Any):
    """Raises GrammarError also where no text fits, which shows when the first token is asked for."""
    self.matcher = matcher
    self.check()
    if not self.allowed().any():
      raise GrammarError("no text fits the grammar\n  fix: a simpler grammar or schema")

  def check(self) -> None:
    if self.matcher.is_error():
      problem = str(self.matcher.get_error()).splitlines()[0]
      raise GrammarError(f"{problem}\n  fix: a simpler grammar or schema")

  def allowed(self) -> NDArray[np.bool_]:
    bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
    self.check()
    return np.unpackbits(bits, bitorder="little").astype(bool)

  def take(self, token: int) -> bool:
    self.matcher.consume_token(token)
    self.check()
    return not self.matcher.is_stopped()
