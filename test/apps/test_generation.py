"""The engine against a plain loop: one request, one model, every token decoded from its whole prefix."""

from __future__ import annotations

import codecs
import threading
from dataclasses import replace

import numpy as np
import pytest
from fake_model import FakeModel
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import tokenizer_metadata

from extra.write_gguf import write_gguf
from tinygrad.apps.generation import (
  Engine,
  EngineClosed,
  Event,
  Finish,
  PromptError,
  PromptTooLong,
  QueueFull,
  Request,
  StopStrings,
)
from tinygrad.apps.sampling import Sampler, Sampling
from tinygrad.apps.tokenizer import TokenError, Tokenizer
from tinygrad.nn.gguf import GGUF

VOCAB = 300


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
  file = tmp_path_factory.mktemp("tok") / "t.gguf"
  write_gguf(file, tokenizer_metadata(VOCAB), {})
  return Tokenizer.from_gguf(GGUF(file))


# ---------------------------------------------------------------- stop strings


def slow_stop(text: str, stops: list[str]) -> tuple[str, bool]:
  """The shortest beginning of the text that ends with a stop string, without the longest that it ends with."""
  for end in range(len(text) + 1):
    found = [s for s in stops if text[:end].endswith(s)]
    if found:
      return text[: end - max(map(len, found))], True
  return text, False


@given(text=st.text("ab", max_size=14), cuts=st.lists(st.integers(0, 14)), stops=st.lists(st.text("ab", min_size=1)))
def test_stop_strings_never_show_a_part_of_themselves(text: str, cuts: list[int], stops: list[str]):
  want, stopped = slow_stop(text, stops)
  ends = sorted({min(c, len(text)) for c in cuts} | {len(text)})
  gate, shown, at, done = StopStrings(stops), "", 0, False
  for end in ends:
    new, done = gate.push(text[at:end])
    shown, at = shown + new, end
    assert want.startswith(shown), "what was shown is no part of the result"
    if done:
      break
    # nothing waits that cannot begin a stop string
    assert gate.held == "" or any(s.startswith(gate.held) for s in stops)
  assert done == stopped and shown + ("" if done else gate.held) == want


def test_an_empty_stop_string_is_none():
  assert StopStrings([""]).push("abc") == ("abc", False)


# ---------------------------------------------------------------- the engine


def plain(tok: Tokenizer, request: Request, context: int, sharp: float) -> tuple[list[int], str, Finish]:
  """(tokens, text, why it ended)"""
  model, ids, drawn = FakeModel(VOCAB, context=context, sharp=sharp), list(request.ids), []
  sampler = Sampler(request.sampling, ids)
  while True:
    token = sampler(model.prefill(ids, 0)).token
    drawn.append(token)
    if token in tok.ends:
      drawn_text, stopped = slow_stop(whole(tok, drawn), list(request.stop))
      return drawn, drawn_text, Finish.STOP
    text, stopped = slow_stop(whole(tok, drawn), list(request.stop))
    if stopped:
      return drawn, text, Finish.STOP
    if len(drawn) == request.max_tokens or len(ids) == context:
      return drawn, text, Finish.LENGTH
    ids.append(token)


def whole(tok: Tokenizer, ids: list[int]) -> str:
  """Without a last character that may go on."""
  return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(tok.pieces[i] for i in ids))


class Heard:
  """What a listener heard."""

  def __init__(self) -> None:
    self.events: list[Event] = []

  def __call__(self, event: Event) -> None:
    assert not self.events or self.events[-1].finish is None, "an event after the last one"
    self.events.append(event)

  @property
  def tokens(self) -> list[int]:
    return [e.drawn.token for e in self.events if e.drawn]

  @property
  def text(self) -> str:
    return "".join(e.text for e in self.events)

  @property
  def finish(self) -> Finish | None:
    return self.events[-1].finish if self.events else None


