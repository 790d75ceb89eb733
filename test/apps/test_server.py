"""The server: the openai client unchanged, streams and clients that vanish, limits, and what is malformed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel
from says import Says
from test_generation import VOCAB, Heard, plain
from tiny_llama import Tiny, tokenizer_metadata

from extra.write_gguf import write_gguf
from tinygrad import distributed
from tinygrad.apps import AppError, llm
from tinygrad.apps.generation import Engine, Finish, Request
from tinygrad.apps.sampling import Sampling
from tinygrad.apps.tokenizer import Tokenizer
from tinygrad.nn.gguf import GGUF

NEEDS = "needs starlette, uvicorn, llguidance, prometheus_client, openai (the extra test)"
for package in ("starlette", "uvicorn", "llguidance", "prometheus_client", "openai"):
  pytest.importorskip(package, reason=NEEDS)
import httpx2 as httpx  # noqa: E402
import openai  # noqa: E402

from tinygrad.apps.server import run  # noqa: E402
from tinygrad.apps.server.app import Served, Server  # noqa: E402
from tinygrad.apps.server.run import listening  # noqa: E402
from tinygrad.apps.server.texts import OneText  # noqa: E402

ROOT = Path(__file__).parents[2]

TEMPLATE = (
  "{% if tools %}<tool_call>{{ tools | tojson }}\n{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
  "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.city }}){% endfor %}{{ '\\n' }}"
  "{% endfor %}<assistant>"
)
HI = [{"role": "user", "content": "hi"}]
WEATHER = {
  "type": "function",
  "function": {
    "name": "weather",
    "description": "of a city",
    "parameters": {
      "type": "object",
      "properties": {"city": {"enum": ["Rom", "Köln"]}},
      "required": ["city"],
      "additionalProperties": False,
    },
  },
}


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  file = tmp_path_factory.mktemp("tok") / "t.gguf"
  write_gguf(file, tokenizer_metadata(VOCAB) | {"tokenizer.chat_template": TEMPLATE}, {})
  return Tokenizer.from_gguf(GGUF(file))


@pytest.fixture(scope="module")
def engine(tok: Tokenizer) -> Engine:
  return Engine(Says(VOCAB, slots=4, context=2000), tok, queue=70)


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
  with listening(Server(engine, Served("tiny", Sampling(seed=None)))) as url:
    yield url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
  with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as client:
    yield client


@pytest.fixture
def say(engine: Engine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Any:
  def say(text: str) -> None:
    monkeypatch.setattr(engine.model, "script", (*tok.encode(text, bos=False), *tok.ends))

  return say


def prompt_of(tok: Tokenizer, messages: list[dict[str, Any]]) -> list[int]:
  return tok.encode("".join(f"<{m['role']}>{m['content']}\n" for m in messages) + "<assistant>", bos=False)


# ---------------------------------------------------------------- the openai client


def test_models(client: openai.OpenAI):
  assert [m.id for m in client.models.list()] == ["tiny"] and client.models.retrieve("tiny").owned_by == "tinygrad"
  with pytest.raises(openai.NotFoundError, match="the model 'other/x' does not exist; this server has 'tiny'"):
    client.models.retrieve("other/x")


def test_a_chat_is_what_the_engine_makes(client: openai.OpenAI, tok: Tokenizer):
  want = plain(tok, Request(prompt_of(tok, HI), 12, Sampling(seed=3)), 2000, 2.0)
  answer = client.chat.completions.create(model="tiny", messages=HI, seed=3, max_tokens=12)
  (choice,) = answer.choices
  assert choice.message.content == want[1] and choice.message.role == "assistant"
  assert choice.finish_reason == want[2].value
  assert answer.usage.prompt_tokens == len(prompt_of(tok, HI)) and answer.usage.completion_tokens == len(want[0])
  assert answer.usage.total_tokens == len(prompt_of(tok, HI)) + len(want[0])


def test_a_stream_is_the_same_text(client: openai.OpenAI):
  asked = {"model": "tiny", "messages": HI, "seed": 3, "max_completion_tokens": 12}
  whole = client.chat.completions.create(**asked)
  chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
  *texts, last = chunks
  assert texts[0].choices[0].delta.role == "assistant" and len({c.id for c in chunks}) == 1
  assert "".join(c.choices[0].delta.content or "" for c in texts) == whole.choices[0].message.content
  assert [c.choices[0].finish_reason for c in texts if c.choices[0].finish_reason] == [whole.choices[0].finish_reason]
  assert last.choices == [] and last.usage.total_tokens == whole.usage.total_tokens
  assert all(c.usage is None for c in texts)
  assert last.usage.prompt_tokens_details.cached_tokens > 0, "the prompt lay in a slot"


def test_several_texts(client: openai.OpenAI, tok: Tokenizer):
  answer = client.chat.completions.create(model="tiny", messages=HI, seed=3, max_tokens=8, n=3)
  assert answer.usage.prompt_tokens == len(prompt_of(tok, HI)) < answer.usage.total_tokens, "a prompt counts once"
  want = [plain(tok, Request(prompt_of(tok, HI), 8, Sampling(seed=3 + i)), 2000, 2.0)[1] for i in range(3)]
  assert [c.message.content for c in answer.choices] == want and len(set(want)) == 3
  streams = {0: "", 1: "", 2: ""}
  for chunk in client.chat.completions.create(model="tiny", messages=HI, seed=3, max_tokens=8, n=3, stream=True):
    streams[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
  assert list(streams.values()) == want


def test_content_in_parts_and_roles(client: openai.OpenAI, tok: Tokenizer):
  parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
  asked = {"model": "tiny", "seed": 1, "max_tokens": 6}
  plain_, in_parts, developer, system = (
    client.chat.completions.create(messages=m, **asked).choices[0].message.content
    for m in (
      HI,
      [{"role": "user", "content": parts}],
      [{"role": "developer", "content": "x"}, *HI],
      [{"role": "system", "content": "x"}, *HI],
    )
  )
  assert plain_ == in_parts and developer == system != plain_


def test_stop_strings(client: openai.OpenAI, say: Any):
  say("one world, two worlds")
  asked = {"model": "tiny", "messages": HI, "stop": [", tw", "zzz"]}
  (choice,) = client.chat.completions.create(**asked).choices
  assert (choice.message.content, choice.finish_reason) == ("one world", "stop")
  shown = [c.choices[0].delta.content or "" for c in client.chat.completions.create(**asked, stream=True)]
  assert "".join(shown) == "one world"
  assert (
    client.chat.completions.create(model="tiny", messages=HI, stop="two").choices[0].message.content == "one world, "
  )


def test_logprobs(client: openai.OpenAI, tok: Tokenizer, say: Any):
  say("größe")
  asked = {"model": "tiny", "messages": HI, "logprobs": True, "top_logprobs": 2, "temperature": 0}
  found = client.chat.completions.create(**asked).choices[0].logprobs.content
  assert bytes(b for t in found[:-1] for b in t.bytes).decode() == "größe"
  assert all(-1e-3 < t.logprob == t.top_logprobs[0].logprob for t in found)
  assert all(len(t.top_logprobs) == 2 and t.top_logprobs[1].logprob < -40 for t in found)
  chunks = [c.choices[0] for c in client.chat.completions.create(**asked, stream=True)]
  assert [t for c in chunks if c.logprobs for t in c.logprobs.content] == found
  old = client.completions.create(model="tiny", prompt="x", logprobs=1, temperature=0).choices[0]
  assert "".join(old.logprobs.tokens[:2]) == "gr" and old.logprobs.text_offset[:3] == [0, 1, 2]
  assert old.logprobs.token_logprobs[0] == old.logprobs.top_logprobs[0]["g"]


def test_completions(client: openai.OpenAI, tok: Tokenizer):
  want = plain(tok, Request(tok.encode("def f"), 16, Sampling(seed=9)), 2000, 2.0)
  answer = client.completions.create(model="tiny", prompt="def f", seed=9)
  assert answer.choices[0].text == want[1] and answer.usage.completion_tokens == len(want[0]) <= 16
  chunks = client.completions.create(model="tiny", prompt="def f", seed=9, stream=True, echo=True)
  assert "".join(c.choices[0].text for c in chunks) == "def f" + want[1]
  several = client.completions.create(model="tiny", prompt=["def f", tok.encode("def f")], seed=9, n=2, echo=True)
  assert several.usage.prompt_tokens == 2 * len(tok.encode("def f"))
  texts = [c.text for c in several.choices]
  assert texts[0] == texts[2] == "def f" + want[1] and texts[1] == texts[3] != texts[0]
  tokens = client.completions.create(model="tiny", prompt=tok.encode("def f"), seed=9)
  assert tokens.choices[0].text == want[1]
  assert client.completions.create(model="tiny", prompt="", max_tokens=1).usage.prompt_tokens == 1


@pytest.mark.parametrize("most", [0, 2])
def test_how_likely_a_prompt_is(client: openai.OpenAI, tok: Tokenizer, most: int):
  ids, model = tok.encode("def f"), FakeModel(VOCAB, context=2000)
  x = model.embed(ids, 0).astype(np.float64)
  x -= np.log(np.exp(x).sum(-1, keepdims=True))
  asked: dict[str, Any] = {"model": "tiny", "prompt": "def f", "echo": True, "logprobs": 2, "temperature": 0}
  for _ in range(2):  # the second time the prompt lies in a slot already
    choice = client.completions.create(**asked, max_tokens=most).choices[0]
    assert choice.text.startswith("def f") and (choice.text == "def f") == (most == 0)
    found = choice.logprobs
    assert len(found.tokens) == len(found.text_offset) == len(ids) + most
    assert "".join(found.tokens[: len(ids)]) == "def f" and found.text_offset[0] == 0
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    np.testing.assert_allclose(found.token_logprobs[1 : len(ids)], [x[i - 1, ids[i]] for i in range(1, len(ids))])
    assert [max(t.values()) for t in found.top_logprobs[1 : len(ids)]] == pytest.approx(list(x[:-1].max(-1)))
  chunks = [c.choices[0] for c in client.completions.create(**asked, max_tokens=most, stream=True)]
  assert "".join(c.text for c in chunks) == choice.text and chunks[-1].finish_reason == "length"
  assert [t for c in chunks if c.logprobs for t in c.logprobs.token_logprobs] == found.token_logprobs
  assert [t for c in chunks if c.logprobs for t in c.logprobs.text_offset] == found.text_offset
  silent = client.completions.create(model="tiny", prompt="def f", max_tokens=0)
  assert silent.choices[0].text == "" and silent.usage.completion_tokens == 0


def test_json_by_a_schema(client: openai.OpenAI):
  schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"],
            "additionalProperties": False}  # fmt: skip
  for i in range(3):
    answer = client.chat.completions.create(
      model="tiny", messages=HI, seed=i,
      response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    )  # fmt: skip
    assert 1 <= json.loads(answer.choices[0].message.content)["n"] <= 9 and answer.choices[0].finish_reason == "stop"
  answer = client.chat.completions.create(
    model="tiny", messages=HI, seed=0, response_format={"type": "json_object"}, max_tokens=300
  )
  assert answer.choices[0].message.content.startswith("{")
  with pytest.raises(openai.BadRequestError, match="Invalid type"):
    client.chat.completions.create(
      model="tiny", messages=HI,
      response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}},
    )  # fmt: skip


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_that_has_to_be_called(client: openai.OpenAI, choice: Any):
  answer = client.chat.completions.create(model="tiny", messages=HI, tools=[WEATHER], tool_choice=choice, seed=1)
  (call,) = answer.choices[0].message.tool_calls
  assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Rom", "Köln")
  assert answer.choices[0].finish_reason == "tool_calls" and answer.choices[0].message.content is None


def test_a_tool_that_may_be_called(client: openai.OpenAI, say: Any):
  say('Let me see.<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>')
  asked = {"model": "tiny", "messages": HI, "tools": [WEATHER]}
  (choice,) = client.chat.completions.create(**asked).choices
  assert choice.message.content == "Let me see." and choice.finish_reason == "tool_calls"
  (call,) = choice.message.tool_calls
  assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rom"})
  deltas = [c.choices[0].delta for c in client.chat.completions.create(**asked, stream=True)]
  assert "".join(d.content or "" for d in deltas) == "Let me see."
  (found,) = [t for d in deltas for t in d.tool_calls or []]
  assert (
    found.index == 0 and found.function.name == "weather" and json.loads(found.function.arguments) == {"city": "Rom"}
  )
  turn = [
    *HI,
    choice.message.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": call.id, "content": "sun"},
  ]
  say("It is sunny.")
  assert client.chat.completions.create(**asked | {"messages": turn}).choices[0].message.content == "It is sunny."
  for told in ('<tool_call>{"name": "other", "arguments": {}}</tool_call>', "<tool_call>{", "a <tool"):
    say(told)
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.message.content == told and choice.message.tool_calls is None and choice.finish_reason == "stop"
  for odd in (
    '"name": ["weather"]',
    '"name": "weather", "arguments": {"city": NaN}',
    '"name": "weather", "arguments": {"x": 1e999}',
  ):
    say(told := f'<tool_call>{{"arguments": {{}}, {odd}}}</tool_call>')
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.message.content == told and choice.message.tool_calls is None
  say(r'<tool_call>{"name": "weather", "arguments": {"city": "K\u00f6ln \ud83d"}}</tool_call>')
  (call,) = client.chat.completions.create(**asked).choices[0].message.tool_calls
  assert json.loads(call.function.arguments) == {"city": "Köln \ud83d"}, "half of a pair stays an escape"
  say('<tool_call>{"name": "weather", "arguments": {}}</tool_call>')
  assert client.chat.completions.create(**asked, tool_choice="none").choices[0].message.tool_calls is None


def test_calls_that_may_not_be_parallel_are_one(client: openai.OpenAI, say: Any):
  cities = ("Rom", "Köln")
  say("".join(f'<tool_call>{{"name": "weather", "arguments": {{"city": "{c}"}}}}</tool_call>' for c in cities))
  asked: dict[str, Any] = {"model": "tiny", "messages": HI, "tools": [WEATHER]}
  for parallel, want in ((True, cities), (False, cities[:1])):
    (choice,) = client.chat.completions.create(**asked, parallel_tool_calls=parallel).choices
    assert tuple(json.loads(c.function.arguments)["city"] for c in choice.message.tool_calls) == want
    assert choice.finish_reason == "tool_calls"
    chunks = client.chat.completions.create(**asked, parallel_tool_calls=parallel, stream=True)
    assert len([t for c in chunks for t in c.choices[0].delta.tool_calls or []]) == len(want)


LISTED_TEMPLATE = "[AVAILABLE_TOOLS]{{ tools }}[INST]{{ messages[0].content }}[/INST]{# [TOOL_CALLS] #}"
MARKED = {  # by the template: the control tokens, what the model says, and the arguments of what it calls
  "mistral": (LISTED_TEMPLATE, ["[TOOL_CALLS]"], '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rom"}}]'),
  "mistral-named": (LISTED_TEMPLATE + "{# [ARGS] #}", ["[TOOL_CALLS]", "[ARGS]"],
                    '[TOOL_CALLS]weather[ARGS]{"city": "Rom"}'),
  "gpt-oss": ("{{ tools }}<|start|>assistant{# <|channel|> #}",
              ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"],
              "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
              '<|constrain|>json<|message|>{"city": "Rom"}<|call|>'),
}  # fmt: skip


@pytest.fixture(params=list(MARKED))
def marked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, openai.OpenAI, Engine, str]]:
  template, marks, said = MARKED[request.param]
  m = tokenizer_metadata(VOCAB - len(marks)) | {"tokenizer.chat_template": template}
  m["tokenizer.ggml.tokens"] = [*m["tokenizer.ggml.tokens"], *marks]
  m["tokenizer.ggml.token_type"] = [*m["tokenizer.ggml.token_type"], *[3] * len(marks)]
  write_gguf(tmp_path / "t.gguf", m, {})
  engine = Engine(Says(VOCAB, slots=2, context=2000), Tokenizer.from_gguf(GGUF(tmp_path / "t.gguf")))
  with (
    listening(Server(engine, Served("tiny", Sampling(seed=None)))) as url,
    openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as client,
  ):
    yield request.param, client, engine, said


def test_calls_with_control_tokens(marked: tuple[str, openai.OpenAI, Engine, str]):
  """As Mistral and gpt-oss write them; nothing of the marks is shown, and gpt-oss's <|call|> ends a text."""
  name, client, engine, said = marked
  engine.model.script = (*engine.tokenizer.encode(said, bos=False), *engine.tokenizer.ends)
  asked = {"model": "tiny", "messages": HI, "tools": [WEATHER]}
  (choice,) = client.chat.completions.create(**asked).choices
  (call,) = choice.message.tool_calls
  assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rom"})
  assert choice.finish_reason == "tool_calls" and choice.message.content is None
  assert getattr(choice.message, "reasoning_content", None) == ("hm" if name == "gpt-oss" else None)
  deltas = [c.choices[0].delta for c in client.chat.completions.create(**asked, stream=True)]
  assert [t.function.name for d in deltas for t in d.tool_calls or []] == ["weather"]
  plain = "<|channel|>final<|message|>Hello." if name == "gpt-oss" else "Hello."
  engine.model.script = (*engine.tokenizer.encode(plain, bos=False), *engine.tokenizer.ends)
  (choice,) = client.chat.completions.create(**asked).choices
  assert choice.message.content == "Hello." and choice.message.tool_calls is None


