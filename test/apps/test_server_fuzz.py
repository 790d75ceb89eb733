"""Malformed requests, as a fuzzer of JSON finds them: each is answered with 4xx in OpenAI's shape, or with a text where
it is well-formed after all, and never with a fault.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fake_model import FakeModel
from hypothesis import given, settings
from hypothesis import strategies as st
from test_generation import VOCAB
from test_server import HI, WEATHER, Served, Server, httpx, listening, tok  # noqa: F401

from tinygrad.apps.generation import Engine
from tinygrad.apps.tokenizer import Tokenizer

CHAT = {
  "model": "tiny", "messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [
    {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": 1}'}}]},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]}],
  "max_tokens": 2, "temperature": 1, "top_p": 0.9, "seed": 1, "stop": ["a"], "n": 1, "stream": False, "logprobs": True,
  "top_logprobs": 1, "logit_bias": {"1": 1}, "tools": [WEATHER], "tool_choice": "auto", "presence_penalty": 0,
  "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
}  # fmt: skip
COMPLETION = {
  "model": "tiny", "prompt": ["a", [1, 2]], "max_tokens": 2, "frequency_penalty": 0, "echo": True, "logprobs": 1,
  "stream": True, "stream_options": {"include_usage": True}, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1,
}  # fmt: skip
ODD = st.one_of(
  st.sampled_from(
    [
      None,
      True,
      False,
      0,
      1,
      -1,
      1 << 70,
      1e308,
      -0.5,
      "",
      "x",
      "\x00",
      "\ud800",
      [],
      {},
      [[]],
      [{}],
      {"": 0},
      [None],
      [1, "a"],
      "auto",
      "function",
      {"type": "function"},
      [1 << 40],
      ["a"] * 100,
    ]
  ),
  st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3),
    max_leaves=6,
  ),
)


@pytest.fixture(scope="module")
def http(tok: Tokenizer) -> Iterator[Any]:  # noqa: F811
  engine = Engine(FakeModel(VOCAB, slots=2, context=3000), tok)
  with listening(Server(engine, Served("tiny"))) as url, httpx.Client(base_url=url, timeout=20) as client:
    yield client


def check(answer: Any) -> None:
  assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
  if answer.status_code != 200:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and "\n  fix" not in error["message"]


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
  inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
  return [at, *(p for k, v in inner for p in paths(v, (*at, k)))]


EMBEDDING = {"model": "tiny", "input": ["a", [1, 2]], "encoding_format": "float", "dimensions": VOCAB, "user": "x"}
BODIES = (("chat/completions", CHAT), ("completions", COMPLETION), ("embeddings", EMBEDDING))
PLACES = [(path, body, place) for path, body in BODIES for place in paths(body)]


def test_the_bodies_that_are_changed_are_well_formed(http: Any):
  assert http.post("/v1/completions", json=COMPLETION).status_code == 200
  assert http.post("/v1/embeddings", json=EMBEDDING).status_code == 200
  assert http.post("/v1/chat/completions", json=CHAT).status_code == 200


@settings(max_examples=150)
@given(place=st.sampled_from(PLACES), odd=ODD, name=st.sampled_from(["", "put", "drop"]))
def test_a_field_that_is_something_else(http: Any, place: Any, odd: Any, name: str):
  path, body, at = place
  body = copy.deepcopy(body)
  if not at:
    body = odd
  else:
    inner: Any = body
    for step in at[:-1]:
      inner = inner[step]
    if name == "drop":
      del inner[at[-1]]
    elif name == "put" and isinstance(inner, dict):
      inner["odd"] = odd
    else:
      inner[at[-1]] = odd
  check(http.post(f"/v1/{path}", content=json.dumps(body).encode(), headers={"Content-Type": "application/json"}))


@settings(max_examples=60)
@given(at=st.integers(0, 2000), length=st.integers(0, 8), new=st.binary(max_size=6), which=st.booleans())
def test_bytes_that_are_something_else(http: Any, at: int, length: int, new: bytes, which: bool):
  body = json.dumps(CHAT if which else COMPLETION).encode()
  at %= len(body)
  content = body[:at] + new + body[at + length :]
  path = "chat/completions" if which else "completions"
  check(http.post(f"/v1/{path}", content=content, headers={"Content-Type": "application/json"}))


@pytest.mark.parametrize(
  ("body", "match"),
  [
    (b"", "the body is no JSON"),
    (b"[" * 100000, "the body is no JSON"),
    (b'{"model": NaN}', "NaN is no JSON"),
    (b"\xff", "the body is no JSON"),
    (b'{"model": "\\ud800", "prompt": "x"}', "surrogates not allowed"),
    (b"1" * 10000, "the body is no JSON"),
    (b"[]", "the body is no object"),
    (b"{}", "model is missing"),
    (b'{"nonsense": 1}', "nonsense is no field that is known"),
  ],
)
def test_bodies_that_are_no_request(http: Any, body: bytes, match: str):
  answer = http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
  assert answer.status_code == 400 and match in answer.json()["error"]["message"]


@pytest.mark.parametrize(
  ("change", "param", "match"),
  [
    ({"messages": []}, "messages", "is no list of one or more"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "is none of 'system'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
    (
      {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
      "messages[0].content[0].type",
      "is none of 'text'",
    ),
    (
      {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
      "messages[0].tool_calls[0].function.arguments",
      "is no JSON",
    ),
    ({"temperature": "hot"}, "temperature", "is no number"),
    ({"top_p": 2}, "top_p", "top_p is 2.0; use a number from 0 to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty is 0.0"),
    ({"max_tokens": 0}, "max_tokens", "is no whole number from 1 to"),
    ({"n": 9}, "n", "is no whole number from 1 to 8"),
    ({"stream": 1}, "stream", "is neither true nor false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "is for streams only"),
    ({"stop": [""]}, "stop", "holds something else than strings with text"),
    ({"stop": ["a"] * 17}, "stop", "is no list of at most 16"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "is no object of numbers by a token's number"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "of token 1 is 101"),
    ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"tools": [{"type": "code"}]}, "tools[0].type", "is none of 'function'"),
    ({"tools": [WEATHER, WEATHER]}, "tools", "has two of one name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "is not of 1 to 64"),
    ({"tool_choice": "required"}, "tool_choice", "is 'required', and there are no tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "which is none of the tools"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "is none of"),
    (
      {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
      "response_format.json_schema.schema",
      "is missing",
    ),
    (
      {"response_format": {"type": "json_object"}, "tools": [WEATHER], "tool_choice": "required"},
      "response_format",
      "exclude each other",
    ),
  ],
)
def test_a_field_that_is_wrong_is_named(http: Any, change: dict[str, Any], param: str, match: str):
  answer = http.post("/v1/chat/completions", json={"model": "tiny", "messages": HI} | change)
  error = answer.json()["error"]
  assert answer.status_code == 400 and error["param"] == param and match in error["message"], error


@pytest.mark.parametrize(
  ("change", "param", "match"),
  [
    ({"prompt": None}, "prompt", "is missing"),
    ({"prompt": [[]]}, "prompt", "holds something else than texts or lists of tokens"),
    ({"prompt": []}, "prompt", "is neither a text"),
    ({"suffix": "x"}, "suffix", "is not supported"),
    ({"best_of": 2}, "best_of", "other than n is not supported"),
    ({"logprobs": 21}, "logprobs", "is no whole number from 0 to 20"),
    ({"logit_bias": {"99999": 1}}, None, "token 99999 is not in the vocabulary of"),
  ],
)
def test_a_field_of_a_completion_that_is_wrong_is_named(
  http: Any, change: dict[str, Any], param: str | None, match: str
):
  answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "x"} | change)
  error = answer.json()["error"]
  assert answer.status_code == 400 and error["param"] == param and match in error["message"], error