PROMPTS = st.lists(st.integers(0, 9), min_size=1, max_size=30)
ALIKE = st.integers(1, 40).map(lambda n: [(3 * i) % 7 for i in range(n)])  # each is the beginning of a longer one
REQUESTS = st.builds(
  Request,
  ids=st.one_of(PROMPTS, ALIKE),
  max_tokens=st.one_of(st.none(), st.integers(1, 12)),
  sampling=st.builds(
    Sampling, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 3), frequency=st.sampled_from([0.0, 0.5])
  ),
  stop=st.lists(st.sampled_from(["e", "he", "world", " h", "\n"]), max_size=2).map(tuple),
)


@settings(max_examples=60)
@given(data=st.data(), slots=st.integers(1, 4), piece=st.integers(1, 16), context=st.integers(41, 60))
def test_every_request_has_the_text_of_a_plain_loop(
  tok: Tokenizer, data: st.DataObject, slots: int, piece: int, context: int
):
  """Whatever runs beside it, when it comes, in which slot, after which other prompt, who is cancelled."""
  sharp = 4.0
  engine = Engine(FakeModel(VOCAB, slots, context, sharp=sharp), tok, queue=100, piece=piece)
  jobs = []
  for request in data.draw(st.lists(REQUESTS, min_size=1, max_size=8)):
    for _ in range(data.draw(st.integers(0, 6))):
      engine.step()
    heard = Heard()
    jobs.append((engine.submit(request, heard), request, heard))
    if data.draw(st.integers(0, 5)) == 0:
      data.draw(st.sampled_from(jobs))[0].cancel()
  while engine.busy or engine.waiting:
    engine.step()
  for job, request, heard in jobs:
    tokens, text, finish = plain(tok, request, context, sharp)
    if heard.finish == Finish.CANCELLED:
      assert job.cancelled and tokens[: len(heard.tokens)] == heard.tokens and text.startswith(heard.text)
      continue
    assert (heard.tokens, heard.text, heard.finish) == (tokens, text, finish)
    assert job.tokens == len(tokens) and job.finished == finish
  assert sum(engine.counts.finished.values()) == len(jobs)


def endless(tok: Tokenizer) -> tuple[tuple[int, float], ...]:
  return tuple((i, -100.0) for i in tok.ends)


def run(engine: Engine, *requests: Request) -> list[Heard]:
  heard = [Heard() for _ in requests]
  for request, h in zip(requests, heard):
    engine.submit(request, h)
  while any(h.finish is None for h in heard):
    engine.step()
  return heard


def test_a_prompt_that_lies_in_a_cache_is_not_read_again(tok: Tokenizer):
  model = FakeModel(VOCAB, slots=2)
  engine = Engine(model, tok)
  greedy = Sampling(temperature=0)
  a, b = [1] * 20, [2] * 20
  first, _ = run(engine, Request(a, 5, greedy), Request(b, 5, greedy))
  model.calls.clear()
  # the next turn goes to the slot of the first, and reads what is new: of five tokens, the last was never decoded
  turn = [*a, *first.tokens, 7, 8]
  job = engine.submit(Request(turn, 3, greedy), Heard())
  engine.step()
  assert job.reused == 24 and model.calls[0] == ("prefill", 3)
  engine.submit(Request(b, 3, greedy), Heard())
  engine.step()
  assert [n for kind, n in model.calls if kind == "prefill"] == [3, 1]  # for its logits one token is read again
  assert engine.counts.reused == 24 + 19


def test_a_free_slot_that_was_unused_longest_is_taken(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB, slots=3), tok)
  for pair in (([1, 1], [2, 2]), ([3, 3], [4, 4])):
    for ids in pair:
      engine.submit(Request(ids, 1), Heard())
    while engine.busy or engine.waiting:
      engine.step()
  assert [slot.cached[0] for slot in engine.slots] == [4, 2, 3]