def test_calls_with_control_tokens_that_have_to_be(marked: tuple[str, openai.OpenAI, Engine, str]):
  name, client, engine, _ = marked
  engine.model.script = ()
  asked = {"model": "tiny", "messages": HI, "seed": 1}
  (choice,) = client.chat.completions.create(**asked, tools=[WEATHER], tool_choice="required").choices
  (call,) = choice.message.tool_calls
  assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Rom", "Köln")
  schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
  form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
  (choice,) = client.chat.completions.create(**asked, response_format=form).choices
  assert json.loads(choice.message.content)["n"] in (1, 2)
  if name == "gpt-oss":
    names = engine.tokenizer.names
    object.__setattr__(engine.tokenizer, "names", tuple("x" if n == "<|constrain|>" else n for n in names))
    with pytest.raises(openai.BadRequestError, match=r"template writes <\|constrain\|>, and its tokenizer has no such"):
      client.chat.completions.create(**asked, tools=[WEATHER], tool_choice="required")


def test_thoughts_are_apart(client: openai.OpenAI, say: Any):
  say("<think>\nwhy\n</think>\n\nbecause")
  message = client.chat.completions.create(model="tiny", messages=HI).choices[0].message
  assert message.content == "because" and message.reasoning_content == "why\n"


def test_embeddings(client: openai.OpenAI, tok: Tokenizer):
  """The client asks for base64 unless it is told otherwise, and gives numbers."""
  texts = ["def f", "hello world"]
  answer = client.embeddings.create(model="tiny", input=texts)
  assert [e.index for e in answer.data] == [0, 1] and answer.model == "tiny"
  assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(tok.encode(t)) for t in texts)
  for text, found in zip(texts, answer.data):
    mean = FakeModel(VOCAB, context=2000).embed(tok.encode(text), 0).astype(np.float64).mean(0)
    np.testing.assert_allclose(found.embedding, mean / np.linalg.norm(mean), atol=1e-6)
  (numbers,) = client.embeddings.create(model="tiny", input=tok.encode(texts[0]), encoding_format="float").data
  np.testing.assert_allclose(numbers.embedding, answer.data[0].embedding, atol=1e-7)
  several = client.embeddings.create(model="tiny", input=[tok.encode(t) for t in texts], dimensions=VOCAB)
  np.testing.assert_allclose([e.embedding for e in several.data], [e.embedding for e in answer.data], atol=1e-6)
  with pytest.raises(openai.BadRequestError, match="input holds something else than texts"):
    client.embeddings.create(model="tiny", input=[""] + [{}])
  with pytest.raises(openai.BadRequestError, match="encoding_format is none of 'float', 'base64'"):
    client.embeddings.create(model="tiny", input="x", encoding_format="int8")


