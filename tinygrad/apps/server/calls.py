"""What a client asks for, out of its JSON. Each field is checked; unknown ones are errors, but for those that name or
describe the client and change no text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tinygrad.apps.sampling import MOST_LOGPROBS, Sampling, SamplingError
from tinygrad.apps.server.fields import ApiError, Fields, read_json
from tinygrad.apps.server.tools import Tool

NO_MATTER = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
             "reasoning_effort", "verbosity"}  # fmt: skip
SHARED = {"model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
          "frequency_penalty", "logit_bias", "seed", "stop", "n", "stream", "stream_options", "logprobs"}  # fmt: skip
CHAT = SHARED | NO_MATTER | {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice",
                             "parallel_tool_calls",
                             "response_format"}  # fmt: skip
COMPLETION = SHARED | NO_MATTER | {"prompt", "echo", "best_of", "suffix"}
# by the field of Sampling: the field of the body
SAMPLING = {"temperature": "temperature", "top_p": "top_p", "min_p": "min_p", "repetition": "repetition_penalty",
            "presence": "presence_penalty", "frequency": "frequency_penalty"}  # fmt: skip
MESSAGE = {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning_content", "audio",
           "annotations", "function_call"}  # fmt: skip
MOST_TEXTS, MOST_STOPS, MOST_TOOLS, MOST_PARTS = 8, 16, 128, 4096
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class TextCall:
  """What both kinds of text are asked with. `count`: so many texts."""

  model: str
  sampling: Sampling
  max_tokens: int | None
  stop: tuple[str, ...]
  count: int
  stream: bool
  usage: bool


@dataclass(frozen=True, slots=True)
class ChatCall:
  """`schema`: what the answer's JSON is to be, `forced`: the tools of which one has to be called, `parallel`:
  whether an answer may hold several calls."""

  call: TextCall
  messages: list[dict[str, Any]]
  tools: tuple[Tool, ...]
  forced: tuple[Tool, ...]
  schema: dict[str, Any] | None
  parallel: bool


@dataclass(frozen=True, slots=True)
class CompletionCall:
  """`prompts`: each a text or tokens. `echo`: the prompt comes before its text, and its logprobs before the text's."""

  call: TextCall
  prompts: list[str | list[int]]
  echo: bool


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
  """`floats`: as numbers, rather than their bytes in base64."""

  model: str
  texts: list[str | list[int]]
  floats: bool
  dimensions: int | None


def read_call(f: Fields, defaults: Sampling, max_tokens: int | None, logprobs: int | None) -> TextCall:
  stop = f.values.get("stop")
  stops = [] if stop is None else [stop] if isinstance(stop, str) else f.items("stop", MOST_STOPS)
  if not all(isinstance(s, str) and s for s in stops):
    raise f.wrong("stop", "holds something else than strings with text")
  options = f.inner("stream_options")
  options.only({"include_usage", "include_obfuscation"})
  stream = f.flag("stream")
  if f.has("stream_options") and not stream:
    raise f.wrong("stream_options", "is for streams only")
  return TextCall(
    model=f.text("model"),
    sampling=read_sampling(f, replace(defaults, logprobs=logprobs)),
    max_tokens=max_tokens,
    stop=tuple(stops),
    count=f.integer("n", 1, 1, MOST_TEXTS) or 1,
    stream=stream,
    usage=options.flag("include_usage"),
  )


def read_sampling(f: Fields, s: Sampling) -> Sampling:
  numbers: dict[str, Any] = {field: f.number(name, getattr(s, field)) for field, name in SAMPLING.items()}
  bias = []
  for token, change in f.inner("logit_bias").values.items():
    if not token.isdecimal() or len(token) > 9 or isinstance(change, bool) or not isinstance(change, (int, float)):
      raise f.wrong("logit_bias", "is no object of numbers by a token's number")
    bias.append((int(token), change))
  integers: dict[str, Any] = {
    "seed": f.integer("seed", None, -(1 << 63), (1 << 64) - 1), "top_k": f.integer("top_k", s.top_k, -1, 1 << 31),
  }  # fmt: skip
  if integers["seed"] is not None:
    integers["seed"] %= 1 << 64
  if integers["top_k"] == -1:  # as vLLM says all
    integers["top_k"] = 0
  try:
    return replace(s, bias=tuple(bias), **numbers, **integers)
  except SamplingError as e:
    name = SAMPLING.get(e.setting, "logit_bias" if e.setting == "bias" else e.setting)
    raise ApiError(str(e).replace(e.setting, name, 1).replace("\n  fix: ", "; use "), name) from e


def read_chat(f: Fields, defaults: Sampling) -> ChatCall:
  f.only(CHAT)
  most = f.integer("max_completion_tokens", f.integer("max_tokens", None, 1, 1 << 31), 1, 1 << 31)
  top = f.integer("top_logprobs", None, 0, MOST_LOGPROBS)
  if top is not None and not f.flag("logprobs"):
    raise f.wrong("top_logprobs", "needs logprobs")
  call = read_call(f, defaults, most, (top or 0) if f.flag("logprobs") else None)
  messages = f.get("messages")
  if not isinstance(messages, list) or not messages:
    raise f.wrong("messages", "is no list of one or more")
  tools = tuple(read_tool(Fields.of(t, f"tools[{i}]")) for i, t in enumerate(f.items("tools", MOST_TOOLS)))
  if len({tool.name for tool in tools}) < len(tools):
    raise f.wrong("tools", "has two of one name")
  offered, forced = read_choice(f, tools)
  schema = read_format(f)
  if schema is not None and forced:
    raise f.wrong("response_format", "and a tool that has to be called exclude each other")
  read = [read_message(Fields.of(m, f"messages[{i}]")) for i, m in enumerate(messages)]
  return ChatCall(call, read, offered, forced, schema, f.flag("parallel_tool_calls", True))