def test_who_is_alone_has_the_first_slot(tok: Tokenizer):
  """Unless the conversation lies elsewhere."""
  engine = Engine(FakeModel(VOCAB, slots=3), tok)
  for ids in ([1, 1], [2, 2]):
    engine.submit(Request(ids, 1), Heard())
  while engine.busy or engine.waiting:
    engine.step()
  run(engine, Request([3, 3], 1))
  assert [slot.cached[:1] for slot in engine.slots] == [[3], [2], []]
  run(engine, Request([2, 2, 2], 1))
  assert [slot.cached[:3] for slot in engine.slots] == [[3, 3], [2, 2, 2], []]


def test_long_prompts_are_read_in_pieces_while_others_go_on(tok: Tokenizer):
  model = FakeModel(VOCAB, slots=3)
  engine = Engine(model, tok, piece=10)
  text = Heard()
  engine.submit(Request([5], None, Sampling(bias=endless(tok))), text)
  engine.step()
  for ids in ([1] * 60, [2] * 40):
    engine.submit(Request(ids, 1), Heard())
  model.calls.clear()
  before = len(text.tokens)
  for _ in range(10):
    engine.step()
  assert [n for kind, n in model.calls if kind == "prefill"] == [10] * 10
  assert len(text.tokens) == before + 10, "one token a piece"


def test_short_prompts_are_read_together_while_another_waits(tok: Tokenizer):
  """As many as one piece is, though each has few tokens; where nobody waits for a token, one after the other."""
  model = FakeModel(VOCAB, slots=12)
  engine = Engine(model, tok, piece=64)
  said = [Counted() for _ in range(12)]
  engine.submit(Request([1, 2, 3], 40, Sampling(temperature=0)), said[0])
  engine.step()
  model.calls.clear()
  for i, heard in enumerate(said[1:]):
    engine.submit(Request([20 + i, 5, 6], 40, Sampling(temperature=0)), heard)
  engine.step()
  assert model.calls == [("prefill", 3)] * 4 + [("decode", 5)]
  engine.step()
  assert model.calls[5:] == [("prefill", 3)] * 4 + [("decode", 9)]


class Counted:
  def __call__(self, event: Event) -> None:
    assert event.finish is None


def test_cancelling_frees_the_slot_before_the_next_token(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB), tok)
  first, second = Heard(), Heard()
  job = engine.submit(Request([1], sampling=Sampling(seed=5)), first)  # which does not end with its first tokens
  engine.submit(Request([2], 2), second)
  for _ in range(3):
    engine.step()
  tokens = len(first.tokens)
  job.cancel()
  engine.step()
  assert first.finish == Finish.CANCELLED and len(first.tokens) == tokens and second.tokens
  waiting = Heard()
  job = engine.submit(Request([3]), waiting)
  job.cancel()
  engine.step()
  assert waiting.events == [Event(finish=Finish.CANCELLED)]


def test_an_unfinished_character_never_leaves(tok: Tokenizer):
  class Says(FakeModel):
    """The bytes of 🙂, and then again."""

    def logits(self, slot: int, end: int) -> np.ndarray:
      return np.where(np.arange(VOCAB) == said[(end - 1) % 4], 9.0, 0.0).astype(np.float32)

  said = [next(i for i, piece in enumerate(tok.pieces) if piece == bytes([b])) for b in "🙂".encode()]
  for limit in range(1, 9):
    (heard,) = run(Engine(Says(VOCAB), tok), Request([1], limit, Sampling(temperature=0)))
    assert heard.text == "🙂" * (limit // 4) and heard.finish == Finish.LENGTH
    assert all(e.text in ("", "🙂") for e in heard.events)


def test_the_end_of_the_context(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB, context=12), tok)
  for size in (1, 11, 12):
    (heard,) = run(engine, Request([1] * size, None, Sampling(bias=endless(tok))))
    assert heard.finish == Finish.LENGTH and len(heard.tokens) == 12 - size + 1  # the last needs no place


def test_tokens_that_the_tokenizer_lacks_are_never_drawn(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB + 500, sharp=8.0), tok)
  (heard,) = run(engine, Request([1], 30))
  assert max(heard.tokens) < VOCAB