def test_errors_have_openais_shape(client: openai.OpenAI, tok: Tokenizer):
  with pytest.raises(openai.BadRequestError) as e:
    client.chat.completions.create(model="tiny", messages=HI, temperature=-1)
  assert e.value.param == "temperature" and "temperature is -1" in str(e.value)
  assert e.value.type == "invalid_request_error"
  with pytest.raises(openai.NotFoundError) as e:
    client.chat.completions.create(model="gpt-4o", messages=HI)
  assert e.value.code == "model_not_found"
  with pytest.raises(openai.BadRequestError, match="do not fit into the context of 2000") as e:
    client.completions.create(model="tiny", prompt="hm " * 1500)
  assert e.value.code == "context_length_exceeded"
  with pytest.raises(openai.BadRequestError, match=f"dimensions is not {VOCAB}, what this model has"):
    client.embeddings.create(model="tiny", input="x", dimensions=8)
  with pytest.raises(openai.BadRequestError, match=r"token 300 is not in the vocabulary of 300 tokens; fix: "):
    client.completions.create(model="tiny", prompt=[300])


def test_an_error_of_the_model(client: openai.OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch):
  def fails(*_: Any) -> np.ndarray:
    raise RuntimeError("the device is gone")

  monkeypatch.setattr(engine.model, "decode", fails)
  with pytest.raises(openai.InternalServerError, match="the device is gone"):
    client.chat.completions.create(model="tiny", messages=HI, seed=0)
  for create, asked in (
    (client.chat.completions.create, {"messages": HI}),
    (client.completions.create, {"prompt": "x"}),
  ):
    with pytest.raises(openai.APIError, match="the device is gone"):
      list(create(model="tiny", stream=True, seed=0, **asked))


