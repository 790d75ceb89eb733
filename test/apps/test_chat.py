"""A conversation: what is typed, commands, files, what Ctrl-C stops."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_model import FakeModel
from says import Says
from test_generation import VOCAB
from tiny_llama import tokenizer_metadata

from extra.write_gguf import write_gguf
from tinygrad.apps import AppError, chat
from tinygrad.apps.chat import Conversation, Screen, converse, typed_lines
from tinygrad.apps.generation import Engine
from tinygrad.apps.sampling import Sampling
from tinygrad.apps.tokenizer import Tokenizer
from tinygrad.nn.gguf import GGUF

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  file = tmp_path_factory.mktemp("tok") / "t.gguf"
  write_gguf(file, tokenizer_metadata(VOCAB) | {"tokenizer.chat_template": TEMPLATE}, {})
  return Tokenizer.from_gguf(GGUF(file))


def talk(tok: Tokenizer, text: str, **more: object) -> Conversation:
  model = Says(VOCAB, context=500)
  model.script = (*tok.encode(text, bos=False), *tok.ends)
  return Conversation(Engine(model, tok), Sampling(temperature=0), **more)


def shown(c: Conversation, lines: list[str], notes: bool = True, colours: bool = False) -> tuple[str, str, bool]:
  out, told = io.StringIO(), io.StringIO()
  ended = converse(c, iter(lines), Screen(out, told, colours), notes)
  return out.getvalue(), told.getvalue(), ended


def test_turns(tok: Tokenizer):
  c = talk(tok, "well")
  out, told, ended = shown(c, ["hi", "  ", "and?"])
  assert out == "well\nwell\n" and not ended and told.count("tokens, ") == 2 and " a second" in told
  said = [("user", "hi"), ("assistant", "well"), ("user", "and?"), ("assistant", "well")]
  assert [(m["role"], m["content"]) for m in c.messages] == said
  before = tok.encode("<user>hi<assistant>well<user>and?<assistant>", bos=False)
  assert c.engine.slots[0].cached[: len(before)] == before
  assert c.engine.counts.reused >= len(tok.encode("<user>hi<assistant>well", bos=False)) - 1, "a turn reads what is new"


def test_an_answer_that_fills_the_context_says_so(tok: Tokenizer):
  model = Says(VOCAB, context=40)
  model.script = tuple(tok.encode("x" * 60, bos=False))
  for most, note in ((None, " a second; the context is full: /clear begins anew\n"), (3, " a second\n")):
    c = Conversation(Engine(model, tok), Sampling(temperature=0), most)
    assert shown(c, ["hi"])[1].endswith(note)


def test_thoughts_are_dimmed_and_not_kept(tok: Tokenizer):
  c = talk(tok, "<think>\nhm\n</think>\n\nyes")
  assert shown(c, ["hi"], colours=True)[0] == "\x1b[2mhm\n\x1b[0m\n\nyes\n"
  assert c.messages[-1]["content"] == "yes"
  assert shown(talk(tok, "<think>hm"), ["hi"], colours=True)[0] == "\x1b[2mhm\x1b[0m\n"
  assert shown(c, ["hi"])[0] == "hm\n\n\nyes\n"


def test_commands(tok: Tokenizer, tmp_path: Path):
  c = talk(tok, "well")
  file = tmp_path / "a b.json"
  lines = [
    "/system be brief", "hi", f"/save '{file}'", "/clear", "/set top_k 5", "/set temperature", "/set seed none",
    "/set max_tokens 1", "/help", "hi", "/nonsense", "/set nonsense 1", "/set top_k x", "/set top_p 2",
    "/set max_tokens 0", "/save", "/load nowhere.json", "/quit", "never",
  ]  # fmt: skip
  out, told, _ = shown(c, lines)
  assert out == "well\nw\n", "the second answer has one token"
  want = tok.encode("<system>be brief<user>hi", bos=False)
  assert c.engine.slots[0].cached[: len(want)] == want
  assert c.sampling.top_k == 5 and c.sampling.seed is None and c.max_tokens == 1
  said = [
    "system prompt set", f"2 messages saved to {file}", "a new conversation", "top_k is 5", "temperature is 0",
    "/help             this", "there is no command /nonsense\n  fix: /help lists them",
    "there is no setting 'nonsense'\n  fix: one of temperature, top_k", "top_k: 'x' is no whole number",
    "top_p is 2.0\n  fix: a number from 0 to 1", "max_tokens is 0\n  fix: 1 or more, or none",
    "a file has to be named\n  fix: /save FILE", "error: [Errno 2]",
  ]  # fmt: skip
  for line in said:
    assert line in told, line
  other = talk(tok, "well")
  assert other.command(f"/load '{file}'") == f"2 messages loaded from {file}"
  assert other.system == "be brief" and other.messages[0] == {"role": "user", "content": "hi"}
  assert other.command("/system") == "no system prompt" and other.system == ""


NOTHING = (
  "{",
  "[]",
  "{}",
  '{"messages": [], "system": 1}',
  '{"messages": [{"role": 1, "content": ""}], "system": ""}',
)


@pytest.mark.parametrize("text", NOTHING)
def test_files_that_hold_no_conversation(tok: Tokenizer, tmp_path: Path, text: str):
  (tmp_path / "x.json").write_text(text)
  with pytest.raises(AppError, match=r"x.json holds no conversation: .*\n  fix: a file that /save has written"):
    talk(tok, "").command(f"/load {tmp_path}/x.json")


def test_a_home_of_nobody(tok: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  monkeypatch.chdir(tmp_path)
  out, told, _ = shown(talk(tok, "well"), ["/load ~no-such-user/x", "/save ~no-such-user/x", "hi"])
  assert out == "well\n" and told.count("error: ~no-such-user/x: there is no such user\n  fix: ") == 2
  assert not [*tmp_path.iterdir()]


def test_the_last_seed_has_one_after_it(tok: Tokenizer):
  c = talk(tok, "well")
  c.sampling = Sampling(seed=(1 << 64) - 1)
  out, told, _ = shown(c, ["hi", "and?"])
  assert len(c.messages) == 4 and "error" not in told


def test_a_slash_is_text_where_nobody_types(tok: Tokenizer):
  c = talk(tok, "well")
  out, told, _ = shown(c, ["/clear"], notes=False)
  assert out == "well\n" and told == "" and c.messages[0]["content"] == "/clear"


def test_errors_end_a_pipe_and_not_a_conversation(tok: Tokenizer):
  c = Conversation(Engine(FakeModel(VOCAB, context=8), tok), Sampling())
  with pytest.raises(AppError, match="do not fit into the context of 8"):
    shown(c, ["hello"], notes=False)
  assert "error: " in shown(c, ["hello", "x"])[1] and c.messages == [], "what was not answered is not kept"

  class Fails(FakeModel):
    def prefill(self, *_: object) -> None:
      raise RuntimeError("gone")

  with pytest.raises(AppError, match="gone"):
    shown(Conversation(Engine(Fails(VOCAB), tok), Sampling()), ["x"], notes=False)


@pytest.mark.parametrize("notes", [True, False])
def test_ctrl_c_stops_the_answer_and_not_the_program(tok: Tokenizer, notes: bool, monkeypatch: pytest.MonkeyPatch):
  c = talk(tok, "abcdefghij")
  decode = c.engine.model.decode

  def interrupted(*args: object) -> object:
    if c.engine.counts.decoded == 2:
      os.kill(os.getpid(), signal.SIGINT)
    return decode(*args)

  monkeypatch.setattr(c.engine.model, "decode", interrupted)
  out, _, ended = shown(c, ["hi"], notes)
  assert ended == (not notes)
  assert out == "abcdef\n" and c.messages[-1]["content"] == "abcdef", "kept as far as it came"
  assert c.engine.busy == 0


# ---------------------------------------------------------------- typing


@contextlib.contextmanager
def keyboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[object, Iterator[str]]]:
  pytest.importorskip("prompt_toolkit", reason="needs prompt_toolkit (the extra chat)")
  from prompt_toolkit.input import create_pipe_input
  from prompt_toolkit.output import DummyOutput

  monkeypatch.setattr(chat, "HISTORY", tmp_path / "state" / "history")
  with create_pipe_input() as keys:
    yield keys, typed_lines(keys, DummyOutput())


def test_lines_are_edited_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  with keyboard(tmp_path, monkeypatch) as (keys, lines):
    keys.send_text("hellp\x7fo\r")  # a key that takes one back
    assert next(lines) == "hello"
    keys.send_text("one\x1b\rtwo\r")  # Alt-Enter
    assert next(lines) == "one\ntwo"
    keys.send_text("dropped\x03next\r")  # Ctrl-C
    assert next(lines) == "next"
    keys.send_text("\x1b[A\r")  # the line before
    assert next(lines) == "next"
    keys.send_text("\x04")
    assert list(lines) == []
  with keyboard(tmp_path, monkeypatch) as (keys, lines):
    keys.send_text("\x1b[A\r")
    assert next(lines) == "next", "also in the next conversation"


def test_lines_are_typed_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  (tmp_path / "state").write_text("a file where a folder would be")
  with keyboard(tmp_path, monkeypatch) as (keys, lines):
    keys.send_text("hello\r")
    assert next(lines) == "hello"
    keys.send_text("\x1b[A\r")
    assert next(lines) == "hello"


def test_plain_lines(monkeypatch: pytest.MonkeyPatch):
  typed = iter(["a", KeyboardInterrupt, "b", EOFError])

  def read(_: str) -> str:
    line = next(typed)
    if isinstance(line, str):
      return line
    raise line

  monkeypatch.setattr("builtins.input", read)
  monkeypatch.setitem(__import__("sys").modules, "prompt_toolkit", None)
  assert list(typed_lines()) == ["a", "b"]


def test_what_is_kept_is_json(tok: Tokenizer, tmp_path: Path):
  c = talk(tok, "größe")
  shown(c, ["hi", f"/save {tmp_path}/x.json"])
  assert json.loads((tmp_path / "x.json").read_text()) == {"system": "", "messages": c.messages}
