"""Grammars: whatever a model says, its text is what was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_model import FakeModel
from test_generation import VOCAB, run, tok  # noqa: F401

from tinygrad.apps.generation import Engine, Finish, Request
from tinygrad.apps.sampling import Sampling
from tinygrad.apps.server.tools import TAGGED, WHOLE, Tool, call_grammar, calls_in
from tinygrad.apps.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="needs llguidance (the extra serve)")
from tinygrad.apps.grammar import GrammarError, Grammars

PERSON = {
  "type": "object",
  "properties": {"name": {"enum": ["Ada", "Bö"]}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
  "required": ["name", "age"],
  "additionalProperties": False,
}


def texts(tok: Tokenizer, make: Any, seeds: int = 12) -> list[str]:  # noqa: F811
  engine = Engine(FakeModel(VOCAB, slots=4, context=400, sharp=3.0), tok)
  heard = run(engine, *(Request([1, 2], None, Sampling(seed=i), grammar=make()) for i in range(seeds)))
  assert {h.finish for h in heard} == {Finish.STOP}
  return [h.text for h in heard]


def test_json_by_a_schema(tok: Tokenizer):  # noqa: F811
  grammars = Grammars(tok)
  found = texts(tok, lambda: grammars.json(PERSON))
  for text in found:
    person = json.loads(text)
    assert list(person) == ["name", "age"] and person["name"] in ("Ada", "Bö") and 0 <= person["age"] <= 150
  assert len(set(found)) > 6, "the model's own words"
  plain = run(Engine(FakeModel(VOCAB), tok), Request([1, 2], 40, Sampling(seed=0)))[0].text
  assert not plain.startswith("{"), "without it the model says something else"


@pytest.mark.parametrize("syntax", [TAGGED, WHOLE])
def test_a_call_that_has_to_be(tok: Tokenizer, syntax: Any):  # noqa: F811
  tools = (
    Tool("weather", "", PERSON),
    Tool("time", "", {"type": "object", "properties": {"utc": {"type": "boolean"}}}),
  )
  grammars = Grammars(tok)
  for some in (tools, tools[:1]):
    for text in texts(tok, lambda some=some: grammars.lark(call_grammar(some, syntax, tok.names.index)), 4):
      (call,) = calls_in(text, some, syntax)
      assert call.name in [tool.name for tool in some] and isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
  ("schema", "match"),
  [
    ({"type": "nonsense"}, r"Invalid type: nonsense\n  fix: a simpler grammar or schema"),
    ({"properties": {"a": {"$ref": "#/nowhere"}}}, "'/nowhere' does not exist"),
    ({"type": "string", "pattern": "("}, "regex parse error"),
    ({"not": {}}, "Unimplemented keys"),
    ({"$ref": "#"}, r"\n  fix: a simpler grammar or schema"),  # which nothing finite fits: seen at the first token
  ],
)
def test_schemas_that_cannot_be(tok: Tokenizer, schema: dict[str, Any], match: str):  # noqa: F811
  with pytest.raises(GrammarError, match=match):
    Grammars(tok).json(schema)


def test_a_model_without_an_end(tok: Tokenizer):  # noqa: F811
  import dataclasses

  with pytest.raises(GrammarError, match=r"names no end token\n  fix: ask without a grammar"):
    Grammars(dataclasses.replace(tok, ends=frozenset())).json({})


def test_a_token_that_was_not_allowed(tok: Tokenizer):  # noqa: F811
  grammar = Grammars(tok).json({"type": "object"})
  wrong = int((~grammar.allowed()[:VOCAB]).nonzero()[0][0])
  with pytest.raises(GrammarError):
    grammar.take(wrong)