# ---------------------------------------------------------------- many, and those that leave


def until(true: Any, seconds: float = 5.0) -> None:
  end = time.monotonic() + seconds
  while not true():
    assert time.monotonic() < end, "it never came"
    time.sleep(0.002)


@pytest.fixture
def endless(engine: Engine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
  """A model that takes its time and never ends a text."""
  monkeypatch.setattr(engine.model, "script", (5,))
  monkeypatch.setattr(engine.model, "seconds", 0.002)


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(url: str, engine: Engine, stream: bool):
  body = json.dumps({"model": "tiny", "messages": HI, "stream": stream}).encode()
  host, port = url.removeprefix("http://").split(":")
  with socket.create_connection((host, int(port))) as s:
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    s.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
    until(lambda: engine.busy == 1)
    before = engine.counts.finished[Finish.CANCELLED]
    if stream:
      assert s.recv(15) == b"HTTP/1.1 200 OK"
  until(lambda: engine.busy == 0)
  assert engine.counts.finished[Finish.CANCELLED] == before + 1


@pytest.mark.usefixtures("endless")
def test_a_full_queue(client: openai.OpenAI, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch):
  jobs = [engine.submit(Request([1]), Heard()) for _ in range(4)]
  until(lambda: engine.busy == 4)
  monkeypatch.setattr(engine, "limit", 2)
  jobs.append(engine.submit(Request([1]), Heard()))
  with pytest.raises(openai.RateLimitError, match="2 requests wait already") as e:
    client.chat.completions.create(model="tiny", messages=HI, n=2)
  assert e.value.code == "queue_full" and e.value.response.headers["retry-after"] == "1"
  for job in jobs:
    job.cancel()
  until(lambda: engine.busy == 0 and not engine.waiting)


def test_64_streams_of_which_some_vanish(url: str, engine: Engine, tok: Tokenizer):
  """None is lost, none holds another's text, and every slot is free in the end."""
  before = dict(engine.counts.finished)
  found: dict[int, str] = {}
  left: list[int] = []

  def ask(i: int) -> None:
    with httpx.Client(base_url=url, timeout=30) as c:
      asked = {"model": "tiny", "prompt": f"stream {i}", "seed": i, "max_tokens": 24, "stream": True}
      with c.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200
        text = ""
        for n, line in enumerate(answer.iter_lines()):
          if line.startswith("data: {"):
            text += json.loads(line[6:])["choices"][0]["text"]
          if i % 4 == 3 and n > 6:
            left.append(i)
            return
        assert line == "" or line == "data: [DONE]"
        found[i] = text

  threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
  for t in threads:
    t.start()
  for t in threads:
    t.join()
  until(lambda: engine.busy == 0 and not engine.waiting)
  assert len(found) + len(left) == 64 and len(left) >= 8
  for i, text in found.items():
    assert text == plain(tok, Request(tok.encode(f"stream {i}"), 24, Sampling(seed=i)), 2000, 2.0)[1]
  ended = {k: engine.counts.finished[k] - before[k] for k in before}
  assert sum(ended.values()) == 64 and ended[Finish.ERROR] == 0 and ended[Finish.CANCELLED] <= len(left)


# ---------------------------------------------------------------- guards


def test_health_and_metrics(url: str, client: openai.OpenAI):
  client.completions.create(model="tiny", prompt="x", max_tokens=2)
  assert httpx.get(f"{url}/health").json() == {"status": "ok"}
  text = httpx.get(f"{url}/metrics").text
  for line in (
    "tinygrad_slots 4.0",
    'tinygrad_answers_total{path="/v1/completions",status="200"}',
    'tinygrad_texts_total{finish="length"}',
    "tinygrad_tokens_decoded_total",
    "tinygrad_waiting 0.0",
    "tinygrad_first_token_seconds_count",
  ):
    assert line in text, line


def test_a_key(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB), tok)
  with listening(Server(engine, Served("tiny", key="secret"))) as url:
    for key, status in ((None, 401), ("wrong", 401), ("sécret", 401), ("secret", 200), (" secret", 200)):
      headers = {"Authorization": f"Bearer {key}".encode()} if key else {}
      answer = httpx.get(f"{url}/v1/models", headers=headers)
      assert answer.status_code == status
      assert status == 200 or answer.json()["error"]["code"] == "invalid_api_key"
    assert httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "x"}).status_code == 401
    assert httpx.get(f"{url}/health").status_code == 200
    with pytest.raises(openai.AuthenticationError):
      openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
    assert openai.OpenAI(base_url=f"{url}/v1", api_key="secret").models.list().data[0].id == "tiny"


