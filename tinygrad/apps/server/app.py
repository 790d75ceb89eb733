"""The routes of the server, what guards them, and the answers of each."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import sys
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tinygrad.apps import AppError
from tinygrad.apps.generation import Engine, EngineClosed, Event, Finish, PromptTooLong, QueueFull, Request
from tinygrad.apps.grammar import Grammars
from tinygrad.apps.reasoning import Marks, reasoning
from tinygrad.apps.sampling import Drawn, Sampling
from tinygrad.apps.server.answers import ChatText, chat_logprobs, completion_logprobs, letters, message_of
from tinygrad.apps.server.calls import ChatCall, CompletionCall, TextCall, read_chat, read_completion, read_embedding
from tinygrad.apps.server.fields import ApiError, Fields, parse_json
from tinygrad.apps.server.metrics import Metrics
from tinygrad.apps.server.texts import EventStream, Mailbox, OneText, Texts, leaving
from tinygrad.apps.server.tools import call_grammar, call_syntax, in_lark, tools_in_words
from tinygrad.helpers.lazy import LazyModule

applications, exceptions, requests, responses, routing = (
  LazyModule(f"starlette.{name}") for name in ("applications", "exceptions", "requests", "responses", "routing")
)
PAGE = Path(__file__).with_name("page.html")
LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}
BODY_SECONDS = 30  # in which a body has to have come
FAILURES = (Finish.ERROR, Finish.CANCELLED)
Handler = Callable[["Server", Fields, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Served:
  """`name`: of the model. `defaults`: for what a call does not say. `key`: which clients have to send. `local`: only
  requests to this machine by its loopback names are answered, so that no page of another site reaches it by a name of
  its own. `body_limit`: bytes."""

  name: str
  defaults: Sampling = Sampling()
  key: str | None = None
  local: bool = True
  body_limit: int = 8 << 20


class Server:
  """Answers by one engine, whose thread it starts and ends."""

  def __init__(self, engine: Engine, served: Served):
    self.engine, self.served, self.created = engine, served, int(time.time())
    self.tokenizer, self.grammars = engine.tokenizer, Grammars(engine.tokenizer)
    self.syntax, self.marks = call_syntax(engine.tokenizer.template), Marks.of(engine.tokenizer)
    self.metrics = Metrics(engine)
    self.page, self.policy = chat_page()
    self.mailbox: Mailbox  # when there is a loop
    self.reading: set[asyncio.Timeout] = set()  # bodies that are on their way

  def app(self) -> Any:
    def posts(path: str, handler: Handler) -> Any:
      return routing.Route(path, partial(self.guarded, handler=handler), methods=["POST"])

    def gets(path: str, handler: Callable[[Any], Any]) -> Any:
      return routing.Route(path, partial(self.checked, handler=handler), methods=["GET"])

    routes = [
      posts("/v1/chat/completions", Server.chat),
      posts("/v1/completions", Server.completions),
      posts("/v1/embeddings", Server.embeddings),
      gets("/v1/models", lambda _: {"object": "list", "data": [self.about]}),
      gets("/v1/models/{name:path}", lambda request: self.model(request.path_params["name"])),
      gets("/metrics", lambda _: self.metrics_page()),
      routing.Route("/health", self.health, methods=["GET"]),
      routing.Route("/", self.home, methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {exceptions.HTTPException: unrouted, Exception: self.broken}
    return applications.Starlette(routes=routes, exception_handlers=handlers, lifespan=self.lifespan)

  @asynccontextmanager
  async def lifespan(self, _: Any) -> AsyncIterator[None]:
    self.mailbox = Mailbox()
    self.engine.start()
    yield
    await asyncio.to_thread(self.engine.close)

  async def end(self) -> None:
    """Ends texts, which say so, and waits for no body."""
    await asyncio.to_thread(self.engine.close)
    for timeout in self.reading:
      if not timeout.expired():
        timeout.reschedule(0)

  # ---------------------------------------------------------------- guards

  def check_client(self, request: Any) -> None:
    default = "localhost" if request.scope["http_version"] == "1.0" else ""  # which may leave it out
    host = re.sub(r":[0-9]+$", "", request.headers.get("host", default)).lower()
    if self.served.local and host not in LOOPBACK:
      raise ApiError(f"this server answers to {', '.join(sorted(LOOPBACK))} only", code="wrong_host", status=403)
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    wanted = self.served.key
    right = wanted is None or hmac.compare_digest(given.strip().encode("latin-1"), wanted.encode())
    if not right or (wanted is not None and scheme.lower() != "bearer"):
      raise ApiError("the API key is missing or wrong", code="invalid_api_key", status=401, kind="authentication_error")

  async def checked(self, request: Any, handler: Callable[[Any], Any]) -> Any:
    try:
      self.check_client(request)
      value = handler(request)
      return self.json(value) if isinstance(value, dict) else value
    except ApiError as e:
      return self.error(request, e)

  async def guarded(self, request: Any, handler: Handler) -> Any:
    """A handler's answer to the JSON object of a request; what is wrong with either, in OpenAI's shape."""
    try:
      self.check_client(request)
      answer = await handler(self, Fields.of(parse_json(await self.body(request))), request)
      answer = self.json(answer) if isinstance(answer, dict) else answer
      self.metrics.answered.labels(route_of(request), 200).inc()
      return answer
    except ApiError as e:
      return self.error(request, e)
    except QueueFull as e:
      return self.error(request, ApiError(in_line(e), code="queue_full", status=429, kind="rate_limit_error"))
    except EngineClosed as e:
      return self.error(request, ApiError(in_line(e), code="engine_closed", status=503, kind="server_error"))
    except PromptTooLong as e:
      return self.error(request, ApiError(in_line(e), code="context_length_exceeded"))
    except AppError as e:
      return self.error(request, ApiError(in_line(e)))

  async def body(self, request: Any) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which a page of another site cannot send unasked
      raise ApiError("the content type is not application/json", code="wrong_content_type", status=415)
    body, limit = bytearray(), self.served.body_limit
    too_long = ApiError(f"the body has more than {limit} bytes", code="body_too_long", status=413)
    if request.headers.get("content-length", "").isdecimal() and int(request.headers["content-length"][:20]) > limit:
      raise too_long
    try:
      async with asyncio.timeout(BODY_SECONDS) as timeout:
        self.reading.add(timeout)
        try:
          async for part in request.stream():
            body += part
            if len(body) > limit:
              raise too_long
        finally:
          self.reading.discard(timeout)
    except requests.ClientDisconnect as e:  # who reads no answer
      raise ApiError("the client left before its body was whole", code="client_left", status=499) from e
    except TimeoutError as e:
      if self.engine.closed:
        raise EngineClosed("the server ends, and the body is not whole\n  fix: ask again later") from e
      raise ApiError(f"the body did not come within {BODY_SECONDS} s", code="body_timeout", status=408) from e
    return bytes(body)

  def json(self, value: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Any:
    return responses.JSONResponse(value, status, headers)

  def error(self, request: Any, e: ApiError) -> Any:
    self.metrics.answered.labels(route_of(request), e.status).inc()
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(e.status)
    return self.json({"error": e.body}, e.status, headers)

  async def broken(self, request: Any, e: Exception) -> Any:
    """A fault of our own; it is told to whoever runs the server."""
    traceback.print_exception(e, file=sys.stderr)
    return self.error(request, ApiError("the server failed", status=500, kind="server_error"))

  # ---------------------------------------------------------------- what is no text

  @property
  def about(self) -> dict[str, Any]:
    about = {"id": self.served.name, "object": "model", "created": self.created, "owned_by": "tinygrad"}
    return about | {"context_length": self.engine.model.c.context}

  def model(self, name: str) -> dict[str, Any]:
    if name != self.served.name:
      problem = f"the model {name!r} does not exist; this server has {self.served.name!r}"
      raise ApiError(problem, "model", "model_not_found", 404)
    return self.about

  def metrics_page(self) -> Any:
    text, kind = self.metrics.page()
    return responses.Response(text, media_type=kind)

  async def health(self, request: Any) -> Any:
    well = self.engine.thread.is_alive()
    return self.json({"status": "ok" if well else "the engine has ended"}, 200 if well else 503)

  async def home(self, request: Any) -> Any:
    return responses.HTMLResponse(self.page, headers={"Content-Security-Policy": self.policy})

  async def embeddings(self, f: Fields, request: Any) -> Any:
    c = read_embedding(f)
    self.model(c.model)
    requests = await asyncio.to_thread(lambda: [Request(self.ids_of(text), embed=True) for text in c.texts])
    texts = Texts(self.engine, self.mailbox, requests)
    found = [events[-1].embedding for events in await self.whole(texts, request)]
    data: list[dict[str, Any]] = []
    for i, x in enumerate(found):
      assert x is not None
      if c.dimensions not in (None, len(x)):
        raise f.wrong("dimensions", f"is not {len(x)}, what this model has", "unsupported_parameter")
      shown = x.tolist() if c.floats else base64.b64encode(x.astype("<f4").tobytes()).decode()
      data.append({"object": "embedding", "index": i, "embedding": shown})
    usage = {k: texts.usage[k] for k in ("prompt_tokens", "total_tokens")}
    return {"object": "list", "data": data, "model": self.served.name, "usage": usage}

  def ids_of(self, prompt: str | list[int]) -> list[int]:
    ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    return ids or ([] if self.tokenizer.bos is None else [self.tokenizer.bos])

  # ---------------------------------------------------------------- chat

  async def chat(self, f: Fields, request: Any) -> Any:
    c = read_chat(f, self.served.defaults)
    self.model(c.call.model)
    prompt, requests = await asyncio.to_thread(self.chat_requests, c)
    texts = Texts(self.engine, self.mailbox, requests, c.call.count)
    views = [ChatText(c.tools, self.syntax, reasoning(self.tokenizer, prompt), c.parallel) for _ in requests]
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.served.name}
    if c.call.stream:
      return EventStream(self.chat_chunks(texts, views, head, c.call), texts)
    found = await self.whole(texts, request)
    choices = []
    for i, (events, view) in enumerate(zip(found, views)):
      message = message_of([delta for event in events for delta in view.push(event)])
      logprobs = self.chat_logprobs(c.call, events)
      why = view.finish(events[-1].finish or Finish.STOP)
      choices.append({"index": i, "message": message, "logprobs": logprobs, "finish_reason": why})
    return head | {"object": "chat.completion", "choices": choices, "usage": texts.usage}

  def number_of(self, name: str) -> int:
    """Of a token. Raises ApiError where the model has none of that name."""
    if name not in self.tokenizer.names:
      raise ApiError(f"the model's template writes {name}, and its tokenizer has no such token", code="no_such_token")
    return self.tokenizer.names.index(name)

  def chat_requests(self, c: ChatCall) -> tuple[str, list[Request]]:
    """(the prompt, a request for each text); takes a moment."""
    messages, told = c.messages, [tool.told for tool in c.tools]
    if told and "tools" not in (self.tokenizer.template or ""):
      words, told = tools_in_words(c.tools, self.syntax), []
      system = [m["content"] for m in messages if m["role"] == "system"]
      rest = [m for m in messages if m["role"] != "system"]
      messages = [{"role": "system", "content": "\n\n".join([*system, words])}, *rest]
    prompt, ids = self.tokenizer.chat(messages, **({"tools": told} if told else {}))
    requests = []
    for i in range(c.call.count):
      grammar = None
      if c.forced:
        grammar = self.grammars.lark(call_grammar(c.forced, self.syntax, self.number_of))
      elif c.schema is not None:
        grammar = self.grammars.json(c.schema, in_lark(self.syntax.answer, self.number_of))
      request = self.request(c.call, ids, i)
      requests.append(replace(request, grammar=grammar, shown=self.marks.shown, ends=self.marks.ends))
    return prompt, requests

  def request(self, call: TextCall, ids: list[int], i: int) -> Request:
    seed = call.sampling.seed
    sampling = call.sampling if seed is None else replace(call.sampling, seed=(seed + i) % (1 << 64))
    return Request(ids, call.max_tokens, sampling, call.stop)

  def chat_logprobs(self, call: TextCall, events: list[Event]) -> dict[str, Any] | None:
    return chat_logprobs(drawn_in(events), self.tokenizer) if call.sampling.logprobs is not None else None

  def chat_chunks(
    self, texts: Texts, views: list[ChatText], head: dict[str, Any], call: TextCall
  ) -> AsyncIterator[list[Any]]:
    head = head | {"object": "chat.completion.chunk"} | ({"usage": None} if call.usage else {})

    def chunk(i: int, delta: dict[str, Any], logprobs: Any = None, why: str | None = None) -> dict[str, Any]:
      return head | {"choices": [{"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": why}]}

    def said(i: int, text: str) -> dict[str, Any]:
      return chunk(i, {"content": text})

    plain = [OneText(partial(said, i)) for i in range(len(views))]

    def chunks(i: int, event: Event) -> Iterator[Any]:
      logprobs = self.chat_logprobs(call, [event]) if event.drawn else None
      for delta in views[i].push(event) or ([{}] if logprobs else []):
        only_text = logprobs is None and delta.keys() == {"content"}
        yield plain[i](delta["content"]) if only_text else chunk(i, delta, logprobs)
        logprobs = None
      if event.finish is not None:
        yield chunk(i, {}, logprobs, views[i].finish(event.finish))

    first = [chunk(i, {"role": "assistant", "content": ""}) for i in range(len(views))]
    return self.streamed(texts, first, chunks, head, call)

  # ---------------------------------------------------------------- completions

  async def completions(self, f: Fields, request: Any) -> Any:
    c = read_completion(f, self.served.defaults)
    self.model(c.call.model)
    prompts, requests = await asyncio.to_thread(self.completion_requests, c)
    texts = Texts(self.engine, self.mailbox, requests, c.call.count)
    head = {"id": f"cmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.served.name}
    head |= {"object": "text_completion"}
    if c.call.stream:
      return EventStream(self.completion_chunks(texts, prompts, head, c.call), texts)
    choices = []
    for i, (events, prompt) in enumerate(zip(await self.whole(texts, request), prompts)):
      text = prompt + "".join(e.text for e in events)
      offset = 0 if events[0].prompt else len(prompt)
      choices.append(self.choice(i, text, c.call, events, offset, events[-1].finish))
    return head | {"choices": choices, "usage": texts.usage}

  def completion_requests(self, c: CompletionCall) -> tuple[list[str], list[Request]]:
    """(what comes before each text, a request for each); takes a moment."""
    before, requests = [], []
    for prompt in c.prompts:
      ids = self.ids_of(prompt)
      scored = c.echo and c.call.sampling.logprobs is not None
      requests += [replace(self.request(c.call, ids, i), scored=scored) for i in range(c.call.count)]
      before += [prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)] * c.call.count
    return before if c.echo else [""] * len(before), requests

  def choice(
    self, i: int, text: str, call: TextCall, events: Sequence[Event], offset: int, why: Finish | None
  ) -> dict[str, Any]:
    logprobs = None
    if call.sampling.logprobs is not None:
      logprobs = completion_logprobs(drawn_in(events), self.tokenizer, offset)
    return {"index": i, "text": text, "logprobs": logprobs, "finish_reason": why and why.value}

  def completion_chunks(
    self, texts: Texts, prompts: list[str], head: dict[str, Any], call: TextCall
  ) -> AsyncIterator[list[Any]]:
    head = head | ({"usage": None} if call.usage else {})
    offsets, logprobs = [len(prompt) for prompt in prompts], call.sampling.logprobs is not None

    def chunk(
      i: int, text: str, events: Sequence[Event] = (), offset: int = 0, why: Finish | None = None
    ) -> dict[str, Any]:
      return head | {"choices": [self.choice(i, text, call, events, offset, why)]}

    plain = [OneText(partial(chunk, i)) for i in range(len(prompts))]

    def chunks(i: int, event: Event) -> Iterator[Any]:
      if event.prompt:
        offsets[i] = 0
        yield chunk(i, prompts[i], [event])
      elif event.finish or logprobs:
        yield chunk(i, event.text, [event], offsets[i], event.finish)
      elif event.text:
        yield plain[i](event.text)
      if logprobs:
        offsets[i] += letters(drawn_in([event]), self.tokenizer)

    # prompts; with logprobs when they have been read
    first = [] if logprobs else [chunk(i, prompt) for i, prompt in enumerate(prompts) if prompt]
    return self.streamed(texts, first, chunks, head, call)

  # ---------------------------------------------------------------- both

  async def streamed(
    self,
    texts: Texts,
    first: list[Any],
    chunks: Callable[[int, Event], Iterator[Any]],
    head: dict[str, Any],
    call: TextCall,
  ) -> AsyncIterator[list[Any]]:
    """`first`, and what `chunks` makes of events as they come, up to that of a text that failed, or to the end."""
    yield first
    async for found in self.timed(texts):
      values: list[Any] = []
      for i, event in found:
        if event.finish in FAILURES:
          yield [*values, {"error": failure(event).body}]
          return
        values += chunks(i, event)
      yield values
    yield [*([head | {"choices": [], "usage": texts.usage}] if call.usage else []), "[DONE]"]

  async def timed(self, texts: Texts) -> AsyncIterator[list[tuple[int, Event]]]:
    """The events of texts, noted in the metrics."""
    start, first = time.perf_counter(), True
    async for found in texts.events():
      if first:
        self.metrics.first.observe(time.perf_counter() - start)
      first = False
      yield found
    self.metrics.whole.observe(time.perf_counter() - start)

  async def whole(self, texts: Texts, request: Any) -> list[list[Event]]:
    """All events of each text; a client that leaves cancels them."""
    watcher = asyncio.create_task(leaving(request.receive, texts.cancel))
    found: list[list[Event]] = [[] for _ in texts.jobs]
    try:
      async for several in self.timed(texts):
        for i, event in several:
          if event.finish in FAILURES:
            raise failure(event)
          found[i].append(event)
    finally:
      watcher.cancel()
      texts.cancel()
    return found


def failure(event: Event) -> ApiError:
  """Why a text ended before its time."""
  if event.finish == Finish.CANCELLED:
    return ApiError("the text was cancelled: the server ends", status=503, kind="server_error", code="cancelled")
  return ApiError(event.error.replace("\n  fix: ", "; fix: "), status=500, kind="server_error")


def drawn_in(events: Sequence[Event]) -> list[Drawn]:
  return [d for e in events for d in (*e.prompt, e.drawn) if d is not None]


def in_line(e: AppError) -> str:
  return str(e).replace("\n  fix: ", "; fix: ")


def route_of(request: Any) -> str:
  """The path as the server has it, of which there are few, and not as a client writes it."""
  return str(getattr(request.scope.get("route"), "path", "none"))


async def unrouted(request: Any, e: Any) -> Any:
  """No such path, or not by this method."""
  error = ApiError(f"{request.method} {request.url.path}: {e.detail.lower()}", code="unknown_url", status=e.status_code)
  return responses.JSONResponse({"error": error.body}, e.status_code, e.headers)


def chat_page() -> tuple[str, str]:
  """(the page, the policy by which a browser runs its one script and reaches nothing but this server)"""
  text = PAGE.read_text(encoding="utf-8")
  parts = {}
  for tag in ("script", "style"):
    (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
    parts[tag] = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
  hashes = "; ".join(f"{tag}-src 'sha256-{digest}'" for tag, digest in parts.items())
  return text, f"default-src 'none'; {hashes}; connect-src 'self'; base-uri 'none'; form-action 'none'"
