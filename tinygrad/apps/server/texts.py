"""Between the engine's thread and the server's loop: a call's texts, streams of their events, clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

from tinygrad.apps import AppError
from tinygrad.apps.generation import Engine, Event, Job, Request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Mailbox:
  """What the engine's thread says to the server's loop, which is woken once for all that has come meanwhile."""

  def __init__(self) -> None:
    self.loop, self.waiting, self.woken = asyncio.get_running_loop(), deque[tuple[Texts, int, Event]](), False

  def post(self, texts: Texts, i: int, event: Event) -> None:
    self.waiting.append((texts, i, event))
    if not self.woken:
      self.woken = True
      self.loop.call_soon_threadsafe(self.deliver)

  def deliver(self) -> None:
    self.woken = False  # first: what comes from now on wakes it again
    while self.waiting:
      texts, i, event = self.waiting.popleft()
      texts.arrived.append((i, event))
      if texts.waiter is not None and not texts.waiter.done():
        texts.waiter.set_result(None)


class Texts:
  """The texts of one call, submitted together, `count` of each prompt one after the other; `mailbox` is the server's.
  Raises what `Engine.submit` does, and AppError for more than slots and queue hold."""

  def __init__(self, engine: Engine, mailbox: Mailbox, requests: Sequence[Request], count: int = 1):
    self.mailbox, self.arrived, self.count = mailbox, deque[tuple[int, Event]](), count
    self.waiter: asyncio.Future[None] | None = None
    self.jobs: list[Job] = []
    if len(requests) > (most := engine.limit + len(engine.slots)):  # of which it would never take all
      problem = f"{len(requests)} texts in one request, and at most {most} are taken at once"
      raise AppError(f"{problem}\n  fix: several requests, or a larger --queue")
    try:
      for i, request in enumerate(requests):
        self.jobs.append(engine.submit(request, partial(mailbox.post, self, i)))
    except BaseException:
      self.cancel()
      raise

  def cancel(self) -> None:
    for job in self.jobs:
      if job.finished is None:
        job.cancel()

  async def events(self) -> AsyncIterator[list[tuple[int, Event]]]:
    """(which text, its event), as many as have come, until all have ended."""
    left = len(self.jobs)
    while left:
      if not self.arrived:
        self.waiter = self.mailbox.loop.create_future()
        await self.waiter
      found = [*self.arrived]
      self.arrived.clear()
      left -= sum(event.finish is not None for _, event in found)
      yield found

  @property
  def usage(self) -> dict[str, Any]:
    """A prompt counts once, however many texts it has, as of OpenAI."""
    prompts = self.jobs[:: self.count]
    read, made = sum(len(job.request.ids) for job in prompts), sum(job.tokens for job in self.jobs)
    reused = {"cached_tokens": sum(job.reused for job in prompts)}
    counts = {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
    return counts | {"prompt_tokens_details": reused}


async def leaving(receive: Receive, cancel: Callable[[], None]) -> None:
  """Waits until the client has left."""
  while (await receive())["type"] != "http.disconnect":
    pass
  cancel()


class OneText:
  """JSON of a value in which one text is another each time: what is before that and after it is written once."""

  def __init__(self, value: Callable[[str], Any]):
    self.before, self.after = compact(value("\0")).split(compact("\0"))

  def __call__(self, text: str) -> str:
    return self.before + compact(text) + self.after


def compact(value: Any) -> str:
  return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class EventStream:
  """An answer of server-sent events, each with one JSON value, or text that is written; those that come together are
  sent together. A client that leaves cancels its texts."""

  def __init__(self, values: AsyncIterator[list[Any]], texts: Texts):
    self.values, self.texts = values, texts

  async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
    watcher = asyncio.create_task(leaving(receive, self.texts.cancel))
    kind = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
    try:
      await send({"type": "http.response.start", "status": 200, "headers": [*kind, (b"x-accel-buffering", b"no")]})
      async for values in self.values:
        data = "".join(f"data: {value if isinstance(value, str) else compact(value)}\n\n" for value in values)
        if data:
          await send({"type": "http.response.body", "body": data.encode(), "more_body": True})
      await send({"type": "http.response.body", "body": b""})
    finally:
      watcher.cancel()
      self.texts.cancel()