def test_a_key_with_any_letter_by_a_scheme_in_any_case(tok: Tokenizer):
  with listening(Server(Engine(FakeModel(VOCAB), tok), Served("tiny", key="größe"))) as url:
    for given, status in (("bearer größe", 200), ("Basic größe", 401), ("größe", 401), ("Bearer", 401)):
      answer = httpx.get(f"{url}/v1/models", headers={"Authorization": given.encode()})
      assert answer.status_code == status, given


def said_to(url: str, text: bytes) -> bytes:
  """Everything that a server answers, up to where it closes."""
  host, port = url.removeprefix("http://").split(":")
  with socket.create_connection((host, int(port)), 20) as s:
    s.sendall(text)
    return b"".join(iter(lambda: s.recv(1 << 16), b""))


def test_http_1_0_and_hosts_in_any_case(url: str):
  assert said_to(url, b"GET /v1/models HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
  assert said_to(url, b"GET /v1/models HTTP/1.0\r\nHost: evil.example\r\n\r\n").startswith(b"HTTP/1.1 403 ")
  assert httpx.get(f"{url}/v1/models", headers={"Host": "LocalHost:1"}).status_code == 200


def test_paths_that_clients_make_up_are_not_kept(url: str):
  for i in range(3):
    assert httpx.get(f"{url}/v1/models/made-up-{i}").status_code == 404
  text = httpx.get(f"{url}/metrics").text
  assert "made-up" not in text and 'tinygrad_answers_total{path="/v1/models/{name:path}",status="404"}' in text


def test_more_texts_than_are_ever_taken(client: openai.OpenAI):
  with pytest.raises(openai.BadRequestError, match="80 texts in one request, and at most 74 are taken at once; fix: s"):
    client.completions.create(model="tiny", prompt=["x"] * 10, n=8)


def test_an_empty_prompt_is_not_too_long(tok: Tokenizer):
  with listening(Server(Engine(FakeModel(VOCAB), replace(tok, bos=None)), Served("tiny"))) as url:
    answer = httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": ""})
    assert answer.status_code == 400 and answer.json()["error"]["code"] is None
    assert "the prompt is empty" in answer.json()["error"]["message"]


def test_an_engine_that_has_ended_is_no_full_queue(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB), tok)
  with listening(Server(engine, Served("tiny"))) as url:
    engine.close()
    for path, more in (("completions", {"prompt": "x"}), ("completions", {"prompt": "x", "stream": True})):
      answer = httpx.post(f"{url}/v1/{path}", json={"model": "tiny"} | more)
      assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_closed"
    assert httpx.get(f"{url}/health").status_code == 503