class OnlyHello:
  """ "hello", and then an end token."""

  def __init__(self, tok: Tokenizer, closes: bool):
    self.tok, self.closes, self.rest = tok, closes, [*tok.encode("hello", bos=False), *tok.ends]

  def allowed(self) -> np.ndarray:
    return np.arange(self.rest[0] + 1) == self.rest[0]  # shorter than the vocabulary

  def take(self, token: int) -> bool:
    assert token == self.rest.pop(0)
    return not (self.closes and len(self.rest) == 1)


@pytest.mark.parametrize("closes", [False, True])
def test_a_grammar(tok: Tokenizer, closes: bool):
  (heard,) = run(Engine(FakeModel(VOCAB), tok), Request([1], 50, grammar=OnlyHello(tok, closes)))
  assert heard.text == "hello" and heard.finish == Finish.STOP


def test_an_error_ends_its_requests_and_no_other(tok: Tokenizer):
  class Fails(FakeModel):
    broken = False

    def decode(self, tokens: list[int], positions: list[int]) -> np.ndarray:
      if self.broken:
        raise RuntimeError("the device is gone")
      return super().decode(tokens, positions)

    def prefill(self, ids: list[int], pos: int, slot: int = 0) -> np.ndarray:
      if ids[0] == 66:
        raise RuntimeError("a bad prompt")
      return super().prefill(ids, pos, slot)

  model = Fails(VOCAB, slots=2)
  engine = Engine(model, tok)
  bad, good = run(engine, Request([66]), Request([5], 4, Sampling(seed=0)))
  assert bad.finish == Finish.ERROR and bad.events[-1].error == "a bad prompt"
  assert good.finish != Finish.ERROR
  model.broken = True
  (heard,) = run(engine, Request([1, 2], 4, Sampling(temperature=0)))
  assert heard.events[-1].error == "the device is gone" and engine.slots[0].cached == []
  model.broken = False
  assert run(engine, Request([1, 2], 4, Sampling(temperature=0)))[0].finish != Finish.ERROR

  class Blind(FakeModel):
    def logits(self, slot: int, end: int) -> np.ndarray:
      return np.full(VOCAB, np.nan, np.float32)

  (heard,) = run(Engine(Blind(VOCAB), tok), Request([1]))
  assert heard.finish == Finish.ERROR and "logits hold NaN" in heard.events[-1].error


def test_what_is_refused(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB, context=12), tok, queue=2)
  with pytest.raises(PromptError, match=r"the prompt is empty\n  fix: at least one token"):
    engine.submit(Request([]), Heard())
  with pytest.raises(PromptTooLong, match=r"13 tokens do not fit into the context of 12\n  fix: a shorter prompt"):
    engine.submit(Request([1] * 13), Heard())
  with pytest.raises(TokenError, match="token 300 is not in the vocabulary"):
    engine.submit(Request([300]), Heard())
  for _ in range(2 + len(engine.slots)):  # for which there is a free slot does not wait
    job = engine.submit(Request([1]), Heard())
  with pytest.raises(QueueFull, match=r"2 requests wait already\n  fix: ask again later"):
    engine.submit(Request([1]), Heard())
  job.cancel()  # nor does what was cancelled
  engine.submit(Request([1]), Heard())
  with pytest.raises(QueueFull, match="2 requests wait already"):
    engine.submit(Request([1]), Heard())
  engine.step()
  with pytest.raises(QueueFull, match="2 requests wait already"):
    engine.submit(Request([1]), Heard())
  engine.close()
  with pytest.raises(EngineClosed, match=r"the engine has ended\n  fix: "):
    engine.submit(Request([1]), Heard())


def test_a_stream_with_and_without_a_thread(tok: Tokenizer):
  request = Request([1, 2, 3], 9, Sampling(seed=5))
  alone, threaded = Engine(FakeModel(VOCAB), tok), Engine(FakeModel(VOCAB, slots=2), tok)
  threaded.start()
  assert list(alone.stream(request)) == (events := list(threaded.stream(request))) and len(events) > 2
  stream = alone.stream(request)  # one without a seed may end with its first token
  next(stream)
  stream.close()
  assert alone.busy == 0 and alone.counts.finished[Finish.CANCELLED] == 1
  threaded.close()


