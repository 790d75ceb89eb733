"""Text for many requests at once, over the slots of one model's KV cache (docs/serve.md).

An `Engine` takes requests from any thread; one thread, that which calls `step` or the one that `start` makes, owns the
model. A step gives waiting requests to free slots, reads one piece of a prompt, and decodes one token of every text.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tinygrad.apps import AppError
from tinygrad.apps.sampling import Drawn, Sampler, Sampling, SamplingError, draw, reported
from tinygrad.apps.tokenizer import TextStream, Tokenizer, check_tokens

PIECE, WHOLE = 128, 512  # tokens of a prompt that one step reads, while texts of others wait and while none does
LEAST = 16  # what a shorter piece counts for


class Sized(Protocol):
  @property
  def context(self) -> int: ...
  @property
  def pooling(self) -> str: ...


class SlotModel(Protocol):
  """What an engine needs of `apps.model.LanguageModel`. Each slot has a KV cache of its own."""

  @property
  def slots(self) -> int: ...
  @property
  def c(self) -> Sized: ...
  def prefill(self, ids: Sequence[int], pos: int, slot: int) -> NDArray[np.float32]:
    """Writes `ids` at positions from `pos` on; logits [vocab] after the last."""

  def embed(self, ids: Sequence[int], pos: int, slot: int) -> NDArray[np.float32]:
    """Writes as `prefill` does; the states [tokens, dim] after each."""

  def score(self, ids: Sequence[int], pos: int, slot: int) -> NDArray[np.float32]:
    """Writes as `prefill` does; the logits [tokens, vocab] after each."""

  def decode(self, tokens: Sequence[int], positions: Sequence[int]) -> NDArray[np.float32]:
    """One token a slot; -1 is the position of an idle one. Logits [slots, vocab]."""


class Grammar(Protocol):
  """What a text may be; it is told each token and serves one text."""

  def allowed(self) -> NDArray[np.bool_]:
    """[at most vocab]: the tokens that may come next, an end token among them where the text may end."""

  def take(self, token: int) -> bool:
    """The text goes on with `token`; whether it may go on after it."""


class Finish(StrEnum):
  """Why a text ended: at an end token, a stop string or the end of its grammar; at its limit or the end of the
  context; by `Job.cancel`; by an error, which the last event names."""

  STOP = "stop"
  LENGTH = "length"
  CANCELLED = "cancelled"
  ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
  """`ids`: the prompt. `max_tokens` None: up to the end of the context. `stop`: the text ends before any of these.
  `embed`: nothing is said; the one event has the prompt's embedding. `scored`: the first event has how likely each
  token of the prompt was. `shown`: control tokens whose spelling is text. `ends`: where it ends, if that is not the
  tokenizer's."""

  ids: Sequence[int]
  max_tokens: int | None = None
  sampling: Sampling = Sampling()
  stop: tuple[str, ...] = ()
  grammar: Grammar | None = None
  embed: bool = False
  scored: bool = False
  shown: frozenset[int] = frozenset()
  ends: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Event:
  """Some text, the token that was drawn (whose text may come later, or with it), and in the last event why.
  `embedding`: [dim], of length 1. `prompt`: its tokens, of which the first has no log-probability."""

  text: str = ""
  drawn: Drawn | None = None
  finish: Finish | None = None
  error: str = ""
  embedding: NDArray[np.float32] | None = None
  prompt: tuple[Drawn, ...] = ()


Listener = Callable[[Event], None]


class QueueFull(AppError):
  """As many requests wait as may."""


class EngineClosed(AppError):
  """The engine has ended."""


class PromptError(AppError):
  """A prompt that has no tokens."""


class PromptTooLong(PromptError):
  """A prompt that has more tokens than the context holds: names the numbers and a fix."""


class StopStrings:
  """Text as it comes, up to the first stop string that is complete; what may be the beginning of one waits."""

  def __init__(self, stops: Sequence[str]):
    self.stops, self.held = [s for s in stops if s], ""

  def push(self, text: str) -> tuple[str, bool]:
    """(what may be shown, whether a stop string has come)"""
    if not self.stops:
      return text, False
    self.held += text
    found = [(at + len(s), at) for s in self.stops if (at := self.held.find(s)) >= 0]
    if found:
      return self.held[: min(found)[1]], True
    longest = max((len(s) - 1 for s in self.stops), default=0)
    waits = next(n for n in range(min(longest, len(self.held)), -1, -1) if self.begins(self.held[len(self.held) - n :]))
    shown, self.held = self.held[: len(self.held) - waits], self.held[len(self.held) - waits :]
    return shown, False

  def begins(self, end: str) -> bool:
    return not end or any(s.startswith(end) for s in self.stops)