def test_pages_of_other_sites_reach_nothing(url: str):
  body = b'{"model": "tiny", "prompt": "x"}'
  answer = httpx.post(f"{url}/v1/completions", content=body, headers={"Content-Type": "text/plain"})
  assert answer.status_code == 415 and answer.json()["error"]["code"] == "wrong_content_type"
  answer = httpx.get(f"{url}/v1/models", headers={"Host": "evil.example:80"})
  assert answer.status_code == 403 and answer.json()["error"]["code"] == "wrong_host"
  assert httpx.get(f"{url}/v1/models", headers={"Host": "localhost:1"}).status_code == 200
  assert "access-control-allow-origin" not in httpx.get(f"{url}/v1/models", headers={"Origin": "http://x"}).headers


def test_a_body_that_is_too_long(tok: Tokenizer):
  with listening(Server(Engine(FakeModel(VOCAB), tok), Served("tiny", body_limit=1000))) as url:
    json_ = {"Content-Type": "application/json"}
    answer = httpx.post(f"{url}/v1/completions", content=b" " * 1001, headers=json_)
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_long"
    answer = httpx.post(f"{url}/v1/completions", content=iter([b" " * 600] * 2), headers=json_)
    assert answer.status_code == 413, "also where no length is told"


def test_a_client_that_leaves_within_its_body_is_no_fault(url: str, capfd: pytest.CaptureFixture[str]):
  """The server's log had a traceback of each."""
  host, port = url.removeprefix("http://").split(":")
  for _ in range(2):
    with socket.create_connection((host, int(port))) as s:
      s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
      s.sendall(b"Content-Length: 100\r\n\r\n{")
  until(lambda: 'tinygrad_answers_total{path="/v1/completions",status="499"} 2.0' in httpx.get(f"{url}/metrics").text)
  assert "Traceback" not in capfd.readouterr().err