def test_many_threads(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB, slots=4), tok)
  engine.start()
  requests = [Request([i % 5, i], 8, Sampling(seed=i)) for i in range(24)]
  found: dict[int, list[Event]] = {}

  def ask(i: int) -> None:
    found[i] = list(engine.stream(requests[i]))

  threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
  for t in threads:
    t.start()
  for t in threads:
    t.join()
  for i, request in enumerate(requests):
    assert [e.drawn.token for e in found[i] if e.drawn] == plain(tok, request, 200, 2.0)[0]
  engine.close()


def test_closing_ends_what_runs_and_what_waits(tok: Tokenizer):
  engine = Engine(FakeModel(VOCAB, seconds=0.001), tok)
  engine.start()
  heard = [Heard(), Heard()]
  for h in heard:
    engine.submit(Request([1], None, Sampling(bias=endless(tok))), h)
  engine.close()
  assert [h.finish for h in heard] == [Finish.CANCELLED] * 2


def test_a_fault_of_the_engine_leaves_nobody_waiting(tok: Tokenizer, monkeypatch: pytest.MonkeyPatch):
  engine = Engine(FakeModel(VOCAB), tok)
  monkeypatch.setattr(engine, "decode", lambda: 1 / 0)
  monkeypatch.setattr(threading, "excepthook", lambda args: None)
  engine.start()
  assert list(engine.stream(Request([1])))[-1].finish == Finish.CANCELLED


def test_the_fake_model_notices_what_it_is_for():
  model = FakeModel(VOCAB)
  with pytest.raises(AssertionError, match="never written"):
    model.prefill([1], 3)
  assert (model.prefill([1, 2], 0) != FakeModel(VOCAB).prefill([2, 1], 0)).any()


@pytest.mark.parametrize("piece", [1, 3, None])
def test_a_prompt_is_scored_in_pieces_as_in_one(tok: Tokenizer, piece: int | None):
  ids = [5, 9, 9, 2, 31, 7, 7]
  engine = Engine(FakeModel(VOCAB, slots=2), tok, piece=piece)
  engine.submit(Request([3, 4, 5], 9, Sampling(temperature=0)), lambda event: None)  # beside another text
  first, *_ = engine.stream(Request(ids, 2, Sampling(temperature=0, logprobs=1), scored=True))
  x = FakeModel(VOCAB).embed(ids, 0)[:, : len(tok.names)].astype(np.float64)
  x -= np.log(np.exp(x).sum(-1, keepdims=True))
  assert [d.token for d in first.prompt] == ids and first.prompt[0].logprob is None
  np.testing.assert_allclose([d.logprob for d in first.prompt[1:]], x[np.arange(len(ids) - 1), ids[1:]])


# ---------------------------------------------------------------- embeddings


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_beside_texts(tok: Tokenizer, pooling: str):
  """Of every token of a prompt, piece by piece, though most of it lies in a slot; the texts beside it stay the same."""
  model = FakeModel(VOCAB, slots=2)
  model.c = replace(model.c, pooling=pooling)
  engine, ids = Engine(model, tok, piece=8), [7, 8, 9, 10] * 6
  want = plain(tok, Request(ids, 6, Sampling(seed=1)), 200, 2.0)
  alone = FakeModel(VOCAB)
  states = alone.embed(ids, 0)
  pooled = states[-1] if pooling == "last" else states.astype(np.float64).mean(0)
  for _ in range(2):
    text, vector = Heard(), Heard()
    engine.submit(Request(ids, 6, Sampling(seed=1)), text)
    job = engine.submit(Request(ids, embed=True), vector)
    while engine.busy or engine.waiting:
      engine.step()
    (event,) = vector.events
    assert event.finish == Finish.STOP and job.reused == 0 and event.embedding is not None
    np.testing.assert_allclose(event.embedding, pooled / np.linalg.norm(pooled), rtol=1e-5, atol=1e-6)
    assert text.text == want[1]