@dataclass(slots=True)
class Job:
  """A request on its way. `cancel` may be called from any thread; the others are for reading."""

  request: Request
  listener: Listener
  cancel: Callable[[], None] = field(init=False)
  reused: int = 0  # tokens of the prompt that were in the slot's cache
  tokens: int = 0  # drawn
  cancelled: bool = False
  finished: Finish | None = None


@dataclass(slots=True)
class Text:
  """What a job needs while it has a slot. `unread`: the rest of its prompt. `next`: drawn, and not yet in the cache."""

  job: Job
  unread: deque[int]
  sampler: Sampler
  stream: TextStream
  stops: StopStrings
  next: int = -1
  pooled: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))  # of an embedding, so far
  scores: list[Drawn] = field(default_factory=list)  # of a prompt that is scored, so far
  after: NDArray[np.float32] | None = None  # the logits after these


@dataclass(slots=True)
class Slot:
  """`cached[i]` is the token at position i of this slot's KV cache; `used`: when it was last given to a request."""

  number: int
  cached: list[int] = field(default_factory=list)
  text: Text | None = None
  used: int = 0

  def shared(self, ids: Sequence[int]) -> int:
    """How many tokens of a prompt lie here; its last one is read in any case, for its logits."""
    end = min(len(self.cached), len(ids) - 1)
    return next((i for i in range(end) if self.cached[i] != ids[i]), end)


@dataclass(slots=True)
class Counts:
  """What an engine has done: tokens of prompts read and reused, tokens decoded, steps of decoding, seconds of both,
  requests by how they ended, and those that ended since the context was full."""

  read: int = 0
  reused: int = 0
  read_seconds: float = 0.0
  decoded: int = 0
  steps: int = 0
  decode_seconds: float = 0.0
  finished: dict[Finish, int] = field(default_factory=lambda: dict.fromkeys(Finish, 0))
  full: int = 0