def test_content_that_is_neither_text_nor_parts(url: str):
  body = {"model": "tiny", "messages": [{"role": "user", "content": 3}]}
  error = httpx.post(f"{url}/v1/chat/completions", json=body).json()["error"]
  assert error["message"] == "messages[0].content is neither a string nor a list of at most 4096 parts"
  assert error["param"] == "messages[0].content"


@pytest.mark.parametrize(("deep", "status"), [(100, 200), (127, 200), (129, 400), (600, 400)])
def test_what_is_nested_deep(url: str, deep: int, status: int):
  nested = '{"a":' * deep + "1" + "}" * deep
  call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": nested}}
  past: dict[str, Any] = {"messages": [*HI, {"role": "assistant", "tool_calls": [call]}]}
  tool = {"type": "function", "function": {"name": "f", "parameters": json.loads(nested)}}
  for more in (past, {"messages": HI, "tools": [tool]}):
    if deep == 127 and more is not past:
      continue  # the body is deeper than the schema in it
    answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "tiny", "max_tokens": 1} | more)
    assert answer.status_code == status and (
      status == 200 or "nested deeper than 128" in answer.json()["error"]["message"]
    )


def test_what_is_not_there(url: str):
  for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("PUT", "/", 405)):
    answer = httpx.request(method, url + path)
    assert answer.status_code == status and set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_fault_of_the_server(url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
  monkeypatch.setattr(Server, "completion_requests", lambda *_: 1 / 0)
  answer = httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "x"})
  assert answer.status_code == 500 and answer.json()["error"]["message"] == "the server failed"
  assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # uvicorn's exit
def test_an_address_that_is_none(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB), tok)
  with (
    pytest.raises(OSError, match="no server can listen at 192.0.2.1"),
    listening(Server(engine, Served("x")), "192.0.2.1"),
  ):
    pass