def read_message(m: Fields) -> dict[str, Any]:
  """As a chat template has it: text is one string, the arguments of a call an object."""
  m.only(MESSAGE)
  role = m.text("role", ROLES)
  out: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": read_content(m)}
  if role == "assistant" and m.has("tool_calls"):
    calls, path = m.items("tool_calls", MOST_TOOLS), m.path("tool_calls")
    out["tool_calls"] = [read_past_call(Fields.of(c, f"{path}[{i}]")) for i, c in enumerate(calls)]
  elif not m.has("content"):
    raise m.wrong("content", "is missing", "missing_required_parameter")
  for name in ("name", "tool_call_id", "reasoning_content"):
    if m.has(name):
      out[name] = m.text(name)
  return out


def read_content(m: Fields) -> str:
  content = m.values.get("content")
  if content is None or isinstance(content, str):
    return content or ""
  if not isinstance(content, list) or len(content) > MOST_PARTS:
    raise m.wrong("content", f"is neither a string nor a list of at most {MOST_PARTS} parts")
  texts = []
  for i, value in enumerate(content):
    part = Fields.of(value, f"{m.path('content')}[{i}]")
    part.text("type", ("text",))
    texts.append(part.text("text"))
  return "".join(texts)


def read_past_call(c: Fields) -> dict[str, Any]:
  c.only({"id", "type", "function", "index"})
  function = c.inner("function")
  try:
    arguments = read_json(function.text("arguments"))
  except (ValueError, RecursionError) as e:
    raise function.wrong("arguments", f"is no JSON: {e}") from e
  call: dict[str, Any] = {"type": "function", "function": {"name": function.text("name"), "arguments": arguments}}
  return call | ({"id": c.text("id")} if c.has("id") else {})


def read_tool(t: Fields) -> Tool:
  t.only({"type", "function"})
  t.text("type", ("function",))
  function = t.inner("function")
  function.only({"name", "description", "parameters", "strict"})
  name = function.text("name")
  if not 0 < len(name) <= 64 or not all(c.isascii() and (c.isalnum() or c in "_-.") for c in name):
    raise function.wrong("name", "is not of 1 to 64 letters, digits, _, - and .")
  description = function.text("description") if function.has("description") else ""
  function.flag("strict")
  return Tool(name, description, function.inner("parameters").values or {"type": "object"})


def read_choice(f: Fields, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], tuple[Tool, ...]]:
  """(the tools that may be called, those of which one has to be)"""
  choice = f.values.get("tool_choice")
  if choice is None:
    return tools, ()
  if isinstance(choice, dict):
    chosen = Fields(choice, f.path("tool_choice"))
    chosen.text("type", ("function",))
    name = chosen.inner("function").text("name")
    named = tuple(t for t in tools if t.name == name)
    if not named:
      raise f.wrong("tool_choice", f"names {name!r}, which is none of the tools")
    return tools, named
  choice = f.text("tool_choice", ("none", "auto", "required"))
  if choice == "required" and not tools:
    raise f.wrong("tool_choice", "is 'required', and there are no tools")
  return (() if choice == "none" else tools), (tools if choice == "required" else ())


def read_format(f: Fields) -> dict[str, Any] | None:
  """The schema of the answer's JSON."""
  if not f.has("response_format"):
    return None
  said = f.inner("response_format")
  said.only({"type", "json_schema"})
  kind = said.text("type", ("text", "json_object", "json_schema"))
  if kind == "json_schema":
    schema = said.inner("json_schema")
    schema.only({"name", "schema", "strict", "description"})
    schema.text("name")
    schema.flag("strict")
    return Fields.of(schema.get("schema"), schema.path("schema")).values
  return {"type": "object"} if kind == "json_object" else None


def read_completion(f: Fields, defaults: Sampling) -> CompletionCall:
  f.only(COMPLETION)
  if f.has("suffix") and f.text("suffix"):
    raise f.wrong("suffix", "is not supported", "unsupported_parameter")
  call = read_call(f, defaults, f.integer("max_tokens", 16, 0, 1 << 31), f.integer("logprobs", None, 0, MOST_LOGPROBS))
  if f.integer("best_of", call.count, 1, MOST_TEXTS) != call.count:
    raise f.wrong("best_of", "other than n is not supported", "unsupported_parameter")
  return CompletionCall(call, read_texts(f, "prompt"), f.flag("echo"))


def read_embedding(f: Fields) -> EmbeddingCall:
  f.only({"model", "input", "encoding_format", "dimensions", "user"})
  form = f.text("encoding_format", ("float", "base64")) if f.has("encoding_format") else "float"
  dimensions = f.integer("dimensions", None, 1, 1 << 24)
  return EmbeddingCall(f.text("model"), read_texts(f, "input"), form == "float", dimensions)


def read_texts(f: Fields, name: str) -> list[str | list[int]]:
  """One text or several, each as a string or as tokens."""
  given = f.get(name)
  if isinstance(given, str) or (isinstance(given, list) and given and all(type(i) is int for i in given)):
    given = [given]
  if not isinstance(given, list) or not 0 < len(given) <= 64:
    raise f.wrong(name, "is neither a text, nor tokens, nor a list of 1 to 64 of these")
  for text in given:
    tokens = isinstance(text, list) and text and all(type(i) is int for i in text)
    if not isinstance(text, str) and not tokens:
      raise f.wrong(name, "holds something else than texts or lists of tokens")
  return given