class Engine:
  """`submit` requests from any thread; their events come from the thread that owns the model.

  The tokens of a request depend on its prompt, sampling and seed, not on what runs beside it.
  """

  def __init__(self, model: SlotModel, tokenizer: Tokenizer, queue: int = 64, piece: int | None = None):
    self.model, self.tokenizer, self.limit = model, tokenizer, queue
    self.piece, self.whole = piece or PIECE, piece or WHOLE
    self.slots = [Slot(i) for i in range(model.slots)]
    self.counts, self.clock, self.turn = Counts(), itertools.count(1), 0
    self.waiting: deque[Job] = deque()
    self.changed = threading.Condition()  # guards `waiting` and `closed`
    self.closed, self.thread = False, threading.Thread(target=self.run, name="engine", daemon=True)

  # ---------------------------------------------------------------- any thread

  def submit(self, request: Request, listener: Listener) -> Job:
    """`listener` is called with each event and must not raise. Raises QueueFull, EngineClosed, and as `check`."""
    self.check(request)
    job = Job(request, listener)
    job.cancel = lambda: self.cancel(job)
    with self.changed:
      if self.closed:
        raise EngineClosed("the engine has ended\n  fix: ask another server, or start this one again")
      wait = sum(not job.cancelled for job in self.waiting) + self.busy - len(self.slots)  # the others have free slots
      if wait >= self.limit:
        raise QueueFull(f"{self.limit} requests wait already\n  fix: ask again later, or a larger --queue")
      self.waiting.append(job)
      self.changed.notify()
    return job

  def check(self, request: Request) -> None:
    """Raises PromptError, PromptTooLong, TokenError."""
    room = self.model.c.context
    if not request.ids:
      raise PromptError("the prompt is empty\n  fix: at least one token, such as the tokenizer's `bos`")
    if len(request.ids) > room:
      fix = "a shorter prompt, or a larger --ctx, up to the model's own context length"
      raise PromptTooLong(f"{len(request.ids)} tokens do not fit into the context of {room}\n  fix: {fix}")
    check_tokens([*request.ids, *(token for token, _ in request.sampling.bias)], len(self.tokenizer.names))

  def cancel(self, job: Job) -> None:
    job.cancelled = True
    with self.changed:
      self.changed.notify()

  def start(self) -> None:
    self.thread.start()

  def close(self) -> None:
    """Cancels every request, and ends the thread."""
    with self.changed:
      self.closed = True
      self.changed.notify()
    if self.thread.is_alive():
      self.thread.join()
    else:
      self.cancel_all()

  def stream(self, request: Request) -> Generator[Event, None, None]:
    """The events of a request. Where no thread was started, the caller's takes the steps; leaving it cancels."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    job = self.submit(request, events.put)
    try:
      finished = None
      while finished is None:
        while events.empty() and not self.thread.is_alive():
          self.step()
        event = events.get()
        finished = event.finish
        yield event
    finally:
      job.cancel()
      if not self.thread.is_alive():
        self.drop_cancelled()

  @property
  def busy(self) -> int:
    return sum(slot.text is not None for slot in self.slots)

  # ---------------------------------------------------------------- the thread that owns the model

  def run(self) -> None:
    """Steps until `close`."""
    try:
      while True:
        with self.changed:
          self.changed.wait_for(lambda: self.closed or self.waiting or self.busy)
          if self.closed:
            return
        self.step()
    finally:  # also after an error of our own: nobody waits for ever
      self.closed = True
      self.cancel_all()

  def step(self) -> None:
    self.drop_cancelled()
    self.admit()
    self.read()
    self.decode()

  def cancel_all(self) -> None:
    with self.changed:
      for job in [*self.waiting, *(slot.text.job for slot in self.slots if slot.text)]:
        job.cancelled = True
    self.drop_cancelled()

  def drop_cancelled(self) -> None:
    with self.changed:
      gone = [job for job in self.waiting if job.cancelled]
      self.waiting = deque(job for job in self.waiting if not job.cancelled)
    for job in gone:
      self.end(job, Event(finish=Finish.CANCELLED))
    for slot in self.slots:
      if slot.text is not None and slot.text.job.cancelled:
        self.free(slot, Event(finish=Finish.CANCELLED))

  def end(self, job: Job, last: Event) -> None:
    assert last.finish is not None
    self.counts.finished[last.finish] += 1
    job.finished = last.finish
    job.listener(last)

  def free(self, slot: Slot, last: Event) -> None:
    text, slot.text = slot.text, None
    assert text is not None
    self.end(text.job, last)

  def admit(self) -> None:
    """Waiting requests, in their order, each to the free slot that has most of its prompt, or was unused longest; where
    nobody else is there to the first, since the rows of the slots before it are decoded with a slot's."""
    while free := [slot for slot in self.slots if slot.text is None]:
      with self.changed:
        if not self.waiting:
          return
        job = self.waiting.popleft()
        alone = len(free) == len(self.slots) and not self.waiting
      ids = job.request.ids
      slot = max(free, key=lambda slot: (slot.shared(ids), 0 if alone else -slot.used, -slot.number))
      every = job.request.embed or job.request.scored  # what is made of each token counts
      job.reused = 0 if every else slot.shared(ids)
      self.counts.reused += job.reused
      del slot.cached[job.reused :]
      slot.used = next(self.clock)
      sampler, stream = Sampler(job.request.sampling, ids), TextStream(self.tokenizer, ids[-1], job.request.shown)
      slot.text = Text(job, deque(ids[job.reused :]), sampler, stream, StopStrings(job.request.stop))

  def read(self) -> None:
    """A piece of one prompt, or short ones until they are as much; of several, each in its turn."""
    left = self.piece
    while left > 0 and (unread := [slot for slot in self.slots if slot.text and slot.text.unread]):
      waits = len(unread) < self.busy  # some text for its next token
      slot = min(unread, key=lambda slot: (slot.number - self.turn) % len(self.slots))
      left -= max(self.read_piece(slot, waits), LEAST)
      if not waits:
        return

  def read_piece(self, slot: Slot, waits: bool) -> int:
    """How many tokens of a prompt were read."""
    text, self.turn = slot.text, slot.number + 1
    assert text is not None
    most = self.piece if waits or text.job.request.scored else self.whole
    piece = [text.unread.popleft() for _ in range(min(most, len(text.unread)))]
    start = time.perf_counter()
    try:
      request = text.job.request
      take = self.model.embed if request.embed else self.model.score if request.scored else self.model.prefill
      found = take(piece, len(slot.cached), slot.number)
    except Exception as e:
      slot.cached.clear()
      self.free(slot, Event(finish=Finish.ERROR, error=str(e)))
      return len(piece)
    slot.cached += piece
    self.counts.read += len(piece)
    self.counts.read_seconds += time.perf_counter() - start
    if request.embed:
      self.pool(slot, text, found.astype(np.float64))
      return len(piece)
    if request.scored:
      found = self.score(text, piece, found)
    if not text.unread and request.max_tokens == 0:
      self.free(slot, Event(finish=Finish.LENGTH))
    elif not text.unread:
      self.draw([(slot, text)], found[np.newaxis])
    return len(piece)

  def score(self, text: Text, piece: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Notes how likely the tokens of a piece were, and tells of all at the end of the prompt; the last logits."""
    logits = logits[:, : len(self.tokenizer.names)]
    for token, after in zip(piece, logits):
      before, text.after = text.after, after
      most = text.job.request.sampling.logprobs
      text.scores.append(Drawn(token) if before is None else reported(before, token, most))
    if not text.unread:
      text.job.listener(Event(prompt=tuple(text.scores)))
    assert text.after is not None
    return text.after

  def pool(self, slot: Slot, text: Text, states: NDArray[np.float64]) -> None:
    """Notes the states of a piece, and at the end of the text the embedding: their mean, or the last, of length 1."""
    text.pooled = states[-1] if self.model.c.pooling == "last" else text.pooled + states.sum(0)
    if not text.unread:
      length = float(np.sqrt(np.square(text.pooled).sum())) or 1.0
      self.free(slot, Event(finish=Finish.STOP, embedding=(text.pooled / length).astype(np.float32)))

  def decode(self) -> None:
    """One token more for every text that has one."""
    texts = [(slot, slot.text) for slot in self.slots if slot.text and not slot.text.unread]
    if not texts:
      return
    tokens, positions = [0] * len(self.slots), [-1] * len(self.slots)
    for slot, text in texts:
      tokens[slot.number], positions[slot.number] = text.next, len(slot.cached)
    start = time.perf_counter()
    try:
      logits = self.model.decode(tokens, positions)
    except Exception as e:
      for slot, _ in texts:
        slot.cached.clear()
        self.free(slot, Event(finish=Finish.ERROR, error=str(e)))
      return
    self.counts.decode_seconds += time.perf_counter() - start
    self.counts.steps += 1
    for slot, text in texts:
      slot.cached.append(text.next)
    self.draw(texts, logits[[slot.number for slot, _ in texts]])
    self.counts.decoded += len(texts)

  def draw(self, texts: Sequence[tuple[Slot, Text]], logits: NDArray[np.float32]) -> None:
    """The next token of each text, of logits [texts, vocab], and its event."""
    logits = logits[:, : len(self.tokenizer.names)]  # a model may have more, that mean nothing
    masks: list[NDArray[np.bool_] | None] = []
    able: list[int] = []
    for i, (slot, text) in enumerate(texts):
      try:
        masks.append(allowed(text.job.request.grammar, logits.shape[1]))
        able.append(i)
      except AppError as e:
        self.free(slot, Event(finish=Finish.ERROR, error=str(e)))
    for i, drawn in zip(able, draw([texts[i][1].sampler for i in able], logits[able], masks)):
      self.go_on(*texts[i], drawn)

  def go_on(self, slot: Slot, text: Text, drawn: Drawn | SamplingError) -> None:
    """A text with the token that was drawn."""
    request = text.job.request
    try:
      if isinstance(drawn, SamplingError):
        raise drawn
      goes_on = request.grammar is None or request.grammar.take(drawn.token)
    except AppError as e:
      self.free(slot, Event(finish=Finish.ERROR, error=str(e)))
      return
    text.job.tokens += 1
    text.next = drawn.token
    if drawn.token in (self.tokenizer.ends if request.ends is None else request.ends):
      self.free(slot, Event(text.stops.held, drawn, Finish.STOP))
      return
    shown, stopped = text.stops.push(text.stream.push(drawn.token))
    enough, full = text.job.tokens == request.max_tokens, len(slot.cached) == self.model.c.context
    if stopped:
      self.free(slot, Event(shown, drawn, Finish.STOP))
    elif not goes_on or enough or full:
      self.counts.full += goes_on and not enough
      self.free(slot, Event(shown + text.stops.held, drawn, Finish.LENGTH if goes_on else Finish.STOP))
    else:
      text.job.listener(Event(shown, drawn))


def allowed(grammar: Grammar | None, vocab: int) -> NDArray[np.bool_] | None:
  """[vocab] of what a grammar knows."""
  if grammar is None:
    return None
  known = grammar.allowed()[:vocab]
  return np.concatenate((known, np.zeros(vocab - len(known), bool)))