def test_the_end_of_the_server_waits_for_no_body(tok: Tokenizer, capfd: pytest.CaptureFixture[str]):
  server = Server(Engine(FakeModel(VOCAB), tok), Served("tiny"))
  with contextlib.ExitStack() as stack:
    with listening(server) as url:
      host, port = url.removeprefix("http://").split(":")
      s = stack.enter_context(socket.create_connection((host, int(port)), 20))
      s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
      s.sendall(b"Content-Length: 100\r\n\r\n{")
      until(lambda: server.reading)
    answer = b"".join(iter(lambda: s.recv(1 << 16), b""))
  assert answer.startswith(b"HTTP/1.1 503 ") and b"the server ends, and the body is not whole" in answer
  assert "Traceback" not in capfd.readouterr().err


def test_the_end_of_the_server_ends_its_texts(tok: Tokenizer):
  model = Says(VOCAB, context=5000, seconds=0.001)
  model.script = (5,)
  engine = Engine(model, tok)
  found: list[httpx.Response] = []
  with listening(Server(engine, Served("tiny"))) as url:
    asked = {"model": "tiny", "prompt": "x", "max_tokens": 4000}
    t = threading.Thread(target=lambda: found.append(httpx.post(f"{url}/v1/completions", json=asked, timeout=20)))
    t.start()
    until(lambda: engine.busy == 1)
  t.join()
  assert found[0].status_code == 503 and not engine.thread.is_alive()


# ---------------------------------------------------------------- the program


def test_the_program_serves_a_model(tmp_path: Path):
  file = Tiny("tiny").write(tmp_path / "tiny.gguf")
  script = [sys.executable, "-m", "tinygrad.apps.llm", "--model", str(file), "--serve", "--port", "0", "--slots", "2"]
  env = os.environ | {"PYTHONPATH": str(ROOT)}
  with subprocess.Popen(script, stderr=subprocess.PIPE, text=True, env=env) as p:
    try:
      assert p.stderr is not None
      said = next(line for line in p.stderr if " at http" in line)
      url = said.split("a page at ")[1].strip().rstrip("/")
      client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
      answer = client.completions.create(model="tiny", prompt="hello", max_tokens=3, temperature=0)
      assert answer.usage.completion_tokens == 3
      p.send_signal(signal.SIGINT)
      _, rest = p.communicate(timeout=20)
      assert p.returncode == 130 and "tokens read in" in rest and "Traceback" not in rest, rest
    finally:
      p.kill()  # where something failed before; it would serve for ever


def test_mistakes_of_who_serves(monkeypatch: pytest.MonkeyPatch):
  with pytest.raises(AppError, match=r"nobody can listen at 192.0.2.1:1: .*\n  fix: another --host or --port"):
    run.bound_socket("192.0.2.1", 1)
  monkeypatch.setattr(run, "PACKAGES", ("starlette", "nowhere"))
  with pytest.raises(AppError, match=r"--serve needs nowhere\n  fix: pip install 'tinygrad\[serve\]'"):
    run.check_packages()


@pytest.mark.parametrize("package", run.PACKAGES)
def test_a_package_that_is_missing_is_said_before_a_model_is_loaded(package: str):
  script = [sys.executable, "-m", "tinygrad.apps.llm", "--model", "org/never-downloaded", "--serve", "--port", "0"]
  env = os.environ | {"PYTHONPATH": f"{ROOT / 'test' / 'hidden'}{os.pathsep}{ROOT}", "HIDE": package}
  r = subprocess.run(script, capture_output=True, text=True, env=env)
  assert r.returncode == 2 and r.stderr == f"error: --serve needs {package}\n  fix: pip install 'tinygrad[serve]'\n"


def test_a_place_that_is_taken_is_said_before_a_model_is_loaded():
  with socket.create_server(("127.0.0.1", 0)) as other:
    port = str(other.getsockname()[1])
    script = [sys.executable, "-m", "tinygrad.apps.llm", "--model", "org/never-downloaded", "--serve", "--port", port]
    r = subprocess.run(script, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
  assert r.returncode == 2 and r.stderr.startswith(f"error: nobody can listen at 127.0.0.1:{port}: "), r.stderr


def test_several_processes_serve_nothing(monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(distributed, "process_count", lambda: 2)
  args = llm.checked_arguments(["--serve", "--port", "0"])
  with pytest.raises(AppError, match=r"asks one process, and here are 2 .*\n  fix: start one process; --shard N"):
    llm.place_to_serve(args)


def test_clients_are_refused_until_the_model_is_there():
  with contextlib.closing(run.bound_socket("127.0.0.1", 0)) as place, pytest.raises(ConnectionRefusedError):
    socket.create_connection(place.getsockname())


@pytest.mark.parametrize(
  "text", ["", "plain", 'a "quoted" \\ line\n', "\0\x1f\u2028", "caf\u00e9 \U0001f642", "\ud800"]
)
def test_what_is_written_once_around_a_text_is_the_json_of_the_whole(text: str):
  def value(x: str) -> dict[str, Any]:
    return {"id": "a", "choices": [{"index": 0, "text": x, "logprobs": None}]}

  assert json.loads(OneText(value)(text)) == value(text)
